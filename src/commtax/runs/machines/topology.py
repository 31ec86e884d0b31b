"""How a host's GPUs are joined: matrices of links and of peer access, and what is odd about them.

``nvidia-smi topo -m`` and AMD's tools print links, ``topo -p2p`` who reads whose memory. Reported are GPUs that are off the fast
links of the others, pairs without P2P, and cards that are far off.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from commtax.files import table
from commtax.launch.topology import MEANS, UNTOLD, NodeMatrix, Topology, describe, distance, grids, topology_of
from commtax.runs.evidence.finding import Cause, Claim, Finding, Section
from commtax.runs.machines.smi_audit import counted_gpus, named_gpus
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.units import plural

COUNT = counts(__name__)

WORDS = table("runs/machines/words.toml")
FABRICS, PEERS = WORDS["fabrics"], WORDS["peers"]
_ALLOWED = {"OK", "U", "ENABLED", *PEERS}
_LEGEND, _NVLINK = (re.compile(rf"^\s{{0,9}}{mark}\s{{1,9}}=", re.M) for mark in ("(?:X|SYS|PIX)", "NV#"))
_PATHS_ALONE = re.compile(r"topo\s{1,9}(?:-mp|--matrix_pci)\b")
Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """``links`` as ``topo -m`` has them or as XGMI and PCIE, and in ``peers`` who reads whose memory. Empty if not printed."""

    links: Topology | None = None
    peers: Cells = ()
    lists_nvlink: bool = False  # the legend names NV#, or is left out: where the matrix has none, there is none
    paths_alone: bool = False  # topo -mp: whatever joins the GPUs besides, it prints PCIe

    @property
    def num_gpus(self) -> int:
        return self.links.num_gpus if self.links else len(self.peers)


def looks_like(text: str) -> bool:
    """Return whether a text holds rows of such a matrix."""
    return any(_tells(grid) for grid in grids(text))


def _tells(grid: NodeMatrix) -> bool:
    """Return whether a grid holds more than one word behind a GPU's name."""
    return any(len(row) > 1 or len(grid.nodes) == grid.num_columns == 1 for row in grid.rows.values())


def parse(text: str) -> Matrices:
    """Read all matrices of a text, keeping the last of each kind."""
    matrices = [grid for grid in grids(text) if _tells(grid)]
    peers = [grid for grid in matrices if grid.marks & _ALLOWED]
    links = [grid for grid in matrices if not grid.marks & _ALLOWED]
    if not matrices:
        raise Refusal("topo: no matrix of GPU0, GPU1 … found (paste the output of nvidia-smi topo -m)", "topo")
    paths = bool(_PATHS_ALONE.search(text))
    lists = not paths and (bool(_NVLINK.search(text)) or not _LEGEND.search(text))
    return Matrices(topology_of(links[-1]) if links else None, peers[-1].square() if peers else (), lists, paths)


FAST = tuple(FABRICS)
FAR = ("NODE", "SYS")  # ways to a network card that cross the host's processor
LOOK = "nvidia-smi nvlink -s, dmesg for Xid, and the fabric manager; reset the GPU or reseat its bridge"
LOOK_AMD = "rocm-smi --showxgmierr and dmesg; reset the GPU"
NONE_LISTED = "the legend lists no NV#: topo -mp prints PCIe paths alone"


def audit_topology(matrices: Matrices, claim: Claim | None, name: str = "topology") -> Section:
    links, facts = matrices.links, {"gpus": str(matrices.num_gpus)}
    results: list[Finding | Cause] = [counted_gpus(matrices.num_gpus, claim)]
    notes: list[Note] = []
    if links:
        facts |= {f"pairs over {kind}": str(n) for kind, n in sorted(_kinds(links).items())}
        facts |= {"network cards": str(most)} if (most := max(map(len, links.nics), default=0)) else {}
    if links and links.num_gpus > 1:
        results += [*_off(links), *_gaps(links), *_lacking(matrices, links, claim), *_fewer(links), *_as_claimed(links, claim)]
        results += _far(links)
        kinds = _kinds(links)
        counted = len(kinds) == 1 or kinds.keys() - {*MEANS} - {k for k in kinds if k.startswith("NV")}
        pairs = ", ".join(f"{plural(n, 'pair')} over {kind}" for kind, n in kinds.most_common())
        words = f"{links.num_gpus} GPUs: {pairs}" if counted else describe(links)
        notes += [*_unlinked(matrices, links), Note("topology", words), *_rows(links)]
    results += _no_peers(matrices)
    findings = tuple(x for x in results if isinstance(x, Finding))
    causes = tuple(x for x in results if isinstance(x, Cause))
    return Section("topology", (name,), findings, tuple(notes), causes=causes, facts=facts)


