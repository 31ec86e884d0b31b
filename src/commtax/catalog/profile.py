"""A profile: what was measured on one machine, as a JSON file that is laid over the catalogue.

``{"commtax_profile": 1, "name", "chip": {"key", "memory_Bps", "flops_per_s", "memory_bytes"}, "kernels": {"tables": {"gemm.fp32":
{…}}}, "libraries": [{"name": "gloo", "paths": [{…}]}], "network": {"efficiency", "hops", "pipelining", "spread", …},
"network_curves": [{"op", "ranks", "nbytes", "factor", "sigma", …}], "links": {"intra", "inter"}, "host_s", "host_s_per_doubling",
"host_s_per_seq", "request_s", "sigma_host", "sigma_tpot", "sigma_ttft", "engine", "dtype", "sources"}``: each may be left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path as File
from typing import cast, get_args

from commtax import catalog
from commtax.catalog import network_curves, physics
from commtax.catalog.fabric import OPS, fabric, library, with_pairs
from commtax.catalog.kernel_constants import kernel_constants
from commtax.catalog.loader import suggest
from commtax.catalog.table_view import TableView
from commtax.files import expand_home, read_json
from commtax.records import record_from, with_fields
from commtax.spec import DTYPE_BYTES, Chip, Cluster, Engine, Link
from commtax.spec.constants import Algorithm, ChipFacts, Fabric, KernelConstants, Path, Profile, Spread
from commtax.statement import Note, Refusal, Source

VERSION = 1
PARTS = ("name", "chip", "kernels", "library", "libraries", "network", "network_curves", "links", "engine", "dtype", "sources")
_UNMEASURED = Spread("across", 0.6, "sizes that nobody measured")
_SPREAD = 0.25  # half-width of the range around a machine's own fit that does not say its own


def load(path: str | File) -> Profile:
    """Read a profile; what is not one is refused by file, key and rule."""
    file = expand_home(path)
    if not os.path.exists(file):
        raise Refusal(f"profile '{path}': no such file (commtax calibrate and commtax measure calibrate write one)", "profile")
    table = read_json(file, "profile")
    try:
        return parse(table, File(path).stem)
    except ValueError as error:
        raise Refusal(f"profile '{path}': {error}", "profile") from None


def load_profile(profile: str | File | Profile | None) -> Profile | None:
    """A profile as Python callers name it: a file, or one that is read already."""
    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, (str, File)):
        return load(profile)
    raise Refusal(f"profile={physics.short_repr(profile)}: the name of a file is needed, or a Profile", "profile")


def measured_cluster(own: Profile, cluster: Cluster) -> Cluster:
    """The cluster with its chip as it was measured; a profile of another chip is refused."""
    facts, chip = own.chip, cluster.chip
    key = facts.get("key", chip.key)
    if key != chip.key:
        raise Refusal(f"profile '{own.name}': it was measured on {key}, and the cluster has {chip.key}", "profile")
    physics.check_chip(facts, chip)
    measured: dict[str, object] = {**facts, "num_sms": int(facts.get("num_sms", chip.num_sms))}
    measured["flops_per_s"] = {**chip.flops_per_s, **facts.get("flops_per_s", {})}
    if "memory_bytes" in facts:
        measured.setdefault("visible_bytes", facts["memory_bytes"])
    return replace(cluster, chip=with_fields(chip, measured))


def measured_engine(own: Profile, engine: Engine) -> Engine:
    """The engine with the host's times as measured, where that engine was measured."""
    if not own.host or not tells_of(own, engine):
        return engine
    return engine.but(**own.host, calibrated=True, host_label=own.label)


def tells_of(own: Profile, engine: Engine) -> bool:
    """Whether the host's times are this engine's."""
    return not own.engine or own.engine.partition("@")[0] == engine.key


def constants(own: Profile, engine: Engine, chip: Chip) -> KernelConstants:
    """The family's kernel constants with the measured ones in their place."""
    usual = kernel_constants(engine, chip)
    other = {"decode.single"} if "decode.bf16" in own.tables else set()  # attention as measured here, whatever the heads
    tables = {**{name: c for name, c in usual.tables.items() if name not in other}, **own.tables}
    return replace(usual, tables=tables, own={**usual.own, **dict.fromkeys(own.tables, own.label)})


def same_link(own: Profile, which: str, cluster: Cluster) -> bool:
    """Whether its collectives were measured on this link of the cluster, or it does not say on which."""
    link = cluster.intra if which == "intra" else cluster.inter
    return own.links.get(which, link.key) == link.key


