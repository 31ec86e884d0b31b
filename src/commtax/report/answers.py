"""Every kind of answer as Python shows it and hands it on: words, a page, a document, rows, a figure.

Nothing is told twice: words are those of the terminal, documents those of ``--json``.
What a kind of answer needs is imported when one of that kind is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import numpy as np

from commtax.answer import manners
from commtax.records import dataclass
from commtax.report.documents import Record, record, to_object
from commtax.report.drawing import Console, DrawnTable, Telling, Text
from commtax.statement import Refusal
from commtax.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from commtax.ledger import Line
    from commtax.planner.columns import ServingPlans, TrainPlans
    from commtax.planner.fleets import FleetPlans
    from commtax.planner.several_clusters import SeveralPlans
    from commtax.question import Question
    from commtax.report.plots import BarRow, Figure
    from commtax.sim.pipeline import PipelineRun
    from commtax.verbs.billing import StepBill, Traffic
    from commtax.verbs.closed_loop import ClosedLoop
    from commtax.verbs.comparing import Comparison, PlanTable
    from commtax.verbs.expecting import Expectation
    from commtax.verbs.fitting import Fit
    from commtax.verbs.requests import RequestsInTime
    from commtax.verbs.train_fitting import TrainFit
    from commtax.verbs.why import Why
    from commtax.verbs.worth import Worth


WIDTH, HEIGHT = 80, 24  # a screen
FRAMES = ("pandas", "polars")
READ_ALOUD = ("Comparison", "Expectation", "PlanTable", "ServingPlans", "TrainPlans", "FleetPlans", "SeveralPlans")
"""Answers for which the command says how it read the cluster's name, beside what their own notes tell."""


class _Full(Exception):  # noqa: N818
    """A screen has no more lines."""


class Screen:
    """A console of so many lines; what would come after them is not even computed."""

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
    """The first screen of what the command prints."""
    screen = Screen()
    try:
        manner_of(answer).show(screen, answer)
    except _Full:
        screen.lines[HEIGHT - 1 :] = ["… (to_frame() and to_dict() have all of it)"]
    return "\n".join(screen.lines)


def to_html(answer: object) -> str:
    """What the command prints, as a notebook's page with a picture."""
    from commtax.report.answer_pages import Recorder, to_page

    console, manner = Recorder(), manner_of(answer)
    manner.show(console, answer)
    return to_page(console.printed, manner.draw(answer))


def to_dict(answer: object) -> Record:
    """What the command prints with ``--json``."""
    made = to_object(manner_of(answer).document(answer))
    if type(answer).__name__ in READ_ALOUD:
        asked = getattr(answer, "answers", [answer])[0]
        if remark := getattr(asked, "question", asked).cluster.remark:
            said = made.get("notes")
            made["notes"] = list(dict.fromkeys([*(said if isinstance(said, list) else []), remark]))
    return made


def to_frame(answer: object, library: str = "") -> object:
    """Rows as a table of pandas or polars."""
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
    """Lists become text, records in a record columns of their own."""
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


TOP = 10  # plans that a document lists, as ``plan`` does by default
Rows = list[Record]
T = TypeVar("T", contravariant=True)


@dataclass(frozen=True, slots=True)
class Manner(Generic[T]):
    """How a kind of answer is told."""

    show: Callable[[Console, T], None]
    document: Callable[[T], object]
    rows: Callable[[T], Rows]
    plot: Callable[[T, Path | None], Figure]
    draw: Callable[[T], str] = lambda _: ""  # a picture for its page


def manner_of(answer: object) -> Manner[object]:
    """How this answer is told: as its kind is, or as a table where sizes that were asked for are arrays."""
    from commtax.report import comparisons

    if comparisons.is_grid(answer):
        return Manner(comparisons.show_grid, comparisons.grid_document, comparisons.grid_rows, comparisons.plot_grid)
    known = {**KINDS, **manners}
    return cast("Manner[object]", next(known[one.__name__]() for one in type(answer).__mro__ if one.__name__ in known))


def _bars(
    rows: Callable[[T], Iterable[BarRow]], unit: str, title: Callable[[T], str], colours: Callable[[T], list[str]] = lambda _: []
) -> Callable[[T, Path | None], Figure]:

    def plot(answer: T, path: Path | None) -> Figure:
        from commtax.report.plots import plot_bars

        return plot_bars(list(rows(answer)), unit, title(answer), path, colours(answer))

    return plot


