"""Prompts on workers of their own, on one cluster or two: each pool is priced, judged and paid where it runs."""

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here, told_here
from commtax import catalog
from commtax.catalog.hardware import carrier
from commtax.catalog.transfer import sigma as transferred_sigma
from commtax.cost.caches import kv_bytes_per_token
from commtax.judgement.margins import margin
from commtax.launch.writing import apart_command
from commtax.planner import plan, serving_standing
from commtax.planner.alternatives import alone_words
from commtax.planner.columns import power, request_s
from commtax.planner.fleets import servers_of
from commtax.planner.ranking import effort
from commtax.planner.reasons import pool_use, pool_words
from commtax.spec import Plan
from commtax.units import format_seconds
from commtax.verbs.fit_advice import changed_limits
from commtax.words import flags
from each import each
from tables import tables

DATA = tables(__file__)
CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "l40s", "b200-sxm")
LENGTHS = {"input_len": 2000, "output_len": 200}
SPLIT = {"disaggregated": True, "prefill_workers": 1, "decode_workers": 1, **LENGTHS}
FIGURES = ("ttft_s", "tpot_s", "tokens_per_s")
splits = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "prefill_tp": st.sampled_from([1, 2, 4, 8]),
        "concurrency": st.integers(1, 300),
        "input_len": st.integers(16, 8000),
        "output_len": st.integers(2, 600),
        "engine": st.sampled_from(["vllm", "sglang", "trtllm"]),
    }
)


def filled(words):
    """As many workers of both kinds as a host of eight holds."""
    return {**words, "disaggregated": True, "prefill_workers": 8 // words["prefill_tp"], "decode_workers": 8 // words["tp"]}


@given(splits, st.sampled_from(CHIPS), st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]))
@settings(max_examples=10)
def test_two_hosts_are_one_cluster_or_two(words, chip, model):
    """The same chips over the same network: the same times and ranges, whether they have one name or two."""
    words = filled(words)
    one = commtax.simulate(model, f"2x8x{chip}", **words)
    two = commtax.simulate(model, f"8x{chip}", prefill_cluster=f"8x{chip}", **words)
    for name in FIGURES:
        assert float(getattr(two, name)) == pytest.approx(float(getattr(one, name)))
        assert two.range_of(name) == pytest.approx(one.range_of(name))
    assert two.num_gpus == one.num_gpus == 16


def test_mixed_pools_run_in_time_as_on_their_own_chips():
    words = {**filled({"tp": 4, "prefill_tp": 2}), "request_rate": 12.0, "num_prompts": 150, **LENGTHS}
    one = commtax.serve("llama-3.1-8b", "2x8xh100-sxm", **words)
    two = commtax.serve("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xh100-sxm", **words)
    slow = commtax.serve("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xa100-80-sxm", **words)
    assert two.statistic("ttft_p95") == one.statistic("ttft_p95") < slow.statistic("ttft_p95")
    assert (two.statistic("itl_p50"), slow.num_gpus) == (one.statistic("itl_p50"), 16)
    # An A100's vLLM computes 2,048 tokens a step, an H100's 8,192; and its memory is its own.
    asked = {"prefill_cluster": "8xa100-80-sxm", "concurrency": 8, **SPLIT, "input_len": 4000}
    found = commtax.simulate("llama-3.1-8b", "8xh100-sxm", **asked)
    assert float(found.steps.chunks) == pytest.approx(4000 / 2048)
    small = commtax.simulate("llama-3.1-8b", "8xh200-sxm", prefill_cluster="8xl40s", concurrency=8, **SPLIT)
    assert float(small.apart.kv_tokens) < 0.3 * float(small.kv_tokens)
    fp8 = commtax.simulate("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xa100-80-sxm", dtype="fp8", concurrency=8, **SPLIT)
    assert any(note.code == "arithmetic" and note.startswith("prompts: a100") for note in fp8.notes)


def faster(place, factor):
    """The same chips with more arithmetic and bandwidth."""
    chip = place.chip
    flops = {name: factor * rate for name, rate in chip.flops_per_s.items()}
    return replace(place, chip=replace(chip, flops_per_s=flops, memory_Bps=factor * chip.memory_Bps))


