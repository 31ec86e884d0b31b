"""What programs print is read wherever a text begins and whatever stands before its lines: results, logs, launchers' prefixes."""

import json
from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.audit import audit, formats
from commtax.runs.calibrate.calibration import calibrate
from commtax.runs.evidence import prefixes
from commtax.runs.logs import training_log
from commtax.runs.logs.engine_logs import Moment, StartupLog, sglang_log, vllm_log
from commtax.runs.report.audit_words import headline
from commtax.runs.results import bench, collective_tests
from made_nccl import SIZES, TRUE, noisy, output, written
from tables import tables
from texts import put

DATA = tables(__file__)
GIB = 2**30
AGGREGATE = DATA["aggregate"]
TABLE = DATA["table"]
SUMMARY = DATA["summary"]
OVERVIEW = DATA["overview"]
DEBUG = "(Worker pid=9) DEBUG 03-01 10:00:00 [distributed/parallel_state.py:1563] world_size=4 rank=3 local_rank=3 "
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
ITERATION = (
    " [2026-03-01 10:00:00] iteration        {n}/     100 | consumed samples:        10240 | "
    "elapsed time per iteration (ms): 15800.5 | throughput per GPU (TFLOP/s/GPU): 490.5 | learning rate: 4.134000E-07 | "
    "global batch size:  2048 | lm loss: 1.344240E+01 | loss scale: 1.0 | grad norm: 2.870 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
PREFIXES = DATA["prefixes"]


@pytest.fixture
def told(tmp_path):

    def audited(text):
        found = audit([put(tmp_path, "file.txt", text)])
        causes = {c.code: c for s in found.sections for c in s.causes}
        return {f.code: f for f in found.findings}, causes, headline(found)

    return audited


# results
def test_a_summary_of_inferencex_is_read_for_all_gpus_and_by_chunk(told):
    (read,) = bench.parse(json.dumps(AGGREGATE))
    assert (read.tool, read.concurrency, read.tp, read.accepted) == ("inferencex", 32, 4, 1.0)
    assert (read.total_tokens_per_s, read.output_tokens_per_s) == (3600.0, 1200.0)
    assert (read.stats["ttft"]["p99.9"], read.stats["tpot"]["mean"]) == (1.5, 0.02)
    assert read.lengths == (900.0, 450.0)  # its clients draw them between 0.8 and 1 times what it names
    assert {"hardware": "b200", "engine": "sglang"}.items() <= read.facts.items()
    assert told(json.dumps(AGGREGATE))[0]["itl_mean"].measured == 0.05
    (read,) = bench.parse(json.dumps({**AGGREGATE, "spec_decoding": "mtp"}))
    assert isclose(read.accepted, 2.5)
    (apart,) = bench.parse(json.dumps({**AGGREGATE, "disagg": True, "num_prefill_gpu": 2, "num_decode_gpu": 6}))
    assert (apart.total_tokens_per_s, apart.output_tokens_per_s) == (7200.0, 1800.0)


def test_a_table_of_genai_perf_needs_no_title_but_an_end(told):
    findings, _, _ = told(TABLE)
    assert isclose(findings["ttft_mean"].measured, 1.2505)
    assert (findings["tpot_mean"].measured, findings["output_tokens_per_s"].measured) == (0.02, 810.0)
    assert "partial, what it has shows nothing off" in told(TABLE)[2]
    assert "partial" not in told(TABLE + "└──────┴─────┴─────┘\n")[2]


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["", "bench-run  | ", "[2026-03-01 10:11:12] INFO main.py:7 - ", "loadgen-0: ", "1: "]), st.booleans())
def test_an_mlperf_summary_is_read_behind_any_prefix_with_and_without_its_title(prefix, titled):
    lines = ["=" * 48, *(["MLPerf Results Summary"] if titled else []), *SUMMARY]
    text = "\n".join(prefix + line for line in lines)
    assert bench.looks_like_text(text)
    (read,) = bench.parse_text(text)
    assert (read.requests_per_s, read.output_tokens_per_s, read.request_rate) == (4.5, 900.0, 6.0)
    assert "INVALID: performance constraints not satisfied" in read.notes[0]