def usual_library(own: Profile, engine: Engine) -> str:
    """The library that the engine calls; the profile's first where that tells nothing of the engine's."""
    shared = set(own.libraries) & {one.key for one in library(engine.library).chain}
    return engine.library if shared or not own.libraries else next(iter(own.libraries))


def paths(own: Profile, library: str, cluster: Cluster) -> Fabric:
    """The library's paths as measured here; operations and links that were not measured keep the catalogue's."""
    if cluster.bridge:
        return with_pairs(paths(own, library, cluster.without_pairs), paths(own, library, cluster.as_pairs))
    here = own.libraries if same_link(own, "intra", cluster) else {}
    if here:
        check_paths(own, cluster.intra)
    # Paths have the profile's name and a range of their own.
    owned = {
        name: [replace(p, source=own.label, own=True, spread=p.spread or _SPREAD) for p in some] for name, some in here.items()
    }
    made = fabric(library, cluster, {name: tuple(some) for name, some in owned.items()})
    return _with_measured_network(own, made) if own.network and same_link(own, "inter", cluster) and not made.flat else made


def _with_measured_network(own: Profile, made: Fabric) -> Fabric:
    """The paths with what was measured across hosts."""
    network = dict(own.network)
    small = [replace(_UNMEASURED, max_bytes=network.pop("least_bytes"))] if "least_bytes" in network else []
    ranks = (int(network.pop("least_ranks", 0)), int(network.pop("most_ranks", 0)))
    measured: dict[str, object] = {"ranks": ranks if all(ranks) else made.network.ranks, "label": own.label, "spread": _SPREAD}
    measured["curves"] = own.curves
    others = tuple(s for s in made.spreads if s.where != "across")
    return replace(made, network=with_fields(made.network, {**measured, **network}), spreads=(*small, *others))


def remarks(own: Profile, cluster: Cluster, engine: Engine) -> list[Note]:
    """What a profile does not tell of this cluster and engine, in words."""
    said = [f"profile {own.name}: {', '.join(_parts(own))}"]
    if own.libraries and not same_link(own, "intra", cluster):
        said.append(f"its collectives were measured on {own.links['intra']}: {cluster.intra.key} keeps the catalogue's")
    if own.network and not same_link(own, "inter", cluster):
        said.append(f"its network was measured on {own.links['inter']}: {cluster.inter.key} keeps the catalogue's")
    if own.host and not tells_of(own, engine):
        said.append(f"its host times are {own.engine}'s: {engine.key} keeps the catalogue's")
    return [Note("profile", text) for text in said]


def _parts(own: Profile) -> list[str]:
    """What it holds."""
    ops = [f"{name} {op}" for name, paths in own.libraries.items() for op in dict.fromkeys(p.op for p in paths)]
    kernels = [f"kernels {name}" for name in own.tables]
    times = [key for key in own.host if not key.startswith("sigma")]
    rates = [key for key in own.chip if key not in ("key", "name")]
    return [*ops, *(["network"] if own.network else []), *kernels, *times, *rates] or ["nothing"]


def parse(document: object, name: str = "") -> Profile:
    """A profile from its document; what cannot be is refused by key and rule."""
    if not isinstance(document, dict) or document.get("commtax_profile") != VERSION:
        raise Refusal(f"not a commtax profile of version {VERSION}")
    whole = TableView(document)
    whole.check_known({"commtax_profile", *PARTS, *physics.HOST})
    network = whole.part("network").numbers(physics.NETWORK)
    if network.get("least_ranks", 1) > network.get("most_ranks", 2**31):
        raise Refusal(f"network.least_ranks={network['least_ranks']:g}: at most most_ranks, {network['most_ranks']:g}")
    profile = Profile(
        name=whole.text("name", name),
        chip=_chip(whole.part("chip")),
        tables=dict(_tables(whole.part("kernels").part("tables"))),
        libraries=dict(_libraries(whole)),
        network=network,
        curves=network_curves.parse(whole.table.get("network_curves", [])),
        host=whole.some(physics.HOST),
        links=whole.part("links").texts(),
        engine=whole.text("engine"),
        dtype=whole.text("dtype"),
        sources=whole.part("sources").texts(),
    )
    whole.part("links").check_known({"intra", "inter"})
    # Ceilings of the chip and the link that it names; what names none is held against the cluster that it is used on.
    if (key := profile.chip.get("key", "")) in catalog.keys("chips"):
        physics.check_chip(profile.chip, catalog.chip(key))
    if (key := profile.links.get("intra", "")) in catalog.keys("links"):
        check_paths(profile, catalog.link(key))
    return profile


