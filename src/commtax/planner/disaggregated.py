"""Plans with workers of their own for prompts: every split of a cluster into workers of both kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commtax.api.serving import decoding, moved_s, step_s
from commtax.api.setup import Setup
from commtax.cost.serving import Load, Served, Steps, closed_loop, prompts_apart
from commtax.planner.columns import Columns, Goal, empty, joined
from commtax.planner.space import Array, Space

SPLITS = 128  # of a pair of degrees: all of them up to so many, then evenly spread ones
BUSY = 0.85  # prompt workers are loaded to this share at most: clients beyond only wait


def columns(base: Setup, roomy: Space, prompt_s: Array, kv: Array, room: Array, goal: Goal, index: int) -> Columns:
    """Splits of the cluster into prompt workers and decode copies of one tp degree each, inside a fast domain.

    Priced as ``commtax simulate --disaggregated`` prices one of them; steps are priced once for each degree.
    """
    plain = np.flatnonzero((roomy.pp == 1) & (roomy.dp == 1) & (roomy.ep == 1) & (roomy.tp <= base.cluster.domain))
    if base.cluster.num_gpus < 2 or not len(plain):
        return empty()
    found: list[Columns] = []
    for i in plain:
        seqs = np.arange(1, room[i] + 1)
        load = Load(seqs, goal.input_len, goal.output_len, spread=goal.spread)
        one = replace(base, plan=replace(base.plan, tp=int(roomy.tp[i])))
        steps = Steps(step_s(one, decoding(seqs, load)), 0.0)
        quiet = closed_loop(load, steps, seqs, 0.0 * seqs, base.engine)
        for j in plain:
            sizes = int(roomy.tp[i]), int(roomy.tp[j])
            found += _splits(base, *sizes, float(prompt_s[j]), load, quiet, float(kv[i]), goal, index)
    return joined(found) if found else empty()


def _splits(
    base: Setup, tp: int, ahead: int, prompt_s: float, load: Load, quiet: Served, kv: float, goal: Goal, index: int
) -> list[Columns]:
    gpus, found, seqs = base.cluster.num_gpus, [], np.asarray(load.concurrency)
    moved = moved_s(base, tp, ahead, goal.input_len)
    n = np.ones(len(seqs), dtype=int)
    most = (gpus - ahead) // tp
    for copies in np.unique(np.linspace(1, most, min(most, SPLITS)).astype(int)).tolist():
        workers = (gpus - copies * tp) // ahead
        served = prompts_apart(load, quiet, prompt_s, moved, seqs * copies, workers)
        requests_per_s = seqs * copies / (served.ttft_s + (goal.output_len - 1) * served.tpot_s)
        rows = Columns(
            mode=n,
            dtype=index * n,
            tp=tp * n,
            pp=n,
            dp=n,
            ep=n,
            replicas=copies * n,
            gpus=(copies * tp + workers * ahead) * n,
            concurrency=seqs * copies,
            running=seqs,
            ttft_s=np.asarray(served.ttft_s),
            tpot_s=np.asarray(served.tpot_s),
            tokens_per_s=np.asarray(requests_per_s * goal.output_len),
            kv_headroom=1 - seqs * (goal.input_len + goal.output_len * (1.0 if base.engine.kv_reserved else 0.5)) / kv,
            prefill_tp=ahead * n,
            prefill_replicas=workers * n,
        )
        found.append(rows.take(np.flatnonzero(requests_per_s * prompt_s <= BUSY * workers)))
    return found
