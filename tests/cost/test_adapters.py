"""LoRA adapters: bytes by hand, laws of their size and time, rules, launch commands there and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.cost.inventory import inventory
from commtax.statement import Refusal
from tables import tables

DATA = tables(__file__)

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MODELS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "qwen3.5-27b", "nemotron-3-nano-30b-a3b")


def slots(model, tp=1, **options):
    """Bytes of the adapters' slots on a rank."""
    judged = commtax.fit(model, "8xb200-sxm", tp=tp, **options)
    return next((float(line.nbytes) for line in judged.weights if line.part == "LoRA adapters"), 0.0)


def test_bytes_by_hand():
    """Llama-3.1-8B, rank 16: q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 14336, 32 layers, 2 bytes.

    Over 4 ranks: A of q, k, v, gate and up stays whole and B is a quarter; of o and down it is the other way round.
    """
    whole = 32 * 16 * 2 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert whole == 83_886_080
    assert slots("llama-3.1-8b", lora_rank=16) == whole
    quarter = (4096 + 1024) + 2 * (4096 + 256) + 2 * (4096 + 3584) + (1024 + 4096) + (3584 + 4096)
    assert slots("llama-3.1-8b", tp=4, lora_rank=16) == 32 * 16 * 2 * quarter


def test_every_expert_has_a_pair():
    """Mixtral, rank 8: attention's as ever, and eight times three matrices of 4096 x 14336 a layer; the router has none."""
    experts = 8 * 3 * (4096 + 14336)
    attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    assert slots("mixtral-8x7b", lora_rank=8) == 32 * 8 * 2 * (experts + attention)


@settings(max_examples=20)
@given(st.sampled_from(MODELS), st.sampled_from(RANKS), st.integers(1, 8))
def test_bytes_are_linear_in_rank_and_number(model, rank, number):
    one = slots(model, tp=8, lora_rank=1)
    assert one > 0
    assert slots(model, tp=8, lora_rank=rank, max_loras=number) == pytest.approx(one * rank * number, rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_tensor_parallelism_saves_less_than_its_share(model):
    """One half of each pair is split and the other is whole, so that ranks together hold more than one copy."""
    whole, eighth = slots(model, lora_rank=16), slots(model, tp=8, lora_rank=16)
    assert whole / 8 < eighth < whole


@settings(max_examples=20)
@given(st.sampled_from(MODELS[:4]), st.sampled_from(["decode", "prefill", "mixed"]), st.integers(1, 64))
def test_adapters_add_time_and_none_adds_none(model, phase, batch):
    plain, none, few, many = (
        commtax.bill(model, "8xb200-sxm", tp=8, phase=phase, batch=batch, context=512, **options)
        for options in ({}, {"lora_rank": 0}, {"lora_rank": 8}, {"lora_rank": 64, "max_loras": 4})
    )
    assert none == plain
    assert plain.step_s < few.step_s < many.step_s
    added = [line for line in few.lines if line.item.part == "adapters"]
    assert [line for line in plain.lines if line.item.part == "adapters"] == []
    assert sum(float(line.item.count) for line in added) == 2 * sum(
        len({t.name for t in inventory(plain.question.model) if t.linear and t.where == kind and _leads(t.name)})
        * plain.question.model.layers.count(kind)
        for kind in range(len(plain.question.model.blocks))
    )


def _leads(name):
    """Whether it is the first of the modules that engines pack into one."""
    return not name.endswith(("k_proj.weight", "v_proj.weight")) and not ("up_proj" in name and "gate" not in name)


def test_serving_with_adapters_is_slower():
    plain = commtax.simulate("llama-3.1-8b", "1xh100-sxm", concurrency=8)
    adapted = commtax.simulate("llama-3.1-8b", "1xh100-sxm", concurrency=8, lora_rank=64, max_loras=4)
    assert adapted.tpot_s > plain.tpot_s


@pytest.mark.parametrize(("options", "argument", "nearest"), DATA["rules"])
def test_rules(options, argument, nearest):
    with pytest.raises(Refusal) as refused:
        commtax.fit("mixtral-8x7b", "8xh100-sxm", **{"tp": 4, **options})
    assert refused.value.argument == argument
    assert tuple(refused.value.nearest) == nearest


def test_training_has_one_set_of_adapters():
    asked = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train", "--lora-rank", "8")
    assert "LoRA rank 8" in run_here(*asked).stdout
    assert run_here(*asked, "--max-loras", "2").returncode == 2


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ("--enable-lora", "--max-lora-rank 32", "--max-loras 4")),
        ("sglang", ("--enable-lora", "--max-lora-rank 32", "--max-loras-per-batch 4")),
        ("trtllm", ("lora_config:", "max_lora_rank: 32", "max_loras: 4")),
    ],
)
def test_commands_say_them(engine, words):
    asked = ("-c", "1xh100-sxm", "--engine", engine, "--lora-rank", "32", "--max-loras", "4", "--emit", engine)
    said = run_here("bill", "llama-3.1-8b", *asked).stdout
    assert all(word in said for word in words)


def test_commands_are_read_back():
    pasted = "vllm serve meta-llama/Llama-3.1-8B --enable-lora --max-lora-rank 64 --max-loras 2"
    direct = run_here("fit", "llama-3.1-8b", "-c", "1xh100-sxm", "-tp", "1", "--lora-rank", "64", "--max-loras", "2").stdout
    adapters = next(line for line in direct.splitlines() if "LoRA adapters" in line)
    assert adapters in run_here("fit", "-c", "1xh100-sxm", "--from", pasted).stdout
    usual = run_here("fit", "-c", "1xh100-sxm", "--from", "vllm serve meta-llama/Llama-3.1-8B --enable-lora").stdout
    assert "80 MiB" in next(line for line in usual.splitlines() if "LoRA adapters" in line)
    without = run_here("fit", "-c", "1xh100-sxm", "--from", "vllm serve meta-llama/Llama-3.1-8B --max-lora-rank 64").stdout
    assert "LoRA" not in without
