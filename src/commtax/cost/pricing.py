"""What kernels and collectives of a step cost, as lines of a bill: the choice of a path, its seconds, their source and range.
Change here how lines become a step, what the host adds, and how sure a collective's price is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost import overlap
from commtax.cost.collectives import Parts, PathChoice, curve_of, for_experts, price, sigma_over
from commtax.cost.compute import step_kernels
from commtax.cost.context_parallel import prompts_of_rank
from commtax.cost.kernel import PricingTerms
from commtax.cost.kernels import served_lines
from commtax.cost.layer_forms import AROUND
from commtax.cost.overlap import FUSED_FORM, FUSED_OP, fuse, fused_fabric
from commtax.cost.placement import Span, span
from commtax.cost.traffic import backend_called, bulk_backend, default_backend, expected_destinations, inference, padded_rows
from commtax.ledger import NO_NOTE, Z80, Bill, Item, Line, Via
from commtax.question import WhatIf
from commtax.records import replace
from commtax.spec import NO_TECHNIQUES, Cluster, Condition, Engine, Fabric, Number, Path, Workload
from commtax.statement import Note, Source
from commtax.units import format_bytes, format_seconds

LATE = "collective_launch_s"  # the part of the host's line that is waiting for collectives to be launched
UNMEASURED = 0.6  # half-width of the range of a group that nobody measured
MEASURED = ("calibrated", "transferred")  # somebody timed this library on this chip and link, if in another version
NCCL_ALGORITHMS = ("ring", "ring-simple", "tree")  # NCCL's, whoever calls it
MEASURED_RANKS = 8  # the largest group inside one domain that the libraries were measured on


class Pricer:
    """The prices of one plan's collectives, where equal tensors over one axis are priced once."""

    def __init__(self, terms: PricingTerms) -> None:
        self.terms, self.cluster, self.fabric = terms, terms.cluster, terms.fabric
        exchange, experts = self.fabric.exchanges.get(terms.settings.ep_backend.replace("_", "-")), terms.model.experts
        self.exchange = for_experts(exchange, experts.num_experts, self.cluster.chip.num_sms) if exchange and experts else None
        self.fused = fused_fabric(self.fabric.fused, terms.techniques.fused_reduce) if terms.techniques.fused_reduce else None
        pairs = self.fabric.pairs
        self.pairs = Pricer(replace(terms, cluster=self.cluster.as_pairs, fabric=pairs)) if pairs else None
        self._spans: dict[str, Span] = {}
        self._prices: dict[tuple[str, str, int, int], tuple[Item, PathChoice]] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def span(self, axis: str) -> Span:
        if axis not in self._spans:
            self._spans[axis] = span(axis, self.terms.plan, self.cluster, self.terms.engine)
        return self._spans[axis]

    def priced_by(self, item: Item) -> tuple[Fabric, str]:
        """Return the fabric whose paths carry an item, and its name there: experts' exchanges may have kernels of their own."""
        if self.exchange and item.axis == "ep" and item.op == "all-to-all":
            return self.exchange, item.place
        if self.fused and item.form == FUSED_FORM:
            return self.fused, FUSED_OP
        return self.fabric, item.op

    def names(self, item: Item) -> tuple[str, ...]:
        """Return the names of all paths of a collective, inside and across, and of both links."""
        fabric, op = self.priced_by(item)
        if op not in self._names:
            prefix = "" if fabric.flat or fabric.network.direct else "hierarchical "
            inside = [p.name or p.algorithm for p in fabric.paths[op]]
            across = [f"{prefix}{p.name or p.algorithm}" for p in fabric.network_paths[op]]
            self._names[op] = (*inside, *across, self.cluster.intra.key, self.cluster.inter.key)
        return self._names[op]

    def via(self, item: Item, path: int) -> Via:
        """Say how the path of that number runs. An engine's own kernels stand before those of the library that it falls back on."""
        fabric, op = self.priced_by(item)
        inside = fabric.paths[op]
        if path >= len(inside) and not (fabric.flat or fabric.network.direct):
            return "hierarchical"
        if fabric is self.exchange or fabric is self.fused:
            return "custom"
        first = path < len(inside) - len(fabric.network_paths[op]) and inside[path].algorithm not in NCCL_ALGORITHMS
        return "custom" if first or (path < len(inside) and inside[path].own) else ""

    def price(self, item: Item) -> PathChoice:
        fabric, op = self.priced_by(item)
        key = (op, item.axis, id(item.nbytes), id(item.ranks))
        if key not in self._prices:  # the item is kept so that its arrays, whose identity is the key, live on
            where = self.span(item.axis)
            outside: Number = 1.0
            if holds_anywhere(where.crosses) and item.routed:  # NICs carry one copy a host, forwarded to the ranks that want it
                hosts = expected_destinations(item.routed, where.domains)
                hosts = np.minimum(hosts, item.most_hosts) if item.most_hosts else hosts
                outside = hosts / expected_destinations(item.routed, where.ranks)
            self._prices[key] = item, price(op, item.nbytes, item.ranks, where, self.cluster, fabric, outside)
        return self._prices[key][1]

    def choices(self, item: Item) -> list[tuple[Pricer, PathChoice]]:
        """Price a collective on the links that its group spans: on bridges, then on others. None where it is not sent."""
        if not holds_anywhere(item.count > 0):
            return []
        if self.pairs is None or not holds_anywhere(paired := self.span(item.axis).paired):
            return [(self, self.price(item))]
        return [(one, one.price(item)) for one in ((self.pairs,) if np.all(paired) else (self.pairs, self))]


