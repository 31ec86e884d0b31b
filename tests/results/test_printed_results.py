"""Printed benchmark results of any tool: lists and tables by the words of their labels."""

import math

import pytest

from commtax.runs.audit import formats
from commtax.runs.results import bench, printed_runs
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.printed_runs import meaning
from commtax.statement import Refusal
from tables import tables

DATA = tables(__file__)

LISTED = DATA["listed"]
MINUTES = DATA["minutes"]
BELOW = DATA["below"]
MARKDOWN = """| ISL | Concurrency | TTFT Avg (ms) | TTFT P99 (ms) | TPOT (ms) | Req/s |
|---|---|---|---|---|---|
| 128 | 1 | 50 | 90 | 20 | 0.5 |
| 256 | 8 | 70 | 99 | 25 | 3.5 |
"""
ACROSS = """| Metric | main | patched | change |
|---|---|---|---|
| Mean TTFT (ms) | 80 | 60 | -25% |
| Output token throughput (tok/s) | 100 | 120 | +20% |
"""
BOX = DATA["box"]
SPANNED = DATA["spanned"]


def test_lists_of_other_tools_in_seconds():
    (found,) = bench.read(LISTED)
    assert (found.concurrency, found.duration_s, found.requests_per_s, found.output_tokens_per_s) == (16, 10, 2, 400)
    assert (found.stats["ttft"], found.requests, found.output_len) == ({"min": 0.1, "max": 0.9, "mean": 0.4}, 20, 200)
    (found,) = bench.read(MINUTES)
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


def test_json_whose_keys_are_labels():
    (found,) = bench.parse(
        '{"load_summary": {"count": 9, "requested_rate": 2.0}, "successes": {"count": 9, "latency": '
        '{"time_to_first_token": {"mean": 0.2}, '
        '"normalized_time_per_output_token": {"mean": 9}, "time_per_output_token": {"mean": 0.02}}}}'
    )
    assert (found.requests, found.request_rate, found.stats) == (9, 2.0, {"ttft": {"mean": 0.2}, "tpot": {"mean": 0.02}})


TABLE = "============ Serving Benchmark Result ============\nSuccessful requests: 9\nMean TTFT (ms): 5.0\n" + "=" * 50 + "\n"


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


def test_no_command_is_a_sentence():
    assert not printed_runs.is_command("vllm serve prints this: 5 - 6")


def test_answers_that_were_not_streamed_and_rates_that_were_not_sent_are_told():
    text = TABLE.replace("Mean TTFT", "Traffic request rate: 2.0\nRequest throughput (req/s): 4.0\nMean ITL (ms): 0.00\nMean TTFT")
    (found,) = bench.read(text.replace("requests: 9", "requests: 900\nTotal generated tokens: 90000"))
    section = audit_bench([found], None, "x")
    told = {f.item: f.verdict for f in section.findings if f.verdict == "disagree"}
    assert set(told) == {"results without gaps between tokens", "requests/s answered, at most those sent"}
    assert audit_bench([found, found], None, "x").facts["results"] == "2"


def test_a_deviation_behind_a_value_is_no_part_of_it():
    (found,) = bench.read("Load time: 900.00 ms\nTTFT: 20.50 ± 0.47 ms\nTPOT: 10.25 +/- 1 ms\nThroughput : 97.5 ± 1.07 tokens/s\n")
    assert (found.stats["ttft"]["mean"], found.stats["tpot"]["mean"]) == pytest.approx((0.0205, 0.01025))
    assert found.facts["tokens/s"] == "97.5"


def test_fewer_answers_than_the_command_asked_for_are_failures():
    command = "python3 -m sglang.bench_serving --backend sglang --num-prompts {}\n"
    section = audit_bench(bench.read(command.format(20) + TABLE), None, "x")
    (cause,) = [c for c in section.causes if c.code == "failed requests"]
    assert cause.said == "11 of 20 requests that were asked for have no answer: the figures are of the others"
    assert any(f.code == "failed requests" and f.measured == 11 for f in section.findings)
    assert not audit_bench(bench.read(command.format(9) + TABLE), None, "x").causes
    _, second = bench.read(command.format(20) + TABLE + "\n" + TABLE)
    assert "requests asked for" not in second.facts  # it may be another run's


def test_zeros_are_no_times_and_failures_are_a_cause():
    (found,) = bench.read(
        '{"completed": 0, "failed": 8, "duration": 0.005, "mean_ttft_ms": 0.0, "mean_tpot_ms": 0.0, "backend": "vllm"}'
    )
    section = audit_bench([found], None, "x")
    assert {f.code for f in section.findings} == {"failed requests", "duration"}
    assert [c.said for c in section.causes] == ["8 of 8 requests failed: nothing was measured"]


LENGTHS = "| ISL | OSL | N | TTFT Avg (ms) | TPOT Avg (ms) | E2EL Avg (ms) |\n"
LENGTHS += "|---|---|---|---|---|---|\n| 128 | 128 | 8 | 700 | 30 | {} |\n"


@pytest.mark.parametrize(("whole_ms", "verdict"), [(4510, "agree"), (4800, "unknown"), (4000, "unknown"), (9000, "disagree")])
def test_a_length_that_was_only_asked_for_refutes_no_run_by_little(whole_ms, verdict):
    section = audit_bench(bench.read(LENGTHS.format(whole_ms)), None, "x")
    assert [f.verdict for f in section.findings if f.item.startswith("E2E = ")] == [verdict]
