"""What a plan's sentences say is what its tables, its commands and other verbs say."""

import json
import re

import pytest

import commtax
from cli_run import run_here
from commtax.planner.columns import objective_value
from commtax.planner.technique_sets import untried_techniques
from commtax.units import format_money


def said(*words):
    return " ".join(run_here("plan", *words).stdout.split())


@pytest.mark.parametrize(
    ("model", "cluster", "asked"),
    [
        ("llama-3.1-70b", "4xl40s", {"dtypes": ("fp8",)}),  # recommended: the third
        ("deepseek-v3", "2x8xh200-sxm", {"tpot_s": 0.05, "ttft_s": 2.0, "disaggregated": False}),  # the second is of a simpler kind
    ],
)
def test_the_runner_up_in_words_is_the_second_of_the_ranking(model, cluster, asked):
    found = commtax.plan(model, cluster, **asked)
    second = found.workers(found.plans, 1)
    (line,) = [line for line in found.why if "runner-up" in line]
    assert re.search(rf"runner-up( is|,| and best simpler plan \([^)]*\),) {re.escape(second)}\b", line)
    ahead = [line for line in found.why[2:] if found.workers(found.plans, 0) in line]
    assert bool(ahead) == (found.recommended > 0)


def test_a_plan_far_down_a_ranking_of_several_clusters_has_its_reason():
    words = ("llama-3.1-8b", "-c", "8xl40s", "-c", "8xh100", "--tpot", "40ms")
    told, answer = said(*words), json.loads(run_here("plan", *words, "--json").stdout)
    place = re.search(r"plan (\d+) ranks behind plans with worse figures, since predictions of two pools inside one host", told)[1]
    assert int(place) > 10
    assert f" {place} 2 x TP 1 for " in told
    assert any(note.startswith(f"plan {place} ranks behind") for note in answer["notes"])


def test_how_a_cluster_was_read_is_told_once_and_of_each():
    told = said("llama-3.2-1b", "-c", "16xh100", "-c", "32xh100", "--request-rate", "20", "--num-prompts", "150")
    assert [told.count(f"{n}xh100-sxm is read as") for n in (16, 32)] == [1, 1]


def test_a_gain_within_limits_has_its_part_at_one_load_as_worth_judges_it():
    found = commtax.plan("llama-3.3-70b", "4xh100-sxm", tpot_s=0.03)
    untried, rows = untried_techniques(found), found.plans
    assert untried.rows.concurrency[0] > rows.concurrency[0]
    weighed = commtax.worth("llama-3.3-70b", "4xh100-sxm", tp=4, concurrency=int(rows.concurrency[0]))
    row = next(row for row in weighed.rows if row.asked == untried.techniques)
    alike, admitted = (line for line in found.why if line.startswith(f"with {untried.techniques} "))
    judged = f"({row.low - 1:+.0%} to {row.high - 1:+.0%}, undecided)"
    assert f" this plan has {row.gain - 1:+.0%} tokens/s at the same load {judged}" in alike
    assert f" the limits admit {untried.rows.concurrency[0]} clients and " in admitted
    assert "; --techniques auto may find another layout with more" in admitted
    assert f"--technique {untried.techniques} plans with it and has it in --emit" in admitted
    assert row.verdict == "undecided"


def test_engine_limits_that_are_advised_say_how_they_come_into_what_is_emitted():
    words = ("gpt-oss-120b", "-c", "1xh100", "--tpot", "25ms", "--emit", "vllm")
    told = said(*words)
    assert "give --max-num-seqs 256 to plan with this and to have it in --emit" in told
    assert "vllm serve openai/gpt-oss-120b --max-model-len 1792 # check" in told
    again = said(*words, "--max-num-seqs", "256")
    clients, rate = re.search(r"(\d+) clients, (\d+) tokens/s \(\+", told).groups()
    assert f"{clients} clients at once." in again
    assert f" {rate} tokens/s (" in again
    assert "--max-num-seqs 256 # check" in again


def test_a_training_plan_names_all_that_bill_needs_to_fit_it():
    found = commtax.plan_training("llama-3.1-70b", "8x8xh100-sxm", global_batch=512, engine="megatron")
    line, rows, i = found.why[0], found.plans, found.recommended
    assert line.endswith(", sequence parallel")
    step = found.step_of(rows, i)
    assert step.question.plan.sequence_parallel
    alone = found.kind_words(rows, int((rows.tp == 1).argmax()))
    assert rows.tp.min() > 1 or "sequence parallel" not in alone


def test_dollars_of_two_clusters_by_themselves_are_those_of_their_own_plans():
    found = commtax.plan("llama-3.2-1b", "2xh100-sxm", prefill_cluster="2xl40s", tpot_s=0.02, ttft_s=1.0)
    for one in found.alone:
        usd = format_money(float(one.usd_per_million_tokens(one.plans)[one.recommended]))
        rate = one.plans.tokens_per_s[one.recommended]
        assert f"{one.question.cluster.key} {rate:,.0f} tokens/s ({usd} per million)" in found.why[2]


@pytest.mark.parametrize("objective", ["latency", "gpus"])
def test_whether_to_split_is_judged_by_what_counts(objective):
    found = commtax.plan("llama-3.1-8b", "2xh100-sxm", prefill_cluster="2xl40s", objective=objective, tpot_s=0.05)
    assert found.why[2].startswith("it is better not to split prompts from decoding; each cluster by itself, ")
    value = objective_value(found.question, found.plans)[found.recommended]
    assert any(objective_value(one.question, one.plans)[one.recommended] > value for one in found.alone)


def test_a_gain_at_the_same_clients_has_its_range():
    found = commtax.plan("llama-3.3-70b", "4xh100-sxm", objective="latency")
    weighed = commtax.worth("llama-3.3-70b", "4xh100-sxm", tp=4, concurrency=1)
    line, best = (line for line in found.why if line.startswith("with "))
    row = next(row for row in weighed.rows if line.startswith(f"with {row.asked} "))
    assert f"{row.gain - 1:+.0%} tokens/s at the same load ({row.low - 1:+.0%} to {row.high - 1:+.0%})" in line
    assert f"with {row.asked} this plan has at its best load 1 client and " in best


def test_a_fleet_names_what_the_other_cluster_takes():
    told = said("llama-3.2-1b", "-c", "16xh100", "-c", "32xl40s", "--request-rate", "20", "--num-prompts", "150")
    ((other, count, usd),) = re.findall(r"the same on (\S+) takes (\d+) GPU.*?: (\$[\d.]+) per hour", told)
    assert f" on {other}." not in told.partition("\n")[0], "not where the recommended fleet stands"
    assert any(other in row and usd.strip("$") in row and count in row.split() for row in told.splitlines())  # a row of the table
