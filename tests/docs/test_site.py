"""The documentation site, its closed forms, claims and notebook: what a page says is what is true now."""

import inspect
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import jsonschema_rs  # comes with schemathesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog, napkin
from commtax.cli import commands
from commtax.spelling import ALIASES
from commtax_lab.claims import claims, hierarchical_tax
from each import each
from paths import DOCUMENTS, FIXTURES, ROOT
from tables import tables

DATA = tables(__file__)
DOCS = ROOT / "docs"
DRAWINGS = ("ring", "decode", "prefill", "memory", "bubble", "experts")
OTHERS = DATA["others"]
"""Commands that the schemas were not made from."""
CASES = json.loads((FIXTURES / "reference_cases.json").read_text())
FUNCTIONS = sorted({c["function"] for c in CASES})
BY_KEY = {c.key: c for c in claims()}
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
NEEDED = {"to_frame": "pandas", "frame[": "pandas"}


@cache
def tool(name):
    folder = str(DOCUMENTS)
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)


def test_links_of_all_pages_and_places_of_pages():
    links = tool("links")
    assert len(links.pages()) > 30
    assert not [line for page in links.pages() for line in links.broken_in(page)]
    nav = placed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert not pages - nav


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    links = tool("links")
    monkeypatch.setattr(links, "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# One place\n\n## One place\n\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-place) [c](there.md#one-place_1) `[d](code.md)` [e](https://example.org/x)\n"
        "[f](gone.md) ![g](gone.svg) [h](there.md#no-heading) [i](#nowhere)\n"
    )
    assert [line.split(": ")[1] for line in links.broken_in(page)] == ["gone.md", "gone.svg", "there.md#no-heading", "#nowhere"]


def test_a_broken_link_of_a_built_site_is_found(tmp_path):
    links = tool("links")
    (tmp_path / "index.html").write_text('<h1 id="top">x</h1><a href="b.html#top">1</a><a href="b.html#no">2</a><img src="no.png">')
    (tmp_path / "b.html").write_text('<p id="top"></p><a href="#top"></a><script src="https://example.org/x.js"></script>')
    said = [line.partition(": ")[2] for line in links.broken_in_site(tmp_path)]
    assert sorted(said) == ["b.html#no: there is no such place", "loads https://example.org/x.js", "no.png: there is no such page"]


def placed(nav):
    if isinstance(nav, str):
        return {nav}
    return set().union(*(placed(one) for one in (nav.values() if isinstance(nav, dict) else nav)))


@each("name", DRAWINGS)
def test_drawings_show_what_commtax_answers(name):
    """Stale ones: ``make figures``."""
    kept = (DOCS / "concepts" / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == tool("concepts").DRAWINGS[name]().svg()


@each("name", DRAWINGS)
def test_words_of_a_drawing_stay_on_its_paper(name):
    """By a generous width of letters; colours are named, so that they follow light and dark."""
    drawing = ET.fromstring((DOCS / "concepts" / f"{name}.svg").read_text(encoding="utf-8"))
    wide, high = map(float, drawing.get("viewBox").split()[2:])
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        length = len(text.text) * float(text.get("font-size")) * 0.52
        start = float(text.get("x")) - {"start": 0, "middle": length / 2, "end": length}[text.get("text-anchor")]
        assert start >= 0, text.text
        assert start + length <= wide, text.text
        assert 0 < float(text.get("y")) < high
    assert not re.findall(r'(?:fill|stroke)="#', ET.tostring(drawing, encoding="unicode"))


@given(st.integers(2, 24))
def test_the_ring_that_is_drawn_adds_everything_and_sends_what_the_closed_form_says(ranks):
    concepts = tool("concepts")
    everyone = frozenset(range(ranks))
    assert all(piece == everyone for pieces in concepts.ring_sums(ranks) for piece in pieces)
    sent = len(concepts.ring_sends(ranks)) / ranks
    assert sent == pytest.approx(commtax.napkin.ring_allreduce_traffic_per_rank(1.0, ranks))


@each("name", sorted(commands([]).commands))
def test_the_reference_has_every_option_of_a_command(name):
    page = tool("reference").command_page(name)
    options = [
        option for param in commands([]).commands[name].params if not getattr(param, "hidden", False) for option in param.opts
    ]
    assert not [option for option in options if option.startswith("--") and option not in page]


def test_the_reference_has_every_public_name_and_document():
    page = tool("reference").python_page()
    assert not [name for name in commtax.__all__ if name != "napkin" and f"### {name}\n" not in page]
    assert "tensor_parallel_allreduce_cost(" in page
    table = (ROOT / "src" / "commtax" / "report" / "documents.toml").read_text()
    known = set(re.findall(r'"= (commtax\.[\w-]+/\d)"', table)) - {"commtax.constants/1"}
    assert not known - tool("json_reference").listed().keys()


@each(("name", "command"), sorted(OTHERS.items()))
def test_documents_of_other_questions_satisfy_the_schema(name, command):
    schema = tool("json_reference").schema(name)
    made = json.loads(run_here(*command.split(), "--json").stdout)
    jsonschema_rs.validate(schema, made)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**made, "schema": "commtax.other/1"})


