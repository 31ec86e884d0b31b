"""What a drafter does in a step: its kernels, what its ranks send, and how many tokens a step yields.

A step that checks k drafts per sequence has k + 1 rows of each. Behind it the drafter makes the next k. Drafters that go token by
token run k times: first over all rows that were checked (the accepted ones enter its caches), then over one row per sequence.
Others make all drafts in one pass. A drafter is a small model, so its kernels and collectives are those of one.
"""

from collections.abc import Iterator

import numpy as np

from commtax.cost.compute import head_kernel, step_kernels
from commtax.cost.kernel import Kernel, KernelStep, PricingTerms
from commtax.cost.placement import padded_vocab
from commtax.cost.traffic import backend_called, default_backend, inference, padded_rows
from commtax.ledger import Item
from commtax.records import dataclass, replace
from commtax.spec import DTYPE_BYTES, Drafter, Engine, Model, Number, Plan, Workload


@dataclass(frozen=True, slots=True)
class DraftPass:
    """``count`` forward passes of a drafter over the same rows."""

    count: int
    work: Workload
    samples: Number  # rows whose logits are needed
    verified: Number = 0.0  # rows of the model's own states that enter it


def tokens_per_step(drafts: int, acceptance: float) -> float:
    """Return the mean tokens that a step yields per sequence: its own, and drafts until the first rejection.

    >>> tokens_per_step(3, 0.5), tokens_per_step(3, 0.0), tokens_per_step(0, 0.9)
    (1.875, 1.0, 1.0)
    """
    return 1.0 + sum(acceptance**n for n in range(1, drafts + 1))


def acceptance_of(drafts: int, length: float) -> float:
    """Find by bisection the acceptance that makes steps yield ``length`` tokens, the inverse of ``tokens_per_step``.

    >>> round(acceptance_of(3, 1.875), 6)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(drafts, middle) < length else (low, middle)
    return high


def draft_passes(d: Drafter, work: Workload) -> Iterator[DraftPass]:
    """Yield the forward passes that make the next drafts of all sequences of a step, prompts that end in it included."""
    drafts, seqs = work.rows_per_seq - 1, work.decode_seqs + work.prefill_seqs
    plain = replace(work, pictures=0, patches=0)
    if d.context_only:
        context = work.cached_tokens + work.past_tokens + work.prefill_tokens
        yield DraftPass(1, Workload(seqs, context, rows_per_seq=drafts + 1), seqs * drafts, work.rows)
    elif d.parallel:  # masks stand behind the verified tokens, one for each draft but the first
        yield DraftPass(1, replace(plain, rows_per_seq=2 * drafts), seqs * drafts, work.rows)
    else:
        yield DraftPass(1, plain, seqs, work.rows)
        if drafts > 1:
            further = work.cached_tokens + work.decode_seqs * drafts + work.past_tokens + work.prefill_tokens
            yield DraftPass(drafts - 1, Workload(seqs, further), seqs)


def draft_step(t: PricingTerms, work: Workload) -> tuple[list[Kernel], list[Item]]:
    """List the drafter's kernels and collectives in one step, or none where nothing is drafted or drafts are only looked up."""
    d = t.drafter
    if d is None or d.model is None or work.rows_per_seq == 1:
        return [], []
    each = ((kernel, p.count) for p in draft_passes(d, work) for kernel in _pass_kernels(t, d, d.model, p))
    kernels = [replace(k, what=f"draft {k.what}", count=k.count * count, stage="draft") for k, count in each]
    return kernels, draft_items(d, t.plan, work, t.engine, t.settings.ep_backend, t.settings.eager)


def draft_items(
    d: Drafter | None, plan: Plan, work: Workload, engine: Engine, ep_backend: str = "", eager: bool = False
) -> list[Item]:
    """List what a drafter's ranks send: as its model's do, with logits for draft rows only, on a single stage."""
    if d is None or d.model is None or work.rows_per_seq == 1:
        return []
    items: list[Item] = []
    for p in draft_passes(d, work):
        for item in inference(d.model, plan, p.work, engine, ep_backend=ep_backend, eager=eager):
            if item.part == "stages":
                continue
            if item.part == "head":
                item = replace(item, nbytes=p.samples * padded_vocab(d.model, plan, engine) * DTYPE_BYTES[plan.activations_dtype])
            items.append(replace(item, what=f"draft {item.what}", count=item.count * p.count, stage="draft"))
    return items


def _pass_kernels(t: PricingTerms, d: Drafter, model: Model, p: DraftPass) -> Iterator[Kernel]:
    """Yield one forward pass: the drafter's layers, its input, and the logits of rows that are drafts."""
    ran, plan, engine = t.settings, t.plan, t.engine
    rows = padded_rows(p.work.rows, p.work, engine, plan.tp, ran.eager)
    exchange = backend_called(ran.ep_backend or default_backend(engine)).experts
    made = step_kernels(model, plan, p.work, rows, engine, exchange, ran.imbalance)
    yield from (kernel for kernel in made if kernel.part not in ("head", "tower"))
    yield head_kernel(model, plan, p.samples, engine)
    yield from _input_kernels(KernelStep(model, plan, p.work, rows, engine), d, p)
    if d.markov:
        drafts, width = p.work.rows_per_seq - 1, padded_vocab(model, plan, engine) / plan.tp
        step = KernelStep(model, plan, p.work, p.samples / drafts, engine)
        yield step.gemm("correction", "head", "", drafts, p.samples / drafts, width, d.markov)


def _input_kernels(s: KernelStep, d: Drafter, p: DraftPass) -> Iterator[Kernel]:
    """Yield the matrices before its first layer, whole on every rank, and verified tokens' keys and values if only those enter."""
    hidden, fresh = s.model.hidden, np.any(np.asarray(p.verified) > 0)
    if d.joined and (d.rejoined or fresh):
        yield s.gemm("input", "embedding", "", 1, p.verified if d.context_only else s.rows, hidden, d.joined * hidden)
    a = s.model.attention
    keys: Number = a.num_kv_heads / np.minimum(s.plan.tp, a.num_kv_heads) * (a.head_dim + a.v_head_dim)
    if a.latent or a.compressed:  # a latent is made whole by every rank
        keys = a.latent.kv_rank + a.latent.rope_dim if a.latent else a.head_dim
    if d.doubled:
        width = a.num_heads * a.head_dim / s.plan.tp + keys
        yield s.gemm("embedding's queries, keys and values", "projections", "qkv", 1, s.rows, width, hidden)
    if d.context_only:
        yield s.gemm("verified keys and values", "projections", "key", s.model.num_mixers, p.verified, keys, hidden)


def draft_host_s(t: PricingTerms, work: Workload) -> Number:
    """Return the extra seconds that the GPU waits for the host with drafts: once a step, and in each pass without a whole graph."""
    habits, d = t.engine.drafts, t.drafter
    if d is None or work.rows_per_seq == 1:
        return 0.0
    if d.model is None:
        return habits.draft_step_s + habits.draft_seq_s * (work.decode_seqs + work.prefill_seqs)
    return habits.draft_step_s + habits.draft_pass_s * sum(p.count for p in draft_passes(d, work))
