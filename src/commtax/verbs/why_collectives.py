"""A collective's line explained: bytes on the wire, the path and why, latency and wire, the library's constants and the window."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain

import numpy as np

from commtax.catalog.fabric import source_title
from commtax.cost.collectives import ALGORITHMS, PathChoice, cross_domains
from commtax.cost.forms.form import equation_of
from commtax.cost.kernels import Factor
from commtax.cost.measured_curves import factor_over
from commtax.cost.pricing import Pricer, all_reduce_share, in_step, scaled_s
from commtax.cost.training import scales
from commtax.ledger import Z80, Line
from commtax.question import WhatIf
from commtax.spec import Fabric, Path
from commtax.verbs.billing import StepBill
from commtax.verbs.settling import terms_of
from commtax.verbs.why_parts import CollectiveWay, Explanation, Floor, PricedBy, TimePart, factor_effects

CONSTANTS = (
    "bandwidth_Bps",
    "launch_s",
    "hop_s",
    "extra_s",
    "each_s",
    "sqrt_s",
    "beside_s",
    "local_s",
    "copied",
    "wire_share",
    "mesh",
)
ACROSS = ("efficiency", "norm", "hops", "pipelining", "eager_s")  # constants of a path, and of the network between hosts


def explained_collective(b: StepBill, x: Line) -> Explanation:
    q = b.question
    pricer = Pricer(terms_of(q) if q.trains else in_step(terms_of(q), q.work))
    if pricer.pairs and pricer.span(x.item.axis).paired:
        pricer = pricer.pairs
    settings = scales(x.item, q.what_if, q.engine) if q.trains else q.what_if
    chosen, (fabric, op) = pricer.price(x.item), pricer.priced_by(x.item)
    where = pricer.span(x.item.axis)
    crosses = bool(where.crosses)
    path = (fabric.network_paths if crosses else fabric.paths)[op][int(chosen.path)]
    paces = ((name, getattr(q.engine.paces, name)) for name in ("pace_latency", "pace_wire"))
    alone = float(sum(scaled_s(x.item, chosen, q.engine, settings)))
    prompts = float(x.each_s) / alone if alone and q.engine.paces.pace_prompt_steps != 1 else 1.0
    factors: tuple[Factor, ...] = (("reduce_share", all_reduce_share(x.item, q.engine)), *paces, ("pace_prompt_steps", prompts))
    if q.trains and x.item.whole_axis == "dp":
        factors += (("gather_rate", q.engine.trains.gather_rate),)
    domains = float(where.domains)
    sent = float(x.item.sent_bytes_per_rank) / float(x.item.count)
    window = (x.item.overlaps_with, float(x.window_s)) if float(x.window_s) else ("", 0.0)
    ranks = float(x.item.ranks)
    return Explanation(
        parts=tuple(_parts(x, chosen, pricer, settings, prompts)),
        shape={"ranks": float(x.item.ranks), "ranks_per_domain": float(where.ranks_per_domain)},
        nbytes=float(x.item.nbytes),
        floor=None if crosses else _floor(x, pricer),
        priced_by=_priced_by(path, fabric, crosses, x),
        way=CollectiveWay(x.item.op, str(x.algorithm), str(x.link), ranks, domains, sent, str(x.why), fabric.name, *window),
        effects=factor_effects(q, factors),
        source=x.source,
        doubts=tuple(_doubts(x)),
    )


def _parts(x: Line, chosen: PathChoice, pricer: Pricer, settings: WhatIf, pace: float) -> Iterator[TimePart]:
    latency, wire = (pace * float(s) for s in scaled_s(x.item, chosen, pricer.terms.engine, settings))
    yield TimePart("latency", "launch, hops and what fills a pipeline: the same for any size", latency, float(chosen.latency_s))
    yield TimePart("wire", "bytes at the rate that the path reaches", wire, float(chosen.wire_s))


def _floor(x: Line, pricer: Pricer) -> Floor:
    """The least bytes of the collective over the link inside a domain."""
    rate = pricer.cluster.intra.bandwidth_Bps
    least = float(x.item.sent_bytes_per_rank) / float(x.item.count) / rate
    return Floor(least, 0.0, least, "bytes", rate, np.inf)


def _priced_by(path: Path, fabric: Fabric, crosses: bool, x: Line) -> PricedBy:
    usual: Mapping[str, object] = {f.name: f.default for f in fields(Path)}
    own = {name: float(getattr(path, name)) for name in CONSTANTS if getattr(path, name) != usual[name]}
    own |= {f"contention on {world}": slower for world, slower in path.contention}
    network, crossed = fabric.network, crosses and not fabric.flat
    between = {f"network {name}": float(getattr(network, name)) for name in ACROSS} if crossed else {}
    if crossed and network.curves:
        nbytes, ranks = float(x.item.nbytes), float(x.item.ranks)
        between["network measured"] = float(factor_over(network, x.item.op, nbytes, ranks))
    words = equation_of(ALGORITHMS[path.algorithm])
    words = f"{equation_of(cross_domains)}; inside: {words}" if crossed else words
    names = (str(path.source), network.source if crossed else "")
    source = "; ".join(dict.fromkeys(chain((str(x.source),), (source_title(fabric.name, name) or name for name in names if name))))
    return PricedBy(path.algorithm, words, path.name or path.algorithm, own | between, x.source.kind, source)


def _doubts(x: Line) -> Iterator[str]:
    width = float(np.expm1(Z80 * float(x.sigma)))
    yield f"4 of 5 measured times of such collectives lie within a factor of {1 + width:.2f} of the price ({x.source})"
