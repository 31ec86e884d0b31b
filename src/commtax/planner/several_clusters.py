"""Plans on several clusters, ranked together: ``commtax.plan_several("llama-3.1-70b", ["4xl40s", "2xh100-sxm"], dtypes=("fp8",))``.
Each cluster is searched as if it were alone."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

from commtax import counting
from commtax.answer import Answer
from commtax.planner import best_serving, plan
from commtax.planner.alternatives import usual_limits
from commtax.planner.columns import ServingPlans, request_s, standing_of
from commtax.planner.money import Money, Prices, plan_money, price_per_cluster
from commtax.question import Question
from commtax.records import dataclass, replace
from commtax.spec import Cluster, Model
from commtax.statement import Refusal

Ranked = TypeVar("Ranked")
TOKENS = "tokens"  # the objective where dollars cannot be compared and nobody asked for anything: most tokens/s a GPU


class RankedPlan(NamedTuple):
    """A plan of a cluster: which answer it is of, and its row there."""

    answer: ServingPlans
    row: int

    @property
    def money(self) -> Money:
        rows, i = self.answer.plans, self.row
        return plan_money(self.answer.question, int(rows.gpus[i]), float(rows.tokens_per_s[i]), int(rows.prefill_gpus[i]))

    @property
    def place(self) -> tuple[int, str]:
        """The answer's question and the layout: equal for one layout on one cluster, at whatever loads."""
        return id(self.answer.question), self.answer.layout(self.answer.plans, self.row)

    def deciding(self, objective: str) -> tuple[float, float, float]:
        """Return the figure that an objective ranks by (dollars per million tokens, tokens/s, seconds, GPUs) and its 80 % range."""
        rows, i, q = self.answer.plans, self.row, self.answer.question
        if objective == "latency":
            ends = [self.answer.range_of(rows, i, name) for name in ("ttft_s", "tpot_s")]
            low, high = (first + (q.requests.output_len - 1) * each for first, each in zip(*ends, strict=True))
            return float(request_s(q, rows)[i]), low, high
        if objective == "gpus":
            return (float(rows.gpus[i]),) * 3
        rate, usd = float(rows.tokens_per_s[i]), self.money.usd_per_million_tokens
        low, high = self.answer.range_of(rows, i, "tokens_per_s")
        if objective == "cost" and usd is not None:
            return usd, usd * rate / high, usd * rate / low
        gpus = 1 if objective == "throughput" else int(rows.gpus[i])
        return rate / gpus, low / gpus, high / gpus

    def worth(self, objective: str) -> float:
        """Return what ranks, larger is better."""
        return -_burden(self, objective)[0]


def same_plan(one: RankedPlan, other: RankedPlan) -> bool:
    return one.answer is other.answer and one.row == other.row


