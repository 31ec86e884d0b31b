"""Requests that come at random, served for real by the small engine, beside the simulator: laws of both, and no timings."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import live_models
from cli_run import run_here
from commtax import catalog
from commtax.spec.stream import Lengths, RequestStream
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.study import live
from commtax_lab.measure.study.live import figures, serving_document, simulate_run, slowdown
from commtax_lab.measure.study.small_engine_serving import TimedStep
from commtax_lab.measure.study.surface import (
    SurfacePoint,
    batches,
    grid,
    join_timings,
    make_rising,
    peak_rate,
    surface,
    sweep_spread,
)
from each import each
from tables import tables

DATA = tables(__file__)
PROMPTS, SLOTS, RATES = 20, 3, (40.0, 400.0)
SECONDS = st.floats(1e-6, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shape")
    (place / "config.json").write_text(live_models.config("llama"))
    return place


@pytest.fixture(scope="module")
def service(folder):
    lengths = (catalog.lengths("uniform:4-20", "inputs"), catalog.lengths("uniform:1-9", "outputs"))
    return live.Service(LiveJob(str(folder), tp=1, random=True, device="cpu"), *lengths, RATES, PROMPTS, SLOTS).settle()


@pytest.fixture(scope="module")
def seen(service):
    """One rank, 20 requests at each rate, a few milliseconds a step."""
    return live.run(service, timeout_s=120)


def timings(seconds, steps):
    return {step: [seconds[i % len(seconds)]] for i, step in enumerate(steps)}


def hold(run, slots):
    """What holds of any run, served or simulated."""
    stream = run.stream
    assert len(run.begun_s) == len(run.first_s) == len(run.last_s) == len(stream)
    assert np.all(stream.arrival_s <= run.begun_s + 1e-9), "nobody is served before they come"
    assert np.all(run.begun_s < run.first_s)
    assert np.all(run.first_s <= run.last_s)
    assert np.all((run.first_s < run.last_s) == (stream.output_len > 1))
    assert np.all(np.diff(run.begun_s) > 0), "one prompt at a time, in the order of arrival"
    assert np.all(run.begun_s[1:] >= run.first_s[:-1] - 1e-9)
    for at in run.begun_s:
        assert np.sum((run.begun_s <= at) & (run.last_s > at + 1e-9)) <= slots


@pytest.mark.parametrize("index", range(len(RATES)))
def test_what_was_served_and_what_was_simulated_keep_the_same_laws(service, seen, index):
    run = seen.runs[index]
    hold(run, SLOTS)
    hold(simulate_run(service, surface(join_timings(seen.sweeps)), run), SLOTS)


@pytest.mark.parametrize("index", range(len(RATES)))
def test_every_token_is_made_in_a_step(service, seen, index):
    run = seen.runs[index]
    prompts = [step.tokens for step in run.steps if not step.decoding]
    assert prompts == run.stream.input_len.tolist()
    assert sum(step.decoding or 1 for step in run.steps) == run.stream.output_len.sum()
    assert max(step.decoding for step in run.steps) <= SLOTS
    assert sum(step.seconds for step in run.steps) <= run.last_s.max() - run.begun_s.min()


def test_all_steps_were_timed_in_every_sweep(service, seen):
    assert len(seen.sweeps) == len(RATES) + 1
    for sweep in seen.sweeps:
        assert set(sweep) == set(service.steps)
        assert all(len(seconds) == live.ROUNDS and min(seconds) > 0 for seconds in sweep.values())


def test_the_document_tells_both_in_the_keys_of_benchmarks(service, seen):
    document = json.loads(json.dumps(serving_document(service, seen), allow_nan=False))
    assert [run["request_rate"] for run in document["runs"]] == list(RATES)
    for run in document["runs"]:
        measured, foreseen = run["measured"], run["predicted"]
        assert (measured["source"], foreseen["source"]) == ("measured", "predicted")
        for told in (measured, foreseen):
            assert (told["completed"], told["total_input_tokens"]) == (PROMPTS, int(service.stream(1.0).input_len.sum()))
            assert told["output_throughput"] * told["duration"] == pytest.approx(told["total_output_tokens"])
            assert told["median_ttft_ms"] <= told["p90_ttft_ms"] <= told["p99_ttft_ms"]
            assert told["mean_queue_ms"] <= told["mean_ttft_ms"] <= told["mean_e2el_ms"]
        assert run["errors"]["mean_ttft_ms"] == pytest.approx(foreseen["mean_ttft_ms"] / measured["mean_ttft_ms"] - 1)
    assert document["most_requests_per_s"] > 0


def test_two_ranks_serve_from_the_command_line(folder):
    """Random weights need no more than the shape."""
    words = ("--random", folder, "--tp", 2, "--device", "cpu", "--request-rate", 50, "--num-prompts", 6)
    done = run_here("measure", "serve", *words, "--input-len", 8, "--output-len", 4, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["tp_size"], document["runs"][0]["measured"]["total_output_tokens"]) == (2, 24)


@each(("words", "named"), DATA["bad_words_are_refused_by_name"])
def test_bad_words_are_refused_by_name(words, named):
    done = run_here("measure", "serve", *words)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


# --- the table of steps ---------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(
    st.lists(SECONDS, min_size=1, max_size=30),
    st.integers(1, 24),
    st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(1, 40)),
)
def test_more_work_never_takes_less_time(seconds, slots, lengths):
    shortest, more, outputs = lengths
    longest = shortest + more + outputs
    table = surface(timings(seconds, grid(shortest, shortest + more, longest, slots)))
    prompts = [table.mixing(0, 0, n, 1, 0.0) for n in range(shortest, shortest + more + 1)]
    assert np.all(np.diff(prompts) >= -1e-12)
    decodes = np.array([[table.decoding(n, n * c)[0] for c in (shortest, longest - 0.5)] for n in range(1, slots + 1)])
    assert np.all(np.diff(decodes, axis=0) >= -1e-12)
    assert np.all(np.diff(decodes, axis=1) >= -1e-12)
    assert min(seconds) - 1e-12 <= decodes.min()
    assert decodes.max() <= max(seconds) + 1e-12


@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_times_that_rise_stay_as_they_are(seconds):
    ordered = np.sort(seconds)
    assert np.array_equal(make_rising(ordered), ordered)
    assert np.all(np.diff(make_rising(np.array(seconds))) >= 0)


def test_a_table_gives_back_what_was_timed():
    known = {SurfacePoint(0, 8): [2.0], SurfacePoint(0, 12): [3.0]}
    known |= {**{SurfacePoint(n, c): [n + c / 100] for n in (1, 2, 4) for c in (8, 16)}}
    table = surface(known)
    assert (table.mixing(0, 0, 10, 1, 0.0), table.decoding(2, 2 * 8)[0]) == (pytest.approx(2.5), pytest.approx(2.08))
    assert table.decoding(3, 3 * 12)[0] == pytest.approx(3.12)
    assert (peak_rate(table, 8, 9, 4), batches(1)) == (pytest.approx(1 / (2.0 + 8 * 4.125 / 4)), [1])
    assert sweep_spread([known, {step: [2 * s for s in seconds] for step, seconds in known.items()}]) == pytest.approx(1.0)


def test_the_small_engine_by_hand():
    """Prompts take 2 s, a decode step 1 s, two slots: the third request waits for a slot, and prompts go before decoding."""
    lengths = (Lengths("constant", 8), Lengths("constant", 3))
    service = live.Service(LiveJob("llama-3.2-1b", tp=1), *lengths, (1.0,), 3, 2)
    table = surface({SurfacePoint(0, 8): [2.0], **{SurfacePoint(n, c): [1.0] for n in (1, 2) for c in (8, 11)}})
    stream = RequestStream(np.array([0.0, 2.5, 3.0]), np.array([8, 8, 8]), np.array([3, 3, 3]))
    run = simulate_run(service, table, live.ServedRequests(stream, *(np.zeros(3) for _ in range(3))))
    assert (run.begun_s.tolist(), run.first_s.tolist()) == ([0.0, 3.0, 6.0], [2.0, 5.0, 8.0])
    assert run.last_s.tolist() == [6.0, 9.0, 10.0]
    told = figures(1.0, run)
    assert told["mean_tpot_ms"] == pytest.approx(1e3 * (2 + 2 + 1) / 3)
    assert (told["mean_queue_ms"], told["max_concurrent_requests"]) == (pytest.approx(1e3 * 3.5 / 3), 3)
    steps = [TimedStep(0, 8, 3.0), TimedStep(2, 17, 1.5)]
    assert slowdown(table, live.ServedRequests(stream, run.begun_s, run.first_s, run.last_s, steps)) == pytest.approx(1.5)
