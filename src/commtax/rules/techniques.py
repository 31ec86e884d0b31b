"""Whether a technique can be used here: the engine has it, it is not on already, and chips, model and plan have a use for it."""

from collections.abc import Callable, Mapping

import numpy as np

from commtax import catalog
from commtax.catalog.hardware import carrier, started_with, tier
from commtax.catalog.loader import version_parts
from commtax.catalog.programs import program_of
from commtax.catalog.technique_flags import who_has
from commtax.catalog.techniques import technique
from commtax.cost.placement import expert_ranks
from commtax.cost.traffic import BACKENDS, GATHERING, Backend, backend_called, default_backend
from commtax.question import Question
from commtax.rules import Broken, check, refusal
from commtax.spec import Cluster, Engine, Number, Techniques
from commtax.spec.hardware import CacheCarrier
from commtax.statement import OTHER_CHIPS, OTHER_ENGINES, Refusal

HOST_TIMES = ("host_s", "host_s_per_doubling", "host_s_per_seq")
FUSED = "fused-allreduce"
ALGORITHMS = ("auto", "one-shot", "two-shot")
FORMATS = ("fp8", "nvfp4", "bf16")  # what tokens may travel to their experts in
RECEIVED = next(name for name, backend in BACKENDS.items() if backend.received)


def with_schedule(techniques: Techniques, engine: Engine) -> Engine:
    """Return the engine as it schedules ahead: its GPUs wait no longer than those of its newest version, which always does."""
    key = "async-scheduling"
    if not techniques.async_scheduling or engine.key not in technique(key).flags or _default_since(engine, key):
        return engine
    newest = catalog.engine(engine.key).host
    return engine.but(ahead=True, **{name: min(getattr(engine.host, name), getattr(newest, name)) for name in HOST_TIMES})


def _default_since(engine: Engine, key: str) -> str:
    """Return the version since which an engine uses it by default, "" where this one does not."""
    since = technique(key).always.get(engine.key, "")
    return since if since and version_parts(engine.version) >= version_parts(since) else ""


def without_idle_overlap(q: Question) -> Question:
    """Return the question of one of many plans without techniques that have nothing to change in it: other plans keep those."""
    on, dropped = q.techniques, dict[str, object]()
    _check_had(q)
    if q.model.experts is None:
        pass  # no plan of it has anything to exchange, which is refused
    elif not _is_exchanged(q):
        dropped |= {name: False for name in ("two_batches", "single_batch", "shared_stream") if getattr(on, name)}
    elif on.single_batch and not _backend(q).received:
        dropped["single_batch"] = False
    if on.dispatch_dtype and q.model.experts is not None and np.all(np.asarray(q.plan.ep) <= q.plan.tp):
        dropped["dispatch_dtype"] = ""  # nothing leaves a replica
    if np.all(np.asarray(q.plan.tp) == 1):
        dropped |= {"async_tp": False} if on.async_tp else {}
        dropped |= {"sequence_tokens": 0} if on.sequence_tokens else {}  # one rank has nothing to split …
        dropped |= {"fused_reduce": ""} if on.fused_reduce else {}  # … or to sum
    return q.but(**dropped) if dropped else q


def _is_exchanged(q: Question) -> bool:
    spread = q.model.experts is not None and bool(np.any(expert_ranks(q.plan, q.engine).over_replicas))
    return spread and not _backend(q).gathers


def check_overlap(q: Question) -> None:
    """Refuse what the engine has not, does already, or cannot do with this model and plan."""
    for key in _check_had(q):
        if rule := next((rule for rule in NEEDS[key] if BROKEN[rule](q, key)), ""):
            families = " and ".join(family.title() for family in technique(key).families)
            already = already_on(q.engine, _default_since(q.engine, key))
            backend = backend_called(RECEIVED).bulk if q.phase == "prefill" else RECEIVED
            raise refusal(f"technique.{rule}", q, key=key, backend=backend, received=RECEIVED, families=families, already=already)


def _check_had(q: Question) -> list[str]:
    """Refuse what the engine has not, whatever the plan, and return the techniques that are on."""
    keys = [key for key, is_on in ON.items() if is_on(q)]
    for key in keys:
        if q.engine.key not in (has := technique(key).flags):
            raise refusal("technique.had", q, key=key, had=who_has(technique(key), q.engine), able=tuple(has))
    return keys


def _backend(q: Question) -> Backend:
    """Return how tokens reach experts: without kernels of the engine's own, collectives gather them."""
    return backend_called(q.what_if.ep_backend or default_backend(q.engine) or GATHERING)


