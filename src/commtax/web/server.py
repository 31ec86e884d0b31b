"""Run the page: a free port, and a server whose connections have a limit on everything that a client can be slow at."""

import asyncio
import gc
import resource
import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from commtax.statement import Refusal
from commtax.web.app import create_app
from commtax.web.pool import WorkerPool

HEAD_S = 10.0  # seconds from the first moment of a question to its last byte; single bytes now and then do not prolong them
ANSWER_S = 30.0  # seconds for an answer, until its last byte is taken
IDLE_S = 15  # seconds between an answer and the next question
MOST_OPEN = min(400, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)  # connections: each takes a file descriptor


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, or refuse a port that is taken or not allowed by name."""
    if not 0 <= port <= 65_535:
        raise Refusal(f"port={port}: from 0 to 65535 (0: any that is free)", "port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise Refusal(f"host '{host[:64]}': not an address of this machine", "host") from None
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # said aloud, so that answers leave at once (no delay)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(128)  # from here on callers wait rather than fail
    except OSError as error:
        bound.close()
        why = f"cannot listen on {host} ({error.strerror})"
        raise Refusal(f"port={port}: {why}; another --port, such as {port + 1}?", "port") from None
    return bound


def run_server(host: str, bound: socket.socket, pool: WorkerPool) -> None:
    """Answer until interrupted, and end the workers."""
    settings = uvicorn.Config(
        create_app(host, pool.ask),
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        h11_max_incomplete_event_size=256 * 1024,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=1,
    )
    gc.freeze()  # what is loaded stays: collections look at what requests leave, not at every module
    try:
        PageServer(settings, pool).run(sockets=[bound])
    finally:
        pool.close()


class PageServer(uvicorn.Server):
    """A server that ends its workers before it waits for anybody."""

    def __init__(self, settings: uvicorn.Config, pool: WorkerPool) -> None:
        super().__init__(settings)
        self._pool = pool

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pool.close()
        await super().shutdown(sockets)


class Connection(H11Protocol):
    """uvicorn's connection, with a clock."""

    _clock: asyncio.TimerHandle | None = None
    _stage = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_OPEN:  # the one that asks nothing and was to end next goes; this one, if there is none
            others = (c for c in self.connections if isinstance(c, Connection) and c is not self and c._stage != "answering")
            silent = min(others, key=lambda c: c._clock.when() if c._clock else 0.0, default=self)
            self.connections.discard(silent)
            silent.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._stage = ""  # the next question has a time of its own, also if it is here already
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._clock:
            self._clock.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock of the stage that the connection is in, once."""
        answering = self.cycle is not None and not self.cycle.response_complete
        stage = "answering" if answering else "asking" if self.timeout_keep_alive_task is None else "idle"
        if stage == self._stage:
            return
        if self._clock:
            self._clock.cancel()
        self._stage = stage
        seconds = {"answering": ANSWER_S, "asking": HEAD_S, "idle": 2.0 * IDLE_S}[stage]  # uvicorn ends what is idle, and politely
        self._clock = self.loop.call_later(seconds, self.transport.abort)
