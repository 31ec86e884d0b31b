"""Would a measurement change which plan to run? Plans beside each other in worlds drawn from the distribution of their latencies.
In each world a plan runs at its best load within the limits, and the recommended one is right where no other is better by more than
the margin. A run is worth what it saves in the mean: after it, the plan that looks best then is taken."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from commtax.arrays import Array
from commtax.catalog.posterior import METRICS
from commtax.catalog.programs import programs
from commtax.judgement.margins import margin
from commtax.launch.writing import benchmark_command
from commtax.planner.columns import ServingColumns, ServingPlans
from commtax.planner.money import paid
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import RunLesson
from commtax.thresholds import thresholds
from commtax.verbs.closed_loop import imagined, price_closed_loop
from commtax.verbs.profiles import Foresight, lessons_of
from commtax.verbs.settling import settle

COUNT, LEVEL = thresholds(__name__)
LOADS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)  # of the load that a plan is listed at
EVERY = 2  # of these, every other one is tried as a run
REQUESTS_PER_CLIENT = 10  # as benchmark commands are written
SEED = 20


@dataclass(frozen=True, slots=True)
class WeighedPlan:
    """A plan at some loads: its latencies as lessons that nobody has measured."""

    name: str
    question: Question
    copies: int  # that share the clients: one of them is measured
    gpus: float  # by what they cost
    loads: tuple[int, ...]  # clients of all copies
    latencies: tuple[RunLesson, ...]  # TPOT and TTFT of each load, on one copy


class Weighing:
    """Plans beside each other: all of their loads in rows, a plan's one after the other, so that worlds are weighed in one go."""

    def __init__(self, goal: Question, plans: Sequence[WeighedPlan]) -> None:
        counts = [len(plan.loads) for plan in plans]
        self.goal, self.clients = goal, np.concatenate([plan.loads for plan in plans])[:, None]
        self.gpus = np.repeat([plan.gpus for plan in plans], counts)[:, None]
        self.bounds = tuple(accumulate(counts, initial=0))  # where each plan's loads begin, and the last one's end

    def worth(self, seconds: Array) -> Array:
        """Return each plan's (row) objective in each world (column) at its best load by TPOT and TTFT of each, 0 beyond limits."""
        wanted, (tpot_s, ttft_s) = self.goal.goal, (seconds[i :: len(METRICS)] for i in range(len(METRICS)))
        kept = (tpot_s <= wanted.tpot_s) & (ttft_s <= wanted.ttft_s)
        request_s = ttft_s + (self.goal.requests.output_len - 1) * tpot_s
        made = self.clients * self.goal.requests.output_len / request_s
        counted = {"latency": 1 / request_s, "cost": made / self.gpus, "gpus": 1 / self.gpus}  # GPUs are alike in every world
        value = np.where(kept, counted.get(wanted.objective, made), 0.0)
        return np.array([value[a:b].max(axis=0) for a, b in pairwise(self.bounds)])


@dataclass(frozen=True, slots=True)
class SettlingRun:
    """A run of one copy of a plan, and how likely the right plan is taken after it, and what is lost in the mean."""

    plan: str
    clients: int
    input_len: int
    output_len: int
    right: float
    loss: float
    seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class Settlement:
    """How sure a recommendation is, which others it may lose to, and which runs would tell."""

    recommended: str
    right: float  # probability that none is better by more than the margin
    loss: float  # of the best plan's worth, in the mean
    margin: float
    rivals: tuple[tuple[str, float], ...]  # plans, and how likely each is the best one and better by more than the margin
    runs: tuple[SettlingRun, ...]
    sure: bool  # enough that nothing needs to be measured

    @property
    def settled(self) -> bool:
        """Whether nothing that is measured will change it."""
        return self.sure or not self.runs


def settle_decision(answer: ServingPlans, wanted: int) -> Settlement:
    """Weigh the recommended plan against the others, and choose at most so many runs, each best after those before it."""
    goal = answer.question
    order = dict.fromkeys([answer.recommended, *range(min(COUNT.plans, len(answer.plans)))])
    plans = [_weighed(answer, answer.plans, i) for i in order]
    latencies = [lesson for plan in plans for lesson in plan.latencies]
    foresight = Foresight(latencies, lessons_of(goal.profile))
    within, draw = margin(goal), np.random.default_rng(SEED)
    normals = draw.standard_normal((COUNT.worlds, len(latencies)))
    outcomes = draw.standard_normal((COUNT.outcomes, len(METRICS)))
    weighing = Weighing(goal, plans)
    values = weighing.worth(_worlds(foresight, normals))
    right, loss = _judged(values, 0, within)
    best, beaten = np.argmax(values, axis=0), values.max(axis=0) > values[0] * (1 + within)
    rivals = [(plan.name, float(np.mean(beaten & (best == i)))) for i, plan in enumerate(plans) if i]
    sure = right >= LEVEL.sure or loss < LEVEL.least_loss
    runs = [] if sure else list(_runs(weighing, plans, foresight, (normals, outcomes), loss, wanted))
    named = tuple(sorted((one for one in rivals if one[1] > 0), key=lambda one: -one[1]))
    return Settlement(plans[0].name, right, loss, within, named, tuple(runs), sure)


