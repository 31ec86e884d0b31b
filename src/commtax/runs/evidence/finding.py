"""Lines of an audit (what was predicted, what a run left behind, whether they agree), its sections, and their typical steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from commtax.answer import Answer
from commtax.question import Question
from commtax.rules.values import positive
from commtax.spec import Plan
from commtax.statement import Note, Refusal
from commtax.thresholds import counts, levels
from commtax.timeline import Timeline
from commtax.units import format_bytes, format_seconds
from commtax.verbs.billing import StepBill, price
from commtax.verbs.settling import settle

HEADLINES = "step, time of a token, throughput, memory or time of a collective"
CALIBRATE = "commtax measure calibrate on that machine, or commtax calibrate of its results, makes the FILE for --profile"
COUNT = counts(__name__)
COUNTED = ("bytes", "tokens")  # units that no constants of a machine change


AGREE, DISAGREE, UNKNOWN = "agree", "disagree", "unknown"
REPEATED, WHOLE = "repetition", "whole trace"  # names of steps that no program named
RESULTS = "results"  # a fact of a file that holds several results: how many
FAULT = "fault"  # of a whole audit: a culprit is named
LEVEL = levels(__name__)
ROUNDING = 1e-13  # of sums, relative
PHASES = ("decode", "prefill", "mixed", "train")  # steps that can be compared: of traces the first three, of training logs the last


@dataclass(frozen=True, slots=True)
class Finding:
    """``difference`` is relative to the prediction, or to ``base`` where the prediction is what that leaves.

    ``unit`` is s, bytes, tokens, share or "" for a count. ``code`` says what is compared, whatever else the item tells.
    ``evidence`` is a measured headline figure (step, token times, throughput, memory, a collective's time) beside its prediction:
    it alone can make a run agree. Identities, floors and sizes of the plan can only refute it.
    """

    item: str
    predicted: float | None
    measured: float | None
    unit: str = ""
    tolerance: float = 0.0
    reason: str = ""
    base: float | None = None
    verdict: str = UNKNOWN
    evidence: bool = False
    low: float | None = None  # the range of the prediction, where it has one beside the tolerance
    high: float | None = None
    of: str = ""  # the kind of collective, the clock …: which of several figures under one code
    impossible: bool = False  # faster than anything could be: what was claimed did not run, and nothing else can agree
    remark: bool = False  # the reason describes the figure (its range, how often it was printed), and not why it has no verdict

    @property
    def code(self) -> str:
        return self.item.code if isinstance(self.item, Note) else self.item

    @property
    def is_bound(self) -> bool:
        """Whether the prediction is a floor or a ceiling, from which any distance on the right side is as good."""
        return math.isinf(self.tolerance)

    @property
    def difference(self) -> float | None:
        if self.predicted is None or self.measured is None or self.is_bound:
            return None
        base = self.predicted if self.base is None else self.base
        if base == 0:
            return 0.0 if self.measured == 0 else math.inf
        return (self.measured - self.predicted) / base

    def judged(self) -> Finding:
        """Decide: agree within the tolerance, else disagree for the reason, and unknown where one side is missing.

        >>> Finding("weights", 7.5, 15.0, "bytes", 0.02, "as if not split").judged().verdict
        'disagree'
        """
        if self.difference is None:
            return self
        near = abs(self.difference) <= self.tolerance * (1 + 1e-9)
        return replace(self, verdict=AGREE if near else DISAGREE, reason="" if near else self.reason)

    def undecided(self, why: str) -> Finding:
        """Return the same figures without a verdict, because what was measured is not what was predicted."""
        return replace(self, verdict=UNKNOWN, reason=why, evidence=False)

    def unsure(self, why: str) -> Finding:
        """Return the figures without a verdict, because the prediction is assumed: far off, it prevents agreement elsewhere."""
        return replace(self, verdict=UNKNOWN, reason=why)

    @property
    def near(self) -> bool:
        """Whether the measured figure is within the tolerance of the prediction, or inside its range."""
        if self.difference is None or self.measured is None:
            return False
        inside = self.low is not None and self.high is not None and self.low <= self.measured <= self.high
        return inside or abs(self.difference) <= self.tolerance * (1 + 1e-9)

    @property
    def far_off(self) -> bool:
        """Whether an assumed prediction is contradicted by what was measured."""
        return self.impossible or (self.evidence and self.verdict == UNKNOWN and self.difference is not None and not self.near)


def reason_assumed(priced: StepBill) -> str:
    """Explain why seconds of a step cannot be compared, or return "" where they are calibrated."""
    lines = [x for x in priced.lines if x.kind in ("compute", "comm") and x.source.kind == "assumed"]
    weak = dict.fromkeys(x.source.detail for x in lines)
    return f"seconds of {priced.question.cluster.chip.key} are assumed ({'; '.join(weak)}): calibrate first" if weak else ""


@dataclass(frozen=True)  # without slots: whether to trust it is decided once
class Claim:
    """The run that the user claims: a question and its workload. None leaves a value to the file."""

    question: Question
    batch: int | None = None
    context: int | None = None
    output_len: int | None = None
    tolerance: float = LEVEL.seconds_tolerance
    strict: bool = False  # the tolerance decides alone: no range and no distrust of constants excuses a difference
    plan_source: str = ""  # who states the plan, in words; "": the user
    guessed: bool = False  # the plan is not stated, and the cluster has room for others

    def __post_init__(self) -> None:
        if self.question.phase not in PHASES:
            raise Refusal(f"phase '{self.question.phase}': one of {', '.join(PHASES)}", "phase")
        for f in fields(self)[1:4]:
            if getattr(self, f.name) is not None:
                positive(**{f.name: getattr(self, f.name)})

    @property
    def plan(self) -> Plan:
        return self.question.plan

    @property
    def tp(self) -> int:
        return int(self.plan.tp)

    def bill(self, phase: str = "decode", batch: int = 1, context: int = 1024, **changes: str | int) -> StepBill:
        return price(settle(self.question.but(phase=phase, batch=batch, context=context, **changes)))

    @cached_property
    def distrust(self) -> str:
        """Why seconds cannot be compared: the plan is assumed, or the cluster is not calibrated. "" where they can."""
        return f"tp {self.tp} is assumed: say with -tp or --from what ran" if self.guessed else reason_assumed(self.bill())

    def seconds(
        self, item: str, predicted: float | None, measured: float | None, reason: str = "", base: float | None = None
    ) -> Finding:
        """Compare times, with a verdict only where the prediction rests on measurements."""
        finding = Finding(item, predicted, measured, "s", self.tolerance, reason, base, evidence=True)
        return finding.unsure(self.distrust) if self.distrust and not self.strict else finding.judged()


@dataclass(frozen=True, slots=True)
class Cause:
    """What binds or costs, what to change and what that would gain. ``share`` is of the step (or of the request)."""

    code: str
    said: str
    cost_s: float | None = None  # of a step, where steps are known
    share: float | None = None
    change: str = ""
    gain: str = ""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The one to blame, of a kind in ``CULPRITS``. None where it is no single rank, or blamed since the beginning."""

    kind: str
    rank: int | None
    since_s: float | None  # of the trace's own time
    said: str = ""


CULPRITS = ("slow rank", "late rank", "slow link", "starved stage", "lost overlap")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of one rank, each second once but for ``hidden_s``, which ``compute_s`` holds already."""

    rank: int
    index: int
    name: str
    start_s: float
    compute_s: float
    exposed_s: float
    hidden_s: float
    copy_s: float
    idle_s: float
    usual: bool = True  # like most steps of the run, which stand for the typical one


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Collectives alike, of all ranks together: counts and bytes are of one rank, seconds the sum of one rank's."""

    op: str
    algorithm: str
    group: str
    ranks: int
    count: int
    nbytes: float | None  # all of them together; None where the trace has no sizes
    wire_s: float
    wait_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True)
