"""nccl-tests and rccl-tests against what links should carry: peak, latency, dips, wrong values; for ``audit`` and ``expect``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median

from commtax import catalog
from commtax.catalog.foreign_names import find_device_chip
from commtax.catalog.profile_files import ProfilesLike
from commtax.files import table
from commtax.judgement.collectives import ASSUMED, FAIL, IMPOSSIBLE, judge_test, judge_time, telling_time
from commtax.runs.evidence.finding import AGREE, DISAGREE, Cause, Claim, Finding, Section
from commtax.runs.evidence.identity import chip_findings
from commtax.runs.results.collective_tests import BegunTest, CollectiveTests, NcclTestsRow, NcclTestsRun, possible_ranks
from commtax.spec import Cluster
from commtax.statement import Note, Refusal
from commtax.thresholds import thresholds
from commtax.units import format_bytes, format_rate, format_seconds, plural
from commtax.verbs.expecting import Expectation, collective_named, expect, usual_library

COUNT, LEVEL = thresholds(__name__)


@dataclass(frozen=True, slots=True)
class JudgedTime:
    """One row beside what it should be. ``verdict`` is a code of ``judgement.collectives``."""

    row: NcclTestsRow
    expected: Expectation
    verdict: str


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's rows. ``refusal`` says why none of them has a price."""

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


def judge_run(run: NcclTestsRun, place: Cluster, ranks: int, library: str = "", profile: ProfilesLike | None = None) -> JudgedRun:
    """Judge each row of a run, assuming all GPUs where neither the text nor the user states the number of ranks."""
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
    """Return all GPUs if the rows' bandwidths allow so many ranks, or 0 for send-recv, whose default ``expect`` knows."""
    least, most = possible_ranks(run.rows, run.op)
    if run.op == "send-recv" or least > most or least <= place.num_gpus <= most:
        return 0 if run.op == "send-recv" else place.num_gpus
    possible = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    why = f"busbw / algbw tell {possible} ranks, and {place.key} has {place.num_gpus:,} GPUs"
    raise Refusal(f"ranks: {why}", "ranks", (str(least),))


def judge_tests(
    tests: CollectiveTests, op: str, place: Cluster, ranks: int = 0, library: str = "", profile: ProfilesLike | None = None
) -> JudgedTests:
    op = collective_named(op)
    selected = tuple(replace(run, op=run.op or op) for run in tests.runs if run.op in ("", op))
    if not selected:
        others = ", ".join(dict.fromkeys(run.op for run in tests.runs))
        raise Refusal(f"measured: {f'an output of {others}, not of {op}' if others else 'no nccl-tests rows found'}", "measured")
    runs = [judge_run(run, place, ranks or run.ranks or tests.ranks, library, profile) for run in selected]
    if refusal := next((run.refusal for run in runs if run.refusal), None):
        raise refusal
    of_op = replace(tests, runs=selected, cut=tuple(test for test in tests.cut if test.op in ("", op)))
    faults = tuple(f for f in test_faults(of_op, place) if f.verdict == DISAGREE)
    return JudgedTests(tuple(time for run in runs for time in run.times), faults)


def test_faults(tests: CollectiveTests, place: Cluster | None) -> Iterator[Finding]:
    """Yield what makes a test unsound however long it took, and tests of which rows are missing."""
    # A test that was begun and printed less than it should; one that printed its table's head alone did not run.
    for test in (t for t in tests.cut if t.num_sizes and not tests.alone):
        label = f"{test.op}: sizes measured" if test.op and len(tests.runs) > 0 else "sizes measured"
        finding = Finding(Note("rows", label), test.num_sizes, test.rows, reason="the test ended, or hung, before its first row")
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
    """Describe what a text lacks of a test."""
    if test.half:
        return f"the text ends in the row of {format_bytes(test.half)}"
    if not test.rows:
        return f"the text ends {'above its first row' if test.titled else 'before its table'}"
    if test.num_sizes:
        return f"the text ends at {format_bytes(test.last)} of {format_bytes(test.most)}"
    return "neither its header nor its average is in this text: sizes before and after may be missing"


AVERAGE = "average bus bandwidth, GB/s"
_WORDS = table("runs/results/words.toml")
LOOK: Mapping[str, str] = _WORDS["look"]
"""Where to look next at links of a kind that carry less than they should."""


