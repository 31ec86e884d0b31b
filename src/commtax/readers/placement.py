"""A host's matrix of links and a plan -> the link that its tensor-parallel groups really have, and which GPUs to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax import catalog
from commtax.readers.topology import MEANS, Topology, describe, distance, in_order
from commtax.spec import Chip, Cluster, Link
from commtax.statement import Note, Refusal

Groups = tuple[tuple[int, ...], ...]
_PCIE = {"volta": "pcie3", "turing": "pcie3", "hopper": "pcie5", "blackwell": "pcie5"}  # others: pcie4


@dataclass(frozen=True, slots=True)
class Placed:
    """The cluster as a plan meets it, the groups of GPUs, and why."""

    cluster: Cluster
    groups: Groups
    notes: tuple[Note, ...]

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
    topology = Note("topology", f"topology: {describe(found)}")
    own, slow = catalog.link(cluster.chip.intra), pcie_of(cluster.chip)
    if tp == 1:
        return Placed(cluster, groups, (topology,))
    if own.kind == "nvlink" and own.switched and not found.shows_nvlink:
        told = f"{cluster.chip.key} has {own.key}, and the matrix shows none: topo -mp lists PCIe paths only, so {own.key} is taken"
        down = Note("no NVLink", f"{told} (if this was topo -m, NVLink is down: --intra {slow.key})")
        return Placed(cluster, groups, (topology, down))
    worst = max((found.worst(g) for g in groups), key=distance)
    notes = [topology, _advice(found, groups, worst)]
    if not worst.startswith("NV"):
        notes += _slow(found, size, worst, slow)
        return Placed(replace(cluster, intra=slow, nvlink_domain=1, bridge=None), groups, tuple(notes))
    link, more = _bonded(found, groups, nvlink_of(cluster.chip))
    domain = cluster.gpus_per_host if link.switched else size
    return Placed(replace(cluster, intra=link, nvlink_domain=domain, bridge=None), groups, (*notes, *more))


def _bonded(found: Topology, groups: Groups, link: Link) -> tuple[Link, list[Note]]:
    """The link with as many NVLinks as the GPU with the fewest has within its group; said where it has more elsewhere."""
    least = min(_num_links(found, group, i, link.num_links) for group in groups for i in group)
    if least == link.num_links:
        return link, []
    part = catalog.link(f"{link.key}@{least}")
    return part, [Note("bonded", f"{least} NVLinks a GPU in these groups: priced as {part.key}, assumed")]


def _num_links(found: Topology, group: tuple[int, ...], gpu: int, most: int) -> int:
    """NVLinks of a GPU to its group. Direct ones to several peers add up, as far as a GPU has links.

    Through a switch every peer shows all of them: more together than there are.
    """
    peers = [int(found.links[gpu][other][2:] or 1) for other in group if other != gpu]
    return sum(peers) if sum(peers) <= most else min(most, max(peers))


def _advice(found: Topology, groups: Groups, worst: str) -> Note:
    """Which GPUs to show to the engine, and what the plain order would have done."""
    named, size = ", ".join("+".join(map(str, g)) for g in groups), len(groups[0])
    if in_order(groups):
        return Note("order", f"TP {size} on GPUs {named}: the usual order is already the best (farthest hop {worst})")
    plain = [range(i * size, (i + 1) * size) for i in range(len(groups))]
    usual = max((found.worst(g) for g in plain), key=distance)
    devices = ",".join(str(i) for g in groups for i in g)
    hops = f"farthest hop {worst}; in the usual order {usual}"
    return Note("order", f"CUDA_VISIBLE_DEVICES={devices}: TP {size} on GPUs {named} ({hops})")


def _slow(found: Topology, size: int, worst: str, link: Link) -> Iterator[Note]:
    """Why a group is priced on PCIe although some of its pairs may have NVLink."""
    crossed = f"the farthest hop of TP {size} crosses {MEANS[worst]} ({worst})"
    yield Note("farthest hop", f"{crossed}: priced as {link.key}, assumed")
    widest = max(len(g) for g in found.nvlink_groups())
    if 1 < widest < size:
        copies = size // widest
        keep = f"NVLink joins {widest} GPUs: {copies} replicas of TP {widest} keep their all-reduce on it"
        yield Note("narrower", f"{keep} (commtax compare … --plans tp{size},tp{widest}dp{copies} --topo …)")
