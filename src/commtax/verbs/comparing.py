"""One question over a range of answers (``--over batch=1:256``), and plans side by side with their break-evens (``--plans``)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations, product
from typing import Unpack

import numpy as np

from commtax import catalog
from commtax.answer import Answer
from commtax.catalog.techniques import changes_of
from commtax.napkin import breakeven_overlap
from commtax.options import check_taken
from commtax.options import options as options_known
from commtax.question import INPUT_LEN, OUTPUT_LEN, STEP_AXES, Question
from commtax.records import dataclass, record_from
from commtax.rules.questions import share_of
from commtax.rules.values import check_option
from commtax.spec import SERVING_AXES, SIZES, Cluster, Model, Number, Plan
from commtax.statement import Refusal
from commtax.units import parse_count
from commtax.verbs.billing import StepBill, price, with_link
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.fit_advice import check_lengths, why_it_does_not_start
from commtax.verbs.fitting import fits, step_fits
from commtax.verbs.keywords import CompareOptions, ComparePlansOptions
from commtax.verbs.settling import AUTO_EP, Settled, replan, resolve_question, settle


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
        return self.clients


def serve_plan(q: Question, name: str, link: str, clients: int) -> ServedPlan:
    """Price the closed loop of all servers, as ``simulate`` does."""
    where = name, link, clients, int(q.plan.all_gpus), q
    try:
        loop = price_closed_loop(settle(q.but(concurrency=clients)))
    except ValueError as error:
        return ServedPlan(*where, refused=str(error))
    room = bool(loop.kv_tokens >= q.requests.tokens + loop.state_tokens) and not why_it_does_not_start(loop.question)
    return ServedPlan(*where, float(loop.ttft_s), float(loop.tpot_s), float(loop.tokens_per_s), fits=room)


TYPES = {name: option for name, option in options_known().items() if option.rule.endswith("dtype")}  # axes of number formats
AXES = (*STEP_AXES, *SERVING_AXES, "dcp", "link", "technique", *TYPES)
TRAIN_AXES = (*STEP_AXES, *SERVING_AXES, "link", "cp", "micro_batch", "local_tokens", *(t for t in TYPES if not TYPES[t].serving))
VARIED = (*STEP_AXES, "bandwidth_scale")  # between plans
MAX_CELLS = 4096
MOST_BATCH = 1024
Where = Callable[[Mapping[str, int]], Cluster]


@dataclass(frozen=True, slots=True)
class ComparedBill:
    """One cell: where it lies on the axes, and its bill, or why it has none."""

    at: tuple[int | str, ...]
    bill: StepBill | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Comparison(Answer):
    """A grid of bills over one or two axes.

    >>> import commtax
    >>> commtax.compare("llama-3.1-8b", "8xh100-sxm", ["batch=1:8", "link=nvlink4,pcie5"], tp=8).values("batch")
    [1, 2, 4, 8]
    """

    axes: tuple[str, ...]
    rows: tuple[ComparedBill, ...]
    question: Question  # of all cells, but for what the axes change

    @property
    def swept(self) -> set[str]:
        """What differs between cells: local tokens are sequences of a length."""
        return {*self.axes, *(STEP_AXES if "local_tokens" in self.axes else ())}

    def breakeven_overlap(self, row: ComparedBill) -> float | None:
        """Return how much of a cell's communication must be hidden to match its fastest link, None without links."""
        if "link" not in self.axes or row.bill is None:
            return None
        others = [i for i, axis in enumerate(self.axes) if axis != "link"]
        alike = (r.bill for r in self.rows if all(r.at[i] == row.at[i] for i in others))
        fastest = min(float(bill.exposed_comm_s) for bill in alike if bill is not None)
        return breakeven_overlap(float(row.bill.exposed_comm_s), fastest)

    def values(self, axis: str) -> list[int | str]:
        return list(dict.fromkeys(row.at[self.axes.index(axis)] for row in self.rows))


