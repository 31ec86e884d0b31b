"""Dollars: closed loop and rate agree, idle GPUs are paid, prices that nobody knows are empty cells, clusters beside each other."""

import json
import re
from math import isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here, told_here
from commtax.planner.money import Money, per_million
from commtax.planner.several_clusters import leaders_of_ranking, same_plan
from commtax.report.several_clusters import reasons_between
from tables import tables

DATA = tables(__file__)
PRICES = st.floats(0.01, 100)
LENGTHS = st.sampled_from((32, 128, 512))
QUICK = {"num_prompts": 300, "disaggregated": False, "processes": 1}
SATURATED = 0.1
"""Between the closed loop's throughput with all seats taken and the simulated capacity of one copy of a dense model."""
TWO = ("plan", "llama-3.1-8b", "--cluster", "1xl40s", "--cluster", "1xh100-sxm")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr("commtax.planner.crew.cores", lambda: 1)


@settings(max_examples=5, deadline=None)
@given(price=PRICES, more=st.floats(1, 10), prompts=LENGTHS, outputs=LENGTHS)
def test_a_closed_loop_costs_its_gpus_over_its_tokens(price, more, prompts, outputs):
    """By hand; dearer GPUs are never cheaper, and a token of any kind costs less than one of the output."""
    asked = {"input_len": prompts, "output_len": outputs, "disaggregated": False}
    one = commtax.plan("llama-3.1-8b", "2xh100-sxm", usd_per_gpu_hour=price, **asked)
    rows, usd = one.plans, one.usd_per_million_tokens(one.plans)
    assert usd == pytest.approx(price * rows.gpus / 3600 / rows.tokens_per_s * 1e6)
    dear = commtax.plan("llama-3.1-8b", "2xh100-sxm", usd_per_gpu_hour=price * more, **asked)
    assert all(dear.usd_per_million_tokens(dear.plans) >= usd * (1 - 1e-12))
    total = commtax.plan("llama-3.1-8b", "2xh100-sxm", usd_per_gpu_hour=price, cost_of="total", **asked)
    assert total.usd_per_million_tokens(total.plans) * (prompts + outputs) / outputs == pytest.approx(usd)
    assert all(total.usd_per_million_tokens(total.plans) < usd)


@settings(max_examples=3, deadline=None)
@given(
    place=st.sampled_from(("1xh100-sxm", "2xh200-sxm", "1xl40s", "2xmi300x", "1xa100-80-sxm")),
    model=st.sampled_from(("llama-3.1-8b", "qwen3-14b")),
    seats=st.sampled_from((16, 64)),
    prompts=st.sampled_from((128, 512, 2048)),
    outputs=st.sampled_from((32, 128)),
)
def test_a_full_fleet_costs_what_a_saturated_closed_loop_does(place, model, seats, prompts, outputs):
    asked = {"input_len": prompts, "output_len": outputs, "max_num_seqs": seats}
    for trial in commtax.plan_fleet(model, place, request_rate=0.05, **asked, **QUICK).plans:
        m, plan = trial.money, trial.layout.question.plan
        loop = commtax.simulate(model, place, tp=int(plan.tp), pp=int(plan.pp), concurrency=seats, **asked)
        usd = per_million(m.usd_per_hour, trial.size[0] * float(loop.tokens_per_s))
        assert m.full_usd_per_million_tokens == pytest.approx(usd, rel=SATURATED)


@settings(max_examples=2, deadline=None)
@given(rate=st.sampled_from((1.0, 8.0, 30.0)), price=PRICES, more=st.floats(1, 10))
def test_a_fleet_that_idles_is_paid(rate, price, more):
    """As asked a token costs no less than in the full fleet, by the share that is used; no cost falls when the price rises."""
    asked = {"request_rate": rate, "input_len": 512, "output_len": 32, "max_num_seqs": 16, **QUICK}
    cheap, dear, total = (
        commtax.plan_fleet("llama-3.1-8b", "2xh100-sxm", usd_per_gpu_hour=usd, cost_of=of, **asked).plans[0].money
        for usd, of in ((price, "output"), (price * more, "output"), (price, "total"))
    )
    assert cheap.usd_per_million_tokens * cheap.used == pytest.approx(cheap.full_usd_per_million_tokens)
    assert cheap.usd_per_million_tokens == pytest.approx(per_million(price * cheap.gpus, rate * 32))
    for name in ("usd_per_hour", "usd_per_month", "usd_per_year", "usd_per_million_tokens", "full_usd_per_million_tokens"):
        assert getattr(dear, name) >= getattr(cheap, name) * (1 - 1e-12)
    assert total.usd_per_million_tokens * (512 + 32) / 32 == pytest.approx(cheap.usd_per_million_tokens)


