"""How a program of somebody else's ended badly, and the likely reason: from its exit code, or from what its log says of a child."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from commtax.measure import machine

KEPT_LINES = 6
KEPT_CHARACTERS = 600
LOOKED_AT = 20_000  # characters at the end of a log
SHELL = 128  # what shells add to the signal that ended a command
_CHILD = (
    re.compile(r"(?:exit ?code|code|signal)[ :=]{1,3}-(\d{1,2})\b", re.IGNORECASE),
    re.compile(r"Failed core proc\(s\): \{[^}]{0,200}: -(\d{1,2})\b"),
)
_UNKNOWN_OPTION = "unrecognized"  # as argparse says it
_SAID = {"Illegal instruction": signal.SIGILL, "Segmentation fault": signal.SIGSEGV, "Bus error": signal.SIGBUS}
_LIKELY = {
    signal.SIGILL: "it ran an instruction that this CPU does not have",
    signal.SIGKILL: "it was killed from outside, most often because memory ran out",
    signal.SIGBUS: "memory that it had mapped could not be had: shared memory (/dev/shm) may be too small",
    signal.SIGSEGV: "it crashed in native code",
    signal.SIGABRT: "native code gave up (an assertion, or out of memory)",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened in words, and its ``kind``: two failures of one kind would be followed by a third."""

    text: str
    kind: str = ""
    died: bool = False
    unknown_option: bool = False  # the program has no option of a name that it was given


def failure(what: str, code: int, log: str, dtype: str = "") -> Failure:
    """A command that ended with ``code`` (negative: by that signal) after writing ``log``."""
    sign = _signal(code, log)
    if sign is None:
        said = _end(log)
        text, kind = f"{what} ended with exit code {code}: {said}", f"{code} {re.sub(r'[0-9]+', '#', said)}"
        return Failure(text, kind, unknown_option=_UNKNOWN_OPTION in said)
    reason = _LIKELY.get(sign, "")
    if sign == signal.SIGILL and machine.bf16_note(machine.facts(), dtype):
        reason += f"; {machine.bf16_note(machine.facts(), dtype)}: use --dtype fp32"
    return Failure(f"{what} died of {sign.name}" + (f": {reason}" if reason else ""), sign.name, died=True)


def _signal(code: int, log: str) -> signal.Signals | None:
    """The signal that ended the program, or a child whose end its log tells."""
    if code < 0:
        return signal.Signals(-code)
    tail = log[-LOOKED_AT:]
    children = [int(number) for pattern in _CHILD for number in pattern.findall(tail)]
    deadly = [signal.Signals(number) for number in (code - SHELL, *children) if number in _LIKELY]
    return next(iter((*deadly, *(sign for words, sign in _SAID.items() if words in tail))), None)


def _end(log: str) -> str:
    """The last lines that speak of an error, else the last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line] or lines
    return " / ".join(errors[-KEPT_LINES:])[-KEPT_CHARACTERS:]
