"""Files that nobody wrote in good faith: one line or an answer, in time; and traces without names."""

import gzip
import json
import os
import pickle
import random
import re
import shutil
import sqlite3
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax.catalog import config
from commtax.launch import topology
from commtax.launch.read_command import parse as parse_launch
from commtax.runs.audit import audit, formats
from commtax.runs.audit.anonymising import anonymous, write_anonymous
from commtax.runs.evidence import prefixes
from commtax.runs.evidence.finding import Finding, Section
from commtax.runs.logs import training_log
from commtax.runs.logs.engine_logs import vllm_log
from commtax.runs.report.auditing import tables as finding_tables
from commtax.runs.results import bench, collective_tests
from commtax.runs.traces import trace
from commtax.runs.traces.profilers import kineto
from commtax.statement import Refusal
from commtax.thresholds import counts
from commtax.wordings import lines_with, split_lines
from each import each
from made_nsys import Export
from made_traces import decode_graphs, document, event, kernel, launch, write
from paths import FIXTURES, SHARED
from tables import tables

DATA = tables(__file__)

ROW = "  1048576  262144  float  sum  -1  25.41  41.26  72.21  0  25.2  41.6  72.8  0\n"
ENDS = st.sampled_from(
    ["a", "step 1", "\n", "\r\n", "\r", " ", "node-1: ", "[1,0]<stdout>:", "[rank1]: ", "x: y", "2024-01-01T00:00:00Z "]
)
SIZE = 16_000
UNITS = (
    *DATA["units"],
    *("model weights took 1,", ",", "LLM(", "torchrun ", "-m torch.distributed.", "a = b, ", "NV1", "1 1 float sum -1 ", "²"),
    *("[1,0]<stdout>:", "[a,", "[0] ", "a-", "2024-11-04T12:00:00Z ", "[pod/", " 0: ", "[1,0][a"),
)
VALUES = (None, True, -1, 0, 1e999, float("nan"), 10**400, "", "x", "1e999", "9" * 400, [], [[]], {}, [None], {"a": []}, [[1, "x"]])
OTHERS = DATA["others"]
FEW = (None, -1, 1e999, "x", [], {}, 10**400)
GEMMS = [{"kind": "gemm", "m": 2**i, "n": 4096, "k": 4096, "dtype": "bf16", "median_s": 1e-4 * 2**i} for i in range(8)]
ATTENTION = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "length": 100, "dtype": "bf16", "median_s": 1e-5}
MEASURED = [{"kind": "decode", **ATTENTION}]
MEASURED += [{"op": "all-reduce", "ranks": 2, "size_bytes": 1024, "time_us": 10.0, "impl": "nccl", "wrong": 0}, GEMMS[0]]
LARGE = 800_000  # bytes: reading such a trace takes longer than all that is asked of it
SMALL = (p for p in (SHARED / "traces").glob("*.json.gz") if p.stat().st_size < LARGE)
TRACES = [*sorted(SMALL), *sorted(FIXTURES.glob("*.trace.json.gz"))]
OWN = ("ProfilerStep#", "execute_context_", "cudaLaunchKernel", "cudaGraphLaunch", "Optimizer.step#", "gloo:")
"""What a profiler and an engine call things in every trace."""
CATEGORIES = {"X", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "nccl", "user_annotation", "cpu_op", "Byte"}
SECRET = st.text("QXZJ", min_size=9, max_size=14)


def said(tmp_path, raw, name="given"):
    path = tmp_path / name
    path.write_bytes(raw)
    try:
        return audit([path])
    except Refusal as refusal:
        words = str(refusal)
    assert "\n" not in words
    assert len(words) < 2000
    return words


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "it is empty"),
        (b"{", "not recognised"),
        (b"\0" * 2**18, "no text"),
        (b"{" * 2**18, "not recognised"),
        (b"[" * 2**18, "not recognised"),
        (b'{"traceEvents": ' + b"[" * 2**18, "trace"),
        (b"a\\\n" * 2**18, "not recognised"),
        (b"\n" * 2**18, "it is empty"),
        (gzip.compress(b"\0" * 2**22), "no text"),
        (b'{"a\nb\x1b[2J": 1}', "found JSON with the keys a b"),
    ],
)
def test_what_holds_nothing(tmp_path, raw, words):
    began = time.process_time()
    assert words in str(said(tmp_path, raw))
    assert time.process_time() - began < 5


