"""Small traces made by hand: kernels, launches, annotations, with times in microseconds."""

import gzip
import json
from collections import Counter

import numpy as np


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, dur, correlation, stream=7, **args):
    return event("kernel", name, ts, dur, stream, device=0, stream=stream, correlation=correlation, **args)


def launch(ts, correlation, name="cudaLaunchKernel", tid=1):
    return event("cuda_runtime", name, ts, 2, tid, correlation=correlation)


def document(events, rank=0, world=2, **head):
    job = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": [{"pg_name": "0", "pg_size": world}]}
    return {"schemaVersion": 1, "distributedInfo": job, "traceEvents": events, **head}


def write(path, content):
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def decode_graphs(
    reduces, gathers, steps=3, rank=0, late_us=0.0, each_us=5.0, compute_us=20.0, name="cross_device_reduce_1stage", phase=True
):
    """Decode steps replayed from one CUDA graph: a compute kernel before every collective, all on one stream. A rank that is
    ``late_us`` late finds the others waiting: their kernels start earlier and end with its own."""
    events, at = [], 1000.0
    for step in range(steps):
        correlation = step + 1
        begin = at
        events.append(launch(at, correlation, "cudaGraphLaunch"))
        for i in range(reduces + gathers):
            op = f"void vllm::{name}<__nv_bfloat16, 2>(vllm::RankData*)" if i < reduces else "ncclDevKernel_AllGather_RING_LL(x)"
            events.append(kernel("void cublas::gemv(float)", at, compute_us - late_us, correlation))
            events.append(kernel(op, at + compute_us - late_us, each_us + late_us, correlation))
            at += compute_us + each_us
        if phase:
            events.append(event("user_annotation", "execute_context_0(0)_generation_1(1)", begin, at - begin - 1))
    return document(events, rank, world=2)


def exposed(trace):
    """The share of the steps in which nothing but communication runs."""
    return trace.usage(trace.steps).exposed_share


def per_step(trace, op):
    """How many collectives of one kind each step holds."""
    counts = Counter(c.step for c in trace.collectives if c.op == op)
    return [counts[s.index] for s in trace.steps]


def clashes(timeline):
    """Pairs of neighbours on one lane that overlap: 0 in a sound timeline."""
    order = np.lexsort((timeline.start_s, timeline.lane))
    lane, start, end = timeline.lane[order], timeline.start_s[order], timeline.end_s[order]
    return int(np.sum((lane[1:] == lane[:-1]) & (start[1:] < end[:-1] - 1e-12)))
