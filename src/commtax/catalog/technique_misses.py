"""How far predicted gains of techniques were off where somebody published one: ``technique_misses.toml``."""

import math

from commtax.shipped_tables import table

DRAFTS, OTHERS = "drafts", "others"
"""Kinds of techniques that miss alike: what drafts come to hangs on the tokens that they yield, all else on the step's time."""


def kind_of(group: str) -> str:
    return DRAFTS if group == DRAFTS else OTHERS


def width(effect: float, least: float, share: float) -> float:
    """Half of the range of a gain's logarithm, by the size of the effect: sqrt(least^2 + (share effect)^2).

    >>> round(width(0.4, 0.03, 0.1), 3)
    0.05
    """
    return math.hypot(least, share * effect)


def missed(kind: str, gain: float, tokens: float = 1.0) -> float:
    """Half of the 80 % range of the logarithm of a predicted gain, for a step that yields so many tokens per sequence."""
    return width(max(abs(math.log(gain)), math.log(max(1.0, tokens))), **table("catalog/technique_misses.toml")[kind])
