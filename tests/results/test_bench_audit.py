"""Benchmarks against their predictions: at any load, with ranges, and with the term that is off named."""

import csv
import json
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cli_run import run_here
from commtax.runs.evidence.finding import Claim
from commtax.runs.results import bench
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, Figure, load_of, predict_figures
from commtax.verbs.settling import resolve_question
from each import each
from paths import FIXTURES, SHARED
from tables import tables

DATA = tables(__file__)
PLACE = "8xh100-sxm"
REAL = {real["name"]: real for real in json.loads((FIXTURES / "audit/benches.json").read_text())}
OPEN_LOOP = SHARED / "open_loop/open_loop_runs.csv"
LOADS = (
    BenchmarkLoad(512, 128, batch=4),
    BenchmarkLoad(512, 128, clients=1, count=20, spread=0.0),
    BenchmarkLoad(1024, 128, clients=32, count=320, spread=0.0),
    BenchmarkLoad(512, 64, clients=200, count=200, spread=0.0),
    BenchmarkLoad(512, 128, rate=8.0, count=200, spread=0.5),
    BenchmarkLoad(512, 128, clients=16, rate=30.0, count=200, spread=0.0),
)
ASKED = ("-m", "llama-3.1-8b", "-c", PLACE, "-tp", 1)


@cache
def claimed(model="llama-3.1-8b", tp=1, **words):
    options = {name: words.pop(name) for name in ("eager", "engine", "max_num_seqs") if name in words}
    return Claim(resolve_question(model, PLACE, {"tp": tp, **options}), **words)


@cache
def predicted(load, claim):
    return predict_figures(load, claim)


def measured(load, claim, **times):
    found = predicted(load, claim)
    stats = {}
    for (metric, statistic), figure in found.figures.items():
        if statistic and metric not in ("queue", "itl"):
            stats.setdefault(metric, {})[statistic] = figure.value * times.get(metric, 1.0)
    rates = {name: figure.value * times.get(name, 1.0) for (name, which), figure in found.figures.items() if not which}
    return BenchmarkRun(
        "vllm",
        "latency" if load.batch else "serve",
        requests=load.count or None,
        concurrency=load.clients,
        request_rate=load.rate,
        batch=load.batch,
        lengths=(load.prompt, load.answer),
        spread=load.spread,
        stats=stats,
        **rates,
    )


def verdicts(section):
    return {f.code: f.verdict for f in section.findings if f.predicted is not None}


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_run_as_predicted_agrees_in_every_figure(load):
    claim = claimed()
    result = measured(load, claim)
    assert load_of(result, claim) == load
    section = audit_bench([result], claim, "x")
    found = verdicts(section)
    assert {"ttft_mean", "tpot_mean", "e2el_mean", "output_tokens_per_s"} <= set(found)
    assert set(found.values()) <= {"agree", "unknown"}
    assert {cause.code for cause in section.causes} <= {"overload"}, "30 requests/s are more than 16 clients get answered"
    strict = audit_bench([result], replace(claim, tolerance=0.02, strict=True), "x")
    assert "disagree" not in verdicts(strict).values()


def test_a_mean_and_what_lies_around_it_are_of_one_prediction():
    """Means are of the closed form, quantiles of a simulation whose lockstep may wait three times as long."""
    found = predicted(LOADS[2], claimed())
    for metric in ("ttft", "tpot", "e2el"):
        mean, median, tail = (found.of(metric, which).value for which in ("mean", "median", "p99"))
        assert mean / 2 < median < 2 * mean
        assert mean <= tail
    floor = next(f for f in audit_bench([measured(LOADS[2], claimed())], claimed(), "x").findings if f.is_bound)
    assert (floor.verdict, floor.difference) == ("agree", None), "no distance from a floor is a difference"


@given(some.sampled_from(LOADS[:3]), some.floats(1.6, 6.0))
def test_slow_tokens_are_the_decode_steps(load, times):
    claim = claimed()
    section = audit_bench([measured(load, claim, tpot=times)], claim, "x")
    assert (verdicts(section)["tpot_mean"], verdicts(section)["ttft_mean"]) == ("disagree", "agree")
    (cause,) = section.causes
    assert cause.code in ("decode", "host")
    step = predicted(load, claim).of("tpot", "median").value
    assert cause.cost_s == pytest.approx((times - 1) * step * (load.answer - 1))
    assert f"{times:.2f}x" in cause.gain


