"""Constants as data: the paths of collective libraries, and the kernels of chip families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from commtax.catalog.loader import normal, stems, suggest, toml
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Link, Path, Spread
from commtax.statement import Refusal

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast")
FORMS = ("gemm", "decode", "prefill", "small", "elementwise", "step", "train")
_LIBRARY_KEYS = {
    "key",
    "name",
    "version",
    "aliases",
    "fallback",
    "kin",
    "note",
    "path",
    "eager_floor_s",
    "network",
    "sources",
    "launch_s",
    "efficiency",
    "spread",
    "fitted",
}


def library_keys() -> list[str]:
    return list(stems("libraries", ".toml"))


@lru_cache(maxsize=64)
def _library(name: str) -> Mapping[str, Any]:
    base = normal(name).partition("@")[0]
    found = next((k for k in library_keys() if base == k or base in toml("libraries", k).get("aliases", ())), None)
    if found is None:
        raise Refusal(f"unknown library '{name}'{suggest(name, library_keys())} (one of {', '.join(library_keys())})", "library")
    table = toml("libraries", found)
    unknown = set(table) - _LIBRARY_KEYS
    if unknown:
        raise Refusal(f"libraries/{found}: unknown key {sorted(unknown)[0]!r}")
    return MappingProxyType(table)


Measured = Mapping[str, tuple[Path, ...]]
_MADE: dict[tuple[object, ...], Fabric] = {}


def library_chain(name: str) -> list[str]:
    """A library and those that it falls back on, by key."""
    return [table["key"] for table in _chain(_library(name))]


def _chain(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [table, *(_chain(_library(table["fallback"])) if table.get("fallback") else ())]


def fabric(name: str, cluster: Cluster, own: Measured = MappingProxyType({})) -> Fabric:
    """The paths that a library has on a cluster's chips and inside link; what was never calibrated is assumed, aloud.

    ``own`` are a profile's paths by library: for the collectives that they tell of, they stand in for the library's. They
    were measured on the inside link; bridged pairs keep the library's.
    """
    if cluster.bridge:
        return with_pairs(fabric(name, cluster.without_pairs, own), fabric(name, cluster.as_pairs))
    if own:
        return _make(name, cluster, own)
    links = tuple((x.key, x.bandwidth_Bps, x.latency_s) for x in (cluster.intra, cluster.inter))
    key = (name, cluster.chip.key, cluster.gpus_per_host, *links)
    if key not in _MADE:
        _MADE[key] = _make(name, cluster)
    return _MADE[key]


def exchange(key: str, cluster: Cluster) -> Fabric:
    """The paths of kernels that carry tokens to experts and back: ``dispatch`` and ``combine``."""
    return _make_of(toml("exchanges", key), cluster)


def _make(name: str, cluster: Cluster, measured: Measured = MappingProxyType({})) -> Fabric:
    return _make_of(_library(name), cluster, measured)


def with_pairs(host: Fabric, pairs: Fabric) -> Fabric:
    """A host's paths with those of the bridged pairs in it; what is assumed of either is said."""
    return replace(host, pairs=pairs, note="; ".join(note for note in (host.note, pairs.note) if note))


def _make_of(table: Mapping[str, Any], cluster: Cluster, measured: Measured = MappingProxyType({})) -> Fabric:
    if table["key"] == "textbook":
        return _textbook(cluster)
    own, chain = _paths(table, cluster, measured), table
    if table.get("fallback"):  # an engine's own kernels serve the GPUs of one host
        own = tuple(replace(p, max_ranks=cluster.gpus_per_host) for p in own)
    turn = max((p.turn for p in own), default=-1) + 1
    while chain.get("fallback"):
        chain = _library(chain["fallback"])
        more = _paths(chain, cluster, measured)
        own += tuple(replace(p, turn=p.turn + turn) for p in more)
        turn += max((p.turn for p in more), default=-1) + 1
    ops = tuple(table.get("ops", OPS))
    made = tuple(_missing(op, cluster, chain) for op in ops if not any(p.op == op for p in own))
    calibrated = not any(p.op == "all-reduce" for p in made) and _measured(chain, cluster)
    own += made
    last = _paths(chain, cluster, measured) + made  # an engine's own kernels do not leave a host
    network = chain.get("network", {})
    floors = table.get("eager_floor_s") or chain.get("eager_floor_s", {})
    floor = floors.get(cluster.chip.family, max(floors.values(), default=0.0))
    spreads = _spreads((table, chain), cluster.chip.family)
    here = cluster.intra.kind if calibrated else "assumed"
    return Fabric(
        name=f"{table['key']}@{table['version']}",
        label="calibrated"
        if calibrated
        else f"assumed: {table['key']} was never measured on {cluster.chip.key} with {cluster.intra.key}",
        paths={op: tuple(p for p in own if p.op == op) for op in ops},
        network_paths={op: tuple(p for p in last if p.op == op) for op in ops},
        network_efficiency=network.get("efficiency", 0.9),
        network_norm=network.get("norm", 8.0),
        network_hops=network.get("hops", 3.0),
        network_pipelining=network.get("pipelining", 0.0),
        network_direct=network.get("direct", False),
        network_label=network.get("label", "formula and datasheet"),
        network_ranks=tuple(network.get("ranks", ())),
        exchanges={} if table.get("ops") else {key: exchange(key, cluster) for key in stems("exchanges", ".toml")},
        eager_floor_s=floor,
        spread=_widest(spreads, here, 0.15 if calibrated else 0.6),
        spread_across=_widest(spreads, "across", network.get("spread", 0.35)),
        spreads=spreads,
        note=""
        if calibrated or any(p.op == "all-reduce" for t in _chain(table) for p in measured.get(t["key"], ()))
        else f"collectives on {cluster.intra.key} with {cluster.chip.key} are assumed: calibrate before you trust them",
    )


