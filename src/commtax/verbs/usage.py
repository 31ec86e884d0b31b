"""What a fleet was busy with while it served: steps, batches, cache, communication; and its steps as a timeline."""

from collections.abc import Iterator

import numpy as np

from commtax.cost.surface import Surface
from commtax.records import dataclass
from commtax.sim.serving import figures
from commtax.sim.serving.figures import Array, Columns
from commtax.sim.serving.replica import Replica
from commtax.sim.serving.running import Workers
from commtax.timeline import Counter, Timeline
from commtax.units import plural
from commtax.verbs.requests import RequestsInTime


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Shares of time are of the engines' steps, unless they say otherwise."""

    busy: float  # share of the run in which an engine has a step; of a pipeline, in which a stage has a batch
    mean_batch: float  # requests that decode in a step
    prompt_share: float  # of steps with tokens of prompts
    comm_share: float  # of communication that nothing hides
    kv_mean: float  # share of the cache that is in use
    kv_peak: float
    waiting_peak: int  # requests in an engine's queue
    preemptions: int
    preempted: int  # requests that were thrown out at least once
    hit_rate: float  # share of all prompt tokens that were in the cache


def usage_of(o: RequestsInTime) -> EngineUsage:
    """What the engines that decode did; where prompts are apart, their engines share in no figure but the hit rate."""
    log, workers = o.log, o.fleet.workers
    seconds = figures.seconds(log)
    total = max(float(seconds.sum()), 1e-12)
    lanes = workers.count * (workers.stages if workers.stages > 1 else workers.ranks)
    in_use = 1 - log["free"] / max(1, workers.rules.blocks)
    thrown = o.columns["preemptions"]
    return EngineUsage(
        busy=min(1.0, total / (lanes * max(o.duration_s, 1e-12))),
        mean_batch=o.mean_running,
        prompt_share=float(seconds @ (log["tokens"] > 0)) / total,
        comm_share=float(comm_s(log, workers.surface).sum()) / total,
        kv_mean=float(in_use @ seconds) / total,
        kv_peak=float(in_use.max(initial=0.0)),
        waiting_peak=int(log["waiting"].max(initial=0)),
        preemptions=round(thrown.sum() / o.share),
        preempted=round((thrown > 0).sum() / o.share),
        hit_rate=float(o.columns["cached_tokens"].sum() / sum(o.ran.book.input_len)),
    )


def comm_s(log: Columns, steps: Surface) -> Array:
    """Seconds of communication that nothing hides, of each segment: by its rows, as its steps were priced."""
    decodes, tokens = log["decodes"].astype(np.int64), log["tokens"].astype(np.int64)
    alone = steps.alone_comm[np.minimum(decodes, len(steps.alone_comm) - 1)]
    mixed = steps.mixed_comm[np.minimum(decodes + tokens, len(steps.mixed_comm) - 1)]
    return np.asarray(np.where(tokens > 0, mixed, alone) * log["steps"])


MOST_SLICES = 50_000  # of a file that a browser still opens; those that begin first
KINDS = ("decode", "prompts", "both")


def timeline_of(o: RequestsInTime, most: int = MOST_SLICES) -> tuple[Timeline, int]:
    """The first steps of a run in time, with queues and caches as counters; and how many slices were left out."""
    parts = [*_parts(o.ran.engines, o.fleet.workers, "replica" if o.fleet.prompts is None else "decode worker")]
    if o.fleet.prompts:
        parts += _parts(o.ran.prompt_engines, o.fleet.prompts, "prompt worker")
    owners = {lane: owner for _, names, _, owner in parts for lane in names}
    lanes = sorted(owners, key=lambda name: (len(name), name))
    columns = [_columns(log, names, lanes) for log, names, _, _ in parts]
    begin, seconds, code, kind, label = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(begin, kind="stable")[:most]
    until = float(begin[order[-1]]) if len(order) else 0.0
    shown = Timeline(
        code[order].astype(np.int64),
        begin[order],
        (begin + seconds)[order],
        kind[order].astype(np.int64),
        tuple(label[order].tolist()),
        tuple(lanes),
        KINDS,
        counters=tuple(counter for log, _, blocks, owner in parts for counter in _counters(log, owner, blocks, until)),
        owners=tuple(owners[lane] for lane in lanes),
    )
    return shown, max(0, len(begin) - most)


def _parts(engines: list[Replica], workers: Workers, title: str) -> Iterator[tuple[Columns, list[str], int, str]]:
    """Yield each engine's log, the name of its lane row by row, the blocks of its cache, and its own name."""
    inner = "stage" if workers.stages > 1 else "rank"
    several = workers.stages > 1 or workers.ranks > 1
    for number, engine in enumerate(engines):
        log = figures.segments([engine])
        owner = f"{title} {number}"
        names = [f"{owner}{f' {inner} {int(lane)}' if several else ''}" for lane in log["lane"]]
        yield log, names, workers.rules.blocks, owner


def _columns(log: Columns, names: list[str], lanes: list[str]) -> tuple[Array, ...]:
    place = {name: code for code, name in enumerate(lanes)}
    kind = np.where(log["tokens"] == 0, 0, np.where(log["decodes"] == 0, 1, 2))
    counts = (log[name].astype(int).tolist() for name in ("steps", "decodes", "tokens"))
    labels = [_label(*row) for row in zip(*counts, strict=True)]
    return log["begin_s"], figures.seconds(log), np.array([place[name] for name in names]), kind, np.array(labels, dtype=object)


def _label(steps: int, decodes: int, tokens: int) -> str:
    """
    >>> _label(37, 12, 0), _label(1, 12, 2048), _label(1, 0, 512)
    ('37 steps: 12 decodes', '1 step: 2,048 prompt tokens + 12 decodes', '1 step: 512 prompt tokens')
    """
    parts = [plural(tokens, "prompt token")] * bool(tokens) + [plural(decodes, "decode")] * bool(decodes)
    return f"{plural(steps, 'step')}: {' + '.join(parts)}"


def _counters(log: Columns, owner: str, blocks: int, until: float) -> Iterator[Counter]:
    """Yield requests in the queue, and the share of the cache that is in use, of each engine."""
    shown = log["begin_s"] <= until
    if shown.any():
        yield Counter(owner, "waiting", log["begin_s"][shown], log["waiting"][shown])
        in_use = np.round(100 * (1 - log["free"][shown] / blocks), 2)
        yield Counter(owner, "KV cache in use, %", log["begin_s"][shown], in_use)
