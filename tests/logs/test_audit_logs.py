"""What logs say: real excerpts with figures counted by hand, memory as each version counts it, and laws over made ones."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.runs.audit import audit, formats
from commtax.runs.evidence.finding import Claim
from commtax.runs.logs import nccl_log
from commtax.runs.logs.engine_logs import sglang_log, trtllm_log, vllm_log
from commtax.runs.logs.nccl_audit import audit_nccl
from commtax.runs.logs.nccl_log import Route
from commtax.runs.logs.startup_audit import audit_log, logged_options, typical_load
from commtax.thresholds import levels
from commtax.verbs.fitting import holds
from commtax.verbs.settling import resolve_question
from each import each
from paths import FIXTURES
from start_logs import LOGS, name, of_log
from tables import tables
from texts import put

DATA = tables(__file__)
GIB = 2**30
REAL = json.loads((FIXTURES / "audit" / "logs.json").read_text())
READERS = {"vllm": vllm_log, "sglang": sglang_log, "trtllm": trtllm_log, "nccl": nccl_log}
PROGRESS = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {}] failure detected by watchdog at work sequence id: 9 "
    "PG status: last enqueued work: {}, last completed work: 8"
)
CALL = (
    "n{0}:{0}:1 [0] NCCL INFO {1}: opCount {2:x} sendbuff 0x1 recvbuff 0x2 count {3} datatype 9 op 0 root 0 "
    "comm 0xa{0} [nranks=4] stream 0x3"
)
INIT = "n1:10{0}:20{0} [{0}] NCCL INFO ncclCommInitRankConfig comm 0x55a{0} rank {0} nranks {1} cudaDev {0} commId 0x79 - Init {2}"
WATCHDOG = (
    "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
)
CLAIM = (
    "(Worker_TP{0} pid=5{0}) INFO 06-13 20:03:57 [cpu_worker.py:235] Auto set ({1}/18.0) GiB for KV cache on node {2}, "
    "with {3} GiB requested memory for the worker. 3.92 GiB memory was consumed by non-kv usages."
)
MODELS = ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b", "qwen3-8b"]
CPU_LINES = (
    "(Worker_TP{n} pid=7{n}) INFO 11-15 04:59:15 [cpu_worker.py:251] Auto set (20.15/23.21) GiB for KV cache on node {node}, with "
    "20.9 GiB requested memory for the worker. 0.75 GiB memory was consumed by non-kv usages."
)


def real(*kinds):
    return pytest.mark.parametrize("row", [r for r in REAL if r["kind"] in kinds], ids=lambda r: r["name"])


def claimed(words):
    words = dict(words)
    return Claim(resolve_question(words.pop("model"), words.pop("cluster"), words))


def test_enough_real_logs():
    kinds = [r["kind"] for r in REAL]
    least = {"vllm": 3, "sglang": 3, "trtllm": 2, "nccl": 5, "flight": 1}
    assert all(kinds.count(kind) >= n for kind, n in least.items())
    assert all(r["source"].startswith(("https://", "recorded ")) for r in REAL)


@real("vllm", "sglang", "trtllm", "nccl")
def test_a_real_log_is_recognised_as_what_it_is(row, tmp_path):
    path = put(tmp_path, "x.log", "\n".join(row["lines"]))
    assert "log" in formats.kinds(path)
    assert getattr(formats.read(path)[0], "engine", "nccl") == row["kind"]


@real("vllm", "sglang", "trtllm")
def test_figures_of_real_starts(row):
    log, wanted = READERS[row["kind"]].parse("\n".join(row["lines"])), row["expected"]
    assert log.engine == wanted["engine"]
    for key in ("version", "pp", "max_model_len", "block_size", "kv_tokens", "world_size"):
        assert key not in wanted or getattr(log, key) == wanted[key]
    for key in ("dtype", "attention_backend", "all2all", "kv_cache_dtype"):
        assert key not in wanted or log.setting(key) == wanted[key]
    assert "tp" not in wanted or logged_options(log)["tp"] == wanted["tp"]
    assert "model" not in wanted or logged_options(log)["model"] == wanted["model"]
    assert log.setting("nccl_version") == wanted.get("nccl", "")
    assert wanted.get("disabled", "") in log.custom_allreduce_disabled
    assert [round(b / GIB, 2) for _, b in log.weights_bytes] == wanted.get("weights_gib", [])
    assert "kv_gib" not in wanted or log.available_kv_bytes / GIB == pytest.approx(wanted["kv_gib"])
    if each := wanted.get("kv_bytes_a_token"):
        assert log.available_kv_bytes / log.kv_tokens == pytest.approx(each, rel=0.011 * GIB / log.available_kv_bytes)
    assert sum(m.tokens_per_s > 0 for m in log.moments) == wanted.get("moments", 0)
    if usual := wanted.get("typical"):
        assert typical_load(log) == pytest.approx(tuple(usual), abs=0.02)


@real("vllm", "sglang", "trtllm")
def test_a_start_is_told_without_a_claim(row):
    log = READERS[row["kind"]].parse("\n".join(row["lines"]))
    told = audit_log(log, None, "x")
    failed = [f for f in told.findings if f.code == "starts that failed"]
    assert [f.verdict for f in failed] == ["disagree"] * row["expected"].get("causes", []).count("failure")
    assert all(f.predicted is None and f.measured is not None and f.verdict == "unknown" for f in told.findings if f not in failed)
    assert ([c.code for c in told.causes], told.facts["engine"]) == (row["expected"].get("causes", []), log.engine)
    assert "api_key" not in told.facts
    measured = {f.code: f.measured for f in told.findings}
    if tokens := row["expected"].get("kv_tokens"):
        assert measured["KV tokens"] == tokens
    if len(loaded := row["expected"].get("weights_gib", [])) > 1:
        assert measured["all ranks' weights"] / GIB == pytest.approx(sum(loaded), abs=0.005 * len(loaded))


@pytest.mark.parametrize("row", [r for r in REAL if "agree" in r["expected"]], ids=lambda r: r["name"])
def test_real_starts_agree_with_what_fits(row):
    found = audit_log(READERS[row["kind"]].parse("\n".join(row["lines"])), claimed(row["expected"]["claim"]))
    verdicts = {f.code: f.verdict for f in found.findings}
    assert {code: verdicts[code] for code in row["expected"]["agree"]} == dict.fromkeys(row["expected"]["agree"], "agree")
    assert "disagree" not in verdicts.values()


def test_a_disabled_allreduce_has_its_price_a_token_and_nccl_alone_is_a_cause():
    line = (
        "[2025-01-01 00:00:00 TP0] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed."
    )
    claim = claimed({"model": "llama-3.1-8b", "cluster": "2xh100-sxm", "tp": 2, "engine": "sglang"})
    (cause,) = audit_log(sglang_log.parse(line), claim).causes
    step = float(claim.bill().step_s)
    assert cause.cost_s == pytest.approx(float(claim.bill(library="nccl").step_s) - step)
    assert cause.share == pytest.approx(cause.cost_s / (cause.cost_s + step))
    assert "a token" in cause.gain or "each token" in cause.gain
    eager = "INFO x] Initializing a V1 LLM engine (v0.11.0) with config: model='m', enforce_eager=True"
    (cause,) = audit_log(vllm_log.parse(eager), claimed({"model": "llama-3.1-8b", "cluster": "dgx-h100", "tp": 8})).causes
    assert (cause.code, cause.cost_s > 0) == ("eager", True)
    line = "INFO x.py:1] Using {} all-reduce backends (in dispatch order) for group 'tp:0' out of []"
    assert [c.code for c in audit_log(vllm_log.parse(line.format("['PYNCCL']")), None).causes] == ["custom all-reduce"]
    assert not audit_log(vllm_log.parse(line.format("['CUSTOM', 'PYNCCL']")), None).causes


def test_a_log_is_judged_as_the_engine_that_wrote_it_and_by_its_whole_copy():
    row = next(r for r in REAL if r["name"].startswith("QwQ"))
    found = audit_log(sglang_log.parse("\n".join(row["lines"])), claimed(row["expected"]["claim"]))
    assert "engine" in [n.code for n in found.notes]
    same = audit_log(sglang_log.parse("\n".join(row["lines"])), claimed({**row["expected"]["claim"], "engine": "sglang"}))
    assert "engine" not in [n.code for n in same.notes]
    assert [f.predicted for f in same.findings] == [f.predicted for f in found.findings]
    (total,) = [f for f in found.findings if f.code == "all ranks' weights"]
    (each,) = [f for f in found.findings if f.code == "weights"]
    assert total.predicted == pytest.approx(4 * each.predicted)
    half = audit_log(sglang_log.parse("\n".join(row["lines"]).replace("15.54", "7.77")), claimed(row["expected"]["claim"]))
    (total,) = [f for f in half.findings if f.code == "all ranks' weights"]
    assert total.verdict == "disagree"
    assert "one copy has" in total.reason


def test_the_last_start_of_sglang_and_of_trtllm_counts():
    run = "[2025-01-01 00:00:00] server_args=ServerArgs(model_path='m', tp_size={}, node_rank={})\n"
    run += "[2025-01-01 00:00:01 TP0] max_total_num_tokens={}\n"
    assert sglang_log.parse(run.format(1, 0, 10) + run.format(2, 0, 20)).kv_tokens == 20
    assert sglang_log.parse(run.format(1, 0, 10) + run.format(1, 1, 20)).kv_tokens == 10  # two hosts of one start
    trt = "[TensorRT-LLM] TensorRT-LLM version: {}\n[TRT-LLM] [I] Allocated 1.00 GiB for max tokens in paged KV cache ({}).\n"
    twice = trtllm_log.parse(trt.format("1.0", 64) + trt.format("1.1", 32))
    assert (twice.version, twice.kv_tokens) == ("1.1", 32)


def test_serving_lines_of_vllm_and_iterations_of_trtllm():
    line = (
        "INFO 1 [loggers.py:1] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: {} tokens/s, "
        "Running: 8 reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix cache hit rate: 0.0%"
    )
    log = vllm_log.parse("GPU KV cache size: 100 tokens\n" + "\n".join(line.format(n, 2, 99.1) for n in (100.0, 300.0, 200.0)))
    assert (typical_load(log), [c.code for c in audit_log(log, None).causes]) == ((8, 200.0, 0), ["cache full"])
    measured = audit_log(log, claimed({"model": "llama-3.1-8b", "cluster": "h100-sxm", "tp": 1}))
    (served,) = [f for f in measured.findings if f.code == "served"]
    assert served.measured == pytest.approx(8 / 200.0)
    line = (
        "[01/16/2026-06:20:17] [TRT-LLM] [RANK 0] [I] iter = {}, host_step_time = {}ms, num_scheduled_requests: {}, states = "
        "{{'num_ctx_requests': {}, 'num_ctx_tokens': 0, 'num_generation_tokens': {}}}"
    )
    log = trtllm_log.parse("\n".join([line.format(i, 20.0, 5, 0, 5) for i in range(3)] + [line.format(3, 80.0, 5, 1, 4)]))
    assert typical_load(log) == (5, pytest.approx(250.0), 0)


@real("nccl")
def test_figures_of_real_nccl_logs(row):
    log, wanted = nccl_log.parse("\n".join(row["lines"])), row["expected"]
    found = audit_nccl([log], None, ["x"])
    measured = {str(f.item): f.measured for f in found.findings}
    ways = {item.removeprefix("ways over "): n for item, n in measured.items() if item.startswith("ways over ")}
    assert ways == wanted.get("ways", {})
    by_pair = {f"{r.source}->{r.target}": log.channels(r) for r in log.routes}
    assert wanted.get("channels", {}).items() <= by_pair.items()
    assert (measured.get("ranks in a communicator"), measured.get("hosts")) == (wanted.get("ranks"), wanted.get("hosts"))
    assert "width" not in wanted or log.widths == {tuple(wanted["width"])}
    assert [list(ring) for ring in log.rings] == wanted.get("rings", [])
    assert wanted.get("parents", {}).items() <= {str(k): v for k, v in log.parents.items()}.items()
    assert sum(log.warnings.values()) == wanted.get("warnings", 0)
    assert {c.op: [c.count, c.nbytes] for c in found.collectives} == wanted.get("calls", {})
    assert sorted([t.rank, t.seq, t.elements] for t in log.timeouts) == wanted.get("timeouts", [])
    assert {f"{g}/{r}": [p.failed, p.enqueued, p.completed] for (g, r), p in log.progress.items()} == wanted.get("progress", {})
    assert {name: list(said) for name, said in log.tuned.items()} == wanted.get("tuned", {})
    assert sorted(c.code for c in found.causes) == wanted["causes"]
    assert set(wanted.get("notes", [])) <= {n.code for n in found.notes}
    assert found.culprit is None
    assert wanted.get("environment", {}).items() <= found.facts.items()
    assert "nics" not in wanted or list(log.nics) == wanted["nics"]
    assert found.facts.get("network") == wanted.get("network")
    assert found.facts.get("NVLS") == wanted.get("nvls", found.facts.get("NVLS"))


@pytest.mark.parametrize("row", [r for r in REAL if "priced" in r["expected"]], ids=lambda r: r["name"])
def test_slow_ways_have_a_price(row):
    log, claim = nccl_log.parse("\n".join(row["lines"])), claimed(row["expected"]["claim"])
    priced = [c for c in audit_nccl([log], claim, ["x"]).causes if c.cost_s]
    assert [c.code for c in priced] == row["expected"]["priced"]
    assert all(c.cost_s > 0 and 0 < c.share < 1 and "decode step" in c.gain for c in priced)


def test_a_rank_that_never_called_is_named():
    lines = [PROGRESS.format(rank, 8 if rank == 3 else 12) for rank in range(4)]
    assert audit_nccl([nccl_log.parse("\n".join(lines))], None, ["x"]).culprit.rank == 3
    healthy = audit_nccl([nccl_log.parse("\n".join(PROGRESS.format(rank, 12) for rank in range(4)))], None, ["x"])
    assert healthy.culprit is None


@given(st.integers(0, 3), st.integers(1, 30), st.booleans())
def test_the_rank_that_called_something_else_is_named(odd, number, sized):
    def line(rank, n):
        wrong = rank == odd and n == number
        return CALL.format(rank, "AllReduce" if sized or not wrong else "AllGather", n, 64 if wrong and sized else 128)

    logs = [nccl_log.parse("\n".join(line(rank, n) for n in range(number + 2))) for rank in range(4)]
    members = "\n".join(
        f"n{r}:{r}:1 [0] NCCL INFO comm 0xa{r} rank {r} nranks 4 cudaDev 0 busId 1 commId 0xc - Init COMPLETE" for r in range(4)
    )
    found = audit_nccl([nccl_log.parse(members), *logs], None, ["x"])
    assert found.culprit.rank == odd
    assert f"number {number:x}" in found.culprit.said
    assert audit_nccl([nccl_log.parse(members), *(log for r, log in enumerate(logs) if r != odd)], None, ["x"]).culprit is None


def test_rings_that_cross_hosts_too_often():
    def log(order):
        comm = [f"h{r // 4}:{r}:1 [0] NCCL INFO comm 0x{r} rank {r} nranks 8 commId 0x9 - Init COMPLETE" for r in range(8)]
        return nccl_log.parse("\n".join([*comm, f"h0:1:1 [0] NCCL INFO Channel 00/01 :    {'   '.join(map(str, order))}"]))

    assert [c.code for c in audit_nccl([log([0, 4, 1, 5, 2, 6, 3, 7])], None, ["x"]).causes] == ["ring order"]
    assert not audit_nccl([log([3, 2, 1, 0, 4, 5, 6, 7])], None, ["x"]).causes


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 9),
            st.integers(0, 20),
            st.sampled_from(["P2P/CUMEM/read", "SHM/direct/direct", "NET/IB/3/GDRDMA", "NET/Socket/1"]),
        ),
        max_size=40,
    )
)
def test_ways_are_counted_once_whoever_tells_them(ways):
    lines = [
        f"h:{at}:1 [0] NCCL INFO Channel {channel:02d}/0 : {a}[0] -> {b}[0] [{side}] via {via}"
        for side in ("send", "receive")
        for at, (a, b, channel, via) in enumerate(ways)
    ]
    whole = nccl_log.parse("\n".join(lines))
    assert whole.routes == nccl_log.join_logs(nccl_log.parse(line) for line in lines).routes
    kinds = {"P2P/CUMEM/read": "P2P/CUMEM", "SHM/direct/direct": "SHM", "NET/IB/3/GDRDMA": "NET/IB", "NET/Socket/1": "NET/Socket"}
    for a, b, _, via in ways:
        channels = {c for x, y, c, v in ways if (x, y, v) == (a, b, via)}
        assert whole.channels(Route(a, b, kinds[via], "GDRDMA" in via)) == len(channels)


def test_versions_that_differ_between_processes():
    line = "h:{0}:{0} [0] NCCL INFO NCCL version {1}+cuda12.4"
    found = audit_nccl([nccl_log.parse(line.format(1, "2.21.5")), nccl_log.parse(line.format(2, "2.27.5"))], None, ["a", "b"])
    assert [c.code for c in found.causes] == ["versions"]
    assert found.facts["version"] == "NCCL 2.21.5+cuda12.4, NCCL 2.27.5+cuda12.4"


@pytest.mark.parametrize("reader", [vllm_log, sglang_log, trtllm_log, nccl_log])
def test_one_endless_line_ends(reader):
    for piece in DATA["one_endless_line_ends"]:
        reader.parse(piece * 50_000)


@given(st.sampled_from([r for r in REAL if r["kind"] != "flight"]), st.randoms(use_true_random=False), st.integers(1, 12))
def test_mutated_logs_are_read(row, random, cuts):
    text = list("\n".join(row["lines"]))
    for _ in range(cuts):
        at = random.randrange(len(text))
        text[at : at + random.randrange(4)] = random.choice(["", "\n", "9" * 40, "-", "[", "]", "0x", "\x00", "é", "1e9", ","])
    log = READERS[row["kind"]].parse("".join(text))
    section = audit_nccl([log], None, ["x"]) if row["kind"] == "nccl" else audit_log(log, None, "x")
    assert all(math.isfinite(f.measured) for f in section.findings)


def test_no_graphs_are_advised_where_no_gpu_ran():
    log = vllm_log.parse((FIXTURES / "vllm-cpu-tp2.log").read_text())
    assert log.settings["enforce_eager"] == "True"
    assert "eager" not in [c.code for c in audit_log(log, None, "a").causes]


@given(st.integers(2, 6), st.data())
@settings(max_examples=12)
def test_a_start_that_hangs_did_not_start(size, data):
    stuck = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    begun = [INIT.format(rank, size, "START") for rank in range(size)]
    ended = [INIT.format(rank, size, "COMPLETE") for rank in range(size) if rank not in stuck]
    section = audit_nccl([nccl_log.parse("\n".join([*begun, *ended]))], None, ["x"])
    (finding,) = [f for f in section.findings if f.code == "unstarted"]
    assert finding.verdict == "disagree"
    assert f"rank{'s' * (len(stuck) > 1)} {', '.join(map(str, stuck))} of {size} began" in finding.reason
    call = (
        "n1:10{0}:20{0} [{0}] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x55a{0}"
    )
    called = [f"{call.format(rank)} [nranks={size}] stream 0x3" for rank in stuck]
    went_on = audit_nccl([nccl_log.parse("\n".join([*begun, *ended, *called]))], None, ["x"])
    assert not [f for f in went_on.findings if f.code == "unstarted"]


def test_a_second_try_that_starts():
    first = [INIT.format(rank, 2, "START") for rank in (0, 1)]
    again = [line.replace(":10", ":30").replace("0x79", "0x80") for line in first]
    done = [line.replace("START", "COMPLETE") for line in again]
    assert not audit_nccl([nccl_log.parse("\n".join([*first, *again, *done]))], None, ["x"]).causes
    hung = audit_nccl([nccl_log.parse("\n".join([*again, *done, *first]))], None, ["x"])  # a second communicator that hangs
    assert [c.code for c in hung.causes] == ["unstarted"]


def test_an_engine_that_only_began_to_start():
    text = "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', tensor_parallel_size=2"
    assert "did not finish starting" in audit_log(vllm_log.parse(text), None).notes[0]
    assert "did not finish" in audit_log(vllm_log.parse(f"{text}\nINFO GPU KV cache size: 5,760 tokens"), None).notes[0]
    assert "started" in audit_log(vllm_log.parse(f"{text}\nINFO:     Application startup complete."), None).notes[0]


@given(st.integers(4, 9), st.data())
@settings(max_examples=12)
def test_the_rank_whose_watchdog_is_silent(size, data):
    absent = data.draw(st.integers(0, size - 2))  # of the last one nobody would know
    lines = [WATCHDOG.format(rank, 9) for rank in range(size) if rank != absent]
    assert audit_nccl([nccl_log.parse("\n".join(lines))], None, ["x"]).culprit.rank == absent
    assert audit_nccl([nccl_log.parse("\n".join([*lines, WATCHDOG.format(absent, 9)]))], None, ["x"]).culprit is None
    assert audit_nccl([nccl_log.parse(lines[0])], None, ["x"]).culprit is None
    strided = audit_nccl([nccl_log.parse("\n".join(WATCHDOG.format(rank, 9) for rank in range(0, 2 * size, 2)))], None, ["x"])
    assert [c.code for c in strided.causes] == ["timeout"]  # a group of every other rank


def test_the_lowest_number_is_named():
    lines = [WATCHDOG.format(rank, 64088 if rank == 2 else 96117) for rank in range(4)]
    (cause,) = [c for c in audit_nccl([nccl_log.parse("\n".join(lines))], None, ["x"]).causes if c.code == "behind"]
    assert "rank 2 gave up number 64,088, the lowest" in cause.said


def test_workers_on_cpus_claim_their_node():
    """vLLM's own line; each worker claims a share of its node as if it were alone there."""
    log = vllm_log.parse("\n".join(CLAIM.format(rank, kv, 0, 16.2) for rank, kv in ((0, 1.5), (1, 1.25))))
    assert log.available_kv_bytes == 1.25 * GIB
    assert "fixed" not in log.figures
    assert [(c.node, c.nbytes / GIB, c.node_bytes / GIB) for c in log.claims] == [(0, pytest.approx(16.2), 18.0)] * 2
    assert [c.code for c in audit_log(log, None).causes] == ["node memory"]
    for apart in (("0", "1"), ("1", "1")):
        lines = [CLAIM.format(rank, 1.5, node, 8.1 if apart[0] == "1" else 16.2) for rank, node in enumerate(apart)]
        assert not audit_log(vllm_log.parse("\n".join(lines)), None).causes


