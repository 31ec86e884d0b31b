"""Regular expressions that a file brings along, matched in time that grows with the name's length and no faster.

Python's own matcher tries one way after another, and ``(.+)+!`` has it try for ever. Here all ways are followed side by side
(Thompson 1968), sets of ways are remembered, and what cannot be matched so (looking around, back references) is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NoReturn

from commtax.records import dataclass
from commtax.statement import Refusal

MAX_SIGNS = 1_000  # of one pattern
MAX_STEPS = 100_000  # of all patterns together, repeats written out
MAX_DEPTH = 20  # groups inside each other
MAX_REPEAT = 100
MAX_LOOKING = 200
_LOOKS = re.compile(r"\^?\(\?[!=]")
_KNOWN = r"literals, ., [sets], \d \w \s, groups, |, *, +, ?, {m,n}, ^ and $ are read, and (?!…) at the beginning"
_SHORT: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "w": lambda sign: sign.isalnum() or sign == "_", "s": str.isspace}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
Test = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PatternStep:
    """One step of a program: a sign to pass, a fork, a jump, or a place to stand at. Targets are relative."""

    kind: str  # sign | fork | begin | end | passed
    test: Test | None = None
    targets: tuple[int, ...] = (1,)


Program = list[PatternStep]


@lru_cache(maxsize=256)
def modules(names: tuple[str, ...]) -> Modules:
    """Return the modules that a checkpoint names: by ``re:…``, by wildcards, by a dotted name, or by one component of it.

    >>> modules((r"re:model\\.layers\\.\\d+\\.mlp", "lm_head")).hold("model.layers.12.mlp.gate")
    True
    >>> modules((r"re:^(?!.*experts).*",)).hold("model.layers.0.mlp.experts.7")
    False
    """
    others = [name for name in names if not name.startswith("re:")]
    expressions = [name[3:] for name in names if name.startswith("re:")]
    looking = [text for text in expressions if _LOOKS.match(text)]
    if len(looking) > MAX_LOOKING:
        raise Refusal(f"patterns: more than {MAX_LOOKING} that look ahead; write fewer")
    return Modules(
        frozenset(name for name in others if "*" not in name),
        PrefixPatterns(PatternParser(rf"(.*\.)?{_wildcards_to_regex(name)[:-1]}(\..*)?$").read() for name in others if "*" in name),
        PrefixPatterns(PatternParser(text).read() for text in expressions if not _LOOKS.match(text)),
        tuple(PatternParser(text).looking() for text in looking),
    )


@dataclass(frozen=True, slots=True)
class Modules:
    plain: frozenset[str]
    wild: PrefixPatterns
    expressions: PrefixPatterns
    looking: tuple[LookaheadPattern, ...] = ()

    def hold(self, *spellings: str) -> bool:
        """Return whether this tensor is named, or a module that it lies in, by any way of spelling it.

        A pattern that looks ahead excludes names, so that it must agree with every spelling.
        """
        looking = self.looking and all(any(pattern.match(name) for pattern in self.looking) for name in spellings)
        return bool(looking) or any(map(self._names, spellings))

    def _names(self, name: str) -> bool:
        parts = name.split(".")
        around = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        return not self.plain.isdisjoint(around) or self.expressions.match(name) or self.wild.match(name)


@dataclass(frozen=True, slots=True)
class LookaheadPattern:
    """A pattern that looks ahead from the beginning, ``^(?!this).*that``: conditions on the whole name, and the rest."""

    conditions: tuple[tuple[bool, PrefixPatterns], ...]
    rest: PrefixPatterns

    def match(self, name: str) -> bool:
        return all(patterns.match(name) is wanted for wanted, patterns in self.conditions) and self.rest.match(name)


def _wildcards_to_regex(name: str) -> str:
    """Return a shell's wildcards as an expression.

    >>> _wildcards_to_regex("layers.[!0]*")
    'layers\\\\.[^0].*$'
    """
    jokers = {"*": ".*", "?": "."}
    pieces = re.split(r"(\*|\?|\[!?[^\]]+\])", name[: MAX_SIGNS + 1])
    signs = [p.replace("\\", r"\\").replace("[!", "[^") if p[:1] == "[" and len(p) > 1 else re.escape(p) for p in pieces]
    return "".join(jokers.get(piece, sign) for piece, sign in zip(pieces, signs, strict=True)) + "$"


class PrefixPatterns:
    """Whether a name begins with what any of the programs passes, as ``re.match`` has it."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._steps, starts = list[PatternStep](), list[int]()
        self._after: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        for program in programs:  # one at a time: what is too much together is refused before all are made
            starts.append(len(self._steps))
            self._steps += [*program, PatternStep("passed", targets=())]
            if len(self._steps) > MAX_STEPS:
                raise Refusal(f"patterns: more than {MAX_STEPS:,} steps in all; write fewer or shorter ones")
        self._ends = frozenset(at for at, step in enumerate(self._steps) if step.kind == "passed")
        self._first = self._reached(starts, begin=True)

    def match(self, name: str) -> bool:
        places = self._first
        for sign in name:
            if not self._ends.isdisjoint(places):
                return True
            if not places:
                return False
            places = self._next(places, sign)
        return not self._ends.isdisjoint(self._reached(places, begin=not name, end=True))

    def _next(self, places: frozenset[int], sign: str) -> frozenset[int]:
        key = (places, sign)
        if key not in self._after:
            if len(self._after) > 4096:
                self._after.clear()
            passed = [p + 1 for p in places if (test := self._steps[p].test) is not None and test(sign)]
            self._after[key] = self._reached(passed)
        return self._after[key]

    def _reached(self, places: Sequence[int] | frozenset[int], *, begin: bool = False, end: bool = False) -> frozenset[int]:
        """Return all places that can be reached without passing a sign. A place that waits for the end stays."""
        left, seen = list(places), set()
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            step = self._steps[at]
            if step.kind == "fork" or (step.kind == "begin" and begin) or (step.kind == "end" and end):
                left += [at + target for target in step.targets]
        return frozenset(p for p in seen if self._steps[p].kind in ("sign", "end", "passed"))


