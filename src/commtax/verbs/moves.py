"""Where a slider may go. A size that is tied to others takes them along: experts follow tp x dp, and a full cluster gives way.

Each value of an axis is tried with the rest of the plan as it is, then with what may follow, in a fixed order; the first plan
that is legal is the move. Training keeps a full cluster full, and its global batch, as the what-ifs do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax.cost.legality import codes
from commtax.question import Question
from commtax.spec import AXES, SIZES
from commtax.statement import Refusal
from commtax.verbs.checking import check_kinds, check_lengths

GIVES_WAY = {"tp": ("dp", "pp"), "pp": ("dp", "tp"), "cp": ("dp", "tp"), "dp": ("pp", "tp"), "ep": ()}
"""Whose size shrinks where an axis grows past the cluster, first to last."""
NAMES = {"microbatches": "microbatches", "zero": "ZeRO"}
SMALL, MOST_VALUES, MOST_PARTS = 64, 48, 6
WEIGHTS = {"tp": 1.0, "pp": 1.0, "cp": 1.0, "dp": 0.9, "ep": 0.1}
"""How far a halving of each axis is from what was asked for."""
Sizes = dict[str, int]
"""Sizes and kinds of a plan by name, each as a number."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where sliders stand: a plan, its step, and how far each slider reaches."""

    asked: Question
    training: bool
    batch: int  # sequences of a microbatch
    length: int
    most: Mapping[str, int]

    @property
    def gpus(self) -> int:
        return self.asked.cluster.num_gpus


@dataclass(frozen=True, slots=True)
class Move:
    """One place of a slider: its value, all sizes that it sets, and what it says about those that followed."""

    value: int
    sizes: Sizes
    note: str = ""


def moves(at: Place) -> dict[str, list[Move]]:
    """For each axis its legal values in order."""
    now = _now(at.asked)
    return {axis: _along(axis, at, now) for axis in SIZES} | {"local": _local(at) if at.training else []}


def _now(asked: Question) -> Sizes:
    return {name: int(getattr(asked.plan, name)) for name in (*SIZES, "microbatches", "zero", "sequence_parallel")}


def _along(axis: str, at: Place, now: Sizes) -> list[Move]:
    tried = [(value, sizes) for value in _values(axis, at, now) for sizes in _tries(axis, value, at, now)]
    legal = _legal(at.asked, [sizes for _, sizes in tried])
    first: dict[int, Sizes] = {}
    for (value, sizes), ok in zip(tried, legal, strict=True):
        if ok and value not in first and (settled := _settled(sizes, at)):
            first[value] = settled
    few = _few(sorted(first), now[axis])
    keys = [name for name in now if name == axis or any(first[v][name] != now[name] for v in few)]
    return [Move(v, {key: first[v][key] for key in keys}, _note(axis, first[v], now, at)) for v in few]


def _legal(asked: Question, tried: list[Sizes]) -> np.ndarray[Any, Any]:
    """Which of these sizes break no rule, all judged at once."""
    names = (*SIZES, "microbatches")
    columns: Any = {name: np.array([sizes[name] for sizes in tried]) for name in names}
    return np.asarray(codes(asked.model, asked.cluster, replace(asked.plan, **columns), asked.engine) == 0)


def _settled(sizes: Sizes, at: Place) -> Sizes | None:
    """The sizes with the kinds that go with them: megatron's experts beside tp shard sequences, pipelines keep gradients whole."""
    sharded, whole = {"sequence_parallel": 1}, {"zero": min(1, sizes["zero"])}
    for way in [{}, sharded, whole, sharded | whole] if at.training else [{}]:
        settled: Any = {**sizes, **way}
        plan = replace(at.asked.plan, **{**settled, "sequence_parallel": bool(settled["sequence_parallel"])})
        try:
            check_kinds(plan, at.asked.engine, at.asked.cluster.chip)
            if at.training:
                check_lengths(replace(at.asked, plan=plan, context=at.length))
        except Refusal:
            continue
        return dict(settled)
    return None


def _values(axis: str, at: Place, now: Sizes) -> list[int]:
    """Sizes worth trying: all small ones, powers of two, what the cluster just holds, and whole shares of experts."""
    experts = at.asked.model.experts.num_experts if at.asked.model.experts else 1
    most = min(at.most[axis], at.gpus, experts if axis == "ep" else at.gpus)
    tried = {*range(1, SMALL + 1), *(2**i for i in range(15)), *_divisors(experts), now[axis]}
    tried |= {_room(axis, now, at.gpus), at.gpus}
    return sorted(v for v in tried if 1 <= v <= most)


def instead(at: Place, wanted: Sizes) -> tuple[Sizes, str] | None:
    """For sizes that are refused: the legal plan of whole parts of them that is nearest, and its words; ``at`` is one GPU's."""
    parts = [sorted({1, *_divisors(wanted[name])[-MOST_PARTS:]}) for name in ("tp", "pp", "cp", "dp")]
    tried = []
    for tp, pp, cp, dp in itertools.product(*parts):
        for ep in {wanted["ep"], tp * dp, 1} if wanted["ep"] > 1 else {1}:
            tried.append({"tp": tp, "pp": pp, "dp": dp, "ep": ep, "cp": cp})
    tried.sort(key=lambda sizes: sum(WEIGHTS[n] * abs(math.log2(wanted[n] / sizes[n])) for n in SIZES))
    kinds = {name: value for name, value in _now(at.asked).items() if name not in SIZES}
    for i in np.flatnonzero(_legal(at.asked, [sizes | kinds for sizes in tried]))[:MOST_PARTS].tolist():
        if settled := _settled(tried[i] | kinds, at):
            keys = [n for n in SIZES if settled[n] != wanted[n]] + [n for n in kinds if settled[n] != kinds[n]]
            named = ["sequence parallelism" if n == "sequence_parallel" else f"{_name(n)} {settled[n]:,}" for n in keys]
            return ({key: settled[key] for key in keys}, ", ".join(named)) if keys else None
    return None


