"""Prompts on workers of their own, in closed form: a closed network of prompt workers, the wire and workers that decode.

N clients have one request under way each. At X requests/s the time at every station follows from X alone, so the clients that
keep X going,

    N(X) = X (server + prompt + moving + the step in progress) + n(X)        n = X (O - 1) D(n)

grow with X, and halving finds the X that N clients make. n requests decode (Little's law) with steps of D(n). No station
passes more than it can: where clients are left over at the most that the slowest passes, they queue there.

A queue's wait is Kingman's, S rho (ca^2 + cs^2) / 2 (1 - rho), seen by one of N (the arrival theorem: the others' share of the
load). Prompts share steps, up to ``most``: then who comes waits for the step in progress, and a queue forms later (Sakasegawa).
At the end stand the means of a closed loop of such servers.
"""

from dataclasses import replace
from typing import Self

import numpy as np

from commtax.arrays import Array, unique_values
from commtax.cost.closed_form import LEAST_S, ClosedLoopMeans, knee
from commtax.records import dataclass
from commtax.spec import Condition, Engine, Number

TURNS, EXACT = 80, 1e-11  # of looking for the requests/s, and how well they are known
RISE = 0.05  # the least power of a batch that its tokens/s grow with
LEAST_WIRE_S = 1e-12  # of a cache on a wire that takes no time
GATES = 2  # rounds that the batch of a gated queue settles in
STATIONS = ("prompts", "wire", "decoding")
NODES = unique_values(np.r_[1:9, np.round(2 ** np.arange(3, 14.1, 0.25) / 2) * 2]).astype(int)
"""Batches whose decode steps are priced; between them n grows evenly with the tokens/s. The same for all, so that all agree."""


@dataclass(frozen=True, slots=True)
class PromptStation:
    """Workers that compute prompts."""

    workers: Number  # inf: enough that no prompt waits
    one_s: Number  # a prompt without others in its steps
    more_s: Number = 0.0  # that each further prompt adds to a step of a rank
    most: Number = 1.0  # prompts of a rank's step
    ranks: Number = 1  # of a worker, each with a step of its own …
    together: Number = 1  # … of which so many wait for the fullest …
    shared: Number = 0.0  # … but for this share of a prompt's seconds, which they work off together: its experts
    spread: Number = 0.0  # lengths vary by this share of their mean to either side

    def step_s(self, prompts: Number) -> Number:
        """Return a worker's step of this many prompts: as long as the fullest rank's, but for experts, which all ranks compute."""
        each = prompts / self.ranks
        if np.all(self.together == 1):  # nobody waits for another rank
            return self.one_s + self.more_s * (np.maximum(1.0, each) - 1)
        more, root = self.uneven
        longest = 1 + self.spread * (np.minimum(prompts, self.together) - 1) / (prompts + 1)  # of one prompt a rank
        fullest = np.minimum(np.maximum(longest, each + more + root * np.sqrt(each)), np.maximum(1.0, self.most))
        even, idle = np.maximum(1.0, each), self.shared * np.maximum(0.0, 1 - prompts / self.together)
        step_s: Number = self.one_s * (1 - idle) + self.more_s * (even - 1 + (1 - self.shared) * (fullest - even))
        return step_s

    @property
    def uneven(self) -> tuple[Number, Number]:
        """By how many mean prompts the fullest rank's exceed each one's (half of the others have one less), and the factor of their
        square root: the largest of k evenly spread lengths is (k - 1) / (k + 1) of their range beyond the mean."""
        others = self.together - 1
        return others / self.together / 2, self.spread * others / (self.together + 3)

    @property
    def columns(self) -> tuple[Number, ...]:
        """What differs from one kind of workers to another."""
        return self.one_s, self.more_s, self.most, self.ranks, self.together, self.shared, self.spread

    def full(self, clients: Number) -> Number:
        """Return the prompts of a worker's largest step with this many clients in all."""
        return np.maximum(1.0, np.minimum(self.most * self.ranks, clients / self.workers))

    def most_per_s(self, clients: Number) -> Number:
        full = self.full(clients)
        return self.workers * full / self.step_s(full)