def test_that_a_run_is_invalid_is_something_off(told):
    findings, _, head = told("\n".join(f"runner  | {line}" for line in SUMMARY))
    assert findings["conditions of the benchmark missed"].verdict == "disagree"
    assert "something is off" in head


def test_columns_of_an_overview_are_results_of_their_own():
    first, second = bench.parse_text(OVERVIEW)
    assert [(r.requests_per_s, r.output_tokens_per_s, r.tp, r.request_rate) for r in (first, second)] == [
        (1.5, 75.0, 2, inf),
        (1.6, 80.0, 2, inf),
    ]
    (single,) = bench.parse_text(OVERVIEW.replace("| 1.6", "").replace("| 80.0", "").replace("| 40000.0", ""))
    assert (single.requests_per_s, single.duration_s) == (1.5, pytest.approx(42.6667))


def test_the_highest_percentile_the_gaps_and_the_peak_of_a_result_are_told(told):
    findings, _, _ = told(DATA["served"])
    assert (findings["ttft_p95"].measured, findings["tpot_p95"].measured, findings["itl_mean"].measured) == (0.9, 0.05, 0.16)
    assert findings["peak concurrency"].measured == 37
    (read,) = bench.parse(json.dumps({"duration": 5.0, "completed": 9, "max_concurrent_requests": 7, "mean_ttft_ms": 3.0}))
    assert read.facts["peak concurrency"] == "7"


# serving lines
def vllm_line(prompt, generated, running, waiting, share, engine=0):
    who = f"(APIServer pid=7) INFO 03-01 10:00:00 [loggers.py:257] Engine {engine:03d}: "
    rates = f"Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generated:.1f} tokens/s, "
    return (
        who
        + rates
        + f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {share:.1f}%, Prefix cache hit rate: 0.0%"
    )


def test_throughput_lines_alone_are_a_log_and_a_healthy_one_has_no_cause(told):
    findings, causes, head = told("\n".join(vllm_line(0 if i else 900.5, 100.5 + i, 2, 0, 3.5) for i in range(4)))
    assert (findings["requests running"].measured, findings["requests waiting"].measured) == (2, 0)
    assert findings["cache"].measured == pytest.approx(0.035)
    assert (findings["generated tokens/s"].measured, findings["prompt tokens/s"].measured) == (102.0, 900.5)
    assert not causes
    assert "nothing in it is off" in head


def test_queues_are_overload_or_told_with_what_binds(told):
    _, causes, head = told("\n".join(vllm_line(5.0, 900.0, 40, 110 + i, 99.5, engine=i) for i in range(2)))
    assert causes["cache full"].said.startswith("overloaded: the KV cache is full in 2 lines of 2, and up to 111 requests wait")
    assert "nothing in it is off" not in head
    prompts = told("\n".join(vllm_line(20000.0, 30.0, 8 + i, 60 - i, 20 + i) for i in range(4)))[1]
    assert "57 to 60 wait while 8 to 11 run, with the KV cache 23% full at most: their prompts" in prompts["queue"].said
    stuck = told("\n".join(vllm_line(0.0, 4.0, 1, 9, 70.0) for _ in range(4)))[1]
    assert "9 wait while 1 runs" in stuck["queue"].said
    assert stuck["queue"].said.endswith("none is let in")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.floats(0, 1)), min_size=3, max_size=20))
def test_requests_that_do_not_outnumber_those_that_run_are_no_queue(rows):
    from commtax.runs.logs.startup_audit import queue_causes, waits_for_cache

    calm = [Moment(running + 21, waiting, 1.0, min(share, 0.9)) for running, waiting, share in rows]
    assert not list(queue_causes(StartupLog(moments=tuple(calm))))
    full = [Moment(m.running, max(1, m.waiting), 1.0, 1.0) for m in calm]
    assert waits_for_cache(full, full)


