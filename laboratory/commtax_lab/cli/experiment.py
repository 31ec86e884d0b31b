"""The tensor-parallel study as a report: metrics with predictions beside, charts, flags and answers; one machine or several."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from commtax.report.drawing import Console
from commtax.report.plots import COLOURS, picture, style
from commtax.report.tables import notes, say, show_table
from commtax.units import format_bytes, format_seconds
from commtax_lab.cli.measuring import NAMES, errors_text, foreseen_columns
from commtax_lab.measure.study.study_documents import Check, Degree, StudyDocument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MetricLine = tuple[str, str, str, str]  # metric, degree, measured, predicted


def metrics(d: StudyDocument) -> Iterator[MetricLine]:
    """Yield the lines of the study's table of metrics, one for each degree."""
    for row in d["degrees"]:
        tp = f"TP={row['tp']}"
        if row["decode_ms"] is not None:
            what = f"decode latency, batch 1, {row['decode_len']} cached"
            yield what, tp, _ms_text(row["decode_ms"]), _ms_text(row["decode_predicted_ms"])
        for p in row["prefill"]:
            yield f"prefill latency, {p['input_len']} tokens", tp, _ms_text(p["ms"]), _ms_text(p["predicted_ms"])
        for x in row["latency"]:
            what = f"whole request, {x['input_len']} in, {x['output_len']} out"
            yield what, tp, f"{_ms_text(x['ms'])} ± {x['spread']:.0%}", _ms_text(x["predicted_ms"])
        yield from _profile_lines(row, tp)
        yield from _serving_lines(row, tp)
        if "offline" in row:
            o = row["offline"]
            yield "offline throughput", tp, f"{o['requests_per_s']:.3g} req/s, {o['total_tokens_per_s']:,.0f} tok/s in and out", ""
    for cross in d["crossover"]:
        yield "crossover batch", f"TP={cross['tp']}", _batch_text(cross["batch"]), _batch_text(cross["predicted_batch"])


def metric_columns(d: StudyDocument) -> tuple[list[str], list[list[str]]]:
    """Return the head and lines of the metrics, with a pair of columns for each degree."""
    lines = list(metrics(d))
    cells = {(metric, tp): [measured, predicted] for metric, tp, measured, predicted in lines}
    degrees = list(dict.fromkeys(tp for _, tp, _, _ in lines))
    head = ["metric", *(word for tp in degrees for word in (tp, "predicted"))]
    names = dict.fromkeys(metric for metric, _, _, _ in lines)
    return head, [[m, *(cell for tp in degrees for cell in cells.get((m, tp), ["", ""]))] for m in names]


def _ms_text(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g} ms"


def _batch_text(value: int | None) -> str:
    return "none" if value is None else str(value)


def _profile_lines(row: Degree, tp: str) -> Iterator[MetricLine]:
    p = row.get("profile")
    if not p:
        return
    priced, share = "predicted_allreduces" in p, p.get("predicted_comm_fraction")
    yield "all-reduces per decode step", tp, f"{p['allreduces']:g}", f"{p['predicted_allreduces']:g}" if priced else ""
    if p["allreduce_bytes"]:
        guess = format_bytes(size) if (size := p.get("predicted_bytes")) else ""
        yield "all-reduce size", tp, format_bytes(p["allreduce_bytes"]), guess
    if p["allreduce_s"]:
        guess = format_seconds(seconds) if (seconds := p.get("predicted_s")) else ""
        yield "all-reduce duration (wire)", tp, format_seconds(p["allreduce_s"]), guess
    yield "communication fraction", tp, f"{p['comm_fraction']:.1%}", "" if share is None else f"{share:.1%}"


def _serving_lines(row: Degree, tp: str) -> Iterator[MetricLine]:
    s = row.get("serve")
    if not s:
        return
    guess = (_ms_text(s.get("predicted_ttft_ms")), _ms_text(s.get("predicted_tpot_ms")))
    yield f"TTFT p50, {s['asked_per_s']:g} req/s", tp, _ms_text(s["ttft_p50_ms"]), guess[0]
    yield "TTFT p99", tp, _ms_text(s["ttft_p99_ms"]), ""
    yield "TPOT p50, serving", tp, _ms_text(s["tpot_p50_ms"]), guess[1]
    rates = f"{s['output_tokens_per_s']:,.1f} tok/s out, {s['requests_per_s']:.2f} req/s, {s['concurrency']:.1f} at once"
    yield "serving throughput", tp, rates, ""


