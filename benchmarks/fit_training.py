"""Fit the constants of training with Megatron on published runs: ``python benchmarks/fit_training.py FILE.csv [FILE.csv ...]``.

Prints the constants as they stand in ``catalog/engines/megatron-bridge.toml`` and ``catalog/kernels``, and the errors on runs of
each release and each chip with constants that were fitted on the others alone. Dense models decide the clocks and what a hidden
collective costs, mixtures then what surrounds experts. Each constant in turn takes the value of a shrinking bracket that has the
least mean absolute error of the logarithm.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commtax.cost.pricing import Terms
from commtax.cost.training import training_bill
from commtax.readers.published import training, training_rows
from commtax.readers.published.rows import read
from commtax.spec import TrainStep
from commtax.verbs.asking import settled, terms_of, unsettled

ENGINE = "megatron-bridge"
RELEASE = re.compile(r"(2\d\.\d\d(?:\.\d\d)?) nemo", re.IGNORECASE)
FORMATS = ("bf16", "fp8", "mxfp8", "nvfp4")
SISTERS = {"b300-sxm": "b200-sxm"}
"""Chips whose clock another one's runs decide too: the same part with more memory."""
Values = dict[str, float]


@dataclass(frozen=True)
class Constant:
    name: str
    start: float
    low: float
    high: float
    dense: bool = True

    def shows_in(self, run: Run) -> bool:
        """Whether a run's price may depend on it."""
        kind, _, which = self.name.partition(".")
        if kind == "clock":
            return SISTERS.get(run.chip, run.chip) == which
        if kind == "share":
            return (run.terms.plan.weights_dtype or "bf16") == which
        moe = run.terms.model.experts
        return bool(moe and moe.bias) if self.name == "biased_passes" else True


CONSTANTS = [
    Constant("clock.h100-sxm", 0.85, 0.5, 1.0),
    Constant("clock.b200-sxm", 0.72, 0.4, 1.0),
    Constant("clock.gb200", 0.66, 0.4, 1.0),
    Constant("clock.gb300", 0.76, 0.4, 1.0),
    Constant("share.mxfp8", 0.93, 0.6, 1.1),
    Constant("share.nvfp4", 1.2, 0.6, 2.4),
    Constant("overlap_efficiency", 0.6, 0.2, 1.0),
    Constant("elementwise_passes", 1.0, 0.7, 3.0),
    Constant("share.bf16", 1.1, 0.6, 1.5, dense=False),
    Constant("routing_passes", 6.0, 0.0, 16.0, dense=False),
    Constant("biased_passes", 20.0, 0.0, 60.0, dense=False),
    Constant("experts_rate", 0.75, 0.3, 1.2, dense=False),
    Constant("expert_host_s", 0.6e-3, 0.1e-3, 1.5e-3, dense=False),
]


@dataclass(frozen=True)
class Run:
    release: str
    chip: str
    model: str
    took_s: float
    terms: Terms
    step: TrainStep
    tokens: float

    @property
    def dense(self) -> bool:
        return self.terms.model.experts is None

    def seconds(self, values: Values) -> float:
        """The step with these constants in place of the catalogue's."""
        t = self.terms
        clock = values[f"clock.{SISTERS.get(self.chip, self.chip)}"]
        habits = {
            k: values[k]
            for k in (
                "overlap_efficiency",
                "elementwise_passes",
                "expert_host_s",
                "routing_passes",
                "experts_rate",
                "biased_passes",
            )
        }
        table = {**t.constants.tables["train.bf16"], "fused": clock}
        clocks = {f"train.{name}": {**table, "clock": clock * values.get(f"share.{name}", 1.0)} for name in FORMATS}
        if self.chip == "h100-sxm":
            clocks.pop("train.bf16")
        constants = replace(t.constants, tables={**t.constants.tables, **clocks})
        return float(training_bill(replace(t, engine=t.engine.but(**habits), constants=constants), self.step, self.tokens).step_s)


