"""What one profiled step teaches of others: ``python benchmarks/profiled_steps.py [FOLDER]``.

Decode steps of a Llama 8B of plain torch on an H200: each batch's trace is shown to ``calibrate`` in turn,
and the steps of the others, timed without a profiler, are predicted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import commtax
from commtax.runs.calibrate.calibration import calibrate

MODEL, CLUSTER, CONTEXT = "llama-3.1-8b", "8xh200-sxm", 2048
FOLDER = Path(__file__).parent / "h200/profiled"


def main(folder: Path) -> None:
    steps = {step["batch"]: step["median_s"] for step in json.loads((folder / "steps.json").read_text())["steps"]}
    usual = {batch: commtax.bill(MODEL, CLUSTER, engine="torch", tp=1, batch=batch, context=CONTEXT) for batch in steps}
    before, after, inside = [], [], []
    for shown in steps:
        found = calibrate([folder / f"decode_b{shown}.json.gz"], CLUSTER, model=MODEL, engine="torch", tp=1, input_len=CONTEXT)
        parts = {x.metric: f"{x.measured_s / x.catalogue_s:.2f}" for x in found.profile.lessons}
        print(f"batch {shown}: measured over the catalogue's {parts}")
        for batch, seconds in steps.items():
            if batch != shown:
                told = commtax.bill(MODEL, CLUSTER, engine="torch", tp=1, batch=batch, context=CONTEXT, profile=found.profile)
                before.append(abs(float(usual[batch].step_s) / seconds - 1))
                after.append(abs(float(told.step_s) / seconds - 1))
                inside.append(float(told.low_s) <= seconds <= float(told.high_s))
    words = [f"{np.median(x):.1%} off, at worst {max(x):.0%}" for x in (before, after)]
    print(f"the others: {words[0]} by the catalogue alone; {words[1]} with one trace, {np.mean(inside):.0%} inside the 80 % range")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
