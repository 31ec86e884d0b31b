"""Ids of the Hub without a network: what is bundled, what a name means, what is said of it, and what no name may be taken for."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here as run
from commtax import catalog
from commtax.catalog import loader, quantisation
from commtax.catalog.hf import from_config
from commtax.catalog.models import bundled_model, origin, variant
from commtax.cost.inventory import num_params
from commtax.report.view import state
from each import each
from tables import tables

DATA = tables(__file__)
POPULAR = DATA["popular"]


@each("name", POPULAR)
def test_popular_ids_need_no_network(name):
    key, longest = POPULAR[name]
    model = bundled_model(name) or variant(name)
    assert model is not None
    assert (origin(name), model.max_len, num_params(model)) == (key, longest, num_params(catalog.model(key)))
    said = [str(note) for note in model.notes if note.code == "taken-as"]
    assert bool(said) == (bundled_model(name) is None)
    assert all(one.startswith(f"{name} is taken as {key}") and "same architecture" in one for one in said)


def test_answers_and_the_page_take_the_same_ids():
    done = run("bill", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "--cluster", "1xh100-sxm", "--json")
    assert "is taken as qwen2.5-32b, 131,072 tokens long: same architecture" in done.stdout
    # By their names alone: whoever asks a page looks at no disk and no network.
    for name, key in (("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-instruct-2507"), ("Qwen/Qwen3-8B", "qwen3-8b")):
        assert state.parse([("m", name)]).question.model.key == key
    with pytest.raises(state.RefusedError):
        _ = state.parse([("m", "Qwen/Qwen3-31B")]).question


@pytest.mark.parametrize(("name", "said"), DATA["what_is_not_known_of_an_id_is_said"])
def test_what_is_not_known_of_an_id_is_said(tmp_path, monkeypatch, name, said):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    variant.cache_clear()
    assert [str(note) for note in catalog.model(name).notes if note.code == "taken-as"] == [f"{name} is taken as {said}"]


IDS = sorted(name for name in loader.aliases("models") if "/" in name)
RELEASED = sorted(name for release in quantisation._file()["releases"] for name in release["ids"])
SIZE = re.compile(r"(?<![\w.])(a?\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")
VERSION = re.compile(r"(?<=\d\.)\d{1,2}(?![\d.]*[bm]\b)")


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(IDS), st.lists(st.sampled_from(DATA["endings"]), min_size=1, max_size=3))
def test_an_ending_never_makes_another_model(name, endings):
    assert origin(name + "".join(endings)) in ("", origin(name))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([name for name in IDS if SIZE.search(name)]), st.integers(1, 9), st.sampled_from(("", "-instruct", "-fp8")))
def test_another_size_is_never_taken_for_a_model(name, digit, ending):
    """A size that no name of a model has means none, and never its neighbour."""
    other = SIZE.sub(lambda found: f"{found[1]}{digit}{found[2]}", name, count=1)
    key = origin(f"{other}{ending}")
    names = [key, *catalog.model(key).aliases, *RELEASED] if key else []
    assert not key or any(other.rpartition("/")[2] == loader.normal(known).rpartition("/")[2] for known in names)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([name for name in IDS if VERSION.search(name)]), st.integers(0, 99), st.sampled_from(("", "-instruct", "-fp8"))
)
def test_another_version_is_never_taken_for_a_model(name, number, ending):
    """Qwen3.6 is Qwen3.5 where a file of ours says so, and otherwise no model that is known."""
    other = VERSION.sub(f"{number}", name, count=1)
    key = origin(f"{other}{ending}")
    names = [key, *catalog.model(key).aliases, *RELEASED] if key else []
    assert not key or any(f"{other}{ending}".rpartition("/")[2].startswith(loader.normal(n).rpartition("/")[2]) for n in names)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(IDS), st.sampled_from(DATA["others"]), st.sampled_from(("", "-instruct", "-fp8")))
def test_another_kind_of_model_is_taken_for_none(name, other, ending):
    assert origin(f"{name}{other}{ending}") == ""
    owner, _, last = name.partition("/")
    assert origin(f"{owner}/eagle3-{last}{ending}") == ""


@pytest.mark.parametrize(
    "name", ["mistralai/Mistral-7B-v0.9", "zai-org/GLM-4-9B-0520", "deepseek-ai/DeepSeek-V9", "nvidia/NVIDIA-Nemotron-Nano-9B-v3"]
)
def test_an_ending_that_may_mean_several_models_means_none(name):
    assert origin(name) == ""


def test_every_id_means_one_model():
    """Files, rows and releases name each id once, and rows share no key with files."""
    named = [loader.normal(name) for key in catalog.keys("models") for name in catalog.model(key).aliases]
    named += map(loader.normal, RELEASED)
    assert (sorted(named), len(set(loader.stems("models")))) == (sorted(set(named)), len(loader.stems("models")))
    assert len(catalog.keys("models")) >= 200
    assert len(set(named)) >= 400
    with pytest.raises(ValueError, match=r"GGUF files of several formats, of which none is priced; name their model: qwen3-8b$"):
        catalog.model("unsloth/Qwen3-8B-GGUF")


def test_releases_say_what_differs_and_what_is_assumed():
    for release in quantisation._file()["releases"]:
        base = catalog.model(release["of"])
        assert base.key == release["of"]
        assert release.get("longest", 0) != base.max_len
    for release in quantisation._file()["releases"]:
        for name in release["ids"]:
            known = quantisation.release_of(name)
            assert known is not None
            assert (known.by == "ending") == release.get("assumed", False)
    # Such rows stand on exact totals; all others, and releases whose configs are known, carry no such note.
    assumed = {key for family, *_ in loader._rows().values() for key in family.get("assumed_length", ())}
    told = {key for key in loader.stems("models") if any(note.code == "assumed-length" for note in catalog.model(key).notes)}
    assert told == assumed <= set(loader._rows())
    assert all(isinstance(loader._rows()[key][3], int) for key in assumed)
    shown = run("catalog", "models", "olmo-2-1b").stdout
    assert "4,096 (assumed)" in shown
    assert "no public copy of its config was found" in shown


@pytest.mark.parametrize(
    ("key", "changes", "rule"),
    [
        *DATA["what_a_family_does_not_model_is_refused"],
        ("granite-4.0-h-small", {"layer_types": ["mamba", "attention", "hyena"] * 14}, "layer_types"),
        ("falcon3-7b", {"architectures": ["FalconForCausalLM"]}, "architecture FalconForCausalLM is not supported"),
    ],
)
def test_what_a_family_does_not_model_is_refused(key, changes, rule):
    with pytest.raises(ValueError, match=rule):
        from_config({**catalog.config(key), **changes}, "x")


def test_sizes_that_a_config_may_spell_in_two_ways():
    """Granite's heads share the widened state out where "auto" says so; Command R's length is not that of its positions."""
    small = catalog.config("granite-4.0-h-small")
    assert from_config({**small, "mamba_d_head": "auto", "mamba_expand": 2}, "x").blocks == from_config(small, "x").blocks
    command = {**catalog.config("command-r-35b"), "model_max_length": None}
    assert (catalog.model("command-r-35b").max_len, from_config(command, "x").max_len) == (131072, 8192)


@pytest.mark.parametrize(
    ("key", "windows"),
    [
        ("olmo-3-7b", {4096: 24, 0: 8}),
        ("command-r7b", {4096: 24, 0: 8}),
        ("gpt-neo-125m", {0: 6, 256: 6}),
        ("gemma-2-2b", {4096: 13, 0: 13}),
    ],
)
def test_windows_of_new_families(key, windows):
    model = catalog.model(key)
    seen = [model.blocks[i].attention.window for i in model.layers]
    assert {window: seen.count(window) for window in set(seen)} == windows
