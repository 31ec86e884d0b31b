"""Runs of requests examined: limits of each request's times, several loads, what engines were busy with, why some are slow."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from math import inf, isfinite, log, sqrt

import numpy as np

from commtax.cost.surface import Surface
from commtax.judgement.confidence import probability_of
from commtax.question import Question
from commtax.records import dataclass
from commtax.rules.values import number
from commtax.sim.serving import figures
from commtax.sim.serving.figures import Array, Columns
from commtax.sim.serving.replica import Replica
from commtax.sim.serving.running import Workers
from commtax.statement import Refusal
from commtax.timeline import Counter, Timeline
from commtax.units import plural
from commtax.verbs.loads import LOADS, MOST_RATE
from commtax.verbs.requests import RequestsInTime, check_single_load, run_requests
from commtax.verbs.settling import settle


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Shares of time are of the engines' steps, unless they say otherwise."""

    busy: float  # share of the run in which an engine has a step; of a pipeline, in which a stage has a batch
    mean_batch: float  # requests that decode in a step
    prompt_share: float  # of steps with tokens of prompts
    comm_share: float  # of communication that nothing hides
    kv_mean: float  # share of the cache that is in use
    kv_peak: float
    waiting_peak: int  # requests in an engine's queue
    preemptions: int
    preempted: int  # requests that were preempted at least once
    hit_rate: float  # share of all prompt tokens that were in the cache


def usage_of(o: RequestsInTime) -> EngineUsage:
    """Return what the engines that decode did. Prompt workers of disaggregated serving count in the hit rate alone."""
    log, workers, preemptions = o.log, o.fleet.workers, o.columns["preemptions"]
    seconds, in_use = figures.seconds(log), 1 - log["free"] / max(1, workers.rules.blocks)
    total = max(float(seconds.sum()), 1e-12)
    lanes = workers.count * (workers.stages if workers.stages > 1 else workers.ranks)
    return EngineUsage(
        busy=min(1.0, total / (lanes * max(o.duration_s, 1e-12))),
        mean_batch=o.mean_running,
        prompt_share=float(seconds @ (log["tokens"] > 0)) / total,
        comm_share=float(comm_s(log, workers.surface).sum()) / total,
        kv_mean=float(in_use @ seconds) / total,
        kv_peak=float(in_use.max(initial=0.0)),
        waiting_peak=int(log["waiting"].max(initial=0)),
        preemptions=round(preemptions.sum() / o.share),
        preempted=round((preemptions > 0).sum() / o.share),
        hit_rate=float(o.columns["cached_tokens"].sum() / sum(o.ran.book.input_len)),
    )


def comm_s(log: Columns, steps: Surface) -> Array:
    """Return the seconds of exposed communication of each segment: by its rows, as its steps were priced."""
    decodes, tokens = log["decodes"].astype(np.int64), log["tokens"].astype(np.int64)
    alone = steps.alone_comm[np.minimum(decodes, len(steps.alone_comm) - 1)]
    mixed = steps.mixed_comm[np.minimum(decodes + tokens, len(steps.mixed_comm) - 1)]
    return np.asarray(np.where(tokens > 0, mixed, alone) * log["steps"])


MOST_SLICES = 50_000  # of a file that a browser still opens; those that begin first
KINDS = ("decode", "prompts", "both")


def timeline_of(o: RequestsInTime, most: int = MOST_SLICES) -> tuple[Timeline, int]:
    """Return the first steps of a run in time, with queues and caches as counters, and how many slices were left out."""
    parts = [*_engine_logs(o.ran.engines, o.fleet.workers, "replica" if o.fleet.prompts is None else "decode worker")]
    if o.fleet.prompts:
        parts += _engine_logs(o.ran.prompt_engines, o.fleet.prompts, "prompt worker")
    owners = {lane: owner for _, names, _, owner in parts for lane in names}
    lanes = sorted(owners, key=lambda name: (len(name), name))
    columns = [_columns(log, names, lanes) for log, names, _, _ in parts]
    begin, seconds, code, kind, label = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(begin, kind="stable")[:most]
    until = float(begin[order[-1]]) if len(order) else 0.0
    lane, kind = (column[order].astype(np.int64) for column in (code, kind))
    steps = lane, begin[order], (begin + seconds)[order], kind, tuple(label[order].tolist())
    counters = tuple(counter for log, _, blocks, owner in parts for counter in _counters(log, owner, blocks, until))
    shown = Timeline(*steps, tuple(lanes), KINDS, counters=counters, owners=tuple(owners[x] for x in lanes))
    return shown, max(0, len(begin) - most)


