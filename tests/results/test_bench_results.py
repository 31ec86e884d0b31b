"""Benchmark results of several tools and versions: files, printed tables, collectives' tests, pages of metrics."""

import json
import math
import re
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cli_run import run_here
from commtax.runs.audit import audit, formats
from commtax.runs.report.audit_words import headline
from commtax.runs.results import bench, collective_tests, exposition, printed_runs
from commtax.runs.results.bench import read_damaged
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.exposition import Exposition, bounds_text, quantile_bounds, read_exposition, requests_in_flight, run_of
from commtax.runs.results.printed_runs import meaning
from commtax.statement import Refusal
from each import each
from metrics_pages import BOUNDS, RECORDED_APART_S, histogram, recorded
from paths import FIXTURES, ROOT
from tables import tables

DATA = tables(__file__)


REAL = json.loads((FIXTURES / "audit" / "benches.json").read_text())
SERVE = {"max_concurrency": None, **DATA["serve"]}
DAMAGE = ("", "\n", "{", "}", '"', ":", ",", "9" * 30, "-", "nan", "inf", "│", "=" * 50, "\0", "[" * 50)
PLAIN = some.none() | some.integers() | some.text(max_size=4)
UNITS = ("Mean TTFT (ms): 1\n", 'vllm:a{b="c"} 1\n', "│ a │ 1 │\n", "MLPerf Results Summary\na : 1\n", "Throughput: 1 ", "1" * 9)
BELOW = DATA["below"]
MARKDOWN = DATA["markdown"]
ACROSS = DATA["across"]
BOX = DATA["box"]
SPANNED = DATA["spanned"]
TABLE = "============ Serving Benchmark Result ============\nSuccessful requests: 9\nMean TTFT (ms): 5.0\n" + "=" * 50 + "\n"
LENGTHS = "| ISL | OSL | N | TTFT Avg (ms) | TPOT Avg (ms) | E2EL Avg (ms) |\n"
LENGTHS += "|---|---|---|---|---|---|\n| 128 | 128 | 8 | 700 | 30 | {} |\n"
HEAD = "# nThread 1 nGpus {} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n"
TITLES = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
ROW = "{:>12} {:>12}     float     sum      -1  {:>7}   20.00   30.00      0  {:>7}   20.00   30.00      0\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 30\n"
NCCL = DATA["nccl"] | {
    "results": [
        {"size": 8388608 << i, "count": 1048576 << i, "type": "float", "redop": "none", "root": "    -1"}
        | {"out_of_place": {"time": 60.5 * (i + 1), "alg_bw": 138.6, "bus_bw": 69.3, "nwrong": 0}}
        | {"in_place": {"time": 60.1, "alg_bw": 139.5, "bus_bw": 69.7, "nwrong": None}}
        for i in (0, 1)
    ],
}
RCCL = [
    {"name": "AllReduce", "gpus": 4, "size": size, "inPlace": way, "time": us, "algBw": 50.0, "busBw": 75.0, "#wrong": "0"}
    for size, us in ((1024, 19.2), (1 << 30, 21400.0))
    for way in (0, 1)
]
SLOW = (ROOT / "examples" / "all-reduce-8xh100.txt").read_text()
PAGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["page"]
times = some.lists(some.floats(0.0005, 60), max_size=20)


def one(content):
    (found,) = bench.parse(json.dumps(content))
    return found


def test_results_of_real_runs():
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp2.latency.json").read_text())
    assert (found.tool, found.kind, len(found.latencies_s)) == ("vllm", "latency", 5)
    assert found.seconds("e2el") == pytest.approx(0.35132, rel=1e-4)
    assert found.seconds("e2el", "p99") == pytest.approx(0.41926, rel=1e-4)
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp1.serve.json").read_text())
    assert (found.kind, found.concurrency, found.tp, found.requests, found.request_rate) == ("serve", 1, 1, 8, math.inf)
    assert (found.input_len, found.output_len) == (128, 32)
    tpot, ttft, whole = (found.seconds(m, "mean") for m in ("tpot", "ttft", "e2el"))
    assert ttft + 31 * tpot == pytest.approx(whole, rel=1e-6), "TPOT is (E2E - TTFT) / (output - 1)"
    (found,) = bench.parse((FIXTURES / "vllm-cpu-tp1.throughput.json").read_text())
    assert found.total_tokens_per_s * found.duration_s == pytest.approx(1280)


