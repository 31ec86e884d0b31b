"""The kernels of one training microbatch on one rank: forward, what backward makes of it, what is recomputed, the update.

Backward of a product is two products of the same FLOPs (input and weight gradients); of fused attention 2.5 times its
forward, because the scores are computed again; of an element-wise kernel about 1.5 times its bytes.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from commtax.arrays import pick
from commtax.cost.compute import head_kernel, layer_kernels
from commtax.cost.inventory import ROWWISE
from commtax.cost.kernel import LOW_ARITHMETIC, Kernel
from commtax.cost.layer_forms import CHIP_FORMS
from commtax.cost.placement import padded_vocab
from commtax.ledger import Stage
from commtax.records import replace
from commtax.spec import DTYPE_BYTES, Engine, Model, Number, Plan, Sending, TrainStep, Workload

BACKWARD_ATTENTION_FLOPS = 2.5  # five products of the score matrix's size against two
BACKWARD_ELEMENT_BYTES = 1.5
LOSS_BYTES = 16  # fp32 logits written and read twice beside the bf16 ones, a row and word of the vocabulary
SCORE_BYTES = 9  # unfused attention: softmax reads and writes a score, dropout reads, writes and keeps a mask
CAST_BYTES = {"fp8": 5.0, ROWWISE: 19.0, "mxfp8": 4.0, "nvfp4": 5.0}
"""A value that is cast: read for the largest and read again (MXFP8's blocks: once), written for this product and, laid out the
other way, for the weight gradient, where the format does not allow to read it both ways (fp8 and one scale a tensor: once).
A scale a row: casts along both sides and slower products together, fitted on torchao's own runs of Llama 3 8B on eight H100
(torchao 0.10, docs/source/workflows/training.md: bf16 6,150 tokens/s, a scale a tensor 7,690, a scale a row 6,768)."""
SCAN_BACKWARD = 2.5  # a scan's backward over its forward, as attention's: chunks are computed again
SECOND: dict[str, float] = {"output projection": 1.0, "gate": 0.5, "up": 0.0}
"""Share of a product, or of the two that stand as one, that is an even one of its layer (see ``_recomputed_share``)."""
UPDATE_BYTES = 38  # Adam: gradient read (twice, once to clip) and cleared, three fp32 states read and written, parameter written


def forward_kernels(
    model: Model, plan: Plan, step: TrainStep, engine: Engine, layers: Number, passes: float, imbalance: float = 1.0
) -> tuple[list[Kernel], list[Kernel]]:
    """Return forward kernels of ``layers`` layers, and of the head over every token, as often as one microbatch runs them, where
    each context-parallel rank sees half of the other ranks' keys."""
    local = plan.share(step.seq)
    rows = step.micro_batch * local
    work = Workload(prefill_seqs=step.micro_batch, prefill_tokens=rows, past_tokens=step.micro_batch * (step.seq - local) / 2)
    share = layers / model.num_layers
    trained: list[Kernel] = []
    for kernel in layer_kernels(model, plan, work, rows, engine, training=True):
        if kernel.form == "decode" or (np.ndim(kernel.count) == 0 and kernel.count == 0):
            continue
        busier = pick(np.asarray(plan.ep) > 1, imbalance, 1.0) if kernel.part in ("experts", "routing") else 1.0
        trained += _training_kernels(kernel, kernel.count * share, plan, step, engine, passes, busier)
    logits, times = rows * padded_vocab(model, plan, engine) / plan.tp, model.head_passes
    loss = Kernel("loss", "elementwise", times, 0.0, logits * LOSS_BYTES, part="loss", stage="forward")
    return trained, [replace(head_kernel(model, plan, rows, engine), count=times, stage="forward"), loss]


def _training_kernels(
    k: Kernel, count: Number, plan: Plan, step: TrainStep, engine: Engine, passes: float, busier: Number
) -> Iterator[Kernel]:
    """Yield a serving kernel as training runs it: tensors stream through element-wise kernels, attention may be unfused."""
    if k.form == "small":
        split = plan.tp if plan.sequence_parallel and k.part == "norms" else 1
        yield _elementwise(k, k.what, count, k.nbytes / split * passes * busier)
    elif k.form == "prefill" and engine.trains.attention == "unfused":
        # Scores as a whole matrix: two batched products over all pairs (masked ones too) and the element-wise part between
        e, m, keys, d = DTYPE_BYTES[plan.activations_dtype], step.micro_batch * k.heads * k.length, step.seq, k.head_dim
        product = Kernel("attention scores", "gemm", count, 2 * m * keys * d, e * (2 * m * d + m * keys), m, keys, d)
        scores = replace(product, part=k.part, place=k.place, stage="forward")
        yield scores
        yield _elementwise(k, "attention softmax", count, SCORE_BYTES * m * keys)
        yield replace(scores, what="attention values", n=d, k=keys)
    elif k.form == "prefill":
        yield replace(k, what="attention", count=count, stage="forward")
    elif k.form in CHIP_FORMS:  # convolutions and scans of linear attention
        yield replace(k, count=count, stage="forward")
    else:  # a product, and in fp8 the cast of its input, which is a kernel of its own
        yield _product(k, k.what, "forward", count, k.flops * busier, k.nbytes, (k.m * busier, k.n, k.k))
        if k.dtype in LOW_ARITHMETIC:
            # Kernels that hold both products of an expert cast what passes between them inside. Of a grouped product every
            # expert's rows are cast. Frozen weights need no second layout. The twin in backward casts the output's gradient.
            inside = k.grouped and plan.weights_dtype in engine.mixes.graphed_experts
            stored = ROWWISE if plan.weights_dtype == ROWWISE else k.number_format
            each = (CAST_BYTES[stored] - (1 if plan.lora_rank else 0)) * k.m * busier
            forward = 0 if inside and k.place == "down" else each * (k.batch if k.grouped else 1) * k.k
            backward = 0 if inside and k.place == "gate" else each * k.n
            yield replace(_elementwise(k, f"{k.what} cast", count, forward), n=backward, casts=True)


def _elementwise(k: Kernel, what: str, count: Number, nbytes: Number, stage: Stage = "forward") -> Kernel:
    return Kernel(what, "elementwise", count, 0.0, nbytes, part=k.part, place=k.place, stage=stage)


def _product(
    k: Kernel, what: str, stage: Stage, count: Number, flops: Number, nbytes: Number, shape: tuple[Number, Number, Number]
) -> Kernel:
    """Return a product with another one's arithmetic, without the casts, which are kernels of their own."""
    made = Kernel(what, "gemm", count, flops, nbytes, *shape, k.dtype, k.weight_bytes, part=k.part, place=k.place, stage=stage)
    return replace(made, static_scales=k.dtype == "fp8", stored=k.stored) if k.dtype in LOW_ARITHMETIC else made


def backward(kernels: list[Kernel], plan: Plan) -> list[Kernel]:
    """List the gradients of every forward kernel: of every input, and of the weights unless all but adapters is frozen."""
    return [made for kernel in kernels for made in _gradients(kernel, bool(plan.lora_rank) and kernel.part != "adapters")]


def _gradients(k: Kernel, frozen: bool) -> Iterator[Kernel]:
    if k.form == "gemm":
        yield _product(k, f"{k.what} input gradient", "backward", k.count, k.flops, k.nbytes, (k.m, k.k, k.n))
        if not frozen:  # the weight gradient is written in fp32
            moved = k.nbytes + (4 - k.weight_bytes) * k.n * k.k
            yield _product(k, f"{k.what} weight gradient", "weight-gradient", k.count, k.flops, moved, (k.n, k.k, k.m))
        return
    what = f"{k.what} backward"
    if k.form in CHIP_FORMS:
        yield replace(k, what=what, count=SCAN_BACKWARD * k.count, stage="backward")
    elif k.form == "prefill":
        yield replace(k, what=what, flops=BACKWARD_ATTENTION_FLOPS * k.flops, nbytes=2 * k.nbytes, stage="backward")
    elif k.casts:  # the cast of an input in forward is that of an output's gradient in backward
        yield _elementwise(k, what, k.count, k.n, "backward")
    else:
        yield _elementwise(k, what, k.count, BACKWARD_ELEMENT_BYTES * k.nbytes, "backward")


def recomputed_kernels(kernels: list[Kernel], model: Model, plan: Plan, engine: Engine) -> list[Kernel]:
    """List what backward runs again: all layers, or what the engine calls selective."""
    if plan.recompute == "none":
        return []
    if not plan.remade and (plan.recompute == "full" or engine.trains.selective == "matmuls"):
        again = [replace(k, count=k.count * _recomputed_share(k, model, plan, engine)) for k in kernels]
        return [k for k in again if np.ndim(k.count) or k.count]
    # Selective recomputation is of norms and up-projections, small to keep and large to make, or of attention with all scans.
    names = plan.remade or (("layernorm", "mla_up_proj") if engine.trains.selective == "up-projections" else ("attention",))
    return [k for k in kernels if any(REMADE[name](k) for name in names)]


def _recomputed_share(k: Kernel, model: Model, plan: Plan, engine: Engine) -> Number:
    """Return the share of a forward kernel that backward runs again under full recomputation (in torch not a layer's last product),
    or where every other product is kept (torch: first, third, fifth) and attention, and all that is small is run again."""
    last = k.form == "gemm" and k.part == "feed-forward" and k.place == "down"
    if plan.recompute == "full":
        return 0.0 if last and engine.trains.recompute_stops else 1.0
    if k.form != "gemm":
        return 1.0 if k.form == "elementwise" else 0.0
    if k.place == "qkv":
        a = model.attention
        return np.clip((k.n - a.num_heads * a.head_dim / plan.tp) / (2 * k.n), 0, 1)  # of query, key and value the second
    return SECOND.get(k.place, 0.0 if last else 0.5)


REMADE: Mapping[str, Callable[[Kernel], bool]] = {
    "attention": lambda k: k.part == "attention",
    "core_attn": lambda k: k.part == "attention" and k.form not in CHIP_FORMS,
    "layernorm": lambda k: k.part == "norms",
    "mla_up_proj": lambda k: k.part == "projections" and k.place in ("query", "key"),  # and casts of what such a product takes
    "mlp": lambda k: k.part == "feed-forward",
    "moe": lambda k: k.part in ("router", "routing", "experts", "shared expert"),
    "moe_act": lambda k: k.part == "experts" and k.place == "activation",  # it stands with the permutation, not told apart
}
"""Forward kernels of the modules that Megatron recomputes by name."""


def step_flops(model: Model, plan: Plan, seq: Number, causal: bool) -> Number:
    """Count the FLOPs of one token's forward and backward: three forward passes' worth, without weight gradients where adapters
    alone are trained (their own few FLOPs are not counted)."""
    layers, head = forward_flops(model, seq, causal)
    if not plan.lora_rank:
        return 3 * (layers + head)
    attended = sum(k.count * _flops(k, model, seq, causal) for k in _counted_kernels(model, seq) if k.form == "prefill") / seq
    return 2 * (layers + head) + attended


def forward_flops(model: Model, seq: Number, causal: bool) -> tuple[Number, Number]:
    """Return the FLOPs of one token's forward pass as (all layers, head): 2 per weight it uses, plus attention over the pairs that
    a query may see (``causal``), or over all of them, as PaLM and Megatron count."""
    kernels = _counted_kernels(model, seq)
    return sum(k.count * _flops(k, model, seq, causal) for k in kernels) / seq, 2.0 * model.hidden * model.vocab * model.head_passes


def _counted_kernels(model: Model, seq: Number) -> list[Kernel]:
    plain = Engine("", "", "", (), (), sends=Sending(experts_keep_tp=True))
    work = Workload(prefill_seqs=1, prefill_tokens=seq)
    return [k for k in layer_kernels(model, Plan(), work, seq, plain, training=True) if k.form in ("gemm", "prefill")]


def _flops(k: Kernel, model: Model, seq: Number, causal: bool) -> Number:
    if k.form == "gemm" or causal:
        return k.flops
    pairs = k.flops / (2 * k.heads * (model.attention.head_dim + model.attention.v_head_dim))
    whole = np.isclose(pairs, seq * (seq + 1) / 2)  # a window is no convention: its pairs are all there are
    return k.flops * pick(whole, 2 * seq / (seq + 1), 1)


def recomputed_flops(model: Model, plan: Plan, step: TrainStep, engine: Engine, causal: bool) -> Number:
    """Return the FLOPs per token that the backward pass recomputes, counted as in ``forward_flops``."""
    again = recomputed_kernels(_counted_kernels(model, step.seq), model, Plan(recompute=plan.recompute), engine)
    return sum((k.count * _flops(k, model, step.seq, causal) for k in again), start=0.0 * step.seq) / step.seq
