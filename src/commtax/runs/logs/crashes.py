"""The error with which a run ended: the first in time that is no echo of another process's, out of all tracebacks of a log.

A traceback is known by its frames, whatever stands before its lines: those of one process have the same beginning but for the time.
Of exceptions that were raised while others were handled the first counts, unless it was a mere lookup that failed.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from commtax.files import table
from commtax.thresholds import counts
from commtax.wordings import patterns

_TABLE = table("runs/logs/crashes.toml")
COUNT = counts(__name__)
UNTOLD = "what it wrote itself is not in this text"
SAYS = patterns(__name__)
_BEGINS = "Traceback (most recent call last)"
_FIRST = "Root Cause (first observed failure)"  # in the summary of torchrun
_CAUSED = "The above exception was the direct cause"
_MEANWHILE = "During handling of the above exception"
_ALONE = [(what, re.compile(w)) for kind in ("signals", "plain") for what, wordings in _TABLE[kind].items() for w in wordings]
"""Errors of one line: what a signal is called, or nothing, and how it is worded."""
_ENDINGS = [re.compile(wording) for wording in _TABLE["endings"]]


@dataclass(slots=True)
class _RaisedException:
    """One exception: its text, who wrote it, where it was raised, and the one before it in its chain."""

    text: str
    who: str
    at: int
    where: str = ""
    before: "_RaisedException | None" = None
    meanwhile: bool = False  # raised while that one was handled, and not because of it
    recovered: bool = False
    bare: bool = False  # one line without a traceback, which may be anything that names an error
    episode: int = 0  # what failed together; lines that speak of no error stand between two of them


@dataclass(frozen=True, slots=True)
class Crash:
    """``error`` as it was written, ``then`` what it became in the same process, ``where`` file and line, ``who`` the process."""

    error: str
    who: str = ""
    where: str = ""
    then: str = ""
    ended: bool = True  # a line says that a process ended; else the text does, with the error

    @property
    def sentence(self) -> str:
        """The crash in one line.

        >>> Crash("ValueError: no", "Worker_TP1 pid=7", "x.py:3").sentence
        'ValueError: no (Worker_TP1 pid=7, x.py:3)'
        """
        place = ", ".join(filter(None, (self.who, self.where)))
        return self.error + (f" ({place})" if place else "") + (f"; then {self.then}" if self.then else "")


@dataclass(slots=True)
class _OpenTraceback:
    where: str
    since: int
    last: int = 0  # the line of its last frame
    code: str = ""


Key = tuple[int, str]  # at which sign a process's lines begin, and what stands before


@dataclass(slots=True)
class _CrashReader:
    raised: list[_RaisedException] = field(default_factory=list)
    open: dict[Key, _OpenTraceback] = field(default_factory=dict)
    last: dict[Key, _RaisedException] = field(default_factory=dict)  # exception of each process, and what joins the next to it
    joined: dict[Key, tuple[_RaisedException, bool]] = field(default_factory=dict)
    header: str = ""  # who began the last traceback
    first: dict[str, str] = field(default_factory=dict)  # of a launcher's own summary: rank and exit code of whoever failed first
    fatal: bool = False
    endings: dict[str, str] = field(default_factory=dict)  # how processes ended, in words without an error, and whose they are
    episode: int = 0
    ended_in: int = -1  # the episode of the first sign that a process ended
    child: tuple[str, int] = ("", 0)  # the first process that a launcher saw end, in words, and the line
    quiet: int = 0
    filled: int = 0  # lines that are not empty
    after: int = 0  # … since the last error

    def take(self, line: str) -> None:
        if not line.strip():
            return
        self.filled += 1
        self.after += 1
        if self.last and self._goes_on(line):
            return
        if _FIRST in line:
            self.first = {"rank": ""}
        elif self.first and (summary := SAYS.summary.match(line)) and not self.first.get(summary[1]):
            self.first[summary[1]] = summary[2]
        if not self.open and not SAYS.speaks.search(line):
            self.quiet += 1
            return
        if any(sign in line for sign in _TABLE["fatal"]):
            self._end(line)
        if _BEGINS in line:
            self.header = _speaker(line)
        if 'File "' in line and (frame := SAYS.frame.search(line)):
            key = frame.start(), SAYS.time.sub("", line[: frame.start()])
            where = f"{os.path.basename(frame[1])}:{frame[2]}"
            if key in self.open:
                self.open[key].where, self.open[key].last = where, self.filled
            elif len(self.open) < COUNT.most_open:
                self.open[key] = _OpenTraceback(where, self.filled, self.filled)
        elif not self._ends(line):
            self._alone(line)

    def _end(self, line: str) -> None:
        """Record a sign that a process ended, in its words where it says no more."""
        self.fatal = True
        if self.ended_in < 0:
            self.ended_in = self.episode + (self.quiet > COUNT.quiet)
        if not self.child[0] and (gone := SAYS.child.search(line)):
            self.child = f"local rank {gone[2]} exited with {gone[1]} ({gone[0]})", self.filled
        ending = next(filter(None, (pattern.search(line) for pattern in _ENDINGS)), None)
        if ending and len(self.endings) < COUNT.most_endings:
            self.endings.setdefault(ending[1], _speaker(line))

    def _ends(self, line: str) -> bool:
        """Return whether a line belongs to a traceback, whose last line gives the exception to keep."""
        for key, traceback in list(self.open.items()):
            if self.filled - traceback.since > COUNT.most_lines:
                del self.open[key]
            elif SAYS.time.sub("", line[: key[0]]) == key[1] and len(line) > key[0]:
                rest = line[key[0] :]
                if error := SAYS.error.match(rest):
                    del self.open[key]
                    self._raise(key, error[1], error[2] or "", traceback, line)
                else:
                    traceback.code = rest.strip(" ^~")[: COUNT.most_text] or traceback.code
                return True
        return False

    def _raise(self, key: Key, name: str, message: str, traceback: _OpenTraceback, line: str) -> None:
        text = f"{name}: {message}" if message.strip() else f"{name} in {traceback.code}" if traceback.code else name
        before, meanwhile = self.joined.pop(key, (None, False))
        text, who, recovered = text[: COUNT.most_text].strip(), _speaker(line) or self.header, bool(SAYS.recovered.search(key[1]))
        raised = _RaisedException(text, who, self.filled, traceback.where, before, meanwhile, recovered)
        self._keep(raised)
        self.last[key] = raised

    def _keep(self, raised: _RaisedException) -> None:
        self.episode += self.quiet > COUNT.quiet
        self.after = self.quiet = 0
        raised.episode = self.episode
        if len(self.raised) < COUNT.most_errors:
            self.raised.append(raised)

    def _goes_on(self, line: str) -> bool:
        """Return whether a line continues an exception: another follows from it, or its message goes on."""
        for key, raised in list(self.last.items()):
            rest = line[key[0] :]
            if self.filled - raised.at > COUNT.following:
                del self.last[key]
            elif _CAUSED in rest or _MEANWHILE in rest:
                self.joined[key] = raised, _MEANWHILE in rest
                del self.last[key]
                return True
            elif raised.text.endswith("Last error:"):
                raised.text = f"{raised.text} {rest.strip()}"[: COUNT.most_text]
                return True
            elif rest.startswith("Last error:") or rest.lstrip().startswith("Value error, "):
                raised.text = f"{raised.text[: COUNT.most_text // 2]}: {rest.strip()}"[: COUNT.most_text]
                return True
        return False

    def _alone(self, line: str) -> None:
        for what, pattern in _ALONE:
            if match := pattern.search(line):
                if what:
                    self._end(line)
                text = f"{match[1].strip()} ({what})" if what else match[1].strip()
                self._keep(_RaisedException(text[: COUNT.most_text], _speaker(line), self.filled))
                return
        if match := SAYS.bare.search(line[:3000]):
            recovered = bool(SAYS.recovered.search(line[: match.start() + 1]))
            text = f"{match[1]}: {match[2]}"[: COUNT.most_text].strip()
            self._keep(_RaisedException(text, _speaker(line), self.filled, recovered=recovered, bare=True))


def _speaker(line: str) -> str:
    match = SAYS.who.search(line[:200])
    return next(filter(None, match.groups()), "") if match else ""


def may_hold_error(text: str) -> bool:
    """Return whether a text is worth searching for an error. Most logs hold no sign of one."""
    return _BEGINS in text or "Error: " in text or any(sign in text for sign in _TABLE["fatal"]) or text.rstrip().endswith("Killed")


def find(lines: Iterable[str]) -> Crash | None:
    """Return the root error of a log that ends in one, or None where nothing failed or the failure was handled.

    >>> find(["Traceback (most recent call last):", '  File "a.py", line 3, in f', "    x[0]", "ValueError: no"]).sentence
    'ValueError: no (a.py:3)'
    """
    reader = _CrashReader()
    for line in lines:
        reader.take(line)
    raised = [r for r in reader.raised if not r.recovered and not _is_of_kind(r, "harmless")]
    if all(r.recovered for r in reader.raised) and (cut := _cut_off_crash(reader)):
        return cut
    if not reader.fatal and (reader.after > COUNT.near or all(r.bare for r in raised)):
        return None
    if all(_is_of_kind(r, "echoes") for r in raised) and reader.first.get("exitcode"):
        return Crash(f"rank {reader.first['rank']} ended first, with exit code {reader.first['exitcode']}; {UNTOLD}")
    if not raised:
        return None
    # The first error of its own: of those that failed together with what ended, else of those before, else of any. One line
    # that names an error far above a traceback or a signal did not lead to it.
    roots = [r for r in raised if not _is_of_kind(r, "echoes")]
    last = reader.ended_in if reader.ended_in >= 0 else reader.episode
    before = sorted({r.episode for r in roots if r.episode <= last}, reverse=True)
    near = [r for r in roots if r.episode == before[0]] if before else roots
    firm = next((r for r in near if not r.bare), None)
    near = [r for r in near if not firm or not r.bare or firm.at - r.at <= COUNT.near]
    root = next(iter(near), raised[0])
    crash = _follow_chain(raised, root, reader.fatal)
    if not _is_of_kind(root, "echoes"):
        return crash
    # An echo alone: how the process ended whose error it repeats, and that its own words are missing.
    more = "".join(f"; {text}" for text in reader.endings if text not in crash.error)
    return replace(crash, error=f"{crash.error}{more}; {UNTOLD}", then="")


def _cut_off_crash(reader: _CrashReader) -> Crash | None:
    """Return an end without an error: a process reports that it ended, or the text ends in a traceback."""
    opened = [o for key, o in reader.open.items() if not SAYS.recovered.search(key[1])]
    where = opened[-1].where if opened else ""
    if reader.endings:
        who = next(filter(None, reader.endings.values()), "")
        return Crash(f"{'; '.join(reader.endings)}, and {UNTOLD}", who, where)
    child, at = reader.child
    if child and reader.filled - max(at, *(o.last for o in opened), 0) <= COUNT.near:  # the traceback below it is the launcher's
        return Crash(f"{child}, and its own error is not in this text")
    if opened and reader.filled - opened[-1].last <= COUNT.near:
        return Crash(f"the text ends in a traceback, before its error: {UNTOLD}", reader.header, where, ended=False)
    return None


def _follow_chain(raised: Sequence[_RaisedException], root: _RaisedException, ended: bool) -> Crash:
    """Return an error with what it became in its process. A failed lookup is replaced by what its handling raised."""
    followed = {id(r.before): r for r in raised if r.before}
    lookups = tuple(_TABLE["lookups"])
    while (after := followed.get(id(root))) and after.meanwhile and root.text.partition(":")[0].rpartition(".")[2] in lookups:
        root = after
    end = root
    while after := followed.get(id(end)):
        end = after
    then = "" if end is root or _is_of_kind(end, "echoes") or end.text in root.text else end.text
    return Crash(root.text, root.who, root.where, then[: COUNT.most_text // 2], ended)


def _is_of_kind(raised: _RaisedException, kind: str) -> bool:
    return any(part in raised.text for part in _TABLE[kind])
