"""Closed-loop serving in closed form: ``c`` clients, each sending its next request when the last one is answered.

The unit is an engine step. A request of I prompt and O output tokens is computed in n chunks and then decodes O - 1
steps. While it lives, each of the other requests is computed once: some of those prompts delay its first token, the
rest stretch its decoding. With D a decode step of all running requests, X what a prompt adds to the steps it shares and
k the prompts of others that pass before the first token,

    TPOT = D + (R - 1 - k) X / (O - 1)        TTFT = server + D + own steps + k X + waiting for a slot

Where steps yield n tokens, drafts that were accepted among them, there are (O - 1) / n of them, and a token takes 1/n of each.

k is the only thing that scheduling decides (``prompts_ahead``). R requests run; the cache or the engine's limit may keep
the others of c waiting, for (c - R) / R of a request's life (``pressure``). Nothing here knows a model or a chip.
"""

from dataclasses import replace

import numpy as np

from commtax.question import SPREAD
from commtax.records import dataclass
from commtax.spec import Engine, Number

LEAST_S = 1e-9  # of a request that waits for nothing here: its prompt is computed elsewhere, and its first token is the last
KNEE = 5  # how sharply a front end begins to limit: queues form before it is fully busy
OUTGROWN = 1.3  # requests thrown out for each that growth leaves no room: 1 where simulated, up to 3 in published runs of vLLM
CHEAPER = 1 / 2  # of what prompts take one by one: full steps that take less are priced whole (constants are fitted without)
LEAST_WIDTH = 0.01  # requests by which the number that the cache has room for varies
SURELY = 30.0  # widths of spare room: no request waits
LOGISTIC = 1.702  # the logistic function of 1.702 z is within 0.01 of the normal distribution's


@dataclass(frozen=True, slots=True)
class ClosedLoopLoad:
    """What one replica is asked: a closed loop of requests with mean lengths."""

    concurrency: Number
    input_len: Number
    output_len: Number
    num_prompts: Number = np.inf  # requests of the whole benchmark; inf: the steady state
    spread: Number = SPREAD  # lengths vary by this share of their mean to either side
    state_tokens: Number = 0.0  # tokens whose room in the cache the states of a request take
    cached: Number = 0.0  # tokens of a prompt that are found in the cache
    loading_s: Number = 0.0  # … which has to be loaded first, where it is not the GPU's
    per_step: float = 1.0  # tokens that a decode step yields per request: its own, and drafts that are accepted …
    rows: int = 1  # … and rows that it has of each
    rank_wait: Number = 0.0  # decode steps that a request waits until other ranks have prompts, too

    @property
    def computed(self) -> Number:
        """Tokens of a prompt that are not: the last at least, which makes the first token."""
        return np.maximum(1.0, self.input_len - self.cached)

    @property
    def decodes(self) -> Number:
        """Decode steps of a request: none where the first token is the last, else one at least."""
        after = np.maximum(0.0, self.output_len - 1)
        return np.maximum(np.minimum(1.0, after), after / self.per_step)

    @property
    def steps_per_token(self) -> Number:
        """… for each token after the first."""
        after = np.maximum(0.0, self.output_len - 1)
        return np.where(after > 0, self.decodes / np.where(after > 0, after, 1.0), 1.0)[()]


@dataclass(frozen=True, slots=True)
class Steps:
    """Priced steps of one replica."""

    decode_s: Number  # all running requests decode
    prompt_s: Number  # the step of one chunk of each of ``together`` prompts, with the decodes that share it
    chunks: Number = 1  # such steps that a prompt fills, where it is larger than one …
    together: Number = 1  # … and prompts that fill one, where they are smaller
    stages: Number = 1  # pipeline stages that work on different steps at once
    ranks: Number = 1  # of attention data parallelism, each with its own prompts, that all wait for the longest step …
    spread: Number = 0.0  # … and the share of a prompt's seconds that is all ranks' work: its experts
    decoding: Number = 0.0  # requests that decode at once


