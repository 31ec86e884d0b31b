"""The mistakes that newcomers make: each answer says what to type, and that works."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.catalog.techniques import technique, techniques
from commtax.options import options
from commtax.statement import Refusal
from tables import tables

DATA = tables(__file__)

SAID = DATA["said"]


@pytest.mark.parametrize("line", SAID)
def test_the_answer_says_what_to_type(line):
    done = run_here(*shlex.split(line))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert SAID[line] in done.stderr


@pytest.mark.parametrize(
    "line", ["fit llama-3.1-8b -c 8xh100 --tp=8", "fit llama-3.1-8b -c H100", "fit llama-3.1-8b --gpu h200", "catalog l40s"]
)
def test_what_newcomers_write_right(line):
    assert run_here(*shlex.split(line)).returncode == 0


@pytest.mark.parametrize(("flag", "says"), DATA["what_does_not_exist_names_what_does"])
def test_what_does_not_exist_names_what_does(flag, says):
    done = run_here("simulate", "llama-3.1-8b", "-c", "1xh100", flag)
    assert done.returncode == 2
    assert says in done.stderr
    assert "--inter" not in done.stderr


@given(st.sampled_from(sorted(name for name, one in options().items() if any("(" not in verb for verb in one.verbs))))
def test_an_option_asked_for_as_a_technique_is_named(name):
    if name.replace("_", "-") not in {also for one in techniques().values() for also in (one.key, *one.also)}:
        with pytest.raises(Refusal, match=f"no technique, but an option of .*: {options()[name].spellings[0]}$"):
            technique(name)
