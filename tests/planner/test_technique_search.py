"""A search with techniques: what it leaves out changes no answer, and what it turns on it can answer for."""

import contextlib
import dataclasses

import numpy as np
import pytest

import commtax
from commtax.catalog.techniques import changes_of, technique
from commtax.cost.compute import laid_out
from commtax.planner import serving_search
from commtax.planner.columns import objective_value
from commtax.planner.exchanges import exchanges
from commtax.planner.serving_search import grounded, having_room, search, search_beside
from commtax.planner.space import Roomy, space
from commtax.records import replace
from commtax.spec import Plan
from commtax.verbs.settling import resolve_question, settle

V3 = {"engine": "vllm", "tpot_s": "50ms", "techniques": "auto"}


@pytest.fixture(scope="module")
def v3():
    return commtax.plan("deepseek-v3", "8xh200-sxm", **V3)


def roomy(q, by):
    base, plans, _, _ = having_room(q, 0, exchanges(q)[by])
    return Roomy(base, plans, 0, by)


def best_each(of, points):
    keys = [tuple(int(getattr(points, axis)[i]) for axis in ("tp", "pp", "dp", "ep")) for i in range(len(points))]
    found = {}
    for key, value in zip(keys, objective_value(of.question, points).tolist(), strict=True):
        found[key] = max(value, found.get(key, 0.0))
    return found


def test_loads_that_are_left_out_beat_nothing():
    """A set of techniques is priced at few loads: all that beats what its plan reaches without is found, to the digit."""
    put = resolve_question("llama-3.1-8b", "4xh100-sxm", {"engine": "vllm"})
    q = grounded(put.but(technique_sets=("eagle3=3",), disaggregated=False, max_concurrency=512))
    plain, drafted = roomy(q, 0), roomy(q, 1)
    known, counted = search(plain), np.array([1.0, 0.9])
    found = best_each(drafted, serving_search.ServingColumns.joined(list(search_beside([drafted], known, counted))))
    rows = np.repeat(np.arange(len(drafted.plans)), drafted.most_clients)
    loads = np.concatenate([np.arange(1, most + 1) for most in drafted.most_clients.tolist()])
    every, bar = best_each(drafted, drafted.at(rows, loads)), best_each(plain, known)
    beaten = {key: value for key, value in every.items() if 0.9 * value > bar.get(key, 0.0)}
    assert beaten
    assert {key: found[key] for key in beaten} == beaten


@pytest.mark.parametrize(("model", "dcp"), [("deepseek-v3", 4), ("qwen3-235b", 2)])
def test_caches_are_split_in_every_layout_that_can(model, dcp):
    put = resolve_question(model, "8xh200-sxm", {"engine": "vllm", "dcp": dcp})
    q, able = grounded(put), set()
    for tp in (1, 2, 4, 8):
        with contextlib.suppress(ValueError):
            able.add(settle(put.but(tp=tp)).plan.tp)
    way = next(by for by, one in enumerate(exchanges(q)) if one.dcp == dcp)
    assert {*space(q.but(dcp=dcp), exchanges(q)[way]).tp.tolist()} == able != set()


def test_each_technique_that_is_turned_on_adds_to_the_plan_at_its_own_load():
    """And it has one range, whichever surface tells it: what worth doubts of drafts makes plan and simulate less sure, too."""
    asked = {"engine": "vllm", "max_concurrency": 8, "disaggregated": False}
    found = commtax.plan("llama-3.3-70b", "4xh100-sxm", techniques="auto", **asked)
    for point in found.places:
        on = found.turned_on(point.plans, point.recommended)
        clients, tp = int(point.plans.concurrency[point.recommended]), int(point.plans.tp[point.recommended])
        run = {"tp": tp, "concurrency": clients, "input_len": 1024, "output_len": 128}
        whole = commtax.simulate("llama-3.3-70b", "4xh100-sxm", technique=",".join(on), **run)
        for one in on:
            rest = {"technique": ",".join(other for other in on if other != one)} if on[1:] else {}
            assert whole.tokens_per_s > 1.01 * commtax.simulate("llama-3.3-70b", "4xh100-sxm", **rest, **run).tokens_per_s, on
        weighed = commtax.worth("llama-3.3-70b", "4xh100-sxm", tp=tp, concurrency=clients, context=1024, output_len=128)
        (row,) = (row for row in weighed.rows if row.single == on[0])
        low, high = found.range_of(point.plans, point.recommended, "tokens_per_s")
        assert 0.7 < np.log(high / low) / np.log(row.high / row.low) < 1.3


def test_experts_over_ranks_alike_are_laid_out_once():
    """Arrays of ranks, repeated and in any order, as each alone."""
    ranks = np.array([[8, 72, 8], [16, 72, 2]])
    busiest, squares = laid_out(256, ranks, 0.7, 32)
    alone = [laid_out(256, int(n), 0.7, 32) for n in ranks.ravel()]
    assert np.array_equal(busiest.ravel(), [a for a, _ in alone])
    assert np.array_equal(squares.ravel(), [b for _, b in alone])


