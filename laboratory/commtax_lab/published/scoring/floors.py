"""What physics allows: bytes over bandwidth and FLOPs over peak at the least, and weights that memory holds."""

from functools import reduce

import numpy as np

from commtax.arrays import Array
from commtax.cost import memory
from commtax.question import Question
from commtax.spec import DTYPE_BYTES, Number, Plan
from commtax.verbs.billing import StepBill


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
