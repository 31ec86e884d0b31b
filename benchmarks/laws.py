"""Random questions against the laws of ``tests/helpers/laws.py``, on all cores. Exit code 1: a law is broken somewhere.

python benchmarks/laws.py --count 20000 [--seed 0] [--agreement] [--only times_in_prompts,zero_saves_memory]

``--agreement``: the laws that hold two surfaces together (``tests/helpers/agreement``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # the laws are the tests' own

import agreement
import laws

LAWS = laws.LAWS | agreement.LAWS

SHOWN = 12
"""Broken questions that are printed, of each law."""


def questions(names: list[str], seed: int) -> Iterator[tuple[str, str]]:
    """(law, seed) for ever, each law as often as its share says."""
    rounds = [name for name in names for _ in range(LAWS[name][1])]
    number = 0
    while True:
        for name in rounds:
            number += 1
            yield name, f"{seed}-{number}-{name}"


def ask(question: tuple[str, str]) -> tuple[str, str, str | None, float]:
    name, seed = question
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = LAWS[name][0](Random(seed))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
    return name, seed, found, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="questions that are answered, refused ones not counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(agreement.LAWS if options.agreement else laws.LAWS)
    start, answered, refused, broken, spent = time.perf_counter(), Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with multiprocessing.Pool(options.jobs) as pool:
        for name, seed, found, seconds in pool.imap_unordered(ask, questions(names, options.seed), chunksize=4):
            (refused if found is None else answered)[name] += 1
            spent[name] += seconds
            if found:
                broken[name] += 1
                if broken[name] <= SHOWN:
                    print(f"{name} [{seed}]: {found}", flush=True)
            if answered.total() >= options.count:
                break
            if found is not None and answered.total() % 2000 == 0:
                told = f"{answered.total():,} questions, {broken.total()} broken"
                print(f"{told}, {time.perf_counter() - start:,.0f} s", file=sys.stderr, flush=True)
        pool.terminate()
    for name in names:
        print(f"{name:40} {answered[name]:6,} answered {refused[name]:6,} refused {broken[name]:5,} broken {spent[name]:8.1f} s")
    print(f"{answered.total():,} questions, {broken.total()} broken, {time.perf_counter() - start:,.0f} s")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
