"""Profiler traces: the shared ones against an independent count, made ones by hand, and what they tell beside their counts."""

import gzip
import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audited import by_item, made_steps, question
from cli_run import run_here
from commtax import catalog
from commtax.catalog import recognise
from commtax.runs.evidence.collective_names import call_op, kernel_op
from commtax.runs.traces.meeting import meet
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.profilers.columns import facts_of
from commtax.runs.traces.trace import KINDS, graph_steps, main_span, usage
from commtax.runs.traces.trace_audit import audit_traces
from commtax.timeline import Timeline
from each import each
from made_traces import clashes, decode_graphs, document, event, exposed, kernel, launch, per_step, write
from paths import FIXTURES, SHARED
from tables import tables
from texts import lacking

DATA = tables(__file__)
TRACES = SHARED / "traces"
shared = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
NAMES = sorted(p.name for p in TRACES.glob("*.json.gz")) if TRACES.is_dir() else []
JUNK = st.one_of(
    st.none(), st.text(max_size=4), st.integers(-5, 5), st.floats(), st.lists(st.integers(), max_size=2), st.builds(dict)
)
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84990623744, "numSms": 108}
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045542912, "numSms": 132}
SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 30)).map(lambda x: (x[0] * 1.0, x[0] + x[1] * 1.0)), min_size=1)


@cache
def read(name):
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


@shared
def test_eight_traces():
    assert len(NAMES) == 8


@shared
@pytest.mark.parametrize("name", NAMES)
def test_every_shared_trace_is_read_and_counted(name):
    trace = read(name)
    expected = Counter({DATA["spelled"][k]: n for k, n in independent_count(TRACES / name).items()})
    assert Counter(c.op for c in trace.collectives) == expected
    assert all(c.seconds >= 0 for c in trace.collectives)
    assert 0 <= exposed(trace) <= 1
    assert len(trace.timeline.name) > 0
    assert int(np.sum(trace.timeline.kind == trace.timeline.kinds.index("comm"))) == len(trace.collectives)


@shared
def test_message_metadata_of_the_nccl_trace():
    """2 x A100, three DDP steps of five all-reduces; sizes from the kernels' own metadata."""
    trace = read("nccl_parser_config_nccl_data.json.gz")
    raw = json.loads(gzip.decompress((TRACES / "nccl_parser_config_nccl_data.json.gz").read_bytes()))["traceEvents"]
    told = [e["args"] for e in raw if e.get("cat") == "kernel" and e["args"].get("Collective name") == "allreduce"]
    assert sum(c.nbytes for c in trace.collectives if c.op == "all-reduce") == 4 * sum(a["In msg nelems"] for a in told)
    assert (len(trace.collectives), per_step(trace, "all-reduce")) == (21, [5, 5, 5])
    assert (per_step(trace, "broadcast"), {c.ranks for c in trace.collectives}) == ([2, 2, 2], {2})


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
    assert (trace.issued, trace.collectives, exposed(trace)) == ({"all-reduce": 25, "broadcast": 10}, (), 0)
    assert any("none ran on the device" in n for n in trace.notes)


@shared
def test_two_ranks_of_one_job():
    """Sampled traces: what both ranks hold is matched by the clock, not by order; collectives end together."""
    traces = [read(f"trace_filter_sampled_rank-{r}.json.gz") for r in (0, 1)]
    meetings = meet(traces)
    assert meetings.by_clock
    seconds = meetings.seconds.reshape(5, 2)
    assert (meetings.wire_s.tolist(), seconds[0]) == (seconds.min(axis=1).tolist(), pytest.approx((62.783e-3, 57.924e-3)))


@each(("name", "op"), DATA["kernels"].items())
def test_kernels_by_name(name, op):
    assert kernel_op(name) == op