@given(splits, st.sampled_from(CHIPS), st.floats(1.0, 4.0))
@settings(max_examples=10)
def test_a_faster_chip_for_prompts_answers_no_fewer(words, chip, factor):
    """To the per cent by which a router over few workers is even."""
    ahead, words = catalog.cluster(f"8x{chip}"), filled(words)
    pools = ahead, faster(ahead, factor)
    slow, fast = (commtax.simulate("llama-3.1-8b", "8xh200-sxm", prefill_cluster=pool, **words) for pool in pools)
    assert fast.tokens_per_s >= slow.tokens_per_s * (1 - 0.01)
    assert fast.steps.prompt_s <= slow.steps.prompt_s * (1 + 1e-9)


@pytest.mark.parametrize("slow", ["prompts", "decode"])
def test_caches_move_at_the_pace_of_the_slower_network(slow):
    places = {name: catalog.cluster("2xh100-sxm", **({"inter": "10gbe"} if name == slow else {})) for name in ("prompts", "decode")}
    found = commtax.simulate("llama-3.1-8b", places["decode"], prefill_cluster=places["prompts"], concurrency=8, **SPLIT)
    link, nbytes = places[slow].inter, 2000 * float(kv_bytes_per_token(found.question.model, found.question.plan))
    handing = found.question.engine.host.handover_s
    moving = link.latency_s + nbytes / (carrier("").share * link.bandwidth_Bps)
    assert float(found.apart.net.wire.alone_s) - handing == pytest.approx(moving, rel=1e-3)
    inside = commtax.simulate("llama-3.1-8b", "2xh100-sxm", concurrency=8, **SPLIT)
    alone_s = [s.apart.net.wire.alone_s - handing for s in (found, inside)]
    assert alone_s[0] > 20 * alone_s[1], "never over NVLink, though two GPUs are all"


@pytest.mark.parametrize("name", FIGURES)
def test_ranges_are_those_of_the_less_sure_chip(name):
    hosts = ("8xh100-sxm", "8xl40s")
    known, strange = (commtax.simulate("llama-3.1-8b", x, prefill_cluster=x, concurrency=8, **SPLIT) for x in hosts)
    mixed = commtax.simulate("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xl40s", concurrency=8, **SPLIT)
    assert (
        mixed.sigma_of("tpot_s")
        >= max(known.sigma_of("tpot_s"), *(transferred_sigma(x, "tpot", False) for x in strange.settings)) - 1e-12
    )
    assert mixed.sigma_of(name) > known.sigma_of(name)


