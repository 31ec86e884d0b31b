"""Prompts on workers of their own, as ``cost.network`` takes them: both kinds of workers, and the wire between them."""

from collections.abc import Sequence

import numpy as np

from commtax.arrays import Array, cache_answers, pick
from commtax.catalog.programs import program_of
from commtax.cost import closed_form as loop
from commtax.cost.caches import hidden_s, kv_bytes_per_token, pieces_sent, posted_pieces, state_bytes_per_sequence
from commtax.cost.closed_form import ClosedLoopLoad, fullest_batch, prompt_passes
from commtax.cost.memory import on_chip
from commtax.cost.network import CacheWire, DecodeStation, Flow, PromptStation, QueueNetwork, nodes_to
from commtax.cost.traffic import bulk_backend
from commtax.ledger import Bill
from commtax.question import PARTS, Question
from commtax.records import dataclass, replace
from commtax.rules.techniques import carrier_of
from commtax.spec import SIZES, Cluster, Model, Number, Plan
from commtax.statement import Note, Refusal
from commtax.verbs.fitting import step_limits
from commtax.verbs.kv_caches import outside_Bps
from commtax.verbs.settling import Settled, describe_experts, describe_sizes, replan
from commtax.verbs.steps import chunk_tokens, decode_workload, prompt_work, spread_s, step_bill

WORKERS = tuple(name for name in PARTS["requests"] if name.endswith(("_workers", "_tp", "_dp")))
KINDS = ("for prompts", "for decoding")
Pool = tuple[object, Plan]  # how many workers there are, in words or a number, and one of them
APART_ALONE = "belongs to disaggregated serving; add --disaggregated"
UNCHECKED = "predictions of two pools inside one host are unchecked: measure"  # no published run has both pools in one host


@dataclass(frozen=True, slots=True)
class Disaggregation:
    """Disaggregated serving: what a prompt worker is, and how many there are of each kind."""

    plan: Plan  # of one prompt worker
    workers: Number | None  # None: enough that no prompt waits
    copies: Number  # workers that decode
    kv_tokens: Number = np.inf  # that a prompt worker has room for
    net: QueueNetwork | None = None  # both with the wire between them …
    passed: Flow | None = None  # … and what passes

    @property
    def senders(self) -> Number:
        """Prompt workers, without end where they are enough."""
        return np.inf if self.workers is None else self.workers

    def gpus(self, decoder: Plan) -> Number | None:
        """Count the GPUs of all workers. None: there are "enough" for prompts."""
        return None if self.workers is None else decoder.num_gpus * self.copies + self.plan.num_gpus * self.workers


def prompter(q: Question) -> Question:
    """Return the question of a prompt worker: its tp and ranks of attention, experts spread where they were or ranks share them."""
    wanted, plan = q.requests, q.plan
    tp = plan.tp if wanted.prefill_tp is None else wanted.prefill_tp
    dp = 1 if wanted.prefill_dp is None else wanted.prefill_dp
    spread = (np.asarray(plan.ep) > 1) | (dp > 1 and q.model.experts is not None)
    return where_prompts_run(q, tp=tp, dp=dp, ep=pick(spread, tp * dp, 1), dcp=1)


def where_prompts_run(q: Question, **sizes: object) -> Question:
    """Return the question of prompt workers of some sizes: on their cluster where they have one, as the engine runs on its chip."""
    backend, place, q = q.what_if.ep_backend, q.requests.prefill_cluster, q.plain() if isinstance(q, Settled) else q
    if place:
        q = q.but(cluster=place, engine=on_chip(q.engine, place.chip), prefill_cluster=None)
    return replan(q, **sizes, ep_backend=bulk_backend(backend), max_num_seqs=0)  # that counts requests that decode


def check_pools(q: Question, ahead: Plan, counts: tuple[int | None, int | None]) -> None:
    """Refuse workers of both kinds, at least one of each, that have no room together, or each on its own cluster."""
    names, several = ("prefill_workers", "decode_workers"), [n or 1 for n in counts]
    each = [int(ahead.num_gpus), int(q.plan.num_gpus)]
    total = several[0] * each[0] + several[1] * each[1]
    both = f"{several[0]} x {each[0]} GPUs for prompts + {several[1]} x {each[1]} for decoding = {total}"
    needs = [(0 if counts[0] else 1, total, both, q.cluster)]
    if len(q.places) > 1:
        wanted = [f"{n} x {size} GPUs {kind} = {n * size}" for n, size, kind in zip(several, each, KINDS, strict=True)]
        needs = [(at, several[at] * each[at], wanted[at], place) for at, place in enumerate(q.places)]
    for at, gpus, needed, place in needs:
        if gpus > place.num_gpus:
            raise Refusal(f"{names[at]}={several[at]}: {needed}, but {place.key} has {place.num_gpus}", names[at])


