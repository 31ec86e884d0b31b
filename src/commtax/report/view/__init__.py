"""Everything that the page shows for one state, as one document. Every figure is the library's; nothing is computed twice.

``parse`` a query (``state``), ``priced`` it, and ``view`` says it: sentence, totals, one layer, axes, bill, what-ifs, memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from commtax.api.billing import StepBill, bill, held
from commtax.api.explain import counterfactuals, verdict
from commtax.api.fitting import Fit
from commtax.api.setup import describe_gpus, fabric_of
from commtax.api.train_billing import USABLE, TrainBill, train_bill
from commtax.api.train_explain import train_counterfactuals, train_verdict
from commtax.ledger import AXIS_OF, Line
from commtax.report.bills import weakest
from commtax.report.documents import Document, plain
from commtax.report.layer import Bar, layer_of
from commtax.report.view.commands import commands
from commtax.report.view.formula import formula, share_formula, source
from commtax.report.view.lesson import lesson
from commtax.report.view.moves import instead, moves
from commtax.report.view.state import KEYS, SHORT, State, cluster_of, model_of, record
from commtax.units import format_seconds

Priced = StepBill | TrainBill
AXES = ("tp", "pp", "dp", "ep", "cp")
SMALL = 0.05
"""A share of the step below which serving's communication does not bind, as in the sentence of a bill."""


def words_of(state: State) -> dict[str, Any]:
    """Arguments of ``bill`` or ``train_bill``."""
    sizes = {axis: getattr(state, axis) for axis in AXES}
    words: dict[str, Any] = {**sizes, "engine": state.engine, "dtype": state.dtype, "context": state.length}
    words |= {"eager": bool(state.eager), "library": state.library}
    if not state.training:
        sharded = bool(state.sequence_parallel)
        return {**words, "phase": state.phase, "batch": state.batch, "kv_dtype": state.kv_dtype, "sequence_parallel": sharded}
    axes = state.async_axes
    return {
        **words,
        "batch": state.batch * state.microbatches,
        "micro_batch": state.batch,
        "zero": int(state.zero) if state.zero else None,
        "recompute": state.recompute,
        "schedule": state.schedule,
        "chunks": state.chunks if state.schedule == "interleaved" else 1,
        "sequence_parallel": True if state.sequence_parallel else None,
        "async_axes": None if not axes else () if axes == "none" else tuple(axes.split(",")),
    }


@lru_cache(maxsize=512)
def priced(state: State) -> Priced:
    """The bill of a state; what the library refuses it refuses here too."""
    model = model_of(state.model, state.hidden, state.layers, state.config)
    place = cluster_of(state)
    return train_bill(model, place, **words_of(state)) if state.training else bill(model, place, **words_of(state))


def legal_instead(state: State) -> Document | None:
    """What a refused state could be with other sizes; none where its sizes are not what is wrong."""
    alone: dict[str, Any] = dict.fromkeys(AXES, 1)
    try:
        base = priced(replace(state, **alone)).setup
    except (ValueError, OverflowError):
        return None
    return instead(state, base)


def view(state: State) -> Document:
    """All that is shown at once; the slower pictures (grids, plans, the pipeline) are asked for on their own."""
    return view_of(priced(state), state)


def view_of(b: Priced, state: State, command: str = "") -> Document:
    """The view of a bill; ``command`` is the line that priced it, where it was not the state."""
    library = fabric_of(b.setup, b.settings.library).name
    found = train_counterfactuals(b) if isinstance(b, TrainBill) else counterfactuals(b)
    memory, step = _memory(b), float(b.step_s)
    sentence = train_verdict(b) if isinstance(b, TrainBill) else verdict(b, found)
    axis, ways = _binding(b), moves(b.setup, state)
    document = {
        "state": record(normal(state, b)),
        "title": f"{b.setup.model.key} on {b.setup.cluster.key}: {describe_gpus(b.setup.plan)}, {b.setup.engine.name}",
        "sentence": sentence,
        "binding": {"axis": axis, "text": _binding_words(b, axis)},
        "notes": list(b.notes),
        "cluster": _place(b),
        "local_tokens": float(b.step.micro_batch * b.step.seq / b.setup.plan.cp) if isinstance(b, TrainBill) else None,
        "totals": _totals(b, memory["fits"]),
        "layer": _layer(b, library),
        "axes": _axes(b, axis, library),
        "bill": [_line(x, b, step, library) for x in sorted(b.items, key=lambda x: -float(x.exposed_s))],
        "changes": [_change(c, b, step) for c in found],
        "memory": memory,
        "commands": commands(state, b, command),
        "lesson": lesson(b),
        "limits": _limits(b, state, ways),
        "moves": {name: [{"patch": way["patch"], "note": way["note"]} for way in found] for name, found in ways.items()},
    }
    return dict(plain(document))


