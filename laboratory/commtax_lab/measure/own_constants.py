"""This machine's own constants: memory, matrix products, fixed costs of the engine's operations, and collectives.

The engine itself runs two small models that nobody serves, at TP=1 on every rank at once and at TP=N, with a clock on every
line of the bill. The constants of ``cost/kernels.py`` are then fitted to those lines, so that a prediction made with them
speaks of the same engine on the same machine, for models that were not run here.
"""

import math
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.cost.collectives import ring_factor
from commtax.cost.compute import step_kernels
from commtax.cost.kernel import Kernel
from commtax.question import workload
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax.units import plural
from commtax_lab.measure import launch, machine
from commtax_lab.measure.arch import Arch, arch_of_config
from commtax_lab.measure.collective_sweep import OPS, alpha_beta
from commtax_lab.measure.comm import Carrier, RankGroup, check_impl, wire
from commtax_lab.measure.engine import LiveEngine
from commtax_lab.measure.generate import GenerationRun, RunOfAllRanks, generate, lower_quartile, prompts
from commtax_lab.measure.job import DTYPES
from commtax_lab.measure.live_documents import MachineProfile, WirePath
from commtax_lab.measure.weights import RandomWeights, load
from commtax_lab.measure.worker import RankPlace, gather, report

TARGET = "commtax_lab.measure.own_constants:measure_box"
DTYPES_HERE = ("fp32", "bf16")
RANKS = (2, 4)  # what the calibration models divide by
ROUNDS = 3
OUTPUTS = 9
PRODUCT_SIDE = 2048  # of the matrices of such products
STREAM_BYTES = 512 * 2**20  # far more than a cache holds
SIDES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim", "vocab_size")
SHAPES = tuple(dict(zip(SIDES, sides, strict=True)) for sides in ((1536, 4608, 4, 16, 128, 24_000), (640, 1920, 6, 8, 64, 6_000)))
STEPS = ((1, 32), (4, 96))  # batch and prompt length
ALONE = ""  # the wire of an engine of one rank
MOST_PACK = 100.0  # as much as a profile may say
FEW_ROWS = (2, 3, 4, 6, 8, 12, 16, 32)  # of products whose matrices are gone over several times, or laid out anew
MANY_ROWS = (128, 512)  # between which arithmetic alone grows
PLAIN_DECODE, PLAIN_PREFILL = {"tc": 0.0, "kl": 0.0, "kc": 1.0, "p": 4.0}, {"eb": 1.0, "c0": 0.0, "tl": 0.0, "p": 4.0}
STAGES = 2 + len(SHAPES) * len(STEPS)
Point = tuple[Kernel, float]
"""One kernel of one step and the seconds that one launch of it took."""


@dataclass(frozen=True, slots=True)
class BoxWork:
    """The work of the ranks."""

    dtype: str
    impls: tuple[str, ...]
    shapes: Sequence[Mapping[str, int]] = SHAPES
    steps: Sequence[tuple[int, int]] = STEPS
    stream_bytes: int = STREAM_BYTES


@dataclass(frozen=True, slots=True)
class ShapeRuns:
    """One rank's runs of one model at one batch and length: alone, and over each wire."""

    shape: Mapping[str, int]
    batch: int
    length: int
    runs: dict[str, list[GenerationRun]]


@dataclass(frozen=True, slots=True)
class RankMeasurements:
    """Measurements of one rank: bytes per second, FLOP per second, and the engine's runs."""

    stream_Bps: list[float]
    flops_per_s: float
    product_size: int  # elements of a matrix …
    products_s: dict[int, float]  # … and seconds of a product with it, by rows; there are more than a cache holds
    cases: list[ShapeRuns]
    load: float
    threads: int