@pytest.mark.parametrize(("load", "code"), [(LOADS[1], "prefill"), (LOADS[2], "queue"), (LOADS[4], "queue")])
def test_slow_first_tokens_are_the_prompt_or_the_queue(load, code):
    claim = claimed()
    section = audit_bench([measured(load, claim, ttft=4.0)], claim, "x")
    assert (verdicts(section)["ttft_mean"], [cause.code for cause in section.causes]) == ("disagree", [code])


def test_a_server_that_says_its_queue_or_terms_is_believed():
    claim, load = claimed(), LOADS[2]
    slow = measured(load, claim, ttft=5.0)
    first = slow.stats["ttft"]["mean"]
    for queue, code in ((0.9 * first, "queue"), (0.0, "prefill")):
        told = replace(slow, tool="prometheus", stats={**slow.stats, "queue": {"mean": queue}})
        assert audit_bench([told], claim, "x").causes[0].code == code
    terms = predicted(load, claim).terms
    assert sum(terms.values()) == pytest.approx(predicted(load, claim).of("e2el").value), "E2E = queue + prefill + decode"
    sound = measured(load, claim)
    told = replace(sound, stats={**sound.stats, **{name: {"mean": terms[name]} for name in ("prefill", "decode")}})
    found = {f.code: f for f in audit_bench([told], claim, "x").findings}
    assert [found[code].difference for code in ("prefill_mean", "decode_mean")] == pytest.approx([0, 0])
    assert {found[code].verdict for code in ("prefill_mean", "decode_mean")} == {"agree"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [({"eager": 1}, "host", "CUDA graphs"), ({"library": "nccl"}, "communication", "NCCL"), ({"tp": 1}, "decode", "one GPU")],
)
def test_a_step_as_with_another_option_names_it(changes, code, words):
    claim, load = claimed(tp=8), BenchmarkLoad(512, 128, batch=1)
    times = 1.03 * float(claim.bill("decode", 1, 576, **changes).step_s / claim.bill("decode", 1, 576).step_s)
    (cause,) = audit_bench([measured(load, claim, tpot=times)], claim, "x").causes
    assert (cause.code, words in cause.said) == (code, True)
    assert cause.change


def test_communication_is_what_one_gpu_does_not_have():
    """TP 2 is slow and TP 1 is as it should be: what is between them are the all-reduces."""
    claim, load = claimed(tp=2), BenchmarkLoad(512, 128, batch=1)
    alone = float(claim.bill("decode", 1, 576, tp=1).step_s)
    baseline = BenchmarkRun("vllm", "latency", stats={"tpot": {"mean": alone}, "e2el": {"mean": 1.0}})
    (cause,) = audit_bench([measured(load, claim, tpot=6.0)], claim, "x", baseline).causes
    assert cause.code == "communication"
    (cause,) = audit_bench([measured(load, claim, tpot=6.0)], claim, "x").causes
    assert cause.code == "decode"


@given(some.floats(0.1, 100), some.floats(0.0, 1.0))
def test_ranges_hold_their_value_and_grow_together(value, sigma):
    figure = Figure.around(value, sigma)
    assert figure.low <= figure.value <= figure.high
    assert figure.low * figure.high == pytest.approx(value * value)
    wide = figure.widened(Figure.around(value, sigma + 0.1))
    assert (wide.low <= figure.low, wide.high >= figure.high, wide.value) == (True, True, value)
    assert figure.plus(figure, 2).value == pytest.approx(3 * value)


def test_what_cannot_be_compared_is_said():
    lone = BenchmarkRun("vllm", "serve", stats={"tpot": {"mean": 0.008}})
    (finding,) = [f for f in audit_bench([lone], claimed(), "x").findings if f.code == "tpot_mean"]
    assert finding.verdict == "unknown"
    assert all(option in finding.reason for option in ("--input-len", "--output-len", "--batch"))
    said = claimed(batch=8, context=512, output_len=128)
    assert load_of(lone, said) == BenchmarkLoad(512, 128, clients=8, count=80)
    assert verdicts(audit_bench([lone], said, "x"))["tpot_mean"] == "agree"
    huge = replace(measured(LOADS[1], claimed()), lengths=(120_000, 128))
    (finding,) = [f for f in audit_bench([huge], claimed("llama-3.1-70b"), "x").findings if f.code == "ttft_mean"]
    assert (finding.verdict, finding.predicted) == ("unknown", None)
    assert "hold" in finding.reason
    spoken = replace(measured(LOADS[2], claimed(), tpot=0.4), accepted=2.5)
    found = {f.code: f for f in audit_bench([spoken], claimed(), "x").findings}
    assert found["tpot_mean"].verdict == "unknown"
    assert "speculative" in found["tpot_mean"].reason


