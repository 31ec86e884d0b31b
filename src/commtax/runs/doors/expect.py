"""``commtax expect``."""

import os
from pathlib import Path

import click

from commtax.cli.options import CommandOptions, Verb, add_verb_options
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_seconds
from commtax.verbs.expecting import Expectation, billed_library, expect

MOST_ROWS = 2_000  # of a file that is judged row by row
VERDICTS = {"pass": 0, "fail": 1, "undecided": 3}  # exit codes


@click.command("expect", cls=Verb)
@click.argument("op", metavar="COLLECTIVE")
@add_verb_options("expect")
def expect_command(
    op: str, size: float, ranks: int, library: str, technique: str, measured: str, as_json: bool, **flags: object
) -> None:
    """Tell what a collective should take on this hardware, or with --measured pass (exit 0), fail (1) or undecided (3)."""
    from commtax.report import bills

    options, output = CommandOptions(flags), Output(as_json)
    profile = profile_of(options)
    place = output.read(cluster_of(options))
    if measured and os.path.exists(measured):
        _expect_file(op, place, ranks, library, profile, Path(measured), output)
    usual = "" if measured else billed_library(profile)  # what is judged was measured by tests of NCCL
    expectation = expect(op, place, nbytes=size, ranks=ranks, library=library or usual, profile=profile, technique=technique)
    alone = expect(op, place, nbytes=size, ranks=ranks) if not (library or technique or measured or profile) else None
    seconds = _measured_seconds(measured, expectation) if measured else None
    code = 0 if seconds is None else VERDICTS[expectation.verdict(seconds)]
    output.answer(bills.expectation_document, bills.show_expectation, expectation, seconds, alone, code=code)


def _measured_seconds(text: str, expectation: Expectation) -> float:
    if not text.endswith("s"):
        raise Refusal.of("write a bus bandwidth (166GB/s), a time (25us), or a file's name", measured=text)
    is_rate = text.endswith("/s")
    value = parse_bytes(text.removesuffix("/s"), "measured") if is_rate else parse_seconds(text, "measured")
    if value <= 0:
        raise Refusal.of(f"a {'bandwidth' if is_rate else 'time'} above 0 is needed", measured=text)
    return expectation.seconds_of_busbw(value) if is_rate else value


def _expect_file(op: str, place: Cluster, ranks: int, library: str, profile: Profile | None, path: Path, output: Output) -> None:
    """Compare every row of a collective's tests with its expectation."""
    from commtax.report import bills
    from commtax.runs.audit.formats import read
    from commtax.runs.report.expected_tests import show_expectations
    from commtax.runs.results.collective_audit import judge_tests
    from commtax.runs.results.collective_tests import CollectiveTests

    tests = next((record for record in read(path) if isinstance(record, CollectiveTests)), None)
    if tests is None:
        raise Refusal.of("no nccl-tests rows found", measured=str(path))
    judged = judge_tests(tests, op, place, ranks, library, profile)
    if not all(0 < time.row.seconds < 1e6 for time in judged.times):
        raise Refusal.of("a row has no time above 0", measured=str(path))
    if len(judged.times) > MOST_ROWS:
        many = f"{len(judged.times):,} rows, more than the {MOST_ROWS:,} that are judged"
        raise Refusal.of(f"{many}; split it", measured=str(path))

    def document() -> object:
        rows = [bills.expectation_document(time.expected, time.row.seconds) for time in judged.times]
        faults = [f"{f.item}: {f.reason}" for f in judged.faults]
        verdict = {"verdict": judged.verdict, "pass": bills.PASSED[judged.verdict], "faults": faults}
        return {"schema": "commtax.expect-file/1", **verdict, "rows": rows}

    output.answer(document, lambda console: show_expectations(console, judged), code=VERDICTS[judged.verdict])
