"""What fitted numbers of engines and whole steps are, by name (``effects.toml``), and where an engine's have their values from."""

from collections.abc import Mapping
from functools import lru_cache

from commtax.catalog.loader import nearest_version, plain_record, stems
from commtax.catalog.loader import table as facts
from commtax.files import table
from commtax.records import dataclass
from commtax.spec import ENGINE_PARTS, Engine

KINDS = ("kernel", "effect", "host", "queue", "overlap", "memory", "range", "what-if", "profile")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One name's: what kind of number, what it is on, and by which mechanism."""

    kind: str
    on: str
    mechanism: str
    changes: str = ""  # "sizes": rows, bytes or launches of kernels, and not their rate …
    forms: tuple[str, ...] = ()  # … of these forms …
    parts: tuple[str, ...] = ()  # … or of these parts of a model …
    but_parts: tuple[str, ...] = ()  # … though never of these …
    when: str = ""  # … and only then: "eager", "compiled" (no eager), "grouped" (plain products of experts), "biased" (experts)
    dimensionless: bool = True  # a factor: 1 is none
    of: str = ""  # "chip": what the chip does under any engine; "": the engine's


UNKNOWN = Mechanism("", "", "")


@lru_cache(maxsize=1)
def mechanisms() -> Mapping[str, Mechanism]:
    return {name: plain_record(Mechanism, row, f"effects.{name}") for name, row in table("catalog/effects.toml").items()}


def mechanism(name: str) -> Mechanism:
    return mechanisms().get(name, UNKNOWN)


def engine_number(engine: Engine, name: str) -> float | None:
    """Return an engine's number of that name, whichever part it belongs to, or None where it has none."""
    holders = (getattr(engine, part) for part in ENGINE_PARTS)
    return next((float(getattr(one, name)) for one in holders if hasattr(one, name)), None)


def citation_of(engine: Engine, name: str) -> str:
    """Return where an engine's file has a number from."""
    newest = [str(facts("engines", engine.key)["version"])] if engine.key in stems("engines") else []
    versions = [*engine.versions, *newest]
    near = nearest_version(engine.version, versions) if versions else ""
    cited = engine.sources.get(f"versions.{near}.{name}") or engine.sources.get(name)
    return f"{cited.title} ({cited.date})" if cited and cited.date else cited.title if cited else ""
