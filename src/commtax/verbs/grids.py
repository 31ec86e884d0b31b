"""TP against links and against batches around one priced step: every cell is the same question with something changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from commtax import catalog
from commtax.cost.legality import legal_values
from commtax.spec import Cluster
from commtax.statement import Refusal
from commtax.verbs.billing import StepBill, price
from commtax.verbs.fitting import fits

GRIDS = ("tp-link", "tp-batch")
LINKS = ("pcie4", "pcie5", "ib-ndr", "roce-100", "25gbe", "10gbe")
"""Columns beside the cluster's own links."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MICRO = (1, 2, 4, 8, 16, 32)
MOST_TP = 128
Changes = Mapping[str, int | float | str | None]
"""What a cell, a button or a slider sets, by name."""


@dataclass(frozen=True, slots=True)
class Column:
    """Another batch, or another cluster under the names that it is asked for by."""

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
class Grid:
    """A heat map: cells by row and column."""

    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str
    rate_unit: str
    cells: list[Cell]
    here: tuple[int, int]
    note: str


def grid(here: StepBill, kind: str) -> Grid:
    """The heat map of one kind around a step. A row pays where it gives more than the last row before it that fits."""
    training, tp = here.question.trains, int(here.question.plan.tp)
    columns = _links(here) if kind == "tp-link" else _batches(here)
    degrees = _degrees(here)
    cells: list[Cell] = []
    before: dict[int, float] = {}
    for row, degree in enumerate(degrees):
        for index, column in enumerate(columns):
            cell = _cell(Cell(row, index), here, degree, column)
            if cell.fits and cell.rate is not None:  # what fits nowhere is no alternative
                cell = replace(cell, pays=cell.rate > before[index] if index in before else None)
                before[index] = cell.rate or 0.0
            cells.append(cell)
    own = 0 if kind == "tp-link" else [c.batch for c in columns].index(_batch(here))
    sequences = "sequences a microbatch" if training else "sequences a replica"
    return Grid(
        rows=[f"TP {degree}" for degree in degrees],
        columns=[c.title for c in columns],
        row_title="tensor-parallel size",
        column_title="link of the group" if kind == "tp-link" else sequences,
        rate_unit="tokens/s",
        cells=cells,
        here=(degrees.index(tp), own),
        note=_note(training),
    )


def _note(training: bool) -> str:
    same = "the same GPUs and global batch in every row (dp gives way to tp)" if training else "dp as it is"
    line = "past the line a row gives fewer tokens/s than the row above it: that much more TP does not pay"
    return f"{line}; {same}; what is struck through does not fit in memory, and no line counts it"


def _batch(b: StepBill) -> int:
    """Sequences of the step; in training, of a microbatch."""
    return int(b.question.micro_batch if b.question.trains else b.question.batch)


def _degrees(here: StepBill) -> list[int]:
    """Powers of two that are legal (training: with dp giving way), and the present one."""
    asked, training = here.question, here.question.trains
    free = replace(asked.plan, dp=1) if training else asked.plan
    most = min(MOST_TP, int(asked.plan.tp) * int(asked.plan.dp) if training else MOST_TP)
    legal = legal_values("tp", asked.model, asked.cluster, replace(free, ep=1), asked.engine)
    return sorted({tp for tp in legal if tp & (tp - 1) == 0 and tp <= most} | {int(asked.plan.tp)})


def _cell(empty: Cell, here: StepBill, tp: int, column: Column) -> Cell:
    now, same = _sizes(here, int(here.question.plan.tp), _batch(here)), column.cluster is here.question.cluster
    try:
        sizes = _sizes(here, tp, column.batch)
        b = here if sizes == now and same else _again(here, sizes, column.cluster)
    except Refusal as error:
        return replace(empty, refused=" ".join(str(error).split()))
    return replace(
        empty,
        step_s=float(b.step_s),
        rate=float(b.tokens_per_s),
        comm_fraction=float(b.comm_fraction),
        mfu=float(b.mfu) if b.question.trains else None,
        fits=bool(fits(b)),
        patch={name: value for name, value in sizes.items() if value != now[name]} | dict(column.names),
    )


def _sizes(here: StepBill, tp: int, batch: int) -> dict[str, int]:
    """The plan of a cell: experts follow tp as engines tie them; in training dp gives way to tp and the global batch stays."""
    plan, total = here.question.plan, int(here.question.plan.tp * here.question.plan.dp)
    if not here.question.trains:
        return {"tp": tp, "dp": int(plan.dp), "ep": tp * int(plan.dp) if plan.ep > 1 else int(plan.ep), "batch": batch}
    dp, whole = total // tp if total % tp == 0 else int(plan.dp), int(here.question.batch * plan.dp)
    each, rest = divmod(whole, batch * dp)
    if not each or rest:
        raise Refusal(f"b: a global batch of {whole:,} is no whole number of microbatches of {batch} on {dp} replicas", "batch")
    return {"tp": tp, "dp": dp, "ep": int(plan.ep), "batch": batch, "microbatches": each}


def _again(here: StepBill, sizes: dict[str, int], cluster: Cluster) -> StepBill:
    axes = {name: sizes[name] for name in ("tp", "dp", "ep")}
    batch = sizes["batch"]
    steps = {"batch": batch * sizes["microbatches"], "micro_batch": batch} if here.question.trains else {"batch": batch}
    return price(here.question.but(cluster=cluster, **axes, **steps))


def _batches(here: StepBill) -> list[Column]:
    values = sorted({*(MICRO if here.question.trains else BATCHES), _batch(here)})
    return [Column(str(v), v, here.question.cluster, {}) for v in values]


def _links(here: StepBill) -> list[Column]:
    """The cluster as it is, then other links: inside a host, or one GPU a host and the link between them."""
    cluster, batch = here.question.cluster, _batch(here)
    own = cluster.intra.key if cluster.num_hosts == 1 or cluster.gpus_per_host > 1 else cluster.inter.key
    title = own if cluster.num_hosts == 1 else f"{cluster.intra.key}, {cluster.inter.key}"
    found = [Column(title, batch, cluster, {})]
    for link in map(catalog.link, LINKS):
        if link.key == own or (link.scope == "intra" and link.key == cluster.intra.key):
            continue
        if link.scope == "intra":
            if cluster.gpus_per_host > 1:
                found.append(Column(link.key, batch, catalog.with_inside(cluster, link), {"intra": link.key}))
        elif cluster.num_hosts > 1:
            if link.key != cluster.inter.key:
                found.append(Column(f"{link.key} between", batch, catalog.with_between(cluster, link), {"inter": link.key}))
        else:
            names = {"cluster": f"{cluster.num_gpus}x1x{cluster.chip.key}", "intra": "", "inter": link.key}
            apart = catalog.cluster(names["cluster"], inter=link.key)
            found.append(Column(f"{link.key}, one a host", batch, apart, names))
    return found
