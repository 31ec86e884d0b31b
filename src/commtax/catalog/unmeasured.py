"""Accelerators that nobody measured here, by their names, and what to do instead: ``unmeasured.toml``."""

import re

from commtax.catalog.loader import FACTS, Table, normal
from commtax.files import table as kept
from commtax.statement import Refusal

COUNTS = re.compile(r"(?:\d{1,15}x){0,2}")
INSTEAD = (
    "and no kernels were measured on it, so it has no price here; --cluster FILE.toml can describe it by its peaks, memory and "
    "links, priced as assumed (docs/hosts.md, 'A host or cluster of your own')"
)


def check_measured(text: str, argument: str) -> None:
    """Refuse a name, with counts or without, that is such an accelerator's."""
    name = COUNTS.sub("", normal(text), count=1)
    made: list[Table] = kept(str(FACTS / "unmeasured.toml"))["accelerator"]
    what = next((one["what"] for one in made if re.fullmatch(one["pattern"], name)), "")
    if what:
        raise Refusal(f"{argument} '{text[:60]}': {what}, {INSTEAD}", argument)
