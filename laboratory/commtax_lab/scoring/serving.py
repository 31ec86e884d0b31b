"""Tables of serving runs, priced whole: runs that differ in sizes, clients and lengths alone are one question of arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from commtax.statement import Refusal
from commtax.verbs.asking import settled
from commtax.verbs.billing import price
from commtax.verbs.serving import Simulation, simulate
from commtax_lab.published import serving
from commtax_lab.published.rows import Asked, Entry, read
from commtax_lab.published.spellings import spelled_run
from commtax_lab.published.tables import Table
from commtax_lab.scoring.apart import UNFIT, impossible
from commtax_lab.scoring.floors import holds_weights, least_s
from commtax_lab.scoring.records import Array, Predicted, Records, answers

ARRAYS = ("tp", "dp", "ep", "concurrency", "input_len", "output_len", "num_prompts", "spread")
Scores = Mapping[str, Predicted]
"""Of one run, by kind."""


def answered(table: Table) -> Records:
    """Every figure of every row with its prediction, or with the reason why it has none."""
    asked = read([spelled_run(row) for row in table.dicts()], serving.describe, serving.ask)
    scores: dict[int, Scores | str] = {}
    for runs in _alike(asked):
        scores.update(zip(map(id, runs), _scored(runs), strict=True))

    def predict(run: serving.Run, entries: Sequence[Entry]) -> list[Predicted]:
        known = scores[id(run)]
        if isinstance(known, str):
            raise Refusal(known)
        return [replace(known[entry.kind], hint="") if entry.hint else known[entry.kind] for entry in entries]

    return impossible(answers(asked, predict))


def _alike(asked: Sequence[Asked[serving.Run]]) -> Iterator[list[serving.Run]]:
    """Runs of one engine, model, place and format; workers apart are asked for one run at a time."""
    groups: dict[object, dict[int, serving.Run]] = {}
    for run in (one.question for one in asked if one.question is not None):
        words = tuple((name, str(value)) for name, value in run.items() if name not in (*ARRAYS, "model", "cluster"))
        key = id(run) if run.get("disaggregated") else (id(run["model"]), run["model"].quant, run["cluster"].key, words)
        groups.setdefault(key, {})[id(run)] = run
    return (list(runs.values()) for runs in groups.values())


def _scored(runs: Sequence[serving.Run]) -> list[Scores | str]:
    """All at once; one by one where one of them has no answer."""
    try:
        return list(_together(runs))
    except ValueError as error:
        return [str(error)] if len(runs) == 1 else [score for run in runs for score in _scored([run])]


def _together(runs: Sequence[serving.Run]) -> Iterator[Scores | str]:
    words = {name: value for name, value in runs[0].items() if name not in ARRAYS}
    sizes = {name: np.array([cast(dict[str, float], run)[name] for run in runs]) for name in ARRAYS}
    one = cast(serving.Run, {**words, **(sizes if len(runs) > 1 else {name: values[0].item() for name, values in sizes.items()})})
    simulated = simulate(**one)
    columns = {kind: [np.broadcast_to(x, len(runs)) for x in figure(simulated)] for kind, figure in FIGURES.items()}
    waits = np.broadcast_to(simulated.running * simulated.question.plan.dp < simulated.requests.concurrency, len(runs))
    legal, fits = (np.broadcast_to(x, len(runs)) for x in (simulated.legal, _fits(simulated)))
    for i, wait in enumerate(waits):
        if not legal[i]:  # alone it says which rule it breaks
            yield _scored([runs[i]])[0]
            continue
        hint = "requests wait for the cache" if wait else "launch options are not said"
        away = "" if fits[i] else UNFIT
        yield {
            kind: Predicted(float(v[i]), float(low[i]), float(high[i]), float(f[i]), hint, away)
            for kind, (v, low, high, f) in columns.items()
        }


def _fits(s: Simulation) -> Array:
    """Whether every worker's weights go into its memory."""
    fits = holds_weights(s.question)
    return fits & holds_weights(s.question, s.apart.plan) if s.apart else fits


def _time(name: str, phase: str) -> Callable[[Simulation], tuple[Array, ...]]:
    return lambda s: (getattr(s, name), *s.range_of(name), floor(s, phase))


def _rate(tokens: Callable[[Simulation], Array]) -> Callable[[Simulation], tuple[Array, ...]]:
    """So many a second of what each request has; as sure as the tokens a second are."""

    def figure(s: Simulation) -> tuple[Array, ...]:
        each = tokens(s) / s.requests.output_len
        return *(each * x for x in (s.tokens_per_s, *s.range_of("tokens_per_s"))), 0.0

    return figure


def _whole(s: Simulation) -> tuple[Array, ...]:
    """Seconds of a request: as sure as the rate that follows from them."""
    low, high = s.range_of("tokens_per_s")
    return (
        s.e2e_s,
        s.e2e_s * s.tokens_per_s / high,
        s.e2e_s * s.tokens_per_s / low,
        floor(s, "decode") * (s.requests.output_len - 1),
    )


def _interactivity(s: Simulation) -> tuple[Array, ...]:
    """Tokens a second that one user sees after the first: 1 / TPOT."""
    low, high = s.range_of("tpot_s")
    return 1 / s.tpot_s, 1 / high, 1 / low, floor(s, "decode")


FIGURES: dict[str, Callable[[Simulation], tuple[Array, ...]]] = {
    "ttft": _time("ttft_s", "prefill"),
    "tpot": _time("tpot_s", "decode"),
    "e2e": _whole,
    "throughput": _rate(lambda s: s.requests.output_len),
    "total-rate": _rate(lambda s: s.requests.input_len + s.requests.output_len),
    "input-rate": _rate(lambda s: s.requests.input_len),
    "request-rate": _rate(lambda s: np.ones_like(s.requests.output_len, dtype=float)),
    "interactivity": _interactivity,
}
"""Value, range and what physics allows at the least, of each kind of figure."""


def floor(simulated: Simulation, phase: str) -> Array:
    """Bytes over bandwidth and FLOPs over peak of the decode step, or of the request's own prompt."""
    batch = np.maximum(1, np.floor(simulated.running)) if phase == "decode" else np.ones_like(simulated.running)
    try:
        return least_s(price(settled(simulated.question.but(phase=phase, batch=batch, context=simulated.requests.input_len))))
    except ValueError:
        return np.zeros_like(simulated.running)
