"""Plans around one step: where a slider of the page may go, and heat maps of TP against links and against batches."""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from commtax import catalog
from commtax.options import page_keys
from commtax.question import STEP_AXES, Question
from commtax.records import dataclass, replace, with_fields
from commtax.rules.legality import codes, legal_values
from commtax.rules.questions import check_kinds, check_lengths
from commtax.spec import AXES, SIZES, Cluster
from commtax.statement import Refusal
from commtax.verbs.billing import StepBill, price
from commtax.verbs.fitting import fits
from commtax.verbs.settling import Settled

SERVERS = "replicas"  # servers side by side, each with all other sizes
SHRINKING = (SERVERS, "dp", "pp", "tp")  # sizes that shrink where another axis grows past the cluster, first to last
SPARED = {"cp": (SERVERS, "pp"), "ep": ("dp", "pp", "tp")}  # those of them that do not for some
PARTS = (*SIZES, SERVERS)  # sizes that a plan's GPUs are the product of, and that of its experts' group
NAMES = {axis: axis.upper() for axis in SIZES} | {SERVERS: SERVERS, "microbatches": "microbatches", "zero": "ZeRO"}
SMALL, MOST_VALUES, MOST_PARTS = 64, 48, 6
MOST = {entry["option"]: int(entry["high"]) for entry in page_keys().values() if "high" in entry}  # how far each slider reaches
WEIGHTS = {"tp": 1.0, "pp": 1.0, "cp": 1.0, "dp": 0.9, "ep": 0.1, SERVERS: 0.5}
"""How far a halving of each axis is from what was asked for."""
Sizes = dict[str, int]  # sizes and kinds of a plan by name, each as a number


@dataclass(frozen=True, slots=True)
class Move:
    """One place of a slider: its value, all sizes that it sets, and what it says about those that followed."""

    value: int
    sizes: Sizes
    note: str = ""


def moves(q: Question) -> dict[str, list[Move]]:
    """Return the legal values of each axis in order."""
    now, axes = _current_sizes(q), SIZES if q.trains else PARTS
    return {axis: _moves_along(axis, q, now) for axis in axes} | {"local": _local_token_moves(q) if q.trains else []}


def _current_sizes(q: Question) -> Sizes:
    return {name: int(getattr(q.plan, name)) for name in (*PARTS, "microbatches", "zero", "sequence_parallel")}


def _moves_along(axis: str, q: Question, now: Sizes) -> list[Move]:
    tried = [(value, sizes) for value in _values(axis, q, now) for sizes in _tries(axis, value, q, now)]
    first: dict[int, Sizes] = {}
    for (value, sizes), ok in zip(tried, _legal_mask(q, [sizes for _, sizes in tried]), strict=True):
        if ok and value not in first and (settled := _complete_sizes(sizes, q)):
            first[value] = settled
    few = sorted(first)
    if len(few) > MOST_VALUES:  # those that people use
        few = [v for v in few if v <= 16 or v & (v - 1) == 0 or v in (now[axis], few[-1])]
    keys = [name for name in now if name == axis or any(first[v][name] != now[name] for v in few)]
    return [Move(v, {key: first[v][key] for key in keys}, _note(axis, first[v], now, q)) for v in few]


def _legal_mask(q: Question, tried: list[Sizes]) -> np.ndarray:
    columns = {name: np.array([sizes[name] for sizes in tried]) for name in (*PARTS, "microbatches")}
    return np.asarray(codes(q.model, q.cluster, with_fields(q.plan, columns), q.engine) == 0)


def _complete_sizes(sizes: Sizes, q: Question) -> Sizes | None:
    """Add the kinds that go with sizes: megatron's experts beside tp shard sequences, pipelines keep gradients whole."""
    sharded, whole = {"sequence_parallel": 1}, {"zero": min(1, sizes["zero"])}
    for way in [{}, sharded, whole, sharded | whole] if q.trains else [{}]:
        settled = {**sizes, **way}
        with suppress(Refusal):
            tried = replace(q, plan=with_fields(q.plan, {**settled, "sequence_parallel": bool(settled["sequence_parallel"])}))
            check_kinds(tried)
            if q.trains:
                check_lengths(tried)
            return settled
    return None


