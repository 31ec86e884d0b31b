"""Techniques weighed on one question: for a terminal and as a document."""

from collections.abc import Iterator
from math import isnan

from commtax.catalog.programs import program
from commtax.catalog.techniques import DRAFTS, changes_of, techniques_on
from commtax.judgement import gains
from commtax.report import tables
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Text, telling
from commtax.report.manners import Manner, bars, question_title
from commtax.statement import ALREADY_ON, OTHER_CHIPS, OTHER_ENGINES, OTHER_MODELS, UNSAID
from commtax.units import format_seconds, plural
from commtax.verbs.request_times import RequestTimes
from commtax.verbs.settling import context_notes, link_notes
from commtax.verbs.worth import PayRange, SettingWorth, TechniqueWorth, Worth

STYLES = {gains.GAINS: "green", gains.LOSES: "red", gains.UNDECIDED: ""}
WEIGHED = {gains.GAINS: "gains", gains.LOSES: "loses", gains.UNDECIDED: "is undecided"}
MOST_NAMED = 3  # techniques that a sentence names of each kind
AXES = {"prompt": "prompt length"}  # what axes are called, where not by their name
FIGURES = (">gain", ">range", ">TTFT", ">TPOT", ">tokens/s", ">step", ">step alone", ">KV tokens", ">when full")
COLUMNS = ("technique", "verdict", *FIGURES)
EXPENDABLE = ("when full", "KV tokens", "tokens/s", "step alone", "step", "TTFT", "TPOT", "range")
ADVICE = {  # what is said of techniques by what to do about them, in the order of being told
    gains.SET: "Worth setting {where}",
    gains.MEASURE: "Undecided, measure first",
    gains.WHEN_FULL: "Worth it only once the KV cache is full",
    gains.NO_GAIN: "Undecided, no gain expected",
    gains.LEAVE: "Not worth it",
}


def show_worth(console: Console, w: Worth) -> None:
    """Show what to set and what there is now, then each technique, best first, its flag, and what cannot be had here."""
    if not w.fits:
        named, able = tables.batch_words(w.question), [row.asked for row in w.here if row.verdict == "gains" and not row.beside]
        each = f"{w.requests.running:,.0f} requests of a replica run at once, and the others wait"
        cure = f"{' or '.join(able)} makes room" if able else "nobody can run this plan (commtax fit says what would)"
        batch = f"{named[0].upper()}{named[1:]} does not fit in memory; {each}."
        tables.say(console, batch if w.starts else f"Does not fit in memory as it is: {cure}.", "bold red")
    tables.say(console, "\n".join([_verdict(w), *_prompt_words(w)]), tables.ANSWER)
    if basis := _basis(w):
        tables.say(console, basis)
    on, room = ", ".join(text for _, text in techniques_on(w.question)), f"room for {w.kv_tokens:,} KV tokens"
    load = "" if w.of_step else f"{_load(w)}, {tables.length_words(w.question, True)}: "
    rate = _rate(float(w.bill.tokens_per_s), w)
    step = f"; {tables.served_step(w.question)}: step {format_seconds(w.bill.step_s)}, {rate}" if w.of_step else ""
    now = f"now, with {on}" if on else "without the techniques below"
    tables.say(console, f"{now}: {load}{_times_text(w)}; {room}{step}")
    tables.say_question(console, w.question)
    if w.here:
        tables.show_table(console, *tables.drop_empty_columns(COLUMNS, [_cells(row, w) for row in w.here]), EXPENDABLE)
        titles = [(row.name, row.technique.title, pays_text(row, bool(w.swept))) for row in w.here]
        tables.show_table(console, *tables.drop_empty_columns(("technique", "what it is", "pays off"), titles))
        tables.show_unfolded(console, ("technique", "set"), [(row.name, row.flag) for row in w.here])
    if w.idle:
        tables.say(console, f"No difference here: {', '.join(row.name for row in w.idle)}", "dim")
    _show_left_out(console, w)
    details = ["range: 80% of true gains should fall within it, by published gains and errors of constants (docs/techniques.md)"]
    for source in dict.fromkeys(row.technique.source for row in w.here if row.technique.source):
        details.append(f"{', '.join(row.name for row in w.here if row.technique.source == source)}: {source}")
    tables.notes(console, _remarks(w), details)


