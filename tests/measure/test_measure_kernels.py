"""The kernel sweep: its operations agree with plain ones, its rows are sane, and it says what it needs."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from commtax import catalog
from commtax_lab.measure.study import kernels
from forked import run_forked
from paths import ROOT

ROWS = ROOT / "benchmarks" / "h200"
FILES = sorted(ROWS.glob("*.jsonl"))


def sweep(*words):
    """The sweep as a user runs it."""
    return run_forked("commtax_lab.measure.study.kernels", *words)


def rows(kind):
    name = "small" if kind == "copy" else kind
    found = [json.loads(line) for line in (ROWS / f"{name}.jsonl").read_text().splitlines()]
    return [r for r in found if r["kind"] == kind]


def has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.mark.skipif(has_cuda(), reason="this machine could run it")
def test_without_a_gpu_it_says_so_in_one_line(capsys):
    assert kernels.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "torch" in said.err or "CUDA" in said.err


@pytest.mark.parametrize("words", [("--only", "gem"), ("--minutes", "0"), ("--minutes", "nan")])
def test_bad_options_are_refused(words):
    done = sweep(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_cpu_run_writes_a_header_and_every_kind(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "rows.jsonl"
    done = sweep("--device", "cpu", "--quick", "--only", "small,decode,prefill,step", "--out", str(out))
    assert done.returncode == 0, done.stderr
    head, *found = [json.loads(line) for line in out.read_text().splitlines()]
    assert head["kind"] == "header"
    assert head["device"] == "cpu"
    assert {r["kind"] for r in found} == {"small", "decode", "prefill", "step"}
    assert all(r["median_s"] > 0 and len(r["samples_s"]) == 2 for r in found)


def test_an_unwritable_file_is_named(capsys):
    pytest.importorskip("torch")
    assert kernels.main(["--device", "cpu", "--out", "/no/such/folder/rows.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "/no/such/folder" in said
    assert "Traceback" not in said


def test_shards_divide_what_they_hold():
    pytest.importorskip("torch")
    from commtax_lab.measure.study.rank_steps import shard

    whole = shard(catalog.model("llama-3.1-70b"), 1)
    part = shard(catalog.model("llama-3.1-70b"), 8)
    assert part.num_weights() * 8 == whole.num_weights()
    assert (part.heads, part.kv_heads, part.qkv) == (8, 1, 1280)
    assert shard(catalog.model("mixtral-8x7b"), 1) is None  # experts
    assert shard(catalog.model("llama-2-13b"), 16) is None  # 40 heads


def test_splits_cover_the_length_and_fill_the_card():
    pytest.importorskip("torch")
    from commtax_lab.measure.study.fused import MAX_SPLITS, Splits, num_splits

    for blocks in (1, 7, 64, 211, 212, 1000):
        for length in (1, 100, 1025, 32768):
            n = num_splits(blocks, length, 132)
            assert 1 <= n <= MAX_SPLITS
            s = Splits.make(blocks, 1, 1, 64, length, "cpu", 132)
            assert (s.num - 1) * s.chunk < length <= s.num * s.chunk
    assert num_splits(1000, 32768, 132) == 1
    assert num_splits(1, 32768, 132) > 16


def test_decoding_continues_what_prefill_began():
    """The last logits of a prompt are those of decoding its last token over the cache of the others."""
    torch = pytest.importorskip("torch")
    from commtax_lab.measure.study import rank_steps
    from commtax_lab.measure.study.timing import OperandPool

    torch.manual_seed(0)
    shape, length = rank_steps.Shard("check", 1, 2, 128, 4, 2, 32, 192, 256, True, True), 24
    weights, cache = OperandPool.make(1 << 19, "cpu", 0.05), OperandPool.make(1 << 16, "cpu", 1.0)
    layers = [rank_steps._layer(shape, 1, length, weights, cache) for _ in range(shape.num_layers)]
    table, head = weights.take(256, 128), weights.take(256, 128)
    prompt = rank_steps._StepBuffers(shape, "prefill", 1, length, "cpu", 1)
    want = prompt(layers, table, head).float()
    token = rank_steps._StepBuffers(shape, "decode", 1, length, "cpu", 1)
    token.ids.copy_(prompt.ids[-1:])
    got = token(layers, table, head).float()
    assert (got - want).norm() / want.norm() < 0.03


INTERPRETED = """
import torch
from commtax_lab.measure.study import fused

