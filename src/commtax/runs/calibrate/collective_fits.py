"""Paths of a library from timed collectives: latency, bandwidth, and the size where another algorithm takes over.

Every form is linear in its constants (launch, hop, seconds a byte, seconds a root of a byte), so a fit is a few least squares.
More constants are taken only where they earn it (Schwarz' criterion).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog.physics import check_path, fastest_Bps
from commtax.cost.collectives import path_parts, ring_factor
from commtax.runs.calibrate import measurements, robust_fit
from commtax.runs.calibrate.robust_fit import RobustFit
from commtax.spec import Algorithm, Cluster, Path, Profile
from commtax.statement import Refusal
from commtax.units import format_bytes
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


@dataclass(frozen=True, slots=True)
class Form:
    """One linear form: its algorithm, and the constants its columns stand for."""

    algorithm: Algorithm
    constants: tuple[str, ...]  # launch_s, hop_s, byte_s, sqrt_s; byte_s@N: of groups of N

    def columns(self, op: str, nbytes: Array, ranks: Array) -> Array:
        sent = ring_factor(op, ranks) * nbytes
        if self.algorithm == "in-switch" and op == "all-reduce":
            sent = nbytes * (1 + 1 / ranks)
        known = {"launch_s": np.ones(len(nbytes)), "hop_s": ranks - 1.0, "byte_s": sent, "sqrt_s": np.sqrt(sent)}
        worlds = {c: sent * (ranks == int(c.partition("@")[2])) for c in self.constants if "@" in c}
        return np.stack([(known | worlds)[c] for c in self.constants], axis=1)

    def path(self, op: str, values: Array, name: str) -> Path:
        """The record that prices what was fitted."""
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
        """Schwarz' criterion with capped residuals: lower is better; each constant has to earn ln(rows)."""
        capped = np.minimum(np.abs(self.residuals), CAP)
        return float(rows * np.log(np.mean(capped**2) + NOISE**2) + self.constants * np.log(rows))


def fit_inside(rows: measurements.MeasurementFiles, place: measurements.MeasuredMachine, own: Profile) -> measurements.Step:
    """Collectives of groups that stay in one fast domain, library by library and operation by operation."""
    groups: dict[tuple[str, str], list[measurements.TimedCollective]] = {}
    for row in rows.collectives:
        if row.ranks > place.cluster.num_gpus:
            raise Refusal(f"'{row.label}': {place.cluster.key} has {place.cluster.num_gpus} GPUs")
        measurements.check_row(row, place.cluster)
        if row.ranks <= place.cluster.domain and not (place.cluster.bridge and row.ranks == 2):
            groups.setdefault((row.library, row.op), []).append(row)
    libraries: dict[str, tuple[Path, ...]] = {}
    parts: dict[tuple[str, str], measurements.ProfilePart] = {}
    refused = _pairs(rows, place.cluster)
    for (library, op), members in groups.items():
        try:
            paths, parts[library, op] = _fit_op(measurements.distinct(members), place)
        except measurements.TooFewError as why:
            refused.append(str(why))
        else:
            libraries[library] = (*libraries.get(library, ()), *paths)
    for library, paths in libraries.items():
        if (library, "all-reduce") not in parts:
            last = library, paths[-1].op
            # Tensor parallelism is made of all-reduces: without a measured one, the catalogue's range stays.
            cluster = place.cluster.without_pairs
            spread = float(expect("all-reduce", cluster, nbytes=65536.0, ranks=min(2, cluster.domain), library=library).spread)
            all_reduce_wish = measurements.Wish(
                f"{library} all-reduce, 1 KiB to 1 GiB: not measured, and the catalogue's range is ±{spread:.0%}", spread
            )
            parts[last] = parts[last].with_remarks(wishes=[all_reduce_wish])
    links = {"intra": place.cluster.intra.key} if libraries else {}
    named = sorted(libraries, key=lambda name: (name != place.library, name))  # whatever file came first
    by_op = {name: tuple(sorted(libraries[name], key=lambda p: p.op)) for name in named}
    kept = {name: paths for name, paths in own.libraries.items() if name not in by_op}
    return replace(own, libraries={**by_op, **kept}, links={**own.links, **links}), list(parts.values()), refused


def _pairs(rows: measurements.MeasurementFiles, cluster: Cluster) -> list[str]:
    """Why rows of two ranks are left out where bridges join pairs: a profile tells of one inside link, and theirs is another."""
    count = sum(row.ranks == 2 for row in rows.collectives)
    if not count or not cluster.bridge:
        return []
    reason = f"{count} rows of 2 ranks ran over {cluster.bridge.key}, and others run over {cluster.intra.key}"
    return [f"{reason}: --cluster 2x{cluster.chip.key} makes a profile of them"]


