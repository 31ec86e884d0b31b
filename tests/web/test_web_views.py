"""The page's views in a real browser and over its API: plans, requests at a rate, memory, dropped files, what leaves the page."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from browser import missing, painted, until
from cli_run import run_here
from commtax.web.answering import ANSWERS
from commtax.web.serving_rates import histogram
from each import each
from page_pictures import kept_text, said_on_page
from paths import FIXTURES, ROOT
from tables import tables
from web_client import ask, get

DATA = tables(__file__)
why_not = missing()
needs_browser = pytest.mark.skipif(bool(why_not), reason=why_not)
SMALL = {"m": "llama-3.2-1b", "c": "2xh100-sxm"}
ASKED = {
    "plan": {**SMALL, "tpot": "20", "il": "512", "sure": "80"},
    "several": {**SMALL, "cs": "2xl40s", "usd": "2"},
    "fleet": {**SMALL, "c": "1xh100-sxm", "rps": "5", "ttft": "300", "tpot": "40", "stat": "p99"},
    "techniques": {**SMALL, "c": "1xh100-sxm", "try": "auto"},
    "training": {"m": "llama-3.2-1b", "c": "8xh100-sxm", "ph": "train", "gb": "64", "tok": "20"},
}
LIMITED = "m=llama-3.2-3b&c=2xh100-sxm&tpot=20#plan"
FULL = "document.querySelector('#plans-body .sortable tbody tr') !== null && !document.querySelector('#plans[aria-busy]')"
STATE = {"m": "llama-3.2-1b", "c": "2xh100-sxm", "tp": "2", "il": "256", "ol": "32"}
QUERY = "m=llama-3.2-1b&c=2xh100-sxm&tp=2&il=256&ol=32"
FILE = (b"content-type", b"application/octet-stream")
MANIFEST = DATA["manifest"]
DRAWN = "id => document.querySelector(`#${id} .plan-sentence`) !== null && !document.querySelector(`#${id}[aria-busy]`)"
CUT = """[...document.querySelectorAll('main .scroll, main table')]
  .filter(x => x.clientWidth && x.scrollWidth > x.clientWidth + 1).map(x => x.closest('section').id)"""


def words(found: Any) -> list[str]:
    return [
        found["sentence"],
        *found["why"],
        *(lost["reason"] for lost in found["lost"]),
        *(side["text"] for side in found["sides"]),
    ]


@each("kind", ASKED)
def test_what_the_page_shows_is_what_its_command_prints(kind: str) -> None:
    found = get(kind if kind in ANSWERS else "plan", **ASKED[kind])
    chosen = next(row for row in found["table"]["rows"] if "recommended" in row["roles"])
    more = ["--emit", chosen["commands"]["launch_engine"], "--json", *([] if kind == "fleet" else ["--top", "20"])]
    told = json.loads(run_here(*shlex.split(found["command"])[1:], *more).stdout)
    assert [row["verdict"] for row in found["plans"]] == [row["verdict"] for row in told["plans"]][: len(found["plans"])]
    assert found["recommended"] == told["recommended"]
    start = (point["row"] for point in found.get("points", ()) if point["name"].endswith(("balanced", " for users")))
    begun = next(start, chosen)  # without limits
    assert begun["commands"]["launch"] == told["emit"]["launch"], "it starts as the command line starts it"
    assert begun["commands"]["benchmark"] == told["emit"].get("benchmark", "")
    assert not any("--" in text for text in words(found)), "options are words of the command line"


@each("kind", ASKED)
def test_a_table_has_what_its_columns_say_and_one_recommended_plan(kind: str) -> None:
    found = get(kind if kind in ANSWERS else "plan", **ASKED[kind])
    rows, columns = found["table"]["rows"], found["table"]["columns"]
    assert sum("recommended" in row["roles"] for row in rows) == 1
    assert next(row for row in rows if "recommended" in row["roles"])["name"] == found["recommended"]["verdict"]
    for column in columns:
        for row in rows:
            low, high = row["ranges"].get(column["key"]) or (None, None)
            if low is not None:
                assert low <= row["values"][column["key"]] <= high
    assert {"fleet": "utilisation", "training": "days"}.get(kind, "tokens_per_s_per_user") in {c["key"] for c in columns}
    assert (len(found["sides"]), sum(point["best"] for point in found["front"])) == ((2 if kind == "several" else 0), 1)


def violations(page: Any, place: str = "html", *rules: str) -> list[tuple[str, str]]:
    """Rules of accessibility that a part of a page breaks seriously, as axe finds them: of some, or of all."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe.AXE_SCRIPT)
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": list(rules)} if rules else {})}
    found = page.evaluate("([place, options]) => axe.run(place, options)", [place, options])["violations"]
    return [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in ("serious", "critical")]


