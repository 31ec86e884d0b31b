"""The load of a question: what users write, the stream of requests that follows, and the sample that stands for a large fleet.

Of round robin each replica gets every n-th request, whose gaps are sums of n of a gamma distribution. Least-loaded replicas choose
among a few as among all. Of a router by prefixes a sample has its share of the texts, and some replicas for what comes before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import gcd, inf, isfinite
from typing import Literal

import numpy as np

from commtax.arrays import Array
from commtax.catalog.distributions import lengths
from commtax.judgement.fleet_samples import Size, least_share, sample_size, unused_size
from commtax.options import Option, taken_by
from commtax.question import SPREAD, OfferedRequests, Question
from commtax.records import Number, dataclass
from commtax.rules.questions import longest_taken
from commtax.rules.values import check_option, positive
from commtax.sim.streams import draw_stream
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Note, Refusal
from commtax.units import format_spread, plural
from commtax.verbs.fitting import block_tokens
from commtax.words import words

MOST_SERVED = 1_000_000  # requests that are simulated: about a minute, and a few GiB
MOST_RATE = 1e6  # requests/s
LOADS = ("request_rate", "concurrency")  # what says how many requests there are: as they come, or as clients have them in flight
Options = dict[str, object]


def offered_options() -> Mapping[str, Option]:
    """Return the options that become fields of ``OfferedRequests``."""
    return {name: option for name, option in taken_by("serve()").items() if option.part == "offered"}


def split(options: Mapping[str, object]) -> tuple[Options, OfferedRequests]:
    """Split options into those of a question's other parts, and the load."""
    fields = {name: value for name, value in options.items() if value is not None}
    stream = _trace(fields) if "trace" in fields else None
    offered = {option.key: check_option(fields.pop(name), option) for name, option in offered_options().items() if name in fields}
    sides: tuple[tuple[Literal["inputs", "outputs"], str], ...] = (("inputs", "input_len"), ("outputs", "output_len"))
    for side, name in sides:
        if isinstance(value := fields.get(name), (str, Lengths)):
            drawn = lengths(value, side, name) if isinstance(value, str) else value
            offered[side], fields[name] = drawn, max(1, round(drawn.mean))
    made = OfferedRequests(trace=stream, **offered)  # type: ignore[arg-type]
    _check(fields, made)
    made = _cut_trace(made, fields)
    if offered.get("prefix_hit_rate") == 0:  # without a prefix cache no prompt shares anything
        made = replace(made, trace=made.trace and replace(made.trace, prefixes=None), unique_prompts=0, shared_prefix=0)
    return fields, made


def _trace(fields: Options) -> RequestStream:
    source = fields.pop("trace")
    for name, option in taken_by("serve()").items():
        if option.drawn and name in fields:
            raise Refusal(f"{name}: the trace says when requests come and how long they are; leave one of them out", name)
    if isinstance(source, RequestStream):
        return source
    from commtax.sim.arrivals import read  # not for those who have none

    return read(str(source))


def _check(fields: Mapping[str, object], offered: OfferedRequests) -> None:
    shared = (offered.trace is not None and offered.trace.prefixes is not None) or offered.unique_prompts or offered.shared_prefix
    if offered.prefix_hit_rate and shared:
        rule = "which blocks of prompts are equal is known, and so is what is cached; only 0 (no cache) can be said beside it"
        raise Refusal(f"prefix_cache={offered.prefix_hit_rate:g}: {rule}", "prefix_cache", (0,))
    if offered.request_rate and "concurrency" in fields:
        rule = "clients of a closed loop have no rate; max_concurrency limits what is in flight beside one"
        raise Refusal.about(concurrency=rule)
    for name, value in {"duration": offered.duration_s, "max_concurrency": offered.max_in_flight}.items():
        if value != inf and not offered.request_rate and offered.trace is None:
            raise Refusal.about(**{name: "belongs to a request_rate or a trace; a closed loop has concurrency and num_prompts"})
    if offered.ramp_up_s and offered.request_rate:
        raise Refusal.about(ramp_up="belongs to a closed loop, whose clients start one after the other")
    if isfinite(offered.duration_s) and offered.trace is None and offered.request_rate * offered.duration_s > MOST_SERVED:
        most = f"{MOST_SERVED / offered.request_rate:.4g}"
        rule = f"{offered.request_rate:g} requests/s are more than {MOST_SERVED:,} requests in it; nearest valid: {most} s"
        raise Refusal(f"duration={offered.duration_s:g} s: {rule}", "duration", (most,))
    if (count := fields.get("num_prompts", 1)) != inf and positive(num_prompts=count) > MOST_SERVED:
        raise Refusal.of(f"at most {MOST_SERVED:,} are simulated", (MOST_SERVED,), num_prompts=count)


