"""``commtax audit --metrics``: a running server beside its prediction, once or again and again.

The predicted band is served to Prometheus from this machine only, unless an address says otherwise.
"""

import json
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import NoReturn

import click

from commtax import catalog
from commtax.cli.options import CommandOptions
from commtax.cli.order import refuse
from commtax.cli.output import Output
from commtax.cli.progress import tell
from commtax.files import write_text
from commtax.rules.values import number
from commtax.runs.audit.scraping import MetricsPage, is_loopback
from commtax.runs.evidence.finding import DISAGREE, FAULT, UNKNOWN, Claim
from commtax.runs.report import server_words
from commtax.runs.report.audit_words import audit_document
from commtax.runs.report.server_words import DashboardLine, dashboard
from commtax.runs.results.exposition import Exposition, LookAtServer
from commtax.runs.results.live import LooksAtServer, MetricsWindow, ServerAudit, audit_server
from commtax.spec import Model
from commtax.statement import Note, Refusal
from commtax.units import format_seconds

TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
SILENT_S = 10  # seconds after which a client that asks nothing is let go


class MetricsExporter:
    """A server of what ``page`` returns, until it is closed."""

    def __init__(self, address: str, page: Callable[[], str]) -> None:
        host, port = exporter_address(address)
        self.is_local = is_loopback(host)
        shown = f"[{host}]" if ":" in host else host

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S
            server_version, sys_version = "commtax", ""

            def do_GET(self) -> None:
                is_page = self.path.partition("?")[0] == PATH
                body = (page() if is_page else f"metrics are at {PATH}\n").encode()
                self.send_response(HTTPStatus.OK if is_page else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing, since the terminal is the dashboard's."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore a client that goes away in the middle, which is no fault of ours."""

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
    """Parse an address and a port, where a port alone is on this machine.

    >>> exporter_address("9105"), exporter_address("0.0.0.0:9105"), exporter_address("[::1]:0")
    (('127.0.0.1', 9105), ('0.0.0.0', 9105), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port[:6]) > 65_535:
        raise Refusal.of("a port from 0 to 65535 is needed (0: any that is free), such as 9105", export_prometheus=text)
    return host.strip("[]") or "127.0.0.1", int(port)


SHORTEST_S, LONGEST_S = 0.1, 86_400.0  # between two looks, and of a window
USUAL_EVERY_S, USUAL_WINDOW_S = 15.0, 60.0
MOST_KEPT = 32  # looks that the dashboard shows
NO_VERDICT = 3


def answer_metrics(
    files: tuple[Path, ...], output: Output, options: CommandOptions, claim_of: Callable[[Callable[[], Model]], Claim] | None
) -> NoReturn:
    """Look at a server, compare, and tell: once, over a window, or until Ctrl-C."""
    if files:
        raise Refusal.about(metrics="give a server or files, not both")
    refuse(options, ("diff", "anonymise", "html", "baseline"), "belongs to files, not to --metrics")
    refuse(options, () if claim_of else ("tolerance",), "belongs to a comparison: say with --model what runs")
    limits = ((name, options[name]) for name in ("window", "every"))
    span_s, every_s = (None if x is None else float(number(x, name, SHORTEST_S, LONGEST_S, " s")) for name, x in limits)
    page = MetricsPage(str(options.metrics), options.header or ())
    if options.grafana:
        shipped = resources.files("commtax") / "runs" / "report" / "grafana_dashboard.json"
        write_text(options.grafana, shipped.read_text(encoding="utf-8"), "grafana")
        output.remarks.append(Note("grafana", f"{options.grafana}: import it in Grafana (Dashboards, New, Import)"))
    if options.export_prometheus and every_s is None:
        every_s = USUAL_EVERY_S
    first = page.fetch()
    claim = claim_of(lambda: _model_named(first.page)) if claim_of else None
    watch = ServerWatch(page, claim, span_s or max(USUAL_WINDOW_S, every_s or 0.0))
    if every_s is not None:
        _follow(watch, first, every_s, output, str(options.export_prometheus or ""))
    if span_s is not None:
        watch.remember(first)
        end, shown = time.monotonic() + span_s, sys.stderr.isatty()
        while (left := end - time.monotonic()) > 0:
            if shown:
                tell(f"the second look comes in {left:.0f} s")
            time.sleep(min(left, 1.0) if shown else left)
        if shown:
            tell()
    seen = watch.look(first if span_s is None else None)
    verdict = seen.audited.verdict
    code = 1 if verdict in (DISAGREE, FAULT) else NO_VERDICT if claim and verdict == UNKNOWN else 0
    output.answer(lambda s: audit_document(s.audited), server_words.show_server, seen, code=code)


def _model_named(page: Exposition) -> Model:
    """Return the model that the server reports, if the catalogue has it."""
    try:
        return catalog.model(page.model)
    except ValueError:
        reported = f"the server calls it '{page.model[:80]}'" if page.model else "the server does not name it"
        raise Refusal(f"model: name what runs with --model; {reported}, which is no model of the catalogue", "model") from None


class ServerWatch:
    def __init__(self, page: MetricsPage, claim: Claim | None, window_s: float) -> None:
        self.page, self.claim = page, claim
        self.looks, self.failures, self.last_s = 0, 0, 0.0
        self.history: deque[ServerAudit] = deque(maxlen=MOST_KEPT)
        self.trouble = ""
        self._kept = LooksAtServer(window_s)

    def remember(self, look: LookAtServer) -> MetricsWindow:
        """Add a look, and return what happened up to it."""
        self.last_s = time.time()
        return self._kept.add(look)

    def look(self, look: LookAtServer | None = None) -> ServerAudit:
        """Fetch, compare and remember, or refuse if nobody answers."""
        self.looks += 1
        seen = audit_server(self.remember(look or self.page.fetch()), self.claim, self.page.url)
        self.trouble = ""
        self.history.append(seen)
        return seen

    def try_look(self) -> ServerAudit | None:
        """Look again at a server that has answered before, and count a look that fails."""
        try:
            return self.look()
        except Refusal as refusal:
            self.failures += 1
            self.trouble = str(refusal)
            return None

    def exposition(self) -> str:
        last = None if self.trouble or not self.history else self.history[-1]
        return server_words.exposition(last, self.looks, self.failures, self.last_s)


Show = Callable[[ServerAudit | None], None]  # told of each look; None where it failed


def _follow(watch: ServerWatch, first: LookAtServer, every_s: float, output: Output, export: str) -> NoReturn:
    """Look again and again, until Ctrl-C."""
    exporter = MetricsExporter(export, watch.exposition) if export else None
    if exporter:
        open_to = "" if exporter.is_local else ", reachable from other machines"
        output.remarks.append(f"predicted band for Prometheus at {exporter.url}{open_to}")
    for remark in output.remarks:
        click.echo(f"· {remark}", err=True)
    try:
        with _ended_by_signal(), _shown(watch, every_s, output.as_json, exporter.url if exporter else "") as show:
            show(watch.look(first))
            due = time.monotonic() + every_s
            while True:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - every_s) + every_s  # looks that were missed are not made up for
                show(watch.try_look())
    except KeyboardInterrupt:
        pass
    finally:
        if exporter:
            exporter.close()
    sys.stdout.flush()
    sys.exit(0)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Treat an ordinary end by another process like Ctrl-C, so that the terminal gets its cursor back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown(watch: ServerWatch, every_s: float, as_json: bool, exported: str) -> Iterator[Show]:
    """Yield a function that shows each look: a dashboard on a terminal, else a line or a document."""
    if as_json or not sys.stdout.isatty():
        yield lambda seen: _tell_line(watch, seen, as_json)
        return
    from rich.console import Console
    from rich.live import Live

    screen = Console(highlight=False, markup=False, emoji=False)
    with Live(console=screen, auto_refresh=False) as live:

        def draw(_seen: ServerAudit | None) -> None:
            line = DashboardLine(watch.page.url, time.strftime("%H:%M:%S"), format_seconds(every_s), watch.trouble, exported)
            live.update(dashboard(watch.history, line, screen.width), refresh=True)

        yield draw


def _tell_line(watch: ServerWatch, seen: ServerAudit | None, as_json: bool) -> None:
    """Print one line for each look, so that others can read along."""
    if seen is None:
        click.echo(watch.trouble, err=True)
    elif as_json:
        click.echo(json.dumps(audit_document(seen.audited), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(f"{time.strftime('%H:%M:%S')} {server_words.answer_sentence(seen)} [{server_words.load_sentence(seen)}]")
    sys.stdout.flush()
