"""What a fleet was busy with while it served: steps, batches, cache, communication."""

import numpy as np

from commtax.cost.surface import Surface
from commtax.records import dataclass
from commtax.sim.serving import figures
from commtax.sim.serving.figures import Array, Columns
from commtax.verbs.requests import Outcome


@dataclass(frozen=True, slots=True)
class Usage:
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


def usage_of(o: Outcome) -> Usage:
    """What the engines that decode did; where prompts are apart, their engines share in no figure but the hit rate."""
    log, workers = o.log, o.fleet.workers
    seconds = figures.seconds(log)
    total = max(float(seconds.sum()), 1e-12)
    lanes = workers.count * (workers.stages if workers.stages > 1 else workers.ranks)
    in_use = 1 - log["free"] / max(1, workers.rules.blocks)
    thrown = o.columns["preemptions"]
    return Usage(
        busy=min(1.0, total / (lanes * max(o.duration_s, 1e-12))),
        mean_batch=o.mean_running,
        prompt_share=float(seconds @ (log["tokens"] > 0)) / total,
        comm_share=float(comm_s(log, workers.surface).sum()) / total,
        kv_mean=float(in_use @ seconds) / total,
        kv_peak=float(in_use.max(initial=0.0)),
        waiting_peak=int(log["waiting"].max(initial=0)),
        preemptions=int(thrown.sum()),
        preempted=int((thrown > 0).sum()),
        hit_rate=float(o.columns["cached_tokens"].sum() / o.columns["input_len"].sum()),
    )


def comm_s(log: Columns, steps: Surface) -> Array:
    """Seconds of communication that nothing hides, of each segment: by its rows, as its steps were priced."""
    decodes, tokens = log["decodes"].astype(np.int64), log["tokens"].astype(np.int64)
    alone = steps.alone_comm[np.minimum(decodes, len(steps.alone_comm) - 1)]
    mixed = steps.mixed_comm[np.minimum(decodes + tokens, len(steps.mixed_comm) - 1)]
    return np.asarray(np.where(tokens > 0, mixed, alone) * log["steps"])
