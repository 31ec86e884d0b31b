"""Another predictor's figures for the same rows: a CSV with the rows' ``id`` and columns such as ``ttft`` and ``tpot``.

A column's name tells its unit (``ttft_ms``, ``tpot_s``). Where it does not, milliseconds and seconds are both tried against what
was measured, a factor of 1,000 apart: the nearer one is meant, and the answer says so.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commtax.statement import Refusal
from commtax_lab.published.metrics import Metric, metric
from commtax_lab.published.rows import MOST, Row, cell
from commtax_lab.published.tables import dicts, read

SAID = re.compile(r"_(ms|us|s|sec|seconds)(_mean|_avg)?$")
PREDICTED = re.compile(r"^(predicted|pred|estimated|estimate|est|simulated|sim|rival)_")
TIMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Rival:
    """Figures by kind and id. ``unsaid`` kinds have times whose column names no unit, kept as they are."""

    name: str
    figures: Mapping[str, Mapping[str, float]]
    unsaid: frozenset[str]
    ids: int  # rows with an id
    unread: int  # figures that are no number above 0


def read_rival(path: Path) -> Rival:
    header, lines = read(path, what="compare")
    plain = [re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") for column in header]
    if "id" not in plain:
        raise Refusal(
            f"compare '{path}': has no column id, which says what row a figure is of ({_column_words(header)})", "compare"
        )
    columns = {name: measured for name in plain if (measured := metric(PREDICTED.sub("", name))) and not measured.per_gpu}
    if not columns:
        raise Refusal(f"compare '{path}': has no figure, such as ttft_ms or tpot_ms ({_column_words(header)})", "compare")
    rows = {cell(row, "id"): row for row in dicts(plain, lines) if cell(row, "id")}
    if not rows:
        raise Refusal(f"compare '{path}': no row has an id", "compare")
    figures = {measured.kind: _column(rows, name, measured) for name, measured in columns.items()}
    filled = sum(1 for row in rows.values() for name in columns if cell(row, name))
    unsaid = frozenset(measured.kind for name, measured in columns.items() if measured.kind in TIMES and not SAID.search(name))
    return Rival(path.name, figures, unsaid, len(rows), filled - sum(map(len, figures.values())))


def _column(rows: Mapping[str, Row], name: str, measured: Metric) -> dict[str, float]:
    figures = {key: _number(cell(row, name)) * measured.unit for key, row in rows.items()}
    return {key: value for key, value in figures.items() if 0 < value <= MOST}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _column_words(header: list[str]) -> str:
    return (
        f"its columns: {', '.join(name[:30] for name in header[:8])}{' …' if len(header) > 8 else ''}" if header else "it is empty"
    )
