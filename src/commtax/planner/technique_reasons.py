"""Gains of techniques and settings in a plan, of whole requests, as notes beside the plan."""

from collections.abc import Iterator
from math import log
from operator import itemgetter

from commtax.catalog.techniques import DRAFTS, changes_of, technique
from commtax.judgement.gains import UNDECIDED, is_worth_telling, verdict_on_gain
from commtax.planner.columns import ServingColumns, ServingPlans, objective_value
from commtax.planner.ranking import least_gain
from commtax.planner.reasons import grown_times
from commtax.planner.serving_search import best_load
from commtax.planner.technique_sets import sure_set
from commtax.question import Question
from commtax.records import dataclass
from commtax.rules.drafts import accepted_as
from commtax.spec import NO_TECHNIQUES
from commtax.statement import Note
from commtax.units import listed, plural
from commtax.verbs.settling import settle
from commtax.verbs.worth import Scale, questioned, why_start_is_lost
from commtax.words import words


def kept_settings(answer: ServingPlans) -> Iterator[Note]:
    """Yield a note on settings that all plans keep, and on their cost to the recommended one, where any are set."""
    i, costs, kept = answer.recommended, list[str](), list(questioned(answer.question))
    lost, servers = list[str](), answer.servers(answer.plans, answer.recommended)
    for setting in kept:
        without = best_load(answer, i, setting.changes)
        if len(without) and is_worth_telling(gain := _worth(answer, without) / _worth(answer, answer.plans, i)):
            load = plural(int(without.concurrency[0]), "client")
            costs.append(f"{setting.flag}: {gain - 1:+.0%} tokens/s at {load}{_grown(without, _row(answer))}")
            why = why_start_is_lost(servers, servers.but(**setting.changes))
            lost += [f"; without {setting.flag} {why}"] if why else []
    if costs:
        yield words("settings-cost", settings=", ".join(costs), lost="".join(lost))
    elif kept:
        yield words("settings-free", settings=listed([x.flag for x in kept]))


@dataclass(frozen=True, slots=True)
class UntriedTechniques:
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
        row, alike, text = _row(answer), _same_load_words(answer, untried), untried.techniques
        assumed = _assumed(answer.question, text)
        if alike:
            yield words("technique-same-load", techniques=text, gain=alike, assumed=assumed)
        admit = "the limits admit" if answer.question.goal.times else "this plan has at its best load"
        figures = f"{_load_words(untried.rows)} instead of {_load_words(row)}{_grown(untried.rows, row)}{'' if alike else assumed}"
        yield words("technique-admits", techniques=text, admit=admit, figures=figures)


def _same_load_words(answer: ServingPlans, untried: UntriedTechniques) -> str:
    """Describe the gain at the plan's load with its range, as ``worth`` judges it. For two pools it is ""."""
    rows, i = answer.plans, answer.recommended
    clients = int(rows.concurrency[i])
    if rows.mode[i]:
        return ""
    put = answer.put(rows, i).but(concurrency=clients // int(rows.replicas[i]), disaggregated=False)
    scale = Scale(settle(put), True, flips=False)
    groups = {technique(word.partition("=")[0]).group for word in untried.techniques.split(",")}
    group = DRAFTS if DRAFTS in groups else ""
    gain, low, high = itemgetter("gain", "low", "high")(scale.figures(scale.question.but(**changes_of(untried.techniques)), group))
    unsure = ", undecided" if verdict_on_gain(gain, low, high) == UNDECIDED else ""
    return f"{gain - 1:+.0%} tokens/s at the same load ({low - 1:+.0%} to {high - 1:+.0%}{unsure})"


def shared_gain(answer: ServingPlans) -> Iterator[Note]:
    """Yield the shares of the gain over the plan without techniques: theirs on that same layout, and this layout's."""
    plain, i = answer.plain, answer.recommended
    text = ",".join(answer.turned_on(answer.plans, i))
    if not plain or not len(plain.plans) or not text:
        return
    name, row = plain.gpu_words(plain.plans, plain.recommended), _row(plain)
    whole = _worth(answer, answer.plans, i) / _worth(plain, row)
    alike = best_load(plain, plain.recommended, changes_of(text))
    total = f"{whole:.2f} x the best plan to run without techniques, {name} with {_load_words(row)}"
    if not len(alike):
        limits = " within the limits" if answer.question.goal.times else ""
        yield words("technique-alone", total=total, techniques=text, limits=limits, assumed=_assumed(answer.question, text))
        return
    part = _worth(plain, alike) / _worth(plain, row)
    gain = f"{text} brings {part:.2f} x on that layout ({_load_words(alike)}{_grown(alike, row)}), this layout {whole / part:.2f} x"
    yield words("technique-share", total=total, gain=gain, assumed=_assumed(answer.question, text))


def _worth(answer: ServingPlans, rows: ServingColumns, i: int = 0) -> float:
    return float(objective_value(answer.question, rows)[i])


def _row(answer: ServingPlans) -> ServingColumns:
    return answer.plans.take(slice(answer.recommended, answer.recommended + 1))


def _grown(rows: ServingColumns, before: ServingColumns) -> str:
    """Return the times that grow with the gain: before and after."""
    return "".join(f", {time}" for time in grown_times(ServingColumns.joined([rows, before]), 0, 1))


def _load_words(rows: ServingColumns) -> str:
    return f"{plural(int(rows.concurrency[0]), 'client')} and {rows.tokens_per_s[0]:,.0f} tokens/s"


def _assumed(q: Question, text: str) -> str:
    """Return the assumption that gains of drafts rest on."""
    accepted = accepted_as(q.but(**changes_of(text)))
    return f", if drafts are accepted as often as {accepted}: measure your own" if accepted else ""