def test_serve_throughput_and_sglang_lines():
    found = one(SERVE)
    assert (found.tool, found.kind, found.failed, found.request_rate, found.concurrency) == ("vllm", "serve", 1, 4.0, None)
    assert (found.seconds("ttft"), found.seconds("ttft", "p99")) == (pytest.approx(0.038), pytest.approx(0.09))
    assert found.seconds("itl") == pytest.approx(0.0073), "the mean where there is no median"
    assert (found.input_len, found.output_len) == (512, 128)
    totals = {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 64000}
    found = one({**totals, "requests_per_second": 10.0, "tokens_per_second": 6400.0})
    assert (found.kind, found.total_tokens_per_s, found.output_tokens_per_s) == ("throughput", 6400.0, None)
    plain = {k: v for k, v in SERVE.items() if not k.endswith("_ms")}
    found = one({**plain, "request_rate": "inf", "ttfts": [0.1, 0.3], "itls": [[0.01, 0.02], [0.03]]})
    assert (found.request_rate, found.seconds("ttft")) == (math.inf, pytest.approx(0.2))
    assert found.seconds("itl") == pytest.approx(0.02)
    row = {**SERVE, "backend": "sglang", "mean_e2e_latency_ms": 800.0, "max_concurrency": 8, "accept_length": 2.5}
    found = bench.parse(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    assert (len(found), (found[0].tool, found[0].concurrency, found[0].accepted)) == (2, ("sglang", 8, 2.5))
    assert found[0].seconds("e2el", "mean") in (0.8, 0.95)


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1e-3), ("s", 1.0), ("us", 1e-6), ("ns", 1e-9)])
def test_aiperf_blocks_in_any_unit(unit, factor):
    block = {"unit": unit, "avg": 7.0, "p50": 6.5, "p99": 9.0, "count": 100}
    counts = {"request_count": {"unit": "requests", "avg": 100}, "output_sequence_length": {"unit": "tokens", "avg": 128}}
    found = one({"time_to_first_token": block, "inter_token_latency": block, **counts})
    assert (found.seconds("tpot"), found.seconds("ttft", "p99")) == (pytest.approx(6.5 * factor), pytest.approx(9 * factor))
    assert found.output_len == 128


@each("text", DATA["what_is_no_result"])
def test_what_is_no_result(text):
    with pytest.raises(ValueError, match="benchmark"):
        bench.parse(text)


def said(found, key):
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


def test_what_ends_early_says_so_and_gives_its_whole_fields():
    whole = next(real["text"] for real in REAL if real["name"] == "vllm-serve-mi300x")
    (found,) = bench.read(whole)
    assert not found.notes
    (found,) = bench.read(whole.partition("Median TPOT")[0])
    assert [note.code for note in found.notes] == ["partial"]
    assert "line 2" in found.notes[0]
    assert (found.seconds("tpot", "mean"), "median" in found.stats["tpot"]) == (pytest.approx(0.08002), False)
    text = json.dumps({**SERVE, "generated_texts": ["a"] * 50})
    (found,) = bench.parse(text[: text.index("generated_texts") + 40])
    assert (found.seconds("ttft", "mean"), found.requests) == (0.04, 200)
    assert [note.code for note in found.notes] == ["partial"]
    assert "mean_e2el_ms" in found.notes[0]
    (found,) = bench.parse(json.dumps(SERVE) + "\n" + json.dumps(SERVE)[:200])
    assert "result 2" in found.notes[0]
    document = json.loads(next(real["text"] for real in REAL if real["kind"] == "GuideLLM JSON"))
    text = json.dumps({**document, "benchmarks": document["benchmarks"] * 2})
    found = bench.parse(text[: text.rindex("time_to_first_token_ms")])
    assert [r.seconds("ttft", "mean") for r in found] == [pytest.approx(0.0488436508), None]
    assert [note.code for r in found for note in r.notes] == ["partial"]


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


