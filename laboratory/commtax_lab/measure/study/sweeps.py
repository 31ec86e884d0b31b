"""Points of every kind of sweep, and how each is measured on the device at hand."""

# mypy: disallow-untyped-calls=False

import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, product, zip_longest
from statistics import median

import torch
from torch import Tensor

from commtax import catalog
from commtax_lab import lab_table
from commtax_lab.measure.study import fused, rank_steps
from commtax_lab.measure.study.rank_steps import Shard, shard
from commtax_lab.measure.study.study_documents import SizeGrid, SweepGrid, SweepPoint
from commtax_lab.measure.study.timing import Card, OperandPool, OperationTimer

GRIDS = lab_table("measure/study/sweeps.toml")
Call = Callable[[], object]
Make = Callable[[], Call]
COLD_BYTES = 192e6  # three times the largest L2 here (60 MB): what is read again after this much is cold
MOST_COPIES = 1024  # of an operand
GRAPH_S = 400e-6  # a graph this long hides the microseconds that events add
GUESS_FLOPS_PER_S, GUESS_BPS, GUESS_S = 5e14, 3e12, 3e-6  # only to choose how many calls make a graph


@dataclass(slots=True)
class Workbench:
    """The device of the measurements, and buffers to take operands from."""

    device: str
    timer: OperationTimer
    weights: OperandPool
    cache: OperandPool
    weights8: OperandPool
    num_sms: int
    tiny: bool

    def samples(self, make: Make, nbytes: float, call_s: float) -> list[float]:
        """Measure calls on enough operands to keep ``nbytes`` of each cold (0: one will do), in a graph that is long enough."""
        count = max(2, min(MOST_COPIES, math.ceil(COLD_BYTES / nbytes))) if nbytes and not self.tiny else 1 + self.tiny
        rounds = 1 if self.tiny else max(1, math.ceil(GRAPH_S / (count * call_s)))
        return self.timer.samples([make() for _ in range(count)] * rounds, call_s)

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device=self.device)


def shards(grid: SweepGrid) -> list[Shard]:
    """Return the models' shards at every tensor-parallel degree that divides them."""
    every = (shard(catalog.model(key), tp) for key in grid["models"] for tp in grid["degrees"])
    return [replace(s, **grid["changed"]) for s in every if s]


def shuffle(points: list[SweepPoint], rng: random.Random) -> list[SweepPoint]:
    rng.shuffle(points)
    return points


def gemm_points(grid: SweepGrid, all_shards: list[Shard], rng: random.Random) -> list[SweepPoint]:
    """Return products of real shards, no side too small, at any number of rows."""
    least, modes = grid["gemm"]["least_side"], cycle(grid["gemm"]["modes"])
    sides = sorted({side for s in all_shards for side in s.products().values() if min(side) >= least})
    able = [SweepPoint(m=m, n=n, k=k) for m in grid["rows"] for n, k in sides if 2.0 * m * n * k < 1.5e13]
    return [{**p, "dtype": dtype, "mode": mode} for p, (dtype, mode) in zip(shuffle(able, rng), modes, strict=False)]


def _attentions(all_shards: list[Shard], sizes: SizeGrid) -> list[SweepPoint]:
    every = sorted({(s.heads, s.kv_heads, s.head_dim) for s in all_shards})
    both = [(b, s) for b in sizes["batches"] for s in sizes["lengths"]]
    return [
        {"batch": b, "length": s, "heads": h, "kv_heads": kv, "head_dim": d, "dtype": "bf16"} for h, kv, d in every for b, s in both
    ]


def decode_points(grid: SweepGrid, all_shards: list[Shard], rng: random.Random) -> list[SweepPoint]:
    every = _attentions(all_shards, grid["decode"])
    return shuffle([p for p in every if p["batch"] * p["length"] * p["kv_heads"] * p["head_dim"] < 2e9], rng)


def prefill_points(grid: SweepGrid, all_shards: list[Shard], rng: random.Random) -> list[SweepPoint]:
    every = _attentions(all_shards, grid["prefill"])
    able = [p for p in every if p["batch"] * p["length"] <= 32768 and _prefill_flops(p) < 5e12]
    return [{**p, "backend": way} for p, way in zip(shuffle(able, rng), cycle(grid["prefill"]["backends"]), strict=False)]


