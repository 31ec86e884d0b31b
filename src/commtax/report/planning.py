"""Plans for a terminal: the winner and why, the ranking, the Pareto front, what was rejected; and as a document."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import isinf
from typing import TypeVar

import numpy as np

from commtax.judgement.closed_loops import LEFT_OUT
from commtax.judgement.confidence import percent
from commtax.judgement.margins import margin, ratio_error
from commtax.planner import StandingPlan, ranking, reasons
from commtax.planner.alternatives import alone_words, best_of_types, recommended_fit
from commtax.planner.columns import (
    USUAL,
    OperatingPoint,
    Rejected,
    ServingColumns,
    ServingPlans,
    TrainColumns,
    TrainPlans,
    objective_value,
    power,
)
from commtax.planner.money import asks_for_dollars
from commtax.planner.ranking import FAMILY, KINDS, kinds
from commtax.planner.serving_search import power_margin
from commtax.question import EVEN, Question
from commtax.report import plan_tables
from commtax.report.closed_loop import basis_words
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Sketch
from commtax.report.exact_bytes import roomier_record
from commtax.report.figures import figure_table
from commtax.report.money import counted_note, plan_notes
from commtax.report.tables import ANSWER, Remarks, length_words, model_words, notes, say, show_rejected, show_table, sized_places
from commtax.units import format_bytes, format_seconds, plural
from commtax.verbs.disaggregation import UNCHECKED
from commtax.verbs.loads import lengths_note
from commtax.verbs.settling import link_notes
from commtax.words import inside, opening, words

DEFINITION = (
    "TTFT and TPOT are means over the requests of a closed loop: "
    "each client sends its next request when its previous one is answered"
)
WIDTH, HEIGHT, EDGE = 60, 10, 10  # signs of the picture at most, and of the figures at its left
HEAD = "Pareto front: tokens/s per GPU (upwards) against tokens/s per user (to the right)"
Plans = ServingPlans | TrainPlans
Rows = TypeVar("Rows", ServingColumns, TrainColumns)
MOST = {"throughput": "most tokens/s", "cost": "cheapest"}  # what the point that counts nothing but the objective is called
GAIN = {"throughput": "its tokens/s", "latency": "its speed", "cost": "its tokens/s per GPU", "gpus": "its answer per GPU"}
LEAD = {"throughput": "has {:.0%} more tokens/s", "latency": "is {:.0%} faster", "cost": "has {:.0%} more tokens per dollar"}
ALIKE = 1.005  # a ratio below which two plans are told as equal
WANTED = {"throughput": "most tokens/s", "latency": "shortest requests", "cost": "fewest dollars per token", "gpus": "fewest GPUs"}


def show_plans(console: Console, a: Plans, top: int, pasted: StandingPlan | None = None) -> None:
    """Show what to run, and why, then the plans, what was rejected, and notes."""
    open_ended = not a.trains and len(a.plans) and bool(a.places)
    if not len(a.plans):
        for line, style in zip(nothing_words(a), ("bold red", ""), strict=False):
            say(console, line, style)
    elif not a.trains and a.places:
        show_points(console, a)
    else:
        _say_recommended(console, a, ANSWER)
    for line in () if a.trains else best_of_types(a):
        say(console, f"  {line}")
    show_pasted_plan(console, a, pasted)
    q = a.question
    engine = q.engine.key if a.trains else f"{q.engine.key}@{q.engine.version}"
    say(console, f"{model_words(q.model)} on {sized_places(q)}, {engine}: {question_words(a)}", "dim")
    if open_ended:
        console.print()
        _say_recommended(console, a)
    remarks, details = plan_tables.show_training_plans(console, a, top) if a.trains else _show_serving_plans(console, a, top)
    show_rejected(console, ((r.family, r.reason) for r in (a.rejected if a.trains else shorten_rejected(a.rejected))))
    notes(console, remarks, details)


def _say_recommended(console: Console, a: Plans, style: str = "") -> None:
    head, *why = a.why
    clients = "" if a.trains else f"; {plural(int(a.plans.concurrency[a.recommended]), 'client')} at once"
    say(console, f"{recommended_words(a)}: {head}{clients}.", style)
    for reason in why:
        say(console, f"  {reason}")


def recommended_words(a: Plans) -> str:
    """Return whether what is recommended is also the best."""
    alone = reasons.role_words(a.recommended == 0, () if a.trains else reasons.against_codes(a.question, a.passed_over))
    return f"{alone} for {WANTED[a.question.goal.objective]}" if not a.trains and a.places else alone


def _show_serving_plans(console: Console, a: ServingPlans, top: int) -> Remarks:
    if not len(a.plans):
        if len(a.near):
            _show_ranking(console, a, a.near, plan_tables.NEAREST)
        return (), ()
    _show_ranking(console, a, a.plans, top)
    console.print()
    for line in drawn_front(a, console.width):
        console.print(line)
    rows, i = a.answered
    usd = plan_notes(a.question, int(rows.gpus[i]), float(rows.tokens_per_s[i]), int(rows.prefill_gpus[i]))
    served, q = a.simulation(rows, i), a.question
    ranges, counted = f"host times of {q.engine.key} are {basis_words(served)}", counted_note(q)
    details = [note for note in (*usd, ranges) if note == counted or (note == ranges and served.basis == "calibrated")]
    first, worths = range(min(top, len(a.plans))), objective_value(q, a.plans)[:top].tolist()
    behind = plan_tables.behind_notes([(a, a.plans, i) for i in first], worths, [i + 1 for i in first])
    above = [note for line in a.why for note in inside(line)]
    limits = [note for note in served.notes if note.code == "own-limits" and note not in above]
    limits += [note for note in served.notes if note.code in LEFT_OUT]
    lengths, links = lengths_note(q), link_notes(served.question)
    remarks = (DEFINITION, *behind, *limits, lengths, *usd, *spread_notes(q), *links, ranges)
    return tuple(note for note in remarks if note not in details), tuple(details)


def spread_notes(q: Question) -> list[str]:
    copies, imbalance = q.plan.redundant_experts, q.what_if.imbalance
    notes = [f"plans that spread experts hold {copies} redundant ones (--redundant-experts)"] * bool(copies)
    return notes + [f"busiest expert rank {imbalance:g}x the mean where experts are spread (--imbalance)"] * bool(imbalance)


def question_words(a: Plans) -> str:
    if a.trains:
        return f"{plural(a.question.goal.global_batch, 'sequence')} of {a.question.context:,} tokens per step"
    return f"{', '.join([length_words(a.question), *limit_words(a.question)])}; goal: {WANTED[a.question.goal.objective]}"


def limit_words(q: Question, names: Callable[[str], str] = reasons.TITLES.__getitem__) -> list[str]:
    """Return each limit, and how likely it has to be met."""
    limits = [f"{names(name)} <= {format_seconds(limit)}" for name, limit in (*q.goal.times, *q.goal.slo)]
    each = "each " * (len(limits) > 1)
    return [*limits, f"{each}at least {percent(q.goal.confidence)} likely to be met"] if limits else []


def _show_ranking(console: Console, a: ServingPlans, rows: ServingColumns, top: int) -> None:
    chosen, q, shown = a.recommended if rows is a.plans else None, a.question, figure_table("serving")
    first = plan_tables.rows_to_show(rows, top, chosen)
    some, listed = rows.take(np.array(first, dtype=int)), [(a, rows, i) for i in first]
    priced = {"tokens_per_s.range": a.ranges(some, "tokens_per_s"), "exposed_comm_fraction": a.comm_fractions(some).tolist()}
    wanted = {"limits_kept_with": bool(q.goal.times), "request_s": q.goal.objective == "latency"}
    cells = shown.cells([plan_tables.served_parts(*one) for one in listed], [key for key, on in wanted.items() if not on], priced)
    needed = ["usd_per_million_tokens"] if asks_for_dollars(q) else []
    aim = WANTED[q.goal.objective] if a.places else ""
    columns = {"": plan_tables.places(first, chosen), "plan": plan_tables.plan_names(listed), **cells}
    plan_tables.show_ranked(console, columns, plan_tables.gpus_of(listed), shown.spare_headings(needed), q.gpus_there, aim)


def nothing_words(a: Plans) -> list[str]:
    """Say that no plan is good, which is the nearest, and what would have to change."""
    if a.trains:
        return plan_tables.untrained_words(a)
    takes = [f"It would take {', or '.join(a.would_take)}."] if a.would_take else []
    if not len(a.near):
        return ["No plan fits in memory.", *takes]
    near, wish = a.near, percent(a.question.goal.confidence)
    broken = [reasons.odds(a, near, 0, name) for name in reasons.missed_times(a.question, near, dict.fromkeys(reasons.TITLES, 0))]
    by_half = "; by the central prediction (50%) some do" if any(a.kept(near, i) >= EVEN for i in range(len(near))) else ""
    head = f"No plan is {wish} likely to meet the limits{by_half}"
    return [f"{head}. The nearest, {a.gpu_words(near, 0)}, has {' and '.join(broken)}.", *takes]


def shorten_rejected(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Join the degrees that one rule forbids in one line: TP 3, 5, 6, 7."""
    groups: dict[tuple[str, str], list[Rejected]] = {}
    for r in rejected:
        groups.setdefault((r.rule or r.reason, r.where), []).append(r)
    lines = []
    for (rule, where), group in groups.items():
        sizes = [str(r.tp) for r in group]
        if len(group) > 1 and "{tp}" in rule:
            group = [Rejected(f"TP {', '.join(sizes)}{where}", rule.replace("{tp}", f"{', '.join(sizes[:-1])} or {sizes[-1]}"))]
        lines += group
    return lines


