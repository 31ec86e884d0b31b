"""Plans for a terminal: the winner and why, the ranking, the Pareto front, what was rejected; and as a document."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from commtax.judgement.closed_loops import LEFT_OUT
from commtax.judgement.confidence import percent
from commtax.judgement.margins import margin
from commtax.planner import StandingPlan, choosing
from commtax.planner.columns import Rejected, ServingColumns, ServingPlans, TrainColumns, TrainPlans, objective_value
from commtax.planner.compared_types import best_of_types
from commtax.planner.money import asks_for_dollars, plan_money
from commtax.planner.reasons import TITLES, against_codes, missed_times, odds, role_words
from commtax.planner.roomier import recommended_fit
from commtax.question import EVEN, Question
from commtax.report.closed_loop import basis_words
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console, Sketch
from commtax.report.exact_bytes import roomier_record
from commtax.report.money import counted_note, plan_notes, spent_record
from commtax.report.operating_points import point_name, show_points
from commtax.report.pasted_plans import show_own_plan
from commtax.report.plan_tables import (
    EXPENDABLE,
    MARK,
    NEAREST,
    behind_notes,
    facts_at,
    gpus_of,
    places,
    rows_to_show,
    served_columns,
    show_ranked,
)
from commtax.report.tables import ANSWER, Remarks, length_words, model_words, notes, say, show_rejected, show_table, sized_places
from commtax.report.trained_plans import (
    ranked_columns,
    run_notes,
    show_training_plans,
    trained_figures,
    trained_row,
    untrained_words,
)
from commtax.spec import SERVING_AXES
from commtax.units import format_seconds, plural
from commtax.verbs.request_streams import lengths_note
from commtax.verbs.settling import link_notes
from commtax.words import inside

WIDTH, HEIGHT, EDGE = 60, 10, 10  # signs of the picture at most, and of the figures at its left
HEAD = "Pareto front: tokens/s per GPU (upwards) against tokens/s per user (to the right)"


Plans = ServingPlans | TrainPlans
Rows = TypeVar("Rows", ServingColumns, TrainColumns)
WANTED = {"throughput": "most tokens/s", "latency": "shortest requests", "cost": "fewest dollars per token", "gpus": "fewest GPUs"}


def show_plans(console: Console, a: Plans, top: int, pasted: StandingPlan | None = None) -> None:
    """The answer first: what to run, and why; then the plans, what was rejected, notes."""
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
    show_own_plan(console, a, pasted)
    q = a.question
    engine = q.engine.key if a.trains else f"{q.engine.key}@{q.engine.version}"
    say(console, f"{model_words(q.model)} on {sized_places(q)}, {engine}: {question_words(a)}", "dim")
    if open_ended:
        console.print()
        _say_recommended(console, a)
    remarks, details = show_training_plans(console, a, top) if a.trains else _show_serving_plans(console, a, top)
    show_rejected(console, ((r.family, r.reason) for r in (a.rejected if a.trains else shorten_rejected(a.rejected))))
    notes(console, remarks, details)


def _say_recommended(console: Console, a: Plans, style: str = "") -> None:
    head, *why = a.why
    clients = "" if a.trains else f"; {plural(int(a.plans.concurrency[a.recommended]), 'client')} at once"
    say(console, f"{recommended_words(a)}: {head}{clients}.", style)
    for reason in why:
        say(console, f"  {reason}")


def recommended_words(a: Plans) -> str:
    """Whether what is recommended is also the best."""
    alone = role_words(a.recommended == 0, () if a.trains else against_codes(a.question, a.passed_over))
    return f"{alone} for {WANTED[a.question.goal.objective]}" if not a.trains and a.places else alone


def _show_serving_plans(console: Console, a: ServingPlans, top: int) -> Remarks:
    """The ranking and the front, or the nearest plans; what is left to remark."""
    if not len(a.plans):
        if len(a.near):
            _show_ranking(console, a, a.near, NEAREST)
        return (), ()
    _show_ranking(console, a, a.plans, top)
    console.print()
    for line in drawn_front(a, console.width):
        console.print(line)
    rows, own = a.answered
    usd = plan_notes(a.question, int(rows.gpus[own]), float(rows.tokens_per_s[own]), int(rows.prefill_gpus[own]))
    served, q = a.simulation(rows, own), a.question
    ranges, counted = f"host times of {q.engine.key} are {basis_words(served)}", counted_note(q)
    details = [note for note in (*usd, ranges) if note == counted or (note == ranges and served.basis == "calibrated")]
    first = range(min(top, len(a.plans)))
    behind = behind_notes([(a, a.plans, i) for i in first], objective_value(q, a.plans)[:top].tolist(), [i + 1 for i in first])
    given = [note for line in a.why for note in inside(line)]
    told = [note for note in served.notes if note.code == "own-limits" and note not in given]
    told += [note for note in served.notes if note.code in LEFT_OUT]
    lengths, links = lengths_note(q), link_notes(served.question)
    said = (DEFINITION, *behind, *told, lengths, *usd, *spread_notes(q), *links, ranges)
    return tuple(note for note in said if note not in details), tuple(details)


def spread_notes(q: Question) -> list[str]:
    copies, imbalance = q.plan.redundant_experts, q.what_if.imbalance
    said = [f"plans that spread experts hold {copies} redundant ones (--redundant-experts)"] if copies else []
    return said + [f"busiest expert rank {imbalance:g}x the mean where experts are spread (--imbalance)"] * bool(imbalance)


def question_words(a: Plans) -> str:
    if a.trains:
        return f"{plural(a.question.goal.global_batch, 'sequence')} of {a.question.context:,} tokens per step"
    return f"{', '.join([length_words(a.question), *limit_words(a.question)])}; goal: {WANTED[a.question.goal.objective]}"


def limit_words(q: Question, names: Callable[[str], str] = TITLES.__getitem__) -> list[str]:
    """Each limit, and how likely it has to be met."""
    limits = [f"{names(name)} <= {format_seconds(limit)}" for name, limit in (*q.goal.times, *q.goal.slo)]
    each = "each " * (len(limits) > 1)
    return [*limits, f"{each}at least {percent(q.goal.confidence)} likely to be met"] if limits else []


DEFINITION = (
    "TTFT and TPOT are means over the requests of a closed loop: "
    "each client sends its next request when its previous one is answered"
)


def _show_ranking(console: Console, a: ServingPlans, rows: ServingColumns, top: int) -> None:
    own = a.recommended if rows is a.plans else None
    first, q = rows_to_show(rows, top, own), a.question
    shown = rows.take(np.array(first, dtype=int))
    listed, timed = [(a, rows, i) for i in first], [">request"] if q.goal.objective == "latency" else []
    aim, columns = WANTED[q.goal.objective] if a.places else "", {"": places(first, own)}
    columns |= served_columns(listed, "plan", ">clients", ">TTFT", ">TPOT", ">likely", *timed, ">tokens/s")
    columns[">range"] = [f"{low:,.0f}-{high:,.0f}" for low, high in a.ranges(shown, "tokens_per_s")]
    columns |= served_columns(listed, ">/GPU", ">/user", ">$/M")
    columns[">comm"] = [f"{share:.0%}" for share in a.comm_fractions(shown)]
    expendable = [name for name in EXPENDABLE if name != "$/M" or not asks_for_dollars(q)]
    show_ranked(console, columns | served_columns(listed, ">KV free"), gpus_of(listed), expendable, q.gpus_there, aim)


def nothing_words(a: Plans) -> list[str]:
    """Nothing is good: the nearest plan, and what would have to change."""
    if a.trains:
        return untrained_words(a)
    takes = [f"It would take {', or '.join(a.would_take)}."] if a.would_take else []
    if not len(a.near):
        return ["No plan fits in memory.", *takes]
    near, wish = a.near, percent(a.question.goal.confidence)
    broken = [odds(a, near, 0, name) for name in missed_times(a.question, near, dict.fromkeys(TITLES, 0))]
    by_half = "; by the central prediction (50%) some do" if any(a.kept(near, i) >= EVEN for i in range(len(near))) else ""
    head = f"No plan is {wish} likely to meet the limits{by_half}"
    return [f"{head}. The nearest, {a.gpu_words(near, 0)}, has {' and '.join(broken)}.", *takes]


def shorten_rejected(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Degrees that one rule forbids are one line: TP 3, 5, 6, 7."""
    groups: dict[tuple[str, str], list[Rejected]] = {}
    for r in rejected:
        groups.setdefault((r.rule or r.reason, r.where), []).append(r)
    lines = []
    for (rule, where), group in groups.items():
        sizes = [str(r.tp) for r in group]
        if len(group) == 1 or "{tp}" not in rule:
            lines += group
        else:
            degrees = f"{', '.join(sizes[:-1])} or {sizes[-1]}"
            lines.append(Rejected(f"TP {', '.join(sizes)}{where}", rule.replace("{tp}", degrees)))
    return lines


