"""The requests that a question offers, in the order in which they come."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from commtax.question import SPREAD, Question
from commtax.sim.streams import draw_stream
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Note
from commtax.units import format_spread, plural
from commtax.verbs.checking import longest_taken
from commtax.verbs.fitting import block_tokens
from commtax.words import words

PROMPTS = 1000  # requests of a run, where nobody says


def stream_of(asked: Question) -> RequestStream:
    """The requests: a trace, or drawn. Without a rate all come at once, to as many clients as there are."""
    offered, wanted = asked.offered, asked.requests
    if offered.trace is not None:
        return offered.trace
    count = int(wanted.num_prompts) if np.isfinite(wanted.num_prompts) else None if isfinite(offered.duration_s) else PROMPTS
    closed = not offered.request_rate
    stream = draw_stream(
        rate=offered.request_rate or inf,
        inputs=offered.inputs or _lengths(wanted.input_len, wanted.spread),
        outputs=offered.outputs or _lengths(wanted.output_len, wanted.spread),
        count=count,
        duration_s=offered.duration_s,
        burstiness=offered.burstiness,
        seed=offered.seed,
        unique_prompts=offered.unique_prompts,
        shared_prefix=offered.shared_prefix,
        block=block_tokens(asked),
        in_flight=float(wanted.concurrency) if closed else offered.max_in_flight,
    )
    if not (closed and offered.ramp_up_s):
        return stream
    clients = min(len(stream), int(wanted.concurrency))
    begin = np.minimum(np.arange(len(stream)), clients) / clients * offered.ramp_up_s
    return replace(stream, arrival_s=begin)


def _lengths(mean: object, spread: object) -> Lengths:
    """Lengths that vary by a share of their mean to either side."""
    mean, spread = float(mean), float(spread)  # type: ignore[arg-type]
    low = max(1.0, round(mean * (1 - spread)))
    high = round(2 * mean - low)  # as far above as below: none is shorter than 1 token, and the mean is what was asked
    return Lengths("uniform", mean, low, high) if high > low else Lengths("constant", mean)


def longest_of(stream: RequestStream) -> int:
    """Tokens of the longest request."""
    return int(np.max(stream.input_len + stream.output_len))


def lengths_note(q: Question) -> Note:
    """Return what the requests' lengths are, and what would change with others."""
    spread, longest = float(q.requests.spread), longest_taken(q)
    if spread < SPREAD and np.any((1 + spread) * q.requests.tokens + 2 >= longest):
        return words("lengths-short", spread=format_spread(spread), longest=longest)
    return words("lengths-vary", spread=format_spread(spread)) if spread else words("lengths-equal", usual=SPREAD)


def length_notes(q: Question, stream: RequestStream) -> Iterator[Note]:
    """How many requests servers would refuse for their length, which are simulated as if they took them."""
    if refused := int(np.count_nonzero(stream.input_len + stream.output_len > longest_taken(q))):
        text = (
            f"{refused:,} of {plural(len(stream), 'request')} are longer than the {longest_taken(q):,} tokens that a server takes"
        )
        yield Note("context", f"{text}: it would refuse these, and they are simulated as if it did not")
