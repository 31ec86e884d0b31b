"""A profile: what was measured on one machine, as a JSON file that is laid over the catalogue.

``{"commtax_profile": 1, "name", "chip": {"key", "memory_Bps", "flops_per_s", "memory_bytes"}, "kernels": {"tables": {"gemm.fp32":
{…}}}, "libraries": [{"name": "gloo", "paths": [{…}]}], "host_s", "engine", "dtype", "sources"}``: every part may be left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path as File
from typing import Any

from commtax.catalog.fabric import OPS, fabric, kernel_constants
from commtax.catalog.loader import suggest
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Path, Profile

VERSION = 1
_KEYS = {"commtax_profile", "name", "chip", "kernels", "library", "libraries", "host_s", "engine", "dtype", "sources"}
_CHIP = {"key", "name", "memory_Bps", "flops_per_s", "memory_bytes", "visible_bytes", "num_sms"}
_SPREAD = 0.25  # half-width of the range around a machine's own fit


def load(path: str | File) -> Profile:
    """Read a profile; what is not one is refused by file, key and rule."""
    file = File(path).expanduser()
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"profile '{path}': no such file (commtax measure calibrate writes one)") from None
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise ValueError(f"profile '{path}': not valid JSON ({error})") from None
    if not isinstance(table, dict) or table.get("commtax_profile") != VERSION:
        raise ValueError(f"profile '{path}': not a commtax profile of version {VERSION}")
    try:
        return _profile(table, str(path))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"profile '{path}': a part has the wrong form ({error})") from None


def _profile(table: Mapping[str, Any], path: str) -> Profile:
    _known(table, _KEYS, path)
    chip = dict(table.get("chip", {}))
    _known(chip, _CHIP, f"{path}: chip")
    tables = table.get("kernels", {}).get("tables", {})
    entries = table.get("libraries") or ([table["library"]] if table.get("library") else [])
    libraries = {entry.get("name", "nccl"): tuple(_path(row, path) for row in entry["paths"]) for entry in entries}
    host = table.get("host_s")
    numbers = [chip.get("memory_Bps", 1), *chip.get("flops_per_s", {}).values(), *(v for t in tables.values() for v in t.values())]
    if not all(isinstance(x, (int, float)) and math.isfinite(x) and x >= 0 for x in [*numbers, host or 0]):
        raise ValueError(f"profile '{path}': constants are finite numbers of at least 0")
    return Profile(
        name=str(table.get("name", File(path).stem)),
        chip=chip,
        tables={form: {k: float(v) for k, v in constants.items()} for form, constants in tables.items()},
        libraries=libraries,
        host_s=None if host is None else float(host),
        engine=str(table.get("engine", "")),
        dtype=str(table.get("dtype", "")),
    )


def _path(row: Mapping[str, Any], path: str) -> Path:
    _known(row, {f.name for f in fields(Path)}, f"{path}: path")
    if row["op"] not in OPS or not row["bandwidth_Bps"] > 0:
        raise ValueError(f"profile '{path}': a path needs an op of {', '.join(OPS)} and a bandwidth above 0")
    pairs: dict[str, Any] = {
        k: tuple(tuple(x) if isinstance(x, list) else x for x in v) if isinstance(v, list) else v for k, v in row.items()
    }
    return Path(**pairs)


def _known(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"profile '{where}': unknown key {unknown[0]!r}{suggest(unknown[0], known)}")


def on_cluster(found: Profile, cluster: Cluster) -> Cluster:
    """The cluster with its chip as it was measured; a profile of another chip is refused."""
    key = found.chip.get("key", cluster.chip.key)
    if key != cluster.chip.key:
        raise ValueError(f"profile '{found.name}': it was measured on {key}, and the cluster has {cluster.chip.key}")
    known = {f.name for f in fields(Chip)} - {"key"}
    changes = {k: v for k, v in found.chip.items() if k in known}
    if "flops_per_s" in changes:
        changes["flops_per_s"] = {**cluster.chip.flops_per_s, **changes["flops_per_s"]}
    if "memory_bytes" in changes:
        changes.setdefault("visible_bytes", changes["memory_bytes"])
    return replace(cluster, chip=replace(cluster.chip, **changes))


def on_engine(found: Profile, engine: Engine) -> Engine:
    return engine if found.host_s is None else replace(engine, host_s=found.host_s)


def constants(found: Profile, engine: Engine, chip: Chip) -> KernelConstants:
    """The family's kernel constants with the measured ones in their place."""
    usual = kernel_constants(engine, chip)
    if not found.tables:
        return usual
    return KernelConstants(found.name, f"calibrated: {found.name}", {**usual.tables, **found.tables})


def paths(found: Profile, library: str, cluster: Cluster) -> Fabric:
    """The library's paths as measured here; operations that were not measured keep the catalogue's."""
    usual = fabric(library, cluster)
    own = found.libraries.get(library.partition("@")[0], ())
    if not own:
        return usual
    measured = {op: mine for op in OPS if (mine := tuple(p for p in own if p.op == op))}
    return replace(
        usual,
        label=f"calibrated: {found.name}",
        paths={**usual.paths, **measured},
        network_paths={**usual.network_paths, **measured},
        spread=_SPREAD,
        spreads=tuple(s for s in usual.spreads if s.where == "across"),
        note="",
    )
