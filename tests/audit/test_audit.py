"""Runs against their predictions: published logs in each version's wording, made traces and results, real ones on CPUs."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from audited import by_item, made_steps, question
from cli_run import run_here
from commtax import catalog
from commtax.runs.audit import audit, formats
from commtax.runs.audit.claimed_run import UNSAID, audit_run, logged_run
from commtax.runs.audit.read_files import ReadFiles
from commtax.runs.calibrate.calibration import read_runs
from commtax.runs.evidence.finding import Claim
from commtax.runs.logs.engine_logs import StartupLog, vllm_log
from commtax.runs.logs.startup_audit import audit_log
from commtax.runs.report.audit_words import summary
from commtax.runs.results import bench
from commtax.runs.results.bench_audit import audit_bench, floor_s
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.trace_audit import audit_traces
from commtax.units import format_seconds
from commtax.verbs import billing
from commtax.verbs.settling import resolve_question
from each import each
from made_traces import decode_graphs
from paths import FIXTURES, ROOT, SHARED
from start_logs import LOGS, name, of_log, start_log
from tables import tables
from texts import put

DATA = tables(__file__)
TINY = str(FIXTURES / "tiny-llama")
TRACES = SHARED / "traces"
GIB = 2**30
WORDINGS = DATA["wordings"]
RESULT = """{"backend": "vllm", "model_id": "Qwen/Qwen3-32B", "completed": 80, "duration": 56.0, "max_concurrency": 8,
 "total_input_tokens": 81920, "total_output_tokens": 40960, "mean_ttft_ms": 126.0, "mean_tpot_ms": 10.7}"""


def run(*words):
    done = run_here("audit", *words)
    assert "Traceback" not in done.stderr
    return done


@each("wording", WORDINGS)
@each("row", [r for r in LOGS if r["complete"] and r["args"].get("pp", 1) == 1], ids=name)
def test_published_starts_agree(row, wording):
    model, judged = of_log(row)
    logged, words = row["logged"], WORDINGS[wording]
    lines = [words[0].format(logged["weights_gib"])] if "weights_gib" in logged else []
    lines += [words[1].format(logged["available_kv_gib"])] if "available_kv_gib" in logged else []
    if wording != "0.6" and "kv_tokens" in logged:
        lines.append(words[2].format(logged["kv_tokens"]))
    text = "\n".join(f"(Worker_TP{r} pid={r}) INFO x [y.py:1] {line}" for line in lines for r in range(row["args"]["tp"]))
    found = audit_log(vllm_log.parse(text), Claim(resolve_question(model, judged.question.cluster, row["args"])))
    assert not [f for f in found.findings if f.verdict == "disagree"]
    settled = [f for f in found.findings if f.verdict == "agree" or "may count otherwise" in f.reason]
    assert len(settled) >= len(lines)


def test_weights_are_compared_with_those_of_each_rank():
    """The four stages of a published start (vLLM 0.6.3, Llama-3.1-8B, PP 4)."""
    row = next(r for r in LOGS if r["args"].get("pp") == 4)
    lines = [
        f"(Worker_PP{i} pid={i}) INFO x] Loading model weights took {w} GB" for i, w in enumerate(row["logged"]["weights_gib"])
    ]
    found = by_item(audit_log(vllm_log.parse("\n".join(lines)), question(cluster="4xa100-80-sxm", tp=1, pp=4)))
    assert [f.verdict for i, f in found.items() if i.startswith("weights")] == ["agree"] * 4
    whole = commtax.fit("llama-3.1-8b", "2xh100-sxm", tp=1).weights_bytes / GIB
    log = vllm_log.parse(f"(Worker_TP0 pid=1) INFO x [y.py:1] Model loading took {whole:.4f} GiB and 1 seconds")
    found = by_item(audit_log(log, question(tp=2)))
    assert (found["weights (TP0)"].verdict, found["weights (TP0)"].reason) == ("disagree", "as at tp 1")
    assert found["tensor-parallel size"].verdict == "unknown"
    both = "\n".join(f"(Worker_TP{r} pid={r}) INFO x [y.py:1] Model loading took {whole:.4f} GiB and 1 seconds" for r in (0, 1))
    found = by_item(audit_log(vllm_log.parse(both), question(tp=2)))
    assert (found["tensor-parallel size"].verdict, found["weights (2 ranks alike)"].verdict) == ("agree", "disagree")


def test_a_disabled_custom_allreduce_is_priced():
    """64 layers' worth of small all-reduces over NCCL instead of a one-shot kernel."""
    log = vllm_log.parse("W x] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.")
    (found,) = [f for f in audit_log(log, question(tp=2)).findings if "custom all-reduce is off" in f.item]
    own, other = (float(commtax.bill("llama-3.1-8b", "2xh100-sxm", tp=2, library=x).step_s) for x in ("", "nccl"))
    assert (found.predicted, found.measured) == (None, None), "neither figure was measured"
    assert found.verdict == "disagree"
    assert f"priced {format_seconds(other - own)} longer per step" in found.reason
    assert not [f for f in audit_log(log, question(tp=1)).findings if "custom" in f.item]


