"""A priced step, served or trained, and one collective: for a terminal (sentence, picture, lines, what-ifs) and as documents."""

from collections.abc import Iterator
from itertools import accumulate, pairwise

from commtax.catalog.techniques import techniques_on
from commtax.judgement.gains import UNDECIDED
from commtax.ledger import Line
from commtax.question import Question
from commtax.records import Condition
from commtax.report import tables
from commtax.report.documents import LEFT_OUT, Record, document, facts, record
from commtax.report.drawing import Console, Sketch, Text
from commtax.report.figures import figure_table
from commtax.report.manners import Manner, bars, layer_drawing, question_title
from commtax.report.worths import worth_row
from commtax.rules.drafts import is_accepted_known
from commtax.units import DAY_S, format_bytes, format_duration, format_rate, format_seconds, format_si, format_tokens, plural
from commtax.verbs.billing import StepBill, by_cost, labels
from commtax.verbs.expecting import Expectation
from commtax.verbs.explain import causes
from commtax.verbs.explained_step import HELD, ExplainedStep, layer_segments
from commtax.verbs.why import Explanation, Why

# Kinds of source, a step as a whole being as sure as its weakest line
WEAKEST_FIRST = ("assumed", "transferred", "datasheet", "calibrated", "measured", "by definition")
UNSURE = WEAKEST_FIRST[:2]  # those that say how an answer is to be read
WIDTH = 96  # signs of a layer at most
COMPUTE, LATENCY, WIRE = "█", "░", "▓"
ALIKE = 0.005  # share by which times may differ that are called the same
PASSES = ("forward", "recompute", "backward", "update")
STYLES = {"fail": "bold red", "undecided": "bold", "pass": "green"}  # of verdicts, the worst first
PASSED = {"pass": True, "fail": False, "undecided": None}


def show_bill(console: Console, step: ExplainedStep, num_tokens: float = 0.0, measured_mfu: float | None = None) -> None:
    """Show what binds and the totals first, then the picture, the lines that sum to the step, and the what-ifs."""
    b, q = step.bill, step.bill.question
    if not step.memory.fits:
        tables.say(console, step.lacking, "bold red")
    tables.say_limits(console, b.notes)
    tables.say(console, step.verdict, tables.ANSWER)
    modes, beside = [text for text, on in _modes(q) if on], figure_table("step").words({"bill": b})
    sent = f"exposed communication {format_seconds(b.exposed_comm_s)} ({b.comm_fraction:.1%})"
    whole = f"step {format_seconds(b.step_s)}{tables.range_80(b.low_s, b.high_s)}"
    if q.trains:
        _trained_totals(console, step, whole, sent, num_tokens, beside)
    else:
        kv = "fits" if step.memory.fits else "does not fit in memory with this batch and context (see commtax fit)"
        parts = "; ".join([_rates(b), *beside, kv])
        tables.say(console, f"{whole} = compute and host {format_seconds(b.compute_s)} + {sent}; {parts}")
    tables.say_question(console, q, _trained_step(q) if q.trains else tables.served_step(q), *modes)
    remarks, details = _show_trained(console, step, measured_mfu) if q.trains else _show_served(console, step)
    changes = [(c.what, format_seconds(c.step_s), f"{c.delta_s / float(b.step_s):+.1%}", c.note) for c in step.what_ifs]
    for w in step.techniques:  # what counts is what whole requests that keep this batch running gain, and how surely
        gain = f"{w.gain - 1:+.1%} tokens/s of whole requests{', undecided' * (w.verdict == UNDECIDED)}: {w.technique.title}"
        changes.append((f"--technique {w.asked}", format_seconds(w.step_s), f"{w.step_s / float(b.step_s) - 1:+.1%}", gain))
    tables.show_table(console, ("what if", ">step", ">change", ""), changes)
    source = [f"least certain: {weakest(b)}"]
    unsure = any(x.source.kind in UNSURE for x in b.items)
    tables.notes(console, (*remarks, *(source if unsure else [])), (*details, *([] if unsure else source)))


def _trained_step(q: Question) -> str:
    plan = q.plan
    sequences = f"{plural(int(q.batch * plan.dp), 'sequence')} of {q.context:,.0f} tokens per step"
    microbatches = f"{plural(int(plan.microbatches), 'microbatch')} of {int(q.micro_batch)} per replica"
    groups = f" over groups of {int(plan.shard)}" if plan.shard else ""
    adapters = f", LoRA rank {plan.lora_rank}" if plan.lora_rank else ""
    return f"train: {sequences}, {microbatches}, ZeRO {plan.zero}{groups}, recompute {plan.recompute}{adapters}"


