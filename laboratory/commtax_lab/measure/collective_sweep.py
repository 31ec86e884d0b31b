"""A sweep over sizes, with nccl-tests' columns and definitions, for every implementation and group that this machine has.

Time is the mean of a batch of calls on the slowest rank, and the median over batches (a shared machine is noisy); algbw =
size / time; busbw = algbw x 2(n-1)/n for all-reduce and (n-1)/n for all-gather. ``size`` is the full tensor.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from commtax import catalog
from commtax.cost.collectives import ring_factor
from commtax.statement import Refusal
from commtax_lab.measure import launch, machine
from commtax_lab.measure.comm import CUDA_OK, Carrier, check_impl, wire
from commtax_lab.measure.live_documents import CollectivesDocument, CollectiveTime, FittedCollective
from commtax_lab.measure.worker import RankPlace, gather, meet, report

TARGET = "commtax_lab.measure.collective_sweep:sweep"
OPS = ("all-reduce", "all-gather")
BATCHES = 5
BATCH_S = 0.03  # as many calls in a batch as take about this long …
MAX_CALLS = 1000  # … within reason


def doubling_sizes(least: int, most: int) -> list[int]:
    """Return doubling sizes from ``least`` to ``most`` bytes."""
    if not 4 <= least <= most:
        raise Refusal(f"min={least}, max={most}: sizes rise from at least 4 bytes")
    return [least << i for i in range((most // least).bit_length())]


@dataclass(frozen=True, slots=True)
class CollectiveSweep:
    """The sizes and wires that the ranks of one group time."""

    impls: list[str]
    sizes: list[int]
    op: str
    emulate_link: str
    device: str


def measure(
    impls: list[str],
    ranks: list[int],
    sizes: list[int],
    op: str = "all-reduce",
    emulate_link: str = "",
    lost_s: float = launch.LOST_S,
    progress: launch.Progress | None = None,
) -> CollectivesDocument:
    """Return the document of ``measure collectives --json``: rows of every implementation and group, and a fit for each."""
    impls = impls or list(machine.carriers(machine.facts()))
    for impl in impls:
        check_impl(impl)
    if "nccl" in impls and (len(impls) > 1 or torch.cuda.device_count() < max(ranks)):
        raise Refusal(f"impl 'nccl': by itself, and it needs a GPU a rank ({torch.cuda.device_count()} here)")
    if op not in OPS:
        raise Refusal(f"collective '{op}': one of {', '.join(OPS)}", "collective")
    bad = [n for n in ranks if not 2 <= n <= 64]
    if bad or not ranks:
        raise Refusal(f"ranks={(bad or [0])[0]}: groups of 2 to 64 ranks are measured", "ranks")
    if emulate_link:
        catalog.link(emulate_link)
    task = CollectiveSweep(impls, sizes, op, emulate_link, "cuda" if any(impl in CUDA_OK for impl in impls) else "cpu")
    rows: list[CollectiveTime] = []
    for size in ranks:
        rows += launch.run(TARGET, task, size, device=task.device, lost_s=lost_s, progress=progress)
    keys = dict.fromkeys((row["impl"], row["ranks"]) for row in rows)
    fits = [fit([row for row in rows if (row["impl"], row["ranks"]) == key]) for key in keys]
    note = machine.carrier_note(machine.facts()) if "nccl" not in impls else ""
    schema, notes = "commtax.measure-collectives/1", [note] if note else []
    return {"schema": schema, "op": op, "emulated_link": emulate_link, "rows": rows, "fits": fits, "notes": notes}


def sweep(where: RankPlace, task: CollectiveSweep) -> list[CollectiveTime]:
    """Run one rank's part of a sweep. Implementations take turns at every size, so that they see the same machine."""
    device = where.device(task.device)
    wires = {impl: wire(impl, where.rank, where.size, device.type, task.emulate_link) for impl in task.impls}
    rows = []
    for nbytes in task.sizes:
        rows += _time_size(wires, task.op, nbytes, where.size, device)
        report(nbytes)
    return rows


