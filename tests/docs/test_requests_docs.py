"""What docs/requests.md says of its worked questions."""

import commtax
from commtax.verbs.examining import usage_of

LENGTHS = {"input_len": 512, "output_len": 128}


def test_one_big_group_across_hosts_loses_to_two_replicas():
    words = {"request_rate": 12, "num_prompts": 600, **LENGTHS}
    wide, two = (commtax.serve("llama-3.1-70b", "2x8xh100-sxm", **plan, **words) for plan in ({"tp": 16}, {"tp": 8, "replicas": 2}))
    for name in ("ttft_p99", "itl_p99"):
        assert 1.5 < wide.statistic(name) / two.statistic(name) < 3
    assert 1.5 < two.capacity / wide.capacity < 2.2
    assert usage_of(wide).comm_share > 0.5
    assert usage_of(two).comm_share < 0.3
    quiet = [
        commtax.serve("llama-3.1-70b", "2x8xh100-sxm", **plan, request_rate=2, num_prompts=200, **LENGTHS)
        for plan in ({"tp": 16}, {"tp": 8, "replicas": 2})
    ]
    assert 1.15 < quiet[0].statistic("tpot_mean") / quiet[1].statistic("tpot_mean") < 1.45


def test_a_pipeline_with_little_to_do_starves():
    few, more = (
        commtax.serve("llama-3.1-70b", "4xh100-sxm", pp=4, request_rate=rate, num_prompts=200, **LENGTHS) for rate in (0.25, 1)
    )
    flat = commtax.serve("llama-3.1-70b", "4xh100-sxm", tp=4, request_rate=1, num_prompts=200, **LENGTHS)
    assert usage_of(few).busy < 0.5
    assert usage_of(more).busy > 0.8
    assert 1.4 < usage_of(more).mean_batch < 2.5
    assert 2.5 < more.statistic("tpot_mean") / flat.statistic("tpot_mean") < 3.7
    assert more.statistic("itl_p99") > 2 * more.statistic("itl_p50")
