"""Pictures for files: lines with distinct markers and dashes, so that hue is never the only difference."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypedDict, Unpack

from commtax.files import replace_when_written, table
from commtax.spelling import escape_controls
from commtax.statement import Refusal

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

LOOKS = table("report/looks.toml")
LIGHT = {name: str(light) for name, (light, _) in LOOKS["colours"].items()}
COLOURS = tuple(LIGHT[name] for name in LOOKS["series"])
MARKERS, RECOMMENDED = str(LOOKS["marks"]["series"]), str(LOOKS["marks"]["recommended"])
LineStyle = TypedDict("LineStyle", {"color": str, "marker": str, "linestyle": str, "label": str}, total=False)  # noqa: UP013
LIMIT: LineStyle = {"color": LIGHT["hot"], "linestyle": "--"}
DASHES = ("-", "--", "-.", ":")
SUFFIXES = (".svg", ".png", ".pdf")
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def style(index: int, **changed: Unpack[LineStyle]) -> LineStyle:
    colour, marker, dash = (several[index % len(several)] for several in (COLOURS, MARKERS, DASHES))
    return {"color": colour, "marker": marker, "linestyle": dash, **changed}


def check_plot(path: Path | None) -> None:
    """A name that cannot be written and the absence of matplotlib are told in one line, before anything is computed."""
    if path is not None and path.suffix not in SUFFIXES:
        raise Refusal(f"plot '{path}': the name must end in one of {', '.join(SUFFIXES)}", "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Refusal("plot: pictures need matplotlib (pip install 'commtax[plot]')", "plot") from None


_GROUND = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
_INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_ON_ANY_GROUND = dict.fromkeys(_GROUND, "none") | dict.fromkeys(_INK, "#7a7a7a")
"""Settings for a notebook, light or dark: no ground, and a grey that stands out from white and from black alike."""


def picture(path: Path | None, draw: Callable[["Figure"], None], size: tuple[float, float] = (8, 5), dpi: int = 130) -> "Figure":
    """A figure that ``draw`` fills, written without a screen. The same figure is the same file, to the byte: no dates inside.

    Without a path it is for a notebook, which shows it as it is.
    """
    check_plot(path)
    import matplotlib as mpl

    looks = {"svg.hashsalt": "commtax"} | (_ON_ANY_GROUND if path is None else {})
    with mpl.rc_context(looks):  # type: ignore[arg-type, unused-ignore]
        figure = _figures()(figsize=size, layout="constrained")
        draw(figure)
        if path is not None:
            with replace_when_written(path, "plot") as part:
                figure.savefig(part, dpi=dpi, format=path.suffix[1:], metadata=_UNDATED.get(path.suffix))
    return figure


@cache
def _figures() -> type["Figure"]:
    """Figures that need no window, and that notebooks can show whatever else is set up there."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_svg_(self) -> str:
            import io

            with mpl.rc_context({"svg.hashsalt": "commtax", "svg.fonttype": "none"}):
                text = io.StringIO()
                self.savefig(text, format="svg", metadata=_UNDATED[".svg"])
            return text.getvalue()

    return ShownFigure


def entitle(axes: "Axes", text: str) -> None:
    """A title at the left, folded where it is longer than a picture of the usual width."""
    axes.set_title(no_formula(fill(text, 100)), loc="left", fontsize=10)


def no_formula(text: str) -> str:
    """User text for a picture: a dollar is no formula there, and a control no sign that a font lacks.

    >>> no_formula("a$b")
    'a\\\\$b'
    """
    return "\n".join(map(escape_controls, text.split("\n"))).replace("$", r"\$")
