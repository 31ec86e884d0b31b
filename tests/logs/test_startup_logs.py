"""vLLM start-up logs in all their wordings, and a real one."""

import pytest

from commtax.runs.logs.engine_logs import Rank, StartupLog, tgi_log, vllm_log
from commtax.runs.logs.startup_audit import audit_log
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)

GIB = 2**30


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


def test_ranks_as_they_introduce_themselves():
    lines = [
        f"(Worker_TP{r} pid=1{r}) INFO x [p.py:1] rank {r} in world size 4 is assigned as DP rank 0, PP rank {r // 2}, "
        f"TP rank {r % 2}, EP rank {r}"
        for r in (3, 1, 2, 0)
    ]
    log = vllm_log.parse("\n".join(lines))
    assert log.world_size == 4
    assert log.ranks[3] == Rank(3, dp=0, pp=1, tp=1, ep=3)


def test_configuration_as_each_version_writes_it():
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


def test_the_last_start_counts():
    run = (
        "(EngineCore pid={0}) INFO x [c.py:1] Initializing a V1 LLM engine (v0.11.0) with config: tensor_parallel_size={1}\n"
        "INFO x [k.py:1] GPU KV cache size: {2} tokens\n"
    )
    assert vllm_log.parse(run.format(1, 1, "1,000") + run.format(2, 2, "2,000")).kv_tokens == 2000
    replicas = "".join(run.format(p, 1, t).replace("EngineCore", f"EngineCore_DP{p}") for p, t in ((0, "5,000"), (1, "4,000")))
    assert vllm_log.parse(replicas).kv_tokens == 4000


def test_switched_off_by_hand():
    line = "x] Initializing a V1 LLM engine (v0.11.0) with config: model='m', disable_custom_all_reduce=True, device_config={}"
    assert vllm_log.parse(line.format("cuda")).custom_allreduce_disabled == "disable_custom_all_reduce=True"
    assert vllm_log.parse(line.format("cpu")).custom_allreduce_disabled == ""


@pytest.mark.parametrize(("tp", "tokens"), [(1, 262_144), (2, 524_288)])
def test_vllm_on_cpu_for_real(tp, tokens):
    log = vllm_log.parse((FIXTURES / f"vllm-cpu-tp{tp}.log").read_text())
    assert (log.version, log.tp, log.world_size, len(log.ranks)) == ("0.32.0", tp, tp, tp)
    assert (log.kv_tokens, log.max_concurrency, log.max_model_len) == (tokens, tokens / 1024, 1024)
    assert (log.backend, "fixed" in log.figures, log.available_kv_bytes) == ("gloo", True, GIB)
    assert log.max_num_batched_tokens == 4096 * tp


def test_other_texts_are_not_logs():
    assert not vllm_log.looks_like("hello\nworld")
    assert vllm_log.parse("hello") == StartupLog()


VLLM_WAITS = "DEBUG 05-16 13:12:16 [core_client.py:425] Waiting for 2 core engine proc(s) to start: {0}"
TGI_WAITS = "INFO shard-manager: text_generation_launcher: Waiting for shard to be ready... rank="
TGI_CONNECTED = "2025-07-08T00:21:30Z  INFO text_generation_router::server: router/src/server.rs:2402: Connected"


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
