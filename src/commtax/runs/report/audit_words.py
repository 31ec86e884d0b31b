"""An audit in sentences: what ran, what binds, who is to blame, what it costs and what to change; and as a document."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from commtax.files import table
from commtax.report.documents import Record, record, to_object
from commtax.runs.evidence.finding import (
    AGREE,
    DISAGREE,
    RESULTS,
    STEP_PARTS,
    UNKNOWN,
    Audit,
    Cause,
    Culprit,
    Finding,
    Section,
    Usage,
    by_rank,
    missing_sentence,
    typical_of_ranks,
    usual_phase,
)
from commtax.runs.evidence.finding import WHOLE as WHOLE_TRACE
from commtax.runs.evidence.identity import bundled_key
from commtax.spec import PARALLEL, SERVING_AXES
from commtax.statement import Note, OptionValue
from commtax.units import format_bytes, format_seconds, plural
from commtax.words import words

WORDS = table("report/words.toml")["audit"]
MOST_CAUSES = 5
DECIDE = ("hang", "overload", "cache full", "preempted", "queue")  # causes that are the verdict on a run by themselves
MOST_FILES = 3  # of a section, by name
PLACED = ("links", "monitor", "state", "topology", "collectives")  # kinds of sections that are judged by their place alone
TIMED = ("bench", "collectives")  # … that hold little but times, which are neither good nor bad by themselves
SOUND = "nothing in it is off"
MOST_FIGURES = 3
MOST_NAMED = 2  # that disagree, in the first line
# Codes of what files say of the run itself, not of its speed.
SAID = frozenset(("model", "chip", *SERVING_AXES, *(PARALLEL[axis].title for axis in SERVING_AXES)))
WHOLE = 1000  # from which on figures have no fraction
MOST_FACTS = 10  # in a note
JOBS = ("trace", "flight")  # kinds of sections that tell who is to blame by themselves
_FORMATS: Mapping[str, Callable[[float], str]] = {"s": format_seconds, "bytes": format_bytes, "share": "{:.1%}".format}


def headline(audited: Audit) -> Note:
    """Return the verdict in one line: what ran, and how it went."""
    if audited.claim is None:
        cut = _is_cut(audited)
        outcome = outcome_sentence(audited, "what it has shows nothing off") if cut else outcome_sentence(audited)
        return words("audit-outcome", job=job_sentence(audited.sections), partial="partial, " * cut, outcome=outcome)
    question, profile = audited.claim.question, audited.claim.question.profile
    place = f"{question.cluster.key}, profile {profile.name}" if profile else question.cluster.key
    outcome = f"{WORDS['verdicts'][audited.verdict]}{_disagreement(audited)}"
    verdict = _culprit_words(audited.culprit) if audited.culprit else outcome
    verdict = f"partial, {verdict}" if _is_cut(audited) else verdict
    if all(s.kind in PLACED for s in audited.sections):  # no model ran
        verdict = f"{verdict}: {fact}" if (fact := _headline_fact(audited)) else verdict
        return words("audit-verdict", run=f"{job_sentence(audited.sections)} on {place}", verdict=verdict, counts=_counts(audited))
    plan = ", ".join(filter(None, (f"TP {audited.claim.tp}", audited.claim.plan_source)))
    return words("audit-verdict", run=f"{question.model.key} on {place}, {plan}", verdict=verdict, counts=_counts(audited))


def _disagreement(audited: Audit) -> str:
    """Name what disagrees, and by how much: contradictions of the claim first, then measured headline figures."""
    wrong = [(f, s) for s in audited.sections if s.kind not in PLACED for f in s.findings if f.verdict == DISAGREE]
    wrong.sort(key=lambda pair: (pair[0].code not in SAID, not pair[0].evidence))
    more = [f"{len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []
    named = (f"{_whose(s, audited)}{_gap_words(f)}" for f, s in wrong[:MOST_NAMED])
    return f": {', '.join([*named, *more])}" if wrong else ""


def _whose(section: Section, audited: Audit) -> str:
    """Return a section's file as a prefix, where other sections of its kind stand beside it."""
    return f"{section.files[0]}: " if sum(s.kind == section.kind for s in audited.sections) > 1 else ""