def test_a_workers_share_is_judged_by_its_own_node(tmp_path):
    """Qwen2.5-1.5B on a laptop of 18 GiB: 1.48 GiB hold 55,424 tokens, whatever memory the catalogue's host has."""
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **sizes}))
    served = "INFO GPU KV cache size: 55,424 tokens\nINFO Maximum concurrency for 32,768 tokens per request: 1.69x"
    log = vllm_log.parse(f"{CLAIM.format(0, 1.48, 0, 5.4)}\n{served}")
    found = {f.code: f for f in audit_log(log, claimed({"model": str(tmp_path), "cluster": "1xcpu"})).findings}
    assert (found["KV memory left"].verdict, found["KV tokens in that memory"].predicted) == ("unknown", 55424)
    assert found["full-length requests at once"].verdict == "agree"


@pytest.mark.parametrize("name", ["a watchdog on three ranks", "a rank that called something else"])
def test_what_never_ended_is_off(name, tmp_path):
    path = put(tmp_path, "x.log", "\n".join(next(r["lines"] for r in REAL if r["name"] == name)))
    assert audit([path]).verdict == "disagree"


def findings(asked, *lines):
    text = "\n".join(f"(EngineCore pid=1) INFO x [y.py:1] {line}" for line in lines)
    return {f.item: f for f in audit_log(vllm_log.parse(text), asked).findings}


