"""Requests in time: how long they take, and why the slowest are slow; documents have the keys of ``vllm bench serve`` too."""

from collections.abc import Mapping
from functools import partial
from math import isfinite, isinf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commtax.files import table
from commtax.judgement.overload import load_words
from commtax.report.closed_loop import LITTLE, fixed_time_notes, host_times, saved_words
from commtax.report.documents import Record, document, record
from commtax.report.drawing import Console
from commtax.report.manners import Manner
from commtax.report.plots import COLOURS, format_time_axis, no_formula, picture, style
from commtax.report.tables import ANSWER, OWN_LIMITS, cached_words, longest_words, notes, say, say_limits, say_question, show_table
from commtax.sim.serving.figures import weighted_quantile
from commtax.statement import MEANS
from commtax.units import format_figure, format_seconds, format_spread, plural
from commtax.verbs.disaggregation import describe_pools, prompter
from commtax.verbs.examining import NEEDED, UPPER, EngineUsage, FirstTokens, Gaps, RequestSweep, Slo, first_tokens, gaps, usage_of
from commtax.verbs.loads import LOADS
from commtax.verbs.requests import RequestsInTime
from commtax.verbs.settling import describe_gpus

if TYPE_CHECKING:
    from commtax.report.plots import Figure

WORDS = table("report/words.toml")["requests"]
TIMES: Mapping[str, Mapping[str, str]] = table("report/figures.toml")["times"]
METRICS = {key: one["name"] for key, one in TIMES.items()}
SWEPT = {  # statistics that a sweep lists, and the names of their columns
    f"{metric}_{which}": f"{METRICS[metric]} {which}"
    for metric, some in {"ttft": ("mean", "p99"), "tpot": ("mean", "p99"), "itl": ("p99",), "e2e": ("mean",)}.items()
    for which in some
}
MEDIAN = {"p50": "median"}
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
EXPENDABLE = ("TPOT p99", "E2E mean", "answered/s", "TTFT mean", "TPOT mean", "tokens/s out")  # columns of a sweep
LONGER = 1.2  # prompts of the slowest over those of the middle
SAME = 1.1  # a tail that is no longer than this many medians is none


def show_outcome(console: Console, o: RequestsInTime, slo: Slo) -> None:
    """Show saturation and missed limits first, then the times, then why."""
    say_limits(console, o.notes)
    for note in (note for note in o.notes if note.code == "interrupted"):
        say(console, f"{note[0].upper()}{note[1:]}.", "bold red")
    if o.overloaded:
        grow = "the queue keeps growing, and the times below are means over a run of this length"
        say(console, f"Overloaded: {load_words(o.offered_rate, o.capacity)}; {grow}.", "bold red")
    if not slo.kept(o):
        good = f"{slo.goodput(o):,.2f} requests/s of goodput; {_confidence_words(o, slo)}"
        say(console, f"SLO missed: {_slo_words(o, slo)}, and {NEEDED:.0%} are needed; {good}.", "bold red")
    say(console, _load(o), ANSWER)
    for means in (note for note in o.notes if note.code == MEANS):
        say(console, f"{means}.")
    tokens = f"{o.input_tokens_per_s:,.0f} tokens/s in and {o.tokens_per_s:,.0f} out ({o.tokens_per_s / o.num_gpus:,.0f} per GPU)"
    say(console, f"{o.requests_per_s:,.2f} requests/s, {tokens} over {time_words(o.duration_s)}")
    if saved := _saved(o):
        say(console, saved)
    if slo.limits and slo.kept(o):
        say(console, f"{_slo_words(o, slo)}: {slo.goodput(o):,.2f} requests/s of goodput; {_confidence_words(o, slo)}", "green")
    for sentence in tail_words(o):
        say(console, sentence)
    say_question(console, o.question, _question_words(o), gpus=fleet_words(o))
    columns = ("", ">mean", ">80% range", ">p50", ">p90", ">p95", ">p99", ">80% range")
    show_table(console, columns, [_cells(o, m) for m in METRICS], ("p90", "p95", "80% range"))
    sure, hosts = o.alike.basis == "calibrated", host_times(o.alike)
    fixed, details = fixed_time_notes(o.alike), (_engine(o, usage_of(o)), *([hosts] if sure else []))
    large = o.question.engine.host.request_s > LITTLE * o.statistic("ttft_mean")
    notes(console, (*remarks(o), *(fixed if large else ()), *(() if sure else (hosts,))), (*details, *(() if large else fixed)))


