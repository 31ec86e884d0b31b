"""A calibration for a terminal: what changed, how well it fits, what is odd, what to measure next; and as a document."""

from commtax.catalog.posterior import range_words
from commtax.report.documents import Record, facts, record
from commtax.report.drawing import Console
from commtax.report.tables import ANSWER, notes, say, show_table
from commtax.runs.calibrate.measurements import Calibration, ConstantChange, ProfilePart
from commtax.units import format_rate, format_seconds

SHOWN = 8  # outliers of a part that are named on a terminal


def show_calibration(console: Console, calibration: Calibration, path: str) -> None:
    """The file first, then each part."""
    say(console, f"profile {calibration.profile.name} for {calibration.place.cluster.key}: written to {path}", ANSWER)
    if calibration.wish:
        say(console, f"measure next: {calibration.wish.what}")
    columns = ("fitted", ">rows", ">median error before", ">median after", ">p90 before", ">p90 after", ">80% range")
    show_table(console, columns, map(_part_row, calibration.parts), ("rows", "p90 before", "p90 after", "median error before"))
    every = [(p.name, c, c.after / c.before - 1 if c.before else None) for p in calibration.parts for c in p.changes]
    changes = [
        (c.name, of, _value(c, c.before), _value(c, c.after), "" if x is None else f"{x:+.0%}", _sure(c)) for of, c, x in every
    ]
    if changes:
        show_table(
            console, ("constant", "of", ">catalogue", ">learnt", ">change", ">80% range"), changes, ("of", "catalogue", "80% range")
        )
    learnt = (
        ["before: errors with the catalogue's constants; after: errors of each run when the other runs predict it"]
        if calibration.profile.lessons
        else []
    )
    taken = f"to use it, give any command --profile {path}"
    odd = (line for part in calibration.parts for line in _odd_lines(part))
    notes(console, (*odd, *learnt, *calibration.notes, *calibration.refused, taken))


def _odd_lines(p: ProfilePart) -> list[str]:
    """Rows of a part that its fit misses, and what else is said of it."""
    rows = [f"outlier: {label}, {factor:.2f} x the fit" for label, factor in p.outliers[:SHOWN]]
    more = [f"{len(p.outliers) - SHOWN} more outliers of {p.name}"] if len(p.outliers) > SHOWN else []
    return [*rows, *more, *(f"{p.name}: {note}" for note in p.notes)]


def _part_row(p: ProfilePart) -> tuple[str, ...]:
    errors = (f"{error:.1%}" for error in (p.before.median, p.after.median, p.before.p90, p.after.p90))
    return (p.name, f"{p.rows:,}", *errors, f"±{p.spread:.0%}")


def _sure(c: ConstantChange) -> str:
    """The 80% range of a constant before and after."""
    return f"{range_words(c.sigma_before)} → {range_words(c.sigma_after)}" if c.sigma_before else ""


def _value(c: ConstantChange, value: float | None) -> str:
    if value is None:
        return "-"
    if c.unit == "s":
        return format_seconds(value)
    return format_rate(value) if c.unit == "B/s" else f"{value:.3g} {c.unit}".strip()


def calibration_document(calibration: Calibration, path: str) -> Record:
    wish = facts(calibration.wish, "what", "spread") if calibration.wish else None
    odd = [[{"row": row, "factor": x} for row, x in p.outliers] for p in calibration.parts]
    parts = [record("calibrate-part", part=p, outliers=rows) for p, rows in zip(calibration.parts, odd, strict=True)]
    return record("calibrate", calibration=calibration, path=path, parts=parts, measure_next=wish)
