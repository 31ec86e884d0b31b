"""A start-up log against what fits: the engine's own account of its sharding, checked line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from commtax.api import Fit, Setup, fit
from commtax.api.setup import setup
from commtax.audit.finding import DISAGREE, Finding, Question, Section, compare, undecided
from commtax.cost.memory import weights
from commtax.readers.vllm_log import StartupLog
from commtax.units import GiB, format_seconds, plural

WEIGHTS_TOLERANCE = 0.02
LEFT_TOLERANCE = 0.01  # KV memory that is left, of the chip's memory: 16 of 17 published starts, of any version, are nearer
OTHER_VERSIONS = 0.025  # versions that count their peak otherwise than the one that the memory model was made for leave this much
PRINTED_GIB, PRINTED_TIMES = 0.006 * GiB, 0.006  # half of the last digit of memory and of concurrency, in their own units
DISPATCH_TOLERANCE = 0.02  # of a decode step, before another all-reduce counts as a disagreement


def audit_log(log: StartupLog, asked: Question, name: str = "log") -> Section:
    """Layout, weights, KV memory, tokens and concurrency; a disabled custom all-reduce is priced."""
    plan = dict(asked.plan)
    settled = setup(asked.model, asked.cluster, **asked.plan)
    if log.kv_cache_dtype.startswith("fp8") and not plan.get("kv_dtype"):
        plan["kv_dtype"] = "fp8"
    judged = fit(asked.model, asked.cluster, **_limits(log, asked), **plan)
    findings = [
        *_layout(log, asked),
        *_weights(log, asked, settled),
        *_memory(log, judged, asked, plan),
        *_allreduce(log, asked),
    ]
    return Section("log", (name,), tuple(findings), tuple(_notes(log, settled)))


def _limits(log: StartupLog, asked: Question) -> dict[str, Any]:
    """Limits of the command where the user gives them, else as the log has them."""
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size")
    logged = {n: getattr(log, n) for n in names if getattr(log, n)}
    return {**logged, **{k: v for k, v in asked.limits.items() if v}}


def _layout(log: StartupLog, asked: Question) -> Iterator[Finding]:
    found = {axis: getattr(log, axis) or _seen(log, axis) for axis in ("tp", "pp", "dp")}
    names = {"tp": "tensor-parallel size", "pp": "pipeline stages", "dp": "replicas"}
    for axis, measured in found.items():
        wanted = getattr(asked, axis)
        if axis == "tp" or wanted > 1 or measured > 1:
            reason = f"the engine was started with {axis} {measured}" if measured else "the log does not say"
            yield compare(names[axis], wanted, measured or None, reason=reason)
    if log.world_size:
        worlds = (asked.tp * asked.pp, asked.tp * asked.pp * asked.dp)
        wanted = log.world_size if log.world_size in worlds else worlds[0]
        yield compare("ranks in a world", wanted, log.world_size, reason="more or fewer processes than the plan has")


def _seen(log: StartupLog, axis: str) -> int:
    """A size from the highest rank that introduced itself or that a worker is named after; one rank alone tells nothing."""
    named = [int(n) for worker, _ in log.weights_bytes for n in re.findall(rf"{axis.upper()}(\d+)", worker)]
    highest = max([*named, *(getattr(r, axis) for r in log.ranks)], default=-1)
    return highest + 1 if highest > 0 or log.world_size == 1 else 0


def _weights(log: StartupLog, asked: Question, settled: Setup) -> Iterator[Finding]:
    """Loaded weights of each worker against its stage; workers of one stage that loaded the same share a line."""
    if not log.weights_bytes:
        yield Finding("weights a rank", _stage_bytes(settled, 0), None, "bytes", WEIGHTS_TOLERANCE, reason="the log does not say")
        return
    stages: dict[tuple[int, float], list[str]] = {}
    for worker, nbytes in log.weights_bytes:
        found = re.search(r"PP(\d+)", worker)
        stages.setdefault((int(found[1]) if found else 0, round(nbytes / GiB, 3) * GiB), []).append(worker)
    for (stage, nbytes), workers in stages.items():
        predicted = _stage_bytes(settled, min(stage, asked.pp - 1))
        label = workers[0] if len(workers) == 1 else f"{plural(len(workers), 'rank')} alike"
        reason = _likely(nbytes, asked)
        tolerance = WEIGHTS_TOLERANCE + PRINTED_GIB / predicted
        yield compare(f"weights ({label})", predicted, nbytes, "bytes", tolerance, reason)


def _stage_bytes(settled: Setup, stage: int) -> float:
    lines = weights(settled.model, settled.plan, settled.engine, stage, int(settled.plan.pp))
    return float(sum(w.nbytes for w in lines))


def _likely(measured: float, asked: Question) -> str:
    """The first simple change of the plan under which the weights would be as logged."""
    tries: list[tuple[str, dict[str, Any]]] = [(f"tp {t}", {"tp": t}) for t in (1, 2, 4, 8, 16) if t != asked.tp]
    tries += [(f"dtype {d}", {"dtype": d}) for d in ("fp8", "int4", "bf16", "fp32")]
    for words, change in tries:
        try:
            nbytes = _stage_bytes(setup(asked.model, asked.cluster, **{**asked.plan, **change}), 0)
        except ValueError:
            continue
        if abs(measured / nbytes - 1) <= WEIGHTS_TOLERANCE:
            return f"as at {words}"
    return "another model, quantisation or split than was said"


def _memory(log: StartupLog, judged: Fit, asked: Question, plan: dict[str, Any]) -> Iterator[Finding]:
    """KV tokens that the logged memory must hold (exact), and the memory that should have been left (a model).

    What is left is a difference of large figures, so it is judged on the memory that it is left of.
    """
    tokens = log.kv_tokens or (log.kv_blocks * judged.serving.block_size if log.kv_blocks else None)
    whole = judged.setup.cluster.chip.visible_bytes
    if log.available_kv_bytes is None:
        blamed = "memory of other processes, or limits that are not in the log (--gpu-memory-utilization, --max-num-seqs)"
        why = blamed if tokens else "the log does not say"
        base = whole / judged.kv_bytes_per_token
        yield _left(compare("KV tokens", _tokens(log, judged), tokens, "tokens", LEFT_TOLERANCE, why, base), log, judged)
        base, each = whole / judged.needed_kv_bytes, log.max_concurrency
        yield _left(
            compare("full-length requests at once", judged.max_concurrency, each, "", LEFT_TOLERANCE, blamed, base), log, judged
        )
        return
    if not log.kv_fixed:
        why = "memory of other processes, or another share of it (older versions take 0.90: --gpu-memory-utilization)"
        found = compare(
            "KV memory left, of all memory", judged.kv_bytes, log.available_kv_bytes, "bytes", LEFT_TOLERANCE, why, whole
        )
        yield _left(found, log, judged)
    if log.available_kv_bytes <= 0:
        return  # it did not fit: there is nothing to count
    holds = fit(asked.model, asked.cluster, **{**_limits(log, asked), "kv_cache_memory_bytes": log.available_kv_bytes}, **plan)
    rounding = PRINTED_GIB / log.available_kv_bytes + (128 / tokens if tokens else 0)  # and one block
    why = "KV heads, their type or their split over ranks are not as said"
    yield compare(
        "KV tokens in that memory", _tokens(log, holds), tokens, "tokens", rounding, why if tokens else "the log does not say"
    )
    printed = PRINTED_TIMES / holds.max_concurrency if holds.max_concurrency else 0.0
    yield compare("full-length requests at once", holds.max_concurrency, log.max_concurrency, "", rounding + printed, why)


def _tokens(log: StartupLog, judged: Fit) -> int:
    """KV tokens as the log counts them: whole blocks, or (newer vLLM) full-length requests times that length.

    The two differ where a length is no multiple of a block, and where windows let some layers keep less.
    """
    length = judged.serving.max_model_len
    if log.kv_tokens and log.max_concurrency and log.max_model_len:
        counted = log.max_concurrency * log.max_model_len
        if abs(log.kv_tokens - counted) <= PRINTED_TIMES * log.max_model_len + 1:
            return int(judged.max_concurrency * length)
    return judged.kv_tokens


def _left(found: Finding, log: StartupLog, judged: Fit) -> Finding:
    """Memory that is left is no disagreement where another version may have counted its peak otherwise."""
    made_for, difference = judged.setup.engine.version, found.difference
    if found.verdict != DISAGREE or difference is None or abs(difference) > OTHER_VERSIONS or _is_version(log.version, made_for):
        return found
    which = f"vLLM {log.version}" if log.version else "a version that the log does not say"
    return undecided(found, f"{which} may count otherwise than {made_for}, for which the memory model was made")


def _is_version(logged: str, made_for: str) -> bool:
    return logged.startswith(made_for)


def _allreduce(log: StartupLog, asked: Question) -> Iterator[Finding]:
    """What the step costs when NCCL does the work of the custom all-reduce that the log says is off."""
    if not log.custom_allreduce_disabled or asked.tp == 1:
        return
    batch, context = asked.batch or 1, asked.context or 1024
    with_custom = asked.bill(batch=batch, context=context)
    fallback = asked.bill(batch=batch, context=context, library="nccl")
    cost = float(fallback.step_s) - float(with_custom.step_s)
    item = f"decode step, custom all-reduce off ({log.custom_allreduce_disabled})"
    found = compare(item, float(with_custom.step_s), float(fallback.step_s), "s", DISPATCH_TOLERANCE)
    share = cost / float(with_custom.step_s)
    reason = f"NCCL instead costs {format_seconds(cost)} a step ({share:+.1%}) at batch {batch}; both figures are priced"
    yield undecided(found, f"{reason}; {asked.distrust}") if asked.distrust else replace(found, reason=reason)


def _notes(log: StartupLog, settled: Setup) -> Iterator[str]:
    engine = settled.engine
    if log.version and not _is_version(log.version, engine.version):
        yield f"the log is of vLLM {log.version}; the memory model was made for {engine.version}"
    if log.allreduce_backends:
        yield f"all-reduce backends in dispatch order: {', '.join(log.allreduce_backends)}"
    if log.backend or log.nccl_version:
        yield f"collectives over {log.backend or 'nccl'} {log.nccl_version}".strip()
    if log.quantization and settled.model.quant is None and not settled.plan.weights_dtype:
        yield f"the log says quantization={log.quantization}: give --dtype, or a model folder with that config"
