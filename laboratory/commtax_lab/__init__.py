"""The laboratory: how commtax's constants were fitted, how its prices score on published measurements, and studies on live engines.

It imports commtax; commtax never imports it. Its commands join commtax's own where it is installed.
"""

from functools import cache
from pathlib import Path
from typing import Any

from commtax.shipped_tables import table


@cache
def lab_table(path: str) -> dict[str, Any]:
    """Return a table of the laboratory by its path in the package."""
    return table(str(Path(__file__).parent / path))
