"""Models of the Hub that are one row of ``hub_models.toml`` each, made into what a file of ``models`` says."""

import re
from collections.abc import Iterator
from typing import NamedTuple, NotRequired, TypedDict

from commtax.files import JsonObject, JsonValue, object_of, text_of
from commtax.files import table as kept


class HubFamily(TypedDict):
    """What rows of one table share."""

    architecture: str
    fields: list[str]
    rest: dict[str, JsonValue]
    section: NotRequired[str]
    assumed_length: NotRequired[list[str]]


class HubRow(NamedTuple):
    """A row, and the table that it stands in."""

    family: HubFamily
    key: str
    name: str  # its id
    counts: JsonValue  # parameters as published: one count, or a list of two
    values: list[JsonValue]
    others: list[str]  # ids whose configs say the same


UNITS = {"B": 1e9, "M": 1e6}


def rows(path: str) -> dict[str, HubRow]:
    """All rows by their keys."""
    return {row[0]: HubRow(family, *row) for family in kept(path)["family"] for row in family["rows"]}


def expand_row(row: HubRow) -> JsonObject:
    """A row as a model's own file would say it."""
    url = f"https://huggingface.co/{row.name}"
    title = f"config.json of {row.name} on the Hugging Face Hub"
    return {
        "key": row.key,
        "aliases": [row.name, *row.others],
        "config": _config(row.family, row.values),
        "source": {"title": title, "url": f"{url}/blob/main/config.json", "date": ""},
        "published": [*_published_totals(row.counts, url)],
        "assumed_length": row.key in row.family.get("assumed_length", ()),
    }


def _config(family: HubFamily, values: list[JsonValue]) -> JsonObject:
    rest, own = family["rest"], dict(zip(family["fields"], values, strict=True))
    section = family.get("section", "")
    sizes: JsonObject = {section: {**object_of(rest[section]), **own}} if section else own
    return {"architectures": [family["architecture"]], **rest, **sizes}


def _published_totals(counts: JsonValue, url: str) -> Iterator[JsonObject]:
    """Totals of tensors are whole numbers; cards print them rounded. A second one is of those that a token uses."""
    for kind, count in zip(("total", "active"), counts if isinstance(counts, list) else [counts], strict=False):
        exact = isinstance(count, int)
        title = "tensor total of the checkpoint on the Hugging Face Hub" if exact else "as the model's card prints it"
        params, digits = (count, 0) if isinstance(count, int) else parse_printed_count(text_of(count))
        source: JsonObject = {"title": title, "url": url, "date": ""}
        yield {"params": params, "kind": kind, "digits": digits, "beyond": 0, "includes": "", "source": source}


def parse_printed_count(text: str) -> tuple[int, int]:
    """A printed count, and its significant digits.

    >>> parse_printed_count("12.30B"), parse_printed_count("0.4B")
    ((12300000000, 4), (400000000, 1))
    """
    return round(float(text[:-1]) * UNITS[text[-1]]), len(re.sub(r"^0*", "", text[:-1].replace(".", "")))
