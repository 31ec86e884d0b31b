"""Does the predictor pick the right point? Groups of published runs with several TP degrees and concurrencies.

python benchmarks/decisions.py FILE.csv …    (tables shaped as serving_runs.csv), with the constants that ship
python benchmarks/decisions.py FOLDER        all tables of a folder, each file left out of the fit that predicts it (minutes)

For each group (model, system, engine and version, precision, lengths) with at least two TP degrees and four points, and for a
limit of TPOT or of TTFT: of the points that are predicted to keep the limit with a confidence, take the one with the most predicted
tokens/s/GPU; where none is, the one that comes nearest. Runs of one configuration that were repeated are one point, their median.

right     it is as good as the best measured one that keeps the limit, and beside it: within 2 % of that
broken    its measured time is above the limit
kept      its tokens/s/GPU over those of the best, 0 where the limit is broken; the mean of all decisions

Limits lie on measured points (the quartiles and the maximum of a group), where a prediction that is right but for 1 % loses the
best point half of the time, and between them (the geometric mean of two neighbours), as those of users do. Confidence 50 % goes by
the central prediction; a higher one breaks fewer limits and gives up throughput. Disaggregated runs count where the number of
their workers is stated.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from commtax.catalog.transfer import sigma
from commtax.judgement.confidence import Estimate
from commtax.ledger import Z80
from commtax.question import CONFIDENCE
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax_lab.published.serving_rows import may_draft, measured_means, question

CONFIDENCES = (0.5, 0.6, CONFIDENCE, 0.7, 0.8, 0.9)
NEAR = 0.02  # of the best tokens/s/GPU: a choice that loses no more is as good, for runs repeat no better
NAMES = ("model_path", "system", "backend", "backend_version", "precision", "mode")
LENGTHS = ("input_len", "output_len", "spread")
STATED = ("prefill_num_workers", "decode_num_workers")
TIMES = ("tpot_s", "ttft_s")


@dataclass(frozen=True)
class Point:
    """One configuration: measured times and tokens/s/GPU, and predicted ones with their ranges."""

    tp: int
    measured: dict[str, float]
    rate: float
    predicted: dict[str, Estimate]
    predicted_rate: float
    moe: bool
    basis: str


Group = list[Point]
Asked = tuple[tuple[str, str], ...]
"""All that a run was asked with: what tells configurations apart."""
Kind = Callable[[Point], bool]


@dataclass(frozen=True)
class Decision:
    share: float  # of the best tokens/s/GPU; 0: the limit is broken
    broken: bool


def rate(clients: int, out: int, gpus: float, times: dict[str, float]) -> float:
    """Output tokens/s of a GPU in a closed loop."""
    return clients * out / (times["ttft_s"] + (out - 1) * times["tpot_s"]) / gpus


def runs(paths: Iterable[str]) -> Iterator[tuple[tuple[str, ...], Asked, dict[str, float], ClosedLoop]]:
    """(group, configuration, measured means, prediction) of each run that can be asked and has both times."""
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                real = measured_means(row)
                if len(real) < len(TIMES) or (row.get("mode") == "disagg" and not all(row.get(name) for name in STATED)):
                    continue
                try:
                    words = question(row)
                    if may_draft(row):  # its times are not of one token a step
                        continue
                    guess = simulate(**words)
                except ValueError:
                    continue
                asked = tuple(sorted((name, str(value)) for name, value in words.items() if name != "model"))
                lengths = (str(words.get(n, "")) for n in LENGTHS)
                yield (*(row.get(n, "") for n in NAMES), *lengths), asked, real, guess


def point(reals: list[dict[str, float]], guess: ClosedLoop) -> Point:
    """All runs of one configuration as one."""
    clients, out, gpus = int(guess.requests.concurrency), int(guess.requests.output_len), float(guess.num_gpus or np.nan)
    real = {name: float(np.median([run[name] for run in reals])) for name in TIMES}
    known = {name: Estimate(float(getattr(guess, name)), *map(float, guess.range_of(name))) for name in TIMES}
    means = {name: float(estimate.value) for name, estimate in known.items()}
    kind = bool(guess.question.model.experts), guess.basis
    return Point(int(guess.question.plan.tp), real, rate(clients, out, gpus, real), known, rate(clients, out, gpus, means), *kind)


def groups(paths: Iterable[str]) -> list[Group]:
    """Those that leave a choice."""
    known: dict[tuple[str, ...], dict[Asked, tuple[list[dict[str, float]], ClosedLoop]]] = defaultdict(dict)
    for group, configuration, real, guess in runs(paths):
        known[group].setdefault(configuration, ([], guess))[0].append(real)
    every = [[point(*run) for run in group.values()] for group in known.values()]
    return [g for g in every if len(g) >= 4 and len({p.tp for p in g}) > 1]


def without_their_file(folder: Path) -> list[Group]:
    """Groups of one pool's runs, each predicted by constants that its file had no part in; drafted and impossible ones apart."""
    import fit_serving  # beside this file; not needed for the constants that ship

    pool = fit_serving.Pool(fit_serving.groups(folder))
    x, (errors, slopes) = pool.fit()
    fold = {one.name: one.errors for one in fit_serving.left_out(pool, x, errors, slopes, ("file",))}
    known: dict[tuple[str, ...], dict[tuple[float, ...], list[Point]]] = defaultdict(lambda: defaultdict(list))
    for i, group in enumerate(pool.groups):
        off = np.split(fold[group.names["file"]][pool.group_of == i], len(TIMES))
        for j in [] if group.only_tests else np.flatnonzero(~group.apart):
            arrays = {name: float(np.broadcast_to(value, len(group.apart))[j]) for name, value in group.arrays.items()}
            real = {f"{m}_s": float(group.seen[m][j]) for m in fit_serving.METRICS}
            if np.all(np.isfinite(list(real.values()))):
                away = dict(zip((f"{m}_s" for m in fit_serving.METRICS), (float(errors[j]) for errors in off), strict=True))
                words = [group.words["model"].key, group.words["cluster"].chip.key, group.engine.key, group.engine.version]
                key = (*words, str(group.words["dtype"]), *(str(arrays.get(n, "")) for n in LENGTHS))
                known[key][tuple(arrays.values())].append(_left_out_point(group, arrays, real, away))
    every = [[points[0] for points in group.values()] for group in known.values()]
    return [g for g in every if len(g) >= 4 and len({p.tp for p in g}) > 1]


