"""Pages that show answers: what is renewed, what stays, and that stale ones are noticed."""

import doctest
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paths import DOCUMENTS

sys.path.append(str(DOCUMENTS))
import printed

from texts import put

LINES = some.lists(some.text("abc …|·", min_size=1).map(str.rstrip).filter(lambda line: line not in ("", printed.CUT)), max_size=9)
INDENTS = some.sampled_from(["", "  ", "    "])


def page(block, before=""):
    return f"# A title\n\n{before}```console\n" + "".join(f"{before}{line}\n" for line in block) + f"{before}```\n\nProse.\n"


@given(LINES, LINES, INDENTS)
def test_an_answer_is_replaced_and_the_rest_kept(old, new, before):
    made = printed.rewrite(page(["$ commtax fit x", *old], before), lambda _: "\n".join(new))
    assert (made, printed.rewrite(made, lambda _: "\n".join(new))) == (page(["$ commtax fit x", *new], before), made)


@given(some.lists(some.sampled_from(["a sentence", "    that goes on", ""]), max_size=12).map(lambda lines: ["An answer", *lines]))
def test_a_cut_answer_ends_with_a_whole_sentence(new):
    made = printed.rewrite(page(["$ commtax fit x", "old", printed.CUT]), lambda _: "\n".join(new))
    shown = made.split("$ commtax fit x\n")[1].split("\n```")[0].splitlines()
    if printed.CUT not in shown:
        assert shown == "\n".join(new).rstrip().splitlines()
        return
    first = shown[:-1]
    rest = new[len(first) :]
    assert first == new[: len(first)]
    assert first[-1]
    assert not next((line for line in rest if line), "").startswith("    ") or "" in rest[:1]
    assert len(first) <= printed.SHOWN or all(line.startswith("    ") for line in first[1:])
    assert printed.rewrite(made, lambda _: "\n".join(new)) == made


def test_long_commands_filters_and_foreign_commands():
    asked = []

    def answer(line):
        asked.append(line)
        return "new"

    block = ["$ commtax plan a \\", "    --tpot 30ms | head -1", "old", "$ kubectl apply -f a.yaml", "done"]
    made = printed.rewrite(page(block), answer)
    assert (asked, made) == (["commtax plan a --tpot 30ms | head -1"], page([*block[:2], "new", *block[3:]]))


def test_a_block_without_a_command_is_refused():
    with pytest.raises(ValueError, match="begins with"):
        printed.rewrite(page(["an answer alone"]), str)


def test_a_stale_page_is_noticed_and_printed_anew(tmp_path, capsys):
    file = put(tmp_path, "page.md", page(["$ commtax pipeline -p 2 -m 2 | grep '^1f1b'", "1f1b: stale"]))
    assert printed.main(["--check", str(file)]) == 1
    assert "page.md is stale" in capsys.readouterr().out
    assert "stale" in file.read_text()
    assert (printed.main([str(file)]), printed.main(["--check", str(file)])) == (0, 0)
    assert "33.33%" in file.read_text()


def test_a_command_that_fails_is_not_shown(tmp_path):
    file = put(tmp_path, "page.md", page(["$ commtax fit no-such-model --cluster 8xh100-sxm"]))
    with pytest.raises(RuntimeError, match="exit code 2"):
        printed.main([str(file)])


def test_its_own_examples():
    assert doctest.testmod(printed).failed == 0