def _values(axis: str, q: Question, now: Sizes) -> list[int]:
    experts = q.model.experts.num_experts + q.plan.redundant_experts if q.model.experts else 1
    most = min(MOST[axis], q.cluster.num_gpus, experts if axis == "ep" else q.cluster.num_gpus)
    tried = {*range(1, SMALL + 1), *(2**i for i in range(15)), *_divisors(experts), now[axis]}
    tried |= {_room(axis, now, q.cluster.num_gpus), q.cluster.num_gpus}
    return sorted(v for v in tried if 1 <= v <= most)


def nearest_legal_plan(q: Question, wanted: Sizes) -> tuple[Sizes, str] | None:
    """Return the nearest legal plan of whole parts of refused sizes, and its description. ``q`` is one GPU's."""
    axes = ("tp", "pp", "cp", "dp", SERVERS)
    parts = itertools.product(*(sorted({1, *_divisors(wanted[name])[-MOST_PARTS:]}) for name in axes))
    whole = [dict(zip(axes, sizes, strict=True)) for sizes in parts]
    tried = [s | {"ep": ep} for s in whole for ep in ({wanted["ep"], s["tp"] * s["dp"], 1} if wanted["ep"] > 1 else {1})]
    tried.sort(key=lambda sizes: sum(WEIGHTS[n] * abs(math.log2(wanted[n] / sizes[n])) for n in PARTS))
    kinds = {name: value for name, value in _current_sizes(q).items() if name not in PARTS}
    for i in np.flatnonzero(_legal_mask(q, [sizes | kinds for sizes in tried]))[:MOST_PARTS].tolist():
        if settled := _complete_sizes(tried[i] | kinds, q):
            keys = [n for n in PARTS if settled[n] != wanted[n]] + [n for n in kinds if settled[n] != kinds[n]]
            named = ["sequence parallelism" if n == "sequence_parallel" else f"{NAMES[n]} {settled[n]:,}" for n in keys]
            return ({key: settled[key] for key in keys}, ", ".join(named)) if keys else None
    return None


def _tries(axis: str, value: int, q: Question, now: Sizes) -> Iterator[Sizes]:
    for sizes in _shapes(axis, {**now, axis: value}, q, now):
        each, rest = divmod(now["microbatches"] * now["dp"], sizes["dp"])
        if q.trains and axis != "dp" and not rest and each <= MOST["microbatches"]:
            sizes["microbatches"] = each
        for ep in _spread(axis, sizes, q):
            yield {**sizes, "ep": ep}


