"""The kinds of kernel tables, by what the names of their files end with."""

from commtax.readers.published.kernel_kinds import experts, linear, plain, streams
from commtax.readers.published.kernel_kinds.kind import KernelKind

KINDS: dict[str, KernelKind] = {kind.tail: kind for kind in (*plain.KINDS, *experts.KINDS, *linear.KINDS, *streams.KINDS)}
