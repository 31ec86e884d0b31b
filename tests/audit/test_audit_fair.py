"""Who is blamed and who is not: starts without an end, load that piles up, caches counted otherwise; what two runs differ by."""

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from hypothesis import strategies as st

from audited import LATE, line, section
from cli_run import run_here, shown_here
from commtax.runs.audit import audit
from commtax.runs.evidence.finding import (
    AGREE,
    DISAGREE,
    FAULT,
    UNKNOWN,
    Audit,
    Claim,
    CollectiveRow,
    Finding,
    KernelRow,
    Section,
    missing_sentence,
)
from commtax.runs.logs.engine_logs import sglang_log, trtllm_log, vllm_log
from commtax.runs.logs.startup_audit import audit_log
from commtax.runs.machines import smi, topology
from commtax.runs.machines.topology import audit_topology
from commtax.runs.report.audit_differences import difference_document, sentence, show_difference, summary
from commtax.runs.report.audit_page import difference_page
from commtax.runs.report.audit_words import headline
from commtax.runs.results import collective_tests
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, load_of, predict_figures
from commtax.runs.traces.run_differences import FigureChange, difference
from commtax.statement import Note
from commtax.verbs.fitting import holds
from commtax.verbs.settling import resolve_question
from paths import FIXTURES
from start_logs import start_log
from tables import tables
from texts import put

DATA = tables(__file__)
GIB = 2**30
VLLM = "(EngineCore pid=9) INFO 08-01 17:48:41 [x.py:1] "
BEGAN = f"{VLLM}Initializing a V1 LLM engine (v0.20.0) with config: model='some/model', tensor_parallel_size=1\n"
LOADED = f"{BEGAN}{VLLM}Model loading took 9.5 GiB memory and 7.4 seconds\n{VLLM}torch.compile took 30.6 s in total\n"
SETTLED = f"{LOADED}{VLLM}Available KV cache memory: 20.0 GiB\n{VLLM}GPU KV cache size: 160,000 tokens\n"
CAPTURE = (
    "[2026-08-01 21:51:16] KV Cache is allocated. #tokens: 32997, K size: 0.76 GB, V size: 0.76 GB\n[2026-08-01 21:51:16] Capture "
)
LEAKED = "resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n"
GAVE_UP = "[rank{r}]:[E] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=8, "
GAVE_UP += "NumelOut=8, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
STOOD = "[rank{r}]:[E] [PG 1 Rank {r}] Exception (either an error or timeout) detected by watchdog at work: 15, "
STOOD += "last enqueued NCCL work: 17, last completed NCCL work: 14.\n"
WARNED = "n1:7:9 [3] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n"
ROW = "   {n}   {m}   float   sum   -1   53.24   78.78  137.87   0   52.85   79.36  138.88   0\n"
GEMM, RING = "void cutlass::gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


@cache
def claimed(model="llama-3.1-8b", place="1xh100-sxm", **options):
    return Claim(resolve_question(model, place, options))


@pytest.fixture
def told(tmp_path):

    def audited(text):
        return audit([put(tmp_path, "file.txt", text)])

    return audited


def codes(audited):
    return [cause.code for section in audited.sections for cause in section.causes]


# results
@cache
def near(load=BenchmarkLoad(512, 128, clients=16, count=160, spread=0.0)):  # noqa: B008
    found = predict_figures(load, claimed())
    stats = {m: {s: found.of(m, s).value for s in ("mean", "median", "p99")} for m in ("tpot", "ttft")}
    return found, stats


def ran(stats, rate=1.0):
    load = {"requests": 160, "concurrency": 16, "lengths": (512, 128), "spread": 0.0, "model": "model"}
    result = BenchmarkRun("vllm", "serve", stats=stats, requests_per_s=near()[0].of("requests_per_s", "").value * rate, **load)
    return Audit(claimed(), (audit_bench([result], claimed(), "x"),))


@settings(max_examples=10, deadline=None)
@given(some.sampled_from(["median", "p99"]), some.floats(3.0, 9.0))
def test_a_tail_beside_a_mean_that_agrees_is_shown_and_blames_nobody(statistic, times):
    stats = near()[1]
    found = ran(stats | {"tpot": stats["tpot"] | {statistic: times * stats["tpot"][statistic]}})
    assert (found.verdict, codes(found)) == (AGREE, [])
    (tail,) = [f for f in found.findings if f.code == f"tpot_{statistic}"]
    assert (tail.verdict, tail.reason.endswith("the mean agrees, and decides")) == (UNKNOWN, True)


