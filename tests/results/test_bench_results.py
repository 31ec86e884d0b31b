"""Benchmark results of several tools and versions, in seconds."""

import json
import math
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from commtax.runs.audit import formats
from commtax.runs.results import bench, exposition
from commtax.runs.results.bench import read_damaged
from commtax.statement import Refusal
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)

REAL = json.loads((FIXTURES / "audit" / "benches.json").read_text())
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


@each("text", DATA["what_is_no_result"])
def test_what_is_no_result(text):
    with pytest.raises(ValueError, match="benchmark"):
        bench.parse(text)


def said(found, key):
    """What a result has under a field's name, or as metric_statistic."""
    if key == "notes":
        return [note.code for note in found.notes]
    metric, _, statistic = key.partition("_")
    return getattr(found, key) if hasattr(found, key) else found.stats.get(metric, {}).get(statistic)


@pytest.mark.parametrize("real", REAL, ids=lambda real: real["name"])
def test_real_results_as_read_by_hand(real, tmp_path):
    (tmp_path / "file").write_text(real["text"])
    (read,) = formats.read(tmp_path / "file")
    assert [r.kind for r in read] == [e["kind"] for e in real["expected"]]
    for found, expected in zip(read, real["expected"], strict=True):
        for key, value in expected.items():
            if key == "facts":
                assert value.items() <= found.facts.items()
            else:
                wanted = math.inf if value == "inf" else value
                assert said(found, key) == (pytest.approx(wanted, rel=1e-4) if isinstance(wanted, float | int) else wanted), key


def test_the_real_ones_are_of_many_kinds():
    assert len(REAL) >= 10
    assert len({real["kind"] for real in REAL}) >= 6
    assert all(real["source"] for real in REAL)


DAMAGE = ("", "\n", "{", "}", '"', ":", ",", "9" * 30, "-", "nan", "inf", "│", "=" * 50, "\0", "[" * 50)


@given(some.sampled_from(REAL), some.data())
def test_what_is_cut_off_or_damaged_is_read_or_refused(real, data):
    text = real["text"]
    begin = data.draw(some.integers(0, len(text)))
    end = data.draw(some.integers(begin, len(text)))
    put = data.draw(some.sampled_from(DAMAGE))
    for damaged in (text[:begin], text[end:], text[:begin] + put + text[end:]):
        with suppress(Refusal):
            found = bench.read(damaged, "x")
            assert all(value >= 0 for one in found for stats in one.stats.values() for value in stats.values())


def test_a_table_that_ends_early_says_so():
    whole = next(real["text"] for real in REAL if real["name"] == "vllm-serve-mi300x")
    (found,) = bench.read(whole)
    assert not found.notes
    (found,) = bench.read(whole.partition("Median TPOT")[0])
    assert [note.code for note in found.notes] == ["partial"]
    assert "line 2" in found.notes[0]
    assert (found.seconds("tpot", "mean"), "median" in found.stats["tpot"]) == (pytest.approx(0.08002), False)


def test_json_that_ends_early_gives_its_whole_fields():
    text = json.dumps({**SERVE, "generated_texts": ["a"] * 50})
    (found,) = bench.parse(text[: text.index("generated_texts") + 40])
    assert (found.seconds("ttft", "mean"), found.requests) == (0.04, 200)
    assert [note.code for note in found.notes] == ["partial"]
    assert "mean_e2el_ms" in found.notes[0]
    lines = json.dumps(SERVE) + "\n" + json.dumps(SERVE)[:200]
    (found,) = bench.parse(lines)
    assert "result 2" in found.notes[0]


PLAIN = some.none() | some.integers() | some.text(max_size=4)


@given(
    some.recursive(
        PLAIN, lambda x: some.lists(x, max_size=3) | some.dictionaries(some.text(max_size=3), x, max_size=3), max_leaves=6
    ),
    some.data(),
)
def test_any_beginning_of_json_is_a_part_of_it(value, data):
    text = json.dumps({"a": value, "b": [value, value]})
    cut = data.draw(some.integers(0, len(text)))

    def inside(part, whole):
        if isinstance(part, dict):
            return all(key in whole and inside(held, whole[key]) for key, held in part.items())
        return part[:-1] == whole[: len(part) - 1] if isinstance(part, list) and part else part == whole or not part

    found, _ = read_damaged(text[:cut])
    assert found is None or inside(found, json.loads(text))
    assert read_damaged(text)[0] == json.loads(text)


