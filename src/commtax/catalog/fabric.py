"""Constants of collectives for one cluster: a library's paths as measured on its chips and links, else its kin's, or assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, fields
from functools import lru_cache
from types import MappingProxyType

from commtax.catalog.hardware import link as link_of
from commtax.catalog.loader import Table, find, is_same_version, nearest_version, plain_record, stems, suggest, table, version_parts
from commtax.records import dataclass, replace
from commtax.spec import Cluster, ExchangePath, Fabric, Link, Network, Path, Protocol, Spread
from commtax.statement import Note, Refusal, Source

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast")
FUSED = "all-reduce-norm"  # what a kernel does that sums over the ranks, adds the residual and norms
BY_DEFINITION, CALIBRATED = Source("by definition"), Source("calibrated")
SPREAD, ASSUMED_SPREAD = 0.15, 0.6  # half-widths where a library has no residuals: on links that were measured, and on others
MOVED = "transferred "  # what widths of pairs of library and chip begin with that were left out
LATENCIES = ("launch_s", "hop_s", "sqrt_s")
BY_WORLD = ("max_bytes", "min_bytes", "contention")  # fields of a path that are pairs of a group's size and a number
Measured = Mapping[str, tuple[Path, ...]]
_MADE: dict[tuple[object, ...], Fabric] = {}


@dataclass(frozen=True, slots=True)
class PathRow:
    """Constants of one algorithm for some collectives, as fitted on ``families`` of chips over the ``reference`` link."""

    path: Path
    families: tuple[str, ...]
    links: tuple[str, ...]  # kinds of links that they serve
    reference: str
    ops: tuple[str, ...]
    measured_on: tuple[str, ...] = ()  # chips; (): all of the families
    version: str = ""  # of the library; "": it does not say
    transferred: bool = False  # from another collective of the same library, or the same one on a sister chip
    passes: float = 0.0  # times that a rank reads or writes the tensor in its own memory beside what travels

    @property
    def link(self) -> Link:
        return link_of(self.reference)

    def of_chip(self, chip: str) -> bool:
        return not self.measured_on or chip in self.measured_on

    def measured_with(self, cluster: Cluster) -> bool:
        """Return whether it was measured on this chip, or its family, with this link."""
        chip = cluster.chip
        return chip.family in self.families and self.of_chip(chip.key) and self.reference == cluster.intra.key


@dataclass(frozen=True, slots=True)
class Hosts:
    """How much slower bytes move in hosts that were not measured, by group size, on links of a kind up to a rate."""

    kind: str
    contention: tuple[tuple[int, float], ...]
    most_Bps: float = math.inf


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A published table that the constants were fitted on, half of its sizes."""

    table: str
    systems: tuple[str, ...]
    versions: tuple[str, ...]
    ops: tuple[str, ...]
    every: bool = False  # … or all of them


