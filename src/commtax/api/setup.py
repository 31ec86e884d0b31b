"""A question with its names resolved and its rules checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.cost import legality
from commtax.cost.memory import check_stored, on_chip
from commtax.cost.placement import used_of_domain
from commtax.cost.schedules import TRAINING
from commtax.cost.train_memory import RECOMPUTE
from commtax.spec import DTYPE_BYTES, Chip, Cluster, Engine, Fabric, KernelConstants, Model, Number, Plan, Profile
from commtax.statement import Note, Refusal
from commtax.units import MAX_COUNT

PHASES = ("decode", "prefill", "mixed", "train")
ACTIVATIONS = ("bf16", "fp16", "fp32")
AUTO_EP = -1
"""``ep=AUTO_EP`` asks for the engine's own size, tp x dp."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A question with its names resolved and its rules checked."""

    model: Model
    cluster: Cluster
    plan: Plan
    engine: Engine
    notes: tuple[Note, ...] = ()
    profile: Profile | None = None  # a machine's own constants, already laid over cluster and engine
    codes: Any = 0  # for arrays: 0 where legal, else 1 + the index in ``legality.RULES`` of the rule that is broken


def setup(
    model: str | Model,
    cluster: str | Cluster,
    *,
    tp: Number = 1,
    pp: Number = 1,
    dp: Number = 1,
    ep: Number = 1,
    cp: Number = 1,
    replicas: Number = 1,
    engine: str | Engine = "",
    phase: str = "decode",
    dtype: str = "",
    kv_dtype: str = "",
    profile: str | Profile | None = None,
    **kinds: Any,
) -> Setup:
    """Resolve names, build the plan, and refuse an illegal one with the rule and the nearest legal values.

    ``replicas`` servers of the plan stand beside each other; ``dp`` is data parallelism inside one engine. A ``profile``'s
    chip and host times are laid over the cluster's and the engine's; its engine and type are used unless others are given.
    """
    if phase not in PHASES:
        raise Refusal(f"phase '{phase}': one of {', '.join(PHASES)}", "phase")
    own = overlay.given(profile)
    if own:
        engine, dtype = engine or _engine_of(own, phase), dtype or own.dtype
    tp, pp, dp, ep, cp = (numeric(x, name) for x, name in ((tp, "tp"), (pp, "pp"), (dp, "dp"), (ep, "ep"), (cp, "cp")))
    if phase == "train" and np.any(np.asarray(positive(replicas, "replicas")) > 1):
        raise Refusal(f"replicas={replicas}: those are servers; a training job has data-parallel ranks (dp)", "replicas")
    known = catalog.model(model) if isinstance(model, str) else model
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    engine = _engine(engine, phase)
    if own:
        place, engine = overlay.on_cluster(own, place), overlay.on_engine(own, engine)
    engine = on_chip(engine, place.chip)
    check_stored(known)
    if phase == "train" and known.quant:  # however it is stored, it is trained in bf16, or in fp8 where that is asked for
        known = replace(known, quant=None)
    weights = _dtype(dtype, "dtype")
    # Engines compute in the type they are told (--dtype float32), else in the checkpoint's 16 bits.
    activations = weights if weights in ACTIVATIONS else known.dtype if known.dtype in ("bf16", "fp16") else "bf16"
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=dp,
        ep=tp * dp if np.all(np.asarray(ep) == AUTO_EP) else ep,
        cp=cp,
        replicas=positive(replicas, "replicas"),
        order=engine.order,
        weights_dtype=weights,
        activations_dtype=activations,
        kv_dtype=_kv_dtype(kv_dtype) or activations,
        grads_dtype=engine.trains.grads_dtype,
        **{
            "zero": engine.trains.zero,
            "sequence_parallel": engine.trains.sequence_parallel,
            **{k: v for k, v in kinds.items() if v is not None},
        },
    )
    check_kinds(plan, engine, place.chip)
    if all(np.ndim(x) == 0 for x in (tp, pp, dp, ep, cp, plan.replicas, plan.microbatches)):
        legality.check(known, place, plan, engine)
        remarks = (*legality.notes(known, place, plan, engine), *_remarks(known, place, plan, engine))
        remarks += tuple(Note("profile", said) for said in overlay.remarks(own, place, engine)) if own else ()
        return Setup(known, place, plan, engine, remarks, own)
    return Setup(known, place, plan, engine, profile=own, codes=legality.codes(known, place, plan, engine))