def check_apart(q: Question) -> None:
    """Refuse options of disaggregated serving elsewhere, and there replicas, which it counts as decode workers."""
    wanted, copies = q.requests, q.plan.replicas
    if not wanted.disaggregated:
        for name in WORKERS:
            if (value := getattr(wanted, name)) is not None:
                raise Refusal(f"{name}={value}: {APART_ALONE}", name)
        if wanted.prefill_cluster is not None:
            raise refuse_place(wanted.prefill_cluster, APART_ALONE)
    elif np.any(np.asarray(copies) > 1):
        raise Refusal.of("disaggregated serving counts its servers as decode_workers", replicas=copies)


def pool_notes(q: Question) -> list[Note]:
    """Return the note that predictions of such pools were never compared with a run."""
    alone = q.requests.disaggregated and len(q.places) == 1 and q.cluster.num_hosts == 1
    return [Note("pools", f"{UNCHECKED} before you rely on these")] if alone else []


def network_of(
    q: Question, load: ClosedLoopLoad, clients: Number, apart: Disaggregation, prompting: PromptStation, decoding: DecodeStation
) -> QueueNetwork:  # fmt: skip
    """Return the queues of both kinds of workers, of which one each is priced, with the wire between them."""
    pp = q.plan.pp
    request_s, wire = q.engine.host.request_s + load.loading_s, wire_of(q, apart, load.input_len, prompting.one_s)
    turns = loop.boundary_turns(q.engine, pp) - 0.5 / pp  # caches come at any time, not as a step ends
    rules = load.spread, turns, q.engine.serves.ahead * (np.asarray(pp) == 1), load.steps_per_token
    return QueueNetwork(clients, load.decodes, request_s, prompting, wire, decoding, *rules)


def prompting_of(q: Question, load: ClosedLoopLoad, workers: Number, kv_tokens: Number = np.inf) -> tuple[PromptStation, Bill]:
    """Return workers of one plan that compute prompts, and their step, which as many share as its tokens and the cache admit."""
    plan, serves = q.plan, q.engine.serves
    (budget, seqs), chunk = step_limits(q), chunk_tokens(q, load.computed)
    fitting = budget / load.computed if serves.chunked else budget // load.computed
    admitted = np.minimum(np.floor(kv_tokens / load.input_len), min(seqs, serves.prompts_per_step))
    most: Number = np.maximum(1.0, np.minimum(fitting, admitted))
    two, chunks, alone = np.maximum(2.0, most), load.computed / chunk, lone_ranks(q.model, plan)
    one, several = (step_bill(q, q.seen(prompt_work(0.0, load, n * chunk, n), load.input_len)) for n in (1.0, two))
    one_s = one.step_s * prompt_passes(chunks, plan.pp, q.engine)
    more_s: Number = np.maximum(0.0, several.step_s - one.step_s) / (two - 1)
    ranks = plan.dp / alone
    follows = (np.asarray(chunks) > 1) & serves.chunks_follow  # one prompt fills all stages, and the next comes behind it
    more_s, most = pick(follows, one.step_s * chunks / plan.pp, more_s), pick(follows, plan.pp * 1.0, most)
    together, ranks = pick(np.asarray(plan.pp) == 1, ranks, 1.0), pick(follows, ranks, ranks * plan.pp)  # stages follow one by one
    return PromptStation(workers * alone, one_s, more_s, most, ranks, together, spread_s(one) / one.step_s, load.spread), one


def lone_ranks(model: Model, plan: Plan) -> Number:
    """Count the ranks of attention data parallelism that share no experts: each is a worker of its own."""
    return 1 if model.experts is not None else plan.dp


def decoding_of(q: Question, load: ClosedLoopLoad, room: Number, copies: Number) -> DecodeStation:
    """Return workers that decode, their steps priced for batches of all sizes. Batches are the first axis."""
    return DecodeStation.of(copies, q.plan.dp, room, _decode_steps(q.normal(), load.input_len, load.output_len, room))


@cache_answers
def _decode_steps(q: Question, input_len: Number, output_len: Number, room: Number) -> Array:
    """Price the step of each batch. Splits of a cluster that differ only in the number of workers share steps."""
    sizes = np.broadcast_shapes(*map(np.shape, (*(getattr(q.plan, axis) for axis in SIZES), input_len, output_len, room)))
    batches = nodes_to(room).reshape(-1, *(1,) * len(sizes))
    work = decode_workload(np.ceil(fullest_batch(batches, q.plan.pp)), ClosedLoopLoad(1.0, input_len, output_len))
    return np.broadcast_to(step_bill(q, work).step_s, (len(batches), *sizes))


def cache_bytes(q: Question, tokens: Number) -> Number:
    """Return the bytes of the cache of so many tokens, on all ranks of a worker that decodes it."""
    model, plan = q.model, q.plan
    return (kv_bytes_per_token(model, plan) * tokens + state_bytes_per_sequence(model, plan)) * plan.tp