def batch_scaling(d: StudyDocument) -> tuple[list[str], list[list[str]]]:
    """Return the head and lines of tokens per second by degree and batch, with the gain over TP=1."""
    ratios = {(c["tp"], r["batch"]): f"{r['ratio']:.2f}x" for c in d["crossover"] for r in c["ratios"]}
    head, columns = ["batch"], []
    batches = sorted({b["batch"] for row in d["degrees"] for b in row["batches"]})
    for row in d["degrees"]:
        runs = {b["batch"]: b for b in row["batches"]}
        head += [f"TP={row['tp']} latency, ms", f"TP={row['tp']} tok/s (predicted)"]
        columns.append([f"{runs[n]['latency_ms']:,.4g} ± {runs[n]['spread']:.0%}" if n in runs else "" for n in batches])
        guesses = {n: f" ({b['predicted_tokens_per_s']:,.0f})" for n, b in runs.items() if b["predicted_tokens_per_s"]}
        columns.append([f"{runs[n]['tokens_per_s']:,.1f}{guesses.get(n, '')}" if n in runs else "" for n in batches])
        if row["tp"] > 1 and d["crossover"]:
            head.append("over TP=1")
            columns.append([ratios.get((row["tp"], n), "") for n in batches])
    return head, [list(line) for line in zip(map(str, batches), *columns, strict=True)]


def title(d: StudyDocument) -> str:
    engine = d["version"] if d["engine"] == "builtin" else f"vLLM {d['version']}"
    return f"{d['model']} ({d['dtype']}), {d['engine']} engine ({engine}), {d['box']}"


def show(console: Console, boxes: Sequence[StudyDocument], folder: Path) -> None:
    """Print the report on a terminal: checks, metrics, batches, flags, answers."""
    for d in boxes:
        say(console, f"TP study{' (quick)' if d['quick'] else ''}: {title(d)}", "bold")
        for c in d["checks"]:
            word = {True: "ok", False: "NO", None: "--"}[c["ok"]]
            say(console, f"{word}  {c['check']}: {c['found']}", {True: "green", False: "bold red", None: "dim"}[c["ok"]])
        for first, (head, lines) in (("", metric_columns(d)), (">", batch_scaling(d))):
            if lines:
                show_table(console, (first + head[0], *(f">{name}" for name in head[1:])), lines)
        for a in d["answers"]:
            say(console, a["question"], "bold")
            say(console, a["answer"])
        for f in d["flags"]:
            say(console, f"suspicious: {f['what']}: {f['why']}", "bold")
        notes(console, [_source(d)])
    notes(console, [f"report, charts and raw results: {folder}"])


def markdown(boxes: Sequence[StudyDocument], charts: Sequence[str]) -> str:
    """Return the report as a Markdown page."""
    parts = [f"# Tensor-parallel study: {', '.join(dict.fromkeys(d['model'] for d in boxes))}", ""]
    if len(boxes) > 1:  # several machines: the same metrics in columns
        columns = [{(metric, tp): measured for metric, tp, measured, _ in metrics(d)} for d in boxes]
        lines = [[*key, *(box.get(key, "") for box in columns)] for key in dict.fromkeys(key for box in columns for key in box)]
        parts += ["## All machines", "", *_table(["metric", "degree", *(d["box"] for d in boxes)], lines), ""]
    for chart in charts:
        parts += [f"![{Path(chart).stem.replace('-', ' ')}]({chart})", ""]
    for d in boxes:
        parts += _box(d)
    return "\n".join(parts).rstrip() + "\n"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = "|".join(["---", *("---:" for _ in head[1:])])
    cells = ([x.replace("|", "\\|") for x in line] for line in lines)
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in cells)]


def _box(d: StudyDocument) -> list[str]:
    kind = "quick: small counts, short lengths" if d["quick"] else "in full"
    parts = [f"## {title(d)}", "", f"Recipe `{d['recipe']}`, {kind}. Serving requests: {d['serving_lengths']} lengths.", ""]
    applied: list[Check] = [{"check": f"TP={row['tp']} applied", **row["applied"]} for row in d["degrees"]]
    decided = {True: "ok", False: "**no**", None: ""}
    parts += [
        "### Set-up",
        "",
        *_table(["check", "", "found"], [[c["check"], decided[c["ok"]], c["found"]] for c in (*d["checks"], *applied)]),
        "",
    ]
    parts += ["### Metrics", "", *_table(*metric_columns(d)), ""]
    parts += [_source(d), ""]
    if any(row["batches"] for row in d["degrees"]):
        parts += ["### Batch scaling", "", *_table(*batch_scaling(d)), ""]
    if lessons := d.get("lessons"):
        parts += ["### Three runs teach, the others are predicted", "", f"Shown: {'; '.join(lessons['shown'])} tokens.", ""]
        for metric in NAMES:
            parts += [*_table(*foreseen_columns(lessons["foreseen"], metric)), "", f"{errors_text(lessons['errors'], metric)}.", ""]
    parts += ["### The four questions", ""]
    for number, a in enumerate(d["answers"], 1):
        parts += [f"**{number}. {a['question']}** {a['answer']}", ""]
    parts += ["### Suspicious results", ""]
    parts += [f"* **{f['what']}**: {f['why']}" for f in d["flags"]] or ["None."]
    if d["missing"]:
        parts += ["", f"Not run yet: {', '.join(d['missing'])}."]
    return [*parts, ""]


