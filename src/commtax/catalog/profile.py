"""A profile: what was measured on one machine, as a JSON file that is laid over the catalogue.

``{"commtax_profile": 1, "name", "chip": {"key", "memory_Bps", "flops_per_s", "memory_bytes"}, "kernels": {"tables": {"gemm.fp32":
{…}}}, "libraries": [{"name": "gloo", "paths": [{…}]}], "network": {"efficiency", "hops", "pipelining", "spread", …}, "links":
{"intra", "inter"}, "host_s", "host_s_per_doubling", "host_s_per_seq", "request_s", "sigma_host", "sigma_tpot", "sigma_ttft",
"engine", "dtype", "sources"}``: every part may be left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path as File
from typing import Any

from commtax.catalog import physics
from commtax.catalog.fabric import FORMS, OPS, fabric, kernel_constants, library_chain, with_pairs
from commtax.catalog.loader import suggest
from commtax.files import local, read_json
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Link, Path, Profile, Spread
from commtax.statement import Note, Refusal

VERSION = 1
NETWORK = tuple(physics.NETWORK)
ALGORITHMS = ("ring", "ring-simple", "tree", "one-shot", "two-shot", "in-switch")
_PARTS = {"name", "chip", "kernels", "library", "libraries", "network", "links", "engine", "dtype", "sources"}
_KEYS = {"commtax_profile", *_PARTS, *physics.HOST}
_NEEDED = {
    "gemm": ("t0", "eb", "ep", "kl", "kc", "mk", "k0", "p", "q"),
    "decode": ("t0", "eb64", "eb128", "eb256", "tc", "kl", "kc", "p"),
    "prefill": ("t0", "eb", "ep64", "ep128", "ep256", "c0", "tl", "p"),
    "small": ("t0", "eb"),
    "elementwise": ("t0", "eb"),
    "step": ("clock", "sigma"),
    "train": ("clock", "sigma", "tdp_w", "flash2", "triton", "attention_backward"),
}
_UNMEASURED = 0.6  # … around sizes that nobody measured
_SPREAD = 0.25  # half-width of the range around a machine's own fit that does not say its own


def load(path: str | File) -> Profile:
    """Read a profile; what is not one is refused by file, key and rule."""
    file = local(path)
    if not os.path.exists(file):
        raise Refusal(f"profile '{path}': no such file (commtax calibrate and commtax measure calibrate write one)", "profile")
    table = read_json(file, "profile")
    try:
        return parse(table, File(path).stem)
    except ValueError as error:
        raise Refusal(f"profile '{path}': {error}", "profile") from None


def given(profile: str | File | Profile | None) -> Profile | None:
    """A profile as Python callers name it: a file, or one that is read already."""
    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, (str, File)):
        return load(profile)
    raise Refusal(f"profile={physics.shown(profile)}: the name of a file is needed, or a Profile", "profile")


def parse(table: Any, name: str = "") -> Profile:
    """A profile from its document. Every constant has a form and a range (``physics``), and a known chip or link its ceiling."""
    if not isinstance(table, dict) or table.get("commtax_profile") != VERSION:
        raise Refusal(f"not a commtax profile of version {VERSION}")
    _known(table, _KEYS)
    network = _numbers(_mapping(table, "network"), physics.NETWORK, "network.")
    if network.get("least_ranks", 1) > network.get("most_ranks", 2**31):
        raise Refusal(f"network.least_ranks={network['least_ranks']:g}: at most most_ranks, {network['most_ranks']:g}")
    found = Profile(
        name=_text(table, "name", name),
        chip=_chip(_mapping(table, "chip")),
        tables=dict(_tables(_mapping(_mapping(table, "kernels"), "tables", "kernels."))),
        libraries=dict(_libraries(table)),
        network=network,
        host=_numbers({key: table[key] for key in physics.HOST if key in table}, physics.HOST),
        links=_texts(_mapping(table, "links"), "links"),
        engine=_text(table, "engine"),
        dtype=_text(table, "dtype"),
        sources=_texts(_mapping(table, "sources"), "sources"),
    )
    _known(found.links, {"intra", "inter"}, "links.")
    _check_known(found)
    return found


def _check_known(found: Profile) -> None:
    """The ceilings of the chip and the link that it names; what names none is held against the cluster that it is used on."""
    from commtax import catalog

    if found.chip.get("key") in catalog.keys("chips"):
        physics.check_chip(found.chip, catalog.chip(found.chip["key"]))
    if found.links.get("intra") in catalog.keys("links"):
        _check_paths(found, catalog.link(found.links["intra"]))


def _check_paths(found: Profile, link: Link) -> None:
    for library, mine in found.libraries.items():
        for path in mine:
            physics.check_path(path, link, f"{library} {path.op}")


def _mapping(table: Mapping[str, Any], key: str, within: str = "") -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise Refusal(f"{within}{key}={physics.shown(found)}: a table of names and values is needed")
    return found


def _text(table: Mapping[str, Any], key: str, usual: str = "", within: str = "") -> str:
    found = table.get(key, usual)
    if not isinstance(found, str):
        raise Refusal(f"{within}{key}={physics.shown(found)}: a text is needed")
    return found


def _texts(table: Mapping[str, Any], part: str) -> dict[str, str]:
    return {key: _text(table, key, within=f"{part}.") for key in table}


def _numbers(table: Mapping[str, Any], ranges: Mapping[str, physics.Range], within: str = "") -> dict[str, float]:
    _known(table, set(ranges), within)
    return {key: ranges[key].read(value, within + key) for key, value in table.items()}


def _chip(table: dict[str, Any]) -> dict[str, Any]:
    _known(table, {"key", "name", "flops_per_s", *physics.CHIP}, "chip.")
    found: dict[str, Any] = {key: _text(table, key, within="chip.") for key in ("key", "name") if key in table}
    found |= {key: rule.read(table[key], f"chip.{key}") for key, rule in physics.CHIP.items() if key in table}
    rates = _mapping(table, "flops_per_s", "chip.")
    known = {physics.known_type(dtype, f"chip.flops_per_s.{dtype}") for dtype in rates}
    return found | ({"flops_per_s": _numbers(rates, dict.fromkeys(known, physics.FLOPS), "chip.flops_per_s.")} if rates else {})


def _tables(tables: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Kernel constants: of known forms, complete, because each table stands in for a whole one."""
    for name in tables:
        form, constants = name.partition(".")[0], _mapping(tables, name, "kernels.tables.")
        if form not in FORMS:
            raise Refusal(f"unknown kernel table {name!r}{suggest(form, FORMS)}")
        missing = [key for key in _NEEDED[form] if key not in constants]
        if missing:
            raise Refusal(f"kernel table {name!r} lacks {', '.join(missing)}")
        yield name, _numbers(constants, physics.KERNEL, f"kernels.tables.{name}.")


