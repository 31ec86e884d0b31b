"""The schemas that are served, derived from the types of the documents themselves."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from commtax.report.bills import PricedAnswer
from commtax.report.documents import LEFT_OUT, Value
from commtax.report.exact import FitAnswer
from commtax.report.view import Instead
from commtax.report.view.pictures import Front
from commtax.report.view.tour import Entry

Schema = dict[str, object]
PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
OPEN = (PricedAnswer, FitAnswer, Front, Entry)
"""Documents of which only the fields are told that all of their versions have."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Every refusal: what, under which key, by which rule, and the nearest values that would do."""

    error: str
    argument: str
    rule: str
    nearest: Sequence[Value]
    instead: Instead | None


def schema_of(kind: Any, parts: dict[str, Schema]) -> Schema:
    """The JSON schema of a type; records join the named ``parts`` and are referred to."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if is_dataclass(kind):
        return _reference(kind, parts)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (UnionType, Union):
        return {"anyOf": [schema_of(one, parts) for one in inner]}
    if origin is tuple and inner[-1] is not ...:
        items = [schema_of(one, parts) for one in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema_of(inner[0], parts)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1], parts)}
    return {}  # whatever JSON holds


def _reference(kind: Any, parts: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in parts:
        parts[name] = {}  # a record inside itself refers to what is being written
        hints = get_type_hints(kind)
        generated = (kind.__doc__ or "").startswith(f"{name}(")  # what a dataclass without words of its own is given
        parts[name] = {
            "type": "object",
            **({} if generated else {"description": inspect.getdoc(kind)}),
            "properties": {f.name.rstrip("_"): schema_of(hints[f.name], parts) for f in fields(kind)},
            "required": [f.name.rstrip("_") for f in fields(kind) if f.default is not LEFT_OUT],
            "additionalProperties": kind in OPEN,
        }
    return {"$ref": f"#/components/schemas/{name}"}
