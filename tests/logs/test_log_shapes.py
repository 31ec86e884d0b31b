"""Shapes that logs take in issues: cut lines, errors that are missing, endings by signals, waits, and what analysers print."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.audit import audit, audit_read, formats
from commtax.runs.audit.read_files import ReadFiles
from commtax.runs.logs import crashes, flight, nccl_log
from commtax.runs.logs.engine_logs import Moment, sglang_log, vllm_log
from commtax.runs.logs.nccl_audit import causes as nccl_causes
from commtax.runs.logs.startup_audit import audit_log, parse_timings
from commtax.runs.report.audit_words import headline
from each import each
from tables import tables

DATA = tables(__file__)

SERVED = "INFO 02-01 06:36:05 llm_engine.py:921] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: 118.5 tokens/s, "


def head(text, tmp_path, name="x.log"):
    (tmp_path / name).write_text(text)
    return headline(audit([tmp_path / name]))


# serving lines


@pytest.mark.parametrize("between", ["", "Max iteration time: 386.7 ms, Avg time/tok:149.4 ms, "])
def test_keys_of_a_serving_line_are_read_each_for_itself(between):
    line = (
        f"{SERVED}{between}Running: 35 reqs, Swapped: 0 reqs, Pending: 115 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0%"
    )
    assert vllm_log.parse(line).moments == (Moment(35, 115, 118.5, 0.99, prompt_tokens_per_s=382.6),)


def test_a_key_without_a_value_is_not_nothing():
    log = vllm_log.parse(f"{SERVED}Running: 35 reqs, Waiting: 1")
    assert log.moments[0].waiting is None
    assert "requests waiting" not in [f.item for f in audit_log(log, None).findings]


def test_hits_of_the_prefix_cache_are_told():
    line = f"{SERVED}Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 68.2%"
    assert ("prompt tokens found in the prefix cache", 0.682) in [
        (f.item, pytest.approx(f.measured)) for f in audit_log(vllm_log.parse(line), None).findings
    ]


@pytest.mark.parametrize(("waiting", "overloaded"), [(168, True), (1, False)])
def test_many_that_wait_for_a_full_cache_are_overload_from_the_first_line(waiting, overloaded, tmp_path):
    line = f"{SERVED}Running: 803 reqs, Waiting: {waiting} reqs, GPU KV cache usage: 99.9%, Prefix cache hit rate: 0.0%\n"
    said = head(line * 2, tmp_path)
    assert ("overloaded" in said) == overloaded
    assert "costs" not in said


def test_a_queue_in_lines_that_a_terminal_cut():
    decode = "[2026-05-28 02:59:59 TP0] Decode batch, #running-req: 45, #token: 44672, gen throughput (token/s): 863.65, #queue-req"
    prefill = (
        "[2026-05-28 02:59:59 TP0] Prefill batch, #new-seq: 1, #new-token: 896, #cached-tounning-req: 45, #queue-req: {}, input th"
    )
    log = sglang_log.parse("\n".join([decode, *(prefill.format(n) for n in (80, 81, 82, 82))]))
    assert [(m.running, m.waiting) for m in log.moments] == [(45, None), (45, 80), (45, 81), (45, 82), (45, 82)]
    assert [c.said for c in audit_log(log, None).causes] == ["overloaded: 80 to 82 wait while 45 run, and no fewer at the end"]


def test_one_that_waits_waits():
    line = f"{SERVED}Running: 7 reqs, Waiting: 1 reqs, GPU KV cache usage: 100.0%\n"
    (cause,) = audit_log(vllm_log.parse(line * 5), None).causes
    assert cause.said.endswith("and 1 request waits")
    assert cause.share is None


def test_requests_that_lose_their_cache():
    warned = "WARNING 07-12 scheduler.py:1057] Sequence group a is preempted by x mode. total_num_cumulative_preemption={}"
    log = vllm_log.parse("\n".join(warned.format(n) for n in (1, 51, 101)))
    assert [c.said.split(" times")[0] for c in audit_log(log, None).causes] == ["overloaded: 101"]
    retracted = (
        "[2025-03-01 10:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5 -> 0.7"
    )
    assert sglang_log.parse(f"{retracted}\n{retracted}").figures["preempted"] == 6


# starts

KV = "(EngineCore pid=107) INFO 07-09 02:58:11 [kv_cache_utils.py:2146] GPU KV cache size: 569,878 tokens\n"
STALL = "(EngineCore pid=7) INFO 07-09 03:{:02}:11 [shm.py:466] No available shared memory broadcast block found in 60 seconds\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"


def test_a_start_is_finished_where_a_line_says_so(tmp_path):
    assert head(KV, tmp_path).endswith("partial, the start is not finished in it")
    assert "nothing in it is off" in head(KV + READY, tmp_path)


def test_ranks_that_came_are_counted():
    line = "(Worker pid={0}) INFO 08-27 02:41:50 [parallel_state.py:16] world_size=16 rank={0} local_rank={0} backend=nccl"
    log = vllm_log.parse("\n".join(line.format(rank) for rank in range(6)))
    assert "6 of 16 ranks introduce themselves in this text" in audit_log(log, None).notes


def test_a_wait_that_does_not_end(tmp_path):
    stalls = "".join(STALL.format(n) for n in range(4))
    assert "hung: a process has waited 240 s" in head(KV + READY + stalls, tmp_path)
    served = f"{SERVED}Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%\n"
    assert "nothing in it is off" in head(KV + stalls + READY + served, tmp_path)


def test_times_and_blocks_of_a_start():
    took = "INFO 04-14 06:02:33 [core.py:162] init engine (profile, create kv cache, warmup model) took 79.67 seconds\n"
    text = (
        f"INFO [monitor.py:34] torch.compile takes 85.33 s in total\nINFO x.py:57] # GPU blocks: 5402, # CPU blocks: 8192\n{took}"
    )
    told = {f.item: f.measured for f in audit_log(vllm_log.parse(text), None).findings}
    assert (told["compiling"], told["profiling, cache and warm-up"], told["KV blocks"]) == (85.33, 79.67, 5402)


# errors

ECHO = "ERROR 06-13 08:28:11 [async_llm.py:420] vllm.v1.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
FRAME = 'ERROR 06-13 08:28:11 [async_llm.py:420]   File "/x/async_llm.py", line 379, in output_handler\n'


@each(
    ("text", "error"),
    [
        (f"ERROR 06-13 08:28:11 [core.py:517] a._b.nixlBackendError: NIXL_ERR_BACKEND\n{FRAME}{ECHO}", "a._b.nixlBackendError"),
        (
            "LLVM ERROR: Failed to compute.\nERROR 05-31 [client.py:305] RuntimeError('Engine process (pid 65262) died.')",
            "LLVM ERROR: Failed",
        ),
        (
            "terminate called after throwing an instance of 'std::errorterminate called recursively\n'\nAborted (core dumped)",
            "Aborted",
        ),
        ("terminate called after throwing an instance of 'X'\n  what():  no room\nAborted (core dumped)", "no room"),
        ("load 12%\nKilled\n", "Killed (killed by signal 9"),
        ("CUDA error: out of memory\n  current device: 0\nAborted (core dumped)", "CUDA error: out of memory"),
        (
            "!!!!!!! Segfault encountered !!!!!!!\nRuntimeError: Engine core initialization failed. See root cause above.",
            "Segfault encountered",
        ),
        ("[TP0] Watchdog timeout (self.watchdog_timeout=300)\nReceived sigquit from a child process.", "Watchdog timeout (self"),
    ],
)
def test_the_first_error_of_a_chain(text, error):
    assert crashes.may_hold_error(text)
    assert crashes.find(text.splitlines()).error.startswith(error)


@pytest.mark.parametrize("name", ["EngineCore", "WorkerProc"])
def test_a_process_that_failed_without_its_error(name, tmp_path):
    before = "(EngineCore_DP0 pid=469) ERROR 03-11 17:57:10 [executor.py:783] "
    frame = f'{before}Traceback (most recent call last):\n{before}  File "/x/executor.py", line 754, in f\n'
    said = f"{before}{name} failed to start.\n{frame}"
    (tmp_path / "x.log").write_text(f"{KV}{said}")
    found = audit([tmp_path / "x.log"])
    (cause,) = found.sections[0].causes
    assert (
        f"{name} failed to start, and what it wrote itself is not in this text (EngineCore_DP0 pid=469, executor.py:754)"
        in cause.said
    )
    assert "below" not in cause.change


@settings(max_examples=15, deadline=None)
@given(st.integers(61, 300))
def test_what_was_met_long_before_did_not_lead_to_the_end(quiet):
    early = ["Traceback (most recent call last):", '  File "/x/a.py", line 3, in f', "ImportError: no flash_attn"]
    late = [
        "Traceback (most recent call last):",
        '  File "/x/b.py", line 9, in g',
        "ValueError: too long",
        "EngineCore failed to start.",
    ]
    assert crashes.find([*early, *["INFO all is well"] * quiet, *late]).error == "ValueError: too long"


# analyses of hangs

BLOCK = DATA["block"]
TABLE = DATA["table"]


@pytest.mark.parametrize("number", [" 5 at entry 4", ", sequence number: 5", ": sequence number: 5"])
def test_an_analysers_block(number, tmp_path):
    (fault,) = flight.parse_analysis(BLOCK.format(number)).faults
    assert (fault.seq, fault.op, fault.missing, fault.size, fault.where) == (5, "all-reduce", (1,), 2, "/home/me/crash.py:44")
    assert head(BLOCK.format(number), tmp_path) == "1 flight record: rank 1 is the culprit (late rank)"


def test_an_analysers_table():
    found = flight.parse_analysis(TABLE)
    assert found.listed == 2
    assert [(f.seq, f.op, f.missing) for f in found.faults] == [(4, "all-reduce", (1,))]


def test_a_call_that_differs():
    text = (
        "Collective sequence number: 11 has errors\ncollective: nccl:all_gather\nerror msg: Culprit rank 1; SIZE_OR_SYNTAX_MISMATCH"
    )
    found = audit_read(ReadFiles((("x", flight.parse_analysis(text)),)))
    assert found.culprit.rank == 1
    assert "rank 1 differed from others in all-gather, number 11: SIZE_OR_SYNTAX_MISMATCH" in found.culprit.said


def test_the_group_of_a_watchdog_by_its_elements():
    work = "WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=4096, NumelOut=512, Timeout(ms)=600000)"
    line = "[rank{0}]:[E1206 x.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: {1} ran for 600061 milliseconds"
    log = nccl_log.parse("\n".join(line.format(rank, work) for rank in (0, 3, 4)))
    said = [c.said for c in nccl_causes(log, None)]
    assert any("shared out among 8 ranks, and ranks 1, 2, 5, 6, 7 have no line here" in text for text in said)


# llama.cpp


def test_timings_of_llamacpp(tmp_path):
    text = (
        "srv-1  | slot print_timing: id  0 | task 0 | n_decoded =    100, tg =  49.32 t/s\n"
        "srv-1  | prompt eval time =     345.34 ms /    12 tokens (   28.78 ms per token,    34.75 tokens per second)\n"
        "srv-1  |        eval time =    5045.68 ms /   127 tokens (   39.73 ms per token,    25.17 tokens per second)\n"
        "srv-1  | load_tensors:        CUDA0 model buffer size =  4095.05 MiB\n"
    )
    found = parse_timings(text)
    assert (found.reads, found.writes, found.buffers) == ([34.75], [49.32, 25.17], {"model": {"CUDA0": 4095.05}})
    assert "nothing in it is off" in head(text, tmp_path)
    (tmp_path / "y.log").write_text(text)
    assert formats.kinds(tmp_path / "y.log") == ["log"]
