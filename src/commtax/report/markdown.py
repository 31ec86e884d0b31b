"""Answers as Markdown for a pull request: what changed, in a few lines and a table.

Names, which anybody may propose, are shown as code, so that none can mention a person, draw a picture or end the table.
"""

from collections.abc import Iterable, Sequence

from commtax.report.answer_changes import COLUMNS, AnswerDifference, difference_rows, notes_of, summary
from commtax.spelling import escape_controls

MOST_NOTES = 20


def difference_markdown(d: AnswerDifference) -> str:
    """Return what ``diff --markdown`` prints: three lines, the table, and remarks behind a fold."""
    mark = "❌ " if d.broken else ""
    title = f"### {mark}{code(d.after.name)}" if d.after.name else ""
    lines = [f"{line}  " for line in map(plain, summary(d))]
    shown = [] if d.is_same else ["", *rows(COLUMNS, difference_rows(d))]
    return "\n".join([title, "", *lines, *shown, *folded(notes_of(d.after))]).strip() + "\n"


def rows(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Return a table, whose columns that start with '>' are right-aligned."""
    names = [f" {name.removeprefix('>')} " for name in columns]
    lines = [f"|{'|'.join(names)}|", f"|{'|'.join('---:' if name.startswith('>') else '---' for name in columns)}|"]
    return lines + [f"| {' | '.join(map(plain, row))} |" for row in cells]


def folded(remarks: Sequence[str]) -> list[str]:
    """Fold remarks that nobody needs at first sight."""
    if not remarks:
        return []
    lines = [escape_controls(remark).replace("```", "'''") for remark in remarks[:MOST_NOTES]]
    return ["", "<details><summary>How it was read</summary>", "", "```text", *lines, "```", "", "</details>"]


def plain(text: str) -> str:
    """Escape text so that it is no Markdown, HTML or mention.

    >>> plain("<b>a|b</b> @me")
    '&lt;b&gt;a\\\\|b&lt;/b&gt; @\\u200bme'
    """
    text = escape_controls(text.replace("\n", " ")).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]|#!":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("@", "@\u200b").replace("-&gt;", "→")


def code(text: str) -> str:
    return "`" + escape_controls(text.replace("\n", " ")).replace("`", "'") + "`"
