"""How fast: one million steps by one call, one step alone, pipelines, and whole commands. Prints CPU seconds; nothing is asserted.

python benchmarks/speed.py [--beside ../old-checkout] [--repeats 3] [--racks]

Everything runs in a process of its own, and the least of several runs counts; with ``--beside`` another checkout takes turns.
``--racks`` plans for racks of 72 GPUs too, which takes minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

HERE = Path(__file__).parents[1]
NUMPY, BILL = "import numpy", "bill llama-3.1-8b --cluster 8xh100-sxm -tp 8"
START = """
import time, numpy as np, commtax
rng = np.random.default_rng(0)
commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8)
"""
SIMULATE = """
from commtax.cost.schedules import SCHEDULES
from commtax.sim.pipeline import run
"""
CALLS = {  # what is timed, after what comes before it
    "a million steps": (
        """
        n = 1_000_000
        tp, batch, context = rng.choice([1, 2, 4, 8], n), rng.integers(1, 512, n), rng.integers(1, 100_000, n)
        """,
        'float(np.sum(commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=tp, batch=batch, context=context).step_s))',
    ),
    "300 scalar steps": ("", '[commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=batch) for batch in range(1, 301)]'),
    "200,000 training plans": (
        """
        n = 200_000
        tp, pp, micro = 2 ** rng.integers(0, 4, n), 2 ** rng.integers(0, 5, n), 2 ** rng.integers(0, 3, n)
        batch = micro * np.maximum(pp, 2 ** rng.integers(0, 6, n))
        sizes = {"tp": tp, "pp": pp, "dp": 16384 // (tp * pp), "batch": batch, "micro_batch": micro}
        words = {"context": 8192, "zero": 1, "recompute": "full", "sequence_parallel": True}
        """,
        'commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **sizes, **words)',
    ),
    "200 training steps": ("", '[commtax.train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16) for _ in range(200)]'),
    "1F1B, 64 stages x 1,024 microbatches": (SIMULATE, 'run(SCHEDULES["1f1b"], 64, 1024)'),
    "ZB-V, 64 stages x 1,024 microbatches": (SIMULATE, 'run(SCHEDULES["zb-v"], 64, 1024)'),
}
RATED = "plan llama-3.1-70b --cluster 4x8xh100-sxm --request-rate 20"
COMMANDS = (
    BILL,
    "fit llama-3.1-70b --cluster 8xh100-sxm",
    "expect all-reduce -c 8xh100-sxm",
    "plan llama-3.1-70b --cluster 2x8xh100-sxm",
    RATED,
    f"{RATED} --ttft 2s --tpot 50ms",
    f"{RATED} --p95-ttft 1s --p99-itl 50ms",
)
RACKS = (
    "plan llama-3.1-70b --cluster 72xgb200 --request-rate 200",
    "plan llama-3.1-70b --cluster 18x4xgb200 --request-rate 200",
    "plan deepseek-r1 --cluster gb200-nvl72 --request-rate 100 --ttft 2s --tpot 50ms",
)


def process_s(checkout: Path, words: list[str]) -> tuple[float, str]:
    """CPU seconds of a Python with a checkout's package and of all that it starts, without threads of a linear algebra."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OPENBLAS_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, *words], check=True, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, ran.stdout


def measured_s(checkout: Path, what: str) -> float:
    """Infinite where an older package has no such option."""
    try:
        if what in CALLS:
            before, call = CALLS[what]
            timed = f"start = time.process_time()\n{call}\nprint(time.process_time() - start)"
            return float(process_s(checkout, ["-c", f"{START}{dedent(before)}\n{timed}"])[1])
        return process_s(checkout, ["-c", what] if what == NUMPY else ["-m", "commtax", *what.split()])[0]
    except subprocess.CalledProcessError:
        return math.inf


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--beside", type=Path, metavar="CHECKOUT")
    given.add_argument("--repeats", type=int, default=3)
    given.add_argument("--racks", action="store_true")
    words = given.parse_args()
    checkouts, least = [HERE, *([words.beside.resolve()] if words.beside else [])], {}
    for what in (NUMPY, *CALLS, *COMMANDS, *(RACKS if words.racks else ())):
        runs = [[measured_s(checkout, what) for checkout in checkouts] for _ in range(words.repeats + 1)][1:]  # the first compiles
        least[what], *there = (min(side) for side in zip(*runs, strict=True))
        beside = f", {there[0]:.3f} there: {least[what] / there[0]:.2f} of it" if there else ""
        print(f"{what}: {least[what]:.3f} s of CPU{beside}", flush=True)
    print(f"bill over {NUMPY}: {least[BILL] / least[NUMPY]:.2f}")


if __name__ == "__main__":
    main()
