"""What physics allows at the least: bytes over bandwidth, FLOPs over peak."""

import numpy as np

from commtax.spec import DTYPE_BYTES
from commtax.validate.records import Array
from commtax.verbs.billing import StepBill


def least_s(priced: StepBill) -> Array:
    """The least that bytes over bandwidth and FLOPs over peak allow the kernels of one rank."""
    chip = priced.question.cluster.chip
    stored = priced.question.model.quant.dtype if priced.question.model.quant else priced.question.plan.weights_dtype
    width = min(DTYPE_BYTES.get(stored, 2.0), 2.0)
    peak = max(rate for dtype, rate in chip.flops_per_s.items() if width <= DTYPE_BYTES.get(dtype, 2.0) <= 2)
    lines = [x for x in priced.lines if x.kind == "compute"]
    each = (x.item.count * np.maximum(x.item.nbytes / chip.memory_Bps, x.flops / peak) for x in lines)
    return sum(each, start=np.float64(0.0))
