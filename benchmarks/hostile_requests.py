"""5,000 hostile requests to the page: no 5xx, no answer over 5 s, memory flat, and it still answers. Exit code 1: a bar is broken.

python benchmarks/hostile_requests.py [--count 5000] [--seed 1] [--clients 4] [--only CASE]

A real ``commtax web`` on a free port of this machine, and clients that ask what nobody should: every key of the state in and out
of its range, damaged configs, wrong methods, hosts, headers and encodings, halves of requests, several at once, lost connections.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

from hostile_files import JSON_CHANGES
from hostile_values import CLUSTERS, EXTREME, GARBAGE, MODELS, damaged

from commtax import catalog

SLOW_S, LAST_S, END_S, PATIENCE_S = 5.0, 1.0, 3.0, 20.0
"""Bars: an answer, the plain question at the end, the end itself; and how long a client waits before it gives up."""
GROWTH, SLACK_BYTES, WARM = 1.2, 32e6, 500
"""How much larger the server may be at the end than after its first requests."""
HOST = "127.0.0.1"
HEADERS = (
    *("", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "X: " + "y" * 20_000 + "\r\n", "Range: bytes=0-1\r\n"),
    *("Upgrade: websocket\r\nConnection: Upgrade\r\n", "If-None-Match: *\r\n", "Expect: 100-continue\r\n"),
)
PLACES = (*CLUSTERS, "64x8xh100-sxm", "128x4xgb200", "2048x8xh100-sxm")


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes to send; how many answers to wait for: 0, hang up at once; -1, take what comes."""

    kind: str
    raw: bytes
    answers: int = 1
    head: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    request: Request
    statuses: tuple[int, ...]
    seconds: float
    trouble: str = ""


Key = dict[str, Any]


class Asking(random.Random):
    """Chance, and what the server says that it can be asked: endpoints with their keys, from its own schema."""

    def __init__(self, seed: str, schema: dict[str, Any]) -> None:
        super().__init__(seed)
        self.keys: dict[str, list[Key]] = {p: v["get"].get("parameters", []) for p, v in schema["paths"].items() if "get" in v}
        self.paths = sorted(self.keys)
        self.state = max(self.keys.values(), key=len)


def request(seed: int, number: int, schema: dict[str, Any]) -> Request:
    rng = Asking(f"{seed}:{number}", schema)
    kinds = [make for make, weight in KINDS.items() for _ in range(weight)]
    return rng.choice(kinds)(rng)


def _get(target: str, method: str = "GET", host: str = HOST, headers: str = "", end: str = "\r\n") -> bytes:
    text = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}{end}"
    return text.encode("utf-8", "surrogateescape")


def _value(rng: Asking, key: Key) -> str:
    """A value of the key's own range or list."""
    name, shape = key["name"], key["schema"]
    if name == "m":
        return rng.choice((*MODELS, *catalog.keys("models")))
    if name == "c":
        return rng.choice(PLACES)
    if name == "cfg":
        return config(rng)
    if "enum" in shape:
        return rng.choice(shape["enum"])
    if "maximum" in shape:
        top = shape["maximum"] if rng.random() < 0.15 else min(shape["maximum"], rng.choice((1, 2, 4, 8, 64, 1024, 8192)))
        number = max(shape["minimum"], top)
        return str(int(number)) if shape["type"] == "integer" else f"{number:g}"
    return rng.choice(shape.get("examples", ("x", "", "1.5")))


def config(rng: random.Random) -> str:
    """A config.json of the catalogue, some of its values changed."""
    raw = json.dumps(catalog.config(rng.choice(MODELS)), separators=(",", ":")).encode()
    for _ in range(rng.choice((0, 1, 1, 3))):
        raw = rng.choice(JSON_CHANGES)(rng, raw)
    return raw.decode("utf-8", "replace")[:40_000]


def _question(rng: Asking, bad: float = 0.0) -> str:
    """An endpoint with some keys."""
    path = rng.choice(rng.paths)
    keys = [key for key in rng.keys[path] or rng.state[:2] if key["name"] != "cfg" or rng.random() < 0.3]
    pairs = {key["name"]: _value(rng, key) for key in rng.sample(keys, min(len(keys), rng.choice((0, 1, 2, 3, 5))))}
    for key in rng.sample(rng.state, 1 + rng.randrange(2)) if rng.random() < bad else ():
        pairs[key["name"]] = rng.choice((damaged(rng, _value(rng, key)), rng.choice(EXTREME), rng.choice(GARBAGE)))
    return f"{path}?{urlencode(pairs, errors='surrogateescape')}"


def _state(rng: Asking) -> Request:
    return Request("state", _get(_question(rng)))


def _bad_state(rng: Asking) -> Request:
    return Request("bad state", _get(_question(rng, 1.0)))


