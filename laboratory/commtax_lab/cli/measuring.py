"""Live runs for a terminal: what was measured beside what was predicted, and sweeps in nccl-tests' columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commtax.report.drawing import Console
from commtax.report.plots import picture, style
from commtax.report.tables import notes, say, show_table
from commtax.units import format_bytes, format_seconds, plural
from commtax_lab.measure.live_documents import CollectivesDocument, CollectiveTime, FittedCollective, MachineProfile, TpDocument
from commtax_lab.measure.study.study_documents import ForeseenLatency, ForeseenRun, LessonsDocument, ServedRun, ServingDocument


def show_tp(console: Console, d: TpDocument) -> None:
    """Show the proof (weights, collectives, logits), then times, then the bill line by line."""
    where = f"{d['tp_size']} ranks, {d['impl']}" + (f" with {d['emulated_link']} emulated" if d["emulated_link"] else "")
    say(console, f"{d['model']} ({d['weights_source']} weights, {d['dtype']}) on {d['device']}: TP {d['tp_size']}, {where}", "bold")
    lengths = f"{d['input_len']} prompt tokens, {d['output_len']} output tokens"
    say(console, f"batch {d['batch']}, {lengths}; load {d['load'][0]:.1f}", "dim")
    _show_ranks(console, d)
    _show_counts(console, d)
    if d["max_logit_diff"] is None:
        _say_verdict(console, None, "logits (no TP=1 run to compare with)")
    else:
        text = f"logits differ from TP=1's by {d['max_logit_diff']:.2e} at most (tolerance {d['logit_tolerance']:.2e})"
        _say_verdict(console, d["logits_equal"], f"{text}; {d['same_tokens']} of {d['steps']} tokens the same")
    _show_times(console, d)
    _show_bill(console, d)
    source = [f"predicted from: {d['predicted']['source']}"] if d["predicted"] else []
    notes(console, [*source, *d["notes"]])


def _say_verdict(console: Console, good: bool | None, text: str) -> None:
    word, style = {True: ("equal", "green"), False: ("NOT EQUAL", "bold red"), None: ("not compared", "dim")}[good]
    say(console, f"{word}: {text}", style)


def _show_ranks(console: Console, d: TpDocument) -> None:
    rows = []
    for r in d["ranks"]:
        copies = ", ".join(f"{part} {format_bytes(n)}" for part, n in r["replicated"].items())
        sizes = (format_bytes(r["weights_bytes"]), format_bytes(r["predicted_weights_bytes"]), copies, format_bytes(r["kv_bytes"]))
        rows.append((str(r["rank"]), *sizes, f"{r['kv_blocks']} x {r['block_size']}", ",".join(map(str, r["cores"]))))
    columns = ("rank", ">weights", ">predicted", "replicated beyond an equal share", ">KV", ">blocks", "cores")
    show_table(console, columns, rows)
    w = d["weights"]
    counted = f"all ranks' weights, replicated ones counted once, {w['sum_once_bytes']:,} bytes; TP=1 {w['tp1_bytes']:,}"
    _say_verdict(console, w["equal"], counted)


def _show_counts(console: Console, d: TpDocument) -> None:
    c = d["collectives"]
    counts = [{(r["phase"], r["what"], r["op"], r["nbytes"]): r["count"] for r in rows} for rows in (c["measured"], c["predicted"])]
    kinds = dict.fromkeys((*counts[0], *counts[1]))
    lines = [(*kind[:3], format_bytes(kind[3]), *(str(count.get(kind, "none")) for count in counts)) for kind in kinds]
    if lines:
        show_table(console, ("step", "what", "collective", ">tensor", ">counted", ">predicted"), lines)
    _say_verdict(console, c["equal"], "every collective of every step on every rank, in bytes and count, with commtax traffic")


def _show_times(console: Console, d: TpDocument) -> None:
    rows: list[tuple[str, ...]] = []
    many, p = d["tp_size"], d["predicted"]
    one = ("TP=1, one rank", d.get("tp1") if many > 1 else None, p.get("tp1_ms") if p else None)
    runs = (one, (f"TP={many}", d["tp"], p["tp_ms"] if p else None))
    for name, t, guess in runs:
        if t:
            spread = "{:.3g} - {:.3g}".format(*t["spread_ms"])
            rate = f"{d['batch'] / t['ms_per_token'] * 1e3:,.1f}"
            error = (f"{guess:.3g}", f"{guess / t['own_ms'] - 1:+.0%}") if guess else ("", "")
            steps = (f"{t['waiting_ms']:.3g}", f"{t['own_ms']:.3g}", *error)
            rows.append((name, f"{t['ms_per_token']:.3g}", spread, *steps, f"{t['prefill_ms']:.3g}", rate))
    r = d.get("replicas")
    if r:
        rate = f"{r['tokens_per_s']:,.1f}"
        rows.append((f"{r['replicas']} x TP=1 at once", f"{r['ms_per_token']:.3g}", *[""] * 6, rate))
    compared = (">waiting", ">without it", ">predicted", ">error")
    show_table(console, ("run", ">ms per token", ">least - most", *compared, ">prefill ms", ">tokens/s"), rows)
    t = d["tp"]
    if "slowest_rank" in t:
        each = ", ".join(f"{c['what']} {c['wire_us']:.0f} µs" for c in t["collectives"])
        say(console, f"on the wire (least over ranks): {each}; together {t['wire_ms_per_token']:.3g} ms per token")
        waits = ", ".join(f"rank {i} {w:.3g} ms" for i, w in enumerate(t["waited_ms_per_token"]))
        say(console, f"waiting for others: {waits} per token; rank {t['slowest_rank']} is the slowest and sets the pace")
    _show_weight_read(console, d)
    if r:  # latency or throughput: who wins at this batch
        one_ms, many_ms = d["tp1"]["ms_per_token"], d["tp"]["ms_per_token"]
        sooner = f"TP={many} gives each token {one_ms / many_ms:.2f}x as fast as TP=1"
        gain = r["tokens_per_s"] / (d["batch"] / many_ms * 1e3)
        more = f"{r['replicas']} replicas give {gain:.2f}x the tokens/s of TP={many}"
        say(console, f"{sooner}; {more} (each replica with a batch of its own, and the whole weights)", "bold")


def _show_weight_read(console: Console, d: TpDocument) -> None:
    """Show the physical floor of a token, where this machine's memory was measured."""
    w = d["weight_read"]
    if w["bound_ms"] is None or w["memory_Bps"] is None:
        say(console, f"each token reads {format_bytes(w['bytes'])} of weights on each rank")
        return
    bound = f"reading {format_bytes(w['bytes'])} of weights at {w['memory_Bps'] / 1e9:,.1f} GB/s takes {w['bound_ms']:.3g} ms"
    say(console, f"{bound}: TP={d['tp_size']} without waiting runs at {w['attained']:.0%} of that bound")


