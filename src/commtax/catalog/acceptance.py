"""How many drafts were measured to be accepted: ``catalog/acceptance.toml``."""

from collections.abc import Sequence
from functools import lru_cache

from commtax.catalog.loader import plain_record
from commtax.records import dataclass
from commtax.shipped_tables import table

USUAL_TEXT = "chat"


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """Tokens per step and sequence that one drafter's runs yielded."""

    method: str
    architecture: str
    text: str
    drafts: int
    length: float
    source: str


@lru_cache(maxsize=1)
def measured_acceptances() -> Sequence[MeasuredAcceptance]:
    return tuple(plain_record(MeasuredAcceptance, row, "acceptance.toml") for row in table("catalog/acceptance.toml")["row"])


def measured_acceptance(method: str, architecture: str, drafts: int, text: str = "") -> MeasuredAcceptance | None:
    """What comes nearest: of this architecture before any, of as many drafts or the next fewer; None where nobody measured any.

    >>> measured_acceptance("mtp", "DeepseekV3ForCausalLM", 3).length
    2.82
    """
    here = [row for row in measured_acceptances() if row.method == method and row.text == (text or USUAL_TEXT)]
    for of in (architecture, ""):
        rows = sorted((row for row in here if row.architecture == of), key=lambda row: row.drafts)
        if rows:
            return max((row for row in rows if row.drafts <= drafts), key=lambda row: row.drafts, default=rows[0])
    return None
