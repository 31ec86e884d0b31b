"""Patterns of module names that a checkpoint brings along, matched by ``re`` unless their structure lets it try for ever."""

import fnmatch
import math
import re
import warnings
from functools import lru_cache
from re._parser import SubPattern, parse  # type: ignore[import-not-found]

from commtax.records import dataclass
from commtax.statement import Refusal

MAX_SIGNS = 1_000  # of one pattern
MAX_WAYS = 500_000  # to match a name, of all patterns together
NAME_SIGNS = 64  # of a long name
_ONE_SIGN = ("LITERAL", "NOT_LITERAL", "ANY", "IN")


@dataclass(frozen=True, slots=True)
class Modules:
    plain: frozenset[str]
    wild: tuple[re.Pattern[str], ...]
    expressions: tuple[re.Pattern[str], ...]
    looking: tuple[re.Pattern[str], ...]  # ahead or behind

    def hold(self, *spellings: str) -> bool:
        """Return whether any spelling names this tensor or a module that contains it.
        A pattern that looks ahead excludes names, so that it must agree with every spelling."""
        looking = self.looking and all(any(pattern.match(name) for pattern in self.looking) for name in spellings)
        return bool(looking) or any(map(self._names, spellings))

    def _names(self, name: str) -> bool:
        parts = name.split(".")
        around = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        if not self.plain.isdisjoint(around) or any(pattern.match(name) for pattern in self.expressions):
            return True
        return any(pattern.match(part) for pattern in self.wild for part in around)


@lru_cache(maxsize=256)
def modules(names: tuple[str, ...]) -> Modules:
    """Return the modules that a checkpoint names: by ``re:…``, by wildcards, by a dotted name, or by one component of it.

    >>> modules((r"re:model\\.layers\\.\\d+\\.mlp", "lm_head")).hold("model.layers.12.mlp.gate")
    True
    >>> modules((r"re:^(?!.*experts).*",)).hold("model.layers.0.mlp.experts.7")
    False
    """
    plain, wild, expressions, looking = list[str](), list[re.Pattern[str]](), list[re.Pattern[str]](), list[re.Pattern[str]]()
    ways = 0
    for name in names:
        if len(name) > MAX_SIGNS:
            raise Refusal(f"pattern '{name[:80]}…': longer than {MAX_SIGNS:,} signs")
        if name.startswith("re:"):
            pattern, pattern_ways = _compiled(name[3:])
            ways += pattern_ways
            (looking if re.search(r"\(\?<?[=!]", pattern.pattern) else expressions).append(pattern)
        elif "*" in name:
            wild.append(re.compile(fnmatch.translate(name)))  # never tries a way twice
        else:
            plain.append(name)
    if ways > MAX_WAYS:
        raise Refusal(f"patterns: more than {MAX_WAYS:,} ways to match a name; write fewer or simpler ones")
    return Modules(frozenset(plain), tuple(wild), tuple(expressions), tuple(looking))


def _compiled(text: str) -> tuple[re.Pattern[str], int]:
    """Return a pattern and the most ways in which it may match a name."""
    try:
        with warnings.catch_warnings(action="ignore"):
            parsed, pattern = parse(text), re.compile(text)
        repeats, choices = _ways(parsed)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise Refusal(f"pattern '{text if len(text) <= 80 else f'{text[:80]}…'}': {error}") from None
    last, bounds = parsed[-1] if parsed else ("", (0, 0))
    if str(last) == "MAX_REPEAT" and bounds[1] - bounds[0] > NAME_SIGNS:
        repeats -= 1  # nothing comes behind it that may fail
    return pattern, choices * math.comb(NAME_SIGNS + repeats, repeats)


def _ways(parsed: SubPattern) -> tuple[int, int]:
    """Count the unbounded repeats of a parsed pattern and multiply its other choices, or refuse what may try for ever."""
    repeats, choices = 0, 1
    for operation, argument in parsed:
        name, inner = str(operation), argument[-1] if isinstance(argument, tuple) else argument
        if name.startswith("GROUPREF"):
            raise ValueError("refers to a group")
        if name == "BRANCH":
            branches = [_ways(branch) for branch in inner]
            repeats, choices = repeats + max(many for many, _ in branches), choices * sum(ways for _, ways in branches)
        elif name.endswith("REPEAT"):
            least, most, _ = argument
            if most > 1 and not _is_plain(inner):
                raise ValueError("repeats a group that may be empty, repeats or has alternatives, which may take for ever")
            (many, ways), unbounded = _ways(inner), most - least > NAME_SIGNS
            repeats, choices = repeats + many + unbounded, choices * (ways + (0 if unbounded else most - least))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            many, ways = _ways(inner)
            repeats, choices = repeats + many, choices * ways
    return repeats, choices


def _is_plain(parsed: SubPattern) -> bool:
    """Return whether all of a parsed pattern are signs or sets of them, in a group or not."""
    items = list(parsed)
    if len(items) == 1 and str(items[0][0]) == "SUBPATTERN":
        return _is_plain(items[0][1][-1])
    return bool(items) and all(str(operation) in _ONE_SIGN for operation, _ in items)
