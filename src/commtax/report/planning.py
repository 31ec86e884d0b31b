"""Plans for a terminal: the winner and why, the ranking, the Pareto front, what was rejected; and as a document."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from commtax.planner import StandingPlan, choosing
from commtax.planner import columns as planned
from commtax.planner.choosing import margin
from commtax.planner.columns import (
    SIZED,
    ColumnTable,
    Rejected,
    ServingColumns,
    ServingPlans,
    TrainColumns,
    TrainPlans,
)
from commtax.planner.money import plan_money, training_money
from commtax.planner.reasons import SAID, dtype_words, missed_times, odds
from commtax.planner.training_search import BUDGET
from commtax.question import EVEN, Question
from commtax.report import plots
from commtax.report.closed_loop import basis_words
from commtax.report.documents import Record, document, facts, record
from commtax.report.drawing import Console, Text
from commtax.report.money import million, plan_notes, price_notes, spent_record
from commtax.report.plots import no_formula, picture, style
from commtax.report.tables import notes, say, show_columns, show_rejected, sized_places
from commtax.spec import KINDS, SERVING_AXES
from commtax.units import format_bytes, format_seconds, plural
from commtax.verbs.closed_loop import lengths_note
from commtax.verbs.confidence import percent

Plans = ServingPlans | TrainPlans
Rows = TypeVar("Rows", ServingColumns, TrainColumns)
WANTED = {"throughput": "most tokens/s", "latency": "shortest requests", "cost": "fewest dollars per token", "gpus": "fewest GPUs"}
GAIN = {"throughput": "its tokens/s", "latency": "its speed", "cost": "its tokens/s per GPU", "gpus": "its answer per GPU"}
TRAINED = (*SIZED, "gpus", "step_s", "mfu", "memory_bytes", "bubble_fraction", "exposed_comm_fraction")
"""Sizes of a plan, and its figures."""
WIDTH, HEIGHT = 60, 10


def show_plans(console: Console, a: Plans, top: int, pasted: StandingPlan | None = None) -> None:
    """The sentence first: what to run, and why."""
    q, remarks = a.question, tuple[str, ...]()
    engine = q.engine.key if a.trains else f"{q.engine.key}@{q.engine.version}"
    say(console, f"{q.model.key} on {sized_places(q)}, {engine}: {_question_words(a)}", "bold")
    if not len(a.plans):
        _nothing_trains(console, a) if a.trains else _nothing_serves(console, a)
    else:
        if not a.trains and a.places:
            _show_places(console, a)
        head, *why = a.why
        clients = "" if a.trains else f"; {plural(int(a.plans.concurrency[a.recommended]), 'client')} at once"
        say(console, f"{recommended_words(a)}: {head}{clients}.", "bold yellow")
        for reason in why:
            say(console, f"  {reason}")
    _show_own_plan(console, a, pasted)
    if len(a.plans):
        remarks = _show_training_plans(console, a, top) if a.trains else _show_serving_plans(console, a, top)
    show_rejected(console, ((r.family, r.reason) for r in (a.rejected if a.trains else shorten_rejected(a.rejected))))
    notes(console, remarks)


def recommended_words(a: Plans) -> str:
    """Whether what is recommended is also the best."""
    alone = "Recommended and best" if a.recommended == 0 else "Recommended"
    return f"{alone} for {WANTED[a.question.goal.objective]}" if not a.trains and a.places else alone


def place_words(a: ServingPlans, place: planned.OperatingPoint) -> str:
    """A place to run at, in a line."""
    rows, i = place.plans, place.recommended
    times = f"TTFT {format_seconds(rows.ttft_s[i])}, TPOT {format_seconds(rows.tpot_s[i])}"
    figures = f"{plural(int(rows.concurrency[i]), 'client')}, {times}, {rows.tokens_per_s[i]:,.0f} tokens/s"
    return f"{place.name}, when {place.when}: {a.gpu_words(rows, i)}; {figures}"


SERVED: Mapping[str, Callable[[ServingPlans, ServingColumns, int], str]] = {
    "plan": lambda a, rows, i: a.gpu_words(rows, i) + dtype_words(a.question, int(rows.dtype[i])),
    ">clients": lambda _, rows, i: f"{int(rows.concurrency[i]):,}",
    ">TTFT": lambda _, rows, i: format_seconds(rows.ttft_s[i]),
    ">TPOT": lambda a, rows, i: _tpot(a, rows, i),
    ">likely": lambda a, rows, i: percent(a.kept(rows, i)),
    ">request": lambda a, rows, i: format_seconds(planned.request_s(a.question, rows)[i]),
    ">tokens/s": lambda _, rows, i: f"{rows.tokens_per_s[i]:,.0f}",
    ">/GPU": lambda _, rows, i: f"{rows.tokens_per_s_per_gpu[i]:,.0f}",
    ">/user": lambda a, rows, i: f"{rows.tokens_per_s_per_user[i]:,.0f}" if a.question.requests.output_len > 1 else "–",
    ">KV free": lambda _, rows, i: f"{rows.kv_headroom[i]:.0%}",
}
"""Cells of a serving plan, by the names of their columns."""


def served_columns(listed: Sequence[tuple[ServingPlans, ServingColumns, int]], *names: str) -> dict[str, list[str]]:
    """Some columns of some plans; how likely limits hold only where there are any."""
    limited = any(a.question.goal.times for a, _, _ in listed)
    return {name: [SERVED[name](*one) for one in listed] for name in names if limited or name != ">likely"}


def _show_places(console: Console, a: ServingPlans) -> None:
    """Where to run when nothing is limited: a row a place, each the simplest plan within the margin of the best there."""
    say(console, "No limit on request times is set (--ttft, --tpot). Operating points, each with its recommended plan:")
    listed = [(a, place.plans, place.recommended) for place in a.places]
    columns = {"point": [f"{place.name} tokens/s" if place.name == "most" else place.name for place in a.places]}
    columns |= served_columns(listed, "plan", ">clients", ">TTFT", ">TPOT", ">tokens/s", ">/GPU", ">/user")
    show_columns(console, columns | {"choose it when": [place.when for place in a.places]})


def _show_serving_plans(console: Console, a: ServingPlans, top: int) -> tuple[str, ...]:
    """The ranking and the front; what is left to remark."""
    _show_ranking(console, a, a.plans, top)
    for line in _scatter(a):
        console.print(line, soft_wrap=True)
    rows, own = a.plans, a.recommended
    usd = plan_notes(a.question, int(rows.gpus[own]), float(rows.tokens_per_s[own]), int(rows.prefill_gpus[own]))
    ranges = f"host times of {a.question.engine.key} {basis_words(a.simulation(rows, own))}"
    return DEFINITION, lengths_note(a.question.requests.spread), *usd, *spread_notes(a.question), ranges


def spread_notes(q: Question) -> list[str]:
    """What was said of plans that spread experts over ranks."""
    copies, imbalance = q.plan.redundant_experts, q.what_if.imbalance
    said = [f"plans that spread experts hold {copies} redundant ones (--redundant-experts)"] if copies else []
    return said + [f"busiest expert rank {imbalance:g}x the mean where experts are spread (--imbalance)"] * bool(imbalance)


def _show_training_plans(console: Console, a: TrainPlans, top: int) -> tuple[str, ...]:
    splits = a.splits()
    _show_ranked_training(console, a, a.plans.take(splits), top, int(np.flatnonzero(splits == a.recommended)[0]))
    best = f"the best microbatch, recomputation and schedule of each split; --json ranks all {len(a.plans):,} that fit"
    return best, *run_notes(a)


def _show_own_plan(console: Console, a: Plans, pasted: StandingPlan | None) -> None:
    """Where the plan that was pasted stands, in one sentence."""
    if pasted is None:
        return
    if not len(pasted.rows):
        say(console, f"Pasted: {pasted.plan}: {pasted.reason}.", "bold red")
        return
    if isinstance(r := pasted.rows, TrainColumns):
        gain = "its speed"
        figures = f": step {format_seconds(r.step_s[0])}, MFU {r.mfu[0]:.1%}, {format_bytes(r.memory_bytes[0])} per rank"
    else:
        figures, gain = _served_figures(a, r), GAIN[a.question.goal.objective]
    place = _place(pasted, len(a.plans), gain)
    say(console, f"Pasted: {pasted.plan}{figures}; {place}.", "bold" if pasted.rank else "bold red")


def _served_figures(a: Plans, r: ServingColumns) -> str:
    tokens = f"{r.tokens_per_s[0]:,.0f} tokens/s, {r.tokens_per_s_per_gpu[0]:,.0f} per GPU"
    tpot = f", TPOT {_tpot(a, r, 0)}" if a.question.requests.output_len > 1 else ""
    times = f"TTFT {format_seconds(r.ttft_s[0])}{tpot}"
    return f", {plural(int(r.concurrency[0]), 'client')}: {tokens}, {times}"


def _place(pasted: StandingPlan, count: int, unit: str) -> str:
    """Its place among the good plans, or why it has none."""
    if not pasted.rank:
        return pasted.reason
    ahead = f"place {pasted.rank:,} among {count:,} good plans" if pasted.rank > 1 else "no plan is better"
    return ahead + (f", the best has {pasted.gain:.2f} x {unit}" if pasted.gain > 1.005 else "")


def _question_words(a: Plans) -> str:
    if a.trains:
        return f"{plural(a.question.goal.global_batch, 'sequence')} of {a.question.context:,} tokens per step"
    g, r = a.question.goal, a.question.requests
    return ", ".join([f"{r.input_len:,} tokens in, {r.output_len:,} out", *limit_words(a.question), WANTED[g.objective]])


def limit_words(q: Question, names: Callable[[str], str] = SAID.__getitem__) -> list[str]:
    """Each limit, and how likely it has to hold."""
    limits = [f"{names(name)} <= {format_seconds(limit)}" for name, limit in (*q.goal.times, *q.goal.slo)]
    return [*limits, f"at least {percent(q.goal.confidence)} likely to hold"] if limits else []


DEFINITION = "TTFT and TPOT are means over requests of a closed loop (each client sends its next request when the last is answered)"


def _show_ranking(console: Console, a: ServingPlans, rows: ServingColumns, top: int) -> None:
    own = a.recommended if rows is a.plans else None
    first, q = _rows_to_show(rows, top, own), a.question
    shown, usd = rows.take(np.array(first, dtype=int)), a.usd_per_million_tokens(rows)
    listed, timed = [(a, rows, i) for i in first], [">request"] if q.goal.objective == "latency" else []
    columns = {"": ranks(first, own)}
    columns |= served_columns(listed, "plan", ">clients", ">TTFT", ">TPOT", ">likely", *timed, ">tokens/s")
    columns[">range"] = [f"{low:,.0f}-{high:,.0f}" for low, high in a.ranges(shown, "tokens_per_s")]
    columns |= served_columns(listed, ">/GPU", ">/user")
    columns[">$/M"] = [million(usd[i]) if q.goal.usd_per_gpu_hour else "" for i in first]
    columns[">comm"] = [f"{share:.0%}" for share in a.comm_fractions(shown)]
    show_columns(console, columns | served_columns(listed, ">KV free"))


def _rows_to_show(rows: ColumnTable, top: int, recommended: int | None) -> list[int]:
    """The first of a ranking, and the recommended plan where it lies behind them."""
    return [*range(min(top, len(rows))), *([recommended] if recommended is not None and recommended >= top else [])]


def ranks(listed: Sequence[int], recommended: int | None) -> list[str]:
    """Places in a ranking, and which is the best and which the recommended plan."""
    if recommended is None:
        return [str(i + 1) for i in listed]
    named = {0: "best", recommended: "recommended"} if recommended else {0: "recommended, best"}
    return [f"{i + 1} {named.get(i, '')}".rstrip() for i in listed]


def _tpot(a: Plans, rows: ServingColumns, i: int) -> str:
    """Without a second token there is no time between tokens."""
    return format_seconds(rows.tpot_s[i]) if a.question.requests.output_len > 1 else "–"


def _nothing_serves(console: Console, a: ServingPlans) -> None:
    """Nothing is good: the nearest plans, and what would have to change."""
    wanted = ", or ".join(a.would_take)
    if not len(a.near):
        say(console, f"No plan fits in memory.{f' It would take {wanted}.' if wanted else ''}", "bold red")
        return
    near, wish = a.near, percent(a.question.goal.confidence)
    broken = [odds(a, near, 0, name) for name in missed_times(a.question, near, dict.fromkeys(SAID, 0))]
    by_half = "; by the central prediction (50%) some do" if any(a.kept(near, i) >= EVEN for i in range(len(near))) else ""
    head = f"No plan is {wish} likely to meet the limits{by_half}"
    say(console, f"{head}. The nearest, {a.gpu_words(near, 0)}, has {' and '.join(broken)}.", "bold red")
    say(console, f"  It would take {wanted}.")
    _show_ranking(console, a, near, 5)


def _nothing_trains(console: Console, a: TrainPlans) -> None:
    """What is missing; a rank's share shrinks with the GPUs, or a little slower."""
    if not len(a.near):
        say(console, "No plan is legal.", "bold red")
        return
    least, budget = float(a.near.memory_bytes[0]), BUDGET * a.question.cluster.chip.visible_bytes
    gpus = math.ceil(int(a.near.gpus[0]) * least / budget)
    short = f"{format_bytes(least)} per rank at least, of {format_bytes(budget)}"
    say(console, f"No plan fits in memory: {short}. It would take about {gpus:,} GPUs.", "bold red")
    _show_ranked_training(console, a, a.near, 5)
    notes(console, run_notes(a))


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