def plans_document(a: Plans, top: int, pasted: StandingPlan | None = None) -> Record:
    """``plan --json``, of either phase; ``pasted`` is where the pasted plan stands, null without one."""
    standing = _standing_record(a, pasted) if pasted else None
    if a.trains:
        return document("plan-trained", a.question, **_rankings(a, a.plans, a.near, partial(trained_row, a), top), pasted=standing)
    row, front = partial(served_row, a), zip(a.front.tokens_per_s_per_gpu, a.front.tokens_per_s_per_user, strict=True)
    return document(
        "plan-served",
        a.question,
        **_rankings(a, a.plans, a.near, row, top),
        definition=DEFINITION,
        places=[
            {"place": p.name, "when": p.when, "recommended": row(p.plans, p.recommended), "best": row(p.plans, 0)} for p in a.places
        ],
        front=[{"tokens_per_s_per_gpu": float(g), "tokens_per_s_per_user": float(u)} for g, u in front],
        pasted=standing,
        roomier=_roomier_record(a, a.roomier) if a.roomier else None,
    )


def _roomier_record(a: ServingPlans, found: ServingPlans) -> Record:
    """The engine limits that make room where memory binds, and the plan that is recommended with them."""
    room = roomier_record(recommended_fit(found), recommended_fit(a))
    return {**room, "recommended": served_row(found, found.plans, found.recommended)}