def test_a_trace_that_agrees():
    asked = question(tp=2)
    traces = [kineto.parse(decode_graphs(**made_steps(asked), rank=r)) for r in (0, 1)]
    found = by_item(audit_traces(traces, asked, ["a", "b"]))
    assert (found["all-reduces per decode step"].measured, found["all-reduces per decode step"].verdict) == (65, "agree")
    assert (found["decode step"].verdict, found["one all-reduce (shortest over ranks)"].verdict) == ("agree", "agree")
    assert found["all-reduce bytes per step"].verdict == "unknown"
    assert "CUDA graph" in found["all-reduce bytes per step"].reason
    assert found["waiting for the slowest rank, share of the step"].verdict == "agree"


@pytest.mark.parametrize(("changes", "item"), DATA["a_trace_that_disagrees"])
def test_a_trace_that_disagrees(changes, item):
    asked = question(tp=2)
    found = by_item(audit_traces([kineto.parse(decode_graphs(**made_steps(asked, **changes)))], asked, ["a"]))
    assert found[item].verdict == "disagree"
    assert found[item].reason


def test_kernels_without_a_name_are_counted_together():
    """RCCL in a graph leaves generic kernels only: 65 all-reduces and a gather are 66 of them."""
    asked = question(tp=2)
    made = decode_graphs(**made_steps(asked))
    for e in made["traceEvents"]:
        if "cross_device" in e["name"] or "nccl" in e["name"]:
            e["name"] = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    found = by_item(audit_traces([kineto.parse(made)], asked, ["a"]))
    assert (found["collectives per decode step"].measured, found["collectives per decode step"].verdict) == (66, "agree")


def test_what_a_question_is_not_about_is_not_judged():
    asked = question(cluster="4xh100-sxm", tp=2, pp=2)
    found = by_item(audit_traces([kineto.parse(decode_graphs(**made_steps(asked)))], asked, ["a"]))
    assert found["all-reduces per decode step"].verdict == "unknown"
    asked = question(tp=2, batch=32)
    section = audit_traces([kineto.parse(decode_graphs(**made_steps(asked)))], asked, ["a"])
    assert {f.item: f.verdict for f in section.findings} == {"steps": "unknown"}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda p: p.name[:30])
def test_every_shared_trace_can_be_audited(path):
    found = audit([path], question("qwen3-8b", "8xmi300x", tp=1))
    assert found.findings
    assert found.verdict in ("agree", "disagree", "unknown")


def test_a_straggler_is_named():
    asked = question(tp=2)
    words = made_steps(asked)
    traces = [kineto.parse(decode_graphs(**words, rank=r, late_us=0.3 * words["compute_us"] * (r == 0))) for r in (0, 1)]
    found = by_item(audit_traces(traces, asked, ["a", "b"]))["waiting for the slowest rank, share of the step"]
    assert found.verdict == "disagree"
    assert "rank 1 arrives last" in found.reason
    assert found.measured == pytest.approx(0.3 * words["compute_us"] / (words["compute_us"] + words["each_us"]), rel=0.01)


def latency(seconds, **words):
    return bench.parse(json.dumps({"avg_latency": seconds, "latencies": [seconds] * 3, "percentiles": {}}))


def test_latency_is_prefill_and_decode_steps():
    asked = question(tp=2, batch=1, context=512, output_len=128)
    prefill, decode = (
        float(commtax.bill("llama-3.1-8b", "2xh100-sxm", tp=2, phase=phase, batch=1, context=context).step_s)
        for phase, context in (("prefill", 512), ("decode", 576))
    )
    whole = prefill + 127 * decode
    assert {f.verdict for f in audit_bench(latency(whole * 1.1), asked, "x").findings} == {"agree"}
    assert "disagree" in {f.verdict for f in audit_bench(latency(whole * 2), asked, "x").findings}
    assert {f.verdict for f in audit_bench(latency(whole), question(tp=2), "x").findings} == {"unknown"}


