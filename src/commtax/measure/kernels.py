"""Sweep the kernels that the cost model knows, on the device at hand: ``python -m commtax.measure.kernels --out rows.jsonl``.

Needs torch (with the Triton that comes with it) and NumPy. One JSON line a point, written as soon as it is measured; the
first line says device, versions and command. Times are device time under CUDA graphs: ``samples_s`` each one replay of a
list of calls divided by their number, ``median_s`` their median. Matrices and caches are cold (a graph rotates over copies
that together are three times the L2, up to 1,024 of them); activations are as warm as their producer leaves them.

* ``gemm``     C[m, n] = A[m, k] W[n, k]^T. ``mode``: plain (bf16); static (fp8, one given scale a tensor, inputs already fp8);
               dynamic (fp8, a scale a row of A found in a launch of its own, which is counted, and a scale a row of W)
* ``decode``   one query a sequence over ``length`` cached keys, split along the length (``splits``)
* ``prefill``  causal attention of ``batch`` prompts of ``length`` tokens, by ``backend``
* ``small``    add_norm, rotary_write, swiglu, quantise on ``rows`` rows of ``width``
* ``copy``     copy (a kernel; bytes read and written), memcpy (the driver's), read (a sum), fill, of ``nbytes`` in all
* ``step``     a whole decode or prefill step of one tensor-parallel rank; the launches are listed in ``steps.py``
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from commtax import catalog

if TYPE_CHECKING:
    from commtax.measure.steps import Shard
    from commtax.measure.timing import Pool, Timer

KINDS = ["copy", "small", "gemm", "decode", "prefill", "step"]
SHARES = {"copy": 1.0, "small": 3.0, "gemm": 12.0, "decode": 7.0, "prefill": 6.0, "step": 18.0}
MODELS = (
    "llama-3.1-8b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-2-7b",
    "llama-2-13b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-32b",
    "phi-4",
    "mistral-7b",
    "qwen2.5-32b",
    "llama-3.1-70b",
    "qwen2.5-72b",
)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768)
ROWS += (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
Point = dict[str, Any]
GUESS_FLOPS_PER_S, GUESS_BPS, GUESS_S = 5e14, 3e12, 3e-6  # only to choose how many calls make a graph


@dataclass(slots=True)
class Bench:
    """What every measurement needs: where, and buffers to take operands from."""

    device: str
    timer: Timer
    weights: Pool
    cache: Pool
    weights8: Any
    num_sms: int
    tiny: bool


def shards(tiny: bool = False) -> list[Shard]:
    """The shards of the models at every tensor-parallel degree that divides them; ``tiny``: one layer of one."""
    from commtax.measure.steps import shard

    if tiny:
        found = shard(catalog.model("llama-3.2-1b"), 8)
        return [replace(found, num_layers=1, vocab=1024)] if found else []
    every = (shard(catalog.model(key), tp) for key in MODELS for tp in (1, 2, 4, 8))
    return [s for s in every if s]


def gemm_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    """Products of real shards, n and k at least 512, at any number of rows: three bf16 points for two fp8 ones."""
    sides = sorted({side for s in all_shards for side in s.products().values() if min(side) >= (128 if tiny else 512)})
    modes = [("bf16", "plain")] if tiny else [("bf16", "plain")] * 3 + [("fp8", "static"), ("fp8", "dynamic")]
    rows = ROWS[:3] if tiny else ROWS
    every = [{"m": m, "n": n, "k": k} for m in rows for n, k in sides if 2.0 * m * n * k < 1.5e13]
    rng.shuffle(every)
    return [{**p, "dtype": modes[i % len(modes)][0], "mode": modes[i % len(modes)][1]} for i, p in enumerate(every)]


def _heads(all_shards: list[Shard]) -> list[Point]:
    every = {(s.heads, s.kv_heads, s.head_dim) for s in all_shards}
    return [{"heads": h, "kv_heads": kv, "head_dim": d, "dtype": "bf16"} for h, kv, d in sorted(every)]


def decode_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    batches, lengths = ((2,), (100,)) if tiny else ((1, 2, 4, 8, 16, 32, 64, 128, 256), _grid(128, 32768))
    every = [
        {"batch": b, "length": s, **h}
        for h in _heads(all_shards)
        for b in batches
        for s in lengths
        if b * s * h["kv_heads"] * h["head_dim"] < 2e9
    ]
    rng.shuffle(every)
    return every


def prefill_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    batches, lengths = ((1,), (64,)) if tiny else ((1, 2, 4, 8), _grid(256, 16384))
    backends = ("math",) if tiny else ("cudnn", "cudnn", "flash")
    every = [
        {"batch": b, "length": s, **h}
        for h in _heads(all_shards)
        for b in batches
        for s in lengths
        if b * s <= 32768 and 2.0 * b * s * s * h["heads"] * h["head_dim"] < 5e12
    ]
    rng.shuffle(every)
    return [{**p, "backend": backends[i % len(backends)]} for i, p in enumerate(every)]


def _grid(low: int, high: int) -> tuple[int, ...]:
    """Powers of two and the lengths half-way between them."""
    found, at = [], low
    while at <= high:
        found += [at, at * 3 // 2]
        at *= 2
    return tuple(x for x in found if x <= high)


def small_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    rows = ROWS[:2] if tiny else ROWS
    every: list[Point] = []
    for op in ("add_norm", "rotary_write", "swiglu", "quantise"):
        widths = {_width(op, s) for s in all_shards}
        every += [{"op": op, "rows": m, "width": w[0], "heads": w[1], "kv_heads": w[2]} for m in rows for w in sorted(widths)]
    rng.shuffle(every)
    return [p for p in every if p["op"] != "quantise"] if tiny else every


def _width(op: str, s: Shard) -> tuple[int, int, int]:
    if op == "rotary_write":
        return s.qkv, s.heads, s.kv_heads
    return (s.width if op == "swiglu" else s.hidden), 0, 0


def copy_points(_: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    sizes = (20,) if tiny else range(16, 34)
    every = [{"op": op, "nbytes": 2**x} for op in ("copy", "memcpy", "read", "fill") for x in sizes]
    rng.shuffle(every)
    return every


def step_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    """Decode steps of the named batches at several contexts, and prefills; the order is random but 1 in 4 is a prefill."""
    decode = [(b, c) for b in (1, 8, 32, 128) for c in (256, 1024, 4096, 16384)] if not tiny else [(2, 32)]
    prompts = [(1, 2048), (1, 4096), (1, 8192), (4, 1024), (2, 2048)] if not tiny else [(1, 32)]
    every = [{"phase": "decode", "shard": s, "batch": b, "length": c} for s in all_shards for b, c in decode]
    fresh = [{"phase": "prefill", "shard": s, "batch": b, "length": c} for s in all_shards for b, c in prompts]
    rng.shuffle(every)
    rng.shuffle(fresh)
    mixed: list[Point] = []
    while every or fresh:
        mixed += every[:3] + fresh[:1]
        del every[:3], fresh[:1]
    return mixed


def measure_gemm(b: Bench, p: Point) -> list[float]:
    import torch

    m, n, k = p["m"], p["n"], p["k"]
    from commtax.measure import timing

    size = 1 if p["dtype"] == "fp8" else 2
    count = timing.copies(n * k * size)
    guess = 2.0 * m * n * k / GUESS_FLOPS_PER_S + n * k * size / GUESS_BPS + GUESS_S
    x = b.cache.take(m, k)
    if p["dtype"] == "bf16":
        out = torch.empty(m, n, dtype=torch.bfloat16, device=b.device)
        calls = [_product(x, b.weights.take(n, k), out) for _ in range(count)]
    else:
        calls = _fp8_products(b, x, n, k, count, p["mode"] == "dynamic")
    return b.timer.samples(calls * timing.rounds(count, guess), guess)


def _product(x: Any, w: Any, out: Any) -> Callable[[], object]:
    import torch

    return lambda: torch.mm(x, w.t(), out=out)


def _fp8_products(b: Bench, x: Any, n: int, k: int, count: int, dynamic: bool) -> list[Callable[[], object]]:
    import torch

    from commtax.measure.steps import quantise

    m, starts = x.shape[0], b.weights8.numel() - n * k + 1
    matrices = [b.weights8[at : at + n * k].view(n, k) for at in (i * n * k % starts // 256 * 256 for i in range(count))]
    a = x.to(torch.float8_e4m3fn)
    one = torch.ones((), device=b.device)
    rows, columns = torch.ones(m, 1, device=b.device), torch.ones(1, n, device=b.device)

    def given(w: Any) -> Callable[[], object]:
        return lambda: torch._scaled_mm(a, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    def found(w: Any) -> Callable[[], object]:
        def call() -> object:
            quantise(x, a, rows)
            return torch._scaled_mm(a, w.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)

        return call

    return [found(w) if dynamic else given(w) for w in matrices]


def measure_decode(b: Bench, p: Point) -> list[float]:
    import torch

    from commtax.measure import steps, timing

    batch, length, heads, kv_heads, dim = (p[x] for x in ("batch", "length", "heads", "kv_heads", "head_dim"))
    nbytes = 4.0 * batch * length * kv_heads * dim
    count = timing.copies(nbytes, 2 if b.tiny else 1024)
    q, out = (torch.randn(batch, heads, dim, device=b.device, dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.full((batch,), length, dtype=torch.int32, device=b.device)
    splits = steps.Splits.make(batch, heads, kv_heads, dim, length, b.device, b.num_sms)
    p["splits"] = splits.num

    def call(keys: Any, values: Any) -> Callable[[], object]:
        return lambda: steps.decode_attention(q, keys, values, lengths, out, splits)

    shape = (batch, length, kv_heads, dim)
    calls = [call(b.cache.take(*shape), b.cache.take(*shape)) for _ in range(count)]
    guess = nbytes / GUESS_BPS + 2 * GUESS_S
    return b.timer.samples(calls * timing.rounds(count, guess), guess)


def measure_prefill(b: Bench, p: Point) -> list[float]:
    from commtax.measure import steps, timing

    batch, length, dim = p["batch"], p["length"], p["head_dim"]
    q, k, v = (b.cache.take(batch, length, h, dim) for h in (p["heads"], p["kv_heads"], p["kv_heads"]))
    guess = 2.0 * batch * p["heads"] * length**2 * dim / GUESS_FLOPS_PER_S + GUESS_S
    calls = [lambda: steps.prefill_attention(q, k, v, p["backend"])]
    return b.timer.samples(calls * max(2, timing.rounds(1, guess)), guess)


def measure_small(b: Bench, p: Point) -> list[float]:
    from commtax.measure import timing

    guess = 6.0 * p["rows"] * p["width"] / GUESS_BPS + GUESS_S
    return b.timer.samples([_small_call(b, p)] * timing.rounds(1, guess), guess)


def _small_call(b: Bench, p: Point) -> Callable[[], object]:
    import torch

    from commtax.measure import steps

    rows, width = p["rows"], p["width"]
    x, y = b.cache.take(rows, width), torch.empty(rows, width, dtype=torch.bfloat16, device=b.device)
    if p["op"] == "add_norm":
        other, summed, weight = b.cache.take(rows, width), torch.empty_like(y), b.cache.take(width)
        return lambda: steps.add_norm(x, other, weight, summed, y)
    if p["op"] == "swiglu":
        both = b.cache.take(rows, 2 * width)
        return lambda: steps.swiglu(both, y)
    if p["op"] == "quantise":
        out, scales = y.to(torch.float8_e4m3fn), torch.empty(rows, 1, device=b.device)
        return lambda: steps.quantise(x, out, scales)
    dim = width // (p["heads"] + 2 * p["kv_heads"])
    index = torch.arange(rows, device=b.device)
    t = steps.turns(index, index, dim, rows)
    q, (keys, values) = y.new_empty(rows, p["heads"], dim), (b.cache.take(1, rows, p["kv_heads"], dim) for _ in range(2))
    return lambda: steps.rotary_write(x, q, keys, values, t, None)


def measure_copy(b: Bench, p: Point) -> list[float]:
    import torch

    from commtax.measure import timing

    elements = p["nbytes"] // (4 if p["op"] in ("copy", "memcpy") else 2)  # of each array; copies have two
    count = timing.copies(p["nbytes"])
    views = [(b.weights.take(elements), b.cache.take(elements)) for _ in range(count)]
    made: dict[str, Callable[[Any, Any], Callable[[], object]]] = {
        "copy": lambda a, c: lambda: torch.neg(a, out=c),
        "memcpy": lambda a, c: lambda: c.copy_(a),
        "read": lambda a, _: lambda: a.sum(),
        "fill": lambda _, c: lambda: c.fill_(0.5),
    }
    calls = [made[p["op"]](*view) for view in views]
    guess = p["nbytes"] / GUESS_BPS + GUESS_S
    return b.timer.samples(calls * timing.rounds(count, guess), guess)


def measure_step(b: Bench, p: Point) -> list[float]:
    from commtax.measure import steps

    s = p.pop("shard")
    p.update(model=s.model, tp=s.tp, num_layers=s.num_layers, dtype="bf16")
    tokens = p["batch"] * (p["length"] + 1)
    if not b.weights.holds(s.num_weights() * 1.002) or not b.cache.holds(s.cache_elements(tokens) * 1.002):
        raise MemoryError("does not fit")
    call = steps.step(s, p["phase"], p["batch"], p["length"], b.weights, b.cache, b.num_sms)
    rows = p["batch"] * (p["length"] if p["phase"] == "prefill" else 1)
    guess = 2.0 * s.num_weights() * max(1.0 / GUESS_BPS, rows / GUESS_FLOPS_PER_S)
    return b.timer.samples([call], guess, warm_s=0.25)


SWEEPS: dict[str, tuple[Callable[..., list[Point]], Callable[[Bench, Point], list[float]]]] = {
    "copy": (copy_points, measure_copy),
    "small": (small_points, measure_small),
    "gemm": (gemm_points, measure_gemm),
    "decode": (decode_points, measure_decode),
    "prefill": (prefill_points, measure_prefill),
    "step": (step_points, measure_step),
}
MOST = {"copy": 80, "small": 300, "gemm": 1500, "decode": 400, "prefill": 200, "step": 750}
QUICK = {"copy": 9, "small": 12, "gemm": 30, "decode": 12, "prefill": 9, "step": 12}


def sweep(b: Bench, kind: str, deadline: float, most: int, rng: random.Random) -> Iterator[Point]:
    """Measure points of one kind in random order until the deadline; what cannot run is named on stderr and left out."""
    points, measure = SWEEPS[kind]
    done = 0
    for p in points(shards(b.tiny), rng, b.tiny):
        if done >= most or time.monotonic() > deadline:
            break
        try:
            samples = measure(b, p)
        except (RuntimeError, MemoryError) as error:  # torch reports unsupported shapes and lack of memory so
            p.pop("shard", None)
            say(f"{kind} {p}: left out ({str(error).splitlines()[0][:120]})")
            continue
        done += 1
        yield {"kind": kind, **p, "median_s": median(samples), "samples_s": samples, "sm_MHz": b.timer.take_clock()}
    say(f"{kind}: {done} points")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def bench(device: str) -> Bench:
    """Pools: most of a large card for weights and caches, as little as possible on a CPU."""
    import torch

    from commtax.measure.timing import Card, Pool, Timer

    if device == "cpu":
        pools = Pool.make(1 << 25, device, 0.02), Pool.make(1 << 22, device, 1.0)
        return Bench(device, Timer(device, 2), *pools, None, 1, True)
    properties = torch.cuda.get_device_properties(0)
    free = torch.cuda.mem_get_info()[0] - 16e9  # activations, workspaces and the fp8 matrices
    weights = Pool.make(int(free * 0.6 / 2), device, 0.02)
    cache = Pool.make(int(free * 0.4 / 2), device, 1.0)
    weights8 = (weights.data[: 2**32] * 50).to(torch.float8_e4m3fn)
    torch.cuda.empty_cache()
    return Bench(device, Timer(device, card=Card()), weights, cache, weights8, properties.multi_processor_count, False)


def agreement(device: str) -> dict[str, float]:
    """Whole steps of a small shard on this device against the plain functions on the CPU: |difference| / |logits|."""
    import torch

    from commtax.measure import steps
    from commtax.measure.timing import Pool

    shape = steps.Shard("check", 1, 2, 512, 8, 2, 64, 768, 1024, True, True)
    found = {}
    for phase, batch, length in (("decode", 3, 700), ("decode", 200, 100), ("prefill", 2, 160)):
        torch.manual_seed(0)
        weights, cache = Pool.make(1 << 23, "cpu", 0.02), Pool.make(1 << 24, "cpu", 1.0)
        there = Pool(weights.data.to(device, copy=True)), Pool(cache.data.to(device, copy=True))
        own, other = (steps.step(shape, phase, batch, length, *p, 132)().float().cpu() for p in ((weights, cache), there))
        found[f"{phase}-{batch}x{length}"] = float((own - other).norm() / own.norm())
    return found


def header(b: Bench, argv: list[str], checked: dict[str, float]) -> Point:
    import torch

    from commtax.measure import steps

    card = b.timer.card
    made: Point = {"kind": "header", "date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": torch.__version__}
    made["command"] = " ".join(["python -m commtax.measure.kernels", *argv])
    made["triton"] = getattr(steps.triton, "__version__", "") if steps.triton else ""
    made["agreement"] = checked
    if card is None:
        return {**made, "device": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    made |= {"device": properties.name, "num_sms": properties.multi_processor_count, "memory_bytes": properties.total_memory}
    made |= {"l2_bytes": properties.L2_cache_size, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {**made, "driver": card.driver(), "sm_MHz": card.sm_MHz(), "memory_MHz": card.memory_MHz(), "power_W": card.power_W()}


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m commtax.measure.kernels", description="Sweep kernels and whole steps on this GPU."
    )
    parser.add_argument("--only", default=",".join(KINDS), help="kinds to measure, with commas: " + ", ".join(KINDS))
    parser.add_argument("--out", default="-", help="JSON lines go to this file (default: standard output)")
    parser.add_argument("--quick", action="store_true", help="a few points of each kind")
    parser.add_argument("--minutes", type=float, default=9.0, help="time to spend in all (default 9)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a tiny sweep, to try it out")
    parser.add_argument("--seed", type=int, default=1, help="of the order of points")
    found = parser.parse_args(argv)
    wrong = [kind for kind in found.only.split(",") if kind not in KINDS]
    if wrong:
        parser.error(f"--only: unknown kind '{wrong[0]}' (one of {', '.join(KINDS)})")
    if not 0 < found.minutes <= 1e5:
        parser.error(f"--minutes {found.minutes:g}: more than 0 is needed")
    return found


def run(asked: argparse.Namespace, argv: list[str], out: TextIO) -> None:
    from commtax.measure.timing import shares

    def write(row: Point) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    end = time.monotonic() + 60 * asked.minutes
    checked = agreement(asked.device)
    b = bench(asked.device)
    write(header(b, argv, checked))
    say(f"agreement with plain functions: {checked}")
    kinds = [kind for kind in KINDS if kind in asked.only.split(",")]
    most = QUICK if asked.quick else MOST
    for kind, deadline in shares(kinds, SHARES, end - time.monotonic()):
        for row in sweep(b, kind, deadline, most[kind], random.Random(asked.seed)):
            write(row)


def main(argv: list[str]) -> int:
    asked = options(argv)
    try:
        import torch
    except ImportError:
        say("error: torch is needed to measure (pip install torch)")
        return 2
    if asked.device == "cuda" and not torch.cuda.is_available():
        say("error: no CUDA device was found (--device cpu tries the sweep out on a tiny shard)")
        return 2
    try:
        if asked.out == "-":
            run(asked, argv, sys.stdout)
        else:
            with open(asked.out, "w", encoding="utf-8") as file:
                run(asked, argv, file)
    except KeyboardInterrupt:
        say("stopped: what was measured is written")
        return 130
    except OSError as error:
        say(f"error: --out {asked.out}: {error.strerror}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
