"""What a benchmark should have shown: its load put to the predictors of requests, and which term of a request's time is off.

One batch at a time is a prompt step and decode steps. Clients of a closed loop have the means of its closed form, whose ranges were
drawn from published runs; tails, rates and all other loads are simulated step by step.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from commtax.arrays import cache_answers
from commtax.files import table
from commtax.judgement.overload import falls_behind
from commtax.ledger import Z80
from commtax.question import AS_IT_IS, SPREAD, Question
from commtax.runs.evidence.finding import Cause, Claim
from commtax.runs.results.bench_record import ASKED, BenchmarkRun
from commtax.statement import Refusal
from commtax.thresholds import thresholds
from commtax.units import format_figure, format_seconds
from commtax.verbs import closed_loop, requests
from commtax.verbs.loads import PROMPTS
from commtax.verbs.requests import RequestsInTime
from commtax.verbs.settling import settle

COUNT, LEVEL = thresholds(__name__)
WORDS = table("runs/results/words.toml")
CHANGES: Mapping[str, str] = WORDS["changes"]

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
        """Return the same value in the range of both."""
        return Figure(self.value, min(self.low, other.low), max(self.high, other.high))

    def plus(self, other: "Figure", times: float = 1.0) -> "Figure":
        """Return a sum of figures that err together."""
        return Figure(*(a + times * b for a, b in zip(self.ends, other.ends, strict=True)))

    def scaled(self, by: float) -> "Figure":
        """Return the same figure, so many times as large."""
        return Figure(*(end * by for end in self.ends))

    @property
    def ends(self) -> tuple[float, float, float]:
        return self.value, self.low, self.high


Figures = Mapping[tuple[str, str], Figure]  # by metric and statistic; rates by their field's name and ""


@dataclass(frozen=True, slots=True)
class BenchmarkLoad:
    """The load that a benchmark put on its server."""

    prompt: int
    answer: int
    batch: int | None = None  # one batch at a time …
    clients: int | None = None  # … or clients that each wait for their answer: at once, all of the requests …
    rate: float | None = None  # … or requests a second
    count: int = 0
    spread: float | None = None  # of lengths; None: unknown, and taken as equal
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
        """Return a figure. A server's terms of a request have means alone, as certain as the metric that is mostly made of them."""
        like = self.figures.get((LIKE.get(metric, ""), "mean"))
        if like is None or metric not in self.terms or statistic != "mean":
            return self.figures.get((metric, statistic))
        return like.scaled(self.terms[metric] / like.value)


def come_at_once(result: BenchmarkRun) -> bool:
    """Return whether requests come at no rate: none is stated, or all clients are there well before the first answer ends."""
    rate, whole = result.request_rate, result.seconds("e2el", "mean") or 0.0
    if not rate or not LEVEL.least_rate < rate < math.inf:
        return True
    return bool(result.concurrency) and (result.concurrency or 0.0) / rate < LEVEL.ramp * whole


def load_of(result: BenchmarkRun, claim: Claim) -> BenchmarkLoad | str:
    """Return the load from the result, else from the claim, or what is missing and the option that states it."""
    prompt, answer = lengths_of(result, claim)
    missing = [f"{what} ({option})" for n, what, option in ((prompt, *PROMPT), (answer, *ANSWER)) if n is None]
    rate = None if come_at_once(result) else result.request_rate
    clients, requests_sent = result.concurrency, result.requests if (result.requests or 0) < COUNT.most_requests else None
    if rate is None and not clients:
        clients = (requests_sent if result.request_rate else None) or claim.batch
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
        requests_sent = min(COUNT.most_simulated, max(PROMPTS, COUNT.lasting * most))
    count = requests_sent or (most if result.kind == "throughput" and most else usual)
    most = min(most, count) if most else None
    return BenchmarkLoad(prompt, answer, None, most, rate, count, result.spread, result.burstiness, result.hit_rate)


PROMPT, ANSWER = ("prompt lengths", "--input-len"), ("output lengths", "--output-len")