def test_serving_of_a_real_run_keeps_its_books():
    files = [FIXTURES / "vllm-cpu-tp1.serve.json", FIXTURES / "vllm-cpu-tp1.throughput.json"]
    found = audit(files, question(TINY, "2xcpu", tp=1, eager=True))
    verdicts = {f.item: f.verdict for f in found.findings}
    assert (verdicts["E2E = TTFT + (n - 1) TPOT"], verdicts["output tokens = rate x duration"]) == ("agree", "agree")
    assert (verdicts["tensor-parallel size in the result"], found.count("disagree")) == ("agree", 0)


def test_many_results_of_one_question_are_priced_once(monkeypatch):
    asked = question(tp=2, context=512, output_len=128)
    audit_bench(latency(1.0), asked, "x")
    priced, price = [], billing.inference_bill
    monkeypatch.setattr(billing, "inference_bill", lambda *terms: priced.append(terms) or price(*terms))
    audit_bench([one for i in range(50) for one in latency(1.0 + i)], asked, "x")
    assert not priced
    assert asked.bill("decode", 1, 64) is asked.bill("decode", 1, 64)


def test_faster_than_physics():
    """Llama-3.1-8B at TP 1 on H100 reads 15 GB at 3.35 TB/s: no token below 4.4 ms."""
    asked = question(tp=1, context=512, output_len=128)
    assert floor_s(asked) == pytest.approx(7.5e9 * 2 / 3.35e12, rel=0.02)
    found = by_item(audit_bench(latency(128 * 4.0e-3), asked, "x"))["time per token (floor: reading the weights)"]
    assert found.verdict == "disagree"
    assert "faster than the weights can be read" in found.reason


def served(**words):
    plain = {"duration": 10.0, "completed": 10, "total_input_tokens": 5120, "total_output_tokens": 1280, "max_concurrency": 1}
    return bench.parse(json.dumps({**plain, **words}))


def test_definitions_are_checked_inside_a_result_and_failures_are_told():
    """TPOT as whole time / tokens (some dashboards) does not add up; a rate a GPU neither."""
    sound = {"mean_ttft_ms": 40.0, "mean_tpot_ms": 7.0, "mean_e2el_ms": 40 + 127 * 7.0, "output_throughput": 128.0}

    def verdicts(**changes):
        section = audit_bench(served(**{**sound, **changes}), question(), "x")
        return {item: f.verdict for item, f in by_item(section).items()}

    assert (verdicts()["E2E = TTFT + (n - 1) TPOT"], verdicts()["output tokens = rate x duration"]) == ("agree", "agree")
    assert verdicts(mean_ttft_ms=400.0, mean_tpot_ms=1289 / 128, mean_e2el_ms=1289.0)["E2E = TTFT + (n - 1) TPOT"] == "disagree"
    assert verdicts(output_throughput=64.0)["output tokens = rate x duration"] == "disagree"
    results = served(mean_ttft_ms=128 * 7.2, mean_tpot_ms=7.2, mean_itl_ms=7.2)
    found = [f for f in audit_bench(results, question(tp=1), "x").findings if f.item == "TTFT"]
    assert [f.verdict for f in found] == ["disagree"]
    assert "128 x ITL" in found[0].reason
    assert by_item(audit_bench(served(failed=3, mean_tpot_ms=9.0), question(tp=1), "x"))["failed requests"].verdict == "disagree"


def test_two_gpus_as_fast_as_one():
    asked = question(tp=2, context=512, output_len=128)
    found = by_item(audit_bench(latency(0.92), asked, "x", latency(0.93)[0]))["speed-up of TP 2 over TP 1"]
    assert found.verdict == "disagree"
    assert "probably not applied" in found.reason
    on_cpus = question(TINY, "2xcpu", tp=2, context=128, output_len=32, eager=True)
    found = by_item(audit_bench(latency(0.40), on_cpus, "x", latency(0.40)[0]))["speed-up of TP 2 over TP 1"]
    assert found.verdict == "unknown", "vLLM on CPUs spends its step in the host: equal times prove nothing there"
    assert "host's time hides it" in found.reason