def _cut_trace(offered: OfferedRequests, fields: Mapping[str, object]) -> OfferedRequests:
    stream = offered.trace
    if stream is None:
        return offered
    wanted = int(np.searchsorted(stream.arrival_s, offered.duration_s, side="right"))
    stream = first_requests(stream, min(wanted, int(fields.get("num_prompts", MOST_SERVED))))  # type: ignore[call-overload]
    if not len(stream):
        raise Refusal(f"duration={offered.duration_s:g} s: no request of the trace arrives within it", "duration")
    return replace(offered, trace=replace(stream, in_flight=min(stream.in_flight, offered.max_in_flight)))


def first_requests(stream: RequestStream, count: float) -> RequestStream:
    """Return the first requests of a stream."""
    return stream if len(stream) <= count else stream.take(np.arange(int(count)))


PROMPTS = 1000  # requests of a run, where nobody says


def stream_of(q: Question) -> RequestStream:
    """Return the requests: a trace, or drawn. Without a rate all come at once, to as many clients as there are."""
    offered, wanted = q.offered, q.requests
    if offered.trace is not None:
        return offered.trace
    closed, count = not offered.request_rate, None if isfinite(offered.duration_s) else PROMPTS
    stream = draw_stream(
        rate=offered.request_rate or inf,
        inputs=offered.inputs or _lengths(wanted.input_len, wanted.spread),
        outputs=offered.outputs or _lengths(wanted.output_len, wanted.spread),
        count=int(wanted.num_prompts) if np.isfinite(wanted.num_prompts) else count,
        duration_s=offered.duration_s,
        burstiness=offered.burstiness,
        seed=offered.seed,
        unique_prompts=offered.unique_prompts,
        shared_prefix=offered.shared_prefix,
        block=block_tokens(q),
        in_flight=float(wanted.concurrency) if closed else offered.max_in_flight,
    )
    if not (closed and offered.ramp_up_s):
        return stream
    clients = min(len(stream), int(wanted.concurrency))
    return replace(stream, arrival_s=np.minimum(np.arange(len(stream)), clients) / clients * offered.ramp_up_s)


def _lengths(mean: object, spread: object) -> Lengths:
    mean, spread = float(mean), float(spread)  # type: ignore[arg-type]
    low = max(1.0, round(mean * (1 - spread)))
    high = round(2 * mean - low)  # as far above as below: none is shorter than 1 token, and the mean is what was asked
    return Lengths("uniform", mean, low, high) if high > low else Lengths("constant", mean)


def longest_of(stream: RequestStream) -> int:
    """Return the tokens of the longest request."""
    return int(np.max(stream.input_len + stream.output_len))


def lengths_note(q: Question) -> Note:
    """Return the note on the requests' lengths, and on what would change with others."""
    spread, longest = float(q.requests.spread), longest_taken(q)
    if spread < SPREAD and np.any((1 + spread) * q.requests.tokens + 2 >= longest):
        return words("lengths-short", spread=format_spread(spread), longest=longest)
    return words("lengths-vary", spread=format_spread(spread)) if spread else words("lengths-equal", usual=SPREAD)