def _modes(q: Question) -> tuple[tuple[str, Condition], ...]:
    """Return what may be unusual about a step, and whether it is."""
    plan, s = q.plan, q.what_if
    if not q.trains:
        width, height = q.pictures.image_size
        how = "each rank looks at its own" if plan.tower == "data" else "ranks share the tower's weights"
        shared = f", {how}" if plan.tp > 1 else ""
        return (
            ("eager", s.eager),
            (f"with {', '.join(text for _, text in techniques_on(q))}", any(techniques_on(q))),
            (f"{plural(q.pictures.images, 'picture')} of {width}x{height} per prompt{shared}", q.pictures.images > 0),
            ("tokens drawn by top-p", s.sampling == "top-p"),
            (f"slowest rank {s.slow_rank:g}x", s.slow_rank != 1),
            (f"what-if: {s.overlap:.0%} of communication hidden", s.overlap > 0),
        )
    return (
        (plan.schedule + (f", {plan.chunks} chunks" if plan.chunks > 1 else ""), plan.pp > 1),
        ("sequence parallel", plan.sequence_parallel and plan.tp > 1),
        (f"{plan.weights_dtype} products", bool(plan.weights_dtype)),
        ("eager", s.eager),
        (f"busiest expert rank {s.imbalance:g}x", s.imbalance > 1),
    )


def weakest(b: StepBill) -> str:
    """Return the least certain kind of source among the lines that cost something, and which lines rest on it."""
    kinds = {x.source.kind for x in b.items}
    least = next((kind for kind in WEAKEST_FIRST if kind in kinds), None)
    return ", ".join(dict.fromkeys(f"{x.kind} ({x.source})" for x in b.items if x.source.kind == least)) or "none"


def _show_served(console: Console, step: ExplainedStep) -> tables.Remarks:
    """Show a served step's picture and lines, and return what is left to remark."""
    b, rows = step.bill, list[list[str | Text]]()
    console.print()
    for drawn in _drawn_layer(b, console.width):
        console.print(drawn)
    for x, label in zip(by_cost(b), labels(b), strict=True):
        name = Text(f"{x.item.axis} {x.item.what}", style=tables.SENT) if x.kind == "comm" else Text(label)
        size, times = format_bytes(x.item.nbytes) if x.item.nbytes else "", map(format_seconds, (x.each_s, x.fixed_s, x.total_s))
        rows.append([name, how_sent(x), size, f"{x.item.count:,.0f}", *times, f"{float(x.exposed_s) / float(b.step_s):.1%}"])
    columns = ("line", "how", ">bytes", ">times", ">each", ">latency", ">total", ">share")
    tables.show_table(console, columns, rows, ("how", "latency", "bytes", "each", "times"))
    alone = f"commtax expect --library {step.library.partition('@')[0]} prices one alone"
    whose = [f"collectives as {step.library} runs them (--library); {alone}"] if b.comm_s else []
    remarks = tuple(note for note in b.notes if note.code != tables.OWN_LIMITS)
    return remarks, (*dict.fromkeys(f"{x.item.op}: {x.why}" for x in b.items if x.why), *whose)


def _drawn_layer(bill: StepBill, width: int) -> list[Sketch]:
    """Draw compute and communication of a layer on one time axis, with a legend."""
    segments = layer_segments(bill)
    total = sum(s.seconds for s in segments)
    if total <= 0:
        return []
    names = "compute  ", "comm     "
    scale = min(WIDTH, width - len(names[0])) / total
    edges = map(round, accumulate((s.seconds * scale for s in segments), initial=0.0))
    compute, comm = (Sketch(name, style="dim") for name in names)
    for s, (start, end) in zip(segments, pairwise(edges), strict=True):
        cells = end - start
        if s.lane == "compute":
            compute.append(COMPUTE * cells, style="blue" if s.line.item.part == "attention" else "cyan")
            comm.append(" " * cells)
        else:
            latency = round(cells * s.fixed_s / s.seconds) if s.seconds else 0
            compute.append(" " * cells)
            comm.append(LATENCY * latency, style="bold red")
            comm.append(WIRE * (cells - latency), style="red")
    sent = [s for s in segments if s.lane == "comm"]
    signs = f", to scale: {COMPUTE} compute  {LATENCY} latency  {WIRE} bandwidth of collectives"
    exposed, whole = sum(s.exposed_s for s in sent), sum(s.seconds for s in sent)
    hidden = f"; exposed {format_seconds(exposed)} of {format_seconds(whole)}" if whole else ""
    drawn = f" (drawn one after the other: {format_seconds(total)})" if exposed < whole else ""
    return [compute, comm, Sketch(f"one layer, {format_seconds(total - whole + exposed)}{drawn}{signs}{hidden}", style="dim")]


