"""What benchmarks and profilers' traces are read as: the question that each answers, and constants that come back."""

import json
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.posterior import Posterior
from commtax.catalog.profile_files import parse, profile_text
from commtax.launch.launch_options import read_pasted
from commtax.runs.audit.reported_deployments import ReportedDeployment, StatedLoad, from_launch, from_result, joined
from commtax.runs.calibrate.calibration import calibrate, read_runs
from commtax.runs.calibrate.drift import check_drift
from commtax.runs.calibrate.engine_runs import LabelledResult, measured_runs
from commtax.runs.calibrate.learning import learn, price_step
from commtax.runs.calibrate.measurement_files import read_all
from commtax.runs.calibrate.measurements import MeasuredRun, MeasuredStep
from commtax.runs.results import bench
from commtax.runs.traces.claim_check import work_of
from commtax.spec import KERNEL_PACES, STEP_PARTS, Profile, Workload
from commtax.statement import Refusal
from each import each
from made_nccl import TRUE, noisy, output
from made_traces import decode_graphs, write
from paths import FIXTURES, SHARED
from profiled import trace_of
from tables import tables
from texts import put

DATA = tables(__file__)
REAL = {real["name"]: real["text"] for real in json.loads((FIXTURES / "audit" / "benches.json").read_text())}
NO_LOAD = StatedLoad()
TINY = str(FIXTURES / "tiny-llama")
SERVE = DATA["serve"]
INFERENCEX = DATA["inferencex"]
FORMATS = {
    "vllm bench serve": (SERVE, {}, ("vllm", 16, 1024, 128, 160), {"tpot": 0.009, "ttft": 0.08}),
    "sglang.bench_serving": (
        *(REAL["sglang-serving-jsonl"], {"model": "llama-3.1-8b"}),
        *(("sglang", 32, 4000, 1000, 300), {"tpot": 0.0496295, "ttft": 15.50769}),
    ),
    "bench_one_batch": (REAL["sglang-one-batch-printed"], {"model": "llama-3.1-8b"}, ("sglang", 1, 60, 10, 1), {"e2e": 0.062}),
    "trtllm-bench": (DATA["trtllm"], {}, ("trtllm@1.1.0rc1", 64, 1024, 128, 640), {"tpot": 0.0105, "ttft": 0.21}),
    "GuideLLM": (REAL["guidellm"], {}, ("vllm", 1, 93, 1024, 25), {"tpot": 0.02990631, "ttft": 0.04884365}),
    "AIPerf": (
        *(REAL["aiperf-json"].replace("qwen3.6-nvfp4", "qwen3-8b"), {}),
        *(("vllm", 16, 3761, 544, 96), {"tpot": 0.01184734, "ttft": 0.23013715}),
    ),
    "AIPerf's table": (
        *(REAL["aiperf-csv"], {"model": "qwen3-8b", "load": StatedLoad(concurrency=16)}),
        *(("vllm", 16, 3761, 544, 96), {"tpot": 0.01185, "ttft": 0.23014}),
    ),
    "vllm bench latency": (
        *(
            {"avg_latency": 0.9, "latencies": [0.9]},
            {"model": "llama-3.1-8b", "load": StatedLoad(input_len=32, output_len=128, batch=8)},
        ),
        *(("vllm", 8, 32, 128, 8), {"e2e": 0.9}),
    ),
}
CHANGES = some.lists(
    some.tuples(
        some.integers(0, 10_000), some.integers(0, 4), some.sampled_from(["9", "-", '"', "\n", "{", "NaN", "1e400", "%", "é"])
    ),
    min_size=1,
    max_size=6,
)
CLUSTER = "8xh100-sxm"
MODEL = "llama-3.1-8b"
ENGINE = "vllm@0.18"
STEP = "execute_context_0(0)_generation_64(64)"
PUBLIC = SHARED / "traces"
LAUNCH = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
H200_STEP_S = 11.625e-3
"""Decode of 64 sequences of 2,048 tokens, Llama 3.1 8B's shapes in plain torch in a CUDA graph on an H200: without the profiler."""


