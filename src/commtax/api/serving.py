"""Closed-loop serving, by name: ``commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32, ...)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax.api.fitting import cache_tokens
from commtax.api.setup import Setup, constants_of, fabric_of, numeric, positive, setup
from commtax.arrays import pick
from commtax.cost import memory
from commtax.cost.inference import Settings, inference_bill
from commtax.cost.serving import (
    Load,
    Pressure,
    Served,
    Steps,
    closed_loop,
    num_chunks,
    pressure,
    prompts_ahead,
    prompts_together,
    running,
)
from commtax.cost.traffic import padded_rows
from commtax.spec import Cluster, Model, Number, Workload
from commtax.units import format_mean

RANGE = 1.2816  # standard deviations from the middle to either end of an 80 % range


@dataclass(frozen=True, slots=True)
class Simulation:
    """Means of a closed loop at one concurrency. TPOT = (E2E - TTFT) / (O - 1), TTFT from sending to the first token."""

    setup: Setup
    concurrency: Number  # of all replicas
    input_len: Number
    output_len: Number
    num_prompts: Number
    spread: Number
    running: Number  # requests a replica works on at once
    rows: Number  # of a decode step, padding included
    chunks: Number
    max_batched_tokens: int
    max_seqs: int
    kv_tokens: Number
    decode_s: Number
    prompt_s: Number
    served: Served
    notes: tuple[str, ...] = ()

    @property
    def legal(self) -> Any:
        return self.setup.codes == 0

    @property
    def tpot_s(self) -> Number:
        return self.served.tpot_s

    @property
    def ttft_s(self) -> Number:
        return self.served.ttft_s

    @property
    def e2e_s(self) -> Number:
        return self.ttft_s + (self.output_len - 1) * self.tpot_s

    @property
    def requests_per_s(self) -> Number:
        """Little's law: every client has one request under way."""
        return self.concurrency / self.e2e_s

    @property
    def tokens_per_s(self) -> Number:
        """Output tokens of all replicas."""
        return self.requests_per_s * self.output_len

    @property
    def mixed_share(self) -> Number:
        """Share of decoding that goes to other requests' prompts."""
        return self.served.stretch_s / self.tpot_s

    def range_of(self, name: str) -> tuple[Number, Number]:
        """The 80 % range of ``tpot_s`` or ``ttft_s``, from the errors on runs that were not fitted."""
        kind = "_moe" if self.setup.model.experts else ""
        sigma = getattr(self.setup.engine, f"sigma_{name.removesuffix('_s')}{kind}")
        factor = np.exp(RANGE * sigma)
        return getattr(self, name) / factor, getattr(self, name) * factor


def simulate(
    model: str | Model,
    cluster: str | Cluster,
    *,
    concurrency: Number = 1,
    input_len: Number = 1024,
    output_len: Number = 128,
    num_prompts: Number | None = None,
    spread: Number = 0.0,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    gpu_memory_utilization: float | None = None,
    disaggregated: bool = False,
    prefill_workers: int | None = None,
    prefill_tp: int | None = None,
    decode_workers: int | None = None,
    kv_tokens: Number | None = None,
    **plan: Any,
) -> Simulation:
    """Mean TPOT and TTFT of ``concurrency`` clients that each send a request as soon as the last one is answered.

    Sizes, concurrency and lengths may be arrays. ``num_prompts`` adds the burst at the start of a finite benchmark;
    lengths vary by ``spread`` of their mean to either side. With ``disaggregated``, prompts run on workers of their own.
    ``kv_tokens`` is the size of a replica's cache where it is known; else memory is judged.
    """
    concurrency, input_len = positive(concurrency, "concurrency"), positive(input_len, "input_len")
    output_len = positive(output_len, "output_len")
    asked = setup(model, cluster, **plan)
    _check_workers(asked, disaggregated, prefill_workers=prefill_workers, prefill_tp=prefill_tp, decode_workers=decode_workers)
    budget, most = _limits(asked, max_num_batched_tokens, max_num_seqs, gpu_memory_utilization)
    load = _load(asked, concurrency, input_len, output_len, num_prompts, spread)
    kv = cache_tokens(asked, budget, most, gpu_memory_utilization) if kv_tokens is None else kv_tokens
    seqs = running(load, asked.engine, kv, most)
    if disaggregated:
        load = replace(load, concurrency=load.concurrency / _decode_workers(load, seqs, decode_workers))
        seqs = running(load, asked.engine, kv, most)
        priced = _apart(asked, load, seqs, budget, prefill_workers, prefill_tp)
    else:
        priced = _together(asked, load, seqs, budget, pressure(load, asked.engine, kv, seqs, most))
    steps, served = priced
    work = _decoding(np.ceil(seqs / asked.plan.pp), load)
    found = Simulation(
        setup=asked,
        concurrency=concurrency,
        input_len=input_len,
        output_len=output_len,
        num_prompts=load.num_prompts * asked.plan.dp,
        spread=spread,
        running=seqs,
        rows=padded_rows(work.rows, work, asked.engine),
        chunks=steps.chunks,
        max_batched_tokens=budget,
        max_seqs=most,
        kv_tokens=kv,
        decode_s=steps.decode_s,
        prompt_s=steps.prompt_s,
        served=served,
    )
    return replace(found, notes=(*asked.notes, *_notes(found)))


def _check_workers(asked: Setup, disaggregated: bool, **given: int | None) -> None:
    """Workers of their own belong to disaggregated serving, and those for prompts must be a legal plan."""
    for name, value in given.items():
        if value is not None and not disaggregated:
            raise ValueError(f"{name}={value}: belongs to disaggregated serving")
    if given["prefill_tp"] is not None:
        setup(asked.model, asked.cluster, engine=asked.engine, tp=given["prefill_tp"])


