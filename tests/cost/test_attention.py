"""Kinds of attention and sequences split among ranks: laws of their forms and prices, rows that were not fitted, published runs."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog import physics
from commtax.cost import layer_forms
from commtax.cost.attention import causal_pairs, head_product, quantise_kernel
from commtax.cost.attention_kinds import (
    convolved,
    convolved_further,
    delta_scanned,
    space_scanned,
    streams_read,
    streams_written,
    updated,
)
from commtax.cost.caches import kv_bytes_per_token, state_bytes_per_layer
from commtax.cost.compute import encoder_attention, layer_kernels, step_kernels
from commtax.cost.context_parallel import prompts_of_rank
from commtax.cost.forms import from_memory, norm
from commtax.cost.inventory import inventory
from commtax.cost.kernels import kernel_sigma, kernel_source, least_s, seconds
from commtax.cost.layer_forms import CHIP_FORMS, chunked_scan, convolution, stream
from commtax.cost.traffic import inference
from commtax.cost.train_kernels import forward_flops
from commtax.launch.launch_options import options_of, read_pasted
from commtax.launch.writing import launch_command
from commtax.spec import Block, DeltaNet, Hyper, Mamba2, Plan, Workload
from commtax.verbs.kv_caches import cache_tokens
from commtax.verbs.settling import ask
from commtax_lab.published.kernel_kinds import linear as kinds
from commtax_lab.published.kernel_kinds.modules import timed_model
from commtax_lab.published.kernel_tables import read as read_kernels
from commtax_lab.published.kernel_tables import tables_of_rows
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.kernel_scores import answers
from commtax_lab.published.tables import read, shipped_tables
from each import each
from paths import SHARED
from tables import tables

MODELS = {
    "latent": timed_model("deepseek-ai/DeepSeek-V3"),
    "chosen": timed_model("deepseek-ai/DeepSeek-V3.2"),
    "blocks": timed_model("MiniMaxAI/MiniMax-M3"),
    "compressed and chosen": timed_model("deepseek-ai/DeepSeek-V4-Pro", 4),
    "compressed": timed_model("deepseek-ai/DeepSeek-V4-Flash", 128),
    "a window alone": timed_model("deepseek-ai/DeepSeek-V4-Flash", 0),
}
CHIPS = ("a100-80-sxm", "l40s", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb300", "mi300x")
ENGINES = ("vllm", "sglang", "trtllm", "textbook")


def kernels_of(name, work, tp=1, kv_dtype="bf16", engine="vllm"):
    plan = Plan(tp=tp, kv_dtype=kv_dtype)
    return layer_kernels(MODELS[name], plan, work, work.rows, catalog.engine(engine))


def attention_of(name, work, **kwargs):
    return [k for k in kernels_of(name, work, **kwargs) if k.part == "attention" and np.any(k.count)]


def price(kernels, chip, engine):
    constants = catalog.kernel_constants(catalog.engine(engine), chip)
    return sum(sum(seconds(k, chip, constants)) * k.count for k in kernels)


sizes = st.tuples(st.integers(1, 512), st.integers(0, 200_000), st.integers(0, 8), st.integers(1, 20_000), st.integers(0, 100_000))


@st.composite
def works(draw):
    decode, context, prompts, new, past = draw(sizes)
    return Workload(decode, decode * context, prompts, prompts * new, prompts * past)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(
    work=works(),
    tp=st.sampled_from((1, 2, 8)),
    kv=st.sampled_from(("bf16", "fp8")),
    chip=st.sampled_from(CHIPS),
    engine=st.sampled_from(ENGINES),
)
def test_no_kernel_beats_bandwidth_or_peak(name, work, tp, kv, chip, engine):
    chip = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine(engine), chip)
    for k in kernels_of(name, work, tp, kv):
        if np.any(k.count):
            fixed, moving = seconds(k, chip, constants)
            assert fixed >= 0
            assert moving >= least_s(k, chip, constants) * (1 - 1e-9), k.what


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10, deadline=None)
@given(seqs=st.integers(1, 256), short=st.integers(1, 100_000), more=st.integers(1, 100_000), chip=st.sampled_from(CHIPS))
def test_a_longer_cache_is_never_cheaper(name, seqs, short, more, chip):
    chip = catalog.chip(chip)
    few, many = (price(attention_of(name, Workload(seqs, seqs * n)), chip, "vllm") for n in (short, short + more))
    assert many >= few * (1 - 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_are_their_elements(name):
    prompts, new, past = np.array([0, 2, 1]), np.array([0, 600, 9000]), np.array([0, 50, 0])
    work = Workload(np.array([3, 0, 40]), np.array([300, 0, 900_000]), prompts, new, past)
    tp, chip = np.array([1, 2, 8]), catalog.chip("h100-sxm")
    constants = catalog.kernel_constants(catalog.engine("sglang"), chip)
    many = [(k.count, k.flops, k.nbytes, *seconds(k, chip, constants)) for k in kernels_of(name, work, tp)]
    for i in range(3):
        one = Workload(
            *(
                np.asarray(v)[i].item()
                for v in (work.decode_seqs, work.cached_tokens, work.prefill_seqs, work.prefill_tokens, work.past_tokens)
            )
        )
        alone = [(k.count, k.flops, k.nbytes, *seconds(k, chip, constants)) for k in kernels_of(name, one, tp[i].item())]
        for priced, single in zip(many, alone, strict=True):
            assert [float(np.broadcast_to(v, 3)[i]) for v in priced] == pytest.approx([float(v) for v in single], rel=1e-12)


def test_attention_of_latents_and_of_chosen_tokens_by_hand():
    (k,) = attention_of("latent", Workload(4, 4 * 999), tp=8)
    assert (k.flops, k.nbytes) == (2 * 4 * 16 * 1000 * (576 + 512), 4 * 1000 * 576 * 2)
    work = Workload(prefill_seqs=1, prefill_tokens=4096)
    (whole,) = attention_of("latent", work)
    assert whole.flops == 2 * 128 * (4096 * 4097 / 2) * (192 + 128)
    scores, chosen = attention_of("chosen", work)
    assert scores.flops == 2 * 64 * 128 * (4096 * 4097 / 2)
    assert chosen.flops == 2 * 128 * (2048 * 2049 / 2 + 2048 * 2048) * (576 + 512)
    assert not any(k.place == "key" and k.form == "gemm" and np.any(k.count) for k in kernels_of("chosen", work))
    model = MODELS["chosen"]
    block = model.blocks[0]
    taken = replace(block.attention, indexer=replace(block.attention.indexer, own=False))
    model = replace(model, blocks=(replace(block, mixer=taken),))
    work = Workload(8, 8 * 50_000)
    made = layer_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
    assert {k.form for k in made if k.part == "attention" and np.any(k.count)} == {"sparse-decode"}


def test_chosen_blocks_and_compressed_entries_by_hand():
    scores, attention = attention_of("blocks", Workload(2, 2 * 99_999), tp=4)
    assert attention.nbytes == 2 * 2048 * (128 + 128) * 2  # one KV head of four
    assert (attention.flops, scores.nbytes) == (2 * 2 * 16 * 2048 * (128 + 128), 2 * 100_000 * 128 * 2)
    assert scores.flops == 2 * 2 * 128 * 100_000
    (all_of_them,) = attention_of("compressed", Workload(1, 127_999), kv_dtype="fp8")
    assert all_of_them.nbytes == (128 + 1000) * 584
    scores, best = attention_of("compressed and chosen", Workload(1, 127_999), kv_dtype="fp8")
    assert (best.nbytes, scores.nbytes) == ((128 + 1024) * 584, 32_000 * 132)
    (window,) = attention_of("a window alone", Workload(1, 127_999), kv_dtype="fp8")
    assert window.nbytes == 128 * 584


def test_training_absorbs_nothing_and_a_repeated_product_may_come_from_the_cache():
    """2 FLOPs a weight and token, and attention over keys of every head: as the model without a cache would have it."""
    model = MODELS["latent"]
    a, m = model.attention, model.attention.latent
    weights = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    layers, _ = forward_flops(model, 1024, causal=True)
    assert (layers, m.kv_rank) == (pytest.approx(2 * weights + 2 * 128 * 1025 / 2 * (a.head_dim + a.v_head_dim)), 512)
    chip = catalog.chip("b200-sxm")
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    cold, hot = (sum(seconds(head_product(8, 128, 128, 512, hot=hot), chip, constants)) for hot in (False, True))
    assert hot < cold


BARS = {"mla": 0.08, "latent": 0.08, "head-product": 0.13, "dsa": 0.15, "msa": 0.15, "csa": 0.15, "hca": 0.15}

"""Median errors that rows not fitted keep to; a matrix a head is small, and a few microseconds of launch are much of it."""


def test_measured_kernels_and_modules():
    own = next(table for table in shipped_tables("kernels") if "latent" in table.name).dicts()
    errors = {}
    for _, table in tables_of_rows(own):
        found = answers(table, "")
        assert not found.fitted.any()
        errors.setdefault(table.kind.name.split("-")[0], []).append(np.abs(found.predicted / found.measured - 1))
    assert len(errors) >= 6
    for kind, parts in errors.items():
        every = np.concatenate(parts)
        assert len(every) > 30
        bar = next(bar for name, bar in BARS.items() if f"{name}-".startswith(f"{kind}-") or name.startswith(kind))
        assert np.median(every[~np.isnan(every)]) < bar, kind


def test_every_form_has_physical_constants_everywhere_and_the_kernel_of_its_phase():
    for chip in LINEAR_CHIPS:
        for engine in ENGINES:
            tables = catalog.kernel_constants(catalog.engine(engine), catalog.chip(chip)).tables
            assert {f"{form}.bf16" for form in CHIP_FORMS} <= set(tables)
    size = {"batch_size": 2.0, "seq_len": 64.0, "d_conv": 4.0, "nheads": 16.0, "head_dim": 64.0, "n_groups": 4.0, "d_state": 128.0}
    words = {"framework": "vllm", "version": "1", "dtype": "bf16", "stored": "bf16", "written": "bfloat16"}
    mamba = next(kind for kind in kinds.KINDS if kind.tail == "mamba2")
    for phase, form in (("context", "ssd-scan"), ("generation", "ssd-update")):
        (one,) = mamba.make({**words, "phase": phase, "kernel_source": "a_new_kernel"}, size)
        assert one.form == form
    assert CHIP_FORMS["ssd-update"] is stream
    for chip, engine in product(LINEAR_CHIPS, ENGINES[:3]):
        tables = catalog.kernel_constants(catalog.engine(engine), catalog.chip(chip), timed=True).tables
        own = {name: c for name, c in tables.items() if name.partition(".")[0] in ("gemm", "prefill", "decode", *CHIP_FORMS)}
        for name, table in own.items():
            for key, value in table.items():
                physics.KERNEL[key].read(value, f"{chip} {name}.{key}")
    for name in CHIPS:
        for engine in ENGINES:
            tables = catalog.kernel_constants(catalog.engine(engine), catalog.chip(name)).tables
            measured = {table.partition(".")[0] for table in tables}
            assert measured >= set(layer_forms.LATENT_FORMS), (name, engine)


@pytest.mark.parametrize("name", ["chosen", "blocks", "compressed and chosen"])
def test_rows_of_a_sequence_that_are_checked_together_read_a_selectors_keys_once(name):
    """Four rows of 10 sequences: keys as of one, scores (fp32, written and read twice) of three more, four times the products."""

    def scan(rows):
        work = Workload(10, 10 * 40_000 - 10 * rows, rows_per_seq=rows)  # so that all see 40,000 tokens
        [found] = [k for k in attention_of(name, work) if k.form.endswith("selector-decode")]
        return found

    one, four = scan(1), scan(4)
    assert four.flops == pytest.approx(4 * one.flops)
    assert four.nbytes == pytest.approx(one.nbytes + 3 * one.shape.candidates * 12)
    assert four.shape.candidates == one.shape.candidates
    for chip in map(catalog.chip, CHIPS):
        single, together = (price([k], chip, "sglang") for k in (one, four))
        assert single <= together <= 4 * single


DATA = tables(__file__)
TABLES = SHARED / "kernels_more"
LINEAR_CHIPS = ("a100-80-sxm", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "b300-sxm", "gb200", "mi300x")
LLAMA = catalog.model("llama-3.1-8b")
GATED = DeltaNet(16, 32, 128, 128)
KIMI = DeltaNet(32, 32, 128, 128, decay_rank=128, gate_rank=128)
MAMBA = Mamba2(64, 64, 8, 128)


def made(form, sequences, tokens, heads):
    """A kernel of this form, and one twice as large."""
    if CHIP_FORMS[form] is convolution:
        return convolved(form, sequences, tokens, 128 * heads, 4)
    if CHIP_FORMS[form] is chunked_scan:
        return (space_scanned if form == "ssd-scan" else delta_scanned)(form, sequences, tokens, heads, heads, 128, 64)
    if form in ("scales", "quantise"):
        return quantise_kernel(form, sequences * tokens, 128 * heads)
    if form in ("mhc-pre", "mhc-post"):
        return (streams_read if form == "mhc-pre" else streams_written)(sequences * tokens, 4, 128 * heads)
    if form == "encoder":
        return encoder_attention(sequences, tokens, heads, 72)
    if "conv" in form:
        return convolved_further(form, sequences, min(tokens, 8), 128 * heads, 4, cold=tokens % 2 == 0)
    return updated(form, sequences, min(tokens, 8), heads * 128 * 128, 8.0, cold=tokens % 2 == 0)


forms = st.sampled_from(sorted(CHIP_FORMS))
counts = st.integers(1, 256)


@given(forms, st.sampled_from(LINEAR_CHIPS), st.sampled_from(ENGINES), counts, st.integers(1, 16384), st.integers(1, 96))
def test_no_kernel_beats_its_bytes_or_its_arithmetic(form, chip, engine, sequences, tokens, heads):
    chip = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine(engine), chip)
    one = made(form, sequences, tokens, heads)
    assert sum(seconds(one, chip, constants)) >= least_s(one, chip, constants) * (1 - 1e-9)


@given(forms, st.sampled_from(LINEAR_CHIPS), st.sampled_from(ENGINES[:3]), counts, st.integers(1, 8192), st.integers(1, 96))
def test_more_sequences_never_take_less(form, chip, engine, sequences, tokens, heads):
    chip = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine(engine), chip)
    few, many = (sum(seconds(made(form, n, tokens, heads), chip, constants)) for n in (sequences, 2 * sequences))
    assert few <= many * (1 + 1e-9)


@given(st.floats(1, 1e12), st.floats(0, 1e9))
def test_a_cache_keeps_no_more_than_it_holds(nbytes, cache):
    assert nbytes * (1 + 1e-9) >= from_memory(nbytes, cache) >= nbytes - 0.64 * cache - 1e-6 * nbytes


@given(st.floats(1, 20), st.lists(st.floats(0, 1e3), min_size=1, max_size=5))
def test_a_smooth_maximum_lies_between_the_largest_and_the_sum(p, terms):
    assert max(terms) * (1 - 1e-9) - 1e-200 <= norm(p, *terms) <= sum(terms) * (1 + 1e-9) + 1e-200


def test_linear_attention_comes_from_memory_and_lies_within_its_errors():
    chip = catalog.chip("l40s")
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    cold, warm = (updated("gdn-update", 8, 1, 32 * 128 * 128, 8.0, cold=c) for c in (True, False))
    assert sum(seconds(cold, chip, constants)) > 1.5 * sum(seconds(warm, chip, constants))
    records = check(only="kernels").records
    for kind, bar in DATA["bars"].items():
        own = (records.kind == kind) & ~records.fitted
        if kind == "gemm":
            own &= records.dtype == "nvfp4"
        assert own.sum() >= 50
        assert np.median(np.abs(np.expm1(records.log_error[own]))) < bar, kind


@pytest.mark.skipif(not TABLES.is_dir(), reason="the larger tables of kernels are not here")
@pytest.mark.parametrize("name", ["l40s_mamba2", "h100_sxm_kda", "b300_sxm_kda"])
def test_whole_tables_lie_within_the_stated_errors(name):
    records = answers(read_kernels(f"{name}.csv.gz", *read(TABLES / f"{name}.csv.gz")), "")
    tested = ~records.fitted & records.priced
    assert np.median(np.abs(np.expm1(records.log_error[tested]))) < 0.15
    assert np.all(records.predicted[tested] >= records.floor[tested] * (1 - 1e-9))


def of_layers(*blocks, hyper=None):
    return replace(LLAMA, key="mixed", blocks=blocks, layers=tuple(range(len(blocks))), hyper=hyper)


WORKS = (Workload(decode_seqs=16, cached_tokens=16000), Workload(prefill_seqs=2, prefill_tokens=3000))


@each("mixer", [GATED, KIMI, MAMBA], ids=["gated", "kimi", "mamba"])
@each("work", WORKS, ids=["decode", "prefill"])
@each("tp", [1, 4])
def test_products_of_a_layer_are_its_matrices(mixer, work, tp):
    """Two FLOPs a row and element of each matrix, shared by the ranks; low ranks are whole on each."""
    model = of_layers(Block(mixer, None, 1))
    kernels = step_kernels(model, Plan(tp=tp), work, work.rows, catalog.engine("vllm"))
    own = sum(k.flops * k.count for k in kernels if k.form == "gemm" and k.part == "projections")
    split = {"full": 1, "heads": tp, "kv": min(tp, MAMBA.num_groups)}
    matrices = [t for t in inventory(model) if t.where == 0 and t.linear]
    assert own == pytest.approx(sum(2 * work.rows * t.size / split[t.split] for t in matrices))


@pytest.mark.parametrize("mixer", [GATED, KIMI, MAMBA], ids=["gated", "kimi", "mamba"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_new_token_reads_and_writes_the_state_that_is_kept(mixer, tp):
    plan, (work, _) = Plan(tp=tp), WORKS
    kernels = step_kernels(of_layers(Block(mixer, None, 1)), plan, work, work.rows, catalog.engine("vllm"))
    moved = sum(k.shape.cold_bytes * k.count for k in kernels if k.place == "decode")
    assert moved == pytest.approx(2 * work.decode_seqs * state_bytes_per_layer(mixer, tp, plan))


def test_states_and_streams_stand_beside_each_half_of_a_layer():
    model = of_layers(Block(GATED, None, 1), Block(MAMBA, None, 1))
    for work, gone in zip(WORKS, ("prefill", "decode"), strict=True):
        kernels = step_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
        assert all(k.count == 0 for k in kernels if k.place == gone)
        assert sum(k.count for k in kernels if k.place and k.place != gone and k.part == "attention") == 4
    model = of_layers(Block(GATED, LLAMA.blocks[0].ffn, 2), Block(MAMBA, None, 1), hyper=Hyper(4))
    work = WORKS[1]
    kernels = step_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
    runs = {form: sum(k.count for k in kernels if k.form == form) for form in ("mhc-pre", "mhc-post")}
    assert runs == {"mhc-pre": 3, "mhc-post": 3}


def test_every_kernel_says_who_timed_it():
    chip, scanned = catalog.chip("h100-sxm"), space_scanned("ssd-scan", 1, 1024, 8, 64, 128, 64)
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    assert kernel_source(scanned, constants).kind == "assumed"
    assert kernel_sigma(scanned, constants) >= 0.3
    timed = delta_scanned("gdn-scan", 1, 1024, 16, 32, 128, 128)
    assert kernel_source(timed, constants).kind == "calibrated"
    ampere = catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("a100-80-sxm"))
    assert kernel_source(timed, ampere).kind == "assumed"
    chip, engine = catalog.chip("b200-sxm"), catalog.engine("trtllm")
    step, alone = (catalog.kernel_constants(engine, chip, timed=timed) for timed in (False, True))
    assert step.tables["gemm.nvfp4"] == catalog.kernel_constants(catalog.engine("vllm"), chip).tables["gemm.nvfp4"]
    assert alone.tables["gemm.nvfp4"] != step.tables["gemm.nvfp4"]


R1, HOST = "deepseek-r1", "8xh200-sxm"


def sent(axis, *args, **options):
    lines = commtax.traffic(*args, **options).lines
    return {(x.item.what, x.item.op): (x.item.nbytes, x.item.count, x.item.ranks) for x in lines if x.item.axis == axis}


def test_split_heads_and_latents_by_hand():
    """4 tokens of DeepSeek-R1, TP 8: 128 heads of 512 + 64 values out, their log-sums from 8 ranks, 128 of 512 back, 61 times."""
    assert sent("dcp", R1, HOST, tp=8, dcp=8, batch=4) == {
        ("queries", "all-gather"): (4 * 128 * 576 * 2, 61, 8),
        ("log-sums", "all-gather"): (8 * 4 * 128 * 4, 61, 8),
        ("partial outputs", "reduce-scatter"): (4 * 128 * 512 * 2, 61, 8),
    }
    by_pairs = sent("dcp", R1, HOST, tp=8, dcp=4, batch=4, engine="sglang")
    assert by_pairs["partial outputs", "all-to-all"] == (4 * 64 * (512 * 2 + 4), 61, 4)
    assert ("queries", "all-gather") not in sent("dcp", R1, HOST, tp=8, dcp=4, engine="trtllm"), "Helix makes them again"
    # Qwen3-235B has 64 heads over 4 of keys: of TP 8 two ranks keep the same, with 16 heads together; drafted rows count.
    found = sent("dcp", "qwen3-235b-a22b", HOST, tp=8, dcp=2, batch=2, speculative=1)
    assert found == {
        ("queries", "all-gather"): (4 * 16 * 128 * 2, 94, 2),
        ("log-sums", "all-gather"): (2 * 4 * 16 * 4, 94, 2),
        ("partial outputs", "reduce-scatter"): (4 * 16 * 128 * 2, 94, 2),
    }
    # What is cached of a prompt is gathered; its own tokens attend at home.
    model, engine = catalog.model(R1), catalog.engine("vllm")
    work = Workload(prefill_seqs=1, prefill_tokens=512, past_tokens=4096)
    found = {i.what: i for i in inference(model, Plan(tp=8, dcp=8), work, engine) if i.axis == "dcp" and i.is_sent}
    assert {what: (i.nbytes, i.count) for what, i in found.items()} == {"cached latents": (4096 * 576 * 2, 61)}
    # 1,000 tokens of Llama-3.1-70B, TP 4: keys and values of a rank's 2 heads to its partner, and the last hidden states.
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


def test_chunks_follow_each_other_and_plans_split_caches():
    """Four stages work on a prompt at once; engines whose chunks wait for each other gain nothing by stages."""
    load = {"input_len": 60_000, "output_len": 2, "num_prompts": 2, "request_rate": 0.01, "spread": 0.0}
    engines = [catalog.engine("vllm").but(chunks_follow=follow) for follow in (False, True)]
    ran = (commtax.serve("llama-3.1-70b", HOST, tp=2, pp=4, engine=one, **load) for one in engines)
    waits, follows = (float(np.mean(one.columns["first_s"] - one.columns["sent_s"])) for one in ran)
    chunks = 60_000 / 8192
    assert (chunks + 3) / 4 / chunks < follows / waits < 0.6
    # Of TP 2 both ranks keep the same latents: where these limit, the plan that splits them is listed in its place.
    load = {"input_len": 20_000, "output_len": 2000, "disaggregated": False}
    plain, split = (commtax.plan("deepseek-v2-lite", "2xl40s", dcp=dcp, **load) for dcp in (1, 2))
    best = [{a.gpu_words(a.plans, i): a.plans.tokens_per_s[i] for i in range(len(a.plans))} for a in (plain, split)]
    assert max(best[1].values()) >= max(best[0].values())
    assert best[1]["2 GPUs = TP 2, caches over 2"] > best[0]["2 GPUs = TP 2"]
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
    assert (held[1].kv_tokens, held[1].kv_bytes) == (dcp * held[0].kv_tokens, held[0].kv_bytes)
    assert float(np.max(cache_tokens(split))) == dcp * float(np.max(cache_tokens(plain)))


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 256), st.integers(1, 100_000))
def test_attention_stays_above_its_floor(dcp, batch, context):
    priced = commtax.bill(R1, HOST, tp=8, dcp=dcp, batch=batch, context=context)
    (line,) = (x for x in priced.lines if x.item.place == "decode" and x.kind == "compute")
    keys = batch * context * 576 * 2 / dcp
    assert line.priced_from.nbytes >= keys
    assert line.each_s >= keys / catalog.cluster(HOST).chip.memory_Bps


@each("model,options,rule", [*DATA["refused"], (R1, {"dcp": 3}, "dcp-divides"), (R1, {"dcp": 8, "engine": "torch"}, "dcp-engine")])
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


@each("engine", ["vllm", "sglang", "trtllm"])
def test_flags_are_read_back(engine):
    written = launch_command(ask(R1, HOST, tp=8, dcp=4, engine=engine), engine)
    options = options_of(read_pasted(written), several=False)
    assert (options.tp, options.dcp) == (8, 4)
    if engine != "trtllm":
        options = options_of(read_pasted(launch_command(ask(R1, HOST, tp=4, cp=2, engine=engine), engine)), several=False)
        assert (options.tp, options.cp) == (4, 2)
