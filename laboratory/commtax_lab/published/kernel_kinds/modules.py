"""Tables of whole attention modules, whose kernels are those of a step and what the module has beside them, and of the kernels
of latent attention alone.

``modules.toml`` beside the readers holds the sizes of the models and how engines ran them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog.models import bundled_model, origin
from commtax.cost.attention import head_product, latent_decode, latent_prefill, latent_projections, latent_selector
from commtax.cost.compute import layer_kernels
from commtax.cost.kernel import Kernel, KernelStep
from commtax.cost.layer_forms import MaskedPairs, ModuleSizes
from commtax.spec import DTYPE_BYTES, Attention, Block, Model, Plan, Quant, Workload
from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words

_FACTS = lab_table("published/modules.toml")
SOURCES: dict[str, list[str]] = _FACTS["kernel_sources"]
QUANTS = {"fp8": Quant("fp8", "fp8", (128, 128)), "nvfp4": Quant("modelopt", "nvfp4", (1, 16), scale_bytes=1)}
Parts = Callable[[KernelStep, Attention, Words], Iterator[Kernel]]


@cache
def timed_model(name: str, ratio: int = 0) -> Model:
    """Return one layer's attention of a bundled model whose modules were timed, sparse where some of its layers are.

    ``ratio``: of its compressed entries.
    """
    model = bundled_model(origin(name))
    if model is None:
        raise Refusal(f"attention of '{name}' is not known: it is no model of the catalogue", "model")
    alike = [a for a in model.attentions if a.compressed is None or a.compressed.ratio == ratio]
    if not alike:
        raise Refusal(f"attention of '{name}': no layer has entries of {ratio} tokens", "compress_ratio")
    attention = max(alike, key=lambda a: a.indexer is not None and a.indexer.own)
    return Model(name, "", model.hidden, 1, (Block(attention, None),), (0,), 1)


def step_of(model: Model, words: Words, x: Sizes, prompts: bool, absorbed: bool = False) -> tuple[KernelStep, Attention]:
    """Return rows as steps of one layer on ranks with so many heads. ``absorbed``: a prompt of one token is decode."""
    seqs, kv_dtype = x["batch_size"], words["stored"]
    new = x["isl"] if prompts else np.ones(len(seqs))
    decodes = (new == 1) if absorbed or not prompts else new < 0
    prefill_seqs = np.where(decodes, 0, seqs)
    work = Workload(seqs * decodes, seqs * decodes * x["step"], prefill_seqs, prefill_seqs * new, prefill_seqs * x["step"])
    plan = Plan(tp=model.attention.num_heads / x["num_heads"], kv_dtype=kv_dtype)
    quantised = replace(model, quant=QUANTS.get(words["dtype"]))
    return KernelStep(quantised, plan, work, seqs * new, catalog.engine(words["framework"] or "vllm")), model.attention


def _make(kind: str, parts: Parts, words: Words, x: Sizes) -> Sequence[Kernel]:
    """Make the kernels of a step, with the module's own in place of its element-wise ones, and the host's launches."""
    model = timed_model(words["model"], int(float(words.get("compress_ratio") or 0)))
    step, a = step_of(model, words, x, kind.endswith("context"), words["kernel_source"] in SOURCES["absorbed"])
    kernels = [k for k in parts(step, a, words) if k.form != "small" and np.any(k.count)]
    if _FACTS["masked"].get(kind, {}).get(words["framework"]) == words["kernel_source"]:
        pairs = x["batch_size"] * x["isl"] * (x["isl"] + x["step"])
        whole = Kernel("masked attention", "masked", 1, 0.0, 0.0, shape=MaskedPairs(pairs, step.rows, x["num_heads"]))
        return [*(k for k in kernels if k.form == "gemm"), whole]
    shape = ModuleSizes(step.rows, x["num_heads"])
    kernels.append(Kernel("element-wise kernels", f"{kind}-rest", 1, 0.0, 0.0, dtype=words["dtype"], shape=shape))
    return [*kernels, *_launches(kind, words, x["batch_size"])]


def _launches(kind: str, words: Words, batch: Array) -> Iterator[Kernel]:
    """Yield the host's time where no graph holds the launches."""
    beyond = _FACTS["eager"].get(words["framework"], {}).get(kind)
    if beyond is None:
        return
    if kind == "dsa-context" and words["kernel_source"] in SOURCES["dense"]:
        kind = "dsa-dense"
    elif kind == "dsa-context" and words["kernel_source"] in SOURCES["without_selector"]:
        kind = "dsa-skip"
    if np.any(batch > beyond):
        yield Kernel("launches", f"{kind}-eager", np.where(batch > beyond, 1, 0), 0.0, 0.0, dtype=words["dtype"])


def _latent(s: KernelStep, a: Attention, words: Words) -> Iterator[Kernel]:
    if words["kernel_source"] in SOURCES["dense"]:
        a = replace(a, indexer=None)
    if a.indexer and words["kernel_source"] in SOURCES["without_selector"]:
        a = replace(a, indexer=replace(a.indexer, own=False))
    absorbed = a.indexer is not None or words["kernel_source"] in SOURCES["absorbed"]
    yield from latent_projections(s, a, 1, absorbed)
    yield from latent_selector(s, a, 1)
    yield from latent_decode(s, a, 1)
    yield from latent_prefill(s, a, 1, absorbed)


def _other_kernels(s: KernelStep, a: Attention, words: Words) -> Iterator[Kernel]:  # noqa: ARG001
    yield from layer_kernels(s.model, s.plan, s.work, s.rows, s.engine)


def _module(tail: str, kind: str, parts: Parts) -> Iterator[KernelKind]:
    """Build the kinds of one module's tables, of prompts and of decode."""
    alike = ("model", "kernel_source", *(("compress_ratio",) if tail.startswith("dsv4") else ()))
    for phase in ("context", "generation"):
        yield KernelKind(
            f"{tail}_{phase}_module",
            f"{kind}-{phase}",
            ("batch_size", "isl", "num_heads"),
            partial(_make, f"{kind}-{phase}", parts),
            lambda x: x["batch_size"] * x["isl"],
            "gemm_type",
            stored="kv_cache_dtype",
            from_zero=("step",),
            alike=alike,
            in_step=True,
        )


KINDS = (
    *_module("mla", "mla", _latent),
    *_module("dsa", "dsa", _latent),
    *_module("msa", "msa", _other_kernels),
    *_module("dsv4_csa", "csa", _other_kernels),
    *_module("dsv4_hca", "hca", _other_kernels),
)


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


_LATENT_KERNEL = KernelKind(
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
LATENT_KINDS = (
    _LATENT_KERNEL,
    replace(
        _LATENT_KERNEL,
        tail="generation_mla",
        name="latent-decode",
        needed=("batch_size", "num_heads"),
        make=_decode,
        bound=cache_bytes,
    ),
    KernelKind("mla_bmm", "head-product", ("num_tokens", "num_heads"), _head_product, lambda x: x["num_tokens"], "bmm_dtype"),
)