def plans_document(a: Plans, top: int, pasted: StandingPlan | None = None) -> Record:
    """Return what ``plan --json`` prints, of either phase. ``pasted`` is where the pasted plan stands, null without one."""
    standing: Record | None = None
    if pasted and isinstance(rows := pasted.rows, TrainColumns):
        standing = record("plan-training-sizes", row=plan_tables.RowValues(rows, 0)) if len(rows) else {}
    elif pasted and isinstance(a, ServingPlans) and isinstance(rows, ServingColumns):
        standing = plan_tables.served_row(a, rows, 0) if len(rows) else {}
    if pasted and standing is not None:
        standing |= {"plan": pasted.plan, "rank": pasted.rank or None, "reason": pasted.reason, "remark": pasted.remark}
    if a.trains:
        rankings = _rankings(a, a.plans, a.near, partial(plan_tables.trained_row, a), top)
        return document("plan-trained", a.question, **rankings, pasted=standing)
    row, front = partial(plan_tables.served_row, a), zip(a.front.tokens_per_s_per_gpu, a.front.tokens_per_s_per_user, strict=True)
    points = ((p, row(p.plans, p.recommended), row(p.plans, 0)) for p in a.places)
    places = [{"place": p.name, "when": p.when, "recommended": chosen, "best": best} for p, chosen, best in points]
    roomier: Record | None = None  # the engine limits that make room where memory binds, and the plan recommended with them
    if more := a.roomier:
        room = roomier_record(recommended_fit(more), recommended_fit(a))
        roomier = {**room, "recommended": plan_tables.served_row(more, more.plans, more.recommended)}
    drawn = [{"tokens_per_s_per_gpu": float(g), "tokens_per_s_per_user": float(u)} for g, u in front]
    parts = _rankings(a, a.plans, a.near, row, top) | {"definition": DEFINITION, "places": places, "front": drawn}
    return document("plan-served", a.question, **parts, pasted=standing, roomier=roomier)