def test_a_device_and_a_folder(tmp_path):
    for path in ("/dev/null", tmp_path):
        with pytest.raises(Refusal, match=r"^[^\n]+$"):
            audit([tmp_path.__class__(path)])


class Program:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


def test_no_pickle_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said(tmp_path, pickle.dumps({"version": "2.10", "entries": [Program()]}, protocol=2), "nccl_trace_rank_0")
    assert not (tmp_path / "was-run").exists()


def test_views_without_end_and_triggers(tmp_path):
    """A view is no table, and nothing is written into what is read."""
    path = tmp_path / "view.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        rows = "WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r)"
        made.execute(f'CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {rows} SELECT start, start + 1 AS "end", 1 AS shortName FROM r')
    made.close()
    with pytest.raises(Refusal):
        formats.read(path)
    export = Export(tmp_path / "trigger.sqlite")
    export.kernel("gemm", 1000, 2000, 1)
    export.connection.execute(
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN INSERT INTO StringIds VALUES (new.id + 1, 'x'); END"
    )
    (trace,) = formats.read(export.done())
    assert len(trace.timeline.name) == 1


def test_more_rows_than_are_read(monkeypatch):
    assert len(collective_tests.parse_run(ROW * 2_000).rows) == 2_000
    monkeypatch.setattr(collective_tests.COUNT, "most_rows", 1_000)
    with pytest.raises(Refusal, match=r"more than 1,000 rows"):
        collective_tests.parse_run(ROW * 2_000)


@pytest.mark.parametrize("size", ["9" * 400, "1" * 6000])
def test_sizes_that_no_number_holds(size):
    assert collective_tests.parse_run(ROW.replace("1048576", size) + ROW).rows == collective_tests.parse_run(ROW).rows


