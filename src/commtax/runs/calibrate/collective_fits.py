"""Constants of a library from timed collectives: paths inside a host, and what lies between hosts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from operator import attrgetter

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog import physics
from commtax.catalog.physics import check_path, fastest_Bps
from commtax.cost.collectives import path_parts, ring_factor
from commtax.files import table
from commtax.runs.calibrate import robust_fit
from commtax.runs.calibrate.measurements import (
    LEAST_SIZES,
    ConstantChange,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    TimedCollective,
    TooFewError,
    Wish,
    check_row,
    check_sizes,
    distinct,
    expected_seconds,
)
from commtax.runs.calibrate.robust_fit import HUBER, MOST_LEFT_OUT, NORMAL, TUKEY, RobustFit
from commtax.spec import Algorithm, Cluster, NetworkCurve, Path, Profile
from commtax.statement import Refusal
from commtax.units import format_bytes, plural
from commtax.verbs.expecting import expect

ROOT_SIZES = 8  # sizes from which a third constant of the size can be told from two
LEAST_SWITCH = 4096  # no library changes its algorithm for tensors smaller than this
CLEARLY = 10.0  # a criterion lower by this is strong evidence
BETTER = 0.8  # … and the median residual must shrink to this
CAP, NOISE = 0.5, 1e-3  # residuals of a single row count up to this, and no form is closer than that
TOO_FAST = 1.3  # times the link's rate: more than a path that counts its own bytes has
PRIOR = 1.0  # what nobody measured is known to a factor of e, one standard deviation
ASKED = tuple(float(2**x) for x in range(10, 31, 2))  # sizes that a further measurement may have
NO_HOPS = ("send-recv", "broadcast")


Rows = Sequence[TimedCollective]


@dataclass(frozen=True, slots=True)
class Form:
    """One linear form: its algorithm, and the constants its columns stand for."""

    algorithm: Algorithm
    constants: tuple[str, ...]  # launch_s, hop_s, byte_s, sqrt_s; byte_s@N: of groups of N

    def columns(self, op: str, nbytes: Array, ranks: Array) -> Array:
        sent = ring_factor(op, ranks) * nbytes
        if self.algorithm == "in-switch" and op == "all-reduce":
            sent = nbytes * (1 + 1 / ranks)
        columns = {"launch_s": np.ones(len(nbytes)), "hop_s": ranks - 1.0, "byte_s": sent, "sqrt_s": np.sqrt(sent)}
        worlds = {c: sent * (ranks == int(c.partition("@")[2])) for c in self.constants if "@" in c}
        return np.stack([(columns | worlds)[c] for c in self.constants], axis=1)

    def path(self, op: str, values: Array, name: str) -> Path:
        """Return the path record that prices the fitted constants."""
        by_name = dict(zip(self.constants, (float(v) for v in values), strict=True))
        slow = {int(c.partition("@")[2]): v for c, v in by_name.items() if "@" in c}
        first = slow[min(slow)] if slow else by_name["byte_s"]
        contention = tuple((world, max(v / first, 1e-6)) for world, v in sorted(slow.items())) if first else ()
        launch_s, hop_s, sqrt_s = (by_name.get(c, 0.0) for c in ("launch_s", "hop_s", "sqrt_s"))
        plain = Path(op, self.algorithm, 1 / max(first, 1e-15), launch_s, hop_s, sqrt_s=sqrt_s, name=name)
        return replace(plain, contention=contention)


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """One or two forms (below and above ``limits`` of each group size) with their constants."""

    pieces: tuple[tuple[Form, RobustFit], ...]
    residuals: Array
    limits: tuple[tuple[int, float], ...] = ()

    @property
    def constants(self) -> int:
        return sum(len(form.constants) for form, _ in self.pieces) + bool(self.limits)

    def score(self, rows: int) -> float:
        """Return Schwarz' criterion with capped residuals, lower is better: each constant has to earn ln(rows)."""
        capped = np.minimum(np.abs(self.residuals), CAP)
        return float(rows * np.log(np.mean(capped**2) + NOISE**2) + self.constants * np.log(rows))


