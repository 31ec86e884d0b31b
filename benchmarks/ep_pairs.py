"""Experts spread (EP) against experts cut (TP), predicted and measured: ``python benchmarks/ep_pairs.py DATA [--all]``.

Pairs are runs of ``serving_runs*.csv`` that differ in how experts lie alone, of one day's sweep and of any day, and rows of
``techniques.csv`` that say what they ran (``TOLD``). Days whose equal runs differ by more than 5 % differ in more than experts:
pairs of such days stand apart. A ratio is the time a token with experts spread over that with experts cut, or
the time to the first token. It is right where its sign is that of the measured one, or where both are within 5 % of 1.
``--all``: every pair, not the sums alone.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
from serving_runs import read

from commtax.verbs.closed_loop import simulate
from commtax_lab.published.inferencemax import day_of
from commtax_lab.published.serving_rows import drafting_rule, measured_means, planning_rule, question

ALIKE = 0.05
SUBJECT = 4  # of what makes runs alike: engine, version, model and cluster
TOLD: Mapping[str, dict[str, Any]] = {
    "T284": {"metric": "ttft_s", "engine": "vllm@0.11", "input_len": 1600, "output_len": 600, "concurrency": 8},
    "T285": {"metric": "ttft_s", "engine": "vllm@0.11", "input_len": 1600, "output_len": 600, "concurrency": 16},
}
"""Rows of ``techniques.csv`` with the lengths and clients that they name: DeepSeek-R1, tp 8 with and without ``-ep``, on vLLM of
November 2025 with Triton's experts on both sides (issue 28887, commit 5a84b76); later versions spread them with another kernel."""
UNTOLD = {
    "T199": "the batch is not told, and its source is ambiguous",
    "T282": "the load is not told",
    "T283": "the load is not told",
    "T286": "the number of tokens is not told",
}


@dataclass(frozen=True)
class Pair:
    what: str
    metric: str
    measured: float  # time with experts spread over that with experts cut
    predicted: float
    apart: bool = False  # of days that differ in more than experts

    @property
    def right(self) -> bool:
        near = max(abs(self.measured - 1), abs(self.predicted - 1)) <= ALIKE
        return near or (self.measured - 1) * (self.predicted - 1) > 0


@dataclass(frozen=True)
class Run:
    times: dict[str, float]
    asked: Any
    day: Any


Sides = dict[tuple[Any, ...], dict[int, list[Run]]]
"""Runs that are alike but for how experts lie, by the ranks that these are spread over."""


def sides(folder: Path) -> Sides:
    found: Sides = defaultdict(lambda: defaultdict(list))
    for row in read(*sorted(folder.glob("serving_runs*.csv"))):
        try:
            asked: Any = question(row)
        except ValueError:
            continue
        if asked["model"].experts and not drafting_rule(row) and not planning_rule(row) and not asked.get("disaggregated"):
            found[_same(asked)][asked["ep"]].append(Run(measured_means(row), asked, day_of(row)))
    return found


def of_one_day(found: Sides) -> Sides:
    return {
        (*key, day): {ep: [run for run in runs if run.day == day] for ep, runs in one.items()}
        for key, one in found.items()
        for day in _days(*one.values())
    }


def published(found: Sides) -> Iterator[Pair]:
    """Several runs of one side are one of median time. ``apart``: the days differ."""
    changed = drifts(found)
    for key, runs in found.items():
        for ep in sorted(runs):
            if ep > 1 and runs[ep] and runs.get(1):
                days = _days(runs[ep]), _days(runs[1])
                off = [
                    changed[key[:SUBJECT], one, other]
                    for one in days[0]
                    for other in days[1]
                    if (key[:SUBJECT], one, other) in changed
                ]
                apart = not set(days[0]) & set(days[1]) and bool(off) and abs(float(np.median(off)) - 1) > ALIKE
                yield from _pairs(runs[ep], runs[1], apart)


def drifts(found: Sides) -> dict[tuple[Any, ...], float]:
    """Time a token of equal runs on one day over that on another, by what ran."""
    ratios: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for key, one in found.items():
        for runs in one.values():
            took = {day: np.median([run.times["tpot_s"] for run in runs if run.day == day]) for day in _days(runs)}
            for (first, a), (second, b) in permutations(took.items(), 2):
                ratios[key[:SUBJECT], first, second].append(float(a / b))
    return {key: float(np.median(some)) for key, some in ratios.items()}


def _days(*sides: list[Run]) -> list[Any]:
    return list(dict.fromkeys(run.day for side in sides for run in side))


def _same(asked: Any) -> tuple[Any, ...]:
    """All but how experts lie, and what follows from when a script was run."""
    engine, sizes = asked["engine"], ("tp", "dp", "pp", "concurrency", "input_len", "output_len", "dtype", "kv_dtype")
    return (engine.key, engine.version, asked["model"].key, asked["cluster"].key, *(asked.get(name) for name in sizes))


def _pairs(spread: list[Run], cut: list[Run], apart: bool) -> Iterator[Pair]:
    answers = [simulate(**side[0].asked) for side in (spread, cut)]
    asked = spread[0].asked
    sizes = f"tp {asked['tp']} ep {asked['ep']}, {asked['input_len']} in, {asked['output_len']} out, {asked['concurrency']} clients"
    what = f"{asked['model'].key} {asked['engine'].key} {asked['engine'].version} {asked['cluster'].chip.key} {sizes}"
    for metric in ("tpot_s", "ttft_s"):
        was = [float(np.median([run.times[metric] for run in side if metric in run.times])) for side in (spread, cut)]
        said = [float(getattr(answer, metric)) for answer in answers]
        yield Pair(what, metric, was[0] / was[1], said[0] / said[1], apart)


def techniques(path: Path) -> Iterator[Pair]:
    with path.open() as file:
        for row in csv.DictReader(file):
            if told := TOLD.get(row["id"]):
                words = {key: value for key, value in told.items() if key != "metric"}
                sides = [simulate("deepseek-r1", "8xh200-sxm", tp=8, ep=ep, **words) for ep in (8, 1)]
                said = [float(getattr(side, told["metric"])) for side in sides]
                yield Pair(
                    f"{row['id']} {row['model']} {row['plan']}, {row['workload']}",
                    told["metric"],
                    1 / float(row["speedup"]),
                    said[0] / said[1],
                )


def show(pairs: list[Pair], name: str, each: bool) -> None:
    for pair in pairs if each else ():
        ratios = f"measured {pair.measured:5.2f} predicted {pair.predicted:5.2f}"
        print(f"{pair.metric[:4]} {pair.what:88s} {ratios} {'' if pair.right else 'WRONG'}")
    if pairs:
        off = np.median([abs(p.predicted / p.measured - 1) for p in pairs])
        right = sum(p.right for p in pairs)
        print(f"{name}: {right} of {len(pairs)} right ({right / len(pairs):.0%}), ratio off by {off:.1%} in the median")


def main(arguments: list[str]) -> None:
    folder, each = Path(arguments[0]), "--all" in arguments
    every = sides(folder)
    for name, found in (("one day", of_one_day(every)), ("any day", every)):
        pairs = list(published(found))
        for metric, apart in product(("tpot_s", "ttft_s"), (False, True)):
            of = f"serving runs of {name}{', days that differ' if apart else ''}, {metric[:4].upper()}"
            show([p for p in pairs if (p.metric, p.apart) == (metric, apart)], of, each)
    if (folder / "techniques.csv").is_file():
        show(list(techniques(folder / "techniques.csv")), "techniques.csv", True)
        for key, why in UNTOLD.items():
            print(f"{key} is not priced: {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