def _confidence_words(o: RequestsInTime, slo: Slo) -> str:
    """Return how surely enough requests keep to the limits, which nobody looks at beyond the 80% range of the steps."""
    probability = slo.probability(o)
    bound = {UPPER: "at least ", 1 - UPPER: "at most "}.get(probability, "")
    return f"the probability that {NEEDED:.0%} do is {bound}{probability:.0%}"


def _slo_words(o: RequestsInTime, slo: Slo) -> str:
    limits = " and ".join(f"{METRICS[name.removesuffix('_s')]} ≤ {format_seconds(value)}" for name, value in slo.limits.items())
    return f"{slo.share(o):.1%} of requests meet {limits}"


def fleet_words(o: RequestsInTime) -> str:
    """Return the GPUs in words, of both kinds of workers where there are two."""
    plan, wanted = o.question.plan, o.question.requests
    if o.fleet.prompts is None:
        return describe_gpus(plan)
    prompts = (wanted.prefill_workers or 1, prompter(o.question).plan)
    return f"{o.num_gpus} GPUs = {describe_pools(o.question.places, prompts, (wanted.decode_workers or 1, plan))}"


def _question_words(o: RequestsInTime) -> str:
    q = o.question
    offered, count = q.offered, plural(len(o.stream), "request")
    count = count if o.share == 1 else f"{len(o.stream):,} of {o.num_requests:,} requests"
    if offered.trace is not None:
        when = f"{count} of a trace, {format_figure(o.offered_rate)} per second on average"
    elif o.closed:
        when = f"{plural(int(q.requests.concurrency), 'client')}, {count}, each sent when the client's last one is answered"
    elif isinf(offered.request_rate):
        when = f"{count}, all at once"
    else:
        kind = {1.0: "Poisson"}.get(offered.burstiness, "evenly spaced" if isinf(offered.burstiness) else "")
        when = f"{count} at {offered.request_rate:g} per second ({kind or f'burstiness {offered.burstiness:g}'})"
    limit = "" if o.closed or isinf(o.max_in_flight) else f", at most {o.max_in_flight:,.0f} in flight"
    several = q.plan.replicas > 1 or o.fleet.workers.count > 1
    return f"{when}{limit}; {_lengths(o)}; {f'{offered.router} over replicas, ' if several else ''}seed {offered.seed}"


def _lengths(o: RequestsInTime) -> str:
    q = o.question
    if q.offered.trace is not None:
        return f"{o.stream.input_len.mean():,.0f} tokens in and {o.stream.output_len.mean():,.0f} out on average"
    means = ((q.offered.inputs, q.requests.input_len), (q.offered.outputs, q.requests.output_len))
    lengths, spread = list[str](), float(q.requests.spread)
    for drawn, mean in means:
        if drawn is None:
            lengths.append(f"{int(mean):,}{f' {format_spread(spread)}' if spread and mean > 1 else ''}")
        else:
            lengths.append(f"{drawn.mean:,.0f}" + (f" ({drawn.source or drawn.kind})" if drawn.kind != "constant" else ""))
    return f"{lengths[0]} tokens in{cached_words(q)}, {lengths[1]} out{longest_words(q)}"


def rate_words(per_s: float) -> str:
    """Write a rate of requests.

    >>> rate_words(1.0), rate_words(17.43)
    ('1 request/s', '17.4 requests/s')
    """
    return f"{format_figure(per_s)} request{'' if per_s == 1 else 's'}/s"


def _load(o: RequestsInTime) -> str:
    capacity = f"its capacity of {format_figure(o.capacity)} requests/s"
    if o.closed or isinf(o.offered_rate):
        return f"{format_figure(o.requests_per_s)} requests/s are answered, {o.requests_per_s / o.capacity:.0%} of {capacity}"
    return f"{rate_words(o.offered_rate)} is {o.offered_rate / o.capacity:.0%} of {capacity}"


def _cells(o: RequestsInTime, metric: str) -> tuple[str, ...]:
    values = [o.statistic(f"{metric}_{which}") for which in STATISTICS]
    if not isfinite(values[0]):
        return (METRICS[metric], *("–",) * 7)
    first, *others = map(time_words, values)
    return (METRICS[metric], first, _range(o, f"{metric}_mean"), *others, _range(o, f"{metric}_p99"))