def fit_inside(rows: MeasurementFiles, place: MeasuredMachine, profile: Profile) -> Step:
    """Fit collectives of groups inside one fast domain, by library and operation."""
    groups: dict[tuple[str, str], list[TimedCollective]] = {}
    for row in rows.collectives:
        if row.ranks > place.cluster.num_gpus:
            raise Refusal(f"'{row.label}': {place.cluster.key} has {place.cluster.num_gpus} GPUs")
        check_row(row, place.cluster)
        if row.ranks <= place.cluster.domain and not (place.cluster.bridge and row.ranks == 2):
            groups.setdefault((row.library, row.op), []).append(row)
    libraries: dict[str, tuple[Path, ...]] = {}
    parts: dict[tuple[str, str], ProfilePart] = {}
    refused = _pairs(rows, place.cluster)
    for (library, op), members in groups.items():
        try:
            paths, parts[library, op] = _fit_op(distinct(members), place)
        except TooFewError as why:
            refused.append(str(why))
        else:
            libraries[library] = (*libraries.get(library, ()), *paths)
    for library, paths in libraries.items():
        if (library, "all-reduce") not in parts:
            last = library, paths[-1].op
            # Tensor parallelism is made of all-reduces: without a measured one, the catalogue's range stays.
            cluster = place.cluster.without_pairs
            spread = float(expect("all-reduce", cluster, nbytes=65536.0, ranks=min(2, cluster.domain), library=library).spread)
            what = f"{library} all-reduce, 1 KiB to 1 GiB: not measured, and the catalogue's range is ±{spread:.0%}"
            parts[last] = parts[last].with_remarks(wishes=[Wish(what, spread)])
    links = {"intra": place.cluster.intra.key} if libraries else {}
    named = sorted(libraries, key=lambda name: (name != place.library, name))  # whatever file came first
    by_op = {name: tuple(sorted(libraries[name], key=lambda p: p.op)) for name in named}
    kept = {name: paths for name, paths in profile.libraries.items() if name not in by_op}
    return replace(profile, libraries={**by_op, **kept}, links={**profile.links, **links}), list(parts.values()), refused


def _pairs(rows: MeasurementFiles, cluster: Cluster) -> list[str]:
    """Explain why rows of two ranks are left out where bridges join pairs: a profile describes one inside link, not theirs."""
    count = sum(row.ranks == 2 for row in rows.collectives)
    if not count or not cluster.bridge:
        return []
    reason = f"{count} rows of 2 ranks ran over {cluster.bridge.key}, and others run over {cluster.intra.key}"
    return [f"{reason}: --cluster 2x{cluster.chip.key} makes a profile of them"]


def _fit_op(rows: Rows, place: MeasuredMachine) -> tuple[tuple[Path, ...], ProfilePart]:
    """Fit the paths of one collective of one library inside a host."""
    op, name = rows[0].op, f"{rows[0].library} {rows[0].op}"
    nbytes, ranks, times = (np.array([getattr(r, key) for r in rows], float) for key in ("nbytes", "ranks", "seconds"))
    worlds = sorted({int(n) for n in ranks})
    where = ", below and above the size where bytes take as long as latency"
    check_sizes(f"{name} over {' and '.join(map(str, worlds))} ranks", nbytes.tolist(), where)
    best = _best(op, nbytes, ranks, times)
    spread = robust_fit.half_width(best.residuals, best.constants)
    paths = tuple(replace(p, ranks=(worlds[0], worlds[-1]), spread=spread) for p in _paths(best, op, rows[0].library))
    latency, wire = path_parts(paths[0], float(nbytes.min()), worlds[-1])
    late, moved = path_parts(paths[-1], float(nbytes.max()), worlds[-1])
    crossing = float(latency) * paths[-1].bandwidth_Bps / float(ring_factor(paths[0].op, worlds[-1]))
    if latency < wire:
        raise TooFewError(f"{name}: no size is mostly latency; measure below {format_bytes(max(8.0, nbytes.min() / 16))} as well")
    if moved < late:
        wanted = format_bytes(2.0 ** np.ceil(np.log2(4 * max(crossing, nbytes.max()))))
        raise TooFewError(f"{name}: no size is mostly bytes; measure up to {wanted} as well")
    link = place.cluster.intra
    for path in paths:
        try:
            check_path(path, link, f"{path.name} {path.op}")
        except ValueError as error:
            ratio = f"{fastest_Bps(path) / link.bandwidth_Bps:,.0f} times what {link.key} can carry"
            raise Refusal(f"{error}; {ratio}: these times are not of it") from None
    before = np.log(times / expected_seconds(rows, place, None))
    after = np.log(times / expected_seconds(rows, place, Profile(place.name, libraries={rows[0].library: paths})))
    changes = _changes(paths, op, rows[0].library, place)
    part = ProfilePart.of(name, [r.label for r in rows], before, after, spread, changes)
    notes, wishes = _notes(best, paths, worlds, place), _wishes(best, op, rows[0].library, worlds, place)
    return paths, part.with_remarks(notes, wishes)


