"""Write docs/accuracy.md, accuracy-rows.md, their pictures and the README's table from validate's own result and ``rivals.toml``:
``python benchmarks/documents/accuracy.py [DATA_DIR]``, or with the README's pictures ``make figures``.

With DATA_DIR the figures of the larger tables stand beside those of the table that ships, and the pictures show them.
"""

# ruff: noqa: E501 - tables of the page stand as they are printed
from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from textwrap import wrap

from commtax_lab.report.validation import figure_cells, limit_text, plot_kinds, quantity, value_text
from commtax_lab.scoring import Report, check
from commtax_lab.scoring.scoreboard import ScoreLine, score_lines, transfer_folds
from commtax_lab.scoring.statistics import groups, skipped_reasons, worst_misses

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
RIVALS_FILE = Path(__file__).with_name("rivals.toml")
BEGIN, END = "<!-- figures: made by make figures -->", "<!-- end of figures -->"
WIDTH = 100  # of prose
LEAST_ROWS = 5  # of a line among errors by source
PICTURES = {
    "collectives": ("all-reduce", "all-gather", "all-to-all"),
    "kernels": ("gemm", "decode-attention", "prefill-attention"),
    "steps": ("decode-step", "prefill-step", "decode-rate"),
    "runs": ("tpot", "ttft", "training-step"),
}
INTRO = """
Made by `benchmarks/documents/accuracy.py` from what `commtax validate` finds. Every figure is on rows that no constant was fitted on, unless it says so. `commtax validate` prices
the table of published figures that ships with the project and exits with 1 when a bound is exceeded; `--data DIR` does the same with all tables of a folder and of those
in it, known by their columns; `--rows OUT.csv` writes every input row with its prediction, range, and whether it was fitted. Nothing is looked up over a network.
"""
COMPARE = """
`commtax validate --data DIR --compare rival.csv` puts another predictor beside ours on the rows that both priced: median, 90th percentile and bias of each, and on how
many rows ours is nearer, for all rows, those that nothing was fitted on, and by engine, chip, mode, dense or mixture. The file has a column `id`, as the table's
rows have it, and one or more of `ttft`, `tpot`, `e2e`, `output_throughput`, `request_throughput` … A column's name says its unit (`ttft_ms`, `tpot_s`); without one,
seconds and milliseconds are tried against what was measured and the answer says which was meant. Ids that no row has, and rows without a price, are counted.
"""
READING = """
Errors are of predicted over measured; bias is a geometric mean; `in range` is the share inside the 80 % range, `half-width` its median half-width over the prediction.
Rows launched from Python (`eager`, vidur's timers) wait for the host and for other ranks; tables of fp8 in blocks were timed without graphs and show the launch, not
the kernel; L40S keeps small weights in its cache between repetitions. PCIe hosts other than L40S, NVLink bridges and xGMI are assumed from formulas, and their ranges
say so. A serving row is scored on every figure that it has: TTFT, TPOT, latency, tokens and requests a second, of all GPUs or of one (`tput_per_gpu`); a rate follows
from Little's law, clients / (TTFT + (output - 1) TPOT); where no number of clients is said the server is full.
"""
CARE = """
Read with care: `GEMM on H200` and the whole steps are of constants fitted on half of the H200's own rows. H100's constants with the H200's memory give 5.1 % (m <= 256),
8.3 % (m >= 512), 3.1 % (decode steps) and 9.4 % (prompts). Whole steps are those of engine `fused`, which the sweep ran; `torch`, which does not fuse, is 13.8 % off on
the same decode steps. Coverage of ranges is measured on the rows that set their widths.
"""
FIRST = """
Weights, KV cache and parameter counts are arithmetic rather than estimates: parameter counts of 33 models are exact, weights are 0.02 % off 27 vLLM start-up logs, and the KV
cache is within 5 %.
"""
SAME_RUNS = """
Mean errors on the same runs, to which nothing of ours was fitted. The training rows ship: `commtax validate` finds ours. The serving rows do not: `python
benchmarks/rivals_open_loop.py DIR` finds both from the tables that the sources name. All of it is `benchmarks/documents/rivals.toml`.
"""
RIVALS = """
Every figure is on all rows of its kind, or its name says which it leaves out. Other predictors' errors stand beside ours only on the same rows: the serving tables hold
measurements and no predictions of aiconfigurator. An independent test of an earlier version on 618 runs that are not in these tables found dense TPOT 9.1 % (aiconfigurator 9.7 %), TPOT of
mixtures 15.9 % (21.7 %) and TTFT 22 % (40 %).
"""
FITTED = """
| constants | fitted on | tested on | how a row is told |
|---|---|---|---|
| collectives (`catalog/libraries`) | all-reduce, all-gather, reduce-scatter and all-to-all tables of aiconfigurator: sizes of an even power of two; send/recv of vidur likewise | odd powers; every other source | `benchmarks/fit_collectives.py`, `[[fitted]]` in each file |
| across hosts | no constant is fitted, but the formula (three link latencies a level, 95 % of the NICs, the loss of a one-level pipeline) was chosen seeing all rows | none held out | p4de, 12 x 8 H100, MI325X, 2 x 8 H20; networks that are not named or broken are outside the bound |
| kernels (`catalog/kernels`) | half of the GEMM (bf16, fp8, nvfp4) and attention tables of aiconfigurator (A100, H100, B200, L40S; B300: GEMM) | the other half | SHA-256 of the row, first byte even: `benchmarks/fit_kernels.py` |
| kernels of experts, latent, sparse and linear attention, Mamba-2, encoders, exchanges | half of aiconfigurator's newer tables (A100, H100, L40S, B200, B300, GB200) | the other half; whole chips left out | the same: `docs/kernels.md` names the scripts |
| kernels of the H200 and of engine `fused` | half of our own rows | the other half | the same, over the JSON line |
| small kernels and clock of whole steps | five models of our own sweep (Llama-3.1-8B, Llama-3.2-1B, Qwen2.5-7B and 32B, Llama-2-13B) | eight other models | by model |
| `gpt-fast` | 7 of 17 bf16 rates (Llama-2-7B, Llama-3.1-70B) | the other ten, int8 and int4 | by model |
| `vllm-2023` | times per token of Llama-2-70B at batch 1 | larger batches, prompts, BLOOM-176B | by row |
| engines' host times | serving runs with prompts up to 1,024 tokens and 1 to 8, 32 or 128 clients, five models | longer prompts, 16 and 64 clients, other models, disaggregated runs | `serving.is_fitted` |
| training | llm-foundry's bf16 rows up to 64 GPUs | larger ones, fp8, SC'21, Korthikanti, torchtitan | by row |
| widths of ranges | residuals of rows that test | the same rows | `benchmarks/fit_spreads.py`; coverage is therefore in sample, medians are not |
""".strip()


