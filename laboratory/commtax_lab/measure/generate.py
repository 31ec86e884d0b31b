"""Prefill and greedy decode, timed step by step, with what each step sent; what the ranks of a run leave together."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import Tensor

from commtax.units import plural
from commtax_lab.measure.comm import IssuedCollective
from commtax_lab.measure.engine import LiveEngine
from commtax_lab.measure.live_documents import LogitsCheck
from commtax_lab.measure.worker import RankPlace, gather


@dataclass(slots=True)
class GenerationRun:
    """One batch of prompts, answered: seconds of each step, what each sent, and on CPU ranks the bill's lines."""

    prefill_s: float = 0.0
    decode_s: list[float] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    prefill_sent: list[IssuedCollective] = field(default_factory=list)
    prefill_comm_s: list[float] = field(default_factory=list)  # seconds inside each collective, in order
    decode_sent: list[Counter[IssuedCollective]] = field(default_factory=list)
    order: list[IssuedCollective] = field(default_factory=list)  # what a decode step sends, one after the other …
    comm_s: list[list[float]] = field(default_factory=list)  # … and of each step the seconds inside each
    prefill_lines: dict[str, float] = field(default_factory=dict)
    decode_lines: list[dict[str, float]] = field(
        default_factory=list
    )  # of each decode step, time off the core in a line of its own

    def line_medians(self) -> dict[str, float]:
        """Return each line's seconds in the median decode step."""
        names = self.decode_lines[0] if self.decode_lines else ()
        return {name: median(lines.get(name, 0.0) for lines in self.decode_lines) for name in names}

    def figures(self) -> GenerationRun:
        """Return the run without its tensors, as ranks exchange it."""
        return replace(self, tokens=[], logits=[])


class HostWatch:
    """Times steps by this host's clock, and the bill's lines inside them."""

    def __init__(self, engine: LiveEngine) -> None:
        self.engine, self.seconds = engine, list[float]()

    def step(self, lines: dict[str, float], compute: Callable[[], Tensor]) -> Tensor:
        self.engine.watch(lines)
        start = time.perf_counter()
        logits = compute()
        self.seconds.append(time.perf_counter() - start)
        self.engine.watch(None)
        return logits

    def mark_chosen(self) -> None:
        """Mark the end of a step on the host."""

    def steps(self) -> list[float]:
        return self.seconds


class DeviceWatch:
    """Steps are queued without waiting for them, and events on the stream tell when the token of each was chosen."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []
        self.mark_chosen()

    def step(self, _lines: dict[str, float], compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def mark_chosen(self) -> None:
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def steps(self) -> list[float]:
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(self.events)]


def prompts(vocab: int, batch: int, length: int, seed: int, device: torch.device) -> Tensor:
    """Return the same token ids on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=generator).to(device)


def generate(
    engine: LiveEngine, tokens: Tensor, outputs: int, forced: list[Tensor] | None = None, keep: bool = False
) -> GenerationRun:
    """Answer prompts with ``outputs`` tokens each: one prefill step, then ``outputs - 1`` decode steps.

    ``forced`` are the tokens to go on with instead of the engine's own choice, so that two runs see the same inputs. ``keep``
    keeps every step's logits.
    """
    on_host = engine.device.type != "cuda"
    run, book, watch = GenerationRun(), engine.group.ledger, HostWatch(engine) if on_host else DeviceWatch()
    book.clear()
    logits = watch.step(run.prefill_lines, lambda: engine.prefill(tokens))
    run.prefill_sent, run.prefill_comm_s = book.sent, book.seconds
    for step in range(outputs):
        run.tokens.append(logits.argmax(dim=-1))
        if keep:
            run.logits.append(logits.float().clone())
        watch.mark_chosen()
        if step == outputs - 1:
            break
        book.clear()
        lines: dict[str, float] = {}
        following, position = forced[step] if forced else run.tokens[-1], tokens.shape[1] + step
        logits = watch.step(lines, lambda t=following, p=position: engine.decode(t, p))  # type: ignore[misc]
        run.decode_sent.append(Counter(book.sent))
        run.order = book.sent
        if on_host:
            run.decode_lines.append(lines)
            run.comm_s.append(book.seconds)
    run.prefill_s, *run.decode_s = watch.steps()
    book.clear()
    return run


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank: what it holds, and its runs. ``replicas`` are its runs of the whole model beside the others'."""

    rank: int
    host: str
    cores: tuple[int, ...]
    weights_bytes: int
    replicated: dict[str, int]
    kv_bytes: int
    kv_blocks: int
    block_size: int
    runs: list[GenerationRun]
    replicas: list[GenerationRun]


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """All ranks of one job. ``tp1`` are rank 0's runs of the whole model alone, where somebody asked."""

    ranks: list[RankResult]
    load: tuple[float, float, float]
    torch: str
    device: str
    tp1: list[GenerationRun] = field(default_factory=list)
    tp1_bytes: int = 0
    logits: LogitsCheck | None = None


def gather_results(
    where: RankPlace, engine: LiveEngine, runs: Sequence[GenerationRun], replicas: Sequence[GenerationRun] = ()
) -> MeasuredJob:
    """Gather every rank's part on every rank."""
    w, cache = engine.weights, engine.cache
    resident = (w.nbytes, w.replicated, cache.nbytes, cache.num_blocks, cache.block_size)
    figures = ([run.figures() for run in kind] for kind in (runs, replicas))
    parts = gather(RankResult(where.rank, os.uname().nodename, where.cores, *resident, *figures))
    device = (
        f"{plural(torch.get_num_threads(), 'CPU thread')} per rank" if engine.device.type == "cpu" else torch.cuda.get_device_name()
    )
    return MeasuredJob(parts, os.getloadavg(), torch.__version__, device)


@dataclass(frozen=True, slots=True)
class RunOfAllRanks:
    """The runs of all ranks at the same time: a step ends when its last rank does, and the wire is what the least waiting saw."""

    runs: tuple[GenerationRun, ...]

    @property
    def prefill_s(self) -> float:
        return max(run.prefill_s for run in self.runs)

    @property
    def decode_s(self) -> list[float]:
        return [max(times) for times in zip(*(run.decode_s for run in self.runs), strict=True)]

    @property
    def inside_s(self) -> np.ndarray:
        """Seconds inside collectives, (ranks, steps, collectives of a step), of size 0 where untimed (CUDA)."""
        return np.array([run.comm_s for run in self.runs])

    @property
    def wire_s(self) -> np.ndarray:
        """The least over ranks, (steps, collectives)."""
        return np.asarray(self.inside_s.min(axis=0))


def turns(parts: Sequence[RankResult]) -> list[RunOfAllRanks]:
    """Return the runs of all ranks, turn by turn."""
    return [RunOfAllRanks(runs) for runs in zip(*(part.runs for part in parts), strict=True)]


def lower_quartile(times: list[float]) -> float:
    """Return the lower quartile: the machine's time when undisturbed, without trusting one lucky run."""
    return sorted(times)[len(times) // 4]
