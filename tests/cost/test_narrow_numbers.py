"""Narrow numbers: fp4 arithmetic where chips have it and it was measured, unpacked weights elsewhere, fp8 in the KV cache."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.quantisation import quant_from
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import least_s, peak, seconds
from commtax.verbs.billing import price
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.scoring import kernel_scores
from each import each
from tables import tables

DATA = tables(__file__)

FP4_CHIPS = ("b200-sxm", "gb200", "b300-sxm")
PLAIN_CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "l40s")


def prefill(dtype, chip="b200-sxm", model="llama-3.3-70b", **more):
    return commtax.bill(model, f"8x{chip}" if chip != "gb200" else "2x4xgb200", phase="prefill", dtype=dtype, **more)


@each("chip", FP4_CHIPS)
@each("model", ["llama-3.3-70b", "qwen3-32b", "qwen3-235b-a22b"])
def test_prompts_in_nvfp4_are_faster_than_in_fp8_where_chips_have_fp4(chip, model):
    for tokens in (2048, 8192):
        bf16, fp8, fp4 = (prefill(d, chip, model, tp=4, context=tokens).step_s for d in ("bf16", "fp8", "nvfp4"))
        assert fp4 < fp8 < bf16


def test_a_prompt_on_b200_pays_fp4_arithmetic_and_says_calibrated():
    one = prefill("nvfp4", tp=1)
    assert one.step_s < 0.065  # bf16 arithmetic: 0.116
    assert all("assumed" not in line.source for line in one.lines if line.kind == "compute")


@pytest.mark.parametrize("dtype", ["nvfp4", "int4", "mxfp4"])
def test_unpacked_weights_are_assumed_and_as_wide_as_what_nobody_measured(dtype):
    plain, packed = (prefill(d, "h100-sxm", tp=4) for d in ("bf16", dtype))
    assert kernels_of_s(packed) == pytest.approx(kernels_of_s(plain), rel=0.05)  # bf16 arithmetic
    assert any("unpacked 4-bit" in line.source for line in packed.lines)
    assert packed.high_s / packed.step_s > plain.high_s / plain.step_s


def kernels_of_s(bill):
    return sum(line.total_s for line in bill.lines if line.kind == "compute")


sizes = st.integers(6, 14).map(lambda n: 2**n)


@given(st.sampled_from(FP4_CHIPS + PLAIN_CHIPS), st.integers(1, 16384), sizes, sizes)
def test_no_product_beats_its_arithmetic_or_its_bytes(chip, m, n, k):
    """Weights come from memory; activations that were just made may still be in the chip's cache."""
    chip = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    made = Kernel("product", "gemm", 1, 2 * m * n * k, 0.5625 * n * k + 2 * m * (n + k), m, n, k, "nvfp4", 0.5625)
    rate = peak(made, chip, constants)
    assert rate == chip.flops_per_s["fp4" if "fp4" in chip.flops_per_s else "bf16"]
    weights, activations = 0.5625 * n * k, 2 * m * (n + k)
    moved = weights + max(0, activations - chip.l2_bytes)
    assert sum(seconds(made, chip, constants)) >= max(made.flops / rate, moved / chip.memory_Bps, least_s(made, chip, constants))


PUBLISHED = DATA["published"]


