"""Two runs beside each other, for a terminal and as a document."""

from collections.abc import Iterable, Iterator

from commtax.report.documents import Record, record, to_object
from commtax.report.drawing import Console
from commtax.report.tables import TableCells, drop_empty_columns, notes, say, show_table
from commtax.runs.evidence.finding import Audit
from commtax.runs.report.audit_words import culprit_sentence, described_culprit, merged, share_text, value_text
from commtax.runs.report.auditing import short_kernel_name
from commtax.runs.traces.run_differences import Difference, FigureChange, SentChange
from commtax.units import format_bytes, format_seconds, plural

MOST_KERNELS = 10
MOST_METRICS, MOST_FACTS = 3, 3  # in the sentence
SAME = 0.0005  # relative: equal as printed
SENT = (">ranks", "count", "bytes", "algorithm", "wire", "waiting", "hidden")
COLUMNS = (">A", ">B", ">change", ">relative")
PARTS = {"exposed communication": "exposed", "idle": "idle", "compute": "compute", "copies": "copies"}


def sentence(d: Difference) -> str:
    """Describe how B's step differs from A's, which parts make the difference, and what else changed."""
    return f"{_length(d)}; {_facts(d)}"


def _length(d: Difference) -> str:
    worst = sorted(d.worse, key=_size_of_change)[:MOST_METRICS]
    figures = ", ".join(f"{c.item} {_change_words(c)}" for c in worst if c is not d.step)
    if d.step is None or d.step.relative is None:
        if figures:
            return f"B is worse: {figures}"
        better = sorted((c for c in d.metrics if c.reversed.is_worse(d.tolerance)), key=_size_of_change)[:MOST_METRICS]
        if better:
            return f"B is better: {', '.join(f'{c.item} {_change_words(c)}' for c in better)}"
        return f"no figure of B is worse than A's by more than {d.tolerance:.0%}" if d.metrics else "no figure that both runs have"
    if abs(d.step.relative) <= d.tolerance:
        same = f"B's step takes as long as A's within {d.tolerance:.0%}: {_change_words(d.step)}"
        return f"{same}; worse: {figures}" if figures else same
    by = f"{format_seconds(abs(d.step.delta))} ({d.step.relative:+.1%})"
    parts = ", ".join(_part(d, p) for p in d.noteworthy)
    return f"B's step is {by} {'longer' if d.step.delta > 0 else 'shorter'}: {parts}"


def _size_of_change(c: FigureChange) -> float:
    return -abs(c.relative or 0.0)


def _part(d: Difference, part: FigureChange) -> str:
    """Describe a part of the step with what moved it: the collective that is exposed more, or the kernel that takes longer."""
    change = f"{'+' if part.delta >= 0 else '-'}{format_seconds(abs(part.delta))} {PARTS[part.item]}"
    if part.item == "exposed communication":
        moved = [c for c in d.collectives if c.exposed_s * part.delta > 0]
        return f"{change} {_reason_of_change(moved[0])}" if moved and d.per_step else f"{change} communication"
    if part.item == "compute":
        comm = {r.name for run in (d.before, d.after) for s in run.sections for r in s.kernels if r.kind != "compute"}
        one = next((k for k in d.kernels if k.delta * part.delta > 0 and k.item not in comm), None)
        return f"{change} ({short_kernel_name(one.item, 40)} {_signed_delta(one)})" if one else change
    return change


def _reason_of_change(c: SentChange) -> str:
    """Name the first change of a collective that may explain its time."""
    a, b = c.before, c.after
    if a.algorithms != b.algorithms and a.algorithms and b.algorithms:
        return f"{c.op} (algorithm {', '.join(a.algorithms)} -> {', '.join(b.algorithms)})"
    if abs(a.count - b.count) > 0.01 * max(a.count, b.count):
        return f"{c.op} ({a.count:,.4g} -> {b.count:,.4g} per step)"
    if a.nbytes is not None and b.nbytes is not None and abs(a.nbytes - b.nbytes) > 0.01 * max(a.nbytes, b.nbytes):
        return f"{c.op} ({format_bytes(a.nbytes)} -> {format_bytes(b.nbytes)} per step)"
    moved = {"waiting": b.wait_s - a.wait_s, "wire": b.wire_s - a.wire_s, "less hidden": a.hidden_s - b.hidden_s}
    name, most = max(moved.items(), key=lambda pair: pair[1] * (1 if c.exposed_s > 0 else -1))
    return f"{c.op} ({'+' if most >= 0 else '-'}{format_seconds(abs(most))} {name})"


def _facts(d: Difference) -> str:
    changes = [f"{f.name} {f.before or 'unknown'} -> {f.after or 'unknown'}" for f in d.facts]
    if not changes:
        none = f"none of {plural(d.shared_facts, 'fact')} known of both runs changed"
        return none if d.shared_facts else "neither run states versions, flags or hosts"
    if len(changes) == 1:
        return f"{changes[0]} is the only fact that changed"
    more = f"; and {len(changes) - MOST_FACTS} more" if len(changes) > MOST_FACTS else ""
    return f"{len(changes)} facts changed: {'; '.join(changes[:MOST_FACTS])}{more}"


