"""Nsight Systems and rocprofv3: exports made from documented schemas, counted by hand and in another way."""

import csv
import gzip
import hashlib
import io
import json
import os
import sqlite3
import stat
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.runs.audit import audit, formats
from commtax.runs.audit.read_files import read_all
from commtax.runs.traces.profilers import nsys
from made_nsys import NEW, OLD, PID, Export, counted, payload
from made_traces import clashes, exposed, per_step
from paths import FIXTURES
from tables import tables
from texts import put

DATA = tables(__file__)
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FUSED = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
JUNK = st.none() | st.text(max_size=5) | st.floats() | st.binary(max_size=40) | st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 10**9), st.integers(1, 10**6), st.booleans())
FOUND = json.loads((FIXTURES / "audit" / "rocprof.json").read_text())
KERNELS = [f for f in FOUND if "rows" in f["expected"]]
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
KERNEL_COLUMNS = (
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp End_Timestamp"
)
CALL_COLUMNS = "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"


def read(path):
    return formats.read(path)


def spent_ns(trace):
    line = trace.timeline
    return round(float(sum(line.end_s - line.start_s)) * 1e9)


def steps(export, count=3, reduces=4, pid=1, device=0, late=0):
    """Steps that somebody named: a product and an all-reduce in turn, one gather at the end, a copy before all."""
    at, correlation = 10_000, 0
    for _ in range(count):
        begin = at
        for i in range(reduces + 1):
            sent = FUSED if i < reduces else GATHER
            for name, ns in (("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 20_000 - late), (sent, 5_000 + late)):
                correlation += 1
                export.launch(at - 2_000, correlation, pid=pid)
                export.kernel(name, at, at + ns, correlation, pid, device)
                at += ns
        export.copied(at, at + 500, correlation + 1000, pid, device, stream=8)
        export.range("execute_context_0(0)_generation_4(4)", begin - 3_000, at - 1_000, pid)
        at += 3_000
    return export


def test_old_columns(tmp_path):
    """2019: a kernel has no process, and there are no graphs."""
    path = steps(Export(tmp_path / "old.sqlite", OLD)).done()
    (trace,) = read(path)
    assert ((len(trace.timeline.name), spent_ns(trace)), per_step(trace, "all-reduce")) == (counted(path), [4, 4, 4])
    assert (per_step(trace, "all-gather"), [s.phase for s in trace.steps]) == ([1, 1, 1], ["decode"] * 3)
    assert trace.steps[0].decode_seqs == 4
    assert trace.device is None
    assert clashes(trace.timeline) == 0


def test_new_columns_of_two_processes(tmp_path):
    """Each process counts correlations from 1 and sees one GPU, which it calls 0; the second is 3 us late each time."""
    export = Export(tmp_path / "two.sqlite")
    for pid, gpu in ((41, 6), (40, 3)):
        steps(export, pid=pid, late=3_000 * (pid == 40))
        export.put("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.put("TARGET_INFO_GPU", vmId=0, id=gpu, name="NVIDIA H100 80GB HBM3", totalMemory=85_520_809_984, smCount=132)
    export.put("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_712_195_495_000_000_001)
    export.put("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    path = export.done()
    traces = read(path)
    assert [t.rank for t in traces] == [0, 1]
    for trace, pid in zip(traces, (40, 41), strict=True):
        assert (len(trace.timeline.name), spent_ns(trace)) == counted(path, f"globalPid = {pid * PID}")
        assert per_step(trace, "all-reduce") == [4, 4, 4]
        assert (trace.host, trace.origin_ns) == ("node7", 1_712_195_495_000_000_001 + 7_000)
        assert (trace.device.name, trace.device.num_sms, trace.device.count) == ("NVIDIA H100 80GB HBM3", 132, 2)
    met = list(zip(*(t.collectives for t in traces), strict=True))
    assert len(met) == 15
    assert all(min(c.seconds for c in row) == pytest.approx(5e-6) for row in met)


def test_one_process_on_two_gpus(tmp_path):
    export = Export(tmp_path / "jax.sqlite")
    for device in (1, 0):
        export.kernel(REDUCE, 1_000, 5_000 + device, 7 + device, device=device)
        export.launch(500, 7 + device)
    path = export.done()
    assert [spent_ns(t) for t in read(path)] == [4_000, 4_001]
    assert [counted(path, f"deviceId = {d}")[1] for d in (0, 1)] == [4_000, 4_001]


@pytest.mark.parametrize("called", [True, False])
def test_graphs_whose_nodes_were_traced(tmp_path, called):
    """Nodes share the correlation of their launch; where calls were not traced, the first node stands for it."""
    export = Export(tmp_path / "graph.sqlite")
    for replay in range(3):
        at = replay * 100_000
        if called:
            export.launch(at, replay + 1, "cudaGraphLaunch_v10000")
        for node in range(6):
            export.kernel("gemm" if node % 2 else FUSED, at + 9_000 * node, at + 9_000 * node + 8_000, replay + 1, node=node + 1)
    (trace,) = read(export.done())
    assert per_step(trace, "all-reduce") == [3, 3, 3]
    assert all(c.graph for c in trace.collectives)


def test_graphs_that_were_traced_whole(tmp_path):
    """Nothing inside them is seen, and the trace says how to see it. A launch that nobody timed is left out."""
    export = Export(tmp_path / "whole.sqlite")
    for replay in range(4):
        export.launch(replay * 100_000, replay + 1, "cudaGraphLaunch_v10000")
        export.graph(replay * 100_000 + 5_000, replay * 100_000 + 95_000, replay + 1)
    export.graph(0, 0, 99)
    (trace,) = read(export.done())
    assert (len(trace.timeline.name), spent_ns(trace)) == (4, 360_000)
    assert not trace.collectives
    assert len(trace.steps) == 4
    assert [n for n in trace.notes if n.code == "whole graphs" and "cuda-graph-trace=node" in n]


def nccl_calls(export, pid, rank, grouped):
    """A communicator of eight, then an all-reduce of 1 MiB and a gather of 64 KiB a rank, inside a group as torch does it."""
    export.schema_of(1, (nsys.COMMUNICATOR, 18, 0), (nsys.RANKS, 5, 8), (nsys.RANK, 5, 12))
    export.schema_of(2, (nsys.COMMUNICATOR, 18, 0), (nsys.SIZE, 22, 8))
    export.range("ncclCommInitRankConfig", 100, 200, pid, payload=payload(1, "<Qiii4x", 0xABC, 8, rank, 0), registered=True)
    for at, name, size, kernel in ((1_000, "ncclAllReduce", 1 << 20, REDUCE), (9_000, "ncclAllGather", 1 << 16, GATHER)):
        if grouped:
            export.range("ncclGroupStart", at, at + 10, pid, registered=True)
            export.range("ncclGroupEnd", at + 300, at + 900, pid, registered=True)
        told = payload(2, "<QQ", 0xABC, size)
        export.range(name, at + 20, at + (100 if grouped else 800), pid, payload=told, registered=True)
        export.launch(at + 500, at, pid=pid, seconds=100)
        export.kernel(kernel, at + 2_000, at + 6_000, at, pid)


@pytest.mark.parametrize("grouped", [True, False])
def test_sizes_from_what_nccl_hands_over(tmp_path, grouped):
    """A gather's message is one rank's part: eight of them are the whole."""
    export = Export(tmp_path / "nccl.sqlite")
    nccl_calls(export, 9, 5, grouped)
    (trace,) = read(export.done())
    assert (trace.rank, trace.world) == (5, 8)
    assert [(c.op, c.nbytes, c.ranks) for c in trace.collectives] == [("all-reduce", 2**20, 8), ("all-gather", 8 * 2**16, 8)]
    assert trace.issued == {"all-reduce": 1, "all-gather": 1}


def test_several_calls_in_a_group_have_no_size_and_torch_names_operators(tmp_path):
    export = Export(tmp_path / "nccl.sqlite")
    export.schema_of(2, (nsys.COMMUNICATOR, 18, 0), (nsys.SIZE, 22, 8))
    export.range("ncclGroupStart", 0, 10)
    for at in (20, 60):
        export.range("ncclSend", at, at + 30, payload=payload(2, "<QQ", 1, 4096))
    export.range("ncclGroupEnd", 100, 900)
    export.launch(500, 1, seconds=100)
    export.kernel("ncclDevKernel_SendRecv(x)", 2_000, 3_000, 1)
    (trace,) = read(export.done())
    assert [(c.op, c.nbytes) for c in trace.collectives] == [("send-recv", None)]
    export = Export(tmp_path / "torch.sqlite")
    export.range("vllm::all_reduce, op_id = 5, sizes = [[4, 8]]", 0, 2_000)
    export.launch(1_000, 1)
    export.kernel("void quickly<4>(x)::all_reduce_kernel", 5_000, 6_000, 1)
    export.kernel(GATHER, 7_000, 8_000, 2)
    (trace,) = read(export.done())
    assert Counter(c.op for c in trace.collectives)["all-gather"] == 1


@pytest.mark.parametrize(("name", "phase", "seqs"), DATA["steps_of_tensorrt_llm_and_plain_iterations"])
def test_steps_of_tensorrt_llm_and_plain_iterations(tmp_path, name, phase, seqs):
    """As its executor names them (py_executor.py, with and without the number of tokens), and as training scripts do."""
    export = Export(tmp_path / "trt.sqlite")
    for at in (0, 50_000):
        export.range(name, at, at + 40_000)
        export.launch(at + 1_000, at + 1)
        export.kernel(FUSED, at + 9_000, at + 30_000, at + 1)
    (trace,) = read(export.done())
    assert ([(s.phase, s.decode_seqs) for s in trace.steps], per_step(trace, "all-reduce")) == ([(phase, seqs)] * 2, [1, 1])


def test_packed_and_unchanged(tmp_path):
    path = steps(Export(tmp_path / "a.sqlite")).done()
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    before = hashlib.sha256(path.read_bytes()).digest(), sorted(p.name for p in tmp_path.iterdir())
    assert [exposed(t) for t in read(path)] == [exposed(t) for t in read(packed)]
    assert (hashlib.sha256(path.read_bytes()).digest(), sorted(p.name for p in tmp_path.iterdir())) == before


@pytest.mark.parametrize(("made", "words"), DATA["other_databases_are_refused_in_words"])
def test_other_databases_are_refused_in_words(tmp_path, made, words):
    connection = sqlite3.connect(tmp_path / "x.sqlite")
    connection.executescript(made)
    connection.close()
    with pytest.raises(ValueError, match=words) as refused:
        read(tmp_path / "x.sqlite")
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    export = steps(Export(tmp_path_factory.mktemp("sound") / "a.sqlite"), count=8)
    nccl_calls(export, 1, 0, True)
    return export.done().read_bytes()


@given(st.data())
def test_damaged_databases_are_read_or_refused(sound, tmp_path_factory, data):
    raw = bytearray(sound)
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    for _ in range(data.draw(st.integers(0, 20))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.sqlite"
    path.write_bytes(raw)
    try:
        traces = read(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(t.partial == "" or any(n.code == "partial" for n in t.notes) for t in traces)


def test_a_database_that_breaks_off_gives_what_is_readable(sound, tmp_path):
    path = tmp_path / "cut.sqlite"
    path.write_bytes(sound[: len(sound) * 7 // 10])
    traces = read(path)
    assert traces
    assert all(t.partial and [n for n in t.notes if n.code == "partial"] for t in traces)


@given(st.data())
def test_cells_of_any_type_are_read_or_refused(sound, tmp_path_factory, data):
    """SQLite keeps whatever is put into a column: one column of one table, in one row or in all."""
    path = tmp_path_factory.mktemp("cells") / "a.sqlite"
    path.write_bytes(sound)
    connection = sqlite3.connect(path)
    table = data.draw(
        st.sampled_from([row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")])
    )
    column = data.draw(st.sampled_from([row[1] for row in connection.execute(f"PRAGMA table_info({table})")]))
    where = data.draw(st.sampled_from(["1", "rowid = 1"]))
    try:
        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (data.draw(JUNK),))
        connection.commit()
    except sqlite3.IntegrityError:
        pass  # NOT NULL
    connection.close()
    try:
        read(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


@given(st.lists(ROW, min_size=1, max_size=30))
def test_counts_and_times_are_those_of_sql(tmp_path_factory, rows):
    """Any processes on any GPUs: a trace for each pair, with its rows and nothing else."""
    export = Export(tmp_path_factory.mktemp("any") / "a.sqlite")
    for number, (pid, device, start, ns, communicates) in enumerate(rows):
        export.kernel(REDUCE if communicates else "gemm", start, start + ns, number, pid, device, stream=number)
    path = export.done()
    expected = {(pid, device): [] for pid, device, *_ in rows}
    for pid, device, _, ns, communicates in rows:
        expected[pid, device].append((ns, communicates))
    found = sorted((len(t.timeline.name), spent_ns(t), len(t.collectives)) for t in read(path))
    assert found == sorted((len(e), sum(ns for ns, _ in e), sum(c for _, c in e)) for e in expected.values())
    assert (sum(f[0] for f in found), sum(f[1] for f in found)) == counted(path)


def program(folder, text):
    path = folder / "nsys-here"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_report_is_exported_by_nsys(tmp_path):
    export = steps(Export(tmp_path / "export.sqlite")).done()
    report = tmp_path / "report1.nsys-rep"
    report.write_bytes(b"\x00 of its own kind")
    fake = program(tmp_path, f'echo "$@" > {tmp_path}/called; for last; do :; done; test -f "$last" || exit 3; cp {export} "$7"')
    (trace,) = formats.read(report, str(fake))
    assert per_step(trace, "all-reduce") == [4, 4, 4]
    said = (tmp_path / "called").read_text().split()
    assert (said[:6], said[7:]) == (["export", "--type", "sqlite", "--force-overwrite", "true", "-o"], [str(report)])
    done = run_here("audit", report, "--nsys", fake, "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("text", "words"), [("echo no licence >&2; exit 7", "failed .no licence"), ("exit 0", "it wrote nothing")])
def test_a_report_that_nsys_cannot_export(tmp_path, text, words):
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(ValueError, match=words):
        formats.read(report, str(program(tmp_path, text)))
    with pytest.raises(ValueError, match=r"no program 'none-here'.*run: none-here export --type sqlite -o r.sqlite r.nsys-rep"):
        formats.read(report, "none-here")


def test_ranks_of_files_that_do_not_tell_them(tmp_path):
    """One report a rank, as mpirun writes them: numbered by their order."""
    named = steps(Export(tmp_path / "report_rank2.sqlite")).done()
    assert [(t.rank, "unnumbered" in [n.code for n in t.notes]) for t in read(named)] == [(2, False)]
    paths = [steps(Export(tmp_path / f"node.{r}.sqlite")).done() for r in range(3)]
    assert [said.rank for _, said in read_all(paths).left] == [0, 1, 2]
    assert run_here("audit", *paths, "--json").returncode == 0


def test_what_is_no_database():
    assert not nsys.looks_like(b"SQLite format 2")
    assert set(OLD) <= set(NEW)
    assert os.sep not in nsys.REPORTS[0]


def written(folder, found, number=0):
    path = folder / (f"{number}_results.json" if found["kind"] == "json" else f"{number}_{found['kind']}.csv")
    path.write_text(found.get("text") or json.dumps(found["document"]))
    return path


def of_kind(kind, name=""):
    return next(f for f in FOUND if f["kind"] == kind and name in f["name"])


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
    assert (name, (len(trace.timeline.name), spent_ns(trace))) == ("0_kernel_trace.csv", (5, 39451 + 203267))
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
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerows([columns.split(), *rows])
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


def test_generic_kernels_take_their_calls_or_the_step_they_began_in(tmp_path):
    traces = [said for _, said in read_all(made(tmp_path)).left]
    assert [t.rank for t in traces] == [0, 1]
    for trace in traces:
        assert (per_step(trace, "all-reduce"), per_step(trace, "all-gather")) == ([1, 1], [1, 1])
        assert [s.decode_seqs for s in trace.steps] == [8, 8]
    assert run_here("audit", *made(tmp_path), "--json").returncode == 0
    (tmp_path / "bare").mkdir()
    traces = [said for _, said in read_all(made(tmp_path / "bare", launches=False)).left]
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
    path = put(tmp_path, "out_results.json", json.dumps({"rocprofiler-sdk-tool": [process]}))
    tables, document = [said for _, said in read_all(files).left], formats.read(path)
    for a, b in zip(tables, document, strict=True):
        assert (a.collectives, (a.steps, spent_ns(a), a.issued)) == (b.collectives, (b.steps, spent_ns(b), b.issued))


def test_cut_off_tables_give_what_is_readable(tmp_path):
    (trace,) = formats.read(put(tmp_path, "1_kernel_trace.csv", of_kind("kernel_trace")["text"][:-60]))
    assert (len(trace.timeline.name), spent_ns(trace)) == (2, 16157 + 10464)
    assert [n for n in trace.notes if n.code == "partial" and "line 4" in n]
    assert trace.partial


@given(st.integers(0, 10**6))
def test_cut_off_json_gives_the_records_before(tmp_path_factory, at):
    (process,) = json.loads(json.dumps(of_kind("json")["document"]))["rocprofiler-sdk-tool"]
    process["buffer_records"]["kernel_dispatch"] *= 5
    whole = json.dumps({"rocprofiler-sdk-tool": [process]})
    text = whole[: at % len(whole)]
    path = put(tmp_path_factory.mktemp("cut"), "r.json", text)
    kept = text.count('"graph_node_id": 0}')
    try:
        (trace,) = formats.read(path)
    except ValueError:
        assert kept == 0
    else:
        assert (len(trace.timeline.name), spent_ns(trace)) == (kept, 800 * kept)
        assert [n for n in trace.notes if n.code == "partial"]


@pytest.mark.parametrize(("name", "text", "words"), DATA["what_is_refused"])
def test_what_is_refused(tmp_path, name, text, words):
    path = put(tmp_path, name, text)
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
    assert (found.sections[0].causes, found.verdict) == ((), "unknown")
