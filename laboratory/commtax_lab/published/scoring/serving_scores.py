"""Tables of serving runs, priced whole: runs that differ in sizes, clients and lengths alone are one question of arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from commtax import counting
from commtax.arrays import Array
from commtax.spec import Number
from commtax.statement import Refusal
from commtax.verbs.billing import price
from commtax.verbs.closed_loop import ClosedLoop, simulate
from commtax_lab.published import serving_rows
from commtax_lab.published.rows import PublishedFigure, RowQuestion, read
from commtax_lab.published.scoring.excluded_rows import UNFIT, exclude_impossible, holds_weights, least_s
from commtax_lab.published.scoring.prediction_columns import Prediction, Records, answers
from commtax_lab.published.spellings import spelled_run
from commtax_lab.published.tables import Table

ARRAYS = ("tp", "dp", "ep", "concurrency", "input_len", "output_len", "num_prompts", "spread")
Scores = Mapping[str, Prediction]
"""Of one run, by kind."""


def score_table(table: Table) -> Records:
    """Predict every figure of every row, or give the reason why it has no prediction."""
    rows = read([spelled_run(row) for row in table.dicts()], serving_rows.describe, serving_rows.ask)
    scores: dict[int, Scores | str] = {}
    for runs in counting.counted(list(_group_alike(rows))):
        scores.update(zip(map(id, runs), _score_runs(runs), strict=True))

    def predict(run: serving_rows.SimulateArguments, entries: Sequence[PublishedFigure]) -> list[Prediction]:
        outcome = scores[id(run)]
        if isinstance(outcome, str):
            raise Refusal(outcome)
        return [replace(outcome[entry.kind], hint="") if entry.hint else outcome[entry.kind] for entry in entries]

    return exclude_impossible(answers(rows, predict))


def _group_alike(rows: Sequence[RowQuestion[serving_rows.SimulateArguments]]) -> Iterator[list[serving_rows.SimulateArguments]]:
    """Group runs by engine, model, place and format, with disaggregated runs one at a time."""
    groups: dict[object, dict[int, serving_rows.SimulateArguments]] = {}
    for run in (one.question for one in rows if one.question is not None):
        words = tuple((name, str(value)) for name, value in run.items() if name not in (*ARRAYS, "model", "cluster"))
        key = id(run) if run.get("disaggregated") else (id(run["model"]), run["model"].quant, run["cluster"].key, words)
        groups.setdefault(key, {})[id(run)] = run
    return (list(runs.values()) for runs in groups.values())


def _score_runs(runs: Sequence[serving_rows.SimulateArguments]) -> list[Scores | str]:
    """Score all runs at once, or one by one where one of them has no answer."""
    try:
        return list(_score_together(runs))
    except ValueError as error:
        return [str(error)] if len(runs) == 1 else [score for run in runs for score in _score_runs([run])]


def _score_together(runs: Sequence[serving_rows.SimulateArguments]) -> Iterator[Scores | str]:
    words = {name: value for name, value in runs[0].items() if name not in ARRAYS}
    sizes = {name: np.array([cast(dict[str, float], run)[name] for run in runs]) for name in ARRAYS}
    one = cast(
        serving_rows.SimulateArguments,
        {**words, **(sizes if len(runs) > 1 else {name: values[0].item() for name, values in sizes.items()})},
    )
    simulated = simulate(**one)
    columns = {kind: [np.broadcast_to(x, len(runs)) for x in figure(simulated)] for kind, figure in FIGURES.items()}
    waits = np.broadcast_to(simulated.running * simulated.question.plan.dp < simulated.requests.concurrency, len(runs))
    legal, fits = (np.broadcast_to(x, len(runs)) for x in (simulated.legal, _weights_fit(simulated)))
    for i, wait in enumerate(waits):
        if not legal[i]:  # alone it says which rule it breaks
            yield _score_runs([runs[i]])[0]
            continue
        hint = "requests wait for the cache" if wait else "launch options are not said"
        away = "" if fits[i] else UNFIT
        yield {
            kind: Prediction(float(v[i]), float(low[i]), float(high[i]), float(f[i]), hint, away)
            for kind, (v, low, high, f) in columns.items()
        }


def _weights_fit(s: ClosedLoop) -> Array:
    """Return whether every worker's weights fit in its memory."""
    fits = holds_weights(s.question)
    return fits & holds_weights(s.question, s.apart.plan) if s.apart else fits


def _time_figure(name: str, phase: str) -> Callable[[ClosedLoop], tuple[Number, ...]]:
    return lambda s: (getattr(s, name), *s.range_of(name), floor(s, phase))


def _rate_figure(tokens: Callable[[ClosedLoop], Number]) -> Callable[[ClosedLoop], tuple[Number, ...]]:
    """Return so many per second of what each request has, as certain as the tokens per second are."""

    def figure(s: ClosedLoop) -> tuple[Number, ...]:
        each = tokens(s) / s.requests.output_len
        return *(each * x for x in (s.tokens_per_s, *s.range_of("tokens_per_s"))), 0.0

    return figure


def _request_seconds(s: ClosedLoop) -> tuple[Number, ...]:
    """Return the seconds of a request, as certain as the rate that follows from them."""
    low, high = s.range_of("tokens_per_s")
    return (
        s.e2e_s,
        s.e2e_s * s.tokens_per_s / high,
        s.e2e_s * s.tokens_per_s / low,
        floor(s, "decode") * (s.requests.output_len - 1),
    )


def _interactivity(s: ClosedLoop) -> tuple[Number, ...]:
    """Return the tokens per second that one user sees after the first: 1 / TPOT."""
    low, high = s.range_of("tpot_s")
    return 1 / s.tpot_s, 1 / high, 1 / low, floor(s, "decode")


FIGURES: dict[str, Callable[[ClosedLoop], tuple[Number, ...]]] = {
    "ttft": _time_figure("ttft_s", "prefill"),
    "tpot": _time_figure("tpot_s", "decode"),
    "e2e": _request_seconds,
    "throughput": _rate_figure(lambda s: s.requests.output_len),
    "total-rate": _rate_figure(lambda s: s.requests.input_len + s.requests.output_len),
    "input-rate": _rate_figure(lambda s: s.requests.input_len),
    "request-rate": _rate_figure(lambda s: np.ones_like(s.requests.output_len, dtype=float)),
    "interactivity": _interactivity,
}
"""Value, range and what physics allows at the least, of each kind of figure."""


def floor(simulated: ClosedLoop, phase: str) -> Number:
    """Return the least time of the decode step, or of the request's prompt, that bandwidth and peak FLOPs allow."""
    batch = np.maximum(1, np.floor(simulated.running)) if phase == "decode" else np.ones_like(simulated.running)
    try:
        return least_s(price(simulated.question.but(phase=phase, batch=batch, context=simulated.requests.input_len)))
    except ValueError:
        return np.zeros_like(simulated.running)
