"""Fit the constants of training with FSDP and ZeRO on published runs: ``python benchmarks/fit_fsdp.py FILE.csv [FILE.csv ...]``.

The files have the columns of ``training_runs.csv``; ``benchmarks/torch_runs.csv`` is read beside them. Prints each constant as it
stands in ``catalog/engines`` and ``catalog/kernels``, fitted on its own rows, and the errors on rows that were left out:

* element-wise passes and the Triton kernel's rates: llm-foundry in bf16 on at most 64 GPUs; larger clusters, fp8 and each model
  size in turn are left out;
* how the clock follows the power limit: torchao's runs in bf16 and with a scale a tensor; no row of torchtitan's is fitted. The
  same fitted on torchtitan's rows of the other models and of the other numbers of GPUs stands beside it;
* bytes of a cast with a scale a row: torchao's third run;
* what ZeRO-3 of 2021 leaves of the network: rows of the smaller model; the larger one's are left out, and each in turn.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from commtax.cost import kernels, train_kernels
from commtax.cost import training as steps
from commtax.cost.kernel import PricingTerms
from commtax.cost.tensors import ROWWISE
from commtax.spec import TrainStep
from commtax.verbs.settling import resolve_question, settle, terms_of
from commtax_lab.published import training
from commtax_lab.published.rows import Row, read

OWN = Path(__file__).parent / "torch_runs.csv"
LARGE = 64
SWEEPS = 6
SMALLER = "GPT-175B"
Values = dict[str, float]


@dataclass(frozen=True)
class Constant:
    name: str
    low: float
    high: float


PASSES = Constant("eager_passes", 1.0, 4.0)
TRITON = [Constant("triton.hopper", 0.15, 0.6), Constant("triton.ampere", 0.3, 1.0)]
POWER = Constant("clock_of_power", 0.1, 1.5)
CAST = Constant("cast_bytes", 5.0, 60.0)
GATHERS = Constant("gather_rate", 0.02, 1.0)


@dataclass(frozen=True)
class Run:
    row: Row
    took_s: float
    terms: PricingTerms
    step: TrainStep
    tokens: float

    @property
    def engine(self) -> str:
        return self.terms.engine.key

    @property
    def gpus(self) -> int:
        return int(self.row["gpus"])

    def seconds(self, values: Values) -> float:
        """The step with these constants in place of the catalogue's."""
        t, family = self.terms, self.terms.cluster.chip.family
        habits = {k: v for k, v in values.items() if k in (PASSES.name, GATHERS.name)}
        table = dict(t.constants.tables["train.bf16"])
        table |= {"triton": values.get(f"triton.{family}", table["triton"])}
        kernels.CLOCK_OF_POWER = values.get(POWER.name, kernels.CLOCK_OF_POWER)
        train_kernels.CAST_BYTES[ROWWISE] = values.get(CAST.name, train_kernels.CAST_BYTES[ROWWISE])
        constants = replace(t.constants, tables={**t.constants.tables, "train.bf16": table})
        return float(
            steps.training_bill(replace(t, engine=t.engine.but(**habits), constants=constants), self.step, self.tokens).step_s
        )


