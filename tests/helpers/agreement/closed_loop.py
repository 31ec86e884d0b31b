"""The closed form of a closed loop against the simulation of its scheduler (``simulate`` without and with ``--num-prompts``)."""

from random import Random

from closed_loops import drawn as drawn_loop
from closed_loops import far, paired, question
from commtax.statement import Refusal
from commtax.verbs.closed_loop import serve as closed_form
from commtax.verbs.settling import settle

FALLS = 0.1
"""By which more clients may lower throughput: larger batches fill tiles and graphs worse. With a full cache 2.5 times as much."""


def closed_form_is_the_simulation_or_says_why(rng: Random) -> str | None:
    """TPOT, TTFT and requests/s, of the steady state and of a benchmark of so many prompts: within 1.5 x, or a note says why."""
    pair = paired(drawn_loop(rng))
    if pair is None:
        return None
    return str(pair) if (far(pair.whole) or far(pair.steady)) and not pair.noted else ""


def more_clients_lower_no_throughput(rng: Random) -> str | None:
    """Twice the clients get as many tokens/s, but for what a full cache that throws requests out costs."""
    words = drawn_loop(rng)
    clients = int(str(words["concurrency"]))
    try:
        put = question(words | {"spread": 0.5})
        few, many = (closed_form(settle(put.but(concurrency=n * clients))) for n in (1, 2))
    except Refusal:
        return None
    lost = 1 - float(many.tokens_per_s) / float(few.tokens_per_s)
    allowed = FALLS * 2.5 if {"full-cache", "waiting"} & {note.code for note in many.notes} else FALLS
    return f"{lost:.0%} fewer tokens/s of twice the clients: {words}" if lost > allowed else ""


LAWS = {
    closed_form_is_the_simulation_or_says_why.__name__: (closed_form_is_the_simulation_or_says_why, 1),
    more_clients_lower_no_throughput.__name__: (more_clients_lower_no_throughput, 2),
}
