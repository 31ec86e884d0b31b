"""Facts as data: chips, links, clusters, models and engines, each in its own file with its sources.

``chip("h100-sxm")``, ``link("nvlink4")``, ``cluster("2x8xh100-sxm")``, ``model("llama-3.1-8b")``, ``engine("vllm")``,
``lengths("sharegpt")``.
"""

import os
import re
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from commtax.catalog.fabric import fabric, fusion, library
from commtax.catalog.hardware import chip, is_like, link, recognise
from commtax.catalog.hosts import MAX_GPUS, catalogued_hosts, parse_counts, unit_hosts, with_between, with_inside_link
from commtax.catalog.kernel_constants import kernel_constants, with_shared_latents
from commtax.catalog.loader import find, key_of, nearest_version, normal, record, stems, table, version_parts
from commtax.catalog.models import config, model
from commtax.catalog.programs import APART
from commtax.spec import ENGINE_PARTS, Cluster, Engine
from commtax.spec.stream import Lengths
from commtax.statement import Refusal


def lengths(text: str | float, side: Literal["inputs", "outputs"] = "inputs", argument: str = "lengths") -> Lengths:
    """Read lengths of requests as users spell them: ``512``, ``uniform:256-1024``, ``sharegpt``."""
    from commtax.catalog.distributions import lengths as read  # not for those who price a step

    return read(text, side, argument)


def keys(kind: str) -> list[str]:
    """Return all keys of one kind: ``chips``, ``links``, ``clusters``, ``models``, ``engines`` or ``lengths``."""
    return sorted(stems(kind))


@lru_cache(maxsize=64)
def engine(name: str) -> Engine:
    """Return an engine by key or alias, ``vllm`` or ``vllm@0.12``, noting where a version has its neighbour's constants."""
    base, _, version = name.partition("@")
    stem = key_of("engines", base)
    facts = {name: part for name, part in table("engines", stem).items() if name not in APART}
    newest = record(Engine, facts, f"engines/{stem}", ENGINE_PARTS)
    for listed, changes in newest.versions.items():  # tiers of the newest would be laid over it without effect
        tiers = (*newest.serves.tiers.values(), *changes.get("tiers", {}).values())
        if flat := next((constant for constant in changes if any(constant in tier for tier in tiers)), ""):
            where = f'[versions."{listed}"'
            raise Refusal(f"engines/{stem}: {flat} of {where}] is set by tiers; write it in {where}.tiers.*]")
    if version and not re.fullmatch(r"v?\d{1,9}(\.\w{1,30}){0,9}", version):
        raise Refusal(f"engine '{name}': '{version}' is not a version (write {stem}@{newest.version})", "engine")
    if not version or version == newest.version:
        return replace(newest, note="")
    near = nearest_version(version, [*newest.versions, newest.version])
    changed = newest.versions.get(near, {})
    constants = {name: value for name, value in changed.items() if name not in ("since", "alike")}
    near = newest.version if changed.get("alike") else near  # all but some constants are the newest version's
    same = version_parts(version)[: len(version_parts(near))] == version_parts(near)
    note = "" if same else f"constants of {stem} {near} are used for {version}: that version is not calibrated"
    return newest.but(version=version, note=note, **constants)


def is_file(text: str) -> bool:
    """Return whether a cluster's name is a file's: it ends in ``.toml``, or has a folder in it."""
    return text.strip().lower().endswith(".toml") or "/" in text or os.sep in text


def cluster(text: str, *, intra: str = "", inter: str = "", nics: int | None = None) -> Cluster:
    """Return a cluster from a name (``dgx-h100``), counts (``8xh100-sxm``, ``2x8xh100-sxm``) or a file (``my-hosts.toml``).

    ``intra`` and ``inter`` replace the usual links. A new ``inter`` brings its usual number of NICs: one for each GPU on InfiniBand
    and its like, one a host on Ethernet, of EFA as the chip's instances have, unless ``nics`` says otherwise. More GPUs than a host
    holds are several hosts. Cards that bridges join in pairs are so in larger hosts too, unless ``intra`` gives all GPUs one link.

    >>> c = cluster("2x8xh100-sxm")
    >>> c.num_hosts, c.gpus_per_host, c.intra.key, c.inter.key, c.nics_per_host
    (2, 8, 'nvlink4', 'ib-ndr', 8)
    """
    if is_file(text):
        from commtax.catalog.described_clusters import read_cluster  # not for those whose cluster has a name

        place = read_cluster(text)
    else:
        place = catalogued_hosts(text) or parse_counts(text)
    if place.num_gpus > MAX_GPUS:
        raise Refusal(f"cluster '{text}': {place.num_gpus:,} GPUs, more than the {MAX_GPUS:,} that are modelled", "cluster")
    if intra:
        if (inside := link(intra)).scope != "intra":
            instead = f"8x1x{place.chip.key} --inter {inside.key}"
            raise Refusal(f"intra '{intra}': runs between hosts; write one GPU per host, such as {instead}", "intra")
        place = with_inside_link(place, inside)
    if inter:
        if (between := link(inter)).scope != "inter":
            raise Refusal(f"inter '{inter}': runs inside a host; a fabric such as ib-ndr or 10gbe is needed between hosts", "inter")
        place = with_between(place, between)
    if nics is not None:
        if not 1 <= nics <= 1024:
            raise Refusal(f"nics={nics}: a host has 1 to 1,024 NICs", "nics")
        place = replace(place, nics_per_host=nics)
    return place


def with_hosts(place: Cluster, hosts: int, gpus: int) -> Cluster:
    """Return ``hosts`` of the same kind (whole racks as racks) as a user would name them, or of a chip in counts, ``gpus`` each."""
    if is_file(place.key):
        from commtax.catalog.described_clusters import split_count

        path = split_count(place.key)[1]
        return replace(place, key=path if hosts == place.num_hosts == 1 else f"{hosts}x{path}", num_hosts=hosts)
    if (entry := _entry(place)) and hosts % unit_hosts(entry) == 0:
        return cluster(f"{hosts // unit_hosts(entry)}x{entry}".removeprefix("1x"))
    key = f"{hosts}x{gpus}x{place.chip.key}" if hosts > 1 else f"{gpus}x{place.chip.key}"
    return replace(place, key=key, num_hosts=hosts, gpus_per_host=gpus, typed="")


def _entry(place: Cluster) -> str:
    """Return the key of the catalogued host or rack that it is made of, or "" where it was counted or described."""
    return next((stem for name in (place.key, normal(place.key).partition("x")[2]) if (stem := find("clusters", name))), "")


def whole_host(place: Cluster) -> int:
    """Return the GPUs of one whole host, as catalogued or described, else no fewer than its chips usually have."""
    fixed = is_file(place.key) or _entry(place)
    return place.gpus_per_host if fixed else max(place.gpus_per_host, place.chip.gpus_per_host)


def whole_unit(place: Cluster) -> int:
    """Return the hosts by which it grows: a rack's where it is whole racks, by whatever name, else one."""
    racks = place.nvlink_domain > place.gpus_per_host and place.num_gpus % place.nvlink_domain == 0
    return place.nvlink_domain // place.gpus_per_host if racks else 1
