"""Injected faults in made traces of many ranks: how often the culprit is named right, with and without 50 ms of skew.

python benchmarks/faults.py [--cases 200] [--seed 0] [--kind "slow rank"] [--plain] [--show]

``--plain``: traces with few of the facts that profilers write (``tests/helpers/plain_traces.py``).
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import fault_traces
import plain_traces
from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.causes import blame
from commtax.runs.traces.profilers import kineto


def blamed(made):
    return blame(TracedJob.of([kineto.parse(d) for d in made.documents]))[0]


def is_right(made, found):
    if made.kind is None:
        return found is None
    return found is not None and found.kind == made.kind and found.rank in made.ranks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", default="")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    case = plain_traces.case if asked.plain else fault_traces.case
    print(f"{'fault':14} {'skew ms':>8} {'cases':>6} {'right':>7} {'since within a step':>20} {'error of since':>15} {'s':>6}")
    for number, kind in enumerate([*fault_traces.KINDS, None]):
        if asked.kind and asked.kind != (kind or "nothing"):
            continue
        for skew in (0.0, 50.0):
            right, near, errors, began = 0, 0, [], time.process_time()
            for i in range(asked.cases):
                made = case(asked.seed + 1_000_000 * number + 2 * i + (skew > 0), kind, skew)
                found = blamed(made)
                if is_right(made, found):
                    right += 1
                    if kind:
                        errors.append(abs(found.since_s - made.since_s) / made.step_s)
                        near += errors[-1] <= 1.0
                elif asked.show:
                    print("   ", i, made.job, made.says, made.ranks, "->", found)
            when = f"{near / right:>20.1%} {median(errors):>9.2f} steps" if errors else f"{'':>20} {'':>15}"
            share, spent = right / asked.cases, time.process_time() - began
            print(f"{kind or 'nothing':14} {skew:8.0f} {asked.cases:6} {share:7.1%} {when} {spent:6.1f}", flush=True)


if __name__ == "__main__":
    main()
