"""Traces for chrome://tracing: our own are read back as they were written, others are told apart."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.runs.audit import audit, formats
from commtax.runs.traces.profilers import kineto
from commtax.timeline import Timeline

KINDS = ("compute", "comm", "copy", "F", "decode")
SLICE = st.tuples(st.integers(0, 2), st.integers(0, 10**7), st.integers(0, 10**5), st.integers(0, 4))


def timeline(rows):
    lane, start, us, kind = (np.array(x) for x in zip(*rows, strict=True))
    names = tuple(f"slice {i}" for i in range(len(rows)))
    return Timeline(lane, start * 1e-6, (start + us) * 1e-6, kind, names, ("rank 0", "rank 1", "rank 2"), KINDS)


@given(st.lists(SLICE, min_size=1, max_size=20))
def test_what_we_write_is_read_back(tmp_path_factory, rows):
    """Lane by lane: seconds of each kind, where what neither communicates nor copies computes."""
    path = tmp_path_factory.mktemp("own") / "x.json"
    path.write_text(timeline(rows).to_chrome())
    traces = formats.read(path)
    assert [t.rank for t in traces] == sorted({lane for lane, *_ in rows})
    for trace in traces:
        own = [(us, KINDS[kind]) for lane, _, us, kind in rows if lane == trace.rank]
        for kind in ("comm", "copy"):
            assert trace.timeline.busy_s([kind]).sum() == pytest.approx(sum(us for us, k in own if k == kind) * 1e-6)
        assert trace.timeline.busy_s().sum() == pytest.approx(sum(us for us, _ in own) * 1e-6)


def test_a_pipeline_read_back(tmp_path):
    """Four stages of eight microbatches: forward and backward of each, and the bubble that the command says."""
    path = tmp_path / "pipeline.json"
    done = run_here("pipeline", "-p", "4", "-m", "8", "--chrome-trace", path, "--json")
    assert done.returncode == 0
    traces = formats.read(path)
    assert [(t.rank, len(t.timeline.name), t.training) for t in traces] == [(r, 16, True) for r in range(4)]
    spans = [(t.timeline.begin_s, t.timeline.finish_s) for t in traces]
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    busy = sum(t.timeline.busy_s().sum() for t in traces) / 4
    assert 1 - busy / whole == pytest.approx(json.loads(done.stdout)["bubble_over_total"])


def test_a_simulation_read_back(tmp_path):
    """Slices of steps alike become steps; their phases are those of the slices."""
    path = tmp_path / "served.json"
    asked = ("--cluster", "h100-sxm", "--request-rate", "4", "--num-prompts", "20", "--timeline", path)
    assert run_here("simulate", "llama-3.1-8b", *asked).returncode in (0, 1)
    (trace,) = formats.read(path)
    assert {s.phase for s in trace.steps} >= {"decode"}
    assert [s.index for s in trace.steps] == list(range(len(trace.steps)))
    assert sum(s.seconds for s in trace.steps) == pytest.approx(float(trace.timeline.busy_s().sum()))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([{"ph": "X", "cat": "gpu_activity", "name": "k", "ts": 1, "dur": 1}], "found categories gpu_activity"),
        ([{"ph": "X", "cat": f"c{i}", "name": "k", "ts": 1, "dur": 1} for i in range(20)], "found categories c0, c1.* …"),
        ([{"ph": "X", "name": "k", "ts": 1, "dur": 1, "pid": 1}], "found categories none"),
    ],
)
def test_other_chrome_traces_are_told_apart(tmp_path, events, words):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(ValueError, match=f"a Chrome trace without device kernels.*{words}"):
        formats.read(path)


@given(st.data())
def test_damaged_traces_of_ours_are_refused_in_one_line(tmp_path_factory, data):
    made = json.loads(timeline([(0, 5, 5, 1), (1, 5, 9, 0)]).to_chrome())
    event = data.draw(st.sampled_from(made["traceEvents"]))
    event[data.draw(st.sampled_from([*event]))] = data.draw(st.none() | st.text(max_size=3) | st.floats() | st.builds(list))
    path = tmp_path_factory.mktemp("damaged") / "x.json"
    path.write_text(json.dumps(made))
    assert kineto.is_ours(path.read_bytes()[:999])
    try:
        formats.read(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def kernel(name, device, start_us, us, **other):
    return {"cat": "kernel", "name": name, "ts": start_us, "dur": us, "tid": 7, "args": {"device": device, "stream": 7}, **other}


def test_events_without_their_phase_are_read(tmp_path):
    """Some writers leave out ph: what has a category, a beginning and a length is complete."""
    path = tmp_path / "x.json"
    events = [kernel("ncclDevKernel_AllReduce", 0, 10.0, 24.0), kernel("moe", 0, 40.0, 539.0), {"name": "meta", "args": {}}]
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = formats.read(path)
    assert [(c.op, round(c.seconds * 1e6)) for c in trace.collectives] == [("all-reduce", 24)]
    assert trace.timeline.busy_s(["compute"]).sum() == pytest.approx(539e-6)


@pytest.mark.parametrize("world", [0, 8])
def test_devices_of_one_process_are_told_one_by_one(tmp_path, world):
    """A device that copies alone is none; the file of a job's rank is one, whatever it names."""
    path = tmp_path / "x.json"
    events = [kernel("gemm", d, 50.0 * i, 40.0 - 10 * d, ph="X") for d in range(3) for i in range(4)]
    events += [kernel("ncclDevKernel_AllReduce_RING", d, 300.0, 50.0, ph="X") for d in range(3)]
    events.append({**kernel("Memcpy DtoD", 3, 0.0, 9.0, ph="X"), "cat": "gpu_memcpy"})
    told = {"distributedInfo": {"rank": 0, "world_size": world}} if world else {}
    path.write_text(json.dumps({**told, "traceEvents": events}))
    traces = formats.read(path)
    assert [t.rank for t in traces] == ([0] if world else [0, 1, 2])
    if not world:
        assert [round(t.timeline.busy_s(["compute"]).sum() * 1e6) for t in traces] == [160, 120, 80]
        assert all(len(t.collectives) == 1 for t in traces)


def test_idle_time_is_a_part_of_the_ranks_own_step(tmp_path):
    """Steps of 1 and 1.5 ms: what idles in the longer one is no more than all of it."""
    for rank, (length, us) in enumerate([(1000.0, 50.0), (1500.0, 100.0)]):
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "tid": 1, "ts": 0, "dur": length}
        kernels = [kernel("triton", 0, 20.0 + 1000 * i, us, ph="X") for i in range(8)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [step, *kernels]}))
    audited = audit([tmp_path])
    (stall,) = (c for c in audited.sections[0].causes if c.code == "stall")
    assert stall.share == pytest.approx(1300 / 1500)
    assert "a step of rank 1 would take 200 µs instead of 1.5 ms" in stall.gain
    assert {f.item: f.measured for f in audited.findings if f.code == "outside"} == {
        f"rank {r}: compute in the whole trace": pytest.approx(us * 1e-6) for r, us in enumerate((400, 800))
    }
