"""Our errors beside other simulators' on the same open-loop runs: ``python benchmarks/rivals_open_loop.py DIR [ROWS.csv]``.

DIR, or its folder ``open_loop``, holds ``open_loop_runs.csv`` and ``rivals_open_loop.csv``; ROWS.csv is what ``commtax validate
--only open_loop_runs --rows`` wrote (else all runs are simulated first). Each rival is compared on the rows that both it and we
have, of those that nothing of ours was fitted on, a set at a time: one of the rivals was fitted on ``blis-training-set``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commtax_lab.published.scoring import check
from commtax_lab.published.tables import dicts, read

METRICS = ("e2e_mean", "ttft_mean")
Row = Mapping[str, str]
Pair = tuple[float, float]
"""A rival's absolute error as a share of what was measured, and ours."""


@dataclass(frozen=True)
class Comparison:
    """One rival on the rows of one set that it shares with us."""

    group: str
    metric: str
    rival: str
    pairs: Sequence[Pair]

    def line(self) -> str:
        theirs, ours = np.array(self.pairs).T
        cells = (np.mean(theirs), np.median(theirs), np.mean(ours), np.median(ours))
        return f"{self.group:20}{self.metric:12}{self.rival:28}{len(self.pairs):4}" + "".join(f"{x:10.1%}" for x in cells)


def our_predictions(path: Path) -> dict[tuple[str, str], float]:
    """Seconds by run and kind, of rows that have a price and that nothing of ours was fitted on."""
    rows = [r for r in dicts(*read(path)) if r["predicted"] and not r["skipped"] and r["fitted"] == "false"]
    return {(r["id"], r["kind"]): float(r["predicted"]) for r in rows}


def rivals_in(rows: Sequence[Row]) -> list[str]:
    return [column for column in rows[0] if column.startswith("pred_")]


def measured_s(row: Row, rival: str) -> float:
    """One rival was scored against real figures of its own."""
    own = row["actual_llmservingsim_ms"] if "llmservingsim" in rival else ""
    return float(own or row["actual_ms"]) / 1e3


def pairs_of(rows: Sequence[Row], rival: str, ours: Mapping[tuple[str, str], float]) -> Iterator[Pair]:
    for row in rows:
        key = row["run_id"], row["metric"]
        if row[rival] and row["actual_ms"] and key in ours:
            yield abs(float(row[rival]) / 1e3 / measured_s(row, rival) - 1), abs(ours[key] / (float(row["actual_ms"]) / 1e3) - 1)


def comparisons(rows: Sequence[Row], ours: Mapping[tuple[str, str], float]) -> Iterator[Comparison]:
    for group in dict.fromkeys(row["set"] for row in rows):
        for metric in METRICS:
            some = [row for row in rows if row["set"] == group and row["metric"] == metric]
            for rival in rivals_in(rows):
                pairs = list(pairs_of(some, rival, ours))
                if pairs:
                    yield Comparison(group, metric, rival.removeprefix("pred_").removesuffix("_ms"), pairs)


def main(folder: Path, rows_file: Path | None) -> None:
    places = (folder / "rivals_open_loop.csv", folder / "open_loop" / "rivals_open_loop.csv")
    rivals = dicts(*read(next((path for path in places if path.is_file()), places[0])))
    with tempfile.TemporaryDirectory() as place:
        if rows_file is None:
            rows_file = Path(place) / "rows.csv"
            check(folder, only="open_loop_runs", rows_to=rows_file)
        ours = our_predictions(rows_file)
    print(f"{'set':20}{'metric':12}{'rival':28}{'rows':>4}{'its MAPE':>10}{'median':>10}{'our MAPE':>10}{'median':>10}")
    for one in comparisons(rivals, ours):
        print(one.line())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
