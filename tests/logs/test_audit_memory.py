"""Memory in start-up logs: figures as each version counts them, and tolerances on what they are a part of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.runs.evidence.finding import Claim
from commtax.runs.logs.engine_logs import trtllm_log, vllm_log
from commtax.runs.logs.startup_audit import audit_log
from commtax.thresholds import levels
from commtax.verbs.fitting import holds
from commtax.verbs.settling import resolve_question
from each import each
from paths import FIXTURES
from start_logs import LOGS, name, of_log

GIB = 2**30
MODELS = ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b", "qwen3-8b"]


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
    assert found.verdict == "agree"
    assert found.base == judged.question.cluster.chip.visible_bytes
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


CPU_LINES = (
    "(Worker_TP{n} pid=7{n}) INFO 11-15 04:59:15 [cpu_worker.py:251] Auto set (20.15/23.21) GiB for KV cache on node {node}, with "
    "20.9 GiB requested memory for the worker. 0.75 GiB memory was consumed by non-kv usages."
)


@pytest.mark.parametrize(("nodes", "blamed"), [((0, 0), ["node memory"]), ((0, 1), [])])
def test_workers_on_cpus_take_their_share_of_a_node(nodes, blamed):
    """Each of two workers claims 90 % of its node, whatever a socket of the catalogue has; of one node that is too much."""
    tiny = FIXTURES / "tiny-llama"
    asked = Claim(resolve_question(str(tiny), "2xcpu", {"tp": 2, "gpu_memory_utilization": 0.9}))
    lines = [CPU_LINES.format(n=n, node=node) for n, node in enumerate(nodes)]
    section = audit_log(vllm_log.parse("\n".join(lines)), asked)
    (left,) = [f for f in section.findings if f.item == "KV memory left"]
    assert (left.verdict, left.evidence) == ("agree", True)
    assert left.base == pytest.approx(23.21 * GIB)
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
    assert found["weights (rank 0)"].verdict == "agree"
    assert found["KV tokens"].verdict == "unknown"
    assert "--gpu-memory-utilization" in found["KV tokens"].reason


def test_weights_of_tensorrt_llm_are_counted_once():
    """Some ranks also say what torch holds after loading: no second figure of their weights."""
    said = [f"[TRT-LLM] [RANK {rank}] [I] Use 32.86 GB for model weights." for rank in range(4)]
    held = "[TRT-LLM] [RANK {}] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 65.72 GiB"
    log = trtllm_log.parse("\n".join([*said, held.format(0), held.format(1)]))
    section = audit_log(log, Claim(resolve_question("llama-3.1-70b", "4xh100-sxm", {"tp": 4, "engine": "trtllm"})))
    weights = {f.item: f for f in section.findings if "weights" in f.item}
    assert {item: f.verdict for item, f in weights.items()} == {"weights (4 ranks alike)": "agree", "all ranks' weights": "agree"}
    alone = trtllm_log.parse("\n".join(held.format(rank) for rank in range(4)))
    assert len(alone.weights_bytes) == 4


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
    fewer = int(cause.gain.partition(" ")[0].replace(",", ""))
    assert fewer == pytest.approx(6.3 / left * tokens, rel=1e-2)
    assert not [note for note in section.notes if "memory model was made for" in str(note)]


@pytest.mark.parametrize(
    ("told", "graphs_gib", "advised"), [(0.0, 1.66, True), (0.0, 9.0, False), (0.85, 1.66, False), (0.95, 1.66, False)]
)
def test_a_share_of_memory_is_advised_where_it_may_have_been_smaller_and_graphs_fit_beside_it(told, graphs_gib, advised):
    """Memory that another process holds is not freed by a larger share of it."""
    limits = {"gpu_memory_utilization": told} if told else {}
    asked = question("llama-3.1-8b", engine="vllm@0.12", **limits)
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