@pytest.mark.parametrize("stamp", ["", "[2026-03-01 10:00:00 TP0] ", "[10:00:00] ", "[2026-03-01 10:00:00.123 DP1 TP0] "])
@pytest.mark.parametrize("batch", ["batch, ", "batch [77], ", "batch. "])
def test_batches_of_sglang_are_read_with_and_without_a_time(stamp, batch, tmp_path):
    prefill = f"Prefill {batch}#new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.05, #running-req: 3, #queue-req: 2, "
    path = put(tmp_path, "x.log", f"{stamp}{prefill}input throughput (token/s): 8000.50, cuda graph: False\n")
    (log,) = formats.read(path)
    assert (log.engine, log.moments) == ("sglang", (Moment(3, 2, 0.0, 0.05, prompt_tokens_per_s=8000.5, let_in=1),))


def test_decode_batches_tell_their_tokens_and_prompts_need_no_graph(told):
    line = "[2026-03-01 10:00:0{} PP{}] Decode batch, #running-req: 2, #token: 5000, token usage: 0.40, cuda graph: True, "
    text = "\n".join(line.format(i, i % 2) + "gen throughput (token/s): 150.0, #queue-req: 0" for i in range(4))
    findings, causes, _ = told(text)
    assert (findings["tokens in the KV cache"].measured, findings["cache"].measured) == (5000, 0.4)
    assert findings["requests running"].measured == 2  # and not once for each stage
    assert not causes
    line = "Prefill batch, #new-seq: 1, #new-token: 64, token usage: 0.10, #running-req: 4, #queue-req: 0, cuda graph: False\n"
    assert not told(line * 5)[1]


@pytest.mark.parametrize(("running", "codes"), [(2, []), (64, ["no graph"])])
def test_small_batches_without_a_graph_need_no_larger_ones(running, codes, told):
    line = f"Decode batch, #running-req: {running}, #token: 5000, token usage: 0.04, cuda graph: False, "
    causes = told((line + "gen throughput (token/s): 300.0, #queue-req: 0\n") * 4)[1]
    assert (list(causes), [c.share for c in causes.values()]) == (codes, [None] * len(codes))


@pytest.mark.parametrize(("last", "codes"), [(362, ["overload"]), (200, [])])
def test_a_queue_that_hardly_shrinks_is_overload_and_one_that_drains_is_none(last, codes, told):
    line = (
        "Prefill batch, #new-seq: 3, #new-token: 5824, #cached-token: 448, token usage: 0.44, #running-req: 140, #queue-req: {},\n"
    )
    assert list(told("".join(map(line.format, (369, 366, 364, last))))[1]) == codes


def test_a_scheduler_that_failed_is_told_where_its_error_is_cut_off(told):
    begun = "[2026-03-01 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    _, causes, head = told(f'{begun}  File "/x/scheduler.py", line 7\n')
    assert (
        "Scheduler hit an exception, and what it wrote itself is not in this text (TP1, scheduler.py:7)" in causes["failure"].said
    )
    assert "something is off" in head


# starts
def test_starts_tell_ranks_memory_and_their_slowest_rank(told):
    findings, _, _ = told(DEBUG + "distributed_init_method=tcp://127.0.0.1:4 backend=nccl\n")
    assert findings["ranks in a world"].measured == 4
    assert not vllm_log.looks_like("/site/megatron/core/parallel_state.py:12: UserWarning: world size\n")
    findings, _, _ = told(DATA["usage"])
    assert findings["weights"].measured == pytest.approx(27.25 * GIB)
    assert findings["memory of CUDA graphs, per rank"].measured == pytest.approx(3.5 * GIB)
    assert findings["tensor-parallel size"].measured == 4
    line = "n1:7:9 [{r}] NCCL INFO Init timings: rank {r} nranks 4 total {s} (kernels 0.5, bootstrap 0.2)\n"
    older = "n1:7:9 [2] NCCL INFO Init timings - ncclCommInitRank: rank 2 nranks 4 total 1.75 (kernels 0.5)\n"
    assert told(line.format(r=0, s=1.25) + older + line.format(r=1, s=1.5))[0]["init"].measured == 1.75