@each("odd", DATA["odd_loads_are_answered_or_said_to_be_none"])
def test_odd_loads_are_answered_or_said_to_be_none(odd):
    result = BenchmarkRun("vllm", "serve", stats={"ttft": {"mean": 0.1}, "tpot": {"mean": 0.01}}, **odd)
    for finding in audit_bench([result], claimed(), "x").findings:
        assert finding.predicted is None or math.isfinite(finding.predicted)
        assert finding.verdict in ("agree", "disagree") or finding.reason


def test_more_tokens_than_the_chips_can_multiply():
    result = BenchmarkRun("vllm", "throughput", requests=10, lengths=(512, 128), total_tokens_per_s=1e6, requests_per_s=1.0)
    found = {f.code: f for f in audit_bench([result], claimed(), "x").findings}
    beats = found["total tokens/s, at most those of the peak"]
    assert beats.verdict == "disagree"
    assert "beats the hardware" in beats.reason
    assert beats.predicted == pytest.approx(989.4e12 / (2 * 6.98e9), rel=0.01), "8.03 G weights less both vocabularies"


def test_without_a_claim_it_is_told_what_happened():
    section = audit_bench(bench.read(REAL["sglang-serve-two-rates"]["text"]), None, "x")
    assert {f.verdict for f in section.findings if f.predicted is None} == {"unknown"}
    assert {"run 1: TTFT (mean)", "run 2: ITL (p99)", "run 2: output tokens/s"} <= {f.item for f in section.findings}
    assert (section.facts["request rate"], section.facts["tool"]) == ("16, 8", "sglang")
    (queued,) = audit_bench(bench.read(REAL["sglang-metrics"]["text"]), None, "x").causes
    assert (queued.code, round(queued.share, 2)) == ("queue", 0.77), "213.7 of 277.5 s until the first token"


def audited(name):
    """A real result against the machine that its source names."""
    said = dict(REAL[name]["claim"])
    asked = resolve_question(said.pop("model"), said.pop("cluster"), {"tp": said.pop("tp")})
    return audit_bench(bench.read(REAL[name]["text"]), Claim(asked, **said), name)


def test_real_runs_of_old_versions_and_assumed_kernels():
    """DeepSeek-R1 at TP 8 with 128 clients: kernels are assumed there, a third too fast, and the range says so."""
    found = {f.code: f for f in audited("vllm-serve-mi300x").findings}
    assert {found[code].verdict for code in ("ttft_mean", "tpot_mean", "output_tokens_per_s")} == {"unknown"}
    for code in ("tpot_mean", "tpot_median", "e2el_mean"):
        assert 0 < found[code].difference < 0.6, code
    assert "80% range" in found["tpot_mean"].reason
    section = audited("vllm-serve-in-a-terminal-pane")
    found = {f.item: f for f in section.findings}
    assert found["run 2: requests/s"].verdict == "disagree"
    assert found["run 2: requests/s"].difference == pytest.approx(-0.69, abs=0.05)
    assert "decode" in {cause.code for cause in section.causes}


@pytest.mark.skipif(not OPEN_LOOP.exists(), reason="published runs are not in a clone")
def test_published_runs_at_a_rate_agree():
    """Qwen3-14B on one H100, vLLM 0.23, Poisson arrivals: inference-sim/residency-vllm."""
    with OPEN_LOOP.open() as file:
        rows = [row for row in csv.DictReader(file) if row["source_group"] == "residency-vllm"]
    rows = sorted(rows, key=lambda row: int(row["num_requests"]))[:2]
    claim = Claim(resolve_question("qwen3-14b", "1xh100-sxm", {"tp": 1, "max_num_seqs": 256}))
    agreed = []
    for row in rows:
        stats = {m: {"mean": float(row[f"{c}_mean_ms"]) / 1e3} for m, c in (("ttft", "ttft"), ("tpot", "tpot"), ("e2el", "e2e"))}
        lengths = float(row["input_mean_tokens"]), float(row["output_mean_tokens"])
        load = {"requests": int(row["num_requests"]), "request_rate": float(row["request_rate_rps"]), "concurrency": 256.0}
        result = BenchmarkRun("vllm", "serve", lengths=lengths, stats=stats, requests_per_s=float(row["achieved_rps"]), **load)
        found = verdicts(audit_bench([result], claim, "x"))
        agreed += [found[code] == "agree" for code in ("ttft_mean", "tpot_mean", "e2el_mean", "requests_per_s")]
    assert sum(agreed) >= 0.9 * len(agreed)


