"""The process that answers come from: it loads the package once and forks a worker for every line that the server hands it.

A worker lives exactly as long as its line: while an answer is computed the kernel itself ends the process when the line closes
(``SIGIO``) or its time is up (``SIGALRM``). One long call into C ends too, and nothing outlives a server that was killed.
"""

import contextlib
import fcntl
import gc
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator

from commtax.web.answering import write_answer
from commtax.web.guard import HTTP, problem

ASKED = struct.Struct("!BI")  # a question's head: bytes of its name, bytes of its query
TOLD = struct.Struct("!HI?")  # an answer's head: status, bytes of the body, and whether the worker has done its share
LIMIT_S: float = HTTP["patience"]["usual"]  # seconds until a question's time is up: nobody waits for 5 s, except for a search
SHARE = 1_000  # answers of one worker: caches and fragments go with it
MOST_RESIDENT = 600e6  # bytes; a worker that was ever larger is replaced after its answer …
MOST_BYTES = 4 * 2**30  # … and this much address space is all that one gets
WARM = (  # questions that load what most others need, so that every worker is born with it
    ("view", b""),
    ("view", b"ph=train&c=2x8xh100-sxm&tp=8&dp=2"),
    ("compare", b""),
    ("plan", b"c=2xh100-sxm"),
    ("pipeline", b"ph=train&pp=2"),
)


def limit_of(name: str) -> float:
    """Return the seconds until the time of a question is up."""
    return float(HTTP["patience"].get(name, LIMIT_S))


def main(control: int) -> None:
    """Fork a worker for each line that comes, and end with the server."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers need no funeral
    for name, query in WARM:
        write_answer(name, query)
    gc.collect()
    gc.freeze()  # pages that all workers share stay shared
    with socket.socket(fileno=control) as server, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        server.sendall(b"!")  # ready
        while True:
            word, lines, _, _ = socket.recv_fds(server, 1, 1)
            if not word:
                break
            for line in lines:
                _fork(server, socket.socket(fileno=line), niceness=word[0])
    with contextlib.suppress(ChildProcessError):
        os.wait()  # lines that the server let go end their workers: none is left to others


def _fork(server: socket.socket, line: socket.socket, niceness: int) -> None:
    with line:
        if os.fork():
            return
        code = 1
        try:
            server.close()
            os.nice(niceness)
            _work(line)
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            os._exit(code)  # not back into the nursery's loop


def _work(line: socket.socket) -> None:
    """Answer what comes over the line until it closes."""
    if sys.platform != "linux":
        signal.signal(signal.SIGIO, lambda *_: os._exit(1))  # BSD's kernels ignore it unless somebody listens
    with contextlib.suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for done in range(1, SHARE + 1):
        head = line.recv(ASKED.size, socket.MSG_WAITALL)
        if len(head) < ASKED.size:  # the line closed
            return
        name, query = ASKED.unpack(head)
        text = line.recv(name + query, socket.MSG_WAITALL)
        kind = text[:name].decode()
        with _end_with_line(line, limit_of(kind)):
            try:
                status, body = write_answer(kind, text[name:])
            except Exception:
                traceback.print_exc()  # our own mistake: said where the server was started
                status = 500
                body = problem("this question found a mistake in commtax; where it was started stands which", kind)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        line.sendall(TOLD.pack(status, len(body), done == SHARE or resident > MOST_RESIDENT) + body)


@contextlib.contextmanager
def _end_with_line(line: socket.socket, limit_s: float) -> Iterator[None]:
    """End the process inside when the line closes or the time is up."""
    flags = fcntl.fcntl(line, fcntl.F_GETFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        yield
    finally:
        fcntl.fcntl(line, fcntl.F_SETFL, flags)  # before the answer is sent: its being read would be a signal too
        signal.setitimer(signal.ITIMER_REAL, 0)
