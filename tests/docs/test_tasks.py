"""Tasks of a new user and worked questions of requests: every command answers, beside arithmetic by hand or a publication."""

import json
import math
import re
import sys

import pytest

import commtax
from commtax.verbs.examining import usage_of
from each import each
from paths import DOCUMENTS, ROOT

sys.path.append(str(DOCUMENTS))

import printed

PAGE = (ROOT / "docs" / "tasks.md").read_text()
SECTION = re.compile(r"^### (\d+)\. (.+?)\n(.*?)(?=^##|\Z)", re.M | re.S)
TASKS = {title: body for _, title, body in SECTION.findall(PAGE)}
H100_FLOPS, H100_BYTES, H200_BYTES, L40S_BYTES = 989e12, 3.35e12, 4.8e12, 864e9
GiB = 2**30
LENGTHS = {"input_len": 512, "output_len": 128}


def command_of(body):
    line = re.search(r"^\$ (commtax .*)$", body, re.M)[1]
    said = re.search(r"# exit (\d)", line)
    return printed.words_of(line), int(said[1]) if said else 0


def by_little(row, tokens):
    """Clients that always wait are as many as are answered per second, times how long each answer takes."""
    seconds = row["ttft_s"] + (tokens - 1) * row["tpot_s"]
    assert row["tokens_per_s"] == pytest.approx(row["concurrency"] * tokens / seconds, rel=0.03)


def by_the_hour(row):
    assert row["usd_per_hour"] == pytest.approx(row["gpus"] * row["usd_per_gpu_hour"])
    assert row["usd_per_million_tokens"] == pytest.approx(row["usd_per_hour"] / 3600 / row["tokens_per_s"] * 1e6, rel=1e-3)


def trained_flops(parameters, layers, hidden, seq, tokens):
    """Of a step: 6 per parameter and token, and 12 x layers x hidden x length for attention."""
    return tokens * (6 * parameters + 12 * layers * hidden * seq)


def technique(answer, name):
    return next(row for row in answer["weighed"] if row["technique"] == name)


def answer_serve_qwen3_235b_for_rag(answer):
    row = answer["recommended"]
    assert row["tp"] * row["pp"] * 141e9 > 235.1e9 * 2, "a replica holds all weights in bf16"
    assert row["ttft_s"] < 2
    assert row["tpot_s"] < 0.05
    by_little(row, 512)


def answer_l40s_or_h100_by_cost(answer):
    rows = answer["plans"]
    for row in rows:
        by_the_hour(row)
    assert {row["cluster"] for row in rows} == {"1xl40s", "1xh100-sxm"}
    assert answer["recommended"]["usd_per_million_tokens"] == min(row["usd_per_million_tokens"] for row in rows)


def answer_gpt_oss_120b_tp_8_or_2_x_tp_4(answer):
    """Few requests are faster over more GPUs, many in two servers, whose all-reduces are smaller and among fewer."""
    step = {(row["plan"], row["sequences"]): row["step_s"] for row in answer["rows"]}
    assert step["tp8", 1] < step["2xtp4", 1]
    assert step["tp8", 256] > step["2xtp4", 256]
    assert all(64 < flip["at"] < 256 for flip in answer["break_even"] if flip["axis"] == "batch")
    each = {row["plan"]: row["exposed_comm_s"] for row in answer["rows"] if row["sequences"] == 256}
    assert each["2xtp4"] < each["tp8"]


def answer_deepseek_v3_on_two_hosts_of_eight_h200(answer):
    row = answer["recommended"]
    assert row["gpus"] == 16
    assert row["tp"] * row["dp"] * 141e9 > 671e9, "a copy holds all experts in fp8"
    by_little(row, 128)


def answer_128k_context(answer):
    assert answer["kv_bytes_per_token_per_rank"] == 2 * 80 * 8 * 128 * 2 // 4, "keys and values, 80 layers, 8 heads, bf16, TP 4"
    tokens = answer["kv_cache_bytes_per_rank"] // (16 * answer["kv_bytes_per_token_per_rank"]) * 16
    assert (answer["kv_tokens"], answer["max_concurrency"]) == (tokens, pytest.approx(tokens / 128_000, rel=1e-3))


def answer_my_own_config_json(answer):
    h, ffn, kv, layers, vocab = 5120, 13_824, 8 * 128, 48, 64_000
    parameters = layers * (2 * h * h + 2 * h * kv + 3 * h * ffn + 2 * h) + h + 2 * vocab * h
    assert sum(part["bytes"] for part in answer["weights"] if part["part"] != "rotary table") == 2 * parameters