def question(model, cluster="h100-sxm", **limits):
    return Claim(resolve_question(model, cluster, limits))


def capacity(judged, by_requests):
    """The line of vLLM: tokens counted in blocks (older), or in requests of full length (newer)."""
    times, length = judged.max_concurrency, judged.question.limits.max_model_len
    tokens = int(times * length) if by_requests else judged.kv_tokens
    return f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: {times:.2f}x"


@pytest.mark.parametrize("by_requests", [False, True], ids=["blocks", "requests"])
@given(model=st.sampled_from(MODELS), length=st.integers(17, 32768), gib=st.integers(800, 6000).map(lambda n: n / 100))
def test_both_counts_of_tokens_agree(by_requests, model, length, gib):
    """Windows and lengths that are no multiple of a block make them differ, by up to several times."""
    judged = commtax.fit(model, "h100-sxm", tp=1, max_model_len=length, kv_cache_memory_bytes=gib * GIB, advise=False)
    memory = f"Available KV cache memory: {gib:.2f} GiB"
    found = findings(question(model, max_model_len=length), memory, capacity(judged, by_requests))
    if judged.kv_tokens:
        assert found["KV tokens in that memory"].verdict == "agree"
        assert found["full-length requests at once"].verdict == "agree"


def test_windows_counted_by_requests():
    """gpt-oss-20b keeps half of its layers' last 128 tokens only: 1.9 times the tokens for the same memory."""
    judged = commtax.fit("gpt-oss-20b", "h100-sxm", tp=1, kv_cache_memory_bytes=40 * GIB)
    assert judged.kv_tokens == int(judged.max_concurrency * judged.question.limits.max_model_len)
    assert judged.kv_tokens > 1.5 * judged.pool.tokens(judged.kv_blocks)
    found = findings(question("gpt-oss-20b"), "Available KV cache memory: 40.00 GiB", capacity(judged, True))
    assert found["KV tokens in that memory"].verdict == "agree"
    wrong = findings(question("gpt-oss-20b"), "Available KV cache memory: 20.00 GiB", capacity(judged, True))
    assert wrong["KV tokens in that memory"].verdict == "disagree"


