"""The planner's winner against a plain search, on random questions. Exit code 1: they disagree somewhere.

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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the plain search is the tests' own

import numpy as np

import brute
from commtax.planner import plan, plan_training

MODELS = (
    "llama-3.2-1b",
    "llama-3.1-8b",
    "qwen2.5-7b",
    "gpt-oss-20b",
    "gemma-3-27b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "llama-3.1-70b",
)
CLUSTERS = ("1xh200-sxm", "2xh100-pcie", "4xh100-sxm", "3xa100-80-sxm", "2x2xl40s", "4xb200-sxm", "2x2xh100-sxm", "6xh200-sxm")
TRAINED = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen3-30b-a3b")
GROUNDS = ("2xh100-sxm", "4xa100-80-sxm", "2x4xh100-sxm", "8xh200-sxm")
MOST = 32  # clients a copy
Ask = Callable[[random.Random], dict[str, Any]]
Agree = Callable[[dict[str, Any]], "bool | None"]


def question(rng: random.Random) -> dict[str, Any]:
    """Limits are drawn around what such models take: some bind, some do not, some nothing can meet."""
    free = rng.random(), rng.random()
    return {
        "model": rng.choice(MODELS),
        "cluster": rng.choice(CLUSTERS),
        "engine": rng.choice(("vllm", "sglang", "trtllm")),
        "input_len": rng.choice((128, 1024, 8192)),
        "output_len": rng.choice((2, 128, 512)),
        "ttft_s": math.inf if free[0] < 0.3 else 10 ** rng.uniform(-2, 0.7),
        "tpot_s": math.inf if free[1] < 0.3 else 10 ** rng.uniform(-2.7, -1),
        "objective": rng.choice(("throughput", "latency", "cost", "gpus")),
    }


def agrees(asked: dict[str, Any]) -> bool | None:
    """Whether the winner's score is the plain search's to nine digits; None: nothing is good, and both say so."""
    rows = plan(**asked, max_concurrency=MOST).plans
    winner = brute.best(asked, MOST)
    if winner is None or not len(rows):
        return None if winner is None and not len(rows) else False
    mine, plain = brute.score(rows.take(np.array(0)), asked), brute.score(winner, asked)
    return all(math.isclose(float(a), b, rel_tol=1e-9) for a, b in zip(mine, plain, strict=True))


def training_question(rng: random.Random) -> dict[str, Any]:
    return {
        "model": rng.choice(TRAINED),
        "cluster": rng.choice(GROUNDS),
        "global_batch": rng.choice((8, 16, 64)),
        "seq": rng.choice((1024, 2048, 4096)),
    }


def training_agrees(asked: dict[str, Any]) -> bool | None:
    found = plan_training(**asked)
    least = brute.fastest_training(**asked, kinds=found.kinds)
    if not len(found.plans):
        return None if math.isinf(least) else False
    return math.isclose(float(found.plans.step_s[0]), least, rel_tol=1e-9)


def compare(name: str, draws: int, ask: Ask, agree: Agree, rng: random.Random) -> int:
    start, none, wrong = time.perf_counter(), 0, 0
    for i in range(1, draws + 1):
        asked = ask(rng)
        same = agree(asked)
        none += same is None
        if same is False:
            wrong += 1
            print(f"disagreement: {asked}", flush=True)
        if i % 100 == 0 or i == draws:
            seconds = time.perf_counter() - start
            print(f"{name}: {i:,} draws ({none:,} without a good plan), {wrong} disagreements, {seconds:,.0f} s", flush=True)
    return wrong


def main(draws: int = 2000, training: int = 200, seed: int = 0) -> None:
    rng = random.Random(seed)
    wrong = compare("serving", draws, question, agrees, rng)
    wrong += compare("training", training, training_question, training_agrees, rng)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
