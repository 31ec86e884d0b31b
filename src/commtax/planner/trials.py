"""One layout under a rate, by simulation of the whole fleet: how many copies hold the limits, and how far the rate may grow.

All fleets of a question see the same requests: the first ones of a single stream, at the rate exactly. A run is long enough
that a percentile means something: ``COUNTED`` requests, and ``EACH`` for every copy, count after a warm-up of as many as are
under way at once.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, isnan

import numpy as np

from commtax.arrays import remembered
from commtax.planner.layouts import Layout
from commtax.planner.space import beside
from commtax.question import Question
from commtax.sim.serving.running import Fleet, run
from commtax.spec import Plan
from commtax.spec.stream import Stream
from commtax.verbs.asking import settled
from commtax.verbs.requests import Outcome, capacity_of, first_of, fleet_of, stream_of

COUNTED, EACH = 1000, 300  # requests that count: of a run, and for each copy in it
MOST = 20_000  # requests of a run
TOKEN_S = 0.05  # an output token takes this long, where no limit says: how long the warm-up lasts
HALVINGS = 4  # of the room between the rate and the capacity: how finely the growth is known
SHOWN = ("ttft_mean", "ttft_p95", "ttft_p99", "tpot_mean", "tpot_p99", "itl_p95", "itl_p99", "e2e_mean", "e2e_p95")
Size = tuple[int, int]
"""Copies, and workers of prompts beside them."""


@dataclass(frozen=True, slots=True)
class Task:
    """A layout, the GPUs that a fleet of it may have, and whether the growth is wanted at once."""

    layout: Layout
    most_gpus: int
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """The least fleet of a layout that holds, else the nearest to it; ``over`` is its worst time over that time's limit."""

    layout: Layout
    size: Size
    over: float  # at most 1: it holds
    capacity: float  # requests/s of the fleet
    figures: Mapping[str, float]  # statistics at the rate, in seconds
    simulated: int  # fleets
    growth: float = -1.0  # share by which the rate may grow until a limit breaks; below 0: not looked for
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return self.over <= 1

    @property
    def gpus(self) -> int:
        return self.layout.gpus(*self.size)


def rate_of(q: Question) -> float:
    """Requests/s that a fleet must hold: those that are asked, and the growth that is wanted."""
    return q.offered.request_rate * (1 + q.goal.growth)


def under_way(q: Question) -> int:
    """Requests under way at once where tokens take as long as they may (Little's law): the warm-up."""
    limits = [limit for name, limit in q.goal.slo if name.split("_")[0] in ("itl", "tpot")]
    outputs = q.offered.outputs.mean if q.offered.outputs else float(q.requests.output_len)
    return ceil(q.offered.request_rate * outputs * min([*limits, TOKEN_S]))