def normal(state: State, b: Priced) -> State:
    """The state with what was left to the engine said aloud."""
    plan, trained = b.setup.plan, isinstance(b, TrainBill)
    told: dict[str, Any] = {"model": b.setup.model.key} if not state.file else {}
    told |= {"engine": b.setup.engine.key if "@" not in state.engine else state.engine, "context": state.length}
    told |= {"zero": str(plan.zero)} if trained else {}
    return replace(state, cluster=b.setup.cluster.key, sequence_parallel=int(plan.sequence_parallel), **told)


def _binding(b: Priced) -> str:
    """The axis that costs most; ``compute`` where none costs much."""
    if isinstance(b, TrainBill):
        return str(b.binding)
    if float(b.comm_fraction) < SMALL:
        return "compute"
    return max(AXES, key=lambda axis: float(b.exposed_on(axis)))


def _binding_words(b: Priced, axis: str) -> str:
    if axis == "compute":
        return "compute binds: communication is small or hides"
    lines = [x for x in b.items if x.kind in ("comm", "bubble") and _axis(x) == axis]
    top = max(lines, key=lambda x: float(x.exposed_s))
    if top.kind == "bubble":
        return f"the pipeline's bubble, {format_seconds(float(top.exposed_s))} a step"
    kind = "latency" if float(top.fixed_s) > float(top.moving_s) else "bandwidth"
    return f"{kind} of {top.item.what} {top.item.op} over {top.link}, {format_seconds(float(top.exposed_s))} exposed"


def _axis(line: Line) -> str:
    return AXIS_OF.get(line.item.axis, line.item.axis)


