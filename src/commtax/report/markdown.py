"""Answers as Markdown for a pull request: what changed, or how a run agrees with its prediction, in a few lines and a table.

Names come from files that anybody may propose to change. They are shown as code, so that none of them can mention a person, draw
a picture or end the table.
"""

import json
from collections.abc import Iterable, Sequence

from commtax.files import Json, JsonObject, list_of, object_of, text_of
from commtax.report.answer_changes import COLUMNS, AnswerDifference, difference_rows, notes_of, summary
from commtax.report.audit_words import difference_text, value_text
from commtax.report.documents import Record, to_object
from commtax.spelling import escape_controls

MOST_NOTES = 20
AUDITED = ("", ">predicted", ">80% range", ">measured", ">difference", "verdict")


def difference_markdown(d: AnswerDifference) -> str:
    """``diff --markdown``: three lines, the table, and remarks behind a fold."""
    mark = "❌ " if d.broken else ""
    title = f"### {mark}{code(d.after.name)}" if d.after.name else ""
    lines = [f"{line}  " for line in map(plain, summary(d))]
    shown = [] if d.is_same else ["", *rows(COLUMNS, difference_rows(d))]
    return "\n".join([title, "", *lines, *shown, *folded(notes_of(d.after))]).strip() + "\n"


def audit_markdown(answer: Record) -> str:
    """``audit --markdown``: the verdict, what was measured beside what was predicted, and what else was found."""
    document = object_of(json.loads(json.dumps(to_object(answer))))
    first, *others = map(text_of, list_of(document.get("summary")))
    mark = {"agree": "✅ ", "disagree": "❌ ", "fault": "❌ "}.get(text_of(document.get("verdict")), "")
    found = [object_of(row) for part in list_of(document.get("sections")) for row in list_of(object_of(part).get("findings"))]
    judged = [_audit_row(row) for row in found if row.get("measured") is not None and row.get("predicted") is not None]
    table = ["", *rows(AUDITED, judged)] if judged else []
    said = ["", *(f"- {plain(line)}" for line in others)] if others else []
    return "\n".join([f"### {mark}{plain(first)}", *said, *table]).strip() + "\n"


def _audit_row(row: JsonObject) -> list[str]:
    unit, (predicted, measured, low, high) = text_of(row.get("unit")), (_number(row.get(key)) for key in VALUES)
    span = f"{value_text(low, unit)} to {value_text(high, unit)}" if low is not None and high is not None else ""
    change = difference_text(_number(row.get("difference")), _number(row.get("base")), unit)
    return [
        text_of(row.get("item")),
        value_text(predicted, unit),
        span,
        value_text(measured, unit),
        change,
        text_of(row.get("verdict")),
    ]


VALUES = ("predicted", "measured", "low", "high")


def rows(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """A table; columns that start with '>' are right-aligned."""
    names = [f" {name.removeprefix('>')} " for name in columns]
    lines = [f"|{'|'.join(names)}|", f"|{'|'.join('---:' if name.startswith('>') else '---' for name in columns)}|"]
    return lines + [f"| {' | '.join(map(plain, row))} |" for row in cells]


def folded(remarks: Sequence[str]) -> list[str]:
    """Remarks that nobody needs at first sight."""
    if not remarks:
        return []
    lines = [escape_controls(remark).replace("```", "'''") for remark in remarks[:MOST_NOTES]]
    return ["", "<details><summary>How it was read</summary>", "", "```text", *lines, "```", "", "</details>"]


def plain(text: str) -> str:
    """Text that is no Markdown, HTML or mention.

    >>> plain("<b>a|b</b> @me")
    '&lt;b&gt;a\\\\|b&lt;/b&gt; @\\u200bme'
    """
    text = escape_controls(text.replace("\n", " ")).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]|#!":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("@", "@\u200b").replace("-&gt;", "→")


def code(text: str) -> str:
    return "`" + escape_controls(text.replace("\n", " ")).replace("`", "'") + "`"


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