def _fit_op(
    rows: Sequence[measurements.TimedCollective], place: measurements.MeasuredMachine
) -> tuple[tuple[Path, ...], measurements.ProfilePart]:
    """The paths of one collective of one library inside a host."""
    op, name = rows[0].op, f"{rows[0].library} {rows[0].op}"
    nbytes, ranks, times = (np.array([getattr(r, key) for r in rows], float) for key in ("nbytes", "ranks", "seconds"))
    worlds = sorted({int(n) for n in ranks})
    where = ", below and above the size where bytes take as long as latency"
    measurements.check_sizes(f"{name} over {' and '.join(map(str, worlds))} ranks", nbytes.tolist(), where)
    best = _best(op, nbytes, ranks, times)
    spread = robust_fit.half_width(best.residuals, best.constants)
    paths = tuple(replace(p, ranks=(worlds[0], worlds[-1]), spread=spread) for p in _paths(best, op, rows[0].library))
    _both_sides(name, paths, nbytes, worlds)
    link = place.cluster.intra
    for path in paths:
        try:
            check_path(path, link, f"{path.name} {path.op}")
        except ValueError as error:
            ratio = f"{fastest_Bps(path) / link.bandwidth_Bps:,.0f} times what {link.key} can carry"
            raise Refusal(f"{error}; {ratio}: these times are not of it") from None
    before = np.log(times / measurements.expected_seconds(rows, place, None))
    after = np.log(times / measurements.expected_seconds(rows, place, Profile(place.name, libraries={rows[0].library: paths})))
    changes = _changes(paths, op, rows[0].library, place)
    part = measurements.ProfilePart.of(name, [r.label for r in rows], before, after, spread, changes)
    notes, wishes = _notes(best, paths, worlds, place), _wishes(best, op, rows[0].library, worlds, place)
    return paths, part.with_remarks(notes, wishes)


def _both_sides(name: str, paths: tuple[Path, ...], nbytes: Array, worlds: list[int]) -> None:
    """Latency is told by sizes that are mostly latency, bandwidth by those that are mostly bytes."""
    latency, wire = path_parts(paths[0], float(nbytes.min()), worlds[-1])
    late, moved = path_parts(paths[-1], float(nbytes.max()), worlds[-1])
    crossing = float(latency) * paths[-1].bandwidth_Bps / float(ring_factor(paths[0].op, worlds[-1]))
    if latency < wire:
        raise measurements.TooFewError(
            f"{name}: no size is mostly latency; measure below {format_bytes(max(8.0, nbytes.min() / 16))} as well"
        )
    if moved < late:
        wanted = format_bytes(2.0 ** np.ceil(np.log2(4 * max(crossing, nbytes.max()))))
        raise measurements.TooFewError(f"{name}: no size is mostly bytes; measure up to {wanted} as well")


def _best(op: str, nbytes: Array, ranks: Array, times: Array) -> CollectiveFit:
    """The cheapest form that the rows support."""
    rows = len(set(zip(nbytes.tolist(), ranks.tolist(), strict=True)))
    single = _cheapest(op, nbytes, ranks, times)
    double = min(_doubles(op, nbytes, ranks, times), key=lambda f: f.score(rows), default=single)
    clear = double.score(rows) < single.score(rows) - CLEARLY
    closer = np.median(np.abs(double.residuals)) < BETTER * np.median(np.abs(single.residuals))
    return double if clear and closer else single


def _cheapest(op: str, nbytes: Array, ranks: Array, times: Array) -> CollectiveFit:
    """The one form that describes these rows with the fewest constants."""
    pieces = ((form, robust_fit.linear(form.columns(op, nbytes, ranks), times)) for form in _forms(op, nbytes, ranks))
    return min((CollectiveFit((piece,), piece[1].residuals) for piece in pieces), key=lambda f: f.score(len(times)))


def _forms(op: str, nbytes: Array, ranks: Array) -> Iterator[Form]:
    """Forms that these sizes and groups can tell apart."""
    worlds = sorted({int(n) for n in ranks})
    hop = ("hop_s",) if len(worlds) > 1 and op not in NO_HOPS else ()
    yield Form("ring", ("launch_s", *hop, "byte_s"))
    if len(np.unique(nbytes)) >= ROOT_SIZES:
        yield Form("ring", ("launch_s", *hop, "byte_s", "sqrt_s"))
    if len(worlds) > 1 and op == "all-reduce":
        yield Form("in-switch", ("launch_s", "byte_s"))
    if len(worlds) > 1 and all(len(np.unique(nbytes[ranks == n])) >= measurements.LEAST_SIZES for n in worlds):
        yield Form("ring", ("launch_s", *hop, *(f"byte_s@{n}" for n in worlds)))