def _runs(
    weighing: Weighing, plans: Sequence[WeighedPlan], foresight: Foresight, draws: tuple[Array, Array], loss: float, wanted: int
) -> Iterable[SettlingRun]:
    """Yield the best run, then the best after it, as long as they save anything."""
    left, each = loss, len(METRICS)
    starts = np.cumsum([0, *(len(plan.latencies) for plan in plans)])
    every = [(p, i) for p, plan in enumerate(plans) for i in range(0, len(plan.loads), EVERY)]
    open_ = {(p, i) for p, i in every if _seconds(plans[p], i) <= LEVEL.longest_s}
    taken = list[int]()
    for _ in range(wanted):
        outcomes = {}
        for p, i in sorted(open_):
            shows = [*taken, *range(starts[p] + each * i, starts[p] + each * (i + 1))]
            outcomes[p, i] = (*_after(weighing, foresight, draws, shows), shows)
        best = min(outcomes, key=lambda key: (outcomes[key][1], _seconds(plans[key[0]], key[1])), default=None)
        if best is None or outcomes[best][1] > left - LEVEL.least_worth * loss:
            return
        (right, left, taken), (p, i) = outcomes[best], best
        open_.discard(best)
        at, engine = plans[p].latencies[each * i], plans[p].question.engine
        able = {one.key: one.emitted_as for one in programs() if one.benchmark}
        tool = next((able[key] for key in (engine.key, engine.launched_as) if key in able), "")
        command = benchmark_command(plans[p].question.but(concurrency=int(at.clients)), tool) if tool else ""
        load = int(at.clients), int(at.input_len), int(at.output_len)
        yield SettlingRun(plans[p].name, *load, right, left, _seconds(plans[p], i), command)


def _after(weighing: Weighing, foresight: Foresight, draws: tuple[Array, Array], shows: list[int]) -> tuple[float, float]:
    """Return how likely the right plan is taken once these latencies are measured, and the loss then, over all outcomes."""
    (normals, shown), after, moves = draws, foresight.shown(shows), foresight.learnable(shows)
    if len(shows) != shown.shape[1]:
        shown = np.random.default_rng(SEED).standard_normal((len(shown), len(shows)))
    worlds, judged, within = _worlds(after, normals), [], margin(weighing.goal)
    for one in shown:
        values = weighing.worth(worlds * np.exp(moves @ one)[:, None])
        judged.append(_judged(values, int(np.argmax(values.mean(axis=1))), within))
    right, loss = np.mean(judged, axis=0)
    return float(right), float(loss)


def _worlds(foresight: Foresight, normals: Array) -> Array:
    """Return the seconds of every latency (rows) in each world (columns)."""
    values, vectors = np.linalg.eigh(foresight.covariance)
    root = foresight.scale[:, None] * np.asarray(vectors * np.sqrt(np.maximum(0.0, values)))
    return np.asarray(np.array([x.measured_s for x in foresight.latencies])[:, None] * np.exp(root @ normals.T))


def _judged(values: Array, chosen: int, within: float) -> tuple[float, float]:
    """Return the share of worlds in which a plan is right, and the share of the best one's worth that it loses in the mean."""
    best, worth = values.max(axis=0), values[chosen]
    return float(np.mean(best <= worth * (1 + within))), float((best - worth).mean() / max(best.mean(), 1e-300))


def _weighed(answer: ServingPlans, rows: ServingColumns, i: int) -> WeighedPlan:
    listed, put = int(rows.concurrency[i]), answer.put(rows, i)
    copies = 1 if rows.mode[i] else int(rows.replicas[i])
    loads = sorted({max(1, round(listed * share / copies)) * copies for share in LOADS})
    if not rows.mode[i]:
        priced = [price_closed_loop(settle(put.but(concurrency=np.array(loads) // copies, disaggregated=False)))]
    else:
        priced = [answer.simulation(rows, i, clients) for clients in loads]
    latencies = tuple(lesson for one in priced for lesson in imagined(one))
    gpus = float(np.asarray(paid(answer.question.goal, rows.gpus, rows.prefill_gpus))[i])
    return WeighedPlan(answer.layout(rows, i), priced[0].question, copies, gpus, tuple(loads), latencies)


def _seconds(plan: WeighedPlan, i: int) -> float:
    tpot, ttft = (x.measured_s for x in plan.latencies[len(METRICS) * i : len(METRICS) * (i + 1)])
    return REQUESTS_PER_CLIENT * (ttft + (plan.latencies[0].output_len - 1) * tpot)
