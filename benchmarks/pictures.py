"""The README's pictures, the page in a browser and a terminal: ``python benchmarks/pictures.py``, or all figures ``make figures``.

Chromium is at its system path. Each picture keeps the commands that it shows and what they printed in a text chunk of its own, so
that a test can tell when it is stale.
"""

from __future__ import annotations

import io
import os
import pty
import struct
import subprocess
import sys
import zlib
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
STEP = "bill llama-3.1-70b --cluster 8x8xh100-sxm --phase train -tp 4 -pp 4 -dp 4 --global-batch 128 --zero 1 --recompute selective"
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
    keep(tab.screenshot(), PICTURES / "page.png", STEP.split())


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
    keep(tab.screenshot(full_page=True), PICTURES / "terminal.png", COMMAND)


def keep(picture: bytes, path: Path, command: list[str]) -> None:
    """The picture with its command and what that prints into a pipe, as PNG's text in UTF-8 (iTXt) after the header."""
    printed = subprocess.run(
        [sys.executable, "-m", "commtax", *command], capture_output=True, env={**os.environ, "COLUMNS": str(COLUMNS)}, check=True
    ).stdout
    body = b"iTXtcommtax\0\0\0\0\0" + " ".join(command).encode() + b"\n" + printed
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 25  # the signature, and IHDR with its length, name and sum
    path.write_bytes(picture[:header] + chunk + picture[header:])


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
