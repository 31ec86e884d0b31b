"""How long until the page is there, and until its picture has moved with a slider? To the frame after the repaint, in a browser.

python benchmarks/web_page.py
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from browser import chromium, missing, served

STATES = {
    "decode, 70B on 8 GPUs": ("m=llama-3.1-70b&c=8xh100-sxm&tp=8&b=32&s=2048", ("b", "s", "tp")),
    "train, 70B on 64 GPUs": ("m=llama-3.1-70b&c=8x8xh100-sxm&ph=train&tp=4&pp=4&dp=4&n=16&rc=full&z=1", ("b", "n", "z")),
}
# One move and its end: the page marks what it has drawn, and two frames later that is on the screen.
MOVE = """([key, index]) => new Promise(done => {
  const input = document.getElementById(`in-${key}`);
  const begin = performance.now();
  const watch = new MutationObserver(() => {
    watch.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
  });
  watch.observe(document.documentElement, { attributeFilter: ['data-shown'] });
  input.value = String(index);
  input.dispatchEvent(new Event('input', { bubbles: true }));
})"""


def slider_moves(rounds: int = 2) -> dict[str, list[float]]:
    """Milliseconds of each move, by state; every position asked for once, so that no answer is remembered."""
    found: dict[str, list[float]] = {}
    with served() as address, chromium() as browser:
        for name, (state, keys) in STATES.items():
            for turn in range(rounds):
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(f"{address}/?{state}&il={1000 + turn}#step")
                page.wait_for_selector("#layer svg")
                page.wait_for_timeout(1500)
                for key in keys:
                    first, last = (int(page.evaluate(f"document.getElementById('in-{key}').{end}")) for end in ("value", "max"))
                    for index in (i for i in range(last + 1) if i != first):
                        found.setdefault(name, []).append(page.evaluate(MOVE, [key, index]))
                page.close()
    return found


PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def first_paints(rounds: int = 7) -> dict[str, list[float]]:
    """Milliseconds until a bare address shows something, each in a browser that has nothing of it; beside it, an empty page."""
    found: dict[str, list[float]] = {"an empty page": [], "first paint": [], "the plans are there": []}
    with served() as address, chromium() as browser:
        browser.new_page().goto(address)  # the server's first question loads what all need
        for _ in range(rounds):
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto("data:text/html,<p>empty")
            page.wait_for_timeout(200)
            found["an empty page"].append(page.evaluate(PAINT))
            page.goto(address)
            page.wait_for_selector("#plans-body .plan-sentence")
            found["the plans are there"].append(page.evaluate("performance.now()"))
            found["first paint"].append(page.evaluate(PAINT))
            page.close()
    return found


if __name__ == "__main__":
    if why_not := missing():
        sys.exit(why_not)
    for name, times in first_paints().items():
        print(f"{name}: median {statistics.median(times):.0f} ms, least {min(times):.0f} ms")
    for name, moves in slider_moves().items():
        high, middle = statistics.quantiles(moves, n=20)[-1], statistics.median(moves)
        print(f"{name}: {len(moves)} slider moves, median {middle:.0f} ms, least {min(moves):.0f} ms, 95% within {high:.0f} ms")
