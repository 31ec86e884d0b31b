"""What one step sends: ``commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8)``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from commtax.cost.experts import over_replicas
from commtax.cost.placement import span
from commtax.cost.traffic import inference, padded_rows
from commtax.cost.train_traffic import training
from commtax.ledger import Item
from commtax.question import Question
from commtax.spec import Cluster, Model, Number
from commtax.statement import Note, Refusal
from commtax.verbs.asking import context_notes, settled, unsettled
from commtax.verbs.billing import flight_notes
from commtax.verbs.checking import check_arithmetic
from commtax.verbs.options import SentOptions, only


@dataclass(frozen=True, slots=True)
class Line:
    """An item and the link it crosses."""

    item: Item
    link: str
    crosses_hosts: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything one step sends."""

    question: Question
    rows: Number
    items: tuple[Item, ...]
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Any:
        return self.question.legal

    @property
    def lines(self) -> list[Line]:
        """The items that this (scalar) plan issues, with their links."""
        return [self._line(i) for i in self.items if i.is_sent]

    def _line(self, item: Item) -> Line:
        cluster = self.question.cluster
        group = span(item.axis, self.question.plan, cluster, self.question.engine)
        crosses, inside = bool(group.crosses), cluster.as_pairs if group.paired else cluster
        return Line(item, (cluster.inter if crosses else inside.intra).key, crosses)

    @property
    def sent_bytes_per_rank(self) -> Number:
        """Least bytes one rank sends in the step."""
        return sum((i.sent_bytes_per_rank for i in self.items), start=0.0)


def traffic(model: str | Model, cluster: str | Cluster, **options: Unpack[SentOptions]) -> Traffic:
    """The exact collectives of one step.

    ``batch`` counts sequences a replica; ``context`` is cached tokens a sequence in decode, prompt length in prefill,
    sequence length in training. A mixed step is ``batch`` decodes beside one prompt of ``context`` tokens.
    """
    put = unsettled(model, cluster, {"context": 1024, **only(SentOptions, options)})
    if put.trains:
        for name, given in (("eager", put.what_if.eager), ("kv_dtype", options.get("kv_dtype"))):
            if given:
                raise Refusal(f"{name}: belongs to serving, not to phase train", name)
    if put.profile:
        raise Refusal("profile: holds seconds, and what is sent has none", "profile")
    return sent(put)


def sent(put: Question) -> Traffic:
    """The collectives of a question's step."""
    q = settled(put)
    check_arithmetic(q)
    if q.trains:
        return Traffic(q, q.micro_batch * q.context, tuple(training(q.model, q.plan, q.step, q.engine)), q.notes)
    eager, work = q.what_if.eager, q.work
    items = inference(q.model, q.plan, work, q.engine, ep_backend=q.what_if.ep_backend, eager=eager)
    rows = padded_rows(work.rows, work, q.engine, q.plan.tp, eager)
    return Traffic(q, rows, tuple(items), (*q.notes, *_notes(q, rows)))


def _notes(q: Question, rows: Number) -> Iterator[Note]:
    yield from flight_notes(q)
    yield from context_notes(q, q.context)
    wanted = q.work.rows
    if np.ndim(rows) == 0 and rows != wanted:
        yield Note("padding", f"{q.engine.key} runs {wanted:,.0f} rows in a CUDA graph of {rows:,.0f}: the padding is sent too")
    alone = q.model.experts is None or not np.any(over_replicas(q.plan, q.engine))
    if np.ndim(q.plan.dp) == 0 and q.plan.dp != 1 and alone:
        yield Note("alone", f"DP {q.plan.dp}: its ranks send each other nothing here; the lines are one rank's")
