"""Passes over activations that are no products: quantisation, and the mixing of residual streams (hyper-connections)."""

from collections.abc import Iterator
from dataclasses import replace

from commtax.cost.forms.linear import Stream
from commtax.cost.kernel import Kernel, Step
from commtax.spec import Number

ACTIVATION_BYTES, NARROW_BYTES = 2.0, 1.0  # bf16 in, fp8 out


def quantised(form: str, rows: Number, columns: Number) -> Kernel:
    """Rows of bf16 brought to fp8 (form ``quantise``), or the pass that finds their scales first (``scales``).

    A block takes a row, so that few long rows take as long as one.
    """
    elements = rows * columns
    nbytes = (ACTIVATION_BYTES + (NARROW_BYTES if form == "quantise" else 0.0)) * elements
    return Kernel("quantisation", form, 1, 2.0 * elements, nbytes, dtype="fp32", shape=Stream(columns, rows))


def quantising(s: Step, product: Kernel) -> Iterator[Kernel]:
    """The kernel that brings a product's input to fp8 with a known scale, where an engine has one of its own for that."""
    if product.static_scales and s.engine.kernels.quantises_apart:
        one = quantised("quantise", product.m, product.k)
        yield replace(one, what=f"quantisation before {product.what}", count=product.count, part=product.part, place=product.place)


def streams_read(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """What a hyper-connection does before a layer: n streams mixed into the layer's input (Xie et al. 2025, 2512.24880).

    Their n h values a token give, by one product, the 2 n + n^2 weights of reading, writing and mixing, which Sinkhorn
    iterations balance; n + 1 vectors of h move.
    """
    flops = 2.0 * tokens * streams * hidden * (2 * streams + streams**2)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (streams + 1)
    return Kernel("streams read", "mhc-pre", 1, flops, nbytes, dtype="fp32", shape=Stream(hidden, tokens))


def streams_written(tokens: Number, streams: Number, hidden: Number) -> Kernel:
    """What a hyper-connection does behind a layer: its output added to n streams, mixed with each other: 2 n + 1 vectors."""
    flops = 2.0 * tokens * streams * hidden * (streams + 1)
    nbytes = ACTIVATION_BYTES * tokens * hidden * (2 * streams + 1)
    return Kernel("streams written", "mhc-post", 1, flops, nbytes, dtype="fp32", shape=Stream(hidden, tokens))


def stream_kernels(s: Step, halves: int, count: int) -> Iterator[Kernel]:
    """Hyper-connections around the ``halves`` of a layer: streams mixed into its input, its output spread over them.

    Attention residuals read every block's vector so far and the sum, and write one: on average over the layers.
    """
    if s.model.hyper:
        sizes = s.rows, s.model.hyper.streams, s.model.hidden
        for kernel in (streams_read(*sizes), streams_written(*sizes)):
            yield replace(kernel, count=halves * count, part="norms")
    if s.model.lookback:
        begun = sum(layer // s.model.lookback + 1 for layer in range(s.model.num_layers)) / s.model.num_layers
        yield s.small("look back at blocks", "norms", "", halves * count, s.rows * s.model.hidden * (begun + 2))
