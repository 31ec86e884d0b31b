"""Whole requests of plans that are compared: what clients of a closed loop get from all servers of each."""

from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.longest_request import why_it_does_not_start
from commtax.verbs.settling import settle


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """Whole requests of some clients, all servers of one plan together."""

    plan: str
    link: str
    clients: int
    gpus: int
    question: Question
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    tokens_per_s: float = 0.0  # output of all clients
    refused: str = ""
    fits: bool = False

    @property
    def rate(self) -> float:
        return self.tokens_per_s

    @property
    def load(self) -> int:
        """What plans are compared at."""
        return self.clients


def serve_plan(q: Question, name: str, link: str, clients: int) -> ServedPlan:
    """The closed loop of all servers, as ``simulate`` has it."""
    where = name, link, clients, int(q.plan.all_gpus), q
    try:
        loop = price_closed_loop(settle(q.but(concurrency=clients)))
    except ValueError as error:
        return ServedPlan(*where, refused=str(error))
    room = bool(loop.kv_tokens >= q.requests.tokens + loop.state_tokens) and not why_it_does_not_start(loop.question)
    return ServedPlan(*where, float(loop.ttft_s), float(loop.tpot_s), float(loop.tokens_per_s), fits=room)
