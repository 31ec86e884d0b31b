"""A running server beside its prediction: in sentences, on a terminal drawn anew at every look, and as metrics for Prometheus."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text as Styled

from commtax.files import table
from commtax.report.drawing import Console
from commtax.report.tables import notes, say
from commtax.runs.evidence.finding import AGREE, DISAGREE, UNKNOWN, Finding, missing_sentence
from commtax.runs.report import auditing
from commtax.runs.report.audit_words import cause_sentence, causes, fact_lines, outcome_sentence, remarks, value_text
from commtax.runs.results.exposition import METRICS, bounds_text
from commtax.runs.results.live import BINDS, IDLE, ServerAudit, tail_bounds
from commtax.units import format_figure, format_mean, format_seconds

WORDS = table("report/words.toml")["server"]
OF_A_TOKEN = ("tpot_mean", "itl_mean")
SLOWER, FASTER, OTHER = "slower", "faster", "other"
STYLES = {AGREE: "bold green", SLOWER: "bold red", FASTER: "bold", OTHER: "bold red", UNKNOWN: "bold", IDLE: "bold"}


def state_of(seen: ServerAudit) -> str:
    """Return agree, slower, faster, other (another plan than was claimed), unknown or idle."""
    if seen.window.idle:
        return IDLE
    off = [f for f in seen.findings if f.verdict == DISAGREE]
    if not off:
        return AGREE if seen.audited.verdict == AGREE else UNKNOWN
    timed = [f for f in off if f.evidence and f.difference]
    if not timed:
        return OTHER
    f = _furthest(timed)
    is_longer_or_higher = (f.difference or 0.0) > 0
    return SLOWER if is_longer_or_higher == (f.unit == "s") else FASTER


def _furthest(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda f: abs(f.difference or 0.0))


def answer_sentence(seen: ServerAudit) -> str:
    """Say what ran, and whether it is as fast as predicted, or without a claim how it goes."""
    claim = seen.audited.claim
    if claim is None and not seen.window.idle:
        return f"{seen.run.model or 'server'}: {outcome_sentence(seen.audited)}"
    name = f"{claim.question.model.key} on {claim.question.cluster.key}, TP {claim.tp}" if claim else seen.run.model or "server"
    return f"{name}: {WORDS['states'][state_of(seen)]}{_furthest_words(seen)}"


def _furthest_words(seen: ServerAudit) -> str:
    """Describe the deciding figure: the furthest one that disagrees, else the time of a token."""
    off = [f for f in seen.findings if f.verdict == DISAGREE and f.evidence and f.difference]
    near = [f for f in seen.findings if f.verdict == AGREE and f.evidence]
    usual = next((one for one in near if one.code in OF_A_TOKEN), near[0] if near else None)
    f = _furthest(off) if off else usual
    if f is None or f.predicted is None or state_of(seen) == UNKNOWN:
        return ""
    measured, predicted = (value_text(value, f.unit) for value in (f.measured, f.predicted))
    if not off and f.low is not None and f.high is not None and not f.low <= (f.measured or 0.0) <= f.high:
        return f": {f.item} is {measured}, within {f.tolerance:.0%} of the predicted {predicted}"
    if not off or not f.measured or not f.predicted:
        return f": {f.item} is {measured} ({range_text(f)} predicted)"
    return f": {f.item} is {measured}, {f.measured / f.predicted:.2f} times the predicted {predicted} ({range_text(f)})"


def range_text(f: Finding) -> str:
    """Format the range of a prediction, or the prediction alone if it has none.

    >>> range_text(Finding("TPOT", 0.02, 0.03, "s", low=0.015, high=0.025))
    '15 to 25 ms'
    """
    if f.low is None or f.high is None:
        return value_text(f.predicted, f.unit)
    low, high = value_text(f.low, f.unit), value_text(f.high, f.unit)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2] and " " in low
    return f"{low.rpartition(' ')[0] if same else low} to {high}"


def load_sentence(seen: ServerAudit) -> str:
    """Describe the load in the metrics, and over which time."""
    run, parts = seen.run, list[str]()
    if there := run.facts.get("mean concurrency"):
        parts.append(f"{there} requests in flight on average")
    elif run.concurrency:
        parts.append(f"{run.concurrency:.0f} requests in flight, as was said")
    if run.input_len and run.output_len:
        parts.append(f"{format_mean(run.input_len)} tokens in, {format_mean(run.output_len)} out")
    if run.requests_per_s:
        parts.append(f"{format_figure(run.requests_per_s)} requests/s")
    if run.hit_rate:
        parts.append(f"{run.hit_rate:.0%} of the prompt tokens cached")
    if run.accepted > 1:
        parts.append(f"{run.accepted:.2f} tokens per step")
    span = seen.window.seconds
    return f"{'; '.join(parts) or 'no load'} ({'since its start' if span is None else f'last {format_seconds(span)}'})"


def next_lines(seen: ServerAudit) -> Iterator[str]:
    """Yield what to look at next: the dearest causes or what a verdict lacks, and what binds a step."""
    sentences = [cause_sentence(cause) for cause in causes(seen.audited)]
    yield from sentences[:2]
    if not sentences and not seen.window.idle and (why := missing_sentence(seen.audited)):
        yield f"to judge it: {why}"
    yield from (str(n) for s in seen.audited.sections for n in s.notes if n.code == BINDS)


def show_server(console: Console, seen: ServerAudit) -> None:
    """Show the answer in a few lines, then every figure."""
    say(console, answer_sentence(seen), STYLES[state_of(seen)])
    say(console, load_sentence(seen))
    for line in next_lines(seen):
        say(console, line)
    for section in seen.audited.sections:
        auditing.show_section(console, section, seen.audited.claim is not None)
        notes(console, (text for text in remarks(section) if getattr(text, "code", "") != BINDS), fact_lines(section))


SCALE = 11  # signs of the picture of a range
SPARKS = "▁▂▃▄▅▆▇█"
MOST_SPARKS = 16
WITH_PICTURE, WITH_HISTORY = 80, 100  # columns from which on a table has them
VERDICTS = {AGREE: "green", DISAGREE: "bold red", UNKNOWN: ""}


@dataclass(frozen=True, slots=True)
class DashboardLine:
    """The address of the metrics, the time of the last look, and what went wrong since."""

    url: str
    clock: str
    every: str
    trouble: str = ""
    exported: str = ""  # where the band is served


def dashboard(history: Sequence[ServerAudit], line: DashboardLine, width: int) -> RenderableType:
    """Draw the last look, with the history before it, on so many columns."""
    seen = history[-1]
    style = "dim" if line.trouble else STYLES[state_of(seen)]  # what was seen before nobody answered
    parts: list[RenderableType] = [Styled(answer_sentence(seen), style=style), Styled(load_sentence(seen))]
    if not seen.window.idle:
        parts += [Styled(""), _table(history, width), Styled("")]
    if now := " · ".join(f"{seen.run.facts[fact]} {name}" for fact, name in WORDS["facts"].items() if fact in seen.run.facts):
        parts.append(Styled(f"now: {now}"))
    parts += [Styled(text) for text in next_lines(seen)]
    if line.trouble:
        parts.append(Styled(line.trouble, style="bold red"))
    serves = f" · band at {line.exported}" if line.exported else ""
    parts.append(Styled(f"{line.clock} · every {line.every} · {line.url}{serves} · Ctrl-C ends", style="dim"))
    return Group(*parts)


def _table(history: Sequence[ServerAudit], width: int) -> Table:
    """Return a row for each figure that is measured or has a bucket, without the least needed columns on a narrow screen."""
    seen, claimed = history[-1], history[-1].audited.claim is not None
    columns = {"": True, "measured": True, "80% range": claimed, "verdict": claimed}
    columns |= {"where it lies": claimed and width >= WITH_PICTURE, "so far": width >= WITH_HISTORY}
    drawn = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name in (name for name, shown in columns.items() if shown):
        drawn.add_column(name, justify="right" if name in ("measured", "80% range") else "left", no_wrap=True)
    tails = tail_bounds(seen.window.page)
    by_code = {f.code: f for f in reversed(seen.findings)}
    for code, name in WORDS["rows"].items():
        if f := by_code.get(code):
            bounds = tails.get(code.partition("_")[0]) if f.measured is None else None
            figure_cells = {
                "measured": bounds_text(*bounds) if bounds else value_text(f.measured, f.unit),
                "80% range": range_text(f) if f.predicted is not None else "",
                "verdict": Styled(f.verdict if f.evidence else "", style=VERDICTS[f.verdict]),
                "where it lies": _scale(f, bounds),
            }
            windows = (seen for seen in history if seen.window.seconds is not None)
            measured_so_far = [next((f.measured for f in seen.findings if f.code == code), None) for seen in windows]
            cells = {"": name, **figure_cells, "so far": sparkline(measured_so_far)}
            drawn.add_row(*(cells[column] for column, shown in columns.items() if shown))
    return drawn


def _scale(f: Finding, bounds: tuple[float, float] | None) -> str:
    """Draw the predicted range and the measured figure on a logarithmic scale from half to twice the range."""
    if f.low is None or f.high is None or not 0 < f.low <= f.high:
        return ""
    low, high = math.log(f.low / 2), math.log(f.high * 2)

    def place(value: float) -> int:
        share = (math.log(value) - low) / (high - low) if value > 0 else 0.0
        return min(SCALE - 1, max(0, round(share * (SCALE - 1)))) if math.isfinite(share) else SCALE - 1

    signs = ["·"] * SCALE
    signs[place(f.low) : place(f.high) + 1] = "─" * (place(f.high) + 1 - place(f.low))
    first, last = (f.measured, f.measured) if bounds is None else bounds
    if first is None or last is None:
        return "".join(signs)
    for at in range(place(first), place(last) + 1):
        signs[at] = "●" if bounds is None else "○"
    return "".join(signs)


def sparkline(values: Sequence[float | None]) -> str:
    """Draw the last figures from the least to the most of them, nothing for a single one.

    >>> sparkline([1.0, 2.0, None, 4.0])
    '▁▃ █'
    """
    shown = list(values)[-MOST_SPARKS:]
    present = [v for v in shown if v is not None]
    if len(present) < 2:
        return ""
    least, span = min(present), max(present) - min(present)
    top = len(SPARKS) - 1
    return "".join(" " if v is None else SPARKS[round((v - least) / span * top) if span > 0 else top // 2] for v in shown)


BAND = table("runs/report/predicted_band.toml")
FAMILIES: Mapping[str, Mapping[str, str]] = BAND["family"]  # every family that is served: its kind and its help
RATES = ("requests_per_s", "output_tokens_per_s")
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
Sample = tuple[str, Mapping[str, str], float]


def exposition(seen: ServerAudit | None, looks: int, failures: int, last_success_s: float) -> str:
    """Return the page: figures of the last look if the server answered, and the counts of looks."""
    samples = list(_samples(seen)) if seen else []
    samples += [("up", {}, float(seen is not None)), ("looks_total", {}, looks), ("look_failures_total", {}, failures)]
    samples.append(("last_success_timestamp_seconds", {}, last_success_s))
    lines: list[str] = []
    for family, family_words in FAMILIES.items():
        values = [f"commtax_{name}{_labels(labels)} {_sample_value(value)}" for name, labels, value in samples if name == family]
        if values:
            lines += [f"# HELP commtax_{family} {family_words['help']}", f"# TYPE commtax_{family} {family_words['kind']}", *values]
    return "\n".join(lines) + "\n"


def _samples(seen: ServerAudit) -> Iterator[Sample]:
    state = state_of(seen)
    yield from (("state", {"state": one}, float(one == state)) for one in WORDS["states"])
    if claim := seen.audited.claim:
        question = claim.question
        values = (question.model.key, question.cluster.key, question.engine.key, str(claim.tp))
        yield "claim_info", dict(zip(BAND["claim_labels"], values, strict=True)), 1.0
    run = seen.run
    there = float(run.facts.get("mean concurrency", "0"))
    for name, figure in (("in_flight", there), ("input_tokens", run.input_len), ("output_tokens", run.output_len)):
        if figure:
            yield "load", {"of": name}, figure
    yield "load", {"of": "prefix_hit_share"}, run.hit_rate
    if seen.window.seconds is not None:
        yield "window_seconds", {}, seen.window.seconds
    for f in seen.findings:
        metric, _, statistic = f.code.partition("_")
        timed = metric in METRICS.values() and statistic in ("mean", "p99")
        if not timed and f.code not in RATES:
            continue
        labels = {"metric": metric, "statistic": statistic} if timed else {"metric": f.code}
        kind = "seconds" if timed else "per_second"
        if f.measured is not None:
            yield f"measured_{kind}", labels, f.measured
        for bound, value in (("low", f.low), ("value", f.predicted), ("high", f.high)):
            if value is not None:
                yield "predicted_seconds", {**labels, "bound": bound}, value
    for metric, ends in tail_bounds(seen.window.page).items():
        for bound, end in zip(("low", "high"), ends, strict=True):
            yield "measured_bucket_seconds", {"metric": metric, "statistic": "p99", "bound": bound}, end


def _labels(labels: Mapping[str, str]) -> str:
    """Format labels as the text format has them.

    >>> _labels({"model": 'a"b'})
    '{model="a\\\\"b"}'
    """
    escaped = (f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}" if labels else ""


def _sample_value(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "NaN"