def test_an_overloaded_fleet_is_paid_for_what_it_answers():
    answer = commtax.plan_fleet("llama-3.1-8b", "1xh100-sxm", request_rate=9000, **QUICK)
    assert not answer.plans
    for trial in answer.near:
        answered = trial.capacity * 128
        assert trial.money.tokens_per_s == pytest.approx(answered)
        assert trial.money.usd_per_million_tokens == pytest.approx(3.99 * trial.gpus / 3600 / answered * 1e6)


def test_limits_make_a_full_fleet_smaller_and_cost_a_month_and_a_year():
    asked = {"request_rate": 5, "output_len": 32, "max_num_seqs": 16, **QUICK}
    free, held = (commtax.plan_fleet("llama-3.1-8b", "1xh100-sxm", slo=slo, **asked).plans[0] for slo in ({}, {"p95_ttft": 0.2}))
    assert held.full_rate < free.full_rate == free.capacity
    assert held.money.full_usd_per_million_tokens > free.money.full_usd_per_million_tokens
    m = Money(4, 2.5, 100.0, nan)
    assert (m.usd_per_hour, m.usd_per_month, m.usd_per_year) == (10, 7300, 87600)
    assert m.full_usd_per_million_tokens is None
    unknown = Money(4, 0.0, 100.0, 200.0)
    assert {unknown.usd_per_hour, unknown.usd_per_year, unknown.usd_per_million_tokens} == {None}
    assert isnan(m.full_tokens_per_s)
    answer = commtax.plan_fleet("llama-3.1-8b", ["1xl20", "1xh100-sxm"], request_rate=1, objective="cost", **QUICK)
    assert [t.layout.question.cluster.chip.key for t in answer.plans] == ["h100-sxm", "l20"]
    assert (answer.objective, answer.unpriced) == ("cost", ("l20",))
    assert answer.plans[1].money.usd_per_hour is None
    alone = commtax.plan_fleet("llama-3.1-8b", "1xl20", request_rate=1, objective="cost", **QUICK)
    assert (alone.objective, alone.unpriced) == ("gpus", ("l20",))


@pytest.mark.parametrize("words", [(), ("--objective", "cost"), ("--request-rate", "1", "--objective", "cost")])
def test_no_price_is_no_refusal(words):
    for places in (("1xl20",), ("1xl20", "1xh100-sxm")):
        flags = [word for place in places for word in ("--cluster", place)]
        done = run_here("plan", "llama-3.1-8b", *flags, "--no-disaggregated", *words)
        assert done.returncode == 0
        assert "no price is known for l20: --price 2.5" in done.stdout
        assert "$0.00" not in done.stdout
    given_one = run_here("plan", "llama-3.1-8b", *flags, "--no-disaggregated", "--price", "2.5,", *words)
    assert "l20: $2.50 per GPU-hour (as given" in given_one.stdout
    assert "h100-sxm: $3.99 per GPU-hour (catalogue price of" in given_one.stdout


