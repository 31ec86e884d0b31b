"""Which chip of the catalogue a published table means."""

from __future__ import annotations

import re

CHIPS = (  # the first name that is found as a word of its own: GB200 is no B200, and GH200 no H200
    (r"a100.*pcie|a100 pairwise", "a100-80-pcie"),
    (r"a100.*40", "a100-40-sxm"),
    (r"a100", "a100-80-sxm"),
    (r"h100[ -]nvl\b|h100 pairwise", "h100-nvl"),
    (r"h100.*pcie", "h100-pcie"),
    (r"h100", "h100-sxm"),
    (r"h200", "h200-sxm"),
    (r"h20\b", "h20"),
    (r"gb200", "gb200"),
    (r"b200", "b200-sxm"),
    (r"b300", "b300-sxm"),
    (r"l40s", "l40s"),
    (r"2080 ti|t4\b", "t4"),
    (r"a40", "a40"),
    (r"l4\b", "l4"),
    (r"3090", "rtx-3090"),
    (r"4090", "rtx-4090"),
    (r"5090", "rtx-5090"),
    (r"v100", "v100-32-sxm"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi355x", "mi355x"),
)


def chip_named(words: str) -> str:
    """The catalogue's key of the chip that some words name; "" where none is.

    >>> [chip_named(name) for name in ("NVIDIA GB200 NVL72", "b200_sxm", "8xH100-SXM", "GB300", "NVIDIA L40S")]
    ['gb200', 'b200-sxm', 'h100-sxm', '', 'l40s']
    """
    plain = words.lower().replace("_", " ")
    return next((key for pattern, key in CHIPS if re.search(rf"(?<![a-wyz0-9])(?:{pattern})", plain)), "")
