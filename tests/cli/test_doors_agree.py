"""What one command says another does not deny: what starts, what is too close to call, what was left out, what would help."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.planner.alternatives import best_of_types
from commtax.planner.fleets import fleet_servers, servers_of
from commtax.planner.reasons import with_unique_names
from commtax.report.comparisons import fastest_words, flip_words
from commtax.verbs.fitting import holds
from commtax.verbs.kv_caches import full_length_requests
from commtax.verbs.settling import ask, settle

SERVER = "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --quantization fp8 --max-model-len 32768 --gpu-memory-utilization 0.9"
POOL = {"tp": 1, "dtype": "fp8", "gpu_memory_utilization": 0.9, "max_num_seqs": 64}


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["llama-3.3-70b", "gpt-oss-120b", "qwen3-30b-a3b", "deepseek-v3"]),
    st.integers(1, 40_000),
    st.sampled_from([0, 2048]),
)
def test_arrays_of_plans_start_where_fit_says_so(model, length, step):
    """Requests of full length, of many plans at once, are those of each."""
    asked = ask(model, "8xh200-sxm", max_model_len=length, max_num_batched_tokens=step or None)
    together = full_length_requests(settle(asked.but(tp=np.array([1, 2, 4, 8]))))
    alone = [holds(asked.but(tp=tp)).max_concurrency for tp in (1, 2, 4, 8)]
    assert np.asarray(together) == pytest.approx(np.maximum(alone, 0))


def test_no_plan_is_found_that_fit_rejects():
    """A length that was given is a condition of every plan and of both pools."""
    options = {"dtypes": ("fp8",), "gpu_memory_utilization": 0.9, "max_num_seqs": 64}
    free, held = (commtax.plan("llama-3.3-70b", "2xh100-sxm", **options, **more) for more in ({}, {"max_model_len": 32768}))
    assert not commtax.fit("llama-3.3-70b", "4xh100-sxm", **POOL, max_model_len=32768, advise=False).fits
    assert np.any(free.plans.tp == 1)
    assert not np.any((held.plans.tp * held.plans.pp == 1) | (held.plans.prefill_tp == 1))
    assert any("GiB short even for one request of 32,768 tokens" in lost.reason for lost in held.rejected)
    servers = servers_of(held, held.recommended)
    assert servers.question.limits.max_model_len == 32768
    assert holds(servers.question).fits
    tight = servers_of(free, int(np.flatnonzero((free.plans.tp == 1) & (free.plans.mode == 0))[0]))
    assert holds(tight.question).fits, "nobody gave a length, and the model's own would not start"


def test_a_fleet_is_emitted_with_a_length_that_starts():
    found = commtax.plan_fleet("llama-3.1-8b", "1xl4", request_rate=0.5, num_prompts=100, output_len=16, disaggregated=False)
    servers = fleet_servers(found.plans[found.recommended])
    assert 0 < servers.question.limits.max_model_len < servers.question.model.max_len
    assert holds(servers.question).fits


def test_simulate_says_that_a_server_would_not_start():
    words = ("simulate", "--from", SERVER, "--cluster", "8xh100-sxm", "-tp", 1)
    closed, timed = run_here(*words, "--concurrency", 2), run_here(*words, "--request-rate", 1)
    assert closed.returncode == 1
    assert "It does not fit: each GPU is" in closed.stdout.split("TPOT")[0]
    assert timed.returncode == 2
    assert "it would start with -tp 2 (2 GPUs)" in timed.stderr
    assert "nearest valid: 1152" in run_here(*words, "--concurrency", 2, "--max-model-len", 1000).stderr


def test_plans_within_the_error_have_no_winner():
    table = commtax.compare_plans("gpt-oss-120b", "8xh100-sxm", ["tp8", "2xtp4"], batches=[64, 512])
    said = fastest_words(table)
    assert "tp8 and 2xtp4, too close to call, at global batch 64" in said
    assert "; 2xtp4 at global batch 512" in said
    points, steps = np.arange(1, 7), np.array([0.97, 0.99, 1.01, 1.05, 1.2, 1.3])  # of tp8 over those of 2xtp4
    flip = replace(table.break_evens[0], at=3, earliest=3, points=points, steps=steps)
    assert flip_words(flip, 0.1).endswith("2xtp4 is faster than tp8 from 5 on; below it is too close to call (leads of at most 5%)")
    assert flip_words(flip, 0.02).endswith("tp8 is faster below 2, 2xtp4 from 4 on; in between it is too close to call")
    assert flip_words(flip).endswith("tp8 is faster below 3, 2xtp4 from 3 on")
    assert flip.sure(0.5) == (None, None)
    alone = fastest_words(commtax.compare_plans("gpt-oss-120b", "8xh100-sxm", ["tp8", "2xtp4"], batches=[64]))
    assert alone.endswith("tp8 and 2xtp4, too close to call, at global batch 64"), "one point is not every point"


def test_flags_that_a_comparison_leaves_out_are_named():
    commands = [f"vllm serve meta-llama/Llama-3.1-8B -tp {tp}" for tp in (1, 2)]
    words = ("diff", commands[0], f"{commands[1]} --replicas 2", "--cluster", "4xh100-sxm", "--output-len", 16)
    assert "after: not understood, and not in the answer: --replicas 2" in run_here(*words, "--concurrency", 4).stdout
    assert "give one number" in run_here(*words, "--concurrency", "64,256").stderr
    assert re.search(r"--concurrency N +Clients", run_here("diff", "--help").stdout)


def test_adapters_and_prefixes_are_told_at_once():
    lora = run_here("fit", "llama-3.1-70b", "--cluster", "4xh100-sxm", "-tp", 4, "--lora-rank", 16, "--max-loras", 8).stdout
    assert "8 LoRA adapters of rank 16 take 1.59 GiB per GPU: 20,864 fewer KV tokens" in " ".join(lora.split())
    for load in (("--concurrency", 8), ("--request-rate", 2, "--num-prompts", 40)):
        words = ("simulate", "llama-3.2-1b", "--cluster", "1xh100-sxm", *load, "--prefix-cache", "60%", "--output-len", 16)
        told = run_here(*words).stdout
        assert "Cached prefixes: +" in "\n".join(told.splitlines()[:4])
        assert "tokens in (60% of them cached), 16" in " ".join(told.split())
    assert "--prefix-cache 60%" in run_here("worth", "llama-3.1-8b", "--cluster", "1xh100-sxm", "--shared-prefix", 9).stderr


def test_each_type_has_its_line():
    found = commtax.plan("llama-3.1-70b", "2xh100-sxm", dtypes=("bf16", "fp8"), tpot_s="28ms", disaggregated=False)
    first, none, accuracy = best_of_types(found)
    assert first.startswith("best in fp8: TP 2, ")
    assert none.startswith("none in bf16: ")
    assert "accuracy is not predicted" in accuracy
    assert not list(best_of_types(commtax.plan("llama-3.2-1b", "1xh100-sxm")))
    assert with_unique_names(found.rejected) == found.rejected


def test_a_limit_that_is_advised_holds():
    """Asked for again with the limit that is said, there is a plan."""
    asked = {"request_rate": 60, "num_prompts": 100, "output_len": 8, "disaggregated": False}
    found = commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", slo={"p99_itl": "9ms"}, **asked)
    said = next(text for text in found.would_take if text.startswith("limits of p99 ITL "))
    assert commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", slo={"p99_itl": said.removeprefix("limits of p99 ITL ")}, **asked).plans


SPLIT = """\
modelArtifacts: {uri: "hf://meta-llama/Llama-3.1-70B-Instruct"}
decode: {replicas: 1, parallelism: {tensor: 4}, containers: [{name: vllm, modelCommand: vllmServe}]}
prefill: {replicas: 2, parallelism: {tensor: 2}, containers: [{name: vllm, modelCommand: vllmServe}]}
"""


@pytest.mark.parametrize("words", [("simulate", "--request-rate", "2"), ("simulate", "--concurrency", "4"), ("bill",), ("plan",)])
def test_servers_that_would_not_start_as_pasted_are_one_verdict(tmp_path, words):
    """Llama-3.1-70B on two H100s leaves the cache 1.59 GiB of 20 (131,072 tokens of 160 KiB): ``fit`` says no, and the others
    say with which length their figures hold; with that length all of them are silent."""
    file = tmp_path / "values.yaml"
    file.write_text(SPLIT)
    said = ("--from", str(file), "--cluster", "8xh100-sxm")
    judged = run_here("fit", *said)
    longest = re.search(r"--max-model-len (\d+)", judged.stdout)[1]
    assert (judged.returncode, "131,072 tokens" in judged.stdout) == (1, True)
    done = run_here(*words, *said)
    first = " ".join(done.stdout.split())
    assert done.returncode == (words[0] == "simulate"), done.stderr
    told = "ould not start with the checkpoint's own 131,072 tokens: each GPU for prompts is 18.41 GiB short; the figures hold"
    assert f"{told} with --max-model-len {longest} or less." in first
    if words[0] != "bill":  # which takes no such length
        done = run_here(*words, *said, "--max-model-len", longest)
        assert (done.returncode, "would not start" in done.stdout) == (0, False), done.stderr


def test_engines_that_start_with_less_are_not_said_to_refuse():
    notes = commtax.simulate("llama-3.1-70b", "2xh100-sxm", tp=2, engine="sglang", input_len=256).notes
    said = next(note for note in notes if note.code == "own-limits")
    assert said.startswith("SGLang has no room for the checkpoint's own 131,072 tokens: ")
    assert not [note for note in commtax.simulate("llama-3.1-70b", "4xh100-sxm", tp=4).notes if note.code == "own-limits"]


def test_pools_in_one_host_are_called_unchecked_wherever_they_are_priced():
    words = {"tp": 2, "disaggregated": True, "prefill_workers": 1, "decode_workers": 1}
    for place, told in (("4xh100-sxm", True), ("2x8xh100-sxm", False)):
        answers = (
            commtax.simulate("llama-3.1-8b", place, **words),
            commtax.serve("llama-3.1-8b", place, request_rate=1, num_prompts=20, **words),
        )
        assert {any(note.code == "pools" for note in one.notes) for one in answers} == {told}


def test_one_judgement_of_a_pasted_plan():
    """Twice the pasted server is the recommended plan, which is not rejected; and without limits each verdict says for what."""
    half = ("plan", "--from", "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32768", "--cluster", "8xh100-sxm")
    limits = ("--ttft", "1s", "--tpot", "30ms")
    out = " ".join(run_here(*half, *limits).stdout.split())
    assert "Recommended and best of what is checked: 8 GPUs = 2 replicas x TP 4" in out, "two pools in one host may not lead"
    assert "; the recommended plan is 2 of yours: 2.00 x its tokens/s." in out
    found = json.loads(run_here(*half, *limits, "--json").stdout)
    assert found["recommended"]["mode"] == found["best"]["mode"] == "together"
    assert not [lost for lost in found["rejected"] if lost["family"].startswith("2 replicas x TP 4")]
    served = ("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --data-parallel-size 2 --max-model-len 16384",)
    out = " ".join(run_here("plan", "--from", *served, "--cluster", "8xh100-sxm").stdout.split())
    assert "start from balanced: 8 GPUs = TP 8" in out
    assert "; for most tokens/s no plan is better; it is the recommended plan; when users wait, yours is as good as TP 8" in out