@each("row", [r for r in LOGS if r["version"].startswith("latest") and "available_kv_gib" in r["logged"]], ids=name)
def test_little_that_is_left_is_judged_on_what_it_is_left_of(row):
    """gpt-oss-120b on an H100: 3.33 GiB where 3.15 were predicted is 6 % of what is left and 0.2 % of the memory."""
    model, judged = of_log(row)
    asked = Claim(resolve_question(model, judged.question.cluster, row["args"]))
    found = findings(asked, f"Available KV cache memory: {row['logged']['available_kv_gib']:.2f} GiB")["KV memory left"]
    assert (found.verdict, found.base) == ("agree", judged.question.cluster.chip.visible_bytes)
    assert abs(found.difference) < 0.003


@given(model=st.sampled_from([*MODELS, "qwen3-32b"]), missing=st.floats(-4, 4))
def test_the_verdict_is_of_the_missing_bytes_whatever_is_left(model, missing):
    """Two GiB less are a disagreement with 50 GiB left as with 4."""
    version = "Initializing a V1 LLM engine (v0.31.0) with config: tensor_parallel_size=1"
    asked = question(model, max_model_len=1024)
    left = commtax.fit(model, "h100-sxm", tp=1, max_model_len=1024).kv_bytes + missing * GIB
    line = f"Available KV cache memory: {left / GIB:.4f} GiB"
    whole = asked.question.cluster.chip.visible_bytes
    near = abs(missing) * GIB <= levels("runs.logs.startup_audit").left_tolerance * whole
    assert findings(asked, version, line)["KV memory left"].verdict == ("agree" if near else "disagree")
    without = findings(asked, line)["KV memory left"]
    assert (without.verdict == "agree") == near
    assert without.verdict != "disagree" or abs(missing) > 1.9, "a version that is not told may count otherwise"


