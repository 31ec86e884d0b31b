"""The README's pictures: the page in a browser, and a terminal. ``python benchmarks/pictures.py`` (Chromium at its system path)."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PORT = 8189
STATE = "m=llama-3.1-70b&c=8x8xh100-sxm&ph=train&tp=4&pp=4&dp=4&n=32&z=1&rc=selective"
COMMAND = ["bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "8"]
COLUMNS = 132
FONT = "font-family: 'DejaVu Sans Mono', monospace; font-size: 13px; line-height: 1.35"


@contextmanager
def server():
    command = [sys.executable, "-m", "commtax", "web", "--port", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its address: it listens
        yield f"http://127.0.0.1:{PORT}/"
        process.terminate()


def page(browser: Browser, address: str) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 980}, color_scheme="light")
    tab.goto(f"{address}?{STATE}")
    tab.wait_for_load_state("networkidle")
    sleep(1)
    tab.screenshot(path=PICTURES / "page.png")


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
    tab.screenshot(path=PICTURES / "terminal.png", full_page=True)


def main() -> None:
    with sync_playwright() as play, server() as address:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
        page(browser, address)
        terminal(browser)
        browser.close()
    for file in sorted(PICTURES.glob("*.png")):
        print(f"{file.name} {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
