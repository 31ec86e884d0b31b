"""Closed-loop serving, ``commtax.simulate(…, concurrency=32)``: means, and their slopes over each constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from commtax.answer import Answer
from commtax.arrays import cache_answers, pick
from commtax.catalog.transfer import Setting, is_measured
from commtax.catalog.transfer import sigma as transferred_sigma
from commtax.cost import closed_form as loop
from commtax.cost.closed_form import ClosedLoopLoad, ClosedLoopMeans, Steps, fullest_batch
from commtax.cost.network import STATIONS, disaggregated_means, flow, load_share
from commtax.cost.traffic import padded_rows
from commtax.judgement.closed_loops import LEFT_OUT, Crowd, left_out
from commtax.ledger import Z80, Bill
from commtax.options import check_taken
from commtax.question import Question, Requests
from commtax.records import dataclass, replace
from commtax.rules import questions
from commtax.rules.drafts import draft_notes, draft_width, drafted_load, most_per_step, need_accepted
from commtax.rules.techniques import check_sides
from commtax.rules.values import positive
from commtax.spec import LATENCIES, SIZES, Cluster, Condition, Model, Number, RunLesson
from commtax.statement import Note, Refusal
from commtax.units import format_mean
from commtax.verbs.billing import LEAST_S, step_shares
from commtax.verbs.disaggregation import Disaggregation, check_apart, decoding_of, network_of, pool_notes, prompter, prompting_of
from commtax.verbs.fit_advice import check_lengths, default_limits_notes, why_it_does_not_start
from commtax.verbs.fitting import reported_kv_tokens, state_places, state_tokens, step_limits
from commtax.verbs.keywords import SimulateOptions
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.loads import lengths_note
from commtax.verbs.prefix_tiers import prefix_loading_s, prefix_notes
from commtax.verbs.settling import Settled, context_notes, link_notes, resolve_question, settle
from commtax.verbs.steps import chunk_tokens, decode_workload, padding_notes, prompt_work, spread_s, step_bill

if TYPE_CHECKING:
    from commtax.verbs.profiles import LearntRest

QUEUES = (" of prompts stands before their workers", " of caches stands before the wire", " stands before the workers that decode")
Slopes = Mapping[str, Number]
ALONE = 1  # rank, or of several that wait for nobody
EXACT = 2.0**-20  # mean numbers are whole multiples of this: a sum that missed a full step by a rounding would start another tile


@dataclass(frozen=True)  # without slots: notes are kept
class ClosedLoop(Answer):
    """Means of a closed loop. TPOT = (E2E - TTFT) / (O - 1), and TTFT counts from sending to the first token.

    >>> import commtax
    >>> loop = commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=[1, 8, 64])
    >>> [f"{seconds * 1e3:.0f} ms" for seconds in loop.tpot_s]
    ['7 ms', '9 ms', '24 ms']
    """

    question: Settled
    running: Number  # requests a replica works on at once
    rows: Number  # of a decode step, padding included
    steps: Steps
    kv_tokens: Number
    served: ClosedLoopMeans
    bills: tuple[Bill, Bill]  # of a decode step and of one with prompts, line by line
    apart: Disaggregation | None = None
    publisher: str = ""  # who measured the run that it is compared with: ranges are narrower where others of theirs were seen
    learnt: Mapping[str, LearntRest] = field(default_factory=dict)  # by metric, where a profile's runs tell it
    explicit_notes: tuple[Note, ...] | None = None  # None: its own, which are made when they are read

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        return tuple(_notes(self)) if self.explicit_notes is None else self.explicit_notes

    @property
    def state_tokens(self) -> Number:
        return state_tokens(self.question)

    @property
    def reported_kv_tokens(self) -> Number:
        """KV tokens of a replica as an engine's log and ``fit`` count them, of arrays of plans those that its blocks hold."""
        if np.ndim(self.kv_tokens) or self.requests.kv_tokens is not None or not np.any(self.legal):
            return self.kv_tokens
        return reported_kv_tokens(self.question)

    @property
    def legal(self) -> Condition:
        return self.question.legal

    @property
    def requests(self) -> Requests:
        return self.question.requests

    @property
    def num_gpus(self) -> Number | None:
        """GPUs of all workers, or None where there are "enough" for prompts."""
        return self.apart.gpus(self.question.plan) if self.apart else self.question.plan.all_gpus

    @property
    def tpot_s(self) -> Number:
        return self.served.tpot_s

    @property
    def ttft_s(self) -> Number:
        return self.served.ttft_s

    @property
    def e2e_s(self) -> Number:
        return self.ttft_s + (self.requests.output_len - 1) * self.tpot_s

    @property
    def requests_per_s(self) -> Number:
        """Little's law: every client has one request under way."""
        return self.requests.concurrency / self.e2e_s

    @property
    def tokens_per_s(self) -> Number:
        """Output tokens of all replicas."""
        return self.requests_per_s * self.requests.output_len

    @property
    def decode_part_s(self) -> Number:
        """The decode step's part of TPOT, per token that it yields: as priced, and what a profile's runs tell beside."""
        return self.steps.decode_s / self.question.techniques.per_step * (np.exp(self.learnt["tpot"].log) if self.learnt else 1.0)

    @property
    def mixed_share(self) -> Number:
        """Share of decoding that goes to other requests' prompts."""
        return self.served.stretch_s / self.tpot_s

    @property
    def prompts(self) -> Question:
        return prompter(self.question) if self.apart else self.question

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Setting of the run on each of its chips, as far as published runs were pooled by it."""
        q, chips = self.question, dict.fromkeys(place.chip for place in self.question.places)
        return tuple(Setting.of(q.engine, chip, q.model, q.plan.weights_dtype, self.publisher) for chip in chips)

    @property
    def slopes(self) -> dict[str, Slopes]:
        """The d ln(latency) / d ln(constant) of ``tpot`` and ``ttft``, by the names of an engine's constants.

        TPOT and TTFT are sums of a decode step D, of a step with prompts P, and of what prompts add to shared steps, P - D. The
        steps are sums of lines, and each line goes by one constant, so nothing is priced again.
        """
        engine, served, decodes = self.question.engine, self.served, np.maximum(0.0, self.requests.output_len - 1)
        decode, prompt = (step_shares(bill, engine, self.running, i == 1) for i, bill in enumerate(self.bills))
        first, stretched = _added(served.ahead_s, self), _added(served.stretch_s, self)
        each = stretched | {"decode": stretched["decode"] + served.tpot_s - served.stretch_s}
        beside = {"prompt": served.prefill_s, "decode": served.boundary_s, "request": served.request_s}
        first_token = {name: first[name] + seconds for name, seconds in beside.items()}
        life = served.request_s + served.boundary_s + served.prefill_s + served.ahead_s + decodes * served.tpot_s
        waited = served.slot_s / np.maximum(LEAST_S, life)  # for a slot: whole lives of requests
        first_token_parts = {name: part + waited * (part + decodes * each[name]) for name, part in first_token.items()}
        parts = {"tpot": (each, served.tpot_s), "ttft": (first_token_parts, served.ttft_s)}
        return {
            metric: {
                name: (part["decode"] * decode.get(name, 0.0) + part["prompt"] * prompt.get(name, 0.0)) / whole
                for name in dict.fromkeys([*decode, *prompt])
            }
            | {"request_s": part["request"] / whole, "pace_prompt_steps": part["prompt"] / whole}
            for metric, (part, whole) in parts.items()
        }

    @property
    def measured_here(self) -> bool:
        """Whether runs of this engine were measured on this chip, in this number format where that is known, or by a profile."""
        host = self.question.engine.host
        if host.pooled and not host.host_label:
            return all(map(is_measured, self.settings))
        return host.calibrated and (bool(host.host_label) or all(setting.chip in host.served_on for setting in self.settings))

    @property
    def basis(self) -> str:
        """What the ranges rest on: calibrated where engine, chip and library were measured, else transferred or assumed."""
        if not self.question.engine.host.calibrated:
            return "assumed"
        lines = [line for step in self.bills for line in step.lines]
        measured = not any(line.source.kind == "assumed" and np.any(np.asarray(line.exposed_s) > 0) for line in lines)
        return "calibrated" if measured and self.measured_here else "transferred"

    def sigma_of(self, name: str) -> Number:
        """Return the standard deviation of the logarithm of ``tpot_s``, ``ttft_s``, or ``tokens_per_s`` (from both, by their time).

        Pooled engines err as published runs of whole engines, chips and families did that were left out of the fit. Nowhere is a
        time surer than the step that it is made of; elsewhere than where the engine ran, steps err on their own.
        """
        if name == "tokens_per_s":
            share = self.ttft_s / self.e2e_s
            return share * self.sigma_of("ttft_s") + (1 - share) * self.sigma_of("tpot_s")
        decode, prompt = (step.sigma for step in self.bills)
        part = prompt if name == "ttft_s" else np.maximum(decode, decode + (prompt - decode) * self.mixed_share)
        host, mixture, metric = self.question.engine.host, self.question.model.experts is not None, name.removesuffix("_s")
        pooled = host.pooled and not host.host_label  # then groups that were left out of the fit tell it, the widest of its chips'
        deviations = [transferred_sigma(setting, metric, mixture) for setting in self.settings] if pooled else []
        whole_run = max(deviations) if pooled else getattr(host, f"sigma_{metric}{'_moe' if mixture else ''}")
        whole = np.maximum(whole_run, part) if pooled or self.measured_here else np.hypot(whole_run, part)
        sigma = np.hypot(whole, 0.0 if name == "ttft_s" else draft_width(self.question) / Z80)
        return self.learnt[metric].sigma_beside(sigma) if self.learnt else sigma

    def range_of(self, name: str) -> tuple[Number, Number]:
        """Return the 80 % range of ``tpot_s``, ``ttft_s`` or ``tokens_per_s``. No token is faster than its bytes are read."""
        factor, value = np.exp(Z80 * self.sigma_of(name)), getattr(self, name)
        if name != "tpot_s":
            return value / factor, value * factor
        floor = self.bills[0].least_s(self.question.cluster.chip.memory_Bps) / most_per_step(self.question)
        return np.maximum(value / factor, np.minimum(value, floor)), value * factor


def simulate(model: str | Model, cluster: str | Cluster, **options: Unpack[SimulateOptions]) -> ClosedLoop:
    """Price the mean TPOT and TTFT of ``concurrency`` clients that each send a request as soon as the last one is answered.

    >>> import commtax
    >>> loop = commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32, input_len=1024, output_len=256)
    >>> f"TTFT {loop.ttft_s * 1e3:.0f} ms, TPOT {loop.tpot_s * 1e3:.0f} ms, {loop.tokens_per_s:,.0f} tokens/s"
    'TTFT 59 ms, TPOT 12 ms, 2,563 tokens/s'

    Sizes, concurrency and lengths may be arrays. ``num_prompts`` adds the burst at the start of a finite benchmark; lengths vary
    by ``spread`` of their mean to either side. With ``disaggregated``, prompts run on workers of their own, on another cluster
    where ``prefill_cluster`` names one. ``kv_tokens`` is the size of a replica's cache where it is known; else memory is judged.
    For requests at a rate and their percentiles: ``commtax.serve``.
    """
    return price_closed_loop(settle(check_lengths(resolve_question(model, cluster, check_taken("simulate", options)))))


@cache_answers
def price_closed_loop(q: Settled) -> ClosedLoop:
    """Price the closed loop of a question."""
    questions.check_pictures(q, q.requests.input_len)
    need_accepted(q)
    load, kv_tokens = _load(q), q.requests.kv_tokens
    kv = cache_tokens(q) if kv_tokens is None else kv_tokens
    most = np.minimum(step_limits(q)[1], state_places(q, kv))
    seqs = loop.running_requests(load, q.engine, kv, most, loop.fed_requests(load, step_limits(q)[0], q.plan.pp, q.engine))
    check_apart(q)
    if q.requests.disaggregated:
        return _disaggregated_loop(q, load, kv, most, np.ceil(load.concurrency / seqs))
    return _shared_workers(q, load, seqs, kv, most)


def _answer(q: Settled, load: ClosedLoopLoad, seqs: Number, *parts: Any) -> ClosedLoop:
    """Return the closed loop with the rows of a decode step, and what the constants do not explain of a profile's latencies."""
    work = replace(decode_workload(np.ceil(fullest_batch(seqs, q.plan.pp)), load), rows_per_seq=load.rows)
    answer = ClosedLoop(q, seqs, padded_rows(work.rows, work, q.engine, q.plan.tp, q.what_if.eager), *parts)
    if not q.profile or not q.profile.lessons:
        return answer
    from commtax.catalog.posterior import LoadPoint  # not for those who have no profile
    from commtax.verbs.profiles import learnt_rest

    at = LoadPoint(q.requests.concurrency, q.requests.input_len, q.requests.output_len)
    rest = {metric: learnt_rest(q, metric, at, slopes, answer.apart is not None) for metric, slopes in answer.slopes.items()}
    least = np.minimum(1.0, answer.bills[0].least_s(q.cluster.chip.memory_Bps) / answer.tpot_s)  # no step beats physics
    rest["tpot"] = rest["tpot"]._replace(log=np.maximum(rest["tpot"].log, np.log(least)))
    factors = (np.exp(rest[metric].log) for metric in ("tpot", "ttft"))
    return replace(answer, served=loop.scaled(answer.served, *factors), learnt=rest)


