"""Where techniques that overlap, and kernels over latents, can be used: what an engine has or does unasked, and what they need."""

from collections.abc import Callable

import numpy as np

from commtax import catalog
from commtax.catalog.technique_flags import who_has
from commtax.catalog.techniques import technique
from commtax.catalog.versions import parts
from commtax.cost.placement import expert_ranks
from commtax.cost.traffic import AG_RS, BULK, DEEPEP_LL
from commtax.question import Question
from commtax.spec import Engine, Techniques
from commtax.statement import ALREADY_ON, OTHER_CHIPS, OTHER_ENGINES, OTHER_MODELS, UNSAID, Refusal
from commtax.verbs.collective_rules import already_on

HOST_TIMES = ("host_s", "host_s_per_doubling", "host_s_per_seq")


def with_schedule(asked: Techniques, engine: Engine) -> Engine:
    """An engine that is told to schedule ahead: its GPUs wait no longer than those of its newest version, which always does."""
    key = "async-scheduling"
    if not asked.async_scheduling or engine.key not in technique(key).flags or _unasked_since(engine, key):
        return engine
    newest = catalog.engine(engine.key)
    left = {name: min(getattr(engine.host, name), getattr(newest.host, name)) for name in HOST_TIMES}
    return engine.but(ahead=True, **left)


def _unasked_since(engine: Engine, key: str) -> str:
    """The version since which an engine does it unasked; "": this one does not."""
    since = technique(key).always.get(engine.key, "")
    return since if since and parts(engine.version) >= parts(since) else ""


def without_idle_overlap(q: Question) -> Question:
    """The question of one of many plans, without techniques that have nothing to change in it: those stay with the others."""
    asked, dropped = q.techniques, dict[str, object]()
    _check_had(q)
    if q.model.experts is None:
        pass  # no plan of it has anything to exchange, which is refused
    elif not _is_exchanged(q):
        dropped |= {name: False for name in ("two_batches", "single_batch", "shared_stream") if getattr(asked, name)}
    elif asked.single_batch and _backend(q) != DEEPEP_LL:
        dropped["single_batch"] = False
    if asked.dispatch_dtype and q.model.experts is not None and np.all(np.asarray(q.plan.ep) <= q.plan.tp):
        dropped["dispatch_dtype"] = ""  # nothing leaves a replica
    if np.all(np.asarray(q.plan.tp) == 1):
        dropped |= {"async_tp": False} if asked.async_tp else {}
        dropped |= {"sequence_tokens": 0} if asked.sequence_tokens else {}  # one rank has nothing to split …
        dropped |= {"fused_reduce": ""} if asked.fused_reduce else {}  # … or to sum
    return q.but(**dropped) if dropped else q


def _is_exchanged(q: Question) -> bool:
    spread = q.model.experts is not None and bool(np.any(expert_ranks(q.plan, q.engine).over_replicas))
    return spread and _backend(q) != AG_RS


def check_overlap(q: Question) -> None:
    """Refuse what the engine has not, does already, or cannot do with this model and plan."""
    _check_had(q)
    for key, (on, check) in CHECKS.items():
        if on(q):
            check(q, key)


def _check_had(q: Question) -> None:
    """Refuse what the engine has not, whatever the plan."""
    for key, (on, _) in CHECKS.items():
        if on(q) and q.engine.key not in technique(key).flags:
            rule, able = who_has(technique(key), q.engine), tuple(technique(key).flags)
            raise Refusal(rule, "technique", able, OTHER_ENGINES, f"technique '{key}'")


def _refuse(key: str, rule: str, kind: str = "") -> Refusal:
    return Refusal(rule, "technique", kind=kind, subject=f"technique '{key}'")


def _backend(q: Question) -> str:
    return q.what_if.ep_backend or next(iter(q.engine.sends.ep_backends), "") or AG_RS


def _check_exchange(q: Question, key: str) -> None:
    """Something must be sent to experts by kernels of their own."""
    if q.model.experts is None:
        raise _refuse(key, f"{q.model.key} has no experts whose tokens are exchanged", OTHER_MODELS)
    if not np.any(expert_ranks(q.plan, q.engine).over_replicas):
        raise _refuse(key, "needs experts spread over data-parallel ranks (dp > 1 and ep > tp)")
    if _backend(q) == AG_RS:
        able = BULK[DEEPEP_LL] if q.phase == "prefill" else DEEPEP_LL
        raise _refuse(key, f"{q.engine.name} overlaps only DeepEP's kernels: add --ep-backend {able}")