@settings(max_examples=4, deadline=None)
@given(
    objective=st.sampled_from(("", "cost", "throughput", "latency", "gpus")),
    prices=st.lists(st.sampled_from((0.0, 0.5, 1.0, 4.0)), min_size=2, max_size=2),
)
def test_several_clusters_are_ranked_as_each_is_alone(objective, prices):
    places, asked = ("2xh100-sxm", "2xl40s"), {"disaggregated": False}
    both = commtax.plan_several("llama-3.1-8b", places, objective=objective, usd_per_gpu_hour=prices, **asked)
    known = all(prices) if not objective else any(prices)
    assert both.objective == (objective or "cost" if known or objective not in ("", "cost") else "tokens")
    for place, price, answer in zip(places, prices, both.answers, strict=True):
        alone = commtax.plan("llama-3.1-8b", place, objective=objective or "cost", usd_per_gpu_hour=price, **asked)
        assert answer.plans.tokens_per_s.tolist() == alone.plans.tokens_per_s.tolist()
    assert len(both.plans) == sum(len(answer.plans) for answer in both.answers)
    if both.objective == "cost":
        usd = [one.money.usd_per_million_tokens for one in both.plans]
        paid = [x for x in usd if x is not None]
        assert usd == sorted(paid) + [None] * (len(usd) - len(paid))
    if both.objective == "throughput":
        rates = [float(one.answer.plans.tokens_per_s[one.row]) for one in both.plans]
        assert rates == sorted(rates, reverse=True)
    assert both.best is not None
    assert (both.best.answer, both.best.row) == (both.plans[0].answer, both.plans[0].row)


@given(places=st.lists(st.sampled_from("abc"), max_size=12), top=st.integers(1, 6))
def test_each_place_is_listed_with_its_best(places, top):
    ranking = list(range(len(places)))
    shown = leaders_of_ranking(ranking, places, top)
    assert (list(shown), len(shown)) == (sorted(shown), min(len(places), max(top, len(set(places)))))
    assert {places.index(place) for place in places} <= set(shown)


def test_several_clusters_are_marked_on_a_terminal_and_in_a_document():
    done = run_here(*TWO, "--no-disaggregated", "--tpot", "50ms")
    shown = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "llama-3.1-8b on 1xl40s (1 GPU) or 1xh100-sxm (1 GPU)" in done.stdout
    assert "fewest dollars per token" in done.stdout
    assert "per million output tokens" in done.stdout
    answer = json.loads(run_here(*TWO, "--no-disaggregated", "--json", "--cost-of", "total", "--emit", "vllm").stdout)
    assert (answer["schema"], answer["objective"], answer["cost_of"]) == ("commtax.plan-several/1", "cost", "total")
    assert (answer["best"], {row["cluster"] for row in answer["plans"]}) == (answer["plans"][0], {"1xl40s", "1xh100-sxm"})
    assert [x["cluster"] for x in answer["answers"]] == answer["clusters"] == ["1xl40s", "1xh100-sxm"]
    assert answer["emit"]["launch"].startswith("vllm serve meta-llama/Llama-3.1-8B")
    best = answer["best"]
    assert best["usd_per_year"] == pytest.approx(best["usd_per_hour"] * 8760)
    output = json.loads(run_here(*TWO, "--no-disaggregated", "--json").stdout)["best"]
    assert best["usd_per_million_tokens"] * 9 == pytest.approx(output["usd_per_million_tokens"])
    assert "1 ◆ " in shown
    assert re.search(r"\$[\d.]+ \([\d.]+ to [\d.]+\) per million output tokens", shown)
    done = run_here("plan", "llama-3.1-70b", "--cluster", "1xl4", "--cluster", "1xa40")
    assert done.returncode == 1
    assert "1xl4: no plan fits in memory" in done.stdout
    assert "1xa40: no plan fits in memory" in done.stdout


@settings(max_examples=6, deadline=None)
@given(objective=st.sampled_from(("cost", "throughput", "latency", "gpus")), ratio=st.sampled_from((0.2, 1.0, 3.4, 20.0)))
def test_ranges_of_several_clusters_say_what_is_close(objective, ratio):
    """The figure lies in its range and in the table, and what overlaps is called too close, nothing else."""
    places = ["2xl40s", "2xh100-sxm"]
    goal = {"objective": objective, "usd_per_gpu_hour": [1.0, ratio], "disaggregated": False, "margin": 0.5}
    found = commtax.plan_several("llama-3.1-8b", places, **goal)
    own, (other,) = found.recommended, found.beside
    assert all(sum(same_plan(one, row) for row in found.listed(1)) == 1 for one in (own, other))
    figures = [one.deciding(objective) for one in (own, other)]
    assert all(low <= figure <= high for figure, low, high in figures)
    better = 1 if objective == "throughput" else -1
    assert better * figures[0][0] >= better * figures[1][0]
    (_, low, high), (_, least, most) = figures
    said = " ".join(reasons_between(found))
    overlap = objective != "gpus" and low <= most and least <= high
    assert ("too close to call, measure both" in said) == overlap, said
    place = other.answer.question.cluster.key
    assert f"recommended on {place}" in said
    there = next(one for one in found.plans if one.answer is other.answer)
    assert ("the best there: " in said) == (not same_plan(there, other) and not same_plan(there, found.best))


