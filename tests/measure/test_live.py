"""Tensor parallelism for real: processes, checkpoints and collectives, against transformers and against ``traffic``."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import live_models
from cli_run import run_here
from commtax import catalog
from commtax.catalog import physics
from commtax.cli import main
from commtax.cost.compute import step_kernels
from commtax.cost.forms import gemm
from commtax.question import workload
from commtax.runs.audit import audit
from commtax.runs.results.collective_tests import parse_run
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax.verbs.billing import bill
from commtax_lab.measure import launch, machine, own_constants
from commtax_lab.measure.arch import arch, arch_of_config
from commtax_lab.measure.collective_sweep import doubling_sizes
from commtax_lab.measure.comm import RankGroup
from commtax_lab.measure.engine import LiveEngine
from commtax_lab.measure.generate import generate, prompts
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.reconcile import document, is_reconciled
from commtax_lab.measure.tp import run_all
from commtax_lab.measure.weights import Checkpoint, RandomWeights, load
from forked import run_forked
from paths import HELPERS
from tables import tables
from texts import put

DATA = tables(__file__)
CPU = torch.device("cpu")
PROVEN = ("llama", "qwen3", "mixtral")
HOLDER = DATA["holder"]


@pytest.fixture(autouse=True, scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HELPERS), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Small checkpoints as transformers saves them, with transformers' own logits."""
    pytest.importorskip("transformers")
    found = {}
    for family in live_models.FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        model = live_models.write(folder, family, "60KB" if family == "llama" else None)
        tokens = prompts(live_models.BASE["vocab_size"], 2, 12, 0, CPU)
        found[family] = (folder, *live_models.reference_logits(model, tokens, 6))
    return found


def whole(folder, batch=2, length=40):
    a = arch(str(folder))
    return LiveEngine(a, load(Checkpoint(folder), a, 0, 1, torch.float32, CPU), RankGroup(0, 1), batch, length)


def worst(first, second):
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("family", live_models.FAMILIES)
def test_the_engine_says_what_transformers_says(checkpoints, family):
    folder, logits, chosen = checkpoints[family]
    engine = whole(folder)
    tokens = prompts(engine.arch.model.vocab, 2, 12, 0, CPU)
    found = generate(engine, tokens, 6, forced=chosen, keep=True)
    assert worst(logits, found.logits) < 1e-4
    assert all(torch.equal(a, b) for a, b in zip(found.tokens, chosen, strict=True))
    engine.cache.assign(torch.randperm(engine.cache.num_blocks, generator=torch.Generator().manual_seed(1)).view(2, -1))
    scattered = generate(engine, tokens, 6, forced=chosen, keep=True)
    assert worst(found.logits, scattered.logits) < 1e-6, "blocks may lie anywhere in the pool"


def test_the_step_that_graphs_capture_is_the_plain_step(checkpoints):
    """Static shapes and a mask instead of the length: the same arithmetic, checked without a GPU."""
    engine = whole(checkpoints["llama"][0])
    following = engine.prefill(prompts(engine.arch.model.vocab, 2, 12, 0, CPU)).argmax(-1)
    plain = engine.decode(following, 12)
    engine.place(following, 12)
    assert worst([plain], [engine.static_step()]) < 1e-5


def jobs(checkpoints, ranks, **changes):
    base = {"tp": ranks, "batch": 2, "input_len": 12, "output_len": 4, "device": "cpu", "cluster": "4xcpu"}
    return [LiveJob(model=str(checkpoints[f][0]), **{**base, **changes}).settle() for f in PROVEN]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def two(checkpoints, traces):
    """Two ranks: three architectures over shared memory, one over gloo, one damaged, one over gloo with a slow rank, traced."""
    good = jobs(checkpoints, 2)
    gloo = jobs(checkpoints, 2, impl="gloo", batch=1)[:1]
    broken = jobs(checkpoints, 2, break_rank=1)[:1]
    slow = jobs(checkpoints, 2, impl="gloo", slow_rank="1:30", output_len=9, trace=str(traces))[:1]
    return run_all([*good, *gloo, *broken, *slow], timeout_s=120)


