"""The answers that README and docs show, printed anew: ``printed.py [--check] [FILES…]``, or ``make figures``.

A block that begins with ```` ```console ```` holds commands after ``$``, each with what it prints below it, 80 columns wide:

* a command that ends in a backslash goes on in the next line, and one that is not ``commtax`` keeps what stands below it;
* ``| head -6`` and other filters are run by the shell;
* a last line ``…`` leaves the rest out: five lines are shown, or fewer where the fifth is in the middle of a sentence.

Commands run in one process and one folder, which has ``examples`` and ``tests`` and keeps what they write, in the order of the
pages. A command that stands twice is run once.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import cache
from glob import glob
from pathlib import Path
from textwrap import dedent, indent

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))  # commands run as in the tests

from cli_run import Done, run_here

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 80
SHOWN = 5  # lines of an answer that is cut
CUT = "…"
FURTHER = "    "
"""How a line begins that goes on with the sentence or the row above it."""
BLOCK = re.compile(r"^(?P<before> *)```console\n(?P<inside>.*?)^(?P=before)```$", re.M | re.S)
ANSWERS = (0, 1, 3)  # exit codes that are answers: yes, no, no verdict
PIPED = {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS", "DATABRICKS_RUNTIME_VERSION")
Answer = Callable[[str], str]
"""What a command line prints."""
Runner = Callable[[tuple[str, ...]], Done]
"""What becomes of a command's words."""


def rewrite(markdown: str, answer: Answer) -> str:
    """The same page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        made = "".join(f"{line}\n" for shown in exchanges(dedent(found["inside"])) for line in renewed(*shown, answer))
        return indent(f"```console\n{made}```", found["before"])

    return BLOCK.sub(block, markdown)


def exchanges(inside: str) -> Iterator[tuple[list[str], list[str]]]:
    """The commands of a block, as lines, and the lines below each."""
    lines = inside.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    if starts[:1] != [0]:
        raise ValueError(f"a console block begins with '$ ' and a command, not with {lines[:1]}")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = next(number for number in range(start, end) if not lines[number].endswith("\\")) + 1
        yield lines[start:body], lines[body:end]


def line_of(command: list[str]) -> str:
    """A command in one line, without its prompt.

    >>> line_of(["$ commtax fit a \\\\", "    -tp 8"])
    'commtax fit a -tp 8'
    """
    return " ".join(part.removesuffix("\\").strip() for part in command).removeprefix("$ ")


def renewed(command: list[str], kept: list[str], answer: Answer) -> Iterator[str]:
    """A command, and what it prints, whole or cut as before."""
    yield from command
    line = line_of(command)
    if not line.startswith("commtax "):
        yield from kept
        return
    shown = [printed.rstrip() for printed in answer(line).rstrip().splitlines()]
    yield from beginning(shown) if kept[-1:] == [CUT] else shown


def beginning(lines: list[str]) -> list[str]:
    """The first lines of an answer, up to the end of a sentence, and a mark that there are more.

    >>> beginning(["TP 2 is", "    best", "", "a table", "a row", "a row that", "    goes on", "the last"])
    ['TP 2 is', '    best', '', 'a table', 'a row', '…']
    """
    ends = [end for end in range(1, len(lines) + 1) if not lines[end : end + 1] or not lines[end].startswith(FURTHER)]
    end = max((end for end in ends if end <= SHOWN), default=ends[0] if ends else 0)
    first = lines[:end]
    while first and not first[-1]:
        first.pop()
    return [*first, CUT] if end < len(lines) else lines


def words_of(command: str) -> tuple[str, ...]:
    """The words behind ``commtax``, as a shell in the repository hands them over."""
    words = shlex.split(command, comments=True)[1:]
    return tuple(file for word in words for file in sorted(glob(word, root_dir=ROOT)) or [word])


def answer_by(run: Runner) -> Answer:
    """What a command line prints, behind its bars too; a command that fails has nothing to show."""

    def answer(line: str) -> str:
        command, _, filters = line.partition(" | ")
        done = run(words_of(command))
        if done.returncode not in ANSWERS:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr}")
        return filtered(done.stdout, filters) if filters else done.stdout

    return answer


def filtered(text: str, filters: str) -> str:
    return subprocess.run(["sh", "-c", filters], input=text, capture_output=True, text=True, check=True).stdout


@contextmanager
def runner(tell: Callable[..., Done] = run_here) -> Iterator[Runner]:
    """Commands run in a folder of their own, each once, whatever the terminal around is."""
    with tempfile.TemporaryDirectory() as place:
        for folder in ("examples", "tests"):
            (Path(place) / folder).symlink_to(ROOT / folder)

        def run(words: tuple[str, ...]) -> Done:
            with chdir(place), _piped():
                return tell(*words)

        yield cache(run)


@contextmanager
def _piped() -> Iterator[None]:
    """As behind a pipe that is 80 columns wide."""
    before = dict(os.environ)
    os.environ.update(PIPED)
    for name in FORCED:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def pages() -> list[Path]:
    """README and everything under docs, in the order in which commands run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Print anew the answers that Markdown pages show.")
    parser.add_argument("files", nargs="*", type=Path, help="README.md and docs unless named")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is stale")
    asked = parser.parse_args(arguments)
    files, stale = [path.resolve() for path in asked.files] or pages(), []
    with runner() as run:
        for path in files:
            text = path.read_text()
            if (made := rewrite(text, answer_by(run))) != text:
                stale.append(path)
                if not asked.check:
                    path.write_text(made)
    for path in stale:
        print(f"{path.name} {'is stale: make figures' if asked.check else 'printed anew'}")
    return int(asked.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