def _fast(kind: str) -> bool:
    return kind.startswith(FAST)


def _kinds(links: Topology) -> Counter[str]:
    """Count the pairs that have each link, leaving out pairs without an entry."""
    pairs = (links.links[i][j] for i, j in combinations(range(links.num_gpus), 2))
    return Counter(kind for kind in pairs if kind != UNTOLD)


def _unlinked(matrices: Matrices, links: Topology) -> Iterator[Note]:
    """Note that no pair has a link made for GPUs: common, no fault in itself, and not apparent from PCIe paths alone."""
    kinds = _kinds(links)
    if not kinds or all(map(_fast, kinds)) or _alone(links):
        return
    if any(map(_fast, kinds)):
        yield Note("headline", f"{_parts(links)}; whether that is meant, --cluster tells")
        return
    ways = " and ".join(sorted(kinds, key=distance))
    amd = "PCIE" in kinds
    if matrices.paths_alone or not (amd or matrices.lists_nvlink):
        why = "topo -mp lists PCIe paths" if matrices.paths_alone else "its legend lists no NV#, as that of topo -mp"
        yield Note("headline", f"{links.num_gpus} GPUs over PCIe in this matrix ({ways}): {why}, which tells nothing of NVLink")
    else:
        none = f"no {'XGMI' if amd else 'NVLink'} between any two"
        only = f"{links.num_gpus} GPUs over PCIe only{f' ({ways})' * (not amd)}"
        yield Note("headline", f"{only}, {none}; whether that is meant, --cluster tells")


def _parts(links: Topology) -> str:
    """Describe a partly joined host: how many pairs have which link, and which GPUs reach each other over fast ones."""
    kinds, groups = _kinds(links), ["+".join(map(str, group)) for group in links.joined(FAST)]
    fast = sum(n for kind, n in kinds.items() if _fast(kind))
    rest = " and ".join(sorted((kind for kind in kinds if not _fast(kind)), key=distance))
    joined = f" ({', '.join(groups[: COUNT.named])})" if len(groups) > 1 else ""
    return f"{links.num_gpus} GPUs: {_word(links)} joins {fast} of {kinds.total()} pairs{joined}, the rest is over {rest}"


def _rows(links: Topology) -> Iterator[Note]:
    if gone := list(links.missing):
        pairs = sum(links.links[i][j] == UNTOLD for i, j in combinations(range(links.num_gpus), 2))
        untold = f"; {plural(pairs, 'pair')} of them untold" if pairs else ""
        yield Note("rows", f"rows missing: {named_gpus(gone)}, whose links the other rows tell{untold}")


def _alone(links: Topology) -> list[int]:
    """List GPUs without any fast link, where most others have one."""
    off = [i for i, row in enumerate(links.links) if not any(map(_fast, row))]
    return off if 0 < len(off) < links.num_gpus - len(off) else []


def _word(links: Topology) -> str:
    marks = {kind for row in links.links for kind in row}
    return next((word for mark, word in FABRICS.items() if any(kind.startswith(mark) for kind in marks)), "NVLink")


def _off(links: Topology) -> Iterator[Finding | Cause]:
    """Report the GPUs that lack the links that the others have."""
    if off := _alone(links):
        yield Finding(Note("off", f"GPUs off {_word(links)}"), 0, len(off), reason=named_gpus(off)).judged()
    rest = [i for i in range(links.num_gpus) if i not in off]
    for gpu in off:
        row = links.links[gpu]
        way = max((kind for at, kind in enumerate(row) if at != gpu and kind != UNTOLD), key=distance, default=UNTOLD)
        text = f"GPU {gpu} has no {_word(links)}, which {len(rest)} others have: it reaches them over {way}"
        text += f" ({MEANS[way]})" if way in MEANS else ""
        look, shown = (LOOK_AMD, "HIP") if _word(links) == "XGMI" else (LOOK, "CUDA")
        yield Cause("off", text, change=f"{look}; until then {shown}_VISIBLE_DEVICES={','.join(map(str, rest))}")


