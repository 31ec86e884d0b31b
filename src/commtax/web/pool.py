"""Answers from workers that can be ended, as threads cannot: each has a time, and stops when nobody waits for it.

Workers are forked by ``web.nursery``, which has everything loaded: a new one costs a few milliseconds.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import field

from commtax.records import dataclass
from commtax.web.answering import Written
from commtax.web.guard import problem
from commtax.web.nursery import ASKED, TOLD, limit_of

# Answers that have workers of their own, so that a slider's view never waits behind a search
SLOW = {"compare", "fit", "memory", "plan", "several", "fleet", "traffic", "audit", "pipeline"}
LOAD_S = 30.0  # seconds that the first questions wait for the nursery to load, at most
LAST_WORD_S = 0.5  # seconds that the nursery has to see its workers off
WAIT_S = 2.0  # seconds that a question waits for a free worker
SAID = "The server is busy with other questions; ask again in a moment."
BUSY = 429, problem(SAID, "server", "a bounded number of questions at a time")
GOING = 429, problem("The server is being stopped; ask again when it runs.", "server", "no answers while it stops")


@dataclass
class WorkerLine:
    """One worker, seen from here: closing its line ends it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    spent: bool = False

    async def ask(self, name: str, query: bytes) -> Written:
        self.spent = True  # also if it is left in the middle, by whatever
        self.writer.write(ASKED.pack(len(name), len(query)) + name.encode() + query)
        status, size, spent = TOLD.unpack(await self.reader.readexactly(TOLD.size))
        body = await self.reader.readexactly(size)
        self.spent = spent
        return status, body

    @property
    def usable(self) -> bool:
        return not (self.spent or self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # at once, not when the loop comes round: the worker hears it and ends
            self.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.writer.transport.abort()


class Nursery:
    """The process that forks workers, ``main`` of a module, which is started again if it is gone."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._start()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        # The same places to import from as here: the folder that somebody happens to stand in is none of them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {self._module} import main; main({theirs.fileno()})"
        # One thread for algebra: arrays are small here, and a process with threads must not fork.
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code]
        with theirs, _ignore_interrupts():
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, pass_fds=(theirs.fileno(),), env=alone)
        self._control.setblocking(False)
        self._loading: asyncio.Future[bytes] | None = None

    async def loaded(self) -> None:
        """Wait, but not for ever, until the nursery is ready, which no question's time shall pay for."""
        if self._process.poll() is not None:
            self._restart()
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._control, 1))
        if not self._loading.done():
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(LOAD_S):
                    await asyncio.shield(self._loading)

    async def worker(self, niceness: int) -> WorkerLine:
        """Return a new worker. It may still be loading: what is asked of it waits in its line."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [bytes([niceness])], [theirs.fileno()])
            except (BrokenPipeError, ConnectionResetError):
                self._restart()
                socket.send_fds(self._control, [bytes([niceness])], [theirs.fileno()])
        return WorkerLine(*await asyncio.open_connection(sock=ours))

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """End the nursery when its workers are gone, or at once if it is still loading."""
        if self._loading:
            self._loading.cancel()
        self._control.close()
        try:
            self._process.wait(LAST_WORD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from what is started inside, by a mask: an interrupt between fork and exec would be lost to the server too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class WorkerLane:
    """Workers for one kind of question, and those who wait for them."""

    workers: int
    most_waiting: int
    niceness: int
    waiting: int = 0
    idle: list[WorkerLine] = field(default_factory=list)
    busy: list[WorkerLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.workers)

    async def turn(self) -> bool:
        """Wait for a worker, and return false where too many wait, or it takes too long."""
        if self.waiting >= self.most_waiting:
            return False
        self.waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.turns.acquire()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1

    async def answer(self, nursery: Nursery, name: str, query: bytes) -> Written:
        """Ask a worker, and end one that is spent."""
        while self.idle and not self.idle[-1].usable:
            self.idle.pop().close()
        line = self.idle.pop() if self.idle else await nursery.worker(self.niceness)
        self.busy.append(line)
        try:
            return await line.ask(name, query)
        finally:
            self.busy.remove(line)
            if line.usable:
                self.idle.append(line)
            else:
                line.close()


class WorkerPool:
    """All workers. ``ask`` always returns, in time and with a status. When its caller is cancelled, so is the work."""

    def __init__(self, nursery: str = "commtax.web.nursery") -> None:
        self._nursery = Nursery(nursery)
        self._quick = WorkerLane(workers=2, most_waiting=64, niceness=0)
        self._slow = WorkerLane(workers=2, most_waiting=32, niceness=5)
        self._closed = False

    async def ask(self, name: str, query: bytes) -> Written:
        lane = self._slow if name in SLOW else self._quick
        await self._nursery.loaded()
        clock = asyncio.get_running_loop().time
        begun, limit = clock(), limit_of(name)
        if self._closed:
            return GOING
        if not await lane.turn():
            return BUSY
        waited = clock() - begun
        try:
            async with asyncio.timeout_at(begun + limit):
                return await lane.answer(self._nursery, name, query)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            # Time was up here or, a little later, in the worker. One that waited first might have been in time.
            if self._closed or waited > 0.1 * limit:
                return GOING if self._closed else BUSY
            rule = f"{name}: not answered within {limit_of(name):g} s on this machine"
            return 422, problem(f"{rule}; choose a smaller cluster, or ask on the command line, which has no such limit", name)
        finally:
            lane.turns.release()

    def close(self) -> None:
        """End all workers, and with them everything that is being computed."""
        if self._closed:
            return
        self._closed = True
        for lane in (self._quick, self._slow):
            for line in (*lane.idle, *lane.busy):
                line.close()
        self._nursery.close()