def parse_over(text: str, axes: tuple[str, ...] = AXES) -> tuple[str, Sequence[int | str]]:
    """Parse an axis, where ``batch=1:256`` doubles from 1 to 256 and ``tp=1,2,4`` lists.

    >>> parse_over("batch=1:8"), parse_over("technique=none,mtp=3:0.8,dbo+dcp=2")
    (('batch', [1, 2, 4, 8]), ('technique', ['none', 'mtp=3:0.8', 'dbo+dcp=2']))
    >>> parse_over("dtype=auto,fp8")
    ('dtype', ['auto', 'fp8'])
    """
    axis, equals, values = text.partition("=")
    axis = axis.replace("-", "_")
    if axis not in axes or not equals or not values:
        raise Refusal.of(f"write AXIS=1:256 or AXIS=1,2,4 with one of {', '.join(axes)}", over=text)
    if axis == "link":
        return axis, [catalog.link(name).key for name in values.split(",")]
    if axis == "technique":  # several at once are joined by "+"
        for text in values.split(","):
            changes_of(text.replace("+", ","))
        return axis, values.split(",")
    if axis in TYPES:
        return axis, [str(check_option(name, TYPES[axis])) or "auto" for name in values.split(",")]
    if ":" in values:
        low, high = (parse_count(v, axis) for v in values.split(":", 1))
        if not 1 <= low <= high:
            raise Refusal.of("the range must rise from at least 1", over=text)
        return axis, [*(low * 2**i for i in range(high.bit_length()) if low * 2**i < high), high]
    return axis, [parse_count(v, axis) for v in values.split(",")]


def compare(model: str | Model, cluster: str | Cluster, over: list[str], **options: Unpack[CompareOptions]) -> Comparison:
    """Price the same step over a range of batches, lengths, degrees or links. An illegal combination keeps its rule.

    >>> import commtax
    >>> swept = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["tp=1,2,8"])
    >>> [f"TP {row.at[0]}: {row.bill.comm_fraction:.0%}" for row in swept.rows]
    ['TP 1: 0%', 'TP 2: 6%', 'TP 8: 11%']

    ``over`` has one or two axes: ``"batch=1:256"`` doubles, ``"link=nvlink4,pcie5"`` lists. ``phase="train"`` prices training.
    Over ``local_tokens`` a GPU's tokens per step change: sequences of ``context`` tokens, or shorter ones where they are fewer.
    """
    check_taken("compare", options)
    fixed = {"global_batch": options.pop("global_batch", None), "local_tokens": options.pop("local_tokens", None)}
    return compare_question(resolve_question(model, cluster, options), over, **fixed)


def compare_question(put: Question, over: list[str], **fixed: int | None) -> Comparison:
    """Price a question over one or two axes. ``fixed`` holds a ``global_batch`` or ``local_tokens`` of all cells."""
    axes = [parse_over(text, TRAIN_AXES if put.trains else AXES) for text in over]
    if not 1 <= len(axes) <= 2 or len({name for name, _ in axes}) != len(axes):
        raise Refusal.about(over="one or two different axes are needed")
    cells = list(product(*(values for _, values in axes)))
    if len(cells) > MAX_CELLS:
        raise Refusal.about(over=f"{len(cells):,} combinations, more than the {MAX_CELLS:,} that are shown")
    names = tuple(name for name, _ in axes)
    return Comparison(names, tuple(_cell(put, dict(zip(names, cell, strict=True)), fixed) for cell in cells), put)


