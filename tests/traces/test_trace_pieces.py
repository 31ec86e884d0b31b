"""Traces read in pieces: cut anywhere they say the same, broken off they say what was whole, and odd events go alone."""

import gzip
import json
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.cli import progress
from commtax.files import open_stream
from commtax.runs.audit import formats, read_files
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.trace import distinct
from commtax.timeline import merge_spans
from each import each
from made_traces import decode_graphs, document, event, kernel, launch, write
from paths import FIXTURES, SHARED
from tables import tables
from texts import lacking

DATA = tables(__file__)
TRACES = SHARED / "traces"
CPU = [FIXTURES / f"vllm-cpu-tp2-rank{r}.trace.json.gz" for r in (0, 1)]
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
NAMES = st.one_of(
    st.sampled_from(
        [REDUCE, "gemm", "cudaLaunchKernel", "cudaGraphLaunch", "ProfilerStep#1", "nccl:all_reduce", "aten::mm", "c10d::allreduce_"]
    ),
    st.sampled_from(['}, {"ph": "X"', "],[", 'a"b\\', "“é”", "\u0001\n", '{"traceEvents": [', "vllm::all_reduce"]),
    st.text(max_size=5),
)
CATEGORIES = st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation", "python_function", "Trace", ""])
ODD = st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.just({"ph": "X"}))
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.one_of(st.integers(0, 5), ODD),
        "device": st.integers(0, 1),
        "stream": st.one_of(st.integers(0, 2), st.text(max_size=2)),
        "Collective name": st.sampled_from(["allreduce", "wait"]),
        "In msg nelems": st.one_of(st.integers(0, 9), ODD),
        "dtype": st.sampled_from(["BFloat16", "Int"]),
        "Group size": st.one_of(st.integers(0, 4), ODD),
        "Input Dims": st.just([[2, 3], []]),
        "Input type": st.just(["float", ""]),
        "stack": st.lists(st.builds(lambda name: {"name": name, "line": [{}, {"name": "x"}]}, NAMES), max_size=3),
    },
)
EVENTS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {
                "ph": st.sampled_from(["X", "X", "X", "f", "M"]),
                "cat": st.one_of(CATEGORIES, CATEGORIES, ODD),
                "name": st.one_of(NAMES, NAMES, ODD),
                "pid": st.one_of(st.integers(0, 1), st.just("Spans"), ODD),
                "tid": st.one_of(st.integers(0, 2), st.integers(0, 2), ODD),
                "ts": st.one_of(st.integers(0, 300), st.integers(0, 10**6).map(lambda n: n / 1000), ODD),
            },
            optional={"dur": st.one_of(st.integers(0, 50), ODD), "args": st.one_of(ARGS, ARGS, ARGS, ODD)},
        ),
        ODD,
    ),
    max_size=12,
)
WRITTEN = st.sampled_from(
    [
        lambda events: json.dumps(document(events)),
        lambda events: json.dumps({"traceEvents": events, "distributedInfo": {"rank": 1}, "baseTimeNanoseconds": 7}, indent=1),
        lambda events: json.dumps(events, separators=(",", ":")),
        lambda events: "\ufeff" + json.dumps(document(events), ensure_ascii=False),
    ]
)
SOUND = [launch(0, 1), kernel("gemm", 10, 5, 1), launch(20, 2), kernel(REDUCE, 30, 5, 2), kernel("last", 50, 5, 3)]
BAD = DATA["bad"]
CLOCKS = st.sampled_from([0, 4458676604328785, 8796093022207000, 1712195495527376234, 2**61])
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda x: (float(x[0]), float(sum(x)))), max_size=14)
RECORDED = json.loads((FIXTURES / "audit" / "stream.json").read_text())


def told(trace, notes=True):
    line = trace.timeline
    rows = zip(line.lane.tolist(), line.start_s.tolist(), line.end_s.tolist(), line.kind.tolist(), line.name, strict=True)
    shown = sorted((line.lanes[lane], *others) for lane, *others in rows)
    collectives = sorted(
        (c.start_s, c.end_s, c.op, str(c.nbytes), c.ranks, c.name, c.step, c.graph, c.group) for c in trace.collectives
    )
    said = [str(n) for n in trace.notes] if notes else []
    return trace.rank, trace.world, trace.origin_ns, shown, collectives, trace.steps, dict(trace.issued), trace.device, said


def answer(read, *words):
    try:
        return told(read(*words))
    except ValueError as error:
        return str(error)