def _show_bill(console: Console, d: TpDocument) -> None:
    rows = []
    for row in sorted(d["bill"], key=lambda r: -(r["measured_s"] or r["predicted_s"] or 0.0)):
        p, m = row["predicted_s"], row["measured_s"]
        error = f"{p / m - 1:+.0%}" if p is not None and m else ""
        shown = ("" if p is None else format_seconds(p), "" if m is None else format_seconds(m))
        rows.append((row["item"], row["kind"], *shown, error))
    show_table(console, ("line of a decode step", "kind", ">predicted", ">measured", ">error"), rows)


_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")


def show_collectives(console: Console, d: CollectivesDocument) -> None:
    """Print rows in nccl-tests' layout, which tools that read its output can read, then a fit for each group."""
    name = d["op"].replace("-", "_")
    for f in d["fits"]:
        rows = _rows_of_fit(d, f)
        link = f", {d['emulated_link']} emulated on top" if d["emulated_link"] else ""
        say(console, f"# {name}_perf: {f['impl']}, {f['ranks']} ranks on this machine{link}", "bold")
        for rank in range(f["ranks"]):
            say(console, f"#  Rank {rank:2d} Group  0")
        for names in (_COLUMNS, _UNITS):
            say(console, "# {:>11} {:>12} {:>8} {:>7} {:>5} {:>10} {:>8} {:>8} {}".format(*names).rstrip())
        for r in rows:
            redop = "sum" if d["op"] == "all-reduce" else "none"
            what = f"{r['size_bytes']:>13} {r['count']:>12} {r['type']:>8} {redop:>7} {'-1':>5}"
            say(console, f"{what} {r['time_us']:>10.2f} {r['algbw_GBps']:>8.2f} {r['busbw_GBps']:>8.2f} {r['wrong']:>7}")
        rate = f"{f['bandwidth_GBps']:.2f} GB/s" if f["bandwidth_GBps"] else "no measurable bandwidth"
        off = f"off by {f['median_residual']:.0%} at the median, {f['max_residual']:.0%} at most"
        say(console, f"# fit: {f['alpha_us']:.1f} us + size / {rate}; {off}", "bold")
    for ranks in dict.fromkeys(r["ranks"] for r in d["rows"]):  # implementations beside each other, where several were run
        times = {(r["impl"], r["size_bytes"]): r["time_us"] for r in d["rows"] if r["ranks"] == ranks}
        both = [n for impl, n in times if impl == "shm" and ("gloo", n) in times]
        if both:
            ratios = [f"{format_bytes(n)} {times['gloo', n] / times['shm', n]:.1f}x" for n in both]
            say(console, f"# shm against gloo on {ranks} ranks: {', '.join(ratios)}")
    notes(console, d["notes"])