def _source(d: StudyDocument) -> str:
    """Say where the predictions come from, or why there are none."""
    if not d["predicted_from"]:
        return f"No time is predicted: {d.get('no_prediction') or 'name the --cluster'}."
    return f"Predicted from: {'; '.join(d['predicted_from'])}" + (f" (profile {d['profile']})." if d["profile"] else ".")


def charts(boxes: Sequence[StudyDocument], folder: Path) -> list[str]:
    """Draw batch scaling and latency by degree beside the report, where matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return []
    names = []
    rows = [row for d in boxes for row in d["degrees"]]
    batches, decode = any(row["batches"] for row in rows), any(row["decode_ms"] for row in rows)
    for needed, name, draw in (batches, "batch-scaling.svg", _draw_batches), (decode, "latency-by-degree.svg", _draw_latency):
        if needed:
            picture(folder / name, partial(draw, boxes=boxes), (10, 4.2))
            names.append(name)
    return names


def _draw_batches(figure: "Figure", boxes: Sequence[StudyDocument]) -> None:
    """Draw tokens per second and latency over the batch, with predictions thin and dotted."""
    left, right = figure.subplots(1, 2)
    series = [(d, row) for d in boxes for row in d["degrees"] if row["batches"]]
    for index, (d, row) in enumerate(series):
        label = f"TP={row['tp']}" + (f", {d['box']}" if len(boxes) > 1 else "")
        batches, xs = row["batches"], [b["batch"] for b in row["batches"]]
        rates = [b["tokens_per_s"] for b in batches], [b["predicted_tokens_per_s"] for b in batches]
        times = [b["latency_ms"] for b in batches], [b["predicted_latency_ms"] for b in batches]
        for axes, (seen, guess) in ((left, rates), (right, times)):
            axes.plot(xs, seen, **style(index, label=label))
            if all(guess):
                axes.plot(xs, guess, linewidth=1, **style(index, marker="", linestyle=":", label=f"{label} predicted"))
    for axes, name in ((left, "output tokens per second"), (right, "latency of the batch (ms)")):
        axes.set(xlabel="batch (sequences)", ylabel=name, xscale="log", yscale="log")
        axes.set_xticks(sorted({b["batch"] for _, row in series for b in row["batches"]}), minor=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.grid(True, alpha=0.3)
    left.legend(fontsize=8)


def _draw_latency(figure: "Figure", boxes: Sequence[StudyDocument]) -> None:
    """Draw bars of decode, prefill and TTFT under load by degree, with predictions as black marks."""
    panels = figure.subplots(1, 3)
    bars = [(d, row) for d in boxes for row in d["degrees"]]
    labels = [f"TP={row['tp']}" + (f"\n{d['box']}" if len(boxes) > 1 else "") for d, row in bars]
    kinds: tuple[tuple[str, Callable[[Degree], tuple[float | None, float | None]]], ...] = (
        ("decode, ms per token", lambda r: (r["decode_ms"], r["decode_predicted_ms"])),
        ("prefill, ms", lambda r: (r["prefill"][0]["ms"], r["prefill"][0]["predicted_ms"]) if r["prefill"] else (None, None)),
        ("TTFT p50 under load, ms", lambda r: (r["serve"]["ttft_p50_ms"], None) if "serve" in r else (None, None)),
    )
    colours = [COLOURS[row["tp"].bit_length() % len(COLOURS)] for _, row in bars]
    for axes, (name, pick) in zip(panels, kinds, strict=True):
        values = [pick(row) for _, row in bars]
        axes.bar(range(len(bars)), [v or 0 for v, _ in values], color=colours)
        marks = [(i, g) for i, (_, g) in enumerate(values) if g]
        axes.plot([i for i, _ in marks], [g for _, g in marks], linestyle="", marker="_", markersize=24, color="black")
        axes.set_xticks(range(len(bars)), labels, fontsize=8)
        axes.set_title(name, fontsize=10, loc="left")
        axes.grid(True, axis="y", alpha=0.3)