def found(*paths, cluster="8xh100-sxm", launch="", load=NO_LOAD, **options):
    given_here = ReportedDeployment("the command line", options.pop("model", ""), options, load)
    pasted = [from_launch(read_pasted(launch), "--from")] if launch else []
    read = read_all([Path(path) for path in paths], "nccl", [given_here, *pasted])
    read.refuse_missing()
    return read.rows + measured_runs(read.results, catalog.cluster(cluster))


def only(*paths, **options):
    (run,) = found(*paths, **options).runs
    return run


def file(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    return put(folder, name, content if isinstance(content, str) else json.dumps(content))


def asked(run, *names):
    return tuple(run.options.get(name) for name in names)


@pytest.mark.parametrize("name", FORMATS)
def test_results_of_each_tool(tmp_path, name):
    content, options, load, measured = FORMATS[name]
    run = only(file(tmp_path, "result", content), cluster="8xh200-sxm", **options)
    assert asked(run, "engine", "concurrency", "input_len", "output_len", "num_prompts") == load
    assert (run.measured, set(run.noise.values())) == (pytest.approx(measured, rel=1e-5), {1.0})
    assert commtax.simulate(run.model, run.cluster, **run.options).tpot_s > 0


def test_genai_perf_says_its_load_in_its_configuration(tmp_path):
    blocks = {"time_to_first_token": 40.0, "inter_token_latency": 9.5, "request_latency": 1250.0}
    lengths = {"output_sequence_length": 128.0, "input_sequence_length": 550.0}
    content = {name: {"unit": "ms", "avg": value, "std": 0.0} for name, value in (blocks | lengths).items()}
    content |= {"request_count": {"unit": "count", "avg": 80.0}}
    content |= {"input_config": {"model_names": ["meta-llama/Llama-3.1-8B"], "perf_analyzer": {"stimulus": {"concurrency": 8}}}}
    run = only(file(tmp_path, "profile_export_genai_perf.json", content))
    assert asked(run, "concurrency", "input_len", "output_len") == (8, 550, 128)
    assert run.measured == pytest.approx({"tpot": 0.0095, "ttft": 0.04})


def test_a_result_that_says_its_deployment(tmp_path):
    run = only(file(tmp_path, "x.json", INFERENCEX), cluster="8xh200-sxm")
    assert asked(run, "engine", "tp", "dp", "ep", "dtype") == ("sglang@0.5.5", 1, 8, 8, None), "R1 has fp8 by itself"
    assert run.options["spread"] == pytest.approx(1 / 9)
    with pytest.raises(Refusal, match=r"'x\.json': the file names h200-sxm, not b200-sxm"):
        found(tmp_path / "x.json", cluster="8xb200-sxm")
    apart = {"disagg": "true", "decode_tp": 8, "decode_num_workers": 1, "prefill_tp": 4, "prefill_num_workers": 2}
    apart |= {"num_decode_gpu": 8}
    run = only(file(tmp_path, "y.json", {**INFERENCEX, "dp_attention": "false", "ep": 1, **apart}), cluster="2x8xh200-sxm")
    names = ("disaggregated", "tp", "decode_workers", "prefill_tp", "prefill_workers")
    assert asked(run, *names) == (True, 8, 1, 4, 2)


@pytest.mark.parametrize(("command", "options"), DATA["a_pasted_command_is_what_was_served"])
def test_a_pasted_command_is_what_was_served(tmp_path, command, options):
    run = only(file(tmp_path, "r.json", SERVE), launch=command.replace(" M ", " meta-llama/Llama-3.1-8B "))
    assert options.items() <= run.options.items()
    assert commtax.simulate(run.model, run.cluster, **run.options).ttft_s > 0


def test_a_launch_spreads_experts_and_versions_agree_by_their_beginning(tmp_path):
    content = {**SERVE, "model_id": "Qwen/Qwen3-30B-A3B"}
    run = only(file(tmp_path, "r.json", content), launch="vllm serve Qwen/Qwen3-30B-A3B -dp 4 -ep")
    answer = commtax.simulate(run.model, run.cluster, **run.options)
    assert (answer.question.plan.dp, answer.question.plan.ep) == (4, 4)
    run = only(file(tmp_path, "r.json", {**SERVE, "version": "0.11.2"}), engine="vllm@0.11")
    assert run.options["engine"] == "vllm@0.11.2"


def test_a_folder_is_a_deployment_and_its_log_tells_it(tmp_path):
    """The logs are those of real servers; each result takes the one that it lies beside."""
    for name in ("tp1", "tp2"):
        file(tmp_path / name, "server.log", (FIXTURES / f"vllm-cpu-{name}.log").read_text())
        file(tmp_path / name / "results", "c.json", {**SERVE, "model_id": "tiny-llama", "total_input_tokens": 160 * 64})
    file(tmp_path, "README.md", "what these are\n")
    runs = found(tmp_path, cluster="2xcpu", model=TINY)
    assert [run.label for run in runs.runs] == [f"{tmp_path.name}/{name}/results/c.json" for name in ("tp1", "tp2")]
    assert [asked(run, "tp", "max_num_batched_tokens", "eager") for run in runs.runs] == [(1, 4096, True), (2, 8192, True)]
    assert {run.options["engine"] for run in runs.runs} == {"vllm@0.32.0"}
    assert any("not recognised" in note and "README.md" in note for note in runs.notes)


def test_a_script_beside_the_results_tells_what_was_served_and_a_client_its_load(tmp_path):
    file(tmp_path, "start.sh", "#!/bin/bash\nexport TP=4\nvllm serve meta-llama/Llama-3.1-8B-Instruct -tp $TP --max-num-seqs 96\n")
    file(tmp_path, "c16.json", SERVE)
    assert asked(only(tmp_path), "tp", "max_num_seqs") == (4, 96)
    assert asked(only(tmp_path / "start.sh", tmp_path / "c16.json"), "tp", "max_num_seqs") == (4, 96), "or named one by one"


def test_a_client_s_command_says_its_load_and_nothing_of_the_server(tmp_path):
    client = "vllm bench serve --model meta-llama/Llama-3.1-8B --max-concurrency 24 --random-input-len 512 --random-output-len 64"
    file(tmp_path, "bench.sh", client)
    file(tmp_path, "start.sh", "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2")
    file(tmp_path, "README.md", "First run `vllm serve meta-llama/Llama-3.1-8B -tp 8`.")
    silent = {key: value for key, value in SERVE.items() if "total" not in key and key not in ("max_concurrency", "request_rate")}
    file(tmp_path, "r.json", silent | {"total_output_tokens": 160 * 64})
    assert asked(only(tmp_path), "engine", "tp", "concurrency", "input_len", "output_len") == ("sglang", 2, 24, 512, 64)


def test_files_that_are_named_one_by_one_are_told_apart_by_what_they_say(tmp_path):
    paths = [file(tmp_path, f"{tp}.sh", f"vllm serve meta-llama/Llama-3.1-8B -tp {tp} --max-num-seqs {32 * tp}") for tp in (2, 4)]
    paths += [file(tmp_path, f"{tp}.json", {**SERVE, "tensor_parallel_size": str(tp)}) for tp in (2, 4)]
    assert [asked(run, "tp", "max_num_seqs") for run in found(*paths).runs] == [(2, 64), (4, 128)]
    silent = file(tmp_path, "silent.json", SERVE)
    with pytest.raises(Refusal, match=r"'silent\.json' does not say which it is of; a folder for each deployment"):
        found(*paths, silent)


@pytest.mark.parametrize(("content", "options", "says"), DATA["what_does_not_agree_is_refused_by_name"])
def test_what_does_not_agree_is_refused_by_name(tmp_path, content, options, says):
    with pytest.raises(Refusal, match=says):
        found(file(tmp_path, "r.json", {**SERVE, **content}), **options)


def test_an_open_loop_is_as_many_clients_as_were_in_flight(tmp_path):
    """Little's law: 4 requests/s of 80 + 127 x 9 ms are 4.9 in flight."""
    paced = {**SERVE, "request_rate": 4.0, "max_concurrency": None, "request_throughput": 4.0}
    rows = found(file(tmp_path, "r.json", paced))
    (run,) = rows.runs
    assert asked(run, "concurrency", "num_prompts") == (5, None)
    assert run.measured == {"tpot": pytest.approx(0.009)}, "first tokens wait as requests come"
    assert run.noise["tpot"] > 1
    assert any(note.startswith("open loop") for note in rows.notes)
    assert only(file(tmp_path, "w.json", {**paced, "mean_e2el_ms": 3000.0})).options["concurrency"] == 12
    late = found(file(tmp_path, "l.json", {**paced, "request_throughput": 2.0}))
    assert not late.runs
    assert "overloaded: 2 of 4 requests/s" in late.refused[0]
    capped = only(file(tmp_path, "c.json", {**paced, "request_throughput": 2.0, "max_concurrency": 6}))
    assert capped.options["concurrency"] == 6, "clients that fall behind their rate are a closed loop"
    assert "ttft" in capped.measured


def test_medians_stand_in_for_means_and_are_less_sure(tmp_path):
    plain = {key: value for key, value in SERVE.items() if not key.startswith("mean")}
    run = only(file(tmp_path, "r.json", plain))
    assert run.measured == pytest.approx({"tpot": 0.0088, "ttft": 0.07})
    assert 1 < run.noise["tpot"] < run.noise["ttft"]
    renamed = {key.replace("median", "p50"): value for key, value in plain.items()}
    assert only(file(tmp_path, "p.json", renamed)).noise == run.noise
    both = only(file(tmp_path, "b.json", SERVE))
    assert (both.measured["tpot"], both.noise["tpot"]) == (pytest.approx(0.009), 1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"failed": 3}, "3 requests failed"),
        ({"accept_length": 2.5}, "2.5 tokens per step under speculative decoding"),
        ({"max_concurrency": None}, "all requests at once, and no limit of concurrency"),
        ({"max_concurrency": None, "request_rate": None}, "neither a limit of concurrency nor a request rate"),
        ({"mean_ttft_ms": 0.0, "median_ttft_ms": 0.0}, "answers were not streamed"),
    ],
)
def test_what_tells_nothing_of_a_step_is_left_out_with_its_reason(tmp_path, changes, says):
    rows = found(file(tmp_path, "r.json", {**SERVE, **changes}))
    assert not rows.runs
    assert rows.refused[0].startswith("r.json: ")
    assert says in rows.refused[0]


