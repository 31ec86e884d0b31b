"""Techniques weighed on one question: for a terminal and as a document."""

from collections.abc import Iterator
from math import isnan

from commtax.catalog.techniques import changes_of, techniques_on
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Text
from commtax.report.tables import drop_empty_columns, headline, notes, say, served_step, show_table, show_unfolded
from commtax.units import format_seconds, plural
from commtax.verbs.worth import PayRange, TechniqueWorth, Worth

STYLES = {"gains": "green", "loses": "red", "undecided": "yellow"}
AXES = {"prompt": "prompt length"}
"""What axes are called, where not by their name."""
COLUMNS = ("technique", "verdict", ">gain", ">range", ">step", ">TTFT", ">TPOT", ">tokens/s", ">KV tokens", ">when full")


def show_worth(console: Console, w: Worth) -> None:
    """What to set, what there is now, then each technique, best first, its flag, and what cannot be had here."""
    headline(console, w.question)
    say(console, _verdict(w), "bold yellow")
    if not w.fits:
        say(console, "Does not fit in memory: nobody can run this plan as it is (commtax fit says what would).", "bold red")
    say(console, _now(w), "dim")
    if w.here:
        show_table(console, *drop_empty_columns(COLUMNS, [_cells(row, w) for row in w.here]))
        told = [(row.asked, row.technique.title, pays_text(row, bool(w.swept))) for row in w.here]
        show_table(console, *drop_empty_columns(("technique", "what it is", "pays"), told))
        show_unfolded(console, ("technique", "set"), [(row.asked, row.flag) for row in w.here])
    if w.idle:
        say(console, f"change nothing here: {', '.join(row.asked for row in w.idle)}", "dim")
    if w.refused:
        show_table(console, ("not here", "why"), _refused(w))
    notes(console, _remarks(w))


def _now(w: Worth) -> str:
    """What there is without the techniques."""
    on, room = ", ".join(text for _, text in techniques_on(w.question)), f"room for {w.kv_tokens:,} KV tokens"
    now = f"now, with {on}" if on else "without techniques"
    if w.requests:
        return f"{now}: {_requests_text(w)}; {room}"
    step = f"step {format_seconds(w.bill.step_s)}, {_rate(float(w.bill.tokens_per_s), w)}"
    return f"{served_step(w.question)}; {now}: {step}; {room}"


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
    """A few sentences: what to set, what to measure first, and what to leave."""
    kinds = {kind: [row for row in w.here if row.verdict == kind and row.fits] for kind in STYLES}
    gained, lost, open_ = (_named(rows) for rows in kinds.values())
    first = f"Worth setting here: {gained}." if gained else f"No technique of {w.question.engine.name} is sure to gain here."
    rest = (f"Undecided, to be measured: {open_}.", open_), (f"Would lose: {lost}.", lost)
    return " ".join([first, *(text for text, rows in rest if rows)])


def _named(rows: list[TechniqueWorth]) -> str:
    shown = [f"{row.asked} ({_percent(row.gain)})" for row in rows[:TOLD]]
    more = [f"{len(rows) - TOLD} more"] if len(rows) > TOLD else []
    return ", ".join([*shown, *more])


def _percent(gain: float) -> str:
    change = gain - 1
    return f"{change:+.0%}" if abs(change) >= 0.0995 else f"{change:+.1%}"


def _cells(row: TechniqueWorth, w: Worth) -> tuple[str | Text, ...]:
    style, same = STYLES.get(row.verdict, "dim"), row.verdict == "changes nothing"
    gain = Text("none" if same else _percent(row.gain), style=style)
    spread = "" if same else f"{_percent(row.low)} to {_percent(row.high)}"
    times = (row.ttft_s, row.tpot_s) if w.requests else (row.step_s,)
    shown = [format_seconds(x) for x in times]
    step, ttft, tpot = ("", *shown) if w.requests else (*shown, "", "")
    room = f"{row.kv_tokens:,}" if row.kv_tokens != w.kv_tokens else ""
    full = "" if isnan(row.full_gain) else _percent(row.full_gain)
    return (
        row.asked,
        Text(row.verdict, style=style),
        gain,
        spread,
        step,
        ttft,
        tpot,
        _rate(row.tokens_per_s, w).split()[0],
        room,
        full,
    )


def pays_text(row: TechniqueWorth, swept: bool = True) -> str:
    """Where it gains, in words: ``batch 158 and above; context up to 10,030``; "" where only one load was looked at."""
    if not swept or row.refused:
        return ""
    if not row.pays and len(row.never) > 1:
        return "nowhere tried"
    return "; ".join([*map(_pay_text, row.pays), *(f"at no {_axis(name)} tried" for name in row.never)]) or "everywhere tried"


def _pay_text(pays: PayRange) -> str:
    name, low, high = _axis(pays.axis), f"{pays.low:,.0f}", f"{pays.high:,.0f}"
    if low == high:
        return f"{name} {low} alone"
    if pays.high == pays.ends[1]:
        return f"{name} {low} and above"
    return f"{name} up to {high}" if pays.low == pays.ends[0] else f"{name} {low} to {high}"


def _axis(name: str) -> str:
    return AXES.get(name, name)


def _remarks(w: Worth) -> Iterator[str]:
    timed = w.question.offered.request_rate and not (w.requests and w.requests.overloaded)
    what = "how much sooner requests are answered" if timed else "tokens/s per GPU"
    yield f"gain: {what}, with this technique alone, at the best of its usual values; --technique prices several together"
    yield "range: 80 %, by how far constants of both steps err and published gains lie from predicted ones (docs/techniques.md)"
    yield "undecided: the range holds both a gain and a loss"
    if w.swept:
        tried = " and ".join(f"{_axis(name)} from {low:,.0f} to {high:,.0f}" for name, low, high in w.swept)
        yield f"pays: by the central prediction; tried were {tried}, one at a time"
    if any(not isnan(row.full_gain) for row in w.here):
        each = f"{w.question.context:,.0f} tokens each"
        yield f"when full: gain at the largest batch of {each} that fits, where the room for KV changes"
    if w.requests and w.requests.overloaded:
        yield "more requests come than can be answered: times grow with the length of the run"
    for row in w.here:
        if (gpus := _gpus(row, w)) != int(w.question.plan.num_gpus):
            yield f"{row.asked}: takes {gpus} GPUs instead of {int(w.question.plan.num_gpus)}; its gain is per GPU"
        yield from (f"{row.asked}: {note}" for note in row.notes)
        if "," in row.asked:
            yield f"{row.asked}: both are needed, and priced together"
    for source in dict.fromkeys(row.technique.source for row in w.here if row.technique.source):
        yield f"{', '.join(row.asked for row in w.here if row.technique.source == source)}: {source}"


def worth_document(w: Worth) -> Record:
    """``worth --json``."""
    return document("worth", w.question, worth=w, bill=w.bill, verdict=_verdict(w), rows=[worth_row(row) for row in w.rows])


def worth_row(row: TechniqueWorth) -> Record:
    return record("worth-row", row=row, technique=row.technique, pays=row.pays)


def _gpus(row: TechniqueWorth, w: Worth) -> int:
    """GPUs of a server with the technique."""
    return int(w.question.vary(**changes_of(row.asked)).plan.num_gpus)
