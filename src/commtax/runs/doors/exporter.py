"""A page of metrics for Prometheus, from the standard library alone: this machine only, unless an address says otherwise."""

import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from commtax.runs.audit.scraping import is_loopback
from commtax.statement import Refusal

TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
SILENT_S = 10  # seconds after which a client that asks nothing is let go


class MetricsExporter:
    """Serves what ``page`` returns until it is closed."""

    def __init__(self, address: str, page: Callable[[], str]) -> None:
        host, port = exporter_address(address)
        self.is_local = is_loopback(host)
        shown = f"[{host}]" if ":" in host else host

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S
            server_version, sys_version = "commtax", ""

            def do_GET(self) -> None:
                known = self.path.partition("?")[0] == PATH
                body = (page() if known else f"metrics are at {PATH}\n").encode()
                self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the terminal is the dashboard's."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Nothing: a client that goes away in the middle is no fault of ours."""

        try:
            self._server = Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise Refusal.of(f"cannot listen there ({why}); another port, such as {port + 1}?", export_prometheus=address) from None
        self.url = f"http://{shown}:{self._server.server_address[1]}{PATH}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def exporter_address(text: str) -> tuple[str, int]:
    """An address and a port; a port alone is this machine's.

    >>> exporter_address("9105"), exporter_address("0.0.0.0:9105"), exporter_address("[::1]:0")
    (('127.0.0.1', 9105), ('0.0.0.0', 9105), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port[:6]) > 65_535:
        raise Refusal.of("a port from 0 to 65535 is needed (0: any that is free), such as 9105", export_prometheus=text)
    return host.strip("[]") or "127.0.0.1", int(port)
