"""Square tables of a host's GPUs, whoever printed them: the names above, rows of marks, and what of them is missing.

``nvidia-smi topo`` names GPUs and network cards, ``rocm-smi --showtopo`` GPUs, ``amd-smi topology`` bus addresses and ``npu-smi``
NPUs. A table may lack its head, rows, or the end of one; what one row does not tell of a pair, the other's does.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

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
        """Marks between nodes, each pair by either's row."""

        def told(i: int, j: int) -> str:
            row = self.rows.get(i, ())
            return row[j] if j < len(row) else ""

        every = range(len(self.nodes))
        return tuple(tuple(SELF if i == j else told(i, j) or told(j, i) or UNTOLD for j in every) for i in every)

    def beyond(self) -> tuple[tuple[str, ...], ...]:
        """Marks of each node towards network cards; none where its row is not whole."""
        rows = (self.rows.get(i, ()) for i in range(len(self.nodes)))
        return tuple(row[len(self.nodes) : self.num_columns] if len(row) >= self.num_columns else () for row in rows)


def grids(text: str) -> Iterator[NodeMatrix]:
    """All tables of a text in which marks stand; those of numbers (weights, hops, bandwidths) are none."""
    columns: list[str] = []
    rows: dict[str, tuple[str, ...]] = {}
    for raw in lines_with(SAYS.begins, text, COUNT.line_chars):
        line = SAYS.codes.sub("", raw)
        first = SAYS.first.match(line)
        if SAYS.head.match(line):
            yield from _finished_matrices(columns, rows)
            columns, rows = SAYS.column.findall(SAYS.tail.split(line)[0])[: COUNT.most_nodes], {}
        elif first and (cells := _cells(line[first.end() :])):
            if first[1] in rows:
                yield from _finished_matrices(columns, rows)
                rows = {}
            rows[first[1]] = cells
    yield from _finished_matrices(columns, rows)


def _cells(text: str) -> tuple[str, ...]:
    """The marks of a row up to what is none, as one wording has them."""
    found, at = list[str](), 0
    while (cell := SAYS.cell.match(text.upper(), at)) and len(found) < COUNT.most_nodes:
        found.append(_ALIKE.get(cell[1], cell[1]))
        at = cell.end()
    return tuple(found)


def _finished_matrices(columns: list[str], rows: Mapping[str, tuple[str, ...]]) -> Iterator[NodeMatrix]:
    nodes = list(takewhile(lambda name: re.fullmatch(_NODE, name), columns)) or _nodes(rows)
    numbers = {name: i for i, name in enumerate(nodes)}
    kept = {numbers[name]: row for name, row in rows.items() if name in numbers}
    whole = {i: row if len(row) >= len(nodes) else row[:-1] for i, row in kept.items()}  # the last mark of a cut row may be half
    grid = NodeMatrix(tuple(nodes), whole, len(columns) or max(map(len, whole.values()), default=0))
    if grid.marks or (len(nodes) == 1 and any(whole.values())):
        yield grid


def _nodes(rows: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The nodes of a table without its head: as far as rows are numbered, or as columns are joined as no card is."""
    numbers = [int(found[0]) for name in rows if (found := re.search(r"\d+", name)) and ":" not in name]
    marks = ((i, mark) for row in rows.values() for i, mark in enumerate(row))
    joined = [i for i, mark in marks if mark == SELF or mark.startswith(("NV", "XG", "HC"))]
    many = max((*numbers, *joined), default=-1) + 1 if numbers else 0
    kind = re.match(r"[A-Z]*", next(iter(rows), ""))
    return [f"{kind[0] if kind else 'GPU'}{i}" for i in range(min(many, COUNT.most_nodes))]
