"""Plans of several clusters ranked together, for a terminal and as a document; each cluster's own answer stands in the document."""

from collections.abc import Iterator

from commtax.planner.reasons import dtype_words
from commtax.planner.several_clusters import RankedPlan, SeveralPlans
from commtax.report.documents import Record, document
from commtax.report.drawing import Console
from commtax.report.money import COUNTS, counted_note, fleet_cost_words, million, price_notes
from commtax.report.planning import DEFINITION, WANTED, limit_words, plans_document, served_columns, served_row
from commtax.report.tables import name_and_gpus, notes, say, show_columns
from commtax.units import plural
from commtax.verbs.closed_loop import lengths_note

RANKED = WANTED | {"tokens": "most tokens/s per GPU"}


def show_several(console: Console, a: SeveralPlans, top: int) -> None:
    """The sentence first: what to run, where, and what it costs."""
    q = a.answers[0].question
    where = " or ".join(name_and_gpus(answer.question.cluster) for answer in a.answers)
    say(console, f"{q.model.key} on {where}, {q.engine.key}@{q.engine.version}: {_question_words(a)}", "bold")
    if a.best and a.recommended:
        same = a.best.answer is a.recommended.answer and a.best.row == a.recommended.row
        alone = "Recommended and best" if same else "Recommended"
        say(console, f"{alone}: {_sentence(a.recommended)}", "bold yellow")
        _show_ranking(console, a, top)
    for line in _clusters_without_plans(a):
        say(console, line, "bold red")
    notes(console, _notes(a))


def _question_words(a: SeveralPlans) -> str:
    q = a.answers[0].question
    lengths = f"{q.requests.input_len:,} tokens in, {q.requests.output_len:,} out"
    return ", ".join([lengths, *limit_words(q), RANKED[a.objective]])


def _sentence(one: RankedPlan) -> str:
    rows, i, m = one.answer.plans, one.row, one.money
    q = one.answer.question
    load = f"{plural(int(rows.concurrency[i]), 'client')} at once, {rows.tokens_per_s[i]:,.0f} tokens/s"
    usd = (
        f"; {fleet_cost_words(m)}, ${million(m.usd_per_million_tokens)} per million {COUNTS[q.goal.cost_of]}"
        if m.usd_per_hour
        else ""
    )
    words = one.answer.gpu_words(rows, i) + dtype_words(q, int(rows.dtype[i]))
    return f"{words} on {q.cluster.key}; {load}{usd}."


def _show_ranking(console: Console, a: SeveralPlans, top: int) -> None:
    shown, place = a.listed(top), {id(one): at + 1 for at, one in enumerate(a.plans)}
    listed, costs = [(one.answer, one.answer.plans, one.row) for one in shown], [one.money for one in shown]
    columns = {"": [str(place[id(one)]) for one in shown], **served_columns(listed, "plan")}
    columns["cluster"] = [one.answer.question.cluster.key for one in shown]
    columns |= served_columns(listed, ">clients", ">TTFT", ">TPOT", ">likely", ">tokens/s", ">/GPU")
    columns[">$/hour"] = [f"{m.usd_per_hour:,.2f}" if m.usd_per_hour else "" for m in costs]
    show_columns(console, columns | {">$/M": [million(m.usd_per_million_tokens) for m in costs]})


def _clusters_without_plans(a: SeveralPlans) -> Iterator[str]:
    """Clusters on which nothing is good, and what would have to change; the same of several is said once."""
    said: dict[str, list[str]] = {}
    for answer in a.answers:
        if not len(answer.plans):
            why = "no plan meets the limits" if len(answer.near) else "no plan fits in memory"
            takes = f"; it would take {', or '.join(answer.would_take)}" if answer.would_take else ""
            said.setdefault(f"{why}{takes}.", []).append(answer.question.cluster.key)
    for sentence, places in said.items():
        yield f"{' and '.join(places)}: {sentence}"


def _notes(a: SeveralPlans) -> list[str]:
    questions = [answer.question for answer in a.answers]
    q, known = questions[0], len(a.unpriced) < len({x.cluster.chip.key for x in questions})
    said = [DEFINITION, lengths_note(q.requests.spread), *price_notes(questions)]
    if a.unpriced and a.objective == "cost":
        said.append(f"plans on {' and '.join(a.unpriced)} rank behind those with a price, most tokens/s per GPU first")
    if a.objective == "tokens":
        said.append(f"without a price for {' and '.join(a.unpriced)}, dollars cannot be compared: ranked by tokens/s per GPU")
    return [*said, *([counted_note(q)] if known else []), "why the others lost: use one --cluster, or --json"]


def several_document(a: SeveralPlans, top: int) -> Record:
    """``plan --json`` of several clusters."""
    return document(
        "plan-several",
        a.answers[0].question,
        plans=a,
        clusters=[answer.question.cluster.key for answer in a.answers],
        recommended=_row(a.recommended) if a.recommended else None,
        best=_row(a.best) if a.best else None,
        ranking=[_row(one) for one in a.listed(top)],
        answers=[plans_document(answer, top) for answer in a.answers],
        notes=_notes(a),
    )


def _row(one: RankedPlan) -> Record:
    return {"cluster": one.answer.question.cluster.key, **served_row(one.answer, one.answer.plans, one.row)}