ON: Mapping[str, Callable[[Question], bool]] = {  # by key of a technique: whether it is on …
    "dbo": lambda q: q.techniques.two_batches,
    "sbo": lambda q: q.techniques.single_batch,
    "async-tp": lambda q: q.techniques.async_tp and q.plan.sequence_parallel,
    "gemm-allreduce": lambda q: q.techniques.async_tp and not q.plan.sequence_parallel,
    "sp": lambda q: bool(q.techniques.sequence_tokens) and not q.techniques.async_tp,
    "shared-stream": lambda q: q.techniques.shared_stream,
    "async-scheduling": lambda q: q.techniques.async_scheduling,
    "flashmla": lambda q: q.techniques.native_latents,
}
EXCHANGED = ("experts", "over-replicas", "kernels")  # something must be sent to experts by kernels of their own
SPLIT = ("ranks", "split-chip", "split-width")  # a model that is wide enough, on chips that the engine has a threshold for
NEEDS: Mapping[str, tuple[str, ...]] = {  # … and the rules that it must keep to, in the order in which they are judged
    "dbo": (*EXCHANGED, "halves"),
    "sbo": (*EXCHANGED, "both", "received", "combine"),
    "async-tp": SPLIT,
    "gemm-allreduce": ("ranks", "tiles"),
    "sp": SPLIT,
    "shared-stream": ("shared", "part-of-sbo", "already"),
    "async-scheduling": ("already",),
    "flashmla": ("latents", "native"),
}
BROKEN: Mapping[str, Callable[[Question, str], bool]] = {
    "experts": lambda q, _: q.model.experts is None,
    "over-replicas": lambda q, _: not np.any(expert_ranks(q.plan, q.engine).over_replicas),
    "kernels": lambda q, _: _backend(q).gathers,
    "halves": lambda q, _: q.techniques.two_batches_from < 0,
    "both": lambda q, _: q.techniques.two_batches,
    "received": lambda q, _: not _backend(q).received,
    "combine": lambda q, _: not q.engine.overlaps.combine_sms.get(q.cluster.chip.family),
    "shared": lambda q, _: q.model.experts is None or not q.model.experts.shared_intermediate,
    "part-of-sbo": lambda q, _: _is_exchanged(q) and not q.engine.overlaps.shared_beside and bool(q.engine.overlaps.combine_sms),
    # On by default too beside an exchange, but in none of the runs that its times come from.
    "already": lambda q, key: (
        bool(_default_since(q.engine, key))
        and not (key == "shared-stream" and _is_exchanged(q) and q.engine.overlaps.shared_beside)
    ),
    "ranks": lambda q, _: bool(np.all(np.asarray(q.plan.tp) == 1)),
    # Without a number of tokens, the engine's rule decides from how many on sequences are split.
    "split-chip": lambda q, _: q.techniques.sequence_tokens <= 0 and q.cluster.chip.family not in q.engine.overlaps.sequence_bytes,
    "split-width": lambda q, _: q.techniques.sequence_tokens <= 0 and q.model.hidden < q.engine.overlaps.sequence_hidden,
    "tiles": lambda q, key: q.cluster.chip.family not in technique(key).families,
    "latents": lambda q, _: not any(a.latent and not a.indexer for a in q.model.attentions),
    "native": lambda q, _: q.cluster.chip.family not in q.engine.kernels.widened_latents,
}
FUSING: Mapping[str, Broken] = {
    "algorithm": lambda q: q.techniques.fused_reduce not in ALGORITHMS,
    "trained": lambda q: q.trains,
    "measured": lambda q: catalog.fabric(q.engine.library, q.cluster).fused is None,
    "already": lambda q: is_on_already(q, FUSED),
    "by-engine": lambda q: q.engine.key not in technique(FUSED).flags,
    "ranks": lambda q: np.all(np.asarray(q.plan.tp) == 1),
    "scattered": lambda q: q.plan.sequence_parallel,
    "residual": lambda q: bool(q.model.hyper or q.model.lookback or not q.model.residual_stream),
}
DISPATCH: Mapping[str, Broken] = {
    "format": lambda q: q.techniques.dispatch_dtype not in FORMATS,
    "dense": lambda q: q.model.experts is None,
    "over-replicas": lambda q: q.trains or np.all(np.asarray(q.plan.ep) <= q.plan.tp),
}