class AskedAnswer(Protocol):
    @property
    def question(self) -> Question: ...


def _asked(answer: AskedAnswer) -> str:
    from commtax.verbs.settling import describe_gpus

    q = answer.question
    return f"{q.model.key} on {q.cluster.key}: {describe_gpus(q.plan)}"


def _bill() -> Manner[StepBill]:
    from commtax.report import bills
    from commtax.report.answer_pages import COMPUTE, EXPOSED, layer_picture
    from commtax.verbs.billing import by_cost
    from commtax.verbs.explained_step import ExplainedStep

    def name(x: Line) -> str:
        return f"{x.item.axis} {x.item.what} {x.item.op}" if x.kind == "comm" else str(x.item.what)

    kinds = {"comm": "communication"}
    return Manner(
        lambda console, b: bills.show_bill(console, ExplainedStep(b)),
        lambda b: bills.bill_document(ExplainedStep(b)),
        lambda b: [record("bill-line", line=x) | {"kind": kinds.get(x.kind, x.kind)} for x in by_cost(b)],
        _bars(
            lambda b: [(name(x), float(x.exposed_s)) for x in by_cost(b)],
            "s",
            _asked,
            lambda b: [EXPOSED if x.kind == "comm" else COMPUTE for x in by_cost(b)],
        ),
        lambda b: layer_picture(ExplainedStep(b).layer),
    )


def _traffic() -> Manner[Traffic]:
    from commtax.report import exact_bytes

    def sent(t: Traffic) -> list[BarRow]:
        return [(f"{x.item.axis} {x.item.what} {x.item.op}", float(x.item.sent_bytes_per_rank)) for x in t.lines]

    return Manner(
        exact_bytes.show_traffic,
        exact_bytes.traffic_document,
        lambda t: [record("exact-line", line=line) for line in t.lines],
        _bars(sent, "bytes", lambda t: f"{_asked(t)}: sent per rank and step"),
    )


def _fit() -> Manner[Fit | TrainFit]:
    from commtax.report import exact_bytes

    def held(judged: Fit | TrainFit) -> list[BarRow]:
        return [(name, size) for name, size, _ in exact_bytes.held_parts(judged)]

    def rows(judged: Fit | TrainFit) -> Rows:
        whole = judged.question.cluster.chip.visible_bytes
        parts = exact_bytes.held_parts(judged)
        return [{"part": name, "nbytes": size, "share": size / whole, "note": note} for name, size, note in parts]

    return Manner(
        exact_bytes.show_fit,
        exact_bytes.fit_document,
        rows,
        _bars(held, "bytes", lambda f: f"{_asked(f)}: held per rank"),
    )


def _closed_loop() -> Manner[ClosedLoop]:
    from commtax.report import closed_loop
    from commtax.report.plots import plot_latencies

    def show(console: Console, s: ClosedLoop) -> None:
        (closed_loop.show_simulations if np.ndim(s.requests.concurrency) else closed_loop.show_simulation)(console, s)

    return Manner(
        show,
        closed_loop.simulation_document,
        lambda s: [dict(run) for run in closed_loop.simulation_runs(s)],
        lambda s, path: plot_latencies(closed_loop.simulation_runs(s), _asked(s), path),
    )


def _requests() -> Manner[RequestsInTime]:
    from commtax.report import requests
    from commtax.report.requests import plot_outcome
    from commtax.verbs.examining import Slo

    return Manner(
        lambda console, o: requests.show_outcome(console, o, Slo()),
        lambda o: requests.outcome_document(o, Slo()),
        lambda o: [dict(zip(o.columns, row, strict=True)) for row in zip(*o.columns.values(), strict=True)],
        plot_outcome,
    )


def _comparison() -> Manner[Comparison]:
    from commtax.report import comparisons as shown

    return Manner(shown.show_comparison, shown.comparison_document, shown.comparison_rows, shown.plot_comparison)


def _plan_table() -> Manner[PlanTable]:
    from commtax.report import comparisons as shown

    return Manner(shown.show_plans, shown.plans_document, shown.plan_rows, shown.plot_plans)


def _expectation() -> Manner[Expectation]:
    from commtax.report import bills

    def title(e: Expectation) -> str:
        return f"{e.op} of {format_bytes(e.nbytes)} on {e.cluster.key}: {format_seconds(e.seconds)}"

    return Manner(
        lambda console, e: bills.show_expectation(console, e, None),
        lambda e: bills.expectation_document(e, None),
        lambda e: [bills.expectation_document(e, None)],
        _bars(lambda e: [("latency", float(e.latency_s)), ("wire", float(e.wire_s))], "s", title),
    )


