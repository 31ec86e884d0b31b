"""What fits: ``commtax.fit("llama-3.1-70b", "8xh100-sxm")``."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from functools import cache, reduce
from typing import ClassVar, Literal

import numpy as np

from commtax.answer import Answer
from commtax.arrays import unique_values
from commtax.cost import memory
from commtax.cost.caches import CacheGroup, KvPool, kv_bytes_per_token_layer, state_bytes_per_sequence
from commtax.judgement.engine_limits import LENGTH, stopped_by
from commtax.question import Question
from commtax.records import dataclass, replace
from commtax.rules.drafts import stage_pool
from commtax.spec import SIZES, Condition, Model, Number, Profile
from commtax.statement import Refusal
from commtax.verbs import kv_caches
from commtax.verbs.billing import USABLE, StepBill
from commtax.verbs.settling import AUTO_EP, Settled, replan, settle

May = Callable[[int, int], bool]  # whether (tp, pp) may fit


@dataclass(frozen=True, slots=True)
class Fit(Answer):
    """Whether a plan fits, and what each rank of the tightest stage holds.

    >>> import commtax
    >>> commtax.fit("llama-3.1-405b", "8xh100-sxm").advice[0]
    '--dtype fp8 (smaller weights)'
    """

    trains: ClassVar[Literal[False]] = False
    question: Settled  # with all limits said
    stage: int
    weights: tuple[memory.WeightLine, ...]
    budget_bytes: float
    activation_bytes: float
    other_bytes: float
    graph_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    kv_blocks: int
    kv_tokens: int  # as the engine's log counts them
    max_concurrency: float
    needed_kv_bytes: float
    pool: KvPool
    over_bytes: float = 0.0  # by how much a fixed KV cache exceeds the chip
    chosen: bool = False
    advice: tuple[str, ...] = field(default=())
    roomier: Fit | None = None  # the same with engine limits that make more room, where caches are small

    @property
    def weights_bytes(self) -> float:
        return float(sum(w.nbytes for w in self.weights))

    @property
    def block_size(self) -> int:
        """Tokens of a block, which an engine may have raised to hold a state."""
        return int(self.pool.block_size)

    @property
    def state_bytes_per_sequence_per_rank(self) -> float:
        """What a rank keeps of a sequence whatever its length."""
        return float(self.pool.state_bytes)

    @property
    def state_bytes_per_sequence(self) -> float:
        """… of all layers, once: as one rank would keep it that had them all."""
        return float(state_bytes_per_sequence(self.question.model, replace(self.question.plan, tp=1)))

    @property
    def state_pool_bytes(self) -> float:
        """Bytes of a pool for states alone, as negative as the KV cache's where weights leave nothing."""
        return self.kv_bytes * self.pool.share if self.state_bytes_per_sequence_per_rank else 0.0

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request that the cache holds, with its states, or 0."""
        step, pool = kv_caches.in_flight_tokens(self.question), self.pool
        if not self.holds_one and pool.places(pool.tokens(self.kv_blocks)) < 1:
            return 0
        lengths = range(1, int(pool.tokens(self.kv_blocks)) * len(pool.groups) + 1)
        return bisect_right(lengths, self.kv_blocks, key=lambda length: int(pool.blocks_per_request(length, step)))

    def holds(self, seqs: int, tokens: int) -> bool:
        """Return whether there is room for so many sequences."""
        return seqs <= self.most_seqs(tokens)

    def most_seqs(self, tokens: int) -> int:
        """Count the sequences of so many tokens each that there is room for, with their states."""
        room = float(self.pool.tokens(self.kv_blocks))
        if not self.state_bytes_per_sequence_per_rank:
            return int(room // tokens)
        return int(min(room // (tokens + float(self.pool.state_tokens)), float(self.pool.places(room))))

    @property
    def kv_tokens_range(self) -> tuple[int, int]:
        """Range of the KV tokens that four of five start-ups show. A fixed cache is exact."""
        spread = 0.0 if self.question.limits.kv_cache_memory_bytes else self.question.engine.memory.kv_spread_bytes
        each = self.kv_tokens / self.kv_bytes if self.kv_bytes > 0 else 0.0
        return max(0, int(self.kv_tokens - spread * each)), int(self.kv_tokens + spread * each)

    @property
    def stopped_by(self) -> str:
        """The limit with which a server does not start, as options are named, or ""."""
        most = self.kv_blocks if kv_caches.needs_blocks_for_states(self.question) else math.inf
        return stopped_by(self.max_concurrency, self.question.limits.max_num_seqs, most)

    @property
    def holds_one(self) -> bool:
        """Whether there is room for one request of full length, however many are let in."""
        return self.stopped_by != LENGTH

    @property
    def fits(self) -> bool:
        return not self.stopped_by

    @property
    def is_safe(self) -> bool:
        """Whether a GPU has all that is counted at once, whatever share of it the engine may take."""
        counted = self.weights_bytes + self.kv_bytes + self.activation_bytes + self.other_bytes + self.graph_bytes
        return counted <= self.question.cluster.chip.visible_bytes

    @property
    def shortfall_bytes(self) -> float:
        """Bytes a rank lacks to keep one request of full length, or a block for each sequence."""
        beside = 1 + self.pool.share if self.state_pool_bytes else 1.0  # a pool of states wants its share of what is added
        return 0.0 if self.fits else max(self.over_bytes, (self.needed_kv_bytes - self.kv_bytes) * beside)


def holds(put: Question, *, chosen: bool = True, stages: int | None = None) -> Fit:
    """Judge the plan of a question. Where its tp was not ``chosen``, judge the smallest that fits, with ``stages`` where set."""
    q = settle(replan(put) if not chosen and put.plan.ep == AUTO_EP else put)  # which spreads experts with another tp
    check_memory(q)
    q = replace(q, limits=kv_caches.limits_of(q))
    put = replace(put, limits=q.limits)
    if chosen:
        return judge(q)
    auto = put.plan.ep == AUTO_EP
    may, nearest = screen(q, auto), None
    for candidate in candidates(put, stages, lambda t, p: p == (stages or 1) or may(t, p), None if auto else q):
        judged = judge(candidate)
        if judged.fits:
            return replace(judged, chosen=True)
        if candidate.plan.pp == (stages or 1) and (nearest is None or judged.shortfall_bytes < nearest.shortfall_bytes):
            nearest = judged
    if nearest is None:  # no tp is legal without a pipeline, or with the rest of the plan: judging says which rule forbids tp 1
        nearest = judge(next(candidates(put, stages), q))
    return replace(nearest, chosen=True)


def screen(q: Question, auto_ep: bool) -> May:
    """Return whether (tp, pp) may fit, judging once per tp. It is false only where judging would find too few blocks.

    The fullest of pp stages holds at least 1 / pp of what a single one would, the last one samples, and a block has the bytes
    of at least one layer: of all of a stage's, where they share one window.
    """
    model, engine, room, windows = q.model, q.engine, q.limits, set(q.model.windows)
    if _has_states(model):
        return lambda *_: True  # blocks of such models are as large as states want them
    block, flight = room.block_size * int(q.plan.dcp), kv_caches.in_flight_tokens(q)
    wanted = min(int(CacheGroup(block, window).blocks(room.max_model_len, flight)) for window in windows)
    total, fixed = q.cluster.chip.visible_bytes, room.kv_cache_memory_bytes

    @cache
    def look(tp: int) -> tuple[Question, float, float, float, float]:
        plan = replace(q.plan, tp=tp, pp=1, ep=tp * q.plan.dp if auto_ep else q.plan.ep)
        loaded = float(sum(w.nbytes for w in memory.weights(model, plan, engine, 0, 1))) * (1 - 1e-9)
        limits = room.max_num_batched_tokens, room.max_num_seqs
        inner, last = (float(memory.activation_bytes(model, plan, engine, *limits, end)) for end in (False, True))
        layer = min(float(kv_bytes_per_token_layer(a, tp, plan.kv_dtype)) for a in model.attentions if a.own_cache)
        return replace(q, plan=plan), loaded, inner, last, layer * room.block_size

    def may(tp: int, pp: int) -> bool:
        one, loaded, inner, last, page = look(tp)
        most = page * (math.ceil(model.num_layers / pp) if len(windows) == 1 else 1)
        if fixed:
            free = total - max(loaded / pp + inner, last) - float(memory.other_bytes(one.plan, engine))
            return free * (1 + 1e-9) >= fixed and fixed // most >= wanted
        used = ((loaded / pp, inner), (0.0, last), (0.0, inner))
        fullest, end, deepest = (kv_caches.bytes_left_for_cache(one, weights, peak) for weights, peak in used)
        return bool(min(fullest, end) >= wanted * page and deepest >= wanted * most)

    return may


def judged_by_memory(put: Question) -> Question:
    """Return a question about seconds as memory judges it: without a profile that has no memory."""
    return put if put.profile and _tells_memory(put.profile) else put.but(profile=None)


def _tells_memory(profile: Profile) -> bool:
    return bool({"memory_bytes", "visible_bytes"} & set(profile.chip))


def check_memory(q: Question) -> None:
    """Refuse a profile without memory, which would change nothing here, and arrays of plans."""
    if q.profile and not _tells_memory(q.profile):
        raise Refusal.of("says nothing of memory (chip.memory_bytes), and fit needs no seconds", profile=q.profile.name)
    for name in SIZES:
        if np.ndim(getattr(q.plan, name)):
            raise Refusal(f"{name}: fit judges one plan at a time, not arrays of them", name)


def candidates(put: Question, pp: int | None = None, may: May | None = None, settled: Settled | None = None) -> Iterator[Settled]:
    """Yield legal plans that ``may`` fit, as users try them: tp in a fast domain, then a pipeline. One may be ``settled``."""
    model, cluster = put.model, put.cluster
    heads, groups = model.attention.num_heads, int(put.plan.dp) * int(put.plan.replicas)
    degrees = [t for t in range(1, min(cluster.domain, heads) + 1) if heads % t == 0]
    stages = range(2, min(model.num_layers, cluster.num_gpus // groups) + 1)
    pairs = [(t, p) for t in reversed(degrees) for p in stages if t * p * groups <= cluster.num_gpus]
    pairs.sort(key=lambda pair: -(-math.prod(pair) * groups // cluster.domain))  # in as few fast domains as have room
    for t, p in [(t, pp) for t in degrees] if pp else [(t, 1) for t in degrees] + pairs:
        with suppress(Refusal):  # of a rule that joins tp with another axis
            if not may or may(t, p):
                yield settled if settled and (t, p) == (settled.plan.tp, settled.plan.pp) else settle(put.but(tp=t, pp=p))


def judge(q: Settled) -> Fit:
    """Judge the memory of the tightest pipeline stage of a legal plan: the one that leaves the fewest KV blocks."""
    pp = int(q.plan.pp)
    return min((_stage(q, stage, pp) for stage in kv_caches.different_stages(q, pp)), key=lambda f: (f.kv_blocks, f.kv_bytes))


def state_tokens(q: Question) -> Number:
    """Return the cache room of one request's states in tokens, on the stage where they take most. Arrays as the plan."""
    return _worst_of_stages(q, lambda pool: pool.state_tokens, np.maximum) if _has_states(q.model) else 0.0


