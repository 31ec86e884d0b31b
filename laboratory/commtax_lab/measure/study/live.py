"""The small engine serving requests that come at random: this machine's steps are timed, then it serves for real.

Steps are timed before the first run and after each, so that what is predicted from them and what is served see the same machine.
One launch of ranks does it all; rank 0's clock times, as it also says which requests have come. For the
prediction the simulator serves the same requests, with steps as long as this machine's were timed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Unpack

import numpy as np

from commtax import catalog
from commtax.cost.surface import Surface
from commtax.sim.serving.book import Rules
from commtax.sim.serving.running import Fleet, Workers
from commtax.sim.serving.running import run as simulated
from commtax.sim.streams import draw_stream
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Refusal
from commtax_lab.measure import launch, machine
from commtax_lab.measure.generate import prompts
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.study.small_engine_serving import BatchingEngine, Request, TimedStep, requests, serve
from commtax_lab.measure.study.study_documents import ServedRun, ServingDocument
from commtax_lab.measure.study.surface import SurfacePoint, Timings, grid, join_timings, peak_rate, surface, sweep_spread
from commtax_lab.measure.worker import RankPlace, gather, report

TARGET = "commtax_lab.measure.study.live:measure_service"
ROUNDS = 5  # of all steps, in each sweep
LIGHT, BUSY = 0.3, 0.7  # of what the machine can serve: the rates where nobody names them
MOST_SLOTS, MOST_PROMPTS = 1_024, 10_000
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Service:
    """A service of requests at each of the rates in turn."""

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
    """Measurements of the ranks: runs at their rates, and sweeps of steps before the first and after each."""

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


STATISTICS = ("mean", "median", "p90", "p99")
PERCENTILES = {"median": 50, "p90": 90, "p99": 99}
METRICS = ("ttft", "tpot", "e2el", "queue")


def rules(service: Service) -> Rules:
    """Return the small engine's scheduling from the catalogue, with a cache of slots as long as the longest request."""
    engine = catalog.engine("builtin")
    block = engine.memory.block_size
    blocks = service.slots * math.ceil((service.longest + 1) / block)
    return Rules.of(engine.serves, service.longest, service.slots, blocks, block)


def simulate_run(service: Service, table: Surface, run: ServedRequests) -> ServedRequests:
    """Simulate a run."""
    book = simulated(run.stream, Fleet(Workers(rules(service), table))).book
    begun, first, last = (np.array(column) for column in (book.started_s, book.first_s, book.done_s))
    return ServedRequests(run.stream, begun, first, last)


def serving_document(service: Service, seen: LiveMeasurements) -> ServingDocument:
    """Return the whole study as one document: steps, and rates measured and predicted in ``vllm bench serve``'s keys."""
    job, tables = service.job, [surface(join_timings(seen.sweeps[i : i + 2])) for i in range(len(seen.runs))]
    whole = join_timings(seen.sweeps)
    return {
        "schema": "commtax.live-serving/1",
        "model": job.model,
        "dtype": job.dtype,
        "impl": job.impl,
        "seed": job.seed,
        "tp_size": job.tp,
        "weights_source": "random" if job.random else "checkpoint",
        "device": machine.core_words(machine.cores_per_rank(job.tp)) if job.device == "cpu" else _gpu(),
        "max_num_seqs": service.slots,
        "most_requests_per_s": peak_rate(surface(whole), service.inputs.mean, service.outputs.mean, service.slots),
        "load": list(seen.load),
        "sweeps_apart": sweep_spread(seen.sweeps),
        "steps": [
            {**step._asdict(), "median_s": median(seconds), "least_s": min(seconds), "most_s": max(seconds)}
            for step, seconds in whole.items()
        ],
        "runs": [_run(service, seen, i, table) for i, table in enumerate(tables)],
        "notes": ["every prediction is made of steps timed just before and just after its run, and of nothing that was served"],
    }


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name())


def _run(service: Service, seen: LiveMeasurements, index: int, table: Surface) -> ServedRun:
    """Return one rate, measured, predicted, and predicted again with steps as long as they were while it served."""
    rate, run = seen.rates[index], seen.runs[index]
    pace = slowdown(table, run)
    measured = figures(rate, run)
    foreseen, paced = (figures(rate, simulate_run(service, steps, run)) for steps in (table, table.scaled(pace)))
    return {
        "request_rate": rate,
        "sweeps_apart": sweep_spread(seen.sweeps[index : index + 2]),
        "steps_over_timed": pace,
        "measured": {"source": "measured", **measured},
        "predicted": {"source": "predicted", **foreseen},
        "errors": _errors(foreseen, measured),
        "errors_at_its_pace": _errors(paced, measured),
    }


def _errors(foreseen: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Return predicted over measured, less one, of all figures above 0."""
    keys = (f"{statistic}_{metric}_ms" for metric in METRICS for statistic in STATISTICS)
    return {key: foreseen[key] / measured[key] - 1 for key in (*keys, "output_throughput") if measured[key] > 0}


def slowdown(table: Surface, run: ServedRequests) -> float:
    """Return the seconds of a run's steps over the table's for the same steps: how much the machine was disturbed.

    What is left of a prediction's error when this is 1 is the scheduler's.
    """
    timed = (table.decoding(n, tokens)[0] if n else table.mixing(0, 0, tokens, 1, 0.0) for n, tokens, _ in run.steps)
    return sum(step.seconds for step in run.steps) / sum(timed)


def figures(rate_per_s: float, run: ServedRequests) -> dict[str, float]:
    """Return a run in ``vllm bench serve``'s keys and ``queue``, which ends when the prompt's step begins.

    TPOT is (E2E - TTFT) / (output - 1), of requests with two tokens or more; times are from the arrival.
    """
    stream, duration_s = run.stream, float(run.last_s.max())
    inputs, outputs = int(stream.input_len.sum()), int(stream.output_len.sum())
    several = stream.output_len > 1
    times = {
        "ttft": run.first_s - stream.arrival_s,
        "tpot": (run.last_s - run.first_s)[several] / (stream.output_len[several] - 1),
        "e2el": run.last_s - stream.arrival_s,
        "queue": run.begun_s - stream.arrival_s,
    }
    return {
        "request_rate": rate_per_s,
        "num_prompts": len(stream),
        "completed": len(stream),
        "duration": duration_s,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(stream) / duration_s,
        "output_throughput": outputs / duration_s,
        "total_token_throughput": (inputs + outputs) / duration_s,
        "max_concurrent_requests": _peak_concurrency(stream.arrival_s, run.last_s),
        **{key: value for metric in METRICS for key, value in _statistics(metric, times[metric]).items()},
    }


def _statistics(metric: str, times_s: Array) -> dict[str, float]:
    """Return mean and percentiles in milliseconds, nothing where no request has the metric."""
    if not len(times_s):
        return {f"{statistic}_{metric}_ms": 0.0 for statistic in STATISTICS}
    percentiles = {f"{name}_{metric}_ms": float(np.percentile(times_s, p)) * 1e3 for name, p in PERCENTILES.items()}
    return {f"mean_{metric}_ms": float(np.mean(times_s)) * 1e3, **percentiles}


def _peak_concurrency(begin_s: Array, end_s: Array) -> int:
    """Return the most intervals that overlap. One that ends as another begins is over."""
    at = np.concatenate([end_s, begin_s])
    change = np.repeat([-1, 1], len(begin_s))
    return int(np.max(np.cumsum(change[np.argsort(at, kind="stable")])))
