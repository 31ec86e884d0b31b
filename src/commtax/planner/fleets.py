"""How many GPUs for a rate of requests: ``commtax.plan_fleet("llama-3.1-70b", "2x8xh100-sxm", request_rate=20,
slo={"p95_ttft": "1s", "p99_itl": "50ms"})``.

Each layout's least fleet is found by simulation (``trials.py``), layouts that the closed form thinks best first (``layouts.py``),
in rounds of equal size whoever does them, so that the answer is the same on one core and on many. A layout that cannot reach
what is listed already, nor half of the best, is left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Unpack

import numpy as np

from commtax.catalog.distributions import lengths
from commtax.planner.columns import Rejected
from commtax.planner.crew import Crew, crew
from commtax.planner.layouts import SLACK, Layout, candidates, limit_name
from commtax.planner.reasons import in_type
from commtax.planner.remedies import larger, to_fit
from commtax.planner.trials import Task, Trial, all_requests, detailed, least, lengths_of_run, rate_of
from commtax.question import Question
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.units import format_seconds, plural
from commtax.verbs import checking
from commtax.verbs.asking import SearchOptions, describe_layout, only, settled, unsettled
from commtax.verbs.checking import positive

OBJECTIVES = ("gpus", "cost", "tokens")
METRICS, STATISTICS = ("ttft", "tpot", "itl", "e2e"), ("mean", "p50", "p90", "p95", "p99")
ROUND = 4  # layouts that are tried before it is looked again which ones may still be listed
WORSE = 1.5  # times the best's GPUs, dollars or inverse tokens: layouts beyond are left out
NEAR = 3  # layouts that are tried on more GPUs where no fleet holds
LISTED = 10
Progress = Callable[[int, int, Trial | None], None]
"""Told how many of how many layouts are done, and the best so far."""


@dataclass(frozen=True, slots=True)
class FleetPlans:
    """The least fleets of a question's layouts on one cluster or several, best first, and why others are not among them."""

    questions: tuple[Question, ...]  # one a cluster
    objective: str
    plans: tuple[Trial, ...] = ()
    near: tuple[Trial, ...] = ()  # where none holds: the nearest
    rejected: tuple[Rejected, ...] = ()
    would_take: tuple[str, ...] = ()
    candidates: int = 0
    simulated: int = 0  # fleets
    complete: bool = True  # False: it was interrupted, and better ones may be missing

    @property
    def question(self) -> Question:
        """Of the first cluster."""
        return self.questions[0]

    @property
    def requests_per_run(self) -> tuple[int, int]:
        """Requests that each run of a fleet of one copy counts, and those of its warm-up."""
        count, warmup = lengths_of_run(self.question, 1)
        return count - warmup, warmup


def plan_fleet(
    model: str | Model,
    cluster: str | Cluster | Sequence[str | Cluster],
    *,
    request_rate: float,
    slo: Mapping[str, float | str] | None = None,
    objective: str = "",
    dtypes: tuple[str, ...] = ("",),
    headroom: float = 0.0,
    burstiness: float = 1.0,
    num_prompts: int | None = None,
    seed: int = 0,
    usd_per_gpu_hour: float | Sequence[float] | None = None,
    on: str = "",
    processes: int = 0,
    **options: Unpack[SearchOptions],
) -> FleetPlans:
    """The least GPUs (``gpus``), dollars (``cost``) or most tokens/s a GPU (``tokens``) that hold limits at a rate.

    ``slo`` names statistics, ``mean``, ``p50``, ``p90``, ``p95`` or ``p99`` of ``ttft``, ``tpot``, ``itl`` or ``e2e``, with
    seconds or text such as ``"50ms"``. Lengths may be distributions as users spell them. ``headroom`` is the share by which the
    rate may grow with all limits held. ``on`` is a Dask scheduler's address.
    """
    places = [cluster] if isinstance(cluster, str | Cluster) else list(cluster)
    usual: SearchOptions = {"input_len": 512, "output_len": 128, "disaggregated": True}
    given = {**usual, **only(SearchOptions, options), "dtype": dtypes[0]}
    spelled = {side: given.pop(side) for side in ("input_len", "output_len")}
    put = [with_lengths(unsettled(model, place, given), **spelled) for place in places]
    put = [priced(q, usd_per_gpu_hour, i, len(put)) for i, q in enumerate(put)]
    asked = {"request_rate": request_rate, "burstiness": burstiness, "seed": seed, "growth": headroom, "objective": objective}
    asked |= {"slo": limits_of(slo or {}), "dtypes": tuple(dict.fromkeys(dtypes)), "num_prompts": num_prompts or np.inf}
    return best_fleets([q.but(**asked) for q in put], on, processes)


