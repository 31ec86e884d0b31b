"""Rows of published tables: how they name things (``names.toml``), their cells, and what can be asked of a row.

Which rows constants were fitted on is a rule that anyone can apply to a row, so that fit and test never mix: each kind of table
has its own (``is_fitted``).
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

from commtax.records import record_from
from commtax.statement import Refusal
from commtax.units import MAX_COUNT
from commtax_lab import lab_table

Row = Mapping[str, str]
Question = TypeVar("Question")
LEAST, MOST = 1e-9, 1e18
"""Between them lies every time, size and rate that was ever published; beyond them ratios overflow."""


def names() -> Any:
    return lab_table("published/names.toml")


def first_match(kind: str, text: str, before: str = "") -> str:
    """Return what the first matching pattern of a kind stands for, or ""."""
    patterns: list[tuple[str, str]] = names()["patterns"][kind]
    return next((meant for pattern, meant in patterns if re.search(f"{before}(?:{pattern})", text)), "")


def even_hash(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One figure of one input row. Seconds, or tokens/s where that is what was published."""

    kind: str
    source: str = ""
    system: str = ""
    chip: str = ""  # the catalogue's key; "": as the system's name tells
    library: str = ""
    version: str = ""
    mode: str = ""
    dtype: str = ""
    where: str = ""  # nvlink, pcie, xgmi …, or "across" hosts
    what: str = ""  # the row in words
    hint: str = ""  # what may explain an error
    skipped: str = ""  # why nothing can be asked of it
    tp: float = 0
    size: float = 0.0  # bytes of a tensor, rows of a product, tokens of a prompt: what bounds are cut by
    measured: float = float("nan")
    row: int = 0
    id: str = ""  # by which other predictors' figures of the same row are told
    fitted: bool = False
    publisher: str = ""  # who measured it
    run: str = ""  # what tells the run from all others; "": nothing does
    apart: str = ""  # the rule by which it is no test: tokens may have been drafted, it cannot fit, it was told before …
    sound: bool = True  # its source says neither that the network was broken nor leaves open which it was


@dataclass(frozen=True, slots=True)
class RowQuestion(Generic[Question]):
    """The figures of one row, and the question that all of them answer, or None."""

    entries: tuple[PublishedFigure, ...]
    question: Question | None


def read(
    rows: Sequence[Row], describe: Callable[[Row], PublishedFigure], ask: Callable[[Row, PublishedFigure], RowQuestion[Question]]
) -> list[RowQuestion[Question]]:
    """Read every row with its question, or the reason why it has none, equal rows only once."""
    by_cells: dict[tuple[tuple[str, str], ...], RowQuestion[Question]] = {}
    rows_read = []
    for index, row in enumerate(rows):
        key = tuple(row.items())
        if key not in by_cells:
            entry = describe(row)
            try:
                by_cells[key] = ask(row, entry)
            except ValueError as error:
                by_cells[key] = RowQuestion((replace(entry, skipped=str(error)),), None)
        answer = by_cells[key]
        entries = tuple(replace(entry, row=index, id=cell(row, "id")) for entry in answer.entries)
        rows_read.append(replace(answer, entries=entries))
    return rows_read


def publisher(row: Row) -> str:
    """Return who measured a row, by its source (``names.toml``, ``publishers``), or "" where it does not say.

    >>> publisher({"silicon_data_source": "db-dump/2026-04-27; config_id=6"}), publisher({"source": "arXiv:2104.04473 Table 1"})
    ('InferenceMAX', 'arXiv:2104.04473')
    >>> publisher({"experiment": "mlperf/v6.0/AMD/94xMI355X", "source_group": "mlperf-v6.0"})
    'MLPerf AMD'
    """
    source = " ".join(cell(row, name) for name in ("silicon_data_source", "experiment", "source", "source_id", "source_group"))
    return _publisher(source.strip())


@lru_cache(maxsize=8192)
def _publisher(source: str) -> str:
    for pattern, name in names()["patterns"]["publishers"]:
        if match := re.search(pattern, source, re.IGNORECASE):
            return match.expand(name)
    return re.split(r"[ ,;@]", source)[0]


def describe_row(row: Row, table: str) -> PublishedFigure:
    """Return what a row says of itself in the columns of its table."""
    cells = {name: cell(row, *columns) for name, columns in names()["described"][table].items()}
    return record_from(PublishedFigure, {"kind": "", "publisher": publisher(row), **cells})


def cell(row: Row, *names: str) -> str:
    """Return the first of these columns that is not empty."""
    return next((text for name in names if (text := (row.get(name) or "").strip())), "")


def lower_cell(row: Row, *names: str) -> str:
    return cell(row, *names).lower()


def number(row: Row, name: str, least: float = LEAST, most: float = MOST) -> float:
    """Return a figure of a row, above 0."""
    text = cell(row, name)
    try:
        value = float(text)
    except ValueError:
        raise Refusal(f"column {name} is {'empty' if not text else f'{text!r}, not a number'}", name) from None
    if not least <= value <= most:
        raise Refusal(f"column {name} is {text[:40]}: a figure from {least:g} to {most:g} is needed", name)
    return value


def mix(text: str) -> tuple[tuple[float, float], ...]:
    """Return lengths and shares of ``mix(256:0.5,4096:0.5)``, none of a text that is no mix. Refuse a broken one.

    >>> mix("mix(256:1,4096:3)"), mix("1024")
    (((256.0, 0.25), (4096.0, 0.75)), ())
    """
    match = re.fullmatch(r"mix\((.*)\)", text.strip().lower())
    if not match:
        return ()
    parts = [re.fullmatch(r"\s*(\d{1,8}(?:\.\d+)?)\s*:\s*(\d{1,8}(?:\.\d*)?|\.\d+)\s*", part) for part in match[1].split(",")]
    pairs = [(float(part[1]), float(part[2])) for part in parts if part]
    every = sum(share for _, share in pairs)
    if len(pairs) < len(parts) or not every or min(length for length, _ in pairs) < 1:
        raise Refusal(f"lengths '{text[:60]}': a mix is written mix(256:0.5,4096:0.5), lengths from 1 with their shares")
    return tuple((length, share / every) for length, share in sorted(pairs))


def tokens(row: Row, name: str, default: float | None = None) -> float:
    """Return a length of a row: a whole number of tokens, or the mean of a mix."""
    if parts := mix(cell(row, name)):
        return sum(length * share for length, share in parts)
    return default if default is not None and not cell(row, name) else float(whole_cell(row, name))


def whole_cell(row: Row, name: str, default: int | None = None) -> int:
    return default if default is not None and not cell(row, name) else int(number(row, name, 1, MAX_COUNT))
