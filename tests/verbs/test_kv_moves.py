"""Caches in motion: carriers between workers, and prefixes from other tiers. Published tables are met; links are never beaten."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.motion import TIERS, carrier, tier
from commtax.catalog.techniques import technique
from commtax.cost.caches import hidden_s, loading_s, pieces_sent
from commtax.statement import Refusal
from commtax.verbs.disaggregation import Disaggregation, cache_bytes, wire_of
from commtax.verbs.prefix_tiers import break_even, prefix_return
from commtax.verbs.settling import ask

CARRIERS = ("", "nixl", "mooncake", "nccl")
APART = {"disaggregated": True, "prefill_workers": 1, "decode_workers": 1}
MOONCAKE = ((2048, 2.51), (8192, 8.84), (16384, 16.43), (32768, 31.65))
"""Tokens of Qwen3-8B and the milliseconds of their transfer between two hosts of 200 GB/s (Mooncake's vLLM benchmark)."""


def asked(model="llama-3.1-8b", place="2x8xh100-sxm", **options):
    return ask(model, place, **{"tp": 8, "engine": "vllm", **APART, **options})


@pytest.mark.parametrize(("tokens", "measured_ms"), MOONCAKE)
def test_mooncake_moves_what_it_was_measured_to(tokens, measured_ms):
    q = asked("qwen3-8b", catalog.cluster("2x8xh100-sxm", inter="roce-200"), technique="kv-transfer=mooncake")
    wire = wire_of(q, Disaggregation(q.plan, 1, 1), tokens)
    assert (float(wire.alone_s) - q.engine.host.handover_s) * 1e3 == pytest.approx(measured_ms, rel=0.12)


def test_small_blocks_cost_a_fetching_carrier_their_posting():
    """80 layers, keys and values apart, 512 blocks of 16 tokens: 81,920 pieces of 3.75 us; blocks of 64 a quarter of that."""
    model, nixl = catalog.model("llama-3.1-70b"), carrier("nixl")
    assert pieces_sent(model, nixl, "vllm", 8192, 16, 8, 8) == 2 * 80 * 512
    small, large = (asked("llama-3.1-70b", technique="kv-transfer=nixl", block_size=n) for n in (16, 64))
    walls = [float(wire_of(q, Disaggregation(q.plan, 1, 1), 8192).alone_s) for q in (small, large)]
    assert walls[0] - walls[1] == pytest.approx(2 * 80 * (512 - 128) * 3.75e-6, rel=1e-6)
    assert pieces_sent(model, carrier("mooncake"), "vllm", 8192, 16, 8, 8) == 2 * 80
    assert pieces_sent(model, carrier("mooncake"), "sglang", 8192, 16, 4, 8) == 2 * 80 * 8192 * 2, "heads cut out of each token"
    assert pieces_sent(catalog.model("deepseek-r1"), nixl, "vllm", 8192, 16, 4, 8) == 61 * 128, "a latent has no heads to cut"


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CARRIERS), st.sampled_from([1, 2, 4, 8]), st.integers(1, 100_000), st.floats(0, 10.0))
def test_no_cache_moves_faster_than_its_links(name, tp, tokens, prompt_s):
    q = asked(tp=tp, **({"technique": f"kv-transfer={name}"} if name else {}))
    wire = wire_of(q, Disaggregation(q.plan, 1, 1), tokens, prompt_s)
    least = float(cache_bytes(q, tokens)) / (tp * q.cluster.inter.bandwidth_Bps)
    inside = float(cache_bytes(q, tokens)) / (tp * q.cluster.intra.bandwidth_Bps)
    assert float(wire.out_s) >= (least if tp == 8 else inside)
    assert float(wire.alone_s + wire.hidden_s) >= float(wire.out_s)
    assert 0 <= float(wire.hidden_s) <= min(prompt_s, float(wire.alone_s + wire.hidden_s))


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 200))
def test_more_stages_hide_no_less_and_never_more_than_either(moving, computing, stages):
    few, many = hidden_s(moving, computing, stages), hidden_s(moving, computing, stages + 1)
    assert 0 <= few <= many <= min(moving, computing)
    last = (
        max(computing, moving / stages + (computing - computing / stages)) if moving <= computing else moving + computing / stages
    )
    assert computing + moving - few == pytest.approx(max(computing + moving / stages, last)), "as stages follow each other"


def test_layers_that_leave_early_are_never_slower():
    """NCCL sends a layer while the next is computed; so do requests in time."""
    words = {**APART, "tp": 8, "engine": "vllm", "concurrency": 4, "input_len": 8000, "output_len": 50}
    place = catalog.cluster("2x8xh100-sxm", inter="100gbe")
    late, early = (commtax.simulate("llama-3.1-70b", place, technique=f"kv-transfer={x}", **words) for x in ("mooncake", "nccl"))
    assert early.served.moved_s < late.served.moved_s
    timed = commtax.serve("llama-3.1-70b", place, technique="kv-transfer=nccl", num_prompts=60, **words)
    assert np.mean(timed.columns["transfer_s"]) == pytest.approx(float(early.served.moved_s), rel=0.1)


