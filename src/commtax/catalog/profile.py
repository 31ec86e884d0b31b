"""A profile: what was measured on one machine, as a JSON file that is laid over the catalogue.

``{"commtax_profile": 1, "name", "chip": {"key", "memory_Bps", "flops_per_s", "memory_bytes"}, "kernels": {"tables": {"gemm.fp32":
{…}}}, "libraries": [{"name": "gloo", "paths": [{…}]}], "network": {"efficiency", "hops", "pipelining", "spread", …}, "links":
{"intra", "inter"}, "host_s", "host_s_per_doubling", "host_s_per_seq", "request_s", "sigma_host", "sigma_tpot", "sigma_ttft",
"engine", "dtype", "sources"}``: every part may be left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path as File
from typing import Any

from commtax.catalog.fabric import FORMS, OPS, fabric, kernel_constants, library_chain
from commtax.catalog.loader import suggest
from commtax.files import local, read_json
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Path, Profile, Spread

VERSION = 1
_SIGMAS = ("sigma_host", "sigma_tpot", "sigma_ttft", "sigma_tpot_moe", "sigma_ttft_moe")
HOST = ("host_s", "host_s_per_doubling", "host_s_per_seq", "request_s", *_SIGMAS)
NETWORK = ("efficiency", "hops", "pipelining", "norm", "spread", "least_ranks", "most_ranks", "least_bytes")
ALGORITHMS = ("ring", "ring-simple", "tree", "one-shot", "two-shot", "in-switch")
_PARTS = {"name", "chip", "kernels", "library", "libraries", "network", "links", "engine", "dtype", "sources"}
_KEYS = {"commtax_profile", *_PARTS, *HOST}
_CHIP = {"key", "name", "memory_Bps", "flops_per_s", "memory_bytes", "visible_bytes", "num_sms"}
_NEEDED = {
    "gemm": ("t0", "eb", "ep", "kl", "kc", "mk", "k0", "p", "q"),
    "decode": ("t0", "eb64", "eb128", "eb256", "tc", "kl", "kc", "p"),
    "prefill": ("t0", "eb", "ep64", "ep128", "ep256", "c0", "tl", "p"),
    "small": ("t0", "eb"),
}
_UNMEASURED = 0.6  # … around sizes that nobody measured
_SPREAD = 0.25  # half-width of the range around a machine's own fit that does not say its own


def load(path: str | File) -> Profile:
    """Read a profile; what is not one is refused by file, key and rule."""
    file = local(path)
    if not os.path.exists(file):
        raise ValueError(f"profile '{path}': no such file (commtax calibrate and commtax measure calibrate write one)")
    table = read_json(file, "profile")
    if not isinstance(table, dict) or table.get("commtax_profile") != VERSION:
        raise ValueError(f"profile '{path}': not a commtax profile of version {VERSION}")
    try:
        return _profile(table, str(path))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"profile '{path}': a part has the wrong form ({error})") from None


def _profile(table: Mapping[str, Any], path: str) -> Profile:
    _known(table, _KEYS, path)
    chip, network, links = (dict(table.get(part, {})) for part in ("chip", "network", "links"))
    for part, known in ((chip, _CHIP), (network, set(NETWORK)), (links, {"intra", "inter"})):
        _known(part, known, path)
    if not all(isinstance(chip.get(part, ""), str) for part in ("key", "name")):
        raise ValueError(f"profile '{path}': a chip's key and name are text")
    tables = _tables(table.get("kernels", {}).get("tables", {}), path)
    entries = table.get("libraries") or ([table["library"]] if table.get("library") else [])
    if not all(isinstance(entry.get("name", ""), str) for entry in entries):
        raise ValueError(f"profile '{path}': a library's name is text")
    libraries = {entry.get("name", "nccl"): tuple(_path(row, path) for row in entry["paths"]) for entry in entries}
    host = {key: table[key] for key in HOST if table.get(key) is not None}
    rates = [chip[key] for key in ("memory_Bps", "memory_bytes", "visible_bytes", "num_sms") if key in chip]
    rates += [*chip.get("flops_per_s", {}).values(), *(network[key] for key in ("efficiency", "norm") if key in network)]
    _numbers([*rates, *network.values(), *host.values()], path)
    if not all(x > 0 for x in rates):
        raise ValueError(f"profile '{path}': rates, sizes, efficiency and norm are above 0")
    return Profile(
        name=str(table.get("name", File(path).stem)),
        chip=chip,
        tables=tables,
        libraries=libraries,
        network={k: float(v) for k, v in network.items()},
        host={k: float(v) for k, v in host.items()},
        links={k: str(v) for k, v in links.items()},
        engine=str(table.get("engine", "")),
        dtype=str(table.get("dtype", "")),
        sources={str(k): str(v) for k, v in table.get("sources", {}).items()},
    )


def _tables(tables: Mapping[str, Mapping[str, Any]], path: str) -> dict[str, dict[str, float]]:
    """Kernel constants: of known forms, complete, because each table stands in for a whole one."""
    for name, constants in tables.items():
        form = name.partition(".")[0]
        if form not in FORMS:
            raise ValueError(f"profile '{path}': unknown kernel table {name!r}{suggest(form, FORMS)}")
        missing = [key for key in _NEEDED.get(form, ()) if key not in constants]
        if missing:
            raise ValueError(f"profile '{path}': kernel table {name!r} lacks {', '.join(missing)}")
        _numbers(constants.values(), path)
        if not all(constants[key] > 0 for key in constants if key.startswith(("eb", "ep")) or key in ("p", "kc", "mk")):
            raise ValueError(f"profile '{path}': attained fractions and exponents of {name!r} are above 0")
    return {name: {k: float(v) for k, v in constants.items()} for name, constants in tables.items()}


def _numbers(values: Iterable[Any], path: str) -> None:
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) and x >= 0 for x in values):
        raise ValueError(f"profile '{path}': constants are finite numbers of at least 0")


def _path(row: Mapping[str, Any], path: str) -> Path:
    _known(row, {f.name for f in fields(Path)}, f"{path}: path")
    if row["op"] not in OPS or not row["bandwidth_Bps"] > 0:
        raise ValueError(f"profile '{path}': a path needs an op of {', '.join(OPS)} and a bandwidth above 0")
    if row["algorithm"] not in ALGORITHMS:
        raise ValueError(f"profile '{path}': unknown algorithm {row['algorithm']!r}{suggest(str(row['algorithm']), ALGORITHMS)}")
    _numbers([v for v in row.values() if isinstance(v, (int, float))], path)
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
    """The engine with the host's times as measured, where that engine was measured."""
    if not found.host or not tells_of(found, engine):
        return engine
    times: dict[str, Any] = dict(found.host)
    return replace(engine, **times, calibrated=True, host_label=found.label)


