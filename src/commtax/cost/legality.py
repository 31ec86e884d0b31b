"""Which plans are legal. Arrays get a mask of rule codes; at the edge one broken rule becomes one clear sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax.arrays import pick, some
from commtax.cost.experts import expert_tp
from commtax.cost.schedules import SCHEDULES
from commtax.cost.stages import virtual_layers
from commtax.cost.tensors import quantisation, stage_layers
from commtax.spec import AXES, Cluster, Engine, Experts, Mlp, Model, Number, Plan
from commtax.statement import Note, Refusal

Mask = np.ndarray[Any, Any]
_BEYOND = 1e15  # far more ranks than any cluster has


@dataclass(frozen=True, slots=True)
class Case:
    """A plan to be judged, with what the rules ask of it."""

    model: Model
    cluster: Cluster
    plan: Plan
    engine: Engine

    @property
    def dense_width(self) -> int:
        """The feed-forward width of dense layers; 0 where every layer has experts."""
        return next((b.ffn.intermediate for b in self.model.blocks if isinstance(b.ffn, Mlp)), 0)

    @property
    def experts(self) -> Experts:
        """The experts, or one where there are none."""
        return self.model.experts or Experts(1, 1, 1)

    @property
    def kv_heads(self) -> int:
        """Heads of the KV cache that tp must share out; a latent is not shared out at all."""
        return 1 if self.model.attention.latent else self.model.attention.num_kv_heads

    @property
    def ep_ranks(self) -> Number:
        """Ranks among which experts may be spread: Megatron keeps tp inside an expert, serving engines use tp x dp."""
        p = self.plan
        return p.dp * p.cp if self.engine.sends.experts_keep_tp else p.tp * p.dp

    @property
    def sizes(self) -> str:
        """The plan's sizes in words."""
        p = self.plan
        servers = f"{p.replicas} replicas x " if p.replicas > 1 else ""
        return f"{servers}tp {p.tp} x cp {p.cp} x pp {p.pp} x dp {p.dp}"


def _kv_broken(q: Case) -> Number:
    shared = np.minimum(q.plan.tp, q.kv_heads)
    return np.asarray((q.kv_heads % shared != 0) | (q.plan.tp % shared != 0))


def _quant_block_broken(q: Case) -> Number:
    """Scales belong to whole tiles or groups: a rank's width must be made of them (mxfp4 and nvfp4 kernels pad instead)."""
    quant = quantisation(q.model, q.plan)
    if quant is None or not quant.block[1] or quant.dtype not in ("fp8", "int4", "int8"):
        return q.plan.tp < 0
    inside = q.experts.intermediate / expert_tp(q.plan, q.engine)
    broken = (inside % quant.block[1] != 0) & (q.model.experts is not None)
    return broken | (q.dense_width / q.plan.tp % quant.block[1] != 0)


def _ep_group_broken(q: Case) -> Number:
    p = q.plan
    odd = q.ep_ranks % p.ep != 0
    if not q.engine.sends.experts_keep_tp:
        odd = odd | ((p.ep <= p.tp) & (p.tp % p.ep != 0))
    return (p.ep > 1) & (odd | (p.ep != p.tp * p.dp) if q.engine.sends.ep_is_tp_dp else odd)


def _schedule_broken(q: Case) -> Number:
    p = q.plan
    return (p.pp > 1) & np.logical_not(SCHEDULES[p.schedule].legal(p.pp, p.microbatches, p.chunks))


def _groups_broken(q: Case) -> Number:
    p = q.plan
    within = p.num_shards * p.cp * p.tp % (p.ep * expert_tp(p, q.engine)) != 0
    return (p.shard != 0) & ((p.shard < 1) | (p.dp % np.maximum(1, p.shard) != 0) | within)


def _dp_broken(q: Case) -> Number:
    return (q.plan.ep > q.plan.tp) & (q.plan.dp > 1) & (q.plan.tp > 1) & q.engine.sends.attention_dp_whole


def _width_broken(q: Case) -> Number:
    return (q.experts.intermediate % expert_tp(q.plan, q.engine) != 0) & (q.model.experts is not None)