def test_copies_of_records_are_the_standard_librarys():
    plan = Plan(tp=4, ep=8)
    assert replace(plan, tp=2, dcp=2) == dataclasses.replace(plan, tp=2, dcp=2)
    with pytest.raises(TypeError, match="width"):
        replace(plan, width=2)


def test_techniques_are_named_where_they_do_something():
    """Experts that are not spread have no load to lay out: EPLB is no part of such a plan, in words nor for the page."""
    v3 = commtax.plan("deepseek-v3", "8xh200-sxm", **V3 | {"techniques": "eplb+mtp=3"})
    rows = v3.plans
    whole, spread = (next(i for i in range(len(rows)) if rows.tp[i] == 8 and (rows.ep[i] == 8) == apart) for apart in (False, True))
    assert "eplb" not in v3.layout(rows, whole)
    assert "mtp=3" in v3.layout(rows, whole)
    assert "eplb, mtp=3" in v3.layout(rows, spread)
    assert v3.turned_on(rows, whole) == ("mtp=3",)


def test_a_plan_with_techniques_says_what_they_and_its_layout_bring(v3):
    told, whole = v3.why[-1], float(v3.plans.tokens_per_s[v3.recommended] / v3.plain.plans.tokens_per_s[v3.plain.recommended])
    assert told.startswith(f"{whole:.2f} x the best plan to run without techniques")
    assert ": measure your own" in told
    assert all(word in told for word in v3.exchange_of(v3.plans, v3.recommended).techniques.split(","))


def test_a_search_turns_on_nothing_that_changes_numbers(v3):
    """Quantised sums, dispatch in another format and fp8 caches are for users to ask for."""
    tried = [word for one in v3.exchanges if one.techniques for word in one.techniques.split(",")]
    assert tried
    assert not any(technique(word.partition("=")[0]).lossy for word in tried)
    assert technique("fp8-kv").lossy
    assert technique("quickreduce").lossy
    assert technique("dispatch").lossy


def test_drafts_need_more_than_what_their_acceptance_leaves_open():
    """TensorRT-LLM serves Llama-3.1-70B at its most tokens/s on full batches, where drafts gain less than their range."""
    drafted = commtax.plan("llama-3.1-70b", "8xh100-sxm", engine="trtllm", techniques="auto", disaggregated=False)
    stated = commtax.plan("llama-3.1-70b", "8xh100-sxm", engine="trtllm", techniques="eagle3=5:0.95", disaggregated=False)
    assert not drafted.exchange_of(drafted.plans, drafted.recommended).techniques
    assert stated.exchange_of(stated.plans, stated.recommended).techniques == "eagle3=5:0.95"
    assert changes_of("eagle3=5:0.95")["acceptance"] == 0.95


def test_however_drafts_are_asked_for_the_best_plan_with_them_is_one():
    """Set for all plans, as a set to try, or looked for: two pools were priced with the drafts of the first way alone."""
    asked = {"model": "deepseek-v3", "cluster": "2x8xh200-sxm", "tpot_s": 0.02, "ttft_s": 2.0}
    every = commtax.plan(**asked, technique="mtp=2")
    tried, found = (commtax.plan(**asked, techniques=words) for words in ("mtp=2", "auto"))
    assert tried.plans.tokens_per_s[0] == pytest.approx(float(every.plans.tokens_per_s[0]))
    assert found.plans.tokens_per_s[0] >= float(every.plans.tokens_per_s[0]) * (1 - 1e-9)


def test_caches_are_split_over_as_many_ranks_as_each_layout_gains_from():
    """The plan that leads has tp 2, whose caches two ranks can share; eight share those of TP 8, as ``worth`` advises there."""
    load = {"input_len": 126_000, "output_len": 2000}
    found = commtax.plan("deepseek-v3", "8xh200-sxm", **load, max_concurrency=16, techniques="auto")
    rows = found.plans
    whole = next(i for i in range(len(rows)) if (rows.tp[i], rows.pp[i], rows.ep[i]) == (8, 1, 1))
    weighed = commtax.worth("deepseek-v3", "8xh200-sxm", tp=8, concurrency=16, context=126_000, output_len=2000)
    split = next(row for row in weighed.here if row.technique.key == "dcp")
    assert found.turned_on(rows, whole) == (split.asked,) == ("dcp=8",)
    assert rows.tokens_per_s[whole] == pytest.approx(split.tokens_per_s, rel=0.01)


def test_techniques_of_a_layout_hang_on_no_other_kind_of_plans():
    """Plans of one pool have the best of their values, whether pools for prompts are searched beside them or not."""
    asked = {"model": "deepseek-v3.1", "cluster": "2x8xh200-sxm", "tpot_s": 0.02, "ttft_s": 2.0}
    every = commtax.plan(**asked, techniques="auto")
    alone, told = (commtax.plan(**asked, techniques=words, disaggregated=False) for words in ("auto", "mtp=1,mtp=2,mtp=3"))
    tables = [
        [
            (answer.layout(answer.plans, i), int(answer.plans.concurrency[i]))
            for i in np.flatnonzero(answer.plans.mode == 0)[:10].tolist()
        ]
        for answer in (every, alone, told)
    ]
    assert tables[0] == tables[1] == tables[2]
