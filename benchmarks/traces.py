"""How long a large profiler trace takes to audit, in how much memory, and beside HolisticTraceAnalysis on the same file.

    python benchmarks/traces.py --megabytes 1000
    python benchmarks/traces.py --megabytes 100 --hta hta/bin/python
    python benchmarks/traces.py --megabytes 400 --ranks 4 --gzip

A plain read of the same events with msgspec, and a loop of additions, are timed beside it: the bar is the machine's too.

The trace is made here, as Kineto writes it: a training step of 32 layers again and again, with the mix of events that a profile
with stacks has (python_function and cpu_op most, then the driver's calls, the arrows between, kernels, annotations), and two
all-reduces a layer with their metadata. Nothing is kept: the files lie in a temporary folder.
"""

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BARS = {"CPU s a GB": 20.0, "peak MB": 250.0, "times faster than HTA": 5.0}
LAYERS, OPS = 32, 6
BASE_US, STEP_US = 4458676522690.0, 90_000.0
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print(analysis.get_temporal_breakdown(visualize=False))
print(analysis.get_comm_comp_overlap(visualize=False))
"""
PLAIN = """
import sys
import msgspec
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
class File(msgspec.Struct):
    traceEvents: list[Event] = []
for path in sys.argv[1:]:
    print(len(msgspec.json.decode(open(path, "rb").read(), type=File).traceEvents))
"""
"""A plain read: the same fields of all events, and nothing kept or asked of them."""
LOOP = "n = 0\nfor i in range(20_000_000): n += i"
"""The machine's speed: twenty million additions."""
OP = """  {{
    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 251, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id},"Record function id": 0, "Sequence number": {id}, "Fwd thread id": 0, "Ev Idx": {id}, \
"Input Dims": [[2048, 4096], [4096, 4096], []], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"]
    }}
  }},
"""
PYTHON = """  {{
    "ph": "X", "cat": "python_function", "name": "{name}", "pid": 251, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "Python parent id": {id}, "Python id": {id}, "Ev Idx": {id}
    }}
  }},
"""
CALL = """  {{
    "ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 251, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id}, "cbid": 211, "correlation": {id}
    }}
  }},
"""
ARROW = """  {{
    "ph": "{ph}", "id": {id}, "pid": {pid}, "tid": {tid}, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g"{bind}
  }},
"""
KERNEL = """  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": {rank}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id}, "queued": 0, "device": {rank}, "context": 1, "stream": {tid}, "correlation": {id}, \
"registers per thread": 32, "shared memory": 0, "blocks per SM": 116.148148, "warps per SM": 464.59259, \
"grid": [12544, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 100{more}
    }}
  }},
"""
NOTED = """  {{
    "ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 251, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      "External id": {id}, "Record function id": 0, "Ev Idx": {id}
    }}
  }},
"""
MESSAGE = (
    ', "Collective name": "allreduce", "In msg nelems": 8388608, "Out msg nelems": 8388608, "Group size": 8, '
    '"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "3", '
    '"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
)
NAMES = (
    "aten::linear",
    "aten::silu",
    "aten::mul",
    "aten::scaled_dot_product_attention",
    "autograd::engine::evaluate_function: MmBackward0",
    "aten::copy_",
)
KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(at::TensorIteratorBase&), "
    "at::detail::Array<char*, 2> >(int, at::native::silu_kernel(at::TensorIteratorBase&), at::detail::Array<char*, 2>)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, float)",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, true>(Flash_fwd_params)",
)
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def events(rank: int) -> Iterator[str]:
    """Events of one step after the other, without end."""
    number, step = 1, 0
    while True:
        begin = BASE_US + step * STEP_US
        yield NOTED.format(name=f"ProfilerStep#{step}", tid=251, ts=begin, dur=STEP_US - 50, id=number)
        at, device = begin, begin + 400.0
        for layer in range(LAYERS):
            for op in range(OPS):
                number += 1
                for depth in range(3):
                    called = f"torch/nn/modules/module.py({1500 + depth}): _call_impl"
                    yield PYTHON.format(name=called, tid=251, ts=at, dur=120 - depth, id=number)
                yield OP.format(name=NAMES[op], tid=251, ts=at + 10, dur=80, id=number)
                yield CALL.format(name="cudaLaunchKernel", tid=251, ts=at + 30, dur=6, id=number)
                yield ARROW.format(ph="s", id=number, pid=251, tid=251, ts=at + 30, bind="")
                yield ARROW.format(ph="f", id=number, pid=rank, tid=7, ts=device, bind=', "bp": "e"')
                yield KERNEL.format(name=KERNELS[op % len(KERNELS)], rank=rank, tid=7, ts=device, dur=300.5, id=number, more="")
                at, device = at + 125, device + 301
            for _ in range(2):
                number += 1
                yield NOTED.format(name="nccl:all_reduce", tid=251, ts=at + 5, dur=60, id=number)
                yield OP.format(name="record_param_comms", tid=251, ts=at + 6, dur=50, id=number)
                yield CALL.format(name="cudaLaunchKernelExC", tid=251, ts=at + 20, dur=9, id=number)
                yield ARROW.format(ph="s", id=number, pid=251, tid=251, ts=at + 20, bind="")
                yield ARROW.format(ph="f", id=number, pid=rank, tid=20, ts=device, bind=', "bp": "e"')
                yield KERNEL.format(name=REDUCE, rank=rank, tid=20, ts=device, dur=250.25, id=number, more=MESSAGE)
                at, device = at + 70, device + 120 * (layer % 2)
            number += 1
            yield CALL.format(name="cudaEventQuery", tid=251, ts=at, dur=1.2, id=number)
        step += 1


