"""Requests in time, ``commtax.serve(…, request_rate=8)``: the engine's scheduler, with steps as long as they are priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import ceil, inf, nan
from typing import Unpack

import numpy as np

from commtax.answer import Answer
from commtax.arrays import Array, cache_few_answers
from commtax.cost.closed_form import ClosedLoopLoad
from commtax.cost.surface import Surface, surface
from commtax.counting import counted
from commtax.judgement.closed_loops import unlocked_spread
from commtax.judgement.overload import overloaded
from commtax.ledger import Z80
from commtax.options import check_taken, taken_by
from commtax.question import OfferedRequests, Question
from commtax.records import dataclass
from commtax.rules.drafts import draft_notes, need_accepted
from commtax.rules.techniques import carrier_of, check_sides
from commtax.rules.values import positive
from commtax.sim.serving import figures
from commtax.sim.serving.book import Rules
from commtax.sim.serving.running import Fleet, Moves, ServingRun, Workers, run
from commtax.spec import Cluster, Model
from commtax.spec.stream import RequestStream
from commtax.statement import Note, Refusal
from commtax.verbs import disaggregation
from commtax.verbs.closed_loop import ClosedLoop, price_closed_loop, spread_share
from commtax.verbs.disaggregation import Disaggregation, pool_notes, prompter
from commtax.verbs.fit_advice import check_lengths, check_starts, default_limits_notes
from commtax.verbs.fitting import block_tokens, state_places, state_tokens, step_limits
from commtax.verbs.keywords import ServeOptions
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.loads import PROMPTS, first_requests, length_notes, longest_of, serving_sample, split, stream_of
from commtax.verbs.prefix_tiers import prefix_loading_s, prefix_notes
from commtax.verbs.settling import Settled, link_notes, resolve_question, settle, terms_of
from commtax.verbs.steps import chunk_tokens, decode_workload, prompt_work, step_bill

COMPARED = 1000  # requests whose prompts are compared
RANGED = 3000  # requests that a range is simulated with at most
LONGEST = 2048  # tokens that a table of steps reaches at least
CUTS = 64  # steps that a mean prompt is cut into; where they are more, ranges and capacity are found with fewer requests
MOST_STEPS = 300_000  # that prompts are cut into, of engines whose steps are followed one by one
NANOSECONDS = 9  # decimals of a difference of times that are far from zero
CROWD = 1.5  # times the requests that have room, in flight where a router looks at caches: there is always enough


@dataclass(frozen=True)  # without slots: figures are asked for several times and kept
class RequestsInTime(Answer):
    """What became of a stream of requests. Figures count all but the first ``warmup`` requests.

    >>> import commtax
    >>> served = commtax.serve("llama-3.2-1b", "1xh100-sxm", concurrency=4, num_prompts=20, output_len=16)
    >>> len(served.columns["ttft_s"]), served.statistic("ttft_p50") <= served.statistic("ttft_p99")
    (20, True)
    """

    question: Settled
    stream: RequestStream
    fleet: Fleet
    ran: ServingRun
    notes: tuple[Note, ...] = ()
    late_s: float = 0.0  # by which first tokens come later than they were simulated: for the ends of a range
    part: Settled | None = None  # the question of those replicas that were simulated, where these are not all
    share: float = 1.0  # of the requests that they got

    @property
    def simulated(self) -> Settled:
        return self.part or self.question

    @property
    def counted(self) -> slice:
        """The requests that figures count: those behind the warm-up."""
        return slice(self.simulated.offered.warmup, None)

    @cached_property
    def columns(self) -> dict[str, Array]:
        """One row a request, in the order of arrival. The server's fixed time per request is no queue."""
        columns = figures.columns(self.ran)
        waited = np.round(columns["queue_s"] - self.question.engine.host.request_s, NANOSECONDS)
        moved = {name: np.maximum(0.0, columns[name] + self.late_s) for name in ("ttft_s", "e2e_s") if self.late_s}
        return columns | moved | {"queue_s": np.maximum(0.0, waited)}

    @property
    def results(self) -> dict[str, Array]:
        """What became of each request, without its lengths and arrival."""
        return {name: column for name, column in self.columns.items() if not hasattr(self.stream, name)}

    @property
    def as_sent(self) -> RequestStream:
        """The requests, those of a closed loop at the times that its clients sent them."""
        return replace(self.stream, arrival_s=self.columns["sent_s"]) if self.closed else self.stream

    @cached_property
    def log(self) -> dict[str, Array]:
        """What the engines that decode did: one row for steps that follow each other alike."""
        return figures.segments(self.ran.engines)

    @cached_property
    def late(self) -> dict[str, Array]:
        """Tokens that came more than a step after those before them."""
        return figures.late_tokens(self.ran.engines)

    @cached_property
    def gaps(self) -> tuple[Array, Array]:
        """Times between tokens, and how many tokens came so, from the first request on that counts."""
        warmup = self.simulated.offered.warmup
        if not 0 < warmup < len(self.stream):
            return figures.gaps(self.log, self.late)
        since = self.stream.arrival_s[warmup]
        return figures.gaps(*(figures.rows(log, log["begin_s"] >= since) for log in (self.log, self.late)))

    @cached_property
    def _ordered_gaps(self) -> tuple[Array, Array]:
        """Times between tokens from the shortest on, and how many tokens came within each."""
        times, counts = self.gaps
        order = np.argsort(times)
        return times[order], np.cumsum(counts[order])

    def statistic(self, name: str) -> float:
        """Return ``ttft``, ``tpot``, ``itl``, ``e2e``, ``queue`` or ``wait`` in s: ``_mean``, ``_std``, ``_p50`` to ``_p99``."""
        metric, which = name.rsplit("_", 1)
        if metric == "itl":
            times, counts = self.gaps
            total = float(counts.sum())
            if total and which in figures.QUANTILES:
                ordered, below = self._ordered_gaps
                return float(ordered[np.searchsorted(below, figures.QUANTILES[which] * total)])
            mean = float(times @ counts / total) if total else nan
            return mean if which == "mean" or not total else float(np.sqrt((times - mean) ** 2 @ counts / total))
        values = self.columns[f"{metric}_s"][self.counted]
        values = values[np.isfinite(values)]
        if values.size and which in figures.QUANTILES:
            return float(np.quantile(values, figures.QUANTILES[which]))
        return float(values.mean() if which == "mean" else values.std()) if values.size else nan

    @cached_property
    def alike(self) -> ClosedLoop:
        """The closed loop of as many clients as requests run at once: it knows how sure its steps are, and what that rests on."""
        workers, seqs = self.fleet.workers, max(1.0, float(np.round(self.mean_running)))
        inputs, outputs = (max(1, round(float(np.mean(lengths)))) for lengths in (self.stream.input_len, self.stream.output_len))
        like = self.simulated.but(concurrency=seqs * workers.count * workers.ranks, num_prompts=inf, offered=OfferedRequests())
        return price_closed_loop(like.but(input_len=inputs, output_len=outputs, spread=self.simulated.requests.spread))

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of a step's length: as surely as the closed loop knows its tokens."""
        return float(self.alike.sigma_of("tpot_s"))

    @cached_property
    def step_ends(self) -> list[RequestsInTime]:
        """The first requests with steps as short and as long as the range of a step goes, and as they are in between."""
        part = first_requests(self.stream, self.simulated.offered.warmup + _limit_requests(RANGED, self.stream, self.fleet))
        factor, complete = float(np.exp(Z80 * self.sigma)), len(part) == len(self.stream)
        return [self if complete and by == 1 else self._again(part, by) for by in counted((1 / factor, 1.0, factor))]

    @cached_property
    def ends(self) -> list[RequestsInTime]:
        """The same with the server's fixed time and the way of a cache as far off as first tokens of the closed loop may be.

        Of 44 published runs at a rate, on plain servers, steps alone hold the mean TTFT of 39.
        """
        short, same, long = self.step_ends
        served, factor = self.alike.served, float(np.exp(Z80 * self.alike.sigma_of("ttft_s")))
        fixed = float(served.request_s + served.moved_s)
        return [replace(short, late_s=fixed * (1 / factor - 1)), same, replace(long, late_s=fixed * (factor - 1))]

    def _again(self, stream: RequestStream, factor: float) -> RequestsInTime:
        fleet = self.fleet if factor == 1 else self.fleet.scaled(factor)
        return replace(self, stream=stream, fleet=fleet, ran=run(stream, fleet, self.simulated.offered.prefix_hit_rate))

    def range_of(self, name: str, ends: list[RequestsInTime] | None = None) -> tuple[float, float]:
        """Return the 80 % range: with steps and first tokens as early and as late as they may be, in lockstep and out of it."""
        low, same, high = (end.statistic(name) for end in ends or self.ends)
        ranges = [range_between(self.statistic(name), low, high, same)]
        if self.out_of_lockstep and not ends:
            ranges.append(self.out_of_lockstep.range_of(name))
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    @property
    def mean_running(self) -> float:
        """Requests that decode at once, in an engine's mean step."""
        busy = figures.seconds(self.log)
        return float(self.log["decodes"] @ busy / busy.sum()) if busy.sum() else 0.0

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last token."""
        return float(np.max(self.columns["done_s"]) - self.stream.arrival_s[0])

    @property
    def num_requests(self) -> int:
        """Requests of all replicas: those that were simulated stand for the others."""
        q, complete = self.question.requests.num_prompts, len(self.stream) == self.simulated.requests.num_prompts
        return int(q) if complete else round(len(self.stream) / self.share)

    @property
    def max_in_flight(self) -> float:
        """Requests that all replicas have at once, at most, infinite without a limit."""
        return float(np.round(self.stream.in_flight / self.share))

    @property
    def requests_per_s(self) -> float:
        return len(self.stream) / self.share / max(self.duration_s, 1e-12)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all replicas."""
        return float(self.stream.output_len.sum()) / self.share / max(self.duration_s, 1e-12)

    @property
    def input_tokens_per_s(self) -> float:
        return float(self.stream.input_len.sum()) / self.share / max(self.duration_s, 1e-12)

    @property
    def num_gpus(self) -> int:
        """GPUs of all workers of both kinds."""
        plan, wanted = self.question.plan, self.question.requests
        if self.fleet.prompts is None:
            return int(plan.all_gpus)
        ahead = prompter(self.question).plan
        return int(plan.num_gpus * (wanted.decode_workers or 1) + ahead.num_gpus * (wanted.prefill_workers or 1))

    @property
    def offered_rate(self) -> float:
        """Requests that come in a second, infinite where all come at once."""
        span = float(self.stream.arrival_s[-1] - self.stream.arrival_s[0])
        return self.question.offered.request_rate or ((len(self.stream) - 1) / self.share / span if span else inf)

    @cached_property
    def capacity(self) -> float:
        """Requests/s that the fleet answers when there are always enough: no fewer than in this run, which could be repeated."""
        return max(capacity_of(self.stream, self.fleet, self.simulated.offered.prefix_hit_rate) / self.share, self.requests_per_s)

    @cached_property
    def without_prefixes(self) -> tuple[RequestsInTime, RequestsInTime] | None:
        """The first of these requests, as they are and with no prefix cached, or None where nothing is cached anyway."""
        if not self.question.offered.prefix_hit_rate and self.stream.prefixes is None:
            return None
        q, same = self.simulated.but(prefix_hit_rate=0.0), self.step_ends[1]
        stream = replace(same.stream, prefixes=None)
        fleet = fleet_of(q, longest_of(stream))
        return same, replace(self, part=q, stream=stream, fleet=fleet, ran=run(stream, fleet))

    @property
    def overloaded(self) -> bool:
        """Whether more requests come than can be answered."""
        return not self.closed and overloaded(self.offered_rate, self.capacity)

    @property
    def closed(self) -> bool:
        """Whether clients wait for their answers: a closed loop cannot be overloaded."""
        return not self.question.offered.request_rate and self.question.offered.trace is None

    @cached_property
    def out_of_lockstep(self) -> RequestsInTime | None:
        """The first of these requests, where all start and end together, as they are when servers have left that lockstep."""
        q, spread = self.question, unlocked_spread()
        equal = q.requests.spread < spread and not (q.offered.inputs or q.offered.outputs)
        if not (self.closed and equal and any(note.code == "lockstep" for note in self.alike.notes)):
            return None
        return run_requests(q.but(spread=spread, num_prompts=min(q.requests.num_prompts, q.offered.warmup + RANGED)))

    def holds(self, ttft_s: float, tpot_s: float, share: float = 0.99) -> bool:
        """Return whether a share of the requests have both times below their limits."""
        return self.within(ttft_s, tpot_s) >= share

    def within(self, ttft_s: float = inf, tpot_s: float = inf, e2e_s: float = inf) -> float:
        """Return the share of the requests that keep to all limits."""
        ttft, tpot, e2e = (self.columns[name][self.counted] for name in ("ttft_s", "tpot_s", "e2e_s"))
        return float(np.mean((ttft <= ttft_s) & ((tpot <= tpot_s) | np.isnan(tpot)) & (e2e <= e2e_s)))