def lengths_of_run(q: Question, copies: int) -> tuple[int, int]:
    """Requests of a run, and how many of them are warm-up."""
    if isfinite(q.requests.num_prompts):
        count = int(q.requests.num_prompts)
        return count, min(under_way(q), count // 5)
    counted = max(COUNTED, EACH * copies)
    warmup = min(under_way(q), MOST - min(counted, MOST // 2))
    return min(MOST, warmup + counted), warmup


def stream_for(q: Question, copies: int, rate: float) -> tuple[Stream, int]:
    """The first requests of the question's stream at a rate, and how many of them are warm-up."""
    count, warmup = lengths_of_run(q, copies)
    part = first_of(all_requests(q), count)
    return replace(part, arrival_s=part.arrival_s * (len(part) / rate / part.arrival_s[-1])), warmup


def all_requests(q: Question) -> Stream:
    """The longest stream that any fleet of a question sees."""
    count = q.requests.num_prompts if isfinite(q.requests.num_prompts) else MOST
    alike = replace(q.requests, num_prompts=count, disaggregated=False, prefill_tp=None, kv_tokens=None)
    return _drawn(replace(q, plan=Plan(), requests=alike))


@remembered
def _drawn(q: Question) -> Stream:
    return stream_of(q)


def least(task: Task) -> Trial:
    """The least fleet of a layout that holds; where none does, the largest one."""
    layout, rate = task.layout, rate_of(task.layout.question)
    answers = _answers(layout)
    able = _sizes(layout, answers, rate, task.most_gpus)
    if not able:
        size = _largest(layout, task.most_gpus)
        return Trial(layout, size, inf, _capacity(size, answers), {}, 0)
    tried: dict[Size, Trial] = {}

    def trial(at: int) -> Trial:
        if able[at] not in tried:
            tried[able[at]] = _trial(layout, able[at], _capacity(able[at], answers))
        return tried[able[at]]

    best = trial(_first_good(layout, len(able), lambda at: trial(at).holds))
    best = replace(best, simulated=len(tried))
    return grown(best) if task.grows and best.holds else best


def _first_good(layout: Layout, count: int, holds: Callable[[int], bool]) -> int:
    """The index of the first fleet that holds, the last where none does.

    More copies of one kind never do worse: steps that double find one that holds, and halving the first. Fleets of two kinds
    are tried one after the other.
    """
    if layout.apart:
        return next((at for at in range(count) if holds(at)), count - 1)
    low, step = 0, 1
    while not holds(low + step - 1):
        low, step = low + step, step * 2
        if low + step > count:
            step = count - low
        if not step:
            return count - 1
    return low + bisect_left(range(step - 1), True, key=lambda at: holds(low + at))


def _answers(layout: Layout) -> tuple[float, float]:
    """Requests/s of a copy, and of a worker of prompts, when there are always enough."""
    asked = settled(_sized(layout, (1, 1)))
    stream = first_of(all_requests(layout.question), COUNTED)
    fleet = fleet_of(asked, stream)
    hits = asked.offered.prefix_hit_rate
    if fleet.prompts is None:
        return capacity_of(stream, fleet, hits), inf
    return min(layout.answers, _decoded(fleet, stream)), capacity_of(stream, Fleet(fleet.prompts), hits)


def _decoded(fleet: Fleet, stream: Stream) -> float:
    """Requests/s of a copy that decodes, with as many running as it has room for: their number over the steps that each takes."""
    workers, rules = fleet.workers, fleet.workers.rules
    inputs, outputs = float(np.mean(stream.input_len)), float(np.mean(stream.output_len))
    seqs = int(max(1, min(rules.seqs, rules.blocks * rules.block / (inputs + outputs * (1.0 if rules.reserved else 0.5)))))
    step_s = workers.surface.decoding(seqs, seqs * (inputs + outputs / 2))[0]
    return seqs / max(1.0, outputs - 1) / step_s


def _capacity(size: Size, answers: tuple[float, float]) -> float:
    copies, prompts = size
    return min(copies * answers[0], prompts * answers[1]) if prompts else copies * answers[0]


def _sizes(layout: Layout, answers: tuple[float, float], rate: float, most_gpus: int) -> list[Size]:
    """Fleets whose throughput is above the rate, fewest GPUs first, of as many those with most throughput."""
    if not layout.apart:
        first = int(rate / answers[0]) + 1
        return [(n, 0) for n in range(first, min(layout.most, most_gpus // layout.group) + 1)]
    cluster, tp, ahead = layout.question.cluster, layout.group, layout.prefill_tp
    copies = np.arange(1, layout.most + 1)
    room = beside(copies, tp, ahead, cluster)
    every = [(n, p) for n, most in zip(copies.tolist(), room.tolist(), strict=True) for p in range(1, most + 1)]
    able = [size for size in every if layout.gpus(*size) <= most_gpus and _capacity(size, answers) > rate]
    return sorted(able, key=lambda size: (layout.gpus(*size), -_capacity(size, answers)))


def _largest(layout: Layout, most_gpus: int) -> Size:
    copies = max(1, min(layout.most, (most_gpus - layout.prefill_tp) // layout.group))
    return copies, 1 if layout.apart else 0


def _sized(layout: Layout, size: Size) -> Question:
    """The question of a whole fleet."""
    if layout.apart:
        return layout.question.but(decode_workers=size[0], prefill_workers=size[1])
    return layout.question.but(replicas=size[0])


def ran(layout: Layout, size: Size, rate: float) -> Outcome:
    """The run of a fleet at a rate."""
    stream, warmup = stream_for(layout.question, sum(size), rate)
    asked = settled(_sized(layout, size).but(request_rate=rate, warmup=warmup))
    fleet = fleet_of(asked, stream)
    return Outcome(asked, stream, fleet, run(stream, fleet, asked.offered.prefix_hit_rate), asked.notes)


def worst(q: Question, outcome: Outcome) -> float:
    """The time that is longest against its limit, over that; 0 where there is no limit, or nothing that it limits."""
    ratios = [outcome.statistic(name) / limit for name, limit in q.goal.slo]
    return max([0.0, *(ratio for ratio in ratios if not isnan(ratio))])


def _trial(layout: Layout, size: Size, capacity: float) -> Trial:
    """A fleet at the rate that it must hold, and its figures at the rate that is asked."""
    q = layout.question
    outcome = ran(layout, size, rate_of(q))
    over = worst(q, outcome)
    if q.goal.growth and over <= 1:
        outcome = ran(layout, size, q.offered.request_rate)
    return Trial(layout, size, over, capacity, _figures(q, outcome), 1)


def _figures(q: Question, outcome: Outcome) -> dict[str, float]:
    return {name: outcome.statistic(name) for name in dict.fromkeys((*SHOWN, *(name for name, _ in q.goal.slo)))}


def grown(trial: Trial) -> Trial:
    """With the share by which the rate may grow: halved ``HALVINGS`` times between what holds and the capacity, which does not."""
    q = trial.layout.question
    rate, low = q.offered.request_rate, 0.0
    high = float(np.log(max(trial.capacity / rate, 1.0)))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if worst(q, ran(trial.layout, trial.size, rate * float(np.exp(middle)))) <= 1:
            low = middle
        else:
            high = middle
    return replace(trial, growth=max(q.goal.growth, float(np.expm1(low))))


def detailed(trial: Trial) -> Trial:
    """With its growth and the ranges of what is shown."""
    trial = trial if trial.growth >= 0 else grown(trial)
    q = trial.layout.question
    outcome = ran(trial.layout, trial.size, q.offered.request_rate)
    names = dict.fromkeys(("ttft_p95", "itl_p99", *(name for name, _ in q.goal.slo)))
    return replace(trial, ranges={name: outcome.range_of(name) for name in names})
