"""Prompts on workers of their own: the closed form is the simulation's mean, and no station passes more than it can."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.cost.caches import kv_bytes_per_token
from commtax.cost.network import STATIONS, CacheWire, DecodeStation, PromptStation, QueueNetwork, flow, nodes_to
from commtax.launch.writing import apart_command
from commtax.planner import plan
from commtax.statement import Refusal
from commtax.verbs.closed_loop import price_closed_loop as closed_form
from commtax.verbs.requests import run_requests as simulated
from commtax.verbs.settling import ask, resolve_question, settle

SLOW = {"disaggregated": True, "prefill_workers": 1, "decode_workers": 1, "concurrency": 32, "input_len": 4000}
PLACES = (("8xh100-sxm", ""), ("2x8xh100-sxm", "10gbe"), ("2x8xh100-sxm", ""), ("4x4xh100-sxm", "100gbe"), ("8xh200-sxm", ""))
LIVES = 9  # requests of each client, of which the first third and the last sixth are not counted
FREE = 0.85  # of what a station passes at most: beyond, queues are long and a run of a few lives tells little


def network(clients, workers=1, copies=1, prompt_s=0.1, moved_s=0.02, step_s=0.01, decodes=100, spread=0.5, most=1.0, room=256):
    """Steps that grow a little with their batch."""
    batches = nodes_to(room)
    decoding = DecodeStation.of(copies, 1, room, step_s * (1 + batches / 100))
    prompting, wire = PromptStation(workers, prompt_s, 0.8 * prompt_s, most), CacheWire(moved_s, moved_s, moved_s)
    return QueueNetwork(clients, decodes, 0.01, prompting, wire, decoding, spread)


networks = st.fixed_dictionaries(
    {
        "clients": st.integers(1, 2000),
        "workers": st.integers(1, 8),
        "copies": st.integers(1, 8),
        "prompt_s": st.floats(1e-3, 2.0),
        "moved_s": st.floats(0, 1.0),
        "decodes": st.integers(0, 2000),
        "spread": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "most": st.sampled_from([1.0, 1.3, 8.0]),
        "room": st.integers(1, 512),
    }
)


@settings(max_examples=150, deadline=None)
@given(networks)
def test_no_station_passes_more_than_it_can_and_no_client_is_lost(asked):
    net = network(**asked)
    passed = flow(net)
    assert all(passed.per_s <= limit * (1 + 1e-9) for limit in net.limits)
    assert passed.per_s * passed.life_s(net) == pytest.approx(asked["clients"], rel=1e-8), "Little's law"
    assert passed.seqs <= asked["room"] * (1 + 1e-9)
    assert min(passed.ahead_s, passed.moved_s, passed.slot_s, passed.boundary_s) >= 0
    assert not passed.queued or passed.per_s == pytest.approx(min(net.limits))


@settings(max_examples=100, deadline=None)
@given(networks, st.sampled_from(["workers", "copies", "wire"]))
def test_more_workers_or_a_faster_wire_answer_no_fewer(asked, what):
    """A router over more workers evens requests out, so that one of a few per cent more may wait a little longer for a slot."""
    more = {"wire": {"moved_s": asked["moved_s"] / 2}}.get(what, {what: asked.get(what, 1) + 1})
    few, many = flow(network(**asked)), flow(network(**{**asked, **more}))
    assert many.per_s >= few.per_s * (1 - 0.01)


@settings(max_examples=60, deadline=None)
@given(networks)
def test_one_more_client_neither_slows_nor_speeds_others_down(asked):
    """Requests/s and their time grow with clients; all at once as one by one.

    Just before a station is full its queue's approximation may ask for a little more time than the clients have: 0.1 % of the rate.
    """
    clients = np.unique(np.round(np.geomspace(1, 1000, 25)))
    one, many = flow(network(**{**asked, "clients": 37})), flow(network(**{**asked, "clients": np.append(clients, 37)}))
    assert many.per_s[-1] == pytest.approx(one.per_s, rel=1e-8)
    assert np.all(np.diff(many.per_s[:-1]) >= -2e-3 * many.per_s[1:-1])
    life = clients / many.per_s[:-1]
    assert np.all(np.diff(life) >= -1e-9 * life[1:])


def test_a_lone_client_waits_for_nobody():
    net = network(1)
    passed = flow(net)
    assert (passed.ahead_s, passed.slot_s, passed.boundary_s) == (0, 0, 0)
    assert 1 / passed.per_s == pytest.approx(0.01 + 0.1 + 0.02 + 100 * 0.0101)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_many_clients_of_one_worker_wait_as_m_g_1(load):
    """Pollaczek and Khinchine, with lengths that vary by half: W = rho S (1 + cs^2) / 2 (1 - rho)."""
    net = network(100_000, room=10**4, moved_s=0.0, decodes=10**6 / load * 0.1, copies=10**3, step_s=1.0)
    net = replace(net, clients=load / 0.1 * flow(replace(net, clients=1)).life_s(net))
    rho, passed = 0.1 * flow(net).per_s, flow(net)
    assert passed.ahead_s == pytest.approx(rho * 0.1 * (1 + 0.25 / 3) / 2 / (1 - rho), rel=0.05)


def test_caches_move_no_faster_than_the_wire():
    """9.43 requests/s of 524 MB over 1.25 GB/s were said before."""
    found = commtax.simulate("llama-3.1-8b", catalog.cluster("2x1xh100-sxm", inter="10gbe"), **SLOW)
    nbytes = 4000 * float(kv_bytes_per_token(found.question.model, found.question.plan))
    assert 0.7 * 1.25e9 < float(found.requests_per_s) * nbytes < 1.25e9
    assert any(note.code == "queue" and "wire" in note for note in found.notes)


def test_tokens_come_faster_where_prompts_bind():
    """Only the requests that decode are in a step: 26.1 ms were said before, and 10.4 ms simulated."""
    words = {"disaggregated": True, "prefill_workers": 2, "decode_workers": 2, "input_len": 8000, "output_len": 200}
    few, many = (commtax.simulate("llama-3.1-8b", "4xh100-sxm", concurrency=n, **words) for n in (188, 376))
    assert 5 < few.running < 15
    assert many.tpot_s == pytest.approx(float(few.tpot_s))
    assert many.requests_per_s == pytest.approx(float(few.requests_per_s))
    assert any(note.code == "queue" and "prompts" in note for note in few.notes)


FULL = {"input_len": 64, "output_len": 900, "kv_tokens": 6000}


@pytest.mark.parametrize(("words", "slowest"), [({}, "wire"), (FULL, "decoding")])
def test_a_queue_is_said_where_it_stands(words, slowest):
    found = commtax.simulate("llama-3.1-8b", catalog.cluster("2x1xh100-sxm", inter="10gbe"), **{**SLOW, **words})
    assert STATIONS[int(found.apart.passed.slowest)] == slowest
    assert bool(found.apart.passed.queued) == any(note.code == "queue" for note in found.notes)
    assert found.apart.passed.queued


def test_few_nics_are_shared_by_who_sends():
    """One NIC a host: a lone prompt worker has it all, eight share it; and each direction has its own."""
    place = replace(catalog.cluster("2x8xh100-sxm", inter="100gbe"), nics_per_host=1)
    words = {"disaggregated": True, "concurrency": 4, "input_len": 4000}
    one, eight = (commtax.simulate("llama-3.1-8b", place, prefill_workers=n, decode_workers=8, **words) for n in (1, 8))
    assert eight.apart.net.wire.out_s == pytest.approx(8 * one.apart.net.wire.out_s)
    assert eight.apart.net.wire.in_s == one.apart.net.wire.in_s == eight.apart.net.wire.out_s


def test_ranks_of_a_prompt_worker_have_prompts_of_their_own():
    words = {"dp": 8, "ep": 8, "disaggregated": True, "prefill_workers": 1, "decode_workers": 1, "concurrency": 256}
    shared, ranks = (
        commtax.simulate("deepseek-r1", "2x8xh200-sxm", engine="sglang", input_len=8192, **words, **how)
        for how in ({"prefill_tp": 8}, {"prefill_tp": 1, "prefill_dp": 8})
    )
    assert (ranks.apart.plan.num_gpus, int(ranks.num_gpus)) == (8, 16)
    assert ranks.apart.net.prompting.one_s > shared.apart.net.prompting.one_s, "a prompt has one GPU's attention"
    with pytest.raises(ValueError, match="prefill_dp"):
        commtax.simulate("deepseek-r1", "2x8xh200-sxm", prefill_dp=8)


def test_decodes_reach_their_experts_as_is_said():
    """Low latency for decodes; prompts go in bulk."""
    words = {"dp": 8, "ep": 8, "disaggregated": True, "prefill_workers": 1, "prefill_tp": 8, "decode_workers": 1}
    low, bulk = (
        commtax.simulate("deepseek-r1", "2x8xh200-sxm", engine="sglang", concurrency=256, **words, ep_backend=f"deepep_{how}")
        for how in ("low_latency", "high_throughput")
    )
    assert low.tpot_s < 0.95 * bulk.tpot_s
    assert low.steps.prompt_s == pytest.approx(float(bulk.steps.prompt_s))


def drawn(rng):
    """A split that is legal or not, and its load."""
    place, inter = rng.choice(PLACES)
    words = {"engine": rng.choice(("vllm", "vllm@0.11", "sglang", "trtllm")), "disaggregated": True}
    words |= {"tp": rng.choice((1, 2, 4)), "prefill_tp": rng.choice((1, 2, 4)), "prefill_workers": rng.choice((1, 2, 3))}
    words |= {"decode_workers": rng.choice((1, 2, 4)), "concurrency": round(2 ** rng.uniform(0, 6.5))}
    words |= {"input_len": round(2 ** rng.uniform(6, 13)), "output_len": round(2 ** rng.uniform(3.5, 8.5))}
    model = rng.choice(("llama-3.1-8b", "qwen3-14b", "llama-3.1-70b", "qwen3-30b-a3b"))
    return model, catalog.cluster(place, **({"inter": inter} if inter else {})), {**words, "spread": rng.choice((0.1, 0.5, 0.5))}


def ratios(rng):
    """Simulated over closed form of TPOT, TTFT and requests/s, and how full the fullest station is; None where it is refused."""
    model, place, words = drawn(rng)
    count = max(120, LIVES * words["concurrency"])
    try:
        put = resolve_question(model, place, words)
        form, ran = closed_form(settle(put)), simulated(settle(put.but(num_prompts=count)))
    except Refusal:
        return None
    if form.num_gpus > place.num_gpus:
        return None
    middle = slice(count // 3, count - count // 6)
    done = np.sort(ran.columns["done_s"])[middle]
    tpot, ttft = (float(np.nanmean(ran.columns[name][middle])) for name in ("tpot_s", "ttft_s"))
    rate = (len(done) - 1) / float(done[-1] - done[0])
    full = float(form.apart.passed.per_s) / min(float(x) for x in form.apart.net.limits)
    return tpot / float(form.tpot_s), ttft / float(form.ttft_s), rate / float(form.requests_per_s), full


def test_the_closed_form_is_the_mean_of_the_simulation():
    """Of random splits with the wire between them, as far as no station is nearly full; and beyond, requests/s and tokens."""
    found = np.array([x for x in (ratios(Random(f"apart {i}")) for i in range(36)) if x])
    free = found[found[:, 3] < FREE]
    assert len(free) > 10
    for at, most in ((0, 0.03), (1, 0.06), (2, 0.06)):
        errors = np.abs(free[:, at] - 1)
        assert np.median(errors) < most
        assert np.mean(errors < 0.1) >= 0.85
    assert np.median(np.abs(found[:, [0, 2]] - 1)) < 0.04
    assert np.mean(np.abs(found[:, 0] - 1) < 0.1) > 0.9


def test_splits_are_listed_where_prompts_are_nearly_all_there_is_to_do():
    """Few output tokens: a prompt worker is busy with its first client already, and none was listed before."""
    found = plan("llama-3.1-8b", "2xh100-sxm", input_len=16000, output_len=4)
    assert np.any(found.plans.mode == 1)


@pytest.mark.parametrize(
    ("model", "cluster", "words"),
    [("deepseek-v3", "2x8xh100-sxm", "two need 32"), ("llama-3.1-8b", "h100-sxm", "a worker needs 1 GPU, two need 2")],
)
def test_where_no_split_is_listed_a_reason_is(model, cluster, words):
    found = plan(model, cluster)
    assert not np.any(found.plans.mode == 1)
    assert any(lost.family == "prompts on separate workers" and words in lost.reason for lost in found.rejected)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_pools_with_attention_dp_paste_back(engine, tmp_path):
    """What is emitted of two pools, the prompts' too with attention data parallelism, reads back as the same workers."""
    sizes = {"dp": 16, "ep": 16, "redundant_experts": 32, "ep_backend": "deepep_low_latency"}
    asked = ask("deepseek-r1", "4x8xh200-sxm", **sizes).but(
        disaggregated=True, prefill_tp=1, prefill_dp=8, prefill_workers=2, decode_workers=1
    )
    file = tmp_path / "launch.sh"
    file.write_text(apart_command(asked, engine))
    said = run_here("simulate", "-c", "4x8xh200-sxm", "--from", str(file), "--concurrency", "64", "--input-len", "512").stdout
    pools = "2 x DP 8 x TP 1 for prompts + 1 x DP 16 x TP 1 for decoding, experts over 8 and 16 with 32 redundant ones"
    assert f"32 GPUs = {pools}" in " ".join(said.split())
