"""The documentation site's parts that need no build: links, drawings, the reference, and a place for every page.

``make docs`` builds the site and follows the links of what it built.
"""

import json
import re
import sys
import xml.etree.ElementTree as ET
from functools import cache
from importlib import import_module

import jsonschema_rs  # comes with schemathesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.cli import commands
from each import each
from paths import DOCUMENTS, ROOT
from tables import tables

DATA = tables(__file__)

DOCS = ROOT / "docs"
DRAWINGS = ("ring", "decode", "prefill", "memory", "bubble", "experts")


@cache
def tool(name):
    """A maker of documents, which is no part of the package."""
    folder = str(DOCUMENTS)
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)


def test_links_of_all_pages_lead_somewhere():
    links = tool("links")
    assert len(links.pages()) > 30
    assert not [line for page in links.pages() for line in links.broken_in(page)]


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
    """Pages of the navigation."""
    if isinstance(nav, str):
        return {nav}
    return set().union(*(placed(one) for one in (nav.values() if isinstance(nav, dict) else nav)))


def test_every_page_has_its_place():
    nav = placed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert not pages - nav


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


def test_the_reference_has_every_public_name():
    page = tool("reference").python_page()
    assert not [name for name in commtax.__all__ if name != "napkin" and f"### {name}\n" not in page]
    assert "tensor_parallel_allreduce_cost(" in page


OTHERS = DATA["others"]
"""Commands that the schemas were not made from."""


@each(("name", "command"), sorted(OTHERS.items()))
def test_documents_of_other_questions_satisfy_the_schema(name, command):
    schema = tool("json_reference").schema(name)
    made = json.loads(run_here(*command.split(), "--json").stdout)
    jsonschema_rs.validate(schema, made)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**made, "schema": "commtax.other/1"})


def test_every_document_of_the_table_is_in_the_reference():
    """But those of the laboratory."""
    table = (ROOT / "src" / "commtax" / "report" / "documents.toml").read_text()
    known = set(re.findall(r'"= (commtax\.[\w-]+/\d)"', table)) - {"commtax.constants/1"}
    assert not known - tool("json_reference").listed().keys()


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
