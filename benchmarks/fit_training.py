"""Fit the constants of training with Megatron on published runs: ``python benchmarks/fit_training.py FILE.csv [FILE.csv ...]``.

Prints the constants as they stand in ``catalog/engines/megatron-bridge.toml`` and ``catalog/kernels``, the errors on runs of each
release and each chip with constants that were fitted on the others alone, and the spread of those errors, which is the range.
Dense models decide the clocks, mixtures then what surrounds experts. Each constant in turn
takes the value of a shrinking bracket that has the least mean absolute error of the logarithm; rates of kernels stay between 0.7
and 1.4. Runs of adapters alone (LoRA) decide nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commtax.cost.kernel import PricingTerms
from commtax.cost.training import training_bill
from commtax.spec import TrainStep
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published import training, training_rows
from commtax_lab.published.rows import Row, cell, read
from commtax_lab.published.tables import Table
from commtax_lab.published.tables import read as read_table

ENGINE = "megatron-bridge"
RELEASE = re.compile(r"(2\d\.\d\d(?:\.\d\d)?) nemo", re.IGNORECASE)
FORMATS = ("bf16", "fp8", "mxfp8", "nvfp4")
SISTERS = {"b300-sxm": "b200-sxm"}
"""Chips whose clock another one's runs decide too: the same part with more memory."""
Z80 = 1.2816
Values = dict[str, float]


@dataclass(frozen=True)
class Constant:
    """``kind.which`` of a chip or a number format, ``habit@version`` of the engine, or a habit of all its versions."""

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
        if "@" in self.name:
            return run.terms.engine.version == self.name.partition("@")[2]
        moe = run.terms.model.experts
        return bool(moe and moe.bias) if self.name == "biased_passes" else True


CONSTANTS = [
    Constant("clock.h100-sxm", 0.8, 0.7, 1.0),
    Constant("clock.b200-sxm", 0.75, 0.7, 1.0),
    Constant("clock.gb200", 0.72, 0.7, 1.0),
    Constant("clock.gb300", 0.8, 0.7, 1.0),
    Constant("share.mxfp8", 0.9, 0.7, 1.1),
    Constant("share.nvfp4", 1.3, 0.7, 1.4),
    Constant("share.bf16", 1.2, 0.7, 1.4, dense=False),
    Constant("routing_passes@26.04", 7.0, 0.0, 16.0, dense=False),
    Constant("biased_passes", 30.0, 0.0, 60.0, dense=False),
    Constant("experts_rate", 0.9, 0.7, 1.4, dense=False),
    Constant("layer_host_s", 4.5e-3, 0.0, 12e-3, dense=False),
    Constant("expert_host_s", 0.3e-3, 0.0, 0.6e-3, dense=False),
    Constant("sync_s", 1.2e-3, 0.0, 4e-3, dense=False),
]


@dataclass(frozen=True)
class Run:
    release: str
    chip: str
    model: str
    took_s: float
    terms: PricingTerms
    step: TrainStep
    tokens: float

    @property
    def dense(self) -> bool:
        return self.terms.model.experts is None

    @property
    def adapters(self) -> bool:
        return self.terms.plan.lora_rank > 0

    @property
    def kind(self) -> str:
        return "LoRA" if self.adapters else "dense" if self.dense else "mixtures"

    def seconds(self, values: Values) -> float:
        """The step with these constants in place of the catalogue's."""
        t = self.terms
        clock = values[f"clock.{SISTERS.get(self.chip, self.chip)}"]
        named = ((name.partition("@"), value) for name, value in values.items() if "." not in name.partition("@")[0])
        habits = {name: value for (name, _, version), value in named if version in ("", t.engine.version)}
        table = {**t.constants.tables["train.bf16"], "fused": clock}
        clocks = {f"train.{name}": {**table, "clock": clock * values.get(f"share.{name}", 1.0)} for name in FORMATS}
        if self.chip == "h100-sxm":
            clocks.pop("train.bf16")
        constants = replace(t.constants, tables={**t.constants.tables, **clocks})
        return float(training_bill(replace(t, engine=t.engine.but(**habits), constants=constants), self.step, self.tokens).step_s)