def test_means_and_medians_that_are_off_disagree_and_more_answers_are_no_slow_clocks():
    stats = near()[1]
    found = ran(stats | {"tpot": {name: 3 * s for name, s in stats["tpot"].items()}})
    assert found.verdict == DISAGREE
    assert "decode" in codes(found)
    assert ran({"tpot": {"median": 3 * stats["tpot"]["median"]}}).verdict == DISAGREE
    found = ran({"tpot": {name: 3 * s for name, s in near()[1]["tpot"].items()}}, rate=3.0)
    assert (found.verdict, codes(found)) == (DISAGREE, ["at once"])
    assert "clocks" not in found.sections[0].causes[0].change


def paced(peak, std, rate=1.0, answered=0.5, requests=200):
    """Answers of 500 tokens that take four minutes each."""
    stats = {"ttft": {"mean": 4.0, "median": 4.0}, "tpot": {"mean": 0.5, "median": 0.5, "std": std}}
    stats |= {"e2el": {"mean": 253.5, "median": 253.5}}
    facts = {"peak concurrency": str(peak)}
    load = {"request_rate": rate, "requests_per_s": answered, "requests": requests, "lengths": (4000, 500)}
    return BenchmarkRun("vllm", "serve", stats=stats, facts=facts, **load)


@pytest.mark.parametrize(
    ("result", "overloaded"),
    [
        (paced(180, 0.2), True),
        (paced(180, 0.05), False),  # a short test of long answers, none of which slowed another
        (paced(50, 0.2), False),
        (paced(180, 0.2, answered=0.95), False),
    ],
)
def test_requests_that_pile_up_and_slow_each_other_are_overload(result, overloaded):
    found = audit_bench([result], None, "x").causes
    assert [c.code for c in found] == ["overload"] * overloaded
    assert all("180 of its 200 requests were there at once" in c.said for c in found)


@settings(max_examples=15)
@example([(0.1, 100), (1.9, 200)])
@given(some.lists(some.tuples(some.floats(0.01, 2.0), some.integers(2, 1000)), min_size=2, max_size=30))
def test_uneven_tokens_of_uneven_answers_keep_the_books(requests):
    """E2E = TTFT + (n - 1) TPOT holds for every request: its means may miss by what both vary, whatever the requests."""
    count = len(requests)
    mean = sum(t for t, _ in requests) / count
    length = sum(n for _, n in requests) / count
    std, spread = (
        (sum((x - m) ** 2 for x in xs) / count) ** 0.5
        for xs, m in (([t for t, _ in requests], mean), ([n for _, n in requests], length))
    )
    whole = 1.0 + sum(t * (n - 1) for t, n in requests) / count
    stats = {"ttft": {"mean": 1.0}, "tpot": {"mean": mean, "std": std}, "e2el": {"mean": whole}}
    result = BenchmarkRun("vllm", "serve", stats=stats, lengths=(100, length), spread=3**0.5 * spread / length)
    assert not [f for f in audit_bench([result], None, "x").findings if f.verdict == DISAGREE]


def test_a_time_of_a_token_by_another_definition_is_still_found():
    stats = {"ttft": {"mean": 1.0}, "tpot": {"mean": 0.02, "std": 0.001}, "e2el": {"mean": 9.0}}
    found = audit_bench([BenchmarkRun("vllm", "serve", stats=stats, lengths=(100, 200))], None, "x")
    assert [f.item for f in found.findings if f.verdict == DISAGREE] == ["E2E = TTFT + (n - 1) TPOT"]


# starts
@pytest.mark.parametrize(
    ("read", "text", "where"),
    [
        (vllm_log, LOADED, "torch.compile took 30.6 s"),
        (
            trtllm_log,
            "[TensorRT-LLM][INFO] MPI size: 2, rank: 0\n[TensorRT-LLM][INFO] Rank 1 is using GPU 1\n",
            "Rank 1 is using GPU 1",
        ),
        (sglang_log, f"{CAPTURE}cuda graph begin. avail mem=9 GB\n", "Capture cuda graph begin"),
        (sglang_log, f"{CAPTURE}cuda graph begin. avail mem=9 GB\n{LEAKED}", "Capture cuda graph begin"),
    ],
)
def test_a_start_without_an_end_is_partial_and_says_where_it_stops(read, text, where):
    found = Audit(None, (audit_log(read.parse(text), None),))
    (note,) = [n for n in found.sections[0].notes if n.code == "partial"]
    assert f"after '{where}'" in note
    assert ("its process was ended" in note) == ("leaked" in text)
    assert headline(found).endswith("partial, the start is not finished in it")
    assert not found.count(DISAGREE)