def test_a_server_that_tells_its_client_what_it_is(tmp_path):
    """Each line of SGLang's results may be of another server."""
    servers = [
        {"model_path": "meta-llama/Llama-3.1-8B", "tp_size": tp, "version": "0.5.4", "max_running_requests": 128} for tp in (2, 4)
    ]
    lines = [json.dumps({**SERVE, "backend": "sglang", "server_info": server}) for server in servers]
    runs = found(file(tmp_path, "r.jsonl", "\n".join(lines))).runs
    assert [asked(run, "engine", "tp", "max_num_seqs") for run in runs] == [("sglang@0.5.4", tp, 128) for tp in (2, 4)]


def test_drafts_and_illegal_plans_of_a_launch_are_refused_by_file(tmp_path):
    draft = """vllm serve m --speculative-config '{"method":"eagle3","num_speculative_tokens":3}'"""
    assert "drafted" in found(file(tmp_path, "r.json", SERVE), launch=draft).refused[0]
    rows = found(file(tmp_path, "r.json", SERVE), launch="vllm serve m -tp 3")
    assert not rows.runs
    assert rows.refused[0].startswith("r.json: heads-divisible: ")
    with pytest.raises(Refusal, match=r"r\.json: heads-divisible"):
        calibrate([tmp_path / "r.json"], "8xh100-sxm", launch="vllm serve m -tp 3")