def _prefill_flops(p: SweepPoint) -> float:
    return float(2.0 * p["batch"] * p["heads"] * p["length"] ** 2 * p["head_dim"])


def small_points(grid: SweepGrid, all_shards: list[Shard], rng: random.Random) -> list[SweepPoint]:
    """Return the operations in turn, whatever number of widths each has."""
    every = []
    heads = [SweepPoint(width=w, heads=h, kv_heads=kv) for w, h, kv in sorted({(s.qkv, s.heads, s.kv_heads) for s in all_shards})]
    for op in grid["small"]["ops"]:
        sides = sorted({s.width if op == "swiglu" else s.hidden for s in all_shards})
        widths = heads if op == "rotary_write" else [SweepPoint(width=side) for side in sides]
        every.append(shuffle([{"op": op, "rows": m, **w} for m in grid["rows"] for w in widths], rng))
    return [p for turn in zip_longest(*every) for p in turn if p]


COPIES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "copy": lambda a, c: torch.neg(a, out=c),
    "memcpy": lambda a, c: c.copy_(a),
    "read": lambda a, _: a.sum(),
    "fill": lambda _, c: c.fill_(0.5),
}


def copy_points(grid: SweepGrid, _: list[Shard], rng: random.Random) -> list[SweepPoint]:
    return shuffle([{"op": op, "nbytes": 2**x} for op in COPIES for x in grid["copy"]["powers_of_2"]], rng)


def step_points(grid: SweepGrid, all_shards: list[Shard], rng: random.Random) -> list[SweepPoint]:
    """Return decode steps of the named batches at several contexts, and prefills, in random order, 1 in 4 a prefill."""

    def points(phase: str, sizes: Iterable[tuple[int, int]]) -> list[SweepPoint]:
        every = product(all_shards, sizes)
        able = [(s, b, c) for s, (b, c) in every if _sees_whole(s, c + (phase == "decode"))]
        return shuffle([{"phase": phase, "shard": s, "batch": b, "length": c} for s, b, c in able], rng)

    tokens = points("decode", product(grid["step"]["decode"]["batches"], grid["step"]["decode"]["lengths"]))
    fresh = points("prefill", grid["step"]["prefill"])
    return [p for turn in zip_longest(*(tokens[i::3] for i in range(3)), fresh) for p in turn if p]


def _sees_whole(s: Shard, length: int) -> bool:
    """Return whether attention spans this whole length, since the kernels here have no window."""
    window = catalog.model(s.model).attention.window
    return not window or length <= window


def measure_gemm(b: Workbench, p: SweepPoint) -> list[float]:
    m, n, k = p["m"], p["n"], p["k"]
    size = 1 if p["dtype"] == "fp8" else 2
    guess = 2.0 * m * n * k / GUESS_FLOPS_PER_S + n * k * size / GUESS_BPS + GUESS_S
    multiply = _product(b, p["mode"], m, n, k)
    pool = b.weights8 if p["dtype"] == "fp8" else b.weights

    def make() -> Call:
        w = pool.take(n, k)
        return lambda: multiply(w.t())

    return b.samples(make, n * k * size, guess)


def _product(b: Workbench, mode: str, m: int, n: int, k: int) -> Callable[[Tensor], object]:
    """Prepare products: plain in bf16, static fp8 with one fixed scale, dynamic with a scale per row from its own launch."""
    x = b.cache.take(m, k)
    if mode == "plain":
        out = b.empty(m, n)
        return lambda w: torch.mm(x, w, out=out)
    a, shapes = x.to(torch.float8_e4m3fn), ((m, 1), (1, n)) if mode == "dynamic" else ((), ())
    rows, columns = (torch.ones(shape, device=b.device) for shape in shapes)

    def scaled(w: Tensor) -> object:
        if mode == "dynamic":
            fused.quantise(x, a, rows)
        return torch._scaled_mm(a, w, rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)

    return scaled


