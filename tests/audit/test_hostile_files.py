"""Readers of files that anyone may hand over: time grows with the text and no faster, and every fault has a name."""

import json
import os
import random
import time

import pytest

from cli_run import run_here
from commtax.catalog import config
from commtax.launch import topology
from commtax.launch.read_command import parse as parse_launch
from commtax.runs.evidence import prefixes
from commtax.runs.logs.engine_logs import vllm_log
from commtax.runs.results import bench, collective_tests
from commtax.runs.traces import trace
from commtax.runs.traces.profilers import kineto
from each import each
from tables import tables

DATA = tables(__file__)

SIZE = 16_000
UNITS = (
    *DATA["units"],
    *("model weights took 1,", ",", "LLM(", "torchrun ", "-m torch.distributed.", "a = b, ", "NV1", "1 1 float sum -1 ", "²"),
    *("[1,0]<stdout>:", "[a,", "[0] ", "a-", "2024-11-04T12:00:00Z ", "[pod/", " 0: ", "[1,0][a"),
)
READERS = {
    "nccl-tests": collective_tests.parse_all,
    "prefixes": prefixes.strip_prefixes,
    "log": vllm_log.parse,
    "log or not": vllm_log.looks_like,
    "bench": bench.parse,
    "topology": topology.parse,
    "launch": parse_launch,
    "launched": lambda text: parse_launch(f"srun x {text[: SIZE // 2]}\nvllm serve m {text[: SIZE // 2]}"),
    "configured": lambda text: vllm_log.parse(f"INFO with config: {text}"),
    "matrix": lambda text: topology.parse(f"  GPU0 GPU1 {text}\nGPU0 X {text}\nGPU1 NV1 X {text}"),
    "trace": lambda text: kineto.from_pieces([json.dumps([_kernel(text)]).encode()]),
}


def complaint(read, *words):
    """What a reader says of a text that it refuses, and what it would have to begin with where it takes it."""
    try:
        read(*words)
    except ValueError as error:
        return str(error)
    return "benchmark 'x':" if read is bench.parse else "trace 'x':"


def _kernel(name):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 1, "args": {"Collective name": name, "dtype": name}}


@each("reader", READERS)
def test_no_text_takes_long(reader):
    for unit in UNITS:
        text = unit * (SIZE // len(unit))
        began = time.process_time()
        complaint(READERS[reader], text)
        assert time.process_time() - began < 2, unit  # a quadratic one takes several


def test_variables_that_hold_each_other_are_bounded():
    script = 'A="' + "x" * 9000 + '"\nB="' + "$A " * 3000 + '"\nC="' + "$B " * 3000 + '"\nvllm serve m ' + "$C " * 3000
    with pytest.raises(ValueError, match="variables make more than"):
        parse_launch(script)


def test_a_period_is_found_in_one_pass():
    signs = [("a",)] * 200_000 + [("b",)]
    began = time.process_time()
    assert trace.period(signs) == 0
    assert time.process_time() - began < 4
    chooser = random.Random(1)
    for _ in range(300):
        letters = [(chooser.choice("ab"),) for _ in range(chooser.randint(0, 12))]
        plain = (p for p in range(1, len(letters) // 2 + 1) if all(a == b for a, b in zip(letters, letters[p:], strict=False)))
        assert trace.period(letters) == next(plain, 0)


VALUES = (None, True, -1, 0, 1e999, float("nan"), 10**400, "", "x", "1e999", "9" * 400, [], [[]], {}, [None], {"a": []}, [[1, "x"]])
RESULT = {
    "duration": 10.0,
    "completed": 10,
    "total_input_tokens": 100,
    "total_output_tokens": 100,
    "mean_ttft_ms": 5.0,
    "itls": [[0.1]],
    "ttfts": [0.1],
    "latencies": [0.1],
    "max_concurrency": 4,
    "request_rate": "inf",
    "tensor_parallel_size": 1,
}
OTHERS = (
    {"avg_latency": 1.0, "latencies": [1.0], "percentiles": {"50": 1.0}},
    {"elapsed_time": 1.0, "tokens_per_second": 5.0, "num_requests": 3},
    {
        "time_to_first_token": {"avg": 1.0, "unit": "ms"},
        "request_count": {"avg": 3},
        "input_config": {"loadgen": {"concurrency": 1}},
    },
)
KERNEL = DATA["kernel"]
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 50, "tid": 1},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1, "tid": 1, "args": {"correlation": 7}},
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "nccl:all_reduce",
        "ts": 1.5,
        "dur": 3,
        "tid": 1,
        "args": {"Input Dims": [[4]], "Input type": ["float"]},
    },
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 5, "dur": 9, "args": KERNEL},
]
TRACE = {
    "traceEvents": EVENTS,
    "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_size": 2}]},
    "baseTimeNanoseconds": 0,
}