def audit_collectives(tests: CollectiveTests, claim: Claim | None, name: str = "output") -> Section:
    """Report what each run reached, and judge each size for the claimed cluster or the one that device names imply."""
    place = claim.question.cluster if claim else named_place(tests)
    assumed = not claim and not (place and _links_are_certain(place))
    findings: list[Finding] = [*test_faults(tests, place)]
    causes: list[Cause] = []
    if tests.shared:
        text = f"{plural(len(tests.shared), 'GPU')} shared by several ranks: what was measured is no link between GPUs"
        causes.append(_cause("shared GPU", text))
    times: list[tuple[str, JudgedTime]] = []
    for number, run in enumerate(tests.runs, 1):
        ranks = run.ranks or tests.ranks
        label = f"run {number}: " if len(tests.runs) > 1 else ""
        moved = ranks != 1 and any(r.busbw_Bps for r in run.rows)  # one rank sends nothing, and its times are none of a link
        judged = judge_run(run, place, ranks, profile=claim.question.profile if claim else None) if place and run.op else None
        if judged:
            ranks = judged.ranks
            times += [(f"{label}{run.op}", time) for time in judged.times]
        compared = (*_reached_bandwidth(run, ranks, place), *_expected_findings(run, judged, bool(place), assumed))
        findings += [replace(f, item=Note(f.code, label + f.item)) for f in compared]
        causes += _faults(run, moved, label)
        causes += [*_far_below(run, ranks, place, label)] or _slow(run, compared, ranks, place, label)
    findings += _average(tests)
    if tests.alone:
        text = f"{tests.alone} processes call themselves the same rank: each runs the test alone, and nothing is sent between them"
        causes.append(_cause("alone", text))
    where = claim.question.cluster.key if claim else place.key if place else "…"
    notes = [*_cut_off_notes(tests)]
    sound = not causes and not any(f.verdict == DISAGREE for f in findings)  # else a fault would become the machine's own
    if tests.runs and sound and not tests.shared and not name.endswith(".json"):  # calibrate reads what is printed
        lays = f"commtax calibrate {name} --cluster {where} lays these measurements over the catalogue"
        more = "to calibrate commtax, measure sizes that are mostly latency and mostly bytes as well, such as -b 8 -e 1G"
        notes.append(Note("calibrate", lays if all(map(_has_both_sides, tests.runs)) else more))
    if place and not claim and tests.runs:
        notes.append(Note("place", f"{place.key} is taken from the devices' names"))
    if place and tests.runs:
        notes += _headline(times, "" if claim else place.key, assumed)
    return Section("collectives", (name,), tuple(findings), tuple(notes), causes=tuple(causes), facts=_facts(tests))


def _has_both_sides(run: NcclTestsRun) -> bool:
    """Return whether times grow little at the smallest sizes (mostly latency) and much at the largest (mostly bytes)."""
    timed = sorted((row.nbytes, row.seconds) for row in run.rows if row.seconds and row.nbytes)
    if len(timed) < 2:
        return False
    (least, first), (second, other) = timed[:2]
    (before, late), (most, last) = timed[-2:]
    return other / first <= (1 + second / least) / 2 and last / late >= 2 / (1 + before / most)


def _headline(times: list[tuple[str, JudgedTime]], named: str, assumed: bool) -> Iterator[Note]:
    """Note the largest size that is too slow, or on the guessed cluster ``named`` the largest of all beside its prediction."""
    if times:
        op, time = times[telling_time([t.row.nbytes for _, t in times], ["" if assumed else t.verdict for _, t in times])]
        ratio = f"{time.row.seconds / float(time.expected.seconds):.2f} x"
        guess = f"{ratio} what is predicted for {named}; names do not tell links: give --cluster to judge it"
        sure = f"{ratio} the time that it should{f' on {named}' if named else ''}"
        if assumed or time.verdict == FAIL:
            yield Note("headline", f"{op} of {format_bytes(time.row.nbytes)} took {guess if assumed else sure}")


def _cut_off_notes(tests: CollectiveTests) -> Iterator[Note]:
    yield from (Note("partial", f"{test.op or 'a test'} is cut off: {missing_words(test)}") for test in tests.cut)
    if not tests.runs and not tests.cut:
        yield Note("partial", "no row of a test's table is in this text: it tells no measurement")


