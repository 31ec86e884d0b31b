"""The small engine serving requests that come at random: this machine's steps are timed, then it serves for real.

Steps are timed before the first run and after each, so that what is predicted from them and what is served see the same machine. One
launch of ranks does it all; rank 0's clock times, as it also says which requests have come.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commtax.measure import launch
from commtax.measure.generate import prompts
from commtax.measure.job import Job
from commtax.measure.worker import Place, gather, report
from commtax.spec.stream import Stream
from commtax.statement import Refusal
from commtax.study.serving import Request, Server, requests, serve
from commtax.study.surface import Step, Surface, Timings, grid, surface, together

TARGET = "commtax.study.live:measure_service"
ROUNDS = 3  # of all steps, in each sweep
LIGHT, BUSY = 0.3, 0.7  # of what the machine can serve: the rates where nobody names them
MOST_SLOTS, MOST_PROMPTS = 1_024, 10_000
Array = Any


@dataclass(frozen=True, slots=True)
class Service:
    """What is to be served: requests of the job's lengths, at each of the rates in turn."""

    job: Job
    rates: tuple[float, ...] = ()  # requests a second; none: a light and a busy one
    num_prompts: int = 60
    slots: int = 16

    def settled(self) -> Service:
        """With the job's own defaults, and every mistake that can be seen beforehand refused."""
        for rate in self.rates:
            if not (math.isfinite(rate) and rate > 0):
                raise Refusal(f"request_rate={rate:g}: requests a second above 0 are needed, such as 2", "request_rate")
        for name, value, most in (("num_prompts", self.num_prompts, MOST_PROMPTS), ("max_num_seqs", self.slots, MOST_SLOTS)):
            if not 1 <= value <= most:
                raise Refusal(f"{name}={value}: a whole number from 1 to {most:,} is needed", name)
        return Service(self.job.settled(), self.rates, self.num_prompts, self.slots)


@dataclass(frozen=True, slots=True)
class Served:
    """A run, one column a fact of each request; ``gaps_s`` are all times between two tokens of a request."""

    rate_per_s: float
    stream: Stream
    begun_s: Array
    first_s: Array
    last_s: Array
    gaps_s: Array


@dataclass(frozen=True, slots=True)
class Seen:
    """What the ranks saw: every sweep of steps, every run."""

    sweeps: list[Timings]
    runs: list[Served]
    load: tuple[float, float, float]

    @property
    def surface(self) -> Surface:
        return surface(together(self.sweeps))


def run(service: Service, **launching: Any) -> Seen:
    """Start ranks on this machine and serve; the rest is as ``launch.run`` takes it."""
    seen: Seen = launch.run(TARGET, service, service.job.tp, device=service.job.device, **launching)
    return seen


def stages(service: Service) -> int:
    """How often the ranks tell that they got further."""
    return 1 + 2 * (len(service.rates) or 2)


def offered(service: Service, rate_per_s: float) -> Stream:
    """Requests of the lengths asked for, their gaps exponential: a Poisson process, the same from the same seed."""
    count, job = service.num_prompts, service.job
    gaps = np.random.default_rng(job.seed).exponential(1 / rate_per_s, count)
    lengths = (np.full(count, n, np.int64) for n in (job.input_len, job.output_len))
    return Stream(np.cumsum(gaps) - gaps[0], *lengths)


def rates(service: Service, timed: Surface) -> tuple[float, ...]:
    """Those asked for, else shares of what a server with all slots taken answers."""
    job = service.job
    most_per_s = 1 / timed.seconds_of_request(job.input_len, job.output_len, service.slots)
    return service.rates or (LIGHT * most_per_s, BUSY * most_per_s)


def measure_service(where: Place, service: Service) -> Seen:
    """One rank: weights once, then sweeps of steps and runs in turn."""
    job, a = service.job, service.job.arch()
    weights, group = job.load(a, where, where.device(job.device)), job.group(where)
    server = Server(a, weights, group, service.slots, job.input_len + job.output_len + 1)
    steps = grid([(job.input_len, job.output_len)], service.slots)
    _sweep(server, steps, job.output_len // 2, 1)  # first touches
    sweeps, runs = [_sweep(server, steps, job.output_len // 2)], list[Served]()
    for rate in rates(service, surface(sweeps[0])):
        runs.append(_served(server, offered(service, rate), rate, job.seed))
        sweeps.append(_sweep(server, steps, job.output_len // 2))
    return Seen(sweeps, runs, os.getloadavg())


def _sweep(server: Server, steps: Sequence[Step], spread: int, rounds: int = ROUNDS) -> Timings:
    """All steps, round by round, so that a disturbance of a moment spoils one timing of several steps and not all of one."""
    timings: dict[Step, list[float]] = {step: [] for step in steps}
    for _ in range(rounds):
        for step in steps:
            timings[step].append(_timed(server, step, spread))
    report("steps")
    by_rank_0: Timings = gather(timings)[0]
    return by_rank_0


def _timed(server: Server, step: Step, spread: int) -> float:
    """Seconds of one step, its token on the host; sequences that decode together differ in length by up to ``spread`` either way."""
    if not step.decoding:
        tokens = prompts(server.arch.model.vocab, 1, step.tokens, 0, server.device)
        begin = time.perf_counter()
        server.start(0, tokens)
        return time.perf_counter() - begin
    around = np.linspace(step.tokens - spread, step.tokens + spread, step.decoding) if step.decoding > 1 else [step.tokens]
    positions = [int(n) for n in np.clip(around, 0, server.cache.capacity - 1)]
    begin = time.perf_counter()
    server.step([0] * step.decoding, positions)
    return time.perf_counter() - begin


def _served(server: Server, stream: Stream, rate_per_s: float, seed: int) -> Served:
    sizes = list(zip(stream.input_len.tolist(), stream.output_len.tolist(), strict=True))
    queue = requests(server, sizes, stream.arrival_s.tolist(), seed)
    serve(server, queue)
    server.group.ledger.clear()
    report("run")
    return _columns(queue, stream, rate_per_s)


def _columns(queue: Sequence[Request], stream: Stream, rate_per_s: float) -> Served:
    gaps = np.concatenate([np.diff(r.times_s) for r in queue])
    begun, first, last = (np.array(x) for x in zip(*((r.begun_s, r.times_s[0], r.times_s[-1]) for r in queue), strict=True))
    return Served(rate_per_s, stream, begun, first, last, gaps)