def answer_prompts_on_one_kind_of_gpu_decoding_on_another(answer):
    row = answer["recommended"]
    assert row["prefill_tp"] * row["prefill_replicas"] <= 8
    assert row["tp"] * row["replicas"] <= 8
    assert row["tp"] * 141e9 > 70.55e9 * 2 < row["prefill_tp"] * 80e9, "both kinds of workers hold all weights in bf16"
    by_little(row, 128)


def answer_mi355x(answer):
    row = answer["recommended"]
    assert row["tp"] * row["dp"] * 288e9 > 671e9
    assert row["mode"] == "together", "predictions of two pools inside a host are unchecked"
    assert row["tpot_high_s"] / row["tpot_low_s"] > 2, "hardly measured, and said so"
    by_little(row, 128)


def answer_a_rack_gb200_nvl72(answer):
    row = answer["recommended"]
    assert row["gpus"] <= 72
    assert row["ep"] > 8, "experts over more GPUs than a host of eight has"
    assert row["tpot_s"] < 0.02
    by_little(row, 128)


def answer_a_box_without_nvlink(answer):
    row = answer["recommended"]
    assert row["verdict"] == "4 GPUs = TP 4"
    assert row["exposed_comm_fraction"] > 0.1, "four cards all-reduce over PCIe"
    assert row["tpot_s"] > 32.8e9 * 2 / 4 / L40S_BYTES, "a quarter of the weights is read for each token"


def answer_a_chip_that_commtax_does_not_know(answer):
    row = answer["recommended"]
    assert row["tpot_s"] > 8.03e9 * 2 / 1640e9
    assert row["tpot_high_s"] / row["tpot_low_s"] > 2


def answer_20_requests_per_second(answer):
    row = answer["recommended"]
    assert row["utilisation"] == pytest.approx(20 / row["capacity_requests_per_s"], rel=1e-3)
    share = row["capacity_requests_per_s"] * (1024 + 128) * 2 * 8.03e9 / H100_FLOPS / row["gpus"]
    assert 0.3 < share < 0.7, "of the peak: what servers of dense models reach"


def answer_50_requests_per_second(answer):
    row = answer["recommended"]
    assert row["gpus"] == math.ceil(1.2 * 50 / (row["full_requests_per_s"] / row["gpus"]))
    assert row["full_requests_per_s"] >= 60


def answer_cost_per_year(answer):
    row = answer["recommended"]
    assert row["usd_per_year"] == pytest.approx(row["gpus"] * 3.99 * 24 * 365)
    assert row["usd_per_million_tokens"] == pytest.approx(row["usd_per_hour"] / 3600 / (10 * 128) * 1e6, rel=0.02)


def answer_my_own_price(answer):
    price = {"4xh100-sxm": 2.10, "4xh200-sxm": 2.90}
    for row in answer["plans"]:
        assert row["usd_per_gpu_hour"] == price[row["cluster"]]
        by_the_hour(row)


def answer_prefix_caching(answer):
    """A fifth of each prompt is computed: its step is at least that many FLOPs beside a decode step, and at most 3 times that."""
    (run,) = answer["runs"]
    least = 4096 * 0.2 * 2 * 8.03e9 / H100_FLOPS
    assert least < run["prompt_step_s"] - run["decode_step_s"] < 3 * least
    plain = re.search(r"output tokens/s \(([\d,]+) without\)", " ".join(answer["notes"]))
    assert run["tokens_per_s"] > 1.5 * float(plain[1].replace(",", ""))


def answer_eagle(answer):
    row = technique(answer, "eagle3")
    assert 1 < row["step_gain"] * row["step_s"] / answer["step_s"] < int(row["asked"].partition("=")[2]) + 1
    assert row["step_s"] > answer["step_s"], "a step with drafts is longer"
    assert 1 < row["gain"] < row["step_gain"], "drafts shorten no prompt"


def answer_number_formats(answer):
    """What fp8 saves at batch 1 is the time to read the other half of the layers, less that of quantising activations."""
    step = {(row["dtype"], row["batch"]): row["step_s"] for row in answer["rows"]}
    saved = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672) / 4 / H100_BYTES
    assert 0.85 < (step["bf16", 1] - step["fp8", 1]) / saved < 1.3
    assert step["bf16", 64] > step["fp8", 64] > step["int4", 64]


def answer_lora_adapters(answer):
    h, ffn, kv = 4096, 14_336, 1024
    ends = 2 * (h + h) + 2 * (h + kv) + 3 * (h + ffn)  # both sides of q and o, of k and v, of gate, up and down
    adapters = next(part["bytes"] for part in answer["weights"] if part["part"] == "LoRA adapters")
    assert adapters == 8 * 16 * 32 * ends * 2


