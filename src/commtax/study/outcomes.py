"""What a run left behind, in the study's terms: serving statistics, and the all-reduces of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from commtax.readers.bench import METRICS, Bench
from commtax.readers.kineto import Trace
from commtax.readers.ranks import meet

OP = "all-reduce"


def allreduces(traces: Sequence[Trace]) -> dict[str, Any]:
    """Those of the decode steps: how many a step, how large, how long, and their share of the step.

    Counted on the first rank; timed as the least over ranks where there are several (the wire), else one rank's own.
    """
    ordered = sorted(traces, key=lambda t: t.rank)
    first = ordered[0]
    steps = [s for s in first.steps if s.phase == "decode"] or list(first.steps)
    indices = {s.index for s in steps}
    mine = [c for c in first.collectives if c.op == OP and c.step in indices]
    step_s = median(s.seconds for s in steps) if steps else 0.0
    met = [m for m in meet(ordered).matched if m.op == OP and m.step in indices] if len(ordered) > 1 else []
    wire = [m.wire_s for m in met] or [c.seconds for c in mine]
    counts = [sum(c.step == s.index for c in mine) for s in steps]
    sizes = [c.nbytes for c in mine if c.nbytes is not None]
    return {
        "how": f"profiler traces of {len(ordered)} rank(s)" + ("" if first.on_device else ", host times with the profiler on"),
        "allreduces": median(counts) if counts else 0,
        "allreduce_bytes": sum(sizes) / len(sizes) if sizes else None,
        "allreduce_s": median(wire) if wire else None,
        "comm_fraction": min(t.usage([s for s in t.steps if s.index in indices]).exposed_share for t in ordered),
        "wire_fraction": sum(wire) / sum(s.seconds for s in steps) if wire and steps else None,
        "step_s": step_s,
    }


def served(b: Bench) -> dict[str, Any]:
    """A serving benchmark, whichever engine ran it."""
    keep = {m: {k: v for k, v in b.stats[m].items() if k in ("mean", "median", "p99")} for m in METRICS if m in b.stats}
    return {
        "stats_s": keep,
        "requests": b.requests,
        "failed": b.failed,
        "duration_s": b.duration_s,
        "requests_per_s": b.requests_per_s,
        "output_tokens_per_s": b.output_tokens_per_s,
        "input_len": b.input_len,
        "output_len": b.output_len,
    }