def _gaps(links: Topology) -> Iterator[Finding]:
    """Report pairs without fast links where every GPU has some: separate groups or a mesh, by design."""
    pairs = [(i, j) for i, j in combinations(range(links.num_gpus), 2) if links.links[i][j] != UNTOLD]
    gaps = [(i, j) for i, j in pairs if not _fast(links.links[i][j])]
    if _alone(links) or not 0 < len(gaps) < len(pairs):
        return
    way, groups = max((links.links[i][j] for i, j in gaps), key=distance), links.joined(FAST)
    shown = _shown(["+".join(map(str, group)) for group in (groups if len(groups) > 1 else gaps)])
    joined = f"{_word(links)} joins {shown}, each by itself" if len(groups) > 1 else f"{shown} of {plural(len(pairs), 'pair')}"
    why = f"{joined}: {'groups' if len(groups) > 1 else 'they'} meet over {way}; tensor parallelism belongs inside what is joined"
    yield Finding(Note("gaps", f"pairs without {_word(links)}"), None, len(gaps), reason=why)


def _shown(parts: list[str]) -> str:
    return ", ".join(parts[: COUNT.named]) + (" …" if len(parts) > COUNT.named else "")


def _lacking(matrices: Matrices, links: Topology, claim: Claim | None) -> Iterator[Finding]:
    """Report that no pair has NVLink where the claimed chip has it."""
    link = claim.question.cluster.intra if claim else None
    if link is None or link.kind != "nvlink" or any(_fast(kind) for row in links.links for kind in row):
        return
    item = Note("off", "GPUs off NVLink")
    finding = Finding(item, 0, links.num_gpus, reason=f"{link.name} was said, and no pair has it").judged()
    yield finding if matrices.lists_nvlink else finding.undecided(NONE_LISTED)


def _fewer(links: Topology) -> Iterator[Finding | Cause]:
    """Report GPUs with fewer NVLinks than the others, where every pair has some and there are at least three GPUs."""
    kinds = _kinds(links)
    if kinds.total() < 3 or not all(kind.startswith("NV") for kind in kinds):
        return
    widths = [max((int(kind[2:]) for kind in row if kind.startswith("NV")), default=0) for row in links.links]
    if few := [i for i, width in enumerate(widths) if width < max(widths)]:
        why = f"{named_gpus(few)}: the others have {max(widths)}"
        yield Finding(Note("fewer", "GPUs with fewer NVLinks than the others"), 0, len(few), reason=why).judged()
    for gpu in few:
        text = f"GPU {gpu} has {plural(widths[gpu], 'NVLink')} to each other GPU, the others have {max(widths)}"
        yield Cause("fewer", text, change=LOOK)


def _as_claimed(links: Topology, claim: Claim | None) -> Iterator[Finding]:
    """Compare the NVLinks of a GPU through a switch with those of the claimed chip."""
    link = claim.question.cluster.intra if claim else None
    most = max((int(kind[2:]) for kind in _kinds(links) if kind.startswith("NV")), default=0)
    if link and most and link.switched and link.num_links:
        why = f"{link.name} has {link.num_links}: another chip, or links that are down"
        yield Finding(Note("links", "NVLinks of a GPU"), link.num_links, most, reason=why).judged()


def _far(links: Topology) -> Iterator[Cause]:
    """Yield GPUs whose nearest network card is beyond the processor, where others have one on their PCIe switch."""
    nearest = {i: min(row, key=distance) for i, row in enumerate(links.nics) if row}
    far = [i for i, kind in nearest.items() if kind in FAR]
    if far and 2 * len(far) < len(nearest):
        text = f"{named_gpus(far)}: the nearest network card is beyond {MEANS[nearest[far[0]]]} ({nearest[far[0]]})"
        yield Cause("far-nic", text, change=WORDS["changes"]["far-nic"])


def _no_peers(matrices: Matrices) -> Iterator[Finding | Cause]:
    """Report the pairs that cannot read each other's memory."""
    pairs = list(combinations(range(len(matrices.peers)), 2))
    if not (apart := [(i, j) for i, j in pairs if matrices.peers[i][j] in PEERS]):
        return
    kinds = Counter(matrices.peers[i][j] for i, j in apart)
    why = "; ".join(f"{kind}: {PEERS[kind]}" for kind, _ in kinds.most_common())
    yield Finding("pairs without P2P", 0, len(apart), reason=why).judged()
    text = f"{len(apart)} of {plural(len(pairs), 'pair')} cannot read each other's memory"
    shown = _shown([f"{i}+{j}" for i, j in apart])
    yield Cause("no-p2p", f"{text} ({shown}; {why})", change=WORDS["changes"]["no-p2p"])