def _shapes(axis: str, base: Sizes, q: Question, now: Sizes) -> Iterator[Sizes]:
    """Yield the value alone, then with sizes that give way. A cluster that is full stays full, or the value is passed over."""
    total, full = q.cluster.num_gpus, _gpus(now) == q.cluster.num_gpus
    kept = {**base, "dp": max(1, _room("dp", base, total))}
    if q.trains and full and axis in ("tp", "pp", "cp") and _gpus(kept) == total:
        yield kept
    yield dict(base)
    if axis == "ep" and q.engine.sends.experts_keep_tp:  # ranks for so many shares of the experts: more or fewer replicas …
        wide = {**base, "dp": max(1, base["ep"] // base["cp"])}
        yield wide
        yield {**wide, "tp": max(1, min(base["tp"], _room("tp", wide, total)))}
    elif axis == "ep":  # … else another tp
        yield {**base, "dp": max(1, base["ep"] // base["tp"])}
        yield {**base, "tp": max(1, base["ep"] // base["dp"])}
    shrunk = dict(base)
    for name in (name for name in SHRINKING if name != axis and name not in SPARED.get(axis, ())):
        shrunk[name] = max(1, min(shrunk[name], _room(name, shrunk, total)))
        if _gpus(shrunk) == total or not full:
            yield dict(shrunk)


def _spread(axis: str, sizes: Sizes, q: Question) -> list[int]:
    """Return sizes of the experts' group: first as it is, then where it must follow, over all of tp x dp, or over fewer."""
    ep, experts = sizes["ep"], q.model.experts
    if axis == "ep" or ep == 1 or experts is None:
        return [ep]
    if not q.trains:
        return [ep, sizes["tp"] * sizes["dp"]]
    ranks = sizes["dp"] * sizes["cp"]
    fewer = [d for d in reversed(_divisors(experts.num_experts)) if d < ep and ranks % d == 0]
    return [ep, *(d for d in fewer if d > 1 or ranks == 1)]


def _note(axis: str, sizes: Sizes, now: Sizes, q: Question) -> str:
    changed = [name for name in now if name != axis and sizes[name] != now[name]]
    if not changed:
        return ""
    followed = [f"{NAMES[n]} {now[n]:,} → {sizes[n]:,}" for n in changed if n != "sequence_parallel"]
    followed += ["sequence parallelism on"] if "sequence_parallel" in changed else []
    why = []
    if any(n in ("tp", "pp", "dp", SERVERS) for n in changed):
        why.append(f"{_gpus(sizes):,} of {q.cluster.num_gpus:,} GPUs in use")
    if "ep" in changed or axis == "ep":
        tied = f"{q.engine.key} spreads experts over tp x dp"
        why.append(tied if q.engine.sends.ep_is_tp_dp else "experts need whole groups of ranks")
    before, after = (x["microbatches"] * x["dp"] * int(q.micro_batch) for x in (now, sizes))
    if q.trains and "dp" in (axis, *changed):
        why.append("the same global batch" if before == after else f"global batch {before:,} → {after:,}")
    return f"With {NAMES[axis]} {sizes[axis]:,}: {', '.join(followed)}" + (f" ({'; '.join(why)})" if why else "")


def _gpus(sizes: Sizes) -> int:
    return math.prod(sizes[axis] for axis in (*AXES, SERVERS))


def _room(axis: str, sizes: Sizes, total: int) -> int:
    return total // (_gpus({**sizes, axis: 1}) if axis != "ep" else 1)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _local_token_moves(q: Question) -> list[Move]:
    """Return moves of local tokens, micro-batch x sequence, a cp rank's share: the sequence stays where it divides them."""
    cp, length = int(q.plan.cp), int(q.context)
    values = sorted({*(2**i for i in range(7, 18)), int(q.micro_batch) * length // cp})
    rows = {v: (1, v * cp) if v * cp % length else (v * cp // length, length) for v in values}
    return [Move(v, dict(zip(STEP_AXES, sizes, strict=True))) for v, sizes in rows.items()]


GRIDS = ("tp-link", "tp-batch")
LINKS = ("pcie4", "pcie5", "ib-ndr", "roce-100", "25gbe", "10gbe")  # columns beside the cluster's own links
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MICRO = (1, 2, 4, 8, 16, 32)
MOST_TP = 128
Changes = Mapping[str, int | float | str | None]  # what a cell, a button or a slider sets, by name


class Column(NamedTuple):
    """Another batch, or another cluster with the names that request it."""

    title: str
    batch: int
    cluster: Cluster
    names: Changes


@dataclass(frozen=True, slots=True)
class Cell:
    row: int
    column: int
    step_s: float | None = None
    rate: float | None = None
    comm_fraction: float | None = None
    mfu: float | None = None
    fits: bool | None = None
    refused: str | None = None
    patch: Changes | None = None
    pays: bool | None = None


@dataclass(frozen=True, slots=True)
class HeatGrid:
    """A heat map: cells by row and column."""

    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str
    rate_unit: str
    cells: list[Cell]
    here: tuple[int, int]
    note: str


def grid(here: StepBill, kind: str) -> HeatGrid:
    """Price the heat map of one kind around a step. A row pays where it gives more than the last row before it that fits."""
    q, links = here.question, kind == "tp-link"
    batches = sorted({*(MICRO if q.trains else BATCHES), _batch(q)})
    columns = _links(q) if links else [Column(str(v), v, q.cluster, {}) for v in batches]
    free = replace(q.plan, dp=1, ep=1) if q.trains else replace(q.plan, ep=1)
    most = min(MOST_TP, int(q.plan.tp) * int(q.plan.dp)) if q.trains else MOST_TP
    legal = legal_values("tp", q.model, q.cluster, free, q.engine)
    degrees = sorted({tp for tp in legal if tp & (tp - 1) == 0 and tp <= most} | {int(q.plan.tp)})
    cells: list[Cell] = []
    before: dict[int, float] = {}
    for (row, degree), (index, column) in itertools.product(enumerate(degrees), enumerate(columns)):
        cell = _cell(Cell(row, index), q, degree, column)
        if cell.fits and cell.rate is not None:  # what fits nowhere is no alternative
            cell = replace(cell, pays=cell.rate > before[index] if index in before else None)
            before[index] = cell.rate or 0.0
        cells.append(cell)
    line = "past the line a row gives fewer tokens/s than the row above it: that much more TP does not pay"
    same = "the same GPUs and global batch in every row (dp gives way to tp)" if q.trains else "dp as it is"
    return HeatGrid(
        rows=[f"TP {degree}" for degree in degrees],
        columns=[c.title for c in columns],
        row_title="tensor-parallel size",
        column_title="link of the group" if links else f"sequences per {'microbatch' if q.trains else 'replica'}",
        rate_unit="tokens/s",
        cells=cells,
        here=(degrees.index(int(q.plan.tp)), 0 if links else batches.index(_batch(q))),
        note=f"{line}; {same}; what is struck through does not fit in memory, and no line counts it",
    )


def _batch(q: Question) -> int:
    return int(q.micro_batch if q.trains else q.batch)


def _cell(empty: Cell, q: Settled, tp: int, column: Column) -> Cell:
    now = _sizes(q, int(q.plan.tp), _batch(q))
    try:
        sizes = _sizes(q, tp, column.batch)
        batch, micro = sizes["batch"] * max(1, sizes["microbatches"]), sizes["batch"] if q.trains else q.micro_batch
        plan = {axis: sizes[axis] for axis in ("tp", "dp", "ep")}
        b = price(q.but(cluster=column.cluster, **plan, batch=batch, micro_batch=micro))
    except Refusal as error:
        return replace(empty, refused=" ".join(str(error).split()))
    return replace(
        empty,
        step_s=float(b.step_s),
        rate=float(b.tokens_per_s),
        comm_fraction=float(b.comm_fraction),
        mfu=float(b.mfu) if q.trains else None,
        fits=bool(fits(b)),
        patch={name: n for name, n in sizes.items() if n != now[name]} | dict(column.names),
    )


def _sizes(q: Question, tp: int, batch: int) -> Sizes:
    """Return the sizes in which cells differ. Experts follow tp as engines tie them, and serving has no microbatches.

    In training ``batch`` is that of a microbatch, dp gives way to tp, and the global batch stays.
    """
    dp, ep = int(q.plan.dp), int(q.plan.ep)
    if not q.trains:
        return {"tp": tp, "dp": dp, "ep": tp * dp if ep > 1 else ep, "batch": batch, "microbatches": 0}
    total, whole = int(q.plan.tp) * dp, int(q.batch) * dp
    dp = total // tp if total % tp == 0 else dp
    each, rest = divmod(whole, batch * dp)
    if not each or rest:
        raise Refusal(f"b: a global batch of {whole:,} is no whole number of microbatches of {batch} on {dp} replicas", "batch")
    return {"tp": tp, "dp": dp, "ep": ep, "batch": batch, "microbatches": each}


def _links(q: Question) -> list[Column]:
    cluster, batch = q.cluster, _batch(q)
    current = cluster.intra.key if cluster.is_one_domain or cluster.gpus_per_host > 1 else cluster.inter.key
    columns = [Column(current if cluster.is_one_domain else f"{cluster.intra.key}, {cluster.inter.key}", batch, cluster, {})]
    for link in (link for link in map(catalog.link, LINKS) if link.key != current):
        if link.scope == "intra":
            if cluster.gpus_per_host > 1 and link.key != cluster.intra.key:
                columns.append(Column(link.key, batch, catalog.with_inside_link(cluster, link), {"intra": link.key}))
        elif not cluster.is_one_domain:
            if link.key != cluster.inter.key:
                columns.append(Column(f"{link.key} between", batch, catalog.with_between(cluster, link), {"inter": link.key}))
        else:
            names = {"cluster": f"{cluster.num_gpus}x1x{cluster.chip.key}", "intra": "", "inter": link.key}
            apart = catalog.cluster(names["cluster"], inter=link.key)
            if apart.domain == 1:  # NVLink joins the hosts of a rack
                columns.append(Column(f"{link.key}, one a host", batch, apart, names))
    return columns