def how_sent(x: Line) -> str:
    """Return the operation of a line, and of a collective also its algorithm, link and group."""
    return f"{x.item.op}, {x.algorithm} over {x.link}, {int(x.item.ranks)} ranks" if x.kind == "comm" else x.item.op


def _rates(b: StepBill) -> str:
    """Return what the step brings in a second: prompts, and when their first tokens are there, or outputs."""
    prompts = f"{b.prompt_tokens_per_s:,.0f} prompt tokens/s"
    if b.question.phase == "prefill":
        return f"{prompts}, TTFT {format_seconds(b.ttft_s)} with no queue ahead of it"
    outputs = f"{b.tokens_per_s:,.1f} output tokens/s"
    if (drafts := b.question.speculative) and is_accepted_known(b.question):
        outputs = f"{outputs}, {b.question.techniques.per_step:.2f} tokens per step and sequence"
    elif drafts:
        most = float(b.tokens_per_s) * (drafts + 1)
        outputs = f"{b.tokens_per_s:,.1f} to {most:,.1f} output tokens/s, as none or all {drafts} drafts are accepted"
    return f"{outputs}{f', {prompts}' if b.question.phase == 'mixed' else ''}"


def _show_trained(console: Console, step: ExplainedStep, measured_mfu: float | None) -> tables.Remarks:
    """Show what would explain a measured MFU, taxes and where the time goes, and return the lesson's thresholds with the notes."""
    b, t, remarks = step.bill, step.thresholds, list[str]()
    if measured_mfu is not None:
        _show_causes(console, b, measured_mfu)
    _show_taxes(console, b)
    rows = [(part, sum(float(x.exposed_s) for x in b.items if x.kind == "compute" and x.item.during == part)) for part in PASSES]
    rows += [(f"{axis} communication, exposed", float(b.exposed_on(axis))) for axis in b.taxes]
    rows.append(("pipeline bubble", float(b.bubble_s)))
    tables.show_shares(console, "where the step goes", rows, float(b.step_s), digits=1)
    if t and t.dp_tokens:
        what = "gathers and gradients" if b.question.plan.zero == 3 else "gradients"
        side = "above" if t.local_tokens >= t.dp_tokens else "below"
        least = f"from about {t.dp_tokens:,.0f} tokens per GPU and microbatch (rate / bandwidth)"
        remarks.append(f"{what} fit in their window {least}; this one has {t.local_tokens:,.0f}: {side}")
    if t and t.tp_tax:
        remarks.append(f"tensor-parallel tax by (T-1)/3 x rate/(bandwidth x hidden): {t.tp_tax:.0%} of the forward pass")
    return b.notes, (*remarks, f"MFU counts {b.mfu_definition}")


def _show_taxes(console: Console, b: StepBill) -> None:
    """Show the lesson's table: axis, collective, buffer, how often, link, window, hidden or exposed."""
    rows = list[list[str | Text]]()
    for x in (x for x in by_cost(b) if x.kind == "comm"):
        sizes = (format_bytes(x.item.nbytes), f"{x.item.count:,.0f}", str(x.link), f"{x.item.ranks:,.0f}")
        window = format_seconds(x.window_s) if b.runs_beside(x) and x.window_s else "none"
        share, fate = float(x.hidden_s) / float(x.total_s) if x.hidden_s > 0 else 0.0, Text("exposed", style="red")
        if share:
            fate = Text(f"{share:.0%} hidden", style="green" if share > 0.5 else "")
        times = format_seconds(x.total_s), window, format_seconds(x.exposed_s)
        rows.append([Text(x.item.whole_axis, style=tables.SENT), f"{x.item.what} {x.item.op}", *sizes, *times, fate])
    if b.bubble_s:
        sizes = ("", "", "", str(int(b.question.plan.pp)))
        bubble, took = f"bubble of {b.question.plan.schedule}", format_seconds(b.bubble_s)
        rows.append([Text("pp", style=tables.SENT), bubble, *sizes, "", "", took, Text("exposed", style="red")])
    if not rows:
        tables.say(console, tables.NOTHING_SENT)
        return
    columns = ("axis", "collective", ">buffer", ">times", "link", ">ranks", ">takes", ">window", ">exposed", "")
    tables.show_table(console, columns, rows, ("ranks", "times", "window", "buffer", "link", "takes"))


