"""Fit the constants of training with Megatron on published runs: ``python benchmarks/fit_training.py FILE.csv [FILE.csv ...]``.

Prints the constants as they stand in ``catalog/engines/megatron-bridge.toml`` and ``catalog/kernels``, the errors on runs of each
release and each chip with constants that were fitted on the others alone (each left out in turn), and the spread of those errors,
which is the range. Dense models decide the clocks, mixtures then what surrounds experts; rates of kernels stay between 0.7 and 1.4.
Runs of adapters alone (LoRA) decide nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fitting import Array
from training_fits import Constant, Run, Values, runs_of, search, tell_left_out, told

from commtax_lab.published import training
from commtax_lab.published.rows import cell
from commtax_lab.published.tables import Table
from commtax_lab.published.tables import read as read_table

ENGINE = "megatron-bridge"
RELEASE = re.compile(r"(2\d\.\d\d(?:\.\d\d)?) nemo", re.IGNORECASE)
FORMATS = ("bf16", "fp8", "mxfp8", "nvfp4")
SISTERS = {"b300-sxm": "b200-sxm"}
"""Chips whose clock another one's runs decide too: the same part with more memory."""
SWEEPS = range(3)


@dataclass(frozen=True)
class MegatronConstant(Constant):
    """``kind.which`` of a chip or a number format, ``habit@version`` of the engine, or a habit of all its versions."""

    start: float = 0.0
    dense: bool = True
    steps: tuple[float, ...] = (-1 / 4, -1 / 8, 1 / 8, 1 / 4)
    shrinks: float = 1.7

    def shows_in(self, run: Run) -> bool:
        """Whether a run's price may depend on it."""
        kind, _, which = self.name.partition(".")
        if kind == "clock":
            return clock_of(run.chip) == self.name
        if kind == "share":
            return (run.terms.plan.weights_dtype or "bf16") == which
        if "@" in self.name:
            return run.terms.engine.version == self.name.partition("@")[2]
        moe = run.terms.model.experts
        return bool(moe and moe.bias) if self.name == "biased_passes" else True


CONSTANTS = [
    MegatronConstant("clock.h100-sxm", 0.7, 1.0, start=0.8),
    MegatronConstant("clock.b200-sxm", 0.7, 1.0, start=0.75),
    MegatronConstant("clock.gb200", 0.7, 1.0, start=0.72),
    MegatronConstant("clock.gb300", 0.7, 1.0, start=0.8),
    MegatronConstant("share.mxfp8", 0.7, 1.1, start=0.9),
    MegatronConstant("share.nvfp4", 0.7, 1.4, start=1.3),
    MegatronConstant("share.bf16", 0.7, 1.4, start=1.2, dense=False),
    MegatronConstant("routing_passes@26.04", 0.0, 16.0, start=7.0, dense=False),
    MegatronConstant("biased_passes", 0.0, 60.0, start=30.0, dense=False),
    MegatronConstant("experts_rate", 0.7, 1.4, start=0.9, dense=False),
    MegatronConstant("layer_host_s", 0.0, 12e-3, start=4.5e-3, dense=False),
    MegatronConstant("expert_host_s", 0.0, 0.6e-3, start=0.3e-3, dense=False),
    MegatronConstant("sync_s", 0.0, 4e-3, start=1.2e-3, dense=False),
]
START = {c.name: c.start for c in CONSTANTS}
KINDS: dict[str, Callable[[Run], bool]] = {
    ", dense": lambda run: not adapts(run) and is_dense(run),
    ", mixtures": lambda run: not adapts(run) and not is_dense(run),
    ", LoRA": lambda run: adapts(run),
}


def is_dense(run: Run) -> bool:
    return run.terms.model.experts is None


def adapts(run: Run) -> bool:
    return run.terms.plan.lora_rank > 0


def release_of(run: Run) -> str:
    found = RELEASE.search(cell(run.row, "source"))
    return found[1] if found else ""


def clock_of(chip: str) -> str:
    return f"clock.{SISTERS.get(chip, chip)}"


def seconds(run: Run, values: Values) -> float:
    """The step with these constants in place of the catalogue's."""
    t, clock = run.terms, values[clock_of(run.chip)]
    named = ((name.partition("@"), value) for name, value in values.items() if "." not in name.partition("@")[0])
    habits = {name: value for (name, _, version), value in named if version in ("", t.engine.version)}
    table = {**t.constants.tables["train.bf16"], "fused": clock}
    clocks = {f"train.{name}": {**table, "clock": clock * values.get(f"share.{name}", 1.0)} for name in FORMATS}
    if run.chip == "h100-sxm":
        clocks.pop("train.bf16")
    return run.seconds(habits, clocks)


def errors(runs: Sequence[Run], values: Values) -> Array:
    """Predicted over measured, less 1; runs that are the same question are priced once."""
    known: dict[tuple[object, ...], float] = {}
    found = []
    for run in runs:
        t = run.terms
        key = (t.model.key, t.model.num_layers, t.plan, t.settings, t.engine.version, run.chip, run.step, run.tokens)
        if key not in known:
            known[key] = seconds(run, values)
        found.append(known[key] / run.took_s - 1)
    return np.array(found)


def fit(runs: Sequence[Run]) -> Values:
    """Constants that these runs decide; others stay as they are."""
    values = START
    for dense in (True, False):
        part = [run for run in runs if is_dense(run) == dense and not adapts(run)]
        own = [c for c in CONSTANTS if c.dense == dense]
        values = search(own, lambda c, part=part: [run for run in part if c.shows_in(run)], values, errors, SWEEPS)
    return values


def fit_without_chip(chip: str, runs: Sequence[Run]) -> Values:
    """A chip's own clock is its family's mean."""
    values = fit(runs)
    others = [value for name, value in values.items() if name.startswith("clock.") and not name.endswith(chip)]
    return {**values, clock_of(chip): float(np.mean(others))}


def runs_in(path: Path) -> list[Run]:
    rows = training.whole_rows(Table(path.name, "training_runs", *read_table(path), folder=path.parent).dicts())
    return list(runs_of(rows, lambda engine: engine.startswith(ENGINE)))


def main(paths: Sequence[Path]) -> None:
    runs = [run for path in paths for run in runs_in(path)]
    values = fit(runs)
    print("constants:", {name: float(f"{value:.3g}") for name, value in values.items()})
    for kind, is_kind in KINDS.items():
        print(told(f"all rows, fitted{kind}", errors([run for run in runs if is_kind(run)], values)))
    tell_left_out(runs, release_of, KINDS, "release", lambda _, others: fit(others), errors)
    tell_left_out(runs, lambda run: run.chip, KINDS, "chip", fit_without_chip, errors)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
