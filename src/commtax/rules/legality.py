"""Which plans are legal. Arrays get a mask of rule codes; at the edge one broken rule becomes one clear sentence."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import numpy as np

from commtax import spec
from commtax.arrays import Array, cache_answers, holds_anywhere, pick, spread, unique_with_places
from commtax.cost.inventory import EXPERTS, format_of, quantisation, stage_layers
from commtax.cost.placement import expert_ranks
from commtax.cost.schedules import SCHEDULES, virtual_layers
from commtax.records import Condition, dataclass, replace
from commtax.shipped_tables import table
from commtax.statement import Note, Refusal

WHOLE = (*spec.SIZES, spec.CACHE_SPLIT, "microbatches")
_sizes = attrgetter(*WHOLE)
_BEYOND = 1e15  # far more ranks than any cluster has


@dataclass(frozen=True, slots=True)
class PlanToCheck:
    """A plan to be judged, with what the rules ask of it."""

    model: spec.Model
    cluster: spec.Cluster
    plan: spec.Plan
    engine: spec.Engine
    named: str = ""  # how rules call the tensor-parallel size, where several are meant

    @property
    def degree(self) -> str:
        return self.named or f"tp={self.plan.tp}"

    @property
    def cut(self) -> str:
        """Name the ranks that each expert is cut over: those of tp, or all of a server's."""
        inside = int(expert_ranks(self.plan, self.engine).inside)
        return self.degree if inside == self.plan.tp else f"the {inside} ranks that each expert is cut over"

    @property
    def kv_heads(self) -> int:
        """The first number of KV heads (or groups) that tp neither divides nor is divided by, else the first."""
        counts = _shared_counts(self.model) or (1,)
        return next((n for n in counts if max(n, self.plan.tp) % min(n, self.plan.tp)), counts[0])

    @property
    def heads(self) -> str:
        """The first number of heads, of attention or of a state, that tp does not divide, else the usual one."""
        counts = _head_counts(self.model)
        n, whose = next((pair for pair in counts if pair[0] % self.plan.tp), counts[0])
        return f"{n} {whose}"

    @property
    def groups(self) -> int:
        """The first number of groups of state-space layers that tp does not share out, else the first."""
        counts = [m.num_groups for m in self.model.recurrent if isinstance(m, spec.Mamba2)] or [1]
        return next((n for n in counts if n % self.plan.tp), counts[0])

    @property
    def width(self) -> int:
        """The feed-forward width of dense layers, 0 where every layer has experts."""
        return next((b.ffn.intermediate for b in self.model.blocks if isinstance(b.ffn, spec.Mlp)), 0)

    @property
    def moe(self) -> spec.Experts:
        """The experts, in their place experts that everything divides."""
        return self.model.experts or spec.Experts(0, 1, 0)

    @property
    def slots(self) -> spec.Number:
        """Experts that ranks share out: the model's, and copies of popular ones."""
        return self.moe.num_experts + self.plan.redundant

    @property
    def experts(self) -> str:
        redundant = f" and {int(self.plan.redundant)} redundant ones" if self.plan.redundant else ""
        return f"{self.moe.num_experts} experts of {self.model.key}{redundant}"

    @property
    def most_copies(self) -> int:
        """Copies with which every rank has all experts."""
        return int(self.moe.num_experts * (self.plan.ep - 1))

    @property
    def copies(self) -> list[int]:
        """Return the nearest legal numbers of redundant experts, of an engine that serves."""
        if "decode" not in self.engine.phases or self.model.experts is None:
            return []
        least = int(self.plan.redundant - self.slots % self.plan.ep)
        tried = sorted({min(n, self.most_copies) for n in (least, least + int(self.plan.ep)) if n >= 0})
        return [n for n in tried if not codes(self.model, self.cluster, replace(self.plan, redundant_experts=n), self.engine)]

    @property
    def ep_ranks(self) -> spec.Number:
        """Return the ranks that experts may be spread over: Megatron keeps tp inside an expert, serving engines use tp x dp."""
        p = self.plan
        if self.engine.sends.experts_whole:
            return p.tp * p.dp * p.cp
        return p.dp * p.cp if self.engine.sends.experts_keep_tp else p.tp * p.dp

    @property
    def ep_rule(self) -> str:
        if self.engine.sends.ep_is_tp_dp:
            return f", but {self.engine.key} spreads experts over tp x dp = {self.plan.tp * self.plan.dp} ranks"
        return f" does not divide the {self.ep_ranks} ranks that experts may be spread over"

    @property
    def laid(self) -> str:
        p = self.plan
        servers = f"{p.replicas} replicas x " if p.replicas > 1 else ""
        return f"{servers}{' x '.join(f'{axis} {getattr(p, axis)}' for axis in spec.AXES)} = {p.all_gpus}"

    @property
    def shards(self) -> str:
        """List the sizes of the groups that data parallelism can be cut into."""
        return ", ".join(str(d) for d in range(1, int(self.plan.dp) + 1) if self.plan.dp % d == 0)

    @property
    def sharing(self) -> str:
        """Say how many ranks keep the same keys, at the least."""
        most = min(max(1, int(self.plan.tp) // (1 if _whole_cache(a) else a.num_kv_heads)) for a in self.model.attentions)
        return f"{most} of them here" if most > 1 else "and KV heads are not replicated here"

    @property
    def unsplit(self) -> str:
        """The attention whose cache the engine does not split among ranks, "" where it splits all of it."""
        for a in self.model.attentions:
            kind = "latent" if a.latent else "grouped"
            if a.compressed or a.indexer or a.window:
                return f"{'windowed' if a.window else 'compressed' if a.compressed else 'sparse'} attention"
            if kind not in self.engine.contexts.cache_kinds:
                return f"{kind if a.latent else 'grouped-query'} attention"
        return ""

    @property
    def needed(self) -> str:
        """The microbatches that its schedule needs."""
        return SCHEDULES[self.plan.schedule].needs(int(self.plan.pp))


@dataclass(frozen=True, slots=True)
class PlanRule:
    """A rule, and where it is ``broken``. ``axis`` is the size to change ("": the widest), the rest as in ``rules.toml``."""

    name: str
    broken: Callable[[PlanToCheck], Condition]
    text: str
    axis: str = ""
    otherwise: str = ""
    copies: bool = False

    def says(self, c: PlanToCheck) -> str:
        return self.text.format(c=c, p=c.plan, m=c.model, e=c.engine)


def _head_counts(model: spec.Model) -> tuple[tuple[int, str], ...]:
    """Return what tp must share out equally, with its name: heads of queries and of recurrent states, groups of an output."""
    heads = [(a.num_heads, "attention heads") for a in model.attentions]
    heads += [(a.compressed.out_groups, "groups of the output projection") for a in model.attentions if a.compressed]
    for mixer in model.recurrent:
        if isinstance(mixer, spec.DeltaNet):
            heads += [(mixer.num_k_heads, "key heads of linear attention"), (mixer.num_v_heads, "value heads of linear attention")]
        else:
            heads.append((mixer.num_heads, "state-space heads"))
    return tuple(dict.fromkeys(heads))


def _whole_cache(a: spec.Attention) -> bool:
    """Return whether one latent serves all heads, so that every rank keeps the whole cache."""
    return a.latent is not None or a.compressed is not None


def _shared_counts(model: spec.Model) -> tuple[int, ...]:
    """Return the numbers of heads of keys and values that ranks share out or copy."""
    return tuple(dict.fromkeys(a.num_kv_heads for a in model.attentions if not _whole_cache(a)))


def _splits_kv_heads(c: PlanToCheck) -> Condition:
    pairs = [(heads, np.minimum(c.plan.tp, heads)) for heads in _shared_counts(c.model)]
    return np.asarray(sum((heads % shared != 0) | (c.plan.tp % shared != 0) for heads, shared in pairs) > 0)


def _splits_beyond_heads(c: PlanToCheck) -> Condition:
    """Return whether more ranks share a cache than keep the same keys, or queries are uneven (vLLM's ModelConfig)."""
    many = np.asarray(c.plan.dcp) > 1
    shared = [(1, a.num_heads) if _whole_cache(a) else (a.num_kv_heads, a.num_heads) for a in c.model.attentions]
    return many & (sum((c.plan.dcp > c.plan.tp // kv) | (heads // kv % c.plan.dcp != 0) for kv, heads in shared) > 0)


def _splits_quant_block(c: PlanToCheck) -> Condition:
    """Return whether a rank's width cuts tiles that share a scale (mxfp4 and nvfp4 kernels pad instead)."""
    quant = quantisation(c.model, c.plan)
    formats = [format_of(c.model, name, quant) for name in (EXPERTS, "mlp.down_proj")]
    experts, dense = (form.block[1] or 1 if form and form.dtype in ("fp8", "int4", "int8") else 1 for form in formats)
    return (c.moe.intermediate / expert_ranks(c.plan, c.engine).inside % experts != 0) | (c.width / c.plan.tp % dense != 0)


def _breaks_ep_group(c: PlanToCheck) -> Condition:
    p = c.plan
    odd: Condition = c.ep_ranks % p.ep != 0
    if not (c.engine.sends.experts_keep_tp or c.engine.sends.experts_whole):
        odd = odd | ((p.ep <= p.tp) & (p.tp % p.ep != 0))
    return (p.ep > 1) & (odd | (p.ep != p.tp * p.dp) if c.engine.sends.ep_is_tp_dp else odd)


def _breaks_groups(c: PlanToCheck) -> Condition:
    p = c.plan
    within: Condition = p.num_shards * p.cp * p.tp % (p.ep * expert_ranks(p, c.engine).inside) != 0
    return (p.shard != 0) & ((p.shard < 1) | np.asarray(p.dp % np.maximum(1, p.shard) != 0) | within)


BROKEN: dict[str, Callable[[PlanToCheck], Condition]] = {
    "sizes-positive": lambda c: ~_all_whole(c.plan),
    "gpus": lambda c: c.plan.all_gpus > c.cluster.num_gpus,
    "heads-divisible": lambda c: sum(n % c.plan.tp != 0 for n, _ in _head_counts(c.model)) > 0,
    "kv-heads-divisible": _splits_kv_heads,
    "ffn-divisible": lambda c: c.width % c.plan.tp != 0,
    "expert-width-divisible": lambda c: c.moe.intermediate % expert_ranks(c.plan, c.engine).inside != 0,
    "quant-block-divisible": _splits_quant_block,
    "layers": lambda c: c.plan.pp > c.model.num_layers,
    "pp-engine": lambda c: (c.plan.pp > 1) & (not c.engine.trains.has_stages),
    "ep-needs-experts": lambda c: (c.plan.ep > 1) & (c.model.experts is None),
    "experts-divisible": lambda c: c.slots % c.plan.ep != 0,
    "ep-group": _breaks_ep_group,
    "attention-dp-whole": lambda c: (c.plan.ep > c.plan.tp) & (c.plan.dp > 1) & (c.plan.tp > 1) & c.engine.sends.attention_dp_whole,
    "cp-engine": lambda c: (c.plan.cp > 1) & (c.engine.trains.context_parallel == "" and not c.engine.contexts.prompt_split),
    "ep-engine": lambda c: (c.plan.ep > 1) & (("train" in c.engine.phases) and not c.engine.sends.ep_backends),
    "schedule-microbatches": lambda c: (
        (c.plan.pp > 1) & np.logical_not(SCHEDULES[c.plan.schedule].legal(c.plan.pp, c.plan.microbatches, c.plan.chunks))
    ),
    "hsdp-groups": _breaks_groups,
    # One group of a state-space layer is copied to every rank; of several each rank has as many.
    "state-groups-divisible": lambda c: (
        sum(m.num_groups % c.plan.tp != 0 for m in c.model.recurrent if isinstance(m, spec.Mamba2) and m.num_groups > 1) > 0
    ),
    "redundant-experts": lambda c: c.slots > c.moe.num_experts * c.plan.ep,
    "cp-experts": lambda c: (c.plan.cp > 1) & (c.plan.ep > 1) & (c.engine.contexts.prompt_experts == "cut"),
    "dcp-engine": lambda c: (c.plan.dcp > 1) & (c.engine.contexts.cache_join == ""),
    "dcp-divides": lambda c: c.plan.tp % c.plan.dcp != 0,
    "dcp-attention": lambda c: (c.plan.dcp > 1) & (c.unsplit != ""),
    "dcp-heads": _splits_beyond_heads,
}
RULES = tuple(PlanRule(name, BROKEN[name], **row) for name, row in table("rules/rules.toml")["plan"].items())


def _all_whole(plan: spec.Plan) -> Array:
    sizes = np.asarray(np.broadcast_arrays(*_sizes(plan)), dtype=float)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.all(np.isfinite(sizes) & (sizes >= 1) & (sizes == np.floor(sizes)), axis=0))


def codes(model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> Array:
    """Return 0 where a plan is legal, else 1 + the index in ``RULES`` of the first rule it breaks, shaped as the plan."""
    plain = _sizes(plan)
    if all(type(x) is int and 1 <= x <= _BEYOND for x in plain):  # one plan, as most questions have
        return np.asarray(_code_of_one(model, cluster, plan, engine))
    few = unique_with_places(*plain, plan.replicas, plan.shard)
    if few is None:
        return _codes(model, cluster, plan, engine)
    *sizes, replicas, shard = few[0]
    distinct = _codes(model, cluster, replace(_with_sizes(plan, sizes), replicas=replicas, shard=shard), engine)
    return np.asarray(spread(distinct, few[1]))


@cache_answers
def _code_of_one(model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> int:
    case = PlanToCheck(model, cluster, _with_sizes(plan, map(float, _sizes(plan))), engine)
    return next((code for code, rule in enumerate(RULES[1:], start=2) if holds_anywhere(rule.broken(case))), 0)


def _codes(model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> Array:
    sizes, good = np.broadcast_arrays(*_sizes(plan)), _all_whole(plan)
    safe = [np.minimum(np.where(good, x, 1).astype(float), _BEYOND) for x in sizes]  # products stay finite and exact enough
    case, result = PlanToCheck(model, cluster, _with_sizes(plan, safe), engine), pick(good, 0, 1)
    for code, rule in enumerate(RULES[1:], start=2):
        result = pick((result == 0) & np.broadcast_to(np.asarray(rule.broken(case)), good.shape), code, result)
    return np.asarray(result)


def _with_sizes(plan: spec.Plan, sizes: Iterable[spec.Number]) -> spec.Plan:
    return replace(plan, **dict(zip(WHOLE, sizes, strict=True)))


def check(model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> None:
    """Raise ``ValueError`` with the rule, the numbers and the nearest legal values, or return in silence."""
    code = int(codes(model, cluster, plan, engine))
    if not code:
        return
    rule, case = RULES[code - 1], PlanToCheck(model, cluster, plan, engine)
    axis, near = _nearest(rule, case)
    hint = f"; nearest legal {axis}: {' or '.join(map(str, near))}" if near else ""
    if rule.name == "gpus" and plan.all_gpus < np.inf:
        gpus, each = int(plan.all_gpus), max(int(cluster.gpus_per_host), cluster.chip.gpus_per_host)
        larger = f"{gpus}x{cluster.chip.key}" if gpus <= each else f"{-(-gpus // each)}x{each}x{cluster.chip.key}"
        hint += f"{', or' if near else '; it takes'} a cluster of at least {plan.all_gpus} GPUs, such as {larger}"
    if rule.copies and (copies := case.copies):
        hint += f"; {' or '.join(map(str, copies))} redundant experts would do"
        axis, near = (axis, near) if near else ("redundant_experts", copies)
    raise Refusal(f"{rule.says(case)}{hint}", axis if near else rule.axis or rule.otherwise, near, subject=rule.name)


def legal_values(axis: str, model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> list[int]:
    """Return all values of one axis that are legal with the rest of the plan unchanged."""
    upper = min(cluster.num_gpus, 65_536)
    if axis == "ep":
        upper = min(upper, model.experts.num_experts + plan.redundant_experts if model.experts else 1)
    values = np.arange(2 if axis == "ep" and plan.redundant_experts else 1, upper + 1)  # copies are of experts that are spread
    tried = _with_sizes(plan, (values if name == axis else getattr(plan, name) for name in WHOLE))
    return [int(v) for v in values[codes(model, cluster, tried, engine) == 0]]


def _nearest(rule: PlanRule, q: PlanToCheck) -> tuple[str, list[int]]:
    """Return the size to change, and its nearest legal values with the rest of the plan unchanged."""
    if rule is RULES[0]:  # no size of its own is wrong, and no neighbour helps
        return "", []
    axis = rule.axis or max(spec.AXES, key=lambda name: int(getattr(q.plan, name)))
    wanted, values = int(getattr(q.plan, axis)), legal_values(axis, q.model, q.cluster, q.plan, q.engine)
    return axis, [v for v in values if v < wanted][-1:] + [v for v in values if v > wanted][:1]


def notes(model: spec.Model, cluster: spec.Cluster, plan: spec.Plan, engine: spec.Engine) -> Iterator[Note]:
    """Note what a legal scalar plan implies: replication, idle GPUs, uneven stages."""
    idle, tp, pp, dcp = cluster.num_gpus - int(plan.all_gpus), int(plan.tp), int(plan.pp), int(plan.dcp)
    beside = f", split over dcp {dcp}" if dcp > 1 else ""
    for kv in _shared_counts(model):
        if tp > kv * dcp:
            yield Note("kv-replicated", f"KV heads replicated: {kv} heads over tp {tp}{beside}, {tp // kv // dcp} copies of each")
    if any(map(_whole_cache, model.attentions)) and tp > dcp:
        whole = f"latent KV is whole on each of the {tp} tp ranks: tp does not divide the KV cache"
        split = f"latent KV is split over dcp {dcp} and kept {tp // dcp} times by tp {tp}"
        yield Note("kv-whole", split if dcp > 1 else whole)
    if tp > 1 and any(m.num_groups == 1 for m in model.recurrent if isinstance(m, spec.Mamba2)):
        yield Note("group-copied", f"the one group of the state-space layers is whole on each of the {tp} tp ranks")
    sizes, ends = list[int](), ""
    if plan.chunks > 1 and pp > 1 and model.num_layers % (pp * plan.chunks):
        layout = virtual_layers(model.num_layers, pp, plan.chunks)
        sizes = [sum(chunk[rank] for chunk in layout) for rank in range(pp)]
        first, last, most = layout[0][0], layout[-1][-1], max(map(max, layout))
        ends = f" in {plan.chunks} chunks each: {first} in the first, {last} in the last, none above {most}"
    elif model.num_layers % pp:
        sizes = [len(r) for r in stage_layers(model, pp, engine.sends.odd_layers)]
    if sizes:
        yield Note("uneven-stages", f"uneven pipeline: {model.num_layers} layers as {'+'.join(map(str, sizes))}{ends}")
    if idle > 0:
        yield Note("idle-gpus", f"{idle} of {cluster.num_gpus} GPUs idle ({PlanToCheck(model, cluster, plan, engine).laid})")
