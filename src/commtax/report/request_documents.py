"""Requests in time as documents: our figures beside the keys of ``vllm bench serve``, so that scripts for its results read ours."""

from math import isfinite, isinf

import numpy as np

from commtax.report.documents import Record, document, record
from commtax.report.requests import METRICS, STATISTICS, remarks, tail_words
from commtax.verbs.goodput import Slo
from commtax.verbs.requests import Outcome
from commtax.verbs.sweeping import Sweep
from commtax.verbs.tails import first_tokens, gaps
from commtax.verbs.usage import usage_of

BENCH = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Our times, and what vLLM calls them."""
MEDIAN = {"p50": "median"}


def outcome_document(o: Outcome, slo: Slo) -> Record:
    """``simulate --json`` of requests in time."""
    made = document(
        "requests",
        o.question,
        outcome=o,
        idle_gpus=o.question.gpus_there - o.num_gpus,
        offered=_offered(o),
        requests=len(o.stream),
        utilisation=None if o.closed or isinf(o.offered_rate) else o.offered_rate / o.capacity,
        times=[_times(o, metric) for metric in METRICS],
        slo=_slo(o, slo) if slo.limits else None,
        usage=usage_of(o),
        tail=_tail(o),
        notes=remarks(o),
    )
    return made | bench_result(o, slo)


def _offered(o: Outcome) -> Record:
    """What came, as it was asked for."""
    q, offered = o.question, o.question.offered
    return record(
        "requests-offered",
        offered=offered,
        kind="trace" if offered.trace is not None else "closed loop" if o.closed else "rate",
        request_rate=None if o.closed else o.offered_rate,
        concurrency=q.requests.concurrency if o.closed else None,
        input_len_mean=float(np.mean(o.stream.input_len)),
        output_len_mean=float(np.mean(o.stream.output_len)),
    )


def _times(o: Outcome, metric: str) -> Record:
    """All statistics of one time with their 80 % ranges, in seconds."""
    row: Record = {"metric": metric}
    for which in STATISTICS:
        low, high = o.range_of(f"{metric}_{which}")
        row |= {f"{which}_s": o.statistic(f"{metric}_{which}"), f"{which}_low_s": low, f"{which}_high_s": high}
    return row


def _slo(o: Outcome, slo: Slo) -> Record:
    sure = {"kept": slo.kept(o), "kept_with": slo.probability(o)}
    return {**slo.limits, "share": slo.share(o), **sure, "goodput_requests_per_s": slo.goodput(o)}


def _tail(o: Outcome) -> Record:
    first, between = first_tokens(o), gaps(o)
    ours = {"cause": first.cause, "more_s": dict(first.more_s), "longer": first.longer}
    return {"ttft": ours, "itl": between, "words": tail_words(o)}


def bench_result(o: Outcome, slo: Slo) -> Record:
    """The keys of ``vllm bench serve --save-result``."""
    rate, burstiness = o.offered_rate, o.question.offered.burstiness
    limit = o.question.requests.concurrency if o.closed else o.stream.in_flight
    row = record(
        "requests-bench",
        question=o.question,
        outcome=o,
        requests=len(o.stream),
        request_rate="inf" if o.closed or isinf(rate) else rate,
        burstiness=burstiness if isfinite(burstiness) else "inf",
        max_concurrency=int(limit) if isfinite(limit) else None,
        failed=0,
        total_input_tokens=int(o.stream.input_len.sum()),
        total_output_tokens=int(o.stream.output_len.sum()),
        request_goodput=slo.goodput(o) if slo.limits else None,
        total_token_throughput=o.tokens_per_s + o.input_tokens_per_s,
    )
    for metric, theirs in BENCH.items():
        row |= {f"{MEDIAN.get(s, s)}_{theirs}_ms": 1e3 * o.statistic(f"{metric}_{s}") for s in (*STATISTICS, "std")}
    return row


def sweep_document(s: Sweep, slo: Slo) -> Record:
    """``simulate --sweep … --json``: a record with vLLM's keys in ``runs`` for each point."""
    first, knee, most = s.outcomes[0], s.knee, s.most(slo)
    return document(
        "requests-sweep",
        first.question,
        sweep=s,
        knee=None if knee is None else s.values[knee],
        most=None if most is None else s.values[most],
        runs=[{s.name: value, **_point(o, slo)} for value, o in zip(s.values, s.outcomes, strict=True)],
        notes=remarks(first),
    )


def _point(o: Outcome, slo: Slo) -> Record:
    kept = slo.share(o) if slo.limits else None
    return {**bench_result(o, slo), "source": "predicted", "overloaded": o.overloaded, "share": kept}
