"""What runs of a deployment teach, and how sure it is: a posterior around the catalogue's constants.

A run's logarithmic error is a sum: what each constant is off by, times how much the latency has to do with it (its slope); what
no constant explains, which is smooth in clients and lengths; and scatter,

    ln(measured / predicted) = sum over constants of slope x z  +  d(clients, input, output)  +  noise

with normal z and d. ``posterior.toml`` says how far each of them lies from deployment to deployment, and how much of it two
deployments share that differ in chip, version or model; both were fitted on published runs
(``benchmarks/fit_posterior.py``). A profiler's trace has the seconds of one part of a step, of products or the host, and its
slopes are on the constants of that part alone. So the posterior is a formula. Constants of what is asked move by the mean of z,
its latencies by that of d, and what is left is the range. Where a deployment was run several times at one load and scattered more
than runs usually do, its runs count for less, and no range of it is narrower than it repeats itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import pi
from typing import NamedTuple

import numpy as np

from commtax.arrays import Array
from commtax.catalog.transfer import Setting
from commtax.files import table
from commtax.ledger import Z80
from commtax.records import dataclass, record_from
from commtax.spec import LATENCIES, MEASURED, Chip, Deployment, Engine, Model, Number, Plan, Profile, RunLesson

METRICS = LATENCIES
LEVELS = ("chip", "engine", "version", "family", "model", "dtype")  # what deployments' constants depend on …
LAYOUT = ("tp", "pp", "dp", "ep", "disaggregated")  # … and beside these, what no constant explains: how a model is laid out


@dataclass(frozen=True, slots=True)
class Smooth:
    """What no constant explains of a latency or a step's part: deviations of logarithms, and doublings over which it changes."""

    offset: float  # alike at all loads …
    local: float  # … and what varies with them
    doublings: tuple[float, float, float]  # of clients, input and output
    noise: float  # of one run


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is known before a deployment was measured."""

    constants: Mapping[str, float]  # standard deviation of each constant's logarithm
    smooth: Mapping[str, Smooth]  # by metric
    shared: Mapping[str, float]  # correlation of constants of two deployments that differ in a level …
    shared_rest: Mapping[str, float]  # … and of what no constant explains
    freedom: float  # of Student's distribution: how fast a deployment's errors replace the usual ones as measure of its range
    width: float  # what ranges are wider by, so that four of five runs that were left out lie inside


@lru_cache(maxsize=1)
def beliefs() -> Beliefs:
    """Return those of the catalogue."""
    stated = table("catalog/posterior.toml")
    kinds = {**stated["smooth"], **table("catalog/step_parts.toml")}
    smooth = {name: record_from(Smooth, {**one, "doublings": tuple(one["doublings"])}) for name, one in kinds.items()}
    return record_from(Beliefs, {**stated, "smooth": smooth})


def deployment_of(engine: Engine, chip: Chip, model: Model, plan: Plan, disaggregated: bool = False) -> Deployment:
    """Return a question's deployment, whose sizes may be arrays there."""
    at = Setting.of(engine, chip, model, plan.weights_dtype)
    sizes = (plan.tp, plan.pp, plan.dp * plan.replicas, plan.ep)
    return Deployment(at.engine, engine.version, at.chip, at.family, model.key, at.dtype, *sizes, disaggregated)


class LoadPoint(NamedTuple):
    """The load at which a latency is predicted, in arrays of one shape."""

    clients: Number
    input_len: Number
    output_len: Number


class Change(NamedTuple):
    """Of one constant: the logarithm that it moves by, and its deviation before and after."""

    log: float
    before: float
    after: float


