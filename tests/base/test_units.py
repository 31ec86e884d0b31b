"""Numbers that people read: in order, and as they were but for rounding."""

import math

from hypothesis import given
from hypothesis import strategies as st

from commtax.units import DAY_S, DURATIONS, format_duration, format_money, format_seconds, format_tokens, parse_tokens

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "second": 1.0, **DURATIONS}
WORDS = {"": 1.0, "million": 1e6, "billion": 1e9}
TIMES = st.floats(1e-9, 1e12)
DOLLARS = st.floats(0.01, 1e12)


def seconds(text):
    figure, unit = text.split()
    return float(figure.replace(",", "")) * UNITS[unit if unit in UNITS else unit.removesuffix("s")]


def dollars(text):
    figure, _, word = text.removeprefix("$").partition(" ")
    return float(figure.replace(",", "")) * WORDS[word]


@given(TIMES, TIMES)
def test_a_longer_time_never_reads_shorter(a, b):
    low, high = sorted((a, b))
    for write in (format_seconds, format_duration):
        assert seconds(write(low)) <= seconds(write(high)) * (1 + 1e-12)


@given(TIMES)
def test_a_time_reads_as_it_was_but_for_rounding(a):
    assert math.isclose(seconds(format_seconds(a)), a, rel_tol=0.051)
    if a >= 90:
        assert math.isclose(seconds(format_duration(a)), a, rel_tol=0.051)


@given(TIMES)
def test_a_time_never_has_many_digits(a):
    assert len(format_seconds(a).split()[0].replace(",", "").replace(".", "")) <= 3 or a > 999 * DURATIONS["year"]


@given(DOLLARS, DOLLARS)
def test_more_money_never_reads_as_less_and_is_what_it_was(a, b):
    low, high = sorted((a, b))
    assert dollars(format_money(low)) <= dollars(format_money(high)) * (1 + 1e-12)
    assert math.isclose(dollars(format_money(a)), a, rel_tol=0.0051)


@given(st.floats(1, 1e16))
def test_tokens_are_read_back(tokens):
    read = parse_tokens(format_tokens(tokens), "tokens")
    assert math.isclose(read, tokens, rel_tol=0.0051) or abs(read - tokens) <= 0.5


def test_people_say_it_so():
    assert [format_duration(x * DAY_S) for x in (0.02, 0.1, 3.2, 185, 9.4 * 365.25)] == [
        "29 minutes", "2.4 hours", "3.2 days", "185 days", "9.4 years",
    ]  # fmt: skip
    assert [format_tokens(x) for x in (15e12, 300e9, 7.5e6, 1500)] == ["15T", "300B", "7.5M", "1,500"]
    assert [format_money(x) for x in (1.2e6, 559_238, 63.84, 0.018)] == ["$1.2 million", "$559,238", "$63.84", "$0.018"]
