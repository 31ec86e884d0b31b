"""Output of nccl-tests and rccl-tests: one row a size, whatever launcher prefixed the lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:\s*|\d+:\s+)")  # mpirun --tag-output, srun -l
_OPS = {
    "all_reduce": "all-reduce",
    "allreduce": "all-reduce",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "sendrecv": "send-recv",
    "broadcast": "broadcast",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One size, out of place: seconds, algorithm and bus bandwidth as printed."""

    nbytes: float
    seconds: float
    algbw_Bps: float
    busbw_Bps: float


@dataclass(frozen=True, slots=True)
class Run:
    """A whole output. ``op`` and ``ranks`` where the text tells them, else "" and 0."""

    rows: tuple[Row, ...]
    op: str
    ranks: int


def parse(text: str) -> Run:
    """Read the data rows (size count type [redop [root]] time algbw busbw wrong …); sizes of 0 are left out.

    >>> run = parse("  1048576  262144  float  sum  -1  25.41  41.26  72.21  0  25.2  41.6  72.8  0")
    >>> run.rows[0].nbytes, round(run.rows[0].seconds * 1e6, 2), run.ranks
    (1048576.0, 25.41, 8)
    """
    rows, op, devices = [], "", 0
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw).strip()
        found = re.search(r"(\w+)_perf\b", line)
        if found and found[1].lower() in _OPS:
            op = _OPS[found[1].lower()]
        if re.match(r"#\s+Rank\s+\d+", line):
            devices += 1
        row = None if line.startswith("#") else _row(line)
        if row:
            rows.append(row)
    return Run(tuple(rows), op, devices or _ranks(rows))


def _row(line: str) -> Row | None:
    words = line.split()
    if len(words) < 6 or not words[0].isdigit() or not words[1].isdigit():
        return None
    numbers = []
    for word in words[2:]:
        try:
            numbers.append(float(word))
        except ValueError:
            if numbers and word != "N/A":
                return None
    if len(words) > 4 and re.fullmatch(r"-?\d+", words[4]) and not words[3].replace(".", "").isdigit():
        numbers = numbers[1:]  # the root column
    if len(numbers) < 3 or float(words[0]) == 0:
        return None
    time_us, algbw, busbw = numbers[:3]
    return Row(float(words[0]), time_us * 1e-6, algbw * 1e9, busbw * 1e9)


def _ranks(rows: list[Row]) -> int:
    """The group's size from busbw / algbw = 2 (n-1)/n, where an all-reduce was run and nothing says it."""
    ratios = [r.busbw_Bps / r.algbw_Bps for r in rows if r.algbw_Bps > 1e9]
    if not ratios:
        return 0
    ratio = sorted(ratios)[len(ratios) // 2]
    return round(2 / (2 - ratio)) if 1 <= ratio < 2 else 0
