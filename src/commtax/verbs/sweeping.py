"""Limits of each request's times and how many keep to them; the same requests at several rates, or with several clients."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from math import inf, isfinite, log, sqrt

import numpy as np

from commtax.judgement.confidence import probability_of
from commtax.question import Question
from commtax.records import dataclass
from commtax.statement import Refusal
from commtax.verbs.checking import number
from commtax.verbs.loads import LOADS, MOST_RATE
from commtax.verbs.requests import RequestsInTime, run_requests
from commtax.verbs.settling import settle
from commtax.verbs.timed_serving import check_single_load

MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class RequestSweep:
    """One outcome a value, from the least on."""

    name: str
    values: tuple[float, ...]
    outcomes: tuple[RequestsInTime, ...]

    @property
    def title(self) -> str:
        return "requests/s" if self.name == LOADS[0] else "clients"

    @property
    def capacity(self) -> float:
        """Requests/s: of the same engines and the same requests at every point."""
        return max(self.outcomes[0].capacity, *(o.requests_per_s for o in self.outcomes))

    @property
    def knee(self) -> int | None:
        """The point where throughput over response time is greatest (Kleinrock's power, 1979), of those that are not overloaded.

        Below it more load costs little time, above it more load buys little throughput.
        """
        power = [o.requests_per_s / o.statistic("e2e_mean") if not o.overloaded else 0.0 for o in self.outcomes]
        return int(np.argmax(power)) if max(power) > 0 else None

    def most(self, slo: "Slo") -> int | None:
        """The greatest value up to which all are kept to and nothing is overloaded."""
        bad = (i for i, o in enumerate(self.outcomes) if o.overloaded or not slo.kept(o))
        return (first - 1 if first else None) if (first := next(bad, None)) is not None else len(self.outcomes) - 1


def points(text: str) -> tuple[str, tuple[float, ...]]:
    """What is swept, and its values: a list, or two ends with values between them that grow by half an octave.

    >>> points("request-rate=1:8")
    ('request_rate', (1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0))
    >>> points("concurrency=1,8,64")
    ('concurrency', (1.0, 8.0, 64.0))
    """
    name, equals, rest = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in LOADS or not equals:
        raise Refusal.of("write request-rate=1:64, request-rate=1,2,4 or concurrency=1:256", sweep=text[:60])
    ends = rest.split(":")
    numbers = [_value(part, name) for part in (ends if len(ends) == 2 else rest.split(","))]
    if len(ends) == 2:
        numbers = list(_values_between(numbers[0], numbers[1], name))
    if len(numbers) > MOST_POINTS:
        raise Refusal(f"sweep: {len(numbers)} values, and at most {MOST_POINTS} are simulated", "sweep", (MOST_POINTS,))
    return name, tuple(sorted(dict.fromkeys(numbers)))


def _value(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    whole = name != "concurrency" or value == np.floor(value)
    if not 0 < value <= MOST_RATE or not whole or (name == "concurrency" and value < 1):
        kind = "a whole number of at least 1" if name == "concurrency" else "a rate above 0"
        raise Refusal.about(sweep=f"'{text[:30]}' is not {kind}, at most {MOST_RATE:g}")
    return value


def _values_between(low: float, high: float, name: str) -> Iterator[float]:
    if high < low:
        raise Refusal.about(sweep=f"{low:g}:{high:g}: the least comes first; nearest valid: {high:g}:{low:g}")
    steps = 1 if name == "concurrency" else 2  # of an octave
    for i in range(int(steps * log(high / low, 2) + 1e-9) + 1):
        value = low * 2 ** (i // 2) * sqrt(2) ** (i % 2) if steps == 2 else low * 2**i
        yield float(f"{value:.2g}") if i % 2 and steps == 2 else value
    yield high


def question_at(q: Question, name: str, value: float, prompts_per_client: int | None = None) -> Question:
    """The question at one point."""
    if name == LOADS[0]:
        return check_single_load(q.but(request_rate=value))
    count = int(value) * prompts_per_client if prompts_per_client else q.requests.num_prompts
    return check_single_load(q.but(concurrency=int(value), num_prompts=count))


def sweep(name: str, values: tuple[float, ...], questions: Iterable[Question]) -> RequestSweep:
    """Every point simulated; where requests are the same, what they could be answered at is found once."""
    outcomes: list[RequestsInTime] = []
    for question in questions:
        o = run_requests(settle(question))
        if outcomes and np.array_equal(outcomes[0].stream.output_len, o.stream.output_len):
            vars(o)["capacity"] = max(outcomes[0].capacity, o.requests_per_s)
        outcomes.append(o)
    return RequestSweep(name, values, tuple(outcomes))


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

    def share(self, o: RequestsInTime) -> float:
        """Of the requests that keep to all limits."""
        return o.within(self.ttft_s, self.tpot_s, self.e2e_s)

    def goodput(self, o: RequestsInTime) -> float:
        """Requests/s that keep to all limits."""
        return self.share(o) * o.requests_per_s

    def kept(self, o: RequestsInTime) -> bool:
        return not self.limits or self.share(o) >= NEEDED

    def probability(self, o: RequestsInTime) -> float:
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
        try:
            value = float(text)
        except ValueError:
            rule = f"a number of milliseconds is needed, such as {name}:300"
            raise Refusal(f"goodput '{name}:{text[:30]}': {rule}", "goodput") from None
        slo = replace(slo, **{SPELLED[name]: number(value, "goodput", 0, MOST_MS, " ms") / 1e3})
    return slo