@dataclass(frozen=True, slots=True)
class ClosedLoopMeans:
    """Means over the requests of a closed loop. ``ttft_s`` is the sum of its parts (``*_s`` from ``request_s`` on)."""

    tpot_s: Number
    request_s: Number  # the way through the server
    boundary_s: Number  # the step in progress when the request arrives, and the next where that was decided
    prefill_s: Number  # its own prompt's steps
    ahead_s: Number  # prompts of others that are computed first or together
    slot_s: Number  # waiting for a place among the running
    frontend_s: Number  # waiting for the server's front end
    ahead: Number  # prompts of others before the first token
    stretch_s: Number  # of tpot_s: prompts of others during decoding
    moved_s: Number = 0.0  # its cache goes from the worker of its prompt to the one that decodes

    @property
    def ttft_s(self) -> Number:
        return self.request_s + self.boundary_s + self.prefill_s + self.ahead_s + self.slot_s + self.frontend_s + self.moved_s


def scaled(means: ClosedLoopMeans, per_token: Number, first: Number) -> ClosedLoopMeans:
    """Scale all parts of the means by a factor per token and one to the first token."""
    waits = ("request_s", "boundary_s", "prefill_s", "ahead_s", "slot_s", "frontend_s", "moved_s")
    tokens = {name: getattr(means, name) * per_token for name in ("tpot_s", "stretch_s")}
    return replace(means, **tokens, **{name: getattr(means, name) * first for name in waits})


def _room(load: ClosedLoopLoad, engine: Engine, kv_tokens: Number) -> tuple[Number, Number]:
    """Return how many requests the cache has room for on average, and how widely that varies (as of a logistic distribution).
    A cache that reserves holds I + O tokens a request; one that grows on demand holds I + O/2 on average; and its states. Long
    answers stay longer, so that of those inside O is larger, by 1 + spread^2 / 3."""
    whole, varied = engine.serves.kv_reserved, load.spread**2 / 3
    growing = load.output_len * (1.0 if whole else 0.5)
    kept = load.input_len + growing * (1 + varied) + load.state_tokens
    room = np.maximum(1.0, kv_tokens / kept)
    deviation = np.sqrt(varied * load.input_len**2 + (varied if whole else 1 / 3) * growing**2) / kept
    return room, np.maximum(LEAST_WIDTH, np.sqrt(room) * deviation) / LOGISTIC


