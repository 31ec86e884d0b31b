"""Plans with workers of their own for prompts: splits of a cluster into workers of both kinds."""

from dataclasses import replace

import numpy as np

from commtax.cost.serving import Load, Served, Steps, closed_loop, prompts_apart
from commtax.planner.columns import Array, Columns, cached
from commtax.planner.space import Space, beside
from commtax.question import Goal, Question
from commtax.verbs.serving import decoding, moved_s, step_bill

COPIES = np.r_[1:65, (64 * 2 ** (np.arange(1, 129) / 8)).astype(int)]
"""Decode workers that are tried: all up to 64, then eight to a doubling. The same on every cluster, so that more GPUs only add."""
BUSY = 0.9  # prompts that are offered to a worker, were there no waiting and moving: clients beyond only wait
SAME = 1e-3  # prompt workers that shorten requests by less than this are left out
SMALL = 32  # GPUs of a split that is tried for the price of its tokens: larger ones have the same shares of both kinds


def columns(base: Question, roomy: Space, prompt_s: Array, room: Array, index: int) -> Columns:
    """Prompt workers and decode copies of one tp degree each, inside a fast domain, with no more workers than help.

    Priced as ``commtax simulate --disaggregated`` prices one of them; steps are priced once for each degree. A single
    output token leaves nothing to decode.
    """
    wanted = base.requests
    if wanted.output_len == 1 or not wanted.disaggregated:
        return Columns.joined([])
    plain = np.flatnonzero((roomy.pp == 1) & (roomy.dp == 1) & (roomy.ep == 1) & (roomy.tp <= base.cluster.domain))
    parts: list[Columns] = []
    for i in plain:
        seqs = np.arange(1, room[i] + 1)
        load = Load(seqs, wanted.input_len, wanted.output_len, spread=wanted.spread)
        one = base.but(tp=int(roomy.tp[i]))
        steps = Steps(step_bill(one, decoding(seqs, load)).step_s, 0.0)
        quiet = closed_loop(load, steps, seqs, 0.0 * seqs, base.engine)
        for j in plain:
            sizes, prompt = (int(roomy.tp[i]), int(roomy.tp[j])), float(prompt_s[j])
            for split in _splits(base, *sizes, prompt, load, quiet):
                parts.append(_rows(base, *sizes, *split, prompt, load, quiet, float(roomy.kv_tokens[i]), index))
    return Columns.joined(parts)


def _splits(base: Question, tp: int, ahead: int, prompt_s: float, load: Load, quiet: Served) -> list[tuple[Array, Array]]:
    """(decode copies, prompt workers) of each load, as columns of one row a split.

    For tokens a GPU or for fewest GPUs every small split counts. Else more prompt workers are never worse, as long as they
    stay in the copies' own domain or have left it anyway: all that fit, and help.
    """
    cluster = base.cluster
    if base.goal.objective in ("cost", "gpus"):
        most = min(cluster.num_gpus, max(SMALL, 4 * max(tp, ahead)))
        pairs = np.mgrid[1 : most // tp + 1, 1 : most // ahead + 1].reshape(2, -1)
        copies, workers = pairs[:, pairs[0] * tp + pairs[1] * ahead <= most]
        fits = beside(copies, tp, ahead, cluster) >= workers
        return [(copies[fits, None], workers[fits, None])] if fits.any() else []
    splits = []
    one = replace(cluster, num_hosts=max(1, cluster.domain // cluster.gpus_per_host))
    for place in (cluster, one) if cluster.num_gpus > cluster.domain else (cluster,):
        fit = beside(COPIES, tp, ahead, place)
        copies = COPIES[fit > 0, None]
        if len(copies):
            splits.append((copies, np.minimum(fit[fit > 0, None], _enough(copies, prompt_s, load, quiet))))
    return splits


def _enough(copies: Array, prompt_s: float, load: Load, quiet: Served) -> Array:
    """The fewest prompt workers from which on further ones shorten no request by more than ``SAME`` of it.

    ``prompts_apart``'s queue solved for the workers at which a prompt waits that share of all else.
    """
    rest = _alone_s(prompt_s, load, quiet)
    others = 2 * SAME * (1 + SAME) * rest**2 / (prompt_s + 2 * SAME * rest)  # seconds of others' prompts on a worker
    return np.asarray(np.maximum(1, np.ceil((copies * load.concurrency - 1) * prompt_s / others))).astype(int)


def _alone_s(prompt_s: float, load: Load, quiet: Served) -> Array:
    """Seconds of a request whose prompt never waits and whose cache is there at once."""
    return np.asarray(quiet.ttft_s + (load.output_len - 1) * quiet.tpot_s + prompt_s)


def _rows(
    base: Question, tp: int, ahead: int, copies: Array, workers: Array, prompt_s: float, load: Load, quiet: Served, kv: float,
    index: int,
) -> Columns:  # fmt: skip
    """The loads of each split that may be listed, or drawn on the front."""
    goal, seqs, gpus = base.goal, np.asarray(load.concurrency), copies * tp + workers * ahead
    moved = moved_s(base, tp, ahead, load.input_len, gpus)
    served = prompts_apart(load, quiet, prompt_s, moved, seqs * copies, workers)
    request_s = served.ttft_s + (load.output_len - 1) * served.tpot_s
    requests_per_s = seqs * copies / request_s
    alone_s = _alone_s(prompt_s, load, quiet)
    last = seqs[-1 if goal.limited else np.argmax(seqs / alone_s**2)]  # clients come up to a copy's knee, but for limits
    open_ = (seqs * copies / alone_s * prompt_s <= BUSY * workers) & (seqs <= last)
    kept = np.nonzero(_kept(goal, served, request_s, requests_per_s, gpus, open_))
    columns = {"replicas": copies, "gpus": gpus, "prefill_replicas": workers, "concurrency": seqs * copies, "running": seqs}
    columns |= {"ttft_s": served.ttft_s, "tpot_s": served.tpot_s, "tokens_per_s": requests_per_s * load.output_len}
    columns["kv_headroom"] = 1 - seqs * cached(base) / kv
    flat = {name: np.broadcast_to(column, requests_per_s.shape)[kept] for name, column in columns.items()}
    return Columns.of(len(kept[0]), mode=1, dtype=index, tp=tp, pp=1, dp=1, ep=1, prefill_tp=ahead, **flat)


def _kept(goal: Goal, served: Served, request_s: Array, requests_per_s: Array, gpus: Array, open_: Array) -> Array:
    """Of the loads (columns) of splits (rows) that are open: the best of each split that meets the limits, or
    the nearest to them, and of each load, which alone decides the tokens/s of a user, the split with most for each GPU."""
    over = np.where(open_, np.maximum(served.ttft_s / goal.ttft_s, served.tpot_s / goal.tpot_s), np.inf)
    good = over <= 1
    value = {"throughput": requests_per_s, "latency": 1 / request_s}.get(goal.objective, requests_per_s / gpus)
    rows, loads = np.arange(len(over)), np.arange(over.shape[1])
    kept = np.zeros(over.shape, dtype=bool)
    kept[rows, np.where(good.any(1), np.where(good, value, -np.inf).argmax(1), over.argmin(1))] = True
    kept[np.where(good, requests_per_s / gpus, -np.inf).argmax(0), loads] = True
    return np.asarray(kept & open_ & (good | ~good.any(1, keepdims=True)))
