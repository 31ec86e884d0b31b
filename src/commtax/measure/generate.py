"""Prefill and greedy decode, timed step by step, with what each step sent."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
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
    prefill_sent: Counter[Sent] = field(default_factory=Counter)
    decode_sent: list[Counter[Sent]] = field(default_factory=list)
    comm_s: list[list[float]] = field(default_factory=list)  # of each decode step: seconds inside each collective, in order
    order: list[str] = field(default_factory=list)  # … and what these were
    prefill_lines: dict[str, float] = field(default_factory=dict)
    decode_lines: list[dict[str, float]] = field(default_factory=list)  # of each decode step

    def line_medians(self) -> dict[str, float]:
        """Each line's seconds in the median decode step."""
        names = self.decode_lines[0] if self.decode_lines else ()
        return {name: median(lines.get(name, 0.0) for lines in self.decode_lines) for name in names}


def prompts(vocab: int, batch: int, length: int, seed: int, device: Any) -> Any:
    """The same token ids on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=generator).to(device)


def generate(engine: Engine, tokens: Any, outputs: int, forced: list[Any] | None = None, keep: bool = False) -> Run:
    """Answer prompts with ``outputs`` tokens each: one prefill step, then ``outputs - 1`` decode steps.

    ``forced`` are the tokens to go on with instead of the engine's own choice, so that two runs see the same inputs. ``keep``
    keeps every step's logits.
    """
    if engine.device.type == "cuda":
        return _generate_cuda(engine, tokens, outputs, forced, keep)
    run, book = Run(), engine.group.ledger
    logits, run.prefill_s = _step(engine, run.prefill_lines, lambda: engine.prefill(tokens))
    run.prefill_sent = book.counts()
    for step in range(outputs):
        _note(run, logits, keep)
        if step == outputs - 1:
            break
        following = forced[step] if forced else run.tokens[-1]
        position = tokens.shape[1] + step
        book.clear()
        run.decode_lines.append({})
        logits, seconds = _step(engine, run.decode_lines[-1], lambda t=following, p=position: engine.decode(t, p))
        run.decode_s.append(seconds)
        run.decode_sent.append(book.counts())
        run.comm_s.append([left - entered for entered, left in zip(book.entered_s, book.left_s, strict=True)])
        run.order = [sent.what for sent in book.sent]
    book.clear()
    return run


def _step(engine: Engine, lines: dict[str, float], compute: Any) -> tuple[Any, float]:
    clock = Clock(lines)
    engine.watch(clock)
    engine.group.resume()
    start = time.perf_counter()
    clock.start()
    logits = compute()
    seconds = time.perf_counter() - start
    engine.watch(None)
    return logits, seconds


def _note(run: Run, logits: Any, keep: bool) -> None:
    run.tokens.append(logits.argmax(dim=-1))
    if keep:
        run.logits.append(logits.float().clone())


def _generate_cuda(engine: Engine, tokens: Any, outputs: int, forced: list[Any] | None, keep: bool) -> Run:
    """The same on a GPU: steps are queued without waiting for them, and events on the stream tell when each ended."""
    run, book = Run(), engine.group.ledger
    book.clear()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(outputs + 1)]
    events[0].record()
    logits = engine.prefill(tokens)
    run.prefill_sent = book.counts()
    for step in range(outputs):
        _note(run, logits, keep)
        events[step + 1].record()
        if step == outputs - 1:
            break
        book.clear()
        logits = engine.decode(forced[step] if forced else run.tokens[-1], tokens.shape[1] + step)
        run.decode_sent.append(book.counts())
        run.order = [sent.what for sent in book.sent]
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)]
    run.prefill_s, run.decode_s = spans[0], spans[1:]
    book.clear()
    return run
