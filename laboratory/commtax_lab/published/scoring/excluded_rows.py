"""Rows that are no test of a prediction, set apart by rule and counted: drafted tokens, impossible runs, what was told before.

Physics allows no less than bytes over bandwidth and FLOPs over peak, and no weights that memory does not hold.
"""

from collections import Counter
from functools import reduce

import numpy as np

from commtax.arrays import Array
from commtax.cost import memory
from commtax.question import Question
from commtax.spec import DTYPE_BYTES, Number, Plan
from commtax.verbs.billing import StepBill
from commtax_lab.published.scoring.prediction_columns import Records

UNFIT = "its weights alone exceed the memory of its GPUs"
FASTER = "measured faster than the hardware allows"
TOLD = "told before: a measurement is counted once"


def exclude_impossible(records: Records) -> Records:
    """Set apart, with all of their figures, the rows of which a time is below what bandwidth and peak FLOPs allow."""
    faster = records.timed & (records.measured < records.floor)
    return _mark(records, np.isin(records.row, records.row[faster]), FASTER)


def exclude_repeated(records: Records, runs_before: dict[str, bool]) -> Records:
    """Set apart rows of runs that another row or file has reported. ``known`` holds runs so far, and whether priced.

    A row that is priced goes before one that is not: one table may say what another one leaves open.
    """
    runs = {row: run for row, run in zip(records.row.tolist(), records.run.tolist(), strict=True) if run}
    priced = set(records.row[records.priced].tolist())
    repeated = set()
    for row in sorted(runs, key=lambda row: (row not in priced, row)):
        if runs_before.get(runs[row], False) or (runs[row] in runs_before and row not in priced):
            repeated.add(row)
        runs_before[runs[row]] = runs_before.get(runs[row], False) or row in priced
    return _mark(records, np.isin(records.row, list(repeated)), TOLD)


def _mark(records: Records, chosen: Array, rule: str) -> Records:
    """Mark the chosen rows with a rule, unless another rule has them already. A repeated run overrides the others."""
    free = chosen & ((records.apart == "") | (rule == TOLD)) & (records.skipped == "")
    return Records({**records.columns, "apart": np.where(free, rule, records.apart).astype(object)})


def count_by_rule(records: Records) -> Counter[str]:
    """Count the rows of one file that each rule sets apart."""
    rows = {(str(rule), int(row)) for rule, row in zip(records.apart, records.row, strict=True) if rule}
    return Counter(rule for rule, _ in rows)


def excluded_share(records: Records) -> tuple[float, int]:
    """Return the share of a file's distinct rows that are set apart, and the number of distinct rows."""
    repeated = set(records.row[records.apart == TOLD].tolist())
    rows = set(records.row.tolist()) - repeated
    away = set(records.row[(records.apart != "") & (records.apart != TOLD)].tolist()) - repeated
    return len(away) / max(1, len(rows)), len(rows)


def least_s(priced: StepBill) -> Number:
    """Return the least seconds that bandwidth and peak FLOPs allow the kernels of one rank."""
    chip = priced.question.cluster.chip
    stored = priced.question.model.quant.dtype if priced.question.model.quant else priced.question.plan.weights_dtype
    width = min(DTYPE_BYTES.get(stored, 2.0), 2.0)
    peak = max(rate for dtype, rate in chip.flops_per_s.items() if width <= DTYPE_BYTES.get(dtype, 2.0) <= 2)
    lines = [x for x in priced.lines if x.kind == "compute"]
    each = (x.item.count * np.maximum(x.item.nbytes / chip.memory_Bps, x.flops / peak) for x in lines)
    none: Number = np.float64(0.0)
    return sum(each, start=none)


def holds_weights(question: Question, plan: Plan | None = None) -> Array:
    """Return whether a rank's weights alone fit in its chip's memory."""
    plan = plan or question.plan
    pp = int(np.max(plan.pp))
    stages = [sum(x.nbytes for x in memory.weights(question.model, plan, question.engine, stage, pp)) for stage in range(pp)]
    return np.asarray(reduce(np.maximum, stages)) <= question.cluster.chip.memory_bytes
