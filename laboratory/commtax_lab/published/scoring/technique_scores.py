"""Predicted against published speed-ups of techniques: the sign, how near, and where a technique flips.

One figure before and one after are predicted, by the verbs that users have.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from commtax import catalog
from commtax.cost.pricing import Pricer
from commtax.cost.traffic import expected_destinations
from commtax.options import check_taken
from commtax.rules.drafts import need_accepted
from commtax.statement import Refusal
from commtax.verbs import closed_loop, requests
from commtax.verbs.billing import StepBill, price
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.expecting import expect
from commtax.verbs.requests import RequestsInTime, requests_question
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published.collective_rows import Curve
from commtax_lab.published.scoring.predicting import curve_seconds
from commtax_lab.published.technique_rows import FlipGroup, Options, TechniqueReading, TechniqueReadings, TechniqueRow, load_of

PER_GPU, PER_HOST = "_per_gpu", "_per_host"
Answer = StepBill | ClosedLoop | RequestsInTime


def predict_technique(reading: TechniqueReading) -> tuple[float, float]:
    """Predict the figure before and after, in seconds or per second. ``Refusal`` where one side has no price."""
    before, after = (VERBS[reading.verb](reading, options) for options in reading.sides)
    return before, after


def is_time(reading: TechniqueReading) -> bool:
    """Return whether less is better."""
    return "per_s" not in reading.figure


def predicted_speedup(reading: TechniqueReading) -> float:
    """Return the predicted speed-up, where above 1 is better."""
    before, after = predict_technique(reading)
    return before / after if is_time(reading) else after / before


def _bill(reading: TechniqueReading, options: Options) -> StepBill:
    question = settle(resolve_question(reading.model, reading.cluster, check_taken("bill", options)))
    need_accepted(question)
    return price(question)


def _loop(reading: TechniqueReading, options: Options) -> float:
    question = resolve_question(reading.model, reading.cluster, check_taken("simulate", options))
    return _figure(closed_loop.price_closed_loop(settle(question)), reading.figure)


def _requests(reading: TechniqueReading, options: Options) -> float:
    ran = requests.run_requests(settle(requests_question(reading.model, reading.cluster, check_taken("serve", options))))
    return _figure(ran, reading.figure) if "per_s" in reading.figure else ran.statistic(reading.figure)


def _figure(answer: Answer, name: str) -> float:
    """Return a figure of an answer, rates also per GPU and per host of the GPUs in use."""
    for suffix, gpus in ((PER_GPU, 1), (PER_HOST, answer.question.cluster.gpus_per_host)):
        if name.endswith(suffix):
            return _figure(answer, name.removesuffix(suffix)) * gpus / float(answer.num_gpus or math.nan)
    if name == "total_tokens_per_s":
        return _figure(answer, "requests_per_s") * float(answer.question.requests.tokens)
    return float(getattr(answer, name))


def _lines(reading: TechniqueReading, options: Options) -> float:
    """Return the seconds of some lines of a bill that are not hidden."""
    items = _bill(reading, options).items
    chosen = [x for x in items if {x.item.part, f"{x.item.part}/{x.item.place}"}.intersection(reading.lines)]
    if not chosen:
        raise Refusal(f"row {reading.id}: no line of the bill is of {', '.join(reading.lines)}", "lines")
    return float(sum(line.exposed_s for line in chosen)) / reading.each


def _slope(reading: TechniqueReading, options: Options) -> float:
    """Return the seconds that a step grows by with each token of context."""
    contexts = cast(tuple[int, int], options["contexts"])
    rest = {name: value for name, value in options.items() if name != "contexts"}
    first, last = (float(_bill(reading, {**rest, "context": length}).step_s) for length in contexts)
    return (last - first) / (contexts[1] - contexts[0])


def _collective(reading: TechniqueReading, options: Options) -> float:
    """Price one collective inside a host, by a library's own choice or by the best of some algorithms at any size."""
    place, ranks, size = catalog.cluster(reading.cluster), int(load_of(options, "ranks")), np.array([load_of(options, "nbytes")])
    algorithms = cast(tuple[str, ...], options.get("algorithms", ("",)))
    curves = [Curve(str(options["op"]), ranks, place.domain, str(options["library"]), place, name) for name in algorithms]
    return min(float(np.asarray(curve_seconds(curve, size)[0]).item()) for curve in curves)


