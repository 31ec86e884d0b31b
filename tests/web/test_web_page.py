"""The page in a real browser: what a person moves, clicks, types and reads; and rules of its source that need no browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from browser import missing, painted, served, until
from cli_run import run_here
from paths import HELPERS

why_not = missing()
needs_browser = pytest.mark.skipif(bool(why_not), reason=why_not)
PAGE = files("commtax.web") / "page"
TRAIN = "m=llama-3.1-70b&c=8x8xh100-sxm&ph=train&tp=4&pp=4&dp=4&n=16&rc=full&z=1"


def picture(page: Any) -> tuple[str, ...]:
    return tuple(page.inner_text(f"#{name}") for name in ("sentence", "axes", "bill", "changes", "memory", "commands"))


def share(page: Any) -> float:
    return float(page.inner_text("#figures .figure:nth-child(2) .value").rstrip("%"))


def wait_title(page: Any, words: str) -> None:
    until(page, "words => document.getElementById('title').textContent.includes(words)", words)


@needs_browser
def test_sliders_move_and_repaint(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=2&b=4")
    before, entries = picture(page), page.evaluate("history.length")
    page.focus("#in-tp")
    page.keyboard.press("ArrowRight")
    wait_title(page, "TP 4")
    painted(page)
    assert "tp=4" in page.url
    assert page.evaluate("history.length") == entries, "sliding makes no entries in the history"
    assert all(a != b for a, b in zip(before[:3], picture(page)[:3], strict=True))
    page.focus("#in-b")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('output[for=in-b]').textContent === '64'")
    painted(page)
    assert "b=64" in page.url, "no key press is lost to an older answer"
    page.keyboard.press("End")
    until(page, "document.getElementById('the-sentence').textContent.includes('batch 4') === false")
    painted(page)
    assert page.inner_text("output[for=in-b]").replace(",", "") in page.url.split("b=")[1]


@needs_browser
def test_sizes_that_are_tied_follow_and_it_is_said(visit: Callable[..., Any]) -> None:
    page = visit("m=deepseek-v3&c=2x8xh200-sxm&tp=8&dp=2&ep=16&b=64")
    page.focus("#in-tp")
    page.keyboard.press("ArrowLeft")
    wait_title(page, "TP 4")
    painted(page)
    assert "EP 16 → 8" in page.inner_text("#moved")
    assert {"tp=4", "dp=2", "ep=8"} <= set(page.url.split("?")[1].split("&"))
    page.click("#presets button >> text=70B training")
    wait_title(page, "64 GPUs")
    painted(page)
    assert page.inner_text("#moved") == ""
    page.focus("#in-tp")
    page.keyboard.press("ArrowRight")
    wait_title(page, "TP 16")
    assert "DP 8 → 4" in page.inner_text("#moved")
    assert "the same global batch" in page.inner_text("#moved")


@needs_browser
def test_a_link_shows_the_same_picture(visit: Callable[..., Any]) -> None:
    page = visit(TRAIN)
    before = picture(page)
    page.reload()
    painted(page)
    assert (picture(page), picture(visit(page.url))) == (before, before)


@needs_browser
def test_presets_and_the_back_button(visit: Callable[..., Any]) -> None:
    page = visit("")
    assert {"ttft=1000", "tpot=50"} <= set(page.url.split("?")[1].split("#")[0].split("&")), "limits that can be seen and cleared"
    page.click("#views a[href='#step']")
    until(page, "location.search.includes('tp=4') && location.search.includes('rep=2')")  # the recommended plan
    painted(page)
    assert page.is_visible("#as-recommended")
    names = page.locator("#presets button").all_inner_texts()
    assert len(names) >= 6
    titles = []
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()
        painted(page)
        titles.append(page.text_content("#title"))
        assert page.is_hidden("#problem")
    assert len(set(titles)) == len(titles)
    page.go_back()
    wait_title(page, titles[-2])
    page.go_forward()
    wait_title(page, titles[-1])


@needs_browser
def test_the_tour_shows_both_flips(visit: Callable[..., Any]) -> None:
    page = visit("")
    page.click("#start-tour")
    steps = []
    while True:
        page.wait_for_selector("#tour:not([hidden])")
        painted(page)
        cards = page.locator("#tour .lesson-cards li")
        assert cards.count() >= 1
        assert "textbook" in cards.first.inner_text()
        assert "here" in cards.first.inner_text()
        assert page.locator(".watched").count() == 1
        axes = {row.split("\t")[0]: row for row in page.locator("#axes tbody tr").all_inner_texts()}
        steps.append((page.inner_text("#tour-title"), share(page), axes))
        if page.inner_text("#tour-next") == "Done":
            break
        page.click("#tour-next")
        until(page, "was => document.getElementById('tour-title').textContent !== was", steps[-1][0])
    shares = [found for _, found, _ in steps]
    assert shares[1] > 1.5 * shares[0], "TP past the edge of the NVLink domain"
    assert shares[-1] > 2 * shares[-2], "local tokens under the threshold"
    assert "binding" in steps[1][2]["TP"]
    assert "binding" in steps[-1][2]["DP"]
    page.reload()
    page.wait_for_selector("#tour:not([hidden])")
    assert page.inner_text("#tour-title") == steps[-1][0], "the tour's step is in the address"
    page.click("#tour-close")
    assert page.is_hidden("#tour")
    assert page.evaluate("document.activeElement.id") == "start-tour"


@needs_browser
def test_buttons_that_change_the_answer(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8&b=16")
    page.locator("button.change", has_text="tp 4").click()
    wait_title(page, "TP 4")
    painted(page)
    assert "tp=4" in page.url


@needs_browser
def test_a_click_on_a_line_explains_it(visit: Callable[..., Any]) -> None:
    """One at a time, below the line; another click closes it, and the keyboard does the same."""
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8&b=32")
    page.click("[data-k=why-1]")
    until(page, "document.querySelector('.why-row strong') !== null")
    assert "of the step" in page.inner_text(".why strong")
    assert page.locator(".why tbody tr").count() >= 2
    page.focus("[data-k=why-2]")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('[data-k=why-2]').closest('tr').nextSibling?.querySelector('strong') != null")
    assert page.locator(".why-row").count() == 1
    page.click("[data-k=why-2]")
    assert page.locator(".why-row").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
def test_maps_load(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8&b=16", viewport={"width": 1280, "height": 4200})
    page.wait_for_selector(".map")
    until(page, "() => !document.querySelector('[aria-busy]')")  # what is drawn later moves what was drawn before
    maps = page.locator(".map")
    assert [maps.nth(i).locator("caption").inner_text() for i in (0, 1)] == ["TP × link", "TP × batch"]
    assert maps.nth(0).locator("td.own").count() == 1
    assert maps.nth(0).locator(".edge-left, .edge-top").count() >= 1, "a slow link does not pay somewhere"
    maps.nth(1).locator("tbody tr").nth(1).locator("button").nth(2).click()
    wait_title(page, "TP 2")
    painted(page)
    assert "tp=2" in page.url
    assert "b=4" in page.url
    assert page.is_hidden("#problem")


@needs_browser
def test_a_point_of_the_front_loads_its_step(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=2&b=4#plan", viewport={"width": 1280, "height": 2600})
    page.wait_for_selector(".plan")
    before = page.url
    page.locator(".plan:not([aria-disabled])").first.focus()
    assert "TPOT" in page.inner_text("#tip")
    page.keyboard.press("Enter")
    until(page, "was => location.href !== was && location.hash === '#step'", before)
    painted(page)
    assert page.is_hidden("#problem")


@needs_browser
def test_a_trained_plan_is_trained_in_every_view(visit: Callable[..., Any]) -> None:
    for view, word in (("step", "mfu"), ("fit", "optimizer")):
        page = visit("m=llama-3.2-1b&c=8xh100-sxm&ph=train&gb=64&ttft=1000#plan")
        page.wait_for_selector(".plan")
        page.click(f"#views a[href='#{view}']")
        until(page, "location.search.includes('dp=')")
        painted(page)
        assert "ph=train" in page.url
        until(page, "word => document.body.innerText.toLowerCase().includes(word)", word)


@needs_browser
def test_techniques_are_weighed_and_a_click_turns_one_on(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-70b&c=8xh100-sxm&tp=8", viewport={"width": 1280, "height": 4200})
    page.wait_for_selector("table.worth tbody tr")
    rows, plain = page.locator("table.worth tbody tr"), page.inner_text("#the-sentence")
    names = [rows.nth(i).locator("button.technique").inner_text() for i in range(rows.count())]
    assert names[0].startswith("eagle3=")
    assert rows.locator(".change-by.better").count() >= 1
    assert rows.locator(".change-by:not(.better)").count() >= 1, "those that lose are shown as losing"
    page.locator("#worth-body summary").click()
    assert "has no experts" in page.inner_text("#worth-body details"), "and those that cannot be had with why"
    rows.nth(0).locator("button").click()
    wait_title(page, f"with {names[0]}")
    painted(page)
    assert f"tq={names[0]}" in unquote(page.url)
    assert page.inner_text("#the-sentence") != plain
    assert f"--technique {names[0]}" in page.inner_text("#commands")


@needs_browser
def test_pipeline_and_memory_are_drawn(visit: Callable[..., Any]) -> None:
    page = visit(TRAIN, viewport={"width": 1280, "height": 4600})
    page.wait_for_selector("#pipeline-body .stage-f")
    assert page.locator("#pipeline-body .bubble").count() >= 4
    assert "bubble" in page.inner_text("#pipeline-body .legend")
    assert page.locator("#memory-body .memory-part").count() >= 3
    assert page.locator("#layer .hidden-bandwidth").count() >= 1, "gradients hide under backward"
    assert page.locator("#layer .exposed-bandwidth").count() >= 1


@needs_browser
def test_copying_a_command(visit: Callable[..., Any], address: str) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8&b=16")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    commands = page.evaluate("fetch('api/view?' + location.search.slice(1)).then(r => r.json()).then(v => v.commands)")
    for button, line in zip(page.locator(".copy").all(), (commands["commtax"], commands["launch"], commands["nccl"]), strict=True):
        page.bring_to_front()  # a browser lets the page in front alone write to the clipboard
        button.click()
        until(page, "document.getElementById('said').textContent === 'Copied.'")
        assert page.evaluate("navigator.clipboard.readText()") == line
        page.evaluate("document.getElementById('said').textContent = ''")


@needs_browser
def test_bad_input_is_shown_and_the_picture_stays(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8", refuse=True)
    title = page.inner_text("#title")
    page.fill("#in-m", "<img src=x onerror=alert(1)>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem[role=alert]:not([hidden])")
    assert (page.inner_text("#title"), page.locator("#problem img").count()) == (title, 0)
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("#problem", state="hidden")
    page.check("#mode-pasted", force=True)
    page.fill("#in-cfg", "{not json")
    page.click("#use-config")
    page.wait_for_selector("#problem:not([hidden])")
    assert "JSON" in page.inner_text("#problem")
    wrong = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=3", refuse=True)
    assert "tp=3" in wrong.inner_text("#problem")
    wrong.locator("#problem button", has_text="Use").first.click()
    wrong.wait_for_selector("#problem", state="hidden")
    assert "tp=3" not in wrong.url


@needs_browser
def test_an_answer_that_never_comes_is_told_in_words_and_given_up_when_the_state_moves_on(visit: Callable[..., Any]) -> None:
    """The plans of 2xa100-80-sxm have no end on this server (``slow_nursery``)."""
    with served(str(HELPERS / "slow_server.py")) as slow:
        page = visit(f"{slow}/?m=llama-3.2-1b&c=2xa100-80-sxm#plan", refuse=True, viewport={"width": 1280, "height": 5200})
        page.get_by_text("plan: not answered within").wait_for()
        assert "command line" in page.inner_text("#plans-body")
        left: list[str] = []
        page.on("requestfailed", lambda request: left.append(request.url))
        with page.expect_request(re.compile("/api/plan")):
            move(page, "m=llama-3.2-3b&c=2xa100-80-sxm")
        move(page, "m=llama-3.2-1b&c=2xh100-sxm")
        until(page, "() => document.querySelectorAll('#plans-body .plan').length > 0")
        assert any("/api/plan" in url for url in left), "the search for the state before was dropped"


def move(page: Any, state: str) -> None:
    go = "to => { history.pushState(null, '', to + location.hash); dispatchEvent(new PopStateEvent('popstate')); }"
    page.evaluate(go, f"?{state}")


@needs_browser
def test_a_refusal_has_a_way_on(visit: Callable[..., Any]) -> None:
    page = visit("m=deepseek-v3&c=2x8xh200-sxm&tp=8&dp=2&ep=16", refuse=True)
    page.fill("#in-c", "8xh200-sxm")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Use DP 1, EP 8").click()
    wait_title(page, "8 GPUs")
    assert page.is_hidden("#problem")
    page = visit("b=abc", refuse=True)
    page.get_by_role("button", name="Leave b out").click()
    wait_title(page, "llama-3.1-8b")
    page = visit("m=nope", refuse=True)
    page.get_by_role("button", name="Start again").click()
    wait_title(page, "llama-3.1-70b")


@needs_browser
def test_free_sizes_and_a_pasted_config(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8")
    page.check("#mode-free", force=True)
    page.fill("#in-h", "4096")
    page.fill("#in-L", "24")
    page.click("#model-free button")
    until(page, "location.search.includes('h=4096') && location.search.includes('L=24')")
    painted(page)
    assert page.is_hidden("#problem")
    page.check("#mode-pasted", force=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16}
    heads = {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    page.fill("#in-cfg", json.dumps({**config, **heads, "torch_dtype": "bfloat16"}, indent=2))
    page.click("#use-config")
    until(page, "location.search.includes('cfg=')")
    painted(page)
    assert page.is_hidden("#problem")
    assert "one of 16 layers" in page.inner_text("#layer-note")


@needs_browser
def test_by_keyboard_alone(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8")
    reached: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "document.activeElement.id || document.activeElement.className.baseVal || document.activeElement.className"
        )
        assert page.evaluate("document.activeElement.matches(':focus-visible')")
        reached.append(here)
        if here == "in-m":
            page.keyboard.type("deepseek-v3")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            wait_title(page, "deepseek-v3")
            painted(page)
        if "copy" in reached:
            break
    assert {"start-tour", "theme", "in-m", "in-c", "in-intra", "in-tp", "in-b", "in-s", "in-e", "bar compute"} <= set(reached)
    assert any(name.startswith("change") for name in reached)
    page.focus(".bar")
    page.keyboard.press("ArrowRight")
    assert "÷" in page.inner_text("#tip .formula"), "the formula with its numbers"
    assert "source" in page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


@needs_browser
def test_at_400_pixels_nothing_sticks_out(visit: Callable[..., Any]) -> None:
    page = visit(TRAIN, viewport={"width": 400, "height": 12000})
    page.wait_for_selector(".map")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("#layer svg").bounding_box()["width"] <= 400
    assert page.is_visible("#peek")


@needs_browser
def test_dark_and_light(visit: Callable[..., Any]) -> None:
    page = visit("m=llama-3.1-8b&c=8xh100-sxm&tp=8", scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    light = page.evaluate(paper)
    assert dark != light
    page.reload()
    painted(page)
    assert page.evaluate(paper) == light, "the choice is kept"


@needs_browser
def test_the_tour_can_be_read_by_all(visit: Callable[..., Any]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = visit(f"{TRAIN}#tour=1", scheme="dark", viewport={"width": 1280, "height": 5200})
    page.wait_for_selector("#pipeline-body svg")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in ("serious", "critical")] == []


@needs_browser
@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("bill llama-3.1-8b --cluster 8xh100-sxm -tp 8", "#layer .bar"),
        ("plan llama-3.1-8b --cluster 8xh100-sxm --tpot 30ms", ".plan"),
    ],
)
def test_the_file_that_needs_no_server(visit: Callable[..., Any], tmp_path: Path, command: str, shows: str) -> None:
    target = tmp_path / "page.html"
    done = run_here(*command.split(), "--html", target)
    page = visit(target.as_uri(), wait=False)
    page.wait_for_selector(shows)
    assert page.is_hidden("#inputs")
    if command.startswith("bill"):
        assert page.inner_text("#the-sentence") in " ".join(done.stdout.split())
        page.click("[data-k=why-1]")
        page.wait_for_selector(".why strong")
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def modules() -> dict[str, str]:
    return {entry.name: entry.read_text(encoding="utf-8") for entry in PAGE.iterdir() if entry.name.endswith(".js")}


def test_the_page_is_light_and_stands_alone() -> None:
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in PAGE.iterdir()}
    assert sum(len(text.encode()) for text in texts.values()) < 186_000
    for name, text in texts.items():
        outside = {found for found in re.findall(r"https?://[\w./-]+", text) if not found.startswith("http://www.w3.org/")}
        assert not outside, (name, outside)
        assert "innerHTML" not in text.replace("without innerHTML", ""), name


def test_modules_can_be_joined_in_one_file() -> None:
    """``--html`` joins the modules: a name declared at the top of one may not be declared in another."""
    owners: dict[str, str] = {}
    for module, text in modules().items():
        assert all(line.endswith(";") for line in text.splitlines() if line.startswith("import ")), module
        for name in re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE):
            assert owners.setdefault(name, module) == module, f"{name} in {owners[name]} and {module}"
