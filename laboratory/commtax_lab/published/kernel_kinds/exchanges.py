"""Tables of DeepEP: how long tokens take to the ranks of their experts and back.

A table of TensorRT-LLM's own exchange over NVLink (``trtllm_alltoall``) has up to four times for the same sizes and does not say
which step each is of: it is not read.
"""

from collections.abc import Sequence

import numpy as np

from commtax.arrays import Array
from commtax.cost.kernel import Kernel
from commtax.cost.layer_forms import exchanged_kernel, sms_by_expert
from commtax.cost.traffic import expected_destinations
from commtax.spec import Experts
from commtax_lab.published.kernel_kinds.kind import KernelKind, Sizes, Words

WIDTHS = {"bfloat16": 2.0, "fp8": 1 + 4 / 128, "default": 1 + 4 / 128, "nvfp4": 0.5625, "fp4": 0.5625}
"""Bytes of an element on its way out, with scales; the default is fp8. On the way back it is bf16, unless in fp4."""
BACK = 2.0
NUM_SMS, SET_ASIDE = 132, 20.0
"""Multiprocessors of the smallest chip that was timed; those that copy in bulk where a table does not say."""


def _copies(tokens: Array, experts: Array, top_k: Array, ranks: Array, low: bool) -> Array:
    """Count the rows that a rank sends: one per expert with low latency, else one per rank that has some."""
    if low:
        return np.asarray(tokens * top_k)
    pairs = zip(experts, top_k, ranks, strict=True)
    return np.asarray(tokens * [float(expected_destinations(Experts(int(e), int(k), 1), float(n))) for e, k, n in pairs])


def _exchange_kind(form: str, low: bool) -> KernelKind:
    def make(words: Words, x: Sizes) -> Sequence[Kernel]:  # noqa: ARG001
        ranks = x["node_num"] * x["gpus_per_host"]
        elements = x["hidden_size"] * _copies(x["num_token"], x["num_experts"], x["num_topk"], ranks, low)
        widths = {"dispatch": WIDTHS["default"], "combine": BACK}
        by_expert, experts = sms_by_expert(x["num_experts"], NUM_SMS), x["num_experts"]
        sms = {way: by_expert if low else x[f"{way}_sms"] for way in widths}
        return [exchanged_kernel(way, form, elements * w, ranks, sms[way], experts) for way, w in widths.items()]

    sizes = ("num_token", "hidden_size", "num_topk", "num_experts", "node_num")
    tail, timed = ("ll", "avg_t_us") if low else ("normal", "transmit_us")
    times = (f"dispatch_{timed}", f"combine_{timed}")
    sms = () if low else ("dispatch_sms", "combine_sms")
    fields = ((*sizes, *sms), make, lambda x: x["num_token"], "")
    return KernelKind(f"wideep_deepep_{tail}", "exchange", *fields, hashed=("framework", *sizes, *sms), times_us=times)


def _exchange_kernels(words: Words, x: Sizes) -> Sequence[Kernel]:
    backend, phase = words["comm_backend"], words["phase"]
    low = backend.endswith(("_ll", "_generation"))
    out = WIDTHS.get(words["comm_dtype"], WIDTHS["default"])
    width = out if phase == "dispatch" or words["comm_dtype"] == "fp4" else BACK
    form = f"exchange_{'low' if low else 'high'}{'2' if '_v2_' in backend else ''}"
    elements = x["hidden_size"] * _copies(x["num_tokens"], x["num_experts"], x["topk"], x["ep_size"], low)
    sms = sms_by_expert(x["num_experts"], NUM_SMS) if low else SET_ASIDE
    return [exchanged_kernel(phase, form, elements * width, x["ep_size"], sms, x["num_experts"])]


_SIZES = ("num_tokens", "hidden_size", "topk", "num_experts", "ep_size")
_WORDS = ("comm_backend", "phase", "comm_dtype")
KINDS = (
    _exchange_kind("exchange_low", low=True),
    _exchange_kind("exchange_high", low=False),
    KernelKind("moe_a2a", "exchange", _SIZES, _exchange_kernels, lambda x: x["num_tokens"], "", alike=_WORDS),
)
