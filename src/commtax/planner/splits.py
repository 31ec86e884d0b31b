"""Splits of a cluster into workers for prompts and workers that decode, as plans beside the others, priced as ``commtax simulate
--disaggregated`` prices one of them. Workers have tp alone inside a fast domain, or attention data parallelism with experts."""

from collections.abc import Iterator, Sequence

import numpy as np

from commtax import counting
from commtax.arrays import Array, spread, unique_values
from commtax.cost.closed_form import ClosedLoopLoad, Steps, closed_loop, running_requests
from commtax.cost.network import DecodeStation, PromptStation, QueueNetwork, disaggregated_means, flow, prompt_wait_s
from commtax.judgement.leading import latest_first_token_s
from commtax.judgement.margins import margin
from commtax.planner.columns import NO_SERVING, ColumnTable, ServingColumns, mean_cached_tokens
from commtax.planner.exchanges import exchanges
from commtax.planner.money import paid
from commtax.planner.space import Roomy, Space, most_each, replicas, space, surely, workers_beside
from commtax.question import EVEN, Goal, Question
from commtax.records import dataclass, replace
from commtax.rules import legality
from commtax.rules.drafts import drafted_load
from commtax.spec import SERVING_AXES, Cluster, Number, Plan
from commtax.units import plural
from commtax.verbs.closed_loop import ClosedLoop, price_closed_loop
from commtax.verbs.disaggregation import Disaggregation, decoding_of, network_of, prompting_of, where_prompts_run
from commtax.verbs.fit_advice import starts
from commtax.verbs.fitting import state_places, state_tokens, step_limits
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import replan, settle
from commtax.verbs.steps import decode_workload, step_bill

COPIES = np.r_[1:65, (64 * 2 ** (np.arange(1, 129) / 8)).astype(int)]  # decode workers that are tried, on every cluster the same
LOADS = unique_values(np.r_[1:17, (16 * 2 ** (np.arange(1, 65) / 4)).astype(int)])  # clients of a rank that are tried at first
SAME = 1e-3  # prompt workers that shorten requests by less than this are left out
PIECES = 9  # that the room between two loads is cut into
SMOOTH = 0.95  # of a split's most power is met on the grid
SMALL = 32  # GPUs of a split that is tried for the price of its tokens: larger ones have the same shares of both kinds
Priced = dict[str, Array]  # figures of splits (rows) under loads (columns) by name
Unqueued = tuple[Array, Array, Array]  # loads of a copy whose prompts never wait, its requests/s and a request's seconds then
BESIDE = ("prefill_gpus", "request_s", "over", "good")  # figures that no column keeps


@dataclass(frozen=True, slots=True)
class SplitRows(ColumnTable):
    """Splits that one kind of copies decodes in: the kind of prompt workers, copies, and prompt workers that fit beside them."""

    kind: Array
    copies: Array
    fit: Array


@dataclass(frozen=True, slots=True)
class PromptWorkers:
    """Kinds of workers that compute prompts, of each of which one is priced."""

    plan: Plan  # sizes are columns
    prompting: PromptStation
    sure_ttft: Array  # how many times as long TTFT is with the confidence that is wanted

    @property
    def group(self) -> Array:
        return np.asarray(self.plan.num_gpus)


@dataclass(frozen=True, slots=True)
class DecodeWorkers:
    """Workers of one kind that decode, and the kinds of prompt workers beside them."""

    question: Question
    load: ClosedLoopLoad
    decoding: DecodeStation
    most: int  # clients of a rank
    longer: Array  # how many times as long TPOT of each batch is with the confidence that is wanted
    kv_tokens: float
    ahead: PromptWorkers

    @property
    def ranks(self) -> int:
        return int(self.question.plan.dp)

    @property
    def group(self) -> int:
        return int(self.question.plan.num_gpus)

    def network(self, kind: Array, clients: Number, copies: Number, workers: Number | None) -> QueueNetwork:
        """Return the queueing network of splits (rows) under loads (columns)."""
        sizes, of = self.ahead.plan, self.ahead.prompting
        plan = replace(self.question.plan, tp=spread(sizes.tp, kind), dp=spread(sizes.dp, kind), ep=spread(sizes.ep, kind))
        apart = Disaggregation(plan, workers, copies)
        prompting = PromptStation(apart.senders, *(spread(x, kind) for x in of.columns))
        return network_of(self.question, self.load, clients, apart, prompting, replace(self.decoding, workers=copies))

    @property
    def loads(self) -> Array:
        return np.append(LOADS[: np.searchsorted(LOADS, self.most)], self.most)

    def free(self) -> Unqueued:
        """Price one copy where no prompt waits for a worker, by kind of prompt workers (rows) and clients (columns)."""
        net = self.network(np.arange(len(self.ahead.group))[:, None], self.loads * self.ranks, 1, None)
        passed = flow(net)
        return self.loads, np.asarray(passed.per_s), np.asarray(passed.life_s(net) - passed.moved_s)