def test_options_above_a_printed_result_say_its_load():
    options = "Namespace(model='m', tensor_parallel_size=2, input_len=32, output_len=128, batch_size=8, num_prompts=100)"
    (latency,) = bench.read(f"{options}\nAvg latency: 0.5 seconds\n")
    assert (latency.batch, latency.input_len, latency.output_len, latency.tp) == (8, 32, 128, 2)
    (offline,) = bench.read(f"{options}\nThroughput: 10.00 requests/s, 1600.00 total tokens/s, 1280.00 output tokens/s\n")
    assert (offline.requests, offline.input_len, offline.output_len, offline.tp) == (100, 32, 128, 2)


def test_a_sweep_is_one_result_a_row():
    header = ("max_concurrency", "request_rate", "duration", "completed", "total_input_tokens", "mean_ttft_ms")
    rows = ((8, "inf", 10.0, 80, 8000, 20.5), (16, "inf", 9.0, 80, 8000, 31.0))
    found = bench.read("\n".join(",".join(map(str, row)) for row in (header, *rows)))
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
    assert ((found.seconds("ttft"), found.seconds("queue")), found.facts["engines"]) == ((3.0, 2.0), "2")
    assert found.facts["kv usage"] == "50.0%"


@given(some.lists(some.floats(0.001, 100), min_size=1, max_size=50), some.floats(0.01, 1))
def test_a_quantile_lies_within_its_bucket(times, share):
    bounds = [0.01, 0.1, 1, 10, math.inf]
    low, high = exposition.quantile_bounds({b: sum(t <= b for t in times) for b in bounds}, share)
    assert low <= sorted(times)[math.ceil(share * len(times) - 1e-9) - 1] <= high


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_text(unit):
    began = time.process_time()
    with suppress(Refusal):
        bench.read(unit * (200_000 // len(unit)))
    assert time.process_time() - began < 2


def test_too_many_results():
    with pytest.raises(Refusal, match="more than 2,000 results"):
        bench.read("Avg latency: 1 seconds\n" * 2_002)


def test_lists_of_other_tools_in_seconds():
    (found,) = bench.read(DATA["listed"])
    assert (found.concurrency, found.duration_s, found.requests_per_s, found.output_tokens_per_s) == (16, 10, 2, 400)
    assert (found.stats["ttft"], found.requests, found.output_len) == ({"min": 0.1, "max": 0.9, "mean": 0.4}, 20, 200)
    (found,) = bench.read(DATA["minutes"])
    assert (found.model, found.requests_per_s, found.output_tokens_per_s) == ("org/some-model-7b", 0.4, 100)
    assert (found.seconds("ttft", "mean"), found.seconds("e2el", "mean"), found.requests) == (0.5, 9.0, 20)
    (found,) = bench.read(BELOW)
    assert found.stats["ttft"] == pytest.approx({"mean": 0.05, "p99": 0.09})


@pytest.mark.parametrize(
    ("text", "ttfts"), [(MARKDOWN, [0.05, 0.07]), (ACROSS, [0.08, 0.06]), (BOX, [0.05]), (SPANNED, [0.05, 0.06])]
)
def test_tables_either_way_round(text, ttfts):
    assert [r.seconds("ttft", "mean") for r in bench.read(text)] == pytest.approx(ttfts)


def test_what_a_table_says_of_its_runs():
    first, second = bench.read(MARKDOWN)
    assert (first.concurrency, second.concurrency, second.lengths[0], second.stats["ttft"]["p99"]) == (1, 8, 256, 0.099)
    (boxed,) = bench.read(BOX)
    assert (boxed.concurrency, boxed.stats["e2el"]["p99"]) == (4, pytest.approx(0.95))
    alone, paced = bench.read(SPANNED)
    assert (alone.concurrency, paced.request_rate, paced.burstiness) == (1, 1.5, math.inf)
    assert "itl" not in paced.stats  # GuideLLM's ITL is what others call TPOT
    assert paced.seconds("tpot", "mean") == pytest.approx(0.018)


def test_a_second_list_is_a_second_run():
    assert [r.seconds("ttft", "mean") for r in bench.read(BELOW + "\n" + BELOW.replace("50.0", "70.0"))] == pytest.approx(
        [0.05, 0.07]
    )


@pytest.mark.parametrize(
    "text", ["| Name | Cost |\n|---|---|\n| a | 3 |\n", "Mean TTFT: 5\nMean TPOT: 3\n", "rank 3: step 5\nloss: 2.1\n"]
)
def test_what_is_not_understood_stays_refused(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(Refusal):
        formats.read(tmp_path / "file")


@pytest.mark.parametrize(
    "label", ["Peak output token throughput (tok/s)", "Total generated tokens (retokenized)", "Tput User (TPS)"]
)
def test_a_label_with_another_word_is_another(label):
    assert meaning(label).field == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve org/m -tp 2\nvllm bench serve --model org/m", ("org/m", 2, math.inf)),
        ("vllm bench serve --model org/m --request-rate 1 --num-prompts 9", ("org/m", 0, 1.0)),
        ("python -m sglang.launch_server \\\n  --model-path org/m \\\n  --tp 4", ("org/m", 4, None)),
        ("TP=1 LLM_MODEL=org/m modal run x.py --task benchmark", ("org/m", 1, None)),
        ("vllm serve org/m -tp 2\nvllm serve org/m -tp 4 --port 1", ("org/m", 0, None)),
    ],
)
def test_the_command_above_a_result_is_what_ran(command, said):
    (found,) = bench.read(f"{command}\n{TABLE}")
    assert (found.model, found.tp, found.request_rate) == said


def test_commands_and_deviations_are_no_sentences_and_no_values():
    assert not printed_runs.is_command("vllm serve prints this: 5 - 6")
    (found,) = bench.read("Load time: 900.00 ms\nTTFT: 20.50 ± 0.47 ms\nTPOT: 10.25 +/- 1 ms\nThroughput : 97.5 ± 1.07 tokens/s\n")
    assert (found.stats["ttft"]["mean"], found.stats["tpot"]["mean"]) == pytest.approx((0.0205, 0.01025))
    assert found.facts["tokens/s"] == "97.5"
    (found,) = bench.parse(
        '{"load_summary": {"count": 9, "requested_rate": 2.0}, "successes": {"count": 9, "latency": '
        '{"time_to_first_token": {"mean": 0.2}, '
        '"normalized_time_per_output_token": {"mean": 9}, "time_per_output_token": {"mean": 0.02}}}}'
    )
    assert (found.requests, found.request_rate, found.stats) == (9, 2.0, {"ttft": {"mean": 0.2}, "tpot": {"mean": 0.02}})


def test_answers_that_were_not_streamed_and_rates_that_were_not_sent_are_told():
    text = TABLE.replace("Mean TTFT", "Traffic request rate: 2.0\nRequest throughput (req/s): 4.0\nMean ITL (ms): 0.00\nMean TTFT")
    (found,) = bench.read(text.replace("requests: 9", "requests: 900\nTotal generated tokens: 90000"))
    told = {f.item: f.verdict for f in audit_bench([found], None, "x").findings if f.verdict == "disagree"}
    assert set(told) == {"results without gaps between tokens", "requests/s answered, at most those sent"}
    assert audit_bench([found, found], None, "x").facts["results"] == "2"


def test_failures_are_a_cause_and_zeros_no_times():
    command = "python3 -m sglang.bench_serving --backend sglang --num-prompts {}\n"
    section = audit_bench(bench.read(command.format(20) + TABLE), None, "x")
    (cause,) = [c for c in section.causes if c.code == "failed requests"]
    assert cause.said == "11 of 20 requests that were asked for have no answer: the figures are of the others"
    assert any(f.code == "failed requests" and f.measured == 11 for f in section.findings)
    assert not audit_bench(bench.read(command.format(9) + TABLE), None, "x").causes
    _, second = bench.read(command.format(20) + TABLE + "\n" + TABLE)
    assert "requests asked for" not in second.facts  # it may be another run's
    (found,) = bench.read(
        '{"completed": 0, "failed": 8, "duration": 0.005, "mean_ttft_ms": 0.0, "mean_tpot_ms": 0.0, "backend": "vllm"}'
    )
    section = audit_bench([found], None, "x")
    assert {f.code for f in section.findings} == {"failed requests", "duration"}
    assert [c.said for c in section.causes] == ["8 of 8 requests failed: nothing was measured"]


@pytest.mark.parametrize(("whole_ms", "verdict"), [(4510, "agree"), (4800, "unknown"), (4000, "unknown"), (9000, "disagree")])
def test_a_length_that_was_only_asked_for_refutes_no_run_by_little(whole_ms, verdict):
    section = audit_bench(bench.read(LENGTHS.format(whole_ms)), None, "x")
    assert [f.verdict for f in section.findings if f.item.startswith("E2E = ")] == [verdict]


def rows(*sizes):
    return "".join(ROW.format(size, size // 4, 17.5, 17.4) for size in sizes)


@pytest.fixture
def audited(tmp_path):
    def read(text, name="x.txt"):
        path = tmp_path / name
        path.write_text(text)
        return audit([path])

    return read


def cut(run):
    return [str(n) for n in run.sections[0].notes if n.code == "partial"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TITLES + rows(8, 16) + ROW.format(32, 8, 17.5, 17.4)[:62], "ends in the row of 32 B"),
        (TITLES + rows(8, 16) + "          32       ", "neither its header nor its average"),
        (TITLES + rows(8, 16) + "          32             8", "ends in the row of 32 B"),
        ("".join(f"[1,0]<stdout>:{line}\n" for line in (TITLES + rows(8, 16)).splitlines()), "neither its header"),
        (rows(1 << 26, 1 << 27) + END + "./broadcast_perf -b 8\n" + HEAD.format(2), "broadcast is cut off: the text ends before"),
        (HEAD.format(2) + TITLES + rows(8, 16), "ends at 16 B of 128 MiB"),
        (HEAD.format(2) + "# Using devices\n", "ends before its table"),
    ],
)
def test_what_is_cut_off_is_partial_and_not_off(audited, text, says):
    run = audited(text)
    assert len(cut(run)) == 1
    assert says in cut(run)[0]
    assert ": partial, what it has shows nothing off" in headline(run)
    assert all(f.verdict != "disagree" for f in run.findings)


def test_whole_tests_have_their_averages(audited):
    run = audited(rows(1 << 26, 1 << 27) + END)
    assert not cut(run)
    assert [f.measured for f in run.findings if f.code == "average bus bandwidth, GB/s"] == [30]
    run = audited((HEAD.format(2) + TITLES + rows(1 << 27) + END) * 2)
    assert [f.item for f in run.findings if "average" in f.code] == [f"run {i}: average bus bandwidth, GB/s" for i in (1, 2)]
    empty = ROW.format(0, 0, 1.0, 1.0).replace("20.00   30.00", " 0.00    0.00")
    text = HEAD.format(8) + TITLES + empty * 2 + rows(67108864, 134217728) + END.replace(": 30", ": 15")
    (average,) = (f for f in audited(text).findings if "average" in f.item)
    assert average.reason == "as printed: the mean of these rows"


def test_one_rank_moves_nothing_and_is_not_blamed(audited):
    row = "    33554432       8388608     float    none      -1    19.56  1715.44    0.00      0     0.78  43046.1    0.00    N/A\n"
    device = "#  Rank  0 Group  0 Pid 21 on  h device  0 [0x01] NVIDIA GeForce RTX 5090\n"
    run = audited("./alltoall_perf\n" + HEAD.format(1).replace("134217728", "33554432") + device + TITLES + row + END)
    assert not [c for s in run.sections for c in s.causes]
    assert not [f for f in run.findings if f.unit == "share"]


@pytest.mark.parametrize(("program", "op"), [("reduce", "reduce"), ("gather", "gather"), ("hypercube", "hypercube")])
def test_programs_that_are_not_priced_keep_their_names(program, op):
    text = f"# Collective test starting: {program}_perf\n" + TITLES + rows(1 << 20).replace("30.00", "20.00")
    assert [run.op for run in collective_tests.parse(text).runs] == [op]


def test_columns_of_newer_versions_and_json_of_both(audited):
    found = audited(json.dumps(NCCL), "a.json").findings
    assert [f.measured for f in found if f.code == "size"] == pytest.approx([60.5e-6, 121e-6])
    assert found[0].item == "all-to-all over 2 ranks: best bus bandwidth, GB/s"
    for text in ("\n".join(map(json.dumps, RCCL)), json.dumps(RCCL)):
        found = audited(text, "b.json").findings
        assert found[0].item == "all-reduce over 4 ranks: best bus bandwidth, GB/s"
        assert [f.measured for f in found if f.code == "size"] == pytest.approx([19.2e-6, 0.0214])
    half = " 10.50  20.00  30.00  1  0  9.9  11.2  11.1  4.0"
    row = collective_tests.row_of(f"1048576 262144 float sum -1{half}{half.replace('10.50', '12.50')} 2026-02-01 10:00:00")
    assert (row.seconds, row.in_place_s, row.wrong) == pytest.approx((10.5e-6, 12.5e-6, 2))


def test_a_host_that_its_devices_name_is_judged_as_if_it_were_named(tmp_path):
    file = tmp_path / "nccl.txt"
    file.write_text(SLOW)
    named, own = (run_here("audit", file, *place, "--json") for place in (("--cluster", "8xh100-sxm"), ()))
    assert (named.returncode, own.returncode) == (1, 1)
    verdicts = [[(f["item"], f["verdict"]) for f in json.loads(done.stdout)["sections"][0]["findings"]] for done in (named, own)]
    assert verdicts[0] == verdicts[1]
    for place in (("--cluster", "8xh100-sxm"), ()):
        told = " ".join(run_here("audit", file, *place).stdout.split())
        assert "all-reduce of 1 GiB took 1.90 x the time that it should" in told
        assert "1 GiB reaches 234.3 GB/s of bus bandwidth where 446.2 GB/s is to be expected" in told
        assert "nvidia-smi nvlink -s" in told


@pytest.mark.parametrize(("device", "hosts"), [("NVIDIA L40S", 1), ("NVIDIA H100 NVL", 1), ("NVIDIA H100 80GB HBM3", 2)])
def test_names_that_do_not_tell_links_judge_nothing(tmp_path, device, hosts):
    """Cards may have bridges or not, and no name tells the network between hosts."""
    file = tmp_path / "nccl.txt"
    text = SLOW.replace("NVIDIA H100 80GB HBM3", device)
    file.write_text(re.sub(r"(Rank  [4-7] .*) node7 ", r"\1 node8 ", text) if hosts > 1 else text)
    done = run_here("audit", file)
    assert done.returncode == 0
    assert "give --cluster to judge it" in " ".join(done.stdout.split())
    assert "disagree" not in done.stdout


def page_of(values, **more):
    return read_exposition("\n".join([*histogram("e2e_request_latency_seconds", values), *(f"{k} {v}" for k, v in more.items())]))


@given(times, times)
def test_between_two_pages_is_what_came_between(before, between):
    first, last = page_of(before), page_of([*before, *between])
    assert not last.restarted_since(first)
    made, alone = last.since(first), page_of(between)
    assert made.totals.keys() == alone.totals.keys()
    assert all(made.totals[name] == pytest.approx(value, abs=1e-9) for name, value in alone.totals.items())
    assert made.buckets == alone.buckets
    low, high = quantile_bounds(made.buckets["e2e_request_latency_seconds"], 0.99)
    assert not between or low <= sorted(between)[-1] * 1.000001
    assert not between or high in (*BOUNDS, float("inf"))


@given(times, times, some.booleans())
def test_a_smaller_total_or_a_later_start_is_another_process(before, after, told):
    first = page_of(before, process_start_time_seconds=1000.0)
    last = page_of(after, process_start_time_seconds=2000.0 if told else 1000.0)
    assert last.restarted_since(first) == (told or sum(after) < sum(before) or len(after) < len(before))


def test_the_load_of_a_recorded_server():
    """Six clients that never pause, 160 tokens of which 128 are shared, 32 to answer."""
    first, last = (read_exposition(recorded(n)) for n in (1, 2))
    run = run_of(last.since(first), RECORDED_APART_S)
    assert requests_in_flight(last.since(first), RECORDED_APART_S) == pytest.approx(6, rel=0.02)
    assert requests_in_flight(last, None) == pytest.approx(6, rel=0.06)  # since its start, by tokens per step
    assert (run.input_len, run.output_len, run.hit_rate, run.accepted) == (160, 32, 0.8, 1)
    assert run.requests_per_s * run.seconds("e2el") == pytest.approx(6, rel=0.05)  # Little's law, by other histograms
    assert (run.facts["p99 TTFT"], (run.facts["running"], run.facts["preemptions"])) == ("100 ms to 250 ms", ("6", "0"))
    assert last.started_s is not None


@pytest.mark.parametrize("page", PAGES, ids=[p["engine"] for p in PAGES])
def test_documented_names_of_engines(page):
    run = run_of(read_exposition(page["lines"]), page["window_s"])
    assert (run.facts["engine"], run.concurrency) == (page["engine"], pytest.approx(page["in_flight"]))
    assert (list(run.lengths), (run.hit_rate, run.seconds("ttft"))) == (page["lengths"], (page["hit_rate"], page["ttft_s"]))
    assert page["facts"].items() <= run.facts.items()


def test_pages_tell_drafts_bounds_and_restarts():
    lines = [f"vllm:{name} {value}" for name, value in (
        ("spec_decode_num_drafts_total", 400), ("generation_tokens_total", 1000), ("time_to_first_token_seconds_count", 10),
        ("inter_token_latency_seconds_count", 390), ("iteration_tokens_total_count", 100),
    )]  # fmt: skip
    page = read_exposition("\n".join(lines))
    assert (run_of(page).accepted, requests_in_flight(page, None)) == (2.5, 4)
    first, last, again = (read_exposition(recorded(n)) for n in (1, 2, 3))
    assert [again.restarted_since(first), again.restarted_since(last), last.restarted_since(first)] == [True, True, False]
    assert bounds_text(*quantile_bounds({1.0: 0.0, float("inf"): 5.0}, 0.99)) == "above 1 s"
    assert bounds_text(0.25, 0.5) == "250 ms to 500 ms"
    assert not Exposition()


@pytest.mark.parametrize("text", ["", "# nothing\n", "node_cpu_seconds_total 1\n", "<html>vllm</html>", "vllm:x NaN\n"])
def test_pages_without_a_metric_of_an_engine_are_empty(text):
    assert not read_exposition(text)
