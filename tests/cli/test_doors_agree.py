"""What one command says another does not deny; words that users looked for; and ``commtax diff`` of two of them."""

import json
import re
from dataclasses import replace
from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here, told_here
from commtax.planner.alternatives import best_of_types
from commtax.planner.fleets import fleet_servers, servers_of
from commtax.planner.reasons import with_unique_names
from commtax.report.answer_changes import (
    AnswerSide,
    compare_answers,
    compared_figures,
    difference_document,
    look_up,
    rules_of,
    with_money,
)
from commtax.report.comparisons import fastest_words, flip_words
from commtax.report.figures import UNITS
from commtax.report.markdown import code, difference_markdown, plain
from commtax.statement import Refusal
from commtax.units import format_figure
from commtax.verbs.fitting import holds
from commtax.verbs.kv_caches import full_length_requests
from commtax.verbs.settling import ask, settle
from each import each
from paths import ROOT
from tables import tables

DATA = tables(__file__)
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


def test_plans_that_fit_rejects_or_within_the_error_do_not_win():
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


def test_fleets_are_emitted_with_a_length_that_starts():
    found = commtax.plan_fleet("llama-3.1-8b", "1xl4", request_rate=0.5, num_prompts=100, output_len=16, disaggregated=False)
    servers = fleet_servers(found.plans[found.recommended])
    assert 0 < servers.question.limits.max_model_len < servers.question.model.max_len
    assert holds(servers.question).fits
    words = ("simulate", "--from", SERVER, "--cluster", "8xh100-sxm", "-tp", 1)
    closed, timed = run_here(*words, "--concurrency", 2), run_here(*words, "--request-rate", 1)
    assert closed.returncode == 1
    assert "It does not fit: each GPU is" in closed.stdout.split("TPOT")[0]
    assert timed.returncode == 2
    assert "it would start with -tp 2 (2 GPUs)" in timed.stderr
    assert "nearest valid: 1152" in run_here(*words, "--concurrency", 2, "--max-model-len", 1000).stderr


def test_flags_adapters_and_prefixes_are_told_at_once():
    commands = [f"vllm serve meta-llama/Llama-3.1-8B -tp {tp}" for tp in (1, 2)]
    words = ("diff", commands[0], f"{commands[1]} --replicas 2", "--cluster", "4xh100-sxm", "--output-len", 16)
    assert "after: not understood, and not in the answer: --replicas 2" in run_here(*words, "--concurrency", 4).stdout
    assert "give one number" in run_here(*words, "--concurrency", "64,256").stderr
    assert re.search(r"--concurrency N +Clients", run_here("diff", "--help").stdout)
    lora = run_here("fit", "llama-3.1-70b", "--cluster", "4xh100-sxm", "-tp", 4, "--lora-rank", 16, "--max-loras", 8).stdout
    assert "8 LoRA adapters of rank 16 take 1.59 GiB per GPU: 20,864 fewer KV tokens" in " ".join(lora.split())
    for load in (("--concurrency", 8), ("--request-rate", 2, "--num-prompts", 40)):
        words = ("simulate", "llama-3.2-1b", "--cluster", "1xh100-sxm", *load, "--prefix-cache", "60%", "--output-len", 16)
        told = run_here(*words).stdout
        assert "Cached prefixes: +" in "\n".join(told.splitlines()[:4])
        assert "tokens in (60% of them cached), 16" in " ".join(told.split())
    assert "--prefix-cache 60%" in run_here("worth", "llama-3.1-8b", "--cluster", "1xh100-sxm", "--shared-prefix", 9).stderr


def test_each_type_has_its_line_and_an_advised_limit_holds():
    found = commtax.plan("llama-3.1-70b", "2xh100-sxm", dtypes=("bf16", "fp8"), tpot_s="28ms", disaggregated=False)
    first, none, accuracy = best_of_types(found)
    assert first.startswith("best in fp8: TP 2, ")
    assert none.startswith("none in bf16: ")
    assert "accuracy is not predicted" in accuracy
    assert not list(best_of_types(commtax.plan("llama-3.2-1b", "1xh100-sxm")))
    assert with_unique_names(found.rejected) == found.rejected
    # Asked for again with the limit that is said, there is a plan.
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


