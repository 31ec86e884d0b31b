"""Why a line of a bill takes as long as it does: ``commtax.why(bill, "experts")``.

Its bytes and FLOPs, its floor, what prices it with which constants, each effect on it and its mechanism, and parts that add up
to its seconds. Everything is asked of the functions that priced the line.
"""

from collections.abc import Sequence

import numpy as np

from commtax.answer import Answer
from commtax.cost.pricing import host_parts
from commtax.ledger import Z80, Line
from commtax.records import dataclass
from commtax.statement import Refusal
from commtax.verbs.billing import StepBill, by_cost
from commtax.verbs.settling import terms_of
from commtax.verbs.why_collectives import explained_collective
from commtax.verbs.why_kernels import explained_kernel
from commtax.verbs.why_parts import Explanation, LikelyRange, TimePart, engine_effect

MOST_LISTED = 24  # lines that a refusal lists


@dataclass(frozen=True, slots=True)
class Why(Answer):
    """A line of a bill, its number there (the costliest is 1), and its explanation: parts that add up to its seconds.

    >>> import commtax
    >>> line = commtax.why(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8), "1")
    >>> abs(line.explained_s - line.exposed_s) < 1e-9
    True
    """

    bill: StepBill
    number: int
    line: str
    kind: str
    how: str
    times: float
    each_s: float
    total_s: float
    hidden_s: float
    exposed_s: float
    share: float  # of the step
    explanation: Explanation
    range: LikelyRange
    bound: str = ""  # of a collective: latency or bandwidth, as the bill calls it

    @property
    def explained_s(self) -> float:
        """What the parts add up to: the line's exposed seconds."""
        return self.times * sum(part.seconds for part in self.explanation.parts) - self.hidden_s


def labels(b: StepBill) -> list[str]:
    """What each line is called, the costliest first; those that are alike have a number behind."""
    names = [_label(x) for x in by_cost(b)]
    return [name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def _label(x: Line) -> str:
    if x.kind == "comm":
        return f"{x.item.axis} {x.item.what} {x.item.op}"
    return f"{x.item.what} (recomputed)" if x.item.stage == "recompute" else x.item.what


def line_number(names: Sequence[str], wanted: str) -> int:
    """The line that a text means: its number, its whole name, or a part that one name alone has."""
    text = " ".join(wanted.lower().split())
    if text.isdecimal() and 1 <= int(text[:9]) <= len(names):
        return int(text) - 1
    alike = [i for i, name in enumerate(names) if text and text in name.lower()]
    exact = [i for i in alike if names[i].lower() == text]
    if len(exact or alike) == 1:
        return (exact or alike)[0]
    listed = [f"{i + 1} {names[i]}" for i in (alike or range(len(names)))]
    more = f"; … and {len(listed) - MOST_LISTED} more, up to number {len(names)}" if len(listed) > MOST_LISTED else ""
    rule = f"{len(alike)} lines have this in their name" if alike else "no line has this name or number"
    raise Refusal.of(f"{rule}: {'; '.join(listed[:MOST_LISTED])}{more}", why=wanted[:60])


def why(b: StepBill, wanted: str) -> Why:
    """Why a line of a bill takes as long as it does. ``wanted`` is its number (the costliest is 1) or a part of its name.

    >>> import commtax
    >>> step = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)
    >>> line = commtax.why(step, "attention output")
    >>> [part.name for part in line.explanation.parts]
    ['latency', 'wire']
    """
    names = labels(b)
    index = line_number(names, wanted)
    return _explain_line(b, by_cost(b)[index], index + 1, names[index])


def every_why(b: StepBill) -> list[Why]:
    """Those of all lines, the costliest first."""
    return [_explain_line(b, line, i + 1, name) for i, (line, name) in enumerate(zip(by_cost(b), labels(b), strict=True))]


def _explain_line(b: StepBill, x: Line, number: int, name: str) -> Why:
    explanation = EXPLAINED[x.kind](b, x)
    times = {key: float(getattr(x, key)) for key in ("each_s", "total_s", "hidden_s", "exposed_s")}
    sigma, share = float(x.sigma), float(x.exposed_s) / float(b.step_s)
    low, high = (times["exposed_s"] * float(np.exp(side * Z80 * sigma)) for side in (-1, 1))
    return Why(
        b, number, name, x.kind, x.item.op, float(x.item.count), **times, share=share, explanation=explanation,
        range=LikelyRange(sigma, low, high, explanation.doubts), bound=x.bound if x.kind == "comm" else "",
    )  # fmt: skip


def _host(b: StepBill, x: Line) -> Explanation:
    """Seconds that the GPU waits for the host, by what for."""
    q = b.question
    if q.trains:
        parts = {str(x.priced_from): x.fixed_s}
    else:
        parts = host_parts([line for line in b.lines if line.kind != "host"], q.work, terms_of(q))
    spent = {name: float(value) for name, value in parts.items() if float(value)}
    effects = tuple(engine_effect(q, name) for name in spent)
    shown = tuple(TimePart(one.name, one.mechanism, spent[one.name]) for one in effects)
    doubt = f"{x.source.kind}: standard deviation of the logarithm of this engine's host time"
    own = tuple(one for one in effects if one.value)  # how late collectives are is their library's
    return Explanation(parts=shown, effects=own, source=x.source, doubts=(doubt,))


def _bubble(b: StepBill, x: Line) -> Explanation:
    plan = b.question.plan
    shape = {"pp": float(plan.pp), "microbatches": float(plan.microbatches), "chunks": float(plan.chunks)}
    words = f"stages idle while the schedule {plan.schedule} fills and drains: by the seconds of a microbatch in a stage"
    doubts = ("by definition: as sure as the lines that a stage is made of",)
    return Explanation(shape=shape, parts=(TimePart("idle", words, float(x.moving_s)),), source=x.source, doubts=doubts)


EXPLAINED = {"compute": explained_kernel, "comm": explained_collective, "host": _host, "bubble": _bubble}  # by a line's kind
