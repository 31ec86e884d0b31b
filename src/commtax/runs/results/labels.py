"""What a label of a printed result means, whoever printed it: its words without statistics, units and fillers are a known set.

A label that is not known means nothing: "peak output throughput" is no output throughput. A time without a unit is none either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from commtax.files import table
from commtax.thresholds import counts
from commtax.wordings import patterns

LABELS = table("runs/results/labels.toml")
_WORDS, _STATISTICS, UNITS = (LABELS[kind] for kind in ("words", "statistics", "units"))
_FILLERS, _RATES, STRINGS = (frozenset(LABELS[kind]) for kind in ("fillers", "rates", "strings"))
COUNT = counts(__name__)
MINUTE_S = 60.0
SAYS = patterns(__name__)
_PATHS = frozenset(frozenset(path.split()) for path in LABELS["paths"])


@dataclass(frozen=True, slots=True)
class LabelMeaning:
    """``kind``: time | rate | count | string, or "" where only statistics or a unit are told."""

    field: str = ""
    kind: str = ""
    statistics: tuple[str, ...] = ()
    unit_s: float | None = None  # of a time; of a rate the time it is over

    @property
    def measured(self) -> bool:
        return self.kind in ("time", "rate") and self.field not in LABELS["set"]


def _words(label: str) -> Iterable[str]:
    split = SAYS.camel.sub(" ", label[: COUNT.longest]).lower()
    plain = SAYS.remark.sub(" ", split.translate(str.maketrans("_-–", "   ")))
    for token in SAYS.token.findall(plain):
        yield from _WORDS.get(token, token).split()


@lru_cache(maxsize=4096)
def meaning(label: str) -> LabelMeaning:
    """
    >>> meaning("P99 TTFT (ms)"), meaning("Output_tokens/min").field, meaning("Peak output token throughput (tok/s)").field
    (LabelMeaning(field='ttft', kind='time', statistics=('p99',), unit_s=0.001), 'output_tokens_per_s', '')
    """
    words, kept = list(_words(label)), []
    statistics: list[str] = []
    unit_s: float | None = None
    rate = False
    ranked = "percentile" in words or "percentiles" in words
    for at, word in enumerate(words):
        after = at > 0 and words[at - 1] in ("/", "per")
        if word in ("/s", "/min") or (after and (word in ("min", "minute") or UNITS.get(word) == 1.0)):
            rate, unit_s = True, MINUTE_S if "min" in word else 1.0
        elif statistic := _statistic(word, ranked):
            statistics.append(statistic)
        elif word in UNITS and unit_s is None:
            unit_s = UNITS[word]
        elif word in _RATES:
            rate = True
        elif word not in _FILLERS and word not in ("/", "percentile", "percentiles"):
            kept.append(word)
    return _meaning_of_words(frozenset(kept), tuple(statistics), unit_s, rate)


def _statistic(word: str, ranked: bool) -> str:
    """``mean``, ``p99`` …; numbers are ranks beside the word percentile or with a sign of their own.

    >>> _statistic("p99.9", False), _statistic("50%", False), _statistic("95", True), _statistic("95", False)
    ('p99.9', 'median', 'p95', '')
    >>> _statistic("p99d", True)
    ''
    """
    if word in _STATISTICS:
        return str(_STATISTICS[word])
    share = word.rstrip("%th") if word[0].isdigit() and (ranked or not word[-1].isdigit()) else word[1:] if word[0] == "p" else ""
    if not share.replace(".", "", 1).isdecimal() or float(share) > 100:
        return ""
    return "median" if float(share) == 50 else f"p{float(share):g}"


def _sets(kind: str) -> Mapping[frozenset[str], str]:
    return {frozenset(text.split()): field for field, texts in LABELS[kind].items() for text in texts}


_TIMES, _RATES_OF, _COUNTS = (_sets(kind) for kind in ("times", "rates_of", "counts"))


def _meaning_of_words(words: frozenset[str], statistics: tuple[str, ...], unit_s: float | None, rate: bool) -> LabelMeaning:
    if rate:
        told = words - {"tokens"} if len(words) > 1 else words
        return LabelMeaning(_RATES_OF.get(told, ""), "rate", statistics, unit_s or 1.0)
    if words in _TIMES and (unit_s is not None or words not in _COUNTS):
        return LabelMeaning(_TIMES[words], "time", statistics, unit_s)
    if words in _COUNTS and unit_s is None:
        return LabelMeaning(_COUNTS[words], "count", statistics)
    if len(words) == 1 and words <= STRINGS:
        return LabelMeaning(next(iter(words)), "string")
    if words in _PATHS:
        return LabelMeaning("path", "string")
    return LabelMeaning("", "" if not words else "unknown", statistics, unit_s)


def figures(value: str, said: LabelMeaning, usual_s: float | None = None) -> list[tuple[str, float]]:
    """Statistics with their values in SI units; nothing where the value is no figure or its unit is nowhere told.

    >>> figures("0.623, 12.899, 4.401", meaning("first token latency(s)(min, max, ave)"))
    [('min', 0.623), ('max', 12.899), ('mean', 4.401)]
    >>> figures("100/100 (100.00%)", meaning("Completed requests")), figures("-3.1%", meaning("Mean TTFT (ms)"))
    ([('', 100.0)], [])
    >>> figures("20.88 ± 0.47 ms", meaning("TTFT")), figures("47.5 ± 1.07 tokens/s", meaning("Throughput"))
    ([('', 0.02088)], [('', 47.5)])
    """
    parts = value.strip("[]() ").split(", ") if len(said.statistics) > 1 else [value]
    statistics = said.statistics or ("",)
    if len(parts) != len(statistics):
        return []
    read = [(statistic, _figure(part, said, usual_s)) for statistic, part in zip(statistics, parts, strict=True)]
    return [(statistic, number) for statistic, number in read if number is not None]


def _figure(value: str, said: LabelMeaning, usual_s: float | None) -> float | None:
    match = SAYS.value.match(value)
    if match is None or SAYS.no_figure.match(match[2]):
        return None
    number, beside = float(match[1].replace(",", "")), match[2].lower()
    unit = SAYS.unit.match(beside)
    own = UNITS.get(unit[0]) if unit and "/" not in beside[:12] else None
    if said.kind == "time":
        unit_s = own or said.unit_s or usual_s
        return number * unit_s if unit_s else None
    if said.kind == "rate":
        over = meaning(f"x {beside}").unit_s if "/" in beside or "per" in beside else said.unit_s
        return number / (over or 1.0)
    return number if own is None else None


def printed_whole(value: str) -> bool:
    """Whether a number has no decimal point: one that was set, not measured."""
    match = SAYS.value.match(value)
    return match is not None and "." not in match[1]