@given(more=st.floats(0.8, 8.0))
def test_another_version_may_leave_out_of_its_peak_what_this_one_counts(more):
    """Told its share of memory: up to all that weights leave of it, which no version exceeds."""
    old = "Initializing a V1 LLM engine (v0.11.0) with config: tensor_parallel_size=1, gpu_memory_utilization=0.9"
    asked = question("llama-3.1-8b", max_model_len=1024, gpu_memory_utilization=0.9)
    judged = holds(asked.question)
    line = f"Available KV cache memory: {judged.kv_bytes / GIB + more:.4f} GiB"
    found = findings(asked, old, line)["KV memory left"]
    room = 0.9 * judged.question.cluster.chip.visible_bytes - judged.weights_bytes - judged.kv_bytes
    assert found.verdict == ("unknown" if more * GIB <= room else "disagree")
    assert "0.90" not in found.reason, "the share was told"


def test_figures_with_two_digits_are_as_exact_as_their_digits():
    """0.03 GiB of weights, and 0.6 full-length requests: the last digit is more than two per cent."""
    small = {"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = {**small, "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 32000, "max_position_embeddings": 2048}
    asked = Claim(resolve_question(catalog.hf.from_config(config, "tiny"), "h100-sxm", {}))
    exact = commtax.fit(asked.question.model, "h100-sxm", tp=1).weights_bytes / GIB
    assert abs(round(exact, 2) / exact - 1) > 0.02
    assert findings(asked, f"Model loading took {exact:.2f} GiB memory and 1 seconds")["weights (rank 0)"].verdict == "agree"
    judged = commtax.fit("llama-3.1-8b", "h100-sxm", tp=1, kv_cache_memory_bytes=1.01 * GIB, advise=False)
    found = findings(question("llama-3.1-8b"), "Available KV cache memory: 1.01 GiB", capacity(judged, True))
    assert found["full-length requests at once"].verdict == "agree"
    many = findings(
        question("llama-3.1-8b", max_model_len=128),
        "Available KV cache memory: 50.00 GiB",
        "Maximum concurrency for 128 tokens per request: 3,210.00x",
    )
    assert many["full-length requests at once"].verdict == "disagree", "0.3 % off, where two digits behind the point are printed"