@dataclass(frozen=True, slots=True)
class CacheWire:
    """Between both kinds of workers: seconds of a cache that has the wire for itself, and that it keeps a worker's links busy."""

    alone_s: Number
    out_s: Number  # of the worker that computed the prompt
    in_s: Number  # of the one that decodes
    hidden_s: Number = 0.0  # of it, that passed while the prompt was computed: left out of ``alone_s``

    def most_per_s(self, before: Number, after: Number) -> Number:
        """Return the caches per second that this many workers send and take."""
        return np.minimum(before / np.maximum(self.out_s, LEAST_WIRE_S), after / np.maximum(self.in_s, LEAST_WIRE_S))


@dataclass(frozen=True, slots=True)
class DecodeStation:
    """Workers that decode, by rank: requests at once and the tokens/s that they get, along the first axis, from none on."""

    workers: Number
    ranks: Number
    most: Number  # requests that run at once on a rank
    nodes: Array
    per_s: Array  # never fewer for more requests

    @classmethod
    def of(cls, workers: Number, ranks: Number, most: Number, step_s: Array) -> Self:
        """Build a station from the steps of ``NODES``, priced as far as ``most`` reaches."""
        batches = NODES[: len(step_s)].reshape(-1, *(1,) * (np.ndim(step_s) - 1)) * 1.0
        # A larger batch makes more tokens/s, if few: graphs and tiles that are filled up would make it jump.
        rates = batches**RISE * np.maximum.accumulate(batches ** (1 - RISE) / np.maximum.accumulate(step_s, axis=0), axis=0)
        return cls(workers, ranks, most, _with_none(batches), _with_none(rates))

    def seqs(self, per_s: Number) -> Number:
        """Return the requests at once on a rank that makes this many tokens/s."""
        return _interpolate(per_s, self.per_s, self.nodes)

    def most_per_s(self, decodes: Number) -> Number:
        """Return the requests/s of all ranks when they are full."""
        each = _interpolate(self.most, self.nodes, self.per_s)
        return np.where(decodes > 0, self.workers * self.ranks * each / np.maximum(decodes, 1), np.inf)[()]

    def step_s(self, seqs: Number, per_s: Number) -> Number:
        """Return the step of a batch that makes this many tokens/s."""
        return np.where(per_s > 0, seqs / np.maximum(per_s, 1e-300), 1 / self.per_s[1])[()]


def nodes_to(most: Number) -> Array:
    """Return ``NODES`` up to the first that holds the most requests that run at once on a rank."""
    return NODES[: 1 + int(np.searchsorted(NODES, np.max(most)))]


def _with_none(values: Array) -> Array:
    return np.concatenate([np.zeros((1, *np.shape(values)[1:])), values])


def _interpolate(x: Number, xs: Array, ys: Array) -> Number:
    """Interpolate along (xs, ys), on the first axis, flat beyond the last point."""
    if np.ndim(xs) == np.ndim(ys) == 1:
        straight: Number = np.interp(x, xs, ys)
        return straight
    xs, ys = np.broadcast_arrays(xs, ys)
    run, rise = np.diff(xs, axis=0), np.diff(ys, axis=0)
    slope = np.where(run > 0, rise / np.where(run > 0, run, 1), 0.0)
    jump = np.where((run <= 0) & (x >= xs[1:]), rise, 0.0)
    total: Number = np.sum(slope * np.clip(x - xs[:-1], 0, run) + jump, axis=0)
    return total


@dataclass(frozen=True, slots=True)
class Queue:
    """How even requests come to workers that a router sends them to in turn."""

    others: Number  # share of the load that is not the request's own
    varied: Number  # squared coefficient of variation of lengths …
    chance: Number
    """… and of the times between requests. The router evens these out; and clients come back in the order and at the distances in
    which a worker let them go, but for what their lengths differ: by so many such distances."""

    def wait_s(self, load: Number, service_s: Number, regular: Number) -> Number:
        """Return Kingman's wait for requests that come as unevenly as ``regular`` says."""
        load = np.minimum(1.0, load)
        return self.others * load * service_s * (regular + self.varied) / 2 / np.maximum(1e-9, 1 - self.others * load)