def _best(op: str, nbytes: Array, ranks: Array, times: Array) -> CollectiveFit:
    """Return the form with the fewest constants that the rows support, in one piece or two."""
    rows = len(set(zip(nbytes.tolist(), ranks.tolist(), strict=True)))
    single = _cheapest(op, nbytes, ranks, times)
    double = min(_doubles(op, nbytes, ranks, times), key=lambda f: f.score(rows), default=single)
    clear = double.score(rows) < single.score(rows) - CLEARLY
    closer = np.median(np.abs(double.residuals)) < BETTER * np.median(np.abs(single.residuals))
    return double if clear and closer else single


def _cheapest(op: str, nbytes: Array, ranks: Array, times: Array) -> CollectiveFit:
    """Return the single form that describes these rows with the fewest constants."""
    pieces = ((form, robust_fit.linear(form.columns(op, nbytes, ranks), times)) for form in _forms(op, nbytes, ranks))
    return min((CollectiveFit((piece,), piece[1].residuals) for piece in pieces), key=lambda f: f.score(len(times)))


def _forms(op: str, nbytes: Array, ranks: Array) -> Iterator[Form]:
    """Yield the forms that these sizes and groups can tell apart."""
    worlds = sorted({int(n) for n in ranks})
    hop = ("hop_s",) if len(worlds) > 1 and op not in NO_HOPS else ()
    yield Form("ring", ("launch_s", *hop, "byte_s"))
    if len(np.unique(nbytes)) >= ROOT_SIZES:
        yield Form("ring", ("launch_s", *hop, "byte_s", "sqrt_s"))
    if len(worlds) > 1 and op == "all-reduce":
        yield Form("in-switch", ("launch_s", "byte_s"))
    if len(worlds) > 1 and all(len(np.unique(nbytes[ranks == n])) >= LEAST_SIZES for n in worlds):
        yield Form("ring", ("launch_s", *hop, *(f"byte_s@{n}" for n in worlds)))


def _doubles(op: str, nbytes: Array, ranks: Array, times: Array) -> Iterator[CollectiveFit]:
    """Yield pairs of forms below and above a size, which is the same for all groups or grows with them."""
    sizes, worlds = np.unique(nbytes), sorted({int(n) for n in ranks})
    grows: tuple[float, ...] = (0.0, 1.0) if len(worlds) > 1 else (0.0,)
    for limit, grow in product(sizes[(LEAST_SIZES - 1) : -LEAST_SIZES], grows):
        if limit < LEAST_SWITCH:
            continue
        most = limit * (ranks / worlds[0]) ** grow
        low = nbytes <= most
        if min(len(np.unique(nbytes[part])) for part in (low, ~low)) < LEAST_SIZES:
            continue
        chosen = [_cheapest(op, nbytes[part], ranks[part], times[part]) for part in (low, ~low)]
        residuals = np.empty(len(times))
        residuals[low], residuals[~low] = chosen[0].residuals, chosen[1].residuals
        limits = tuple((n, float(limit * (n / worlds[0]) ** grow)) for n in worlds)
        yield CollectiveFit(chosen[0].pieces + chosen[1].pieces, residuals, limits)


def _paths(fit: CollectiveFit, op: str, library: str) -> tuple[Path, ...]:
    paths = tuple(form.path(op, fitted.values, f"{library} {form.algorithm}") for form, fitted in fit.pieces)
    return (replace(paths[0], max_bytes=fit.limits), replace(paths[1], turn=1)) if fit.limits else paths


