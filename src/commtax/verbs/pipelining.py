"""A pipeline schedule, run: ``commtax.pipeline(8, 32, schedule="gpipe")``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from commtax.cost.schedules import DEFAULT, SCHEDULES
from commtax.options import check_taken
from commtax.rules.values import positive
from commtax.sim.pipeline import Durations, PipelineRun
from commtax.statement import Refusal
from commtax.verbs.keywords import PipelineOptions

MAX_CELLS = 150_000  # cells that are simulated: a few seconds and a few hundred megabytes
EQUAL = (1.0, 1.0, 1.0)


def pipeline(
    stages: int,
    microbatches: int,
    *,
    schedule: str = DEFAULT,
    chunks: int | None = None,
    times: Sequence[float] = EQUAL,
    transfer: float = 0.0,
    straggler: Mapping[int, float] | None = None,
    **others: Unpack[PipelineOptions],
) -> PipelineRun:
    """Run a pipeline schedule: when each rank idles, and what it must keep.

    ``schedule`` is one of those that ``commtax pipeline --help`` lists. ``times`` are those of a forward pass, an input
    gradient and a weight gradient in any unit; ``transfer`` passes between two stages; ``straggler`` maps ranks to the factor
    by which each is slower. ``chunks`` are those that a rank holds where the schedule interleaves.

    >>> import commtax
    >>> ran = commtax.pipeline(4, 8)
    >>> f"{ran.over_total:.1%} idle, {ran.peaks} microbatches in flight"
    '27.3% idle, [4, 3, 2, 1] microbatches in flight'
    """
    check_taken("pipeline", others)
    if schedule not in SCHEDULES:
        raise Refusal.of(f"one of {', '.join(SCHEDULES)}", tuple(SCHEDULES), schedule=schedule)
    positive(stages=stages)
    positive(microbatches=microbatches)
    kind = SCHEDULES[schedule]
    per_rank = chunks if chunks is not None else 1 if kind.chunks else 2
    check_cells(stages, microbatches, max(per_rank, kind.chunks))
    return PipelineRun(kind, stages, microbatches, per_rank, durations(stages, times, transfer, straggler or {}))


def check_cells(stages: int, microbatches: int, chunks: int) -> None:
    """Refuse a grid too large to simulate."""
    each = stages * chunks
    if each * microbatches > MAX_CELLS:
        most = f"{MAX_CELLS // each:,} microbatches" if each <= MAX_CELLS else f"{MAX_CELLS * stages // each:,} stages"
        rule = f"{each * microbatches:,} cells, more than the {MAX_CELLS:,} that are simulated; at most {most}"
        raise Refusal.of(f"{rule} (--budget needs no simulation)", microbatches=microbatches)


def durations(stages: int, times: Sequence[float], transfer: float, straggler: Mapping[int, float]) -> Durations:
    """Check the times of the passes and return them."""
    if len(times) != len(EQUAL) or not all(1e-6 <= x <= 1e6 for x in times) or not 0 <= transfer <= 1e6:
        times_text = ":".join(f"{x:g}" for x in times)
        raise Refusal(f"times '{times_text}', transfer {transfer}: three times of 1e-6 to 1e6, a transfer of 0 to 1e6", "times")
    for rank, factor in straggler.items():
        if not 0 <= rank < stages or not 1e-3 <= factor <= 1e3:
            rule = f"a rank from 0 to {stages - 1} and a factor from 0.001 to 1000 are needed, such as {stages - 1}:1.5"
            raise Refusal(f"straggler '{rank}:{factor:g}': {rule}", "straggler")
    forward, backward, weight = times
    return Durations(forward, backward, weight, transfer=transfer, rank_factors=dict(straggler))
