"""A priced step, served or trained, for a terminal: sentence, picture or taxes, lines, totals, what-ifs; and as a document."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from commtax.ledger import Line
from commtax.report import training
from commtax.report.documents import LEFT_OUT, Asked, Named, Record, Row, facts, filled, line_records, question
from commtax.report.tables import CONTEXT, between, csv_text, headline, new_table, notes, say
from commtax.spec import TAXES, Number
from commtax.units import format_bytes, format_count, format_rate, format_seconds
from commtax.verbs.billing import StepBill
from commtax.verbs.comparing import Comparison
from commtax.verbs.expecting import Expectation
from commtax.verbs.explain import Cause, causes
from commtax.verbs.explained import HELD, Explained
from commtax.verbs.fitting import fits
from commtax.verbs.layer import layer_segments

WEAKEST_FIRST = ("assumed", "transferred", "datasheet", "calibrated", "measured", "by definition")
"""Kinds of source, a step as a whole being as sure as its weakest line."""
WIDTH = 96
COMPUTE, LATENCY, WIRE = "█", "░", "▓"


def show_bill(console: Console, step: Explained, num_tokens: float = 0.0, measured_mfu: float | None = None) -> None:
    """Sentence first, then the picture, the lines that sum to the step, and the what-ifs."""
    b = step.bill
    headline(console, b.question)
    say(console, training.workload(b.question) if b.question.trains else _workload(b), "dim")
    say(console, step.sentence, "bold yellow")
    remarks = training.show_step(console, step, num_tokens, measured_mfu) if b.question.trains else _show_step(console, step, b)
    table = new_table("what if", ">step", ">change", "")
    for c in step.what_ifs:
        table.add_row(c.what, format_seconds(c.step_s), f"{c.delta_s / float(b.step_s):+.1%}", c.note)
    console.print(table)
    notes(console, (*remarks, f"weakest source: {weakest(b)}"))


def _show_step(console: Console, step: Explained, b: StepBill) -> tuple[str, ...]:
    """A served step's picture, lines and totals; what is left to remark."""
    for line in draw_layer(b):
        console.print(line, soft_wrap=True)
    _lines(console, b)
    _totals(console, b, step.memory.fits)
    return (*dict.fromkeys(f"{x.item.op}: {x.why}" for x in b.items if x.why), *b.notes)


def _workload(b: StepBill) -> str:
    q, s = b.question, b.question.what_if
    modes = (
        ("eager", s.eager),
        (f"{q.speculative} drafted tokens", q.speculative > 0),
        (f"slowest rank {s.slow_rank:g}x", s.slow_rank != 1),
        (f"what-if: {s.overlap:.0%} of communication hidden", s.overlap > 0),
    )
    given = "".join(f", {mode}" for mode, on in modes if on)
    return f"{q.phase}: batch {int(q.batch):,} a replica, {int(q.context):,} {CONTEXT[q.phase]}{given}"


def weakest(b: StepBill) -> str:
    """The least certain kind of source among the lines, and which lines rest on it."""
    for kind in WEAKEST_FIRST:
        found = dict.fromkeys(f"{x.kind}: {x.source}" for x in b.lines if x.source.kind == kind)
        if found:
            return "; ".join(found)
    return "none"


def draw_layer(bill: StepBill) -> list[Text]:
    """Two lanes on one time axis, and a legend of what the widths mean."""
    segments = layer_segments(bill)
    total = sum(s.seconds for s in segments)
    if total <= 0:
        return []
    scale = WIDTH / total
    compute, comm = Text("compute  ", style="dim"), Text("comm     ", style="dim")
    position, edge = 0.0, 0
    for s in segments:
        position += s.seconds * scale
        cells = max(0, round(position) - edge)
        edge += cells
        if s.lane == "compute":
            compute.append(COMPUTE * cells, style="blue" if s.line.item.part == "attention" else "cyan")
            comm.append(" " * cells)
        else:
            latency = round(cells * s.fixed_s / s.seconds) if s.seconds else 0
            compute.append(" " * cells)
            comm.append(LATENCY * latency, style="bold red")
            comm.append(WIRE * (cells - latency), style="bold yellow")
    exposed = sum(s.seconds for s in segments if s.lane == "comm")
    legend = Text(
        f"one layer, {format_seconds(total)}, to scale: {COMPUTE} compute  {LATENCY} latency  {WIRE} bandwidth of collectives",
        style="dim",
    )
    if exposed:
        hidden = bill.question.what_if.overlap
        legend.append(f"; exposed {format_seconds(exposed * (1 - hidden))} of {format_seconds(exposed)}", style="dim")
    return [compute, comm, legend]