def arithmetic():
    """Sentences of the concepts, with the figures that commtax gives now."""
    napkin, all_reduce = commtax.napkin, commtax.why(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8), "attention output")
    weights = float(commtax.fit("llama-3.1-8b", "1xh100-sxm").weights_bytes)
    chosen = commtax.traffic("deepseek-v3", "8x8xh200-sxm", dp=64, ep=64, batch=128, ep_backend="deepep_low_latency").lines[0].item
    few, many = (commtax.pipeline(4, m).over_total for m in (4, 12))
    yield "ring", f"**{napkin.ring_allreduce_traffic_per_rank(8192, 8) / 1024:.0f} KiB** per GPU"
    yield "decode", f"in {14336 / 450e9 * 1e6:.2f} µs"
    yield "decode", f"takes\n{all_reduce.each_s * 1e6:.0f} µs"
    yield "prefill", f"{weights / 1e9:.1f} GB at 3.35 TB/s is **{napkin.decode_step_floor_s(weights, 3.35e12) * 1e3:.1f} ms**"
    yield "prefill", f"**{weights / 989.4e12 * 1e6:.0f} µs per token**"
    yield "prefill", f"**{napkin.ridge_point(989.4e12, 3.35e12):.0f} tokens**"
    yield "memory", f"= {napkin.kv_bytes_per_token(80, 8, 128, 2) // 1024} KiB per token"
    yield "bubble", f"3/7 = {few:.0%} for 4 microbatches, 3/15 = {many:.0%} for 12"
    yield "bubble", f"you need\n{napkin.min_microbatches_for_bubble(8, 0.1)}"
    yield "experts", f"= {float(chosen.nbytes) / 2**20:.2f} MiB to dispatch"
    yield "experts", f"**{float(chosen.sent_bytes_per_rank) / 2**20:.0f} MiB**"


def test_the_arithmetic_of_concepts_is_that_of_commtax():
    assert [said for page, said in arithmetic() if said not in (DOCS / "concepts" / f"{page}.md").read_text(encoding="utf-8")] == []


def agrees(found, expected, tolerance):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(agrees(found[k], expected[k], tolerance) for k in expected)
    if tolerance["kind"] == "exact" or isinstance(expected, bool):
        return found == expected
    if tolerance["kind"] == "rel":
        return math.isclose(found, expected, rel_tol=tolerance["value"], abs_tol=0)
    return abs(found - expected) <= tolerance["value"]


@each("case", CASES, ids=[c["id"] for c in CASES])
def test_reference_case(case):
    found = getattr(napkin, case["function"])(**case["inputs"])
    assert agrees(found, case["expected"], case["tolerance"]), f"{found} instead of {case['expected']}"


