"""Calibrations for a terminal and as documents: what changed, what to measure next, and whether a machine is what it was."""

from commtax.catalog.posterior import metric_words, range_words
from commtax.judgement.confidence import percent
from commtax.planner.deciding import Settlement
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
    """Show the question, then each run with what it is worth."""
    measured = f"{plural(advice.lessons, 'measured time')} known" if advice.lessons else "nothing measured yet"
    several = f"{plural(len(advice.loads), 'load')}, from concurrency {min(advice.loads)[0]} to {max(advice.loads)[0]}"
    what = f"Range widths are medians over {several}" if len(advice.loads) > 1 else f"Ranges for {_load_words(*advice.loads[0])}"
    say(console, f"{what}; {measured}", ANSWER)
    say_question(console, advice.question)
    for number, run in enumerate(advice.runs, 1):
        say(console, f"{number}. {advised_words(run)}", "bold")
        say_whole(console, run.command or "(this engine has no serving benchmark that commtax can write)")
    if not advice.helps:
        notes(console, [f"no {'further ' if advice.runs else ''}run would narrow these ranges by as much as 1%"])
    notes(console, ["80% ranges, assuming that runs vary as they usually do; run times are for 10 requests per client"])


def advised_words(run: AdvisedRun) -> str:
    """Describe a run: ``concurrency 64 at 8k/1k: TPOT range ±11% -> ±4.0%, TTFT ±30% -> ±12%, 6 minutes``."""
    names = {"tpot": "TPOT range", "ttft": "TTFT"}
    changes = (f"{name} ±{_percent(run.before[m])}% -> ±{_percent(run.after[m])}%" for m, name in names.items())
    return f"{_load_words(run.clients, run.input_len, run.output_len)}: {', '.join(changes)}, {_minutes(run.seconds)}"


def _load_words(clients: int, prompt: int, output: int) -> str:
    return f"concurrency {clients} at {_length(prompt)}/{_length(output)}"


def _percent(share: float) -> str:
    """Format a share in percent, small ones with a digit more."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _length(tokens: int) -> str:
    """Format tokens as people write lengths: 8k, 1k, 200."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens}"


def _minutes(seconds: float) -> str:
    return plural(max(1, round(seconds / 60)), "minute")


def advice_document(advice: Advice) -> Record:
    loads = [dict(zip(LOAD, load, strict=True)) for load in advice.loads]
    q = advice.question
    return record("calibrate-next", advice=advice, question=q, engine=engine_name(q), loads=loads, runs=list(advice.runs))


def show_settlement(console: Console, settlement: Settlement) -> None:
    """Show how sure the recommendation is, who may beat it, and what would settle it."""
    say(console, f"recommended: {settlement.recommended}", "bold")
    within = f"no other plan is more than {settlement.margin:.0%} better"
    loss = f"expected loss {settlement.loss:.1%} of the best"
    say(console, f"right with a probability of {percent(settlement.right)} ({within}); {loss}")
    if settlement.rivals:
        show_table(console, ("may be better", ">probability"), [(name, percent(share)) for name, share in settlement.rivals])
    if settlement.settled:
        why = "it is sure enough" if settlement.sure else "no run tells these plans apart"
        say(console, f"nothing you measure will change it: {why}", "bold")
    for number, run in enumerate(settlement.runs, 1):
        load = _load_words(run.clients, run.input_len, run.output_len)
        right = f"right {percent(run.right)}, expected loss {run.loss:.1%}, {_minutes(run.seconds)}"
        say(console, f"{number}. {run.plan}, {load}: {right}", "bold")
        say_whole(console, run.command or "(this engine has no serving benchmark that commtax can write)")
    notes(console, ["each plan at the load that is best for it and keeps the limits; runs are of one replica of a plan"])


def settlement_document(settlement: Settlement) -> Record:
    rivals = [{"plan": name, "probability": share} for name, share in settlement.rivals]
    return record("calibrate-for", found=settlement, rivals=rivals, runs=list(settlement.runs))


