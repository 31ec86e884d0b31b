"""Plain searches, one plan and one load at a time, that the vectorised planner must agree with."""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import commtax
from commtax import catalog
from commtax.planner.serving import PIECES
from commtax.planner.splits import BUSY
from commtax.verbs.fitting import fits

GRID = ("model", "cluster", "engine", "input_len", "output_len")
"""What decides which points there are; limits and the objective only choose among them."""


@dataclass(frozen=True)
class Point:
    """A plan at a load, by plain arithmetic."""

    family: tuple
    copies: int
    gpus: int
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    concurrency: int
    beyond: bool  # its plan's knee
    run: object  # as ``simulate`` has it


def best(question, most):
    """The best point that keeps the limits with the usual confidence, or None."""
    found = [p for p in points(*(question[name] for name in GRID), most) if kept(p, "ttft_s", question)]
    found = [p for p in found if kept(p, "tpot_s", question) and not (p.beyond and math.isinf(question["tpot_s"]))]
    if question.get("objective") == "gpus":  # copies add throughput, not an answer
        found = [_alone(p) for p in found]
    return max(found, key=lambda p: score(p, question), default=None)


def kept(p, name, question):
    """Whether a time that errs as much as is said is below its limit in four of five cases; ``confidence`` says others."""
    limit, value = question[name], getattr(p, name)
    if value > limit or math.isinf(limit):
        return value <= limit
    share = question.get("confidence", 0.8)
    t, end = ((2 * c - 1) / math.sqrt(2 * c * (1 - c)) for c in (share, 0.9))  # Student's, two degrees of freedom
    return value * (float(p.run.range_of(name)[1]) / float(getattr(p.run, name))) ** (t / end) <= limit


def score(p, question):
    """Larger is better; of a ``Point``, or of a row of columns."""
    return {
        "throughput": (p.tokens_per_s,),
        "latency": (-p.ttft_s - (question["output_len"] - 1) * p.tpot_s,),
        "cost": (p.tokens_per_s / p.gpus,),
        "gpus": (-p.gpus, p.tokens_per_s / p.gpus),
    }[question.get("objective", "throughput")]


def _alone(p):
    """A shared plan without its copies; workers of their own stay as they are."""
    if p.family[0] == "apart":
        return p
    one = p.gpus // p.copies, p.ttft_s, p.tpot_s, p.tokens_per_s / p.copies, p.concurrency // p.copies
    return Point(p.family, 1, *one, p.beyond, p.run)


@lru_cache(maxsize=4096)
def points(model, cluster, engine, input_len, output_len, most):
    """All legal plans that fit at every load up to ``most`` a copy."""
    model, cluster, engine = catalog.model(model), catalog.cluster(cluster), catalog.engine(engine)
    found, plain = [], []
    for tp, pp, dp, ep in plans(model, cluster.num_gpus):
        priced = list(_loads(model, cluster, engine, (tp, pp, dp, ep), input_len, output_len, most))
        copies = num_copies(tp * pp * dp, tp, cluster)
        last = knee([s.requests.concurrency / s.e2e_s**2 for s in priced]) if priced else 0
        found += [_shared((tp, pp, dp, ep), copies, s, n > last) for n, s in enumerate(priced, 1) if copies]
        if priced and copies and (pp, dp, ep) == (1, 1, 1) and tp <= cluster.domain:
            plain.append(priced)
    for decode, ahead in itertools.product(plain, plain if output_len > 1 else []):
        found += _apart(decode, ahead[0].question.plan.tp)
    return found


def plans(model, gpus):
    """(tp, pp, dp, ep) that are tried, legal or not."""
    sizes = [1] if model.experts is None else [2**i for i in range(gpus.bit_length())]
    for tp, pp, dp in itertools.product(range(1, gpus + 1), range(1, gpus + 1), sizes):
        if tp * pp * dp > gpus or pp > model.num_layers:
            continue
        for ep in {1} if model.experts is None else ({1, tp} if dp == 1 else {tp * dp}):
            yield tp, pp, dp, ep


