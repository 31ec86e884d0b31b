"""Events of other profilers in the shape of the PyTorch profiler's, so that one reader makes a trace of them all."""

import re

from commtax.files import Json, JsonObject
from commtax.statement import Note

_TRTLLM = re.compile(r"\[Executor\] _forward_step(?: \d{1,18})?: (\d{1,9}) ctx reqs, (?:(\d{1,9}) ctx tokens, )?(\d{1,9}) gen reqs")
_ITERATION = re.compile(r"(?:iteration|iter|step|train_step|training_step)[ _#:]{0,2}(\d{1,18})", re.I)
Span = tuple[int, int]
UNNUMBERED = Note("unnumbered", "nothing in the file tells its rank")


def microseconds(ns: int) -> str:
    """Microseconds with all digits of the nanoseconds, as text: since 1970 they do not fit in a float.

    >>> microseconds(1712195495527376234), microseconds(-1500)
    ('1712195495527376.234', '-1.500')
    """
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{microseconds(-ns)}"


def device_event(kind: str, name: str, span_ns: Span, device: Json, stream: Json, correlation: Json) -> JsonObject:
    """Something that a GPU ran: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``."""
    args: JsonObject = {"device": device, "stream": stream, "correlation": correlation}
    return _event(kind, name, span_ns, stream, device, args)


def host_event(category: str, name: str, span_ns: Span, thread: Json, **args: Json) -> JsonObject:
    """Something on a thread of the host: ``cuda_runtime``, ``user_annotation`` or ``cpu_op``."""
    return _event(category, name, span_ns, thread, "host", args)


def names_rank(name: str) -> bool:
    """Whether the name of a file tells a rank, as it is read where nothing else does.

    >>> names_rank("report_rank-3.sqlite"), names_rank("report3.sqlite")
    (True, False)
    """
    return bool(re.search(r"rank[-_]?\d", name))


def step_name(name: str) -> str:
    """A range that is a step, as the engines whose steps are known would have named it: TensorRT-LLM's, and plain iterations.

    >>> step_name("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs"), step_name("iteration_7")
    ('execute_context_0(0)_generation_32(32)', 'ProfilerStep#7')
    >>> step_name("forward")
    'forward'
    """
    if match := _TRTLLM.fullmatch(name):
        return f"execute_context_{match[1]}({match[2] or 0})_generation_{match[3]}({match[3]})"
    match = _ITERATION.fullmatch(name)
    return f"ProfilerStep#{match[1]}" if match else name


def launched_unseen(at_ns: int, correlation: Json, name: str) -> JsonObject:
    """Stands for a launch that nobody traced: on a thread of its own, so that it is inside no call."""
    return host_event("cuda_runtime", f"{name} (not traced)", (at_ns, at_ns), "not traced", correlation=correlation)


def _event(category: str, name: str, span_ns: Span, thread: Json, process: Json, args: JsonObject) -> JsonObject:
    start, end = span_ns
    times = {"ts": microseconds(start), "dur": microseconds(max(0, end - start))}
    return {"ph": "X", "cat": category, "name": name, **times, "pid": process, "tid": thread, "args": args}