@given(st.integers(2, 200), st.integers(1, 400))
def test_min_microbatches_is_the_smallest(stages, m):
    assert napkin.min_microbatches_for_bubble(stages, napkin.bubble_fraction(stages, m)) == m


@given(st.integers(1, 64), st.floats(1e-6, 1.0))
def test_min_microbatches_meets_any_budget(stages, budget):
    m = napkin.min_microbatches_for_bubble(stages, budget)
    assert napkin.bubble_fraction(stages, m) <= budget
    assert m == 1 or napkin.bubble_fraction(stages, m - 1) > budget


@given(st.integers(0, 2**40), st.integers(1, 4096), st.floats(1e6, 1e13), st.floats(0, 1))
def test_ring_time_splits_into_its_two_terms(payload, ranks, bandwidth, latency):
    whole = napkin.allreduce_time_s(payload, ranks, bandwidth, latency)
    wire = napkin.ring_allreduce_traffic_per_rank(payload, ranks) / bandwidth
    assert math.isclose(whole, wire + 2 * (ranks - 1) * latency, rel_tol=1e-12)
    if ranks == 1:
        assert whole == 0


@given(st.integers(2, 512), st.floats(1e6, 1e13), st.floats(1e-8, 1e-2))
def test_at_the_crossover_latency_equals_bandwidth(ranks, bandwidth, latency):
    payload = napkin.crossover_payload_bytes(ranks, bandwidth, latency)
    wire = napkin.ring_allreduce_traffic_per_rank(payload, ranks) / bandwidth
    assert math.isclose(wire, 2 * (ranks - 1) * latency, rel_tol=1e-9)


def valid_inputs(name):
    return next(dict(c["inputs"]) for c in CASES if c["function"] == name)


@each("name", FUNCTIONS)
@each("bad", [-1, math.nan, math.inf, "8", None, True], ids=str)
def test_bad_values_name_the_argument(name, bad):
    function = getattr(napkin, name)
    for argument, value in valid_inputs(name).items():
        if isinstance(value, dict):
            continue
        with pytest.raises(ValueError, match=argument):
            function(**{**valid_inputs(name), argument: bad})


@each("name", FUNCTIONS)
def test_fractional_counts_are_refused_and_whole_floats_pass(name):
    function, inputs = getattr(napkin, name), valid_inputs(name)
    counts = [a for a in inputs if a.startswith(("num_", "batch_", "tp", "pp", "hidden", "top_k")) and inputs[a] is not None]
    for argument in counts:
        with pytest.raises(ValueError, match=argument):
            function(**{**inputs, argument: 2.5})
        assert function(**{**inputs, argument: float(inputs[argument])}) == function(**inputs)


@each("name", FUNCTIONS)
def test_zero_ranks_or_bandwidth_are_refused(name):
    inputs = valid_inputs(name)
    for argument in inputs:
        if argument in ("num_ranks", "num_gpus", "num_stages", "num_microbatches") or "bandwidth" in argument:
            with pytest.raises(ValueError, match=argument):
                getattr(napkin, name)(**{**inputs, argument: 0})


@each("name", FUNCTIONS)
def test_unknown_keywords_are_type_errors(name):
    with pytest.raises(TypeError):
        getattr(napkin, name)(**valid_inputs(name), no_such_argument=1)


