"""Chips and links by name, a chip also by what a driver says of it; ``carriers.toml`` of caches, and ``tiers.toml`` of prefixes."""

import re
from dataclasses import replace
from functools import lru_cache

from commtax import shipped_tables
from commtax.catalog.loader import check_measured, find, key_of, record, stems, suggest, table
from commtax.spec import Chip, Link
from commtax.spec.hardware import CacheCarrier, CacheTier
from commtax.statement import Refusal

MEMORY_SPREAD = 0.02  # totals of one chip differ by this much over drivers and error correction
_FORM_FACTORS = ("sxm", "pcie", "nvl")


@lru_cache(maxsize=256)
def chip(name: str) -> Chip:
    """Return a chip by key or alias."""
    if not find("chips", name):
        check_measured(name, "chip")
    stem = key_of("chips", name)
    return record(Chip, table("chips", stem), f"chips/{stem}")


def is_catalogued(one: Chip) -> bool:
    """Return whether a chip is one of ours, and not one that somebody describes."""
    return one.key in stems("chips")


def recognise(name: str, memory_bytes: float, num_sms: int = 0) -> tuple[str, ...]:
    """Return the keys of all chips that fit a name, memory and number of SMs. More matched words of the name win.

    >>> recognise("NVIDIA A100-SXM4-80GB", 84990623744, 108), recognise("NVIDIA H100 80GB HBM3", 85e9, 132)
    (('a100-80-sxm',), ('h100-sxm',))
    >>> recognise("NVIDIA A100-PG509-200", 42297524224, 108), recognise("", 206141652992, 304)
    (('a100-40-pcie', 'a100-40-sxm'), ('mi300x',))
    """
    chips = (chip(key) for key in stems("chips"))
    words_of = {c.key: _words(c) for c in chips if is_like(c, memory_bytes, num_sms) and _has_words_of(c, name)}
    return tuple(sorted(key for key, words in words_of.items() if not name or not any(words < x for x in words_of.values())))


def is_like(one: Chip, memory_bytes: float, num_sms: int = 0) -> bool:
    """Return whether memory and multiprocessors are the chip's, where both sides tell them."""
    near = abs(memory_bytes / one.visible_bytes - 1) <= MEMORY_SPREAD
    return near and (not num_sms or not one.num_sms or num_sms == one.num_sms)


def _words(one: Chip) -> frozenset[str]:
    """Return the words of a chip's key that a driver says too: no form factor, no size of its memory."""
    parts = (part for part in one.key.split("-") if part not in _FORM_FACTORS and not part.startswith("hbm"))
    return frozenset(part for part in parts if not (part.isdigit() and len(part) < 4))


def _has_words_of(one: Chip, name: str) -> bool:
    """Check that the driver's name has the chip's words and no other form factor. cards in bridged sets always say ``NVL``."""
    parts = re.findall(r"[a-z0-9]+", name[:200].lower())
    if not parts:
        return one.vendor != "generic"
    form = next((f for f in _FORM_FACTORS if f in one.key.split("-")), "")
    stated = next((f for f in _FORM_FACTORS if any(w.startswith(f) for w in parts)), "")
    return _words(one) <= set(parts) and (not form or (not stated and form != "nvl") or form == stated)


@lru_cache(maxsize=256)
def link(name: str) -> Link:
    """Return a link by key or alias, where ``nvlink3@8`` has 8 of its 12 NVLinks."""
    base, counted, count = name.partition("@")
    stem = key_of("links", base)
    whole = record(Link, table("links", stem), f"links/{stem}")
    if not counted:
        return whole
    if not whole.num_links:
        raise Refusal(f"link '{name}': {stem} is not counted in links; nearest valid: {stem}", "link")
    if not re.fullmatch(r"\d{1,3}", count) or not 1 <= int(count) <= whole.num_links:
        rule = f"1 to {whole.num_links} links are bonded in {stem}; nearest valid: {stem}@{whole.num_links}"
        raise Refusal(f"link '{name}': {rule}", "link")
    rate = whole.bandwidth_Bps * int(count) / whole.num_links
    return replace(whole, key=f"{stem}@{count}", num_links=int(count), bandwidth_Bps=rate, name=f"{whole.name}, {count} links")


USUAL = "usual"
TIERS = ("host", "disk", "remote")


@lru_cache(maxsize=8)
def carrier(name: str) -> CacheCarrier:
    """Return a carrier by name, where "" is what is priced by default."""
    rows = shipped_tables.table("catalog/carriers.toml")
    if (key := name or USUAL) not in rows:
        names = tuple(one for one in rows if one != USUAL)
        raise Refusal(f"kv_transfer '{name}': one of {', '.join(names)}{suggest(name, names)}", "kv_transfer", names)
    return record(CacheCarrier, {"key": key, **rows[key]}, "carriers.toml")


@lru_cache(maxsize=8)
def started_with(engine: str) -> str:
    """Return the carrier that an engine's launch names by default, or "" for none that is priced by its pieces."""
    return next((key for key, row in shipped_tables.table("catalog/carriers.toml").items() if engine in row.get("starts", ())), "")


@lru_cache(maxsize=4)
def tier(name: str) -> CacheTier:
    if name not in TIERS:
        raise Refusal(f"kv_tier '{name}': one of {', '.join(TIERS)}{suggest(name, TIERS)}", "kv_tier", TIERS)
    return record(CacheTier, {"key": name, **shipped_tables.table("catalog/tiers.toml")[name]}, "tiers.toml")


def host_Bps(chip: Chip) -> float:
    """Return the bandwidth of a GPU's link to its host's memory, one way, or 0 where it is not listed."""
    rows = shipped_tables.table("catalog/tiers.toml")
    if chip.key in rows["superchips"]:
        return float(rows["superchips"][chip.key])
    usual = rows["links"].get(chip.key) or rows["links"].get(chip.family)
    return link(usual).bandwidth_Bps if usual else 0.0