def answer_decode_context_parallelism(answer):
    row, wanted = technique(answer, "dcp"), 16 * 131_072
    assert not answer["fits"]
    assert answer["kv_tokens"] < wanted < row["kv_tokens"]
    assert row["fits"]
    ranks = int(row["asked"].partition("=")[2])
    assert row["kv_tokens"] == pytest.approx(ranks * answer["kv_tokens"], rel=0.01), "each rank keeps its own share"


def answer_dual_batch_overlap(answer):
    row = technique(answer, "dbo")
    assert row["verdict"] == "gains"
    assert 1 < row["gain"] < 2, "overlap cannot hide more than all of the other half"


def answer_fused_all_reduce(answer):
    """160 norms become part of as many all-reduces: what it saves is at most all of both, 4 and 6 us each."""
    row = technique(answer, "fused-allreduce")
    assert 0 < answer["step_s"] - row["step_s"] < 160 * 10e-6
    assert "fusion" in row["flag"]


def answer_fsdp_or_megatron(answer):
    flops = trained_flops(69.5e9, 80, 8192, 8192, 512 * 8192)
    for one in answer["answers"]:
        row = one["recommended"]
        assert row["mfu"] * H100_FLOPS * 64 * row["step_s"] == pytest.approx(flops, rel=0.02)
        assert 0.35 < row["mfu"] < 0.55, "what both are published with on H100"
        assert row["pp"] == 1 or one["engine"].startswith("megatron"), "FSDP has no pipeline stages"
    rate = {one["engine"].partition("@")[0]: one["recommended"]["tokens_per_s"] for one in answer["answers"]}
    assert max(rate, key=rate.get) == answer["recommended"]


def answer_405b_as_meta_trained_it(answer):
    """The Llama 3 Herd of Models, Table 4: 41 % MFU on 16,384 GPUs; model card: 30.84 million GPU-hours, restarts included."""
    assert answer["mfu"] == pytest.approx(0.41, abs=0.02)
    assert 0.85 < answer["days"] * 24 * 16_384 / 30.84e6 < 1


def answer_a_vllm_command(answer):
    row, best = answer["pasted"], answer["best"]
    assert (row["tp"], row["gpus"], row["idle_gpus"]) == (4, 4, 4)
    assert row["rank"] > 1
    assert best["tokens_per_s"] > row["tokens_per_s"]
    by_little(row, 128)


def answer_an_sglang_command(answer):
    """256 tokens with 8 of 256 experts each touch nearly all of them: each GPU reads its eighth of 671 GB."""
    assert answer["engine"].startswith("sglang")
    assert 1 < answer["step_s"] / (671e9 / 8 / H200_BYTES) < 3
    assert answer["tokens_per_s"] == pytest.approx(8 * 32 / answer["step_s"], rel=1e-3)


def answer_a_megatron_command(answer):
    assert answer["model"] == "llama-2-70b", "found by its sizes"
    flops = trained_flops(68.7e9, 80, 8192, 8192, 128 * 8192)
    assert answer["mfu"] * H100_FLOPS * 64 * answer["step_s"] == pytest.approx(flops, rel=0.03)
    assert not answer["fits"]
    assert answer["memory_bytes_per_rank"] > 79.11 * GiB * 0.95


def answer_a_kubernetes_manifest(answer):
    assert (answer["cluster"], answer["gpus"], answer["engine"]) == ("8xh100-sxm", 8, "vllm@0.12.0"), "all from the manifest"
    assert answer["max_concurrency"] == pytest.approx(answer["kv_tokens"] / 16_384, rel=1e-3)
    assert answer["weights_bytes_per_rank"] == pytest.approx(70.55e9 * 2 / 4, rel=0.01)


def answer_a_compose_file(answer):
    assert answer["cluster"] == "2xl40s"
    assert 1 < answer["step_s"] / (32.76e9 * 2 / 2 / L40S_BYTES) < 1.5, "the weights are read once per token"


def answer_values_for_llm_d_s_chart(answer):
    times = {row["metric"]: row["mean_s"] for row in answer["times"]}
    assert answer["gpus"] == 2 * 2 + 4
    assert times["e2e"] == pytest.approx(times["ttft"] + (answer["offered"]["output_len_mean"] - 1) * times["tpot"], rel=0.02)
    assert answer["utilisation"] == pytest.approx(4 / answer["capacity_requests_per_s"], rel=1e-3)


def answer_nccl_tests(answer):
    last = [row for row in answer["sections"][0]["findings"] if row["code"] == "size"][-1]
    busbw = [2 * 7 / 8 * GiB / last[name] for name in ("measured", "predicted")]
    assert busbw[0] == pytest.approx(234.3e9, rel=1e-3), "as nccl-tests counts"
    assert 400e9 < busbw[1] < 490e9, "what hosts of eight H100 are published with"
    assert last["verdict"] == "disagree"