def _basis(w: Worth) -> str:
    if not w.of_step:
        return ""
    q, r = w.question, w.requests
    clients = plural(int(q.requests.concurrency), "client")
    keep = f"who keep{'s' * (q.requests.concurrency == 1)} {tables.batch_words(q)} running"
    if r.running < q.batch:
        keep = f"of whose requests {r.running:,.0f} run at once in each replica"
    return f"Gains are for whole requests: {clients}, {keep}, {tables.length_words(q, True)}; 'step alone' is a step's gain."


def _rate(tokens_per_s: float, w: Worth) -> str:
    """Write tokens/s of outputs, or of prompts in a step that computes nothing else."""
    if w.question.phase != "prefill":
        return f"{tokens_per_s:,.1f} tokens/s"
    return f"{tokens_per_s * float(w.question.context):,.0f} prompt tokens/s"


def _show_left_out(console: Console, w: Worth) -> None:
    """Show techniques that cannot be had, by the kind of reason, or each reason itself with ``--details``."""
    if not w.refused:
        return
    if telling(console).details:
        why: dict[str, list[str]] = {}
        for row in w.refused:
            why.setdefault(row.refused, []).append(row.technique.key)
        tables.show_table(console, ("left out", "why"), [(", ".join(keys), reason) for reason, keys in why.items()])
        return
    console.print()
    q = w.question
    kinds = {ALREADY_ON: "already on", OTHER_ENGINES: f"not in {q.engine.name}", OTHER_CHIPS: f"not for {q.cluster.chip.key}"}
    kinds |= {OTHER_MODELS: f"not for {q.model.key}", "": "not for this plan"}
    for kind, title in (kinds | {UNSAID: "needs a figure from you (--details says which)"}).items():
        names = list[str]()
        for row in (row for row in w.refused if row.kind == kind):
            others = [program(name).title for name in row.technique.flags] if kind == OTHER_ENGINES else []
            names.append(f"{row.technique.key} ({', '.join(others)})" if others else row.technique.key)
        if names:
            tables.say(console, f"{title}: {', '.join(names)}", "dim")


def _load(w: Worth) -> str:
    rate = w.question.offered.request_rate
    return f"{rate:g} requests/s" if rate else plural(int(w.question.requests.concurrency), "client")


def _times_text(w: Worth) -> str:
    r = w.requests
    tpot = f"TPOT {format_seconds(r.tpot_s)}, " if w.question.requests.output_len > 1 else ""
    rate = _rate(r.tokens_per_s, w) if w.question.phase == "prefill" else f"{r.tokens_per_s:,.1f} output tokens/s"
    return f"TTFT {format_seconds(r.ttft_s)}, {tpot}{rate}"


def _verdict(w: Worth) -> str:
    """Say what techniques that are set are worth, what to set, what to measure first, and what to leave."""
    kinds = {kind: [row for row in w.here if row.advice == kind] for kind in ADVICE}
    where, other = (f"on top of {_on(w)}", "other technique") if _on(w) else ("here", "technique")
    none = f"No {other} of {w.question.engine.name} is sure to help {where}."
    titled = {title.format(where=where): kinds[kind] for kind, title in ADVICE.items()}
    sentences, doubts = list[str](), {_doubt([row]) for row in w.on}
    for title, rows in titled.items():
        if rows:  # whose acceptance gains rest on is said once
            doubt = _doubt(rows)
            sentences.append(f"{title}: {_named(rows, w.requests)}{'' if doubt in doubts else doubt}.")
            doubts.add(doubt)
    limits = list[str]()  # of the engine, that make room where memory binds
    if x := w.limits:
        gain = f"{_percent(x.gain)}, {_percent(x.low)} to {_percent(x.high)}"
        limits = [f"Memory binds: set {x.flag} first ({gain}; {x.cost}); the gains below are without it."]
    begun = [*_dropped_words(w), *limits, *map(_set_words, w.on), *([] if kinds[gains.SET] else [none])]
    full = [row for row in w.here if row.fits and gains.is_lost_when_full(row.gain, row.full_gain)]  # they take room
    lost = ", ".join(f"{row.single} ({_percent(row.full_gain)}{_on_top(row)})" for row in full[:MOST_NAMED])
    return " ".join([*begun, *sentences, *([f"A loss once the KV cache is full: {lost}."] if full else [])])


