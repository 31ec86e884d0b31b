"""Dollars: what a GPU-hour costs, what a fleet costs by the hour, and what a million tokens cost as asked and at full load.
A price of 0 is none: what would follow from it is None, never 0."""

from collections.abc import Sequence
from math import isnan
from typing import NamedTuple

from commtax.question import Goal, Question
from commtax.records import dataclass
from commtax.spec import Number
from commtax.statement import Refusal
from commtax.units import plural

COUNTED = ("output", "total")  # tokens that a price is spread over: those of the outputs, or those of the prompts too
MONTH_H, YEAR_H = 730, 8760
MOST_USD = 1e6
Prices = float | Sequence[float | None] | None  # dollars a GPU-hour: of all clusters, of each, or where nobody says the catalogue's


@dataclass(frozen=True, slots=True)
class Money:
    """What a fleet costs, and what it answers for that in counted tokens."""

    gpus: int  # that are paid
    usd_per_gpu_hour: float  # 0: not known
    tokens_per_s: float  # of what is asked, those that are answered
    full_tokens_per_s: float  # the most within the limits; not a number where nobody has looked
    used: float | None = None  # share of what it answers at most that is asked; None where nobody has looked

    @property
    def usd_per_hour(self) -> float | None:
        return self.gpus * self.usd_per_gpu_hour or None

    @property
    def usd_per_month(self) -> float | None:
        return self.gpus * self.usd_per_gpu_hour * MONTH_H or None

    @property
    def usd_per_year(self) -> float | None:
        return self.gpus * self.usd_per_gpu_hour * YEAR_H or None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million tokens as requested: GPUs that idle are paid all the same."""
        return self._usd_per_million(self.tokens_per_s)

    @property
    def full_usd_per_million_tokens(self) -> float | None:
        """Price of a million tokens with as many requests as it answers within the limits."""
        return self._usd_per_million(self.full_tokens_per_s)

    def _usd_per_million(self, tokens_per_s: float) -> float | None:
        usd = self.usd_per_hour
        return None if usd is None or isnan(tokens_per_s) else float(per_million(usd, tokens_per_s))


def per_million(usd_per_hour: Number, tokens_per_s: Number) -> Number:
    return usd_per_hour / 3600 / tokens_per_s * 1e6


def counted_tokens(q: Question) -> Number:
    """Return the tokens of a request that its price is spread over."""
    return q.requests.tokens if q.goal.cost_of == "total" else q.requests.output_len


def counted_tokens_per_s(q: Question, output_tokens_per_s: Number) -> Number:
    """Counted tokens/s, of so many tokens of outputs."""
    return output_tokens_per_s * (counted_tokens(q) / q.requests.output_len)


def paid(goal: Goal, gpus: Number, prompting: Number) -> Number:
    """Return the number of GPUs, where those for prompts count by their relative price."""
    ahead = goal.prefill_usd_per_gpu_hour
    return gpus + prompting * (ahead / goal.usd_per_gpu_hour - 1) if ahead else gpus


def plan_money(q: Question, gpus: int, output_tokens_per_s: float, prompting: int = 0) -> Money:
    """Return the cost of a plan in a closed loop, whose load is all the demand. GPUs of two kinds cost their mean."""
    tokens = float(counted_tokens_per_s(q, output_tokens_per_s))
    return Money(gpus, q.goal.usd_per_gpu_hour * float(paid(q.goal, gpus, prompting)) / gpus, tokens, tokens)


class TrainingRun(NamedTuple):
    """What a run of so many tokens takes: days of steps without a pause, and dollars of its GPUs, None where no price is known."""

    days: float
    usd_per_gpu_hour: float
    usd: float | None


def training_money(q: Question, gpus: int, tokens_per_s: float) -> TrainingRun:
    """Return what the goal's tokens take at a pace."""
    hours = q.goal.train_tokens / tokens_per_s / 3600
    return TrainingRun(hours / 24, q.goal.usd_per_gpu_hour, gpus * q.goal.usd_per_gpu_hour * hours or None)


def check(goal: Goal) -> None:
    """Check the prices, and what they are spread over."""
    for price in (goal.usd_per_gpu_hour, goal.prefill_usd_per_gpu_hour):
        if not 0 <= price < MOST_USD:
            raise Refusal.of("dollars per GPU-hour, at least 0", price=price)
    if goal.cost_of not in COUNTED:
        raise Refusal.of(f"one of {', '.join(COUNTED)}", COUNTED, cost_of=goal.cost_of)


def with_prices(put: Sequence[Question], usd: Prices) -> list[Question]:
    """Set the price of a GPU-hour: as stated, for all clusters or for each (of prompts before decoding), else the catalogue's."""
    stated, priced = iter(price_per_cluster(sum(len(q.places) for q in put), usd)), []
    for q in put:
        prices = [float(place.chip.usd_per_gpu_hour if (price := next(stated)) is None else price) for place in q.places]
        prices = prices if all(prices) else [0.0]  # half of a sum is no price
        priced.append(q.but(usd_per_gpu_hour=prices[-1], prefill_usd_per_gpu_hour=prices[0] if len(prices) > 1 else 0.0))
        check(priced[-1].goal)
    return priced


def price_per_cluster(clusters: int, usd: Prices) -> list[float | None]:
    """Return the stated price of each of so many clusters."""
    each = [usd] * clusters if usd is None or isinstance(usd, int | float) else list(usd)
    if len(each) != clusters:
        raise Refusal.about(price=f"{len(each)} prices for {plural(clusters, 'cluster')}; give one, or one per cluster")
    return each


def asks_for_dollars(q: Question) -> bool:
    """Return whether to answer in dollars: a price is stated, or they are the objective and the catalogue has one."""
    explicit = q.goal.usd_per_gpu_hour != q.cluster.chip.usd_per_gpu_hour
    return bool(q.goal.usd_per_gpu_hour) and (explicit or q.goal.objective == "cost")