def measure_decode(b: Workbench, p: SweepPoint) -> list[float]:
    batch, length, heads, kv_heads, dim = p["batch"], p["length"], p["heads"], p["kv_heads"], p["head_dim"]
    nbytes = 4.0 * batch * length * kv_heads * dim
    guess = nbytes / GUESS_BPS + 2 * GUESS_S
    q, out = (torch.randn(batch, heads, dim, device=b.device).bfloat16() for _ in range(2))
    lengths = torch.full((batch,), length, dtype=torch.int32, device=b.device)
    splits = fused.Splits.make(batch, heads, kv_heads, dim, length, b.device, b.num_sms)
    p["splits"] = splits.num

    def make() -> Call:
        keys, values = (b.cache.take(batch, length, kv_heads, dim) for _ in range(2))
        return lambda: fused.decode_attention(q, keys, values, lengths, out, splits)

    return b.samples(make, nbytes, guess)


def measure_prefill(b: Workbench, p: SweepPoint) -> list[float]:
    batch, length, dim = p["batch"], p["length"], p["head_dim"]
    q, k, v = (b.cache.take(batch, length, h, dim) for h in (p["heads"], p["kv_heads"], p["kv_heads"]))
    guess = _prefill_flops(p) / GUESS_FLOPS_PER_S + GUESS_S
    return b.samples(lambda: lambda: fused.prefill_attention(q, k, v, p["backend"]), 0, guess)


def measure_small(b: Workbench, p: SweepPoint) -> list[float]:
    guess = 6.0 * p["rows"] * p["width"] / GUESS_BPS + GUESS_S
    call = _small_call(b, p)
    return b.samples(lambda: call, 0, guess)


def _small_call(b: Workbench, p: SweepPoint) -> Call:
    rows, width = p["rows"], p["width"]
    x, y = b.cache.take(rows, width), b.empty(rows, width)
    if p["op"] == "add_norm":
        other, summed, weight = b.cache.take(rows, width), torch.empty_like(y), b.cache.take(width)
        return lambda: fused.add_norm(x, other, weight, summed, y)
    if p["op"] == "swiglu":
        both = b.cache.take(rows, 2 * width)
        return lambda: fused.swiglu(both, y)
    if p["op"] == "quantise":
        out, scales = y.to(torch.float8_e4m3fn), torch.empty(rows, 1, device=b.device)
        return lambda: fused.quantise(x, out, scales)
    dim = width // (p["heads"] + 2 * p["kv_heads"])
    index = torch.arange(rows, device=b.device)
    t = fused.turns(index, index, dim, rows)
    q, (keys, values) = y.new_empty(rows, p["heads"], dim), (b.cache.take(1, rows, p["kv_heads"], dim) for _ in range(2))
    return lambda: fused.rotary_write(x, q, keys, values, t, None)


def measure_copy(b: Workbench, p: SweepPoint) -> list[float]:
    """Measure copies into fresh targets, so that none becomes an operand of later points (constants draw less power)."""
    elements = p["nbytes"] // (4 if p["op"] in ("copy", "memcpy") else 2)  # of each array; copies have two
    run = COPIES[p["op"]]

    def make() -> Call:
        source, target = b.weights.take(elements), b.empty(elements)
        return lambda: run(source, target)

    return b.samples(make, p["nbytes"], p["nbytes"] / GUESS_BPS + GUESS_S)


def measure_step(b: Workbench, p: SweepPoint) -> list[float]:
    s = p.pop("shard")
    p.update({"model": s.model, "tp": s.tp, "num_layers": s.num_layers, "dtype": "bf16"})
    tokens = p["batch"] * (p["length"] + 1)
    if not b.weights.holds(s.num_weights() * 1.002) or not b.cache.holds(s.cache_elements(tokens) * 1.002):
        raise MemoryError("does not fit")
    call = rank_steps.step(s, p["phase"], p["batch"], p["length"], b.weights, b.cache, b.num_sms)
    rows = p["batch"] * (p["length"] if p["phase"] == "prefill" else 1)
    guess = 2.0 * s.num_weights() * max(1.0 / GUESS_BPS, rows / GUESS_FLOPS_PER_S)
    return b.timer.samples([call], guess, warm_s=0.25)


