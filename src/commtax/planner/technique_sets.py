"""Techniques in a search: those that gain on the leading plans are tried, alone and together, on all plans that are listed."""

from collections.abc import Iterator

import numpy as np

from commtax.catalog.techniques import changes_of, techniques
from commtax.evidence.thresholds import thresholds
from commtax.planner.columns import ServingPlans
from commtax.planner.serving_search import search_serving
from commtax.question import AUTO, Question
from commtax.spec import SERVING_AXES
from commtax.verbs.worth import Scale, TechniqueWorth

COUNT, LEVEL = thresholds(__name__)
SEARCHED = frozenset(("ep_backend", "redundant_experts", "library", "cp"))
"""Fields that a search tries by itself, or that change how many GPUs a plan has."""


def technique_sets_of(text: str) -> tuple[str, ...]:
    """Sets of techniques as they are written: ``dbo,mtp=1+dcp=2`` are two, the second of two techniques."""
    sets = tuple(dict.fromkeys(one.strip().replace("+", ",") for one in text.split(",") if one.strip()))
    for one in sets:
        if one != AUTO:
            changes_of(one)
    return sets


def search_with_techniques(put: Question) -> ServingPlans:
    """The search again with the techniques that gain on its leading plans, on those that it lists."""
    told = tuple(one for one in put.goal.technique_sets if one != AUTO)
    plain = search_serving(_asked(put, told, ()))
    found = tuple(dict.fromkeys([*told, *(text for i in _leading(plain) for text in _gaining_sets(plain, i))]))
    if not found:
        return plain
    listed = np.unique(np.stack([getattr(plain.plans, axis) for axis in SERVING_AXES], axis=1), axis=0)
    return search_serving(_asked(put, found, tuple(map(tuple, listed.astype(int).tolist()))))


def _asked(put: Question, sets: tuple[str, ...], layouts: tuple[tuple[int, ...], ...]) -> Question:
    return put.but(technique_sets=sets, technique_layouts=layouts)


def _leading(plain: ServingPlans) -> list[int]:
    """The plan to run, the best, and the best of other kinds: of separate prompt workers, of experts on many ranks."""
    rows = plain.plans
    if not len(rows):
        return []
    wide = np.array([one.wide for one in plain.exchanges])[rows.exchange.astype(int)]
    kinds = [np.flatnonzero(which)[:1].tolist() for which in (rows.mode == 1, rows.mode == 0, wide)]
    return list(dict.fromkeys([plain.recommended, 0, *(i for kind in kinds for i in kind)]))[: COUNT.plans]


def _gaining_sets(plain: ServingPlans, i: int) -> Iterator[str]:
    """What gains on the decode step of plan ``i``, joined while the next gains on top; and what makes room for more of them."""
    scale = Scale(plain.step_of(plain.plans, i).question, flips=False)
    rows = [
        row for one in techniques().values() if not (one.lossy or SEARCHED & {*one.sets, *one.takes}) for row in [scale.row(one)]
    ]
    able = [row for row in rows if not row.refused and row.fits]
    together = _joined(scale, sorted((row for row in able if row.gain > 1 + LEVEL.gain), key=lambda row: -row.gain))
    if together:
        yield together
    for row in able:
        if row.full_gain > 1 + LEVEL.room and row.asked not in together.split(","):
            yield f"{together},{row.asked}".strip(",")


def _joined(scale: Scale, rows: list[TechniqueWorth]) -> str:
    """Techniques that gain on top of each other, none that changes what another one has set."""
    text, gain = "", 1.0
    for row in rows:
        trial = f"{text},{row.asked}".strip(",")
        if changes_of(text or "none").keys() & changes_of(row.asked).keys() or (more := scale.gain(trial)) < gain * (
            1 + LEVEL.gain
        ):
            continue
        text, gain = trial, more
    return text
