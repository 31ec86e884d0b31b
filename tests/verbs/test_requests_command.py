"""``commtax simulate`` of requests in time and ``commtax.serve``: what is said, what is refused, and what others can read of it."""

import json
import re
from contextlib import suppress
from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax.question import PARTS
from commtax.report.requests import outcome_document
from commtax.runs.results import bench
from commtax.sim import arrivals
from commtax.sim.serving import figures
from commtax.sim.streams import draw_lengths
from commtax.spelling import normalise
from commtax.statement import Refusal
from commtax.units import format_seconds
from commtax.verbs.closed_loop import price_closed_loop as closed_loop
from commtax.verbs.examining import Slo, first_tokens, gaps, points, question_at, slo_of, sweep, timeline_of, usage_of
from commtax.verbs.loads import _lengths, split
from commtax.verbs.requests import requests_question, run_requests
from commtax.verbs.settling import settle
from each import each
from tables import tables

DATA = tables(__file__)
MODEL, PLACE = "llama-3.1-8b", "8xh100-sxm"
LENGTHS = {"input_len": 512, "output_len": 64}
WORDS = (MODEL, "--cluster", PLACE, "--input-len", "512", "--output-len", "64", "--num-prompts", "200")


def command(*words):
    return run_here("simulate", *WORDS, *words)


def served(**words):
    return commtax.serve(MODEL, PLACE, **{"request_rate": 10, "num_prompts": 200, **LENGTHS, **words})


@pytest.fixture(scope="module")
def document():
    return json.loads(command("--request-rate", "10", "--goodput", "ttft:300", "tpot:20", "--json").stdout)


def test_the_document_tells_times_with_ranges_and_its_audit_agrees(document, tmp_path):
    assert (document["schema"], document["source"]) == ("commtax.serve/1", "predicted")
    assert [row["metric"] for row in document["times"]] == ["ttft", "tpot", "itl", "e2e", "queue"]
    for row in document["times"]:
        assert row["p50_s"] <= row["p90_s"] <= row["p95_s"] <= row["p99_s"]
        for which in ("mean", "p50", "p99"):
            assert row[f"{which}_low_s"] <= row[f"{which}_s"] <= row[f"{which}_high_s"]
    assert document["utilisation"] == pytest.approx(10 / document["capacity_requests_per_s"])
    assert (document["slo"]["share"], document["request_goodput"]) == (1, pytest.approx(document["request_throughput"]))
    assert not document["overloaded"]
    (read,) = bench.parse(json.dumps(document))
    assert (read.tool, read.kind, read.model, read.requests, read.request_rate) == ("vllm", "serve", MODEL, 200, 10)
    times = {row["metric"]: row for row in document["times"]}
    for metric, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        assert read.seconds(theirs, "mean") == pytest.approx(times[metric]["mean_s"])
        assert read.seconds(theirs, "median") == pytest.approx(times[metric]["p50_s"])
        assert read.seconds(theirs, "p99") == pytest.approx(times[metric]["p99_s"])
    assert read.output_tokens_per_s * read.duration_s == pytest.approx(read.output_tokens)
    (tmp_path / "predicted.json").write_text(json.dumps(document))
    done = run_here("audit", tmp_path / "predicted.json", "-m", MODEL, "-c", PLACE, "-tp", "1")
    assert done.returncode == 0, done.stdout
    assert "0 disagree" in done.stdout
    untold = run_here("audit", tmp_path / "predicted.json", "-m", MODEL, "-c", PLACE)
    assert untold.returncode == 3
    assert "tp 1 is assumed" in untold.stdout, "no seconds are judged by a plan that nobody told"


def test_nothing_queues_in_an_idle_server_and_one_token_has_no_gap():
    """The time that an engine takes for any request is told apart, however long it is."""
    idle = commtax.serve("gpt-oss-20b", PLACE, engine="sglang", request_rate=0.1, num_prompts=20)
    fixed = idle.question.engine.host.request_s
    assert idle.statistic("queue_p50") < 1e-3 < 0.1 < fixed < idle.statistic("ttft_p50")
    (told,) = [note for note in outcome_document(idle, Slo())["notes"] if "fixed time per request" in note]
    assert f"{format_seconds(fixed)} of each TTFT, is fitted on published runs" in told
    assert "an idle server may take less" in told
    done = run_here("simulate", MODEL, "-c", PLACE, "--output-len", "1", "--num-prompts", "20", "--request-rate", "5", "--json")
    document = json.loads(done.stdout)
    assert document["mean_tpot_ms"] is None
    assert document["p99_itl_ms"] is None
    told = run_here("simulate", MODEL, "-c", PLACE, "--output-len", "1", "--request-rate", "5").stdout
    assert " 1 out;" in told
    assert re.search(r"TPOT +–", told)