def _changes(paths: tuple[Path, ...], op: str, library: str, place: MeasuredMachine) -> Iterator[ConstantChange]:
    """Yield each constant beside the catalogue's, from a path of the same algorithm where there is one."""
    usual = catalog.fabric(library, place.cluster).paths[op]
    for index, path in enumerate(paths):
        old = next((p for p in usual if p.algorithm == path.algorithm), None)
        where = "" if len(paths) == 1 else f", up to {format_bytes(path.max_bytes[0][1])}" if index == 0 else ", above"
        for key, unit in (("launch_s", "s"), ("hop_s", "s"), ("bandwidth_Bps", "B/s"), ("sqrt_s", "s/√B")):
            value, was = getattr(path, key), getattr(old, key) if old else None
            if value or was:
                yield ConstantChange(f"{path.algorithm} {key}{where}", was, value, unit)
        for world, slower in path.contention[1:]:
            yield ConstantChange(f"{path.algorithm} contention of {world} ranks{where}", None, slower)


def _notes(fit: CollectiveFit, paths: tuple[Path, ...], worlds: list[int], place: MeasuredMachine) -> Iterator[str]:
    if len(worlds) == 1 and paths[0].op not in NO_HOPS:
        yield f"one group size, {worlds[0]} ranks: all latency is in launch_s, and other groups are assumed"
    if fit.limits:
        yield f"another algorithm takes over above {', '.join(f'{format_bytes(b)} ({n} ranks)' for n, b in fit.limits)}"
    if max(fastest_Bps(p) for p in paths) > TOO_FAST * place.cluster.intra.bandwidth_Bps:
        yield f"faster than {place.cluster.intra.key}: is the cluster, --intra or the collective another one?"


def _wishes(fit: CollectiveFit, op: str, library: str, worlds: list[int], place: MeasuredMachine) -> Iterator[Wish]:
    """Yield the range that the constants' covariance leaves at sizes and groups that could be measured."""
    least = 4 if place.cluster.bridge else 2  # a bridged pair has a link of its own
    groups = sorted({*worlds, *(n for n in (2, 4, 8, 16, 32, 64) if least <= n <= place.cluster.domain)})
    for index, (form, fitted) in enumerate(fit.pieces):
        columns, values, information = _with_hop(form, fitted, op, worlds)
        # How large a constant may be: itself, or where it is 0 a share of the latency (hops) or of the bytes (roots).
        by_name = dict(zip(form.constants, fitted.values, strict=True))
        latency = max(by_name.get("launch_s", 0.0) + by_name.get("hop_s", 0.0) * (worlds[-1] - 1), 1e-7)
        byte = max(chain((v for c, v in by_name.items() if c.startswith("byte_s")), (1e-15,)))
        usual = {"launch_s": latency, "hop_s": latency / worlds[-1], "sqrt_s": np.sqrt(latency * byte)}
        typical_sizes = np.array([max(by_name.get(c, 0.0), usual.get(c, byte) * 0.5) for c in columns.constants])
        spread = robust_fit.covariance(information, PRIOR * typical_sizes)
        for size, n in product(ASKED, groups):
            if fit.limits and (size <= np.interp(n, *np.array(fit.limits).T)) != (index == 0):
                continue
            row = columns.columns(op, np.array([size]), np.array([float(n)]))[0]
            slope = row / max(float(row @ values), 1e-30)
            where = f"{library} {op} of {format_bytes(size)} over {n} ranks"
            yield Wish.at(where, slope @ spread @ slope + fitted.sigma**2)


def _with_hop(form: Form, fitted: RobustFit, op: str, worlds: list[int]) -> tuple[Form, Array, Array]:
    """Add a hop constant where all rows have one group size, which leaves latency divided between both in an unknown way."""
    if "hop_s" in form.constants or op in NO_HOPS or form.algorithm != "ring" or "launch_s" not in form.constants:
        return form, fitted.values, fitted.information
    wide = Form(form.algorithm, (*form.constants, "hop_s"))
    size = len(form.constants)
    mix = np.vstack([np.eye(size), (worlds[0] - 1.0) * np.eye(size)[form.constants.index("launch_s")]])
    return wide, np.append(fitted.values, 0.0), mix @ fitted.information @ mix.T


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

