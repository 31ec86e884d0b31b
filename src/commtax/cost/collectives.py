"""How long a collective takes: one function an algorithm, the choice among them as a library would choose, and what crosses hosts.

Each algorithm returns (latency, wire) seconds for the full tensor ``nbytes`` over ``ranks``; both vanish at one rank.
The constants come from ``Path`` records, which are data.

A group over several domains has a stage inside each, and what crosses the NICs between them. NCCL packs that in one of three ways,
and so does the price: small tensors at once with a flag beside each word (LL), in lines of 128 bytes (LL128), or in a pipeline of
long messages that takes time to fill (Simple).
Change an algorithm's equation here; constants are in ``catalog/libraries``.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import get_args

import numpy as np

from commtax.arrays import Array, holds_anywhere, pick, spread, unique_with_places
from commtax.cost.layer_forms import copying_slowness, sms_by_expert
from commtax.cost.placement import Span
from commtax.records import dataclass, replace
from commtax.spec import Algorithm, Cluster, Condition, ExchangePath, Fabric, Link, Network, NetworkCurve, Number, Path, Protocol

Parts = tuple[Number, Number]
ROUND = ("all-gather", "reduce-scatter")  # collectives that go round all ranks, whatever domain they lie in
PAIRS = ("all-to-all", "send-recv")
"""Messages from rank to rank: nothing is added, and no pipeline over levels of hosts has to fill."""


def ring_factor(op: str, ranks: Number) -> Number:
    """Return the share of the tensor that each rank sends in a ring: 2 (N-1)/N to all-reduce, (N-1)/N to gather or scatter.
    Broadcast and send-recv move all of it once."""
    if op in ("broadcast", "reduce", "send-recv"):
        return np.minimum(1, ranks - 1)
    return (2 if op == "all-reduce" else 1) * (ranks - 1) / ranks


def ring(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price a ring: N - 1 hops from neighbour to neighbour, and a pipelining loss that grows as the root of the bytes.
    t = launch + hop (N - 1) + sent / bandwidth + sqrt_s sqrt(sent) seconds."""
    sent = ring_factor(p.op, ranks) * nbytes
    wire = sent / p.bandwidth_Bps + p.sqrt_s * np.sqrt(sent)
    return (p.launch_s + p.hop_s * (ranks - 1)) * (ranks > 1), wire