def _rows_of_fit(d: CollectivesDocument, fit: FittedCollective) -> list[CollectiveTime]:
    return [r for r in d["rows"] if (r["impl"], r["ranks"]) == (fit["impl"], fit["ranks"])]


def plot_collectives(d: CollectivesDocument, path: Path) -> None:
    """Plot time over size on logarithmic axes, a line for each implementation and group, fits dashed."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for index, f in enumerate(d["fits"]):
            rows, label = _rows_of_fit(d, f), f"{f['impl']}, {f['ranks']} ranks"
            sizes, times = [r["size_bytes"] for r in rows], [r["time_us"] for r in rows]
            axes.plot(sizes, times, **style(index, linestyle="", label=label))
            slope = 1e-3 / f["bandwidth_GBps"] if f["bandwidth_GBps"] else 0.0
            axes.plot(sizes, [f["alpha_us"] + slope * n for n in sizes], **style(index, marker=""))
        axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)", ylabel="time (µs)")
        axes.set_title(f"{d['op']} on this machine; lines: alpha + size x beta", loc="left", fontsize=11)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=9)

    picture(path, draw)


def show_profile(console: Console, profile: MachineProfile, path: str) -> None:
    """Show what calibration measured, in one table."""
    chip = profile["chip"]
    say(console, f"{profile['name']}: written to {path}", "bold")
    sources = profile["sources"]
    rows = [("memory, read by one rank", f"{chip['memory_Bps'] / 1e9:.1f} GB/s", sources["memory_Bps"])]
    for dtype, rate in chip["flops_per_s"].items():
        rows.append((f"matrix product, {dtype}", f"{rate / 1e9:,.0f} GFLOP/s", sources["flops_per_s"]))
    for form, constants in profile["kernels"]["tables"].items():
        if "t0" in constants:
            rows.append((f"fixed cost, {form}", format_seconds(constants["t0"]), sources["kernels"]))
    for library in profile["libraries"]:
        for p in library["paths"]:
            cost = f"{format_seconds(p['launch_s'] + p.get('hop_s', 0.0))} + {p['bandwidth_Bps'] / 1e9:.2f} GB/s"
            rows.append((f"{library['name']} {p['op']}", cost, p["source"]))
    show_table(console, ("what", ">measured", "how"), rows)
    notes(console, [f"commtax bill MODEL --profile {path} -tp 2 predicts this machine"])


_SERVED = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E", "queue": "queue"}
_WHO = ("measured", "predicted")
_DISTURBED = 0.15  # steps that took longer than this beyond what they took when timed


def show_serving(console: Console, d: ServingDocument) -> None:
    """Show the requests served at each rate, measured beside predicted."""
    what = f"{d['model']} ({d['weights_source']} weights, {d['dtype']}) on {d['device']}: TP {d['tp_size']}"
    say(console, f"{what}, at most {d['max_num_seqs']} requests at once; load {d['load'][0]:.1f}", "bold")
    say(console, f"by the steps timed here it can serve {d['most_requests_per_s']:.3g} requests/s", "dim")
    for run in d["runs"]:
        _show_rate(console, run, run["request_rate"] / d["most_requests_per_s"])
    notes(console, d["notes"])


def _show_rate(console: Console, run: ServedRun, share: float) -> None:
    """Show the times and tokens of one rate, with a warning where the machine was busy with something else."""
    keys = {f"{name}, {s}": f"{s}_{metric}_ms" for metric, name in _SERVED.items() for s in ("mean", "median", "p90", "p99")}
    both = (run["measured"], run["predicted"])
    rows = [(name, *(format_seconds(float(one[key]) * 1e-3) for one in both), _error_text(run, key)) for name, key in keys.items()]
    rate = ("output tokens/s", *(f"{one['output_throughput']:.4g}" for one in both), _error_text(run, "output_throughput"))
    title = f"{run['request_rate']:.3g} requests/s, {share:.0%} of that: {run['measured']['num_prompts']} requests"
    show_table(console, ("", *(f">{who}" for who in _WHO), ">error"), [*rows, rate], title=title)
    if abs(run["steps_over_timed"] - 1) > _DISTURBED:
        times = f"{run['steps_over_timed']:.2f} times what the same steps took when they were timed"
        left = ", ".join(f"{_SERVED[m]} {run['errors_at_its_pace'][f'mean_{m}_ms']:+.0%}" for m in ("ttft", "tpot", "e2el"))
        say(console, f"while it served, its steps took {times}: this machine was busy with something else", "bold")
        say(console, f"with steps that long the means would be off by {left}", "bold")


def _error_text(run: ServedRun, key: str) -> str:
    """Format the prediction's error, "" where nothing was measured."""
    return f"{run['errors'][key]:+.0%}" if key in run["errors"] else ""


