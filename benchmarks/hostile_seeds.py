"""Sound files of every kind that ``commtax audit`` reads, small, to be damaged: excerpts of the tests, and made ones.

A kind is finer than a format where one format reads what several tools write. Beside a seed lie the sound files of other ranks.
"""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "helpers"))

import made_nsys  # noqa: E402
import made_traces  # noqa: E402

FIXTURES = TESTS / "fixtures"
EVENTS = 90  # of a trace that is cut to fit
TRAINERS = {"gpt-neox": "deepspeed"}  # by the beginning of an excerpt's name, where that is not its tool
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Seed:
    """One file, which is damaged, and those beside it, which are not."""

    name: str
    raw: bytes
    beside: tuple[tuple[str, bytes], ...] = ()


def seeds() -> dict[str, list[Seed]]:
    """Seeds by kind."""
    found: dict[str, list[Seed]] = {}
    of_data = (_traces, _databases, _rocprof, _own, _flight)
    for kind, seed in (pair for made in (*of_data, _benches, _logs, _training, _excerpts, _refused) for pair in made()):
        found.setdefault(kind, []).append(seed)
    return found


def _entries(name: str) -> list[dict]:
    return json.loads((FIXTURES / "audit" / f"{name}.json").read_text(encoding="utf-8"))


def _text(entry: dict) -> bytes:
    return (entry.get("text") or "\n".join(entry.get("lines", ())) or json.dumps(entry["document"])).encode()