Times = Callable[[Array, Rows], Array]  # seconds of rows, by constants alone


@dataclass(frozen=True, slots=True)
class NetworkPosterior:
    """The posterior of the network's constants as logarithms, with all that a prediction elsewhere needs."""

    times: Times
    rows: tuple[TimedCollective, ...]
    logs: Array
    residuals: Array  # ln(measured / what the constants say)
    weights: Array
    scale: float  # how many times as far as the prior says rows lie from each other
    deviation: float  # of times from what the constants say
    noise: float  # … and of a single timing
    informed: Array  # which constants the rows tell
    evidence: float  # logarithm of how likely each row is by all others, and this noise

    @property
    def values(self) -> Array:
        return np.asarray(np.exp(self.logs))

    def curve(self, others: Rows) -> tuple[Array, Array]:
        """Return the logarithms of other rows' times over the constants' prediction, and deviations including timing noise."""
        noise = np.diag(self.noise**2 / self.weights)
        near, inside = _alike(others, self.rows, self.deviation), _alike(self.rows, self.rows, self.deviation)
        mean = near @ np.linalg.solve(inside + noise, self.residuals)
        here, there = (_slopes(self.times, self.logs, some) * DEVIATIONS for some in (self.rows, others))
        shared = near + there @ here.T
        explained = np.linalg.solve(inside + here @ here.T + noise, shared.T)
        free = self.deviation**2 + np.sum(there**2, axis=1) - np.sum(shared.T * explained, axis=0)
        free += self._beyond(others) * 2 / CURVE["octaves"] * (CURVE["deviation"] ** 2 - self.deviation**2)
        return mean, self.scale * np.sqrt(np.maximum(free, 0.0) + self.noise**2)

    def _beyond(self, others: Rows) -> Array:
        """Return octaves beyond the measured sizes, where a good fit says little about how the curve goes on."""
        seen, sizes = (np.log2([row.nbytes for row in rows]) for rows in (self.rows, others))
        return np.asarray(np.maximum(0.0, np.maximum(seen.min() - sizes, sizes - seen.max())))


def fit(rows: Rows, times: Times, usual: Array) -> NetworkPosterior:
    """Find the deviations that make each row likeliest given all others: of the form first, then of single timings."""
    posterior = _fit_informed(rows, times, usual, CURVE["deviation"], CURVE["noise"])
    if len(rows) < FEW:
        return posterior
    for share in CLOSER:
        closer = _fit_informed(rows, times, usual, share * CURVE["deviation"], CURVE["noise"], posterior)
        posterior = max(posterior, closer, key=_evidence)
    for more in NOISIER:
        noisier = _fit_informed(rows, times, usual, posterior.deviation, more * CURVE["noise"], posterior)
        posterior = max(posterior, noisier, key=_evidence)
    return posterior


_evidence = attrgetter("evidence")


def _fit_informed(
    rows: Rows, times: Times, usual: Array, deviation: float, noise: float, near: NetworkPosterior | None = None
) -> NetworkPosterior:
    """Fit all constants from ``near`` on, leaving those that the rows do not inform at the catalogue's values."""
    informed, start = np.ones(len(usual), bool), near.logs if near else None
    while True:
        posterior = _fit_some(rows, times, usual, informed, deviation, noise, start)
        if np.all(posterior.informed == informed) or not informed.any():
            return posterior
        informed, start = informed & posterior.informed, posterior.logs


def _fit_some(
    rows: Rows, times: Times, usual: Array, free: Array, deviation: float, noise: float, start: Array | None
) -> NetworkPosterior:
    """Fit the ``free`` constants by damped Gauss-Newton steps, with new weights after each."""
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
    informed = free & (np.sqrt(np.diag(np.linalg.inv(normal))) <= TOLD["share"] * DEVIATIONS)
    evidence = -float(np.sum(np.log(alone) + np.minimum(far**2, UNLIKELIEST**2) / 2))
    evidence -= CURVE["sure"] * float(np.log(CURVE["deviation"] / deviation) ** 2 + np.log(noise / CURVE["noise"]) ** 2)
    return NetworkPosterior(times, tuple(rows), logs, rest, weights, _scale(far), deviation, noise, informed, evidence)


