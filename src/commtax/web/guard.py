"""What every request passes first: who may be asked by which name, how large a question may be, and what browsers are told."""

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress

from commtax.files import table
from commtax.redaction import redact
from commtax.report.view.state import Key

Message = MutableMapping[str, object]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
MAX_QUERY = 100 * 1024  # bytes of a query: a pasted config.json of 32 KiB with every sign escaped
MAX_FILE = 32 * 2**20  # bytes of a file that is dropped on the page
API = "/api/"  # what computes: pages elsewhere may link to the page, and ask nothing
DROP_PATH = f"{API}audit"
NAME = Key("file", "file", "dropped file", "The name of the file; of several, with a slash between them.", length=8192)
BODIES = Key("sizes", "sizes", "", "Bytes of each of several files.", length=4096, pattern="[0-9]{1,9}(,[0-9]{1,9})*")
RAN = "1: what ran is what the other keys say; 2: only where the files name their model and TP; 0: nobody says what ran."
CLAIM = Key("claim", "claim", 0, RAN, low=0, high=2)
MOST_ORIGIN = 100  # signs of an origin that a refusal repeats
FILE_TYPE = b"application/octet-stream"  # of a dropped file: browsers ask before they send this for a page elsewhere
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HTTP = table("web/http.toml")  # headers to browsers, what a refusal's status means, examples for readers of the schema
RAW = [(name.encode(), value.encode()) for name, value in HTTP["headers"].items()]


def problem(error: str, argument: str = "", rule: str = "", nearest: Sequence[float | str] = (), instead: object = None) -> bytes:
    """Return the one shape of every refusal."""
    error, rule = redact(error), redact(rule)
    document = {"error": error, "argument": argument, "rule": rule or error, "nearest": list(nearest), "instead": instead}
    return json.dumps(document, ensure_ascii=False).encode()


class Guard:
    """A refusal of foreign names (a page elsewhere may bind one to this address), of foreign pages and of large queries."""

    def __init__(self, app: App, host: str = "127.0.0.1") -> None:
        self.app, self.host = app, host.lower().strip("[]")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        guarded = _add_headers(send, head=scope["method"] == "HEAD")
        if refused := self._refused(scope):
            status, body, headers = refused
            plain = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await guarded({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
            await guarded({"type": "http.response.body", "body": body})
        else:
            await self.app(scope if scope["method"] == "POST" else {**scope, "method": "GET"}, receive, guarded)

    def _refused(self, scope: Message) -> tuple[int, bytes, list[tuple[bytes, bytes]]] | None:
        headers, method = {name.lower(): value for name, value in _headers(scope)}, str(scope["method"])
        if not self._is_ours(headers.get(b"host", b"").decode("latin-1")):
            text, rule = "host: the page was requested under another name", "loopback names, or the --host given"
            return 400, problem(text, "host", rule), []
        if str(scope.get("path")).startswith(API) and (origin := _foreign_origin(headers)):
            rule = "only this page, its address typed or a program asks; open the page and ask there"
            return 403, problem(f"origin: asked by {origin}: {rule}", "origin", rule), [(b"connection", b"close")]
        if method == "POST" and scope.get("path") == DROP_PATH:
            closing, length = [(b"connection", b"close")], headers.get(b"content-length", b"").strip()
            if headers.get(b"content-type", b"").strip().lower() != FILE_TYPE:
                return 415, problem(f"content-type: a file is sent as {FILE_TYPE.decode()}", "file"), closing
            if not length.isdigit() or b"transfer-encoding" in headers:
                return 411, problem("content-length: the size of the file is needed", "file"), closing
            if int(length) > MAX_FILE:
                rule = f"file: {int(length):,} bytes, more than the {MAX_FILE:,} that the page takes; commtax audit takes more"
                return 413, problem(rule, "file"), closing
            return None
        if method not in ("GET", "HEAD"):
            return 405, problem(f"method {method[:16]}: only GET and HEAD", "method"), [(b"allow", b"GET, HEAD")]
        if headers.get(b"content-length", b"0").strip() not in (b"0", b"") or b"transfer-encoding" in headers:
            return 413, problem("body: questions have none", "body", "no body"), [(b"connection", b"close")]
        if isinstance(query := scope.get("query_string"), bytes) and len(query) > MAX_QUERY:
            return 414, problem(f"query: longer than {MAX_QUERY:,} bytes", "query"), []
        return None

    def _is_ours(self, host: str) -> bool:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?", host)
        if not match:
            return False
        name = match[1].lower().strip("[]").rstrip(".")
        if name in (*LOOPBACK, self.host):
            return True
        with suppress(ValueError):  # bound to all addresses, each of them is ours; a name is not: anybody can point one here
            return self.host in ("0.0.0.0", "::") and bool(ipaddress.ip_address(name))
        return False


def _foreign_origin(headers: dict[bytes, bytes]) -> str:
    """Return the page elsewhere that a browser asks for, as far as it says, or "" where the question is ours or a program's."""
    site = headers.get(b"sec-fetch-site", b"").decode("latin-1")
    origin = (headers.get(b"origin") or headers.get(b"referer") or b"").decode("latin-1")[:MOST_ORIGIN]
    if site:  # told by every browser of these years, and by no script of a page
        return "" if site in ("same-origin", "none") else origin or f"a {site} page"
    host = headers.get(b"host", b"").decode("latin-1").lower()
    return "" if not origin or origin.partition("://")[2].partition("/")[0].lower() == host else origin


def _headers(message: Message) -> list[tuple[bytes, bytes]]:
    headers = message.get("headers")
    return list(headers) if isinstance(headers, Iterable) else []


def _add_headers(send: Send, head: bool) -> Send:
    """Add what browsers are told, and to HEAD send the head alone."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*_headers(message), *RAW]}
        elif head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sending