MakePoints = Callable[[SweepGrid, list[Shard], random.Random], list[SweepPoint]]
MeasurePoint = Callable[[Workbench, SweepPoint], list[float]]
SWEEPS: dict[str, tuple[MakePoints, MeasurePoint]] = {
    "copy": (copy_points, measure_copy),
    "small": (small_points, measure_small),
    "gemm": (gemm_points, measure_gemm),
    "decode": (decode_points, measure_decode),
    "prefill": (prefill_points, measure_prefill),
    "step": (step_points, measure_step),
}


def sweep(b: Workbench, kind: str, deadline: float, most: int, rng: random.Random) -> Iterator[dict[str, object]]:
    """Measure points of one kind in random order until the deadline. Name on stderr and leave out what cannot run."""
    points, measure = SWEEPS[kind]
    grid, done = GRIDS["tiny" if b.tiny else "full"], 0
    for p in points(grid, shards(grid), rng):
        if done >= most or time.monotonic() > deadline:
            break
        try:
            samples = measure(b, p)
        except (RuntimeError, MemoryError) as error:  # torch reports unsupported shapes and lack of memory so
            p.pop("shard", None)
            sys.stderr.write(f"{kind} {p}: left out ({str(error).splitlines()[0][:120]})\n")
            continue
        done += 1
        yield {"kind": kind, **p, "median_s": median(samples), "samples_s": samples, "sm_MHz": b.timer.take_clock()}
    sys.stderr.write(f"{kind}: {done} points\n")


def bench(device: str) -> Workbench:
    """Allocate pools: most of a large card for weights and caches, as little as possible on a CPU."""
    if device == "cpu":
        pools = OperandPool.make(1 << 25, device, 0.02), OperandPool.make(1 << 22, device, 1.0)
        return Workbench(device, OperationTimer(device, 2), *pools, pools[0], 1, True)
    properties = torch.cuda.get_device_properties(0)
    free = torch.cuda.mem_get_info()[0] - 16e9  # activations, workspaces and the fp8 matrices
    weights = OperandPool.make(int(free * 0.6 / 2), device, 0.02)
    cache = OperandPool.make(int(free * 0.4 / 2), device, 1.0)
    weights8 = OperandPool((weights.data[: 2**32] * 50).to(torch.float8_e4m3fn))
    torch.cuda.empty_cache()
    return Workbench(device, OperationTimer(device, card=Card()), weights, cache, weights8, properties.multi_processor_count, False)


def agreement(device: str) -> dict[str, float]:
    """Compare whole steps of a small shard with the plain functions on the CPU: |difference| / |logits|."""
    shape = rank_steps.Shard("check", 1, 2, 512, 8, 2, 64, 768, 1024, True, True)
    differences = {}
    for phase, batch, length in (("decode", 3, 700), ("decode", 200, 100), ("prefill", 2, 160)):
        torch.manual_seed(0)
        weights, cache = OperandPool.make(1 << 23, "cpu", 0.02), OperandPool.make(1 << 24, "cpu", 1.0)
        there = OperandPool(weights.data.to(device, copy=True)), OperandPool(cache.data.to(device, copy=True))
        plain, other = (rank_steps.step(shape, phase, batch, length, *p, 132)().float().cpu() for p in ((weights, cache), there))
        differences[f"{phase}-{batch}x{length}"] = float((plain - other).norm() / plain.norm())
    return differences


def header(b: Workbench, command: str, checked: dict[str, float]) -> dict[str, object]:
    """Return what the rows that follow were measured on, with what and how."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = {"kind": "header", "date": now, "torch": torch.__version__, "command": command, "triton": fused.TRITON_VERSION}
    card = b.timer.card
    if card is None:
        return {**made, "agreement": checked, "device": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    made |= {"device": properties.name, "num_sms": properties.multi_processor_count, "memory_bytes": properties.total_memory}
    made |= {"l2_bytes": properties.L2_cache_size, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    clocks = {"sm_MHz": card.clock_MHz(), "memory_MHz": card.clock_MHz(Card.MEMORY), "power_W": card.power_W()}
    return {**made, "agreement": checked, "driver": card.driver(), **clocks}
