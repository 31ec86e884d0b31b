"""Matrices of a host's GPUs: links as ``nvidia-smi topo -m`` and AMD's tools print them, and who reads whose memory (``-p2p``)."""

import re
from dataclasses import dataclass

from commtax.files import table
from commtax.launch.printed_matrix import NodeMatrix, grids
from commtax.launch.topology import Topology, topology_of
from commtax.statement import Refusal

WORDS = table("runs/machines/words.toml")
FABRICS, PEERS = WORDS["fabrics"], WORDS["peers"]
_ALLOWED = {"OK", "U", "ENABLED", *PEERS}
_LEGEND, _NVLINK = (re.compile(rf"^\s{{0,9}}{mark}\s{{1,9}}=", re.M) for mark in ("(?:X|SYS|PIX)", "NV#"))
_PATHS_ALONE = re.compile(r"topo\s{1,9}(?:-mp|--matrix_pci)\b")
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """``links`` as ``topo -m`` has them or as XGMI and PCIE; ``peers`` tells who reads whose memory. Empty where not printed."""

    links: Topology | None = None
    peers: Cells = ()
    lists_nvlink: bool = False  # the legend names NV#, or is left out: where the matrix has none, there is none
    paths_alone: bool = False  # topo -mp: whatever joins the GPUs besides, it prints PCIe

    @property
    def num_gpus(self) -> int:
        return self.links.num_gpus if self.links else len(self.peers)


def looks_like(text: str) -> bool:
    """Whether rows of such a matrix stand in a text."""
    return any(_tells(grid) for grid in grids(text))


def _tells(grid: NodeMatrix) -> bool:
    """Whether it is more than one word behind a GPU's name."""
    return any(len(row) > 1 or len(grid.nodes) == grid.num_columns == 1 for row in grid.rows.values())


def parse(text: str) -> Matrices:
    """All matrices of a text, the last of a kind."""
    found = [grid for grid in grids(text) if _tells(grid)]
    peers = [grid for grid in found if grid.marks & _ALLOWED]
    links = [grid for grid in found if not grid.marks & _ALLOWED]
    if not found:
        raise Refusal("topo: no matrix of GPU0, GPU1 … found (paste the output of nvidia-smi topo -m)", "topo")
    paths = bool(_PATHS_ALONE.search(text))
    lists = not paths and (bool(_NVLINK.search(text)) or not _LEGEND.search(text))
    return Matrices(topology_of(links[-1]) if links else None, peers[-1].square() if peers else (), lists, paths)
