"""What a table of one kind of kernel holds, and how its rows become kernels of the cost model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commtax.arrays import Array
from commtax.cost.kernel import Kernel
from commtax.spec import Chip

Sizes = Mapping[str, Array]
"""Columns of numbers."""
Words = Mapping[str, str]
"""What all rows of a group have in common: engine, number formats (``written``: as the file has it), and their kind's ``alike``."""
Make = Callable[[Words, Sizes], Sequence[Kernel]]
"""Rows of one group as the kernels that their time is the sum of, with arrays for sizes."""


@dataclass(frozen=True, slots=True)
class KernelKind:
    """A kind of kernel table. ``tail`` ends its file names, ``needed`` columns are above 0, ``from_zero`` ones may be 0.

    Rows that agree in ``alike`` (text or numbers) are made into kernels together. ``bound`` is what bounds are cut by.
    """

    tail: str
    name: str  # as records call it
    needed: tuple[str, ...]
    make: Make
    bound: Callable[[Sizes], Array]
    dtype: str  # column of the arithmetic's number format
    stored: str = ""  # … and of the weights or the cache, which ranges are told apart by
    from_zero: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()  # columns that say whether a row was fitted; (): engine, formats and all sizes
    decides: Callable[[Sizes], Array] | None = None  # rows whose sizes constants are fitted on; None: all
    hint: Callable[[Sizes, Chip], Array] | None = None  # what is known to be hard, from sizes and chip
    times_us: tuple[str, ...] = ()  # columns that a row's time is the sum of; (): its one latency
    in_step: bool = False  # kernels as a step runs them, one after another, and not each timed by itself

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns whose hash tells fitted rows from tested ones."""
        return self.hashed or ("framework", self.dtype, self.stored, *self.needed, *self.from_zero, *self.alike)
