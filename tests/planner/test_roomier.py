"""Engine limits where memory binds, and those that servers are told: hand-worked anchors beside the laws of ``agreement``."""

import numpy as np

import commtax
from commtax.planner.fleets import servers_of
from commtax.verbs.fit_advice import changed_limits
from commtax.words import flags


def test_fewer_sampled_rows_free_memory_for_three_times_the_clients():
    """vLLM's dummy run samples 1,024 rows of 201,088 logits, 38 bytes each: 7.3 GiB, of which 256 rows take a quarter.

    512 rows would do for as many clients, and leave no room for a request of the model's own length.
    """
    found = commtax.plan("gpt-oss-120b", "1xh100-sxm", tpot_s="25ms")
    more = found.roomier
    assert (found.plans.concurrency[0], more.plans.concurrency[0]) == (8, 24)
    assert any("--max-num-seqs 256: 159,730 KV tokens per replica instead of 18,357, 24 clients" in line for line in found.why)
    assert commtax.fit("gpt-oss-120b", "1xh100-sxm", tp=1, max_num_seqs=256).kv_tokens == 159730
    assert any("would not start with the checkpoint's own 131,072 tokens: each GPU is 4.36 GiB" in line for line in found.why)
    assert commtax.worth("gpt-oss-120b", "1xh100-sxm", concurrency=24).limits.flag == "--max-num-seqs 256"


def test_limits_that_make_it_fit_come_first():
    judged = commtax.fit("gpt-oss-120b", "1xh100-sxm")
    assert judged.advice[0] == flags(changed_limits(judged.roomier, judged)) == "--max-num-seqs 256"
    assert not judged.fits
    assert judged.roomier.fits


def test_servers_have_room_for_the_peak_of_their_clients():
    """384 clients of 8 servers are 48 each, and sqrt(48) = 6.9: three of these more are 69, which run in the graph of 72."""
    found = commtax.plan("llama-3.1-8b", "8xh100-sxm", tpot_s=0.02)
    rows = found.plans
    i = int(np.flatnonzero((rows.replicas == 8) & (rows.tp == 1) & (rows.mode == 0))[0])
    assert rows.concurrency[i] == 384
    assert servers_of(found, i).question.limits.max_num_seqs == 72


def test_servers_without_a_limit_on_tokens_keep_the_engines_own():
    found = commtax.plan("llama-3.1-8b", "2xh100-sxm")
    assert all(servers_of(found, i).question.limits.max_num_seqs == 0 for i in range(len(found.plans)))
