"""Which plans are legal. Arrays get a mask of rule codes; at the edge one broken rule becomes one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax.cost.tensors import stage_layers
from commtax.spec import AXES, Cluster, Engine, Experts, Mlp, Model, Number, Plan

Mask = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule is broken where ``broken`` is true. ``axis`` is the size to change; ``says`` explains with numbers."""

    name: str
    axis: str
    broken: Callable[[Model, Cluster, Plan, Engine], Number]
    says: Callable[[Model, Cluster, Plan, Engine], str]


def _moe(model: Model) -> Experts:
    return model.experts or Experts(1, 1, 1)


def _ffn_width(model: Model) -> int:
    """The width that tp must divide: dense layers' where there are any, else the experts'."""
    return next((b.ffn.intermediate for b in model.blocks if isinstance(b.ffn, Mlp)), _moe(model).intermediate)


def _kv_broken(m: Model, c: Cluster, p: Plan, e: Engine) -> Number:
    if m.attention.latent:
        return p.tp < 0
    kv = m.attention.num_kv_heads
    return (kv % np.minimum(p.tp, kv) != 0) | (p.tp % np.minimum(p.tp, kv) != 0)


def _expert_width_broken(m: Model, c: Cluster, p: Plan, e: Engine) -> Number:
    if m.experts is None:
        return p.tp < 0
    inside = p.tp if e.experts_keep_tp else np.maximum(1, p.tp // np.maximum(1, p.ep))
    return m.experts.intermediate % inside != 0


def _ep_group(p: Plan, e: Engine) -> Number:
    """Ranks among which experts may be spread: Megatron keeps tp inside an expert, serving engines use tp x dp."""
    return p.dp * p.cp if e.experts_keep_tp else p.tp * p.dp


_TOO_FEW = "tp, pp, dp, ep, cp and microbatches are whole numbers of at least 1"

RULES: tuple[Rule, ...] = (
    Rule(
        "sizes-positive",
        "tp",
        lambda m, c, p, e: ~np.all([_whole(x) for x in (p.tp, p.pp, p.dp, p.ep, p.cp, p.microbatches)], axis=0),
        lambda m, c, p, e: f"{_TOO_FEW} (got tp={p.tp}, pp={p.pp}, dp={p.dp}, ep={p.ep}, cp={p.cp}, microbatches={p.microbatches})",
    ),
    Rule(
        "gpus",
        "",
        lambda m, c, p, e: p.num_gpus > c.num_gpus,
        lambda m, c, p, e: f"tp {p.tp} x cp {p.cp} x pp {p.pp} x dp {p.dp} = {p.num_gpus} GPUs, and {c.key} has {c.num_gpus}",
    ),
    Rule(
        "heads-divisible",
        "tp",
        lambda m, c, p, e: m.attention.num_heads % p.tp != 0,
        lambda m, c, p, e: f"{m.attention.num_heads} attention heads of {m.key} do not divide by tp={p.tp}",
    ),
    Rule(
        "kv-heads-divisible",
        "tp",
        _kv_broken,
        lambda m, c, p, e: f"{m.attention.num_kv_heads} KV heads of {m.key} neither divide by tp={p.tp} nor divide it",
    ),
    Rule(
        "ffn-divisible",
        "tp",
        lambda m, c, p, e: _ffn_width(m) % p.tp != 0 if not all(isinstance(b.ffn, Experts) for b in m.blocks) else p.tp < 0,
        lambda m, c, p, e: f"feed-forward width {_ffn_width(m)} of {m.key} does not divide by tp={p.tp}",
    ),
    Rule(
        "expert-width-divisible",
        "tp",
        _expert_width_broken,
        lambda m, c, p, e: f"expert width {_moe(m).intermediate} of {m.key} does not divide by tp={p.tp}",
    ),
    Rule(
        "layers",
        "pp",
        lambda m, c, p, e: p.pp > m.num_layers,
        lambda m, c, p, e: f"pp={p.pp} stages, but {m.key} has {m.num_layers} layers",
    ),
    Rule(
        "ep-needs-experts",
        "ep",
        lambda m, c, p, e: (p.ep > 1) & (m.experts is None),
        lambda m, c, p, e: f"ep={p.ep}, but {m.key} is dense: it has no experts to spread",
    ),
    Rule(
        "experts-divisible",
        "ep",
        lambda m, c, p, e: (_moe(m).num_experts % p.ep != 0) & (m.experts is not None),
        lambda m, c, p, e: f"{_moe(m).num_experts} experts of {m.key} do not divide by ep={p.ep}",
    ),
    Rule(
        "ep-group",
        "ep",
        lambda m, c, p, e: (p.ep > 1) & ((_ep_group(p, e) % p.ep != 0) | (e.ep_is_tp_dp & (p.ep != p.tp * p.dp))),
        lambda m, c, p, e: (
            f"ep={p.ep}, but {e.key} spreads experts over tp x dp = {p.tp * p.dp} ranks"
            if e.ep_is_tp_dp
            else f"ep={p.ep} does not divide the {_ep_group(p, e)} ranks that experts may be spread over"
        ),
    ),
    Rule(
        "cp-engine",
        "cp",
        lambda m, c, p, e: (p.cp > 1) & ("train" not in e.phases),
        lambda m, c, p, e: f"cp={p.cp}: context parallelism is modelled for training engines (megatron, fsdp), not for {e.key}",
    ),
)


def _whole(value: Number) -> Number:
    number = np.asarray(value, dtype=float)
    with np.errstate(invalid="ignore"):
        return np.isfinite(number) & (number >= 1) & (number == np.floor(number))


def codes(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> Mask:
    """0 where a plan is legal, else 1 + the index in ``RULES`` of the first rule it breaks; shaped as the plan."""
    sizes = np.broadcast_arrays(plan.tp, plan.pp, plan.dp, plan.ep, plan.cp, plan.microbatches)
    good = np.all([_whole(x) for x in sizes], axis=0)
    safe = [np.where(good, x, 1).astype(np.int64) for x in sizes]
    whole = Plan(*safe[:5], microbatches=safe[5], order=plan.order)
    result = np.where(good, 0, 1)
    for code, rule in enumerate(RULES[1:], start=2):
        broken = np.broadcast_to(np.asarray(rule.broken(model, cluster, whole, engine)), result.shape)
        result = np.where((result == 0) & broken, code, result)
    return result


def check(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> None:
    """Raise ``ValueError`` with the rule, the numbers and the nearest legal values, or return in silence."""
    code = int(codes(model, cluster, plan, engine))
    if not code:
        return
    rule = RULES[code - 1]
    raise ValueError(f"{rule.name}: {rule.says(model, cluster, plan, engine)}{_nearest(rule, model, cluster, plan, engine)}")


def legal_values(axis: str, model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> list[int]:
    """All values of one axis that are legal with the rest of the plan as it is."""
    upper = min(cluster.num_gpus, 65_536)
    if axis == "ep":
        upper = min(upper, _moe(model).num_experts)
    values = np.arange(1, upper + 1)
    ok = codes(model, cluster, replace(plan, **{axis: values}), engine) == 0
    return [int(v) for v in values[ok]]


def _nearest(rule: Rule, model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> str:
    if rule.name == "sizes-positive":
        return ""
    # Too many GPUs: the widest axis is the one to shrink.
    axis = rule.axis or max(AXES, key=lambda name: int(getattr(plan, name)))
    wanted = int(getattr(plan, axis))
    values = legal_values(axis, model, cluster, plan, engine)
    if not values:
        return ""
    below = [v for v in values if v < wanted][-1:]
    above = [v for v in values if v > wanted][:1]
    return f"; nearest legal {axis}: {' or '.join(map(str, below + above))}"


def notes(model: Model, cluster: Cluster, plan: Plan) -> list[str]:
    """What a legal scalar plan should know about itself: replication, idle GPUs, uneven stages."""
    found = []
    kv, tp, pp = model.attention.num_kv_heads, int(plan.tp), int(plan.pp)
    if not model.attention.latent and tp > kv:
        found.append(f"KV heads replicated: {kv} heads over tp {tp}, {tp // kv} copies of each")
    if model.attention.latent and tp > 1:
        found.append(f"latent KV is whole on each of the {tp} tp ranks: tp does not divide the KV cache")
    if model.num_layers % pp:
        sizes = [len(r) for r in stage_layers(model, pp)]
        found.append(f"uneven pipeline: {model.num_layers} layers as {'+'.join(map(str, sizes))}")
    idle = cluster.num_gpus - int(plan.num_gpus)
    if idle > 0:
        found.append(f"{idle} of {cluster.num_gpus} GPUs idle (tp {tp} x cp {plan.cp} x pp {pp} x dp {plan.dp} = {plan.num_gpus})")
    return found