def length_notes(q: Question, stream: RequestStream) -> Iterator[Note]:
    """Yield a note on requests that servers would refuse for their length, which are simulated as if they took them."""
    if refused := int(np.count_nonzero(stream.input_len + stream.output_len > longest_taken(q))):
        longer = f"{refused:,} of {plural(len(stream), 'request')} are longer than the {longest_taken(q):,} tokens"
        yield Note("context", f"{longer} that a server takes: it would refuse these, and they are simulated as if it did not")


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
        """A note that not all replicas were simulated."""
        text = f"{self.size[0]:,} of {self.whole[0]:,} replicas were simulated, with their share of the requests"
        return () if self.size == self.whole else (Note("sample", f"{text}; rates and totals are of all"),)


def sample_of(q: Question, least: float = 0.0) -> Sample:
    """Return the sample of a question's fleet that is simulated for it, at least a share of all, or a small fleet itself."""
    wanted, replicas = q.requests, int(q.plan.replicas)
    whole = (int(wanted.decode_workers or 1), int(wanted.prefill_workers or 1)) if wanted.disaggregated else (replicas, 0)
    apart, entered = bool(whole[1]), whole[1] or whole[0]
    used = used_of(q, entered)
    size = sample_size((whole[0], used) if apart else (used, 0), least, q.offered.router != "round-robin")
    share = Fraction(size[1] or size[0], used)
    if used < entered:
        size = (size[0], min(entered, size[1] + unused_size())) if apart else (min(entered, size[0] + unused_size()), 0)
    if size == whole:
        return Sample(q, Fraction(1), Fraction(1), whole, whole)
    decoded = Fraction(size[0], whole[0]) / share if apart else Fraction(1)
    return Sample(_thinned(q.but(**workers_of(size, apart)), share, size[1] or size[0], entered), share, decoded, size, whole)


def workers_of(size: Size, apart: bool) -> dict[str, int]:
    """Return the options that say how many workers a fleet has."""
    return {"decode_workers": size[0], "prefill_workers": size[1]} if apart else {"replicas": size[0]}


def serving_sample(q: Question) -> Sample:
    """Return the sample that a run of stated length allows: all pools, else enough requests and clients for its percentiles."""
    closed = not q.offered.request_rate and q.offered.trace is None
    clients = float(q.requests.concurrency) if closed else q.offered.max_in_flight
    drawn = q.requests.num_prompts, q.offered.duration_s * (q.offered.request_rate or inf)  # without an end where nobody says one
    count = float(min(drawn) if q.offered.trace is None else len(q.offered.trace))
    sample = sample_of(q, 1.0 if q.requests.disaggregated else least_share(count, clients))
    left = sample.question.requests.concurrency
    return replace(sample, share=Fraction(int(left), int(clients))) if closed and sample.share != 1 else sample


def used_of(q: Question, replicas: int) -> int:
    """Return how many of the replicas that prompts come to get any: one that comes again goes where its text is."""
    if q.offered.router != "prefix":
        return replicas
    if q.offered.trace is not None:
        return int(min(replicas, _groups(q.offered.trace).max(initial=0) + 1))
    alike = q.offered.shared_prefix >= (q.limits.block_size or q.engine.memory.block_size)
    return 1 if alike else min(replicas, q.offered.unique_prompts or replicas)


def _groups(stream: RequestStream) -> Array:
    """Return each request's group, numbered as they first come. A prompt without common text has its own group."""
    if stream.prefixes is None:
        return np.arange(len(stream))
    numbers, roots = dict[object, int](), ((ids[0] if ids else (i,)) for i, ids in enumerate(stream.prefixes))
    return np.array([numbers.setdefault(root, len(numbers)) for root in roots], dtype=np.int64)


def _thinned(q: Question, share: Fraction, replicas: int, whole: int) -> Question:
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
    return max(1, round(float(count) * float(share))) if np.isfinite(count) else count