def running_requests(load: ClosedLoopLoad, engine: Engine, kv_tokens: Number, max_seqs: Number, fed: Number = np.inf) -> Number:
    """Count the requests with a slot: the mean of min(clients, X) where X have room, or all clients where no more than ``fed`` get
    past their prompts and these have room."""
    room, width = _room(load, engine, kv_tokens)
    wanted = np.minimum(load.concurrency, max_seqs)
    spare = np.minimum(SURELY, (room - wanted) / width)
    fitting = np.where(spare < SURELY, room - width * np.log1p(np.exp(spare)), wanted)
    return np.maximum(1.0, np.where(fed <= np.minimum(max_seqs, room), load.concurrency, fitting))[()]


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a cache that is too small for all clients does to those inside."""

    recomputed: Number = 0.0  # prompts computed again, for each request
    inside: Number = 0.0  # share of the waiting that falls after the first token


def pressure(
    load: ClosedLoopLoad, engine: Engine, kv_tokens: Number, seqs: Number, max_seqs: Number = np.inf, fed: Number = np.inf
) -> Pressure:
    """Return the pressure on a cache filled on demand, which admits any prompt that fits and preempts the youngest request if full.
    That happens where more are wanted than have room: what clients send, but no more than the engine's limit, or than their
    prompts let in (``fed``), since who still waits for its prompt holds nothing. Each request that ends inside grows by O, and
    pushes out O/(I + O/2) others. These compute their tokens again, and wait after their first token instead of before it."""
    if engine.serves.kv_reserved:
        return Pressure()
    room, width = _room(load, engine, kv_tokens)
    wanted = np.minimum(np.minimum(load.concurrency, max_seqs), fed)
    full = 1 / (1 + np.exp(np.clip((room - wanted) / width, -SURELY, SURELY)))
    prompt = load.input_len + load.state_tokens
    grown = load.output_len / (prompt + load.output_len / 2)
    fitting = np.minimum(wanted, np.maximum(seqs, kv_tokens / prompt))
    inside = grown / 2 * (fitting - seqs) / 2 / np.maximum(load.concurrency - seqs, 1e-9)
    return Pressure(OUTGROWN * full * grown, np.clip(inside, 0, 1))


ROOM = Pressure()


def arrivals_per_step(load: ClosedLoopLoad, seqs: Number) -> Number:
    """Count the other requests that arrive in the same step: each comes once in a life of O + 1 steps, one a step at equal lengths,
    and lengths that vary thin this out over a window of ``2 spread`` lives."""
    others, life = seqs - 1, _life(load)
    window = np.maximum(np.maximum(others, 2 * load.spread * life), 1)
    return np.maximum(others / window, others / life)


def _lockstep(load: ClosedLoopLoad) -> Number:
    """Return the share of the others that end in the same step: all at equal lengths, else those within 2 spread lives."""
    return 1 / np.maximum(1.0, 2 * load.spread * _life(load))


def _arrivals_per_batch(load: ClosedLoopLoad, seqs: Number, stages: Number) -> Number:
    """Count the arrivals of a step that join the same batch in flight: all of them where all ended together."""
    return arrivals_per_step(load, seqs) * np.maximum(1 / stages, _lockstep(load))


def _arrivals_per_decision(load: ClosedLoopLoad, seqs: Number, stages: Number, engine: Engine) -> Number:
    """Count the arrivals between two decisions of an engine that looks at waiting requests only every few steps."""
    gathered = engine.serves.steps_per_decision + engine.serves.batch_wait + load.rank_wait
    return np.minimum(seqs - 1, gathered * _arrivals_per_batch(load, seqs, stages))


def with_patience(load: ClosedLoopLoad, ranks: Number, seqs: Number, engine: Engine) -> ClosedLoopLoad:
    """Return the load with prompts that wait until each rank has one (half of what the last takes, 1 + 1/2 + … + 1/ranks times the
    time between a rank's prompts), or ``rank_patience`` steps, but not while requests wait for slots or a rank decodes nothing."""
    most, last = engine.serves.rank_patience, np.log(ranks) + np.euler_gamma + 0.5 / ranks
    steps = np.where(ranks > 1, 0.5 / (seqs / _life(load) / last + 1 / most), 0.0)[()] if most else 0.0
    waits = np.clip(np.minimum(seqs - 1, 1 - (load.concurrency - seqs)), 0, 1) * (load.decodes > 0)
    return replace(load, rank_wait=steps * waits)


def prompt_tokens(load: ClosedLoopLoad, seqs: Number, room: Number, engine: Engine, stages: Number = 1) -> Number:
    """Return the mean prompt tokens of a step: those of one prompt and of others that arrived with it, as far as there is room."""
    prompts = np.minimum(1 + _arrivals_per_decision(load, seqs, stages, engine), engine.serves.prompts_per_step)
    return np.minimum(prompts * load.computed, room if engine.serves.chunked else np.maximum(load.computed, room))


def _prompts_let_in(load: ClosedLoopLoad, room: Number, engine: Engine) -> Number:
    """Count the prompts that fit in a step with room for ``room`` prompt tokens: only whole ones, at least one, without chunks."""
    prompts = room / load.computed
    if engine.serves.chunked:
        return prompts
    varied = np.minimum(1.0, 2 * load.spread * prompts)  # by how much the sum of lengths varies: whole numbers' mean is 1/2 less
    let_in: Number = np.maximum(1.0, varied * (prompts - 0.5) + (1 - varied) * np.floor(prompts))
    return let_in


def fed_requests(load: ClosedLoopLoad, budget: Number, stages: Number, engine: Engine) -> Number:
    """Count the requests that decode where prompts cannot keep up: as many as steps admit in one life."""
    if engine.serves.prefill_first:
        return np.inf
    return 1 + _life(load) * _prompts_let_in(load, budget, engine) * stages


def _queued_prompts(load: ClosedLoopLoad, seqs: Number, fed: Number) -> Number:
    """Count the requests that wait for steps to admit their prompts, where steps admit ``fed`` in one life.
    With rho the share of what steps can let in, rho fed requests are past the queue, and seqs - rho fed are in it. A queue of
    requests that come at random has rho^2 / 2 (1 - rho) (M/D/1), less of those that come in turn, as clients with answers of
    about equal lengths do. Both together are a quadratic equation of rho."""
    if np.all(np.isinf(fed)):
        return 0.0
    apart = load.spread * seqs / np.sqrt(3)
    square, linear = 2 * fed - (1 - 1 / seqs) * apart / (1 + apart), seqs + fed
    rho = (linear - np.sqrt(linear**2 - 2 * square * seqs)) / square
    queued: Number = np.maximum(0.0, seqs - rho * fed)
    return queued


def decoding_seqs(load: ClosedLoopLoad, seqs: Number, budget: Number, stages: Number, engine: Engine) -> Number:
    """Count the running requests that decode, while the others await their first token. None decodes where that is the last."""
    if engine.serves.prefill_first:
        return seqs
    queued = _queued_prompts(load, seqs, fed_requests(load, budget, stages, engine))
    most = 1 + budget * stages / (load.rows + load.computed / _life(load))  # whose own rows leave room for as many that follow
    return np.where(load.output_len > 1, np.maximum(1.0, np.minimum(seqs - queued, most)), 1.0)


def _life(load: ClosedLoopLoad) -> Number:
    """Return the steps of a request: one in progress when it arrives, its prompt's, and those of its other tokens."""
    return load.output_len + 1 - (load.output_len - 1) * (1 - 1 / load.per_step)


def prompts_ahead(
    load: ClosedLoopLoad, seqs: Number, room: Number, engine: Engine, stages: Number = 1, queued: Number = 0.0
) -> Number:
    """Return the mean number of other requests' prompts that are computed before a request's first token.
    Those in the step in progress, those that share the own step, and ``queued`` ones that wait for room in a step. Where prompts
    run before decoding: those that ended with the one before it, and half of those that ended a step earlier, whose prompts are
    next; where all end together, half of all others and of those that share a step, since no prompt is done before its step. The
    first R requests of a benchmark arrive at once and are computed in turn, as many a step as fit."""
    others, dense = seqs - 1, _arrivals_per_decision(load, seqs, stages, engine)
    each = prompt_tokens(load, seqs, room, engine, stages) / load.computed
    if engine.serves.chunks_follow:  # a prompt's chunks lie in as many batches at once, and hold others up once for all of them
        each = each * np.clip(load.computed / room, 1, stages)
    steady: Number = np.minimum(others, queued + 2 * np.minimum(dense, each))  # no more arrive in a step than steps let in
    burst: Number = np.minimum(others, (others + burst_prompts(load, seqs, room, engine) - 1) / 2)
    if engine.serves.prefill_first:
        crowd = np.maximum(burst * _lockstep(load), (engine.serves.steps_per_decision + 0.5) * others / _life(load) / stages)
        steady = np.minimum(others, queued + np.maximum(crowd, each - 1))
    share: Number = np.minimum(1.0, seqs / load.num_prompts)
    return steady + share * np.maximum(0.0, burst - steady)


def _gathering(load: ClosedLoopLoad, steps: Steps, seqs: Number, engine: Engine) -> Number:
    """Return the share of a prompt's seconds that passes while no request comes, since prompts stop decoding and so none ends."""
    came = arrivals_per_step(load, seqs) * steps.prompt_s * steps.chunks / steps.together  # seconds of prompts in a step's
    return np.maximum(0.0, 1 - steps.decode_s / np.maximum(LEAST_S, came)) * engine.serves.prefill_first


def gathered_prompts(load: ClosedLoopLoad, steps: Steps, seqs: Number, engine: Engine) -> Number:
    """Return the prompts that wait before one because those of ``request_s / decode_s`` steps ended before the first came back."""
    gathered = np.minimum(seqs - 1, arrivals_per_step(load, seqs) * engine.host.request_s / steps.decode_s)
    return gathered / 2 * _gathering(load, steps, seqs, engine)


def burst_prompts(load: ClosedLoopLoad, seqs: Number, room: Number, engine: Engine) -> Number:
    """Count the prompts that share a step when a benchmark begins and all clients send at once."""
    return np.clip(np.minimum(_prompts_let_in(load, room, engine), engine.serves.prompts_per_step), 1, seqs)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first requests of a finite benchmark, whose prompts fill whole steps."""

    most: Number  # prompts that share a step …
    full_s: Number  # … and its seconds
    steady: Number  # prompts ahead of a later request's

    def wait_s(self, seqs: Number, stages: Number) -> Number:
        """Return the mean time to a first request's prompt: its own step, and half of the others', on all stages at once."""
        return self.full_s * (1 + (np.maximum(1.0, seqs / self.most) - 1) / 2 / stages)


def closed_loop(
    load: ClosedLoopLoad,
    steps: Steps,
    seqs: Number,
    ahead: Number,
    engine: Engine,
    full: Pressure = ROOM,
    begin: Beginning | None = None,
) -> ClosedLoopMeans:
    """Compute mean TPOT and TTFT from priced steps: ``seqs`` requests run, ``ahead`` prompts of others come first."""
    others = seqs - 1
    decodes, each = load.decodes, load.steps_per_token
    beside = 0.0 if engine.serves.prefill_first else steps.decode_s
    extra = np.maximum(0.0, steps.prompt_s - beside) * steps.chunks / steps.together * _lost_share(load, steps, seqs, engine)
    idle = steps.spread * _idle(load, steps, seqs * np.maximum(1, engine.serves.rank_patience))
    prompts = np.minimum(arrivals_per_step(load, seqs), steps.together)  # of a rank: all wait for the one with the most
    waited_for = 1.0 if engine.serves.rank_patience else 1 + (1 - steps.spread) * (largest(steps.ranks, prompts) - 1)
    extra = extra * waited_for
    at_once = np.inf if engine.serves.prefill_first else steps.stages * steps.together / steps.chunks  # prompts beside one token
    together = steps.ranks * np.minimum(seqs, load.concurrency) - 1  # others of all ranks, which step together
    way, recomputed = engine.host.request_s + load.loading_s, 1 + full.recomputed
    boundary = _boundary_s(load, steps, seqs, way, engine) * np.minimum(1.0, np.maximum(others, together))  # if others are in it
    prefill = (steps.prompt_s - (steps.prompt_s - beside) * idle) * prompt_passes(steps.chunks, steps.stages, engine)
    everywhere = np.maximum(0.0, np.minimum(seqs, load.concurrency) - (1 - idle) / waited_for)  # all ranks' prompts but the own one
    beside_way = way * (1 - _gathering(load, steps, seqs, engine))  # in which others' prompts are computed
    present = _present(load, seqs, beside_way, boundary + prefill + decodes * steps.decode_s, everywhere * recomputed * extra)
    others, everywhere = others * present, everywhere * present
    least = np.where(decodes > 0, others - np.maximum(1.0, decodes) * at_once, others)
    ahead = np.maximum(np.minimum(ahead, others), least)
    before = np.maximum(0.0, ahead - (steps.together - 1)) * extra
    stretch = np.maximum(0.0, everywhere * recomputed - ahead) * extra / np.maximum(1.0, decodes)
    tpot = steps.decode_s + stretch
    prefill = prefill + (np.ceil(steps.chunks) - steps.chunks) * beside
    if begin:
        steady = np.maximum(0.0, np.maximum(begin.steady, least) - (steps.together - 1)) * extra
        # Prompts that all begin at once wait for whole steps, if those take less: of one stage clearly
        longer = np.maximum(0.0, begin.wait_s(seqs, steps.stages) - prefill - steady)
        whole = steady + np.minimum(1.0, seqs / load.num_prompts) * longer
        before = np.where(whole < np.where(steps.stages > 1, 1.0, CHEAPER) * before, whole, before)[()]
    # Whole steps pass for those who wait to be let in: the others' decodes in them, too.
    before = before + np.where((decodes > 0) & (steps.decoding > 0), np.maximum(0.0, seqs - steps.decoding), 0.0) / at_once * beside
    life = way + boundary + prefill + before + decodes * tpot
    slot = np.maximum(0.0, _slot_wait(load, seqs) * (life - way) - way)
    inside = np.where(decodes > 0, full.inside, 0.0) * slot
    # A request passes the front end on its way in and with every token on its way out: half of the wait is before the first.
    frontend = _frontend_wait_s(load, engine, life + slot)
    after = np.where(decodes > 0, frontend / 2, 0.0)
    tpot = (tpot + (after + inside) / np.maximum(1.0, decodes)) * each
    waits = {"request_s": way + seqs * 0, "boundary_s": boundary, "prefill_s": prefill, "ahead_s": before, "slot_s": slot - inside}
    return ClosedLoopMeans(tpot_s=tpot, **waits, frontend_s=frontend - after, ahead=ahead, stretch_s=stretch * each)


def _boundary_s(load: ClosedLoopLoad, steps: Steps, seqs: Number, way: Number, engine: Engine) -> Number:
    """Return the wait for the step in progress. The next began as the last request ended, whose way is beside it."""
    came = engine.serves.batch_wait * _arrivals_per_batch(load, seqs, steps.stages)
    wait = engine.serves.batch_wait * (1 + came / 2) / (1 + came) + load.rank_wait
    waited = steps.decode_s * boundary_turns(engine, steps.stages, wait)
    return (waited - np.minimum(way, steps.decode_s / 2 / steps.stages)) * (load.decodes > 0)


def _present(load: ClosedLoopLoad, seqs: Number, way: Number, alone: Number, others: Number) -> Number:
    """Return the share of the running requests that are in steps, not on their way through the server: of a life L = way + alone +
    others (1 - way / L), where ``others`` is what all prompts of others would take."""
    whole = way + alone + others
    life = np.maximum(LEAST_S, (whole + np.sqrt(np.maximum(0.0, whole**2 - 4 * others * way))) / 2)
    return np.minimum(1.0, load.concurrency / seqs - way / life)[()]


def _slot_wait(load: ClosedLoopLoad, seqs: Number) -> Number:
    """Return how many lives a request waits for a slot: none for the first R, half as long for those sent with them."""
    waiting = np.maximum(0.0, load.concurrency - seqs)
    late = np.maximum(0.0, 1 - (seqs + waiting / 2) / np.maximum(load.num_prompts, load.concurrency))
    return waiting / seqs * late


def _frontend_wait_s(load: ClosedLoopLoad, engine: Engine, life: Number) -> Number:
    """Return the wait of a request with this life for the front end, which passes all of them in turn."""
    passing = np.maximum(engine.host.frontend_request_s, engine.host.frontend_token_s * load.output_len)
    least_s = load.concurrency * np.maximum(passing, load.loading_s)  # prefixes are loaded one after the other, too
    return knee(np.maximum(LEAST_S, life), least_s)


def prompt_passes(chunks: Number, stages: Number, engine: Engine) -> Number:
    """Return how many passes through all stages a prompt's chunks take: one each, or each a stage behind the other.

    >>> from commtax.spec.engine import Scheduling
    >>> float(prompt_passes(16, 8, Engine("", "", "", (), (), serves=Scheduling(chunks_follow=True))))
    2.875
    """
    return (chunks + stages - 1) / stages if engine.serves.chunks_follow else chunks


def _lost_share(load: ClosedLoopLoad, steps: Steps, seqs: Number, engine: Engine) -> Number:
    """Return the part of a prompt's seconds that a request loses to it: 1/stages with even batches, else up to all of it, since the
    batch with the most holds up the others."""
    batch = np.maximum((seqs - 1) * _lockstep(load), arrivals_per_step(load, seqs)) / steps.stages
    uneven = np.where(load.output_len > 1, 1 / np.sqrt(1 + (steps.stages + 1) * batch), 0.0)  # prompts alone fill all batches
    alone = 1 / np.minimum(np.maximum(1.0, steps.chunks), steps.stages) if engine.serves.chunks_follow else 1
    return 1 / steps.stages + (alone - 1 / steps.stages) * uneven


def _idle(load: ClosedLoopLoad, steps: Steps, seqs: Number) -> Number:
    """Return the share of ranks without a prompt in a step in which one has (none where requests are prompts alone)."""
    each = (steps.ranks * np.minimum(seqs, load.concurrency) - 1) / np.maximum(1, steps.ranks - 1)  # clients of another rank
    came = np.where(load.decodes > 0, arrivals_per_step(load, 1 + np.clip(each, 0, seqs)), each)
    return (1 - 1 / steps.ranks) * (1 - np.clip(came, 0.0, 1.0))


def knee(alone_s: Number, least_s: Number) -> Number:
    """Return what a front end adds to requests that take ``alone_s`` without it: queues form before it is fully busy."""
    return alone_s * ((1 + (least_s / alone_s) ** KNEE) ** (1 / KNEE) - 1)


def boundary_turns(engine: Engine, stages: Number, wait: Number = 0.0) -> Number:
    """Return the steps before a request joins a batch: the one in the first stage, and the next if already decided."""
    looked = (engine.serves.steps_per_decision + 1) / 2 + wait
    return (looked + engine.serves.ahead * (stages == 1)) / stages


def largest(count: Number, mean: Number) -> Number:
    """Return the mean of the largest of ``count`` Poisson numbers, over their mean.

    >>> f"{largest(2, 4.0):.2f}"
    '1.28'
    """
    return 1 + (count - 1) / np.sqrt(1 + (count + 1) * mean)


def fullest_batch(seqs: Number, stages: Number) -> Number:
    """Count the requests of a pipeline's fullest batch, which all wait for: an arrival joins an empty one, else any."""
    more = np.maximum(1.0, seqs / stages) - 1
    return 1 + more * largest(stages, more)