@settings(max_examples=15)
@given(mean=st.integers(1, 300), spread=st.floats(0, 1))
def test_lengths_have_the_mean_that_was_asked_for(mean, spread):
    lengths = _lengths(mean, spread)
    assert lengths.kind == "constant" or (lengths.low + lengths.high) / 2 == mean
    assert mean > 1 or np.all(draw_lengths(lengths, 50, np.random.default_rng(0)) == 1)


@pytest.mark.parametrize(("words", "code", "first"), DATA["what_is_wrong_is_said_first_and_is_the_exit_code"])
def test_what_is_wrong_is_said_first_and_is_the_exit_code(words, code, first):
    done = command(*words)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(first)


@each(("words", "names"), DATA["each_option_is_refused_in_one_line"])
def test_each_option_is_refused_in_one_line(words, names):
    assert names in refusal(command(*words))


@each(
    ("words", "names"),
    [
        *DATA["python_refuses_alike"],
        ({"request_rate": 1, "tp": [1, 2]}, "tp: requests are simulated for one plan"),
        ({"request_rate": 1, "input_len": [1, 2]}, "input_len: one number"),
        ({"request_rate": 1, "num_prompts": 10**7}, "num_prompts=10000000"),
    ],
)
def test_python_refuses_alike(words, names):
    with pytest.raises(Refusal, match=re.escape(names)):
        commtax.serve(MODEL, PLACE, **words)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(("request_rate", "burstiness", "duration", "prefix_cache", "warmup", "ramp_up")), st.floats())
def test_a_number_is_kept_to_its_bounds_or_refused(name, value):
    with suppress(Refusal):
        _, offered = split({"request_rate": 1.0, name: value} if name != "ramp_up" else {name: value})
        field = {"duration": "duration_s", "prefix_cache": "prefix_hit_rate", "ramp_up": "ramp_up_s"}.get(name, name)
        kept = getattr(offered, field)
        assert kept == value
        assert 0 <= kept <= (1 if name == "prefix_cache" else inf)


def test_the_closed_form_stays_what_it_was_and_seeds_are_bytes():
    words = ("simulate", MODEL, "--cluster", PLACE, "--concurrency", "32")
    assert json.loads(run_here(*words, "--json").stdout)["schema"] == "commtax.simulate/1"
    for more in (("--seed", "1"), ("--burstiness", "2"), ("--goodput", "ttft:3"), ("--timeline", "x.json"), ("--router", "prefix")):
        assert "belongs to requests in time" in refusal(run_here(*words, *more))
    assert "add --num-prompts" in run_here(*words, "--input-len", "sharegpt").stderr
    words = ("--request-rate", "10", "--json")
    assert command(*words).stdout == command(*words, "--seed", "0").stdout
    assert command(*words).stdout != command(*words, "--seed", "1").stdout


def test_limits_as_vllm_spells_them_and_parts_share_no_names():
    assert normalise(["--goodput", "ttft:300", "tpot:20", "--json"]) == ["--goodput", "ttft:300", "--goodput", "tpot:20", "--json"]
    o = served(request_rate=40)
    slo = slo_of(["ttft:60", "tpot:14", "e2el:900"])
    c = o.columns
    kept = (c["ttft_s"] <= 0.06) & ~(c["tpot_s"] > 0.014) & (c["e2e_s"] <= 0.9)
    assert 0 < slo.share(o) < 1
    assert (slo.share(o), slo.goodput(o)) == (kept.mean(), pytest.approx(kept.mean() * o.requests_per_s))
    assert Slo().kept(o)
    # ``but`` gives a field to the one part that has it.
    names = [name for part in PARTS.values() for name in part]
    assert len(names) == len(set(names))


