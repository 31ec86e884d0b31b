"""What requests come to, and the steps that they consist of: a closed loop in closed form, or requests in time.

And where a technique pays for them: along their number, as clients or as the batch that they fill, and along prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, cast

import numpy as np

from commtax.arrays import Array
from commtax.cost.overlap import most_fused_tokens
from commtax.judgement.gains import ALIKE
from commtax.ledger import Bill
from commtax.question import STEP_AXES, Question
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES
from commtax.statement import Note
from commtax.units import format_bytes, plural
from commtax.verbs.billing import price
from commtax.verbs.settling import Settled, terms_of

AnyQuestion = TypeVar("AnyQuestion", bound=Question)
MOST_BATCH = 1024
BATCH, CLIENTS, PROMPT = STEP_AXES[0], "clients", "prompt"
"""What is varied: sequences in the step of each replica, or the clients of all of them; and tokens of a prompt."""

Swept = Mapping[str, tuple[Array, Array]]  # by axis, what is looked at along it and the tokens/s per GPU there


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What requests come to: means, the rate that a technique is to raise, and how many run at once."""

    ttft_s: float
    tpot_s: float  # no number without a second token
    tokens_per_s: float
    running: float  # requests that a replica works on at once
    rate: float  # tokens/s of a closed loop; requests that come whatever happens are answered the sooner …
    overloaded: bool = False  # … unless more come than can be answered: then tokens/s count
    notes: tuple[Note, ...] = ()  # on what these means leave out

    def faster(self, other: RequestTimes) -> float:
        """Return how many times as fast another one is."""
        return other.tokens_per_s / self.tokens_per_s if self.overloaded else other.rate / self.rate


def loop_around(step: AnyQuestion) -> AnyQuestion:
    """Return the question with the closed loop whose clients keep its batch running: prompts as long as its context.

    A step of prompts alone is one of requests whose first token is the last.
    """
    outputs = 1 if step.phase == "prefill" else step.requests.output_len
    clients = int(step.batch) * replicas_of(step)
    return cast(AnyQuestion, step.but(concurrency=clients, input_len=max(1, int(step.context)), output_len=outputs))


def steps_of(q: Settled) -> tuple[Bill, ...]:
    """Price the step of a question, and of requests in time also that of a prompt, which they wait for beside decode steps."""
    if not q.offered.request_rate:
        return (price(q),)
    return price(q), price(q.but(phase="prefill", batch=1, context=max(1, int(q.requests.input_len)), speculative=0, drafter=""))


def requests_served(q: Settled) -> tuple[RequestTimes, tuple[Bill, ...]]:
    """Price a closed loop in closed form, with its steps, that of decodes first if there are any, or run requests in time."""
    if q.offered.request_rate:
        from commtax.verbs import requests  # not for those who ask about a step

        timed = requests.run_requests(q)
        ttft, tpot, e2e = (timed.statistic(f"{name}_mean") for name in ("ttft", "tpot", "e2e"))
        running = q.offered.request_rate * e2e / replicas_of(q)  # Little's law
        return RequestTimes(ttft, tpot, float(timed.tokens_per_s), running, 1 / e2e, bool(timed.overloaded)), ()
    from commtax.verbs.closed_loop import price_closed_loop  # likewise

    loop = price_closed_loop(q)
    rate, single = float(loop.tokens_per_s), q.requests.output_len == 1
    cached = q.requests.input_len + q.requests.output_len / 2  # of those that decode: who waits for its prompt holds none
    running = min(float(loop.running), max(1.0, float(loop.kv_tokens // cached)))
    times = RequestTimes(float(loop.ttft_s), np.nan if single else float(loop.tpot_s), rate, running, rate)
    return times, loop.bills[1:] if single else loop.bills


@dataclass(frozen=True, slots=True)
class PayRange:
    """Where a technique pays along one axis: from ``low`` to ``high``, as far as was looked."""

    axis: str
    low: float
    high: float
    ends: tuple[float, float]  # of what was looked at
    until: str = ""  # the rule that ends it at ``high``, where one of the engine's does


def request_grids(q: Settled, axis: str) -> dict[str, Array]:
    """Return what is looked at along ``axis``, the clients or the batch that they fill, and along prompts."""
    current = int(q.requests.concurrency) // (1 if axis == CLIENTS else replicas_of(q))
    loads = np.geomspace(1, max(MOST_BATCH, 2 * current), 30).astype(int)
    lengths = np.geomspace(min(64, q.model.max_len), max(2, min(q.model.max_len, 2**20)), 15).astype(int)
    lengths = np.union1d(lengths, [int(q.requests.input_len)])
    room = q.model.max_len - int(q.requests.output_len)
    return {axis: np.union1d(loads, [current]), PROMPT: lengths[lengths <= max(room, lengths[0])]}


def replicas_of(q: Question) -> int:
    """Count the replicas that share the clients: servers, and ranks of attention data parallelism in each."""
    return int(q.plan.dp * q.plan.replicas)


def rate_over(q: Settled, axis: str, grid: Array) -> Array:
    """Return the tokens/s per GPU of a closed loop along one axis."""
    from commtax.verbs.closed_loop import price_closed_loop  # not for those who ask about a step

    clients = grid if axis == CLIENTS else grid * replicas_of(q)
    looped = q.but(input_len=grid) if axis == PROMPT else q.but(concurrency=clients)
    return np.asarray(price_closed_loop(looped).tokens_per_s / q.plan.num_gpus + 0.0 * grid)


def pay_ranges(q: Settled, base: Settled, swept: Swept) -> tuple[tuple[PayRange, ...], tuple[str, ...]]:
    """Return where along each axis a technique gains, unless it always does, and axes along which it never does."""
    paying, never = list[PayRange](), list[str]()
    for axis, (grid, rates) in swept.items():
        gains = rate_over(q, axis, grid) / rates - 1 > ALIKE
        if not gains.any():
            never.append(axis)
        elif not gains.all():
            edges = np.flatnonzero(np.diff(np.concatenate([[0], gains.astype(int), [0]])))
            runs = edges.reshape(-1, 2)
            start, end = runs[np.argmax(grid[runs[:, 1] - 1] / grid[runs[:, 0]])]
            longest = PayRange(axis, float(grid[start]), float(grid[end - 1]), (float(grid[0]), float(grid[-1])))
            paying.append(longest if axis == PROMPT else _fused_until(longest, q, base))
    return tuple(paying), tuple(never)


def _fused_until(paying: PayRange, q: Settled, base: Settled) -> PayRange:
    """Return the range with the engine's limit on fused sums, where a technique pays up to it and no further."""
    if q.techniques.fused_reduce == base.techniques.fused_reduce:
        return paying
    tokens = float(most_fused_tokens(terms_of(q)))
    last = tokens // (1 + float(q.speculative)) * (1 if paying.axis == BATCH else replicas_of(q))
    if not 1 <= last < paying.ends[1]:
        return paying
    around = np.array([last, last + 1]).astype(int)
    gains = rate_over(q, paying.axis, around) / rate_over(base, paying.axis, around) - 1 > ALIKE
    if gains.tolist() != [True, False]:
        return paying
    nbytes = tokens * q.model.hidden * DTYPE_BYTES[q.plan.activations_dtype]
    words = f"{q.engine.name} fuses sums of up to {format_bytes(nbytes)} on {int(q.plan.tp)} GPUs, {plural(int(tokens), 'token')}"
    return replace(paying, high=last, until=words)