def _rankings(a: Plans, plans: Rows, near: Rows, row: Callable[[Rows, int], Record], top: int) -> Record:
    return {
        "plans": a,
        "margin": margin(a.question),
        "recommended": row(plans, a.recommended) if len(plans) else None,
        "best": row(plans, 0) if len(plans) else None,
        "ranking": [row(plans, i) for i in range(min(top, len(plans)))],
        "near": [row(near, i) for i in range(min(5, len(near)))],
        "rejected": [record("plan-rejected", lost=lost) for lost in a.rejected],
    }


def drawn_front(a: ServingPlans, room: int) -> list[Sketch]:
    """Draw the Pareto front: what a user gets (across) against what a GPU gives (up)."""
    width, front = min(WIDTH, room - EDGE), a.front
    if len(front) < 3 or a.question.requests.output_len == 1:
        return []
    x, y = front.tokens_per_s_per_user, front.tokens_per_s_per_gpu
    grid = [[" "] * width for _ in range(HEIGHT)]

    def place(u: float, g: float) -> tuple[int, int]:
        across, up = (u - x.min()) / max(1e-9, np.ptp(x)), (g - y.min()) / max(1e-9, np.ptp(y))
        return round(across * (width - 1)), HEIGHT - 1 - round(up * (HEIGHT - 1))

    for column, row in map(place, x, y):
        grid[row][column] = "•"
    marked = {plan_tables.MARK: ("the recommended plan", a.plans, a.recommended)}  # or the operating points by their first letters
    if a.places:
        named = [(point_name(a, point), point) for point in a.places]
        marked = {name[0].upper(): (name, point.plans, point.recommended) for name, point in named}
    for sign, (_, rows, i) in marked.items():
        column, row = place(rows.tokens_per_s_per_user[i], rows.tokens_per_s_per_gpu[i])
        if 0 <= row < HEIGHT and 0 <= column < width:
            grid[row][column] = sign
    lines = [Sketch(f"{HEAD}; {', '.join(f'{sign} is {name}' for sign, (name, _, _) in marked.items())}", style="dim")]
    for i, cells in enumerate(grid):
        edge = f"{y.max() - (y.max() - y.min()) * i / (HEIGHT - 1):{EDGE - 2},.0f} │"
        lines.append(Sketch(edge + "".join(cells).rstrip()))
    lines.append(Sketch(" " * (EDGE - 1) + "└" + "─" * width))
    lines.append(Sketch(f"{x.min():{EDGE + 4},.1f}{x.max():{width - 4},.1f}", style="dim"))
    return lines


