"""The tensor-parallel group: a wire that carries, and a ledger that counts and weighs what it was given.

Wires are interchangeable: gloo and NCCL (torch.distributed), shared memory (``shm``), or any of them with the modelled
time of another link added. Sizes are read off the tensors themselves, so the ledger holds what was really sent.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from commtax import catalog
from commtax.cost.collectives import ring_factor
from commtax.spec import Link
from commtax.statement import Refusal
from commtax_lab.measure import machine

IMPLEMENTATIONS = ("gloo", "nccl", "shm")
CUDA_OK = ("nccl",)
TOIL = 256  # rows of a square product that takes less than a millisecond of one core


class Carrier(Protocol):
    """A carrier of tensors among ranks."""

    def all_reduce(self, tensor: Tensor) -> None: ...

    def all_gather(self, whole: Tensor, part: Tensor) -> None: ...


class Torch:
    """torch.distributed's own: gloo for CPU tensors, NCCL for CUDA's."""

    all_reduce, all_gather = staticmethod(dist.all_reduce), staticmethod(dist.all_gather_into_tensor)


class Emulated:
    """Another wire, and then the time that a ring over ``link`` would take: 2(n-1) latencies and the ring's bytes."""

    def __init__(self, wire: Carrier, link: Link, ranks: int) -> None:
        self.wire, self.link, self.ranks = wire, link, ranks

    def seconds(self, op: str, nbytes: int) -> float:
        hops = (2 if op == "all-reduce" else 1) * (self.ranks - 1)
        return float(hops * self.link.latency_s + ring_factor(op, self.ranks) * nbytes / self.link.bandwidth_Bps)

    def all_reduce(self, tensor: Tensor) -> None:
        self.wire.all_reduce(tensor)
        spin(self.seconds("all-reduce", tensor.nbytes))

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        self.wire.all_gather(whole, part)
        spin(self.seconds("all-gather", whole.nbytes))


def spin(seconds: float) -> None:
    """Wait precisely, sleeping first if the wait is long."""
    until = time.perf_counter() + seconds
    if seconds > 2e-3:
        time.sleep(seconds - 1e-3)
    while time.perf_counter() < until:
        pass


def toil(seconds: float) -> None:
    """Compute for so long: products that a profiler sees, and the rest of a product's time waited out."""
    until, square = time.perf_counter() + seconds, torch.ones(TOIL, TOIL)
    one = 0.0
    while (begun := time.perf_counter()) + one < until:
        torch.mm(square, square)
        one = time.perf_counter() - begun
    spin(until - time.perf_counter())


def check_impl(impl: str) -> None:
    """Refuse an unknown wire, and shared memory where the machine has none."""
    if impl not in IMPLEMENTATIONS:
        raise Refusal(f"impl '{impl}': one of {', '.join(IMPLEMENTATIONS)}")
    missing = machine.facts().no_semaphores
    if impl == "shm" and missing:
        raise Refusal(f"impl 'shm': {missing}; use gloo")


def wire(impl: str, rank: int, ranks: int, device: str = "cpu", emulate: str = "") -> Carrier:
    """Return a wire by name, checked against where the tensors are."""
    check_impl(impl)
    if (device == "cuda") != (impl in CUDA_OK):
        raise Refusal(f"impl '{impl}': {'nccl carries CUDA tensors' if device == 'cuda' else 'gloo or shm carry CPU tensors'}")
    carrier: Carrier = Torch()
    if impl == "shm":  # loaded only where it is asked for: its semaphores are not on every system
        from commtax_lab.measure.shm import SharedMemory

        carrier = SharedMemory(rank, ranks)
    if emulate and device == "cuda":
        raise Refusal("emulate_link: the added time is the host's; it needs CPU ranks")
    return Emulated(carrier, catalog.link(emulate), ranks) if emulate else carrier


@dataclass(frozen=True, slots=True)
class IssuedCollective:
    """One collective as it was issued: what it was for, the operation, the full tensor's bytes."""

    what: str
    op: str
    nbytes: int


@dataclass(slots=True)
class Ledger:
    """Everything issued since the last ``clear``, in order, with the seconds inside each (CPU ranks: the host's clock)."""

    sent: list[IssuedCollective] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.sent, self.seconds = [], []


class RankGroup:
    """The ranks of one tensor-parallel engine. Alone (size 1) it sends nothing and counts nothing.

    ``slow`` stretches this rank's computing between collectives by a factor: a straggler on purpose.
    """

    def __init__(self, rank: int, size: int, carrier: Carrier | None = None, slow: float = 1.0) -> None:
        self.rank, self.size, self.slow = rank, size, slow
        self._wire: Carrier = carrier or Torch()
        self.ledger = Ledger()
        self._resumed_s = time.perf_counter()

    def all_reduce(self, tensor: Tensor, what: str) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            self._time_move(IssuedCollective(what, "all-reduce", tensor.nbytes), lambda: self._wire.all_reduce(tensor))
        else:
            self._drag()
        return tensor

    def all_gather(self, part: Tensor, what: str) -> Tensor:
        """Join parts of the last dimension from every rank, in rank order."""
        if self.size == 1:
            self._drag()
            return part
        rows, width = part.shape
        whole = torch.empty(self.size * rows, width, dtype=part.dtype, device=part.device)
        self._time_move(IssuedCollective(what, "all-gather", whole.nbytes), lambda: self._wire.all_gather(whole, part.contiguous()))
        return whole.view(self.size, rows, width).transpose(0, 1).reshape(rows, self.size * width)

    def resume(self) -> None:
        """Restart the clock of computing: a straggler is not charged for waiting between steps."""
        self._resumed_s = time.perf_counter()

    @contextmanager
    def record_sends(self) -> Iterator[list[IssuedCollective]]:
        """Record once what a captured graph sends, to count it again at each replay."""
        before, self.ledger = self.ledger, Ledger()
        try:
            yield self.ledger.sent
        finally:
            self.ledger = before

    def _time_move(self, sent: IssuedCollective, move: Callable[[], None]) -> None:
        self._drag()
        entered_s = time.perf_counter()
        move()
        self._resumed_s = time.perf_counter()
        self.ledger.sent.append(sent)
        self.ledger.seconds.append(self._resumed_s - entered_s)

    def _drag(self) -> None:
        if self.slow > 1:
            toil((self.slow - 1) * (time.perf_counter() - self._resumed_s))
            self._resumed_s = time.perf_counter()
