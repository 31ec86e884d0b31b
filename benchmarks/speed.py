"""How fast: one million steps by one call, one step alone, and whole commands. Prints CPU seconds; nothing is asserted.

python benchmarks/speed.py
python benchmarks/speed.py --beside ../old-checkout [--repeats 3] [--racks]

``--beside`` compares with another checkout instead: both take turns, and the least of several runs counts. ``--racks`` plans for
racks of 72 GPUs too, which takes minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import commtax
from commtax.cost.schedules import SCHEDULES
from commtax.sim.pipeline import run
from commtax.verbs.fitting import fits


def million_steps() -> None:
    rng = np.random.default_rng(0)
    n = 1_000_000
    tp, batch, context = rng.choice([1, 2, 4, 8], n), rng.integers(1, 512, n), rng.integers(1, 100_000, n)
    commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8)
    start = time.process_time()
    priced = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=tp, batch=batch, context=context)
    total = float(np.sum(priced.step_s))
    spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"1,000,000 decode steps: {spent:.2f} s of CPU, {n / spent:,.0f} steps/s, peak {peak:.2f} GB (sum {total:.1f} s)")


def one_step() -> None:
    repeats = 300
    start = time.process_time()
    for batch in range(1, repeats + 1):
        commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=batch)
    print(f"one scalar step: {(time.process_time() - start) / repeats * 1e3:.2f} ms of CPU")


def training() -> None:
    """200,000 plans of a 405B model for 16,384 GPUs by one call, and one plan alone."""
    rng = np.random.default_rng(0)
    n = 200_000
    tp, pp, micro = 2 ** rng.integers(0, 4, n), 2 ** rng.integers(0, 5, n), 2 ** rng.integers(0, 3, n)
    words = {"context": 8192, "zero": 1, "recompute": "full", "sequence_parallel": True}
    batch = micro * np.maximum(pp, 2 ** rng.integers(0, 6, n))
    start = time.process_time()
    priced = commtax.train_bill(
        "llama-3.1-405b", "2048x8xh100-sxm", tp=tp, pp=pp, dp=16384 // (tp * pp), batch=batch, micro_batch=micro, **words
    )
    best = float(np.max(priced.mfu * fits(priced)))
    print(f"200,000 training plans: {time.process_time() - start:.2f} s of CPU (best MFU that fits {best:.1%})")
    repeats = 200
    start = time.process_time()
    for _ in range(repeats):
        commtax.train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16, **words)
    print(f"one training step: {(time.process_time() - start) / repeats * 1e3:.2f} ms of CPU")


def pipelines() -> None:
    for name in ("1f1b", "zb-v"):
        start = time.process_time()
        run(SCHEDULES[name], 64, 1024)
        print(f"{name}, 64 stages x 1,024 microbatches: {time.process_time() - start:.2f} s of CPU")


def commands() -> None:
    for words in (BILL, "fit llama-3.1-70b --cluster 8xh100-sxm", "expect all-reduce -c 8xh100-sxm"):
        print(f"commtax {words}: {command_s(HERE, words):.2f} s of CPU as a whole process")


HERE = Path(__file__).parents[1]
BILL = "bill llama-3.1-8b --cluster 8xh100-sxm -tp 8"
PLAN = "plan llama-3.1-70b --cluster 2x8xh100-sxm"
RATED = "plan llama-3.1-70b --cluster 4x8xh100-sxm --request-rate 20"
LIMITED = f"{RATED} --ttft 2s --tpot 50ms"
TAILS = f"{RATED} --p95-ttft 1s --p99-itl 50ms"
RACKS = (
    "plan llama-3.1-70b --cluster 72xgb200 --request-rate 200",
    "plan llama-3.1-70b --cluster 18x4xgb200 --request-rate 200",
    "plan deepseek-r1 --cluster gb200-nvl72 --request-rate 100 --ttft 2s --tpot 50ms",
)
MILLION = """
import time, numpy as np, commtax
rng, n = np.random.default_rng(0), 1_000_000
tp, batch, context = rng.choice([1, 2, 4, 8], n), rng.integers(1, 512, n), rng.integers(1, 100_000, n)
commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8)
start = time.process_time()
float(np.sum(commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=tp, batch=batch, context=context).step_s))
print(time.process_time() - start)
"""


def process_s(checkout: Path, words: list[str]) -> tuple[float, str]:
    """CPU seconds of a Python with a checkout's package and of all that it starts, without threads of a linear algebra."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OPENBLAS_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, *words], check=True, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, ran.stdout


def command_s(checkout: Path, words: str) -> float:
    return process_s(checkout, ["-m", "commtax", *words.split()])[0]


def measured_s(checkout: Path, what: str) -> float:
    if what == MILLION:
        return float(process_s(checkout, ["-c", MILLION])[1])
    return process_s(checkout, ["-c", what])[0] if what == NUMPY else command_s(checkout, what)


NUMPY = "import numpy"


def _if_known(checkout: Path, what: str) -> float:
    """Infinite where an older package has no such option."""
    try:
        return measured_s(checkout, what)
    except subprocess.CalledProcessError:
        return math.inf


def beside(old: Path, repeats: int, racks: bool) -> None:
    """Each figure of this checkout, of the other one, and their ratio."""
    least = {}
    for what in (NUMPY, MILLION, BILL, PLAN, RATED, LIMITED, TAILS, *(RACKS if racks else ())):
        pairs = [(measured_s(HERE, what), _if_known(old, what)) for _ in range(repeats + 1)][1:]  # the first writes bytecode
        now, then = (min(side) for side in zip(*pairs, strict=True))
        least[what] = now
        name = "a million steps" if what == MILLION else what
        there = f"{then:.3f} there: {now / then:.2f} of it" if then < math.inf else "not known there"
        print(f"{name}: {now:.3f} s of CPU, {there}", flush=True)
    print(f"bill over {NUMPY}: {least[BILL] / least[NUMPY]:.2f}")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--beside", type=Path, metavar="CHECKOUT")
    given.add_argument("--repeats", type=int, default=3)
    given.add_argument("--racks", action="store_true")
    words = given.parse_args()
    if words.beside:
        beside(words.beside.resolve(), words.repeats, words.racks)
        return
    for figure in (million_steps, one_step, training, pipelines, commands):
        figure()


if __name__ == "__main__":
    main()