def test_the_model_is_the_one_that_is_served_and_not_its_drafter():
    log = vllm_log.parse(
        "(APIServer pid=1) INFO [x.py:1] non-default args: {'model_tag': 'me/Target', 'model': 'me/Target', 'max_model_len': 4096, "
        "'speculative_config': {'model': 'me/Drafter', 'num_speculative_tokens': 3}, 'max_num_seqs': 8}\n"
        "(APIServer pid=1) INFO [x.py:1] Resolved architecture: TargetForCausalLM\n"
        "(APIServer pid=1) INFO [x.py:1] Resolved architecture: DrafterForCausalLM\n"
        "(EngineCore pid=2) INFO [x.py:1] Loading weights took 100.5 seconds\n"
        "(EngineCore pid=2) INFO [x.py:1] Loading weights took 7.5 seconds\n"
    )
    assert (log.model, log.setting("architecture"), log.max_num_seqs, log.figures["loading_s"]) == (
        "me/Target",
        "TargetForCausalLM",
        8,
        100.5,
    )
    log = sglang_log.parse(
        "[10:00:00] Load weight begin. avail mem=90.00 GB\n"
        "[10:00:01] Load weight end. elapsed=60.50 s, type=TargetForCausalLM, avail mem=50.00 GB, mem usage=40.00 GB.\n"
        "[10:00:02] Load weight begin. avail mem=50.00 GB\n"
        "[10:00:03] Load weight end. elapsed=2.50 s, type=DrafterForCausalLM, avail mem=48.00 GB, mem usage=2.00 GB.\n"
        "[10:00:04] max_total_num_tokens=1000, max_running_requests=8, context_len=2048, available_gpu_mem=19.50 GB\n"
    )
    assert (log.setting("architecture"), log.figures["loading_s"], log.weights_bytes) == (
        "TargetForCausalLM",
        60.5,
        (("rank 0", 40 * GIB),),
    )
    assert log.figures["unused_bytes"] == 19.5 * GIB


def start(kv_gib, requests):
    return (
        f"(EngineCore pid=1) INFO [x.py:1] Model loading took 20.00 GiB memory and 30.5 seconds\n"
        f"(EngineCore pid=1) INFO [x.py:1] Available KV cache memory: {kv_gib:.2f} GiB\n"
        f"(EngineCore pid=1) INFO [x.py:1] Maximum concurrency for 8,192 tokens per request: {requests:.2f}x\n"
    )


def test_a_cache_that_is_next_to_nothing_is_named_and_a_small_one_by_choice_is_not(told):
    findings, causes, _ = told(start(0.4, 1.5))
    assert "0.40 GiB beside 20.00 GiB of weights hold 1.50 requests of 8,192 tokens" in causes["little cache"].said
    assert findings["loading the weights"].measured == 30.5
    assert not told(start(0.4, 20))[1]
    assert not told(start(8.0, 1.5))[1]


def test_where_ranks_stood_when_the_watchdog_spoke_is_told(tmp_path):
    stood = "[rank{r}]:[E] [PG ID 1 PG GUID 1 Rank {r}]  failure detected by watchdog at work sequence id: 3 PG status: "
    path = tmp_path / "x.log"
    gave_up = "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=BROADCAST, "
    gave_up += "NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.\n"
    path.write_text(gave_up + "".join(f"{stood.format(r=r)}last enqueued work: 547, last completed work: 2\n" for r in (0, 1)))
    (section,) = audit([path]).sections
    assert "ranks 0, 1 of group 1 had enqueued up to number 547 and completed up to number 2" in section.notes


# tests of collectives
def device(rank, bus, host="host"):
    return f"#  Rank  {rank} Group  0 Pid 7 on {host} device  {rank} [0000:{bus}:00] NVIDIA H200 NVL\n"