def _engine(engine: str | Engine, phase: str) -> Engine:
    """An engine that has the phase; the usual one where none is named."""
    if isinstance(engine, str):
        engine = catalog.engine(engine or ("megatron" if phase == "train" else "vllm"))
    if phase not in engine.phases:
        able = [key for key in catalog.keys("engines") if phase in catalog.engine(key).phases]
        raise Refusal(f"engine '{engine.key}' has no {phase} phase; one of {', '.join(able)} has", "engine")
    return engine


def _engine_of(own: Profile, phase: str) -> str:
    """The engine that a profile was measured with, where it has this phase."""
    return own.engine if own.engine and phase in catalog.engine(own.engine).phases else ""


def library_of(asked: Setup, library: str = "") -> str:
    """Whose collectives run: as was said, else the engine's own, or those that the profile tells of."""
    return library or (overlay.usual_library(asked.profile, asked.engine) if asked.profile else asked.engine.library)


def fabric_of(asked: Setup, library: str = "") -> Fabric:
    """The paths of that library on this cluster, a machine's own where it has some."""
    name = library_of(asked, library)
    return overlay.paths(asked.profile, name, asked.cluster) if asked.profile else catalog.fabric(name, asked.cluster)


def constants_of(asked: Setup) -> KernelConstants:
    """The kernel constants of this engine on this chip, a machine's own where it has some."""
    if asked.profile:
        return overlay.constants(asked.profile, asked.engine, asked.cluster.chip)
    return catalog.kernel_constants(asked.engine, asked.cluster.chip)


def _remarks(model: Model, cluster: Cluster, plan: Plan, engine: Engine) -> list[Note]:
    """What else a plan should know: an uncalibrated version, an unusual host, weights the chip cannot multiply."""
    found = [Note("version", engine.note)] if engine.note else []
    found += [Note("cluster", cluster.remark)] if cluster.remark else []
    used = int(used_of_domain(plan, cluster, engine))
    if plan.num_gpus > cluster.domain > used:
        where = "host" if cluster.domain == cluster.gpus_per_host else "NVLink domain"
        laid = f"ranks are laid on {used} of the {cluster.domain} GPUs of each {where}, so that no group straddles two"
        found.append(Note("placement", laid))
    wanted = plan.weights_dtype or (model.quant.dtype if model.quant else "")
    native = {"mxfp4": "fp4", "nvfp4": "fp4", "int4": "int4"}.get(wanted, wanted)
    if wanted in DTYPE_BYTES and DTYPE_BYTES[wanted] < 2 and native not in cluster.chip.flops_per_s:
        stored = f"{cluster.chip.key} has no {wanted} arithmetic: such weights save memory and bandwidth only"
        found.append(Note("arithmetic", stored))
    return found


def _dtype(name: str, argument: str) -> str:
    if name in ("", "auto"):
        return ""
    spelled = {
        "bfloat16": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "float32": "fp32",
        "fp8_e4m3": "fp8",
        "fp8_e5m2": "fp8",
    }
    name = spelled.get(name, name)
    if name not in DTYPE_BYTES:
        raise Refusal(f"{argument} '{name}': one of {', '.join(DTYPE_BYTES)}", argument)
    return name


def _kv_dtype(name: str) -> str:
    found = _dtype(name, "kv_dtype")
    if found not in ("", "bf16", "fp16", "fp32", "fp8"):
        raise Refusal(f"kv_dtype '{name}': a KV cache is kept in auto, bf16, fp16, fp32 or fp8", "kv_dtype")
    return found


