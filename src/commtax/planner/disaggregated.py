"""Plans with workers of their own for prompts: how many of each, and what moving the cache costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commtax.api.serving import step_s
from commtax.api.setup import Setup
from commtax.cost.memory import kv_bytes_per_token_layer
from commtax.planner.columns import Columns, Goal, empty, joined
from commtax.planner.space import Array, Space
from commtax.spec import Workload

BUSY = 0.85  # prompt workers are loaded to this share at most: queues grow without bound beyond


def columns(base: Setup, roomy: Space, prompt_s: Array, kv: Array, room: Array, goal: Goal, index: int) -> Columns:
    """Every split of the cluster into prompt workers and decode copies of one tp degree each, inside a fast domain.

    A decode copy's TPOT is its decode step's, never stretched by prompts. Prompts arrive at the rate at which requests end and
    queue as M/D/1: rho / (2 (1 - rho)) services. The cache then crosses the link between both.
    """
    plain = np.flatnonzero((roomy.pp == 1) & (roomy.dp == 1) & (roomy.ep == 1) & (roomy.tp <= base.cluster.domain))
    if base.cluster.num_gpus < 2 or not len(plain):
        return empty()
    found: list[Columns] = []
    for i in plain:
        load = np.arange(1, room[i] + 1)
        one = replace(base, plan=replace(base.plan, tp=int(roomy.tp[i])))
        context = goal.input_len + goal.output_len / 2
        decode_s = step_s(one, Workload(decode_seqs=load, cached_tokens=load * context))
        for j in plain:
            sizes = (int(roomy.tp[i]), int(roomy.tp[j]), float(prompt_s[j]))
            found += _splits(base, *sizes, load, np.asarray(decode_s), float(kv[i]), goal, index)
    return joined(found) if found else empty()


def _splits(
    base: Setup,
    tp: int,
    ahead: int,
    prompt_s: float,
    load: Array,
    decode_s: Array,
    kv: float,
    goal: Goal,
    index: int,
) -> list[Columns]:
    gpus, found = base.cluster.num_gpus, []
    life = prompt_s + goal.output_len * decode_s
    n = np.ones(len(load), dtype=int)
    for copies in range(1, (gpus - ahead) // tp + 1):
        workers = (gpus - copies * tp) // ahead
        busy = copies * load / life * prompt_s / workers  # prompts that arrive, over those that can be served
        ok = busy <= BUSY
        if not ok.any():
            continue
        wait = np.where(ok, busy / (2 * np.maximum(1e-9, 1 - busy)), 0.0) * prompt_s
        ttft = base.engine.request_s + wait + prompt_s + moved_s(base, tp, ahead, goal)
        rows = Columns(
            mode=n,
            dtype=index * n,
            tp=tp * n,
            pp=n,
            dp=n,
            ep=n,
            replicas=copies * n,
            gpus=(copies * tp + workers * ahead) * n,
            concurrency=load * copies,
            running=load,
            ttft_s=ttft,
            tpot_s=decode_s,
            tokens_per_s=copies * load * goal.output_len / (ttft + (goal.output_len - 1) * decode_s),
            kv_headroom=1 - load * (goal.input_len + goal.output_len * (1.0 if base.engine.kv_reserved else 0.5)) / kv,
            prefill_tp=ahead * n,
            prefill_replicas=workers * n,
        )
        found.append(rows.take(np.flatnonzero(ok)))
    return found


def moved_s(base: Setup, tp: int, ahead: int, goal: Goal) -> float:
    """Seconds to move one prompt's cache: every rank sends its part over its own share of the link."""
    model, cluster = base.model, base.cluster
    each = sum(
        float(kv_bytes_per_token_layer(model.blocks[kind].attention, tp, base.plan.kv_dtype)) * model.layers.count(kind)
        for kind in range(len(model.blocks))
    )
    pairs = min(tp, ahead)
    crosses = cluster.num_gpus > cluster.domain
    speed = cluster.inter.bandwidth_Bps * cluster.nics_per_host / cluster.gpus_per_host if crosses else cluster.intra.bandwidth_Bps
    latency = cluster.inter.latency_s if crosses else cluster.intra.latency_s
    return latency + each * tp * goal.input_len / (pairs * speed * 0.8)