class Posterior:
    """Lessons, taken together."""

    def __init__(self, lessons: Sequence[RunLesson], prior: Beliefs | None = None) -> None:
        self.lessons, self.beliefs = tuple(lessons), prior or beliefs()
        self.names = tuple(self.beliefs.constants)
        self.spread = np.array([self.beliefs.constants[name] for name in self.names])
        self._slopes = np.array([[x.slopes.get(name, 0.0) for name in self.names] for x in lessons]).reshape(-1, len(self.names))
        self._places = np.array([_place(LoadPoint(x.clients, x.input_len, x.output_len)) for x in lessons]).reshape(-1, 3)
        self._metrics = np.array([MEASURED.index(x.metric) for x in lessons], int)
        self.residuals = np.array([x.residual for x in lessons])
        usual = np.array([self.beliefs.smooth[x.metric].noise for x in lessons])
        # What repeats leave of a figure: of the mean of two, or of the median of more.
        left = [float(x.scatter * np.sqrt((pi / 2 if x.repeats > 2 else 1.0) / x.repeats)) for x in lessons]
        self.noise = np.array([x.noise for x in lessons]) * np.hypot(usual, left)

    @cached_property
    def covariance(self) -> Array:
        """Of what the lessons say, without scatter."""
        shares = {one: self.shares(one) for one in dict.fromkeys(x.deployment for x in self.lessons)}
        alike = [shares[x.deployment] for x in self.lessons]
        of_constants, rest = (np.array([one[i] for one in alike]) for i in (0, 1))
        shared: Array = of_constants * ((self._slopes * self.spread**2) @ self._slopes.T)
        smooth = [self._beside(which, place[None])[0] for which, place in zip(self._metrics, self._places, strict=True)]
        return np.asarray(shared + rest * np.stack(smooth))

    @cached_property
    def _inverse(self) -> Array:
        return np.linalg.inv(self.covariance + np.diag(self.noise**2))

    @cached_property
    def _pull(self) -> Array:
        return np.asarray(self._inverse @ self.residuals)

    def scale(self, metric: str) -> float:
        """Return the factor on a latency's usual deviations, from how far each run is off when the others predict it."""
        mine = self._metrics == MEASURED.index(metric)
        squares = self._pull[mine] ** 2 / np.diag(self._inverse)[mine] if mine.any() else mine
        return self.beliefs.width * float(np.sqrt((self.beliefs.freedom + squares.sum()) / self.freedom(metric)))

    def freedom(self, metric: str) -> float:
        """Return the degrees of freedom of that scale."""
        return self.beliefs.freedom + sum(x.metric == metric for x in self.lessons)

    def shares(self, deployment: Deployment) -> tuple[Array, Array]:
        """Return a deployment's correlation with that of each lesson: of constants, and of the rest (a row for each layout)."""
        correlations: dict[Deployment, tuple[float, Number]] = {}
        for one in dict.fromkeys(x.deployment for x in self.lessons):
            differ = [level for level in LEVELS if getattr(one, level) != getattr(deployment, level)]
            unlike = (getattr(one, x) != np.asarray(getattr(deployment, x)) for x in LAYOUT)
            layout = np.logical_or.reduce(np.broadcast_arrays(*unlike))
            same, rest = (np.prod([by[level] for level in differ]) for by in (self.beliefs.shared, self.beliefs.shared_rest))
            correlations[one] = float(same), np.where(layout, rest * self.beliefs.shared_rest["layout"], rest)
        ours = [correlations[x.deployment] for x in self.lessons]
        return np.array([a for a, _ in ours]), np.stack([b for _, b in ours], axis=-1)

    def scatter(self, deployment: Deployment, metric: str) -> Number:
        """Return one run's deviation beyond the usual noise, as lessons measured it, most of all those that are alike."""
        alike = self.shares(deployment)[1] * (self._metrics == MEASURED.index(metric))
        squares = np.array([x.scatter for x in self.lessons]) ** 2
        return np.asarray(np.sqrt(alike @ squares / np.maximum(alike.sum(-1), np.finfo(float).tiny)))

    def changes(self, deployment: Deployment) -> dict[str, Change]:
        """Return how the constants of a deployment move."""
        weights = self.shares(deployment)[0][:, None] * self._slopes * self.spread**2
        means = self._pull @ weights
        left = self.spread**2 - np.einsum("ip,ij,jp->p", weights, self._inverse, weights)
        rows = zip(means, self.spread, np.sqrt(np.maximum(0.0, left)), strict=True)
        return {name: Change(*map(float, row)) for name, row in zip(self.names, rows, strict=True)}

    def rest(self, deployment: Deployment, metric: str, at: LoadPoint, slopes: Mapping[str, Number]) -> tuple[Number, Number]:
        """Return what no constant explains of a latency, and the deviation of its logarithm: constants, rest and scatter."""
        place = np.stack([np.asarray(x, float) for x in np.broadcast_arrays(*_place(at))], axis=-1)
        shape, which = place.shape[:-1], MEASURED.index(metric)
        spread_out = [np.broadcast_to(np.asarray(slopes.get(n, 0.0), float), shape) for n in self.names]
        mine, place = np.stack(spread_out, axis=-1).reshape(-1, len(self.names)), place.reshape(-1, 3)
        constants, rest = self.shares(deployment)
        rest = np.broadcast_to(rest, (*shape, len(self.lessons))).reshape(len(place), -1) * self._beside(which, place)
        mean = rest @ self._pull
        cross = constants * ((mine * self.spread**2) @ self._slopes.T) + rest
        one = self.beliefs.smooth[metric]
        before = (mine**2) @ self.spread**2 + one.offset**2 + one.local**2
        left = np.maximum(0.0, before - np.einsum("ij,jk,ik->i", cross, self._inverse, cross)) + one.noise**2
        wider = self.scale(metric) * student_over_normal(self.freedom(metric))
        scatter = np.broadcast_to(self.scatter(deployment, metric), shape).reshape(-1)
        sigma = np.hypot(wider * np.sqrt(left), scatter)  # of which no agreement of other loads takes anything
        return mean.reshape(shape)[()], sigma.reshape(shape)[()]

    def left_out(self) -> tuple[Array, Array]:
        """Predict each lesson by the others: what it is off by, and the standard deviation of that without its own scatter."""
        precision = np.diag(self._inverse)
        return self._pull / precision, np.sqrt(np.maximum(0.0, 1 / precision - self.noise**2))

    def left_over(self) -> Array:
        """Return what all lessons together leave of each: its scatter."""
        return np.asarray(self.noise**2 * self._pull)

    def _beside(self, which: int, place: Array) -> Array:
        """Return the covariance of the rest of a latency at some loads with that of each lesson."""
        one = self.beliefs.smooth[MEASURED[which]]
        far = (((place[:, None] - self._places[None]) / np.array(one.doublings)) ** 2).sum(-1)
        return np.where(self._metrics == which, one.offset**2 + one.local**2 * np.exp(-far / 2), 0.0)


