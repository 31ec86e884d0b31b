"""Two pools: which of them fills up first, what a prompt that takes longer does, and whether two clusters are better apart."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import commtax
from cli_run import run_here
from commtax.judgement.margins import margin
from commtax.planner import plan
from commtax.planner.alternatives import alone_words
from commtax.planner.columns import power, request_s
from commtax.planner.ranking import effort
from commtax.planner.reasons import pool_use, pool_words
from commtax.units import format_seconds

SPLIT = {"disaggregated": True, "tp": 1, "prefill_tp": 1, "input_len": 2000, "output_len": 200}
BOTH = {"cluster": "8xh200-sxm", "prefill_cluster": "8xh100-sxm"}
LIMITS = {"ttft_s": 1.0, "tpot_s": 0.03}


def split(clients, prompts, decoding, cluster="2x8xh100-sxm", **words):
    workers = {"prefill_workers": prompts, "decode_workers": decoding}
    return commtax.simulate("llama-3.1-8b", cluster, concurrency=clients, **workers, **{**SPLIT, **words})


def test_the_pool_that_is_full_is_the_one_whose_workers_count():
    """Four times the clients of a knee: whoever is full passes no more, and the rate grows with its workers alone."""
    loop = split(600, prompts=2, decoding=4)
    use, rate = pool_use(loop), float(loop.tokens_per_s)
    assert use.prompts == pytest.approx(1.0)
    assert use.decoding < 0.8
    assert use.queues
    assert float(split(600, prompts=2, decoding=8).tokens_per_s) == pytest.approx(rate, rel=0.01)
    assert float(split(600, prompts=3, decoding=4).tokens_per_s) > 1.3 * rate


def test_the_share_of_a_pool_is_its_work_over_its_time():
    """Requests/s x the time of a prompt in a full step, over the workers that there are."""
    loop = split(60, prompts=2, decoding=2)
    station = loop.apart.net.prompting
    each_s = float(station.step_s(station.most * station.ranks) / (station.most * station.ranks))
    assert pool_use(loop).prompts == pytest.approx(float(loop.requests_per_s) * each_s / 2, rel=1e-6)


def test_a_pool_with_slack_is_not_spoken_of():
    """One client never queues: slower prompts make its first token later by no more than that."""
    use = pool_use(split(1, prompts=1, decoding=1))
    assert 1 < use.later <= use.slower
    assert not use.queues
    answer = plan("llama-3.1-8b", "2x8xh100-sxm", objective="latency")
    one = next(i for i in range(len(answer.plans)) if answer.plans.mode[i])
    assert not list(pool_words(answer, answer.plans, one))


def test_slower_prompts_make_ttft_what_such_a_network_has():
    loop = split(90, prompts=2, decoding=3)
    use, net = pool_use(loop), loop.apart.net
    assert use.prompts > 0.8
    own = replace(net.prompting, one_s=net.prompting.one_s * use.slower, more_s=net.prompting.more_s * use.slower)
    most = float(own.most_per_s(90)) * 200
    late_s = use.later * float(loop.ttft_s)
    # Little's law: clients less those that decode wait for or are in their prompts, at no more than the slower pool passes
    assert late_s >= 90 * 200 / most - 199 * float(loop.tpot_s) - 1e-9
    assert use.later > use.slower


@pytest.fixture(scope="module")
def mixed():
    return plan("llama-3.1-70b", **BOTH, **LIMITS)


def test_gpus_of_two_clusters_are_those_that_are_worth_their_price(mixed):
    """Of plans as simple that predictions cannot tell apart none has more tokens per dollar; the best is named beside."""
    rows, own = mixed.plans, mixed.recommended
    near = rows.tokens_per_s * (1 + margin(mixed.question)) >= rows.tokens_per_s[0]
    alike = near & (effort(mixed.question, rows) == effort(mixed.question, rows)[own])
    assert near[own]
    assert mixed.usd_per_million_tokens(rows)[own] <= mixed.usd_per_million_tokens(rows)[alike].min() * (1 + 1e-12)
    assert rows.gpus[own] < rows.gpus[0]
    assert any(f"for {rows.gpus[0] - rows.gpus[own]} GPUs more" in line for line in mixed.why)
    exact = plan("llama-3.1-70b", **BOTH, **LIMITS, margin=0)
    assert exact.recommended == 0


def test_the_fuller_pool_is_named(mixed):
    line = next(line for line in mixed.why if "fills up first" in line)
    used = re.search(r"first \((\d+)% used", line)
    loop = mixed.simulation(mixed.plans, mixed.recommended)
    assert int(used[1]) == round(100 * pool_use(loop).prompts)
    assert line.endswith("over the limit")


def test_pools_are_as_full_as_the_servers_that_are_emitted(tmp_path):
    """With as many sequences as those are told to run at once."""
    asked = ("--cluster", "2x8xh200-sxm", "--ttft", "2s", "--tpot", "20ms")
    planned = json.loads(run_here("plan", "deepseek-v3.1", *asked, "--technique", "mtp=2", "--emit", "vllm", "--json").stdout)
    assert "--max-num-seqs" in planned["emit"]["launch"]
    (tmp_path / "launch.sh").write_text(planned["emit"]["launch"])
    again = json.loads(run_here("plan", "--from", tmp_path / "launch.sh", *asked, "--json").stdout)
    shares = [re.findall(r"\d+% used; \w+ pool: \d+%", json.dumps(answer)) for answer in (planned, again)]
    assert shares[0] == shares[1] != []


def test_two_clusters_are_compared_with_each_by_itself(mixed):
    """Each searched as if it were asked for, in one pool and in two; both together are their sum, of as many GPUs as they use."""
    alone = [plan("llama-3.1-70b", place, **LIMITS, disaggregated=False) for place in ("8xh100-sxm", "8xh200-sxm")]
    rates = [float(one.plans.tokens_per_s[one.recommended]) for one in alone]
    usd = [float(one.usd_per_million_tokens(one.plans)[one.recommended]) for one in alone]
    line = mixed.why[2]  # right behind what the plan gives
    assert line.startswith("whether to split prompts from decoding is too close to call, measure both: without a split, ")
    for rate, price in zip(rates, usd, strict=True):
        assert f"{rate:,.0f} tokens/s (${price:.2f} per million)" in line
    together = sum(rate * price for rate, price in zip(rates, usd, strict=True)) / sum(rates)
    assert f"{sum(rates):,.0f} tokens/s (${together:.2f} per million) together on 16 GPUs" in line
    rows, own = mixed.plans, mixed.recommended
    equal = int(np.flatnonzero(rows.gpus == 16)[0])
    than = f"the best two pools on as many ({rows.tokens_per_s[equal]:,.0f} with {mixed.workers(rows, equal)})"
    assert f"{abs(sum(rates) / rows.tokens_per_s[equal] - 1):.0%} fewer tokens/s than {than}" in line
    fewer = 1 - float(mixed.usd_per_million_tokens(rows)[own]) / together
    assert f"{fewer:.0%} fewer tokens per dollar than these two pools on {rows.gpus[own]} GPUs" in line
    split = next(line for line in mixed.why if line.startswith("each in two pools of its own"))
    for place in ("8xh100-sxm", "8xh200-sxm"):
        rows = plan("llama-3.1-70b", place, **LIMITS).plans
        assert f"{place} {rows.tokens_per_s[rows.mode == 1][0]:,.0f} tokens/s" in split
    assert "are unchecked" in split
    assert not list(alone_words(alone[0]))


@pytest.mark.parametrize(
    ("model", "place", "ahead"), [("llama-3.2-1b", "2xh100-sxm", "2xl40s"), ("llama-3.3-70b", "8xh200", "8xh100")]
)
def test_where_no_limit_is_given_splitting_is_judged_at_each_point_by_what_counts_there(model, place, ahead):
    """Balanced by tokens/s over the time of a request, most tokens/s as limits judge it that bind nobody."""
    open_ended = plan(model, place, prefill_cluster=ahead)
    (rows, own), (balanced, *_) = open_ended.answered, alone_words(open_ended)
    each = [(one.question, *one.answered) for one in open_ended.alone]
    rate = sum(rows.tokens_per_s[i] for _, rows, i in each)
    alone_s = sum(rows.tokens_per_s[i] * request_s(q, rows)[i] for q, rows, i in each) / rate
    assert f"{rate:,.0f} tokens/s" in balanced
    assert f", in requests of {format_seconds(alone_s)} instead of " in balanced
    gain = rate / alone_s / power(open_ended.question, rows)[own]
    verdict = "it is better to split prompts from decoding when users wait (balanced): "
    assert balanced.startswith(verdict) is bool(gain < (1 + margin(open_ended.question, pools=True)) ** -2)
    (most,) = [line for line in open_ended.why if "each cluster by itself" in line]
    unbound = next(line for line in plan(model, place, prefill_cluster=ahead, ttft_s=1e4).why if "each cluster by itself" in line)
    assert most.replace(" when nobody waits: ", ": ").split("; each")[0] == unbound.split("; each")[0]
    told = " ".join(run_here("plan", model, "-c", place, "--prefill-cluster", ahead).stdout.split())
    assert told.count("ach cluster by itself") == 2


def test_a_place_to_start_from_says_its_range_its_fuller_pool_and_what_is_simpler():
    told = " ".join(run_here("plan", "deepseek-v3", "--cluster", "2x8xh200-sxm").stdout.split("\n\n")[0].split())
    answer = plan("deepseek-v3", "2x8xh200-sxm")
    point = answer.places[1]
    rows, own = point.plans, point.recommended
    assert rows.mode[own]
    low, high = answer.range_of(rows, own, "tokens_per_s")
    assert f"{rows.tokens_per_s[own]:,.0f} tokens/s ({low:,.0f} to {high:,.0f})" in told
    assert "The prompt pool fills up first (" in told
    assert "The best simpler plan (stages or expert parallelism inside a host) is 2 replicas x TP 8" in told
    assert "Predictions of two pools against one err by 23%" in told


def test_a_plan_says_as_simulate_does_what_its_servers_do_not_start_with(mixed):
    loop = mixed.simulation(mixed.plans, mixed.recommended)
    (note,) = (str(note) for note in loop.notes if note.code == "own-limits")
    asked = ("--prefill-cluster", BOTH["prefill_cluster"], "--decode-cluster", BOTH["cluster"], "--ttft", "1s", "--tpot", "30ms")
    assert note in " ".join(run_here("plan", "llama-3.1-70b", *asked).stdout.split())