def show_drift(console: Console, drift: DriftCheck, profile: Profile) -> None:
    """Show the verdict, the part that moved, and every latency beside its range."""
    reason, parts = f": {drift.reason}" if drift.reason else "", {part.name: part for part in drift.parts}
    if drift.verdict == "same" and EVERYTHING in parts:
        reason = f"; these runs would show one from {parts[EVERYTHING].visible:.0%} on"
    ran = listed([f"{d.model} on {d.chip}, TP {int(d.tp)}" for d in drift.deployments])
    say(console, f"{profile.name} ({ran}): {VERDICTS[drift.verdict]}{reason}", "bold")
    if drift.verdict == "drifted":
        apart = "" if drift.moved else "these runs fit more than one cause: "
        say(console, apart + " or ".join(part_words(parts[name]) for name in drift.suspects), "bold")
    columns = ("run", "time", ">today", ">expected", ">80% range", ">off")
    show_table(console, columns, map(_latency_row, sorted(drift.latencies, key=lambda one: one.label)), ("expected", "80% range"))
    rows = []
    for p in sorted(drift.parts, key=lambda part: -part.likelihood):
        visible = f"{p.visible:.0%}" if p.visible < FARTHEST else "not by these runs"
        rows.append((p.name, f"{p.slower:+.0%}", f"{p.low:+.0%} to {p.high:+.0%}", visible, percent(p.likelihood)))
    show_table(console, ("if this alone changed", ">by", ">80% range", ">visible from", ">likelihood"), rows)
    alarms = f"{drift.level:.0%} of unchanged machines would be called drifted by chance"
    assumed = "a plan or a cluster that no file names is that of the profile's runs"
    odd = f"{percent(drift.probability)} of them would give runs at least as unusual as these"
    notes(console, [f"{alarms}; {odd}", assumed, *drift.notes])


def part_words(part: PartShift) -> str:
    """Describe a shift: ``clock: kernels take 8% ± 3% longer``."""
    width = (part.high - part.low) / 2
    way = "longer" if part.slower >= 0 else "less time"
    return f"{part.name}: {WORDS[part.name]} {abs(part.slower):.0%} ± {width:.0%} {way}"


def _latency_row(one: CheckedLatency) -> tuple[str, ...]:
    ends = f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}"
    off = f"{one.measured_s / one.expected_s - 1:+.0%}"
    return one.label, metric_words(one.metric), format_seconds(one.measured_s), format_seconds(one.expected_s), ends, off


def drift_document(drift: DriftCheck, profile: Profile) -> Record:
    return record("calibrate-check", found=drift, own=profile, parts=list(drift.parts), latencies=list(drift.latencies))


SHOWN = 8  # outliers of a part that are named on a terminal


def show_calibration(console: Console, calibration: Calibration, path: str) -> None:
    """Show the file first, then each part."""
    say(console, f"profile {calibration.profile.name} for {calibration.place.cluster.key}: written to {path}", ANSWER)
    if calibration.wish:
        say(console, f"measure next: {calibration.wish.what}")
    columns = ("fitted", ">rows", ">median error before", ">median after", ">p90 before", ">p90 after", ">80% range")
    errors = [(p.before.median, p.after.median, p.before.p90, p.after.p90) for p in calibration.parts]
    fitted = zip(calibration.parts, errors, strict=True)
    rows = [(p.name, f"{p.rows:,}", *(f"{error:.1%}" for error in four), f"±{p.spread:.0%}") for p, four in fitted]
    show_table(console, columns, rows, ("rows", "p90 before", "p90 after", "median error before"))
    if changes := [(c.name, p.name, *_change_cells(c)) for p in calibration.parts for c in p.changes]:
        heads = ("constant", "of", ">catalogue", ">learnt", ">change", ">80% range")
        show_table(console, heads, changes, ("of", "catalogue", "80% range"))
    remarks = [line for part in calibration.parts for line in _odd_lines(part)]
    if calibration.profile.lessons:
        remarks.append("before: errors with the catalogue's constants; after: errors of each run when the other runs predict it")
    notes(console, (*remarks, *calibration.notes, *calibration.refused, f"to use it, give any command --profile {path}"))


def _odd_lines(p: ProfilePart) -> list[str]:
    """Return the rows of a part that its fit misses, and the notes on it."""
    rows = [f"outlier: {label}, {factor:.2f} x the fit" for label, factor in p.outliers[:SHOWN]]
    more = [f"{len(p.outliers) - SHOWN} more outliers of {p.name}"] if len(p.outliers) > SHOWN else []
    return [*rows, *more, *(f"{p.name}: {note}" for note in p.notes)]


def _change_cells(c: ConstantChange) -> tuple[str, ...]:
    """Return a constant before and after, the change, and the 80% range before and after."""
    ranges = f"{range_words(c.sigma_before)} → {range_words(c.sigma_after)}" if c.sigma_before else ""
    return _value(c, c.before), _value(c, c.after), f"{c.after / c.before - 1:+.0%}" if c.before else "", ranges


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
