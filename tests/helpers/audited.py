"""Claims, steps and sections as audits take and give them, made by hand."""

import numpy as np

from commtax.runs.evidence.finding import Claim, CollectiveRow, Culprit, KernelRow, Section, StepRow
from commtax.runs.traces.trace import KINDS
from commtax.timeline import Timeline
from commtax.verbs.settling import resolve_question

DECODE = "execute_context_0(0)_generation_8(8)"
LATE = Culprit("late rank", 3, 12.4, "the others wait 900 us a step for it")


def question(model="llama-3.1-8b", cluster="2xh100-sxm", **words):
    own = {k: words.pop(k) for k in ("batch", "context", "output_len", "tolerance") if k in words}
    return Claim(resolve_question(model, cluster, words), **own)


def by_item(section):
    return {f.item: f for f in section.findings}


def made_steps(asked, **changes):
    """A trace of decode steps as the bill has them."""
    priced = asked.bill()
    comm = [x for x in priced.items if x.kind == "comm"]
    reduces = [x for x in comm if x.item.op == "all-reduce"]
    gathers = sum(int(x.item.count) for x in comm if x.item.op == "all-gather")
    count = sum(int(x.item.count) for x in reduces)
    each = float(sum(x.total_s for x in reduces)) / count * 1e6
    total = float(priced.step_s) * 1e6 / (count + gathers)
    return {"reduces": count, "gathers": gathers, "each_us": each, "compute_us": total - each, **changes}


def line(intervals=((0, 0.0, 0.008, 0), (1, 0.008, 0.011, 1))):
    lane, start, end, kind = zip(*intervals, strict=True)
    lanes = tuple(f"rank {i} gpu 0 stream 7" for i in range(max(lane) + 1))
    names = tuple(f"kernel {i}" for i in range(len(lane)))
    return Timeline(np.array(lane), np.array(start), np.array(end), np.array(kind), names, lanes, KINDS)


def section(ranks=2, exposed=0.002, **others):
    rows = [StepRow(r, i, DECODE, i * 0.0125, 0.008, exposed, 0.0004, 0.00005, 0.0012) for r in range(ranks) for i in range(8)]
    told = {
        "steps": tuple(rows),
        "phases": {DECODE: "decode"},
        "collectives": (CollectiveRow("all-reduce", "ring ll", "tp:0", ranks, 584, 584 * 131072.0, 0.012, 0.005, 0.003),),
        "kernels": (KernelRow("void cutlass::Kernel2<" + "x" * 200, "compute", 144, 0.0051),),
        "facts": {"nccl": "2.27.3"},
        "measured": line(),
        "findings": (),
    }
    return Section("trace", tuple(f"rank{r}.json.gz" for r in range(ranks)), **{**told, **others})