def _disaggregated_loop(q: Settled, load: ClosedLoopLoad, kv: Number, most: Number, enough: Number) -> ClosedLoop:
    """Price prompts on workers of their own: decoding is never stretched, and requests queue for prompt workers, wire and slots."""
    wanted, pp, ahead = q.requests, q.plan.pp, prompter(q)
    check_sides(q, ahead.plan.tp)
    if any(x is not None for x in (wanted.prefill_tp, wanted.prefill_dp, wanted.prefill_cluster)):  # must be legal
        settle(ahead.but(weights_dtype="", kv_dtype="", profile=None))
    copies = enough if wanted.decode_workers is None else wanted.decode_workers
    ahead_tokens = cache_tokens(ahead) if wanted.kv_tokens is None else np.inf
    apart = Disaggregation(ahead.plan, wanted.prefill_workers, copies, ahead_tokens)
    room = loop.running_requests(replace(load, concurrency=np.inf), q.engine, kv, most)
    prompting, prompt = prompting_of(ahead, load, apart.senders, apart.kv_tokens)
    net = network_of(q, load, wanted.concurrency, apart, prompting, decoding_of(q, load, room, apart.copies))
    passed = flow(net)
    bills = step_bill(q, decode_workload(np.ceil(fullest_batch(passed.seqs, pp)), load)), prompt
    served = disaggregated_means(net, passed, q.engine, wanted.num_prompts, load.loading_s)
    steps = Steps(passed.step_s, prompt.step_s, load.computed / chunk_tokens(ahead, load.computed), 1, pp, decoding=passed.seqs)
    return _answer(q, load, passed.seqs, steps, kv, served, bills, replace(apart, net=net, passed=passed))


