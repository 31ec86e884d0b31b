"""What to measure next: runs that narrow what is asked, as they are promised to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.catalog.posterior import Posterior, beliefs, deployment_of, student_over_normal
from commtax.runs.calibrate.advising import advise, best_runs
from commtax.runs.report.calibrating import advised_words
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax.verbs.closed_loop import imagined, simulate
from commtax.verbs.profiles import Foresight
from commtax.verbs.settling import resolve_question
from measured import CLUSTER, MODEL, measured, profile

LOAD = ("concurrency", "input_len", "output_len")


def asked(clients=64, prompt=8192, output=1024, **more):
    return resolve_question(MODEL, CLUSTER, {"tp": 4, **dict(zip(LOAD, (clients, prompt, output), strict=True)), **more})


def foreseen(learnt=()):
    loads = {"concurrency": np.array([1, 4, 16, 64, 16]), "input_len": np.array([1024, 1024, 1024, 1024, 4096])}
    return Foresight(imagined(simulate(MODEL, CLUSTER, tp=4, output_len=256, **loads)), learnt)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), st.integers(0, 9))
def test_no_run_ever_widens_a_range(shown, more):
    known = foreseen()
    once = known.shown(shown)
    assert np.all(once.sigma <= known.sigma * (1 + 1e-9))
    assert np.all(once.shown([more]).sigma <= once.sigma * (1 + 1e-9))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), st.lists(st.integers(0, 9), min_size=1, unique=True))
def test_some_ranges_are_those_of_all(shown, which):
    known, after = foreseen(), foreseen().shown(shown)
    tails = student_over_normal(known.freedom) / student_over_normal(after.freedom)
    assert known.sigma_after(shown, which) == pytest.approx((after.sigma * tails)[which])


def test_runs_in_any_order_and_one_by_one_leave_the_same():
    known = foreseen()
    together, apart = known.after([0, 1, 6, 7]), known.shown([6, 7]).after([0, 1])
    assert np.allclose(together, apart, atol=1e-12)


def test_without_lessons_the_range_is_the_posterior_s_prior_and_with_them_its_own():
    runs = measured(scatter=0.03)[:3]
    own = profile(runs)
    told = simulate(MODEL, CLUSTER, tp=4, concurrency=20, input_len=2048, output_len=256, profile=own)
    known = Foresight(imagined(told), own.lessons)
    assert known.sigma == pytest.approx([float(told.learnt[m].sigma) for m in ("tpot", "ttft")])
    assert all(float(told.sigma_of(f"{m}_s")) <= float(told.learnt[m].sigma) for m in ("tpot", "ttft"))  # nor wider than before
    q = told.question
    where = deployment_of(q.engine, q.cluster.chip, q.model, q.plan)
    moved = {name: change.log for name, change in Posterior(own.lessons).changes(where).items()}
    rest = [float(told.learnt[m].log) + sum(told.slopes[m].get(n, 0.0) * x for n, x in moved.items()) for m in ("tpot", "ttft")]
    assert known.mean == pytest.approx(rest, abs=1e-9)


def test_a_load_that_is_asked_for_is_measured_there():
    (run,) = advise(asked(), 1, LOAD).runs
    assert (run.clients, run.input_len, run.output_len) == (64, 8192, 1024)
    assert run.after["tpot"] < 0.5 * run.before["tpot"]
    assert "--max-concurrency 64" in run.command
    assert advised_words(run).startswith("concurrency 64 at 8k/1k: TPOT range ±")


def test_different_questions_get_different_runs():
    questions = [((1, 1024, 128), LOAD), ((64, 8192, 1024), LOAD), ((128, 1024, 1024), ("concurrency",)), ((1, 1024, 128), ())]
    answers = [{(r.clients, r.input_len, r.output_len) for r in advise(asked(*load), 2, named).runs} for load, named in questions]
    assert all(a != b for i, a in enumerate(answers) for b in answers[:i])


def test_what_is_promised_comes_true():
    """A run as it was advised, made and learnt, leaves the range that was said: but for what its own errors say of the scale."""
    (run,) = advise(asked(), 1, LOAD).runs
    own = profile(measured([(run.clients, run.input_len, run.output_len)]))
    told = simulate(MODEL, CLUSTER, tp=4, concurrency=64, input_len=8192, output_len=1024, profile=own)
    for metric in ("tpot", "ttft"):
        said, scale = np.log1p(run.after[metric]), Posterior(own.lessons).scale(metric) / beliefs().width
        assert np.log(told.range_of(f"{metric}_s")[1] / getattr(told, f"{metric}_s")) / scale == pytest.approx(said, rel=0.03)


def test_what_is_known_already_is_not_advised_again_first():
    fresh, after = advise(asked(), 1, LOAD), advise(asked(profile=profile(measured([(64, 8192, 1024)]))), 3, LOAD)
    assert after.lessons == 2
    assert after.runs[0].before["tpot"] < fresh.runs[0].before["tpot"]
    assert (after.runs[0].clients, after.runs[0].input_len) != (64, 8192) or len(after.runs) < 3


def test_advice_is_the_same_every_time_and_ranges_shrink_from_run_to_run():
    advice = advise(asked(), 3, ("input_len", "output_len"))
    assert advice == advise(asked(), 3, ("input_len", "output_len"))
    for run, later in zip(advice.runs, advice.runs[1:], strict=False):
        assert run.after == later.before
    assert all(run.after[m] <= run.before[m] for run in advice.runs for m in ("tpot", "ttft"))


def test_runs_are_chosen_together():
    """No other run in the place of one of them would leave less."""
    known = foreseen()
    pairs = {i: (2 * i, 2 * i + 1) for i in range(5)}
    two = best_runs(known, range(10), pairs, dict.fromkeys(pairs, 1.0), 2)

    def left(some):
        return np.log(known.shown([x for i in some for x in pairs[i]]).sigma).mean()

    others = [i for i in pairs if i not in two]
    assert all(left(two) <= left((kept, other)) + 1e-12 for kept in two for other in others)


def test_of_runs_that_are_worth_the_same_the_shortest_is_taken():
    lessons = foreseen().latencies[:2]
    known = Foresight([*lessons, *lessons, *lessons])
    assert best_runs(known, (0, 1), {"long": (2, 3), "short": (4, 5)}, {"long": 60.0, "short": 6.0}, 1) == ["short"]


@pytest.mark.parametrize("wanted", [0, -1, 1000])
def test_a_number_of_runs_that_nobody_makes_is_refused(wanted):
    with pytest.raises(Refusal, match="nearest valid"):
        advise(asked(), wanted, LOAD)


def test_a_model_that_does_not_fit_gets_no_advice():
    with pytest.raises(Refusal, match="commtax fit"):
        advise(resolve_question("llama-3.1-405b", "8xh100-sxm", {"tp": 2}), 1)


def test_profiles_without_runs_change_nothing():
    assert advise(asked(profile=Profile("empty")), 2, LOAD).runs == advise(asked(), 2, LOAD).runs
