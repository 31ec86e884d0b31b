"""Pictures for files: lines with distinct markers and dashes, so that hue is never the only difference."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypedDict, Unpack

from commtax.files import replace_when_written, table
from commtax.spelling import escape_controls
from commtax.statement import Refusal
from commtax.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

LOOKS = table("report/looks.toml")
LIGHT = {name: str(light) for name, (light, _) in LOOKS["colours"].items()}
COLOURS = tuple(LIGHT[name] for name in LOOKS["series"])
MARKERS, RECOMMENDED = str(LOOKS["marks"]["series"]), str(LOOKS["marks"]["recommended"])
LineStyle = TypedDict("LineStyle", {"color": str, "marker": str, "linestyle": str, "label": str}, total=False)  # noqa: UP013
LIMIT: LineStyle = {"color": LIGHT["hot"], "linestyle": "--"}
_GROUND = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
_INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
# Settings for a notebook, light or dark: no ground, and a grey that stands out from white and from black alike
_ON_ANY_GROUND = dict.fromkeys(_GROUND, "none") | dict.fromkeys(_INK, "#7a7a7a")
DASHES, SUFFIXES = ("-", "--", "-.", ":"), (".svg", ".png", ".pdf")
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
MOST_BARS = 15
BarRow = tuple[str, float] | tuple[str, float, float, float]  # a label, a number, and the ends of its range where it has one
# How a number is written, by its unit
WRITTEN: dict[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes, "%": lambda share: f"{share:.1%}"}


def style(index: int, **changed: Unpack[LineStyle]) -> LineStyle:
    colour, marker, dash = (several[index % len(several)] for several in (COLOURS, MARKERS, DASHES))
    return {"color": colour, "marker": marker, "linestyle": dash, **changed}


def check_plot(path: Path | None) -> None:
    """Refuse a name that cannot be written and the absence of matplotlib before anything is computed."""
    if path is not None and path.suffix not in SUFFIXES:
        raise Refusal(f"plot '{path}': the name must end in one of {', '.join(SUFFIXES)}", "plot")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Refusal("plot: pictures need matplotlib (pip install 'commtax[plot]')", "plot") from None


def picture(path: Path | None, draw: Callable[["Figure"], None], size: tuple[float, float] = (8, 5), dpi: int = 130) -> "Figure":
    """Return a figure that ``draw`` fills, for a notebook or written without a screen: the same to the byte each time."""
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
    """Return the class of figures that need no window, and that notebooks can show whatever else is set up there."""
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
    """Write a title at the left, folded where it is longer than a picture of the usual width."""
    axes.set_title(no_formula(fill(text, 100)), loc="left", fontsize=10)


def no_formula(text: str) -> str:
    """Escape user text for a picture: a dollar is no formula there, and a control no sign that a font lacks.

    >>> no_formula("a$b")
    'a\\\\$b'
    """
    return "\n".join(map(escape_controls, text.split("\n"))).replace("$", r"\$")


def format_time_axis(axes: "Axes", which: str) -> None:
    """Write seconds on a logarithmic axis as people do: 50 ms, 2 s."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: format_seconds(value))
    axis.set_minor_formatter(NullFormatter())


def plot_bars(rows: Sequence[BarRow], unit: str, title: str, path: Path | None, colours: Sequence[str] = ()) -> "Figure":
    """Plot bars to one scale, their numbers behind them, from the top down. A range is a line across a bar's end."""
    shown, write = rows[:MOST_BARS], WRITTEN.get(unit, "{:,.3g}".format)
    if not shown:
        raise Refusal("plot: there is nothing to draw in this answer", "plot")

    def draw(figure: "Figure") -> None:
        axes, places = figure.subplots(), range(len(shown))
        values = [float(row[1]) for row in shown]
        axes.barh(places, values, color=colours[:MOST_BARS] or [LIGHT["hot" if value < 0 else "accent"] for value in values])
        for place, (_, value, *ends) in enumerate(shown):
            if ends:
                axes.plot(ends, [place, place], color=LIGHT["quiet"], linewidth=1.5, marker="|")
            at = max(0.0, *ends, value), place
            axes.annotate(write(value), at, xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(places, [no_formula(str(row[0])) for row in shown], fontsize=8)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda value, _: write(value))
        axes.tick_params(axis="x", labelsize=8)
        axes.margins(x=0.12)
        axes.grid(True, axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        entitle(axes, title + (f" (the first {MOST_BARS} of {len(rows):,})" if len(rows) > MOST_BARS else ""))
        axes.set_xlabel("" if unit in WRITTEN else unit)

    return picture(path, draw, (8, 1.2 + 0.3 * len(shown)))


def plot_latencies(runs: Sequence[Mapping[str, float]], title: str, path: Path | None) -> "Figure":
    """Plot TTFT and TPOT with their ranges over clients, or as bars where there is one number of them."""
    if len(runs) == 1:
        run = runs[0]
        rows = [(key.upper(), run[f"{key}_s"], run[f"{key}_low_s"], run[f"{key}_high_s"]) for key in ("ttft", "tpot")]
        return plot_bars([row for row in rows if row[1] == row[1]], "s", title, path)  # without a second token there is no TPOT

    def draw(figure: "Figure") -> None:
        clients = [run["concurrency"] for run in runs]
        for index, (axes, key) in enumerate(zip(figure.subplots(1, 2), ("ttft", "tpot"), strict=True)):
            axes.plot(clients, [run[f"{key}_s"] for run in runs], **style(index))
            ends = ([run[f"{key}_{end}_s"] for run in runs] for end in ("low", "high"))
            axes.fill_between(clients, *ends, color=COLOURS[index], alpha=0.18, linewidth=0)
            axes.set(xlabel="clients", ylabel=key.upper(), xscale="log")
            format_time_axis(axes, "y")
            axes.set_xticks(clients, [f"{x:g}" for x in clients])
            axes.minorticks_off()
            axes.grid(True, alpha=0.3)
        figure.suptitle(no_formula(fill(title, 110)), fontsize=10)

    return picture(path, draw, (9, 4))