def _cut(path: Path) -> bytes:
    """A trace with events of every kind, as many as are wanted."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    by_kind: dict[str, list] = {}
    for event in events:
        by_kind.setdefault(event.get("cat", event.get("ph", "")), []).append(event)
    kept = {id(e) for of_kind in by_kind.values() for e in of_kind[: max(8, EVENTS // len(by_kind))]}
    trace["traceEvents"] = [e for e in events if id(e) in kept]
    return json.dumps(trace).encode()


def _traces() -> Iterator[tuple[str, Seed]]:
    audit = FIXTURES / "audit"
    for path in (audit / "h200-eager.json.gz", audit / "h200-graph.json.gz", audit / "h200-triton.json.gz"):
        yield "PyTorch profiler, a GPU", Seed(path.name.removesuffix(".gz"), _cut(path))
    for first, second in (
        (audit / "h200-gloo-rank0.json.gz", audit / "h200-gloo-rank1.json.gz"),
        (FIXTURES / "vllm-cpu-tp2-rank1.trace.json.gz", FIXTURES / "vllm-cpu-tp2-rank0.trace.json.gz"),
    ):
        beside = ((second.name.removesuffix(".gz"), _cut(second)),)
        yield "PyTorch profiler, two ranks", Seed(first.name.removesuffix(".gz"), _cut(first), beside)
    late, on_time = (json.dumps(made_traces.decode_graphs(8, 1, steps=4, rank=r, late_us=3.0 * r)).encode() for r in (1, 0))
    yield "PyTorch profiler, two ranks", Seed("rank1.json", late, (("rank0.json", on_time),))
    yield "PyTorch profiler, packed", Seed("rank1.json.gz", gzip.compress(late), (("rank0.json", on_time),))


def _databases() -> Iterator[tuple[str, Seed]]:
    names = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "vllm::cross_device_reduce_1stage<bf16, 2>(x)", "nvjet_tst_128x256")
    for kind, schema in (("Nsight Systems, now", made_nsys.NEW), ("Nsight Systems, 2019", made_nsys.OLD)):
        with tempfile.TemporaryDirectory() as folder:
            export = made_nsys.Export(Path(folder) / "run.sqlite", schema)
            export.connection.execute("PRAGMA page_size = 1024")
            for pid in (40, 41) if schema is made_nsys.NEW else (1,):
                at = 10_000
                for step in range(3):
                    begin = at
                    for i, name in enumerate(names * 2):
                        correlation = step * 10 + i + 1
                        export.launch(at - 2_000, correlation, pid=pid)
                        export.kernel(name, at, at + 5_000, correlation, pid)
                        at += 6_000
                    export.launch(at, step * 10 + 9, "cudaGraphLaunch_v10000", pid=pid)
                    export.graph(at, at + 4_000, step * 10 + 9, pid)
                    export.copied(at + 5_000, at + 5_500, 1000 + step, pid, stream=8)
                    at += 9_000
                    export.range("execute_context_0(0)_generation_4(4)", begin - 3_000, at - 1_000, pid)
                export.put("TARGET_INFO_CUDA_DEVICE", gpuId=pid, cudaId=0, pid=pid)
                export.put("TARGET_INFO_GPU", vmId=0, id=pid, name="NVIDIA H100 80GB HBM3", totalMemory=85_520_809_984, smCount=132)
            export.put("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_712_195_495_000_000_001)
            export.put("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
            yield kind, Seed("run.sqlite", export.done().read_bytes())


def _rocprof() -> Iterator[tuple[str, Seed]]:
    entries = _entries("rocprof")
    tables = [(f"{i}_{e['kind']}_trace.csv".replace("_trace_trace", "_trace"), _text(e)) for i, e in enumerate(entries)]
    for entry, (name, raw) in zip(entries, tables, strict=True):
        if entry["kind"] == "json":
            yield "rocprofv3, JSON", Seed("7_results.json", raw)
        elif entry["kind"] == "kernel_trace":  # alone, and with the calls of its run
            yield "rocprofv3, tables", Seed(name, raw)
            run = name.split("_")[0]
            others = {e["kind"]: _text(e) for e in entries if e["kind"].endswith("api_trace") or e["kind"] == "memory_copy_trace"}
            yield "rocprofv3, tables", Seed(name, raw, tuple((f"{run}_{kind}.csv", text) for kind, text in others.items()))
        else:
            yield "rocprofv3, tables", Seed(name, raw)


def _own() -> Iterator[tuple[str, Seed]]:
    asked = "simulate llama-3.1-8b --cluster h100-sxm --request-rate 4 --num-prompts 8 --timeline"
    for words in ("pipeline -p 3 -m 4 --json --chrome-trace", f"{asked}"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "own.json"
            command = [sys.executable, "-m", "commtax", *words.split(), str(path)]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            yield "a trace of ours", Seed("own.json", path.read_bytes())


def _flight() -> Iterator[tuple[str, Seed]]:
    for path in sorted((FIXTURES / "audit").glob("*.pickle")):
        yield "flight recorder, pickle", Seed("nccl_trace_rank_0", path.read_bytes())
    for entry in _entries("logs"):
        if entry["kind"] == "flight":
            for form, ending in (("pickles", ""), ("json", ".json")):
                dumps = [base64.b64decode(text) if form == "pickles" else text.encode() for text in entry[form]]
                named = [(f"nccl_trace_rank_{rank}{ending}", raw) for rank, raw in enumerate(dumps)]
                if named:
                    yield f"flight recorder, {form.removesuffix('s')}", Seed(*named[-1], tuple(named[:-1]))


def _benches() -> Iterator[tuple[str, Seed]]:
    for entry in _entries("benches"):
        lines = "JSON lines of " + ("one batch" if "one-batch" in entry["name"] else "serving")
        kind = lines if entry["kind"] == "JSON lines" else entry["kind"]
        yield f"benchmark, {kind}", Seed(f"{entry['name']}.txt", _text(entry))
    for path, kind in (
        (FIXTURES / "vllm-cpu-tp1.serve.json", "vLLM serve JSON"),
        (FIXTURES / "audit" / "vllm-cpu-serve.json", "vLLM serve JSON"),
        (FIXTURES / "vllm-cpu-tp1.latency.json", "vLLM latency JSON"),
        (FIXTURES / "vllm-cpu-tp2.latency.json", "vLLM latency JSON"),
        (FIXTURES / "vllm-cpu-tp1.throughput.json", "vLLM throughput JSON"),
        (FIXTURES / "audit" / "vllm-cpu-serve.txt", "printed table"),
        (FIXTURES / "audit" / "vllm-cpu-metrics.txt", "server metrics"),
    ):
        yield f"benchmark, {kind}", Seed(path.name, path.read_bytes())
    yield "benchmark, sweep CSV", Seed("sweep.csv", TABLES["texts"]["sweep.csv"].encode())


def _logs() -> Iterator[tuple[str, Seed]]:
    named = {"sglang": "SGLang log", "trtllm": "TensorRT-LLM log", "vllm": "vLLM log", "nccl": "NCCL log"}
    for number, entry in enumerate(_entries("logs")):
        if entry["kind"] in named:
            kind = "PyTorch watchdog" if "watchdog" in entry["name"] else named[entry["kind"]]
            yield kind, Seed(f"{number}.log", _text(entry))
    for path in (FIXTURES / "vllm-cpu-tp1.log", FIXTURES / "vllm-cpu-tp2.log", FIXTURES / "audit" / "vllm-cpu-serve.log"):
        yield "vLLM log", Seed(path.name, path.read_bytes())
    yield "NCCL log", Seed("h200-nccl.log", (FIXTURES / "audit" / "h200-nccl.log").read_bytes())


def _training() -> Iterator[tuple[str, Seed]]:
    for entry in _entries("training"):
        tool = entry["name"].split("-")[0]
        program = next((other for begins, other in TRAINERS.items() if entry["name"].startswith(begins)), tool)
        kinds = {"training": f"training log, {program}", "links": "nvidia-smi nvlink", "monitor": "nvidia-smi dmon"}
        yield kinds.get(entry["kind"], f"{tool}-tests"), Seed(f"{entry['name']}.log", _text(entry))
    yield "training log, composer", Seed("composer.log", TABLES["texts"]["composer.log"].encode())
    yield "nvidia-smi dmon", Seed("h200-dmon.txt", (FIXTURES / "audit" / "h200-dmon.txt").read_bytes())


def _excerpts() -> Iterator[tuple[str, Seed]]:
    for kind, (table, names) in TABLES["excerpts"].items():
        texts = tomllib.loads((TESTS / f"{table}.toml").read_text(encoding="utf-8"))
        yield from ((kind, Seed(f"{name}.txt", texts[name].encode())) for name in names)
    yield "GPU topology", Seed("topo.txt", (FIXTURES / "topo-4x3090.txt").read_bytes())
    kinds = {"llama.log": "llama.cpp log", "tgi.log": "TGI log"} | dict.fromkeys(("nccl.json", "rccl.json"), "collectives, JSON")
    yield from ((kind, Seed(name, TABLES["texts"][name].encode())) for name, kind in kinds.items())


def _refused() -> Iterator[tuple[str, Seed]]:
    """What is refused as it is: a report without the program that opens it, and Perfetto's own."""
    yield "Nsight Systems report, Perfetto", Seed("run.nsys-rep", bytes(range(256)) * 8)
    yield "Nsight Systems report, Perfetto", Seed("run.pftrace", bytes(range(256)) * 8)