def changed(thing, values=VALUES):
    """Every document that differs in one place by one odd value."""
    places = list(thing.items() if isinstance(thing, dict) else enumerate(thing))
    for key, value in places:
        for odd in (*values, *(changed(value, values) if isinstance(value, dict | list) else ())):
            copy = dict(thing) if isinstance(thing, dict) else list(thing)
            copy[key] = odd
            yield copy


@pytest.mark.parametrize("document", [RESULT, *OTHERS], ids=["serve", "latency", "throughput", "aiperf"])
def test_a_benchmark_with_any_odd_field(document):
    for odd in changed(document):
        assert complaint(bench.parse, json.dumps(odd), "x").startswith("benchmark 'x':"), odd


def _trace(text):
    return kineto.from_pieces([text.encode()], "x")


def test_a_trace_with_any_odd_field():
    for odd in changed(TRACE):
        assert complaint(_trace, json.dumps(odd)).startswith("trace 'x':"), odd


FEW = (None, -1, 1e999, "x", [], {}, 10**400)
PROFILE = {
    "commtax_profile": 1,
    "name": "x",
    "chip": {"key": "h100-sxm", "memory_Bps": 1e12, "flops_per_s": {"bf16": 1e14}, "memory_bytes": 8e10, "num_sms": 132},
    "kernels": {"tables": {"small": {"t0": 1e-6, "eb": 0.5}}},
    "libraries": [{"name": "nccl", "paths": [{"op": "all-reduce", "algorithm": "ring", "bandwidth_Bps": 1e11}]}],
    "network": {"efficiency": 0.9, "hops": 3},
    "links": {"intra": "nvlink4", "inter": "ib-ndr"},
    "host_s": 1e-3,
    "engine": "vllm",
    "dtype": "bf16",
    "sources": {"a": "b"},
}
GEMMS = [{"kind": "gemm", "m": 2**i, "n": 4096, "k": 4096, "dtype": "bf16", "median_s": 1e-4 * 2**i} for i in range(8)]
ATTENTION = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "length": 100, "dtype": "bf16", "median_s": 1e-5}
MEASURED = [
    {"kind": "decode", **ATTENTION},
    {"op": "all-reduce", "ranks": 2, "size_bytes": 1024, "time_us": 10.0, "impl": "nccl", "wrong": 0},
    GEMMS[0],
]


def civil(*words):
    done = run_here(*words)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert done.returncode != 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1), done.stderr


def test_a_profile_with_any_odd_field(tmp_path):
    path = tmp_path / "profile.json"
    for odd in changed(PROFILE, FEW):
        path.write_text(json.dumps(odd))
        civil("bill", "llama-3.2-1b", "-c", "2x8xh100-sxm", "-tp", "2", "--profile", path)


def test_measurements_with_any_odd_field(tmp_path):
    path = tmp_path / "rows.jsonl"
    for odd in changed(MEASURED, FEW):
        path.write_text("\n".join(json.dumps(row) for row in (*odd, *GEMMS)))
        civil("calibrate", path, "-c", "2xh100-sxm", "-o", tmp_path / "out.json")


@pytest.mark.parametrize("model", ["llama-3.2-1b", "gpt-oss-20b"])
def test_a_checkpoint_with_any_odd_field(tmp_path, model):
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    for odd in changed({k: v for k, v in config(model).items() if k != "layer_types"}, FEW):
        (tmp_path / "config.json").write_text(json.dumps(odd))
        civil("fit", tmp_path, "-c", "8xh100-sxm", "-tp", "2")
