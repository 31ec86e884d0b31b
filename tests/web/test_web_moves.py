"""Sliders and words of the page: every place of a slider is a legal state, and controls are named its own way."""

import random

import pytest

import commtax
from commtax.report.view.pictures import serving_front, training_front
from commtax.report.view.state import LABELS, on_page, parse
from commtax.verbs.billing import price
from commtax.verbs.settling import settle
from commtax.web.pages import state_view as view
from commtax.words import words
from each import each
from paths import ROOT
from web_client import refused

AXES = ("tp", "pp", "dp", "ep", "cp")
MOE = {"m": "deepseek-v3", "c": "2x8xh200-sxm", "tp": "8", "dp": "2", "ep": "16"}
TRAIN = {"m": "llama-3.1-70b", "c": "8x8xh100-sxm", "ph": "train", "tp": "4", "pp": "4", "dp": "4", "n": "16"}
SPARSE = {"m": "qwen3-30b-a3b", "c": "8x8xh100-sxm", "ph": "train", "dp": "64", "ep": "8", "n": "16"}
CASES = {
    "vllm": MOE,
    "sglang": {**MOE, "e": "sglang"},
    "trtllm": {**MOE, "e": "trtllm", "tp": "1", "dp": "16"},
    "dense": {"m": "llama-3.1-8b", "c": "2xh100-sxm", "tp": "2"},
    "part": {"m": "llama-3.1-8b", "c": "8xh100-sxm", "tp": "2"},
    "megatron": TRAIN,
    "interleaved": {**TRAIN, "sch": "interleaved"},
    "context": {**TRAIN, "pp": "1", "cp": "2", "dp": "8", "s": "8192"},
    "zero2": {**TRAIN, "tp": "1", "pp": "1", "dp": "64", "z": "2"},
    "fsdp": {"m": "llama-3.1-8b", "c": "8x8xh100-sxm", "ph": "train", "dp": "64", "e": "fsdp"},
    "titan": {**SPARSE, "e": "torchtitan"},
    "experts": SPARSE,
    "thousands": {"m": "llama-3.1-405b", "c": "2048x8xh100-sxm", "ph": "train", "tp": "8", "pp": "16", "dp": "128", "n": "64"},
}
HOST = ("llama-3.1-8b", "8xh100-sxm")
FRONTS = {
    "limits": lambda: serving_front(commtax.plan(*HOST, tpot_s="30ms")),
    "no limit": lambda: serving_front(commtax.plan(*HOST)),
    "too slow": lambda: serving_front(commtax.plan(*HOST, tpot_s="10us")),
    "too large": lambda: serving_front(commtax.plan("llama-3.1-405b", "1xh100-sxm")),
    "training": lambda: training_front(commtax.plan_training("llama-3.1-8b", "8xh100-sxm", global_batch=64)),
}


def walk(case):
    state = parse(case.items())
    shown = view(state)
    ways = shown["moves"]
    found = [(a, v, w["patch"], w["note"]) for a in ways for v, w in zip(shown["limits"][a], ways[a], strict=True)]
    return state, found


@each("name", CASES)
def test_every_place_of_a_slider_is_legal(name):
    state, places = walk(CASES[name])
    for axis in AXES:
        assert state[axis] in [v for a, v, _, _ in places if a == axis], "the present one is among them"
    for axis, value, patch, note in places:
        there = state.but(patch)
        price(settle(there.question))
        if axis == "local":
            assert there["b"] * there.length == value * there["cp"]
            continue
        assert there[axis] == value
        followed = [a for a in AXES if a != axis and there[a] != state[a]]
        assert all(f"{a.upper()} {state[a]:,} → {there[a]:,}" in note for a in followed)
        if value == state[axis]:
            assert there == state or patch.keys() & {"z", "sp"}, "staying changes nothing"
            assert not note