def _gap_words(f: Finding) -> str:
    """Compare measured and predicted in words, leaving a difference that is a share of something else to the table.

    >>> _gap_words(Finding("TTFT (mean)", 0.2, 0.3, "s"))
    'TTFT (mean) 300 ms instead of 200 ms (+50.0%)'
    """
    if f.predicted is None or f.measured is None:
        return f.reason if f.code in SAID else f.item
    if f.code in SAID:
        return f"{f.item} {value_text(f.measured, f.unit)} in the file, not {value_text(f.predicted, f.unit)} as was said"
    share = f" ({share_text(f.difference, '+')})" if f.base is None and f.difference not in (None, math.inf) else ""
    measured, predicted = (value_text(value, f.unit) for value in (f.measured, f.predicted))
    return f"{f.item} {measured} {'against' if f.is_bound else 'instead of'} {predicted}{share}"


def summary(audited: Audit) -> list[str]:
    """Return the lines before any table."""
    others = map(cause_sentence, other_causes(audited)[:MOST_CAUSES])
    return [headline(audited), *missing_lines(audited), *job_lines(audited), *culprit_lines(audited), *others]


def missing_lines(audited: Audit) -> list[str]:
    """Return below a claim without a verdict what is missing to judge it."""
    return [f"to judge it: {why}"] if (why := missing_sentence(audited)) else []


def job_lines(audited: Audit) -> list[str]:
    """Return below the verdict on a claim what a trace shows of the job, and what binds it."""
    return [job_sentence(audited.sections)] if audited.claim and any(s.steps for s in audited.sections) else []


def culprit_lines(audited: Audit) -> list[str]:
    """Return the culprit in a sentence, with its price and what to change."""
    if audited.culprit is None:
        return []
    cause = blamed_cause(audited)
    rest = [cost_words(cause), *change_lines(cause)] if cause else []
    return ["; ".join(filter(None, (to_blame(audited.culprit, audited), *rest)))] if rest or audited.culprit.said else []


def to_blame(culprit: Culprit, audited: Audit) -> str:
    """Describe how the headline's culprit shows, and since when if that was not at once."""
    steps = [row.start_s for s in audited.sections if s.culprit is culprit for row in s.steps if row.index == 0]
    return "Why: " + ", ".join(filter(None, (_since(culprit, max(steps, default=0.0)), culprit.said or culprit.kind)))


def causes(audited: Audit) -> list[Cause]:
    """Return the causes of all sections, the dearest first, then those without a price, each with its file if there are several."""
    by_file = ((_whose(s, audited), c) for s in audited.sections for c in s.causes)
    labelled = (replace(c, said=f"{file}{c.said}") if file else c for file, c in by_file)
    return sorted(labelled, key=lambda c: -c.cost_s if c.cost_s is not None and math.isfinite(c.cost_s) else 0.0)


def cause_sentence(cause: Cause) -> str:
    """Describe a cause, what it costs and what to change.

    >>> cause_sentence(Cause("exposed", "all-reduces are exposed", 0.0013, 0.14, "--disable-eager", "up to 1.3 ms per step"))
    'all-reduces are exposed: costs 1.3 ms (14%); try: --disable-eager; gain: up to 1.3 ms per step'
    """
    rest = "; ".join(filter(None, (cost_words(cause), *change_lines(cause))))
    return f"{cause.said}: {rest}" if rest else cause.said


def cost_words(cause: Cause) -> str:
    """State what a cause costs, and what share of a step or request that is."""
    share = f"{cause.share:.0%}" if cause.share is not None and math.isfinite(cause.share) else ""
    if cause.cost_s is None or not math.isfinite(cause.cost_s):
        return f"costs {share}" if share else ""
    return f"costs {format_seconds(cause.cost_s)}{f' ({share})' if share else ''}"


def change_lines(cause: Cause) -> list[str]:
    return [*([f"try: {cause.change}"] if cause.change else []), *([f"gain: {cause.gain}"] if cause.gain else [])]


def culprit_sentence(culprit: Culprit) -> str:
    """Name the culprit, its kind, since when, and how that shows.

    >>> culprit_sentence(Culprit("late rank", 3, 12.4, "the others wait 28% of each step for it"))
    'rank 3 (late rank) since 12.4 s: the others wait 28% of each step for it'
    """
    who = f"rank {culprit.rank} ({culprit.kind})" if culprit.rank is not None else culprit.kind
    who = " ".join(filter(None, (who, _since(culprit, 0.0))))
    return f"{who}: {culprit.said}" if culprit.said else who


