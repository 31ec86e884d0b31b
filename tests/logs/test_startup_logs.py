"""Logs of starts and of runs that failed: all wordings, the root error, cut lines, and what flight recorders kept."""

import base64
import json
import pickle
from contextlib import suppress
from pathlib import PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.audit import audit, audit_read, formats
from commtax.runs.audit.read_files import ReadFiles
from commtax.runs.logs import crashes, flight, nccl_log
from commtax.runs.logs.engine_logs import Moment, Rank, StartupLog, sglang_log, tgi_log, vllm_log
from commtax.runs.logs.flight import audit_flight
from commtax.runs.logs.nccl_audit import causes as nccl_causes
from commtax.runs.logs.startup_audit import audit_log, parse_timings
from commtax.runs.report.audit_words import headline
from commtax.statement import Refusal
from each import each
from paths import FIXTURES
from tables import tables
from texts import put

DATA = tables(__file__)
GIB = 2**30
VLLM_WAITS = "DEBUG 05-16 13:12:16 [core_client.py:425] Waiting for 2 core engine proc(s) to start: {0}"
TGI_WAITS = "INFO shard-manager: text_generation_launcher: Waiting for shard to be ready... rank="
TGI_CONNECTED = "2025-07-08T00:21:30Z  INFO text_generation_router::server: router/src/server.rs:2402: Connected"
VLLM = DATA["vllm"]
SGLANG = DATA["sglang"]
TORCHRUN = DATA["torchrun"]
SUMMARY = DATA["summary"]
KILLED = SUMMARY.replace("exitcode  : 1", "exitcode  : -9").replace(
    "To enable traceback see:", "Signal 9 (SIGKILL) received by PID 24321"
)
CHAIN = DATA["chain"]
CAUSED = DATA["caused"]
HEALTHY = 'Traceback (most recent call last):\n  File "/a.py", line 3, in f\nValueError: a client sent nonsense\n' + "step\n" * 40
SERVED = "INFO 02-01 06:36:05 llm_engine.py:921] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: 118.5 tokens/s, "
KV = "(EngineCore pid=107) INFO 07-09 02:58:11 [kv_cache_utils.py:2146] GPU KV cache size: 569,878 tokens\n"
STALL = "(EngineCore pid=7) INFO 07-09 03:{:02}:11 [shm.py:466] No available shared memory broadcast block found in 60 seconds\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
BLOCK = DATA["block"]
LOGS = json.loads((FIXTURES / "audit" / "logs.json").read_text())
REAL = [row for row in LOGS if row["kind"] == "flight"]
GRID = {"0": (0, 1, 2, 3), "tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


@each(("line", "field", "value"), DATA["line_variants"])
def test_line_variants(line, field, value):
    assert vllm_log.looks_like(line) or field in ("disabled", "backends")
    log = vllm_log.parse(line)
    found = {
        "weights": log.weights_bytes[0][1] / GIB if log.weights_bytes else None,
        "available": log.available_kv_bytes / GIB if log.available_kv_bytes else None,
        "tokens": log.kv_tokens,
        "concurrency": log.max_concurrency,
        "blocks": log.kv_blocks,
        "nccl_version": log.setting("nccl_version"),
        "backends": log.allreduce_backends,
    }
    if field == "disabled":
        assert value in log.custom_allreduce_disabled
        assert "silence" not in log.custom_allreduce_disabled
    else:
        assert found[field] == pytest.approx(value) if isinstance(value, float) else found[field] == value


@pytest.mark.parametrize(
    "prefix",
    ["(VllmWorker rank={} pid=1{})", "(Worker_TP{} pid=1{})", "(VllmWorkerProcess pid={}1{})", "(Worker_DP0_TP{}_EP{} pid=3)"],
)
def test_interleaved_ranks(prefix):
    """Each rank has its own weights; of KV figures the tightest counts."""
    lines = [f"{prefix.format(r, r)} INFO x [y.py:1] Model loading took 7.5{r} GiB and 1.0 seconds" for r in (1, 0)]
    lines += [f"{prefix.format(r, r)} INFO x [y.py:1] Available KV cache memory: {60 - r} GiB" for r in (0, 1)]
    log = vllm_log.parse("\n".join(lines))
    assert sorted(b / GIB for _, b in log.weights_bytes) == pytest.approx([7.50, 7.51])
    assert log.available_kv_bytes == 59 * GIB


def test_configuration_and_ranks_as_each_version_writes_them():
    old = (
        "INFO llm_engine.py:234] Initializing an LLM engine (v0.6.4) with config: model='m', dtype=torch.float16, "
        "max_seq_len=20000, tensor_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=fp8"
    )
    log = vllm_log.parse(old)
    assert (log.version, log.tp, log.max_model_len, log.setting("kv_cache_dtype"), log.setting("quantization")) == (
        "0.6.4",
        2,
        20000,
        "fp8",
        "",
    )
    server = (
        "INFO api_server.py:1] vLLM API server version 0.8.5\n"
        "INFO x] args: Namespace(model='m', tensor_parallel_size=4, gpu_memory_utilization=0.95, enforce_eager=True)"
    )
    log = vllm_log.parse(server)
    assert (log.version, log.tp, log.gpu_memory_utilization) == ("0.8.5", 4, 0.95)
    lines = [
        f"(Worker_TP{r} pid=1{r}) INFO x [p.py:1] rank {r} in world size 4 is assigned as DP rank 0, PP rank {r // 2}, "
        f"TP rank {r % 2}, EP rank {r}"
        for r in (3, 1, 2, 0)
    ]
    log = vllm_log.parse("\n".join(lines))
    assert (log.world_size, log.ranks[3]) == (4, Rank(3, dp=0, pp=1, tp=1, ep=3))
    line = "x] Initializing a V1 LLM engine (v0.11.0) with config: model='m', disable_custom_all_reduce=True, device_config={}"
    assert vllm_log.parse(line.format("cuda")).custom_allreduce_disabled == "disable_custom_all_reduce=True"
    assert vllm_log.parse(line.format("cpu")).custom_allreduce_disabled == ""
    assert not vllm_log.looks_like("hello\nworld")
    assert vllm_log.parse("hello") == StartupLog()


def test_the_last_start_counts():
    run = (
        "(EngineCore pid={0}) INFO x [c.py:1] Initializing a V1 LLM engine (v0.11.0) with config: tensor_parallel_size={1}\n"
        "INFO x [k.py:1] GPU KV cache size: {2} tokens\n"
    )
    assert vllm_log.parse(run.format(1, 1, "1,000") + run.format(2, 2, "2,000")).kv_tokens == 2000
    replicas = "".join(run.format(p, 1, t).replace("EngineCore", f"EngineCore_DP{p}") for p, t in ((0, "5,000"), (1, "4,000")))
    assert vllm_log.parse(replicas).kv_tokens == 4000


@pytest.mark.parametrize(("tp", "tokens"), [(1, 262_144), (2, 524_288)])
def test_vllm_on_cpu_for_real(tp, tokens):
    log = vllm_log.parse((FIXTURES / f"vllm-cpu-tp{tp}.log").read_text())
    assert (log.version, log.tp, log.world_size, len(log.ranks)) == ("0.32.0", tp, tp, tp)
    assert (log.kv_tokens, log.max_concurrency, log.max_model_len) == (tokens, tokens / 1024, 1024)
    assert (log.backend, "fixed" in log.figures, log.available_kv_bytes) == ("gloo", True, GIB)
    assert log.max_num_batched_tokens == 4096 * tp


@pytest.mark.parametrize(
    ("reader", "text"), [(vllm_log, "\n".join([VLLM_WAITS] * 3)), (tgi_log, "\n".join(f"{TGI_WAITS}{rank}" for rank in (1, 0, 2)))]
)
def test_a_text_of_waiting_alone_is_a_start_that_is_not_finished(reader, text):
    assert reader.looks_like(text)
    section = audit_log(reader.parse(text), None)
    assert {"stopped", "partial"} <= {note.code for note in section.notes}
    assert not section.causes


def test_shards_are_counted_until_they_serve():
    waits = "\n".join(f"{TGI_WAITS}{rank}" for rank in (1, 0, 2))
    assert [f.measured for f in audit_log(tgi_log.parse(waits), None).findings] == [3]
    assert not tgi_log.parse(f"{waits}\n{TGI_CONNECTED}").stops


@pytest.mark.parametrize(
    ("text", "error", "who", "where"),
    [
        (VLLM, "RuntimeError: NCCL error: unhandled cuda error", "Worker_TP1 pid=33", "pynccl_wrapper.py:272"),
        (SGLANG, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "TP1", "memory.py:12"),
        (TORCHRUN, "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-17.bin'", "rank2", "train.py:60"),
        (SUMMARY, "rank 4 ended first, with exit code 1; what it wrote itself is not in this text", "", ""),
        (CHAIN, "ValueError: The checkpoint has model type `qwen9` but Transformers does not recog", "", "config.py:1204"),
        (CAUSED, "RuntimeError: Failed to find C compiler.", "", "gpu.py:3"),
    ],
    ids=["vllm", "sglang", "torchrun", "summary", "lookup", "caused"],
)
def test_the_root_error(text, error, who, where):
    found = crashes.find(text.splitlines())
    assert found.error.startswith(error)
    assert (found.who, found.where) == (who, where)


def test_more_of_an_error_and_of_its_launcher():
    assert "Cuda failure 2 'out of memory'" in crashes.find(DATA["nccl_below"].splitlines()).error
    assert "for want of memory" in crashes.find(KILLED.splitlines()).error
    assert crashes.find(CAUSED.splitlines()).then.startswith("torch._inductor.exc.InductorError")
    ended = "E0323 21:57:08.583000 23 elastic/x.py:869] failed (exitcode: 1) local_rank: 0 (pid: 88) of binary: python"
    lines = [ended, "Traceback (most recent call last):", '  File "/opt/bin/torchrun", line 10, in <module>']
    lines += ["    sys.exit(main())"]
    said = "local rank 0 exited with 1 (failed (exitcode: 1) local_rank: 0), and its own error is not in this text"
    assert crashes.find(lines).sentence == said
    assert crashes.find([*lines[:1], *(f"step {i}" for i in range(40))]) is None  # it was started again


@pytest.mark.parametrize(
    "text", [HEALTHY, "loss 2.3\n" * 30, "KeyboardInterrupt\n", HEALTHY.replace("ValueError", "KeyboardInterrupt")]
)
def test_what_a_run_went_on_after_is_no_crash(text):
    assert crashes.find(text.splitlines()) is None


@pytest.mark.parametrize(("text", "kind"), [(VLLM, "log"), (SGLANG, "log"), (TORCHRUN, "crash"), (SUMMARY, "crash")])
def test_a_run_that_failed_is_off(text, kind, tmp_path):
    found = audit([put(tmp_path, "x.log", text)])
    assert (found.verdict, [s.kind for s in found.sections]) == ("disagree", [kind])
    assert found.sections[0].causes[0].code == "failure"
    assert "initialization failed" not in found.sections[0].causes[0].said


def test_a_server_that_failed_later_had_started_and_outlives_the_error_of_a_request(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(VLLM.replace("(Worker_TP1 pid=33) ERROR", "INFO: Application startup complete.\n(Worker_TP1 pid=33) ERROR", 1))
    section = audit([path]).sections[0]
    assert "failed later" in section.causes[0].said
    assert [f.code for f in section.findings if f.verdict == "disagree"] == ["runs that ended in an error"]
    ready = (
        "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='a'\nINFO:     Application startup complete.\n"
    )
    request = (
        'Traceback (most recent call last):\n  File "/vllm/serving_chat.py", line 200, in create\nValueError: no chat template\n'
    )
    assert "failure" not in vllm_log.parse(ready + request).settings
    assert "no chat template" in vllm_log.parse(ready.partition("\n")[0] + "\n" + request).settings["failure"]


@settings(max_examples=15)
@given(st.sampled_from([VLLM, SGLANG, TORCHRUN, CHAIN, CAUSED]), st.lists(st.integers(0, 30), max_size=6), st.data())
def test_lines_that_are_lost_or_doubled_break_nothing(text, places, data):
    lines = text.splitlines()
    for place in places:
        at = place % len(lines)
        lines[at:at] = data.draw(st.sampled_from([[], [lines[at]], [""], ["x" * 500], ['  File "', "Error: "]]))
    found = crashes.find(lines)
    assert found is None or found.error


@pytest.mark.parametrize(
    "piece", ['  File "a", line 1, in f ', "Error: ", "a.b.c.", "Traceback (most recent call last)", "T12:00:00.1"]
)
def test_one_endless_line(piece):
    crashes.find([piece * 20_000] * 3)


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


def test_keys_without_values_and_hits_of_the_prefix_cache():
    log = vllm_log.parse(f"{SERVED}Running: 35 reqs, Waiting: 1")
    assert log.moments[0].waiting is None
    assert "requests waiting" not in [f.item for f in audit_log(log, None).findings]
    line = f"{SERVED}Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 68.2%"
    assert ("prompt tokens found in the prefix cache", 0.682) in [
        (f.item, pytest.approx(f.measured)) for f in audit_log(vllm_log.parse(line), None).findings
    ]
    line = f"{SERVED}Running: 7 reqs, Waiting: 1 reqs, GPU KV cache usage: 100.0%\n"
    (cause,) = audit_log(vllm_log.parse(line * 5), None).causes
    assert cause.said.endswith("and 1 request waits")
    assert cause.share is None


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


def test_requests_that_lose_their_cache():
    warned = "WARNING 07-12 scheduler.py:1057] Sequence group a is preempted by x mode. total_num_cumulative_preemption={}"
    log = vllm_log.parse("\n".join(warned.format(n) for n in (1, 51, 101)))
    assert [c.said.split(" times")[0] for c in audit_log(log, None).causes] == ["overloaded: 101"]
    retracted = (
        "[2025-03-01 10:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5 -> 0.7"
    )
    assert sglang_log.parse(f"{retracted}\n{retracted}").figures["preempted"] == 6


# starts
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
@each(
    ("text", "error"),
    DATA["the_first_error_of_a_chain"],
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
    (cause,) = audit([tmp_path / "x.log"]).sections[0].causes
    assert (
        f"{name} failed to start, and what it wrote itself is not in this text (EngineCore_DP0 pid=469, executor.py:754)"
        in cause.said
    )
    assert "below" not in cause.change


@settings(max_examples=15, deadline=None)
@given(st.integers(61, 300))
def test_what_was_met_long_before_did_not_lead_to_the_end(quiet):
    early = ["Traceback (most recent call last):", '  File "/x/a.py", line 3, in f', "ImportError: no flash_attn"]
    late = ["Traceback (most recent call last):", '  File "/x/b.py", line 9, in g', "ValueError: too long"]
    late += ["EngineCore failed to start."]
    assert crashes.find([*early, *["INFO all is well"] * quiet, *late]).error == "ValueError: too long"


# analyses of hangs
@pytest.mark.parametrize("number", [" 5 at entry 4", ", sequence number: 5", ": sequence number: 5"])
def test_an_analysers_block(number, tmp_path):
    (fault,) = flight.parse_analysis(BLOCK.format(number)).faults
    assert (fault.seq, fault.op, fault.missing, fault.size, fault.where) == (5, "all-reduce", (1,), 2, "/home/me/crash.py:44")
    assert head(BLOCK.format(number), tmp_path) == "1 flight record: rank 1 is the culprit (late rank)"


def test_analysers_tables_and_calls_that_differ():
    found = flight.parse_analysis(DATA["table"])
    assert (found.listed, [(f.seq, f.op, f.missing) for f in found.faults]) == (2, [(4, "all-reduce", (1,))])
    text = (
        "Collective sequence number: 11 has errors\ncollective: nccl:all_gather\nerror msg: Culprit rank 1; SIZE_OR_SYNTAX_MISMATCH"
    )
    found = audit_read(ReadFiles((("x", flight.parse_analysis(text)),)))
    assert found.culprit.rank == 1
    assert "rank 1 differed from others in all-gather, number 11: SIZE_OR_SYNTAX_MISMATCH" in found.culprit.said
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


@pytest.mark.parametrize("row", REAL, ids=lambda r: r["name"])
def test_real_recorders(row, tmp_path):
    """Of gloo: a healthy job, rank 2 never came, rank 3 called something else. Of NCCL: one rank's."""
    wanted = row["expected"]
    for form in ("pickles", "json"):
        paths = []
        for rank, text in enumerate(row[form]):
            paths.append(tmp_path / f"nccl_trace_rank_{rank}{'.json' if form == 'json' else ''}")
            paths[-1].write_bytes(base64.b64decode(text) if form == "pickles" else text.encode())
        if not paths:
            continue
        audited = audit(paths)
        (section,) = audited.sections
        measured = {f.item: f.measured for f in section.findings}
        ranks = len(row["pickles"])
        assert measured == {
            "ranks": ranks,
            "collectives recorded": wanted["entries"],
            "collectives that did not end": wanted["open"],
        }
        assert (audited.culprit.rank if audited.culprit else None) == wanted["culprit"]
        assert section.facts.get("version", "") == wanted.get("version", "")
        assert [[r.op, r.group, r.count, r.nbytes] for r in section.collectives] == wanted["rows"]


def made_dump(rank, count, *, group="0", done=True, op="all_reduce", size=8, ranks=(0, 1, 2, 3), state="scheduled"):
    """Entries as PyTorch documents them (flight recorder 2.10), NCCL's own states included."""

    def entry(seq):
        ended = done or seq < count - 1
        named = {"record_id": seq, "process_group": (group, "default_pg"), "collective_seq_id": seq, "profiling_name": f"nccl:{op}"}
        sized = {"time_created_ns": seq * 1000 + rank, "input_sizes": [[size]], "output_sizes": [[size]]}
        typed = {"p2p_seq_id": 0, "input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"], "is_p2p": False}
        return {**named, **sized, **typed, "state": "completed" if ended else state, "retired": ended}

    entries = [entry(seq) for seq in range(count)]
    return {"version": "2.10", "pg_config": {group: {"name": group, "desc": "x", "ranks": str(list(ranks))}}, "entries": entries}


@given(st.integers(0, 3), st.integers(2, 9), st.integers(2, 9))
def test_who_did_not_come_is_named(late, count, other):
    """The late rank stands in the default group; in another group, whose ranks wait for one that waits itself, nobody else is."""
    dumps = []
    for rank in range(4):
        mine = made_dump(rank, count - (rank == late), done=rank == late)
        if rank != late:  # they had gone through another group before
            mine["entries"] += made_dump(rank, other, group="1", ranks=(0, 1, 2, 3))["entries"]
        dumps.append(flight.parse(mine, rank))
    found = audit_flight(dumps, None, ["x"] * 4)
    assert (found.culprit.rank, found.causes[0].code) == (late, "hang")
    assert audit_flight([flight.parse(made_dump(r, count), r) for r in range(4)], None, ["x"] * 4).culprit is None


def blocked(program, late, stops):
    """Dumps of four ranks that go through a program of groups one collective after the other, when one stops before its n-th."""
    at, issued = [0] * 4, {}
    while True:
        moved = False
        for rank in range(4):
            mine = [n for n, group in enumerate(program) if rank in GRID[group]]
            if at[rank] >= len(mine) or (rank == late and at[rank] >= stops):
                continue
            step = mine[at[rank]]
            moved |= rank not in issued.setdefault(step, {})
            issued[step][rank] = True
            if set(issued[step]) == set(GRID[program[step]]):  # all are there: they go on
                for member in GRID[program[step]]:
                    at[member] += 1
                moved = True
        if not moved:
            break
    dumps = []
    for rank in range(4):
        entries = []
        for step in sorted(n for n, ranks in issued.items() if rank in ranks):
            group = program[step]
            seq = program[:step].count(group)
            done = set(issued[step]) == set(GRID[group])
            row = made_dump(rank, 1, group=group, done=done, state="started")["entries"][0]
            entries.append(row | {"collective_seq_id": seq, "time_created_ns": step})
        config = {group: {"desc": "", "ranks": str(list(ranks))} for group, ranks in GRID.items() if rank in ranks}
        dumps.append(flight.parse({"version": "2.10", "pg_config": config, "entries": entries}, rank))
    return dumps


@given(st.lists(st.sampled_from(sorted(GRID)), min_size=1, max_size=30), st.integers(0, 3), st.integers(0, 30))
def test_whoever_others_wait_for_through_other_groups_is_named(program, late, stops):
    """One rank stops; those that wait for it make others wait in other groups, and none of these is to blame."""
    found = audit_flight(blocked(program, late, stops), None, ["x"] * 4)
    missed = sum(late in GRID[group] for group in program) > stops
    waited = missed and any(not e.done for d in blocked(program, late, stops) for e in d.entries)
    assert (found.culprit.rank if found.culprit else None) == (late if waited else None)


def test_collectives_not_started_or_of_other_sizes_name_their_rank():
    states = ["started", "started", "scheduled", "started"]
    dumps = [flight.parse(made_dump(r, 3, done=False, state=s), r) for r, s in enumerate(states)]
    found = audit_flight(dumps, None, ["x"] * 4)
    assert (found.culprit.rank, found.causes[0].code) == (2, "stuck")
    all_in = [flight.parse(made_dump(r, 3, done=False, state="started"), r) for r in range(4)]
    assert audit_flight(all_in, None, ["x"] * 4).culprit is None
    dumps = [flight.parse(made_dump(r, 3, done=False, size=8 if r != 1 else 9), r) for r in range(4)]
    found = audit_flight(dumps, None, ["x"] * 4)
    assert (found.culprit.rank, found.causes[0].code) == (1, "mismatch")
    two = [flight.parse(made_dump(r, 3, size=8 + r, ranks=(0, 1)), r) for r in range(2)]
    assert audit_flight(two, None, ["x"] * 2).culprit is None  # one against one: nobody knows who is right
    pairs = [flight.parse(made_dump(r, 3, group="tp", size=8 + r // 2, ranks=(0, 1) if r < 2 else (2, 3)), r) for r in range(4)]
    found = audit_flight(pairs, None, ["x"] * 4)
    assert found.culprit is None
    assert len(found.collectives) == 2


@given(plain, st.integers(0, 5))
def test_plain_pickles_are_read_as_python_reads_them(value, protocol):
    assert flight.loads(pickle.dumps(value, protocol), "x") == (value, "")


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_pickles_end_in_data_or_in_a_refusal(noise, at):
    whole = pickle.dumps(made_dump(0, 2), 2)
    for raw in (b"\x80\x02" + noise, whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        with suppress(Refusal):
            flight.parse(*flight.loads(raw, "x")[:1], 0)


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_nothing_that_a_pickle_names_is_run(tmp_path, capsys):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [Evil()], "profiling_name": 1}, 2))
    with pytest.raises(Refusal, match="not run"):
        audit([path])
    assert capsys.readouterr().out == ""
    with pytest.raises(Refusal, match="bytearray"):  # whatever protocol it is of, and before a terabyte is allocated for it
        flight.loads(b"\x80\x05]\x96" + (2**40).to_bytes(8, "little") + b".", "x")
    path.write_bytes(b"\x80\x02}q\xff" + b"r\xff\xff\xff\xff" + b"profiling_name")  # a memo of four thousand million places
    assert not audit([path]).sections[0].collectives


def test_a_dump_that_breaks_off_gives_what_is_whole(tmp_path):
    row = next(r for r in REAL if r["name"] == "flight recorder, hang")
    for form in ("pickles", "json"):
        raw = base64.b64decode(row[form][0]) if form == "pickles" else row[form][0].encode()
        path = tmp_path / f"{form}_rank_0"
        path.write_bytes(raw[: len(raw) * 2 // 3])
        (dump,) = formats.read(path)
        assert 0 < len(dump.entries) < 9
        assert ([n.code for n in dump.notes], dump.rank) == (["partial"], 0)


def test_ranks_in_names_of_files():
    names = {"nccl_trace_rank_12": 12, "nccl_trace_rank_container-node02_5": 5, "x_3.json": 3, "x_4.pkl.gz": 4, "dump": -1}
    assert {name: flight.rank_of(PurePath(name)) for name in names} == names
