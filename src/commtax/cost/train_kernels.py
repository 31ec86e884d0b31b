"""The kernels of one training microbatch on one rank: forward, what backward makes of it, what is recomputed, the update.

Backward of a product is two products of the same FLOPs (input and weight gradients); of fused attention 2.5 times its
forward, because the scores are computed again; of an element-wise kernel about 1.5 times its bytes.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.arrays import pick
from commtax.cost.compute import head_kernel, layer_kernels
from commtax.cost.kernel import Kernel
from commtax.cost.tensors import padded_vocab
from commtax.ledger import Stage
from commtax.spec import DTYPE_BYTES, Engine, Model, Number, Plan, Sending, TrainStep, Workload

BACKWARD_ATTENTION_FLOPS = 2.5  # five products of the score matrix's size against two
BACKWARD_ELEMENT_BYTES = 1.5
LOSS_BYTES = 16  # fp32 logits written and read twice beside the bf16 ones, a row and word of the vocabulary
SCORE_BYTES = 9  # unfused attention: softmax reads and writes a score, dropout reads, writes and keeps a mask
CAST_BYTES = 5  # to fp8: read for the largest value, read again, written
UPDATE_BYTES = 38  # Adam: gradient read (twice, once to clip) and cleared, three fp32 states read and written, parameter written


def forward(
    model: Model, plan: Plan, step: TrainStep, engine: Engine, layers: Number, passes: float, imbalance: float = 1.0
) -> tuple[list[Kernel], list[Kernel]]:
    """Forward kernels of ``layers`` layers, and of the head over every token, as often as one microbatch runs them.

    Context parallelism shares queries so that each rank sees the same number of pairs: as many as its own chunk would
    with half of the other ranks' keys before them.
    """
    local = plan.share(step.seq)
    rows = step.micro_batch * local
    past = step.micro_batch * (step.seq - local) / 2
    work = Workload(prefill_seqs=step.micro_batch, prefill_tokens=rows, past_tokens=past)
    share = layers / model.num_layers
    trained: list[Kernel] = []
    for kernel in layer_kernels(model, plan, work, rows, engine, training=True):
        if kernel.form == "decode" or (np.ndim(kernel.count) == 0 and kernel.count == 0):
            continue
        busier = pick(np.asarray(plan.ep) > 1, imbalance, 1.0) if kernel.part in ("experts", "routing") else 1.0
        trained += _trained(kernel, kernel.count * share, plan, step, engine, passes, busier)
    logits = rows * padded_vocab(model, plan, engine) / plan.tp
    loss = Kernel("loss", "elementwise", 1, 0.0, logits * LOSS_BYTES, part="loss", stage="forward")
    return trained, [replace(head_kernel(model, plan, rows, engine), stage="forward"), loss]


def _trained(
    k: Kernel, count: Number, plan: Plan, step: TrainStep, engine: Engine, passes: float, busier: Number
) -> Iterator[Kernel]:
    """A serving kernel as training runs it: tensors stream through element-wise kernels, attention may be unfused.

    Element-wise kernels between row-parallel and column-parallel products work on 1/tp of the rows under sequence
    parallelism.
    """
    if k.form == "small":
        split = plan.tp if plan.sequence_parallel and k.part == "norms" else 1
        yield _elementwise(k, k.what, count, k.nbytes / split * passes * busier)
    elif k.form == "prefill" and engine.trains.attention == "unfused":
        yield from _unfused(k, count, plan, step)
    elif k.form == "prefill":
        yield replace(k, what="attention", count=count, stage="forward")
    else:  # a product, and in fp8 the cast of its input, which is a kernel of its own
        yield _product(k, k.what, "forward", count, k.flops * busier, k.nbytes, (k.m * busier, k.n, k.k))
        if k.dtype == "fp8":
            cast = _elementwise(k, f"{k.what} cast", count, CAST_BYTES * k.m * busier * k.k)
            yield replace(cast, n=k.n, k=k.k, casts=True)


def _elementwise(k: Kernel, what: str, count: Number, nbytes: Number, stage: Stage = "forward") -> Kernel:
    """An element-wise kernel that belongs where another one does."""
    return Kernel(what, "elementwise", count, 0.0, nbytes, part=k.part, place=k.place, stage=stage)


def _product(
    k: Kernel, what: str, stage: Stage, count: Number, flops: Number, nbytes: Number, shape: tuple[Number, Number, Number]
) -> Kernel:
    """A product of another one's arithmetic; whatever it casts is cast in kernels of its own."""
    made = Kernel(what, "gemm", count, flops, nbytes, *shape, k.dtype, k.weight_bytes, part=k.part, place=k.place, stage=stage)
    return replace(made, static_scales=True) if k.dtype == "fp8" else made