def _since(culprit: Culprit, begin_s: float) -> str:
    """State when it began, "" if that was with the first step."""
    return f"since {format_seconds(culprit.since_s)}" if culprit.since_s and culprit.since_s > begin_s else ""


def blamed_cause(audited: Audit) -> Cause | None:
    """Return the first cause under the culprit's code, which has its price and its remedy."""
    code = next((s.blamed or s.culprit.kind for s in audited.sections if s.culprit), None)
    return next((c for c in causes(audited) if c.code == code), None)


def other_causes(audited: Audit) -> list[Cause]:
    """Return all causes but the culprit's, which is described with it."""
    blamed = blamed_cause(audited)
    return [c for c in causes(audited) if c is not blamed]


def job_sentence(sections: Sequence[Section]) -> str:
    """Describe the job of a trace and what binds it, or list which files were read."""
    if (several := sum(s.kind == "trace" for s in sections)) > 1:
        return f"traces of {several} jobs, each reported separately"
    for section in sections:
        if used := typical_of_ranks(section):
            if section.culprit:  # whose share is told: another one beside it would not add up with it
                return job(section)
            words = WORDS["binding"] | (WORDS["on_host"] if has_no_device(section) else {})
            return f"{job(section)}, {binding_words(used, words)}"
    kinds: Counter[str] = Counter()
    for section in sections:
        kinds[section.kind] += int(section.facts.get(RESULTS, "1"))
    read = ", ".join(plural(count, WORDS["kinds"].get(kind, kind)) for kind, count in kinds.items()) or "no file"
    shown = [s for s in sections if s.kind != "bench"] + [s for s in sections if s.kind == "bench"][:1]
    figures = [figure for s in shown for figure in _figures(s)][:MOST_FIGURES]
    first = "the first: " if kinds["bench"] > 1 else ""
    return f"{read}, {first}{', '.join(figures)}" if figures else read


def _figures(section: Section) -> Iterator[str]:
    by_code = {f.code: f for f in reversed(section.findings) if f.measured is not None}
    for code, name in WORDS["headed"].items():
        if finding := by_code.get(code):
            yield f"{name} {value_text(finding.measured, finding.unit)}"


def job(section: Section) -> str:
    """State how many ranks and steps there are, and how long a step is."""
    ranks = by_rank(section)
    used, steps = typical_of_ranks(section), max(count for _, count, _ in ranks)
    length = format_seconds(used.total_s) if used else ""
    many, kind = plural(len(ranks), "rank"), f"{usual_phase(section)} step".strip()
    whole = not steps or all(row.name == WHOLE_TRACE for row in section.steps)
    return f"{many}, {length} as a whole" if whole else f"{many}, {plural(steps, kind)} of {length}"


def has_no_device(section: Section) -> bool:
    """Return whether no device was traced."""
    return any(n.code == "no device" for n in section.notes)


def binding_words(used: Usage, words: Mapping[str, str]) -> str:
    """Name the part that takes most of a step."""
    most = max(STEP_PARTS, key=lambda name: getattr(used, name))
    return f"{words[most]} ({getattr(used, most) / used.total_s:.0%})" if used.total_s > 0 else "nothing was timed"


def _is_cut(audited: Audit) -> bool:
    return any(n.code == "partial" for s in audited.sections for n in s.notes)


def outcome_sentence(audited: Audit, sound: str = SOUND) -> str:
    if audited.culprit:
        return _culprit_words(audited.culprit)
    if audited.count(DISAGREE):
        slow = any(f.code == "size" and f.verdict == DISAGREE for s in audited.sections if s.kind in PLACED for f in s.findings)
        return f"something is off{f': {_headline_fact(audited)}' if slow else ''} ({_counts(audited)})"
    used = [typical_of_ranks(s) for s in audited.sections if s.steps]
    untimed = len(used) == len(audited.sections) and not any(u and u.total_s > 0 for u in used)  # steps that take no time
    if not any(says_anything(s) for s in audited.sections) or untimed:
        return "nothing could be determined"
    dearest = causes(audited)
    if worst := next((c for c in dearest if c.code in DECIDE), None):
        return worst.said
    if count := len(dearest):
        nobody = "no culprit found, but " if any(s.kind in JOBS for s in audited.sections) else ""
        return f"{nobody}{plural(count, 'cause')} of lost time"
    if any(n.code == "stopped" for s in audited.sections for n in s.notes):
        return "the start is not finished in it"
    jobs = [s for s in audited.sections if s.kind in JOBS]
    if fact := _headline_fact(audited):
        return fact
    if not jobs:
        named = all(s.kind in PLACED or bundled_key(s.facts.get("model", "")) for s in audited.sections)
        claim = [OptionValue("cluster")] if named else [OptionValue("model"), OptionValue("cluster")]
        unjudged = any(s.kind in TIMED for s in audited.sections) and sound == SOUND
        return words("audit-not-judged", claim=claim) if unjudged else words("audit-sound", sound=sound, claim=claim)
    return "no culprit found" if any(map(has_no_device, jobs)) else "no culprit found, and nothing is off"


