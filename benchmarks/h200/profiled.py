"""Decode steps of a Llama-3.1-8B-shaped decoder with random weights, in CUDA graphs: wall times, and profiles of three steps each.

OUT=FOLDER python benchmarks/h200/profiled.py [--tiny]        (torch only; --tiny: a small model on the CPU, to try it)

Writes FOLDER/steps.json and FOLDER/decode_bN.json.gz.
"""

import contextlib
import gzip
import json
import os
import statistics
import sys
import time

import torch
import torch._dynamo
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

TINY = "--tiny" in sys.argv
DEV, DT = ("cpu", torch.float32) if TINY else ("cuda", torch.bfloat16)
LAYERS, H, HEADS, KV, D, FF, VOCAB = (2, 64, 4, 2, 16, 128, 512) if TINY else (32, 4096, 32, 8, 128, 14336, 128256)
CONTEXT, BATCHES = (32, (1, 2)) if TINY else (2048, (1, 8, 32, 64, 128))
OUT = os.environ["OUT"]


def weight(*shape):
    return torch.randn(*shape, device=DEV, dtype=DT) * 0.02


def add_norm(x, rest, scale):  # one kernel in engines, and one here where torch.compile works
    rest = x + rest
    y = rest.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(DT) * scale, rest


def gate(x):
    a, b = x.chunk(2, dim=-1)
    return functional.silu(a) * b


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def place(qkv, cos, sin, k_cache, v_cache):  # rotary embedding and the cache's new entries
    q, k, v = qkv.split((HEADS * D, KV * D, KV * D), dim=-1)
    k_cache[:, :, CONTEXT - 1] = rotate(k.view(-1, KV, D), cos, sin)
    v_cache[:, :, CONTEXT - 1] = v.view(-1, KV, D)
    return rotate(q.view(-1, HEADS, D), cos, sin)


def fused():
    """The small kernels compiled, or as they are where nothing compiles."""
    ways = (add_norm, gate, place)
    if TINY:
        return ways, "eager"
    try:
        made = tuple(torch.compile(f, dynamic=False) for f in ways)
        x = torch.ones(2, H, device=DEV, dtype=DT)
        made[0](x, x, x[0])
        torch.cuda.synchronize()
        return made, "compiled"
    except Exception as error:  # no Triton, no compiler
        print("not compiled:", str(error)[:200])
        return ways, "eager"


class Decoder:
    """Weights, and a cache for each layer of one batch."""

    def __init__(self):
        self.embed, self.head, self.ones = weight(VOCAB, H), weight(VOCAB, H), torch.ones(H, device=DEV, dtype=DT)
        shapes = ((HEADS + 2 * KV) * D, H), (H, HEADS * D), (2 * FF, H), (H, FF)
        self.layers = [tuple(weight(*shape) for shape in shapes) for _ in range(LAYERS)]
        angle = torch.arange(D // 2, device=DEV).float().mul(-0.2).exp() * CONTEXT
        self.cos, self.sin = angle.cos().to(DT), angle.sin().to(DT)
        (self.norm, self.act, self.put), self.how = fused()

    def take(self, batch):
        self.batch, self.tokens = batch, torch.zeros(batch, dtype=torch.long, device=DEV)
        self.caches = [torch.randn(2, batch, KV, CONTEXT, D, device=DEV, dtype=DT) for _ in range(LAYERS)]

    def step(self):
        rest = self.embed[self.tokens]
        x = torch.zeros_like(rest)
        for (wqkv, wo, wup, wdown), kv in zip(self.layers, self.caches, strict=True):
            y, rest = self.norm(x, rest, self.ones)
            q = self.put(functional.linear(y, wqkv), self.cos, self.sin, kv[0], kv[1]).view(self.batch, KV, HEADS // KV, D)
            seen = functional.scaled_dot_product_attention(q, kv[0], kv[1])  # heads of a group as rows
            y, rest = self.norm(functional.linear(seen.reshape(self.batch, HEADS * D), wo), rest, self.ones)
            x = functional.linear(self.act(functional.linear(y, wup)), wdown)
        y, _ = self.norm(x, rest, self.ones)
        self.tokens.copy_(functional.linear(y, self.head).argmax(-1))


def timed(decoder, run):
    """Seconds of 50 steps, each with its tokens on the host as an engine has them; and a profile of three."""

    def whole():
        run()
        return decoder.tokens.tolist()

    for _ in range(5):
        whole()
    took = []
    for _ in range(50):
        begin = time.perf_counter()
        whole()
        took.append(time.perf_counter() - begin)
    with profile(activities=[ProfilerActivity.CPU] + ([] if TINY else [ProfilerActivity.CUDA])) as prof:
        for _ in range(3):
            with record_function(f"execute_context_0(0)_generation_{decoder.batch}({decoder.batch})"):
                whole()
    return took, prof


def main():
    os.makedirs(OUT, exist_ok=True)
    torch.manual_seed(0)
    for name in ("recompile_limit", "cache_size_limit"):  # a compilation for each batch
        with contextlib.suppress(Exception):
            setattr(torch._dynamo.config, name, 64)
    decoder = Decoder()
    device = "cpu" if TINY else torch.cuda.get_device_name()
    doc = {"torch": torch.__version__, "device": device, "small kernels": decoder.how, "steps": []}
    for batch in BATCHES:
        decoder.take(batch)
        with torch.no_grad(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            run = decoder.step if TINY else capture(decoder.step)
            took, prof = timed(decoder, run)
        path = os.path.join(OUT, f"decode_b{batch}.json")
        prof.export_chrome_trace(path)
        with open(path, "rb") as plain, gzip.open(path + ".gz", "wb") as packed:
            packed.write(plain.read())
        os.remove(path)
        doc["steps"].append({"batch": batch, "context": CONTEXT, "median_s": statistics.median(took), "least_s": min(took)})
        print(doc["steps"][-1], os.path.getsize(path + ".gz"), flush=True)
        with open(os.path.join(OUT, "steps.json"), "w") as file:
            json.dump(doc, file, indent=1)
        del run
        if not TINY:
            torch.cuda.empty_cache()


def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


if __name__ == "__main__":
    main()
