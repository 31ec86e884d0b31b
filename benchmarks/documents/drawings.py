"""A small pen for the drawings of docs/concepts: shapes and words in colours that follow light and dark.

A drawing names colours by what they stand for (``compute``, ``comm``); a page that holds it may set them, and a drawing alone
follows the reader's system.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from commtax.report.plots import LOOKS

NAMES = {"ink": "ink", "soft": "quiet", "line": "line", "panel": "paper", "idle": "line", "compute": "accent"}
NAMES |= {"compute-mid": "compute-line", "compute-soft": "compute", "comm": "hot", "comm-soft": "hot-soft"}
"""What a drawing's colours are called in the one table of looks."""
LIGHT, DARK = ({name: LOOKS["colours"][own][ground] for name, own in NAMES.items()} for ground in (0, 1))
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
WIDTH = 560  # of every drawing: its words stay readable on a telephone
SIZE = 14  # of words
MARGIN = 16


def colours(chosen: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in chosen.items())


STYLE = f".commtax-drawing {{ {colours(LIGHT)} }} @media (prefers-color-scheme: dark) {{ .commtax-drawing {{ {colours(DARK)} }} }}"


@dataclass
class Drawing:
    """Shapes in the order in which they are drawn; ``title`` is what a screen reader says."""

    title: str
    height: float
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, wide: float, high: float, fill: str, *, line: str = "", round_by: float = 2) -> None:
        stroke = f" stroke: var(--{line}); stroke-width: 1;" if line else ""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, wide):.1f}" height="{high:.1f}" rx="{round_by:g}" '
            f'style="fill: var(--{fill});{stroke}"/>'
        )

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", fill: str = "ink", size: float = SIZE, bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}"{weight} style="fill: var(--{fill})">'
            f"{escape(words)}</text>"
        )

    def stroke(self, *points: tuple[float, float], colour: str = "line", wide: float = 1.5, dashed: bool = False) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        look = f'fill="none" stroke-width="{wide:g}"{dashes} style="stroke: var(--{colour})"'
        self.shapes.append(f'<polyline points="{path}" {look}/>')

    def dot(self, x: float, y: float, radius: float, fill: str, *, line: str = "") -> None:
        stroke = f" stroke: var(--{line}); stroke-width: 1.5;" if line else ""
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" style="fill: var(--{fill});{stroke}"/>')

    def head(self, x: float, y: float, along: tuple[float, float], colour: str = "soft") -> None:
        """The head of an arrow that ends here."""
        dx, dy = along
        points = " ".join(f"{x - 8 * dx + s * 4 * -dy:.1f},{y - 8 * dy + s * 4 * dx:.1f}" for s in (1, -1))
        self.shapes.append(f'<polygon points="{x:.1f},{y:.1f} {points}" style="fill: var(--{colour})"/>')

    def key(self, y: float, *entries: tuple[str, str]) -> None:
        """What colours stand for, in one line."""
        x = float(MARGIN)
        for fill, words in entries:
            self.box(x, y - 11, 13, 13, fill)
            self.text(x + 19, y, words, fill="soft")
            x += 19 + 8.1 * len(words) + 18

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="commtax-drawing" viewBox="0 0 {WIDTH} {self.height:g}" role="img" '
            f'font-family="{FONT}">'
        )
        panel = f'<rect width="{WIDTH}" height="{self.height:g}" rx="8" style="fill: var(--panel)"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", f"<style>{STYLE}</style>", panel, *self.shapes, "</svg>\n"])