def comm_lines(items: Sequence[Item], pricer: Pricer, settings: Iterable[WhatIf]) -> list[Line]:
    """Price all collectives and return their lines of the bill, where those that this plan does not send cost nothing."""
    priced, lines = [pricer.choices(item) for item in items], []
    for item, choices, what_if in zip(items, priced, settings, strict=False):
        sent = [_sent_line(item, one, chosen, what_if) for one, chosen in choices]
        sent = [_line_where(pricer.span(item.axis).paired, *sent)] if len(sent) > 1 else sent
        lines += sent or [Line("comm", item, 0.0, 0.0, source=pricer.priced_by(item)[0].label)]
    return lines


def _line_where(condition: Condition, yes: Line, no: Line) -> Line:
    """Return the line of some plans where a condition holds, and of the others elsewhere."""
    link, algorithm = (pick(condition, getattr(yes, name) + len(no.names), getattr(no, name)) for name in ("link", "algorithm"))
    named = replace(no, names=no.names + yes.names, link=link, algorithm=algorithm)
    fixed, moving = pick(condition, yes.fixed_s, no.fixed_s), pick(condition, yes.moving_s, no.moving_s)
    sigma, late = pick(condition, yes.sigma, no.sigma), pick(condition, yes.launch_s, no.launch_s)
    return replace(named, fixed_s=fixed, moving_s=moving, sigma=sigma, launch_s=late)


