"""How far predicted gains of techniques lie from published ones, and how wide a range holds most of them.

Rows of one source err together, so that each source counts once, and a range is judged on sources that it was not fitted on.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from commtax.arrays import Array
from commtax.catalog.techniques import DRAFTS, NONE, OTHERS, kind_of, parse_techniques, width
from commtax.options import check_taken
from commtax.verbs.settling import resolve_question, settle
from commtax_lab.published.scoring.technique_scores import ScoredTechnique
from commtax_lab.published.technique_rows import Options, TechniqueReading

HELD = 0.8  # share of sources that a range shall hold
LEASTS = np.arange(0.03, 0.2, 0.005)  # half-widths where nothing changes: runs of one thing differ by 3 % …
SHARES = np.arange(0.0, 1.0, 0.02)  # … and parts of the effect, less than all of it: else no gain were ever sure
OF_TECHNIQUES = frozenset({"technique", "library", "kv_dtype", "acceptance", "accepted_length", "draft_model"})
"""What sides of a row may differ in: a change of the plan is no technique that ``worth`` weighs."""
COMMANDS = {"step": "bill", "loop": "simulate", "requests": "serve"}
"""Verbs of readings whose figures are of whole steps or runs, and what takes their options."""


@dataclass(frozen=True, slots=True)
class TechniqueMiss:
    """A predicted speed-up over the published one, and how large an effect was predicted, both as logarithms."""

    source: str
    kind: str
    error: float
    effect: float


@dataclass(frozen=True, slots=True)
class MissRange:
    """Constants of ``width``, and the share of left-out sources' rows that lie in ranges fitted on the others."""

    least: float
    share: float
    coverage: float = math.nan


def misses(rows: Iterable[ScoredTechnique]) -> Iterator[TechniqueMiss]:
    """Yield the rows of whole steps and runs that differ in a technique alone and taught no constant."""
    for one in rows:
        reading = one.reading
        if not one.scored or reading is None or reading.verb not in COMMANDS or reading.fitted:
            continue
        before, after = reading.sides
        if not {name for name in {*before, *after} if before.get(name) != after.get(name)} <= OF_TECHNIQUES:
            continue
        kind = _kind(before, after)
        effect = abs(math.log(one.predicted))
        if kind != OTHERS:
            effect = max(effect, *(math.log(_tokens(reading, options)) for options in (before, after)))
        yield TechniqueMiss(one.row.source, kind, math.log(one.predicted / one.row.speedup), effect)


def _kind(before: Options, after: Options) -> str:
    """Return the kind of technique that only the side after has."""
    had, has = (set(str(side.get("technique") or NONE).split(",")) for side in (before, after))
    new = {kind_of(one.group) for text in has - had for one, _ in parse_techniques(text)}
    return DRAFTS if DRAFTS in new else OTHERS


def _tokens(reading: TechniqueReading, options: Options) -> float:
    """Return the tokens that a step yields per sequence."""
    question = resolve_question(reading.model, reading.cluster, check_taken(COMMANDS[reading.verb], options))
    return settle(question).techniques.per_step


def weights(rows: Sequence[TechniqueMiss]) -> Array:
    """Weigh each source as much as any other, and its rows alike."""
    sources = [one.source for one in rows]
    return np.array([1 / sources.count(source) / len(set(sources)) for source in sources])


def covered_share(rows: Sequence[TechniqueMiss], fitted: MissRange) -> float:
    """Return the share of rows, by source, that lie in a range."""
    inside = [abs(one.error) <= width(one.effect, fitted.least, fitted.share) for one in rows]
    return float(np.sum(weights(rows) * inside))


def fit_misses(rows: Sequence[TechniqueMiss], coverage: float = HELD) -> MissRange:
    """Fit the narrowest range, by the mean of its logarithm, that covers so many rows by source."""
    shares, errors = weights(rows), np.array([abs(one.error) for one in rows])
    effects = np.array([one.effect for one in rows])
    fitted, narrowest = MissRange(float(LEASTS[-1]), float(SHARES[-1])), math.inf
    for least in LEASTS:
        for share in SHARES:
            half = np.hypot(least, share * effects)
            mean = float(np.sum(shares * np.log(half)))
            if mean < narrowest and np.sum(shares * (errors <= half)) >= coverage - 1e-9:
                fitted, narrowest = MissRange(float(least), float(share)), mean
    return fitted


def left_out(rows: Sequence[TechniqueMiss]) -> MissRange:
    """Return the range of all sources, with the share of each source that ranges fitted without it cover."""
    fitted, shares = fit_misses(rows), list[float]()
    for source in dict.fromkeys(one.source for one in rows):
        others = [one for one in rows if one.source != source]
        shares.append(covered_share([one for one in rows if one.source == source], fit_misses(others)))
    return MissRange(fitted.least, fitted.share, float(np.mean(shares)))