def test_engines_that_start_with_less_do_not_refuse_and_pools_are_called_unchecked():
    notes = commtax.simulate("llama-3.1-70b", "2xh100-sxm", tp=2, engine="sglang", input_len=256).notes
    said = next(note for note in notes if note.code == "own-limits")
    assert said.startswith("SGLang has no room for the checkpoint's own 131,072 tokens: ")
    assert not [note for note in commtax.simulate("llama-3.1-70b", "4xh100-sxm", tp=4).notes if note.code == "own-limits"]
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
    done = told_here(*half, *limits)
    out, found = " ".join(done.stdout.split()), json.loads(done.document)
    assert "Recommended and best of what is checked: 8 GPUs = 2 replicas x TP 4" in out, "two pools in one host may not lead"
    assert "; the recommended plan is 2 of yours: 2.00 x its tokens/s." in out
    assert found["recommended"]["mode"] == found["best"]["mode"] == "together"
    assert not [lost for lost in found["rejected"] if lost["family"].startswith("2 replicas x TP 4")]
    served = ("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --data-parallel-size 2 --max-model-len 16384",)
    out = " ".join(run_here("plan", "--from", *served, "--cluster", "8xh100-sxm").stdout.split())
    assert "start from balanced: 8 GPUs = TP 8" in out
    assert "; for most tokens/s no plan is better; it is the recommended plan; when users wait, yours is as good as TP 8" in out


EXAMPLES = ROOT / "examples"
PASTED = "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 4 --enforce-eager --max-num-batched-tokens 512"


