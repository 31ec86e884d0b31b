"""Logs of training runs: how long each step took, its results, and the program's arguments.

Megatron-LM, Megatron-Core, Megatron-DeepSpeed, GPT-NeoX, NeMo and Megatron-Bridge print a line of ``name: value`` between bars for
every few iterations and their arguments at the start; torchtitan and MaxText a line of ``name: value`` a step; DeepSpeed samples a
second; Composer a figure a line; Lightning (NeMo) a bar with ``name=value``; the Hugging Face trainer a summary. The names are
``training_log.toml``'s.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median

from commtax.files import table
from commtax.spec import AXES, SIZES
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import GiB
from commtax.wordings import lines_with, patterns, short_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)
_PARTS = ("forward", "backward", "fwd", "bwd", "step")  # of a micro-step; all else is inside of these
_TABLE = table("runs/logs/training_log.toml")
_FACTS = {name: (mark, re.compile(pattern)) for name, (mark, pattern) in _TABLE["facts"].items()}
_SCALES = {"milliseconds": 1e-3, "seconds": 1.0, "tera": 1e12, "plain": 1.0, "percent": 1e-2, "gib": float(GiB)}
_NAMES: Mapping[str, tuple[str, float]] = {
    name.replace(" ", ""): (figure, _SCALES[kind])  # a line's break may take a space with it
    for kind, figures in _TABLE["figures"].items()
    for figure, names in figures.items()
    for name in names
}
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """One iteration's figures as a log has them, None for what its line lacks. Rates of tokens and FLOPs are per GPU."""

    index: int
    step_s: float | None = None
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    batch: float | None = None  # sequences over all replicas
    samples_per_s: float | None = None  # over all replicas
    skipped: float | None = None
    nan: float | None = None
    at_s: float | None = None  # of the clock


@dataclass(frozen=True, slots=True)
class ProgramTimer:
    """One of the program's timers, an iteration: the quickest and the slowest rank, medians over what was printed."""

    name: str
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The content of one log. ``steps`` are those of its longest run without a restart."""

    program: str  # megatron | bridge | torchtitan | maxtext | composer | lightning | deepspeed | trainer
    steps: tuple[TrainedStep, ...]
    last: int = 0  # the iteration that the run was to end with; 0: unknown
    restarts: int = 0
    arguments: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timers: tuple[ProgramTimer, ...] = ()
    memory_bytes: Mapping[int, float] = field(default_factory=dict)  # the most, by rank
    notes: tuple[Note, ...] = ()


def looks_like(text: str) -> bool:
    """Return whether a text holds the line of a training step."""
    stepped = (SAYS.colour.sub("", line) for line in lines_with(SAYS.stepped, text, COUNT.line_chars))
    return any(_read_step(line) or ("consumed samples:" in line and SAYS.iteration.search(line)) for line in stepped)


def parse(text: str) -> TrainingLog:
    reading = _TrainingReading()
    for line in _lines(text):
        reading.take(line)
    return reading.result()


def _lines(text: str) -> Iterator[str]:
    """Yield lines without colours, rejoined where a terminal or a page broke them."""
    plain = (SAYS.colour.sub("", line) if "\x1b" in line else line for line in short_lines(text, COUNT.line_chars))
    begun, parts = "", 0  # a line of an iteration, joined of so many
    for line in plain:
        if begun and parts < COUNT.most_wrapped and _continues(begun, line):
            # A break after a bar is a space, and one inside a word is nothing.
            begun = f"{begun.rstrip()} {line.lstrip()}" if begun.rstrip().endswith("|") else begun + line
            parts += 1
            continue
        if begun:
            yield begun[: COUNT.line_chars]
        begins = "iteration" in line and SAYS.iteration.search(line) is not None
        begun, parts = (line, 1) if begins else ("", 0)
        if not begins:
            yield line
    if begun:
        yield begun[: COUNT.line_chars]


def _continues(begun: str, line: str) -> bool:
    """Return whether a line continues an iteration's: a name, a value and a bar, or the rest of what was broken off."""
    if "|" not in line or line.startswith("[") or SAYS.others.search(line) or SAYS.iteration.search(line):
        return False
    return not begun.rstrip().endswith("|") or SAYS.goes_on.match(line) is not None


