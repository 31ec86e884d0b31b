"""Sequences split among ranks: what they send by hand, what they keep and win by law, what published runs saw."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.attention import causal_pairs
from commtax.cost.caches import kv_bytes_per_token
from commtax.cost.context_parallel import prompts_of_rank
from commtax.cost.traffic import inference
from commtax.launch.launch_options import options_of, read_pasted
from commtax.launch.writing import launch_command
from commtax.spec import Plan, Workload
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import ask
from each import each

R1, HOST = "deepseek-r1", "8xh200-sxm"


def sent(axis, *args, **options):
    lines = commtax.traffic(*args, **options).lines
    return {(x.item.what, x.item.op): (x.item.nbytes, x.item.count, x.item.ranks) for x in lines if x.item.axis == axis}


def test_split_latents_by_hand():
    """4 tokens of DeepSeek-R1, TP 8: 128 heads of 512 + 64 values out, their log-sums from 8 ranks, 128 of 512 back, 61 times."""
    assert sent("dcp", R1, HOST, tp=8, dcp=8, batch=4) == {
        ("queries", "all-gather"): (4 * 128 * 576 * 2, 61, 8),
        ("log-sums", "all-gather"): (8 * 4 * 128 * 4, 61, 8),
        ("partial outputs", "reduce-scatter"): (4 * 128 * 512 * 2, 61, 8),
    }
    by_pairs = sent("dcp", R1, HOST, tp=8, dcp=4, batch=4, engine="sglang")
    assert by_pairs["partial outputs", "all-to-all"] == (4 * 64 * (512 * 2 + 4), 61, 4)
    assert ("queries", "all-gather") not in sent("dcp", R1, HOST, tp=8, dcp=4, engine="trtllm"), "Helix makes them again"


def test_split_heads_by_hand():
    """Qwen3-235B has 64 heads over 4 of keys: of TP 8 two ranks keep the same, with 16 heads together; drafted rows count."""
    found = sent("dcp", "qwen3-235b-a22b", HOST, tp=8, dcp=2, batch=2, speculative=1)
    assert found == {
        ("queries", "all-gather"): (4 * 16 * 128 * 2, 94, 2),
        ("log-sums", "all-gather"): (2 * 4 * 16 * 4, 94, 2),
        ("partial outputs", "reduce-scatter"): (4 * 16 * 128 * 2, 94, 2),
    }


def test_prompts_over_split_latents():
    """What is cached of a prompt is gathered; its own tokens attend at home."""
    model, engine = catalog.model(R1), catalog.engine("vllm")
    work = Workload(prefill_seqs=1, prefill_tokens=512, past_tokens=4096)
    found = {i.what: i for i in inference(model, Plan(tp=8, dcp=8), work, engine) if i.axis == "dcp" and i.is_sent}
    assert {what: (i.nbytes, i.count) for what, i in found.items()} == {"cached latents": (4096 * 576 * 2, 61)}


def test_split_prompts_by_hand():
    """1,000 tokens of Llama-3.1-70B, TP 4: keys and values of a rank's 2 heads to its partner, and the last hidden states."""
    options = {"tp": 4, "cp": 2, "phase": "prefill", "batch": 1, "context": 1000}
    assert sent("cp", "llama-3.1-70b", HOST, **options) == {
        ("keys of split prompts", "all-gather"): (1000 * 2 * 256 * 2, 80, 2),
        ("rows of split prompts", "all-gather"): (1000 * 8192 * 2, 1, 2),
    }
    rows = sent("tp", "llama-3.1-70b", HOST, **options)["attention output", "all-reduce"][0] / (8192 * 2)
    assert rows == pytest.approx(500, abs=12), "half of them each, padded"


@given(st.integers(1, 16), st.integers(1, 50_000), st.integers(0, 200_000))
def test_ranks_share_all_pairs(cp, new, past):
    own = prompts_of_rank(Workload(prefill_seqs=1, prefill_tokens=new * cp, past_tokens=past), cp)
    assert own.prefill_tokens == new
    assert cp * causal_pairs(own.prefill_tokens, own.past_tokens) == pytest.approx(causal_pairs(new * cp, past), rel=1e-12)


def test_decodes_know_nothing_of_split_prompts():
    alone, beside = (commtax.bill("llama-3.1-70b", HOST, tp=4, cp=cp, batch=9).step_s for cp in (1, 2))
    assert alone == beside
    alone, beside = (commtax.bill("llama-3.1-70b", HOST, tp=4, cp=cp, phase="prefill", context=32768).step_s for cp in (1, 2))
    assert 0.5 * alone < beside < 0.65 * alone


@each("engine", ["vllm", "sglang", "trtllm", "vllm-rocm"])
def test_arrays_and_none_at_all(engine):
    """Elements of an array are what they are alone; a split over one rank is none, to the digit."""
    sizes, load = np.array([1, 2, 4, 8]), {"batch": 48, "context": 9000, "engine": engine}
    many = commtax.bill(R1, HOST, tp=8, dcp=sizes, **load).step_s
    assert many.tolist() == [commtax.bill(R1, HOST, tp=8, dcp=int(n), **load).step_s for n in sizes]
    assert many[0] == commtax.bill(R1, HOST, tp=8, **load).step_s
    batches = np.array([1, 64])
    some = commtax.bill(R1, HOST, tp=8, dcp=8, batch=batches, context=batches * 100, engine=engine).step_s
    alone = commtax.bill(R1, HOST, tp=8, dcp=8, batch=64, context=6400, engine=engine).step_s
    assert some[1] == pytest.approx(alone, rel=1e-14)  # sums of arrays are rounded in another order


