"""Closed-loop serving, by name: ``commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32, ...)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from commtax.api.fitting import cache_tokens, check_utilization
from commtax.api.sending import context_notes
from commtax.api.setup import Setup, constants_of, fabric_of, numeric, positive, setup
from commtax.arrays import pick
from commtax.cost.inference import inference_bill
from commtax.cost.memory import kv_bytes_per_token_layer
from commtax.cost.pricing import Terms
from commtax.cost.serving import (
    SPREAD,
    Load,
    Pressure,
    Served,
    Steps,
    closed_loop,
    decoding_seqs,
    pressure,
    prompt_tokens,
    prompts_ahead,
    prompts_apart,
    running,
)
from commtax.cost.traffic import padded_rows
from commtax.ledger import Bill
from commtax.spec import Cluster, Model, Number, Plan, Workload
from commtax.statement import Note, Refusal
from commtax.units import format_mean

MOVING = 0.8  # share of a link's bandwidth that moves caches
EXACT = 2.0**-20  # mean numbers are whole multiples of this: a sum that missed a full step by a rounding would start another tile
RANGE = 1.2816  # standard deviations from the middle to either end of an 80 % range


@dataclass(frozen=True, slots=True)
class Apart:
    """Disaggregated serving: what a prompt worker is, and how many there are of each kind."""

    plan: Plan  # of one prompt worker
    workers: int | None  # None: enough that no prompt waits
    copies: Number  # workers that decode
    kv_tokens: Number = np.inf  # that a prompt worker has room for


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
    apart: Apart | None = None
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Any:
        return self.setup.codes == 0

    @property
    def num_gpus(self) -> Number | None:
        """GPUs of all workers; None where there are "enough" for prompts."""
        mine = self.setup.plan.num_gpus
        if self.apart is None:
            return self.setup.plan.all_gpus
        return None if self.apart.workers is None else mine * self.apart.copies + self.apart.plan.num_gpus * self.apart.workers

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
    def offered(self) -> Number:
        """Disaggregated: prompts' seconds that come in a second, were there no waiting for a worker and no moving of caches."""
        return self.concurrency / (self.e2e_s - self.served.ahead_s - self.served.moved_s) * self.prompt_s * self.chunks

    @property
    def mixed_share(self) -> Number:
        """Share of decoding that goes to other requests' prompts."""
        return self.served.stretch_s / self.tpot_s

    @property
    def measured_here(self) -> bool:
        """Whether runs of this engine were measured on this chip: published ones, or a profile's own."""
        engine, chip = self.setup.engine, self.setup.cluster.chip.key
        return engine.host.calibrated and (bool(engine.host.host_label) or chip in engine.host.served_on)

    @property
    def basis(self) -> str:
        """What the ranges rest on: calibrated where engine, chip and library were measured, else transferred or assumed."""
        if not self.setup.engine.host.calibrated:
            return "assumed"
        lines = [line for step in self._steps() for line in step.lines]
        known = not any(line.source.kind == "assumed" and np.any(np.asarray(line.exposed_s) > 0) for line in lines)
        return "calibrated" if known and self.measured_here else "transferred"

    def sigma_of(self, name: str) -> Number:
        """Standard deviation of the logarithm of ``tpot_s``, ``ttft_s``, or ``tokens_per_s`` (from both, by their time).

        On a chip that the engine's runs were measured on, their errors hold those of the steps; elsewhere steps err on their
        own. Nowhere is a time surer than the step that it is made of.
        """
        if name == "tokens_per_s":
            share = self.ttft_s / self.e2e_s
            return share * self.sigma_of("ttft_s") + (1 - share) * self.sigma_of("tpot_s")
        kind = "_moe" if self.setup.model.experts else ""
        own = getattr(self.setup.engine.host, f"sigma_{name.removesuffix('_s')}{kind}")
        decode, prompt = (step.sigma for step in self._steps())
        mixed = decode + (prompt - decode) * self.mixed_share
        part = prompt if name == "ttft_s" else np.maximum(decode, mixed)
        return np.maximum(own, part) if self.measured_here else np.hypot(own, part)

    def _steps(self) -> tuple[Bill, Bill]:
        """A decode step of all running requests, and the step of a prompt, line by line."""
        asked, load = self.setup, Load(self.concurrency, self.input_len * 1.0, self.output_len * 1.0)
        ahead = replace(asked, plan=self.apart.plan) if self.apart else asked
        tokens = np.minimum(self.input_len, self.max_batched_tokens) if asked.engine.serves.chunked else self.input_len
        return step_bill(asked, decoding(np.ceil(self.running / asked.plan.pp), load)), step_bill(ahead, _prompt(0.0, load, tokens))

    def range_of(self, name: str) -> tuple[Number, Number]:
        """The 80 % range of ``tpot_s``, ``ttft_s`` or ``tokens_per_s``."""
        factor = np.exp(RANGE * self.sigma_of(name))
        return getattr(self, name) / factor, getattr(self, name) * factor


