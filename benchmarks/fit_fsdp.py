"""Fit the constants of training with FSDP and ZeRO on published runs: ``python benchmarks/fit_fsdp.py FILE.csv [FILE.csv ...]``.

The files have the columns of ``training_runs.csv``; ``benchmarks/torch_runs.csv`` is read beside them. Prints each constant as it
stands in ``catalog/engines`` and ``catalog/kernels``, fitted on its own rows, and the errors on rows that were left out:

* element-wise passes and the Triton kernel's rates: llm-foundry in bf16 on at most 64 GPUs; larger clusters, fp8 and each model
  size left out in turn;
* how the clock follows the power limit: torchao's runs in bf16 and with a scale a tensor; no row of torchtitan's is fitted. The
  same fitted on torchtitan's rows of the other models and of the other numbers of GPUs stands beside it;
* bytes of a cast with a scale a row: torchao's third run;
* what ZeRO-3 of 2021 leaves of the network: rows of the smaller model; the larger one's are left out, and each in turn.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from fitting import Array
from training_fits import Constant, Run, Values, runs_of, search, tell_left_out, told

from commtax.cost import kernels, train_kernels
from commtax.cost.inventory import ROWWISE

OWN = Path(__file__).parent / "torch_runs.csv"
LARGE = 64
SWEEPS = 6
SMALLER = "GPT-175B"
PASSES = Constant("eager_passes", 1.0, 4.0)
TRITON = [Constant("triton.hopper", 0.15, 0.6), Constant("triton.ampere", 0.3, 1.0)]
POWER = Constant("clock_of_power", 0.1, 1.5)
CAST = Constant("cast_bytes", 5.0, 60.0)
GATHERS = Constant("gather_rate", 0.02, 1.0)


def seconds(run: Run, values: Values) -> float:
    """The step with these constants in place of the catalogue's."""
    table = run.terms.constants.tables["train.bf16"]
    triton = values.get(f"triton.{run.terms.cluster.chip.family}", table["triton"])
    kernels.CLOCK_OF_POWER = values.get(POWER.name, kernels.CLOCK_OF_POWER)
    train_kernels.CAST_BYTES[ROWWISE] = values.get(CAST.name, train_kernels.CAST_BYTES[ROWWISE])
    habits = {name: value for name, value in values.items() if name in (PASSES.name, GATHERS.name)}
    return run.seconds(habits, {"train.bf16": {**table, "triton": triton}})


def errors(runs: Sequence[Run], values: Values) -> Array:
    """Predicted over measured, less 1."""
    return np.array([seconds(run, values) / run.took_s - 1 for run in runs])


def fit(constants: Sequence[Constant], runs: Sequence[Run], values: Values, first: int = 0) -> Values:
    """Constants that begin beside the answer need the last sweeps alone (``first``)."""
    return search(constants, lambda _: runs, values, errors, range(first, SWEEPS))


def tell_without(constants: Sequence[Constant], runs: Sequence[Run], start: Values, of: Callable[[Run], object], name: str) -> None:
    """Errors on each group with constants that the others decided."""
    tell_left_out(runs, of, {"": lambda _: True}, name, lambda _, others: fit(constants, others, start, SWEEPS // 2), errors)


def gpus(run: Run) -> int:
    return int(run.row["gpus"])


def is_fp8(run: Run) -> bool:
    return "fp8" in run.row["precision"]


def model(run: Run) -> str:
    return run.row["model"]


def fit_foundry(runs: Sequence[Run]) -> None:
    start = {PASSES.name: 2.0, "triton.hopper": 0.3, "triton.ampere": 0.65}
    values = fit([PASSES, *TRITON], [run for run in runs if gpus(run) <= LARGE and not is_fp8(run)], start)
    print("llm-foundry:", _short(values))
    print(told("  all", errors(runs, values)))
    print(told(f"  more than {LARGE} GPUs, not fitted", errors([run for run in runs if gpus(run) > LARGE], values)))
    print(told("  fp8, not fitted", errors([run for run in runs if is_fp8(run)], values)))
    tell_without([PASSES, *TRITON], runs, values, model, "model")


def fit_titan(runs: Sequence[Run], own: Sequence[Run]) -> None:
    plain, by_rows = ([run for run in own if (run.terms.plan.weights_dtype == ROWWISE) == kind] for kind in (False, True))
    values = fit([POWER], plain, {POWER.name: 0.5})
    values = fit([CAST], by_rows, {**values, CAST.name: 10.0})
    print("torchtitan, constants of torchao's runs:", _short(values))
    print(told("  all, not fitted", errors(runs, values)))
    for name in sorted({model(run) for run in runs}):
        print(told(f"  {name}", errors([run for run in runs if model(run) == name], values)))
    print("torchtitan, constants of its own rows:", _short(fit([POWER, CAST], runs, values)))
    for of, name in ((model, "model"), (gpus, "number of GPUs"), (lambda run: run.row["source"], "report")):
        tell_without([POWER, CAST], runs, values, of, name)


def fit_zero(runs: Sequence[Run]) -> None:
    values = fit([GATHERS], [run for run in runs if model(run) == SMALLER], {GATHERS.name: 0.2})
    print(f"ZeRO-3 of 2021, constants of {SMALLER}:", _short(values))
    print(told("  the other model, not fitted", errors([run for run in runs if model(run) != SMALLER], values)))
    print(told("  all", errors(runs, values)))
    tell_without([GATHERS], runs, values, model, "model")
    tell_without([GATHERS], runs, values, gpus, "number of GPUs")


def _short(values: Values) -> Values:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def runs_in(path: Path) -> list[Run]:
    """Runs of engines that shard their parameters."""
    with path.open(newline="") as file:
        return list(runs_of(list(csv.DictReader(file)), lambda engine: "megatron" not in engine))


def main(paths: Sequence[str]) -> None:
    runs = [run for path in paths for run in runs_in(Path(path))]
    by_engine = {name: [run for run in runs if run.engine == name] for name in ("deepspeed-2021", "torchtitan", "llm-foundry")}
    fit_zero(by_engine["deepspeed-2021"])
    fit_titan(by_engine["torchtitan"], runs_in(OWN))
    fit_foundry(by_engine["llm-foundry"])


if __name__ == "__main__":
    main(sys.argv[1:])