def check_collectives(q: Question) -> None:
    """Refuse a fused all-reduce, or a library of kernels, that would change nothing here or is not to be had."""
    if q.techniques.fused_reduce:
        check("fused", FUSING, q, already=already_on(q.engine, on_since(q, FUSED)) if is_on_already(q, FUSED) else "")
    name = q.what_if.library
    if name and catalog.library(name).alone:  # kernels of one kind are for some chips, and add to what the engine runs by itself
        if not catalog.fabric(name, q.cluster).kernels:
            raise no_kernels(name, q.cluster)
        if is_on_already(q, key := catalog.library(name).key):
            raise refusal("library.already", q, already=already_on(q.engine, on_since(q, key)))


def is_on_already(q: Question, key: str, engine: Engine | None = None) -> bool:
    """Return whether an engine uses a technique by default on these chips or for this model, so that its times include it."""
    entries = [entry.split() for entry in (engine or q.engine).sends.on_by_default]
    here = {q.cluster.chip.family, q.model.architecture}
    return any(name == key and (not where or not here.isdisjoint(where)) for name, *where in entries)


def on_since(q: Question, key: str) -> str:
    """Return the oldest version since which an engine uses a technique by default, "" where all catalogued versions do."""
    newest = catalog.engine(q.engine.key)
    since = newest.version
    for version in sorted((*newest.versions, newest.version), key=version_parts, reverse=True):
        if not is_on_already(q, key, catalog.engine(f"{newest.key}@{version}")):
            return since
        since = version
    return ""


def already_on(engine: Engine, since: str) -> str:
    return f"already on: {on_by_default(engine, since)}"


def on_by_default(engine: Engine, since: str) -> str:
    """Say that an engine does this by itself, since a version or in all that are catalogued."""
    does = f"{engine.name} has done this by default since {since}" if since else f"{engine.name} does this by default"
    return f"{does}, and its measured times include it"


def no_kernels(name: str, place: Cluster) -> Refusal:
    """Return the refusal of a library of kernels of one kind that has none for a cluster's chips."""
    one = catalog.library(name)
    families = " and ".join(dict.fromkeys(family for row in one.path for family in row.families))
    rule = f"its kernels are for {families} chips only, not for {place.chip.key} over {place.intra.key}"
    return Refusal(rule, "library", kind=OTHER_CHIPS, subject=one.key)


def check_spread(q: Question, name: str) -> None:
    """Check that experts are spread: else no token is sent to any."""
    if q.model.experts is None:
        raise refusal("spread.dense", q, key=name)
    if np.max(q.plan.ep, initial=1) == 1 or (q.trains and name == "eplb"):
        raise refusal("spread.ranks", q, key=name)


def check_experts_techniques(q: Question) -> None:
    """Check that a layout by load, and a format for dispatch, have experts that are spread over ranks."""
    if q.techniques.balanced:
        check_spread(q, "eplb")
    if q.techniques.dispatch_dtype:
        check("dispatch", DISPATCH, q)


def carrier_of(q: Question) -> CacheCarrier:
    """Return what carries caches from prompt workers to those that decode: as requested, else what the engine is started with."""
    return carrier(q.techniques.kv_transfer or started_with(program_of(q.engine).key))


def check_motion(q: Question) -> None:
    """Refuse a carrier that the engine does not have on these chips, and an unknown tier."""
    if q.techniques.kv_tier:
        tier(q.techniques.kv_tier)
    if not q.techniques.kv_transfer:
        return
    name, engine = f"kv-transfer={q.techniques.kv_transfer}", program_of(q.engine)
    requested = carrier_of(q)
    if engine.key not in requested.connectors:
        raise Refusal(f"{q.engine.name} does not have it", "technique", kind=OTHER_ENGINES, subject=name)
    if requested.vendors and any(place.chip.vendor not in requested.vendors for place in q.places):
        rule = f"runs only on chips of {', '.join(requested.vendors).upper()}"
        raise Refusal(rule, "technique", kind=OTHER_CHIPS, subject=name)


def check_moving(q: Question) -> None:
    """Refuse a carrier where no cache moves."""
    if q.techniques.kv_transfer and not q.requests.disaggregated:
        rule = "KV caches are sent only in disaggregated serving (simulate or plan --disaggregated)"
        raise Refusal(rule, "technique", subject=f"kv-transfer={q.techniques.kv_transfer}")


def check_sides(q: Question, ahead_tp: Number) -> None:
    """Refuse workers whose ranks hold different heads on both sides, where their carrier cuts none out."""
    used = carrier_of(q)
    if not used.cuts_heads and np.any(np.asarray(ahead_tp != q.plan.tp)):
        rule = f"{used.connectors[program_of(q.engine).key]} needs the same tp on both sides"
        raise Refusal(f"{rule}, not {ahead_tp} and {q.plan.tp}", "technique", subject=f"kv-transfer={used.key}")
