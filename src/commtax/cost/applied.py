"""What a step multiplies onto its kernels: named factors, which pricing multiplies and an explanation lists, so that they agree.

A factor's name is a field of the engine (``fp8_rate``, ``small_kernels`` …), a constant of whole steps among the kernels' ones
(``step.clock``, ``train.flash2`` …) or a what-if (``slow_rank``); ``catalog/effects.toml`` says what each of them is.
"""

import numpy as np

from commtax.cost.forms.form import Parts
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import seconds
from commtax.records import dataclass
from commtax.spec import Chip, KernelConstants, Number

Factor = tuple[str, Number]
"""Its name and its value."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Factors on one kernel: on the arithmetic's rate, and on its seconds; and the least that its launch takes."""

    rates: tuple[Factor, ...] = ()
    slow_rank: float = 1.0  # all wait for the slowest rank's
    launch_s: float = 0.0  # without graphs a kernel takes at least its launch

    @property
    def rate(self) -> float:
        """Arithmetic over that of the constants."""
        rate = 1.0
        for _, value in self.rates:
            rate *= value
        return rate


def applied_s(kernel: Kernel, chip: Chip, constants: KernelConstants, a: Applied) -> Parts:
    """Fixed and moving seconds of one launch inside a step."""
    fixed, moving = seconds(kernel, chip, constants, a.rate)
    if a.launch_s:
        fixed = np.maximum(fixed, a.launch_s - moving)
    return fixed * a.slow_rank, moving * a.slow_rank


def fused_by(kernel: Kernel) -> str:
    """Which number says what share of a kernel's launches run inside its neighbours: their fixed time is gone."""
    return "small_kernels" if kernel.form == "small" else "chained"