def by_hand(ahead, own, **lengths):
    """Every split of two small clusters at loads off the search's grid, as simulate has it."""
    for tp, prefill_tp in product((1, 2), repeat=2):
        for copies, workers in product(range(1, own.num_gpus // tp + 1), range(1, ahead.num_gpus // prefill_tp + 1)):
            words = {"tp": tp, "prefill_tp": prefill_tp, "decode_workers": copies, "prefill_workers": workers}
            loads = np.array([1, 3, 7, 19, 43, 90, 133]) * copies
            yield commtax.simulate(
                "llama-3.1-8b", own, prefill_cluster=ahead, disaggregated=True, concurrency=loads, **words, **lengths
            )


@pytest.mark.parametrize(("ahead", "own"), [("2xl40s", "2xh100-sxm"), ("3xh100-sxm", "2xl40s")])
def test_no_split_by_hand_beats_the_best(ahead, own):
    """In tokens/s, in the time of a request, and in dollars a token, those of both kinds of GPUs."""
    places = catalog.cluster(ahead), catalog.cluster(own)
    tried = list(by_hand(*places, **LENGTHS))
    answers = {goal: plan("llama-3.1-8b", own, prefill_cluster=ahead, objective=goal, **LENGTHS)
               for goal in ("throughput", "latency", "cost")}  # fmt: skip
    rate = max(float(np.max(s.tokens_per_s)) for s in tried)
    assert answers["throughput"].plans.tokens_per_s[0] >= rate * (1 - 1e-9)
    quickest, rows = min(float(np.min(s.e2e_s)) for s in tried), answers["latency"].plans
    assert rows.ttft_s[0] + 199 * rows.tpot_s[0] <= quickest * (1 + 2e-3), "prompt workers that hardly help are left out"
    usd = min(float(np.min(_usd(s) / s.tokens_per_s)) for s in tried) / 3600 * 1e6
    cost = answers["cost"]
    assert cost.usd_per_million_tokens(cost.plans)[0] <= usd * (1 + 1e-9)


def _usd(s):
    ahead, own = s.question.places
    gpus = int(s.question.plan.num_gpus * s.apart.copies), int(s.apart.plan.num_gpus * s.apart.workers)
    return own.chip.usd_per_gpu_hour * gpus[0] + ahead.chip.usd_per_gpu_hour * gpus[1]


PAIRS = st.tuples(*(st.sampled_from(["2xl40s", "3xh100-sxm", "2x4xh100-sxm", "8xa100-80-sxm", "2x8xh200-sxm"]),) * 2)


@given(PAIRS, st.sampled_from(["throughput", "latency", "cost", "gpus"]), st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]))
@settings(max_examples=6)
def test_a_plan_is_what_simulate_says_and_fits_both_clusters(pair, objective, model):
    ahead, own = map(catalog.cluster, pair)
    a = plan(model, own, prefill_cluster=ahead, objective=objective, max_concurrency=128, **LENGTHS)
    rows, both = a.plans, (ahead.num_gpus, own.num_gpus)
    assert np.all(rows.mode == 1)
    assert np.all(rows.prefill_gpus <= both[0])
    assert np.all(rows.gpus - rows.prefill_gpus <= both[1])
    price = ahead.chip.usd_per_gpu_hour, own.chip.usd_per_gpu_hour
    usd = (price[0] * rows.prefill_gpus + price[1] * (rows.gpus - rows.prefill_gpus)) / 3600 / rows.tokens_per_s * 1e6
    assert a.usd_per_million_tokens(rows) == pytest.approx(usd)
    for i in range(min(3, len(rows))):
        s = a.simulation(rows, i)
        assert s.question.places == (ahead, own)
        for name in FIGURES:
            assert float(getattr(rows, name)[i]) == pytest.approx(float(getattr(s, name)))


def test_limits_and_rooms_of_both_clusters_are_kept():
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="8xa100-80-sxm", ttft_s="2s", tpot_s="30ms", **LENGTHS)
    assert all(a.kept(a.plans, i) >= 0.63 for i in range(min(4, len(a.plans))))
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="2xl40s")
    assert not len(a.plans)
    assert a.rejected[-1].reason == "no worker for prompts has room for a request on 2xl40s"
    assert a.would_take[0].startswith("8xl40s for prompts (TP 4")


def test_a_pasted_plan_stands_on_both_clusters_and_its_servers_on_their_hosts():
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="8xh100-sxm", **LENGTHS)
    alone = {"pp": 1, "dp": 1, "ep": 1}
    good = serving_standing(a, {"tp": 4, **alone}, 2, prompts=Plan(2, replicas=4))
    assert good.rank >= 1
    assert good.plan == "16 GPUs = 4 x TP 2 on 8xh100-sxm for prompts + 2 x TP 4 on 8xh200-sxm for decoding"
    assert serving_standing(a, {"tp": 4, **alone}, 1, prompts=Plan(2, replicas=5)).reason == "needs 10 GPUs, but 8xh100-sxm has 8"
    assert "no separate prompt workers" in serving_standing(a, {"tp": 8, **alone}, 1).reason
    ahead = {"tp": 8, "prefill_tp": 4, "prefill_cluster": "8xh100-sxm"}
    q = commtax.simulate("llama-3.1-70b", "2x8xh200-sxm", **ahead, concurrency=8, **SPLIT).question
    lines = apart_command(q.but(prefill_workers=2, decode_workers=2), "sglang").splitlines()
    hosts = [line.rsplit("# ", 1)[-1] for line in lines if "launch_server" in line]
    assert hosts == [*(f"decode, on $DECODE_HOST_{i}" for i in (0, 1)), *["prefill, on $PREFILL_HOST_0"] * 2]


