"""What a benchmark should have shown: its load asked of the predictors of requests, with the 80 % range of each figure.

One batch at a time is a prompt step and decode steps. Clients of a closed loop have the means of its closed form, whose ranges were
drawn from published runs; tails, rates and all other loads are simulated step by step.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from commtax.arrays import cache_answers
from commtax.ledger import Z80
from commtax.question import AS_IT_IS, SPREAD
from commtax.runs.evidence.finding import Claim
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import format_seconds
from commtax.verbs import closed_loop, requests
from commtax.verbs.closed_loop import ClosedLoop
from commtax.verbs.loads import PROMPTS
from commtax.verbs.requests import RequestsInTime
from commtax.verbs.settling import settle

COUNT, LEVEL = thresholds(__name__)
SERVER = "prometheus"
"""The tool of a server's own metrics: of no one load, and without a beginning at which all requests come at once."""
BY_ARRIVAL = ("ttft", "queue")  # times that hang on how requests come, not only on how many are there
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "queue": "queue"}
"""Of a result, as the simulation calls them."""
LIKE = {"prefill": "ttft", "decode": "tpot"}
STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
RATES: Mapping[str, Callable[[RequestsInTime], float]] = {
    "requests_per_s": lambda o: o.requests_per_s,
    "output_tokens_per_s": lambda o: o.tokens_per_s,
    "total_tokens_per_s": lambda o: o.tokens_per_s + o.input_tokens_per_s,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A prediction with its 80 % range."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, sigma: float) -> "Figure":
        factor = math.exp(Z80 * sigma)
        return cls(value, value / factor, value * factor)

    def widened(self, other: "Figure") -> "Figure":
        """The same value, in the range of both."""
        return Figure(self.value, min(self.low, other.low), max(self.high, other.high))

    def plus(self, other: "Figure", times: float = 1.0) -> "Figure":
        """A sum of what errs together."""
        return Figure(*(a + times * b for a, b in zip(self.ends, other.ends, strict=True)))

    def scaled(self, by: float) -> "Figure":
        """The same figure, so many times as large."""
        return Figure(*(end * by for end in self.ends))

    @property
    def ends(self) -> tuple[float, float, float]:
        return self.value, self.low, self.high


Figures = Mapping[tuple[str, str], Figure]  # by metric and statistic; rates by their field's name and ""


@dataclass(frozen=True, slots=True)
class BenchmarkLoad:
    """What a benchmark asked of its server."""

    prompt: int
    answer: int
    batch: int | None = None  # one batch at a time …
    clients: int | None = None  # … or clients that each wait for their answer: at once, all of the requests …
    rate: float | None = None  # … or requests a second
    count: int = 0
    spread: float | None = None  # of lengths; None: nobody says, and they are taken as equal
    burstiness: float = 1.0
    hit_rate: float = 0.0

    @property
    def alone(self) -> bool:
        """Whether no request can wait for another."""
        return self.batch is not None or (self.clients == 1 and self.rate is None)

    def __str__(self) -> str:
        lengths = f"{self.prompt:,} tokens in, {self.answer:,} out"
        if self.batch:
            return f"a batch of {self.batch:,}, {lengths}"
        if self.rate is None:
            return f"{self.clients:,} clients that start at once, {self.count:,} requests, {lengths}"
        return f"{self.rate:g} requests/s{f' and at most {self.clients:,} concurrent requests' if self.clients else ''}, {lengths}"


@dataclass(frozen=True, slots=True)
class ExpectedFigures:
    """The predicted figures of one load, and of which terms a mean request's time is made."""

    load: BenchmarkLoad
    figures: Figures
    terms: Mapping[str, float]  # seconds of a request: queue, prefill, decode
    running: float  # sequences of a mean decode step
    unsure: frozenset[str] = frozenset()  # metrics whose mean two predictors put far apart: their tails hang on the order
    steady_s: Mapping[float, float] = field(default_factory=dict)  # first tokens without a beginning, by the spread of lengths

    def of(self, metric: str, statistic: str = "mean") -> Figure | None:
        """A figure; of the terms of a request that only a server tells, their mean, as sure as what they are the larger part of."""
        like = self.figures.get((LIKE.get(metric, ""), "mean"))
        if like is None or metric not in self.terms or statistic != "mean":
            return self.figures.get((metric, statistic))
        return like.scaled(self.terms[metric] / like.value)


def come_at_once(result: BenchmarkRun) -> bool:
    """Whether requests do not come at a rate: none is told, or all clients are there before the first answer is a part done."""
    rate, whole = result.request_rate, result.seconds("e2el", "mean") or 0.0
    if not rate or not LEVEL.least_rate < rate < math.inf:
        return True
    return bool(result.concurrency) and (result.concurrency or 0.0) / rate < LEVEL.ramp * whole


def load_of(result: BenchmarkRun, claim: Claim) -> BenchmarkLoad | str:
    """The load, as the result has it, else as was said; or what is missing, and the option that says it."""
    prompt, answer = lengths_of(result, claim)
    missing = [f"{what} ({option})" for n, what, option in ((prompt, *PROMPT), (answer, *ANSWER)) if n is None]
    rate = None if come_at_once(result) else result.request_rate
    clients, asked = result.concurrency, result.requests if (result.requests or 0) < COUNT.most_requests else None
    if rate is None and not clients:
        clients = (asked if result.request_rate else None) or claim.batch
    if result.kind != "latency" and not clients and rate is None:
        missing.append("requests at once (--batch)")
    if missing or prompt is None or answer is None:
        return f"the file does not say {' and '.join(missing)}"
    if result.kind == "latency":
        return BenchmarkLoad(prompt, answer, batch=result.batch or claim.batch or 1)
    most = max(1, int(clients)) if clients else None
    usual = COUNT.rounds * most if most else PROMPTS
    usual = max(PROMPTS, min(COUNT.most_simulated, int(rate * LEVEL.while_s))) if rate else usual
    if result.tool == SERVER and most:
        asked = min(COUNT.most_simulated, max(PROMPTS, COUNT.lasting * most))
    count = asked or (most if result.kind == "throughput" and most else usual)
    most = min(most, count) if most else None
    return BenchmarkLoad(prompt, answer, None, most, rate, count, result.spread, result.burstiness, result.hit_rate)


PROMPT, ANSWER = ("prompt lengths", "--input-len"), ("output lengths", "--output-len")


def lengths_of(result: BenchmarkRun, claim: Claim) -> tuple[int | None, int | None]:
    """Prompt and output tokens of a request: as the result has them, else as was said."""
    prompt, answer = result.input_len or claim.context, result.output_len or claim.output_len
    if prompt is None and answer and result.kind == "throughput" and result.total_tokens_per_s and result.requests_per_s:
        prompt = max(1.0, result.total_tokens_per_s / result.requests_per_s - answer)
    return _tokens(prompt), _tokens(answer)


def _tokens(length: float | None) -> int | None:
    """A length that a request can have; None for any other."""
    return max(1, round(length)) if length and 0 < length < LEVEL.most_tokens else None


def predict_run(result: BenchmarkRun, load: BenchmarkLoad, claim: Claim) -> ExpectedFigures:
    """The figures of a result's load.

    A server does not tell whether its clients wait for their answers before they ask again. Ranges of first tokens and of tails
    hang on that, and hold both a closed loop of as many as were there and arrivals at random, where it would keep up with those.
    """
    closed, whole = predict_figures(load, claim), result.seconds("e2el", "mean")
    rate = result.requests_per_s or (result.concurrency / whole if result.concurrency and whole else None)
    if result.tool != SERVER or load.batch is not None or not rate or rate <= LEVEL.least_rate:
        return closed
    try:
        at_random = predict_figures(replace(load, clients=None, rate=rate, count=PROMPTS), claim)
    except ValueError:
        return closed
    kept = at_random.of("requests_per_s", "")
    if kept is None or kept.value < LEVEL.keeps * rate:
        return closed
    other = {key: figure for key, figure in at_random.figures.items() if key[0] in BY_ARRIVAL or key[1] not in ("mean", "")}
    return replace(closed, figures={key: figure.widened(other.get(key, figure)) for key, figure in closed.figures.items()})


@cache_answers
def predict_figures(load: BenchmarkLoad, claim: Claim) -> ExpectedFigures:
    """All figures of a load; a refusal where it does not fit."""
    if load.batch is not None:
        return _batch(load, load.batch, claim)
    count = _num_simulated(load)
    put = claim.question.but(input_len=load.prompt, output_len=load.answer, spread=load.spread or 0.0, num_prompts=count)
    put = put.but(prefix_hit_rate=load.hit_rate, burstiness=load.burstiness)
    asked = settle(put.but(concurrency=min(load.clients or 1, count)))
    if load.rate is not None:
        timed = requests.run_requests(asked.but(request_rate=load.rate, max_in_flight=float(load.clients or math.inf)))
        _refuse_growing(load, timed.overloaded)
        figures = dict(_simulated_figures(timed, float(timed.alike.sigma_of("ttft_s"))))
        return ExpectedFigures(load, figures, _simulated_terms(timed, load), max(1.0, timed.mean_running))
    _refuse_growing(load, load.clients == load.count)
    timed = requests.run_requests(asked)
    closed = closed_loop.price_closed_loop(asked.but(prefix_hit_rate=0.0, burstiness=1.0))
    figures = dict(_simulated_figures(timed, float(closed.sigma_of("ttft_s"))))
    if claim.question.what_if != AS_IT_IS or load.hit_rate or load.clients == load.count:  # what the closed form does not know
        return ExpectedFigures(load, figures, _simulated_terms(timed, load), max(1.0, timed.mean_running))
    means = {
        key: figure for key, figure in _closed_form_figures(closed).items() if key in figures
    }  # one token has no time between tokens
    unsure = frozenset(m for (m, s), f in means.items() if abs(figures[m, s].value / f.value - 1) > LEVEL.apart)
    figures = {key: _around_mean(figures, means, *key) for key in figures}
    steady = {} if load.alone else _steady_first_s(closed)
    parts = closed.served
    queue = float(parts.boundary_s + parts.ahead_s + parts.slot_s + parts.frontend_s)
    decode = (float(closed.requests.output_len) - 1) * float(closed.tpot_s)
    closed_terms = {"queue": queue, "prefill": float(closed.ttft_s) - queue, "decode": decode}
    return ExpectedFigures(load, figures, closed_terms, max(1.0, float(closed.running)), unsure, steady)


def _around_mean(simulated: Figures, means: Figures, metric: str, statistic: str) -> Figure:
    """A simulated figure around the closed form's mean of its metric: a mean and the median beside it are of one prediction."""
    figure, mean = simulated[metric, statistic], means.get((metric, "mean"))
    if mean is None or statistic == "mean":
        return mean or figure
    return figure.scaled(mean.value / simulated[metric, "mean"].value)


def _steady_first_s(closed: ClosedLoop) -> dict[float, float]:
    """First tokens of the same clients without a beginning at which all of them ask: at their lengths, and at usual ones."""
    spreads = dict.fromkeys((float(closed.requests.spread), SPREAD))
    return {
        spread: float(closed_loop.price_closed_loop(closed.question.but(num_prompts=math.inf, spread=spread)).ttft_s)
        for spread in spreads
    }


def load_words(predicted: ExpectedFigures) -> str:
    """How a benchmark's load was taken; of clients that start at once, what that beginning adds to a mean first token."""
    load, first = predicted.load, predicted.of("ttft")
    steady = predicted.steady_s.get(load.spread or 0.0)
    if first is None or steady is None or first.value - steady < LEVEL.begins * first.value:
        return str(load)
    waits = f"of TTFT {format_seconds(first.value)}, {format_seconds(first.value - steady)} is waiting in that first burst"
    usual = next((f", or {format_seconds(s)} with lengths ±{by:.0%}" for by, s in predicted.steady_s.items() if s < steady), "")
    shown = f"the steady state that simulate shows has {format_seconds(steady)}{usual}"
    same = f"with --num-prompts {load.count} --spread {load.spread or 0:g} it tells this mean, too"
    return f"{load}: {waits} (a mean over all requests); {shown}; {same}"


def _most_simulated(load: BenchmarkLoad) -> int:
    """Requests that are simulated at most: fewer of long prompts, whose pieces are steps of their own."""
    return max(1, min(COUNT.most_simulated, COUNT.most_prefilled // load.prompt))


def _num_simulated(load: BenchmarkLoad) -> int:
    """Requests of a run that are simulated: of few clients with long answers, which see the same again and again, fewer."""
    if load.rate is not None or load.clients is None:
        return min(load.count, _most_simulated(load))
    return min(load.count, _most_simulated(load), load.clients * max(COUNT.rounds, COUNT.most_steps // load.answer))


def _refuse_growing(load: BenchmarkLoad, grows: bool) -> None:
    """Refuse a part of a run whose waiting grows with every request."""
    if grows and load.count > _most_simulated(load):
        many = f"{load.count:,} requests, of which {_most_simulated(load):,} at most are simulated"
        raise Refusal.of(f"{many}, and the queue grows with each", num_prompts=load.count)


def _batch(load: BenchmarkLoad, batch: int, claim: Claim) -> ExpectedFigures:
    bills = claim.bill("prefill", batch, load.prompt), claim.bill("decode", batch, load.prompt + load.answer // 2)
    first, step = (Figure.around(float(b.step_s), float(b.sigma)) for b in bills)
    whole = first.plus(step, load.answer - 1)
    figures = {(m, s): f for m, f in (("ttft", first), ("tpot", step), ("e2el", whole)) for s in ("mean", "median")}
    rate = batch * load.answer
    figures["output_tokens_per_s", ""] = Figure(*(rate / whole.ends[i] for i in (0, 2, 1)))
    return ExpectedFigures(load, figures, {"prefill": first.value, "decode": (load.answer - 1) * step.value}, batch)


def _closed_form_figures(closed: ClosedLoop) -> dict[tuple[str, str], Figure]:
    first, each = (Figure.around(float(getattr(closed, name)), float(closed.sigma_of(name))) for name in ("ttft_s", "tpot_s"))
    whole = first.plus(each, float(closed.requests.output_len) - 1)
    return {("ttft", "mean"): first, ("tpot", "mean"): each, ("e2el", "mean"): whole}


def _simulated_figures(timed: RequestsInTime, sigma: float) -> Iterator[tuple[tuple[str, str], Figure]]:
    """All statistics and rates of a simulation; first tokens are no surer than those of published runs were."""
    for (metric, name), (statistic, which) in ((m, s) for m in METRICS.items() for s in STATISTICS.items()):
        key = f"{name}_{which}"
        value = timed.statistic(key)
        if math.isfinite(value) and (value > 0 or metric == "queue"):
            figure = Figure(value, *timed.range_of(key))
            yield (metric, statistic), figure.widened(Figure.around(value, sigma)) if metric in ("ttft", "queue") else figure
    fast, same, slow = timed.ends
    for name, rate in RATES.items():
        value = float(rate(timed))
        ends = [value * float(rate(end)) / float(rate(same)) for end in (slow, fast)]
        yield (name, ""), Figure(value, min(value, *ends), max(value, *ends))


def _simulated_terms(timed: RequestsInTime, load: BenchmarkLoad) -> dict[str, float]:
    queue, first, step = (timed.statistic(f"{name}_mean") for name in ("queue", "ttft", "tpot"))
    return {"queue": queue, "prefill": first - queue, "decode": (load.answer - 1) * step if load.answer > 1 else 0.0}
