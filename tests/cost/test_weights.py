"""Weights over ranks: they sum to the model plus what is named as replicated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from commtax import catalog
from commtax.cost.inventory import (
    FIRST,
    copies,
    inventory,
    num_params,
    rank_tensors,
    share,
    stage_layers,
    total_bytes,
    weight_bytes,
)
from commtax.cost.memory import weights
from commtax.cost.placement import expert_ranks
from commtax.spec import Plan
from each import each
from strategies import models, powers, questions

TORCH = catalog.engine("torch")


@given(questions(engines=("torch",), max_dp=1))
def test_ranks_sum_to_the_model_plus_named_replication(question):
    model, _, plan, engine = question
    pp = plan.pp
    stages = [weights(model, plan, engine, s, pp) for s in range(pp)]
    unique = sum(plan.tp * (w.nbytes - w.replicated_bytes) for lines in stages for w in lines)
    table = inventory(model)[0]
    second_copy = weight_bytes(model, table, plan) if model.tied and pp > 1 else 0  # the last stage's own table
    padding = (np.ceil(model.vocab / plan.tp) * plan.tp / model.vocab - 1) * weight_bytes(model, table, plan)
    assert abs(unique - total_bytes(model, plan) - second_copy) <= 2 * padding + 1e-6 * unique


@given(models, powers)
def test_what_is_replicated_is_named_by_its_split(model, tp):
    """Without padding a rank holds more than 1/tp of a tensor only if the tensor is not split that far."""
    plan = Plan(tp=tp)
    for row in rank_tensors(model, plan, TORCH, 0, 1):
        more = row.bytes_per_rank > row.ideal_bytes * (1 + 1e-12)
        split = row.tensor.split
        assert not more or split in ("full", "expert_bias", "vocab") or (split == "kv" and tp > row.tensor.units)


@given(questions(engines=("vllm",), max_dp=4))
def test_experts_are_held_once_by_the_group(question):
    """The ranks of an expert-parallel group hold each expert exactly once between them."""
    model, _, plan, engine = question
    experts = [t for t in inventory(model) if t.part == "experts" and t.split == "expert"]
    for t in experts:
        assert share("expert", model, plan, engine) * plan.ep * expert_ranks(plan, engine).inside == pytest.approx(1)
        assert t.where != FIRST


@given(models, powers)
def test_scalar_equals_array(model, tp):
    tps = np.array([1, tp, 2 * tp])
    rows = rank_tensors(model, Plan(tp=tps), TORCH, 0, 1)
    for i, degree in enumerate(tps):
        alone = rank_tensors(model, Plan(tp=int(degree)), TORCH, 0, 1)
        for many, one in zip(rows, alone, strict=True):
            assert np.broadcast_to(many.bytes_per_rank, 3)[i] == one.bytes_per_rank


@each("key", ["llama-3.1-8b", "llama-3.1-405b", "gemma-3-27b", "deepseek-v3"])
@each("pp", [1, 2, 3, 5, 7, 8, 16])
def test_stages_cover_the_layers_once(key, pp):
    model = catalog.model(key)
    stages = stage_layers(model, pp)
    assert [i for r in stages for i in r] == list(range(model.num_layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


def test_opt_at_tp2_reconciled_to_the_tensor():
    """About 1.24 GiB per rank, as the lab's capture has it: half of every matrix and bias that splits, all of the rest."""
    model, plan = catalog.model("opt-1.3b"), Plan(tp=2)
    h, f, layers, rows = 2048, 8192, 24, 50272
    split = rows * h // 2 + layers * (4 * h * h + 3 * h + 2 * h * f + f) // 2  # table; q k v o, their biases, fc1 and fc2
    whole = 2050 * h + layers * (h + h + 4 * h) + 2 * h  # positions; biases of o and fc2; norms
    per_rank = sum(w.nbytes for w in weights(model, plan, TORCH, 0, 1))
    assert per_rank == 2 * (split + whole)
    assert per_rank / 2**30 == pytest.approx(1.24, rel=0.01)
    assert 2 * num_params(model) / 2**30 == pytest.approx(2.48, rel=0.015)


def test_sums_are_of_copies():
    model = catalog.model("mixtral-8x7b")
    assert num_params(model) == sum(t.size * copies(model, t) for t in inventory(model))


def test_weights_in_another_type():
    model = catalog.model("llama-3.1-70b")
    linear = sum(t.size * copies(model, t) for t in inventory(model) if t.linear)
    fp8 = total_bytes(model, Plan(weights_dtype="fp8"))
    assert fp8 == pytest.approx(linear + 2 * (num_params(model) - linear), rel=1e-6)
    assert total_bytes(model, Plan(weights_dtype="bf16")) == 2 * num_params(model)
    assert total_bytes(replace(model, dtype="fp32"), Plan()) == 4 * num_params(model)
