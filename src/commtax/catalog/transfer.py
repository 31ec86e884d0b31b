"""How sure a prediction of a whole run is, by what it shares with the runs that engines' times were fitted on: ``transfer.toml``
says how far predictions are off for engines, chips, families of models, publishers and files that were left out of the fit."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from commtax.catalog.hardware import chip as chip_of
from commtax.files import table
from commtax.records import dataclass
from commtax.spec import ARITHMETIC, Chip, Engine, Model

MULTIPLIED = ("fp8", "nvfp4")  # as they are where a chip has the arithmetic; elsewhere they are unpacked to 16 bits
BESIDE = ("chip", "dtype", "family", "publisher")  # what runs of an engine differ in


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is, as far as runs were pooled by it."""

    engine: str
    chip: str
    dtype: str  # of weights
    family: str  # the architecture that a config names
    unpacked: bool = False  # the chip has no arithmetic for the format
    gpu: tuple[str, float] = ("", 0.0)  # its compute capability and memory bandwidth: B200's GPU in a GB200 is the same one
    publisher: str = ""  # who measures; "": somebody whose runs nobody has seen

    @classmethod
    def of(cls, engine: Engine, chip: Chip, model: Model, dtype: str = "", publisher: str = "") -> "Setting":
        stored = dtype or (model.quant.dtype if model.quant else model.dtype)
        dtype = "bf16" if stored in ("fp16", "fp32") else stored
        return cls(engine.key, chip.key, dtype, model.architecture, unpacks(chip, dtype), gpu(chip), publisher)


def gpu(chip: Chip) -> tuple[str, float]:
    return chip.compute_capability, chip.memory_Bps


def unpacks(chip: Chip, dtype: str) -> bool:
    """Return whether a chip lacks the arithmetic of weights that others multiply as they are."""
    return dtype in MULTIPLIED and ARITHMETIC.get(dtype, dtype) not in chip.flops_per_s


@lru_cache(maxsize=1)
def _transfer() -> dict[str, Any]:
    return table("catalog/transfer.toml")


def fitted_runs() -> Sequence[Mapping[str, str]]:
    """Engine, version, chip, number format, family and model of the runs that constants were fitted on."""
    runs: Sequence[Mapping[str, str]] = _transfer()["run"]
    return runs


def _shares(run: Mapping[str, str], setting: Setting, level: str) -> bool:
    """Return whether a run had the same of a level: of chips the same GPU, of number formats also multiplied in the same way."""
    same = run[level] == getattr(setting, level) or (level == "chip" and gpu(chip_of(run["chip"])) == setting.gpu)
    return same and (level != "dtype" or unpacks(chip_of(run["chip"]), run["dtype"]) == setting.unpacked)


@lru_cache(maxsize=1024)
def is_measured(setting: Setting) -> bool:
    """Return whether this engine ran on this very chip with weights in this format."""
    here = [run for run in fitted_runs() if run["chip"] == setting.chip]
    return any(all(_shares(run, setting, level) for level in ("engine", "dtype")) for run in here)


@lru_cache(maxsize=1024)
def unseen_levels(setting: Setting) -> tuple[str, ...]:
    """Return those of engine, chip, number format, family and publisher that no run had: with this engine where it ran."""
    runs = fitted_runs()
    same_engine = [run for run in runs if run["engine"] == setting.engine]
    strange = tuple(level for level in BESIDE if not any(_shares(run, setting, level) for run in same_engine or runs))
    return strange if same_engine else ("engine", *strange)


@lru_cache(maxsize=1024)
def sigma(setting: Setting, metric: str, mixture: bool) -> float:
    """Return the standard deviation of the logarithm of ``tpot`` or ``ttft``, wider for each level that no run had.

    s^2 = seen^2 + sum over unseen levels of (left out^2 - seen^2)
    """
    figures: Mapping[str, float] = _transfer()["sigma"][metric]["mixtures" if mixture else "dense"]
    more = 0.0
    for level in unseen_levels(setting):
        elsewhere = level != "engine" and any(_shares(run, setting, level) for run in fitted_runs())
        left_out = min(figures[level], figures["engine"]) if elsewhere else figures[level]
        more += max(0.0, left_out**2 - figures["seen"] ** 2)
    return math.sqrt(figures["seen"] ** 2 + more)