class PatternParser:
    """A pattern's text into steps."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        if len(text) > MAX_SIGNS:
            self.refuse(f"longer than {MAX_SIGNS:,} signs")

    def read(self) -> Program:
        return self.ended(self.choices())

    def ended(self, program: Program) -> Program:
        if self.at < len(self.text):
            self.refuse("a closing bracket too many")
        return program

    def looking(self) -> LookaheadPattern:
        conditions = []
        self.at = int(self.peek("^"))
        while self.peek("(?!") or self.peek("(?="):
            self.at += 3
            conditions.append((self.text[self.at - 1] == "=", PrefixPatterns([self.closed()])))
        rest = self.sequence()
        if self.peek("|"):
            self.refuse("looks ahead in one of several choices; put them in a group")
        return LookaheadPattern(tuple(conditions), PrefixPatterns([self.ended(rest)]))

    def refuse(self, why: str) -> NoReturn:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:80]}…"
        raise Refusal(f"pattern '{shown}': {why} ({_KNOWN})")

    def peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self) -> str:
        if self.at >= len(self.text):
            self.refuse("cut off")
        self.at += 1
        return self.text[self.at - 1]

    def choices(self) -> Program:
        program = self.sequence()
        while self.peek("|"):
            self.take()
            other = self.sequence()
            program = [
                PatternStep("fork", targets=(1, len(program) + 2)),
                *program,
                PatternStep("fork", targets=(len(other) + 1,)),
                *other,
            ]
        return program

    def sequence(self) -> Program:
        program: Program = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            program += self.repeated(self.atom())
            if len(program) > MAX_STEPS:
                self.refuse(f"repeats make more than {MAX_STEPS:,} steps of it")
        return program

    def repeated(self, one: Program) -> Program:
        if self.at >= len(self.text) or self.text[self.at] not in "*+?{":
            return one
        least, most = self.bounds()
        if self.peek("?"):
            self.take()  # the shortest way first: the same names
        if self.at < len(self.text) and self.text[self.at] in "*+?{":
            self.refuse("a repeat of a repeat")
        if len(one) * max(least, most or 0, 1) > MAX_STEPS:
            self.refuse(f"repeats make more than {MAX_STEPS:,} steps of it")
        size = len(one)
        if most is None:
            return one * least + [PatternStep("fork", targets=(1, size + 2)), *one, PatternStep("fork", targets=(-size - 1,))]
        return one * least + [PatternStep("fork", targets=(1, size + 1)), *one] * (most - least)

    def bounds(self) -> tuple[int, int | None]:
        sign = self.take()
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        inside = ""
        while not self.peek("}"):
            inside += self.take()
        self.take()
        first, comma, second = inside.partition(",")
        if not all(not x or (x.isascii() and x.isdigit() and len(x) <= 3) for x in (first, second)) or not (first or second):
            self.refuse(f"{{{inside}}} is no repeat")
        least = int(first or 0)
        most = (int(second) if second else None) if comma else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self.refuse(f"{{{inside}}}: repeats up to {MAX_REPEAT}, the smaller first")
        return least, most

    def atom(self) -> Program:
        sign = self.take()
        if sign == "(":
            return self.group()
        if sign == "^":
            return [PatternStep("begin")]
        if sign == "$":
            return [PatternStep("end")]
        if sign in "*+?{":
            self.refuse(f"nothing before {sign}")
        if sign == ".":
            return [PatternStep("sign", lambda other: other != "\n")]
        return [PatternStep("sign", self.escaped() if sign == "\\" else self.set() if sign == "[" else _between(sign, sign))]

    def group(self) -> Program:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} groups inside each other")
        if self.peek("?:"):
            self.at += 2
        elif self.peek("?"):
            self.refuse(f"(?{self.text[self.at + 1 : self.at + 2]}…) is not supported")
        program = self.closed()
        self.depth -= 1
        return program

    def closed(self) -> Program:
        program = self.choices()
        if not self.peek(")"):
            self.refuse("a group is not closed")
        self.at += 1
        return program

    def escaped(self) -> Test:
        sign = self.take()
        if sign.lower() in _SHORT:
            test = _SHORT[sign.lower()]
            return test if sign.islower() else lambda other: not test(other)
        if sign in _CONTROL:
            return _between(_CONTROL[sign], _CONTROL[sign])
        if sign.isascii() and sign.isalnum():
            self.refuse(f"\\{sign} is not supported")
        return _between(sign, sign)

    def set(self) -> Test:
        refused = self.peek("^")
        self.at += refused
        tests: list[Test] = []
        while not tests or not self.peek("]"):
            sign = self.take()
            if sign == "\\":
                tests.append(self.escaped())
            elif self.peek("-") and not self.peek("-]"):
                self.take()
                last = self.take()
                if last == "\\" or last < sign:
                    self.refuse(f"{sign}-{last} is no range")
                tests.append(_between(sign, last))
            else:
                tests.append(_between(sign, sign))
        self.take()
        return lambda other: any(test(other) for test in tests) != refused


def _between(first: str, last: str) -> Test:
    return lambda sign: first <= sign <= last
