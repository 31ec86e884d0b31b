"""Prompts on one cluster, decoding on another: each pool is priced, judged and paid where it runs."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.hardware import carrier
from commtax.cost.caches import kv_bytes_per_token
from commtax.launch.writing import apart_command
from commtax.planner import plan, serving_standing
from commtax.spec import Plan
from each import each

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


def test_in_time_too():
    words = {**filled({"tp": 4, "prefill_tp": 2}), "request_rate": 12.0, "num_prompts": 150, **LENGTHS}
    one = commtax.serve("llama-3.1-8b", "2x8xh100-sxm", **words)
    two = commtax.serve("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xh100-sxm", **words)
    slow = commtax.serve("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xa100-80-sxm", **words)
    assert two.statistic("ttft_p95") == one.statistic("ttft_p95") < slow.statistic("ttft_p95")
    assert two.statistic("itl_p50") == one.statistic("itl_p50")
    assert slow.num_gpus == 16


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
    slow, fast = (
        commtax.simulate("llama-3.1-8b", "8xh200-sxm", prefill_cluster=place, **words) for place in (ahead, faster(ahead, factor))
    )
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
    assert found.apart.net.wire.alone_s - handing > 20 * (inside.apart.net.wire.alone_s - handing), (
        "never over NVLink, though two GPUs are all"
    )


def test_prompts_are_cut_and_held_as_on_their_own_chip():
    """An A100's vLLM computes 2,048 tokens a step, an H100's 8,192; and its memory is its own."""
    found = commtax.simulate(
        "llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xa100-80-sxm", concurrency=8, **{**SPLIT, "input_len": 4000}
    )
    assert float(found.steps.chunks) == pytest.approx(4000 / 2048)
    small = commtax.simulate("llama-3.1-8b", "8xh200-sxm", prefill_cluster="8xl40s", concurrency=8, **SPLIT)
    assert float(small.apart.kv_tokens) < 0.3 * float(small.kv_tokens)
    fp8 = commtax.simulate("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xa100-80-sxm", dtype="fp8", concurrency=8, **SPLIT)
    assert any(note.code == "arithmetic" and note.startswith("prompts: a100") for note in fp8.notes)


@pytest.mark.parametrize("name", FIGURES)
def test_ranges_are_those_of_the_less_sure_chip(name):
    known, strange = (
        commtax.simulate("llama-3.1-8b", own, prefill_cluster=own, concurrency=8, **SPLIT) for own in ("8xh100-sxm", "8xl40s")
    )
    mixed = commtax.simulate("llama-3.1-8b", "8xh100-sxm", prefill_cluster="8xl40s", concurrency=8, **SPLIT)
    assert mixed.sigma_of("tpot_s") >= max(known.sigma_of("tpot_s"), strange._run_sigma("tpot")[0]) - 1e-12
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


def test_limits_are_kept_as_surely_as_the_ranges_say():
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="8xa100-80-sxm", ttft_s="2s", tpot_s="30ms", **LENGTHS)
    assert all(a.kept(a.plans, i) >= 0.63 for i in range(min(4, len(a.plans))))


def test_a_cluster_that_holds_no_prompts_is_named():
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="2xl40s")
    assert not len(a.plans)
    assert a.rejected[-1].reason == "no worker for prompts has room for a request on 2xl40s"
    assert a.would_take[0].startswith("8xl40s for prompts (TP 4")


def test_a_pasted_plan_stands_on_both():
    a = plan("llama-3.1-70b", "8xh200-sxm", prefill_cluster="8xh100-sxm", **LENGTHS)
    alone = {"pp": 1, "dp": 1, "ep": 1}
    good = serving_standing(a, {"tp": 4, **alone}, 2, prompts=Plan(2, replicas=4))
    assert good.rank >= 1
    assert good.plan == "16 GPUs = 4 x TP 2 on 8xh100-sxm for prompts + 2 x TP 4 on 8xh200-sxm for decoding"
    assert serving_standing(a, {"tp": 4, **alone}, 1, prompts=Plan(2, replicas=5)).reason == "needs 10 GPUs, but 8xh100-sxm has 8"
    assert "no separate prompt workers" in serving_standing(a, {"tp": 8, **alone}, 1).reason


def test_servers_are_launched_on_the_hosts_of_their_own_cluster():
    q = commtax.simulate(
        "llama-3.1-70b", "2x8xh200-sxm", tp=8, prefill_tp=4, prefill_cluster="8xh100-sxm", concurrency=8, **SPLIT
    ).question
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
    one = run_here("simulate", *words, "--disaggregated", *workers)
    assert "16 GPUs = 4 x TP 2 on 8xh100-sxm for prompts + 1 x TP 8 on 8xh200-sxm for decoding" in one.stdout
    document = json.loads(run_here("simulate", *words, "--disaggregated", *workers, "--json").stdout)
    assert (document["prefill_cluster"], document["gpus"], document["idle_gpus"]) == ("8xh100-sxm", 16, 0)


@each(
    ("words", "said"),
    [
        (("plan", *BOTH, "--no-disaggregated"), "prefill_cluster=8xh100-sxm: belongs to disaggregated plans"),
        (("plan", *BOTH, "--output-len", "1"), "prefill_cluster=8xh100-sxm: one output token leaves nothing to decode"),
        (("plan", *BOTH, "--request-rate", "3"), "prefill_cluster=8xh100-sxm: fleets for a rate are sought on one cluster"),
        (("plan", *BOTH, "--price", "1,2,3"), "price: 3 prices for 2 clusters"),
        (("plan", *BOTH, "--phase", "train", "--global-batch", "8"), "prefill_cluster: belongs to serving"),
        (("plan", *BOTH[:2]), "cluster: name where decoding runs with --cluster"),
        (("plan", *BOTH, "--cluster", "8xh100-sxm"), "decode_cluster '8xh200-sxm': another spelling of --cluster"),
        (("plan", *BOTH[:2], "-c", "8xl40s", "-c", "8xh200-sxm"), "cluster: one is needed beside --prefill-cluster"),
        (("simulate", *BOTH), "prefill_cluster=8xh100-sxm: belongs to disaggregated serving"),
        (("simulate", *BOTH, "--disaggregated", "-tp", "4", "--prefill-workers", "3"), "prefill_workers=3: 3 x 4 GPUs for prompts"),
        (("simulate", *BOTH, "--disaggregated", "-tp", "4", "--decode-workers", "3"), "decode_workers=3: 3 x 4 GPUs for decoding"),
        (("simulate", *BOTH, "--disaggregated", "--prefill-tp", "3"), "tp=3"),
        (("simulate", *BOTH, "--disaggregated", "--request-rate", "2", "--prefill-workers", "9"), "prefill_workers=9"),
    ],
)
def test_refused_in_a_line(words, said):
    done = run_here(words[0], "llama-3.1-8b", *words[1:], *(("--concurrency", "64") if words[0] == "simulate" else ()))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