def ring_simple(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price a ring whose hops overlap its bytes: t = launch + [ (hop (N - 1))^2 + (sent / bandwidth)^2 ]^(1/2) seconds."""
    hops = p.hop_s * (ranks - 1)
    wire = np.maximum(ring_factor(p.op, ranks), p.copied * (ranks > 1)) * nbytes / p.bandwidth_Bps
    return (p.launch_s + hops) * (ranks > 1), np.hypot(hops, wire) - hops


def tree(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price a double binary tree, each byte up once and down once: t = launch + 2 hop log2 N + 2 bytes / bandwidth seconds."""
    levels = np.ceil(np.log2(ranks))
    return (p.launch_s + 2 * p.hop_s * levels) * (ranks > 1), 2 * nbytes * (ranks > 1) / p.bandwidth_Bps


def one_shot(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price one step in which each rank reads the whole tensor from every other rank and adds: (N-1) times the bytes.
    t = launch + hop (N - 1) + (N - 1) bytes / bandwidth + sqrt_s sqrt((N - 1) bytes) seconds."""
    read = (ranks - 1) * nbytes
    return (p.launch_s + p.hop_s * (ranks - 1)) * (ranks > 1), read / p.bandwidth_Bps + p.sqrt_s * np.sqrt(read)


def two_shot(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price two steps: each rank reduces its share, then reads the others' results, with the ring's bytes (fewer if quantised).
    t = launch + extra + hop (N - 1) + [ beside^2 + (2 (N - 1)/N bytes wire_share / bandwidth)^2 ]^(1/2) seconds."""
    fixed = p.launch_s + p.extra_s + p.beside_s + p.hop_s * (ranks - 1)
    wire = ring_factor("all-reduce", ranks) * nbytes * p.wire_share / p.bandwidth_Bps
    return fixed * (ranks > 1), np.hypot(p.beside_s, wire) - p.beside_s if p.beside_s else wire


def in_switch(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price sums in the switch (NVLS, multimem): a rank sends its tensor once and 1/N of the result, near-constant in N.
    t = launch + extra + each (N - 1) + (1 + 1/N) bytes / bandwidth seconds, of an all-reduce.
    Each rank works on its own share, so that a pipeline over more of them takes longer to fill. Where ranks copy between
    buffers as fast as the link is, what they copy (``copied``) decides and not what leaves them."""
    factor = np.maximum(1 + 1 / ranks if p.op == "all-reduce" else ring_factor(p.op, ranks), p.copied)
    fixed = p.launch_s + p.extra_s + p.each_s * (ranks - 1)
    return fixed * (ranks > 1), nbytes * factor * (ranks > 1) / p.bandwidth_Bps


def pairwise(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price an all-to-all: each rank sends every other rank its part, (N-1)/N of the tensor, and copies its local part beside it.
    t = launch + hop (N - 1) + max(sent, copied bytes) / bandwidth + sqrt_s sqrt(sent) seconds.
    The copy runs beside the sends on the same processors: two ranks send half of the tensor, but move all of it."""
    sent = ring_factor(p.op, ranks) * nbytes
    moved = np.maximum(sent, p.copied * nbytes * (ranks > 1))
    return (p.launch_s + p.hop_s * (ranks - 1)) * (ranks > 1), moved / p.bandwidth_Bps + p.sqrt_s * np.sqrt(sent)


def per_peer(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price small parts of an all-to-all: one channel for each peer, all at a time, so that only one peer's part counts.
    t = launch + hop (N - 1) + bytes / N / bandwidth seconds."""
    return (p.launch_s + p.hop_s * (ranks - 1)) * (ranks > 1), nbytes / ranks * (ranks > 1) / p.bandwidth_Bps


def one_sided(nbytes: Number, ranks: Number, p: Path) -> Parts:
    """Price writes to each other's memory, or reads: ranks wait for one flag of each, and that wait and the bytes overlap.
    t = launch + [ (extra + hop (N - 1))^2 + (sent / bandwidth)^2 ]^(1/2) seconds."""
    waited = (p.extra_s + p.hop_s * (ranks - 1)) * (ranks > 1)
    wire = np.hypot(waited, ring_factor(p.op, ranks) * nbytes / p.bandwidth_Bps) - waited
    return p.launch_s * (ranks > 1) + waited, wire


ALGORITHMS: dict[Algorithm, Callable[[Number, Number, Path], Parts]] = {
    name: globals()[name.replace("-", "_")] for name in get_args(Algorithm)
}
"""Each algorithm that a path can name, and the function above that has its name."""


def path_parts(path: Path, nbytes: Number, ranks: Number) -> Parts:
    """Price one path: its algorithm's seconds, with bytes as much slower as a group of this size makes them."""
    if path.mesh:  # a group of n has the links among its members
        path = replace(path, bandwidth_Bps=path.bandwidth_Bps * np.clip((ranks - 1) / (path.mesh - 1), 1 / (path.mesh - 1), 1))
    fixed, wire = ALGORITHMS[path.algorithm](nbytes, ranks, path)
    if path.contention:
        worlds, slower = zip(*path.contention, strict=True)
        wire = wire * np.interp(ranks, worlds, slower)
    if path.local_s:
        wire = wire + path.local_s * nbytes * (ranks > 1)
    return fixed, wire


@dataclass(frozen=True, slots=True)
class PathChoice:
    """The price of a collective and the path taken: ``path`` indexes the list it was chosen from."""

    latency_s: Number
    wire_s: Number
    path: Number
    inside: Number = 1.0  # share of it that its stage inside the domains would take alone

    @property
    def seconds(self) -> Number:
        return self.latency_s + self.wire_s


def applies(path: Path, nbytes: Number, ranks: Number) -> Condition:
    """Check whether a library takes this path for a group of this size and a tensor of this size."""
    ok = np.logical_and(ranks >= path.min_ranks, ranks <= path.max_ranks)
    if path.worlds:
        ok = ok & np.logical_or.reduce([np.asarray(ranks) == world for world in path.worlds])
    if path.max_bytes:
        ok = ok & (np.asarray(nbytes) <= _limit(path.max_bytes, ranks))
    if path.min_bytes:
        ok = ok & (np.asarray(nbytes) >= _limit(path.min_bytes, ranks))
    return ok


def choose(paths: tuple[Path, ...], nbytes: Number, ranks: Number) -> PathChoice:
    """Return the path that a library takes, at no more than a larger tensor costs on the path behind a limit, since constants were
    fitted on powers of two and would tell of a step down in time between the last of them and a limit."""
    if few := unique_with_places(nbytes, ranks):
        choice = choose(paths, *few[0])
        return PathChoice(*(spread(x, few[1]) for x in (choice.latency_s, choice.wire_s, choice.path)))
    limits = [(limits, step) for p in paths for limits, step in ((p.max_bytes, 1), (p.min_bytes, 0)) if limits]
    starts = [_limit(by_world, ranks) + next_byte for by_world, next_byte in limits]
    sizes = np.stack(np.broadcast_arrays(nbytes, *starts, ranks)[:-1])  # all looked at together: a look costs more than its numbers
    fixed, moving, taken = _first_applicable(paths, sizes, ranks)
    latency, wire = fixed[0], moving[0]
    for start, beyond_s, moving_s in zip(starts, fixed[1:], moving[1:], strict=True):
        less = (nbytes < start) & (beyond_s + moving_s < latency + wire)
        latency, wire = pick(less, beyond_s, latency), pick(less, moving_s, wire)
    return PathChoice(latency, wire, taken[0])


def _limit(by_world: tuple[tuple[int, float], ...], ranks: Number) -> Number:
    """Return the largest (or smallest) tensor of a path, where a group between two listed sizes has the limit of the larger."""
    worlds, limits = (np.asarray(x) for x in zip(*by_world, strict=True))
    return limits[np.minimum(np.searchsorted(worlds, ranks), len(worlds) - 1)]


def _first_applicable(paths: tuple[Path, ...], nbytes: Array, ranks: Number) -> tuple[Array, Array, Array]:
    """Return the seconds and index of the first path that applies, where paths of one ``turn`` compete on price, as NCCL's
    algorithms do. In groups larger than a path's limits were seen in, it competes with those after it."""
    shape = np.broadcast(nbytes, ranks).shape
    latency, taken, done = np.full(shape, np.inf), np.full(shape, -1), np.zeros(shape, dtype=bool)
    wire, firm = latency, done
    for turn in sorted({p.turn for p in paths}):
        settled = firm
        for index, path in enumerate(paths):
            if path.turn != turn:
                continue
            open_to = applies(path, nbytes, ranks) & ~settled
            if not holds_anywhere(open_to):
                continue
            fixed, moving = path_parts(path, nbytes, ranks)
            better = open_to & (~done | (fixed + moving < latency + wire))
            latency, wire = np.where(better, fixed, latency), np.where(better, moving, wire)
            taken, done = np.where(better, index, taken), done | better
            firm = firm | (better & (not path.max_bytes or np.asarray(ranks) <= path.max_bytes[-1][0]))
    return latency, wire, taken


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
        """Return the levels of a tree over the domains."""
        return np.ceil(np.log2(np.maximum(1, self.domains)))

    @property
    def hops(self) -> Number:
        """Return the network hops one after the other in one pass: every domain of a ring, levels of a tree (and of PAT)."""
        if self.op in PAIRS:
            return np.minimum(1, self.domains - 1)
        return pick(np.asarray(self.inside) > 1, self.domains - 1, self.levels) if self.op in ROUND else self.levels

    @property
    def leaving(self) -> Number:
        """Return the share of the tensor that leaves each domain: all of an all-reduce's sum once between two (a tree), else 2
        (n-1)/n over n ranks, (n-1)/n of a gather or scatter, and (M-1)/M of an all-to-all."""
        if self.op == "all-reduce":
            return pick(np.asarray(self.domains) > 2, ring_factor(self.op, self.ranks), np.minimum(1, self.domains - 1))
        return ring_factor(self.op, self.ranks if self.op in ROUND else self.domains)


def cross_domains(crossing: Crossing, inside: PathChoice, paths: tuple[Path, ...], network: Network) -> PathChoice:
    """Price a collective over several domains: the cheapest protocol of the network, or one pipeline where none were measured.
    t = latency inside + hops of the network + what fills the pipeline + [ inside^norm + wire^norm ]^(1/norm) seconds.
    ``inside`` is its stage inside the domains, chosen from ``paths``."""
    if not network.protocols:
        return one_pipeline(crossing, inside, network)
    pairs, ordered = crossing.op in PAIRS, crossing.link.ordered
    able = [p for p in network.protocols if not (p.ring and pairs) and (ordered or not p.ordered)]
    priced = [_by_protocol(p, crossing, inside, paths, network) for p in able]
    return reduce(lambda one, other: _choice_where(other.seconds < one.seconds, other, one), priced)


def one_pipeline(c: Crossing, inside: PathChoice, network: Network) -> PathChoice:
    """Price both stages as one pipeline: log2 M network hops each way (a tree), L a hop, and 2 sqrt(L wire) that the best number of
    chunks loses beside both."""
    levels = np.minimum(1, c.domains - 1) if network.direct else c.levels
    through = c.ranks if network.flat and c.op in ("all-reduce", *ROUND) else c.domains
    wire = ring_factor(c.op, through) * c.nbytes / (c.nics_Bps * network.efficiency)
    hop = c.passes * (network.hops * c.link.latency_s)
    both = _overlapped_stages(inside.wire_s, wire, network) + 2 * network.pipelining * np.sqrt(hop * wire)
    return _choice(inside.latency_s + levels * hop, both, inside.path, inside)


def _by_protocol(p: Protocol, c: Crossing, inside: PathChoice, paths: tuple[Path, ...], network: Network) -> PathChoice:
    """Price a collective across domains by one protocol: its latency, and the transfers inside and between domains at once."""
    index, latency, moving = inside.path, inside.latency_s, inside.wire_s
    ring = next((i for i, path in enumerate(paths) if path.algorithm == "ring"), None) if p.ring else None
    if ring is not None:  # the protocol rides the plain ring, whatever path was chosen
        latency, moving = path_parts(paths[ring], c.nbytes, stage_ranks(c.op, c.ranks, c.inside))
        index = ring + 0 * inside.path
    hop = c.passes * (network.hops * c.link.latency_s)
    wire = c.leaving * c.nbytes / np.minimum(c.nics_Bps * p.share * network.efficiency * c.link.efficiency, p.most_Bps)
    loss = p.pair_loss if c.op in PAIRS else p.loss
    lost = 2 * loss * np.sqrt(hop * c.leaving * c.nbytes / c.nics_Bps) if loss else 0.0
    fills = c.passes * np.minimum(1, c.levels) * (c.link.fill_s or p.fill_s + p.level_s * c.levels)  # longer over more levels
    fixed = latency + c.hops * hop + p.extra_s + network.pipelining * (fills if p.fill_s and c.op not in PAIRS else 0.0)
    return _choice(fixed, _overlapped_stages(moving, wire, network) + lost, index, inside)


def stage_ranks(op: str, ranks: Number, inside: Number) -> Number:
    """Return the ranks that the stage inside the domains is priced for: a ring that goes round passes every rank's link."""
    return pick(np.asarray(inside) > 1, ranks, inside) if op in ROUND else inside


def _overlapped_stages(inside_s: Number, wire_s: Number, network: Network) -> Number:
    """Return the seconds of two stages that overlap: the slower one, and a little more where both are near."""
    return (inside_s**network.norm + wire_s**network.norm) ** (1 / network.norm)


def _choice(latency: Number, wire: Number, path: Number, inside: PathChoice) -> PathChoice:
    return PathChoice(latency, wire, path, inside.seconds / np.maximum(latency + wire, 1e-12))


def price(op: str, nbytes: Number, ranks: Number, where: Span, cluster: Cluster, fabric: Fabric, share: Number = 1.0) -> PathChoice:
    """Price a collective inside a fast domain, or over several through the hosts' NICs, which carry ``share`` of its bytes."""
    if not holds_anywhere(where.crosses):
        return choose(fabric.paths[op], nbytes, ranks)
    across = _across(op, nbytes, ranks, where, cluster, fabric, share)
    some = isinstance(where.crosses, np.ndarray)  # of many groups those inside a domain have another price
    return _choice_where(where.crosses, across, choose(fabric.paths[op], nbytes, ranks)) if some else across


def _across(op: str, nbytes: Number, ranks: Number, where: Span, cluster: Cluster, fabric: Fabric, outside: Number) -> PathChoice:
    if fabric.flat:
        return choose(fabric.network_paths[op], nbytes, ranks)
    inside_ranks, paths = np.minimum(where.ranks_per_domain, ranks), fabric.network_paths[op]
    inside = choose(paths, nbytes, stage_ranks(op, ranks, inside_ranks) if fabric.network.protocols else inside_ranks)
    total = cluster.nics_per_host * max(1, cluster.domain // cluster.gpus_per_host) * cluster.inter.bandwidth_Bps
    # Groups side by side share the NICs: a GPU's own, or those of a host among all that run there.
    users = cluster.domain if cluster.inter.nic_per_gpu else pick(np.asarray(where.used) > 0, where.used, cluster.domain)
    share = np.minimum(1.0, inside_ranks / users)
    # In an all-to-all every rank of a host sends its own buffer; other collectives carry one tensor for the host.
    carried = nbytes * inside_ranks if op in ("all-to-all", "dispatch", "combine") else nbytes
    crossing = Crossing(op, carried * outside, ranks, inside_ranks, np.maximum(1, where.domains), total * share, cluster.inter)
    across = cross_domains(crossing, inside, paths, fabric.network)
    if not fabric.network.curves:
        return across
    factor = factor_over(fabric.network, op, nbytes, ranks)  # this machine's own times over the constants'
    return replace(across, latency_s=across.latency_s * factor, wire_s=across.wire_s * factor, inside=across.inside / factor)


def _choice_where(condition: Condition, yes: PathChoice, no: PathChoice) -> PathChoice:
    names = ("latency_s", "wire_s", "path", "inside")
    return PathChoice(*(pick(condition, getattr(yes, name), getattr(no, name)) for name in names))


def for_experts(fabric: Fabric, experts: int, num_sms: int) -> Fabric:
    """Return an exchange's paths for layers of so many experts, on chips of so many multiprocessors."""
    sms = fabric.copying_sms or sms_by_expert(experts, num_sms)

    def tuned(path: Path) -> Path:
        if not isinstance(path, ExchangePath):
            return path
        slowness = copying_slowness(path.bandwidth_Bps, path.sm_Bps, sms) if path.sm_Bps else 1 / path.bandwidth_Bps
        return replace(path, launch_s=path.launch_s + experts * path.expert_s, bandwidth_Bps=1 / slowness)

    def every(paths: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
        return {op: tuple(map(tuned, some)) for op, some in paths.items()}

    return replace(fabric, paths=every(fabric.paths), network_paths=every(fabric.network_paths))


def curve_of(network: Network, op: str) -> NetworkCurve | None:
    return next((curve for curve in network.curves if curve.op == op), None)


def factor_over(network: Network, op: str, nbytes: Number, ranks: Number) -> Number:
    """Return how many times as long a collective takes as the constants say, or 1 where it was not measured."""
    curve = curve_of(network, op)
    return np.exp(_between(np.log(curve.factor), curve, nbytes, ranks)) if curve else 1.0


def sigma_over(curve: NetworkCurve, nbytes: Number, ranks: Number, domain: int) -> Number:
    """Return the deviation of the logarithm: more, the farther size, ranks and hosts are from those that were measured."""
    knots = np.log2(curve.nbytes)
    knot, share = _place(knots, np.log2(np.maximum(nbytes, 1)))
    octaves = np.append(np.diff(knots), 0.0)[knot] * share * (1 - share)  # of a walk that is known at both ends
    away = np.min([np.abs(np.log2(np.maximum(ranks, 1) / seen)) for seen in curve.ranks], axis=0)
    reshaped = abs(np.log2(domain / curve.domain)) if curve.domain else 0.0
    more = octaves * curve.drift**2 + away * curve.grown**2 + reshaped * curve.reshaped**2
    return np.asarray(np.sqrt(_between(np.square(curve.sigma), curve, nbytes, ranks) + more))[()]


def _between(rows: Array, curve: NetworkCurve, nbytes: Number, ranks: Number) -> Number:
    """Return the value at a size and a number of ranks: straight lines over logarithms, constant beyond the ends."""
    size, size_share = _place(np.log2(curve.nbytes), np.log2(np.maximum(nbytes, 1)))
    group, group_share = _place(np.log2(curve.ranks), np.log2(np.maximum(ranks, 1)))
    later, larger = np.minimum(size + 1, len(curve.nbytes) - 1), np.minimum(group + 1, len(curve.ranks) - 1)
    few, many = (rows[at, size] * (1 - size_share) + rows[at, later] * size_share for at in (group, larger))
    return np.asarray(few * (1 - group_share) + many * group_share)[()]


def _place(knots: Array, at: Number) -> tuple[Array, Array]:
    """Return the last knot that is not beyond, and the share of the way to the next."""
    place = np.asarray(np.interp(at, knots, np.arange(len(knots))))
    return place.astype(int), place % 1