def _alike(some: Rows, others: Rows, deviation: float) -> Array:
    """Return the curve's covariance between rows of one collective, which decays with each doubling of size or ranks."""
    one, two = (np.log2([(row.nbytes, row.ranks) for row in rows]) for rows in (some, others))
    apart = np.abs(one[:, None] - two).sum(axis=2)
    same = np.array([[a.op == b.op for b in others] for a in some])
    return np.asarray(deviation**2 * np.exp(-apart / CURVE["octaves"]) * same)


def _slopes(times: Times, logs: Array, rows: Rows) -> Array:
    """Return d ln(seconds) / d ln(constant)."""
    return robust_fit.log_slopes(lambda values: times(values, rows), logs, STEP)


def _surprise(covariance: Array, variances: Array, left: Array, noise: float) -> tuple[Array, Array]:
    """Return how many deviations each row lies from its prediction by all others, and that deviation."""
    inverse = np.linalg.inv(covariance + np.diag(variances))
    alone = 1 / np.diag(inverse)
    deviation = np.sqrt(np.maximum(alone - variances, 0.0) + noise**2)
    return np.asarray((inverse @ left) * alone / deviation), np.asarray(deviation)


def _weigh(far: Array, last: bool) -> Array:
    """Return Huber's weights, then Tukey's, relative to the fabric's own scatter where its rows scatter more than others'."""
    if len(far) < FEW:
        return np.ones(len(far))
    distance = np.abs(far) / max(1.0, NORMAL * float(np.median(np.abs(far))))
    tukey = np.clip(1 - (distance / TUKEY) ** 2, 0, None) ** 2
    if last and np.mean(tukey == 0) <= MOST_LEFT_OUT:
        return np.asarray(np.maximum(tukey, LEAST_WEIGHT))
    return np.asarray(np.minimum(1.0, HUBER / np.maximum(distance, HUBER)))


def _scale(far: Array) -> float:
    """Return this fabric's deviations over the prior's, which counts as some rows, with outliers capped."""
    if len(far) < FEW:
        return 1.0
    rows = CURVE["sure_rows"]
    return float(np.sqrt((rows + np.sum(np.minimum(far**2, FARTHEST**2))) / (rows + len(far))))


KNOTS = tuple(float(4**x) for x in range(1, 19))  # sizes at which a curve stands beside those that were measured
APART = 0.25  # octaves between two sizes of a curve, at least
CURVE_SIZES = 4  # … that tell the form of a curve
NETWORK_ASKED = tuple(float(2**x) for x in range(10, 34, 2))


def fit_network(files: MeasurementFiles, place: MeasuredMachine, profile: Profile) -> Step:
    """Fit the constants across hosts and the curve over them, on top of what ``profile`` holds inside hosts."""
    every = [r for r in files.collectives if r.ranks > place.cluster.domain]
    if not every:
        return profile, [], []
    libraries = [r.library for r in every]
    library = max(sorted(set(libraries)), key=libraries.count)
    rows = distinct(r for r in every if r.library == library)
    usual = expect(rows[0].op, place.cluster, nbytes=1.0, ranks=rows[0].ranks, library=library).fabric.network
    before = np.array([getattr(usual, name) for name in CONSTANTS])
    posterior = fit(rows, _remembered_times(place, profile), before)
    ranks = [r.ranks for r in posterior.rows]
    values = np.where(posterior.informed, posterior.values, before).tolist()
    constants = dict(zip(CONSTANTS, values, strict=True))
    width = min(robust_fit.half_width(posterior.residuals, len(CONSTANTS)), physics.NETWORK["spread"].high)
    constants |= {"spread": width, "least_ranks": min(ranks), "most_ranks": max(ranks)}
    curves = tuple(_curve(posterior, op, place.cluster.domain) for op in sorted({r.op for r in posterior.rows}))
    fitted = replace(profile, network=constants, curves=curves, links={**profile.links, "inter": place.cluster.inter.key})
    times = np.array([r.seconds for r in rows])
    then, now = (np.log(times / expected_seconds(rows, place, one)) for one in (None, fitted))
    spread = robust_fit.width(float(np.median(posterior.curve(rows)[1])))
    named = zip(CONSTANTS, before.tolist(), posterior.informed.tolist(), strict=True)
    changes = (ConstantChange(f"network {name}", was, fitted.network[name]) for name, was, tells in named if tells)
    part = ProfilePart.of(f"{library} across hosts", [r.label for r in rows], then, now, spread, changes)
    others = sorted(set(libraries) - {library})
    refused = [f"across hosts: rows of {one} are left out; a profile has one library there, {library}" for one in others]
    return fitted, [part.with_remarks(_network_notes(rows, place, posterior), _network_wishes(place, posterior, fitted))], refused


