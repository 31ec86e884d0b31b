"""Where to run when no limit says: the fastest, the balanced and the most productive point, each with its recommended plan."""

from dataclasses import replace
from math import isinf

from commtax.judgement.confidence import percent
from commtax.judgement.margins import ratio_error
from commtax.planner.choosing import KINDS, kinds
from commtax.planner.columns import USUAL, OperatingPoint, ServingPlans
from commtax.planner.each_alone import alone_words
from commtax.planner.pool_use import pool_words
from commtax.planner.reasons import delivers, doubt_words, dtype_words
from commtax.report.drawing import Console
from commtax.report.plan_tables import gpus_of, served_columns, show_ranked
from commtax.report.tables import ANSWER, say
from commtax.units import format_seconds, plural
from commtax.verbs.disaggregation import UNCHECKED
from commtax.words import opening, words

MOST = {"throughput": "most tokens/s", "cost": "cheapest"}  # what the point that counts nothing but the objective is called


def point_name(a: ServingPlans, point: OperatingPoint) -> str:
    """As people read it.

    >>> import commtax
    >>> found = commtax.plan("llama-3.2-1b", "1xh100-sxm")
    >>> [point_name(found, point) for point in found.places]
    ['fastest', 'balanced', 'most tokens/s']
    """
    return MOST[a.question.goal.objective] if point is a.places[-1] else point.name


def start_sentence(a: ServingPlans) -> str:
    rows, own = a.answered
    plan = a.gpu_words(rows, own) + dtype_words(a.question, int(rows.dtype[own]))
    return f"When users wait, start from {USUAL}: {plan}; {plural(int(rows.concurrency[own]), 'client')} at once."


def best_sentence(a: ServingPlans) -> str:
    """What the point to start from could have with two pools, where a simpler plan is named for it; else nothing."""
    rows, point = a.usual.passed_over, a.usual
    lead = rows if len(rows) else point.plans
    if not lead.mode[0] or point.plans.mode[point.recommended]:
        return ""
    times = f"TTFT {format_seconds(lead.ttft_s[0])}, TPOT {format_seconds(lead.tpot_s[0])}"
    best = f"{a.workers(lead, 0)}: {plural(int(lead.concurrency[0]), 'client')}, {times}, {lead.tokens_per_s[0]:,.0f} tokens/s"
    return f"Predicted ahead for {USUAL} are two pools, {best}, {doubt_words(a.question, pools=True)}."


def simpler_sentence(a: ServingPlans) -> str:
    """The best plan of a simpler kind for the point to start from, and how far predictions of two pools are to be trusted."""
    point, q = a.usual, a.question
    rows, own, kind = point.plans, point.recommended, kinds(point.plans, q.cluster)
    simpler = next((i for i in range(own + 1, len(rows)) if kind[i] < kind[own]), None)
    if simpler is None:
        return ""
    clients = plural(int(rows.concurrency[simpler]), "client")
    named = f"The best simpler plan ({KINDS[int(kind[simpler])]}) is {a.workers(rows, simpler)}; {clients}"
    gives = f"{named}: {delivers(replace(a, plans=rows), simpler)}."
    if not rows.mode[own]:
        return gives
    error = ratio_error(q, pools=True)
    doubt = f"{UNCHECKED} both" if isinf(error) else f"predictions of two pools against one err by {percent(error)}: measure both"
    return f"{gives} {opening(doubt)}"


def point_lines(a: ServingPlans) -> list[str]:
    """What the point to start from gives, what is simpler, and what to beware of."""
    rows, own = a.answered
    gives = f"{delivers(replace(a, plans=rows), own)}."
    beware = map(opening, (*alone_words(a), *pool_words(a, rows, own)))
    return [line for line in (gives, *beware, best_sentence(a), simpler_sentence(a)) if line]


def show_points(console: Console, a: ServingPlans) -> None:
    """The answer where nothing is limited: a row for each point, and when it is the one to choose."""
    for line in (words("no-limit"), start_sentence(a)):
        say(console, line, ANSWER)
    for line in point_lines(a):
        say(console, f"  {line}")
    listed = [(a, point.plans, point.recommended) for point in a.places]
    columns = {"point": [point_name(a, point) for point in a.places]}
    columns |= served_columns(listed, "plan", ">clients", ">TTFT", ">TPOT", ">tokens/s", ">$/M")
    show_ranked(console, columns, gpus_of(listed), ("$/M",), a.question.gpus_there)
    for point in a.places:
        say(console, f"  {point_name(a, point)}: when {point.when}", "dim")
    console.print()
