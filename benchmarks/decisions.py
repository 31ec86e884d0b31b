"""Does the predictor pick the right point? Groups of published runs with several TP degrees and concurrencies.

python benchmarks/decisions.py FILE.csv    (a table shaped as serving_runs.csv)

For each group (model, system, engine and version, precision, lengths) with at least two TP degrees and four points, and for
limits at the quartiles and the maximum of the group's measured TPOT: pick the point with the most predicted tokens/s/GPU
among those predicted to meet the limit. Right: it is the best measured one that meets it. Broken: its measured TPOT is above
the limit. Loss: what is given up where it is wrong and not broken.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from commtax.validate.serving_rows import ask, measured, predict


@dataclass(frozen=True)
class Point:
    tp: int
    tpot_s: float
    rate: float  # measured tokens/s/GPU
    predicted_tpot_s: float
    predicted_rate: float


def points(path: str) -> dict[tuple[str, ...], list[Point]]:
    """The runs of a file by group, predicted and measured."""
    groups: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            words, skipped = ask(row)
            if skipped:
                continue
            real, guess = measured(row), predict(row)
            if len(real) < 2:
                continue
            tpot, ttft, guess_tpot, guess_ttft = (float(x[n]) for x in (real, guess) for n in ("tpot_s", "ttft_s"))
            out, clients = int(words["output_len"]), int(words["concurrency"])
            gpus = int(words.get("tp", 1)) * int(words.get("pp", 1)) * int(words.get("dp", 1))
            rates = [clients * out / (first + (out - 1) * each) / gpus for first, each in ((ttft, tpot), (guess_ttft, guess_tpot))]
            names = ("model_path", "system", "backend", "backend_version", "precision", "mode", "isl", "osl")
            key = tuple(row.get(n, "") for n in names)
            groups[key].append(Point(int(words.get("tp", 1)), tpot, rates[0], guess_tpot, rates[1]))
    return groups


def decide(group: list[Point], limit_s: float) -> tuple[bool, bool, float] | None:
    """(right, limit broken, loss) of one decision; None where nothing measured meets the limit."""
    able = [p for p in group if p.tpot_s <= limit_s]
    if not able:
        return None
    best = max(able, key=lambda p: p.rate)
    hopeful = [p for p in group if p.predicted_tpot_s <= limit_s] or [min(group, key=lambda p: p.predicted_tpot_s)]
    chosen = max(hopeful, key=lambda p: p.predicted_rate)
    broken = chosen.tpot_s > limit_s * (1 + 1e-9)
    loss = 1 - chosen.rate / best.rate
    return chosen is best, broken, loss


def main(path: str) -> None:
    results = []
    for group in points(path).values():
        if len(group) < 4 or len({p.tp for p in group}) < 2:
            continue
        for quantile in (0.25, 0.5, 0.75, 1.0):
            found = decide(group, float(np.quantile([p.tpot_s for p in group], quantile)))
            if found is not None:
                results.append(found)
    right, broken = np.mean([r for r, _, _ in results]), np.mean([b for _, b, _ in results])
    wrong = [loss for r, b, loss in results if not r and not b]
    lost = f"median loss when wrong {np.median(wrong):.0%} ({len(wrong)})"
    print(f"{len(results)} decisions: right {right:.0%}, limit broken {broken:.0%}, {lost}")


if __name__ == "__main__":
    main(sys.argv[1])
