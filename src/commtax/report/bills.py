"""The priced step for a terminal: sentence, picture, itemised table, what would change it; and as a document."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.console import Console
from rich.text import Text

from commtax.api.billing import StepBill, fits
from commtax.api.comparing import Comparison
from commtax.api.expecting import Expectation
from commtax.api.explain import counterfactuals, verdict
from commtax.api.setup import describe_gpus
from commtax.api.train_billing import TrainBill
from commtax.report.documents import Document, line_records, plain, question
from commtax.report.picture import draw_layer
from commtax.report.tables import new_table, notes, say, where
from commtax.units import format_bytes, format_count, format_rate, format_seconds

WEAKEST_FIRST = ("assumed", "transferred", "datasheet", "calibrated", "measured", "by definition")
"""Kinds of source, a step as a whole being as sure as its weakest line."""


def show_bill(console: Console, b: StepBill) -> None:
    """Sentence first, then the picture, the lines that sum to the step, and the what-ifs."""
    asked = b.setup
    say(
        console,
        f"{asked.model.key} on {where(asked)}: {describe_gpus(asked.plan)}, {asked.engine.key}@{asked.engine.version}",
        "bold",
    )
    what = {"decode": "cached tokens each", "prefill": "prompt tokens each", "mixed": "cached tokens each, and one prompt as long"}
    say(console, f"{b.phase}: batch {int(b.batch):,} a replica, {int(b.context):,} {what[b.phase]}{_modes(b)}", "dim")
    what_ifs = counterfactuals(b)
    say(console, verdict(b, what_ifs), "bold yellow")
    for line in draw_layer(b):
        console.print(line, soft_wrap=True)
    _lines(console, b)
    _totals(console, b)
    table = new_table("what if", ">step", ">change", "")
    for c in what_ifs:
        table.add_row(c.what, format_seconds(c.step_s), f"{c.delta_s / float(b.step_s):+.1%}", c.note)
    console.print(table)
    chosen = dict.fromkeys(f"{x.item.op}: {x.why}" for x in b.items if x.why)
    notes(console, (*chosen, *b.notes, f"weakest source: {weakest(b)}"))


def _modes(b: StepBill) -> str:
    s = b.settings
    words: list[tuple[str, Any]] = [
        ("eager", s.eager),
        (f"{b.speculative} drafted tokens", b.speculative),
        (f"slowest rank {s.slow_rank:g}x", s.slow_rank != 1),
        (f"what-if: {s.overlap:.0%} of communication hidden", s.overlap > 0),
    ]
    return "".join(f", {word}" for word, on in words if on)


def weakest(b: StepBill | TrainBill) -> str:
    """The least certain kind of source among the lines, and which lines rest on it."""
    for kind in WEAKEST_FIRST:
        found = dict.fromkeys(f"{x.kind}: {x.source}" for x in b.lines if x.source.kind == kind)
        if found:
            return "; ".join(found)
    return "none"


def _lines(console: Console, b: StepBill) -> None:
    step = float(b.step_s)
    table = new_table("line", "how", ">bytes", ">times", ">each", ">latency", ">total", ">share")
    for x in sorted(b.items, key=lambda x: -float(x.exposed_s)):
        item = x.item
        how = f"{item.op}, {x.algorithm} over {x.link}, {int(item.ranks)} ranks" if x.kind == "comm" else item.op
        name = Text(f"{item.axis} {item.what}" if x.kind == "comm" else item.what, style="yellow" if x.kind == "comm" else "")
        size = format_bytes(float(item.nbytes)) if float(item.nbytes) else ""
        times = (format_count(float(item.count)), format_seconds(float(x.each_s)), format_seconds(float(x.fixed_s)))
        table.add_row(name, how, size, *times, format_seconds(float(x.total_s)), f"{float(x.exposed_s) / step:.1%}")
    console.print(table)


def _totals(console: Console, b: StepBill) -> None:
    kv = "fits" if fits(b) else "does not fit in memory with this batch and context (see commtax fit)"
    say(
        console,
        f"step {format_seconds(float(b.step_s))}{in_range(b)} = compute and host {format_seconds(float(b.compute_s))} "
        f"+ exposed communication {format_seconds(float(b.exposed_comm_s))} ({float(b.comm_fraction):.1%}); "
        f"{float(b.tokens_per_s):,.1f} output tokens/s{_prompt_rate(b)}; {kv}",
        "bold",
    )


def in_range(b: StepBill | TrainBill) -> str:
    """The 80 % range, where there is one."""
    low, high = format_seconds(float(b.low_s)), format_seconds(float(b.high_s))
    return f" ({low} to {high})" if low != high else ""


def _prompt_rate(b: StepBill) -> str:
    """Prompt tokens of all replicas a second, where the step has a prompt."""
    prompts = {"prefill": float(b.batch), "mixed": 1.0}.get(b.phase)
    if prompts is None:
        return ""
    return f", {prompts * float(b.context) * float(b.setup.plan.dp * b.setup.plan.replicas) / float(b.step_s):,.0f} prompt tokens/s"


def bill_document(b: StepBill) -> Document:
    """``bill --json``."""
    figures = ("step_s", "low_s", "high_s", "compute_s", "comm_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
    found = counterfactuals(b)
    what_if = [{"what": c.what, "step_s": c.step_s, "delta_s": c.delta_s, "note": c.note} for c in found]
    head: dict[str, Any] = {
        "schema": "commtax.bill/1",
        **question(b.setup),
        "phase": b.phase,
        "batch": b.batch,
        "context": b.context,
    }
    tail = {
        **{name: getattr(b, name) for name in figures},
        "fits": fits(b),
        "items": line_records(b.items),
        "verdict": verdict(b, found),
        "counterfactuals": what_if,
        "sources": b.sources,
        "weakest_source": weakest(b),
        "notes": b.notes,
    }
    return dict(plain({**head, **tail}))


def show_expectation(console: Console, e: Expectation, measured_s: float | None) -> None:
    """One line that a job's prolog can log."""
    busbw = format_rate(float(e.busbw_Bps))
    own = f"; profile {e.profile}" if e.profile else ""
    low, high = (format_seconds(float(x)) for x in (e.low_s, e.high_s))
    say(
        console,
        f"{e.op} of {format_bytes(float(e.nbytes))} over {e.ranks} ranks of {e.cluster.key} ({e.link}, {e.algorithm}): "
        f"{format_seconds(float(e.seconds))} ({low} to {high}), algbw {format_rate(float(e.algbw_Bps))}, busbw {busbw}",
        "bold",
    )
    say(
        console,
        f"  latency {format_seconds(float(e.latency_s))} + wire {format_seconds(float(e.wire_s))}; "
        f"{e.fabric.name}, {e.source}{own}",
        "dim",
    )
    if measured_s is not None:
        verdict = e.verdict(measured_s)
        ratio = measured_s / float(e.seconds)
        if measured_s < float(e.low_s):
            notes(console, ["faster than the range: is the size, the group or the definition of bandwidth another one?"])
        assumed = "; the range is assumed: calibrate with a host that is known to be good" if verdict == "undecided" else ""
        why = "; no link here carries that" if measured_s < float(e.floor_s) else assumed
        say(
            console,
            f"{verdict.upper()}: measured {format_seconds(measured_s)}, {ratio:.2f} x the expected time{why}",
            {"pass": "green", "fail": "red"}.get(verdict, "yellow"),
        )


