"""One rank: joins the others, takes its share of the cores, and runs what it was started for.

The same code serves our launcher and torchrun or Slurm; both set ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``.
"""

import importlib
import itertools
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from commtax_lab.measure import machine
from commtax_lab.measure.launch import FOLDER, NEWS, RESULT, TASK, leave_value, take

LOST_S = 120.0  # a collective that waits longer than this has lost a rank …
WATCHED_S = 3600.0  # … unless a launcher watches: then a rank may compute alone for long
T = TypeVar("T")
_news = itertools.count()


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where this process stands among the ranks of the run."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cores: tuple[int, ...] = ()

    def device(self, kind: str) -> torch.device:
        """Return this rank's device of a kind, made current."""
        if kind == "cpu":
            return torch.device("cpu")
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)


def place() -> RankPlace:
    """Return this rank's place from torchrun's variables, or alone."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return RankPlace(rank, size, int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))


def join(where: RankPlace, device: str) -> None:
    """Join the other ranks: through a file when our launcher started them, else as torchrun says."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    folder = os.environ.get(FOLDER, "")
    method = f"file://{folder}/rendezvous" if folder else "env://"
    wait = timedelta(seconds=WATCHED_S if folder else LOST_S)
    dist.init_process_group(backend, init_method=method, rank=where.rank, world_size=where.size, timeout=wait)


def pin(where: RankPlace) -> RankPlace:
    """Pin each rank of this host to an equal share of the cores. With more ranks than cores they share all.

    Done after joining: threads that gloo started to listen stay free, because on the core of a computing thread they wait
    for their turn (three times the latency on a busy machine).
    """
    cores = machine.cores()
    share = len(cores) // where.local_size
    mine = cores[where.local_rank * share : (where.local_rank + 1) * share] if share else cores
    if share:
        machine.pin_to_cores(mine)
    torch.set_num_threads(len(mine) if share else 1)
    return replace(where, cores=tuple(mine))


def gather(value: T) -> list[T]:
    """Gather every rank's value on every rank."""
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def meet() -> None:
    """Wait for all ranks, over gloo whatever carries the tensors."""
    dist.all_reduce(torch.zeros(1))


def report(news: object) -> None:
    """Report progress to the launcher (rank 0 only, silent under torchrun)."""
    folder = os.environ.get(FOLDER, "")
    if folder and os.environ.get("RANK") == "0":
        leave_value(Path(folder) / NEWS.format(next(_news)), news)


def main() -> None:
    """Run what this rank was started for, and leave rank 0's result."""
    folder, where = Path(os.environ[FOLDER]), place()
    target, payload, device = take(folder / TASK)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    join(where, device)
    result = function(pin(where), payload)
    if where.rank == 0:
        leave_value(folder / RESULT, result)
    leave(0)


def leave(code: int) -> NoReturn:
    """End this rank once all have come here, and at once: taking gloo's threads down in order can hang, and nothing needs it."""
    meet()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
