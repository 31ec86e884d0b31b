"""What a step multiplies onto its kernels: named factors, which pricing multiplies and an explanation lists, so that they agree.

A factor's name is a field of the engine (``fp8_rate``, ``small_kernels`` …), a constant of whole steps among the kernels' ones
(``step.clock``, ``train.flash2`` …), an effect on a kind of kernel (``pace of experts``) or a what-if (``slow_rank``);
``catalog/effects.toml`` and ``paces.toml`` say what each of them is.
"""

from dataclasses import dataclass

import numpy as np

from commtax.arrays import some
from commtax.cost.forms.form import Parts
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import least_s, seconds
from commtax.spec import Chip, KernelConstants, Number

Factor = tuple[str, Number]
"""Its name and its value."""
PACE = "pace of "
"""What the name of an effect on a kind of kernel begins with."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Factors on one kernel: on the arithmetic's rate, and on its seconds; and the least that its launch takes."""

    rates: tuple[Factor, ...] = ()
    pace: Factor = ("", 1.0)  # of its kind in whole runs: no kernel of them beats its bytes and FLOPs …
    slow_rank: float = 1.0  # … and all wait for the slowest rank's
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
    pace = a.pace[1]
    fixed, moving = fixed * pace, moving * pace
    if some(np.asarray(pace) < 1):
        moving = np.maximum(moving, least_s(kernel, chip, constants) - fixed)
    if a.launch_s:
        fixed = np.maximum(fixed, a.launch_s - moving)
    return fixed * a.slow_rank, moving * a.slow_rank


def fused_by(kernel: Kernel) -> str:
    """Which number says what share of a kernel's launches run inside its neighbours: their fixed time is gone."""
    return "small_kernels" if kernel.form == "small" else "chained"
