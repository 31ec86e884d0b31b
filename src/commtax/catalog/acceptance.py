"""How many drafts were measured to be accepted: ``catalog/acceptance.toml``."""

import math
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
    model: str = ""  # whose runs they were
    on: str = ""  # of which benchmark

    def told_of(self, model: str) -> str:
        """What is taken for granted where it answers for a model: ``with llama-3.1-8b on MT-Bench``; "" where nothing is."""
        borrowed = [f"with {self.model}"] if self.model and self.model != model else []
        return " ".join([*borrowed, *([f"on {self.on}"] if self.on else [])])


def accepted_spread(known: MeasuredAcceptance | None, model: str) -> float:
    """By what share drafts that are accepted may differ from measured ones: the text does, and the model where it is another."""
    spread = table("catalog/acceptance.toml")["spread"]
    other = known is not None and known.model != model
    return math.hypot(float(spread["text"]), float(spread["model"]) if other else 0.0)


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