def runs_of(path: Path) -> list[Run]:
    """Runs of the engine that can be priced."""
    with path.open(newline="") as file:
        rows = training_rows.whole_rows(list(csv.DictReader(file)))
    made = []
    for row, asked in zip(rows, read(rows, training.describe, training.ask), strict=True):
        if asked.question is None or asked.question["engine"] != ENGINE:
            continue
        options = dict(asked.question)
        model, cluster = options.pop("model"), options.pop("cluster")
        try:
            q = settled(unsettled(model, cluster, {**options, "phase": "train"}))
        except ValueError as error:
            print("left out:", row["model"], row["gpu_type"], error)
            continue
        release = RELEASE.search(row["source"])
        took_s = asked.entries[0].measured
        made.append(Run(release[1] if release else "", cluster.chip.key, model.key, took_s, terms_of(q), q.step, float(q.tokens)))
    return made


def errors(runs: Sequence[Run], values: Values) -> np.ndarray:
    """Predicted over measured, less 1; runs that are the same question are priced once."""
    known: dict[tuple[object, ...], float] = {}
    found = []
    for run in runs:
        key = (run.terms.model.key, run.terms.model.num_layers, run.terms.plan, run.terms.settings, run.chip, run.step, run.tokens)
        if key not in known:
            known[key] = run.seconds(values)
        found.append(known[key] / run.took_s - 1)
    return np.array(found)


def fitted(runs: Sequence[Run], values: Values, sweeps: int = 5) -> Values:
    """Constants that these runs decide; others stay as they are."""
    values = dict(values)
    for dense in (True, False):
        part = [r for r in runs if r.dense == dense]
        for sweep in range(sweeps):
            for c in (c for c in CONSTANTS if c.dense == dense):
                values[c.name] = _best(c, part, values, (c.high - c.low) / 4 / 1.7**sweep)
    return values


def _best(c: Constant, runs: Sequence[Run], values: Values, reach: float) -> float:
    """The best of five values around the present one. A constant that no run shows keeps its own."""
    runs = [run for run in runs if c.shows_in(run)]
    if not runs:
        return values[c.name]

    def loss(value: float) -> float:
        return float(np.mean(np.abs(np.log1p(errors(runs, {**values, c.name: value})))))

    tried = [values[c.name], *(float(np.clip(values[c.name] + d * reach, c.low, c.high)) for d in (-1, -0.5, 0.5, 1))]
    return min(tried, key=loss)


def told(name: str, found: np.ndarray) -> str:
    if not len(found):
        return f"{name}: no rows"
    off = np.abs(found)
    return f"{name}: {len(found)} rows, mean {np.mean(off):.1%}, median {np.median(off):.1%}, bias {np.mean(found):+.1%}"


def left_out(runs: Sequence[Run], group: Callable[[Run], str], kind: str) -> None:
    """Errors on each group with constants fitted on the others; a chip's own clock is then its family's mean."""
    whole: dict[bool, list[float]] = {True: [], False: []}
    for name in sorted({group(r) for r in runs}):
        found = fitted([r for r in runs if group(r) != name], {c.name: c.start for c in CONSTANTS})
        if kind == "chip":
            others = [v for k, v in found.items() if k.startswith("clock.") and not k.endswith(name)]
            found[f"clock.{SISTERS.get(name, name)}"] = float(np.mean(others))
        for dense in (True, False):
            part = [r for r in runs if group(r) == name and r.dense == dense]
            off = errors(part, found)
            whole[dense] += off.tolist()
            print(told(f"{kind} {name} left out, {'dense' if dense else 'mixtures'}", off), flush=True)
    for dense, off in whole.items():
        print(told(f"every {kind} left out in turn, {'dense' if dense else 'mixtures'}", np.array(off)), flush=True)


def main(paths: Sequence[Path]) -> None:
    runs = [run for path in paths for run in runs_of(path)]
    values = fitted(runs, {c.name: c.start for c in CONSTANTS})
    print("constants:", {name: float(f"{value:.3g}") for name, value in values.items()})
    for dense in (True, False):
        print(
            told("all rows, fitted, " + ("dense" if dense else "mixtures"), errors([r for r in runs if r.dense == dense], values))
        )
    left_out(runs, lambda r: r.release, "release")
    left_out(runs, lambda r: r.chip, "chip")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
