"""TP against links and against batches: every cell is a state of its own, priced as the view is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from commtax import catalog
from commtax.api.billing import fits
from commtax.api.train_billing import TrainBill
from commtax.cost.legality import legal_values
from commtax.report.documents import Document, plain
from commtax.report.view import Priced, priced
from commtax.report.view.state import SHORT, RefusedError, State, refusal
from commtax.spec import Cluster

GRIDS = ("tp-link", "tp-batch")
LINKS = ("pcie4", "pcie5", "ib-ndr", "roce-100", "25gbe", "10gbe")
"""Columns beside the cluster's own links."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MICRO = (1, 2, 4, 8, 16, 32)
MOST_TP = 128


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    changes: dict[str, Any]
    value: Any


def grid(state: State, kind: str) -> Document:
    """The heat map of one kind around a state. A row pays where it gives more than the last row before it that fits."""
    here = priced(state)
    columns = _links(here.setup.cluster) if kind == "tp-link" else _batches(state)
    degrees = _degrees(state, here)
    cells, before = [], [float("nan")] * len(columns)
    for row, tp in enumerate(degrees):
        for column, c in enumerate(columns):
            cell = _cell(tp, c, here, state)
            rate = cell["rate"] if cell["fits"] else None  # what fits nowhere is no alternative
            pays = None if rate is None or before[column] != before[column] else rate > before[column]
            before[column] = before[column] if rate is None else rate
            cells.append({"row": row, "column": column, **cell, "pays": pays})
    return dict(
        plain(
            {
                "rows": [f"TP {tp}" for tp in degrees],
                "columns": [c.title for c in columns],
                "row_title": "tensor-parallel size",
                "column_title": _column_title(kind, state),
                "rate_unit": "tokens/s",
                "cells": cells,
                "here": [degrees.index(state.tp), _here(columns, state, kind)],
                "note": _note(state),
            }
        )
    )


def _column_title(kind: str, state: State) -> str:
    if kind == "tp-link":
        return "link of the group"
    return "sequences a microbatch" if state.training else "sequences a replica"


def _note(state: State) -> str:
    same = "the same GPUs and global batch in every row (dp gives way to tp)" if state.training else "dp as it is"
    line = "past the line a row gives fewer tokens/s than the row above it: that much more TP does not pay"
    return f"{line}; {same}; what is struck through does not fit in memory, and no line counts it"


def _degrees(state: State, here: Priced) -> list[int]:
    """Powers of two that are legal (training: with dp giving way), and the present one."""
    asked = here.setup
    free = replace(asked.plan, dp=1) if state.training else asked.plan
    most = min(MOST_TP, int(asked.plan.tp) * int(asked.plan.dp) if state.training else MOST_TP)
    legal = legal_values("tp", asked.model, asked.cluster, replace(free, ep=1), asked.engine)
    return sorted({tp for tp in legal if tp & (tp - 1) == 0 and tp <= most} | {state.tp})


def _at(state: State, tp: int, column: Column) -> State:
    """The state of a cell: experts follow tp as engines tie them; in training dp gives way to tp and the global batch stays."""
    total = state.tp * state.dp
    dp = total // tp if state.training and total % tp == 0 else state.dp
    ep = tp * dp if state.ep > 1 and not state.training else state.ep
    asked = replace(state, tp=tp, dp=dp, ep=ep, **column.changes)
    if not state.training:
        return asked
    batch = state.batch * state.microbatches * state.dp
    each, rest = divmod(batch, asked.batch * dp)
    if not each or rest:
        raise RefusedError(
            f"b: a global batch of {batch:,} is no whole number of microbatches of {asked.batch} on {dp} replicas", "b"
        )
    return replace(asked, microbatches=each)


def _cell(tp: int, column: Column, here: Priced, state: State) -> Document:
    empty: Document = {"step_s": None, "rate": None, "comm_fraction": None, "mfu": None, "fits": None, "refused": None}
    try:
        asked = _at(state, tp, column)
        b = here if asked == state else priced(asked)
    except ValueError as error:
        return {**empty, "refused": refusal(error).rule, "patch": None}
    patch = {SHORT[f]: getattr(asked, f) for f in MOVED if getattr(asked, f) != getattr(state, f)}
    mfu, room = (float(b.mfu), bool(b.fits)) if isinstance(b, TrainBill) else (None, fits(b))
    found = {"step_s": float(b.step_s), "rate": float(b.tokens_per_s), "comm_fraction": float(b.comm_fraction)}
    return {**empty, **found, "mfu": mfu, "fits": room, "patch": patch}


MOVED = ("tp", "dp", "ep", "batch", "microbatches", "cluster", "intra", "inter")
"""Fields in which a cell may differ from the state."""


def _batches(state: State) -> list[Column]:
    values = sorted({*(MICRO if state.training else BATCHES), state.batch})
    return [Column(str(v), {"batch": v}, v) for v in values]


def _links(cluster: Cluster) -> list[Column]:
    """The cluster as it is, then other links: inside a host, or one GPU a host and the link between them."""
    own = cluster.intra.key if cluster.num_hosts == 1 or cluster.gpus_per_host > 1 else cluster.inter.key
    found = [Column(own if cluster.num_hosts == 1 else f"{cluster.intra.key}, {cluster.inter.key}", {}, own)]
    for name in LINKS:
        link = catalog.link(name)
        if link.key == own or (link.scope == "intra" and link.key == cluster.intra.key):
            continue
        if link.scope == "intra":
            if cluster.gpus_per_host > 1:
                found.append(Column(link.key, {"intra": link.key}, link.key))
        elif cluster.num_hosts > 1:
            if link.key != cluster.inter.key:
                found.append(Column(f"{link.key} between", {"inter": link.key}, link.key))
        else:
            apart = f"{cluster.num_gpus}x1x{cluster.chip.key}"
            found.append(Column(f"{link.key}, one a host", {"cluster": apart, "inter": link.key, "intra": ""}, link.key))
    return found


def _here(columns: list[Column], state: State, kind: str) -> int:
    """The column of the present state; for links the first is the cluster as it is."""
    return next(i for i, c in enumerate(columns) if c.value == state.batch) if kind == "tp-batch" else 0
