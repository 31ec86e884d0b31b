"""How fast: one million steps by one call, one step alone, and whole commands. Prints CPU seconds; nothing is asserted.

python benchmarks/speed.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

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
    for words in (
        "bill llama-3.1-8b --cluster 8xh100-sxm -tp 8",
        "fit llama-3.1-70b --cluster 8xh100-sxm",
        "expect all-reduce -c 8xh100-sxm",
    ):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "commtax", *words.split()], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        print(f"commtax {words}: {spent:.2f} s of CPU as a whole process")


if __name__ == "__main__":
    million_steps()
    one_step()
    training()
    pipelines()
    commands()