# What may stand in a trace
def pieces(text, sizes):
    at = 0
    while at < len(text):
        for size in sizes:
            yield text[at : at + size]
            at += size


@given(EVENTS, WRITTEN, st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_pieces_of_any_size_say_what_the_whole_says(events, written, sizes):
    text = written(events).encode()
    assert answer(kineto.from_pieces, pieces(text, sizes)) == answer(kineto.from_pieces, [text])


@given(EVENTS)
def test_text_says_what_its_objects_say(events):
    made = document(events)
    assert answer(kineto.from_pieces, [json.dumps(made).encode()]) == answer(kineto.parse, made)


@given(st.integers(0, 40), st.data())
def test_any_cut_gives_the_events_before_it(extra, data):
    made = decode_graphs(2, 1, steps=2)["traceEvents"] + [event("python_function", "f", i, 1) for i in range(extra)]
    head = json.dumps(document([]))[:-3] + "["
    lines = [json.dumps(e) for e in made]
    text = head + ", ".join(lines) + '], "traceName": "x"}'
    at = data.draw(st.integers(1, len(text) - 1))
    whole = int(np.sum(len(head) - 2 + np.cumsum([len(line) + 2 for line in lines]) <= at))
    found = answer(lambda: kineto.from_pieces([text[:at].encode()]))
    if not whole:
        assert "cut off" in found
        return
    trace = kineto.from_pieces([text[:at].encode()])
    assert told(trace, False) == told(kineto.parse(document(made[:whole])), False)
    assert trace.partial
    assert any(n.code == "partial" and f"{whole} whole event" in n for n in trace.notes)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_packed_trace_that_breaks_off_gives_its_beginning(tmp_path, share):
    packed = CPU[0].read_bytes()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed[: int(len(packed) * share)])
    cut, whole = kineto.read(path), kineto.read(CPU[0])
    assert 0 < len(cut.timeline.name) < len(whole.timeline.name)
    assert not lacking(cut.partial, "the gzip file is damaged or cut off", "up to byte")
    assert [c.name for c in cut.collectives] == [c.name for c in whole.collectives][: len(cut.collectives)]


def test_a_bare_list_may_lack_its_bracket_and_a_text_be_in_utf_16():
    events = decode_graphs(2, 0)["traceEvents"]
    text = json.dumps(events)
    for ending in ("]", "", ",", " ,\n"):
        trace = kineto.from_pieces([(text[:-1] + ending).encode()])
        assert not trace.partial
        assert len(trace.collectives) == 6
    assert kineto.from_pieces([json.dumps({"traceEvents": events})[:-2].encode()]).partial
    text = json.dumps(document(SOUND)).encode("utf-16")
    assert told(kineto.from_pieces(pieces(text, [33]))) == told(kineto.parse(document(SOUND)))
    assert kineto.looks_like(text)


# Odd, damaged and unusual texts
@each("bad", BAD, ids=range(len(BAD)))
@each("place", [0, 2, 4])
def test_a_bad_event_goes_alone(bad, place):
    lines = [json.dumps(e) for e in SOUND]
    text = '{"traceEvents": [' + ",\n".join([*lines[:place], bad, *lines[place:]]) + '], "baseTimeNanoseconds": 5}'
    for size in (len(text), 100):
        trace = kineto.from_pieces(pieces(text.encode(), [size]))
        assert (sorted(trace.timeline.name), trace.origin_ns) == (sorted([REDUCE, "gemm", "last"]), 5)
        assert [str(n) for n in trace.notes if n.code == "damaged"] == ["1 event of the wrong form left out"]


@pytest.mark.parametrize(
    ("written", "read"),
    [(b"a\x01b\x1f", "a b "), (b"C:\\Users\\new", "C:\\Users\new"), (b"\xff\xfe", "\ufffd\ufffd"), (b"tab\there", "tab here")],
)
def test_names_as_writers_leave_them(written, read):
    text = json.dumps({"traceEvents": [*SOUND, kernel("NAME", 70, 5, 4, share="nan")]}).encode()
    text = text.replace(b"NAME", written).replace(b'"nan"', b"-nan")
    trace = kineto.from_pieces([text])
    assert read in trace.timeline.name
    assert len(trace.timeline.name) == 4
    assert not any(n.code == "damaged" for n in trace.notes)


