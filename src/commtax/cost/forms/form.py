"""What a form of kernels is: sizes, constants and the chip's two rates in, seconds out."""

from collections.abc import Callable, Mapping

from commtax.cost.kernel import Kernel
from commtax.spec import Number

Parts = tuple[Number, Number]
"""Fixed and moving seconds of one launch."""
Table = Mapping[str, float]
"""Constants of a form by name (``catalog/kernels``)."""
Form = Callable[[Kernel, Table, float, float], Parts]
"""(kernel, constants, bandwidth in bytes/s, peak in FLOP/s) -> seconds."""
TINY = 1e-300  # keeps the root of 0 defined
