"""The planner: what it lists is legal, fits and meets the limits; what it says stands as it is said."""

import json
import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings

import brute
import commtax
from commtax import catalog
from commtax.judgement.leading import training_leads
from commtax.planner import plan, plan_training, serving_search, serving_standing
from commtax.report.planning import beside_recommended
from commtax.spec import SERVING_AXES, Plan
from commtax.verbs.fitting import fits
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import ask, settle
from each import each
from planned import command, questions
from tables import tables

DATA = tables(__file__)


@given(questions())
@settings(max_examples=6)
def test_what_is_listed_is_good(question):
    a = plan(**question, max_concurrency=32)
    rows, cluster = a.plans, a.question.cluster
    assert np.all(rows.ttft_s <= question["ttft_s"])
    assert np.all(rows.tpot_s <= question["tpot_s"])
    assert np.all(rows.kv_headroom >= -1e-9)
    assert np.all(rows.gpus <= cluster.num_gpus)
    ahead = rows.prefill_tp * rows.prefill_dp * rows.prefill_replicas
    assert np.all(rows.gpus == rows.tp * rows.pp * rows.dp * rows.replicas + ahead)
    for i in range(min(5, len(rows))):
        asked = settle(a.put(rows, i))  # raises where the plan is illegal
        fit = commtax.fit(
            asked.model, cluster, tp=asked.plan.tp, pp=asked.plan.pp, dp=asked.plan.dp, ep=asked.plan.ep, engine=question["engine"],
            max_model_len=min(asked.model.max_len, question["input_len"] + question["output_len"]),
        )  # fmt: skip
        assert fit.fits
        assert str(int(rows.gpus[i])) in a.gpu_words(rows, i)
    if not len(rows):
        assert len(a.near) or all("fit" in r.reason or "divide" in r.reason or "heads" in r.reason for r in a.rejected)


def test_answers_repeat_and_objectives_are_what_they_say(monkeypatch):
    words = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "ttft_s": 0.5, "tpot_s": 0.03, "disaggregated": False}
    by = {name: plan(**words, objective=name).plans for name in ("throughput", "latency", "cost", "gpus")}
    assert float(by["throughput"].tokens_per_s[0]) == pytest.approx(max(float(p.tokens_per_s.max()) for p in by.values()))
    assert float(by["cost"].tokens_per_s_per_gpu[0]) >= float(by["throughput"].tokens_per_s_per_gpu[0]) * (1 - 1e-9)
    assert int(by["gpus"].gpus[0]) == 1, "the 8B model fits on one"
    e2e = {n: float(p.ttft_s[0] + 127 * p.tpot_s[0]) for n, p in by.items()}
    assert e2e["latency"] == min(e2e.values())
    # Searched again, and not remembered as questions of these tests are.
    first = plan("qwen3-30b-a3b", "4xh100-sxm", tpot_s=0.03)
    monkeypatch.setattr(serving_search, "search_serving", serving_search.search_serving.__wrapped__)
    again = plan("qwen3-30b-a3b", "4xh100-sxm", tpot_s=0.03)
    assert again.plans is not first.plans
    assert all(np.array_equal(getattr(first.plans, f.name), getattr(again.plans, f.name)) for f in fields(first.plans))


def test_reasons():
    a = plan("llama-3.1-70b", "6xh100-sxm", tpot_s=0.05)
    reasons = {r.family: r.reason for r in a.rejected}
    assert "64 attention heads" in reasons["TP 3"]
    assert "64 attention heads" in reasons["TP 6"]
    assert "does not fit" in reasons["TP 1"]
    across = plan("llama-3.1-70b", catalog.cluster("2x8xh100-sxm", inter="100gbe"), ttft_s=2.0, tpot_s=0.05)
    lost = {r.family: r.reason for r in across.rejected}
    assert "spans hosts" in lost["TP 16"]
    apart = plan("llama-3.1-70b", "2x8xh100-sxm", ttft_s=0.5, tpot_s=0.03)
    assert "for prompts" in apart.why[0]
    assert "for decoding" in apart.why[0]
    why = " ".join(across.why)
    assert "more tokens/s than the runner-up" in why
    assert "of it exposed communication" in why