def calibrate(
    ranks: int = 2,
    dtype: str = "",
    name: str = "",
    impls: Sequence[str] = (),
    lost_s: float = launch.LOST_S,
    progress: launch.Progress | None = None,
) -> MachineProfile:
    """Measure with ``ranks`` processes, each on its share of the cores, in the type that will run, and return the profile."""
    dtype, impls = dtype or machine.engine_dtype("cpu"), tuple(impls) or machine.carriers(machine.facts())
    if dtype not in DTYPES_HERE:
        raise Refusal(f"dtype '{dtype}': {' or '.join(DTYPES_HERE)}", "dtype")
    if ranks not in RANKS:
        raise Refusal(f"ranks={ranks}: {' or '.join(map(str, RANKS))} (what the calibration models divide by)", "ranks")
    for impl in impls:
        if impl not in machine.CPU_CARRIERS:
            raise Refusal(f"impl '{impl}': gloo, shm or both carry CPU tensors")
        check_impl(impl)
    seen = launch.run(TARGET, BoxWork(dtype, impls), ranks, lost_s=lost_s, progress=progress)
    made = profile(seen, dtype, name or platform.node() or "this-box")
    overlay.parse(made)  # what is written can be read again
    return made


def measure_box(where: RankPlace, work: BoxWork) -> list[RankMeasurements]:
    """Run one rank's part. All ranks do everything at once, because that is how they will run."""
    dtype = DTYPES[work.dtype]
    stream = [_stream_rate(dtype, work.stream_bytes) for _ in range(3)]
    report("memory")
    rate, products = _gemm_rate(dtype), _time_products(dtype, work.stream_bytes)
    report("matrix products")
    wires = {impl: wire(impl, where.rank, where.size) for impl in work.impls}
    cases = []
    for shape in work.shapes:
        for batch, length in work.steps:
            cases.append(_run_model(shape, batch, length, dtype, where, wires))
            report(f"hidden {shape['hidden_size']}, batch {batch}")
    return gather(RankMeasurements(stream, rate, *products, cases, os.getloadavg()[0], torch.get_num_threads()))


def _stream_rate(dtype: torch.dtype, nbytes: int) -> float:
    """Return bytes per second of core time for a matrix beyond all caches, read by a one-row product as in decode."""
    inner = 4096
    rows = nbytes // (inner * dtype.itemsize)
    matrix, row = torch.ones(rows, inner, dtype=dtype), torch.ones(1, inner, dtype=dtype)
    F.linear(row, matrix)
    dist.barrier()
    start = time.thread_time()
    F.linear(row, matrix)
    return float(matrix.nbytes / (time.thread_time() - start))


