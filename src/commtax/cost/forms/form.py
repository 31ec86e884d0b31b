"""What a form of kernels is: sizes, constants and the chip's rates in, seconds out; and what forms share."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from commtax.cost.kernel import Kernel
from commtax.spec import Chip, Number

Parts = tuple[Number, Number]  # fixed and moving seconds of one launch
Table = Mapping[str, float]  # constants of a form by name (``catalog/kernels``)
Form = Callable[[Kernel, Table, float, float], Parts]  # (kernel, constants, bandwidth in bytes/s, peak in FLOP/s) -> seconds
ChipForm = Callable[[Kernel, Table, Chip, float], Parts]
"""(kernel, constants, chip, arithmetic over that of the constants) -> seconds, where two rates of a chip are not enough."""
TINY = 1e-300  # keeps the root of 0 defined
SECONDS = {
    "t0": "launch and other fixed work",
    "te": "bookkeeping for each expert",
    "host": "the host, before the kernel may run",
    "tl": "the longest loop, in turn",
    "kl": "the serial loop, in turn",
    "kb": "batched products, one launch",
    "tb": "blocks, in turn",
    "tc": "blocks of KV heads, in turn",
    "tm": "bytes through the multiprocessors",
    "tq": "queries, in turn",
    "tr": "rows, in turn",
    "ts": "candidates' scores",
    "token": "small kernels, by token",
    "head": "small kernels, by token and head",
    "q": "quantising activations",
}
"""Constants that are seconds, of a launch or of a piece of work, and what they pay for."""
RATES = {"link_Bps": "the link", "sm_Bps": "multiprocessors that copy"}  # constants that are rates: a time goes with their inverse
DAMPED = ("tau",)  # seconds after which arithmetic slows down: they go with the arithmetic's own
SHARPNESS = 6  # of the step from a tensor that the cache keeps to one that it does not, as measured on L40S


def norm(p: float, *terms: Number) -> Number:
    """A smooth maximum: (Σ t^p)^(1/p), never less than the largest term.

    >>> float(norm(2.0, 3.0, 4.0))
    5.0
    """
    largest: Number = np.maximum(np.max(np.broadcast_arrays(*terms), axis=0), TINY)
    shares: Number = sum((term / largest) ** p for term in terms) ** (1 / p)
    return largest * shares


def from_memory(nbytes: Number, cache_bytes: Number) -> Number:
    """Bytes that come from memory where what a kernel reads was just written and a cache may have kept it.

    n / (1 + (cache / n)^6). It is at least n - 0.64 cache, and all of n where the cache's size is not known (0).

    >>> [round(float(from_memory(n * 1e6, 96e6)) / 1e6) for n in (48, 96, 192)]
    [1, 48, 189]
    """
    return nbytes / (1 + (cache_bytes / np.maximum(nbytes, 1.0)) ** SHARPNESS)


def vector_flops_per_s(chip: Chip) -> float:
    """Rate of plain fp32 arithmetic: multiprocessors times their width times the clock, which also paces what is no product."""
    return chip.flops_per_s.get("fp32") or chip.flops_per_s.get("bf16") or chip.flops_per_s["fp16"]


def equation_of(function: Callable[..., object]) -> str:
    """The sentence of a description that begins with "t =", in one line: equations stand there and nowhere else."""
    words = " ".join((function.__doc__ or "").split())
    found = re.search(r"\bt = .*?(?=\.(?:\s|$))", words)
    return found[0].replace("``", "") if found else ""
