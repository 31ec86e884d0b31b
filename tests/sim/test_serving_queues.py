"""Queues that textbooks solve, and what holds for any: Little's law, capacity, and growth without end beyond it."""

import ast
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import closed_loops
from commtax.sim.serving.figures import columns
from commtax.sim.serving.running import Fleet, Workers, run
from commtax.verbs.requests import run_requests
from commtax.verbs.settling import resolve_question, settle
from paths import HELPERS
from commtax.sim.serving.book import Rules
from toy_engine import cases, constant_surface, stream

ONE = Rules(tokens=64, seqs=1, blocks=10**6, block=16)
STEP_S = 0.01
LONG = 2_000_000  # services of a queue whose mean is compared with a formula's limit
SIMULATED = 4000  # … of which so many are simulated


def lindley(services, gaps):
    """Waits of a queue of one server, first come first served: W' = max(0, W + S - A), in all steps at once."""
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    return walk - np.minimum.accumulate(walk)


def waits(outputs, load, seed):
    """A queue of requests that run one at a time, each step as long as any other; random arrivals.

    The first ones are simulated and wait as Lindley's recursion says, to the last digits; its mean over all of them is what
    the simulator's would be, in seconds instead of minutes.
    """
    services = outputs * STEP_S
    gaps = np.random.default_rng(seed).exponential(np.mean(services) / load, len(outputs))
    expected, first = lindley(services, gaps), slice(SIMULATED)
    arrivals = np.cumsum(gaps[first])
    fleet = Fleet(Workers(ONE, constant_surface(STEP_S, 1)))
    rows = columns(run(stream(arrivals, np.ones(SIMULATED), outputs[first]), fleet))
    np.testing.assert_allclose(rows["queue_s"], expected[first], rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(rows["e2e_s"], expected[first] + services[first], rtol=1e-9, atol=1e-8)
    return float(np.mean(expected))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_equal_requests_one_at_a_time_wait_as_m_d_1(load):
    """Pollaczek and Khinchine: W = rho s / 2 (1 - rho)."""
    expected = load * 20 * STEP_S / 2 / (1 - load)
    assert waits(np.full(LONG, 20), load, 1) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_requests_of_any_length_one_at_a_time_wait_as_m_m_1(load):
    """Outputs are geometric with a mean of 200 steps, as good as exponential: W = rho s / (1 - rho)."""
    outputs = np.random.default_rng(7).geometric(1 / 200, LONG)
    assert waits(outputs, load, 2) == pytest.approx(load * 200 * STEP_S / (1 - load), rel=0.02)


def in_flight(rows):
    """Mean requests between being sent and their last token, from the times alone: the area under a staircase."""
    times = np.concatenate([rows["sent_s"], rows["done_s"]])
    change = np.repeat([1, -1], len(rows["sent_s"]))
    order = np.lexsort((-change, times))
    level = np.cumsum(change[order])
    return float(np.sum(level[:-1] * np.diff(times[order])) / np.ptp(times))


@settings(max_examples=8)
@given(case=cases(), count=st.integers(1, 3), routing=st.sampled_from(["round-robin", "least-loaded"]))
def test_requests_in_flight_are_rate_times_time(case, count, routing):
    """Little's law, in a window that holds whole requests."""
    rows = columns(run(case.stream, Fleet(Workers(case.rules, case.surface, count), routing), case.hit_rate))
    window = np.max(rows["done_s"]) - np.min(rows["sent_s"])
    assert in_flight(rows) == pytest.approx(len(case.stream) / window * np.mean(rows["e2e_s"]), rel=1e-9)


def asked(**words):
    usual = {"tp": 1, "input_len": 256, "output_len": 64, "num_prompts": 1500, "concurrency": 1}
    known = {name: words.pop(name) for name in list(words) if name in OFFERED}
    return settle(resolve_question("llama-3.1-8b", "8xh100-sxm", {**usual, **words}).but(**known))


OFFERED = ("request_rate", "seed", "router", "warmup")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_queue_grows_beyond_capacity_and_only_there(engine):
    capacity = run_requests(asked(engine=engine, request_rate=5.0, max_num_seqs=256)).capacity
    waits = {}
    for share in (0.9, 1.1):
        rate = share * capacity
        short, long = (run_requests(asked(engine=engine, request_rate=rate, num_prompts=n, max_num_seqs=256)) for n in (1500, 6000))
        assert short.overloaded == long.overloaded == (share > 1)
        waits[share] = tuple(float(np.median(o.columns["ttft_s"][len(o.stream) // 2 :])) for o in (short, long))
    (short, long), (less, more) = waits[0.9], waits[1.1]
    assert long < 2 * short
    assert more > 2.5 * less
    assert more > 3 * long


def test_a_closed_loop_is_never_more_than_full():
    """Little's law again, of a priced engine with as many clients as never wait: rate x E2E is their number."""
    outcome = run_requests(asked(concurrency=48, num_prompts=3000))
    assert in_flight(outcome.columns) == pytest.approx(48, rel=0.02)
    assert outcome.requests_per_s * outcome.statistic("e2e_mean") == pytest.approx(48, rel=0.02)
    assert not outcome.overloaded


def checksums(seed):
    """Of every column of one run."""
    outcome = run_requests(asked(request_rate=30.0, num_prompts=400, replicas=2, router="least-loaded", seed=seed))
    return {name: zlib.crc32(np.ascontiguousarray(column).tobytes()) for name, column in outcome.columns.items()}


def test_the_same_seed_gives_the_same_bytes_in_any_process():
    lines = "import sys; sys.path[:0] = sys.argv[1:]; import test_serving_queues as t; print(t.checksums(1))"
    command = [sys.executable, "-c", lines, str(Path(__file__).parent), str(HELPERS)]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert checksums(1) == ast.literal_eval(elsewhere)
    assert checksums(1)["done_s"] != checksums(2)["done_s"]


@settings(max_examples=8)
@given(
    engine=st.sampled_from(["vllm", "sglang", "trtllm"]),
    load=st.sampled_from([0.3, 0.7, 1.3]),
    seed=st.integers(0, 99),
    tight=st.booleans(),
)
def test_more_bandwidth_or_more_blocks_do_not_hurt(engine, load, seed, tight):
    """Means over the same requests; other batches meet, so a little noise is allowed."""
    words = {"engine": engine, "seed": seed, "num_prompts": 300, "request_rate": 20 * load, "tp": 2}
    room = {"kv_tokens": 4000 if tight else 40_000}
    plain, more = run_requests(asked(**words, **room)), run_requests(asked(**words, kv_tokens=400_000))
    faster = run_requests(asked(**words, **room).but(bandwidth_scale=4.0))
    for better in (more, faster):
        assert better.statistic("e2e_mean") <= 1.02 * plain.statistic("e2e_mean")


def test_the_closed_form_is_the_mean_of_the_simulation():
    """Over random models, engines, plans and lengths that vary. Equal lengths are left out: simulated, they move in lockstep for
    ever, which clients of measured runs do not; and requests thrown out of the cache, which those show more often. Farther apart
    are answers of few tokens: on a request's way through the server it is in no step, which the closed form leaves out."""
    pairs = [pair for n in range(52) if (pair := closed_loops.asked(f"law-{n}"))]
    usual = [pair for pair in pairs if pair.words["spread"] and not pair.full and not pair.over_budget]
    for shortest, mean, spread in ((32, 0.04, 0.12), (1, 0.06, 0.24)):
        some = [pair for pair in usual if pair.words["output_len"] >= shortest]
        assert len(some) >= 20
        logs = {name: np.log([getattr(pair, name) for pair in some]) for name in ("tpot", "ttft", "rate")}
        for name, times in (("tpot", 1.0), ("ttft", 2.5), ("rate", 1.0)):
            assert abs(np.mean(logs[name])) < times * mean, (name, np.mean(logs[name]))
            assert np.quantile(np.abs(logs[name]), 0.9) < times * spread, [str(pair) for pair in some]
