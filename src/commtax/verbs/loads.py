"""What is offered, as users write it: rates and times within bounds, lengths as numbers or distributions, traces as files."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Literal

import numpy as np

from commtax.catalog.distributions import lengths
from commtax.options import Option, taken_by
from commtax.question import OfferedRequests
from commtax.rules.values import check_option, positive
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Refusal

MOST_SERVED = 1_000_000  # requests that are simulated: about a minute, and a few GiB
MOST_RATE = 1e6  # requests/s
LOADS = ("request_rate", "concurrency")  # what says how many requests there are: as they come, or as clients have them in flight
Given = dict[str, object]


def offered_options() -> Mapping[str, Option]:
    """Options that become fields of ``OfferedRequests``."""
    return {name: option for name, option in taken_by("serve()").items() if option.part == "offered"}


def split(options: Mapping[str, object]) -> tuple[Given, OfferedRequests]:
    """The options of a question's other parts, and what is offered."""
    given = {name: value for name, value in options.items() if value is not None}
    stream = _trace(given) if "trace" in given else None
    offered = {option.key: check_option(given.pop(name), option) for name, option in offered_options().items() if name in given}
    sides: tuple[tuple[Literal["inputs", "outputs"], str], ...] = (("inputs", "input_len"), ("outputs", "output_len"))
    for side, name in sides:
        if isinstance(value := given.get(name), (str, Lengths)):
            drawn = lengths(value, side, name) if isinstance(value, str) else value
            offered[side], given[name] = drawn, max(1, round(drawn.mean))
    made = OfferedRequests(trace=stream, **offered)  # type: ignore[arg-type]
    _check(given, made)
    made = _cut_trace(made, given)
    if offered.get("prefix_hit_rate") == 0:  # without a prefix cache no prompt shares anything
        trace = made.trace and replace(made.trace, prefixes=None)
        made = replace(made, trace=trace, unique_prompts=0, shared_prefix=0)
    return given, made


def _trace(given: Given) -> RequestStream:
    """Requests as they came; what else would say when they come and how long they are is refused."""
    source = given.pop("trace")
    for name, option in taken_by("serve()").items():
        if option.drawn and name in given:
            raise Refusal(f"{name}: the trace says when requests come and how long they are; leave one of them out", name)
    if isinstance(source, RequestStream):
        return source
    from commtax.sim.arrivals import read  # not for those who have none

    return read(str(source))


def _check(given: Mapping[str, object], offered: OfferedRequests) -> None:
    """What goes together."""
    known = (offered.trace is not None and offered.trace.prefixes is not None) or offered.unique_prompts or offered.shared_prefix
    if offered.prefix_hit_rate and known:
        rule = "which blocks of prompts are equal is known, and so is what is cached; only 0 (no cache) can be said beside it"
        raise Refusal(f"prefix_cache={offered.prefix_hit_rate:g}: {rule}", "prefix_cache", (0,))
    if offered.request_rate and "concurrency" in given:
        rule = "clients of a closed loop have no rate; max_concurrency limits what is in flight beside one"
        raise Refusal.about(concurrency=rule)
    if not offered.request_rate and offered.trace is None:
        rule = "belongs to a request_rate or a trace; a closed loop has concurrency and num_prompts"
        if offered.duration_s != inf:
            raise Refusal.about(duration=rule)
        if offered.max_in_flight != inf:
            raise Refusal.about(max_concurrency=rule)
    if offered.ramp_up_s and offered.request_rate:
        raise Refusal.about(ramp_up="belongs to a closed loop, whose clients start one after the other")
    if isfinite(offered.duration_s) and offered.trace is None and offered.request_rate * offered.duration_s > MOST_SERVED:
        most = f"{MOST_SERVED / offered.request_rate:.4g}"
        rule = f"{offered.request_rate:g} requests/s are more than {MOST_SERVED:,} requests in it; nearest valid: {most} s"
        raise Refusal(f"duration={offered.duration_s:g} s: {rule}", "duration", (most,))
    if (count := given.get("num_prompts", 1)) != inf and positive(num_prompts=count) > MOST_SERVED:
        raise Refusal.of(f"at most {MOST_SERVED:,} are simulated", (MOST_SERVED,), num_prompts=count)


def _cut_trace(offered: OfferedRequests, given: Mapping[str, object]) -> OfferedRequests:
    """A trace of as many requests as are wanted, to as many clients as there are."""
    stream = offered.trace
    if stream is None:
        return offered
    wanted = int(np.searchsorted(stream.arrival_s, offered.duration_s, side="right"))
    stream = first_requests(stream, min(wanted, int(given.get("num_prompts", MOST_SERVED))))  # type: ignore[call-overload]
    if not len(stream):
        raise Refusal(f"duration={offered.duration_s:g} s: no request of the trace arrives within it", "duration")
    return replace(offered, trace=replace(stream, in_flight=min(stream.in_flight, offered.max_in_flight)))


def first_requests(stream: RequestStream, count: float) -> RequestStream:
    """The first requests of a stream."""
    return stream if len(stream) <= count else stream.take(np.arange(int(count)))