def split(pools: Sequence[Roomy]) -> ServingColumns:
    """Return prompt workers and decode copies of one kind each, with no more workers than help."""
    wanted = pools[0].question.requests if pools else None
    if wanted is None or wanted.output_len == 1 or not wanted.disaggregated:  # a single output token leaves nothing to decode
        return NO_SERVING
    sizes, parts = prompt_sizes(pools), list[ServingColumns]()
    for of in counting.counted(pools):
        ahead, load = dict[bool, PromptWorkers](), load_of(of.question)
        for i in counting.counted(simple_workers(of.question, of.plans, wanted.prefill_cluster is not None).tolist()):
            spread = bool(of.plans.ep[i] > 1)
            if spread not in ahead:
                ahead[spread] = prompters(of, load, sizes, spread)
            kv, one = float(of.plans.kv_tokens[i]), replan(of.question, **of.plans.sizes(i))
            seats = int(min(of.most_clients[i], step_limits(one)[1]))
            most = min(2 * seats, int(most_each(of.question, one.plan.dp)))  # others are where prompts are computed
            longer = _confidence_factor(one, load, seats, kv)
            parts.append(_rows(DecodeWorkers(one, load, full_copy(one, load, kv), most, longer, kv, ahead[spread]), of))
    return ServingColumns.joined(parts)


def load_of(q: Question) -> ClosedLoopLoad:
    """Return the requests of a question, as its drafts have them decoded."""
    lengths, cached = (q.requests.input_len * 1.0, q.requests.output_len * 1.0), q.offered.cached_tokens(q.requests.input_len)
    return drafted_load(ClosedLoopLoad(1.0, *lengths, spread=q.requests.spread, cached=cached), q)


def simple_workers(base: Question, plans: Space, alone: bool = False) -> Array:
    """Return workers of tp inside a fast domain or of attention data parallelism that leave GPUs for others, unless ``alone``."""
    inside = (plans.dp == 1) & (plans.ep == 1) & (plans.tp <= base.cluster.domain)
    leaves = plans.group < base.cluster.num_gpus + alone
    return np.flatnonzero((plans.pp == 1) & (inside | ((plans.tp == 1) & (plans.dp > 1))) & leaves)


def prompt_sizes(decoding: Sequence[Roomy]) -> Array:
    """Return the (tp, dp) of all workers with room, over all exchanges, or of all legal ones on a separate prompt cluster."""
    pools, base = [(of.question, of.plans) for of in decoding], decoding[0].question
    alone = base.requests.prefill_cluster is not None
    if alone:
        ahead = where_prompts_run(base)
        pools = [(ahead, space(ahead, exchange).legal) for exchange in exchanges(base)]
    several = [np.stack([plans.tp[plain], plans.dp[plain]]) for q, plans in pools for plain in [simple_workers(q, plans, alone)]]
    return np.asarray(unique_values(np.concatenate(several, axis=1), axis=1))


def prompters(of: Roomy, load: ClosedLoopLoad, sizes: Array, spread: bool) -> PromptWorkers:
    """Return the legal prompt workers with room, whose experts are spread as those of decode workers are."""
    (tp, dp), base = sizes, of.question
    ep = tp * dp if spread else np.where(dp > 1, dp, 1)
    every = where_prompts_run(base, tp=tp, dp=dp, ep=ep)
    legal = legality.codes(base.model, every.cluster, every.plan, every.engine) == 0
    workers = where_prompts_run(base, tp=tp[legal], dp=dp[legal], ep=ep[legal])
    kv = np.broadcast_to(cache_tokens(workers), legal.sum())
    roomy = (kv >= base.requests.tokens) & starts(workers)
    workers, kv = where_prompts_run(base, tp=tp[legal][roomy], dp=dp[legal][roomy], ep=ep[legal][roomy]), kv[roomy]
    columns = (np.broadcast_to(x, kv.shape) for x in prompting_of(workers, load, 1, kv)[0].columns)
    return PromptWorkers(workers.plan, PromptStation(1, *columns), _sure_ttft(workers, kv, base))