def test_extremes_neither_hang_nor_overflow_and_zero_sizes_are_free():
    for call in (
        lambda: napkin.min_microbatches_for_bubble(8, 1e-300),
        lambda: napkin.allreduce_time_s(1e308, 2, 1e-308, 0),
        lambda: napkin.allreduce_payload_bytes(1e308, 1e308),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    assert (napkin.comm_fraction(1e59, 1e59), napkin.tp_comm_time_per_step(0, 4096, 32, 1, 1e9, 1e-6)) == (0.5, 0)
    assert napkin.tp_comm_time_per_step(8, 4096, 0, 8, 1e9, 1e-6) == 0
    assert (napkin.ep_alltoall_bytes_per_rank(0, 4096, 2, 32, 8), napkin.comm_fraction(0, 0)) == (0, 0)
    link = {"bandwidth_Bps": 1e9, "latency_s": 1e-6}
    assert napkin.breakeven_overlap_fraction(link, link, 1, 4096, 32, 2) == 0
    with pytest.raises(ValueError, match="slow"):
        napkin.breakeven_overlap_fraction({"bandwidth_Bps": 1e9}, link, 1, 4096, 32, 2)


def test_the_lab_and_compare_find_the_same_share_of_their_own_times():
    """The lab's rings 41 %, the kernels of an engine 74 %: one definition, other latencies."""
    slow, fast = {"bandwidth_Bps": 50e9, "latency_s": 5e-6}, {"bandwidth_Bps": 450e9, "latency_s": 3e-6}
    assert round(napkin.breakeven_overlap_fraction(slow, fast, 1, 4096, 32, 2), 2) == 0.41
    swept = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["link=nvlink4,ib-ndr"], tp=2, batch=1)
    near, far = (float(row.bill.exposed_comm_s) for row in swept.rows)
    shares = [swept.breakeven_overlap(row) for row in swept.rows]
    assert (shares, round(shares[1], 2)) == ([0, napkin.breakeven_overlap(far, near)], 0.74)
    hidden = commtax.bill("llama-3.1-8b", catalog.cluster("2x1xh100-sxm", inter="ib-ndr"), tp=2, batch=1, overlap=shares[1])
    assert float(hidden.step_s) == pytest.approx(float(swept.rows[0].bill.step_s), rel=0.001)


def test_signatures_and_aliases_are_the_contract():
    assert inspect.signature(napkin.tp_tax).parameters["tp"].default == 2
    parameters = inspect.signature(napkin.overlap_calculator).parameters
    keyword_only = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert tuple(keyword_only) == DATA["signatures_are_the_contract"]
    from commtax.cli import commands

    known = {o for command in commands([]).commands.values() for p in command.params for o in p.opts}
    assert set(ALIASES.values()) <= known
    assert hierarchical_tax(8192, 1, 8, 990e12, 450e9, 50e9) == pytest.approx(napkin.tp_tax(990e12, 450e9, 8192, tp=8))


@each(("key", "figures"), DATA["figures"])
def test_figures(key, figures):
    text = f"{BY_KEY[key].says} {BY_KEY[key].arithmetic}"
    assert all(f in text for f in figures), text


def test_every_claim_says_why_and_there_are_all_cases():
    assert len(claims()) == len(BY_KEY) == 15
    assert all(c.says and c.arithmetic and c.why and c.document for c in BY_KEY.values())
    assert (len(CASES), BY_KEY["study-tp2-no-gain"].ratio) == (99, pytest.approx(7.08 / 5.05, rel=0.03))


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCUMENTS))
    monkeypatch.chdir(NOTEBOOK.parent)
    yield __import__("notebook")
    sys.modules.pop("notebook")


def test_cells_run_and_show_what_is_kept(runner):
    scope = {}
    for number, cell in enumerate(runner.code_cells(json.loads(NOTEBOOK.read_text())), 1):
        source = "".join(cell["source"])
        if any(name in source and not find_spec(library) for name, library in NEEDED.items()):
            continue
        shown = runner.outputs(*runner.run_cell(source, scope), number)
        assert [own(output) for output in cell["outputs"]] == [own(output) for output in shown], source


def own(output):
    """Text and pages of ours to the letter; of tables and figures by others which forms there are."""
    data = output.get("data", {})
    if "image/svg+xml" in data or "dataframe" in "".join(data.get("text/html", ())):
        return sorted(data)
    return output


def test_it_is_a_notebook_that_any_theme_can_show():
    kept = json.loads(NOTEBOOK.read_text())
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    pages = ["".join(o["data"].get("text/html", ())) for cell in kept["cells"] for o in cell.get("outputs", ()) if "data" in o]
    assert not [page for page in pages if "<script" in page or "color:black" in page or "background:white" in page]