def with_lengths(q: Question, input_len: object, output_len: object) -> Question:
    """The question with its lengths: whole numbers vary by its spread, what is spelled otherwise is drawn as it says."""
    changes: dict[str, object] = {}
    for name, given, side in (("input_len", input_len, "inputs"), ("output_len", output_len, "outputs")):
        if isinstance(given, str) and not given.isdigit():
            drawn = lengths(given, side, name)  # type: ignore[arg-type]
            changes |= {side: drawn, name: max(1, round(drawn.mean))}
        else:
            changes[name] = positive(int(given), name)  # type: ignore[call-overload]
    return q.but(**changes)


def priced(q: Question, usd: float | Sequence[float] | None, place: int, count: int) -> Question:
    """With what a GPU-hour costs: as was said, for all clusters or for each, else the catalogue's."""
    if usd is not None and not isinstance(usd, int | float):
        if len(usd) != count:
            raise Refusal(f"price: {len(usd)} prices for {plural(count, 'cluster')}; give one, or one a cluster", "price")
        usd = usd[place]
    dollars = q.cluster.chip.usd_per_gpu_hour if usd is None else usd
    if not 0 <= dollars < 1e6:
        raise Refusal(f"price={dollars}: dollars a GPU-hour, at least 0", "price")
    return q.but(usd_per_gpu_hour=float(dollars))


def limits_of(slo: Mapping[str, float | str]) -> tuple[tuple[str, float], ...]:
    """Limits by our names of statistics: ``p95_ttft`` is ``ttft_p95``."""
    limits = []
    for name, value in slo.items():
        which, _, metric = name.partition("_")
        if which not in STATISTICS or metric not in METRICS:
            known = f"{', '.join(STATISTICS)} of {', '.join(METRICS)}, such as p95_ttft"
            raise Refusal(f"slo '{name}': not a statistic; there are {known}", "slo", ("p95_ttft",))
        limits.append((f"{metric}_{which}", checking.seconds(value, name)))
    return tuple(sorted(limits))


def best_fleets(
    put: Sequence[Question], on: str = "", processes: int = 0, top: int = LISTED, progress: Progress | None = None
) -> FleetPlans:
    """The fleets of a question on each of its clusters, ranked together; where none holds, what would."""
    _check(put)
    put = [q.but(objective=_objective(put)) for q in put]
    with crew(on, processes) as workers:
        searches = [Search(q, workers, top, progress) for q in put]
        for search in searches:
            if not search.run():
                break
        return _answer(searches, top, workers)


def _check(put: Sequence[Question]) -> None:
    for q in put:
        rate, goal = q.offered.request_rate, q.goal
        if not 0 < rate < inf:
            raise Refusal(f"request_rate={rate:g}: requests/s, a number above 0; nearest valid: 1", "request_rate", (1,))
        if not q.offered.burstiness > 0:
            raise Refusal(f"burstiness={q.offered.burstiness:g}: a number above 0; nearest valid: 1", "burstiness", (1,))
        if not 0 <= goal.growth <= 100:
            raise Refusal(f"headroom={goal.growth:g}: a share of the rate, from 0 to 100; nearest valid: 0.2", "headroom", ("0.2",))
        if goal.objective and goal.objective not in OBJECTIVES:
            rule = f"one of {', '.join(OBJECTIVES)} with a request rate"
            raise Refusal(f"objective '{goal.objective}': {rule}", "objective", OBJECTIVES)
        if goal.objective == "cost" and not goal.usd_per_gpu_hour:
            raise Refusal(f"objective 'cost': no price is known for {q.cluster.chip.key}; give price, such as 2.5", "price", ("2.5",))
        if q.requests.num_prompts < 100:
            rule = "at least 100 make a percentile; nearest valid: 100"
            raise Refusal(f"num_prompts={q.requests.num_prompts:g}: {rule}", "num_prompts", (100,))
        if q.requests.output_len == 1 and any(name.startswith(("itl", "tpot")) for name, _ in goal.slo):
            raise Refusal("slo: with one output token there is no time between tokens; limit ttft", "slo")
        checking.spread(q.requests.spread)


def _objective(put: Sequence[Question]) -> str:
    """As it was said; else of several chips that all have a price the fewest dollars, else the fewest GPUs."""
    several = len(put) > 1 and all(q.goal.usd_per_gpu_hour for q in put)
    return put[0].goal.objective or ("cost" if several else "gpus")


