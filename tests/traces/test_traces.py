"""Profiler traces: the shared ones against an independent count, made ones by hand, a real two-rank run of vLLM on CPUs."""

import gzip
import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.evidence.collective_names import call_op, kernel_op
from commtax.runs.traces.meeting import meet
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.trace import graph_steps
from commtax.timeline import Timeline
from each import each
from made_traces import clashes, decode_graphs, document, event, exposed, kernel, launch, per_step, write
from paths import FIXTURES, SHARED
from tables import tables

DATA = tables(__file__)

TRACES = SHARED / "traces"
shared = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
NAMES = sorted(p.name for p in TRACES.glob("*.json.gz")) if TRACES.is_dir() else []


@cache
def read(name):
    """A shared trace, read once for all that ask about it."""
    return kineto.read(TRACES / name)


def independent_count(path):
    """Collectives by kind, slowly: every NCCL kernel, its launch by correlation, every call around that launch."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    calls = [e for e in events if e["name"].startswith("nccl:")]
    on_device = [e for e in events if e.get("cat") == "kernel"]
    if not on_device:
        return Counter(e["name"].removeprefix("nccl:") for e in calls)
    launches = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime" and "correlation" in e["args"]}
    found = Counter()
    for k in (k for k in on_device if k["name"].startswith("nccl")):
        at = launches.get(k["args"]["correlation"], {"ts": -1, "tid": None})
        around = [c for c in calls if c["tid"] == at["tid"] and c["ts"] <= at["ts"] <= c["ts"] + c["dur"]]
        found[around[-1]["name"].removeprefix("nccl:") if around else "unlaunched"] += 1
    return found


SPELLED = DATA["spelled"]


@shared
def test_eight_traces():
    assert len(NAMES) == 8


@shared
@pytest.mark.parametrize("name", NAMES)
def test_every_shared_trace_is_read_and_counted(name):
    trace = read(name)
    expected = Counter({SPELLED[k]: n for k, n in independent_count(TRACES / name).items()})
    assert Counter(c.op for c in trace.collectives) == expected
    assert all(c.seconds >= 0 for c in trace.collectives)
    assert 0 <= exposed(trace) <= 1
    assert len(trace.timeline.name) > 0
    comm = trace.timeline.kinds.index("comm")
    assert int(np.sum(trace.timeline.kind == comm)) == len(trace.collectives)


@shared
def test_message_metadata_of_the_nccl_trace():
    """2 x A100, three DDP steps of five all-reduces; sizes from the kernels' own metadata."""
    trace = read("nccl_parser_config_nccl_data.json.gz")
    raw = json.loads(gzip.decompress((TRACES / "nccl_parser_config_nccl_data.json.gz").read_bytes()))["traceEvents"]
    told = [e["args"] for e in raw if e.get("cat") == "kernel" and e["args"].get("Collective name") == "allreduce"]
    assert sum(c.nbytes for c in trace.collectives if c.op == "all-reduce") == 4 * sum(a["In msg nelems"] for a in told)
    assert len(trace.collectives) == 21
    assert per_step(trace, "all-reduce") == [5, 5, 5]
    assert per_step(trace, "broadcast") == [2, 2, 2]
    assert {c.ranks for c in trace.collectives} == {2}


@shared
def test_old_nccl_lies_about_its_kernels():
    """Every kernel is called SendRecv; the call that launched it tells what it is."""
    trace = read("negative_queue_length_values_check_rank0.json.gz")
    assert all("SendRecv" in c.name for c in trace.collectives)
    assert per_step(trace, "all-reduce") == [2] * 5
    gathers = [c for c in trace.collectives if c.op == "all-gather"]
    assert gathers
    assert all(c.nbytes for c in gathers)