def test_calls_and_ranks_by_name():
    words = {"allreduce": "all-reduce", "gloo:all_gather": "all-gather", "all_to_allv": "all-to-all", "nccl:send 0->1": "send-recv"}
    assert {w: call_op(w) for w in words} == words
    events = decode_graphs(1, 0)["traceEvents"]
    assert [kineto.parse(events, name).rank for name in ("rank3.17.pt.trace.json", "t_rank-1.json", "x.json")] == [3, 1, 0]


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
    assert (exposed(trace), per_step(trace, "all-reduce"), clashes(trace.timeline)) == (pytest.approx(0.2), [1], 0)
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
    assert (meetings.ranks[waited.index(min(waited))], meetings.wire_s) == (1, pytest.approx([5e-6] * 30))
    assert waited == pytest.approx([30 * 3e-6, 0], abs=1e-12)


def test_meetings_by_order_and_nanoseconds_survive():
    traces = [
        kineto.parse(document(d["traceEvents"], r, baseTimeNanoseconds=r * 10**12))
        for r, d in enumerate((decode_graphs(2, 0), decode_graphs(2, 0)))
    ]
    meetings = meet(traces)
    assert not meetings.by_clock
    assert len(meetings.first) == 6
    with pytest.raises(ValueError, match="each rank once"):
        meet([traces[0], traces[0]])
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 0, "args": {"device": 0, "stream": 1}}] * 2
    text = json.dumps({"traceEvents": events}).replace('"ts": 0, "dur": 0', '"ts": 1712195495527376.234, "dur": 0.007', 1)
    text = text.replace('"ts": 0, "dur": 0', '"ts": 1712195495527376.241, "dur": 0.001', 1)
    line = kineto.from_pieces([text.encode()]).timeline
    assert (line.start_s[1] - line.start_s[0], clashes(line)) == (pytest.approx(7e-9, rel=1e-9), 0)


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


@given(st.data())
def test_damaged_traces_are_refused_in_one_way(data):
    made = json.loads(json.dumps(document(decode_graphs(2, 1, steps=2)["traceEvents"])))
    for _ in range(data.draw(st.integers(1, 3))):
        arguments = [e["args"] for e in made["traceEvents"] if isinstance(e.get("args"), dict)]
        place = data.draw(st.sampled_from([made["distributedInfo"], *made["traceEvents"], *arguments]))
        keys = ("Group size", "In msg nelems", "dtype", "Collective name", "Input Dims", "Input type")
        key = data.draw(st.sampled_from([*place, *keys]))
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


def test_gloo_on_cpus():
    """A host trace: gloo's own records on their threads; the main thread's compute covers part of one."""
    call = {"Input Dims": [[64, 512]], "Input type": ["float"]}
    events = [event("cpu_op", "aten::matmul", 0, 40), event("cpu_op", "aten::mm", 1, 38)]
    events += [event("cpu_op", "c10d::allreduce_", 41, 3), event("user_annotation", "gloo:all_reduce", 45, 20, 2, **call)]
    events += [event("user_annotation", "gloo:all_gather", 70, 20, 2, **call), event("cpu_op", "aten::mm", 80, 20)]
    trace = kineto.parse(document(events))
    assert not trace.on_device
    assert [(c.op, c.nbytes) for c in trace.collectives] == [("all-reduce", 131072), ("all-gather", 262144)]
    assert exposed(trace) == pytest.approx(30 / 100, rel=0.02)


def test_vllm_on_two_cpus():
    """A real run: vLLM 0.32, 4 layers, TP 2: nine all-reduces and one gather of the logits in every step."""
    traces = [kineto.read(FIXTURES / f"vllm-cpu-tp2-rank{r}.trace.json.gz") for r in (0, 1)]
    for trace in traces:
        assert [s.phase for s in trace.steps] == ["prefill", "decode", "decode", "decode"]
        assert (per_step(trace, "all-reduce"), per_step(trace, "all-gather")) == ([9] * 4, [1] * 4)
        sizes = {(c.step > 0, c.op): c.nbytes for c in trace.collectives}
        assert (sizes[True, "all-reduce"], sizes[False, "all-reduce"]) == (512 * 2, 128 * 512 * 2)
        assert sizes[True, "all-gather"] == 16384 * 2
    meetings = meet(traces)
    assert len(meetings.first) == 40
    assert meetings.by_clock
    assert meetings.wire_s.sum() < sum(c.seconds for c in traces[0].collectives)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 200), st.integers(0, 50)), min_size=1, max_size=30))
