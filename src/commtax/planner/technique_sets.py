"""Techniques in a search: those that gain on the leading plans are tried, alone and together, on all plans that are listed."""

from collections.abc import Collection, Iterator
from math import inf, log
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from commtax.catalog.techniques import DRAFTS, NONE, changes_of, technique, techniques
from commtax.judgement.gains import UNDECIDED, is_worth_telling, verdict_on_gain
from commtax.planner.columns import ServingColumns, ServingPlans, objective_value, worst_limit_ratio
from commtax.planner.exchanges import exchanges
from commtax.planner.ranking import LEAST, least_gain
from commtax.planner.reasons import grown_times
from commtax.planner.serving_search import best_load, grounded, rank_briefly, rank_priced, row_at_loads, search_ways
from commtax.question import AUTO, OfferedRequests, Question
from commtax.records import replace
from commtax.rules.drafts import accepted_as
from commtax.spec import NO_TECHNIQUES, SERVING_AXES, Technique
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import listed, plural
from commtax.verbs.settling import Settled, replan, settle
from commtax.verbs.worth import Scale, TechniqueWorth, questioned, why_start_is_lost
from commtax.words import words

COUNT, LEVEL = thresholds(__name__)
SEARCHED = frozenset(("ep_backend", "library", "cp"))  # fields that a search tries by itself, or that change a plan's GPUs
PROMPTS = ("overlap", "collectives", "experts")  # groups of techniques that may shorten a step of prompts …
DECODES = (*PROMPTS, "context", "drafts")  # … or a decode step


def technique_sets_of(text: str) -> tuple[str, ...]:
    """Parse sets of techniques: ``dbo,mtp=1+dcp=2`` are two, the second of two techniques."""
    sets = tuple(dict.fromkeys(one.strip().replace("+", ",") for one in text.split(",") if one.strip()))
    for one in (one for one in sets if one != AUTO):
        changes_of(one)
    return sets


def search_with_techniques(put: Question) -> ServingPlans:
    """Search, then try the techniques that gain on the leading plans on the best of those that are listed."""
    stated = tuple(one for one in put.goal.technique_sets if one != AUTO)
    q = grounded(put.but(technique_sets=stated, technique_layouts=()))
    priced = search_ways(q)
    plain = rank_briefly(q, priced)
    gaining = dict.fromkeys(text for i in _leading(plain) for text in _gaining_sets(plain, i))
    named = ((text, one) for text in gaining for one in text.split(","))  # which value is best hangs on the layout and its load
    others = (text.replace(one, value) for text, one in named for value in technique(one.partition("=")[0]).at_usual_values)
    sets = tuple(dict.fromkeys([*[*stated, *gaining][: COUNT.sets], *others]))
    if sets == stated:
        return rank_priced(q, priced)
    searched = len(plain.exchanges)
    layouts = _layouts(plain, priced.points) + tuple(x for text in {*stated, sets[0]} for x in _layouts_with(put, text, plain))
    while True:  # again where a plan to run has a technique that adds too little there
        wider = q.but(technique_sets=sets, technique_layouts=tuple(sorted(set(layouts))))
        priced = priced.beside(search_ways(wider, searched, priced.points))
        answer, searched = rank_priced(wider, priced), len(exchanges(wider))
        if not (lean := next((text for text in _lean_sets(answer) if text not in sets), "")):
            return answer
        sets += (lean,)


def _lean_sets(answer: ServingPlans) -> Iterator[str]:
    """Yield the techniques of each plan to run without those that add too little at its load to be turned on."""
    to_run = [(answer.plans, answer.recommended), *((point.plans, point.recommended) for point in answer.places)]
    for rows, i in to_run if len(answer.plans) else ():
        named = kept = answer.turned_on(rows, i)
        for one in named:
            fewer = tuple(other for other in kept if other != one)
            if fewer and _value_with(answer, rows, i, kept) < (1 + LEAST) * _value_with(answer, rows, i, fewer):
                kept = fewer
        if kept != named:
            yield ",".join(kept)


def _value_with(answer: ServingPlans, rows: ServingColumns, i: int, named: tuple[str, ...]) -> float:
    """Return the objective of row ``i`` with only some techniques, or 0 where they cannot be had."""
    way, q = replace(answer.exchanges[int(rows.exchange[i])], techniques=",".join(named)), answer.question
    kinds = {"weights_dtype": q.goal.dtypes[int(rows.dtype[i])], "replicas": int(rows.replicas[i]), **way.changes}
    priced = row_at_loads(rows, i, replan(q, **rows.sizes(i), **kinds), int(rows.concurrency[i]))
    return float(max(objective_value(q, priced), default=0.0))


