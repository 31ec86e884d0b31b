"""Schedules: every entry, every legal shape: simulation equals algebra, orders are sound, memory is as counted."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import napkin
from commtax.cost.schedules import SCHEDULES, OperationOrder, OverlappedPair
from commtax.sim.pipeline import Durations, run, simulate
from commtax.timeline import Timeline
from each import each
from made_traces import clashes
from tables import tables

DATA = tables(__file__)
NAMES = sorted(SCHEDULES)
CHUNKS = {"interleaved": (1, 2, 3)}
MANY = (*range(1, 25), 31, 32, 33, 48, 63, 64)
"""Microbatches: all small numbers, and larger ones that stages divide or just miss."""


def shapes(kind, most_p, microbatches):
    for p in range(1, most_p + 1):
        for m in microbatches:
            for v in CHUNKS.get(kind.name, (1,)):
                if kind.legal(p, m, v):
                    yield p, m, v


def flat(ops):
    return [x for op in ops for x in ((op.forward, op.backward) if isinstance(op, OverlappedPair) else (op,))]


@each("name", NAMES)
def test_simulated_bubble_equals_the_closed_form(name):
    """All legal p <= 16 and m <= 24, and m up to 64 here and there; equal stages, to 1e-9."""
    kind = SCHEDULES[name]
    tried = 0
    for p, m, v in shapes(kind, 16, MANY):
        timeline = run(kind, p, m, chunks=v)
        assert timeline.idle_s() == pytest.approx(np.full(p, kind.idle(p, 1.0, 1.0, 1.0)), abs=1e-9), (p, m, v)
        assert timeline.span_s == pytest.approx(kind.total(p, m, v), abs=1e-9)
        tried += 1
    assert tried > 20


@pytest.mark.parametrize("name", [n for n in NAMES if SCHEDULES[n].any_times])
@given(data=st.data())
def test_closed_forms_that_claim_any_times(name, data):
    kind = SCHEDULES[name]
    p, v = data.draw(st.integers(1, 8)), data.draw(st.sampled_from(CHUNKS.get(name, (1,))))
    m = p * data.draw(st.integers(1, 5)) if name == "interleaved" else data.draw(st.integers(1, 30))
    f, b, w = (data.draw(st.floats(0.1, 4)) for _ in range(3))
    timeline = run(kind, p, m, Durations(f, b, w), chunks=v)
    assert timeline.idle_s() == pytest.approx(np.full(p, kind.idle(p, f, b, w)), rel=1e-9, abs=1e-9)


@each("name", NAMES)
def test_orders_are_sound(name):
    """Each operation once, F before B before W, no lane overlaps itself, and in flight as many as algebra says."""
    kind = SCHEDULES[name]
    for p, m, v in shapes(kind, 8, range(1, 25)):
        order = kind.order(p, m, v)
        for i, ops in enumerate(order.ranks):
            done = flat(ops)
            assert len(done) == len(set(done))
            when = {op: n for n, op in enumerate(done)}
            for letter, j, chunk in done:
                if letter == "B":
                    assert when["F", j, chunk] < when["B", j, chunk]
                if letter == "W":
                    assert when["B", j, chunk] < when["W", j, chunk]
            assert sum(op[0] == "F" for op in done) == m * order.v // kind.directions
            assert not kind.backward or sum(op[0] == "B" for op in done) == sum(op[0] == "F" for op in done)
            live = np.cumsum([{"F": 1, "B": -1}.get(op[0], 0) for op in done])
            assert int(live.max()) == kind.peak(p, m, v, i), (p, m, v, i)
        assert clashes(simulate(order, Durations())) == 0


@each(
    ("name", "p", "m", "v"),
    [("interleaved", 4, 6, 2), ("zb-h1", 4, 3, 1), ("zb-h2", 4, 6, 1), ("zb-v", 4, 6, 1), ("dualpipe", 3, 12, 1),
     ("dualpipe", 4, 6, 1), ("dualpipe", 4, 9, 1), ("1f1b", 0, 4, 1), ("gpipe", 4, 0, 1), ("1f1b", 4, 8, 2)],
)  # fmt: skip
def test_outside_the_domain_is_refused_by_rule(name, p, m, v):
    with pytest.raises(ValueError, match=name):
        run(SCHEDULES[name], p, m, chunks=v)


def test_fill_drain_is_the_lesson_and_zero_bubbles_leave_no_hole():
    for p, m in ((4, 12), (8, 63), (2, 1)):
        timeline = run(SCHEDULES["fill-drain"], p, m)
        assert timeline.idle_s().sum() / (p * timeline.span_s) == pytest.approx(napkin.bubble_fraction(p, m), abs=1e-12)
    for name in ("zb-h2", "zb-v"):
        timeline = run(SCHEDULES[name], 4, 12)
        for rank in range(4):
            mine = timeline.lane == rank
            window = timeline.end_s[mine].max() - timeline.start_s[mine].min()
            assert timeline.busy_s()[rank] == pytest.approx(window)
    assert run(SCHEDULES["fill-drain"], 1, 3, Durations(microbatch_factors=[1, 2, 3])).span_s == 6


@given(st.integers(2, 8), st.integers(1, 20), st.integers(0, 7), st.floats(1.1, 5))
def test_a_straggler_sets_the_pace(p, m, who, factor):
    who = who % p
    slow = run(SCHEDULES["fill-drain"], p, m, Durations(rank_factors={who: factor}))
    assert slow.span_s == pytest.approx(p - 1 + m * factor)


@given(st.integers(1, 6), st.integers(1, 12), st.floats(0, 3))
def test_transfers_and_unequal_stages(p, m, transfer):
    stages = [1.0 + i % 3 for i in range(p)]
    timeline = run(SCHEDULES["fill-drain"], p, m, Durations(transfer=transfer, stage_factors=stages))
    ends = np.zeros(p)
    for _ in range(m):
        before = 0.0
        for s in range(p):
            ends[s] = max(ends[s], before) + stages[s]
            before = ends[s] + transfer
    assert timeline.span_s == pytest.approx(float(ends[-1]))


@given(st.floats(0.5, 3), st.floats(0.5, 3), st.floats(0.1, 0.5))
def test_zero_bubble_forms_for_cheap_weight_gradients(f, b, w):
    """W <= F and W <= B: Qi et al.'s (p-1)(F+B-W) for H1; H2 keeps its fill, and half of what two W leave of B."""
    for p, m in ((2, 3), (4, 9), (6, 12)):
        first = run(SCHEDULES["zb-h1"], p, m, Durations(f, b, w))
        assert first.idle_s() == pytest.approx(np.full(p, (p - 1) * (f + b - w)))
        second = run(SCHEDULES["zb-h2"], p, m, Durations(f, b, w))
        assert second.idle_s() == pytest.approx(np.full(p, (p - 1) * (f + max(0.0, b - 2 * w))))


