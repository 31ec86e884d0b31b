"""``nvidia-smi topo -m``: which GPUs are joined by what, which to take together, and the link that a plan's groups then have.

Square tables have the names above and rows of marks. One may lack its head, rows, or the end of one; what one row does not say of a
pair, the other's does. Legend: https://docs.nvidia.com/multi-node-nvlink-systems and ``nvidia-smi topo -h``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from math import comb

from commtax import catalog
from commtax.catalog.loader import find
from commtax.files import table
from commtax.spec import Chip, Cluster, Link
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.wordings import lines_with, patterns

COUNT = counts(__name__)
SELF, UNTOLD = "X", "?"
_NODE = r"(?:GPU|NPU|DCU|HCU)(?:\[\d{1,4}\]|\d{1,4})|[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d"
SAYS = patterns(__name__)
_ALIKE = {"SOC": "SYS", "SELF": SELF, "0": SELF, "PSB": "PIX"}  # of other versions and tools


@dataclass(frozen=True, slots=True)
class NodeMatrix:
    """``rows`` by the number of a node: its marks towards all nodes, then towards network cards."""

    nodes: tuple[str, ...]
    rows: Mapping[int, tuple[str, ...]]
    num_columns: int

    @property
    def missing(self) -> tuple[int, ...]:
        """Nodes whose row is not there, or is cut off."""
        return tuple(i for i in range(len(self.nodes)) if len(self.rows.get(i, ())) < len(self.nodes))

    @property
    def marks(self) -> set[str]:
        return {mark for row in self.rows.values() for mark in row[: len(self.nodes)]} - {SELF}

    def square(self) -> tuple[tuple[str, ...], ...]:
        """Return the marks between nodes, each pair by either's row."""
        every = range(len(self.nodes))
        marks = {(i, j): mark for i, row in self.rows.items() for j, mark in enumerate(row)}
        return tuple(tuple(SELF if i == j else marks.get((i, j)) or marks.get((j, i)) or UNTOLD for j in every) for i in every)


def grids(text: str) -> Iterator[NodeMatrix]:
    """Yield all tables of marks in a text. Tables of numbers (weights, hops, bandwidths) are left out."""
    columns: list[str] = []
    rows: dict[str, tuple[str, ...]] = {}
    for raw in lines_with(SAYS.begins, text, COUNT.line_chars):
        line = SAYS.codes.sub("", raw)
        first = SAYS.first.match(line)
        if SAYS.head.match(line):
            yield from _finished_matrices(columns, rows)
            columns, rows = SAYS.column.findall(SAYS.tail.split(line)[0])[: COUNT.most_nodes], {}
        elif first:
            marks, text, at = list[str](), line[first.end() :].upper(), 0
            while (cell := SAYS.cell.match(text, at)) and len(marks) < COUNT.most_nodes:
                marks.append(_ALIKE.get(cell[1], cell[1]))
                at = cell.end()
            if marks and first[1] in rows:
                yield from _finished_matrices(columns, rows)
                rows = {}
            rows |= {first[1]: tuple(marks)} if marks else {}
    yield from _finished_matrices(columns, rows)


def _finished_matrices(columns: list[str], rows: Mapping[str, tuple[str, ...]]) -> Iterator[NodeMatrix]:
    nodes = list(takewhile(lambda name: re.fullmatch(_NODE, name), columns)) or _nodes(rows)
    numbers = {name: i for i, name in enumerate(nodes)}
    kept = {numbers[name]: row for name, row in rows.items() if name in numbers}
    whole = {i: row if len(row) >= len(nodes) else row[:-1] for i, row in kept.items()}  # the last mark of a cut row may be half
    grid = NodeMatrix(tuple(nodes), whole, len(columns) or max(map(len, whole.values()), default=0))
    if grid.marks or (len(nodes) == 1 and any(whole.values())):
        yield grid


