"""The pictures of README and docs, of the page and of a terminal: ``python benchmarks/documents/pictures.py``, or ``make figures``.

Chromium is at its system path. Each picture keeps, in a text chunk of its own, what was asked and what was answered, so that a
test can tell when it is stale. Words name pictures that are to be made again:
``python benchmarks/documents/pictures.py terminal page-plan``.
"""

from __future__ import annotations

import io
import json
import os
import pty
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from browser import chromium, served  # noqa: E402
from page_pictures import said_on_page  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
RANKS = [ROOT / "tests" / "fixtures" / f"vllm-cpu-tp2-rank{rank}.trace.json.gz" for rank in (0, 1)]
COMMAND = ["bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "8"]
COLUMNS = 132
FONT = "font-family: 'DejaVu Sans Mono', monospace; font-size: 13px; line-height: 1.35"
LLAMA = "m=llama-3.1-70b&c=8xh100-sxm"
TRAINED = "m=llama-3.1-70b&c=8x8xh100-sxm&ph=train&tp=4&pp=4&dp=4&n=32&z=1&rc=selective"
VIEWS = {  # a picture: the question of its answer, the state, the view, what shows that it is drawn, and its height
    "page": ("plan", f"{LLAMA}&ttft=1000&tpot=30", "plan", "#plans-body .plan-sentence", 960),
    "page-clusters": ("several", f"{LLAMA}&cs=8xh200-sxm,8xl40s&tpot=40", "plan", ".sides .side", 960),
    "page-traffic": ("traffic", f"{LLAMA}&tp=8&tpot=40", "traffic", "#traffic-view-body .plan-sentence", 900),
    "page-fit": ("memory", f"{LLAMA}&tp=4", "fit", "#fit-view-body .plan-sentence", 700),
    "page-step": ("view", TRAINED, "step", "#layer svg", 900),
    "page-run": ("audit", "", "run", "#run-body .plan-sentence", 900),
}
SIZE = 1200  # pixels: README shows its picture at about 830


def page(browser: Browser, address: str, name: str) -> None:
    """One view as somebody sees it who opened its address."""
    question, state, view, drawn, height = VIEWS[name]
    tab = browser.new_page(viewport={"width": SIZE, "height": height}, color_scheme="light", device_scale_factor=1.5)
    tab.goto(f"{address}/?{state}#{view}")
    if question == "audit":
        tab.set_input_files("#in-file", [str(path) for path in RANKS])
    tab.wait_for_selector(drawn)
    tab.wait_for_timeout(700)
    asked = f"{question}?{state}"
    words = "\n".join([asked, *said_on_page(question, answer(address, question, state, tab))])
    keep(tab.screenshot(), PICTURES / f"{name}.png", words)


def answer(address: str, question: str, state: str, tab: Page) -> dict[str, Any]:
    """What the page was told."""
    if question == "audit":
        return {"title": tab.inner_text("#run-body .plan-sentence").split("\n")[0]}
    with urlopen(Request(f"{address}/api/{question}?{state}")) as response:
        return dict(json.load(response))


def coloured() -> str:
    """What a command prints to a terminal."""
    out: list[bytes] = []

    def keep(handle: int) -> bytes:
        out.append(data := os.read(handle, 65536))
        return data

    os.environ.update(COLUMNS=str(COLUMNS), TERM="xterm-256color", COLORTERM="truecolor")
    pty.spawn([sys.executable, "-m", "commtax", *COMMAND], keep)
    return b"".join(out).decode().replace("\r\n", "\n")


def terminal(browser: Browser) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ commtax {' '.join(COMMAND)}", style="bold"))
    console.print(Text.from_ansi(coloured()))
    body = f"background: #0c0c0c; color: #d9d9d9; padding: 18px; {FONT}"
    code = f'<body style="{body}"><pre style="margin: 0; {FONT}"><code style="{FONT}">{{code}}</code></pre></body>'
    tab = browser.new_page(viewport={"width": 1120, "height": 100})
    tab.set_content(console.export_html(theme=SVG_EXPORT_THEME, inline_styles=True, code_format=code))
    printed = subprocess.run(
        [sys.executable, "-m", "commtax", *COMMAND], capture_output=True, env={**os.environ, "COLUMNS": str(COLUMNS)}, check=True
    ).stdout.decode()
    keep(tab.screenshot(full_page=True), PICTURES / "terminal.png", f"{' '.join(COMMAND)}\n{printed}")


def keep(picture: bytes, path: Path, text: str) -> None:
    """The picture with what it shows, as PNG's text in UTF-8 (iTXt) after the header."""
    body = b"iTXtcommtax\0\0\0\0\0" + text.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 25  # the signature, and IHDR with its length, name and sum
    path.write_bytes(picture[:header] + chunk + picture[header:])


def main(*names: str) -> None:
    with served() as address, chromium() as browser:
        for name in (name for name in VIEWS if not names or name in names):
            page(browser, address, name)
        if not names or "terminal" in names:
            terminal(browser)
    for file in sorted(PICTURES.glob("*.png")):
        print(f"{file.name} {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
