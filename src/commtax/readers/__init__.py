"""Files of other tools, read into measurements."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

Record = TypeVar("Record")


def filled(record: type[Record], values: Mapping[str, object]) -> Record:
    """A record with those of the values that are its fields; the others keep what the record has for them."""
    names = [f.name for f in fields(cast(Any, record))]
    return record(**{name: values[name] for name in names if name in values})
