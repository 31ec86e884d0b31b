"""The page's bars: requests a second and p95 of /api/bill on one core, start-up CPU, the page's weight.

``python benchmarks/web.py [--seconds 10] [--rate 50]``. The server is held on one core and the client on another; every
request asks something new, so that no cache helps.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import gzip
import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlencode

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "mixtral-8x7b")


def start(core: int | None = None) -> tuple[subprocess.Popen[str], int, float]:
    """A server on a free port, and the CPU seconds that it took until it answers."""
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pinned, sys.executable, "-m", "commtax", "web", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(re.search(r":(\d+)/", server.stdout.readline())[1])  # type: ignore[index]
    while True:
        try:
            ask(http.client.HTTPConnection("127.0.0.1", port), "/page.css")
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    return server, port, cpu_s(server.pid)


def cpu_s(pid: int) -> float:
    """CPU seconds of the server, of the nursery that it started and of the workers that live."""
    rows = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as file:
            fields = file.read().rsplit(")", 1)[1].split()
            rows[int(path.split("/")[2])] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {pid}
    for _ in range(2):
        family |= {child for child, (parent, _) in rows.items() if parent in family}
    return sum(rows[member][1] for member in family if member in rows) / os.sysconf("SC_CLK_TCK")


def ask(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def questions() -> Iterator[str]:
    """Different bills without end, served ones and training ones by turns."""
    for i in itertools.count():
        served = {
            "m": MODELS[i % 5],
            "c": "2x8xh200-sxm",
            "tp": 8,
            "b": 1 + i % 997,
            "s": 100 + i,
            "ph": ("decode", "prefill")[i % 2],
        }
        trained = {
            "m": "llama-3.1-70b",
            "c": "8x8xh100-sxm",
            "tp": 8,
            "dp": 8,
            "ph": "train",
            "n": 1 + i % 64,
            "s": 512 + 8 * (i % 4000),
        }
        yield "/api/bill?" + urlencode(trained if i % 4 == 3 else served)


def measure(port: int, seconds: float, rate: float) -> list[float]:
    """Latencies of requests sent at a steady rate, from when each was due: waiting behind others counts."""
    asked, found, lock, begin = questions(), list[float](), threading.Lock(), time.perf_counter() + 0.2
    due = iter([begin + i / rate for i in range(int(seconds * rate))])

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                when, path = next(due, None), next(asked)
            if when is None:
                return
            time.sleep(max(0.0, when - time.perf_counter()))
            status = ask(connection, path)
            assert status == 200, (status, path)
            with lock:
                found.append(time.perf_counter() - when)

    clients = [threading.Thread(target=client) for _ in range(16)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return found


def most(port: int, seconds: float) -> float:
    """Requests a second of one client that never waits."""
    connection, asked = http.client.HTTPConnection("127.0.0.1", port), itertools.islice(questions(), 100_000, None)
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        assert ask(connection, next(asked)) == 200
        count += 1
    return count / seconds


def weight() -> dict[str, int]:
    from commtax.web.assets import page_files

    bodies = [body for body, _ in page_files().values()]
    return {"page_bytes": sum(map(len, bodies)), "page_gzip_bytes": sum(len(gzip.compress(b)) for b in bodies)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=50.0)
    words = parser.parse_args()
    starts = []
    for _ in range(3):
        server, port, used = start()
        server.terminate()
        server.wait()
        starts.append(used)
    server, port, _ = start(core=0)
    try:
        measure(port, 1.0, 20)  # warm
        before = cpu_s(server.pid)
        times = sorted(measure(port, words.seconds, words.rate))
        spent = cpu_s(server.pid) - before
        rate = most(port, 5.0)
    finally:
        server.terminate()
        server.wait()
    figures = {
        "startup_cpu_s": statistics.median(starts),
        "rate_asked": words.rate,
        "requests": len(times),
        "cpu_ms_per_request": 1e3 * spent / len(times),
        "median_ms": 1e3 * times[len(times) // 2],
        "p95_ms": 1e3 * times[int(0.95 * len(times))],
        "most_requests_per_s": rate,
        **weight(),
    }
    print(json.dumps(figures, indent=2))
    good = figures["startup_cpu_s"] < 1.5 and figures["p95_ms"] < 60 and rate >= 50 and figures["page_bytes"] < 200_000
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
