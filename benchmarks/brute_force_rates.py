"""Fleets for a rate of requests against a plain search that simulates every plan and number of workers, on random questions.

python benchmarks/brute_force_rates.py [draws] [seed]

They agree where the planner's GPUs, dollars or tokens/s a GPU that it sustains are within 3 % of the plain search's. Exit code 1:
they do not somewhere.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the plain search is the tests' own

import brute_fleets
from commtax.planner.contest import burden
from commtax.planner.fleets import plan_fleet

NEAR = 1.03


def agrees(asked: dict[str, Any]) -> tuple[bool | None, float, float]:
    """Whether the burdens agree (None: nothing holds, and both say so), and the seconds of either."""
    start = time.process_time()
    searched = plan_fleet(**asked, processes=1)
    middle = time.process_time()
    least = brute_fleets.best(asked)
    took = middle - start, time.process_time() - middle
    if least is None or not searched.plans:
        return (None if least is None and not searched.plans else False), *took
    return burden(searched.plans[0]) <= least * NEAR, *took


def main(draws: int = 200, seed: int = 0) -> None:
    rng, none, wrong, own, plain = random.Random(seed), 0, 0, 0.0, 0.0
    for i in range(1, draws + 1):
        asked = brute_fleets.question(rng)
        same, mine, theirs = agrees(asked)
        own, plain, none = own + mine, plain + theirs, none + (same is None)
        if same is False:
            wrong += 1
            print(f"disagreement: {asked}", flush=True)
        if i % 10 == 0 or i == draws:
            print(
                f"{i:,} draws ({none:,} without a plan), {wrong} disagreements, CPU {own:,.0f} s against {plain:,.0f} s", flush=True
            )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