def _trained_totals(console: Console, step: ExplainedStep, whole: str, sent: str, num_tokens: float, beside: list[str]) -> None:
    b = step.bill
    hours = f"{format_tokens(b.gpu_hours(num_tokens))} GPU-hours"
    days = f"; {format_tokens(num_tokens)} tokens take {format_duration(b.days(num_tokens) * DAY_S)}, {hours}" if num_tokens else ""
    terms = f"compute {format_seconds(b.compute_s)} + {sent} + bubble {format_seconds(b.bubble_s)} ({b.bubble_fraction:.1%})"
    rates = f"{b.tokens_per_s:,.0f} tokens/s ({b.tokens_per_s / b.num_gpus:,.0f} per GPU){days}"
    tables.say(console, f"{whole} = {terms}; MFU {b.mfu:.1%}, HFU {b.hfu:.1%}; {'; '.join([rates, *beside])}")
    parts = ", ".join(f"{name} {format_bytes(getattr(b.memory, name))}" for name in HELD)
    size, fits = format_bytes(b.question.cluster.chip.visible_bytes), "fits" if step.memory.fits else "does not fit"
    memory = f"memory per rank {format_bytes(b.memory_bytes_per_rank)} of {size} ({fits}): {parts}"
    tables.say(console, memory, "" if step.memory.fits else "red")


def _show_causes(console: Console, b: StepBill, measured_mfu: float) -> None:
    from commtax.verbs.train_fitting import completed_plans  # not for those who measured nothing

    likely, predicted = causes(b, measured_mfu), float(b.mfu)
    if completed := completed_plans(b, measured_mfu):
        over = f"is above the predicted {predicted:.1%}" if measured_mfu > predicted else "was reached, yet this does not fit"
        why = f"measured MFU {measured_mfu:.1%} {over}: the run was not this plan. The same sizes with options that it lacks:"
        rows = [(c.options, f"{c.mfu:.1%}", format_bytes(c.memory_bytes), "yes" if c.fits else "no") for c in completed]
        tables.show_table(console, ("with", ">MFU", ">memory per rank", "fits"), rows, title=why)
        return
    if not likely:
        low, high = (predicted * float(b.step_s / end) for end in (b.high_s, b.low_s))
        near = "agrees with" if measured_mfu <= high else "is above"
        text = f"measured MFU {measured_mfu:.1%} {near} the predicted {predicted:.1%} (80% range {low:.1%} to {high:.1%})"
        tables.say(console, text, "green" if measured_mfu <= high else "")
        return
    slower = predicted / measured_mfu
    step = f"a step of {format_seconds(float(b.step_s) * predicted / measured_mfu)}, {slower - 1:+.0%}"
    gap = f"measured MFU {measured_mfu:.1%} against {predicted:.1%} predicted"
    rows = [(c.what, format_seconds(c.step_s), f"{c.explains:.0%}", c.detail) for c in likely]
    tables.show_table(console, ("cause", ">step", ">of the gap", ""), rows, title=f"{gap}: {step}. What would explain it:")


def bill_document(step: ExplainedStep, num_tokens: float = 0.0, measured_mfu: float | None = None) -> Record:
    b, q = step.bill, step.bill.question
    parts: Record = {
        "step": step,
        "bill": b,
        "items": [record("bill-line", line=x) for x in b.items],
        "counterfactuals": [record("bill-change", change=c) for c in step.what_ifs],
        "worth": [worth_row(w) for w in step.techniques],
        "weakest_source": weakest(b),
    }
    if not q.trains:
        return document("bill", q, **parts)
    return document(
        "train-bill",
        q,
        **parts,
        global_batch=q.batch * q.plan.dp,
        memory=facts(b.memory, *HELD),
        days=b.days(num_tokens) if num_tokens else None,
        gpu_hours=b.gpu_hours(num_tokens) if num_tokens else None,
        causes=LEFT_OUT if measured_mfu is None else causes(b, measured_mfu),
    )


