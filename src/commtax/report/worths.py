"""Techniques weighed on one question: for a terminal and as a document."""

from collections.abc import Iterator
from math import isnan

from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Text
from commtax.report.tables import drop_empty_columns, headline, notes, say, served_step, show_table
from commtax.units import format_seconds, plural
from commtax.verbs.worth import PayRange, TechniqueWorth, Worth

STYLES = {"gains": "green", "loses": "red"}


def show_worth(console: Console, w: Worth) -> None:
    """What there is without techniques, then each of them, best first, and what cannot be had here."""
    q, b, requests = w.question, w.bill, w.requests
    headline(console, q)
    if requests:
        say(console, f"without any: {_requests_text(w)}", "dim")
    else:
        say(console, f"{served_step(q)}; without any: step {format_seconds(b.step_s)}, {b.tokens_per_s:,.1f} tokens/s", "dim")
    say(console, _verdict(w), "bold yellow")
    columns = ("technique", ">tokens/s", ">gain", ">range", ">step", ">TTFT", ">TPOT", ">KV tokens", ">full", "pays", "flag")
    if w.here:
        show_table(console, *drop_empty_columns(columns, [_cells(row, w) for row in w.here]))
    if w.idle:
        say(console, f"change nothing here: {', '.join(row.asked for row in w.idle)}", "dim")
    if w.refused:
        show_table(console, ("not here", "why"), [(row.technique.key, row.refused) for row in w.refused])
    notes(console, _remarks(w))


def _requests_text(w: Worth) -> str:
    r, asked = w.requests, w.question
    assert r
    rate = asked.offered.request_rate
    load = f"{rate:g} requests/s" if rate else plural(int(asked.requests.concurrency), "client")
    lengths = f"{asked.requests.input_len:,.0f} tokens in, {asked.requests.output_len:,.0f} out"
    times = f"TTFT {format_seconds(r.ttft_s)}, TPOT {format_seconds(r.tpot_s)}"
    return f"{load}, {lengths}: {times}, {r.tokens_per_s:,.1f} output tokens/s"


def _verdict(w: Worth) -> str:
    """One sentence: what to set, and what to leave."""
    best = [row for row in w.here if row.verdict == "gains" and row.fits]
    lost = [row.asked for row in w.here if row.verdict == "loses"]
    loses = f"; {', '.join(lost)} would lose" if lost else ""
    if not best:
        return f"No technique of {w.question.engine.name} gains here{loses}."
    named = ", ".join(f"{row.asked} {_percent(row.gain)}" for row in best[:3])
    return f"Worth it here: {named}{loses}."


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
    return (row.asked, f"{row.tokens_per_s:,.1f}", gain, spread, step, ttft, tpot, room, full, f"{held}{swept}", row.flag)


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
    yield "gain: output tokens/s with the technique alone over those without; --technique prices several of them together"
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