def test_uncovered_spans_sum_to_the_exposed_time(rows):
    kinds, starts, lengths = (np.array(x) for x in zip(*rows, strict=True))
    names = ("x",) * len(rows)
    line = Timeline(np.arange(len(rows)), starts * 1.0, (starts + lengths) * 1.0, kinds, names, names, ("comm", "compute"))
    comm, compute = ({t for k, start, length in rows if k == kind for t in range(start, start + length)} for kind in (0, 1))
    both, one = (sum(end - start for start, end in line.covered(*kinds)) for kinds in (("comm", "compute"), ("compute",)))
    assert both - one == len(comm - compute)


def audited(made, asked, *others):
    section = audit_traces([kineto.parse(m) for m in (made, *others)], asked, ["a"])
    return section, by_item(section)


# Sizes that host operators carry
def eager_steps(operator, dims, steps=2, count=65, inner=None, concrete=(), kinds=("c10::BFloat16", "")):
    """Decode steps without graphs: an engine's operator around the launch of each of its kernels."""
    events, at, correlation = [], 1000.0, 0
    for _ in range(steps):
        begin = at
        for _ in range(count):
            correlation += 1
            shapes = {"Input Dims": dims, "Input type": list(kinds), "Concrete Inputs": list(concrete)}
            events.append(event("cpu_op", operator, at, 18, **shapes))
            if inner:
                events.append(
                    event("cpu_op", inner, at + 1, 16, **{"Input Dims": [[], dims[0]], "Input type": ["Scalar", kinds[0]]})
                )
            events += [
                launch(at + 5, correlation),
                kernel("void vllm::cross_device_reduce_1stage<x, 2>(y)", at + 9, 5, correlation),
            ]
            at += 20
        events.append(event("user_annotation", "execute_context_0(0)_generation_1(1)", begin, at - begin - 1))
    return document(events)


@pytest.mark.parametrize(
    ("operator", "inner"),
    [
        ("vllm::all_reduce", None),
        ("vllm::all_reduce", "_C_custom_ar::all_reduce"),
        ("symm_mem::multimem_all_reduce_", None),
        ("symm_mem::two_shot_all_reduce_", None),
        ("sglang::inplace_all_reduce", None),
        ("vllm::flashinfer_trtllm_fused_allreduce_norm", None),
    ],
)
def test_operators_carry_sizes(operator, inner):
    """65 all-reduces of one bf16 row of 4,096: 520 KiB a step, which was unknown."""
    _, found = audited(eager_steps(operator, [[1, 4096], []], inner=inner), question(tp=2, eager=True))
    assert found["all-reduce bytes per step"].measured == 65 * 4096 * 2
    assert found["all-reduce bytes per step"].verdict == "agree"


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "op", "expected", "ranks"),
    [
        ("vllm::all_gather", [[4, 64], [], [], []], ["", "-1", "2", "tp:0"], "all-gather", 4 * 64 * 2 * 2, 2),
        ("vllm::reduce_scatter", [[4, 64], [], [], []], ["", "0", "8", "tp:0"], "reduce-scatter", 4 * 64 * 2, 8),
        ("_c10d_functional::all_gather_into_tensor", [[4, 64], [], []], ["", "4", "0"], "all-gather", 4 * 64 * 2 * 4, 4),
        ("sglang::reg_all_gather_into_tensor", [[8, 64], [4, 64], []], [], "all-gather", 8 * 64 * 2, 0),
        ("sglang::reg_reduce_scatter_tensor", [[4, 64], [8, 64], []], [], "reduce-scatter", 8 * 64 * 2, 0),
        ("symm_mem::fused_matmul_reduce_scatter", [[4, 64], [64, 8]], [], "reduce-scatter", None, 0),
        ("vllm::all_gather", [[4, 64], [], [], []], [], "all-gather", None, 0),
    ],
)
def test_the_full_tensor_of_every_operator(name, dims, concrete, op, expected, ranks):
    kinds = ["c10::BFloat16" if d else "" for d in dims]
    facts = facts_of(name, {"Input Dims": dims, "Input type": kinds, "Concrete Inputs": concrete})
    assert (facts.ranks, facts.nbytes(op, ranks)) == (ranks, expected)


