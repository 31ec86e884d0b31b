"""How checkpoints of each architecture spell the modules that our inventory names, and what they never quantise."""

from functools import lru_cache

from commtax.catalog.loader import FACTS, Table
from commtax.files import table as kept
from commtax.records import dataclass


@dataclass(frozen=True, slots=True)
class Spelling:
    """``names``: our fragments and theirs, replaced one after the other; ``plain``: modules that stay as they are."""

    names: tuple[tuple[str, str], ...] = ()
    plain: tuple[str, ...] = ()
    expert_dtype: str = ""  # of experts where a config does not say it


@lru_cache(maxsize=1)
def _tables() -> dict[str, Table]:
    """One table a family, with its architectures."""
    tables: list[Table] = kept(str(FACTS / "spellings.toml"))["family"]
    return {name: table for table in tables for name in table["architectures"]}


@lru_cache(maxsize=256)
def spelling(architecture: str) -> Spelling:
    """An architecture's own; as our inventory has it where the file tells of none."""
    table = _tables().get(architecture, {})
    names = tuple((ours, theirs) for ours, theirs in table.get("names", ()))
    return Spelling(names, tuple(table.get("plain", ())), table.get("expert_dtype", ""))