@pytest.mark.parametrize(("nodes", "blamed"), [((0, 0), ["node memory"]), ((0, 1), [])])
def test_workers_on_cpus_take_their_share_of_a_node(nodes, blamed):
    """Each of two workers claims 90 % of its node, whatever a socket of the catalogue has; of one node that is too much."""
    asked = Claim(resolve_question(str(FIXTURES / "tiny-llama"), "2xcpu", {"tp": 2, "gpu_memory_utilization": 0.9}))
    lines = [CPU_LINES.format(n=n, node=node) for n, node in enumerate(nodes)]
    section = audit_log(vllm_log.parse("\n".join(lines)), asked)
    (left,) = [f for f in section.findings if f.item == "KV memory left"]
    assert ((left.verdict, left.evidence), left.base) == (("agree", True), pytest.approx(23.21 * GIB))
    assert [cause.code for cause in section.causes] == blamed


@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3", "float8_e4m3fn"])
def test_caches_of_eight_bits_hold_twice_as_much(kind):
    tokens = commtax.fit("llama-3.1-8b", "h100-sxm", tp=1, kv_cache_memory_bytes=8 * GIB, kv_dtype="fp8", advise=False).kv_tokens
    config = f"Initializing a V1 LLM engine (v0.31.0) with config: model='m', tensor_parallel_size=1, kv_cache_dtype={kind}"
    found = findings(
        question("llama-3.1-8b"), config, "Available KV cache memory: 8.00 GiB", f"GPU KV cache size: {tokens:,} tokens"
    )
    assert found["KV tokens in that memory"].verdict == "agree"


