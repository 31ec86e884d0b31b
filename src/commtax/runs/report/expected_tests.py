"""Tests of collectives beside what they should have taken."""

from commtax.judgement.collectives import IMPOSSIBLE, PASS, judge_test
from commtax.report import tables
from commtax.report.bills import STYLES, show_expectation
from commtax.report.drawing import Console, Text, telling
from commtax.runs.results.collective_audit import JudgedTests
from commtax.units import format_bytes, format_rate, format_seconds, plural
from commtax.verbs.expecting import Expectation


def show_expectations(console: Console, judged: JudgedTests) -> None:
    """Show how many sizes of a file are as expected, then each of them."""
    times, verdict = judged.times, judged.verdict
    verdicts = [judge_test([time.verdict]) for time in times]
    e, counts = times[0].expected, ", ".join(f"{verdicts.count(word)} {word}" for word in STYLES if word in verdicts)
    place = f"{e.ranks} ranks of {e.cluster.key}"
    tables.say(console, f"{verdict.upper()}: {e.op} over {place}, {plural(len(times), 'measured row')}: {counts}", STYLES[verdict])
    for fault in judged.faults:
        tables.say(console, f"{fault.item}: {fault.reason}")
    if verdict != PASS:
        e, measured_s = judged.telling.expected, judged.telling.row.seconds
        rates = f"{format_rate(_measured_busbw(e, measured_s))} instead of {format_rate(e.busbw_Bps)}"
        factor = f"{measured_s / float(e.seconds):.2f} x the expected time"
        tables.say(console, f"{format_bytes(e.nbytes)} took {factor}: busbw {rates}")
        if judged.telling.verdict == IMPOSSIBLE:
            least = format_seconds(float(e.floor_s))
            tables.say(console, f"{e.link} takes {least} at least: another size, group or cluster")
        if measured_s > float(e.seconds):
            way = f"{e.algorithm} over {e.link} is expected, not sockets or the host's memory"
            tables.say(console, f"Next: NCCL_DEBUG=INFO tells which way was taken; {way}")
    columns = (">size", ">measured", ">expected", ">80% range", ">x expected", ">measured busbw", ">expected busbw", "verdict")
    rows = [_measured_cells(time.expected, time.row.seconds, word) for time, word in zip(times, verdicts, strict=True)]
    tables.show_table(console, columns, rows, ("80% range", "expected", "measured"))
    if telling(console).details:
        for time in times:
            show_expectation(console, time.expected, time.row.seconds)


def _measured_busbw(e: Expectation, measured_s: float) -> float:
    return float(e.busbw_Bps) * float(e.seconds) / measured_s


def _measured_cells(e: Expectation, measured_s: float, verdict: str) -> tuple[str | Text, ...]:
    ends = f"{format_seconds(e.low_s)} to {format_seconds(e.high_s)}"
    times = format_seconds(measured_s), format_seconds(e.seconds), ends, f"{measured_s / float(e.seconds):.2f}"
    rates = format_rate(_measured_busbw(e, measured_s)), format_rate(e.busbw_Bps)
    return (format_bytes(e.nbytes), *times, *rates, Text(verdict, style=STYLES[verdict]))
