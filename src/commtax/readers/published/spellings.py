"""Chips, models, number formats and engines as published tables spell them, resolved here for every kind of table.

A chip is known by the words of its key and of its aliases in the catalogue, in whatever order and between whatever other words
they stand; a model by its name without organisation, punctuation and what its publisher appended; nothing is looked up anywhere.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from commtax.catalog import chip, keys
from commtax.catalog.loader import aliases, find, stems
from commtax.catalog.models import bundled, origin
from commtax.readers.published.rows import Row, matched, names
from commtax.spec import DTYPE_BYTES, Model

COUNT = re.compile(r"(?<![a-z0-9])(?:\d+ ?x ?)+(?=[a-z])|(?<=\d)x\d+(?![a-z0-9])")
"""How many there are: ``8xH100``, ``h100x8``."""
MEMORY = re.compile(r"(?<![a-z0-9])(\d{2,3}) ?(?:gb|gib|g)(?![a-z0-9])")
BARE_MEMORY = re.compile(r"(?<=[a-z0-9])[- ](\d{2,3})(?=[- ]|$)(?! ?(?:gpu|card|rank|host|node))")
"""Gigabytes after a name, without their unit: ``a100-40-sxm``."""


@lru_cache(maxsize=4096)
def chip_named(text: str) -> str:
    """The catalogue's key of the chip that a text names; "" where none is.

    >>> [chip_named(name) for name in ("NVIDIA GB200 NVL72", "b200_sxm", "8xH100-SXM", "NVIDIA GB10", "rtx_pro_6000_server")]
    ['gb200', 'b200-sxm', 'h100-sxm', 'gb10', 'rtx-pro-6000-server']
    >>> [chip_named(name) for name in ("NVIDIA A100-PCIE-40GB", "RTX PRO 6000 Blackwell Server Edition", "MI300X_VF")]
    ['a100-40-pcie', 'rtx-pro-6000-server', 'mi300x']
    """
    return matched("chips", text.lower().replace("_", " "), "(?<![a-wyz0-9])") or _by_words(text)


@lru_cache(maxsize=4096)
def device_named(text: str) -> str:
    """The catalogue's key of the chip that a driver calls so; "" where one word of the name is of no chip that is known.

    Tables are read more freely (``chip_named``), and let a chip stand for another of its generation.

    >>> [device_named(f"NVIDIA {name}") for name in ("A100-SXM4-80GB", "GeForce RTX 2080 Ti", "GeForce RTX 3090 Ti", "L40S")]
    ['a100-80-sxm', '', '', 'l40s']
    """
    key = _by_words(text)
    if not key:
        return ""
    known = {_without_socket(word) for name in (key, chip(key).name, *chip(key).aliases) for word in _words(name)}
    return key if {_without_socket(word) for word in _words(text)} <= known | set(names()["device_words"]) else ""


def _without_socket(word: str) -> str:
    """``sxm`` of any generation.

    >>> _without_socket("sxm4"), _without_socket("pcie")
    ('sxm', 'pcie')
    """
    return re.sub(r"^sxm\d$", "sxm", word)


def _by_words(text: str) -> str:
    """The chip of whose names most words stand in a text."""
    words = _words(text)
    if spelled := _squeezed_chips().get(_squeezed(COUNT.sub("", text.lower()))):
        return spelled
    found = [(name, key) for name, key in _chips_by_words() if set(name) <= set(words)]
    # The name of most words is the nearest one; of two chips the one that is told first.
    best = min(found, key=lambda one: (-len(one[0]), min(map(words.index, one[0]))), default=((), ""))
    return best[1]


def _words(text: str) -> tuple[str, ...]:
    """The words of a name in lower case, without counts, memory as ``80gb``."""
    plain = MEMORY.sub(r"\1gb", COUNT.sub(" ", text.lower().replace("_", "-")))
    return tuple(word for word in re.split(r"[^a-z0-9]+", BARE_MEMORY.sub(r"-\1gb", plain)) if word)


def _chip_names() -> Iterator[tuple[str, str]]:
    """Every name of every chip; a host without any is no chip of a table."""
    yield from ((name, key) for key in stems("chips") if chip(key).vendor != "generic" for name in (key, *chip(key).aliases))


@lru_cache(maxsize=1)
def _chips_by_words() -> tuple[tuple[tuple[str, ...], str], ...]:
    return tuple(dict.fromkeys((_words(name), key) for name, key in _chip_names()))


@lru_cache(maxsize=1)
def _squeezed_chips() -> dict[str, str]:
    return {_squeezed(name.lower()): key for name, key in _chip_names()}


@lru_cache(maxsize=4096)
def model_named(text: str) -> Model | None:
    """The bundled model that a text names, as the catalogue stores it; None where none is. Never a look at disk or network.

    >>> [model_named(name).key for name in ("LLAMA3_70B", "GPT OSS 120B", "zhipuai/GLM-5", "nvidia/Llama-3.1-8B-Instruct-FP8")]
    ['llama-3.1-70b', 'gpt-oss-120b', 'glm-5', 'llama-3.1-8b']
    """
    name = text.strip()
    if known := find("models", name) or origin(name):
        return bundled(known)
    told = re.sub(r"\(.*?\)", " ", name.lower()).strip().rpartition("/")[2]
    return next((bundled(key) for short in _shorter(_squeezed(told)) if (key := _squeezed_models().get(short))), None)


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _shorter(name: str) -> Iterator[str]:
    """A squeezed name, and what is left of it as endings that publishers append are taken off one by one."""
    endings = sorted(map(_squeezed, names()["model_endings"]), key=len, reverse=True)
    seen = ""
    while name != seen:
        yield name
        seen = name
        name = next((name.removesuffix(end) for end in endings if name.endswith(end) and name != end), name)


@lru_cache(maxsize=1)
def _squeezed_models() -> dict[str, str]:
    """Keys by all their names; a name that several models share after endings are taken off means none of them."""
    known = {alias.rpartition("/")[2]: key for alias, key in aliases("models").items()} | {key: key for key in stems("models")}
    named: dict[str, set[str]] = {}
    for name, key in known.items():
        for short in _shorter(_squeezed(name)):
            named.setdefault(short, set()).add(key)
    exact = {_squeezed(name): key for name, key in known.items()}
    once = {name: next(iter(found)) for name, found in named.items() if len(found) == 1}
    return {**once, **exact, **{_squeezed(name): key for name, key in names()["model_keys"].items()}}


def dtype_named(text: str) -> str:
    """The number format that a text names, as the catalogue writes it; "" where none is.

    >>> [dtype_named(name) for name in ("bfloat16", "FP8-E4M3", "float8", "w4a16_mxfp4", "half", "base7")]
    ['bf16', 'fp8', 'fp8', 'mxfp4', 'fp16', '']
    """
    return _dtypes().get(_squeezed(text.lower()), "")


@lru_cache(maxsize=1)
def _dtypes() -> dict[str, str]:
    told = {_squeezed(word): dtype for dtype, words in names()["dtypes"].items() for word in (dtype, *words)}
    return {**{_squeezed(dtype): dtype for dtype in DTYPE_BYTES}, **told}


def spelled_run(row: Row) -> Row:
    """A serving run with its engine and its quantisation as the larger tables write them.

    >>> spelled_run({"backend": "TensorRT-LLM", "gemm_quant_mode": "FP4"})
    {'backend': 'trtllm', 'gemm_quant_mode': 'nvfp4'}
    """
    engine, mode = row.get("backend") or "", row.get("gemm_quant_mode") or ""
    known = "" if mode.startswith("fp8_") else dtype_named(mode)
    told = {"backend": engine_named(engine) or engine, "gemm_quant_mode": names()["quant_modes"].get(known, known) or mode}
    return {**row, **{name: text for name, text in told.items() if name in row}}


@lru_cache(maxsize=1024)
def engine_named(text: str) -> str:
    """The engine among the words of a name; "" where none is.

    >>> [engine_named(name) for name in ("h200_sxm_tensorrt_llm_gemm", "kernels/b60_vllm_moe.csv", "h100_sxm_gemm")]
    ['trtllm', 'vllm', '']
    """
    plain = f"-{re.sub(r'[^a-z0-9]+', '-', text.lower())}-"
    spelled = {**{key: key for key in keys("engines")}, **names()["engine_words"]}
    return next((key for word, key in sorted(spelled.items(), key=lambda x: -len(x[0])) if f"-{word}-" in plain), "")