def prose(text: str) -> str:
    return "\n".join(wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False))


def scoreboard(lines: list[ScoreLine]) -> Iterable[str]:
    yield "| | | rows | median | p90 | bias | in range | half-width |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    part = ""
    for line in lines:
        if line.found:
            yield (
                f"| {'' if line.part == part else f'**{line.part}**'} | {line.name} | "
                + " | ".join(figure_cells(line.found))
                + " |"
            )
            part = line.part


def transfer() -> Iterable[str]:
    """A line for each metric and kind of models, a column for each thing that was left out."""
    folds = transfer_folds()
    if not folds:
        yield "Not measured yet."
        return
    columns = list(dict.fromkeys(fold.left_out for fold in folds))
    yield "| | " + " | ".join(f"{left_out} left out" if left_out else "nothing left out" for left_out in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for metric, models in dict.fromkeys((fold.metric, fold.models) for fold in folds):
        mine = {fold.left_out: fold for fold in folds if (fold.metric, fold.models) == (metric, models)}
        told = [f"{f.median:.1%} ({f.covered:.0%} in ±{f.half_width:.0%}; {f.n:,})" if (f := mine.get(c)) else "-" for c in columns]
        yield f"| {metric.upper()}, {models} | " + " | ".join(told) + " |"


def picture(lines: list[ScoreLine]) -> str:
    """Medians as bars, 90th percentiles as whiskers; 50 % is the right edge."""
    shown = [line for line in lines if line.found]
    step, left, scale, edge = 18, 330, 900.0, 0.5
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + scale * edge + 70:.0f}" height="{step * len(shown) + 24}" font-family="sans-serif" font-size="11">'
    ]
    for tick in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        x = left + scale * tick
        parts.append(f'<line x1="{x:.0f}" y1="4" x2="{x:.0f}" y2="{step * len(shown) + 6}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{step * len(shown) + 19}" text-anchor="middle" fill="#666">{tick:.0%}</text>')
    for i, line in enumerate(shown):
        y, median, tail = 6 + step * i, min(line.found.median_ape, edge), min(line.found.p90_ape, edge)
        parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(line.name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{scale * median:.1f}" height="11" fill="#4477aa"/>')
        parts.append(
            f'<line x1="{left + scale * median:.1f}" y1="{y + 8.5}" x2="{left + scale * tail:.1f}" y2="{y + 8.5}" stroke="#4477aa"/>'
        )
        parts.append(f'<text x="{left + scale * tail + 4:.1f}" y="{y + 12}" fill="#333">{line.found.median_ape:.1%}</text>')
    return "\n".join([*parts, "</svg>\n"])


def bounds(reports: list[Report]) -> Iterable[str]:
    heads = ["ships here", "all rows"][: len(reports)]
    yield "| bound | limit | " + " | ".join(f"{h} | rows" for h in heads) + " |"
    yield "|---|---:|" + "---:|---:|" * len(reports)
    for together in zip(*(r.bounds for r in reports), strict=True):
        first = together[0]
        cells = (f"{value_text(b)}{'' if b.ok is not False else ' **exceeded**'} | {b.n:,}" for b in together)
        yield f"| {first.name} | {limit_text(first)} | " + " | ".join(cells) + " |"


def by_source(report: Report) -> Iterable[str]:
    yield "| kind | system | library | rows | median | p90 | bias | in range | half-width |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    tested = report.records.where_true(~report.records.fitted)
    for key, value in groups(tested, ("kind", "system", "library")):
        if value.n >= LEAST_ROWS:
            names = (str(key[name]).replace("|", "/") for name in ("kind", "system", "library"))
            yield "| " + " | ".join([*names, *figure_cells(value)]) + " |"


def worst_rows(report: Report) -> Iterable[str]:
    yield "| kind | row | measured | predicted | likely reason |"
    yield "|---|---|---:|---:|---|"
    for m in worst_misses(report.records):
        yield f"| {m.kind} | {m.what} | {quantity(m.kind, m.measured)} | {quantity(m.kind, m.predicted)} | {m.reason} |"


def page(reports: list[Report], lines: list[ScoreLine]) -> str:
    parts = [
        *(
            "# How right is it?",
            prose(INTRO),
            "```sh\ncommtax validate --only collectives\ncommtax validate --only inference --json\n```",
        ),
        "## At home",
        prose(
            f"Rows of {'all tables' if len(reports) > 1 else 'the table that ships'} that nothing was fitted on; other rows of most of their engines and chips were. "
            "Serving runs that may have guessed tokens ahead are left out."
        ),
        "\n".join(scoreboard(lines)),
        prose(FIRST),
        "![medians and 90th percentiles](accuracy-scoreboard.svg)",
        "## Abroad",
        prose(
            "A whole engine, chip or family of models left out of the fits, and then predicted: what a user with an unseen case may expect. Medians of errors; in brackets the share of rows inside the 80 % range, its median half-width, and how many rows. Runs that may have guessed tokens ahead are left out."
        ),
        "\n".join(transfer()),
        *("## Bounds", "\n".join(bounds(reports))),
        prose(
            "Errors of every source, system and library, the worst rows, and what is not priced: [accuracy-rows.md](accuracy-rows.md)."
        ),
        *("## Beside other predictors", prose(SAME_RUNS), "\n".join(rival_rows(reports[0], sources=True)), prose(COMPARE)),
        *("## Pictures", "Predicted over measured; dotted lines are 25 % off. Crosses were fitted."),
        *(f"![{name}](accuracy-{name}.svg)" for name in PICTURES),
        *("## What was fitted on what", FITTED, prose(CARE)),
        prose(
            "Kernels of experts, latent, sparse and linear attention, by kind and chip and with a chip left out: [kernels.md](kernels.md)."
        ),
        *("## How to read it", prose(READING), prose(RIVALS)),
    ]
    return "\n\n".join(parts) + "\n"


def rows_page(report: Report) -> str:
    rows, priced = (sum(x) for x in zip(*report.files.values(), strict=True))
    reasons = [f"* {n:,}: {re.sub(r'[|<>]', ' ', reason)}" for reason, n in skipped_reasons(report.records)]
    parts = [
        "# Errors row by row",
        prose(
            "Made with [accuracy.md](accuracy.md), which says how to read it: every source, system and library with five rows and more that nothing was fitted on."
        ),
        "\n".join(by_source(report)),
        *("## The worst rows", "The largest error of each source, system and library, ten of them.", "\n".join(worst_rows(report))),
        *("## What is not priced", f"{priced:,} of {rows:,} rows are priced.", "\n".join(reasons)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rival_rows(report: Report, *, sources: bool = False) -> Iterable[str]:
    """Our errors beside others' on the same runs; ours of what ships as they are found now."""
    found = {bound.name: bound for bound in report.bounds}
    yield "| mean error on the same runs | runs | commtax | others |" + (" source |" if sources else "")
    yield "|---|---:|---:|---|" + ("---|" if sources else "")
    for line in tomllib.loads(RIVALS_FILE.read_text())["line"]:
        ours = value_text(found[line["bound"]]) if "bound" in line else error_text(line["ours"])
        others = ", ".join(f"{name} {error_text(error)}" + (f" ({note})" if note else "") for name, error, note in line["others"])
        yield f"| {line['what']} | {line['rows']} | {ours} | {others} |" + (f" {line['source']} |" if sources else "")


def error_text(error: float) -> str:
    """
    >>> error_text(0.037), error_text(4.722)
    ('3.7%', '472%')
    """
    return f"{error:.1%}" if error < 1 else f"{error:.0%}"


def quoted(report: Report) -> str:
    """The README's part: what ships, so that anyone gets the same figures from a clone, and others' figures on the same runs."""
    rows, priced = (sum(x) for x in zip(*report.files.values(), strict=True))
    head = (
        f"`commtax validate` (with `.[lab]`) covers {priced:,} of {rows:,} published and in-house measurements, "
        "and fails if an error exceeds its bound. On runs it was not fitted to:"
    )
    return "\n".join((BEGIN, prose(head), "", *rival_rows(report), END))


def main(arguments: list[str]) -> None:
    shipped = check()
    reports = [shipped, *([check(Path(arguments[0]))] if arguments else [])]
    drawn = {"steps": shipped}
    for name, kinds in PICTURES.items():
        plot_kinds(drawn.get(name, reports[-1]), DOCS / f"accuracy-{name}.svg", kinds)
    large = {line.name: line for line in score_lines(reports[-1].records) if line.found}
    lines = [large.get(line.name, line) for line in score_lines(shipped.records)]  # our own sweep ships
    (DOCS / "accuracy-scoreboard.svg").write_text(picture(lines))
    (DOCS / "accuracy.md").write_text(page(reports, lines))
    (DOCS / "accuracy-rows.md").write_text(rows_page(reports[-1]))
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + quoted(shipped) + rest.partition(END)[2])
    for path in (README, *sorted(DOCS.glob("accuracy*"))):
        print(f"{path.name} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