def test_an_excerpt_without_its_share_of_memory_is_not_refuted():
    """Llama-3.1-70B in w8a8 on an H100 at 0.98 of its memory, of which the three lines that were posted say nothing."""
    asked = question("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", max_model_len=2048)
    lines = (
        "Loading model weights took 67.7229 GB",
        "# GPU blocks: 1381",
        "Maximum concurrency for 2048 tokens per request: 10.79x",
    )
    found = findings(asked, *lines)
    assert (found["weights (rank 0)"].verdict, found["KV tokens"].verdict) == ("agree", "unknown")
    assert "--gpu-memory-utilization" in found["KV tokens"].reason


def test_weights_of_tensorrt_llm_are_counted_once():
    """Some ranks also say what torch holds after loading: no second figure of their weights."""
    said = [f"[TRT-LLM] [RANK {rank}] [I] Use 32.86 GB for model weights." for rank in range(4)]
    held = "[TRT-LLM] [RANK {}] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 65.72 GiB"
    log = trtllm_log.parse("\n".join([*said, held.format(0), held.format(1)]))
    section = audit_log(log, Claim(resolve_question("llama-3.1-70b", "4xh100-sxm", {"tp": 4, "engine": "trtllm"})))
    weights = {f.item: f for f in section.findings if "weights" in f.item}
    assert {item: f.verdict for item, f in weights.items()} == {"weights (4 ranks alike)": "agree", "all ranks' weights": "agree"}
    assert len(trtllm_log.parse("\n".join(held.format(rank) for rank in range(4))).weights_bytes) == 4