def _sent_line(item: Item, pricer: Pricer, chosen: PathChoice, settings: WhatIf) -> Line:
    fabric, op = pricer.priced_by(item)
    where = pricer.span(item.axis)
    names, inside = pricer.names(item), len(fabric.paths[op])
    crosses, why = where.crosses, NO_NOTE
    via: Via = ""
    algorithm: Number | str = pick(crosses, chosen.path + inside, chosen.path)
    link: Number | str = pick(crosses, len(names) - 1, len(names) - 2)
    alone = not isinstance(algorithm, np.ndarray) and not isinstance(link, np.ndarray)
    if alone:
        path = (*fabric.paths[op], *fabric.network_paths[op])[int(algorithm)]
        why = reason(path, float(item.nbytes), int(min(where.ranks_per_domain, item.ranks)), bool(crosses))
        via = pricer.via(item, int(algorithm))
        algorithm, link = names[int(algorithm)], names[int(link)]
    latency, wire = scaled_s(item, chosen, pricer.terms.engine, settings)
    # Without graphs the host is late with it: that is waiting for the host, and not communication.
    late = launched_s(fabric, latency, wire, crosses) - latency if settings.eager else 0.0
    outside = not fabric.flat and holds_anywhere(crosses)
    most = int(item.ranks if alone else np.max(item.ranks))
    source = source_of(fabric, op, int(chosen.path if alone else np.max(chosen.path)), most, outside, float(np.max(chosen.inside)))
    spread = spread_of(fabric, op, item.nbytes, item.ranks, chosen, pricer.cluster, crosses, settings.eager)
    sigma = (np.log1p(spread) if isinstance(spread, np.ndarray) else math.log1p(spread)) / Z80
    late = pick(np.asarray(item.ranks) > 1, late, 0.0) if settings.eager else late
    hidden = 0.0 * item.count * (latency + wire)  # shaped as the line: nothing, before a step says what it runs beside
    return Line("comm", item, latency, wire, hidden, link, algorithm, names, why, source, via, sigma=sigma, launch_s=late)


def reason(path: Path, nbytes: float, ranks: int, crosses: bool = False) -> Note:
    """Explain why a library takes this path, with ``ranks`` of the group inside each fast domain.

    >>> reason(Path("all-reduce", "one-shot", 1e9, name="custom one-shot", max_bytes=((8, 262143.0),)), 16384, 8)
    'custom one-shot: 16 KiB <= 256 KiB on 8 ranks'
    """
    name, size = path.name or path.algorithm, format_bytes(nbytes)
    if crosses and ranks == 1:
        return Note("nics", f"NICs only: {size}, one rank per host")
    if crosses:
        return Note("hierarchical", f"{name} inside, NICs between hosts: {size}, {ranks} ranks per host")
    for world, most in path.max_bytes:
        if ranks <= world:
            return Note("limit", f"{name}: {size} <= {format_bytes(most + most % 2)} on {ranks} ranks")
    if path.turn and path.op == "all-reduce":
        return Note("beyond", f"{name}: {size} on {ranks} ranks is beyond the engine's own kernels")
    return Note("cheapest", f"{name}: the cheapest for {size} on {ranks} ranks")


def all_reduce_share(item: Item, engine: Engine) -> float:
    """Return what an engine's way to all-reduce leaves of the library's time."""
    return engine.sends.reduce_share if item.op == "all-reduce" else 1.0


def scaled_s(item: Item, chosen: PathChoice, engine: Engine, settings: WhatIf) -> Parts:
    """Return latency and wire of a path as this engine takes it, with links scaled as requested."""
    left, paces = all_reduce_share(item, engine), engine.paces
    latency, wire = left * chosen.latency_s * settings.latency_scale, left * chosen.wire_s / settings.bandwidth_scale
    return latency * paces.pace_latency, wire * paces.pace_wire


def launched_s(fabric: Fabric, latency: Number, wire: Number, crosses: Condition) -> Number:
    """Return the latency of a collective launched from Python, alone: at least a launch, and across hosts threads wake too."""
    return np.maximum(latency + pick(crosses, fabric.network.eager_s, 0.0), fabric.eager_floor_s - wire)


def source_of(fabric: Fabric, op: str, path: int, ranks: int, crosses: bool, inside: float = 0.0) -> Source:
    """Return the source of a collective's price: assumed beyond measured groups, across hosts the network's, unless most of the
    time (``inside``) goes by on an assumed link inside them."""
    outside, label, taken = crosses and not fabric.flat, fabric.label, fabric.paths[op][path]
    seen = fabric.network.ranks if outside else taken.ranks
    if seen and not seen[0] <= ranks <= seen[-1]:
        return _assumed_source(f"measured on {' to '.join(map(str, dict.fromkeys(seen)))} ranks", f"ranks {seen[0]} {seen[-1]}")
    if outside:
        return label if inside > 0.5 and label.kind == "assumed" else fabric.network.label
    if taken.own:
        return taken.source
    if label.kind != "calibrated":
        return label
    if taken.source.kind == "assumed":
        return _assumed_source(f"{op} was never measured on this link", f"{op} unmeasured")
    most = _largest_measured_group(taken)
    return _assumed_source(f"measured on up to {most} ranks", "more ranks") if ranks > most else label


