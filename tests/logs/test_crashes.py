"""What a run that failed says first: the root error, whatever echoes of it stand below and whoever speaks between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.audit import audit
from commtax.runs.logs import crashes
from commtax.runs.logs.engine_logs import vllm_log
from tables import tables

DATA = tables(__file__)

VLLM = DATA["vllm"]
SGLANG = DATA["sglang"]
TORCHRUN = DATA["torchrun"]
SUMMARY = DATA["summary"]
KILLED = SUMMARY.replace("exitcode  : 1", "exitcode  : -9").replace(
    "To enable traceback see:", "Signal 9 (SIGKILL) received by PID 24321"
)
CHAIN = DATA["chain"]
CAUSED = DATA["caused"]
NCCL_BELOW = DATA["nccl_below"]


@pytest.mark.parametrize(
    ("text", "error", "who", "where"),
    [
        (VLLM, "RuntimeError: NCCL error: unhandled cuda error", "Worker_TP1 pid=33", "pynccl_wrapper.py:272"),
        (SGLANG, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "TP1", "memory.py:12"),
        (TORCHRUN, "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-17.bin'", "rank2", "train.py:60"),
        (SUMMARY, "rank 4 ended first, with exit code 1; what it wrote itself is not in this text", "", ""),
        (CHAIN, "ValueError: The checkpoint has model type `qwen9` but Transformers does not recog", "", "config.py:1204"),
        (CAUSED, "RuntimeError: Failed to find C compiler.", "", "gpu.py:3"),
    ],
    ids=["vllm", "sglang", "torchrun", "summary", "lookup", "caused"],
)
def test_the_root_error(text, error, who, where):
    found = crashes.find(text.splitlines())
    assert found.error.startswith(error)
    assert (found.who, found.where) == (who, where)


def test_the_traceback_of_a_launcher_is_not_that_of_its_process():
    ended = "E0323 21:57:08.583000 23 elastic/x.py:869] failed (exitcode: 1) local_rank: 0 (pid: 88) of binary: python"
    lines = [
        ended,
        "Traceback (most recent call last):",
        '  File "/opt/bin/torchrun", line 10, in <module>',
        "    sys.exit(main())",
    ]
    said = "local rank 0 exited with 1 (failed (exitcode: 1) local_rank: 0), and its own error is not in this text"
    assert crashes.find(lines).sentence == said
    assert crashes.find([*lines[:1], *(f"step {i}" for i in range(40))]) is None  # it was started again


def test_more_of_an_error():
    assert "Cuda failure 2 'out of memory'" in crashes.find(NCCL_BELOW.splitlines()).error
    assert "for want of memory" in crashes.find(KILLED.splitlines()).error
    assert crashes.find(CAUSED.splitlines()).then.startswith("torch._inductor.exc.InductorError")


HEALTHY = 'Traceback (most recent call last):\n  File "/a.py", line 3, in f\nValueError: a client sent nonsense\n' + "step\n" * 40


@pytest.mark.parametrize(
    "text", [HEALTHY, "loss 2.3\n" * 30, "KeyboardInterrupt\n", HEALTHY.replace("ValueError", "KeyboardInterrupt")]
)
def test_what_a_run_went_on_after_is_no_crash(text):
    assert crashes.find(text.splitlines()) is None


@pytest.mark.parametrize(("text", "kind"), [(VLLM, "log"), (SGLANG, "log"), (TORCHRUN, "crash"), (SUMMARY, "crash")])
def test_a_run_that_failed_is_off(text, kind, tmp_path):
    path = tmp_path / "x.log"
    path.write_text(text)
    found = audit([path])
    assert found.verdict == "disagree"
    assert [s.kind for s in found.sections] == [kind]
    assert found.sections[0].causes[0].code == "failure"
    assert "initialization failed" not in found.sections[0].causes[0].said


def test_a_server_that_failed_later_had_started(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(VLLM.replace("(Worker_TP1 pid=33) ERROR", "INFO: Application startup complete.\n(Worker_TP1 pid=33) ERROR", 1))
    section = audit([path]).sections[0]
    assert "failed later" in section.causes[0].said
    assert [f.code for f in section.findings if f.verdict == "disagree"] == ["runs that ended in an error"]


def test_a_server_outlives_the_error_of_a_request():
    ready = (
        "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='a'\nINFO:     Application startup complete.\n"
    )
    request = (
        'Traceback (most recent call last):\n  File "/vllm/serving_chat.py", line 200, in create\nValueError: no chat template\n'
    )
    assert "failure" not in vllm_log.parse(ready + request).settings
    assert "no chat template" in vllm_log.parse(ready.partition("\n")[0] + "\n" + request).settings["failure"]


@settings(max_examples=15)
@given(st.sampled_from([VLLM, SGLANG, TORCHRUN, CHAIN, CAUSED]), st.lists(st.integers(0, 30), max_size=6), st.data())
def test_lines_that_are_lost_or_doubled_break_nothing(text, places, data):
    lines = text.splitlines()
    for place in places:
        at = place % len(lines)
        lines[at:at] = data.draw(st.sampled_from([[], [lines[at]], [""], ["x" * 500], ['  File "', "Error: "]]))
    found = crashes.find(lines)
    assert found is None or found.error


@pytest.mark.parametrize(
    "piece", ['  File "a", line 1, in f ', "Error: ", "a.b.c.", "Traceback (most recent call last)", "T12:00:00.1"]
)
def test_one_endless_line(piece):
    crashes.find([piece * 20_000] * 3)
