"""Requests at several rates: a table for a terminal, pictures for files."""

from functools import partial
from pathlib import Path

import numpy as np

from commtax.report import plots
from commtax.report.drawing import Console
from commtax.report.plots import COLOURS, no_formula, picture, style
from commtax.report.requests import fleet_words, rate_words, remarks
from commtax.report.tables import ANSWER, notes, say, say_asked, say_own_limits, show_table
from commtax.sim.serving.figures import weighted_quantile
from commtax.units import format_seconds, plural
from commtax.verbs.examining import RequestSweep, Slo
from commtax.verbs.loads import LOADS
from commtax.verbs.requests import RequestsInTime

EXPENDABLE = ("TPOT p99", "E2E mean", "answered/s", "TTFT mean", "TPOT mean", "tokens/s out")


def show_sweep(console: Console, s: RequestSweep, slo: Slo) -> None:
    """One line a point, the knee and the capacity said."""
    say_own_limits(console, s.outcomes[0].notes)
    unit = rate_words if s.name == LOADS[0] else partial(plural, noun="client")
    parts = [f"the capacity is {rate_words(s.capacity)}"]
    if s.knee is not None:
        parts.append(f"the knee {unit(s.values[s.knee])}, where throughput over latency is greatest")
    if slo.limits:
        most = s.most(slo)
        parts.append("no point meets the SLO" if most is None else f"the SLO is met up to {unit(s.values[most])}")
    say(console, f"{parts[0][0].upper()}{parts[0][1:]}, {', '.join(parts[1:])}" if parts[1:] else parts[0], ANSWER)
    say_asked(console, s.outcomes[0].question, gpus=fleet_words(s.outcomes[0]))
    times = (">TTFT mean", ">TTFT p99", ">TPOT mean", ">TPOT p99", ">ITL p99", ">E2E mean")
    columns = (f">{s.title}", *times, ">answered/s", ">tokens/s out", *([">SLO met"] if slo.limits else []), "")
    show_table(console, columns, (_cells(s, i, slo) for i in range(len(s.values))), EXPENDABLE)
    notes(console, remarks(s.outcomes[0]))


def _cells(s: RequestSweep, at: int, slo: Slo) -> tuple[str, ...]:
    o = s.outcomes[at]
    names = ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99", "itl_p99", "e2e_mean")
    times = [format_seconds(value) if np.isfinite(value := o.statistic(name)) else "–" for name in names]
    mark = "overloaded" if o.overloaded else "the knee" if at == s.knee else ""
    kept = [f"{slo.share(o):.1%}"] if slo.limits else []
    return (f"{s.values[at]:,.4g}", *times, f"{o.requests_per_s:,.2f}", f"{o.tokens_per_s:,.0f}", *kept, mark)


def plot_sweep(s: RequestSweep, path: Path | None) -> "plots.Figure":
    """Latency against rate: TTFT and times between tokens, mean and p99 with their ranges, the knee and the capacity marked."""

    def draw(figure: "plots.Figure") -> None:
        first = s.outcomes[0].question
        figure.suptitle(no_formula(f"{first.model.key} on {first.cluster.key}: {fleet_words(s.outcomes[0])}"), fontsize=11)
        panels = {"time to first token": ("ttft_mean", "ttft_p99"), "time per token": ("tpot_mean", "itl_p99")}
        for axes, (title, names) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for index, name in enumerate(names):
                metric, which = name.split("_")
                values = [o.statistic(name) for o in s.outcomes]
                ends = np.array([o.range_of(name) for o in s.outcomes])
                axes.plot(s.values, values, **style(index, label=f"{metric.upper()} {which}"), markersize=4)
                axes.fill_between(s.values, ends[:, 0], ends[:, 1], color=COLOURS[index], alpha=0.18, linewidth=0)
                if s.knee is not None:
                    axes.plot(s.values[s.knee], values[s.knee], "o", markersize=11, markerfacecolor="none", color="black")
            _frame(axes, s, title)

    return picture(path, draw, size=(11, 4.8))


def _frame(axes: "plots.Axes", s: RequestSweep, what: str) -> None:
    axes.set(xscale="log", xlabel=s.title, ylabel=what)
    ticks = s.values[:: max(1, len(s.values) // 8)]
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    format_time_axis(axes, "y")
    axes.grid(alpha=0.25)
    if s.knee is not None:
        axes.plot([], [], "o", markersize=9, markerfacecolor="none", color="black", linestyle="none", label="knee")
    if s.name == LOADS[0] and s.values[0] < s.capacity < s.values[-1]:
        axes.axvline(s.capacity, color="0.35", linestyle=":", label=f"capacity {s.capacity:.3g}/s")
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def format_time_axis(axes: "plots.Axes", which: str) -> None:
    """Seconds on a logarithmic axis, written as people do: 50 ms, 2 s."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: format_seconds(value))
    axis.set_minor_formatter(NullFormatter())


def plot_outcome(o: RequestsInTime, path: Path | None) -> "plots.Figure":
    """Times between tokens as a histogram, and the distribution of first tokens with what passes in the queue."""

    def draw(figure: "plots.Figure") -> None:
        left, right = figure.subplots(1, 2)
        title = f"{o.question.model.key} on {o.question.cluster.key}: {fleet_words(o)}, {rate_words(o.requests_per_s)}"
        figure.suptitle(no_formula(title), fontsize=11)
        times, counts = o.gaps
        if counts.sum():
            ms = times * 1e3
            ends = [weighted_quantile(ms, counts, share) for share in (0.0, 0.9999)]
            bins = np.linspace(0.9 * ends[0], 1.05 * ends[1], 80).tolist()
            left.hist(ms, weights=counts / counts.sum(), bins=bins, color=COLOURS[0], alpha=0.85)
            for index, which in enumerate(("mean", "p50", "p99")):
                value = o.statistic(f"itl_{which}") * 1e3
                left.axvline(value, color=COLOURS[index + 1], linestyle=("-", "--", ":")[index], label=f"{which} {value:.3g} ms")
            left.legend(fontsize=8, frameon=False)
        left.set(xlabel="time between tokens, ms", ylabel="share of tokens", yscale="log")
        left.grid(alpha=0.25)
        _distribution(right, o)

    return picture(path, draw, size=(11, 4.8))


def _distribution(axes: "plots.Axes", o: RequestsInTime) -> None:
    seen = o.counted
    for index, (name, label) in enumerate((("ttft_s", "TTFT"), ("queue_s", "of it in the queue"))):
        values = np.sort(o.columns[name][seen])
        share = np.arange(1, len(values) + 1) / len(values)
        axes.plot(values, share, label=label, color=COLOURS[index], linestyle=("-", "--")[index], drawstyle="steps-post")
    for which, height in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        value = o.statistic(f"ttft_{which}")
        axes.plot(value, height, "o", color=COLOURS[0], markersize=5)
        axes.annotate(f"{which} {format_seconds(value)}", (value, height), xytext=(7, -10), textcoords="offset points", fontsize=8)
    format_time_axis(axes, "x")
    low, high = axes.get_xlim()
    axes.set(xlabel="time to first token", ylabel="share of requests", ylim=(0, 1.02), xlim=(low, high * (high / low) ** 0.15))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
