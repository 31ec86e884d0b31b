"""Constants of a network as timed collectives move them, and the smooth curve that takes what no constant explains.

Logarithms of times are the form's, whose constants have the catalogue's values as their prior; plus a curve over sizes and ranks
that wanders (an Ornstein-Uhlenbeck process: alike at near sizes, on its own far away); plus the noise of a timing. All three have
deviations as data (``network.toml``), so that one row already moves what it can tell. Rows that no other supports weigh less the
farther they lie from what the others say of them, and nothing in the end: an outlier is not followed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.arrays import Array
from commtax.calibrate.measurements import TimedCollective
from commtax.calibrate.robust_fit import HUBER, MOST_LEFT_OUT, NORMAL, TUKEY
from commtax.catalog import physics
from commtax.files import table

_FILE = table("calibrate/network.toml")
CONSTANTS: tuple[str, ...] = tuple(_FILE["constants"])
DEVIATIONS: Array = np.array([_FILE["constants"][name] for name in CONSTANTS])
CURVE: dict[str, float] = _FILE["curve"]
TOLD: dict[str, float] = _FILE["told"]
ROUNDS, FIRST_ROUNDS, STEP, SETTLED = 12, 3, 1e-3, 3e-3
CLOSER = (0.5, 0.25, 0.125)  # … shares of the usual deviation, of fabrics that the form tells well
NOISIER = (2.0, 4.0, 8.0)  # times the usual noise, of fabrics whose timings scatter
SHARES = (1.0, 0.5, 0.25, 0.125)  # of a step that are tried
FEW = 4  # rows of which none can be told to be an outlier
LEAST_WEIGHT = 1e-6
LOWEST, HIGHEST = (np.log([max(getattr(physics.NETWORK[n], end), 1e-9) for n in CONSTANTS]) for end in ("low", "high"))
TRIED, NOTHING = 0.3, 1e-9  # where the catalogue has none of a constant: what to try, and what is none to a logarithm
FARTHEST = 3.0  # deviations that a row counts at most in the scatter of all
UNLIKELIEST = 5.0  # … and against deviations that leave it out

Times = Callable[[Array, Sequence[TimedCollective]], Array]
"""Seconds of rows, by constants alone."""


@dataclass(frozen=True, slots=True)
class NetworkPosterior:
    """What the rows say: constants as logarithms, and all that a prediction elsewhere needs."""

    times: Times
    rows: tuple[TimedCollective, ...]
    logs: Array
    residuals: Array  # ln(measured / what the constants say)
    weights: Array
    scale: float  # how many times as far as the prior says rows lie from each other
    deviation: float  # of times from what the constants say
    noise: float  # … and of a single timing
    told: Array  # which constants the rows tell
    evidence: float  # logarithm of how likely each row is by all others, and this noise

    @property
    def values(self) -> Array:
        return np.asarray(np.exp(self.logs))

    def curve(self, asked: Sequence[TimedCollective]) -> tuple[Array, Array]:
        """Logarithms of what other rows take over what the constants say, and their deviations with a timing's own noise."""
        noise = np.diag(self.noise**2 / self.weights)
        near, inside = _alike(asked, self.rows, self.deviation), _alike(self.rows, self.rows, self.deviation)
        mean = near @ np.linalg.solve(inside + noise, self.residuals)
        here, there = (_slopes(self.times, self.logs, some) * DEVIATIONS for some in (self.rows, asked))
        shared = near + there @ here.T
        known = np.linalg.solve(inside + here @ here.T + noise, shared.T)
        free = self.deviation**2 + np.sum(there**2, axis=1) - np.sum(shared.T * known, axis=0)
        free += self._beyond(asked) * 2 / CURVE["octaves"] * (CURVE["deviation"] ** 2 - self.deviation**2)
        return mean, self.scale * np.sqrt(np.maximum(free, 0.0) + self.noise**2)

    def _beyond(self, asked: Sequence[TimedCollective]) -> Array:
        """Octaves beyond the sizes that were measured: there, how well the form tells those does not say how well it goes on."""
        seen, sizes = (np.log2([row.nbytes for row in rows]) for rows in (self.rows, asked))
        return np.asarray(np.maximum(0.0, np.maximum(seen.min() - sizes, sizes - seen.max())))


def fit(rows: Sequence[TimedCollective], times: Times, usual: Array) -> NetworkPosterior:
    """The posterior with the deviations that make each row likeliest by all others: how far the form is off, then the noise."""
    found = _fit_told(rows, times, usual, CURVE["deviation"], CURVE["noise"])
    if len(rows) < FEW:
        return found
    for share in CLOSER:
        found = max(found, _fit_told(rows, times, usual, share * CURVE["deviation"], CURVE["noise"], found), key=_evidence)
    for more in NOISIER:
        found = max(found, _fit_told(rows, times, usual, found.deviation, more * CURVE["noise"], found), key=_evidence)
    return found


def _evidence(found: NetworkPosterior) -> float:
    return found.evidence


def _fit_told(
    rows: Sequence[TimedCollective],
    times: Times,
    usual: Array,
    deviation: float,
    noise: float,
    near: NetworkPosterior | None = None,
) -> NetworkPosterior:
    """The posterior of all constants, sought from ``near``; those that the rows do not tell stay where the catalogue has them."""
    told, start = np.ones(len(usual), bool), near.logs if near else None
    while True:
        found = _fit_some(rows, times, usual, told, deviation, noise, start)
        if np.all(found.told == told) or not told.any():
            return found
        told, start = told & found.told, found.logs