def show_engines(console: Console, answers: Sequence[TrainPlans], _top: int) -> None:
    """Show which engine, with which plan, and by how much, then each engine's best plan in a row."""
    q, able = answers[0].question, fastest_first(answers)
    if able:
        best = able[0]
        say(console, f"Recommended: {_engine_key(best)}, {best.whole_words(best.plans, best.recommended)}.", ANSWER)
        ours = best.step_of(best.plans, best.recommended)
        for other in able[1:]:
            theirs, plan = other.step_of(other.plans, other.recommended), other.whole_words(other.plans, other.recommended)
            sure = "" if float(ours.high_s) < float(theirs.low_s) else "; their 80% ranges overlap: measure both"
            ahead = best.tokens_per_s(best.plans, best.recommended) / other.tokens_per_s(other.plans, other.recommended) - 1
            say(console, f"  {ahead:.1%} more tokens/s than {_engine_key(other)}, {plan}{sure}")
    for answer in answers:
        if not len(answer.plans):
            say(console, f"{_engine_key(answer)}: no plan fits in memory.", "bold red")
    work = f"{plural(q.goal.global_batch, 'sequence')} of {q.context:,} tokens per step"
    say(console, f"{model_words(q.model)} on {sized_places(q)}, {' or '.join(_engine_key(a) for a in answers)}: {work}", "dim")
    if able:
        shown = figure_table("engines")
        columns = {"engine": [_engine_key(a) for a in able]}
        columns |= shown.cells([plan_tables.trained_parts(a, a.plans, a.recommended) for a in able])
        show_table(console, list(columns), zip(*columns.values(), strict=True), shown.spare_headings())
    notes(console, [*(plan_tables.run_notes(able[0]) if able else []), "why other plans of an engine lost: name it alone"])