def rows_of(path: Path) -> list[Row]:
    return training_rows.whole_rows(Table(path.name, "training_runs", *read_table(path), folder=path.parent).dicts())


def runs_of(path: Path) -> Iterator[Run]:
    """Runs of the engine that can be priced."""
    rows = rows_of(path)
    for row, asked in zip(rows, read(rows, training.describe, training.ask), strict=True):
        if asked.question is None or not str(asked.question["engine"]).startswith(ENGINE):
            continue
        options = dict(asked.question)
        model, cluster = options.pop("model"), options.pop("cluster")
        try:
            q = settle(resolve_question(model, cluster, {**options, "phase": "train"}))
        except ValueError as error:
            print("left out:", row["model"], row["gpu_type"], error)
            continue
        found = RELEASE.search(cell(row, "source"))
        took_s = asked.entries[0].measured
        release = found[1] if found else ""
        yield Run(release, cluster.chip.key, model.key, took_s, terms_of(q), q.step, float(q.tokens))


def errors(runs: Sequence[Run], values: Values) -> np.ndarray:
    """Predicted over measured, less 1; runs that are the same question are priced once."""
    known: dict[tuple[object, ...], float] = {}
    found = []
    for run in runs:
        t = run.terms
        key = (t.model.key, t.model.num_layers, t.plan, t.settings, t.engine.version, run.chip, run.step, run.tokens)
        if key not in known:
            known[key] = run.seconds(values)
        found.append(known[key] / run.took_s - 1)
    return np.array(found)


def fitted(runs: Sequence[Run], values: Values, sweeps: int = 3) -> Values:
    """Constants that these runs decide; others stay as they are."""
    values = dict(values)
    for dense in (True, False):
        part = [r for r in runs if r.dense == dense and not r.adapters]
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
    off, spread = np.abs(found), np.quantile(np.abs(np.log1p(found)), 0.8) / Z80
    middle = f"mean {np.mean(off):.1%}, median {np.median(off):.1%}, bias {np.mean(found):+.1%}"
    return f"{name}: {len(found)} rows, {middle}, sigma of the range that covers 80 %: {spread:.3f}"


def left_out(runs: Sequence[Run], group: Callable[[Run], str], kind: str) -> None:
    """Errors on each group with constants fitted on the others; a chip's own clock is then its family's mean."""
    whole: dict[str, list[float]] = {}
    for name in sorted({group(r) for r in runs}):
        found = fitted([r for r in runs if group(r) != name], {c.name: c.start for c in CONSTANTS})
        if kind == "chip":
            others = [v for k, v in found.items() if k.startswith("clock.") and not k.endswith(name)]
            found[f"clock.{SISTERS.get(name, name)}"] = float(np.mean(others))
        for part in ("dense", "mixtures", "LoRA"):
            off = errors([r for r in runs if group(r) == name and r.kind == part], found)
            whole.setdefault(part, []).extend(off.tolist())
            if len(off):
                print(told(f"{kind} {name} left out, {part}", off), flush=True)
    for part, off in whole.items():
        print(told(f"every {kind} left out in turn, {part}", np.array(off)), flush=True)


def main(paths: Sequence[Path]) -> None:
    runs = [run for path in paths for run in runs_of(path)]
    values = fitted(runs, {c.name: c.start for c in CONSTANTS})
    print("constants:", {name: float(f"{value:.3g}") for name, value in values.items()})
    for part in ("dense", "mixtures", "LoRA"):
        print(told(f"all rows, fitted, {part}", errors([r for r in runs if r.kind == part], values)))
    left_out(runs, lambda r: r.release, "release")
    left_out(runs, lambda r: r.chip, "chip")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