def _read_step(line: str) -> tuple[str, int, int, Figures] | None:
    """Return the program of a step's line, its iteration, the last one, and its figures."""
    if "iteration" in line and (match := SAYS.iteration.search(line)):
        parts = (part.rpartition(": ") for part in (line[: match.start()] + line[match.end() :]).split("|")[:60])
        figures = _figures((name.rpartition("]")[2], value) for name, _, value in parts)
        return ("megatron", int(match[1]), int(match[2]), figures) if figures else None
    if "step" in line and (match := SAYS.titan.search(line)):
        return "torchtitan", int(match[1]), 0, _figures(SAYS.pair.findall(line, match.end()))
    if "SamplesPerSec=" in line and (match := SAYS.deepspeed.search(line)):
        now, allocated = SAYS.current.search(line), SAYS.allocated.search(line)
        figures = {"samples_per_s": _float((now or match)[1 if now else 2])}
        return "deepspeed", int(match[1]), 0, figures | ({"memory_bytes": _float(allocated[1]) * GiB} if allocated else {})
    if "_microstep: " in line and (match := SAYS.clocks.search(line)):
        clocks = {name: _float(ms) * 1e-3 for name, ms in SAYS.micro.findall(line, match.end())}
        return "deepspeed clocks", 0, 0, {"step_s": sum(clocks.get(name, 0.0) for name in _PARTS)}
    if "Step Time" in line and (match := SAYS.bridge.search(line)):
        return "bridge", 0, 0, {"step_s": _float(match[1]), "flops_per_s": _float(match[2]) * 1e12}
    if "completed step: " in line and (match := SAYS.maxtext.search(line)):
        return "maxtext", int(match[1]), 0, _figures([p.partition(": ")[::2] for p in line[match.end() :].split(", ")[:60]])
    if "Epoch " in line and "=" in line and (match := SAYS.bar.search(line)):
        at, each = SAYS.global_.search(match[3]), SAYS.each.search(match[3])
        figures = _figures([part.partition("=")[::2] for part in match[3].split(", ")[:60]])
        if each and (rate := _float(each[1])):
            figures.setdefault("step_s", rate if each[2] == "s/it" else 1 / rate)
        return ("lightning", int(_float(at[1])) if at else int(match[1]), int(match[2]), figures) if "step_s" in figures else None
    if "[batch=" in line and (match := SAYS.batch.match(line)):
        return "composer", int(match[1]), int(match[2] or 0), {}
    if "train_" in line and "train_runtime" in line:
        figures = _figures(SAYS.summary.findall(line))
        return ("trainer", 0, 0, figures) if figures else None
    return None


def _figures(pairs: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Figures:
    """Return figures under our names. Of ``13372.8/13364.7`` (this iteration and the mean) the first counts."""
    figures: Figures = {}
    for name, value in pairs:
        figure, scale = _NAMES.get(name.lower().replace(" ", "").strip(), ("", 0.0))
        match = SAYS.value.match(value) if scale else None
        if match and figure not in figures and 0 <= (number := _float(match[1]) * scale) <= LEVEL.most_figure:
            figures[figure] = number
    return figures


def _float(text: str) -> float:
    """Return a number as programs write it.

    >>> _float("5,762"), _float("1.5E-02"), _float("1.2.3")
    (5762.0, 0.015, 0.0)
    """
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


class _TrainingReading:
    def __init__(self) -> None:
        self.runs: dict[str, list[dict[int, TrainedStep]]] = {}
        self.newest: dict[str, int] = {}
        self.last = self.kept = self.dropped = 0
        self.arguments: dict[str, str] = {}
        self.facts: dict[str, tuple[str, ...]] = {}
        self.times: dict[str, list[tuple[float, float]]] = {}
        self.memory: dict[int, float] = {}
        self.open: Figures | None = None  # a batch of Composer's whose figures follow, one a line
        self.ahead: Figures = {}
        self.number = 0

    def take(self, line: str) -> None:
        if self.open is not None and (match := SAYS.composer.match(line)):
            self.open.update(_figures([(match[1], match[2])]))
            return
        self._close()
        if step := _read_step(line):
            program, number, last, figures = step
            self.last = max(self.last, last)
            if program == "composer":
                self.open, self.number = figures, number
                return
            if program in _TABLE["unnumbered"]:
                number = 1 + sum(map(len, self.runs.get(program, [])))
            if program == "bridge":  # which stands before the line of its iteration
                self.ahead = dict(figures)
            elif program == "deepspeed clocks":
                self._timed([(*part.rpartition(": ")[::2], "") for part in line.split("|")[1:200]])
            elif program == "megatron":
                figures |= {n: f for n, f in self.ahead.items() if n not in figures}
                self.ahead = {}
            self._keep(program, number, figures, None if "step_s" in figures else _clock(line))
            return
        if " .." in line:
            if times := SAYS.times.match(line):
                self._timed([(times[1], times[3], times[4])])
            elif (argument := SAYS.argument.match(line)) and len(self.arguments) < COUNT.most_names:
                self.arguments.setdefault(argument[1], SAYS.whence.sub("", argument[3].strip()))
        elif "time (ms) |" in line:
            self._timed([(*part.rpartition(": ")[::2], "") for part in line.split("|")[1:200]])
        elif "memory (MB)" in line and (memory := SAYS.memory.search(line)) and len(self.memory) < COUNT.most_names:
            rank = int(memory[1])
            self.memory[rank] = max(self.memory.get(rank, 0.0), _float(memory[2]) * 2**20)
        for name, (mark, pattern) in _FACTS.items():
            if mark in line and name not in self.facts and (fact := pattern.search(line)):
                self.facts[name] = fact.groups()

    def _close(self) -> None:
        if self.open is not None:
            self._keep("composer", self.number, self.open, None)
            self.open = None

    def _keep(self, program: str, number: int, figures: Figures, at_s: float | None) -> None:
        """Keep a step. Several ranks may print it, and a run that starts again counts anew."""
        runs = self.runs.setdefault(program, [{}])
        if number < self.newest.get(program, number) - 1:
            runs.append({})
            self.newest[program] = number
        if number in runs[-1]:
            return
        if self.kept >= COUNT.most_steps:
            self.dropped += 1
            return
        self.kept += 1
        self.newest[program] = max(number, self.newest.get(program, number))
        if (rate := figures.pop("steps_per_s", 0.0)) > 0:
            figures.setdefault("step_s", 1 / rate)
        runs[-1][number] = TrainedStep(number, at_s=at_s, **figures)

    def _timed(self, clocks: list[tuple[str, str, str]]) -> None:
        for name, low, high in clocks:
            kept = self.times.setdefault(name.strip(), []) if len(self.times) < COUNT.most_names else None
            if kept is not None and len(kept) < COUNT.most_times and low:
                kept.append((_float(low) * 1e-3, _float(high or low) * 1e-3))

    def result(self) -> TrainingLog:
        """Return the log. Where several programs printed lines, the one with the most about a step counts."""
        self._close()
        program = next((p for p in _TABLE["programs"] if p in self.runs), "")
        runs = self.runs.get(program, [{}])
        steps = max(runs, key=len)
        memory = dict(self.memory)
        if program != "deepspeed" and (most := [s.memory_bytes for r in self.runs.get("deepspeed", []) for s in r.values()]):
            memory.setdefault(0, max(m or 0.0 for m in most))
        kept = f"the first {COUNT.most_steps:,} steps are told"
        timed = [(name, clock) for name, clock in self.times.items() if clock]
        timers = [ProgramTimer(name, *(median(side) for side in zip(*clock, strict=True))) for name, clock in timed]
        timed_steps = _with_seconds([steps[n] for n in sorted(steps)], program, self.facts)
        notes = (Note("partial", f"{kept}; {self.dropped:,} more were left out"),) if self.dropped else ()
        read = self.arguments, self.facts, tuple(timers), memory
        return TrainingLog(program, timed_steps, self.last, len(runs) - 1, *read, notes)


def _clock(line: str) -> float | None:
    """Return the seconds of a line's clock, in the log's time zone."""
    match = SAYS.when.search(line[:200])
    if not match:
        return None
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]}")
    except ValueError:
        return None
    return moment.timestamp() + _float(f"0.{match[3] or 0}")


