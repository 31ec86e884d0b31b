"""Kernels of encoders: vision and audio towers, whose tokens all see each other."""

from dataclasses import replace

from commtax.cost.kernel import Kernel
from commtax.spec import Number

ACTIVATION_BYTES = 2.0  # bf16


def encoder_attention(batch: Number, length: Number, heads: Number, head_dim: Number) -> Kernel:
    """Attention of ``length`` tokens over each other: 4 length^2 FLOPs an element of each head; four tensors move."""
    flops, nbytes = 4.0 * batch * heads * length**2 * head_dim, 4 * ACTIVATION_BYTES * batch * length * heads * head_dim
    plain = Kernel("encoder attention", "encoder", 1, flops, nbytes, batch=batch, heads=heads, kv_heads=heads)
    return replace(plain, length=length, head_dim=head_dim)