def _layouts_with(put: Question, text: str, plain: ServingPlans) -> tuple[tuple[int, ...], ...]:
    """Return the best layouts of a search whose every plan has some techniques: they are not always the best without."""
    with_them = grounded(put.but(technique_sets=(), technique_layouts=(), **changes_of(text)))
    if exchanges(with_them) != plain.exchanges:  # techniques that are ways to reach experts themselves
        return ()
    priced = search_ways(with_them)
    return _layouts(rank_briefly(with_them, priced), priced.points)


def with_techniques_at_rate(put: Question, sets: tuple[str, ...]) -> Question:
    """Add to a rate's question the techniques of the best plan by the closed form within its limits, of those for fleets."""
    kinds = {"ttft_s": ("ttft",), "tpot_s": ("tpot", "itl")}  # limits that a mean time has to keep, too
    strictest = {name: [limit for which, limit in put.goal.slo if which.split("_")[0] in kind] for name, kind in kinds.items()}
    limits = {name: min(some, default=inf) for name, some in strictest.items()}
    loop = put.but(**limits, slo=(), objective="throughput", technique_sets=sets, offered=OfferedRequests(), num_prompts=inf)
    plans = search_with_techniques(loop)
    rows = plans.plans if len(plans.plans) else plans.near
    ways = [plans.exchanges[int(by)] for by in rows.exchange]  # those of experts on many ranks are tried with two pools alone
    able = [i for i, way in enumerate(ways) if (rows.mode[i] or not way.wide) and way.changes["dcp"] == 1]
    best = plans.turned_on(rows, able[0]) if able else ()
    return put.but(**changes_of(",".join(best))) if best else put


def _layouts(plain: ServingPlans, every: ServingColumns) -> tuple[tuple[int, ...], ...]:
    """Return (exchange, mode, tp, pp, dp, ep) of the best plans, with each exchange near the best there, and of prompt workers."""
    best = plain.plans.take(np.unique([*range(min(COUNT.layouts, len(plain.plans))), *_leading(plain)]))
    apart = best.take(best.mode == 1)
    senders_of = zip(apart.prefill_tp.tolist(), apart.prefill_dp.tolist(), strict=True)
    prompts = [(int(tp), 1, int(dp), int(tp * dp) if dp > 1 else 1) for tp, dp in senders_of]
    wanted = {(mode, *rows.sizes(i).values()) for mode, rows in enumerate((best, apart)) for i in range(len(rows))}
    near = {(by, mode, *sizes) for by, mode, *sizes in _near_layouts(plain, every) if (mode, *sizes) in wanted}
    senders = {(by, 1, *sizes) for by in {by for by, mode, *_ in near if mode == 1} for sizes in prompts}
    return tuple(sorted(near | senders))


def _near_layouts(plain: ServingPlans, every: ServingColumns) -> Iterator[tuple[int, ...]]:
    """Yield (exchange, mode, tp, pp, dp, ep) of plans within the limits whose exchange is near the best on that layout."""
    q = plain.question
    good = every.take(np.flatnonzero(worst_limit_ratio(q, every) <= 1))
    table = np.stack([getattr(good, name) for name in ("mode", *SERVING_AXES, "exchange")]).astype(int)
    rows, at = np.unique(table, axis=1, return_inverse=True)
    reached = np.full(rows.shape[1], -np.inf)
    np.maximum.at(reached, at.ravel(), objective_value(q, good))
    backends = [one.backend for one in plain.exchanges]
    points = [(layout_, by, backends[by], value) for (*layout_, by), value in zip(rows.T.tolist(), reached, strict=True)]
    for layout, by, backend, value in points:
        there = [(other, most) for layout_, _, other, most in points if layout_ == layout]
        alike = max(most for other, most in there if other == backend)
        if value * (1 + LEVEL.copies) >= alike and value * (1 + LEVEL.exchange) >= max(most for _, most in there):
            yield by, *layout