def lengths_of(result: BenchmarkRun, claim: Claim) -> tuple[int | None, int | None]:
    """Return prompt and output tokens of a request, from the result or else from the claim."""
    prompt, answer = result.input_len or claim.context, result.output_len or claim.output_len
    if prompt is None and answer and result.kind == "throughput" and result.total_tokens_per_s and result.requests_per_s:
        prompt = max(1.0, result.total_tokens_per_s / result.requests_per_s - answer)
    return _tokens(prompt), _tokens(answer)


def _tokens(length: float | None) -> int | None:
    """Return a length that a request can have, or None for any other."""
    return max(1, round(length)) if length and 0 < length < LEVEL.most_tokens else None


def predict_run(result: BenchmarkRun, load: BenchmarkLoad, claim: Claim) -> ExpectedFigures:
    """Predict the figures of a result's load, for a closed loop and for arrivals at random where a server does not tell which."""
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
    """Predict all figures of a load, or refuse a load that does not fit."""
    if load.batch is not None:
        return _batch(load, load.batch, claim)
    count = min(load.count, _most_simulated(load))
    if load.rate is None and load.clients is not None:  # few clients with long answers see the same again and again
        count = min(count, load.clients * max(COUNT.rounds, COUNT.most_steps // load.answer))
    put = claim.question.but(input_len=load.prompt, output_len=load.answer, spread=load.spread or 0.0, num_prompts=count)
    put = put.but(prefix_hit_rate=load.hit_rate, burstiness=load.burstiness)
    question = settle(put.but(concurrency=min(load.clients or 1, count)))
    if load.rate is not None:
        timed = requests.run_requests(question.but(request_rate=load.rate, max_in_flight=float(load.clients or math.inf)))
        _refuse_growing(load, timed.overloaded)
        figures = dict(_simulated_figures(timed, float(timed.alike.sigma_of("ttft_s"))))
        return ExpectedFigures(load, figures, _simulated_terms(timed, load), max(1.0, timed.mean_running))
    _refuse_growing(load, load.clients == load.count)
    timed = requests.run_requests(question)
    closed = closed_loop.price_closed_loop(question.but(prefix_hit_rate=0.0, burstiness=1.0))
    figures = dict(_simulated_figures(timed, float(closed.sigma_of("ttft_s"))))
    if claim.question.what_if != AS_IT_IS or load.hit_rate or load.clients == load.count:  # what the closed form does not know
        return ExpectedFigures(load, figures, _simulated_terms(timed, load), max(1.0, timed.mean_running))
    first, each = (Figure.around(float(getattr(closed, name)), float(closed.sigma_of(name))) for name in ("ttft_s", "tpot_s"))
    whole = first.plus(each, float(closed.requests.output_len) - 1)
    by_mean = {("ttft", "mean"): first, ("tpot", "mean"): each, ("e2el", "mean"): whole}
    means = {key: figure for key, figure in by_mean.items() if key in figures}  # one token has no time between tokens
    unsure = frozenset(m for (m, s), f in means.items() if abs(figures[m, s].value / f.value - 1) > LEVEL.apart)
    figures = {key: _around_mean(figures, means, *key) for key in figures}
    steady = {  # first tokens without a beginning at which all clients ask, at the lengths of the load and at usual ones
        spread: float(closed_loop.price_closed_loop(closed.question.but(num_prompts=math.inf, spread=spread)).ttft_s)
        for spread in (() if load.alone else dict.fromkeys((float(closed.requests.spread), SPREAD)))
    }
    parts = closed.served
    queue = float(parts.boundary_s + parts.ahead_s + parts.slot_s + parts.frontend_s)
    decode = (float(closed.requests.output_len) - 1) * float(closed.tpot_s)
    closed_terms = {"queue": queue, "prefill": float(closed.ttft_s) - queue, "decode": decode}
    return ExpectedFigures(load, figures, closed_terms, max(1.0, float(closed.running)), unsure, steady)


def _around_mean(simulated: Figures, means: Figures, metric: str, statistic: str) -> Figure:
    """Shift a simulated figure to the closed form's mean of its metric, so that mean and median are of one prediction."""
    figure, mean = simulated[metric, statistic], means.get((metric, "mean"))
    if mean is None or statistic == "mean":
        return mean or figure
    return figure.scaled(mean.value / simulated[metric, "mean"].value)


def load_words(predicted: ExpectedFigures) -> str:
    """Describe the load, and how much clients that start at once add to the mean first token."""
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
    """Return the most requests that are simulated: fewer of long prompts, whose chunks are steps of their own."""
    return max(1, min(COUNT.most_simulated, COUNT.most_prefilled // load.prompt))


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


def _simulated_figures(timed: RequestsInTime, sigma: float) -> Iterator[tuple[tuple[str, str], Figure]]:
    """Yield all statistics and rates of a simulation, first tokens no surer than those of published runs."""
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


P99 = 2.326  # deviations from the middle of a normal distribution to its p99


def seconds_over_range(figure: Figure | None, measured: float | None, claim: Claim) -> float:
    """Return by how much a time exceeds its range and the tolerance, or 0 where it does not."""
    if figure is None or measured is None:
        return 0.0
    most = figure.value * (1 + claim.tolerance) if claim.strict else max(figure.high, figure.value * (1 + claim.tolerance))
    return measured - figure.value if measured > most else 0.0


def causes(
    result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None = None
) -> tuple[Cause, ...]:
    """Return what is slower than it should be, dearest first."""
    if more := _larger_batch_causes(result, predicted, claim):
        return more
    slow_parts = [*_decode(result, predicted, claim, baseline), *_first_token(result, predicted, claim)]
    if not slow_parts and result.kind == "latency":
        slow_parts += _whole_batch_causes(result, predicted, claim, baseline)
    if not slow_parts and result.kind == "throughput":
        slow_parts += _burst_causes(result, predicted, claim, baseline)
    return tuple(sorted(slow_parts, key=lambda cause: -(cause.cost_s or 0.0)))


def _larger_batch_causes(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim) -> tuple[Cause, ...]:
    """Explain slower tokens beside more answers than predicted by a larger batch than claimed."""
    metric, statistic, step = _steps(result)
    figure, rate = predicted.of("requests_per_s", ""), result.requests_per_s
    if figure is None or not rate or not seconds_over_range(predicted.of(metric, statistic), step, claim):
        return ()
    if rate <= max(figure.high, figure.value * (1 + claim.tolerance)):
        return ()
    text = "tokens take longer and more requests are answered than predicted: more ran at once than"
    text += f" the {predicted.running:.0f} that were predicted, or prompts cost less"
    return (Cause("at once", text, change=CHANGES["at once"]),)


def _is_within_range(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, metric: str) -> bool:
    """Return whether a metric has a mean, and one no longer than it should be."""
    figure, mean = predicted.of(metric, "mean"), result.stats.get(metric, {}).get("mean")
    return figure is not None and mean is not None and not seconds_over_range(figure, mean, claim)


def _steps(result: BenchmarkRun) -> tuple[str, str, float | None]:
    """Return the time of a token and its name in the result, preferring the median, which no outlier affects."""
    for metric, statistic in (("tpot", "median"), ("tpot", "mean"), ("itl", "mean")):
        if (seconds := result.stats.get(metric, {}).get(statistic)) is not None:
            return metric, statistic, seconds
    return "tpot", "mean", None


def _share(result: BenchmarkRun, predicted: ExpectedFigures, seconds: float) -> float | None:
    whole = result.seconds("e2el", "mean") or sum(predicted.terms.values()) + seconds
    return min(1.0, seconds / whole) if whole > 0 else None


def _decode(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None) -> Iterator[Cause]:
    metric, statistic, measured = _steps(result)
    figure = predicted.of(metric, statistic)
    more = seconds_over_range(figure, measured, claim) if result.accepted <= 1 else 0.0
    if not more or figure is None or measured is None or _is_within_range(result, predicted, claim, metric):
        return
    # Where the server works on prompts nearly all the time, tokens wait behind them, and show nothing of decode steps.
    load, batch = predicted.load, max(1, round(predicted.running))
    prompt = float(claim.bill("prefill", 1, load.prompt).step_s)
    answer = load.answer * float(claim.bill("decode", batch, load.prompt + load.answer // 2).step_s) / batch
    if not load.alone and prompt > LEVEL.prompts * (prompt + answer):
        return
    cost = more * max(1, predicted.load.answer - 1)
    gain = f"{measured / figure.value:.2f}x faster tokens ({format_seconds(figure.value)} each)"
    times = measured / figure.value
    text = f"a decode step takes {times:.2f} times what it should"
    yield _blame_decode_step(times, predicted, claim, baseline, Cause("", text, cost, _share(result, predicted, cost), gain=gain))


def _whole_batch_causes(
    result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None
) -> Iterator[Cause]:
    """Explain a slow batch of which only the total time is measured, most of it decode steps."""
    figure, measured = predicted.of("e2el"), result.seconds("e2el", "mean")
    more = seconds_over_range(figure, measured, claim)
    if more and figure and measured:
        times = 1 + more / max(predicted.terms["decode"], 1e-12)
        gain = f"{measured / figure.value:.2f}x faster batches ({format_seconds(figure.value)} each)"
        text = f"a batch takes {measured / figure.value:.2f} times what it should"
        yield _blame_decode_step(times, predicted, claim, baseline, Cause("", text, more, min(1.0, more / measured), gain=gain))


def _burst_causes(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None) -> Iterator[Cause]:
    """Explain a slow run of requests that come all at once, of which only the rate is measured."""
    figure, measured = predicted.of("requests_per_s", ""), result.requests_per_s
    if figure is None or not measured:
        return
    least = figure.value / (1 + claim.tolerance)
    if measured < (least if claim.strict else min(least, figure.low)):
        times = figure.value / measured
        text, gain = f"the run takes {times:.2f} times what it should", f"{times:.2f}x the throughput"
        yield _blame_decode_step(times, predicted, claim, baseline, Cause("", text, share=1 - 1 / times, gain=gain))


def _blame_decode_step(
    times: float, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None, cause: Cause
) -> Cause:
    """Find what could slow a decode step that much, and return the cause with its code and what to change."""
    batch, context = max(1, round(predicted.running)), predicted.load.prompt + predicted.load.answer // 2
    bill = claim.bill("decode", batch, context)
    step_s = float(bill.step_s)
    near = []
    for suspect, question in _suspects(claim):
        try:
            slowed = float(replace(claim, question=question).bill("decode", batch, context).step_s) / step_s
        except ValueError:  # such a plan is none here
            continue
        if slowed >= LEVEL.more and abs(times / slowed - 1) <= LEVEL.near:
            near.append((abs(times / slowed - 1), suspect))
    if likely := min(near, key=lambda one: one[0], default=(0.0, ""))[1]:
        code, text, change = WORDS["suspects"][likely]
        change = change.format(tp=claim.tp, dtype=claim.plan.weights_dtype)
        return replace(cause, code=code, said=f"{cause.said}, {text}", change=change)
    alone = _steps(baseline)[2] if baseline and claim.tp > 1 else None
    if alone is not None and abs(alone / float(claim.bill("decode", batch, context, tp=1).step_s) - 1) <= claim.tolerance:
        text = f"{cause.said}, and at TP 1 it takes what it should"
        return replace(cause, code="communication", said=text, change=CHANGES["communication"])
    parts = {k: float(sum(x.exposed_s for x in bill.lines if x.kind == k)) for k in ("compute", "comm", "host")}
    spent = ", ".join(f"{name} {format_seconds(s)}" for name, s in parts.items() if s > 0)
    code = "host" if parts["host"] > LEVEL.small * float(bill.step_s) else "decode"
    return replace(cause, code=code, said=f"{cause.said} (a decode step should be {spent})", change=CHANGES[code])


def _suspects(claim: Claim) -> Iterator[tuple[str, Question]]:
    """Yield simple settings that often differ from the claim, by their names in ``words.toml``, with the question of each."""
    q = claim.question
    if not q.what_if.eager:
        yield "eager", q.but(eager=True)
    if claim.tp > 1 and not q.what_if.library:
        yield "nccl", q.but(library="nccl")
    if claim.tp > 1:
        yield "one GPU", q.but(tp=1)
    if claim.plan.weights_dtype not in ("", "bf16", "fp16", "fp32"):
        yield "16 bits", q.but(weights_dtype="bf16")


def _first_token(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim) -> Iterator[Cause]:
    apart = result.stats.get("queue")  # of which a server may report the mean alone
    statistic = "median" if "median" in result.stats.get("ttft", {}) and (not apart or "median" in apart) else "mean"
    figure, measured = predicted.of("ttft", statistic), result.seconds("ttft", statistic)
    more = seconds_over_range(figure, measured, claim)
    if not more or figure is None or measured is None or _is_within_range(result, predicted, claim, "ttft"):
        return
    waited, terms = result.seconds("queue", statistic), predicted.terms
    metric, which, step = _steps(result)
    step_figure = predicted.of(metric, which)
    times = step / step_figure.value if step and step_figure else 1.0
    if waited is None and times > 1 + claim.tolerance and measured / figure.value <= LEVEL.alike * times:
        return  # it waits for the same slow steps
    met = not predicted.load.alone and (mean_requests_in_flight(result) or math.inf) > LEVEL.few  # more than one on average
    queued = met if waited is None else waited - terms.get("queue", 0.0) > more / 2
    share, gain = _share(result, predicted, more), f"{format_seconds(more)} less until the first token"
    if queued:
        queue_text = f" ({format_seconds(waited)} in the queue)" if waited is not None else ""
        waiting = format_seconds(terms.get("queue", 0.0))
        text = f"the first token takes {format_seconds(measured)}{queue_text}, and {waiting} of waiting"
        yield Cause("queue", f"{text} were predicted: requests wait longer than they should", more, share, CHANGES["queue"], gain)
    else:
        text = f"the first token takes {format_seconds(measured)}, and {format_seconds(figure.value)} were predicted"
        yield Cause("prefill", f"{text}: the prompt's own steps, or the way to them", more, share, CHANGES["prefill"], gain)


def mean_requests_in_flight(result: BenchmarkRun) -> float | None:
    """Return the mean number of concurrent requests (Little's law), or None where it is unknown."""
    whole = _request_s(result, "mean")
    return result.requests_per_s * whole if result.requests_per_s and whole else None


def _request_s(result: BenchmarkRun, statistic: str = "median") -> float | None:
    """Return the seconds of a request, as measured or else from first token and tokens."""
    if whole := result.seconds("e2el", statistic):
        return whole
    first, each = result.seconds("ttft", statistic), result.seconds("tpot", statistic) or result.seconds("itl", "mean")
    return first + (result.output_len - 1) * each if first and each and result.output_len else None


def plain_causes(result: BenchmarkRun) -> tuple[Cause, ...]:
    """Return the causes that a result shows without a prediction: overload or else waiting, and preemptions."""
    thrown = result.facts.get("preemptions", "0")
    text = f"{thrown} times a request was thrown out of the KV cache and computed again"
    lost = Cause("preemption", text, change=CHANGES["preemption"])
    return (*(overload(result) or _waits(result)), *([lost] if thrown != "0" else []))


def overload(result: BenchmarkRun) -> tuple[Cause, ...]:
    """Return an overload: the rate exceeds the answers, and the queue or the duration of the run shows it."""
    rate, answered = result.request_rate, result.requests_per_s
    if not rate or not math.isfinite(rate) or not answered or not falls_behind(rate, answered):
        return ()
    peak, count, tpot = result.facts.get("peak concurrency", ""), result.requests or 0, result.stats.get("tpot", {})
    tail = max(0.0, tpot["p99"] - tpot["median"]) / P99 if "p99" in tpot and "median" in tpot else 0.0
    # The deviation as reported, else as the tail of a normal distribution implies.
    slowed = tpot.get("std", tail) > LEVEL.uneven * tpot.get("mean", math.inf)
    first, piled = result.stats.get("ttft", {}), ""
    if not result.concurrency and count and slowed and peak and float(peak) >= LEVEL.piled * count:
        piled = f", and {float(peak):,.0f} of its {count:,} requests were there at once"
    growth = first["late"] / first["early"] if first.get("early") and "late" in first else 0.0
    if not (growth > LEVEL.grows or piled or _lasts(result, rate, answered)):
        return ()
    later = f", and first tokens came {growth:.1f} times as late at its end as at its beginning" if growth > LEVEL.grows else ""
    most = f" with {result.concurrency:,.0f} at once at most" if result.concurrency else ""
    text = f"overloaded: answered {format_figure(answered)} of {format_figure(rate)} requests/s{most}{later}{piled}"
    return (Cause("overload", text, change=CHANGES["overload"]),)


def _lasts(result: BenchmarkRun, rate: float, answered: float) -> bool:
    """Return whether a run outlasts one that keeps up: all arrivals, some late by chance, and the longest answer at the end."""
    count, whole, first = (result.requests or 0) + result.failed, _request_s(result), result.seconds("ttft")
    if count <= 0:
        return True  # their number is unknown: the rates stand for themselves
    if result.concurrency and whole and count / rate < whole:
        return False  # a ramp for clients that then wait for answers
    if whole and first and _least_wait_s(result, first) > LEVEL.large * whole:
        return True
    decode_s = whole - first if whole and first else 0.0
    return count / answered > count / rate * (1 + LEVEL.chance / math.sqrt(count)) + LEVEL.longest * decode_s


def _waits(result: BenchmarkRun) -> Iterator[Cause]:
    """Yield waiting that a server reports, or that first tokens must contain since prompts alone take less. Medians are used."""
    whole, first, waited = _request_s(result), result.seconds("ttft"), result.seconds("queue")
    at_once = math.isinf(result.request_rate or 0.0) and not result.concurrency  # all requests wait for each other
    unstreamed = result.stats.get("itl", {}).get("mean") == 0  # its first token is its last
    if not whole or at_once or unstreamed or (mean_requests_in_flight(result) or math.inf) <= LEVEL.few:
        return
    change = CHANGES["waits"]
    if waited and waited > LEVEL.large * whole:
        text = f"a request waits {format_seconds(waited)} of its {format_seconds(whole)} before its first step"
        yield Cause("queue", text, waited, min(1.0, waited / whole), change, f"up to {waited / whole:.0%} of a request's time")
    elif first and waited is None and result.kind == "serve" and (least := _least_wait_s(result, first)) > LEVEL.small * whole:
        text = f"the first token takes {format_seconds(first)} of a request's {format_seconds(whole)}"
        yield Cause("queue", f"{text}, most of it waiting", least, min(1.0, least / whole), change)


def _least_wait_s(result: BenchmarkRun, first_s: float) -> float:
    """Return what a first token must have waited: all of it where the server reports a queue, else what no prompt takes."""
    queued, rate = result.facts.get("waiting", "0"), result.total_tokens_per_s
    if queued.isdecimal() and int(queued):
        return first_s
    if not rate and result.output_tokens_per_s and result.input_len and result.output_len:
        rate = result.output_tokens_per_s * (1 + result.input_len / result.output_len)
    # A server that worked through all tokens at the rate of the run takes no longer for a prompt alone.
    return first_s - (result.input_len / rate if rate and result.input_len else math.inf)


def unanswered_count(result: BenchmarkRun) -> int:
    """Count the unanswered requests: those reported as failed, else those requested minus those completed."""
    return result.failed or max(0, int(result.facts.get(ASKED, "0")) - (result.requests or 0))


def failure_causes(result: BenchmarkRun) -> Iterator[Cause]:
    """Yield the failed requests, which all other figures leave out."""
    if not (gone := unanswered_count(result)):
        return
    count = gone + (result.requests or 0)
    text = f"{gone:,} of {count:,} requests {'failed' if result.failed else 'that were asked for have no answer'}"
    rest = "nothing was measured" if gone == count else "the figures are of the others"
    yield Cause("failed requests", f"{text}: {rest}", change=CHANGES["failed requests"])
