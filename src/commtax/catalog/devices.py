"""Which chips of the catalogue a driver's description may stand for."""

from __future__ import annotations

import re

from commtax.catalog import chip, keys
from commtax.spec import Chip

MEMORY = 0.02  # totals of one chip differ by this much over drivers and error correction
_FORMS = ("sxm", "pcie", "nvl")


def recognise(name: str, memory_bytes: float, num_sms: int = 0) -> tuple[str, ...]:
    """Keys of all chips with which name, memory and multiprocessors agree.

    >>> recognise("NVIDIA A100-SXM4-80GB", 84990623744, 108), recognise("NVIDIA H100 80GB HBM3", 85e9, 132)
    (('a100-80-sxm',), ('h100-sxm',))
    >>> recognise("NVIDIA A100-PG509-200", 42297524224, 108), recognise("", 206141652992, 304)
    (('a100-40-pcie', 'a100-40-sxm'), ('mi300x',))
    """
    known = (chip(key) for key in keys("chips"))
    return tuple(sorted(c.key for c in known if is_like(c, memory_bytes, num_sms) and _is_named(c, name)))


def is_like(known: Chip, memory_bytes: float, num_sms: int = 0) -> bool:
    """Whether memory and multiprocessors are the chip's, where both sides tell them."""
    near = abs(memory_bytes / known.visible_bytes - 1) <= MEMORY
    return near and (not num_sms or not known.num_sms or num_sms == known.num_sms)


def _is_named(known: Chip, name: str) -> bool:
    """Whether the driver's name has the chip's words, and no other form factor."""
    parts_of_name = re.findall(r"[a-z0-9]+", name[:200].lower())
    if not parts_of_name:
        return known.vendor != "generic"
    parts = known.key.split("-")
    form = next((f for f in _FORMS if f in parts), "")
    stated = next((f for f in _FORMS if any(w.startswith(f) for w in parts_of_name)), "")
    model = [p for p in parts if p not in _FORMS and not (p.isdigit() and len(p) < 4) and not p.startswith("hbm")]
    return all(p in parts_of_name for p in model) and (not form or not stated or form == stated)
