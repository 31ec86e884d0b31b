"""Kernels by what they do: a profiler's trace has names alone, and the kind of work is read off them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from commtax.evidence.wordings import patterns
from commtax.traces.accounts import TracedJob
from commtax.traces.trace import KINDS, TraceStep, holding

SAYS = patterns(__name__)
UNTOLD = ""
TOLD_IN_ORDER = ("experts", "attention", "products", "small")
"""A grouped product is of experts first, and so on: the first that fits."""
_SIGNS = 400  # of a name: templates may go on for pages


@lru_cache(maxsize=65536)
def work_of(name: str) -> str:
    """The kind of a kernel's work, or "" where its name does not tell it. What a compiler fused is named after all that is in it.

    >>> work_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"), work_of("void flash::flash_fwd_splitkv_kernel<x>(y)")
    ('products', 'attention')
    >>> work_of("triton_red_fused_add_mm_rsqrt_0"), work_of("fused_moe_kernel"), work_of("kernel_7")
    ('small', 'experts', '')
    """
    said = name[:_SIGNS]
    if SAYS.surely_small.search(said):
        return "small"
    return next((kind for kind in TOLD_IN_ORDER if getattr(SAYS, kind).search(said)), UNTOLD)


def work_seconds(job: TracedJob, place: int, steps: Sequence[TraceStep]) -> Mapping[str, float]:
    """Seconds of each kind of kernel in one of these steps of a rank, the mean; what runs side by side counts once."""
    line, begin = job.traces[place].timeline, np.array([s.start_s for s in steps])
    end = np.array([s.end_s for s in steps])
    inside = np.flatnonzero((line.kind == KINDS.index("compute")) & (holding(np.column_stack((begin, end)), line.start_s) >= 0))
    sums: dict[str, float] = {}
    for i, lasted in zip(inside.tolist(), (line.end_s - line.start_s)[inside].tolist(), strict=True):
        kind = work_of(line.name[i])
        sums[kind] = sums.get(kind, 0.0) + lasted
    together = sum(sums.values())
    once = float(job.covered[place].compute.within(begin, end).sum()) / together if together else 0.0
    return {kind: seconds * once / len(steps) for kind, seconds in sums.items()}