def burden(trial: Trial) -> float:
    """What the objective counts, smaller is better: GPUs, dollars an hour, or GPUs for each token/s that may be sustained."""
    goal = trial.layout.question.goal
    if goal.objective == "tokens":
        return trial.gpus / sustained(trial)
    return trial.gpus * (goal.usd_per_gpu_hour if goal.objective == "cost" else 1.0)


def sustained(trial: Trial) -> float:
    """Output tokens/s at the highest rate that holds."""
    q = trial.layout.question
    return q.offered.request_rate * (1 + max(0.0, trial.growth)) * float(q.requests.output_len)


def order(trial: Trial) -> tuple[float, float, int]:
    """Fewest first; of as many, those whose rate may grow most."""
    return round(burden(trial), 9), -trial.growth if trial.growth >= 0 else -trial.capacity, trial.gpus


class Search:
    """The search on one cluster. What it has so far is an answer at any time."""

    def __init__(self, put: Question, workers: Crew, top: int, progress: Progress | None) -> None:
        self.question = replace(settled(put), plan=put.plan)
        self.workers, self.top, self.progress = workers, top, progress
        self.held: list[Trial] = []
        self.broken: list[Trial] = []
        self.rejected: tuple[Rejected, ...] = ()
        self.count = self.done = self.total = 0
        self.complete = False

    def run(self) -> bool:
        """Whether it came to its end; an interrupt leaves what there is."""
        try:
            stream = all_requests(self.question)
            longest = int(np.max(stream.input_len + stream.output_len))
            if longest > self.question.model.max_len:
                rule = f"more than the {self.question.model.max_len:,} positions of {self.question.model.key}"
                raise Refusal(f"input_len + output_len: the longest request has {longest:,} tokens, {rule}", "input_len")
            able = candidates(self.question, stream)
            self.rejected, self.count, self.total = able.rejected, able.count, len(able.layouts)
            for kind in range(3):
                self._rounds([layout for layout in able.layouts if _kind(layout) == kind], kind == 2)
            self._detail()
            self.complete = True
        except KeyboardInterrupt:
            self.held.sort(key=order)
        return self.complete

    def _rounds(self, layouts: list[Layout], beating: bool) -> None:
        layouts.sort(key=self._expected)
        for first in range(0, len(layouts), ROUND):
            bar = self._bar(beating)
            part = [x for x in layouts[first : first + ROUND] if self._bound(x) <= bar]
            tasks = [Task(x, self._most_gpus(bar), self.question.goal.objective == "tokens") for x in part]
            results = dict[int, Trial]()
            try:
                for place, trial in self.workers.each(least, tasks):
                    results[place] = trial
                    self._tell()
            finally:
                for place in sorted(results):  # in their order, whoever was first
                    (self.held if results[place].holds else self.broken).append(results[place])
                self.done += ROUND if len(part) == ROUND else len(layouts[first : first + ROUND])
            self._tell()

    def _tell(self) -> None:
        if self.progress:
            self.progress(min(self.done, self.total), self.total, min(self.held, key=order, default=None))

    def _expected(self, layout: Layout) -> tuple[float, int]:
        """What the objective is likely to count."""
        return self._bound(layout, 1.0), layout.group

    def _bound(self, layout: Layout, slack: float = SLACK) -> float:
        """What the objective counts at the least."""
        goal, rate = self.question.goal, rate_of(self.question)
        if goal.objective == "tokens":
            each = layout.group / layout.answers + (layout.prefill_tp / layout.prompt_answers if layout.apart else 0)
            return each / slack / float(self.question.requests.output_len)
        return layout.least_gpus(rate, slack) * (goal.usd_per_gpu_hour if goal.objective == "cost" else 1.0)

    def _bar(self, beating: bool) -> float:
        """What a layout must not exceed to be listed; one with workers of their own for prompts is listed where it beats others."""
        ranked = sorted(burden(trial) for trial in self.held)
        if not ranked:
            return inf
        return ranked[0] if beating else min(WORSE * ranked[0], ranked[min(self.top, len(ranked)) - 1] if len(ranked) >= self.top else inf)

    def _most_gpus(self, bar: float) -> int:
        goal, whole = self.question.goal, self.question.cluster.num_gpus
        if goal.objective == "tokens" or bar == inf:
            return whole
        return min(whole, int(bar / (goal.usd_per_gpu_hour if goal.objective == "cost" else 1.0) + 1e-9))

    def _detail(self) -> None:
        """Growth and ranges of those that are listed, and of all that are as good as the best by the objective alone."""
        self.held.sort(key=order)
        ties = sum(burden(trial) == burden(self.held[0]) for trial in self.held)
        first = self.held[: max(self.top, ties)]
        known = dict(self.workers.each(detailed, first))
        self.held[: len(first)] = [known[place] for place in range(len(first))]
        self.held.sort(key=order)