def column(page: Any, title: str) -> list[float]:
    cells = page.locator(f"#plans-body .sortable td[data-label='{title}'] > span").all_inner_texts()
    return [float(text.split()[0].replace(",", "").lstrip("$")) for text in cells]


def test_traffic_is_what_its_command_prints_and_grows_with_the_rate() -> None:
    found = get("traffic", **STATE)
    told = json.loads(run_here(*shlex.split(found["command"])[1:], "--json").stdout)
    assert found["runs"] == told["runs"]
    assert found["knee"] == told["knee"] == found["detail"]["rate"]
    assert found["rates"] == sorted(found["rates"])
    times = {row["metric"]: row for row in found["detail"]["times"]}
    for row in times.values():
        ordered = [row[name] for name in ("p50", "p90", "p95", "p99")]
        assert ordered == sorted(ordered)
    steps = found["detail"]["timeline"]["slices"]
    assert all(a[2] <= b[1] + 1e-5 for a, b in itertools.pairwise(steps)), "one engine has one step at a time"
    assert get("traffic", **STATE, rps="3")["detail"]["rate"] == 3


@given(st.lists(st.tuples(st.floats(1e-4, 10), st.integers(0, 1000)), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_a_histogram_holds_every_gap_once(gaps: list[tuple[float, int]]) -> None:
    times, counts = (np.array(column, dtype=float) for column in zip(*gaps, strict=True))
    told: Any = histogram(times, counts)
    if not counts.sum():
        assert told["shares"] == []
        return
    assert (sum(told["shares"]) + told["beyond"], told["edges_s"]) == (pytest.approx(1), sorted(told["edges_s"]))


def test_memory_is_what_its_command_prints_for_every_size() -> None:
    for tp in ("1", "2"):
        found = get("memory", **{**STATE, "tp": tp})
        told = json.loads(run_here(*shlex.split(found["command"])[1:], "--json").stdout)
        assert {key: found[key] for key in told} == told
    assert ([row["tp"] for row in found["sizes"]], found["sizes"][1]["kv_tokens"]) == ([1, 2], told["kv_tokens"])
    large = get("memory", m="llama-3.1-70b", c="8xh100-sxm")
    assert not large["fits"]
    assert large["advised"]
    assert not any("-" in word[:1] for line in large["advised"] for word in line.split()), "options are words of the command line"


def drop(name: str, body: bytes, *headers: tuple[bytes, bytes], query: str = "") -> tuple[int, Any]:
    sent = headers or (FILE, (b"content-length", str(len(body)).encode()))
    status, _, answer = ask("/api/audit", method="POST", headers=sent, raw=f"{query}file={name}".encode(), body=body)
    return status, json.loads(answer)


def test_a_dropped_file_is_audited_like_one_that_is_named() -> None:
    log = FIXTURES / "vllm-cpu-tp2.log"
    status, found = drop(log.name, log.read_bytes())
    assert (status, found["document"]) == (200, json.loads(run_here("audit", log, "--json").stdout))
    test = ROOT / "examples" / "all-reduce-8xh100.txt"
    status, found = drop(test.name, test.read_bytes())
    assert found["document"] == json.loads(run_here("audit", test, "--cluster", "8xh100-sxm", "--json").stdout), (
        "as its devices say"
    )
    assert (found["verdict"], found["patch"]) == ("disagree", {"c": "8xh100-sxm"})
    status, found = drop(log.name, log.read_bytes(), query="m=llama-3.1-8b&c=8xh100-sxm&claim=2&")
    assert (found["compared"], found["sizes"]) == (False, []), "its model is nobody's"
    named = log.read_bytes().replace(b"tiny-llama", b"Llama-3.1-8B")
    status, found = drop(log.name, named, query="m=llama-3.2-1b&c=4xh100-sxm&claim=2&")
    assert (found["compared"], found["title"].startswith("llama-3.1-8b on 4xh100-sxm, TP 2")) == (True, True), "as the file says"
    status, found = drop("deploy.yaml", MANIFEST.encode())
    assert (status, found["kind"]) == (200, "launch")
    assert found["patch"] == {"tp": 2, "m": "llama-3.1-8b", "e": "vllm@0.10.0"}


def test_ranks_dropped_together_are_one_run() -> None:
    ranks = [FIXTURES / f"vllm-cpu-tp2-rank{rank}.trace.json.gz" for rank in (0, 1)]
    bodies = [path.read_bytes() for path in ranks]
    sizes = f"sizes={','.join(str(len(body)) for body in bodies)}&"
    status, found = drop("/".join(path.name for path in ranks), b"".join(bodies), query=sizes)
    assert (status, found["document"]) == (200, json.loads(run_here("audit", *ranks, "--json").stdout))
    assert "rank 1 is the culprit" in found["title"]
    assert drop("a.log/b.log", b"xyz", query="sizes=1,1&")[0] == 422, "sizes that are not those of the bytes"


def test_a_glance_is_its_view_without_what_is_tried_out() -> None:
    tried = {"sentence", "changes", "commands", "limits", "moves"}
    for state in (STATE, {"m": "llama-3.2-1b", "c": "8xh100-sxm", "ph": "train", "tp": "2", "dp": "4"}):
        brief, whole = get("glance", **state), get("view", **state)
        assert {key for key in whole if brief[key] != whole[key]} == tried


@each("name", sorted(path.name for path in (ROOT / "docs" / "pictures").glob("page*.png")))
def test_pictures_of_the_page_say_what_it_says(name: str) -> None:
    """Stale ones: ``make figures``."""
    asked, *said = kept_text(ROOT / "docs" / "pictures" / name).splitlines()
    question, _, state = asked.partition("?")
    if question == "audit":
        assert "rank 1 is the culprit" in said[0]
        return
    assert said_on_page(question, get(question, **dict(parse_qsl(state)))) == said


def test_files_are_refused_by_name_and_nothing_of_the_machine_is_told() -> None:
    for name, body in (("notes.md", b"hello"), ("empty.log", b""), ("bad.yaml", b"kind: [")):
        status, found = drop(name, body)
        assert 400 <= status < 500
        assert "/dev/" not in found["error"]
    assert drop("a.log", b"x", (b"content-type", b"text/plain"), (b"content-length", b"1"))[0] == 415
    assert (drop("a.log", b"x", FILE)[0], drop("a.log", b"x", FILE, (b"content-length", b"99999999999"))[0]) == (411, 413)
    assert ask("/api/view", method="POST")[0] == 405


@needs_browser
def test_plans_are_sorted_by_a_click_and_the_address_knows(visit: Callable[..., Any]) -> None:
    page = visit(LIMITED, viewport={"width": 1440, "height": 1800})
    until(page, FULL)
    ranked = column(page, "per GPU")
    page.click("[data-k=sort-tokens_per_s_per_user]")
    assert page.url.endswith("#plan/tokens_per_s_per_user")
    assert column(page, "per user") == sorted(column(page, "per user"), reverse=True)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.k") == "sort-tokens_per_s_per_user", "the keyboard stays on the title"
    assert column(page, "per user") == sorted(column(page, "per user"))
    assert page.locator("[aria-sort=ascending]").count() == 1
    page.reload()
    until(page, FULL)
    assert column(page, "per user") == sorted(column(page, "per user")), "a link sorts as it did"
    page.click("[data-k=sort-tokens_per_s_per_user]")
    assert (column(page, "per GPU"), page.locator(".sortable tr.chosen").count()) == (ranked, 1)


@needs_browser
def test_a_plan_opens_with_its_launch_command_and_its_step(visit: Callable[..., Any]) -> None:
    page = visit(LIMITED, viewport={"width": 1440, "height": 2600})
    until(page, FULL)
    assert page.locator("#plans-body .legend li").count() >= 2
    assert page.locator("#plans-body .limit-line").count() <= 1
    page.locator("details.rejected summary").click()
    assert page.locator(".lost tr").count() >= 1
    page.locator(".chosen .plan-name").focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.plan-more code') !== null")
    assert "vllm serve" in page.inner_text(".plan-more code")
    assert page.inner_text(".plan-more li:nth-child(2) code").startswith("vllm bench serve")
    page.click(".plan-more button.strong")
    until(page, "location.hash === '#step' && document.getElementById('title').textContent.includes('TP')")
    painted(page)
    assert page.is_visible("#layer")
    assert not page.is_visible("#plans")
    page.go_back()
    until(page, FULL)
    assert page.is_visible("#plans")
    page.locator(".plan-name").nth(1).click()
    named = page.locator(".plan-name").nth(1).inner_text().replace("\xa0", " ")
    page.click("#views a[href='#fit']")
    until(page, DRAWN, "fit-view")
    assert named in page.inner_text("#fit-view .plan-sentence"), "other views follow the plan that is open in the table"
    painted(page)
    page.focus("#in-rep")
    page.keyboard.press("End" if "replicas" not in named else "Home")
    page.wait_for_selector("#use-recommended:visible")
    page.click("#use-recommended")
    page.wait_for_selector("#as-recommended:visible")


@needs_browser
def test_clusters_side_by_side_and_a_request_rate(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.2-1b&c=2xh100-sxm#plan", viewport={"width": 1440, "height": 2600})
    until(page, FULL)
    assert page.locator(".points h3").all_inner_texts() == ["Fastest", "Balanced", "Most tokens/s"], (
        "without limits no plan is the answer"
    )
    page.fill("#in-cs", "2xl40s")
    page.keyboard.press("Enter")
    until(
        page,
        "document.querySelectorAll('.sides:not(.points) .side').length === 2 && document.querySelector('.side.chosen') !== null",
    )
    assert [text.split(" ", 1)[1] for text in page.locator(".points h3").all_inner_texts()] == ["for users", "for bulk work"]
    assert "cs=2xl40s" in page.url
    assert len(set(page.locator("#plans-body .legend li").all_inner_texts()) & {"2xh100-sxm", "2xl40s"}) == 2
    page.click("#compared button")
    until(page, f"!location.search.includes('cs=') && {FULL} && !document.querySelector('.side.chosen')")
    page.check("#load-rate", force=True)
    page.fill("#in-rps", "4")
    page.keyboard.press("Enter")
    until(page, f"location.search.includes('rps=4') && {FULL} && document.querySelector('[data-k=sort-utilisation]') !== null")
    assert "--request-rate 4" in page.inner_text("#plans-body > .commands")


@needs_browser
def test_what_leaves_the_page(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit(LIMITED, viewport={"width": 1440, "height": 2600})
    until(page, FULL)
    kept = {}
    for kind in ("CSV", "JSON", "SVG", "PNG"):
        with page.expect_download() as saved:
            page.click(f"[data-k=export-commtax-plans-{kind}]")
        saved.value.save_as(tmp_path / kind)
        kept[kind] = (tmp_path / kind).read_bytes()
    answer = json.loads(kept["JSON"])
    rows = list(csv.DictReader(io.StringIO(kept["CSV"].decode())))
    assert [row["plan"] for row in rows] == [row["name"] for row in answer["table"]["rows"]]
    assert float(rows[0]["tpot_s_low"]) <= float(rows[0]["tpot_s"]) <= float(rows[0]["tpot_s_high"])
    assert b"tokens/s per user" in kept["SVG"]
    assert b"class=" not in kept["SVG"]
    assert kept["PNG"].startswith(b"\x89PNG")


@needs_browser
@pytest.mark.parametrize(("width", "scheme", "other"), [(400, "dark", "light"), (900, "dark", "light"), (1440, "light", "dark")])
def test_every_view_fits_its_window_and_can_be_read_by_all(visit: Callable[..., Any], width: int, scheme: str, other: str) -> None:
    """One look at each view; what a table holds is seen without scrolling sideways. Of the other scheme the colours are read."""
    page = visit(f"{QUERY}&tpot=20#plan", viewport={"width": width, "height": 6000}, scheme=scheme)
    for view, drawn in DATA["seen"].items():
        page.click(f"#views a[href='#{view}']")
        page.wait_for_selector(drawn)
        until(page, "!document.querySelector('main [aria-busy=true]')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert page.evaluate(CUT) == [], view
        if view == "plan":
            assert page.is_visible("#plans-body td[data-label=setup]")
        place = "html" if view in ("plan", "step") else "main"  # around it stands the same
        assert violations(page, place) == [], view
        page.emulate_media(color_scheme=other)
        assert violations(page, place, "color-contrast") == [], (view, other)
        page.emulate_media(color_scheme=scheme)


@needs_browser
def test_a_plan_is_found_with_the_keyboard_alone(visit: Callable[..., Any]) -> None:
    """A limit is typed, the answer opened, the table sorted, a plan's step shown: without a pointer."""
    page = visit("m=llama-3.2-3b&c=2xh100-sxm#plan", viewport={"width": 900, "height": 2600})
    until(page, FULL)
    page.focus("#show-inputs")
    page.keyboard.press("Enter")
    assert {"in-m", "in-c", "in-cs", "in-il"} <= set(tab_to(page, "in-tpot"))
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    until(page, f"location.search.includes('tpot=20') && {FULL}")
    tab_to(page, "start")
    page.keyboard.press("Enter")
    assert "vllm serve" in page.inner_text(".start code")
    tab_to(page, "sort-tokens_per_s_per_user")
    page.keyboard.press("Enter")
    assert page.url.endswith("#plan/tokens_per_s_per_user")
    page.focus(".chosen .plan-name")
    page.keyboard.press("Enter")
    page.focus(".plan-more .strong")
    page.keyboard.press("Enter")
    until(page, "location.hash === '#step' && document.querySelector('#layer svg') !== null")


def tab_to(page: Any, name: str) -> list[str]:
    passed = []
    for _ in range(80):
        page.keyboard.press("Tab")
        here, seen = page.evaluate("(a => [a.id || a.dataset.k || '', a.matches(':focus-visible')])(document.activeElement)")
        assert seen, here
        passed.append(here)
        if here == name:
            return passed
    raise AssertionError(f"{name} is not reached: {passed}")


@needs_browser
def test_a_busy_server_is_asked_again(visit: Callable[..., Any]) -> None:
    page = visit(f"{QUERY}#fit", refuse=True)
    until(page, DRAWN, "fit-view")
    refused: list[str] = []

    def busy(route: Any) -> None:
        if len(refused) < 2:
            refused.append(route.request.url)
            route.fulfill(status=429, headers={"retry-after": "0.1"}, body=json.dumps({"error": "busy", "argument": "server"}))
        else:
            route.continue_()

    page.route("**/api/memory*", busy)
    page.locator(".sizes button").first.click()
    until(page, "location.search.includes('tp=1') && document.querySelector('.sizes .chosen th').textContent.includes('TP 1')")
    assert len(refused) == 2
    assert page.is_hidden("#problem")


@needs_browser
def test_a_rate_is_chosen_on_the_picture_and_steps_are_scrubbed(visit: Callable[..., Any]) -> None:
    page = visit(f"{QUERY}#traffic", viewport={"width": 1280, "height": 2600})
    until(page, DRAWN, "traffic-view")
    assert (page.locator(".knee-line").count(), page.locator(".percentiles tbody tr").count()) == (2, 5)
    assert page.locator(".gap-bar").count() >= 2
    page.locator(".rate-band").first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    until(page, "location.search.includes('rps=') && location.hash === '#traffic'")
    painted(page)
    until(page, "document.querySelectorAll('.rate-band.own').length === 2 && !document.querySelector('#traffic-view[aria-busy]')")
    before = page.inner_html(".steps-window")
    page.focus("[data-k=scrub]")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert page.inner_html(".steps-window") != before
    page.keyboard.press("+")
    assert float(page.input_value("[data-k=scrub-span]")) < 2
    assert page.get_attribute("[data-k=scrub]", "aria-valuetext").startswith("from ")


@needs_browser
def test_a_file_is_dropped(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit(f"{QUERY}#run", refuse=True, viewport={"width": 400, "height": 2400})
    page.set_input_files("#in-file", [str(FIXTURES / f"vllm-cpu-tp2-rank{rank}.trace.json.gz") for rank in (1, 0)])
    until(page, DRAWN, "run-body")
    assert "rank 1 is the culprit" in page.inner_text("#run-body")
    assert page.inner_text("#run-named") == "2 files"
    assert page.locator("#run-body figure svg rect").count() > 20
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert violations(page) == []
    page.set_input_files("#in-file", str(ROOT / "examples" / "today.json"))
    page.get_by_role("button", name="2", exact=True).click()
    until(page, "document.getElementById('run-claim').checked")
    until(page, "location.search.includes('m=qwen3-32b') && document.querySelector('#run-body[aria-busy]') === null")
    until(page, "document.querySelector('#run-body .answer').textContent.includes('Taken from the file: model qwen3-32b')")
    painted(page)
    assert "qwen3-32b on 2xh100-sxm, TP 2" in page.inner_text("#run-claim-text")
    page.uncheck("#run-claim")
    page.set_input_files("#in-file", {"name": "notes.md", "mimeType": "text/plain", "buffer": b"hello"})
    page.wait_for_selector("#run-body [role=alert]")
    page.set_input_files("#in-file", {"name": "deploy.yaml", "mimeType": "text/yaml", "buffer": MANIFEST.encode()})
    until(page, DRAWN, "run-body")
    page.get_by_role("button", name="Does it fit?").click()
    until(page, DRAWN, "fit-view")
    assert {"m=llama-3.1-8b", "tp=2"} <= set(page.url.split("?")[1].split("#")[0].split("&"))