def fastest_first(answers: Sequence[TrainPlans]) -> list[TrainPlans]:
    """Sort answers that have a plan by the speed of the recommended one."""
    return sorted((a for a in answers if len(a.plans)), key=lambda a: a.tokens_per_s(a.plans, a.recommended), reverse=True)


def engines_document(answers: Sequence[TrainPlans], top: int) -> Record:
    able = fastest_first(answers)
    return {
        "schema": "commtax.plan-engines/1",
        "engines": [_engine_key(a) for a in answers],
        "recommended": _engine_key(able[0]) if able else None,
        "answers": [plans_document(a, top) for a in answers],
    }


def _engine_key(a: TrainPlans) -> str:
    return a.question.engine.key


def point_name(a: ServingPlans, point: OperatingPoint) -> str:
    """Return the name of a point as people read it.

    >>> import commtax
    >>> plans = commtax.plan("llama-3.2-1b", "1xh100-sxm")
    >>> [point_name(plans, point) for point in plans.places]
    ['fastest', 'balanced', 'most tokens/s']
    """
    return MOST[a.question.goal.objective] if point is a.places[-1] else point.name


def start_sentence(a: ServingPlans) -> str:
    rows, i = a.answered
    plan = a.gpu_words(rows, i) + reasons.dtype_words(a.question, int(rows.dtype[i]))
    return f"When users wait, start from {USUAL}: {plan}; {plural(int(rows.concurrency[i]), 'client')} at once."


def best_sentence(a: ServingPlans) -> str:
    """Say what the point to start from could have with two pools, where a simpler plan is named for it."""
    rows, point = a.usual.passed_over, a.usual
    lead = rows if len(rows) else point.plans
    if not lead.mode[0] or point.plans.mode[point.recommended]:
        return ""
    times = f"TTFT {format_seconds(lead.ttft_s[0])}, TPOT {format_seconds(lead.tpot_s[0])}"
    best = f"{a.workers(lead, 0)}: {plural(int(lead.concurrency[0]), 'client')}, {times}, {lead.tokens_per_s[0]:,.0f} tokens/s"
    return f"Predicted ahead for {USUAL} are two pools, {best}, {reasons.doubt_words(a.question, pools=True)}."


def simpler_sentence(a: ServingPlans) -> str:
    """Name the best plan of a simpler kind for the point to start from, and how far predictions of two pools can be trusted."""
    point, q = a.usual, a.question
    rows, chosen, kind = point.plans, point.recommended, kinds(point.plans, q.cluster)
    simpler = next((i for i in range(chosen + 1, len(rows)) if kind[i] < kind[chosen]), None)
    if simpler is None:
        return ""
    clients = plural(int(rows.concurrency[simpler]), "client")
    named = f"The best simpler plan ({KINDS[int(kind[simpler])]}) is {a.workers(rows, simpler)}; {clients}"
    gives = f"{named}: {reasons.delivers(replace(a, plans=rows), simpler)}."
    if not rows.mode[chosen]:
        return gives
    error = ratio_error(q, pools=True)
    doubt = f"{UNCHECKED} both" if isinf(error) else f"predictions of two pools against one err by {percent(error)}: measure both"
    return f"{gives} {opening(doubt)}"


