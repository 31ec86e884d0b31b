"""Layouts of a copy that may serve a rate, sizes that a fleet of one layout may have, and how many of its copies are simulated.
Three bounds prune before anything is simulated, with slack: load only lengthens the times of a request that has a copy to itself;
tokens take as long as among the requests that make the rate; and no fleet answers more than its copies' throughput."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil, inf, isfinite, isinf

import numpy as np

from commtax.arrays import Array, cache_few_answers, unique_values
from commtax.judgement.fleet_samples import Size
from commtax.planner.columns import Rejected, ground
from commtax.planner.exchanges import ExpertExchange, dropped, exchanges, refuse_unused
from commtax.planner.reasons import dtype_words
from commtax.planner.serving_search import grid_of, having_room
from commtax.planner.space import Roomy, Space, at_once, simulated, sizes, workers_beside
from commtax.planner.splits import full_copy, load_of, prompt_sizes, prompters, simple_workers
from commtax.question import MAX_CONCURRENCY, Question
from commtax.records import dataclass, record_from, replace
from commtax.rules.techniques import carrier_of
from commtax.spec import Plan
from commtax.spec.stream import RequestStream
from commtax.units import format_seconds
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.disaggregation import cache_bytes, prompter
from commtax.verbs.fitting import step_limits
from commtax.verbs.kv_caches import outside_Bps
from commtax.verbs.loads import Sample, sample_of, stream_of, used_of, workers_of
from commtax.verbs.settling import describe_layout, replan, settle

ALONE = 0.8  # of the closed form's times of a request alone: load may spare it a boundary or a captured graph's padding
SLACK = 1.25  # times the closed form's throughput: saturated pipelines that were simulated answered up to 1.18 times it
OF_TOKENS = ("itl_mean", "itl_p99", "tpot_mean", "tpot_p50", "tpot_p90", "tpot_p95", "tpot_p99")
"""Statistics that are no less than the mean time of a token."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
FINE, FINE_PAIRS = 100, 32  # workers of one kind and of two up to which each number is tried: runs tell fleets apart no finer
FAR = 8  # times the workers that the throughput needs: limits that so many do not meet are met by no more
COUNTED, EACH = 1000, 300  # requests that count: of a run, and for each copy in it
MOST = 20_000  # requests of a run
TOKEN_S = 0.05  # an output token takes this long, where no limit says: how long the warm-up lasts
_cached_stream = cache_few_answers(stream_of)
Paces = tuple[tuple[float, ...], tuple[float, ...]]  # requests/s of a copy with more and more clients, and seconds of a token then


@dataclass(frozen=True, slots=True)
class Layout:
    """One copy, how many of them a cluster holds, and how many requests/s it answers by the closed form."""

    question: Question  # of a copy; with workers of their own for prompts, of one that decodes
    group: int  # GPUs of a copy
    most: int  # copies that the cluster holds
    answers: float  # requests/s of a copy …
    ahead: Plan | None = None  # of a worker of prompts; None: copies compute their own
    prompt_answers: float = inf  # requests/s of one
    moved_s: tuple[float, float] = (0.0, 0.0)  # that a cache keeps the links of either busy, at least, where it leaves a domain
    paces: Paces = ((), ())
    dropped: tuple[str, ...] = ()  # techniques that were asked for and it cannot have
    way: ExpertExchange = ExpertExchange()  # that tokens reach experts by, where it is not the engine's own

    @property
    def apart(self) -> bool:
        return self.ahead is not None

    @property
    def ahead_gpus(self) -> int:
        return int(self.ahead.num_gpus) if self.ahead else 0

    def gpus(self, copies: int, prompts: int = 0) -> int:
        return self.group * copies + self.ahead_gpus * prompts

    def throughput(self, copies: int, prompts: int = 0) -> float:
        """Return a fleet's requests/s by the closed form: the least of prompts, wire and decoding."""
        if not self.apart:
            return self.answers * copies
        crosses = self.gpus(copies, prompts) > self.question.cluster.domain
        wire = min(prompts / self.moved_s[0], copies / self.moved_s[1]) if crosses and all(self.moved_s) else inf
        return min(self.answers * copies, self.prompt_answers * prompts, wire)

    def too_slow(self, rate: float) -> tuple[str, float] | None:
        """Return the limit on token times that copies at a rate of requests/s each must break, and their token time."""
        limits = [(limit, name) for name, limit in self.question.goal.slo if name in OF_TOKENS]
        if not limits or not self.paces[0]:
            return None
        limit, name = min(limits)
        token_s = float(np.interp(rate / SLACK, *self.paces))
        return (name, token_s) if token_s * ALONE > limit else None

    def least_gpus(self, rate: float, slack: float = 1.0) -> int:
        """Return the GPUs whose throughput, times a slack, is the rate."""
        return self.gpus(ceil(rate / self.answers / slack), ceil(rate / self.prompt_answers / slack))