def test_nothing_is_good_and_what_would_have_to_change():
    a = plan("llama-3.1-70b", "8xh100-sxm", tpot_s=0.001)
    assert not len(a.plans)
    assert len(a.near)
    assert float(a.near.tpot_s[0]) > 0.001
    assert not len(plan("llama-3.1-405b", "2xh100-sxm").near), "no plan fits at all"
    assert plan("llama-3.1-405b", "4xh100-sxm").would_take == ("2x8xh100-sxm (TP 8 x PP 2 fits)", "weights in int4 (--dtype int4)")
    slow = plan("llama-3.1-70b", "8xh100-sxm", tpot_s=0.0095).would_take
    assert slow[0].startswith("limits of TPOT 11")
    assert "--dtype fp8: meets them" in slow[1]
    whole, half = (plan("llama-3.1-405b", "4xh100-sxm", gpu_memory_utilization=share).would_take for share in (None, 0.5))
    assert whole[0].startswith("2x8xh100-sxm")
    assert half[0].startswith("4x8xh100-sxm")


def test_memory_of_arrays_is_that_of_scalars():
    tp, pp = (x.ravel() for x in np.meshgrid([1, 2, 4, 8], [1, 2, 3]))
    for model, engine in (("llama-3.1-70b", "vllm"), ("gpt-oss-20b", "sglang"), ("deepseek-v3", "trtllm")):
        cluster = catalog.cluster("8x8xh200-sxm")
        for own in ({}, {"block_size": 128}, {"kv_cache_memory_bytes": 30e9}):
            limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, **own}
            many = cache_tokens(ask(model, cluster, tp=tp, pp=pp, engine=engine, **limits))
            for i in range(len(tp)):
                one = commtax.fit(model, cluster, tp=int(tp[i]), pp=int(pp[i]), engine=engine, **limits)
                assert many[i] == one.kv_tokens