def _leading(plain: ServingPlans) -> list[int]:
    """Return the plan to run, the best, and the best of other kinds: of separate prompt workers, of experts on many ranks."""
    rows = plain.plans
    if not len(rows):
        return []
    wide = np.array([one.wide for one in plain.exchanges])[rows.exchange.astype(int)]
    kinds = [np.flatnonzero(which)[:1].tolist() for which in (rows.mode == 1, rows.mode == 0, wide)]
    return list(dict.fromkeys([plain.recommended, 0, *(i for kind in kinds for i in kind)]))[: COUNT.plans]


def _gaining_sets(plain: ServingPlans, i: int) -> Iterator[str]:
    """Yield what gains on the decode step of plan ``i`` or a full step of prompts, both together, and what makes room for more."""
    decode = plain.step_of(plain.plans, i).question
    scale = Scale(decode, flips=False)
    able = [row for row in map(scale.row, _searched(DECODES)) if not row.refused and row.fits]
    together = _joined(scale, able)
    tokens = min(decode.limits.max_num_batched_tokens or decode.engine.serves.max_batched_tokens, decode.model.max_len)
    prompts = Scale(decode.but(phase="prefill", batch=1, context=int(max(1, tokens)), speculative=0, drafter=""), flips=False)
    ahead = _joined(prompts, [row for row in map(prompts.row, _searched(PROMPTS)) if not row.refused])
    both = _union(ahead, together, scale)
    covered = {*together.split(",")} < {*both.split(",")} and scale.gain(both) >= scale.gain(together or NONE)
    yield from (text for text in dict.fromkeys([both] if covered and together else [together, both]) if text)
    for row in able if plain.plans.kv_headroom[i] < LEVEL.free else ():
        if row.full_gain > 1 + LEVEL.room and row.asked not in together.split(","):
            yield _union(together, row.asked, scale)


def sure_set(step: Settled) -> str:
    """Join techniques that surely gain on a decode step while the next gains on top. "" is none."""
    scale = Scale(step, flips=False)
    able = [one for one in _searched(DECODES) if max(map(scale.gain, one.at_usual_values)) > 1 + LEVEL.gain]
    return _joined(scale, [row for row in map(scale.row, able) if not row.refused and row.fits])


def _searched(groups: Collection[str]) -> list[Technique]:
    return [one for one in techniques().values() if one.group in groups and not (one.lossy or SEARCHED & {*one.sets, *one.takes})]


def _union(first: str, second: str, scale: Scale) -> str:
    """Join both techniques, of the second those that work beside the first and change nothing that it sets."""
    text = first
    for one in second.split(","):
        trial = f"{text},{one}".strip(",")
        if one and not changes_of(text or NONE).keys() & changes_of(one).keys() and scale.gain(trial):
            text = trial
    return text


def _joined(scale: Scale, rows: list[TechniqueWorth]) -> str:
    """Join techniques that surely gain, also on top of each other, and change nothing that another one sets."""
    text, gain = "", 1.0
    sure = (row for row in rows if row.gain > 1 + LEVEL.gain and row.verdict == "gains")
    for row in sorted(sure, key=lambda row: -row.gain):
        trial = _union(text, row.asked, scale)
        if trial != text and (more := scale.gain(trial)) > gain * (1 + LEVEL.gain):
            text, gain = trial, more
    return text


def kept_settings(answer: ServingPlans) -> Iterator[Note]:
    """Yield a note on settings that all plans keep, and on their cost to the recommended one, where any are set."""
    i, costs, kept = answer.recommended, list[str](), list(questioned(answer.question))
    lost, servers = list[str](), answer.servers(answer.plans, answer.recommended)
    for _, flag, changes in kept:
        without = best_load(answer, i, changes)
        if len(without) and is_worth_telling(gain := _worth(answer, without) / _worth(answer, answer.plans, i)):
            load = plural(int(without.concurrency[0]), "client")
            costs.append(f"{flag}: {gain - 1:+.0%} tokens/s at {load}{_grown(without, answer.plans.row(i))}")
            why = why_start_is_lost(servers, servers.but(**changes))
            lost += [f"; without {flag} {why}"] if why else []
    if costs:
        yield words("settings-cost", settings=", ".join(costs), lost="".join(lost))
    elif kept:
        yield words("settings-free", settings=listed([flag for _, flag, _ in kept]))


class UntriedTechniques(NamedTuple):
    """Techniques that were not requested, on a recommended layout at its best load, and the plan's worth with them over without."""

    techniques: str
    rows: ServingColumns
    gain: float


