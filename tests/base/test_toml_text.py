"""Tables written as TOML are read back as they were, and look as a person would write them."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from commtax.toml_text import shorten_all, write_toml

SCALARS = st.one_of(
    st.booleans(), st.integers(-(10**13), 10**13), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)
TREES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
        lambda inner: st.one_of(
            st.dictionaries(st.text(max_size=8), inner, max_size=4),
            st.lists(st.dictionaries(st.text(max_size=8), inner, max_size=3), max_size=3),
        ),
        max_leaves=12,
    ),
    max_size=5,
)


@given(TREES, st.lists(st.text(max_size=30), max_size=3))
def test_what_is_written_is_read_as_it_was(tree, comments):
    """… with the digits that are written, whatever keys, texts and comments hold."""
    text = write_toml(tree, comments)
    assert tomllib.loads(text) == shorten_all(tree)
    assert write_toml(tomllib.loads(text), comments).count("\n") == text.count("\n")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_six_digits_and_is_short(x):
    line = write_toml({"x": x}).strip().removeprefix("x = ")
    assert abs(float(line) - x) <= 5.01e-6 * abs(x)
    assert len(line) <= len("-1.23457e-308") + 2


def test_counts_and_bytes_keep_every_digit():
    assert write_toml({"bytes": float(2**33), "rate": 3.35e12, "ranks": 8.0}) == "bytes = 8589934592\nrate = 3.35e12\nranks = 8\n"


def test_tables_are_laid_out_for_people():
    tree = {
        "chip": {"key": "h100-sxm", "flops_per_s": {"bf16": 9e14}},
        "kernels": {"tables": {"gemm.bf16": {"t0": 2e-6}, "long": {f"constant_{i}": i / 7 for i in range(9)}}},
        "run": [{"clients": 8, "tpot": {"slopes": {"host_s": 0.1}}}],
        "name": "box",
    }
    lines = write_toml(tree, ["two\nlines"]).splitlines()
    assert lines[:3] == ["# two lines", "", 'name = "box"']
    assert "flops_per_s = { bf16 = 9e14 }" in lines
    assert "[kernels]" not in lines
    assert lines[lines.index("[kernels.tables]") + 1] == '"gemm.bf16" = { t0 = 2e-6 }'
    assert "  [kernels.tables.long]" in lines
    assert lines[-4:] == ["clients = 8", "", "  [run.tpot]", "  slopes = { host_s = 0.1 }"]
