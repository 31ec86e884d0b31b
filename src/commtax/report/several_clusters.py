"""Plans of several clusters ranked together, for a terminal and as a document; each cluster's own answer stands in the document."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from commtax.judgement.margins import is_close, ranges_overlap
from commtax.planner.columns import ServingColumns
from commtax.planner.reasons import against_codes, against_words, among_words, doubt_words, dtype_words, longer_times, role_words
from commtax.planner.several_clusters import RankedPlan, SeveralPlans, same_plan
from commtax.report import plan_tables
from commtax.report.documents import Record, document, engine_name, facts
from commtax.report.drawing import Console
from commtax.report.figures import figure_table, million
from commtax.report.manners import LISTED, Manner, bars
from commtax.report.money import COUNTS, counted_note, fleet_cost_words, price_notes
from commtax.report.planning import DEFINITION, WANTED, limit_words, plans_document
from commtax.report.tables import ANSWER, length_words, model_words, name_and_gpus, notes, say
from commtax.statement import Note
from commtax.units import format_seconds, listed, plural
from commtax.verbs.loads import lengths_note
from commtax.words import words

RANKED = WANTED | {"tokens": "most tokens/s per GPU"}
# What the figures that rank plans are of
UNITS = {"throughput": "tokens/s", "latency": "per request", "cost": "per million tokens", "gpus": "in use"}
UNITS |= {"tokens": "tokens/s per GPU"}
# How the figure of an objective is written, where not as a whole number
RANKING: Mapping[str, Callable[[float], str]] = {"latency": format_seconds, "cost": million}
WAITED, UNWAITED = "users wait", "nobody waits"  # for whom a cluster is recommended where nothing is limited


def show_several(console: Console, a: SeveralPlans, top: int) -> None:
    """Show in a sentence what to run, where, and what it costs, then the ranking."""
    q = a.answers[0].question
    if a.waited:
        say(console, words("no-limit"), ANSWER)
        _say_recommended(console, a.waited, f"When {WAITED}", waiting_why(a.waited))
        _say_recommended(console, a, f"When {UNWAITED}", reasons_between(a))
    elif a.best and a.recommended:
        _say_recommended(console, a, several_role(a), reasons_between(a))
    for line in clusters_without_plans(a):
        say(console, line, "bold red")
    where = " or ".join(name_and_gpus(answer.question.cluster) for answer in a.answers)
    wanted = ", ".join([length_words(q), *limit_words(q)])
    say(console, f"{model_words(q.model)} on {where}, {engine_name(q)}: {wanted}; goal: {RANKED[a.objective]}", "dim")
    if a.best:
        _show_ranking(console, a, top)
    remarks, counted = _notes(a, top), counted_note(q)
    notes(console, [note for note in remarks if note != counted], [note for note in remarks if note == counted])


def several_role(a: SeveralPlans) -> str:
    """Return whether what is recommended is also the best of all."""
    best = a.best and a.recommended and same_plan(a.best, a.recommended)
    return role_words(bool(best), _passed_over_codes(a))


def _passed_over_codes(a: SeveralPlans) -> list[str]:
    return against_codes(a.passed_over.answer.question, a.passed_over.answer.plans) if a.passed_over else []


def _say_recommended(console: Console, a: SeveralPlans, role: str, why: Iterable[str]) -> None:
    if a.recommended:
        say(console, f"{role}: {'; '.join((ranked_words(a.recommended), *ranked_figures(a.recommended)))}.", ANSWER)
    for line in why:
        say(console, f"  {line}")


def ranked_words(one: RankedPlan) -> str:
    """Return a plan and its cluster."""
    rows, q = one.answer.plans, one.answer.question
    return f"{one.answer.gpu_words(rows, one.row)}{dtype_words(q, int(rows.dtype[one.row]))} on {q.cluster.key}"


def ranked_figures(one: RankedPlan) -> Iterator[str]:
    """Yield a plan's load, and its cost where a price is known."""
    rows, i, m = one.answer.plans, one.row, one.money
    yield f"{plural(int(rows.concurrency[i]), 'client')} at once, {rows.tokens_per_s[i]:,.0f} tokens/s"
    if m.usd_per_hour:
        each = _figure_words(one, "cost")
        yield f"{fleet_cost_words(m)}, {each} per million {COUNTS[one.answer.question.goal.cost_of]}"