def show_points(console: Console, a: ServingPlans) -> None:
    """Show where to run when nothing is limited: a row for each point, and when it is the one to choose."""
    for line in (words("no-limit"), start_sentence(a)):
        say(console, line, ANSWER)
    rows, i = a.answered
    gives = f"{reasons.delivers(replace(a, plans=rows), i)}."
    beware = map(opening, (*alone_words(a), *reasons.pool_words(a, rows, i)))
    for line in [line for line in (gives, *beware, best_sentence(a), simpler_sentence(a)) if line]:
        say(console, f"  {line}")
    listed = [(a, point.plans, point.recommended) for point in a.places]
    columns = {"point": [point_name(a, point) for point in a.places]}
    shown = figure_table("points")
    columns |= {"plan": plan_tables.plan_names(listed), **shown.cells([plan_tables.served_parts(*one) for one in listed])}
    plan_tables.show_ranked(console, columns, plan_tables.gpus_of(listed), shown.spare_headings(), a.question.gpus_there)
    for point in a.places:
        say(console, f"  {point_name(a, point)}: when {point.when}", "dim")
    console.print()


def show_pasted_plan(console: Console, a: ServingPlans | TrainPlans, pasted: StandingPlan | None) -> None:
    """Say where the pasted plan stands, after a warning if it would not start as it is."""
    if pasted is None:
        return
    if pasted.remark:
        say(console, f"As pasted, {pasted.remark}.", "bold red")
    if not len(pasted.rows):
        say(console, f"Pasted: {pasted.plan}: {pasted.reason}.", "bold red")
        return
    figures, standing, gain = _served(a, pasted) if isinstance(a, ServingPlans) else _trained(a, pasted)
    say(console, f"Pasted: {pasted.plan}{figures}; {standing}.", "bold" if pasted.rank else "bold red")
    better = pasted.tuned
    if better and better.rank and pasted.gain > ALIKE * better.gain:
        say(console, f"  run as {better.plan}, it would have {pasted.gain / better.gain:.2f} x {gain}")


def _trained(a: TrainPlans, pasted: StandingPlan) -> tuple[str, str, str]:
    r, gain = pasted.rows, "its speed"
    assert isinstance(r, TrainColumns)
    figures = f": step {format_seconds(r.step_s[0])}, MFU {r.mfu[0]:.1%}, {format_bytes(r.memory_bytes[0])} per rank"
    more = float(a.plans.gpus[0] / r.gpus[0]) if len(a.plans) else 1.0
    beside = f", {_times('the best', pasted.gain, gain, more)}" if pasted.rank and pasted.gain > ALIKE else ""
    return figures, place_words(pasted, len(a.plans)) + beside, gain


def _served(a: ServingPlans, pasted: StandingPlan) -> tuple[str, str, str]:
    q, r = a.question, pasted.rows
    assert isinstance(r, ServingColumns)
    tokens = f"{r.tokens_per_s[0]:,.0f} tokens/s, {r.tokens_per_s_per_gpu[0]:,.0f} per GPU"
    figures = f", {plural(int(r.concurrency[0]), 'client')}: {tokens}, {_latencies(q, r, 0)}"
    aim = f"for {MOST[q.goal.objective]} " if a.places and pasted.rank else ""
    standing = f"{aim}{place_words(pasted, len(a.plans))}{beside_recommended(a, pasted)}{_when_users_wait(a, pasted)}"
    return figures, standing, GAIN[q.goal.objective]


def _latencies(q: Question, rows: ServingColumns, i: int) -> str:
    tpot = f", TPOT {format_seconds(rows.tpot_s[i])}" if q.requests.output_len > 1 else ""
    return f"TTFT {format_seconds(rows.ttft_s[i])}{tpot}"


def place_words(pasted: StandingPlan, count: int) -> str:
    """Return its place among the good plans, or why it has none."""
    if not pasted.rank:
        return pasted.reason
    if pasted.rank > count > 0:  # as it runs it is none of them
        return "the only good plan is better" if count == 1 else f"all {count:,} good plans are better"
    return f"place {pasted.rank:,} among {count:,} good plans" if pasted.rank > 1 else "no plan is better"


