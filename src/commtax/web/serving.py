"""Run the page: a port that is free, and a server that writes nothing but where it listens."""

from __future__ import annotations

import gc
import socket

import uvicorn

from commtax.statement import Refusal
from commtax.web.app import create_app
from commtax.web.connections import IDLE_S, Connection
from commtax.web.pool import Pool


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; a port that is taken or not allowed is refused by name."""
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
        raise Refusal(
            f"port={port}: cannot listen on {host} ({error.strerror}); another --port, such as {port + 1}?", "port"
        ) from None
    return bound


def serve(host: str, bound: socket.socket, pool: Pool) -> None:
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
        Server(settings, pool).run(sockets=[bound])
    finally:
        pool.close()


class Server(uvicorn.Server):
    """A server that ends its workers before it waits for anybody."""

    def __init__(self, settings: uvicorn.Config, pool: Pool) -> None:
        super().__init__(settings)
        self._pool = pool

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pool.close()
        await super().shutdown(sockets)
