"""How many GPUs for a rate of requests: ``commtax.plan_fleet("llama-3.1-70b", "2x8xh100-sxm", request_rate=20,
slo={"p95_ttft": "1s", "p99_itl": "50ms"})``. Each layout's least fleet is searched by simulation (``fleet_trials.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, inf, isnan
from typing import ClassVar, TypeVar, Unpack

from commtax.answer import Answer
from commtax.counting import counted
from commtax.judgement.confidence import confidence_of, margin_of, percent
from commtax.judgement.overload import overloaded
from commtax.options import check_taken
from commtax.planner import fleet_trials
from commtax.planner.alternatives import larger_clusters, to_fit
from commtax.planner.columns import Rejected, ServingPlans
from commtax.planner.crew import Crew, crew
from commtax.planner.exchanges import without
from commtax.planner.fleet_search import NEAREST, Progress, Search, order, recommended_place
from commtax.planner.fleet_trials import Task, Trial, rate_of
from commtax.planner.layouts import Layout, all_requests, lengths_of_run, limit_name
from commtax.planner.money import Prices, with_prices
from commtax.planner.reasons import admitted_sequences, dtype_words
from commtax.planner.serving_search import usual_lengths
from commtax.planner.several_clusters import leaders_of_ranking
from commtax.question import CONFIDENCE, EVEN, Changes, Question
from commtax.records import dataclass, replace
from commtax.rules import values
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.units import format_figure, format_seconds, listed, plural, round_up_seconds
from commtax.verbs.disaggregation import check_one_place, describe_pools
from commtax.verbs.fit_advice import length_to_start_with, startable
from commtax.verbs.keywords import CompareOptions, PlanFleetOptions, ServeOptions
from commtax.verbs.loads import longest_of, split
from commtax.verbs.settling import describe_layout, resolve_question
from commtax.words import words

Value = TypeVar("Value")
OBJECTIVES = ("gpus", "cost", "tokens")
METRICS, STATISTICS = ("ttft", "tpot", "itl", "e2e"), ("mean", "p50", "p90", "p95", "p99")
DOUBLINGS = 2  # of the GPUs that layouts are tried on where no fleet holds
LISTED = 10
SLACKS = (1.0, 1.02, 1.05, 1.1)  # times the limit that a fleet is thought to keep, tried one after the other
SLOWER = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0)  # the same of the rate that it is thought to answer, over the rate that is tried
LEAST_PROMPTS = 100  # of a run, where somebody says how many
MOST_GROWTH = 100


@dataclass(frozen=True, slots=True)
class FleetPlans(Answer):
    """The least fleets of a question's layouts on one cluster or several, best first, and why others are not among them.

    >>> import commtax
    >>> found = commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", request_rate=5, num_prompts=100, output_len=16)
    >>> found.complete, found.plans[found.best].gpus
    (True, 1)
    """

    questions: tuple[Question, ...]  # one a cluster
    objective: str
    plans: tuple[Trial, ...] = ()  # the first is the best …
    best: ClassVar[int] = 0
    recommended: int = 0  # … and this one the simplest that it beats by no more than the margin
    near: tuple[Trial, ...] = ()  # where none holds: the nearest
    rejected: tuple[Rejected, ...] = ()
    would_take: tuple[str, ...] = ()
    candidates: int = 0
    simulated: int = 0  # fleets
    unpriced: tuple[str, ...] = ()  # chips without a price, where dollars were to rank
    complete: bool = True  # False: it was interrupted, and better ones may be missing

    @property
    def question(self) -> Question:
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
    usd_per_gpu_hour: Prices = None,
    cost_of: str = "output",
    on: str = "",
    processes: int = 0,
    confidence: float | str = CONFIDENCE,
    margin: float | str | None = None,
    **options: Unpack[PlanFleetOptions],
) -> FleetPlans:
    """Return the fewest GPUs or dollars, or the most tokens/s per GPU, that hold limits at a request rate.

    >>> import commtax
    >>> limits = {"p95_ttft": "1s", "p99_itl": "100ms"}
    >>> found = commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", request_rate=5, slo=limits, num_prompts=100, output_len=16)
    >>> found.plans[found.recommended].gpus
    1

    ``slo`` names statistics, ``mean``, ``p50``, ``p90``, ``p95`` or ``p99`` of ``ttft``, ``tpot``, ``itl`` or ``e2e``, with
    seconds or text such as ``"50ms"``. ``objective`` is ``gpus``, ``cost`` or ``tokens``. Lengths may be distributions as users
    spell them. ``headroom`` is the share by which the rate may grow with all limits held. Limits are kept with the probability
    ``confidence``, 0.5 by the central prediction. Dollars are spread over the tokens of outputs, with ``cost_of="total"`` over
    those of prompts too; a chip whose price nobody knows or says is listed behind the others. ``on`` is a Dask scheduler's
    address.
    """
    places = [cluster] if isinstance(cluster, str | Cluster) else list(cluster)
    if not places:
        raise Refusal.about(cluster="name one, such as 8xh100-sxm")
    input_len, output_len = usual_lengths(options.get("workload", ""))
    usual = PlanFleetOptions(input_len=input_len, output_len=output_len, disaggregated=True)
    plain, offered = split({**usual, **check_taken("plan_fleet", options), **ServeOptions(request_rate=request_rate)})
    plain |= CompareOptions(dtype=dtypes[0])
    put = [check_one_place(resolve_question(model, place, plain)) for place in places]
    limits, sure, within = limits_of(slo or {}), confidence_of(confidence), margin_of(margin)
    put = [q.but(slo=limits, objective=objective, dtypes=tuple(dict.fromkeys(dtypes)), growth=headroom) for q in put]
    put = [q.but(confidence=sure, margin=within, cost_of=cost_of, offered=offered) for q in put]
    return best_fleets(with_prices(put, usd_per_gpu_hour), on, processes)


def limits_of(slo: Mapping[str, float | str]) -> tuple[tuple[str, float], ...]:
    """Return limits by our names of statistics: ``p95_ttft`` becomes ``ttft_p95``."""
    limits = []
    for name, value in slo.items():
        which, _, metric = name.partition("_")
        if which not in STATISTICS or metric not in METRICS:
            supported = f"{', '.join(STATISTICS)} of {', '.join(METRICS)}, such as p95_ttft"
            raise Refusal.of(f"not a statistic; there are {supported}", ("p95_ttft",), slo=name)
        limits.append((f"{metric}_{which}", values.seconds(value, name)))
    return tuple(sorted(limits))


def best_fleets(
    put: Sequence[Question], on: str = "", processes: int = 0, top: int = LISTED, progress: Progress | None = None
) -> FleetPlans:
    """Rank the fleets of a question on all of its clusters together, or return what would hold where none does."""
    for q in put:
        _check(q)
    unpriced = [q for q in put if not q.goal.usd_per_gpu_hour]  # of their chips, fewest dollars are fewest GPUs
    objective = put[0].goal.objective or ("gpus" if unpriced or len(put) == 1 else "cost")
    objective = "gpus" if objective == "cost" and len(unpriced) == len(put) else objective
    missing = dict.fromkeys(q.cluster.chip.key for q in unpriced if q.goal.objective == "cost")
    put = [q.but(objective="gpus" if objective == "cost" and not q.goal.usd_per_gpu_hour else objective) for q in put]
    with crew(on, processes) as workers:
        searches = [Search(q, workers, top, progress) for q in put]
        for search in counted(searches):
            if not search.run():
                break
        return replace(_answer(searches, objective, top, workers), unpriced=tuple(missing))


def _check(q: Question) -> None:
    goal, wanted, offered = q.goal, q.requests, q.offered
    if not 0 <= goal.growth <= MOST_GROWTH:
        rule = f"a share of the rate, from 0 to {MOST_GROWTH}; nearest valid: 0.2"
        raise Refusal(f"headroom={goal.growth:g}: {rule}", "headroom", ("0.2",))
    if goal.objective and goal.objective not in OBJECTIVES:
        raise Refusal.of(f"one of {', '.join(OBJECTIVES)} with a request rate", OBJECTIVES, objective=goal.objective)
    if not 0 < offered.request_rate < inf:
        raise Refusal(
            f"request_rate={offered.request_rate:g}: requests/s, a number above 0; nearest valid: 1", "request_rate", (1,)
        )
    if not wanted.num_prompts >= LEAST_PROMPTS:
        rule = f"at least {LEAST_PROMPTS} make a percentile; nearest valid: {LEAST_PROMPTS}"
        raise Refusal(f"num_prompts={wanted.num_prompts:g}: {rule}", "num_prompts", (LEAST_PROMPTS,))
    if wanted.output_len == 1 and any(name.startswith(("itl", "tpot")) for name, _ in q.goal.slo):
        raise Refusal.about(slo="with one output token there is no time between tokens; limit ttft")


def _answer(searches: Sequence[Search], objective: str, top: int, workers: Crew) -> FleetPlans:
    every = (trial for search in searches for trial in search.good)
    # those that dollars cannot rank stand behind those that they do
    good = sorted(every, key=lambda t: (objective == "cost" and not t.layout.question.goal.usd_per_gpu_hour, order(t)))
    broken = sorted((trial for search in searches for trial in search.broken), key=lambda trial: trial.distance)
    keys = [trial.layout.question.cluster.key for trial in good]
    alike = [good, *([trial for trial, at in zip(good, keys, strict=True) if at == key] for key in dict.fromkeys(keys))]
    chosen = [ranking[recommended_place(ranking)] for ranking in alike if ranking]  # of all, then of each cluster
    listed_ids = {id(trial) for trial in (*leaders_of_ranking(good, keys, top), *chosen)}
    plans = tuple(trial for trial in good if id(trial) in listed_ids)
    first, near = next((i for i, trial in enumerate(plans) if trial is chosen[0]), 0), tuple(broken[: 0 if good else NEAREST])
    questions, rejected = tuple(search.question for search in searches), tuple(_reasons(searches))
    answer = FleetPlans(questions, objective, plans, rejected=rejected, recommended=first, near=near)
    simulated = sum(trial.simulated for search in searches for trial in (*search.good, *search.broken))
    counts, complete = sum(search.count for search in searches), all(search.complete for search in searches)
    answer = replace(answer, candidates=counts, simulated=simulated, complete=complete)
    if good or not answer.complete:
        return answer
    judged = dict(workers.each(fleet_trials.with_confidence, answer.near))
    answer = replace(answer, near=tuple(judged[place] for place in range(len(judged))))
    return replace(answer, would_take=tuple(_remedies(answer, workers)))


def _reasons(searches: Sequence[Search]) -> Iterator[Rejected]:
    """Yield why layouts lost. A reason that is true of several clusters appears once, with their names."""
    by_reason: dict[Rejected, list[str]] = {}
    for search in searches:
        lost = [*search.rejected, *(Rejected(layout_words(trial.layout), obstacle(trial)) for trial in search.broken)]
        if search.left_out:
            others = plural(search.left_out, "other layout")
            lost.append(Rejected(others, "not simulated: behind the others by a quick estimate"))
        if len(searches) == 1:
            yield from lost
        for one in lost:
            by_reason.setdefault(one, []).append(search.question.cluster.key)
    for one, places in by_reason.items() if len(searches) > 1 else ():
        where = f" on {listed(list(dict.fromkeys(places)))}"
        yield replace(one, family=one.family + where, where=where)


def layout_words(layout: Layout, copies: int = 0, prompts: int = 0) -> str:
    """Return a layout by its name, or so many of its workers: ``4 replicas x TP 4``."""
    q = layout.question
    text = describe_layout(replace(q.plan, replicas=max(1, copies)))
    if layout.ahead:
        text = describe_pools(q.places, (prompts, layout.ahead), (copies, q.plan), layout.way.title)
    return text + dtype_words(q, q.goal.dtypes.index(q.plan.weights_dtype)) + without(layout.dropped)


def obstacle(trial: Trial) -> str:
    """Return why a fleet does not hold: its throughput, or the limit that it breaks most."""
    q, gpus = trial.layout.question, plural(trial.gpus, "GPU")
    if not trial.figures and isnan(trial.capacity) and (slow := fleet_trials.too_slow(trial.layout, trial.size)):
        name, token_s = slow
        figure = f"{limit_name(name)} about {format_seconds(token_s)} (limit {format_seconds(dict(q.goal.slo)[name])})"
        return f"exceeds the limit with {gpus}: {figure}, by a quick estimate"
    most = trial.layout.throughput(*trial.size) if isnan(trial.capacity) else trial.capacity
    if not trial.figures or overloaded(rate_of(q), most, trial.stretch):
        about, estimated = ("about", " by a quick estimate") if isnan(trial.capacity) else ("at most", "")
        sure, can, needed = map(format_figure, (most / trial.stretch, most, rate_of(q)))
        surely = f", {sure} with {percent(q.goal.confidence)} confidence" if trial.stretch > 1 else ""
        return f"is overloaded: {gpus} can answer {about} {can} requests/s{estimated}{surely}, and {needed} are needed"
    name, limit = max(q.goal.slo, key=lambda pair: trial.sure.get(pair[0], trial.figures[pair[0]]) / pair[1])
    figure = f"{limit_name(name)} {format_seconds(trial.figures[name])} (limit {format_seconds(limit)})"
    sure = "" if trial.kept is None else f", {percent(trial.kept)} likely to meet it, {percent(q.goal.confidence)} required"
    misses = "exceeds the limit" if trial.figures[name] > limit else "is not likely enough to meet the limit"
    return f"{misses} with {gpus}: {figure}{sure}"


def _remedies(answer: FleetPlans, workers: Crew) -> Iterator[str]:
    q = answer.question
    if not answer.near:
        yield from () if any(lost.slow for lost in answer.rejected) else to_fit(q)
        return
    yield from _fleets_on_more_gpus(answer, workers)
    nearest = answer.near[0]
    if overloaded(rate_of(q), nearest.capacity, nearest.stretch):
        longer = nearest.stretch if nearest.stretch != 1 else float(nearest.steps.sure(q.goal.confidence))
        rates = (float(f"{nearest.capacity / longer / (1 + q.goal.growth) / slack:.2g}") for slack in SLOWER)
        if lower := _first_that_holds(nearest, ((rate, {"request_rate": rate}) for rate in rates), workers):
            yield words("remedy-rate", rate=lower)
    elif looser := _limits_that_hold(nearest, workers):
        times = " and ".join(f"{limit_name(name)} {format_seconds(limit)}" for name, limit in looser.items())
        yield words("remedy-times", times=times)
    surest = max(answer.near, key=lambda trial: trial.probability)
    most = min(floor(100 * surest.probability), ceil(100 * q.goal.confidence) - 1) / 100
    # interpolated probabilities may be a little too high: half of the way to an even chance, and that, are tried behind them
    tried = dict.fromkeys((most, floor(100 * (most + EVEN) / 2) / 100, EVEN)) if most >= EVEN else ()
    if sure := _first_that_holds(surest, ((each, {"confidence": each}) for each in tried), workers):
        yield words("remedy-confidence", sure=f"{sure:.0%}")


def _limits_that_hold(nearest: Trial, workers: Crew) -> dict[str, float] | None:
    slo = dict(nearest.layout.question.goal.slo)
    ((_, needed),) = workers.each(fleet_trials.sure_times, [nearest])
    broken = [name for name, limit in slo.items() if needed[name] > limit]
    tried = ({name: round_up_seconds(needed[name] * slack) for name in broken} for slack in SLACKS)  # they set the warm-up, too
    return _first_that_holds(nearest, ((times, {"slo": tuple((slo | times).items())}) for times in tried), workers)


def _first_that_holds(trial: Trial, tried: Iterable[tuple[Value, Changes]], workers: Crew) -> Value | None:
    """Return the first value with whose changes a fleet of the trial's layout, on as many GPUs, was run and holds."""
    for value, changes in tried:
        task = Task(replace(trial.layout, question=trial.layout.question.but(**changes)), trial.gpus)
        if any(one.holds for _, one in workers.each(fleet_trials.least_fleet, [task])):
            return value
    return None