def _fit_some(
    rows: Sequence[TimedCollective],
    times: Times,
    usual: Array,
    free: Array,
    deviation: float,
    noise: float,
    start: Array | None,
) -> NetworkPosterior:
    """The constants that are ``free``: damped Gauss-Newton steps, and weights anew after each."""
    prior = np.log(np.maximum(usual, np.where(free & (usual <= 0), TRIED, NOTHING)))
    measured, alike = np.log([row.seconds for row in rows]), _alike(rows, rows, deviation)
    tight = np.diag(np.where(free, DEVIATIONS, NOTHING) ** -2.0)
    logs, weights = prior if start is None else np.where(free, start, prior), np.ones(len(rows))
    rest, slope = measured - np.log(times(np.exp(logs), rows)), _slopes(times, logs, rows)
    for turn in range(ROUNDS):
        inverse = np.linalg.inv(alike + np.diag(noise**2 / weights))
        normal = slope.T @ inverse @ slope + tight
        step = np.clip(np.linalg.solve(normal, slope.T @ inverse @ rest - tight @ (logs - prior)), -1, 1) * free
        cost = rest @ inverse @ rest + (logs - prior) @ tight @ (logs - prior)
        moves = False
        for share in SHARES if np.max(np.abs(step)) > SETTLED else ():
            tried = np.where(free, np.clip(logs + share * step, LOWEST, HIGHEST), logs)
            left = measured - np.log(times(np.exp(tried), rows))
            moves = bool(left @ inverse @ left + (tried - prior) @ tight @ (tried - prior) < cost)
            if moves:
                logs, rest, slope = tried, left, _slopes(times, tried, rows)
                break
        scaled = slope * DEVIATIONS
        far, alone = _surprise(alike + scaled @ scaled.T, noise**2 / weights, rest + slope @ (logs - prior), noise)
        weights, before = _weigh(far, last=turn >= FIRST_ROUNDS), weights
        if turn > FIRST_ROUNDS and not moves and np.max(np.abs(weights - before)) < SETTLED:
            break
    told = free & (np.sqrt(np.diag(np.linalg.inv(normal))) <= TOLD["share"] * DEVIATIONS)
    evidence = -float(np.sum(np.log(alone) + np.minimum(far**2, UNLIKELIEST**2) / 2))
    evidence -= CURVE["sure"] * float(np.log(CURVE["deviation"] / deviation) ** 2 + np.log(noise / CURVE["noise"]) ** 2)
    return NetworkPosterior(times, tuple(rows), logs, rest, weights, _scale(far), deviation, noise, told, evidence)


def _alike(some: Sequence[TimedCollective], others: Sequence[TimedCollective], deviation: float) -> Array:
    """Covariance of the curve between rows: of one collective, less by every doubling of size or ranks between them."""
    one, two = (np.log2([(row.nbytes, row.ranks) for row in rows]) for rows in (some, others))
    apart = np.abs(one[:, None] - two).sum(axis=2)
    same = np.array([[a.op == b.op for b in others] for a in some])
    return np.asarray(deviation**2 * np.exp(-apart / CURVE["octaves"]) * same)


def _slopes(times: Times, logs: Array, rows: Sequence[TimedCollective]) -> Array:
    """d ln(seconds) / d ln(constant), by differences."""
    moves = STEP * np.eye(len(logs))
    sides = ((np.log(times(np.exp(logs + way), rows)) for way in (move, -move)) for move in moves)
    return np.stack([(up - down) / (2 * STEP) for up, down in sides], axis=1)


def _surprise(known: Array, own: Array, left: Array, noise: float) -> tuple[Array, Array]:
    """How many deviations each row lies from what all others say of it, and that deviation; ``own``: variances of the rows."""
    inverse = np.linalg.inv(known + np.diag(own))
    alone = 1 / np.diag(inverse)
    deviation = np.sqrt(np.maximum(alone - own, 0.0) + noise**2)
    return np.asarray((inverse @ left) * alone / deviation), np.asarray(deviation)


def _weigh(far: Array, last: bool) -> Array:
    """Huber's weights, then Tukey's; a fabric whose rows scatter more than others' is measured by its own scatter."""
    if len(far) < FEW:
        return np.ones(len(far))
    own = np.abs(far) / max(1.0, NORMAL * float(np.median(np.abs(far))))
    tukey = np.clip(1 - (own / TUKEY) ** 2, 0, None) ** 2
    if last and np.mean(tukey == 0) <= MOST_LEFT_OUT:
        return np.asarray(np.maximum(tukey, LEAST_WEIGHT))
    return np.asarray(np.minimum(1.0, HUBER / np.maximum(own, HUBER)))


def _scale(far: Array) -> float:
    """Deviations of this fabric over the prior's, which weigh as much as some rows; outliers count as the farthest others."""
    if len(far) < FEW:
        return 1.0
    rows = CURVE["sure_rows"]
    return float(np.sqrt((rows + np.sum(np.minimum(far**2, FARTHEST**2))) / (rows + len(far))))
