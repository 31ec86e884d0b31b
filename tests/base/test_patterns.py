"""Patterns that a checkpoint brings along: as Python reads them, and never slower than the name is long."""

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax.catalog import config
from commtax.patterns import PatternParser, PrefixPatterns, modules
from each import each
from tables import tables

DATA = tables(__file__)

NAMES = DATA["names"]
REAL = DATA["real"]


def patterns(*texts):
    return PrefixPatterns(PatternParser(text).read() for text in texts)


@each("text", REAL)
def test_real_patterns_match_as_python_has_it(text):
    for name in NAMES:
        assert patterns(text).match(name) == bool(re.match(text, name)), name


@pytest.mark.parametrize("text", DATA["patterns_that_look_ahead_from_the_beginning"])
def test_patterns_that_look_ahead_from_the_beginning(text):
    for name in NAMES:
        assert modules((f"re:{text}",)).hold(name) == bool(re.match(text, name)), name


@pytest.mark.parametrize("text", [r"(?!a)b|c", r"(?!a", r"(?!(a)"])
def test_looking_ahead_in_one_choice_or_without_an_end_is_refused(text):
    with pytest.raises(ValueError, match="pattern"):
        modules((f"re:{text}",))


@st.composite
def expressions(draw, depth=3):
    if depth == 0:
        return draw(st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-b0-9]", r"\d", r"\w", r"\.", "1", "^", "$", ""]))
    one, two = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    form = draw(
        st.sampled_from(["{0}{1}", "{0}|{1}", "({0})*{1}", "(?:{0})+{1}", "({0})?{1}", "({0}|{1})", "({0}){{1,2}}{1}", "{0}"])
    )
    return form.format(one, two)


@settings(max_examples=200, deadline=None)
@given(expressions(), st.text("ab1.", max_size=8))
def test_any_expression_matches_as_python_has_it(text, name):
    assert patterns(text).match(name) == bool(re.match(text, name))


def test_several_patterns_are_one_question():
    both = patterns("a+b", "c$")
    assert [both.match(name) for name in ("aab", "c", "cd", "b")] == [True, True, False, False]


@each(
    ("text", "why"),
    [
        (r".*(?!experts)$", r"\(\?!"),
        (r"(?<=a)b", r"\(\?<"),
        (r"(a)\1", r"\\1 is not supported"),
        (r"a\b", r"\\b is not supported"),
        ("((", "not closed"),
        ("a)", "closing bracket"),
        ("[ab", "cut off"),
        ("*a", "nothing before"),
        ("a**", "repeat of a repeat"),
        ("a{1000}", "no repeat|repeats up to"),
        ("(" * 30 + "a" + ")" * 30, "inside each other"),
        ("((((a{99}){99}){99}){99})", "steps"),
        ("a" * 2000, "longer than"),
        ("a\\", "cut off"),
    ],
)
def test_what_is_not_read_is_refused_with_the_rule(text, why):
    with pytest.raises(ValueError, match=why):
        patterns(text)


def test_a_pattern_that_has_python_try_for_ever_is_answered():
    began = time.process_time()
    assert not patterns("(.+)+!", "(a|a)*b", "(a*)*c", ".*.*.*.*.*.*x").match("a" * 5000)
    assert time.process_time() - began < 10


def test_wildcards_and_names():
    named = modules(("lm_head", "model.layers.1*", "re:.*gate$", "*.layers.[!0-4].mlp"))
    assert [
        named.hold(n) for n in ("lm_head.weight", "model.layers.12.x", "a.gate", "model.layers.7.mlp.up", "model.layers.2.mlp")
    ] == [True, True, True, True, False]


def test_a_hostile_checkpoint_does_not_hold_a_command(tmp_path):
    table = config("llama-3.2-1b") | {"quantization_config": {"quant_method": "fp8", "ignore": ["re:(.+)+!"]}}
    (tmp_path / "config.json").write_text(json.dumps(table))
    assert run_here("fit", tmp_path, "-c", "8xh100-sxm").returncode == 0
    table["quantization_config"]["ignore"] = ["re:.*(?!experts)$"]
    (tmp_path / "config.json").write_text(json.dumps(table))
    done = run_here("fit", tmp_path, "-c", "8xh100-sxm")
    assert done.returncode == 2
    assert "(?!…) is not supported" in done.stderr
