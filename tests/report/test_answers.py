"""Answers from Python: one screen of words, a page for notebooks, the command's own document, rows and figures."""

import inspect
import json
import re
import sys
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.answer import Answer, manners
from commtax.report.answers import HEIGHT, HOMES, WIDTH, to_rows
from commtax.statement import Refusal
from commtax.verbs.explained_step import ExplainedStep
from each import each
from paths import FIXTURES

SMALL, HOST = ("llama-3.2-1b", "2xh100-sxm"), ("llama-3.1-8b", "8xh100-sxm")
LOG, TINY = FIXTURES / "vllm-cpu-tp2.log", FIXTURES / "tiny-llama"
TRACES = [FIXTURES / f"vllm-cpu-tp2-rank{rank}.trace.json.gz" for rank in (0, 1)]
ASKED = {
    "bill": (lambda: commtax.bill(*HOST, tp=8), "bill llama-3.1-8b -c 8xh100-sxm -tp 8"),
    "prefill": (lambda: commtax.bill(*HOST, tp=2, phase="prefill"), "bill llama-3.1-8b -c 8xh100-sxm -tp 2 --phase prefill"),
    "train_bill": (
        lambda: commtax.train_bill(*HOST, dp=8, batch=8, engine="fsdp"),
        "bill llama-3.1-8b -c 8xh100-sxm --phase train --engine fsdp -dp 8 --batch 8",
    ),
    "traffic": (lambda: commtax.traffic(*HOST, tp=8), "bill llama-3.1-8b -c 8xh100-sxm -tp 8 --exact"),
    "why": (lambda: commtax.why(commtax.bill(*HOST, tp=8), "1"), "bill llama-3.1-8b -c 8xh100-sxm -tp 8 --why 1"),
    "fit": (lambda: commtax.fit(*HOST), "fit llama-3.1-8b -c 8xh100-sxm"),
    "no fit": (lambda: commtax.fit("llama-3.1-405b", "8xh100-sxm"), "fit llama-3.1-405b -c 8xh100-sxm"),
    "train_fit": (lambda: commtax.train_fit(*HOST, dp=8), "fit llama-3.1-8b -c 8xh100-sxm --phase train -dp 8"),
    "simulate": (lambda: commtax.simulate(*HOST, concurrency=32), "simulate llama-3.1-8b -c 8xh100-sxm --concurrency 32"),
    "clients": (
        lambda: commtax.simulate(*HOST, concurrency=np.array([1, 8, 64])),
        "simulate llama-3.1-8b -c 8xh100-sxm --concurrency 1,8,64",
    ),
    "serve": (
        lambda: commtax.serve(*SMALL, request_rate=4, num_prompts=50, output_len=16),
        "simulate llama-3.2-1b -c 2xh100-sxm --request-rate 4 --num-prompts 50 --output-len 16",
    ),
    "expect": (
        lambda: commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30, library="nccl"),
        "expect all-reduce -c 8xh100-sxm --size 1G --library nccl",
    ),
    "compare": (
        lambda: commtax.compare(*HOST, ["batch=1:8", "link=nvlink4,pcie5"], tp=2),
        "compare llama-3.1-8b -c 8xh100-sxm -tp 2 --over batch=1:8 --over link=nvlink4,pcie5",
    ),
    "compare_plans": (
        lambda: commtax.compare_plans(*HOST, ["tp8", "tp4r2"], batches=[1, 64]),
        "compare llama-3.1-8b -c 8xh100-sxm --plans tp8,tp4r2 --batches 1,64",
    ),
    "plan": (lambda: commtax.plan(*SMALL, tpot_s="15ms"), "plan llama-3.2-1b -c 2xh100-sxm --tpot 15ms"),
    "no plan": (lambda: commtax.plan(*SMALL, tpot_s="1us"), "plan llama-3.2-1b -c 2xh100-sxm --tpot 1us"),
    "read aloud": (lambda: commtax.plan("llama-3.2-1b", "dgx-spark"), "plan llama-3.2-1b -c dgx-spark"),
    "plan_training": (
        lambda: commtax.plan_training(*SMALL, global_batch=16, seq=2048),
        "plan llama-3.2-1b -c 2xh100-sxm --phase train --global-batch 16 --seq 2048",
    ),
    "plan_fleet": (
        lambda: commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", request_rate=5, num_prompts=100, output_len=16),
        "plan llama-3.2-1b -c 1xh100-sxm --request-rate 5 --num-prompts 100 --output-len 16",
    ),
    "plan_several": (
        lambda: commtax.plan_several("llama-3.2-1b", ["1xh100-sxm", "1xl40s"]),
        "plan llama-3.2-1b -c 1xh100-sxm -c 1xl40s",
    ),
    "worth": (lambda: commtax.worth(*HOST, tp=8), "worth llama-3.1-8b -c 8xh100-sxm -tp 8"),
    "pipeline": (lambda: commtax.pipeline(4, 8, schedule="zb-h1"), "pipeline -p 4 -m 8 --schedule zb-h1 --chunks 1"),
    "audit": (lambda: commtax.audit_run(LOG, model=str(TINY), cluster="2xcpu", tp=2), f"audit {LOG} -m {TINY} -c 2xcpu -tp 2"),
    "traces": (lambda: commtax.audit_run(*TRACES), f"audit {TRACES[0]} {TRACES[1]}"),
}
"""A function and the command that asks the same."""
ARRAYS = {
    "bills": lambda: commtax.bill(*HOST, tp=np.array([1, 2, 4, 8]), batch=[1, 8, 64, 256]),
    "sent": lambda: commtax.traffic(*HOST, tp=np.array([1, 2, 4, 8])),
    "loops": lambda: commtax.simulate(*HOST, tp=np.array([1, 2]), concurrency=8),
    "sizes": lambda: commtax.expect("all-reduce", "8xh100-sxm", nbytes=2.0 ** np.arange(10, 31, 4)),
}


