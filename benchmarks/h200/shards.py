"""Decode steps of single shards of the built-in engine on one GPU: what a rank computes at TP N, without its collectives.

PYTHONPATH=src python benchmarks/h200/shards.py OUT.jsonl [MODEL,MODEL…] [LENGTH]        (torch and NumPy only)
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch

from commtax.cost.inventory import num_params
from commtax_lab.measure.arch import Arch
from commtax_lab.measure.comm import RankGroup
from commtax_lab.measure.engine import LiveEngine
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.weights import RandomWeights, load

MODELS = ("llama-3.1-8b", "llama-3.2-3b", "qwen3-8b", "llama-2-7b", "llama-3.2-1b")
DEGREES, BATCHES = (1, 2, 4, 8), (1, 8, 32, 128)
ROOM = 120e9  # bytes of weights that one GPU holds beside a cache


class Silent:
    """Carries nothing: a shard computes what it would, and nobody answers."""

    def all_reduce(self, tensor: Any) -> None: ...

    def all_gather(self, whole: Any, part: Any) -> None: ...


def step_s(arch: Arch, tp: int, batch: int, length: int, device: Any) -> list[float]:
    """Seconds of replayed decode steps over about ``length`` cached tokens."""
    source = RandomWeights(0, torch.bfloat16, device)
    engine = LiveEngine(arch, load(source, arch, 0, tp, torch.bfloat16, device), RankGroup(0, tp, Silent()), batch, length + 64)
    engine.prefill(torch.zeros((batch, length), dtype=torch.long, device=device))
    engine.capture()
    token, found = torch.zeros(batch, dtype=torch.long, device=device), []
    for position in range(length, length + 16):
        engine.decode(token, position)
    for _ in range(7):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for position in range(length + 16, length + 36):
            engine.decode(token, position)
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e-3 / 20)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main(path: str, models: tuple[str, ...] = MODELS, length: int = 512) -> None:
    device = torch.device("cuda")
    with open(path, "w", encoding="utf-8") as file:
        name = torch.cuda.get_device_name()
        file.write(json.dumps({"kind": "header", "device": name, "torch": torch.__version__, "engine": "builtin"}) + "\n")
        for model in models:
            for tp in DEGREES:
                for batch in BATCHES:
                    arch = LiveJob(model, tp=tp, random=True).arch()
                    if 2 * num_params(arch.model) / tp > ROOM:
                        continue
                    samples = sorted(step_s(arch, tp, batch, length, device))
                    row = {"kind": "step", "phase": "decode", "engine": "torch", "batch": batch, "model": model, "tp": tp}
                    row |= {
                        "dtype": "bf16",
                        "length": length + 64,  # a captured step reads all positions
                        "median_s": samples[3],
                        "samples_s": [float(f"{s:.4g}") for s in samples],
                    }
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(row["model"], tp, batch, f"{samples[3] * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *([tuple(sys.argv[2].split(","))] if len(sys.argv) > 2 else []), *(int(x) for x in sys.argv[3:]))
