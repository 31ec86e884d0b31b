"""Steps of one server that closed loops are made of, priced line by line."""

from collections.abc import Iterator

import numpy as np

from commtax.arrays import cache_answers
from commtax.cost.closed_form import ClosedLoopLoad
from commtax.cost.pricing import inference_bill
from commtax.ledger import Bill
from commtax.question import Question
from commtax.records import replace
from commtax.spec import SIZES, Number, Workload
from commtax.statement import Note
from commtax.verbs.billing import padding_note
from commtax.verbs.fitting import step_limits
from commtax.verbs.settling import terms_of

PADDED = 0.2  # share of rows beside those of requests from which on padding is worth a word
SPREAD = ("experts", "routing")  # parts of a step whose work all ranks that share experts have, whosever tokens it is for


def step_bill(q: Question, work: Workload) -> Bill:
    """Price one step of one replica, line by line."""
    return _step(q.normal(), replace(work, rows_per_seq=1 + q.speculative) if q.speculative else work)


@cache_answers
def _step(q: Question, work: Workload) -> Bill:
    return inference_bill(terms_of(q), work, 1)


def spread_s(bill: Bill) -> Number:
    """Return the seconds of a step that ranks with shared experts share too: the experts, their routing and exchange."""
    parts = [x for x in bill.lines if getattr(x.priced_from, "part", "") in SPREAD or (x.kind == "comm" and x.item.axis == "ep")]
    return sum((x.exposed_s for x in parts), start=0.0)


def decode_workload(seqs: Number, load: ClosedLoopLoad) -> Workload:
    """Return a decode step in the middle of its requests' lives: I + O/2 - 1 cached tokens each."""
    return Workload(decode_seqs=seqs, cached_tokens=seqs * context(load))


def prompt_work(beside: Number, load: ClosedLoopLoad, tokens: Number, together: Number = 1.0) -> Workload:
    """Return a step of ``tokens`` of prompts, of a prompt that fills several the middle one, where half of the others are done."""
    past = load.input_len - load.computed + np.maximum(0.0, load.computed - tokens / together) / 2
    return Workload(beside, beside * context(load), together, tokens, together * past)


def chunk_tokens(q: Question, input_len: Number) -> Number:
    """Return the tokens of a prompt that a step takes which has no other."""
    return np.minimum(input_len, step_limits(q)[0]) if q.engine.serves.chunked else input_len


def context(load: ClosedLoopLoad) -> Number:
    """Return the mean number of cached tokens over the decode steps of a request."""
    return load.input_len + np.maximum(0.0, load.output_len / 2 - 1)


def padding_notes(q: Question, running: Number, rows: Number) -> Iterator[Note]:
    """Yield a note where padding is much of a decode step, of several loads at the first: a few clients more may get less."""
    if any(np.ndim(getattr(q.plan, axis)) for axis in SIZES):
        return
    each = np.ceil(np.maximum(1.0, np.atleast_1d(running)) / q.plan.pp) * (1 + q.speculative)
    clients, padded = np.broadcast_arrays(q.requests.concurrency, np.atleast_1d(rows))
    for i in np.flatnonzero(padded > (1 + PADDED) * each)[:1]:
        yield padding_note(q, each[i], padded[i], f"with {clients[i]:,.0f} clients " * (len(each) > 1))
