"""``bill --why LINE``: what explains a line adds up to it, whatever the model, plan and engine, and names every mechanism."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.programs import KINDS, engine_number, mechanism, mechanisms
from commtax.cost.forms import DAMPED, RATES, SECONDS
from commtax.cost.kernels import terms
from commtax.cost.layer_forms import CHIP_FORMS, FORMS, equation
from commtax.files import table
from commtax.spec import KernelHabits
from commtax.verbs.billing import labels
from commtax.verbs.settling import terms_of
from commtax.verbs.why import every_why, line_number, why
from each import each
from tables import tables

DATA = tables(__file__)

EXACT = 1e-9
SERVERS = ("vllm", "sglang", "trtllm", "torch", "fused", "textbook", "vllm@0.11", "vllm-rocm", "trtllm-mlperf", "gpt-fast")
TRAINERS = ("megatron", "megatron-bridge", "fsdp", "torchtitan", "deepspeed", "llm-foundry", "megatron-2021", "deepseek")
PLACES = DATA["places"]
sizes = st.sampled_from((1, 1, 2, 4, 8))


def check(bill):
    """Every line's parts add up to its seconds, and every effect says what it is."""
    for one in every_why(bill):
        e = one.explanation
        assert math.isclose(one.explained_s, one.exposed_s, rel_tol=EXACT, abs_tol=EXACT * one.total_s), one.line
        assert math.isclose(sum(p.seconds for p in e.parts), one.each_s, rel_tol=EXACT), one.line
        assert all(p.what for p in e.parts), one.line
        assert all(x.mechanism and x.on and math.isfinite(x.value) for x in e.effects), (one.line, e.effects)
        assert one.range.reasons, one.line
        assert one.range.low_s <= one.exposed_s <= one.range.high_s
        if one.kind in ("compute", "comm"):
            assert e.priced_by
            assert e.priced_by.equation
            assert e.priced_by.constants
            assert e.priced_by.kind
        if one.kind == "compute":
            assert e.floor
            assert e.floor.seconds >= 0
            assert e.shape or not e.flops


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_of_served_lines_add_up(data):
    model = data.draw(st.sampled_from(catalog.keys("models")))
    asked = {
        "engine": catalog.engine(data.draw(st.sampled_from(SERVERS))).but(fp8_rate=data.draw(st.sampled_from((1.0, 0.7, 1.4)))),
        "tp": data.draw(sizes),
        "pp": data.draw(st.sampled_from((1, 1, 2, 3))),
        "phase": data.draw(st.sampled_from(("decode", "prefill", "mixed"))),
        "batch": data.draw(st.integers(1, 512)),
        "context": data.draw(st.integers(1, 16384)),
        "eager": data.draw(st.booleans()),
        "slow_rank": data.draw(st.sampled_from((1.0, 1.3))),
        "overlap": data.draw(st.sampled_from((0.0, 0.4))),
        "kv_dtype": data.draw(st.sampled_from(("", "fp8"))),
        "dtype": data.draw(st.sampled_from(("", "", "fp8"))),
    }
    if catalog.model(model).experts:
        asked |= {"dp": data.draw(st.sampled_from((1, 2))), "ep": data.draw(st.sampled_from((1, -1)))}
    try:
        bill = commtax.bill(model, data.draw(st.sampled_from(PLACES)), **asked)
    except ValueError:
        return
    check(bill)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_parts_of_trained_lines_add_up(data):
    asked = {
        "engine": data.draw(st.sampled_from(TRAINERS)),
        "tp": data.draw(sizes),
        "pp": data.draw(st.sampled_from((1, 1, 2, 4))),
        "dp": data.draw(st.sampled_from((1, 2, 4))),
        "batch": data.draw(st.sampled_from((4, 8))),
        "context": data.draw(st.sampled_from((512, 4096))),
        "recompute": data.draw(st.sampled_from(("none", "selective", "full"))),
        "dtype": data.draw(st.sampled_from(("bf16", "bf16", "fp8"))),
        "eager": data.draw(st.booleans()),
        "slow_rank": data.draw(st.sampled_from((1.0, 1.3))),
        "sequence_parallel": True,
    }
    model = data.draw(st.sampled_from(catalog.keys("models")))
    if catalog.model(model).experts:
        asked["ep"] = data.draw(st.sampled_from((1, 2)))
    try:
        bill = commtax.train_bill(model, data.draw(st.sampled_from(("4x8xh100-sxm", "8x8xb200-sxm", "4x8xa100-80-sxm"))), **asked)
    except ValueError:
        return
    check(bill)


def test_an_effect_that_is_doubled_is_seen():
    """A factor that pricing multiplies stands in the explanation, with its mechanism and its value."""
    engine = catalog.engine("vllm").but(fp8_rate=1.1)
    bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, batch=64, dtype="fp8", engine=engine)
    effects = {e.name: e for e in why(bill, "feed-forward down").explanation.effects}
    assert effects["fp8_rate"].value == 1.1
    assert "step.clock" in effects