def runs_of(path: Path) -> list[Run]:
    """Rows of engines that shard their parameters, as far as they can be priced."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    made = []
    for row, asked in zip(rows, read(rows, training.describe, training.ask), strict=True):
        if asked.question is None or "megatron" in asked.question["engine"]:
            continue
        options = dict(asked.question)
        model, cluster = options.pop("model"), options.pop("cluster")
        q = settle(resolve_question(model, cluster, {**options, "phase": "train"}))
        made.append(Run(row, asked.entries[0].measured, terms_of(q), q.step, float(q.tokens)))
    return made


def errors(runs: Sequence[Run], values: Values) -> np.ndarray:
    """Predicted over measured, less 1."""
    return np.array([run.seconds(values) / run.took_s - 1 for run in runs])


def fitted(constants: Iterable[Constant], runs: Sequence[Run], values: Values, first: int = 0) -> Values:
    """Each constant in turn takes the best of a shrinking bracket, by the mean absolute logarithm of the errors.

    Those that begin beside the answer need the last brackets alone (``first``).
    """
    constants, values = list(constants), dict(values)
    for sweep in range(first, SWEEPS):
        for c in constants:
            reach = (c.high - c.low) / 3 / 2**sweep
            tried = [values[c.name], *(float(np.clip(values[c.name] + d * reach, c.low, c.high)) for d in (-1, 1))]
            values[c.name] = min(tried, key=lambda v, c=c: loss(runs, {**values, c.name: v}))
    return values


def loss(runs: Sequence[Run], values: Values) -> float:
    return float(np.mean(np.abs(np.log1p(errors(runs, values)))))


def told(name: str, found: np.ndarray) -> str:
    if not len(found):
        return f"  {name}: no rows"
    size = np.abs(found)
    return f"  {name}: {len(found)} rows, mean {size.mean():.1%}, median {np.median(size):.1%}, bias {found.mean():+.1%}"


def left_out(constants: Sequence[Constant], runs: Sequence[Run], start: Values, of: Callable[[Run], object], name: str) -> None:
    """Errors on each group with constants that the others decided."""
    found = []
    for group in sorted({of(r) for r in runs}, key=str):
        values = fitted(constants, [r for r in runs if of(r) != group], start, SWEEPS // 2)
        found.append(errors([r for r in runs if of(r) == group], values))
        print(told(f"without {group}", found[-1]))
    print(told(f"each {name} left out", np.concatenate(found)))


def foundry(runs: Sequence[Run]) -> None:
    rows = [r for r in runs if r.engine == "llm-foundry"]
    start = {PASSES.name: 2.0, "triton.hopper": 0.3, "triton.ampere": 0.65}
    seen = [r for r in rows if r.gpus <= LARGE and "fp8" not in r.row["precision"]]
    values = fitted([PASSES, *TRITON], seen, start)
    print("llm-foundry:", _short(values))
    print(told("all", errors(rows, values)))
    print(told(f"more than {LARGE} GPUs, not fitted", errors([r for r in rows if r.gpus > LARGE], values)))
    print(told("fp8, not fitted", errors([r for r in rows if "fp8" in r.row["precision"]], values)))
    left_out([PASSES, *TRITON], rows, values, lambda r: r.row["model"], "model")


def titan(runs: Sequence[Run], own: Sequence[Run]) -> None:
    rows = [r for r in runs if r.engine == "torchtitan"]
    plain, by_rows = ([r for r in own if (r.terms.plan.weights_dtype == ROWWISE) == kind] for kind in (False, True))
    values = fitted([POWER], plain, {POWER.name: 0.5})
    values = fitted([CAST], by_rows, {**values, CAST.name: 10.0})
    print("torchtitan, constants of torchao's runs:", _short(values))
    print(told("all, not fitted", errors(rows, values)))
    for model in sorted({r.row["model"] for r in rows}):
        print(told(model, errors([r for r in rows if r.row["model"] == model], values)))
    print("torchtitan, constants of its own rows:", _short(fitted([POWER, CAST], rows, values)))
    left_out([POWER, CAST], rows, values, lambda r: r.row["model"], "model")
    left_out([POWER, CAST], rows, values, lambda r: r.gpus, "number of GPUs")
    left_out([POWER, CAST], rows, values, lambda r: r.row["source"], "report")


def zero(runs: Sequence[Run]) -> None:
    rows = [r for r in runs if r.engine == "deepspeed-2021"]
    values = fitted([GATHERS], [r for r in rows if r.row["model"] == SMALLER], {GATHERS.name: 0.2})
    print(f"ZeRO-3 of 2021, constants of {SMALLER}:", _short(values))
    print(told("the other model, not fitted", errors([r for r in rows if r.row["model"] != SMALLER], values)))
    print(told("all", errors(rows, values)))
    left_out([GATHERS], rows, values, lambda r: r.row["model"], "model")
    left_out([GATHERS], rows, values, lambda r: r.gpus, "number of GPUs")


def _short(values: Values) -> Values:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def main(paths: Sequence[str]) -> None:
    runs = [run for path in paths for run in runs_of(Path(path))]
    zero(runs)
    titan(runs, runs_of(OWN))
    foundry(runs)


if __name__ == "__main__":
    main(sys.argv[1:])
