"""Chips, models and number formats under the names that people write."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import catalog
from commtax.readers.published.spellings import chip_named, device_named, dtype_named, engine_named, model_named
from commtax.spec import DTYPE_BYTES
from each import each

CHIPS = [key for key in catalog.keys("chips") if catalog.chip(key).vendor != "generic"]


@each("key", CHIPS)
def test_every_chip_is_known_under_its_usual_spellings(key):
    """As a key, a file's name, a driver's or a shop's name, so many of them, without separators, beside an engine."""
    chip = catalog.chip(key)
    under = key.replace("-", "_")
    written = [key, under, key.upper(), chip.name, f"8x{key}", f"2x8x{key.upper()}", under.replace("_", ""), *chip.aliases]
    written += [f"{under}_vllm", f"{under}_trtllm_1.2.0", f"{chip.vendor} {key.replace('-', ' ')}", f"{key} x8", chip.name.upper()]
    assert {text: chip_named(text) for text in written} == dict.fromkeys(written, key)


@each(
    ("text", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("H100 80GB PCIe", "h100-pcie"),
        ("A100-80GB-SXM", "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40-pcie"),
        ("a100_40gb", "a100-40-sxm"),
        ("h200_sxm", "h200-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("gb300", "gb300"),
        ("GB300 NVL72", "gb300"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("b60", "arc-pro-b60"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("rtx_pro_6000_server", "rtx-pro-6000-server"),
        ("rtx_pro_6000_blackwell_server_edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("RTXPRO6000", "rtx-pro-6000"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD_Instinct_MI355X", "mi355x"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("Tesla V100-SXM2-16GB", "v100-16-sxm"),
        ("H100-96GB-HBM2e-500W", "h100-96-hbm2e"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("DGX H100", "h100-sxm"),
        ("4 x H100", "h100-sxm"),
        ("NVIDIA GB10", "gb10"),
        ("RTX 6000 Ada", ""),
        ("L40", ""),
        ("A10G", ""),
        ("A1000", ""),
        ("gaudi2", ""),
        ("", ""),
    ],
)
def test_chips_as_tables_and_drivers_write_them(text, key):
    assert chip_named(text) == key


KNOWN_DEVICES = {
    "NVIDIA A100-SXM4-80GB": "a100-80-sxm",
    "NVIDIA A100-SXM4-40GB": "a100-40-sxm",
    "NVIDIA A100 80GB PCIe": "a100-80-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-40-pcie",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H20": "h20",
    "NVIDIA H20-3e": "h20-3e",
    "NVIDIA GH200 480GB": "gh200-96",
    "NVIDIA B200": "b200-sxm",
    "NVIDIA B300 SXM6 AC": "b300-sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA A10": "a10",
    "NVIDIA A40": "a40",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-32GB": "v100-32-sxm",
    "AMD Instinct MI300X OAM": "mi300x",
}
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
    assert {name: device_named(name) for name in KNOWN_DEVICES} == KNOWN_DEVICES
    assert {name: device_named(name) for name in UNKNOWN_DEVICES} == dict.fromkeys(UNKNOWN_DEVICES, "")


@each("key", catalog.keys("models"))
def test_every_model_is_known_without_its_organisation(key):
    for name in (key, key.upper().replace("-", "_"), f"somebody/{key}", *catalog.model(key).aliases):
        found = model_named(name)
        assert found is not None, name
        assert found.key == key, name


@each(
    ("text", "key"),
    [
        ("LLAMA3_70B", "llama-3.1-70b"),
        ("LLAMA31_405B", "llama-3.1-405b"),
        ("Llama 3 8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("RedHatAI/Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b"),
        ("DeepSeekV3", "deepseek-v3"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("NEMOTRONH_56B", "nemotron-h-56b"),
        ("zhipuai/GLM-5", "glm-5"),
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5"),
    ],
)
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
    assert chip_named(text) in (*CHIPS, "")
    found = model_named(text)
    assert found is None or re.search(r"[a-z]", found.key)
