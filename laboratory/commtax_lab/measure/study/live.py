"""The small engine serving requests that come at random: this machine's steps are timed, then it serves for real.

Steps are timed before the first run and after each, so that what is predicted from them and what is served see the same machine.
One launch of ranks does it all; rank 0's clock times, as it also says which requests have come.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from commtax.sim.streams import draw_stream
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Refusal
from commtax_lab.measure import launch
from commtax_lab.measure.generate import prompts
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.study.small_engine_serving import BatchingEngine, Request, TimedStep, requests, serve
from commtax_lab.measure.study.surface import SurfacePoint, Timings, grid, peak_rate, surface
from commtax_lab.measure.worker import RankPlace, gather, report

TARGET = "commtax_lab.measure.study.live:measure_service"
ROUNDS = 5  # of all steps, in each sweep
LIGHT, BUSY = 0.3, 0.7  # of what the machine can serve: the rates where nobody names them
MOST_SLOTS, MOST_PROMPTS = 1_024, 10_000
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Service:
    """What is to be served, at each of the rates in turn."""

    job: LiveJob
    inputs: Lengths
    outputs: Lengths
    rates: tuple[float, ...] = ()  # requests a second; none: a light and a busy one
    num_prompts: int = 60
    slots: int = 16  # requests that run at once

    def settle(self) -> Service:
        """Fill in what depends on the machine, and refuse every mistake that can be seen beforehand."""
        for rate in self.rates:
            if not (math.isfinite(rate) and rate > 0):
                raise Refusal(f"request_rate={rate:g}: requests a second above 0 are needed, such as 2", "request_rate")
        for name, value, most in (("num_prompts", self.num_prompts, MOST_PROMPTS), ("max_num_seqs", self.slots, MOST_SLOTS)):
            if not 1 <= value <= most:
                raise Refusal(f"{name}={value}: a whole number from 1 to {most:,} is needed", name)
        if self.job.seed < 0:
            raise Refusal(f"seed={self.job.seed}: a whole number of at least 0 is needed", "seed")
        settled = replace(self, job=self.job.settle())
        longest, allowed = settled.longest, settled.job.arch().model.max_len
        if longest > allowed:
            raise Refusal(f"input_len, output_len: {longest:,} tokens together, the model has {allowed:,} positions", "input_len")
        return settled

    def stream(self, rate_per_s: float) -> RequestStream:
        """Draw the requests of a Poisson process, the same from one seed at any rate."""
        return draw_stream(rate=rate_per_s, inputs=self.inputs, outputs=self.outputs, count=self.num_prompts, seed=self.job.seed)

    @property
    def longest(self) -> int:
        """Tokens of a request at most, its answer's included."""
        lengths = self.stream(1.0)
        return int(np.max(lengths.input_len + lengths.output_len))

    @property
    def steps(self) -> list[SurfacePoint]:
        """Those to time."""
        inputs = self.stream(1.0).input_len
        return grid(int(inputs.min()), int(inputs.max()), self.longest, self.slots)


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """One run, one column a fact of each request."""

    stream: RequestStream
    begun_s: Array
    first_s: Array
    last_s: Array
    steps: Sequence[TimedStep] = ()  # that were made, where they were looked at


@dataclass(frozen=True, slots=True)
class LiveMeasurements:
    """What the ranks saw: runs at their rates, and sweeps of steps before the first and after each."""

    rates: tuple[float, ...]
    runs: list[ServedRequests]
    sweeps: list[Timings]
    load: tuple[float, float, float]


def run(service: Service, **launching: Unpack[launch.Launching]) -> LiveMeasurements:
    """Start ranks on this machine and serve. The rest is as ``launch.run`` takes it."""
    seen: LiveMeasurements = launch.run(TARGET, service, service.job.tp, device=service.job.device, **launching)
    return seen


def stages(service: Service) -> int:
    """Count the progress reports of the ranks."""
    return 2 * (len(service.rates) or 2) + 2


def measure_service(where: RankPlace, service: Service) -> LiveMeasurements:
    """Load weights once on a rank, then alternate sweeps of steps and runs."""
    job, a = service.job, service.job.arch()
    weights, group = job.load(a, where, where.device(job.device)), job.group(where)
    server = BatchingEngine(a, weights, group, service.slots, service.longest + 1)
    steps, spread = service.steps, round(service.outputs.mean / 2)
    _sweep(server, steps, spread, 1)  # first touches
    sweeps, runs = [_sweep(server, steps, spread)], list[ServedRequests]()
    rates = service.rates or _usual_rates(service, sweeps[0])
    for rate in rates:
        runs.append(_serve_stream(server, service.stream(rate), job.seed))
        sweeps.append(_sweep(server, steps, spread))
    return LiveMeasurements(rates, runs, sweeps, os.getloadavg())


def _usual_rates(service: Service, timings: Timings) -> tuple[float, ...]:
    """Return shares of the rate that a server with all slots taken answers."""
    most = peak_rate(surface(timings), service.inputs.mean, service.outputs.mean, service.slots)
    return LIGHT * most, BUSY * most


def _sweep(server: BatchingEngine, steps: Sequence[SurfacePoint], spread: int, rounds: int = ROUNDS) -> Timings:
    """Measure all steps round by round, so that a disturbance spoils one timing of several steps and not all of one."""
    timings: dict[SurfacePoint, list[float]] = {step: [] for step in steps}
    for _ in range(rounds):
        for step in steps:
            timings[step].append(_time_step(server, step, spread))
    server.group.ledger.clear()
    report("steps")
    by_rank_0: Timings = gather(timings)[0]
    return by_rank_0


def _time_step(server: BatchingEngine, step: SurfacePoint, spread: int) -> float:
    """Return seconds until a step's tokens are on the host. Sequences lie up to ``spread`` tokens to either side."""
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


def _serve_stream(server: BatchingEngine, stream: RequestStream, seed: int) -> ServedRequests:
    sizes = list(zip(stream.input_len.tolist(), stream.output_len.tolist(), strict=True))
    queue = requests(server, sizes, stream.arrival_s.tolist(), seed)
    steps: list[TimedStep] = []
    serve(server, queue, steps)
    server.group.ledger.clear()
    report("run")
    return _columns(queue, stream, steps)


def _columns(queue: Sequence[Request], stream: RequestStream, steps: Sequence[TimedStep]) -> ServedRequests:
    facts = ((r.begun_s, r.times_s[0], r.times_s[-1]) for r in queue)
    begun, first, last = (np.array(column) for column in zip(*facts, strict=True))
    return ServedRequests(stream, begun, first, last, steps)
