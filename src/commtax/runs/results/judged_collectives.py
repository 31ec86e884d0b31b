"""Tests of collectives held against what their collectives should take, as ``audit`` and ``expect --measured`` both tell it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.catalog.profile_files import GivenProfiles
from commtax.judgement.collectives import judge_test, judge_time, telling_time
from commtax.runs.evidence.finding import DISAGREE, Finding
from commtax.runs.evidence.identity import chip_findings
from commtax.runs.results.collective_tests import BegunTest, CollectiveTests
from commtax.runs.results.nccl_tests import NcclTestsRow, NcclTestsRun, possible_ranks
from commtax.spec import Cluster
from commtax.statement import Note, Refusal
from commtax.thresholds import counts, levels
from commtax.units import format_bytes
from commtax.verbs.expecting import Expectation, collective_named, expect, usual_library

COUNT, LEVEL = counts(__name__), levels(__name__)


@dataclass(frozen=True, slots=True)
class JudgedTime:
    """One row beside what it should be; ``verdict`` is a code of ``judgement.collectives``."""

    row: NcclTestsRow
    expected: Expectation
    verdict: str


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's rows; ``refusal`` says why none of them has a price."""

    run: NcclTestsRun
    ranks: int
    times: tuple[JudgedTime, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class JudgedTests:
    """The rows of all runs of one collective, and what makes them no sound tests."""

    times: tuple[JudgedTime, ...]
    faults: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        return judge_test([time.verdict for time in self.times], bool(self.faults))

    @property
    def telling(self) -> JudgedTime:
        """The time that an answer's first lines speak of."""
        return self.times[telling_time([time.row.nbytes for time in self.times], [time.verdict for time in self.times])]


def judge_run(run: NcclTestsRun, place: Cluster, ranks: int, library: str = "", profile: GivenProfiles | None = None) -> JudgedRun:
    """Judge each row of a run; where neither the text nor the user tells how many ranks there were, all GPUs are taken."""
    library = library or usual_library(place, profile)
    priced: dict[float, Expectation] = {}
    try:
        ranks = ranks or _default_ranks(run, place)
        for size in dict.fromkeys(row.nbytes for row in run.rows if row.nbytes <= LEVEL.most_bytes):
            priced[size] = expect(run.op, place, nbytes=size, ranks=ranks, library=library, profile=profile)
    except Refusal as refusal:
        return JudgedRun(run, ranks, refusal=refusal)
    rows = [(row, priced[row.nbytes]) for row in run.rows if row.nbytes in priced]
    verdicts = (judge_time(row.seconds, float(e.high_s), float(e.floor_s), e.is_assumed) for row, e in rows)
    return JudgedRun(run, ranks, tuple(JudgedTime(row, e, verdict) for (row, e), verdict in zip(rows, verdicts, strict=True)))


def _default_ranks(run: NcclTestsRun, place: Cluster) -> int:
    """All GPUs, where the bandwidths of the rows agree with as many ranks; ``expect`` has its own default for two ranks."""
    least, most = possible_ranks(run.rows, run.op)
    if run.op == "send-recv" or least > most or least <= place.num_gpus <= most:
        return 0 if run.op == "send-recv" else place.num_gpus
    told = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    raise Refusal(f"ranks: busbw / algbw tell {told} ranks, and {place.key} has {place.num_gpus:,} GPUs", "ranks", (str(least),))


def judge_tests(
    tests: CollectiveTests, op: str, place: Cluster, ranks: int = 0, library: str = "", profile: GivenProfiles | None = None
) -> JudgedTests:
    op = collective_named(op)
    own = tuple(replace(run, op=run.op or op) for run in tests.runs if run.op in ("", op))
    if not own:
        others = ", ".join(dict.fromkeys(run.op for run in tests.runs))
        raise Refusal(f"measured: {f'an output of {others}, not of {op}' if others else 'no nccl-tests rows found'}", "measured")
    runs = [judge_run(run, place, ranks or run.ranks or tests.ranks, library, profile) for run in own]
    if refusal := next((run.refusal for run in runs if run.refusal), None):
        raise refusal
    of_op = replace(tests, runs=own, cut=tuple(test for test in tests.cut if test.op in ("", op)))
    faults = tuple(f for f in test_faults(of_op, place) if f.verdict == DISAGREE)
    return JudgedTests(tuple(time for run in runs for time in run.times), faults)


def test_faults(tests: CollectiveTests, place: Cluster | None) -> Iterator[Finding]:
    """What makes a test unsound however long it took, and tests of which rows are missing."""
    # A test that was begun and printed less than it was asked for; one that printed its table's head alone did not run.
    for test in (t for t in tests.cut if t.asked and not tests.alone):
        label = f"{test.op}: sizes measured" if test.op and len(tests.runs) > 0 else "sizes measured"
        finding = Finding(Note("rows", label), test.asked, test.rows, reason="the test ended, or hung, before its first row")
        yield finding.judged() if test.titled and not test.rows and not test.half else finding.undecided(missing_words(test))
    if tests.shared:
        who = ", ".join(map(str, tests.shared[0][: COUNT.most_named]))
        why = f"ranks {who} name one bus id: NCCL joins them through the host or a socket"
        yield Finding("GPUs that several ranks share", 0, len(tests.shared), reason=why).judged()
    for run in tests.runs:
        if wrong := sum(row.wrong for row in run.rows):
            yield Finding("wrong values", 0, wrong, reason=f"at {wrong_sizes(run)}").judged()
    yield from chip_findings(tests.devices[0], place.chip.key) if place and tests.devices else ()


def wrong_sizes(run: NcclTestsRun) -> str:
    return ", ".join(format_bytes(row.nbytes) for row in run.rows if row.wrong)[: COUNT.most_signs]


def missing_words(test: BegunTest) -> str:
    """What of a test is not in a text."""
    if test.half:
        return f"the text ends in the row of {format_bytes(test.half)}"
    if not test.rows:
        return f"the text ends {'above its first row' if test.titled else 'before its table'}"
    if test.asked:
        return f"the text ends at {format_bytes(test.last)} of {format_bytes(test.most)}"
    return "neither its header nor its average is in this text: sizes before and after may be missing"
