"""Files of other tools, read into measurements."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from typing import Any, TypeVar, cast

from commtax.files import Json

Record = TypeVar("Record")


def table(name: str) -> Json:
    """What other tools call things, from a table beside the readers."""
    return tomllib.loads((files(__name__) / name).read_text(encoding="utf-8"))


def filled(record: type[Record], values: Mapping[str, object]) -> Record:
    """A record with those of the values that are its fields; the others keep what the record has for them."""
    names = [f.name for f in fields(cast(Any, record))]
    return record(**{name: values[name] for name in names if name in values})