@dataclass(frozen=True, slots=True)
class SeveralPlans(Answer):
    """An answer for each cluster, in the order that they were named, and the good plans of all, best first.

    >>> import commtax
    >>> [answer.question.cluster.key for answer in commtax.plan_several("llama-3.2-1b", ["1xh100-sxm", "1xl40s"]).answers]
    ['1xh100-sxm', '1xl40s']
    """

    answers: tuple[ServingPlans, ...]
    objective: str
    plans: tuple[RankedPlan, ...] = ()
    waited: "SeveralPlans | None" = None  # without limits: the answer where users wait, at one speed on all clusters

    @property
    def best(self) -> RankedPlan | None:
        return self.plans[0] if self.plans else None

    @property
    def _recommended(self) -> list[RankedPlan]:
        return _rank_plans([RankedPlan(a, a.recommended) for a in self.answers if len(a.plans)], self.objective)

    @property
    def recommended(self) -> RankedPlan | None:
        """The plan to run: the first of what is recommended on each cluster."""
        return next(iter(self._recommended), None)

    @property
    def passed_over(self) -> RankedPlan | None:
        """What would be the best of all, where something stands against it."""
        each = [RankedPlan(replace(a, plans=a.passed_over), 0) for a in self.answers if len(a.passed_over)]
        first = min(each, key=lambda one: _burden(one, self.objective), default=None)
        return first if first and self.best and _burden(first, self.objective) < _burden(self.best, self.objective) else None

    @property
    def beside(self) -> tuple[RankedPlan, ...]:
        """What is recommended on each of the other clusters, best first."""
        return tuple(self._recommended[1:])

    def listed(self, top: int) -> tuple[RankedPlan, ...]:
        """Return the first plans, among them each cluster's best and recommended ones, and the one that was passed over."""
        named, over = [one for one in (self.recommended, *self.beside) if one], self.passed_over
        named += [one for one in self.plans if over and one.place == over.place]
        first = {id(one) for one in leaders_of_ranking(self.plans, [one.answer.question.cluster.key for one in self.plans], top)}
        return tuple(one for one in self.plans if id(one) in first or any(same_plan(one, plan) for plan in named))

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Chips that dollars say nothing of."""
        return tuple(dict.fromkeys(a.question.cluster.chip.key for a in self.answers if not a.question.goal.usd_per_gpu_hour))


def plan_several(
    model: str | Model, clusters: Sequence[str | Cluster], *, objective: str = "", usd_per_gpu_hour: Prices = None, **options: Any
) -> SeveralPlans:
    """Plan on each of several clusters, with the options of ``plan``, and rank the plans of all together by the objective.

    >>> import commtax
    >>> found = commtax.plan_several("llama-3.2-1b", ["1xh100-sxm", "1xl40s"])
    >>> found.recommended.answer.question.cluster.key
    '1xl40s'

    Without an objective by dollars per token where all chips have a price, else by tokens/s per GPU.
    """
    if isinstance(clusters, str | Cluster) or not clusters:
        raise Refusal.about(clusters="name several, such as ['4xl40s', '2xh100-sxm']; commtax.plan takes one")
    prices = price_per_cluster(len(clusters), usd_per_gpu_hour)
    places, wanted = list(zip(clusters, prices, strict=True)), {**options, "objective": objective or "cost"}

    def search(limits: dict[str, float]) -> list[ServingPlans]:
        return [plan(model, place, usd_per_gpu_hour=usd, **wanted | limits) for place, usd in counting.counted(places)]

    return _rank_searched(search, objective)


def best_of_several(put: Sequence[Question], objective: str) -> SeveralPlans:
    """Return the same of questions, one a cluster."""
    ranked = [q.but(objective=objective or "cost") for q in put]
    return _rank_searched(lambda limits: [best_serving(q.but(**limits)) for q in counting.counted(ranked)], objective)


def _rank_searched(search: Callable[[dict[str, float]], list[ServingPlans]], objective: str) -> SeveralPlans:
    """Rank the plans of all clusters, and where nothing is limited also at one speed, because a slower one looks cheaper."""
    with counting.part(0.0, 0.5):
        several = rank_answers(search({}), objective)
    open_ended = [a for a in several.answers if a.places]
    if not open_ended:
        return several
    with counting.part(0.5, 1.0):
        return replace(several, waited=rank_answers(search(usual_limits(open_ended)), objective))


def rank_answers(answers: Sequence[ServingPlans], objective: str) -> SeveralPlans:
    """Rank the plans of answers on several clusters together."""
    priced = [bool(a.question.goal.usd_per_gpu_hour) for a in answers]
    comparable = all(priced) if not objective else any(priced)
    objective = TOKENS if objective in ("", "cost") and not comparable else objective or "cost"
    plans = [RankedPlan(a, row) for a in answers for row in range(len(a.plans))]
    return SeveralPlans(tuple(answers), objective, tuple(_rank_plans(plans, objective)))


def leaders_of_ranking(ranking: Sequence[Ranked], places: Sequence[str], top: int) -> tuple[Ranked, ...]:
    """Return the first ones of a ranking, among them the best of each place."""
    best = {place: at for at, place in reversed(list(enumerate(places)))}.values()
    others = [at for at in range(len(ranking)) if at not in best][: max(0, top - len(best))]
    return tuple(ranking[at] for at in sorted([*best, *others]))


def _rank_plans(plans: Sequence[RankedPlan], objective: str) -> list[RankedPlan]:
    """Best first, those that nothing stands against before others, and those that dollars rank before those that they cannot."""
    stands = {id(one.answer): standing_of(one.answer.question, one.answer.plans) for one in plans}
    return sorted(plans, key=lambda one: (-stands[id(one.answer)][one.row], *_burden(one, objective)))


def _burden(one: RankedPlan, objective: str) -> tuple[float, ...]:
    """Return what the objective minimises, then GPUs per token, GPUs and waits."""
    rows, i = one.answer.plans, one.row
    by_gpu, gpus, rate = -float(rows.tokens_per_s_per_gpu[i]), float(rows.gpus[i]), -float(rows.tokens_per_s[i])
    usd, request = one.money.usd_per_million_tokens or inf, float(request_s(one.answer.question, rows)[i])
    counts = {"cost": usd, "throughput": rate, "latency": request, "gpus": gpus, TOKENS: by_gpu}
    return counts[objective], by_gpu, gpus, float(rows.ttft_s[i])
