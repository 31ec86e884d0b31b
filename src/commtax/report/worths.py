"""Techniques weighed on one question: for a terminal and as a document."""

from collections.abc import Iterator
from math import isnan

from commtax.catalog.techniques import changes_of, techniques_on
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Text
from commtax.report.tables import drop_empty_columns, headline, notes, say, served_step, show_table
from commtax.units import format_seconds, plural
from commtax.verbs.worth import PayRange, TechniqueWorth, Worth

STYLES = {"gains": "green", "loses": "red"}


def show_worth(console: Console, w: Worth) -> None:
    """What there is now, then each technique, best first, and what cannot be had here."""
    q, b = w.question, w.bill
    headline(console, q)
    if not w.fits:
        say(console, "Does not fit in memory: nobody can run this plan as it is (commtax fit says what would).", "bold red")
    now = "now, with " + ", ".join(text for _, text in techniques_on(q)) if any(techniques_on(q)) else "without techniques"
    room = f"room for {w.kv_tokens:,} KV tokens"
    if w.requests:
        say(console, f"{now}: {_requests_text(w)}; {room}", "dim")
    else:
        say(console, f"{served_step(q)}; {now}: step {format_seconds(b.step_s)}, {_rate(float(b.tokens_per_s), w)}; {room}", "dim")
    say(console, _verdict(w), "bold yellow")
    columns = ("technique", ">tokens/s", ">gain", ">range", ">step", ">TTFT", ">TPOT", ">KV tokens", ">full", "pays", "flag")
    if w.here:
        show_table(console, *drop_empty_columns(columns, [_cells(row, w) for row in w.here]))
    if w.idle:
        say(console, f"change nothing here: {', '.join(row.asked for row in w.idle)}", "dim")
    if w.refused:
        show_table(console, ("not here", "why"), _refused(w))
    notes(console, _remarks(w))


def _rate(tokens_per_s: float, w: Worth) -> str:
    """Tokens/s of outputs, or of prompts in a step that computes nothing else."""
    if w.question.phase != "prefill":
        return f"{tokens_per_s:,.1f} tokens/s"
    return f"{tokens_per_s * float(w.question.context):,.0f} prompt tokens/s"


def _refused(w: Worth) -> list[tuple[str, str]]:
    """Techniques that cannot be had, those of one reason together."""
    why: dict[str, list[str]] = {}
    for row in w.refused:
        why.setdefault(row.refused, []).append(row.technique.key)
    return [(", ".join(keys), reason) for reason, keys in why.items()]


def _requests_text(w: Worth) -> str:
    r, asked = w.requests, w.question
    assert r
    rate = asked.offered.request_rate
    load = f"{rate:g} requests/s" if rate else plural(int(asked.requests.concurrency), "client")
    lengths = f"{asked.requests.input_len:,.0f} tokens in, {asked.requests.output_len:,.0f} out"
    times = f"TTFT {format_seconds(r.ttft_s)}, TPOT {format_seconds(r.tpot_s)}"
    return f"{load}, {lengths}: {times}, {r.tokens_per_s:,.1f} output tokens/s"


TOLD = 3
"""Techniques that a sentence names of each kind."""


def _verdict(w: Worth) -> str:
    """One sentence: what to set, what to measure, and what to leave."""
    kinds = {kind: [row for row in w.here if row.verdict == kind and row.fits] for kind in ("gains", "undecided", "loses")}
    gained, open_, lost = (_named(rows, kind != "loses") for kind, rows in kinds.items())
    rest = [text for text in (f"measure {open_}" * bool(open_), f"{lost} would lose" * bool(lost)) if text]
    first = f"Worth it here: {gained}" if gained else f"No technique of {w.question.engine.name} surely gains here"
    return "; ".join([first, *rest]) + "."


