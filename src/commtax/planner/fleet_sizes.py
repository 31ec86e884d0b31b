"""Sizes that a fleet of one layout may have and the first of them that holds; how many of its copies are simulated, which requests
they see, and how long runs of them are."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, isfinite, isinf

import numpy as np

from commtax.arrays import cache_few_answers
from commtax.judgement.fleet_samples import Size
from commtax.planner.layouts import SLACK, Layout
from commtax.planner.space import workers_beside
from commtax.question import Question
from commtax.spec import Plan
from commtax.spec.stream import RequestStream
from commtax.verbs.loads import Sample, sample_of, stream_of, used_of, workers_of

FINE, FINE_PAIRS = 100, 32  # workers of one kind and of two up to which each number is tried: runs tell fleets apart no finer
FAR = 8  # times the workers that the throughput needs: limits that so many do not meet are met by no more


def first_size(layout: Layout, able: list[Size], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of a layout that holds, the last where none does."""
    return first_pair(able, [layout.gpus(*size) for size in able], holds) if layout.apart else first_count(able, holds)


def first_count(able: Sequence[object], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of one kind that holds, the last where none does.

    More copies never do worse: steps that double find one that holds, and halving the first.
    """
    low, step = 0, 1
    while not holds(low + step - 1):
        low, step = low + step, step * 2
        if low + step > len(able):
            step = len(able) - low
        if not step:
            return len(able) - 1
    return low + bisect_left(range(step - 1), True, key=lambda at: holds(low + at))


def first_pair(able: list[Size], gpus: list[int], holds: Callable[[int], bool]) -> int:
    """Return the index of the first fleet of two kinds that holds, else the last. A large one may have a few more GPUs than the
    first.

    More workers of either kind never do worse. So fleets that grow in both are halved first; then those with fewer GPUs than the
    best so far are tried from the largest on, but for those with no more workers of either kind than one that failed.
    """
    failed: list[Size] = []

    @cache
    def fails(at: int) -> bool:
        if not any(no_more(able[at], other) for other in failed) and holds(at):
            return False
        failed.append(able[at])
        return True

    chain = [0]
    for at, size in enumerate(able):
        if no_more(able[chain[-1]], size):
            chain.append(at)
    best = chain[first_count(chain, lambda place: not fails(chain[place]))]
    best = len(able) if fails(best) else best
    middle = False
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
    tp, ahead = layout.group, layout.ahead_gpus
    first = int(rate / layout.answers / SLACK) + 1
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
    """Return numbers of workers from the least to the most: all up to ``fine``, then in steps of one in so many.

    >>> counts(8, 16, 10)
    [8, 9, 10, 12, 14, 16]
    """
    numbers, at = list[int](), 0
    while (at := at + max(1, -(-(at + 1) // fine))) < most:
        numbers += [at] * (at >= least)
    return [*numbers, most] if most >= least else numbers


COUNTED, EACH = 1000, 300  # requests that count: of a run, and for each copy in it
MOST = 20_000  # requests of a run
TOKEN_S = 0.05  # an output token takes this long, where no limit says: how long the warm-up lasts
_cached_stream = cache_few_answers(stream_of)


def warm_up_requests(q: Question) -> int:
    """Return the length of the warm-up: the requests in flight where tokens take as long as they may (Little's law)."""
    limits = [limit for name, limit in q.goal.slo if name.split("_")[0] in ("itl", "tpot")]
    outputs = q.offered.outputs.mean if q.offered.outputs else float(q.requests.output_len)
    return ceil(q.offered.request_rate * outputs * min([*limits, TOKEN_S]))


def lengths_of_run(q: Question, copies: int) -> tuple[int, int]:
    """Return the requests of a run, and how many of them are warm-up."""
    if isfinite(q.requests.num_prompts):
        count = int(q.requests.num_prompts)
        return count, min(warm_up_requests(q), count // 5)
    counted = max(COUNTED, EACH * copies)
    warmup = min(warm_up_requests(q), MOST - min(counted, MOST // 2))
    return min(MOST, warmup + counted), warmup


def is_sampled(layout: Layout, size: Size) -> bool:
    """Return whether a few copies are simulated for the fleet."""
    return sample_of_fleet(layout, size).size != size


def sample_of_fleet(layout: Layout, size: Size) -> Sample:
    """Return the copies that are simulated for a fleet."""
    workers = workers_of(size, layout.apart)
    sample = sample_of(layout.question.but(**workers))
    return replace(sample, question=sample.question.but(num_prompts=layout.question.requests.num_prompts))


def used_size(layout: Layout, size: Size) -> Size:
    """Return the copies, and the prompt workers, that get requests."""
    q = layout.question
    return (size[0], used_of(q, size[1])) if layout.apart else (used_of(q, size[0]), 0)


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
