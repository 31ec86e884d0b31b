"""What one step of serving sends: every collective with exact bytes and counts, for any mix of prefill and decode.

Counts follow one token's path through all pipeline stages. The set of lines is fixed: a collective that a plan does not issue
has count 0. Control messages and scalars (scheduler metadata, token ids, router's counts) are left out.
Change here what is sent. No second belongs here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from commtax.arrays import pick
from commtax.cost.context_parallel import prompts_of_rank, split_cache_items, split_prompt_items
from commtax.cost.inventory import EXPERTS, format_of, quantisation
from commtax.cost.placement import expert_ranks, padded_vocab, tokens_split
from commtax.ledger import Item, Part, Place, Stage, Window
from commtax.records import dataclass, replace
from commtax.shipped_tables import table
from commtax.spec import DTYPE_BYTES, Condition, Engine, Experts, Mamba2, Model, Number, Plan, Quant, Workload

ROUTING_BYTES = 8  # of a token and choice: the expert's id in int32, its weight in fp32
SUM_BYTES = 4  # of a row: a sum of squares, fp32
NORM_BYTES = 2 * SUM_BYTES  # of a row: the sums of squares of query and key
WIDE = 4  # from this tp on an engine may capture larger graphs
FP8_SCALE_GROUP = 128  # one fp32 scale travels with each 128 fp8 values
NVFP4_SCALE_GROUP = 16
EXCHANGES: Mapping[Place, str] = MappingProxyType(
    {"dispatch": "expert dispatch", "routing ids": "expert routing", "combine": "expert combine", "output": "expert output"}
)
"""What is moved for experts, for people."""
ROUND_TRIP: tuple[Place, ...] = ("dispatch", "combine")


@dataclass(frozen=True, slots=True)
class Backend:
    """How a backend carries tokens to experts: the fields of a row of ``exchanges.toml``, where they are described."""

    title: str = ""
    gathers: bool = False
    per_expert: bool = False
    once: bool = False
    bulk: str = ""
    experts: str = ""
    received: bool = False
    early_on: Sequence[str] = ()
    one_domain: bool = False
    vendor: str = ""
    searched_on: Sequence[str] = ()


BACKENDS = {name: Backend(**row) for name, row in table("cost/exchanges.toml").items()}
GATHERING = next(name for name, backend in BACKENDS.items() if backend.gathers)
PLAIN = Backend()


def backend_called(name: str) -> Backend:
    """Return a backend by name, where one without a row sends a copy to each rank."""
    return BACKENDS.get(name, PLAIN)


def default_backend(engine: Engine) -> str:
    """Return the backend by which an engine carries tokens to experts unless told."""
    return next(iter(engine.sends.ep_backends), "")


def bulk_backend(name: str) -> str:
    """Return the backend that carries prompts where this one carries decodes."""
    return backend_called(name).bulk or name


def largest_graph(tp: Number, engine: Engine) -> Number:
    """Return the rows of the largest captured graph, or 0 where the engine captures none."""
    most = pick(np.asarray(tp) >= WIDE, engine.sends.graph_rows_wide, engine.sends.graph_rows)
    return np.minimum(most, max(engine.sends.graph_sizes, default=0))


def padded_rows(rows: Number, work: Workload, engine: Engine, tp: Number = 1, eager: bool = False) -> Number:
    """Return rows as the engine runs them: in the next larger captured graph, where sizes may count sequences, unless the engine
    captures none for steps with prompts or of so many rows."""
    sizes, each = np.asarray(engine.sends.graph_sizes), work.rows_per_seq
    if eager or not sizes.size:
        return rows
    most = largest_graph(tp, engine)
    if each > 1:
        counted = engine.sends.graph_counts_seqs
        sizes, most = (sizes * each, most * each) if counted else (np.array(sorted({*(-(-sizes // each) * each).tolist()})), most)
    padded = pick(np.asarray(rows) <= most, sizes[np.minimum(np.searchsorted(sizes, rows), sizes.size - 1)], rows)
    if not engine.sends.graph_pads_prefill:
        padded = pick(np.asarray(work.prefill_tokens) > 0, rows, padded)
    return padded if np.ndim(padded) else float(padded)


def inference(
    model: Model, plan: Plan, work: Workload, engine: Engine, *, ep_backend: str = "", eager: bool = False, dispatch_dtype: str = ""
) -> list[Item]:
    """List all collectives of one step of one replica (and, where replicas share experts, of the group it moves with)."""
    whole, work = work, prompts_of_rank(work, plan.cp) if plan.splits_sequences else work
    act, backend = DTYPE_BYTES[plan.activations_dtype], ep_backend or default_backend(engine) or GATHERING
    gathers, rows = backend_called(backend).gathers, padded_rows(work.rows, work, engine, plan.tp, eager)
    payload = rows * model.hidden * act
    num_moe = sum(isinstance(model.blocks[i].ffn, Experts) for i in model.layers)
    full_norms = sum(a.qk_norm == "full" for i in model.layers if (a := model.blocks[i].attention))
    split, shared = np.asarray(tokens_split(model, plan, engine)), expert_ranks(plan, engine).over_replicas
    # Where tokens are split over tp, or sent to experts, MoE layers leave no partial sums to reduce.
    apart = split | (not gathers) | (np.asarray(plan.tp) == 1) | (not engine.sends.ep_is_tp_dp)
    apart = apart & (np.asarray(plan.ep) > plan.tp)
    samples = work.samples
    if engine.sends.logits_padded:
        samples = pick(np.asarray(work.prefill_tokens) > 0, samples, rows)
    logits = samples * padded_vocab(model, plan, engine) * act
    sums, latents = _expert_sums(model, engine)
    reduced = model.num_feed_forwards - num_moe + pick(apart, 0, sums)
    squares, note = rows * NORM_BYTES, "sums of squares over all heads, fp32"
    items = [tp_item("embedding", "all-reduce", payload, 1, plan, "embedding")]
    items.append(tp_item("query/key norm", "all-reduce", squares, full_norms, plan, "projections", place="query", note=note))
    items += _reduce_output("attention output", payload, model.num_mixers, plan, "attention", "reduced")
    items += _reduce_output("feed-forward output", payload, reduced, plan, "feed-forward", "output")
    if model.experts and model.experts.latent:
        narrow = rows * model.experts.latent * act
        items += _reduce_output("latent experts' output", narrow, pick(apart, 0, latents), plan, "feed-forward", "output")
    mixers = [m for i in model.layers if isinstance(m := model.blocks[i].mixer, Mamba2)]
    if mixers:  # state-space layers of one group norm over all of their heads, of which each rank has some
        one = sum(m.num_groups == 1 for m in mixers)
        items.append(tp_item("state-space norm", "all-reduce", rows * SUM_BYTES, one, plan, "projections", note=note))
    items.append(tp_item("logits", "all-gather", logits, 1, plan, "head"))
    items += _stages(payload, plan, engine, model)
    items += _served_experts(model, plan, rows, (backend, dispatch_dtype), pick(shared, num_moe, 0), split)
    if plan.splits_sequences:
        items += [*split_cache_items(model, plan, work, rows, engine), *split_prompt_items(model, plan, whole, rows, engine)]
    return items + tower_items(model, plan, work)


def _expert_sums(model: Model, engine: Engine) -> tuple[int, int]:
    """Return the sums of layers with experts over tp, of the hidden width and of experts' latent: one of shared and routed experts
    together, unless each has a norm, or the latent is summed before its own."""
    wide = latent = 0
    for f in (f for i in model.layers if isinstance(f := model.blocks[i].ffn, Experts)):
        early = bool(f.latent) and (f.latent_norm or engine.sends.latent_reduced)
        latent += early
        wide += (f.shared_intermediate > 0) + (not early) if early or (f.shared_apart and f.shared_intermediate) else 1
    return wide, latent


def tp_item(
    what: str, op: str, nbytes: Number, count: Number, plan: Plan, part: Part, stage: Stage = "", place: Place = "", note: str = ""
) -> Item:
    """Return a collective of the tensor-parallel ranks, if several. Products can be cut beside gathers and scatters."""
    sent = pick(np.asarray(plan.tp) > 1, count, 0)
    window: Window = "products" if op in ("all-gather", "reduce-scatter") else ""
    return Item(what, "tp", op, nbytes, plan.tp, sent, note, part=part, place=place, stage=stage, overlaps_with=window)


def _reduce_output(what: str, payload: Number, count: Number, plan: Plan, part: Part, place: Place) -> list[Item]:
    """List what sums a row-parallel output: one all-reduce, or reduce-scatter and all-gather with sequence parallelism."""
    ops = ("reduce-scatter", "all-gather") if plan.sequence_parallel else ("all-reduce",)
    return [tp_item(what, op, payload, count, plan, part, place=place) for op in ops]


def _stages(payload: Number, plan: Plan, engine: Engine, model: Model) -> list[Item]:
    """List hand-offs between stages. Where each tp rank sends its 1/tp, the receivers gather the rest among themselves."""
    payload = payload * vectors_handed_on(model, plan.pp)
    alone = model.hyper or model.lookback or not model.residual_stream
    cuts = (plan.pp - 1) * (1 if alone else engine.sends.pp_tensors)
    scattered = engine.sends.pp_scatter & (np.asarray(plan.tp) > 1)
    return [
        Item("stage hand-off", "pp", "send-recv", payload / pick(scattered, plan.tp, 1), plan.pp * 0 + 2, cuts, part="stages"),
        tp_item("stage hand-off", "all-gather", payload, pick(scattered, cuts, 0), plan, "stages"),
    ]


def exchange_item(place: Place, axis: str, op: str, nbytes: Number, ranks: Number, count: Number, note: str = "") -> Item:
    """Return a collective that carries tokens to experts, or back."""
    return Item(EXCHANGES[place], axis, op, nbytes, ranks, count, note, part="experts", place=place)


def _served_experts(model: Model, plan: Plan, rows: Number, how: tuple[str, str], count: Number, split: Condition) -> list[Item]:
    """List what experts of ``count`` layers send, shared among replicas, by (backend, what tokens travel in): gathered over ep if
    tokens are split over tp, else over replicas, or one copy per destination rank or expert."""
    moe, (backend, dispatch_dtype) = model.experts, how
    if moe is None or not np.any(count):
        ops = ("all-gather", "all-gather", "reduce-scatter", "all-gather")
        return [exchange_item(place, "ep", op, 0.0, 1, 0) for place, op in zip(EXCHANGES, ops, strict=True)]
    sent, width = pick(split, np.ceil(rows / plan.tp), rows), moe.latent or model.hidden
    out = width * dispatched_bytes(plan, format_of(model, EXPERTS, quantisation(model, plan)), dispatch_dtype)
    back = width * DTYPE_BYTES[plan.activations_dtype]
    again = pick(split & (np.asarray(plan.tp) > 1), count, 0)
    regather = exchange_item("output", "tp", "all-gather", sent * plan.tp * back, plan.tp, again, "tokens back to every tp rank")
    how_sent = backend_called(backend)
    if how_sent.gathers:
        group = pick(split | (np.asarray(plan.tp) == 1), np.maximum(plan.ep, plan.dp), plan.dp)
        on_ep = np.asarray(group) == plan.ep
        sets = (("ep", pick(on_ep, count, 0)), ("dp", pick(on_ep, 0, count)))  # an array may hold plans of both kinds
        token, ids, part = sent * out * group, sent * moe.top_k * ROUTING_BYTES * group, sent * back * group
        items: list[Item] = []
        for axis, n in ((axis, n) for axis, n in sets if np.any(n)):
            items += [
                exchange_item("dispatch", axis, "all-gather", token, group, n, "every token to every rank"),
                exchange_item("routing ids", axis, "all-gather", ids, group, n, "ids int32, weights fp32"),
                exchange_item("combine", axis, "reduce-scatter", part, group, n),
            ]
        return [*items, regather]
    copies, routed = (moe.top_k, None) if how_sent.per_expert else (expected_destinations(moe, plan.ep), moe)
    note = "one copy an expert" if how_sent.per_expert else "one copy a destination rank, uniform routing"
    there = exchange_item("dispatch", "ep", "all-to-all", sent * copies * out, plan.ep, count, note)
    home = exchange_item("combine", "ep", "all-to-all", sent * copies * back, plan.ep, count, "bf16 back")
    return [replace(there, routed=routed), replace(home, routed=routed), regather]


def dispatched_bytes(plan: Plan, quant: Quant | None, dispatch_dtype: str = "") -> float:
    """Return the bytes of one activation element on its way to an expert, scales included: as wanted, else as experts compute."""
    dtype = "" if quant is None or quant.weight_only else quant.activations or quant.dtype
    kind = dispatch_dtype or dtype
    if kind == "fp8":
        return 1 + 4 / FP8_SCALE_GROUP
    return 0.5 + 1 / NVFP4_SCALE_GROUP if kind == "nvfp4" else DTYPE_BYTES[dispatch_dtype or plan.activations_dtype]


def expected_destinations(moe: Experts, ep: Number) -> Number:
    """Return the mean number of different ranks of a token's ``top_k`` experts: ep (1 - C(E-E/ep, k)/C(E, k)).
    Routing is uniform, within the groups of experts that a token may choose among (node-limited routing): a rank is missed if none
    of its groups is chosen, or none of its experts in them.

    >>> round(float(expected_destinations(Experts(256, 8, 2048), 8)), 2)
    5.29
    >>> round(float(expected_destinations(Experts(256, 8, 2048, groups=8, top_groups=4), 8)), 2)
    3.63
    """
    if moe.top_groups >= moe.groups:
        return ep * (1 - _missed(moe, moe.num_experts, moe.num_experts / ep))
    whole = np.asarray(moe.groups) % np.minimum(ep, moe.groups) == 0  # else a group lies on parts of ranks: as if there were none
    mine = np.where(whole, np.maximum(1, moe.groups / ep), 1.0)  # groups of a rank; a share of one where there are more ranks
    owned = moe.num_experts / np.maximum(ep, moe.groups)  # experts of a rank in each of them
    allowed = moe.num_experts * moe.top_groups / moe.groups
    missed: Number = 0.0
    for chosen in range(moe.top_groups + 1):
        ways = _choices(mine, chosen) * _choices(moe.groups - mine, moe.top_groups - chosen)
        missed = missed + (ways / _choices(moe.groups, moe.top_groups)) * _missed(moe, allowed, chosen * owned)
    mean = ep * (1 - np.where(whole, missed, _missed(moe, moe.num_experts, moe.num_experts / ep)))
    return mean if np.ndim(mean) else float(mean)


def _missed(moe: Experts, experts: Number, owned: Number) -> Number:
    """Return the chance that none of ``top_k`` different experts is among the ``owned`` ones."""
    missed: Number = 1.0
    for drawn in range(moe.top_k):
        missed = missed * np.maximum(0, experts - owned - drawn) / (experts - drawn)
    return missed


def _choices(of: Number, taken: int) -> Number:
    """Return the number of ways to take some of so many."""
    ways: Number = 1.0
    for i in range(taken):
        ways = ways * np.maximum(0, of - i) / (i + 1)
    return ways


def vectors_handed_on(model: Model, pp: Number) -> Number:
    """Return the vectors of a token that a cut between stages hands on: one, all streams, or on average over the cuts one of each
    block begun before it and the sum since (Kimi-K3's report, arXiv 2607.24653, section 2.2)."""
    if not model.lookback:
        return model.hyper.streams if model.hyper else 1

    def mean(wanted: float) -> float:
        stages = int(min(wanted, model.num_layers))
        begun = [-(-(model.num_layers * cut // stages) // model.lookback) for cut in range(1, stages)]
        return 1.0 + sum(begun) / max(1, len(begun))

    return np.vectorize(mean, otypes=[float])(pp) if np.ndim(pp) else mean(float(pp))


def tower_items(model: Model, plan: Plan, work: Workload) -> list[Item]:
    """List what the ranks of a tower send: two sums per layer where they share its weights, else every rank's tokens to all."""
    t = model.tower
    if t is None or not np.any(work.pictures):
        return []
    act, several = DTYPE_BYTES[plan.activations_dtype], np.asarray(plan.tp) > 1
    patches = work.pictures * work.patches
    sums, tokens = patches * t.hidden * act, patches / t.patches_per_token * model.hidden * act
    shared = plan.tower != "data"
    return [
        Item("tower output", "tp", "all-reduce", sums, plan.tp, pick(several & shared, 2 * t.num_layers, 0), part="tower"),
        Item("tower tokens", "tp", "all-gather", tokens, plan.tp, pick(several & (not shared), 1, 0), part="tower"),
    ]
