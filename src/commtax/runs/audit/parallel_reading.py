"""Runs of files read one after the other, or large ones at once: a process each, as many as there are cores."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from commtax.files import Watch
from commtax.runs.audit import formats
from commtax.runs.traces.profilers import rocprof
from commtax.statement import Refusal
from commtax.thresholds import thresholds

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

COUNT, LEVEL = thresholds(__name__)
_counted: "Synchronized[int]"  # bytes that all processes have read, in each of them
Run = Sequence[Path]  # files that are read together
Said = list[object] | Refusal  # what they say, or why they say nothing


def read_runs(runs: Sequence[Run], nsys: str, watch: Watch | None = None, processes: int = 1) -> list[Said]:
    """What each run of files says. ``nsys`` opens reports of Nsight Systems; 0 processes: one for each core."""
    count = min(processes or _cores(), len(runs))
    sizes = sorted(map(_text_bytes, runs))
    if count < 2 or sum(sizes[:-1]) < COUNT.worth_bytes:
        return [_read(run, nsys, watch) for run in runs]
    return _read_in_processes(runs, nsys, watch, count)


def _read_in_processes(runs: Sequence[Run], nsys: str, watch: Watch | None, count: int) -> list[Said]:
    context = multiprocessing.get_context("spawn")  # another thread of this process may hold what a fork would need
    counter = context.Value("Q", 0)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin, (counter,))
    try:
        largest_first = sorted(range(len(runs)), key=lambda i: _text_bytes(runs[i]), reverse=True)
        tasks = {i: pool.submit(_read, runs[i], nsys, _count) for i in largest_first}
        _attend(set(tasks.values()), counter, watch)
        return [tasks[i].result() for i in range(len(runs))]
    except BrokenProcessPool:
        raise Refusal("files: a process that read one of them was ended (is there memory for all of them?)", "file") from None
    except BaseException:  # an interrupt: nobody waits for the others
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attend(tasks: set[Future[Said]], counter: "Synchronized[int]", watch: Watch | None) -> None:
    """Wait until all are done or one has failed, and tell how far they are."""
    told = 0
    while tasks:
        done, tasks = wait(tasks, timeout=LEVEL.every_s)
        if watch and counter.value > told:
            further = counter.value - told
            told += further
            watch(further)
        if any(task.exception() for task in done):
            return


def _begin(counter: "Synchronized[int]") -> None:
    """In a process of the pool: an interrupt is for the one that started it."""
    global _counted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _counted = counter


def _read(run: Run, nsys: str, watch: Watch | None) -> Said:
    try:
        return formats.read(run[0], nsys, watch) if len(run) == 1 else list(rocprof.read_tables(run))
    except Refusal as refusal:
        return refusal


def _count(further: int) -> None:
    with _counted.get_lock():
        _counted.value += further


def _text_bytes(run: Run) -> int:
    """About how much text files hold; nothing where they cannot be asked."""
    total = 0
    for path in run:
        with suppress(OSError, ValueError):
            total += os.stat(path).st_size * (COUNT.unpacked if path.suffix == ".gz" else 1)
    return total


def _cores() -> int:
    able = getattr(os, "sched_getaffinity", None)
    return len(able(0)) if able else os.cpu_count() or 1
