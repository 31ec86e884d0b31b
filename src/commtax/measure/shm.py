"""A one-shot all-reduce through shared memory, for ranks of one host.

Every rank writes its tensor into its own slot, raises its flag, waits for the others' flags and adds all slots in rank
order: one step, and the same bits on every rank. Two slots a rank are used in turn. A rank can write a slot again
only after every other has raised the flag of the operation in between, that is, after it has read the slot.

Flags are plain stores and loads: that is sound where stores are seen in order (x86-64), and refused elsewhere.
"""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LINE = 128  # bytes between flags: no two share a cache line or its neighbour
SLOT_BYTES = 256 * 1024  # larger tensors go in pieces that stay in a core's cache
SPINS = 400  # looks at a flag before the core is offered to others
LOST_S = 60.0


class SharedMemory:
    """Slots and flags of all ranks in one mapped file, which has no name once everyone has it open."""

    def __init__(self, rank: int, size: int, slot_bytes: int = SLOT_BYTES) -> None:
        if platform.machine().lower() not in ("x86_64", "amd64"):
            raise ValueError(f"shm: flags need stores to be seen in order (x86-64), not {platform.machine()}; use gloo")
        self.rank, self.size, self.slot_bytes, self.turn = rank, size, slot_bytes, 0
        total = size * LINE + 2 * size * slot_bytes
        self._map = _mapped(rank, total)
        self._flags = memoryview(self._map)[: size * LINE].cast("q")
        self._own = rank * LINE // 8
        self._others = [r * LINE // 8 for r in range(size) if r != rank]
        self._slots = torch.frombuffer(self._map, dtype=torch.uint8, offset=size * LINE).view(2, size, slot_bytes)
        self._views: dict[tuple[int, Any], list[list[Any]]] = {}

    def all_reduce(self, tensor: Any) -> None:
        """Add the tensors of all ranks, in place."""
        flat = tensor.view(-1)
        step = self.slot_bytes // flat.element_size()
        if flat.numel() <= step:
            self._reduce(flat)
            return
        for start in range(0, flat.numel(), step):
            self._reduce(flat[start : start + step])

    def all_gather(self, whole: Any, part: Any) -> None:
        """Every rank's part, one after the other, into ``whole``."""
        rows, flat = whole.view(self.size, -1), part.reshape(-1)
        step = self.slot_bytes // flat.element_size()
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            for row, slot in zip(rows, self._exchange(piece), strict=True):
                row[start : start + step].copy_(slot)

    def _reduce(self, flat: Any) -> None:
        slots = self._exchange(flat)
        torch.add(slots[0], slots[1], out=flat)
        for slot in slots[2:]:
            flat.add_(slot)

    def _exchange(self, flat: Any) -> list[Any]:
        """Put a piece into this rank's slot and wait until every rank has; returns all slots."""
        self.turn += 1
        slots = self._of(flat.numel(), flat.dtype)[self.turn & 1]
        slots[self.rank].copy_(flat)
        flags, turn = self._flags, self.turn
        flags[self._own] = turn
        for other in self._others:
            if flags[other] < turn:
                self._await(other, turn)
        return slots

    def _await(self, other: int, turn: int) -> None:
        flags = self._flags
        for _ in range(SPINS):
            if flags[other] >= turn:
                return
        deadline = time.monotonic() + LOST_S
        while flags[other] < turn:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise RuntimeError(f"shm: rank {other * 8 // LINE} did not come within {LOST_S:.0f} s")

    def _of(self, count: int, dtype: Any) -> list[list[Any]]:
        """Views of all slots as tensors of this length and type; made once."""
        key = (count, dtype)
        found = self._views.get(key)
        if found is None:
            used = count * dtype.itemsize
            found = [[slot[:used].view(dtype) for slot in half] for half in self._slots]
            self._views[key] = found
        return found


def _mapped(rank: int, nbytes: int) -> mmap.mmap:
    """The same pages in every rank: rank 0 makes the file, all map it, and its name goes before anything can fail."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    told: list[Any] = [None]
    if rank == 0:
        handle, name = tempfile.mkstemp(prefix="commtax-", dir=folder)
        os.ftruncate(handle, nbytes)
        told = [(name, platform.node())]
    dist.broadcast_object_list(told, src=0)
    path, host = Path(told[0][0]), told[0][1]
    here = host == platform.node() and path.exists()
    if rank != 0 and here:
        handle = os.open(path, os.O_RDWR)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, here)
    if rank == 0:
        path.unlink()
    if not all(found):
        raise ValueError("shm: the ranks are not all on one host; use gloo or nccl across hosts")
    mapped = mmap.mmap(handle, nbytes)
    os.close(handle)
    return mapped
