"""``commtax expect``."""

import os
from pathlib import Path

import click

from commtax.cli.options import GivenOptions, Verb, add_verb_options
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.files import OUTPUT_BYTES, read_text
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_seconds
from commtax.verbs.expecting import NCCL, Expectation, billed_library, expect

MOST_ROWS = 2_000  # of a file that is judged row by row
VERDICTS = {"pass": 0, "fail": 1, "undecided": 3}
"""Exit codes."""


@click.command("expect", cls=Verb)
@click.argument("op", metavar="COLLECTIVE")
@add_verb_options("expect")
def expect_command(
    op: str, size: float, ranks: int, library: str, technique: str, measured: str, as_json: bool, **options: object
) -> None:
    """What a collective should take on this hardware; with --measured pass (exit 0), fail (1) or undecided (3)."""
    from commtax.report import bills

    given, output = GivenOptions(options), Output(as_json)
    own = profile_of(given)
    place = output.read(cluster_of(given))
    if measured and os.path.exists(measured):
        _expect_file(op, place, ranks, library, own, Path(measured), output)
    usual = "" if measured else billed_library(own)  # what is judged was measured by tests of NCCL
    expectation = expect(op, place, nbytes=size, ranks=ranks, library=library or usual, profile=own, technique=technique)
    alone = expect(op, place, nbytes=size, ranks=ranks, library=NCCL) if not (library or technique or measured or own) else None
    seconds = _measured_seconds(measured, expectation) if measured else None
    code = 0 if seconds is None else VERDICTS[expectation.verdict(seconds)]
    output.answer(bills.expectation_document, bills.show_expectation, expectation, seconds, alone, code=code)


def _measured_seconds(text: str, expectation: Expectation) -> float:
    """A bus bandwidth or a time."""
    if not text.endswith("s"):
        raise Refusal.of("write a bus bandwidth (166GB/s), a time (25us), or a file's name", measured=text)
    is_rate = text.endswith("/s")
    value = parse_bytes(text.removesuffix("/s"), "measured") if is_rate else parse_seconds(text, "measured")
    if value <= 0:
        raise Refusal.of(f"a {'bandwidth' if is_rate else 'time'} above 0 is needed", measured=text)
    return expectation.seconds_of_busbw(value) if is_rate else value


def _expect_file(op: str, place: Cluster, ranks: int, library: str, own: Profile | None, path: Path, output: Output) -> None:
    """Every row of an nccl-tests output against its expectation."""
    from commtax.report import bills
    from commtax.results.nccl_tests import parse

    run = parse(read_text(path, "measured", most=OUTPUT_BYTES), str(path))
    if not run.rows:
        raise Refusal.of("no nccl-tests rows found", measured=str(path))
    if run.op and run.op != op.replace("_", "-").replace("sendrecv", "send-recv"):
        raise Refusal.of(f"an output of {run.op}, not of {op}", measured=str(path))
    if not all(0 < r.seconds < 1e6 for r in run.rows):
        raise Refusal.of("a row has no time above 0", measured=str(path))
    if len(run.rows) > MOST_ROWS:
        many = f"{len(run.rows):,} rows, more than the {MOST_ROWS:,} that are judged"
        raise Refusal.of(f"{many}; split it", measured=str(path))
    of = {r.nbytes: expect(op, place, nbytes=r.nbytes, ranks=ranks or run.ranks, library=library, profile=own) for r in run.rows}
    pairs = [(of[r.nbytes], r.seconds) for r in run.rows]
    verdicts = {e.verdict(s) for e, s in pairs}
    worst = next(v for v in ("fail", "undecided", "pass") if v in verdicts)

    def document() -> object:
        rows = [bills.expectation_document(e, s) for e, s in pairs]
        return {"schema": "commtax.expect-file/1", "verdict": worst, "pass": bills.PASSED[worst], "rows": rows}

    output.answer(document, lambda console: bills.show_expectations(console, pairs), code=VERDICTS[worst])
