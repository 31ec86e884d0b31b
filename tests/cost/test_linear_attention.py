"""Linear attention, passes over activations and encoders: laws of their forms, their rows that were not fitted, a layer's sums."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax import catalog
from commtax.catalog import physics
from commtax.cost.attention import quantise_kernel
from commtax.cost.attention_kinds import (
    convolved,
    convolved_further,
    delta_scanned,
    space_scanned,
    streams_read,
    streams_written,
    updated,
)
from commtax.cost.caches import state_bytes_per_layer
from commtax.cost.compute import encoder_attention, step_kernels
from commtax.cost.forms import from_memory, norm
from commtax.cost.inventory import inventory
from commtax.cost.kernels import kernel_sigma, kernel_source, least_s, seconds
from commtax.cost.layer_forms import CHIP_FORMS, chunked_scan, convolution, stream
from commtax.spec import Block, DeltaNet, Hyper, Mamba2, Plan, Workload
from commtax_lab.published.kernel_kinds import linear as kinds
from commtax_lab.published.kernel_tables import read as read_kernels
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.kernel_scores import answers
from commtax_lab.published.tables import read
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)

TABLES = SHARED / "kernels_more"
CHIPS = ("a100-80-sxm", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "b300-sxm", "gb200", "mi300x")
ENGINES = ("vllm", "sglang", "trtllm", "textbook")
BARS = DATA["bars"]
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


@given(forms, st.sampled_from(CHIPS), st.sampled_from(ENGINES), counts, st.integers(1, 16384), st.integers(1, 96))
def test_no_kernel_beats_its_bytes_or_its_arithmetic(form, chip, engine, sequences, tokens, heads):
    chip = catalog.chip(chip)
    constants = catalog.kernel_constants(catalog.engine(engine), chip)
    one = made(form, sequences, tokens, heads)
    assert sum(seconds(one, chip, constants)) >= least_s(one, chip, constants) * (1 - 1e-9)


@given(forms, st.sampled_from(CHIPS), st.sampled_from(ENGINES[:3]), counts, st.integers(1, 8192), st.integers(1, 96))
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


def test_states_of_many_sequences_come_from_memory_whatever_the_cache():
    chip = catalog.chip("l40s")
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    cold, warm = (updated("gdn-update", 8, 1, 32 * 128 * 128, 8.0, cold=c) for c in (True, False))
    assert sum(seconds(cold, chip, constants)) > 1.5 * sum(seconds(warm, chip, constants))


def test_rows_that_were_not_fitted_lie_within_the_stated_errors():
    records = check(only="kernels").records
    for kind, bar in BARS.items():
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


def test_prompts_scan_and_new_tokens_update():
    model = of_layers(Block(GATED, None, 1), Block(MAMBA, None, 1))
    for work, gone in zip(WORKS, ("prefill", "decode"), strict=True):
        kernels = step_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
        assert all(k.count == 0 for k in kernels if k.place == gone)
        assert sum(k.count for k in kernels if k.place and k.place != gone and k.part == "attention") == 4


def test_hyper_connections_stand_around_each_half_of_a_layer():
    model = of_layers(Block(GATED, LLAMA.blocks[0].ffn, 2), Block(MAMBA, None, 1), hyper=Hyper(4))
    work = WORKS[1]
    kernels = step_kernels(model, Plan(), work, work.rows, catalog.engine("vllm"))
    runs = {form: sum(k.count for k in kernels if k.form == form) for form in ("mhc-pre", "mhc-post")}
    assert runs == {"mhc-pre": 3, "mhc-post": 3}


def test_what_nobody_timed_says_so_and_is_wide():
    chip, scanned = catalog.chip("h100-sxm"), space_scanned("ssd-scan", 1, 1024, 8, 64, 128, 64)
    constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
    assert kernel_source(scanned, constants).kind == "assumed"
    assert kernel_sigma(scanned, constants) >= 0.3
    timed = delta_scanned("gdn-scan", 1, 1024, 16, 32, 128, 128)
    assert kernel_source(timed, constants).kind == "calibrated"
    ampere = catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("a100-80-sxm"))
    assert kernel_source(timed, ampere).kind == "assumed"


def test_what_engines_time_one_at_a_time_is_not_what_a_step_pays():
    chip, engine = catalog.chip("b200-sxm"), catalog.engine("trtllm")
    step, alone = (catalog.kernel_constants(engine, chip, timed=timed) for timed in (False, True))
    assert step.tables["gemm.nvfp4"] == catalog.kernel_constants(catalog.engine("vllm"), chip).tables["gemm.nvfp4"]
    assert alone.tables["gemm.nvfp4"] != step.tables["gemm.nvfp4"]


def test_every_form_has_constants_on_every_chip():
    for chip in CHIPS:
        for engine in ENGINES:
            tables = catalog.kernel_constants(catalog.engine(engine), catalog.chip(chip)).tables
            assert {f"{form}.bf16" for form in CHIP_FORMS} <= set(tables)


def test_kernels_of_tables_are_told_by_phase_where_their_name_is_new():
    size = {"batch_size": 2.0, "seq_len": 64.0, "d_conv": 4.0, "nheads": 16.0, "head_dim": 64.0, "n_groups": 4.0, "d_state": 128.0}
    words = {"framework": "vllm", "version": "1", "dtype": "bf16", "stored": "bf16", "written": "bfloat16"}
    mamba = next(kind for kind in kinds.KINDS if kind.tail == "mamba2")
    for phase, form in (("context", "ssd-scan"), ("generation", "ssd-update")):
        (one,) = mamba.make({**words, "phase": phase, "kernel_source": "a_new_kernel"}, size)
        assert one.form == form
    assert CHIP_FORMS["ssd-update"] is stream


def test_constants_of_kernels_timed_alone_are_physical():
    for chip, engine in product(CHIPS, ENGINES[:3]):
        tables = catalog.kernel_constants(catalog.engine(engine), catalog.chip(chip), timed=True).tables
        own = {name: c for name, c in tables.items() if name.partition(".")[0] in ("gemm", "prefill", "decode", *CHIP_FORMS)}
        for name, table in own.items():
            for key, value in table.items():
                physics.KERNEL[key].read(value, f"{chip} {name}.{key}")
