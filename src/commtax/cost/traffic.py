"""What one inference step sends: every collective with exact bytes and counts, for any mix of prefill and decode.

Counts follow one token's path through all pipeline stages. The set of lines is fixed: a collective that a plan does
not issue has count 0. Control messages (scheduler metadata, sampled token ids) are left out.
"""

from __future__ import annotations

import numpy as np

from commtax.cost.tensors import moe_tokens_split, padded_vocab
from commtax.ledger import Item
from commtax.spec import DTYPE_BYTES, Engine, Experts, Model, Number, Plan, Workload

AG_RS, DEEPEP_HT, DEEPEP_LL = "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"
FP8_SCALE_GROUP = 128  # DeepEP sends one fp32 scale for each 128 fp8 values


def padded_rows(rows: Number, work: Workload, engine: Engine, eager: bool = False) -> Number:
    """Rows as the engine runs them: a graph is captured for some batch sizes only, and a batch runs in the next one.

    Steps with prompt tokens are padded only by engines that capture those too; rows beyond the largest size run as
    they are.
    """
    sizes = np.asarray(engine.graph_sizes)
    if eager or not sizes.size:
        return rows
    slot = np.searchsorted(sizes, rows)
    padded = np.where(slot < sizes.size, sizes[np.minimum(slot, sizes.size - 1)], rows)
    if not engine.graph_pads_prefill:
        padded = np.where(np.asarray(work.prefill_tokens) > 0, rows, padded)
    return padded if np.ndim(padded) else float(padded)


def inference(model: Model, plan: Plan, work: Workload, engine: Engine, *, ep_backend: str = "", eager: bool = False) -> list[Item]:
    """All collectives of one step of one replica (and, with expert parallelism over dp, of the group it moves with)."""
    act = DTYPE_BYTES[plan.activations_dtype]
    rows = padded_rows(work.rows, work, engine, eager)
    payload = rows * model.hidden * act
    num_moe = sum(isinstance(model.blocks[i].ffn, Experts) for i in model.layers)
    over_dp = np.asarray(plan.ep > plan.tp)
    ffn_reduced = model.num_layers - np.where(over_dp, num_moe, 0)
    samples = work.samples
    if engine.logits_padded:
        samples = np.where(np.asarray(work.prefill_tokens) > 0, samples, rows)[()]
    logits = samples * padded_vocab(model, plan, engine) * act
    items = [_tp("embedding", "all-reduce", payload, 1, plan)]
    items += _reduced("attention output", payload, model.num_layers, plan)
    items += _reduced("feed-forward output", payload, ffn_reduced, plan)
    items.append(_tp("logits", "all-gather", logits, 1, plan))
    items += _stages(payload, plan, engine)
    items += _experts(model, plan, rows, engine, ep_backend or (engine.ep_backends or (AG_RS,))[0], num_moe)
    return items


def _tp(what: str, op: str, nbytes: Number, count: Number, plan: Plan, note: str = "") -> Item:
    return Item(what, "tp", op, nbytes, plan.tp, np.where(np.asarray(plan.tp) > 1, count, 0)[()], note)


def _reduced(what: str, payload: Number, count: Number, plan: Plan) -> list[Item]:
    """A row-parallel output: one all-reduce, or reduce-scatter and all-gather with sequence parallelism."""
    if not plan.sequence_parallel:
        return [_tp(what, "all-reduce", payload, count, plan)]
    return [_tp(what, "reduce-scatter", payload, count, plan), _tp(what, "all-gather", payload, count, plan)]


def _stages(payload: Number, plan: Plan, engine: Engine) -> list[Item]:
    """Hand-offs between stages. Where each tp rank sends its 1/tp, the receivers gather the rest among themselves."""
    cuts = (plan.pp - 1) * engine.pp_tensors
    scattered = engine.pp_scatter & (np.asarray(plan.tp) > 1)
    sent = payload / np.where(scattered, plan.tp, 1)
    return [
        Item("stage hand-off", "pp", "send-recv", sent, plan.pp * 0 + 2, cuts),
        _tp("stage hand-off", "all-gather", payload, np.where(scattered, cuts, 0), plan),
    ]


def _experts(model: Model, plan: Plan, rows: Number, engine: Engine, backend: str, num_moe: int) -> list[Item]:
    """Expert parallelism across replicas. Within one replica (ep <= tp) the tp all-reduce stays and nothing is added."""
    moe = model.experts or Experts(1, 1, 1)
    act = DTYPE_BYTES[plan.activations_dtype]
    count = np.where(np.asarray(plan.ep > plan.tp), num_moe, 0)[()]
    split = np.asarray(moe_tokens_split(plan, engine))
    mine = np.where(split, np.ceil(rows / plan.tp), rows)[()]
    group_rows = mine * plan.ep  # rows of the whole group after the gather
    wire = model.hidden * act
    if backend == AG_RS:
        lines = [
            Item("expert dispatch", "ep", "all-gather", group_rows * wire, plan.ep, count, "every token to every rank"),
            Item(
                "expert routing",
                "ep",
                "all-gather",
                group_rows * moe.top_k * 8,
                plan.ep,
                count,
                "ids int32, weights fp32",
            ),
            Item("expert combine", "ep", "reduce-scatter", group_rows * wire, plan.ep, count),
        ]
    else:
        copies = moe.top_k if backend == DEEPEP_LL else expected_destinations(moe, plan.ep)
        out = model.hidden * (1 + 4 / FP8_SCALE_GROUP)
        note = "one fp8 copy an expert" if backend == DEEPEP_LL else "one fp8 copy a destination rank, uniform routing"
        lines = [
            Item("expert dispatch", "ep", "all-to-all", mine * copies * out, plan.ep, count, note),
            Item("expert combine", "ep", "all-to-all", mine * copies * wire, plan.ep, count, "bf16 back"),
        ]
    regather = np.where(split, count, 0)[()]
    return [
        *lines,
        _tp("expert output", "all-gather", mine * plan.tp * wire, regather, plan, "tokens back to every tp rank"),
    ]


def expected_destinations(moe: Experts, ep: Number) -> Number:
    """Mean number of different ranks that a token's ``top_k`` experts lie on, routing uniform: ep (1 - C(E-E/ep, k)/C(E, k)).

    >>> round(float(expected_destinations(Experts(256, 8, 2048), 8)), 2)
    5.29
    """
    others = moe.num_experts - moe.num_experts / ep
    missed: Number = 1.0
    for drawn in range(moe.top_k):
        missed = missed * np.maximum(0, others - drawn) / (moe.num_experts - drawn)
    return ep * (1 - missed)
