"""Files read one after the other, or large ones at once: a process each, as many as there are cores."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from commtax.files import MiB, Watch
from commtax.readers import formats
from commtax.statement import Refusal

WORTH_BYTES = 64 * MiB  # of text beside the largest file's: less is read before another process has begun
UNPACKED = 10  # bytes of a trace in one of a packed file
EVERY_S = 0.2
_counted: Any = None
"""Bytes that all processes have read, in each of them."""


def read_all(files: Sequence[Path], watch: Watch | None = None, processes: int = 1) -> list[list[formats.Left]]:
    """What each file says; 0 processes: one for each core."""
    count = min(processes or _cores(), len(files))
    sizes = sorted(map(_text_bytes, files))
    if count < 2 or sum(sizes[:-1]) < WORTH_BYTES:
        return [formats.read(path, watch) for path in files]
    return _at_once(files, watch, count)


def _at_once(files: Sequence[Path], watch: Watch | None, count: int) -> list[list[formats.Left]]:
    context = multiprocessing.get_context("spawn")  # another thread of this process may hold what a fork would need
    counter = context.Value("Q", 0)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin, (counter,))
    try:
        largest_first = sorted(files, key=_text_bytes, reverse=True)
        tasks = {path: pool.submit(_read, path) for path in largest_first}
        _attend(set(tasks.values()), counter, watch)
        return [tasks[path].result() for path in files]
    except BrokenProcessPool:
        raise Refusal("files: a process that read one of them was ended (is there memory for all of them?)", "file") from None
    except BaseException:  # an interrupt, or a file that is refused: nobody waits for the others
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attend(tasks: set[Future[list[formats.Left]]], counter: Any, watch: Watch | None) -> None:
    """Wait until all are done or one has failed, and tell how far they are."""
    told = 0
    while tasks:
        done, tasks = wait(tasks, timeout=EVERY_S)
        if watch and counter.value > told:
            further = counter.value - told
            told += further
            watch(further)
        if any(task.exception() for task in done):
            return


def _begin(counter: Any) -> None:
    """In a process of the pool: an interrupt is for the one that started it."""
    global _counted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _counted = counter


def _read(path: Path) -> list[formats.Left]:
    return formats.read(path, _count)


def _count(further: int) -> None:
    with _counted.get_lock():
        _counted.value += further


def _text_bytes(path: Path) -> int:
    """About how much text a file holds; 0 where it cannot be asked."""
    try:
        return os.stat(path).st_size * (UNPACKED if path.suffix == ".gz" else 1)
    except (OSError, ValueError):
        return 0


def _cores() -> int:
    able = getattr(os, "sched_getaffinity", None)
    return len(able(0)) if able else os.cpu_count() or 1
