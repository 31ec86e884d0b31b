"""Tables of passes over activations: quantisation and hyper-connections; and of attention in encoders."""

from collections.abc import Sequence
from dataclasses import replace

from commtax.arrays import Array
from commtax.cost.attention import quantise_kernel
from commtax.cost.attention_kinds import streams_read, streams_written
from commtax.cost.compute import encoder_attention
from commtax.cost.kernel import Kernel
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words


def _scales(words: Words, x: Sizes) -> Sequence[Kernel]:  # noqa: ARG001
    return [quantise_kernel("scales", x["m"], x["k"])]


def _quantise_kernels(words: Words, x: Sizes) -> Sequence[Kernel]:  # noqa: ARG001
    return [quantise_kernel("quantise", x["m"], x["k"])]


def _hyper(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make one half of each of a layer's ``num_sites`` hyper-connections."""
    make = streams_written if "mhc_post" in words["kernel_source"] else streams_read
    one = make(x["num_tokens"], x["hc_mult"], x["hidden_size"])
    return [replace(one, count=x["num_sites"])]


def _encoder(words: Words, x: Sizes) -> Sequence[Kernel]:  # noqa: ARG001
    return [encoder_attention(x["batch_size"], x["isl"], x["num_heads"], x["head_dim"])]


def _rows(x: Sizes) -> Array:
    return x["m"]


_HYPER = ("num_tokens", "num_sites", "hc_mult", "hidden_size")
_ENCODER = ("batch_size", "isl", "num_heads", "head_dim")
KINDS = (
    KernelKind("computescale", "scales", ("m", "k"), _scales, _rows, ""),
    KernelKind("scale_matrix", "quantisation", ("m", "k"), _quantise_kernels, _rows, ""),
    KernelKind("mhc_module", "hyper-connections", _HYPER, _hyper, lambda x: x["num_tokens"], "", alike=("kernel_source",)),
    KernelKind("encoder_attention", "encoder-attention", _ENCODER, _encoder, lambda x: x["isl"], "attn_dtype"),
)