def test_experts_follow_tp_and_dp_and_no_size_locks_another():
    _, places = walk(MOE)
    moved = {(axis, value): patch for axis, value, patch, _ in places}
    assert (moved["tp", 4], moved["tp", 16]) == ({"tp": 4, "dp": 2, "ep": 8}, {"tp": 16, "dp": 1, "ep": 16})
    assert (moved["dp", 16], moved["ep", 8]["dp"]) == ({"tp": 1, "dp": 16, "ep": 16}, 1)
    for name in ("vllm", "sglang", "megatron", "experts"):
        state, places = walk(CASES[name])
        for axis in ("tp", "pp", "dp") if state.question.trains else ("tp", "dp", "ep"):
            assert len([1 for a, *_ in places if a == axis]) >= 3, (name, axis)


@pytest.mark.parametrize("name", ["megatron", "interleaved", "fsdp", "experts", "thousands"])
def test_training_keeps_a_full_cluster_and_its_global_batch(name):
    state, places = walk(CASES[name])
    total = state["tp"] * state["pp"] * state["dp"] * state["cp"]
    for axis, _, patch, note in places:
        there = state.but(patch)
        if axis in ("tp", "pp", "cp") and there["dp"] != state["dp"]:
            assert there["tp"] * there["pp"] * there["dp"] * there["cp"] == total
            same = there["n"] * there["dp"] == state["n"] * state["dp"]
            assert same == ("the same global batch" in note)
            assert same or (there["n"] == state["n"] and "global batch" in note)
            assert same or name == "thousands", "only where a replica would need more microbatches than the page knows"


def test_a_random_walk_over_the_sliders_is_never_refused():
    r = random.Random(4)
    for case in (MOE, TRAIN, SPARSE):
        state = parse(case.items())
        for _ in range(6):
            ways = view(state)["moves"]
            state = state.but(r.choice(ways[r.choice([a for a in AXES if len(ways[a]) > 1])])["patch"])


@pytest.mark.parametrize(
    "asked",
    [
        {**MOE, "c": "8xh200-sxm"},
        {**MOE, "m": "llama-3.1-70b"},
        {**MOE, "ph": "train"},
        {**TRAIN, "c": "8xh100-sxm"},
        {**TRAIN, "n": "6", "sch": "interleaved"},
        {"m": "llama-3.1-8b", "c": "2048x8xh100-sxm", "tp": "1024", "pp": "1024", "dp": "16384", "ep": "4096", "cp": "1024"},
    ],
)
def test_a_refused_plan_says_which_would_do(asked):
    """Another model, cluster or phase under the same plan is one click from a legal one."""
    status, told = refused("view", asked)
    assert status == 422
    assert told["instead"]["text"]
    view(parse(asked.items()).but(told["instead"]["patch"]))


def test_what_no_size_mends_has_no_other_plan():
    assert refused("view", {"m": "nope"})[1]["instead"] is None
    assert refused("view", {"tp": "x"})[1]["instead"] is None
    assert refused("view", {"e": "megatron"})[1]["instead"] is None


def test_controls_are_named_as_the_page_labels_them() -> None:
    likely = words("likely", sure="99% likely", wanted="65%")
    assert (likely, on_page(likely)) == ("; 99% likely, 65% required (--confidence)", "; 99% likely, 65% required (‘Limits hold’)")
    assert on_page(words("within-margin", margin="5%")) == "within the margin of 5%; measure both"
    assert on_page(words("remedy-weights", dtype="fp8")) == "weights in fp8 (‘Weights’ fp8)"
    assert on_page("a decode step takes 2 ms") == "a decode step takes 2 ms"
    page = (ROOT / "src/commtax/web/page/index.html").read_text() + (ROOT / "src/commtax/web/page/inputs.js").read_text()
    for label in LABELS.values():
        assert f">{label}" in page or f'name: "{label}"' in page, label


@pytest.mark.parametrize("name", FRONTS)
def test_the_page_names_no_flag(name: str) -> None:
    front = FRONTS[name]()
    shown = [front["sentence"], *front["why"], *(f"{row['family']} {row['reason']}" for row in front["lost"])]
    assert [text for text in shown if "--" in text] == []
