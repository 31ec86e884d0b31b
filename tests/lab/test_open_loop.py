"""Published open-loop runs: every row is read or left out with its reason, runs are simulated once, verdicts are counted."""

import csv
import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax import catalog
from commtax.spec.stream import Lengths
from commtax_lab.published import lengths, open_loop
from commtax_lab.published.scoring import ADDED, check
from commtax_lab.published.scoring.open_loop import ScoringJob, overload_question, question_of, score, score_runs
from commtax_lab.published.scoring.statistics import share_unpriced, verdicts
from commtax_lab.published.tables import folder_tables, shipped_tables
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)

OPEN_LOOP = SHARED / "open_loop"
here = pytest.mark.skipif(not OPEN_LOOP.is_dir(), reason="the shared table of open-loop runs is not here")

VLLM = DATA["vllm"]
MLPERF = {
    **VLLM,
    "id": "mlperf-v5.1-lab",
    "source_group": "mlperf-v5.1",
    "gpus": "8",
    "model": "meta-llama/Llama-2-70b-chat-hf",
    "weights_dtype": "fp8",
    "engine": "tensorrt-llm",
    "engine_version": "TensorRT 10.11",
    "tp": "2",
    "dp": "4",
    "kv_free_mem_frac": "0.9",
    "max_in_flight": "",
    "request_rate_rps": "40",
    "num_requests": "200000",
    "slo_ttft_ms": "2000",
    "slo_tpot_ms": "200",
    "input_dist": "mlperf_lengths/llama2-70b",
    "output_dist": "mlperf_lengths/llama2-70b (reference answers)",
    "output_mean_tokens": "290",
}


def run_of(row):
    (asked,) = open_loop.read([row], Path("a folder without lengths"))
    assert asked.question, asked.entries[0].skipped
    return asked.question


@here
@pytest.mark.parametrize(("name", "least"), [("open_loop_runs.csv", 0.75), ("open_loop_runs_v6.csv", 0.64)])
def test_every_row_of_the_larger_tables_is_read(name, least):
    table = next((table for table in folder_tables(OPEN_LOOP) if table.name == name), None)
    if table is None:
        pytest.skip("this table is not here")
    asked = open_loop.read(table.dicts(), table.folder)
    assert len(asked) == len(table.rows)
    told = [one for one in asked if one.question]
    assert len(told) >= least * len(asked)
    for one in asked:
        kinds = [entry.kind for entry in one.entries]
        assert len(kinds) == len(set(kinds))
        assert one.question or all(entry.skipped for entry in one.entries)
    for server in {one.question.server for one in told}:
        assert catalog.cluster(server.cluster).num_gpus == server.tp * server.pp * server.dp
        assert catalog.engine(server.engine).key == server.engine.partition("@")[0]
        assert catalog.model(server.model).key == server.model
    assert f"open_loop/{name}" in {table.name for table in folder_tables(OPEN_LOOP.parent, "open_loop_runs")}


def test_what_a_row_says():
    run = run_of(VLLM)
    assert run.server == open_loop.ReplicaSettings("qwen3-14b", "1xh100-sxm", "vllm@0.23.0", max_num_seqs=256)
    assert (run.replicas, run.load.request_rate, run.load.burstiness, run.load.in_flight) == (1, 4.0, 1.0, 256.0)
    assert (run.load.num_requests, run.load.warmup, run.load.unique_prompts) == (200, 0, 0)
    assert (run.load.outputs.kind, run.load.outputs.mean) == ("constant", 128.0)


def test_one_replica_has_its_share():
    run = run_of(MLPERF)
    assert (run.server.cluster, run.server.engine, run.server.kv_dtype) == ("2xh100-sxm", "trtllm-mlperf@5.1", "fp8")
    assert run.server.in_process
    assert run.server.gpu_memory_utilization == 0.9
    assert (run.replicas, run.load.request_rate, run.load.burstiness) == (4, 10.0, 4.0)
    assert (run.load.num_requests, run.load.warmup) == (open_loop.MOST_REQUESTS, 1200)
    assert (run.slo_ttft_s, run.slo_tpot_s) == (2.0, 0.2)
    assert overload_question(run).load.request_rate == 15.0
    assert "one of 4 replicas, 12,000 requests after 1,200" in open_loop.run_in_words(run)


@pytest.mark.parametrize(("version", "entered", "engine"), DATA["a_submission_may_run_the_software_of_an_older_round"])
def test_a_submission_may_run_the_software_of_an_older_round(version, entered, engine):
    row = {**MLPERF, "source_group": f"mlperf-{entered}", "engine_version": version}
    assert run_of(row).server.engine == engine


