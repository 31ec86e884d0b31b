"""Runs of engines in a profile's document: deployments, each with its runs, each with the latencies that it taught.

``[[deployment]]`` engine, version, chip, family, model, dtype, tp … ``[[deployment.run]]`` label, clients, lengths, and tables
``tpot`` and ``ttft`` of measured_s, catalogue_s, residual, noise, repeats, scatter and slopes. Of a profiled step, ``products``,
``attention`` … ``host`` instead (``spec.STEP_PARTS``): clients are the sequences in it, and input_len what they see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import islice

from commtax.catalog import physics
from commtax.catalog.loader import suggest
from commtax.catalog.physics import TableView
from commtax.records import dataclass, record_from
from commtax.spec import LATENCIES, MEASURED, Deployment, RunLesson
from commtax.spec.engine import HostTime, Paces
from commtax.statement import Refusal
from commtax.toml_text import shorten
from commtax.units import listed

SLOPES = frozenset(f.name for kind in (HostTime, Paces) for f in fields(kind) if f.type == "float")
"""Constants that a lesson may blame."""
_TEXTS = tuple(f.name for f in fields(Deployment) if f.type == "str")
_SWITCHES = tuple(f.name for f in fields(Deployment) if f.type == "bool")
_LEFT_OUT = {f.name: f.default for f in fields(Deployment) if f.default is not MISSING}  # what a deployment that does not say it is
_UNSAID = {f.name: f.default for f in fields(RunLesson) if f.name in physics.LATENCY and f.default is not MISSING}
"""What a latency that does not say it has."""
MOST = 1_000  # latencies of a profile: what they teach together takes time with the third power of their number


@dataclass(frozen=True, slots=True)
class TaughtRun:
    """One run or profiled step of a deployment: its times by metric, in the order of ``MEASURED``."""

    deployment: Deployment
    lessons: Mapping[str, RunLesson]

    @property
    def first(self) -> RunLesson:
        return next(iter(self.lessons.values()))


def read_lessons(rows: Iterable[object]) -> tuple[RunLesson, ...]:
    """Lessons of a document's deployments; what cannot be is refused by key and rule."""
    found = tuple(islice(_read_deployments(rows), MOST + 1))
    if len(found) > MOST:
        raise Refusal(f"deployment: more than the {MOST:,} latencies that are learnt from; leave some out", "deployment")
    return found


def _read_deployments(rows: Iterable[object]) -> Iterator[RunLesson]:
    for index, row in enumerate(rows):
        part = TableView.of(row, f"deployment[{index}]", "a table of a deployment")
        part.check_known({*(f.name for f in fields(Deployment)), "run"})
        facts: dict[str, object] = {key: part.text(key) for key in _TEXTS}
        facts |= {key: int(size) for key, size in part.some(physics.DEPLOYMENT).items()}
        facts |= {key: part.switch(key) for key in _SWITCHES if key in part.table}
        deployment = record_from(Deployment, facts)
        if not part.rows("run"):
            raise Refusal(f"{part.where} lacks run", part.named("run"))
        for i, run in enumerate(part.rows("run")):
            yield from _read_run(TableView.of(run, f"{part.where}.run[{i}]", "a table of a run"), deployment)


def _read_run(part: TableView, deployment: Deployment) -> Iterator[RunLesson]:
    part.check_known({"label", *physics.RUN, *MEASURED})
    asked = part.all_of(physics.RUN)
    if not any(metric in part.table for metric in MEASURED):
        raise Refusal(f"{part.where} lacks {' or '.join(LATENCIES)}", part.where)
    for metric in MEASURED:
        if metric in part.table:
            told = part.part(metric)
            told.check_known({*physics.LATENCY, "slopes"})
            needed = {key: rule for key, rule in physics.LATENCY.items() if key not in _UNSAID}
            facts: dict[str, object] = {**asked, **told.all_of(needed), **told.some(physics.LATENCY), "label": part.text("label")}
            yield record_from(
                RunLesson, {**facts, "deployment": deployment, "metric": metric, "slopes": _slopes(told.part("slopes"))}
            )


def _slopes(part: TableView) -> dict[str, float]:
    unknown = next((key for key in part.table if key not in SLOPES), "")
    if unknown:
        raise Refusal(f"unknown key '{part.named(unknown)}'{suggest(unknown, SLOPES)}", part.named(unknown))
    return part.numbers(dict.fromkeys(part.table, physics.SLOPE))


def runs_of(lessons: Iterable[RunLesson]) -> list[TaughtRun]:
    """Lessons of one run together: of one deployment, label and load. A run has one latency of each metric."""
    found: dict[tuple[object, ...], list[dict[str, RunLesson]]] = {}
    for lesson in lessons:
        load = (shorten(getattr(lesson, key)) for key in physics.RUN)
        runs = found.setdefault((lesson.deployment, lesson.label, *load), [])
        run = next((run for run in runs if lesson.metric not in run), None)
        if run is None:
            runs.append(run := {})
        run[lesson.metric] = lesson
    every = [{metric: run[metric] for metric in MEASURED if metric in run} for runs in found.values() for run in runs]
    return [TaughtRun(next(iter(run.values())).deployment, run) for run in every]


def deployment_rows(lessons: Iterable[RunLesson]) -> list[dict[str, object]]:
    """Deployments as they are written, each with its runs; sizes of 1 go without saying."""
    by: dict[Deployment, list[dict[str, object]]] = {}
    for run in runs_of(lessons):
        first = run.first
        label = {"label": first.label} if first.label else {}
        load = {key: getattr(first, key) for key in physics.RUN}
        run_row = {**label, **load, **{metric: _latency_row(lesson) for metric, lesson in run.lessons.items()}}
        by.setdefault(run.deployment, []).append(run_row)
    return [{**_deployment_row(deployment), "run": runs} for deployment, runs in by.items()]


def _deployment_row(deployment: Deployment) -> dict[str, object]:
    said = {f.name: getattr(deployment, f.name) for f in fields(Deployment)}
    return {key: value for key, value in said.items() if key == "tp" or (value != _LEFT_OUT.get(key) and value != "")}


def _latency_row(lesson: RunLesson) -> dict[str, object]:
    every = {key: getattr(lesson, key) for key in physics.LATENCY}
    told = {key: value for key, value in every.items() if key not in _UNSAID or shorten(value) != _UNSAID[key]}
    return {**told, **({"slopes": dict(lesson.slopes)} if lesson.slopes else {})}


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that is asked, and what was measured of its kind."""

    name: str
    asked: str
    seen: tuple[str, ...]

    @property
    def told(self) -> bool:
        return self.asked in self.seen

    @property
    def unseen(self) -> str:
        """What was asked and not seen, in words: ``tp 8 (seen 2 and 4)``."""
        return f"{self.name} {self.asked}" + (f" (seen {listed(self.seen)})" if self.seen else "")


def run_topics(lessons: Iterable[RunLesson], wanted: Mapping[str, str]) -> Iterator[Topic]:
    """Facts of a deployment that are asked for, beside what its runs had: those that are alike in all facts before."""
    runs = list(dict.fromkeys(lesson.deployment for lesson in lessons))
    for name, value in wanted.items():
        if value and runs:
            had = {getattr(run, name) for run in runs}
            yield Topic(name, value, tuple(str(x) for x in sorted(had) if x != ""))
            runs = [run for run in runs if str(getattr(run, name)) == value] or runs
