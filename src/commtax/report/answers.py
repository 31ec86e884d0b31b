"""Every kind of answer as Python shows it and hands it on: words of the terminal, a page, a document, rows, a figure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from commtax.answer import manners
from commtax.report.documents import Record, add_notes, to_object
from commtax.report.drawing import DrawnTable, Telling, Text
from commtax.report.manners import Manner
from commtax.statement import Refusal

if TYPE_CHECKING:
    from commtax.report.plots import Figure

WIDTH, HEIGHT = 80, 24  # a screen
FRAMES = ("pandas", "polars")
# answers for which the command says how it read the cluster's name, beside what their notes tell
READ_ALOUD = ("Comparison", "Expectation", "PlanTable", "ServingPlans", "TrainPlans", "FleetPlans", "SeveralPlans")
HOMES = {  # the module of ``report`` that shows each class of answers: nothing of the others is imported
    **dict.fromkeys(("StepBill", "Expectation", "Why"), "bills"),
    **dict.fromkeys(("Traffic", "Fit", "TrainFit"), "exact_bytes"),
    **dict.fromkeys(("Comparison", "PlanTable"), "comparisons"),
    **dict.fromkeys(("ServingPlans", "TrainPlans"), "view.pictures"),
    "ClosedLoop": "closed_loop",
    "RequestsInTime": "requests",
    "PipelineRun": "pipelines",
    "Worth": "worths",
    "FleetPlans": "fleets",
    "SeveralPlans": "several_clusters",
}


class _Full(Exception):  # noqa: N818
    """A screen has no more lines."""


class Screen:
    """A console of so many lines, beyond which nothing is even computed."""

    width, telling = WIDTH, Telling(wider="to_frame() has them")

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, *objects: object, soft_wrap: bool | None = None) -> None:  # noqa: ARG002
        for one in objects:  # an empty line would take the place of a full one
            shown = one if isinstance(one, Text | DrawnTable) else Text(str(one))
            self.lines += [str(line).rstrip() for line in shown.lines(WIDTH)]
        if len(self.lines) > HEIGHT:
            raise _Full


def to_text(answer: object) -> str:
    """Return the first screen of what the command prints."""
    screen = Screen()
    try:
        manner_of(answer).show(screen, answer)
    except _Full:
        screen.lines[HEIGHT - 1 :] = ["… (to_frame() and to_dict() have all of it)"]
    return "\n".join(screen.lines)


def to_html(answer: object) -> str:
    """Return what the command prints, as a notebook's page with a picture."""
    from commtax.report.answer_pages import Recorder, to_page

    console, manner = Recorder(), manner_of(answer)
    manner.show(console, answer)
    return to_page(console.printed, manner.draw(answer))


def to_dict(answer: object) -> Record:
    """Return what the command prints with ``--json``."""
    made = to_object(manner_of(answer).document(answer))
    if type(answer).__name__ in READ_ALOUD:
        first = getattr(answer, "answers", [answer])[0]
        remark = getattr(first, "question", first).cluster.remark
        add_notes(made, [remark] * bool(remark))
    return made


def to_frame(answer: object, library: str = "") -> object:
    """Return rows as a table of pandas or polars."""
    if library not in ("", *FRAMES):
        raise Refusal.of(f"one of {', '.join(FRAMES)}", FRAMES, library=library)
    for name in [library] if library else FRAMES:
        try:
            frames = import_module(name)
        except ImportError:
            continue
        return frames.DataFrame(to_rows(answer))
    missing = library or "pandas or polars"
    raise Refusal(f"to_frame: needs {missing} (pip install {library or 'pandas'}); to_dict() has the same without it", "library")


def to_rows(answer: object) -> list[Record]:
    """Flat rows with the same columns in all."""
    rows = [_flat(to_object(row)) for row in manner_of(answer).rows(answer)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _flat(row: Mapping[str, object]) -> Record:
    flat: Record = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{key}": inner for key, inner in _flat(value).items()}
        else:
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def to_figure(answer: object, path: str = "") -> Figure:
    from commtax.report.plots import check_plot

    place = Path(path) if path else None
    check_plot(place)
    return manner_of(answer).plot(answer, place)


def manner_of(answer: object) -> Manner[object]:
    """Return how an answer is shown: as its class is, or as a table where sizes that were asked for are arrays."""
    from commtax.report.comparisons import GRID, is_grid

    if is_grid(answer):
        return GRID
    name = next(one.__name__ for one in type(answer).__mro__ if one.__name__ in HOMES or one.__name__ in manners)
    made = manners[name]() if name in manners else import_module(f"commtax.report.{HOMES[name]}").MANNERS[name]
    return cast("Manner[object]", made)
