"""What requests come to, and the steps that they consist of: a closed loop in closed form, or requests in time."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np

from commtax.arrays import Array
from commtax.ledger import Bill
from commtax.question import STEP_AXES, Question
from commtax.records import dataclass
from commtax.statement import Note
from commtax.verbs.billing import price
from commtax.verbs.settling import Settled

AnyQuestion = TypeVar("AnyQuestion", bound=Question)
BATCH, CLIENTS, PROMPT = STEP_AXES[0], "clients", "prompt"
"""What is varied: sequences in the step of each replica, or the clients of all of them; and tokens of a prompt."""
MOST_BATCH = 1024


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


def loop_of(step: AnyQuestion) -> AnyQuestion:
    """Return the question with the closed loop whose clients keep its batch running: prompts as long as its context."""
    outputs = 1 if step.phase == "prefill" else step.requests.output_len  # of prompts alone the first token is the last
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


def replicas_of(q: Question) -> int:
    """Count the replicas that share the clients: servers, and ranks of attention data parallelism in each."""
    return int(q.plan.dp * q.plan.replicas)


def grids(q: Settled, of_step: bool) -> dict[str, Array]:
    """Return the loads (clients, or the batch that they fill) and the prompt lengths over which gains are swept, by axis."""
    current = int(q.requests.concurrency) // (replicas_of(q) if of_step else 1)
    loads = np.union1d(np.geomspace(1, max(MOST_BATCH, 2 * current), 30).astype(int), [current])
    lengths = np.geomspace(min(64, q.model.max_len), max(2, min(q.model.max_len, 2**20)), 15).astype(int)
    lengths = np.union1d(lengths, [int(q.requests.input_len)])
    longest = max(q.model.max_len - int(q.requests.output_len), lengths[0])
    return {BATCH if of_step else CLIENTS: loads, PROMPT: lengths[lengths <= longest]}


def rate_over(q: Settled, axis: str, grid: Array) -> Array:
    """Return the tokens/s per GPU of a closed loop along one axis."""
    from commtax.verbs.closed_loop import price_closed_loop  # not for those who ask about a step

    clients = grid if axis == CLIENTS else grid * replicas_of(q)
    looped = q.but(input_len=grid) if axis == PROMPT else q.but(concurrency=clients)
    return np.asarray(price_closed_loop(looped).tokens_per_s / q.plan.num_gpus + 0.0 * grid)