def simulate(
    model: str | Model,
    cluster: str | Cluster,
    *,
    concurrency: Number = 1,
    input_len: Number = 1024,
    output_len: Number = 128,
    num_prompts: Number | None = None,
    spread: Number = SPREAD,
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
    given = {"concurrency": concurrency, "input_len": input_len, "output_len": output_len}
    concurrency, input_len, output_len = (positive(value, name) for name, value in given.items())
    asked = setup(model, cluster, **plan)
    budget, most = _limits(asked, max_num_batched_tokens, max_num_seqs, gpu_memory_utilization)
    load = _load(asked, concurrency, input_len, output_len, num_prompts, spread)
    room = partial(cache_tokens, tokens=budget, seqs=most, utilization=gpu_memory_utilization)
    kv = room(asked) if kv_tokens is None else kv_tokens
    seqs = running(load, asked.engine, kv, most)
    apart = _split(asked, disaggregated, np.ceil(load.concurrency / seqs), prefill_workers, prefill_tp, decode_workers)
    if apart:
        if kv_tokens is None:
            apart = replace(apart, kv_tokens=room(replace(asked, plan=apart.plan)))
        busy = np.minimum(apart.copies, load.concurrency)  # a copy without a client does nothing
        load = replace(load, concurrency=load.concurrency / busy, num_prompts=load.num_prompts / busy)
        seqs = running(load, asked.engine, kv, most)
        steps, served = _apart(asked, load, seqs, budget, apart, concurrency)
    else:
        steps, served = _together(asked, load, seqs, budget, pressure(load, asked.engine, kv, seqs, most))
    found = Simulation(
        setup=asked,
        concurrency=concurrency,
        input_len=input_len,
        output_len=output_len,
        num_prompts=np.inf if num_prompts is None else num_prompts,
        spread=spread,
        running=seqs,
        rows=_rows(asked, seqs, load),
        chunks=steps.chunks,
        max_batched_tokens=budget,
        max_seqs=most,
        kv_tokens=kv,
        decode_s=steps.decode_s,
        prompt_s=steps.prompt_s,
        served=served,
        apart=apart,
    )
    return replace(found, notes=_notes(found))


def _rows(asked: Setup, seqs: Number, load: Load) -> Number:
    """Rows of a decode step, as the engine pads them."""
    work = decoding(np.ceil(seqs / asked.plan.pp), load)
    return padded_rows(work.rows, work, asked.engine, asked.plan.tp)


def _split(
    asked: Setup,
    disaggregated: bool,
    enough: Number,
    prefill_workers: int | None,
    prefill_tp: int | None,
    decode_workers: int | None,
) -> Apart | None:
    """A prompt worker is the plan with its own tp and one replica, experts spread where they were; ``enough`` workers decode."""
    if not disaggregated:
        given = {"prefill_workers": prefill_workers, "prefill_tp": prefill_tp, "decode_workers": decode_workers}
        for name, value in given.items():
            if value is not None:
                raise Refusal(f"{name}={value}: belongs to disaggregated serving", name)
        return None
    if np.any(np.asarray(asked.plan.replicas) > 1):
        raise Refusal(f"replicas={asked.plan.replicas}: disaggregated serving counts its servers as decode_workers", "replicas")
    plan, tp = asked.plan, asked.plan.tp if prefill_tp is None else prefill_tp
    ep = pick(np.asarray(plan.ep) > 1, tp, 1)
    if prefill_tp is not None:  # must be legal
        setup(asked.model, asked.cluster, engine=asked.engine, tp=tp, pp=plan.pp, ep=ep)
    count = None if prefill_workers is None else int(positive(prefill_workers, "prefill_workers"))
    copies = enough if decode_workers is None else int(positive(decode_workers, "decode_workers"))
    return Apart(replace(plan, tp=tp, dp=1, ep=ep), count, copies)


def _together(asked: Setup, load: Load, seqs: Number, budget: int, full: Pressure) -> tuple[Steps, Served]:
    """One pool of workers computes prompts and decodes, in shared steps or in turn."""
    engine, pp = asked.engine, asked.plan.pp
    decodes = decoding_seqs(load, seqs, budget, pp, engine)
    beside = pick(engine.serves.prefill_first, 0.0, np.floor((decodes - 1) / pp / EXACT) * EXACT)
    room = np.maximum(1.0, budget - beside)  # for prompt tokens, with a token for each decode beside them
    tokens = prompt_tokens(load, seqs, room, engine)
    chunks, together = np.maximum(1.0, load.input_len / tokens), np.maximum(1.0, tokens / load.input_len)
    decode = step_s(asked, decoding(np.ceil(decodes / pp), load))
    steps = Steps(decode, step_s(asked, _prompt(beside, load, tokens, together)), chunks, together, pp)
    return steps, closed_loop(load, steps, seqs, prompts_ahead(load, seqs, room, engine, pp), engine, full)


def _apart(asked: Setup, load: Load, seqs: Number, budget: int, apart: Apart, clients: Number) -> tuple[Steps, Served]:
    """Prompts on workers of their own: decoding is never stretched, and prompts queue only for each other."""
    engine, plan = asked.engine, asked.plan
    tokens = np.minimum(load.input_len, budget) if engine.serves.chunked else load.input_len
    chunks = load.input_len / tokens
    decode = step_s(asked, decoding(np.ceil(seqs / plan.pp), load))
    steps = Steps(decode, step_s(replace(asked, plan=apart.plan), _prompt(0.0, load, tokens)), chunks, 1, plan.pp)
    quiet = closed_loop(load, Steps(decode, 0.0), seqs, seqs * 0, engine)
    gpus = asked.cluster.num_gpus if apart.workers is None else plan.num_gpus * apart.copies + apart.plan.num_gpus * apart.workers
    moved = moved_s(asked, plan.tp, apart.plan.tp, load.input_len, gpus)
    return steps, prompts_apart(load, quiet, steps.prompt_s * chunks, moved, clients, apart.workers or np.inf)


def moved_s(asked: Setup, tp: Number, ahead: Number, tokens: Number, gpus: Number) -> Number:
    """Seconds to move a prompt's cache from ``ahead`` ranks to ``tp``: each pair of ranks over its own share of the link.

    ``gpus`` of all workers of both kinds decide whether caches leave a fast domain, not those that idle beside them.
    """
    model, cluster = asked.model, asked.cluster
    each = sum(
        kv_bytes_per_token_layer(model.blocks[kind].attention, tp, asked.plan.kv_dtype) * model.layers.count(kind)
        for kind in range(len(model.blocks))
    )
    crosses = np.minimum(gpus, cluster.num_gpus) > cluster.domain
    outside = cluster.inter.bandwidth_Bps * cluster.nics_per_host / cluster.gpus_per_host
    two, rest, alone = cluster.as_pairs.intra, cluster.intra, gpus == 2  # one rank each: neighbours
    speed = pick(crosses, outside, pick(alone, two.bandwidth_Bps, rest.bandwidth_Bps))
    latency = pick(crosses, cluster.inter.latency_s, pick(alone, two.latency_s, rest.latency_s))
    return latency + each * tp * tokens / (np.minimum(tp, ahead) * speed * MOVING)


def step_bill(asked: Setup, work: Workload) -> Bill:
    """One step of one replica, line by line."""
    terms = Terms(asked.model, asked.plan, asked.cluster, asked.engine, fabric_of(asked), constants_of(asked))
    return inference_bill(terms, work, 1)


def step_s(asked: Setup, work: Workload) -> Number:
    """Seconds of one step of one replica."""
    return step_bill(asked, work).step_s


def decoding(seqs: Number, load: Load) -> Workload:
    """A decode step in the middle of its requests' lives: I + O/2 - 1 cached tokens each."""
    return Workload(decode_seqs=seqs, cached_tokens=seqs * context(load))


def _prompt(beside: Number, load: Load, tokens: Number, together: Number = 1.0) -> Workload:
    """A step of ``tokens`` of prompts; of a prompt that fills several the middle one, where half of the others are cached."""
    past = np.maximum(0.0, load.input_len - tokens) / 2
    return Workload(beside, beside * context(load), together, tokens, past)


def context(load: Load) -> Number:
    """Mean number of cached tokens over the decode steps of a request."""
    return load.input_len + np.maximum(0.0, load.output_len / 2 - 1)


def _limits(asked: Setup, tokens: int | None, seqs: int | None, utilization: float | None) -> tuple[int, int]:
    check_utilization(utilization)
    budget = asked.engine.serves.max_batched_tokens if tokens is None else int(positive(tokens, "max_num_batched_tokens"))
    return budget, asked.engine.serves.max_seqs if seqs is None else int(positive(seqs, "max_num_seqs"))


def _load(asked: Setup, concurrency: Number, input_len: Number, output_len: Number, prompts: Number | None, spread: Number) -> Load:
    if num := prompts is not None:
        prompts = positive(prompts, "num_prompts")
        if np.any(np.asarray(prompts) < concurrency):
            raise Refusal(f"num_prompts={prompts}: at least as many as clients, {concurrency}, are needed", "num_prompts")
    dp = asked.plan.dp * asked.plan.replicas
    each = np.maximum(1.0, concurrency / dp)
    return Load(each, input_len * 1.0, output_len * 1.0, prompts / dp if num else np.inf, check_spread(spread))


def check_spread(spread: Number) -> Number:
    spread = numeric(spread, "spread")
    if np.any(np.asarray(spread) < 0) or np.any(np.asarray(spread) > 1):
        raise Refusal(f"spread={spread}: a share of the mean length from 0 to 1 is needed", "spread")
    return spread


def lengths_note(spread: float) -> Note:
    """What the requests' lengths are, and what would change with others."""
    if spread:
        other = "--spread 0: equal lengths, whose clients move in lockstep"
        return Note("lengths", f"lengths vary by {spread:.0%} to either side; {other}")
    other = f"--spread {SPREAD:g}: lengths that vary by {SPREAD:.0%} to either side"
    return Note("lengths", f"equal lengths: clients move in lockstep; {other}")


def _notes(s: Simulation) -> tuple[Note, ...]:
    """What a reader of one scalar answer should know."""
    told = s.setup.notes
    if s.apart:  # GPUs are counted over both kinds of workers
        told = tuple(note for note in told if note.code != "idle-gpus")
    if np.ndim(s.spread) == 0:
        told += (lengths_note(float(s.spread)),)
    if any(np.ndim(x) for x in (s.running, s.kv_tokens)):
        return told
    told += tuple(context_notes(s.input_len + s.output_len, s.setup))
    each = s.concurrency / s.setup.plan.dp / s.setup.plan.replicas / (s.apart.copies if s.apart else 1)
    if s.kv_tokens < s.input_len + s.output_len:
        return (*told, Note("cache", "one request does not fit into the KV cache (see commtax fit); priced as if one ran"))
    if s.running < each:
        limit = f"the engine's limit (max_num_seqs {s.max_seqs:,})" if s.running == s.max_seqs else "the KV cache"
        held = f"; it holds {s.kv_tokens:,.0f} tokens" if s.running < s.max_seqs else ""
        some = f"{s.running:,.0f} of {format_mean(each)} requests of a replica run at once, for {limit}{held}"
        return (*told, Note("queue", some))
    return told
