"""Runs of one load that were made several times: one figure of them, and how well the deployment repeats itself.

A machine that others use, or that computes in bursts, gives another figure each time. What repeats of a deployment differ by,
all its loads together, replaces the usual noise as they grow in number (as ``freedom`` in ``catalog/posterior.toml`` says); less
than the usual noise changes nothing, for that holds also what differs from load to load.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import numpy as np

from commtax.catalog.posterior import beliefs
from commtax.options import options
from commtax.runs.calibrate.measurements import Measured, MeasuredRun, MeasuredStep, Repetition

LOAD = ("requests.", "offered.")  # parts of a question that say how a deployment was used, and not what it is
T = TypeVar("T")
Named = tuple[str, ...]  # who or what a run is, as something to sort and to look up by


def distinct_runs(runs: Iterable[Measured]) -> list[Measured]:
    """Each run once, in an order of their own: neither the order of files nor a copy of one changes anything."""
    known = {
        (*question_of(run), repr(sorted(run.measured.items()))): run
        for run in sorted(runs, key=lambda run: run.label, reverse=True)
    }
    return [known[key] for key in sorted(known)]


def question_of(run: Measured) -> Named:
    """What a run answers: its deployment and its load. Repeats answer the same."""
    work = repr(run.work) if isinstance(run, MeasuredStep) else ""
    return (str(run.model), run.cluster.key, repr(sorted(run.options.items(), key=str)), work)


def _deployment_of(run: MeasuredRun) -> Named:
    known = options()
    said = sorted((name, value) for name, value in run.options.items() if not known[name].field.startswith(LOAD))
    return (str(run.model), run.cluster.key, repr(said))


def join_repeats(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """One run for each load, with the median of its repeats, how many there were, and what the deployment scatters by."""
    loads = _grouped((question_of(run), run) for run in runs)
    deployments = _grouped((_deployment_of(repeats[0]), repeats) for repeats in loads.values())
    scatter = {name: _scatter(series) for name, series in deployments.items()}
    return [_joined(repeats, scatter[_deployment_of(repeats[0])]) for repeats in loads.values()]


def _grouped(pairs: Iterable[tuple[Named, T]]) -> dict[Named, list[T]]:
    found: dict[Named, list[T]] = {}
    for name, one in pairs:
        found.setdefault(name, []).append(one)
    return found


def _scatter(loads: Sequence[Sequence[MeasuredRun]]) -> dict[str, float]:
    """Of one run of a deployment, by metric, beyond the usual noise: from what repeats of each load differ by."""
    known, found = beliefs(), {}
    for metric in {metric for repeats in loads for run in repeats for metric in run.measured}:
        logs = [np.log(_seconds(repeats, metric)) for repeats in loads]
        free = sum(max(0, len(one) - 1) for one in logs)
        squares = sum(float(((one - one.mean()) ** 2).sum()) for one in logs if len(one) > 1)
        usual = known.smooth["ttft" if metric == "ttft" else "tpot"].noise
        found[metric] = float(np.sqrt(max(0.0, squares - free * usual**2) / (known.freedom + free)))
    return found


def _seconds(repeats: Iterable[MeasuredRun], metric: str) -> list[float]:
    return [run.measured[metric] for run in repeats if metric in run.measured]


def _joined(repeats: Sequence[MeasuredRun], scatter: Mapping[str, float]) -> MeasuredRun:
    labels = sorted({run.label for run in repeats})
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and its repeats"
    timed = {metric: _seconds(repeats, metric) for metric in scatter}
    timed = {metric: seconds for metric, seconds in timed.items() if seconds}
    return replace(
        repeats[0],
        measured={metric: median(seconds) for metric, seconds in timed.items()},
        noise={metric: max(run.noise.get(metric, 1.0) for run in repeats) for metric in timed},
        repeated={metric: Repetition(len(seconds), scatter[metric]) for metric, seconds in timed.items()},
        label=label,
    )
