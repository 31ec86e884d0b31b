"""The programs of engines: sections of an engine's file that are read where a command is read or written, and for no price."""

from functools import lru_cache
from typing import Any

from commtax.catalog.loader import plain_record, stems, table
from commtax.spec import Engine, Program

APART = ("program", "flags")  # sections of an engine's file that its record is made without


@lru_cache(maxsize=1)
def programs() -> tuple[Program, ...]:
    """Return engines with a launch command that is read and written, in the order in which they are listed."""
    return tuple(sorted((_program(key) for key in stems("engines") if "program" in table("engines", key)), key=lambda p: p.place))


def _program(key: str) -> Program:
    facts = table("engines", key)
    section = {**facts["program"], "starts": [tuple(start) for start in facts["program"].get("starts", ())]}
    emitted_as = section.get("emitted_as", key)
    return plain_record(
        Program, {**section, "key": key, "trains": "train" in facts["phases"], "emitted_as": emitted_as}, f"engines/{key}"
    )


def program(key: str) -> Program:
    return next(one for one in programs() if one.key == key)


def program_of(engine: Engine) -> Program:
    """Return an engine's program, or the one that stands for it: as its file says, else the first of those that run its phases."""
    able = [one for one in programs() if one.trains == ("train" in engine.phases)]
    return next((one for one in able if one.key in (engine.key, engine.launched_as)), able[0])


def flag_table(key: str) -> dict[str, Any]:
    """Return an engine's spellings of our options, by kind of value."""
    return dict(table("engines", key)["flags"])