@dataclass(frozen=True, slots=True)
class QueueNetwork:
    """All stations, and who passes them."""

    clients: Number
    decodes: Number  # steps of a request after its first token
    request_s: Number  # the way through the server
    prompting: PromptStation
    wire: CacheWire
    decoding: DecodeStation
    spread: Number = 0.0  # lengths vary by this share of their mean to either side
    turns: Number = 1.0  # steps of a batch that pass before a request joins it
    decided: Number = 0.0  # whether a step of prompts is, when the one before begins
    steps_per_token: Number = 1.0  # fewer where steps yield accepted drafts too

    def queue(self, workers: Number) -> Queue:
        """Return what decides how long requests wait for one of this many workers."""
        each, varied = self.clients / np.maximum(1.0, workers), np.minimum(1.0, self.spread) ** 2 / 3
        apart = np.sqrt(varied) * each
        return Queue(1 - 1 / np.maximum(1.0, each), varied, apart / (1 + apart) / np.maximum(1.0, workers))

    @property
    def limits(self) -> tuple[Number, Number, Number]:
        """Requests/s that each of ``STATIONS`` passes at most."""
        wire = np.where(self.decodes > 0, self.wire.most_per_s(self.prompting.workers, self.decoding.workers), np.inf)[()]
        return self.prompting.most_per_s(self.clients), wire, self.decoding.most_per_s(self.decodes)


@dataclass(frozen=True, slots=True)
class Flow:
    """What passes, and how long a request is where."""

    per_s: Number
    seqs: Number  # that decode at once on a rank
    batch: Number  # prompts of a worker's step
    boundary_s: Number
    prefill_s: Number  # its own prompt's steps
    ahead_s: Number  # waiting for a prompt worker
    moved_s: Number  # its cache moves, waiting for the wire included
    slot_s: Number  # waiting for a place among those that decode
    step_s: Number  # of those
    slowest: Number  # the station, by its place in ``STATIONS``
    queued: Condition = False  # whether clients are left over there

    def life_s(self, net: QueueNetwork) -> Number:
        first = net.request_s + self.boundary_s + self.prefill_s + self.ahead_s + self.moved_s + self.slot_s
        return first + net.decodes * self.step_s


def load_share(net: QueueNetwork, passed: Flow) -> Number:
    """Return the throughput as a share of the most prompts and caches that their workers and the wire would pass."""
    return passed.per_s / np.minimum(net.prompting.most_per_s(np.inf), net.limits[1])


def prompt_wait_s(net: QueueNetwork, per_s: Number) -> Number:
    return Times(net).prompts(per_s)[1]


def flow(net: QueueNetwork) -> Flow:
    """Solve for the requests/s that the clients make, and a request's time at each station."""
    limits = np.broadcast_arrays(*net.limits, net.clients)[:3]
    most = np.minimum(np.minimum.reduce(limits), net.clients / (net.request_s + net.prompting.one_s))  # where nobody waits
    times = Times(net)
    share, limited = _share(times, most)
    # Clients that are left over at the most that passes wait where that is least.
    passed, slowest = times.at(most * share), np.argmin(limits, axis=0)[()]
    left_s = np.maximum(0.0, net.clients / passed.per_s - passed.life_s(net))
    waits = [np.where(limited & (slowest == place), left_s, 0.0)[()] for place in range(len(STATIONS))]
    ahead, moved, queued = passed.ahead_s + waits[0], passed.moved_s + waits[1], limited & (left_s > 1e-6 * passed.life_s(net))
    return replace(passed, ahead_s=ahead, moved_s=moved, slot_s=waits[2], slowest=slowest, queued=queued)


