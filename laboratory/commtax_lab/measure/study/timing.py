"""Device time of a repeated operation: CUDA graphs, events, cold operands, and the state of the card beside each figure."""

from __future__ import annotations

# mypy: disallow-untyped-calls=False
import ctypes
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

ALIGN = 256  # elements; keeps every view of the pool on a 512-byte boundary


@dataclass(slots=True)
class OperandPool:
    """One allocation of random values that all weights and caches are views of, so that nothing is filled twice."""

    data: Tensor
    at: int = 0

    @classmethod
    def make(cls, num_elements: int, device: str, scale: float) -> OperandPool:
        data = torch.empty(num_elements, dtype=torch.bfloat16, device=device)
        for part in data.split(1 << 30):  # a generator counts in 32 bits
            part.normal_(0, scale)
        return cls(data)

    def take(self, *shape: int) -> Tensor:
        """Return the next view, wrapping at the end, so a caller that needs distinct values checks ``holds`` first."""
        size = math.prod(shape)
        if self.at + size > self.data.numel():
            self.at = 0
        view = self.data[self.at : self.at + size].view(shape)
        self.at = -(-(self.at + size) // ALIGN) * ALIGN
        return view

    def holds(self, num_elements: float) -> bool:
        return bool(num_elements <= self.data.numel())


@dataclass(slots=True)
class OperationTimer:
    """Seconds of one operation, a list of them captured as one graph and replayed. Without CUDA: the wall clock."""

    device: str
    num_samples: int = 7
    card: Card | None = None
    clocks_MHz: list[int] = field(default_factory=list)

    def samples(self, calls: list[Callable[[], object]], call_s: float, warm_s: float = 0.03) -> list[float]:
        """Return samples, each one replay of all calls divided by their number.

        Calls are first replayed for ``warm_s`` by the guess ``call_s`` of one: clocks settle under the load.
        """
        num = self.num_samples
        if self.device == "cpu":
            return [_wall_seconds(calls) for _ in range(num)]
        graph = _capture(calls)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(num + 1)]
        for _ in range(1 + int(warm_s / (call_s * len(calls)))):
            graph.replay()  # the queue stays full: the replays that count never wait for the host
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        if self.card:
            self.clocks_MHz.append(self.card.clock_MHz())  # while the graphs run
        marks[-1].synchronize()
        samples = [float(a.elapsed_time(b)) * 1e-3 / len(calls) for a, b in pairwise(marks)]
        graph.reset()
        return samples

    def take_clock(self) -> int:
        """Return the lowest SM clock seen since the last call."""
        lowest = min(self.clocks_MHz, default=0)
        self.clocks_MHz.clear()
        return lowest


def _wall_seconds(calls: list[Callable[[], object]]) -> float:
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) / len(calls)


def _capture(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Compile and pick algorithms in one eager call, then capture all calls in a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    return graph


class Card:
    """The card's clocks and power as NVML reports them, zero where the library is missing."""

    SM, MEMORY = 1, 2

    def __init__(self, index: int = 0) -> None:
        self._device = ctypes.c_void_p()
        self._nvml: ctypes.CDLL | None = None
        with suppress(OSError):
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._device)) == 0:
                self._nvml = nvml

    def clock_MHz(self, of: int = SM) -> int:
        return self._read("nvmlDeviceGetClockInfo", of)

    def power_W(self) -> float:
        return self._read("nvmlDeviceGetPowerUsage") / 1000

    def driver(self) -> str:
        text = ctypes.create_string_buffer(80)
        if self._nvml is None or self._nvml.nvmlSystemGetDriverVersion(text, 80):
            return ""
        return text.value.decode()

    def _read(self, function: str, *what: int) -> int:
        value = ctypes.c_uint()
        if self._nvml is None or getattr(self._nvml, function)(self._device, *what, ctypes.byref(value)):
            return 0
        return int(value.value)
