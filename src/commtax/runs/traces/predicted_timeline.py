"""The step that a run should have had, laid out in time beside the one that it had."""

from collections import Counter
from collections.abc import Iterator

from commtax.ledger import Line
from commtax.runs.evidence.finding import Claim, Section
from commtax.runs.traces.trace import KINDS, named_steps, timeline_of
from commtax.timeline import Timeline
from commtax.verbs.billing import StepBill
from commtax.verbs.explained_step import ENDS, layer_of

BEFORE = ("tower", "embedding")  # of the parts that no layer has, those that run before the first
HOST = "host"
Row = tuple[str, float, float, str, str]


def priced_step(claim: Claim, section: Section) -> StepBill:
    """The bill of the section's commonest step, as far as the names of its steps tell it; else of what was said."""
    steps = [s for name, many in Counter(r.name for r in section.steps).items() for s in named_steps([(name, 0.0, 1.0)]) * many]
    phases = {s.phase for s in steps}
    phase = claim.question.phase
    if phase not in phases:
        phase = next((p for p in ("decode", "prefill", "mixed") if p in phases), phase)
    alike = [s for s in steps if s.phase == phase]
    sizes = Counter(s.decode_seqs if phase == "decode" else s.prefill_seqs for s in alike)
    lengths = Counter(s.prefill_tokens // s.prefill_seqs for s in alike if s.prefill_seqs and s.prefill_tokens)
    size = max(1, sizes.most_common(1)[0][0]) if sizes else 1
    length = lengths.most_common(1)[0][0] if lengths and phase == "prefill" else 1024  # cached tokens no name tells
    return claim.bill(phase, claim.batch or size, claim.context or length)


def predicted_step(b: StepBill) -> Timeline:
    """A served step, kernel after kernel: what comes before the layers, the layers one like the other, what follows, the host."""
    return timeline_of(list(_rows(b)), (*KINDS, HOST))


def _rows(b: StepBill) -> Iterator[Row]:
    drafts = [x for x in b.items if x.item.stage == "draft"]  # behind all others
    ends = [x for x in b.items if x.kind != HOST and x.item.part in ENDS and x.item.stage != "draft"]
    now = 0.0
    for line in (x for x in ends if x.item.part in BEFORE):
        yield from _one(line, now)
        now += float(line.exposed_s)
    layer = layer_of(b)
    for number in range(b.question.model.num_layers):
        for bar in layer.bars:
            for start, end in (*bar.hidden, *bar.exposed):
                lane = _lane(bar.segment.lane)
                yield lane, now + start, now + end, bar.segment.lane, f"{bar.segment.name}, layer {number}"
        now += layer.length_s
    for line in (*(x for x in ends if x.item.part not in BEFORE), *drafts):
        yield from _one(line, now)
        now += float(line.exposed_s)
    if (rest := float(b.step_s) - now) > 0:
        yield "host", now, now + rest, HOST, "scheduling and launches"


def _one(line: Line, now: float) -> Iterator[Row]:
    if float(line.exposed_s) > 0:
        kind = "comm" if line.kind == "comm" else "compute"
        yield _lane(kind), now, now + float(line.exposed_s), kind, line.item.what


def _lane(kind: str) -> str:
    return "communication" if kind == "comm" else "compute"