def _spreads(tables: tuple[Mapping[str, Any], ...], family: str) -> tuple[Spread, ...]:
    """Residuals of the library itself, then of the one it falls back on."""
    rows = [r for table in tables for r in table.get("spread", ()) if not r.get("families") or family in r["families"]]
    return tuple(Spread(r["where"], tuple(r.get("ops", ())), r.get("max_bytes", math.inf), r["factor"], r["source"]) for r in rows)


def _widest(spreads: tuple[Spread, ...], where: str, default: float) -> float:
    """The all-reduce's spread over all sizes, for those who do not ask by size."""
    return max((s.factor for s in spreads if s.where == where and (not s.ops or "all-reduce" in s.ops)), default=default)


def fitted_tables(name: str) -> tuple[Mapping[str, Any], ...]:
    """The published tables that a library's constants were fitted on, half of their sizes: system, versions, collectives."""
    try:
        table = _library(name)
    except ValueError:
        return ()
    return tuple(table.get("fitted", ()))


def _measured(table: Mapping[str, Any], cluster: Cluster) -> bool:
    """Whether some of the constants were measured on this chip, or its family, with this link."""
    return any(_measured_here(row, cluster) for row in table.get("path", ()))


def _measured_here(row: Mapping[str, Any], cluster: Cluster) -> bool:
    chip = cluster.chip
    mine = chip.family in row["families"] and chip.key in row.get("measured_on", [chip.key])
    return mine and bool(row["reference"] == cluster.intra.key)


def _paths(table: Mapping[str, Any], cluster: Cluster, measured: Measured) -> tuple[Path, ...]:
    """The paths of one library on this cluster: as measured there, else as calibrated for its family and link."""
    mine = measured.get(table["key"], ())
    return (*mine, *(p for p in _usual_paths(table, cluster) if p.op not in {own.op for own in mine}))


def _usual_paths(table: Mapping[str, Any], cluster: Cluster) -> tuple[Path, ...]:
    """The paths of one library for this family of chips on this kind of link, scaled to the link's rate.

    A link of another rate than the measured one keeps the latencies, so that a faster link is never slower.
    """
    family, kind = cluster.chip.family, cluster.intra.kind
    rows = [r for r in _rows(table, family, kind) if r["algorithm"] != "in-switch" or cluster.intra.switched]
    paths = ((_path(row, op, cluster), family in row["families"]) for row in rows for op in row["ops"])
    return tuple(p if own else _bounded(p, table, cluster) for p, own in paths)


def _rows(table: Mapping[str, Any], family: str, kind: str) -> list[Mapping[str, Any]]:
    """What was measured on this kind of link: with this generation, else with its kin, else with whoever stands for all."""
    kin = table.get("kin", {})
    for who in (family, kin.get(family), kin.get(kind)):
        if found := [r for r in table.get("path", ()) if who in r["families"] and kind in r["links"]]:
            return found
    return []


def _path(row: Mapping[str, Any], op: str, cluster: Cluster) -> Path:
    link, limits = cluster.intra, row.get("max_bytes", {})
    rate = link.bandwidth_Bps / _reference_Bps(row)
    here, same_host = _measured_here(row, cluster), cluster.chip.key in row.get("measured_on", [cluster.chip.key])
    slow = tuple(sorted((int(w), float(f)) for w, f in row.get("contention", {}).items())) if same_host else ()
    names = ("launch_s", "hop_s", "extra_s", "sqrt_s", "turn", "min_ranks", "name")
    return Path(
        op=op,
        algorithm=row["algorithm"],
        bandwidth_Bps=row["bandwidth_Bps"] * rate,
        worlds=tuple(row.get("worlds", ())),
        max_bytes=tuple(sorted((int(w), float(b)) for w, b in limits.items())),
        contention=slow,
        mesh=link.mesh,
        ranks=tuple(row.get("ranks", ())) if here else (),
        spread=row.get("spread", 0.0) if here else 0.0,
        source=row["source"],
        **{k: row[k] for k in names if k in row},
    )