BOTH = ("--prefill-cluster", "8xh100-sxm", "--decode-cluster", "8xh200-sxm")


def test_the_commands_say_what_runs_where():
    words = ("llama-3.1-70b", *BOTH, "--input-len", "2000", "--output-len", "200")
    told = run_here("plan", *words, "--tpot", "30ms", "--ttft", "2s")
    assert told.stdout.startswith("Recommended: 12 GPUs = 4 x TP 2 on 8xh100-sxm for prompts + 1 x TP 4 on 8xh200-sxm for decoding")
    assert "llama-3.1-70b on 8xh100-sxm (8 GPUs) for prompts and 8xh200-sxm (8 GPUs) for decoding" in told.stdout
    assert "h100-sxm: $3.99 per GPU-hour" in told.stdout
    found = json.loads(run_here("plan", *words, "--tpot", "30ms", "--json", "--price", "1,2").stdout)
    best = found["best"]
    assert (found["cluster"], found["prefill_cluster"], best["mode"]) == ("8xh200-sxm", "8xh100-sxm", "disaggregated")
    assert best["gpus"] + best["idle_gpus"] == 16
    prompting = best["prefill_tp"] * best["prefill_dp"] * best["prefill_replicas"]
    usd = (prompting + 2 * (best["gpus"] - prompting)) / 3600 / best["tokens_per_s"] * 1e6
    assert best["usd_per_million_tokens"] == pytest.approx(usd)
    workers = ("-tp", "8", "--prefill-tp", "2", "--prefill-workers", "4", "--decode-workers", "1", "--concurrency", "64")
    one = told_here("simulate", *words, "--disaggregated", *workers)
    assert "16 GPUs = 4 x TP 2 on 8xh100-sxm for prompts + 1 x TP 8 on 8xh200-sxm for decoding" in one.stdout
    document = json.loads(one.document)
    assert (document["prefill_cluster"], document["gpus"], document["idle_gpus"]) == ("8xh100-sxm", 16, 0)


@each(
    ("words", "said"),
    [
        *DATA["refused_in_a_line"],
        (("plan", *BOTH[:2]), "cluster: name where decoding runs with --cluster"),
        (("plan", *BOTH[:2], "-c", "8xl40s", "-c", "8xh200-sxm"), "cluster: one is needed beside --prefill-cluster"),
    ],
)
def test_refused_in_a_line(words, said):
    done = run_here(words[0], "llama-3.1-8b", *words[1:], *(("--concurrency", "64") if words[0] == "simulate" else ()))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


SPLIT_WORKERS = {"disaggregated": True, "tp": 1, "prefill_tp": 1, "input_len": 2000, "output_len": 200}
BOTH_CLUSTERS = {"cluster": "8xh200-sxm", "prefill_cluster": "8xh100-sxm"}
LIMITS = {"ttft_s": 1.0, "tpot_s": 0.03}


def split(clients, prompts, decoding, cluster="2x8xh100-sxm", **words):
    workers = {"prefill_workers": prompts, "decode_workers": decoding}
    return commtax.simulate("llama-3.1-8b", cluster, concurrency=clients, **workers, **{**SPLIT_WORKERS, **words})


def test_the_full_pool_counts_and_a_pool_with_slack_is_not_spoken_of():
    """Four times the clients of a knee: whoever is full passes no more, and the rate grows with its workers alone."""
    loop = split(600, prompts=2, decoding=4)
    use, rate = pool_use(loop), float(loop.tokens_per_s)
    assert use.prompts == pytest.approx(1.0)
    assert use.decoding < 0.8
    assert use.queues
    assert float(split(600, prompts=2, decoding=8).tokens_per_s) == pytest.approx(rate, rel=0.01)
    assert float(split(600, prompts=3, decoding=4).tokens_per_s) > 1.3 * rate
    # Requests/s x the time of a prompt in a full step, over the workers that there are.
    loop = split(60, prompts=2, decoding=2)
    station = loop.apart.net.prompting
    each_s = float(station.step_s(station.most * station.ranks) / (station.most * station.ranks))
    assert pool_use(loop).prompts == pytest.approx(float(loop.requests_per_s) * each_s / 2, rel=1e-6)
    # One client never queues: slower prompts make its first token later by no more than that.
    use = pool_use(split(1, prompts=1, decoding=1))
    assert 1 < use.later <= use.slower
    assert not use.queues
    answer = plan("llama-3.1-8b", "2x8xh100-sxm", objective="latency")
    one = next(i for i in range(len(answer.plans)) if answer.plans.mode[i])
    assert not list(pool_words(answer, answer.plans, one))
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
    return plan("llama-3.1-70b", **BOTH_CLUSTERS, **LIMITS)


