"""Calibrations for a terminal and as documents: what changed, what to measure next, and whether a machine is what it was."""

from commtax.catalog.posterior import metric_words, range_words
from commtax.judgement.confidence import percent
from commtax.planner.deciding import Settlement, SettlingRun
from commtax.report.documents import Record, engine_name, facts, record
from commtax.report.drawing import Console
from commtax.report.tables import ANSWER, notes, say, say_question, say_whole, show_table
from commtax.runs.calibrate.advising import LOAD, Advice, AdvisedRun
from commtax.runs.calibrate.drift import EVERYTHING, CheckedLatency, DriftCheck, PartShift
from commtax.runs.calibrate.measurements import Calibration, ConstantChange, ProfilePart
from commtax.spec import Profile
from commtax.units import format_rate, format_seconds, listed, plural

WORDS = {"link": "collectives take", "clock": "kernels take", "host": "the host's work takes", EVERYTHING: "all steps take"}
"""What a shift of each part means."""
VERDICTS = {
    "same": "no change is seen since it was calibrated",
    "drifted": "the machine has drifted",
    "unknown": "this cannot be judged",
}

FARTHEST = 5.0
"""Changes of a part that these runs would not show even where it took so many times longer are not counted out."""


def show_advice(console: Console, advice: Advice) -> None:
    """The question, then each run with what it is worth."""
    known = f"{plural(advice.lessons, 'measured time')} known" if advice.lessons else "nothing measured yet"
    several = f"{plural(len(advice.loads), 'load')}, from concurrency {min(advice.loads)[0]} to {max(advice.loads)[0]}"
    what = f"Range widths are medians over {several}" if len(advice.loads) > 1 else f"Ranges for {_load_words(*advice.loads[0])}"
    say(console, f"{what}; {known}", ANSWER)
    say_question(console, advice.question)
    for number, run in enumerate(advice.runs, 1):
        say(console, f"{number}. {advised_words(run)}", "bold")
        say_whole(console, run.command or "(this engine has no serving benchmark that commtax can write)")
    if not advice.helps:
        notes(console, [f"no {'further ' if advice.runs else ''}run would narrow these ranges by as much as 1%"])
    notes(console, ["80% ranges, assuming that runs vary as they usually do; run times are for 10 requests per client"])


def advised_words(run: AdvisedRun) -> str:
    """``concurrency 64 at 8k/1k: TPOT range ±11% -> ±4.0%, TTFT ±30% -> ±12%, 6 minutes``."""
    names = {"tpot": "TPOT range", "ttft": "TTFT"}
    changes = (f"{name} ±{_percent(run.before[m])}% -> ±{_percent(run.after[m])}%" for m, name in names.items())
    return f"{_load_words(run.clients, run.input_len, run.output_len)}: {', '.join(changes)}, {_minutes(run.seconds)}"


def _load_words(clients: int, prompt: int, output: int) -> str:
    return f"concurrency {clients} at {_length(prompt)}/{_length(output)}"


def _percent(share: float) -> str:
    """In percent; small ones with a digit more."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _length(tokens: int) -> str:
    """Tokens as people say lengths: 8k, 1k, 200."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens}"


def _minutes(seconds: float) -> str:
    return plural(max(1, round(seconds / 60)), "minute")


def advice_document(advice: Advice) -> Record:
    loads = [dict(zip(LOAD, load, strict=True)) for load in advice.loads]
    q = advice.question
    return record("calibrate-next", advice=advice, question=q, engine=engine_name(q), loads=loads, runs=list(advice.runs))


def show_settlement(console: Console, found: Settlement) -> None:
    """How sure the recommendation is, who may beat it, and what would tell."""
    say(console, f"recommended: {found.recommended}", "bold")
    within = f"no other plan is more than {found.margin:.0%} better"
    say(console, f"right with a probability of {percent(found.right)} ({within}); expected loss {found.loss:.1%} of the best")
    if found.rivals:
        show_table(console, ("may be better", ">probability"), [(name, percent(share)) for name, share in found.rivals])
    if found.settled:
        why = "it is sure enough" if found.sure else "no run tells these plans apart"
        say(console, f"nothing you measure will change it: {why}", "bold")
    for number, run in enumerate(found.runs, 1):
        say(console, f"{number}. {settling_words(run)}", "bold")
        say_whole(console, run.command or "(this engine has no serving benchmark that commtax can write)")
    notes(console, ["each plan at the load that is best for it and keeps the limits; runs are of one replica of a plan"])


def settling_words(run: SettlingRun) -> str:
    load = _load_words(run.clients, run.input_len, run.output_len)
    return f"{run.plan}, {load}: right {percent(run.right)}, expected loss {run.loss:.1%}, {_minutes(run.seconds)}"


def settlement_document(found: Settlement) -> Record:
    rivals = [{"plan": name, "probability": share} for name, share in found.rivals]
    return record("calibrate-for", found=found, rivals=rivals, runs=list(found.runs))


def show_drift(console: Console, found: DriftCheck, own: Profile) -> None:
    """The verdict, the part that moved, and every latency beside its range."""
    reason, parts = f": {found.reason}" if found.reason else "", {part.name: part for part in found.parts}
    if found.verdict == "same" and EVERYTHING in parts:
        reason = f"; these runs would show one from {parts[EVERYTHING].visible:.0%} on"
    ran = listed([f"{d.model} on {d.chip}, TP {int(d.tp)}" for d in found.deployments])
    say(console, f"{own.name} ({ran}): {VERDICTS[found.verdict]}{reason}", "bold")
    if found.verdict == "drifted":
        apart = "" if found.moved else "these runs fit more than one cause: "
        say(console, apart + " or ".join(part_words(parts[name]) for name in found.suspects), "bold")
    columns = ("run", "time", ">today", ">expected", ">80% range", ">off")
    show_table(console, columns, map(_latency_row, sorted(found.latencies, key=lambda one: one.label)), ("expected", "80% range"))
    rows = [
        (
            p.name,
            _change(p.slower),
            f"{_change(p.low)} to {_change(p.high)}",
            f"{p.visible:.0%}" if p.visible < FARTHEST else "not by these runs",
            percent(p.likelihood),
        )
        for p in sorted(found.parts, key=lambda part: -part.likelihood)
    ]
    show_table(console, ("if this alone changed", ">by", ">80% range", ">visible from", ">likelihood"), rows)
    alarms = f"{found.level:.0%} of unchanged machines would be called drifted by chance"
    assumed = "a plan or a cluster that no file names is that of the profile's runs"
    odd = f"{percent(found.probability)} of them would give runs at least as unusual as these"
    notes(console, [f"{alarms}; {odd}", assumed, *found.notes])


def part_words(part: PartShift) -> str:
    """``clock: kernels take 8% ± 3% longer``."""
    width = (part.high - part.low) / 2
    way = "longer" if part.slower >= 0 else "less time"
    return f"{part.name}: {WORDS[part.name]} {abs(part.slower):.0%} ± {width:.0%} {way}"


def _change(share: float) -> str:
    return f"{share:+.0%}"


def _latency_row(one: CheckedLatency) -> tuple[str, ...]:
    ends = f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}"
    off = _change(one.measured_s / one.expected_s - 1)
    return one.label, metric_words(one.metric), format_seconds(one.measured_s), format_seconds(one.expected_s), ends, off


def drift_document(found: DriftCheck, own: Profile) -> Record:
    return record("calibrate-check", found=found, own=own, parts=list(found.parts), latencies=list(found.latencies))


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
