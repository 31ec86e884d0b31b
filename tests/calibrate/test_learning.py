"""Laws of what runs teach: shown points come back, ranges narrow with each, and no further than repeated runs differ."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.posterior import LoadPoint, Posterior, beliefs
from commtax.catalog.profile import load
from commtax.catalog.profile_files import write_profile
from commtax.runs.calibrate.learning import join_repeats, learn
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.spec import Profile
from commtax.verbs.closed_loop import imagined
from commtax.verbs.profiles import Foresight

CLUSTER = catalog.cluster("8xh100-sxm")
MODEL = "llama-3.1-8b"
OPTIONS = {"engine": "vllm@0.18", "tp": 2, "input_len": 1024, "output_len": 256, "spread": 0.0}
BLANK = Profile("box")


def asked(clients, engine=None, profile=None, **more):
    words = {**OPTIONS, "concurrency": clients, "num_prompts": 10 * clients, **more}
    return commtax.simulate(MODEL, CLUSTER, **{**words, "engine": engine or words["engine"], "profile": profile})


def measured(clients, engine=None, off=(1.0, 1.0), **more):
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


def test_one_run_helps_and_ranges_narrow_with_each():
    truth = slow_host()
    widths, errors = [], []
    for shown in ((), (32,), (4, 32), (4, 32, 128), (1, 4, 32, 64, 128)):
        told = asked(16, profile=learn([measured(c, truth) for c in shown], BLANK).profile if shown else None)
        widths.append(float(told.sigma_of("tpot_s")))
        errors.append(abs(float(np.log(told.tpot_s / asked(16, truth).tpot_s))))
    assert widths == sorted(widths, reverse=True)
    assert max(errors[1:]) < errors[0] / 2


def test_odd_runs_are_named_and_not_followed():
    runs = [measured(c) for c in (1, 4, 16, 32, 64)]
    found = learn([*runs, replace(measured(24, off=(1.6, 1.0)), label="odd.json")], BLANK)
    assert [label for label, _ in found.odd] == ["odd.json: TPOT"]
    assert abs(float(np.log(asked(24, profile=found.profile).tpot_s / asked(24).tpot_s))) < 0.1
    found = learn([measured(8), replace(measured(32, off=(3.0, 3.0)), label="odd.json"), measured(128)], BLANK)
    assert {label for label, _ in found.odd} == {"odd.json: TPOT", "odd.json: TTFT"}
    assert float(asked(64, profile=found.profile).tpot_s) == pytest.approx(float(asked(64).tpot_s), rel=0.1)


def test_what_beats_physics_or_is_something_else_is_refused_by_name():
    fast = replace(measured(1), measured={"tpot": 1e-4}, label="fast.json")
    slow = replace(measured(4), measured={"tpot": float(asked(4).tpot_s), "ttft": 900.0}, label="slow.json")
    found = learn([fast, slow], BLANK)
    assert [why.partition(":")[0] for why in found.refused] == ["fast.json", "slow.json"]
    assert "beats the hardware" in found.refused[0]
    assert "not this deployment" in found.refused[1]
    assert [x.metric for x in found.profile.lessons] == ["tpot"]


def test_a_static_batch_teaches_and_copies_change_nothing():
    whole = float(asked(8).e2e_s) * 1.2
    found = learn([replace(measured(8), measured={"e2e": whole})], BLANK).profile
    assert abs(float(asked(8, profile=found).e2e_s) / whole - 1) < 0.06
    runs = [measured(c, off=(1.1, 1.2)) for c in (1, 16, 64)]
    once = learn(runs, BLANK).profile
    again = learn([*reversed(runs), *(replace(run, label=f"copy of {run.label}") for run in runs)], BLANK).profile
    assert again.lessons == once.lessons


@pytest.mark.parametrize("more", [{"tp": 4}, {"engine": "vllm@0.12"}, {"engine": "sglang"}])
def test_what_was_not_seen_is_wider(more):
    found = learn([measured(c, off=(1.15, 1.1)) for c in (1, 16, 64)], BLANK).profile
    engine = more.pop("engine", None)
    seen, other = asked(16, profile=found), asked(16, engine, profile=found, **more)
    assert other.sigma_of("tpot_s") > seen.sigma_of("tpot_s")
    moved = [float(np.log(told.tpot_s / usual.tpot_s)) for told, usual in ((seen, asked(16)), (other, asked(16, engine, **more)))]
    assert moved[0] > moved[1] > 0


def test_settling_again_moves_no_constant_twice():
    once = asked(16, profile=learn([measured(c, slow_host()) for c in (1, 16, 64)], BLANK).profile)
    again = commtax.verbs.closed_loop.price_closed_loop(once.question.but(tp=2))
    assert float(again.tpot_s) == pytest.approx(float(once.tpot_s), rel=1e-12)
    back = once.question.but(tp=4).but(tp=2)
    assert float(commtax.verbs.closed_loop.price_closed_loop(back).tpot_s) == pytest.approx(float(once.tpot_s), rel=1e-12)


def test_the_formula_by_hand():
    """One lesson, one constant: the posterior of a normal with a known deviation."""
    lesson = next(x for x in learn([measured(16, off=(1.1, 1.0))], BLANK).profile.lessons if x.metric == "tpot")
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


def repeats(clients, off, factors):
    told = asked(clients)
    options = {**OPTIONS, "concurrency": clients, "num_prompts": 10 * clients}
    times = [{"tpot": float(told.tpot_s) * off * x, "ttft": float(told.ttft_s) * off * x} for x in factors]
    return [MeasuredRun(MODEL, CLUSTER, options, one, {}, f"c{clients}-{i}.json") for i, one in enumerate(times)]


def around(scatter, count=3):
    """Factors whose logarithms have a standard deviation, and a median of none."""
    logs = np.linspace(-1, 1, count)
    return np.exp(logs * scatter / logs.std(ddof=1))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 0.3), st.lists(st.sampled_from([1, 8, 64]), min_size=1, max_size=3, unique=True), st.integers(3, 6))
def test_no_range_is_narrower_than_runs_repeat(scatter, loads, count):
    runs = [run for clients in loads for run in repeats(clients, 1.0, around(scatter, count))]
    found = learn(runs, BLANK).profile
    said = {x.metric: x.scatter for x in found.lessons}
    free, usual = len(loads) * (count - 1), beliefs().smooth["tpot"].noise
    assert said["tpot"] ** 2 == pytest.approx(free * (scatter**2 - usual**2) / (beliefs().freedom + free))
    for clients in (1, 16, 64):
        for metric, sigma in said.items():
            assert float(asked(clients, profile=found).sigma_of(f"{metric}_s")) > sigma


@settings(max_examples=15, deadline=None)
@given(st.floats(0.05, 0.9), st.integers(2, 5))
def test_repeats_that_scatter_as_runs_usually_do_change_nothing(share, count):
    factors = around(share * beliefs().smooth["tpot"].noise, count)
    several, once = (learn(repeats(16, 1.2, some), BLANK).profile for some in (factors, [float(np.median(factors))]))
    for one, other in zip(several.lessons, once.lessons, strict=True):
        assert ((one.scatter, one.repeats), one.residual) == ((0.0, count), pytest.approx(other.residual))
    assert float(asked(32, profile=several).tpot_s) == pytest.approx(float(asked(32, profile=once).tpot_s))


def test_runs_that_scatter_count_for_less_and_one_wild_round_takes_nothing_away():
    steady, wild = (learn(repeats(16, 1.3, around(scatter)), BLANK).profile for scatter in (0.01, 0.3))
    before, after, little = (float(asked(16, profile=own).tpot_s) for own in (None, steady, wild))
    assert before < little < after
    steady, disturbed = (learn(repeats(16, 1.1, some), BLANK).profile for some in ([0.99, 1.0, 1.01], [0.99, 1.0, 2.0]))
    usual, there, wild = (float(asked(16, profile=own).tpot_s) for own in (None, steady, disturbed))
    assert usual < wild < there
    said = [learn(repeats(16, 1.0, around(0.2, count)), BLANK).profile.lessons[0].scatter for count in (2, 3, 6, 30)]
    assert (said, said[-1]) == (sorted(said), pytest.approx(0.2, rel=0.1))


def test_loads_that_ran_once_scatter_as_the_others_of_their_deployment():
    alone = learn([*repeats(8, 1.0, around(0.2)), *repeats(64, 1.0, [1.0])], BLANK).profile.lessons
    assert len({x.scatter for x in alone if x.metric == "tpot"}) == 1
    assert {x.clients: x.repeats for x in alone} == {8: 3, 64: 1}
    post = Posterior(alone)
    once, thrice = (next(i for i, x in enumerate(alone) if x.metric == "tpot" and x.repeats == n) for n in (1, 3))
    assert post.noise[thrice] < post.noise[once]


@given(st.randoms(use_true_random=False))
@settings(max_examples=5, deadline=None)
def test_neither_order_nor_copies_change_anything(chance: random.Random):
    runs = [*repeats(8, 1.1, around(0.1)), *repeats(64, 0.9, around(0.2))]
    shuffled = [*runs, *(replace(run, label=f"copy of {run.label}") for run in runs)]
    chance.shuffle(shuffled)
    assert learn(shuffled, BLANK).profile.lessons == learn(runs, BLANK).profile.lessons


def test_repeats_are_of_their_deployment_and_an_impossible_one_is_refused():
    good, bad = repeats(16, 1.0, [1.0, 1.02]), repeats(16, 1e-3, [1.0])
    found = learn([*good, replace(bad[0], label="too good.json")], BLANK)
    assert any("too good.json" in why for why in found.refused)
    assert {x.repeats for x in found.profile.lessons} == {2}
    other = [replace(run, options={**run.options, "tp": 4}) for run in repeats(16, 1.0, around(0.3))]
    scatter = {run.options["tp"]: run.repeated["tpot"].scatter for run in join_repeats([*other, *repeats(16, 1.0, [1.0, 1.01])])}
    assert scatter[2] == 0.0 < scatter[4]


def test_what_is_foreseen_has_the_scatter_too_and_a_profile_keeps_it(tmp_path):
    found = learn([*repeats(8, 1.1, around(0.2)), *repeats(64, 1.0, around(0.2))], BLANK).profile
    write_profile(tmp_path / "own.toml", found)
    kept = load(tmp_path / "own.toml")
    assert [x.repeats for x in kept.lessons] == [x.repeats for x in found.lessons]
    assert [x.scatter for x in kept.lessons] == pytest.approx([x.scatter for x in found.lessons], rel=1e-3)
    told = asked(24, profile=found)
    known = Foresight(imagined(told), found.lessons)
    assert known.sigma == pytest.approx([float(told.learnt[m].sigma) for m in ("tpot", "ttft")])


def test_scatter_of_layouts_together_is_that_of_each():
    lessons = learn(repeats(8, 1.0, around(0.2)), BLANK).profile.lessons
    post, where = Posterior(lessons), lessons[0].deployment
    whole = post.rest(replace(where, tp=np.array([1, 2, 4])), "tpot", LoadPoint(np.array([8, 8, 8]), 1024, 256), {})[1]
    assert whole == pytest.approx(
        [float(post.rest(replace(where, tp=tp), "tpot", LoadPoint(8, 1024, 256), {})[1]) for tp in (1, 2, 4)]
    )
