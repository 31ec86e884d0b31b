"""Plans for a terminal: the winner and why, the ranking, the Pareto front, what was rejected; and as a document."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from commtax.api.serving import lengths_note
from commtax.planner.columns import Columns, Rejected, request_s
from commtax.planner.reasons import in_type, step_of
from commtax.planner.serving import ServingPlans
from commtax.planner.standing import Standing
from commtax.planner.training import BUDGET, TrainColumns, TrainPlans
from commtax.report.documents import Document, plain
from commtax.report.serving import basis_words
from commtax.report.tables import new_table, notes, say
from commtax.units import format_bytes, format_seconds, plural

WANTED = {"throughput": "most tokens/s", "latency": "shortest requests", "cost": "fewest dollars a token", "gpus": "fewest GPUs"}
GAIN = {"throughput": "its tokens/s", "latency": "its speed", "cost": "its tokens/s a GPU", "gpus": "its answer for each GPU"}
WIDTH, HEIGHT = 60, 10
MOST_REJECTED = 16


def show_plans(console: Console, a: ServingPlans, top: int, pasted: Standing | None = None) -> None:
    """The sentence first: what to run, and why."""
    say(console, f"{a.model.key} on {a.cluster.key}, {a.engine.key}@{a.engine.version}: {_asked(a)}", "bold")
    if not len(a.plans):
        _nothing(console, a)
        _pasted(console, a, pasted)
        return
    head, *why = a.explain(0)
    say(console, f"Run {head}; {plural(int(a.plans.concurrency[0]), 'client')} at once.", "bold yellow")
    for reason in why:
        say(console, f"  {reason}")
    _pasted(console, a, pasted)
    console.print(_ranking(a, a.plans, top))
    for line in _scatter(a):
        console.print(line, soft_wrap=True)
    _rejected(console, _short(a.rejected))
    usd = f"${a.usd_per_gpu_hour:g} a GPU-hour (--price)" if a.usd_per_gpu_hour else "no price is known for this chip: --price 2.5"
    ranges = f"host times of {a.engine.key} {basis_words(a.simulation(a.plans, 0))}"
    notes(console, (_definitions(), lengths_note(a.goal.spread), usd, ranges))


def _pasted(console: Console, a: ServingPlans, found: Standing | None) -> None:
    """Where the plan that was pasted stands, in one sentence."""
    if found is None or _unpriced(console, found):
        return
    r = found.rows
    tokens = f"{float(r.tokens_per_s[0]):,.0f} tokens/s, {float(r.tokens_per_s_per_gpu[0]):,.0f} a GPU"
    times = f"TTFT {format_seconds(float(r.ttft_s[0]))}" + (f", TPOT {_tpot(a, r, 0)}" if a.goal.output_len > 1 else "")
    what = f"Pasted: {found.words}, {plural(int(r.concurrency[0]), 'client')}: {tokens}, {times}"
    say(console, f"{what}; {_place(found, len(a.plans), GAIN[a.goal.objective])}.", "bold" if found.rank else "bold red")


def _unpriced(console: Console, found: Standing) -> bool:
    """Says why a pasted plan has no figures, where it has none."""
    if not len(found.rows):
        say(console, f"Pasted: {found.words}: {found.reason}.", "bold red")
    return not len(found.rows)


def _place(found: Standing, count: int, unit: str) -> str:
    """Its place among the good plans, or why it has none."""
    if not found.rank:
        return found.reason
    ahead = f"place {found.rank:,} beside {count:,} good plans" if found.rank > 1 else "no plan is better"
    return ahead + (f", the first has {found.gain:.2f} x {unit}" if found.gain > 1.005 else "")


def _asked(a: ServingPlans) -> str:
    g = a.goal
    limits = [f"{n} <= {format_seconds(v)}" for n, v in (("TTFT", g.ttft_s), ("TPOT", g.tpot_s)) if np.isfinite(v)]
    return ", ".join([f"{g.input_len:,} tokens in, {g.output_len:,} out", *limits, WANTED[g.objective]])


def _definitions() -> str:
    return "TTFT and TPOT are means over requests of a closed loop (each client sends its next request when the last is answered)"


def _sent(a: ServingPlans, rows: Columns, top: int) -> list[float]:
    """Exposed communication of the first rows' decode steps; each different step is priced once."""
    seen: dict[tuple[int, ...], float] = {}
    found = []
    for i in range(min(top, len(rows))):
        key = tuple(int(getattr(rows, name)[i]) for name in ("dtype", "tp", "pp", "dp", "ep", "running"))
        if key not in seen:
            seen[key] = float(step_of(a, rows, i).comm_fraction)
        found.append(seen[key])
    return found


