"""rocprofv3: tables and JSON as AMD's documentation, courses and tests print them, counted by hand and in another way."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.runs.audit import audit, formats
from commtax.runs.audit.read_files import read_all
from made_traces import clashes, per_step
from paths import FIXTURES

FOUND = json.loads((FIXTURES / "audit" / "rocprof.json").read_text())
KERNELS = [f for f in FOUND if "rows" in f["expected"]]
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
KERNEL_COLUMNS = (
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp End_Timestamp"
)
CALL_COLUMNS = "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"


def written(folder, found, number=0):
    name = f"{number}_results.json" if found["kind"] == "json" else f"{number}_{found['kind']}.csv"
    path = folder / name
    path.write_text(found.get("text") or json.dumps(found["document"]))
    return path


def of_kind(kind, name=""):
    return next(f for f in FOUND if f["kind"] == kind and name in f["name"])


def spent_ns(trace):
    line = trace.timeline
    return round(float(sum(line.end_s - line.start_s)) * 1e9)


@pytest.mark.parametrize("found", KERNELS, ids=lambda f: f["name"])
def test_kernels_as_they_were_printed(tmp_path, found):
    traces = formats.read(written(tmp_path, found))
    said = found["expected"]
    assert len(traces) == said["gpus"]
    (trace,) = traces
    assert (len(trace.timeline.name), spent_ns(trace), len(trace.timeline.lanes)) == (said["rows"], said["ns"], said["lanes"])
    if "text" in found:  # another way to count
        rows = list(csv.DictReader(io.StringIO(found["text"])))
        assert sum(int(r["End_Timestamp"]) - int(r["Start_Timestamp"]) for r in rows) == said["ns"]
        assert sorted(trace.timeline.name) == sorted(r["Kernel_Name"] for r in rows)
    assert clashes(trace.timeline) == 0


def test_tables_of_one_run_are_one_trace(tmp_path):
    """Kernels and copies of the documentation are of one process; so are those of the MI300X and the calls that launched them."""
    files = [written(tmp_path, of_kind(kind)) for kind in ("kernel_trace", "memory_copy_trace")]
    ((name, trace),) = read_all(files).left
    assert name == "0_kernel_trace.csv"
    assert (len(trace.timeline.name), spent_ns(trace)) == (5, 39451 + 203267)
    assert sum(n.startswith("MEMORY_COPY") for n in trace.timeline.name) == 2
    others = [written(tmp_path, of_kind(kind, part), 7) for kind, part in (("kernel_trace", "MI300X"), ("hip_api_trace", ""))]
    assert [spent_ns(said) for _, said in read_all([*files, *others]).left] == [39451 + 203267, 3558884]


def test_a_table_alone(tmp_path):
    (calls,) = formats.read(written(tmp_path, of_kind("rccl_api_trace")))
    assert calls.issued == of_kind("rccl_api_trace")["expected"]["issued"]
    assert not calls.on_device
    assert "calls only" in [n.code for n in calls.notes]
    (copies,) = [f for f in FOUND if f["kind"] == "memory_copy_trace"]
    with pytest.raises(ValueError, match="no kernel or call"):
        formats.read(written(tmp_path, copies))
    (ranges,) = formats.read(written(tmp_path, of_kind("marker_api_trace")))
    assert not ranges.steps


def table(columns, rows):
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([columns.split(), *rows])
    return out.getvalue()


def kernel(agent, name, correlation, start, end, stream=1):
    return ["KERNEL_DISPATCH", agent, 1, stream, 5, correlation, 3, name, correlation, start, end]


def call(domain, function, correlation, start, end):
    return [domain, function, 5, 5, correlation, start, end]


def made(folder, launches=True):
    """Two steps on two GPUs: RCCL calls all its kernels alike, and the calls around the launches tell them apart."""
    kernels, hip, rccl, markers, at, correlation = [], [], [], [], 1000, 0
    for _ in range(2):
        begin = at
        for function in ("ncclAllReduce", "ncclAllGather"):
            for agent in ("Agent 9", "Agent 10"):
                correlation += 1
                hip.append(call("HIP_RUNTIME_API_EXT", "hipExtLaunchKernel", correlation, at + 20, at + 30))
                rccl.append(call("RCCL_API", function, 5000 + correlation, at, at + 50))
                kernels.append(kernel(agent, GENERIC, correlation, at + 60, at + 160))
                kernels.append(kernel(agent, "Cijk_Alik_Bljk", correlation + 900, at + 160, at + 300))
                hip.append(call("HIP_RUNTIME_API_EXT", "hipExtLaunchKernel", correlation + 900, at + 52, at + 55))
            at += 400
        markers.append(call("MARKER_CORE_RANGE_API", "execute_context_0(0)_generation_8(8)", 0, begin - 5, at - 5))
    texts = {"kernel": (KERNEL_COLUMNS, kernels), "rccl_api": (CALL_COLUMNS, rccl), "marker_api": (CALL_COLUMNS, markers)}
    texts |= {"hip_api": (CALL_COLUMNS, hip)} if launches else {}
    for kind, (columns, rows) in texts.items():
        (folder / f"88_{kind}_trace.csv").write_text(table(columns, rows))
    return sorted(folder.glob("88_*.csv"))


def test_generic_kernels_take_their_calls(tmp_path):
    traces = [said for _, said in read_all(made(tmp_path)).left]
    assert [t.rank for t in traces] == [0, 1]
    for trace in traces:
        assert per_step(trace, "all-reduce") == [1, 1]
        assert per_step(trace, "all-gather") == [1, 1]
        assert [s.decode_seqs for s in trace.steps] == [8, 8]
    assert run_here("audit", *made(tmp_path), "--json").returncode == 0


def test_without_calls_of_hip_a_kernel_belongs_to_the_step_it_began_in(tmp_path):
    traces = [said for _, said in read_all(made(tmp_path, launches=False)).left]
    assert [per_step(t, "collective") for t in traces] == [[2, 2], [2, 2]]


def test_json_says_the_same_as_the_tables(tmp_path):
    """Kinds and operations are numbers into lists of names; a marker's text stands under its correlation."""

    def record(kind, operation, row):
        return {"kind": kind, "operation": operation, "thread_id": 5, "correlation_id": {"internal": row[-3], "external": 0}} | {
            "start_timestamp": row[-2],
            "end_timestamp": row[-1],
        }

    files = made(tmp_path)
    rows = {p.name.split("_", 1)[1]: list(csv.reader(io.StringIO(p.read_text())))[1:] for p in files}
    rows = {kind: [[int(c) if c.isdigit() else c for c in row] for row in of_kind] for kind, of_kind in rows.items()}
    operations = ["ncclAllReduce", "ncclAllGather"]
    strings = [
        {"kind": "HIP_RUNTIME_API_EXT", "operations": ["hipExtLaunchKernel"]},
        {"kind": "RCCL_API", "operations": operations},
        {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxThreadRangeA"]},
    ]
    names = sorted({row[7] for row in rows["kernel_trace.csv"]})
    dispatches = [
        record(3, 0, row)
        | {"dispatch_info": {"agent_id": {"handle": row[1]}, "queue_id": {"handle": 1}, "kernel_id": names.index(row[7])}}
        | {"stream_id": {"handle": row[3]}}
        for row in rows["kernel_trace.csv"]
    ]
    process = {
        "metadata": {"pid": 88},
        "agents": [{"id": {"handle": 9}, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304}],
        "kernel_symbols": [{"kernel_id": i, "formatted_kernel_name": name} for i, name in enumerate(names)],
        "strings": {"buffer_records": strings, "marker_api": [{"key": 0, "value": "execute_context_0(0)_generation_8(8)"}]},
        "buffer_records": {
            "kernel_dispatch": dispatches,
            "hip_api": [record(0, 0, row) for row in rows["hip_api_trace.csv"]],
            "rccl_api": [record(1, operations.index(row[1]), row) for row in rows["rccl_api_trace.csv"]],
            "marker_api": [record(2, 0, row) for row in rows["marker_api_trace.csv"]],
        },
    }
    path = tmp_path / "out_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    tables, document = [said for _, said in read_all(files).left], formats.read(path)
    for a, b in zip(tables, document, strict=True):
        assert a.collectives == b.collectives
        assert (a.steps, spent_ns(a), a.issued) == (b.steps, spent_ns(b), b.issued)


def test_cut_off_tables_give_what_is_readable(tmp_path):
    text = of_kind("kernel_trace")["text"]
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(text[:-60])
    (trace,) = formats.read(path)
    assert (len(trace.timeline.name), spent_ns(trace)) == (2, 16157 + 10464)
    assert [n for n in trace.notes if n.code == "partial" and "line 4" in n]
    assert trace.partial


@given(st.integers(0, 10**6))
def test_cut_off_json_gives_the_records_before(tmp_path_factory, at):
    (process,) = json.loads(json.dumps(of_kind("json")["document"]))["rocprofiler-sdk-tool"]
    process["buffer_records"]["kernel_dispatch"] *= 5
    whole = json.dumps({"rocprofiler-sdk-tool": [process]})
    text = whole[: at % len(whole)]
    path = tmp_path_factory.mktemp("cut") / "r.json"
    path.write_text(text)
    kept = text.count('"graph_node_id": 0}')
    try:
        (trace,) = formats.read(path)
    except ValueError:
        assert kept == 0
    else:
        assert (len(trace.timeline.name), spent_ns(trace)) == (kept, 800 * kept)
        assert [n for n in trace.notes if n.code == "partial"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.pftrace", "\n\x05", "Perfetto protobuf"),
        ("1_agent_info.csv", '"Node_Id","Logical_Node_Id","Agent_Type"\n0,0,"CPU"\n', "no kernel or call"),
        ("r.json", '{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{"a": 1}]}}]}', "wrong form"),
        ("r.json", '{"rocprofiler-sdk-tool": 7}', "wrong form"),
        ("1_kernel_trace.csv", '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n' + "a" * 3_000_000, "no kernel or call"),
    ],
)
def test_what_is_refused(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refused:
        formats.read(path)
    assert "\n" not in str(refused.value)


@given(st.sampled_from([f for f in FOUND if f["kind"] != "json"]), st.data())
def test_damaged_tables_are_read_or_refused(tmp_path_factory, found, data):
    raw = bytearray(found["text"].encode())
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / f"3_{found['kind']}.csv"
    path.write_bytes(raw)
    try:
        formats.read(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("kind", ["marker_api_trace", "hip_api_trace"])
def test_calls_alone_take_no_time_that_could_be_told(tmp_path, kind):
    found = audit([written(tmp_path, of_kind(kind))])
    assert found.sections[0].causes == ()
    assert found.verdict == "unknown"