@cache
def answer(name):
    return ARRAYS[name]() if name in ARRAYS else ASKED[name][0]()


@each("name", ASKED)
def test_a_dictionary_is_the_commands_document(name):
    done = run_here(*ASKED[name][1].split(), "--json")
    assert answer(name).to_dict() == json.loads(done.stdout), done.stderr


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 512), st.integers(1, 8192), st.sampled_from(["decode", "prefill", "mixed"]))
def test_any_step_is_documented_and_shown(tp, batch, context, phase):
    step = commtax.bill(*HOST, tp=tp, batch=batch, context=context, phase=phase)
    words = f"bill llama-3.1-8b -c 8xh100-sxm -tp {tp} --batch {batch} --context {context} --phase {phase} --json"
    assert step.to_dict() == json.loads(run_here(*words.split()).stdout)
    assert_one_screen(step)


def assert_one_screen(shown):
    text = repr(shown)
    assert text.count("\n") < HEIGHT
    assert max(map(len, text.splitlines())) <= WIDTH + 12  # drawings to scale are as wide as they are
    assert not re.search(r"object at 0x|\bnp\.|array\(", text)


@each("name", [*ASKED, *ARRAYS])
def test_a_screen_holds_it(name):
    assert_one_screen(answer(name))


class Page(HTMLParser):
    """Whether tags are closed, and what they would fetch or run."""

    def __init__(self, text):
        super().__init__()
        self.open, self.kinds, self.asked = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.kinds.add(tag)
        self.asked += [
            value for name, value in attrs if name in ("src", "href") or name.startswith("on") or "url(" in (value or "")
        ]
        self.open.append(tag)

    def handle_startendtag(self, tag, _attrs):
        self.kinds.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@each("name", [*ASKED, *ARRAYS])
