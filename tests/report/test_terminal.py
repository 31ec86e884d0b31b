"""Answers on a real terminal of 40 to 140 columns: nothing is wider or cut, the answer comes first, colours can be read."""

import json
import re
from functools import cache
from itertools import pairwise

import pytest

from cli_run import run_here
from commtax.cli.app import READABLE as READABLE_SIGNS
from commtax.report.drawing import width_of
from paths import FIXTURES
from pseudo_terminal import SIGNS, on_a_terminal
from tables import tables

DATA = tables(__file__)

PLAN = ("plan", "llama-3.1-8b", "-c", "4xh100-sxm", "--ttft", "500ms", "--tpot", "30ms", "--top", "4")
TRAIN = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train", "-dp", "8")
ASKED = {
    "bill": ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8"),
    "train": (*TRAIN, "--engine", "fsdp", "--measured-mfu", "30%"),
    "why": ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8", "--why", "attention output"),
    "exact": ("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8", "--exact"),
    "plan": PLAN,
    "no plan": ("plan", "llama-3.1-70b", "-c", "2xh100-sxm", "--ttft", "10ms", "--tpot", "3ms"),
    "clusters": ("plan", "llama-3.1-8b", "-c", "2xl40s", "-c", "2xh100-sxm"),
    "compare": ("compare", "llama-3.1-8b", "-c", "8xh100-sxm", "--plans", "tp2,tp8", "--batches", "1,64"),
    "over": ("compare", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "2", "--over", "batch=1:8"),
    "simulate": ("simulate", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "2", "--concurrency", "64"),
    "fit": ("fit", "llama-3.1-405b", "-c", "8xh100-sxm"),
    "expect": ("expect", "all-reduce", "-c", "2x8xh100-sxm", "--size", "1G", "--measured", "450GB/s"),
    "pipeline": ("pipeline", "-p", "4", "-m", "16", "--schedule", "zb-h1"),
    "audit": ("audit", str(FIXTURES / "vllm-cpu-tp2.log")),
    "catalog": ("catalog", "chips", "h100-sxm"),
}
FIRST = DATA["first"]
WIDTHS = (40, 60, 80, 100, 140)
READABLE = {"0", "1", "2", "22", "31", "32", "34", "35", "36"}
"""Bold, dim, red, green, blue, magenta and cyan: no yellow, no white, nothing bright, no grounds."""
UNIT = re.compile(r"\s*(ms|µs|s|KiB|MiB|GiB|GB/s|GPUs?|tokens/s|%)(?![\w/])")


@cache
def printed():
    """All questions at all widths, by one process."""
    told = on_a_terminal(list(ASKED.values()), WIDTHS)
    return dict(zip([(width, name) for name in ASKED for width in WIDTHS], told, strict=True))


@cache
def told(*words):
    return run_here(*words).stdout


def lines(width, name):
    return SIGNS.sub("", printed()[width, name]).splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal_or_cut(width):
    for name in ASKED:
        shown = lines(width, name)
        assert shown, name
        assert max(map(width_of, shown)) <= width, name
        assert not any("…" in line for line in shown if name not in ("pipeline", "catalog")), name
        apart = [(one, two) for one, two in pairwise(shown) if re.search(r"\d$", one) and UNIT.match(two)]
        assert not apart, name


@pytest.mark.parametrize("width", WIDTHS)
def test_the_answer_comes_first(width):
    for name, first in FIRST.items():
        assert re.match(first, " ".join(" ".join(lines(width, name)[:6]).split())), name


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plan_has_its_whole_name(width):
    """In its column, which may fold, or in a record."""
    names = [row["verdict"].split(" = ")[1] for row in json.loads(told(*PLAN, "--json"))["plans"]]
    shown = lines(width, "plan")
    head = next((line for line in shown if re.match(r" +plan  ", line)), "")
    at, end = head.find("plan"), re.search(r"plan +(?=\S)", head)
    column = [line[at : end.end()] if end else line for line in shown]
    read = " ".join(" ".join(column).split())
    assert all(name in read for name in names)


def test_what_has_no_room_is_named_and_comes_with_the_room():
    def missing(width):
        found = re.search(r"not shown at \d+ columns: (.*?);", " ".join(" ".join(lines(width, "bill")).split()))
        return set(found[1].split(", ")) if found else set()

    assert missing(60) > missing(80) > missing(140) == set()
    assert missing(80) == {"how"}


def test_colours_can_be_read_on_any_ground_and_are_never_alone():
    used = {code for text in printed().values() for sign in SIGNS.findall(text) for code in sign.split(";") if code}
    assert used <= READABLE
    assert {"1", "2", "31"} <= used
    names = ("bill", "fit", "expect")
    for name, plain in zip(names, on_a_terminal([ASKED[name] for name in names], [100], NO_COLOR="1"), strict=True):
        codes = {code for sign in SIGNS.findall(plain) for code in sign.split(";") if code}
        assert codes <= {"0", "1", "2", "22"}
        assert SIGNS.sub("", plain).splitlines() == lines(100, name)


def test_a_pipe_is_as_wide_as_is_said_and_else_keeps_sentences_whole(monkeypatch):
    whole = told(*ASKED["bill"]).splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    folded = run_here(*ASKED["bill"]).stdout
    assert max(map(width_of, whole)) > 160
    assert max(map(width_of, folded.splitlines())) <= 80
    assert " ".join(whole[0].split()) in " ".join(folded.split())
    assert folded.splitlines() == lines(80, "bill")
    monkeypatch.setenv("COLUMNS", "20")
    assert max(map(width_of, run_here(*ASKED["exact"]).stdout.splitlines())) in range(30, 41)


def test_without_its_signs_an_answer_is_ascii_that_reads_alike():
    """Bars, marks, arrows and units; no question mark takes their place."""
    for name in ("bill", "plan", "simulate"):
        shown = told(*ASKED[name]).encode("ascii", READABLE_SIGNS).decode("ascii")
        assert "?" not in shown, name
        assert len(shown.splitlines()) == len(told(*ASKED[name]).splitlines())
    assert "\u2588\u2591 4 \u00b5s \u2192 \u00e9 \u4e2d".encode("ascii", READABLE_SIGNS) == b"#: 4 us -> e ?"


def test_details_add_and_change_nothing():
    """What is held back is counted, and comes with one option."""
    for name in ("bill", "simulate", "why"):
        *short, held = told(*ASKED[name]).splitlines()
        whole = run_here(*ASKED[name], "--details").stdout.splitlines()
        assert whole[: len(short)] == short
        assert re.fullmatch(rf"· {len(whole) - len(short)} more notes? with --details", held), name