@each("dcp", [2, 4, 8])
def test_memory_won(dcp):
    """Bytes of all ranks together stay as they are less the copies, and as many more tokens fit."""
    plain, split = (ask(R1, HOST, tp=8, dcp=n) for n in (1, dcp))
    assert kv_bytes_per_token(plain.model, plain.plan) == dcp * kv_bytes_per_token(split.model, split.plan)
    held = [commtax.fit(R1, HOST, tp=8, dcp=n) for n in (1, dcp)]
    assert held[1].kv_tokens == dcp * held[0].kv_tokens
    assert held[1].kv_bytes == held[0].kv_bytes
    assert float(np.max(cache_tokens(split))) == dcp * float(np.max(cache_tokens(plain)))


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 256), st.integers(1, 100_000))
def test_attention_stays_above_its_floor(dcp, batch, context):
    priced = commtax.bill(R1, HOST, tp=8, dcp=dcp, batch=batch, context=context)
    (line,) = (x for x in priced.lines if x.item.place == "decode" and x.kind == "compute")
    keys = batch * context * 576 * 2 / dcp
    assert line.priced_from.nbytes >= keys
    assert line.each_s >= keys / catalog.cluster(HOST).chip.memory_Bps


@each(
    "model,options,rule",
    [
        (R1, {"dcp": 3}, "dcp-divides"),
        (R1, {"dcp": 8, "engine": "torch"}, "dcp-engine"),
        ("llama-3.1-70b", {"dcp": 2}, "dcp-heads"),
        ("qwen3-235b-a22b", {"dcp": 4}, "dcp-heads"),
        ("qwen3-235b-a22b", {"dcp": 2, "engine": "sglang"}, "dcp-attention"),
        ("gpt-oss-120b", {"dcp": 2}, "dcp-attention"),
        ("deepseek-v3.2", {"dcp": 2}, "dcp-attention"),
        ("llama-3.1-8b", {"tp": 4, "cp": 2, "engine": "trtllm"}, "cp-engine"),
        ("mixtral-8x7b", {"tp": 4, "cp": 2, "ep": 4}, "cp-experts"),
    ],
)
def test_refused(model, options, rule):
    with pytest.raises(ValueError, match=f"^{rule}: "):
        commtax.bill(model, HOST, **{"tp": 8, **options})


@each("lengths,wins", [((1024, 1024), False), ((8192, 8192), True)])
def test_flips_with_the_context(lengths, wins):
    """DeepSeek-R1 on 8 AMD GPUs: TPOT 59 -> 76 ms at 1k/1k, where DCP 8 loses; at 8k/8k it wins (ROCm ATOM)."""
    load = {"input_len": lengths[0], "output_len": lengths[1], "concurrency": 256, "engine": "vllm-rocm"}
    plain, split = (commtax.simulate(R1, "8xmi300x", tp=8, dcp=dcp, **load) for dcp in (1, 8))
    assert (split.tokens_per_s > plain.tokens_per_s) is np.bool_(wins)
    if not wins:
        assert split.tpot_s / plain.tpot_s == pytest.approx(76 / 59, rel=0.15)


@each("model,tp,pp,seen", [("qwen3-235b-a22b", 4, 8, 55.5 / 10.54), ("deepseek-v3.1", 8, 4, 3.31)])
def test_chunks_follow_each_other(model, tp, pp, seen):
    """A prompt of 128K on H20: SGLang's chunked pipeline, January 2026."""
    load = {"input_len": 131072, "output_len": 1, "concurrency": 1, "engine": "sglang", "dtype": "fp8"}
    load["max_model_len"] = 131_073  # as servers with scaled positions are told
    times = [commtax.simulate(model, "4x8xh20", tp=tp, pp=stages, **load).ttft_s for stages in (1, pp)]
    assert times[0] / times[1] == pytest.approx(seen, rel=0.15)


def test_chunks_follow_each_other_in_time():
    """Four stages work on a prompt at once; engines whose chunks wait for each other gain nothing by stages."""
    load = {"input_len": 60_000, "output_len": 2, "num_prompts": 2, "request_rate": 0.01, "spread": 0.0}
    engines = [catalog.engine("vllm").but(chunks_follow=follow) for follow in (False, True)]
    ran = (commtax.serve("llama-3.1-70b", HOST, tp=2, pp=4, engine=one, **load) for one in engines)
    waits, follows = (float(np.mean(one.columns["first_s"] - one.columns["sent_s"])) for one in ran)
    chunks = 60_000 / 8192
    assert (chunks + 3) / 4 / chunks < follows / waits < 0.6


def test_plan_chooses_split_caches():
    """Of TP 2 both ranks keep the same latents: where these limit, the plan that splits them is listed in its place."""
    load = {"input_len": 20_000, "output_len": 2000, "disaggregated": False}
    plain, split = (commtax.plan("deepseek-v2-lite", "2xl40s", dcp=dcp, **load) for dcp in (1, 2))
    best = [
        {answer.gpu_words(answer.plans, i): answer.plans.tokens_per_s[i] for i in range(len(answer.plans))}
        for answer in (plain, split)
    ]
    assert max(best[1].values()) >= max(best[0].values())
    assert best[1]["2 GPUs = TP 2, caches over 2"] > best[0]["2 GPUs = TP 2"]


@each("engine", ["vllm", "sglang", "trtllm"])
def test_flags_are_read_back(engine):
    written = launch_command(ask(R1, HOST, tp=8, dcp=4, engine=engine), engine)
    options = options_of(read_pasted(written), several=False)
    assert (options.tp, options.dcp) == (8, 4)
    if engine != "trtllm":
        options = options_of(read_pasted(launch_command(ask(R1, HOST, tp=4, cp=2, engine=engine), engine)), several=False)
        assert (options.tp, options.cp) == (4, 2)
