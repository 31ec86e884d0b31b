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

    Where no text is asked for it is chat; but an architecture's own figures on other text come before another one's on chat.

    >>> measured_acceptance("mtp", "DeepseekV3ForCausalLM", 3).length
    2.82
    >>> measured_acceptance("dspark", "DeepseekV4ForCausalLM", 5).text
    'code'
    """
    known = [row for row in measured_acceptances() if row.method == method]
    own = [row for row in known if row.architecture == architecture]
    others = {text} if text else {USUAL_TEXT, *(row.text for row in own[:1])}
    texts = sorted(others, key=lambda one: one != (text or USUAL_TEXT))
    tries = [(rows, one) for rows in (own, [row for row in known if not row.architecture]) for one in texts]
    for rows, one in tries:
        fitting = sorted((row for row in rows if row.text == one), key=lambda row: row.drafts)
        if fitting:
            return max((row for row in fitting if row.drafts <= drafts), key=lambda row: row.drafts, default=fitting[0])
    return None
