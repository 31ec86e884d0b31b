"""The Pareto front of plans as a picture: the points, marks and names of the page's, drawn to a file."""

from pathlib import Path
from typing import TypedDict, cast

from commtax.planner.columns import ServingPlans
from commtax.report import plots
from commtax.report.planning import question_words, recommended_words
from commtax.report.plots import LIGHT, LIMIT, RECOMMENDED, entitle, picture, style
from commtax.report.tables import sized_places
from commtax.report.view.pictures import front_points, limit_marks


class FrontPoint(TypedDict):
    x: float
    y: float
    series: str
    name: str
    joined: bool
    best: bool


def plot_front(a: ServingPlans, path: Path | None) -> "plots.Figure":
    """What a user gets against what a GPU gives, for each kind of plans; the recommended one, and what limits ask for."""
    points = cast("list[FrontPoint]", front_points(a))
    names = list(dict.fromkeys(point["series"] for point in points))

    def draw(figure: "plots.Figure") -> None:
        axes = figure.subplots()
        line = [point for point in points if point["joined"]]
        axes.plot([p["x"] for p in line], [p["y"] for p in line], color=LIGHT["line-strong"], zorder=1)
        for index, name in enumerate(names):
            own = [point for point in points if point["series"] == name]
            axes.plot([p["x"] for p in own], [p["y"] for p in own], **style(index, linestyle="", label=name))
        for point in (point for point in points if point["best"]):
            label = f"{recommended_words(a)}: {point['name']}"
            axes.plot([point["x"]], [point["y"]], RECOMMENDED, color=LIGHT["accent"], markersize=12, label=label, zorder=3)
        for mark in limit_marks(a):
            axes.axvline(cast("float", mark["value"]), **LIMIT, label=str(mark["text"]))
        axes.set(xlabel="tokens/s per user", ylabel="tokens/s per GPU")
        entitle(axes, f"{a.question.model.key} on {sized_places(a.question)}, {question_words(a)}")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=9)

    return picture(path, draw)