@shared
def test_groups_of_one_rank_move_nothing():
    trace = read("ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    assert trace.issued == {"all-reduce": 25, "broadcast": 10}
    assert trace.collectives == ()
    assert exposed(trace) == 0
    assert any("none ran on the device" in n for n in trace.notes)


@shared
def test_two_ranks_of_one_job():
    """Sampled traces: what both ranks hold is matched by the clock, not by order; collectives end together."""
    traces = [read(f"trace_filter_sampled_rank-{r}.json.gz") for r in (0, 1)]
    meetings = meet(traces)
    assert meetings.by_clock
    seconds = meetings.seconds.reshape(5, 2)
    assert meetings.wire_s.tolist() == seconds.min(axis=1).tolist()
    assert seconds[0] == pytest.approx((62.783e-3, 57.924e-3))


KERNELS = DATA["kernels"]


@each(("name", "op"), KERNELS.items())
def test_kernels_by_name(name, op):
    assert kernel_op(name) == op


def test_calls_by_name():
    words = {"allreduce": "all-reduce", "gloo:all_gather": "all-gather", "all_to_allv": "all-to-all", "nccl:send 0->1": "send-recv"}
    assert {w: call_op(w) for w in words} == words


def test_exposed_communication_by_hand():
    """One step of 100 us: compute 0-40 and 60-100, a collective 30-70: 20 us of it covered by nothing."""
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        launch(0, 1),
        launch(10, 2),
        launch(20, 3),
        kernel("gemm", 0, 40, 1),
        kernel("gemm", 60, 40, 2),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 30, 40, 3, stream=20),
    ]
    trace = kineto.parse(document(events))
    assert exposed(trace) == pytest.approx(0.2)
    assert per_step(trace, "all-reduce") == [1]
    assert clashes(trace.timeline) == 0
    assert len(trace.timeline.lanes) == 2


def test_generic_kernels_take_their_launching_call():
    """RCCL's kernel has no name; the record around its launch has op, shape and type."""
    events = [
        event(
            "cpu_op",
            "c10d::_allgather_base_",
            0,
            50,
            **{"Input Dims": [[8, 4], [4, 4]], "Input type": ["c10::BFloat16", "c10::BFloat16"]},
        ),
        event("user_annotation", "nccl:_all_gather_base", 5, 40, **{"Input Dims": [[4, 4]], "Input type": ["c10::BFloat16"]}),
        launch(10, 9),
        kernel("ncclDevKernel_Generic_4(x)", 100, 5, 9),
    ]
    (found,) = kineto.parse(document(events)).collectives
    assert (found.op, found.nbytes, found.ranks) == ("all-gather", 64.0, 2)


def test_graph_replays_are_steps_when_nobody_names_them():
    """Three replays of one graph, and of two graphs in turn."""
    trace = kineto.parse(decode_graphs(9, 1, steps=3, phase=False))
    assert per_step(trace, "all-reduce") == [9, 9, 9]
    assert all(c.graph and c.nbytes is None for c in trace.collectives)
    assert exposed(trace) == pytest.approx(5 / 25)
    pieces = [(float(i), (("a", "b")[i % 2],), float(i), i + 0.9) for i in range(6)]
    assert [s.start_s for s in graph_steps(pieces)] == [0, 2, 4]
    assert graph_steps([(0.0, ("a",), 0.0, 1.0), (1.0, ("b",), 1.0, 2.0)]) == []


def test_wire_and_waiting():
    """Rank 1 is 3 us late at every collective: the wire is its own 5 us, and rank 0 waits 3 us each time."""
    early, late = (kineto.parse(decode_graphs(9, 1, rank=r, late_us=3.0 * (r == 0))) for r in (0, 1))
    meetings = meet([late, early])
    assert meetings.ranks == (0, 1)
    waited = (meetings.seconds.reshape(30, 2) - meetings.wire_s[:, None]).sum(axis=0).tolist()
    assert meetings.ranks[waited.index(min(waited))] == 1
    assert meetings.wire_s == pytest.approx([5e-6] * 30)
    assert waited == pytest.approx([30 * 3e-6, 0], abs=1e-12)


def test_ranks_without_a_common_clock_are_matched_by_order():
    traces = [
        kineto.parse(document(d["traceEvents"], r, baseTimeNanoseconds=r * 10**12))
        for r, d in enumerate((decode_graphs(2, 0), decode_graphs(2, 0)))
    ]
    meetings = meet(traces)
    assert not meetings.by_clock
    assert len(meetings.first) == 6
    with pytest.raises(ValueError, match="each rank once"):
        meet([traces[0], traces[0]])


def test_nanoseconds_survive():
    """Microseconds since 1970 with three digits behind the point are more than a float holds."""
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 0, "args": {"device": 0, "stream": 1}}] * 2
    text = json.dumps({"traceEvents": events}).replace('"ts": 0, "dur": 0', '"ts": 1712195495527376.234, "dur": 0.007', 1)
    text = text.replace('"ts": 0, "dur": 0', '"ts": 1712195495527376.241, "dur": 0.001', 1)
    line = kineto.from_pieces([text.encode()]).timeline
    assert line.start_s[1] - line.start_s[0] == pytest.approx(7e-9, rel=1e-9)
    assert clashes(line) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cut off"),
        (b'{"a": 1}', "no traceEvents"),
        (b'{"traceEvents": [{"ph": "M"}]}', "no complete events"),
        (b"\x1f\x8bxx", "damaged"),
    ],
)
def test_what_is_no_trace(tmp_path, content, words):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        kineto.read(path)