def _fleets_on_more_gpus(answer: FleetPlans, workers: Crew) -> Iterator[str]:
    q = answer.near[0].layout.question
    put = answer.question.but(cluster=q.cluster, engine=q.engine, usd_per_gpu_hour=q.goal.usd_per_gpu_hour)
    for place, _ in zip(larger_clusters(q.cluster), range(DOUBLINGS), strict=False):
        search = Search(put.but(cluster=place), workers, LISTED, progress=None)
        if search.run() and search.good:
            chosen = search.good[recommended_place(search.good)]
            yield f"{plural(chosen.gpus, 'GPU')}, {layout_words(chosen.layout, *chosen.size)} ({place.key})"
            return


@dataclass(frozen=True, slots=True)
class PlannedServers:
    """One server as a question, how many there are of it, and how many for prompts alone beside them."""

    question: Question
    copies: int
    prompts: int = 0


def servers_of(searched: ServingPlans, i: int) -> PlannedServers:
    """Plan ``i`` with the limits that its servers need."""
    rows, q = searched.plans, searched.put(searched.plans, i).but(concurrency=int(searched.plans.concurrency[i]))
    q = q.but(max_model_len=searched.longest(rows, i), max_num_seqs=admitted_sequences(searched, rows, i))
    prompts = int(rows.prefill_replicas[i]) if rows.mode[i] else 0
    q = q.but(prefill_tp=int(rows.prefill_tp[i]), prefill_dp=int(rows.prefill_dp[i])) if prompts else q
    return PlannedServers(startable(q), int(rows.replicas[i]), prompts)


def fleet_servers(trial: Trial) -> PlannedServers:
    """Return a fleet, with room for the longest request that was asked for, drawn or not."""
    q = trial.layout.question
    stated = float((1 + q.requests.spread) * q.requests.tokens) if q.offered.trace is None else 0.0
    longest = max(longest_of(all_requests(q)), stated)
    return PlannedServers(startable(q.but(max_model_len=length_to_start_with(q, longest))), *trial.size)
