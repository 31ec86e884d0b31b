"""The closed form of a closed loop against the simulation of its scheduler, over random questions.

python benchmarks/closed_form.py 200 [--seed 0] [--only vllm] [--worst 12]

Both are asked for the same clients, lengths, engine and plan; the simulation runs long enough that its first requests, which no
figure counts, do not matter. Printed: median distances, how many are far apart without a note, and by kind geometric means and 10th
to 90th percentiles of simulated over closed form.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # the loops are the tests' own

from closed_loops import FIGURES, Pair, asked, far
from commtax import catalog


def kind(pair: Pair) -> str:
    """How the engine schedules."""
    serves = catalog.engine(str(pair.words["engine"])).serves
    steps = "prompts first" if serves.prefill_first else "mixed steps, ahead" if serves.ahead else "mixed steps"
    return steps + (", reserved" if serves.kv_reserved else "")


def _below(value: float, limits: tuple[int, int], what: str) -> str:
    low, high = limits
    return f"{what} <= {low}" if value <= low else f"{what} <= {high}" if value <= high else f"{what} > {high}"


GROUPS: Mapping[str, Callable[[Pair], str]] = {
    "engine": kind,
    "clients": lambda pair: _below(int(str(pair.words["concurrency"])), (4, 48), "clients"),
    "lengths": lambda pair: _below(
        int(str(pair.words["input_len"])) / int(str(pair.words["output_len"])), (2, 16), "prompt/output"
    ),
    "spread": lambda pair: f"spread {pair.words['spread']}",
    "stages": lambda pair: f"pp {pair.words.get('pp', 1)}",
    "cache": lambda pair: "thrown out" if pair.full else "waiting" if pair.waiting else "all run",
    "prompts' share": lambda pair: _below(100 * pair.load, (10, 50), "prompts %"),
}


def lines(pairs: list[Pair]) -> Iterator[str]:
    yield f"{'':24}{'':>5}" + "".join(f"{name:>22}" for name in FIGURES)
    for group in ({"all": lambda _: "all"} | dict(GROUPS)).values():
        for name in sorted({group(pair) for pair in pairs}):
            own = [pair for pair in pairs if group(pair) == name]
            yield f"{name:24}{len(own):5}" + "".join(_spread([getattr(p, figure) for p in own]) for figure in FIGURES)


def agreement(pairs: list[Pair]) -> Iterator[str]:
    """How far apart both answers are, and how many are far apart without a note that says why."""
    noted = [pair for pair in pairs if pair.noted]
    for title, ratios in (("steady state", lambda pair: pair.steady), ("all requests", lambda pair: pair.whole)):
        apart = {name: np.nanmedian([abs(1 / ratios(pair)[name] - 1) for pair in pairs]) for name in FIGURES}
        medians = ", ".join(f"{name} {value:.1%}" for name, value in apart.items())
        beyond = [pair for pair in pairs if far(ratios(pair))]
        unsaid = sum(not pair.noted for pair in beyond)
        near = 1 - (len(beyond) - unsaid) / max(1, len(noted))
        yield f"{title}: median |closed form / in time - 1|: {medians}; beyond 1.5 x {len(beyond)}, without a note {unsaid}"
        yield f"  notes on {len(noted) / len(pairs):.0%} of {len(pairs)}, of these {near:.0%} within 1.5 x"


def _spread(ratios: list[float]) -> str:
    values = np.array(ratios)[np.isfinite(ratios)]
    if not values.size:
        return f"{'-':>22}"
    low, high = np.quantile(values, (0.1, 0.9))
    return f"{np.exp(np.mean(np.log(values))):8.3f} ({low:4.2f}-{high:5.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="engines whose name begins so")
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = (f"{options.seed}-{n}" for n in range(options.count))
    with multiprocessing.Pool(options.jobs) as pool:
        pairs = [pair for pair in pool.imap_unordered(asked, seeds, chunksize=4) if pair]
    pairs = [pair for pair in pairs if str(pair.words["engine"]).startswith(options.only)]
    print("\n".join((*agreement(pairs), "", *lines(pairs))))
    print("\nbeyond 1.5 x without a note", *(p for p in pairs if (far(p.steady) or far(p.whole)) and not p.noted), sep="\n")
    for figure in FIGURES:
        worst = sorted(pairs, key=lambda pair: -abs(np.log(getattr(pair, figure))))[: options.worst]
        print(f"\nfurthest apart in {figure}", *worst, sep="\n")


if __name__ == "__main__":
    main()
