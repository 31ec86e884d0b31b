"""Sequences split among ranks while they are served: the cache among neighbours of tp, a prompt among ranks of cp.

A split cache (vLLM's decode context parallelism, Helix) is interleaved: of dcp ranks that would keep the same keys each has every
dcp-th token. All of them need all of their queries, and each sees its part of the keys with all of their heads. Outputs are
corrected by the log-sums of all parts and go back to the ranks whose heads they are (vLLM ``MLAAttention.forward_impl``,
``FlashAttentionImpl._forward_with_dcp``, ``cp_lse_ag_out_rs``, ``dcp_a2a_lse_reduce``). Prompts over a latent attend at home, and
gather what is cached of them; over plain keys their queries go round as those of decodes do.

A split prompt (vLLM's prefill context parallelism, SGLang's attention CP, ATOM): each rank has every cp-th of its tokens, and the
keys of all, which it gathers; decodes run on all cp ranks alike.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost.kernel import Kernel, KernelStep
from commtax.ledger import Item, Part, Place
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Attention, Engine, Experts, Model, Number, Plan, Workload

LOG_SUM_BYTES = 4  # of a row and head: fp32
JOINED_BY_SUMS = "ag_rs"


def attentions(model: Model) -> Mapping[Attention, int]:
    """Count the layers with attention by kind, ignoring differences in their window."""
    return Counter(replace(a, window=0) for a in (model.blocks[i].attention for i in model.layers) if a)


def whole_rows(work: Workload, rows: Number, latent: bool) -> Number:
    """Return the rows whose attention is split: of decodes, padded where alone, and over plain keys of prompts too."""
    return pick(np.asarray(work.prefill_tokens) > 0, work.decode_seqs * work.rows_per_seq, rows) if latent else rows


def joined_widths(a: Attention) -> tuple[int, int]:
    """Return the values of one head's query and output as they are sent, which of a latent are those in its space."""
    return (a.latent.kv_rank + a.latent.rope_dim, a.latent.kv_rank) if a.latent else (a.head_dim, a.v_head_dim)


def split_cache_items(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> Iterator[Item]:
    """Yield what ranks send that share a sequence's cache, or nothing where none do."""
    if not holds_anywhere(np.asarray(plan.dcp) > 1):
        return
    act = DTYPE_BYTES[plan.activations_dtype]
    for a, layers in attentions(model).items():
        (query, output), ours = joined_widths(a), whole_rows(work, rows, a.latent is not None)
        heads, some = a.num_heads * plan.dcp / plan.tp, pick(np.asarray(ours) > 0, layers, 0)
        if not engine.contexts.queries_remade:
            yield _among("dcp", "queries", "all-gather", ours * heads * query * act, some, plan, "query")
        if engine.contexts.cache_join == JOINED_BY_SUMS:
            sums = plan.dcp * ours * heads * LOG_SUM_BYTES
            yield _among("dcp", "log-sums", "all-gather", sums, some, plan, "value", "fp32, of each rank's keys")
            yield _among("dcp", "partial outputs", "reduce-scatter", ours * heads * output * act, some, plan, "value")
        else:
            sent = ours * heads * (output * act + LOG_SUM_BYTES)
            yield _among("dcp", "partial outputs", "all-to-all", sent, some, plan, "value", "with their log-sums, fp32")
        if a.latent:
            cached = work.past_tokens * query * DTYPE_BYTES[plan.kv_dtype]
            some = pick(np.asarray(work.past_tokens) > 0, layers, 0)
            note = "latents of a prompt's earlier tokens"
            yield _among("dcp", "cached latents", "all-gather", cached, some, plan, "prefill", note)


def joining_kernels(s: KernelStep, a: Attention, layers: int) -> Iterator[Kernel]:
    """Yield the copies into the order that collectives need and back, and output correction, and over plain keys the merge with
    attention among the new tokens."""
    if not holds_anywhere(np.asarray(s.plan.dcp) > 1):
        return
    query, output = joined_widths(a)
    rows, here = whole_rows(s.work, s.rows, a.latent is not None), a.num_heads / s.plan.tp
    launches = s.engine.contexts.join_launches + (0 if a.latent else 2)
    merged = 0 if a.latent else 3 * rows * here * output
    moved = 2 * rows * here * (query * (1 + s.plan.dcp) + output * (1 + 2 * s.plan.dcp)) + merged
    runs = pick((np.asarray(s.plan.dcp) > 1) & (np.asarray(rows) > 0), launches * layers, 0)
    yield s.small("outputs of split caches", "attention", "value", runs, moved / launches, fusable=False)


def prompts_of_rank(work: Workload, cp: Number) -> Workload:
    """Return the step of one of cp ranks that split prompts: its tokens, each cp-th of n, behind (n - n/cp)/2 others on average."""
    if not holds_anywhere(np.asarray(cp) > 1):
        return work
    tokens = work.prefill_tokens / cp
    return replace(work, prefill_tokens=tokens, past_tokens=work.past_tokens + (work.prefill_tokens - tokens) / 2)


def key_values(a: Attention) -> Number:
    """Count the values of one token that others need to see it, of each KV head or of the latent, and a compressor's inputs."""
    beside = a.indexer.head_dim if a.indexer and a.indexer.own else 0
    if m := a.compressed:
        return a.head_dim + (2 * m.overlap * (a.head_dim + beside) if m.ratio else 0)
    return a.latent.kv_rank + a.latent.rope_dim + beside if a.latent else a.head_dim + a.v_head_dim


def split_prompt_items(model: Model, plan: Plan, work: Workload, rows: Number, engine: Engine) -> Iterator[Item]:
    """Yield what cp ranks send that split prompts: each layer's keys, the last hidden states once, and rows for shared experts."""
    if not holds_anywhere(np.asarray(plan.cp) > 1):
        return
    act, tokens = DTYPE_BYTES[plan.activations_dtype], work.prefill_tokens
    some, any_rows = pick(np.asarray(tokens) > 0, 1, 0), pick(np.asarray(rows) > 0, 1, 0)
    for a, layers in attentions(model).items():
        heads = 1 if a.latent or a.compressed else a.num_kv_heads / np.minimum(plan.tp, a.num_kv_heads)
        keys = tokens * heads * key_values(a) * act
        yield _among("cp", "keys of split prompts", "all-gather", keys, layers * some, plan, "key")
    mixtures = sum(isinstance(model.blocks[i].ffn, Experts) for i in model.layers)
    if mixtures and engine.contexts.prompt_experts == "cut":
        hidden = rows * plan.cp * model.hidden * act
        yield _among("cp", "tokens for shared experts", "all-gather", hidden, mixtures * any_rows, plan, "dispatch")
        yield _among("cp", "tokens for shared experts", "reduce-scatter", hidden, mixtures * any_rows, plan, "combine")
    yield _among("cp", "rows of split prompts", "all-gather", tokens * model.hidden * act, some, plan, "")


def _among(axis: str, what: str, op: str, nbytes: Number, count: Number, plan: Plan, place: Place, note: str = "") -> Item:
    """Return a collective among the ranks that split caches (``dcp``) or prompts (``cp``)."""
    ranks: Number = getattr(plan, axis)
    part: Part = "experts" if place in ("dispatch", "combine") else "attention" if place else "head"
    return Item(what, axis, op, nbytes, ranks, pick(np.asarray(ranks) > 1, count, 0), note, part=part, place=place)
