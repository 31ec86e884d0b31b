"""Decode steps of single shards of the built-in engine on one GPU: what a rank computes at TP N, without its collectives.

PYTHONPATH=src python benchmarks/h200/shards.py OUT.jsonl        (torch and NumPy only)
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch

from commtax.measure.arch import Arch
from commtax.measure.comm import Group
from commtax.measure.engine import Engine
from commtax.measure.job import Job
from commtax.measure.weights import Random, load

MODELS = ("llama-3.1-8b", "llama-3.2-3b", "qwen3-8b", "llama-2-7b", "llama-3.2-1b")
DEGREES, BATCHES, LENGTH = (1, 2, 4, 8), (1, 8, 32), 512


class Silent:
    """Carries nothing: a shard computes what it would, and nobody answers."""

    def all_reduce(self, tensor: Any) -> None: ...

    def all_gather(self, whole: Any, part: Any) -> None: ...


def step_s(arch: Arch, tp: int, batch: int, device: Any) -> list[float]:
    """Seconds of replayed decode steps over about ``LENGTH`` cached tokens."""
    source = Random(0, torch.bfloat16, device)
    engine = Engine(arch, load(source, arch, 0, tp, torch.bfloat16, device), Group(0, tp, Silent()), batch, LENGTH + 64)
    engine.prefill(torch.zeros((batch, LENGTH), dtype=torch.long, device=device))
    engine.capture()
    token, found = torch.zeros(batch, dtype=torch.long, device=device), []
    for position in range(LENGTH, LENGTH + 16):
        engine.decode(token, position)
    for _ in range(7):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for position in range(LENGTH + 16, LENGTH + 36):
            engine.decode(token, position)
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e-3 / 20)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main(path: str) -> None:
    device = torch.device("cuda")
    with open(path, "w", encoding="utf-8") as file:
        name = torch.cuda.get_device_name()
        file.write(json.dumps({"kind": "header", "device": name, "torch": torch.__version__, "engine": "builtin"}) + "\n")
        for model in MODELS:
            for tp in DEGREES:
                for batch in BATCHES:
                    arch = Job(model, tp=tp, random=True).arch()
                    samples = sorted(step_s(arch, tp, batch, device))
                    row = {"kind": "shard", "model": model, "tp": tp, "batch": batch, "length": LENGTH + 26}
                    row |= {"capacity": LENGTH + 64, "median_s": samples[3], "samples_s": [float(f"{s:.4g}") for s in samples]}
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(row["model"], tp, batch, f"{samples[3] * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
