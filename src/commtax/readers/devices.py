"""The devices that a trace's head describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its driver describes it; "" and 0 where it does not. ``count``: as many alike are in the host."""

    name: str = ""
    memory_bytes: float = 0.0
    num_sms: int = 0
    count: int = 0


def described(head: Mapping[str, Any], used: int = 0) -> Device | None:
    """The device that a rank used, from ``deviceProperties``; None where a trace has none."""
    listed = [d for d in head.get("deviceProperties") or [] if isinstance(d, dict) and d.get("totalGlobalMem")]
    if not listed:
        return None
    mine = next((d for d in listed if d.get("id") == used), listed[0])
    found = Device(str(mine.get("name", "")).strip(), float(mine["totalGlobalMem"]), int(mine.get("numSms", 0)))
    alike = sum(d.get("totalGlobalMem") == mine["totalGlobalMem"] and d.get("name") == mine.get("name") for d in listed)
    return Device(found.name, found.memory_bytes, found.num_sms, alike)
