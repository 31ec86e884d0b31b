"""Options that training runs usually have and a plan leaves out: what the same sizes would do with them.

A run that is faster than its plan can be, or that ran and does not fit, was not described in full.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

from commtax import catalog
from commtax.question import Changes
from commtax.records import dataclass
from commtax.statement import OptionValue
from commtax.verbs.billing import StepBill, price
from commtax.verbs.settling import Settled
from commtax.verbs.train_fitting import train_judge
from commtax.words import flags, settings_of


@dataclass(frozen=True, slots=True)
class CompletedPlan:
    """The same sizes with options that were left out."""

    options: str
    mfu: float
    memory_bytes: float
    fits: bool


def completed_plans(b: StepBill, measured_mfu: float) -> list[CompletedPlan]:
    """Of a run that beat its plan by more than its range, or ran in memory that this plan does not have: what it may have been.

    First the plan of the same engine that comes nearest to what was measured; where that does not fit, the nearest that does.
    """
    width = math.log(float(b.step_s) / float(b.low_s))
    if measured_mfu <= float(b.mfu) * math.exp(width) and train_judge(b.question).fits:
        return []

    def rank(one: CompletedPlan) -> tuple[float, float]:
        """Inside the range all are as near: then the smallest is the likeliest."""
        return max(0.0, abs(math.log(one.mfu / measured_mfu)) - width), one.memory_bytes

    own = list(_priced(b.question, _left_out(b.question)))
    if not own:
        return []
    nearest = min(own, key=rank)
    if nearest.fits:
        return [nearest]
    fitting = [one for one in (*own, *_of_other_engines(b.question)) if one.fits]
    return [nearest, *([min(fitting, key=rank)] if fitting else [])]


def _left_out(q: Settled) -> list[list[Changes]]:
    """Return the options that a plan leaves out, each with the values that it may have."""
    plan = q.plan
    found: list[list[Changes]] = []
    if plan.tp > 1 and not plan.sequence_parallel:
        found.append([{}, {"sequence_parallel": True}])
    if plan.dp > 1 and not plan.zero:
        found.append([{}, {"zero": 1}])
    if plan.pp > 1 and plan.schedule == "1f1b":
        chunks = sorted({2, -(-q.model.num_layers // int(plan.pp))} - {1})
        found.append([{}, *({"schedule": "interleaved", "chunks": n} for n in chunks)])
    if plan.recompute == "none":
        found.append([{}, {"recompute": "full"}])
    return found


def _priced(q: Settled, left_out: list[list[Changes]], before: Sequence[OptionValue] = ()) -> Iterator[CompletedPlan]:
    """Yield the plan with all of them together in every legal way, fewest first."""
    for chosen in sorted(product(*left_out), key=lambda choices: sum(map(bool, choices))):
        changes = {name: value for change in chosen for name, value in change.items()}
        options = flags([*before, *settings_of(changes)])
        if not options:
            continue
        try:
            bill = price(q.but(**changes))
            yield CompletedPlan(options, float(bill.mfu), float(bill.memory_bytes_per_rank), train_judge(bill.question).fits)
        except ValueError:
            continue  # this engine or these sizes cannot have it


def _of_other_engines(q: Settled) -> Iterator[CompletedPlan]:
    """The same sizes in other programs that train, with what these do by themselves."""
    for name in catalog.keys("engines"):
        engine = catalog.engine(name)
        if "train" not in engine.phases or engine.key == q.engine.key:
            continue
        try:
            other = q.but(engine=engine, zero=engine.trains.zero, sequence_parallel=engine.trains.sequence_parallel)
        except ValueError:
            continue  # it cannot have these sizes
        yield from _priced(other, [ways for ways in _left_out(other) if "recompute" not in ways[-1]], [OptionValue("engine", name)])
