"""Slopes of latencies are those of the model, and paces of a deployment are explained and bounded."""

import numpy as np
import pytest

import commtax
from commtax import catalog
from commtax.verbs.why import explained_collective, explained_kernel
from tables import tables

DATA = tables(__file__)

ASKED = DATA["asked"]
PACED = DATA["paced"]


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
