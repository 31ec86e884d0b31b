"""Tables of latent attention: its kernels alone, and the products that are absorbed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtax.arrays import Array
from commtax.cost.attention import head_product, latent_decode, latent_prefill
from commtax.cost.kernel import Kernel
from commtax.spec import DTYPE_BYTES
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words
from commtax_lab.published.kernel_kinds.modules import SOURCES, step_of, timed_model

MODEL = "deepseek-ai/DeepSeek-V3"
"""The model whose heads the tables of kernels have."""


def _prefill(words: Words, x: Sizes) -> Sequence[Kernel]:
    step, a = step_of(timed_model(MODEL), words, x, prompts=True)
    return list(latent_prefill(step, a, 1, words["kernel_source"] in SOURCES["absorbed"]))


def _decode(words: Words, x: Sizes) -> Sequence[Kernel]:
    step, a = step_of(timed_model(MODEL), words, x, prompts=False)
    return list(latent_decode(step, a, 1))


def _head_product(words: Words, x: Sizes) -> Sequence[Kernel]:
    m = timed_model(MODEL).attention.latent
    assert m
    return [head_product(x["num_tokens"], x["num_heads"], m.nope_dim, m.kv_rank, DTYPE_BYTES[words["dtype"]], hot=True)]


def cache_bytes(x: Sizes) -> Array:
    """Return the bytes of latents that a decode kernel reads."""
    return np.asarray(x["batch_size"] * (x["step"] + 1) * 576 * x["stored_bytes"])


_KERNEL = KernelKind(
    "context_mla",
    "latent-prefill",
    ("batch_size", "isl", "num_heads"),
    _prefill,
    lambda x: x["isl"],
    "mla_dtype",
    stored="kv_cache_dtype",
    from_zero=("step",),
    alike=("kernel_source",),
)
KINDS = (
    _KERNEL,
    replace(
        _KERNEL, tail="generation_mla", name="latent-decode", needed=("batch_size", "num_heads"), make=_decode, bound=cache_bytes
    ),
    KernelKind("mla_bmm", "head-product", ("num_tokens", "num_heads"), _head_product, lambda x: x["num_tokens"], "bmm_dtype"),
)