def _doubles(op: str, nbytes: Array, ranks: Array, times: Array) -> Iterator[CollectiveFit]:
    """One form up to a size and another above: the size the same for all groups, or growing with them."""
    sizes, worlds = np.unique(nbytes), sorted({int(n) for n in ranks})
    grows: tuple[float, ...] = (0.0, 1.0) if len(worlds) > 1 else (0.0,)
    for limit, grow in product(sizes[(measurements.LEAST_SIZES - 1) : -measurements.LEAST_SIZES], grows):
        if limit < LEAST_SWITCH:
            continue
        most = limit * (ranks / worlds[0]) ** grow
        low = nbytes <= most
        if min(len(np.unique(nbytes[part])) for part in (low, ~low)) < measurements.LEAST_SIZES:
            continue
        chosen = [_cheapest(op, nbytes[part], ranks[part], times[part]) for part in (low, ~low)]
        residuals = np.empty(len(times))
        residuals[low], residuals[~low] = chosen[0].residuals, chosen[1].residuals
        limits = tuple((n, float(limit * (n / worlds[0]) ** grow)) for n in worlds)
        yield CollectiveFit(chosen[0].pieces + chosen[1].pieces, residuals, limits)


def _paths(fit: CollectiveFit, op: str, library: str) -> tuple[Path, ...]:
    paths = tuple(form.path(op, fitted.values, f"{library} {form.algorithm}") for form, fitted in fit.pieces)
    return (replace(paths[0], max_bytes=fit.limits), replace(paths[1], turn=1)) if fit.limits else paths


def _changes(
    paths: tuple[Path, ...], op: str, library: str, place: measurements.MeasuredMachine
) -> Iterator[measurements.ConstantChange]:
    """Each constant beside the catalogue's: of a path of the same algorithm, where it has one."""
    usual = catalog.fabric(library, place.cluster).paths[op]
    for index, path in enumerate(paths):
        old = next((p for p in usual if p.algorithm == path.algorithm), None)
        where = "" if len(paths) == 1 else f", up to {format_bytes(path.max_bytes[0][1])}" if index == 0 else ", above"
        for key, unit in (("launch_s", "s"), ("hop_s", "s"), ("bandwidth_Bps", "B/s"), ("sqrt_s", "s/√B")):
            value, was = getattr(path, key), getattr(old, key) if old else None
            if value or was:
                yield measurements.ConstantChange(f"{path.algorithm} {key}{where}", was, value, unit)
        for world, slower in path.contention[1:]:
            yield measurements.ConstantChange(f"{path.algorithm} contention of {world} ranks{where}", None, slower)


def _notes(fit: CollectiveFit, paths: tuple[Path, ...], worlds: list[int], place: measurements.MeasuredMachine) -> Iterator[str]:
    if len(worlds) == 1 and paths[0].op not in NO_HOPS:
        yield f"one group size, {worlds[0]} ranks: all latency is in launch_s, and other groups are assumed"
    if fit.limits:
        yield f"another algorithm takes over above {', '.join(f'{format_bytes(b)} ({n} ranks)' for n, b in fit.limits)}"
    if max(fastest_Bps(p) for p in paths) > TOO_FAST * place.cluster.intra.bandwidth_Bps:
        yield f"faster than {place.cluster.intra.key}: is the cluster, --intra or the collective another one?"


def _wishes(
    fit: CollectiveFit, op: str, library: str, worlds: list[int], place: measurements.MeasuredMachine
) -> Iterator[measurements.Wish]:
    """The range that the rows leave at sizes and groups that could be measured: from the constants' covariance."""
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
            yield measurements.Wish.at(where, slope @ spread @ slope + fitted.sigma**2)


def _with_hop(form: Form, fitted: RobustFit, op: str, worlds: list[int]) -> tuple[Form, Array, Array]:
    """The form with a hop where the rows had one group size only: nobody knows it, and latency is shared between both."""
    if "hop_s" in form.constants or op in NO_HOPS or form.algorithm != "ring" or "launch_s" not in form.constants:
        return form, fitted.values, fitted.information
    wide = Form(form.algorithm, (*form.constants, "hop_s"))
    size = len(form.constants)
    mix = np.vstack([np.eye(size), (worlds[0] - 1.0) * np.eye(size)[form.constants.index("launch_s")]])
    return wide, np.append(fitted.values, 0.0), mix @ fitted.information @ mix.T