def _times(whose: str, ratio: float, gain: str, more: float) -> str:
    """Return how many times a plan's worth another has, and that per GPU where it has ``more`` times as many.

    >>> _times("the best", 2.42, "its tokens/s", 2.0)
    'the best has 2.42 x its tokens/s with 2 x its GPUs, 1.21 x per GPU'
    """
    each = f" with {more:.3g} x its GPUs, {ratio / more:.2f} x per GPU" if more != 1 else ""
    return f"{whose} has {ratio:.2f} x {gain}{each}"


def beside_recommended(a: ServingPlans, pasted: StandingPlan) -> str:
    """Compare the pasted plan with the recommended one: a good plan need not change for a simpler or an equal one."""
    r, q = pasted.rows, a.question
    if not isinstance(r, ServingColumns) or not pasted.rank or not len(a.plans):
        return ""
    theirs, aim = a.plans.take(slice(a.recommended, a.recommended + 1)), q.goal.objective
    if a.gpu_words(theirs, 0) == pasted.plan:
        clients = int(theirs.concurrency[0])
        return "; it is the recommended plan" + (f", which has {plural(clients, 'client')}" if clients != r.concurrency[0] else "")
    ratio = float(objective_value(q, theirs)[0] / objective_value(q, r)[0])
    more = float(theirs.gpus[0] / r.gpus[0]) if aim == "throughput" else 1.0  # which more GPUs have more of
    copies = float(theirs.replicas[0] / r.replicas[0])
    sizes = [name for name in (*FAMILY, "exchange") if name != "replicas"]
    alike = not theirs.mode[0] and all(getattr(theirs, name)[0] == getattr(r, name)[0] for name in sizes)
    if alike and copies in range(2, 1 + int(copies)):
        return f"; the recommended plan is {copies:.0f} of yours" + (f": {ratio:.2f} x {GAIN[aim]}" if ratio > ALIKE else "")
    if more == 1 and aim in LEAD:
        lead = 1 / ratio - 1
        if round(100 * lead) > 0:
            ahead = f"; yours {LEAD[aim].format(lead)} than the recommended plan"
            if doubts := reasons.against_words(q, r):  # better, and yet not recommended
                return f"{ahead}, but {doubts}"
            simple, yours = (float(ranking.complexity(x, q.cluster, q.requests.prefill_cluster)[0]) for x in (theirs, r))
            return f"{ahead}{', which is simpler' if simple < yours else ''}: if it runs, keep it"
        if ratio - 1 <= margin(q):
            return f"; yours is as good as the recommended plan within the margin of {percent(margin(q))} (--margin)"
    return f"; {_times('the recommended plan', ratio, GAIN[aim], more)}" if more != 1 or ratio > ALIKE else ""


def _when_users_wait(a: ServingPlans, pasted: StandingPlan) -> str:
    """Compare the same plan at the point to start from with the one to start from, where no limit says how long users wait."""
    if not a.places or not pasted.rank:
        return ""
    rows, i = a.answered
    if a.gpu_words(rows, i) == pasted.plan:
        return f"; when users wait, start from it too, with {plural(int(rows.concurrency[i]), 'client')} ({USUAL})"
    q, start = a.question, a.workers(rows, i)
    same = next((i for i in range(len(rows)) if a.gpu_words(rows, i) == pasted.plan), None)
    if same is None:
        return f"; when users wait, start from {start}"
    worth, apart = power(q, rows), bool(rows.mode[same] != rows.mode[i])
    alike = not apart and worth[i] <= worth[same] * (1 + power_margin(q))
    clients, rate = plural(int(rows.concurrency[same]), "client"), f"{rows.tokens_per_s[same]:,.0f} tokens/s"
    judged = f"yours is as good as {start} within the margin" if alike else f"start from {start}"
    return f"; when users wait, {judged} ({USUAL}, yours has {clients}, {_latencies(q, rows, same)}, {rate})"
