"""Is today's run still the machine that was calibrated, and if not, which part of it moved?

New latencies are held against what a profile says of them, all together: how far each may lie, and how much they move as one. A
shift of a part (links, kernels, host) or of everything moves them along its slopes; the test asks how far they moved along each,

    t = s' S^-1 e / sqrt(s' S^-1 s)

with errors e, their covariance S and slopes s. Student's distribution judges the farthest, with the probability counted for all
directions that were looked along, or for all that the latencies have where those are fewer (``_chance``: one run's TPOT and TTFT
have two). Single runs that are odd for no reason have wide tails, and so has the distribution; every range here is its 80 % range.
With three degrees of freedom that is 1.6 deviations, and a change that one unchanged machine in a hundred shows is eight or nine:
a range of 3 % and a test that is sure only from 20 % on are the same distribution. Between the two nothing is sure. Runs that
are farther off than four of five unchanged machines show are neither "the same" nor "drifted".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, lgamma, log1p, sqrt
from typing import Literal

import numpy as np

from commtax.arrays import Array
from commtax.catalog.posterior import Beliefs
from commtax.files import table
from commtax.judgement.suspects import likelihoods, suspects
from commtax.records import dataclass
from commtax.runs.calibrate.learning import observe
from commtax.runs.calibrate.measurements import Measured
from commtax.spec import Deployment, Profile, RunLesson
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import listed
from commtax.verbs.profiles import Foresight

COUNT, LEVEL = thresholds(__name__)
PARTS: Mapping[str, Sequence[str]] = table("runs/calibrate/parts.toml")["parts"]
"""Parts of a machine, and the constants that move together when one does."""
EVERYTHING = "everything"
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
LEAST = 1e-9  # of the square of a slope, below which nothing is seen of a part


@dataclass(frozen=True, slots=True)
class PartShift:
    """The slowdown of a part that alone had moved, with its 80 % range, and the least visible slowdown, all as shares."""

    name: str
    slower: float
    low: float
    high: float
    visible: float
    probability: float  # of such a shift without any change
    likelihood: float  # that such a shift gives these runs, as a share of all parts


@dataclass(frozen=True, slots=True)
class CheckedLatency:
    """A latency of today beside its 80 % range."""

    label: str
    metric: str
    measured_s: float
    expected_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class DriftCheck:
    """Whether a machine is what it was, with the parts that may have moved as ``suspects``, the likeliest first."""

    verdict: Literal["same", "drifted", "unknown"]
    reason: str
    probability: float  # of runs like these, or odder ones, on an unchanged machine
    level: float
    suspects: tuple[str, ...]
    parts: tuple[PartShift, ...]
    latencies: tuple[CheckedLatency, ...]
    notes: tuple[str, ...] = ()
    deployments: tuple[Deployment, ...] = ()

    @property
    def moved(self) -> str:
        """The single part that stands out, or ""."""
        return self.suspects[0] if len(self.suspects) == 1 else ""


def check_drift(runs: Sequence[Measured], profile: Profile) -> DriftCheck:
    """Compare new runs of a deployment with a profile that holds lessons of it."""
    lessons, refused = observe(runs, profile)
    if not lessons:
        raise Refusal(f"check: {refused[0] if refused else 'no file holds a run that can be compared'}")
    renamed, notes = same_versions(lessons, profile.lessons)
    return judge(renamed, profile.lessons, notes=(*notes, *refused))


def same_versions(lessons: Sequence[RunLesson], learnt: Sequence[RunLesson]) -> tuple[list[RunLesson], tuple[str, ...]]:
    """Return lessons relabelled with the calibrated version where only that differs, to see whether an upgrade changed anything."""
    made, notes = [], dict[str, None]()
    for lesson in lessons:
        now = lesson.deployment
        before = [x.deployment for x in learnt if replace(x.deployment, version=now.version) == now]
        if before and now not in before:
            notes[f"{now.engine} {now.version} is held against {before[-1].version}, which was calibrated"] = None
            now = before[-1]
        made.append(replace(lesson, deployment=now))
    return made, tuple(notes)


def judge(
    lessons: Sequence[RunLesson], learnt: Sequence[RunLesson], prior: Beliefs | None = None, notes: tuple[str, ...] = ()
) -> DriftCheck:
    """Judge new lessons by those that a profile holds."""
    near = [x for x in learnt if x.deployment in {lesson.deployment for lesson in lessons}]
    foreseen = Foresight(lessons, learnt, prior)
    off = np.array([x.residual for x in lessons]) - foreseen.mean
    inverse = np.linalg.inv(np.outer(foreseen.scale, foreseen.scale) * (foreseen.covariance + np.diag(foreseen.noise**2)))
    slopes = {name: np.array([sum(x.slopes.get(c, 0.0) for c in constants) for x in lessons]) for name, constants in PARTS.items()}
    slopes |= {EVERYTHING: np.ones(len(lessons))}
    seen = {name: s for name, s in slopes.items() if s @ s > LEAST}
    freedom = min(float(foreseen.freedom.min()), LEVEL.tails)
    ways, end = (int(np.linalg.matrix_rank([*seen.values()])), len(seen)), _edge(LEVEL.odd, (1, 1), freedom)
    edge = _edge(LEVEL.level, ways, freedom) + _edge(2 * (1 - LEVEL.power), (1, 1), freedom)
    likely = likelihoods({name: _weight(s, off, inverse) for name, s in seen.items()})
    best = {name: _best(s, off, inverse) for name, s in seen.items()}
    parts = tuple(_shift(name, *best[name], end, edge, freedom, likely[name]) for name in seen)
    chance = _chance(max((log / sigma) ** 2 for log, sigma in best.values()), ways, freedom)
    widths = end * foreseen.scale * np.sqrt(np.maximum(0.0, np.diag(foreseen.covariance)) + foreseen.noise**2)
    latencies = tuple(map(_checked, lessons, off.tolist(), widths.tolist()))
    verdict, reason = _verdict(chance, near, parts[-1])
    moved = suspects(likely) if verdict == "drifted" else ()
    deployments = tuple(dict.fromkeys(lesson.deployment for lesson in lessons))
    return DriftCheck(verdict, reason, chance, LEVEL.level, moved, parts, latencies, notes, deployments)


def _verdict(chance: float, near: Sequence[RunLesson], every: PartShift) -> tuple[Literal["same", "drifted", "unknown"], str]:
    if len(near) < COUNT.fewest:
        wanted = f"at least {COUNT.fewest} are needed (two runs with TPOT and TTFT)"
        return "unknown", f"the profile holds {len(near)} latencies of this deployment; {wanted}"
    if chance <= LEVEL.level:
        return "drifted", ""
    loads = [*dict.fromkeys(f"{x.clients:g} at {x.input_len:g}/{x.output_len:g}" for x in near)]
    more = f"runs at loads that the profile saw (concurrency {listed(loads[: COUNT.named])}) would decide"
    if chance <= LEVEL.odd:
        off = f"{abs(every.slower):.0%} {'slower' if every.slower >= 0 else 'faster'}"
        return "unknown", f"these runs are {off}, which chance alone explains in {chance:.0%} of checks; {more}"
    if every.visible > LEVEL.widest:
        return "unknown", f"everything could be {every.visible:.0%} slower without being seen; {more}"
    return "same", ""


def _best(slopes: Array, off: Array, inverse: Array) -> tuple[float, float]:
    """Return the logarithm of the best-fitting shift of a part, and its deviation."""
    information = float(slopes @ inverse @ slopes)
    return float(slopes @ inverse @ off) / information, 1 / sqrt(information)


def _weight(slopes: Array, off: Array, inverse: Array) -> float:
    """Return the log-likelihood ratio of the runs with a shift of a part to those without."""
    (log, sigma), usual = _best(slopes, off, inverse), LEVEL.usual_drift**2
    return 0.5 * (log / sigma) ** 2 * usual / (usual + sigma**2) - 0.5 * log1p(usual / sigma**2)


def _shift(name: str, log: float, sigma: float, end: float, edge: float, freedom: float, likely: float) -> PartShift:
    """Return the best-fitting shift of a part with its range and significance."""
    low, high = (float(np.expm1(log + side * end * sigma)) for side in (-1, 1))
    chance = tail((log / sigma) ** 2, 1, freedom)
    return PartShift(name, float(np.expm1(log)), low, high, float(np.expm1(edge * sigma)), chance, likely)


def _checked(lesson: RunLesson, off: float, width: float) -> CheckedLatency:
    expected = lesson.measured_s / exp(off)
    return CheckedLatency(lesson.label, lesson.metric, lesson.measured_s, expected, expected / exp(width), expected * exp(width))


def _chance(square: float, ways: tuple[int, int], freedom: float) -> float:
    """Return the probability that the farthest t^2 of ``ways`` is above a value: a sum, or Scheffe's bound over their space."""
    return min(1.0, ways[1] * tail(square, 1, freedom), tail(square / ways[0], ways[0], freedom))


def tail(square: float, directions: int, freedom: float) -> float:
    """Return the upper tail of Fisher's F, a mean square of some directions over one with so many degrees of freedom.

    >>> round(tail(10.04, 1, 10), 3), round(tail(4.10, 2, 10), 3)
    (0.01, 0.05)
    """
    a, b = freedom / 2, directions / 2
    top = (freedom / (freedom + directions * square)) ** a
    points = top * (NODES + 1) / 2
    area = top / 2 * float(np.sum(WEIGHTS * (1 - points ** (1 / a)) ** (b - 1))) / a
    return float(min(1.0, area * exp(lgamma(a + b) - lgamma(a) - lgamma(b))))


def _edge(probability: float, ways: tuple[int, int], freedom: float) -> float:
    """Return the |t| that the farthest of some directions exceeds with a given probability."""
    low, high = 0.0, 1.0
    while _chance(high**2, ways, freedom) > probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _chance(middle**2, ways, freedom) > probability else (low, middle)
    return high
