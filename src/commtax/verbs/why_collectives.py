"""A collective's line explained: bytes on the wire, the path and why, latency and wire, the library's constants and the window."""

from collections.abc import Mapping
from dataclasses import fields
from itertools import chain

import numpy as np

from commtax.catalog.fabric import source_title
from commtax.cost.collectives import ALGORITHMS, cross_domains
from commtax.cost.forms.form import equation_of
from commtax.cost.kernels import Factor
from commtax.cost.measured_curves import factor_over
from commtax.cost.pricing import Pricer, all_reduce_share, scaled_s
from commtax.cost.training import scales
from commtax.ledger import Z80, Line
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
    t = terms_of(q)
    pricer = Pricer(t)
    if pricer.pairs and pricer.span(x.item.axis).paired:
        pricer = pricer.pairs
    settings = scales(x.item, q.what_if, q.engine) if q.trains else q.what_if
    chosen, (fabric, op) = pricer.price(x.item), pricer.priced_by(x.item)
    where = pricer.span(x.item.axis)
    crosses = bool(where.crosses)
    path = (fabric.network_paths if crosses else fabric.paths)[op][int(chosen.path)]
    paces = ((name, getattr(q.engine.paces, name)) for name in ("pace_latency", "pace_wire"))
    scaled = tuple(float(s) for s in scaled_s(x.item, chosen, q.engine, settings))
    prompts = float(x.each_s) / sum(scaled) if sum(scaled) and q.engine.paces.pace_prompt_steps != 1 else 1.0
    latency, wire = (prompts * s for s in scaled)
    factors: tuple[Factor, ...] = (("reduce_share", all_reduce_share(x.item, q.engine)), *paces, ("pace_prompt_steps", prompts))
    if q.trains and x.item.whole_axis == "dp":
        factors += (("gather_rate", q.engine.trains.gather_rate),)
    ranks, domains = float(x.item.ranks), float(where.domains)
    sent, rate = float(x.item.sent_bytes_per_rank) / float(x.item.count), pricer.cluster.intra.bandwidth_Bps
    window = (x.item.overlaps_with, float(x.window_s)) if float(x.window_s) else ("", 0.0)
    width = float(np.exp(Z80 * float(x.sigma)))
    return Explanation(
        parts=(
            TimePart("latency", "launch, hops and what fills a pipeline: the same for any size", latency, float(chosen.latency_s)),
            TimePart("wire", "bytes at the rate that the path reaches", wire, float(chosen.wire_s)),
        ),
        shape={"ranks": ranks, "ranks_per_domain": float(where.ranks_per_domain)},
        nbytes=float(x.item.nbytes),
        floor=None if crosses else Floor(sent / rate, 0.0, sent / rate, "bytes", rate, np.inf),
        priced_by=_priced_by(path, fabric, crosses, x),
        way=CollectiveWay(x.item.op, str(x.algorithm), str(x.link), ranks, domains, sent, str(x.why), fabric.name, *window),
        effects=factor_effects(q, factors),
        source=x.source,
        doubts=(f"4 of 5 measured times of such collectives lie within a factor of {width:.2f} of the price ({x.source})",),
    )


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
