"""Whose seconds a kernel takes: memory's, arithmetic's, and those of each constant that is a time.

A form's seconds can only come from the chip's bandwidth, its peak and constants that are seconds (or rates). Twice as slow in all
of them is twice as long, so Euler's theorem on homogeneous functions splits any form, however it joins its terms::

    T = sum over carriers x of  x dT/dx

exactly. Derivatives are taken along the imaginary axis (a complex step), which rounds nothing off.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from commtax.cost.forms.form import DAMPED, RATES, SECONDS, Parts
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import constants_of, form_parts
from commtax.records import dataclass
from commtax.spec import Chip, KernelConstants

TINY_STEP, ALONE = 1e-30, 1e-30
MEMORY, ARITHMETIC = "memory", "arithmetic"
CARRIERS = {MEMORY: "bytes at the memory's bandwidth", ARITHMETIC: "FLOPs at the arithmetic's peak", **SECONDS, **RATES}
"""What time can come from, and in words."""
NOTHING = 1e-13  # a share that rounding makes of nothing


@dataclass(frozen=True, slots=True)
class Term:
    """One carrier's part of a launch's fixed and moving seconds, and what it would take alone."""

    name: str
    fixed_s: float
    moving_s: float
    alone_s: float


def terms(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float) -> tuple[Term, ...]:
    """What a form's seconds are made of, before anything else is multiplied onto them; they sum to the form's."""
    table = constants_of(kernel, constants)

    def priced(factors: Mapping[str, float]) -> Parts:
        scaled: dict[str, float] = dict(table)
        for name, factor in factors.items():
            for key in DAMPED if name == ARITHMETIC else (name,):
                if key in table:
                    scaled[key] = table[key] / factor if key in RATES else table[key] * factor

        peaks: dict[str, float] = {kind: value / factors.get(ARITHMETIC, 1.0) for kind, value in chip.flops_per_s.items()}
        slow_chip = replace(chip, memory_Bps=chip.memory_Bps / factors.get(MEMORY, 1.0), flops_per_s=peaks)
        return form_parts(kernel, scaled, slow_chip, constants, rate)

    carriers = [name for name in CARRIERS if name in (MEMORY, ARITHMETIC) or table.get(name)]
    total = float(sum(priced({})))
    found = []
    for name in carriers:
        fixed, moving = (complex(x).imag / TINY_STEP for x in priced({name: cast(float, 1 + 1j * TINY_STEP)}))
        if abs(fixed + moving) > NOTHING * total:
            others = {other: ALONE for other in carriers if other != name}
            found.append(Term(name, fixed, moving, float(sum(priced(others)))))
    return tuple(found)
