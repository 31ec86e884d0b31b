"""Fit what crosses hosts, and judge it with whole sources left out: ``python benchmarks/fit_network.py DATA_DIR``.

Constants of all networks (protocols, efficiency) and of single ones (latency, fill) are moved together from where the files
have them (sizes that are an even power of two). Then every source is left out in turn: the others are fitted anew, and a network
that only the source left out tells of has what was assumed of it before anybody measured it. Prints what to write into
``catalog/libraries/nccl.toml`` and ``catalog/links``, and errors by source.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fitting import Array, Constants, Descent, collective_rows, leave_out, miss

from commtax import catalog
from commtax.cost.collectives import price
from commtax.cost.placement import Span
from commtax.cost.pricing import launched_s
from commtax.files import MiB
from commtax.spec import Network
from commtax.statement import Refusal
from commtax_lab.published.collective_rows import Curve, ask, describe, even_power, question

DESCENT = Descent(scale=0.05, rounds=12, reach=0.3, tries=6)
FARTHEST = 1.5  # of a logarithm, from where a constant is
QUANTILE = 0.82
SHARED = ("LL.most_Bps", "LL128.share", "LL128.extra_s", "Simple.fill_s", "Simple.level_s", "efficiency", "hops", "eager_s")
LINKS = ("efa-100.latency_s", "efa-100.efficiency", "efa-100.fill_s", "tcpxo-200.latency_s", "tcpxo-200.fill_s")
LINKS += ("efa-v4-400.latency_s",)
UNMEASURED = {"latency_s": 20e-6, "efficiency": 1.0, "fill_s": 0.0}  # of a network that nobody measured: the plugin's own latency


@dataclass(frozen=True, slots=True)
class Swept:
    """One curve of one source."""

    source: str
    curve: Curve
    sizes: Array
    times: Array


def sweeps(folder: Path) -> list[Swept]:
    """All curves across hosts of NCCL whose network is known."""
    found: dict[tuple[str, Curve], list[tuple[float, float]]] = defaultdict(list)
    for row in collective_rows(folder):
        try:
            curve, entry = question(row), describe(row)
            sound = ask(row, entry).entries[0].sound
        except (Refusal, ValueError):
            continue
        if sound and curve.crosses and curve.cluster.chip.vendor == "nvidia" and "vidur" not in row["source_id"]:
            found[row["source_id"], curve].append((float(row["bytes"]), float(row["time_us"]) * 1e-6))
    return [Swept(source, curve, *np.array(sorted(points)).T) for (source, curve), points in found.items()]


def now() -> Constants:
    """The constants as the files have them."""
    network = catalog.fabric("nccl", catalog.cluster("2xdgx-h100")).network
    parts = {p.name: p for p in network.protocols}
    shared = {n: getattr(parts[n.split(".")[0]], n.split(".")[1]) if "." in n else getattr(network, n) for n in SHARED}
    return shared | {n: getattr(catalog.link(n.split(".")[0]), n.split(".")[1]) for n in LINKS}


def with_constants(network: Network, values: Constants) -> Network:
    own = {n: v for n, v in values.items() if "." not in n}
    named = [(*n.split("."), v) for n, v in values.items() if "." in n]
    protocols = tuple(replace(p, **{n: v for of, n, v in named if of == p.name}) for p in network.protocols)
    return replace(network, protocols=protocols, **own)


def predicted(one: Swept, values: Constants) -> Array:
    curve = one.curve
    key = curve.cluster.inter.key
    link = replace(curve.cluster.inter, **{n.split(".")[1]: v for n, v in values.items() if n.split(".")[0] == key})
    place = replace(curve.cluster, inter=link)
    fabric = catalog.fabric("nccl", curve.cluster)
    fabric = replace(fabric, network=with_constants(fabric.network, {n: v for n, v in values.items() if n in SHARED}))
    where = Span(curve.ranks, curve.inside, -(-curve.ranks // curve.inside))
    took = price(curve.op, one.sizes, curve.ranks, where, place, fabric)
    latency = launched_s(fabric, took.latency_s, took.wire_s, True) if curve.eager else took.latency_s
    return np.asarray(latency + took.wire_s)


def errors(some: Iterable[Swept], values: Constants) -> Array:
    return np.concatenate([np.log(predicted(one, values) / one.times) for one in some])


def fitted(some: Iterable[Swept]) -> list[Swept]:
    """The sizes that are fitted: even powers of two, as in the tables of single hosts; those between test them."""
    halves = [(one, np.array([even_power(x) for x in one.sizes])) for one in some]
    return [replace(one, sizes=one.sizes[even], times=one.times[even]) for one, even in halves if even.any()]


def fit(some: list[Swept], start: Constants) -> Constants:
    """Constants that half of the sizes of these curves tell of; the others stay."""
    some = fitted(some)
    told = {one.curve.cluster.inter.key for one in some}
    eager = any(one.curve.eager for one in some)
    names = [n for n in start if ("." not in n or n in SHARED or n.split(".")[0] in told) and (n != "eager_s" or eager)]

    def at(z: Array) -> Constants:
        return start | {n: start[n] * float(np.exp(x)) for n, x in zip(names, z, strict=True)}

    return at(DESCENT.solve(lambda z: errors(some, at(z)), np.zeros(len(names)), -FARTHEST, FARTHEST)[0])


def sizes_of(some: list[Swept], source: str) -> Array:
    return np.concatenate([one.sizes for one in some if one.source == source])


def left_out(some: list[Swept], values: Constants) -> dict[str, Array]:
    """Log errors of each source by constants that were fitted without it."""
    found = {}
    for source, others, own in leave_out(some, lambda one: one.source):
        told = {one.curve.cluster.inter.key for one in others}
        start = {n: UNMEASURED[n.split(".")[1]] if n in LINKS and n.split(".")[0] not in told else v for n, v in values.items()}
        found[source] = errors(own, fit(others, start))
    return found


def table(some: list[Swept], values: Constants, without: dict[str, Array]) -> None:
    inside = {s: errors([one for one in some if one.source == s], values) for s in without}
    sizes = {s: sizes_of(some, s) for s in without}
    width = np.quantile(np.abs(np.concatenate(list(without.values()))), QUANTILE)
    print(f"{'source':28s} rows  1 MiB - 1 GiB: told, left out; all sizes: told, left out; in the 80 % range of all left out")
    every: list[tuple[Array, Array]] = []
    for s in without:
        mid = (sizes[s] >= MiB) & (sizes[s] <= 1024 * MiB)
        every.append((inside[s][mid], without[s][mid]))
        parts = (inside[s][mid], without[s][mid], inside[s], without[s])
        shown = [miss(x) for x in parts]
        held = np.mean(np.abs(without[s]) <= width)
        print(f"{s:28s} {len(mid):4d}  {shown[0]:6.1%} {shown[1]:6.1%}   {shown[2]:6.1%} {shown[3]:6.1%}   {held:.0%}")
    told, unseen = (np.concatenate(x) for x in zip(*every, strict=True))
    print(f"all, 1 MiB - 1 GiB: {len(told)} rows, told {miss(told):.1%}, ", end="")
    print(f"left out {miss(unseen):.1%}; width {np.expm1(width):.3f}")


def main(folder: Path) -> None:
    some = sweeps(folder)
    values = fit(some, now())
    for name, value in values.items():
        print(f"{name} = {value:.4g}")
    table(some, values, left_out(some, values))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
