"""The law of parts: what a bill charges for the shapes of published kernel tables, by its own path."""

import gzip
import json
import math
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax import catalog
from commtax.cost.attention import prefill_attention
from commtax.cost.forms import _tile_pairs
from commtax.cost.kernel import Kernel, KernelContext, KernelStep
from commtax.cost.kernels import least_s, seconds
from commtax.spec import Attention, Block, Plan, Workload
from commtax_lab.published.kernel_kinds.plain import product, with_rotating_weights
from commtax_lab.published.kernel_tables import tables_of_file
from commtax_lab.published.scoring.parts import LAWFUL, UNLIKE, _model, groups
from paths import FIXTURES

SAMPLE = FIXTURES / "kernel_shapes.json.gz"
CHIPS = ("a100-80-sxm", "h100-sxm", "b200-sxm", "b300-sxm", "gb200", "l40s")
MOST_EXPERTS, MOST_OTHERS = 0.12, 0.10
MORE = {"l40s": 0.005}  # of a sample that weighs engines alike: all of its rows are 9.8 % off
FEW = 12  # rows of a sample below which a median says little


@cache
def found():
    """Groups of the committed sample: rows of each chip, engine, kind and number format that a hash chose."""
    tables = json.loads(gzip.decompress(SAMPLE.read_bytes()))["tables"]
    return groups(table for t in tables for _, table in tables_of_file(t["name"], t["header"], t["rows"]))


def median_error(some):
    return math.expm1(float(np.median(np.abs(np.concatenate([g.errors for g in some])))))


@pytest.mark.parametrize("chip", CHIPS)
def test_experts_and_other_kernels_are_charged_what_tables_measured(chip):
    here = [g for g in found() if g.chip == chip and not g.why]
    experts, others = ([g for g in here if (g.kind == "experts") is yes] for yes in (True, False))
    assert median_error(experts) <= MOST_EXPERTS
    assert median_error(others) <= MOST_OTHERS + MORE.get(chip, 0.0)


def test_no_group_of_shapes_is_beyond_one_and_a_half_times():
    by_kernel = defaultdict(list)
    for g in found():
        if not g.why:
            by_kernel[g.chip, g.engine, g.kind].append(g.errors)
    medians = {key: abs(float(np.median(np.concatenate(e)))) for key, e in by_kernel.items() if sum(map(len, e)) >= FEW}
    assert len(medians) > 60
    assert {key: math.exp(m) for key, m in medians.items() if m > math.log(LAWFUL)} == {}


def test_what_no_engine_serves_so_is_told_with_its_reason():
    assert {g.why for g in found() if g.why} <= set(UNLIKE)
    assert all(fact["why"] for fact in UNLIKE.values())
    off = [g for g in found() if g.why == "untuned-fp8-experts"]
    assert np.median(np.concatenate([g.errors for g in off])) < -math.log(2)  # else it need not be told


@given(st.integers(1, 400), st.integers(0, 300), st.integers(0, 300), st.sampled_from((16, 64, 128)))
def test_tiles_of_a_prompt_see_every_key_that_any_of_their_queries_sees(new, past, window, tile):
    kernel = Kernel("prompt", "prefill", 1, 0.0, 0.0, length=new, past=past, shape=KernelContext(window))
    tiles = range(1, math.ceil(new / tile) + 1)
    most = [min(n * tile + past, window + tile) if window else n * tile + past for n in tiles]
    pairs = float(_tile_pairs(kernel, tile))
    assert pairs == pytest.approx(tile * sum(most))
    queries = (min(past + i + 1, window) if window else past + i + 1 for i in range(new))
    assert pairs >= sum(queries), "of whole tiles no fewer than of queries"


@pytest.mark.parametrize(
    ("framework", "mebibytes", "warm"), [("vllm", 8, 1.0), ("vllm", 32, 0.0), ("trtllm", 8, 1.0), ("trtllm", 80, 0.0)]
)
def test_tables_of_products_find_weights_in_the_cache_that_all_their_copies_fit_into(framework, mebibytes, warm):
    """vLLM's collector multiplies 6 matrices in turn, TensorRT-LLM's as many as fill the cache, at most 5: L40S holds 96 MB."""
    one = product(1.0, mebibytes * 2**9, 1024.0, "bf16", 2.0, 2.0)
    kept = with_rotating_weights(one, {"framework": framework, "written": "bfloat16"}, {"l2_bytes": np.array(96e6)}).shape.kept
    assert float(kept) / (mebibytes * 2**20) == pytest.approx(warm, abs=0.1)


@pytest.mark.parametrize("chip", ["l40s", "h100-sxm"])
def test_activations_stay_in_a_cache_where_that_was_measured_and_weights_never(chip):
    """A product of few columns whose activations fit, beside one of a wide matrix; nothing goes below what is moved."""
    here, constants = catalog.chip(chip), catalog.kernel_constants(catalog.engine("vllm"), catalog.chip(chip))
    narrow, wide = product(8192.0, 256.0, 2048.0, "bf16", 2.0, 2.0), product(16.0, 16384.0, 8192.0, "bf16", 2.0, 2.0)
    from_memory_s = narrow.nbytes / here.memory_Bps
    assert bool(sum(seconds(narrow, here, constants)) < from_memory_s) is (chip == "l40s")
    assert sum(seconds(wide, here, constants)) > wide.nbytes / here.memory_Bps
    assert all(sum(seconds(one, here, constants)) >= least_s(one, here, constants) for one in (narrow, wide))


def test_a_step_charges_the_write_of_keys_and_values_by_itself():
    """Tables of prompts time it with attention; a step has a kernel for it."""
    attention, engine = Attention(32, 8, 128, 128), catalog.engine("vllm")
    step = KernelStep(_model(Block(None, None), 4096), Plan(), Workload(0, 0, 4, 4096, 0), 4096, engine)
    assert [one.shape.written for one in prefill_attention(step, attention, 1)] == [0.0]