def test_a_notebook_shows_it_without_scripts(name):
    page = Page(answer(name)._repr_html_())
    assert not page.open
    assert not page.asked
    assert not page.kinds & {"script", "link", "iframe", "img", "style"}
    assert "table" in page.kinds or name == "expect"
    drawn = name in ("bill", "prefill", "train_bill", "plan", "read aloud", "plan_training", "pipeline")
    assert ("svg" in page.kinds) == drawn


def test_a_layer_is_drawn_to_scale():
    """Boxes of compute and of collectives together are as long as the layer, in the shares that the bill has."""
    page, layer = answer("bill")._repr_html_(), ExplainedStep(answer("bill")).layer
    lanes = [sum(float(width) for width in re.findall(rf'y="{top}" width="([\d.]+)"', page)) for top in ("3.0", "37.0")]
    bars = [sum(bar.segment.seconds for bar in layer.bars if bar.segment.lane == lane) for lane in ("compute", "comm")]
    assert lanes[0] + lanes[1] == pytest.approx(900 - 76, abs=2)
    assert lanes[0] / lanes[1] == pytest.approx(bars[0] / bars[1], rel=0.02)


@each("name", [*ASKED, *ARRAYS])
def test_rows_are_flat_and_in_words(name):
    rows = to_rows(answer(name))
    assert rows or name == "no plan"
    for row in rows:
        assert row.keys() == rows[0].keys()
        assert all(value is None or isinstance(value, bool | int | float | str) for value in row.values())


def test_plans_have_words_instead_of_codes():
    row = to_rows(answer("plan"))[0]
    assert row["mode"] in ("together", "disaggregated")
    assert row["dtype"] == "as stored"
    assert row["plan"].startswith(f"{row['gpus']} GPU")
    assert sum(row["recommended"] for row in to_rows(answer("plan"))) == 1


@each("library", ["pandas", "polars"])
def test_frames_have_the_rows(library):
    pytest.importorskip(library)
    frame, rows = answer("plan").to_frame(library), to_rows(answer("plan"))
    assert list(frame.columns) == list(rows[0])
    assert len(frame) == len(rows)


def test_a_frame_needs_a_library(monkeypatch):
    for library in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed
    with pytest.raises(Refusal, match=r"needs pandas or polars \(pip install pandas\)"):
        answer("bill").to_frame()
    with pytest.raises(Refusal, match=r"needs polars \(pip install polars\)"):
        answer("bill").to_frame("polars")
    with pytest.raises(Refusal, match="library 'arrow': one of pandas, polars"):
        answer("bill").to_frame("arrow")


@each(
    "name",
    ["bill", "fit", "simulate", "clients", "expect", "plan", "plan_several", "worth", "pipeline", "audit", "traces", "bills"],
)
def test_a_figure_is_drawn(name):
    figure = answer(name).plot()
    assert figure.axes
    assert all(panel.has_data() for panel in figure.axes)


def test_nothing_is_drawn_of_nothing():
    with pytest.raises(Refusal, match="nothing to draw"):
        commtax.audit_run(LOG).plot()


def test_a_figure_is_for_any_ground_or_a_file(tmp_path):
    shown = answer("worth").plot()._repr_svg_()
    assert shown.count("#7a7a7a")
    assert "#000000" not in shown.split("<defs>", 1)[-1].split("</defs>")[-1]
    answer("worth").plot(tmp_path / "worth.svg")
    assert "<svg" in (tmp_path / "worth.svg").read_text()
    with pytest.raises(Refusal, match="must end in one of"):
        answer("worth").plot(tmp_path / "worth.txt")


def test_every_answer_of_the_public_functions_is_told():
    kinds = {name for name in commtax.__all__ if isinstance(getattr(commtax, name), type)}
    assert kinds == {*HOMES, *manners}
    assert all(issubclass(getattr(commtax, name), Answer) for name in kinds)
    assert kinds == {type(answer(name)).__name__ for name in ASKED}


@each("name", [name for name in commtax.__all__ if name != "napkin"])
def test_help_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(commtax, name))