def _why() -> Manner[Why]:
    from commtax.report import bills

    return Manner(
        bills.show_why,
        bills.why_document,
        lambda w: [{"part": part.name, "why": part.what, "seconds": part.seconds} for part in w.explanation.parts],
        _bars(lambda w: [(part.name, part.seconds) for part in w.explanation.parts], "s", lambda w: f"{w.line}: one launch"),
    )


def _worth() -> Manner[Worth]:
    from commtax.report import worths

    def gains(w: Worth) -> list[BarRow]:
        return [(row.name, row.gain - 1, row.low - 1, row.high - 1) for row in w.here]

    return Manner(
        worths.show_worth,
        worths.worth_document,
        lambda w: [worths.worth_row(row) | {"pays": worths.pays_text(row, bool(w.swept))} for row in w.rows],
        _bars(gains, "%", lambda w: f"{_asked(w)}: gain of each technique"),
    )


def _serving_plans() -> Manner[ServingPlans]:
    from commtax.report import plan_tables, planning
    from commtax.report.answer_pages import layer_picture
    from commtax.report.view.pictures import plot_front
    from commtax.verbs.explained_step import layer_of

    return Manner(
        lambda console, a: planning.show_plans(console, a, TOP),
        lambda a: planning.plans_document(a, TOP),
        plan_tables.served_rows,
        plot_front,
        lambda a: layer_picture(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    )


def _train_plans() -> Manner[TrainPlans]:
    from commtax.report import plan_tables, planning
    from commtax.report.answer_pages import layer_picture
    from commtax.verbs.explained_step import layer_of

    def speeds(a: TrainPlans) -> list[BarRow]:
        return [(a.whole_words(a.plans, i), float(a.plans.mfu[i])) for i in range(min(TOP, len(a.plans)))]

    return Manner(
        lambda console, a: planning.show_plans(console, a, TOP),
        lambda a: planning.plans_document(a, TOP),
        plan_tables.trained_rows,
        _bars(speeds, "%", lambda a: f"{a.question.model.key} on {a.question.cluster.key}: MFU of the best plans"),
        lambda a: layer_picture(layer_of(a.step_of(a.plans, a.recommended))) if len(a.plans) else "",
    )


def _fleets() -> Manner[FleetPlans]:
    from commtax.report import fleets

    return Manner(
        fleets.show_fleets,
        fleets.fleets_document,
        fleets.fleet_rows,
        _bars(lambda a: [(fleets.gpu_words(one), float(one.gpus)) for one in a.plans], "GPUs", lambda a: a.question.model.key),
    )


def _several() -> Manner[SeveralPlans]:
    from commtax.report import several_clusters as shown

    def costs(a: SeveralPlans) -> list[BarRow]:
        placed = (
            (one, f"{one.answer.question.cluster.key}: {one.answer.gpu_words(one.answer.plans, one.row)}") for one in a.listed(TOP)
        )
        return [(name, float(one.money.usd_per_million_tokens or 0.0)) for one, name in placed]

    return Manner(
        lambda console, a: shown.show_several(console, a, TOP),
        lambda a: shown.several_document(a, TOP),
        shown.several_rows,
        _bars(costs, "$ per million tokens", lambda a: a.answers[0].question.model.key),
    )


def _pipeline() -> Manner[PipelineRun]:
    from commtax.report import pipelines

    return Manner(
        pipelines.show_pipeline,
        pipelines.pipeline_document,
        pipelines.pipeline_rows,
        pipelines.plot_pipeline,
        lambda ran: pipelines.to_svg(ran.timeline, ground="none"),
    )


KINDS: dict[str, Callable[[], object]] = {
    "StepBill": _bill,
    "Traffic": _traffic,
    "Fit": _fit,
    "TrainFit": _fit,
    "ClosedLoop": _closed_loop,
    "RequestsInTime": _requests,
    "Comparison": _comparison,
    "PlanTable": _plan_table,
    "Expectation": _expectation,
    "Why": _why,
    "Worth": _worth,
    "ServingPlans": _serving_plans,
    "TrainPlans": _train_plans,
    "FleetPlans": _fleets,
    "SeveralPlans": _several,
    "PipelineRun": _pipeline,
}
"""By the names of the classes: whoever shows one kind imports nothing of the others."""