def test_benchmarks_before_the_cut_are_read():
    whole = next(real["text"] for real in REAL if real["kind"] == "GuideLLM JSON")
    document = json.loads(whole)
    text = json.dumps({**document, "benchmarks": document["benchmarks"] * 2})
    found = bench.parse(text[: text.rindex("time_to_first_token_ms")])
    assert [r.seconds("ttft", "mean") for r in found] == [pytest.approx(0.0488436508), None]
    assert [note.code for r in found for note in r.notes] == ["partial"]


def test_options_above_a_printed_result_say_its_load():
    options = "Namespace(model='m', tensor_parallel_size=2, input_len=32, output_len=128, batch_size=8, num_prompts=100)"
    (latency,) = bench.read(f"{options}\nAvg latency: 0.5 seconds\n")
    assert (latency.batch, latency.input_len, latency.output_len, latency.tp) == (8, 32, 128, 2)
    (offline,) = bench.read(f"{options}\nThroughput: 10.00 requests/s, 1600.00 total tokens/s, 1280.00 output tokens/s\n")
    assert (offline.requests, offline.input_len, offline.output_len, offline.tp) == (100, 32, 128, 2)


def test_a_sweep_is_one_result_a_row():
    header = ("max_concurrency", "request_rate", "duration", "completed", "total_input_tokens", "mean_ttft_ms")
    rows = ((8, "inf", 10.0, 80, 8000, 20.5), (16, "inf", 9.0, 80, 8000, 31.0))
    text = "\n".join(",".join(map(str, row)) for row in (header, *rows))
    found = bench.read(text)
    assert [(r.concurrency, r.request_rate, r.input_len, r.seconds("ttft", "mean")) for r in found] == [
        (8, math.inf, 100, pytest.approx(0.0205)),
        (16, math.inf, 100, pytest.approx(0.031)),
    ]


@each(
    ("strategy", "load"),
    [
        ({"type_": "concurrent", "streams": 16}, (16, None, 1)),
        ({"type_": "throughput", "max_concurrency": 64}, (64, math.inf, 1)),
        ({"type_": "constant", "rate": 2.5}, (None, 2.5, math.inf)),
        ({"type_": "poisson", "rate": 2.5, "max_concurrency": 9}, (9, 2.5, 1)),
    ],
)
@each("place", ["args", "config"])
def test_strategies_of_guidellm_in_both_schemas(strategy, load, place):
    metrics = {"time_to_first_token_ms": {"successful": {"mean": 5.0}}, "request_totals": {"successful": 7, "errored": 2}}
    (found,) = bench.parse(json.dumps({"benchmarks": [{place: {"strategy": strategy}, "metrics": metrics}]}))
    assert (found.concurrency, found.request_rate, found.burstiness) == load
    assert (found.requests, found.failed, found.seconds("ttft")) == (7, 2, 0.005)


def test_engines_of_a_server_are_added():
    lines = [
        f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}'
        for engine in (0, 1)
        for name, value in DATA["engines_of_a_server_are_added"].items()
    ]
    (found,) = bench.read("\n".join(lines))
    assert (found.requests, found.input_len, found.hit_rate) == (20, 100, 0.25)
    assert (found.seconds("ttft"), found.seconds("queue")) == (3.0, 2.0)
    assert found.facts["engines"] == "2"
    assert found.facts["kv usage"] == "50.0%"


@given(some.lists(some.floats(0.001, 100), min_size=1, max_size=50), some.floats(0.01, 1))
def test_a_quantile_lies_within_its_bucket(times, share):
    bounds = [0.01, 0.1, 1, 10, math.inf]
    low, high = exposition.quantile_bounds({b: sum(t <= b for t in times) for b in bounds}, share)
    exact = sorted(times)[math.ceil(share * len(times) - 1e-9) - 1]
    assert low <= exact <= high


UNITS = ("Mean TTFT (ms): 1\n", 'vllm:a{b="c"} 1\n', "│ a │ 1 │\n", "MLPerf Results Summary\na : 1\n", "Throughput: 1 ", "1" * 9)


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_text(unit):
    began = time.process_time()
    with suppress(Refusal):
        bench.read(unit * (200_000 // len(unit)))
    assert time.process_time() - began < 2


def test_too_many_results():
    with pytest.raises(Refusal, match="more than 2,000 results"):
        bench.read("Avg latency: 1 seconds\n" * 2_002)