@pytest.mark.parametrize("tp", [1, 2])
def test_vllm_on_cpu_is_reconciled(tp):
    """Our own run of vLLM 0.32 on two CPU processes: layout, KV tokens and concurrency agree; seconds need a calibration."""
    files = [FIXTURES / f"vllm-cpu-tp{tp}.log", FIXTURES / f"vllm-cpu-tp{tp}.latency.json"]
    asked = question(TINY, "2xcpu", tp=tp, batch=1, context=128, output_len=32, eager=True)
    found = audit(files, asked)
    items = {f.item: f for f in found.findings}
    alone = audit(files[:1], replace(asked, context=None, output_len=None))
    assert (alone.verdict, found.verdict) == ("agree", "unknown"), "assumed seconds are far off: memory alone agrees"
    assert found.count("disagree") == 0
    assert items["KV tokens in that memory"].measured == items["KV tokens in that memory"].predicted == 262_144 * tp
    assert items["full-length requests at once"].verdict == "agree"
    assert items["time per token (floor: reading the weights)"].verdict == "agree"
    assert "calibrate" in items["E2E (mean)"].reason
    assert audit(files[:1], replace(asked, question=asked.question.but(tp=3 - tp))).verdict == "disagree"


@pytest.mark.parametrize(("phase", "rows"), [("decode", 1), ("prefill", 128)])
def test_vllm_on_cpu_sends_what_traffic_lists(phase, rows):
    """Counts and bytes of a real run's collectives equal ``commtax.traffic``, exactly."""
    files = [FIXTURES / f"vllm-cpu-tp2-rank{r}.trace.json.gz" for r in (0, 1)]
    found = audit(files, question(TINY, "2xcpu", tp=2, phase=phase, eager=True))
    items = {f.item: f for f in found.findings}
    assert items[f"all-reduces per {phase} step"].measured == 9
    assert items["all-reduce bytes per step"].measured == 9 * rows * 512 * 2
    exact = [f for f in found.findings if f.unit in ("", "bytes")]
    assert len(exact) == 6
    assert all(f.verdict == "agree" and f.difference == 0 for f in exact)


def test_command_line():
    words = ("--model", TINY, "--cluster", "2xcpu")
    good = run(FIXTURES / "vllm-cpu-tp2.log", *words, "-tp", 2, "--json")
    assert good.returncode == 0
    document = json.loads(good.stdout)
    assert (document["schema"], document["verdict"]) == ("commtax.audit/2", "agree")
    assert set(document["sections"][0]["findings"][0]) == {
        *("code", "item", "predicted", "measured", "difference", "base", "low", "high", "tolerance", "unit"),
        *("verdict", "evidence", "reason"),
    }
    alone = run(FIXTURES / "vllm-cpu-tp2.log", *words)
    assert (alone.returncode, ", TP 2, from vllm-cpu-tp2.log: the run agrees" in alone.stdout) == (0, True)
    bad = run(FIXTURES / "vllm-cpu-tp2.log", *words, "-tp", 1)
    assert bad.returncode == 1
    assert "TP 1: the run disagrees with the prediction: tensor-parallel size 2 in the file" in " ".join(bad.stdout.split())
    lengths = ("--input-len", 128, "--output-len", 32)
    baseline = ("--baseline", FIXTURES / "vllm-cpu-tp1.latency.json")
    results = run(FIXTURES / "vllm-cpu-tp2.latency.json", *words, "-tp", 2, *baseline, *lengths)
    assert results.returncode == 3
    assert "speed-up of TP 2" in results.stdout


@pytest.mark.parametrize(("content", "words"), DATA["bad_files"])
def test_bad_files(tmp_path, content, words):
    done = run(put(tmp_path, "file", content), "--model", TINY, "--cluster", "2xcpu")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_bad_input_and_kinds_by_content(tmp_path):
    assert run(tmp_path / "no.log", "--model", TINY, "--cluster", "2xcpu").returncode == 2
    assert run(FIXTURES / "vllm-cpu-tp2.log", "--model", TINY, "--cluster", "2xcpu", "-tp", 3).returncode == 2
    assert run(FIXTURES / "vllm-cpu-tp2.log", "--model", TINY, "--cluster", "2xcpu", "--tolerance", 0).returncode == 2
    phase = run(FIXTURES / "vllm-cpu-tp2.log", "--model", TINY, "--cluster", "2xcpu", "--phase", "bogus")
    assert (phase.returncode, "one of decode, prefill, mixed" in phase.stderr) == (2, True)
    kinds = {p.name: formats.kinds(p)[0] for p in FIXTURES.glob("vllm-cpu-tp2*")}
    assert set(kinds.values()) == {"log", "bench", "trace"}


def log_of(**said):
    return "a.log", StartupLog(settings={"model": "Qwen/Qwen3-32B"} | said.pop("settings", {}), **said)


def taken(*logs, said=(), cluster="4xh100-sxm"):
    return logged_run(ReadFiles(logs)).over(Claim(resolve_question("qwen3-32b", cluster, {})), set(said))


