"""The page words notes its own way: it names its controls where a terminal names options."""

import pytest

import commtax
from commtax.report.view.pictures import serving_front, training_front
from commtax.report.view.state import LABELS, on_page
from commtax.words import words
from paths import ROOT


def test_the_page_names_its_controls_where_a_terminal_names_options() -> None:
    likely = words("likely", sure="99% likely", wanted="65%")
    assert (likely, on_page(likely)) == ("; 99% likely, 65% required (--confidence)", "; 99% likely, 65% required (‘Limits hold’)")
    assert on_page(words("within-margin", margin="5%")) == "within the margin of 5%; measure both"
    assert on_page(words("remedy-weights", dtype="fp8")) == "weights in fp8 (‘Weights’ fp8)"
    assert on_page("a decode step takes 2 ms") == "a decode step takes 2 ms"


def test_labels_are_those_of_the_controls() -> None:
    page = (ROOT / "src/commtax/web/page/index.html").read_text() + (ROOT / "src/commtax/web/page/inputs.js").read_text()
    for label in LABELS.values():
        assert f">{label}" in page or f'name: "{label}"' in page, label


HOST = ("llama-3.1-8b", "8xh100-sxm")
FRONTS = {
    "limits": lambda: serving_front(commtax.plan(*HOST, tpot_s="30ms")),
    "no limit": lambda: serving_front(commtax.plan(*HOST)),
    "too slow": lambda: serving_front(commtax.plan(*HOST, tpot_s="10us")),
    "too large": lambda: serving_front(commtax.plan("llama-3.1-405b", "1xh100-sxm")),
    "training": lambda: training_front(commtax.plan_training("llama-3.1-8b", "8xh100-sxm", global_batch=64)),
}


@pytest.mark.parametrize("name", FRONTS)
def test_the_page_names_no_flag(name: str) -> None:
    front = FRONTS[name]()
    shown = [front["sentence"], *front["why"], *(f"{row['family']} {row['reason']}" for row in front["lost"])]
    assert [text for text in shown if "--" in text] == []