def wire_of(q: Question, apart: Disaggregation, tokens: Number, prompt_s: Number = 0.0) -> CacheWire:
    """Return how long a prompt's cache moves to the ranks that decode, each pair of ranks over its share of the link.

    The GPUs of all workers of both kinds decide whether caches leave a fast domain. A worker's links are those of all its ranks;
    GPUs of a host that share fewer NICs divide them. Between two clusters caches leave by the slower NICs of both. A carrier takes
    its share of a link, and time for each piece; what can leave while the prompt is computed, in ``prompt_s``, hides behind that.
    """
    carrier = carrier_of(q)
    cluster, plan, ahead, nbytes = q.cluster, q.plan, apart.plan, cache_bytes(q, tokens)
    leaving = ahead.num_gpus * apart.senders, plan.num_gpus * apart.copies
    here, there = q.places[0], q.places[-1]
    sent_Bps, taken_Bps = (outside_Bps(place, gpus) for place, gpus in zip((here, there), leaving, strict=True))
    latency_s: Number = max(here.inter.latency_s, there.inter.latency_s)
    if here is there:
        gpus = apart.gpus(plan)
        gpus = cluster.num_gpus if gpus is None else gpus
        crosses, two, rest = np.minimum(gpus, cluster.num_gpus) > cluster.domain, cluster.as_pairs.intra, cluster.intra
        inside = pick(gpus == 2, two.bandwidth_Bps, rest.bandwidth_Bps)  # one rank each: neighbours
        sent_Bps, taken_Bps = (pick(crosses, outside, inside) for outside in (sent_Bps, taken_Bps))
        latency_s = pick(crosses, latency_s, pick(gpus == 2, two.latency_s, rest.latency_s))
    sent_Bps, taken_Bps = sent_Bps * carrier.share, taken_Bps * carrier.share
    posted_s: Number = 0.0  # that a rank posts the pieces of a request's cache
    moving_s = nbytes / np.minimum(plan.tp * taken_Bps, ahead.tp * sent_Bps)
    if carrier.piece_s:
        page = q.limits.block_size or q.engine.memory.block_size
        pieces = pieces_sent(q.model, carrier, program_of(q.engine).key, tokens, page, plan.tp, ahead.tp)
        posted_s = carrier.piece_s * posted_pieces(carrier, pieces, plan.tp, ahead.tp)
    kind = carrier.stages.get(program_of(q.engine).key, "")  # parts of a cache leave as they are computed, or all of it then
    chunks = np.ceil(tokens / chunk_tokens(q, np.maximum(1, tokens))) if kind == "chunks" else 1
    hidden = hidden_s(posted_s + moving_s, prompt_s, q.model.num_layers if kind == "layers" else chunks)
    alone_s = q.engine.host.handover_s + latency_s + carrier.transfer_s + posted_s + moving_s - hidden
    lone = lone_ranks(q.model, ahead)
    out_s, in_s = nbytes * lone / (ahead.num_gpus * sent_Bps), nbytes / (plan.num_gpus * taken_Bps)
    if carrier.pushes:  # whoever posts has no time for other caches meanwhile
        out_s = np.maximum(out_s, posted_s * lone * ahead.tp / ahead.num_gpus)
    else:
        in_s = np.maximum(in_s, posted_s * plan.tp / plan.num_gpus)
    return CacheWire(alone_s, out_s, in_s, hidden)


def refuse_place(ahead: Cluster | None, rule: str) -> Refusal:
    """Return the refusal of a cluster for prompts that a rule forbids."""
    return Refusal(f"prefill_cluster={ahead.key if ahead else ''}: {rule}", "prefill_cluster")


def check_one_place(put: Question) -> Question:
    """Refuse a cluster for prompts: fleets are searched where prompts run beside decoding."""
    if ahead := put.requests.prefill_cluster:
        rule = "fleets for a rate are sought on one cluster; plan without a rate, or simulate with one, takes two"
        raise refuse_place(ahead, rule)
    return put


def describe_pools(places: Sequence[Cluster], prompts: Pool, decode: Pool, over: str = "") -> str:
    """Describe both kinds of workers, and their places where those are two. Their exchange of experts is described once."""
    (_, ahead), (_, decoder) = pools = prompts, decode
    alike = ahead.ep > 1 and decoder.ep > 1 and ahead.redundant == decoder.redundant
    shared = describe_experts([ahead, decoder], over) if alike else ""
    where = [f" on {place.key}" for place in places] if len(places) > 1 else ["", ""]
    described = [
        f"{count} x " * bool(count) + describe_sizes(replace(plan, replicas=1)) + ("" if alike else describe_experts([plan], over))
        for count, plan in pools
    ]
    return " + ".join(f"{words}{at} {kind}" for words, at, kind in zip(described, where, KINDS, strict=True)) + shared