def state_places(q: Question, tokens: Number) -> Number:
    """Count the requests whose states have a place beside a cache of so many tokens. States inside the cache have no limit."""
    return _worst_of_stages(q, lambda pool: pool.places(tokens), np.minimum) if _has_states(q.model) else math.inf


def block_tokens(q: Question) -> int:
    """Return the tokens of a block of the cache of one plan."""
    return int(_worst_of_stages(q, lambda pool: pool.block_size, np.maximum))


def _has_states(model: Model) -> bool:
    return bool(model.recurrent) or any(a.compressed for a in model.attentions)


def _worst_of_stages(q: Question, figure: Callable[[KvPool], Number], worst: Callable[[Number, Number], Number]) -> Number:
    """Return the worst figure of the pools of all different stages. Arrays of plans have one for each number of stages."""
    size, many = q.limits.block_size or q.engine.memory.block_size, np.asarray(q.plan.pp)

    def of(pp: int) -> Number:
        return reduce(worst, (figure(stage_pool(q, stage, pp, size)) for stage in kv_caches.different_stages(q, pp)))

    first, *others = unique_values(many).astype(int).tolist()
    return reduce(lambda worst_yet, pp: np.where(many == pp, of(pp), worst_yet), others, of(first))


def step_limits(q: Question) -> tuple[int, int]:
    """Return the most tokens and requests of a step, the engine's own where the question sets none."""
    limits, serves = q.limits, q.engine.serves
    return int(limits.max_num_batched_tokens or serves.max_batched_tokens), int(limits.max_num_seqs or serves.max_seqs)


