"""How checkpoints of each architecture spell the modules that our inventory names, and what they never quantise."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache

from commtax.catalog.loader import FACTS, Table


@dataclass(frozen=True, slots=True)
class Spelling:
    """``names``: our fragments and theirs, replaced one after the other; ``plain``: modules that stay as they are."""

    names: tuple[tuple[str, str], ...] = ()
    plain: tuple[str, ...] = ()
    expert_dtype: str = ""  # of experts where a config does not say it


@lru_cache(maxsize=1)
def _tables() -> dict[str, Table]:
    """One table a family, with its architectures."""
    tables: list[Table] = tomllib.loads((FACTS / "spellings.toml").read_text(encoding="utf-8"))["family"]
    return {name: table for table in tables for name in table["architectures"]}


@lru_cache(maxsize=256)
def spelling(architecture: str) -> Spelling:
    """An architecture's own; as our inventory has it where the file tells of none."""
    table = _tables().get(architecture, {})
    names = tuple((ours, theirs) for ours, theirs in table.get("names", ()))
    return Spelling(names, tuple(table.get("plain", ())), table.get("expert_dtype", ""))
