"""Benchmark results of several tools and versions, in seconds."""

import json
import math
from pathlib import Path

import pytest

from commtax.readers import bench

FIXTURES = Path(__file__).parent / "fixtures"
SERVE = {
    "date": "20250101-000000",
    "backend": "vllm",
    "model_id": "m",
    "num_prompts": 200,
    "request_rate": 4.0,
    "max_concurrency": None,
    "duration": 50.0,
    "completed": 200,
    "failed": 1,
    "total_input_tokens": 102_400,
    "total_output_tokens": 25_600,
    "request_throughput": 4.0,
    "output_throughput": 512.0,
    "total_token_throughput": 2560.0,
    "mean_ttft_ms": 40.0,
    "median_ttft_ms": 38.0,
    "p99_ttft_ms": 90.0,
    "mean_tpot_ms": 7.2,
    "median_tpot_ms": 7.0,
    "mean_itl_ms": 7.3,
    "mean_e2el_ms": 950.0,
}


def one(content):
    (found,) = bench.parse(json.dumps(content))
    return found


def test_latency_of_a_real_run():
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp2.latency.json").read_text())
    assert (found.tool, found.kind, len(found.latencies_s)) == ("vllm", "latency", 5)
    assert found.seconds("e2el") == pytest.approx(0.35132, rel=1e-4)
    assert found.seconds("e2el", "p99") == pytest.approx(0.41926, rel=1e-4)


def test_serving_and_throughput_of_real_runs():
    """vLLM 0.32 also writes the latencies of single requests into a serving result."""
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp1.serve.json").read_text())
    assert (found.kind, found.concurrency, found.tp, found.requests, found.request_rate) == ("serve", 1, 1, 8, math.inf)
    assert (found.input_len, found.output_len) == (128, 32)
    tpot, ttft, whole = (found.seconds(m, "mean") for m in ("tpot", "ttft", "e2el"))
    assert ttft + 31 * tpot == pytest.approx(whole, rel=1e-6), "TPOT is (E2E - TTFT) / (output - 1)"
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp1.throughput.json").read_text())
    assert found.total_tokens_per_s * found.duration_s == pytest.approx(1280)


def test_throughput_counts_all_tokens():
    found = one(
        {
            "elapsed_time": 10.0,
            "num_requests": 100,
            "total_num_tokens": 64000,
            "requests_per_second": 10.0,
            "tokens_per_second": 6400.0,
        }
    )
    assert (found.kind, found.total_tokens_per_s, found.output_tokens_per_s) == ("throughput", 6400.0, None)


def test_serve():
    found = one(SERVE)
    assert (found.tool, found.kind, found.failed, found.request_rate, found.concurrency) == ("vllm", "serve", 1, 4.0, None)
    assert found.seconds("ttft") == pytest.approx(0.038)
    assert found.seconds("ttft", "p99") == pytest.approx(0.09)
    assert found.seconds("itl") == pytest.approx(0.0073), "the mean where there is no median"
    assert (found.input_len, found.output_len) == (512, 128)


def test_rate_without_limit_and_details_in_seconds():
    plain = {k: v for k, v in SERVE.items() if not k.endswith("_ms")}
    found = one({**plain, "request_rate": "inf", "ttfts": [0.1, 0.3], "itls": [[0.01, 0.02], [0.03]]})
    assert found.request_rate == math.inf
    assert found.seconds("ttft") == pytest.approx(0.2)
    assert found.seconds("itl") == pytest.approx(0.02)


def test_sglang_lines():
    row = {**SERVE, "backend": "sglang", "mean_e2e_latency_ms": 800.0, "max_concurrency": 8, "accept_length": 2.5}
    found = bench.parse(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert len(found) == 2
    assert (found[0].tool, found[0].concurrency, found[0].accepted) == ("sglang", 8, 2.5)
    assert found[0].seconds("e2el", "mean") in (0.8, 0.95)


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1e-3), ("s", 1.0), ("us", 1e-6), ("ns", 1e-9)])
def test_aiperf_blocks_in_any_unit(unit, factor):
    block = {"unit": unit, "avg": 7.0, "p50": 6.5, "p99": 9.0, "count": 100}
    found = one(
        {
            "time_to_first_token": block,
            "inter_token_latency": block,
            "request_count": {"unit": "requests", "avg": 100},
            "output_sequence_length": {"unit": "tokens", "avg": 128},
        }
    )
    assert found.seconds("tpot") == pytest.approx(6.5 * factor)
    assert found.seconds("ttft", "p99") == pytest.approx(9 * factor)
    assert found.output_len == 128


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a": 1}',
        "hello",
        "1",
        '{"latencies": []}',
        '{"latencies": 5}',
        '{"avg_latency": NaN}',
        '{"avg_latency": -1}',
        '{"duration": 1, "completed": 1, "itls": 3}',
        '{"avg_latency": 1, "percentiles": [1]}',
    ],
)
def test_what_is_no_result(text):
    with pytest.raises(ValueError, match="benchmark"):
        bench.parse(text)