def _rankings(a: Plans, plans: Rows, near: Rows, row: Callable[[Rows, int], Record], top: int) -> Record:
    """What documents of both phases have."""
    return {
        "plans": a,
        "margin": margin(a.question),
        "recommended": row(plans, a.recommended) if len(plans) else None,
        "best": row(plans, 0) if len(plans) else None,
        "ranking": [row(plans, i) for i in range(min(top, len(plans)))],
        "near": [row(near, i) for i in range(min(5, len(near)))],
        "rejected": [record("plan-rejected", lost=lost) for lost in a.rejected],
    }


def _standing_record(a: Plans, pasted: StandingPlan) -> Record:
    rows, figures = pasted.rows, Record()
    if isinstance(rows, TrainColumns):
        figures = trained_figures(rows, 0) if len(rows) else {}
    elif isinstance(a, ServingPlans):
        figures = served_row(a, rows, 0) if len(rows) else {}
    return {**figures, "plan": pasted.plan, "rank": pasted.rank or None, "reason": pasted.reason, "remark": pasted.remark}


def served_row(a: ServingPlans, rows: ServingColumns, i: int) -> Record:
    """One plan; without a second token there is no time between tokens."""
    ranges = {metric: zip(("low", "high"), a.range_of(rows, i, f"{metric}_s"), strict=True) for metric in ("tpot", "ttft")}
    between, exchange = ("tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s_per_user"), a.exchange_of(rows, i)
    return {
        "mode": "disaggregated" if rows.mode[i] else "together",
        **facts_at(rows, i, *SERVING_AXES, "replicas", "gpus", "concurrency"),
        "idle_gpus": a.question.gpus_there - rows.gpus[i],
        **(facts_at(rows, i, "prefill_tp", "prefill_dp", "prefill_replicas") if rows.mode[i] else {}),
        **exchange.told,
        **({"techniques": list(on)} if (on := a.turned_on(rows, i)) else {}),
        **({"without_techniques": list(left)} if (left := a.dropped(rows, i)) else {}),
        "kind": choosing.KINDS[int(choosing.kinds(rows.take(slice(i, i + 1)), a.question.cluster)[0])],
        "dtype": a.question.goal.dtypes[int(rows.dtype[i])] or "as stored",
        **facts_at(rows, i, "ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_per_gpu", "kv_headroom"),
        **{f"{metric}_{end}_s": seconds for metric, ends in ranges.items() for end, seconds in ends},
        "limits_kept_with": a.kept(rows, i) if a.question.goal.times else None,
        **facts_at(rows, i, "tokens_per_s_per_user"),
        **(dict.fromkeys(between) if a.question.requests.output_len == 1 else {}),
        **spent_record(plan_money(a.question, int(rows.gpus[i]), float(rows.tokens_per_s[i]), int(rows.prefill_gpus[i]))),
        "usd_per_million_tokens": a.usd_per_million_tokens(rows)[i] if a.question.goal.usd_per_gpu_hour else None,
        "exposed_comm_fraction": a.step_of(rows, i).comm_fraction,
        "verdict": a.gpu_words(rows, i),
    }