def test_terms_of_a_form_are_memory_arithmetic_and_its_own_seconds():
    """What a kernel's seconds come from: all of them, and to the last digit."""
    bill = commtax.bill("deepseek-r1", "8xh200-sxm", tp=8, batch=64)
    t = terms_of(bill.question)
    for line in bill.items:
        if line.kind == "compute":
            kernel = dataclasses.replace(line.priced_from, fused=0.0)
            found = terms(kernel, t.cluster.chip, t.constants, 0.9)
            assert {term.name for term in found} <= {"memory", "arithmetic", *SECONDS, *RATES}
            assert all(term.alone_s >= (term.fixed_s + term.moving_s) * (1 - EXACT) for term in found if term.name != "arithmetic")


def test_constants_that_are_seconds_are_those_of_the_physics():
    """A new constant of a form is a share, a size, or one of the seconds and rates that a time is split by."""
    kinds = {name: row.get("kind", "") for name, row in table("catalog/physics.toml")["kernel"].items()}
    timed = {name for name, kind in kinds.items() if kind.startswith(("seconds", "bytes a second"))}
    assert timed == {*SECONDS, *RATES, *DAMPED}


@each("form", [*FORMS, *CHIP_FORMS])
def test_every_form_states_its_equation(form):
    assert equation(form).startswith("t = ")


def test_every_fitted_field_of_kernels_has_a_mechanism():
    """A number of ``KernelHabits`` that is multiplied onto kernels cannot be added without one."""
    plain = catalog.engine("torch")
    flags = {"head_norm_kernels"}  # launches that its source code has, not fitted
    for field in dataclasses.fields(KernelHabits):
        if isinstance(field.default, float | int) and not isinstance(field.default, bool) and field.name not in flags:
            assert mechanism(field.name).kind in ("effect", "kernel"), field.name  # the latter timed by themselves
            assert engine_number(plain, field.name) is not None
    assert {m.kind for m in mechanisms().values()} <= set(KINDS)


def test_lines_are_named_by_number_whole_name_or_part():
    names = ["norms", "feed-forward down", "feed-forward up", "norms backward"]
    assert [line_number(names, text) for text in ("1", " DOWN ", "norms", "Backward", "4")] == [0, 1, 0, 3, 3]
    for text in ("feed", "0", "5", "nothing", ""):
        with pytest.raises(ValueError, match="feed-forward down"):
            line_number(names, text)


def test_layers_with_and_without_a_window_have_lines_of_their_own_name():
    names = labels(commtax.bill("gemma-3-27b", "8xh100-sxm", tp=2, context=8192))
    assert len(set(names)) == len(names)
    assert {"decode attention", "decode attention in the window"} <= set(names)


def test_equal_lines_have_numbers_behind_their_names_in_the_bill_too():
    words = ("bill", "deepseek-v4-flash", "-c", "8xh200", "-tp", "8", "--context", "8192")
    names = labels(commtax.bill("deepseek-v4-flash", "8xh200", tp=8, context=8192))
    assert len(set(names)) == len(names)
    assert {"decode attention (1)", "decode attention (2)"} <= set(names)
    assert "decode attention (2)" in run_here(*words).stdout


def test_the_command_explains_a_line_and_lists_them_where_none_is_meant():
    words = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8")
    done = run_here(*words, "--why", "attention output", "--details")
    assert done.returncode == 0
    for text in ("custom one-shot", "window: none", "latency", "80% range", "bandwidth_Bps"):
        assert text in done.stdout
    document = json.loads(run_here(*words, "--why", "2", "--json").stdout)
    assert document["schema"] == "commtax.why/1"
    assert math.isclose(sum(p["seconds"] for p in document["parts"]), document["each_s"], rel_tol=EXACT)
    assert document["total_flops"] == pytest.approx(document["flops"] * document["times"])
    for text, rule in (("feed", "4 lines have this in their name"), ("nix", "no line has this name or number")):
        refused = run_here(*words, "--why", text)
        assert refused.returncode == 2
        assert rule in refused.stderr
        assert "feed-forward down" in refused.stderr
    assert run_here(*words, "--why", "norms", "--exact").returncode == 2


def test_a_training_bill_explains_collectives_with_their_window():
    words = ("bill", "llama-3.1-70b", "-c", "4x8xh100-sxm", "-tp", "8", "-dp", "4", "--phase", "train", "--batch", "8")
    document = json.loads(run_here(*words, "--why", "dp gradients", "--json").stdout)
    assert document["way"]["window"] == "backward"
    assert 0 < document["hidden_s"] < document["total_s"]
    assert math.isclose(document["times"] * sum(p["seconds"] for p in document["parts"]), document["total_s"], rel_tol=EXACT)


@pytest.mark.parametrize("batch", [1, 16, 2048])
def test_a_collective_is_bound_by_what_the_bill_says_binds_it(batch):
    asked = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8", "--batch", batch)
    bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=batch)
    top = max((one for one in every_why(bill) if one.kind == "comm"), key=lambda one: one.exposed_s)
    parts = {part.name: part.seconds for part in top.explanation.parts}
    assert top.bound == ("latency" if parts["latency"] > parts["wire"] else "bandwidth")
    told, because = (" ".join(run_here(*asked, *more).stdout.split()) for more in ((), ("--why", top.number)))
    assert f", {top.bound}-bound: " in told
    assert f"of the step, {top.bound}-bound " in because
    assert "bytes bind" not in because