# Shares and seconds
def test_a_share_does_not_disagree_where_seconds_agree():
    """A step of the predicted length whose communication takes half of its predicted time: a few per cent of the step."""
    asked = question(tp=2)
    words = made_steps(asked)
    half = {"each_us": words["each_us"] / 2, "compute_us": words["compute_us"] + words["each_us"] / 2}
    _, found = audited(decode_graphs(**{**words, **half}), asked)
    assert (found["decode step"].verdict, found["decode step"].difference) == ("agree", pytest.approx(0, abs=0.01))
    assert found["exposed communication, of the step"].verdict == "agree"
    _, found = audited(
        decode_graphs(**{**words, "each_us": 0.6 * (total := words["each_us"] + words["compute_us"]), "compute_us": 0.4 * total}),
        asked,
    )
    assert found["decode step"].verdict == "agree"
    assert found["exposed communication, of the step"].verdict == "disagree", "more than half of a step, where 7 % were predicted"


@given(
    step=st.floats(1e-4, 1.0),
    share=st.floats(0, 1),
    ours=st.floats(0.75, 1.25),
    theirs=st.floats(0.75, 1.25),
    tolerance=st.sampled_from([0.25, 0.5]),
)
def test_seconds_that_agree_never_leave_a_share_that_disagrees(step, share, ours, theirs, tolerance):
    asked = question(tp=2, tolerance=tolerance)
    comm = share * step
    assert asked.seconds("step", step, step * theirs).verdict == "agree"
    assert asked.seconds("exposed communication, of the step", comm, comm * ours, base=step).verdict == "agree"


# Busy and idle time
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=40))
def test_every_second_is_spent_once(rows):
    kinds, starts, lengths = (np.array(x) for x in zip(*rows, strict=True))
    names = ("x",) * len(rows)
    line = Timeline(np.arange(len(rows)), starts * 1.0, (starts + lengths) * 1.0, kinds, names, names, KINDS)
    spent = usage(line, [(0.0, 100.0), (150.0, 400.0)])
    busy = [any(s <= t < s + n for s, n in zip(starts, lengths, strict=True)) for t in range(400) if t < 100 or t >= 150]
    assert (spent.total_s, spent.busy_s, spent.busy_s + spent.idle_s) == (350, pytest.approx(sum(busy)), pytest.approx(350))


def test_busy_and_idle_time_are_shown(tmp_path):
    asked = question(tp=2)
    words = made_steps(asked)
    section, _ = audited(decode_graphs(**words), asked)
    ((rank, spent),) = section.usage
    assert rank == 0
    assert spent.exposed_s == pytest.approx((words["reduces"] + words["gathers"]) * words["each_us"] * 1e-6, rel=0.01)
    assert spent.idle_share < 0.01
    made = write(tmp_path / "t.json", decode_graphs(**words))
    shown = run_here("audit", str(made), "-m", "llama-3.1-8b", "-c", "2xh100-sxm", "-tp", "2")
    assert not lacking(shown.stdout, "typical step", "▓ exposed")
    document = json.loads(run_here("audit", str(made), "-m", "llama-3.1-8b", "-c", "2xh100-sxm", "-tp", "2", "--json").stdout)
    (first,) = document["sections"][0]["usage"]
    assert first["busy_s"] + first["idle_s"] == pytest.approx(first["total_s"])


def test_an_idle_device_is_the_reason():
    """Kernels as predicted, and the host four times slower than they are."""
    asked = question(tp=2)
    made = decode_graphs(**made_steps(asked))
    for e in made["traceEvents"]:
        e["ts"] *= 4
        if e["cat"] == "user_annotation":
            e["dur"] *= 4
    _, found = audited(made, asked)
    assert found["decode step"].verdict == "disagree"
    assert "the device idles 7" in found["decode step"].reason


