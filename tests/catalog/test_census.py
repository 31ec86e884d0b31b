"""The law of parts: every fitted number is counted wherever it is stored, and effects on kernels keep the law."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cli_run import refusal, run_here, told_here
from commtax.catalog.programs import mechanisms
from commtax.shipped_tables import table
from commtax_lab import lab_table
from commtax_lab.census import KINDS, PACKAGE, CensusEntry, Owner, breakers, census, earlier_counts, totals, unclassified_numbers
from each import each

TOLERATED = Path(__file__).with_name("law_breakers.txt")
RULES = lab_table("census.toml")


@pytest.fixture(scope="module")
def numbers():
    return census()


@pytest.fixture(scope="module")
def by_file(numbers):
    return Counter(number.file for number in numbers)


def leaves(inner, key=""):
    """Numbers of a file with their keys; sources aside."""
    if isinstance(inner, dict):
        for name, value in inner.items():
            if name != "sources":
                yield from leaves(value, key if name.isdigit() else name)
    elif isinstance(inner, list):
        for value in inner:
            yield from leaves(value, key)
    elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
        yield key


def test_effects_keep_the_law_and_every_number_is_told(numbers):
    """Those that do not are listed by name, and the list may only shrink: what is mended has to leave it."""
    known = set(TOLERATED.read_text(encoding="utf-8").splitlines())
    found = breakers(numbers)
    assert not {where: rules for where, rules in found.items() if where not in known}, "break the law of parts"
    assert not known - set(found), f"keep the law by now: take them out of {TOLERATED.name}"
    assert unclassified_numbers() == [], "say in census.toml whether these were fitted (code, effects.toml) or are facts"


@each("path", sorted((PACKAGE / "catalog/kernels").glob("*.toml")), ids=lambda path: path.stem)
def test_every_constant_of_kernels_is_counted(path, by_file):
    stored = [key for key in leaves(tomllib.loads(path.read_text())) if key not in RULES["kernels"]["facts"]]
    assert by_file[path.relative_to(PACKAGE).as_posix()] == (0 if path.stem in RULES["kernels"]["definition"] else len(stored))


def test_every_constant_of_collectives_is_counted_or_a_fact(by_file):
    rules = RULES["libraries"]
    files = [path for kind in ("libraries", "exchanges") for path in (PACKAGE / "catalog" / kind).glob("*.toml")]
    for path in files:
        facts = tomllib.loads(path.read_text())
        floors = facts.pop("eager_floor_s", {})
        keys = list(leaves(facts))
        assert set(keys) <= {*rules["fitted"], *rules["ranges"], *rules["facts"]}, path.stem
        fitted = sum(key in (*rules["fitted"], *rules["ranges"]) for key in keys) + len(floors)
        assert fitted == by_file[path.relative_to(PACKAGE).as_posix()], path.stem


@each("key", RULES["kernels"]["chosen"])
def test_constants_that_were_chosen_have_sources_that_say_so(key):
    sources = table(f"catalog/kernels/{key}.toml")["sources"]
    for name in RULES["kernels"]["chosen"][key]:
        form = name.partition(".")[0]
        said = sources["step" if form == "step" else "train"]["title"]  # of small kernels that of training
        assert "assumed" in said or "guessed" in said, name


@pytest.mark.parametrize("rule", ["counted", "measured"])
def test_what_engines_did_not_fit_names_sources_that_are_used(rule):
    for key, sources in RULES["engines"][rule].items():
        used = re.findall(r', "([^"]+)"\]$', (PACKAGE / f"catalog/engines/{key}.toml").read_text(), re.MULTILINE)
        assert set(sources) <= set(used), key


def test_what_is_counted_has_a_value_a_kind_and_chips_of_the_catalogue(numbers):
    chips = {path.stem for path in (PACKAGE / "catalog/chips").glob("*.toml")}
    effects = [n for n in numbers if n.kind == "effect" and n.fitted_on and n.file.startswith("catalog/engines")]
    assert effects
    for number in effects:
        assert set(number.owner.chips.split(", ")) <= chips, number.where
    for number in numbers:
        assert math.isfinite(number.value), number.where
        assert number.kind in KINDS, number.where
        if number.kind == "effect":
            assert number.owner.mechanism, number.where
    assert sum(totals(numbers).values()) == len(numbers)
    assert {*KINDS, "chosen", "breakers", "commit"} == set(earlier_counts())
    for name, known in mechanisms().items():
        assert known.on, name
        assert known.mechanism, name


def test_an_effect_of_a_model_and_one_beyond_the_law_are_found():
    on = {"engine": "vllm", "chips": "hopper", "kernel": "experts", "mechanism": "m"}
    lawful = CensusEntry("f", "lawful", "log", 0.8, "effect", "runs", Owner(**on), True)
    beyond = replace(lawful, group="beyond", value=0.6)
    of_a_family = replace(lawful, group="family", value=0.4, owner=Owner(model="DeepseekV3ForCausalLM"))
    broken = breakers([lawful, beyond, of_a_family])
    assert broken["f beyond.log"] == ("outside 0.7 to 1.4",)
    rules = {"belongs to models", "belongs to no engine", "no mechanism", "outside 0.7 to 1.4"}
    assert broken.keys() == {"f beyond.log", "f family.log"}
    assert rules <= set(broken["f family.log"])


def test_the_command_counts_and_names_breakers(numbers):
    done = told_here("catalog", "constants")
    assert done.returncode == 0
    assert f"stood ({earlier_counts()['commit']})" in done.stdout
    assert f"{sum(totals(numbers)[kind] for kind in KINDS):,}" in done.stdout
    document = json.loads(done.document)
    assert (len(document["numbers"]), document["breakers"].keys()) == (len(numbers), breakers(numbers).keys())
    part = json.loads(run_here("catalog", "constants", "engines/vllm.toml", "--json").stdout)
    assert {number["file"] for number in part["numbers"]} == {"catalog/engines/vllm.toml"}
    assert "no file with fitted numbers" in refusal(run_here("catalog", "constants", "no-such-file"))
