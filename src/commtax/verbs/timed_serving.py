"""``commtax.serve("llama-3.1-70b", "8xh100-sxm", tp=4, request_rate=8, input_len=512, output_len="sharegpt")``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from commtax.options import check_taken, taken_by
from commtax.question import OfferedRequests, Question
from commtax.spec import Cluster, Model
from commtax.statement import Refusal
from commtax.verbs import requests
from commtax.verbs.checking import positive
from commtax.verbs.disaggregation import check_apart, check_pools, prompter
from commtax.verbs.keywords import ServeOptions
from commtax.verbs.loads import split
from commtax.verbs.longest_request import check_lengths, check_starts
from commtax.verbs.request_streams import PROMPTS
from commtax.verbs.requests import RequestsInTime
from commtax.verbs.settling import resolve_question, settle


def serve(model: str | Model, cluster: str | Cluster, **options: Unpack[ServeOptions]) -> RequestsInTime:
    """What becomes of requests that come in time: each one's times, in ``columns`` or ``to_frame()``, and what they add up to.

    >>> import commtax
    >>> served = commtax.serve("llama-3.2-1b", "1xh100-sxm", request_rate=4, num_prompts=60, input_len=512, output_len=32)
    >>> served.overloaded, served.statistic("ttft_p99") < 0.1
    (False, True)

    One of ``request_rate``, ``concurrency`` and ``trace`` says when they come. Lengths are numbers, which vary by ``spread`` of
    their mean to either side, or distributions. The same ``seed`` gives the same bytes.
    """
    return requests.run_requests(settle(requests_question(model, cluster, check_taken("serve", options))))


def requests_question(model: str | Model, cluster: str | Cluster, options: Mapping[str, object]) -> Question:
    """The question of options that say what is offered, checked as far as that goes before anything is priced."""
    plain, offered = split(options)
    if not (offered.request_rate or "concurrency" in plain or offered.trace is not None):
        raise Refusal.about(request_rate="say when requests come: request_rate, concurrency (a closed loop) or a trace")
    return check_single_load(resolve_question(model, cluster, plain).but(offered=offered))


def check_single_load(q: Question) -> Question:
    """One plan, one load, numbers that are some."""
    for name, option in taken_by("serve()").items():
        if option.part in ("plan", "requests") and np.ndim(getattr(getattr(q, option.part), option.key)):
            several = option.part == "plan"
            rule = "requests are simulated for one plan at a time" if several else "one number is needed; a sweep goes over several"
            raise Refusal(f"{name}: {rule}", name)
    check_apart(q)
    if q.requests.disaggregated:
        ahead = settle(prompter(q).but(offered=OfferedRequests())).plan
        check_pools(q, ahead, (q.requests.prefill_workers, q.requests.decode_workers))
    check_lengths(q)
    check_starts(q)
    if q.requests.kv_tokens is not None:
        positive(kv_tokens=q.requests.kv_tokens)
    # As far as their number is known beforehand: those that come within a time are not counted.
    most = float(PROMPTS) if np.isinf(q.offered.duration_s) else np.inf
    if q.offered.trace is not None:
        most = len(q.offered.trace)
    elif np.isfinite(q.requests.num_prompts):
        most = float(q.requests.num_prompts)
    if q.offered.warmup >= most:
        rule = f"the first {q.offered.warmup:,} of {most:,.0f} requests would be left out of all figures"
        raise Refusal.of(f"{rule}; nearest valid: {most - 1:.0f}", (int(most - 1),), warmup=q.offered.warmup)
    return q
