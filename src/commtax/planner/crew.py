"""Who does many small tasks: this process, one process a core, or a Dask cluster (``on="tcp://host:8786"``). Tasks are pure
functions of what is sent with them: who does them, how often, and in which order changes no answer."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from commtax.statement import Refusal

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from distributed import Client

Item = TypeVar("Item")
Made = TypeVar("Made")
INSTALL = "pip install 'commtax[cluster]'"
REACHED_S = 10  # a scheduler that has not answered by then is not there


class Crew(Protocol):
    count: int  # who work at once

    def each(self, work: Callable[[Item], Made], tasks: Sequence[Item]) -> Iterator[tuple[int, Made]]:
        """Yield each task's place and result, as they are done."""


class SingleProcess:
    count = 1

    def each(self, work: Callable[[Item], Made], tasks: Sequence[Item]) -> Iterator[tuple[int, Made]]:
        for place, task in enumerate(tasks):
            yield place, work(task)


class Processes:
    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: ProcessPoolExecutor | None = None

    def each(self, work: Callable[[Item], Made], tasks: Sequence[Item]) -> Iterator[tuple[int, Made]]:
        from multiprocessing import current_process, get_context

        if len(tasks) < 2 or current_process().daemon:  # which may have no children
            yield from SingleProcess().each(work, tasks)
            return
        from concurrent.futures import ProcessPoolExecutor, as_completed  # half of what a small plan takes to import

        if self.pool is None:
            # Forked processes know at once what this one does. That is safe as long as it has one thread, and on Linux.
            method = "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"
            ignored = (signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that was asked: it tells the best so far
            self.pool = ProcessPoolExecutor(self.count, get_context(method), initializer=signal.signal, initargs=ignored)
        places = {self.pool.submit(work, task): place for place, task in enumerate(tasks)}
        for done in as_completed(places):
            yield places[done], done.result()

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(wait=True, cancel_futures=True)


class Dask:
    """Workers of a Dask cluster, which must have this version of commtax installed."""

    def __init__(self, client: Client) -> None:
        self.client, self.count = client, 1  # at least

    def each(self, work: Callable[[Item], Made], tasks: Sequence[Item]) -> Iterator[tuple[int, Made]]:
        from distributed import as_completed as as_dask_completes

        futures = self.client.map(work, tasks, pure=False)
        places = {future.key: place for place, future in enumerate(futures)}
        for done in as_dask_completes(futures, loop=self.client.loop):
            yield places[done.key], done.result()


@contextmanager
def crew(on: str = "", processes: int = 0) -> Iterator[Crew]:
    """Yield the workers: those of the Dask cluster at an address, else so many processes (0: one per usable core)."""
    if on:
        with _client(on) as client:
            yield Dask(client)
    elif (count := processes or cores()) == 1:
        yield SingleProcess()
    else:
        with closing(Processes(count)) as several:
            yield several


def cores() -> int:
    """Count the cores that this process may use."""
    able = getattr(os, "sched_getaffinity", None)
    return len(able(0)) if able else os.cpu_count() or 1


def _client(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError:
        raise Refusal.of(f"a Dask cluster needs dask's distributed ({INSTALL})", on=address) from None
    try:
        return Client(address, timeout=REACHED_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        rule = f"no Dask scheduler answers there ({error}); its address looks like tcp://host:8786"
        raise Refusal.of(rule, ("tcp://127.0.0.1:8786",), on=address) from None