def _sure_ttft(workers: Question, kv: Array, base: Question) -> Array:
    """Return how many times as long TTFT of a request alone is with the confidence that is wanted."""
    if not len(kv) or workers.goal.ttft_s == np.inf:
        return np.ones(len(kv))
    alone = price_closed_loop(settle(workers.but(concurrency=workers.plan.dp, kv_tokens=kv, disaggregated=False)))
    if base.requests.prefill_cluster:  # ranges are those of both chips, whichever does what
        alone = replace(alone, question=alone.question.but(prefill_cluster=base.cluster))
    return np.broadcast_to(surely(alone, "ttft_s") / alone.ttft_s, kv.shape)


def why_none(base: Question, roomy: Space) -> str:
    """Return why there is no split at all."""
    place, ahead = base.cluster, base.requests.prefill_cluster
    if base.requests.output_len == 1:
        return "with one output token there is nothing to decode"
    if ahead:
        return f"no worker for prompts has room for a request on {ahead.key}"
    alone = roomy.group[(roomy.pp == 1) & (roomy.tp <= place.domain)]
    if not len(alone):
        return f"no worker without stages has room inside a fast domain of {plural(place.domain, 'GPU')}, and no others are split"
    least = int(alone.min())
    return f"a worker needs {plural(least, 'GPU')}, two need {2 * least}, but {place.key} has {place.num_gpus}"


def full_copy(one: Question, load: ClosedLoopLoad, kv_tokens: float) -> DecodeStation:
    """Return a copy that decodes as many requests at once as its cache and engine let in."""
    most = np.minimum(step_limits(one)[1], state_places(one, kv_tokens))
    alone = replace(load, concurrency=np.inf, state_tokens=state_tokens(one))
    return decoding_of(one, load, running_requests(alone, one.engine, kv_tokens, most), 1)


def _confidence_factor(one: Question, load: ClosedLoopLoad, most: int, kv: float) -> Array:
    """Return how many times as long a decode step of each batch is with the confidence that is wanted."""
    seqs = np.arange(1, most + 1)
    if one.goal.confidence == EVEN or one.goal.tpot_s == np.inf:
        return np.ones(most)
    decode = step_bill(one, decode_workload(seqs, load))
    steps = Steps(decode.step_s, 0.0)
    quiet = closed_loop(replace(load, concurrency=seqs), steps, seqs, 0.0 * seqs, one.engine)
    return np.asarray(surely(ClosedLoop(settle(one), seqs, seqs, steps, kv, quiet, (decode, decode)), "tpot_s") / quiet.tpot_s)


