"""Output of nccl-tests and rccl-tests: one row a size, whatever launcher prefixed the lines."""

from __future__ import annotations

import math
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


_NAMED = re.compile(rf"(?<!\w)({'|'.join(_OPS)})_perf\b", re.I)
_REDUCTIONS = ("sum", "prod", "min", "max", "avg", "mulsum")


@dataclass(frozen=True, slots=True)
class Row:
    """One size: seconds, algorithm and bus bandwidth out of place as printed; seconds in place; wrong values of both."""

    nbytes: float
    seconds: float
    algbw_Bps: float
    busbw_Bps: float
    in_place_s: float | None = None
    wrong: int = 0
    reduction: str = ""


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
    runs = parse_all(text)
    rows = tuple(row for run in runs for row in run.rows)
    return Run(rows, runs[-1].op if runs else "", next((run.ranks for run in runs if run.ranks), 0))


def parse_all(text: str) -> tuple[Run, ...]:
    """Every run of a text that holds several outputs one after the other: each has its own op and ranks."""
    found: list[Run] = []
    rows: list[Row] = []
    op, devices = "", 0
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw).strip()
        named, header = _NAMED.search(line), re.match(r"#\s*nThread\b", line)
        if rows and (header or named):
            found.append(_run(rows, op, devices))
            rows, devices = [], 0
        if named:
            op = _OPS[named[1].lower()]
        devices += bool(re.match(r"#\s+Rank\s+\d+", line))
        row = None if line.startswith("#") else _row(line)
        if row:
            rows.append(row)
    return (*found, _run(rows, op, devices)) if rows else tuple(found)


def _run(rows: list[Row], op: str, devices: int) -> Run:
    """One run; a text without its command still tells an all-reduce or a reduce-scatter by its bus bandwidth."""
    ratio = _ratio(rows)
    if not op and ratio and rows[0].reduction:
        op = "all-reduce" if ratio >= 1 else "reduce-scatter"
    return Run(tuple(rows), op, devices or _ranks(ratio, op))


def _row(line: str) -> Row | None:
    words = line.split()
    if not 6 <= len(words) <= 20 or not all(word.isascii() and word.isdigit() for word in words[:2]):
        return None
    numbers: list[float] = []
    for word in words[2:]:
        try:
            numbers.append(float(word))
        except ValueError:
            if numbers and word != "N/A":
                return None
            numbers += [math.nan] if numbers else []
    if len(words) > 4 and re.fullmatch(r"-?\d+", words[4]) and not words[3].replace(".", "").isdigit():
        numbers = numbers[1:]  # the root column
    if len(numbers) < 3 or float(words[0]) == 0:
        return None
    time_us, algbw, busbw = numbers[:3]
    half = len(numbers) // 2
    again = numbers[half] * 1e-6 if len(numbers) in (6, 8) else None
    counts = [numbers[3], numbers[7]] if len(numbers) == 8 else numbers[3:4]
    wrong = sum(int(n) for n in counts if math.isfinite(n) and n >= 1)  # older versions print the largest error here, far below 1
    reduction = words[3] if words[3] in _REDUCTIONS else ""
    return Row(float(words[0]), time_us * 1e-6, algbw * 1e9, busbw * 1e9, again, wrong, reduction)


def _ratio(rows: list[Row]) -> float:
    """Bus over algorithm bandwidth, of rows with digits enough; 0: none has."""
    ratios = sorted(r.busbw_Bps / r.algbw_Bps for r in rows if r.algbw_Bps > 1e9)
    return ratios[len(ratios) // 2] if ratios else 0.0


def _ranks(ratio: float, op: str) -> int:
    """The group's size where nothing says it: busbw / algbw is 2 (n-1)/n in an all-reduce, (n-1)/n to gather or scatter."""
    if 1 <= ratio < 2 and op in ("", "all-reduce"):
        return round(2 / (2 - ratio))
    return round(1 / (1 - ratio)) if 0 < ratio < 1 else 0