def _stage(q: Settled, stage: int, pp: int) -> Fit:
    engine, room, total = q.engine, q.limits, q.cluster.chip.visible_bytes
    lines, peak, pool = kv_caches.stage_contents(q, stage, pp)
    kv_bytes, over, blocks = kv_caches.cache_blocks(q, float(sum(w.nbytes for w in lines)), peak, pool)
    wanted = int(pool.blocks_per_request(room.max_model_len, kv_caches.in_flight_tokens(q)))
    seqs = room.max_num_seqs if kv_caches.needs_blocks_for_states(q) else 0
    one_state = float(pool.state_bytes * pool.slots / pool.share) if pool.share else 0.0  # the cache beside a place for one
    concurrency = min(float(blocks / wanted), float(pool.places(pool.tokens(blocks))))
    if engine.states.tokens_at_full_length and len(pool.groups) > 1:  # groups keep different tokens
        logged: Number = concurrency * room.max_model_len
    elif engine.states.state_pool == "blocks" and np.any(pool.state_tokens):
        logged = pool.shared_tokens(int(blocks))
    else:
        logged = pool.tokens(int(blocks))
    return Fit(
        question=q,
        stage=stage,
        weights=tuple(lines),
        budget_bytes=total if engine.memory.utilization_of == "free" else total * room.gpu_memory_utilization,
        activation_bytes=float(peak),
        other_bytes=float(memory.other_bytes(q.plan, engine)),
        graph_bytes=0.0 if q.what_if.eager else engine.memory.graph_bytes,
        kv_bytes=float(kv_bytes),
        kv_bytes_per_token=float(pool.bytes_per_token),
        kv_blocks=int(blocks),
        kv_tokens=int(logged),
        max_concurrency=concurrency,
        needed_kv_bytes=max(max(wanted, seqs) * float(pool.bytes_per_block), one_state),
        pool=pool,
        over_bytes=float(over),
    )


