"""Files that nobody wrote in good faith: one line or an answer, in time, and nothing of them is run."""

import gzip
import json
import os
import pickle
import sqlite3
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.audit import audit, formats
from commtax.runs.evidence import prefixes
from commtax.runs.evidence.finding import Finding, Section
from commtax.runs.logs import training_log
from commtax.runs.report.auditing import tables
from commtax.runs.results import collective_tests
from commtax.statement import Refusal
from commtax.wordings import lines_with, split_lines
from made_nsys import Export

ROW = "  1048576  262144  float  sum  -1  25.41  41.26  72.21  0  25.2  41.6  72.8  0\n"
ENDS = st.sampled_from(
    ["a", "step 1", "\n", "\r\n", "\r", " ", "node-1: ", "[1,0]<stdout>:", "[rank1]: ", "x: y", "2024-01-01T00:00:00Z "]
)


def said(tmp_path, raw, name="given"):
    """What is answered: one line, or what was read."""
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
    """Rows cost the same however many there are, and there is an end to them."""
    assert len(collective_tests.parse_run(ROW * 2_000).rows) == 2_000
    monkeypatch.setattr(collective_tests.COUNT, "most_rows", 1_000)
    with pytest.raises(Refusal, match=r"more than 1,000 rows"):
        collective_tests.parse_run(ROW * 2_000)


@pytest.mark.parametrize("size", ["9" * 400, "1" * 6000])
def test_sizes_that_no_number_holds(size):
    assert collective_tests.parse_run(ROW.replace("1048576", size) + ROW).rows == collective_tests.parse_run(ROW).rows


def test_a_cell_without_end(tmp_path):
    """A quote that is never closed takes all rows below it for one cell."""
    text = 'request_rate,mean_ttft_ms,request_throughput\n1.0,41.5,0.98\n1.0,"4' + "1\n" * 50_000
    assert "a row of its table is damaged" in said(tmp_path, text.encode(), "sweep.csv")


def test_steps_that_take_no_time(tmp_path):
    """A table of markers alone has steps in which nothing ran."""
    columns = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
    rows = "".join(f'"MARKER_CORE_API","ncclAllReduce",1,1,{i},{at},{at}\n' for i, at in enumerate((5, 5, 5)))
    told = said(tmp_path, f"{columns}\n{rows}".encode(), "1_marker_api_trace.csv")
    assert isinstance(told, str) or all(row.compute_s == row.exposed_s == 0 for section in told.sections for row in section.steps)


def test_times_of_our_own_traces_are_finite(tmp_path):
    events = [{"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "rank 0"}}]
    events += [{"ph": "X", "name": "F", "cat": "F", "tid": 1, "ts": 0, "dur": float("inf")}]
    text = json.dumps({"otherData": {"producer": "commtax"}, "traceEvents": events})
    assert "not as it writes them" in str(said(tmp_path, text.encode()))


def test_a_count_of_thousands_of_digits(tmp_path):
    name = f"execute_context_1({'9' * 6000})_generation_0(0)"
    events = [{"ph": "X", "cat": "user_annotation", "name": name, "pid": 0, "tid": 1, "ts": 1, "dur": 5}]
    events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 0, "tid": 1, "ts": 2, "dur": 1}]
    assert said(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_many_findings_are_told_apart_at_once():
    section = Section("bench", ("x",), tuple(Finding(f"item {i}", None, float(i)) for i in range(20_000)))
    began = time.process_time()
    ((_, rows),) = tables(section, claimed=False)
    assert (len(rows), time.process_time() - began < 2) == (20_000, True)


@pytest.mark.parametrize("changed", [lambda t: t.encode("utf-16"), lambda t: t.replace("\n", "\r\n").encode()])
def test_other_encodings_and_line_ends(tmp_path, changed):
    text = "[titan] step:  1  loss:  4.0  memory:  1.00GiB(1.00%)  tps: 1,000  mfu: 1.00%\n" * 3
    assert said(tmp_path, changed(text)).sections == said(tmp_path, text.encode()).sections


@given(st.lists(ENDS, max_size=40).map("".join))
def test_lines_by_any_way(text):
    """At once and line by line are the same."""
    assert prefixes.strip_prefixes(text) == "\n".join(prefixes._split_prefixes(line)[1] for line in text.split("\n"))
    assert list(split_lines(text)) == text.splitlines()
    mark = training_log.SAYS.stepped
    assert list(lines_with(mark, text, 99_999)) == [line for line in text.split("\n") if mark.search(line)]


@given(st.text(max_size=200))
def test_what_was_found_is_one_line(text):
    assert len(formats.beginning(text.encode("utf-8", "replace")).splitlines()) == 1