def _nodes(rows: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Name the nodes of a table without its head: as many as rows are numbered, or as columns are joined as no card is."""
    numbers = [int(match[0]) for name in rows if (match := re.search(r"\d+", name)) and ":" not in name]
    marks = ((i, mark) for row in rows.values() for i, mark in enumerate(row))
    joined = [i for i, mark in marks if mark == SELF or mark.startswith(("NV", "XG", "HC"))]
    many = max((*numbers, *joined), default=-1) + 1 if numbers else 0
    kind = re.match(r"[A-Z]*", next(iter(rows), ""))
    return [f"{kind[0] if kind else 'GPU'}{i}" for i in range(min(many, COUNT.most_nodes))]


MEANS: Mapping[str, str] = table("launch/topology.toml")["links"]
KINDS = tuple(MEANS)
Groups = tuple[tuple[int, ...], ...]
_PCIE = {"volta": "pcie3", "turing": "pcie3", "hopper": "pcie5", "blackwell": "pcie5"}  # others: pcie4


@dataclass(frozen=True, slots=True)
class Topology:
    """``links[i][j]`` joins GPU i and j (X on the diagonal), ``nics[i]`` GPU i and each network card."""

    links: tuple[tuple[str, ...], ...]
    nics: tuple[tuple[str, ...], ...] = ()
    missing: tuple[int, ...] = ()  # GPUs whose own row was not printed: pairs of two of them are unknown

    @property
    def num_gpus(self) -> int:
        return len(self.links)

    def joined(self, marks: tuple[str, ...] = ("NV",)) -> list[tuple[int, ...]]:
        """Group the GPUs that reach each other over NVLink or other marks, directly or through others. A group may be one GPU."""
        left, groups = set(range(self.num_gpus)), []
        while left:
            group, edge = set[int](), {min(left)}
            while edge:
                group |= edge
                edge = {j for i in edge for j in left - group if self.links[i][j].startswith(marks)}
            groups.append(tuple(sorted(group)))
            left -= group
        return groups

    def worst(self, group: Iterable[int]) -> str:
        """Return the farthest kind between any two GPUs of a group, "" for one GPU."""
        return max((self.links[i][j] for i, j in combinations(sorted(group), 2)), key=distance, default="")

    def best(self, size: int, among: Iterable[int] | None = None) -> tuple[int, ...]:
        """Return the group whose farthest pair is nearest, then whose pairs are nearest together. The first of equals is taken."""
        here = tuple(range(self.num_gpus) if among is None else sorted(among))
        if not 1 <= size <= len(here):
            raise Refusal(f"topo: {size} GPUs are wanted, and the matrix has {len(here)}", "topo")
        if comb(len(here), size) > COUNT.max_choices:
            return here[:size]
        far = {group: [distance(self.links[i][j]) for i, j in combinations(group, 2)] for group in combinations(here, size)}
        return min(far, key=lambda group: (max(far[group], default=0.0), sum(far[group])))

    def groups(self, size: int, count: int) -> list[tuple[int, ...]]:
        """Return ``count`` disjoint groups, the best remaining one each time."""
        chosen: list[tuple[int, ...]] = []
        for _ in range(count):
            chosen.append(self.best(size, set(range(self.num_gpus)) - {gpu for group in chosen for gpu in group}))
        return chosen


def distance(kind: str) -> float:
    """Order of kinds: more bonded NVLinks are nearer than fewer, and any nearer than PCIe.

    >>> sorted(["SYS", "NV2", "PIX", "NV12"], key=distance)
    ['NV12', 'NV2', 'PIX', 'SYS']
    """
    if kind.startswith("NV"):
        return 1 / (1 + int(kind[2:] or 1))
    return 1.0 + KINDS.index(kind) if kind in KINDS else 0.0


def parse(text: str) -> Topology:
    """Read the matrix out of the command's output, or out of a report that contains it. A plan needs all of it."""
    tables = [grid for grid in grids(text) if not grid.marks - set(KINDS) - {m for m in grid.marks if m.startswith("NV")}]
    whole = [grid for grid in tables if not grid.missing]
    if not whole:
        lacks = f"the rows of {', '.join(tables[-1].nodes[i] for i in tables[-1].missing[:8])} are missing" if tables else ""
        raise Refusal(f"topo: {lacks or 'no matrix of GPU0, GPU1 … found'} (paste the output of nvidia-smi topo -m)", "topo")
    return topology_of(whole[-1])


def topology_of(grid: NodeMatrix) -> Topology:
    """Return a table as links. Rows that contradict each other are refused."""
    links = grid.square()
    for i, j in combinations(range(len(links)), 2):
        if len({row[at] for row, at in ((grid.rows.get(i, ()), j), (grid.rows.get(j, ()), i)) if at < len(row)}) > 1:
            raise Refusal(f"topo: {grid.nodes[i]} to {grid.nodes[j]} is {links[i][j]}, and back {links[j][i]}", "topo")
    rows = (grid.rows.get(i, ()) for i in range(len(links)))  # towards network cards: none where a row is cut off
    nics = tuple(row[len(links) : grid.num_columns] if len(row) >= grid.num_columns else () for row in rows)
    return Topology(links, nics, grid.missing)


def describe(matrix: Topology) -> str:
    """Describe GPUs and their links, such as ``4 GPUs: NVLink joins 0+2, 1+3``, and what the rest goes over."""
    joined = ["+".join(map(str, g)) for g in matrix.joined() if len(g) > 1]
    rest = sorted({kind for row in matrix.links for kind in row if kind in KINDS}, key=distance)
    sentences = [f"NVLink joins {', '.join(joined)}"] if joined else ["no NVLink in the matrix"]
    sentences += [f"{'the rest' if joined else 'GPUs'} over {' and '.join(rest)}"] if rest else []
    return f"{matrix.num_gpus} GPUs: {'; '.join(sentences)}"


@dataclass(frozen=True, slots=True)
class PlacedCluster:
    """The cluster as a plan meets it, the groups of GPUs, and why."""

    cluster: Cluster
    groups: Groups
    notes: tuple[Note, ...]

    @property
    def devices(self) -> str:
        """What CUDA_VISIBLE_DEVICES should say, groups in the order of ranks."""
        return ",".join(str(i) for group in self.groups for i in group)


def nvlink_of(chip: Chip) -> Link:
    """Return the NVLink that joins two such chips: their switched fabric, or the bridge of their generation."""
    link = catalog.link(chip.intra)
    if link.kind == "nvlink":
        return link
    if bridge := next(filter(None, (find("links", f"nvlink-bridge-{part}") for part in chip.key.split("-"))), ""):
        return catalog.link(bridge)
    raise Refusal(f"topo: the matrix shows NVLink, and {chip.key} has none; does --cluster name the right chip?", "topo")


def pcie_of(chip: Chip) -> Link:
    """PCIe x16 of the chip's generation."""
    link = catalog.link(chip.intra)
    return link if link.kind == "pcie" else catalog.link(_PCIE.get(chip.family, "pcie4"))


def place(matrix: Topology, cluster: Cluster, tp: int, replicas: int = 1) -> PlacedCluster:
    """Lay ``replicas`` groups of ``tp`` ranks over the best GPUs of each host, all priced on the link of the farthest pair of any.

    A ring is as fast as its slowest hop. What the matrix cannot show (x8 slots, P2P switched off) is not in the price.
    """
    if matrix.num_gpus != cluster.gpus_per_host:
        differ = f"the matrix has {matrix.num_gpus} GPUs, and hosts of {cluster.key} have {cluster.gpus_per_host}"
        raise Refusal(f"topo: {differ}; write --cluster {matrix.num_gpus}x{cluster.chip.key}", "topo")
    size = min(tp, matrix.num_gpus)
    groups = tuple(matrix.groups(size, min(replicas, matrix.num_gpus // size)))
    topology = Note("topology", f"topology: {describe(matrix)}")
    usual, slow = catalog.link(cluster.chip.intra), pcie_of(cluster.chip)
    if tp == 1:
        return PlacedCluster(cluster, groups, (topology,))
    if usual.kind == "nvlink" and usual.switched and max(map(len, matrix.joined())) == 1:
        lacks = f"{cluster.chip.key} has {usual.key}, and the matrix shows none: topo -mp lists PCIe paths only"
        hint = f"so {usual.key} is taken (if this was topo -m, NVLink is down: --intra {slow.key})"
        return PlacedCluster(cluster, groups, (topology, Note("no NVLink", f"{lacks}, {hint}")))
    worst = max((matrix.worst(g) for g in groups), key=distance)
    notes = [topology, _advice(matrix, groups, worst)]
    if not worst.startswith("NV"):
        notes += _slow(matrix, size, worst, slow)
        return PlacedCluster(replace(cluster, intra=slow, nvlink_domain=1, bridge=None), groups, tuple(notes))
    link, more = _link_with_fewest(matrix, groups, nvlink_of(cluster.chip))
    domain = cluster.gpus_per_host if link.switched else size
    return PlacedCluster(replace(cluster, intra=link, nvlink_domain=domain, bridge=None), groups, (*notes, *more))


def _link_with_fewest(matrix: Topology, groups: Groups, link: Link) -> tuple[Link, list[Note]]:
    """Return the link of the GPU with the fewest NVLinks within its group, with a note where it has more elsewhere."""

    def count(gpu: int, group: tuple[int, ...]) -> int:
        """Count direct links to several peers together. Through a switch every peer shows all: more together than there are."""
        peers = [int(matrix.links[gpu][other][2:] or 1) for other in group if other != gpu]
        return sum(peers) if sum(peers) <= link.num_links else min(link.num_links, max(peers))

    least = min(count(gpu, group) for group in groups for gpu in group)
    if least == link.num_links:
        return link, []
    part = catalog.link(f"{link.key}@{least}")
    return part, [Note("bonded", f"{least} NVLinks per GPU in these groups: priced as {part.key}, assumed")]


def _advice(matrix: Topology, groups: Groups, worst: str) -> Note:
    """Return which GPUs to show to the engine, and what the plain order would have done."""
    named, size = ", ".join("+".join(map(str, g)) for g in groups), len(groups[0])
    flat = [i for g in groups for i in g]
    if flat == list(range(len(flat))):
        return Note("order", f"TP {size} on GPUs {named}: the usual order is already the best (farthest hop {worst})")
    plain = [range(i * size, (i + 1) * size) for i in range(len(groups))]
    usual = max((matrix.worst(g) for g in plain), key=distance)
    devices = ",".join(map(str, flat))
    hops = f"farthest hop {worst}; in the usual order {usual}"
    return Note("order", f"CUDA_VISIBLE_DEVICES={devices}: TP {size} on GPUs {named} ({hops})")


def _slow(matrix: Topology, size: int, worst: str, link: Link) -> Iterator[Note]:
    crossed = f"the farthest hop of TP {size} crosses {MEANS[worst]} ({worst})"
    yield Note("farthest hop", f"{crossed}: priced as {link.key}, assumed")
    widest = max(len(g) for g in matrix.joined())
    if 1 < widest < size:
        keep = f"NVLink joins {widest} GPUs: {size // widest} replicas of TP {widest} keep their all-reduce on it"
        yield Note("narrower", f"{keep} (commtax compare … --plans tp{size},tp{widest}dp{size // widest} --topo …)")