def _prompt_words(w: Worth) -> Iterator[str]:
    """Say of short outputs after long prompts that what decoding would gain counts little."""
    q, r = w.question, w.requests
    out = int(q.requests.output_len)
    if q.offered.request_rate or not gains.is_led_by_prompts(r.ttft_s, r.tpot_s, out):
        return
    share, longer = 1 / (1 + r.ttft_s / r.tpot_s / (out - 1)), f"longer outputs (--output-len, now {out:,}) change the gains"
    rows = [x for x in w.here if w.of_step and x.advice in (gains.MEASURE, gains.NO_GAIN) and gains.is_worth_telling(x.step_gain)]
    alone = [f"{row.single} {_percent(row.step_gain)}" for row in sorted(rows, key=lambda x: -x.step_gain)[:MOST_NAMED]]
    steps = f"; on a decode step alone: {', '.join(alone)}" if alone else ""
    yield f"Only {share:.0%} of a request's time comes after its first token: {longer}{steps}."


def _dropped_words(w: Worth) -> Iterator[str]:
    """Say what requests gain with the engine's default settings in the place of those set, here and on a full server."""
    loads = [(_load(w), w.weighed, w.requests)]
    if full := w.when_full:
        loads.append((f"{full.clients:,} clients, as many as there is room for", full.weighed, full.requests))
    for load, weighed, now in loads:
        spans = {x: f"{_percent(x.gain)} ({_percent(x.low)} to {_percent(x.high)}" for x in weighed if x.costs}
        gained = ((x, spans.get(x, f"no tokens/s ({_percent(x.gain)}")) for x in weighed)
        if weighed:
            yield f"For {load}: {'; '.join(f'dropping {x.flag} gains {text}{_moved(x, now)})' for x, text in gained)}."
    yield from (f"Without {x.flag} {x.cost}." for x in w.weighed if x.cost)


def _doubt(rows: list[TechniqueWorth]) -> str:
    """Say whose acceptance of drafts gains rest on, where the question names none."""
    taken = dict.fromkeys(row.accepted for row in rows[:MOST_NAMED] if row.accepted)
    return f", if drafts are accepted as often as {' or '.join(taken)}" if taken else ""


def _set_words(row: TechniqueWorth) -> str:
    """Say what a technique that is set is worth, against the same without it."""
    if row.refused:
        return f"{row.asked} is already on: {row.refused}; what it brings cannot be priced apart."
    spread = f"{_percent(row.gain)} ({_percent(row.low)} to {_percent(row.high)})"
    if row.since:
        worth = f"is worth {spread} here, against the same engine without it"
        brings = worth if row.verdict in WEIGHED else "changes nothing here"
        where = f"; pays off: {', or '.join(map(_pay_text, row.pays))}" if row.pays else ""
        return f"{row.asked} is on by default {row.since}, and {brings}{where}."
    if row.verdict not in WEIGHED:
        return f"{row.asked}, which is set, {row.verdict}."
    return f"{row.asked}, which is set, {WEIGHED[row.verdict]}: {spread} compared with leaving it out{_doubt([row])}."


def _on(w: Worth) -> str:
    return " and ".join(row.asked for row in w.on if not row.since)