def candidates(q: Question, stream: RequestStream) -> tuple[list[Layout], tuple[Rejected, ...], int]:
    """Return, over all types, the layouts that are worth a simulation, the others with their reasons, and the number of plans."""
    longest = int(np.max(stream.input_len + stream.output_len))
    layouts, lost, count = list[Layout](), list[Rejected](), 0
    put, (usual, *others) = q.but(input_len=longest - 1, output_len=1), [way for way in exchanges(q) if way.apart]
    for index in range(len(q.goal.dtypes)):
        _, plans, reasons, several = having_room(put, index, usual)
        one = q.but(weights_dtype=q.goal.dtypes[index], disaggregated=False)
        count += several // MAX_CONCURRENCY if len(plans) else several
        lost += reasons
        if len(plans):
            kept, slow = _bearable(one, plans, stream, index)
            lost += slow
            layouts += _colocated_layouts(one, kept)
            if q.requests.disaggregated and q.requests.output_len > 1:
                kinds, decoding = [*zip(*(axis.tolist() for axis in sizes(plans).values()), strict=True)], [(usual, kept)]
                for way in others:
                    able = having_room(put, index, way, kinds)[1]
                    decoding += [(way, _bearable(one.but(**way.changes), able, stream, index)[0])] if len(able) else []
                layouts += _split_layouts(one, decoding, prompt_sizes([Roomy(one, plans, index, 0)]))
    refuse_unused(q, [(one.question,) for one in layouts])
    return layouts, tuple(dict.fromkeys(lost)), count


def _bearable(one: Question, plans: Space, stream: RequestStream, index: int) -> tuple[Space, list[Rejected]]:
    """Return the plans whose times without load are below the limits, and the others by their degree of tp."""
    kept, lost = np.ones(len(plans), dtype=bool), list[Rejected]()
    for name, limit in one.goal.slo:
        least = _unloaded_statistic(one, plans, name, stream)
        slow = least * ALONE > limit
        for tp in unique_values(plans.tp[slow & kept]).tolist():
            these = np.flatnonzero(slow & kept & (plans.tp == tp))
            words = f"TP {tp} ({len(these)} plans)" if len(these) > 1 else describe_layout(record_from(Plan, plans.sizes(these[0])))
            best = f"{limit_name(name)} {format_seconds(float(least[these].min()))} without any load"
            lost.append(Rejected(words + dtype_words(one, index), f"exceeds the limit: {best}", slow=True))
        kept &= ~slow
    return plans.take(kept), lost


def _unloaded_statistic(one: Question, plans: Space, name: str, stream: RequestStream) -> Array:
    """Return a statistic of requests that each have a copy to themselves: prompts take longer the longer they are."""
    metric, which = name.rsplit("_", 1)
    lengths = stream.input_len
    tokens = max(1, int(np.mean(lengths) if which == "mean" or metric != "ttft" else np.quantile(lengths, QUANTILES[which])))
    put = replan(one, num_prompts=inf, **sizes(plans), concurrency=plans.dp, input_len=tokens, kv_tokens=plans.kv_tokens)
    s = price_closed_loop(settle(put))
    whole = s.e2e_s if which == "mean" else s.ttft_s
    return np.broadcast_to(np.asarray({"ttft": s.ttft_s, "e2e": whole}.get(metric, s.tpot_s)), len(plans))


def limit_parts(name: str) -> tuple[str, str]:
    """Return a statistic's quantile and its time: ``("p95", "TTFT")``."""
    metric, which = name.rsplit("_", 1)
    return which, metric.upper()


def limit_name(name: str) -> str:
    return " ".join(limit_parts(name))


