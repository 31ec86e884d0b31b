"""Where a slider may go. A size that is tied to others takes them along: experts follow tp x dp, and a full cluster gives way.

Each value of an axis is tried with the rest of the plan as it is, then with what may follow, in a fixed order; the first plan
that is legal is the move. Training keeps a full cluster full, and its global batch, as the what-ifs do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from commtax.api.sending import check_lengths
from commtax.api.setup import Setup, check_kinds
from commtax.cost.legality import codes
from commtax.report.documents import Document
from commtax.report.view.state import BY_NAME, State

AXES = ("tp", "pp", "dp", "ep", "cp")
GIVES_WAY = {"tp": ("dp", "pp"), "pp": ("dp", "tp"), "cp": ("dp", "tp"), "dp": ("pp", "tp"), "ep": ()}
"""Whose size shrinks where an axis grows past the cluster, first to last."""
NAMES = {"n": "microbatches", "z": "ZeRO"}
SMALL, MOST_VALUES, MOST_PARTS = 64, 48, 6
WEIGHTS = {"tp": 1.0, "pp": 1.0, "cp": 1.0, "dp": 0.9, "ep": 0.1}
"""How far a halving of each axis is from what was asked for."""
Sizes = dict[str, int]


def moves(asked: Setup, state: State) -> dict[str, list[Document]]:
    """For each axis its legal values in order, each with the keys that it sets and what it says about the ones that followed."""
    found = {axis: _along(axis, asked, state) for axis in AXES}
    return found | {"local": _local(state) if state.training else []}


def _along(axis: str, asked: Setup, state: State) -> list[Document]:
    plan = asked.plan
    now = {name: int(getattr(plan, name)) for name in AXES}
    now |= {"n": int(plan.microbatches), "z": int(plan.zero), "sp": int(plan.sequence_parallel)}
    tried = [(value, sizes) for value in _values(axis, asked, now) for sizes in _tries(axis, value, asked, now, state)]
    columns: dict[str, Any] = {name: np.array([sizes[name] for _, sizes in tried]) for name in AXES}
    columns["microbatches"] = np.array([sizes["n"] for _, sizes in tried])
    legal = codes(asked.model, asked.cluster, replace(plan, **columns), asked.engine) == 0
    first: dict[int, Sizes] = {}
    for (value, sizes), ok in zip(tried, legal, strict=True):
        if ok and value not in first and (found := _settled(sizes, asked, state)):
            first[value] = found
    few = _few(sorted(first), now[axis])
    keys = [name for name in now if name == axis or any(first[v][name] != now[name] for v in few)]
    return [{"value": v, "patch": _patch(first[v], keys), "note": _note(axis, first[v], now, asked, state)} for v in few]


def _patch(sizes: Sizes, keys: list[str]) -> Document:
    return {key: str(sizes[key]) if key == "z" else sizes[key] for key in keys}


def _settled(sizes: Sizes, asked: Setup, state: State) -> Sizes | None:
    """The sizes with the kinds that go with them: megatron's experts beside tp shard sequences, pipelines keep gradients whole."""
    ways = [{}, {"sp": 1}, {"z": min(1, sizes["z"])}, {"sp": 1, "z": min(1, sizes["z"])}] if state.training else [{}]
    for way in ways:
        found = {**sizes, **way}
        words: dict[str, Any] = {name: found[name] for name in AXES}
        plan = replace(asked.plan, **words, zero=found["z"], sequence_parallel=bool(found["sp"]), microbatches=found["n"])
        try:
            check_kinds(plan, asked.engine, asked.cluster.chip)
            if state.training:
                check_lengths(state.length, replace(asked, plan=plan))
        except ValueError:
            continue
        return found
    return None


def _values(axis: str, asked: Setup, now: Sizes) -> list[int]:
    """Sizes worth trying: all small ones, powers of two, what the cluster just holds, and whole shares of experts."""
    experts = asked.model.experts.num_experts if asked.model.experts else 1
    most = min(int(BY_NAME[axis].high), asked.cluster.num_gpus, experts if axis == "ep" else asked.cluster.num_gpus)
    tried = {*range(1, SMALL + 1), *(2**i for i in range(15)), *_divisors(experts), now[axis]}
    tried |= {_room(axis, now, asked.cluster.num_gpus), asked.cluster.num_gpus}
    return sorted(v for v in tried if 1 <= v <= most)


def instead(state: State, base: Setup) -> Document | None:
    """For a plan that is refused: the legal one of whole parts of its sizes that is nearest to it. ``base`` is one GPU's."""
    wanted = {name: int(getattr(state, name)) for name in AXES}
    parts = [sorted({1, *_divisors(wanted[name])[-MOST_PARTS:]}) for name in ("tp", "pp", "cp", "dp")]
    tried = []
    for tp, pp, cp, dp in itertools.product(*parts):
        for ep in {wanted["ep"], tp * dp, 1} if wanted["ep"] > 1 else {1}:
            tried.append({"tp": tp, "pp": pp, "dp": dp, "ep": ep, "cp": cp})
    tried.sort(key=lambda sizes: sum(WEIGHTS[n] * abs(math.log2(wanted[n] / sizes[n])) for n in AXES))
    columns: dict[str, Any] = {name: np.array([sizes[name] for sizes in tried]) for name in AXES}
    plan = replace(base.plan, microbatches=state.microbatches if state.training else 1)
    legal = np.flatnonzero(codes(base.model, base.cluster, replace(plan, **columns), base.engine) == 0)
    kinds = {"n": int(plan.microbatches), "z": int(plan.zero), "sp": int(plan.sequence_parallel)}
    for i in legal[:MOST_PARTS].tolist():
        if found := _settled(tried[i] | kinds, replace(base, plan=plan), state):
            keys = [n for n in AXES if found[n] != wanted[n]] + [n for n in ("z", "sp") if found[n] != kinds[n]]
            words = ["sequence parallelism" if n == "sp" else f"{NAMES.get(n, n.upper())} {found[n]:,}" for n in keys]
            return {"patch": _patch(found, keys), "text": ", ".join(words)} if keys else None
    return None