def range_between(value: float, low: float, high: float, same: float | None = None) -> tuple[float, float]:
    """Return the range of a figure by others with shorter and longer steps, and of as many requests where they are fewer."""
    same = value if same is None else same
    return (min(value, value * low / same), max(value, value * high / same)) if same else (value, value)


def capacity_of(stream: RequestStream, fleet: Fleet, hit_rate: float = 0.0, least: int = 2000, prompted: bool = False) -> float:
    """Return the requests/s that a fleet answers when there are always enough: the middle half of a run of all at once.

    Of five times as many as there is room for, neither the first wave nor the emptying end is in the middle half. A router to the
    cache that has a prompt finds none when all come at once: then each comes when another is answered, with more than have room.
    """
    rules, workers = fleet.workers.rules, fleet.workers
    some = (stream.prefixes or ())[:COMPARED]
    several = sum(n for n in Counter(chain.from_iterable(some)).values() if n > 1)  # blocks that are in several prompts
    shared = stream.block * several / max(1, len(some))
    each = float(np.mean(stream.input_len) + np.mean(stream.output_len)) - shared + rules.states * rules.block
    seqs = rules.seqs if rules.prefill_first else min(rules.seqs, rules.tokens)
    at_once = min(seqs, max(1.0, rules.blocks * rules.block / each)) * workers.count * workers.ranks
    count = min(20_000, max(_limit_requests(least, stream, fleet), int(5 * at_once / fleet.decoded)))
    answered, quarter = int(count * fleet.decoded), int(count * fleet.decoded) // 4
    crowd = int(CROWD * at_once) + 1 if fleet.router == "prefix" and stream.prefixes else inf
    repeated = replace(stream.take(np.arange(count) % len(stream)), arrival_s=np.zeros(count), in_flight=crowd)
    ran = run(repeated, fleet, hit_rate, enough=answered - quarter, prompted=prompted)
    done = np.sort(ran.book.done_s)  # those who are not, or elsewhere, last
    return (answered - 2 * quarter) / max(1e-12, float(done[answered - 1 - quarter] - done[quarter])) / float(fleet.decoded)