def _sentence(rule: str, q: Case) -> str:
    """What a rule says of a scalar plan that breaks it."""
    p, model, moe, engine = q.plan, q.model.key, q.experts, q.engine.key
    whole = ", ".join(str(getattr(p, name)) for name in ("tp", "pp", "dp", "ep", "cp", "microbatches"))
    over = f"but {engine} spreads experts over tp x dp = {p.tp * p.dp} ranks"
    odd = f"does not divide the {q.ep_ranks} ranks that experts may be spread over"
    kept = "expert parallelism keeps experts whole"
    needs = f"{SCHEDULES[p.schedule].needs(p.pp)} microbatches, not {p.microbatches}"
    parts = ", ".join(str(d) for d in range(1, int(p.dp) + 1) if p.dp % d == 0) if rule == "hsdp-groups" else ""
    return {
        "sizes-positive": f"tp, pp, dp, ep, cp and microbatches are whole numbers of at least 1, got {whole}",
        "gpus": f"{q.sizes} = {p.all_gpus} GPUs, and {q.cluster.key} has {q.cluster.num_gpus}",
        "heads-divisible": f"{q.model.attention.num_heads} attention heads of {model} do not divide by tp={p.tp}",
        "kv-heads-divisible": f"{q.kv_heads} KV heads of {model} neither divide by tp={p.tp} nor divide it",
        "ffn-divisible": f"feed-forward width {q.dense_width} of {model} does not divide by tp={p.tp}",
        "expert-width-divisible": f"expert width {moe.intermediate} of {model} does not divide by tp={p.tp}",
        "quant-block-divisible": f"the quantised tiles of {model} do not divide by tp={p.tp} ({kept})",
        "layers": f"pp={p.pp} stages, but {model} has {q.model.num_layers} layers",
        "ep-needs-experts": f"ep={p.ep}, but {model} is dense: it has no experts to spread",
        "experts-divisible": f"{moe.num_experts} experts of {model} do not divide by ep={p.ep}",
        "ep-group": f"ep={p.ep}, {over}" if q.engine.sends.ep_is_tp_dp else f"ep={p.ep} {odd}",
        "attention-dp-whole": f"tp={p.tp} with dp={p.dp}: {engine}'s attention data parallelism keeps attention whole on a GPU",
        "cp-engine": f"cp={p.cp}: {engine} has no context parallelism that is modelled (megatron, fsdp and torchtitan have)",
        "ep-engine": f"ep={p.ep}: {engine} has no expert parallelism",
        "schedule-microbatches": f"schedule {p.schedule} on {p.pp} stages needs {needs}",
        "hsdp-groups": f"hsdp={p.shard}: groups must divide dp={p.dp} (one of {parts}), and hold whole sets of experts",
    }[rule]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule is broken where ``broken`` is true. ``axis`` is the size to change ("": the widest)."""

    name: str
    axis: str
    broken: Callable[[Case], Number]

    def says(self, q: Case) -> str:
        return _sentence(self.name, q)

    @property
    def names_tp(self) -> bool:
        """Whether its sentence has one degree of tensor parallelism in it."""
        return self.axis == "tp" or self.name == "attention-dp-whole"


RULES: tuple[Rule, ...] = (
    Rule("sizes-positive", "tp", lambda q: ~_all_whole(q.plan)),
    Rule("gpus", "", lambda q: q.plan.all_gpus > q.cluster.num_gpus),
    Rule("heads-divisible", "tp", lambda q: q.model.attention.num_heads % q.plan.tp != 0),
    Rule("kv-heads-divisible", "tp", _kv_broken),
    Rule("ffn-divisible", "tp", lambda q: q.dense_width % q.plan.tp != 0),
    Rule("expert-width-divisible", "tp", _width_broken),
    Rule("quant-block-divisible", "tp", _quant_block_broken),
    Rule("layers", "pp", lambda q: q.plan.pp > q.model.num_layers),
    Rule("ep-needs-experts", "ep", lambda q: (q.plan.ep > 1) & (q.model.experts is None)),
    Rule("experts-divisible", "ep", lambda q: (q.experts.num_experts % q.plan.ep != 0) & (q.model.experts is not None)),
    Rule("ep-group", "ep", _ep_group_broken),
    Rule("attention-dp-whole", "", _dp_broken),
    Rule("cp-engine", "cp", lambda q: (q.plan.cp > 1) & (q.engine.trains.context_parallel == "")),
    Rule("ep-engine", "ep", lambda q: (q.plan.ep > 1) & (("train" in q.engine.phases) and not q.engine.sends.ep_backends)),
    Rule("schedule-microbatches", "", _schedule_broken),
    Rule("hsdp-groups", "", _groups_broken),
)
"""In the order in which they are asked: the first that is broken is said."""


def _whole(value: Number) -> Mask:
    number = np.asarray(value, dtype=float)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(number) & (number >= 1) & (number == np.floor(number)))


def _all_whole(plan: Plan) -> Mask:
    sizes = np.broadcast_arrays(plan.tp, plan.pp, plan.dp, plan.ep, plan.cp, plan.microbatches)
    return np.asarray(np.logical_and.reduce([_whole(x) for x in sizes]))


def codes(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> Mask:
    """0 where a plan is legal, else 1 + the index in ``RULES`` of the first rule it breaks; shaped as the plan."""
    plain = (plan.tp, plan.pp, plan.dp, plan.ep, plan.cp, plan.microbatches)
    if all(type(x) is int and 1 <= x <= _BEYOND for x in plain):  # one plan, as most are asked for
        return np.asarray(_first_broken(Case(model, cluster, _sized(plan, map(float, plain)), engine)))
    sizes = np.broadcast_arrays(*plain)
    good = _all_whole(plan)
    safe = [np.minimum(pick(good, x, 1).astype(float), _BEYOND) for x in sizes]  # products stay finite and exact enough
    case = Case(model, cluster, _sized(plan, safe), engine)
    if not good.shape:
        return np.asarray(_first_broken(case) if good else 1)
    result = pick(good, 0, 1)
    for code, rule in enumerate(RULES[1:], start=2):
        broken = np.broadcast_to(np.asarray(rule.broken(case)), good.shape)
        result = pick((result == 0) & broken, code, result)
    return np.asarray(result)


def _sized(plan: Plan, sizes: Iterable[Number]) -> Plan:
    tp, pp, dp, ep, cp, microbatches = sizes
    return replace(plan, tp=tp, pp=pp, dp=dp, ep=ep, cp=cp, microbatches=microbatches)


def _first_broken(case: Case) -> int:
    """The code of the first rule that one plan breaks; 0: none."""
    return next((code for code, rule in enumerate(RULES[1:], start=2) if some(rule.broken(case))), 0)


def check(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> None:
    """Raise ``ValueError`` with the rule, the numbers and the nearest legal values, or return in silence."""
    code = int(codes(model, cluster, plan, engine))
    if not code:
        return
    rule, case = RULES[code - 1], Case(model, cluster, plan, engine)
    axis = rule.axis or max(AXES, key=lambda name: int(getattr(plan, name)))
    values = [] if rule.name == "sizes-positive" else _nearest(axis, case)
    near = f"; nearest legal {axis}: {' or '.join(map(str, values))}" if values else ""
    raise Refusal(f"{rule.name}: {rule.says(case)}{near}", axis if values else "", values)


def legal_values(axis: str, model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> list[int]:
    """All values of one axis that are legal with the rest of the plan as it is."""
    upper = min(cluster.num_gpus, 65_536)
    if axis == "ep":
        upper = min(upper, model.experts.num_experts if model.experts else 1)
    values = np.arange(1, upper + 1)
    change: dict[str, Any] = {axis: values}
    ok = codes(model, cluster, replace(plan, **change), engine) == 0
    return [int(v) for v in values[ok]]


def _nearest(axis: str, q: Case) -> list[int]:
    """The legal values of an axis on either side of what the plan has."""
    wanted = int(getattr(q.plan, axis))
    values = legal_values(axis, q.model, q.cluster, q.plan, q.engine)
    return [v for v in values if v < wanted][-1:] + [v for v in values if v > wanted][:1]


def notes(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> list[Note]:
    """What a legal scalar plan should know about itself: replication, idle GPUs, uneven stages."""
    found = []
    kv, tp, pp = model.attention.num_kv_heads, int(plan.tp), int(plan.pp)
    if not model.attention.latent and tp > kv:
        found.append(Note("kv-replicated", f"KV heads replicated: {kv} heads over tp {tp}, {tp // kv} copies of each"))
    if model.attention.latent and tp > 1:
        found.append(Note("kv-whole", f"latent KV is whole on each of the {tp} tp ranks: tp does not divide the KV cache"))
    if plan.chunks > 1 and pp > 1 and model.num_layers % (pp * plan.chunks):
        layout = virtual_layers(model.num_layers, pp, plan.chunks)
        sizes = [sum(chunk[rank] for chunk in layout) for rank in range(pp)]
        first, last, most = layout[0][0], layout[-1][-1], max(map(max, layout))
        ends = f"{plan.chunks} chunks each: {first} in the first, {last} in the last, none above {most}"
        found.append(_uneven(model, sizes, f" in {ends}"))
    elif model.num_layers % pp:
        sizes = [len(r) for r in stage_layers(model, pp, engine.sends.odd_layers)]
        found.append(_uneven(model, sizes))
    idle, sizes_of = cluster.num_gpus - int(plan.all_gpus), Case(model, cluster, plan, engine).sizes
    if idle > 0:
        found.append(
            Note(
                "idle-gpus",
                f"{idle} of {cluster.num_gpus} GPUs idle ({sizes_of} = {plan.all_gpus})",
            )
        )
    return found


def _uneven(model: Model, sizes: list[int], where: str = "") -> Note:
    return Note("uneven-stages", f"uneven pipeline: {model.num_layers} layers as {'+'.join(map(str, sizes))}{where}")