def drawn_front(a: ServingPlans, room: int) -> list[Sketch]:
    """The Pareto front: what a user gets (across) against what a GPU gives (up)."""
    width = min(WIDTH, room - EDGE)
    front = a.front
    if len(front) < 3 or a.question.requests.output_len == 1:
        return []
    x, y = front.tokens_per_s_per_user, front.tokens_per_s_per_gpu
    grid = [[" "] * width for _ in range(HEIGHT)]

    def place(u: float, g: float) -> tuple[int, int]:
        across, up = (u - x.min()) / max(1e-9, np.ptp(x)), (g - y.min()) / max(1e-9, np.ptp(y))
        return round(across * (width - 1)), HEIGHT - 1 - round(up * (HEIGHT - 1))

    for column, row in map(place, x, y):
        grid[row][column] = "•"
    marked = _marked(a)
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


def _marked(a: ServingPlans) -> dict[str, tuple[str, ServingColumns, int]]:
    """Points with a sign of their own: the recommended plan, or the operating points by their first letters."""
    if not a.places:
        return {MARK: ("the recommended plan", a.plans, a.recommended)}
    named = [(point_name(a, point), point) for point in a.places]
    return {name[0].upper(): (name, point.plans, point.recommended) for name, point in named}


OF_ENGINES = (">step", ">80% range", ">tokens/s", ">takes", ">costs", ">MFU", ">comm", ">memory")
"""Columns of plans that are shown; the plans themselves stand in the sentences above."""


def show_engines(console: Console, answers: Sequence[TrainPlans], _top: int) -> None:
    """Which engine, with which plan, and by how much; then each engine's own plan in a row."""
    q, able = answers[0].question, fastest_first(answers)
    if able:
        best = able[0]
        say(console, f"Recommended: {_engine_key(best)}, {best.whole_words(best.plans, best.recommended)}.", ANSWER)
        for other in able[1:]:
            say(console, f"  {_against(best, other)}")
    for answer in answers:
        if not len(answer.plans):
            say(console, f"{_engine_key(answer)}: no plan fits in memory.", "bold red")
    work = f"{plural(q.goal.global_batch, 'sequence')} of {q.context:,} tokens per step"
    say(console, f"{model_words(q.model)} on {sized_places(q)}, {' or '.join(_engine_key(a) for a in answers)}: {work}", "dim")
    if able:
        shown = [ranked_columns(a, a.plans, [a.recommended]) for a in able]
        columns = {"engine": [_engine_key(a) for a in able]} | {name: [one[name][0] for one in shown] for name in OF_ENGINES}
        show_table(console, list(columns), zip(*columns.values(), strict=True), EXPENDABLE)
    notes(console, [*(run_notes(able[0]) if able else []), "why other plans of an engine lost: name it alone"])


def fastest_first(answers: Sequence[TrainPlans]) -> list[TrainPlans]:
    """Answers that have a plan, by the speed of the one that is recommended."""
    return sorted((a for a in answers if len(a.plans)), key=_rate, reverse=True)


def engines_document(answers: Sequence[TrainPlans], top: int) -> Record:
    able = fastest_first(answers)
    return {
        "schema": "commtax.plan-engines/1",
        "engines": [_engine_key(a) for a in answers],
        "recommended": _engine_key(able[0]) if able else None,
        "answers": [plans_document(a, top) for a in answers],
    }


def _against(best: TrainPlans, other: TrainPlans) -> str:
    """By how much the first is faster, and whether the ranges of both can tell."""
    ours, theirs = (a.step_of(a.plans, a.recommended) for a in (best, other))
    sure = "" if float(ours.high_s) < float(theirs.low_s) else "; their 80% ranges overlap: measure both"
    gain, plan = _rate(best) / _rate(other) - 1, other.whole_words(other.plans, other.recommended)
    return f"{gain:.1%} more tokens/s than {_engine_key(other)}, {plan}{sure}"


def _rate(a: TrainPlans) -> float:
    return a.tokens_per_s(a.plans, a.recommended)


def _engine_key(a: TrainPlans) -> str:
    return a.question.engine.key
