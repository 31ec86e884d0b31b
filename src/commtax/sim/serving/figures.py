"""What a run's book and logs add up to: columns of requests, gaps between tokens, what engines did."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from commtax.sim.serving.replica import LateTokens, Replica, StepSegment
from commtax.sim.serving.running import ServingRun

Array = np.ndarray
Columns = Mapping[str, Array]
MOST_PIECES = 64  # entries for the gaps of one segment
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def columns(run: ServingRun) -> dict[str, Array]:
    """Return one row per request: lengths, the times of its life and what follows from them. TTFT and E2E count from sending.

    TPOT is (E2E - TTFT) / (output - 1), not a number where there is one token. ``wait_s`` passes before it is sent, ``queue_s``
    from sending to its first step.
    """
    book = run.book
    arrival, sent, started, first, done = map(np.array, (book.arrival_s, book.sent_s, book.started_s, book.first_s, book.done_s))
    inputs, outputs = np.array(book.input_len), np.array(book.output_len)
    return {
        "arrival_s": arrival,
        "input_len": inputs,
        "output_len": outputs,
        "replica": np.array(book.served_by),
        "cached_tokens": np.array(book.cached),
        "preemptions": np.array(book.preemptions),
        "wait_s": sent - arrival,
        "queue_s": started - sent,
        "transfer_s": np.array(book.transfer_s),
        "preempted_s": np.array(book.preempted_s),
        "ttft_s": first - sent,
        "tpot_s": np.where(outputs > 1, (done - first) / np.maximum(1, outputs - 1), nan),
        "e2e_s": done - sent,
        "sent_s": sent,
        "first_s": first,
        "done_s": done,
    }


def segments(engines: Sequence[Replica]) -> dict[str, Array]:
    """Return the logs of all engines as columns, with the engine's number."""
    owner = np.repeat([engine.number for engine in engines], [len(engine.log) for engine in engines])
    return {**_columns([engine.log for engine in engines], StepSegment._fields), "engine": owner}


def late_tokens(engines: Sequence[Replica]) -> dict[str, Array]:
    """Return the tokens of all engines that came more than a step after those before them, as columns."""
    return _columns([engine.late for engine in engines], LateTokens._fields)


def _columns(logs: Sequence[Sequence[tuple[float, ...]]], names: tuple[str, ...]) -> dict[str, Array]:
    whole = np.concatenate([np.array(log, float).reshape(-1, len(names)) for log in logs] or [np.zeros((0, len(names)))])
    return {name: whole[:, at] for at, name in enumerate(names)}


def rows(log: Columns, chosen: Array) -> dict[str, Array]:
    """Return some rows of a log."""
    return {name: column[chosen] for name, column in log.items()}


def seconds(log: Columns) -> Array:
    """Return the seconds of each segment."""
    return np.asarray(log["steps"] * (log["first_s"] + log["more_s"] * (log["steps"] - 1) / 2))


def gaps(log: Columns, late: Columns) -> tuple[Array, Array]:
    """Return times between tokens and how many tokens each holds for: a step's length for all its decodes but the late ones.

    Their sum is the time from first to last tokens of all requests. Of a long segment, whose steps grow evenly, several steps
    beside each other are one entry with their mean: sums stay what they are.
    """
    decoding = rows(log, log["decodes"] > 0)
    steps, stretch = decoding["steps"], decoding["stretch"]
    first, more, tokens = decoding["first_s"] * stretch, decoding["more_s"] * stretch, decoding["decodes"]
    pieces = np.minimum(steps, MOST_PIECES).astype(np.int64)
    each, begin = steps / np.maximum(1, pieces), np.cumsum(pieces) - pieces
    place = (np.arange(int(pieces.sum())) - np.repeat(begin, pieces) + 0.5) * np.repeat(each, pieces) - 0.5
    times = np.repeat(first, pieces) + np.repeat(more, pieces) * place
    counts = np.repeat(tokens * each, pieces)
    counts[begin] -= decoding["late"]
    return np.concatenate([times, late["gap_s"]]), np.concatenate([counts, late["requests"]])


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Return the value below which a share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1, 1, 98]), 0.5)
    2.0
    """
    if not weights.sum():
        return nan
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])
