"""Attention of grouped-query heads over a cache of keys and values."""

import numpy as np

from commtax.cost.forms.form import TINY, Form, Parts, Table
from commtax.cost.kernel import Kernel

HEAD_DIM, HEAD_OFFSET = 128.0, 150.0


def decode_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """One new token a sequence over its cached keys: bytes of the cache, blocks in turn, and the loop over the length.

    t = t0 + [ memory^p + blocks^p + serial^p + compute^p ]^(1/p) seconds, with blocks = tc batch kv_heads (d + 150)/278 and
    serial = kl ln(1 + length/kc) + tb ln(batch). Fitted on measured kernels (``catalog/kernels``).
    """
    moved = k.nbytes + k.batch * k.heads * k.head_dim * 4.0
    memory = moved / (_by_head_dim(k.head_dim, c, "eb") * bandwidth_Bps)
    blocks = c["tc"] * k.batch * k.kv_heads * ((k.head_dim + HEAD_OFFSET) / (HEAD_DIM + HEAD_OFFSET))
    serial = c["kl"] * np.log1p(k.length / c["kc"])
    if "tb" in c:  # batched products of one query each: the more of them, the slower a launch
        serial = serial + c["tb"] * np.log(np.maximum(1, k.batch))
    compute = k.flops / flops_per_s
    p = c["p"]
    return c["t0"], (memory**p + blocks**p + serial**p + compute**p + TINY) ** (1 / p)


def prefill_attention(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:
    """Causal attention of whole prompts: arithmetic at the head size's rate, memory, and the longest single block.

    t = t0 + [ (compute + memory)^p + longest^p ]^(1/p) seconds, with longest = tl (new + past) (d + 128)/256. Fitted on
    measured kernels (``catalog/kernels``).
    """
    edges = k.batch * k.length * c["c0"] * k.heads * 4.0 * k.head_dim  # tiles at the diagonal compute more than half
    work = (k.flops + edges) / (_by_head_dim(k.head_dim, c, "ep") * flops_per_s) + k.nbytes / (c["eb"] * bandwidth_Bps)
    longest = c["tl"] * (k.length + k.past) * (k.head_dim + HEAD_DIM) / (2 * HEAD_DIM)
    p = c["p"]
    return c["t0"], (work**p + longest**p + TINY) ** (1 / p)


def _by_head_dim(head_dim: int, c: Table, name: str) -> float:
    """A constant given at head sizes 64, 128 and 256: linear in the logarithm between, flat outside."""
    return float(np.interp(np.log2(head_dim), (6.0, 7.0, 8.0), (c[f"{name}64"], c[f"{name}128"], c[f"{name}256"])))


FORMS: dict[str, Form] = {"decode": decode_attention, "prefill": prefill_attention}
