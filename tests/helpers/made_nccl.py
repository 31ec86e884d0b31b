"""Texts of nccl-tests with known constants in them, through noise and outliers."""

import math

from commtax.cost.collectives import path_parts, ring_factor
from commtax.runs.results.collective_tests import OPS
from commtax.spec import Path as Route

SIZES = [2**x for x in range(10, 31)]
TRUE = Route("all-reduce", "ring", 180e9, launch_s=14e-6, hop_s=2.2e-6)


def seconds(path, nbytes, ranks):
    return float(sum(path_parts(path, nbytes, ranks)))


def output(op, ranks, rows, header=True):
    """nccl-tests' text of (size, µs out of place, µs in place, wrong)."""
    head = ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor)", f"# Collective test starting: {op}_perf"]
    head += [f"#  Rank {i:2d} Group  0 Pid {900 + i} on h{i // 8} device {i % 8} [0x{i % 8:02x}] GPU" for i in range(ranks)]
    factor = ring_factor(OPS[op], ranks)
    lines = head if header else []
    for size, out, again, wrong in rows:
        one, two = (f"{us:9.3f} {size / us / 1e3:8.3f} {size / us / 1e3 * factor:8.3f}" for us in (out, again))
        lines.append(f"{size:>12} {size // 4:>12} float sum -1 {one} {wrong} {two} 0")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def noisy(path, ranks, rng, sizes=SIZES, noise=0.02, odd=0.0):
    rows = []
    for size in sizes:
        both = [1e6 * seconds(path, size, ranks) * math.exp(noise * rng.standard_normal()) for _ in range(2)]
        if odd and rng.random() < odd:
            both[0] *= 2.5
        rows.append((size, *both, 0))
    return rows


def written(folder, name, text):
    file = folder / name
    file.write_text(text)
    return str(file)
