"""Kernels by what they do: a profiler's trace has names alone, and the kind of work is read off them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.trace import KINDS, TraceStep, holding
from commtax.thresholds import thresholds
from commtax.timeline import Column
from commtax.wordings import patterns

SAYS = patterns(__name__)
COUNT, LEVEL = thresholds(__name__)
MOMENT_S = LEVEL.moment_s
UNTOLD = ""
TOLD_IN_ORDER = ("experts", "attention", "products", "small")
"""A grouped product is of experts first, and so on: the first that fits."""


@lru_cache(maxsize=65536)
def work_of(name: str) -> str:
    """The kind of a kernel's work, or "" where its name does not tell it. What a compiler fused is named after all that is in it.

    >>> work_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"), work_of("void flash::flash_fwd_splitkv_kernel<x>(y)")
    ('products', 'attention')
    >>> work_of("triton_red_fused_add_mm_rsqrt_0"), work_of("fused_moe_kernel"), work_of("kernel_7")
    ('small', 'experts', '')
    """
    said = name[: COUNT.name_signs]
    if SAYS.surely_small.search(said):
        return "small"
    return next((kind for kind in TOLD_IN_ORDER if getattr(SAYS, kind).search(said)), UNTOLD)


def work_seconds(job: TracedJob, place: int, steps: Sequence[TraceStep]) -> Mapping[str, float]:
    """Seconds of each kind of kernel in one of these steps of a rank, the mean; what runs side by side counts once.

    A pause of a moment before the next kernel is the former's own: kernels are timed and priced as they follow each other.
    """
    line, begin, end = job.traces[place].timeline, *np.array([(s.start_s, s.end_s) for s in steps]).T
    inside = np.flatnonzero((line.kind == KINDS.index("compute")) & (holding(np.column_stack((begin, end)), line.start_s) >= 0))
    lasted = line.end_s[inside] - line.start_s[inside]
    pauses = pauses_after(job, place, line.end_s[inside])
    once = float(job.covered[place].compute.within(begin, end).sum()) / max(float(lasted.sum()), LEVEL.shortest_s)
    sums: dict[str, float] = {}
    for i, seconds in zip(inside.tolist(), (lasted * once + pauses).tolist(), strict=True):
        kind = work_of(line.name[i])
        sums[kind] = sums.get(kind, 0.0) + seconds / len(steps)
    return sums


def pauses_after(job: TracedJob, place: int, moments: Column) -> Column:
    """How long a device that is done with something rests before it goes on, where that is a moment; 0 where it does not rest."""
    starts, lengths = job.covered[place].either.gaps
    if not len(starts):
        return np.zeros(len(moments))
    at = np.clip(np.searchsorted(starts, moments - LEVEL.shortest_s), 0, len(starts) - 1)
    rests = (np.abs(starts[at] - moments) < LEVEL.shortest_s) & (lengths[at] <= MOMENT_S)
    return np.where(rests, lengths[at], 0.0)