def _shared_workers(q: Settled, load: ClosedLoopLoad, seqs: Number, kv: Number, most: Number) -> ClosedLoop:
    """Price one pool of workers that computes prompts and decodes, in shared steps or in turn."""
    engine, pp, budget, first = q.engine, q.plan.pp, step_limits(q)[0], q.engine.serves.prefill_first
    ranks = ALONE if q.model.experts is None else q.plan.dp  # a prompt of one holds up all that share experts
    load = loop.with_patience(load, ranks, seqs, engine)
    full = loop.pressure(load, engine, kv, seqs, most, loop.fed_requests(load, budget, pp, engine))
    decodes = loop.decoding_seqs(load, seqs, budget, pp, engine)
    beside = pick(first, 0.0, np.floor((decodes - 1) / pp / EXACT) * EXACT)
    room = np.maximum(1.0, budget - beside * load.rows)  # for prompt tokens, with the rows of each decode beside them
    tokens = loop.prompt_tokens(load, seqs, room, engine, pp)
    chunks, together = np.maximum(1.0, load.computed / tokens), np.maximum(1.0, tokens / load.computed)
    decode = step_bill(q, decode_workload(np.ceil(fullest_batch(decodes, pp)), load))
    prompt = step_bill(q, q.seen(prompt_work(beside, load, tokens, together), load.input_len))
    spread = 0.0 if ranks is ALONE else spread_share(q, decode, prompt)
    steps = Steps(decode.step_s, prompt.step_s, chunks, together, pp, ranks, spread, decodes)
    queued = pick(first, loop.gathered_prompts(load, steps, seqs, engine), seqs - decodes) * (load.output_len > 1)
    begin = None
    if not np.all(np.isinf(load.num_prompts)):
        most, least = loop.burst_prompts(load, seqs, budget, engine), 0.0 if engine.serves.chunked else load.computed
        work = prompt_work(beside / 2, load, np.minimum(most * load.computed, np.maximum(budget, least)), most)
        full_s = step_bill(q, q.seen(work, load.input_len)).step_s * np.maximum(1.0, chunks)
        begin = loop.Beginning(most, full_s, loop.prompts_ahead(replace(load, num_prompts=np.inf), seqs, room, engine, pp, queued))
    served = loop.closed_loop(load, steps, seqs, loop.prompts_ahead(load, seqs, room, engine, pp, queued), engine, full, begin)
    return _answer(q, load, seqs, steps, kv, served, (decode, prompt))