def test_context_and_generation_workers_are_known_by_their_settings():
    note = "config (name+qps match): closed/NVIDIA/configs/GB300-NVL72_GB300-288GB_aarch64x72/Server/llama2-70b.py"
    (asked,) = open_loop.read([{**MLPERF, "note": note}], None)
    assert asked.question is None
    assert "disaggregated" in asked.entries[0].skipped


def test_latent_attention_with_spread_experts_is_whole_on_each_gpu():
    server = run_of({**MLPERF, "model": "deepseek-ai/DeepSeek-R1", "weights_dtype": "fp4", "tp": "8", "dp": "", "ep": "8"}).server
    assert (server.tp, server.dp, server.ep, server.cluster, server.dtype) == (1, 8, 8, "8xh100-sxm", "nvfp4")


def test_prompts_that_repeat_are_cached_from_the_second_stage_on():
    repeated = {**VLLM, "source_group": "training", "shared_prefix_tokens": "100"}
    first, second = run_of(repeated).load, run_of({**repeated, "id": "lab-s1"}).load
    assert (first.unique_prompts, first.shared_prefix, first.warmup, second.warmup) == (100, 100, 0, 100)
    off = run_of({**repeated, "prefix_caching": "false"}).load
    assert (off.unique_prompts, off.shared_prefix) == (0, 0)


@each(("changed", "reason"), DATA["what_is_left_out_says_why"])
def test_what_is_left_out_says_why(changed, reason):
    (asked,) = open_loop.read([{**VLLM, **changed}], None)
    assert asked.question is None
    assert [entry.kind for entry in asked.entries] == ["ttft_mean", "tpot_mean", "e2e_p99", "overloaded"]
    assert all(reason in entry.skipped and not entry.sound for entry in asked.entries)


def test_figures_are_seconds_and_verdicts_are_yes_or_no():
    (asked,) = open_loop.read([{**MLPERF, "ttft_p99_ms": "2500", "itl_p50_ms": "0", "queue_p99_ms": "1e400"}], None)
    measured = {entry.kind: entry.measured for entry in asked.entries if not entry.skipped}
    times = {"ttft_mean": 0.0725, "tpot_mean": 0.0136, "e2e_p99": 2.092, "ttft_p99": 2.5}
    assert measured == times | {"overloaded": 1.0, "holds_slo": 0.0, "holds_slo_at_1.5x": 0.0}
    assert {entry.kind for entry in asked.entries if entry.skipped} == {"itl_p50", "queue_p99"}


@pytest.mark.parametrize(("changed", "piled_up"), DATA["who_is_overloaded"])
def test_who_is_overloaded(changed, piled_up):
    assert open_loop.is_overloaded({**VLLM, **changed}) is piled_up


def test_survivors_tell_nothing_of_times():
    (asked,) = open_loop.read([{**VLLM, "num_failed": "40"}], None)
    assert {entry.kind for entry in asked.entries if not entry.skipped} == {"overloaded"}
    assert asked.question


def test_fitted_runs_are_told_apart():
    assert open_loop.is_fitted(VLLM)
    assert not open_loop.is_fitted({**VLLM, "request_rate_rps": "8"})
    for row in ({**VLLM, "source_group": "training"}, MLPERF, {**MLPERF, "engine": "vllm", "chip": "mi325x"}):
        halves = [open_loop.is_fitted({**row, "experiment": f"lab/{n}"}) for n in range(200)]
        assert 0.3 < np.mean(halves) < 0.7
    assert not any(open_loop.is_fitted({**MLPERF, "engine": "vllm", "experiment": f"lab/{n}"}) for n in range(20))


@pytest.mark.parametrize(("name", "key"), DATA["models_by_the_names_that_runs_use"])
def test_models_by_the_names_that_runs_use(name, key):
    assert run_of({**VLLM, "model": name}).server.model == key


def test_a_superchip_has_the_memory_that_its_system_is_named_by():
    assert run_of({**VLLM, "chip": "gh200"}).server.cluster == "1xgh200-96"
    assert run_of({**VLLM, "chip": "gh200", "experiment": "lab/GH200-144GB_aarch64x1"}).server.cluster == "1xgh200-144"


@given(st.lists(st.floats(20, 5000), min_size=2, max_size=60), st.floats(0.5, 2))
def test_a_stretched_data_set_has_the_runs_mean_and_keeps_its_end(values, factor):
    levels = np.sort(values)
    mean = float(np.mean((levels[1:] + levels[:-1]) / 2))
    wanted = min(mean * factor, float(levels[-1]) * 0.9)
    points = np.array(lengths.scale_to_mean(Lengths("quantiles", mean, quantiles=tuple(levels.tolist())), wanted).quantiles)
    assert np.all(np.diff(points) >= 0)
    assert points[-1] <= max(levels[-1], wanted) + 1e-3
    assert np.mean((points[1:] + points[:-1]) / 2) == pytest.approx(wanted, rel=1e-3)


