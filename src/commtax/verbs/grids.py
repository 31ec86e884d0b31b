"""TP against links and against batches around one priced step: every cell is the same question with something changed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from commtax import catalog
from commtax.question import Question
from commtax.records import dataclass
from commtax.rules.legality import legal_values
from commtax.spec import Cluster
from commtax.statement import Refusal
from commtax.verbs.billing import StepBill, price
from commtax.verbs.fitting import fits
from commtax.verbs.settling import Settled

GRIDS = ("tp-link", "tp-batch")
LINKS = ("pcie4", "pcie5", "ib-ndr", "roce-100", "25gbe", "10gbe")  # columns beside the cluster's own links
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MICRO = (1, 2, 4, 8, 16, 32)
MOST_TP = 128
Changes = Mapping[str, int | float | str | None]  # what a cell, a button or a slider sets, by name


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
    """The heat map of one kind around a step. A row pays where it gives more than the last row before it that fits."""
    q = here.question
    batches = sorted({*(MICRO if q.trains else BATCHES), _batch(q)})
    columns = _links(q) if kind == "tp-link" else [Column(str(v), v, q.cluster, {}) for v in batches]
    free = replace(q.plan, dp=1, ep=1) if q.trains else replace(q.plan, ep=1)
    most = min(MOST_TP, int(q.plan.tp) * int(q.plan.dp)) if q.trains else MOST_TP
    legal = legal_values("tp", q.model, q.cluster, free, q.engine)
    degrees = sorted({tp for tp in legal if tp & (tp - 1) == 0 and tp <= most} | {int(q.plan.tp)})
    cells: list[Cell] = []
    before: dict[int, float] = {}
    for row, degree in enumerate(degrees):
        for index, column in enumerate(columns):
            cell = _cell(Cell(row, index), q, degree, column)
            if cell.fits and cell.rate is not None:  # what fits nowhere is no alternative
                cell = replace(cell, pays=cell.rate > before[index] if index in before else None)
                before[index] = cell.rate or 0.0
            cells.append(cell)
    own = 0 if kind == "tp-link" else batches.index(_batch(q))
    sequences = "sequences per microbatch" if q.trains else "sequences per replica"
    line = "past the line a row gives fewer tokens/s than the row above it: that much more TP does not pay"
    same = "the same GPUs and global batch in every row (dp gives way to tp)" if q.trains else "dp as it is"
    return HeatGrid(
        rows=[f"TP {degree}" for degree in degrees],
        columns=[c.title for c in columns],
        row_title="tensor-parallel size",
        column_title="link of the group" if kind == "tp-link" else sequences,
        rate_unit="tokens/s",
        cells=cells,
        here=(degrees.index(int(q.plan.tp)), own),
        note=f"{line}; {same}; what is struck through does not fit in memory, and no line counts it",
    )


def _batch(q: Question) -> int:
    """Sequences of the step; in training, of a microbatch."""
    return int(q.micro_batch if q.trains else q.batch)


def _cell(empty: Cell, q: Settled, tp: int, column: Column) -> Cell:
    now = _sizes(q, int(q.plan.tp), _batch(q))
    try:
        sizes = _sizes(q, tp, column.batch)
        batch, micro = sizes.batch * max(1, sizes.microbatches), sizes.batch if q.trains else q.micro_batch
        b = price(q.but(cluster=column.cluster, tp=sizes.tp, dp=sizes.dp, ep=sizes.ep, batch=batch, micro_batch=micro))
    except Refusal as error:
        return replace(empty, refused=" ".join(str(error).split()))
    return replace(
        empty,
        step_s=float(b.step_s),
        rate=float(b.tokens_per_s),
        comm_fraction=float(b.comm_fraction),
        mfu=float(b.mfu) if q.trains else None,
        fits=bool(fits(b)),
        patch={name: n for name, n in sizes._asdict().items() if n != getattr(now, name)} | dict(column.names),
    )


class CellSizes(NamedTuple):
    """What differs between cells; ``batch`` is that of a microbatch in training."""

    tp: int
    dp: int
    ep: int
    batch: int
    microbatches: int = 0  # serving has none


def _sizes(q: Question, tp: int, batch: int) -> CellSizes:
    """The plan of a cell: experts follow tp as engines tie them; in training dp gives way to tp and the global batch stays."""
    dp, ep = int(q.plan.dp), int(q.plan.ep)
    if not q.trains:
        return CellSizes(tp, dp, tp * dp if ep > 1 else ep, batch)
    total, whole = int(q.plan.tp) * dp, int(q.batch) * dp
    dp = total // tp if total % tp == 0 else dp
    each, rest = divmod(whole, batch * dp)
    if not each or rest:
        raise Refusal(f"b: a global batch of {whole:,} is no whole number of microbatches of {batch} on {dp} replicas", "batch")
    return CellSizes(tp, dp, ep, batch, each)


def _links(q: Question) -> list[Column]:
    """The cluster as it is, then other links: inside a host, or one GPU a host and the link between them."""
    cluster, batch = q.cluster, _batch(q)
    own = cluster.intra.key if cluster.is_one_domain or cluster.gpus_per_host > 1 else cluster.inter.key
    title = own if cluster.is_one_domain else f"{cluster.intra.key}, {cluster.inter.key}"
    columns = [Column(title, batch, cluster, {})]
    for link in map(catalog.link, LINKS):
        if link.key == own or (link.scope == "intra" and link.key == cluster.intra.key):
            continue
        if link.scope == "intra":
            if cluster.gpus_per_host > 1:
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
