"""The step that stands for all: what most of the steps of a run took, part by part."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from commtax.runs.evidence.finding import Section, StepRow, Usage
from commtax.runs.traces.trace import named_steps

ROUNDING_S = 1e-12
PARTS = ("compute_s", "exposed_s", "copy_s", "idle_s")  # of a step, each second once: together they are the step


def length_s(row: StepRow) -> float:
    return row.compute_s + row.exposed_s + row.copy_s + row.idle_s


def mean_middle_half(rows: Sequence[StepRow]) -> Usage:
    """The mean of the middle half of the steps by length: no outlier is in it, and its parts still sum to it."""
    ordered = sorted(rows, key=length_s)
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    parts = ([getattr(r, name) for r in kept] for name in ("compute_s", "exposed_s", "hidden_s", "copy_s"))
    return Usage(_mean([length_s(r) for r in kept]), *map(_mean, parts))


def _mean(seconds: Sequence[float]) -> float:
    """Nothing where only rounding is left."""
    mean = sum(seconds) / len(seconds)
    return mean if mean > ROUNDING_S else 0.0


@lru_cache(maxsize=4096)
def phase_of(name: str) -> str:
    """The phase that a step's name tells, or "".

    >>> phase_of("execute_context_0(0)_generation_4(4)"), phase_of("ProfilerStep#3")
    ('decode', '')
    """
    return next((step.phase for step in named_steps([(name, 0.0, 1.0)])), "")


def usual_phase(section: Section) -> str:
    """The phase of most steps: an engine's prompts and tokens between them are not of one length."""
    counted = Counter(phase_of(row.name) for row in [r for r in section.steps if r.usual] or section.steps)
    return counted.most_common(1)[0][0] if counted else ""


def by_rank(section: Section) -> list[tuple[int, int, Usage]]:
    """Rank, how many steps of the usual phase it has, and a typical one; the mean step where steps are not told one by one."""
    if not section.steps:
        return [(rank, 0, used) for rank, used in section.usage]
    usual = usual_phase(section)
    return typical_by_rank([row for row in section.steps if phase_of(row.name) == usual])


def typical_by_rank(steps: Sequence[StepRow]) -> list[tuple[int, int, Usage]]:
    """Rank, how many steps it has, and a typical one of those that are usual (of all where none is)."""
    ranks: dict[int, list[StepRow]] = {}
    for row in steps:
        ranks.setdefault(row.rank, []).append(row)
    return [(rank, len(rows), mean_middle_half([r for r in rows if r.usual] or rows)) for rank, rows in sorted(ranks.items())]


def typical_of_ranks(section: Section) -> Usage | None:
    """The mean over the ranks of their typical steps; None where no step is told."""
    each = [used for _, _, used in by_rank(section)]
    if not each:
        return None
    return Usage(*(sum(getattr(u, name) for u in each) / len(each) for name in Usage.__dataclass_fields__))