def _range(o: RequestsInTime, name: str) -> str:
    return " to ".join(map(time_words, o.range_of(name)))


def time_words(seconds: float) -> str:
    """Write a time, seconds above 1,000 without a unit of their own.

    >>> time_words(0.0123), time_words(1234.5)
    ('12.3 ms', '1,234 s')
    """
    return f"{seconds:,.0f} s" if seconds >= 1000 else format_seconds(seconds)


def _saved(o: RequestsInTime) -> str:
    if o.without_prefixes is None:
        return ""
    cached, plain = o.without_prefixes
    times = {f"mean {METRICS[m]}": (cached.statistic(f"{m}_mean"), plain.statistic(f"{m}_mean")) for m in ("ttft", "tpot")}
    return saved_words(times, "requests/s of capacity", (o.capacity, plain.capacity))


def tail_words(o: RequestsInTime) -> list[str]:
    return [text for text in (first_words(first_tokens(o)), gap_words(gaps(o))) if text]


def first_words(tail: FirstTokens) -> str:
    """Say what the slowest first tokens have more of than those of the middle."""
    if tail.p99_s <= SAME * tail.median_s:
        return f"p99 TTFT {format_seconds(tail.p99_s)} is close to its median of {format_seconds(tail.median_s)}: there is no tail."
    whole = sum(max(0.0, seconds) for seconds in tail.more_s.values())
    ranked = sorted(tail.more_s.items(), key=lambda pair: -pair[1])
    long = f"are {tail.longer:.1f} x as long" if tail.longer > LONGER else "also compute other prompts"
    texts = WORDS["causes"] | {"own": f"{WORDS['causes']['own']}, which {long}"}
    parts = [f"{format_seconds(seconds)} {texts[name]}" for name, seconds in ranked if seconds > LITTLE * whole]
    times = f"{tail.p99_s / tail.median_s:.1f} x its median of {format_seconds(tail.median_s)}"
    return f"p99 TTFT {format_seconds(tail.p99_s)} is {times}: the slowest 1% spend {', and '.join(parts)}."


def gap_words(tail: Gaps) -> str:
    if not isfinite(tail.p99_s):
        return ""
    p99, median = f"p99 ITL {format_seconds(tail.p99_s)}", f"its median of {format_seconds(tail.median_s)}"
    lost = f"; {plural(tail.preempted, 'request')} lost {format_seconds(tail.lost_s)} each, preempted"
    thrown = lost if tail.preempted else ""
    if tail.p99_s <= SAME * tail.median_s:
        return f"{p99} is close to {median}: {'few steps are' if thrown else 'no step is'} disturbed{thrown}."
    if tail.thrown > 0.5:
        why = f"{tail.thrown:.0%} of the slowest gaps precede the next token of a preempted request"
    elif tail.stalled > max(0.5, tail.with_prompts):
        why = f"{tail.stalled:.0%} of the slowest tokens waited before their step, for prompts that go first or for stages"
    elif tail.behind > max(0.5, tail.with_prompts):
        why = f"{tail.behind:.0%} of the slowest tokens waited for prompts on other stages or ranks of their engine"
    elif tail.with_prompts > 0.5:
        beside = f"other prompts, {tail.tokens:,.0f} tokens on average"
        why = f"{tail.with_prompts:.0%} of the slowest gaps are steps that also compute {beside}"
    else:
        why = "the slowest gaps are steps with larger batches and longer contexts"
    return f"{p99} is {tail.p99_s / tail.median_s:.1f} x {median}: {why}{thrown}."


def _engine(o: RequestsInTime, used: EngineUsage) -> str:
    """Say what engines were busy with: one that is always at work may have room for many more requests in each step."""
    busy = f"each {'stage has a batch' if o.fleet.workers.stages > 1 else 'engine runs a step'} {used.busy:.0%} of the time"
    thrown = f"{plural(used.preemptions, 'preemption')}" if used.preemptions else "no preemption"
    hits = f", {used.hit_rate:.0%} of prompt tokens found in it" if used.hit_rate else ""
    waiting = f"; at most {plural(used.waiting_peak, 'request')} waiting" if used.waiting_peak else ""
    return (
        f"{busy}, with {used.mean_batch:,.1f} requests that decode per step: how full they are decides the capacity, not how often "
        f"one runs; {used.prompt_share:.0%} of step time goes to steps with "
        f"prompts, {used.comm_share:.0%} to exposed communication; KV cache {used.kv_mean:.0%} full, at most {used.kv_peak:.0%}, "
        f"{thrown}{hits}{waiting}"
    )


