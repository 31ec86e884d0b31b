"""No verdict without evidence: what can make a run agree, what refutes it, what is missing; who is overloaded and who is not."""

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cli_run import run_here
from commtax import catalog
from commtax.runs.audit import audit
from commtax.runs.evidence.finding import AGREE, DISAGREE, UNKNOWN, Audit, Claim, Finding, Section, missing_sentence
from commtax.runs.evidence.identity import other_chip, other_model
from commtax.runs.logs.engine_logs import vllm_log
from commtax.runs.logs.startup_audit import audit_log
from commtax.runs.report.audit_words import headline
from commtax.runs.results import bench
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, predict_figures
from commtax.verbs.settling import resolve_question
from each import each
from paths import FIXTURES

TINY = FIXTURES / "tiny-llama"
CPU = FIXTURES / "vllm-cpu-tp1.serve.json"


@cache
def claimed(model="llama-3.1-8b", place="1xh100-sxm", **options):
    return Claim(resolve_question(model, place, options))


@cache
def as_predicted(load=BenchmarkLoad(512, 128, clients=4, count=40, spread=0.0)):  # noqa: B008
    """A run of llama-3.1-8b on an H100 as it was predicted."""
    found = predict_figures(load, claimed())
    stats = {m: {s: found.of(m, s).value for s in ("mean", "median")} for m in ("ttft", "tpot")}
    rate = found.of("requests_per_s", "").value
    return BenchmarkRun(
        "vllm", "serve", requests=40, concurrency=4, lengths=(512, 128), spread=0.0, stats=stats, requests_per_s=rate, model="model"
    )


def judged(result, claim=None):
    return Audit(claim or claimed(), (audit_bench([result], claim or claimed(), "x"),))


def made(verdict, evidence, measured):
    """A finding with a prediction of 1, ten per cent tolerance and a range up to 2."""
    return Finding("x", 1.0, measured, "s", 0.1, verdict=verdict, evidence=evidence, low=0.5, high=2.0)


findings = some.builds(made, some.sampled_from([AGREE, DISAGREE, UNKNOWN]), some.booleans(), some.sampled_from([1.0, 1.5, 3.0]))


@settings(max_examples=60)
@given(some.lists(findings, max_size=5))
def test_only_evidence_agrees_and_anything_refutes(found):
    verdict = Audit(claimed(), (Section("bench", ("x",), tuple(found)),)).verdict
    evidence = [f for f in found if f.evidence]
    if any(f.verdict == DISAGREE for f in found):
        assert verdict == DISAGREE
    elif any(f.verdict == AGREE for f in evidence) and not any(f.verdict == UNKNOWN and f.measured == 3.0 for f in evidence):
        assert verdict == AGREE
    else:
        assert verdict == UNKNOWN


def test_a_run_as_predicted_agrees_by_its_headline_figures():
    found = judged(as_predicted())
    assert (found.verdict, missing_sentence(found)) == (AGREE, "")
    assert {f.code for f in found.findings if f.evidence} >= {"ttft_mean", "tpot_mean", "requests_per_s"}
    floor = "time per token (floor: reading the weights)"
    assert not {f.code for f in found.findings if f.evidence} & {floor, "queue_mean"}


def test_a_floor_and_an_identity_are_no_verdict():
    """Our own run on CPUs, whose seconds are assumed: TPOT is fourteen times what they say, and nothing agrees."""
    found = audit([CPU], Claim(resolve_question(str(TINY), "1xcpu", {})))
    assert found.count(AGREE) >= 3
    assert found.verdict == UNKNOWN
    assert all(
        word in missing_sentence(found) for word in ("seconds of cpu are assumed", "commtax measure calibrate", "--profile", "TPOT")
    )
    assert "no verdict" in headline(found)
    done = run_here("audit", CPU, "-m", TINY, "-c", "1xcpu")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].startswith("to judge it: ")
    assert run_here("audit", CPU).returncode == 0, "nobody claims anything"


def test_what_the_file_lacks_is_the_flag_to_give():
    lone = BenchmarkRun("vllm", "serve", stats={"tpot": {"mean": 0.008}}, concurrency=4)
    assert judged(lone).verdict == UNKNOWN
    assert all(flag in missing_sentence(judged(lone)) for flag in ("--input-len", "--output-len"))


