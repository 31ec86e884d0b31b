"""A running server against its prediction: looks at its metrics, what happened between them and in the tails, and its audit."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.runs.evidence.finding import Audit, Claim, Finding, Section
from commtax.runs.results import bench_audit
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, ExpectedFigures, Figure, load_of, predict_run
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
    """The bucket that holds the tail of each time, by metric."""
    found: dict[str, tuple[float, float]] = {}
    for name, metric in METRICS.items():
        bounds = quantile_bounds(page.buckets.get(name, {}), LEVEL.tail)
        if bounds[1] > 0 and metric in TITLES:
            found.setdefault(metric, bounds)
    return found


def tail_findings(page: Exposition, predicted: ExpectedFigures | None) -> Iterator[Finding]:
    """Each tail as its bucket, beside the range of its prediction; a range is told and not judged."""
    for metric, (low, high) in tail_bounds(page).items():
        item = Note(f"{metric}_{TAIL}", f"{TITLES[metric]} ({TAIL}): {bounds_text(low, high)}")
        figure = predicted.of(metric, TAIL) if predicted else None
        if figure is None:
            yield Finding(item, None, None, "s", reason="bounds of its bucket", told=True)
        else:
            said = f"bounds of its bucket, {_place_words(low, high, figure)}"
            yield Finding(item, figure.value, None, "s", math.inf, said, low=figure.low, high=figure.high, told=True)


def _place_words(low: float, high: float, figure: Figure) -> str:
    """Where a bucket lies beside the range of a prediction."""
    place = "above" if low > figure.high else "below" if high < figure.low else "which meets"
    return f"{place} the 80% range {format_seconds(figure.low)} to {format_seconds(figure.high)}"


KIND = "metrics"
IDLE = "idle"  # code of the note of a window in which nothing was asked
RESTARTED = "restarted"
BINDS = "binds"


@dataclass(frozen=True, slots=True)
class MetricsWindow:
    """What a server did between two looks at it; ``seconds`` None: since it started."""

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
        """What happened up to this look; of the first one, or the first after a restart, all since the server started."""
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
    """What a server did in a window, and whether it should have."""
    run = run_of(window.page, window.seconds)
    (prompt, answer), (usual_prompt, usual_answer) = map(lengths_of_requests, (window.page, window.whole))
    clients = (claim.batch if claim else None) or run.concurrency
    facts = dict(run.facts) | ({"mean concurrency": f"{run.concurrency:.3g}"} if run.concurrency else {})
    run = replace(
        run,
        lengths=(prompt or usual_prompt, answer or usual_answer),
        concurrency=max(1, round(clients)) if clients else None,
        facts=facts,
    )
    if window.idle:
        idle = Section(KIND, (name,), (), tuple(_window_notes(window)), facts=run.facts)
        return ServerAudit(Audit(claim, (idle,)), run, window)
    predicted = _predict(run, claim) if claim else None
    judged = bench_audit.audit_bench((run,), claim, name)
    tails = tuple(tail_findings(window.page, predicted))
    binds = (Note(BINDS, _binding_words(predicted, claim)),) if claim and predicted else ()
    notes = (*_window_notes(window), *(n for n in judged.notes if n.code not in ("results", "since-start")), *binds)
    # Each tail behind the mean of its time.
    found: list[Finding] = []
    for finding in judged.findings:
        own = [t for t in tails if t.code.partition("_")[0] == finding.code.partition("_")[0] and finding.code.endswith("_mean")]
        found += [finding, *own]
    section = replace(judged, kind=KIND, findings=tuple(found), notes=notes)
    return ServerAudit(Audit(claim, (section,)), run, window, predicted)


def _predict(run: BenchmarkRun, claim: Claim) -> ExpectedFigures | None:
    """The figures of its load; None where it is not known, or does not fit."""
    try:
        load = load_of(run, claim)
        return predict_run(run, load, claim) if isinstance(load, BenchmarkLoad) else None
    except ValueError:
        return None


def _binding_words(predicted: ExpectedFigures, claim: Claim) -> str:
    load = predicted.load
    step = claim.bill("decode", max(1, round(predicted.running)), load.prompt + load.answer // 2)
    return f"a predicted step: {verdict(step, counterfactuals(step))}"


def _window_notes(window: MetricsWindow) -> list[Note]:
    """Over which time it was looked, and what is odd about that."""
    since = "counters since the server started, with warm-up and other loads; a window of time (--window) tells what it does now"
    span = since if window.seconds is None else f"differences of two looks, {format_seconds(window.seconds)} apart"
    found = [Note("window", span)]
    if window.restarted:
        found.append(Note(RESTARTED, "the server was restarted since the last look: counted from its start again"))
    if window.idle:
        found.append(Note(IDLE, "no request was answered in this time, so there is nothing to compare"))
    return found