def spread_share(q: Question, decode: Bill, prompt: Bill) -> Number:
    """Return the share of the seconds added by prompts that all ranks of attention data parallelism work off together."""
    without = 0.0 if q.engine.serves.prefill_first else 1.0
    added = np.maximum(1e-12, prompt.step_s - without * decode.step_s)
    return np.clip((spread_s(prompt) - without * spread_s(decode)) / added, 0.0, 1.0)


def _load(q: Question) -> ClosedLoopLoad:
    wanted, prompts = q.requests, q.requests.num_prompts
    if not np.all(np.isinf(prompts)):
        prompts = positive(num_prompts=prompts)
        if np.any(np.asarray(prompts) < wanted.concurrency):
            raise Refusal.of(f"at least as many as clients, {wanted.concurrency}, are needed", num_prompts=prompts)
    dp = q.plan.dp * q.plan.replicas
    each, lengths = wanted.concurrency / dp, (wanted.input_len * 1.0, wanted.output_len * 1.0)
    cached = q.offered.cached_tokens(lengths[0])
    loading = prefix_loading_s(prompter(q) if wanted.disaggregated else q, cached)
    kept = state_tokens(q) + q.speculative  # drafts are in the cache while they are checked
    return drafted_load(ClosedLoopLoad(each, *lengths, prompts / dp, wanted.spread, kept, cached, loading), q)