@pytest.mark.parametrize(
    "text",
    [
        f"{SETTLED}{VLLM}Application startup complete.\n",
        f"{LOADED}{VLLM}init engine (profile, create kv cache, warmup model) took 33.00 seconds\n",
        f"{BEGAN}{VLLM}Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, ...\n",
    ],
)
def test_a_start_with_an_end_is_whole(text):
    assert not {n.code for n in audit_log(vllm_log.parse(text), None).notes} & {"partial", "stopped", "unready"}


def test_starts_without_their_last_line_are_partial_and_others_whole():
    found = {n.code: n for n in audit_log(vllm_log.parse(SETTLED), None).notes}
    assert "no line says that the server was ready" in found["partial"]


# memory
def start(claim, kv_gib, tokens, weights=None, length=0):
    loaded = (weights or holds(claim.question).weights_bytes) / GIB
    text = f"{VLLM}Model loading took {loaded:.4f} GiB memory and 7 seconds\n"
    text += f"{VLLM}Available KV cache memory: {kv_gib:.2f} GiB\n{VLLM}GPU KV cache size: {tokens:,} tokens\n"
    text += f"{VLLM}Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x\n" if length else ""
    return Audit(claim, (audit_log(vllm_log.parse(text), claim),))


def found(audited, code):
    return next(f for f in audited.findings if f.code == code)


