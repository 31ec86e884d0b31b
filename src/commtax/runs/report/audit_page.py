"""An audit as Markdown for a pull request, and an audit or two runs as a page: verdict, causes, steps in time, tables."""

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from commtax.files import Json, JsonObject, list_of, object_of, text_of
from commtax.report.documents import Record, to_object
from commtax.report.markdown import plain, rows
from commtax.report.tables import TableCells
from commtax.runs.evidence.finding import Audit, Section
from commtax.runs.report import audit_differences as differences
from commtax.runs.report import audit_words as words
from commtax.runs.report import auditing
from commtax.runs.report.audit_words import difference_text, value_text
from commtax.runs.traces.claim_check import predicted_step, priced_step
from commtax.runs.traces.run_differences import Difference
from commtax.timeline import Timeline
from commtax.units import format_seconds

AUDITED = ("", ">predicted", ">80% range", ">measured", ">difference", "verdict")


def audit_markdown(answer: Record) -> str:
    """Return ``audit --markdown``: the verdict, measured beside predicted figures, and other findings."""
    document = object_of(json.loads(json.dumps(to_object(answer))))
    first, *others = map(text_of, list_of(document.get("summary")))
    mark = {"agree": "✅ ", "disagree": "❌ ", "fault": "❌ "}.get(text_of(document.get("verdict")), "")
    findings = [object_of(row) for part in list_of(document.get("sections")) for row in list_of(object_of(part).get("findings"))]
    judged = [_audit_row(row) for row in findings if row.get("measured") is not None and row.get("predicted") is not None]
    table = ["", *rows(AUDITED, judged)] if judged else []
    bullets = ["", *(f"- {plain(line)}" for line in others)] if others else []
    return "\n".join([f"### {mark}{plain(first)}", *bullets, *table]).strip() + "\n"


def _audit_row(row: JsonObject) -> list[str]:
    unit, item, verdict = (text_of(row.get(key)) for key in ("unit", "item", "verdict"))
    predicted, measured, low, high = (value_text(_number(row.get(key)), unit) for key in ("predicted", "measured", "low", "high"))
    span = f"{low} to {high}" if row.get("low") is not None and row.get("high") is not None else ""
    change = difference_text(_number(row.get("difference")), _number(row.get("base")), unit)
    return [item, predicted, span, measured, change, verdict]


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


MOST_SHOWN = 8_000  # intervals of a picture: those that are nearer than can be seen are drawn as one
MOST_LANES = 16
MOST_JOBS = 4  # whose steps are drawn
NAME = 160  # signs of an interval's name
FINEST = 4096  # parts of a picture's width below which two intervals are one


def audit_page(audited: Audit, command: str) -> Record:
    causes = words.other_causes(audited)[: words.MOST_CAUSES]
    heading = {"title": words.headline(audited), "ran": " ".join(words.job_lines(audited)), "verdict": audited.verdict}
    shown = [{"said": c.said, "price": words.cost_words(c), "rest": words.change_lines(c), "share": c.share} for c in causes]
    blame = {"culprit": " ".join(words.culprit_lines(audited)), "causes": shown, "charts": list(_charts(audited))}
    tables = [table for s in audited.sections for table in _tables(audited, s)]
    notes = [n for s in audited.sections for n in (words.title(s), *words.remarks(s), *words.fact_lines(s))]
    return {"kind": "audit", "command": command, **heading, **blame, "tables": tables, "notes": [*notes, *audited.notes]}


def _tables(audited: Audit, section: Section) -> list[Record]:
    """Return a section's tables, the first with its name where there are several sections."""
    tables = [_table(t) for t in auditing.tables(section, audited.claim is not None)]
    return [{"title": words.title(section), **tables[0]}, *tables[1:]] if tables and len(audited.sections) > 1 else tables


def difference_page(d: Difference, command: str) -> Record:
    first, *others = differences.summary(d)
    both = (("A", d.before), ("B", d.after))
    charts = [chart(s.measured, f"{name}, measured") for name, run in both if (s := _timed_section(run)) and s.measured]
    heading = {"title": first, "verdict": "disagree" if d.worse else "agree", "culprit": " ".join(others)}
    shown = {"causes": [], "charts": charts, "tables": [_table(t) for t in differences.tables(d)]}
    return {"kind": "diff", "command": command, **heading, **shown, "notes": list(differences.remarks(d))}