def _splits(of: DecodeWorkers) -> tuple[SplitRows, bool]:
    """Return all splits, small ones alone where GPUs or dollars count, and whether fewer prompt workers than fit may do."""
    cluster, ahead, groups = of.question.cluster, of.question.requests.prefill_cluster, list(enumerate(of.ahead.group.tolist()))
    small = of.question.goal.objective in ("cost", "gpus")
    if ahead:
        most = int(replicas(np.array([of.group]), np.array([int(of.question.plan.tp)]), cluster)[0])
        room = replicas(of.ahead.group, np.asarray(of.ahead.plan.tp), ahead).tolist()
        parts = [(kind, *_on_two_clusters((of.group, most), (n, room[kind]), small)) for kind, n in groups]
    else:
        # More prompt workers are never worse, as long as they stay in the copies' domain or have left it anyway.
        one = replace(cluster, num_hosts=max(1, cluster.domain // cluster.gpus_per_host))
        places = (cluster, one) if cluster.num_gpus > cluster.domain and not small else (cluster,)
        parts = [(kind, *_replicas_and_workers(place, of.group, n, small)) for kind, n in groups for place in places]
    none = SplitRows(*np.zeros((3, 0), dtype=int))
    return SplitRows.joined([none, *(SplitRows.of(len(n), kind=kind, copies=n, fit=fit) for kind, n, fit in parts)]), not small


def _replicas_and_workers(place: Cluster, group: int, ahead: int, small: bool) -> tuple[Array, Array]:
    """Return copies, and prompt workers beside them: all that fit, or any number in small splits."""
    if not small:
        tried = COPIES[COPIES * group < place.num_gpus]
        fit = workers_beside(tried, group, ahead, place)
        return tried[fit > 0], fit[fit > 0]
    most = min(place.num_gpus, max(SMALL, 4 * max(group, ahead)))
    pairs = np.mgrid[1 : most // group + 1, 1 : most // ahead + 1].reshape(2, -1)
    copies, workers = pairs[:, pairs[0] * group + pairs[1] * ahead <= most]
    fits = workers_beside(copies, group, ahead, place) >= workers
    return copies[fits], workers[fits]


def _on_two_clusters(decode: tuple[int, int], prompts: tuple[int, int], small: bool) -> tuple[Array, Array]:
    """Return the same where each kind, of so many GPUs a worker and so many workers at most, is on its own cluster."""
    (group, most), (ahead, fit) = decode, prompts
    limit = max(SMALL, 4 * max(group, ahead))  # GPUs of a small split
    tried = COPIES[(min(most, limit // group) if small else most) >= COPIES]
    workers = np.arange(1, min(fit, limit // ahead) + 1) if small else np.array([fit][: int(fit > 0)], dtype=int)
    pairs = np.stack(np.meshgrid(tried, workers, indexing="ij")).reshape(2, -1)
    copies, fitting = pairs[:, pairs[0] * group + pairs[1] * ahead <= limit] if small else pairs
    return copies, fitting


def _rows(of: DecodeWorkers, roomy: Roomy) -> ServingColumns:
    """Return the loads of each split that may be listed or drawn on the front: those of a grid, and the largest good one."""
    rows, fewer = _splits(of)
    most = most_each(of.question, rows.copies * of.ranks)
    rows, most = rows.take(np.flatnonzero(most)), most[most > 0]
    if not len(most):
        return NO_SERVING
    free, loads = of.free() if fewer else None, np.minimum(of.loads, most[:, None])
    grid = _price_splits(of, rows, loads, free)
    parts = [{name: value[_best_loads(of.question.goal, grid)] for name, value in grid.items()}]
    parts += _loads_between(of, rows, loads, grid["good"], free)
    if (latest_s := latest_first_token_s(of.question)) < np.inf:
        early, over = replace(of, question=of.question.but(ttft_s=latest_s)), np.maximum(grid["over"], grid["ttft_s"] / latest_s)
        grid |= {"over": over, "good": over <= 1}
        parts += [{name: value[_best_loads(of.question.goal, grid)] for name, value in grid.items()}]
        parts += _loads_between(early, rows, loads, grid["good"], free)
    if not of.question.goal.times:
        parts.append(_most_powerful_loads(of, rows, loads, grid, free))
    plan = of.question.plan
    kinds: dict[str, Number] = {"mode": 1, "exchange": roomy.exchange, **{axis: getattr(plan, axis) for axis in SERVING_AXES}}
    shown = ({name: value for name, value in part.items() if name not in BESIDE} for part in parts)
    return ServingColumns.joined([ServingColumns.of(len(part["gpus"]), dtype=roomy.dtype, **kinds, **part) for part in shown])


def _loads_between(of: DecodeWorkers, rows: SplitRows, loads: Array, good: Array, free: Unqueued | None) -> Iterator[Priced]:
    """Yield the most clients of a rank between a good load and one that is not: times never fall when one joins."""
    first = np.where(good, np.arange(loads.shape[1]), -1).max(1)
    gaps = np.flatnonzero((first >= 0) & (first + 1 < loads.shape[1]))
    if not len(gaps):
        return
    low, high, rows = *(loads[gaps, first[gaps] + more] for more in (0, 1)), rows.take(gaps)
    while np.any(high - low > 1):
        inner = low[:, None] + (high - low)[:, None] * np.arange(1, PIECES) // PIECES
        good = _price_splits(of, rows, inner, free)["good"]
        low = np.maximum(low, np.where(good, inner, 0).max(1))
        high = np.where(~good & (inner > low[:, None]), inner, high[:, None]).min(1)
    yield {name: value[:, 0] for name, value in _price_splits(of, rows, low[:, None], free).items()}


def _most_powerful_loads(of: DecodeWorkers, rows: SplitRows, loads: Array, grid: Priced, free: Unqueued | None) -> Priced:
    """Return the load with most tokens/s over the time of a request, which has one peak, for each split near the best."""
    power = grid["tokens_per_s"] / grid["request_s"] / (grid["gpus"] if of.question.goal.objective == "cost" else 1)
    hopeful = np.flatnonzero(power.max(1) >= SMOOTH / (1 + margin(of.question)) ** 2 * power.max())
    rows, loads, top = rows.take(hopeful), loads[hopeful], power[hopeful].argmax(1)
    place = np.arange(len(loads))
    low, high = (loads[place, np.clip(top + step, 0, loads.shape[1] - 1)] for step in (-1, 1))
    while np.any(high - low > 2):
        inner = low[:, None] + (high - low)[:, None] * np.arange(PIECES + 1) // PIECES
        priced = _price_splits(of, rows, inner, free)
        best = (priced["tokens_per_s"] / priced["request_s"]).argmax(1)
        low, high = (inner[place, np.clip(best + step, 0, PIECES)] for step in (-1, 1))
    priced = _price_splits(of, rows, np.minimum(low[:, None] + np.arange(3), high[:, None]), free)
    best = (priced["tokens_per_s"] / priced["request_s"]).argmax(1)
    return {name: value[place, best] for name, value in priced.items()}


def _enough(of: DecodeWorkers, rows: SplitRows, loads: Array, free: Unqueued) -> Array:
    """Return the fewest prompt workers that keep a request within ``SAME`` of one that never waits, at the same rate."""
    kind, copies = rows.kind[:, None], rows.copies[:, None]
    priced, *figures = free
    place = np.clip(np.searchsorted(priced, loads, "right") - 1, 0, max(0, len(priced) - 2))
    after = np.minimum(place + 1, len(priced) - 1)
    beyond = (loads - priced[place]) / np.maximum(1, priced[after] - priced[place])
    per_s, alone_s = (one[kind, place] + (one[kind, after] - one[kind, place]) * beyond for one in figures)
    low, high = np.broadcast_arrays(1, rows.fit[:, None], loads)[:2]
    net = of.network(kind, copies * loads * of.ranks, copies, None)
    for _ in range(int(np.max(rows.fit)).bit_length()):
        half = (low + high) // 2
        waits = prompt_wait_s(replace(net, prompting=replace(net.prompting, workers=half)), per_s * copies) > SAME * alone_s
        low, high = np.where(waits, np.minimum(half + 1, high), low), np.where(waits, high, half)
    return np.asarray(high)


def _price_splits(of: DecodeWorkers, rows: SplitRows, loads: Array, free: Unqueued | None) -> dict[str, Array]:
    """Price splits (rows) under loads (columns): their figures, and how far they exceed the limits."""
    q, kind, copies = of.question, rows.kind[:, None], rows.copies[:, None]
    workers = np.broadcast_to(rows.fit[:, None], loads.shape) if free is None else _enough(of, rows, loads, free)
    clients = copies * loads * of.ranks
    net = of.network(kind, clients, copies, workers)
    passed = flow(net)
    served = disaggregated_means(net, passed, q.engine)
    batch = np.clip(np.ceil(passed.seqs), 1, len(of.longer)).astype(int) - 1
    ttft, tpot, ahead = served.ttft_s, served.tpot_s, of.ahead
    times = {"ttft_s": ttft, "tpot_s": tpot, "sure_ttft_s": ttft * ahead.sure_ttft[kind], "sure_tpot_s": tpot * of.longer[batch]}
    request_s = ttft + (of.load.output_len - 1) * tpot
    with np.errstate(over="ignore"):  # as in ``columns.worst_limit_ratio``
        over = np.maximum(times["sure_ttft_s"] / q.goal.ttft_s, times["sure_tpot_s"] / q.goal.tpot_s)
    prefill_gpus, headroom = workers * ahead.group[kind], 1 - np.minimum(passed.seqs, loads) * mean_cached_tokens(q) / of.kv_tokens
    prompts = {"prefill_tp": spread(ahead.plan.tp, kind), "prefill_dp": spread(ahead.plan.dp, kind), "prefill_replicas": workers}
    rate, gpus = clients / request_s * of.load.output_len, copies * of.group + prefill_gpus
    loaded = {"replicas": copies, "gpus": gpus, "concurrency": clients, "running": passed.seqs, "tokens_per_s": rate}
    beside = {"kv_headroom": headroom, "prefill_gpus": prefill_gpus, "request_s": request_s, "over": over, "good": over <= 1}
    return {name: np.broadcast_to(value, loads.shape) for name, value in (prompts | times | loaded | beside).items()}


def _best_loads(goal: Goal, grid: dict[str, Array]) -> Array:
    """Select the best or nearest load (column) of each split (row), the split with most per GPU at each, and shortest requests."""
    over, good, rate = grid["over"], grid["good"], grid["tokens_per_s"]
    each = paid(goal, grid["gpus"], grid["prefill_gpus"]) if goal.objective == "cost" else grid["gpus"]
    value = {"throughput": rate, "latency": 1 / grid["request_s"]}.get(goal.objective, rate / each)
    rows, loads, kept = np.arange(len(over)), np.arange(over.shape[1]), np.zeros(over.shape, dtype=bool)
    kept[rows, np.where(good.any(1), np.where(good, value, -np.inf).argmax(1), over.argmin(1))] = True
    kept[np.where(good, rate / grid["gpus"], -np.inf).argmax(0), loads] = True
    if not goal.times:
        kept[rows, grid["request_s"].argmin(1)] = True
    return np.asarray(kept & (good | ~good.any(1, keepdims=True)))
