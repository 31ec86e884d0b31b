"""Steps of a trace: what somebody named (the profiler, vLLM, SGLang), or what repeats (CUDA graph launches)."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

_PROFILER = re.compile(r"^ProfilerStep#\d+")
_VLLM = re.compile(r"^execute_(?:\d+_)?context_(?P<prefills>\d+)\((?P<tokens>\w+)\)_generation_(?P<decodes>\d+)\(\w+\)")
_VLLM_OLD = re.compile(r"^execute_new_(?P<prefills>\d+)_cached_(?P<decodes>\d+)")
_SGLANG = re.compile(r"^step\[(\w+) bs=(\d+)(?: toks=(\d+))?\]")
_TRAINING = ("Optimizer.step", "Optimizer.zero_grad", "autograd::engine::evaluate_function")
STRAY_PAUSE, STRAY_TIMES = 0.5, 10.0  # of a step's kernels together, and of the kernels set apart
_SGLANG_PHASES = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "TARGET_VERIFY": "decode"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its window (the device's, where there is one), the host's window, and what ran, where the name tells it."""

    index: int
    name: str
    start_s: float
    end_s: float
    host_start_s: float = 0.0
    host_end_s: float = 0.0
    phase: str = ""  # decode | prefill | mixed | train | "": not told
    decode_seqs: int = 0
    prefill_seqs: int = 0
    prefill_tokens: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def named_steps(annotations: Sequence[tuple[str, float, float]]) -> list[Step]:
    """Steps from annotations: the profiler's own if there are any, else the engine's (vLLM's before SGLang's).

    >>> step = named_steps([("execute_context_0(0)_generation_4(4)", 0.0, 1.0)])[0]
    >>> step.phase, step.decode_seqs
    ('decode', 4)
    """
    for pattern in (_PROFILER, _VLLM, _VLLM_OLD, _SGLANG):
        found = sorted((a for a in annotations if pattern.match(a[0])), key=lambda a: a[1])
        steps = [_described(Step(0, name, start, end, start, end)) for name, start, end in found]
        if steps:
            return numbered(until_the_next(steps))
    return []


def trains(name: str) -> bool:
    """Whether a host event runs in training alone: the backward pass, or the optimizer.

    >>> trains("Optimizer.step#AdamW.step"), trains("autograd::engine::evaluate_function: MmBackward0"), trains("aten::mm")
    (True, True, False)
    """
    return name.startswith(_TRAINING)


def trained(steps: Sequence[Step], moments: Sequence[float]) -> list[Step]:
    """Steps that nobody described and in whose host window something of training ran; replays have none, and any moment counts."""
    at = sorted(moments)

    def is_trained(step: Step) -> bool:
        begin, end = (step.host_start_s, step.host_end_s) if step.host_end_s > step.host_start_s else (-math.inf, math.inf)
        return not step.phase and bisect_left(at, end) > bisect_left(at, begin)

    return [replace(s, phase="train") if is_trained(s) else s for s in steps]


def without_strays(
    spans: Sequence[tuple[float, float]], host_s: Callable[[float, float], float] = lambda *_: 0.0
) -> tuple[float, float, int]:
    """From the first start to the last end of what belongs together, and how many are set apart from it.

    Strays stand behind (or, where an engine plans ahead, before) a pause that is long beside the step and far longer than they are.
    ``host_s`` tells how much of a pause was the host's own time, which is a step's too.

    >>> without_strays([(0.0, 4.0), (5.0, 9.0), (500.0, 501.0)])
    (0.0, 9.0, 1)
    """
    ordered = sorted(spans)
    total = sum(end - start for start, end in ordered)
    groups: list[list[tuple[float, float]]] = [[ordered[0]]]
    until, before = ordered[0][1], ordered[0][1] - ordered[0][0]
    for start, end in ordered[1:]:
        least = max(total * STRAY_PAUSE, min(before, total - before) * STRAY_TIMES)
        if start - until > least and start - until - host_s(until, start) > least:
            groups.append([])
        groups[-1].append((start, end))
        until, before = max(until, end), before + end - start
    kept = max(groups, key=lambda g: sum(end - start for start, end in g))
    return kept[0][0], max(end for _, end in kept), len(ordered) - len(kept)


def until_the_next(steps: Sequence[Step]) -> list[Step]:
    """A step lasts until the next starts (sampling and scheduling are part of it), unless the gap is longer than the step."""
    starts = [*(s.start_s for s in steps[1:]), math.inf]
    return [replace(s, end_s=at if at - s.end_s <= s.seconds else s.end_s) for s, at in zip(steps, starts, strict=True)]


def numbered(steps: Iterable[Step]) -> list[Step]:
    return [replace(s, index=i) for i, s in enumerate(s for s in steps if s.phase != "empty")]


def _described(step: Step) -> Step:
    """The step with what its name tells of the batch."""
    if match := _VLLM.match(step.name) or _VLLM_OLD.match(step.name):
        prefills, decodes, tokens = int(match["prefills"]), int(match["decodes"]), _tokens(match.groupdict().get("tokens", ""))
        return replace(step, phase=_phase(prefills, decodes), decode_seqs=decodes, prefill_seqs=prefills, prefill_tokens=tokens)
    if match := _SGLANG.match(step.name):
        phase, size = _SGLANG_PHASES.get(match[1], ""), int(match[2])
        if phase == "decode":
            return replace(step, phase=phase, decode_seqs=size)
        return replace(step, phase=phase, prefill_seqs=size, prefill_tokens=int(match[3] or 0))
    return step


def _phase(prefills: int, decodes: int) -> str:
    if prefills and decodes:
        return "mixed"
    return "prefill" if prefills else "decode" if decodes else "empty"


def _tokens(word: str) -> int:
    """New tokens: ``128``, or the first figure of ``sq8155sk8430…``."""
    found = re.match(r"(?:sq)?(\d+)", word)
    return int(found[1]) if found else 0


def graph_steps(launches: Iterable[tuple[float, tuple[str, ...], float, float]]) -> list[Step]:
    """Steps from replayed graphs: (launch, kernels, start, end) of each; the shortest period that repeats is one step.

    A whole step in one graph has period 1; a graph for each piece of the model has as many as the model has pieces.
    """
    replays = sorted(launches, key=lambda r: r[0])
    period = _period([names for _, names, _, _ in replays])
    if not period:
        return []
    groups = [replays[i : i + period] for i in range(0, len(replays) - period + 1, period)]
    steps = [Step(i, "graph replay", g[0][2], max(r[3] for r in g)) for i, g in enumerate(groups)]
    return numbered(until_the_next(steps))


def _period(signs: Sequence[tuple[str, ...]]) -> int:
    """The smallest period with which a sequence repeats at least once in full; 0 if there is none."""
    borders = [0] * len(signs)  # how much of the beginning ends here (Knuth, Morris and Pratt)
    for at in range(1, len(signs)):
        length = borders[at - 1]
        while length and signs[at] != signs[length]:
            length = borders[length - 1]
        borders[at] = length + (signs[at] == signs[length])
    period = len(signs) - borders[-1] if signs else 0
    return period if period <= len(signs) // 2 else 0