def test_what_cannot_carry_here_is_refused():
    for words, rule in (
        ({"technique": "kv-transfer=mori-io"}, "only on chips of AMD"),
        ({"technique": "kv-transfer=nccl", "engine": "sglang"}, "does not have it"),
        (
            {"technique": "kv-transfer=nixl", "disaggregated": False, "prefill_workers": None, "decode_workers": None},
            "disaggregated",
        ),
        ({"technique": "kv-transfer=pigeon"}, "one of nixl"),
    ):
        with pytest.raises(Refusal, match=rule):
            asked(**words)
    with pytest.raises(Refusal, match="same tp on both sides"):
        commtax.simulate("llama-3.1-8b", "2x8xh100-sxm", tp=4, prefill_tp=2, technique="kv-transfer=nccl", concurrency=4, **APART)
    mi355x = asked("deepseek-r1", "2x8xmi355x", engine="sglang", technique="kv-transfer=mori")
    assert mi355x.techniques.kv_transfer == "mori-io"


def test_all_carriers_of_a_technique_are_known():
    for word in set(technique("kv-transfer").words.values()):
        assert carrier(word).connectors
    assert set(technique("kv-offload").words.values()) == set(TIERS)


def test_vllm_loads_from_the_host_as_fast_as_was_published():
    """Llama-3.1-8B on an H100: TTFT falls to between a half and a twenty-second (vLLM's blog of January 2026)."""
    gains = []
    for tokens in (512, 120_000):
        words = {"concurrency": 1, "input_len": tokens, "output_len": 2, "spread": 0, "engine": "vllm"}
        cold, warm = (
            commtax.simulate("llama-3.1-8b", "1xh100-sxm", **words, **more)
            for more in ({}, {"prefix_cache": 1.0, "technique": "kv-offload"})
        )
        gains.append(float(cold.ttft_s / warm.ttft_s))
    assert 1.3 < gains[0] < 3
    assert 15 < gains[1] < 30


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(TIERS), st.floats(0.05, 1.0))
def test_a_prefix_from_elsewhere_comes_later_than_one_at_hand(name, share):
    words = {"tp": 2, "concurrency": 8, "input_len": 4096, "output_len": 64, "prefix_cache": share}
    hand, far = (
        commtax.simulate("llama-3.1-8b", "8xh100-sxm", **words, **more) for more in ({}, {"technique": f"kv-offload={name}"})
    )
    assert far.ttft_s > hand.ttft_s
    assert far.requests_per_s <= hand.requests_per_s
    q, where = far.question, tier(name)
    nbytes = share * 4096 * 131072 / 2
    rate = {"host": 63.015e9, "disk": 6.9e9, "remote": q.cluster.inter.bandwidth_Bps}[name]
    assert far.served.request_s - hand.served.request_s >= nbytes / rate * where.share


def test_loading_pays_from_where_its_line_crosses_computing():
    lengths = 2.0 ** np.arange(4, 12)
    assert break_even(lengths, 1e-3 + 1e-6 * lengths, 1e-5 * lengths) == pytest.approx(1e-3 / 9e-6)
    assert break_even(lengths, lengths * 0, lengths) == 16
    assert break_even(lengths, lengths, lengths * 0 + 1e-9) == np.inf
    assert loading_s(0.0, 0, 1e9, 1e-6, 1e-3) == 0
    remote = prefix_return(ask("llama-3.1-8b", "8xh200-sxm", tp=8, technique="kv-offload=remote"), 4096)
    assert 16 < remote.pays_from < 500
    assert remote.loaded_s < remote.computed_s


@pytest.mark.filterwarnings("error")
def test_prompts_that_the_host_hides_cost_nothing_to_compute():
    """Without graphs a short prompt takes no longer than none: loading pays where computing first takes longer."""
    lengths = 2.0 ** np.arange(4, 8)
    assert break_even(lengths, lengths * 0 + 2.0, np.array([0.0, 0.0, 4.0, 8.0])) == 48
    eager = prefix_return(ask("mixtral-8x7b", "2x8xh200-sxm", tp=2, pp=2, eager=True, technique="kv-offload=host"), 2000)
    assert 16 < eager.pays_from < np.inf


def test_requests_that_come_together_share_full_steps_in_closed_form_as_in_time():
    """The first requests of a benchmark: their own step is full, not only the wait before it."""
    words = {**APART, "prefill_workers": 2, "prefill_tp": 1, "prefill_dp": 4, "tp": 8, "engine": "sglang", "input_len": 1000}
    words |= {"output_len": 150, "concurrency": 96, "num_prompts": 480, "max_num_batched_tokens": 32768, "kv_tokens": 400_000}
    closed, timed = (verb("qwen3-30b-a3b", "2x8xh100-sxm", **words) for verb in (commtax.simulate, commtax.serve))
    assert float(closed.ttft_s) == pytest.approx(float(np.mean(timed.columns["ttft_s"])), rel=0.12)