def named_place(tests: CollectiveTests) -> Cluster | None:
    """Return hosts of the chip that all devices are, if there is one."""
    chips = {find_device_chip(device) for device in tests.devices}
    if len(chips) != 1 or "" in chips or not tests.ranks or tests.shared:
        return None
    hosts = max(1, len(tests.hosts))
    each = -(-max(tests.ranks, *(run.ranks for run in tests.runs), 0) // hosts)
    try:
        return catalog.cluster(f"{hosts}x{each}x{chips.pop()}" if hosts > 1 else f"{each}x{chips.pop()}")
    except Refusal:
        return None


def _links_are_certain(place: Cluster) -> bool:
    """Return whether a chip's name implies how these GPUs are joined: all over links that it is sold with."""
    inside = place.intra
    joined = bool(inside.switched or inside.mesh)
    return place.is_one_domain and place.bridge is None and inside.kind in ("nvlink", "xgmi") and joined


def _reached_bandwidth(run: NcclTestsRun, ranks: int, place: Cluster | None) -> Iterator[Finding]:
    """Report the best bandwidth, also as a share of the link's, and the time of small tensors."""
    if not run.rows:
        return
    best = max(run.rows, key=lambda r: r.busbw_Bps)
    of = f"{run.op or 'collective'} over {plural(ranks, 'rank')}" if ranks else run.op or "collective"
    item, why = Note("peak", f"{of}: best bus bandwidth, GB/s"), f"at {format_bytes(best.nbytes)}"
    yield Finding(item, None, best.busbw_Bps / 1e9, reason=why, remark=True)
    if place and 1 < ranks <= place.domain:
        rate = place.intra.bandwidth_Bps
        why = f"of {format_rate(rate)} ({place.intra.key}); switches that reduce go beyond it"
        item = Note("link", f"{of}: best bus bandwidth over the link's rate")
        yield Finding(item, None, best.busbw_Bps / rate, "share", reason=why, remark=True)
    again = max((r for r in run.rows if r.in_place_s), key=_in_place_Bps, default=best)
    if _in_place_Bps(again) > best.busbw_Bps * (1 + LEVEL.rounded):
        why = f"at {format_bytes(again.nbytes)}"
        item = Note("peak in place", f"{of}: best in place, GB/s")
        yield Finding(item, None, _in_place_Bps(again) / 1e9, reason=why, remark=True)
    small = [r.seconds for r in run.rows if r.nbytes <= COUNT.small_bytes]
    if small:
        yield Finding(Note("latency", f"{of}: least time of small tensors"), None, min(small), "s")


def _expected_findings(run: NcclTestsRun, judged: JudgedRun | None, placed: bool, assumed: bool) -> Iterator[Finding]:
    """Compare each size with the catalogue's range for this cluster, without a verdict where the cluster is a guess."""
    if judged is None or judged.refusal:
        why = str(judged.refusal) if judged else "the text does not tell which collective it is" if placed else ""
        for row in run.rows[: COUNT.most_told]:
            item = Note("size", f"{run.op or 'collective'} of {format_bytes(row.nbytes)}")
            yield Finding(item, None, row.seconds, "s", reason=why)
    else:
        yield from (_compare_time(time, run.op, assumed) for time in judged.times)


def _compare_time(time: JudgedTime, op: str, assumed: bool) -> Finding:
    """Judge a time: slower than its range disagrees, else it agrees, and an assumed range has no verdict."""
    item, wanted = Note("size", f"{op} of {format_bytes(time.row.nbytes)}"), time.expected
    finding = Finding(item, float(wanted.seconds), time.row.seconds, "s", float(wanted.spread), evidence=True)
    if assumed:
        return finding.undecided("the cluster is taken from the devices' names")
    if time.verdict == IMPOSSIBLE:
        why = f"{wanted.link} takes {format_seconds(float(wanted.floor_s))} at least: another size, group or cluster"
        return replace(finding.unsure(why), impossible=True)
    if time.verdict == ASSUMED:
        return finding.undecided(f"{wanted.source}")
    slower = f"slower than {wanted.algorithm} over {wanted.link} should be ({format_seconds(float(wanted.high_s))} at most)"
    return replace(finding, verdict=DISAGREE, reason=slower) if time.verdict == FAIL else replace(finding, verdict=AGREE)


def _cause(code: str, text: str, share: float | None = None) -> Cause:
    return Cause(code, text, share=share, change=_WORDS["changes"][code])


def _faults(run: NcclTestsRun, moved: bool, label: str) -> Iterator[Cause]:
    if wrong := sum(r.wrong for r in run.rows):
        text = f"{label}{wrong:,} wrong values (at {wrong_sizes(run)})"
        yield _cause("wrong-values", text)
    if not moved:
        return
    best, worst, deepest = None, None, 1.0
    for row in sorted(run.rows, key=lambda r: r.nbytes):
        left = row.busbw_Bps / best.busbw_Bps if best and best.busbw_Bps else 1.0
        if best and left < LEVEL.dip * deepest:
            worst, deepest = (best, row), left
        if best is None or row.busbw_Bps > best.busbw_Bps:
            best = row
    if dip := worst:
        before, at = dip
        text = f"{label}bandwidth falls from {format_rate(before.busbw_Bps)} at {format_bytes(before.nbytes)}"
        text += f" to {format_rate(at.busbw_Bps)} at {format_bytes(at.nbytes)}"
        yield _cause("dip", text, 1 - at.busbw_Bps / before.busbw_Bps)
    large = [r for r in run.rows if r.nbytes >= COUNT.large_bytes and r.in_place_s and r.seconds]
    ratio = median(r.in_place_s / r.seconds for r in large if r.in_place_s) if large else 1.0
    if abs(ratio - 1) > LEVEL.apart:
        yield Cause("in-place", f"{label}in place takes {ratio:.2f} times as long as out of place")


def _far_below(run: NcclTestsRun, ranks: int, place: Cluster | None, label: str) -> Iterator[Cause]:
    """Yield large tensors that reach only a small part of what the links inside a host carry."""
    best = max((r.busbw_Bps for r in run.rows if r.nbytes >= COUNT.bandwidth_bytes), default=0.0)
    share = best / place.intra.bandwidth_Bps if place and 2 <= ranks <= place.domain else 1.0
    if not place or not 0 < share < LEVEL.far_below:
        return
    text = f"{label}large tensors reach {format_rate(best)}, {share:.1%} of {place.intra.key}"
    yield _cause("far below", text, 1 - share)


def _slow(run: NcclTestsRun, compared: tuple[Finding, ...], ranks: int, place: Cluster | None, label: str) -> Iterator[Cause]:
    """Yield the largest tensor that is too slow, what it should reach and where to look next."""
    ought = {f.measured: f.predicted for f in compared if f.code == "size" and f.verdict == DISAGREE and f.predicted}
    rows = [r for r in run.rows if r.nbytes >= COUNT.bandwidth_bytes and ought.get(r.seconds)]
    if not place:
        return
    for row in sorted(rows, key=lambda r: r.nbytes)[-1:]:
        share = (ought[row.seconds] or 0.0) / row.seconds
        reached, usual = format_rate(row.busbw_Bps), format_rate(row.busbw_Bps / share)
        text = f"{label}{format_bytes(row.nbytes)} reaches {reached} of bus bandwidth where {usual} is to be expected"
        look = LOOK.get(place.intra.kind, LOOK["any"]) if ranks <= place.domain else LOOK["between"]
        yield Cause("slow link", text, share=1 - share, change=look)


def _average(tests: CollectiveTests) -> Iterator[Finding]:
    """Report each printed average and whether its rows make it, which checks the text and not the network."""
    if len(tests.averages_Bps) != len(tests.runs):
        for number, printed in enumerate(tests.averages_Bps, 1):
            yield Finding(Note(AVERAGE, f"test {number}: {AVERAGE}"), None, printed / 1e9)
        return
    for number, (run, printed) in enumerate(zip(tests.runs, tests.averages_Bps, strict=True), 1):
        label = f"run {number}: " if len(tests.runs) > 1 else ""
        ours = mean(b for r in run.rows for b in (r.busbw_Bps, *([_in_place_Bps(r)] if r.in_place_s else [])))
        ours *= len(run.rows) / (len(run.rows) + run.empty)
        item = Note(AVERAGE, f"{label}{AVERAGE}")
        whole = abs(printed - ours) <= LEVEL.rounded * ours
        why = "as printed: the mean of these rows" if whole else "as printed; rows are missing in this text"
        yield Finding(item, None, printed / 1e9, reason=why, remark=True)


def _in_place_Bps(row: NcclTestsRow) -> float:
    """Return the bus bandwidth in place, by its time."""
    return row.busbw_Bps * row.seconds / row.in_place_s if row.in_place_s else 0.0


def _facts(tests: CollectiveTests) -> dict[str, str]:
    counted = {"hosts": str(len(tests.hosts)), "ranks": str(tests.ranks)}
    facts = {"devices": ", ".join(tests.devices), **counted, "version": tests.version}
    return {name: value for name, value in facts.items() if value and value != "0"}
