"""The study on an installed vLLM, through a stand-in that answers with recorded results, fails, dies or does not end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_run import run_here
from commtax.cli import main
from commtax.report.experiment import markdown
from commtax.study.vllm import FailedRunError, _alike

HERE = Path(__file__).parent


def run_cli(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["measure", "experiment", *map(str, words)])
    return ended.value.code, capsys.readouterr()


def stand_in(folder, patch):
    """NOT vLLM: a program of the same name and options that replays fixtures. The words of a study on it, and its calls."""
    program = folder / "vllm"
    program.write_text(f"#!{sys.executable}\n" + (HERE / "fake_vllm.py").read_text())
    program.chmod(0o755)
    calls = folder / "calls"
    patch.setenv("FAKE_VLLM_FIXTURES", str(HERE / "fixtures"))
    patch.setenv("FAKE_VLLM_CALLS", str(calls))
    patch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)

    def called():
        return [json.loads(line) for line in calls.read_text().splitlines()]

    place = ["--model", HERE / "fixtures" / "tiny-llama", "--quick", "--out", folder / "out"]
    return ["--engine", "vllm", "--vllm", program, *place], called


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return stand_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that went well, its words and calls; it can be asked to go on."""
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
    latency = json.loads((HERE / "fixtures" / "vllm-cpu-tp1.latency.json").read_text())["percentiles"]["50"]
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
    assert len(again) == 1
    assert again[0][again[0].index("--batch-size") + 1] == "4"


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
    assert _alike([(2, first), (2, first), (2, second)], 2) is None, "what has no kind is like nothing"
    assert _alike([(2, second), (2, second)], 2) is second
    assert _alike([(2, second), (2, second)], 1) is None
    dead = FailedRunError("died", "SIGILL", died=True)
    assert _alike([(2, dead), (1, dead)], 4) is dead


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
    """Processes of the stand-in that run a benchmark."""
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
    assert code == 1
    assert [row["tp"] for row in found["degrees"]] == [1]
    assert all("not enough devices" in f["why"] for f in found["failed"])
    assert all(a["answer"] for a in found["answers"])
    monkeypatch.delenv("FAKE_VLLM_FAIL")
    before = len(called())
    code, told = run_cli(capsys, *words, "--json")
    assert code == 0
    assert json.loads(told.out)["failed"] == []
    assert all(
        c["words"][c["words"].index("--tensor-parallel-size") + 1] == "2"
        for c in called()[before:]
        if "--tensor-parallel-size" in c["words"]
    )