def _engine_logs(engines: list[Replica], workers: Workers, title: str) -> Iterator[tuple[Columns, list[str], int, str]]:
    inner = " stage {}" if workers.stages > 1 else " rank {}" if workers.ranks > 1 else ""
    for place, engine in enumerate(engines):
        log, owner = figures.segments([engine]), f"{title} {place}"
        yield log, [owner + inner.format(int(lane)) for lane in log["lane"]], workers.rules.blocks, owner


def _columns(log: Columns, names: list[str], lanes: list[str]) -> tuple[Array, ...]:
    place = {name: code for code, name in enumerate(lanes)}
    kind = np.where(log["tokens"] == 0, 0, np.where(log["decodes"] == 0, 1, 2))
    counts = (log[name].astype(int).tolist() for name in ("steps", "decodes", "tokens"))
    labels = [_label(*row) for row in zip(*counts, strict=True)]
    return log["begin_s"], figures.seconds(log), np.array([place[name] for name in names]), kind, np.array(labels, dtype=object)


def _label(steps: int, decodes: int, tokens: int) -> str:
    """Describe the steps of a segment.

    >>> _label(37, 12, 0), _label(1, 12, 2048), _label(1, 0, 512)
    ('37 steps: 12 decodes', '1 step: 2,048 prompt tokens + 12 decodes', '1 step: 512 prompt tokens')
    """
    parts = [plural(tokens, "prompt token")] * bool(tokens) + [plural(decodes, "decode")] * bool(decodes)
    return f"{plural(steps, 'step')}: {' + '.join(parts)}"


def _counters(log: Columns, owner: str, blocks: int, until: float) -> list[Counter]:
    shown = log["begin_s"] <= until
    in_use = np.round(100 * (1 - log["free"][shown] / blocks), 2)
    columns = {"waiting": log["waiting"][shown], "KV cache in use, %": in_use} if shown.any() else {}
    return [Counter(owner, name, log["begin_s"][shown], column) for name, column in columns.items()]


CAUSES = ("way", "slots", "cache", "prompts", "step", "own", "moved")
"""What a request waits for, by the step that its engine is in: its way to the scheduler, a step with as many requests as may run,
one without room for its prompt in the cache, another with prompts of others, another one, its own prompt's, its cache's way."""
SLOW, MIDDLE = 0.99, (0.4, 0.6)
MOST_LOOKED_AT = 200  # requests of a group
FULL = 0.98  # of the slots: prompts that are being computed have some too


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """TTFT of the slowest hundredth against the middle fifth."""

    median_s: float
    p99_s: float
    more_s: Mapping[str, float]  # by cause, the mean of the slowest less that of the middle
    longer: float  # prompt tokens that are computed, slowest over middle

    @property
    def cause(self) -> str:
        """What adds most."""
        return max(self.more_s, key=lambda name: self.more_s[name])


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between tokens: the slowest hundredth against the median."""

    median_s: float
    p99_s: float
    with_prompts: float  # share of the slowest that are steps with prompts of others …
    tokens: float  # … with so many prompt tokens in the mean
    behind: float  # share without prompts of their own that had to wait for another stage's or rank's
    stalled: float  # share that waited before their step: for prompts that go first, or for stages
    thrown: float  # share of those whose requests had been preempted
    preempted: int  # requests that were preempted …
    lost_s: float  # … and waited for their next token this long in the mean


def first_tokens(o: RequestsInTime) -> FirstTokens:
    ttft, rows = o.columns["ttft_s"][o.counted], np.arange(len(o.columns["ttft_s"]))[o.counted]
    low, high = np.quantile(ttft, MIDDLE[0], method="lower"), np.quantile(ttft, MIDDLE[1], method="higher")  # of two: both
    tail, middle = rows[ttft >= np.quantile(ttft, SLOW)], rows[(ttft >= low) & (ttft <= high)]
    logs = {engine.number: _steps_in_order(o.log, engine.number) for engine in o.ran.engines}
    groups = [_mean_waits(o, group, logs) for group in (tail, middle)]
    computed = np.array(o.ran.book.input_len) - o.columns["cached_tokens"]
    longer = float(np.mean(computed[tail]) / max(1.0, float(np.mean(computed[middle]))))
    more_s = {name: groups[0][name] - groups[1][name] for name in CAUSES}
    return FirstTokens(o.statistic("ttft_p50"), o.statistic("ttft_p99"), more_s, longer)


def _steps_in_order(log: Columns, engine: int) -> Columns:
    """Return one engine's steps by when they begin: batches of a pipeline are logged when they leave it."""
    rows = np.flatnonzero(log["engine"] == engine)
    ordered = figures.rows(log, rows[np.argsort(log["begin_s"][rows], kind="stable")])
    step = (
        np.cumsum(np.diff(ordered["begin_s"], prepend=-np.inf) > 0) - 1
    )  # ranks that begin together wait for each other's prompts
    tokens = np.zeros(len(rows))
    np.maximum.at(tokens, step, ordered["tokens"])
    return {**ordered, "tokens": tokens[step]}


