"""AMD's chips: number formats run in their own arithmetic, watts hold the clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import peak, power_clock, seconds
from tables import tables

DATA = tables(__file__)

CHIP = catalog.chip("mi355x")
AITER = DATA["aiter"]


def product(m, n, k):
    return Kernel(
        "x", "gemm", 1, 2.0 * m * n * k, 2.0 * m * k + 0.53125 * n * k + 2.0 * m * n, m, n, k, "bf16", 0.53125, stored="mxfp4"
    )


@pytest.mark.parametrize(("m", "n", "k", "took"), AITER)
def test_products_in_mxfp4_run_in_fp4_arithmetic(m, n, k, took):
    for engine in ("vllm", "sglang", "vllm-rocm"):
        constants = catalog.kernel_constants(catalog.engine(engine), CHIP)
        assert peak(product(m, n, k), CHIP, constants) == CHIP.flops_per_s["fp4"]
        assert sum(seconds(product(m, n, k), CHIP, constants)) == pytest.approx(took, rel=0.12)


def test_weights_in_mxfp4_are_unpacked_where_nothing_multiplies_them():
    for key in ("mi300x", "h100-sxm"):
        chip = catalog.chip(key)
        constants = catalog.kernel_constants(catalog.engine("vllm"), chip)
        assert peak(product(256, 4096, 4096), chip, constants) == chip.flops_per_s["bf16"]


@given(st.integers(1, 4096), st.sampled_from(["mi350x", "mi355x"]), st.sampled_from(["vllm", "sglang"]))
def test_narrower_weights_are_never_slower(batch, chip, engine):
    formats = ("mxfp4", "fp8", "bf16")
    steps = [
        commtax.bill("llama-3.1-70b", f"2x{chip}", tp=2, batch=batch, context=256, dtype=d, engine=engine).step_s for d in formats
    ]
    assert steps == sorted(steps)


@given(st.floats(200, 3000))
def test_watts_hold_the_clock_and_never_raise_it(watts):
    table = catalog.kernel_constants(catalog.engine("vllm"), CHIP).tables["step.bf16"]
    assert 0 < power_clock(replace(CHIP, tdp_w=watts), table) <= 1
    assert power_clock(CHIP, table) == 1
    assert power_clock(catalog.chip("mi350x"), table) == pytest.approx(0.84, abs=0.01), "1,000 W where MI355X has 1,400"
