"""One question over a range of answers: ``commtax compare … --over batch=1:256 --over link=nvlink4,10gbe``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commtax import catalog
from commtax.api.billing import StepBill, bill, with_link
from commtax.api.setup import AUTO_EP
from commtax.api.train_billing import TrainBill, train_bill
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.units import parse_count

AXES = ("batch", "context", "tp", "pp", "dp", "ep", "link")
TRAIN_AXES = (*AXES, "cp", "micro_batch", "local_tokens")
MAX_CELLS = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: where it lies on the axes, and its bill, or why it has none."""

    at: tuple[Any, ...]
    bill: StepBill | TrainBill | None
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


def compare(model: str | Model, cluster: str | Cluster, over: list[str], **question: Any) -> Comparison:
    """Price every combination; a combination that is not legal keeps its rule. ``phase="train"`` prices training steps.

    Over ``local_tokens`` a GPU's tokens a step change: sequences of ``context`` tokens, or shorter ones where they are fewer.
    """
    training = question.get("phase") == "train"
    axes = [parse_over(text, TRAIN_AXES if training else AXES) for text in over]
    if not 1 <= len(axes) <= 2 or len({name for name, _ in axes}) != len(axes):
        raise Refusal("over: one or two different axes are needed", "over")
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    known = catalog.model(model) if isinstance(model, str) else model
    cells: list[tuple[Any, ...]] = [()]
    for _, values in axes:
        cells = [(*cell, value) for cell in cells for value in values]
    if len(cells) > MAX_CELLS:
        raise Refusal(f"over: {len(cells):,} combinations, more than the {MAX_CELLS:,} that are shown", "over")
    names = tuple(name for name, _ in axes)
    return Comparison(names, tuple(_cell(known, place, names, cell, question) for cell in cells), training)


def _cell(model: Model, cluster: Cluster, names: tuple[str, ...], cell: tuple[Any, ...], question: dict[str, Any]) -> Row:
    words = {**question, **dict(zip(names, cell, strict=True))}
    link = words.pop("link", "")
    if words.get("ep") == AUTO_EP and model.experts is None:
        words["ep"] = 1
    place = with_link(cluster, link) if link else cluster
    try:
        if words.get("phase") == "train":
            return Row(cell, train_bill(model, place, **_train_words(words)))
        return Row(cell, bill(model, place, **words))
    except ValueError as error:
        return Row(cell, None, str(error))


def _train_words(words: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a training step; ``local_tokens`` becomes sequences, one a microbatch."""
    words = {k: v for k, v in words.items() if k != "phase"}
    total = words.pop("global_batch", None)
    if total is not None:
        if total % words.get("dp", 1):
            raise Refusal(f"global_batch={total} does not divide by dp={words.get('dp', 1)}", "global_batch")
        words["batch"] = total // words.get("dp", 1)
    tokens = words.pop("local_tokens", None)
    if tokens is None:
        return words
    length = min(int(words.get("context", 4096)), int(tokens))
    if tokens % length:
        raise Refusal(f"local_tokens={tokens}: not a whole number of sequences of {length} tokens", "local_tokens")
    return {**words, "context": length, "batch": tokens // length, "micro_batch": 1}
