"""Traces without names: read again they are the same run, and nothing of their words is left."""

import gzip
import json
import re
import shutil
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax.runs.audit.anonymising import anonymous, write_anonymous
from commtax.runs.traces.profilers import kineto
from commtax.thresholds import counts
from made_traces import decode_graphs, document, event, kernel, launch, write
from paths import FIXTURES, SHARED
from tables import tables

DATA = tables(__file__)

LARGE = 800_000  # bytes: reading such a trace takes longer than all that is asked of it
SMALL = (p for p in (SHARED / "traces").glob("*.json.gz") if p.stat().st_size < LARGE)
TRACES = [*sorted(SMALL), *sorted(FIXTURES.glob("*.trace.json.gz"))]
OPS = DATA["ops"]
OWN = ("ProfilerStep#", "execute_context_", "cudaLaunchKernel", "cudaGraphLaunch", "Optimizer.step#", "gloo:")
"""What a profiler and an engine call things in every trace."""


CATEGORIES = {"X", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "nccl", "user_annotation", "cpu_op", "Byte"}


def read_again(made):
    return kineto.parse(json.loads(json.dumps(made), parse_float=str))


def chosen(trace, fewest=None):
    fewest = len(trace.steps) if fewest is None else fewest
    first = max(0, (fewest - counts("runs.audit.anonymising").most_steps) // 2)
    return trace.steps[first : first + min(fewest, counts("runs.audit.anonymising").most_steps)]


def spent(trace, steps):
    """Seconds of each kind, of all steps and of the first, and how long each is."""
    used = [trace.usage(some) for some in (steps, steps[:1])]
    return [x for u in used for x in (u.compute_s, u.exposed_s, u.hidden_s, u.copy_s)] + [s.seconds for s in steps]


def sent(trace, steps):
    """Collectives of the steps: in which, what, how large, among how many, how long."""
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
    """All strings that are values of a document, and keys where they are not a profiler's."""
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
    kept = {t for t in texts(made) if not t.startswith(OWN)} - CATEGORIES - set(OPS)
    assert not {t for t in kept & words if not re.fullmatch(r"\d*|\[[\d, ]*\]", t)}


def told_of(folder):
    return json.loads(run_here("audit", folder, "--json").stdout)


def test_two_ranks_still_meet(tmp_path):
    """Wire and waiting of a real job over two CPU processes."""
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
    assert counted[0] == counted[1]
    assert [d["verdict"] for d in told] == [told[0]["verdict"]] * 2
    blamed = [d["culprit"] and (d["culprit"]["kind"], d["culprit"]["rank"]) for d in told]
    assert blamed[0] == blamed[1]


SECRET = st.text("QXZJ", min_size=9, max_size=14)


@st.composite
def jobs(draw):
    """Steps of one rank with kernels on two streams, some of them collectives, with gaps, in any order."""
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
    assert kinds[0] == kinds[1]
    assert kinds[0]["compute 1"] == 15
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


def test_files_and_folders(tmp_path):
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


def test_what_cannot_be_shared(tmp_path):
    made = write(tmp_path / "rank0.json", decode_graphs(4, 1))
    log = run_here("audit", FIXTURES / "vllm-cpu-tp2.log", "--anonymise", tmp_path / "x.json")
    assert (log.returncode, "only profiler traces" in log.stderr) == (2, True)
    itself = run_here("audit", made, "--anonymise", made)
    assert (itself.returncode, "is also an input" in itself.stderr) == (2, True)
    (tmp_path / "taken").write_text("")
    with pytest.raises(ValueError, match="need a folder"):
        write_anonymous([kineto.read(made), kineto.read(made)], tmp_path / "taken")
    assert run_here("audit", made, "--anonymise", tmp_path / "no" / "x.json").returncode == 2
