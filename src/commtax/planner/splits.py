"""Splits of a cluster into workers for prompts and workers that decode, as plans beside the others.

Priced as ``commtax simulate --disaggregated`` prices one of them: the same network, with steps priced once for each degree of tp.
"""

from dataclasses import replace

import numpy as np

from commtax.arrays import different
from commtax.cost.network import Decoding, Network, Prompting, crowding, flow, prompt_wait_s
from commtax.cost.serving import Load, Steps, closed_loop, prompts_apart, running
from commtax.planner.columns import NO_SERVING, Array, Columns, cached
from commtax.planner.space import Space, beside
from commtax.question import EVEN, Goal, Question
from commtax.records import dataclass
from commtax.spec import Cluster, Number
from commtax.units import plural
from commtax.verbs.apart import Apart, decoding_of, network_of, prompting_of
from commtax.verbs.asking import laid
from commtax.verbs.confidence import Estimate
from commtax.verbs.fitting import state_places, state_tokens, step_limits
from commtax.verbs.serving import Simulation
from commtax.verbs.steps import decoding, step_bill

COPIES = np.r_[1:65, (64 * 2 ** (np.arange(1, 129) / 8)).astype(int)]
"""Decode workers that are tried: all up to 64, then eight to a doubling. The same on every cluster, so that more GPUs only add."""
LOADS = different(np.r_[1:17, (16 * 2 ** (np.arange(1, 65) / 4)).astype(int)])
"""Clients of a decode worker that are tried: all up to 16, then four to a doubling; the best of a split is found exactly."""
BUSY = 0.9  # of the most prompts and caches that pass: clients beyond only wait
SAME = 1e-3  # prompt workers that shorten requests by less than this are left out
PIECES = 9  # that the room between two loads is cut into
SMALL = 32  # GPUs of a split that is tried for the price of its tokens: larger ones have the same shares of both kinds


def figures(s: Simulation, held: Number) -> dict[str, Array]:
    """What a simulation tells of each load, with ``held`` tokens of cache a copy."""
    headroom = 1 - s.running * (cached(s.question) + s.state_tokens) / np.asarray(held)
    times = {"ttft_s": s.ttft_s, "tpot_s": s.tpot_s, "sure_ttft_s": surely(s, "ttft_s"), "sure_tpot_s": surely(s, "tpot_s")}
    return {"running": s.running, **times, "kv_headroom": headroom}


def surely(s: Simulation, name: str) -> Number:
    """A time as long as it is with the confidence that is wanted, where it has a limit; ranges are priced for those alone."""
    goal, value = s.question.goal, getattr(s, name)
    if goal.confidence == EVEN or getattr(goal, name) == np.inf:
        return value
    return Estimate(value, *s.range_of(name)).sure(goal.confidence)


@dataclass(frozen=True, slots=True)
class Rows:
    """Splits that one kind of copies decodes in: the kind of prompt workers, copies, and prompt workers that fit beside them."""

    kind: Array
    copies: Array
    fit: Array

    def take(self, places: Array) -> "Rows":
        return Rows(self.kind[places], self.copies[places], self.fit[places])


@dataclass(frozen=True, slots=True)
class Free:
    """One copy where no prompt waits for a worker, by kind of prompt workers and clients."""

    loads: Array
    per_s: Array  # requests
    alone_s: Array  # of a request, without moving

    @property
    def knee(self) -> Array:
        """Clients at which tokens/s over the time of a request are most, by kind of prompt workers."""
        return np.asarray(self.loads[np.argmax(self.loads / self.alone_s**2, axis=1)])

    def at(self, kind: Array, loads: Array) -> tuple[Array, Array]:
        """Requests/s and seconds between the loads that were priced."""
        place = np.clip(np.searchsorted(self.loads, loads, "right") - 1, 0, max(0, len(self.loads) - 2))
        after = np.minimum(place + 1, len(self.loads) - 1)
        beyond = (loads - self.loads[place]) / np.maximum(1, self.loads[after] - self.loads[place])
        ends = ((table[kind, place], table[kind, after]) for table in (self.per_s, self.alone_s))
        per_s, alone_s = (low + (high - low) * beyond for low, high in ends)
        return per_s, alone_s