_BUSY = 1.3  # times the ranks' own time from which others took part of the machine
NAMES = {"tpot": "TPOT", "ttft": "TTFT"}


def show_lessons(console: Console, d: LessonsDocument, out: str = "") -> None:
    """Show which runs taught, then each latency of the other runs and how far off its predictions are."""
    engine = "" if d["engine"] == "builtin" else f"{d['engine']}, "
    where = f"{engine}{d['model']} ({d['dtype']}, TP {d['tp_size']}) on {d['device']}"
    say(console, f"{where}: {plural(len(d['shown']), 'run')} calibrated, {len(d['foreseen'])} predicted", "bold")
    say(console, f"shown: {'; '.join(d['shown'])} tokens", "dim")
    for metric in NAMES:
        head, rows = foreseen_columns(d["foreseen"], metric)
        show_table(console, (head[0], *(f">{name}" for name in head[1:-1]), head[-1]), rows)
        say(console, errors_text(d["errors"], metric))
    notes(console, _remarks(d, out))


def foreseen_columns(foreseen: Sequence[ForeseenRun], metric: str) -> tuple[list[str], list[list[str]]]:
    """Return the column names and rows of one latency of all runs that were predicted."""
    head = [f"{NAMES[metric]} of others", "measured", "before", "error", "after", "error", "80 % range", ""]
    return head, [[run["load"], *_cells(run[metric])] for run in foreseen]  # type: ignore[literal-required]


def errors_text(errors: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Say in a sentence how far the predictions of a metric are off."""
    one = errors[metric]
    medians = f"median error {one['median_before']:.1%} before any run, {one['median_after']:.1%} after"
    return f"{NAMES[metric]}: {medians}; {one['covered']:.0%} inside the 80 % range"


def _cells(one: ForeseenLatency) -> tuple[str, ...]:
    low, high = (format_seconds(one[end] * 1e-3) for end in ("low_ms", "high_ms"))
    return (
        format_seconds(one["measured_ms"] * 1e-3),
        format_seconds(one["before_ms"] * 1e-3),
        f"{one['error_before']:+.0%}",
        format_seconds(one["after_ms"] * 1e-3),
        f"{one['error_after']:+.0%}",
        f"{low} to {high}",
        "inside" if one["covered"] else "outside",
    )


def _remarks(d: LessonsDocument, out: str) -> list[str]:
    times = f"timed by {d['clock']}; rounds of one load differ by {d['scatter']:.0%}"
    busy = [f"others used this machine: runs took {d['wall_over_clock']:.1f} times their own time, which is not in the figures"]
    written = [f"written to {out}: commtax simulate MODEL --profile {out} predicts other loads of this machine"]
    return [times, *(busy if d["wall_over_clock"] > _BUSY else []), *d["refused"], *(written if out else [])]
