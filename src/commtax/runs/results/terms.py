"""Which term of a request's time is off: waiting, the prompt, the tokens, and of those communication or the host.

E2E = queue + prefill + (n - 1) decode steps. A term that is slower than predicted is held against simple changes of the plan (no
graphs, another library, one GPU) under which it would be as measured.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from commtax.judgement.overload import falls_behind
from commtax.question import Question
from commtax.runs.evidence.finding import Cause, Claim
from commtax.runs.results.bench_record import ASKED, BenchmarkRun
from commtax.runs.results.expected_figures import ExpectedFigures, Figure
from commtax.thresholds import levels
from commtax.units import format_figure, format_seconds

LEVEL = levels(__name__)
P99 = 2.326  # deviations from the middle of a normal distribution to its p99


@dataclass(frozen=True, slots=True)
class PlanSuspect:
    """A change of the plan, and what it would mean if the step were as long as with it."""

    code: str
    question: Question  # with it
    said: str
    change: str


def seconds_over_range(figure: Figure | None, measured: float | None, claim: Claim) -> float:
    """Seconds by which a time is longer than its range and the tolerance allow; 0 where it is not."""
    if figure is None or measured is None:
        return 0.0
    most = figure.value * (1 + claim.tolerance) if claim.strict else max(figure.high, figure.value * (1 + claim.tolerance))
    return measured - figure.value if measured > most else 0.0


def causes(
    result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None = None
) -> tuple[Cause, ...]:
    """What is slower than it should be, dearest first."""
    if more := _larger_batch_causes(result, predicted, claim):
        return more
    found = [*_decode(result, predicted, claim, baseline), *_first_token(result, predicted, claim)]
    if not found and result.kind == "latency":
        found += _whole_batch_causes(result, predicted, claim, baseline)
    if not found and result.kind == "throughput":
        found += _burst_causes(result, predicted, claim, baseline)
    return tuple(sorted(found, key=lambda cause: -(cause.cost_s or 0.0)))


def _larger_batch_causes(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim) -> tuple[Cause, ...]:
    """Slower tokens beside more answers than predicted: nothing is slow, the batch is another than was said."""
    metric, statistic, step = _steps(result)
    figure, rate = predicted.of("requests_per_s", ""), result.requests_per_s
    if figure is None or not rate or not seconds_over_range(predicted.of(metric, statistic), step, claim):
        return ()
    if rate <= max(figure.high, figure.value * (1 + claim.tolerance)):
        return ()
    said = "tokens take longer and more requests are answered than predicted: more ran at once than"
    said += f" the {predicted.running:.0f} that were predicted, or prompts cost less"
    change = "say what ran: weights or a cache of fewer bits, another chip, more GPUs; a step of another batch is not judged"
    return (Cause("at once", said, change=change),)


def _is_within_range(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, metric: str) -> bool:
    """Whether the mean of a time is told, and no longer than it should be."""
    figure, mean = predicted.of(metric, "mean"), result.stats.get(metric, {}).get("mean")
    return figure is not None and mean is not None and not seconds_over_range(figure, mean, claim)


def _steps(result: BenchmarkRun) -> tuple[str, str, float | None]:
    """The time of a token that a result has, and its name in it; a median first, which no outlier pulls."""
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
    # Where the server works on prompts nearly all the time, tokens wait behind them, and tell nothing of decode steps.
    load, batch = predicted.load, max(1, round(predicted.running))
    prompt = float(claim.bill("prefill", 1, load.prompt).step_s)
    answer = load.answer * float(claim.bill("decode", batch, load.prompt + load.answer // 2).step_s) / batch
    if not load.alone and prompt > LEVEL.prompts * (prompt + answer):
        return
    cost = more * max(1, predicted.load.answer - 1)
    gain = f"{measured / figure.value:.2f}x faster tokens ({format_seconds(figure.value)} each)"
    times = measured / figure.value
    said = f"a decode step takes {times:.2f} times what it should"
    yield _blame_decode_step(times, predicted, claim, baseline, Cause("", said, cost, _share(result, predicted, cost), gain=gain))


def _whole_batch_causes(
    result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None
) -> Iterator[Cause]:
    """A batch of which only the whole time is known: its decode steps are most of it."""
    figure, measured = predicted.of("e2el"), result.seconds("e2el", "mean")
    more = seconds_over_range(figure, measured, claim)
    if more and figure and measured:
        times = 1 + more / max(predicted.terms["decode"], 1e-12)
        gain = f"{measured / figure.value:.2f}x faster batches ({format_seconds(figure.value)} each)"
        said = f"a batch takes {measured / figure.value:.2f} times what it should"
        yield _blame_decode_step(times, predicted, claim, baseline, Cause("", said, more, min(1.0, more / measured), gain=gain))


def _burst_causes(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None) -> Iterator[Cause]:
    """Requests that come all at once, of which only the rate is known."""
    figure, measured = predicted.of("requests_per_s", ""), result.requests_per_s
    if figure is None or not measured:
        return
    least = figure.value / (1 + claim.tolerance)
    if measured < (least if claim.strict else min(least, figure.low)):
        times = figure.value / measured
        said, gain = f"the run takes {times:.2f} times what it should", f"{times:.2f}x the throughput"
        yield _blame_decode_step(times, predicted, claim, baseline, Cause("", said, share=1 - 1 / times, gain=gain))


def _blame_decode_step(
    times: float, predicted: ExpectedFigures, claim: Claim, baseline: BenchmarkRun | None, cause: Cause
) -> Cause:
    """Who of a decode step could be that much slower: a cause with its code and what to change."""
    batch, context = max(1, round(predicted.running)), predicted.load.prompt + predicted.load.answer // 2
    bill = claim.bill("decode", batch, context)
    if likely := _nearest(times, claim, batch, context, float(bill.step_s)):
        return replace(cause, code=likely.code, said=f"{cause.said}, {likely.said}", change=likely.change)
    if _alone_agrees(baseline, claim, batch, context):
        change = "look at the links and the library of the all-reduces (commtax measure collectives, NCCL_DEBUG=INFO)"
        return replace(cause, code="communication", said=f"{cause.said}, and at TP 1 it takes what it should", change=change)
    parts = {k: float(sum(x.exposed_s for x in bill.lines if x.kind == k)) for k in ("compute", "comm", "host")}
    spent = ", ".join(f"{name} {format_seconds(s)}" for name, s in parts.items() if s > 0)
    small = parts["host"] > LEVEL.small * float(bill.step_s)
    change = "a faster CPU, fewer API processes beside it, or larger batches" if small else OTHER
    said = f"{cause.said} (a decode step should be {spent})"
    return replace(cause, code="host" if small else "decode", said=said, change=change)


def _nearest(times: float, claim: Claim, batch: int, context: int, step_s: float) -> PlanSuspect | None:
    """The change of the plan under which a step would be that much longer."""
    near = []
    for suspect in _suspects(claim):
        try:
            slowed = float(replace(claim, question=suspect.question).bill("decode", batch, context).step_s) / step_s
        except ValueError:  # such a plan is none here
            continue
        if slowed >= LEVEL.more and abs(times / slowed - 1) <= LEVEL.near:
            near.append((abs(times / slowed - 1), suspect))
    return min(near, key=lambda one: one[0])[1] if near else None


OTHER = "check clocks, version, number format and options of the run, or calibrate; commtax audit of a trace of it tells more"


def _suspects(claim: Claim) -> Iterator[PlanSuspect]:
    """Simple things that are often otherwise than was said."""
    q = claim.question
    if not q.what_if.eager:
        change = "leave out --enforce-eager, or capture larger batches"
        yield PlanSuspect("host", q.but(eager=True), "as without CUDA graphs", change)
    if claim.tp > 1:
        if not q.what_if.library:
            said = "as with NCCL's all-reduces instead of the engine's own"
            change = "find out why its own all-reduce is off: the start-up log says it"
            yield PlanSuspect("communication", q.but(library="nccl"), said, change)
        change = f"start the server with tp {claim.tp}"
        yield PlanSuspect("decode", q.but(tp=1), "as on one GPU: TP was probably not applied", change)
    if claim.plan.weights_dtype not in ("", "bf16", "fp16", "fp32"):
        said = "as with weights of 16 bits"
        yield PlanSuspect(
            "decode", q.but(weights_dtype="bf16"), said, f"serve the {claim.plan.weights_dtype} checkpoint, or its kernels"
        )


def _alone_agrees(baseline: BenchmarkRun | None, claim: Claim, batch: int, context: int) -> bool:
    """Whether the same benchmark at TP 1 took what it should."""
    alone = _steps(baseline)[2] if baseline and claim.tp > 1 else None
    if alone is None:
        return False
    single = float(claim.bill("decode", batch, context, tp=1).step_s)
    return abs(alone / single - 1) <= claim.tolerance


def _first_token(result: BenchmarkRun, predicted: ExpectedFigures, claim: Claim) -> Iterator[Cause]:
    apart = result.stats.get("queue")  # of which a server may tell the mean alone
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
        held = f" ({format_seconds(waited)} in the queue)" if waited is not None else ""
        said = f"the first token takes {format_seconds(measured)}{held}, and {format_seconds(terms.get('queue', 0.0))} of waiting"
        change = "more running at once (KV memory, --max-num-seqs, --max-num-batched-tokens), more replicas, or fewer requests"
        yield Cause("queue", f"{said} were predicted: requests wait longer than they should", more, share, change, gain)
    else:
        said = f"the first token takes {format_seconds(measured)}, and {format_seconds(figure.value)} were predicted"
        change = "look at chunk size, tokenising and HTTP on the way in, and at warm-up: first requests compile and capture"
        yield Cause("prefill", f"{said}: the prompt's own steps, or the way to them", more, share, change, gain)


def mean_requests_in_flight(result: BenchmarkRun) -> float | None:
    """Requests that were there at once on average (Little's law); None where the result does not tell."""
    whole = _request_s(result, "mean")
    return result.requests_per_s * whole if result.requests_per_s and whole else None


def _request_s(result: BenchmarkRun, statistic: str = "median") -> float | None:
    """Seconds of a request: as told, else first token and tokens."""
    if whole := result.seconds("e2el", statistic):
        return whole
    first, each = result.seconds("ttft", statistic), result.seconds("tpot", statistic) or result.seconds("itl", "mean")
    return first + (result.output_len - 1) * each if first and each and result.output_len else None


def plain_causes(result: BenchmarkRun) -> tuple[Cause, ...]:
    """What a result says of its own terms, where nobody says what ran."""
    thrown, change = result.facts.get("preemptions", "0"), "more KV memory, fewer running at once (--max-num-seqs), or a larger tp"
    lost = Cause("preemption", f"{thrown} times a request was thrown out of the KV cache and computed again", change=change)
    return (*(overload(result) or _waits(result)), *([lost] if thrown != "0" else []))


def overload(result: BenchmarkRun) -> tuple[Cause, ...]:
    """That more was asked than answered: the queue shows it, or the run lasts longer than its last answers explain."""
    asked, answered = result.request_rate, result.requests_per_s
    if not asked or not math.isfinite(asked) or not answered or not falls_behind(asked, answered):
        return ()
    first, piled = result.stats.get("ttft", {}), _piled_up_words(result)
    growth = first["late"] / first["early"] if first.get("early") and "late" in first else 0.0
    if not (growth > LEVEL.grows or piled or _lasts(result, asked, answered)):
        return ()
    later = f", and first tokens came {growth:.1f} times as late at its end as at its beginning" if growth > LEVEL.grows else ""
    most = f" with {result.concurrency:,.0f} at once at most" if result.concurrency else ""
    said = f"overloaded: answered {format_figure(answered)} of {format_figure(asked)} requests/s{most}{later}{piled}"
    change = "more replicas or GPUs, fewer or shorter requests, or a limit on what is let in"
    return (Cause("overload", said, change=change),)


def _piled_up_words(result: BenchmarkRun) -> str:
    """That most requests of a run were there at once, and slowed each other: each that came found more before it. In words, or "".

    A short run of long answers has many at once too, and then their tokens take the same time.
    """
    peak, count, tpot = result.facts.get("peak concurrency", ""), result.requests or 0, result.stats.get("tpot", {})
    tail = max(0.0, tpot["p99"] - tpot["median"]) / P99 if "p99" in tpot and "median" in tpot else 0.0
    slowed = tpot.get("std", tail) > LEVEL.uneven * tpot.get("mean", math.inf)  # as told, else as a normal distribution's tail says
    if result.concurrency or not count or not slowed or not peak or float(peak) < LEVEL.piled * count:
        return ""
    return f", and {float(peak):,.0f} of its {count:,} requests were there at once"


def _lasts(result: BenchmarkRun, asked: float, answered: float) -> bool:
    """Whether a run is longer than one that keeps up: all arrivals, by chance some later, and the longest answer at its end."""
    count, whole, first = (result.requests or 0) + result.failed, _request_s(result), result.seconds("ttft")
    if count <= 0:
        return True  # nobody says how many: the rates stand for themselves
    if result.concurrency and whole and count / asked < whole:
        return False  # a ramp for clients that then wait for answers
    if whole and first and _least_wait_s(result, first) > LEVEL.large * whole:
        return True
    decode_s = whole - first if whole and first else 0.0
    return count / answered > count / asked * (1 + LEVEL.chance / math.sqrt(count)) + LEVEL.longest * decode_s


def _waits(result: BenchmarkRun) -> Iterator[Cause]:
    """Waiting that a server tells, or that first tokens must hold: their prompts alone take less. Medians, which none pulls."""
    whole, first, waited = _request_s(result), result.seconds("ttft"), result.seconds("queue")
    at_once = math.isinf(result.request_rate or 0.0) and not result.concurrency  # all requests wait for each other
    unstreamed = result.stats.get("itl", {}).get("mean") == 0  # its first token is its last
    if not whole or at_once or unstreamed or (mean_requests_in_flight(result) or math.inf) <= LEVEL.few:
        return
    change = "more KV memory or replicas, or fewer requests at once"
    if waited and waited > LEVEL.large * whole:
        said = f"a request waits {format_seconds(waited)} of its {format_seconds(whole)} before its first step"
        yield Cause("queue", said, waited, min(1.0, waited / whole), change, f"up to {waited / whole:.0%} of a request's time")
    elif first and waited is None and result.kind == "serve" and (least := _least_wait_s(result, first)) > LEVEL.small * whole:
        said = f"the first token takes {format_seconds(first)} of a request's {format_seconds(whole)}"
        yield Cause("queue", f"{said}, most of it waiting", least, min(1.0, least / whole), change)


def _least_wait_s(result: BenchmarkRun, first_s: float) -> float:
    """What a first token must have waited: all of it where the server counts requests that wait, else what no prompt takes."""
    queued = result.facts.get("waiting", "0")
    return first_s if queued.isdecimal() and int(queued) else first_s - _prompt_s(result)


def _prompt_s(result: BenchmarkRun) -> float:
    """The most that a prompt alone can take on a server that worked through all tokens at the rate of the run; inf: not told."""
    rate = result.total_tokens_per_s
    if not rate and result.output_tokens_per_s and result.input_len and result.output_len:
        rate = result.output_tokens_per_s * (1 + result.input_len / result.output_len)
    return result.input_len / rate if rate and result.input_len else math.inf


def unanswered_count(result: BenchmarkRun) -> int:
    """Requests that were not answered: those that failed, else what is missing of those that a command asked for."""
    return result.failed or max(0, int(result.facts.get(ASKED, "0")) - (result.requests or 0))


def failure_causes(result: BenchmarkRun) -> Iterator[Cause]:
    """That requests failed: all other figures are of the rest."""
    if not (gone := unanswered_count(result)):
        return
    count = gone + (result.requests or 0)
    said = f"{gone:,} of {count:,} requests {'failed' if result.failed else 'that were asked for have no answer'}"
    rest = "nothing was measured" if gone == count else "the figures are of the others"
    change = "the server's log tells why: an error, a limit of time or of length, or a connection that was refused"
    yield Cause("failed requests", f"{said}: {rest}", change=change)
