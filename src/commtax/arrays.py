"""Scalars and arrays alike."""

from __future__ import annotations

from typing import Any

import numpy as np


def pick(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``; a plain number where all three are.

    >>> pick(True, 1, 2), pick(np.array([True, False]), 1, 2).tolist()
    (np.int64(1), [1, 2])
    """
    return np.where(condition, yes, no)[()]