torch.manual_seed(0)
def tensors(*shapes): return [torch.randn(s).bfloat16() for s in shapes]
def both(run, *outs):
    found = []
    for fused.INTERPRETED in (True, False):
        run()
        found.append([o.float().clone() for o in outs])
        [o.zero_() for o in outs]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*found))

x, r, w, s, o = tensors((3, 320), (3, 320), (320,), (3, 320), (3, 320))
assert both(lambda: fused.add_norm(x, r, w, s, o), s, o) < 0.01
g, o = tensors((3, 2600), (3, 1300))
assert both(lambda: fused.swiglu(g, o), o) < 0.01
for normed in (False, True):
    qkv, q, keys, values, n = tensors((3, 9 * 64), (3, 5, 64), (1, 8, 2, 64), (1, 8, 2, 64), (64,))
    t = fused.turns(torch.tensor([5, 0, 7]), torch.tensor([5, 1, 7]), 64, 8)
    [c.zero_() for c in (keys, values)]
    assert both(lambda: fused.rotary_write(qkv, q, keys, values, t, n.repeat(2, 1) if normed else None), q, keys, values) < 0.01
"""


def test_triton_kernels_do_what_plain_functions_do():
    """Under Triton's interpreter; its products in bf16 are broken, so attention is checked on the device (``agreement``)."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env={**os.environ, "TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_kept_rows_are_whole(path):
    head, *found = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["device"] == "NVIDIA H200"
    assert max(head.get("agreement", {"": 0.0}).values()) < 0.02, "the engine's shards are proved by its own tests"
    assert len(found) >= 150
    for r in found:
        assert r["median_s"] > 0
        assert min(r["samples_s"]) * 0.8 < r["median_s"] < max(r["samples_s"]) * 1.25


def test_kept_rows_keep_the_laws_of_physics():
    """Cold bytes cannot be read faster than the memory's rate, nor products done faster than the datasheet's peak."""
    chip = catalog.chip("h200-sxm")
    for r in rows("gemm"):
        stored = r["n"] * r["k"] * (1 if r["dtype"] == "fp8" else 2)
        flops = 2.0 * r["m"] * r["n"] * r["k"]
        assert r["median_s"] > max(stored / chip.memory_Bps, flops / chip.flops_per_s[r["dtype"]])
    for r in rows("decode"):
        assert r["median_s"] > 4.0 * r["batch"] * r["length"] * r["kv_heads"] * r["head_dim"] / chip.memory_Bps
    for r in rows("prefill"):
        assert r["median_s"] > 2.0 * r["batch"] * r["heads"] * r["head_dim"] * r["length"] ** 2 / chip.flops_per_s["bf16"]
    for r in rows("copy"):
        assert r["nbytes"] / r["median_s"] < chip.memory_Bps


def test_kept_steps_fall_with_tp_but_never_in_proportion():
    """Fixed costs of every launch stay: 8 ranks never gave a batch-1 step 8 times as fast, and often not 4 times."""
    groups = {}
    for r in rows("step"):
        groups.setdefault((r["model"], r["phase"], r["batch"], r["length"]), {})[r["tp"]] = r["median_s"]
    for key, found in groups.items():
        times = [found[tp] for tp in sorted(found)]
        assert np.all(np.diff(times) < 0), key
    gains = [f[1] / f[8] for (_, phase, batch, _), f in groups.items() if phase == "decode" and batch == 1 and {1, 8} <= set(f)]
    assert len(gains) >= 5
    assert max(gains) < 6
    assert np.median(gains) < 4
