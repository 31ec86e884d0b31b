"""Plans as columns, one row a plan or a plan and a load; what a search answers with them, and what each row is and costs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from commtax.answer import Answer
from commtax.arrays import Array, unique_values
from commtax.catalog.techniques import changes_of, has_changes
from commtax.cost.closed_form import ClosedLoopLoad, decoding_seqs
from commtax.judgement.confidence import Estimate
from commtax.judgement.leading import latest_first_token_s, standing
from commtax.planner.exchanges import ExpertExchange, dropped, exchanges, without
from commtax.planner.money import counted_tokens_per_s, paid, per_million
from commtax.question import Question
from commtax.records import dataclass, record_from, replace
from commtax.rules.drafts import drafted_load
from commtax.spec import SERVING_AXES, SIZES, Number, Plan
from commtax.units import plural
from commtax.verbs.billing import StepBill, price
from commtax.verbs.closed_loop import ClosedLoop, price_closed_loop
from commtax.verbs.disaggregation import describe_pools, prompter
from commtax.verbs.fit_advice import length_to_start_with
from commtax.verbs.fitting import step_limits
from commtax.verbs.settling import describe_layout, replan, settle

SIZED = (*SIZES, "micro_batch")  # columns that a trained plan has before it is priced
DEGREES = {"TP": "tp", "PP": "pp", "CP": "cp", "EP": "ep", "microbatch": "micro_batch"}  # of families of training plans
USUAL = "balanced"  # the place to start from where users wait


@dataclass(frozen=True, slots=True)
class ColumnTable:
    def __len__(self) -> int:
        return len(getattr(self, self.names()[0]))

    def take(self, where: Array | slice) -> Self:
        """Return some of the rows, by index or by a mask."""
        return type(self)(*(np.asarray(getattr(self, name)[where]) for name in self.names()))

    def row(self, i: int) -> Self:
        return self.take(slice(i, i + 1))

    def sizes(self, i: int, axes: Sequence[str] = SERVING_AXES) -> dict[str, int]:
        """Return the sizes of a copy of row ``i``."""
        return {axis: int(getattr(self, axis)[i]) for axis in axes}

    @classmethod
    def names(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    @classmethod
    def of(cls, rows: int, **columns: Array | float) -> Self:
        """Return a table of so many rows. A single number fills its column."""
        make: Callable[..., Self] = cls
        return make(**{name: np.broadcast_to(np.asarray(column), rows) for name, column in columns.items()})

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Concatenate the rows of all parts. No parts make an empty table."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) if parts else np.array([]) for name in cls.names()))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A family of plans that lost, and why. ``rule`` is the reason for any degree, with ``{tp}`` in its place."""

    family: str
    reason: str
    tp: int = 0  # the degree that a rule forbids, where it forbids one …
    rule: str = ""  # … and its sentence with a gap for the degrees
    slow: bool = False  # it has room, and breaks a limit without any load
    where: str = ""  # the clusters of several that it is about, as they end its family
    dtype: int = -1  # index of the type of weights that it is about alone; below 0: of all


@dataclass(frozen=True, slots=True)
class ServingColumns(ColumnTable):
    """One row a plan at its best concurrency (or, for ``points``, a plan and concurrency)."""

    mode: Array  # 0: prompts and decoding share workers; 1: workers of their own
    dtype: Array  # index in ``dtypes``
    exchange: Array  # index in ``exchanges``
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    replicas: Array
    gpus: Array
    concurrency: Array  # clients of the whole cluster
    running: Array  # requests at once, a rank of attention data parallelism
    ttft_s: Array
    tpot_s: Array
    sure_ttft_s: Array  # the time that is kept with the goal's confidence; where there is no limit, the time itself
    sure_tpot_s: Array
    tokens_per_s: Array
    kv_headroom: Array
    prefill_tp: Array
    prefill_dp: Array
    prefill_replicas: Array

    def plan_of(self, i: int, redundant_experts: int = 0) -> Plan:
        """Return the plan of row ``i`` with all its copies, those that decode where prompts have separate workers."""
        return replace(record_from(Plan, self.sizes(i)), replicas=int(self.replicas[i]), redundant_experts=redundant_experts)

    def prompter(self, i: int) -> Plan:
        """Return the workers of row ``i`` that compute prompts."""
        tp, dp = int(self.prefill_tp[i]), int(self.prefill_dp[i])
        return Plan(tp=tp, dp=dp, ep=tp * dp if dp > 1 or self.ep[i] > 1 else 1, replicas=int(self.prefill_replicas[i]))

    @property
    def prefill_gpus(self) -> Array:
        return np.asarray(self.prefill_tp * self.prefill_dp * self.prefill_replicas)

    @property
    def tokens_per_s_per_gpu(self) -> Array:
        return np.asarray(self.tokens_per_s / self.gpus)

    @property
    def tokens_per_s_per_user(self) -> Array:
        return np.asarray(1 / self.tpot_s)


