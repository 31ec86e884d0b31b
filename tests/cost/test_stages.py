"""Interleaved pipelines of any number of layers: the layout, its pace, what it keeps, and its way to Megatron and back."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.cost.schedules import SCHEDULES, fill_factor, idle_s, kept_layers, most_chunks, virtual_layers
from commtax.launch.megatron_command import layout_of, layout_text, stages
from commtax.launch.read_command import parse
from commtax.launch.writing import launch_command
from commtax.question import Question
from commtax.sim.pipeline import Durations, run
from commtax.spec import Plan
from commtax.verbs.fitting import fits
from each import each

META = {"tp": 8, "pp": 16, "dp": 128, "batch": 16, "context": 8192, "sequence_parallel": True}
shapes = st.tuples(st.integers(1, 200), st.integers(1, 16), st.integers(1, 8)).filter(
    lambda s: s[2] <= max(1, most_chunks(s[0], s[1]))
)


def simulated(layers, pp, chunks, microbatches):
    factors = [float(n) for chunk in virtual_layers(layers, pp, chunks) for n in chunk]
    return run(SCHEDULES["interleaved"], pp, microbatches, Durations(1.0, 1.0, 1.0, stage_factors=factors), chunks)


@given(shapes)
def test_a_layout_has_all_layers_as_even_as_can_be(shape):
    layers, pp, chunks = shape
    layout = virtual_layers(layers, pp, chunks)
    sizes = [n for chunk in layout for n in chunk]
    ranks = [sum(column) for column in zip(*layout, strict=True)]
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert max(ranks) - min(ranks) <= 1
    assert sum(map(max, layout)) == max(ranks) == math.ceil(layers / pp), "no rank waits for another's larger chunk"
    assert chunks == 1 or pp == 1 or all(sizes[1:-1])
    if layers % pp:
        assert ranks[-1] == sizes[-1] * chunks or ranks[-1] < max(ranks), "the head's rank is not the fullest"


@given(shapes, st.integers(1, 6))
def test_as_many_activations_are_kept_as_the_schedule_has_in_flight(shape, rounds):
    layers, pp, chunks = shape
    assume(chunks > 1 and pp > 1)
    layout, order = virtual_layers(layers, pp, chunks), SCHEDULES["interleaved"].order(pp, rounds * pp, chunks)
    most = 0
    for rank, ops in enumerate(order.ranks):
        held = 0
        for kind, _, chunk in ops:
            held += layout[chunk][rank] * (1 if kind == "F" else -1)
            most = max(most, held)
    assert kept_layers(layers, pp, chunks, rounds * pp) == most


@each("layers", [126, 94, 61, 80])
@each("pp", [4, 8, 16])
@each("chunks", [2, 3, 4])
@each("rounds", [1, 4])
def test_the_closed_form_agrees_with_the_run_schedule(layers, pp, chunks, rounds):
    m, most = rounds * pp, math.ceil(layers / pp)
    formula = 3 * most * m + float(idle_s("interleaved", pp, chunks, most, most, most) * fill_factor(layers, pp, chunks))
    span = simulated(layers, pp, chunks, m).span_s
    assert span == pytest.approx(formula, rel=0.1)
    if layers % (pp * chunks) == 0:
        assert span == pytest.approx(formula)


@given(shapes)
def test_a_layout_reads_back(shape):
    layers, pp, chunks = shape
    assume(pp * chunks > 1)
    layout = virtual_layers(layers, pp, chunks)
    assert layout_of(layout_text(layout), pp) == layout


def test_layouts_as_megatron_writes_them():
    assert stages("Et*3|(tt|)*29,m|L") == ["Ettt", *["tt"] * 29, "m", "L"]
    assert layout_of("Et*3|(tt|)*29,m|L", 16)[0][:2] == (3, 2)
    for wrong, says in (("Ex|L", "not 'x'"), ("t*999999999|L", "more than"), ("E|t|L", "pp=2 does not divide")):
        with pytest.raises(ValueError, match=says.replace("|", r"\|")):
            layout_of(wrong, 2)


@given(
    st.sampled_from(["llama-3.1-405b", "qwen3-235b-a22b", "deepseek-v3", "llama-3.1-8b"]),
    st.sampled_from([2, 3, 4, 8, 16]),
    st.integers(1, 8),
)
def test_any_number_of_layers_is_launched_and_read_back_as_the_plan(key, pp, chunks):
    model = catalog.model(key)
    assume(chunks <= most_chunks(model.num_layers, pp))
    kinds = {"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {}
    plan = Plan(tp=8, pp=pp, zero=1, microbatches=pp, sequence_parallel=True, **kinds)
    asked = Question(model, catalog.cluster("64x8xh100-sxm"), catalog.engine("megatron"), plan, context=4096)
    text = launch_command(asked, "megatron")
    uneven = model.num_layers % (pp * chunks) != 0
    assert ("--pipeline-model-parallel-layout" in text) == uneven
    assert not (uneven and "--num-virtual-stages" in text), "Megatron takes one of the two"
    found = parse(text)
    assert (found.options.get("pp"), found.options.get("chunks") or 1, found.options.get("schedule") or "1f1b") == (
        pp,
        chunks,
        plan.schedule,
    )
    assert not found.notes
    assert not found.unread


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7", ""),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", ""),
        ("--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 10", "priced as 7+8"),
        ("--pipeline-model-parallel-layout 'Et*5|(t*8|)*14t*9L'", "priced as 7+8"),
    ],
)
def test_another_split_of_layers_is_said(words, note):
    text = f"torchrun --nproc-per-node 8 --nnodes 16 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 126 {words}"
    found = parse(f"{text} --pipeline-model-parallel-size 16")
    assert found.options.get("pp") == 16
    assert not found.unread
    assert bool(found.notes) == bool(note)
    assert note in "".join(found.notes)


def test_llama_3_405b_as_it_was_trained():
    """Published: 41 % on 16,384 H100 and 43 % on 8,192, in 80 GB without recomputation (arXiv:2407.21783, table 4)."""
    kinds = {"engine": "llama3", "schedule": "interleaved", "chunks": 8}
    large = commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META, **kinds)
    small = commtax.train_bill("llama-3.1-405b", "1024x8xh100-sxm", **{**META, "dp": 64, "batch": 32}, **kinds)
    assert fits(large)
    assert large.mfu == pytest.approx(0.41, abs=0.03)
    assert small.mfu == pytest.approx(0.43, abs=0.03)
    plain = commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META)
    assert large.bubble_s < plain.bubble_s / 7


@pytest.mark.parametrize("key", ["llama-3.1-405b", "qwen3-235b-a22b", "deepseek-v3"])
def test_every_verb_takes_uneven_chunks(key):
    words = {"tp": 8, "pp": 8, "dp": 4, "batch": 8, "schedule": "interleaved", "chunks": 2, "sequence_parallel": True}
    priced = commtax.train_bill(key, "32x8xh100-sxm", **words)
    assert any("uneven pipeline" in note for note in priced.notes)
    assert commtax.train_fit(key, "32x8xh100-sxm", **words).memory.total == priced.memory.total


def test_too_many_chunks_are_refused_with_the_most():
    with pytest.raises(ValueError, match="chunks=9: 126 layers on pp=16 make at most 8 chunks per rank"):
        commtax.train_bill("llama-3.1-405b", "2048x8xh100-sxm", **META, schedule="interleaved", chunks=9)
    words = "bill llama-3.1-405b --cluster 2048x8xh100-sxm --phase train -tp 8 -pp 16 -dp 128 --global-batch 2048 --seq 8192"
    done = run_here(*words.split(), "--schedule", "interleaved", "--chunks", "9")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_plans_interleave_any_number_of_layers():
    found = commtax.plan_training("llama-3.1-405b", "32x8xh100-sxm", global_batch=64, seq=8192)
    kinds = {found.kinds[int(i)].plan.chunks for i in found.plans.kind}
    assert kinds > {1}


def test_one_stage_has_nothing_to_interleave():
    priced = commtax.train_bill("llama-3.1-8b", "8xh100-sxm", schedule="interleaved")
    assert any("no pipeline to interleave" in str(note) for note in priced.notes)
