"""What the ranks of live tests run: real processes, started by the launcher."""

import os
import signal
import time

import torch
import torch.distributed as dist

from commtax.statement import Refusal
from commtax_lab.measure import launch
from commtax_lab.measure.comm import wire
from commtax_lab.measure.tp import measure_all
from commtax_lab.measure.worker import gather, report


def four(where, jobs):
    """All that four ranks are asked, one thing after the other."""
    return measure_all(where, jobs), add(where), storm(where, 3000)


def add(where):
    """Both wires add and gather the same, in every type and size, but for the order of sums: ``off`` in the type's own steps at the
    largest sum; every rank must hold the same bits."""
    found = []
    carriers = {impl: wire(impl, where.rank, where.size) for impl in ("gloo", "shm")}
    for dtype in ("float32", "bfloat16"):
        for count in (1, 1000, 70_000):
            generator = torch.Generator().manual_seed(where.rank)
            mine = torch.randn(count, generator=generator).to(getattr(torch, dtype))
            sums, gathered = {}, {}
            for impl, carrier in carriers.items():
                sums[impl] = mine.clone()
                carrier.all_reduce(sums[impl])
                gathered[impl] = torch.empty(where.size * count, dtype=mine.dtype)
                carrier.all_gather(gathered[impl], mine)
            bits = gather(sums["shm"].float().tolist()[:50])
            step = torch.finfo(mine.dtype).eps * float(sums["gloo"].float().abs().max())
            found.append(
                {
                    "off": float((sums["shm"].float() - sums["gloo"].float()).abs().max()) / step,
                    "gathered": bool(torch.equal(gathered["shm"], gathered["gloo"])),
                    "same": all(row == bits[0] for row in bits),
                }
            )
    return found


def storm(where, turns):
    """Small tensors in quick turns, every value checked: how many were wrong on any rank."""
    carrier, wrong = wire("shm", where.rank, where.size), 0
    for turn in range(turns):
        mine = torch.full((16,), float(turn * where.size + where.rank))
        carrier.all_reduce(mine)
        wanted = sum(turn * where.size + rank for rank in range(where.size))
        wrong += int((mine != wanted).sum())
    return gather(wrong)


def forever(where, payload):
    """Collectives without end; rank 0 waits for the others, as a real run would."""
    while True:
        dist.all_reduce(torch.zeros(8))
        report(1)
        time.sleep(0.05)


def fails(where, payload):
    """One rank raises in the middle of a run."""
    for step in range(100):
        if step == 5 and where.rank == payload["rank"]:
            raise RuntimeError("seeded failure")
        dist.all_reduce(torch.zeros(8))


def dies_with_a_name(where, payload):
    """Killed between making a file in shared memory and taking its name away."""
    (launch.SHARED / f"{launch.MAPPED}{launch.owner()}-dieddied").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(where, payload):
    """One rank refuses what it was asked, the others wait for it."""
    if where.rank == payload["rank"]:
        raise Refusal("seeded refusal", "tp")
    dist.all_reduce(torch.zeros(8))