def test_saved_runs_give_the_same_and_files_of_one_run(tmp_path):
    for words in ({}, {"unique_prompts": 20, "shared_prefix": 64}):
        o = served(**words)
        arrivals.write(o.as_sent, tmp_path / "run.csv.gz", o.results, "save")
        again = commtax.serve(MODEL, PLACE, trace=tmp_path / "run.csv.gz")
        assert np.array_equal(again.columns["ttft_s"], o.columns["ttft_s"])
    saved = command("--request-rate", "10", "--save", tmp_path / "saved.csv")
    assert (saved.returncode, (tmp_path / "saved.csv").read_text().count("\n")) == (0, 201)
    assert len(commtax.serve(MODEL, PLACE, trace=tmp_path / "saved.csv", num_prompts=50).stream) == 50
    done = command("--request-rate", "10", "--plot", tmp_path / "one.svg", "--timeline", tmp_path / "one.json")
    assert done.returncode == 0
    assert (tmp_path / "one.svg").stat().st_size > 1000
    assert len(json.loads((tmp_path / "one.json").read_text())["traceEvents"]) > 100


def test_a_sweep_finds_the_knee_between_points_that_grow_by_half_an_octave(tmp_path):
    done = command("--sweep", "request-rate=5,20,40,400", "--goodput", "ttft:200", "--json", "--plot", tmp_path / "sweep.svg")
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema"]) == (0, "commtax.serve-sweep/1")
    rates = [run["request_rate"] for run in found["runs"]]
    assert rates == sorted(rates)
    assert rates[0] < found["knee"] < found["capacity_requests_per_s"] < rates[-1]
    assert [run["overloaded"] for run in found["runs"]] == [rate >= found["capacity_requests_per_s"] for rate in rates]
    assert bench.parse(json.dumps(found["runs"]))[0].request_rate == 5
    assert (tmp_path / "sweep.svg").stat().st_size > 1000
    assert "the knee" in command("--sweep", "request-rate=10,20,40").stdout
    assert points("request_rate=2:5") == ("request_rate", (2.0, 2.8, 4.0, 5.0))
    assert points("concurrency=1:10") == ("concurrency", (1.0, 2.0, 4.0, 8.0, 10.0))
    asked = requests_question(MODEL, PLACE, {"concurrency": 1, **LENGTHS})
    found = sweep("concurrency", (1, 4), [question_at(asked, "concurrency", clients, prompts_per_client=5) for clients in (1, 4)])
    assert [len(o.stream) for o in found.outcomes] == [5, 20]
    found = json.loads(command("--concurrency", "1,8", "--json").stdout)
    assert [run["max_concurrency"] for run in found["runs"]] == [1, 8]


@pytest.mark.parametrize("plan", [{}, {"pp": 2}, {"replicas": 2}, {"disaggregated": True}, {"engine": "sglang"}])
def test_a_timeline_is_in_order_and_lanes_do_one_thing_at_a_time(plan):
    o = served(request_rate=30, **plan)
    shown, left_out = timeline_of(o)
    events = json.loads(shown.to_chrome())["traceEvents"]
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert (timed, {event["ph"] for event in events}, left_out) == (sorted(timed), {"M", "X", "C"}, 0)
    for lane in range(len(shown.lanes)):
        own = np.flatnonzero(shown.lane == lane)
        assert np.all(shown.start_s[own][1:] >= shown.end_s[own][:-1] - 1e-9)
    few, left_out = timeline_of(o, 10)
    assert (len(few.lane), left_out) == (10, len(shown.lane) - 10)


@pytest.mark.parametrize(("words", "cause"), DATA["the_tail_is_put_down_to_what_makes_it"])
def test_the_tail_is_put_down_to_what_makes_it(words, cause):
    o = served(num_prompts=400, **words)
    tail = first_tokens(o)
    assert tail.cause == cause, tail
    assert sum(tail.more_s.values()) == pytest.approx(tail.p99_s - tail.median_s, rel=0.5)