# Strays
def test_strays_stretch_no_step_and_pauses_are_theirs():
    """A 4 ms step whose last kernel the device ran half a second later."""
    asked = question(tp=2)
    made = decode_graphs(**made_steps(asked, steps=1))
    last = max(e["ts"] + e["dur"] for e in made["traceEvents"])
    events = [*made["traceEvents"], kernel("void late(float)", last + 470_000, 3, 1)]
    section, found = audited(document(events), asked)
    assert found["decode step"].verdict == "agree"
    assert any("1 device event far" in n for n in section.notes)
    assert main_span([(0.0, 1.0), (50.0, 51.0)], lambda begin, end: end - begin) == (0.0, 51.0, 0)


@given(SPANS, st.floats(1.0, 1e6), st.booleans())
def test_a_stray_changes_nothing(spans, apart, ahead):
    """Whatever is farther away than all of a step's kernels together take leaves its window as it was."""
    first, last, strays = main_span(spans)
    assert min(s for s, _ in spans) <= first < last <= max(e for _, e in spans)
    total, tiny = sum(e - s for s, e in spans), 1e-3
    begin = max(e for _, e in spans) + 2 * total + apart if not ahead else min(s for s, _ in spans) - 2 * total - apart - tiny
    again = main_span([*spans, (begin, begin + tiny)])
    if strays == 0:
        assert again == (first, last, 1)


@pytest.mark.parametrize(("call", "microseconds"), [("cudaStreamSynchronize", 400), ("cudaLaunchKernel", 900)])
def test_a_kernel_ahead_of_its_step(call, microseconds):
    """A small kernel runs at once while the step before still runs: waiting in the driver is not the host's time, planning is."""
    spans = [(0, 2), (500, 200), (700, 200)]
    events = [event("user_annotation", "execute_context_0(0)_generation_1(1)", 0, 950)]
    for i, (at, length) in enumerate(spans):
        events += [launch(at, i), kernel("void gemm(float)", at, length, i)]
    events.append({**event("cuda_runtime", call, 3, 495 if "Synchronize" in call else 2, correlation=99)})
    (step,) = kineto.parse(document(events)).steps
    assert step.seconds == pytest.approx(microseconds * 1e-6)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
def test_a_public_trace_with_a_kernel_ahead():
    """SGLang plans ahead: one kernel of 3 us, then 493 ms inside a copy that waits, then the step's 494 ms."""
    (path,) = TRACES.glob("inference__sglang*")
    trace = kineto.read(path)
    (step,) = trace.steps
    assert step.seconds == pytest.approx(0.494, abs=0.002)
    section = audit_traces([trace], question("qwen3-8b", "mi300x", tp=1, engine="sglang"), ["x"])
    assert {f.verdict for f in section.findings} == {"unknown"}, "the right chip alone is no agreement"


