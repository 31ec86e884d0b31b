"""Two real processes hold half each, agree with one, send what was counted, and wait for the slowest."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

NAME = "lab_02_capture"  # one live run serves every test of a session
if NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name("capture.py"))
    sys.modules[NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[NAME])
capture = sys.modules[NAME]
M = capture.MODEL
SIZES = (
    M["hidden_size"],
    M["intermediate_size"],
    M["num_hidden_layers"],
    M["num_attention_heads"],
    M["num_key_value_heads"],
    M["vocab_size"],
)
NORMS = (2 * M["num_hidden_layers"] + 1) * M["hidden_size"] * 4


def test_split_parameters_by_hand(lab):
    assert lab.split_parameters(4, 8, 1, 2, 1, 10) == 2 * 40 + 2 * 16 + 2 * 8 + 3 * 32
    assert lab.split_parameters(4096, 14336, 32, 32, 8, 128256) == 8_030_261_248 - 65 * 4096, "Llama-3.1-8B, all but its norms"


def test_weights_halve_on_two_live_ranks(lab):
    found = capture.live()
    wanted = lab.rank_weight_bytes(4 * lab.split_parameters(*SIZES), NORMS, 2)
    assert [r["weights_bytes"] for r in found["ranks"]] == [wanted, wanted]
    assert found["weights"]["tp1_bytes"] == lab.rank_weight_bytes(4 * lab.split_parameters(*SIZES), NORMS, 1)
    assert sum(r["weights_bytes"] for r in found["ranks"]) - NORMS == found["weights"]["tp1_bytes"], (
        "1/2 + 1/2, and the norms twice"
    )


def test_kv_blocks_of_each_rank(lab):
    found = capture.live()
    blocks = lab.kv_blocks(capture.PROMPT + capture.OUTPUT, capture.BLOCK, capture.BATCH)
    head_dim = M["hidden_size"] // M["num_attention_heads"]
    nbytes = lab.kv_bytes_per_rank(blocks, capture.BLOCK, M["num_hidden_layers"], M["num_key_value_heads"], head_dim, 4, 2)
    assert [(r["kv_blocks"], r["kv_bytes"]) for r in found["ranks"]] == [(blocks, nbytes)] * 2
    assert lab.kv_blocks(17, 16, 3) == 6, "each sequence rounds up by itself"
    assert lab.kv_bytes_per_rank(1, 16, 1, 2, 64, 2, 4) == lab.kv_bytes_per_rank(1, 16, 1, 2, 64, 2, 2), "a head is never cut"


def test_collectives_counted_in_the_live_run(lab):
    found, wanted = capture.live(), lab.collectives_per_step(M["num_hidden_layers"])
    for phase in ("prefill", "decode"):
        for op, count in wanted.items():
            assert sum(r["count"] for r in found["collectives"]["measured"] if (r["phase"], r["op"]) == (phase, op)) == count
    assert found["collectives"]["equal"], "and commtax traffic says the same, byte for byte"
    assert lab.collectives_per_step(32) == {"all-reduce": 65, "all-gather": 1}


def test_output_matches_one_rank(lab):
    assert capture.live()["logits_equal"]
    assert capture.live()["max_logit_diff"] < 1e-4
    assert lab.largest_difference([[1.0, 2.0], [3.0, -4.0]], [[1.0, 2.5], [3.0, -4.0]]) == 0.5
    assert lab.largest_difference([[1.0, -3.0]], [[1.0, 2.0]]) == 5.0
    assert lab.largest_difference([[math.nan, 0.0]], [[1.0, 0.0]]) == math.inf, "a NaN is no agreement"


def test_the_slowest_rank_rules(lab):
    assert lab.wire_and_waits([30e-6, 10e-6, 25e-6]) == (10e-6, pytest.approx([20e-6, 0.0, 15e-6]), 1)
    assert lab.step_seconds([8e-3, 8e-3], 1e-3) == pytest.approx(9e-3)
    assert lab.step_seconds([8e-3, 16e-3], 1e-3) == pytest.approx(17e-3), "one slow rank drags all"
    dragged = capture.dragged()
    waits = dragged["tp"]["waited_ms_per_token"]
    _, _, last = lab.wire_and_waits([w + 1e-3 for w in waits])
    assert last == dragged["tp"]["slowest_rank"] == 1


def test_when_two_replicas_beat_two_way_tp(lab):
    assert lab.winner(10e-3, 6e-3, 2, 1, "latency") == "tp"
    assert lab.winner(10e-3, 6e-3, 2, 1, "throughput") == "replicas", "two in 10 ms against one in 6"
    assert lab.winner(10e-3, 4.9e-3, 2, 8, "throughput") == "tp", "only if the step more than halves"
    assert lab.winner(10e-3, 11e-3, 2, 1, "latency") == "replicas", "all-reduces ate the gain"
    found = capture.live()
    goal = lab.winner(found["tp1"]["ms_per_token"], found["tp"]["ms_per_token"], 2, capture.BATCH, "latency")
    assert (goal == "tp") == (found["tp"]["ms_per_token"] < found["tp1"]["ms_per_token"])


@pytest.mark.gpu
def test_the_same_on_two_gpus(lab):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    found = capture.run("cuda", {})[0]
    assert found["collectives"]["equal"]
    assert found["logits_equal"]
    wanted = lab.rank_weight_bytes(2 * lab.split_parameters(*SIZES), NORMS // 2, 2)
    assert [r["weights_bytes"] for r in found["ranks"]] == [wanted, wanted]