def _together(asked: Setup, load: Load, seqs: Number, budget: int, full: Pressure) -> tuple[Steps, Served]:
    """One pool of workers computes prompts and decodes, in shared steps or in turn."""
    engine, pp = asked.engine, asked.plan.pp
    chunks = num_chunks(load, seqs, budget, engine)
    beside = pick(engine.prefill_first, 0.0, (seqs - 1) / pp)
    together = prompts_together(load, seqs, budget)
    decode = step_s(asked, _decoding(np.ceil(seqs / pp), load))
    steps = Steps(decode, step_s(asked, _prompt(beside, load, chunks, together)), chunks, together, pp)
    return steps, closed_loop(load, steps, seqs, prompts_ahead(load, seqs, budget, engine), engine, full)


def _decode_workers(load: Load, seqs: Number, count: int | None) -> Number:
    """Workers that decode: as many as were given, else as many as hold all requests."""
    return np.ceil(load.concurrency / seqs) if count is None else int(positive(count, "decode_workers"))


def _apart(asked: Setup, load: Load, seqs: Number, budget: int, workers: int | None, tp: int | None) -> tuple[Steps, Served]:
    """Prompts on workers of their own: decoding is never stretched, and prompts queue only for each other.

    Without a number of workers there are enough of them: a prompt waits for the step in progress at most.
    """
    alone = replace(asked, plan=replace(asked.plan, tp=asked.plan.tp if tp is None else tp, dp=1))
    chunks = num_chunks(load, seqs * 0 + 1, budget, asked.engine)
    decode = step_s(asked, _decoding(np.ceil(seqs / asked.plan.pp), load))
    steps = Steps(decode, step_s(alone, _prompt(0.0, load, chunks)), chunks, 1, asked.plan.pp)
    quiet = closed_loop(load, replace(steps, prompt_s=0.0), seqs, seqs * 0, asked.engine)
    own = steps.prompt_s * chunks
    share = np.minimum(1.0, seqs / load.num_prompts)
    queue = share * (seqs * asked.plan.dp / workers - 1) / 2 if workers else seqs * 0.0
    return steps, replace(quiet, prefill_s=own, ahead=np.maximum(0.0, queue), ahead_s=np.maximum(0.0, queue) * own)


def step_s(asked: Setup, work: Workload) -> Number:
    """Seconds of one step of one replica."""
    fabric, constants = fabric_of(asked), constants_of(asked)
    priced = inference_bill(asked.model, asked.plan, work, asked.cluster, asked.engine, fabric, constants, Settings(), 1)
    return priced.step_s


def _decoding(seqs: Number, load: Load) -> Workload:
    """A decode step in the middle of its requests' lives: I + O/2 - 1 cached tokens each."""
    return Workload(decode_seqs=seqs, cached_tokens=seqs * context(load))


def _prompt(beside: Number, load: Load, chunks: Number, together: Number = 1.0) -> Workload:
    """The step of the middle chunk of prompts: half of their other chunks are cached."""
    chunk = load.input_len / chunks
    past = (load.input_len - chunk) / 2
    return Workload(beside, beside * context(load), together, together * chunk, together * past)


def context(load: Load) -> Number:
    """Mean number of cached tokens over the decode steps of a request."""
    return load.input_len + np.maximum(0.0, load.output_len / 2 - 1)


def _limits(asked: Setup, tokens: int | None, seqs: int | None, utilization: float | None) -> tuple[int, int]:
    if utilization is not None and not 0 < utilization <= 1:
        raise ValueError(f"gpu_memory_utilization={utilization}: a fraction above 0 and at most 1 is needed")
    default_tokens, default_seqs = memory.default_limits(asked.cluster.chip, asked.engine)
    budget = default_tokens if tokens is None else int(positive(tokens, "max_num_batched_tokens"))
    return budget, default_seqs if seqs is None else int(positive(seqs, "max_num_seqs"))


def _load(asked: Setup, concurrency: Number, input_len: Number, output_len: Number, prompts: Number | None, spread: Number) -> Load:
    if num := prompts is not None:
        prompts = positive(prompts, "num_prompts")
        if np.any(np.asarray(prompts) < concurrency):
            raise ValueError(f"num_prompts={prompts}: at least as many as clients, {concurrency}, are needed")
    spread = numeric(spread, "spread")
    if np.any(np.asarray(spread) < 0) or np.any(np.asarray(spread) > 1):
        raise ValueError(f"spread={spread}: a share of the mean length from 0 to 1 is needed")
    dp = asked.plan.dp
    each = np.maximum(1.0, concurrency / dp)
    return Load(each, input_len * 1.0, output_len * 1.0, prompts / dp if num else np.inf, spread)


def _notes(s: Simulation) -> list[str]:
    """What a reader of one scalar answer should know."""
    if any(np.ndim(x) for x in (s.running, s.kv_tokens)):
        return []
    found = []
    each = s.concurrency / s.setup.plan.dp
    if s.kv_tokens < s.input_len + s.output_len:
        found.append("one request does not fit into the KV cache (see commtax fit); priced as if one ran")
    elif s.running < each:
        limit = f"the engine's limit (max_num_seqs {s.max_seqs:,})" if s.running == s.max_seqs else "the KV cache"
        held = f"; it holds {s.kv_tokens:,.0f} tokens" if s.running < s.max_seqs else ""
        found.append(f"{s.running:,.0f} of {format_mean(each)} requests of a replica run at once, for {limit}{held}")
    return found
