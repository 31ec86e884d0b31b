"""Laws of runs that were made several times: what they differ by is what nothing learnt from them is surer than."""

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
from commtax.verbs.closed_loop import imagined, simulate
from commtax.verbs.profiles import Foresight

CLUSTER = catalog.cluster("8xh100-sxm")
MODEL = "llama-3.1-8b"
BLANK = Profile("box")
OPTIONS = {"engine": "vllm@0.18", "tp": 2, "input_len": 1024, "output_len": 256, "spread": 0.0}


def asked(clients, engine=None, profile=None, **more):
    words = {**OPTIONS, "concurrency": clients, "num_prompts": 10 * clients, **more}
    return commtax.simulate(MODEL, CLUSTER, **{**words, "engine": engine or words["engine"], "profile": profile})


def repeats(clients, off, factors):
    """Runs of one load that took ``off`` times what is expected, each times its own factor."""
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


def test_the_more_repeats_say_it_the_more_they_are_believed():
    said = [learn(repeats(16, 1.0, around(0.2, count)), BLANK).profile.lessons[0].scatter for count in (2, 3, 6, 30)]
    assert said == sorted(said)
    assert said[-1] == pytest.approx(0.2, rel=0.1)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.05, 0.9), st.integers(2, 5))
def test_repeats_that_scatter_as_runs_usually_do_change_nothing(share, count):
    factors = around(share * beliefs().smooth["tpot"].noise, count)
    several, once = (learn(repeats(16, 1.2, some), BLANK).profile for some in (factors, [float(np.median(factors))]))
    for one, other in zip(several.lessons, once.lessons, strict=True):
        assert (one.scatter, one.repeats) == (0.0, count)
        assert one.residual == pytest.approx(other.residual)
    assert float(asked(32, profile=several).tpot_s) == pytest.approx(float(asked(32, profile=once).tpot_s))


def test_a_run_that_scatters_counts_for_less():
    steady, wild = (learn(repeats(16, 1.3, around(scatter)), BLANK).profile for scatter in (0.01, 0.3))
    before, after, little = (float(asked(16, profile=own).tpot_s) for own in (None, steady, wild))
    assert before < little < after


def test_one_wild_round_of_three_takes_nothing_farther_than_the_others():
    steady, disturbed = (learn(repeats(16, 1.1, some), BLANK).profile for some in ([0.99, 1.0, 1.01], [0.99, 1.0, 2.0]))
    usual, there, wild = (float(asked(16, profile=own).tpot_s) for own in (None, steady, disturbed))
    assert usual < wild < there


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


def test_a_repeat_that_no_machine_had_is_refused_and_the_others_stay():
    good, bad = repeats(16, 1.0, [1.0, 1.02]), repeats(16, 1e-3, [1.0])
    found = learn([*good, replace(bad[0], label="too good.json")], BLANK)
    assert any("too good.json" in why for why in found.refused)
    assert {x.repeats for x in found.profile.lessons} == {2}


def test_other_deployments_do_not_tell_how_well_one_repeats():
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