def _notes(s: ClosedLoop) -> Iterator[Note]:
    q, wanted, plan, apart = s.question, s.requests, s.question.plan, s.apart
    # Idle GPUs are counted over both kinds of workers, where there are two.
    yield from (note for note in q.notes if not apart or note.code != "idle-gpus")
    if wanted.prefill_cluster and not any(np.ndim(getattr(plan, axis)) for axis in SIZES):
        ahead = [note for note in settle(prompter(q).but(codes=0)).notes if note.code in ("arithmetic", "cluster")]
        yield from (Note(note.code, f"prompts: {note}") for note in ahead if note not in q.notes)
    yield from draft_notes(q)
    yield from link_notes(q)
    if np.ndim(wanted.spread) == 0:
        yield lengths_note(q)
    if why := why_it_does_not_start(q):
        yield Note("too-long", why)
    else:
        yield from default_limits_notes(q, wanted.tokens)
    yield from pool_notes(q)
    if not apart:
        yield from padding_notes(q, s.running, s.rows)
    if any(np.ndim(x) for x in (s.running, s.kv_tokens)):
        return
    yield from context_notes(q, wanted.tokens)
    yield from prefix_notes(s.prompts)
    each = wanted.concurrency if apart else wanted.concurrency / plan.dp / plan.replicas
    yield from _left_out_notes(s, float(each))
    holds_one = s.kv_tokens >= wanted.tokens + s.state_tokens
    if not holds_one:
        yield Note("too-small", "one request does not fit into the KV cache (see commtax fit); priced as if one ran")
    if apart and apart.net and apart.passed and apart.passed.queued:
        passes = ", ".join(f"{name} {format_mean(x)}" for name, x in zip(STATIONS, apart.net.limits, strict=True) if np.isfinite(x))
        lengthens = "more clients only lengthen it; at most, in requests/s"
        yield Note("queue", f"a queue{QUEUES[int(apart.passed.slowest)]}: {lengthens}: {passes}")
    elif not apart and holds_one and s.running < each - 0.5:
        limit, seqs = "the KV cache", step_limits(q)[1]
        most = min(seqs, float(state_places(q, s.kv_tokens)))
        if s.running == most:
            limit = "the pool of states (room for" if most < seqs else "the engine's limit (max_num_seqs"
            limit += f" {most:,.0f})"
        room = f"; it holds {s.reported_kv_tokens:,.0f} tokens" if s.running < most else ""
        yield Note("waiting", f"{s.running:,.0f} of {format_mean(each)} requests of a replica run at once, for {limit}{room}")


