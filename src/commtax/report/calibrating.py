"""A calibration for a terminal: what changed, how well it fits, what is odd, what to measure next; and as a document."""

from commtax.calibrate.measurements import Calibration, ConstantChange, ProfilePart
from commtax.catalog.profile_moves import range_words
from commtax.report.documents import Record, facts, record
from commtax.report.drawing import Console
from commtax.report.tables import notes, say, show_table
from commtax.units import format_rate, format_seconds

SHOWN = 8  # outliers of a part that are named on a terminal


def show_calibration(console: Console, calibration: Calibration, path: str) -> None:
    """The file first, then each part."""
    say(console, f"profile {calibration.profile.name} for {calibration.place.cluster.key}: written to {path}", "bold")
    columns = ("fitted", ">rows", ">median error before", ">after", ">p90 before", ">after", ">80 % range")
    show_table(console, columns, map(_part_row, calibration.parts))
    every = [(p.name, c, c.after / c.before - 1 if c.before else None) for p in calibration.parts for c in p.changes]
    changes = [
        (c.name, of, _value(c, c.before), _value(c, c.after), "" if x is None else f"{x:+.0%}", _sure(c)) for of, c, x in every
    ]
    if changes:
        show_table(console, ("constant", "of", ">catalogue", ">learnt", ">change", ">80 % range"), changes)
    for p in calibration.parts:
        rows = [f"outlier: {label}, {factor:.2f} x the fit" for label, factor in p.outliers[:SHOWN]]
        more = [f"{len(p.outliers) - SHOWN} more outliers of {p.name}"] if len(p.outliers) > SHOWN else []
        notes(console, [*rows, *more, *(f"{p.name}: {note}" for note in p.notes)])
    learnt = ["after: each run as the others predict it; before: as the catalogue does"] if calibration.profile.lessons else []
    notes(console, (*learnt, *calibration.notes, *calibration.refused))
    if calibration.wish:
        say(console, f"measure next: {calibration.wish.what}", "bold yellow")
    notes(console, [f"every command takes it: commtax simulate MODEL --profile {path}"])


def _part_row(p: ProfilePart) -> tuple[str, ...]:
    errors = (f"{error:.1%}" for error in (p.before.median, p.after.median, p.before.p90, p.after.p90))
    return (p.name, f"{p.rows:,}", *errors, f"±{p.spread:.0%}")


def _sure(c: ConstantChange) -> str:
    """The 80 % range of a constant before and after."""
    return f"{range_words(c.sigma_before)} → {range_words(c.sigma_after)}" if c.sigma_before else ""


def _value(c: ConstantChange, value: float | None) -> str:
    if value is None:
        return "-"
    if c.unit == "s":
        return format_seconds(value)
    if c.unit == "B/s":
        return format_rate(value)
    return f"{value:.3g} {c.unit}".strip()


def calibration_document(calibration: Calibration, path: str) -> Record:
    """``calibrate --json``."""
    wish = facts(calibration.wish, "what", "spread") if calibration.wish else None
    odd = [[{"row": row, "factor": x} for row, x in p.outliers] for p in calibration.parts]
    parts = [record("calibrate-part", part=p, outliers=rows) for p, rows in zip(calibration.parts, odd, strict=True)]
    return record("calibrate", calibration=calibration, path=path, parts=parts, measure_next=wish)