def _named(rows: list[TechniqueWorth], now: RequestTimes) -> str:
    shown = list[str]()
    for row in rows[:MOST_NAMED]:
        full = f" here, {_percent(row.full_gain)} then" if row.advice == gains.WHEN_FULL else ""  # what its room is worth
        shown.append(f"{row.single} ({_percent(row.gain)}{_on_top(row)}{full}{_moved(row, now)})")
    return ", ".join([*shown, *([f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else [])])


def _moved(row: TechniqueWorth | SettingWorth, now: RequestTimes) -> str:
    """Return the times that a gain comes with, and how many requests run at once, where they change much."""
    if isinstance(row, TechniqueWorth) and row.advice not in (gains.SET, gains.MEASURE):
        return ""
    pairs = {"TTFT": (now.ttft_s, row.ttft_s), "TPOT": (now.tpot_s, row.tpot_s)}
    moves = [f", {name} {' -> '.join(map(format_seconds, pair))}" for name, pair in pairs.items() if gains.moves_time(*pair)]
    if isinstance(row, TechniqueWorth) and gains.moves_running(now.running, row.running):
        moves.append(f", {row.running:,.0f} requests of a replica at once instead of {now.running:,.0f}")
    return "".join(moves)


def _on_top(row: TechniqueWorth) -> str:
    return f" on top of {row.beside}" if row.beside else ""


def _percent(gain: float) -> str:
    change = gain - 1
    return f"{change:+.0%}" if abs(change) >= 0.0995 else f"{change:+.1%}"


def _cells(row: TechniqueWorth, w: Worth) -> tuple[str | Text, ...]:
    style, same = STYLES.get(row.verdict, "dim"), row.verdict == gains.SAME
    gain = Text("none" if same else _percent(row.gain), style=style)
    spread = "" if same else f"{_percent(row.low)} to {_percent(row.high)}"
    ttft, tpot = format_seconds(row.ttft_s), format_seconds(row.tpot_s) if w.question.requests.output_len > 1 else ""
    step, alone = (format_seconds(row.step_s), _percent(row.step_gain)) if w.of_step else ("", "")
    room = f"{row.kv_tokens:,}" if row.kv_tokens != w.kv_tokens else ""
    full = "" if isnan(row.full_gain) else _percent(row.full_gain)
    rate = _rate(row.tokens_per_s, w).split()[0]
    return row.name, Text(row.verdict, style=style), gain, spread, ttft, tpot, rate, step, alone, room, full


def pays_text(row: TechniqueWorth, swept: bool = True) -> str:
    """Return where it gains in words: ``batch 158 and above, or context up to 10,030``, or "" where one load was looked at."""
    if not swept or row.refused:
        return ""
    if not row.pays and len(row.never) > 1:
        return "at no load or prompt length tried"
    pays = ", or ".join(map(_pay_text, row.pays))
    never = (f"at no {AXES.get(name, name)} tried" for name in row.never)
    return "; ".join(filter(None, [pays, *never])) or "at every load and prompt length tried"


def _pay_text(pays: PayRange) -> str:
    name, low, high = AXES.get(pays.axis, pays.axis), f"{pays.low:,.0f}", f"{pays.high:,.0f}"
    if low == high:
        span = f"{name} {low} alone"
    elif pays.high == pays.ends[1]:
        span = f"{name} {low} and above"
    else:
        span = f"{name} up to {high}" if pays.low == pays.ends[0] else f"{name} {low} to {high}"
    return f"{span} ({pays.until})" if pays.until else span


def _remarks(w: Worth) -> Iterator[str]:
    timed = w.question.offered.request_rate and not w.requests.overloaded
    what = "how much sooner requests are answered" if timed else "tokens/s per GPU"
    replaced = [f" (another drafter replaces {row.asked})" for row in w.on if row.technique.group == DRAFTS]
    alone = f"on top of {_on(w)}{''.join(replaced)}" if _on(w) else "with this technique alone"
    yield f"gain: {what}, {alone}, at the best of its usual settings; --technique tests several together"
    if any(row.beside for row in w.here):
        yield "on top of: gain, range and pays off are what it adds to what it needs; times, tokens/s and set are of both"
    yield "undecided: the range includes both a gain and a loss"
    if w.of_step:
        yield "step, step alone: of the batch asked about with no other work in the step, and what its tokens/s gain"
    if w.swept:
        tried = " and ".join(f"{AXES.get(name, name)} {low:,.0f} to {high:,.0f}" for name, low, high in w.swept)
        yield f"pays off: where the central prediction is a gain; tried: {tried}, each varied alone"
    if any(not isnan(row.full_gain) for row in w.here):
        yield "when full: gain with as many requests running as fit, for techniques that change KV capacity"
    if w.requests.overloaded:
        yield "more requests come than can be answered: times grow with the length of the run"
    yield from map(str, (*w.requests.notes, *link_notes(w.question), *context_notes(w.question, int(w.question.requests.tokens))))
    for row in (*w.on, *w.here):
        if (gpus := int(w.question.vary(**changes_of(row.asked)).plan.num_gpus)) != int(w.question.plan.num_gpus):
            yield f"{row.name}: takes {gpus} GPUs instead of {int(w.question.plan.num_gpus)}; its gain is per GPU"
        yield from (f"{row.name}: {note}" for note in row.notes)


def worth_document(w: Worth) -> Record:
    rows, on = (list(map(worth_row, some)) for some in (w.rows, w.on))
    verdict = " ".join([_verdict(w), *_prompt_words(w)])
    return document("worth", w.question, worth=w, bill=w.bill, verdict=verdict, basis=_basis(w), rows=rows, own=on)


def worth_row(row: TechniqueWorth) -> Record:
    return record("worth-row", row=row, technique=row.technique, pays=row.pays)


MANNERS = {
    "Worth": Manner[Worth](
        show_worth,
        worth_document,
        lambda w: [worth_row(row) | {"pays": pays_text(row, bool(w.swept))} for row in w.rows],
        bars(
            lambda w: [(row.name, row.gain - 1, row.low - 1, row.high - 1) for row in w.here],
            "%",
            lambda w: f"{question_title(w.question)}: gain of each technique",
        ),
    ),
}
