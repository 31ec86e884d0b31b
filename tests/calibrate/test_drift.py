"""Is a machine still what it was, and what to measure next: false alarms as stated, slowdowns named, runs that narrow ranges."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import shown_here
from commtax import catalog
from commtax.catalog.posterior import Posterior, beliefs, deployment_of, student_over_normal
from commtax.catalog.profile import load_profile
from commtax.judgement.suspects import LEVEL as SUSPECT
from commtax.runs.calibrate.advising import advise, best_runs
from commtax.runs.calibrate.calibration import read_runs
from commtax.runs.calibrate.drift import EVERYTHING, LEVEL, PARTS, _chance, check_drift, judge, tail
from commtax.runs.calibrate.learning import observe
from commtax.runs.report.calibrating import advised_words, part_words, show_drift
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax.verbs.closed_loop import imagined, simulate
from commtax.verbs.profiles import Foresight
from commtax.verbs.settling import ask, resolve_question
from measured import CLUSTER, LOADS, MODEL, measured, profile

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = profile(measured(scatter=0.01))
KERNELS = dict.fromkeys(("pace_products", "pace_decoding", "pace_prompting", "pace_small"), 1.25)
HOST, LINK = ("host_s", "host_s_per_seq", "prompt_s", "request_s"), ("pace_latency", "pace_wire")
LOAD = ("concurrency", "input_len", "output_len")


@pytest.mark.parametrize(
    ("square", "directions", "freedom", "wanted"),
    [(4.96, 1, 10, 0.05), (10.04, 1, 10, 0.01), (4.10, 2, 10, 0.05), (3.33, 5, 10, 0.05), (6.61, 1, 5, 0.05)],
)
def test_tails_are_those_of_tables(square, directions, freedom, wanted):
    assert tail(square, directions, freedom) == pytest.approx(wanted, rel=0.01)


@given(st.floats(0, 100), st.floats(0.01, 10), st.integers(1, 4), st.floats(3, 40))
def test_larger_squares_are_rarer(square, more, directions, freedom):
    rarer, usual = tail(square + more, directions, freedom), tail(square, directions, freedom)
    assert 0 <= rarer <= usual + 1e-6 <= 1 + 1e-6  # what the quadrature keeps; checks ask along one direction


def test_the_same_machine_is_the_same_and_a_changed_one_is_not():
    found = check_drift(measured(scatter=0.01, seed=7), OWN)
    assert (found.verdict, found.moved) == ("same", "")
    assert found.level == LEVEL.level == 0.01
    assert len(found.latencies) == 2 * len(LOADS)
    found = check_drift(measured(**{name: 1 / x for name, x in KERNELS.items()}), OWN)
    assert found.verdict == "drifted"
    assert next(part for part in found.parts if part.name == "everything").slower < 0
    chances = [check_drift(measured(**dict.fromkeys(KERNELS, size)), OWN).probability for size in (1.0, 1.1, 1.2, 1.4)]
    assert chances == sorted(chances, reverse=True)


def test_alarms_of_an_unchanged_machine_are_as_rare_as_said():
    lessons, _ = observe(measured(), OWN)
    known = Foresight(lessons, OWN.lessons)
    root = np.linalg.cholesky(np.outer(known.scale, known.scale) * (known.covariance + np.diag(known.noise**2)))
    draw = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        logs = known.mean + root @ draw.standard_normal(len(lessons))
        alarms += (
            judge([replace(x, residual=float(log)) for x, log in zip(lessons, logs, strict=True)], OWN.lessons).verdict == "drifted"
        )
    assert alarms <= 200 * 0.02


def test_slower_kernels_are_seen_and_named():
    found = check_drift(measured(scatter=0.01, seed=5, **KERNELS), OWN)
    assert (found.verdict, found.moved) == ("drifted", "clock")
    (clock,) = (part for part in found.parts if part.name == "clock")
    assert clock.low < 0.25 < clock.high
    assert part_words(clock).startswith("clock: kernels take ")
    assert part_words(clock).endswith(" longer")


def test_too_little_to_compare_is_unknown_and_says_so():
    found = check_drift(measured(model="llama-3.1-8b", tp=1), OWN)
    assert found.verdict == "unknown"
    assert "0 latencies" in found.reason
    found = check_drift(measured([(256, 512, 32)]), profile(measured([(1, 8192, 512), (2, 8192, 512)])))
    assert found.verdict == "unknown"
    assert "slower without being seen" in found.reason
    runs = measured(LOADS[:1])
    twice = [replace(run, measured={m: 2 * s for m, s in run.measured.items()}) for run in runs]
    assert check_drift(twice, profile(runs)).verdict == "unknown"
    assert check_drift(measured(), Profile("empty")).verdict == "unknown"
    runs = measured([(1, 1024, 64), (8, 1024, 64), (32, 1024, 64)], model="llama-3.1-8b", tp=1)
    assert {part.name for part in check_drift(runs, profile(runs)).parts} == {"clock", "host", "everything"}


@pytest.mark.parametrize(("times", "verdict"), [(1.0, "same"), (1.1, "unknown"), (1.2, "drifted"), (0.9, "unknown")])
def test_one_run_that_is_off_by_more_than_its_range_is_never_the_same(times, verdict):
    """The examples that ship: 10% is too little for one run to be sure of, and too much to be no change."""
    own = load_profile((EXAMPLES / "my-box.toml",))
    run, *_ = read_runs([EXAMPLES / "today.json"], catalog.cluster("8xh100-sxm"), profile=own)
    found = check_drift([replace(run, measured={metric: times * s for metric, s in run.measured.items()})], own)
    outside = [one.metric for one in found.latencies if not one.low_s <= one.measured_s <= one.high_s]
    assert (found.verdict, bool(outside)) == (verdict, times != 1)
    if verdict == "unknown":
        assert f"these runs are 10% {'slower' if times > 1 else 'faster'}, which chance" in found.reason
        assert "concurrency 128 at 1024/128, 32 at 4096/1024 and 8 at 1024/512" in found.reason  # where they can be seen:
        again, _ = observe(read_runs([EXAMPLES / "three-runs"], catalog.cluster("8xh100-sxm"), profile=own), own)
        moved = [replace(x, residual=x.residual + float(np.log(times))) for x in again]
        assert judge(moved, own.lessons).verdict == "drifted"


@given(st.floats(0.01, 400), st.integers(1, 4), st.integers(1, 4))
def test_looking_along_more_directions_than_there_are_latencies_costs_no_more(square, rank, count):
    one, held = tail(square, 1, 3.0), _chance(square, (min(rank, count), count), 3.0)
    assert one <= held * (1 + 1e-9) or held == 1
    assert held <= min(1.0, count * one)


def test_a_range_of_a_latency_is_that_of_the_test():
    """One latency, one direction: the probability at the end of its 80% range is 20%."""
    lessons, _ = observe(measured(LOADS[:1]), OWN)
    one = next(x for x in lessons if x.metric == "tpot")
    (row,) = judge([one], OWN.lessons).latencies
    ended = judge([replace(one, residual=one.residual + float(np.log(row.high_s / row.measured_s)))], OWN.lessons)
    assert ended.probability == pytest.approx(0.2, rel=1e-3)


def test_versions_are_held_against_what_was_calibrated():
    lessons = tuple(replace(x, deployment=replace(x.deployment, version="0.1")) for x in OWN.lessons)
    found = check_drift(measured(scatter=0.01, seed=7), replace(OWN, lessons=lessons))
    assert found.verdict == "same"
    assert any("0.1, which was calibrated" in note for note in found.notes)
    runs = [replace(run, options={**run.options, "engine": "vllm@0.12"}) for run in measured(scatter=0.01)]
    own = replace(profile(runs), engine="vllm@0.12")
    told, untold = (
        check_drift([replace(r, options={**r.options, "engine": name}) for r in runs], own) for name in ("vllm@0.12", "vllm")
    )
    assert untold == told
    own = load_profile((EXAMPLES / "my-box.toml",))
    made = [ask("qwen3-32b", "8xh100-sxm", tp=4, engine=name, profile=own).engine for name in ("vllm", None, "vllm@0.31")]
    assert [engine.version for engine in made] == ["0.12", "0.12", "0.31"]


@given(st.permutations(range(len(LOADS))))
def test_the_order_of_runs_does_not_matter(order):
    runs = measured(scatter=0.02, seed=4)
    assert check_drift([runs[i] for i in order], OWN).probability == pytest.approx(check_drift(runs, OWN).probability)


@given(st.sampled_from([*PARTS, EVERYTHING]), st.floats(0.5, 2.0), st.integers(0, 10**6))
@settings(max_examples=25)
def test_the_cause_is_the_likeliest_row_and_no_row_contradicts_it(part, times, seed):
    held = {"clock": KERNELS, "host": HOST, "link": LINK}.get(part, ())
    runs = measured(scatter=0.01, seed=seed, **dict.fromkeys(held, times))
    if part == EVERYTHING:
        runs = [replace(run, measured={m: times * s for m, s in run.measured.items()}) for run in runs]
    found = check_drift(runs, OWN)
    shares = {row.name: row.likelihood for row in found.parts}
    assert sum(shares.values()) == pytest.approx(1)
    if found.verdict == "drifted":
        best = max(shares, key=shares.get)
        assert found.suspects[0] == best
        rivals = {name for name in shares if shares[name] * SUSPECT.stands_out > shares[best]}
        assert (set(found.suspects), found.moved) == (rivals, (best if rivals == {best} else ""))
        if part == EVERYTHING or (part != "host" and 0.1 < np.log(times) < 0.25):  # slopes are straight so far
            assert part in found.suspects
    else:
        assert found.suspects == ()


def test_where_everything_is_slower_no_part_is_blamed():
    """All times 30% longer: kernels by 36% would be like it, and less likely."""
    runs = [replace(run, measured={m: 1.3 * s for m, s in run.measured.items()}) for run in measured(scatter=0.01, seed=5)]
    found = check_drift(runs, OWN)
    assert (found.verdict, found.moved) == ("drifted", EVERYTHING)
    assert "\neverything: all steps take 30% ± 1% longer\n" in "\n".join(shown_here(show_drift, found, OWN))


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
    own = profile(measured(scatter=0.03)[:3])
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


def test_profiles_without_runs_and_models_that_do_not_fit_get_no_advice():
    with pytest.raises(Refusal, match="commtax fit"):
        advise(resolve_question("llama-3.1-405b", "8xh100-sxm", {"tp": 2}), 1)
    assert advise(asked(profile=Profile("empty")), 2, LOAD).runs == advise(asked(), 2, LOAD).runs