class SentCollectives:
    """Collectives of one kind and group size: a rank's in a usual step, where steps are known, else all."""

    count: float = 0.0
    nbytes: float | None = 0.0
    wire_s: float = 0.0
    wait_s: float = 0.0
    hidden_s: float = 0.0
    algorithms: tuple[str, ...] = ()

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.wire_s + self.wait_s - self.hidden_s)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Device work under one name, in the known steps, of all ranks together: its seconds a step of a rank."""

    name: str
    kind: str  # compute | comm | copy | wait
    count: float  # a step
    seconds: float  # a step


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of some windows, each second once: what computes hides what communicates, and both hide what copies."""

    total_s: float
    compute_s: float
    exposed_s: float  # communication that no compute covers
    hidden_s: float  # communication under compute, which ``compute_s`` holds already
    copy_s: float

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.exposed_s + self.copy_s

    @property
    def idle_s(self) -> float:
        left = self.total_s - self.busy_s
        return left if left > ROUNDING * self.total_s else 0.0

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.total_s if self.total_s > 0 else 0.0

    def of(self, steps: int) -> Usage:
        return Usage(*(getattr(self, f.name) / steps for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Section:
    """The content of one file, or of the ranks of one job."""

    kind: str  # log | trace | flight | bench | training | collectives | links | monitor | topology | state | crash
    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()
    usage: tuple[tuple[int, Usage], ...] = ()  # rank, and how its typical step was spent
    causes: tuple[Cause, ...] = ()  # dearest first
    culprit: Culprit | None = None
    steps: tuple[StepRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()  # dearest first, the first few hundred
    facts: Mapping[str, str] = field(default_factory=dict)  # versions, flags, hosts, transports: what two runs may differ in
    measured: Timeline | None = None  # a typical step of the first ranks, from its own beginning
    sent: Mapping[tuple[str, int], SentCollectives] | None = None  # of a usual step, by kind and group size; None: unknown
    phases: Mapping[str, str] = field(default_factory=dict)  # of steps, by the names that report them
    blamed: str = ""  # code of the cause that is the culprit's, where that is not its kind


ROUNDING_S = 1e-12
STEP_PARTS = ("compute_s", "exposed_s", "copy_s", "idle_s")  # of a step, each second once: together they are the step


def length_s(row: StepRow) -> float:
    return row.compute_s + row.exposed_s + row.copy_s + row.idle_s


def mean_middle_half(rows: Sequence[StepRow]) -> Usage:
    """Average the middle half of the steps by length: outliers are left out, and the parts still sum to the whole."""
    ordered = sorted(rows, key=length_s)
    quarter = len(ordered) // 4
    kept = ordered[quarter : len(ordered) - quarter]
    parts = ([getattr(r, name) for r in kept] for name in ("compute_s", "exposed_s", "hidden_s", "copy_s"))
    return Usage(_mean([length_s(r) for r in kept]), *map(_mean, parts))


def _mean(seconds: Sequence[float]) -> float:
    """Return the mean, or 0 where only rounding is left."""
    mean = sum(seconds) / len(seconds)
    return mean if mean > ROUNDING_S else 0.0


def usual_phase(section: Section) -> str:
    """Return the phase of most usual steps, such as prefill or decode, or of most steps where none is usual."""
    counted = Counter(section.phases.get(row.name, "") for row in [r for r in section.steps if r.usual] or section.steps)
    return counted.most_common(1)[0][0] if counted else ""


def by_rank(section: Section) -> list[tuple[int, int, Usage]]:
    """Return each rank, its number of steps of the usual phase and a typical one, or the mean where steps are not listed."""
    if not section.steps:
        return [(rank, 0, used) for rank, used in section.usage]
    usual = usual_phase(section)
    return typical_by_rank([row for row in section.steps if section.phases.get(row.name, "") == usual])


def typical_by_rank(steps: Sequence[StepRow]) -> list[tuple[int, int, Usage]]:
    """Return each rank, its number of steps and a typical one of the usual steps (of all where none is usual)."""
    ranks: dict[int, list[StepRow]] = {}
    for row in steps:
        ranks.setdefault(row.rank, []).append(row)
    return [(rank, len(rows), mean_middle_half([r for r in rows if r.usual] or rows)) for rank, rows in sorted(ranks.items())]


def typical_of_ranks(section: Section) -> Usage | None:
    """Average the typical steps of the ranks, or return None where no step is listed."""
    each = [used for _, _, used in by_rank(section)]
    if not each:
        return None
    return Usage(*(sum(getattr(u, name) for u in each) / len(each) for name in Usage.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class Audit(Answer):
    """What files report of a run, compared with ``claim``. Without a claim it describes the run and does not judge it.

    >>> import commtax
    >>> run = commtax.audit_run("tests/fixtures/vllm-cpu-tp2.log", model="tests/fixtures/tiny-llama", cluster="2xcpu", tp=2)
    >>> run.verdict, run.count("disagree")
    ('agree', 0)
    """

    claim: Claim | None
    sections: tuple[Section, ...]
    notes: tuple[Note, ...] = ()  # on the files that were handed over

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(f for s in self.sections for f in s.findings)

    def count(self, verdict: str) -> int:
        return sum(f.verdict == verdict for f in self.findings)

    @property
    def verdict(self) -> str:
        """Fault if there is a culprit, disagree if a finding does, agree if evidence does and none is far off, else unknown."""
        if self.culprit or self.count(DISAGREE):
            return FAULT if self.culprit else DISAGREE
        agreed = any(f.evidence and f.verdict == AGREE for f in self.findings)
        return AGREE if agreed and not any(f.far_off for f in self.findings) else UNKNOWN

    @property
    def culprit(self) -> Culprit | None:
        return next((s.culprit for s in self.sections if s.culprit), None)


def missing_sentence(audited: Audit) -> str:
    """Explain why a claim has no verdict and what would give one, or return "" where there is one."""
    if audited.claim is None or audited.verdict != UNKNOWN:
        return ""
    unsure = [f for f in audited.findings if f.evidence and f.verdict == UNKNOWN and f.difference is not None]
    if unsure and all(f.unit in COUNTED for f in unsure):
        return "; ".join(filter(None, (unsure[0].reason, _furthest_words(unsure))))
    if unsure:
        weak = audited.claim.distrust or unsure[0].reason
        mend = "" if audited.claim.guessed else CALIBRATE
        return "; ".join(filter(None, (weak, mend, _furthest_words(unsure))))
    measured = [f for f in audited.findings if f.verdict == UNKNOWN and f.measured is not None and f.reason and not f.remark]
    reasons = list(dict.fromkeys(f.reason for f in measured))[: COUNT.most_reasons]
    absent = [f.item for f in audited.findings if f.predicted is not None and f.measured is None and not f.remark]
    if not reasons and absent:
        return f"the files do not tell {', '.join(absent[: COUNT.most_reasons])}"
    same = [f.item for f in audited.findings if f.verdict == AGREE]  # what was compared, and is as claimed
    agreed = f"; as claimed: {', '.join(same)}" if 0 < len(same) <= COUNT.most_agreed else ""
    return "; ".join(reasons) or f"the files hold no {HEADLINES} that is predicted{agreed}"


def _furthest_words(unsure: list[Finding]) -> str:
    """Describe the figure furthest from its assumed prediction, where one is outside its range."""
    off = [f for f in unsure if f.far_off]
    if not off:
        return ""
    worst = max(off, key=_ratio)
    how = "were counted" if worst.unit in COUNTED else "is assumed"
    return f"{worst.item} was {figure_text(worst.measured, worst.unit)} where {figure_text(worst.predicted, worst.unit)} {how}"


def _ratio(f: Finding) -> float:
    """Return how many times too large or too small a figure is."""
    if not f.predicted or not f.measured or f.predicted < 0 or f.measured < 0:
        return math.inf
    return max(f.measured / f.predicted, f.predicted / f.measured)


def figure_text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if unit == "s" else format_bytes(value) if unit == "bytes" else f"{value:,.4g}"