def test_a_priced_pipeline_is_what_the_simulator_runs():
    """Decode over 4 stages with 4 microbatches in flight: in the long run one leaves every step / 4."""
    priced = commtax.bill("llama-3.1-70b", "4xh200-sxm", tp=1, pp=4, batch=32)
    stage = float(priced.step_s) / 4
    rounds = 400
    tokens_per_s = rounds * 8 / run(SCHEDULES["fill-drain"], 4, rounds, Durations(forward=stage)).span_s
    assert tokens_per_s == pytest.approx(float(priced.tokens_per_s), rel=0.01)
    assert tokens_per_s < float(priced.tokens_per_s), "filling and draining cost a little"


def test_orders_may_lock_and_large_ones_simulate_quickly():
    order = OperationOrder(2, 1, 1, [[("B", 0, 0), ("F", 0, 0)], [("F", 0, 0), ("B", 0, 0)]], [[(0, 0), (1, 0)]])
    with pytest.raises(ValueError, match="deadlock"):
        simulate(order, Durations())
    start = time.process_time()
    run(SCHEDULES["1f1b"], 64, 1024)
    assert time.process_time() - start < 10, "about 0.3 s of CPU; benchmarks/speed.py prints it"
    lane, start, end = np.array([0, 0, 1]), np.array([0.0, 2.0, 1.0]), np.array([1.0, 4.0, 3.0])
    t = Timeline(lane, start, end, lane, ("a", "b", "c"), ("x", "y"), ("comp", "comm"))
    assert (t.busy_s().tolist(), t.idle_s().tolist(), t.covered("comm")) == ([3, 2], [1, 2], [(1, 3)])
    assert t.busy_s(["comm"]).tolist() == [0, 2]


def command(*words):
    return run_here("pipeline", *words)


@pytest.mark.parametrize("name", NAMES)
def test_command(name, tmp_path):
    trace, picture = tmp_path / "t.json", tmp_path / "t.svg"
    done = command("-p", "4", "-m", "8", "--schedule", name, "--chrome-trace", str(trace), "--svg", str(picture), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["idle_counted_s"] == pytest.approx(found["idle_closed_form_s"])
    assert found["bubble_over_total"] == pytest.approx(found["idle_closed_form_s"] / found["total_s"])
    assert len([e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]) > 30
    assert picture.read_text().startswith("<svg")
    assert "bubble" in command("-p", "4", "-m", "8", "--schedule", name).stdout


def test_command_answers_the_budget_question():
    assert "63 microbatches" in command("-p", "8", "--budget", "10%").stdout
    assert "21 microbatches" in command("-p", "8", "--budget", "10%", "--schedule", "zb-h1").stdout
    text = command("-p", "8", "-m", "64", "--straggler", "3:1.5", "--times", "1:2:1", "--transfer", "0.1").stdout
    assert "straggler" in text


@each(("words", "says"), DATA["mistakes"])
def test_mistakes(words, says):
    done = command(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert says in done.stderr