def made(path: Path, size: int, rank: int) -> None:
    """A trace of about so many bytes (unpacked)."""
    group = {"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 8, "ranks": list(range(8))}
    chip = {"id": rank, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045542912, "numSms": 132}
    job = {"backend": "nccl", "rank": rank, "world_size": 8, "pg_count": 1, "pg_config": [group], "nccl_version": "2.27.3"}
    head = json.dumps({"schemaVersion": 1, "deviceProperties": [chip], "distributedInfo": job})
    written = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        file.write(f'{head[:-1]},\n  "traceEvents": [\n')
        for text in events(rank):
            file.write(text)
            written += len(text)
            if written >= size and '"ac2g"' not in text:
                break
        file.write(f'  {{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": {BASE_US:.3f}}}\n  ],\n')
        file.write('  "traceName": "made.json",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1711964646000000000\n}\n')


def measured(words: list[str], **environment: str) -> tuple[float, float, float]:
    """CPU seconds, peak MB and wall seconds of a command that succeeds."""
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **environment})
    said = io.TextIOWrapper(process.stderr).read() if process.stderr else ""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{words}: exit {process.returncode}\n{said[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100, help="of each rank's trace, unpacked")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commtax-traces-") as folder:
        files = [Path(folder) / f"rank-{r}.json{'.gz' if asked.gzip else ''}" for r in range(asked.ranks)]
        for rank, file in enumerate(files):
            made(file, asked.megabytes * 10**6, rank)
        size = sum(f.stat().st_size for f in files)
        print(f"{asked.ranks} x {asked.megabytes} MB of events, {size / 1e6:.0f} MB on the disk")
        cpu, peak, wall = measured([sys.executable, "-m", "commtax", "audit", *map(str, files)])
        print(f"commtax audit: {cpu:.2f} s of CPU, {peak:.0f} MB at the peak, {wall:.2f} s")
        if not asked.gzip:
            plain, loop = measured([sys.executable, "-c", PLAIN, *map(str, files)]), measured([sys.executable, "-c", LOOP])
            print(
                f"a plain read with msgspec: {plain[0]:.2f} s of CPU, {plain[1]:.0f} MB; commtax: {cpu / plain[0]:.2f} times that"
            )
            print(f"{LOOP.splitlines()[1]!r}: {loop[0]:.2f} s of CPU")
        if asked.hta:
            hta = measured([asked.hta, "-c", HTA, folder])
            print(f"HolisticTraceAnalysis: {hta[0]:.2f} s of CPU, {hta[1]:.0f} MB at the peak, {hta[2]:.2f} s")
            print(f"times faster: {hta[0] / cpu:.1f} in CPU seconds, {hta[2] / wall:.1f} by the clock")
        print("bars:", ", ".join(f"{name} {bar:g}" for name, bar in BARS.items()))


if __name__ == "__main__":
    main()