def _kind(layout: Layout) -> int:
    """What is quickly simulated comes first, and says what the others have to beat: one stage, several, two kinds of workers."""
    return 2 if layout.apart else int(layout.question.plan.pp > 1)


def _answer(searches: Sequence[Search], top: int, workers: Crew) -> FleetPlans:
    """What all searches have, ranked together."""
    held = sorted((trial for search in searches for trial in search.held), key=order)
    broken = sorted((trial for search in searches for trial in search.broken), key=lambda t: (t.over, -t.capacity))
    answer = FleetPlans(
        questions=tuple(search.question for search in searches),
        objective=searches[0].question.goal.objective,
        plans=tuple(held[:top]),
        near=() if held else tuple(broken[:5]),
        rejected=tuple(_reasons(searches)),
        candidates=sum(search.count for search in searches),
        simulated=sum(trial.simulated for search in searches for trial in (*search.held, *search.broken)),
        complete=all(search.complete for search in searches),
    )
    return replace(answer, would_take=tuple(_remedies(answer, workers))) if not held and answer.complete else answer


def _reasons(searches: Sequence[Search]) -> Iterator[Rejected]:
    several = len(searches) > 1
    for search in searches:
        where = f" on {search.question.cluster.key}" if several else ""
        for lost in search.rejected:
            yield replace(lost, family=lost.family + where, rule="" if several else lost.rule)
        for trial in search.broken:
            yield Rejected(words(trial.layout) + where, obstacle(trial))


def words(layout: Layout) -> str:
    """A layout by its name."""
    q = layout.question
    name = describe_layout(q.plan).replace(" stages x TP", " stages x TP")
    kinds = f"TP {layout.prefill_tp} for prompts + {name} to decode" if layout.apart else name
    return kinds + in_type(q, q.goal.dtypes.index(q.plan.weights_dtype))


def obstacle(trial: Trial) -> str:
    """Why a fleet does not hold: the limit that it breaks most, or its throughput."""
    q, gpus = trial.layout.question, plural(trial.gpus, "GPU")
    if not trial.figures:
        most = f"{trial.capacity:.3g} requests/s are the most that {gpus} answer"
        return f"overloaded: {most}, of {rate_of(q):.3g}"
    name, limit = max(q.goal.slo, key=lambda pair: trial.figures[pair[0]] / pair[1])
    return f"breaks the limit with {gpus}: {limit_name(name)} {format_seconds(trial.figures[name])} of {format_seconds(limit)}"


def _remedies(answer: FleetPlans, workers: Crew) -> Iterator[str]:
    """More of the same chips, a lower rate or looser limits: the first are tried."""
    q = answer.question
    if not answer.near:
        if not any(search for search in answer.rejected if search.reason.startswith("breaks")):
            yield from to_fit(q)
        return
    yield from _more_gpus(answer, workers)
    nearest = answer.near[0]
    if nearest.figures:
        broken = [f"{limit_name(n)} {format_seconds(nearest.figures[n])}" for n, limit in q.goal.slo if nearest.figures[n] > limit]
        yield f"limits of {' and '.join(broken)}"
    else:
        yield f"a rate below {nearest.capacity:.3g} requests/s"


def _more_gpus(answer: FleetPlans, workers: Crew) -> Iterator[str]:
    """The least fleet of the nearest layouts on up to eight times as many GPUs."""
    for place, _ in zip(larger(answer.near[0].layout.question.cluster), range(3), strict=False):
        tasks = []
        for trial in answer.near[:NEAR]:
            layout = trial.layout
            copies = place.num_gpus // layout.group
            grown = replace(layout, question=layout.question.but(cluster=place), most=copies)
            tasks.append(Task(grown, place.num_gpus))
        good = sorted((trial for _, trial in workers.each(least, tasks) if trial.holds), key=order)
        if good:
            yield f"{plural(good[0].gpus, 'GPU')}, {fleet_words(good[0])} ({place.key})"
            return


def fleet_words(trial: Trial) -> str:
    """The workers of a fleet: ``4 replicas x TP 4``."""
    copies, prompts = trial.size
    layout, q = trial.layout, trial.layout.question
    if prompts:
        text = f"{prompts} x TP {layout.prefill_tp} for prompts + {copies} x TP {layout.group} to decode"
    else:
        text = describe_layout(replace(q.plan, replicas=copies))
    return text + in_type(q, q.goal.dtypes.index(q.plan.weights_dtype))
