"""Fleets for a rate of requests against a plain search that simulates every plan and number of workers, on random questions.

python benchmarks/brute_force_rates.py [draws] [seed]

They agree where they choose the same, or where the planner's GPUs, dollars or tokens/s per GPU that it sustains are within 3 % of
the plain search's. Exit code 1: they do not somewhere.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # the plain search is the tests' own

import brute_fleets
from commtax.planner.fleets import plan_fleet


def agrees(asked: dict[str, Any]) -> tuple[bool, bool, float, float]:
    """Whether both choose alike, whether there was anything to choose, and the seconds of either."""
    start = time.process_time()
    searched = plan_fleet(**asked, processes=1)
    middle = time.process_time()
    least = brute_fleets.best(asked)
    return brute_fleets.agree(searched, least), least is not None, middle - start, time.process_time() - middle


def main(draws: int = 200, seed: int = 0) -> None:
    rng, none, wrong, own, plain = random.Random(seed), 0, 0, 0.0, 0.0
    for i in range(1, draws + 1):
        asked = brute_fleets.question(rng)
        same, some, planned_s, plain_s = agrees(asked)
        own, plain, none = own + planned_s, plain + plain_s, none + (not some)
        if not same:
            wrong += 1
            print(f"disagreement: {asked}", flush=True)
        if i % 10 == 0 or i == draws:
            print(
                f"{i:,} draws ({none:,} without a plan), {wrong} disagreements, CPU {own:,.0f} s against {plain:,.0f} s", flush=True
            )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