def _largest_measured_group(path: Path) -> int:
    return path.ranks[-1] if path.ranks else MEASURED_RANKS


def _assumed_source(why: str, basis: str) -> Source:
    return Source("assumed", f"assumed: {why}", basis)


def spread_of(
    fabric: Fabric, op: str, nbytes: Number, ranks: Number, chosen: PathChoice, cluster: Cluster, crosses: Condition, eager: bool
) -> Number:
    """Return the half-width of the 80 % range of a collective as a factor, from the residuals of its constants."""
    if fabric.flat:
        return 0.0
    if not holds_anywhere(crosses):
        return _inside_spread(fabric, op, nbytes, ranks, chosen, cluster, eager)
    inside = 0.0 if np.all(crosses) else _inside_spread(fabric, op, nbytes, ranks, chosen, cluster, eager)
    return pick(crosses, _spread_across(fabric, op, nbytes, ranks, chosen, cluster), inside)


def _spread_across(fabric: Fabric, op: str, nbytes: Number, ranks: Number, chosen: PathChoice, cluster: Cluster) -> Number:
    """Return the width between hosts: that of a machine's curve, else no less than the inner stage's, by its share of the time."""
    if fabric.network.curves and (curve := curve_of(fabric.network, op)):
        return np.expm1(Z80 * sigma_over(curve, nbytes, ranks, cluster.domain))
    timed = fabric.label.kind in MEASURED
    width = _residual(fabric, op, nbytes, "across", timed)
    if fabric.spreads:
        measured = timed and cluster.domain <= _largest_timed_group(fabric, op)
        width = np.maximum(width, chosen.inside * _residual(fabric, op, nbytes, cluster.intra.kind, measured))
    seen = fabric.network.ranks or (1, np.inf)
    return pick(np.logical_and(ranks >= seen[0], ranks <= seen[-1]), width, np.maximum(width, UNMEASURED))


def _inside_spread(
    fabric: Fabric, op: str, nbytes: Number, ranks: Number, chosen: PathChoice, cluster: Cluster, eager: bool
) -> Number:  # fmt: skip
    """Return the width inside a fast domain, by what was measured there and on how many ranks, or a machine's fit."""
    timed = (fabric.label.kind in MEASURED) & (np.asarray(ranks) <= _largest_timed_group(fabric, op))
    measured = _residual(fabric, op, nbytes, "eager" if eager else cluster.intra.kind, True) if holds_anywhere(timed) else 0.0
    width = pick(timed, measured, 0.0 if np.all(timed) else _residual(fabric, op, nbytes, cluster.intra.kind, False))
    for index, path in enumerate(fabric.paths[op]):
        if path.spread:
            inside = np.logical_and(ranks >= path.ranks[0], ranks <= path.ranks[-1]) if path.ranks else True
            width = pick(chosen.path == index, pick(inside, path.spread, max(path.spread, UNMEASURED)), width)
    return width


def _largest_timed_group(fabric: Fabric, op: str) -> int:
    return max(map(_largest_measured_group, fabric.paths[op]))


def _residual(fabric: Fabric, op: str, nbytes: Number, where: str, measured: bool) -> Number:
    """Return the half-width by place, collective and size, which on another chip or more ranks is "assumed", by link."""
    place = where if measured or where == "across" else f"assumed {where}"
    if place not in {s.where for s in fabric.spreads}:
        place = "across" if where == "across" else "" if measured else "assumed"
    usual = fabric.network.spread if place == "across" else fabric.spread
    here = [s for s in fabric.spreads if s.where == place and (not s.ops or op in s.ops)]
    if not isinstance(nbytes, np.ndarray):
        return next((s.factor for s in here if nbytes <= s.max_bytes), usual)
    return np.select([nbytes <= s.max_bytes for s in here], [s.factor for s in here], usual) if here else usual + 0.0 * nbytes


