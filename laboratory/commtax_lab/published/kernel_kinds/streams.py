"""Tables of passes over activations: quantisation and hyper-connections; and of attention in encoders."""

from collections.abc import Sequence
from dataclasses import replace

from commtax.cost.attention import quantise_kernel
from commtax.cost.attention_kinds import streams_read, streams_written
from commtax.cost.compute import encoder_attention
from commtax.cost.kernel import Kernel
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words


def _hyper(words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make one half of each of a layer's ``num_sites`` hyper-connections."""
    make = streams_written if "mhc_post" in words["kernel_source"] else streams_read
    one = make(x["num_tokens"], x["hc_mult"], x["hidden_size"])
    return [replace(one, count=x["num_sites"])]


_HYPER = ("num_tokens", "num_sites", "hc_mult", "hidden_size")
_ENCODER = ("batch_size", "isl", "num_heads", "head_dim")
KINDS = (
    KernelKind(
        "computescale", "scales", ("m", "k"), lambda _, x: [quantise_kernel("scales", x["m"], x["k"])], lambda x: x["m"], ""
    ),
    KernelKind(
        "scale_matrix", "quantisation", ("m", "k"), lambda _, x: [quantise_kernel("quantise", x["m"], x["k"])], lambda x: x["m"], ""
    ),
    KernelKind("mhc_module", "hyper-connections", _HYPER, _hyper, lambda x: x["num_tokens"], "", alike=("kernel_source",)),
    KernelKind(
        "encoder_attention",
        "encoder-attention",
        _ENCODER,
        lambda _, x: [encoder_attention(*(x[name] for name in _ENCODER))],
        lambda x: x["isl"],
        "attn_dtype",
    ),
)
