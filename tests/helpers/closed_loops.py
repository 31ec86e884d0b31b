"""Random closed loops, asked of the closed form and of the simulation of their scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from random import Random

import numpy as np

from commtax.question import Question
from commtax.statement import Refusal
from commtax.verbs.closed_loop import price_closed_loop as closed_form
from commtax.verbs.requests import run_requests as simulated
from commtax.verbs.settling import resolve_question, settle

MODELS = ("llama-3.1-8b", "qwen3-14b", "gemma-3-27b", "llama-3.1-70b", "gpt-oss-120b", "qwen3-30b-a3b", "mixtral-8x7b")
MIXTURES = ("gpt-oss-120b", "qwen3-30b-a3b", "mixtral-8x7b")
CLUSTERS = ("8xh100-sxm", "8xh200-sxm", "8xa100-80-sxm", "8xb200-sxm")
ENGINES = ("vllm", "vllm@0.11", "sglang", "trtllm")
LIVES = 9  # requests of each client, of which the first third and the last sixth are not counted in the steady state
FIGURES = ("tpot", "ttft", "rate")
FAR = log(1.5)
LEFT_OUT = {"lockstep", "ranks", "stages", "gathered", "turns", "whole-prompts", "full-cache", "near-full", "waiting", "queue"}
"""Codes of notes that say what the closed form leaves out, or that it queues for something scarce."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, simulated over closed form."""

    words: Mapping[str, object]
    tpot: float
    ttft: float
    rate: float
    waiting: bool  # for a slot or the cache
    full: bool  # requests were thrown out
    load: float  # share of the time that goes to prompts, in the closed form
    whole: Mapping[str, float]  # the same of all requests, against the closed form of as many
    notes: tuple[str, ...] = ()  # codes of what the closed form says of itself

    @property
    def over_budget(self) -> bool:
        """Whether prompts that no step cuts come near its tokens: they wait until enough requests have ended."""
        longest = int(str(self.words["input_len"])) * (1 + float(str(self.words["spread"])))
        return str(self.words["engine"]) == "trtllm" and longest > 4096

    @property
    def steady(self) -> Mapping[str, float]:
        """Of requests between the first and the last ones."""
        return {name: getattr(self, name) for name in FIGURES}

    @property
    def noted(self) -> bool:
        """Whether the closed form says why it may be far from the simulation."""
        return bool(LEFT_OUT & set(self.notes))

    def __str__(self) -> str:
        asked = ", ".join(f"{name} {value}" for name, value in self.words.items())
        whole = "  ".join(f"{value:.2f}" for value in self.whole.values())
        told = f"tpot {self.tpot:5.2f}  ttft {self.ttft:5.2f}  rate {self.rate:5.2f}  (all requests {whole})"
        return f"{told}  {asked}  {'FULL ' * self.full}{'waiting ' * self.waiting}{self.load:.0%} {','.join(self.notes)}"


def far(ratios: Mapping[str, float]) -> bool:
    """Whether any figure is more than 1.5 times the other way's."""
    return any(isfinite(ratio) and abs(log(ratio)) > FAR for ratio in ratios.values())