def untried_techniques(answer: ServingPlans) -> UntriedTechniques | None:
    """Return what techniques would gain on the recommended layout, where none were requested and a search turns some on."""
    q, i = answer.question, answer.recommended
    if q.goal.technique_sets or q.techniques != NO_TECHNIQUES or not (text := sure_set(answer.step_of(answer.plans, i).question)):
        return None
    rows = best_load(answer, i, changes_of(text))
    gain = _worth(answer, rows) / _worth(answer, answer.plans, i) if len(rows) else 0.0
    return UntriedTechniques(text, rows, gain) if is_worth_telling(gain) and log(gain) > least_gain(q, text) else None


def untried_gain(answer: ServingPlans) -> Iterator[Note]:
    """Yield the gain of those at the plan's load, then what the limits admit with them and how to have it."""
    if untried := untried_techniques(answer):
        row, alike, text = answer.plans.row(answer.recommended), _same_load_words(answer, untried), untried.techniques
        assumed = _assumed(answer.question, text)
        if alike:
            yield words("technique-same-load", techniques=text, gain=alike, assumed=assumed)
        admit = "the limits admit" if answer.question.goal.times else "this plan has at its best load"
        figures = f"{_load_words(untried.rows)} instead of {_load_words(row)}{_grown(untried.rows, row)}{'' if alike else assumed}"
        yield words("technique-admits", techniques=text, admit=admit, figures=figures)


def _same_load_words(answer: ServingPlans, untried: UntriedTechniques) -> str:
    """Describe the gain at the plan's load with its range, as ``worth`` judges it. For two pools it is ""."""
    rows, i = answer.plans, answer.recommended
    if rows.mode[i]:
        return ""
    put = answer.put(rows, i).but(concurrency=int(rows.concurrency[i]) // int(rows.replicas[i]), disaggregated=False)
    scale = Scale(settle(put), True, flips=False)
    group = DRAFTS if DRAFTS in {technique(word.partition("=")[0]).group for word in untried.techniques.split(",")} else ""
    gain, low, high = itemgetter("gain", "low", "high")(scale.figures(scale.question.but(**changes_of(untried.techniques)), group))
    unsure = ", undecided" if verdict_on_gain(gain, low, high) == UNDECIDED else ""
    return f"{gain - 1:+.0%} tokens/s at the same load ({low - 1:+.0%} to {high - 1:+.0%}{unsure})"


def shared_gain(answer: ServingPlans) -> Iterator[Note]:
    """Yield the shares of the gain over the plan without techniques: theirs on that same layout, and this layout's."""
    plain, i = answer.plain, answer.recommended
    text = ",".join(answer.turned_on(answer.plans, i))
    if not plain or not len(plain.plans) or not text:
        return
    name, row = plain.gpu_words(plain.plans, plain.recommended), plain.plans.row(plain.recommended)
    whole = _worth(answer, answer.plans, i) / _worth(plain, row)
    alike, assumed = best_load(plain, plain.recommended, changes_of(text)), _assumed(answer.question, text)
    total = f"{whole:.2f} x the best plan to run without techniques, {name} with {_load_words(row)}"
    if not len(alike):
        limits = " within the limits" if answer.question.goal.times else ""
        yield words("technique-alone", total=total, techniques=text, limits=limits, assumed=assumed)
        return
    part = _worth(plain, alike) / _worth(plain, row)
    gain = f"{text} brings {part:.2f} x on that layout ({_load_words(alike)}{_grown(alike, row)}), this layout {whole / part:.2f} x"
    yield words("technique-share", total=total, gain=gain, assumed=assumed)


def _worth(answer: ServingPlans, rows: ServingColumns, i: int = 0) -> float:
    return float(objective_value(answer.question, rows)[i])


def _grown(rows: ServingColumns, before: ServingColumns) -> str:
    return "".join(f", {time}" for time in grown_times(ServingColumns.joined([rows, before]), 0, 1))


def _load_words(rows: ServingColumns) -> str:
    return f"{plural(int(rows.concurrency[0]), 'client')} and {rows.tokens_per_s[0]:,.0f} tokens/s"


def _assumed(q: Question, text: str) -> str:
    accepted = accepted_as(q.but(**changes_of(text)))
    return f", if drafts are accepted as often as {accepted}: measure your own" if accepted else ""