def _scatter(a: ServingPlans) -> list[Text]:
    """The Pareto front: what a user gets (across) against what a GPU gives (up)."""
    front = a.front
    if len(front) < 3 or a.question.requests.output_len == 1:
        return []
    x, y = front.tokens_per_s_per_user, front.tokens_per_s_per_gpu
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]

    def place(u: float, g: float) -> tuple[int, int]:
        across, up = (u - x.min()) / max(1e-9, np.ptp(x)), (g - y.min()) / max(1e-9, np.ptp(y))
        return round(across * (WIDTH - 1)), HEIGHT - 1 - round(up * (HEIGHT - 1))

    for column, row in map(place, x, y):
        grid[row][column] = "•"
    column, row = place(a.plans.tokens_per_s_per_user[a.recommended], a.plans.tokens_per_s_per_gpu[a.recommended])
    if 0 <= row < HEIGHT and 0 <= column < WIDTH:
        grid[row][column] = "◆"
    head = "Pareto front: tokens/s per GPU (upwards) against tokens/s per user (to the right); ◆ is the recommended plan"
    lines = [Text(head, style="dim")]
    for i, cells in enumerate(grid):
        edge = f"{y.max() - (y.max() - y.min()) * i / (HEIGHT - 1):8,.0f} │"
        lines.append(Text(edge + "".join(cells)))
    lines.append(Text(" " * 9 + "└" + "─" * WIDTH))
    lines.append(Text(f"{x.min():14,.1f}{x.max():{WIDTH - 4},.1f}", style="dim"))
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
    )


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
    return {**figures, "plan": pasted.plan, "rank": pasted.rank or None, "reason": pasted.reason}


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


