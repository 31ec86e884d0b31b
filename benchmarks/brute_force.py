"""The planner's answers against a plain search, on random questions. Exit code 1: they disagree somewhere.

python benchmarks/brute_force.py [draws] [training draws] [seed]
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # the plain search is the tests' own

import brute
from commtax.planner import plan, plan_training

TRAINED = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen3-30b-a3b")
GROUNDS = ("2xh100-sxm", "4xa100-80-sxm", "2x4xh100-sxm", "8xh200-sxm")
Ask = Callable[[random.Random], dict[str, Any]]
Wrong = Callable[[dict[str, Any], random.Random], list[str]]


def wrong(asked: dict[str, Any], rng: random.Random) -> list[str]:
    return brute.disagreements(asked, plan(**asked), rng)


def training_question(rng: random.Random) -> dict[str, Any]:
    load = {"global_batch": rng.choice((8, 16, 64)), "seq": rng.choice((1024, 2048, 4096))}
    return {"model": rng.choice(TRAINED), "cluster": rng.choice(GROUNDS), **load}


def training_wrong(asked: dict[str, Any], _: random.Random) -> list[str]:
    found = plan_training(**asked)
    least = brute.fastest_training(**asked, kinds=found.kinds)
    mine = float(found.plans.step_s[0]) if len(found.plans) else math.inf
    return [] if math.isclose(mine, least, rel_tol=1e-9) else [f"{mine} s, and there is {least} s"]


def compare(name: str, draws: range, ask: Ask, judge: Wrong, seed: int) -> int:
    """Each draw has a seed of its own, so that it can be looked at alone."""
    start, count = time.perf_counter(), 0
    for i in draws:
        rng = random.Random(f"{seed} {i}")
        asked = ask(rng)
        found = judge(asked, rng)
        count += bool(found)
        if found:
            print(f"disagreement {i}: {asked}", *found[:2], sep="\n  ", flush=True)
        if (i + 1) % 50 == 0 or i == draws[-1]:
            print(f"{name}: {i + 1:,} draws, {count} disagreements, {time.perf_counter() - start:,.0f} s", flush=True)
    return count


def main(draws: int = 1000, training: int = 100, seed: int = 0, first: int = 0) -> None:
    count = compare("serving", range(first, first + draws), brute.question, wrong, seed)
    count += compare("training", range(training), training_question, training_wrong, seed)
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
