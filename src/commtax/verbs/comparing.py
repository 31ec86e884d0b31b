"""One question over a range of answers: ``commtax compare … --over batch=1:256 --over link=nvlink4,10gbe``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Unpack

from commtax import catalog
from commtax.question import Changes, Question
from commtax.spec import SIZES, Cluster, Model
from commtax.statement import Refusal
from commtax.units import parse_count
from commtax.verbs.asking import AUTO_EP, unsettled
from commtax.verbs.billing import StepBill, price, with_link
from commtax.verbs.options import CellOptions, only

TRAIN_AXES = ("batch", "context", *SIZES[:-1], "link", SIZES[-1], "micro_batch", "local_tokens")
AXES = TRAIN_AXES[:-3]
BESIDE = ("global_batch", "local_tokens", "link")
"""What a cell may say that is no field of a question."""
MAX_CELLS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: where it lies on the axes, and its bill, or why it has none."""

    at: tuple[Any, ...]
    bill: StepBill | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A grid of bills over one or two axes."""

    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    training: bool = False

    def values(self, axis: str) -> list[Any]:
        index = self.axes.index(axis)
        return list(dict.fromkeys(row.at[index] for row in self.rows))


def parse_over(text: str, axes: tuple[str, ...] = AXES) -> tuple[str, list[Any]]:
    """``batch=1:256`` doubles from 1 to 256; ``tp=1,2,4`` lists.

    >>> parse_over("batch=1:8"), parse_over("link=nvlink4,10gbe")
    (('batch', [1, 2, 4, 8]), ('link', ['nvlink4', '10gbe']))
    """
    axis, equals, values = text.partition("=")
    axis = axis.replace("-", "_")
    if axis not in axes or not equals or not values:
        raise Refusal(f"over '{text}': write AXIS=1:256 or AXIS=1,2,4 with one of {', '.join(axes)}", "over")
    if axis == "link":
        return axis, [catalog.link(name).key for name in values.split(",")]
    if ":" in values:
        low, high = (parse_count(v, axis) for v in values.split(":", 1))
        if not 1 <= low <= high:
            raise Refusal(f"over '{text}': the range must rise from at least 1", "over")
        found = [low]
        while found[-1] * 2 <= high:
            found.append(found[-1] * 2)
        return axis, found if found[-1] == high else [*found, high]
    return axis, [parse_count(v, axis) for v in values.split(",")]


def compare(model: str | Model, cluster: str | Cluster, over: list[str], **options: Unpack[CellOptions]) -> Comparison:
    """Price every combination; a combination that is not legal keeps its rule. ``phase="train"`` prices training steps.

    Over ``local_tokens`` a GPU's tokens a step change: sequences of ``context`` tokens, or shorter ones where they are fewer.
    """
    only(CellOptions, options)
    fixed = {"global_batch": options.pop("global_batch", None), "local_tokens": options.pop("local_tokens", None)}
    put = unsettled(model, cluster, options)
    return compared(put, over, **fixed)


def compared(put: Question, over: list[str], **fixed: int | None) -> Comparison:
    """A question over one or two axes; ``fixed`` holds a ``global_batch`` or ``local_tokens`` of all cells."""
    axes = [parse_over(text, TRAIN_AXES if put.trains else AXES) for text in over]
    if not 1 <= len(axes) <= 2 or len({name for name, _ in axes}) != len(axes):
        raise Refusal("over: one or two different axes are needed", "over")
    cells = list(product(*(values for _, values in axes)))
    if len(cells) > MAX_CELLS:
        raise Refusal(f"over: {len(cells):,} combinations, more than the {MAX_CELLS:,} that are shown", "over")
    names = tuple(name for name, _ in axes)
    rows = tuple(_cell(put, cell, fixed | dict(zip(names, cell, strict=True))) for cell in cells)
    return Comparison(names, rows, put.trains)


def _cell(put: Question, cell: tuple[Any, ...], changes: Changes) -> Row:
    """One combination; ``global_batch`` and ``local_tokens`` become sequences, the latter one a microbatch."""
    total, tokens, link = (changes.get(name) for name in BESIDE)
    own = {name: value for name, value in changes.items() if name not in BESIDE}
    try:
        q = put.but(**own, cluster=with_link(put.cluster, link) if link else put.cluster)
        if q.plan.ep == AUTO_EP and q.model.experts is None:
            q = q.but(ep=1)
        if total is not None:
            q = q.but(batch=share_of(total, int(q.plan.dp)))
        if tokens is not None:
            q = _local(q, tokens)
        return Row(cell, price(q))
    except ValueError as error:
        return Row(cell, None, str(error))


def share_of(total: int, dp: int) -> int:
    """One replica's share of a global batch."""
    if dp < 1 or total % dp:
        raise Refusal(f"global_batch={total} does not divide by dp={dp}", "global_batch")
    return total // dp


def _local(q: Question, tokens: int) -> Question:
    length = min(int(q.context), tokens)
    if tokens % length:
        raise Refusal(f"local_tokens={tokens}: not a whole number of sequences of {length} tokens", "local_tokens")
    return q.but(context=length, batch=tokens // length, micro_batch=1)