def _tries(axis: str, value: int, asked: Setup, now: Sizes, state: State) -> Iterator[Sizes]:
    """Plans with this value, from the one that people expect on."""
    for sizes in _shapes(axis, {**now, axis: value}, asked, now, state.training):
        each, rest = divmod(now["n"] * now["dp"], sizes["dp"])
        if state.training and axis != "dp" and not rest and each <= BY_NAME["n"].high:
            sizes["n"] = each
        for ep in _spread(axis, sizes, asked, state.training):
            yield {**sizes, "ep": ep}


def _shapes(axis: str, base: Sizes, asked: Setup, now: Sizes, training: bool) -> Iterator[Sizes]:
    """The value alone, then with sizes that give way. A cluster that is full stays full, or the value is passed over."""
    total = asked.cluster.num_gpus
    full = _gpus(now) == total
    kept = {**base, "dp": max(1, _room("dp", base, total))}
    if training and full and axis in ("tp", "pp", "cp") and _gpus(kept) == total:
        yield kept
    yield dict(base)
    if axis == "ep":
        yield from _for_experts(base, asked)
    shrunk = dict(base)
    for name in GIVES_WAY[axis]:
        shrunk[name] = max(1, min(shrunk[name], _room(name, shrunk, total)))
        if _gpus(shrunk) == total or not full:
            yield dict(shrunk)


def _for_experts(base: Sizes, asked: Setup) -> Iterator[Sizes]:
    """Ranks for so many shares of the experts: more or fewer replicas, else another tp."""
    ep = base["ep"]
    if not asked.engine.sends.experts_keep_tp:
        yield {**base, "dp": max(1, ep // base["tp"])}
        yield {**base, "tp": max(1, ep // base["dp"])}
        return
    wide = {**base, "dp": max(1, ep // base["cp"])}
    yield wide
    yield {**wide, "tp": max(1, min(base["tp"], _room("tp", wide, asked.cluster.num_gpus)))}


def _spread(axis: str, sizes: Sizes, asked: Setup, training: bool) -> list[int]:
    """Sizes of the experts' group, as it is first; where it must follow, over all of tp x dp, or over fewer."""
    ep = sizes["ep"]
    if axis == "ep" or ep == 1 or asked.model.experts is None:
        return [ep]
    if not training:
        return [ep, sizes["tp"] * sizes["dp"]]
    ranks = sizes["dp"] * sizes["cp"]
    fewer = [d for d in reversed(_divisors(asked.model.experts.num_experts)) if d < ep and ranks % d == 0]
    return [ep, *(d for d in fewer if d > 1 or ranks == 1)]


def _note(axis: str, sizes: Sizes, now: Sizes, asked: Setup, state: State) -> str:
    """What followed, and why; "" where nothing did."""
    changed = [name for name in now if name != axis and sizes[name] != now[name]]
    if not changed:
        return ""
    words = [f"{NAMES.get(n, n.upper())} {now[n]:,} → {sizes[n]:,}" for n in changed if n != "sp"]
    words += ["sequence parallelism on"] if "sp" in changed else []
    why = []
    if any(n in ("tp", "pp", "dp") for n in changed):
        why.append(f"{_gpus(sizes):,} of {asked.cluster.num_gpus:,} GPUs in use")
    if "ep" in changed or axis == "ep":
        tied = f"{asked.engine.key} spreads experts over tp x dp"
        why.append(tied if asked.engine.sends.ep_is_tp_dp else "experts need whole groups of ranks")
    before, after = (x["n"] * x["dp"] * state.batch for x in (now, sizes))
    if state.training and "dp" in (axis, *changed):
        why.append("the same global batch" if before == after else f"global batch {before:,} → {after:,}")
    return f"With {axis.upper()} {sizes[axis]:,}: {', '.join(words)}" + (f" ({'; '.join(why)})" if why else "")


def _gpus(sizes: Sizes) -> int:
    return sizes["tp"] * sizes["pp"] * sizes["dp"] * sizes["cp"]


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


def _local(state: State) -> list[Document]:
    """Local tokens are micro-batch times sequence, a cp rank's share: the sequence stays as long as it goes into them."""
    length, cp = state.length, state.cp
    found = []
    for value in sorted({*(2**i for i in range(7, 18)), state.batch * length // cp}):
        count, rest = divmod(value * cp, length)
        found.append({"value": value, "patch": {"b": 1, "s": value * cp} if rest else {"b": count, "s": length}, "note": ""})
    return found
