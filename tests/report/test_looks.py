"""One visual language: the table of looks against the page's style sheet and script, and what plots draw."""

import re
from pathlib import Path

import numpy as np

import commtax
from commtax import web
from commtax.report.plots import COLOURS, LIGHT, LOOKS, MARKERS, RECOMMENDED

PAGE = Path(web.__file__).parent / "page"


def test_page_and_plots_have_the_same_colours_and_as_many_marks():
    css, script = (PAGE / "page.css").read_text(), (PAGE / "front.js").read_text()
    on_page = {name: [light, dark] for name, light, dark in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\);", css)}
    assert {name: on_page[name] for name in LOOKS["colours"]} == LOOKS["colours"]
    series = [name for _, name in sorted(re.findall(r"\.series-(\d) \{ --series: var\(--([a-z-]+)\); \}", css))]
    assert series == LOOKS["series"]
    marks = re.search(r"const MARKS = \[(.*)\];", script)[1].count('"M')
    assert marks == len(MARKERS) == len(COLOURS)


def test_a_front_is_drawn_with_its_recommendation_limits_and_kinds():
    found = commtax.plan("llama-3.1-8b", "4xl40s", tpot_s=0.03, max_concurrency=16)
    axes = found.plot().axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    own = next(line for label, line in drawn.items() if label.startswith("Recommended"))
    assert own.get_marker() == RECOMMENDED
    rows, i = found.plans, found.recommended
    assert np.allclose(own.get_xydata(), [[rows.tokens_per_s_per_user[i], rows.tokens_per_s_per_gpu[i]]])
    assert drawn["TPOT 30 ms"].get_color() == LIGHT["hot"]
    assert "one pool of servers" in drawn
    assert max(map(len, axes.get_title(loc="left").split("\n"))) <= 100


def test_collectives_have_a_colour_of_their_own_in_a_bill():
    bill = commtax.bill("llama-3.1-8b", "2xh100-sxm", tp=2, batch=8)
    axes = bill.plot().axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    fills = {label: bar.get_facecolor() for label, bar in zip(labels, axes.patches, strict=True)}
    hot, cool = fills["tp attention output all-reduce"], fills["decode attention"]
    assert hot != cool
    assert {fill for label, fill in fills.items() if label.startswith("tp ")} == {hot}
