"""This machine's own constants: memory, matrix products, fixed costs of the engine's operations, and collectives.

The engine itself runs two small models that nobody serves, at TP=1 on every rank at once and at TP=N, with a clock on every
line of the bill. The constants of ``cost/kernels.py`` are then fitted to those lines, so that a prediction made with them
speaks of the same engine on the same machine, for models that were not run here.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from commtax import catalog
from commtax.api.sending import workload
from commtax.catalog import profile as overlay
from commtax.cost.compute import Kernel, step_kernels
from commtax.measure import launch, machine
from commtax.measure.arch import Arch, described
from commtax.measure.collectives import alpha_beta
from commtax.measure.comm import Group, Wire, wire
from commtax.measure.engine import Engine
from commtax.measure.generate import Run, generate, prompts
from commtax.measure.job import DTYPES
from commtax.measure.weights import Random, load
from commtax.measure.worker import Place, gather, report
from commtax.spec import Plan
from commtax.statement import Refusal

TARGET = "commtax.measure.box:measure_box"
DTYPES_HERE = ("fp32", "bf16")
RANKS = (2, 4)  # what the calibration models divide by
ROUNDS = 3
OUTPUTS = 9
STREAM_BYTES = 512 * 2**20  # far more than a cache holds
SHAPES: tuple[dict[str, int], ...] = (
    {
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "head_dim": 128,
        "vocab_size": 24_000,
    },
    {
        "hidden_size": 640,
        "intermediate_size": 1920,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "head_dim": 64,
        "vocab_size": 6_000,
    },
)
STEPS = ((1, 32), (4, 96))  # batch and prompt length
MOST_PACK = 100.0  # as much as a profile may say
STAGES = 2 + len(SHAPES) * len(STEPS)


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel of one step and the seconds that one launch of it took."""

    kernel: Kernel
    seconds: float