def _lines(console: Console, b: StepBill) -> None:
    step = float(b.step_s)
    table = new_table("line", "how", ">bytes", ">times", ">each", ">latency", ">total", ">share")
    for x in sorted(b.items, key=lambda x: -float(x.exposed_s)):
        item, sent = x.item, x.kind == "comm"
        name = Text(f"{item.axis} {item.what}" if sent else item.what, style="yellow" if sent else "")
        size = format_bytes(item.nbytes) if float(item.nbytes) else ""
        times = (format_count(item.count), format_seconds(x.each_s), format_seconds(x.fixed_s))
        table.add_row(name, how_sent(x), size, *times, format_seconds(x.total_s), f"{float(x.exposed_s) / step:.1%}")
    console.print(table)


def how_sent(x: Line) -> str:
    """The operation; of a collective also its algorithm, link and group."""
    return f"{x.item.op}, {x.algorithm} over {x.link}, {int(x.item.ranks)} ranks" if x.kind == "comm" else x.item.op


def _totals(console: Console, b: StepBill, fits: bool) -> None:
    kv = "fits" if fits else "does not fit in memory with this batch and context (see commtax fit)"
    q = b.question
    prompts = {"prefill": float(q.batch), "mixed": 1.0}.get(q.phase, 0.0) * float(q.plan.dp * q.plan.replicas)
    rate = f", {prompts * float(q.context) / float(b.step_s):,.0f} prompt tokens/s" if prompts else ""
    say(
        console,
        f"step {format_seconds(b.step_s)}{between(b.low_s, b.high_s)} = compute and host "
        f"{format_seconds(b.compute_s)} + exposed communication {format_seconds(b.exposed_comm_s)} "
        f"({b.comm_fraction:.1%}); {b.tokens_per_s:,.1f} output tokens/s{rate}; {kv}",
        "bold",
    )


@dataclass(frozen=True)
class PricedAnswer(Named):
    """As ``commtax bill --json``."""

    step_s: float
    items: list[Record]
    verdict: str
    fits: bool


@dataclass(frozen=True)
class PricedDocument(PricedAnswer, Asked):
    """What both phases tell of a step."""

    phase: str
    low_s: Number
    high_s: Number
    compute_s: Number
    exposed_comm_s: Number
    tokens_per_s: Number
    counterfactuals: list[Record]
    sources: tuple[str, ...]
    weakest_source: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StepDocument(PricedDocument):
    batch: Number
    context: Number
    comm_s: Number
    comm_fraction: Number


@dataclass(frozen=True)
class TrainDocument(PricedDocument):
    global_batch: Number
    micro_batch: Number
    seq: Number
    zero: int
    hsdp: Number
    recompute: str
    schedule: str
    async_: tuple[str, ...]
    mfu: Number
    hfu: Number
    mfu_definition: str
    binding: str
    bubble_s: Number
    bubble_fraction: Number
    taxes_s: dict[str, Number]
    memory_bytes_per_rank: Number
    memory: Record
    local_tokens: float
    dp_threshold_tokens: float
    tp_tax: float
    days: Number = LEFT_OUT
    causes: list[Cause] = LEFT_OUT


def bill_document(step: Explained, num_tokens: float = 0.0, measured_mfu: float | None = None) -> StepDocument | TrainDocument:
    """``bill --json``, of either phase."""
    b, q = step.bill, step.bill.question
    common: dict[str, object] = {
        "fits": step.memory.fits,
        "items": line_records(b.items),
        "verdict": step.sentence,
        "counterfactuals": [facts(c, "what", "step_s", "delta_s", "note") for c in step.what_ifs],
        "weakest_source": weakest(b),
    }
    if not q.trains:
        return filled(StepDocument, b, q, q.what_if, **common, **question(q, "commtax.bill/1"))
    return filled(
        TrainDocument,
        *(b, q.step, q.plan, step.thresholds, q),
        **common,
        **question(q, "commtax.train-bill/1"),
        global_batch=q.batch * q.plan.dp,
        hsdp=q.plan.shard,
        async_=b.async_axes,
        taxes_s=b.taxes,
        memory=facts(b.memory, *HELD),
        dp_threshold_tokens=step.thresholds.dp_tokens if step.thresholds else 0.0,
        days=b.days(num_tokens) if num_tokens else LEFT_OUT,
        causes=LEFT_OUT if measured_mfu is None else causes(b, measured_mfu),
    )


