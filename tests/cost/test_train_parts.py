"""Parts of training that recipes switch: adapters alone (LoRA), recomputed modules, fused experts, pages of published results."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.cost.adapters import trained_params
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax_lab.published import training
from commtax_lab.published.training import row_of_page
from tables import tables

DATA = tables(__file__)

PAGE = DATA["page"]


def trained(rank=0, model="llama-3.1-8b", **options):
    plan = {"dp": 8, "batch": 4, "context": 4096, "zero": 1, **options}
    return commtax.train_bill(model, "8xh100-sxm", engine="megatron", lora_rank=rank, **plan)


@given(rank=st.sampled_from([1, 8, 64, 256]), zero=st.sampled_from([0, 1]), tp=st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=8)
def test_adapters_alone_need_no_more_time_gradients_or_state_than_the_whole_model(rank, zero, tp):
    alone, whole = (trained(r, zero=zero, tp=tp, dp=8 // tp) for r in (rank, 0))
    assert alone.step_s < whole.step_s
    assert alone.memory.gradients < whole.memory.gradients
    assert alone.memory.optimizer < whole.memory.optimizer
    assert alone.memory.parameters >= whole.memory.parameters
    assert alone.model_flops("causal") < whole.model_flops("causal")


def test_only_adapters_are_counted_summed_and_updated():
    """Llama 3.1 8B: every layer has q and o (4096 + 4096), k and v (4096 + 1024), gate, up and down (4096 + 14336)."""
    each = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    model, engine = catalog.model("llama-3.1-8b"), catalog.engine("megatron")
    assert sum(trained_params(model, Plan(lora_rank=16), engine).values()) == 16 * 32 * each
    sent = [x for x in trained(16, zero=0).lines if x.item.axis == "dp" and x.item.is_sent]
    assert sum(x.item.nbytes * x.item.count for x in sent) == pytest.approx(16 * 32 * each * 4)


def test_frozen_products_have_no_weight_gradient():
    lines = [x for x in trained(16).lines if x.item.stage == "weight-gradient" and x.total_s > 0]
    assert {x.item.part for x in lines} == {"adapters"}


def test_training_has_one_set_of_adapters():
    with pytest.raises(Refusal, match="one set of adapters"):
        trained(16, max_loras=2)


def test_a_page_tells_what_its_table_leaves_out_and_lora_is_priced_unfitted():
    row = training.whole_rows([PAGE])[0]
    assert (row["model"], training.lora_rank_of(row)) == ("LLAMA3_70B", 16)
    asked = training.row_questions([PAGE])[0]
    run = asked.question
    assert run["engine"] == "megatron-bridge@26.04"
    assert asked.entries[0].measured == pytest.approx(32 * 4096 / (8 * 7481))
    assert float(commtax.train_bill(**run).step_s) == pytest.approx(asked.entries[0].measured, rel=0.2)


def test_a_row_without_headings_stays_as_it_is():
    assert row_of_page({"model": "x", "section": ""}) == {"model": "x", "section": ""}


@pytest.mark.parametrize("name", ["DeepSeekV3 (first 8 layers)", "DeepSeek-V3, 8-layer proxy", "first 8 layers of DeepSeekV3"])
def test_first_layers_of_a_model(name):
    cut, whole = training.model_of({"model": name, "seq": "4096"}), catalog.model("deepseek-v3")
    assert (cut.num_layers, cut.mtp) == (8, ())
    assert [cut.blocks[i] for i in cut.layers] == [whole.blocks[i] for i in whole.layers[:8]]


def test_more_layers_than_a_model_has():
    with pytest.raises(Refusal, match="61 layers, not 99"):
        training.model_of({"model": "DeepSeekV3 (first 99 layers)", "seq": "4096"})


FUSED = {"dp": 8, "ep": 8, "batch": 64, "micro_batch": 8, "context": 4096, "dtype": "mxfp8"}


def test_fused_experts_are_never_slower_and_wait_for_no_host():
    new, old = (
        commtax.train_bill("qwen3-30b-a3b", "2x4xgb300", engine=f"megatron-bridge@{v}", **FUSED) for v in ("26.06", "26.04")
    )
    assert new.step_s < old.step_s
    assert not [x for x in new.lines if x.item.what == "launches of experts" and x.total_s > 0]


def test_all_experts_rows_are_cast():
    """Two casts of 64 tokens' copies beside each other: as many bytes as rows times columns, however many experts share them."""
    bill = commtax.train_bill("qwen3-30b-a3b", "2x4xgb300", engine="megatron-bridge@26.04", **FUSED)
    cast = next(x for x in bill.lines if x.item.what == "experts gate and up cast")
    copies = 8 * 4096 * 8
    assert cast.item.nbytes == pytest.approx(copies * 2048 * 4)


MIXTURE = {"dp": 8, "ep": 8, "batch": 4, "context": 4096, "zero": 1}


@given(modules=st.lists(st.sampled_from(["core_attn", "layernorm", "moe", "moe_act"]), unique=True, min_size=1))
@settings(deadline=None, max_examples=6)
def test_modules_that_are_recomputed_take_time_and_free_memory(modules):
    none, some = (
        commtax.train_bill("qwen3-30b-a3b", "8xh100-sxm", engine="megatron", recompute=kind, **MIXTURE)
        for kind in ("none", ",".join(modules))
    )
    assert some.step_s >= none.step_s
    assert some.memory.activations <= none.memory.activations


def test_modules_have_names():
    with pytest.raises(Refusal, match="core_attn, layernorm"):
        trained(recompute="attention")


@pytest.mark.parametrize("dp", [128, 64])
def test_llama_405b_fits_as_it_was_trained(dp):
    """Table 4 of arXiv:2407.21783, without recomputation on 80 GB, with ZeRO 1 as well as 2."""
    plan = {"tp": 8, "pp": 16, "dp": dp, "batch": 2048 // dp, "context": 8192, "schedule": "interleaved", "chunks": 8, "zero": 1}
    assert commtax.train_fit("llama-3.1-405b", f"{dp * 16}x8xh100-sxm", engine="llama3", **plan).fits