@dataclass(frozen=True, slots=True)
class TrainColumns(ColumnTable):
    kind: Array  # index in ``kinds``
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    cp: Array
    micro_batch: Array
    step_s: Array
    mfu: Array
    memory_bytes: Array
    bubble_fraction: Array
    exposed_comm_fraction: Array

    @property
    def gpus(self) -> Array:
        return np.asarray(self.tp * self.cp * self.pp * self.dp)

    def plan_of(self, i: int) -> Plan:
        return record_from(Plan, self.sizes(i, SIZES))


NO_SERVING, NO_TRAINING = ServingColumns.joined([]), TrainColumns.joined([])


@dataclass(frozen=True, slots=True)
class SearchAnswer(Answer):
    question: Question
    candidates: int = 0
    rejected: tuple[Rejected, ...] = ()
    why: tuple[str, ...] = ()  # of the recommended plan
    recommended: int = 0  # index of the simplest plan within the margin of the best …
    best: ClassVar[int] = 0  # … which is the first

    def gpu_words(self, rows: Any, i: int) -> str:
        """Describe the GPUs of a row: ``16 GPUs = 4 replicas x TP 4``, and those that idle."""
        return f"{plural(int(rows.gpus[i]), 'GPU')} = {self.workers(rows, i)}"

    def workers(self, rows: Any, i: int) -> str:
        used, there = int(rows.gpus[i]), self.question.gpus_there
        return self.layout(rows, i) + (f" ({there - used:,} of {there:,} GPUs idle)" if used < there else "")

    def layout(self, rows: Any, i: int) -> str:
        return describe_layout(rows.plan_of(i))


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A place between the shortest requests and the most tokens/s: plans there, best first, each at its best load for it."""

    name: str
    when: str  # it is the one to choose
    plans: ServingColumns
    recommended: int
    passed_over: ServingColumns = NO_SERVING


@dataclass(frozen=True, slots=True)
class ServingPlans(SearchAnswer):
    """Good plans best first, rejected families, the nearest plans where none is good, the Pareto front.
    >>> import commtax
    >>> commtax.plan("llama-3.2-1b", "2xh100-sxm", tpot_s="1us").would_take[0]
    'limits of TPOT 1.88 ms'
    """

    trains: ClassVar[Literal[False]] = False
    plans: ServingColumns = NO_SERVING
    near: ServingColumns = NO_SERVING
    front: ServingColumns = NO_SERVING
    passed_over: ServingColumns = NO_SERVING  # what would be the best, where something stands against it
    places: tuple[OperatingPoint, ...] = ()  # without limits: where on the way from shortest requests to most tokens/s to run
    would_take: tuple[str, ...] = ()  # where no plan is good: what would have to change
    plain: "ServingPlans | None" = None  # where techniques were sought: the plans without any, and which to run
    roomier: "ServingPlans | None" = None  # where memory binds: the answer with engine limits that make more room
    alone: tuple["ServingPlans", ...] = ()  # with prompts on another cluster: each of both by itself

    @property
    def usual(self) -> OperatingPoint:
        return next(point for point in self.places if point.name == USUAL)

    @property
    def answered(self) -> tuple[ServingColumns, int]:
        """The plan that the answer names first: the recommended one, or that of the point to start from."""
        return (self.usual.plans, self.usual.recommended) if self.places else (self.plans, self.recommended)

    @property
    def exchanges(self) -> tuple[ExpertExchange, ...]:
        return exchanges(self.question)

    def exchange_of(self, rows: ServingColumns, i: int) -> ExpertExchange:
        """Return how row ``i`` is run, without techniques that have nothing to do in it: a set is tried on plans of all kinds."""
        exchange = self.exchanges[int(rows.exchange[i])]
        words, workers = exchange.techniques.split(","), self.workers_of(rows, i) if exchange.techniques else ()
        return replace(exchange, techniques=",".join(w for w in words if any(has_changes(q, changes_of(w)) for q in workers)))

    def layout(self, rows: ServingColumns, i: int) -> str:
        exchange = self.exchange_of(rows, i)
        decode = replace(rows.plan_of(i, redundant_experts=exchange.redundant), dcp=exchange.dcp)
        on = f", with {exchange.techniques.replace(',', ', ')}" * bool(exchange.techniques) + without(self.dropped(rows, i))
        if not rows.mode[i]:
            return describe_layout(decode, exchange.title) + on
        ahead = replace(rows.prompter(i), redundant_experts=exchange.redundant)
        pools = (int(ahead.replicas), ahead), (int(decode.replicas), decode)
        return describe_pools(self.question.places, *pools, exchange.title) + on

    def put(self, rows: ServingColumns, i: int) -> Question:
        """Row ``i`` as a question about one copy."""
        return replan(self.question, **rows.sizes(i), **self._kinds(int(rows.dtype[i]), int(rows.exchange[i])))

    def _kinds(self, dtype: int, exchange: int) -> dict[str, object]:
        return self.exchanges[exchange].changes | {"weights_dtype": self.question.goal.dtypes[dtype]}

    def dropped(self, rows: ServingColumns, i: int) -> tuple[str, ...]:
        return dropped(self.question, self.workers_of(rows, i))

    def turned_on(self, rows: ServingColumns, i: int) -> tuple[str, ...]:
        """Return the techniques of row ``i`` that the search turned on."""
        named = self.exchange_of(rows, i).techniques
        return tuple(named.split(",")) if named else ()

    def workers_of(self, rows: ServingColumns, i: int) -> tuple[Question, ...]:
        """Row ``i`` as the questions of its workers: those that decode, and of prompts where these have their own."""
        decode, ahead = self.put(rows, i), rows.prompter(i)
        return (decode, prompter(decode.but(prefill_tp=ahead.tp, prefill_dp=ahead.dp))) if rows.mode[i] else (decode,)

    def longest(self, rows: ServingColumns, i: int) -> int:
        """Return the length in tokens that the servers of row ``i`` are started with. 0 is the model's own length."""
        wanted = self.question.requests
        return length_to_start_with(self.servers(rows, i), float((1 + wanted.spread) * wanted.tokens))

    def servers(self, rows: ServingColumns, i: int) -> Question:
        """Row ``i`` as a question about what its servers hold: of one pool or both."""
        put, ahead = self.put(rows, i), rows.prompter(i)
        pools = put.but(disaggregated=True, prefill_tp=ahead.tp, prefill_dp=ahead.dp)
        return pools if rows.mode[i] else put.but(disaggregated=False)

    def simulation(self, rows: ServingColumns, i: int, clients: Number = 0) -> ClosedLoop:
        """Price row ``i`` as ``simulate`` does, all copies or workers of a split, at its listed load or at others of the whole."""
        copies, prompts, run = int(rows.replicas[i]), int(rows.prefill_replicas[i]), self.servers(rows, i)
        clients = clients if np.any(clients) else int(rows.concurrency[i])
        if not int(rows.mode[i]):
            return price_closed_loop(settle(run.but(replicas=copies, concurrency=clients // copies * copies)))
        return price_closed_loop(settle(run.but(prefill_workers=prompts, decode_workers=copies, concurrency=clients)))

    def range_of(self, rows: ServingColumns, i: int, name: str = "tpot_s") -> tuple[float, float]:
        """Return the 80 % range of a figure of row ``i``. It is priced only for rows that are shown."""
        priced = self.simulation(rows, i)
        times = float(getattr(rows, name)[i]) / float(getattr(priced, name))
        low, high = priced.range_of(name)
        return times * float(low), times * float(high)

    def ranges(self, rows: ServingColumns, name: str) -> list[tuple[float, float]]:
        """Return the same of all rows, those of one pool priced together."""
        by_row = {i: self.range_of(rows, i, name) for i in np.flatnonzero(rows.mode == 1).tolist()}
        for alike, put in self._priced_together(rows, np.flatnonzero(rows.mode == 0)):
            some = rows.take(alike)
            priced = price_closed_loop(settle(put.but(concurrency=some.concurrency // some.replicas, disaggregated=False)))
            ends = (getattr(some, name) * np.broadcast_to(end / getattr(priced, name), len(alike)) for end in priced.range_of(name))
            by_row |= dict(zip(alike.tolist(), zip(*ends, strict=True), strict=True))
        return [by_row[i] for i in range(len(rows))]

    def estimate(self, rows: ServingColumns, i: int, name: str) -> Estimate:
        return Estimate(float(getattr(rows, name)[i]), *self.range_of(rows, i, name))

    def kept(self, rows: ServingColumns, i: int) -> float:
        """Return the probability that row ``i`` keeps the limits: that of the least sure one."""
        return min([1.0, *(self.estimate(rows, i, name).kept(limit) for name, limit in self.question.goal.times)])

    def usd_per_million_tokens(self, rows: ServingColumns) -> Array:
        goal, rate = self.question.goal, counted_tokens_per_s(self.question, rows.tokens_per_s)
        return np.asarray(per_million(goal.usd_per_gpu_hour * paid(goal, rows.gpus, rows.prefill_gpus), rate))

    def step_of(self, rows: ServingColumns, i: int) -> StepBill:
        """Return the decode step that row ``i`` runs in the middle of its requests' lives."""
        return price(settle(self.put(rows, i).but(batch=int(self.decoding(rows.row(i))[0]), context=self._middle)))

    def comm_fractions(self, rows: ServingColumns) -> Array:
        """Return the share of each row's decode step that is exposed communication."""
        shares = np.zeros(len(rows))
        for ep in unique_values(rows.ep).tolist():
            for alike, put in self._priced_together(rows, np.flatnonzero(rows.ep == ep)):
                batch = self.decoding(rows.take(alike))
                shares[alike] = price(settle(put.but(batch=batch, context=self._middle, ep=int(ep)))).comm_fraction
        return shares

    def _priced_together(self, rows: ServingColumns, some: Array) -> Iterator[tuple[Array, Question]]:
        """Yield the rows, of ``some``, that share a type of weights and an exchange, and one question about all of them."""
        for index, by in unique_values(np.stack([rows.dtype, rows.exchange])[:, some], axis=1).T.astype(int).tolist():
            alike = some[(rows.dtype[some] == index) & (rows.exchange[some] == by)]
            sizes = {axis: getattr(rows, axis)[alike].astype(int) for axis in SERVING_AXES}
            yield alike, replan(self.question, **sizes, **self._kinds(index, by))

    @property
    def _middle(self) -> int:
        return int(self.question.requests.input_len + max(0, self.question.requests.output_len // 2 - 1))

    def decoding(self, rows: ServingColumns) -> Array:
        """Return the requests in each decode step: all that run, less those that still wait for their first token."""
        q, wanted, seqs = self.question, self.question.requests, rows.running * 1.0
        load = drafted_load(ClosedLoopLoad(seqs, wanted.input_len, wanted.output_len, spread=wanted.spread), q)
        decodes = decoding_seqs(load, seqs, step_limits(q)[0], rows.pp, q.engine)
        return np.ceil(np.maximum(1.0, np.where(rows.mode == 1, np.round(seqs), decodes))).astype(int)


@dataclass(frozen=True, slots=True)
class TrainPlans(SearchAnswer):
    """Plans that fit, fastest first, or the nearest where none fits.
    >>> import commtax
    >>> len(commtax.plan_training("llama-3.2-1b", "2xh100-sxm", global_batch=16, seq=2048).near)
    0
    """

    trains: ClassVar[Literal[True]] = True
    kinds: tuple[Question, ...] = ()  # ZeRO stage, recomputation and schedule, each one for all plans of a group
    plans: TrainColumns = NO_TRAINING
    near: TrainColumns = NO_TRAINING

    def splits(self) -> Array:
        """Index of the fastest plan of each split of the GPUs, fastest first."""
        return np.sort(np.unique(np.stack([getattr(self.plans, axis) for axis in SIZES]), axis=1, return_index=True)[1])

    def step_of(self, rows: TrainColumns, i: int) -> StepBill:
        batch = self.question.goal.global_batch // int(rows.dp[i])
        return price(settle(self.kinds[int(rows.kind[i])].but(batch=batch, **rows.sizes(i, SIZED))))

    def tokens_per_s(self, rows: TrainColumns, i: int) -> float:
        return self.question.goal.global_batch * float(self.question.context) / float(rows.step_s[i])

    def kind_words(self, rows: TrainColumns, i: int) -> str:
        """Describe the sharding, recomputation and schedule of row ``i``."""
        return describe_kind(replace(self.kinds[int(rows.kind[i])].plan, tp=int(rows.tp[i])))

    def whole_words(self, rows: TrainColumns, i: int) -> str:
        return f"{plural(int(rows.gpus[i]), 'GPU')} = {self.run_words(rows, i)}"

    def run_words(self, rows: TrainColumns, i: int) -> str:
        return f"{self.workers(rows, i)}, microbatch {int(rows.micro_batch[i])}, {self.kind_words(rows, i)}"


def ground(put: Question) -> Question:
    """Return a search's question, settled as one GPU's, with what plans keep that spread experts over ranks, or caches."""
    plain = settle(replan(put, dcp=1)).plain().but(redundant_experts=put.plan.redundant_experts, dcp=put.plan.dcp)
    return plain.but(imbalance=put.what_if.imbalance, techniques=put.techniques)


def paid_rate(q: Question, c: ServingColumns) -> Array:
    """Return tokens/s per GPU, or per the price of one where some GPUs cost more than others."""
    return np.asarray(c.tokens_per_s / paid(q.goal, c.gpus, c.prefill_gpus))


def worst_limit_ratio(q: Question, c: ServingColumns) -> Array:
    """Return a plan's time over its limit, as surely as is wanted, of the limit that it keeps worst: good plans have at most 1."""
    with np.errstate(over="ignore"):  # limits of next to nothing are missed by more than a number holds
        return np.maximum(c.sure_ttft_s / q.goal.ttft_s, c.sure_tpot_s / q.goal.tpot_s)


def request_s(q: Question, c: ServingColumns) -> Array:
    """Return the seconds of a whole request."""
    return np.asarray(c.ttft_s + (q.requests.output_len - 1) * c.tpot_s)


def power(q: Question, c: ServingColumns) -> Array:
    """Return tokens/s over the seconds of a request (Kleinrock's power), per GPU where the objective is cost."""
    return np.asarray((paid_rate(q, c) if q.goal.objective == "cost" else c.tokens_per_s) / request_s(q, c))


def objective_value(q: Question, c: ServingColumns) -> Array:
    """Return what the objective counts, larger is better: tokens/s, requests/s of one client, tokens/s per GPU, or 1 / GPUs."""
    if q.goal.objective == "latency":
        return np.asarray(1 / request_s(q, c))
    if q.goal.objective == "cost":
        return paid_rate(q, c)
    return np.asarray(1 / c.gpus) if q.goal.objective == "gpus" else c.tokens_per_s


def order(q: Question, c: ServingColumns) -> list[Array]:
    """Return the sort keys of a ranking, larger is better: standing, worth to 11 digits, fewer GPUs, shorter waits."""
    second = c.tokens_per_s_per_gpu if q.goal.objective == "gpus" else -c.gpus
    return [standing_of(q, c), np.round(np.log(objective_value(q, c)), 11), second, -c.ttft_s, -c.tpot_s]


def standing_of(q: Question, c: ServingColumns) -> Array:
    return standing(q, c.mode, c.ttft_s, latest_first_token_s(q))


def mean_cached_tokens(q: Question) -> float:
    """Cached tokens of a request on average: all it may need where the engine reserves them, else half of its output."""
    return float(q.requests.input_len + q.requests.output_len * (1.0 if q.engine.serves.kv_reserved else 0.5))


def describe_kind(plan: Plan) -> str:
    piped = f", interleaved in {plan.chunks}" if plan.chunks > 1 else ""
    return f"ZeRO {plan.zero}, recompute {plan.recompute}{piped}{', sequence parallel' * (plan.sequence_parallel and plan.tp > 1)}"
