"""Tables and sentences at any width: nothing is wider, what belongs together stays so, nothing is lost without a word."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from commtax.report.drawing import MOST_LINES, WIDE_TEXT, DrawnTable, Text, choose, fold, width_of

WIDTHS = st.integers(60, 160)
FIGURES = st.builds(
    "{} {}".format, st.decimals(0, 9999, places=1).map(lambda x: f"{x:,}"), st.sampled_from(["ms", "µs", "GiB", "%", "tokens/s"])
)
PLANS = st.builds(
    "{} GPUs = {} x TP {} for prompts + {} replicas x DP 2 x TP {} for decoding".format,
    *[st.sampled_from([1, 2, 4, 8, 16, 512])] * 5,
)
WORDS = st.text("abcde 0123456789µ–", max_size=160).map(lambda text: " ".join(text.split()))


@st.composite
def tables(draw):
    """A name and a plan, some figures, perhaps a reason."""
    rows, figures = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    columns = ["", "plan", *(f">figure {i}" for i in range(figures)), *(["why"] if draw(st.booleans()) else [])]
    kinds = {">": FIGURES, "p": PLANS, "w": WORDS}
    cells = [[draw(kinds.get(name[:1], st.sampled_from(["1 ◆", "2", "10"]))) for name in columns] for _ in range(rows)]
    expendable = draw(st.lists(st.sampled_from([name[1:] for name in columns if name[:1] == ">"] or ["none"]), unique=True))
    return DrawnTable(columns, cells, draw(st.sampled_from(["", "a title"])), expendable, "--json has them")


def said(lines):
    return " ".join(" ".join(str(line) for line in lines).split())


@given(tables(), WIDTHS)
def test_a_table_keeps_to_the_width_and_says_what_it_leaves_out(table, width):
    lines = table.lines(width)
    assert max(width_of(str(line)) for line in lines) <= width
    whole, shown = said(lines), [str(line) for line in lines]
    left_out = re.search(r"not shown at \d+ columns: (.*?);", whole)
    hidden = left_out[1].split(", ") if left_out else []
    assert set(hidden) <= set(table.expendable)
    for row in table.rows:
        for name, cell in zip(table.names, row, strict=True):
            if name.startswith("figure") and name not in hidden:
                assert any(cell in line for line in shown)  # with its unit, on one line


@given(tables(), WIDTHS)
def test_the_plan_s_name_is_always_whole(table, width):
    """It may fold; read down its column, or on in a record, it is there to the last word."""
    lines = [str(line) for line in table.lines(width)]
    choice = chosen(table, width)
    for _, plan, *_ in table.rows:
        folded = fold(plan, choice.widths[choice.kept.index(1)]) if choice else [plan]
        assert " ".join(folded) == plan
        assert len(folded) <= max(MOST_LINES)
        assert all(any(part in line for line in lines) for part in folded) or plan in said(lines)


def chosen(table, width):
    columns = [list(column) for column in zip(table.names, *table.rows, strict=True)]
    order = [[table.names.index(name)] for name in table.expendable if name in table.names]
    return choose(columns, [not name.startswith(">") for name in table.columns], order, width)


@given(WORDS, st.integers(12, 100), st.integers(0, 4))
def test_folding_loses_nothing_and_breaks_at_spaces(text, width, indent):
    lines = fold(text, width, indent)
    assert all(width_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    if max(map(len, text.split()), default=0) + 8 + indent <= width:
        assert " ".join(line.strip() for line in lines) == text


@given(
    st.lists(st.one_of(FIGURES, PLANS, st.sampled_from(["a step takes", "over nvlink4;", "TTFT <= 500 ms"])), min_size=4), WIDTHS
)
def test_a_number_keeps_its_unit(parts, width):
    lines = [str(line) for line in Text(" ".join(parts)).lines(width)]
    assert all(width_of(line) <= width for line in lines)
    pairs = pairwise(lines)
    assert not any(re.search(r"\d$", one) and re.match(r"\s*(ms|µs|GiB|%|tokens/s|GPUs|replicas)\b", two) for one, two in pairs)
    assert not any(re.search(r"\b(TP|DP)$|<=$", line) for line in lines)


def test_wide_signs_take_two_columns_and_controls_are_written_out():
    table = DrawnTable(["model", ">size"], [["通义千问-7B", "1 GiB"], ["a\x1b[31mb", "2 GiB"]])
    first, second, third = map(str, table.lines(80))
    assert len({width_of(line) for line in (first, second, third)}) == 1
    assert "\\x1b[31m" in third


def test_a_word_that_no_line_holds_is_broken_and_not_lost():
    url = "https://example.org/" + "/".join(["part"] * 30)
    lines = [str(line) for line in DrawnTable(["source", "why"], [[url, "a reason of several words"]]).lines(60)]
    assert max(map(len, lines)) <= 60
    assert len(url) > WIDE_TEXT
    assert sum(line.count("part") for line in lines) >= 24  # few are broken themselves