def _gemm_rate(dtype: torch.dtype, size: int = 1024) -> float:
    """Return the FLOP per second of core time of a square product, the best of several."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    marks = [time.thread_time()]
    for _ in range(6):
        torch.mm(a, b)
        marks.append(time.thread_time())
    return 2 * size**3 / min(last - first for first, last in pairwise(marks))


def _time_products(dtype: torch.dtype, nbytes: int) -> tuple[int, dict[int, float]]:
    """Measure products with few and with many rows on the core: all matrices for one number of rows, then for the next."""
    side = min(PRODUCT_SIDE, math.isqrt(nbytes // dtype.itemsize))
    matrices = torch.ones(max(1, nbytes // (side * side * dtype.itemsize)), side, side, dtype=dtype)
    timed: dict[int, list[float]] = {rows: [] for rows in (1, *FEW_ROWS, *MANY_ROWS)}
    for _ in range(ROUNDS):
        for rows, seconds in timed.items():
            few = torch.ones(rows, side, dtype=dtype)
            start = time.thread_time()
            for matrix in matrices:
                F.linear(few, matrix)
            seconds.append((time.thread_time() - start) / len(matrices))
    return side * side, {rows: lower_quartile(seconds) for rows, seconds in timed.items()}


def _arch(shape: Mapping[str, int]) -> Arch:
    more = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}
    more["num_key_value_heads"] = shape["num_attention_heads"] // 2
    return arch_of_config({**shape, **more}, f"calibration-{shape['hidden_size']}")


def _run_model(
    shape: Mapping[str, int], batch: int, length: int, dtype: torch.dtype, where: RankPlace, wires: dict[str, Carrier]
) -> ShapeRuns:
    """Run TP=1 on every rank at once, then TP=N over each wire, in turns."""
    a, cpu = _arch(shape), torch.device("cpu")
    source = RandomWeights(0, dtype, cpu)
    room = (batch, length + OUTPUTS)
    engines = {ALONE: LiveEngine(a, load(source, a, 0, 1, dtype, cpu), RankGroup(0, 1), *room)}
    part = load(source, a, where.rank, where.size, dtype, cpu)
    engines |= {impl: LiveEngine(a, part, RankGroup(where.rank, where.size, carrier), *room) for impl, carrier in wires.items()}
    tokens = prompts(a.model.vocab, batch, length, 0, cpu)
    for engine in engines.values():
        generate(engine, tokens, 2)
    case = ShapeRuns(shape, batch, length, {name: [] for name in engines})
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            dist.barrier()
            case.runs[name].append(generate(engine, tokens, OUTPUTS).figures())
    return case


def profile(seen: Sequence[RankMeasurements], dtype: str, name: str) -> MachineProfile:
    """Build a profile of the measurements: the best rates seen, attained shares and fixed costs fitted to the lines."""
    ranks, impls = len(seen), [impl for impl in seen[0].cases[0].runs if impl != ALONE]
    memory_Bps = max(rate for rank in seen for rate in rank.stream_Bps)
    peak = max(rank.flops_per_s for rank in seen)
    points = _points(seen, dtype)
    kernels = {
        f"gemm.{dtype}": _fit_gemm(points["gemm"], seen, memory_Bps, peak),
        "decode.bf16": _fit_attention(points["decode"], "nbytes", memory_Bps, "eb", PLAIN_DECODE),
        "prefill.bf16": _fit_attention(points["prefill"], "flops", peak, "ep", PLAIN_PREFILL),
        "small.bf16": _fit_small(points["small"], memory_Bps),
    }
    how = f"{ranks} ranks of {plural(seen[0].threads, 'thread')} at once, load {seen[0].load:.1f}"
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
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks,
        },
        "kernels": {"tables": kernels},
        "libraries": [
            {"name": impl, "paths": _paths(seen, impl)} for impl in reversed(impls)
        ],  # the fastest, which ranks take, first
        "host_s": 0.0,
        "sources": {
            "memory_Bps": f"a matrix of {STREAM_BYTES >> 20} MiB times one row; {how}",
            "flops_per_s": f"a product of 1,024 x 1,024 matrices in {dtype}; {how}",
            "kernels": f"fitted to the engine's own lines on {len(SHAPES)} models; {how}",
        },
    }


def _points(seen: Sequence[RankMeasurements], dtype: str) -> dict[str, list[Point]]:
    """Group every line of the TP=1 runs by form, as a kernel with its undisturbed seconds over ranks and rounds."""
    points: dict[str, list[Point]] = {}
    engine, plan = catalog.engine("builtin"), Plan(activations_dtype=dtype, kv_dtype=dtype)
    for cases in zip(*(rank.cases for rank in seen), strict=True):
        case, runs = cases[0], [run for other in cases for run in other.runs[ALONE]]
        model = replace(_arch(case.shape).model, dtype=dtype)
        contexts = {"prefill": case.length, "decode": case.length + OUTPUTS // 2}
        took = {"prefill": [run.prefill_lines for run in runs], "decode": [run.line_medians() for run in runs]}
        for phase, context in contexts.items():
            work = workload(phase, case.batch, context)
            for kernel in step_kernels(model, plan, work, work.rows, engine):
                times = [lines[kernel.what] for lines in took[phase] if kernel.what in lines]
                if times and np.all(np.asarray(kernel.count) > 0):
                    points.setdefault(kernel.form, []).append((kernel, lower_quartile(times) / float(kernel.count)))
    return points


def _fit_gemm(points: list[Point], seen: Sequence[RankMeasurements], memory_Bps: float, peak: float) -> dict[str, float]:
    """Fit t0 and the attained bandwidth to products with one row, the rest to products with more, relative to one.

    A matrix is gone over or laid out first, and multiplied then: times add up (p = 1). Arithmetic is what grows from many rows to
    more; what is left of the others, over the time of one row, is how often the matrix moved.
    """
    one = [(kernel, seconds) for kernel, seconds in points if float(kernel.m) == 1]
    fixed, slope = _fit_line(one, "nbytes")
    slope = slope or 1 / memory_Bps  # times that do not grow with bytes: a machine too noisy to tell, and memory is the bound
    products = {rows: median(rank.products_s[rows] for rank in seen) for rows in seen[0].products_s}
    fewer, more = MANY_ROWS
    row_s = max(0.0, (products[more] - products[fewer]) / (more - fewer))  # arithmetic of one row
    once = max(products[1] - row_s, 1e-9)
    moved = np.maximum.accumulate([max(0.0, (products[rows] - rows * row_s) / once - 1) for rows in FEW_ROWS])
    pack = {f"pack{rows}": min(MOST_PACK, float(times)) for rows, times in zip(FEW_ROWS, moved, strict=True)}
    attained = float(np.clip(1 / (slope * memory_Bps) * products[1] / once, 1e-3, 1.0))
    arithmetic = _clip_share(2 * seen[0].product_size / (max(row_s, 1e-12) * peak))
    plain = {"kl": 0.0, "kc": 1.0, "mk": 1.0, "k0": 0.0, "p": 1.0, "q": 0.0, "tile_m": 1.0, "tile_n": 1.0}
    return {"t0": fixed, "eb": attained, "ep": arithmetic, **pack, **plain}


def _fit_line(points: Sequence[Point], name: str) -> tuple[float, float]:
    """Fit a fixed time and a slope over the kernels' bytes or FLOPs."""
    return alpha_beta(
        np.array([float(getattr(kernel, name)) for kernel, _ in points]), np.array([seconds for _, seconds in points])
    )