def show_expectation(console: Console, e: Expectation, measured_s: float | None = None, nccl: Expectation | None = None) -> None:
    """Show the verdict on a measurement in a line for a job's prolog, and what ``nccl``, which its tests measure, takes."""
    if measured_s is not None:
        verdict, ratio = e.verdict(measured_s), measured_s / float(e.seconds)
        if measured_s < float(e.low_s):
            tables.notes(console, ["faster than the range: is the size, the group or the definition of bandwidth another one?"])
        assumed = "; the range is assumed: calibrate with a host that is known to be good" if verdict == "undecided" else ""
        why = "; no link here carries that" if measured_s < float(e.floor_s) else assumed
        measured = f"measured {format_seconds(measured_s)}, {ratio:.2f} x the expected time"
        tables.say(console, f"{verdict.upper()}: {measured}{why}", STYLES[verdict])
    profile = f"; profile {e.profile}" if e.profile else ""
    place = f"{e.cluster.key} ({plural(e.cluster.num_gpus, 'GPU')}; {e.link}, {e.algorithm})"
    times = f"{format_seconds(e.seconds)} ({format_seconds(e.low_s)} to {format_seconds(e.high_s)})"
    rates = f"algbw {format_rate(e.algbw_Bps)}, busbw {format_rate(e.busbw_Bps)}"
    sent = f"{e.op} of {format_bytes(e.nbytes)} over {e.ranks} ranks of {place}"
    tables.say(console, f"{sent}: {times}, {rates}", tables.ANSWER if measured_s is None else "")
    parts = f"latency {format_seconds(e.latency_s)} + wire {format_seconds(e.wire_s)}"
    tables.say(console, f"  {parts}; {e.fabric.name}, {e.source}{profile}", "dim")
    if nccl and abs(float(nccl.seconds) / float(e.seconds) - 1) > ALIKE:
        figures = f"{format_seconds(nccl.seconds)}, busbw {format_rate(nccl.busbw_Bps)} ({nccl.algorithm})"
        tables.say(console, f"  {nccl.fabric.name} alone, which is what nccl-tests measures: {figures}; --library nccl", "dim")


def expectation_document(e: Expectation, measured_s: float | None = None, _: Expectation | None = None) -> Record:
    judged: Record = dict.fromkeys(("measured_s", "verdict", "passed"), LEFT_OUT)
    if measured_s is not None:
        verdict = e.verdict(measured_s)
        judged = {"measured_s": measured_s, "verdict": verdict, "passed": PASSED[verdict]}
    return record("expect", of=e, profile=e.profile or None, **judged)


def why_document(w: Why) -> Record:
    """Return what ``bill --why --json`` prints, of one launch: its parts times ``times`` less ``hidden_s`` are ``exposed_s``."""
    e = w.explanation
    return document("why", w.bill.question, why=w, total_nbytes=e.nbytes * w.times, total_flops=e.flops * w.times)


def why_view(w: Why) -> Record:
    """Return a line's explanation as the page shows it: sentences, the parts of one launch, effects and the range."""
    return record("page-why", why=w, heading=_heading(w), told=[*_reason_lines(w), *_derived_lines(w)], range=_range_words(w))


def show_why(console: Console, w: Why) -> None:
    """Show what a line is, how long it takes and how sure that is, why, and by which parts and effects."""
    tables.say(console, f"line {w.number}, {_heading(w)}", tables.ANSWER)
    tables.say(console, f"80% range{tables.range_80(w.range.low_s, w.range.high_s)}")
    for text in _reason_lines(w):
        tables.say(console, text)
    tables.say_question(console, w.bill.question)
    rows = list[tuple[str, ...]]()
    for part in w.explanation.parts:
        alone, share = "" if part.alone_s is None else format_seconds(part.alone_s), part.seconds / w.each_s if w.each_s else None
        rows.append((part.name, part.what, alone, format_seconds(part.seconds), "" if share is None else f"{share:.1%}"))
    tables.show_table(console, ("seconds of one launch", "", ">alone", ">here", ">share"), rows, ("", "alone"))
    effects = w.explanation.effects
    sources = list(dict.fromkeys(e.source for e in effects if e.source))
    marks = [f"[{sources.index(e.source) + 1}]" if e.source else "" for e in effects]
    values = [format_seconds(e.value) if e.kind == "host" else f"{e.value:.4g}" for e in effects]
    if effects:
        rows = [(e.name, value, e.on, e.mechanism, mark) for e, value, mark in zip(effects, values, marks, strict=True)]
        tables.show_table(console, ("effect", ">value", "on", "mechanism", "source"), rows, ("source", "on"))
    cited = [f"[{number}] {source}" for number, source in enumerate(sources, start=1)]
    tables.notes(console, w.range.reasons, (*_derived_lines(w), _range_words(w), *cited))


