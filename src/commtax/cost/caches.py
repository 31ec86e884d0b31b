"""What a sequence keeps on a rank while it is served: keys and values of every token, or a state of one size."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from commtax.spec import DTYPE_BYTES, Attention, Compressed, DeltaNet, Mamba2, Mixer, Model, Number, Plan

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
    selector = mixer.indexer.head_dim + SCALE_BYTES if mixer.indexer else 0
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
    return heads * (mixer.head_dim + mixer.v_head_dim) * size + (selector if mixer.indexer else 0)


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
    """
    if isinstance(mixer, DeltaNet):
        conv = (mixer.conv - 1) * mixer.channels * DTYPE_BYTES[plan.activations_dtype]
        return (conv + mixer.num_v_heads * mixer.k_dim * mixer.v_dim * DTYPE_BYTES[mixer.state_dtype]) / tp
    if isinstance(mixer, Mamba2):
        shared = 2 * mixer.num_groups * mixer.state / np.minimum(tp, mixer.num_groups)
        conv = (mixer.conv - 1) * (mixer.inner / tp + shared) * DTYPE_BYTES[plan.activations_dtype]
        return conv + mixer.inner * mixer.state * DTYPE_BYTES[mixer.state_dtype] / tp
    if isinstance(mixer, Attention) and mixer.compressed:
        m = mixer.compressed
        widths = (mixer.head_dim, mixer.indexer.head_dim if mixer.indexer else 0) if m.ratio else ()
        unfinished = sum(2 * m.overlap * m.ratio * m.overlap * width * COMPRESSOR_BYTES for width in widths)
        return tp * 0 + m.window * entry_bytes(mixer, m, plan.kv_dtype) + unfinished
    return tp * 0.0


def kv_bytes_per_token(model: Model, plan: Plan) -> Number:
    """… of all layers together, while every layer keeps the token."""
    mixers = (model.blocks[i].mixer for i in model.layers)
    return sum((kv_bytes_per_token_layer(mixer, plan.tp, plan.kv_dtype) for mixer in mixers), start=plan.tp * 0.0)


def state_bytes_per_sequence(model: Model, plan: Plan) -> Number:
    """… of all layers together."""
    mixers = (model.blocks[i].mixer for i in model.layers)
    return sum((state_bytes_per_layer(mixer, plan.tp, plan) for mixer in mixers), start=plan.tp * 0.0)


@dataclass(frozen=True, slots=True)
class KvPool:
    """How a pool of KV blocks serves one stage. Layers of one window form a group; groups share the pool's blocks."""

    bytes_per_token: Number  # of one rank, all layers: what a token costs while every layer keeps it
    bytes_per_block: Number  # one block of one group
    num_groups: int
    windows: tuple[int, ...]  # of the groups; 0: full attention

    def blocks_per_request(self, length: int, block_size: int, max_batched_tokens: int) -> int:
        """Blocks that one request of ``length`` tokens occupies: a windowed group frees what it has passed."""
        kept = (min(window - 1 + max_batched_tokens, length) if window else length for window in self.windows)
        whole = sum(math.ceil(tokens / block_size) for tokens in kept)
        return max(1, whole + sum(window > 0 for window in self.windows))  # a window begins and ends inside blocks


def kv_pool(model: Model, plan: Plan, layers: range, block_size: int) -> KvPool:
    """Group the layers of a stage by window, as vLLM's hybrid cache does: equal groups of the rarest kind's size."""
    cached = [a for i in layers if (a := model.blocks[model.layers[i]].attention) and a.own_cache] or [model.attention]
    per_layer = [kv_bytes_per_token_layer(a, plan.tp, plan.kv_dtype) for a in cached]
    counts = Counter(a.window for a in cached)
    page = max(per_layer, key=lambda v: float(np.max(v))) * block_size
    if len(counts) == 1:
        return KvPool(sum(per_layer), sum(per_layer) * block_size, 1, tuple(counts))
    smallest, largest = min(counts.values()), max(counts.values())
    size = largest if largest < 1.5 * smallest else smallest
    windows = [w for w, n in sorted(counts.items()) for _ in range(math.ceil(n / size))]
    return KvPool(page / block_size * size * len(windows), page * size, len(windows), tuple(windows))
