"""A served page for all tests, and a browser for those of a file: while it runs no other event loop can."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser import chromium, painted, served

REFUSAL = re.compile(r"status of 4\d\d")
BUSY = "status of 429"
WINDOW = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """One server for all files; a browser per file, because its driver's loop must not run beside other tests."""
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def window(browser: Any) -> Any:
    """The window of all tests of a file: a new one takes longer than what most of them look at."""
    return browser.new_context(viewport=WINDOW, reduced_motion="reduce").new_page()


@pytest.fixture
def visit(browser: Any, window: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Open a state and wait for its picture. After the test the console must be clean; refused states may say 4xx where told.

    States of the served page are visited one after the other in the same window, whose storage is empty for each; pages of another
    place have a window of their own.
    """
    said: list[str] = []
    opened: list[Any] = []
    may_refuse: list[bool] = []

    def listen(page: Any) -> Any:
        page.set_default_timeout(20_000)
        page.on("console", console)
        page.on("pageerror", fault)
        return page

    def console(message: Any) -> None:
        if message.type in ("error", "warning") and message.location.get("url") != f"{address}/favicon.ico":
            said.append(message.text)

    def fault(error: Any) -> None:
        said.append(str(error))

    def go(state: str, *, refuse: bool = False, wait: bool = True, viewport: Any = WINDOW, scheme: str = "light") -> Any:
        may_refuse.append(refuse)
        if "://" in state and not state.startswith(address):
            opened.append(browser.new_context(viewport=viewport, reduced_motion="reduce", offline=state.startswith("file:")))
            page = listen(opened[-1].new_page())
        else:
            page = window
            leave(page, address)
            page.set_viewport_size(viewport)
            page.emulate_media(color_scheme=scheme)
        page.goto(state if "://" in state else f"{address}/?{state}")
        if wait:
            painted(page)
        return page

    listen(window)
    yield go
    for context in opened:
        context.close()
    leave(window, address)
    window.unroute_all()
    window.context.clear_permissions()
    window.remove_listener("console", console)
    window.remove_listener("pageerror", fault)
    told = [text for text in said if BUSY not in text]  # which the page asks again by itself
    assert [text for text in told if not (any(may_refuse) and REFUSAL.search(text))] == []


def leave(page: Any, address: str) -> None:
    """Away from a state, by a file of the same place (without an icon) that shows nothing; what was stored is forgotten."""
    page.goto(f"{address}/page.css")
    page.evaluate("localStorage.clear()")