NAMES = [
    ("ibm-granite/granite-3.1-8b-instruct", "llama-3.1-8b", True),
    ("Qwen/Qwen2.5-7B-Instruct", "llama-3.1-8b", True),
    ("Qwen/Qwen3-4B-Base", "qwen3-8b", True),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-r1", True),
    ("/data/Meta-Llama-3-70B", "llama-3.1-8b", True),
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", False),
    ("/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f", "llama-3.1-8b", False),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", False),
    ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", False),  # of the same shape
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3", False),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", False),  # names count the active ones
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", False),
    *(
        (name, "llama-3.1-8b", False)
        for name in ("model", "/mnt/weights/snapshot/abc", "gpt-4", "default", "llama", "/ckpt/step-1000")
    ),
]


@each(("name", "claim", "other"), NAMES)
def test_another_model_is_a_disagreement_and_a_name_that_tells_nothing_is_none(name, claim, other):
    assert bool(other_model(name, catalog.model(claim))) == other


def test_a_run_of_another_model_disagrees_whatever_its_figures():
    found = judged(replace(as_predicted(), model="ibm-granite/granite-3.1-8b-instruct"))
    assert found.verdict == DISAGREE
    assert [f.reason for f in found.findings if f.verdict == DISAGREE] == [
        "the file names granite-3.1-8b-instruct, not llama-3.1-8b"
    ]


@pytest.mark.parametrize(
    ("name", "other"), [("NVIDIA H200", True), ("mi300x", True), ("H100", False), ("H100 NVL", False), ("my box", False)]
)
def test_another_chip_is_a_disagreement(name, other):
    assert bool(other_chip(name, claimed())) == other


@pytest.mark.parametrize(
    "said", [{"pp": 2}, {"data_parallel_size": 2}, {"ep_size": 8}, {"tensor_parallel_size": 8}, {"hw": "h200"}]
)
def test_sizes_and_chips_of_a_result_are_read_and_compared(said):
    document = {"duration": 10.0, "completed": 40, "total_output_tokens": 5120, "max_concurrency": 4, "mean_tpot_ms": 7.0, **said}
    (result,) = bench.read(json.dumps(document))
    assert judged(result).verdict == DISAGREE
    (plain,) = bench.read(json.dumps({name: value for name, value in document.items() if name not in said}))
    assert judged(plain).verdict == UNKNOWN


def test_a_plan_that_has_no_room_did_not_run():
    """DeepSeek-V3 is 79.6 GiB a GPU at TP 8: an H100 has 79.1."""
    claim = claimed("deepseek-v3", "8xh100-sxm", tp=8)
    result = BenchmarkRun(
        "vllm", "serve", requests=100, concurrency=16, lengths=(1024, 128), stats={"tpot": {"mean": 0.04}}, model="m"
    )
    found = judged(result, claim)
    assert found.verdict == DISAGREE
    (memory,) = [f for f in found.findings if f.verdict == DISAGREE]
    assert memory.code == "memory"
    assert memory.predicted > memory.measured
    roomy = judged(result, claimed("deepseek-v3", "8xh200-sxm", tp=8))
    assert "memory" not in {f.code for f in roomy.findings}


def test_a_prediction_of_overload_is_not_hidden():
    """MLPerf's Server on MI355X: first tokens in 0.69 s, where assumed constants say that the queue grows without end."""
    claim = claimed("llama-2-70b", "8xmi355x", tp=8)
    stats = {"ttft": {"mean": 0.69}, "tpot": {"mean": 0.12}, "e2el": {"mean": 0.69 + 295 * 0.12}}
    result = BenchmarkRun(
        "mlperf", "serve", request_rate=120.0, requests=2000, requests_per_s=119.0, lengths=(294, 296), stats=stats
    )
    found = judged(result, claim)
    assert (found.verdict, "TTFT (mean) was 690 ms where" in missing_sentence(found)) == (UNKNOWN, True)
    assert any("overloaded" in note for note in found.sections[0].notes if note.code == "load")


def asked(rate, answered, requests=300, first=0.2, each=0.02, **more):
    """A benchmark at a rate, of 256 tokens an answer."""
    stats = {name: {"mean": s, "median": s} for name, s in (("ttft", first), ("tpot", each), ("e2el", first + 255 * each))}
    load = {"request_rate": rate, "requests_per_s": answered, "requests": requests, "lengths": (1024, 256)}
    tokens = {"total_tokens_per_s": answered * 1280, "output_tokens_per_s": answered * 256}
    return BenchmarkRun("vllm", "serve", **{"stats": stats, **load, **tokens, **more})


def causes(result):
    return {cause.code: cause.said for cause in audit_bench([result], None, "x").causes}


