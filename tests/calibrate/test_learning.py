"""Laws of what runs teach: shown points come back, others are told, order and copies change nothing, ranges narrow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.posterior import LoadPoint, Posterior, beliefs
from commtax.runs.calibrate.learning import learn
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.spec import Profile

CLUSTER = catalog.cluster("8xh100-sxm")
MODEL = "llama-3.1-8b"
OPTIONS = {"engine": "vllm@0.18", "tp": 2, "input_len": 1024, "output_len": 256, "spread": 0.0}
BLANK = Profile("box")


def asked(clients, engine=None, profile=None, **more):
    words = {**OPTIONS, "concurrency": clients, "num_prompts": 10 * clients, **more}
    return commtax.simulate(MODEL, CLUSTER, **{**words, "engine": engine or words["engine"], "profile": profile})


def measured(clients, engine=None, off=(1.0, 1.0), **more):
    """A run of an engine whose constants are known, as it was read."""
    told = asked(clients, engine, **more)
    options = {**OPTIONS, "concurrency": clients, "num_prompts": 10 * clients, **more}
    latencies = {"tpot": float(told.tpot_s) * off[0], "ttft": float(told.ttft_s) * off[1]}
    return MeasuredRun(MODEL, CLUSTER, options, latencies, {}, f"c{clients}.json")


def slow_host():
    return catalog.engine("vllm@0.18").but(host_s=1.2e-3, host_s_per_seq=4e-5, request_s=0.012, pooled=False)


def test_a_slow_host_is_told_at_other_loads():
    """Four runs of an engine with other host times; the loads between and beyond are predicted, which a common factor cannot."""
    truth = slow_host()
    found = learn([measured(c, truth) for c in (1, 8, 32, 128)], BLANK).profile
    for clients in (2, 16, 64, 192):
        true, told, usual = asked(clients, truth), asked(clients, profile=found), asked(clients)
        assert abs(float(told.tpot_s / true.tpot_s) - 1) < 0.03
        assert abs(float(told.tpot_s / true.tpot_s) - 1) < abs(float(usual.tpot_s / true.tpot_s) - 1)
        low, high = told.range_of("tpot_s")
        assert low < true.tpot_s < high
    changes = Posterior(found.lessons).changes(found.lessons[0].deployment)
    assert changes["host_s"].log > 0.1
    assert changes["host_s_per_seq"].log > 0.1


def test_runs_stand_beside_those_that_a_profile_has_and_one_that_is_read_again_replaces_itself():
    truth = slow_host()
    runs = [measured(c, truth) for c in (1, 8, 32, 128)]
    together, first = learn(runs, BLANK).profile, learn(runs[:2], BLANK).profile
    later = learn(runs[2:], first).profile
    assert sorted(x.label for x in later.lessons) == sorted(x.label for x in together.lessons)
    assert float(asked(64, profile=later).tpot_s) == pytest.approx(float(asked(64, profile=together).tpot_s), rel=0.01)
    again = learn([measured(8, truth, off=(1.1, 1.0))], later).profile
    assert len(again.lessons) == len(later.lessons)
    (tpot,) = (x for x in again.lessons if x.label == "c8.json" and x.metric == "tpot")
    assert tpot.measured_s == pytest.approx(1.1 * runs[1].measured["tpot"])
    elsewhere = learn([replace(runs[1], label="copy/c8.json")], later).profile
    assert len(elsewhere.lessons) == len(later.lessons)  # the same load in another folder


def test_one_of_three_runs_that_is_three_times_off_is_named_and_not_followed():
    found = learn([measured(8), replace(measured(32, off=(3.0, 3.0)), label="odd.json"), measured(128)], BLANK)
    assert {label for label, _ in found.odd} == {"odd.json: TPOT", "odd.json: TTFT"}
    assert float(asked(64, profile=found.profile).tpot_s) == pytest.approx(float(asked(64).tpot_s), rel=0.1)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 4, 16, 64, 128]), st.floats(0.9, 1.3), st.floats(0.7, 1.5)),
        min_size=1,
        max_size=4,
        unique_by=lambda x: x[0],
    )
)
def test_shown_runs_come_back_within_their_scatter(runs):
    found = learn([measured(c, off=(a, b)) for c, a, b in runs], BLANK)
    odd = {label for label, _ in found.odd}
    for clients, off, first in runs:
        told, usual = asked(clients, profile=found.profile), asked(clients)
        for name, times in (("tpot", off), ("ttft", first)):
            lesson = next(x for x in found.profile.lessons if x.clients == clients and x.metric == name)
            sigma = float(told.sigma_of(f"{name}_s")) * lesson.noise
            error = np.log(float(getattr(told, f"{name}_s") / getattr(usual, f"{name}_s")) / times)
            assert abs(error) < 2.6 * sigma or f"c{clients}.json: {name.upper()}" in odd


def test_neither_order_nor_copies_of_files_change_anything():
    runs = [measured(c, off=(1.1, 1.2)) for c in (1, 16, 64)]
    once = learn(runs, BLANK).profile
    again = learn([*reversed(runs), *(replace(run, label=f"copy of {run.label}") for run in runs)], BLANK).profile
    assert again.lessons == once.lessons


def test_one_run_helps_and_ranges_narrow_with_each():
    truth = slow_host()
    widths, errors = [], []
    for shown in ((), (32,), (4, 32), (4, 32, 128), (1, 4, 32, 64, 128)):
        own = learn([measured(c, truth) for c in shown], BLANK).profile if shown else None
        told = asked(16, profile=own)
        widths.append(float(told.sigma_of("tpot_s")))
        errors.append(abs(float(np.log(told.tpot_s / asked(16, truth).tpot_s))))
    assert widths == sorted(widths, reverse=True)
    assert max(errors[1:]) < errors[0] / 2


def test_an_odd_run_is_named_and_not_followed():
    runs = [measured(c) for c in (1, 4, 16, 32, 64)]
    odd = replace(measured(24, off=(1.6, 1.0)), label="odd.json")
    found = learn([*runs, odd], BLANK)
    assert [label for label, _ in found.odd] == ["odd.json: TPOT"]
    assert abs(float(np.log(asked(24, profile=found.profile).tpot_s / asked(24).tpot_s))) < 0.1


def test_what_beats_physics_or_is_something_else_is_refused_by_name():
    fast = replace(measured(1), measured={"tpot": 1e-4}, label="fast.json")
    slow = replace(measured(4), measured={"tpot": float(asked(4).tpot_s), "ttft": 900.0}, label="slow.json")
    found = learn([fast, slow], BLANK)
    assert [why.partition(":")[0] for why in found.refused] == ["fast.json", "slow.json"]
    assert "beats the hardware" in found.refused[0]
    assert "not this deployment" in found.refused[1]
    assert [x.metric for x in found.profile.lessons] == ["tpot"]


def test_a_static_batch_teaches_too():
    whole = float(asked(8).e2e_s) * 1.2
    run = replace(measured(8), measured={"e2e": whole})
    found = learn([run], BLANK).profile
    assert abs(float(asked(8, profile=found).e2e_s) / whole - 1) < 0.06


@pytest.mark.parametrize("more", [{"tp": 4}, {"engine": "vllm@0.12"}, {"engine": "sglang"}])
def test_what_was_not_seen_is_wider(more):
    found = learn([measured(c, off=(1.15, 1.1)) for c in (1, 16, 64)], BLANK).profile
    engine = more.pop("engine", None)
    seen, other = asked(16, profile=found), asked(16, engine, profile=found, **more)
    assert other.sigma_of("tpot_s") > seen.sigma_of("tpot_s")
    moved = [float(np.log(told.tpot_s / usual.tpot_s)) for told, usual in ((seen, asked(16)), (other, asked(16, engine, **more)))]
    assert moved[0] > moved[1] > 0


def test_settling_again_moves_no_constant_twice():
    found = learn([measured(c, slow_host()) for c in (1, 16, 64)], BLANK).profile
    once = asked(16, profile=found)
    again = commtax.verbs.closed_loop.price_closed_loop(once.question.but(tp=2))
    assert float(again.tpot_s) == pytest.approx(float(once.tpot_s), rel=1e-12)
    back = once.question.but(tp=4).but(tp=2)
    assert float(commtax.verbs.closed_loop.price_closed_loop(back).tpot_s) == pytest.approx(float(once.tpot_s), rel=1e-12)


def test_the_formula_by_hand():
    """One lesson, one constant: the posterior of a normal with a known deviation."""
    found = learn([measured(16, off=(1.1, 1.0))], BLANK).profile
    lesson = next(x for x in found.lessons if x.metric == "tpot")
    only = Posterior([replace(lesson, slopes={"host_s": 0.5})])
    known = beliefs()
    smooth = known.smooth["tpot"]
    whole = (0.5 * known.constants["host_s"]) ** 2 + smooth.offset**2 + smooth.local**2 + smooth.noise**2
    change = only.changes(lesson.deployment)["host_s"]
    assert change.log == pytest.approx(0.5 * known.constants["host_s"] ** 2 / whole * lesson.residual)
    assert change.after**2 == pytest.approx(known.constants["host_s"] ** 2 * (1 - 0.25 * known.constants["host_s"] ** 2 / whole))
    at = LoadPoint(lesson.clients, lesson.input_len, lesson.output_len)
    rest, _ = only.rest(lesson.deployment, "tpot", at, {"host_s": 0.5})
    assert float(rest) == pytest.approx((smooth.offset**2 + smooth.local**2) / whole * lesson.residual)
