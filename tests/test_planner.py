"""The planner: what it lists is legal, fits and meets the limits; its winner is brute force's."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brute
import commtax
from commtax import catalog
from commtax.api.fitting import cache_tokens
from commtax.planner import plan, plan_training

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-70b")
CLUSTERS = ("4xh100-sxm", "2x4xa100-80-sxm", "8xl40s", "2x8xh100-sxm")


@st.composite
def questions(draw):
    return {
        "model": draw(st.sampled_from(MODELS)),
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "input_len": draw(st.sampled_from((128, 1024, 4096))),
        "output_len": draw(st.sampled_from((32, 256))),
        "ttft_s": draw(st.sampled_from((0.2, 2.0, math.inf))),
        "tpot_s": draw(st.sampled_from((0.008, 0.02, math.inf))),
        "objective": draw(st.sampled_from(("throughput", "latency", "cost", "gpus"))),
        "engine": draw(st.sampled_from(("vllm", "sglang", "trtllm"))),
    }


@given(questions())
@settings(max_examples=25)
def test_what_is_listed_is_good(question):
    a = plan(**question, max_concurrency=128)
    rows, cluster = a.plans, a.cluster
    assert np.all(rows.ttft_s <= question["ttft_s"])
    assert np.all(rows.tpot_s <= question["tpot_s"])
    assert np.all(rows.kv_headroom >= -1e-9)
    assert np.all(rows.gpus <= cluster.num_gpus)
    assert np.all(rows.gpus == rows.tp * rows.pp * rows.dp * rows.replicas + rows.prefill_tp * rows.prefill_replicas)
    for i in range(min(5, len(rows))):
        asked = a.setup(rows, i)  # raises where the plan is illegal
        fit = commtax.fit(
            asked.model, cluster, tp=asked.plan.tp, pp=asked.plan.pp, dp=asked.plan.dp, ep=asked.plan.ep, engine=question["engine"],
            max_model_len=min(asked.model.max_len, question["input_len"] + question["output_len"]),
        )  # fmt: skip
        assert fit.fits
        assert str(int(rows.gpus[i])) in a.words(rows, i)
    if not len(rows):
        assert len(a.near) or all("fit" in r.reason or "divide" in r.reason or "heads" in r.reason for r in a.rejected)


@pytest.mark.parametrize(
    ("model", "cluster", "ttft_s", "tpot_s", "engine"),
    [
        ("llama-3.1-8b", "4xh100-sxm", 0.2, 0.012, "vllm"),
        ("llama-3.1-8b", "2x2xl40s", math.inf, 0.03, "sglang"),
        ("llama-3.1-70b", "4xh200-sxm", 1.0, math.inf, "trtllm"),
        ("qwen3-30b-a3b", "2x2xh100-sxm", 0.5, 0.02, "vllm"),
    ],
)
def test_the_winner_is_brute_forces(model, cluster, ttft_s, tpot_s, engine):
    question = {"model": model, "cluster": cluster, "ttft_s": ttft_s, "tpot_s": tpot_s, "engine": engine}
    question |= {"input_len": 512, "output_len": 64}
    for objective in ("throughput", "latency", "cost", "gpus"):  # all of them choose among the same points
        asked = {**question, "objective": objective}
        winner, rows = brute.best(asked, 24), plan(**asked, max_concurrency=24).plans
        assert (winner is None) == (not len(rows))
        if winner is not None:
            assert brute.score(rows.take(np.array(0)), asked) == pytest.approx(brute.score(winner, asked), rel=1e-9)


@given(questions())
@settings(max_examples=10)
def test_looser_limits_never_lose(question):
    question |= {"objective": "throughput"}
    tight = plan(**question, max_concurrency=64)
    loose = plan(**{**question, "ttft_s": math.inf, "tpot_s": math.inf}, max_concurrency=64)
    if len(tight.plans):
        assert float(loose.plans.tokens_per_s[0]) >= float(tight.plans.tokens_per_s[0]) * (1 - 1e-9)


def test_objectives_are_what_they_say():
    words = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "ttft_s": 0.5, "tpot_s": 0.03}
    by = {name: plan(**words, objective=name).plans for name in ("throughput", "latency", "cost", "gpus")}
    assert float(by["throughput"].tokens_per_s[0]) == pytest.approx(max(float(p.tokens_per_s.max()) for p in by.values()))
    assert float(by["cost"].tokens_per_s_per_gpu[0]) >= float(by["throughput"].tokens_per_s_per_gpu[0]) * (1 - 1e-9)
    assert int(by["gpus"].gpus[0]) == 1, "the 8B model fits on one"
    e2e = {n: float(p.ttft_s[0] + 127 * p.tpot_s[0]) for n, p in by.items()}
    assert e2e["latency"] == min(e2e.values())


def test_reasons():
    a = plan("llama-3.1-70b", "6xh100-sxm", tpot_s=0.05)
    reasons = {r.family: r.reason for r in a.rejected}
    assert "64 attention heads" in reasons["TP 3"]
    assert "64 attention heads" in reasons["TP 6"]
    assert "does not fit" in reasons["TP 1"]
    across = plan("llama-3.1-70b", catalog.cluster("2x8xh100-sxm", inter="100gbe"), ttft_s=2.0, tpot_s=0.05)
    lost = {r.family: r.reason for r in across.rejected}
    assert "crosses hosts" in lost["TP 16"]
    why = " ".join(across.explain(0))
    assert "tokens/s against" in why
    assert "of it exposed communication" in why


def test_nothing_is_good():
    a = plan("llama-3.1-70b", "8xh100-sxm", tpot_s=0.001)
    assert not len(a.plans)
    assert len(a.near)
    assert float(a.near.tpot_s[0]) > 0.001
    assert not len(plan("llama-3.1-405b", "2xh100-sxm").near), "no plan fits at all"


def test_memory_of_arrays_is_that_of_scalars():
    tp, pp = (x.ravel() for x in np.meshgrid([1, 2, 4, 8], [1, 2, 3]))
    for model, engine in (("llama-3.1-70b", "vllm"), ("gpt-oss-20b", "sglang"), ("deepseek-v3", "trtllm")):
        cluster = catalog.cluster("8x8xh200-sxm")
        asked = commtax.api.setup(model, cluster, tp=tp, pp=pp, engine=engine)
        many = cache_tokens(asked, 8192, 256)
        for i in range(len(tp)):
            one = commtax.fit(
                model, cluster, tp=int(tp[i]), pp=int(pp[i]), engine=engine, max_num_batched_tokens=8192, max_num_seqs=256
            )  # fmt: skip
            assert many[i] == one.kv_tokens


def test_training_plans():
    a = plan_training("llama-3.1-8b", "4x8xh100-sxm", global_batch=256, seq=4096)
    rows = a.plans
    assert np.all(rows.tp * rows.pp * rows.dp * rows.cp == 32)
    assert np.all(rows.memory_bytes <= 0.95 * a.cluster.chip.visible_bytes)
    assert np.all(np.diff(rows.step_s) >= 0)
    assert np.all(rows.mfu < 1)
    for i in (0, len(rows) // 2, len(rows) - 1):
        one = a.bill(rows, i)
        assert float(one.step_s) == pytest.approx(float(rows.step_s[i]))
        assert bool(one.fits)
    assert "Step" in a.explain(0)[1]
    assert not len(plan_training("llama-3.1-405b", "8xh100-sxm", global_batch=8).plans)


@pytest.mark.parametrize(("model", "seq"), [("llama-3.2-3b", 2048), ("qwen3-30b-a3b", 1024)])
def test_the_fastest_training_plan_is_brute_forces(model, seq):
    a = plan_training(model, "8xh200-sxm", global_batch=16, seq=seq)
    assert float(a.plans.step_s[0]) == pytest.approx(brute.fastest_training(model, "8xh200-sxm", 16, seq, a.kinds))


def command(*words):
    done = subprocess.run([sys.executable, "-m", "commtax", "plan", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command():
    code, out, _ = command("llama-3.1-70b", "--cluster", "2x8xh100-sxm", "--ttft", "500ms", "--tpot", "30ms", "--json")
    found = json.loads(out)
    assert code == 0
    first = found["plans"][0]
    for key in (
        "mode", "tp", "pp", "dp", "ep", "replicas", "gpus", "concurrency", "ttft_s", "tpot_s", "tokens_per_s",
        "tokens_per_s_per_gpu", "usd_per_million_tokens", "exposed_comm_fraction", "kv_headroom", "verdict",
    ):  # fmt: skip
        assert key in first
    assert {"candidates", "rejected", "near"} <= set(found)
    assert all(p["ttft_s"] <= 0.5 and p["tpot_s"] <= 0.03 for p in found["plans"])
    code, out, _ = command("llama-3.1-405b", "--cluster", "2xh100-sxm")
    assert (code, "No plan fits" in out) == (1, True)
    code, out, _ = command("llama-3.1-8b", "--cluster", "4x8xh100-sxm", "--phase", "train", "--global-batch", "256", "--json")
    assert code == 0
    assert json.loads(out)["plans"][0]["mfu"] > 0.3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--workload", "x"), "workload 'x'"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--workload", "chat", "--input-len", "5"), "not both"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--objective", "fun"), "objective 'fun'"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--ttft", "0ms"), "ttft"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--output-len", "0"), "output_len=0"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--price", "-3"), "price=-3"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--input-len", "10M"), "positions"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--emit", "megatron"), "emit 'megatron'"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--phase", "train", "--global-batch", "8", "--emit", "vllm"), "emit 'vllm'"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--phase", "train"), "global_batch"),
        (
            ("llama-3.1-8b", "--cluster", "8xh100-sxm", "--phase", "train", "--global-batch", "8", "--ttft", "1s"),
            "belongs to serving",
        ),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--global-batch", "8"), "belongs to --phase train"),
        (("llama-3.1-8b", "--cluster", "8xh100-sxm", "--engine", "megatron"), "no decode phase"),
    ],
)
def test_bad_questions(words, says):
    code, _, error = command(*words)
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def test_a_frame_needs_pandas(monkeypatch):
    found = plan("llama-3.2-1b", "2xh100-sxm")
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(ValueError, match="pandas"):
        found.to_frame()