def _expect(reading: TechniqueReading, options: Options) -> float:
    """Price one collective, fused or not, as ``commtax expect`` does."""
    op, library, technique = (str(options.get(name, "")) for name in ("op", "library", "technique"))
    size, ranks = (int(load_of(options, name)) if name in options else 0 for name in ("nbytes", "ranks"))
    return float(expect(op, reading.cluster, nbytes=size, ranks=ranks, library=library, technique=technique).seconds)


def _exchange(reading: TechniqueReading, options: Options) -> float:
    """Price one dispatch of a layer's tokens to their experts, each to ``copies`` ranks whatever its router would choose."""
    named = {name: value for name, value in options.items() if name != "copies"}
    q = settle(resolve_question(reading.model, reading.cluster, check_taken("bill", named)))
    [line] = [x.item for x in price(q).items if (x.item.part, x.item.place) == ("experts", "dispatch") and np.any(x.item.count)]
    reached = expected_destinations(q.model.experts, q.plan.ep) if q.model.experts else math.nan
    nbytes = line.nbytes * load_of(options, "copies") / reached
    return float(Pricer(terms_of(q)).price(replace(line, nbytes=nbytes, count=1)).seconds)


VERBS: Mapping[str, Callable[[TechniqueReading, Options], float]] = {
    "step": lambda reading, options: _figure(_bill(reading, options), reading.figure),
    "loop": _loop,
    "requests": _requests,
    "lines": _lines,
    "slope": _slope,
    "expect": _expect,
    "exchange": _exchange,
    "collective": _collective,
}


COUNTED = ("end to end", "op")
"""Kinds of rows that the bars are about."""
BEYOND, PER_DOUBLING = 3, 2  # doublings of the load to either side of the rows in which a flip is looked for, and steps of each


@dataclass(frozen=True, slots=True)
class ScoredTechnique:
    """A row with what is predicted for it, or what is missing. Ratios are nan where a figure is not there."""

    row: TechniqueRow
    reading: TechniqueReading | None
    before: float = math.nan
    after: float = math.nan
    missing: str = ""

    @property
    def priced(self) -> bool:
        return not self.missing

    @property
    def predicted(self) -> float:
        """The speed-up: above 1 is better."""
        assert self.reading
        return self.before / self.after if is_time(self.reading) else self.after / self.before

    @property
    def scored(self) -> bool:
        """Whether its speed-up is judged: it was priced, is a measure, and its published figures were shown."""
        return self.priced and self.reading is not None and self.reading.judged == "ratio" and not math.isnan(self.row.speedup)

    @property
    def counted(self) -> bool:
        """Whether the bars are about it."""
        return self.row.kind in COUNTED and self.row.confidence == "high"


TOLD = 3  # digits of a predicted speed-up that count: one of less than 0.05 % has no sign


def same_sign(predicted: float, published: float, near: float) -> bool:
    """Return whether both gain, both lose, or both lie near 1.

    >>> same_sign(1.2, 1.1, 0.03), same_sign(1.02, 0.98, 0.03), same_sign(1.0, 0.8, 0.03)
    (True, True, False)
    """
    changes = np.round([predicted - 1, published - 1], TOLD)
    return bool(np.ptp(np.sign(changes)) == 0 or max(abs(predicted - 1), abs(published - 1)) <= near)


def within_factor(predicted: float, published: float, factor: float) -> bool:
    """Return whether two values differ by at most this factor.

    >>> within_factor(1.0, 1.15, 1.15), within_factor(1.2, 1.0, 1.15)
    (True, False)
    """
    return max(predicted / published, published / predicted) <= factor


def score_row(row: TechniqueRow, readings: TechniqueReadings) -> ScoredTechnique:
    """Score a row. One that cannot be priced says what is missing."""
    if row.id in readings.refused:
        return ScoredTechnique(row, None, missing=readings.refused[row.id])
    reading = readings.by_row.get(row.id)
    if reading is None:
        return ScoredTechnique(row, None, missing="a reading")
    try:
        before, after = predict_technique(reading)
    except Refusal as refusal:
        return ScoredTechnique(row, reading, missing=f"refused: {refusal}")
    return ScoredTechnique(row, reading, before, after)


@dataclass(frozen=True, slots=True)
class TechniqueShare:
    """The count of right rows among some, and the mean of their sources' shares."""

    right: int
    rows: int
    by_source: float

    @property
    def share(self) -> float:
        return self.right / self.rows if self.rows else math.nan