@pytest.mark.parametrize(("rate", "answered", "first"), [(0.3, 0.13, 600.0), (1.5, 0.61, 140.0), (8.0, 5.0, 10.0), (8.0, 2.0, 0.2)])
def test_overload_is_said_first(rate, answered, first):
    result = asked(rate, answered, first=first)
    assert causes(result) == {"overload": f"overloaded: answered {answered:g} of {rate:g} requests/s"}
    assert headline(Audit(None, (audit_bench([result], None, "x"),))).endswith(f"answered {answered:g} of {rate:g} requests/s")


@pytest.mark.parametrize(
    "healthy",
    [
        asked(1.5, 1.45),
        asked(1.0, 0.63, requests=10, each=0.023),  # the last of ten answers is a third of the run
        asked(1.0, 0.76, requests=200, each=0.13),  # answers of half a minute, and some of two
        asked(330.0, 11.9, requests=660, first=2.5, each=0.1, concurrency=330),  # a ramp, then clients wait for answers
        asked(0.02, 0.02, first=0.3, each=0.0001),  # 0.008 at once: a long prompt, and a short answer
        asked(8.0, 7.9, stats={"ttft": {"mean": 0.217, "median": 0.045}, "e2el": {"mean": 0.317, "median": 0.145}}),  # outliers
        asked(float("inf"), 9.6, requests=768, first=53.0, each=0.001),  # all at once: each waits for the others by design
    ],
)
def test_healthy_runs_get_no_advice(healthy):
    assert causes(healthy) == {}


@pytest.mark.parametrize(("tail", "codes"), [(0.6, ["overload"]), (0.3, [])])
def test_requests_that_pile_up_are_told_from_a_tail_where_no_deviation_is(tail, codes):
    slow = asked(10.0, 6.0, requests=500, first=5.0, each=0.28, facts={"peak concurrency": "400"})
    assert list(causes(replace(slow, stats=slow.stats | {"tpot": {"mean": 0.26, "median": 0.28, "p99": tail}}))) == codes


def test_clients_that_wait_are_told_from_medians():
    waits = asked(None, 10.0, first=20.0, each=0.02, concurrency=256)
    assert list(causes(waits)) == ["queue"]
    pulled = {"ttft": {"mean": 20.0, "median": 0.2}, "e2el": {"mean": 25.1, "median": 5.3}}
    assert causes(replace(waits, stats=waits.stats | pulled)) == {}


def test_first_tokens_that_come_ever_later_are_overload():
    document = {"duration": 100.0, "completed": 30, "request_rate": 0.35, "total_output_tokens": 3000, "total_input_tokens": 3000}
    document |= {"request_throughput": 0.3, "mean_tpot_ms": 50.0}
    (steady,) = bench.read(json.dumps(document | {"ttfts": [5.0] * 30}))
    (growing,) = bench.read(json.dumps(document | {"ttfts": [0.5 * n for n in range(1, 31)]}))
    assert causes(steady) == {}
    assert "first tokens came 4.6 times as late" in causes(growing)["overload"]


def served_log(waiting):
    line = "INFO x [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 400.0 tokens/s, "
    return "\n".join(f"{line}Running: 16 reqs, Waiting: {n} reqs, GPU KV cache usage: 40.0%" for n in waiting)


@pytest.mark.parametrize(
    ("waiting", "codes"), [(range(0, 120, 5), ["overload"]), ([30] * 24, []), (range(120, 0, -5), []), ([0] * 23 + [9], [])]
)
def test_a_queue_that_grows_is_overload(waiting, codes):
    section = audit_log(vllm_log.parse(served_log(waiting)), None)
    assert [cause.code for cause in section.causes] == codes


def test_how_often_a_figure_was_printed_is_no_reason():
    log = vllm_log.parse(served_log([0]))
    found = Audit(claimed(), (audit_log(log, claimed()),))
    assert found.verdict == UNKNOWN
    assert missing_sentence(found) == "the files do not tell tensor-parallel size, weights per rank"


def test_what_agreed_is_told_where_nothing_decides():
    found = Audit(claimed(), (Section("topology", ("x",), (Finding("GPUs", 8, 8).judged(),)),))
    assert missing_sentence(found).endswith("that is predicted; as claimed: GPUs")


def test_a_model_is_called_as_the_file_calls_it():
    assert other_model("Qwen/Qwen3.8-27B-FP8", catalog.model("gpt-oss-20b")) == "the file names qwen3.8-27b-fp8, not gpt-oss-20b"