def _headline_fact(audited: Audit) -> str:
    """Return the fact that a section puts first."""
    return next((n for s in audited.sections for n in s.notes if n.code == "headline"), "")


def says_anything(section: Section) -> bool:
    rows = (section.steps, section.collectives, section.kernels)
    return any((section.findings, section.usage, section.causes, *rows, section.facts))


def _culprit_words(culprit: Culprit) -> str:
    kind = culprit.kind
    return f"the culprit is a {kind}" if culprit.rank is None else f"rank {culprit.rank} is the culprit ({kind})"


def _counts(audited: Audit) -> str:
    return ", ".join(f"{audited.count(v)} {v}" for v in (AGREE, DISAGREE, UNKNOWN))


def title(section: Section) -> str:
    files = list(dict.fromkeys(section.files))
    more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
    partial = " (partial)" if any(n.code == "partial" for n in section.notes) else ""
    return f"{section.kind}: {', '.join(files[:MOST_FILES])}{more}{partial}"


def remarks(section: Section) -> Iterator[str]:
    """Yield notes, those on files that end too early first."""
    yield from sorted(section.notes, key=lambda n: n.code != "partial")


def fact_lines(section: Section) -> list[str]:
    """Return the facts that two runs may differ in, in a line."""
    lines = [f"{name}: {value}" for name, value in section.facts.items()]
    left = len(lines) - MOST_FACTS
    more = words("audit-more", count=left) if left > 0 else ""
    return [words("audit-facts", facts="; ".join(lines[:MOST_FACTS]), more=more)] if lines else []


def value_text(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= WHOLE else f"{value:,.2f}"


def difference_text(share: float | None, base: float | None, unit: str) -> str:
    """Format a difference as a share of the prediction, or of what else it is a share of.

    >>> difference_text(-0.1, None, "bytes"), difference_text(-0.1, 80 * 2**30, "bytes")
    ('-10.0%', '-10.0% of 80 GiB')
    """
    text = share_text(share, "+")
    return f"{text} of {value_text(base, unit)}" if text and base is not None else text


def share_text(value: float | None, sign: str = "") -> str:
    if value is None or not math.isfinite(value):
        return ""
    return "exact" if value == 0 and not sign else f"{value:{sign}.1%}"


def audit_document(audited: Audit) -> Record:
    made = record(
        "audit",
        audited=audited,
        missing=missing_sentence(audited),
        summary=summary(audited),
        culprit=described_culprit(audited),
        causes=causes(audited),
        counts={v: audited.count(v) for v in (AGREE, DISAGREE, UNKNOWN)},
        steps=[row for s in audited.sections for row in s.steps],
        collectives=[row for s in audited.sections for row in s.collectives],
        facts=merged(s.facts for s in audited.sections),
        sections=[
            record(
                "audit-section",
                section=s,
                findings=[record("audit-finding", finding=f) for f in s.findings],
                usage=[{"rank": rank, **asdict(u), "busy_s": u.busy_s, "idle_s": u.idle_s} for rank, u in s.usage],
                kernels=[record("audit-kernel", row=row) for row in s.kernels],
            )
            for s in audited.sections
        ],
    )
    return to_object(made)


def described_culprit(audited: Audit) -> Culprit | None:
    """Return the culprit, described in words if it has none."""
    culprit = audited.culprit
    return replace(culprit, said=culprit.said or culprit_sentence(culprit)) if culprit else None


def merged(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge the facts of several files by name, with differing values side by side."""
    by_name: dict[str, list[str]] = {}
    for of_file in each:
        for name, value in of_file.items():
            by_name.setdefault(name, []).append(value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in by_name.items()}