def _time_size(wires: dict[str, Carrier], op: str, nbytes: int, ranks: int, device: torch.device) -> list[CollectiveTime]:
    """Measure all implementations at one size: check each once, then time them in batches that take turns."""
    count = max(1, nbytes // 4)
    if op == "all-gather":
        count = max(1, count // ranks) * ranks
    made = {impl: _prepare_call(carrier, op, count, ranks, device) for impl, carrier in wires.items()}
    repeats = {impl: _repeats(call, device) for impl, (call, _) in made.items()}
    batches = [{impl: _time_batch(call, repeats[impl], device) for impl, (call, _) in made.items()} for _ in range(BATCHES)]
    rows: list[CollectiveTime] = []
    for impl, (_, wrong) in made.items():
        slowest = [max(batch) for batch in zip(*gather([batch[impl] for batch in batches]), strict=True)]
        seconds, size = median(slowest), count * 4
        rows.append(
            {
                "impl": impl,
                "ranks": ranks,
                "op": op,
                "type": "float",
                "size_bytes": size,
                "count": count,
                "time_us": seconds * 1e6,
                "algbw_GBps": size / seconds / 1e9,
                "busbw_GBps": size / seconds * float(ring_factor(op, ranks)) / 1e9,
                "min_us": min(slowest) * 1e6,
                "max_us": max(slowest) * 1e6,
                "wrong": sum(gather(wrong)),
            }
        )
    return rows


def _prepare_call(carrier: Carrier, op: str, count: int, ranks: int, device: torch.device) -> tuple[Callable[[], None], int]:
    """Return a call to time, and how many values of its result are wrong."""
    rank = dist.get_rank()
    if op == "all-reduce":
        tensor = torch.full((count,), float(rank + 1), device=device)
        carrier.all_reduce(tensor)
        wrong = int((tensor != ranks * (ranks + 1) / 2).sum())
        tensor.zero_()  # sums of zeros stay finite however often they are repeated
        return (lambda: carrier.all_reduce(tensor)), wrong
    part, whole = torch.full((count // ranks,), float(rank + 1), device=device), torch.zeros(count, device=device)
    carrier.all_gather(whole, part)
    wanted = torch.arange(1, ranks + 1, device=device, dtype=torch.float32).repeat_interleave(count // ranks)
    return (lambda: carrier.all_gather(whole, part)), int((whole != wanted).sum())


def _repeats(call: Callable[[], None], device: torch.device) -> int:
    """Return the calls in a batch, agreed on by all ranks."""
    each = _time_batch(call, 3, device)
    slowest = max(gather(_time_batch(call, 5 if each < 0.05 else 1, device)))
    return max(2, min(MAX_CALLS, int(BATCH_S / slowest)))


def _time_batch(call: Callable[[], None], repeats: int, device: torch.device) -> float:
    meet()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def fit(rows: list[CollectiveTime]) -> FittedCollective:
    """Fit time = alpha + size x beta to one implementation's group with the least relative error. Residuals are relative too."""
    sizes, times = np.array([r["size_bytes"] for r in rows], float), np.array([r["time_us"] * 1e-6 for r in rows])
    alpha, beta = alpha_beta(sizes, times)
    residuals = (alpha + beta * sizes) / times - 1
    return {
        "impl": rows[0]["impl"],
        "ranks": rows[0]["ranks"],
        "op": rows[0]["op"],
        "alpha_us": alpha * 1e6,
        "bandwidth_GBps": 1 / beta / 1e9 if beta else None,
        "median_residual": float(np.median(np.abs(residuals))),
        "max_residual": float(np.max(np.abs(residuals))),
    }


def alpha_beta(sizes: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Minimise the squares of (alpha + beta n) / t - 1 with both at least 0.

    >>> alpha, beta = alpha_beta(np.array([8.0, 1e6]), np.array([1e-5, 1e-3]))
    >>> round(alpha * 1e6, 2), round(1e-9 / beta, 2)
    (9.99, 1.01)
    """
    rows = np.stack((1 / times, sizes / times), axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)
    if beta < 0 or len(times) < 2:
        return float(1 / np.mean(1 / times)), 0.0
    if alpha < 0:
        return 0.0, float(1 / np.mean(sizes / times))
    return float(alpha), float(beta)
