"""Serving with the small engine: requests come at their times, join the batch when there is a slot, and leave when answered.

One step is either one whole prompt or one token of every running request, the oldest waiting prompt first. Which requests have come
is rank 0's clock to say; everything else follows from it on every rank alike.
"""

# mypy: disallow-untyped-decorators=False

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from commtax.runs.results.bench_record import BenchmarkRun
from commtax_lab.measure.arch import Arch
from commtax_lab.measure.comm import RankGroup
from commtax_lab.measure.engine import Blocks, LiveEngine
from commtax_lab.measure.generate import prompts
from commtax_lab.measure.weights import RankWeights


class Slots(Blocks):
    """A pool whose rows ``first`` to ``first + rows`` are worked on."""

    first, rows = 0, 1

    def slots(self, positions: Tensor) -> Tensor:
        return self._slots[self.first :].gather(1, positions).reshape(-1)

    def _rows(self, pool: Tensor) -> Tensor:
        return pool.view(self.kv_heads, self.batch, self.capacity, self.head_dim)

    def _read(self, pool: Tensor, length: int) -> Tensor:
        return self._rows(pool)[:, self.first : self.first + self.rows, :length].reshape(-1, length, self.head_dim)

    def move(self, source: int, to: int) -> None:
        """Give a row's blocks to another sequence's row."""
        for pool in map(self._rows, (*self.keys, *self.values)):
            pool[:, to] = pool[:, source]


class BatchingEngine(LiveEngine):
    """An engine whose sequences have positions of their own. Running ones lie in the first rows."""

    def __init__(self, a: Arch, weights: RankWeights, group: RankGroup, slots: int, length: int) -> None:
        super().__init__(a, weights, group, 1, length)
        self.limit = slots
        head_dim = a.model.attention.head_dim
        self.cache = Slots(a.model.num_layers, self.kv_heads, head_dim, slots, length, weights.embed)

    def start(self, row: int, tokens: Tensor) -> int:
        """Compute a prompt, (1, length) token ids, into a row, and return its first token."""
        self._window(row, 1)
        return int(self.prefill(tokens).argmax(dim=-1).item())

    @torch.inference_mode()
    def step(self, tokens: list[int], positions: list[int]) -> list[int]:
        """Decode one token for each of the first rows. What lies behind each sequence's end is hidden."""
        rows, length = len(tokens), max(positions) + 1
        self._window(0, rows)
        at = torch.tensor(positions, device=self.device).view(rows, 1)
        hidden = self._positions[:length] > at
        mask = self._hide_scores(hidden).repeat(self.kv_heads, 1).unsqueeze(1) if bool(hidden.any()) else None
        logits = self._forward(torch.tensor(tokens, device=self.device).view(rows, 1), at, length, mask)
        return list(logits.argmax(dim=-1).tolist())

    def _window(self, first: int, rows: int) -> None:
        self.batch = rows
        self.cache.first, self.cache.rows = first, rows  # type: ignore[attr-defined]


@dataclass(slots=True)
class Request:
    """One request: what it asks for, when it came, when its prompt was begun, and when each of its tokens was there."""

    arrived_s: float
    prompt: Tensor
    outputs: int
    begun_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    last: int = 0

    @property
    def position(self) -> int:
        """Where the newest token goes."""
        return int(self.prompt.shape[1]) + len(self.times_s) - 1


class TimedStep(NamedTuple):
    """A step that was made: its decoding sequences (0 for a prefill) and their cached tokens, or the prompt's."""

    decoding: int
    tokens: int
    seconds: float


def requests(server: BatchingEngine, sizes: Sequence[tuple[int, int]], arrivals: Sequence[float], seed: int = 0) -> list[Request]:
    """Draw random prompts of the given sizes, the same on every rank."""
    vocab = server.arch.model.vocab
    pairs = enumerate(zip(sizes, arrivals, strict=True))
    return [Request(at, prompts(vocab, 1, n, seed + i, server.device), outputs) for i, ((n, outputs), at) in pairs]