def _table(table: TableCells) -> Record:
    columns, rows = table
    heads = [{"name": name.lstrip(">"), "number": name.startswith(">")} for name in columns]
    return {"columns": heads, "rows": [[str(cell) for cell in row] for row in rows]}


def _timed_section(audited: Audit) -> Section | None:
    """Return the section whose step is drawn."""
    return next((s for s in audited.sections if s.measured is not None), None)


def _charts(audited: Audit) -> Iterator[Record]:
    """Yield the measured step above the predicted one, or for several jobs a step of each of the first."""
    section = _timed_section(audited)
    if section is None or section.measured is None:
        return
    timed = [(s.files[0], s.measured) for s in audited.sections if s.measured is not None]
    if len(timed) > 1:
        yield from (chart(measured, f"{file}, measured") for file, measured in timed[:MOST_JOBS])
        return
    yield chart(section.measured, "measured")
    if audited.claim is not None and not audited.claim.question.trains:
        b = priced_step(audited.claim, section)
        q = b.question
        yield chart(predicted_step(b), f"predicted: {q.phase}, batch {int(q.batch)}, {int(q.context):,} tokens")


def chart(timeline: Timeline, name: str) -> Record:
    """Return a timeline's busiest lanes as columns of whole nanoseconds from its beginning, each name once."""
    begin = timeline.begin_s
    busy = np.bincount(timeline.lane, weights=timeline.end_s - timeline.start_s, minlength=len(timeline.lanes))
    used = np.unique(timeline.lane)
    lanes = sorted(used[np.argsort(-busy[used], kind="stable")][:MOST_LANES].tolist())
    shown = {lane: row for row, lane in enumerate(lanes)}
    rows = thin_intervals([(shown[r[0]], *r[1:]) for r in _rows(timeline, begin) if r[0] in shown])
    names = list(dict.fromkeys(r[4] for r in rows))
    place = {text: number for number, text in enumerate(names)}
    left_out = f" ({len(used) - len(lanes)} lanes more)" if len(used) > len(lanes) else ""
    name, length = f"{name}, {format_seconds(timeline.span_s)}{left_out}", round(timeline.span_s * 1e9)
    drawn = {"lanes": [timeline.lanes[i] for i in lanes], "kinds": timeline.kinds, "names": names}
    columns = {key: [r[at] for r in rows] for at, key in enumerate(("lane", "start", "duration", "kind_of"))}
    return {"name": name, "length": length, **drawn, **columns, "name_of": [place[r[4]] for r in rows]}


Interval = tuple[int, int, int, int, str]  # lane, start and duration in nanoseconds, kind, name


def _rows(timeline: Timeline, begin: float) -> Iterator[Interval]:
    order = np.lexsort((timeline.start_s, timeline.lane))
    for i in order.tolist():
        start, end = (round((float(x) - begin) * 1e9) for x in (timeline.start_s[i], timeline.end_s[i]))
        yield int(timeline.lane[i]), start, end - start, int(timeline.kind[i]), timeline.name[i][:NAME]


def thin_intervals(rows: Sequence[Interval], most: int = MOST_SHOWN) -> list[Interval]:
    """Return the same picture with at most so many intervals, by joining neighbours of one kind that look like one."""
    span = max((r[1] + r[2] for r in rows), default=0)
    gap, shown = max(1, span // FINEST), list(rows)
    by_kind = sorted(rows, key=lambda r: (r[0], r[3], r[1]))
    while len(shown) > max(most, len({(r[0], r[3]) for r in rows})):
        shown, gap = list(_join_intervals(by_kind, gap)), gap * 2
    return shown


def _join_intervals(rows: Iterable[Interval], gap: int) -> Iterator[Interval]:
    joined: list[tuple[Interval, int]] = []  # each with the number of intervals in it
    for row in rows:
        last, count = joined[-1] if joined else (row, 0)
        if count and last[0] == row[0] and last[3] == row[3] and row[1] - (last[1] + last[2]) < gap and last[2] < gap * 4:
            joined[-1] = ((*last[:2], max(last[2], row[1] + row[2] - last[1]), *last[3:]), count + 1)
        else:
            joined.append((row, 1))
    yield from (row if count == 1 else (*row[:4], f"{count} intervals") for row, count in joined)
