"""What a sequence keeps on a rank while it is served: keys and values of every token, or a state of one size."""

import math
from dataclasses import replace

import numpy as np

from commtax.spec import DTYPE_BYTES, RECURRENT, Attention, Compressed, DeltaNet, Mamba2, Mixer, Model, Number, Plan

SCALE_BYTES = 4  # of an fp32 scale: one for each 128 values of an fp8 latent, and one a key of a selector, which is fp8
STATE_SCALE_GROUP = 64  # values of DeepSeek-V4's fp8 latent that share a scale of one byte
COMPRESSOR_BYTES = 4  # of a value of an unfinished entry: fp32


def kv_bytes_per_token_layer(mixer: Mixer | None, tp: Number, kv_dtype: str) -> Number:
    """Bytes that one rank keeps of one token in one layer, however many follow.

    Grouped-query heads are split over tp until each rank has one, then copied. A latent is kept whole on every rank;
    a token selector adds its keys. Of compressed tokens ``ratio`` share an entry. Recurrent layers keep nothing.

    >>> float(kv_bytes_per_token_layer(Attention(32, 8, 128, 128), 2, "bf16"))
    2048.0
    """
    if not isinstance(mixer, Attention) or not mixer.own_cache:
        return tp * 0.0
    selector = mixer.indexer.head_dim + SCALE_BYTES if mixer.indexer and mixer.indexer.own else 0
    if mixer.compressed:
        ratio = mixer.compressed.ratio
        return tp * 0 + ((entry_bytes(mixer, mixer.compressed, kv_dtype) + selector) / ratio if ratio else 0.0)
    size = DTYPE_BYTES[kv_dtype]
    if mixer.latent:
        latent = (mixer.latent.kv_rank + mixer.latent.rope_dim) * size
        if mixer.indexer and kv_dtype == "fp8":  # fp8 latent with a scale for each 128, the rotary part in bf16
            latent = mixer.latent.kv_rank * (1 + SCALE_BYTES / 128) + mixer.latent.rope_dim * 2
        return tp * 0 + latent + selector
    heads = mixer.num_kv_heads / np.minimum(tp, mixer.num_kv_heads)
    blocks = mixer.indexer.head_dim * DTYPE_BYTES["bf16"] if mixer.indexer else 0  # an index over blocks keeps its keys as they are
    return heads * (mixer.head_dim + mixer.v_head_dim) * size + blocks


def entry_bytes(a: Attention, m: Compressed, kv_dtype: str) -> float:
    """One latent that is key and value: in fp8 with a scale of a byte for each 64, its rotary part in bf16."""
    if kv_dtype != "fp8":
        return a.head_dim * DTYPE_BYTES[kv_dtype]
    plain = a.head_dim - m.rope_dim
    return plain + 8 * math.ceil(plain / STATE_SCALE_GROUP / 8) + 2 * m.rope_dim  # scales are padded to eight bytes


def state_bytes_per_layer(mixer: Mixer | None, tp: Number, plan: Plan) -> Number:
    """Bytes that one rank keeps of one sequence in one layer, whatever its length.

    Recurrent layers: the last inputs of the convolution and the recurrent state. Compressed attention: the entries of its
    window, and what the compressors have not finished, values and scores.

    >>> float(state_bytes_per_layer(DeltaNet(16, 48, 128, 128, state_dtype="fp32"), 1, Plan()))
    3207168.0
    """
    if isinstance(mixer, RECURRENT):
        return _recurrent_bytes(mixer, tp, plan)
    if isinstance(mixer, Attention) and mixer.compressed:
        m = mixer.compressed
        rows = m.overlap * m.ratio
        unfinished = sum(rows * unfinished_bytes(m, width) for width in compressed_widths(mixer))
        return tp * 0 + m.window * entry_bytes(mixer, m, plan.kv_dtype) + unfinished
    return tp * 0.0


def _recurrent_bytes(mixer: DeltaNet | Mamba2, tp: Number, plan: Plan) -> Number:
    """The convolution's last inputs in the type of activations, and the state of each head; groups that ranks copy count whole."""
    size = DTYPE_BYTES[mixer.state_dtype or plan.state_dtype]
    if isinstance(mixer, DeltaNet):
        channels, elements = mixer.channels / tp, mixer.num_v_heads * mixer.k_dim * mixer.v_dim / tp
    else:
        shared = 2 * mixer.num_groups * mixer.state / np.minimum(tp, mixer.num_groups)
        channels, elements = mixer.inner / tp + shared, mixer.inner * mixer.state / tp
    return (mixer.conv - 1) * channels * DTYPE_BYTES[plan.activations_dtype] + elements * size


def compressed_widths(a: Attention) -> tuple[int, ...]:
    """Of what compressors make entries: of the latent, and of the selector's keys."""
    if not a.compressed or not a.compressed.ratio:
        return ()
    return (a.head_dim, a.indexer.head_dim) if a.indexer else (a.head_dim,)


def unfinished_bytes(m: Compressed, width: int) -> int:
    """Of one token in an unfinished entry: a value and a score for each window that the entry is made of."""
    return 2 * m.overlap * width * COMPRESSOR_BYTES


def with_states(model: Model, dtype: str) -> Model:
    """The model with its recurrent states in another type."""
    blocks = (replace(b, mixer=replace(b.mixer, state_dtype=dtype)) if isinstance(b.mixer, RECURRENT) else b for b in model.blocks)
    return replace(model, blocks=tuple(blocks))


def kv_bytes_per_token(model: Model, plan: Plan) -> Number:
    """… of all layers together, while every layer keeps the token."""
    mixers = (model.blocks[i].mixer for i in model.layers)
    return sum((kv_bytes_per_token_layer(mixer, plan.tp, plan.kv_dtype) for mixer in mixers), start=plan.tp * 0.0)


def state_bytes_per_sequence(model: Model, plan: Plan) -> Number:
    """… of all layers together."""
    mixers = (model.blocks[i].mixer for i in model.layers)
    return sum((state_bytes_per_layer(mixer, plan.tp, plan) for mixer in mixers), start=plan.tp * 0.0)
