"""Traces of a job: what happened in it, what that costs and who is to blame; and whether it is what was claimed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from commtax.runs.evidence.finding import REPEATED, WHOLE, Claim, Finding, Section, SentCollectives, Usage, typical_by_rank
from commtax.runs.traces.accounts import TracedJob, collective_rows, kernel_rows, sent_a_step, step_rows, typical_step
from commtax.runs.traces.causes import blame, causes
from commtax.runs.traces.claim_check import (
    NO_DEVICE,
    both_means,
    compare_with_claim,
    layer_notes,
    per_step,
    place_notes,
    waiting_findings,
)
from commtax.runs.traces.trace import Trace, phase_of
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import format_seconds, plural

COUNT, LEVEL = thresholds(__name__)


_FUSED = re.compile(r"fusion|fused|norm", re.I)


def audit_traces(traces: Sequence[Trace], claim: Claim | None, names: Sequence[str]) -> Section:
    """Audit all ranks of one job, or one of them."""
    job = TracedJob.of(traces)
    remarks, facts, head = tuple(_notes(job)), _facts(job), job.traces[0]
    # Of the reader's notes on the first trace not that steps are missing, where some were found by repetition.
    repeated = bool(head.steps) and head.steps[0].name == REPEATED
    read = (n for n in head.notes if not (repeated and n.code == "no steps"))
    culprit, cost_s = blame(job)
    steps, sent = step_rows(job), sent_a_step(job)
    collectives, kernels, measured = collective_rows(job), kernel_rows(job), typical_step(job)
    spent = tuple((rank, used) for rank, _, used in typical_by_rank([s for s in steps if s.usual] or steps))
    findings, notes, usage = compare_with_claim(job, claim) if claim else (tuple(_step_findings(job, spent, sent)), (), spent)
    phases = {name: phase for name in dict.fromkeys(row.name for row in steps) if (phase := phase_of(name))}
    notes = (*read, *place_notes(job.traces), *notes, *remarks, *layer_notes(job))
    return Section(
        kind="trace",
        files=tuple(names),
        findings=findings,
        notes=notes,
        usage=usage if head.on_device else (),
        causes=causes(job, culprit, cost_s),
        culprit=culprit,
        steps=steps,
        collectives=collectives,
        kernels=kernels,
        facts=facts,
        measured=measured,
        sent=sent if any(t.steps for t in job.traces) else None,
        phases=phases,
    )


def _step_findings(
    job: TracedJob, usage: Sequence[tuple[int, Usage]], sent: Mapping[tuple[str, int], SentCollectives]
) -> Iterator[Finding]:
    """Yield what a usual step holds and takes, without a claim. ``usage`` is how it was spent on each rank."""
    head = job.traces[0]
    why = "" if head.on_device else NO_DEVICE
    if not head.steps:
        return
    phase, spent = Counter(s.phase for s in head.steps).most_common(1)[0][0], job.typical
    named = WHOLE if head.steps[0].name == WHOLE else f"{phase} step".strip()
    yield Finding(Note("step", named), None, float(np.mean([used.total_s for _, used in usage])), "s", reason=why)
    for op, count in sorted(per_step(job).items()):
        yield Finding(Note("count", f"{op}s per step"), None, count, of=op)
        sizes = [s.nbytes for (kind, _), s in sent.items() if kind == op]
        if (size := (None if None in sizes else float(sum(n or 0.0 for n in sizes)))) is not None:
            yield Finding(Note("bytes", f"{op} bytes per step"), None, size, "bytes", of=op)
        # The wires of the kind on the first rank: what other groups send may be of another size.
        head_calls = zip(head.collectives, job.waiting[0].tolist(), strict=True)
        calls = [(c.seconds, waited) for c, waited in head_calls if c.op == op]
        wires = [lasted - w for lasted, w in calls if not math.isnan(w)] or [lasted for lasted, _ in calls]
        item, mean = both_means(op, job.meetings is not None, wires)
        yield Finding(item, None, float(median(wires)), "s", reason=why, of=op)
        yield from [mean] if mean else []
    if head.on_device and spent.usual_s > 0:
        length, idle = np.maximum(spent.usual("total_s"), 1e-12), spent.usual("idle_s")
        exposed = spent.usual("wire_s") + spent.usual("wait_s")
        yield Finding("exposed communication, of the step", None, float(np.min(exposed / length)), "share")
        yield Finding("idle device, of the step", None, float(np.median(idle / length)), "share")
    yield from _outside_findings(job)
    usual = [[s for s in t.steps if s.phase == phase] or t.steps for t in job.traces]
    yield from (f.undecided(f.reason) for f in waiting_findings(job, usual, 1))


def _outside_findings(job: TracedJob) -> Iterator[Finding]:
    """Report what each rank computes in the whole trace, where its steps hold less than half of that."""
    for place, trace in enumerate(job.traces[: COUNT.most_ranks]):
        ran, (begin, end) = job.covered[place].compute, job.windows[place]
        total = ran.seconds(-math.inf, math.inf)
        inside = float(ran.within(begin, end).sum())
        if trace.on_device and inside < LEVEL.in_steps * total:
            item = Note("outside", f"rank {trace.rank}: compute in the whole trace")
            yield Finding(item, None, total, "s", reason=f"{format_seconds(inside)} of it in its steps")


def _notes(job: TracedJob) -> Iterator[Note]:
    """Note how steps were found, clocks that differ, kernels that hold compute, and files that end early."""
    head = job.traces[0]
    if head.steps and head.steps[0].name == REPEATED:
        each = format_seconds(median(s.seconds for s in head.steps))
        yield Note("repetition", f"{plural(len(head.steps), 'step')} of {each} found by repetition: nobody named them")
    fused = {c.name.split("<")[0].split("(")[0] for c in head.collectives if _FUSED.search(c.name[:300])}
    if fused:
        number = sum(bool(_FUSED.search(c.name[:300])) for c in head.collectives)
        which = ", ".join(sorted(fused)[:3])
        yield Note("fused", f"{number} collectives are fused with what follows ({which}): their time holds compute")
    if job.meetings and (most := max(abs(o) for o in offsets(job))) > LEVEL.skew_s:
        yield Note("clocks", f"clocks of the ranks differ by up to {format_seconds(most)}: aligned by what ends on all of them")
    yield from (Note("partial", f"rank {t.rank}: {t.partial}") for t in job.traces if t.partial)


def offsets(job: TracedJob) -> list[float]:
    """Return what is added to each rank's clock."""
    return [float(c.job_s(np.array(c.at_s)) - c.at_s) for c in job.meetings.clocks] if job.meetings else [0.0]


def _facts(job: TracedJob) -> Mapping[str, str]:
    head, here = job.traces[0], len(job.traces)
    name = head.steps[0].name if head.steps else ""
    how = name if name in (REPEATED, WHOLE) else "graph replays" if name == "graph replay" else "annotated"
    facts = {
        "ranks": f"{here} of {head.world}" if head.world > here else f"{here}",
        "device": (head.device.name or "a device without a name") if head.device else "",
        "hosts": ", ".join(sorted({t.host for t in job.traces if t.host})[:16]),
        "steps": f"{len(head.steps)} ({how})" if head.steps else "",
        "kernels from graphs": f"{head.replayed:.0%}" if head.on_device and (head.device or head.replayed) else "",
        "algorithms": ", ".join(sorted({f"{c.op} {c.algorithm}" for c in head.collectives if c.algorithm})[:16]),
        "group sizes": ", ".join(map(str, sorted({c.ranks for c in head.collectives if c.ranks})[:16])),
    }
    return {name: value for name, value in facts.items() if value}