def check_kinds(plan: Plan, engine: Engine, chip: Chip) -> None:
    """Refuse kinds of training (ZeRO, schedule, recomputation) that do not exist or do not go together."""
    for name in ("zero", "schedule", "recompute", "chunks"):
        if isinstance(getattr(plan, name), np.ndarray):
            raise Refusal(f"{name}: one kind for all plans, not an array of them", name)
    if plan.zero not in (0, 1, 2, 3):
        raise Refusal(f"zero={plan.zero}: ZeRO stages are 0, 1, 2 and 3", "zero")
    piped = bool(np.any(np.asarray(plan.pp) > 1))
    if plan.zero >= 2 and piped and not engine.trains.master_is_parameter:
        raise Refusal(f"zero={plan.zero} with pp > 1: {engine.key} keeps gradients of all microbatches, use zero 0 or 1", "zero")
    if plan.schedule not in TRAINING:
        raise Refusal(f"schedule '{plan.schedule}': one of {', '.join(TRAINING)}", "schedule")
    mixed = np.any((np.asarray(plan.ep) > 1) & (np.asarray(plan.tp) > 1))
    if engine.key == "megatron" and mixed and not plan.sequence_parallel:
        raise Refusal("ep > 1 with tp > 1: megatron needs sequence_parallel for it", "ep")
    if plan.recompute not in RECOMPUTE:
        raise Refusal(f"recompute '{plan.recompute}': one of {', '.join(RECOMPUTE)}", "recompute")
    if plan.chunks < 1:
        raise Refusal(f"chunks={plan.chunks}: a rank has at least 1 chunk", "chunks")
    if plan.chunks > 1 and plan.schedule != "interleaved":
        raise Refusal(f"chunks={plan.chunks}: only the interleaved schedule has several chunks a rank", "chunks")
    if plan.schedule == "interleaved" and piped and plan.chunks < 2:
        raise Refusal("chunks=1: the interleaved schedule needs at least 2 chunks a rank", "chunks")
    if np.any(np.asarray(plan.shard) != 0) and plan.zero != 3:
        raise Refusal(
            f"hsdp={plan.shard}: sharding over groups belongs to ZeRO 3 (fsdp, torchtitan), not to zero={plan.zero}", "hsdp"
        )
    if "train" in engine.phases and plan.weights_dtype == "fp8" and "fp8" not in chip.flops_per_s:
        raise Refusal(f"dtype 'fp8': {chip.key} has no fp8 arithmetic", "dtype")
    if plan.recompute == "selective" and not engine.trains.selective:
        raise Refusal(f"recompute 'selective': {engine.key} has no such mode; none or full", "recompute")


def numeric(value: Any, name: str) -> Number:
    """A number, or an array of them widened so that products cannot overflow; anything else is refused by name."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number, np.ndarray)):
        raise Refusal(f"{name}={value!r}: a number or a NumPy array is needed", name)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iuf":
            raise Refusal(f"{name}: an array of numbers is needed, not of {value.dtype}", name)
        return value.astype(float if value.dtype.kind == "f" else np.int64)
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise Refusal(f"{name}: larger than anything that is modelled (2^48); at most {MAX_COUNT:,}", name)
    return value.item() if isinstance(value, np.number) else value


def positive(value: Number, name: str, least: int = 1) -> Number:
    """A whole number of at least ``least``, or an array of them."""
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
    value = numeric(value, name)
    number = np.asarray(value, dtype=float)
    if not np.all(np.isfinite(number)) or np.any(number < least) or np.any(number != np.floor(number)):
        raise Refusal(f"{name}={value}: a whole number of at least {least} is needed", name)
    if np.any(number > MAX_COUNT):
        raise Refusal(f"{name}={value}: larger than anything that is modelled (2^48)", name)
    return value


def describe_gpus(plan: Plan) -> str:
    """The GPUs of a plan in words: ``16 GPUs = 2 stages x TP 8``. Replicas are servers, DP is an engine's own."""
    told = ((plan.replicas, "{} replicas"), (plan.dp, "DP {}"), (plan.pp, "{} stages"))
    parts = [words.format(int(n)) for n, words in told if n > 1]
    parts += [f"{name} {int(n)}" for n, name in ((plan.cp, "CP"), (plan.tp, "TP")) if n > 1 or name == "TP"]
    if plan.ep > 1:
        parts.append(f"experts over {int(plan.ep)}")
    total = math.prod(int(n) for n in (plan.tp, plan.cp, plan.pp, plan.dp, plan.replicas))
    text = " x ".join(parts).replace(" x experts", ", experts")
    return f"{total} GPU{'s' * (total > 1)} = {text}"