def show_expectation(console: Console, e: Expectation, measured_s: float | None) -> None:
    """One line that a job's prolog can log."""
    own = f"; profile {e.profile}" if e.profile else ""
    say(
        console,
        f"{e.op} of {format_bytes(e.nbytes)} over {e.ranks} ranks of {e.cluster.key} ({e.link}, {e.algorithm}): "
        f"{format_seconds(e.seconds)} ({format_seconds(e.low_s)} to {format_seconds(e.high_s)}), "
        f"algbw {format_rate(e.algbw_Bps)}, busbw {format_rate(e.busbw_Bps)}",
        "bold",
    )
    parts = f"latency {format_seconds(e.latency_s)} + wire {format_seconds(e.wire_s)}"
    say(console, f"  {parts}; {e.fabric.name}, {e.source}{own}", "dim")
    if measured_s is not None:
        _show_measured(console, e, measured_s)


def _show_measured(console: Console, e: Expectation, measured_s: float) -> None:
    verdict, ratio = e.verdict(measured_s), measured_s / float(e.seconds)
    if measured_s < float(e.low_s):
        notes(console, ["faster than the range: is the size, the group or the definition of bandwidth another one?"])
    assumed = "; the range is assumed: calibrate with a host that is known to be good" if verdict == "undecided" else ""
    why = "; no link here carries that" if measured_s < float(e.floor_s) else assumed
    style = {"pass": "green", "fail": "red"}.get(verdict, "yellow")
    say(console, f"{verdict.upper()}: measured {format_seconds(measured_s)}, {ratio:.2f} x the expected time{why}", style)


PASSED = {"pass": True, "fail": False, "undecided": None}


@dataclass(frozen=True, slots=True)
class ExpectationDocument:
    schema: str
    cluster: str
    library: str
    source: str
    profile: str | None
    op: str
    ranks: Number
    nbytes: Number
    seconds: Number
    low_s: Number
    high_s: Number
    latency_s: Number
    wire_s: Number
    algbw_Bps: Number
    busbw_Bps: Number
    algorithm: str
    link: str
    measured_s: float = LEFT_OUT
    verdict: str = LEFT_OUT
    pass_: bool | None = LEFT_OUT


def expectation_document(e: Expectation, measured_s: float | None) -> ExpectationDocument:
    """``expect --json``."""
    measured = {} if measured_s is None else {"measured_s": measured_s, "pass_": PASSED[e.verdict(measured_s)]}
    return filled(
        ExpectationDocument,
        e,
        schema="commtax.expect/1",
        cluster=e.cluster.key,
        library=e.fabric.name,
        profile=e.profile or None,
        verdict=LEFT_OUT if measured_s is None else e.verdict(measured_s),
        **measured,
    )


COLUMNS = ("step_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
APART = ("tp_comm_s", "ep_comm_s")
TRAINED = ("mfu", "dp_tax_s", "tp_tax_s", "pp_tax_s", "ep_tax_s", "cp_tax_s", "binding")


def comparison_rows(compared: Comparison) -> list[Row]:
    """One flat record a cell: communication by axis, in training all five taxes."""
    extra = TRAINED if compared.training else APART
    rows = []
    for row in compared.rows:
        record: Row = dict(zip(compared.axes, row.at, strict=True)) | dict.fromkeys((*COLUMNS, *extra, "fits"))
        if row.bill is not None:
            record |= {name: float(getattr(row.bill, name)) for name in COLUMNS} | _apart(row.bill)
        rows.append(record | {"refused": row.refused})
    return rows


def _apart(b: StepBill) -> Row:
    if b.question.trains:
        taxes = {f"{axis}_tax_s": float(tax) for axis, tax in b.taxes.items()}
        return {"mfu": float(b.mfu), **taxes, "binding": b.binding, "fits": bool(fits(b))}
    return {f"{axis}_comm_s": float(b.exposed_on(axis)) for axis in ("tp", "ep")} | {"fits": fits(b)}


def comparison_csv(compared: Comparison) -> str:
    return csv_text(comparison_rows(compared))


def show_comparison(console: Console, compared: Comparison) -> None:
    names = TAXES if compared.training else ("tp comm", "ep comm")
    last = (">MFU", "binding") if compared.training else ()
    table = new_table(
        *compared.axes, ">step", ">compute", ">exposed comm", ">share", *(f">{n}" for n in names), ">tokens/s", *last, "fits", ""
    )
    for record in comparison_rows(compared):
        cells = [str(record[a]) for a in compared.axes]
        if record["refused"]:
            table.add_row(*cells, *[""] * (6 + len(names) + len(last)), Text(record["refused"], style="red"))
            continue
        times = [format_seconds(record[n]) for n in ("step_s", "compute_s", "exposed_comm_s")]
        apart = [format_seconds(v) if v else "" for k, v in record.items() if k.endswith(("_tax_s", "p_comm_s"))]
        trained = [f"{record['mfu']:.1%}", record["binding"]] if compared.training else []
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