def tells_of(found: Profile, engine: Engine) -> bool:
    """Whether the host's times are this engine's."""
    return not found.engine or found.engine.partition("@")[0] == engine.key


def constants(found: Profile, engine: Engine, chip: Chip) -> KernelConstants:
    """The family's kernel constants with the measured ones in their place."""
    usual = kernel_constants(engine, chip)
    tables = {**usual.tables, **found.tables}
    return replace(usual, tables=tables, own=dict.fromkeys(found.tables, found.label))


def same_link(found: Profile, which: str, cluster: Cluster) -> bool:
    """Whether its collectives were measured on this link of the cluster, or it does not say on which."""
    link = cluster.intra if which == "intra" else cluster.inter
    return found.links.get(which, link.key) == link.key


def usual_library(found: Profile, engine: Engine) -> str:
    """The library that the engine calls; the profile's first where that tells nothing of the engine's."""
    told = set(found.libraries) & set(library_chain(engine.library))
    return engine.library if told or not found.libraries else next(iter(found.libraries))


def paths(found: Profile, library: str, cluster: Cluster) -> Fabric:
    """The library's paths as measured here; operations and links that were not measured keep the catalogue's."""
    here = found.libraries if same_link(found, "intra", cluster) else {}
    made = fabric(library, cluster, {name: tuple(_owned(p, found) for p in mine) for name, mine in here.items()})
    if not found.network or not same_link(found, "inter", cluster) or made.flat:
        return made
    own = found.network
    small = [Spread("across", (), own["least_bytes"], _UNMEASURED)] if "least_bytes" in own else []
    numbers: dict[str, Any] = {f"network_{key}": own[key] for key in ("efficiency", "hops", "pipelining", "norm") if key in own}
    if "least_ranks" in own and "most_ranks" in own:
        numbers["network_ranks"] = (int(own["least_ranks"]), int(own["most_ranks"]))
    return replace(
        made,
        **numbers,
        network_label=found.label,
        spread_across=found.network.get("spread", _SPREAD),
        spreads=(*small, *(s for s in made.spreads if s.where != "across")),
    )


def _owned(path: Path, found: Profile) -> Path:
    """A path with the profile's name and a range of its own."""
    return replace(path, source=found.label, spread=path.spread or _SPREAD)


def remarks(found: Profile, cluster: Cluster, engine: Engine) -> list[str]:
    """What a profile does not tell of this cluster and engine, in words."""
    said = [f"profile {found.name}: {', '.join(_parts(found))}"]
    if found.libraries and not same_link(found, "intra", cluster):
        said.append(f"its collectives were measured on {found.links['intra']}: {cluster.intra.key} keeps the catalogue's")
    if found.network and not same_link(found, "inter", cluster):
        said.append(f"its network was measured on {found.links['inter']}: {cluster.inter.key} keeps the catalogue's")
    if found.host and not tells_of(found, engine):
        said.append(f"its host times are {found.engine}'s: {engine.key} keeps the catalogue's")
    return said


def _parts(found: Profile) -> list[str]:
    """What it holds."""
    ops = [f"{name} {op}" for name, mine in found.libraries.items() for op in dict.fromkeys(p.op for p in mine)]
    kernels = [f"kernels {name}" for name in found.tables]
    times = [key for key in found.host if not key.startswith("sigma")]
    rates = [key for key in found.chip if key not in ("key", "name")]
    return [*ops, *(["network"] if found.network else []), *kernels, *times, *rates] or ["nothing"]