def _check_halves(q: Question, key: str) -> None:
    _check_exchange(q, key)
    if q.techniques.two_batches_from < 0:
        raise _refuse(key, "tokens of a rank from which batches are halved, at least 1")


def _check_single(q: Question, key: str) -> None:
    _check_exchange(q, key)
    if q.techniques.two_batches:
        raise _refuse(key, "both hide the same exchanges; choose one of dbo and sbo")
    if _backend(q) != DEEPEP_LL:
        raise _refuse(key, f"runs only beside DeepEP's low-latency kernels: add --ep-backend {DEEPEP_LL}")
    if not q.engine.overlaps.combine_sms.get(q.cluster.chip.family):
        raise _refuse(key, f"{q.engine.name} has no kernels for it on {q.cluster.chip.family} chips", OTHER_CHIPS)


def _check_shared(q: Question, key: str) -> None:
    if q.model.experts is None or not q.model.experts.shared_intermediate:
        raise _refuse(key, f"{q.model.key} has no shared expert", OTHER_MODELS)
    exchanged = _is_exchanged(q)
    if exchanged and q.engine.overlaps.shared_beside:
        return  # on by default too, but in none of the runs that its times come from
    if exchanged and q.engine.overlaps.combine_sms:
        raise _refuse(key, "beside an exchange it is part of single-batch overlap (sbo)")
    _check_unasked(q, key)


def _check_unasked(q: Question, key: str) -> None:
    """What a version does by itself was on when its times were measured."""
    if since := _unasked_since(q.engine, key):
        raise _refuse(key, already_on(q.engine, since), ALREADY_ON)


def _check_split(q: Question, key: str) -> None:
    """A pass over a model that is wide enough, on chips that the engine has a threshold for."""
    _check_ranks(q, key)
    own, family = q.engine.overlaps, q.cluster.chip.family
    if q.techniques.sequence_tokens > 0:
        return
    if family not in own.sequence_bytes:
        raise _refuse(key, f"{q.engine.name} leaves it off on {family} chips unless given a token threshold: {key}=TOKENS", UNSAID)
    if q.model.hidden < own.sequence_hidden:
        width = f"below a hidden size of {own.sequence_hidden:,} ({q.model.key} has {q.model.hidden:,})"
        raise _refuse(key, f"{q.engine.name} leaves it off {width} unless given a token threshold: {key}=TOKENS", UNSAID)


def _check_ranks(q: Question, key: str) -> None:
    if np.all(np.asarray(q.plan.tp) == 1):
        raise _refuse(key, "needs tensor parallelism (tp > 1)")


def _check_tiles(q: Question, key: str) -> None:
    _check_ranks(q, key)
    if q.cluster.chip.family != "blackwell":
        raise _refuse(key, f"{q.engine.name} has such kernels only on Blackwell", OTHER_CHIPS)


def _check_latents(q: Question, key: str) -> None:
    if not any(a.latent and not a.indexer for a in q.model.attentions):
        raise _refuse(key, f"{q.model.key} caches no latents that all of its tokens read", OTHER_MODELS)
    if q.cluster.chip.family not in q.engine.kernels.widened_latents:
        raise _refuse(key, f"{q.engine.name}'s default kernels do this already on {q.cluster.chip.family} chips", ALREADY_ON)


Check = Callable[[Question, str], None]
CHECKS: dict[str, tuple[Callable[[Question], bool], Check]] = {
    "dbo": (lambda q: q.techniques.two_batches, _check_halves),
    "sbo": (lambda q: q.techniques.single_batch, _check_single),
    "async-tp": (lambda q: q.techniques.async_tp and q.plan.sequence_parallel, _check_split),
    "gemm-allreduce": (lambda q: q.techniques.async_tp and not q.plan.sequence_parallel, _check_tiles),
    "sp": (lambda q: bool(q.techniques.sequence_tokens) and not q.techniques.async_tp, _check_split),
    "shared-stream": (lambda q: q.techniques.shared_stream, _check_shared),
    "async-scheduling": (lambda q: q.techniques.async_scheduling, _check_unasked),
    "flashmla": (lambda q: q.techniques.native_latents, _check_latents),
}
"""By key: whether it is on, and what it needs."""
