"""Limits of each request's times, and how many requests keep to them."""

from collections.abc import Iterable
from dataclasses import fields, replace
from math import inf, isfinite

from commtax.records import dataclass
from commtax.statement import Refusal
from commtax.verbs.checking import number
from commtax.verbs.confidence import probability_of
from commtax.verbs.requests import Outcome

NEEDED = 0.99  # share of the requests that must keep to all limits
UPPER = 0.9  # probability that a figure is below the upper end of its 80 % range
SPELLED = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "e2e": "e2e_s"}
MOST_MS = 1e9


@dataclass(frozen=True, slots=True)
class Slo:
    """Infinite: no limit."""

    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf

    @property
    def limits(self) -> dict[str, float]:
        """Those that there are, by field."""
        return {f.name: value for f in fields(self) if isfinite(value := getattr(self, f.name))}

    def share(self, o: Outcome) -> float:
        """Of the requests that keep to all limits."""
        return o.within(self.ttft_s, self.tpot_s, self.e2e_s)

    def goodput(self, o: Outcome) -> float:
        """Requests/s that keep to all limits."""
        return self.share(o) * o.requests_per_s

    def kept(self, o: Outcome) -> bool:
        return not self.limits or self.share(o) >= NEEDED

    def probability(self, o: Outcome) -> float:
        """That enough requests keep to all limits: of the steps' lengths with which they do, between the ends of their 80 % range.

        At most 0.9, where they do even with the longest steps of the range, and at least 0.1, where not even with the shortest.
        """
        shares = [self.share(end) for end in o.ends]
        if shares[2] >= NEEDED or shares[0] < NEEDED:
            return UPPER if shares[2] >= NEEDED else 1 - UPPER
        from_ = 1 if shares[1] >= NEEDED else 0  # the end from which on steps become too long
        part = (shares[from_] - NEEDED) / (shares[from_] - shares[from_ + 1])
        return probability_of(from_ - 1 + part)


def slo_of(words: Iterable[str], slo: Slo = Slo()) -> Slo:  # noqa: B008
    """Limits in milliseconds as ``vllm bench serve --goodput`` spells them.

    >>> slo_of(["ttft:300", "tpot:20"])
    Slo(ttft_s=0.3, tpot_s=0.02, e2e_s=inf)
    """
    for word in words:
        name, colon, text = word.strip().partition(":")
        if name not in SPELLED or not colon:
            raise Refusal.of("write limits in ms such as ttft:300 tpot:20 e2el:5000", goodput=word[:40])
        if isfinite(getattr(slo, SPELLED[name])):
            raise Refusal.of(f"{name} has a limit already; leave one of them out", goodput=word[:40])
        slo = replace(slo, **{SPELLED[name]: _seconds(text, name)})
    return slo


def _seconds(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Refusal(f"goodput '{name}:{text[:30]}': a number of milliseconds is needed, such as {name}:300", "goodput") from None
    return number(value, "goodput", 0, MOST_MS, " ms") / 1e3