# Training
def training_steps():
    found = [e for e in decode_graphs(3, 1, steps=3, phase=False)["traceEvents"] if e["cat"] != "user_annotation"]
    for e in [e for e in found if e["cat"] == "cuda_runtime"]:
        found.append(event("user_annotation", f"ProfilerStep#{e['ts']}", e["ts"] - 1, 90))
        found.append(event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", e["ts"] + 3, 2))
        found.append(event("user_annotation", "Optimizer.step#AdamW.step", e["ts"] + 6, 2))
    return document(found)


def test_training_steps_are_not_called_decode_and_an_engine_s_beside_them_are_compared():
    section, found = audited(training_steps(), question(tp=2))
    assert {f.verdict for f in section.findings} == {"unknown"}
    assert "training" in found["training step"].reason
    assert not any("decode" in f.item for f in section.findings)
    assert "3 training steps" in section.notes
    asked = question(tp=2)
    made = decode_graphs(**made_steps(asked))
    made["traceEvents"].append(event("user_annotation", "Optimizer.step#AdamW.step", 10**7, 5))
    _, found = audited(made, asked)
    assert found["decode step"].verdict == "agree"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(
    ("file", "ranks"),
    [("nccl_parser_config_nccl_data", 1), ("negative_queue_length_values_check_rank0", 1), ("rank_non_gpu_rank_non_gpu", 1),
     ("ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace", 1), ("trace_filter_sampled_rank-{}", 2)],
)  # fmt: skip
def test_public_training_traces(file, ranks):
    traces = [kineto.read(TRACES / f"{file.format(r)}.json.gz") for r in range(ranks)]
    items = by_item(audit_traces(traces, question(cluster="8xa100-80-sxm", tp=1), ["x"]))
    assert items["training step"].verdict == "unknown"
    assert {i for i, f in items.items() if f.verdict == "disagree"} <= {i for i in items if i.startswith("memory of")}


# Ranks that are missing
def test_ranks_that_are_not_here_are_said():
    asked = question(cluster="8xh100-sxm", tp=8)
    made = [decode_graphs(**made_steps(asked), rank=r) for r in (0, 1)]
    for m in made:
        m["distributedInfo"] |= {"world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 8}]}
    section, found = audited(made[0], asked, made[1])
    assert any("2 of the job's 8 ranks are here (0, 1)" in n for n in section.notes)
    assert found["ranks in the job"].verdict == "agree"
    assert found["waiting for the slowest rank, share of the step"].verdict == "unknown"
    slow = [decode_graphs(**made_steps(asked, each_us=50.0), rank=r) for r in (0, 1)]
    for m in slow:
        m["distributedInfo"] |= {"world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 8}]}
    _, found = audited(slow[0], asked, slow[1])
    assert found["one all-reduce (shortest over ranks)"].verdict == "unknown", "the other six may have come later still"
    assert "2 of its 8 ranks here" in found["one all-reduce (shortest over ranks)"].reason


@pytest.mark.parametrize(("world", "verdict"), [(2, "agree"), (8, "unknown"), (3, "disagree")])
def test_the_job_s_size_against_the_plan(world, verdict):
    asked = question(tp=2)
    made = decode_graphs(**made_steps(asked))
    made["distributedInfo"]["world_size"] = world
    _, found = audited(made, asked)
    assert found["ranks in the job"].verdict == verdict


# The chip
@pytest.mark.parametrize(
    ("device", "cluster", "verdict", "says"),
    [
        (H100, "2xh100-sxm", "agree", ""),
        (A100, "2xh100-sxm", "disagree", "the trace is of a100-80-sxm, not of h100-sxm"),
        (A100, "2xa100-80-pcie", "disagree", "the trace is of a100-80-sxm"),
        ({**H100, "numSms": 114, "name": "NVIDIA H100 PCIe"}, "2xh100-sxm", "disagree", "h100-pcie"),
        ({**H100, "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "totalGlobalMem": 42e9, "numSms": 60}, "2xh100-sxm", "disagree",
         "60 multiprocessors are not those of h100-sxm"),
        ({**H100, "name": "NVIDIA X900"}, "2xh100-sxm", "unknown", "under a name"),
    ],
)  # fmt: skip
def test_the_chip_is_read(device, cluster, verdict, says):
    asked = question(cluster=cluster, tp=2)
    made = decode_graphs(**made_steps(question(tp=2)))
    section, found = audited({**made, "deviceProperties": [device, {**device, "id": 1}]}, asked)
    chip = found[f"memory of {device['name']}"]
    assert chip.verdict == verdict
    assert says in chip.reason
    assert any(f"2 x {device['name']}" in n for n in section.notes)


@each("key", [k for k in catalog.keys("chips") if k != "cpu"])
def test_every_chip_is_recognised_by_its_size(key):
    known = catalog.chip(key)
    assert key in recognise("", known.visible_bytes, known.num_sms)
    assert key in recognise(known.name, known.visible_bytes, known.num_sms)


@each(("name", "gib", "sms", "key"), DATA["names_as_drivers_write_them"])
def test_names_as_drivers_write_them(name, gib, sms, key):
    assert recognise(name, gib * 2**30, sms) == (key,)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
def test_a_device_without_a_name():
    """A public trace of ROCm: 192 GiB and 304 compute units are an MI300X."""
    (path,) = TRACES.glob("inference__vllm*")
    section = audit_traces([kineto.read(path)], question("qwen3-8b", "h100-sxm", tp=1), ["x"])
    assert by_item(section)["memory of its device"].reason == "the trace is of mi300x, not of h100-sxm"