def _bounded(path: Path, table: Mapping[str, Any], cluster: Cluster) -> Path:
    """Constants of other chips, held to what this generation has on the link that it was measured on.

    Starting a collective is the chip's work: its latencies are not less on a slower link, nor more on a faster one.
    """
    for row in _home_rows(path.op, table, cluster.chip.family):
        if row["algorithm"] == path.algorithm:
            bound = max if cluster.intra.bandwidth_Bps < _reference_Bps(row) else min
            kept = {name: bound(getattr(path, name), row.get(name, 0.0)) for name in ("launch_s", "hop_s", "sqrt_s")}
            path = replace(path, **kept)
    return path


def _home_rows(op: str, table: Mapping[str, Any], family: str) -> list[Mapping[str, Any]]:
    """What was measured with this generation, or its kin, by a library and those that it falls back on; else the plain ring."""
    chain = _chain(table)
    for who in (family, *(t["kin"][family] for t in chain if family in t.get("kin", {}))):
        rows = [r for t in chain for r in t.get("path", ()) if who in r["families"]]
        if rows:
            latency_s = toml("links", rows[0]["reference"])["latency_s"][0]
            return [r for r in rows if op in r["ops"]] or [{"reference": rows[0]["reference"], **_plain(op, latency_s, chain[-1])}]
    return []


def _reference_Bps(row: Mapping[str, Any]) -> float:
    """The rate of the link that a row was measured on."""
    return float(toml("links", row["reference"])["bandwidth_Bps"][0])


def _missing(op: str, cluster: Cluster, table: Mapping[str, Any]) -> Path:
    """A ring for a collective that was never measured here, at most of the link's rate."""
    link = cluster.intra
    rate = table.get("efficiency", 0.8) * link.bandwidth_Bps
    path = Path(op=op, bandwidth_Bps=rate, mesh=link.mesh, source="assumed", **_plain(op, link.latency_s, table))
    return _bounded(path, table, cluster)


def _plain(op: str, latency_s: float, table: Mapping[str, Any]) -> dict[str, Any]:
    """The latencies of a ring that nobody measured: the library's launch, and the link's latency a hop."""
    alone = op in ("send-recv", "broadcast")
    hops = 0.0 if alone or op == "all-to-all" else 2.0 if op == "all-reduce" else 1.0
    launch_s = table.get("launch_s", 10e-6) + (latency_s if alone else 0.0)
    return {"algorithm": "ring", "launch_s": launch_s, "hop_s": hops * latency_s}


def _textbook(cluster: Cluster) -> Fabric:
    """The ring formula and nothing else: every hop one link latency, every byte at the link's rate."""

    def paths(link: Link) -> dict[str, tuple[Path, ...]]:
        found: dict[str, tuple[Path, ...]] = {}
        for op in OPS:
            hops = {"all-reduce": 2.0, "send-recv": 1.0, "broadcast": 1.0}.get(op, 1.0)
            found[op] = (Path(op, "ring", link.bandwidth_Bps, hop_s=hops * link.latency_s, mesh=link.mesh, source="by definition"),)
        return found

    own, slow = paths(cluster.intra), paths(cluster.inter)
    return Fabric("textbook", "by definition", own, network_paths=slow, flat=True, spread=0.0, spread_across=0.0)


def kernel_constants(engine: Engine, chip: Chip) -> KernelConstants:
    """Kernel constants of the chip's family, or the generic ones; ``textbook`` runs every kernel at the datasheet's rate."""
    return _kernel_constants(engine.key, chip.key, chip.family)


@lru_cache(maxsize=256)
def _kernel_constants(engine: str, chip: str, wanted: str) -> KernelConstants:
    if engine == "textbook":
        return KernelConstants("roofline", "by definition", _tables(toml("kernels", "roofline")))
    known = stems("kernels", ".toml")
    family = wanted if wanted in known else "generic"
    label = "calibrated" if family not in ("generic", "cpu") else f"assumed: no kernels were measured on {wanted} chips"
    layers = [toml("kernels", family)] + ([toml("kernels", chip)] if chip in known else [])
    tables: dict[str, Mapping[str, float]] = {}
    for layer in layers:  # a chip of its own corrects its family, an engine's own kernels either
        tables = _with_own(tables | _tables(layer), _tables(layer.get("engine", {}).get(engine, {})))
    return KernelConstants(family, label, tables)


def _with_own(tables: dict[str, Mapping[str, float]], own: dict[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Tables with an engine's own in their place; an engine with attention of its own runs no other's for other number formats."""
    forms = tuple(f"{form}." for form in ("decode", "prefill") if f"{form}.bf16" in own)
    return {name: table for name, table in tables.items() if not name.startswith(forms)} | own


def _tables(table: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    return {f"{form}.{dtype}": c for form in FORMS for dtype, c in table.get(form, {}).items()}