def _unfused(k: Kernel, count: Number, plan: Plan, step: TrainStep) -> Iterator[Kernel]:
    """Scores as a whole matrix: two batched products over all pairs (masked ones too) and the element-wise part between."""
    e, m, keys, d = DTYPE_BYTES[plan.activations_dtype], step.micro_batch * k.heads * k.length, step.seq, k.head_dim
    product = Kernel("attention scores", "gemm", count, 2 * m * keys * d, e * (2 * m * d + m * keys), m, keys, d)
    scores = replace(product, part=k.part, place=k.place, stage="forward")
    yield scores
    yield _elementwise(k, "attention softmax", count, SCORE_BYTES * m * keys)
    yield replace(scores, what="attention values", n=d, k=keys)


def backward(kernels: list[Kernel]) -> list[Kernel]:
    """Gradients of every forward kernel."""
    return [made for kernel in kernels for made in _gradients(kernel)]


def _gradients(k: Kernel) -> Iterator[Kernel]:
    if k.form == "gemm":
        yield _product(k, f"{k.what} input gradient", "backward", k.count, k.flops, k.nbytes, (k.m, k.k, k.n))
        moved = k.nbytes + (4 - k.weight_bytes) * k.n * k.k  # the weight gradient is written in fp32
        yield _product(k, f"{k.what} weight gradient", "weight-gradient", k.count, k.flops, moved, (k.n, k.k, k.m))
        return
    what = f"{k.what} backward"
    if k.form == "prefill":
        yield replace(k, what=what, flops=BACKWARD_ATTENTION_FLOPS * k.flops, nbytes=2 * k.nbytes, stage="backward")
    elif k.casts:  # the cast of an input in forward is that of an output's gradient in backward
        yield _elementwise(k, what, k.count, k.nbytes * k.n / k.k, "backward")
    else:
        yield _elementwise(k, what, k.count, BACKWARD_ELEMENT_BYTES * k.nbytes, "backward")


def recomputed(kernels: list[Kernel], plan: Plan, engine: Engine) -> list[Kernel]:
    """What backward runs again: all layers, or what the engine calls selective."""
    if plan.recompute == "none":
        return []
    if plan.recompute == "full":
        return list(kernels)
    if engine.trains.selective == "matmuls":  # every other product is kept, attention is kept, everything small is run again
        halves = [replace(k, count=k.count / 2) for k in kernels if k.form == "gemm"]
        return halves + [k for k in kernels if k.form == "elementwise"]
    return [k for k in kernels if k.part == "attention"]


def update(params: Number) -> Kernel:
    """The optimiser's step over this rank's share of the parameters."""
    count = pick(np.asarray(params) > 0, 1, 0)
    return Kernel("optimiser update", "elementwise", count, 0.0, UPDATE_BYTES * params, part="update", stage="update")


def forward_flops(model: Model, seq: Number, causal: bool, attention: bool = True) -> tuple[Number, Number]:
    """FLOPs of one token's forward pass, (all layers, head): 2 a weight it meets, and attention over the sequence.

    ``causal`` counts the pairs that a query may see (half of them); otherwise all of them, as PaLM and Megatron do.
    Lookups, norms and activations are not counted.
    """
    plain = Engine("", "", "", (), (), sends=Sending(experts_keep_tp=True))
    dims = model.attention.head_dim + model.attention.v_head_dim
    total: Number = 0.0
    for k in layer_kernels(model, Plan(), Workload(prefill_seqs=1, prefill_tokens=seq), seq, plain, training=True):
        if k.form == "gemm":
            total = total + k.count * k.flops
        elif k.form == "prefill" and attention:
            pairs = k.flops / (2 * k.heads * dims)
            whole = np.isclose(pairs, seq * (seq + 1) / 2)  # a window is no convention: its pairs are all there are
            total = total + k.count * k.flops * pick(whole & (not causal), 2 * seq / (seq + 1), 1)
    return total / seq, 2.0 * model.hidden * model.vocab


def recomputed_flops(model: Model, plan: Plan, step: TrainStep, engine: Engine, causal: bool) -> Number:
    """FLOPs a token that backward runs again, by the same convention as ``forward_flops``."""
    layers, _ = forward_flops(model, step.seq, causal)
    products, _ = forward_flops(model, step.seq, causal, attention=False)
    if plan.recompute == "none":
        return 0.0 * layers
    if plan.recompute == "full":
        return layers
    return products / 2 if engine.trains.selective == "matmuls" else layers - products
