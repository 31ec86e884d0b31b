"""What lies between hosts, from collectives whose groups cross them: latency, attained bandwidth, what fills a pipeline.

Rows that say exactly the same count once, and their order tells nothing: a file that is given twice changes nothing.

Logarithms of times are the form's, whose constants have the catalogue's values as their prior; plus a curve over sizes and ranks
that wanders (an Ornstein-Uhlenbeck process: alike at near sizes, on its own far away); plus the noise of a timing. All three have
deviations as data (``network.toml``), so that one row already moves what it can tell. Rows that no other supports weigh less the
farther they lie from what the others say of them, and nothing in the end: an outlier is not followed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from commtax.arrays import Array
from commtax.catalog import physics
from commtax.files import table
from commtax.runs.calibrate import measurements, robust_fit
from commtax.runs.calibrate.robust_fit import HUBER, MOST_LEFT_OUT, NORMAL, TUKEY
from commtax.spec import NetworkCurve, Profile
from commtax.units import format_bytes, plural
from commtax.verbs.expecting import expect

_FILE = table("runs/calibrate/network.toml")
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

Times = Callable[[Array, Sequence[measurements.TimedCollective]], Array]  # seconds of rows, by constants alone


@dataclass(frozen=True, slots=True)
class NetworkPosterior:
    """What the rows say: constants as logarithms, and all that a prediction elsewhere needs."""

    times: Times
    rows: tuple[measurements.TimedCollective, ...]
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

    def curve(self, asked: Sequence[measurements.TimedCollective]) -> tuple[Array, Array]:
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

    def _beyond(self, asked: Sequence[measurements.TimedCollective]) -> Array:
        """Octaves beyond the sizes that were measured: there, how well the form tells those does not say how well it goes on."""
        seen, sizes = (np.log2([row.nbytes for row in rows]) for rows in (self.rows, asked))
        return np.asarray(np.maximum(0.0, np.maximum(seen.min() - sizes, sizes - seen.max())))


def fit(rows: Sequence[measurements.TimedCollective], times: Times, usual: Array) -> NetworkPosterior:
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
    rows: Sequence[measurements.TimedCollective],
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
    rows: Sequence[measurements.TimedCollective],
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


def _alike(some: Sequence[measurements.TimedCollective], others: Sequence[measurements.TimedCollective], deviation: float) -> Array:
    """Covariance of the curve between rows: of one collective, less by every doubling of size or ranks between them."""
    one, two = (np.log2([(row.nbytes, row.ranks) for row in rows]) for rows in (some, others))
    apart = np.abs(one[:, None] - two).sum(axis=2)
    same = np.array([[a.op == b.op for b in others] for a in some])
    return np.asarray(deviation**2 * np.exp(-apart / CURVE["octaves"]) * same)


def _slopes(times: Times, logs: Array, rows: Sequence[measurements.TimedCollective]) -> Array:
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


KNOTS = tuple(float(4**x) for x in range(1, 19))  # sizes at which a curve stands beside those that were measured
APART = 0.25  # octaves between two sizes of a curve, at least
LEAST_SIZES = 4  # … that tell the form of a curve
ASKED = tuple(float(2**x) for x in range(10, 34, 2))


def fit_network(files: measurements.MeasurementFiles, place: measurements.MeasuredMachine, own: Profile) -> measurements.Step:
    """Constants across hosts and the curve over them; ``own`` holds what was fitted inside them."""
    every = [r for r in files.collectives if r.ranks > place.cluster.domain]
    if not every:
        return own, [], []
    libraries = [r.library for r in every]
    library = max(sorted(set(libraries)), key=libraries.count)
    rows = measurements.distinct(r for r in every if r.library == library)
    usual = expect(rows[0].op, place.cluster, nbytes=1.0, ranks=rows[0].ranks, library=library).fabric.network
    before = np.array([getattr(usual, name) for name in CONSTANTS])
    found = fit(rows, _remembered_times(place, own), before)
    profile = _profile(found, before, place, own)
    times = np.array([r.seconds for r in rows])
    then, now = (np.log(times / measurements.expected_seconds(rows, place, one)) for one in (None, profile))
    spread = robust_fit.width(float(np.median(found.curve(rows)[1])))
    named = zip(CONSTANTS, before.tolist(), found.told.tolist(), strict=True)
    changes = (measurements.ConstantChange(f"network {name}", was, profile.network[name]) for name, was, told in named if told)
    part = measurements.ProfilePart.of(f"{library} across hosts", [r.label for r in rows], then, now, spread, changes)
    others = sorted(set(libraries) - {library})
    refused = [f"across hosts: rows of {one} are left out; a profile has one library there, {library}" for one in others]
    return profile, [part.with_remarks(_notes(rows, place, found), _wishes(place, found, profile))], refused


def _remembered_times(place: measurements.MeasuredMachine, own: Profile) -> Times:
    """Seconds of rows by constants; fits begin where others ended, and a curve asks again what its fit has asked."""

    @cache
    def seconds(values: tuple[float, ...], rows: tuple[measurements.TimedCollective, ...]) -> Array:
        return measurements.expected_seconds(rows, place, replace(own, network=dict(zip(CONSTANTS, values, strict=True))))

    return lambda values, rows: seconds(tuple(values.tolist()), tuple(rows))


def _profile(found: NetworkPosterior, before: Array, place: measurements.MeasuredMachine, own: Profile) -> Profile:
    """The profile with what was found: constants, what they leave, and where it was measured."""
    ranks = [r.ranks for r in found.rows]
    values = np.where(found.told, found.values, before).tolist()
    constants = dict(zip(CONSTANTS, values, strict=True))
    spread = min(robust_fit.half_width(found.residuals, len(CONSTANTS)), physics.NETWORK["spread"].high)
    constants |= {"spread": spread, "least_ranks": min(ranks), "most_ranks": max(ranks)}
    curves = tuple(_curve(found, op, place.cluster.domain) for op in sorted({r.op for r in found.rows}))
    return replace(own, network=constants, curves=curves, links={**own.links, "inter": place.cluster.inter.key})


def _curve(found: NetworkPosterior, op: str, domain: int) -> NetworkCurve:
    """What one collective takes over what the constants say, at the sizes that were measured and some around them."""
    mine = [r for r in found.rows if r.op == op]
    # Sizes that were measured, of those that nearly coincide one; and powers of four where none is near.
    measured = [r.nbytes for r in mine]
    kept: list[float] = []
    for size in sorted(set(measured)):
        if not kept or np.log2(size / kept[-1]) >= APART:
            kept.append(size)
    sizes = sorted([*kept, *(size for size in KNOTS if min(abs(np.log2(size / one)) for one in kept) > 1)])
    groups = sorted({r.ranks for r in mine})
    asked = [replace(mine[0], ranks=ranks, nbytes=size) for ranks in groups for size in sizes]
    mean, sigma = (np.round(x, 5).reshape(len(groups), -1) for x in found.curve(asked))
    drift, grown = (deviation * float(np.sqrt(2 / CURVE["octaves"])) for deviation in (found.deviation, CURVE["deviation"]))
    return NetworkCurve(
        op=op,
        ranks=tuple(groups),
        nbytes=tuple(sizes),
        factor=tuple(map(tuple, np.round(np.exp(mean), 5).tolist())),
        sigma=tuple(map(tuple, sigma.tolist())),
        drift=round(found.scale * drift, 5),
        grown=round(max(1.0, found.scale) * grown, 5),
        reshaped=CURVE["reshaped"],
        domain=domain,
    )


def _notes(
    rows: Sequence[measurements.TimedCollective], place: measurements.MeasuredMachine, found: NetworkPosterior
) -> Iterator[str]:
    hosts = sorted({-(-r.ranks // place.cluster.domain) for r in rows})
    yield f"measured over {', '.join(map(str, hosts))} hosts: other numbers of hosts have a wider range"
    untold = [name for name, yes in zip(CONSTANTS, found.told, strict=True) if not yes]
    if untold:
        yield f"{', '.join(untold)}: these sizes do not tell {'it' if len(untold) == 1 else 'them'}, the catalogue's stays"
    sizes = len({r.nbytes for r in rows})
    if sizes < LEAST_SIZES:
        yield f"{plural(sizes, 'size')}: others rest on the catalogue's constants; measure from 1 KiB to 1 GiB"


def _wishes(place: measurements.MeasuredMachine, found: NetworkPosterior, profile: Profile) -> Iterator[measurements.Wish]:
    """The range left at other sizes and numbers of hosts."""
    row, domain = found.rows[0], place.cluster.domain
    doubled = {domain * 2**k for k in range(1, 6) if domain * 2**k <= place.cluster.num_gpus}
    for ranks in sorted(doubled | {r.ranks for r in found.rows}):
        sizes = np.array(ASKED)
        priced = expect(row.op, place.cluster, nbytes=sizes, ranks=ranks, library=row.library, profile=profile)
        for size, spread in zip(ASKED, np.broadcast_to(priced.spread, sizes.shape).tolist(), strict=True):
            where = f"{row.library} {row.op} of {format_bytes(size)} over {ranks} ranks"
            yield measurements.Wish.at(where, robust_fit.sigma_of(spread) ** 2)