def _libraries(table: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Path, ...]]]:
    one = _mapping(table, "library")
    entries = _list(table.get("libraries", []), "libraries") or ([one] if one else [])
    for index, entry in enumerate(entries):
        where = f"libraries[{index}]"
        if not isinstance(entry, dict):
            raise Refusal(f"{where}={physics.shown(entry)}: a table with a name and paths is needed")
        _known(entry, {"name", "paths"}, f"{where}.")
        rows = _list(entry.get("paths"), f"{where}.paths")
        yield _text(entry, "name", "nccl", f"{where}."), tuple(_path(row, f"{where}.paths[{i}]") for i, row in enumerate(rows))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refusal(f"{name}={physics.shown(value)}: a list is needed", name)
    return value


def _path(row: Any, where: str) -> Path:
    if not isinstance(row, dict):
        raise Refusal(f"{where}={physics.shown(row)}: a table of a path's constants is needed")
    _known(row, {f.name for f in fields(Path)} - {"own"}, f"{where}.")
    words: dict[str, Any] = {
        key: _text(row, key, within=f"{where}.") for key in ("op", "algorithm", "name", "source") if key in row
    }
    for key, known in (("op", OPS), ("algorithm", ALGORITHMS)):
        if words.get(key) not in known:
            raise Refusal(f"{where}.{key}={physics.shown(words.get(key))}: one of {', '.join(known)}")
    physics.PATH["bandwidth_Bps"].read(row.get("bandwidth_Bps"), f"{where}.bandwidth_Bps")
    found: dict[str, Any] = {key: rule.read(row[key], f"{where}.{key}") for key, rule in physics.PATH.items() if key in row}
    found |= {key: int(found[key]) for key in ("turn", "min_ranks", "max_ranks") if key in found}
    found |= {key: _sizes(row[key], f"{where}.{key}") for key in physics.LISTS if key in row}
    found |= {key: _by_size(row[key], rule, f"{where}.{key}") for key, rule in physics.PAIRS.items() if key in row}
    if found.get("min_ranks", 1) > found.get("max_ranks", 2**31):
        raise Refusal(f"{where}.min_ranks={found['min_ranks']}: at most max_ranks, {found['max_ranks']}")
    return Path(**words, **found)