def summary(d: Difference) -> list[str]:
    """Return the lines before any table."""
    blamed = ((name, run.culprit) for name, run in (("A", d.before), ("B", d.after)))
    return [sentence(d), *(f"{name}: {culprit_sentence(culprit)}" for name, culprit in blamed if culprit)]


def show_difference(console: Console, d: Difference) -> None:
    """Show the sentence first, then what it rests on."""
    first, *others = summary(d)
    say(console, first, "bold red" if d.worse else "bold")
    for other in others:
        say(console, other, "red")
    for columns, rows in tables(d):
        show_table(console, columns, rows, ("hidden", "algorithm", "ranks", "count", "relative", "bytes"))
    notes(console, remarks(d))


def tables(d: Difference) -> list[TableCells]:
    """Return tables of the facts, step parts, measured figures, collectives and kernels that changed."""
    step = (*((d.step,) if d.step else ()), *d.parts, *((d.hidden,) if d.hidden else ()))
    unit = " per step" if d.per_step else ""
    made = (
        drop_empty_columns(("fact", "A", "B"), ((f.name, f.before or "-", f.after or "-") for f in d.facts)),
        drop_empty_columns(("typical step", *COLUMNS), (_row(c) for c in step if c.before or c.after)),
        drop_empty_columns(("measured", *COLUMNS), (_row(c) for c in d.metrics if not _is_same(c))),
        drop_empty_columns((f"collective{unit}", *SENT), (_collective(c) for c in d.collectives if c.before != c.after)),
        drop_empty_columns(
            ("kernel, time per step", *COLUMNS), (_row(k, short_kernel_name(k.item)) for k in d.kernels[:MOST_KERNELS])
        ),
    )
    return [table for table in made if table[1]]


def remarks(d: Difference) -> Iterator[str]:
    for name, run in (("A", d.before), ("B", d.after)):
        files = [f for s in run.sections for f in s.files]
        yield f"{name}: {', '.join(files[:4])}{f' and {len(files) - 4} more' if len(files) > 4 else ''}"
        yield from (f"{name}: {n}" for s in run.sections for n in s.notes if n.code == "partial")
        yield from (f"{name}: {n}" for n in run.notes)
    if same := sum(map(_is_same, d.metrics)):
        yield f"{plural(same, 'other figure')} the same in both"
    if len(d.kernels) > MOST_KERNELS:
        yield f"{plural(len(d.kernels) - MOST_KERNELS, 'other kernel')} moved less (--json)"


def _is_same(c: FigureChange) -> bool:
    return c.relative is not None and abs(c.relative) < SAME


def _row(c: FigureChange, name: str = "") -> tuple[str, ...]:
    relative = "new" if c.before is None else "gone" if c.after is None else share_text(c.relative, "+")
    return name or c.item, value_text(c.before, c.unit), value_text(c.after, c.unit), _signed_delta(c), relative


def _signed_delta(c: FigureChange) -> str:
    return f"{'+' if c.delta >= 0 else '-'}{value_text(abs(c.delta), c.unit)}"


def _change_words(c: FigureChange) -> str:
    return f"{value_text(c.before, c.unit)} -> {value_text(c.after, c.unit)} ({share_text(c.relative, '+')})"


def _collective(c: SentChange) -> tuple[str, ...]:
    cells = []
    for s in (c.before, c.after):
        size = "-" if s.nbytes is None else format_bytes(s.nbytes)
        cells.append((f"{s.count:,.4g}", size, ", ".join(s.algorithms), *map(format_seconds, (s.wire_s, s.wait_s, s.hidden_s))))
    changed = (a if a == b else f"{a or '-'} -> {b or '-'}" for a, b in zip(*cells, strict=True))
    return c.op, f"{c.ranks}" if c.ranks else "", *changed


def difference_document(d: Difference) -> Record:

    def changes(several: Iterable[FigureChange]) -> list[Record]:
        return [record("audit-change", change=c) for c in several]

    outcome = {"verdict": "worse" if d.worse else "same or better", "summary": summary(d), "worse": [c.item for c in d.worse]}
    parts = {"parts": changes((*d.parts, *((d.hidden,) if d.hidden else ()))), "metrics": changes(d.metrics)}
    parts |= {"collectives": [_sent_change(c) for c in d.collectives], "kernels": changes(d.kernels)}
    step, runs = record("audit-change", change=d.step) if d.step else None, {"a": _run(d.before), "b": _run(d.after)}
    made = record("audit-diff", difference=d, **outcome, step=step, **parts, runs=runs)
    return to_object(made)


def _run(run: Audit) -> Record:
    files, facts = [f for s in run.sections for f in s.files], merged(s.facts for s in run.sections)
    return {"files": files, "verdict": run.verdict, "culprit": described_culprit(run), "facts": facts}


def _sent_change(c: SentChange) -> Record:
    a, b = (to_object(sent) | {"exposed_s": sent.exposed_s} for sent in (c.before, c.after))
    return {"op": c.op, "ranks": c.ranks, "a": a, "b": b, "exposed_change_s": c.exposed_s}