def _limit_requests(count: int, stream: RequestStream, fleet: Fleet) -> int:
    cuts = float(np.mean(stream.input_len)) / fleet.workers.rules.tokens
    return count if cuts <= CUTS else max(200, int(count * CUTS / cuts))


def run_requests(q: Settled, watch: Callable[[ServingRun], None] | None = None) -> RequestsInTime:
    """Run the requests of a question. A watcher may interrupt the run, and has the requests that were answered until then."""
    need_accepted(q)
    sample = serving_sample(q.plain())
    part = q if sample.size == sample.whole else settle(sample.question)
    stream = stream_of(part)
    longest = longest_of(stream)
    fleet = fleet_of(part, longest)
    _check_steps(stream, fleet)
    ran = run(stream, fleet, q.offered.prefix_hit_rate, watch)
    ahead = prompter(q) if q.requests.disaggregated else q
    load_notes = (*length_notes(q, stream), *prefix_notes(ahead), *pool_notes(q), *default_limits_notes(q, longest))
    notes = (*sample.notes, *q.notes, *draft_notes(q), *link_notes(q), *stream.notes, *load_notes)
    answer = RequestsInTime(q, stream, fleet, ran, notes, part=part, share=float(sample.share))
    if ran.stopped:  # as if the requests that had been answered were all
        rows = np.flatnonzero(np.isfinite(ran.book.done_s))
        if len(rows) <= part.offered.warmup:
            raise KeyboardInterrupt
        text = f"interrupted: {len(rows):,} of {len(stream):,} requests had been answered, and figures are theirs alone"
        ran = replace(ran, book=ran.book.only(rows.tolist()))
        return replace(answer, stream=stream.take(rows), ran=ran, notes=(Note("interrupted", text), *notes))
    # What a profile's runs tell of the time per token at this load beside constants: steps are so much longer.
    learnt = answer.alike.learnt if q.profile and q.profile.lessons else {}
    return answer._again(stream, float(np.exp(learnt["tpot"].log))) if learnt else answer