def test_memory_of_a_start_is_judged_by_tokens_weights_and_windows():
    claim = claimed(place="2xh100-sxm", tp=2, gpu_memory_utilization=0.9)
    left = holds(claim.question).kv_bytes
    tokens = int(left / holds(claim.question).kv_bytes_per_token)
    assert found(start(claim, left / GIB, int(tokens * 1.003)), "KV tokens in that memory").verdict == AGREE
    assert found(start(claim, left / GIB, tokens // 2), "KV tokens in that memory").verdict == DISAGREE
    claim = claimed("mistral-7b", gpu_memory_utilization=0.9)
    left = holds(claim.question).kv_bytes
    full = int(left / (2 * 2 * 8 * 128 * 32))
    whole = start(claim, left / GIB, full, length=32768)
    assert (whole.verdict, "as without windows" in missing_sentence(whole)) == (UNKNOWN, True)
    assert "calibrate" not in missing_sentence(whole)
    assert found(start(claim, left / GIB, full // 3, length=32768), "KV tokens in that memory").verdict == DISAGREE
    claim = claimed(gpu_memory_utilization=0.9)
    held = holds(claim.question)
    lighter = start(claim, (held.kv_bytes + held.weights_bytes / 2) / GIB, 9, weights=held.weights_bytes / 2)
    assert (found(lighter, "weights").verdict, found(lighter, "KV memory left").verdict) == (DISAGREE, AGREE)
    claim = claimed("qwen3.5-27b", "1xh200-sxm", engine="sglang")
    size = 100_000 * holds(claim.question).kv_bytes_per_token / 2 / GIB
    text = (
        f"[22:18:26] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100000, K size: {size:.2f} GB, V size: {size:.2f} GB\n"
    )
    audited = Audit(claim, (audit_log(sglang_log.parse(text), claim),))
    assert found(audited, "KV tokens in that memory").verdict == AGREE


# NCCL and its watchdog
def test_ranks_of_cut_lines_and_of_second_lines_waited_too_and_the_absent_one_is_named(told):
    lines = [GAVE_UP.format(r=0), STOOD.format(r=0), GAVE_UP.format(r=4), STOOD.format(r=3), GAVE_UP.format(r=2)[:-40]]
    audited = told("".join(lines))
    assert (audited.verdict, audited.culprit.rank) == (FAULT, 1)
    assert any("on ranks 0, 2, 3, 4 and was given up" in c.said for c in audited.sections[0].causes)


def test_warnings_that_a_call_came_back_with_are_failures(told):
    unwound = "n1:7:9 [3] NCCL INFO transport/net_ib.cc:368 -> 2\nn1:7:9 [3] NCCL INFO init.cc:424 -> 2\n"
    failed = told(WARNED + unwound)
    assert (failed.verdict, codes(failed)) == (DISAGREE, ["failed"])
    assert "ibv_modify_qp" in failed.sections[0].causes[0].said
    other = unwound.replace("[3]", "[2]")  # another process's
    assert not told(WARNED + other).count(DISAGREE)
    assert not told(WARNED).count(DISAGREE)
    lost = "n1:7:9 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.0.0.1<58355> failed : Broken pipe\n"
    undone = "n1:7:9 [1] proxy.cc:1119 NCCL WARN [Proxy Service 9] Failed to execute operation Connect from rank 9, retcode {}\n"
    failed = told(lost + undone.format(6))
    assert (failed.verdict, codes(failed)) == (DISAGREE, ["failed"])
    (cause,) = failed.sections[0].causes
    assert cause.said.endswith("failed : Broken pipe")
    assert "went away first" in cause.change
    assert not told(lost + undone.format(0)).count(DISAGREE)


def test_texts_that_are_cut_are_partial(told, tmp_path):
    begun = "n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x55d9 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 61000"
    assert "partial" in headline(told(begun))
    whole = f"{begun} commId 0x79 - Init START\n{begun} commId 0x79 - Init COMPLETE\n"
    assert "partial" not in headline(told(whole))
    text = "Attached GPUs                             : 4\nGPU 00000000:42:00.0\n    Performance State                     : P8\n"
    assert smi.parse_states(text).attached == 4
    audited = told(text)
    assert "partial" in headline(audited)
    assert found(audited, "GPUs").measured == 4
    path = tmp_path / "x.txt"
    path.write_text("============ Serving Benchmark Result ============\nSuccessful requests:   128\nMean TTFT (ms):   20.0\n")
    assert ": partial, " in headline(audit([path], claimed()))
    line = "#  Rank  {r} Group  0 Pid 7 on host device  {r} [0000:1{r}:00] NVIDIA B200\n"
    listed = line.format(r=0) + line.format(r=1)
    assert collective_tests.parse("# nThread 1 nGpus 1\n" + listed[:-3]).devices == ("NVIDIA B200",)


# tests of collectives, and maps of GPUs
@settings(max_examples=15)
@given(some.integers(1, 10))
def test_a_row_that_is_cut_is_partial(kept):
    rows = [ROW.format(n=4 << i, m=1 << i) for i in (20, 21, 22)]
    assert collective_tests.parse("".join(rows[:2]) + " ".join(rows[-1].split()[: kept + 2]) + " ").cut
    assert not collective_tests.parse("".join(rows) + "# Avg bus bandwidth    : 138.2\n").cut


def matrix(*rows):
    head = "\t".join(["", *(f"GPU{i}" for i in range(len(rows)))])
    return "\n".join([head, *(f"GPU{i}\t" + "\t".join(row.split()) for i, row in enumerate(rows))]) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (matrix("X NV1 NV2 SYS", "NV1 X SYS NV2", "NV2 SYS X NV2", "SYS NV2 NV2 X"), "0+3, 1+2 of 6 pairs"),
        (matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"), "NVLink joins 0+1, 2+3, each by itself"),
        (matrix("X NV12 NV12", "NV12 X NV12", "NV12 NV12 X"), ""),
        (matrix("X PHB PHB", "PHB X PHB", "PHB PHB X"), ""),
    ],
)
def test_pairs_without_the_links_of_others_are_told(text, said):
    section = audit_topology(topology.parse(text), None)
    assert [f.reason.partition(":")[0] for f in section.findings if f.reason] == [said] * bool(said)
    assert not section.causes


def test_no_nvlink_where_it_was_said_is_off_unless_the_legend_says_that_it_is_not_listed():
    claim, text = claimed(place="2xh100-nvl"), matrix("X SYS", "SYS X")
    legend = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
    for printed, verdict in ((text, DISAGREE), (text + legend, UNKNOWN), (f"{text}{legend}  NV#  = Connection\n", DISAGREE)):
        section = audit_topology(topology.parse(printed), claim)
        assert [f.verdict for f in section.findings if f.code == "off"] == [verdict]


def test_a_host_that_does_nothing_loses_nothing(told):
    head = (
        "#Time         gpu    pwr  gtemp     sm    mem   mclk   pclk \n#HH:MM:SS     Idx      W      C      %      %    MHz   MHz\n"
    )
    line = " 18:39:0{t}       0     84     32     {sm}      0   3201    345 \n"
    assert codes(told(head + "".join(line.format(t=t, sm=0) for t in range(9)))) == []
    assert codes(told(head + "".join(line.format(t=t, sm=20) for t in range(9)))) == ["starved"]


def test_a_rate_that_only_fills_the_clients_is_a_closed_loop():
    stats = {"tpot": {"mean": 0.04}, "ttft": {"mean": 2.0}, "e2el": {"mean": 40.0}}
    result = BenchmarkRun("sglang", "serve", requests=256, concurrency=64, request_rate=64.0, lengths=(1000, 950), stats=stats)
    assert load_of(result, claimed()).rate is None
    assert load_of(replace(result, request_rate=2.0), claimed()).rate == 2.0
    assert load_of(replace(result, concurrency=None), claimed()).rate == 64.0


def run(exposed=0.002, idle=0.0012, algorithm="one-shot", wire=0.012, nccl="2.26", **others):
    """Eight steps of two ranks, with one kind of collectives."""
    made = section()
    steps = tuple(replace(s, exposed_s=exposed, idle_s=idle) for s in made.steps)
    sent = (CollectiveRow("all-reduce", algorithm, "tp:0", 2, 584, 584 * 131072.0, wire, 0.005, 0.001),)
    kernels = (KernelRow(GEMM, "compute", 144, 0.0051), KernelRow(f"{algorithm} kernel", "comm", 73, exposed))
    facts = {"nccl": nccl, "torch": "2.9", "host": "a"}
    return Audit(None, (replace(made, **{"steps": steps, "collectives": sent, "kernels": kernels, "facts": facts, **others}),))


def shown(found, width=100):
    return "\n".join(shown_here(show_difference, found, width=width))


def test_a_longer_step_is_put_down_to_its_parts_and_a_part_alone_decides_nothing():
    """1.1 ms more of exposed all-reduce and 0.2 ms of idle time, by hand."""
    found = difference(run(), run(0.0031, 0.0014, "ring ll", 0.0208, "2.27"))
    wanted = "B's step is 1.3 ms (+11.6%) longer: +1.1 ms exposed all-reduce (algorithm one-shot -> ring ll), +200 µs idle"
    assert sentence(found) == f"{wanted}; nccl 2.26 -> 2.27 is the only fact that changed"
    assert [c.item for c in found.worse] == ["step"]
    lines = shown(found).splitlines()
    assert lines[0] == sentence(found)
    assert any(x.split() == ["nccl", "2.26", "2.27"] for x in lines)
    assert any(x.startswith("exposed communication") and "+1.1 ms" in x and "+55.0%" in x for x in lines)
    assert any("one-shot -> ring ll" in x and "1.5 ms -> 2.6 ms" in x for x in lines)
    assert any("ring ll kernel" in x and "new" in x for x in lines)
    assert any("one-shot kernel" in x and "gone" in x for x in lines)
    found = difference(run(), run())
    assert not found.worse
    assert not found.facts
    assert not found.kernels
    assert "as long as A's within 5%" in sentence(found)
    assert sentence(found).endswith("none of 3 facts known of both runs changed")
    slower = [run(findings=(Finding(Note("collective", "one all-reduce"), None, s, "s"),)) for s in (1e-5, 2e-5)]
    found = difference(*slower)
    assert not found.worse
    assert [c.relative for c in found.metrics] == [pytest.approx(1.0)]


@given(st.floats(1e-4, 5e-3), st.floats(1e-4, 5e-3), st.floats(0, 5e-3), st.floats(0, 5e-3))
def test_parts_sum_to_the_change_of_the_step(a, b, rest_a, rest_b):
    found = difference(run(a, rest_a), run(b, rest_b))
    assert sum(p.delta for p in found.parts) == pytest.approx(found.step.delta, abs=1e-12)
    back = difference(run(b, rest_b), run(a, rest_a))
    assert back.step.delta == pytest.approx(-found.step.delta)
    assert not (found.worse and back.worse)


@pytest.mark.parametrize(("changes", "says"), DATA["why_a_collective_takes_longer"])
def test_why_a_collective_takes_longer(changes, says):
    before = run()
    (row,) = before.sections[0].collectives
    slower = replace(row, wire_s=row.wire_s + 0.0088) if "wait_s" not in changes else row
    assert says in sentence(difference(before, run(0.0031, collectives=(replace(slower, **changes),))))


def test_compute_names_its_kernel():
    after = run(kernels=(KernelRow(GEMM, "compute", 144, 0.0071), KernelRow("one-shot kernel", "comm", 73, 0.002)))
    after = Audit(None, (replace(after.sections[0], steps=tuple(replace(s, compute_s=0.010) for s in after.sections[0].steps)),))
    assert "+2 ms compute (void cutlass::gemm +2 ms)" in sentence(difference(run(), after))


def bench(**figures):
    codes = {"tpot_mean": "s", "output_tokens_per_s": ""}
    told = tuple(Finding(Note(code, code), None, figures[code], unit) for code, unit in codes.items() if code in figures)
    return Audit(None, (Section("bench", ("a.json",), told),))


def test_results_without_steps():
    found = difference(bench(tpot_mean=0.0121, output_tokens_per_s=1200), bench(tpot_mean=0.0141, output_tokens_per_s=1100))
    assert [c.item for c in found.worse] == ["tpot_mean", "output_tokens_per_s"]
    assert sentence(found).startswith(
        "B is worse: tpot_mean 12.1 ms -> 14.1 ms (+16.5%), output_tokens_per_s 1,200 -> 1,100 (-8.3%)"
    )
    better = difference(bench(output_tokens_per_s=1100), bench(output_tokens_per_s=1300))
    assert not better.worse
    assert sentence(better).startswith("B is better: output_tokens_per_s 1,100 -> 1,300")
    assert sentence(difference(bench(), bench())).startswith("no figure that both runs have")
    assert not FigureChange("count", 1.0, 9.0, "").is_worse(0.05)
    assert FigureChange("new", None, 9.0).relative is None


@pytest.mark.parametrize("claim", [(), ("--model", "llama-3.3-70b", "--cluster", "4xh100-sxm")], ids=["logs alone", "with a model"])
def test_less_room_for_requests_is_worse(tmp_path, claim):
    """Two starts with the same settings, the second with a third less memory for its cache."""
    logs = start_log(tmp_path, "a", 31.20, 408_944), start_log(tmp_path, "b", 21.10, 276_560)
    document = json.loads(run_here("audit", "--diff", *logs, "--json", *claim).stdout)
    memory, tokens = ("KV memory left", "KV tokens in that memory") if claim else ("KV memory per rank", "KV tokens")
    assert (document["verdict"], document["worse"]) == ("worse", [memory, tokens, "full-length requests at once"])
    shown = run_here("audit", "--diff", *logs, *claim)
    assert (shown.returncode, shown.stdout.startswith("B is worse: ")) == (1, True)
    back = run_here("audit", "--diff", *reversed(logs), *claim)
    assert (back.returncode, back.stdout.startswith("B is better: ")) == (0, True)


def test_document_and_page_of_a_difference():
    found = difference(run(), run(0.0031, culprit=LATE))
    document = json.loads(json.dumps(difference_document(found), allow_nan=False))
    assert (document["schema"], document["verdict"]) == ("commtax.audit-diff/1", "worse")
    assert (document["step"]["change"], document["runs"]["b"]["culprit"]["rank"]) == (pytest.approx(0.0011), 3)
    assert document["collectives"][0]["a"]["bytes"] == pytest.approx(73 * 131072)
    assert document["summary"] == summary(found) == [sentence(found), f"B: rank 3 (late rank) since 12.4 s: {LATE.said}"]
    page = difference_page(found, "commtax audit --diff a b")
    assert [c["name"].split(",")[0] for c in page["charts"]] == ["A", "B"]
    assert difference_page(difference(run(measured=None), run(measured=line())), "x")["charts"][0]["name"].startswith("B")


def test_command_line(tmp_path):
    before = FIXTURES / "vllm-cpu-tp1.latency.json"
    told = json.loads(before.read_text())
    slower = tmp_path / "after.json"
    slower.write_text(
        json.dumps({**told, "avg_latency": told["avg_latency"] * 1.5, "latencies": [x * 1.5 for x in told["latencies"]]})
    )
    words = ("-m", FIXTURES / "tiny-llama", "-c", "2xcpu", "--input-len", 128, "--output-len", 32)
    worse = run_here("audit", "--diff", before, slower, *words)
    assert worse.returncode == 1, worse.stderr
    assert "+50.0%" in worse.stdout
    assert run_here("audit", "--diff", before, slower, "--tolerance", "60%", *words).returncode == 0
    assert run_here("audit", "--diff", before, before, *words).returncode == 0
    document = run_here("audit", "--diff", before, slower, "--json", "--html", tmp_path / "d.html", *words)
    assert json.loads(document.stdout)["verdict"] == "worse"
    assert (tmp_path / "d.html").stat().st_size < 200_000
    for wrong in ((before,), (before, before, before)):
        done = run_here("audit", "--diff", *wrong)
        assert (done.returncode, "two runs" in done.stderr) == (2, True)
    assert run_here("audit", "--diff", before, before, "--anonymise", tmp_path / "x").returncode == 2
