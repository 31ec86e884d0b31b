"""The kinds of kernel tables, by what the names of their files end with."""

from commtax_lab.published.kernel_kinds import exchanges, experts, linear, modules, plain, streams
from commtax_lab.published.kernel_kinds.kind import KernelKind

_ALL = (*plain.KINDS, *experts.KINDS, *exchanges.KINDS, *modules.LATENT_KINDS, *linear.KINDS, *modules.KINDS, *streams.KINDS)
KINDS: dict[str, KernelKind] = {kind.tail: kind for kind in _ALL}