@pytest.fixture(scope="module")
def four(checkpoints):
    """Four ranks, started once: two KV heads, so that keys and values are held twice; both wires; and small tensors in a storm."""
    asked, before = jobs(checkpoints, 4), set(launch.SHARED.glob("*commtax-*"))
    seen, added, wrong = launch.run("live_targets:four", asked, 4, timeout_s=120)
    left = set(launch.SHARED.glob("*commtax-*")) - before
    documents = [document(job, ranks) for job, ranks in zip(asked, seen, strict=True)]
    return SimpleNamespace(documents=documents, added=added, wrong=wrong, left=left)


@pytest.mark.parametrize("index", range(4))
def test_two_ranks_send_what_traffic_says_and_agree_with_one(two, index):
    prove(two[index])
    counts = {(r["phase"], r["what"]): r["count"] for r in two[index]["collectives"]["measured"]}
    assert counts[("decode", "attention output")] == counts[("prefill", "feed-forward output")] == 2, "once a layer"


@pytest.mark.parametrize("index", range(3))
def test_four_ranks_with_replicated_keys_and_values(four, index):
    prove(four.documents[index])
    assert four.documents[index]["ranks"][0]["replicated"]["keys and values"] > 0


def prove(found):
    assert found["collectives"]["equal"], found["collectives"]
    assert found["weights"]["equal"], found["weights"]
    assert found["logits_equal"]
    assert found["max_logit_diff"] < 1e-4
    assert all(
        r["weights_bytes"] == r["predicted_weights_bytes"] and r["kv_bytes"] == r["predicted_kv_bytes"] for r in found["ranks"]
    )
    assert {"ms_per_token", "prefill_ms"} <= found["tp"].keys() & found["tp1"].keys()
    assert is_reconciled(found)
    named = {row["item"] for row in found["bill"] if row["predicted_s"] is not None and row["measured_s"] is not None}
    assert {"head", "tp attention output", "tp logits", "QKV projection"} <= named


def test_one_rank_sends_nothing(checkpoints):
    for job in jobs(checkpoints, 1):
        run = generate(whole(Path(job.model)), prompts(96, 2, 12, 0, CPU), 4)
        assert not run.prefill_sent
        assert not any(run.decode_sent)


def test_slow_and_broken_ranks_are_caught(two):
    broken = two[4]
    assert broken["collectives"]["equal"], "it sends what it should"
    assert not broken["logits_equal"]
    assert not is_reconciled(broken)
    assert two[5]["tp"]["slowest_rank"] == 1
    assert two[5]["collectives"]["equal"]


def test_its_traces_say_so_too(two, traces):
    """The profiler's traces of both ranks: as many collectives and bytes as the engine's own ledger has, and who is slow."""
    (section,) = audit([traces]).sections
    assert section.culprit is None or (section.culprit.kind, section.culprit.rank) == ("slow rank", 1)  # a busy host may hide it
    ledger = Counter()
    for row in two[5]["collectives"]["measured"]:
        steps = 1 if row["phase"] == "prefill" else 8
        ledger.update({(row["op"], "count"): steps * row["count"], (row["op"], "bytes"): steps * row["count"] * row["nbytes"]})
    found = Counter()
    for row in section.collectives:
        found.update({(row.op, "count"): row.count, (row.op, "bytes"): row.nbytes})
    assert found == ledger


def test_shared_memory_adds_as_gloo_does_and_no_slot_is_read_early(four):
    for row in four.added:
        assert row["off"] <= 1
        assert row["gathered"]
        assert row["same"], "every rank holds the same bits"
    assert four.wrong == [0, 0, 0, 0]
    assert not four.left, "memory and semaphores have no names left"


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" if Path("/proc").exists() else True


