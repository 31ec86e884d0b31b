"""Whole requests of plans that are compared: what clients of a closed loop get from all servers of each."""

from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.closed_loop import serve
from commtax.verbs.longest_request import check_lengths, why_it_does_not_start
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
    refused: str = ""
    fits: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all clients, each of whom has one request under way."""
        length = int(self.question.requests.output_len)
        request_s = self.ttft_s + (length - 1) * self.tpot_s
        return self.clients * length / request_s if request_s else 0.0

    @property
    def rate(self) -> float:
        return self.tokens_per_s

    @property
    def load(self) -> int:
        """What plans are compared at."""
        return self.clients


def serve_plan(q: Question, name: str, link: str, clients: int) -> ServedPlan:
    """Clients are shared out over all ranks; where ranks are more than clients, some idle and the others have one each."""
    where, ranks = (name, link, clients, int(q.plan.all_gpus), q), int(q.plan.dp * q.plan.replicas)
    try:
        loop = serve(settle(check_lengths(q.but(concurrency=max(clients, ranks)))))
    except ValueError as error:
        return ServedPlan(*where, refused=str(error))
    room = bool(loop.kv_tokens >= q.requests.tokens + loop.state_tokens) and not why_it_does_not_start(loop.question)
    return ServedPlan(*where, float(loop.ttft_s), float(loop.tpot_s), fits=room)
