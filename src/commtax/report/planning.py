"""Plans for a terminal: the winner and why, the ranking, the Pareto front, what was rejected; and as a document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from commtax.planner.columns import Columns, Rejected
from commtax.planner.explain import step_of
from commtax.planner.serving import ServingPlans
from commtax.planner.training import TrainPlans
from commtax.report.documents import Document, plain
from commtax.report.tables import new_table, notes, say
from commtax.units import format_bytes, format_seconds

WANTED = {"throughput": "most tokens/s", "latency": "shortest requests", "cost": "fewest dollars a token", "gpus": "fewest GPUs"}
WIDTH, HEIGHT = 60, 10


def show_plans(console: Console, a: ServingPlans, top: int, seconds: float) -> None:
    """The sentence first: what to run, and why."""
    say(console, f"{a.model.key} on {a.cluster.key}, {a.engine.key}@{a.engine.version}: {_asked(a)}", "bold")
    rate = a.candidates / max(seconds, 1e-9)
    say(console, f"{a.candidates:,} plans considered in {format_seconds(seconds)} of CPU ({rate:,.0f} a second)", "dim")
    if not len(a.plans):
        _nothing(console, a)
        return
    head, *why = a.explain(0)
    say(console, f"Run {head}, {int(a.plans.concurrency[0]):,} clients.", "bold yellow")
    for reason in why:
        say(console, f"  {reason}")
    console.print(_ranking(a, a.plans, top))
    for line in _scatter(a):
        console.print(line, soft_wrap=True)
    _rejected(console, _short(a.rejected))
    usd = f"{a.usd_per_gpu_hour:g} $ a GPU-hour" if a.usd_per_gpu_hour else "no price is known for this chip: --price 2.5"
    notes(console, (_definitions(), usd, f"ranges: 80 % of published runs that were not fitted lie within; {_assumed(a)}"))


def _asked(a: ServingPlans) -> str:
    g = a.goal
    limits = [f"{n} <= {format_seconds(v)}" for n, v in (("TTFT", g.ttft_s), ("TPOT", g.tpot_s)) if np.isfinite(v)]
    return ", ".join([f"{g.input_len:,} tokens in, {g.output_len:,} out", *limits, WANTED[g.objective]])


def _definitions() -> str:
    return "TTFT and TPOT are means over requests of a closed loop (each client sends its next request when the last is answered)"


def _assumed(a: ServingPlans) -> str:
    return "host time is calibrated" if a.engine.calibrated else f"{a.engine.key}'s host time is assumed"


def _ranking(a: ServingPlans, rows: Columns, top: int) -> Any:
    table = new_table(
        "", "plan", ">clients", ">TTFT", ">TPOT", ">tokens/s", ">range", ">/GPU", ">/user", ">$/M", ">comm", ">KV free"
    )
    usd = a.usd_per_million_tokens(rows)
    for i in range(min(top, len(rows))):
        low, high = a.range_of(rows, i, "tokens_per_s")
        table.add_row(
            str(i + 1),
            a.words(rows, i) + _dtype(a, rows, i),
            f"{int(rows.concurrency[i]):,}",
            format_seconds(float(rows.ttft_s[i])),
            format_seconds(float(rows.tpot_s[i])),
            f"{float(rows.tokens_per_s[i]):,.0f}",
            f"{low:,.0f}-{high:,.0f}",
            f"{float(rows.tokens_per_s_per_gpu[i]):,.0f}",
            f"{float(rows.tokens_per_s_per_user[i]):,.0f}",
            f"{float(usd[i]):.2f}" if a.usd_per_gpu_hour else "",
            f"{float(step_of(a, rows, i).comm_fraction):.0%}",
            f"{float(rows.kv_headroom[i]):.0%}",
        )
    return table


def _dtype(a: ServingPlans, rows: Columns, i: int) -> str:
    return f" [{a.dtypes[int(rows.dtype[i])]}]" if len(a.dtypes) > 1 else ""


def _nothing(console: Console, a: ServingPlans) -> None:
    """Nothing is good: the nearest plans, and what would have to change."""
    if not len(a.near):
        say(console, "No plan fits: the model needs more memory than these GPUs have.", "red")
    else:
        over = max(float(a.near.ttft_s[0]) / a.goal.ttft_s, float(a.near.tpot_s[0]) / a.goal.tpot_s)
        say(console, f"No plan meets the limits. The nearest misses by {over - 1:.0%}: {_change(a)}.", "red")
        console.print(_ranking(a, a.near, 5))
    _rejected(console, _short(a.rejected))


def _change(a: ServingPlans) -> str:
    ttft, tpot = float(a.near.ttft_s[0]), float(a.near.tpot_s[0])
    words = []
    if tpot > a.goal.tpot_s:
        faster = f"GPUs with {tpot / a.goal.tpot_s:.1f} x the bandwidth"
        words.append(f"a TPOT limit of {format_seconds(tpot)}, fewer bytes a weight (--dtype fp8), or {faster}")
    if ttft > a.goal.ttft_s:
        words.append(f"a TTFT limit of {format_seconds(ttft)}, or prompts {ttft / a.goal.ttft_s:.1f} x as short")
    return "it would take " + "; and ".join(words)


def _short(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Families that lost for one reason together: TP 1 x PP 2 … PP 16 are one line."""
    groups: dict[tuple[str, str], list[Rejected]] = {}
    for r in rejected:
        groups.setdefault((r.family.split(" x ")[0], r.reason.split(":")[0]), []).append(r)
    found = []
    for (family, _), mine in groups.items():
        name = mine[0].family if len(mine) == 1 else f"{family} ({len(mine)} plans)"
        found.append(Rejected(name, mine[0].reason))
    return found


