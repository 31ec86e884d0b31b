"""Runs that taught, and others that were predicted before and after them."""

from collections.abc import Mapping, Sequence

from commtax.report.drawing import Console
from commtax.report.tables import notes, say, show_table
from commtax.units import format_seconds, plural
from commtax_lab.study.study_documents import ForeseenLatency, ForeseenRun, LessonsDocument

_BUSY = 1.3  # times the ranks' own time from which others took part of the machine
NAMES = {"tpot": "TPOT", "ttft": "TTFT"}


def show_lessons(console: Console, d: LessonsDocument, out: str = "") -> None:
    """What was shown, then each latency of the other runs, and how far off its predictions are."""
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
    """One latency of all runs that were predicted: the names of columns, and a row for each run."""
    head = [f"{NAMES[metric]} of others", "measured", "before", "error", "after", "error", "80 % range", ""]
    return head, [[run["load"], *_cells(run[metric])] for run in foreseen]  # type: ignore[literal-required]


def errors_text(errors: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """How far its predictions are off, in a sentence."""
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
