"""Does the predictor pick the right point? Groups of published runs with several TP degrees and concurrencies.

python benchmarks/decisions.py FILE.csv    (a table shaped as serving_runs.csv)

For each group (model, system, engine and version, precision, lengths) with at least two TP degrees and four points, and for
limits at the quartiles and the maximum of the group's measured TPOT: pick the point with the most predicted tokens/s/GPU
among those predicted to meet the limit. Right: it is as good as the best measured one that meets it. Broken: its measured
TPOT is above the limit. Loss: the tokens/s/GPU given up where it is wrong.

The limits lie on measured points, so a prediction that is right but for 1 % loses the best point half of the time. With
slack a limit counts as met when it is predicted to be missed by no more; each line is one slack, and the reader chooses
between breaking limits and giving up throughput.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from commtax.readers.published.serving import measured, question
from commtax.verbs.serving import simulate

SLACKS = (0.0, 0.01, 0.02, 0.0275, 0.04)


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
            real = measured(row)
            try:
                words = question(row)
            except ValueError:
                continue
            guess = simulate(**words)
            if len(real) < 2:
                continue
            tpot, ttft, guess_tpot, guess_ttft = real["tpot_s"], real["ttft_s"], float(guess.tpot_s), float(guess.ttft_s)
            out, clients = int(words["output_len"]), int(words["concurrency"])
            gpus = int(words.get("tp", 1)) * int(words.get("pp", 1)) * int(words.get("dp", 1))
            rates = [clients * out / (first + (out - 1) * each) / gpus for first, each in ((ttft, tpot), (guess_ttft, guess_tpot))]
            names = ("model_path", "system", "backend", "backend_version", "precision", "mode", "isl", "osl")
            key = tuple(row.get(n, "") for n in names)
            groups[key].append(Point(int(words.get("tp", 1)), tpot, rates[0], guess_tpot, rates[1]))
    return groups


def decide(group: list[Point], limit_s: float, slack: float) -> tuple[bool, bool, float]:
    """(right, limit broken, loss) of one decision."""
    best = max((p for p in group if p.tpot_s <= limit_s), key=lambda p: p.rate)
    hopeful = [p for p in group if p.predicted_tpot_s <= limit_s * (1 + slack)] or [min(group, key=lambda p: p.predicted_tpot_s)]
    chosen = max(hopeful, key=lambda p: p.predicted_rate)
    broken = chosen.tpot_s > limit_s * (1 + 1e-9)
    loss = max(0.0, 1 - chosen.rate / best.rate)
    return not broken and loss < 1e-9, broken, loss


def report(groups: list[list[Point]], slack: float) -> str:
    limits = [(g, float(np.quantile([p.tpot_s for p in g], q))) for g in groups for q in (0.25, 0.5, 0.75, 1.0)]
    results = [decide(g, limit, slack) for g, limit in limits]
    right, broken = np.mean([r for r, _, _ in results]), np.mean([b for _, b, _ in results])
    wrong = [loss for r, _, loss in results if not r]
    kept = [loss for r, b, loss in results if not r and not b]
    lost = f"median loss when wrong {np.median(wrong):.0%} ({np.median(kept):.0%} where the limit was kept)"
    return f"slack {slack:.2%}: right {right:.1%}, limit broken {broken:.1%}, {lost}"


def main(path: str) -> None:
    groups = [g for g in points(path).values() if len(g) >= 4 and len({p.tp for p in g}) > 1]
    print(f"{len(groups)} groups, {4 * len(groups)} decisions")
    for slack in SLACKS:
        print(report(groups, slack))


if __name__ == "__main__":
    main(sys.argv[1])