def inference_bill(t: PricingTerms, work: Workload, tokens: Number) -> Bill:
    """Price one step: the sum of what is exposed of every kernel and collective on one rank."""
    sigma = math.inf if holds_anywhere(np.asarray(work.prefill_tokens) > 0) else t.whole_sigma
    t = in_step(t, work)
    return Bill(expose_lines(step_lines(t, work), t), tokens, known_sigma=sigma, measured=t.measured)


def backend_of(work: Workload, engine: Engine, backend: str) -> str:
    """Return the backend that carries a step's tokens to experts: the server's, unless its engine changes by step."""
    by_step = engine.sends.exchange_by_step and holds_anywhere(np.asarray(work.prefill_tokens) > 0)
    return bulk_backend(backend) if by_step else backend


def in_step(t: PricingTerms, work: Workload) -> PricingTerms:
    """Return what a step is priced from, with the exchange that the engine runs in it."""
    backend = backend_of(work, t.engine, t.settings.ep_backend)
    return t if backend == t.settings.ep_backend else replace(t, settings=replace(t.settings, ep_backend=backend))


def expose_lines(lines: Sequence[Line], t: PricingTerms) -> tuple[Line, ...]:
    """Return the lines of a served step, each with its hidden part: what techniques cover, or the share that a user supposes."""
    supposed = t.settings.overlap
    if supposed:
        return tuple(x.beside(0.0, supposed * x.total_s, x.sigma) if x.kind == "comm" else x for x in lines)
    return tuple(lines) if t.techniques is NO_TECHNIQUES else overlap.exposed(lines, t)


def step_lines(t: PricingTerms, work: Workload) -> list[Line]:
    """Return kernels, the wait for the host, and collectives of one step, before ``expose_lines`` hides any of them."""
    if t.techniques is NO_TECHNIQUES:
        return _plain_lines(t, work)
    lines, halved = _batch_lines(t, work), overlap.is_halved(t, work)
    if not holds_anywhere(halved):
        return lines
    both = overlap.both_halves(_batch_lines(t, overlap.half_of(work)), lines, t, work)
    launched_twice = replace(t, engine=t.engine.but(prompt_s=2 * t.engine.host.prompt_s))
    return overlap.either(halved, [*both, host_line(both, work, launched_twice)], lines)


def _batch_lines(t: PricingTerms, work: Workload) -> list[Line]:
    whole = overlap.keeps_sequences(t, work)
    if not holds_anywhere(whole):
        return _overlap_batches(_plain_lines(t, work), t, work.rows)
    plain = _plain_lines(replace(t, plan=replace(t.plan, sequence_parallel=False)), work)
    return overlap.either(whole, plain, plain if np.all(whole) else _overlap_batches(_plain_lines(t, work), t, work.rows))


def _overlap_batches(lines: list[Line], t: PricingTerms, rows: Number) -> list[Line]:
    wanted = t.techniques
    if wanted.single_batch or wanted.shared_stream:
        lines = overlap.beside_same_batch(lines, t, rows)
    return overlap.in_tiles(lines, t) if wanted.async_tp else lines


