"""A trace that can be shown to others: who ran what where is left out, what was sent and when stays.

Steps, device intervals and collectives of ``readers.trace`` are written as a profiler's trace that is read to the same: kernels
are "compute 17", collectives have names that tell their operation, times begin at 0, and no host, path, shape or word of a user
is left.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from commtax.files import Json, JsonObject, check_writable, replace_when_written, table
from commtax.runs.evidence.collective_names import UNNAMED
from commtax.runs.traces.profilers.columns import WAIT_KERNELS
from commtax.runs.traces.trace import Collective, Trace, TraceStep
from commtax.statement import Refusal
from commtax.thresholds import counts

COUNT = counts(__name__)
BEFORE_S = 1e-6  # what no step launched is launched so long before the first
TRAINING = "Optimizer.step#anonymous"
"""An event of the host that only training has."""
WORDS = table("runs/audit/anonymous.toml")
LABELS = {"wait": WAIT_KERNELS[0]}  # of kinds that are known by their name alone
NCCL = "ncclDevKernel"
Numbers = dict[str, dict[str, int]]
"""Numbers of names by kind, in the order in which they are met: the same name has the same number on all ranks."""


def write_anonymous(traces: Sequence[Trace], out: Path) -> list[Path]:
    """Write one file for a single rank, a folder of files for several, and return what was written."""
    if not traces:
        raise Refusal("anonymise: only profiler traces can be, and no file is one", "anonymise")
    single = len(traces) == 1 and out.suffix in (".json", ".gz")
    if not single:
        try:
            out.mkdir(exist_ok=True)
        except OSError as error:
            why = error.strerror or "it is no folder"
            raise Refusal(f"anonymise '{out}': several ranks need a folder, which cannot be made ({why})", "anonymise") from None
    ordered = sorted(traces, key=lambda t: t.rank)
    files = [out] if single else [out / f"rank-{t.rank}.json.gz" for t in ordered]
    for file, document in zip(files, anonymous(ordered), strict=True):
        check_writable(file, "anonymise")
        text = json.dumps(document, separators=(",", ":")).encode()
        with replace_when_written(file, "anonymise") as part:  # without a time and a name in its head
            part.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)
    return files


def anonymous(traces: Sequence[Trace]) -> list[JsonObject]:
    """Return the documents of a job's ranks, each over the same steps."""
    windows = [_window(t, traces) for t in traces]
    begins = [t.origin_ns + _ns(w.begin_s) for t, w in zip(traces, windows, strict=True)]
    common = min(begins) if max(begins) - min(begins) < COUNT.day_ns else None
    numbers: Numbers = defaultdict(lambda: defaultdict(count(1).__next__))
    ranks = zip(traces, windows, begins, strict=True)
    return [_Rank(t, w, begin - (begin if common is None else common), numbers).document() for t, w, begin in ranks]


@dataclass(frozen=True, slots=True)
class _Window:
    """What of a trace is written."""

    steps: tuple[TraceStep, ...]
    begin_s: float
    end_s: float


