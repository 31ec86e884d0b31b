"""Sweep the kernels that the cost model knows, on the device at hand: ``python -m commtax_lab.study.kernels --out rows.jsonl``.

Needs torch (with the Triton that comes with it) and NumPy. One JSON line a point, written as soon as it is measured; the
first line says device, versions and command. Times are device time under CUDA graphs: ``samples_s`` each one replay of a
list of calls divided by their number, ``median_s`` their median. Matrices and caches are cold (a graph rotates over copies
that together are three times the L2, up to 1,024 of them); activations are as warm as their producer leaves them.

* ``gemm``     C[m, n] = A[m, k] W[n, k]^T. ``mode``: plain (bf16); static (fp8, one given scale a tensor, inputs already fp8);
               dynamic (fp8, a scale a row of A found in a launch of its own, which is counted, and a scale a row of W)
* ``decode``   one query a sequence over ``length`` cached keys, split along the length (``splits``)
* ``prefill``  causal attention of ``batch`` prompts of ``length`` tokens, by ``backend``
* ``small``    add_norm, rotary_write, swiglu, quantise on ``rows`` rows of ``width``
* ``copy``     copy (a kernel; bytes read and written), memcpy (the driver's), read (a sum), fill, of ``nbytes`` in all
* ``step``     a whole decode or prefill step of one tensor-parallel rank; the launches are listed in ``steps.py``
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TextIO

from commtax.files import check_writable
from commtax_lab import lab_table

COMMAND = "python -m commtax_lab.study.kernels"
KINDS = lab_table("measure/study/sweeps.toml")["kinds"]


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Sweep kernels and whole steps on this GPU.")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds to measure, with commas: " + ", ".join(KINDS))
    parser.add_argument("--out", default="-", help="JSON lines go to this file (default: standard output)")
    parser.add_argument("--quick", action="store_true", help="a few points of each kind")
    parser.add_argument("--minutes", type=float, default=9.0, help="time to spend in all (default 9)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny sweep, to try it out")
    parser.add_argument("--seed", type=int, default=1, help="of the order of points")
    flags = parser.parse_args(argv)
    wrong = [kind for kind in flags.only.split(",") if kind not in KINDS]
    if wrong:
        parser.error(f"--only: unknown kind '{wrong[0]}' (one of {', '.join(KINDS)})")
    if not 0 < flags.minutes <= 1e5:
        parser.error(f"--minutes {flags.minutes:g}: more than 0 is needed")
    return flags


def run(flags: argparse.Namespace, argv: list[str], out: TextIO) -> None:
    from commtax_lab.measure.study import sweeps

    def write(row: Mapping[str, object]) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    end = time.monotonic() + 60 * flags.minutes
    checked = sweeps.agreement(flags.device)
    if max(checked.values()) > 0.05:
        raise ArithmeticError(f"the kernels here disagree with plain functions: {checked}")
    b = sweeps.bench(flags.device)
    write(sweeps.header(b, " ".join([COMMAND, *argv]), checked))
    sys.stderr.write(f"agreement with plain functions: {checked}\n")
    chosen = {kind: limits for kind, limits in KINDS.items() if kind in flags.only.split(",")}
    rest = sum(limits["share"] for limits in chosen.values())
    for kind, limits in chosen.items():
        now = time.monotonic()
        deadline, rest = now + (end - now) * limits["share"] / rest, rest - limits["share"]  # what one kind leaves goes to the next
        for row in sweeps.sweep(b, kind, deadline, limits["quick" if flags.quick else "most"], random.Random(flags.seed)):
            write(row)


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


def main(argv: list[str]) -> int:
    flags = options(argv)
    try:
        import torch
    except ImportError:
        return _fail("error: torch is needed to measure (pip install torch)", 2)
    if flags.device == "cuda" and not torch.cuda.is_available():
        return _fail("error: no CUDA device was found (--device cpu tries the sweep out on a tiny shard)", 2)
    try:
        check_writable(flags.out, "--out") if flags.out != "-" else None
        with open(flags.out, "w", encoding="utf-8") if flags.out != "-" else nullcontext(sys.stdout) as out:
            run(flags, argv, out)
    except KeyboardInterrupt:
        return _fail("stopped: what was measured is written", 130)
    except ArithmeticError as error:
        return _fail(f"error: {error}", 1)
    except ValueError as error:
        return _fail(f"error: {error}", 2)
    except OSError as error:
        return _fail(f"error: --out {flags.out}: {error.strerror}", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
