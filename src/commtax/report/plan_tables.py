"""Tables of plans: their places and the mark of the recommended one, their GPUs, and cells of serving plans."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from commtax.judgement.confidence import percent
from commtax.judgement.leading import latest_first_token_s
from commtax.planner import columns as planned
from commtax.planner.columns import ColumnTable, ServingColumns, ServingPlans
from commtax.planner.reasons import against_codes, against_note, dtype_words
from commtax.report.documents import Record
from commtax.report.drawing import Console
from commtax.report.money import million
from commtax.report.tables import say, show_table
from commtax.statement import Note
from commtax.units import format_seconds, plural
from commtax.words import words

MARK, OTHER_MARK = "◆", "◇"  # of the recommended plan, in tables and in the picture of the front
EXPENDABLE = ("KV free", "comm", "/user", "microbatch", "bubble", "memory", "/GPU", "80% range", "range", "kind", "$/M", "likely")
"""Columns of plans that a narrow screen can do without, the least important first."""
NEAREST = 5  # plans that are shown where none is good


def rows_to_show(rows: ColumnTable, top: int, recommended: int | None) -> list[int]:
    """The first of a ranking, and the recommended plan where it lies behind them."""
    return [*range(min(top, len(rows))), *([recommended] if recommended is not None and recommended >= top else [])]


def places(listed: Sequence[int], recommended: int | None, elsewhere: Sequence[int] = ()) -> list[str]:
    """Places in a ranking, the first is the best; the recommended plan has its mark, and those of other clusters have theirs.

    >>> places([0, 1, 2], 1, [2])
    ['1', '2 ◆', '3 ◇']
    """
    marks: dict[int | None, str] = {**dict.fromkeys(elsewhere, f" {OTHER_MARK}"), recommended: f" {MARK}"}
    return [f"{i + 1}{marks.get(i, '')}" for i in listed]


def show_ranked(
    console: Console,
    columns: Mapping[str, Sequence[str]],
    gpus: Sequence[int],
    expendable: Sequence[str],
    there: int = 0,
    aim: str = "",
) -> None:
    """Plans under a line that says what their order and the mark mean, and how many GPUs they use where most use all."""
    usual = there if 2 * gpus.count(there) >= len(gpus) else gpus[0] if len(set(gpus)) == 1 and not there else 0
    names, fewer = list(columns), [""] * len(gpus)
    after = names.index("plan") + 1
    counted = {} if usual else {">GPUs": [f"{n:,}" for n in gpus]}
    if usual:
        fewer = ["" if n == usual else f" ({plural(n, 'GPU')})" for n in gpus]
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
    told = [*order_words, *([f"plans use {whole}{' unless marked otherwise' * any(fewer)}"] if usual else [])]
    if told:
        console.print()
        sentence = "; ".join(told)
        say(console, f"{sentence[0].upper()}{sentence[1:]}:", "dim")
    show_table(console, list(shown), zip(*shown.values(), strict=True), expendable, apart=not told)


def behind_notes(
    listed: Sequence[tuple[ServingPlans, ServingColumns, int]], worths: Sequence[float], at: Sequence[int]
) -> Iterator[Note]:
    """Yield which plans, ``at`` places of a ranking, stand behind others with worse figures, and why; ``worths`` rank them."""
    found, least = dict[Note, list[str]](), inf
    for place, (a, rows, i), worth in zip(at, listed, worths, strict=True):
        for code in against_codes(a.question, rows, i) if worth > least else ():
            found.setdefault(against_note(code, latest_first_token_s(a.question)), []).append(str(place))
        least = min(least, worth)
    for why, behind in found.items():
        named = f"plans {', '.join(behind[:-1])} and {behind[-1]} rank" if behind[1:] else f"plan {behind[0]} ranks"
        yield words("rank-behind", plans=named, against=why)


SERVED: Mapping[str, Callable[[ServingPlans, ServingColumns, int], str]] = {
    "plan": lambda a, rows, i: a.layout(rows, i) + dtype_words(a.question, int(rows.dtype[i])),
    ">clients": lambda _, rows, i: f"{int(rows.concurrency[i]):,}",
    ">TTFT": lambda _, rows, i: format_seconds(rows.ttft_s[i]),
    ">TPOT": lambda a, rows, i: tpot_cell(a, rows, i),
    ">likely": lambda a, rows, i: percent(a.kept(rows, i)),
    ">request": lambda a, rows, i: format_seconds(planned.request_s(a.question, rows)[i]),
    ">tokens/s": lambda _, rows, i: f"{rows.tokens_per_s[i]:,.0f}",
    ">/GPU": lambda _, rows, i: f"{rows.tokens_per_s_per_gpu[i]:,.0f}",
    ">/user": lambda a, rows, i: f"{rows.tokens_per_s_per_user[i]:,.0f}" if a.question.requests.output_len > 1 else "–",
    ">$/M": lambda a, rows, i: million(a.usd_per_million_tokens(rows)[i]) if a.question.goal.usd_per_gpu_hour else "",
    ">KV free": lambda _, rows, i: f"{rows.kv_headroom[i]:.0%}",
}
"""Cells of a serving plan, by the names of their columns."""


def served_columns(listed: Sequence[tuple[ServingPlans, ServingColumns, int]], *names: str) -> dict[str, list[str]]:
    """Some columns of some plans; how likely limits hold only where there are any."""
    limited = any(a.question.goal.times for a, _, _ in listed)
    return {name: [SERVED[name](*one) for one in listed] for name in names if limited or name != ">likely"}


def gpus_of(listed: Sequence[tuple[ServingPlans, ServingColumns, int]]) -> list[int]:
    return [int(rows.gpus[i]) for _, rows, i in listed]


def tpot_cell(a: ServingPlans, rows: ServingColumns, i: int) -> str:
    """Without a second token there is no time between tokens."""
    return format_seconds(rows.tpot_s[i]) if a.question.requests.output_len > 1 else "–"


def facts_at(rows: ColumnTable, i: int, *names: str) -> Record:
    """Some columns of one row under their own names."""
    return {name: getattr(rows, name)[i] for name in names}