def test_cached_prefixes_are_part_of_the_question():
    (result,) = bench.parse(json.dumps(SERVE))
    cached = replace(result, hit_rate=0.5)
    one = LabelledResult("r", cached, joined([from_result(cached, "r")]))
    (run,) = measured_runs([one], catalog.cluster("8xh100-sxm")).runs
    assert run.options["prefix_cache"] == 0.5


def test_all_that_is_missing_is_asked_for_in_one_line(tmp_path):
    files = [file(tmp_path, f"{n}.json", {"avg_latency": 0.9, "latencies": [0.9]}) for n in range(2)]
    done = run_here("calibrate", *files, "-o", tmp_path / "out.json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "'0.json', '1.json' do not say cluster, model, input_len, output_len, batch" in done.stderr
    assert "--cluster --model --input-len --output-len --batch" in done.stderr
    assert not (tmp_path / "out.json").exists()
    words = ["-m", "llama-3.1-8b", "--input-len", "32", "--output-len", "128", "--batch", "8", "-c", "1xh100-sxm"]
    assert run_here("calibrate", *files, *words, "-o", tmp_path / "out.json").returncode == 0


def test_an_unknown_load_is_asked_for_by_name(tmp_path):
    path = file(tmp_path, "a.csv", REAL["aiperf-csv"])
    with pytest.raises(Refusal, match=r"'a\.csv' does not say concurrency; add --concurrency"):
        found(path, model="qwen3-8b")


def test_one_folder_of_everything(tmp_path):
    rng = np.random.default_rng(0)
    for n in (2, 8):
        file(tmp_path / "box", f"{n}.txt", output("all_reduce", n, noisy(TRUE, n, rng)))
    for clients in (4, 16):
        file(tmp_path / "box", f"c{clients}.json", {**SERVE, "max_concurrency": clients, "mean_tpot_ms": 7 + clients / 8})
    out = tmp_path / "box.json"
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64"
    done = run_here("calibrate", tmp_path / "box", "-c", "8xh100-sxm", "--from", command, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    assert {"libraries", "deployment"} <= json.loads(done.stdout)["profile"].keys()
    assert commtax.bill("llama-3.1-8b", "8xh100-sxm", profile=str(out)).step_s > 0


@pytest.mark.parametrize("text", ['{"model_id": "m", "dur', "[[[[", '{"completed": 1, "duration": "x"'])
def test_damaged_json_in_a_folder_is_refused_and_nothing_is_written(tmp_path, text):
    file(tmp_path / "box", "good.json", SERVE)
    file(tmp_path / "box", "bad.json", text)
    done = run_here("calibrate", tmp_path / "box", "-c", "8xh100-sxm", "-o", tmp_path / "out.json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "bad.json" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_foreign_files_of_a_folder_are_left_out_and_said(tmp_path):
    file(tmp_path, "good.json", SERVE)
    file(tmp_path, "config.json", {"architectures": ["LlamaForCausalLM"]})
    (tmp_path / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff")
    rows = found(tmp_path)
    assert len(rows.runs) == 1
    assert any("config.json" in note and "plot.png" in note for note in rows.notes)


@given(name=some.sampled_from(sorted(REAL)), changes=CHANGES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_result_is_read_or_refused(tmp_path, name, changes):
    text = REAL[name]
    for at, cut, odd in changes:
        text = text[: at % len(text)] + odd + text[at % len(text) + cut :]
    path = file(tmp_path, "damaged", text)
    with suppress(Refusal):
        for run in found(path, model="llama-3.1-8b", load=StatedLoad(2, 0.0, 8, 8, batch=2)).runs:
            assert all(0 < seconds < 1e6 for seconds in run.measured.values())


@given(order=some.permutations(range(4)), clients=some.lists(some.integers(1, 64), min_size=4, max_size=4, unique=True))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_order_of_files_does_not_matter(tmp_path, order, clients):
    paths = [file(tmp_path, f"{n}.json", {**SERVE, "max_concurrency": n, "completed": 10 * n}) for n in clients]
    plain, turned = (found(*(paths[i] for i in way)).runs for way in (range(4), order))
    assert sorted(plain, key=lambda run: run.label) == sorted(turned, key=lambda run: run.label)
    assert [run.options["concurrency"] for run in plain] == clients


def billed(batch=64, context=2048, tp=1, **moved):
    """The bill of a step whose constants are so many times the catalogue's."""
    engine = catalog.engine(ENGINE)
    host = {name: getattr(engine.host, name) * times for name, times in moved.items() if not name.startswith("pace_")}
    paces = {name: times for name, times in moved.items() if name.startswith("pace_")}
    return commtax.bill(MODEL, CLUSTER, engine=engine.but(**host, **paces), batch=batch, context=context, tp=tp)


def taught(tmp_path, bill, named=STEP, **how):
    path = write(tmp_path / "step.json.gz", trace_of(bill, named, **how))
    asked = {"model": MODEL, "engine": ENGINE, "tp": int(bill.question.plan.tp), "input_len": 2048}
    return calibrate([path], CLUSTER, **asked)


def changes_of(profile):
    return Posterior(profile.lessons).changes(profile.lessons[0].deployment)


@each(("pace", "host", "least"), [(1.3, 2.0, 0.08), (0.8, 0.5, 0.35)])
def test_constants_that_were_moved_come_back_and_others_stay(tmp_path, pace, host, least):
    """Steps of one sequence and of many: the former's host time is the step's own, the latter's that of sequences.

    A host that takes longer is believed less than one that takes less time: a profiler may have slowed it.
    """
    moved = {"pace_decoding": pace, "host_s": host}
    steps = [(1, "execute_context_0(0)_generation_1(1)"), (64, STEP)]
    paths = [write(tmp_path / f"{n}.json.gz", trace_of(billed(n, **moved), named)) for n, named in steps]
    found = changes_of(calibrate(paths, CLUSTER, model=MODEL, engine=ENGINE, tp=1, input_len=2048).profile)
    assert 0.65 < found["pace_decoding"].log / np.log(pace) < 1.02
    assert least < found["host_s"].log / np.log(host) < 1.0
    for name in ("pace_products", "pace_small", "pace_wire", "pace_latency", "request_s", "prompt_s"):
        assert abs(found[name].log) < 0.01, name
    assert found["pace_products"].after < found["pace_products"].before
    assert found["request_s"].after == found["request_s"].before


def test_a_trace_is_surer_of_kernels_than_a_benchmark(tmp_path):
    asked = {"engine": ENGINE, "tp": 1, "input_len": 1920, "output_len": 256, "concurrency": 64}
    served = commtax.simulate(MODEL, CLUSTER, **asked)
    latencies = {"tpot": float(served.tpot_s), "ttft": float(served.ttft_s)}
    run = MeasuredRun(MODEL, catalog.cluster(CLUSTER), asked, latencies, {}, "serve.json")
    by_run = changes_of(learn([run], Profile("box")).profile)
    by_trace = changes_of(taught(tmp_path, billed()).profile)
    for name in ("pace_products", "pace_decoding", "pace_small"):
        assert by_trace[name].after < by_run[name].after < by_run[name].before


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["products", "attention", "small", "host"]), st.floats(0.8, 1.4), st.sampled_from([1, 8, 64, 256]))
def test_each_part_moves_its_own_constants(part, times, batch):
    cluster, work = catalog.cluster(CLUSTER), Workload(decode_seqs=batch, cached_tokens=batch * 1024)
    step = MeasuredStep(MODEL, cluster, {"engine": ENGINE, "tp": 1}, work, {}, {}, "step.json")
    usual = price_step(step, Profile("none")).seconds
    parts = {name: usual[name] * (times if name == part else 1.0) for name in ("products", "attention", "small", "host")}
    found = changes_of(learn([replace(step, parts=parts)], Profile("box")).profile)
    for name, change in found.items():
        if name not in STEP_PARTS[part]:
            assert abs(change.log) < 0.02
    moved = sum(found[name].log for name in STEP_PARTS[part])
    assert moved == pytest.approx(0.0, abs=0.01) or np.sign(moved) == np.sign(np.log(times))
    assert abs(moved) <= 1.05 * len(STEP_PARTS[part]) * abs(np.log(times)) + 0.01


def test_a_written_profile_is_read_back_with_its_parts(tmp_path):
    own = taught(tmp_path, billed(pace_products=1.1)).profile
    again = parse(tomllib.loads(profile_text(own)))
    assert {x.metric for x in again.lessons} == {"products", "attention", "small", "host"}
    assert changes_of(again)["pace_products"].log == pytest.approx(changes_of(own)["pace_products"].log, rel=1e-3)


def test_ranks_lose_what_they_wait_for_each_other(tmp_path):
    """Two ranks of one job, one of them waiting in every collective for the other, whose kernels take longer by as much."""
    bill = billed(tp=2)
    paths = [
        write(tmp_path / f"rank{rank}.json", trace_of(bill, STEP, rank=rank, world=2, late_s=late, before_s=3e-6 - late))
        for rank, late in ((0, 0.0), (1, 3e-6))
    ]
    both = calibrate(paths, CLUSTER, model=MODEL, engine=ENGINE, tp=2, input_len=2048)
    lesson = next(x for x in both.profile.lessons if x.metric == "collectives")
    assert lesson.measured_s == pytest.approx(lesson.catalogue_s, rel=0.02)
    alone = calibrate(paths[:1], CLUSTER, model=MODEL, engine=ENGINE, tp=2, input_len=2048)
    assert any("one rank of several" in note for note in alone.notes)
    assert next(x for x in alone.profile.lessons if x.metric == "collectives").noise > lesson.noise


def test_kernels_without_names_and_eager_steps_tell_less(tmp_path):
    found = taught(tmp_path, billed(), rename={"pace_decoding": "kernel_7", "pace_products": "kernel_8"})
    assert {x.metric for x in found.profile.lessons} == {"kernels", "host"}
    assert any("taken together" in note for note in found.notes)
    assert "host" not in {x.metric for x in taught(tmp_path, billed(), graphs=False).profile.lessons}


def test_what_a_name_does_not_tell_is_asked_for(tmp_path):
    path = write(tmp_path / "step.json", trace_of(billed(), STEP))
    with pytest.raises(Refusal, match=r"does not say context; add --context"):
        calibrate([path], CLUSTER, model=MODEL)
    with pytest.raises(Refusal, match=r"does not say model, context; add --model --context"):
        calibrate([path], CLUSTER)
    unnamed = write(tmp_path / "unnamed.json", trace_of(billed(), "forward"))
    with pytest.raises(Refusal, match=r"does not say batch, context; add --batch --context"):
        calibrate([unnamed], CLUSTER, model=MODEL)
    named = f"execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk{64 * 2048}sqsq64sqsk{64 * 2048})"
    found = calibrate([write(tmp_path / "step.json", trace_of(billed(), named))], CLUSTER, launch=LAUNCH)
    assert {x.input_len for x in found.profile.lessons} == {2048.0}


@each(
    ("times", "tp", "said"),
    [(0.3, 1, "kernels per step beat the hardware"), (1.0, 2, "no collective in its steps, and tp 2 has some")],
)
def test_what_cannot_be_of_this_deployment_is_refused_by_name(tmp_path, times, tp, said):
    path = write(tmp_path / "step.json", trace_of(billed(), STEP, times=times))
    with pytest.raises(Refusal, match=said) as refused:
        calibrate([path], CLUSTER, model=MODEL, engine=ENGINE, tp=tp, input_len=2048)
    assert str(refused.value).startswith("step.json")


def test_traces_of_other_things_are_refused_with_the_reason(tmp_path):
    other = write(tmp_path / "chip.json", trace_of(billed(), STEP))
    with pytest.raises(Refusal, match=r"h100.*not of h200"):
        calibrate([other], "8xh200-sxm", model=MODEL, input_len=2048)
    training = trace_of(billed(), "ProfilerStep#1")
    training["traceEvents"].append({**training["traceEvents"][-1], "cat": "cpu_op", "name": "Optimizer.step#AdamW.step", "dur": 1})
    with pytest.raises(Refusal, match="training"):
        calibrate([write(tmp_path / "train.json", training)], CLUSTER, model=MODEL, batch=1, input_len=2048)
    whole = json.dumps(trace_of(billed(), STEP))
    cut = put(tmp_path, "cut.json", whole[: len(whole) * 2 // 3])
    with pytest.raises(Refusal, match="not whole"):
        calibrate([cut], CLUSTER, model=MODEL, input_len=2048)
    damaged = put(tmp_path, "damaged.json", json.dumps(decode_graphs(2, 1))[:300])
    with pytest.raises(Refusal, match="damaged"):
        calibrate([damaged], CLUSTER, model=MODEL, batch=1, input_len=2048)


def test_kinds_of_work_by_name():
    assert {work_of(name) for name in ("Cijk_Alik_Bljk_BBS_BH", "void cublasLt::splitKreduce_kernel<32>(x)")} == {"products"}
    assert work_of("void vllm::reshape_and_cache_flash_kernel<x>(y)") == "small"
    assert work_of("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu") == "experts"
    assert work_of("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernel") == "attention"
    assert work_of("kernel_unified_attention_2d") == "attention"
    assert work_of("void flashinfer::norm::FusedAddRMSNormKernel<8u, x>(y)") == "small"
    assert set(KERNEL_PACES) == {"products", "experts", "attention", "small"}


def test_a_folder_may_hold_documents_that_only_look_like_traces(tmp_path):
    write(tmp_path / "step.json.gz", trace_of(billed(), STEP))
    (tmp_path / "manifest.json").write_text('{"schemaVersion": 2, "layers": []}')
    (tmp_path / "notes.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    found = calibrate([tmp_path], CLUSTER, model=MODEL, engine=ENGINE, tp=1, input_len=2048)
    assert {x.metric for x in found.profile.lessons} == {"products", "attention", "small", "host"}
    assert any("manifest.json" in note and "notes.sqlite" in note for note in found.notes)
    (tmp_path / "cut.json").write_text(json.dumps(trace_of(billed(), STEP))[:200_000])
    assert any("not whole" in why for why in calibrate([tmp_path], CLUSTER, model=MODEL, input_len=2048).refused)


def test_a_step_that_ran_on_an_h200():
    """Its kernels are the step that was timed without a profiler; the step is told better with them than before."""
    found = calibrate([FIXTURES / "h200-decode.json.gz"], "8xh200-sxm", model=MODEL, engine="torch", tp=1, input_len=2048)
    parts = {x.metric: x for x in found.profile.lessons}
    assert set(parts) == {"products", "attention", "small"}
    assert sum(x.measured_s for x in parts.values()) == pytest.approx(H200_STEP_S, rel=0.03)
    assert parts["products"].measured_s == pytest.approx(parts["products"].catalogue_s, rel=0.05)
    asked = {"engine": "torch", "tp": 1, "batch": 64, "context": 2048}
    before, after = (float(commtax.bill(MODEL, "8xh200-sxm", profile=own, **asked).step_s) for own in (None, found.profile))
    assert abs(after / H200_STEP_S - 1) < 0.6 * abs(before / H200_STEP_S - 1)
    again = read_runs([FIXTURES / "h200-decode.json.gz"], "8xh200-sxm", model=MODEL, engine="torch", tp=1, context=2048)
    checked = check_drift(again, found.profile)  # three parts of one step are too few to tell
    assert (checked.verdict, {x.metric for x in checked.latencies}) == ("unknown", set(parts))


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="needs ../shared/data/traces, which a clone does not have")
@each(("file", "model", "engine", "kinds"), DATA["public_traces_of_engines"])
def test_public_traces_of_engines(file, model, engine, kinds):
    """A step of prompts, and one of prompts and decodes: every kind of kernel is within a factor of two."""
    found = calibrate([PUBLIC / file], "8xmi300x", model=model, engine=engine)
    assert len(found.profile.lessons) == kinds
    assert all(0.5 < x.measured_s / x.catalogue_s < 2 for x in found.profile.lessons)
