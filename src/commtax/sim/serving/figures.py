"""What a run's book and logs add up to: columns of requests, gaps between tokens, what engines did."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from commtax.sim.serving.replica import Replica, Segment
from commtax.sim.serving.running import Run

Array = np.ndarray
Columns = Mapping[str, Array]
MOST_PIECES = 64  # entries for the gaps of one segment
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def columns(run: Run) -> dict[str, Array]:
    """One row a request: lengths, the times of its life, and what they make. TTFT and E2E count from sending.

    TPOT is (E2E - TTFT) / (output - 1), not a number where there is one token. ``wait_s`` passes before it is sent, ``queue_s``
    from sending to its first step.
    """
    book = run.book
    arrival, sent, started, first, done = (
        np.array(times) for times in (book.arrival_s, book.sent_s, book.started_s, book.first_s, book.done_s)
    )
    inputs, outputs = np.array(book.input_len), np.array(book.output_len)
    gaps = np.maximum(1, outputs - 1)
    return {
        "arrival_s": arrival,
        "input_len": inputs,
        "output_len": outputs,
        "replica": np.array(book.served_by),
        "cached_tokens": np.array(book.cached),
        "preemptions": np.array(book.thrown),
        "wait_s": sent - arrival,
        "queue_s": started - sent,
        "transfer_s": np.array(book.moved_s),
        "preempted_s": np.array(book.lost_s),
        "ttft_s": first - sent,
        "tpot_s": np.where(outputs > 1, (done - first) / gaps, nan),
        "e2e_s": done - sent,
        "sent_s": sent,
        "first_s": first,
        "done_s": done,
    }


def segments(engines: Sequence[Replica]) -> dict[str, Array]:
    """The logs of all engines as columns, with the engine's number."""
    logs = [np.array(engine.log, float).reshape(-1, len(Segment._fields)) for engine in engines]
    whole = np.concatenate(logs) if logs else np.zeros((0, len(Segment._fields)))
    owner = np.repeat([engine.number for engine in engines], [len(log) for log in logs])
    return {**{name: whole[:, at] for at, name in enumerate(Segment._fields)}, "engine": owner}


def seconds(log: Columns) -> Array:
    """Of each segment."""
    return np.asarray(log["steps"] * (log["first_s"] + log["more_s"] * (log["steps"] - 1) / 2))


def gaps(log: Columns) -> tuple[Array, Array]:
    """Times between tokens, and how many tokens came so: each step's length for all that decode in it.

    Those who had to wait before a segment's first step have that on top. Of a long segment, whose steps grow evenly, several
    steps beside each other are one entry with their mean: sums stay what they are.
    """
    decoding = log["decodes"] > 0
    steps = log["steps"][decoding]
    first, more, tokens, stalled, stall = (log[n][decoding] for n in ("first_s", "more_s", "decodes", "stalled", "stall_s"))
    pieces = np.minimum(steps, MOST_PIECES).astype(np.int64)
    each = steps / np.maximum(1, pieces)
    begin = np.cumsum(pieces) - pieces
    place = (np.arange(int(pieces.sum())) - np.repeat(begin, pieces) + 0.5) * np.repeat(each, pieces) - 0.5
    times = np.repeat(first, pieces) + np.repeat(more, pieces) * place
    counts = np.repeat(tokens * each, pieces)
    counts[begin] -= stalled
    late = stalled > 0
    return np.concatenate([times, (first + stall)[late]]), np.concatenate([counts, stalled[late]])


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """The value below which a share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1, 1, 98]), 0.5)
    2.0
    """
    if not weights.sum():
        return nan
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])