def _check_steps(stream: RequestStream, fleet: Fleet) -> None:
    tokens, total = fleet.workers.rules.tokens, int(stream.input_len.sum())
    if total > MOST_STEPS * tokens and (fleet.workers.stages > 1 or fleet.workers.ranks > 1):
        nearest = ceil(total / MOST_STEPS)
        cut = f"{len(stream):,} prompts of {total / len(stream):,.0f} tokens are cut into {total / tokens:,.0f} steps"
        rule = f"{cut}, and {MOST_STEPS:,} are simulated at most; fewer requests, or nearest valid: {nearest}"
        raise Refusal.of(rule, (nearest,), max_num_batched_tokens=tokens)


def fleet_of(q: Question, longest: int) -> Fleet:
    """Build the engines of a plan: ranks of attention data parallelism step together where experts are shared, else apart."""
    wanted, workers = q.requests, _workers(q, longest)
    if not wanted.disaggregated:
        return Fleet(workers, q.offered.router)
    ahead = prompter(q)
    check_sides(q, ahead.plan.tp)
    both = Disaggregation(ahead.plan, int(wanted.prefill_workers or 1), int(wanted.decode_workers or 1))
    prompts = _workers(ahead, longest)
    prompts = replace(prompts, rules=replace(prompts.rules, prompts_only=True), count=prompts.count * int(both.workers or 1))
    rules = replace(workers.rules, delivery_s=0.0, frontend_s=0.0, patience=0)  # no prompts come that ranks would wait for
    workers = replace(workers, rules=rules, count=int(both.copies) * workers.count)
    return Fleet(workers, q.offered.router, prompts, _moves(q, both))