@dataclass(frozen=True, slots=True)
class Copies:
    """Workers that decode, of one degree of tp, and the kinds of prompt workers beside them, of each of which one is priced."""

    question: Question
    load: Load
    decoding: Decoding
    most: int  # clients of a copy
    longer: Array  # how many times as long TPOT of each batch is with the confidence that is wanted …
    kv_tokens: float
    ahead: Array  # degrees of the prompt workers
    prompting: Prompting  # columns of these
    sure_ttft: Array  # … and TTFT by them

    @property
    def tp(self) -> int:
        return int(self.question.plan.tp)

    def network(self, kind: Array, clients: Number, copies: Number, workers: Number | None) -> Network:
        """Splits (rows) under loads (columns)."""
        plan, of = replace(self.question.plan, tp=self.ahead[kind]), self.prompting
        apart = Apart(plan, workers, copies)
        prompting = Prompting(apart.senders, of.one_s[kind], of.more_s[kind], of.most[kind])
        return network_of(self.question, self.load, clients, apart, prompting, replace(self.decoding, workers=copies))

    @property
    def loads(self) -> Array:
        return np.append(LOADS[: np.searchsorted(LOADS, self.most)], self.most)

    def free(self) -> Free:
        net = self.network(np.arange(len(self.ahead))[:, None], self.loads, 1, None)
        passed = flow(net)
        return Free(self.loads, np.asarray(passed.per_s), np.asarray(passed.life_s(net) - passed.moved_s))


def split(base: Question, roomy: Space, sure_ttft: Array, room: Array, index: int) -> Columns:
    """Prompt workers and decode copies of one tp degree each, inside a fast domain, with no more workers than help.

    A single output token leaves nothing to decode. ``room`` is for clients of a copy.
    """
    wanted = base.requests
    if wanted.output_len == 1 or not wanted.disaggregated:
        return NO_SERVING
    plain, load = _plain(base, roomy), Load(1.0, wanted.input_len * 1.0, wanted.output_len * 1.0, spread=wanted.spread)
    if not len(plain):
        return NO_SERVING
    ahead = roomy.tp[plain]
    prompting = prompting_of(laid(base, tp=ahead), load, 1, roomy.kv_tokens[plain])[0]
    prompting = Prompting(1, *(np.broadcast_to(x, ahead.shape) for x in (prompting.one_s, prompting.more_s, prompting.most)))
    parts: list[Columns] = []
    for i in plain:
        one, most, kv = laid(base, tp=int(roomy.tp[i])), int(room[i]), float(roomy.kv_tokens[i])
        decodes, longer = full_copy(one, load, kv), _longer(one, load, most, kv)
        copies = Copies(one, load, decodes, most, longer, kv, ahead, prompting, sure_ttft[plain])
        parts.append(_rows(copies, index))
    return Columns.joined(parts)


def _plain(base: Question, roomy: Space) -> Array:
    """Workers that tp alone lays over GPUs, inside a fast domain."""
    return np.flatnonzero((roomy.pp == 1) & (roomy.dp == 1) & (roomy.ep == 1) & (roomy.tp <= base.cluster.domain))


def why_none(base: Question, roomy: Space) -> str:
    """Why there is no split at all."""
    plain, place = _plain(base, roomy), base.cluster
    if base.requests.output_len == 1:
        return "one output token leaves nothing to decode"
    if not len(plain):
        return f"no worker of TP alone has room inside a fast domain of {plural(place.domain, 'GPU')}, and no others are split"
    least = int(roomy.tp[plain].min())
    return f"two workers of TP {least} need {2 * least} GPUs inside fast domains, and {place.key} has {place.num_gpus}"


def full_copy(one: Question, load: Load, kv_tokens: float) -> Decoding:
    """A copy that decodes as many requests at once as its cache and engine let in."""
    most = np.minimum(step_limits(one)[1], state_places(one, kv_tokens))
    alone = replace(load, concurrency=np.inf, state_tokens=state_tokens(one))
    return decoding_of(one, load, running(alone, one.engine, kv_tokens, most), 1)