def serve(
    server: BatchingEngine,
    queue: list[Request],
    made: list[TimedStep] | None = None,
    clients: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Answer all requests, pass every step to ``made``, and return the seconds from first arrival to last token.

    Requests come at their times; or ``clients`` send the first ones together, and each its next when it has its answer.
    """
    running: list[Request] = []
    begin, come, done, sent = clock(), 0, 0, clients
    while done < len(queue):
        due = min(sent, len(queue)) if clients else _count_arrived(server.group, queue, come, bool(running), begin)
        sent = clients + done  # what is sent on an answer finds the next step begun, as it would over a network
        if come < due and len(running) < server.limit:
            request = queue[come]
            come += 1
            request.begun_s = clock() - begin
            request.last = server.start(len(running), request.prompt)
            running.append(request)
            request.times_s.append(clock() - begin)
            if made is not None:
                made.append(TimedStep(0, int(request.prompt.shape[1]), request.times_s[0] - request.begun_s))
        elif running:
            began, positions = clock() - begin, [r.position for r in running]
            chosen = server.step([r.last for r in running], positions)
            now = clock() - begin
            for request, token in zip(running, chosen, strict=True):
                request.last = token
                request.times_s.append(now)
            if made is not None:
                made.append(TimedStep(len(running), sum(positions), now - began))
        left = _leave(server, running)
        if clients:
            for request in queue[clients + done : clients + done + left]:
                request.arrived_s = clock() - begin
        done += left
    return clock() - begin


def _count_arrived(group: RankGroup, queue: list[Request], come: int, busy: bool, begin: float) -> int:
    """Count the requests that have come by rank 0's clock. With nothing to do, wait for the next."""
    count = torch.zeros(1, dtype=torch.int64)
    if group.rank == 0:
        if not busy and come < len(queue):
            time.sleep(max(0.0, queue[come].arrived_s - (time.perf_counter() - begin)))
        now = time.perf_counter() - begin
        count[0] = sum(request.arrived_s <= now for request in queue)
    if group.size > 1:
        dist.broadcast(count, src=0)
    return int(count[0])


def _leave(server: BatchingEngine, running: list[Request]) -> int:
    """Remove answered requests, move the last row into each free one, and return how many left."""
    left = 0
    for row in reversed(range(len(running))):
        if len(running[row].times_s) >= running[row].outputs:
            last = len(running) - 1
            if row != last:
                server.cache.move(last, row)  # type: ignore[attr-defined]
                running[row] = running[last]
            running.pop()
            left += 1
    return left


def result(queue: list[Request], duration_s: float, tp: int, rate_per_s: float) -> BenchmarkRun:
    """Return the run as a serving benchmark's result, so that one reader's record holds both."""
    gaps = [[b - a for a, b in pairwise(r.times_s)] for r in queue]
    times = {
        "ttft": [r.times_s[0] - r.arrived_s for r in queue],
        "tpot": [fmean(g) for g in gaps if g],
        "itl": [x for g in gaps for x in g],
        "e2el": [r.times_s[-1] - r.arrived_s for r in queue],
    }
    stats = {
        name: {"mean": fmean(x), "median": median(x), "std": pstdev(x), "p99": float(np.percentile(x, 99))}
        for name, x in times.items()
    }
    inputs, outputs = sum(int(r.prompt.shape[1]) for r in queue), sum(len(r.times_s) for r in queue)
    return BenchmarkRun(
        tool="commtax",
        kind="serve",
        duration_s=duration_s,
        requests=len(queue),
        input_tokens=inputs,
        output_tokens=outputs,
        requests_per_s=len(queue) / duration_s,
        output_tokens_per_s=outputs / duration_s,
        total_tokens_per_s=(inputs + outputs) / duration_s,
        request_rate=rate_per_s,
        stats=stats,
        tp=tp,
    )