def _mean_waits(o: RequestsInTime, rows: Array, logs: Mapping[int, Columns]) -> dict[str, float]:
    sums, some = dict.fromkeys(CAUSES, 0.0), rows[:: max(1, len(rows) // MOST_LOOKED_AT)]
    for name, seconds in (wait for i in some.tolist() for wait in _life(o, i, logs)):
        sums[name] += seconds
    return {name: total / len(some) for name, total in sums.items()}


def _life(o: RequestsInTime, i: int, logs: Mapping[int, Columns]) -> Iterator[tuple[str, float]]:
    book, columns = o.ran.book, o.columns
    sent, started, first = book.sent_s[i], book.started_s[i], book.first_s[i]
    moved = min(float(columns["transfer_s"][i]), first - started)
    yield "moved", moved
    yield "own", first - started - moved
    rules = (o.fleet.prompts or o.fleet.workers).rules
    seen = min(started, sent + rules.delivery_s + rules.frontend_s)
    yield "way", seen - sent
    if o.fleet.prompts:  # whose workers do nothing else
        yield "prompts", started - seen
        return
    log, begin = logs[book.served_by[i]], logs[book.served_by[i]]["begin_s"]
    from_, to = int(np.searchsorted(begin, seen, side="right")) - 1, int(np.searchsorted(begin, started, side="left"))
    needed, left = -(-book.input_len[i] // rules.block), started - seen
    for at in range(max(0, from_), to):
        end = begin[at + 1] if at + 1 < len(begin) else started
        passed = max(0.0, min(end, started) - max(begin[at], seen))
        left -= passed
        if log["decodes"][at] >= FULL * rules.seqs:
            yield "slots", passed
        elif log["free"][at] < needed and log["waiting"][at] > 0:
            yield "cache", passed
        else:
            yield "prompts" if log["tokens"][at] > 0 else "step", passed
    yield "step", max(0.0, left)


def gaps(o: RequestsInTime) -> Gaps:
    """Return what the slowest times between tokens are."""
    limit = o.statistic("itl_p99")
    late, usual = figures.rows(o.late, o.late["gap_s"] >= limit), figures.rows(o.late, o.late["preempted"] == 0)
    again = late["preempted"] > 0
    parts = [[figures.rows(log, (log["tokens"] > 0) == prompts) for log in (o.log, usual)] for prompts in (True, False)]
    slow = [float(counts[seconds >= limit].sum()) for seconds, counts in (figures.gaps(*part) for part in parts)]
    total = max(1.0, sum(slow) + float(late["requests"][again].sum()))
    heavy = (o.log["tokens"] > 0) & (o.log["first_s"] >= limit) & (o.log["decodes"] > 0)
    thrown = o.columns["preemptions"] > 0
    return Gaps(
        median_s=o.statistic("itl_p50"),
        p99_s=limit,
        with_prompts=slow[0] / total,
        tokens=float(np.mean(o.log["tokens"][heavy])) if heavy.any() else 0.0,
        behind=float(o.log["decodes"][_steps_behind_prompts(o, limit)].sum()) / total,
        stalled=float(late["requests"][~again & (late["step_s"] < limit)].sum()) / total,
        thrown=float(late["requests"][again].sum()) / total,
        preempted=int(thrown.sum()),
        lost_s=float(np.mean(o.columns["preempted_s"][thrown])) if thrown.any() else 0.0,
    )


def _steps_behind_prompts(o: RequestsInTime, limit: float) -> Array:
    """Return the slow steps without prompts during which another stage's or rank's batch of the same engine had some."""
    log, begin = o.log, o.log["begin_s"]
    end, beside = begin + figures.seconds(log), np.zeros(len(begin), dtype=bool)
    for engine in o.ran.engines if o.fleet.workers.stages > 1 or o.fleet.workers.ranks > 1 else ():
        with_prompts = np.flatnonzero((log["engine"] == engine.number) & (log["tokens"] > 0))
        with_prompts = with_prompts[np.argsort(begin[with_prompts], kind="stable")]
        before = np.searchsorted(begin[with_prompts], end, side="left")  # batches that began before a step's end …
        latest = np.maximum.accumulate(np.concatenate([[-np.inf], end[with_prompts]]))[before]  # … and the last end of these
        beside |= (log["engine"] == engine.number) & (latest > begin)
    return np.asarray(beside & (log["tokens"] == 0) & (log["decodes"] > 0) & (log["first_s"] >= limit))


MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class RequestSweep:
    """One outcome a value, from the least on."""

    name: str
    values: tuple[float, ...]
    outcomes: tuple[RequestsInTime, ...]

    @property
    def title(self) -> str:
        return "requests/s" if self.name == LOADS[0] else "clients"

    @property
    def capacity(self) -> float:
        """Requests/s: of the same engines and the same requests at every point."""
        return max(self.outcomes[0].capacity, *(o.requests_per_s for o in self.outcomes))

    @property
    def knee(self) -> int | None:
        """The point where throughput over response time is greatest (Kleinrock's power, 1979), of those that are not overloaded.

        Below it more load costs little time, above it more load buys little throughput.
        """
        power = [o.requests_per_s / o.statistic("e2e_mean") if not o.overloaded else 0.0 for o in self.outcomes]
        return int(np.argmax(power)) if max(power) > 0 else None

    def most(self, slo: "Slo") -> int | None:
        """Return the greatest value up to which all limits are kept and no load is too much."""
        bad = (i for i, o in enumerate(self.outcomes) if o.overloaded or not slo.kept(o))
        return (first - 1 if first else None) if (first := next(bad, None)) is not None else len(self.outcomes) - 1


def points(text: str) -> tuple[str, tuple[float, ...]]:
    """Parse what is swept, and its values: a list, or two ends with values between them that grow by half an octave.

    >>> points("request-rate=1:8")
    ('request_rate', (1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0))
    >>> points("concurrency=1,8,64")
    ('concurrency', (1.0, 8.0, 64.0))
    """
    name, equals, rest = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in LOADS or not equals:
        raise Refusal.of("write request-rate=1:64, request-rate=1,2,4 or concurrency=1:256", sweep=text[:60])
    ends = rest.split(":")
    numbers = [_value(part, name) for part in (ends if len(ends) == 2 else rest.split(","))]
    numbers = list(_values_between(name, *numbers)) if len(ends) == 2 else numbers
    if len(numbers) > MOST_POINTS:
        raise Refusal(f"sweep: {len(numbers)} values, and at most {MOST_POINTS} are simulated", "sweep", (MOST_POINTS,))
    return name, tuple(sorted(dict.fromkeys(numbers)))


def _value(text: str, name: str) -> float:
    value, clients = -1.0, name == "concurrency"
    with suppress(ValueError):
        value = float(text)
    if not 0 < value <= MOST_RATE or (clients and (value < 1 or value != np.floor(value))):
        kind = "a whole number of at least 1" if clients else "a rate above 0"
        raise Refusal.about(sweep=f"'{text[:30]}' is not {kind}, at most {MOST_RATE:g}")
    return value


def _values_between(name: str, low: float, high: float) -> Iterator[float]:
    if high < low:
        raise Refusal.about(sweep=f"{low:g}:{high:g}: the least comes first; nearest valid: {high:g}:{low:g}")
    for i in range(int(2 * log(high / low, 2) + 1e-9) + 1):  # half octaves, and whole ones of clients
        if i % 2 == 0:
            yield low * 2 ** (i // 2)
        elif name != "concurrency":
            yield float(f"{low * 2 ** (i // 2) * sqrt(2):.2g}")
    yield high


def question_at(q: Question, name: str, value: float, prompts_per_client: int | None = None) -> Question:
    """Return the question at one point."""
    if name == LOADS[0]:
        return check_single_load(q.but(request_rate=value))
    count = int(value) * prompts_per_client if prompts_per_client else q.requests.num_prompts
    return check_single_load(q.but(concurrency=int(value), num_prompts=count))


def sweep(name: str, values: tuple[float, ...], questions: Iterable[Question]) -> RequestSweep:
    """Simulate every point. Where requests are the same, the rate at which they could be answered is computed once."""
    outcomes: list[RequestsInTime] = []
    for question in questions:
        o = run_requests(settle(question))
        if outcomes and np.array_equal(outcomes[0].stream.output_len, o.stream.output_len):
            vars(o)["capacity"] = max(outcomes[0].capacity, o.requests_per_s)
        outcomes.append(o)
    return RequestSweep(name, values, tuple(outcomes))


NEEDED = 0.99  # share of the requests that must keep to all limits
UPPER = 0.9  # probability that a figure is below the upper end of its 80 % range
SPELLED = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "e2e": "e2e_s"}
MOST_MS = 1e9


@dataclass(frozen=True, slots=True)
class Slo:
    """Infinite: no limit."""

    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf

    @property
    def limits(self) -> dict[str, float]:
        """The finite limits, by field."""
        return {f.name: value for f in fields(self) if isfinite(value := getattr(self, f.name))}

    def share(self, o: RequestsInTime) -> float:
        return o.within(self.ttft_s, self.tpot_s, self.e2e_s)

    def goodput(self, o: RequestsInTime) -> float:
        return self.share(o) * o.requests_per_s

    def kept(self, o: RequestsInTime) -> bool:
        return not self.limits or self.share(o) >= NEEDED

    def probability(self, o: RequestsInTime) -> float:
        """Return the probability that enough requests keep to all limits, from 0.1 to 0.9: of the steps' lengths with which
        they do, between the ends of their 80 % range."""
        shares = [self.share(end) for end in o.ends]
        if shares[2] >= NEEDED or shares[0] < NEEDED:
            return UPPER if shares[2] >= NEEDED else 1 - UPPER
        from_ = 1 if shares[1] >= NEEDED else 0  # the end from which on steps become too long
        return probability_of(from_ - 1 + (shares[from_] - NEEDED) / (shares[from_] - shares[from_ + 1]))


def slo_of(words: Iterable[str], slo: Slo = Slo()) -> Slo:  # noqa: B008
    """Parse limits in milliseconds as ``vllm bench serve --goodput`` spells them.

    >>> slo_of(["ttft:300", "tpot:20"])
    Slo(ttft_s=0.3, tpot_s=0.02, e2e_s=inf)
    """
    for word in words:
        name, colon, text = word.strip().partition(":")
        if name not in SPELLED or not colon:
            raise Refusal.of("write limits in ms such as ttft:300 tpot:20 e2el:5000", goodput=word[:40])
        if isfinite(getattr(slo, SPELLED[name])):
            raise Refusal.of(f"{name} has a limit already; leave one of them out", goodput=word[:40])
        try:
            value = float(text)
        except ValueError:
            rule = f"a number of milliseconds is needed, such as {name}:300"
            raise Refusal(f"goodput '{name}:{text[:30]}': {rule}", "goodput") from None
        slo = replace(slo, **{SPELLED[name]: number(value, "goodput", 0, MOST_MS, " ms") / 1e3})
    return slo
