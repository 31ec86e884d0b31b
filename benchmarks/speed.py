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
import tomllib
from pathlib import Path

HERE = Path(__file__).parents[1]
NUMPY, BILL = "import numpy", "bill llama-3.1-8b --cluster 8xh100-sxm -tp 8"
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CALLS: dict[str, list[str]] = TABLES["calls"]


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
            return float(process_s(checkout, ["-c", f"{TABLES['start']}{before}\n{timed}"])[1])
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
    for what in (NUMPY, *CALLS, *TABLES["commands"], *(TABLES["racks"] if words.racks else ())):
        runs = [[measured_s(checkout, what) for checkout in checkouts] for _ in range(words.repeats + 1)][1:]  # the first compiles
        least[what], *there = (min(side) for side in zip(*runs, strict=True))
        beside = f", {there[0]:.3f} there: {least[what] / there[0]:.2f} of it" if there else ""
        print(f"{what}: {least[what]:.3f} s of CPU{beside}", flush=True)
    print(f"bill over {NUMPY}: {least[BILL] / least[NUMPY]:.2f}")


if __name__ == "__main__":
    main()