def _totals(b: Priced, fits: bool) -> Document:
    names = ("step_s", "low_s", "high_s", "compute_s", "comm_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
    trained = b if isinstance(b, TrainBill) else None
    return {
        **{name: float(getattr(b, name)) for name in names},
        "bubble_fraction": float(trained.bubble_fraction) if trained else 0.0,
        "mfu": float(trained.mfu) if trained else None,
        "hfu": float(trained.hfu) if trained else None,
        "mfu_definition": trained.mfu_definition if trained else "",
        "local_tokens": float(trained.step.micro_batch * trained.step.seq / trained.setup.plan.cp) if trained else None,
        "fits": fits,
        "source": weakest(b),
    }


def _layer(b: Priced, library: str) -> Document:
    drawn = layer_of(b)
    return {"length_s": drawn.length_s, "note": drawn.note, "bars": [_bar(x, b, library) for x in drawn.bars]}


def _bar(bar: Bar, b: Priced, library: str) -> Document:
    s = bar.segment
    line = s.line
    return {
        "lane": s.lane,
        "axis": _axis(line),
        "stage": bar.stage,
        "name": f"{s.name} {line.item.op}" if s.lane == "comm" else s.name,
        "start_s": bar.start_s,
        "end_s": bar.end_s,
        "latency_s": s.fixed_s,
        "bandwidth_s": s.moving_s,
        "exposed": bar.exposed,
        "hidden": bar.hidden,
        "formula": share_formula(s, b.setup.cluster.chip),
        "source": source(line, library),
    }


def _axes(b: Priced, binding: str, library: str) -> list[Document]:
    """One row an axis that sends anything: what all of its collectives cost together, and the costliest one with its window."""
    found = []
    for axis in AXES:
        lines = [x for x in b.items if x.kind == "comm" and _axis(x) == axis]
        bubble = float(b.bubble_s) if isinstance(b, TrainBill) and axis == "pp" else 0.0
        if not lines:
            continue
        top = max(lines, key=lambda x: (float(x.exposed_s), float(x.total_s)))
        total, exposed = sum(float(x.total_s) for x in lines), float(b.exposed_on(axis))
        overlaps = isinstance(b, TrainBill) and axis in b.async_axes
        found.append(
            {
                "axis": axis,
                "collective": f"{top.item.what} {top.item.op}",
                **{name: float(getattr(top.item, name)) for name in ("nbytes", "ranks")},
                "times": float(top.item.count),
                "link": str(top.link),
                "more": len(lines) - 1,
                "top_s": float(top.total_s),
                "window_s": float(top.window_s) if overlaps else 0.0,
                "comm_s": total,
                "exposed_s": exposed,
                "bubble_s": bubble,
                "tax": (exposed + bubble) / float(b.step_s),
                "hidden": overlaps and all(float(x.total_s) <= float(x.window_s) for x in lines),
                "binding": axis == binding,
                "formula": formula(top, b.setup.cluster.chip),
                "source": source(top, library),
            }
        )
    return found


def _line(x: Line, b: Priced, step: float, library: str) -> Document:
    """One line of the bill."""
    how = f"{x.item.op}, {x.algorithm} over {x.link}, {int(x.item.ranks)} ranks" if x.kind == "comm" else x.item.op
    return {
        "kind": x.kind,
        "axis": _axis(x),
        "what": x.item.what,
        "how": how,
        "why": x.why,
        "nbytes": float(x.item.nbytes),
        "times": float(x.item.count),
        "each_s": float(x.each_s),
        "latency_s": float(x.fixed_s),
        "total_s": float(x.total_s),
        "share": float(x.exposed_s) / step,
        "exposed_s": float(x.exposed_s),
        "formula": formula(x, b.setup.cluster.chip),
        "source": source(x, library) if x.kind == "comm" else x.source,
    }


def _change(c: Any, b: Priced, step: float) -> Document:
    return {
        "label": c.what,
        "step_s": c.step_s,
        "change": c.delta_s / step,
        "note": c.note,
        "patch": patch_of(c.changes, b),
    }


def patch_of(changes: Any, b: Priced) -> Document | None:
    """The keys that a what-if sets; none where the state has no key for it (a link that nobody sells)."""
    known = {key.field for key in KEYS}
    found: Document = {}
    for name, value in changes.items():
        if name in ("speculative", "hsdp"):
            continue
        if name == "async_axes":
            found["as"] = ",".join(value) or "none"
        elif name == "micro_batch":
            found["b"] = value
        elif name == "batch" and isinstance(b, TrainBill):
            found["n"] = value // int(changes["micro_batch"])
        elif name in known:
            found[SHORT[name]] = int(value) if isinstance(value, bool) else value
        else:
            return None
    return found


def _memory(b: Priced) -> Document:
    """What one rank holds, part by part."""
    chip = b.setup.cluster.chip
    if isinstance(b, TrainBill):
        names = ("parameters", "gradients", "optimizer", "activations", "logits")
        parts = [{"name": name, "nbytes": float(getattr(b.memory, name))} for name in names]
        where = "a rank of the first stage, which keeps the most activations; " if b.setup.plan.pp > 1 else ""
        note = f"{where}a run can use {USABLE:.0%} of what the driver reports"
        return _held(chip.visible_bytes, parts, bool(b.fits), None, note)
    found = held(b)
    tokens = int(b.batch) * (int(b.context) + 1)
    parts = [
        {"name": "weights", "nbytes": found.weights_bytes},
        {"name": "activations", "nbytes": found.activation_bytes},
        {"name": "graphs and other", "nbytes": found.other_bytes + found.graph_bytes},
        {"name": "KV cache of this batch", "nbytes": _cache_bytes(found, tokens)},
    ]
    fits = found.fits and found.kv_tokens >= tokens
    note = f"room for {found.kv_tokens:,} cached tokens a replica; this batch has {tokens:,}"
    return _held(chip.visible_bytes, parts, fits, found.kv_tokens, note)


def _cache_bytes(found: Fit, tokens: int) -> float:
    """Bytes of a rank's cache for so many tokens, by the engine's own blocks."""
    return found.kv_bytes * tokens / found.kv_tokens if found.kv_tokens else found.kv_bytes_per_token * tokens


def _held(capacity: float, parts: list[Document], fits: bool, kv_tokens: int | None, note: str) -> Document:
    parts = [part for part in parts if part["nbytes"]]
    used = sum(part["nbytes"] for part in parts)
    return {"capacity_bytes": capacity, "used_bytes": used, "fits": fits, "parts": parts, "kv_tokens": kv_tokens, "note": note}


def _limits(b: Priced, state: State, ways: dict[str, list[Document]]) -> Document:
    """Values of each slider: of axes and local tokens where they may move, ranges of what is free."""
    return {
        **{name: [way["value"] for way in found] for name, found in ways.items()},
        "b": _doubling(1, 1024, state.batch),
        "s": _doubling(128, min(2**20, b.setup.model.max_len), state.length),
        "n": _doubling(1, 1024, state.microbatches),
        "z": [0, 1, 2, 3],
    }


def _doubling(low: int, high: int, now: int) -> list[int]:
    """Powers of two in a range, and the present value."""
    return sorted({2**i for i in range(21) if low <= 2**i <= high} | {now})


def _place(b: Priced) -> Document:
    """The cluster in a line."""
    c, used = b.setup.cluster, int(b.setup.plan.num_gpus)
    hosts = f"{c.num_hosts} hosts of {c.gpus_per_host}" if c.num_hosts > 1 else f"one host of {c.gpus_per_host}"
    pairs = f", pairs over {c.bridge.name}" if c.bridge else ""
    text = f"{hosts} {c.chip.name}, {c.intra.name} inside{pairs}" + (f", {c.inter.name} between" if c.num_hosts > 1 else "")
    return {"gpus": c.num_gpus, "used_gpus": used, "text": f"{used:,} of {c.num_gpus:,} GPUs in use: {text}"}