def _ranking(a: ServingPlans, rows: Columns, top: int) -> Any:
    slow = a.goal.objective == "latency"
    table = new_table(
        *("", "plan", ">clients", ">TTFT", ">TPOT", *([">request"] if slow else []), ">tokens/s", ">range", ">/GPU", ">/user"),
        *(">$/M", ">comm", ">KV free"),
    )
    usd, whole, sent = a.usd_per_million_tokens(rows), request_s(a.goal, rows), _sent(a, rows, top)
    for i in range(min(top, len(rows))):
        low, high = a.range_of(rows, i, "tokens_per_s")
        table.add_row(
            str(i + 1),
            a.words(rows, i) + in_type(a, int(rows.dtype[i])),
            f"{int(rows.concurrency[i]):,}",
            format_seconds(float(rows.ttft_s[i])),
            _tpot(a, rows, i),
            *([format_seconds(float(whole[i]))] if slow else []),
            f"{float(rows.tokens_per_s[i]):,.0f}",
            f"{low:,.0f}-{high:,.0f}",
            f"{float(rows.tokens_per_s_per_gpu[i]):,.0f}",
            f"{float(rows.tokens_per_s_per_user[i]):,.0f}" if a.goal.output_len > 1 else "–",
            f"{float(usd[i]):.2f}" if a.usd_per_gpu_hour else "",
            f"{sent[i]:.0%}",
            f"{float(rows.kv_headroom[i]):.0%}",
        )
    return table


def _tpot(a: ServingPlans, rows: Columns, i: int) -> str:
    """Without a second token there is no time between tokens."""
    return format_seconds(float(rows.tpot_s[i])) if a.goal.output_len > 1 else "–"


def _nothing(console: Console, a: ServingPlans) -> None:
    """Nothing is good: the nearest plans, and what would have to change."""
    wanted = ", or ".join(a.changes())
    if not len(a.near):
        say(console, f"No plan fits in memory.{f' It would take {wanted}.' if wanted else ''}", "bold red")
    else:
        near, goal = a.near, a.goal
        limits = ((near.ttft_s, goal.ttft_s, "TTFT"), (near.tpot_s, goal.tpot_s, "TPOT"))
        missed = [f"{n} {format_seconds(float(v[0]))} of {format_seconds(m)}" for v, m, n in limits if v[0] > m]
        say(console, f"No plan meets the limits. The nearest, {a.words(near, 0)}, has {' and '.join(missed)}.", "bold red")
        say(console, f"  It would take {wanted}.")
        console.print(_ranking(a, near, 5))
    _rejected(console, _short(a.rejected))