def _share(times: "Times", most: Number) -> tuple[Number, Condition]:
    """Find the share of the most throughput that the clients keep going, by false position with Illinois' rule and halvings."""

    def beyond(share: Number) -> Number:
        passed = times.at(most * share)
        return passed.per_s * passed.life_s(times.net) / times.net.clients - 1

    low, high = np.zeros(np.shape(most)), np.ones(np.shape(most))
    below, above = low - 1.0, beyond(high)
    limited, side = np.asarray(above < 0), low
    for turn in range(TURNS):
        between = (low * above - high * below) / np.where(above > below, above - below, 1.0)
        share = np.where(limited, 1.0, (low + high) / 2 if turn % 4 == 3 else between)
        value = beyond(share)
        if np.all(limited | (np.abs(value) < EXACT) | (high - low < EXACT * high)):
            break
        under = value < 0
        below, above = np.where(under, value, below / (1 + (side > 0))), np.where(under, above / (1 + (side < 0)), value)
        low, high, side = np.where(under, share, low), np.where(under, high, share), np.where(under, -1.0, 1.0)
    return np.where(limited, 1.0, np.where(np.abs(value) < EXACT, share, low))[()], limited[()]


class Times:
    """A network's times at any rate that all its stations pass, with what does not depend on the rate worked out once."""

    def __init__(self, net: QueueNetwork) -> None:
        self.net, p = net, net.prompting
        self.before, self.after = net.queue(p.workers), net.queue(net.decoding.workers)
        self.full = p.full(net.clients)
        self.first_s, self.full_s = p.step_s(1.0), p.step_s(self.full)
        self.ranks = net.decoding.workers * net.decoding.ranks
        self.busy = np.minimum(1.0, np.maximum(0.0, net.clients / self.ranks - 1)) * net.turns * (net.decodes > 0)
        self.gated = self.before.others * (1 - 1 / self.full)
        self.crowd = np.sqrt(2 * (self.full + 1)) - 1  # Sakasegawa's
        self.lockstep = 1 / np.maximum(1.0, 2 * net.spread * (net.decodes + 2))  # share of a step's prompts that come back together
        self.chance = np.minimum(1.0, self.before.chance + self.before.varied)
        busy = np.maximum(1.0, np.minimum(p.workers, net.clients))  # senders that there can be at once
        senders = np.minimum(1.0, net.wire.out_s / np.maximum(net.wire.in_s, LEAST_WIRE_S)) / busy
        self.meet = 1 - senders  # caches of one sender do not meet at the receiver, unless that is slower

    def at(self, per_s: Number) -> Flow:
        net = self.net
        tokens_per_s = per_s * net.decodes / self.ranks
        seqs = net.decoding.seqs(tokens_per_s)
        step = net.decoding.step_s(seqs, tokens_per_s)
        batch, wait = self.prompts(per_s)
        boundary, prefill = step * self.busy * np.minimum(1.0, seqs), net.prompting.step_s(batch)
        moved = np.where(net.decodes > 0, net.wire.alone_s + self._wire_s(per_s, batch), 0.0)[()]
        return Flow(per_s, seqs, batch, boundary, prefill, wait, moved, slot_s=per_s * 0.0, step_s=step, slowest=0)

    def prompts(self, per_s: Number) -> tuple[Number, Number]:
        """Return the batch that a prompt joins, and its wait before that, in a gated queue: who comes during a step S(b) of batch b
        is computed in the next, with Poisson(rate S) prompts, or one after a pause."""
        p, full = self.net.prompting, self.full
        came = self.before.others * per_s / p.workers
        (mean, step), more = self._mean_step(came), p.more_s / p.ranks
        noise = mean * more**2 / np.maximum(0.1, 1 - (came * more) ** 2)
        longer = np.minimum(step + noise / step, self.full_s)  # of the steps that prompts come in
        load = np.minimum(1.0, per_s / p.workers * self.full_s / full)
        met = self.gated * np.minimum(1.0, came * step / mean) * (self.chance + (1 - self.chance) * load**4)
        batch = np.clip(1 + met * came * longer, 1.0, full)
        wait = np.maximum(self._behind_s(per_s, load), self._decided(came * step, load) * met * longer)
        return batch + self.lockstep * (full - batch), met * longer / 2 + wait

    def _decided(self, came: Number, load: Number) -> Number:
        """Return the share of the time in which the next step is decided early, after one that left prompts until none comes."""
        begins = load**self.crowd
        return self.net.decided * begins / (begins + np.exp(-came))

    def _mean_step(self, came: Number) -> tuple[Number, Number]:
        """Return the prompts and seconds of a step that computes one alone, or as many as came during the one before."""
        p, step = self.net.prompting, self.first_s
        grows, (more, root) = came * p.more_s / p.ranks, p.uneven
        left, root = np.maximum(1e-9, 1 - grows), grows * (1 - p.shared) * root
        begun = came * (p.one_s - p.more_s + p.more_s * (1 - p.shared) * more)
        for _ in range(GATES):
            pause = np.exp(-came * step)
            deep = (root + np.sqrt(root**2 + 4 * left * (np.maximum(0.0, begun + pause) / p.ranks))) / 2 / left
            mean = np.clip(np.maximum(came * step + pause, p.ranks * deep**2), 1.0, self.full)
            step = p.step_s(mean)
        return mean, step

    def _behind_s(self, per_s: Number, load: Number) -> Number:
        """Return the wait behind whole steps of others, which are full then, and without whoever is in one of them."""
        away = 1 - np.minimum(1.0, per_s * self.full_s / self.net.clients)
        crowded: Number = load**self.crowd / self.full * away
        uneven, others = (self.before.chance + self.before.varied) / 2, self.before.others
        return others * uneven * self.full_s * crowded / np.maximum(1e-9, 1 - others * load)

    def _wire_s(self, per_s: Number, batch: Number) -> Number:
        """Return the wait for the sender's links, behind caches of the same and earlier steps, and for the receiver's."""
        net, p = self.net, self.net.prompting
        sent, taken = per_s / p.workers, per_s / net.decoding.workers
        steps = np.minimum(1.0, sent * p.step_s(batch) / batch) ** 2
        regular = steps * self.before.varied + (1 - steps) * self.before.chance  # steps let prompts out one after the other
        out = (batch - 1) / 2 * net.wire.out_s + self.before.wait_s(sent * net.wire.out_s, net.wire.out_s, regular)
        return out + self.meet * self.after.wait_s(taken * net.wire.in_s, net.wire.in_s, self.after.chance)


