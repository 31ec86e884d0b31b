"""Latent, block-sparse and compressed attention: what their kernels compute and read, laws of their prices, measured ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import catalog
from commtax.cost import layer_forms
from commtax.cost.attention import head_product
from commtax.cost.compute import layer_kernels
from commtax.cost.kernels import least_s, seconds
from commtax.cost.train_kernels import forward_flops
from commtax.spec import Plan, Workload
from commtax_lab.published.kernel_kinds.modules import timed_model
from commtax_lab.published.kernel_tables import tables_of_rows
from commtax_lab.published.scoring.kernel_scores import answers
from commtax_lab.published.tables import shipped_tables

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
    work = Workload(
        np.array([3, 0, 40]), np.array([300, 0, 900_000]), np.array([0, 2, 1]), np.array([0, 600, 9000]), np.array([0, 50, 0])
    )
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
        for each, single in zip(many, alone, strict=True):
            assert [float(np.broadcast_to(v, 3)[i]) for v in each] == pytest.approx([float(v) for v in single], rel=1e-12)


def test_absorbed_decode_reads_each_latent_once_for_all_heads():
    (k,) = attention_of("latent", Workload(4, 4 * 999), tp=8)
    assert k.flops == 2 * 4 * 16 * 1000 * (576 + 512)
    assert k.nbytes == 4 * 1000 * 576 * 2


def test_a_prompt_makes_keys_and_values_unless_it_chooses():
    work = Workload(prefill_seqs=1, prefill_tokens=4096)
    (whole,) = attention_of("latent", work)
    assert whole.flops == 2 * 128 * (4096 * 4097 / 2) * (192 + 128)
    scores, chosen = attention_of("chosen", work)
    assert scores.flops == 2 * 64 * 128 * (4096 * 4097 / 2)
    assert chosen.flops == 2 * 128 * (2048 * 2049 / 2 + 2048 * 2048) * (576 + 512)
    assert not any(k.place == "key" and k.form == "gemm" and np.any(k.count) for k in kernels_of("chosen", work))


def test_a_layer_that_takes_another_s_choice_scores_nothing():
    model = MODELS["chosen"]
    block = model.blocks[0]
    taken = replace(block.attention, indexer=replace(block.attention.indexer, own=False))
    model = replace(model, blocks=(replace(block, mixer=taken),))
    work = Workload(8, 8 * 50_000)
    made = layer_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
    assert {k.form for k in made if k.part == "attention" and np.any(k.count)} == {"sparse-decode"}


def test_blocks_are_chosen_for_each_kv_head():
    scores, attention = attention_of("blocks", Workload(2, 2 * 99_999), tp=4)
    assert attention.nbytes == 2 * 2048 * (128 + 128) * 2  # one KV head of four
    assert attention.flops == 2 * 2 * 16 * 2048 * (128 + 128)
    assert scores.nbytes == 2 * 100_000 * 128 * 2
    assert scores.flops == 2 * 2 * 128 * 100_000


def test_compressed_attention_sees_a_window_and_shared_entries():
    (all_of_them,) = attention_of("compressed", Workload(1, 127_999), kv_dtype="fp8")
    assert all_of_them.nbytes == (128 + 1000) * 584
    scores, best = attention_of("compressed and chosen", Workload(1, 127_999), kv_dtype="fp8")
    assert best.nbytes == (128 + 1024) * 584
    assert scores.nbytes == 32_000 * 132
    (window,) = attention_of("a window alone", Workload(1, 127_999), kv_dtype="fp8")
    assert window.nbytes == 128 * 584


def test_training_absorbs_nothing():
    """2 FLOPs a weight and token, and attention over keys of every head: as the model without a cache would have it."""
    model = MODELS["latent"]
    a, m = model.attention, model.attention.latent
    weights = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    layers, _ = forward_flops(model, 1024, causal=True)
    assert layers == pytest.approx(2 * weights + 2 * 128 * 1025 / 2 * (a.head_dim + a.v_head_dim))
    assert m.kv_rank == 512


def test_a_repeated_product_may_find_its_matrices_in_the_cache():
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


def test_every_form_has_constants_everywhere():
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