def plot_front(a: ServingPlans, path: Path) -> None:
    """The Pareto front as a picture."""

    def draw(figure: "plots.Figure") -> None:
        axes = figure.subplots()
        for index, tp in enumerate(np.unique(a.front.tp)):
            own = a.front.take(np.flatnonzero(a.front.tp == tp))
            signs = style(index, linestyle="", label=f"TP {int(tp)}")
            axes.plot(own.tokens_per_s_per_user, own.tokens_per_s_per_gpu, **signs)
        axes.set(xlabel="tokens/s per user", ylabel="tokens/s per GPU")
        axes.set_title(
            no_formula(f"{a.question.model.key} on {sized_places(a.question)}, {_question_words(a)}"), loc="left", fontsize=10
        )
        axes.grid(True, alpha=0.3)
        axes.legend()

    picture(path, draw)


def _show_ranked_training(console: Console, a: TrainPlans, rows: TrainColumns, top: int, recommended: int | None = None) -> None:
    first = _rows_to_show(rows, top, recommended)
    show_columns(console, {"": ranks(first, recommended), **ranked_columns(a, rows, first)})


def tokens_per_s(a: TrainPlans, rows: TrainColumns, i: int) -> float:
    return a.question.goal.global_batch * float(a.question.context) / float(rows.step_s[i])