def calibrate(
    ranks: int = 2,
    dtype: str = "",
    name: str = "",
    impls: Sequence[str] = (),
    lost_s: float = launch.LOST_S,
    progress: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure with ``ranks`` processes, each on its share of the cores, in the type that will run, and return the profile."""
    dtype, impls = dtype or machine.own_dtype("cpu"), tuple(impls) or machine.carriers(machine.facts())
    if dtype not in DTYPES_HERE:
        raise Refusal(f"dtype '{dtype}': {' or '.join(DTYPES_HERE)}", "dtype")
    if ranks not in RANKS:
        raise Refusal(f"ranks={ranks}: {' or '.join(map(str, RANKS))} (what the calibration models divide by)", "ranks")
    for impl in impls:
        if impl not in ("gloo", "shm"):
            raise Refusal(f"impl '{impl}': gloo, shm or both carry CPU tensors")
        machine.check_carrier(impl)
    raw = launch.run(TARGET, plan(dtype, impls), ranks, lost_s=lost_s, progress=progress)
    found = profile(raw, dtype, name or platform.node() or "this-box", ranks)
    overlay.parse(found)  # what is written can be read again
    return found


def plan(dtype: str, impls: Sequence[str]) -> dict[str, Any]:
    """What the ranks are to run."""
    work = {"shapes": SHAPES, "steps": STEPS, "stream_bytes": STREAM_BYTES}
    return {"dtype": dtype, "device": "cpu", "impls": list(impls), **work}


def measure_box(where: Place, payload: dict[str, Any]) -> dict[str, Any]:
    """One rank's part; everything is done by all ranks at once, because that is how they will run."""
    dtype = DTYPES[payload["dtype"]]
    stream = [_stream(dtype, payload["stream_bytes"]) for _ in range(3)]
    report(stage="memory")
    rate = _gemm_rate(dtype)
    report(stage="matrix products")
    wires = {impl: wire(impl, where.rank, where.size) for impl in payload["impls"]}
    runs = []
    for shape in payload["shapes"]:
        for batch, length in payload["steps"]:
            runs.append(_model(shape, batch, length, dtype, where, wires))
            report(stage=f"hidden {shape['hidden_size']}, batch {batch}")
    ranks = gather({"stream": stream, "rate": rate, "runs": runs})
    return {"ranks": ranks, "impls": payload["impls"], "load": list(os.getloadavg()), "threads": torch.get_num_threads()}


def _stream(dtype: Any, nbytes: int) -> float:
    """Bytes a second of a matrix that no cache holds, read by a product with one row (as decode does)."""
    inner = 4096
    rows = nbytes // (inner * dtype.itemsize)
    matrix, row = torch.ones(rows, inner, dtype=dtype), torch.ones(1, inner, dtype=dtype)
    F.linear(row, matrix)
    dist.barrier()
    start = time.perf_counter()
    F.linear(row, matrix)
    return float(matrix.nbytes / (time.perf_counter() - start))


def _gemm_rate(dtype: Any, size: int = 1024) -> float:
    """FLOP a second of a square product, the best of several."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    best = 0.0
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def _arch(shape: Mapping[str, int]) -> Arch:
    config = {
        "architectures": ["LlamaForCausalLM"],
        **shape,
        "num_key_value_heads": shape["num_attention_heads"] // 2,
        "max_position_embeddings": 2048,
    }
    return described(config, f"calibration-{shape['hidden_size']}")


def _model(shape: Mapping[str, int], batch: int, length: int, dtype: Any, where: Place, wires: dict[str, Wire]) -> dict[str, Any]:
    """TP=1 on every rank at once, then TP=N over each wire, in turns."""
    a, cpu = _arch(shape), torch.device("cpu")
    source = Random(0, dtype, cpu)
    room = (batch, length + OUTPUTS)
    alone = Engine(a, load(source, a, 0, 1, dtype, cpu), Group(0, 1), *room)
    part = load(source, a, where.rank, where.size, dtype, cpu)
    many = {impl: Engine(a, part, Group(where.rank, where.size, carrier), *room) for impl, carrier in wires.items()}
    tokens = prompts(a.model.vocab, batch, length, 0, cpu)
    engines = {"": alone, **many}
    for engine in engines.values():
        generate(engine, tokens, 2)
    found: dict[str, list[Any]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            dist.barrier()
            found[name].append(_summary(generate(engine, tokens, OUTPUTS), engine, batch, length))
    return {"shape": dict(shape), "batch": batch, "length": length, "runs": found}


def _summary(run: Run, engine: Engine, batch: int, length: int) -> dict[str, Any]:
    hidden, item = engine.arch.model.hidden, engine.dtype.itemsize
    return {
        "decode_s": median(run.decode_s),
        "prefill_s": run.prefill_s,
        "prefill_lines": run.prefill_lines,
        "decode_lines": run.line_medians(),
        "comm_s": run.comm_s,
        "order": run.order,
        "payload": batch * hidden * item,
        "prefill_payload": batch * length * hidden * item,
        "logits": batch * engine.arch.model.vocab * item,
    }


def profile(raw: dict[str, Any], dtype: str, name: str, ranks: int) -> dict[str, Any]:
    """The measurements as a profile: rates at the best that was seen, attained shares and fixed costs fitted to the lines."""
    seen = raw["ranks"]
    memory_Bps = max(rate for rank in seen for rate in rank["stream"])
    peak = max(rank["rate"] for rank in seen)
    points = list(_points(seen, dtype))
    kernels = {
        f"gemm.{dtype}": _fit_gemm([p for p in points if p.kernel.form == "gemm"], memory_Bps, peak),
        "decode.bf16": _fit_decode([p for p in points if p.kernel.form == "decode"], memory_Bps),
        "prefill.bf16": _fit_prefill([p for p in points if p.kernel.form == "prefill"], peak),
        "small.bf16": _fit_small([p for p in points if p.kernel.form == "small"], memory_Bps),
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    how = f"{ranks} ranks of {raw['threads']} thread(s) at once, load {raw['load'][0]:.1f}"
    return {
        "commtax_profile": 1,
        "name": name,
        "engine": "builtin",
        "dtype": dtype,
        "chip": {
            "key": "cpu",
            "name": f"1/{ranks} of {len(machine.cores())} cores of {name}",
            "memory_Bps": memory_Bps,
            "flops_per_s": {dtype: peak},
            "memory_bytes": memory,
        },
        "kernels": {"tables": kernels},
        "libraries": [{"name": impl, "paths": _paths(seen, impl, ranks)} for impl in raw["impls"]],
        "host_s": 0.0,
        "sources": {
            "memory_Bps": f"a matrix of {STREAM_BYTES >> 20} MiB times one row; {how}",
            "flops_per_s": f"a product of 1,024 x 1,024 matrices in {dtype}; {how}",
            "kernels": f"fitted to the engine's own lines on {len(SHAPES)} models; {how}",
        },
    }


def _points(seen: list[dict[str, Any]], dtype: str) -> Iterable[Point]:
    """Every line of every TP=1 run as a kernel with its seconds: a quiet moment's, over ranks and rounds."""
    engine = catalog.engine("builtin")
    plan = Plan(activations_dtype=dtype, kv_dtype=dtype)
    for index in range(len(seen[0]["runs"])):
        case = seen[0]["runs"][index]
        model = replace(_arch(case["shape"]).model, dtype=dtype)
        for phase, context in (("prefill", case["length"]), ("decode", case["length"] + OUTPUTS // 2)):
            work = workload(phase, case["batch"], context)
            for kernel in step_kernels(model, plan, work, work.rows, engine):
                turns = [turn[f"{phase}_lines"] for rank in seen for turn in rank["runs"][index]["runs"][""]]
                times = [lines[kernel.what] for lines in turns if kernel.what in lines]
                if times and np.all(np.asarray(kernel.count) > 0):
                    yield Point(kernel, quiet(times) / float(kernel.count))


def quiet(times: list[float]) -> float:
    """The lower quartile: what the machine takes when others leave it alone, without trusting one lucky run."""
    return sorted(times)[len(times) // 4]


def _fit_gemm(points: list[Point], memory_Bps: float, peak: float) -> dict[str, float]:
    """t0 and the attained bandwidth from products with one row, packing from few rows, attained arithmetic from many."""
    one = [p for p in points if float(p.kernel.m) == 1]
    few = [p for p in points if 1 < float(p.kernel.m) <= 8]
    many = [p for p in points if float(p.kernel.m) >= 64]
    fixed, slope = alpha_beta(np.array([float(p.kernel.nbytes) for p in one]), np.array([p.seconds for p in one]))
    slope = slope or 1 / memory_Bps  # times that do not grow with bytes: a machine too noisy to tell, and memory is the bound
    pack = min(MOST_PACK, median((p.seconds - fixed) / (slope * float(p.kernel.nbytes)) for p in few) - 1)
    shares = [float(p.kernel.flops) / (peak * max(p.seconds - fixed, 1e-9)) for p in many]
    plain = {"kl": 0.0, "kc": 1.0, "mk": 1.0, "k0": 0.0, "p": 4.0, "q": 0.0, "tile_m": 1.0, "tile_n": 1.0}
    attained = {"eb": _share(1 / (slope * memory_Bps)), "ep": _share(median(shares)), "pack": max(0.0, pack)}
    return {"t0": fixed, **attained, **plain}


def _fit_decode(points: list[Point], memory_Bps: float) -> dict[str, float]:
    fixed, slope = alpha_beta(np.array([float(p.kernel.nbytes) for p in points]), np.array([p.seconds for p in points]))
    share = _share(1 / (slope * memory_Bps)) if slope else 1.0
    return {"t0": fixed, **{f"eb{d}": share for d in (64, 128, 256)}, "tc": 0.0, "kl": 0.0, "kc": 1.0, "p": 4.0}


def _fit_prefill(points: list[Point], peak: float) -> dict[str, float]:
    """A fixed time and FLOPs at an attained rate (``peak`` is the one that the formula divides by)."""
    fixed, slope = alpha_beta(np.array([float(p.kernel.flops) for p in points]), np.array([p.seconds for p in points]))
    share = _share(1 / (slope * peak)) if slope else 1.0
    return {"t0": fixed, "eb": 1.0, **{f"ep{d}": share for d in (64, 128, 256)}, "c0": 0.0, "tl": 0.0, "p": 4.0}


def _fit_small(points: list[Point], memory_Bps: float) -> dict[str, float]:
    """One fixed time for all small kernels: what they take together in decode; bytes from the long prompts."""
    sizes = np.array([float(p.kernel.nbytes) for p in points])
    times, counts = np.array([p.seconds for p in points]), np.array([float(p.kernel.count) for p in points])
    light = sizes < np.median(sizes)
    fixed = float(np.sum(times[light] * counts[light]) / np.sum(counts[light]))
    moving = float(np.sum((times[~light] - fixed) * counts[~light]))
    moved = float(np.sum(sizes[~light] * counts[~light]))
    return {"t0": fixed, "eb": _share(moved / max(moving, 1e-9) / memory_Bps)}


def _share(value: float) -> float:
    """An attained share is at most 1: no constant lets a kernel beat what was measured as the limit."""
    return float(min(1.0, max(value, 1e-3)))


def _paths(seen: list[dict[str, Any]], impl: str, ranks: int) -> list[dict[str, Any]]:
    """Latency and bandwidth of one wire as it is between computing: a fit to the decode steps' and the prompts' collectives."""
    rows = []
    for op, factor in (("all-reduce", 2 * (ranks - 1) / ranks), ("all-gather", (ranks - 1) / ranks)):
        points = [point for index in range(len(seen[0]["runs"])) for point in _wires(seen, impl, index, op)]
        sizes, times = (np.array(column) for column in zip(*points, strict=True))
        fixed, slope = alpha_beta(sizes, times)
        constants = {"launch_s": fixed, "bandwidth_Bps": min(1e12, factor / slope) if slope else 1e12}
        rows.append({"op": op, "algorithm": "ring", **constants, "name": impl, "source": "between computing"})
    return rows


def _wires(seen: list[dict[str, Any]], impl: str, index: int, op: str) -> Iterable[tuple[float, float]]:
    """(bytes, seconds) of one case. In each step the least over ranks is the wire; a step pays their mean, tails included."""
    decode, prefill = [], []
    case = seen[0]["runs"][index]
    for turn in zip(*(rank["runs"][index]["runs"][impl] for rank in seen), strict=True):
        wanted = [i for i, what in enumerate(turn[0]["order"]) if (what == "logits") == (op == "all-gather")]
        steps = zip(*(run["comm_s"] for run in turn), strict=True)
        decode.append(float(np.mean([min(rank[i] for rank in step) for step in steps for i in wanted])))
        lines = ("tp attention output", "tp feed-forward output")
        layers = case["shape"]["num_hidden_layers"]
        prefill.append(min(sum(run["prefill_lines"][line] for line in lines) for run in turn) / (2 * layers))
    sizes = case["runs"][impl][0]
    yield float(sizes["logits" if op == "all-gather" else "payload"]), quiet(decode)
    if op == "all-reduce":
        yield float(sizes["prefill_payload"]), quiet(prefill)
