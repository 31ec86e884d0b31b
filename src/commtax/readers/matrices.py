"""Matrices of a host's GPUs: ``nvidia-smi topo -m`` and ``topo -p2p``, and the link types of ``rocm-smi --showtopo``."""

import re
from dataclasses import dataclass

from commtax.readers import topology
from commtax.readers.short_lines import lines_with
from commtax.readers.topology import Topology
from commtax.statement import Refusal

LINE_CHARS = 4096
MOST_GPUS = 256
FABRIC = "XGMI"
PEERS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPUs do not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "the driver has it disabled",
}
"""Why two GPUs do not read each other's memory, by the mark of ``topo -p2p``."""
_ROW = re.compile(r"^[ \t]{0,40}GPU(\d{1,3})[ \t]{1,40}([^\n]{0,4000})$", re.M)
_CELL = re.compile(r"X|OK|U|NS|CNS|GNS|TNS|DR|XGMI|PCIE|0")
_LINKS = re.compile(r"(?:\x1b?\[[0-9;]{1,9}m)?(?:NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|X)\b")
_LEGEND, _NVLINK = (re.compile(rf"^\s{{0,9}}{mark}\s{{1,9}}=", re.M) for mark in ("(?:X|SYS|PIX)", "NV#"))
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """``links`` as ``topo -m`` has them or as XGMI and PCIE; ``peers`` tells who reads whose memory. Empty where not printed."""

    links: Topology | None = None
    peers: Cells = ()
    lists_nvlink: bool = False  # the legend names NV#, or is left out: where the matrix has none, there is none

    @property
    def num_gpus(self) -> int:
        return self.links.num_gpus if self.links else len(self.peers)


def looks_like(text: str) -> bool:
    """Whether a GPU's row of such a matrix stands in a text."""
    if "GPU0" not in text:
        return False
    return any(_LINKS.match(row[2]) or _square_row(row) for row in map(_ROW.match, lines_with(_ROW, text, LINE_CHARS)) if row)


def parse(text: str) -> Matrices:
    """All matrices of a text, the last of a kind."""
    peers, fabric = _squares(text)
    links: Topology | None
    try:
        links = topology.parse(text)
    except Refusal:
        if not peers and not fabric:
            raise
        links = Topology(fabric) if fabric else None
    return Matrices(links, peers, bool(_NVLINK.search(text)) or not _LEGEND.search(text))


def _square_row(row: re.Match[str]) -> list[str]:
    """The cells of a row of marks; none where it holds anything else, or only the numbers of weights and hops."""
    cells = [word.upper() for word in row[2].split()[:MOST_GPUS]]
    return cells if all(map(_CELL.fullmatch, cells)) and any(cell not in ("0", "X") for cell in cells) else []


def _squares(text: str) -> tuple[Cells, Cells]:
    """Who reads whose memory, and AMD's link types: rows that follow each other from GPU0 on, as many as each has cells."""
    peers, fabric = Cells(), Cells()
    rows: list[list[str]] = []
    for row in map(_ROW.match, lines_with(_ROW, text, LINE_CHARS)):
        cells = _square_row(row) if row else []
        if not row or not cells or int(row[1]) != len(rows):
            rows = [] if not row or int(row[1]) else [cells] if cells else []
        else:
            rows.append(cells)
        if rows and len(rows) == len(rows[0]) and {len(r) for r in rows} == {len(rows)}:
            done = tuple(tuple("X" if cell == "0" else cell for cell in r) for r in rows)
            marks = {cell for r in done for cell in r}
            peers, fabric = (peers, done) if marks & {FABRIC, "PCIE"} else (done, fabric)
    return peers, fabric
