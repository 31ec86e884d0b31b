"""What a profiler's trace of one rank says, whoever wrote it: a timeline, the collectives in it, and the steps they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.readers.trace_steps import Step
from commtax.readers.usage import Usage, usage
from commtax.statement import Note
from commtax.timeline import Timeline

KINDS = ("compute", "comm", "copy")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its driver describes it; "" and 0 where it does not. ``count``: as many alike are in the host."""

    name: str = ""
    memory_bytes: float = 0.0
    num_sms: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it. ``nbytes`` is the full tensor (as in ``ledger.Item``); None where nothing tells it."""

    op: str
    nbytes: float | None
    ranks: int  # 0: not told
    start_s: float
    end_s: float
    name: str
    step: int = -1  # index into the trace's steps; -1: in none
    graph: bool = False  # replayed from a CUDA graph

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace. Times are seconds since ``origin_ns``; ``issued`` counts collectives that the host called, by kind."""

    rank: int
    world: int
    origin_ns: int
    on_device: bool
    timeline: Timeline
    collectives: tuple[Collective, ...]
    steps: tuple[Step, ...]
    issued: Mapping[str, int]
    device: Device | None = None
    training: bool = False  # something of training ran, in a step or not
    notes: tuple[Note, ...] = ()

    def usage(self, steps: Sequence[Step]) -> Usage:
        """How some of the steps (the whole trace where there are none) were spent."""
        return usage(self.timeline, [(s.start_s, s.end_s) for s in steps] or [(self.timeline.begin_s, self.timeline.finish_s)])


def timeline_of(rows: Sequence[tuple[str, float, float, str, str]]) -> Timeline:
    """Rows of lane, start, end, kind and name as columns."""
    lane, start, end, kind, name = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    lanes = tuple(dict.fromkeys(lane))
    codes = {name: i for i, name in enumerate(lanes)}
    return Timeline(
        lane=np.array([codes[x] for x in lane], dtype=int),
        start_s=np.array(start, dtype=float),
        end_s=np.array(end, dtype=float),
        kind=np.array([KINDS.index(k) for k in kind], dtype=int),
        name=name,
        lanes=lanes,
        kinds=KINDS,
    )
