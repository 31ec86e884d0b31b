"""What the techniques of a plan are worth in it, each alone, as its users are told."""

from collections.abc import Iterator
from dataclasses import replace

from commtax.catalog.technique_misses import DRAFTS
from commtax.catalog.techniques import changes_of, technique
from commtax.judgement.gains import is_worth_telling
from commtax.planner.columns import ServingColumns, ServingPlans, objective_value, sizes_of
from commtax.planner.same_layout import best_load
from commtax.planner.technique_sets import prompt_step, sure_set
from commtax.records import dataclass
from commtax.spec import NO_TECHNIQUES, SERVING_AXES
from commtax.units import plural
from commtax.verbs.costly_settings import questioned
from commtax.verbs.settling import Settled, replan, settle
from commtax.verbs.worth import Scale, TechniqueWorth


def worth_of_techniques(answer: ServingPlans, i: int) -> Iterator[str]:
    """One sentence on the techniques of row ``i``, none where it has none: what each alone gains on a step, and how surely."""
    rows, exchange = answer.plans, answer.exchange_of(answer.plans, i)
    if not exchange.techniques:
        return
    steps = [Scale(q, flips=False) for q in _steps_without(answer, i)]
    told = [_told(word, steps) for word in exchange.techniques.split(",")]
    kind = "decode steps, or on those of prompts" if not rows.mode[i] else "decode steps, or on its prompt workers'"
    yield f"techniques, each alone on its {kind}: {'; '.join(told)}"


def kept_settings(answer: ServingPlans) -> Iterator[str]:
    """One sentence on settings that all plans keep and that cost the recommended one, none where none does."""
    i, told = answer.recommended, list[str]()
    for setting in questioned(answer.question):
        without = best_load(answer, i, setting.changes)
        if len(without) and is_worth_telling(gain := _worth(answer, without) / _worth(answer, answer.plans, i)):
            told.append(f"{setting.flag}: {gain - 1:+.0%} tokens/s at {plural(int(without.concurrency[0]), 'client')}")
    if told:
        yield f"every plan keeps what is set, and it costs; dropping {', '.join(told)} on this plan"


@dataclass(frozen=True, slots=True)
class UntriedTechniques:
    """Techniques that nobody asked about, on a recommended layout at its best load, and what its worth is then over without."""

    techniques: str
    rows: ServingColumns
    gain: float


def untried_techniques(answer: ServingPlans) -> UntriedTechniques | None:
    """What techniques would gain on the recommended layout, where none were asked about and some surely gain."""
    q, i = answer.question, answer.recommended
    if q.goal.technique_sets or q.techniques != NO_TECHNIQUES or not (text := sure_set(answer.step_of(answer.plans, i).question)):
        return None
    rows = best_load(answer, i, changes_of(text))
    gain = _worth(answer, rows) / _worth(answer, answer.plans, i) if len(rows) else 0.0
    return UntriedTechniques(text, rows, gain) if is_worth_telling(gain) else None


def untried_gain(answer: ServingPlans) -> Iterator[str]:
    """One sentence on those, none where none gains."""
    if found := untried_techniques(answer):
        own = answer.plans.take(slice(answer.recommended, answer.recommended + 1))
        figures = f"{_load_words(found.rows)} instead of {_load_words(own)} ({found.gain - 1:+.0%})"
        tried = f"{_assumed(found.techniques)}; --techniques auto tries it on all plans"
        yield f"with {found.techniques} this plan has {figures}{tried}"


def shared_gain(answer: ServingPlans) -> Iterator[str]:
    """What of the gain over the plan without techniques they bring on that same layout, and what this layout brings."""
    plain, i = answer.plain, answer.recommended
    text = ",".join(answer.turned_on(answer.plans, i))
    if not plain or not len(plain.plans) or not text:
        return
    name, own = plain.gpu_words(plain.plans, plain.recommended), plain.plans.take(slice(plain.recommended, plain.recommended + 1))
    whole = _worth(answer, answer.plans, i) / _worth(plain, own)
    alike = best_load(plain, plain.recommended, changes_of(text))
    total = f"{whole:.2f} x the best plan to run without techniques, {name} with {_load_words(own)}"
    if not len(alike):
        yield f"{total}, which cannot keep the limits with {text}"
        return
    part = _worth(plain, alike) / _worth(plain, own)
    yield f"{total}: {text} brings {part:.2f} x on that layout ({_load_words(alike)}), this layout {whole / part:.2f} x"


def _worth(answer: ServingPlans, rows: ServingColumns, i: int = 0) -> float:
    return float(objective_value(answer.question, rows)[i])


def _load_words(rows: ServingColumns) -> str:
    return f"{plural(int(rows.concurrency[0]), 'client')} and {rows.tokens_per_s[0]:,.0f} tokens/s"


def _assumed(text: str) -> str:
    """What gains of drafts rest on."""
    drafts = any(technique(word.partition("=")[0]).group == DRAFTS for word in text.split(","))
    return ", drafts accepted as published" if drafts else ""


def _steps_without(answer: ServingPlans, i: int) -> tuple[Settled, Settled]:
    """A decode step of row ``i`` and a step of prompts on the workers that compute them, both without techniques."""
    rows = answer.plans
    own = replace(answer.exchange_of(rows, i), techniques="").asked
    kinds = own | {"weights_dtype": answer.question.goal.dtypes[int(rows.dtype[i])]}
    workers = rows.prompter(i) if rows.mode[i] else rows.plan_of(i)
    ahead: dict[str, int] = {axis: int(getattr(workers, axis)) for axis in SERVING_AXES}
    step = answer.step_of(rows, i).question
    decode = replan(answer.question, **sizes_of(rows, i), **kinds).but(batch=step.batch, context=step.context)
    return settle(decode), prompt_step(settle(replan(answer.question, **ahead, **kinds)))


def _told(word: str, steps: list[Scale]) -> str:
    one = technique(word.partition("=")[0])
    able = [row for row in (step.weigh(one, word) for step in steps) if not row.refused]
    best = max(able, key=lambda row: row.gain, default=None)
    return f"{word} {_gain_words(best)}" if best else f"{word} with the others alone"


def _gain_words(row: TechniqueWorth) -> str:
    if row.verdict == "changes nothing":
        return "next to nothing here"
    ends = f"{row.gain - 1:+.0%} tokens/s ({row.low - 1:+.0%} to {row.high - 1:+.0%})"
    assumed = row.technique.group == DRAFTS and ", with drafts accepted as published: measure your own"
    return ends + (assumed or "") + (", undecided" if row.verdict == "undecided" else "")
