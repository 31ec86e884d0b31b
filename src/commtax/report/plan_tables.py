"""Tables of plans: their places and the mark of the recommended one, their GPUs, and cells of serving plans."""

import math
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from commtax.judgement.leading import latest_first_token_s
from commtax.planner import ranking
from commtax.planner.columns import ColumnTable, ServingColumns, ServingPlans, TrainColumns, TrainPlans, request_s
from commtax.planner.money import plan_money, training_money
from commtax.planner.reasons import against_codes, against_note, dtype_words
from commtax.planner.training_search import BUDGET
from commtax.report.documents import Record, facts, record
from commtax.report.drawing import Console
from commtax.report.figures import figure_table
from commtax.report.money import price_notes
from commtax.report.tables import Remarks, say, show_table
from commtax.spec import Number
from commtax.statement import Note
from commtax.units import format_bytes, format_tokens, plural
from commtax.words import words

MARK, OTHER_MARK = "◆", "◇"  # of the recommended plan, in tables and in the picture of the front
NEAREST = 5  # plans that are shown where none is good
Listed = Sequence[tuple[ServingPlans, ServingColumns, int]]  # plans of one or several answers, each by its row
CODED = ("mode", "dtype", "exchange", "sure_ttft_s", "sure_tpot_s")  # columns that no table shows: codes, and times with a margin


def rows_to_show(rows: ColumnTable, top: int, recommended: int | None) -> list[int]:
    """Return the first of a ranking, and the recommended plan where it lies behind them."""
    return [*range(min(top, len(rows))), *([recommended] if recommended is not None and recommended >= top else [])]


def places(listed: Sequence[int], recommended: int | None, elsewhere: Sequence[int] = ()) -> list[str]:
    """Return places in a ranking, with a mark for the recommended plan and another for those of other clusters.

    >>> places([0, 1, 2], 1, [2])
    ['1', '2 ◆', '3 ◇']
    """
    marks: dict[int | None, str] = {**dict.fromkeys(elsewhere, f" {OTHER_MARK}"), recommended: f" {MARK}"}
    return [f"{i + 1}{marks.get(i, '')}" for i in listed]


def show_ranked(
    console: Console, columns: Mapping[str, Sequence[str]], gpus: Sequence[int], spare: Sequence[str], there: int = 0, aim: str = ""
) -> None:
    """Show plans under a line that says what their order and the mark mean, and how many GPUs they use where most use all."""
    usual = there if 2 * gpus.count(there) >= len(gpus) else gpus[0] if len(set(gpus)) == 1 and not there else 0
    names, fewer = list(columns), [f" ({plural(n, 'GPU')})" if usual and n != usual else "" for n in gpus]
    after = names.index("plan") + 1
    counted = {} if usual else {">GPUs": [f"{n:,}" for n in gpus]}
    plans = [plan + few for plan, few in zip(columns["plan"], fewer, strict=True)]
    shown = {name: columns[name] for name in names[: after - 1]} | {"plan": plans} | counted
    shown |= {name: columns[name] for name in names[after:]}
    marks = columns.get("", ())
    marked = any(MARK in mark for mark in marks)
    order = [("best" if marked else "nearest") + " first" + (f" for {aim}" if aim else "")] if len(marks) > 1 else []
    elsewhere = [f"{OTHER_MARK} on another cluster"] * any(OTHER_MARK in mark for mark in marks)
    why = " for that" if aim else "" if MARK in next(iter(marks), MARK) else ", for the reason given above"
    order_words = order + [", ".join([f"{MARK} is recommended{why}", *elsewhere])] * marked
    whole = plural(usual, "GPU") if usual != there or there == 1 else "both GPUs" if there == 2 else f"all {there:,} GPUs"
    sentence = "; ".join([*order_words, *([f"plans use {whole}{' unless marked otherwise' * any(fewer)}"] if usual else [])])
    if sentence:
        console.print()
        say(console, f"{sentence[0].upper()}{sentence[1:]}:", "dim")
    show_table(console, list(shown), zip(*shown.values(), strict=True), spare, apart=not sentence)


def behind_notes(listed: Listed, worths: Sequence[float], at: Sequence[int]) -> Iterator[Note]:
    """Yield which plans, ``at`` places of a ranking, stand behind others with worse figures, and why. ``worths`` rank them."""
    reasons, least = dict[Note, list[str]](), inf
    for place, (a, rows, i), worth in zip(at, listed, worths, strict=True):
        for code in against_codes(a.question, rows, i) if worth > least else ():
            reasons.setdefault(against_note(code, latest_first_token_s(a.question)), []).append(str(place))
        least = min(least, worth)
    for why, behind in reasons.items():
        named = f"plans {', '.join(behind[:-1])} and {behind[-1]} rank" if behind[1:] else f"plan {behind[0]} ranks"
        yield words("rank-behind", plans=named, against=why)


class RowValues:
    """A row of columns, each of them an attribute."""

    def __init__(self, rows: ColumnTable, i: int) -> None:
        self._rows, self._i = rows, i

    def __getattr__(self, name: str) -> object:
        return getattr(self._rows, name)[self._i]


class Ends(NamedTuple):
    """The ends of an 80% range, where there is one."""

    low: Number | None
    high: Number | None