def ranked_columns(a: TrainPlans, rows: TrainColumns, first: list[int]) -> dict[str, list[str]]:
    """Columns of a table of some plans."""
    steps = [a.step_of(rows, i) for i in first]
    rates = [tokens_per_s(a, rows, i) for i in first]
    runs = [training_money(a.question, int(rows.gpus[i]), rate) for i, rate in zip(first, rates, strict=True)]
    return {
        "plan": [a.gpu_words(rows, i) for i in first],
        ">microbatch": [str(int(rows.micro_batch[i])) for i in first],
        "kind": [a.kind_words(rows, i) for i in first],
        ">step": [format_seconds(rows.step_s[i]) for i in first],
        ">80 % range": [f"{format_seconds(b.low_s)}-{format_seconds(b.high_s)}" for b in steps],
        ">tokens/s": [f"{rate:,.0f}" for rate in rates],
        ">days": [f"{run.days:,.1f}" for run in runs],
        ">$": ["" if run.usd is None else f"{run.usd:,.0f}" for run in runs],
        ">MFU": [f"{rows.mfu[i]:.1%}" for i in first],
        ">bubble": [f"{rows.bubble_fraction[i]:.1%}" for i in first],
        ">comm": [f"{rows.exposed_comm_fraction[i]:.1%}" for i in first],
        ">memory": [format_bytes(rows.memory_bytes[i]) for i in first],
    }