def remarks(o: RequestsInTime) -> list[str]:
    """Return the notes but those that stand first. Idle GPUs are counted over both kinds of workers, where there are two."""
    above = ("interrupted", OWN_LIMITS, MEANS, *(["idle-gpus"] if o.fleet.prompts else []))
    return list(dict.fromkeys(note for note in o.notes if note.code not in above))


def outcome_document(o: RequestsInTime, slo: Slo) -> Record:
    q, offered, limits = o.question, o.question.offered, [note for note in o.notes if note.code == OWN_LIMITS]
    first, between = first_tokens(o), gaps(o)
    ours = {"cause": first.cause, "more_s": dict(first.more_s), "longer": first.longer}
    sure = {"kept": slo.kept(o), "kept_with": slo.probability(o), "goodput_requests_per_s": slo.goodput(o)}
    times = [Record(metric=metric) for metric in METRICS]  # all statistics of each with their 80% ranges, in seconds
    for row, metric, which in ((row, metric, s) for row, metric in zip(times, METRICS, strict=True) for s in STATISTICS):
        low, high = o.range_of(f"{metric}_{which}")
        row |= {f"{which}_s": o.statistic(f"{metric}_{which}"), f"{which}_low_s": low, f"{which}_high_s": high}
    made = document(
        "requests",
        o.question,
        outcome=o,
        idle_gpus=o.question.gpus_there - o.num_gpus,
        offered=record(
            "requests-offered",
            offered=offered,
            kind="trace" if offered.trace is not None else "closed loop" if o.closed else "rate",
            request_rate=None if o.closed else o.offered_rate,
            concurrency=q.requests.concurrency if o.closed else None,
            input_len_mean=float(np.mean(o.stream.input_len)),
            output_len_mean=float(np.mean(o.stream.output_len)),
        ),
        utilisation=None if o.closed or isinf(o.offered_rate) else o.offered_rate / o.capacity,
        times=times,
        slo={**slo.limits, "share": slo.share(o), **sure} if slo.limits else None,
        usage=usage_of(o),
        tail={"ttft": ours, "itl": between, "words": tail_words(o)},
        notes=[*filter(None, [_saved(o)]), *limits, *remarks(o), *fixed_time_notes(o.alike)],
    )
    return made | bench_result(o, slo)


def bench_result(o: RequestsInTime, slo: Slo) -> Record:
    """Return the keys of ``vllm bench serve --save-result``. Totals are of all replicas, as rates are."""
    rate, burstiness = o.offered_rate, o.question.offered.burstiness
    limit = o.question.requests.concurrency if o.closed else o.max_in_flight
    row = record(
        "requests-bench",
        question=o.question,
        outcome=o,
        request_rate="inf" if o.closed or isinf(rate) else rate,
        burstiness=burstiness if isfinite(burstiness) else "inf",
        max_concurrency=int(limit) if isfinite(limit) else None,
        failed=0,
        total_input_tokens=round(o.stream.input_len.sum() / o.share),
        total_output_tokens=round(o.stream.output_len.sum() / o.share),
        request_goodput=slo.goodput(o) if slo.limits else None,
        total_token_throughput=o.tokens_per_s + o.input_tokens_per_s,
    )
    for metric, theirs in ((key, one["bench"]) for key, one in TIMES.items() if "bench" in one):
        row |= {f"{MEDIAN.get(s, s)}_{theirs}_ms": 1e3 * o.statistic(f"{metric}_{s}") for s in (*STATISTICS, "std")}
    return row


