"""Where exchanges with experts and techniques of spread experts can be used."""

import numpy as np

from commtax.cost.traffic import ONE_DOMAIN
from commtax.question import Question
from commtax.statement import OTHER_CHIPS, OTHER_MODELS, Refusal

FORMATS = ("fp8", "nvfp4", "bf16")  # what tokens may travel to their experts in


def check_exchange(q: Question) -> None:
    """MoRI is AMD's; one- and two-sided exchanges write to GPUs of one NVLink domain."""
    backend, place = q.what_if.ep_backend, q.cluster
    if backend.startswith("mori") != (place.chip.vendor == "amd") and backend.startswith(("mori", "flashinfer")):
        rule = f"for {'AMD' if backend.startswith('mori') else 'NVIDIA'} GPUs only"
        raise Refusal.of(rule, ep_backend=backend).as_kind(OTHER_CHIPS)
    widest = int(np.max(q.plan.ep, initial=1))
    if backend in ONE_DOMAIN and (place.intra.kind != "nvlink" or widest > place.domain):
        rule = f"needs its {widest} ranks in one NVLink domain, but {place.key} has {place.domain} GPUs in each"
        rule = rule if place.intra.kind == "nvlink" else f"needs NVLink, but {place.key} has {place.intra.key}"
        raise Refusal.of(rule, ep_backend=backend).as_kind(OTHER_CHIPS)


def check_spread(q: Question, name: str) -> None:
    """Tokens are sent to experts only where these are spread."""
    if q.model.experts is None or np.max(q.plan.ep, initial=1) == 1 or (q.trains and name == "eplb"):
        rule = "needs experts spread over the ranks of a server (ep > 1)"
        raise Refusal(f"technique '{name}': {rule}", "technique", kind="" if q.model.experts else OTHER_MODELS)


def check_experts_techniques(q: Question) -> None:
    """A layout by load, and a format for dispatch, belong to experts that are spread over ranks."""
    on, kind = q.techniques, "" if q.model.experts else OTHER_MODELS
    if on.balanced:
        check_spread(q, "eplb")
    if not on.dispatch_dtype:
        return
    if on.dispatch_dtype not in FORMATS:
        raise Refusal(f"dispatch in '{on.dispatch_dtype}': one of {', '.join(FORMATS)}", "technique", FORMATS)
    if q.model.experts is None or np.all(np.asarray(q.plan.ep) <= q.plan.tp) or q.trains:
        rule = "needs replicas that share experts (dp > 1 and ep = tp x dp)"
        raise Refusal(f"technique 'dispatch': {rule}", "technique", kind=kind)