def test_training_plans():
    a = plan_training("llama-3.1-8b", "4x8xh100-sxm", global_batch=256, seq=4096)
    rows = a.plans
    assert np.all(rows.tp * rows.pp * rows.dp * rows.cp <= 32)
    assert np.all(rows.memory_bytes <= 0.95 * a.question.cluster.chip.visible_bytes)
    leads = training_leads(a.question, rows.gpus, rows.step_s)
    assert np.all(np.diff(leads * 1) <= 0), "a doubtful gain from idle GPUs ranks behind"
    assert all(np.all(np.diff(rows.step_s[which]) >= 0) for which in (leads, ~leads))
    assert np.all(rows.mfu < 1)
    for i in (0, len(rows) // 2, len(rows) - 1):
        one = a.step_of(rows, i)
        assert float(one.step_s) == pytest.approx(float(rows.step_s[i]))
        assert bool(fits(one))
    assert "Step" in a.why[1]
    assert not len(plan_training("llama-3.1-405b", "8xh100-sxm", global_batch=8).plans)


def test_the_fastest_training_plan_is_brute_forces():
    a = plan_training("qwen3-30b-a3b", "8xh200-sxm", global_batch=2, seq=1024)
    assert float(a.plans.step_s[0]) == pytest.approx(brute.fastest_training("qwen3-30b-a3b", "8xh200-sxm", 2, 1024, a.kinds))


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


@each(("words", "says"), DATA["bad_questions"])
def test_bad_questions(words, says):
    code, _, error = command(*words)
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def profile(folder, **parts):
    file = folder / "box.json"
    file.write_text(json.dumps({"commtax_profile": 1, "name": "box", **parts}))
    return str(file)


def test_a_profile_changes_the_plans(tmp_path):
    half = profile(tmp_path, chip={"key": "h100-sxm", "memory_Bps": 1.6e12, "memory_bytes": 60e9}, host_s=0.004)
    words = {"model": "llama-3.1-8b", "cluster": "4xh100-sxm", "tpot_s": 0.03, "max_concurrency": 64}
    usual, own = plan(**words), plan(**words, profile=half)
    assert own.question.profile.name == "box"
    assert float(own.plans.tokens_per_s[0]) < 0.8 * float(usual.plans.tokens_per_s[0])
    i = int(np.flatnonzero(own.plans.mode == 0)[0])
    asked = settle(own.put(own.plans, i))
    alone = commtax.simulate(
        "llama-3.1-8b", "4xh100-sxm", tp=int(asked.plan.tp), pp=int(asked.plan.pp), profile=half,
        concurrency=int(own.plans.concurrency[i] / own.plans.replicas[i]),
    )  # fmt: skip
    assert float(own.plans.tpot_s[i]) == pytest.approx(float(alone.tpot_s))
    train = {"model": "llama-3.2-1b", "cluster": "4xh100-sxm", "global_batch": 32}
    assert float(plan_training(**train, profile=half).plans.step_s[0]) > float(plan_training(**train).plans.step_s[0])
    code, out, _ = command("llama-3.1-8b", "--cluster", "4xh100-sxm", "--profile", half, "--json")
    assert (code, json.loads(out)["profile"]) == (0, "box")
    code, _, error = command("llama-3.1-8b", "--cluster", "4xa100-80-sxm", "--profile", half)
    assert (code, "measured on h100-sxm" in error) == (2, True)


def test_lockstep_decides_only_where_it_is_asked_for():
    """Lengths vary: the plan that simulate confirms. Of equal lengths two prompts come first, and TP 8 holds 2 clients."""
    words = DATA["lockstep_decides_only_where_it_is_asked_for"]
    code, out, _ = command(*words, "--json")
    usual = json.loads(out)
    whole = next(p for p in usual["plans"] if (p["tp"], p["mode"]) == (8, "together"))
    assert (code, usual["spread"]) == (0, 0.5)
    alone = {"tp": 8, "input_len": 8000, "output_len": 500}
    same = commtax.simulate("llama-3.1-70b", "8xh100-sxm", concurrency=whole["concurrency"], **alone)
    assert whole["tokens_per_s"] == pytest.approx(float(same.tokens_per_s))
    few = commtax.simulate("llama-3.1-70b", "8xh100-sxm", concurrency=32, **alone)
    assert whole["tokens_per_s"] >= few.tokens_per_s
    code, out, _ = command(*words, "--spread", "0", "--json")
    equal = json.loads(out)
    assert equal["spread"] == 0
    shared = [next(p["tokens_per_s"] for p in found["plans"] if p["mode"] == "together") for found in (equal, usual)]
    assert shared[0] < 0.7 * shared[1], "prompts of their own workers come back as these let them go"
    code, out, _ = command(*words)
    assert "lengths vary by ±50% (--spread 0 makes them equal" in " ".join(out.split())


def test_launches_are_searched_with_their_limits_and_share_experts():
    few = plan("llama-3.1-8b", "2xh100-sxm", max_num_seqs=4)
    assert np.all(few.plans.running <= 4)
    small = plan("llama-3.1-8b", "2xh100-sxm", gpu_memory_utilization=0.5, tpot_s=0.02)
    usual = plan("llama-3.1-8b", "2xh100-sxm", tpot_s=0.02)
    rows = [a.plans.take(np.flatnonzero((a.plans.mode == 0) & (a.plans.tp == 1) & (a.plans.pp == 1))) for a in (small, usual)]
    assert rows[0].kv_headroom[0] < rows[1].kv_headroom[0]
    code, out, _ = command("--cluster", "8xh200-sxm", "--from", "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep", "--json")
    found = json.loads(out)
    assert (code, [found["pasted"][axis] for axis in ("tp", "dp", "ep", "replicas")]) == (0, [1, 8, 8, 1])
    assert found["pasted"]["rank"] >= 1
    # A model with states, whose places are counted for each plan that is left: here for none.
    assert not plan("qwen3-next-80b-a3b", "8xh100-sxm", ttft_s=0.02, tpot_s=0.003).plans


PASTED = "vllm serve meta-llama/Llama-3.1-70B-Instruct"


def pasted(text, *words):
    code, out, error = command("--cluster", "2x8xh100-sxm", "--from", text, "--json", *words)
    assert code in (0, 1), error
    return json.loads(out)


def test_where_pasted_plans_stand():
    limits = ("--ttft", "500ms", "--tpot", "30ms")
    found = pasted(f"{PASTED} -tp 8 --data-parallel-size 2", *limits, "--top", "99")
    same = next(p for p in found["plans"] if (p["tp"], p["replicas"], p["mode"]) == (8, 2, "together"))
    assert (found["model"], found["engine"].split("@")[0]) == ("llama-3.1-70b", "vllm")
    assert found["plans"].index(same) + 1 == found["pasted"]["rank"]
    for name in ("tokens_per_s_per_gpu", "ttft_s", "tpot_s", "concurrency"):
        assert found["pasted"][name] == pytest.approx(same[name])
    spare = pasted(f"{PASTED} -tp 8 --block-size 32 --kv-cache-memory-bytes 9e9 --enable-lora", *limits)
    assert "read, but plans are searched without: lora-rank 16, block-size 32, kv-cache-memory-bytes 9000000000" in spare["notes"]
    half = spare["pasted"]
    assert (half["gpus"], half["rank"] > found["pasted"]["rank"]) == (8, True)
    assert half["tokens_per_s_per_gpu"] == pytest.approx(found["pasted"]["tokens_per_s_per_gpu"])
    bench = "vllm bench serve --random-input-len 512 --random-output-len 128 --max-concurrency 16 --request-rate 4"
    loaded = pasted(f"{PASTED} -tp 8\n{bench}", *limits)
    assert loaded["pasted"]["concurrency"] == 16
    assert "read, but plans are searched without: request-rate 4.0" in loaded["notes"]
    # Who pastes a better plan is told to keep it, who pastes an equal one that it is, and who pastes a worse one neither.
    said = set()
    for margin in (0.0, 0.5):
        a = plan("llama-3.1-70b", "8xh100-sxm", tpot_s=0.03, ttft_s=1.0, margin=margin)
        rows, best = a.plans, float(a.plans.tokens_per_s[a.recommended])
        for at in range(5):
            sizes = {axis: int(getattr(rows, axis)[at]) for axis in SERVING_AXES}
            ahead = {"tp": rows.prefill_tp[at], "replicas": rows.prefill_replicas[at]}
            prompts = Plan(**{name: int(size) for name, size in ahead.items()}) if rows.mode[at] else None
            own = serving_standing(a, sizes, int(rows.replicas[at]), prompts=prompts)
            rate, words = float(own.rows.tokens_per_s[0]), beside_recommended(a, own)
            other = at != a.recommended
            expected = {"it is the recommended plan": not other, "keep it": other and rate > 1.005 * best}
            expected["as good as"] = other and best / (1 + margin) <= rate <= 1.005 * best
            assert {phrase: phrase in words for phrase in expected} == expected, words
            said |= {phrase for phrase in expected if phrase in words}
    assert len(said) == 3, said


@pytest.mark.parametrize(("flags", "says"), DATA["why_a_pasted_plan_is_refused"])
def test_why_a_pasted_plan_is_refused(flags, says):
    found = pasted(f"{PASTED} {flags}", "--tpot", "20ms")
    assert found["pasted"]["rank"] is None
    assert says in found["pasted"]["reason"]
    assert found["plans"], "the search goes on without it"


SCRIPT = (
    "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--num-query-groups 8 --ffn-hidden-size 14336 --sequence-parallel --use-distributed-optimizer --micro-batch-size 1 "
    "--global-batch-size 256 --seq-length 4096 --bf16 --tensor-model-parallel-size {tp}"
)


def test_where_a_pasted_training_job_stands():
    code, out, error = command("--cluster", "h100-sxm", "--from", SCRIPT.format(tp=8), "--json")
    assert code == 0, error
    found = json.loads(out)
    assert (found["cluster"], found["model"], found["global_batch"]) == ("4x8xh100-sxm", "llama-3.1-8b", 256)
    assert (found["pasted"]["tp"], found["pasted"]["dp"]) == (8, 4)
    assert found["pasted"]["rank"] > 1
    assert found["pasted"]["step_s"] > found["plans"][0]["step_s"]
    code, out, _ = command("--cluster", "h100-sxm", "--from", SCRIPT.format(tp=8))
    assert "Pasted: 32 GPUs = DP 4 x TP 8" in out
    code, out, _ = command("--cluster", "h100-sxm", "--from", SCRIPT.format(tp=2), "--global-batch", "6", "--json")
    assert "do not divide 6 sequences" in json.loads(out)["pasted"]["reason"]


@each(
    ("words", "says"),
    [
        *DATA["what_plan_cannot_honour_is_refused"],
        (("--from", f"{PASTED} -tp 8 --max-model-len 100"), "fewer than input_len + output_len = 1,152"),
        (("--from", f"{PASTED} -tp 8", "--phase", "train", "--global-batch", "8"), "one to serve"),
        (("--from", SCRIPT.format(tp=8), "--phase", "serve"), "one to train"),
        (("llama-3.1-8b", "--from", f"{PASTED} -tp 8"), "is not the pasted command's"),
    ],
)
def test_what_plan_cannot_honour_is_refused(words, says):
    code, _, error = command("--cluster", "8xh100-sxm", *words)
    assert (code, error.count("\n")) == (2, 1), error
    assert says in error


def test_the_objective_is_told_in_its_own_measure():
    words = {"model": "llama-3.1-70b", "cluster": "8xh100-sxm", "tpot_s": 0.04}
    told = {name: " ".join(plan(**words, objective=name).why) for name in ("throughput", "latency", "cost", "gpus")}
    assert "more tokens/s than" in told["throughput"]
    assert "shorter than with the runner-up, " in told["latency"]
    assert "more tokens/s" not in told["latency"]
    assert "more tokens per dollar than" in told["cost"]
    assert " per million output tokens" in told["cost"]
    assert "$" not in told["throughput"], "nobody asked for dollars"
    assert "2 GPUs fewer than the runner-up, TP 4" in told["gpus"]
    reasons = {r.family: r.reason for r in plan(**words, objective="latency").rejected}
    assert "requests take" in reasons["2 replicas x TP 4"]


def test_types_and_rules_are_told_once_and_one_token_has_no_tpot():
    code, out, _ = command("llama-3.1-70b", "--cluster", "8xh100-sxm", "--dtype", "fp8,bf16", "--tpot", "40ms")
    assert code == 0
    assert " in fp8; " in out
    assert out.count("are not divisible by 3, 5, 6 or 7") == 1
    code, out, _ = command("llama-3.1-8b", "--cluster", "2xh100-sxm", "--output-len", "1", "--json")
    first = json.loads(out)["plans"][0]
    assert (code, first["tpot_s"], first["tokens_per_s_per_user"]) == (0, None, None)
    code, out, _ = command("llama-3.1-8b", "--cluster", "2xh100-sxm", "--output-len", "1")
    assert "–" in out
    assert "Pareto" not in out


def test_engines_plan_as_they_can_and_clients_do_not_only_wait():
    rows = plan("llama-3.1-8b", "8xl40s", input_len=1024, output_len=1024).plans
    assert np.all(rows.ttft_s[rows.mode == 0] < 5)
    rows = plan("qwen3-30b-a3b", "8xh100-sxm", engine="trtllm").plans
    assert np.any(rows.dp > 1)
    assert np.all(rows.tp[rows.dp > 1] == 1)
    # ZeRO 3 without stages, stages with ZeRO 0 or 1.
    found = plan_training("llama-3.1-8b", "2x8xh100-sxm", global_batch=32, engine="deepspeed")
    zero = np.array([k.plan.zero for k in found.kinds])[found.plans.kind]
    assert set(zero.tolist()) == {0, 1, 3}
    assert np.all(found.plans.pp[zero == 3] == 1)
    assert np.any(found.plans.pp[zero < 3] > 1)
    found = plan_training("llama-3.2-1b", "2xh100-sxm", global_batch=2, seq=1001)
    assert set(found.plans.tp.tolist()) == {1}


def test_very_large_clusters_are_searched_in_bounds():
    rows = plan("llama-3.1-8b", "4096x8xh100-sxm", max_concurrency=65536).plans
    assert len(np.unique(rows.replicas[rows.mode == 1])) > 100
    assert np.all(rows.gpus <= 32768)


def test_what_cannot_be_drawn_or_read_is_told_and_a_shorter_step_is_no_reason(tmp_path):
    file = tmp_path / "front.svg"
    code, _, error = command("llama-3.1-405b", "--cluster", "2xh100-sxm", "--plot", str(file))
    assert (code, "no plan is good" in error, "Warning" in error, file.exists()) == (1, True, False, False)
    code, _, error = command("llama-3.1-8b", "--cluster", "2xh100-sxm", "--dtype", "fp8,")
    assert (code, "a type is missing" in error) == (2, True)
    # With SGLang TP 2 has room for few clients, whose step is shorter than the winner's: that they are few is what is said.
    asked = {"ttft_s": 0.5, "tpot_s": 0.04, "engine": "sglang", "confidence": 0.5, "input_len": 512}
    lost = {r.family: r.reason for r in plan("llama-3.1-70b", "2x8xh100-sxm", **asked).rejected}
    assert "it reaches the TTFT limit at 8 clients" in lost["8 replicas x TP 2"]
    assert not any("a decode step of" in lost[family] for family in ("8 replicas x TP 2", "2 replicas x TP 8"))


@pytest.mark.parametrize("asked", DATA["rejected_rows_name_what_they_mean"], ids=lambda asked: asked["model"])
def test_rejected_rows_name_what_they_mean(asked):
    """No two have one name, and none that lost after all has the name of those that do not fit."""
    rejected = plan(**asked).rejected
    names = [r.family for r in rejected]
    assert len(set(names)) == len(names)
    large = {r.family for r in rejected if "does not fit" in r.reason}
    assert large
    behind = [r for r in rejected if "fewer tokens/s" in r.reason]
    assert all(r.family not in large for r in behind)
    assert all(f"{stages} stages x" in r.family for r in behind for stages in re.findall(r"(\d+) stages share", r.reason))
