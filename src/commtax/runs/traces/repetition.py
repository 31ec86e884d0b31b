"""Steps that nobody named: what repeats on a rank's busiest lane, or in its collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtax.runs.traces.trace import Trace, TraceStep, holding, period
from commtax.thresholds import thresholds
from commtax.timeline import Column

REPEATED = "repetition"
WHOLE = "whole trace"
COUNT, LEVEL = thresholds(__name__)


def repeated_steps(trace: Trace) -> list[list[TraceStep]]:
    """Steps by the period of the busiest lane's names, and by that of the collectives' kinds and sizes, where they have one."""
    line = trace.timeline
    if not len(line.start_s):
        return []
    busiest = int(np.argmax(np.bincount(line.lane[line.kind != line.kinds.index("copy")], minlength=len(line.lanes))))
    chosen = np.flatnonzero(line.lane == busiest)
    chosen = chosen[np.argsort(line.start_s[chosen], kind="stable")]
    called = sorted(trace.collectives, key=lambda c: c.start_s)
    seen = [
        ([line.name[i] for i in chosen.tolist()], line.start_s[chosen]),
        ([f"{c.op} {c.nbytes} {c.group}" for c in called], np.array([c.start_s for c in called])),
    ]
    return [_steps(starts, length, line.finish_s) for names, starts in seen if (length := period_of(names)) > 1]


def between_collectives(trace: Trace) -> list[TraceStep]:
    """From each collective to the next: beats by which ranks can be compared where all kernels are alike."""
    starts = np.sort([c.start_s for c in trace.collectives])
    return _steps(starts, 1, trace.timeline.finish_s) if len(starts) >= COUNT.fewest else []


def likeliest(found: Sequence[list[TraceStep]]) -> list[TraceStep]:
    """Of several the fewest, since layers repeat as well as steps do; but not so few that chance has made them."""
    enough = [steps for steps in found if len(steps) >= COUNT.fewest] or list(found)
    return min(enough, key=len, default=[])


def with_steps(trace: Trace, steps: Sequence[TraceStep]) -> Trace:
    """The trace with these steps, and its collectives in them."""
    steps = [replace(s, phase="train") for s in steps] if trace.training else list(steps)
    at = holding([(s.start_s, s.end_s) for s in steps], np.array([c.start_s for c in trace.collectives]))
    collectives = tuple(replace(c, step=i) for c, i in zip(trace.collectives, at.tolist(), strict=True))
    return replace(trace, steps=tuple(steps), collectives=collectives)


def _steps(starts: Column, length: int, finish_s: float) -> list[TraceStep]:
    """Whole periods: each lasts until the next begins."""
    begins = starts[::length].tolist()
    count = len(starts) // length
    ends = [*begins[1:], finish_s][:count]
    return [TraceStep(i, REPEATED, b, e) for i, (b, e) in enumerate(zip(begins[:count], ends, strict=True))]


def period_of(names: Sequence[str]) -> int:
    """After how many names all of them come again (some may differ); 0 where they do not.

    >>> period_of(["a", "b", "b", "c"] * 3 + ["a"]), period_of(["a", "b", "c"])
    (4, 0)
    """
    codes: dict[str, int] = {}
    signs = np.fromiter((codes.setdefault(n, len(codes)) for n in names), int, len(names))
    if len(signs) <= COUNT.exact and (exact := period(signs.tolist())):
        return exact
    # The distance at which the rarest regular name comes again, if nearly all others do too.
    counts = np.bincount(signs, minlength=len(codes))
    for code in np.argsort(counts, kind="stable")[: COUNT.rare].tolist():
        if counts[code] < COUNT.fewest:
            continue
        apart = np.diff(np.flatnonzero(signs == code))
        length = int(np.median(apart))
        regular = float(np.mean(apart == length)) >= LEVEL.regular
        if regular and 1 < length <= len(signs) // 2 and float(np.mean(signs[length:] == signs[:-length])) >= LEVEL.like:
            return length
    return 0
