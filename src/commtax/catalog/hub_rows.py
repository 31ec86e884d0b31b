"""Models of the Hub that are one row of ``hub_models.toml`` each, made into what a file of ``models`` says."""

import re
from collections.abc import Iterator
from typing import Any

from commtax.files import Json, JsonObject
from commtax.files import table as kept

Table = dict[str, Any]
Row = tuple[Table, str, str, Json, list[Json], list[str]]
"""The table that a row stands in, and the row: key, id, parameters as published, values, other ids."""
UNITS = {"B": 1e9, "M": 1e6}


def rows(path: str) -> dict[str, Row]:
    """All rows by their keys."""
    return {r[0]: (family, r[0], r[1], r[2], r[3], r[4]) for family in kept(path)["family"] for r in family["rows"]}


def expand_row(row: Row) -> JsonObject:
    """A row as a model's own file would say it."""
    family, key, name, counts, values, others = row
    url, title = f"https://huggingface.co/{name}", f"config.json of {name} on the Hugging Face Hub"
    rest, own = family["rest"], dict(zip(family["fields"], values, strict=True))
    section = family.get("section", "")
    sizes: JsonObject = {section: {**rest[section], **own}} if section else own
    return {
        "key": key,
        "aliases": [name, *others],
        "config": {"architectures": [family["architecture"]], **rest, **sizes},
        "source": {"title": title, "url": f"{url}/blob/main/config.json", "date": ""},
        "published": [*_published_totals(counts, url)],
        "assumed_length": key in family.get("assumed_length", ()),
    }


def _published_totals(counts: Json, url: str) -> Iterator[JsonObject]:
    """Totals of tensors are whole numbers; cards print them rounded. A second one is of those that a token uses."""
    for kind, count in zip(("total", "active"), counts if isinstance(counts, list) else [counts], strict=False):
        exact = isinstance(count, int)
        title = "tensor total of the checkpoint on the Hugging Face Hub" if exact else "as the model's card prints it"
        params, digits = (count, 0) if isinstance(count, int) else parse_printed_count(str(count))
        source: JsonObject = {"title": title, "url": url, "date": ""}
        yield {"params": params, "kind": kind, "digits": digits, "beyond": 0, "includes": "", "source": source}


def parse_printed_count(text: str) -> tuple[int, int]:
    """A printed count, and its significant digits.

    >>> parse_printed_count("12.30B"), parse_printed_count("0.4B")
    ((12300000000, 4), (400000000, 1))
    """
    return round(float(text[:-1]) * UNITS[text[-1]]), len(re.sub(r"^0*", "", text[:-1].replace(".", "")))