PASSED = {"pass": True, "fail": False, "undecided": None}


def expectation_document(e: Expectation, measured_s: float | None) -> Document:
    names = (
        "op",
        "ranks",
        "nbytes",
        "seconds",
        "low_s",
        "high_s",
        "latency_s",
        "wire_s",
        "algbw_Bps",
        "busbw_Bps",
        "algorithm",
        "link",
    )
    document: dict[str, Any] = {
        "schema": "commtax.expect/1",
        "cluster": e.cluster.key,
        "library": e.fabric.name,
        "source": e.source,
        "profile": e.profile or None,
    }
    document |= {name: getattr(e, name) for name in names}
    if measured_s is not None:
        verdict = e.verdict(measured_s)
        document |= {"measured_s": measured_s, "verdict": verdict, "pass": PASSED[verdict]}
    return dict(plain(document))


COLUMNS = ("step_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
APART = ("tp_comm_s", "ep_comm_s")
TRAINED = ("mfu", "dp_tax_s", "tp_tax_s", "pp_tax_s", "ep_tax_s", "cp_tax_s", "binding")


def comparison_rows(found: Comparison) -> list[Document]:
    """One flat record a cell: communication by axis, in training all five taxes."""
    extra = TRAINED if found.training else APART
    rows = []
    for row in found.rows:
        record: Document = dict(zip(found.axes, row.at, strict=True)) | dict.fromkeys((*COLUMNS, *extra, "fits"))
        if row.bill is not None:
            record |= {name: float(getattr(row.bill, name)) for name in COLUMNS} | _apart(row.bill)
        rows.append(record | {"refused": row.refused})
    return rows


def _apart(b: StepBill | TrainBill) -> Document:
    if isinstance(b, TrainBill):
        taxes = {f"{axis}_tax_s": float(tax) for axis, tax in b.taxes.items()}
        return {"mfu": float(b.mfu), **taxes, "binding": b.binding, "fits": bool(b.fits)}
    return {f"{axis}_comm_s": float(b.exposed_on(axis)) for axis in ("tp", "ep")} | {"fits": fits(b)}


def comparison_csv(found: Comparison) -> str:
    rows = comparison_rows(found)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def show_comparison(console: Console, found: Comparison) -> None:
    names = ("dp", "tp", "pp", "ep", "cp") if found.training else ("tp comm", "ep comm")
    last = (">MFU", "binding") if found.training else ()
    table = new_table(
        *found.axes, ">step", ">compute", ">exposed comm", ">share", *(f">{n}" for n in names), ">tokens/s", *last, "fits", ""
    )
    for record in comparison_rows(found):
        cells = [str(record[a]) for a in found.axes]
        if record["refused"]:
            table.add_row(*cells, *[""] * (6 + len(names) + len(last)), Text(record["refused"], style="red"))
            continue
        times = [format_seconds(record[n]) for n in ("step_s", "compute_s", "exposed_comm_s")]
        apart = [format_seconds(v) if v else "" for k, v in record.items() if k.endswith(("_tax_s", "p_comm_s"))]
        trained = [f"{record['mfu']:.1%}", record["binding"]] if found.training else []
        table.add_row(
            *cells,
            *times,
            f"{record['comm_fraction']:.1%}",
            *apart,
            f"{record['tokens_per_s']:,.0f}",
            *trained,
            "yes" if record["fits"] else "no",
            "",
        )
    console.print(table)