def _with_seconds(steps: list[TrainedStep], program: str, facts: Mapping[str, tuple[str, ...]]) -> tuple[TrainedStep, ...]:
    """Fill in the seconds of steps where a program prints none, by rates and batches, else by the clock between lines."""
    local, over_all, length = (_float(word) for word in facts.get("batch", ("0", "0", "0")))
    sizes = mesh(facts)
    *inner, dp = (sizes.get(axis, 0) for axis in AXES)
    tokens = (over_all / dp if dp else local) * length  # of a replica
    ranks = math.prod(size or 1 for size in inner)  # that share them: torchtitan divides by these
    paced: list[TrainedStep] = []
    for before, step in zip([None, *steps], steps, strict=False):
        if step.step_s is not None:
            paced.append(step)
        elif program == "torchtitan" and tokens and step.tokens_per_s:
            paced.append(replace(step, step_s=tokens / (step.tokens_per_s * ranks), batch=over_all))
        elif before and before.at_s is not None and step.at_s is not None and step.at_s > before.at_s:
            paced.append(replace(step, step_s=(step.at_s - before.at_s) / (step.index - before.index)))
        else:
            paced.append(step)
    return tuple(paced)


def mesh(facts: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the size of each torchtitan mesh axis, with replicas and shards multiplied into ``dp``.

    >>> mesh({"mesh": ("'dp', 'tp'", "2, 4")})
    {'tp': 4, 'dp': 2}
    """
    if dimensions := facts.get("mesh"):
        words = list(zip(dimensions[0].split(","), dimensions[1].split(","), strict=False))
    else:
        words = [w.partition("=")[::2] for w in facts.get("axes", ("",))[0].split(", ")]
    pairs = [(name.strip(" '\""), int(size)) for name, size in words if re.fullmatch(r"\s*+0*+[1-9]\d{0,8}\s*+", size, re.A)]
    sizes: dict[str, int] = {name: size for name, size in pairs if name in SIZES and name != "dp"}
    copies = [size for name, size in pairs if name in ("dp", "dp_shard", "dp_replicate")]
    for size in copies:
        sizes["dp"] = sizes.get("dp", 1) * size
    return sizes