def _colocated_layouts(one: Question, plans: Space) -> Iterator[Layout]:
    if not len(plans):
        return
    most = np.clip(at_once(ground(one), plans), 1, step_limits(one)[1]).astype(int)  # requests at once
    loads = [np.maximum(1, most // part) for part in (1, 2, 4)]  # throughput need not peak where most run
    answers = np.max([np.asarray(simulated(one.but(num_prompts=inf), plans, load).requests_per_s) for load in loads], axis=0)
    paces: list[Paces] = [((), ())] * len(plans)
    if any(name in OF_TOKENS for name, _ in one.goal.slo):
        rows, load, last = grid_of(most)
        s, ends = simulated(one.but(num_prompts=inf), plans.take(rows), load), np.flatnonzero(last)[:-1] + 1
        per_s, token_s = (np.split(np.broadcast_to(x, len(rows)), ends) for x in (s.requests_per_s, s.tpot_s))
        paces = [(tuple(np.maximum.accumulate(a).tolist()), tuple(b.tolist())) for a, b in zip(per_s, token_s, strict=True)]
    for i, pace in enumerate(paces):
        copy, sizes = replan(one, **plans.sizes(i)), (int(plans.group[i]), int(plans.replicas[i]))
        yield Layout(copy, *sizes, float(answers[i]), paces=pace, dropped=dropped(one, [copy]))


def _split_layouts(put: Question, decoding: Sequence[tuple[ExpertExchange, Space]], senders: Array) -> Iterator[Layout]:
    """Yield copies that decode, for each way to reach experts, beside prompt workers of each kind that has room."""
    for way, plans in decoding:
        base = put.but(**way.changes)
        priced = replace(ground(base), what_if=base.what_if)
        load, places = load_of(priced), put.cluster
        for i in simple_workers(base, plans).tolist():
            decode_sizes = plans.sizes(i)
            copy = settle(replan(base, **decode_sizes))  # its cache over the NIC of one GPU, while no other leaves its host
            moved = float(cache_bytes(copy, copy.requests.input_len) / outside_Bps(copy.cluster, 1) / carrier_of(copy).share)
            answers, group = float(full_copy(copy, load, float(plans.kv_tokens[i])).most_per_s(load.decodes)), int(plans.group[i])
            ahead = prompters(Roomy(priced, plans, 0, 0), load, senders, decode_sizes["ep"] > 1)
            prompted = np.broadcast_to(ahead.prompting.most_per_s(inf), ahead.group.shape)
            for j, several in enumerate(ahead.group.tolist()):
                most = int(np.sum(workers_beside(np.arange(1, places.num_gpus // group + 1), group, several, places) > 0))
                if most:
                    kind = {f"prefill_{axis}": int(np.asarray(getattr(ahead.plan, axis))[j]) for axis in ("tp", "dp")}
                    apart = replan(base, **decode_sizes, disaggregated=True, **kind)
                    left, wire = dropped(base, [apart]), (moved / several, moved / group)
                    yield Layout(apart, group, most, answers, prompter(apart).plan, float(prompted[j]), wire, dropped=left, way=way)


def first_size(layout: Layout, able: list[Size], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of a layout that holds, the last where none does."""
    return first_pair(able, [layout.gpus(*size) for size in able], holds) if layout.apart else first_count(able, holds)


def first_count(able: Sequence[object], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of one kind that holds, the last where none does: more copies never do worse."""
    low, step = 0, 1
    while not holds(low + step - 1):
        low, step = low + step, step * 2
        if low + step > len(able):
            step = len(able) - low
        if not step:
            return len(able) - 1
    return low + bisect_left(range(step - 1), True, key=lambda at: holds(low + at))


def first_pair(able: list[Size], gpus: list[int], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of two kinds that holds, else the last. A large one may have a few GPUs too many."""
    failed: list[Size] = []

    @cache
    def fails(at: int) -> bool:
        if not any(no_more(able[at], other) for other in failed) and holds(at):
            return False
        failed.append(able[at])
        return True

    chain = [0]  # fleets that grow in both kinds are halved first, then those with fewer GPUs are tried from the largest on
    for at, size in enumerate(able):
        if no_more(able[chain[-1]], size):
            chain.append(at)
    best = chain[first_count(chain, lambda place: not fails(chain[place]))]
    best, middle = len(able) if fails(best) else best, False
    while True:
        most = len(able) if best == len(able) else bisect_right(gpus, gpus[best] - gpus[best] // FINE_PAIRS, hi=best)
        left = [at for at in range(most) if not any(no_more(able[at], other) for other in failed)]
        if not left:
            return min(best, len(able) - 1)
        at = left[len(left) // 2 if middle else -1]
        middle = not fails(at)
        best = at if middle else best


def no_more(size: Size, other: Size) -> bool:
    """Return whether a fleet has no more workers of either kind than another."""
    return size[0] <= other[0] and size[1] <= other[1]


def able_sizes(layout: Layout, rate: float, most_gpus: int) -> list[Size]:
    """Return fleets whose throughput may exceed the rate, fewest GPUs first, then most throughput."""
    tp, ahead, first = layout.group, layout.ahead_gpus, int(rate / layout.answers / SLACK) + 1
    if not layout.apart:
        return [(n, 0) for n in counts(first, min(layout.most, most_gpus // tp), FINE)]
    least = int(rate / layout.prompt_answers / SLACK) + 1
    copies = counts(first, min(layout.most, most_gpus // tp, max(FAR * first, FINE)), FINE_PAIRS)
    room = workers_beside(np.array(copies, dtype=int), tp, ahead, layout.question.cluster).tolist()
    most = [min(beside, (most_gpus - n * tp) // ahead, max(FAR * least, FINE)) for n, beside in zip(copies, room, strict=True)]
    every = [(n, p) for n, top in zip(copies, most, strict=True) for p in counts(least, top, FINE_PAIRS)]
    able = [size for size in every if layout.throughput(*size) * SLACK > rate]
    return sorted(able, key=lambda size: (layout.gpus(*size), -layout.throughput(*size)))


def largest_size(layout: Layout, most_gpus: int) -> Size:
    """Return the fleet of a layout that answers most by the closed form, on no more GPUs."""
    able = able_sizes(layout, 0.0, most_gpus) if layout.apart else []
    copies = max(1, min(layout.most, (most_gpus - layout.ahead_gpus) // layout.group))
    return max(able, key=lambda size: layout.throughput(*size), default=(copies, int(layout.apart)))


def counts(least: int, most: int, fine: int) -> list[int]:
    """Return numbers of workers from least to most: all up to ``fine``, then with gaps of about one part in ``fine``.

    >>> counts(8, 16, 10)
    [8, 9, 10, 12, 14, 16]
    """
    numbers, at = list[int](), 0
    while (at := at + max(1, -(-(at + 1) // fine))) < most:
        numbers += [at] * (at >= least)
    return [*numbers, most] if most >= least else numbers


def lengths_of_run(q: Question, copies: int) -> tuple[int, int]:
    """Return the requests of a run, and how many are warm-up: as many as are in flight where tokens take as long as they may."""
    limits = [limit for name, limit in q.goal.slo if name.split("_")[0] in ("itl", "tpot")]
    outputs = q.offered.outputs.mean if q.offered.outputs else float(q.requests.output_len)
    flying = ceil(q.offered.request_rate * outputs * min([*limits, TOKEN_S]))  # Little's law
    if isfinite(q.requests.num_prompts):
        count = int(q.requests.num_prompts)
        return count, min(flying, count // 5)
    counted = max(COUNTED, EACH * copies)
    warmup = min(flying, MOST - min(counted, MOST // 2))
    return min(MOST, warmup + counted), warmup


def is_sampled(layout: Layout, size: Size) -> bool:
    """Return whether a few copies are simulated for the fleet."""
    return sample_of_fleet(layout, size).size != size


def sample_of_fleet(layout: Layout, size: Size) -> Sample:
    sample = sample_of(layout.question.but(**workers_of(size, layout.apart)))
    return replace(sample, question=sample.question.but(num_prompts=layout.question.requests.num_prompts))


def used_size(layout: Layout, size: Size) -> Size:
    """Return the copies, and the prompt workers, that get requests."""
    return (size[0], used_of(layout.question, size[1])) if layout.apart else (used_of(layout.question, size[0]), 0)


def run_lengths(sample: Sample) -> tuple[int, int]:
    """Return the requests of a sample's run, with as many more as are decoded elsewhere, and how many of them are warm-up."""
    count, warmup = lengths_of_run(sample.question, sum(sample.size) if sample.share == 1 else 1)
    return (min(MOST, ceil(count / sample.decoded)), warmup) if isinf(sample.question.requests.num_prompts) else (count, warmup)


def all_requests(q: Question) -> RequestStream:
    """Return the longest stream that any fleet of a question sees, at one request/s."""
    count = q.requests.num_prompts if isfinite(q.requests.num_prompts) else MOST
    alike = replace(q.requests, num_prompts=count, disaggregated=False, prefill_tp=None, kv_tokens=None)
    alike = replace(alike, prefill_workers=None, decode_workers=None)
    return _cached_stream(replace(q, plan=Plan(), requests=alike, offered=replace(q.offered, request_rate=1.0, burstiness=1.0)))