def _sizes(value: Any, name: str) -> tuple[int, ...]:
    return tuple(int(physics.RANKS.read(size, name)) for size in _list(value, name))


def _by_size(value: Any, rule: physics.Range, name: str) -> tuple[tuple[int, float], ...]:
    """Pairs of a group size and its value, smaller groups first."""
    pairs = _list(value, name)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Refusal(f"{name}={physics.shown(value)}: pairs of a group size and its value are needed", name)
    sizes = _sizes([size for size, _ in pairs], name)
    if list(sizes) != sorted(set(sizes)):
        raise Refusal(f"{name}={physics.shown(value)}: group sizes rise from pair to pair", name)
    return tuple(zip(sizes, (rule.read(v, name) for _, v in pairs), strict=True))


def _known(table: Mapping[str, Any], known: set[str], within: str = "") -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise Refusal(f"unknown key '{within}{unknown[0]}'{suggest(unknown[0], known)}")


def on_cluster(found: Profile, cluster: Cluster) -> Cluster:
    """The cluster with its chip as it was measured; a profile of another chip is refused."""
    key = found.chip.get("key", cluster.chip.key)
    if key != cluster.chip.key:
        raise Refusal(f"profile '{found.name}': it was measured on {key}, and the cluster has {cluster.chip.key}", "profile")
    physics.check_chip(found.chip, cluster.chip)
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
    return engine.but(**found.host, calibrated=True, host_label=found.label)


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
    if cluster.bridge:
        return with_pairs(paths(found, library, cluster.without_pairs), paths(found, library, cluster.as_pairs))
    here = found.libraries if same_link(found, "intra", cluster) else {}
    if here:
        _check_paths(found, cluster.intra)
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
    return replace(path, source=found.label, own=True, spread=path.spread or _SPREAD)


def remarks(found: Profile, cluster: Cluster, engine: Engine) -> list[Note]:
    """What a profile does not tell of this cluster and engine, in words."""
    said = [f"profile {found.name}: {', '.join(_parts(found))}"]
    if found.libraries and not same_link(found, "intra", cluster):
        said.append(f"its collectives were measured on {found.links['intra']}: {cluster.intra.key} keeps the catalogue's")
    if found.network and not same_link(found, "inter", cluster):
        said.append(f"its network was measured on {found.links['inter']}: {cluster.inter.key} keeps the catalogue's")
    if found.host and not tells_of(found, engine):
        said.append(f"its host times are {found.engine}'s: {engine.key} keeps the catalogue's")
    return [Note("profile", text) for text in said]


def _parts(found: Profile) -> list[str]:
    """What it holds."""
    ops = [f"{name} {op}" for name, mine in found.libraries.items() for op in dict.fromkeys(p.op for p in mine)]
    kernels = [f"kernels {name}" for name in found.tables]
    times = [key for key in found.host if not key.startswith("sigma")]
    rates = [key for key in found.chip if key not in ("key", "name")]
    return [*ops, *(["network"] if found.network else []), *kernels, *times, *rates] or ["nothing"]