def _moves(q: Question, both: Disaggregation) -> Moves:
    """Return how long caches move and keep links busy: a part for states and latency, and one for each token."""
    length = float(q.requests.input_len) if carrier_of(q).piece_s else 1.0  # pieces of a carrier are of many tokens
    prompt = disaggregation.prompting_of(prompter(q), ClosedLoopLoad(1.0, length, 1.0), 1)[0].one_s if length > 1 else 0.0
    ends = disaggregation.wire_of(q, both, 0), disaggregation.wire_of(q, both, length, prompt)
    none, all_ = (replace(wire, alone_s=wire.alone_s + wire.hidden_s) for wire in ends)  # what hides begins so much earlier
    of = {name: (float(getattr(none, name)), float(getattr(all_, name))) for name in ("alone_s", "out_s", "in_s", "hidden_s")}
    paces = {name: (once, (more - once) / length) for name, (once, more) in of.items()}
    ranks = float(disaggregation.lone_ranks(q.model, q.plan))  # each has its own part of a worker's links
    return Moves(paces["alone_s"], paces["out_s"], (ranks * paces["in_s"][0], ranks * paces["in_s"][1]), paces["hidden_s"])


def _workers(q: Question, longest: int) -> Workers:
    plan, rules = q.plan, _rules(q, longest)
    shared = q.model.experts is not None and plan.dp > 1 and plan.pp == 1  # pipelines of ranks are followed one by one
    if shared:  # of the seconds of a prompt, of the mean length or as much as a step takes, those that all ranks work off together
        load = ClosedLoopLoad(1.0, float(q.requests.input_len), float(q.requests.output_len))
        beside = 0.0 if q.engine.serves.prefill_first else 1.0
        work = decode_workload(1.0, load), prompt_work(beside, load, chunk_tokens(q, load.input_len))
        rules = replace(rules, spread=float(spread_share(q, *(step_bill(q, one) for one in work))))
    count = int(plan.replicas) * (1 if shared else int(plan.dp))
    return Workers(rules, steps_of(q, longest), count, int(plan.dp) if shared else 1, int(plan.pp))


