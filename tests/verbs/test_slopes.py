"""Slopes of latencies are those of the model, and paces of a deployment are explained and bounded."""

import numpy as np
import pytest

import commtax
from commtax import catalog
from commtax.verbs.why import explained_collective, explained_kernel

ASKED = [
    ("llama-3.1-70b", "8xh100-sxm", {"tp": 4, "engine": "vllm", "concurrency": 64, "input_len": 1024, "output_len": 256}),
    ("llama-3.1-8b", "8xh100-sxm", {"tp": 2, "engine": "sglang", "concurrency": 32, "input_len": 4096, "output_len": 256}),
    (
        "qwen3-235b-a22b",
        "8xb200-sxm",
        {"tp": 8, "ep": 8, "engine": "trtllm", "concurrency": 8, "input_len": 1024, "output_len": 1024},
    ),
    ("llama-3.1-70b", "8xh100-sxm", {"tp": 4, "engine": "vllm", "concurrency": 512, "input_len": 8192, "output_len": 512}),
]
PACED = {
    "pace_products": 1.1,
    "pace_latency": 0.8,
    "pace_wire": 1.2,
    "pace_prompt_steps": 1.15,
    "pace_small": 0.9,
    "pace_prompting": 0.7,
}


@pytest.mark.parametrize(("model", "cluster", "words"), ASKED)
def test_slopes_are_those_of_differences(model, cluster, words):
    usual = commtax.simulate(model, cluster, **words)
    engine = usual.question.engine
    for metric, slopes in usual.slopes.items():
        for name, slope in slopes.items():
            value = getattr(engine.paces if name.startswith("pace_") else engine.host, name)
            if not value:
                continue
            moved = commtax.simulate(model, cluster, **{**words, "engine": engine.but(**{name: value * 1.02})})
            found = np.log(float(getattr(moved, f"{metric}_s") / getattr(usual, f"{metric}_s"))) / np.log(1.02)
            # Slopes leave as it is how many prompts gather while they stop decoding.
            off = 0.07 if metric == "ttft" and engine.serves.prefill_first else 0.025
            assert float(slope) == pytest.approx(found, abs=off), (metric, name)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_explained_parts_add_up_at_any_pace(phase):
    engine = catalog.engine("vllm").but(**PACED)
    bill = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=4, phase=phase, batch=4, context=1024, engine=engine)
    for line in bill.items:
        if line.kind != "host":
            explained = (explained_kernel if line.kind == "compute" else explained_collective)(bill, line)
            assert sum(part.seconds for part in explained.parts) == pytest.approx(float(line.each_s)), line.item.what


def test_no_pace_beats_the_chip():
    names = [name for name in catalog.engine("vllm").paces.__class__.__dataclass_fields__ if name.startswith("pace_")]
    fast = catalog.engine("vllm").but(**dict.fromkeys(names, 0.01))
    for phase in ("decode", "prefill"):
        bill = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=1, phase=phase, batch=8, context=2048, engine=fast)
        kernels = sum(float(x.total_s) for x in bill.lines if x.kind == "compute")
        # Kernels may find what was just written in the chip's cache, which the step's own floor does not count.
        assert kernels >= 0.97 * float(bill.least_s(bill.question.cluster.chip.memory_Bps))
