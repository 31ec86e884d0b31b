"""What requests come to, and the steps that they consist of: a closed loop in closed form, or requests in time."""

from __future__ import annotations

from typing import TypeVar, cast

from commtax.ledger import Bill
from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.billing import price
from commtax.verbs.paying import replicas_of
from commtax.verbs.settling import Settled

AnyQuestion = TypeVar("AnyQuestion", bound=Question)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What requests come to: means, the rate that a technique is to raise, and how many run at once."""

    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    running: float  # requests that a replica works on at once
    rate: float  # tokens/s of a closed loop; requests that come whatever happens are answered the sooner …
    overloaded: bool = False  # … unless more come than can be answered: then tokens/s count

    def faster(self, other: RequestTimes) -> float:
        """How many times as fast another one is."""
        return other.tokens_per_s / self.tokens_per_s if self.overloaded else other.rate / self.rate


def loop_around(step: AnyQuestion) -> AnyQuestion:
    """Return the question with the closed loop whose clients keep its batch running: prompts as long as its context.

    A step of prompts alone is one of requests whose first token is the last.
    """
    outputs = 1 if step.phase == "prefill" else step.requests.output_len
    clients = int(step.batch) * replicas_of(step)
    return cast(AnyQuestion, step.but(concurrency=clients, input_len=max(1, int(step.context)), output_len=outputs))


def steps_of(q: Settled) -> tuple[Bill, ...]:
    """The step of a question; of requests in time also that of a prompt, which they wait for beside decode steps."""
    if not q.offered.request_rate:
        return (price(q),)
    return price(q), price(q.but(phase="prefill", batch=1, context=max(1, int(q.requests.input_len)), speculative=0, drafter=""))


def requests_served(q: Settled) -> tuple[RequestTimes, tuple[Bill, ...]]:
    """A closed loop in closed form, with its steps: that of decodes first, where there are any; or requests in time."""
    if q.offered.request_rate:
        from commtax.verbs import requests  # not for those who ask about a step

        timed = requests.serve(q)
        ttft, tpot, e2e = (timed.statistic(f"{name}_mean") for name in ("ttft", "tpot", "e2e"))
        running = q.offered.request_rate * e2e / replicas_of(q)  # Little's law
        return RequestTimes(ttft, tpot, float(timed.tokens_per_s), running, 1 / e2e, bool(timed.overloaded)), ()
    from commtax.verbs.closed_loop import serve

    loop = serve(q)
    rate = float(loop.tokens_per_s)
    own = loop.bills[1:] if q.requests.output_len == 1 else loop.bills
    return RequestTimes(float(loop.ttft_s), float(loop.tpot_s), rate, float(loop.running), rate), own
