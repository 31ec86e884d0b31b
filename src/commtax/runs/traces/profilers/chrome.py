"""Traces in the format of chrome://tracing that are not the PyTorch profiler's: our own, and those that hold nothing we know.

Our own (``simulate --timeline``, ``pipeline --chrome-trace``) have a lane for each engine, stage or rank, and each lane becomes a
trace. A slice that says so holds several steps alike: they share its time evenly.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from commtax.files import OUTPUT_BYTES, FileStream, JsonObject, need_list, need_number, need_object, parse_json
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.trace import KINDS, Trace, TraceStep, timeline_of
from commtax.statement import Note, Refusal
from commtax.thresholds import thresholds
from commtax.timeline import PRODUCER

PHASES = {"decode": "decode", "prompts": "prefill", "both": "mixed"}
TRAINED = ("B", "W", "BW", "F&B")  # parts of a backward pass, in a pipeline
COUNT, LEVEL = thresholds(__name__)
_CATEGORY = re.compile(rb'"cat"\s{0,9}:\s{0,9}"([^"\\]{1,40})"')
_ALIKE = re.compile(r"(\d[\d,]{0,12}) steps?: (?:(\d[\d,]{0,12}) prompt tokens?)?(?: \+ )?(?:(\d[\d,]{0,12}) decodes?)?")
_HEADS = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_OVERLAP = 64  # signs that a category may take


def is_own(head: bytes) -> bool:
    return b'"traceEvents"' in head and f'"producer": "{PRODUCER}"'.encode() in head[:200]


def looks_like(raw: bytes) -> bool:
    """Whether events are in a file: an object with ``traceEvents`` (or with what stands before them), or the list of events."""
    text = raw.decode("utf-16", errors="ignore").encode() if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else raw
    begins = text[:99].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if begins == b"{" and any(key in text[:4096] for key in _HEADS):
        return True
    return b'"traceEvents"' in text or (begins == b"[" and b'"ph"' in text)


def read_own(stream: FileStream) -> list[Trace]:
    """Each lane of a trace of ours."""
    name = stream.path.name
    document = parse_json(stream.whole(OUTPUT_BYTES), f"trace '{name}'")
    try:
        events = [e for e in need_list(need_object(document)["traceEvents"]) if isinstance(e, dict)]
        lanes: dict[object, str] = {e["tid"]: str(need_object(e["args"])["name"]) for e in events if e.get("name") == "thread_name"}
        slices: dict[str, list[JsonObject]] = {lane: [] for lane in lanes.values()}
        for event in events:
            if event.get("ph") == "X":
                slices[lanes[event["tid"]]].append(event)
        found = [_lane_trace(lane, number, of_lane) for number, (lane, of_lane) in enumerate(slices.items()) if of_lane]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        raise Refusal(f"trace '{name}': written by {PRODUCER}, and not as it writes them ({error!r:.80})", "trace") from None
    if not found:
        raise Refusal(f"trace '{name}': written by {PRODUCER}, without a slice", "trace")
    return found


def _lane_trace(lane: str, number: int, slices: Sequence[JsonObject]) -> Trace:
    rows = [(lane, *_span(e), str(e["cat"]) if e["cat"] in KINDS else "compute", str(e["name"])) for e in slices]
    every = (s for e in slices for s in _steps(e))
    steps = [replace(s, index=i) for i, s in enumerate(islice(every, COUNT.most_steps))]
    notes = [Note("simulated", f"'{lane}' of a simulation by {PRODUCER}")]
    if next(every, None):
        notes.append(Note("partial", f"'{lane}' has more than {COUNT.most_steps:,} steps: those are told"))
    own = re.search(r"(?:rank|stage) (\d{1,9})$", lane)
    return Trace(
        rank=int(own[1]) if own and not lane.startswith(("replica", "decode", "prompt")) else number,
        world=0,
        origin_ns=0,
        on_device=True,
        timeline=timeline_of(rows),
        collectives=(),
        steps=tuple(steps),
        issued={},
        training=any(e["cat"] in TRAINED for e in slices),
        notes=tuple(notes),
    )


def _span(event: JsonObject) -> tuple[float, float]:
    start, seconds = need_number(event["ts"]) * 1e-6, need_number(event["dur"]) * 1e-6
    if not (abs(start) < LEVEL.most_s and 0 <= seconds < LEVEL.most_s):
        raise ValueError(f"a slice at {start:g} s of {seconds:g} s")
    return start, start + seconds


def _steps(event: JsonObject) -> Iterator[TraceStep]:
    match = _ALIKE.match(str(event["name"]))
    if not match:
        return
    count, tokens, decodes = (int((part or "0").replace(",", "")) for part in match.groups())
    (start, end), count = _span(event), min(count, COUNT.most_steps)
    phase, each = PHASES.get(str(event["cat"]), ""), (end - start) / max(count, 1)
    for i in range(count):
        window = start + i * each, start + (i + 1) * each
        yield TraceStep(0, str(event["name"]), *window, window, phase, decodes, bool(tokens), tokens)


def read(stream: FileStream) -> list[Trace]:
    """The PyTorch profiler's, of each device one, or a refusal that says what else a trace holds."""
    traces = kineto.read_each(stream)
    if any(found.on_device or len(found.timeline.name) or found.steps or found.collectives for found in traces):
        return traces
    there = sorted(_categories(stream))
    wanted = "kernel, gpu_memcpy, cpu_op or user_annotation, as the PyTorch profiler writes them"
    held = ", ".join(there[:8]) + (" …" if len(there) > 8 else "") if there else "none"
    found = f"expected events of the categories {wanted}; found categories {held}"
    raise Refusal(f"trace '{stream.path.name}': a Chrome trace without device kernels: {found}", "trace")


def _categories(stream: FileStream) -> set[str]:
    found: set[str] = set()
    rest = b""
    for piece in stream.pieces():
        text = rest + piece
        found.update(match[1].decode(errors="replace") for match in _CATEGORY.finditer(text))
        rest = text[-_OVERLAP:]
        if len(found) > 100:
            break
    return found
