"""How long a collective over several domains takes: a stage inside each, and what crosses the NICs between them.

NCCL packs what crosses in one of three ways, and so does the price: small tensors at once with a flag beside each word (LL), in
lines of 128 bytes (LL128), or in a pipeline of long messages that takes time to fill (Simple). Constants are ``Protocol``
records and those of the network's ``Link``, which are data.
"""

from functools import reduce

import numpy as np

from commtax.arrays import pick
from commtax.cost.collectives import Choice, Parts, path_parts, ring_factor
from commtax.records import dataclass
from commtax.spec import Link, Network, Number, Path, Protocol

ROUND = ("all-gather", "reduce-scatter")
"""Collectives that go round all ranks, whatever domain they lie in."""
RINGS = ("all-reduce", *ROUND)
PAIRS = ("all-to-all", "send-recv")
"""Messages from rank to rank: nothing is added, and no pipeline over levels of hosts has to fill."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A group over several domains: ``nbytes`` is what each domain works on, ``nics_Bps`` what its NICs carry in one direction."""

    op: str
    nbytes: Number
    ranks: Number
    inside: Number  # ranks in each domain
    domains: Number
    nics_Bps: Number
    link: Link

    @property
    def passes(self) -> int:
        return 2 if self.op == "all-reduce" else 1

    @property
    def levels(self) -> Number:
        """Levels of a tree over the domains."""
        return np.ceil(np.log2(np.maximum(1, self.domains)))

    @property
    def hops(self) -> Number:
        """Network hops one after the other in one pass: a ring goes through every domain, a tree through its levels.

        Where each domain has one rank, NCCL gathers and scatters over a tree too (PAT).
        """
        if self.op in PAIRS:
            return np.minimum(1, self.domains - 1)
        return pick(np.asarray(self.inside) > 1, self.domains - 1, self.levels) if self.op in ROUND else self.levels

    @property
    def leaving(self) -> Number:
        """Share of the tensor that leaves each domain.

        An all-reduce of two domains swaps their sums, each once (a tree); with more, every byte goes up and down, or twice
        round: 2 (n-1)/n over n ranks. A gather or scatter goes round all ranks: (n-1)/n. An all-to-all keeps what its own
        domain wants: (M-1)/M.
        """
        if self.op == "all-reduce":
            return pick(np.asarray(self.domains) > 2, ring_factor(self.op, self.ranks), np.minimum(1, self.domains - 1))
        return ring_factor(self.op, self.ranks if self.op in ROUND else self.domains)


def across(crossing: Crossing, inside: Choice, paths: tuple[Path, ...], network: Network) -> Choice:
    """A collective over several domains: the cheapest protocol of the network, or one pipeline where none were measured.

    t = latency inside + hops of the network + what fills the pipeline + [ inside^norm + wire^norm ]^(1/norm) seconds.

    ``inside`` is its stage inside the domains, chosen from ``paths``.
    """
    if not network.protocols:
        return one_pipeline(crossing, inside, network)
    able = [p for p in network.protocols if _serves(p, crossing)]
    return reduce(_cheaper, [_by_protocol(p, crossing, inside, paths, network) for p in able])


def one_pipeline(c: Crossing, inside: Choice, network: Network) -> Choice:
    """Both stages as one pipeline: log2 M network hops each way (a tree), each some times the link's latency.

    A pipeline cut into the best number of chunks loses 2 sqrt(L wire) beside both, L a hop each way (levels work on different
    chunks at a time): most of the time of tensors of a few megabytes.
    """
    levels = np.minimum(1, c.domains - 1) if network.direct else c.levels
    through = c.ranks if network.flat and c.op in RINGS else c.domains
    wire = ring_factor(c.op, through) * c.nbytes / (c.nics_Bps * network.efficiency)
    hop = c.passes * (network.hops * c.link.latency_s)
    both = _beside(inside.wire_s, wire, network) + 2 * network.pipelining * np.sqrt(hop * wire)
    return _choice(inside.latency_s + levels * hop, both, inside.path, inside)


def _serves(protocol: Protocol, c: Crossing) -> bool:
    return not (protocol.ring and c.op in PAIRS) and (c.link.ordered or not protocol.ordered)


def _by_protocol(p: Protocol, c: Crossing, inside: Choice, paths: tuple[Path, ...], network: Network) -> Choice:
    """Latency: the stage inside, the network's hops, what fills the pipeline. Bytes: both stages side by side."""
    index, (latency, moving) = _ridden(p, c, inside, paths)
    hop = c.passes * (network.hops * c.link.latency_s)
    wire = c.leaving * c.nbytes / np.minimum(c.nics_Bps * p.share * network.efficiency * c.link.efficiency, p.most_Bps)
    loss = p.pair_loss if c.op in PAIRS else p.loss
    lost = 2 * loss * np.sqrt(hop * c.leaving * c.nbytes / c.nics_Bps) if loss else 0.0
    fixed = latency + c.hops * hop + p.extra_s + network.pipelining * _fill(p, c)
    return _choice(fixed, _beside(moving, wire, network) + lost, index, inside)


def _fill(p: Protocol, c: Crossing) -> Number:
    """Seconds until a pipeline runs: longer over more levels of hosts; some networks take their own time for it."""
    if not p.fill_s or c.op in PAIRS:
        return 0.0
    return c.passes * np.minimum(1, c.levels) * (c.link.fill_s or p.fill_s + p.level_s * c.levels)


def _ridden(p: Protocol, c: Crossing, inside: Choice, paths: tuple[Path, ...]) -> tuple[Number, Parts]:
    """The path inside the domains that a protocol rides: the one chosen, or the plain ring."""
    ring = next((i for i, path in enumerate(paths) if path.algorithm == "ring"), None) if p.ring else None
    if ring is None:
        return inside.path, (inside.latency_s, inside.wire_s)
    return ring + 0 * inside.path, path_parts(paths[ring], c.nbytes, stage_ranks(c.op, c.ranks, c.inside))


def stage_ranks(op: str, ranks: Number, inside: Number) -> Number:
    """Ranks that the stage inside the domains is priced for: a ring that goes round passes every rank's link."""
    return pick(np.asarray(inside) > 1, ranks, inside) if op in ROUND else inside


def _beside(inside_s: Number, wire_s: Number, network: Network) -> Number:
    """Two stages that overlap: the slower one, and a little more where both are near."""
    return (inside_s**network.norm + wire_s**network.norm) ** (1 / network.norm)


def _choice(latency: Number, wire: Number, path: Number, inside: Choice) -> Choice:
    return Choice(latency, wire, path, inside.seconds / np.maximum(latency + wire, 1e-12))


def _cheaper(one: Choice, other: Choice) -> Choice:
    less = other.seconds < one.seconds
    parts = ((other.latency_s, one.latency_s), (other.wire_s, one.wire_s), (other.path, one.path), (other.inside, one.inside))
    return Choice(*(pick(less, a, b) for a, b in parts))
