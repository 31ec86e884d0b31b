"""Chips, models, number formats and engines as published tables spell them, resolved here for every kind of table.

A chip is known by the words of its key and of its aliases in the catalogue, in whatever order and between whatever other words
they stand; a model by its name without organisation, punctuation and what its publisher appended; nothing is looked up anywhere.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from commtax.catalog import keys
from commtax.catalog.loader import aliases, find, letters_and_digits, stems
from commtax.catalog.models import bundled_model, origin
from commtax.spec import DTYPE_BYTES, Model
from commtax_lab.published.rows import Row, names


@lru_cache(maxsize=4096)
def model_named(text: str) -> Model | None:
    """Return the bundled model that a text names, as the catalogue stores it, or None, without touching disk or network.

    >>> [model_named(name).key for name in ("LLAMA3_70B", "GPT OSS 120B", "zhipuai/GLM-5", "nvidia/Llama-3.1-8B-Instruct-FP8")]
    ['llama-3.1-70b', 'gpt-oss-120b', 'glm-5', 'llama-3.1-8b']
    """
    name = text.strip()
    if key := find("models", name) or origin(name):
        return bundled_model(key)
    words = re.sub(r"\(.*?\)", " ", name.lower()).strip().rpartition("/")[2]
    return next(
        (bundled_model(match) for short in _shortened_names(letters_and_digits(words)) if (match := _squeezed_models().get(short))),
        None,
    )


def _shortened_names(name: str) -> Iterator[str]:
    """Yield a squeezed name, and what is left of it as publishers' endings are removed one by one."""
    endings = sorted(map(letters_and_digits, names()["model_endings"]), key=len, reverse=True)
    seen = ""
    while name != seen:
        yield name
        seen = name
        name = next((name.removesuffix(end) for end in endings if name.endswith(end) and name != end), name)


@lru_cache(maxsize=1)
def _squeezed_models() -> dict[str, str]:
    """Map all names to keys. A name that several models share once endings are removed means none of them."""
    keys = {alias.rpartition("/")[2]: key for alias, key in aliases("models").items()} | {key: key for key in stems("models")}
    named: dict[str, set[str]] = {}
    for name, key in keys.items():
        for short in _shortened_names(letters_and_digits(name)):
            named.setdefault(short, set()).add(key)
    exact = {letters_and_digits(name): key for name, key in keys.items()}
    once = {name: next(iter(keys)) for name, keys in named.items() if len(keys) == 1}
    return {**once, **exact, **{letters_and_digits(name): key for name, key in names()["model_keys"].items()}}


def dtype_named(text: str) -> str:
    """Return the number format that a text names, as the catalogue writes it, or "".

    >>> [dtype_named(name) for name in ("bfloat16", "FP8-E4M3", "float8", "w4a16_mxfp4", "half", "base7")]
    ['bf16', 'fp8', 'fp8', 'mxfp4', 'fp16', '']
    """
    return _dtypes().get(letters_and_digits(text.lower()), "")


@lru_cache(maxsize=1)
def _dtypes() -> dict[str, str]:
    named = {letters_and_digits(word): dtype for dtype, words in names()["dtypes"].items() for word in (dtype, *words)}
    return {**{letters_and_digits(dtype): dtype for dtype in DTYPE_BYTES}, **named}


def spelled_run(row: Row) -> Row:
    """Return a serving run with its engine and quantisation spelled as in the larger tables.

    >>> spelled_run({"backend": "TensorRT-LLM", "gemm_quant_mode": "FP4"})
    {'backend': 'trtllm', 'gemm_quant_mode': 'nvfp4'}
    """
    engine, mode = row.get("backend") or "", row.get("gemm_quant_mode") or ""
    dtype = "" if mode.startswith("fp8_") else dtype_named(mode)
    spelled = {"backend": engine_named(engine) or engine, "gemm_quant_mode": names()["quant_modes"].get(dtype, dtype) or mode}
    return {**row, **{name: text for name, text in spelled.items() if name in row}}


@lru_cache(maxsize=1024)
def engine_named(text: str) -> str:
    """Return the key of the engine that a text names, or "" if it names none.

    >>> [engine_named(name) for name in ("h200_sxm_tensorrt_llm_gemm", "kernels/b60_vllm_moe.csv", "h100_sxm_gemm")]
    ['trtllm', 'vllm', '']
    """
    plain = f"-{re.sub(r'[^a-z0-9]+', '-', text.lower())}-"
    spelled = {**{key: key for key in keys("engines")}, **names()["engine_words"]}
    return next((key for word, key in sorted(spelled.items(), key=lambda x: -len(x[0])) if f"-{word}-" in plain), "")