def reasons_between(a: SeveralPlans) -> Iterator[str]:
    """Yield how far the recommended plan is behind the best and ahead of those recommended on other clusters, and why."""
    best, chosen = a.best, a.recommended
    if best is None or chosen is None:
        return
    if doubt := against_words(chosen.answer.question, chosen.answer.plans, chosen.row):
        yield doubt
    if not same_plan(best, chosen):
        figure = f"{_figure_words(best, a.objective)} {UNITS[a.objective]}"
        first = f"the best{among_words(_passed_over_codes(a))} is {_placed_words(best)}: {figure}"
        pools = len({int(one.answer.plans.mode[one.row]) for one in (best, chosen)}) > 1
        yield words("doubted", lead=first, doubt=doubt_words(best.answer.question, pools))
    ratio = chosen.deciding(a.objective)[0] / a.passed_over.deciding(a.objective)[0] if a.passed_over else 1.0
    if (ahead := a.passed_over) and not is_close(ahead.answer.question, ratio):
        q, beaten = ahead.answer.question, ahead.answer.plans
        rows = ServingColumns.joined([beaten, chosen.answer.plans.take(slice(chosen.row, chosen.row + 1))])
        figure = f"{_figure_words(ahead, a.objective)} {UNITS[a.objective]}{longer_times(rows, 0, 1)}"
        yield words("passed-over", plan=_placed_words(ahead), lead=f"at {figure}", against=against_words(q, beaten))
    for other in a.beside:
        ours = f"{_figure_words(chosen, a.objective)} {UNITS[a.objective]} " * (a.objective != "cost")  # the answer has dollars
        there, leader = _placed_words(other, "recommended"), next(one for one in a.plans if one.answer is other.answer)
        if not (same_plan(leader, other) or same_plan(leader, best)):  # the best of all has a line of its own
            plan = leader.answer.workers(leader.answer.plans, leader.row)
            there = f"{there} (the best there: {_figure(leader, a.objective)} with {plan})"
        counted = a.objective == "gpus" or (a.objective == "cost" and other.money.usd_per_million_tokens is None)
        overlap = not counted and ranges_overlap(chosen.deciding(a.objective), other.deciding(a.objective))
        close = "; the ranges overlap: too close to call, measure both" * overlap
        head = f"{ours}against {_figure_words(other, a.objective)} with {there}"
        yield f"{head}{_why_words(chosen, other, a.objective)}{close}"


def _placed_words(one: RankedPlan, chosen: str = "") -> str:
    rows, q = one.answer.plans, one.answer.question
    where = f", {chosen} on {q.cluster.key}" if chosen else f" on {q.cluster.key}"
    return f"{one.answer.workers(rows, one.row)}{dtype_words(q, int(rows.dtype[one.row]))}{where}"


def _figure_words(one: RankedPlan, objective: str) -> str:
    if objective == "gpus" or (objective == "cost" and one.money.usd_per_million_tokens is None):
        return _figure(one, objective)
    low, high = (RANKING.get(objective, "{:,.0f}".format)(end) for end in one.deciding(objective)[1:])
    return f"{_figure(one, objective)} ({low} to {high})"


def _figure(one: RankedPlan, objective: str) -> str:
    figure = one.deciding(objective)[0]
    if objective == "gpus":
        return plural(int(figure), "GPU")
    if objective == "cost" and one.money.usd_per_million_tokens is None:
        return "no known price"
    return "$" * (objective == "cost") + RANKING.get(objective, "{:,.0f}".format)(figure)


def _why_words(chosen: RankedPlan, other: RankedPlan, objective: str) -> str:
    """Say what makes the difference: a GPU's price and its tokens, how many GPUs there are, or the two times of a request."""
    pairs = [(one, one.answer.plans, one.row) for one in (chosen, other)]
    each = [f"{float(rows.tokens_per_s_per_gpu[i]):,.0f}" for _, rows, i in pairs]
    if objective == "cost" and other.money.usd_per_hour:
        usd = [f"${one.money.usd_per_gpu_hour:,.2f}" for one, _, _ in pairs]
        return f": a GPU gives {each[0]} tokens/s for {usd[0]} per hour, there {each[1]} for {usd[1]}"
    if objective == "throughput":
        gpus = [int(rows.gpus[i]) for _, rows, i in pairs]
        return f": {plural(gpus[0], 'GPU')} with {each[0]} tokens/s each, there {gpus[1]} with {each[1]}"
    if objective == "latency":
        first, there = (f"TTFT {format_seconds(rows.ttft_s[i])} and TPOT {format_seconds(rows.tpot_s[i])}" for _, rows, i in pairs)
        return f": {first}, there {there}"
    return f": {each[0]} tokens/s per GPU, there {each[1]}" if objective == "gpus" else ""