def test_slow_gaps_are_steps_with_prompts_and_usage_is_accounted():
    ranks = commtax.serve("deepseek-v3", "2x8xh200-sxm", tp=8, dp=2, ep=16, request_rate=6, num_prompts=100)
    assert gaps(ranks).with_prompts + gaps(ranks).behind > 0.9
    assert gaps(served(request_rate=20)).with_prompts > 0.9
    assert gaps(served(request_rate=20, engine="sglang")).stalled > 0.9
    assert gaps(served(request_rate=20, disaggregated=True)).with_prompts == 0
    alone, wide = served(), served(tp=8)
    assert usage_of(alone).comm_share == 0
    assert 0.1 < usage_of(wide).comm_share < 0.9
    assert usage_of(served(prefix_cache=0.5)).hit_rate == pytest.approx(0.5, abs=0.01)
    assert usage_of(served(unique_prompts=1, spread=0)).hit_rate > 0.9
    log = alone.log
    assert usage_of(alone).mean_batch == pytest.approx(log["decodes"] @ figures.seconds(log) / figures.seconds(log).sum())


@pytest.mark.parametrize("plan", DATA["gaps_add_up_to_the_time_between_first_and_last_tokens"])
def test_gaps_add_up_to_the_time_between_first_and_last_tokens(plan):
    o = served(**{"request_rate": 3, **plan})
    times, counts = o.gaps
    c = o.columns
    assert times @ counts == pytest.approx((c["done_s"] - c["first_s"]).sum(), rel=1e-6)
    assert counts.sum() == (c["output_len"] - 1).sum()


def test_who_watches_may_stop_a_run_and_has_what_was_answered():
    def stopped(_):
        raise KeyboardInterrupt

    def stop_after(count):
        def watch(ran):
            def done(_, __):
                if ran.answered >= count:
                    raise KeyboardInterrupt

            ran.engines[0].on_done = done

        return watch

    asked = settle(requests_question(MODEL, PLACE, {"request_rate": 10, "num_prompts": 200, **LENGTHS}))
    o = run_requests(asked, stop_after(50))
    assert o.ran.stopped
    assert 50 <= len(o.stream) < 60
    assert o.notes[0].code == "interrupted"
    assert isfinite(o.statistic("ttft_p99"))
    with pytest.raises(KeyboardInterrupt):
        run_requests(asked, stopped)


def test_a_closed_loop_knows_what_is_cached_and_a_pasted_benchmark():
    server, load = "vllm serve meta-llama/Llama-3.1-8B -tp 2", "--random-input-len 512 --random-output-len 64 --num-prompts 100"
    bench_of = f"vllm bench serve --model meta-llama/Llama-3.1-8B {load} --max-concurrency 8"
    started = f"{server} & {bench_of} --request-rate 5 --burstiness 0.5"
    timed = json.loads(run_here("simulate", "-c", PLACE, "--from", started, "--json").stdout)
    assert (timed["request_rate"], timed["burstiness"], timed["num_prompts"], timed["max_concurrency"]) == (5, 0.5, 100, 8)
    closed = json.loads(run_here("simulate", "-c", PLACE, "--from", f"{server} & {bench_of} --request-rate inf", "--json").stdout)
    assert closed["schema"] == "commtax.simulate/1"
    # One client and equal lengths: every request is alone, and the two must agree.
    words = {"concurrency": 1, "spread": 0, **LENGTHS}
    timed, closed = commtax.serve(MODEL, PLACE, num_prompts=20, **words), commtax.simulate(MODEL, PLACE, **words)
    assert timed.statistic("tpot_mean") == pytest.approx(closed.tpot_s, rel=0.02)
    assert not timed.overloaded
    assert timed.offered_rate == inf
    # In closed form as in time: prompts that are found in the cache are not computed, but read.
    words = {"concurrency": 32, "input_len": 4096, "output_len": 128}
    loops = []
    for hit in (0.0, 0.5, 0.95):
        told = run_here("simulate", MODEL, "-c", PLACE, "--concurrency", "32", "--prefix-cache", str(hit))
        assert told.returncode == 0, told.stderr
        loops.append(closed_loop(settle(requests_question(MODEL, PLACE, {**words, "prefix_cache": hit}))))
        timed = commtax.serve(MODEL, PLACE, **words, num_prompts=1000, warmup=100, prefix_cache=hit)
        assert float(loops[-1].tpot_s) == pytest.approx(timed.statistic("tpot_mean"), rel=0.05)
    assert loops[0].ttft_s > loops[1].ttft_s > loops[2].ttft_s


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_requests_have_a_middle(count):
    done = run_here("simulate", MODEL, "-c", PLACE, "--num-prompts", str(count))
    assert done.returncode == 0, done.stderr
