"""A host's matrix of links and a plan -> the link that its tensor-parallel groups really have, and which GPUs to take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commtax import catalog
from commtax.readers.topology import MEANS, Topology, describe, distance, in_order
from commtax.spec import Chip, Cluster, Link
from commtax.statement import Refusal

_PCIE = {"volta": "pcie3", "turing": "pcie3", "hopper": "pcie5", "blackwell": "pcie5"}  # others: pcie4


@dataclass(frozen=True, slots=True)
class Placed:
    """The cluster as a plan meets it, the groups of GPUs, and why."""

    cluster: Cluster
    groups: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]

    @property
    def devices(self) -> str:
        """What CUDA_VISIBLE_DEVICES should say, groups in the order of ranks."""
        return ",".join(str(i) for group in self.groups for i in group)


def nvlink_of(chip: Chip) -> Link:
    """The NVLink that joins two such chips: their switched fabric, or the bridge of their generation."""
    own = catalog.link(chip.intra)
    if own.kind == "nvlink":
        return own
    for part in chip.key.split("-"):
        try:
            return catalog.link(f"nvlink-bridge-{part}")
        except ValueError:
            continue
    raise Refusal(f"topo: the matrix shows NVLink, and {chip.key} has none; does --cluster name the right chip?", "topo")


def pcie_of(chip: Chip) -> Link:
    """PCIe x16 of the chip's generation."""
    own = catalog.link(chip.intra)
    return own if own.kind == "pcie" else catalog.link(_PCIE.get(chip.family, "pcie4"))


def place(found: Topology, cluster: Cluster, tp: int, replicas: int = 1) -> Placed:
    """Lay ``replicas`` groups of ``tp`` ranks over the best GPUs of each host.

    One inside link is priced for the whole plan: that of the farthest pair of any group, since a ring is as fast as its
    slowest hop. What the matrix cannot show (x8 slots, P2P switched off) is not in the price.
    """
    if found.num_gpus != cluster.gpus_per_host:
        raise Refusal(
            f"topo: the matrix has {found.num_gpus} GPUs, and hosts of {cluster.key} have {cluster.gpus_per_host}; "
            f"write --cluster {found.num_gpus}x{cluster.chip.key}",
            "topo",
        )
    size = min(tp, found.num_gpus)
    groups = tuple(found.groups(size, min(replicas, found.num_gpus // size)))
    worst = max((found.worst(g) for g in groups), key=distance)
    notes = [f"topology: {describe(found)}"]
    own = catalog.link(cluster.chip.intra)
    if tp == 1:
        return Placed(cluster, groups, tuple(notes))
    if own.kind == "nvlink" and own.switched and not found.shows_nvlink:
        told = f"{cluster.chip.key} has {own.key}, and the matrix shows none: topo -mp lists PCIe paths only, so {own.key} is taken"
        down = f"(if this was topo -m, NVLink is down: --intra {pcie_of(cluster.chip).key})"
        return Placed(cluster, groups, (*notes, f"{told} {down}"))
    fast = worst.startswith("NV")
    link = _bonded(found, groups, nvlink_of(cluster.chip)) if fast else pcie_of(cluster.chip)
    notes += [*_advice(found, groups, worst), *([] if fast else _slow(found, groups, worst, link))]
    if fast and link.num_links < nvlink_of(cluster.chip).num_links:
        notes.append(f"{link.num_links} NVLinks a GPU in these groups: priced as {link.key}, assumed")
    domain = size if fast and not link.switched else cluster.gpus_per_host if fast else 1
    return Placed(replace(cluster, intra=link, nvlink_domain=domain, bridge=None), groups, tuple(notes))


def _bonded(found: Topology, groups: tuple[tuple[int, ...], ...], link: Link) -> Link:
    """The link with as many NVLinks as the GPU with the fewest has within its group.

    Direct links to several peers add up, as far as a GPU has links. Through a switch every peer shows all of them: more
    together than there are.
    """
    counts = []
    for group in groups:
        for i in group:
            peers = [int(found.links[i][j][2:] or 1) for j in group if j != i]
            counts.append(sum(peers) if sum(peers) <= link.num_links else min(link.num_links, max(peers)))
    least = min(counts)
    return link if least == link.num_links else catalog.link(f"{link.key}@{least}")


def _advice(found: Topology, groups: tuple[tuple[int, ...], ...], worst: str) -> list[str]:
    """Which GPUs to show to the engine, and what the plain order would have done."""
    devices = ",".join(str(i) for g in groups for i in g)
    named = ", ".join("+".join(map(str, g)) for g in groups)
    size = len(groups[0])
    plain = [tuple(range(i * size, (i + 1) * size)) for i in range(len(groups))]
    usual = max((found.worst(g) for g in plain), key=lambda kind: (not kind.startswith("NV"), MEANS.get(kind, "") != "", kind))
    if in_order(list(groups)):
        return [f"TP {size} on GPUs {named}: the usual order is already the best (farthest hop {worst})"]
    return [f"CUDA_VISIBLE_DEVICES={devices}: TP {size} on GPUs {named} (farthest hop {worst}; in the usual order {usual})"]


def _slow(found: Topology, groups: tuple[tuple[int, ...], ...], worst: str, link: Link) -> list[str]:
    """Why a group is priced on PCIe although some of its pairs may have NVLink."""
    size = len(groups[0])
    notes = [f"the farthest hop of TP {size} crosses {MEANS[worst]} ({worst}): priced as {link.key}, assumed"]
    widest = max(len(g) for g in found.nvlink_groups())
    if 1 < widest < size:
        notes.append(
            f"NVLink joins {widest} GPUs: {size // widest} replicas of TP {widest} keep their all-reduce on it "
            f"(commtax compare … --plans tp{size},tp{widest}dp{size // widest} --topo …)"
        )
    return notes