def _remembered_times(place: MeasuredMachine, profile: Profile) -> Times:
    """Return a memoised function from constants to the seconds of rows, since fits and curves repeat questions."""

    @cache
    def seconds(values: tuple[float, ...], rows: tuple[TimedCollective, ...]) -> Array:
        return expected_seconds(rows, place, replace(profile, network=dict(zip(CONSTANTS, values, strict=True))))

    return lambda values, rows: seconds(tuple(values.tolist()), tuple(rows))


def _curve(posterior: NetworkPosterior, op: str, domain: int) -> NetworkCurve:
    """Return one collective's time over the constants' prediction, at the measured sizes and some around them."""
    mine = [r for r in posterior.rows if r.op == op]
    # Sizes that were measured, of those that nearly coincide one; and powers of four where none is near.
    kept: list[float] = []
    for size in sorted({r.nbytes for r in mine}):
        if not kept or np.log2(size / kept[-1]) >= APART:
            kept.append(size)
    sizes = sorted([*kept, *(size for size in KNOTS if min(abs(np.log2(size / one)) for one in kept) > 1)])
    groups = sorted({r.ranks for r in mine})
    wanted = [replace(mine[0], ranks=ranks, nbytes=size) for ranks in groups for size in sizes]
    mean, sigma = (np.round(x, 5).reshape(len(groups), -1) for x in posterior.curve(wanted))
    drift, grown = (deviation * float(np.sqrt(2 / CURVE["octaves"])) for deviation in (posterior.deviation, CURVE["deviation"]))
    factor, spread = tuple(map(tuple, np.round(np.exp(mean), 5).tolist())), tuple(map(tuple, sigma.tolist()))
    drift, grown = round(posterior.scale * drift, 5), round(max(1.0, posterior.scale) * grown, 5)
    return NetworkCurve(op, tuple(groups), tuple(sizes), factor, spread, drift, grown, CURVE["reshaped"], domain)


def _network_notes(rows: Rows, place: MeasuredMachine, posterior: NetworkPosterior) -> Iterator[str]:
    hosts = sorted({-(-r.ranks // place.cluster.domain) for r in rows})
    yield f"measured over {', '.join(map(str, hosts))} hosts: other numbers of hosts have a wider range"
    untold = [name for name, yes in zip(CONSTANTS, posterior.informed, strict=True) if not yes]
    if untold:
        yield f"{', '.join(untold)}: these sizes do not tell {'it' if len(untold) == 1 else 'them'}, the catalogue's stays"
    sizes = len({r.nbytes for r in rows})
    if sizes < CURVE_SIZES:
        yield f"{plural(sizes, 'size')}: others rest on the catalogue's constants; measure from 1 KiB to 1 GiB"


def _network_wishes(place: MeasuredMachine, posterior: NetworkPosterior, profile: Profile) -> Iterator[Wish]:
    """Yield the range left at other sizes and numbers of hosts."""
    row, domain = posterior.rows[0], place.cluster.domain
    doubled = {domain * 2**k for k in range(1, 6) if domain * 2**k <= place.cluster.num_gpus}
    for ranks in sorted(doubled | {r.ranks for r in posterior.rows}):
        sizes = np.array(NETWORK_ASKED)
        priced = expect(row.op, place.cluster, nbytes=sizes, ranks=ranks, library=row.library, profile=profile)
        for size, spread in zip(NETWORK_ASKED, np.broadcast_to(priced.spread, sizes.shape).tolist(), strict=True):
            where = f"{row.library} {row.op} of {format_bytes(size)} over {ranks} ranks"
            yield Wish.at(where, robust_fit.sigma_of(spread) ** 2)
