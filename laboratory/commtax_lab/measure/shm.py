"""A one-shot all-reduce through shared memory, for ranks of one host.

Every rank writes its tensor into its own slot, posts to every other, waits for a post of each and adds all slots in rank order:
one step, and the same bits on every rank. Two slots a rank are used in turn. A rank can write a slot again only after every
other has posted for the operation in between, that is, after it has read the slot.

Each ordered pair of ranks has a POSIX semaphore. ``sem_post`` and ``sem_wait`` synchronise memory by definition, so what was
written before a post is seen after the wait on every architecture, where a plain flag is only right where stores are seen in
order; and a rank that waits long sleeps, which is kind where ranks outnumber cores.
"""

import mmap
import os
import platform
import secrets
import sys
import tempfile
from _multiprocessing import SemLock, sem_unlink
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from commtax.statement import Refusal
from commtax_lab.measure.launch import MAPPED, SEMAPHORE, owner
from commtax_lab.measure.worker import gather

SLOT_BYTES = 256 * 1024  # larger tensors go in pieces that stay in a core's cache …
PIECE = 32_768  # … and of no more elements than torch adds in one thread: waking others took 15 ms where this takes 0.1
SPINS = 400  # looks at a semaphore before the core is given to others
# A launcher notices a lost rank long before; this is for ranks without one. macOS would look for a post only now and then.
LOST_S = None if sys.platform == "darwin" else 3600.0
COUNTING, MOST = 1, SemLock.SEM_VALUE_MAX


class SharedMemory:
    """Slots of all ranks in one mapped file, and a semaphore per ordered pair. Names go once everyone has them open."""

    def __init__(self, rank: int, size: int, slot_bytes: int = SLOT_BYTES) -> None:
        self.rank, self.size, self.slot_bytes, self.turn = rank, size, slot_bytes, 0
        self._map = _map_pages(rank, 2 * size * slot_bytes)
        self._posts, self._waits = _semaphores(rank, size)
        self._slots = torch.frombuffer(self._map, dtype=torch.uint8).view(2, size, slot_bytes)
        self._views: dict[tuple[int, torch.dtype], list[list[Tensor]]] = {}

    def all_reduce(self, tensor: Tensor) -> None:
        """Add the tensors of all ranks, in place."""
        flat = tensor.view(-1)
        step = self._piece(flat)
        for piece in flat.split(step) if flat.numel() > step else (flat,):
            slots = self._exchange(piece)
            torch.add(slots[0], slots[1], out=piece)
            for slot in slots[2:]:
                piece.add_(slot)

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        """Put every rank's part, one after the other, into ``whole``."""
        rows, flat = whole.view(self.size, -1), part.reshape(-1)
        step = self._piece(flat)
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            for row, slot in zip(rows, self._exchange(piece), strict=True):
                row[start : start + step].copy_(slot)

    def _piece(self, flat: Tensor) -> int:
        return min(PIECE, self.slot_bytes // int(flat.element_size()))

    def _exchange(self, flat: Tensor) -> list[Tensor]:
        """Put a piece into this rank's slot, wait until every rank has, and return all slots."""
        self.turn += 1
        slots = self._slot_views(flat.numel(), flat.dtype)[self.turn & 1]
        slots[self.rank].copy_(flat)
        for post in self._posts:
            post.release()
        for other, semaphore in self._waits:
            if not semaphore.acquire(False):
                _await(semaphore, other)
        return slots

    def _slot_views(self, count: int, dtype: torch.dtype) -> list[list[Tensor]]:
        """Return views of all slots as tensors of this length and type, made once."""
        if (count, dtype) not in self._views:
            used = count * dtype.itemsize
            self._views[count, dtype] = [[slot[:used].view(dtype) for slot in half] for half in self._slots]
        return self._views[count, dtype]


def _await(semaphore: SemLock, other: int) -> None:
    """Spin for a while, because a post is microseconds away in a step, then sleep until it comes."""
    for _ in range(SPINS):
        if semaphore.acquire(False):
            return
    if not semaphore.acquire(True, LOST_S):
        raise RuntimeError(f"shm: rank {other} did not come within {LOST_S:g} s")


def _semaphores(rank: int, size: int) -> tuple[list[SemLock], list[tuple[int, SemLock]]]:
    """Open the semaphores that this rank posts to and waits on, and unlink their names once all ranks have opened them."""
    token = f"{owner()}-{secrets.token_hex(3)}"  # macOS takes names of 30 characters
    names = [f"/{SEMAPHORE}{token}-{other}" for other in range(size)]
    others = [other for other in range(size) if other != rank]
    posts = [SemLock(COUNTING, 0, MOST, names[other], False) for other in others]
    try:
        named = gather(names)
        waits = [(other, SemLock._rebuild(0, COUNTING, MOST, named[other][rank])) for other in others]
        dist.barrier()
    finally:
        for other in others:
            sem_unlink(names[other])
    return posts, waits


def _map_pages(rank: int, nbytes: int) -> mmap.mmap:
    """Map the same pages in every rank: rank 0 makes the file, all map it, and its name goes before anything can fail."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    named = [("", "")]
    if rank == 0:
        handle, name = tempfile.mkstemp(prefix=f"{MAPPED}{owner()}-", dir=folder)
        os.ftruncate(handle, nbytes)
        named = [(name, platform.node())]
    dist.broadcast_object_list(named, src=0)
    path, host = Path(named[0][0]), named[0][1]
    here = host == platform.node() and path.exists()
    if rank != 0 and here:
        handle = os.open(path, os.O_RDWR)
    everywhere = all(gather(here))
    if rank == 0:
        path.unlink()
    if not everywhere:
        raise Refusal("shm: the ranks are not all on one host; use gloo or nccl across hosts")
    mapped = mmap.mmap(handle, nbytes)
    os.close(handle)
    return mapped
