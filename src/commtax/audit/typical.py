"""The step that stands for all: what most of the steps of a run took, part by part."""

from collections.abc import Sequence

from commtax.audit.finding import Section, StepRow
from commtax.readers.trace import Usage

PARTS = ("compute_s", "exposed_s", "copy_s", "idle_s")
"""Of a step, each second once: together they are the step."""


def length_s(row: StepRow) -> float:
    return row.compute_s + row.exposed_s + row.copy_s + row.idle_s


def typical(rows: Sequence[StepRow]) -> Usage:
    """The mean of the middle half of the steps by length: no outlier is in it, and its parts still sum to it."""
    ordered = sorted(rows, key=length_s)
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    return Usage(
        total_s=sum(map(length_s, kept)) / len(kept),
        compute_s=sum(r.compute_s for r in kept) / len(kept),
        exposed_s=sum(r.exposed_s for r in kept) / len(kept),
        hidden_s=sum(r.hidden_s for r in kept) / len(kept),
        copy_s=sum(r.copy_s for r in kept) / len(kept),
    )


def by_rank(section: Section) -> list[tuple[int, int, Usage]]:
    """Rank, how many steps of it are told, and its typical one; the mean step where steps are not told one by one."""
    if not section.steps:
        return [(rank, 0, used) for rank, used in section.usage]
    ranks: dict[int, list[StepRow]] = {}
    for row in section.steps:
        ranks.setdefault(row.rank, []).append(row)
    return [(rank, len(rows), typical(rows)) for rank, rows in sorted(ranks.items())]


def of_all(section: Section) -> Usage | None:
    """The mean over the ranks of their typical steps; None where no step is told."""
    each = [used for _, _, used in by_rank(section)]
    if not each:
        return None
    return Usage(*(sum(getattr(u, name) for u in each) / len(each) for name in Usage.__dataclass_fields__))