def _window(trace: Trace, traces: Sequence[Trace]) -> _Window:
    """Return the middle steps, with the same numbers on all ranks, or the beginning of a trace without steps."""
    fewest = min(len(t.steps) for t in traces)
    first = max(0, (fewest - COUNT.most_steps) // 2)
    steps = trace.steps[first : first + min(fewest, COUNT.most_steps)]
    if steps:
        return _Window(steps, steps[0].start_s, max(s.end_s for s in steps))
    starts = sorted(trace.timeline.start_s.tolist())
    end = starts[COUNT.most_intervals] if len(starts) > COUNT.most_intervals else trace.timeline.finish_s
    return _Window((), trace.timeline.begin_s, end)


class _Rank:
    """One rank's events, with ``shift_ns``, the moment its window begins on the clock that all ranks share."""

    def __init__(self, trace: Trace, window: _Window, shift_ns: int, numbers: Numbers) -> None:
        self.trace, self.window, self.numbers = trace, window, numbers
        self.before_s = window.begin_s - BEFORE_S  # outside of every step
        self.zero_ns = _ns(self.before_s) - shift_ns
        self.correlation = 0

    def document(self) -> JsonObject:
        trace = self.trace
        events: list[Json] = [*self._steps(), *self._intervals()]
        if trace.training and not any(s.phase == "train" for s in self.window.steps):
            events.append(self._event("cpu_op", TRAINING, self.before_s, self.before_s, 2))
        world: JsonObject = {"backend": "nccl", "world_size": trace.world} if trace.world else {}
        job: JsonObject = {"rank": trace.rank, **world}
        head: JsonObject = {"schemaVersion": 1, "distributedInfo": job}
        if device := trace.device:
            one = {"totalGlobalMem": int(device.memory_bytes), "numSms": device.num_sms}
            head["deviceProperties"] = [{"id": i, **one} for i in range(max(1, device.count))]
        return head | {"traceEvents": events}

    def _event(self, cat: str, name: str, start_s: float, end_s: float, tid: int, args: JsonObject | None = None) -> JsonObject:
        start, end = _ns(start_s), _ns(end_s)
        times = {"ts": _us(start - self.zero_ns), "dur": _us(end - start)}
        return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, **times, "args": args or {}}

    def _steps(self) -> Iterator[JsonObject]:
        """Yield annotations over the steps' windows, each pinned to the device by two marks of no duration."""
        described = any(s.phase not in ("", "train") for s in self.window.steps)
        named = described and all(s.phase not in ("", "train") for s in self.window.steps)
        for number, step in enumerate(self.window.steps, 1):
            prompts, sequences = f"{step.prefill_seqs}({step.prefill_tokens})", f"{step.decode_seqs}({step.decode_seqs})"
            size = step.decode_seqs if step.phase == "decode" else step.prefill_seqs
            if named:  # as vLLM annotates a step: prompts, their tokens, and sequences that decode
                name = f"execute_context_{prompts}_generation_{sequences}"
            elif described:  # as SGLang does, which has modes without a batch too
                name = f"step[{WORDS['modes'].get(step.phase, 'OTHER')} bs={size} toks={step.prefill_tokens}]"
            else:
                name = f"ProfilerStep#{number}"
            yield self._event("user_annotation", name, step.start_s, step.end_s, 1)
            if step.phase == "train":
                yield self._event("cpu_op", TRAINING, step.start_s, step.start_s, 2)
            if self.trace.on_device:
                yield from self._launched(step.start_s, step.start_s, "gpu_memset", "mark", 0, at_s=step.start_s)
                yield from self._launched(step.end_s, step.end_s, "gpu_memset", "mark", 0, at_s=step.start_s)

    def _launched(
        self, start_s: float, end_s: float, cat: str, name: str, stream: int, args: JsonObject | None = None, *, at_s: float
    ) -> Iterator[JsonObject]:
        """Yield a device event after the host's call that launched it at ``at_s``."""
        self.correlation += 1
        launch = "cudaGraphLaunch" if args and args.pop("graph", False) else "cudaLaunchKernel"
        yield self._event("cuda_runtime", launch, at_s, at_s, 1, {"correlation": self.correlation})
        place = {"device": 0, "stream": stream, "correlation": self.correlation}
        yield self._event(cat, name, start_s, end_s, stream, place | (args or {}))

    def _intervals(self) -> Iterator[JsonObject]:
        """Yield what runs inside the window, clipped to its beginning, and the collectives of its steps wherever they run."""
        line, steps = self.trace.timeline, {s.index: s for s in self.window.steps}
        sent = {(_ns(c.start_s), _ns(c.end_s), c.name): c for c in self.trace.collectives}
        columns = zip(line.lane.tolist(), line.start_s.tolist(), line.end_s.tolist(), line.kind.tolist(), line.name, strict=True)
        for lane, began, end, kind, name in columns:
            start, collective = began, sent.get((_ns(began), _ns(end), name))
            if collective is None or collective.step not in steps:
                if start >= self.window.end_s or max(start, end) < self.window.begin_s:
                    continue
                start = max(start, self.window.begin_s)
            yield from self._interval(lane + 1, start, max(start, end), line.kinds[kind], name, collective, steps)

    def _interval(
        self, lane: int, start: float, end: float, kind: str, name: str, sent: Collective | None, steps: dict[int, TraceStep]
    ) -> Iterator[JsonObject]:
        if sent is None:
            label = f"{LABELS.get(kind, kind)} {self.numbers[kind][name]}"
            cat = WORDS["categories"][kind] if self.trace.on_device else "cpu_op"
            yield self._event(cat, label, start, end, lane, {"device": 0, "stream": lane} if self.trace.on_device else None)
            return
        word = sent.op.replace("-", "_")
        label = _kernel_name(sent) if self.trace.on_device else f"gloo:{word}"
        args: JsonObject = {} if sent.op == UNNAMED else {"Collective name": word}
        if sent.nbytes is not None:
            args |= {"In msg nelems": int(sent.nbytes), "Out msg nelems": int(sent.nbytes), "dtype": "Byte"}
        if sent.ranks:
            args["Group size"] = sent.ranks
        if sent.group:
            args["Process Group Name"] = str(self.numbers["group"][sent.group])
        if sent.members:
            args["Process Group Ranks"] = str(list(sent.members))
        if not self.trace.on_device:
            yield self._event("user_annotation", label, start, end, lane, args)
            return
        at = steps[sent.step].start_s if sent.step in steps else self.before_s
        yield from self._launched(start, end, "kernel", label, lane, args | {"graph": sent.graph}, at_s=at)


def _kernel_name(c: Collective) -> str:
    """Return a kernel name that is read back as the same operation by the same algorithm.

    >>> _kernel_name(Collective("all-reduce", None, 8, 0.0, 1.0, "x", algorithm="tree ll128"))
    'ncclDevKernel_AllReduce_TREE_LL128'
    """
    family, spelled = WORDS["spelled"].get(c.algorithm, (NCCL, c.algorithm.upper().replace(" ", "_").replace("-", "_")))
    return "_".join(filter(None, (family, WORDS["operations"].get(c.op, "Generic"), spelled)))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float | int:
    whole, rest = divmod(nanoseconds, 1000)
    return whole if not rest else nanoseconds / 1000