def _name(size: str) -> str:
    return NAMES.get(size, size.upper())


def _tries(axis: str, value: int, at: Place, now: Sizes) -> Iterator[Sizes]:
    """Plans with this value, from the one that people expect on."""
    for sizes in _shapes(axis, {**now, axis: value}, at, now):
        each, rest = divmod(now["microbatches"] * now["dp"], sizes["dp"])
        if at.training and axis != "dp" and not rest and each <= at.most["microbatches"]:
            sizes["microbatches"] = each
        for ep in _spread(axis, sizes, at):
            yield {**sizes, "ep": ep}


def _shapes(axis: str, base: Sizes, at: Place, now: Sizes) -> Iterator[Sizes]:
    """The value alone, then with sizes that give way. A cluster that is full stays full, or the value is passed over."""
    total = at.gpus
    full = _gpus(now) == total
    kept = {**base, "dp": max(1, _room("dp", base, total))}
    if at.training and full and axis in ("tp", "pp", "cp") and _gpus(kept) == total:
        yield kept
    yield dict(base)
    if axis == "ep":
        yield from _for_experts(base, at.asked)
    shrunk = dict(base)
    for name in GIVES_WAY[axis]:
        shrunk[name] = max(1, min(shrunk[name], _room(name, shrunk, total)))
        if _gpus(shrunk) == total or not full:
            yield dict(shrunk)


def _for_experts(base: Sizes, asked: Question) -> Iterator[Sizes]:
    """Ranks for so many shares of the experts: more or fewer replicas, else another tp."""
    ep = base["ep"]
    if not asked.engine.sends.experts_keep_tp:
        yield {**base, "dp": max(1, ep // base["tp"])}
        yield {**base, "tp": max(1, ep // base["dp"])}
        return
    wide = {**base, "dp": max(1, ep // base["cp"])}
    yield wide
    yield {**wide, "tp": max(1, min(base["tp"], _room("tp", wide, asked.cluster.num_gpus)))}


def _spread(axis: str, sizes: Sizes, at: Place) -> list[int]:
    """Sizes of the experts' group, as it is first; where it must follow, over all of tp x dp, or over fewer."""
    ep, experts = sizes["ep"], at.asked.model.experts
    if axis == "ep" or ep == 1 or experts is None:
        return [ep]
    if not at.training:
        return [ep, sizes["tp"] * sizes["dp"]]
    ranks = sizes["dp"] * sizes["cp"]
    fewer = [d for d in reversed(_divisors(experts.num_experts)) if d < ep and ranks % d == 0]
    return [ep, *(d for d in fewer if d > 1 or ranks == 1)]


def _note(axis: str, sizes: Sizes, now: Sizes, at: Place) -> str:
    """What followed, and why; "" where nothing did."""
    changed = [name for name in now if name != axis and sizes[name] != now[name]]
    if not changed:
        return ""
    followed = [f"{_name(n)} {now[n]:,} → {sizes[n]:,}" for n in changed if n != "sequence_parallel"]
    followed += ["sequence parallelism on"] if "sequence_parallel" in changed else []
    why = []
    if any(n in ("tp", "pp", "dp") for n in changed):
        why.append(f"{_gpus(sizes):,} of {at.gpus:,} GPUs in use")
    if "ep" in changed or axis == "ep":
        tied = f"{at.asked.engine.key} spreads experts over tp x dp"
        why.append(tied if at.asked.engine.sends.ep_is_tp_dp else "experts need whole groups of ranks")
    before, after = (x["microbatches"] * x["dp"] * at.batch for x in (now, sizes))
    if at.training and "dp" in (axis, *changed):
        why.append("the same global batch" if before == after else f"global batch {before:,} → {after:,}")
    return f"With {axis.upper()} {sizes[axis]:,}: {', '.join(followed)}" + (f" ({'; '.join(why)})" if why else "")


def _gpus(sizes: Sizes) -> int:
    return math.prod(sizes[axis] for axis in AXES)


def _room(axis: str, sizes: Sizes, total: int) -> int:
    """The size of one axis up to which the cluster holds the plan."""
    return total // (_gpus({**sizes, axis: 1}) if axis != "ep" else 1)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _few(values: list[int], now: int) -> list[int]:
    """All of a short list; of a long one those that people use."""
    if len(values) <= MOST_VALUES:
        return values
    return [v for v in values if v <= 16 or v & (v - 1) == 0 or v in (now, values[-1])]


def _local(at: Place) -> list[Move]:
    """Local tokens are micro-batch times sequence, a cp rank's share: the sequence stays as long as it goes into them."""
    cp = int(at.asked.plan.cp)
    values = sorted({*(2**i for i in range(7, 18)), at.batch * at.length // cp})
    return [Move(v, dict(zip(("batch", "context"), _rows(v * cp, at.length), strict=True))) for v in values]


def _rows(tokens: int, length: int) -> tuple[int, int]:
    """So many tokens as sequences of one length; as one sequence where they are no whole number of them."""
    return (1, tokens) if tokens % length else (tokens // length, length)
