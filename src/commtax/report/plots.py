"""Pictures for files: lines with distinct markers and dashes, so that hue is never the only difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from commtax.files import written
from commtax.spec import PARALLEL
from commtax.spelling import visible
from commtax.statement import Refusal
from commtax.verbs.comparing import Comparison

# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
LABELS: dict[str, str] = {
    "batch": "batch (sequences)",
    "context": "context (tokens)",
    "link": "link",
    **{str(axis.name): axis.title for axis in PARALLEL.values()},
    "micro_batch": "sequences a microbatch",
    "local_tokens": "tokens a GPU and step",
}
SUFFIXES = (".svg", ".png", ".pdf")
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def _matplotlib(path: Path) -> Any:
    """matplotlib without a screen; a name that it cannot write and its absence are told in one line."""
    if path.suffix not in SUFFIXES:
        raise Refusal(f"plot '{path}': the name must end in one of {', '.join(SUFFIXES)}", "plot")
    try:
        import matplotlib as mpl
    except ImportError:
        raise Refusal("plot: pictures need matplotlib (pip install 'commtax[plot]')", "plot") from None
    mpl.use("agg")
    return mpl


def picture(path: Path, draw: Callable[[Any], None], size: tuple[float, float] = (8, 5)) -> None:
    """A figure that ``draw`` fills, written to a file."""
    _matplotlib(path)
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=size, constrained_layout=True)
    draw(figure)
    save(figure, path)


def save(figure: Any, path: Path, dpi: int = 130) -> None:
    """The same figure is the same file, to the byte: no dates, no random names inside."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    try:
        with mpl.rc_context({"svg.hashsalt": "commtax"}), written(path, "plot") as part:
            figure.savefig(part, dpi=dpi, format=path.suffix[1:], metadata=_UNDATED.get(path.suffix))
    finally:
        plt.close(figure)


def no_formula(text: str) -> str:
    """User text for a picture: a dollar is no formula there, and a control no sign that a font lacks.

    >>> no_formula("a$b")
    'a\\\\$b'
    """
    return visible(text).replace("$", r"\$")


def plot_comparison(compared: Comparison, title: str, path: Path) -> None:
    """Communication's share of the step above, time of the step below; over tp the ideal line is drawn too."""
    mpl = _matplotlib(path)
    import matplotlib.pyplot as plt

    x_axis = next((a for a in compared.axes if a != "link"), compared.axes[0])
    series = next((a for a in compared.axes if a != x_axis), "")
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 8), sharex=True, constrained_layout=True)
    for index, value in enumerate(compared.values(series) if series else [None]):
        _draw(top, bottom, compared, x_axis, series, value, index)
    if x_axis == "tp" and not series:
        _ideal(bottom, compared)
    top.set_title(no_formula(title), loc="left", fontsize=11)
    top.set_ylabel("exposed communication (share of the step)")
    top.set_ylim(0, 1)
    top.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    bottom.set_ylabel("step (ms)")
    bottom.set_yscale("log")
    bottom.set_xlabel(LABELS[x_axis])
    plain = mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}")
    bottom.yaxis.set_major_formatter(plain)
    bottom.yaxis.set_minor_locator(mpl.ticker.LogLocator(subs=(2, 5)))
    bottom.yaxis.set_minor_formatter(plain)
    if x_axis != "link":
        bottom.set_xscale("log", base=2)
        bottom.set_xticks(compared.values(x_axis))
        bottom.xaxis.set_major_formatter(plain)
        bottom.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    for axes in (top, bottom):
        axes.grid(True, which="major", alpha=0.3)
    if series or x_axis == "tp":
        bottom.legend(title=LABELS.get(series, ""), fontsize=9)
    save(figure, path)


def _draw(top: Any, bottom: Any, compared: Comparison, x_axis: str, series: str, value: Any, index: int) -> None:
    rows = [r for r in compared.rows if r.bill is not None and (not series or r.at[compared.axes.index(series)] == value)]
    xs = [r.at[compared.axes.index(x_axis)] for r in rows]
    style = {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
        "label": str(value) if series else "step",
    }
    top.plot(xs, [float(r.bill.comm_fraction) for r in rows if r.bill], **style)
    bottom.plot(xs, [float(r.bill.step_s) * 1e3 for r in rows if r.bill], **style)


def _ideal(bottom: Any, compared: Comparison) -> None:
    """What the first point's time would become if it divided perfectly."""
    rows = [r for r in compared.rows if r.bill is not None]
    if rows and rows[0].bill is not None:
        first, base = rows[0].at[0], float(rows[0].bill.step_s) * 1e3
        bottom.plot([r.at[0] for r in rows], [base * first / r.at[0] for r in rows], color="grey", linestyle=":", label="ideal")
