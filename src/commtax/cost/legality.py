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
    named: str = ""  # how rules call the tensor-parallel size, where several are meant

    @property
    def degree(self) -> str:
        return self.named or f"tp={self.plan.tp}"

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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule is broken where ``broken`` is true. ``axis`` is the size to change ("": the widest); ``says`` explains.

    ``otherwise`` is the argument that is wrong where it is none of the sizes.
    """

    name: str
    axis: str
    broken: Callable[[Case], Number]
    says: Callable[[Case], str]
    otherwise: str = ""


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


def _ep_group_says(q: Case) -> str:
    p = q.plan
    if q.engine.sends.ep_is_tp_dp:
        return f"ep={p.ep}, but {q.engine.key} spreads experts over tp x dp = {p.tp * p.dp} ranks"
    return f"ep={p.ep} does not divide the {q.ep_ranks} ranks that experts may be spread over"


def _schedule_broken(q: Case) -> Number:
    p = q.plan
    return (p.pp > 1) & np.logical_not(SCHEDULES[p.schedule].legal(p.pp, p.microbatches, p.chunks))


def _groups_broken(q: Case) -> Number:
    p = q.plan
    within = p.num_shards * p.cp * p.tp % (p.ep * expert_tp(p, q.engine)) != 0
    return (p.shard != 0) & ((p.shard < 1) | (p.dp % np.maximum(1, p.shard) != 0) | within)


RULES: tuple[Rule, ...] = (
    Rule(
        "sizes-positive",
        "tp",
        lambda q: ~_all_whole(q.plan),
        lambda q: (
            "tp, pp, dp, ep, cp and microbatches are whole numbers of at least 1, got "
            + ", ".join(str(getattr(q.plan, name)) for name in ("tp", "pp", "dp", "ep", "cp", "microbatches"))
        ),
    ),
    Rule(
        "gpus",
        "",
        lambda q: q.plan.all_gpus > q.cluster.num_gpus,
        lambda q: f"{_sizes(q.plan)} = {q.plan.all_gpus} GPUs, and {q.cluster.key} has {q.cluster.num_gpus}",
    ),
    Rule(
        "heads-divisible",
        "tp",
        lambda q: q.model.attention.num_heads % q.plan.tp != 0,
        lambda q: f"{q.model.attention.num_heads} attention heads of {q.model.key} do not divide by {q.degree}",
    ),
    Rule(
        "kv-heads-divisible",
        "tp",
        _kv_broken,
        lambda q: f"{q.kv_heads} KV heads of {q.model.key} neither divide by {q.degree} nor divide it",
    ),
    Rule(
        "ffn-divisible",
        "tp",
        lambda q: q.dense_width % q.plan.tp != 0,
        lambda q: f"feed-forward width {q.dense_width} of {q.model.key} does not divide by {q.degree}",
    ),
    Rule(
        "expert-width-divisible",
        "tp",
        lambda q: (q.experts.intermediate % expert_tp(q.plan, q.engine) != 0) & (q.model.experts is not None),
        lambda q: f"expert width {q.experts.intermediate} of {q.model.key} does not divide by {q.degree}",
    ),
    Rule(
        "quant-block-divisible",
        "tp",
        _quant_block_broken,
        lambda q: f"the quantised tiles of {q.model.key} do not divide by {q.degree} (expert parallelism keeps experts whole)",
    ),
    Rule(
        "layers",
        "pp",
        lambda q: q.plan.pp > q.model.num_layers,
        lambda q: f"pp={q.plan.pp} stages, but {q.model.key} has {q.model.num_layers} layers",
    ),
    Rule(
        "ep-needs-experts",
        "ep",
        lambda q: (q.plan.ep > 1) & (q.model.experts is None),
        lambda q: f"ep={q.plan.ep}, but {q.model.key} is dense: it has no experts to spread",
    ),
    Rule(
        "experts-divisible",
        "ep",
        lambda q: (q.experts.num_experts % q.plan.ep != 0) & (q.model.experts is not None),
        lambda q: f"{q.experts.num_experts} experts of {q.model.key} do not divide by ep={q.plan.ep}",
    ),
    Rule("ep-group", "ep", _ep_group_broken, _ep_group_says),
    Rule(
        "attention-dp-whole",
        "",
        lambda q: (q.plan.ep > q.plan.tp) & (q.plan.dp > 1) & (q.plan.tp > 1) & q.engine.sends.attention_dp_whole,
        lambda q: f"{q.degree} with dp={q.plan.dp}: {q.engine.key}'s attention data parallelism keeps attention whole on a GPU",
    ),
    Rule(
        "cp-engine",
        "cp",
        lambda q: (q.plan.cp > 1) & (q.engine.trains.context_parallel == ""),
        lambda q: (
            f"cp={q.plan.cp}: {q.engine.key} has no context parallelism that is modelled (megatron, fsdp and torchtitan have)"
        ),
    ),
    Rule(
        "ep-engine",
        "ep",
        lambda q: (q.plan.ep > 1) & (("train" in q.engine.phases) and not q.engine.sends.ep_backends),
        lambda q: f"ep={q.plan.ep}: {q.engine.key} has no expert parallelism",
    ),
    Rule(
        "schedule-microbatches",
        "",
        _schedule_broken,
        lambda q: (
            f"schedule {q.plan.schedule} on {q.plan.pp} stages needs {SCHEDULES[q.plan.schedule].needs(q.plan.pp)} microbatches, "
            f"not {q.plan.microbatches}"
        ),
        otherwise="schedule",
    ),
    Rule(
        "hsdp-groups",
        "",
        _groups_broken,
        lambda q: (
            f"hsdp={q.plan.shard}: groups must divide dp={q.plan.dp} (one of {_divisors(q.plan.dp)}), "
            "and hold whole sets of experts"
        ),
    ),
)


def _sizes(plan: Plan) -> str:
    servers = f"{plan.replicas} replicas x " if plan.replicas > 1 else ""
    return f"{servers}tp {plan.tp} x cp {plan.cp} x pp {plan.pp} x dp {plan.dp}"


def _divisors(n: Number) -> str:
    return ", ".join(str(d) for d in range(1, int(n) + 1) if n % d == 0)


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
    axis, near = _nearest(rule, case)
    hint = f"; nearest legal {axis}: {' or '.join(map(str, near))}" if near else ""
    raise Refusal(f"{rule.name}: {rule.says(case)}{hint}", axis if near else rule.axis or rule.otherwise, near)


def legal_values(axis: str, model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> list[int]:
    """All values of one axis that are legal with the rest of the plan as it is."""
    upper = min(cluster.num_gpus, 65_536)
    if axis == "ep":
        upper = min(upper, model.experts.num_experts if model.experts else 1)
    values = np.arange(1, upper + 1)
    change: dict[str, Any] = {axis: values}
    ok = codes(model, cluster, replace(plan, **change), engine) == 0
    return [int(v) for v in values[ok]]


def _nearest(rule: Rule, q: Case) -> tuple[str, list[int]]:
    """The size to change, and its nearest legal values with the rest of the plan as it is."""
    if rule is RULES[0]:  # no size of its own is wrong, and no neighbour helps
        return "", []
    axis = rule.axis or max(AXES, key=lambda name: int(getattr(q.plan, name)))
    wanted = int(getattr(q.plan, axis))
    values = legal_values(axis, q.model, q.cluster, q.plan, q.engine)
    return axis, [v for v in values if v < wanted][-1:] + [v for v in values if v > wanted][:1]


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
    idle = cluster.num_gpus - int(plan.all_gpus)
    if idle > 0:
        found.append(Note("idle-gpus", f"{idle} of {cluster.num_gpus} GPUs idle ({_sizes(plan)} = {plan.all_gpus})"))
    return found


def _uneven(model: Model, sizes: list[int], where: str = "") -> Note:
    return Note("uneven-stages", f"uneven pipeline: {model.num_layers} layers as {'+'.join(map(str, sizes))}{where}")