def _heading(w: Why) -> str:
    hidden = f", of which {format_seconds(w.hidden_s)} is hidden" if w.hidden_s else ""
    times = f"{w.times:,.6g} x {format_seconds(w.each_s)} = {format_seconds(w.total_s)}"
    how = "" if w.kind == "comm" else f" ({w.how})"
    bound = f", {w.bound}-bound" if w.bound else ""
    return f"{w.line}{how}: {times}{hidden}, {w.share:.1%} of the step{bound}"


def _range_words(w: Why) -> str:
    return f"80% range{tables.range_80(w.range.low_s, w.range.high_s)}, standard deviation of the logarithm {w.range.sigma:.3g}"


def _reason_lines(w: Why) -> Iterator[str]:
    """Yield what is moved, by which path, and how far that is from what the hardware could do."""
    e = w.explanation
    if e.nbytes or e.flops:
        yield f"per launch: {_moved_words(e, 1)}; in total: {_moved_words(e, w.times)}"
    if e.way:
        over = f" on {plural(int(e.way.domains), 'domain')}" if e.way.domains > 1 else ""
        yield f"path: {e.way.path} over {e.way.link}, {int(e.way.ranks)} ranks{over}, {e.way.library}; {e.way.reason}"
    if floor := e.floor:
        computed = f", FLOPs {format_seconds(floor.flops_s)} at {format_si(floor.flops_per_s, 'FLOP/s')}" if floor.flops_s else ""
        least = "the longer of these" if computed else "that"
        slower = f"; the line takes {w.each_s / floor.seconds:.2f} times {least}" if floor.seconds else ""
        yield f"floor: bytes {format_seconds(floor.bytes_s)} at {format_rate(floor.bandwidth_Bps)}{computed}{slower}"


def _derived_lines(w: Why) -> Iterator[str]:
    """Yield what the price is computed from, and by which formula."""
    e = w.explanation
    if e.shape:
        yield "sizes: " + ", ".join(f"{name} {_size(value)}" for name, value in e.shape.items())
    if e.way:
        window = f"{format_seconds(e.way.window_s)} ({e.way.window})" if e.way.window_s else "none"
        yield f"on the wire: each rank sends at least {format_bytes(e.way.sent_bytes)} each time; window: {window}"
    if e.priced_by:
        p = e.priced_by
        home = f", measured on {', '.join(p.measured_on)}" if p.measured_on and p.kind == "calibrated" else ""
        yield f"priced by: {p.table} ({p.source}{home})"
        if p.equation:
            yield p.equation
        yield ", ".join(f"{name} {value:.4g}" for name, value in p.constants.items())
    elif e.source:
        yield f"source: {e.source}"


def _size(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _moved_words(e: Explanation, times: float) -> str:
    computed = f", {format_si(e.flops * times, 'FLOP')}" if e.flops else ""
    return f"{format_bytes(e.nbytes * times)}{computed}"


def line_colours(b: StepBill) -> list[str]:
    from commtax.report.answer_pages import COMPUTE, EXPOSED  # not for those who print

    return [EXPOSED if x.kind == "comm" else COMPUTE for x in by_cost(b)]


MANNERS = {
    "StepBill": Manner[StepBill](
        lambda console, b: show_bill(console, ExplainedStep(b)),
        lambda b: bill_document(ExplainedStep(b)),
        lambda b: [record("bill-line", line=x) | {"kind": "communication" if x.kind == "comm" else x.kind} for x in by_cost(b)],
        bars(
            lambda b: [
                (f"{x.item.axis} {x.item.what} {x.item.op}" if x.kind == "comm" else str(x.item.what), float(x.exposed_s))
                for x in by_cost(b)
            ],
            "s",
            lambda b: question_title(b.question),
            line_colours,
        ),
        lambda b: layer_drawing(ExplainedStep(b).layer),
    ),
    "Expectation": Manner[Expectation](
        show_expectation,
        expectation_document,
        lambda e: [expectation_document(e)],
        bars(
            lambda e: [("latency", float(e.latency_s)), ("wire", float(e.wire_s))],
            "s",
            lambda e: f"{e.op} of {format_bytes(e.nbytes)} on {e.cluster.key}: {format_seconds(e.seconds)}",
        ),
    ),
    "Why": Manner[Why](
        show_why,
        why_document,
        lambda w: [{"part": part.name, "why": part.what, "seconds": part.seconds} for part in w.explanation.parts],
        bars(lambda w: [(part.name, part.seconds) for part in w.explanation.parts], "s", lambda w: f"{w.line}: one launch"),
    ),
}