def answer_a_benchmark_result(answer):
    told = {row["code"]: row for row in answer["sections"][0]["findings"]}
    times = [told[name]["measured"] for name in ("ttft_mean", "tpot_mean")]
    assert told["duration"]["measured"] == pytest.approx(640 / 64 * (times[0] + 511 * times[1]), rel=0.03), "ten rounds of 64"
    assert answer["model"] == "qwen3-32b", "named by the file"
    assert abs(told["tpot_mean"]["difference"]) < 0.25
    assert answer["verdict"] == "agree"


def answer_a_server_s_log(answer):
    found = {row["item"]: row for row in answer["sections"][0]["findings"]}
    assert found["KV tokens in that memory"]["predicted"] == GiB / (2 * 8 * 2 * 32 * 2 / 2 * 2), "1 GiB at 2 KiB per token and rank"
    assert answer["verdict"] == "agree"


def answer_a_check_for_ci(answer):
    assert answer["verdict"] == "same"
    assert all(row["low_s"] < row["measured_s"] < row["high_s"] for row in answer["latencies"])


def answer_a_student_s_first_hour(answer):
    sent = [row for row in answer["items"] if row["op"] == "all-reduce"]
    assert sum(row["count"] for row in sent if row["nbytes"] == 4096 * 2) == 2 * 32 + 1, (
        "two per layer and the embedding's, of one token"
    )
    assert sum(row["exposed_s"] for row in answer["items"]) == pytest.approx(answer["step_s"], rel=1e-3)


def anchor(title):
    """The function that is named like a task."""
    return globals()["answer_" + re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")]


@each("title", list(TASKS))
def test_a_task_is_answered(title, run):
    words, code = command_of(TASKS[title])
    done = run(words)
    assert done.returncode == code, done.stderr
    anchor(title)(json.loads(done.document))


@each("title", ["128k context", "L40S or H100, by cost", "EAGLE", "A Megatron command", "A server's log", "A check for CI"])
def test_the_document_of_a_task_is_what_json_prints(title, run):
    words, _ = command_of(TASKS[title])
    assert json.loads(run((*words, "--json")).stdout) == json.loads(run(words).document)


def test_every_task_has_a_question_an_answer_and_a_way_to_read_it():
    assert len(TASKS) >= 30
    assert {anchor(title).__name__ for title in TASKS} == {name for name in globals() if name.startswith("answer_")}
    for title, body in TASKS.items():
        asked, shown, read = re.fullmatch(r"\n(.+?)\n\n```console\n(.+?)\n```\n\n(.+?)\s*", body, re.S).groups()
        assert all([asked, read, shown.startswith("$ commtax "), len(shown.splitlines()) > 2]), title


def test_one_big_group_across_hosts_loses_to_two_replicas():
    words = {"request_rate": 12, "num_prompts": 600, **LENGTHS}
    wide, two = (commtax.serve("llama-3.1-70b", "2x8xh100-sxm", **plan, **words) for plan in ({"tp": 16}, {"tp": 8, "replicas": 2}))
    for name in ("ttft_p99", "itl_p99"):
        assert 1.5 < wide.statistic(name) / two.statistic(name) < 3
    assert 1.5 < two.capacity / wide.capacity < 2.2
    assert usage_of(wide).comm_share > 0.5
    assert usage_of(two).comm_share < 0.3
    quiet = [
        commtax.serve("llama-3.1-70b", "2x8xh100-sxm", **plan, request_rate=2, num_prompts=200, **LENGTHS)
        for plan in ({"tp": 16}, {"tp": 8, "replicas": 2})
    ]
    assert 1.15 < quiet[0].statistic("tpot_mean") / quiet[1].statistic("tpot_mean") < 1.45


def test_a_pipeline_with_little_to_do_starves():
    few, more = (
        commtax.serve("llama-3.1-70b", "4xh100-sxm", pp=4, request_rate=rate, num_prompts=200, **LENGTHS) for rate in (0.25, 1)
    )
    flat = commtax.serve("llama-3.1-70b", "4xh100-sxm", tp=4, request_rate=1, num_prompts=200, **LENGTHS)
    assert usage_of(few).busy < 0.5
    assert usage_of(more).busy > 0.8
    assert 1.4 < usage_of(more).mean_batch < 2.5
    assert 2.5 < more.statistic("tpot_mean") / flat.statistic("tpot_mean") < 3.7
    assert more.statistic("itl_p99") > 2 * more.statistic("itl_p50")
