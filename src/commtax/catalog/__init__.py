"""Facts as data: chips, links, clusters, models and engines, each in its own file with its sources.

``chip("h100-sxm")``, ``link("nvlink4")``, ``cluster("2x8xh100-sxm")``, ``model("llama-3.1-8b")``, ``engine("vllm")``,
``lengths("sharegpt")``.
"""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from commtax.catalog.clusters import cluster, is_file, whole_host, whole_unit, with_hosts
from commtax.catalog.fabric import fabric, fusion, library
from commtax.catalog.hardware import chip, is_like, link, recognise
from commtax.catalog.hosts import with_between, with_inside_link
from commtax.catalog.kernel_constants import kernel_constants, with_shared_latents
from commtax.catalog.loader import key_of, nearest_version, record, stems, table, version_parts
from commtax.catalog.models import config, model
from commtax.catalog.programs import APART
from commtax.spec import ENGINE_PARTS, Engine
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
    """Return an engine by key or alias, ``vllm`` or ``vllm@0.12``, where a version without constants of its own notes that it has
    its neighbour's."""
    base, _, version = name.partition("@")
    stem = key_of("engines", base)
    facts = {name: part for name, part in table("engines", stem).items() if name not in APART}
    newest = record(Engine, facts, f"engines/{stem}", ENGINE_PARTS)
    _check_tiered(newest)
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


def _check_tiered(newest: Engine) -> None:
    """Refuse a version that sets a tiered constant outside tiers of its own, which would be laid over it without effect."""
    for version, constants in newest.versions.items():
        tiers = (*newest.serves.tiers.values(), *constants.get("tiers", {}).values())
        if flat := next((name for name in constants if any(name in tier for tier in tiers)), ""):
            where = f'[versions."{version}"]'
            raise Refusal(f"engines/{newest.key}: {flat} of {where} is set by tiers; write it in {where[:-1]}.tiers.*]")