def student_over_normal(freedom: Number) -> Number:
    """Return the 80 % range of Student's distribution over that of a normal one: the first terms of Cornish and Fisher's series.

    >>> round(Z80 * student_over_normal(3), 2), round(Z80 * student_over_normal(8), 2)
    (1.63, 1.4)
    """
    z = Z80**2
    return 1 + (z + 1) / (4 * freedom) + (5 * z**2 + 16 * z + 3) / (96 * freedom**2)


def metric_words(metric: str) -> str:
    """Return a latency (``TPOT``) or a part of a profiled step (``host``), for people."""
    return metric.upper() if metric in METRICS else metric


def _place(at: LoadPoint) -> tuple[Number, ...]:
    return tuple(np.log2(np.maximum(1.0, x)) for x in at)


@lru_cache(maxsize=64)
def posterior_of(profile: Profile) -> Posterior:
    """Return a profile's posterior, which every question needs."""
    return Posterior(profile.lessons)


def moves_of(profile: Profile) -> Iterator[tuple[Deployment, dict[str, Change]]]:
    """Yield each deployment with the constants that its runs sharpen: those that are surer than before any run."""
    for deployment in dict.fromkeys(lesson.deployment for lesson in profile.lessons):
        changes = posterior_of(profile).changes(deployment)
        yield deployment, {name: x for name, x in changes.items() if range_words(x.after) != range_words(x.before)}


def range_words(sigma: float) -> str:
    """Return the 80 % range of a constant whose logarithm has a standard deviation.

    >>> range_words(0.1), range_words(0.3)
    ('±14%', '±47%')
    """
    return f"±{math.expm1(Z80 * sigma):.0%}"


def move_words(change: Change) -> tuple[str, str, str]:
    """Return how far a constant moved, its 80 % range now, and before any run."""
    return f"{math.expm1(change.log):+.0%}", range_words(change.after), range_words(change.before)
