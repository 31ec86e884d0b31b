"""What fits: against public start-up logs, by hand, and by law."""

import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.cost.caches import kv_bytes_per_token_layer, kv_pool
from commtax.cost.memory import on_chip, weights
from commtax.cost.traffic import largest_graph
from commtax.spec import Attention, Plan
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.fitting import fits, judge
from commtax.verbs.kv_caches import limits_of
from commtax.verbs.settling import ask
from each import each
from start_logs import LOGS, name, of_log
from strategies import questions
from tables import tables

DATA = tables(__file__)
GIB = 2**30


def test_enough_logs_err_by_a_tenth_of_a_per_cent():
    assert len(LOGS) >= 25
    complete = [r for r in LOGS if r["complete"]]
    assert len(complete) >= 15
    assert all(r["source"].startswith("https://") and (r["complete"] or r["why_not"]) for r in LOGS)
    rows = [r for r in LOGS if r["complete"] and "weights_gib" in r["logged"]]
    errors = [abs(of_log(r)[1].weights_bytes / GIB / r["logged"]["weights_gib"] - 1) for r in rows]
    assert statistics.median(errors) < 0.001


@each("row", [r for r in LOGS if r["complete"]], ids=name)
def test_complete_logs(row):
    """Weights within 1 %, KV memory, tokens and concurrency within 5 %."""
    _, fit = of_log(row)
    logged = row["logged"]
    if "weights_gib" in logged:
        assert fit.weights_bytes / GIB == pytest.approx(logged["weights_gib"], rel=0.01)
    found = {"available_kv_gib": fit.kv_bytes / GIB, "kv_tokens": fit.kv_tokens, "gpu_blocks": fit.kv_blocks}
    found["max_concurrency"] = fit.max_concurrency
    for key, value in found.items():
        if key in logged:
            assert value == pytest.approx(logged[key], rel=0.05), key


@each("row", [r for r in LOGS if not r["complete"]], ids=name)
def test_incomplete_logs_stay_near(row):
    """What is missing from the command (``why_not``) explains the rest: within 3 % of weights, 10 % of KV."""
    model, fit = of_log(row)
    logged = row["logged"]
    if isinstance(logged.get("weights_gib"), list):
        engine, pp = catalog.engine("vllm"), row["args"]["pp"]
        stages = [sum(w.nbytes for w in weights(model, Plan(pp=pp), engine, s, pp)) / GIB for s in range(pp)]
        assert stages == pytest.approx(logged["weights_gib"], abs=1e-4)
    elif "weights_gib" in logged:
        assert fit.weights_bytes / GIB == pytest.approx(logged["weights_gib"], rel=0.03)
    if "available_kv_gib" in logged:
        assert fit.kv_bytes / GIB == pytest.approx(logged["available_kv_gib"], rel=0.1)
    if "kv_tokens" in logged:
        assert fit.kv_tokens == pytest.approx(logged["kv_tokens"], rel=0.001), "tokens follow from the logged KV memory"
        assert fit.max_concurrency == pytest.approx(logged["max_concurrency"], rel=0.003)