def _short(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Degrees that one rule forbids are one line: TP 3, 5, 6, 7."""
    groups: dict[str, list[Rejected]] = {}
    for r in rejected:
        groups.setdefault(r.reason.replace(f"tp={r.tp}", "tp="), []).append(r)
    found = []
    for alike in groups.values():
        sizes, first = [str(r.tp) for r in alike], alike[0]
        if len(alike) == 1 or not first.tp:
            found += alike
        else:
            degrees = ", ".join(sizes[:-1]) + f" or {sizes[-1]}"
            found.append(Rejected(f"TP {', '.join(sizes)}", first.reason.replace(f"tp={first.tp}", degrees)))
    return found


def _rejected(console: Console, rejected: list[Rejected]) -> None:
    if rejected:
        table = new_table("rejected", "why")
        for r in rejected[:MOST_REJECTED]:
            table.add_row(r.family, r.reason)
        if len(rejected) > MOST_REJECTED:
            table.add_row("…", f"{len(rejected) - MOST_REJECTED} more with --json")
        console.print(table)


def _scatter(a: ServingPlans) -> list[Text]:
    """The Pareto front: what a user gets (across) against what a GPU gives (up)."""
    front = a.front
    if len(front) < 3 or a.goal.output_len == 1:
        return []
    x, y = front.tokens_per_s_per_user, front.tokens_per_s_per_gpu
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for u, g in zip(x, y, strict=True):
        column = int((u - x.min()) / max(1e-9, np.ptp(x)) * (WIDTH - 1))
        row = HEIGHT - 1 - int((g - y.min()) / max(1e-9, np.ptp(y)) * (HEIGHT - 1))
        grid[row][column] = "•"
    column = int((a.plans.tokens_per_s_per_user[0] - x.min()) / max(1e-9, np.ptp(x)) * (WIDTH - 1))
    row = HEIGHT - 1 - int((a.plans.tokens_per_s_per_gpu[0] - y.min()) / max(1e-9, np.ptp(y)) * (HEIGHT - 1))
    if 0 <= row < HEIGHT and 0 <= column < WIDTH:
        grid[row][column] = "◆"
    lines = [Text("Pareto front: tokens/s a GPU (upwards) against tokens/s a user (to the right); ◆ is plan 1", style="dim")]
    for i, cells in enumerate(grid):
        edge = f"{y.max() - (y.max() - y.min()) * i / (HEIGHT - 1):8,.0f} │"
        lines.append(Text(edge + "".join(cells)))
    lines.append(Text(" " * 9 + "└" + "─" * WIDTH))
    lines.append(Text(f"{x.min():14,.1f}{x.max():{WIDTH - 4},.1f}", style="dim"))
    return lines


def plans_document(a: ServingPlans, top: int, pasted: Standing | None = None) -> Document:
    """``plan --json``; ``pasted`` is where the pasted plan stands, null without one."""
    return dict(
        plain(
            {
                "schema": "commtax.plan/1",
                "model": a.model.key,
                "cluster": a.cluster.key,
                "engine": f"{a.engine.key}@{a.engine.version}",
                "objective": a.goal.objective,
                "disaggregated": a.goal.disaggregated,
                "input_len": a.goal.input_len,
                "output_len": a.goal.output_len,
                "spread": a.goal.spread,
                "ttft_limit_s": a.goal.ttft_s if np.isfinite(a.goal.ttft_s) else None,
                "tpot_limit_s": a.goal.tpot_s if np.isfinite(a.goal.tpot_s) else None,
                "definition": _definitions(),
                "candidates": a.candidates,
                "plans": _records(a, a.plans, top),
                "near": _records(a, a.near, 5),
                "front": [
                    {"tokens_per_s_per_gpu": float(g), "tokens_per_s_per_user": float(u)}
                    for g, u in zip(a.front.tokens_per_s_per_gpu, a.front.tokens_per_s_per_user, strict=True)
                ],
                "rejected": [{"family": r.family, "reason": r.reason} for r in a.rejected],
                "why": a.explain(0) if len(a.plans) else [],
                "would_take": [] if len(a.plans) else a.changes(),
                "pasted": _standing(pasted, _records(a, pasted.rows, 1)) if pasted else None,
                "profile": a.run.profile.name if a.run.profile else None,
            }
        )
    )


def _standing(found: Standing, records: list[Document]) -> Document:
    told = {"plan": found.words, "rank": found.rank or None, "reason": found.reason}
    return {**(records[0] if records else {}), **told}


def _records(a: ServingPlans, rows: Columns, top: int) -> list[Document]:
    usd, sent = a.usd_per_million_tokens(rows), _sent(a, rows, top)
    found = []
    for i in range(min(top, len(rows))):
        low, high = a.range_of(rows, i, "tpot_s")
        sizes = {n: int(getattr(rows, n)[i]) for n in ("tp", "pp", "dp", "ep", "replicas", "gpus", "concurrency")}
        figures = {
            n: float(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_per_gpu", "kv_headroom")
        }
        apart, one = int(rows.mode[i]), a.goal.output_len == 1
        found.append(
            {
                "mode": "disaggregated" if apart else "together",
                **sizes,
                "idle_gpus": a.cluster.num_gpus - sizes["gpus"],
                **({"prefill_tp": int(rows.prefill_tp[i]), "prefill_replicas": int(rows.prefill_replicas[i])} if apart else {}),
                "dtype": a.dtypes[int(rows.dtype[i])] or "as stored",
                **figures,
                "tpot_low_s": low,
                "tpot_high_s": high,
                "tokens_per_s_per_user": float(rows.tokens_per_s_per_user[i]),
                **(dict.fromkeys(("tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s_per_user")) if one else {}),
                "usd_per_million_tokens": float(usd[i]) if a.usd_per_gpu_hour else None,
                "exposed_comm_fraction": sent[i],
                "verdict": a.words(rows, i),
            }
        )
    return found


def plot_front(a: ServingPlans, path: Path) -> None:
    """The Pareto front as a picture."""
    from commtax.report.plots import COLOURS, MARKERS, new_figure, no_formula, save

    figure, axes = new_figure(path)
    for index, tp in enumerate(np.unique(a.front.tp)):
        mine = a.front.tp == tp
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": ""}
        axes.plot(a.front.tokens_per_s_per_user[mine], a.front.tokens_per_s_per_gpu[mine], label=f"TP {int(tp)}", **style)
    axes.set_xlabel("tokens/s a user")
    axes.set_ylabel("tokens/s a GPU")
    axes.set_title(no_formula(f"{a.model.key} on {a.cluster.key}, {_asked(a)}"), loc="left", fontsize=10)
    axes.grid(True, alpha=0.3)
    axes.legend()
    save(figure, path)


def show_train_plans(console: Console, a: TrainPlans, top: int, pasted: Standing | None = None) -> None:
    say(
        console,
        f"{a.model.key} on {a.cluster.key}, {a.engine.key}: {a.global_batch:,} sequences of {a.seq:,} tokens a step",
        "bold",
    )
    if not len(a.plans):
        say(console, _too_small(a) if len(a.near) else "No plan is legal.", "bold red")
        if len(a.near):
            console.print(_train_table(a, a.near, 5))
        _pasted_training(console, a, pasted)
        _rejected(console, list(a.rejected))
        return
    for style, line in zip(("bold yellow", "", ""), a.explain(0), strict=False):
        say(console, f"Run {line}." if style else f"  {line}", style)
    _pasted_training(console, a, pasted)
    console.print(_train_table(a, a.plans.take(a.splits()), top))
    _rejected(console, list(a.rejected))
    notes(console, (f"the best microbatch, recomputation and schedule of each split; --json ranks all {len(a.plans):,} that fit",))


def _too_small(a: TrainPlans) -> str:
    """What is missing; a rank's share shrinks with the GPUs, or a little slower."""
    least, budget = float(a.near.memory_bytes[0]), BUDGET * a.cluster.chip.visible_bytes
    near = a.near.take(np.array([0]))
    gpus = math.ceil(int((near.tp * near.pp * near.dp * near.cp)[0]) * least / budget)
    short = f"{format_bytes(least)} a rank at least, of {format_bytes(budget)}"
    return f"No plan fits in memory: {short}. It would take some {gpus:,} GPUs."


def _pasted_training(console: Console, a: TrainPlans, found: Standing | None) -> None:
    if found is None or _unpriced(console, found):
        return
    r = found.rows
    figures = (
        f"step {format_seconds(float(r.step_s[0]))}, MFU {float(r.mfu[0]):.1%}, {format_bytes(float(r.memory_bytes[0]))} a rank"
    )
    place = _place(found, len(a.plans), "its speed")
    say(console, f"Pasted: {found.words}: {figures}; {place}.", "bold" if found.rank else "bold red")


def _train_table(a: TrainPlans, rows: Any, top: int) -> Any:
    table = new_table("", "plan", ">microbatch", "kind", ">step", ">MFU", ">bubble", ">comm", ">memory a rank")
    for i in range(min(top, len(rows))):
        table.add_row(
            str(i + 1),
            a.words(rows, i),
            str(int(rows.micro_batch[i])),
            str(a.kinds[int(rows.kind[i])]),
            format_seconds(float(rows.step_s[i])),
            f"{float(rows.mfu[i]):.1%}",
            f"{float(rows.bubble_fraction[i]):.1%}",
            f"{float(rows.exposed_comm_fraction[i]):.1%}",
            format_bytes(float(rows.memory_bytes[i])),
        )
    return table


def train_plans_document(a: TrainPlans, top: int, pasted: Standing | None = None) -> Document:
    """``plan --phase train --json``."""
    return dict(
        plain(
            {
                "schema": "commtax.plan-train/1",
                "model": a.model.key,
                "cluster": a.cluster.key,
                "engine": f"{a.engine.key}@{a.engine.version}",
                "global_batch": a.global_batch,
                "seq": a.seq,
                "candidates": a.candidates,
                "plans": _train_records(a, a.plans, top),
                "near": _train_records(a, a.near, 5),
                "rejected": [{"family": r.family, "reason": r.reason} for r in a.rejected],
                "pasted": _standing(pasted, _train_figures(pasted.rows, 1)) if pasted else None,
                "profile": a.profile.name if a.profile else None,
            }
        )
    )


def _train_records(a: TrainPlans, rows: TrainColumns, count: int) -> list[Document]:
    found = []
    for i, figures in enumerate(_train_figures(rows, count)):
        kind = a.kinds[int(rows.kind[i])]
        kinds = {"zero": kind.zero, "recompute": kind.recompute, "schedule": kind.schedule, "chunks": kind.chunks}
        found.append({**figures, **kinds, "verdict": a.words(rows, i)})
    return found


def _train_figures(rows: TrainColumns, count: int) -> list[Document]:
    """Sizes and figures of the first rows."""
    names = ("tp", "pp", "dp", "ep", "cp", "micro_batch")
    figures = ("step_s", "mfu", "memory_bytes", "bubble_fraction", "exposed_comm_fraction")
    found: list[Document] = []
    for i in range(min(count, len(rows))):
        gpus = int(rows.tp[i] * rows.pp[i] * rows.dp[i] * rows.cp[i])
        sizes = {n: int(getattr(rows, n)[i]) for n in names}
        found.append({**sizes, "gpus": gpus, **{n: float(getattr(rows, n)[i]) for n in figures}})
    return found
