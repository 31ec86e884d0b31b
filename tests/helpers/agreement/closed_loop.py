"""The closed form of a closed loop against the simulation of its scheduler (``simulate`` without and with ``--num-prompts``)."""

from math import isclose
from random import Random

from closed_loops import drawn as drawn_loop
from closed_loops import far, paired, question
from commtax.statement import Refusal
from commtax.verbs.billing import price
from commtax.verbs.closed_loop import price_closed_loop as closed_form
from commtax.verbs.requests import run_requests as in_time
from commtax.verbs.settling import resolve_question, settle

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


def a_lone_prompt_takes_its_step(rng: Random) -> str | None:
    """One prompt on each rank, and nothing else: bill, the closed form and requests in time price one step, by one exchange."""
    engine, backend = rng.choice(("vllm", "sglang", "trtllm")), rng.choice(("", "deepep_low_latency", "deepep_high_throughput"))
    ranks, tokens = rng.choice((8, 16)), round(2 ** rng.uniform(8, 11.9))
    words = {"engine": engine, "dp": ranks, "ep": ranks, "ep_backend": backend, "two_batches": rng.random() < 0.3, "batch": 1}
    put = resolve_question("deepseek-v3", f"{ranks // 8}x8xh200-sxm", words | {"phase": "prefill", "context": tokens})
    load = {"concurrency": ranks, "input_len": tokens, "output_len": 1, "spread": 0.0}
    try:
        billed = float(price(settle(put)).ttft_s)
        loop = settle(put.but(phase="decode", **load))
        served = {"simulate": float(closed_form(loop).ttft_s)}
        served["requests in time"] = float(in_time(loop.but(num_prompts=4 * ranks)).statistic("ttft_mean"))
    except Refusal:
        return None
    other = [f"{name} {s:.4g} s" for name, s in served.items() if not isclose(s, billed, rel_tol=0.02)]
    return f"bill {billed:.4g} s, {', '.join(other)}: {words} {tokens}" if other else ""


LAWS = {
    a_lone_prompt_takes_its_step.__name__: (a_lone_prompt_takes_its_step, 2),
    closed_form_is_the_simulation_or_says_why.__name__: (closed_form_is_the_simulation_or_says_why, 1),
    more_clients_lower_no_throughput.__name__: (more_clients_lower_no_throughput, 2),
}
