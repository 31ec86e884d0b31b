"""A running server against its prediction: looks at its metrics, what happened between them and in the tails, and its audit."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.runs.evidence.finding import Audit, Claim, Finding, Section
from commtax.runs.results import bench_audit
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, ExpectedFigures, load_of, predict_run
from commtax.runs.results.exposition import (
    LEVEL,
    METRICS,
    Exposition,
    LookAtServer,
    bounds_text,
    lengths_of_requests,
    quantile_bounds,
    run_of,
)
from commtax.statement import Note
from commtax.units import format_seconds
from commtax.verbs.explain import counterfactuals, verdict

TITLES = {"ttft": "TTFT", "itl": "ITL", "e2el": "E2E"}
TAIL = "p99"


def tail_bounds(page: Exposition) -> dict[str, tuple[float, float]]:
    """Return the bucket that holds the tail of each time, by metric."""
    bounds_by_metric: dict[str, tuple[float, float]] = {}
    for name, metric in METRICS.items():
        bounds = quantile_bounds(page.buckets.get(name, {}), LEVEL.tail)
        if bounds[1] > 0 and metric in TITLES:
            bounds_by_metric.setdefault(metric, bounds)
    return bounds_by_metric


def tail_findings(page: Exposition, predicted: ExpectedFigures | None) -> Iterator[Finding]:
    """Yield each tail as its bucket, beside the range of its prediction and without a verdict."""
    for metric, (low, high) in tail_bounds(page).items():
        item = Note(f"{metric}_{TAIL}", f"{TITLES[metric]} ({TAIL}): {bounds_text(low, high)}")
        figure = predicted.of(metric, TAIL) if predicted else None
        if figure is None:
            yield Finding(item, None, None, "s", reason="bounds of its bucket", remark=True)
        else:
            place = "above" if low > figure.high else "below" if high < figure.low else "which meets"
            predicted_range = f"{format_seconds(figure.low)} to {format_seconds(figure.high)}"
            text = f"bounds of its bucket, {place} the 80% range {predicted_range}"
            yield Finding(item, figure.value, None, "s", math.inf, text, low=figure.low, high=figure.high, remark=True)


KIND = "metrics"
IDLE = "idle"  # code of the note of a window without requests
RESTARTED = "restarted"
BINDS = "binds"


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """What a server did between two looks at it, or since it started where ``seconds`` is None."""

    page: Exposition  # differences of totals, and the gauges of the last look
    seconds: float | None
    whole: Exposition  # the last look itself
    restarted: bool = False  # since the look before

    @property
    def idle(self) -> bool:
        """Whether no token came."""
        return not self.page.named("output_tokens") and not any(v > 0 for n, v in self.page.totals.items() if n.endswith("_count"))


class LooksAtServer:
    """The looks of the last ``window_s`` seconds, the newest beside the oldest."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._looks: deque[LookAtServer] = deque()

    def add(self, look: LookAtServer) -> MetricsWindow:
        """Return what happened up to this look, or since the server started for the first look and the first after a restart."""
        restarted = bool(self._looks) and look.page.restarted_since(self._looks[-1].page)
        if restarted:
            self._looks.clear()
        self._looks.append(look)
        while len(self._looks) > 2 and look.at_s - self._looks[1].at_s >= self.window_s:
            self._looks.popleft()
        first = self._looks[0]
        if look.at_s <= first.at_s:
            return MetricsWindow(look.page, None, look.page, restarted)
        return MetricsWindow(look.page.since(first.page), look.at_s - first.at_s, look.page)


@dataclass(frozen=True, slots=True)
class ServerAudit:
    """One comparison: the audit, what was measured, and what was predicted for that load, where it could be."""

    audited: Audit
    run: BenchmarkRun
    window: MetricsWindow
    predicted: ExpectedFigures | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.audited.findings


def audit_server(window: MetricsWindow, claim: Claim | None, name: str) -> ServerAudit:
    """Audit what a server did in a window."""
    run = run_of(window.page, window.seconds)
    (prompt, answer), (usual_prompt, usual_answer) = map(lengths_of_requests, (window.page, window.whole))
    clients = (claim.batch if claim else None) or run.concurrency
    facts = dict(run.facts) | ({"mean concurrency": f"{run.concurrency:.3g}"} if run.concurrency else {})
    lengths = prompt or usual_prompt, answer or usual_answer
    run = replace(run, lengths=lengths, concurrency=max(1, round(clients)) if clients else None, facts=facts)
    if window.idle:
        idle = Section(KIND, (name,), (), tuple(_window_notes(window)), facts=run.facts)
        return ServerAudit(Audit(claim, (idle,)), run, window)
    predicted = _predict(run, claim) if claim else None
    judged = bench_audit.audit_bench((run,), claim, name)
    tails = tuple(tail_findings(window.page, predicted))
    notes = [*_window_notes(window), *(n for n in judged.notes if n.code not in ("results", "since-start"))]
    if claim and predicted:
        step = claim.bill("decode", max(1, round(predicted.running)), predicted.load.prompt + predicted.load.answer // 2)
        notes.append(Note(BINDS, f"a predicted step: {verdict(step, counterfactuals(step))}"))
    # Each tail behind the mean of its time.
    findings: list[Finding] = []
    for finding in judged.findings:
        metric, _, statistic = finding.code.partition("_")
        tails_of_metric = [t for t in tails if t.code.partition("_")[0] == metric and statistic == "mean"]
        findings += [finding, *tails_of_metric]
    section = replace(judged, kind=KIND, findings=tuple(findings), notes=tuple(notes))
    return ServerAudit(Audit(claim, (section,)), run, window, predicted)


def _predict(run: BenchmarkRun, claim: Claim) -> ExpectedFigures | None:
    """Predict the figures of the run's load, or return None where the load is unclear or does not fit."""
    try:
        load = load_of(run, claim)
        return predict_run(run, load, claim) if isinstance(load, BenchmarkLoad) else None
    except ValueError:
        return None


def _window_notes(window: MetricsWindow) -> list[Note]:
    """Note the time that the window covers, and what is odd about it."""
    since = "counters since the server started, with warm-up and other loads; a window of time (--window) tells what it does now"
    span = since if window.seconds is None else f"differences of two looks, {format_seconds(window.seconds)} apart"
    notes = [Note("window", span)]
    if window.restarted:
        notes.append(Note(RESTARTED, "the server was restarted since the last look: counted from its start again"))
    if window.idle:
        notes.append(Note(IDLE, "no request was answered in this time, so there is nothing to compare"))
    return notes