def test_a_killed_rank_takes_the_run_down_within_seconds():
    pids, killed = [], []

    def kill(_news):
        if not killed:
            killed.append(time.monotonic())
            os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(launch.RankError, match="rank 1 was killed by SIGKILL") as caught:
        launch.run("live_targets:forever", {}, 2, watch=pids.extend, progress=kill, timeout_s=60)
    assert time.monotonic() - killed[0] < 10
    assert caught.value.rank == 1
    assert not any(alive(pid) for pid in pids)


def test_what_a_rank_raises_or_refuses_is_named_here():
    with pytest.raises(launch.RankError, match="seeded failure") as caught:
        launch.run("live_targets:fails", {"rank": 1}, 2, timeout_s=60)
    assert caught.value.rank == 1
    assert caught.value.trace.endswith("RuntimeError: seeded failure")
    assert "live_targets.py" in caught.value.trace
    with pytest.raises(Refusal, match="seeded refusal") as caught:
        launch.run("live_targets:refuses", {"rank": 1}, 2, timeout_s=60)
    assert caught.value.argument == "tp"


@pytest.mark.parametrize(("signs", "ranks"), [([signal.SIGTERM] * 2, 2), ([signal.SIGHUP], 1), ([signal.SIGKILL], 1)])
def test_neither_ranks_nor_folders_outlive_the_launcher(signs, ranks, tmp_path):
    running = subprocess.Popen(
        [sys.executable, "-c", DATA["script"], str(ranks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        pids = [int(word) for word in running.stdout.readline().split()]
        assert any(tmp_path.iterdir()), "the run has a folder"
        for sign in signs:
            running.send_signal(sign)
        running.wait(timeout=15)
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
    assert running.returncode != 0
    deadline = time.monotonic() + 15
    while (any(alive(pid) for pid in pids) or any(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in pids)
    assert not any(tmp_path.iterdir())


def test_ranks_killed_while_they_meet_in_shared_memory_leave_no_name():
    """Two signals end ranks at once, wherever they are: the launcher takes what they left along."""
    with pytest.raises(launch.RankError, match="SIGKILL"):
        launch.run("live_targets:dies_with_a_name", {}, 1, timeout_s=60)
    assert not list(launch.SHARED.glob("commtax-map-*-dieddied"))


def test_a_stopped_rank_is_lost_and_named():
    pids, stopped = [], []

    def stop(_news):
        if not stopped:
            stopped.append(time.monotonic())
            os.kill(pids[1], signal.SIGSTOP)

    with pytest.raises(launch.RankError, match="stopped for more than 2 s") as caught:
        launch.run("live_targets:forever", {}, 2, watch=pids.extend, progress=stop, lost_s=2.0)
    assert caught.value.rank == 1
    assert not any(alive(pid) for pid in pids)
    assert launch.LOST_S + sum(launch.GRACE_S.values()) < 30, "what nobody chose ends within half a minute"
    with pytest.raises(ValueError, match="lost_after=0"):
        launch.run("live_targets:forever", {}, 2, lost_s=0.0)


def test_leavings_of_dead_runs_are_swept_and_nothing_else(tmp_path):
    """A lock tells whose run is over; names that somebody chose are nobody's litter."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holders = [subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env=environment) for _ in "ab"]
    killed, living = (Path(holder.stdout.readline().strip()) for holder in holders)
    holders[0].kill()
    holders[0].wait()
    chosen = [tmp_path / name for name in ("commtax-2024-results", "commtax-run-mine", "commtax-run-abcdefgh")]
    for path in chosen:
        (path / "inside").mkdir(parents=True)
    shared = tmp_path / "shm"
    shared.mkdir()
    old = [shared / "commtax-map-ab12_x9z", shared / "sem.commtax-sem-0a1b2c3d-1"]
    space = launch.owner().partition("-")[2]
    dead = [
        shared / f"{name.format(f'{holders[0].pid:x}-{space}')}"
        for name in ("commtax-map-{}-newnewne", "sem.commtax-sem-{}-0a1b2c-1")
    ]
    alive = [shared / f"commtax-map-{who}-newnewne" for who in (launch.owner(), f"{holders[0].pid:x}-1")]  # of another container
    kept = [shared / "commtax-8-gpus.json", shared / "commtax-map-newnewne", shared / "sem.other-1", *alive]
    for path in (*old, *dead, *kept):
        path.write_text("")
    for path in (*old, kept[0], kept[2]):
        os.utime(path, (1, 1))
    launch.sweep(tmp_path, shared)
    assert (sorted(tmp_path.iterdir()), sorted(shared.iterdir())) == (sorted([*chosen, living, shared]), sorted(kept))
    assert not killed.exists()
    holders[1].terminate()
    for holder in holders:
        holder.wait()
        holder.stdout.close()


def command(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["measure", *words])
    shown = capsys.readouterr()
    return SimpleNamespace(returncode=ended.value.code, stdout=shown.out, stderr=shown.err)


def test_under_torchrun(checkpoints, tmp_path):
    """The launcher is a fork of this process; its ranks are processes that load all they need."""
    start = ["--standalone", "--nproc-per-node", "2", "-m", "commtax_lab.measure.tp"]
    asked = ["--device", "cpu", "--cluster", "2xcpu", "--input-len", "12", "--output-len", "4", "--model", checkpoints["llama"][0]]
    place = {**os.environ, "TMPDIR": str(tmp_path)}  # torchrun leaves its own folders
    done = run_forked("torch.distributed.run", *start, *asked, env=place)
    assert done.returncode == 0, done.stderr
    prove(json.loads(done.stdout[done.stdout.index("{") :]))


def test_the_command_proves_and_shows(checkpoints, capsys):
    lengths = ("--input-len", "8", "--output-len", "3")
    done = command(capsys, "tp", "--model", str(checkpoints["qwen3"][0]), "-tp", "2", *lengths, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal: ") == 3
    assert "replicas give" in done.stdout
    assert "no prediction: this machine is not calibrated" in " ".join(done.stdout.split())


def edited(folder, tmp_path, change):
    for name in ("config.json", "model.safetensors"):
        data = (folder / name).read_bytes()
        (tmp_path / name).write_bytes(change(data) if name == "model.safetensors" else data)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b[: len(b) // 2], "truncated"),
        (lambda b: b[:5], "not a safetensors file"),
        (lambda b: b[:8] + b"x" * 40 + b[48:], "header cannot be read"),
        (lambda b: b.replace(b"model.norm.weight", b"model.norm.wexxxx"), "tensor model.norm.weight is missing"),
        (lambda b: b.replace(b"[96,64]", b"[64,96]"), "has shape"),
        (lambda b: b.replace(b'"F32"', b'"I32"'), "is I32, not one of"),
    ],
)
def test_bad_checkpoints_are_refused_in_one_line(checkpoints, tmp_path, change, says):
    folder = edited(checkpoints["qwen3"][0], tmp_path, change)
    with pytest.raises(ValueError, match=says) as caught:
        whole(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_named(checkpoints, tmp_path, capsys):
    source = checkpoints["llama"][0]
    for file in source.iterdir():
        if "00002" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"model-00002-of-.* is missing"):
        whole(tmp_path)
    done = command(capsys, "tp", "--model", str(tmp_path), "-tp", "2", "--device", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is missing" in done.stderr


@pytest.mark.parametrize(("changes", "says"), DATA["bad_questions_are_refused_before_anything_starts"])
def test_bad_questions_are_refused_before_anything_starts(checkpoints, changes, says):
    with pytest.raises(ValueError, match=says):
        LiveJob(**{"model": str(checkpoints["llama"][0]), "device": "cpu", **changes}).settle()


@pytest.mark.parametrize(("changes", "says"), DATA["architectures_that_the_engine_cannot_run_are_refused"])
def test_architectures_that_the_engine_cannot_run_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        arch_of_config(json.loads(live_models.config("llama", **changes)), "x")


def test_random_weights_do_not_depend_on_the_degree():
    a = arch_of_config(json.loads(live_models.config("llama")), "x")
    source = RandomWeights(3, torch.float32, CPU)
    one = load(source, a, 0, 1, torch.float32, CPU)
    parts = [load(source, a, rank, 2, torch.float32, CPU) for rank in range(2)]
    assert torch.equal(torch.cat([p.embed for p in parts]), one.embed)
    assert torch.equal(torch.cat([p.layers[1].down for p in parts], dim=1), one.layers[1].down)


def test_a_sweep_reads_like_nccl_tests(tmp_path, capsys):
    files = [f"--{kind}={tmp_path}/{name}" for kind, name in (("output", "rows.jsonl"), ("plot", "times.svg"))]
    done = command(capsys, "collectives", "--impl", "gloo,shm", "--min", "4K", "--max", "8K", "--emulate-link", "10gbe", *files)
    assert done.returncode == 0, done.stderr
    run = parse_run(done.stdout)
    assert (run.op, [row.nbytes for row in run.rows]) == ("all-reduce", [4096, 8192] * 2)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {r["impl"] for r in rows} == {"gloo", "shm"}
    assert not any(r["wrong"] for r in rows)
    assert all(r["time_us"] >= 2 * 25 + r["size_bytes"] / 1250 for r in rows), "never less than the emulated ring takes"
    assert (tmp_path / "times.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize("verb", [["calibrate", "-o"], ["collectives", "--output"], ["collectives", "--plot"]])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(verb, tmp_path, capsys):
    done = command(capsys, *verb, str(tmp_path / "no-such-folder" / "x.svg"))
    assert done.returncode == 2
    assert "no such folder" in done.stderr


def test_times_that_do_not_grow_with_bytes_still_give_a_profile():
    """A machine too noisy to tell: no division by a slope of 0."""
    engine = catalog.engine("builtin")
    model = replace(own_constants._arch(own_constants.SHAPES[1]).model, dtype="fp32")
    works = [
        workload(phase, batch, context) for batch, phase, context in ((1, "decode", 32), (4, "decode", 32), (4, "prefill", 96))
    ]
    kernels = [k for work in works for k in step_kernels(model, Plan(activations_dtype="fp32"), work, work.rows, engine)]
    points = [(k, 1e-3 / (1 + float(k.nbytes))) for k in kernels if k.form == "gemm"]
    flat = {rows: 1e-3 / rows for rows in (1, *own_constants.FEW_ROWS, *own_constants.MANY_ROWS)}  # more rows take less time
    found = own_constants._fit_gemm(points, [own_constants.RankMeasurements([1e10], 1e11, 2**20, flat, [], 0.0, 1)], 1e10, 1e11)
    for name, value in found.items():
        physics.KERNEL[name].read(value, name)


def test_products_with_few_rows_come_back_from_what_was_timed():
    """A library that goes over the matrix once for every four rows up to sixteen, then lays it out, and multiplies after that."""
    sweeps, side = {rows: min(4, 1 + rows // 4) for rows in own_constants.FEW_ROWS}, 2048
    once, row_s = side * side * 4 / 1e10, 2 * side * side / 0.8e11
    timed = {rows: sweeps.get(rows, 4 if rows > 1 else 1) * once + rows * row_s for rows in (1, *sweeps, *own_constants.MANY_ROWS)}
    model, plan = replace(own_constants._arch(own_constants.SHAPES[0]).model, dtype="fp32"), Plan(activations_dtype="fp32")
    work = workload("decode", 1, 32)
    kernels = [k for k in step_kernels(model, plan, work, work.rows, catalog.engine("builtin")) if k.form == "gemm"]
    points = [(k, 1e-5 + float(k.nbytes) / 1e10 * (1 + row_s / once)) for k in kernels]
    seen = [own_constants.RankMeasurements([1e10], 1e11, side * side, timed, [], 0.0, 1)] * 2
    found = own_constants._fit_gemm(points, seen, 1e10, 1e11)
    assert ({rows: 1 + found[f"pack{rows}"] for rows in sweeps}, found["ep"]) == (pytest.approx(sweeps), pytest.approx(0.8))
    for rows, seconds in timed.items():
        product = replace(kernels[0], m=rows, n=side, k=side, nbytes=float(side * side * 4), flops=2.0 * rows * side * side)
        fixed, moving = gemm(product, found, 1e10, 1e11)
        assert float(fixed + moving) == pytest.approx(1e-5 + seconds, rel=0.02)


def test_sizes_double():
    assert doubling_sizes(8, 100) == [8, 16, 32, 64]
    with pytest.raises(ValueError, match="rise"):
        doubling_sizes(64, 8)


def test_calibration_gives_a_profile_that_bill_takes(tmp_path):
    shapes = [{**own_constants.SHAPES[1], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}]
    work = own_constants.BoxWork("fp32", machine.CPU_CARRIERS, shapes, ((1, 8), (4, 32)), 2**22)
    seen = launch.run(own_constants.TARGET, work, 2, timeout_s=120)
    file = put(tmp_path, "here.json", json.dumps(own_constants.profile(seen, "fp32", "here")))
    done = run_here("bill", "llama-3.2-1b", "-tp", "2", "--profile", file, "--json")
    assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    assert bill["engine"].startswith("builtin")
    assert any("calibrated: here" in item["source"] for item in bill["items"])
    found = json.loads(file.read_text())
    assert list(found["chip"]["flops_per_s"]) == ["fp32"], "the type that runs, and no other"
    assert [library["name"] for library in found["libraries"]] == ["shm", "gloo"]
    assert "comm: assumed" not in bill["weakest_source"]
    assert {item["algorithm"] for item in bill["items"] if item["kind"] == "comm"} == {"shm"}, "what ranks take unless told"


def test_attention_is_priced_at_the_rate_of_its_own_type(tmp_path):
    """A CPU without bf16 instructions: its bf16 rate says nothing of fp32's attention."""

    def priced(**rates):
        file = tmp_path / "p.json"
        chip = {"key": "cpu", "memory_Bps": 1e10, "flops_per_s": rates}
        file.write_text(json.dumps({"commtax_profile": 1, "engine": "builtin", "dtype": "fp32", "chip": chip}))
        steps = [
            bill("llama-3.2-1b", "2xcpu", phase=p, context=512, profile=str(file), dtype="fp32") for p in ("decode", "prefill")
        ]
        return [float(s.step_s) for s in steps]

    assert priced(fp32=4e10) == priced(fp32=4e10, bf16=1.5e8)


def test_collectives_fall_back_to_gloo_and_say_so(monkeypatch, capsys, checkpoints):
    without = replace(machine.facts(), no_semaphores="no POSIX semaphores: Function not implemented")
    monkeypatch.setattr(machine, "facts", lambda: without)
    done = command(capsys, "collectives", "--min", "8", "--max", "8")
    assert done.returncode == 0, done.stderr
    assert "gloo, 2 ranks" in done.stdout
    assert "shm," not in done.stdout
    assert "shared memory is not to be had here" in " ".join(done.stdout.split())
    assert LiveJob(model=str(checkpoints["llama"][0]), device="cpu").settle().impl == "gloo"
    for verb in (["tp", "--random", "llama-3.2-1b", "--layers", "1", "--device", "cpu"], ["collectives"], ["calibrate", "-o", "x"]):
        refused = command(capsys, *verb, "--impl", "shm")
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: impl 'shm': no POSIX semaphores")
        assert refused.stderr.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_one_gpu_says_what_the_cpu_says(checkpoints, graphs):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    folder, logits, chosen = checkpoints["llama"]
    a, device = arch(str(folder)), torch.device("cuda", 0)
    engine = LiveEngine(a, load(Checkpoint(folder), a, 0, 1, torch.float32, device), RankGroup(0, 1), 2, 40)
    if graphs:
        engine.capture()
    found = generate(engine, prompts(a.model.vocab, 2, 12, 0, device), 6, forced=[t.to(device) for t in chosen], keep=True)
    assert worst(logits, [x.cpu() for x in found.logits]) < 1e-2, "TF32 may be on"
    assert len(found.decode_s) == 5
