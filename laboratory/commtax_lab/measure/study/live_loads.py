"""The small engine under several loads, one after the other: closed loops of clients whose requests have known lengths.

All loads are served in rounds, each in an order of its own, so that a machine that drifts does not make one load look slow. Ranks
of one thread, alone or through shared memory, are timed by their processor time: what others do on the machine is not in it. A rank
that waits for another looks for it at first, which is in that time, and sleeps only when the other is long in coming: because
others have its core, most of all. The slowest rank's time counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, Unpack

import torch

from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.measure import launch, machine
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.own_constants import RANKS
from commtax_lab.measure.study.small_engine_serving import BatchingEngine, requests, result, serve
from commtax_lab.measure.worker import RankPlace, gather, report

TARGET = "commtax_lab.measure.study.live_loads:measure_loads"
PROCESSOR, WALL = "the processor time of the slowest rank", "wall time"


class LiveLoad(NamedTuple):
    """A closed loop: clients that each send their next request when the last is answered."""

    clients: int
    sizes: tuple[tuple[int, int], ...]  # prompt and output tokens of each request, in the order in which they are sent

    @property
    def means(self) -> tuple[float, float]:
        """Mean prompt and output tokens."""
        prompts, answers = (sum(column) / len(self.sizes) for column in zip(*self.sizes, strict=True))
        return prompts, answers


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """The loads that the ranks serve."""

    job: LiveJob
    loads: tuple[LiveLoad, ...]
    rounds: int

    @property
    def slots(self) -> int:
        return max(load.clients for load in self.loads)

    @property
    def longest(self) -> int:
        """Tokens of a request at most."""
        return max(sum(sizes) for load in self.loads for sizes in load.sizes)

    @property
    def ranks_here(self) -> int:
        """Ranks that the machine is divided among, as its calibration divides it: the least number that it knows and suffices."""
        return least_calibrated(self.job.tp)

    def settle(self) -> LoadSeries:
        """Fill in what depends on the machine, and refuse requests that are longer than the model allows."""
        settled = replace(self, job=self.job.settle())
        allowed = settled.job.arch().model.max_len
        if settled.longest > allowed:
            longer = f"{settled.longest:,} tokens together in the longest request"
            raise Refusal(f"input_len, output_len: {longer}, the model has {allowed:,} positions", "input_len")
        return settled


class LoadRound(NamedTuple):
    """One load in one round, in seconds by its clock, and how much longer it took."""

    ttft_s: float
    tpot_s: float
    duration_s: float
    wall_over_clock: float


class MeasuredLoad(NamedTuple):
    """A load with its rounds."""

    load: LiveLoad
    rounds: tuple[LoadRound, ...]


@dataclass(frozen=True, slots=True)
class LoadMeasurements:
    """All loads, by which clock, and how busy the machine was."""

    loads: tuple[MeasuredLoad, ...]
    clock: str
    wall_over_clock: float


def usual_loads(most_clients: int, input_len: float, output_len: float, seed: int = 0) -> tuple[tuple[LiveLoad, ...], int]:
    """Return the loads of ``loads.toml`` and their rounds. The first three have each client count and length pair once."""
    table = lab_table("measure/study/loads.toml")
    clients = sorted({max(1, round(most_clients**share)) for share in table["clients"]})
    shapes = [(input_len * i, output_len * o) for i, o in table["lengths"]]
    turned = [(n, shapes[(i + turn) % len(shapes)]) for turn in range(len(shapes)) for i, n in enumerate(clients)]
    loads = (_load(n, shape, n * table["requests_per_client"], table["spread"], seed) for n, shape in turned)
    return tuple(loads), int(table["rounds"])


def _load(clients: int, shape: tuple[float, float], count: int, spread: float, seed: int) -> LiveLoad:
    """Spread lengths evenly in random order, so that a few requests have the mean of many."""
    chance = random.Random(f"{seed} {clients} {shape}")
    columns = []
    for mean in shape:
        around = [mean * (1 + spread * ((2 * i + 1) / count - 1)) for i in range(count)]
        chance.shuffle(around)
        columns.append([max(2, round(length)) for length in around])
    return LiveLoad(clients, tuple(zip(*columns, strict=True)))


def least_calibrated(tp: int) -> int:
    """Return the least number of ranks that a calibration covers and that suffices."""
    return next((ranks for ranks in RANKS if ranks >= tp), tp)


def run(series: LoadSeries, **launching: Unpack[launch.Launching]) -> LoadMeasurements:
    """Start ranks on this machine and serve. The rest is as ``launch.run`` takes it."""
    seen: LoadMeasurements = launch.run(TARGET, series, series.job.tp, device=series.job.device, **launching)
    return seen


def stages(series: LoadSeries) -> int:
    """Count the progress reports of the ranks."""
    return len(series.loads) * series.rounds


def measure_loads(where: RankPlace, series: LoadSeries) -> LoadMeasurements:
    """Load weights once on a rank, then serve all loads, round by round."""
    job, a = series.job, series.job.arch()
    share = machine.cores_per_rank(series.ranks_here)
    if job.device == "cpu" and len(where.cores) > share:  # as many cores as a rank had when the machine was calibrated
        machine.pin_to_cores(where.cores[:share])
        torch.set_num_threads(share)
    by_core = job.device == "cpu" and torch.get_num_threads() == 1 and (where.size == 1 or job.impl == "shm")
    weights, group = job.load(a, where, where.device(job.device)), job.group(where)
    server = BatchingEngine(a, weights, group, series.slots, series.longest + 1)
    for load in series.loads:
        serve(server, requests(server, [(n, 2) for n, _ in load.sizes[: load.clients]], [0.0] * load.clients), clients=load.clients)
    served = [(i, _serve_load(server, series, i, by_core)) for i in _order(len(series.loads), series.rounds, job.seed)]
    loads = [MeasuredLoad(load, tuple(one for at, one in served if at == i)) for i, load in enumerate(series.loads)]
    return LoadMeasurements(tuple(loads), PROCESSOR if by_core else WALL, median(one.wall_over_clock for _, one in served))


def _order(loads: int, rounds: int, seed: int) -> list[int]:
    """Order the loads, round by round."""
    chance = random.Random(seed)
    return [i for _ in range(rounds) for i in chance.sample(range(loads), loads)]


def _serve_load(server: BatchingEngine, series: LoadSeries, index: int, by_core: bool) -> LoadRound:
    clock: Callable[[], float] = time.thread_time if by_core else time.perf_counter
    load = series.loads[index]
    queue = requests(server, load.sizes, [0.0] * len(load.sizes), series.job.seed)
    began = time.perf_counter()
    took = serve(server, queue, clients=load.clients, clock=clock)
    wall = time.perf_counter() - began
    server.group.ledger.clear()
    report("load")
    means = result(queue, took, series.job.tp, float("inf")).stats
    ttft_s, tpot_s, slowest_s = (
        max(times) for times in zip(*gather((means["ttft"]["mean"], means["tpot"]["mean"], took)), strict=True)
    )
    return LoadRound(ttft_s, tpot_s, slowest_s, wall / slowest_s)