def _cell(put: Question, at: Mapping[str, int | str], fixed: Mapping[str, int | None]) -> ComparedBill:
    cell, numbers = tuple(at.values()), {**fixed, **{name: value for name, value in at.items() if isinstance(value, int)}}
    total, tokens = (numbers.pop(name, None) for name in ("global_batch", "local_tokens"))
    try:
        on = changes_of(str(at["technique"]).replace("+", ",")) if "technique" in at else {}
        on |= {TYPES[axis].key: str(name).removesuffix("auto") for axis, name in at.items() if axis in TYPES}
        q = replan(put, **numbers, cluster=with_link(put.cluster, str(at["link"])) if "link" in at else put.cluster).but(**on)
        if q.plan.ep == AUTO_EP and q.model.experts is None:
            q = q.but(ep=1)
        if total is not None:
            q = q.but(batch=share_of(total, int(q.plan.dp)))
        if tokens is not None:
            length = min(int(q.context), tokens)
            if tokens % length:
                raise Refusal.of(f"not a whole number of sequences of {length} tokens", local_tokens=tokens)
            q = q.but(context=length, batch=tokens // length, micro_batch=1)
        return ComparedBill(cell, price(settle(q)))
    except ValueError as error:
        return ComparedBill(cell, None, str(error))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan at one link and load: sequences in the step over all replicas, of which each replica's batch is its share."""

    plan: str
    link: str
    sequences: int
    gpus: int
    bill: StepBill | None
    refused: str = ""
    fits: bool = False

    @property
    def batch(self) -> int:
        """Sequences of a replica, 0 where nothing is priced."""
        return int(self.bill.question.batch) if self.bill else 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all sequences over the step. With fewer sequences than replicas some of them idle."""
        if self.bill is None:
            return 0.0
        q = self.bill.question
        return float(self.bill.tokens_per_s if q.trains else self.sequences * q.techniques.per_step / self.bill.step_s)

    @property
    def prompt_tokens_per_s(self) -> float:
        """The same of prompts, where the step computes nothing else."""
        prefills = self.bill is not None and self.bill.question.phase == "prefill"
        return self.tokens_per_s * float(self.bill.question.context) if self.bill and prefills else 0.0

    @property
    def rate(self) -> float:
        """What plans are ranked by: tokens/s of prompts in prefill, else of outputs or of training."""
        return self.prompt_tokens_per_s or self.tokens_per_s

    @property
    def load(self) -> int:
        return self.sequences


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A swap of two plans: ``first`` is faster below ``at``, ``then`` from it on. From ``earliest`` on graph padding decides."""

    axis: str  # sequences | context | bandwidth
    first: str
    then: str
    at: float
    earliest: float
    link: str  # "": each plan on its own
    sequences: int  # in the step over all replicas, at which context and bandwidth were varied; 0 for them themselves
    points: np.ndarray = field(repr=False, compare=False)  # of the axis
    steps: np.ndarray = field(repr=False, compare=False)  # at each, those of ``first`` over those of ``then``

    def sure(self, within: float) -> tuple[float | None, float | None]:
        """Return the points below which ``first`` and from which ``then`` is always faster by more than a share, or None."""
        ahead, behind = (1 / self.steps > 1 + within), (self.steps > 1 + within)
        first, then = int(np.argmin([*ahead, False])), int(np.argmin([*behind[::-1], False]))
        return float(self.points[first]) if first else None, float(self.points[-then]) if then else None

    def leads(self, within: float) -> tuple[float, float]:
        """Return by how much, at most, each plan is faster where neither is sure to be."""
        below, above = self.sure(within)
        between = self.steps[(self.points >= (below or 0.0)) & (self.points < (above or np.inf))]
        return float(np.max(1 / between, initial=1.0)) - 1, float(np.max(between, initial=1.0)) - 1


@dataclass(frozen=True, slots=True)
class PlanTable(Answer):
    """Rows of a comparison of plans, and where their order flips.

    >>> import commtax
    >>> table = commtax.compare_plans("llama-3.1-8b", "8xh100-sxm", ["tp1", "tp2"], batches=[1, 32])
    >>> [row.plan for row in table.rows if row.sequences == 32]
    ['tp1', 'tp2']
    """

    rows: tuple[PlanRow, ...]
    break_evens: tuple[BreakEven, ...]
    question: Question  # of all plans
    context: int
    links: tuple[str, ...] = ()  # those that were asked for; none: each plan on its own
    notes: tuple[str, ...] = ()
    served: tuple[ServedPlan, ...] = ()  # whole requests, where clients were asked for

    @property
    def phase(self) -> str:
        return self.question.phase

    def beside(self, row: PlanRow | ServedPlan) -> list[PlanRow | ServedPlan]:
        """Return the rows that a row competes with: the same load, and the same link where links were requested."""
        rows: Sequence[PlanRow | ServedPlan] = self.served if isinstance(row, ServedPlan) else self.rows
        return [r for r in rows if r.load == row.load and (r.link == row.link or not self.links)]

    def values(self, axis: str) -> list[int | str]:
        return list(dict.fromkeys(getattr(row, axis) for row in self.rows))

    def at(self, plan: str, link: str, sequences: int) -> PlanRow:
        return next(r for r in self.rows if (r.plan, r.link, r.sequences) == (plan, link, sequences))


def parse_plan(text: str) -> dict[str, int]:
    """Parse sizes in any order. ``ep`` without a number is tp x dp, ``r2`` are two servers, and so is ``2x`` before them.

    >>> {axis: n for axis, n in parse_plan("tp8pp2").items() if n > 1}
    {'tp': 8, 'pp': 2}
    >>> parse_plan("tp4r2")["replicas"], parse_plan("dp2tp4")["dp"], parse_plan("tp8dcp4")["dcp"]
    (2, 2, 4)
    >>> parse_plan("2xTP4") == parse_plan("tp4r2")
    True
    """
    plain = re.sub(r"^(\d+)x(.+)", r"\2r\1", re.sub(r"[-\s]", "", text.lower()))
    pairs = re.findall(rf"(dcp|{'|'.join(SIZES)}|r)(\d*)", plain)
    twice, bare = len(dict(pairs)) != len(pairs), any(not size and name != "ep" for name, size in pairs)
    if not pairs or "".join(name + size for name, size in pairs) != plain or twice or bare:
        rule = f"write sizes such as tp8, tp8pp2, tp4r2 (or 2xtp4) or tp8ep8 ({', '.join(SIZES)}, dcp, r for replicas)"
        raise Refusal.of(rule, plans=text)
    named = {"replicas" if name == "r" else name: parse_count(size, "plans") if size else AUTO_EP for name, size in pairs}
    sizes = dict.fromkeys((*SIZES, "replicas"), 1) | named
    if 0 in sizes.values():
        raise Refusal.of("sizes are at least 1", plans=text)
    return sizes


def replicas_in(text: str) -> int:
    """Count the replicas of a plan: servers, and ranks of data parallelism in each.

    >>> replicas_in("tp8"), replicas_in("2xtp2dp2")
    (1, 4)
    """
    plan = record_from(Plan, parse_plan(text))
    return int(plan.dp * plan.replicas)


def compare_plans(
    model: str | Model,
    cluster: str | Cluster,
    plans: Sequence[str],
    *,
    links: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    where: Where | None = None,
    concurrency: Sequence[int] = (),
    output_len: int = OUTPUT_LEN,
    **options: Unpack[ComparePlansOptions],
) -> PlanTable:
    """Compare plans side by side, and find the sequences per step, length and bandwidth at which two of them swap.

    >>> import commtax
    >>> table = commtax.compare_plans("llama-3.1-8b", "8xh100-sxm", ["tp8", "tp4r2"])
    >>> swap = table.break_evens[0]
    >>> f"{swap.first} is faster below {swap.axis} {swap.at:.0f}, {swap.then} from there"
    'tp8 is faster below sequences 40, tp4r2 from there'

    ``batches`` count the sequences in a step over all replicas, so that plans are asked for the same work; the batch of a replica
    is its share. ``where`` gives the cluster that a plan meets (its GPUs chosen from a topology); ``links`` replace the link of all
    of them. With ``concurrency``, whole requests of so many clients are compared too: prompts of ``context`` tokens, answered with
    ``output_len``.
    """
    put = resolve_question(model, cluster, check_taken("compare_plans", options))
    length = int(put.context) if "context" in options else INPUT_LEN
    put = put.but(input_len=length, output_len=output_len)
    return replace(compared_plans(put, plans, links, batches, where, concurrency), context=length)


def compared_plans(
    put: Question,
    plans: Sequence[str],
    links: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    where: Where | None = None,
    concurrency: Sequence[int] = (),
) -> PlanTable:
    """Compare the plans of a question side by side."""
    if concurrency and check_lengths(put).phase != "decode":
        raise Refusal.about(concurrency="whole requests have prompts and decoding; leave phase out")
    for name, loads in (("concurrency", concurrency), ("batches", batches)):
        if any(load < 1 for load in loads):
            raise Refusal.about(**{name: "whole numbers of at least 1 are needed"})
    sizes = {name: parse_plan(name) for name in dict.fromkeys(plans)}
    keys = [catalog.link(name).key for name in links] or [""]
    if len(sizes) * len(keys) * max(len(batches), len(concurrency)) > MAX_CELLS:
        raise Refusal.about(plans=f"more than the {MAX_CELLS:,} combinations that are shown")
    tried = []
    for key, (name, axes) in product(keys, sizes.items()):
        place = where(axes) if where else put.cluster
        tried.append(PlanOnLink(replan(put, **axes, cluster=with_link(place, key) if key else place), name, key))
    rows = [plan.row(int(b)) for plan in tried for b in batches]
    legal = [p for p in tried if any(r.bill is not None and (r.plan, r.link) == (p.name, p.shown) for r in rows)]
    flips = [] if put.trains else [f for key in keys for f in _flips([p for p in legal if p.link == key], int(batches[0]))]
    served = tuple(serve_plan(one.question, one.name, one.shown, int(clients)) for one in tried for clients in concurrency)
    return PlanTable(tuple(rows), tuple(flips), put, int(put.context), tuple(keys) if links else (), served=served)


@dataclass(frozen=True, slots=True)
class PlanOnLink:
    """One plan on one link: what it costs at any batch."""

    question: Question
    name: str
    link: str

    @property
    def shown(self) -> str:
        """The requested link, else the host's, that of its bridged pairs, and that between hosts where a replica has several."""
        place = self.question.cluster
        inter = place.inter if self.question.plan.num_gpus > place.domain else None
        return self.link or ", ".join(x.key for x in (place.intra, place.bridge, inter) if x)

    def step(self, batch: Number, **changes: object) -> Settled:
        """Return the question of a replica that has its share of ``batch`` sequences."""
        plan = self.question.plan
        share = -(-np.asarray(batch) // (plan.dp * plan.replicas))
        return settle(self.question.but(batch=int(share) if np.ndim(batch) == 0 else share, **changes))

    def num_fitting(self, batch: int, axis: str, grid: np.ndarray) -> int:
        """Return how many points of an axis fit in memory: all up to the largest that does."""
        at = {"batch": batch}
        return bisect_left(range(len(grid)), True, key=lambda i: not step_fits(self.step(**at | {axis: grid[i].item()})))

    def row(self, batch: int) -> PlanRow:
        q, where = self.question, (self.name, self.shown, batch, int(self.question.plan.all_gpus))
        try:
            priced = price(settle(q.but(batch=share_of(batch, int(q.plan.dp)))) if q.trains else self.step(batch))
            return PlanRow(*where, priced, fits=bool(fits(priced)))
        except ValueError as error:
            return PlanRow(*where, None, str(error))


def _flips(plans: list[PlanOnLink], batch: int) -> list[BreakEven]:
    """Find where two plans that fit swap: over batches one by one, over lengths and bandwidths between the points of a grid."""
    longest = min((p.question.model.max_len for p in plans), default=1)
    lengths, scales = np.unique(np.geomspace(1, max(2, longest), 400).astype(int)), np.geomspace(2.0**-8, 2.0**8, 400)
    flips, grids = [], (np.arange(1, MOST_BATCH + 1), lengths, scales)
    for axis, changed, grid in zip(("sequences", "context", "bandwidth"), VARIED, grids, strict=True):
        varied: dict[str, Number] = {"batch": batch, changed: grid}
        room = {a.name: a.num_fitting(batch, changed, grid) for a in plans}
        steps = {a.name: price(a.step(**varied)).step_s + 0.0 * grid for a in plans}  # one for all where a plan sends nothing
        for a, b in combinations(plans, 2):
            both = slice(min(room[a.name], room[b.name]))
            if flip := _flip(grid[both], (steps[a.name] - steps[b.name])[both]):
                earliest, at, ahead = flip
                wide, scale = max((a.question, b.question), key=lambda q: int(q.plan.tp)), 1.0
                if axis == "bandwidth":  # that stands for factor 1: of the link that the wider tensor-parallel group runs over
                    place = wide.cluster.as_pairs if wide.plan.tp == 2 else wide.cluster
                    scale = (place.intra if wide.plan.tp <= place.domain else place.inter).bandwidth_Bps
                first, then = (a, b) if ahead else (b, a)
                sequences, ratio = 0 if axis == "sequences" else batch, (steps[first.name] / steps[then.name])[both]
                ends, points = (at * scale, earliest * scale), grid[both] * scale
                flips.append(BreakEven(axis, first.name, then.name, *ends, a.link, sequences, points, ratio))
    return flips


def _flip(grid: np.ndarray, difference: np.ndarray) -> tuple[float, float, bool] | None:
    """Return the first point of another sign, the point from which it stays, and whether the first plan leads at the start."""
    sign = np.sign(np.where(np.abs(difference) < 1e-12, 0.0, difference))
    if not sign.size or sign[0] == 0 or sign[-1] == 0 or sign[0] == sign[-1]:
        return None
    stays = len(sign) - int(np.argmax(sign[::-1] != sign[-1]))
    return float(grid[int(np.argmax(sign != sign[0]))]), float(grid[stays]), bool(sign[0] < 0)
