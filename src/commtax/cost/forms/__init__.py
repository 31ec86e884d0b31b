"""Seconds of each kind of kernel: a fixed cost, and a smooth maximum over what memory, arithmetic and serial loops allow.

Each form returns (fixed, moving) seconds. Attained fractions (``eb`` of bandwidth, ``ep`` of peak) are at most 1 and a
p-norm is at least its largest term, so no kernel beats bytes / bandwidth or FLOPs / peak. Constants are data:
``catalog/kernels``, one file a family of chips.
"""

from commtax.cost.forms import experts, latent, linear, modules, products
from commtax.cost.forms.form import ChipForm, Form, equation_of

FORMS: dict[str, Form] = {**products.FORMS, **experts.FORMS, **latent.FORMS, **modules.FORMS}
CHIP_FORMS: dict[str, ChipForm] = linear.CHIP_FORMS  # forms that need more of a chip than its bandwidth and peak


def equation(form: str) -> str:
    """A form's equation: it stands in its function's description and nowhere else.

    >>> equation("small")
    't = t0 + bytes / (eb bandwidth) seconds'
    """
    return equation_of(CHIP_FORMS.get(form) or FORMS[form])
