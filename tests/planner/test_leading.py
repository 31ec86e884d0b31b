"""Which plans may lead: unchecked kinds, first tokens that come too late and idle GPUs rank behind, and it is said."""

import math
from dataclasses import replace

import numpy as np
import pytest

from commtax.judgement.leading import bearable_ttft_s, latest_first_token_s, standing, training_leads
from commtax.judgement.margins import is_close, ranges_overlap, ratio_error
from commtax.planner import plan, plan_training
from commtax.planner.reasons import against_words
from commtax.planner.several_clusters import plan_several
from commtax.units import format_seconds
from commtax.verbs.settling import resolve_question
from each import each

HOST, UNCHECKED = "8xmi300x", "predictions of two pools inside one host are unchecked: measure it before you rely on it"


def asked(**options):
    return resolve_question("llama-3.1-8b", "8xh100-sxm", {}).but(tpot_s=0.03, **options)


def test_first_tokens_are_borne_longer_for_longer_prompts():
    assert bearable_ttft_s(asked(input_len=1000)) == pytest.approx(3.1)
    assert bearable_ttft_s(asked(input_len=100_000)) == pytest.approx(62.5)
    assert bearable_ttft_s(asked(workload="batch")) == bearable_ttft_s(asked(ttft_s=9.0)) == math.inf
    assert latest_first_token_s(asked().but(tpot_s=math.inf)) == math.inf, "ranked for those who do not wait"


def test_what_stands_for_a_plan():
    pools, ttft = np.array([0, 0, 1, 1]), np.array([1.0, 6.0, 1.0, 6.0])
    assert standing(asked(), pools, ttft, 5.0).tolist() == [3, 2, 1, 0]
    assert standing(asked(margin=0.1), pools, ttft, math.inf).tolist() == [3, 3, 3, 3], "whoever asks for a margin trusts pools"
    across = resolve_question("llama-3.1-8b", "2x8xh100-sxm", {})
    assert standing(across, 1, 1.0, 5.0) == 3, "pools over several hosts were checked"


def test_training_plans_that_leave_gpus_idle_have_to_be_surely_faster():
    q = resolve_question("llama-3.1-8b", "2x8xh100-sxm", {}, "train")  # two plans err by 8.1%
    assert training_leads(q, np.array([16, 15, 15]), np.array([1.0, 0.95, 0.92])).tolist() == [True, False, True]
    assert is_close(q, 1.08)
    assert is_close(q, 1 / 1.08)
    assert not is_close(q, 1.09)
    assert ranges_overlap((2, 1, 3), (4, 3, 5))
    assert not ranges_overlap((2, 1, 3), (5, 4, 6))


def test_two_pools_are_told_at_the_load_that_the_ranking_lists():
    found = plan("deepseek-r1", HOST, tpot_s="50ms")
    first = int(np.argmax(found.plans.mode))
    assert first > found.recommended
    assert found.passed_over.ttft_s == found.plans.ttft_s[first] <= bearable_ttft_s(found.question)
    line = next(line for line in found.why if UNCHECKED in line)
    before, after = (format_seconds(float(found.plans.ttft_s[i])) for i in (found.recommended, first))
    assert f"TTFT {before} -> {after}" in line
    late = against_words(found.question, replace(found.passed_over, ttft_s=np.array([9.54])))
    assert late.endswith("later than the 3.11 s that interactive use bears (--ttft sets a limit, --workload batch none)")
    assert not any(UNCHECKED in line for line in plan("deepseek-r1", HOST, tpot_s="50ms", disaggregated=False).why)


@each("workload", ["", "batch"])
def test_late_first_tokens_lead_where_nobody_waits(workload):
    found = plan("llama-3.3-70b", "2x8xmi300x", tpot_s="40ms", input_len=1024, output_len=128, workload=workload)
    assert (float(found.plans.ttft_s[0]) > bearable_ttft_s(found.question.but(workload=""))) == bool(workload)
    assert bool(len(found.passed_over)) == (workload == ""), "two pools with long queues of prompts give most"


def test_clusters_are_compared_by_plans_that_may_lead():
    found = plan_several("llama-3.3-70b", ["4xh100-sxm", "4xh200-sxm"], dtypes=("fp8",), usd_per_gpu_hour=(2.2, 3.1), tpot_s="30ms")
    assert found.best == found.recommended
    assert found.passed_over
    assert found.passed_over.money.usd_per_million_tokens < found.best.money.usd_per_million_tokens
    over = found.passed_over.answer.layout(found.passed_over.answer.plans, 0)
    assert over in [one.answer.layout(one.answer.plans, one.row) for one in found.listed(3)]
    named = [one.answer.plans.mode[one.row] for one in found.plans]
    assert named == sorted(named), "unchecked pools rank behind"


def test_training_uses_all_gpus_where_it_is_too_close_to_call():
    found = plan_training("mixtral-8x7b", "2x8xh100-sxm", global_batch=60, seq=2048)
    idle = found.plans.gpus < found.plans.gpus.max()
    first = found.plans.take(np.flatnonzero(idle)[:1])
    assert not idle[found.recommended]
    assert first.step_s[0] * (1 + ratio_error(found.question)) >= found.plans.step_s[0]
    assert not any("idle" in line for line in found.why)
