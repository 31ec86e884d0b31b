"""Tables of linear attention: gated delta net, Kimi delta attention, Mamba-2. Each row times one kernel of a layer."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from commtax.arrays import Array
from commtax.cost.attention_kinds import STATE_BYTES, convolved, convolved_further, delta_scanned, space_scanned, updated
from commtax.cost.kernel import Kernel
from commtax.spec import Number
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words

CONVOLUTION, THREE_CONVOLUTIONS = "causal_conv1d", "causal_conv1d_fn_qkv3"
FUSED_DECODE = ("fused_kda_decode", "kda_fused_decode")
"""Kernels that hold the convolution and the gates beside the update."""
BLOCKS = (("trtllm", ""), ("sglang", "0.5.10"))
"""Engines, and versions where not all, that convolve with the CUDA kernel, which has a block for each channel of a sequence; others
have one in Triton. Their tables of gated delta net time it as wide as the keys alone."""
MIXED_STATE = ("trtllm",)
"""Engines that read a state in bf16 and write it in fp32."""
MIXED_BYTES = 6.0
UPDATES = {"generation": "update", "verify": "verify"}
"""What a phase does to the state."""


def _delta(family: str, words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make a kernel of gated delta net (gdn) or Kimi delta attention (kda)."""
    sequences, tokens = x["batch_size"], x["seq_len"]
    if words["kernel_source"].startswith(CONVOLUTION):
        return [_convolution(words, x, _width(family, words, x), "kda-conv-" if family == "kda" else "conv-")]
    if words["phase"] == "context":
        heads = x["num_k_heads"], x["num_v_heads"], x["head_k_dim"], x["head_v_dim"]
        return [delta_scanned(f"{family}-scan", sequences, tokens, *heads)]
    form = f"{family}-{'fused' if words['kernel_source'] in FUSED_DECODE else UPDATES.get(words['phase'], 'update')}"
    state = x["num_v_heads"] * x["head_k_dim"] * x["head_v_dim"]
    return [updated(form, sequences, tokens, state, _state_bytes_moved(words, tokens), cold=False)]


def _state_bytes_moved(words: Words, tokens: Array) -> Number:
    """Return the bytes that an element of state moves. Where drafts are verified, each token's state is kept."""
    written = tokens if words["phase"] == "verify" else 1.0
    return MIXED_BYTES if words["framework"] in MIXED_STATE else STATE_BYTES * (1.0 + written)


def _width(family: str, words: Words, x: Sizes) -> Array:
    """Return the channels of queries, keys and values."""
    keys = x["num_k_heads"] * x["head_k_dim"]
    if family == "gdn" and _runs_in_blocks(words):
        return np.asarray(keys)
    return np.asarray(2 * keys + x["num_v_heads"] * x["head_v_dim"])


def _runs_in_blocks(words: Words) -> bool:
    return any(words["framework"] == engine and words["version"].startswith(version) for engine, version in BLOCKS)


def _convolution(words: Words, x: Sizes, channels: Array, further: str) -> Kernel:
    sizes = x["batch_size"], x["seq_len"], channels, x["d_conv"]
    if words["phase"] == "context":
        form = "conv-qkv" if words["kernel_source"] == THREE_CONVOLUTIONS else "conv-blocks" if _runs_in_blocks(words) else "conv"
        return convolved(form, *sizes)
    return convolved_further(f"{further}{UPDATES.get(words['phase'], 'update')}", *sizes, cold=False)


def _mamba(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make a kernel of Mamba-2, whose keys and queries (B and C) serve a group of heads and whose values are ``head_dim`` wide."""
    if words["kernel_source"].startswith(CONVOLUTION):
        channels = x["nheads"] * x["head_dim"] + 2 * x["n_groups"] * x["d_state"]
        return [_convolution(words, x, channels, "conv-")]
    sequences, tokens = x["batch_size"], x["seq_len"]
    if words["phase"] == "context":
        return [space_scanned("ssd-scan", sequences, tokens, x["n_groups"], x["nheads"], x["d_state"], x["head_dim"])]
    elements = x["nheads"] * x["head_dim"] * x["d_state"]
    return [updated("ssd-update", sequences, tokens, elements, _state_bytes_moved(words, tokens), cold=False)]


def _tokens(x: Sizes) -> Array:
    return x["batch_size"] * x["seq_len"]


_RUN = ("batch_size", "seq_len", "d_conv")
_HEADS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
_ALIKE = ("kernel_source", "phase", "version")
KINDS = (
    KernelKind("gdn", "gdn", (*_RUN, *_HEADS), partial(_delta, "gdn"), _tokens, "", alike=_ALIKE),
    KernelKind("kda", "kda", (*_RUN, *_HEADS), partial(_delta, "kda"), _tokens, "", alike=_ALIKE),
    KernelKind("mamba2", "mamba2", (*_RUN, "nheads", "head_dim", "n_groups", "d_state"), _mamba, _tokens, "", alike=_ALIKE),
)