JUNK = st.one_of(
    st.none(), st.text(max_size=4), st.integers(-5, 5), st.floats(), st.lists(st.integers(), max_size=2), st.builds(dict)
)


@given(st.data())
def test_damaged_traces_are_refused_in_one_way(data):
    """Any value replaced by anything: the trace is read, or refused with a ValueError."""
    made = json.loads(json.dumps(document(decode_graphs(2, 1, steps=2)["traceEvents"])))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(
            st.sampled_from(
                [
                    made["distributedInfo"],
                    *made["traceEvents"],
                    *(e["args"] for e in made["traceEvents"] if isinstance(e.get("args"), dict)),
                ]
            )
        )
        key = data.draw(
            st.sampled_from([*place, "Group size", "In msg nelems", "dtype", "Collective name", "Input Dims", "Input type"])
        )
        place[key] = data.draw(JUNK)
    try:
        trace = kineto.from_pieces([json.dumps(made).encode()])
    except ValueError as error:
        assert str(error).startswith("trace 'trace'")  # noqa: PT017
    else:
        assert exposed(trace) >= 0


def test_bare_lists_and_gzip(tmp_path):
    made = decode_graphs(3, 0)
    plain = write(tmp_path / "a.json", made["traceEvents"])
    packed = write(tmp_path / "b.json.gz", made)
    assert [c.start_s for c in kineto.read(plain).collectives] == [c.start_s for c in kineto.read(packed).collectives]


def test_the_rank_may_be_in_the_name():
    events = decode_graphs(1, 0)["traceEvents"]
    assert [kineto.parse(events, name).rank for name in ("rank3.17.pt.trace.json", "t_rank-1.json", "x.json")] == [3, 1, 0]


def test_gloo_on_cpus():
    """A host trace: gloo's own records on their threads; the main thread's compute covers part of one."""
    call = {"Input Dims": [[64, 512]], "Input type": ["float"]}
    events = [
        event("cpu_op", "aten::matmul", 0, 40),
        event("cpu_op", "aten::mm", 1, 38),
        event("cpu_op", "c10d::allreduce_", 41, 3),
        event("user_annotation", "gloo:all_reduce", 45, 20, 2, **call),
        event("user_annotation", "gloo:all_gather", 70, 20, 2, **call),
        event("cpu_op", "aten::mm", 80, 20),
    ]
    trace = kineto.parse(document(events))
    assert not trace.on_device
    assert [(c.op, c.nbytes) for c in trace.collectives] == [("all-reduce", 131072), ("all-gather", 262144)]
    assert exposed(trace) == pytest.approx(30 / 100, rel=0.02)


def test_vllm_on_two_cpus():
    """A real run: vLLM 0.32, 4 layers, TP 2: nine all-reduces and one gather of the logits in every step."""
    traces = [kineto.read(FIXTURES / f"vllm-cpu-tp2-rank{r}.trace.json.gz") for r in (0, 1)]
    for trace in traces:
        assert [s.phase for s in trace.steps] == ["prefill", "decode", "decode", "decode"]
        assert per_step(trace, "all-reduce") == [9] * 4
        assert per_step(trace, "all-gather") == [1] * 4
        sizes = {(c.step > 0, c.op): c.nbytes for c in trace.collectives}
        assert sizes[True, "all-reduce"] == 512 * 2
        assert sizes[False, "all-reduce"] == 128 * 512 * 2
        assert sizes[True, "all-gather"] == 16384 * 2
    meetings = meet(traces)
    assert len(meetings.first) == 40
    assert meetings.by_clock
    assert meetings.wire_s.sum() < sum(c.seconds for c in traces[0].collectives)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 200), st.integers(0, 50)), min_size=1, max_size=30))
def test_uncovered_spans_sum_to_the_exposed_time(rows):
    kinds, starts, lengths = (np.array(x) for x in zip(*rows, strict=True))
    line = Timeline(
        np.arange(len(rows)),
        starts * 1.0,
        (starts + lengths) * 1.0,
        kinds,
        ("x",) * len(rows),
        ("l",) * len(rows),
        ("comm", "compute"),
    )
    comm, compute = ({t for k, start, length in rows if k == kind for t in range(start, start + length)} for kind in (0, 1))
    both, one = (sum(end - start for start, end in line.covered(*kinds)) for kinds in (("comm", "compute"), ("compute",)))
    assert both - one == len(comm - compute)
