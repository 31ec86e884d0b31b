"""``commtax …`` in this process, as fast as a function: what it printed and its exit code.

Starting Python takes longer than most answers. That whole processes behave alike is held by ``test_cli`` and ``test_docs``.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import NoReturn
from unittest.mock import patch

from commtax.cli import main
from commtax.cli.output import Output
from commtax.report.drawing import Pipe, Telling


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run_here(*words: object) -> Done:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(w) for w in words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Done(code, out.getvalue(), err.getvalue())


def refusal(done: Done) -> str:
    """Return the one line of a command that was refused, with exit code 2 and nothing beside it."""
    assert (done.returncode, done.stdout, done.stderr[:7], done.stderr.count("\n")) == (2, "", "error: ", 1), done
    return done.stderr


@dataclass(frozen=True)
class Told(Done):
    """What a command showed, and what ``--json`` would have printed of the same answer."""

    document: str


def told_here(*words: object) -> Told:
    """A command run once and told in both forms. That ``--json`` prints the same is held by ``test_tasks``."""
    kept, answer = io.StringIO(), Output.answer

    def both(self, *parts, **options):
        with redirect_stdout(kept), suppress(SystemExit):
            answer(replace(self, as_json=True, remarks=[*self.remarks]), *parts, **options)
        answer(self, *parts, **options)

    with patch.object(Output, "answer", both):
        done = run_here(*words)
    return Told(done.returncode, done.stdout, done.stderr, kept.getvalue())


def shown_here(show, *parts, width=100) -> list[str]:
    """The lines that a function shows in a pipe, but for those that are empty."""
    out = io.StringIO()
    with redirect_stdout(out):
        show(Pipe(width, _no_rich, Telling()), *parts)
    return [line for line in out.getvalue().splitlines() if line]


def _no_rich(_: int) -> NoReturn:
    raise AssertionError("drawn by Rich")
