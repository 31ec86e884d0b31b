"""Fleets of which a few replicas are simulated against the same simulated whole: times agree within their scatter over seeds."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np

from commtax.question import Question
from commtax.verbs.loads import longest_of, sample_of, split, stream_of, used_of
from commtax.verbs.requests import RequestsInTime, fleet_of, run
from commtax.verbs.settling import resolve_question, settle

SEEDS = 5
SCATTERS = 8.0  # standard errors of a difference of two means of five runs each: by chance beyond once in 20,000
FEW = 0.06  # least-loaded: eight replicas choose among fewer than sixteen
NAMES = ("ttft_mean", "ttft_p50", "ttft_p95", "tpot_mean", "tpot_p95", "e2e_mean")
"""Statistics that a sample and the whole fleet are compared by."""


def _asked(rng: Random, replicas: int, again: tuple[int, ...]) -> dict[str, object]:
    """Draw what a fleet is asked for; prompts may come again, ``again`` times a replica are different, or begin alike."""
    asked = {
        "max_num_seqs": rng.choice((16, 64, 256)),
        "input_len": rng.choice((64, 256, 1024)),
        "output_len": rng.choice((2, 16, 32)),
        "burstiness": rng.choice((1.0, 1.0, 0.5, 4.0)),
        "engine": rng.choice(("vllm", "vllm", "sglang")),
        "router": rng.choice(("round-robin", "least-loaded", "prefix")),
    }
    if rng.random() < 0.3:
        asked["unique_prompts"] = rng.choice(again) * replicas
    if rng.random() < 0.3:
        asked["shared_prefix"] = rng.choice((8, 32, asked["input_len"] // 2))
    return asked


def _question(cluster: str, asked: dict[str, object], plan: dict[str, object]) -> Question:
    plain, offered = split({**asked, "request_rate": 1.0})
    return resolve_question("llama-3.2-1b", cluster, {**plain, **plan}).but(offered=offered)


def _run(q: Question, whole: bool, each: int) -> RequestsInTime:
    """Return a run of a question's fleet, or of its sample, both as long: of so many requests for each replica."""
    sample = sample_of(q)
    count = each * max(sample.whole)
    if sample.decoded < 1:  # so that the workers followed decode as many
        count = max(count, int(each * max(sample.size) / sample.decoded / sample.share))
    count = count if whole else int(count * sample.share)
    part = settle(q if whole else sample.question).but(num_prompts=count, warmup=count // 5)
    stream = stream_of(part)
    fleet = replace(fleet_of(part, longest_of(stream)), decoded=Fraction(1) if whole else sample.decoded)
    return RequestsInTime(part, stream, fleet, run(stream, fleet, part.offered.prefix_hit_rate))


def _compare(rng: Random, q: Question, asked: dict[str, object]) -> str | None:
    """Return the first statistic by which a sample's runs and the whole fleet's differ beyond their scatter."""
    if sample_of(q).size == sample_of(q).whole:
        return None
    first = rng.randrange(10**6)  # other arrivals in every run, whatever is drawn
    runs = [[_run(q.but(seed=first + 2 * n + whole), whole, 60) for n in range(SEEDS)] for whole in (False, True)]
    for name in NAMES:
        few, all_ = (np.array([o.statistic(name) for o in some]) for some in runs)
        error = np.sqrt((few.var(ddof=1) + all_.var(ddof=1)) / SEEDS)
        if abs(few.mean() - all_.mean()) > SCATTERS * error + FEW * all_.mean():
            told = f"{name} {few.mean():.4g} s of a sample, {all_.mean():.4g} of the whole, standard error {error:.2g}"
            return f"{told}: {sample_of(q).whole} workers, {q.offered.request_rate:.4g} requests/s, {asked}"
    return ""


def samples_are_like_whole_fleets(rng: Random) -> str | None:
    """Up to 16 replicas, each router, prompts that come again or not: a few replicas have the times of all."""
    replicas = rng.randint(5, 16)
    asked = _asked(rng, replicas, (4, 16, 24))
    q = _question("16xh100-sxm", asked, {"replicas": replicas})
    each_s = asked["input_len"] / 100_000 + asked["output_len"] * 0.012 / asked["max_num_seqs"] + 0.0005
    return _compare(rng, q.but(request_rate=rng.uniform(0.2, 0.7) * used_of(q, replicas) / each_s), asked)


def samples_of_pools_are_like_whole_fleets(rng: Random) -> str | None:
    """The same of workers of prompts beside those that decode, of any ratio."""
    size = (rng.randint(3, 16), rng.randint(3, 16))
    asked = _asked(rng, size[1], (1, 4, 16)) | {"output_len": rng.choice((8, 32))}
    workers = {"disaggregated": True, "prefill_tp": 1, "decode_workers": size[0], "prefill_workers": size[1]}
    q = _question("4x8xh100-sxm", asked, workers)
    prompts = used_of(q, size[1]) * 60_000 / asked["input_len"]
    rate = min(size[0] * asked["max_num_seqs"] / 0.02 / asked["output_len"], prompts, 3000.0)
    return _compare(rng, q.but(request_rate=rate * rng.uniform(0.1, 0.5)), asked)


LAWS = {law.__name__: (law, 1) for law in (samples_are_like_whole_fleets, samples_of_pools_are_like_whole_fleets)}