def served_parts(a: ServingPlans, rows: ServingColumns, i: int) -> Record:
    """Return what documents and tables of serving plans are made of. Without a second token there is no time between tokens."""
    q, row, decodes = a.question, RowValues(rows, i), a.question.requests.output_len > 1
    return {
        "row": row,
        "mode": "disaggregated" if rows.mode[i] else "together",
        "idle_gpus": q.gpus_there - rows.gpus[i],
        "prompts": row if rows.mode[i] else None,
        "exchange": lambda: a.exchange_of(rows, i).stated,
        "techniques": lambda: list(a.turned_on(rows, i)),
        "dropped": lambda: list(a.dropped(rows, i)),
        "kind": lambda: ranking.KINDS[int(ranking.kinds(rows.take(slice(i, i + 1)), q.cluster)[0])],
        "dtype": q.goal.dtypes[int(rows.dtype[i])] or "as stored",
        "decoded": row if decodes else None,
        "ttft": lambda: Ends(*a.range_of(rows, i, "ttft_s")),
        "tpot": lambda: Ends(*a.range_of(rows, i, "tpot_s")) if decodes else None,
        "kept": lambda: a.kept(rows, i) if q.goal.times else None,
        "request_s": lambda: request_s(q, rows)[i],
        "money": plan_money(q, int(rows.gpus[i]), float(rows.tokens_per_s[i]), int(rows.prefill_gpus[i])),
        "usd": lambda: a.usd_per_million_tokens(rows)[i] if q.goal.usd_per_gpu_hour else None,
        "step": lambda: a.step_of(rows, i),
        "verdict": lambda: a.gpu_words(rows, i),
    }


def served_row(a: ServingPlans, rows: ServingColumns, i: int) -> Record:
    return record("plan-serving", **served_parts(a, rows, i))


def trained_parts(a: TrainPlans, rows: TrainColumns, i: int) -> Record:
    rate = a.tokens_per_s(rows, i)
    return {
        "row": RowValues(rows, i),
        "kind": a.kind_words(rows, i),
        "step": lambda: a.step_of(rows, i),
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / rows.gpus[i],
        "run": training_money(a.question, int(rows.gpus[i]), rate),
        "way": lambda: a.kinds[int(rows.kind[i])].plan,
        "verdict": a.gpu_words(rows, i),
    }


def trained_row(a: TrainPlans, rows: TrainColumns, i: int) -> Record:
    return record("plan-training", **trained_parts(a, rows, i))


def plan_names(listed: Listed) -> list[str]:
    """Return plans in words, with the type of their weights where several were compared."""
    return [a.layout(rows, i) + dtype_words(a.question, int(rows.dtype[i])) for a, rows, i in listed]


def gpus_of(listed: Listed) -> list[int]:
    return [int(rows.gpus[i]) for _, rows, i in listed]


def served_rows(a: ServingPlans) -> list[Record]:
    """Return every good plan, best first. Ranges and dollars per month are in the document."""
    rows, q, usd = a.plans, a.question, a.usd_per_million_tokens(a.plans)
    kinds, figures = ranking.kinds(rows, q.cluster), [name for name in rows.names() if name not in CODED]
    return [
        {
            "plan": a.gpu_words(rows, i),
            "recommended": i == a.recommended,
            "mode": "disaggregated" if rows.mode[i] else "together",
            "kind": ranking.KINDS[int(kinds[i])],
            "dtype": q.goal.dtypes[int(rows.dtype[i])] or "as stored",
            **facts(RowValues(rows, i), *figures, "tokens_per_s_per_gpu", "tokens_per_s_per_user"),
            "usd_per_million_tokens": usd[i] if q.goal.usd_per_gpu_hour else None,
            **a.exchanges[int(rows.exchange[i])].stated,
        }
        for i in range(len(rows))
    ]


def trained_rows(a: TrainPlans) -> list[Record]:
    """Return every plan that fits, fastest first."""
    rows, made = a.plans, list[Record]()
    for i in range(len(rows)):
        head = {"plan": a.gpu_words(rows, i), "recommended": i == a.recommended, "kind": a.kind_words(rows, i)}
        made.append(head | record("plan-training-sizes", row=RowValues(rows, i)))
    return made


def show_training_plans(console: Console, a: TrainPlans, top: int) -> Remarks:
    """Show the ranking of splits, or the nearest plans, and return what is left to remark."""
    if not len(a.plans):
        if len(a.near):
            _show_ranked_training(console, a, a.near, NEAREST)
        return tuple(run_notes(a) if len(a.near) else ()), ()
    splits = a.splits()
    _show_ranked_training(console, a, a.plans.take(splits), top, int(np.flatnonzero(splits == a.recommended)[0]))
    listed = f"--top N --json lists the first N of all {len(a.plans):,} that fit"
    return (f"the best microbatch, recomputation and schedule of each split; {listed}", *run_notes(a)), ()


def _show_ranked_training(console: Console, a: TrainPlans, rows: TrainColumns, top: int, recommended: int | None = None) -> None:
    first, shown = rows_to_show(rows, top, recommended), figure_table("training")
    columns = {"": places(first, recommended), "plan": [a.layout(rows, i) for i in first]}
    columns |= shown.cells([trained_parts(a, rows, i) for i in first])
    show_ranked(console, columns, [int(rows.gpus[i]) for i in first], shown.spare_headings(), a.question.gpus_there)


def untrained_words(a: TrainPlans) -> list[str]:
    """Say what is missing. A rank's share shrinks with the GPUs, or a little slower."""
    if not len(a.near):
        return ["No plan is legal."]
    least, budget = float(a.near.memory_bytes[0]), BUDGET * a.question.cluster.chip.visible_bytes
    gpus = math.ceil(int(a.near.gpus[0]) * least / budget)
    short = f"{format_bytes(least)} per rank at least, of {format_bytes(budget)}"
    return [f"No plan fits in memory: {short}.", f"It would take about {gpus:,} GPUs."]


def run_notes(a: TrainPlans) -> list[Note]:
    """Return the run that time and dollars are of, and the price of a GPU-hour."""
    return [words("run-tokens", tokens=format_tokens(a.question.goal.train_tokens), prices=price_notes([a.question]))]