@pytest.mark.parametrize(("tp", "tokens"), [(1, 65_536), (2, 131_072)])
def test_vllm_on_cpu(tp, tokens):
    """1 GiB of KV a rank, 8 layers of 8 KV heads x 64 in bf16."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 2048,
    }  # fmt: skip
    fit = commtax.fit(from_config(config, "tiny"), "2xcpu", tp=tp, kv_cache_memory_bytes=GIB)
    assert fit.kv_tokens == tokens
    assert fit.fits


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_latent_kv_is_whole_on_every_rank(tp):
    """DeepSeek-V3: 70,272 bytes a token and rank at any TP."""
    model = catalog.model("deepseek-v3")
    pool = kv_pool(model, Plan(tp=tp), range(model.num_layers), 16)
    assert pool.bytes_per_token == 70_272


def test_heads_are_replicated_and_windowed_layers_share_the_pool():
    a = Attention(64, 8, 128, 128)
    assert [float(kv_bytes_per_token_layer(a, tp, "bf16")) for tp in (1, 2, 8, 16)] == [4096, 2048, 512, 512]
    assert float(kv_bytes_per_token_layer(a, 1, "fp8")) == 2048
    # gpt-oss-120b: two groups of 18 layers; a long request holds few blocks of the windowed one.
    model = catalog.model("gpt-oss-120b")
    pool = kv_pool(model, Plan(), range(36), 16)
    assert (len(pool.groups), pool.bytes_per_token) == (2, 36 * 2048)
    assert pool.blocks_per_request(98304, 8192) == 98304 // 16 + 520 + 1
    gemma = kv_pool(catalog.model("gemma-3-27b"), Plan(), range(62), 16)
    assert len(gemma.groups) == 7, "52 windowed layers in groups of 10, and one full"


def test_the_smallest_tp_that_fits_or_by_how_much_none_does():
    assert commtax.fit("llama-3.1-8b", "8xh100-sxm").question.plan.tp == 1
    assert commtax.fit("llama-3.1-70b", "8xh100-sxm").question.plan.tp == 4
    both = commtax.fit("llama-3.1-405b", "2x8xh100-sxm").question.plan
    assert (both.tp, both.pp) == (8, 2), "tp fills a host, the pipeline crosses"
    assert commtax.fit("deepseek-v3", "8xh200-sxm").question.plan.tp == 8
    fit = commtax.fit("llama-3.1-405b", "8xh100-sxm")
    assert not fit.fits
    assert fit.shortfall_bytes > 0
    advice = " ".join(fit.advice)
    assert "--dtype fp8" in advice
    assert "-tp 8 -pp 2 --cluster 2x8xh100-sxm (16 GPUs)" in advice
    short = commtax.fit("llama-3.1-8b", "l4", tp=1)
    longest = int(short.advice[0].split()[1])
    assert commtax.fit("llama-3.1-8b", "l4", tp=1, max_model_len=longest).fits
    assert not commtax.fit("llama-3.1-8b", "l4", tp=1, max_model_len=longest + 16).fits


@given(questions(engines=("vllm", "sglang", "trtllm")), st.sampled_from([1024, 8192]))
def test_parts_add_up_and_nothing_fits_beyond_the_budget(question, length):
    model, cluster, plan, engine = question
    axes = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep}
    fit = commtax.fit(model, cluster, **axes, engine=engine, max_model_len=min(length, model.max_len))
    used = fit.weights_bytes + fit.activation_bytes + fit.other_bytes
    held = {"total": used, "static": fit.weights_bytes}.get(engine.memory.utilization_of)
    if held is not None:
        assert held + fit.kv_bytes + fit.state_pool_bytes == pytest.approx(fit.budget_bytes)
    assert fit.kv_tokens * fit.kv_bytes_per_token <= max(0, fit.kv_bytes)
    assert not fit.fits or used < cluster.chip.visible_bytes
    assert fit.fits == (fit.shortfall_bytes == 0)


@given(questions(engines=("vllm",), max_dp=1))
def test_more_memory_never_gives_fewer_tokens(question):
    model, cluster, plan, engine = question
    asked = ask(model, cluster, tp=plan.tp, pp=plan.pp, ep=plan.ep, engine=engine)
    asked = asked.but(limits=limits_of(asked))
    tokens = [judge(asked.but(gpu_memory_utilization=u)).kv_tokens for u in (0.5, 0.7, 0.9, 0.95)]
    assert tokens == sorted(tokens)


@each(("change", "says"), DATA["bad_questions"])
def test_bad_questions(change, says):
    with pytest.raises(ValueError, match=says):
        commtax.fit("llama-3.1-8b", "8xh100-sxm", **change)


@pytest.mark.parametrize(
    ("model", "cluster", "options"),
    [*DATA["advice_works_when_it_is_typed"], ("llama-3.1-8b", "h100-sxm", {"tp": 1, "kv_cache_memory_bytes": 200 * GIB})],
)
def test_advice_works_when_it_is_typed(model, cluster, options):
    """Each 'would fit' line is options to add to the command; added, the command says that it fits."""
    failed = commtax.fit(model, cluster, **options)
    assert not failed.fits
    assert failed.shortfall_bytes > 0
    assert failed.advice
    for advice in failed.advice:
        words = advice.split(" (")[0].split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        named = {k.strip("-").replace("-", "_"): v for k, v in given.items() if k != "--cluster"}
        changed = {k: int(v) if v.isdigit() else float(v) if "." in v else v for k, v in named.items()}
        question = {**options, "tp": int(failed.question.plan.tp), "pp": int(failed.question.plan.pp), **changed}
        if "ep" in question:
            question["ep"] = question["tp"] * question.get("dp", 1)
        assert commtax.fit(model, given.get("--cluster", cluster), **question).fits, advice


def test_tp_is_searched_beside_a_pipeline_and_large_hosts_are_noted():
    fit = commtax.fit("llama-3.1-405b", "2x8xh100-sxm", pp=2)
    assert (fit.question.plan.tp, fit.question.plan.pp, fit.fits) == (8, 2, True)
    assert "read as 2 hosts of 8" in " ".join(commtax.fit("llama-3.1-8b", "16xh100-sxm", tp=16).question.notes)
    assert "usual are 8" in " ".join(commtax.fit("llama-3.1-8b", "1x16xh100-sxm", tp=16).question.notes)
    assert (catalog.cluster("2xh100-nvl").intra.kind, catalog.cluster("8xh100-nvl").intra.kind) == ("nvlink", "pcie")


def test_training_fits_and_advises_to_split_sequences_first():
    small = commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8, zero=3, batch=1, context=4096, engine="fsdp", recompute="full")
    assert small.fits
    big = commtax.train_fit("llama-3.1-8b", "8xh100-sxm", dp=8, batch=1)
    assert not big.fits
    assert big.shortfall_bytes == pytest.approx(big.memory.total - big.budget_bytes)
    assert big.advice[0].startswith("--zero 2 (")
    # 70B with TP 8 x PP 4 at 8,192 tokens: both fit, and sequence parallelism repeats no product.
    unfit = {"tp": 8, "pp": 4, "dp": 2, "batch": 64, "context": 8192, "zero": 1}
    advice = commtax.train_fit("llama-2-70b", "8x8xh100-sxm", **unfit).advice
    assert [words.split(" (")[0] for words in advice] == ["--sequence-parallel", "--recompute full"]
    explained = ExplainedStep(commtax.train_bill("llama-2-70b", "8x8xh100-sxm", **unfit))
    assert f"It would fit with {advice[0]}." in explained.sentence
    asked = {"batch": 8, "context": 32768}
    many = commtax.train_bill("llama-3.1-70b", "8xh100-sxm", tp=np.array([1, 8]), dp=np.array([8, 1]), **asked)
    each = [commtax.train_bill("llama-3.1-70b", "8xh100-sxm", tp=tp, dp=8 // tp, **asked) for tp in (1, 8)]
    assert fits(many).tolist() == [fits(one) for one in each]


TYPED = {"-tp": "tp", "-pp": "pp", "--zero": "zero", "--recompute": "recompute", "--micro-batch": "micro_batch"}


@pytest.mark.parametrize(
    ("model", "cluster", "options"), DATA["advice_to_training_works_when_it_is_typed_and_the_fastest_comes_first"]
)
def test_advice_to_training_works_when_it_is_typed_and_the_fastest_comes_first(model, cluster, options):
    failed = commtax.train_fit(model, cluster, **options)
    assert not failed.fits
    assert failed.advice
    steps = []
    for advice in failed.advice:
        words = advice.split(" (")[0].replace("--sequence-parallel", "").split()
        typed = {TYPED[k]: int(v) if v.isdigit() else v for k, v in zip(words[::2], words[1::2], strict=True)}
        changed = {**options, **typed, "sequence_parallel": "--sequence-parallel" in advice or None}
        assert commtax.train_fit(model, cluster, **changed).fits, advice
        steps.append(float(commtax.train_bill(model, cluster, **changed).step_s))
    assert steps == sorted(steps)
    now = float(commtax.train_bill(model, cluster, **options).step_s)
    pairs = zip(steps, failed.advice, strict=True)
    assert all(f"{step / now - 1:+.0%} time" in advice for step, advice in pairs)


@pytest.mark.parametrize(
    ("chip", "tp", "tokens", "rows", "share"),
    [  # SGLang's ServerArgs by hand: MiB kept = 512 + 1.5 x tokens + 2 x rows + 128 x tp, at least 10 GiB above 60 GiB
        ("t4", 1, 2048, 8, 1 - (512 + 3072 + 16 + 128) / 14909.5),
        ("rtx-4090", 1, 2048, 24, 1 - (512 + 3072 + 48 + 128) / 24084.5),
        ("rtx-4090", 4, 2048, 80, 1 - (512 + 3072 + 160 + 512) / 24084.5),
        ("l40s", 2, 4096, 32, 1 - (512 + 6144 + 64 + 256) / 45455.3),
        ("h100-sxm", 1, 8192, 256, 1 - (512 + 12288 + 512 + 128) / 81008.6),
        ("h100-sxm", 8, 8192, 512, 1 - (512 + 12288 + 1024 + 1024) / 81008.6),
        ("b200-sxm", 8, 16384, 512, 1 - (512 + 24576 + 1024 + 1024) / 182642.0),
    ],
)
def test_limits_follow_the_chips_memory(chip, tp, tokens, rows, share):
    found = commtax.fit("llama-3.1-8b", f"8x{chip}", tp=tp, engine="sglang", max_model_len=1024)
    assert (found.question.limits.max_num_batched_tokens, largest_graph(tp, found.question.engine)) == (tokens, rows)
    assert found.question.limits.gpu_memory_utilization == pytest.approx(share, abs=1e-3)


def test_caches_are_of_each_rank_and_of_small_chips():
    small = commtax.fit("llama-3.1-8b", "1xrtx-4090", tp=1, engine="sglang", max_model_len=4096)
    assert small.fits
    wide = commtax.fit("llama-3.1-8b", "1xrtx-4090", tp=1, engine="sglang", max_model_len=4096, max_num_batched_tokens=8192)
    assert not wide.fits, "chunks of 8,192 reserve 9 GiB more"
    assert commtax.simulate("llama-3.1-8b", "1xrtx-4090", engine="sglang", input_len=4096).steps.chunks == 2
    words = ("fit", "qwen3-30b-a3b", "--cluster", "4xh100-sxm", "-tp", "1")
    ranks, alone = (" ".join(run_here(*words, *more).stdout.split()) for more in (("-dp", "4", "-ep", "4"), ()))
    tokens = int(re.search(r"GPU KV cache size: ([\d,]+) tokens", ranks)[1].replace(",", ""))
    held = int(re.search(r"per data-parallel rank, all 4 hold ([\d,]+) tokens", ranks)[1].replace(",", ""))
    assert abs(held - 4 * tokens) <= 4
    assert "data-parallel rank" not in alone


@given(st.sampled_from(sorted(catalog.keys("chips"))), st.sampled_from(["vllm", "sglang", "trtllm"]), st.sampled_from([1, 2, 4, 8]))
def test_more_memory_never_means_smaller_limits(chip, engine, tp):
    known = catalog.engine(engine)
    here, more = (on_chip(known, replace(catalog.chip(chip), visible_bytes=b)) for b in (catalog.chip(chip).visible_bytes, 1e12))
    assert here.serves.max_batched_tokens <= more.serves.max_batched_tokens
    assert here.serves.max_seqs <= more.serves.max_seqs
    assert largest_graph(tp, here) <= largest_graph(tp, more)
    assert on_chip(more, catalog.chip(chip)) == here, "an engine that was on another chip"