def _fit_attention(points: Sequence[Point], bound: str, rate: float, share: str, plain: dict[str, float]) -> dict[str, float]:
    """Fit a fixed time and a share of ``rate`` for bytes or FLOPs, the same for every head size. ``plain`` is not fitted."""
    fixed, slope = _fit_line(points, bound)
    attained = _clip_share(1 / (slope * rate)) if slope else 1.0
    return {"t0": fixed, **{f"{share}{head_dim}": attained for head_dim in (64, 128, 256)}, **plain}


def _fit_small(points: list[Point], memory_Bps: float) -> dict[str, float]:
    """Fit one fixed time to all small kernels' sum in decode, and their bytes to the long prompts."""
    sizes = np.array([float(kernel.nbytes) for kernel, _ in points])
    times, counts = np.array([seconds for _, seconds in points]), np.array([float(kernel.count) for kernel, _ in points])
    light = sizes < np.median(sizes)
    fixed = float(np.sum(times[light] * counts[light]) / np.sum(counts[light]))
    moving = float(np.sum((times[~light] - fixed) * counts[~light]))
    moved = float(np.sum(sizes[~light] * counts[~light]))
    return {"t0": fixed, "eb": _clip_share(moved / max(moving, 1e-9) / memory_Bps)}


def _clip_share(value: float) -> float:
    """Clip an attained share to 1: no constant lets a kernel beat what was measured as the limit."""
    return float(min(1.0, max(value, 1e-3)))


def _paths(seen: Sequence[RankMeasurements], impl: str) -> list[WirePath]:
    """Fit latency and bandwidth of one wire, as it is between computing, to the decode steps' and the prompts' collectives."""
    rows: list[WirePath] = []
    for op in OPS:
        cases = zip(*(rank.cases for rank in seen), strict=True)
        sizes, times = np.array([point for case in cases for point in _wire_points(case, impl, op)]).T
        fixed, slope = alpha_beta(sizes, times)
        rate, how = min(1e12, float(ring_factor(op, len(seen))) / slope) if slope else 1e12, "between computing"
        rows.append({"op": op, "algorithm": "ring", "launch_s": fixed, "bandwidth_Bps": rate, "name": impl, "source": how})
    return rows


def _wire_points(cases: Sequence[ShapeRuns], impl: str, op: str) -> Iterable[tuple[float, float]]:
    """Yield (bytes, seconds) of one case. In each step the least over ranks is the wire, and a step pays the mean with tails."""
    turns = [RunOfAllRanks(runs) for runs in zip(*(case.runs[impl] for case in cases), strict=True)]
    first = turns[0].runs[0]
    wanted = [i for i, sent in enumerate(first.order) if sent.op == op]
    yield float(first.order[wanted[0]].nbytes), lower_quartile([float(turn.wire_s[:, wanted].mean()) for turn in turns])
    if op == "all-reduce":
        wanted = [i for i, sent in enumerate(first.prefill_sent) if sent.op == op]
        means = [min(np.mean([run.prefill_comm_s[i] for i in wanted]) for run in turn.runs) for turn in turns]
        yield float(first.prefill_sent[wanted[0]].nbytes), lower_quartile([float(mean) for mean in means])