def run_words(a: TrainPlans) -> str:
    """The run's tokens: ``15T``.

    >>> from types import SimpleNamespace as Any
    >>> run_words(Any(question=Any(goal=Any(train_tokens=1.5e12))))
    '1.5T'
    """
    tokens = a.question.goal.train_tokens
    size, unit = next(((size, unit) for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if tokens >= size), (1, ""))
    return f"{tokens / size:,g}{unit}"


def run_notes(a: TrainPlans) -> list[str]:
    """What days and dollars are of."""
    run = f"days and dollars are those of {run_words(a)} tokens (--tokens), of steps without a pause"
    return [f"{run}; {'; '.join(price_notes([a.question]))}"]


def trained_row(a: TrainPlans, rows: TrainColumns, i: int) -> Record:
    b, rate = a.step_of(rows, i), tokens_per_s(a, rows, i)
    run = training_money(a.question, int(rows.gpus[i]), rate)
    figures = trained_figures(rows, i)
    figures |= {"step_low_s": b.low_s, "step_high_s": b.high_s, "tokens_per_s": rate, "tokens_per_s_per_gpu": rate / rows.gpus[i]}
    figures |= {"days": run.days, "usd": run.usd, "usd_per_gpu_hour": run.usd_per_gpu_hour or None}
    return figures | facts(a.kinds[int(rows.kind[i])].plan, *KINDS) | {"verdict": a.gpu_words(rows, i)}


def trained_figures(rows: TrainColumns, i: int) -> Record:
    """The sizes and figures of one plan."""
    return facts_at(rows, i, *TRAINED) | {"memory_bytes": round(float(rows.memory_bytes[i]))}


def facts_at(rows: ColumnTable, i: int, *names: str) -> Record:
    """Some columns of one row under their own names."""
    return {name: getattr(rows, name)[i] for name in names}
