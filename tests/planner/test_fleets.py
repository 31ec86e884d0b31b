"""How many GPUs for a rate: what is listed holds, its laws, its words and refusals, and a plain search agrees."""

import json
import multiprocessing
import random
import re
import subprocess
import sys
from dataclasses import replace
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brute_fleets
import commtax
from cli_run import refusal, run_here
from commtax.planner.columns import Rejected
from commtax.planner.fleet_search import burden
from commtax.planner.fleet_trials import (
    SURE,
    _capacity_of_kinds,
    _trial,
    capacity,
    longest_step,
    rate_of,
    run_fleet,
    too_slow,
    worst,
)
from commtax.planner.fleets import best_fleets, fleet_servers, plan_fleet
from commtax.planner.layouts import all_requests, candidates, first_pair, largest_size
from commtax.report.fleets import fleet_reasons, fleet_sentence, gpu_words
from commtax.report.planning import shorten_rejected
from commtax.report.view.state import on_page
from commtax.spec import Plan
from forked import run_forked
from paths import HELPERS
from planned import share_out
from tables import tables

DATA = tables(__file__)
SHORT = {"num_prompts": 150, "max_num_seqs": 16, "input_len": 512, "output_len": 32}
QUICK = {**SHORT, "disaggregated": False, "processes": 1}
SLO = {"p95_ttft": 0.5, "p99_itl": 0.05}
ASKED = ("plan", "llama-3.1-8b", "--cluster", "2xh100-sxm", "--request-rate", "20", "--p95-ttft", "1s")
FAST = ("--num-prompts", "150", "--max-num-seqs", "16", "--input-len", "512", "--output-len", "32")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Nobody is asked for help that is not asked for in so many words; that helpers change nothing is a test of its own."""
    monkeypatch.setattr("commtax.planner.crew.cores", lambda: 1)


def rows(answer):
    return [(t.layout.question.plan, t.size, t.gpus, t.over, t.capacity, t.growth, t.figures, t.ranges) for t in answer.plans]


def test_chips_are_ranked_by_dollars_and_gpus_follow_from_one():
    """By hand: n copies that answer c each are the least for a rate between (n - 1) c and n c."""
    one = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=5, **QUICK).plans[0]
    alone = capacity(one.layout, (1, 0))
    for rate in (0.9 * alone, 1.1 * alone, 2.5 * alone):
        answer = plan_fleet("llama-3.1-8b", "3xh100-sxm", request_rate=rate, **QUICK)
        assert (answer.plans[0].size, answer.plans[0].gpus) == ((floor(rate / alone) + 1, 0), floor(rate / alone) + 1)
    asked = {"request_rate": 20, **QUICK}
    answer = commtax.plan_fleet("llama-3.1-8b", ["2xh100-sxm", "2xb200-sxm"], **asked)
    assert answer.objective == "cost"
    assert {t.layout.question.cluster.chip.key for t in answer.plans} == {"h100-sxm", "b200-sxm"}
    dollars = [t.gpus * t.layout.question.goal.usd_per_gpu_hour for t in answer.plans]
    assert dollars == sorted(dollars)
    dear = commtax.plan_fleet("llama-3.1-8b", ["2xh100-sxm", "2xb200-sxm"], usd_per_gpu_hour=[50, 1], **asked)
    assert dear.plans[0].layout.question.cluster.chip.key == "b200-sxm"


@pytest.mark.parametrize("model", ["qwen3.5-4b", "nemotron-nano-9b-v2"])
def test_requests_of_models_with_states_have_room_for_them(model):
    answer = plan_fleet(model, "1xh100-sxm", request_rate=1, **{**QUICK, "num_prompts": 100})
    assert answer.plans


def test_what_is_listed_holds_in_one_process_as_in_two():
    answer = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=50, slo=SLO, headroom=0.1, **QUICK)
    assert answer.plans
    for trial in answer.plans:
        q = trial.layout.question
        assert worst(q, run_fleet(trial.layout, trial.size, rate_of(q))) <= 1
        assert trial.capacity > rate_of(q)
        assert trial.growth < 0 or trial.growth >= 0.1 - 1e-9
        for low, high in trial.ranges.values():
            assert low <= high
    assert [burden(t) for t in answer.plans] == sorted(burden(t) for t in answer.plans)
    asked = {"request_rate": 40, "slo": SLO, **SHORT}
    alone, both = (plan_fleet("llama-3.1-8b", "2xh100-sxm", processes=n, **asked) for n in (1, 2))
    assert (rows(alone), alone.rejected) == (rows(both), both.rejected)


@settings(max_examples=2, deadline=None)
@given(rate=st.sampled_from((30.0, 90.0)), itl=st.sampled_from((0.03, 0.06)), looser=st.sampled_from((1.0, 2.0)))
def test_less_is_never_harder(rate, itl, looser):
    """A lower rate, a looser limit or more GPUs on offer never need more of them; 1 GPU is chance."""
    words = {"slo": {"p99_itl": itl}, **QUICK}
    hard = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=rate, **words).plans
    easy = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=rate / 2, **(words | {"slo": {"p99_itl": itl * looser}})).plans
    more = plan_fleet("llama-3.1-8b", "3xh100-sxm", request_rate=rate, **words).plans
    if hard:
        assert easy[0].gpus <= hard[0].gpus
        assert more[0].gpus <= hard[0].gpus


def test_a_plain_search_agrees():
    rng, agreed = random.Random(5), 0
    while agreed < 2:
        asked = brute_fleets.question(rng)
        small = asked["cluster"] in ("2xh100-sxm", "2xh200-sxm") and asked["num_prompts"] and asked["max_num_seqs"] == 16
        if not small or asked["output_len"] > 128:  # those take long
            continue
        assert brute_fleets.agree(plan_fleet(**asked, processes=1), brute_fleets.best(asked)), asked
        agreed += 1


@given(data=st.data())
@settings(max_examples=100)
def test_the_first_fleet_of_two_kinds_that_holds_is_the_first(data):
    """Whatever holds does with more workers of either kind: the search tries fewer and chooses alike."""
    least = data.draw(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), max_size=3))
    most = data.draw(st.integers(3, 14))
    every = [(n, p) for n in range(1, 7) for p in range(1, 7) if n + 2 * p <= most]
    able = sorted(every, key=lambda size: (size[0] + 2 * size[1], -size[0]))

    def holds(at):
        return any(n <= able[at][0] and p <= able[at][1] for n, p in least)

    plain = next((at for at in range(len(able)) if holds(at)), len(able) - 1)
    assert first_pair(able, [n + 2 * p for n, p in able], holds) == plain


def test_pools_that_a_closed_loop_finds_are_tried_at_a_rate():
    """Ranks of attention too, by each way to reach experts; the best holds well below what its closed loop answers."""
    limits = {"ttft": "2s", "tpot": "30ms"}
    loop = commtax.plan("deepseek-v3.1", "2x8xh200-sxm", **{f"{name}_s": limit for name, limit in limits.items()})
    assert loop.plans.mode[0] == 1
    rate = 0.6 * float(loop.plans.tokens_per_s[0]) / 128
    slo = {f"mean_{name}": limit for name, limit in limits.items()}
    found = plan_fleet("deepseek-v3.1", "2x8xh200-sxm", request_rate=rate, slo=slo, num_prompts=300, processes=1)
    layouts = [x for x in candidates(found.question, all_requests(found.question))[0] if x.ahead]
    tried = {(x.ahead.tp, x.ahead.dp, x.question.plan.tp, x.question.plan.dp, x.way) for x in layouts}
    rows = loop.plans.take(loop.plans.mode == 1)
    sizes = zip(rows.prefill_tp, rows.prefill_dp, rows.tp, rows.dp, [loop.exchanges[int(by)] for by in rows.exchange], strict=True)
    assert len(rows) > 2
    assert set(sizes) <= tried
    assert found.plans[0].gpus == loop.plans.gpus[0]


def test_what_the_closed_form_thinks_too_small_is_tried_and_kinds_answer_no_more_than_either(monkeypatch):
    short = {"num_prompts": 1000, "max_num_seqs": 16, "output_len": 32, "processes": 1}
    q = plan_fleet("llama-3.1-8b", "4xh100-sxm", request_rate=1, **short).question
    layout = next(x for x in candidates(q, all_requests(q))[0] if x.apart)
    decodes, prompts = _capacity_of_kinds(layout)
    for size in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1)):
        least = min(size[0] * decodes, size[1] * prompts)
        assert 0.8 * least < capacity(layout, size) <= SURE * least
    wanted = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=20, **QUICK)
    monkeypatch.setattr("commtax.planner.layouts.SLACK", 0.01)
    found = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=20, **QUICK)
    assert rows(found) == rows(wanted)
    assert found.plans[0].growth > 0
    assert not any("overloaded" in lost.reason for lost in found.rejected)


def test_what_the_closed_form_calls_too_slow_breaks_its_limit():
    """Pipelines and copies across hosts, each with as many as it may have."""
    asked = {"slo": {"mean_tpot": 0.03}, "disaggregated": False, "processes": 1}
    q = plan_fleet("llama-3.1-70b", "2x8xh100-sxm", request_rate=30, **asked).question
    slow = [x for x in candidates(q, all_requests(q))[0] if too_slow(x, (x.most, 0))]
    assert len(slow) > 5
    for layout in random.Random(0).sample(slow, 5):
        assert not _trial(layout, (layout.most, 0)).holds


def test_an_interrupt_leaves_the_best_and_what_is_forbidden_is_told_once():
    q = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=20, **QUICK).question

    def interrupt(done, total, best):
        if best:
            raise KeyboardInterrupt

    answer = best_fleets([q], processes=1, progress=interrupt)
    assert not answer.complete
    assert answer.plans[0].holds
    places = ["3xh100-sxm", "3xh200-sxm"]
    lost = plan_fleet("llama-3.1-8b", places, request_rate=5, **QUICK).rejected
    named = [r for r in lost if r.family.startswith("TP 3")]
    assert [r.family for r in named] == ["TP 3 on 3xh100-sxm and 3xh200-sxm"]
    degrees = [Rejected(f"TP {n} on a and b", f"no {n}", n, "no {tp}", where=" on a and b") for n in (3, 5)]
    assert [(r.family, r.reason) for r in shorten_rejected(degrees)] == [("TP 3, 5 on a and b", "no 3 or 5")]


@pytest.mark.parametrize(("words", "says"), [*DATA["refusals"], ({"usd_per_gpu_hour": [1, 2]}, "price: 2 prices for 1 cluster")])
def test_refusals(words, says, monkeypatch):
    monkeypatch.setattr("commtax.planner.crew.REACHED_S", 0.2)
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        plan_fleet("llama-3.1-8b", "2xh100-sxm", **{"request_rate": 10, "processes": 1, **words})


def test_without_its_extra_or_a_plan_an_obstacle_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match=r"on 'tcp://x:1': .*pip install 'commtax\[cluster\]'"):
        plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=10, on="tcp://x:1")
    done = run_here(*ASKED[:5], "9000", *FAST, "--no-disaggregated", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert not answer["plans"]
    assert "overloaded" in answer["near"][0]["obstacle"]
    assert any("requests/s" in text for text in answer["would_take"])
    done = run_here(*ASKED, *FAST, "--p99-ttft", "1us")
    assert done.returncode == 1
    assert "No plan meets the limits: they are below what a request takes with no load" in done.stdout
    done = run_here(*ASKED, *FAST, "--no-disaggregated", "--objective", "tokens", "--cluster", "2xh200-sxm")
    assert done.returncode == 0
    assert "Recommended and best: 1 GPU = TP 1 on " in done.stdout
    assert "the rate can grow by" in done.stdout
    assert "per GPU-hour (catalogue price of 2026-" in done.stdout


def test_the_document_of_a_rate():
    done = run_here(*ASKED, *FAST, "--p99-itl", "50ms", "--json", "--emit", "vllm")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["schema"], answer["complete"]) == (0, "commtax.plan-fleet/1", True)
    assert answer["limits_s"] == {"p99_itl_s": 0.05, "p95_ttft_s": 1}
    best = answer["plans"][0]
    assert best["gpus"] == 1
    assert best["p95_ttft_s"] <= 1
    assert best["ranges_s"]["p95_ttft_s"][0] <= best["p95_ttft_s"] <= best["ranges_s"]["p95_ttft_s"][1]
    assert best["usd_per_million_tokens"] == pytest.approx(best["usd_per_hour"] / 3600 / (20 * 32) * 1e6)
    full = best["usd_per_hour"] / 3600 / (best["full_requests_per_s"] * 32) * 1e6
    assert best["full_usd_per_million_tokens"] == pytest.approx(full)
    assert (best["usd_per_month"], answer["cost_of"]) == (pytest.approx(730 * best["usd_per_hour"]), "output")
    assert best["utilisation"] == pytest.approx(20 / best["capacity_requests_per_s"])
    assert answer["emit"]["launch"].startswith("vllm serve meta-llama/Llama-3.1-8B")
    assert "--request-rate 20" in answer["emit"]["benchmark"]


@pytest.mark.parametrize("share", [0.98, 1.0, 1.015])
def test_what_is_listed_is_at_least_as_likely_as_required_up_to_its_capacity(share):
    """Both are judged by one threshold: a fleet is overloaded from two per cent above its capacity on."""
    asked = {**QUICK, "slo": {"p95_ttft": 1000.0}}
    easy = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=5, **asked).plans[0]
    rate = round(share * easy.capacity / easy.stretch, 3)
    full = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=rate, **asked)
    assert full.plans
    assert all(trial.kept >= full.question.goal.confidence for trial in full.plans)


def test_where_no_fleet_holds_with_headroom_a_row_is_of_one_rate_and_what_it_would_take_was_tried():
    asked = {**QUICK, "slo": {"p95_ttft": 0.1}, "headroom": 0.2}
    answer = plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=60, **asked)
    near = answer.near[0]
    low, high = near.ranges["ttft_p95"]
    assert low <= near.figures["ttft_p95"] <= high
    assert near.money.used == pytest.approx(72 / near.capacity), "of the rate with the headroom"
    assert near.money.used > 1
    assert near.kept < 0.5
    more, lower = answer.would_take[:2]
    larger = plan_fleet("llama-3.1-8b", re.search(r"\((.*)\)", more)[1], request_rate=60, **asked)
    assert more.startswith(gpu_words(larger.plans[larger.recommended]).replace(" = ", ", "))
    rate = float(re.fullmatch(r"a rate of ([\d.]+) requests/s", lower)[1])
    assert plan_fleet("llama-3.1-8b", "2xh100-sxm", request_rate=rate, **asked).plans


def test_a_fleet_that_would_do_has_its_cost_per_year():
    found = plan_fleet("llama-3.1-70b", "8xh100-sxm", request_rate=10)
    line = [line for line in fleet_reasons(found) if "would do" in line][-1]
    assert f"would do for ${found.plans[0].money.usd_per_year:,.0f} per year, at" in line


@pytest.mark.parametrize("seed", range(6))
def test_more_headroom_or_confidence_is_never_cheaper_and_changes_no_capacity_and_no_growth(seed):
    """Also that none is called safer only where a search with more confidence recommends none with more GPUs."""
    rng = random.Random(seed)
    model, place = rng.choice([("llama-3.1-70b", "8xh100-sxm"), ("llama-3.1-70b", "6xh100-sxm"), ("llama-3.1-8b", "4xl40s")])
    rate = rng.uniform(*{"8xh100-sxm": (5, 14), "6xh100-sxm": (5, 12), "4xl40s": (3, 12)}[place])
    asked = {"disaggregated": False, "margin": 0, "workload": rng.choice(["batch", ""]), "input_len": 1024, "output_len": 128}
    asked |= {"slo": rng.choice([{}, {"p95_ttft": 3.0}]), "num_prompts": 400, "processes": 1}
    given = [{}, {"headroom": 0.1}, {"headroom": 0.2}, {"confidence": 0.8}, {"confidence": 0.95}]
    plain, *safer = (plan_fleet(model, place, request_rate=rate, **asked, **more) for more in given)
    if not plain.plans:
        assert not any(one.plans for one in safer)
        return
    own = plain.plans[plain.recommended]
    called = "no larger fleet on this cluster is safer" in " ".join(fleet_reasons(plain))
    for one in safer:
        chosen = one.plans[one.recommended] if one.plans else None
        assert chosen is None or chosen.gpus >= own.gpus or (own.clear, not own.late) < (chosen.clear, not chosen.late)
        assert not (called and chosen and chosen.gpus > own.gpus)
        for trial in one.plans:
            for same in plain.plans:
                if (same.layout, same.size) == (replace(trial.layout, question=same.layout.question), trial.size):
                    assert same.capacity == pytest.approx(trial.capacity, nan_ok=True)
    for one in safer[:2]:
        trial = one.plans[one.recommended] if one.plans else own
        if trial.layout.question.plan == own.layout.question.plan and trial.size == own.size:
            assert trial.growth == pytest.approx(own.growth)


def test_fleets_whose_tokens_come_too_slowly_lead_nobody_who_waits():
    asked = {"request_rate": 10, "input_len": 1024, "output_len": 128}
    found = plan_fleet("llama-3.1-70b", "8xh100-sxm", **asked)
    own, slow = found.plans[found.recommended], [trial for trial in found.plans if trial.figures["tpot_mean"] > 0.2]
    assert (own.gpus, min(trial.gpus for trial in slow if trial.clear)) == (8, 6)
    assert any("but its tokens take longer than the 200 ms each" in line for line in fleet_reasons(found))
    batch = plan_fleet("llama-3.1-70b", "8xh100-sxm", workload="batch", **asked)
    assert batch.plans[batch.recommended].gpus == 6


def test_where_no_plan_holds_the_nearest_is_that_which_answers_most():
    """Pools too, each by its best fleet; the others follow in that order, and what it would take holds."""
    asked, rate = {**SHORT, "processes": 1, "output_len": 256, "slo": {"p95_ttft": 5.0}}, 40
    found = plan_fleet("llama-3.1-8b", "4xh100-sxm", request_rate=rate, **asked)
    layouts = candidates(found.question, all_requests(found.question))[0]
    most = max(capacity(layout, largest_size(layout, 4)) for layout in layouts)
    assert not found.plans
    assert found.near[0].capacity == pytest.approx(most, rel=0.03)
    assert [t.capacity for t in found.near] == sorted((t.capacity for t in found.near), reverse=True)
    lower = float(re.fullmatch(r"a rate of ([\d.]+) requests/s", found.would_take[1])[1])
    assert lower < found.near[0].capacity
    assert plan_fleet("llama-3.1-8b", "4xh100-sxm", request_rate=lower, **asked).plans
    more = plan_fleet("llama-3.1-8b", "8xh100-sxm", request_rate=rate, **asked)
    assert found.would_take[0].startswith(f"{more.plans[more.recommended].gpus} GPUs, ")


@pytest.mark.parametrize("slo", [{}, {"p95_ttft": 1.0}])
def test_a_confidence_that_would_do_is_tried_and_none_is_named_beyond_the_capacity(slo):
    """Between what is answered surely and what is answered at even chances, a lower confidence holds; overloaded, none is named."""
    one = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=5, slo=slo, **QUICK).plans[0]
    alone = capacity(one.layout, (1, 0))
    near = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=alone / 1.01, slo=slo, **QUICK)
    (named,) = re.findall(r"a confidence of (\d+)% \(--confidence \1%\)", " ".join(near.would_take))
    assert 50 <= int(named) < 65
    asked = {"request_rate": alone / 1.01, "slo": slo, "confidence": f"{named}%"}
    found = plan_fleet("llama-3.1-8b", "1xh100-sxm", **asked, **QUICK).plans
    assert found
    assert found[0].kept is None or int(named) / 100 <= found[0].kept < 0.65
    beyond = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=alone * 1.03, slo=slo, **QUICK)
    assert beyond.would_take
    assert "confidence" not in " ".join(beyond.would_take)


@pytest.mark.parametrize("slo", [{}, {"p95_ttft": 1.0}])
def test_a_recommended_fleet_stays_clear_of_its_limits_by_the_error_of_predictions(slo):
    """Where the fewest GPUs are on the edge one more copy is recommended; where none has room, there is a warning."""
    one = plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=5, slo=slo, **QUICK).plans[0]
    alone = capacity(one.layout, (1, 0))
    for share, place in ((0.94, "1xh100-sxm"), (0.94, "2xh100-sxm"), (0.5, "2xh100-sxm")):
        found = plan_fleet("llama-3.1-8b", place, request_rate=share * alone, slo=slo, **QUICK)
        best, chosen, edge = found.plans[0], found.plans[found.recommended], share > 0.9
        room = place != "1xh100-sxm"
        assert (best.size, best.clear, chosen.size) == ((1, 0), not edge, (1 + (edge and room), 0))
        copies = [trial for trial in found.plans if trial.layout.question.plan.tp == 1 and trial.size == (2, 0)]
        assert bool(copies) is room, "the next is listed"
        longer = longest_step(chosen)
        kept = worst(chosen.layout.question, run_fleet(chosen.layout, chosen.size, share * alone, stretch=longer)) <= 1
        assert chosen.clear is (kept and chosen.capacity > share * alone * longer) is (room or not edge)
        said = " ".join(fleet_reasons(found))
        assert ("warning: close to " in said) is (edge and not room)
        assert (", at 94% of capacity; but steps " in said) is (edge and room)
        assert not any("--" in on_page(line) for line in fleet_reasons(found))
        pools = replace(chosen, layout=replace(chosen.layout, ahead=Plan()), size=(1, 1))
        ahead = replace(found, plans=(pools, *found.plans), recommended=found.recommended + 1)
        more = " ".join(fleet_reasons(ahead))
        assert (", at 94% of capacity; but steps " in more) is (edge and room), "whatever else is ahead"
        assert "inside one host are unchecked" in more
        assert ("best of what is checked" in fleet_sentence(ahead)) is not (edge and room)


@pytest.mark.parametrize(("words", "says"), DATA["options_go_together_or_are_refused"])
def test_options_go_together_or_are_refused(words, says):
    assert says in refusal(run_here("plan", "llama-3.1-8b", "--cluster", "2xh100-sxm", *words))


def test_a_cluster_that_loses_a_worker_says_the_same():
    """A real Dask cluster of two workers: the first that is given something is killed at once."""
    pytest.importorskip("distributed", reason="needs the extra: pip install 'commtax[cluster]'")
    helper = HELPERS / "dask_workers.py"
    with subprocess.Popen([sys.executable, helper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
        here = run_here(*ASKED, *FAST, "--json")
        address = cluster.stdout.readline().strip()
        there = run_forked("commtax", *ASKED, *FAST, "--json", "--on", address)
        assert cluster.stdout.readline().strip() == "killed"
        cluster.stdin.close()
    assert json.loads(here.stdout) == json.loads(there.stdout)


def test_a_process_without_children_works_alone_and_servers_take_the_longest_request():
    answers = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=share_out, args=(answers,), daemon=True)
    process.start()
    assert answers.get(timeout=60) == [(0, 1), (1, 2)]
    process.join()
    # None of 120 drawn requests has more than 1,536 tokens, and up to 1,560 were asked for: the others would be refused.
    load = {"request_rate": 8.0, "num_prompts": 120, "input_len": 1024, "output_len": 16}
    found = plan_fleet("gemma-3-27b", "4xh200-sxm", slo={"p95_ttft": 0.5, "p99_itl": 0.3}, processes=1, **load)
    assert fleet_servers(found.plans[found.recommended]).question.limits.max_model_len == 1792
