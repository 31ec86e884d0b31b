"""Ranks of one job's traces, where several files tell the same."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from commtax.statement import Note
from commtax.traces.trace import Trace


def distinct(traces: Sequence[Trace]) -> list[Trace]:
    """The traces, numbered in their order where two have the same rank, and then with a note."""
    ranks = [t.rank for t in traces]
    if len(set(ranks)) == len(ranks):
        return list(traces)
    said = f"ranks are numbered as the files were given: they tell {_listed(ranks)}"
    return [_numbered(trace, rank, said) for rank, trace in enumerate(traces)]


def _listed(ranks: Iterable[int], most: int = 8) -> str:
    first, *_ = words = [str(rank) for rank in ranks]
    return f"rank {first} each" if len(set(words)) == 1 else ", ".join(words[:most]) + (" …" if len(words) > most else "")


def _numbered(trace: Trace, rank: int, said: str) -> Trace:
    """The trace as another rank's, its lanes too."""
    own = f"rank {trace.rank} "
    lanes = tuple(f"rank {rank} {lane.removeprefix(own)}" if lane.startswith(own) else lane for lane in trace.timeline.lanes)
    notes = (*trace.notes, Note("numbered ranks", said))
    return replace(trace, rank=rank, timeline=replace(trace.timeline, lanes=lanes), notes=notes)
