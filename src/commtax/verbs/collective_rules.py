"""Whether a technique of collectives, or of experts spread over ranks, can be used here: the engine has it, it is not on already,
and chips and model have a use for it."""

import numpy as np

from commtax import catalog
from commtax.catalog.techniques import technique
from commtax.catalog.versions import parts
from commtax.cost.traffic import ONE_DOMAIN
from commtax.question import Question
from commtax.spec import Cluster, Engine
from commtax.statement import ALREADY_ON, OTHER_CHIPS, OTHER_ENGINES, OTHER_MODELS, Refusal

FUSED = "fused-allreduce"
ALGORITHMS = ("auto", "one-shot", "two-shot")
FORMATS = ("fp8", "nvfp4", "bf16")  # what tokens may travel to their experts in


def check_collectives(q: Question) -> None:
    """Refuse a fused all-reduce, or a library of kernels, that would change nothing here or is not to be had."""
    if q.techniques.fused_reduce:
        _check_fused(q)
    name = q.what_if.library
    if not name or not catalog.library(name).alone:
        return
    # A library that is kernels of one kind has some for these chips, and adds to what the engine runs by itself.
    if not catalog.fabric(name, q.cluster).kernels:
        raise no_kernels(name, q.cluster)
    if is_on_already(q, key := catalog.library(name).key):
        raise Refusal(already_on(q.engine, on_since(q, key)), "library", kind=ALREADY_ON)


def is_on_already(q: Question, key: str, engine: Engine | None = None) -> bool:
    """Whether an engine uses a technique by itself on these chips or for this model, so that its times hold it."""
    for entry in (engine or q.engine).sends.on_by_default:
        name, *where = entry.split()
        if name == key and (not where or q.cluster.chip.family in where or q.model.architecture in where):
            return True
    return False


def on_since(q: Question, key: str) -> str:
    """The oldest version from which on an engine is known to use a technique by itself here; "": all that are known do."""
    newest = catalog.engine(q.engine.key)
    since = newest.version
    for version in sorted((*newest.versions, newest.version), key=parts, reverse=True):
        if not is_on_already(q, key, catalog.engine(f"{newest.key}@{version}")):
            return since
        since = version
    return ""


def already_on(engine: Engine, since: str) -> str:
    """Return that a technique is on, and why."""
    return f"already on: {on_by_default(engine, since)}"


def on_by_default(engine: Engine, since: str) -> str:
    """Return that an engine does this by itself, since a version or in all that are listed."""
    does = f"{engine.name} has done this by default since {since}" if since else f"{engine.name} does this by default"
    return f"{does}, and its measured times include it"


def _check_fused(q: Question) -> None:
    chip, engine, asked = q.cluster.chip, q.engine, q.techniques.fused_reduce
    if asked not in ALGORITHMS:
        raise Refusal(f"one of {', '.join(ALGORITHMS)}", "technique", ALGORITHMS, subject=f"{FUSED}={asked}")
    if q.trains:
        raise Refusal("belongs to serving, and training has none", "technique", subject=FUSED)
    if catalog.fabric(engine.library, q.cluster).fused is None:
        rule = f"no time of such a kernel was measured on {chip.key} over {q.cluster.intra.key}"
        raise Refusal(rule, "technique", kind=OTHER_CHIPS, subject=FUSED)
    if is_on_already(q, FUSED):
        raise Refusal(already_on(engine, on_since(q, FUSED)), "technique", kind=ALREADY_ON)
    if engine.key not in technique(FUSED).flags:
        raise Refusal(f"{engine.name} has no such kernel", "technique", kind=OTHER_ENGINES, subject=FUSED)
    if np.all(np.asarray(q.plan.tp) == 1):
        raise Refusal("with tp 1 there is nothing to reduce", "technique", subject=FUSED)
    if q.plan.sequence_parallel:
        raise Refusal("sequence parallelism scatters and gathers; nothing is all-reduced", "technique", subject=FUSED)
    if q.model.hyper or q.model.lookback or not q.model.residual_stream:
        raise Refusal(
            f"{q.model.key} has no residual and norm right after its all-reduces", "technique", kind=OTHER_MODELS, subject=FUSED
        )


def no_kernels(name: str, place: Cluster) -> Refusal:
    """That a library of kernels of one kind has none for a cluster's chips."""
    one = catalog.library(name)
    families = " and ".join(dict.fromkeys(family for row in one.path for family in row.families))
    rule = f"its kernels are for {families} chips only, not for {place.chip.key} over {place.intra.key}"
    return Refusal(rule, "library", kind=OTHER_CHIPS, subject=one.key)


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
        raise Refusal(rule, "technique", kind="" if q.model.experts else OTHER_MODELS, subject=f"technique '{name}'")


def check_experts_techniques(q: Question) -> None:
    """A layout by load, and a format for dispatch, belong to experts that are spread over ranks."""
    on, kind = q.techniques, "" if q.model.experts else OTHER_MODELS
    if on.balanced:
        check_spread(q, "eplb")
    if not on.dispatch_dtype:
        return
    if on.dispatch_dtype not in FORMATS:
        raise Refusal(f"one of {', '.join(FORMATS)}", "technique", FORMATS, subject=f"dispatch in '{on.dispatch_dtype}'")
    if q.model.experts is None or np.all(np.asarray(q.plan.ep) <= q.plan.tp) or q.trains:
        rule = "needs replicas that share experts (dp > 1 and ep = tp x dp)"
        raise Refusal(rule, "technique", kind=kind, subject="technique 'dispatch'")