def test_lengths_come_from_the_folder_else_from_the_catalogue_else_from_figures(tmp_path):
    place = tmp_path / "mlperf_lengths"
    place.mkdir()
    with gzip.open(place / "lab.csv.gz", "wt") as file:
        file.write("input_tokens\n" + "\n".join(str(n) for n in range(100, 301)))
    row = {**MLPERF, "input_dist": "mlperf_lengths/lab", "input_mean_tokens": "200", "output_dist": "mlperf_lengths/lab"}
    inputs, outputs = lengths.lengths_of_row(row, tmp_path)
    assert (inputs.quantiles[0], inputs.quantiles[-1]) == pytest.approx((100, 300), abs=0.1)
    assert (outputs.kind, outputs.mean, outputs.sigma) == ("lognormal", 290.0, lengths.ANSWER_SIGMA)
    inputs, outputs = lengths.lengths_of_row(MLPERF, tmp_path)
    assert (inputs.source, outputs.source) == ("mlperf-llama2-70b", "mlperf-llama2-70b")
    inputs, outputs = lengths.lengths_of_row({**VLLM, "input_dist": "sharegpt (min 256)", "input_p50_tokens": "800"}, None)
    assert (inputs.kind, inputs.low, outputs.kind) == ("lognormal", 256.0, "constant")
    assert inputs.sigma > 0


def table_in(folder, *rows):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "open_loop_runs.csv").open("w", newline="") as file:
        lines = csv.DictWriter(file, columns, restval="")
        lines.writeheader()
        lines.writerows(rows)


def test_one_output_row_for_each_row_and_figure(tmp_path):
    (tmp_path / "open_loop").mkdir()
    small = {**MLPERF, "num_requests": "400", "request_rate_rps": "8"}
    table_in(tmp_path / "open_loop", VLLM, {**VLLM, "tp": ""}, small, {**small, "id": "again", "tpot_mean_ms": ""})
    report = check(tmp_path, only="open_loop_runs", rows_to=tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        out = list(csv.DictReader(file))
    assert list(out[0]) == ["file", *{**VLLM, **MLPERF}, *ADDED]
    assert [len([r for r in out if r["id"] == name and r["tp"]]) for name in ("lab-s0", "mlperf-v5.1-lab", "again")] == [4, 6, 5]
    for row in out:
        assert bool(row["skipped"]) is (row["predicted"] == "") is (row["tp"] == "")
        assert row["skipped"] or 0 <= float(row["low"]) <= float(row["predicted"]) <= float(row["high"])
    first, again = ({r["kind"]: r["predicted"] for r in out if r["id"] == name} for name in ("mlperf-v5.1-lab", "again"))
    assert again.items() <= first.items()
    assert report.files == {"open_loop/open_loop_runs.csv": (4, 3)}
    assert {v.kind: v.yes + v.no for v in verdicts(report.records)} == {"overloaded": 3, "holds_slo": 2, "holds_slo_at_1.5x": 2}
    assert share_unpriced(report.records) == (0.0, 4)


def test_processes_give_what_one_gives():
    runs = [run_of({**VLLM, "request_rate_rps": str(rate), "num_requests": "60"}) for rate in range(1, 7)]
    jobs = [ScoringJob(run, ("ttft_p99", "tpot_mean", "overloaded")) for run in runs]
    assert score_runs(jobs) == [score(job) for job in jobs]


def test_a_run_that_cannot_be_gives_its_reason():
    run = run_of(VLLM)
    wrong = replace(run, server=replace(run.server, tp=3, cluster="3xh100-sxm"))
    assert "tp=3" in score(ScoringJob(wrong, ("ttft_mean",)))


def test_an_engine_without_front_end_has_none():
    served, called = (
        question_of(run_of(VLLM)).engine.host,
        question_of(run_of({**VLLM, "source_group": "llmservingsim"})).engine.host,
    )
    assert served.request_s > 0
    assert (called.request_s, called.frontend_request_s, called.frontend_token_s) == (0, 0, 0)


def test_the_shipped_runs_are_scored():
    (table,) = shipped_tables("open_loop_runs")
    assert all(dict(zip(table.header, row, strict=True))["source"] for row in table.rows)
    asked = open_loop.read(table.dicts(), None)
    assert all(one.question for one in asked)
    assert {one.entries[0].source for one in asked} >= {"training", "sim-to-real", "residency-vllm", "llmservingsim", "mlperf-v5.1"}
    for one in asked[::12]:
        result = score(ScoringJob(one.question, tuple(entry.kind for entry in one.entries)))
        assert all(math.isfinite(predicted.predicted) for predicted in result.values())