def test_gpus_of_two_clusters_are_worth_their_price_and_the_fuller_pool_is_named(mixed):
    """Of plans as simple that predictions cannot tell apart none has more tokens per dollar; the best is named beside."""
    rows, own = mixed.plans, mixed.recommended
    near = rows.tokens_per_s * (1 + margin(mixed.question)) >= rows.tokens_per_s[0]
    alike = near & (effort(mixed.question, rows) == effort(mixed.question, rows)[own])
    assert near[own]
    assert mixed.usd_per_million_tokens(rows)[own] <= mixed.usd_per_million_tokens(rows)[alike].min() * (1 + 1e-12)
    assert rows.gpus[own] < rows.gpus[0]
    assert any(f"for {rows.gpus[0] - rows.gpus[own]} GPUs more" in line for line in mixed.why)
    exact = plan("llama-3.1-70b", **BOTH_CLUSTERS, **LIMITS, margin=0)
    assert exact.recommended == 0
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


def test_plans_say_what_servers_start_with_and_have_room_for(mixed):
    loop = mixed.simulation(mixed.plans, mixed.recommended)
    (note,) = (str(note) for note in loop.notes if note.code == "own-limits")
    asked = (
        "--prefill-cluster", BOTH_CLUSTERS["prefill_cluster"], "--decode-cluster", BOTH_CLUSTERS["cluster"], "--ttft", "1s",
        "--tpot", "30ms",
    )  # fmt: skip
    assert note in " ".join(run_here("plan", "llama-3.1-70b", *asked).stdout.split())
    # 384 clients of 8 servers are 48 each, and sqrt(48) = 6.9: three of these more are 69, which run in the graph of 72.
    found = commtax.plan("llama-3.1-8b", "8xh100-sxm", tpot_s=0.02)
    rows = found.plans
    i = int(np.flatnonzero((rows.replicas == 8) & (rows.tp == 1) & (rows.mode == 0))[0])
    assert (rows.concurrency[i], servers_of(found, i).question.limits.max_num_seqs) == (384, 72)
    found = commtax.plan("llama-3.1-8b", "2xh100-sxm")
    assert all(servers_of(found, i).question.limits.max_num_seqs == 0 for i in range(len(found.plans)))


def test_fewer_sampled_rows_make_room_and_come_first():
    """vLLM's dummy run samples 1,024 rows of 201,088 logits, 38 bytes each: 7.3 GiB, of which 256 rows take a quarter. 512 rows
    would do for as many clients, and leave no room for a request of the model's own length."""
    found = commtax.plan("gpt-oss-120b", "1xh100-sxm", tpot_s="25ms")
    more = found.roomier
    assert (found.plans.concurrency[0], more.plans.concurrency[0]) == (8, 24)
    assert any("--max-num-seqs 256: 159,730 KV tokens per replica instead of 18,357, 24 clients" in line for line in found.why)
    assert commtax.fit("gpt-oss-120b", "1xh100-sxm", tp=1, max_num_seqs=256).kv_tokens == 159730
    assert any("would not start with the checkpoint's own 131,072 tokens: each GPU is 4.36 GiB" in line for line in found.why)
    assert commtax.worth("gpt-oss-120b", "1xh100-sxm", concurrency=24).limits.flag == "--max-num-seqs 256"
    judged = commtax.fit("gpt-oss-120b", "1xh100-sxm")
    assert judged.advice[0] == flags(changed_limits(judged.roomier, judged)) == "--max-num-seqs 256"
    assert not judged.fits
    assert judged.roomier.fits
