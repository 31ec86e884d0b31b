"""Pages of metrics, and a real HTTP server on loopback that shows them.

``SimulatedServer`` writes what vLLM would of requests that were simulated: histograms and counters up to a moment.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np

import commtax
from paths import FIXTURES

BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


def recorded(number: int) -> str:
    """A page of vLLM 0.32's CPU build: tiny-llama with random weights under six clients, the second 20.03 s after the first. Each
    request had 160 prompt tokens, of which all share 128, and 32 to answer. The third is of the same server started again with
    drafts of n-grams, under four clients."""
    return gzip.decompress((FIXTURES / f"vllm-cpu-metrics-{number}.prom.gz").read_bytes()).decode()


RECORDED_APART_S = 20.03


@dataclass
class SimulatedServer:
    """A server whose requests are those of ``commtax.serve``, each second of it ``stretch`` seconds long."""

    model: str
    cluster: str
    options: dict[str, float]
    stretch: float = 1.0
    columns: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = commtax.serve(self.model, self.cluster, **self.options).columns

    def page(self, until_s: float, started_s: float = 1.7e9) -> str:
        """All that happened up to a moment of the simulation."""
        c, longer = self.columns, self.stretch
        first, end = c["sent_s"] + c["ttft_s"], c["sent_s"] + c["e2e_s"]
        begun, done = first <= until_s, end <= until_s
        gap = np.divide(c["e2e_s"] - c["ttft_s"], np.maximum(1, c["output_len"] - 1))
        tokens = np.minimum(c["output_len"] - 1, np.floor((until_s - first) / np.maximum(gap, 1e-9)))[begun]
        lines = [f"process_start_time_seconds {started_s}"]
        lines += histogram("time_to_first_token_seconds", c["ttft_s"][begun] * longer)
        lines += histogram("inter_token_latency_seconds", np.repeat(gap[begun], tokens.astype(int)) * longer)
        lines += histogram("request_time_per_output_token_seconds", gap[done] * longer)
        lines += histogram("e2e_request_latency_seconds", c["e2e_s"][done] * longer)
        lines += histogram("request_prompt_tokens", c["input_len"][done])
        lines += histogram("request_generation_tokens", c["output_len"][done])
        lines += [f"vllm:prompt_tokens_total{LABELS} {c['input_len'][begun].sum()}"]
        lines += [f"vllm:generation_tokens_total{LABELS} {tokens.sum() + begun.sum()}"]
        there = (c["sent_s"] <= until_s).sum() - done.sum()
        lines += [f"vllm:num_requests_running{LABELS} {there}", f"vllm:num_requests_waiting{LABELS} 0"]
        return "\n".join(lines) + "\n"


LABELS = '{engine="0",model_name="m"}'


def histogram(name: str, values: Sequence[float] | np.ndarray, bounds: Sequence[float] = BOUNDS) -> list[str]:
    """As the text format has it."""
    values = np.asarray(values, dtype=float)
    counted = [(f"{bound}", (values <= bound).sum()) for bound in bounds] + [("+Inf", len(values))]
    lines = [f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="m"}} {count}' for bound, count in counted]
    return [*lines, f"vllm:{name}_sum{LABELS} {values.sum()}", f"vllm:{name}_count{LABELS} {len(values)}"]


@dataclass
class ShownPage:
    body: str | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@contextmanager
def shown(*pages: ShownPage | str) -> Iterator[MetricsServer]:
    """A server of these pages, one after the other, the last again and again."""
    server = MetricsServer(pages)
    try:
        yield server
    finally:
        server.close()


class MetricsServer:
    """On a free port of loopback; remembers the headers of those who asked."""

    def __init__(self, pages: Sequence[ShownPage | str]) -> None:
        self.pages = [p if isinstance(p, ShownPage) else ShownPage(p) for p in pages]
        self.asked: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = outer.pages[min(len(outer.asked), len(outer.pages) - 1)]
                outer.asked.append({"path": self.path, **self.headers})
                body = page.body.encode() if isinstance(page.body, str) else page.body
                self.send_response(page.status)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that has seen enough goes
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
