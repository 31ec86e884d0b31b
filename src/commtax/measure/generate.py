"""Prefill and greedy decode, timed step by step, with what each step sent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from commtax.measure.comm import Sent
from commtax.measure.engine import Clock, Engine


@dataclass(slots=True)
class Run:
    """One batch of prompts, answered. Seconds of each step; what each step sent; on CPU ranks also the bill's lines."""

    prefill_s: float = 0.0
    decode_s: list[float] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)
    prefill_sent: list[Sent] = field(default_factory=list)
    prefill_comm_s: list[float] = field(default_factory=list)  # seconds inside each collective, in order
    decode_sent: list[Counter[Sent]] = field(default_factory=list)
    order: list[Sent] = field(default_factory=list)  # what a decode step sends, one after the other …
    comm_s: list[list[float]] = field(default_factory=list)  # … and of each step the seconds inside each
    prefill_lines: dict[str, float] = field(default_factory=dict)
    decode_lines: list[dict[str, float]] = field(default_factory=list)  # of each decode step

    def line_medians(self) -> dict[str, float]:
        """Each line's seconds in the median decode step."""
        names = self.decode_lines[0] if self.decode_lines else ()
        return {name: median(lines.get(name, 0.0) for lines in self.decode_lines) for name in names}

    def figures(self) -> Run:
        """Without its tensors: what ranks tell each other."""
        return replace(self, tokens=[], logits=[])


class HostWatch:
    """Times steps by this host's clock, and the bill's lines inside them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, list[float]()

    def step(self, lines: dict[str, float], compute: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        self.engine.watch(Clock(start, lines))
        logits = compute()
        self.seconds.append(time.perf_counter() - start)
        self.engine.watch(None)
        return logits

    def chosen(self) -> None:
        """The host knows when a step ended."""

    def steps(self) -> list[float]:
        return self.seconds


class DeviceWatch:
    """Steps are queued without waiting for them, and events on the stream tell when the token of each was chosen."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.chosen()

    def step(self, _lines: dict[str, float], compute: Callable[[], Any]) -> Any:
        return compute()

    def chosen(self) -> None:
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def steps(self) -> list[float]:
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(self.events)]


def prompts(vocab: int, batch: int, length: int, seed: int, device: Any) -> Any:
    """The same token ids on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=generator).to(device)


def generate(engine: Engine, tokens: Any, outputs: int, forced: list[Any] | None = None, keep: bool = False) -> Run:
    """Answer prompts with ``outputs`` tokens each: one prefill step, then ``outputs - 1`` decode steps.

    ``forced`` are the tokens to go on with instead of the engine's own choice, so that two runs see the same inputs. ``keep``
    keeps every step's logits.
    """
    on_host = engine.device.type != "cuda"
    run, book, watch = Run(), engine.group.ledger, HostWatch(engine) if on_host else DeviceWatch()
    book.clear()
    logits = watch.step(run.prefill_lines, lambda: engine.prefill(tokens))
    run.prefill_sent, run.prefill_comm_s = book.sent, book.seconds()
    for step in range(outputs):
        run.tokens.append(logits.argmax(dim=-1))
        if keep:
            run.logits.append(logits.float().clone())
        watch.chosen()
        if step == outputs - 1:
            break
        book.clear()
        lines: dict[str, float] = {}
        following, position = forced[step] if forced else run.tokens[-1], tokens.shape[1] + step
        logits = watch.step(lines, lambda t=following, p=position: engine.decode(t, p))  # type: ignore[misc]
        run.decode_sent.append(book.counts())
        run.order = book.sent
        if on_host:
            run.decode_lines.append(lines)
            run.comm_s.append(book.seconds())
    run.prefill_s, *run.decode_s = watch.steps()
    book.clear()
    return run