def _named(rows: list[TechniqueWorth], figures: bool) -> str:
    shown = [f"{row.asked} {_percent(row.gain)}" if figures else row.asked for row in rows[:TOLD]]
    more = [f"{len(rows) - TOLD} more"] if len(rows) > TOLD else []
    return ", ".join([*shown, *more])


def _percent(gain: float) -> str:
    change = gain - 1
    return f"{change:+.0%}" if abs(change) >= 0.0995 else f"{change:+.1%}"


def _cells(row: TechniqueWorth, w: Worth) -> tuple[str | Text, ...]:
    gain = Text(_percent(row.gain) if row.verdict != "changes nothing" else "none", style=STYLES.get(row.verdict, "dim"))
    spread = f"{_percent(row.low)} to {_percent(row.high)}" if row.verdict != "changes nothing" else ""
    times = (format_seconds(x) if not isnan(x) else "" for x in (row.step_s if not w.requests else row.ttft_s, row.tpot_s))
    first, tpot = times
    step, ttft = ("", first) if w.requests else (first, "")
    room = f"{row.kv_tokens:,}" if row.kv_tokens != w.kv_tokens else ""
    full = _percent(row.full_gain) if not isnan(row.full_gain) else ""
    held = "" if row.fits else "does not fit; "
    swept = "" if w.question.offered.request_rate else pays_text(row)  # runs in time are of one load
    rate = _rate(row.tokens_per_s, w).split()[0]
    return (row.asked, rate, gain, spread, step, ttft, tpot, room, full, f"{held}{swept}", row.flag)


def pays_text(row: TechniqueWorth) -> str:
    """Where it gains, in words: ``batch from 158; context up to 10,030``."""
    if not row.pays and len(row.never) > 1:
        return "nowhere near here"
    return "; ".join([*map(_pay_text, row.pays), *(f"at no {axis} here" for axis in row.never)]) or (
        "everywhere here" if row.verdict == "gains" else ""
    )


def _pay_text(pays: PayRange) -> str:
    low, high = f"{pays.low:,.0f}", f"{pays.high:,.0f}"
    if pays.high == pays.ends[1]:
        return f"{pays.axis} from {low}"
    return f"{pays.axis} up to {high}" if pays.low == pays.ends[0] else f"{pays.axis} {low} to {high}"


def _remarks(w: Worth) -> Iterator[str]:
    timed = w.question.offered.request_rate and not (w.requests and w.requests.overloaded)
    what = "how much sooner requests are answered" if timed else "tokens/s per GPU"
    yield f"gain: {what} with the technique alone over now, at the best of its usual values; --technique prices several together"
    yield "range: 80 %, by how far constants of both steps err and published gains lie from predicted ones (docs/techniques.md)"
    if w.requests and w.requests.overloaded:
        yield "more requests come than can be answered: times grow with the length of the run"
    for row in w.here:
        if (gpus := _gpus(row, w)) != int(w.question.plan.num_gpus):
            yield f"{row.asked}: takes {gpus} GPUs instead of {int(w.question.plan.num_gpus)}"
    if any(not isnan(row.full_gain) for row in w.here):
        yield f"full: gain at the largest batch of {w.question.context:,.0f} tokens each that fits, where the room for KV changes"
    for row in w.here:
        if row.technique.source:
            yield f"{row.asked}: {row.technique.title} ({row.technique.source})"
    for row in w.here:
        yield from (f"{row.asked}: {note}" for note in row.notes)


def worth_document(w: Worth) -> Record:
    """``worth --json``."""
    return document("worth", w.question, worth=w, bill=w.bill, verdict=_verdict(w), rows=[worth_row(row) for row in w.rows])


def worth_row(row: TechniqueWorth) -> Record:
    return record("worth-row", row=row, technique=row.technique, pays=row.pays)


def _gpus(row: TechniqueWorth, w: Worth) -> int:
    """GPUs of a server with the technique."""
    return int(w.question.vary(**changes_of(row.asked)).plan.num_gpus)
