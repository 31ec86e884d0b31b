"""Write docs/accuracy.md, accuracy-rows.md, their pictures and the README's table from validate's own result,
``accuracy.toml`` and ``rivals.toml``: ``python benchmarks/documents/accuracy.py [DATA_DIR]``, or with the README's pictures
``make figures``.

With DATA_DIR the figures of the larger tables stand beside those of the table that ships, and the pictures show them.
"""

# ruff: noqa: E501 - tables of the page stand as they are printed
from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from textwrap import wrap

from commtax_lab.cli.validate import figure_cells, limit_text, plot_kinds, quantity, value_text
from commtax_lab.published.scoring import Report, check
from commtax_lab.published.scoring.statistics import ScoreLine, groups, score_lines, skipped_reasons, transfer_folds, worst_misses

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
TEXTS = {name: text.rstrip("\n") for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()}


def prose(text: str) -> str:
    return "\n".join(wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False))


def scoreboard(lines: list[ScoreLine]) -> Iterable[str]:
    yield "| | | rows | median | p90 | bias | in range | half-width |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    part = ""
    for line in lines:
        if line.errors:
            of = "" if line.part == part else f"**{line.part}**"
            yield f"| {of} | {line.name} | {' | '.join(figure_cells(line.errors))} |"
            part = line.part


def transfer(cell: Callable[..., str], missing: str = "") -> Iterable[str]:
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
        yield f"| {metric.upper()}, {models} | " + " | ".join(cell(mine[c]) if c in mine else missing for c in columns) + " |"


def picture(lines: list[ScoreLine]) -> str:
    """Medians as bars, 90th percentiles as whiskers; 50 % is the right edge."""
    shown = [line for line in lines if line.errors]
    step, left, scale, edge = 18, 330, 900.0, 0.5
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + scale * edge + 70:.0f}" height="{step * len(shown) + 24}" font-family="sans-serif" font-size="11">'
    ]
    for tick in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        x = left + scale * tick
        parts.append(f'<line x1="{x:.0f}" y1="4" x2="{x:.0f}" y2="{step * len(shown) + 6}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{step * len(shown) + 19}" text-anchor="middle" fill="#666">{tick:.0%}</text>')
    for i, line in enumerate(shown):
        y, median, tail = 6 + step * i, min(line.errors.median_ape, edge), min(line.errors.p90_ape, edge)
        parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{escape(line.name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{scale * median:.1f}" height="11" fill="#4477aa"/>')
        x1, x2 = (f"{left + scale * end:.1f}" for end in (median, tail))
        parts.append(f'<line x1="{x1}" y1="{y + 8.5}" x2="{x2}" y2="{y + 8.5}" stroke="#4477aa"/>')
        parts.append(f'<text x="{left + scale * tail + 4:.1f}" y="{y + 12}" fill="#333">{line.errors.median_ape:.1%}</text>')
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
            TEXTS["intro"],
            "```sh\ncommtax validate --only collectives\ncommtax validate --only inference --json\n```",
        ),
        "## At home",
        prose(
            f"Rows of {'all tables' if len(reports) > 1 else 'the table that ships'} that nothing was fitted on; other rows of most of their engines and chips were. "
            "Serving runs that may have guessed tokens ahead are left out."
        ),
        "\n".join(scoreboard(lines)),
        TEXTS["first"],
        "![medians and 90th percentiles](accuracy-scoreboard.svg)",
        "## Abroad",
        prose(
            "A whole engine, chip or family of models left out of the fits, and then predicted: what a user with an unseen case may expect. Medians of errors; in brackets the share of rows inside the 80 % range, its median half-width, and how many rows. Runs that may have guessed tokens ahead are left out."
        ),
        "\n".join(transfer(lambda f: f"{f.median:.1%} ({f.covered:.0%} in ±{f.half_width:.0%}; {f.n:,})", missing="-")),
        *("## Bounds", "\n".join(bounds(reports))),
        prose(
            "Errors of every source, system and library, the worst rows, and what is not priced: [accuracy-rows.md](accuracy-rows.md)."
        ),
        *("## Beside other predictors", TEXTS["same_runs"], "\n".join(rival_rows(reports[0], sources=True)), TEXTS["compare"]),
        *("## Pictures", "Predicted over measured; dotted lines are 25 % off. Crosses were fitted."),
        *(f"![{name}](accuracy-{name}.svg)" for name in PICTURES),
        *("## What was fitted on what", TEXTS["fitted"], TEXTS["care"]),
        prose(
            "Kernels of experts, latent, sparse and linear attention, by kind and chip and with a chip left out: [kernels.md](kernels.md)."
        ),
        *("## How to read it", TEXTS["reading"], TEXTS["rivals"]),
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
    large = {line.name: line for line in score_lines(reports[-1].records) if line.errors}
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
