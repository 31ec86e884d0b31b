"""Techniques in a search: those that gain on the leading plans are tried, alone and together, on all plans that are listed."""

import math
from collections.abc import Iterator

import numpy as np

from commtax.catalog.techniques import NONE, changes_of, techniques
from commtax.evidence.thresholds import thresholds
from commtax.planner.columns import ServingPlans
from commtax.planner.serving_search import grounded, rank_found, search_ways
from commtax.question import AUTO, OfferedRequests, Question
from commtax.spec import SERVING_AXES
from commtax.verbs.worth import Scale, TechniqueWorth

COUNT, LEVEL = thresholds(__name__)
SEARCHED = frozenset(("ep_backend", "library", "cp"))
"""Fields that a search tries by itself, or that change how many GPUs a plan has."""
NO_DRAFTS = {"speculative": 0, "drafter": ""}


def technique_sets_of(text: str) -> tuple[str, ...]:
    """Sets of techniques as they are written: ``dbo,mtp=1+dcp=2`` are two, the second of two techniques."""
    sets = tuple(dict.fromkeys(one.strip().replace("+", ",") for one in text.split(",") if one.strip()))
    for one in sets:
        if one != AUTO:
            changes_of(one)
    return sets


def search_with_techniques(put: Question) -> ServingPlans:
    """The search, and then the techniques that gain on its leading plans, on the best of those that it lists."""
    told = tuple(one for one in put.goal.technique_sets if one != AUTO)
    q = grounded(_asked(put, told, ()))
    found = search_ways(q)
    plain = rank_found(q, found)
    sets = tuple(dict.fromkeys([*told, *(text for i in _leading(plain) for text in _gaining_sets(plain, i))]))[: COUNT.sets]
    if sets == told:
        return plain
    wider = _asked(q, sets, _layouts(plain))
    return rank_found(wider, found.beside(search_ways(wider, len(plain.exchanges))))


def with_techniques_at_rate(put: Question, sets: tuple[str, ...]) -> Question:
    """A rate's question with the techniques of the best plan by the closed form, within its limits, that fleets are made of."""
    limits = {f"{metric}_s": min(_limits(put, metric), default=math.inf) for metric in ("ttft", "tpot")}
    loop = put.but(**limits, slo=(), objective="throughput", technique_sets=sets, offered=OfferedRequests(), num_prompts=math.inf)
    found = search_with_techniques(loop)
    rows = found.plans if len(found.plans) else found.near
    able = [i for i, by in enumerate(rows.exchange) if not (way := found.exchanges[int(by)]).wide and way.asked["dcp"] == 1]
    best = found.turned_on(rows, able[0]) if able else ()
    return put.but(**changes_of(",".join(best))) if best else put


def _limits(put: Question, metric: str) -> list[float]:
    """Limits of a rate's question that a mean time has to keep, too."""
    also = {"tpot": ("tpot", "itl")}.get(metric, (metric,))
    return [limit for name, limit in put.goal.slo if name.split("_")[0] in also]


def _layouts(plain: ServingPlans) -> tuple[tuple[int, ...], ...]:
    """The best plans' (tp, pp, dp, ep), and those of their workers for prompts."""
    best = plain.plans.take(np.unique([*range(min(COUNT.layouts, len(plain.plans))), *_leading(plain)]))
    apart = best.take(best.mode == 1)
    prompts = [
        (int(tp), 1, int(dp), int(tp * dp) if dp > 1 else 1) for tp, dp in zip(apart.prefill_tp, apart.prefill_dp, strict=True)
    ]
    own = np.stack([getattr(best, axis) for axis in SERVING_AXES], axis=1).astype(int).tolist()
    return tuple(dict.fromkeys([*map(tuple, own), *prompts]))


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
    """What gains on the decode step of plan ``i`` or on a step of its prompts, joined while the next gains on top, and both
    together; and what makes room for more requests."""
    decode = plain.step_of(plain.plans, i).question
    scale = Scale(decode, flips=False)
    able = [row for row in _rows(scale) if not row.refused and row.fits]
    together = _joined(scale, able)
    prompts = Scale(decode.but(phase="prefill", batch=1, context=_prompt_tokens(decode), **NO_DRAFTS), flips=False)
    ahead = _joined(prompts, [row for row in _rows(prompts) if not row.refused])
    yield from (text for text in dict.fromkeys([together, _union(ahead, together, scale)]) if text)
    for row in able:
        if row.full_gain > 1 + LEVEL.room and row.asked not in together.split(","):
            yield _union(together, row.asked, scale)


def _rows(scale: Scale) -> list[TechniqueWorth]:
    """Techniques that a search may turn on by itself."""
    return [scale.row(one) for one in techniques().values() if not (one.lossy or SEARCHED & {*one.sets, *one.takes})]


def _prompt_tokens(q: Question) -> int:
    """Tokens of a full step of prompts."""
    return int(max(1, min(q.limits.max_num_batched_tokens or q.engine.serves.max_batched_tokens, q.model.max_len)))


def _union(first: str, second: str, scale: Scale) -> str:
    """Techniques of both, of the second those that can be had beside the first and change nothing that it has set."""
    text = first
    for one in second.split(","):
        trial = f"{text},{one}".strip(",")
        if one and not changes_of(text or NONE).keys() & changes_of(one).keys() and scale.gain(trial):
            text = trial
    return text


def _joined(scale: Scale, rows: list[TechniqueWorth]) -> str:
    """Techniques that gain on top of each other, none that changes what another one has set."""
    text, gain = "", 1.0
    for row in sorted((row for row in rows if row.gain > 1 + LEVEL.gain), key=lambda row: -row.gain):
        trial = _union(text, row.asked, scale)
        if trial != text and (more := scale.gain(trial)) > gain * (1 + LEVEL.gain):
            text, gain = trial, more
    return text
