"""Requests in time as documents: our figures beside the keys of ``vllm bench serve``, so that scripts for its results read ours."""

from dataclasses import asdict
from math import isfinite, isinf, isnan

import numpy as np

from commtax.records import dataclass
from commtax.report.documents import Asked, Named, Record, Row, filled, named, plain, question
from commtax.report.requests import METRICS, STATISTICS, remarks, tail_words
from commtax.spec import Number
from commtax.verbs.goodput import Slo
from commtax.verbs.requests import Outcome
from commtax.verbs.sweeping import Sweep
from commtax.verbs.tails import first_tokens, gaps
from commtax.verbs.usage import usage_of

BENCH = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Our times, and what vLLM calls them."""
MEDIAN = {"p50": "median"}


@dataclass(frozen=True)
class ServeDocument(Asked):
    source: str
    offered: Record
    requests: int
    overloaded: bool
    capacity_requests_per_s: float
    utilisation: float | None
    times: list[Row]
    slo: Record | None
    usage: Record
    tail: Record
    basis: str
    interrupted: bool
    notes: tuple[str, ...]


def outcome_document(o: Outcome, slo: Slo) -> Row:
    """``simulate --json`` of requests in time."""
    asked = question(o.question, "commtax.serve/1") | {"gpus": o.num_gpus, "idle_gpus": o.question.gpus_there - o.num_gpus}
    finite = not (o.closed or isinf(o.offered_rate))
    document = filled(
        ServeDocument,
        source="predicted",
        offered=_offered(o),
        requests=len(o.stream),
        overloaded=o.overloaded,
        capacity_requests_per_s=o.capacity,
        utilisation=o.offered_rate / o.capacity if finite else None,
        times=[_times(o, metric) for metric in METRICS],
        slo=_slo(o, slo) if slo.limits else None,
        usage=asdict(usage_of(o)),
        tail=_tail(o),
        basis=o.alike.basis,
        interrupted=o.ran.stopped,
        notes=tuple(remarks(o)),
        **asked,
    )
    return _numbers({**plain(document), **bench_result(o, slo)})


def _numbers(value: Row) -> Row:
    """JSON has no word for what is not a number."""
    return {name: _known(one) for name, one in value.items()}


def _known(value: object) -> object:
    if isinstance(value, dict):
        return _numbers(value)
    if isinstance(value, list):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value


def _offered(o: Outcome) -> Record:
    """What came, as it was asked for."""
    q, offered = o.question, o.question.offered
    return {
        "kind": "trace" if offered.trace is not None else "closed loop" if o.closed else "rate",
        "request_rate": None if o.closed else o.offered_rate,
        "concurrency": q.requests.concurrency if o.closed else None,
        "burstiness": offered.burstiness,
        "input_len_mean": float(np.mean(o.stream.input_len)),
        "output_len_mean": float(np.mean(o.stream.output_len)),
        "warmup": offered.warmup,
        "router": offered.router,
        "seed": offered.seed,
    }


def _times(o: Outcome, metric: str) -> Row:
    """All statistics of one time with their 80 % ranges, in seconds."""
    row: Row = {"metric": metric}
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
    return {"ttft": ours, "itl": asdict(between), "words": tail_words(o)}


def bench_result(o: Outcome, slo: Slo) -> Row:
    """The keys of ``vllm bench serve --save-result``; a prediction has no date."""
    rate, limit = o.offered_rate, o.question.requests.concurrency if o.closed else o.stream.in_flight
    row: Row = {
        "date": None,
        "backend": o.question.engine.key,
        "label": None,
        "model_id": o.question.model.key,
        "tokenizer_id": o.question.model.key,
        "num_prompts": len(o.stream),
        "request_rate": "inf" if o.closed or isinf(rate) else rate,
        "burstiness": o.question.offered.burstiness if isfinite(o.question.offered.burstiness) else "inf",
        "max_concurrency": int(limit) if isfinite(limit) else None,
        "duration": o.duration_s,
        "completed": len(o.stream),
        "failed": 0,
        "total_input_tokens": int(o.stream.input_len.sum()),
        "total_output_tokens": int(o.stream.output_len.sum()),
        "request_throughput": o.requests_per_s,
        "request_goodput": slo.goodput(o) if slo.limits else None,
        "output_throughput": o.tokens_per_s,
        "total_token_throughput": o.tokens_per_s + o.input_tokens_per_s,
    }
    for metric, theirs in BENCH.items():
        row |= {f"{MEDIAN.get(s, s)}_{theirs}_ms": 1e3 * o.statistic(f"{metric}_{s}") for s in (*STATISTICS, "std")}
    return row


@dataclass(frozen=True)
class SweepDocument(Named):
    source: str
    over: str
    capacity_requests_per_s: float
    knee: Number | None
    most: Number | None
    runs: list[Row]
    notes: tuple[str, ...]


def sweep_document(s: Sweep, slo: Slo) -> Row:
    """``simulate --sweep … --json``: a record with vLLM's keys in ``runs`` for each point."""
    first = s.outcomes[0]
    knee, most = s.knee, s.most(slo)
    document = SweepDocument(
        source="predicted",
        over=s.name,
        capacity_requests_per_s=s.capacity,
        knee=None if knee is None else s.values[knee],
        most=None if most is None else s.values[most],
        runs=[{s.name: value, **_point(o, slo)} for value, o in zip(s.values, s.outcomes, strict=True)],
        notes=tuple(remarks(first)),
        **named(first.question, "commtax.serve-sweep/1"),  # type: ignore[arg-type]
    )
    return _numbers(plain(document))


def _point(o: Outcome, slo: Slo) -> Row:
    return {
        **bench_result(o, slo),
        "source": "predicted",
        "overloaded": o.overloaded,
        "share": slo.share(o) if slo.limits else None,
    }
