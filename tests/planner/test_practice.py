"""Recommendations beside published practice: the list is what it says it is, and docs/practice.md says what rows give."""

import importlib.util
import re
import sys
from functools import cache

import pytest

from commtax import catalog
from each import each
from paths import ROOT


@cache
def practice():
    """The benchmark, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("practice", ROOT / "benchmarks" / "practice.py")
    module = sys.modules.setdefault("practice", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


ROWS = practice().rows()


@cache
def told():
    """The page's table: the cells of each row by its title."""
    lines = [line for line in practice().PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in lines)}


def test_the_list_is_broad():
    several = [row for row in ROWS if row["phase"] == "serve" and catalog.cluster(row["ask"]["cluster"]).num_hosts > 1]
    assert len(ROWS) >= 30
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert len(several) >= 8
    assert sum(row["phase"] == "train" for row in ROWS) >= 6
    assert all(row["source"]["url"].startswith("https://") and row["source"]["date"] for row in ROWS)


@each("row", ROWS, ids=lambda row: row["id"])
def test_a_published_plan_is_of_its_kind(row):
    bench, ran, cluster = practice(), row["ran"], catalog.cluster(row["ask"]["cluster"])
    if "decode" in ran:
        assert (row["kind"], row["decode_kind"]) == ("two pools", bench.kind_of(ran["decode"], cluster))
    else:
        assert row["kind"] == (bench.kind_of if row["phase"] == "serve" else bench.trained_kind)(ran, cluster)


def apart(text):
    """A cell's words, and its percentages."""
    return re.sub(r"\d+%", "%", text), [int(n) for n in re.findall(r"(\d+)%", text)]


@each("row", ROWS[::8], ids=lambda row: row["id"])  # all of them: benchmarks/practice.py
def test_the_page_says_what_a_row_gives(row):
    bench = practice()
    found = bench.line(bench.judged(row)).strip("| ").split(" | ")
    for said, now in zip(told()[row["title"]], found, strict=True):
        assert (apart(said)[0], apart(said)[1]) == (apart(now)[0], pytest.approx(apart(now)[1], abs=1))


def test_five_of_six_agree_and_misses_are_explained():
    assert sum(cells[-1] != "**no**" for cells in told().values() if cells[-1] != "agrees by") >= 25 / 30 * len(ROWS)
    text = practice().PAGE.read_text(encoding="utf-8")
    missed = [row["title"] for row in ROWS if told()[row["title"]][-1] == "**no**"]
    assert all(f"- **{title}**: " in text for title in missed)