def _left_out_point(group: Any, arrays: dict[str, float], real: dict[str, float], away: dict[str, float]) -> Point:
    means = {name: real[name] * math.exp(off) for name, off in away.items()}
    wide = {n: math.exp(Z80 * sigma(group.setting, n.removesuffix("_s"), group.mixture)) for n in means}
    clients, out = int(arrays["concurrency"]), int(arrays["output_len"])
    gpus = arrays["tp"] * arrays["dp"] * float(group.words["pp"])
    guess = {n: Estimate(value, value / wide[n], value * wide[n]) for n, value in means.items()}
    return Point(int(arrays["tp"]), real, rate(clients, out, gpus, real), guess, rate(clients, out, gpus, means), group.mixture, "")


def on_points(group: Group, name: str) -> list[float]:
    return [float(np.quantile([p.measured[name] for p in group], q)) for q in (0.25, 0.5, 0.75, 1.0)]


def between_points(group: Group, name: str) -> list[float]:
    ordered = sorted({p.measured[name] for p in group})
    return [float(np.sqrt(low * high)) for low, high in pairwise(ordered)]


def decide(group: Group, name: str, limit_s: float, confidence: float) -> Decision:
    best = max(p.rate for p in group if p.measured[name] <= limit_s)
    sure = {id(p): float(p.predicted[name].sure(confidence)) for p in group}
    hopeful = [p for p in group if sure[id(p)] <= limit_s] or [min(group, key=lambda p: sure[id(p)])]
    chosen = max(hopeful, key=lambda p: p.predicted_rate)
    broken = chosen.measured[name] > limit_s * (1 + 1e-9)
    return Decision(0.0 if broken else min(1.0, chosen.rate / best), broken)


def report(every: list[Group], name: str, limits: Callable[[Group, str], list[float]], confidence: float) -> str:
    made = [decide(g, name, limit, confidence) for g in every for limit in limits(g, name)]
    right, near = (np.mean([d.share > 1 - loss for d in made]) for loss in (1e-9, NEAR))
    broken, kept = np.mean([d.broken for d in made]), np.mean([d.share for d in made])
    words = f"right {right:.1%} (within {NEAR:.0%}: {near:.1%}), limit broken {broken:.1%}, goodput kept {kept:.1%}"
    return f"  confidence {confidence:.0%}: {words} of {len(made)} decisions"


def calibration(every: list[Group], name: str) -> str:
    """How often a measured time really is at most the figure of each confidence."""
    shares = []
    for confidence in CONFIDENCES:
        below = [p.measured[name] <= float(p.predicted[name].sure(confidence)) for g in every for p in g]
        shares.append(f"{confidence:.0%}: {np.mean(below):.0%}")
    errors = [abs(float(p.predicted[name].value) / p.measured[name] - 1) for g in every for p in g]
    return f"  median error {np.median(errors):.1%}; times at most their figure of confidence {', '.join(shares)}"


KINDS: dict[str, Kind] = {
    "all": lambda _: True,
    "dense": lambda p: not p.moe,
    "mixtures": lambda p: p.moe,
    "engine and chip measured": lambda p: p.basis == "calibrated",
    "transferred or assumed": lambda p: p.basis != "calibrated",
}


def main(paths: list[str]) -> None:
    every = without_their_file(Path(paths[0])) if Path(paths[0]).is_dir() else groups(paths)
    for place, limits in (("between", between_points), ("on", on_points)):
        for name in TIMES:
            for kind, belongs in KINDS.items():
                some = [g for g in every if belongs(g[0])]
                if not some or (kind != "all" and place == "on"):
                    continue
                print(f"{name.removesuffix('_s').upper()} limits {place} points, {kind}: {len(some)} groups")
                print(calibration(some, name))
                for confidence in CONFIDENCES:
                    print(report(some, name, limits, confidence))


if __name__ == "__main__":
    main(sys.argv[1:])
