"""A real browser and a served page: Chromium of the system through Playwright, and ``commtax web`` on a free port."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OFF = (
    # Pages of the address bar's own, loaded for each new window: more work than most pages of ours.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup"),
    "SpareRendererForSitePerProcess",  # a process for a page that nobody will open
    # What the driver turns off itself, said again because the last list counts.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable"),
    *("LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning", "AvoidCorsURLLoaderRestartOnRedirect"),
    *("OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch"),
)
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", f"--disable-features={','.join(OFF)}"),
)
PAINTED = "document.documentElement.dataset.shown === new URLSearchParams(location.search).toString()"


def missing() -> str:
    """Why no browser can be driven here; empty where one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if executable() else "Chromium is not installed (apt-get install chromium)"


def executable() -> str:
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=list(QUIET))
        yield browser
        browser.close()


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The address of a running page: of ``commtax web``, or of what ``words`` start."""
    command = [sys.executable, *(words or ("-m", "commtax", "web", "--port", "0"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://[0-9.]+:\d+", line)
            assert found, f"commtax web did not say where it listens: {line!r}"
            yield found[0]
        finally:
            server.terminate()


def painted(page: Any) -> None:
    until(page, PAINTED)


def until(page: Any, expression: str, argument: Any = None) -> None:
    """Asked again and again from outside: the page's own rules forbid the driver's way, which evaluates text inside."""
    for turn in range(440):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(min(20 + 5 * turn, 100))  # asking takes longer than most answers
    raise AssertionError(f"{expression}, {argument}: not in 40 s; {page.url}")
