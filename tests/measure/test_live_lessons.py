"""Closed loops served for real: some teach, others are predicted. Laws and structure, and no timings."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import live_models
from cli_run import run_here
from commtax.catalog import profile as overlay
from commtax.catalog.profile_files import write_profile
from commtax.runs.calibrate.calibration import calibrate
from commtax.spec import Profile
from commtax.spec.constants import Path
from commtax.statement import Refusal
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.study import foresight, live_lessons, live_loads
from commtax_lab.measure.study.findings import Prices
from commtax_lab.measure.study.recipe import StudyRun
from each import each
from tables import tables

DATA = tables(__file__)
MOST, INPUT, OUTPUT, SHOWN = 4, 16, 8, 3
CHIP = {"key": "cpu", "memory_Bps": 1e10, "flops_per_s": {"fp32": 1e11}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shape")
    (place / "config.json").write_text(live_models.config("llama"))
    return place


@pytest.fixture(scope="module")
def series(folder):
    loads, _ = live_loads.usual_loads(MOST, INPUT, OUTPUT)
    return live_loads.LoadSeries(LiveJob(str(folder), tp=1, random=True, device="cpu"), loads, 2).settle()


@pytest.fixture(scope="module")
def seen(series):
    """One rank, a few milliseconds a step."""
    return live_loads.run(series, timeout_s=120)


@pytest.fixture(scope="module")
def own(seen, series):
    """A machine so fast or so slow that a tiny model on it is no stranger to its own predictions."""
    blank = Profile("here", engine="builtin", chip=CHIP)
    runs = live_lessons.runs_of(series, live_lessons.load_results(series, seen))
    asked = foresight.foresee(runs, SHOWN, blank)[1]
    off = sum(run["tpot"]["measured_ms"] / run["tpot"]["before_ms"] for run in asked) / len(asked)
    return replace(blank, chip={**CHIP, "memory_Bps": CHIP["memory_Bps"] / off, "flops_per_s": {"fp32": 1e11 / off}})


@given(st.integers(2, 64), st.integers(8, 512), st.integers(8, 512), st.integers(0, 3))
def test_the_first_loads_are_spread_over_all(most, input_len, output_len, seed):
    loads, rounds = live_loads.usual_loads(most, input_len, output_len, seed)
    assert rounds > 0
    assert loads == live_loads.usual_loads(most, input_len, output_len, seed)[0]
    clients = {load.clients for load in loads}
    assert {load.clients for load in loads[: len(clients)]} == clients
    assert {1, most} <= clients
    for load in loads:
        assert len(load.sizes) >= load.clients
        assert all(size >= 2 for sizes in load.sizes for size in sizes)


def test_every_round_has_all_loads_in_an_order_of_its_own():
    order = live_loads._order(9, 4, 0)
    rounds = [order[i : i + 9] for i in range(0, 36, 9)]
    assert all(sorted(one) == list(range(9)) for one in rounds)
    assert (len(set(map(tuple, rounds))), order) == (4, live_loads._order(9, 4, 0))


def test_what_was_served_is_what_was_asked_for(series, seen):
    assert [one.load for one in seen.loads] == list(series.loads)
    for one in seen.loads:
        assert len(one.rounds) == series.rounds
        waves = len(one.load.sizes) / one.load.clients
        for run in one.rounds:
            assert run.tpot_s > 0
            assert 0 < run.ttft_s < run.duration_s
            assert run.duration_s >= run.tpot_s * (min(outputs for _, outputs in one.load.sizes) - 1) * waves / 3


def test_some_teach_and_the_others_are_predicted(series, seen, own):
    document, learnt = live_lessons.lessons_document(live_lessons.served_loads(series, seen), SHOWN, own)
    document = json.loads(json.dumps(document, allow_nan=False))
    assert (len(document["shown"]), len(document["foreseen"])) == (SHOWN, len(series.loads) - SHOWN)
    assert not {run["load"] for run in document["foreseen"]} & set(document["shown"])
    assert {lesson.label for lesson in learnt.lessons} <= set(document["shown"]), "nothing of the others went in"
    assert {lesson.repeats for lesson in learnt.lessons} == {series.rounds}
    for run in document["foreseen"]:
        for metric in foresight.METRICS:
            one = run[metric]
            assert one["low_ms"] < one["after_ms"] < one["high_ms"]
            assert one["covered"] == (one["low_ms"] <= one["measured_ms"] <= one["high_ms"])
            assert one["error_after"] == pytest.approx(one["after_ms"] / one["measured_ms"] - 1)


def test_calibrate_reads_the_results_and_learns_the_same(series, seen, own, tmp_path):
    base, file = tmp_path / "base.toml", tmp_path / "three.jsonl"
    wire = Path("all-reduce", "ring", 1e9, name="shm")
    own = replace(own, tables={"small.bf16": {"t0": 1e-6, "eb": 0.5}}, libraries={"shm": (wire,)})
    document, learnt = live_lessons.lessons_document(live_lessons.served_loads(series, seen), SHOWN, own)
    write_profile(base, own)
    file.write_text("".join(json.dumps(row) + "\n" for row in document["results"][: SHOWN * series.rounds]))
    fitted = calibrate([file], series.job.plan(series.job.arch()).cluster, profile=base).profile
    assert len(fitted.lessons) == len(learnt.lessons) > 0
    for one, other in zip(fitted.lessons, learnt.lessons, strict=True):
        assert (one.deployment, one.metric, one.clients) == (other.deployment, other.metric, other.clients)
        assert one.measured_s == pytest.approx(other.measured_s, rel=1e-4)
        assert one.residual == pytest.approx(other.residual, abs=1e-3)
    assert (fitted.tables, list(fitted.libraries)) == (own.tables, list(own.libraries))
    assert fitted.chip["memory_Bps"] == pytest.approx(own.chip["memory_Bps"], rel=1e-4), "what was known stays"


def test_the_command_line_end_to_end(folder, own, tmp_path):
    base, out, output = tmp_path / "base.toml", tmp_path / "learnt.toml", tmp_path / "nine.jsonl"
    write_profile(base, own)
    words = ("--random", folder, "--device", "cpu", "--max-num-seqs", 2, "--input-len", 8, "--output-len", 8)
    done = run_here("measure", "serve", *words, "--calibrate", 2, "--profile", base, "--out", out, "--output", output, "--json")
    assert done.returncode == 0, done.stderr
    document, lines = json.loads(done.stdout), output.read_text().splitlines()
    assert len(lines) == len(document["results"])
    assert len(lines) % (2 + len(document["foreseen"])) == 0, "as many rounds of each load"
    assert overlay.load(out).lessons
    again = run_here("calibrate", output, "--cluster", "2xcpu", "--profile", base, "--out", tmp_path / "again.toml")
    assert again.returncode == 0, again.stderr


@each(("words", "named"), DATA["bad_words_are_refused_by_name"])
def test_bad_words_are_refused_by_name(words, named):
    done = run_here("measure", "serve", *words)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_laid_out_weights_cost_nothing_and_all_loads_cannot_be_shown(own):
    packed = replace(own, tables={"gemm.fp32": {"t0": 1e-6, "pack4": 0.8, "pack8": 1.6}, "small.bf16": {"t0": 2e-6}})
    once = live_lessons.lay_out_once(packed).tables
    assert once == {"gemm.fp32": {"t0": 1e-6, "pack4": 0.0, "pack8": 0.0}, "small.bf16": {"t0": 2e-6}}


def test_all_loads_cannot_be_shown():
    with pytest.raises(Refusal, match="calibrate"):
        live_lessons.check_shown(9, 9)


def test_a_study_with_enough_single_requests_teaches(series, own, tmp_path):
    """Three runs of one request at a time are shown; batches and rates are no such loads."""
    base = tmp_path / "base.toml"
    write_profile(base, own)
    prices = Prices(series.job.arch().model, "2xcpu", "builtin", "fp32", True, str(base), "shm")
    single = [StudyRun("latency", tp, 1, inputs, 8, 3) for tp in (1, 2) for inputs in (8, 24)]
    record = {"decode_s": [2e-3] * 3, "prefill_s": [4e-3] * 3, "latency_s": [18e-3] * 3}
    others = [StudyRun("batch", 1, 4, 8, 8, 3), StudyRun("serve", 1, 0, 8, 8, 3, 4.0)]
    found = foresight.study_lessons([(run, record) for run in (*others, *single)], prices)
    assert (len(found["shown"]), [run["load"] for run in found["foreseen"]]) == (foresight.SHOWN, ["TP 2, 24/8"])
    assert foresight.study_lessons([(run, record) for run in (*others, *single[:3])], prices) is None
    assert foresight.study_lessons([(run, record) for run in single], replace(prices, profile="")) is None
