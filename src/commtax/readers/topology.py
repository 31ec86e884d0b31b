"""``nvidia-smi topo -m``: which GPUs are joined by what, and which of them to take together.

Kinds from near to far: NV# (bonded NVLinks), PIX (one PCIe switch), PXB (several), PHB (through the CPU's host bridge), NODE
(between host bridges of one socket), SYS (between sockets). Legend: https://docs.nvidia.com/multi-node-nvlink-systems and
``nvidia-smi topo -h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

from commtax.statement import Refusal

KINDS = ("PIX", "PXB", "PHB", "NODE", "SYS")
MEANS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's host bridge",
    "NODE": "host bridges of one socket",
    "SYS": "the link between sockets",
}
MAX_CHOICES = 50_000


@dataclass(frozen=True, slots=True)
class Topology:
    """``links[i][j]`` joins GPU i and j (X on the diagonal)."""

    links: tuple[tuple[str, ...], ...]

    @property
    def num_gpus(self) -> int:
        return len(self.links)

    @property
    def shows_nvlink(self) -> bool:
        return any(kind.startswith("NV") for row in self.links for kind in row)

    def nvlink_groups(self) -> list[tuple[int, ...]]:
        """GPUs that reach each other over NVLink, directly or through others; single GPUs are groups of one."""
        left, groups = set(range(self.num_gpus)), []
        while left:
            group, edge = set(), {min(left)}
            while edge:
                group |= edge
                edge = {j for i in edge for j in left - group if self.links[i][j].startswith("NV")}
            groups.append(tuple(sorted(group)))
            left -= group
        return groups

    def worst(self, group: Iterable[int]) -> str:
        """The farthest kind between any two GPUs of a group; "" for one GPU."""
        return max((self.links[i][j] for i, j in combinations(sorted(group), 2)), key=distance, default="")

    def best(self, size: int, among: Iterable[int] | None = None) -> tuple[int, ...]:
        """The group whose farthest pair is nearest, then whose pairs are nearest together; the first of equals."""
        here = tuple(range(self.num_gpus) if among is None else sorted(among))
        if not 1 <= size <= len(here):
            raise Refusal(f"topo: {size} GPUs are wanted, and the matrix has {len(here)}", "topo")
        if comb(len(here), size) > MAX_CHOICES:
            return here[:size]
        return min(combinations(here, size), key=self._far)

    def _far(self, group: tuple[int, ...]) -> tuple[float, float]:
        far = [distance(self.links[i][j]) for i, j in combinations(group, 2)]
        return max(far, default=0.0), sum(far)

    def groups(self, size: int, count: int) -> list[tuple[int, ...]]:
        """``count`` disjoint groups, the best one first each time."""
        left, found = set(range(self.num_gpus)), []
        for _ in range(count):
            found.append(self.best(size, left))
            left -= set(found[-1])
        return found


def distance(kind: str) -> float:
    """Order of kinds: more bonded NVLinks are nearer than fewer, and any nearer than PCIe.

    >>> sorted(["SYS", "NV2", "PIX", "NV12"], key=distance)
    ['NV12', 'NV2', 'PIX', 'SYS']
    """
    if kind.startswith("NV"):
        return 1 / (1 + int(kind[2:] or 1))
    return 1.0 + KINDS.index(kind) if kind in KINDS else 0.0


def parse(text: str) -> Topology:
    """Read the matrix out of the command's output, or out of a report that contains it."""
    lines = [re.sub(r"\x1b?\[[0-9;]*m", "", line) for line in text.splitlines()]
    rows: dict[str, list[str]] = {}
    columns: list[str] = []
    known: set[str] = set()
    for line in lines:
        words = line.split()
        if not columns and words[:2] and re.match(r"\s*GPU0\s+(GPU1|NIC\d|mlx|CPU)", line):
            columns = re.findall(r"GPU\d{1,4}|NIC\d{1,4}|mlx\d{1,4}_\w+", line)  # headers may touch each other: NIC7NIC8
            known = set(columns)
        elif columns and words and words[0] in known:
            rows[words[0]] = _cells("".join(line.split(words[0], 1)[1:]))
    gpus = [name for name in columns if name.startswith("GPU")]
    if not gpus or any(len(rows.get(name, [])) < len(gpus) for name in gpus):
        raise Refusal("topo: no matrix of GPU0, GPU1 … found (paste the output of nvidia-smi topo -m)", "topo")
    links = tuple(tuple(rows[name][: len(gpus)]) for name in gpus)
    for i, j in combinations(range(len(gpus)), 2):
        if links[i][j] != links[j][i]:
            raise Refusal(f"topo: GPU{i} to GPU{j} is {links[i][j]}, and back {links[j][i]}", "topo")
    return Topology(links)


def _cells(text: str) -> list[str]:
    """Kinds in a row; cells may touch each other like headers do (SYSSYS)."""
    return re.findall(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|\bX\b", text)


def describe(found: Topology) -> str:
    """The GPUs in words: ``4 GPUs: NVLink joins 0+2, 1+3; the rest over SYS``."""
    joined = ["+".join(map(str, g)) for g in found.nvlink_groups() if len(g) > 1]
    rest = sorted({kind for row in found.links for kind in row if kind in KINDS}, key=distance)
    words = [f"NVLink joins {', '.join(joined)}"] if joined else ["no NVLink in the matrix"]
    words += [f"{'the rest' if joined else 'GPUs'} over {' and '.join(rest)}"] if rest else []
    return f"{found.num_gpus} GPUs: {'; '.join(words)}"


def in_order(groups: Iterable[tuple[int, ...]]) -> bool:
    """Whether ranks 0, 1, 2 … fall into the groups without being told."""
    flat = [i for g in groups for i in g]
    return all(b == a + 1 for a, b in pairwise([-1, *flat]))