def test_published_products_in_nvfp4_on_b200():
    rows = [["nvfp4", *map(str, row)] for row in PUBLISHED]
    records = kernel_scores.answers(
        kernel_tables.read("b200_sxm_gemm.csv.gz", ["gemm_dtype", "m", "n", "k", "latency_ms"], rows), ""
    )
    assert not any(records.fitted)
    assert sorted(abs(records.log_error))[len(rows) // 2] < 0.1  # bf16 arithmetic: 0.5


LAUNCHED = (  # chip, kernel and milliseconds of small products of fp8 in tiles, vLLM 0.24: medians of the same tables
    ("h100_sxm", "DeepGemmFp8BlockScaledMMKernel", 0.0931),
    ("h100_sxm", "FlashInferFp8BlockScaledMMKernel", 0.0600),
    ("b200_sxm", "CutlassFp8BlockScaledMMKernel", 0.1650),
    ("l40s", "TritonFp8BlockScaledMMKernel", 0.3400),
)


@given(st.sampled_from(LAUNCHED), st.integers(1, 64), st.integers(4, 10), st.integers(4, 10))
def test_a_small_product_takes_its_launch_where_a_table_timed_it(row, m, n, k):
    """… whatever its size; the same product in a step does not."""
    (system, source, launch_ms), n, k = row, 2**n, 2**k
    header = ["gemm_dtype", "kernel_source", "m", "n", "k", "latency_ms"]
    rows = [["fp8_block", name, str(m), str(n), str(k), str(launch_ms)] for name in (source, "another")]
    timed, in_graph = kernel_scores.answers(kernel_tables.read(f"{system}_gemm.csv.gz", header, rows), "").predicted
    assert timed == pytest.approx(launch_ms * 1e-3, rel=0.2)
    assert in_graph < timed / 2


def test_launches_that_tables_time_are_in_no_step():
    step = commtax.bill("deepseek-v3", "8xh100-sxm", tp=8, engine="vllm")
    assert not any(line.item.op.endswith("-eager") for line in step.lines)


@pytest.mark.parametrize(("inputs", "weight_only"), [({"num_bits": 4, "type": "float"}, False), (None, True)])
def test_a_checkpoint_says_whether_its_activations_are_quantised(inputs, weight_only):
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    quant = quant_from({"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}, "some")
    assert quant.dtype == "nvfp4"
    assert quant.weight_only is weight_only


def kernels_s(model, cluster, engine, **asked):
    """A bill of kernels as they are, without what whole runs taught."""
    bill = commtax.bill(model, cluster, engine=catalog.engine(engine).but(pooled=False), **asked)
    return bill, sum(float(line.total_s) for line in bill.lines if line.kind == "compute")


CHIPS = ("h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "l40s", "a100-80-sxm", "mi300x", "rtx-4090")


@settings(max_examples=60)
@given(
    st.sampled_from(["fused", "torch", "vllm", "sglang", "trtllm"]),
    st.sampled_from(CHIPS),
    st.sampled_from(catalog.keys("models")),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["decode", "prefill"]),
    st.integers(1, 256),
    st.integers(1, 8192),
    st.booleans(),
)
def test_fp8_is_no_slower_than_bf16_unless_a_measured_table_is_named(engine, chip, model, tp, phase, batch, context, weights):
    stored = catalog.model(model).quant
    assume(not (weights and stored and any(q.dtype != "fp8" for q in stored.formats)))  # 4-bit parts stay what they are
    asked = {"tp": tp, "batch": batch if phase == "decode" else 1, "context": context, "phase": phase}
    kinds = [
        {"dtype": "fp8" if weights else "bf16", "kv_dtype": "bf16" if weights else "fp8"},
        {"dtype": "bf16", "kv_dtype": "bf16"},
    ]
    try:
        (bill, narrow), (_, wide) = (kernels_s(model, f"8x{chip}", engine, **asked, **kind) for kind in kinds)
    except ValueError:  # a plan that this model or engine refuses
        assume(False)
    named = [line for line in bill.lines if line.why.code == "narrow-slower"]
    assert narrow <= wide * 1.001 or named
    assert all(line.source.kind in ("calibrated", "transferred") for line in named)


@pytest.mark.parametrize(
    ("model", "cluster", "engine", "table"),
    [
        ("kimi-k3", "16x8xh100-sxm", "sglang", "latent-decode.fp8"),  # FlashAttention 3 unpacks a latent cache: 5 times as long
        ("nemotron-4-340b", "8xb200-sxm", "vllm", "decode.fp8"),  # heads of 192: Triton's kernel
    ],
)
def test_a_cache_that_is_slower_in_fp8_names_its_table(model, cluster, engine, table):
    laid = {"tp": 8, "pp": 16} if model == "kimi-k3" else {"tp": 8}
    (bill, narrow), (_, wide) = (
        kernels_s(model, cluster, engine, batch=64, context=32768, kv_dtype=kind, **laid) for kind in ("fp8", "bf16")
    )
    assert narrow > wide
    assert any(table in line.why for line in bill.lines)


def copied_s(cluster="8xh200-sxm", engine="sglang", model="deepseek-v3", kv_cache_memory_bytes=0, **asked):
    bill, _ = kernels_s(model, cluster, engine, tp=8, **asked)
    if kv_cache_memory_bytes:
        bill = price(bill.question.but(kv_cache_memory_bytes=kv_cache_memory_bytes))
    return sum(float(line.total_s) for line in bill.lines if line.item.form == "latent-copy"), bill


def test_sglang_copies_all_of_an_fp8_cache_of_latents_on_hopper():
    """131,072 tokens of DeepSeek-R1 on 8 H200 take 13.77 ms of a step, whatever is in use (sgl-project/sglang issue 35291)."""
    room = {"kv_cache_memory_bytes": 131_072 * 61 * 576, "kv_dtype": "fp8", "context": 1024}
    few, bill = copied_s(batch=1, **room)
    assert few == pytest.approx(13.77e-3, rel=0.03)
    assert any(note.code == "copied-cache" for note in bill.notes)
    many, _ = copied_s(batch=64, **room)  # what is read is copied too, inside what reading was measured to take
    assert many == pytest.approx(few * (1 - 64 * 1025 / 131_072), rel=0.01)
    assert copied_s(batch=128, **room)[0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    "asked",
    [{"kv_dtype": "bf16"}, {"cluster": "8xb200-sxm"}, {"engine": "vllm"}, {"model": "deepseek-v3.2"}, {"phase": "prefill"}],
    ids=str,
)
def test_no_other_step_copies_a_cache(asked):
    assert copied_s(**({"kv_dtype": "fp8", "batch": 1, "context": 1024} | asked))[0] == 0


@pytest.mark.parametrize("batch", [16, 64, 256])
def test_fp8_experts_gain_on_hopper(batch):
    """Tuned fp8 is 10 to 17 % faster than bf16 (vLLM pull request 35457)."""
    bills = (kernels_s("qwen3-235b-a22b", "8xh200-sxm", "vllm", tp=8, batch=batch, dtype=kind)[0] for kind in ("fp8", "bf16"))
    fp8, bf16 = (
        sum(float(x.total_s) for x in b.lines if x.kind == "compute" and x.item.part in ("routing", "experts")) for b in bills
    )
    assert 0.6 < fp8 / bf16 < 0.95


def test_inputs_are_quantised_apart_where_an_engine_does():
    for engine, launches in (("trtllm@1.0", 128), ("vllm", 0)):
        bill, _ = kernels_s("qwen3-32b", "8xh100-sxm", engine, tp=4, batch=8, dtype="fp8")
        assert sum(line.item.count for line in bill.lines if line.item.op == "quantise") == launches


def test_mxfp4_experts_run_with_the_activations_that_an_engine_gives_them():
    """gpt-oss, a prompt of 8,192 tokens on B200: mxfp8 in SGLang and TensorRT-LLM, bf16 in vLLM."""
    each = {}
    for engine in ("vllm", "sglang", "trtllm"):
        bill, _ = kernels_s("gpt-oss-120b", "8xb200-sxm", engine, tp=1, batch=1, context=8192, phase="prefill")
        each[engine] = sum(float(line.each_s) for line in bill.lines if line.item.op == "experts")
    assert max(each["sglang"], each["trtllm"]) < 2.5e-3
    assert each["vllm"] > 1.5 * each["sglang"]


def test_flashmla_copies_nothing_and_gains_by_smaller_latents():
    asked = {"tp": 8, "engine": "sglang", "batch": 64, "context": 8192}
    wide, usual, native = (
        commtax.bill("deepseek-v3", "8xh200-sxm", **asked, technique=one) for one in ("", "fp8-kv", "fp8-kv,flashmla")
    )
    forms = [{line.item.form for line in one.items if line.kind == "compute"} for one in (usual, native)]
    assert forms[0] - forms[1] == {"latent-copy"}
    assert native.step_s < wide.step_s < usual.step_s
    with pytest.raises(ValueError, match="caches no latents"):
        commtax.bill("llama-3.1-8b", "8xh200-sxm", tp=8, engine="sglang", technique="flashmla")