def said(*words: object, code: int = 0) -> str:
    """What a command prints, in one line."""
    done = run_here(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "tp"),
    [("llama-3.1-70b", "8xh100", 1, 2), ("llama-3.1-70b", "8xh100", 64, 4), ("deepseek-v3", "8xh200", 1, 8)],
)
def test_a_step_that_does_not_fit_names_the_smallest_tp_that_does(model, cluster, batch, tp):
    assert f"This batch would fit with -tp {tp} ({tp} GPUs)." in said("bill", model, "-c", cluster, "--batch", batch)
    asked = ("bill", model, "-c", cluster, "--batch", batch, "--json")
    wider, narrower = (run_here(*asked, "-tp", size).stdout for size in (tp, tp // 2))
    assert (json.loads(wider)["fits"], json.loads(narrower)["fits"]) == (True, False)


@pytest.mark.parametrize(
    ("cluster", "sizes", "remedies"),
    [
        ("8xh200", "-tp 8", ["--dcp 4", "-tp 2 -pp 4"]),
        ("2x8xh200", "-tp 16", ["--dcp 2", "-tp 8 -pp 2"]),
        ("8xh200", "-tp 8 --dcp 2", ["--dcp 4", "-tp 4 -pp 2"]),
        ("2x8xh200", "-tp 4", ["-tp 2 -pp 4"]),
    ],
)
def test_a_step_that_lacks_cache_is_told_what_fits_on_its_gpus(cluster, sizes, remedies):
    """Split caches, which change nothing else, then the layout on the fewest hosts; each fits when it is typed."""
    asked = ("bill", "deepseek-v3", "-c", cluster, "--batch", 16, "--context", "128k", *sizes.split())
    told = said(*asked).partition("This batch would fit with ")[2].partition(". ")[0]
    assert [one.partition(" (")[0] for one in told.split(", or with ")] == remedies
    assert all(json.loads(run_here(*asked, *one.split(), "--json").stdout)["fits"] for one in remedies)


def test_compare_names_links_and_says_how_many_times_faster():
    rows = commtax.compare_plans("deepseek-v3", "2x8xh200", ["tp16", "2xtp8", "tp8pp2"], batches=[1]).rows
    assert [row.link for row in rows] == ["nvlink4, ib-ndr", "nvlink4", "nvlink4, ib-ndr"]
    told = said("compare", "deepseek-v3", "-c", "2x8xh200", "--plans", "dp16ep16,2xdp8ep8", "--batches", "1,64")
    assert told.count("busiest expert rank") == 1
    assert "dp16ep16 and 2xdp8ep8" in told
    told = said("compare", "llama-3.3-70b", "-c", "8xh100", "-tp", 8, "--over", "dtype=bf16,fp8", "--over", "batch=1,256")
    steps = {(d, b): commtax.bill("llama-3.3-70b", "8xh100", tp=8, dtype=d, batch=b) for d in ("bf16", "fp8") for b in (1, 256)}
    ratios = sorted(f"{steps['fp8', b].tokens_per_s / steps['bf16', b].tokens_per_s:.2f}" for b in (1, 256))
    assert f"Tokens/s against dtype bf16: fp8 {' to '.join(ratios)} x" in told


def test_a_measured_mfu_inside_the_range_agrees_and_hours_are_told():
    words = [
        "bill", "llama-3.1-405b", "-c", "2048x8xh100-sxm", "--phase", "train", "--engine", "llama3", "-tp", 8, "-pp", 16, "-dp",
        128,
    ]  # fmt: skip
    words += ["--context", 8192, "--global-batch", 2048, "--schedule", "interleaved", "--chunks", 8, "--tokens", "15.6T"]
    assert "agrees with the predicted" in said(*words, "--measured-mfu", 0.41)
    assert "is above the predicted" in said(*words, "--measured-mfu", 0.6)
    document = json.loads(run_here(*words, "--json").stdout)
    assert document["gpu_hours"] == pytest.approx(document["days"] * 24 * 16384)
    assert f"{document['gpu_hours'] / 1e6:.3g}M GPU-hours" in said(*words)


def test_settings_are_priced_once_and_on_a_full_server():
    asked = ("--cluster", "4xh100", "--from", PASTED)
    for words in (("bill", "--batch", 16), ("simulate", "--concurrency", 16), ("fit",)):
        assert "what --enforce-eager and --max-num-batched-tokens 512 cost whole requests: commtax worth" in said(*words, *asked)
    told = said("worth", *asked, "--concurrency", 16)
    assert re.search(r"For 16 clients: dropping --enforce-eager gains \+\d+%", told)
    assert re.search(r"; dropping --max-num-batched-tokens 512 gains no tokens/s \(-[\d.]+%\)", told)
    assert "cost whole requests" not in said("bill", "-c", "4xh100", "--from", PASTED.partition(" --enforce")[0])
    asked = ("worth", "--from", PASTED, "--cluster", "4xh100")
    done = told_here(*asked)
    one, shown = json.loads(done.document), " ".join(done.stdout.split())
    full = one["settings_when_full"]
    assert [x["option"] for x in one["settings"]] == ["eager"]
    assert max(full["weighed"], key=lambda x: x["gain"])["option"] == "max_num_batched_tokens"
    again = json.loads(run_here(*asked, "--concurrency", full["clients"], "--json").stdout)
    assert again["requests"]["ttft_s"] == pytest.approx(full["requests"]["ttft_s"])
    assert again["settings"][0]["gain"] == pytest.approx(max(x["gain"] for x in full["weighed"]))
    assert "settings_when_full" not in again, "the load asked about fills the server"
    assert "For 1 client: dropping --enforce-eager gains" in shown
    room = f"For {full['clients']} clients, as many as there is room for: dropping --max-num-batched-tokens 512 gains"
    assert room in shown


def test_one_token_has_no_gap_and_pools_are_weighed_apart():
    asked = ("simulate", "llama-3.1-8b", "-c", "1xh100", "--concurrency", 4, "--input-len", 512, "--output-len", 1, "--spread", 0)
    for words in ((), ("--num-prompts", 40)):
        told = said(*asked, *words)
        assert "TTFT" in told
        assert not re.search(r"TPOT \d", told)
    role = (
        """vllm serve meta-llama/Llama-3.1-8B {} --kv-transfer-config '{{"kv_connector": "NixlConnector", "kv_role": "kv_{}"}}'"""
    )
    pasted = "\n".join(role.format(*words) + " &" for words in (("--port 8100", "producer"), ("--max-num-seqs 8", "consumer")))
    asked = ("--cluster", "2xh100", "--from", pasted)
    assert "what --max-num-seqs 8 costs whole requests: commtax diff with" in said("simulate", *asked, "--concurrency", 16)
    assert "simulate and diff price requests of two pools" in said("worth", *asked, "--concurrency", 16, code=2)
    assert "looked at: one server that decodes" in said("worth", *asked, "--batch", 8)


def test_worth_says_what_short_outputs_and_full_caches_hide():
    asked = ("worth", "deepseek-v3", "-c", "8xh200-sxm", "-tp", 8, "--batch", 16, "--context", "128k")
    done = told_here(*asked)
    told, document = done.stdout, json.loads(done.document)
    hint = next(line for line in told.splitlines() if " comes after its first token: " in line)
    assert re.search(r"\d\d% of .* longer outputs \(--output-len, now 128\) change the gains; .*dcp=4 \+\d\d%", hint)
    assert "16 requests of a replica at once instead of 5" in told
    rows = {row["technique"]: row for row in document["weighed"]}
    assert rows["dcp"]["running"] == pytest.approx(16)
    place = ("deepseek-v3", "2x8xh200-sxm")
    room = commtax.fit(*place, tp=16, max_model_len=128_064)
    assert commtax.worth(*place, tp=16, batch=16, context=128_000).requests.running == int(room.max_concurrency) == 9
    assert "longer outputs" not in said(*asked, "--output-len", 2000, "--context", 1024)
    assert "Gains are for whole requests" in said("worth", "llama-3.1-8b", "-c", "1xh100", "--phase", "prefill", "--spread", 0)


def test_simulate_tells_why_more_clients_get_less_and_no_difference_is_no_gain():
    asked = ("simulate", "qwen3-235b", "-c", "8xh200", "-tp", 4, "--replicas", 2, "--input-len", 8192, "--output-len", 512)
    padded = "vllm runs 9 rows in a CUDA graph of 16: the padding is computed and sent too"
    assert padded in said(*asked, "--concurrency", 18)
    assert f"with 18 clients {padded}" in said(*asked, "--concurrency", "16,18")
    assert "CUDA graph" not in said(*asked, "--concurrency", 16)
    same, fp8 = "vllm serve meta-llama/Llama-3.1-8B", "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 1000"
    assert "faster" not in said("diff", same, fp8, "--cluster", "1xh100", "--concurrency", 4)


def test_manifests_are_no_folder_and_servers_for_prompts_are_looked_at():
    told = said("fit", "--from", EXAMPLES / "deployments" / "llm-d-values.yaml", "--cluster", "8xh100-sxm", code=1)
    assert told.count("looked at:") == 1
    assert "looked at: a server for prompts, tp 2, which does not fit" in told
    told = said("audit", EXAMPLES / "deployments" / "kubernetes.yaml", code=2)
    assert "it starts a server" in told
    assert "folder" not in told


def test_a_check_takes_its_plan_from_the_profile_and_says_so(tmp_path):
    asked = ("calibrate", EXAMPLES / "today.json", "--check", "--profile")
    told = said(*asked, EXAMPLES / "my-box.toml")
    assert "no change is seen" in told
    assert "(qwen3-32b on h100-sxm, TP 4)" in told
    assert "that no file names is that of the profile" in told
    text = (EXAMPLES / "my-box.toml").read_text()
    two = tmp_path / "two.toml"
    two.write_text(text + text[text.index("[[deployment]]") :].replace("tp = 4", "tp = 2"))
    assert "tp; add --tp" in said(*asked, two, code=2)


def test_words_of_a_pasted_command_are_no_jargon_and_drafts_are_counted():
    told = said("plan", EXAMPLES / "own-model" / "config.json", "-c", "8xh100", "--tpot", "30ms", "--no-disaggregated")
    assert "accepted as often as with llama-3.1-8b on MT-Bench: measure your own" in told
    one = ("simulate", "llama-3.3-70b", "-c", "8xh100", "-tp", 8, "--technique")
    assert "with 3 drafts, which eagle3=N sets" in said(*one, "eagle3")
    assert "with 5 drafts (" in said(*one, "eagle3=5")
    sglang = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --enable-dp-attention --dp 8"
    told = said("bill", "-c", "8xh200-sxm", "--from", sglang, "--batch", 8)
    assert "a busiest rank, which experts that are split do not have (--imbalance 1 leaves it out)" in told
    sizes = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 8192 --tensor-model-parallel-size 8"
    command = (
        f"torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {sizes} --pipeline-model-parallel-size 4 --global-batch-size 128"
    )
    assert "communication beside compute: cp" in said("bill", "-c", "8x8xh100", "--from", f"{command} --micro-batch-size 1 --bf16")


@pytest.mark.parametrize(
    "line", ["bill -tp 8", "fit -tp 8", "simulate -tp 8", "worth -tp 8", "compare --plans tp8,dp8", "plan --tpot 50ms"]
)
def test_the_name_that_was_asked_stands_before_the_catalogues(line):
    verb, *options = line.split()
    shown = f"{' fits' if verb == 'fit' else ''} on 8xh200"
    assert f"deepseek-ai/DeepSeek-V3.1 (as deepseek-v3){shown}" in said(verb, "deepseek-ai/DeepSeek-V3.1", "-c", "8xh200", *options)
    assert f"(as deepseek-v3){shown}" not in said(verb, "deepseek-v3", "-c", "8xh200", *options)


WIDE, NARROW = (f"vllm serve Qwen/Qwen3-32B -tp {tp}" for tp in (4, 2))
LOAD = ("--cluster", "4xh100-sxm", "--concurrency", 16, "--input-len", 512, "--output-len", 64)


def answered(*words):
    done = run_here(*words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def served(tpot_s, **others):
    """The document of a simulated launch, as far as it is compared."""
    run = {"concurrency": 8, "ttft_s": 0.1, "tpot_s": tpot_s, "tokens_per_s": 8 / tpot_s}
    return {"schema": "commtax.simulate/1", "plan": {"tp": 2}, "gpus": 2, "fits": True, "runs": [run], **others}


def side(*documents, name="launch.yaml"):
    return AnswerSide(name, documents)


def test_figures_and_costs_are_those_of_the_answers():
    found = answered("diff", WIDE, NARROW, *LOAD)
    for number, (when, launch) in enumerate((("before", WIDE), ("after", NARROW))):
        own = [answered(verb, "--from", launch, *words) for verb, words in (("simulate", LOAD), ("fit", LOAD[:2]))]
        values = {row["key"]: row[when] for row in found["figures"]}
        assert (values["tpot"], values["ttft"]) == (own[0]["runs"][0]["tpot_s"], own[0]["runs"][0]["ttft_s"])
        assert values["kv_cache_tokens"] == own[1]["kv_tokens"]
        assert values["tokens_per_s_per_gpu"] == own[0]["runs"][0]["tokens_per_s"] / own[0]["gpus"]
        assert found[when]["plan"] == f"{4 // (number + 1)} GPUs = TP {4 // (number + 1)}"
    assert found["summary"][0].startswith("4 GPUs = TP 4 -> 2 GPUs = TP 2: slower")
    row = {}
    for price in (2, 6):
        found = answered("diff", WIDE, NARROW, *LOAD, "--price", price)
        row[price] = next(r for r in found["figures"] if r["key"] == "usd_per_million_tokens")
    assert isclose(row[6]["after"], 3 * row[2]["after"])
    run = next(r for r in found["figures"] if r["key"] == "tokens_per_s")
    assert isclose(row[2]["before"], 2 * 4 / 3600 / run["before"] * 1e6)


@each(
    ("rules", "code"),
    [("slower=1%", 1), ("slower=900%", 0), ("dearer=5%", 0), ("never", 0), ("does-not-fit,slower=0.01", 1), ("does-not-fit", 0)],
)
def test_rules_decide_the_exit_code(rules, code):
    """The narrow launch is slower and cheaper, and fits."""
    assert run_here("diff", WIDE, NARROW, *LOAD, "--fail-on", rules).returncode == code


def test_what_does_not_fit_fails_and_what_overloads_is_called_so():
    alone = "vllm serve Qwen/Qwen3-32B -tp 1 --gpu-memory-utilization 0.6"
    done = run_here("diff", NARROW, alone, *LOAD)
    assert done.returncode == 1
    assert "It no longer fits" in done.stdout
    assert run_here("diff", NARROW, alone, *LOAD, "--fail-on", "never").returncode == 0
    served, load = "vllm serve meta-llama/Llama-3.1-8B-Instruct", ("--cluster", "1xh100", "--input-len", 4096, "--output-len", 64)
    words = (served, f"{served} --max-num-seqs 1", *load, "--num-prompts", 200, "--request-rate", 3)
    done, found = run_here("diff", *words), answered("diff", *words)
    told = [found["after"]["fits"], found["after"]["overloaded"], found["before"]["overloaded"]]
    assert (done.returncode, told) == (1, [True, True, False])
    capacity = next(row["after"] for row in found["figures"] if row["key"] == "capacity")
    assert found["broken"] == [f"overloaded: {format_figure(capacity)} requests/s is the capacity, and 3 arrive"]
    assert f"Not allowed: {found['broken'][0]}" in done.stdout
    assert "not fit" not in done.stdout
    back = run_here("diff", words[1], words[0], *words[2:])
    assert back.returncode == 0
    assert "It still fits" in back.stdout
    assert "No longer overloaded" in back.stdout
    same = run_here("diff", words[1], words[1], *words[2:])
    assert same.returncode == 1
    assert f"Nothing changes: 1 GPU = TP 1, with the same figures. Not allowed: {found['broken'][0]}" in same.stdout
    assert "Overloaded, as before: " in run_here("diff", words[1], words[1], *words[2:], "--fail-on", "never").stdout


def test_saved_answers_commands_and_launches_that_train_are_compared(tmp_path):
    asked = "commtax plan llama-3.1-8b --cluster 2xh100-sxm --tpot 20ms --no-disaggregated"
    saved, command = tmp_path / "before.json", tmp_path / "question"
    saved.write_text(json.dumps(answered(*asked.split()[1:])))
    command.write_text(f"# what we run\n{asked} \\\n  --ttft 200ms\n")
    assert answered("diff", saved, asked)["same"]
    found = answered("diff", saved, command)
    assert {row["key"] for row in found["figures"]} >= {"ttft", "tpot", "tokens_per_s_per_gpu", "usd_per_million_tokens"}

    def script(tp):
        return f"torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size {tp} {sizes}"

    sizes = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu "
        "--untie-embeddings-and-output-weights --padded-vocab-size 128256 --use-distributed-optimizer"
    )
    found = answered("diff", script(1), script(2), "--cluster", "8xh100-sxm")
    assert {row["key"] for row in found["figures"]} >= {"step", "mfu", "tokens_per_s"}


@each(
    ("words", "says"),
    [
        *DATA["refusals_name_the_side_and_the_rule"],
        ((WIDE, NARROW, *LOAD[:2], "--concurrency", "64,256"), "concurrency '64,256': one load at a time is compared"),
    ],
)
def test_refusals_name_the_side_and_the_rule(words, says):
    assert says in refusal(run_here("diff", *words))


def test_a_new_launch_has_no_before_and_flags_of_worth_compare():
    done = run_here("diff", "/dev/null", NARROW, *LOAD)
    assert done.returncode == 0
    assert done.stdout.startswith("New: 2 GPUs = TP 2.\n")
    assert "It fits: " in done.stdout
    # dbo needs DeepEP's kernels, which fit has no price for, and reads all the same.
    before = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 --enable-expert-parallel --all2all-backend deepep_high_throughput"
    done = run_here("diff", before, f"{before} --enable-dbo", "-c", "2x8xh200-sxm", "--concurrency", "256", "--input-len", "4096")
    assert (done.returncode, done.stderr) == (0, "")
    runs = ROOT / "examples" / "three-runs"
    words = ("audit", runs / "serve-32.json", "--from", runs / "launch.sh", "--cluster", "4xh100-sxm")
    done = run_here(*words, "--markdown")
    assert done.returncode == 0
    assert done.stdout.startswith("### ✅ qwen3-32b on 4xh100-sxm, TP 4: the run agrees")
    assert "| TPOT (mean) |" in done.stdout
    assert run_here(*words, "--markdown", "--diff").returncode == 2


seconds = st.floats(1e-3, 10)


@given(seconds, seconds, st.floats(0, 2))
def test_a_rule_is_broken_exactly_where_the_loss_is_larger(before, after, share):
    a, b = side(served(before)), side(served(after))
    found = compare_answers(a, b, {"slower": share})
    worst = max(change.loss for change in found.changes if change.figure.rule == "slower")
    assert bool(found.broken) == (worst > share)
    back = compare_answers(b, a, {})
    for there, again in zip(found.changes, back.changes, strict=True):
        if there.relative is not None and again.relative is not None:
            assert isclose((1 + there.relative) * (1 + again.relative), 1)
    assert compare_answers(a, a, {"slower": 0.0}).is_same


@given(st.text(max_size=40))
def test_rules_are_read_or_refused(text):
    try:
        rules = rules_of(text)
    except Refusal:
        return
    assert set(rules) <= {"does-not-fit", *(figure.rule for figure in compared_figures())}


hostile = st.text("a|<>@`#*_[]()!\\\n&-\x1b\u202e", max_size=30)


@given(hostile, hostile)
def test_markdown_cannot_be_left(name, model):
    """Whatever a pull request writes into names: the table keeps its columns, nobody is mentioned and no tag is opened."""
    text = difference_markdown(compare_answers(side(served(0.01)), side(served(0.02, model=model, notes=[name]), name=name), {}))
    shown, _, folded = text.partition("<details>")
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {6}
    assert "<" not in re.sub(r"`[^`\n]*`", "", shown)
    assert folded.count("```") in (0, 2)
    assert not re.search(r"@\w", plain(model))
    assert code(name).count("`") == 2
    assert "\x1b" not in text


@pytest.mark.parametrize("figure", compared_figures(), ids=lambda figure: figure.key)
def test_every_figure_has_a_place_and_ranges_in_step(figure):
    assert figure.at
    assert len(figure.ends("low")) == len(figure.ends("high")) == len(figure.at)
    assert figure.described.unit in UNITS
    assert bool(figure.rule) <= figure.judged
    assert bool(figure.line) == bool(figure.brief)
    assert look_up({}, figure.at[0]) is None


KEYS = sorted(
    {"tp", "replicas", "workers", "metric"}
    | {part for figure in compared_figures() for path in (*figure.at, *figure.low) for part in path.split(".") if part}
)
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)
saved_documents = st.fixed_dictionaries(
    {"schema": st.just("commtax.simulate/1")},
    optional=dict.fromkeys((*KEYS, "plan", "fits", "notes", "prompt_workers", "shortfall_bytes", "overloaded", "model"), odd),
)


@given(saved_documents, saved_documents)
def test_whatever_a_saved_answer_holds_it_is_compared_or_refused(before, after):
    """Files of others are no reason for a traceback."""
    try:
        found = compare_answers(side(with_money(before, 2.0)), side(with_money(after, None)), {"slower": 0.1})
    except Refusal:
        return
    assert difference_markdown(found)
    assert json.dumps(difference_document(found))