def row(nbytes, us, ranks):
    alg = nbytes / us / 1e3
    return f"{nbytes:>12} {nbytes // 4:>12} float sum -1 {us:>9.2f} {alg:>7.2f} {alg * 2 * (ranks - 1) / ranks:>7.2f} 0\n"


def test_rows_and_ranks_are_told_without_a_cluster_or_a_whole_list(told):
    text = "".join(device(r, f"{r}0") for r in range(3, 8)) + HEAD + row(1 << 30, 27500.0, 8)
    findings, _, _ = told(text)
    assert (collective_tests.parse(text).ranks, findings["size"].measured) == (8, pytest.approx(0.0275))
    assert "8 ranks" in findings["peak"].item
    assert told(HEAD + row(1 << 30, 10300.0, 16))[0]["size"].measured == pytest.approx(0.0103)


def test_shared_gpus_and_small_parts_of_a_link_are_causes(told):
    rows = HEAD + row(1 << 27, 58000.0, 2)
    findings, causes, head = told(device(0, "02") + device(1, "02") + rows)
    assert findings["GPUs that several ranks share"].verdict == "disagree"
    assert "shared GPU" in causes
    assert "something is off" in head
    assert "shared GPU" not in told(device(0, "02") + device(1, "02", "other") + rows)[1]
    devices = "".join(f"#  Rank  {r} Group  0 Pid 7 on h device  {r} [0000:{r}0:00] NVIDIA H100 80GB HBM3\n" for r in range(8))
    slow, sound = (told(devices + HEAD + row(1 << 30, us, 8))[1] for us in (180_000.0, 4_200.0))
    assert "2.3% of nvlink4" in slow["far below"].said
    assert "far below" not in sound


# training
@settings(max_examples=15, deadline=None)
@given(st.integers(86, 200), st.booleans())
def test_an_iteration_is_one_line_however_it_was_broken(width, bars):
    whole = [ITERATION.format(n=n) for n in (5, 6)]
    if bars:
        text = "\n".join(
            line.replace("samples:        10240 | ", "samples:        10240 |\n  ").replace("07 | ", "07 |\n  ") for line in whole
        )
    else:
        text = "\n".join(line[at : at + width] for line in whole for at in range(0, len(line), width))
    assert training_log.looks_like(text)
    log = training_log.parse(text)
    assert [(s.index, s.step_s, s.batch, s.flops_per_s) for s in log.steps] == [
        (n, pytest.approx(15.8005), 2048, pytest.approx(490.5e12)) for n in (5, 6)
    ]


def test_the_global_batch_is_told(told):
    assert told(ITERATION.format(n=5))[0]["global batch, sequences"].measured == 2048
    steps = "\n".join(f"[Rank 0] step=1 global_step={n}, RunningAvgSamplesPerSec=10.5, CurrSamplesPerSec=10.5" for n in (1, 2))
    argued = "  train_batch_size ............................. 64\n"
    assert told(argued + steps)[0]["global batch, sequences"].measured == 64


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    text = output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(1), SIZES[::2]))
    return text, calibrate([written(tmp_path_factory.mktemp("plain"), "a.txt", text)], "8xa100-80-sxm").profile.libraries


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_every_launcher_s_prefix_is_read_past(tmp_path, plain, prefix):
    text, libraries = plain
    tagged = "\n".join(prefix + line for line in text.splitlines())
    assert collective_tests.parse_all(tagged) == collective_tests.parse_all(text)
    assert calibrate([written(tmp_path, "b.txt", tagged)], "8xa100-80-sxm").profile.libraries == libraries


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_log_behind_a_prefix_is_a_log(tmp_path, prefix):
    line = "(Worker_TP0 pid=7) INFO 09-03 16:28:08 [x.py:1] Model loading took 7.51 GiB and 1 seconds"
    assert formats.kinds(written(tmp_path, "x.log", prefix + line)) == ["log"]
    assert prefixes.strip_prefixes(prefix + line) == line