def test_what_stands_around_the_events():
    """A large list of groups before them, and behind them what Kineto writes last; words of an event are no key of the trace."""
    groups = [
        {"pg_name": str(i), "pg_desc": "undefined", "pg_size": 4, "ranks": [4 * i + j for j in range(4)]} for i in range(3000)
    ]
    meta = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Group size": 4, "Process Group Name": "7"}
    head = {"note": '"traceEvents": [', "distributedInfo": {"rank": 29, "world_size": 12000, "pg_config": groups}}
    made = {**head, "traceEvents": [*SOUND, kernel(REDUCE, 90, 5, 9, **meta)], "baseTimeNanoseconds": 10**18}
    text = json.dumps(made).encode()
    assert kineto.looks_like(text[:65536])
    trace = kineto.from_pieces(pieces(text, [4096]))
    assert (trace.rank, trace.world, trace.origin_ns) == (29, 12000, 10**18)
    last = trace.collectives[-1]
    assert (last.op, last.nbytes, last.ranks, last.group, last.members) == ("all-reduce", 32.0, 4, "7", (28, 29, 30, 31))
    assert (last.algorithm, trace.timeline.lanes[last.lane]) == ("ring or nvls", "rank 29 gpu 0 stream 7")


# Exact times
@given(CLOCKS, st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_nanoseconds_are_exact_on_every_clock(clock, spans):
    line = '{"ph": "X", "cat": "kernel", "name": "k", "ts": %d.%03d, "dur": %d.%03d, "args": {"stream": 1}}'
    text = "[" + ",".join(line % (*divmod(clock + start, 1000), *divmod(lasting, 1000)) for start, lasting in spans) + "]"
    trace = kineto.from_pieces(pieces(text.encode(), [150]))
    origin = clock + min(start for start, _ in spans)
    assert trace.origin_ns == origin
    assert sorted(trace.timeline.start_s.tolist()) == sorted((clock + start - origin) * 1e-9 for start, _ in spans)
    ends = sorted((clock + start + lasting - origin) * 1e-9 for start, lasting in spans)
    assert sorted(trace.timeline.end_s.tolist()) == ends


# Memory, files and processes
def test_what_is_not_asked_for_is_not_held():
    """Eight megabytes of Python's own calls between two kernels take less than a quarter of that."""
    calls = json.dumps([event("python_function", "torch/nn/modules/module.py(1501): _call_impl", i, 1) for i in range(400)])[1:-1]
    first, last = json.dumps(kernel("first", 0, 5, 1)), json.dumps(kernel("last", 10**6, 5, 2))
    text = ", ".join([calls] * 150)
    made = (f'{{"traceEvents": [{first}, {text}, {last}]}}').encode()
    assert len(made) > 8e6
    view = memoryview(made)
    kineto.from_pieces([made[:5000]])
    tracemalloc.start()
    trace = kineto.from_pieces(bytes(view[i : i + 65536]) for i in range(0, len(made), 65536))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert trace.timeline.name == ("first", "last")
    assert peak < 2e6


def test_bytes_are_told_as_they_are_read():
    heard = []
    with open_stream(CPU[0], watch=heard.append) as stream:
        formats.FileToRead(stream).head  # noqa: B018
        list(stream.pieces(1000))
    assert sum(heard) == CPU[0].stat().st_size


def test_nobody_is_told_where_nobody_looks(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LARGE", 0)
    with progress.watch_reading(CPU) as watch:
        assert watch is None
    monkeypatch.setenv("COMMTAX_PROGRESS", "always")
    with progress.watch_reading(CPU) as watch:
        watch(CPU[0].stat().st_size)
        assert "(50%)" in progress.METER.line(80)
    assert not capsys.readouterr().err


def test_several_processes_read_what_one_reads(monkeypatch):
    alone = read_files.read_all(CPU).traces
    monkeypatch.setattr(read_files.COUNT, "worth_bytes", 0)
    heard = []
    several = read_files.read_all(CPU, watch=heard.append, processes=2).traces
    assert [told(t) for _, t in several] == [told(t) for _, t in alone]
    assert sum(heard) <= sum(p.stat().st_size for p in CPU)


# Ranks, hosts, devices
def test_ranks_and_hosts_by_the_name_of_the_file():
    events = decode_graphs(1, 0)["traceEvents"]
    names = {
        "1726780000.5-TP-3.trace.json.gz": (3, ""),
        "trace-r1.json": (1, ""),
        "node17_4211.1726780000123456789.pt.trace.json": (0, "node17"),
        "gpu-a.example.org_99.1726780000123.pt.trace.json.gz": (0, "gpu-a.example.org"),
        "rank_2.1726780000123.pt.trace.json": (2, ""),
        "driver1.json": (0, ""),
    }
    read = {name: kineto.parse(events, name) for name in names}
    assert {name: (t.rank, t.host) for name, t in read.items()} == names
    first, second = distinct([read["driver1.json"], read["node17_4211.1726780000123456789.pt.trace.json"]])
    assert (first.rank, second.rank) == (0, 1)
    assert second.timeline.lanes[0].startswith("rank 1 gpu")
    assert any(n.code == "numbered ranks" for n in second.notes)
    assert distinct([read["trace-r1.json"], read["driver1.json"]]) == [read["trace-r1.json"], read["driver1.json"]]


@each(("runtime", "kernels"), DATA["every_backend_s_launches_are_linked"])
def test_every_backend_s_launches_are_linked(runtime, kernels):
    """A step on the host, a kernel launched in it that runs after it: the step is when the device ran it."""
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event(runtime, "launch", 10, 5, correlation=1),
        event(kernels, "triton_poi_fused_add_0", 200, 30, device=0, stream=1, correlation=1),
        event(kernels, "dma_in", 300, 5, device=0, stream=2, correlation=9),
    ]
    trace = kineto.parse(document(events))
    (step,) = trace.steps
    assert (step.seconds, trace.timeline.kinds[trace.timeline.kind[-1]]) == (pytest.approx(30e-6), "copy")
    assert len(trace.timeline.lanes) == 2


# Oracles
def union(spans):
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@given(SPANS)
def test_spans_are_merged_as_by_hand(a):
    spans = np.array(a).reshape(-1, 2)
    assert [tuple(row) for row in merge_spans(spans[:, 0], spans[:, 1]).tolist()] == union(a)


def ns(microseconds):
    return round(Decimal(microseconds) * 1000)


def outermost(events):
    """Operations of a host without a device that hold no collective and lie in no other such one: how many, and how long."""
    called = [e for e in events if e["name"].startswith(("gloo:", "nccl:"))]
    spans = [(ns(e["ts"]), -ns(e["dur"]), e["tid"], e["name"]) for e in events if e.get("cat") == "cpu_op"]
    until, count, nanos = {}, 0, 0
    for at, negative, thread, name in sorted(spans):
        holds = any(e["tid"] == thread and at <= ns(e["ts"]) < at - negative for e in called)
        around = name.startswith(("c10d::", "record_param_comms", "gloo:", "nccl:"))
        if not holds and not around and at >= until.get(thread, -1.0):
            count, nanos, until[thread] = count + 1, nanos - negative, at - negative
    return count, nanos * 1e-9


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r["name"][:24])
def test_shared_traces_say_what_a_parser_of_whole_files_found(recorded):
    """As recorded with the reader that loaded a file whole, and as its own JSON counts."""
    raw = gzip.decompress((TRACES / recorded["name"]).read_bytes())
    trace = kineto.from_pieces(pieces(raw, [300_000]), recorded["name"])
    events = [e for e in json.loads(raw, parse_float=Decimal)["traceEvents"] if e.get("ph") == "X"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    expected, line = recorded["expected"], trace.timeline
    if device:
        assert len(line.name) == len(device)
        assert float(np.sum(line.end_s - line.start_s)) == pytest.approx(sum(float(e["dur"]) for e in device) * 1e-6, rel=1e-6)
    found = {}
    for c in trace.collectives:
        count, seconds, nbytes = found.get(c.op, (0, 0.0, 0.0))
        found[c.op] = (count + 1, seconds + c.seconds, nbytes + (c.nbytes or 0))
    assert {op: pytest.approx(figures, rel=1e-9) for op, figures in expected["collectives"].items()} == found
    assert [(s.start_s, s.end_s) for s in trace.steps] == [tuple(s) for s in expected["steps"]]
    assert (trace.origin_ns, dict(trace.issued), len(line.lanes)) == (expected["origin_ns"], expected["issued"], expected["lanes"])
    rows = expected["rows"] if device else {**expected["rows"], "compute": outermost(events)}
    for kind, (count, seconds) in rows.items():
        of_kind = line.kind == line.kinds.index(kind)
        assert int(np.sum(of_kind)) == count
        assert float(np.sum((line.end_s - line.start_s)[of_kind])) == pytest.approx(seconds, rel=1e-9)


def test_a_trace_on_the_disk_and_one_in_memory(tmp_path):
    made = decode_graphs(3, 1)
    assert told(kineto.read(write(tmp_path / "trace.json.gz", made))) == told(kineto.parse(made))
