"""The programs of engines, for commands and no price; and what their fitted numbers are (``effects.toml``) and come from."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from commtax.catalog.loader import nearest_version, plain_record, stems, table
from commtax.files import table as data
from commtax.records import dataclass
from commtax.spec import ENGINE_PARTS, Engine, Program

APART = ("program", "flags")  # sections of an engine's file that its record is made without


@lru_cache(maxsize=1)
def programs() -> tuple[Program, ...]:
    """Return engines with a launch command that is read and written, in the order in which they are listed."""
    listed: list[Program] = []
    for key in stems("engines"):
        facts = table("engines", key)
        if section := facts.get("program"):
            starts = [tuple(start) for start in section.get("starts", ())]
            section = {"emitted_as": key, **section, "starts": starts, "key": key, "trains": "train" in facts["phases"]}
            listed.append(plain_record(Program, section, f"engines/{key}"))
    return tuple(sorted(listed, key=lambda program: program.place))


def program(key: str) -> Program:
    return next(one for one in programs() if one.key == key)


def program_of(engine: Engine) -> Program:
    """Return an engine's program, or the one that stands for it: as its file says, else the first of those that run its phases."""
    able = [one for one in programs() if one.trains == ("train" in engine.phases)]
    return next((one for one in able if one.key in (engine.key, engine.launched_as)), able[0])


def flag_table(key: str) -> dict[str, Any]:
    """Return an engine's spellings of our options, by kind of value."""
    return dict(table("engines", key)["flags"])


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
    return {name: plain_record(Mechanism, row, f"effects.{name}") for name, row in data("catalog/effects.toml").items()}


def mechanism(name: str) -> Mechanism:
    return mechanisms().get(name, UNKNOWN)


def engine_number(engine: Engine, name: str) -> float | None:
    """Return an engine's number of that name, whichever part it belongs to, or None where it has none."""
    holders = (getattr(engine, part) for part in ENGINE_PARTS)
    return next((float(getattr(one, name)) for one in holders if hasattr(one, name)), None)


def citation_of(engine: Engine, name: str) -> str:
    """Return where an engine's file has a number from."""
    newest = [str(table("engines", engine.key)["version"])] if engine.key in stems("engines") else []
    versions = [*engine.versions, *newest]
    near = nearest_version(engine.version, versions) if versions else ""
    cited = engine.sources.get(f"versions.{near}.{name}") or engine.sources.get(name)
    return f"{cited.title} ({cited.date})" if cited and cited.date else cited.title if cited else ""
