"""How long does a host take to launch one kernel without graphs and compilation? ``python benchmarks/h200/eager_launches.py``.

Layers of a Llama written in modules, decoding a few sequences: kernels are so short that the device waits for the host.
Host seconds per layer and per kernel; the same with CUDA graphs shows what the device alone takes.
"""

import json
import time

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Norm, qkv, rotation, cache, attention, output; norm, gate and up, activation, down."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, mlp: int, context: int, batch: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, hidden // heads
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.norm1, self.norm2 = nn.RMSNorm(hidden, **kind), nn.RMSNorm(hidden, **kind)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head, bias=False, **kind)
        self.out = nn.Linear(hidden, hidden, bias=False, **kind)
        self.up = nn.Linear(hidden, 2 * mlp, bias=False, **kind)
        self.down = nn.Linear(mlp, hidden, bias=False, **kind)
        self.cache = torch.zeros(2, batch, kv_heads, context, self.head, **kind)
        self.cos = torch.ones(batch, 1, self.head, **kind)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = len(x)
        residual = residual + x
        q, k, v = self.qkv(self.norm1(residual)).split([n * self.head for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        q, k = q.view(batch, -1, self.head) * self.cos, k.view(batch, -1, self.head) * self.cos
        self.cache[0, :, :, -1] = k
        self.cache[1, :, :, -1] = v.view(batch, -1, self.head)
        seen = functional.scaled_dot_product_attention(q.unsqueeze(2), self.cache[0], self.cache[1], enable_gqa=True)
        residual = residual + self.out(seen.reshape(batch, -1))
        gate, up = self.up(self.norm2(residual)).chunk(2, -1)
        return self.down(functional.silu(gate) * up), residual


def timed(run, repeats: int = 20) -> tuple[float, float]:
    """Seconds of the host until it has launched everything, and until the device is done; medians."""
    launched, done = [], []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        launched.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - start)
    return sorted(launched)[repeats // 2], sorted(done)[repeats // 2]


@torch.inference_mode()
def measure(name: str, sizes: tuple[int, int, int, int], layers: int, batch: int) -> dict[str, float | str]:
    model = [Layer(*sizes, 1024, batch) for _ in range(layers)]
    start = torch.zeros(batch, sizes[0], device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        x, residual = start, start
        for layer in model:
            x, residual = layer(x, residual)

    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    kernels = sum(event.count for event in seen.key_averages())
    launched, done = timed(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    _, replayed = timed(graph.replay)
    told = {"model": name, "batch": batch, "kernels": kernels, "host_s": launched, "step_s": done, "graph_s": replayed}
    return {**told, "host_s_per_kernel": launched / kernels, "host_s_per_layer": launched / layers}


if __name__ == "__main__":
    for known in (("8b", (4096, 32, 8, 14336), 32), ("1b", (2048, 32, 8, 8192), 16)):
        for sequences in (1, 16):
            print(json.dumps(measure(*known, sequences)), flush=True)