def share_right(scored: Iterable[ScoredTechnique], is_right: Callable[[ScoredTechnique], bool]) -> TechniqueShare:
    """Return the share of right predictions among rows whose speed-up is judged."""
    sources: dict[str, list[bool]] = {}
    for one in scored:
        if one.scored:
            sources.setdefault(one.row.source, []).append(is_right(one))
    verdicts = [verdict for of_source in sources.values() for verdict in of_source]
    mean = float(np.mean([np.mean(of_source) for of_source in sources.values()])) if sources else math.nan
    return TechniqueShare(sum(verdicts), len(verdicts), mean)


def sign_is_right(one: ScoredTechnique, readings: TechniqueReadings) -> bool:
    return same_sign(one.predicted, one.row.speedup, readings.bars.near)


def is_within(one: ScoredTechnique, readings: TechniqueReadings) -> bool:
    return within_factor(one.predicted, one.row.speedup, readings.bars.factor[one.row.kind])


@dataclass(frozen=True, slots=True)
class ScoredFlip:
    """The loads at which a technique flips, published and predicted, nan where it does not within the loads tried."""

    group: FlipGroup
    loads: tuple[float, ...]
    published: tuple[float, ...]  # speed-ups by load
    predicted: tuple[float, ...]
    published_at: float
    predicted_at: float

    def right(self, near: float, factor: float) -> list[bool]:
        """Return which rows are on the right side: by their sign, or because both flip within a factor of each other."""
        both = not math.isnan(self.published_at * self.predicted_at)
        flips_there = both and within_factor(self.predicted_at, self.published_at, factor)
        return [flips_there or same_sign(*pair, near) for pair in zip(self.predicted, self.published, strict=True)]


def crossing(loads: Sequence[float], speedups: Sequence[float], near: float = math.nan) -> float:
    """Return the load at which a speed-up passes 1, by logarithms between loads, of several the one nearest to ``near``.

    >>> crossing([1, 4], [0.5, 2.0]), crossing([1, 4], [1.5, 2.0])
    (2.0, nan)
    """
    logs, sizes = np.log(np.asarray(speedups, dtype=float)), np.log(np.asarray(loads, dtype=float))
    crossings = []
    for i in range(len(logs) - 1):
        if logs[i] * logs[i + 1] < 0 or (logs[i] == 0 and logs[i + 1] != 0):
            crossings.append(float(np.exp(sizes[i] - logs[i] * (sizes[i + 1] - sizes[i]) / (logs[i + 1] - logs[i]))))
    if not crossings:
        return math.nan
    return crossings[0] if math.isnan(near) else min(crossings, key=lambda at: abs(math.log(at / near)))


def score_flip(group: FlipGroup, scored: Mapping[str, ScoredTechnique]) -> ScoredFlip | None:
    """Score the rows of a group in order of their loads, or return None where one of them is not scored."""
    rows = [scored[name] for name in group.rows]
    if not all(one.scored for one in rows):
        return None
    pairs = sorted(((_load(one.reading, group), one) for one in rows), key=lambda pair: pair[0])
    loads, ordered = tuple(load for load, _ in pairs), [one for _, one in pairs]
    published = tuple(one.row.speedup for one in ordered)
    published_at = crossing(loads, published)
    predicted_at = crossing(*_scan(ordered[0].reading, group, loads), near=published_at)
    return ScoredFlip(group, loads, published, tuple(one.predicted for one in ordered), published_at, predicted_at)


def _load(reading: TechniqueReading | None, group: FlipGroup) -> float:
    assert reading
    return float(np.exp(np.mean(np.log([load_of(reading.both, name) for name in group.along]))))


def _scan(reading: TechniqueReading | None, group: FlipGroup, loads: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the predicted speed-ups of a reading at loads beyond those of the rows, less the loads that are refused."""
    assert reading
    first, last = math.log2(loads[0]) - BEYOND, math.log2(loads[-1]) + BEYOND
    speedups: dict[float, float] = {}
    for exponent in np.arange(first, last + 1 / PER_DOUBLING, 1 / PER_DOUBLING):
        there = reading.scaled(group.along, 2.0**exponent / _load(reading, group))
        try:
            speedups.setdefault(_load(there, group), predicted_speedup(there))
        except Refusal:
            continue
    return list(speedups), list(speedups.values())
