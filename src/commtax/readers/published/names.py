"""How published tables name things (``names.toml``): columns, chips, models, networks."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import TypedDict

from commtax.files import Json


class CpuFacts(TypedDict):
    memory_Bps: float
    flops_per_s: float
    inter: str


class NetworkName(TypedDict, total=False):
    pattern: str
    link: str
    nics: int


class Names(TypedDict):
    columns: dict[str, dict[str, str]]
    described: dict[str, dict[str, list[str]]]
    patterns: dict[str, list[tuple[str, str]]]
    networks: list[NetworkName]
    collectives: dict[str, str]
    training_chips: dict[str, str]
    serving_chips: dict[str, str]
    model_keys: dict[str, str]
    metrics: dict[str, str]
    models: dict[str, dict[str, Json]]  # config.json of models that the catalogue does not hold
    cpus: dict[str, CpuFacts]


@lru_cache(maxsize=1)
def names() -> Names:
    table: Names = tomllib.loads((files("commtax.readers.published") / "names.toml").read_text())  # type: ignore[assignment]
    return table


def matched(kind: str, text: str, before: str = "") -> str:
    """What the first pattern of a kind that is found in a text stands for; "" where none is."""
    return next((meant for pattern, meant in names()["patterns"][kind] if re.search(f"{before}(?:{pattern})", text)), "")


def network_named(text: str) -> NetworkName | None:
    return next((network for network in names()["networks"] if re.search(network["pattern"], text)), None)


def chip_named(text: str) -> str:
    """The catalogue's key of the chip that a text names; "" where none is.

    >>> [chip_named(name) for name in ("NVIDIA GB200 NVL72", "b200_sxm", "8xH100-SXM", "GB300", "NVIDIA L40S")]
    ['gb200', 'b200-sxm', 'h100-sxm', '', 'l40s']
    """
    return matched("chips", text.lower().replace("_", " "), "(?<![a-wyz0-9])")
