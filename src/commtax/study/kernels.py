"""Sweep the kernels that the cost model knows, on the device at hand: ``python -m commtax.study.kernels --out rows.jsonl``.

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

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from commtax import catalog

if TYPE_CHECKING:
    from commtax.study.steps import Shard
    from commtax.study.timing import Pool, Timer

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
FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
ROWS = (*FEW_ROWS, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
Point = dict[str, Any]
GUESS_FLOPS_PER_S, GUESS_BPS, GUESS_S = 5e14, 3e12, 3e-6  # only to choose how many calls make a graph


@dataclass(slots=True)
class Bench:
    """What every measurement needs: where, and buffers to take operands from."""

    device: str
    timer: Timer
    weights: Pool
    cache: Pool
    weights8: Pool
    num_sms: int
    tiny: bool

    def graph(self, make: Callable[[], Callable[[], object]], nbytes: float, call_s: float) -> list[Callable[[], object]]:
        """Calls on as many operands as keep ``nbytes`` of each cold (0: one will do), repeated until a graph is long enough."""
        from commtax.study import timing

        count = (timing.copies(nbytes) if nbytes else 1) if not self.tiny else 2
        calls = [make() for _ in range(count)]
        return calls if self.tiny else calls * timing.rounds(count, call_s)


def shards(tiny: bool = False) -> list[Shard]:
    """The shards of the models at every tensor-parallel degree that divides them; ``tiny``: one layer of one."""
    from commtax.study.steps import shard

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
    """The operations in turn, whatever number of widths each has."""
    every = []
    for op in ("add_norm", "rotary_write", "swiglu", "quantise")[: 3 if tiny else 4]:
        widths = sorted({_width(op, s) for s in all_shards})
        mine = [{"op": op, "rows": m, **w} for m in (ROWS[:2] if tiny else ROWS) for w in map(dict, widths)]
        rng.shuffle(mine)
        every.append(mine)
    return [p for turn in zip_longest(*every) for p in turn if p]


def _width(op: str, s: Shard) -> tuple[tuple[str, int], ...]:
    if op == "rotary_write":
        return ("width", s.qkv), ("heads", s.heads), ("kv_heads", s.kv_heads)
    return (("width", s.width if op == "swiglu" else s.hidden),)


def copy_points(_: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    sizes = (20,) if tiny else range(16, 33)
    every = [{"op": op, "nbytes": 2**x} for op in ("copy", "memcpy", "read", "fill") for x in sizes]
    rng.shuffle(every)
    return every


def step_points(all_shards: list[Shard], rng: random.Random, tiny: bool) -> list[Point]:
    """Decode steps of the named batches at several contexts, and prefills; the order is random but 1 in 4 is a prefill."""
    decode = [(b, c) for b in (1, 8, 32, 128) for c in (256, 1024, 4096, 16384)] if not tiny else [(2, 32)]
    prompts = [(1, 2048), (1, 4096), (1, 8192), (4, 1024), (2, 2048)] if not tiny else [(1, 32)]
    every = [{"phase": "decode", "shard": s, "batch": b, "length": c} for s in all_shards for b, c in decode if _seen(s, c + 1)]
    fresh = [{"phase": "prefill", "shard": s, "batch": b, "length": c} for s in all_shards for b, c in prompts if _seen(s, c)]
    rng.shuffle(every)
    rng.shuffle(fresh)
    mixed: list[Point] = []
    while every or fresh:
        mixed += every[:3] + fresh[:1]
        del every[:3], fresh[:1]
    return mixed


def _seen(s: Shard, length: int) -> bool:
    """Whether attention looks at this whole length: the kernels here know no window."""
    window = catalog.model(s.model).attention.window
    return not window or length <= window


def measure_gemm(b: Bench, p: Point) -> list[float]:
    m, n, k = p["m"], p["n"], p["k"]
    size = 1 if p["dtype"] == "fp8" else 2
    guess = 2.0 * m * n * k / GUESS_FLOPS_PER_S + n * k * size / GUESS_BPS + GUESS_S
    x = b.cache.take(m, k)
    make = _product(b, x, n, k) if p["dtype"] == "bf16" else _fp8_product(b, x, n, k, p["mode"] == "dynamic")
    return b.timer.samples(b.graph(make, n * k * size, guess), guess)


def _product(b: Bench, x: Any, n: int, k: int) -> Callable[[], Callable[[], object]]:
    import torch

    out = torch.empty(x.shape[0], n, dtype=torch.bfloat16, device=b.device)

    def make() -> Callable[[], object]:
        w = b.weights.take(n, k)
        return lambda: torch.mm(x, w.t(), out=out)

    return make


def _fp8_product(b: Bench, x: Any, n: int, k: int, dynamic: bool) -> Callable[[], Callable[[], object]]:
    import torch

    from commtax.study.steps import quantise

    a, one = x.to(torch.float8_e4m3fn), torch.ones((), device=b.device)
    rows, columns = torch.ones(x.shape[0], 1, device=b.device), torch.ones(1, n, device=b.device)

    def make() -> Callable[[], object]:
        w = b.weights8.take(n, k)

        def found() -> object:
            quantise(x, a, rows)
            return torch._scaled_mm(a, w.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)

        return found if dynamic else lambda: torch._scaled_mm(a, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return make


def measure_decode(b: Bench, p: Point) -> list[float]:
    import torch

    from commtax.study import steps

    batch, length, heads, kv_heads, dim = (p[x] for x in ("batch", "length", "heads", "kv_heads", "head_dim"))
    nbytes = 4.0 * batch * length * kv_heads * dim
    guess = nbytes / GUESS_BPS + 2 * GUESS_S
    q, out = (torch.randn(batch, heads, dim, device=b.device).bfloat16() for _ in range(2))
    lengths = torch.full((batch,), length, dtype=torch.int32, device=b.device)
    splits = steps.Splits.make(batch, heads, kv_heads, dim, length, b.device, b.num_sms)
    p["splits"] = splits.num

    def make() -> Callable[[], object]:
        keys, values = (b.cache.take(batch, length, kv_heads, dim) for _ in range(2))
        return lambda: steps.decode_attention(q, keys, values, lengths, out, splits)

    return b.timer.samples(b.graph(make, nbytes, guess), guess)


def measure_prefill(b: Bench, p: Point) -> list[float]:
    from commtax.study import steps

    batch, length, dim = p["batch"], p["length"], p["head_dim"]
    q, k, v = (b.cache.take(batch, length, h, dim) for h in (p["heads"], p["kv_heads"], p["kv_heads"]))
    guess = 2.0 * batch * p["heads"] * length**2 * dim / GUESS_FLOPS_PER_S + GUESS_S
    calls = b.graph(lambda: lambda: steps.prefill_attention(q, k, v, p["backend"]), 0, guess)
    return b.timer.samples(calls, guess)


def measure_small(b: Bench, p: Point) -> list[float]:
    guess = 6.0 * p["rows"] * p["width"] / GUESS_BPS + GUESS_S
    call = _small_call(b, p)
    return b.timer.samples(b.graph(lambda: call, 0, guess), guess)


def _small_call(b: Bench, p: Point) -> Callable[[], object]:
    import torch

    from commtax.study import steps

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
    """Targets are arrays of their own: what is written must not become an operand of later points (constants draw less power)."""
    import torch

    elements = p["nbytes"] // (4 if p["op"] in ("copy", "memcpy") else 2)  # of each array; copies have two
    made: dict[str, Callable[[Any, Any], object]] = {
        "copy": lambda a, c: torch.neg(a, out=c),
        "memcpy": lambda a, c: c.copy_(a),
        "read": lambda a, _: a.sum(),
        "fill": lambda _, c: c.fill_(0.5),
    }
    run = made[p["op"]]

    def make() -> Callable[[], object]:
        source, target = b.weights.take(elements), torch.empty(elements, dtype=torch.bfloat16, device=b.device)
        return lambda: run(source, target)

    guess = p["nbytes"] / GUESS_BPS + GUESS_S
    return b.timer.samples(b.graph(make, p["nbytes"], guess), guess)


def measure_step(b: Bench, p: Point) -> list[float]:
    from commtax.study import steps

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

    from commtax.study.timing import Card, Pool, Timer

    if device == "cpu":
        pools = Pool.make(1 << 25, device, 0.02), Pool.make(1 << 22, device, 1.0)
        return Bench(device, Timer(device, 2), *pools, pools[0], 1, True)
    properties = torch.cuda.get_device_properties(0)
    free = torch.cuda.mem_get_info()[0] - 16e9  # activations, workspaces and the fp8 matrices
    weights = Pool.make(int(free * 0.6 / 2), device, 0.02)
    cache = Pool.make(int(free * 0.4 / 2), device, 1.0)
    weights8 = Pool((weights.data[: 2**32] * 50).to(torch.float8_e4m3fn))
    torch.cuda.empty_cache()
    return Bench(device, Timer(device, card=Card()), weights, cache, weights8, properties.multi_processor_count, False)


def agreement(device: str) -> dict[str, float]:
    """Whole steps of a small shard on this device against the plain functions on the CPU: |difference| / |logits|."""
    import torch

    from commtax.study import steps
    from commtax.study.timing import Pool

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

    from commtax.study import steps

    card = b.timer.card
    made: Point = {"kind": "header", "date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": torch.__version__}
    made["command"] = " ".join(["python -m commtax.study.kernels", *argv])
    made["triton"] = steps.TRITON_VERSION
    made["agreement"] = checked
    if card is None:
        return {**made, "device": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    made |= {"device": properties.name, "num_sms": properties.multi_processor_count, "memory_bytes": properties.total_memory}
    made |= {"l2_bytes": properties.L2_cache_size, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {**made, "driver": card.driver(), "sm_MHz": card.sm_MHz(), "memory_MHz": card.memory_MHz(), "power_W": card.power_W()}


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m commtax.study.kernels", description="Sweep kernels and whole steps on this GPU."
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
    from commtax.study.timing import shares

    def write(row: Point) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    end = time.monotonic() + 60 * asked.minutes
    checked = agreement(asked.device)
    if max(checked.values()) > 0.05:
        raise ArithmeticError(f"the kernels here disagree with plain functions: {checked}")
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
    except ArithmeticError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: --out {asked.out}: {error.strerror}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
