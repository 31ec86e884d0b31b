"""What the JSON documents hold: a schema of each, from what commands print (``json_reference.toml``) and the table of keys.

A key that the table calls optional, or that only some answers have, is not required. No number (infinity, not known) is null, so
every plain value may be.
"""

from __future__ import annotations

import io
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reference import rows_table

from commtax.cli import main as run_command
from commtax.files import table
from commtax.report.figures import figures

ROOT = Path(__file__).parents[2]
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Schema = dict[str, Any]


FIGURES = """# Figures

Figures of answers as tables on a terminal and on the page show them: the key that JSON documents have, the
name, the unit, and what it is. The table in the program that this is made from is `report/figures.toml`.
"""


def listed() -> dict[str, list[str]]:
    return TABLES["documents"]


def document(command: str) -> dict[str, Any]:
    """What a command prints with ``--json``; an exit code that says no is an answer too."""
    out = io.StringIO()
    with TemporaryDirectory() as place, chdir(place), redirect_stdout(out):
        for folder in ("examples", "tests"):  # that commands name; what they write goes with the place
            Path(folder).symlink_to(ROOT / folder)
        try:
            run_command([*shlex.split(command), "--json"])
        except SystemExit as end:
            if end.code not in (0, 1, 3, None):
                raise
    return json.loads(out.getvalue())


def schema_of(values: Iterable[Any], records: Iterable[tuple[set[str], set[str]]]) -> Schema:
    """One schema that all values satisfy."""
    every, known = list(values), list(records)
    objects = [value for value in every if isinstance(value, dict)]
    lists = [value for value in every if isinstance(value, list)]
    types = sorted({kind for value in every for kind in json_types(value)})
    made: Schema = {"type": types[0] if len(types) == 1 else types} if types else {}
    if set(types) == {"null"}:
        return {}  # no answer says what it would be
    if objects:
        keys = list(dict.fromkeys(key for one in objects for key in one))
        made["properties"] = {key: schema_of([one[key] for one in objects if key in one], known) for key in keys}
        made["required"] = sorted(always_there(objects, known))
    if lists and (items := [item for one in lists for item in one]):
        made["items"] = schema_of(items, known)
    return made


def json_types(value: Any) -> tuple[str, ...]:
    """Plain values may be null."""
    if isinstance(value, dict):
        return ("object",)
    if isinstance(value, list):
        return ("array",)
    plain = {bool: "boolean", int: "number", float: "number", str: "string"}
    return (plain[type(value)], "null") if value is not None else ("null",)


def records() -> list[tuple[set[str], set[str]]]:
    """Of each record of the table of keys: those that it always has, and those that it may have."""
    whole: Mapping[str, Mapping[str, str]] = table("report/documents.toml")

    def keys(name: str) -> dict[str, str]:
        own = dict(whole[name])
        return (keys(own.pop("+")) if "+" in own else {}) | own

    found = [keys(name) for name in whole if name != "records"]
    maybe = [{key for key, way in one.items() if "if any" in way or "if there" in way} for one in found]
    return [({key for key in one if not key.startswith("*")} - some, some) for one, some in zip(found, maybe, strict=True)]


def always_there(objects: list[dict[str, Any]], known: list[tuple[set[str], set[str]]]) -> set[str]:
    """Keys that all have and a record of the table calls no option; of an object that is none of its records none is promised."""
    seen, shared = set().union(*objects), set(objects[0]).intersection(*objects)
    promised = [always & shared for always, maybe in known if seen <= always | maybe]
    return max(promised, key=len, default=set())


def schema(name: str) -> Schema:
    """Of a document that is listed."""
    answers = [document(command) for command in listed()[name]]
    strange = {one["schema"] for one in answers} - {name}
    if strange:
        raise ValueError(f"{name}: a command printed {', '.join(strange)}")
    made = schema_of(answers, records())
    made["required"] = sorted({*made["required"], "schema"})
    made["properties"]["schema"] = {"const": name}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **made}


def file_name(name: str) -> str:
    """``commtax.bill/1`` as a file: ``commtax.bill.1.json``."""
    return f"reference/schemas/{name.replace('/', '.')}.json"


def unit_words(key: str) -> str:
    """Return the unit of a number: that of the figure, else what the end of its key says."""
    figure = figures().get(key)
    return (
        TABLES["figure_units"].get(figure.unit, "")
        if figure
        else next((words for end, words in TABLES["units"].items() if key.endswith(end)), "")
    )


def figure_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each figure of tables: its key, name, unit with the direction that is better, and meaning."""
    for key, one in figures().items():
        unit = TABLES["figure_units"].get(one.unit, "")
        if one.unit not in ("text", "setup") and "{" not in one.name:
            yield f"`{key}`", one.name, ", ".join(filter(None, (unit, "less is better" if one.less else ""))), one.help


def key_rows(told: Schema, before: str = "") -> Iterator[tuple[str, str, str]]:
    """Keys with what they hold, those of records within by their path."""
    required = set(told.get("required", ()))
    for key, one in told.get("properties", {}).items():
        types = one.get("type", [])
        plain = [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]
        unit = unit_words(key) if plain == ["number"] else ""
        often = "" if key in required or not required else "sometimes"
        said = f"`{one['const']}`" if "const" in one else " or ".join(plain) or "null unless asked for"
        yield f"`{before}{key}`", said, ", ".join(filter(None, (unit, often)))
        inner = one.get("items", one)
        if "properties" in inner:
            yield from key_rows(inner, f"{before}{key}{'[]' if 'items' in one else ''}.")


def pages() -> dict[str, str]:
    """The page, and a file for each schema."""
    made, parts = {name: schema(name) for name in listed()}, [TABLES["intro"].strip()]
    for name, one in made.items():
        link = f"[JSON Schema]({file_name(name).removeprefix('reference/')})"
        parts += [f"## {name}", f"```sh\ncommtax {listed()[name][0]} --json\n```", link]
        parts.append(rows_table(("key", "holds", ""), key_rows(one)))
    figure_table = rows_table(("key", "called", "", "what it is"), figure_rows())
    return {
        "reference/figures.md": f"{FIGURES.strip()}\n\n{figure_table}\n",
        "reference/json.md": "\n\n".join(parts) + "\n",
        **{file_name(name): json.dumps(one, indent=1) + "\n" for name, one in made.items()},
    }