def drawn(rng: Random) -> dict[str, object]:
    """A closed loop, legal or not: on one pool of workers or two, with attention data parallelism or without."""
    engine, model = rng.choice(ENGINES), rng.choice(MODELS)
    tp = rng.choice((1, 2, 4, 8))
    clients = round(2 ** rng.uniform(0, 8.5))
    words: dict[str, object] = {"model": model, "cluster": rng.choice(CLUSTERS), "engine": engine, "tp": tp}
    lengths = {"input_len": round(2 ** rng.uniform(5, 13)), "output_len": round(2 ** rng.uniform(3, 10))}
    spread = rng.choice((0.0, 0.1, 0.5, 0.5))
    kind = rng.choice(("one", "one", "one", "ranks", "pools"))
    sizes: dict[str, object] = {}
    if kind == "one" and rng.random() < 0.25 and tp <= 4:
        sizes = {"pp": 2}
    if kind == "ranks":
        words["model"] = rng.choice(MIXTURES)
        words["tp"] = tp = rng.choice((1, 1, 2))
        sizes = {"dp": (dp := rng.choice((2, 4, 8 // tp))), "ep": tp * dp}
    if kind == "pools":
        words["tp"] = tp = rng.choice((1, 2, 4))
        most = 8 // tp
        ahead = rng.randint(1, most - 1)
        sizes = {"disaggregated": True, "prefill_workers": ahead, "decode_workers": rng.randint(1, most - ahead)}
        if rng.random() < 0.5:
            sizes = _pools_of_ranks(rng, words)
            clients = round(clients * rng.choice((1, 2, 4)))
    return {**words, **sizes, "concurrency": clients, **lengths, "spread": spread}


def _pools_of_ranks(rng: Random, words: dict[str, object]) -> dict[str, object]:
    """A pool for prompts and one that decodes, one of them or both of ranks that share experts; with DeepEP and drafts or not."""
    words["model"] = model = rng.choice((*MIXTURES, "deepseek-v3.1"))
    large = model == "deepseek-v3.1"
    if large:
        words["cluster"] = rng.choice(("2x8xh200-sxm", "2x8xb200-sxm"))
    gpus = 8 if large else rng.choice((2, 4))  # of a worker
    (tp, dp), (prefill_tp, prefill_dp) = rng.choice([((1, gpus), (1, gpus)), ((1, gpus), (gpus, 1)), ((gpus, 1), (1, gpus))])
    words["tp"] = tp
    sizes: dict[str, object] = {"disaggregated": True, "dp": dp, "ep": tp * dp if dp > 1 or rng.random() < 0.5 else 1}
    sizes |= {"prefill_tp": prefill_tp, "prefill_dp": prefill_dp, "prefill_workers": 1, "decode_workers": 1}
    if words["engine"] == "vllm" and dp > 1 and rng.random() < 0.5:
        sizes["ep_backend"] = "deepep_low_latency"
    if large and rng.random() < 0.5:
        sizes |= {"speculative": rng.choice((1, 2)), "acceptance": rng.choice((0.5, 0.85))}
    return sizes


def question(words: Mapping[str, object]) -> Question:
    options = {name: value for name, value in words.items() if name not in ("model", "cluster")}
    return resolve_question(str(words["model"]), str(words["cluster"]), options)


def asked(seed: str) -> Pair | None:
    """Both answers; None where the question is refused."""
    return paired(drawn(Random(seed)))


def paired(words: Mapping[str, object]) -> Pair | None:
    clients = int(str(words["concurrency"]))
    count = max(120, LIVES * clients)
    try:
        put = question(words)
        ran = simulated(settle(put.but(num_prompts=count)))
        form, finite = (closed_form(settle(put.but(num_prompts=n))) for n in (np.inf, count))
    except Refusal:
        return None
    middle = slice(count // 3, count - count // 6)
    done = np.sort(ran.columns["done_s"])[middle]
    rate = (len(done) - 1) / max(1e-12, float(done[-1] - done[0]))
    tpot, ttft = (float(np.nanmean(ran.columns[name][middle])) for name in ("tpot_s", "ttft_s"))
    ratios = tpot / float(form.tpot_s), ttft / float(form.ttft_s)
    means = {name: float(np.nanmean(ran.columns[f"{name}_s"])) for name in ("tpot", "ttft", "e2e")}
    whole = {name: means[name] / float(getattr(finite, f"{name}_s")) for name in ("tpot", "ttft")}
    whole["rate"] = clients / means["e2e"] / float(finite.requests_per_s)
    thrown = bool(np.sum(ran.columns["preemptions"]))
    waits = float(form.running) < clients / form.question.plan.dp
    codes = tuple(sorted({note.code for note in form.notes}))
    share = 0.0 if form.apart else float(form.mixed_share)
    return Pair(words, *ratios, rate / float(form.requests_per_s), waits, thrown, share, whole, codes)