def test_less_memory_for_the_cache_is_a_cause_with_its_price_and_what_to_try():
    """A log of a version that is in the catalogue is judged by the memory model of that version, as ``fit`` is."""
    judged = commtax.fit("llama-3.1-70b", "4xh100-sxm", tp=4, engine="vllm@0.12", advise=False)
    left, tokens = judged.kv_bytes / GIB - 6.3, 300_000
    asked = question("llama-3.1-70b", "4xh100-sxm", tp=4, engine="vllm@0.12")
    lines = "x] Initializing a V1 LLM engine (v0.12.0) with config: tensor_parallel_size=4, model='m'"
    lines += f"\nx] Available KV cache memory: {left:.2f} GiB\nx] GPU KV cache size: {tokens:,} tokens"
    section = audit_log(vllm_log.parse(lines), asked)
    assert next(f for f in section.findings if f.item == "KV memory left").verdict == "disagree"
    (cause,) = section.causes
    assert cause.said.startswith("6.30 GiB per GPU less for the KV cache than fits: room for ")
    assert cause.change.endswith(", or give --gpu-memory-utilization 0.9 where the server had less"), "nobody tells its share"
    assert int(cause.gain.partition(" ")[0].replace(",", "")) == pytest.approx(6.3 / left * tokens, rel=1e-2)
    assert not [note for note in section.notes if "memory model was made for" in str(note)]


@pytest.mark.parametrize(
    ("told", "graphs_gib", "advised"), [(0.0, 1.66, True), (0.0, 9.0, False), (0.85, 1.66, False), (0.95, 1.66, False)]
)
def test_a_share_of_memory_is_advised_where_it_may_have_been_smaller_and_graphs_fit_beside_it(told, graphs_gib, advised):
    """Memory that another process holds is not freed by a larger share of it."""
    asked = question("llama-3.1-8b", engine="vllm@0.12", **{"gpu_memory_utilization": told} if told else {})
    config = "Initializing a V1 LLM engine (v0.12.0) with config: model='m', tensor_parallel_size=1"
    left = f"Available KV cache memory: {holds(asked.question).kv_bytes / GIB - 11:.2f} GiB"
    lines = config, left, f"Graph capturing finished in 18 secs, took {graphs_gib} GiB"
    (cause,) = audit_log(vllm_log.parse("\n".join(f"INFO x [y.py:1] {line}" for line in lines)), asked).causes
    assert "nvidia-smi" in cause.change
    assert ("--gpu-memory-utilization 0.9 " in cause.change, "--gpu" in cause.change) == (advised, advised)


def test_what_is_assumed_of_graphs_stands_beside_what_they_took_and_is_no_verdict():
    asked = question("llama-3.1-8b")
    found = findings(asked, "Graph capturing finished in 18 secs, took 1.66 GiB")["memory of CUDA graphs, per rank"]
    assert (found.predicted, found.verdict, found.evidence) == (holds(asked.question).graph_bytes, "unknown", False)
    assert found.reason.startswith("assumed")