def test_rows_without_end_and_traces_without_time(tmp_path):
    columns = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
    rows = "".join(f'"MARKER_CORE_API","ncclAllReduce",1,1,{i},{at},{at}\n' for i, at in enumerate((5, 5, 5)))
    told = said(tmp_path, f"{columns}\n{rows}".encode(), "1_marker_api_trace.csv")
    assert isinstance(told, str) or all(row.compute_s == row.exposed_s == 0 for section in told.sections for row in section.steps)
    text = 'request_rate,mean_ttft_ms,request_throughput\n1.0,41.5,0.98\n1.0,"4' + "1\n" * 200_000
    assert "a row of its table is damaged" in said(tmp_path, text.encode(), "sweep.csv")
    events = [{"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "rank 0"}}]
    events += [{"ph": "X", "name": "F", "cat": "F", "tid": 1, "ts": 0, "dur": float("inf")}]
    text = json.dumps({"otherData": {"producer": "commtax"}, "traceEvents": events})
    assert "not as it writes them" in str(said(tmp_path, text.encode()))
    name = f"execute_context_1({'9' * 6000})_generation_0(0)"
    events = [{"ph": "X", "cat": "user_annotation", "name": name, "pid": 0, "tid": 1, "ts": 1, "dur": 5}]
    events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 0, "tid": 1, "ts": 2, "dur": 1}]
    assert said(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_many_findings_and_long_periods_take_one_pass():
    section = Section("bench", ("x",), tuple(Finding(f"item {i}", None, float(i)) for i in range(20_000)))
    began = time.process_time()
    ((_, rows),) = finding_tables(section, claimed=False)
    assert (len(rows), time.process_time() - began < 2) == (20_000, True)
    signs = [("a",)] * 200_000 + [("b",)]
    began = time.process_time()
    assert trace.period(signs) == 0
    assert time.process_time() - began < 4
    chooser = random.Random(1)
    for _ in range(300):
        letters = [(chooser.choice("ab"),) for _ in range(chooser.randint(0, 12))]
        plain = (p for p in range(1, len(letters) // 2 + 1) if all(a == b for a, b in zip(letters, letters[p:], strict=False)))
        assert trace.period(letters) == next(plain, 0)
    script = 'A="' + "x" * 9000 + '"\nB="' + "$A " * 3000 + '"\nC="' + "$B " * 3000 + '"\nvllm serve m ' + "$C " * 3000
    with pytest.raises(ValueError, match="variables make more than"):
        parse_launch(script)


@pytest.mark.parametrize("changed", [lambda t: t.encode("utf-16"), lambda t: t.replace("\n", "\r\n").encode()])
def test_other_encodings_and_line_ends(tmp_path, changed):
    text = "[titan] step:  1  loss:  4.0  memory:  1.00GiB(1.00%)  tps: 1,000  mfu: 1.00%\n" * 3
    assert said(tmp_path, changed(text)).sections == said(tmp_path, text.encode()).sections


@given(st.lists(ENDS, max_size=40).map("".join))
def test_lines_by_any_way(text):
    assert prefixes.strip_prefixes(text) == "\n".join(prefixes._split_prefixes(line)[1] for line in text.split("\n"))
    assert list(split_lines(text)) == text.splitlines()
    mark = training_log.SAYS.stepped
    assert list(lines_with(mark, text, 99_999)) == [line for line in text.split("\n") if mark.search(line)]


@given(st.text(max_size=200))
def test_what_was_found_is_one_line(text):
    assert len(formats.beginning(text.encode("utf-8", "replace")).splitlines()) == 1


READERS = {
    "nccl-tests": collective_tests.parse_all,
    "prefixes": prefixes.strip_prefixes,
    "log": vllm_log.parse,
    "log or not": vllm_log.looks_like,
    "bench": bench.parse,
    "topology": topology.parse,
    "launch": parse_launch,
    "launched": lambda text: parse_launch(f"srun x {text[: SIZE // 2]}\nvllm serve m {text[: SIZE // 2]}"),
    "configured": lambda text: vllm_log.parse(f"INFO with config: {text}"),
    "matrix": lambda text: topology.parse(f"  GPU0 GPU1 {text}\nGPU0 X {text}\nGPU1 NV1 X {text}"),
    "trace": lambda text: kineto.from_pieces([json.dumps([_kernel(text)]).encode()]),
}


def complaint(read, *words):
    try:
        read(*words)
    except ValueError as error:
        return str(error)
    return "benchmark 'x':" if read is bench.parse else "trace 'x':"


def _kernel(name):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 1, "args": {"Collective name": name, "dtype": name}}


@each("reader", READERS)
def test_no_text_takes_long(reader):
    for unit in UNITS:
        text = unit * (SIZE // len(unit))
        began = time.process_time()
        complaint(READERS[reader], text)
        assert time.process_time() - began < 2, unit  # a quadratic one takes several


def changed(thing, values=VALUES):
    places = list(thing.items() if isinstance(thing, dict) else enumerate(thing))
    for key, value in places:
        for odd in (*values, *(changed(value, values) if isinstance(value, dict | tuple | list) else ())):
            copy = dict(thing) if isinstance(thing, dict) else list(thing)
            copy[key] = odd
            yield copy


@pytest.mark.parametrize("document", [DATA["result"], *OTHERS], ids=["serve", "latency", "throughput", "aiperf"])
def test_a_benchmark_with_any_odd_field(document):
    for odd in changed(document):
        assert complaint(bench.parse, json.dumps(odd), "x").startswith("benchmark 'x':"), odd


def _trace(text):
    return kineto.from_pieces([text.encode()], "x")


def test_a_trace_with_any_odd_field():
    for odd in changed(DATA["trace"]):
        assert complaint(_trace, json.dumps(odd)).startswith("trace 'x':"), odd


def civil(*words):
    done = run_here(*words)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert done.returncode != 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1), done.stderr


def test_a_profile_with_any_odd_field(tmp_path):
    path = tmp_path / "profile.json"
    for odd in changed(DATA["profile"], FEW):
        path.write_text(json.dumps(odd))
        civil("bill", "llama-3.2-1b", "-c", "2x8xh100-sxm", "-tp", "2", "--profile", path)


def test_measurements_with_any_odd_field(tmp_path):
    path = tmp_path / "rows.jsonl"
    for odd in changed(MEASURED, FEW):
        path.write_text("\n".join(json.dumps(row) for row in (*odd, *GEMMS)))
        civil("calibrate", path, "-c", "2xh100-sxm", "-o", tmp_path / "out.json")


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt-oss-20b"])
def test_a_checkpoint_with_any_odd_field(tmp_path, model):
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    for odd in changed({k: v for k, v in config(model).items() if k != "layer_types"}, FEW):
        (tmp_path / "config.json").write_text(json.dumps(odd))
        civil("fit", tmp_path, "-c", "8xh100-sxm", "-tp", "2")


def read_again(made):
    return kineto.parse(json.loads(json.dumps(made), parse_float=str))


def chosen(trace, fewest=None):
    fewest = len(trace.steps) if fewest is None else fewest
    first = max(0, (fewest - counts("runs.audit.anonymising").most_steps) // 2)
    return trace.steps[first : first + min(fewest, counts("runs.audit.anonymising").most_steps)]


def spent(trace, steps):
    used = [trace.usage(some) for some in (steps, steps[:1])]
    return [x for u in used for x in (u.compute_s, u.exposed_s, u.hidden_s, u.copy_s)] + [s.seconds for s in steps]


def sent(trace, steps):
    places = {s.index: i for i, s in enumerate(steps)}
    ours = [c for c in trace.collectives if c.step in places]
    return Counter((places[c.step], c.op, c.nbytes, c.ranks, c.graph, round(c.seconds * 1e9)) for c in ours)


def assert_same(before, after, fewest=None):
    steps = chosen(before, fewest)
    assert spent(after, after.steps) == pytest.approx(spent(before, steps), abs=2e-8)
    assert sent(after, after.steps) == sent(before, steps)
    described = [(s.phase, s.decode_seqs, s.prefill_seqs, s.prefill_tokens) for s in steps]
    assert [(s.phase, s.decode_seqs, s.prefill_seqs, s.prefill_tokens) for s in after.steps] == described
    assert (after.rank, after.world, after.on_device, after.training) == (
        before.rank,
        before.world,
        before.on_device,
        before.training,
    )


def texts(value):
    if isinstance(value, dict):
        return {t for inner in value.values() for t in texts(inner)}
    if isinstance(value, list):
        return {t for inner in value for t in texts(inner)}
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.name[:30])
def test_a_real_trace_is_the_same_run_without_its_words(path):
    before = kineto.read(path)
    (made,) = anonymous([before])
    assert_same(before, read_again(made))
    words = set(re.findall(r'"((?:[^"\\\\]|\\\\.)*)"', gzip.decompress(path.read_bytes()).decode(errors="replace")))
    kept = {t for t in texts(made) if not t.startswith(OWN)} - CATEGORIES - set(DATA["ops"])
    assert not {t for t in kept & words if not re.fullmatch(r"\d*|\[[\d, ]*\]", t)}


def told_of(folder):
    return json.loads(run_here("audit", folder, "--json").stdout)


def test_two_ranks_still_meet(tmp_path):
    for r in (0, 1):
        shutil.copy(FIXTURES / f"vllm-cpu-tp2-rank{r}.trace.json.gz", tmp_path)
    write_anonymous([kineto.read(p) for p in sorted(tmp_path.iterdir())], tmp_path / "shared")
    ours, theirs = told_of(tmp_path), told_of(tmp_path / "shared")
    assert [list(c.values())[3:] for c in theirs["collectives"]] == [
        pytest.approx(list(c.values())[3:], abs=1e-6) for c in ours["collectives"]
    ]
    assert theirs["verdict"] == ours["verdict"]


def test_the_same_verdict_on_a_job_with_a_late_rank(tmp_path):
    """All that an audit tells of steps, collectives and the culprit, but for names and times of the clock."""
    for r in (0, 1):
        write(tmp_path / f"host17-rank{r}.json", decode_graphs(8, 1, steps=9, rank=r, late_us=8.0 * r))
    write_anonymous([kineto.read(p) for p in sorted(tmp_path.iterdir())], tmp_path / "shared")
    told = [told_of(folder) for folder in (tmp_path, tmp_path / "shared")]
    ours, theirs = ([{k: v for k, v in s.items() if k != "start_s"} for s in d["steps"]] for d in told)
    assert [list(s) for s in ours] == [list(s) for s in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert list(one.values())[3:] == pytest.approx(list(other.values())[3:], abs=2e-9)
    counted = [[{k: c[k] for k in ("op", "algorithm", "ranks", "count", "bytes")} for c in d["collectives"]] for d in told]
    assert (counted[0], [d["verdict"] for d in told]) == (counted[1], [told[0]["verdict"]] * 2)
    blamed = [d["culprit"] and (d["culprit"]["kind"], d["culprit"]["rank"]) for d in told]
    assert blamed[0] == blamed[1]


@st.composite
def jobs(draw):
    events, at, correlation = [], 1000.0, 0
    names = [draw(SECRET) for _ in range(3)]
    for number in range(draw(st.sampled_from([1, 2, 3, 5, 22]))):
        begin = at
        for _ in range(draw(st.integers(1, 3))):
            correlation += 1
            at += draw(st.integers(0, 40))
            long = draw(st.integers(1, 60))
            stream = draw(st.sampled_from([7, 20]))
            args = {"Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "BFloat16", "Group size": 4}
            op = draw(st.booleans()) and stream == 20
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)" if op else draw(st.sampled_from(names))
            events += [launch(at - 0.5, correlation), kernel(name, at, long, correlation, stream, **(args if op else {}))]
            at += long
        events.append(event("user_annotation", f"ProfilerStep#{number}", begin - 1, at - begin))
        at += draw(st.sampled_from([1.25, 5.25, 400.25]))  # never as long as a step: such ties are decided by rounding
    return document(events, rank=draw(st.integers(0, 7)), world=8), names


@given(jobs())
@settings(max_examples=40)
def test_any_trace_is_the_same_run(job):
    made, names = job
    before = kineto.parse(made)
    (shared,) = anonymous([before])
    assert_same(before, read_again(shared))
    assert not [n for n in names if n in json.dumps(shared)]


def test_equal_names_keep_equal_numbers_on_all_ranks():
    traces = [kineto.parse(decode_graphs(4, 1, rank=r)) for r in (0, 1)]
    made = anonymous(traces)
    kinds = [Counter(e["name"] for e in m["traceEvents"] if e["cat"] == "kernel") for m in made]
    assert (kinds[0], kinds[0]["compute 1"]) == (kinds[1], 15)
    assert "compute 2" not in kinds[0]
    assert min(e["ts"] for m in made for e in m["traceEvents"]) <= 1


def test_middle_steps_of_all_ranks():
    """Of a rank with 50 steps and one with 44: those from number 12 on, twenty of each."""
    traces = [kineto.parse(decode_graphs(2, 1, steps=n, rank=r)) for r, n in ((0, 50), (1, 44))]
    after = [read_again(m) for m in anonymous(traces)]
    assert [len(t.steps) for t in after] == [20, 20]
    for one, other in zip(traces, after, strict=True):
        assert_same(one, other, 44)
    assert (after[1].origin_ns - after[0].origin_ns) == 0


def test_what_is_shared_of_files_and_folders(tmp_path):
    made = [write(tmp_path / f"host17-rank{r}.json", decode_graphs(4, 1, rank=r)) for r in (0, 1)]
    one = run_here("audit", made[0], "--anonymise", tmp_path / "one.json.gz")
    assert one.returncode == 0, one.stderr
    assert "can be shared" in one.stdout
    assert kineto.read(tmp_path / "one.json.gz").steps
    both = run_here("audit", *made, "--anonymise", tmp_path / "out")
    assert both.returncode == 0, both.stderr
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == ["rank-0.json.gz", "rank-1.json.gz"]
    raw = b"".join(gzip.decompress(p.read_bytes()) for p in (tmp_path / "out").iterdir())
    assert b"host17" not in raw
    assert b"cublas" not in raw
    made = write(tmp_path / "rank0.json", decode_graphs(4, 1))
    log = run_here("audit", FIXTURES / "vllm-cpu-tp2.log", "--anonymise", tmp_path / "x.json")
    assert (log.returncode, "only profiler traces" in log.stderr) == (2, True)
    itself = run_here("audit", made, "--anonymise", made)
    assert (itself.returncode, "is also an input" in itself.stderr) == (2, True)
    (tmp_path / "taken").write_text("")
    with pytest.raises(ValueError, match="need a folder"):
        write_anonymous([kineto.read(made), kineto.read(made)], tmp_path / "taken")
    assert run_here("audit", made, "--anonymise", tmp_path / "no" / "x.json").returncode == 2