def check_paths(profile: Profile, link: Link) -> None:
    for name, paths in profile.libraries.items():
        for path in paths:
            physics.check_path(path, link, f"{name} {path.op}")


def _chip(part: TableView) -> ChipFacts:
    part.check_known({"key", "name", "flops_per_s", *physics.CHIP})
    facts: dict[str, object] = {key: part.text(key) for key in ("key", "name") if key in part.table}
    facts |= part.some(physics.CHIP)
    rates = part.part("flops_per_s")
    if unknown := next((rates.named(dtype) for dtype in rates.table if dtype not in DTYPE_BYTES), ""):
        raise Refusal(f"{unknown}: a type of arithmetic is one of {', '.join(DTYPE_BYTES)}", unknown)
    if rates.table:
        facts["flops_per_s"] = rates.numbers(dict.fromkeys(rates.table, physics.FLOPS))
    return cast(ChipFacts, facts)


def _tables(part: TableView) -> Iterator[tuple[str, dict[str, float]]]:
    """Kernel constants: of known forms, complete, because each table stands in for a whole one."""
    for name in part.table:
        form, constants = name.partition(".")[0], part.part(name)
        if form not in physics.NEEDED:
            raise Refusal(f"unknown kernel table {name!r}{suggest(form, physics.NEEDED)}")
        missing = [key for key in physics.NEEDED[form] if key not in constants.table]
        if missing:
            raise Refusal(f"kernel table {name!r} lacks {', '.join(missing)}")
        yield name, constants.numbers(physics.KERNEL)


def _libraries(whole: TableView) -> Iterator[tuple[str, tuple[Path, ...]]]:
    one = whole.part("library").table
    entries = _list(whole.table.get("libraries", []), "libraries") or ([one] if one else [])
    for index, entry in enumerate(entries):
        part = TableView.of(entry, f"libraries[{index}]", "a table with a name and paths")
        part.check_known({"name", "paths"})
        rows = _list(part.table.get("paths"), part.named("paths"))
        yield part.text("name", "nccl"), tuple(_path(row, f"{part.where}.paths[{i}]") for i, row in enumerate(rows))


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise Refusal(f"{name}={physics.short_repr(value)}: a list is needed", name)
    return value


def _path(row: object, where: str) -> Path:
    part = TableView.of(row, where, "a table of a path's constants")
    part.check_known({f.name for f in fields(Path)} - {"own"})
    given = part.table
    facts: dict[str, object] = {key: part.text(key) for key in ("op", "algorithm", "name") if key in given}
    if "source" in given:
        facts["source"] = Source("calibrated", part.text("source"))
    for key, known in (("op", OPS), ("algorithm", get_args(Algorithm))):
        if facts.get(key) not in known:
            raise Refusal(f"{where}.{key}={physics.short_repr(facts.get(key))}: one of {', '.join(known)}", key, known)
    physics.PATH["bandwidth_Bps"].read(given.get("bandwidth_Bps"), f"{where}.bandwidth_Bps")
    numbers = part.some(physics.PATH)
    facts |= numbers | {key: int(numbers[key]) for key in ("turn", "min_ranks", "max_ranks") if key in numbers}
    facts |= {key: _sizes(given[key], f"{where}.{key}") for key in physics.GROUPS if key in given}
    facts |= {key: _by_size(given[key], rule, f"{where}.{key}") for key, rule in physics.BY_SIZE.items() if key in given}
    least, most = numbers.get("min_ranks", 1), numbers.get("max_ranks", 2**31)
    if least > most:
        raise Refusal(f"{where}.min_ranks={int(least)}: at most max_ranks, {int(most)}")
    return record_from(Path, facts)


def _sizes(value: object, name: str) -> tuple[int, ...]:
    return tuple(int(physics.RANKS.read(size, name)) for size in _list(value, name))


def _by_size(value: object, rule: physics.PhysicalRange, name: str) -> tuple[tuple[int, float], ...]:
    """Pairs of a group size and its value, smaller groups first."""
    rows = _list(value, name)
    pairs = [pair for pair in rows if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(rows):
        raise Refusal(f"{name}={physics.short_repr(value)}: pairs of a group size and its value are needed", name)
    sizes = _sizes([size for size, _ in pairs], name)
    if list(sizes) != sorted(set(sizes)):
        raise Refusal(f"{name}={physics.short_repr(value)}: group sizes rise from pair to pair", name)
    return tuple(zip(sizes, (rule.read(v, name) for _, v in pairs), strict=True))