def disaggregated_means(
    net: QueueNetwork, passed: Flow, engine: Engine, num_prompts: Number = np.inf, loading_s: Number = 0.0
) -> ClosedLoopMeans:  # fmt: skip
    """Return the means over a closed loop's requests with prompts on separate workers, the first of which arrive all at once."""
    full = net.prompting.full(net.clients)
    first, full_s = np.minimum(1.0, net.clients / num_prompts), net.prompting.step_s(full)
    burst: Number = np.maximum(0.0, net.clients / net.prompting.workers / full - 1) / 2 * full_s
    wait = passed.ahead_s + first * np.maximum(0.0, burst - passed.ahead_s)
    prefill = passed.prefill_s + first * np.maximum(0.0, full_s - passed.prefill_s)
    moved = passed.moved_s + first * np.maximum(0.0, net.clients / 2 / net.limits[1] - burst - passed.moved_s)
    life = passed.life_s(net) + wait - passed.ahead_s + prefill - passed.prefill_s + moved - passed.moved_s
    tokens_s = engine.host.frontend_token_s * (net.decodes / net.steps_per_token + 1) / net.decoding.workers
    least = net.clients * np.maximum(np.maximum(engine.host.frontend_request_s, loading_s) / net.prompting.workers, tokens_s)
    frontend = knee(np.maximum(LEAST_S, life), least)
    after = np.where(net.decodes > 0, frontend / 2, 0.0)
    tpot = (passed.step_s + after / np.maximum(1.0, net.decodes)) * net.steps_per_token
    waits = (net.request_s + passed.per_s * 0, passed.boundary_s, prefill, wait, passed.slot_s, frontend - after)
    return ClosedLoopMeans(tpot, *waits, ahead=wait / net.prompting.one_s, stretch_s=0.0, moved_s=moved)
