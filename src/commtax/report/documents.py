"""Answers as JSON documents: ``documents.toml`` says of every key where its value is and how it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import cast

import numpy as np

from commtax.catalog.techniques import techniques_on
from commtax.files import table
from commtax.question import Question
from commtax.redaction import redact
from commtax.spec import SIZES

Value = int | float | str | None
Record = dict[str, object]  # what is written as a JSON object, a document or a row of one: nobody reads its values back
LEFT_OUT = object()  # a value that its document does not have this time
Way = Callable[[object], object]
# How a value is told
WAYS: dict[str, Way] = {
    "": lambda value: value,
    "whole": lambda value: round(value) if isinstance(value, float) and isfinite(value) else value,
    "if any": lambda value: value or LEFT_OUT,
    "or null": lambda value: value or None,
    "if there": lambda value: LEFT_OUT if value is None else value,
}


@lru_cache(maxsize=1)
def _mappings() -> Mapping[str, Mapping[str, str]]:
    whole = table("report/documents.toml")
    return whole | {f"records.{name}": keys for name, keys in whole.pop("records").items()}


@lru_cache(maxsize=64)
def _mapping(name: str) -> dict[str, tuple[str, Way]]:
    keys = dict(_mappings()[name])
    base = _mapping(keys.pop("+")) if "+" in keys else {}
    parts = {key: text.partition(", ") for key, text in keys.items()}
    return base | {key: (path, WAYS[way]) for key, (path, _, way) in parts.items()}


def record(name: str, /, **parts: object) -> Record:
    """Return a record made of its parts, as ``documents.toml`` maps it. The keys of "*" are those of a record among them."""
    values: Record = {}
    for key, (path, way) in _mapping(name).items():
        value = way(look_up(path, parts))
        if key.startswith("*"):
            values |= cast("Record", value)
        elif value is not LEFT_OUT:
            values[key] = value
    return values


def value_of(name: str, key: str, parts: Mapping[str, object]) -> object:
    """Return the value of one key of a record, None where the record does without it."""
    path, way = _mapping(name)[key]
    value = way(look_up(path, parts))
    return None if value is LEFT_OUT else value


def facts(source: object, *names: str) -> Record:
    """Return some facts of a record under their own names."""
    return {name: getattr(source, name) for name in names}


def look_up(path: str, parts: Mapping[str, object]) -> object:
    if path.startswith("= "):
        return path[2:]
    first, *names = path.split(".")
    value = parts[first] if first != "null" else None
    if callable(value):  # what is dear is made when somebody wants it
        value = value()
    for name in names:
        if value is None or value is LEFT_OUT:
            break
        value = getattr(value, name)
    return value


@lru_cache(maxsize=256)
def _fields(kind: type) -> tuple[tuple[str, str, Way], ...]:
    """Return the fields of a record that stands in a document as it is, their keys, and how they are told."""
    other = {name: text.partition(", ") for name, text in _mappings().get(f"records.{kind.__name__}", {}).items()}
    usual = {f.name: (f.name.rstrip("_"), "", "") for f in fields(kind)}
    return tuple((name, key, WAYS[way]) for name, (key, _, way) in (usual | other).items())


def to_json(value: object) -> object:
    """Make records JSON's own, NumPy numbers and arrays too: whole floats as ints, infinity (no limit) and no number as null."""
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if not isfinite(value) else int(value) if value.is_integer() and abs(value) < 2**63 else value
    if isinstance(value, dict) or is_dataclass(value):
        return to_object(value)
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return redact(value) if isinstance(value, str) else value


def to_object(value: object) -> Record:
    """Make a record, or a data class that stands in a document as it is, an object of JSON."""
    kind: type = type(value)
    items = value if isinstance(value, dict) else {key: way(getattr(value, name)) for name, key, way in _fields(kind)}
    return {k: to_json(v) for k, v in items.items() if v is not LEFT_OUT}


def add_notes(document: Record, remarks: Sequence[object]) -> None:
    """Put remarks behind the notes of a document, each once."""
    if remarks:
        notes = document.get("notes")
        document["notes"] = list(dict.fromkeys([*(notes if isinstance(notes, list) else []), *remarks]))


def engine_name(q: Question) -> str:
    """Return the engine and its version: ``vllm@0.31``."""
    return f"{q.engine.key}@{q.engine.version}"


def document(name: str, q: Question, /, **parts: object) -> Record:
    """Return a document that answers one question."""
    plan = q.plan
    loras = plan.max_loras if plan.lora_rank else None
    shared = plan.dcp if np.any(np.asarray(plan.dcp) > 1) else None
    kinds = record("plan", plan=plan, sharing=shared, max_loras=loras, weights_dtype=plan.weights_dtype or "checkpoint")
    usual: Record = {"engine": engine_name(q), "plan": facts(plan, *SIZES) | kinds}
    usual |= {"idle_gpus": q.cluster.num_gpus - plan.all_gpus, "techniques": [text for _, text in techniques_on(q)]}
    return record(name, question=q, **(usual | parts))
