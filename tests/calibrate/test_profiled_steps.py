"""Laws of what a profiler's trace teaches: constants that were moved come back, others stay, and it is surer than a benchmark."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.posterior import Posterior
from commtax.catalog.profile_files import parse, profile_text
from commtax.runs.calibrate.calibration import calibrate, read_runs
from commtax.runs.calibrate.drift import check_drift
from commtax.runs.calibrate.learning import learn, price_step
from commtax.runs.calibrate.measurements import MeasuredRun, MeasuredStep
from commtax.runs.traces.claim_check import work_of
from commtax.spec import KERNEL_PACES, STEP_PARTS, Profile, Workload
from commtax.statement import Refusal
from each import each
from made_traces import decode_graphs, write
from paths import FIXTURES, SHARED
from profiled import trace_of

CLUSTER = "8xh100-sxm"
MODEL = "llama-3.1-8b"
ENGINE = "vllm@0.18"
STEP = "execute_context_0(0)_generation_64(64)"
PUBLIC = SHARED / "traces"
LAUNCH = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


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


def test_kernels_without_telling_names_are_taken_together(tmp_path):
    found = taught(tmp_path, billed(), rename={"pace_decoding": "kernel_7", "pace_products": "kernel_8"})
    assert {x.metric for x in found.profile.lessons} == {"kernels", "host"}
    assert any("taken together" in note for note in found.notes)


def test_eager_steps_tell_no_host_time_of_graphs(tmp_path):
    found = taught(tmp_path, billed(), graphs=False)
    assert "host" not in {x.metric for x in found.profile.lessons}


def test_what_a_name_does_not_tell_is_asked_for(tmp_path):
    path = write(tmp_path / "step.json", trace_of(billed(), STEP))
    with pytest.raises(Refusal, match=r"does not say context; add --context"):
        calibrate([path], CLUSTER, model=MODEL)
    with pytest.raises(Refusal, match=r"does not say model, context; add --model --context"):
        calibrate([path], CLUSTER)
    unnamed = write(tmp_path / "unnamed.json", trace_of(billed(), "forward"))
    with pytest.raises(Refusal, match=r"does not say batch, context; add --batch --context"):
        calibrate([unnamed], CLUSTER, model=MODEL)


def test_names_that_tell_what_sequences_see_need_no_options(tmp_path):
    named = f"execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk{64 * 2048}sqsq64sqsk{64 * 2048})"
    path = write(tmp_path / "step.json", trace_of(billed(), named))
    found = calibrate([path], CLUSTER, launch=LAUNCH)
    assert {x.input_len for x in found.profile.lessons} == {2048.0}


@each(
    ("times", "tp", "said"),
    [
        (0.3, 1, "kernels per step beat the hardware"),
        (1.0, 2, "no collective in its steps, and tp 2 has some"),
    ],
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
    cut = tmp_path / "cut.json"
    cut.write_text(whole[: len(whole) * 2 // 3])
    with pytest.raises(Refusal, match="not whole"):
        calibrate([cut], CLUSTER, model=MODEL, input_len=2048)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(decode_graphs(2, 1))[:300])
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


H200_STEP_S = 11.625e-3
"""Decode of 64 sequences of 2,048 tokens, Llama 3.1 8B's shapes in plain torch in a CUDA graph on an H200: without the profiler."""


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
@each(
    ("file", "model", "engine", "kinds"),
    [
        ("inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz", "qwen3-8b", "sglang", 3),
        ("inference__vllm_prefilldecode_piecewise__graph_execution.json.gz", "gpt-oss-20b", "vllm", 4),
    ],
)
def test_public_traces_of_engines(file, model, engine, kinds):
    """A step of prompts, and one of prompts and decodes: every kind of kernel is within a factor of two."""
    found = calibrate([PUBLIC / file], "8xmi300x", model=model, engine=engine)
    assert len(found.profile.lessons) == kinds
    assert all(0.5 < x.measured_s / x.catalogue_s < 2 for x in found.profile.lessons)