def _rules(q: Question, longest: int) -> Rules:
    """Return how the engine schedules and its capacity. Refuse a request larger than the cache."""
    serves, host, block, (tokens, seqs) = q.engine.serves, q.engine.host, block_tokens(q), step_limits(q)
    room = cache_tokens(q) if q.requests.kv_tokens is None else q.requests.kv_tokens
    states, places = ceil(float(state_tokens(q)) / block), float(state_places(q, room))
    if room < longest + states * block or places < 1:
        beside = f" and states of {states * block:,} tokens' room" if states else ""
        rule = f"the longest request has {longest:,} tokens{beside}, and the KV cache of a replica holds {int(room):,}"
        raise Refusal.of(f"{rule}; more GPUs, smaller weights or shorter requests fit", kv_tokens=int(room))
    loading = float(prefix_loading_s(q, q.offered.prefix_hit_rate * q.requests.input_len))
    ranks = float(q.plan.dp / disaggregation.lone_ranks(q.model, q.plan))
    return replace(
        Rules.of(serves, tokens, int(min(seqs, places)), int(room) // block, block),
        states=states,
        ahead=serves.ahead and bool(q.plan.pp == 1),  # with one batch in flight, the next is decided while it runs
        delivery_s=host.request_s + loading - loading / ranks,
        frontend_s=host.frontend_request_s + loading / ranks,  # a rank loads one prefix after the other
        token_s=host.frontend_token_s,
    )


def steps_of(q: Question, longest: int) -> Surface:
    """Return the table of a plan's steps. Equal plans share one."""
    tokens, seqs = step_limits(q)
    rows = tokens if q.engine.serves.chunked else max(tokens, longest) + seqs * (1 + q.speculative)
    one = replace(q.normal(), plan=replace(q.plan, replicas=1))
    return _surface(one, rows, seqs, 2 ** int(np.ceil(np.log2(max(longest, LONGEST)))))


@cache_few_answers
def _surface(q: Question, rows: int, seqs: int, longest: int) -> Surface:
    return surface(terms_of(q), rows, seqs, longest, q.speculative)


def serve(model: str | Model, cluster: str | Cluster, **options: Unpack[ServeOptions]) -> RequestsInTime:
    """Simulate requests that come in time: each one's times, in ``columns`` or ``to_frame()``, and what they add up to.

    >>> import commtax
    >>> served = commtax.serve("llama-3.2-1b", "1xh100-sxm", request_rate=4, num_prompts=60, input_len=512, output_len=32)
    >>> served.overloaded, served.statistic("ttft_p99") < 0.1
    (False, True)

    One of ``request_rate``, ``concurrency`` and ``trace`` says when they come. Lengths are numbers, which vary by ``spread`` of
    their mean to either side, or distributions. The same ``seed`` gives the same bytes.
    """
    return run_requests(settle(requests_question(model, cluster, check_taken("serve", options))))


def requests_question(model: str | Model, cluster: str | Cluster, options: Mapping[str, object]) -> Question:
    """Return the question of options that describe the load, checked before any step is priced."""
    plain, offered = split(options)
    if not (offered.request_rate or "concurrency" in plain or offered.trace is not None):
        raise Refusal.about(request_rate="say when requests come: request_rate, concurrency (a closed loop) or a trace")
    return check_single_load(resolve_question(model, cluster, plain).but(offered=offered))


def check_single_load(q: Question) -> Question:
    """Refuse arrays of plans or loads, pools without room, and requests that servers would not take."""
    rules = {"plan": "requests are simulated for one plan at a time", "requests": "one number is needed; a sweep goes over several"}
    for name, option in taken_by("serve()").items():
        if option.part in rules and np.ndim(getattr(getattr(q, option.part), option.key)):
            raise Refusal(f"{name}: {rules[option.part]}", name)
    disaggregation.check_apart(q)
    if q.requests.disaggregated:
        ahead = settle(prompter(q).but(offered=OfferedRequests())).plan
        disaggregation.check_pools(q, ahead, (q.requests.prefill_workers, q.requests.decode_workers))
    check_lengths(q)
    check_starts(q)
    if q.requests.kv_tokens is not None:
        positive(kv_tokens=q.requests.kv_tokens)
    # As far as their number is known beforehand: those that come within a time are not counted.
    most = float(PROMPTS) if np.isinf(q.offered.duration_s) else np.inf
    if q.offered.trace is not None:
        most = len(q.offered.trace)
    elif np.isfinite(q.requests.num_prompts):
        most = float(q.requests.num_prompts)
    if q.offered.warmup >= most:
        rule = f"the first {q.offered.warmup:,} of {most:,.0f} requests would be left out of all figures"
        raise Refusal.of(f"{rule}; nearest valid: {most - 1:.0f}", (int(most - 1),), warmup=q.offered.warmup)
    return q
