"""A running server's metrics, fetched over HTTP within limits of time and size: whoever answers may be anybody."""

import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO, NoReturn, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from commtax.files import table
from commtax.runs.results.exposition import LookAtServer, read_exposition
from commtax.statement import Refusal
from commtax.thresholds import thresholds

COUNT, LEVEL = thresholds(__name__)
ANSWERS: Mapping[str, str] = table("runs/audit/hints.toml")["metrics"]  # what a status code means here, and what to do about it


class OpenReply(Protocol):
    """What urllib hands out: a body that is still to be read, in pieces."""

    def read1(self, most: int, /) -> bytes: ...


class MetricsPage:
    """A page of metrics: its address, and the headers to send."""

    def __init__(self, url: str, headers: Sequence[str] = ()) -> None:
        self.url = metrics_address(url)
        self.headers = dict(map(_header, headers))
        local = is_loopback(urlsplit(self.url).hostname or "")
        self._opener = build_opener(_SameOrigin(), *([ProxyHandler({})] if local else []))  # nobody's proxy knows our loopback

    def fetch(self) -> LookAtServer:
        """Fetch the engines' samples from the page, with the time of their arrival."""
        request = Request(self.url, headers={"User-Agent": "commtax", "Accept": "text/plain"})
        for name, value in self.headers.items():
            request.add_unredirected_header(name, value)
        until = time.monotonic() + LEVEL.most_s
        try:
            with self._opener.open(request, timeout=LEVEL.silent_s) as answer:
                body = _read_within(answer, until)
        except HTTPError as error:
            with error:
                self._refuse(f"answers with {error.code}{_remedy(str(error.code))}")
        except (URLError, TimeoutError, HTTPException, OSError, ValueError) as error:
            self._refuse(_reason_unreached(error))
        at_s, text = time.monotonic(), body.decode("utf-8", errors="replace")
        return LookAtServer(at_s, read_exposition(text) or self._refuse_text(text))

    def _refuse(self, why: str) -> NoReturn:
        raise Refusal(f"metrics '{self.url}': {why}", "metrics")

    def _refuse_text(self, text: str) -> NoReturn:
        """Say what came instead of metrics of an engine."""
        begin = text.lstrip()[:1]
        if begin == "<":
            self._refuse(f"answers with a web page, not with metrics{_remedy('page')}")
        if begin in ("{", "["):
            self._refuse(f"answers with JSON, not with metrics{_remedy('json')}")
        names = [line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line[:1].isalpha()]
        others = ", ".join(dict.fromkeys(name[: COUNT.most_signs] for name in names[: COUNT.most_lines]))
        instead = f"; there are {others}" if others else ""
        self._refuse(f"holds no metric of vLLM, SGLang or TensorRT-LLM{instead}{_remedy('none')}")


class _SameOrigin(HTTPRedirectHandler):
    """A redirect handler that follows other paths of the same server, and no other server."""

    def redirect_request(  # the names are urllib's
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            fp.close()
            raise ValueError(f"sends us on to {newurl[:200]}: give that address")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made:
            made.unredirected_hdrs.update(req.unredirected_hdrs)
        return made


def _read_within(answer: OpenReply, until: float) -> bytes:
    """Read a body to its end, and give up on one that is too large or trickles for too long."""
    body = bytearray()
    while piece := answer.read1(COUNT.piece_bytes):
        body += piece
        if len(body) > COUNT.most_bytes:
            raise ValueError(f"answers with more than {COUNT.most_bytes // 2**20} MiB, which is no page of metrics")
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(body)


def _reason_unreached(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}){_remedy('certificate')}"
    if isinstance(cause, ssl.SSLError):
        return f"does not speak HTTPS there{_remedy('tls')}"
    if isinstance(cause, TimeoutError):
        return f"no whole answer within {LEVEL.most_s:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return f"nobody listens there{_remedy('refused')}"
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, HTTPException):
        return f"does not answer in HTTP ({type(cause).__name__})"
    return str(cause)[:200] if isinstance(cause, ValueError) else f"cannot be reached ({cause!s:.100})"


def _remedy(key: str) -> str:
    return f": {ANSWERS[key]}" if key in ANSWERS else ""


def metrics_address(url: str) -> str:
    """Check an address (http or https, with a host), and complete one without a path as vLLM and SGLang serve it.

    >>> metrics_address("http://localhost:8000")
    'http://localhost:8000/metrics'
    """
    scheme, rest = url.partition("://")[::2]
    if not rest or scheme.lower() not in ("http", "https"):
        bare = rest or url
        raise Refusal.of(f"an address is needed, such as http://{bare or 'localhost:8000/metrics'}", metrics=url)
    try:
        parts = urlsplit(url)
        place, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Refusal.of(f"not an address ({error})", metrics=url) from None
    if not place or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise Refusal.of("an address with a host is needed, such as http://localhost:8000/metrics", metrics=url)
    if parts.username is not None:
        raise Refusal.about(metrics="leave name and password out of the address, and send them with --header")
    return parts._replace(path="/metrics").geturl() if parts.path in ("", "/") else url


def _header(text: str) -> tuple[str, str]:
    """Parse a header such as ``Authorization: Bearer …``."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip().isascii() or not name.strip().replace("-", "").isalnum() or not value.strip().isprintable():
        raise Refusal.about(header="write NAME: VALUE, such as 'Authorization: Bearer TOKEN'")
    return name.strip(), value.strip()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