def _plain_lines(t: PricingTerms, work: Workload) -> list[Line]:
    ran = t.settings
    local = prompts_of_rank(work, t.plan.cp) if t.plan.splits_sequences else work
    rows = padded_rows(local.rows, local, t.engine, t.plan.tp, ran.eager)
    sent_as = t.techniques.dispatch_dtype
    items = inference(t.model, t.plan, work, t.engine, ep_backend=ran.ep_backend, eager=ran.eager, dispatch_dtype=sent_as)
    exchange = backend_called(ran.ep_backend or default_backend(t.engine)).experts
    top_p = ran.sampling == "top-p"
    made = step_kernels(
        t.model, t.plan, local, rows, t.engine, exchange, ran.imbalance, top_p, t.techniques.balanced, t.copied_tokens
    )
    if t.techniques.fused_reduce:
        items, made = fuse(items, made, t)
    if t.drafter:
        from commtax.cost.drafting import draft_step  # not for those who draft nothing

        drafted, sent = draft_step(t, work)
        items, made = [*items, *sent], [*made, *drafted]
    kernels, comm = served_lines(made, t), comm_lines(items, Pricer(t), repeat(ran))
    lines = [*kernels, host_line([*kernels, *comm], work, t), *comm]
    if (pace := t.engine.paces.pace_prompt_steps) == 1:
        return lines
    # Steps with prompts go at the pace that runs taught, none below what bytes and FLOPs allow the step.
    whole = Bill(tuple(x for x in lines if x.kind == "compute"), 1)
    least = np.minimum(1.0, whole.least_s(t.cluster.chip.memory_Bps) / whole.step_s)
    factor = pick(np.asarray(work.prefill_tokens) > 0, np.maximum(pace, least), 1.0)
    return [replace(x, fixed_s=x.fixed_s * factor, moving_s=x.moving_s * factor) for x in lines]


def num_launches(lines: Iterable[Line], engine: Engine) -> Number:
    """Return the launches of kernels and collectives: several for a form that stands for all that surrounds experts."""
    many = engine.kernels.routing_launches
    return sum((line.item.count * (many if line.item.form in AROUND else 1.0) for line in lines), start=0.0)


def host_parts(lines: list[Line], work: Workload, t: PricingTerms) -> dict[str, Number]:
    """Return the seconds that the GPU waits for the host, by the engine's field that holds them."""
    host = t.engine.host
    parts: dict[str, Number] = {
        "host_s": host.host_s,
        "host_s_per_doubling": host.host_s_per_doubling * np.log2(t.plan.tp * 1.0),
        "host_s_per_seq": host.host_s_per_seq * (work.decode_seqs + work.prefill_seqs),
        "prompt_s": host.prompt_s * (np.asarray(work.prefill_tokens) > 0),
    }
    if t.drafter:
        from commtax.cost.drafting import draft_host_s

        parts["draft_step_s"] = draft_host_s(t, work)
    if t.settings.eager or host.launches:
        launches = num_launches(lines, t.engine)
        late = sum((line.item.count * line.launch_s for line in lines), start=0.0)
        busy = sum((line.total_s for line in lines), start=late)
        parts |= {"gap_s": launches * host.gap_s, "launch_s": np.maximum(0, launches * host.launch_s - busy), LATE: late}
    return parts


def _launch_note(lines: list[Line], t: PricingTerms) -> Note:
    """Note what launching a scalar step without graphs takes, and what of it the GPU does not wait for."""
    if not t.settings.eager:
        return NO_NOTE
    launches, busy = num_launches(lines, t.engine), sum((line.total_s for line in lines), start=0.0)
    taken = launches * t.engine.host.launch_s
    if np.ndim(launches) or np.ndim(busy) or not taken:
        return NO_NOTE
    work = f"{format_seconds(busy)} of work on the device"
    hidden = f"hidden behind {work}" if taken <= busy else f"longer than {work}"
    late = sum((line.item.count * line.launch_s for line in lines), start=0.0)
    waits = f"; collectives launched from Python start {format_seconds(late)} late in all" if late else ""
    return Note("launches", f"{launches:,.0f} launches without graphs take {format_seconds(taken)}, {hidden}{waits}")


def host_line(lines: list[Line], work: Workload, t: PricingTerms) -> Line:
    """Return the time that the GPU waits for the host: scheduling each step, and without graphs launching every kernel."""
    host = t.engine.host
    waiting: Number = sum(host_parts(lines, work, t).values())
    unmeasured = Source("assumed" if host.host_s else "by definition")
    source = (host.host_label or Source("calibrated")) if host.calibrated else unmeasured
    item = Item("scheduling and launches", "", "host", 0.0, 1, waiting * 0 + 1)
    return Line("host", item, waiting, 0.0, source=source, sigma=host.sigma_host, why=_launch_note(lines, t))