def sweep_document(s: RequestSweep, slo: Slo) -> Record:
    """Return what ``simulate --sweep … --json`` prints: a record with vLLM's keys in ``runs`` for each point."""
    first, knee, most, runs = s.outcomes[0], s.knee, s.most(slo), list[Record]()
    for value, o in zip(s.values, s.outcomes, strict=True):
        judged: Record = {"source": "predicted", "overloaded": o.overloaded, "share": slo.share(o) if slo.limits else None}
        runs.append({s.name: value, **bench_result(o, slo), **judged})
    return document(
        "requests-sweep",
        first.question,
        sweep=s,
        knee=None if knee is None else s.values[knee],
        most=None if most is None else s.values[most],
        runs=runs,
        notes=[*(note for note in first.notes if note.code == OWN_LIMITS), *remarks(first)],
    )


def show_sweep(console: Console, s: RequestSweep, slo: Slo) -> None:
    """Show the knee and the capacity in a sentence, then one line a point."""
    say_limits(console, s.outcomes[0].notes)
    unit = rate_words if s.name == LOADS[0] else partial(plural, noun="client")
    parts = [f"the capacity is {rate_words(s.capacity)}"]
    if s.knee is not None:
        parts.append(f"the knee {unit(s.values[s.knee])}, where throughput over latency is greatest")
    if slo.limits:
        most = s.most(slo)
        parts.append("no point meets the SLO" if most is None else f"the SLO is met up to {unit(s.values[most])}")
    say(console, f"{parts[0][0].upper()}{parts[0][1:]}, {', '.join(parts[1:])}" if parts[1:] else parts[0], ANSWER)
    say_question(console, s.outcomes[0].question, gpus=fleet_words(s.outcomes[0]))
    met, rows = [">SLO met"] * bool(slo.limits), list[list[str]]()
    for at, (value, o) in enumerate(zip(s.values, s.outcomes, strict=True)):
        times = [format_seconds(x) if np.isfinite(x := o.statistic(name)) else "–" for name in SWEPT]
        kept, mark = [f"{slo.share(o):.1%}" for _ in met], "overloaded" if o.overloaded else "the knee" if at == s.knee else ""
        rows.append([f"{value:,.4g}", *times, f"{o.requests_per_s:,.2f}", f"{o.tokens_per_s:,.0f}", *kept, mark])
    columns = (f">{s.title}", *(f">{title}" for title in SWEPT.values()), ">answered/s", ">tokens/s out", *met, "")
    show_table(console, columns, rows, EXPENDABLE)
    notes(console, remarks(s.outcomes[0]))


def plot_sweep(s: RequestSweep, path: Path | None) -> "Figure":
    """Latency against rate: TTFT and times between tokens, mean and p99 with their ranges, the knee and the capacity marked."""

    def draw(figure: "Figure") -> None:
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
            axes.set(xscale="log", xlabel=s.title, ylabel=title)
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

    return picture(path, draw, size=(11, 4.8))


def plot_outcome(o: RequestsInTime, path: Path | None) -> "Figure":
    """Plot times between tokens as a histogram, and the distribution of first tokens with what passes in the queue."""

    def draw(figure: "Figure") -> None:
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
        for index, (name, label) in enumerate((("ttft_s", "TTFT"), ("queue_s", "of it in the queue"))):
            values = np.sort(o.columns[name][o.counted])
            share, look = np.arange(1, len(values) + 1) / len(values), ("-", "--")[index]
            right.plot(values, share, label=label, color=COLOURS[index], linestyle=look, drawstyle="steps-post")
        for which, height in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            at = o.statistic(f"ttft_{which}"), height
            right.plot(*at, "o", color=COLOURS[0], markersize=5)
            words = f"{which} {format_seconds(at[0])}"
            right.annotate(words, at, xytext=(7, -10), textcoords="offset points", fontsize=8)
        format_time_axis(right, "x")
        low, high = right.get_xlim()
        xlim = low, high * (high / low) ** 0.15
        right.set(xlabel="time to first token", ylabel="share of requests", ylim=(0, 1.02), xlim=xlim)
        right.grid(alpha=0.25)
        right.legend(fontsize=8, frameon=False, loc="lower right")

    return picture(path, draw, size=(11, 4.8))


MANNERS = {
    "RequestsInTime": Manner[RequestsInTime](
        lambda console, o: show_outcome(console, o, Slo()),
        lambda o: outcome_document(o, Slo()),
        lambda o: [dict(zip(o.columns, row, strict=True)) for row in zip(*o.columns.values(), strict=True)],
        plot_outcome,
    ),
}