def num_copies(group, tp, cluster):
    """Copies laid down one after the other: in the first domain with room, or on whole domains of their own."""
    free, copies = domains(cluster), 0
    if group <= cluster.domain:
        return sum(size // group for size in free)
    used = cluster.domain // tp * tp or cluster.domain
    while free:
        rest = group
        while rest > 0 and free:
            rest -= min(rest, used, free.pop(0))
        copies += rest <= 0
    return copies


def domains(cluster):
    """GPUs of each fast domain."""
    whole, left = divmod(cluster.num_gpus, cluster.domain)
    return [cluster.domain] * whole + [left] * (left > 0)


def most_workers(copies, tp, ahead, cluster):
    """Workers of ``ahead`` GPUs beside copies of ``tp``, by trying every way to share the copies out."""
    places = domains(cluster)
    shares = (share for share in itertools.product(*(range(size // tp + 1) for size in places)) if sum(share) == copies)
    return max((sum((d - n * tp) // ahead for d, n in zip(places, share, strict=True)) for share in shares), default=0)


def _loads(model, cluster, engine, sizes, input_len, output_len, most):
    """One simulation for each load that the cache holds; none where the plan is illegal or does not fit."""
    words = dict(zip(("tp", "pp", "dp", "ep"), sizes, strict=True))
    lengths = {"input_len": input_len, "output_len": output_len}
    kept, kv = input_len + output_len * (1.0 if engine.serves.kv_reserved else 0.5), None
    for clients in range(1, most + 1):
        try:
            s = commtax.simulate(
                model, cluster, engine=engine, concurrency=clients * words["dp"], kv_tokens=kv, **words, **lengths
            )  # fmt: skip
        except ValueError:
            return
        kv = s.kv_tokens
        if kv < input_len + output_len or clients > max(1, kv // kept):
            return
        yield s


def knee(power):
    """The load (from 1) with most power: on powers of the root of two, then between the neighbours of the best of them."""
    loads = [n for n in sorted({round(2 ** (i / 2)) for i in range(41)}) if n < len(power)] + [len(power)]
    top = max(range(len(loads)), key=lambda i: power[loads[i] - 1])
    low, high = loads[max(0, top - 1)], loads[min(len(loads) - 1, top + 1)]
    return max(np.linspace(low, high, PIECES + 1).round().astype(int).tolist(), key=lambda n: power[n - 1])


def _shared(sizes, copies, s, beyond):
    gpus, clients = sizes[0] * sizes[1] * sizes[2] * copies, int(s.requests.concurrency) * copies
    rate = float(s.tokens_per_s) * copies
    return Point(("shared", *sizes), copies, gpus, float(s.ttft_s), float(s.tpot_s), rate, clients, beyond, s)


def _apart(decode, ahead):
    """Workers of their own for prompts: one simulation for each split and load."""
    asked, tp, cluster = decode[0].question, decode[0].question.plan.tp, decode[0].question.cluster
    free = [_free(s, ahead) for s in decode]
    last = 1 + max(range(len(free)), key=lambda i: (i + 1) / free[i] ** 2)
    for copies in range(1, (cluster.num_gpus - ahead) // tp + 1):
        most = most_workers(copies, tp, ahead, cluster)
        for s, workers in itertools.product(decode, range(1, most + 1)):
            load, sent = int(s.requests.concurrency), s.requests
            words = {"concurrency": load * copies, "input_len": sent.input_len, "output_len": sent.output_len}
            words |= {"kv_tokens": s.kv_tokens, "disaggregated": True}
            words |= {"tp": tp, "prefill_tp": ahead, "decode_workers": copies, "engine": asked.engine}
            priced = commtax.simulate(asked.model, cluster, prefill_workers=workers, **words)
            if load > 1 and float(priced.crowding) > BUSY * (1 + 1e-9):
                continue
            family, total = ("apart", tp, ahead, copies, workers), copies * tp + workers * ahead
            times = (float(x) for x in (priced.ttft_s, priced.tpot_s, priced.tokens_per_s))
            yield Point(family, copies, total, *times, load * copies, load > last, priced)


def _free(s, ahead):
    """Seconds of a request of one decode copy whose prompt never waits and whose cache is there at once."""
    asked, sent = s.question, s.requests
    words = {"concurrency": sent.concurrency, "input_len": sent.input_len, "output_len": sent.output_len}
    words |= {"disaggregated": True, "prefill_tp": ahead, "decode_workers": 1, "kv_tokens": s.kv_tokens}
    alone = commtax.simulate(asked.model, asked.cluster, engine=asked.engine, tp=asked.plan.tp, **words)
    return float(alone.e2e_s - alone.served.moved_s)


def fastest_training(model, cluster, global_batch, seq, kinds, engine="megatron"):
    """Seconds of the fastest training plan that fits, by trying all of them; infinite where none does."""
    known, place = catalog.model(model), catalog.cluster(cluster)
    gpus, least = place.num_gpus, math.inf
    sizes, replicas = [2**i for i in range(6) if 2**i <= gpus], [d for d in range(1, global_batch + 1) if global_batch % d == 0]
    stages = range(1, min(gpus, known.num_layers) + 1)
    for kind, tp, pp, dp, micro in itertools.product([kind.plan for kind in kinds], sizes, stages, replicas, (1, 2, 4, 8)):
        if tp * pp * dp > gpus or global_batch % (dp * micro) or seq % tp or (kind.schedule != "1f1b" and pp == 1):
            continue
        if kind.zero in (0, 1) and (kind.zero == 0) != (dp == 1):
            continue
        for ep in _experts(known, dp):
            try:
                b = commtax.train_bill(
                    known, place, engine=engine, tp=tp, pp=pp, dp=dp, ep=ep, batch=global_batch // dp, micro_batch=micro,
                    context=seq, zero=kind.zero, recompute=kind.recompute, schedule=kind.schedule, chunks=kind.chunks,
                    sequence_parallel=True,
                )  # fmt: skip
            except ValueError:
                continue
            if fits(b):
                least = min(least, float(b.step_s))
    return least


def _experts(model, dp):
    if model.experts is None:
        return [1]
    return [e for e in (2**i for i in range(10)) if dp % e == 0 and model.experts.num_experts % e == 0]
