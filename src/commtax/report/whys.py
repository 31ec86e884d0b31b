"""One line of a bill explained: for a terminal, and as a document."""

from collections.abc import Iterator

from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console
from commtax.report.tables import ANSWER, notes, range_80, say, say_asked, show_table
from commtax.units import format_bytes, format_rate, format_seconds, format_si, plural
from commtax.verbs.why import Effect, Explanation, Floor, TimePart, Why


def why_document(w: Why) -> Record:
    """``bill --why LINE --json``. Bytes, FLOPs and parts are of one launch; parts times ``times`` less ``hidden_s`` are
    ``exposed_s``."""
    e = w.explanation
    return document("why", w.bill.question, why=w, total_nbytes=e.nbytes * w.times, total_flops=e.flops * w.times)


def why_view(w: Why) -> Record:
    """A line's explanation as the page shows it: sentences, the parts of one launch, effects and the range."""
    return record("page-why", why=w, heading=_heading(w), told=[*_reason_lines(w), *_derived_lines(w)], range=_range_words(w))


def show_why(console: Console, w: Why) -> None:
    """What it is, how long it takes and how sure that is, why, and by which parts and effects."""
    say(console, f"line {w.number}, {_heading(w)}", ANSWER)
    say(console, f"80% range{range_80(w.range.low_s, w.range.high_s)}")
    for text in _reason_lines(w):
        say(console, text)
    say_asked(console, w.bill.question)
    columns = ("seconds of one launch", "", ">alone", ">here", ">share")
    show_table(console, columns, [_part_cells(part, w) for part in w.explanation.parts], ("", "alone"))
    effects = w.explanation.effects
    sources = _cited(effects)
    marks = [f"[{sources.index(e.source) + 1}]" if e.source else "" for e in effects]
    values = [format_seconds(e.value) if e.kind == "host" else f"{e.value:.4g}" for e in effects]
    rows = [(e.name, value, e.on, e.mechanism, mark) for e, value, mark in zip(effects, values, marks, strict=True)]
    if rows:
        show_table(console, ("effect", ">value", "on", "mechanism", "source"), rows, ("source", "on"))
    cited = [f"[{number}] {source}" for number, source in enumerate(_cited(w.explanation.effects), start=1)]
    notes(console, w.range.reasons, (*_derived_lines(w), _range_words(w), *cited))


def _heading(w: Why) -> str:
    hidden = f", of which {format_seconds(w.hidden_s)} is hidden" if w.hidden_s else ""
    times = f"{w.times:,.6g} x {format_seconds(w.each_s)} = {format_seconds(w.total_s)}"
    how = "" if w.kind == "comm" else f" ({w.how})"
    bound = f", {w.bound}-bound" if w.bound else ""
    return f"{w.line}{how}: {times}{hidden}, {w.share:.1%} of the step{bound}"


def _range_words(w: Why) -> str:
    return f"80% range{range_80(w.range.low_s, w.range.high_s)}, standard deviation of the logarithm {w.range.sigma:.3g}"


def _reason_lines(w: Why) -> Iterator[str]:
    """What is moved, by which path, and how far that is from what the hardware could do."""
    e = w.explanation
    if e.nbytes or e.flops:
        yield f"per launch: {_moved_words(e, 1)}; in total: {_moved_words(e, w.times)}"
    if e.way:
        over = f" on {plural(int(e.way.domains), 'domain')}" if e.way.domains > 1 else ""
        yield f"path: {e.way.path} over {e.way.link}, {int(e.way.ranks)} ranks{over}, {e.way.library}; {e.way.reason}"
    if e.floor:
        yield _floor_words(e.floor, w.each_s)


def _derived_lines(w: Why) -> Iterator[str]:
    """What the price is computed from, and by which formula."""
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


def _floor_words(floor: Floor, each_s: float) -> str:
    computed = f", FLOPs {format_seconds(floor.flops_s)} at {format_si(floor.flops_per_s, 'FLOP/s')}" if floor.flops_s else ""
    least = "the longer of these" if computed else "that"
    slower = f"; the line takes {each_s / floor.seconds:.2f} times {least}" if floor.seconds else ""
    return f"floor: bytes {format_seconds(floor.bytes_s)} at {format_rate(floor.bandwidth_Bps)}{computed}{slower}"


def _part_cells(part: TimePart, w: Why) -> tuple[str, ...]:
    alone = format_seconds(part.alone_s) if part.alone_s is not None else ""
    return part.name, part.what, alone, format_seconds(part.seconds), f"{part.seconds / w.each_s:.1%}" if w.each_s else ""


def _cited(effects: tuple[Effect, ...]) -> list[str]:
    return list(dict.fromkeys(e.source for e in effects if e.source))