def _left_out_notes(s: ClosedLoop, each: float) -> Iterator[Note]:
    """Yield notes on what happens in time and means leave out, and on requests that wait for prompts."""
    q, serves, decoding = s.question, s.question.engine.serves, float(s.steps.decoding)
    net, passed = (s.apart.net, s.apart.passed) if s.apart else (None, None)
    if queued := 0 < decoding < 0.8 * s.running:
        text = f"about {decoding:,.0f} of {format_mean(s.running)} requests decode at once; the others wait for their prompts"
        yield Note("prompts", text)
    running = Crowd(
        clients=each,
        room=float(s.kv_tokens / (s.requests.input_len + s.requests.output_len + s.state_tokens)),
        steps=float(s.requests.output_len) + 1,
        spread=float(s.requests.spread),
        ranks=float(s.steps.ranks),
        patient=bool(serves.rank_patience),
        stages=float(q.plan.pp),
        piled=float(step_bill(q, decode_workload(np.ceil(decoding), _load(q))).step_s / s.steps.decode_s) if q.plan.pp > 1 else 1.0,
        prompts=float(s.mixed_share),
        together=float(s.steps.together),
        replicas=1.0 if s.apart else float(q.plan.replicas),
        way=0.0 if s.apart else float(q.engine.host.request_s / s.steps.decode_s),
        fed=decoding if queued or s.apart else float("inf"),
        longest=0.0 if serves.chunked or s.apart else float(s.requests.input_len * (1 + s.requests.spread)),
        budget=float(step_limits(q)[0]) - decoding,
        load=float(load_share(net, passed)) if net and passed and not passed.queued else 0.0,
    )
    yield from (Note(code, f"{LEFT_OUT[code]}; simulate with --num-prompts to see it") for code in left_out(running))


def _added(seconds: Number, s: ClosedLoop) -> dict[str, Number]:
    """Return seconds that go as P - D does, or as P where prompts run in steps of their own, by what they go with."""
    beside = 0.0 if s.apart or s.question.engine.serves.prefill_first else s.steps.decode_s
    added = np.maximum(LEAST_S, s.steps.prompt_s - beside)
    return {"prompt": seconds * s.steps.prompt_s / added, "decode": -seconds * beside / added, "request": 0.0 * seconds}


def imagined(answer: ClosedLoop) -> list[RunLesson]:
    """Return the latencies of an answer as lessons not yet measured: its loads one after the other, TPOT then TTFT."""
    from commtax.catalog.posterior import deployment_of  # not for those who have no profile

    q, wanted, slopes = answer.question, answer.requests, answer.slopes
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan, answer.apart is not None)
    loads = np.broadcast_arrays(*(np.atleast_1d(x) for x in (wanted.concurrency, wanted.input_len, wanted.output_len)))

    def at(value: object, i: int) -> float:
        return float(np.broadcast_to(np.asarray(value, float), len(loads[0]))[i])

    made = []
    for i, metric in product(range(len(loads[0])), LATENCIES):
        clients, prompt, output = (float(x[i]) for x in loads)
        seconds, by_constant = at(getattr(answer, f"{metric}_s"), i), {name: at(x, i) for name, x in slopes[metric].items()}
        made.append(RunLesson(where, metric, clients, prompt, output, seconds, seconds, 0.0, by_constant))
    return made
