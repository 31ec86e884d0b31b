"""Types of weights beside each other: the best plan in each, or why there is none."""

from collections.abc import Iterator

import numpy as np

from commtax.planner.columns import ServingPlans
from commtax.planner.reasons import distance_words
from commtax.spec import DTYPE_BYTES
from commtax.units import format_seconds

UNIT = "tokens/s"  # of the rate that stands beside a plan's distance


def best_of_types(answer: ServingPlans) -> Iterator[str]:
    """A line for each type that was asked for, the best first; and that smaller ones change what a model says."""
    dtypes, rows = answer.question.goal.dtypes, answer.plans
    if len(dtypes) < 2:
        return
    first = {index: int(places[0]) for index in range(len(dtypes)) if len(places := np.flatnonzero(rows.dtype == index))}
    for index, i in sorted(first.items(), key=lambda pair: pair[1]):
        behind = f" ({distance_words(answer, i, beside=UNIT)})" if i else ""
        rate = f"{float(rows.tokens_per_s[i]):,.0f} tokens/s{behind} at TTFT {format_seconds(rows.ttft_s[i])}"
        tpot = f" and TPOT {format_seconds(rows.tpot_s[i])}" if answer.question.requests.output_len > 1 else ""
        yield f"best in {_name(dtypes[index])}: {answer.workers(rows, i)}, {rate}{tpot}"
    for index in (index for index in range(len(dtypes)) if index not in first):
        lost = [r for r in answer.rejected if r.dtype == index]
        yield f"none in {_name(dtypes[index])}: {f'{lost[-1].family} {lost[-1].reason}' if lost else 'no plan is good'}"
    model = answer.question.model
    stored = DTYPE_BYTES.get(model.quant.dtype if model.quant else model.dtype, 2.0)
    if smaller := [name for name in dtypes if name and DTYPE_BYTES.get(name, stored) < stored]:
        yield f"weights in {' and '.join(smaller)} change the model's answers: accuracy is not predicted"


def _name(dtype: str) -> str:
    return dtype or "its own type"
