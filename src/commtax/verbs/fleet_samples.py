"""A few replicas that stand for a fleet of identical ones: their question, with their share of the fleet's requests.

Round robin sends each replica every n-th request, so that its requests come the more regularly the more replicas there are: gaps
of the gamma distribution, of which n make one again. Of least-loaded replicas a few choose among themselves as all do among all.
A router by prefixes keeps requests with common text together: a sample has its share of the texts, each as often as it comes,
and some replicas beside: requests that come before a cache has their text go to one each.
"""

from dataclasses import replace
from fractions import Fraction
from math import gcd, inf

import numpy as np

from commtax.arrays import Array
from commtax.judgement.fleet_samples import Size, least_share, sample_size, unused_size
from commtax.question import Question
from commtax.records import Number, dataclass
from commtax.spec.stream import RequestStream
from commtax.statement import Note


@dataclass(frozen=True, slots=True)
class Sample:
    """What is simulated for a whole fleet."""

    question: Question  # of the replicas that are simulated
    share: Fraction  # of all requests that they get …
    decoded: Fraction  # … and of these, with workers of prompts, that they decode: the others go to workers that nobody follows
    size: Size
    whole: Size

    @property
    def notes(self) -> tuple[Note, ...]:
        """That not all replicas were simulated."""
        if self.size == self.whole:
            return ()
        text = f"{self.size[0]:,} of {self.whole[0]:,} replicas were simulated, with their share of the requests"
        return (Note("sample", f"{text}; rates and totals are of all"),)


def sample_of(q: Question, least: float = 0.0) -> Sample:
    """Return the sample of a question's fleet that is simulated for it, at least a share of all; the fleet where it is small."""
    wanted, replicas = q.requests, int(q.plan.replicas)
    whole = (int(wanted.decode_workers or 1), int(wanted.prefill_workers or 1)) if wanted.disaggregated else (replicas, 0)
    entered = whole[1] or whole[0]
    used = used_of(q, entered)
    size = sample_size((whole[0], used) if whole[1] else (used, 0), least, q.offered.router != "round-robin")
    share = Fraction(size[1] or size[0], used)
    if used < entered:
        beside = unused_size()
        size = (size[0], min(entered, size[1] + beside)) if whole[1] else (min(entered, size[0] + beside), 0)
    if size == whole:
        return Sample(q, Fraction(1), Fraction(1), whole, whole)
    workers = workers_of(size, bool(whole[1]))
    decoded = Fraction(size[0], whole[0]) / share if whole[1] else Fraction(1)
    return Sample(_thinned(q.but(**workers), share, size[1] or size[0], whole[1] or whole[0]), share, decoded, size, whole)


def workers_of(size: Size, apart: bool) -> dict[str, int]:
    """Return the options that say how many workers a fleet has."""
    return {"decode_workers": size[0], "prefill_workers": size[1]} if apart else {"replicas": size[0]}


def serving_sample(q: Question) -> Sample:
    """Return the sample that a run of stated length allows: enough requests and clients must be left for its percentiles.

    Of two kinds of workers all are simulated, so that every request has its end.
    """
    closed = not q.offered.request_rate and q.offered.trace is None
    clients = float(q.requests.concurrency) if closed else q.offered.max_in_flight
    drawn = q.requests.num_prompts, q.offered.duration_s * (q.offered.request_rate or inf)  # without an end where nobody says one
    count = float(min(drawn) if q.offered.trace is None else len(q.offered.trace))
    sample = sample_of(q, 1.0 if q.requests.disaggregated else least_share(count, clients))
    if not closed or sample.share == 1:
        return sample
    return replace(sample, share=Fraction(int(sample.question.requests.concurrency), int(clients)))


def used_of(q: Question, replicas: int) -> int:
    """Return how many of the replicas that prompts come to get any: one that comes again goes where its text is."""
    if q.offered.router != "prefix":
        return replicas
    if q.offered.trace is not None:
        return int(min(replicas, _groups(q.offered.trace).max(initial=0) + 1))
    alike = q.offered.shared_prefix >= (q.limits.block_size or q.engine.memory.block_size)
    return 1 if alike else min(replicas, q.offered.unique_prompts or replicas)


def _groups(stream: RequestStream) -> Array:
    """Return each request's group, numbered as they first come; a prompt without common text is a group of its own."""
    if stream.prefixes is None:
        return np.arange(len(stream))
    numbers: dict[object, int] = {}
    roots = ((ids[0] if ids else (i,)) for i, ids in enumerate(stream.prefixes))
    return np.array([numbers.setdefault(root, len(numbers)) for root in roots], dtype=np.int64)


def _thinned(q: Question, share: Fraction, replicas: int, whole: int) -> Question:
    """Return the question with a share of its requests."""
    offered, wanted = q.offered, q.requests
    repeated, kind = offered.unique_prompts, offered.router
    if repeated and kind == "round-robin":  # each replica meets as many prompts as before
        repeated = repeated // gcd(repeated, whole) * replicas
    elif kind == "prefix":
        repeated = round(repeated * share)
    trace = offered.trace
    if trace is not None:
        keys = _groups(trace) if kind == "prefix" else np.arange(len(trace))
        kept = (keys + 1) * share.numerator // share.denominator > keys * share.numerator // share.denominator
        trace = replace(trace.take(np.flatnonzero(kept)), in_flight=float(_part(trace.in_flight, share)))
    return q.but(
        request_rate=offered.request_rate * float(share),
        burstiness=offered.burstiness / (float(share) if kind == "round-robin" else 1.0),
        offered=replace(offered, trace=trace, max_in_flight=float(_part(offered.max_in_flight, share))),
        unique_prompts=repeated,
        warmup=int(offered.warmup * share),
        num_prompts=_part(wanted.num_prompts, share),
        concurrency=_part(wanted.concurrency, share),
    )


def _part(count: Number, share: Fraction) -> Number:
    """Return a share of a whole number; there may be no end of them."""
    return max(1, round(float(count) * float(share))) if np.isfinite(count) else count