@dataclass(frozen=True, slots=True)
class Library:
    """A file of ``libraries``, ``exchanges`` or ``fusions``."""

    key: str
    name: str
    version: str
    aliases: tuple[str, ...] = ()
    note: str = ""
    fallback: str = ""  # the library that does what this one does not
    alone: bool = False  # its kernels can be asked for by themselves, whatever sizes an engine leaves to others
    leaves_hosts: bool = False  # its own kernels serve the GPUs of a whole fast domain, not of one host only
    elsewhere: tuple[str, ...] = ()  # chips of measured families in hosts that it was not measured on
    kin: Mapping[str, str] = field(default_factory=dict)  # whose constants serve a generation, or a kind of link, or tell waits
    ops: tuple[str, ...] = OPS
    launch_s: float = 10e-6  # of a ring that nobody measured …
    efficiency: float = 0.8  # … and its share of the link's rate
    network: Network = field(default_factory=Network)
    networks: Mapping[str, Network] = field(default_factory=dict)  # … of generations that cross hosts otherwise
    eager_floor_s: Mapping[str, float] = field(default_factory=dict)  # least times of a collective that is launched from Python
    busy_s: float = 0.0  # as in ``Fabric``
    busy_Bps: float = math.inf
    kept_sms: int = 0
    copying_sms: float = 0.0  # of an exchange: multiprocessors that copy; 0: one for each expert, as far as there are so many
    path: tuple[PathRow, ...] = ()
    hosts: tuple[Hosts, ...] = ()
    spread: tuple[Spread, ...] = ()
    fitted: tuple[FittedTable, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def chain(self) -> tuple[Library, ...]:
        """Itself, and those that it falls back on."""
        return (self, *(library(self.fallback).chain if self.fallback else ()))

    def rows(self, family: str, kind: str, version: str = "") -> tuple[PathRow, ...]:
        """Return what was measured on this kind of link with this generation, else its kin: the nearest version, or the newest."""
        for who in (family, self.kin.get(family), self.kin.get(kind)):
            if rows := tuple(r for r in self.path if who in r.families and kind in r.links):
                versions = {r.version for r in rows if r.version}
                wanted = nearest_version(version or max(versions, key=version_parts), versions) if versions else ""
                return tuple(r for r in rows if r.version in ("", wanted))
        return ()


@lru_cache(maxsize=64)
def library(name: str) -> Library:
    """Return a library by key or alias, whatever version is named behind it."""
    if key := find("libraries", name.partition("@")[0]):
        return read_library("libraries", key)
    keys = stems("libraries")
    raise Refusal(f"unknown library '{name}'{suggest(name, keys)} (one of {', '.join(keys)})", "library")


@lru_cache(maxsize=64)
def read_library(kind: str, key: str) -> Library:
    where, facts = f"{kind}/{key}", dict(table(kind, key))
    facts["path"] = [_path_row(row, f"{where}.path") for row in facts.get("path", ())]
    facts["hosts"] = [{**row, "contention": _by_world(row["contention"])} for row in facts.get("hosts", ())]
    for name, cls in (("spread", Spread), ("fitted", FittedTable), ("hosts", Hosts)):
        facts[name] = [plain_record(cls, row, f"{where}.{name}") for row in facts.get(name, ())]
    facts["network"] = _network(facts.get("network", {}), f"{where}.network")
    facts["networks"] = {who: _network(one, f"{where}.networks.{who}") for who, one in facts.get("networks", {}).items()}
    return plain_record(Library, facts, where)


def _network(row: Table, where: str) -> Network:
    facts = {**row, "protocols": [plain_record(Protocol, one, f"{where}.protocols") for one in row.get("protocols", ())]}
    if kind := facts.pop("kind", ""):
        facts["label"] = Source(kind, facts["label"], facts["label"])
    return plain_record(Network, facts, where)


def _path_row(row: Table, where: str) -> PathRow:
    """Return what a row serves, and its constants as a path of no collective yet, with sizes by group as pairs."""
    served = {f.name for f in fields(PathRow)}
    facts = {"op": "", **{key: value for key, value in row.items() if key not in served}}
    facts |= {key: _by_world(facts[key]) for key in BY_WORLD if key in facts}
    facts["source"] = Source("assumed" if row.get("transferred") else "measured", facts["source"], facts["source"])
    kind = ExchangePath if ExchangePath.__annotations__.keys() & facts.keys() else Path
    return plain_record(PathRow, {"path": plain_record(kind, facts, where), **{k: row[k] for k in served if k in row}}, where)


def _by_world(numbers: Mapping[str, float]) -> list[tuple[int, float]]:
    return sorted((int(n), float(x)) for n, x in numbers.items())


def fabric(name: str, cluster: Cluster, measured: Measured = MappingProxyType({}), behind: str = "") -> Fabric:
    """Return a library's paths on a cluster's chips and inside link, or a profile's that were ``measured``, but on bridged pairs.
    ``behind`` is an engine's library, which takes over what kernels of one kind leave to it."""
    if cluster.bridge:
        return with_pairs(fabric(name, cluster.without_pairs, measured, behind), fabric(name, cluster.as_pairs, behind=behind))
    version, wanted = name.partition("@")[2], library(name)
    if behind and wanted.alone and library(behind).fallback:
        wanted = replace(wanted, fallback=library(behind).key)
    return _make(wanted, cluster, measured, version) if measured else _made(wanted, cluster, version)


def _made(wanted: Library, cluster: Cluster, version: str = "") -> Fabric:
    links = tuple((x.key, x.kind, x.switched, x.mesh, x.bandwidth_Bps, x.latency_s) for x in (cluster.intra, cluster.inter))
    chip = (cluster.chip.key, cluster.chip.family, cluster.chip.memory_Bps)
    key = (wanted.key, wanted.ops, version, wanted.fallback, *chip, cluster.gpus_per_host, cluster.domain, *links)
    if key not in _MADE:
        _MADE[key] = _make(wanted, cluster, version=version)
    return _MADE[key]


def source_title(name: str, source: str) -> str:
    """Return what a source of a library's or exchange's constants is, or "" where it has none of that name."""
    key = name.partition("@")[0]
    apart = next((kind for kind in ("exchanges", "fusions") if key in stems(kind)), "")
    files = (read_library(apart, key),) if apart else library(key).chain
    return next((str(one.sources[source]["title"]) for one in files if source in one.sources), "")


def exchange(key: str, cluster: Cluster) -> Fabric:
    """Return the paths of kernels that carry tokens to experts and back: ``dispatch`` and ``combine``."""
    return _made(read_library("exchanges", key), cluster)


def fusion(cluster: Cluster, name: str = "") -> Fabric | None:
    """Return the paths of a kernel as ``FUSED``: the one that is named, or one measured on this very chip before its family's."""
    key, _, version = name.partition("@")
    chip, kind = cluster.chip, cluster.intra.kind
    named = (read_library("fusions", stem) for stem in stems("fusions") if key in ("", stem))
    rows = [(one, row) for one in named for row in one.path if chip.family in row.families and kind in row.links]
    matches = [(bool(row.measured_on), one) for one, row in rows if row.of_chip(chip.key)]
    return _made(max(matches, key=lambda pair: pair[0])[1], cluster, version) if matches else None


def with_pairs(host: Fabric, pairs: Fabric) -> Fabric:
    """Return a host's paths with those of the bridged pairs in it, of whose ranks every other one sends over PCIe."""

    def spared(path: Path) -> Path:
        return path if path.own else replace(path, contention=tuple((2 * n, slower) for n, slower in path.contention))

    paths, beyond = ({op: tuple(map(spared, some)) for op, some in one.items()} for one in (host.paths, host.network_paths))
    notes = [note for note in (host.note, pairs.note) if note]
    both = Note("assumed links", "; ".join(notes)) if notes else ""
    return replace(host, paths=paths, network_paths=beyond, pairs=pairs, note=both)


def _make(wanted: Library, cluster: Cluster, measured: Measured = MappingProxyType({}), version: str = "") -> Fabric:
    if wanted.key == "textbook":
        return _textbook(cluster)
    last, paths = wanted.chain[-1], _all_paths(wanted, cluster, measured, version)
    missing = [op for op in wanted.ops if not any(p.op == op for p in paths)]
    made = tuple(_bound_latencies(_plain_ring(op, cluster.intra, last), last, cluster) for op in missing)
    calibrated = "all-reduce" not in missing and any(row.measured_with(cluster) for row in last.path)
    inside = _paths(last, cluster, measured, version if last is wanted else "") + made  # without kernels that stay in a host
    chip = cluster.chip
    network, between = last.networks.get(chip.family, last.network), cluster.inter.key
    if network.links and between not in network.links:  # unmeasured networks have the constants of measured ones
        where = f"transferred from {last.key} across hosts over {', '.join(network.links)}"
        network = replace(network, label=Source("transferred", where, f"{last.key} over {between}"))
    spreads = tuple(s for one in (wanted, last) for s in _spreads(one, cluster))
    where = f"{cluster.intra.key} with {chip.key} are assumed"
    is_measured = any(p.op == "all-reduce" for one in wanted.chain for p in measured.get(one.key, ()))
    floors = wanted.eager_floor_s or last.eager_floor_s
    count = len(_paths(wanted, cluster, measured, version)) if wanted.alone else 0  # of its own kernels, which any size may use
    free = (*(replace(path, min_bytes=()) for path in paths[:count]), *paths[count:])
    return Fabric(
        name=f"{wanted.key}@{wanted.version}",
        label=_source_inside(wanted, cluster, version) if calibrated else _never_measured(wanted, cluster),
        paths={op: tuple(p for p in (*paths, *made) if p.op == op) for op in wanted.ops},
        network_paths={op: tuple(p for p in inside if p.op == op) for op in wanted.ops},
        network=replace(network, spread=_widest(spreads, "across", network.spread)),
        exchanges={key: exchange(key, cluster) for key in stems("exchanges")} if wanted.ops == OPS else {},
        kernels={op: tuple(path for path in free if path.op == op) for op in dict.fromkeys(path.op for path in free[:count])},
        fused=fusion(cluster) if wanted.ops == OPS else None,
        eager_floor_s=floors.get(chip.key, floors.get(chip.family, max(floors.values(), default=0.0))),
        busy_s=wanted.busy_s,
        busy_Bps=wanted.busy_Bps,
        kept_sms=wanted.kept_sms,
        spread=_widest(spreads, cluster.intra.kind if calibrated else "assumed", SPREAD if calibrated else ASSUMED_SPREAD),
        spreads=spreads,
        copying_sms=wanted.copying_sms,
        note="" if calibrated or is_measured else Note("assumed links", f"collectives on {where}: calibrate before you trust them"),
    )


def _never_measured(wanted: Library, cluster: Cluster) -> Source:
    chip, link = cluster.chip.key, cluster.intra
    never = f"{wanted.key} was never measured on {chip} with {link.key}"
    if same_chip := next((r for r in wanted.chain[-1].path if chip in r.measured_on and link.kind in r.links), None):
        never = f"one host of {chip} was measured ({same_chip.reference}); hosts on {link.kind} differ 2 to 8 times"
    return Source("assumed", f"assumed: {never}", f"{wanted.key} {chip} {link.key}")


def _spreads(one: Library, cluster: Cluster) -> tuple[Spread, ...]:
    """Return the widths of a library on a chip and link, or in unmeasured hosts those of pairs that were left out."""
    chip, rate = cluster.chip, cluster.intra.bandwidth_Bps
    mine = [s for s in one.spread if (not s.families or chip.family in s.families) and rate <= s.most_Bps]
    moved = tuple(replace(s, where=s.where.removeprefix(MOVED)) for s in mine if s.where.startswith(MOVED))
    usual = tuple(s for s in mine if not s.where.startswith(MOVED))
    return moved + usual if chip.key in one.elsewhere else usual


def _source_inside(wanted: Library, cluster: Cluster, version: str) -> Source:
    """Return "calibrated" for the requested version, or "transferred" from the nearest that was measured."""
    chip = cluster.chip
    versions = {r.version for r in wanted.rows(chip.family, cluster.intra.kind, version) if r.version}
    if chip.key in wanted.elsewhere:
        return Source("transferred", f"transferred from {wanted.key} on {chip.family} in other hosts", f"{wanted.key} {chip.key}")
    if not version or not versions or any(is_same_version(version, one) for one in versions):
        return CALIBRATED
    newest = max(versions, key=version_parts)
    return Source("transferred", f"transferred from {wanted.key} {newest} to {version}", f"{wanted.key} {version}")


def _all_paths(wanted: Library, cluster: Cluster, measured: Measured, version: str) -> tuple[Path, ...]:
    """Return a library's paths, then in later turns those of its fallbacks, where ``version`` is its own."""
    chained: tuple[Path, ...] = ()
    turn = 0
    for one in wanted.chain:
        paths = _paths(one, cluster, measured, version if one is wanted else "")
        if one is wanted and wanted.fallback:  # an engine's own kernels serve the GPUs of one host, or of a rack
            most = cluster.domain if wanted.leaves_hosts else cluster.gpus_per_host
            paths = tuple(replace(p, max_ranks=most) for p in paths)
        chained += tuple(replace(p, turn=p.turn + turn) for p in paths)
        turn += max((p.turn for p in paths), default=-1) + 1
    return chained


def _widest(spreads: tuple[Spread, ...], where: str, default: float) -> float:
    """Return the all-reduce's spread over all sizes, for those who do not ask by size."""
    return max((s.factor for s in spreads if s.where == where and (not s.ops or "all-reduce" in s.ops)), default=default)


def _paths(one: Library, cluster: Cluster, measured: Measured, version: str) -> tuple[Path, ...]:
    """Return a library's paths on this cluster: as measured there, else as calibrated, at the link's rate with equal latencies."""
    family, link, here = cluster.chip.family, cluster.intra, measured.get(one.key, ())
    hosts = next((h.contention for h in one.chain[-1].hosts if h.kind == link.kind and link.bandwidth_Bps <= h.most_Bps), ())
    paths, done = list(here), {path.op for path in here}
    for row in one.rows(family, link.kind, version):
        if row.path.algorithm != "in-switch" or link.switched:
            rate = row.path.bandwidth_Bps * link.bandwidth_Bps / row.link.bandwidth_Bps
            local_s = row.passes / cluster.chip.memory_Bps
            usual = row.path if row.measured_with(cluster) else replace(row.path, contention=hosts, spread=0.0, ranks=())
            made = replace(usual, bandwidth_Bps=rate, mesh=link.mesh, local_s=local_s)
            for path in (replace(made, op=op) for op in row.ops if op not in done):
                strange = family not in row.families
                paths.append(_moved_waits(_bound_latencies(path, one, cluster), row, cluster, one.kin) if strange else path)
    return tuple(paths)


def _moved_waits(path: Path, row: PathRow, cluster: Cluster, kin: Mapping[str, str]) -> Path:
    """Move an exchange's constants to another generation: what waits for other ranks goes as an all-reduce of a few bytes does.
    Hopper's exchanges follow from Blackwell's within 14 % so, and within 23 % unmoved (benchmarks/fit_exchanges.py)."""
    if not isinstance(path, ExchangePath) or "waits" not in kin:
        return path

    def smallest_s(family: str) -> float:  # of a custom all-reduce of nothing among eight over NVLink; 0: nobody measured it
        served = [r.path for r in library(kin["waits"]).path if family in r.families and "nvlink" in r.links]
        return next((one.launch_s + 7 * one.hop_s for one in served if one.algorithm == "one-shot"), 0.0)

    here, there = smallest_s(cluster.chip.family), smallest_s(row.families[0])
    waits = here / there if here and there else 1.0
    return replace(path, launch_s=path.launch_s * waits, expert_s=path.expert_s * waits, sm_Bps=path.sm_Bps / waits)


def _bound_latencies(path: Path, one: Library, cluster: Cluster) -> Path:
    """Hold latencies, which are the chip's work, to this generation's: no less on a slower link, no more on a faster one."""
    for home, link in _home(path, one, cluster.chip.family):
        bound = max if cluster.intra.bandwidth_Bps < link.bandwidth_Bps else min
        path = replace(path, **{name: bound(getattr(path, name), getattr(home, name)) for name in LATENCIES})
    return path


def _home(path: Path, one: Library, family: str) -> list[tuple[Path, Link]]:
    """Return the path's algorithm, or the plain ring, as measured with this generation or its kin, and the link of that."""
    for who in (family, *(other.kin[family] for other in one.chain if family in other.kin)):
        rows = [r for other in one.chain for r in other.path if who in r.families]
        same = [r for r in rows if path.op in r.ops]
        if same:
            return [(r.path, r.link) for r in same if r.path.algorithm == path.algorithm]
        if rows:
            return [(_plain_ring(path.op, rows[0].link, one.chain[-1]), rows[0].link)] if path.algorithm == "ring" else []
    return []


def _plain_ring(op: str, link: Link, last: Library) -> Path:
    """Return a ring that nobody measured: the library's launch, the link's latency a hop, and most of the link's rate."""
    alone = op in ("send-recv", "broadcast")
    hops = 0.0 if alone or op == "all-to-all" else 2.0 if op == "all-reduce" else 1.0
    launch_s, hop_s = last.launch_s + (link.latency_s if alone else 0.0), hops * link.latency_s
    return Path(op, "ring", last.efficiency * link.bandwidth_Bps, launch_s, hop_s, mesh=link.mesh, source=Source("assumed"))


def _textbook(cluster: Cluster) -> Fabric:
    """Return the ring formula and nothing else: every hop one link latency, every byte at the link's rate."""

    def path(op: str, link: Link) -> Path:
        hops = 2.0 if op == "all-reduce" else 1.0
        return Path(op, "ring", link.bandwidth_Bps, hop_s=hops * link.latency_s, mesh=link.mesh, source=BY_DEFINITION)

    inside, slow = ({op: (path(op, link),) for op in OPS} for link in (cluster.intra, cluster.inter))
    return Fabric("textbook", BY_DEFINITION, inside, network_paths=slow, flat=True, spread=0.0, network=Network(spread=0.0))