def _rejected(console: Console, rejected: list[Rejected]) -> None:
    if rejected:
        table = new_table("rejected", "why")
        for r in rejected[:16]:
            table.add_row(r.family, r.reason)
        console.print(table)


def _scatter(a: ServingPlans) -> list[Text]:
    """The Pareto front: what a user gets (across) against what a GPU gives (up)."""
    front = a.front
    if len(front) < 3:
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
    lines = [Text(f"Pareto front: tokens/s a GPU (up to {y.max():,.0f}) against tokens/s a user", style="dim")]
    for i, cells in enumerate(grid):
        edge = f"{y.max() - (y.max() - y.min()) * i / (HEIGHT - 1):8,.0f} │"
        lines.append(Text(edge + "".join(cells)))
    lines.append(Text(" " * 9 + "└" + "─" * WIDTH))
    lines.append(Text(f"{x.min():14,.1f}{x.max():{WIDTH - 4},.1f}   ◆ the plan above", style="dim"))
    return lines


def plans_document(a: ServingPlans, top: int) -> Document:
    """``plan --json``."""
    return dict(
        plain(
            {
                "schema": "commtax.plan/1",
                "model": a.model.key,
                "cluster": a.cluster.key,
                "engine": f"{a.engine.key}@{a.engine.version}",
                "objective": a.goal.objective,
                "input_len": a.goal.input_len,
                "output_len": a.goal.output_len,
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
            }
        )
    )


def _records(a: ServingPlans, rows: Columns, top: int) -> list[Document]:
    usd = a.usd_per_million_tokens(rows)
    found = []
    for i in range(min(top, len(rows))):
        low, high = a.range_of(rows, i, "tpot_s")
        sizes = {n: int(getattr(rows, n)[i]) for n in ("tp", "pp", "dp", "ep", "replicas", "gpus", "concurrency")}
        figures = {
            n: float(getattr(rows, n)[i]) for n in ("ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_per_gpu", "kv_headroom")
        }
        apart = int(rows.mode[i])
        found.append(
            {
                "mode": "disaggregated" if apart else "together",
                **sizes,
                **({"prefill_tp": int(rows.prefill_tp[i]), "prefill_replicas": int(rows.prefill_replicas[i])} if apart else {}),
                "dtype": a.dtypes[int(rows.dtype[i])] or "as stored",
                **figures,
                "tpot_low_s": low,
                "tpot_high_s": high,
                "tokens_per_s_per_user": float(rows.tokens_per_s_per_user[i]),
                "usd_per_million_tokens": float(usd[i]) if a.usd_per_gpu_hour else None,
                "exposed_comm_fraction": float(step_of(a, rows, i).comm_fraction),
                "verdict": a.words(rows, i),
            }
        )
    return found


def plot_front(a: ServingPlans, path: Path) -> None:
    """The Pareto front as a picture."""
    from commtax.report.plots import COLOURS, MARKERS, new_figure, save

    figure, axes = new_figure(path)
    for index, tp in enumerate(np.unique(a.front.tp)):
        mine = a.front.tp == tp
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linestyle": ""}
        axes.plot(a.front.tokens_per_s_per_user[mine], a.front.tokens_per_s_per_gpu[mine], label=f"TP {int(tp)}", **style)
    axes.set_xlabel("tokens/s a user")
    axes.set_ylabel("tokens/s a GPU")
    axes.set_title(f"{a.model.key} on {a.cluster.key}, {_asked(a)}", loc="left", fontsize=10)
    axes.grid(True, alpha=0.3)
    axes.legend()
    save(figure, path)


def show_train_plans(console: Console, a: TrainPlans, top: int, seconds: float) -> None:
    say(
        console,
        f"{a.model.key} on {a.cluster.key}, {a.engine.key}: {a.global_batch:,} sequences of {a.seq:,} tokens a step",
        "bold",
    )
    rate = a.candidates / max(seconds, 1e-9)
    say(console, f"{a.candidates:,} plans priced in {format_seconds(seconds)} of CPU ({rate:,.0f} a second)", "dim")
    if not len(a.plans):
        say(console, "No plan fits in memory; the nearest:" if len(a.near) else "No plan is legal.", "red")
        if len(a.near):
            console.print(_train_table(a, a.near, 5))
        _rejected(console, list(a.rejected))
        return
    for style, line in zip(("bold yellow", "", ""), a.explain(0), strict=False):
        say(console, f"Run {line}" if style else f"  {line}", style)
    console.print(_train_table(a, a.plans, top))
    _rejected(console, list(a.rejected))


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


def train_plans_document(a: TrainPlans, top: int) -> Document:
    """``plan --phase train --json``."""

    def records(rows: Any, count: int) -> list[Document]:
        names = ("tp", "pp", "dp", "ep", "cp", "micro_batch")
        figures = ("step_s", "mfu", "memory_bytes", "bubble_fraction", "exposed_comm_fraction")
        found = []
        for i in range(min(count, len(rows))):
            kind = a.kinds[int(rows.kind[i])]
            sizes = {n: int(getattr(rows, n)[i]) for n in names}
            kinds = {"zero": kind.zero, "recompute": kind.recompute, "schedule": kind.schedule, "chunks": kind.chunks}
            gpus = int(rows.tp[i] * rows.pp[i] * rows.dp[i] * rows.cp[i])
            found.append(
                {**sizes, **kinds, "gpus": gpus, **{n: float(getattr(rows, n)[i]) for n in figures}, "verdict": a.words(rows, i)}
            )
        return found

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
                "plans": records(a.plans, top),
                "near": records(a.near, 5),
                "rejected": [{"family": r.family, "reason": r.reason} for r in a.rejected],
            }
        )
    )