@settings(max_examples=3, deadline=None)
@given(
    objective=st.sampled_from(("cost", "throughput")),
    confidence=st.sampled_from((0.5, 0.65, 0.9)),
    places=st.sampled_from((("1xl40s", "1xh100-sxm"), ("2xa100-80-sxm", "1xh200-sxm"))),
)
def test_where_users_wait_clusters_are_compared_at_one_speed(objective, confidence, places):
    """Without limits: at times that the balanced plan of each cluster keeps, as a search with these limits answers."""
    asked = {"objective": objective, "confidence": confidence, "disaggregated": False}
    found = commtax.plan_several("llama-3.1-8b", places, **asked)
    goals = {(answer.question.goal.ttft_s, answer.question.goal.tpot_s) for answer in found.waited.answers}
    ((ttft_s, tpot_s),) = goals
    for open_ended, limited in zip(found.answers, found.waited.answers, strict=True):
        usual, own = open_ended.usual.plans, open_ended.usual.recommended
        assert (usual.ttft_s[own] <= ttft_s, usual.tpot_s[own] <= tpot_s) == (True, True)
        assert (limited.plans.sure_ttft_s <= ttft_s).all()
        assert (limited.plans.sure_tpot_s <= tpot_s).all()
        assert limited.plans.tokens_per_s[0] >= usual.tokens_per_s[own]
    typed = commtax.plan_several("llama-3.1-8b", places, ttft_s=ttft_s, tpot_s=tpot_s, **asked)
    assert typed.waited is None
    assert [one.deciding(objective) for one in typed.plans] == [one.deciding(objective) for one in found.waited.plans]


def test_slow_gpus_are_not_recommended_and_one_cluster_is_for_plan():
    """An L40S at its balanced point costs less per token than an H100 at its own, which is three times as fast; at the speed
    of the L40S the H100 serves so many more clients that it is cheaper."""
    found = commtax.plan_several("llama-3.1-8b", ["1xl40s", "1xh100-sxm"], usd_per_gpu_hour=[1.09, 3.99], objective="cost")
    points = [answer.usual for answer in found.answers]
    usd = [float(a.usd_per_million_tokens(p.plans)[p.recommended]) for a, p in zip(found.answers, points, strict=True)]
    slow, fast = (float(p.plans.tpot_s[p.recommended]) for p in points)
    assert usd[0] < usd[1]
    assert slow > 3 * fast
    own, (other,) = found.waited.recommended, found.waited.beside
    assert [one.answer.question.cluster.key for one in (own, other)] == ["1xh100-sxm", "1xl40s"]
    rate = float(own.answer.plans.tokens_per_s[own.row])
    assert own.money.usd_per_million_tokens == pytest.approx(3.99 / (rate * 3600) * 1e6)
    done = told_here(*TWO, "--objective", "cost")
    first, _, then = " ".join(done.stdout.split()).partition("When nobody waits: ")
    assert "When users wait: 1 GPU = TP 1 on 1xh100-sxm;" in first
    assert then.startswith("1 GPU = TP 1 on 1xl40s;")
    waited = json.loads(done.document)["when_users_wait"]
    assert (waited["recommended"]["cluster"], [row["cluster"] for row in waited["beside"]]) == ("1xh100-sxm", ["1xl40s"])
    with pytest.raises(ValueError, match="cluster: plans are searched on one"):
        commtax.plan("llama-3.1-8b", ["1xl40s", "1xh100-sxm"])
    for clusters in ("1xh100-sxm", []):
        with pytest.raises(ValueError, match="clusters: name several"):
            commtax.plan_several("llama-3.1-8b", clusters)


@pytest.mark.parametrize(("words", "says"), DATA["what_several_clusters_refuse"])
def test_what_several_clusters_refuse(words, says):
    assert says in refusal(run_here(*TWO, *words))
