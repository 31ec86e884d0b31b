"""Equations as their functions state them: in the description, and nowhere else."""

import re
from collections.abc import Callable


def stated(function: Callable[..., object]) -> str:
    """The sentence of a description that begins with "t =", in one line."""
    words = " ".join((function.__doc__ or "").split())
    found = re.search(r"\bt = .*?(?=\.(?:\s|$))", words)
    return found[0].replace("``", "") if found else ""
