"""Chips, models and number formats under the names that people write."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name, find_device_chip
from commtax.spec import DTYPE_BYTES
from commtax_lab.published.spellings import dtype_named, engine_named, model_named
from each import each
from tables import tables

DATA = tables(__file__)

CHIPS = [key for key in catalog.keys("chips") if catalog.chip(key).vendor != "generic"]


@each("key", CHIPS)
def test_every_chip_is_known_under_its_usual_spellings(key):
    """As a key, a file's name, a driver's or a shop's name, so many of them, without separators, beside an engine."""
    chip = catalog.chip(key)
    under = key.replace("-", "_")
    written = [key, under, key.upper(), chip.name, f"8x{key}", f"2x8x{key.upper()}", under.replace("_", ""), *chip.aliases]
    written += [f"{under}_vllm", f"{under}_trtllm_1.2.0", f"{chip.vendor} {key.replace('-', ' ')}", f"{key} x8", chip.name.upper()]
    assert {text: find_chip_name(text) for text in written} == dict.fromkeys(written, key)


@each(("text", "key"), DATA["chips_as_tables_and_drivers_write_them"])
def test_chips_as_tables_and_drivers_write_them(text, key):
    assert find_chip_name(text) == key


KNOWN_DEVICES = DATA["known_devices"]
UNKNOWN_DEVICES = (
    *(
        "NVIDIA GeForce RTX 2080 Ti",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
    ),
    *("NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation", "Quadro RTX 6000", "NVIDIA TITAN RTX", "NVIDIA A10G", "NVIDIA L40"),
    *("NVIDIA A30", "NVIDIA A800-SXM4-80GB", "NVIDIA A100-SXM-64GB", "Tesla V100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
    *("NVIDIA A40-48Q", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "AMD Instinct MI300A", "AMD Instinct MI250X", "NVIDIA H100L 94GB"),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
)


def test_a_driver_says_what_a_chip_is():
    """Names as nvidia-smi and rocm-smi print them: every word of one must be the chip's, else it is none that is known."""
    assert {name: find_device_chip(name) for name in KNOWN_DEVICES} == KNOWN_DEVICES
    assert {name: find_device_chip(name) for name in UNKNOWN_DEVICES} == dict.fromkeys(UNKNOWN_DEVICES, "")


@each("key", catalog.keys("models"))
def test_every_model_is_known_without_its_organisation(key):
    for name in (key, key.upper().replace("-", "_"), f"somebody/{key}", *catalog.model(key).aliases):
        found = model_named(name)
        assert found is not None, name
        assert found.key == key, name


@each(("text", "key"), DATA["models_as_tables_write_them"])
def test_models_as_tables_write_them(text, key):
    assert model_named(text).key == key


@pytest.mark.parametrize("text", ["", "nobody/knows", "GPT-39B", "llama", "instruct", "fp8", "70b"])
def test_what_is_no_model_is_none(text):
    assert model_named(text) is None


def test_number_formats():
    assert all(dtype_named(name) == name for name in DTYPE_BYTES if name != "fp4")
    spelled = {"bfloat16": "bf16", "BF16": "bf16", "fp8_block": "fp8", "FP8-E4M3": "fp8", "int4_wo": "int4", "fp4": "nvfp4"}
    assert {name: dtype_named(name) for name in spelled} == spelled
    assert dtype_named("base7") == dtype_named("") == ""


def test_engines_in_file_names():
    assert engine_named("h200_sxm_trtllm_gemm") == "trtllm"
    assert engine_named("b60_vllm") == "vllm"
    assert engine_named("h100_sxm_gemm") == ""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_names_a_chip_of_the_catalogue_or_none(text):
    assert find_chip_name(text) in (*CHIPS, "")
    found = model_named(text)
    assert found is None or re.search(r"[a-z]", found.key)
