"""What users looked for in an answer's words and did not find, or found beside words that contradict them."""

import json
import re

import pytest

import commtax
from cli_run import run_here
from paths import ROOT

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
    wider, narrower = (
        run_here("bill", model, "-c", cluster, "--batch", batch, "-tp", size, "--json").stdout for size in (tp, tp // 2)
    )
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


def test_compare_names_the_links_that_a_replica_runs_over():
    rows = commtax.compare_plans("deepseek-v3", "2x8xh200", ["tp16", "2xtp8", "tp8pp2"], batches=[1]).rows
    assert [row.link for row in rows] == ["nvlink4, ib-ndr", "nvlink4", "nvlink4, ib-ndr"]
    told = said("compare", "deepseek-v3", "-c", "2x8xh200", "--plans", "dp16ep16,2xdp8ep8", "--batches", "1,64")
    assert told.count("busiest expert rank") == 1
    assert "dp16ep16 and 2xdp8ep8" in told


def test_compare_says_how_many_times_faster():
    told = said("compare", "llama-3.3-70b", "-c", "8xh100", "-tp", 8, "--over", "dtype=bf16,fp8", "--over", "batch=1,256")
    steps = {(d, b): commtax.bill("llama-3.3-70b", "8xh100", tp=8, dtype=d, batch=b) for d in ("bf16", "fp8") for b in (1, 256)}
    ratios = sorted(f"{steps['fp8', b].tokens_per_s / steps['bf16', b].tokens_per_s:.2f}" for b in (1, 256))
    assert f"Tokens/s against dtype bf16: fp8 {' to '.join(ratios)} x" in told


def test_a_measured_mfu_inside_the_range_agrees_and_hours_are_told():
    words = [
        "bill",
        "llama-3.1-405b",
        "-c",
        "2048x8xh100-sxm",
        "--phase",
        "train",
        "--engine",
        "llama3",
        "-tp",
        8,
        "-pp",
        16,
        "-dp",
        128,
    ]
    words += ["--context", 8192, "--global-batch", 2048, "--schedule", "interleaved", "--chunks", 8, "--tokens", "15.6T"]
    assert "agrees with the predicted" in said(*words, "--measured-mfu", 0.41)
    assert "is above the predicted" in said(*words, "--measured-mfu", 0.6)
    document = json.loads(run_here(*words, "--json").stdout)
    assert document["gpu_hours"] == pytest.approx(document["days"] * 24 * 16384)
    assert f"{document['gpu_hours'] / 1e6:.3g}M GPU-hours" in said(*words)


def test_each_setting_that_was_pasted_has_its_cost_in_one_place():
    asked = ("--cluster", "4xh100", "--from", PASTED)
    for words in (("bill", "--batch", 16), ("simulate", "--concurrency", 16), ("fit",)):
        assert "what --enforce-eager and --max-num-batched-tokens 512 cost whole requests: commtax worth" in said(*words, *asked)
    told = said("worth", *asked, "--concurrency", 16)
    assert re.search(r"For 16 clients: dropping --enforce-eager gains \+\d+%", told)
    assert re.search(r"; dropping --max-num-batched-tokens 512 gains no tokens/s \(-[\d.]+%\)", told)
    assert "cost whole requests" not in said("bill", "-c", "4xh100", "--from", PASTED.partition(" --enforce")[0])


def test_requests_of_two_pools_are_not_weighed_as_those_of_one():
    role = (
        """vllm serve meta-llama/Llama-3.1-8B {} --kv-transfer-config '{{"kv_connector": "NixlConnector", "kv_role": "kv_{}"}}'"""
    )
    pasted = "\n".join(role.format(*words) + " &" for words in (("--port 8100", "producer"), ("--max-num-seqs 8", "consumer")))
    asked = ("--cluster", "2xh100", "--from", pasted)
    assert "what --max-num-seqs 8 costs whole requests: commtax diff with" in said("simulate", *asked, "--concurrency", 16)
    assert "simulate and diff price requests of two pools" in said("worth", *asked, "--concurrency", 16, code=2)
    assert "looked at: one server that decodes" in said("worth", *asked, "--batch", 8)


def test_a_setting_that_is_free_for_one_client_is_priced_on_a_full_server_too():
    asked = ("worth", "--from", PASTED, "--cluster", "4xh100")
    one = json.loads(run_here(*asked, "--json").stdout)
    full = one["settings_when_full"]
    assert [x["option"] for x in one["settings"]] == ["eager"]
    assert max(full["weighed"], key=lambda x: x["gain"])["option"] == "max_num_batched_tokens"
    again = json.loads(run_here(*asked, "--concurrency", full["clients"], "--json").stdout)
    assert again["requests"]["ttft_s"] == pytest.approx(full["requests"]["ttft_s"])
    assert again["settings"][0]["gain"] == pytest.approx(max(x["gain"] for x in full["weighed"]))
    assert "settings_when_full" not in again, "the load asked about fills the server"
    assert "For 1 client: dropping --enforce-eager gains" in said(*asked)
    assert f"For {full['clients']} clients, as many as there is room for: dropping --max-num-batched-tokens 512 gains" in said(
        *asked
    )


def test_one_output_token_has_no_time_between_tokens_in_any_view():
    asked = ("simulate", "llama-3.1-8b", "-c", "1xh100", "--concurrency", 4, "--input-len", 512, "--output-len", 1, "--spread", 0)
    for words in ((), ("--num-prompts", 40)):
        told = said(*asked, *words)
        assert "TTFT" in told
        assert not re.search(r"TPOT \d", told)


def test_worth_says_what_short_outputs_and_full_caches_hide():
    asked = ("worth", "deepseek-v3", "-c", "8xh200-sxm", "-tp", 8, "--batch", 16, "--context", "128k")
    told = run_here(*asked).stdout
    hint = next(line for line in told.splitlines() if " comes after its first token: " in line)
    assert re.search(r"\d\d% of .* longer outputs \(--output-len, now 128\) change the gains; .*dcp=4 \+\d\d%", hint)
    assert "16 requests of a replica at once instead of 5" in told
    rows = {row["technique"]: row for row in json.loads(run_here(*asked, "--json").stdout)["weighed"]}
    assert rows["dcp"]["running"] == pytest.approx(16)
    place = ("deepseek-v3", "2x8xh200-sxm")
    room = commtax.fit(*place, tp=16, max_model_len=128_064)
    assert commtax.worth(*place, tp=16, batch=16, context=128_000).requests.running == int(room.max_concurrency) == 9
    assert "longer outputs" not in said(*asked, "--output-len", 2000, "--context", 1024)
    assert "Gains are for whole requests" in said("worth", "llama-3.1-8b", "-c", "1xh100", "--phase", "prefill", "--spread", 0)


def test_simulate_says_why_a_few_clients_more_get_fewer_tokens():
    asked = ("simulate", "qwen3-235b", "-c", "8xh200", "-tp", 4, "--replicas", 2, "--input-len", 8192, "--output-len", 512)
    padded = "vllm runs 9 rows in a CUDA graph of 16: the padding is computed and sent too"
    assert padded in said(*asked, "--concurrency", 18)
    assert f"with 18 clients {padded}" in said(*asked, "--concurrency", "16,18")
    assert "CUDA graph" not in said(*asked, "--concurrency", 16)


def test_a_difference_that_is_none_is_no_gain():
    same, fp8 = "vllm serve meta-llama/Llama-3.1-8B", "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 1000"
    assert "faster" not in said("diff", same, fp8, "--cluster", "1xh100", "--concurrency", 4)


def test_servers_for_prompts_that_do_not_fit_are_the_one_server_that_is_looked_at():
    told = said("fit", "--from", EXAMPLES / "deployments" / "llm-d-values.yaml", "--cluster", "8xh100-sxm", code=1)
    assert told.count("looked at:") == 1
    assert "looked at: a server for prompts, tp 2, which does not fit" in told


def test_a_manifest_is_no_folder():
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


def test_drafts_are_whose_they_are_and_how_many():
    told = said("plan", EXAMPLES / "own-model" / "config.json", "-c", "8xh100", "--tpot", "30ms", "--no-disaggregated")
    assert "accepted as often as with llama-3.1-8b on MT-Bench: measure your own" in told
    one = ("simulate", "llama-3.3-70b", "-c", "8xh100", "-tp", 8, "--technique")
    assert "with 3 drafts, which eagle3=N sets" in said(*one, "eagle3")
    assert "with 5 drafts (" in said(*one, "eagle3=5")


def test_words_of_a_pasted_command_are_no_jargon():
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