def largest_max_num_seqs(judged: Fit) -> int:
    """Return the largest ``max_num_seqs``, at most that of the question, with which the cache has a block for the state of each."""
    q = judged.question
    if not kv_caches.needs_blocks_for_states(q):
        return q.limits.max_num_seqs
    counts = range(1, q.limits.max_num_seqs + 1)
    return bisect_left(counts, True, key=lambda seqs: judge(q.vary(max_num_seqs=seqs)).kv_blocks < seqs)


def longest_request(failed: Fit) -> int:
    """Return the longest request whose blocks are there, 0 if not even a short one is."""
    limits = failed.question.limits
    return min(failed.longest_request, limits.max_model_len) // limits.block_size * limits.block_size


def reported_kv_tokens(q: Settled) -> int:
    """Return the KV tokens of a replica of one plan, as an engine's log and ``fit`` count them."""
    return judge(replace(q, limits=kv_caches.limits_of(q))).kv_tokens


def fit_of_step(q: Settled) -> Fit:
    """Judge a rank of a served plan for requests of its own length. Its KV tokens are those that ``fit`` reports."""
    # Memory is judged as the engine usually runs: of one replica, with graphs, whatever else the step was asked with.
    plain = q.vary(sequence_parallel=q.engine.trains.sequence_parallel, eager=False)
    usual, length = replace(plain, limits=kv_caches.limits_of(plain)), max(1, min(q.model.max_len, int(q.context) + 1))
    judged = judge(replace(usual, limits=replace(usual.limits, max_model_len=length)))
    return replace(judged, kv_tokens=reported_kv_tokens(plain)) if len(judged.pool.groups) > 1 else judged


def fits(priced: StepBill) -> Condition:
    """Return whether a rank's memory holds the step: all that training keeps, or KV of ``batch`` x ``context`` tokens."""
    q = priced.question
    return priced.memory.total <= USABLE * q.cluster.chip.visible_bytes if q.trains else step_fits(q)


def step_fits(q: Settled) -> bool:
    """Return whether a rank of a served plan has room for the KV of ``batch`` sequences of ``context`` tokens."""
    judged = fit_of_step(q)
    return judged.holds_one and judged.holds(int(q.batch), int(q.context) + 1)
