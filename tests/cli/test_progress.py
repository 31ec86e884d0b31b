"""How far a command is: told on a terminal alone, in one line that is gone when the answer comes; Ctrl-C leaves a clean line."""

import os
import pty
import re
import select
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.cli.progress import Meter, progress_line
from commtax.counting import counted, listening, part

IMPATIENT = """
import sys
from commtax.cli import main, progress
progress.PATIENCE_S = progress.EVERY_S = 0.02
main(sys.argv[1:])
"""


def on_a_terminal(words, stop=""):
    """What a command writes to a terminal, and its exit code; Ctrl-C is typed when ``stop`` was read."""
    child, terminal = pty.fork()
    if not child:
        os.environ.update(COLUMNS="80", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-c", IMPATIENT, *words])
    text = ""
    while True:
        select.select([terminal], [], [])
        try:
            read = os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # how a terminal says that nobody is left
            break
        if not read:
            break
        text += read
        if stop and stop in text:
            os.write(terminal, b"\x03")
            stop = ""
    os.close(terminal)
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_terminal_is_told_and_left_clean():
    text, code = on_a_terminal(["plan", "deepseek-v3", "-c", "4x8xh100-sxm"])
    told = re.findall(r"\r(searching plans: [^\r]*?)\x1b\[K", text)
    assert code == 0
    assert any(re.fullmatch(r"searching plans: \d+%, about \d+ s left", line) for line in told)
    after = text[text.rindex("searching plans") :]
    assert "\r\x1b[K" in after, "the line is gone before the answer"
    assert "Recommended" in after


FEW = ("-c", "4xh100-sxm", "--request-rate", "60", "--input-len", "512", "--output-len", "64")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("plan", "llama-3.1-8b", *FEW, "--p95-ttft", "1s", "--no-disaggregated", "--num-prompts", "500"), "simulating layouts"),
        (("simulate", "llama-3.1-8b", *FEW, "--replicas", "4", "--num-prompts", "8000"), "simulating"),
    ],
)
def test_what_is_simulated_has_a_time_left_until_its_end(words, what):
    text, code = on_a_terminal(words)
    told = re.findall(rf"\r{what}: ([^\r]*?)\x1b\[K", text)
    shares = [int(share) for share in re.findall(r"\((\d+)%\), about", " ".join(told))]
    assert code == 0
    assert len(set(shares)) > 3
    assert shares == sorted(shares)
    done = [line for line in told if re.match(r"([\d,]+) of \1\b", line)]
    assert done, "all layouts or requests are done ..."
    assert all("100%" not in line for line in done[: len(done) // 2]), "... and what comes behind them is counted"


def test_an_interrupt_leaves_a_clean_line_and_130():
    text, code = on_a_terminal(["plan", "deepseek-v3", "-c", "64x8xh100-sxm"], stop="searching plans")
    assert code == 130
    assert re.search(r"\r\x1b\[K(\r?\n)?interrupted\r?\n$", text), text[-200:]


@given(st.recursive(st.just(()), lambda inner: st.lists(inner, min_size=1, max_size=4).map(tuple), max_leaves=12))
def test_shares_rise_from_nothing_to_all(work):
    heard = []

    def do(steps):
        for inner in counted(steps):
            with part(0.25, 1.0):
                do(inner)

    with listening(heard.append, lambda: None):
        do(work)
    assert heard == sorted(heard)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in heard)
    assert not work or (heard[0] == 0 and abs(heard[-1] - 1) < 1e-9)


def test_nobody_is_told_where_nobody_listens():
    assert list(counted([1, 2, 3])) == [1, 2, 3]


@given(st.floats(0.021, 1), st.floats(0.1, 1e7))
def test_the_time_left_is_what_the_pace_says(share, elapsed):
    left = r"reading: \d+%, about [\d.,]+ (s|minutes?|hours?|days?|years?) left"
    assert re.fullmatch(left, progress_line("reading", share, elapsed))


@given(st.integers(20, 200))
def test_a_line_keeps_to_its_width(width):
    meter = Meter()
    meter.start("simulating", lambda: (0.5, "15,000 of 30,000 requests"), "; Ctrl-C: the answer so far")
    assert len(meter.line(width)) <= width
