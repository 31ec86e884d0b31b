"""An audit as Markdown for a pull request: how a run agrees with its prediction, in a few lines and a table."""

import json

from commtax.files import Json, JsonObject, list_of, object_of, text_of
from commtax.report.documents import Record, to_object
from commtax.report.markdown import plain, rows
from commtax.runs.report.audit_words import difference_text, value_text

AUDITED = ("", ">predicted", ">80% range", ">measured", ">difference", "verdict")


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


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