def _show_ranking(console: Console, a: SeveralPlans, top: int) -> None:
    shown, place = a.listed(top), {id(one): at for at, one in enumerate(a.plans)}
    listed = [(one.answer, one.answer.plans, one.row) for one in shown]
    chosen, *others = (at for plan in (a.recommended, *a.beside) for at, one in enumerate(a.plans) if plan and same_plan(one, plan))
    table, limited = figure_table("several"), any(answer.question.goal.times for answer in a.answers)
    cells = table.cells([plan_tables.served_parts(*one) for one in listed], [] if limited else ["limits_kept_with"])
    columns = {"": plan_tables.places([place[id(one)] for one in shown], chosen, others), "plan": plan_tables.plan_names(listed)}
    columns["cluster"] = [one.answer.question.cluster.key for one in shown]
    aim = RANKED[a.objective] if a.waited else ""
    plan_tables.show_ranked(console, columns | cells, plan_tables.gpus_of(listed), table.spare_headings(), aim=aim)


def clusters_without_plans(a: SeveralPlans) -> Iterator[Note]:
    """Yield the clusters on which no plan is good, and what would have to change, once for those that lack the same."""
    lacking: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for answer in a.answers:
        if not len(answer.plans):
            lacking.setdefault((len(answer.near) > 0, answer.would_take), []).append(answer.question.cluster.key)
    for (fits, remedies), clusters in lacking.items():
        takes = words("takes", remedies=list(remedies)) if remedies else ""
        why = "no plan meets the limits" if fits else "no plan fits in memory"
        yield words("cluster-without", clusters=listed(clusters), why=why, takes=takes)


def _notes(a: SeveralPlans, top: int) -> list[str]:
    questions = [answer.question for answer in a.answers]
    q, priced = questions[0], len(a.unpriced) < len({x.cluster.chip.key for x in questions})
    shown, place = a.listed(top), {id(one): at for at, one in enumerate(a.plans, 1)}
    placed, worths = [(one.answer, one.answer.plans, one.row) for one in shown], [one.worth(a.objective) for one in shown]
    behind = plan_tables.behind_notes(placed, worths, [place[id(one)] for one in shown])
    remarks = [DEFINITION, *behind, lengths_note(q), *price_notes(questions)]
    if a.unpriced and a.objective == "cost":
        remarks.append(f"plans on {listed(a.unpriced)} rank behind those with a price, most tokens/s per GPU first")
    if a.objective == "tokens":
        remarks.append(f"without a price for {listed(a.unpriced)}, dollars cannot be compared: ranked by tokens/s per GPU")
    counted = [counted_note(q)] if priced else []
    return [*remarks, *counted, "why plans of one cluster lost: name that cluster alone, or use --json"]


def several_document(a: SeveralPlans, top: int) -> Record:
    waited: Record | None = None
    if a.waited:  # what to run where users wait, on each cluster at one speed
        chosen, beside = a.waited.recommended, [ranked_row(one) for one in a.waited.beside]
        waited = facts(a.waited.answers[0].question.goal, "ttft_s", "tpot_s")
        waited |= {"recommended": ranked_row(chosen) if chosen else None, "beside": beside, "why": waiting_why(a.waited)}
    return document(
        "plan-several",
        a.answers[0].question,
        plans=a,
        clusters=[answer.question.cluster.key for answer in a.answers],
        recommended=ranked_row(a.recommended) if a.recommended else None,
        best=ranked_row(a.best) if a.best else None,
        why=list(reasons_between(a)),
        waited=waited,
        ranking=[ranked_row(one) for one in a.listed(top)],
        answers=[plans_document(answer, top) for answer in a.answers],
        notes=_notes(a, top),
    )


def waiting_why(waited: SeveralPlans) -> list[str]:
    """Return the limits that clusters are compared at where none are given, and why this cluster at them."""
    speed = words("one-speed", limits=", ".join(limit_words(waited.answers[0].question)))
    return [speed, *reasons_between(waited)]


def several_rows(a: SeveralPlans) -> list[Record]:
    listed = {id(answer): plan_tables.served_rows(answer) for answer in a.answers}
    return [{"cluster": one.answer.question.cluster.key, **listed[id(one.answer)][one.row]} for one in a.plans]


def ranked_row(one: RankedPlan) -> Record:
    return {"cluster": one.answer.question.cluster.key, **plan_tables.served_row(one.answer, one.answer.plans, one.row)}


MANNERS = {
    "SeveralPlans": Manner[SeveralPlans](
        lambda console, a: show_several(console, a, LISTED),
        lambda a: several_document(a, LISTED),
        several_rows,
        bars(
            lambda a: [
                (
                    f"{x.answer.question.cluster.key}: {x.answer.gpu_words(x.answer.plans, x.row)}",
                    x.money.usd_per_million_tokens or 0.0,
                )
                for x in a.listed(LISTED)
            ],
            "$ per million tokens",
            lambda a: a.answers[0].question.model.key,
        ),
    ),
}