@pytest.mark.parametrize("text", DATA["what_is_no_prefix_stays"])
def test_what_is_no_prefix_stays(text):
    assert prefixes.strip_prefixes(text) == text


def test_hosts_that_ran_each_their_own(tmp_path):
    """pdsh over two hosts without MPI: two runs of eight ranks, line by line in turn."""
    texts = [output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(s))).splitlines() for s in (1, 2)]
    mixed = "\n".join(f"host{i}: {line}" for pair in zip(*texts, strict=True) for i, line in enumerate(pair))
    assert collective_tests.parse_all(mixed) == tuple(r for t in texts for r in collective_tests.parse_all("\n".join(t)))


def without_ranks(text, keep=()):
    listed = [f"#  Rank {i:2d} " for i in keep]
    return "\n".join(x for x in text.splitlines() if "Rank" not in x or any(x.startswith(y) for y in listed))


def test_lists_of_ranks_tell_the_size_or_contradict_the_bandwidths(tmp_path):
    text = output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(3)))
    wrong = written(tmp_path, "x.txt", text.replace("Rank  7", "Rank 71"))
    with pytest.raises(ValueError, match=r"'x.txt': lists rank 71, and its busbw / algbw tell 8 ranks"):
        calibrate([wrong], "8xa100-80-sxm")
    text = output("all_reduce", 72, noisy(TRUE, 72, np.random.default_rng(3)))
    assert collective_tests.parse_run(without_ranks(text, [71])).ranks == 72
    assert collective_tests.parse_run(without_ranks(text, [0, 1, 2, 3])).ranks == 72, "the list was cut; the bandwidths tell"


def test_groups_side_by_side_are_counted_apart():
    """NCCL_TESTS_SPLIT: eight ranks in two communicators."""
    text = output("all_reduce", 4, noisy(TRUE, 4, np.random.default_rng(3)))
    lines = [f"#  Rank {i:2d} Group {i % 2:2d} Pid 9 on host device {i} [0x00] GPU" for i in range(8)]
    assert collective_tests.parse_run("\n".join([*lines, without_ranks(text)])).ranks == 4


@given(
    ranks=st.integers(2, 300),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall"]),
    fastest=st.floats(1, 900),
    keep=st.lists(st.integers(0, 299), max_size=4),
    prefix=st.sampled_from(list(PREFIXES.values())),
)
def test_no_part_of_a_list_gives_a_wrong_size(ranks, op, fastest, keep, prefix):
    """With the last rank's line the size is known; without any line it is right or not told."""
    factor = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
    rows = [f"{2**x} {2**x} float sum -1 1.0 {fastest / x:.2f} {fastest / x * factor:.2f} 0" for x in range(20, 4, -2)]
    lines = [f"# {op}_perf", *(f"#  Rank {i} Group 0 x" for i in {min(k, ranks - 1) for k in keep}), *rows]

    def size(found):
        return collective_tests.parse_run("\n".join(prefix + line for line in found)).ranks

    assert size([f"#  Rank {ranks - 1} Group 0 x", *lines]) == ranks
    assert size([line for line in lines if "Rank" not in line]) in (0, ranks)


def test_docker_s_own_files_are_unpacked(tmp_path):
    """One JSON object a line; the last was being written."""
    lines = ["INFO 09-03 16:28:08 [x.py:1] Model loading took 7.51 GiB and 1 seconds\n", "GPU KV cache size: 8,192 tokens\n"]
    packed = "".join(json.dumps({"log": line, "stream": "stderr", "time": "2024-11-04T12:00:00Z"}) + "\n" for line in lines)
    (log,) = formats.read(written(tmp_path, "x-json.log", packed + '{"log":"GPU KV ca'))
    assert (log.kv_tokens, len(log.weights_bytes)) == (8192, 1)


def test_a_table_s_first_cell_is_no_service():
    assert prefixes.strip_prefixes("synchronous  | 12 | 34") == "synchronous  | 12 | 34"