def _broken_query(rng: Asking) -> Request:
    queries = ["%", "tp=%ff%fe", "%zz=1", "&&&=", "tp", "tp=1&tp=2", "tp[]=1", "m=%00", ";tp=1"]
    queries += ["m=" + "a" * 50_000, "&".join("b=1" for _ in range(9000))]
    query = rng.choice((*queries, quote_from_bytes(rng.randbytes(60)), "=".join(GARBAGE[:20]).replace(" ", "+").replace("\n", "")))
    return Request("broken query", _get(f"{rng.choice(rng.paths)}?{query}".replace("\r", "").replace("\n", "")))


def _guarded(rng: Asking) -> Request:
    """Methods, hosts, headers, bodies and paths that are refused before anything looks at them."""
    paths = ("/", "/api/view", "/../etc/passwd", "/%2e%2e/app.py", "//", "/api", "/api/nothing", "/page.js", "/openapi.json", "/é")
    path = rng.choice(paths)
    method = rng.choice(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW", "get"))
    host = rng.choice((HOST, "localhost", "evil.example", "", "127.0.0.1:80:80", "[::1]", "a b", "\u0661", "x" * 5000))
    headers = rng.choice(HEADERS)
    body = "hello" if "Content-Length" in headers else "5\r\nhello\r\n0\r\n\r\n" if "chunked" in headers else ""
    wanted = -1 if method in ("get", "BREW") or host != HOST else 1
    return Request("guarded", _get(path, method, host, headers, "\r\n" + body), wanted, method == "HEAD")


def _half(rng: Asking) -> Request:
    raw = _get(_question(rng))
    return Request("half", raw[: rng.randrange(len(raw))], 0)


def _dropped(rng: Asking) -> Request:
    """A whole question, and nobody who waits for the answer."""
    state = {"m": rng.choice(MODELS), "c": rng.choice(PLACES), "il": rng.randint(1, 9000)}
    return Request("dropped", _get(f"/api/{rng.choice(('plan', 'compare', 'fit', 'pipeline'))}?{urlencode(state)}"), 0)


def _pipelined(rng: Asking) -> Request:
    count = rng.randint(2, 5)
    return Request("pipelined", b"".join(_get(_question(rng)) for _ in range(count)), count)


def _huge(rng: Asking) -> Request:
    size = rng.choice((90_000, 150_000, 600_000, 2_000_000))
    shape = rng.choice(("query", "header", "path", "many"))
    if shape == "query":
        raw = _get(f"/api/view?cfg={'%22' * (size // 3)}")
    elif shape == "header":
        raw = _get("/api/view", headers=f"X: {'y' * size}\r\n")
    elif shape == "path":
        raw = _get("/" + "a" * size)
    else:
        raw = _get("/api/view", headers="".join(f"X-{i}: y\r\n" for i in range(size // 8)))
    return Request("huge", raw, -1)


def _noise(rng: Asking) -> Request:
    text = b"GET", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n\r\n"
    begins = rng.choice((*text, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", rng.randbytes(300)))
    return Request("noise", begins + rng.randbytes(rng.randrange(30)), -1)


KINDS = {_state: 30, _bad_state: 25, _broken_query: 8, _guarded: 12, _half: 5, _dropped: 4, _pipelined: 5, _huge: 5, _noise: 6}
"""How often each kind is sent."""


def ask(port: int, number: int, asked: Request) -> Reply:
    """Send it, and time the answers that it should get; the longest wait for one of them counts."""
    statuses: list[int] = []
    moments = [time.monotonic()]
    try:
        with socket.create_connection((HOST, port), timeout=PATIENCE_S) as connection:
            if asked.answers < 0:
                connection.settimeout(0.5)
            connection.sendall(asked.raw)
            stream = connection.makefile("rb")
            for _ in range(max(asked.answers, -asked.answers)):
                statuses.append(_status(stream, asked.head))
                moments.append(time.monotonic())
    except TimeoutError:
        trouble = f"no answer within {PATIENCE_S:g} s" if asked.answers > 0 else ""
    except (OSError, ValueError) as error:
        trouble = f"{type(error).__name__}: {error}" if asked.answers > 0 and not statuses else ""
    else:
        trouble = ""
    waits = [after - before for before, after in pairwise([*moments, time.monotonic()])]
    return Reply(number, asked, tuple(statuses), max(waits), trouble)


def _status(stream: object, head: bool) -> int:
    """One answer: its status, after its body was read."""
    first = stream.readline(65_536)  # type: ignore[attr-defined]
    found = re.match(rb"HTTP/1\.[01] (\d{3})", first)
    if not found:
        raise ValueError(f"no status line but {first[:40]!r}")
    size = 0
    while (line := stream.readline(65_536)) not in (b"\r\n", b""):  # type: ignore[attr-defined]
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    status = int(found[1])
    if not head and len(stream.read(size)) < size:  # type: ignore[attr-defined]
        raise ValueError(f"an answer of {size} bytes was cut off")
    return _status(stream, head) if status < 200 else status


class Server:
    """``commtax web`` on a free port."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "commtax", "web", "--port", "0"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])  # type: ignore[index]
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/openapi.json", timeout=PATIENCE_S) as answer:
            self.schema: dict[str, Any] = json.load(answer)
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def tree(self) -> list[int]:
        """The server's process and all below it."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for file in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += [int(child) for child in file.read_text().split()]
        return found

    def rss_bytes(self) -> int:
        pages = 0
        for pid in self.tree():
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:  # it ended meanwhile
                continue
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> tuple[float, list[int]]:
        """Seconds until a terminated server is gone, and what it left running."""
        tree, begin = self.tree(), time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        seconds = time.monotonic() - begin
        time.sleep(0.3)
        return seconds, [pid for pid in tree if Path(f"/proc/{pid}").exists()]


@dataclass(slots=True)
class Run:
    replies: list[Reply]
    sizes: list[tuple[int, int]]
    """Requests so far, and the server's bytes."""

    def failures(self) -> dict[str, list[Reply]]:
        found: dict[str, list[Reply]] = {}
        for reply in self.replies:
            bad = [s for s in reply.statuses if s >= 500]
            waited = reply.request.answers > 0 and reply.seconds > SLOW_S
            what = f"status {bad[0]}" if bad else reply.trouble or (f"over {SLOW_S:g} s" if waited else "")
            if what:
                found.setdefault(f"{what} ({reply.request.kind})", []).append(reply)
        return found


def send_all(server: Server, seed: int, count: int, clients: int) -> Run:
    run, begin = Run([], [(0, server.rss_bytes())]), time.monotonic()
    try:
        with ThreadPoolExecutor(clients) as pool:
            for start in range(0, count, 100):
                numbers = range(start, min(count, start + 100))
                run.replies += pool.map(lambda n: ask(server.port, n, request(seed, n, server.schema)), numbers)
                run.sizes.append((len(run.replies), server.rss_bytes()))
                if start % 500 == 400:
                    broken = sum(map(len, run.failures().values()))
                    told = f"{len(run.replies):,} sent, {broken} broken, {run.sizes[-1][1] / 1e6:.0f} MB"
                    print(f"{time.monotonic() - begin:6.0f} s: {told}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {len(run.replies):,} of {count:,}")
    return run


def show(run: Run) -> None:
    for what, replies in run.failures().items():
        worst = max(replies, key=lambda r: r.seconds)
        print(f"\n{len(replies):,} x {what}\n  case {worst.number}, {worst.seconds:.1f} s: {worst.request.raw[:400]!r}")
    counts = Counter((r.request.kind, s) for r in run.replies for s in r.statuses)
    print("\nstatuses: " + ", ".join(f"{kind} {status}: {n:,}" for (kind, status), n in sorted(counts.items())))
    print("longest:")
    for reply in sorted((r for r in run.replies if r.request.answers > 0), key=lambda r: -r.seconds)[:5]:
        print(f"  {reply.seconds:.2f} s, case {reply.number} ({reply.request.kind}): {reply.request.raw[:160]!r}")
    print("memory: " + ", ".join(f"{n:,}: {size / 1e6:.0f} MB" for n, size in run.sizes[:: max(1, len(run.sizes) // 12)]))


def judge(run: Run, server: Server) -> list[str]:
    """The bars that only a whole run tells; ends the server."""
    warm = next((size for n, size in run.sizes if n >= WARM), run.sizes[-1][1])
    most = max(size for _, size in run.sizes)
    first, last = warm / 1e6, run.sizes[-1][1] / 1e6
    print(f"most memory: {most / 1e6:.0f} MB; after {WARM} requests {first:.0f} MB, in the end {last:.0f} MB")
    last = ask(server.port, -1, Request("plain", _get("/api/bill?tp=2")))
    seconds, left = server.end()
    print(f"a plain question in the end: {last.seconds:.2f} s, status {last.statuses}")
    print(f"ended in {seconds:.2f} s, {len(left)} processes left")
    noise = [line for line in server.said if "Traceback" in line or "Error" in line]
    broken = {
        f"memory grew to {run.sizes[-1][1] / 1e6:.0f} MB": run.sizes[-1][1] > GROWTH * warm + SLACK_BYTES,
        "the plain question in the end": last.statuses != (200,) or last.seconds > LAST_S,
        f"ended in {seconds:.1f} s": seconds > END_S,
        "processes are left": bool(left),
        f"the server wrote {noise[:3]}": bool(noise),
    }
    return [what for what, is_so in broken.items() if is_so]


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--count", type=int, default=5000)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--clients", type=int, default=4)
    given.add_argument("--only", type=int, default=-1, metavar="CASE", help="Send one request, and print what it is and gets.")
    words = given.parse_args()
    server = Server()
    try:
        if words.only >= 0:
            print(ask(server.port, words.only, request(words.seed, words.only, server.schema)))
            return 0
        run = send_all(server, words.seed, words.count, words.clients)
        show(run)
        broken = [*run.failures(), *judge(run, server)]
    finally:
        server.process.kill()
    print(f"\n{len(run.replies):,} requests, broken: {'; '.join(broken) or 'nothing'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