def document(load, claim, **times):
    result = measured(load, claim, **times)
    plain = {f"{s}_{m}_ms": v * 1e3 for m, stats in result.stats.items() for s, v in stats.items() if m != "e2el"}
    rates = {"request_throughput": result.requests_per_s, "output_throughput": result.output_tokens_per_s}
    totals = {"total_input_tokens": load.prompt * load.count, "total_output_tokens": load.answer * load.count}
    said = {"completed": load.count, "max_concurrency": load.clients, "request_rate": "inf"}
    return {"duration": load.count * load.answer / rates["output_throughput"], **said, **totals, **rates, **plain}


@pytest.mark.parametrize(
    ("times", "most", "code"), [(1.0, "2%", 0), (1.1, "15%", 0), (1.1, "0.05", 1), (0.8, "15%", 1), (1.1, None, 0)]
)
def test_the_largest_error_decides_in_ci(tmp_path, times, most, code):
    (tmp_path / "serve.json").write_text(json.dumps(document(LOADS[1], claimed(), tpot=times)))
    done = run_here("audit", tmp_path / "serve.json", *ASKED, *(("--max-error", most) if most else ()), "--json")
    assert done.returncode == code, done.stdout
    assert json.loads(done.stdout)["verdict"] == ("disagree" if code else "agree")


@pytest.mark.parametrize("most", ["0", "-1", "x"])
def test_a_largest_error_that_is_none(tmp_path, most):
    (tmp_path / "serve.json").write_text(json.dumps(document(LOADS[1], claimed())))
    done = run_here("audit", tmp_path / "serve.json", *ASKED, "--max-error", most)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = run_here("audit", tmp_path / "serve.json", "--max-error", "15%")
    assert (done.returncode, "belongs to a prediction" in done.stderr) == (2, True)


@pytest.mark.parametrize("printed", [False, True])
def test_the_offered_command_calibrates(tmp_path, monkeypatch, printed):
    """What is offered runs as it is written, and with its profile the same result agrees closely."""
    monkeypatch.chdir(tmp_path)
    found = document(LOADS[2], claimed(), tpot=1.3)
    text = json.dumps(found)
    if printed:
        names = {"completed": "Successful requests", "total_input_tokens": "Total input tokens"}
        names |= {"duration": "Benchmark duration (s)"}
        names |= {"total_output_tokens": "Total generated tokens", "max_concurrency": "Maximum request concurrency"}
        times = {f"mean_{m}_ms": f"Mean {m.upper()} (ms)" for m in ("ttft", "tpot")}
        rows = "\n".join(f"{title}:      {found[key]}" for key, title in (names | times).items())
        text = f"============ Serving Benchmark Result ============\n{rows}\n{'=' * 50}\n"
    Path("serve it").write_text(text)
    section = audit_bench(bench.read(text), claimed(), "serve it")
    (offer,) = [note for note in section.notes if note.code == "calibrate"]
    assert run_here(*shlex.split(offer[offer.index("commtax calibrate") :])[1:]).returncode == 0
    done = run_here("audit", "serve it", *ASKED, "--profile", "my-box.toml", "--json")
    times = {f["item"]: f["difference"] for s in json.loads(done.stdout)["sections"] for f in s["findings"]}
    assert times["TPOT (mean)"] == pytest.approx(0, abs=0.02)
    assert not math.isclose({f.code: f.difference for f in section.findings}["tpot_mean"], 0, abs_tol=0.1)


@pytest.mark.parametrize("here", [0.0, None])
def test_a_time_of_nothing_is_no_speed_up(here):
    result = BenchmarkRun("vllm", "latency", stats={"e2el": {"mean": here}} if here is not None else {})
    claim = Claim(resolve_question("llama-3.1-8b", "2xh100-sxm", {"tp": 2}))
    found = audit_bench([result], claim, "x", BenchmarkRun("vllm", "latency", stats={"e2el": {"mean": 1.0}})).findings
    assert [f.verdict for f in found if f.code == "speed-up"] == ["unknown"]