def test_a_claim_takes_what_its_log_says():
    log = log_of(version="0.12.0rc1", tp=4, max_model_len=8192, settings={"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"})
    q = taken(log).question
    assert (q.plan.tp, q.plan.weights_dtype, q.plan.kv_dtype, q.limits.max_model_len) == (4, "fp8", "fp8", 8192)
    assert (q.engine.key, q.engine.version) == ("vllm", "0.12.0")
    held = taken(log, said=("dp", "engine")).question
    assert (held.plan.tp, held.engine.version) == (1, catalog.engine("vllm").version), "who says one size says them all"
    assert taken(log, cluster="h100-sxm").plan.tp == 1, "which has no room for it, and is contradicted"
    assert taken(log, log_of(version="0.12.0", tp=2)).plan_source == taken().plan_source == UNSAID
    assert taken(cluster="h100-sxm").plan_source == ""
    with pytest.raises(ValueError, match="output_len"):
        question(output_len=0)


@given(tp=st.sampled_from([1, 2, 4, 8]), seqs=st.sampled_from([16, 64, 256]), eager=st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_folder_is_one_deployment_for_audits_and_calibrations(tmp_path_factory, tp, seqs, eager):
    folder = tmp_path_factory.mktemp("run")
    (folder / "result.json").write_text(RESULT)
    flags = f"-tp {tp} --max-num-seqs {seqs}" + (" --enforce-eager" if eager else "")
    (folder / "serve.sh").write_text(f"#!/bin/sh\nvllm serve Qwen/Qwen3-32B {flags}\n")
    (run,) = read_runs([folder], "8xh100-sxm")
    audited = audit_run(folder, cluster="8xh100-sxm")
    q = audited.claim.question
    calibrated = tuple(run.options.get(name) for name in ("tp", "max_num_seqs"))
    assert (q.plan.tp, q.limits.max_num_seqs, audited.claim.plan_source) == (tp, seqs, "from 'serve.sh'")
    assert calibrated == (tp, seqs)
    assert q.what_if.eager == bool(run.options.get("eager")) == eager
    assert not audited.notes, "the command is no file that was left out"


def test_commands_that_contradict_each_other_are_named(tmp_path):
    (tmp_path / "result.json").write_text(RESULT)
    for tp in (2, 4):
        (tmp_path / f"tp{tp}.sh").write_text(f"vllm serve Qwen/Qwen3-32B -tp {tp}\n")
    with pytest.raises(ValueError, match=r"tp: 'tp2.sh' says 2, and 'tp4.sh' says 4; name with --from"):
        audit_run(tmp_path, cluster="8xh100-sxm")
    assert audit_run(tmp_path, cluster="8xh100-sxm", tp=4).claim.tp == 4


@pytest.mark.parametrize("clients", [8, 32, 128])
def test_the_command_that_an_audit_names_tells_its_mean_and_range(clients):
    result = ROOT / "examples" / "three-runs" / f"serve-{clients}.json"
    section = audit_run(result, cluster="4xh100-sxm", tp=4).sections[0]
    first = next(f for f in section.findings if f.code == "ttft_mean")
    load = json.loads(result.read_text())
    lengths = [str(load[f"total_{way}_tokens"] // load["num_prompts"]) for way in ("input", "output")]
    asked = ("--input-len", lengths[0], "--output-len", lengths[1], "--num-prompts", str(load["num_prompts"]), "--spread", "0")
    told = run_here("simulate", "qwen3-32b", "-c", "4xh100-sxm", "-tp", "4", "--concurrency", str(clients), *asked).stdout
    low, mean, high = (format_seconds(s) for s in (first.low, first.predicted, first.high))
    assert f"Mean TTFT {mean} ({low} to {high})" in told


@pytest.mark.parametrize(("one", "other"), [("good", "low"), ("first/server", "second/server")], ids=["two names", "one name"])
def test_of_several_logs_the_one_that_disagrees_is_named(tmp_path, one, other):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    good, low = start_log(tmp_path, one, 31.20, 408_944), start_log(tmp_path, other, 21.10, 276_560)
    told = [str(file) if good.name == low.name else file.name for file in (good, low)]
    first, cause, *_ = summary(commtax.audit_run(good, low, model="llama-3.3-70b", cluster="4xh100-sxm"))
    assert f", from {told[0]} and {told[1]}: " in first
    assert f"disagrees with the prediction: {told[1]}: KV memory left 21.10 GiB instead of" in first
    assert cause.startswith(f"{told[1]}: ")
    alone, *_ = summary(commtax.audit_run(low, model="llama-3.3-70b", cluster="4xh100-sxm"))
    assert "disagrees with the prediction: KV memory left" in alone
