"""Answers as notebooks show them: what the command prints as HTML, and one layer to scale as SVG, readable on light and on dark."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from commtax.report.drawing import DrawnTable, Sketch, Telling, Text
from commtax.report.plots import LOOKS
from commtax.units import format_seconds
from commtax.verbs.explained_step import Bar, LayerTimeline

COMPUTE, EXPOSED, HIDDEN = (str(LOOKS["any-ground"][name]) for name in ("compute", "exposed", "hidden"))  # as on the page
COLOURS = {"red": "#d33c3c", "green": "#2e8540"}  # of sentences: each is readable on white and on black
WIDE, LANE, NAMES = 900, 34, 76  # of a picture
LETTER = 6.3
Drawn = Text | DrawnTable


class Recorder:
    """A console that keeps what is printed on it."""

    width, telling = 160, Telling(details=True)

    def __init__(self) -> None:
        self.printed: list[Drawn] = []

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None:  # noqa: ARG002
        self.printed += [one for one in objects if isinstance(one, Text | DrawnTable)]


def to_page(printed: Sequence[Drawn], picture: str) -> str:
    """Return the sentences, the picture and the first table, and what follows folded away."""
    first = next((i for i, one in enumerate(printed) if isinstance(one, DrawnTable)), len(printed) - 1)
    head, table, rest = printed[:first], printed[first : first + 1], printed[first + 1 :]
    more = f"<details><summary>more</summary>{_blocks(rest, picture)}</details>" if rest else ""
    return f'<div style="max-width:70rem">{_blocks(head, picture)}{picture}{_blocks(table, picture)}{more}</div>'


def _blocks(printed: Iterable[Drawn], picture: str) -> str:
    """Yield blocks of what was printed. Lines of a drawing stand together, or are left to a picture."""
    html, sketch = list[str](), list[str]()
    for one in (*printed, None):
        if isinstance(one, Sketch):
            sketch.append(str(one))
            continue
        if sketch and not picture:
            html.append(f'<pre style="line-height:1.1;background:none;color:inherit">{escape(chr(10).join(sketch))}</pre>')
        sketch = []
        if one is not None:
            html.append(_table(one) if isinstance(one, DrawnTable) else _sentence(one))
    return "".join(html)


def _sentence(text: Text) -> str:
    words = text.pieces[0][1].split()
    colour = next((f"color:{COLOURS[word]};" for word in words if word in COLOURS), "")
    look = f"margin:.15em 0;white-space:pre-wrap;{colour}{'font-weight:600;' * ('bold' in words)}{'opacity:.8;' * ('dim' in words)}"
    return f'<div style="{look}">{escape(str(text))}</div>'


def _table(table: DrawnTable) -> str:
    sides = ["right" if name.startswith(">") else "left" for name in table.columns]
    title = f'<caption style="text-align:left;font-weight:600">{escape(table.title)}</caption>' if table.title else ""
    head = _row("th", [name.lstrip(">") for name in table.columns], sides)
    body = "".join(_row("td", map(str, row), sides) for row in table.rows)
    look = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.6em 0;color:inherit"
    table_text = f'<table style="{look}">{title}<thead>{head}</thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto">{table_text}</div>'


def _row(kind: str, cells: Iterable[str], sides: Sequence[str]) -> str:
    line = "border-bottom:1px solid rgba(128,128,128,.35);background:none;padding:.15em .6em"
    looks = (f"text-align:{side};{line}{';white-space:nowrap' * (side == 'right')}" for side in sides)
    made = (f'<{kind} style="{look}">{escape(cell)}</{kind}>' for cell, look in zip(cells, looks, strict=True))
    return f'<tr style="background:none">{"".join(made)}</tr>'


def layer_picture(layer: LayerTimeline) -> str:
    """Draw one layer to scale: compute above, collectives below, solid where exposed and outlined where hidden."""
    if layer.length_s <= 0:
        return ""
    scale, height = (WIDE - NAMES) / layer.length_s, 2 * LANE + 50
    caption = f"{layer.note}: {format_seconds(layer.length_s)}"
    parts = [f'<svg role="img" viewBox="0 0 {WIDE} {height}" style="width:100%;max-width:{WIDE}px;font:12px sans-serif" ']
    parts.append(f'xmlns="http://www.w3.org/2000/svg"><title>{escape(caption)}</title>')
    for lane, name in enumerate(("compute", "collectives")):
        parts.append(_label(0, lane, name))
        parts += _lane([bar for bar in layer.bars if (bar.segment.lane == "comm") == bool(lane)], lane, scale)
    legend = (
        (COMPUTE, 0.35, "compute"),
        (EXPOSED, 0.5, "exposed latency"),
        (EXPOSED, 1, "exposed bandwidth"),
        (HIDDEN, 0.25, "hidden"),
    )
    for at, (colour, strength, text) in enumerate(legend):
        left = NAMES + 150 * at
        parts.append(_box(left, height - 34, 12, 12, colour, strength, text))
        parts.append(f'<text x="{left + 18}" y="{height - 24}" fill="currentColor">{text}</text>')
    parts.append(f'<text x="{NAMES}" y="{height - 4}" fill="currentColor" opacity=".8">{escape(caption)}</text></svg>')
    return "".join(parts)


def _label(left: float, lane: int, text: str) -> str:
    return f'<text x="{left:.1f}" y="{lane * LANE + LANE * 0.6:.1f}" fill="currentColor">{escape(text)}</text>'


def _box(left: float, top: float, width: float, height: float, colour: str, strength: float, title: str) -> str:
    box = f'x="{left:.1f}" y="{top:.1f}" width="{max(width, 0.4):.1f}" height="{height}"'
    look = f'fill="{colour}" fill-opacity="{strength}" stroke="{colour}" stroke-width=".7"'
    return f"<rect {box} {look}><title>{escape(title)}</title></rect>"


def _lane(bars: Iterable[Bar], lane: int, scale: float) -> Iterator[str]:
    """Yield boxes, latency of what is exposed before its bandwidth, with names in them where these fit and as tooltips."""
    for bar in bars:
        s = bar.segment
        title = f"{s.name}{f' {s.line.item.op}' * (s.lane == 'comm')}: {format_seconds(s.seconds)}"
        late = s.fixed_s / s.seconds if s.seconds else 0.0
        pieces = [(*span, HIDDEN, 0.25) for span in bar.hidden] if s.lane == "comm" else []
        for start, end in bar.exposed:
            cut = start + (end - start) * late
            parts = [(start, cut, EXPOSED, 0.5), (cut, end, EXPOSED, 1.0)] if s.lane == "comm" else [(start, end, COMPUTE, 0.35)]
            pieces += [part for part in parts if part[1] > part[0] or s.lane == "compute"]
        for start, end, colour, strength in pieces:
            yield _box(NAMES + start * scale, lane * LANE + 3, (end - start) * scale, LANE - 6, colour, strength, title)
        left, width = NAMES + bar.start_s * scale, (bar.end_s - bar.start_s) * scale
        if width > LETTER * len(s.name) + 8:
            yield _label(left + 4, lane, s.name)
