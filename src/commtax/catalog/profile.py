"""A profile: what was measured on one machine, as a JSON file that is laid over the catalogue.

``{"commtax_profile": 1, "name", "chip": {"key", "memory_Bps", "flops_per_s", "memory_bytes"}, "kernels": {"tables": {"gemm.fp32":
{…}}}, "libraries": [{"name": "gloo", "paths": [{…}]}], "network": {"efficiency", "hops", "pipelining", "spread", …}, "links":
{"intra", "inter"}, "host_s", "host_s_per_doubling", "host_s_per_seq", "request_s", "sigma_host", "sigma_tpot", "sigma_ttft",
"engine", "dtype", "sources"}``: every part may be left out.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path as File

from commtax.catalog import physics
from commtax.catalog.fabric import fabric, kernel_constants, with_pairs
from commtax.catalog.libraries import library_chain
from commtax.catalog.profile_reading import check_paths
from commtax.catalog.profile_reading import parse as parse
from commtax.files import local, read_json
from commtax.spec import Chip, Cluster, Engine, Fabric, KernelConstants, Path, Profile, Spread
from commtax.statement import Note, Refusal

_UNMEASURED = Spread("across", (), 0.0, 0.6)  # around sizes that nobody measured
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


def on_cluster(own: Profile, cluster: Cluster) -> Cluster:
    """The cluster with its chip as it was measured; a profile of another chip is refused."""
    facts, chip = own.chip, cluster.chip
    key = facts.get("key", chip.key)
    if key != chip.key:
        raise Refusal(f"profile '{own.name}': it was measured on {key}, and the cluster has {chip.key}", "profile")
    physics.check_chip(facts, chip)
    memory = facts.get("memory_bytes", chip.memory_bytes)
    measured = replace(
        chip,
        name=facts.get("name", chip.name),
        memory_Bps=facts.get("memory_Bps", chip.memory_Bps),
        memory_bytes=memory,
        visible_bytes=facts.get("visible_bytes", memory if "memory_bytes" in facts else chip.visible_bytes),
        num_sms=int(facts.get("num_sms", chip.num_sms)),
        flops_per_s={**chip.flops_per_s, **facts.get("flops_per_s", {})},
    )
    return replace(cluster, chip=measured)


def on_engine(own: Profile, engine: Engine) -> Engine:
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
    tables = {**usual.tables, **own.tables}
    return replace(usual, tables=tables, own=dict.fromkeys(own.tables, own.label))


def same_link(own: Profile, which: str, cluster: Cluster) -> bool:
    """Whether its collectives were measured on this link of the cluster, or it does not say on which."""
    link = cluster.intra if which == "intra" else cluster.inter
    return own.links.get(which, link.key) == link.key


def usual_library(own: Profile, engine: Engine) -> str:
    """The library that the engine calls; the profile's first where that tells nothing of the engine's."""
    shared = set(own.libraries) & set(library_chain(engine.library))
    return engine.library if shared or not own.libraries else next(iter(own.libraries))


def paths(own: Profile, library: str, cluster: Cluster) -> Fabric:
    """The library's paths as measured here; operations and links that were not measured keep the catalogue's."""
    if cluster.bridge:
        return with_pairs(paths(own, library, cluster.without_pairs), paths(own, library, cluster.as_pairs))
    here = own.libraries if same_link(own, "intra", cluster) else {}
    if here:
        check_paths(own, cluster.intra)
    made = fabric(library, cluster, {name: tuple(_owned(p, own) for p in measured) for name, measured in here.items()})
    return _across(own, made) if own.network and same_link(own, "inter", cluster) and not made.flat else made


def _across(own: Profile, made: Fabric) -> Fabric:
    """The paths with what was measured across hosts."""
    network = own.network
    small = [replace(_UNMEASURED, max_bytes=network["least_bytes"])] if "least_bytes" in network else []
    seen = (int(network["least_ranks"]), int(network["most_ranks"])) if {"least_ranks", "most_ranks"} <= network.keys() else ()
    return replace(
        made,
        network_efficiency=network.get("efficiency", made.network_efficiency),
        network_hops=network.get("hops", made.network_hops),
        network_pipelining=network.get("pipelining", made.network_pipelining),
        network_norm=network.get("norm", made.network_norm),
        network_ranks=seen or made.network_ranks,
        network_label=own.label,
        spread_across=network.get("spread", _SPREAD),
        spreads=(*small, *(s for s in made.spreads if s.where != "across")),
    )


def _owned(path: Path, own: Profile) -> Path:
    """A path with the profile's name and a range of its own."""
    return replace(path, source=own.label, own=True, spread=path.spread or _SPREAD)


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