def _longer(one: Question, load: Load, most: int, kv: float) -> Array:
    """How many times as long a decode step of each batch is with the confidence that is wanted."""
    seqs = np.arange(1, most + 1)
    if one.goal.confidence == EVEN or one.goal.tpot_s == np.inf:
        return np.ones(most)
    decode = step_bill(one, decoding(seqs, load))
    steps = Steps(decode.step_s, 0.0)
    quiet = closed_loop(replace(load, concurrency=seqs), steps, seqs, 0.0 * seqs, one.engine)
    return np.asarray(surely(Simulation(one, seqs, seqs, steps, kv, quiet, (decode, decode)), "tpot_s") / quiet.tpot_s)


def _splits(of: Copies) -> tuple[Rows, bool]:
    """All splits, and whether fewer prompt workers than fit may do.

    For tokens a GPU or for fewest GPUs every small split counts. Else more prompt workers are never worse, as long as they
    stay in the copies' own domain or have left it anyway: all that fit, and help.
    """
    cluster, tp = of.question.cluster, of.tp
    small = of.question.goal.objective in ("cost", "gpus")
    one = replace(cluster, num_hosts=max(1, cluster.domain // cluster.gpus_per_host))
    places = (cluster, one) if cluster.num_gpus > cluster.domain and not small else (cluster,)
    found = [(kind, *_beside(place, tp, ahead, small)) for kind, ahead in enumerate(of.ahead.tolist()) for place in places]
    kinds = np.concatenate([np.full(len(copies), kind) for kind, copies, _ in found])
    return Rows(kinds, *(np.concatenate([part[at] for part in found]) for at in (1, 2))), not small


def _beside(place: Cluster, tp: int, ahead: int, small: bool) -> tuple[Array, Array]:
    """Copies, and prompt workers beside them: all that fit, or of small splits any number."""
    if not small:
        fit = beside(COPIES, tp, ahead, place)
        return COPIES[fit > 0], fit[fit > 0]
    most = min(place.num_gpus, max(SMALL, 4 * max(tp, ahead)))
    pairs = np.mgrid[1 : most // tp + 1, 1 : most // ahead + 1].reshape(2, -1)
    copies, workers = pairs[:, pairs[0] * tp + pairs[1] * ahead <= most]
    fits = beside(copies, tp, ahead, place) >= workers
    return copies[fits], workers[fits]


def _rows(of: Copies, index: int) -> Columns:
    """The loads of each split that may be listed, or drawn on the front: of some loads, and the most of each split that is good."""
    rows, fewer = _splits(of)
    if not len(rows.copies):
        return NO_SERVING
    free = of.free() if fewer or not of.question.goal.limited else None
    loads = np.broadcast_to(of.loads, (len(rows.copies), len(of.loads)))
    if free and not of.question.goal.limited:  # clients come up to a copy's knee, but for limits
        loads = np.minimum(loads[:, of.loads <= free.knee.max()], free.knee[rows.kind, None])
    grid = _priced(of, rows, loads, free if fewer else None)
    kept, good = _kept(of.question.goal, grid), grid["good"]
    first = np.where(good, np.arange(loads.shape[1]), -1).max(1)
    gaps = np.flatnonzero((first >= 0) & (first + 1 < loads.shape[1]))
    parts = [_columns(of, {name: value[kept] for name, value in grid.items()}, index)]
    if len(gaps):
        low, high = (loads[gaps, first[gaps] + more] for more in (0, 1))
        parts.append(_columns(of, _largest(of, rows.take(gaps), low, high, free if fewer else None), index))
    return Columns.joined(parts)


def _largest(of: Copies, rows: Rows, low: Array, high: Array, free: Free | None) -> dict[str, Array]:
    """The most clients of a copy between a good load and one that is not: times never fall when one joins."""
    while np.any(high - low > 1):
        inner = low[:, None] + (high - low)[:, None] * np.arange(1, PIECES) // PIECES
        good = _priced(of, rows, inner, free)["good"]
        low = np.maximum(low, np.where(good, inner, 0).max(1))
        high = np.where(~good & (inner > low[:, None]), inner, high[:, None]).min(1)
    return {name: value[:, 0] for name, value in _priced(of, rows, low[:, None], free).items()}


def _enough(of: Copies, rows: Rows, loads: Array, free: Free) -> Array:
    """The fewest prompt workers, of those that fit, with which a prompt waits no more than ``SAME`` of a request that never does,
    were as many sent as then."""
    kind, copies = rows.kind[:, None], rows.copies[:, None]
    per_s, alone_s = free.at(kind, loads)
    low, high = np.broadcast_arrays(1, rows.fit[:, None], loads)[:2]
    net = of.network(kind, copies * loads, copies, None)
    for _ in range(int(np.max(rows.fit)).bit_length()):
        half = (low + high) // 2
        waits = prompt_wait_s(replace(net, prompting=replace(net.prompting, workers=half)), per_s * copies) > SAME * alone_s
        low, high = np.where(waits, np.minimum(half + 1, high), low), np.where(waits, high, half)
    return np.asarray(high)


def _priced(of: Copies, rows: Rows, loads: Array, free: Free | None) -> dict[str, Array]:
    """Splits (rows) under loads (columns): what is listed of them, how far their times go of the limits, and whether they are
    good: within these, and open to so many clients."""
    q, kind, copies = of.question, rows.kind[:, None], rows.copies[:, None]
    workers = np.broadcast_to(rows.fit[:, None], loads.shape) if free is None else _enough(of, rows, loads, free)
    clients = copies * loads
    net = of.network(kind, clients, copies, workers)
    passed = flow(net)
    served = prompts_apart(net, passed, q.engine)
    batch = np.clip(np.ceil(passed.seqs), 1, len(of.longer)).astype(int) - 1
    ttft, tpot = served.ttft_s, served.tpot_s
    times = {"ttft_s": ttft, "tpot_s": tpot, "sure_ttft_s": ttft * of.sure_ttft[kind], "sure_tpot_s": tpot * of.longer[batch]}
    request_s = ttft + (of.load.output_len - 1) * tpot
    with np.errstate(over="ignore"):  # as in ``columns.over``
        over = np.maximum(times["sure_ttft_s"] / q.goal.ttft_s, times["sure_tpot_s"] / q.goal.tpot_s)
    open_ = (crowding(net, passed) <= BUSY) | (loads == 1)
    priced = {
        "replicas": copies,
        "gpus": copies * of.tp + workers * of.ahead[kind],
        "prefill_tp": of.ahead[kind],
        "prefill_replicas": workers,
        "concurrency": clients,
        "running": passed.seqs,
        **times,
        "tokens_per_s": clients / request_s * of.load.output_len,
        "kv_headroom": 1 - np.minimum(passed.seqs, loads) * cached(q) / of.kv_tokens,
        "request_s": request_s,
        "over": np.where(open_, over, np.inf),
        "good": open_ & (over <= 1),
    }
    return {name: np.broadcast_to(value, loads.shape) for name, value in priced.items()}


def _columns(of: Copies, priced: dict[str, Array], index: int) -> Columns:
    shown = {name: value for name, value in priced.items() if name not in ("request_s", "over", "good")}
    return Columns.of(len(shown["gpus"]), mode=1, dtype=index, tp=of.tp, pp=1, dp=1, ep=1, **shown)


def _kept(goal: Goal, grid: dict[str, Array]) -> Array:
    """Of the loads (columns) of splits (rows): the best of each split that meets the limits, or the nearest, and of each load the
    split with most for each GPU."""
    over, good, rate = grid["over"], grid["good"], grid["tokens_per_s"]
    value = {"throughput": rate, "latency": 1 / grid["request_s"]}.get(goal.objective, rate / grid["gpus"])
    rows, loads = np.arange(len(over)), np.arange(over.shape[1])
    kept = np.zeros(over.shape, dtype=bool)
    kept[rows, np.where(good.any(1), np.where(good, value, -np.inf).argmax(1), over.argmin(1))] = True
    kept[np.where(good, rate / grid["gpus"], -np.inf).argmax(0), loads] = True
    return np.asarray(kept & np.isfinite(over) & (good | ~good.any(1, keepdims=True)))
