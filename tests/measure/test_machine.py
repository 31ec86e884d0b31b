"""What follows from a machine's facts, and the kernel sweep: its rows are sane, and it says what it needs."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from commtax import catalog
from commtax_lab.measure import machine
from commtax_lab.measure.machine import MachineFacts
from commtax_lab.measure.study import kernels
from commtax_lab.measure.study.leash import leash_command
from commtax_lab.measure.study.vllm import failure
from each import each
from forked import run_forked
from paths import ROOT
from tables import tables

DATA = tables(__file__)
SKYLAKE = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512bw\nprocessor\t: 1\nflags\t\t: fpu"
SAPPHIRE = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
NEOVERSE_N1 = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes atomics fphp asimdhp cpuid asimddp ssbs\n"
GRACE = "processor\t: 0\nFeatures\t: fp asimd atomics sve sve2 i8mm bf16 dgh\n"
M1 = "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_BF16: 0\n"
M2 = "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_BF16: 1\n"
MACHINES = {
    "x86-64 with bf16": (MachineFacts("Linux", "x86_64", machine.linux_features(SAPPHIRE)), "bf16"),
    "x86-64 without": (MachineFacts("Linux", "x86_64", machine.linux_features(SKYLAKE)), "fp32"),
    "aarch64 with bf16": (MachineFacts("Linux", "aarch64", machine.linux_features(GRACE)), "bf16"),
    "aarch64 without": (MachineFacts("Linux", "aarch64", machine.linux_features(NEOVERSE_N1)), "fp32"),
    "macOS, M2": (MachineFacts("Darwin", "arm64", machine.apple_features(M2)), "bf16"),
    "macOS, M1": (MachineFacts("Darwin", "arm64", machine.apple_features(M1)), "fp32"),
    "macOS, Intel": (MachineFacts("Darwin", "x86_64", machine.apple_features("")), "fp32"),
}
ROWS = ROOT / "benchmarks" / "h200"
FILES = sorted(ROWS.glob("*.jsonl"))
INTERPRETED = DATA["interpreted"]


@pytest.mark.parametrize("name", MACHINES)
def test_synchronisation_and_type_follow_from_the_facts(name):
    facts, served = MACHINES[name]
    assert machine.carriers(facts)[-1] == "shm", "semaphores order memory on every architecture"
    assert machine.carriers(facts) == ("gloo", "shm")
    assert not machine.carrier_note(facts)
    assert (machine.engine_dtype("cpu"), machine.served_dtype(facts, on_cpu=True)) == ("fp32", served)
    assert machine.served_dtype(facts, on_cpu=False) == "bf16", "a GPU's type is not the host's"
    assert bool(machine.bf16_note(facts, "bf16")) == (served == "fp32")
    assert not machine.bf16_note(facts, "fp32")
    without = replace(facts, no_semaphores="no POSIX semaphores: not implemented")
    assert (machine.carriers(without)[-1], machine.carriers(without)) == ("gloo", ("gloo",))
    assert "not implemented" in machine.carrier_note(without)


def test_this_machine_is_read():
    facts = machine.facts()
    assert facts.system
    assert facts.architecture
    assert machine.semaphore_fault() == facts.no_semaphores
    assert 1 <= machine.cores_per_rank(2) <= len(machine.cores())


# --- programs of others ----------------------------------------------------------------------------------------------------
@each(("code", "log", "says"), DATA["how_an_engine_ended_is_recognised"])
def test_how_an_engine_ended_is_recognised(code, log, says):
    found = failure("vllm serve", code, log, "bf16")
    assert says in found.text
    assert found.died == ("died of" in found.text)
    assert "ancelled" not in found.text


def test_sigill_in_bf16_names_the_type_where_the_cpu_lacks_it(monkeypatch):
    monkeypatch.setattr(machine, "facts", lambda: MACHINES["aarch64 without"][0])
    assert "use --dtype fp32" in failure("vllm serve", -4, "", "bf16").text
    assert "--dtype" not in failure("vllm serve", -4, "", "fp32").text


@pytest.mark.parametrize("code", [0, 3, -signal.SIGILL, -signal.SIGKILL])
def test_a_leash_ends_as_its_program_does(code):
    script = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    done = subprocess.run(leash_command([sys.executable, "-c", script]), check=False, timeout=60, start_new_session=True)
    assert done.returncode == code


def test_a_leashed_program_does_not_outlive_a_killed_starter():
    starter = subprocess.Popen([sys.executable, "-c", DATA["starter"]], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the program lives on")


def test_what_torch_says_of_missing_instructions_is_no_error():
    warnings.warn("mkldnn_linear: bf16 path needs the cpu support avx512bw, avx512vl and avx512dq", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning):
        warnings.warn("anything else", UserWarning, stacklevel=1)


def sweep(*words):
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
    assert (said.out, len(said.err.splitlines())) == ("", 1)
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
    assert (head["kind"], head["device"]) == ("header", "cpu")
    assert {r["kind"] for r in found} == {"small", "decode", "prefill", "step"}
    assert all(r["median_s"] > 0 and len(r["samples_s"]) == 2 for r in found)


def test_an_unwritable_file_is_named(capsys):
    pytest.importorskip("torch")
    assert kernels.main(["--device", "cpu", "--out", "/no/such/folder/rows.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "/no/such/folder" in said
    assert "Traceback" not in said


def test_shards_and_splits_divide_what_they_hold():
    pytest.importorskip("torch")
    from commtax_lab.measure.study.rank_steps import shard

    whole = shard(catalog.model("llama-3.1-70b"), 1)
    part = shard(catalog.model("llama-3.1-70b"), 8)
    assert (part.num_weights() * 8, (part.heads, part.kv_heads, part.qkv)) == (whole.num_weights(), (8, 1, 1280))
    assert shard(catalog.model("mixtral-8x7b"), 1) is None  # experts
    assert shard(catalog.model("llama-2-13b"), 16) is None  # 40 heads
    pytest.importorskip("torch")
    from commtax_lab.measure.study.fused import MAX_SPLITS, Splits, num_splits

    for blocks in (1, 7, 64, 211, 212, 1000):
        for length in (1, 100, 1025, 32768):
            assert 1 <= num_splits(blocks, length, 132) <= MAX_SPLITS
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
    assert (token(layers, table, head).float() - want).norm() / want.norm() < 0.03


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
