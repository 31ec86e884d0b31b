"""How kernels in whole runs differ from tables of single kernels, and how sure that is where nobody ran.

An effect multiplies the time of one kind of kernel of one engine on one family of chips, and names why (``paces.toml``). It is never
of a model: what tables of kernels do not explain of a model's runs stays unexplained, and widens the range. All that is laid on a
kernel together lies within ``LAW``. Times of the host are the engines' own (``engines/*.toml``), by version.

``transfer.toml`` says how far off predictions were on whole engines, chips, families of models and publishers that were left out of
the fit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from commtax.catalog.hardware import chip as chip_of
from commtax.files import Json, table
from commtax.spec import ARITHMETIC, Chip, Engine, Model

LAW = (0.7, 1.4)
"""What effects that were fitted end to end may make of a kernel's time."""
MULTIPLIED = ("fp8", "nvfp4")
"""Number formats that are multiplied as they are where a chip has the arithmetic, and unpacked to 16 bits elsewhere."""
LEVELS = ("engine", "chips", "dtype")
BESIDE = ("chip", "dtype", "family", "publisher")
"""What runs of an engine differ in."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is, as far as runs were pooled by it."""

    engine: str
    chip: str
    dtype: str  # of weights
    family: str  # the architecture that a config names
    chips: str = ""  # the chip's family
    unpacked: bool = False  # the chip has no arithmetic for the format
    publisher: str = ""  # who measures; "": somebody whose runs nobody has seen

    @classmethod
    def of(cls, engine: Engine, chip: Chip, model: Model, dtype: str = "", publisher: str = "") -> "Setting":
        stored = dtype or (model.quant.dtype if model.quant else model.dtype)
        dtype = "bf16" if stored in ("fp16", "fp32") else stored
        return cls(engine.key, chip.key, dtype, model.architecture, chip.family, unpacks(chip, dtype), publisher)


def unpacks(chip: Chip, dtype: str) -> bool:
    """Whether a chip lacks the arithmetic of weights that others multiply as they are."""
    return dtype in MULTIPLIED and ARITHMETIC.get(dtype, dtype) not in chip.flops_per_s


@dataclass(frozen=True, slots=True)
class Effect:
    """On one kind of kernel in all runs that agree in the levels it names: the factor's natural logarithm and its deviation."""

    levels: Mapping[str, str]
    kernel: str
    log: float
    sigma: float
    mechanism: str

    def concerns(self, setting: Setting) -> bool:
        return all(getattr(setting, level) == name for level, name in self.levels.items())


@lru_cache(maxsize=1)
def effects() -> tuple[Effect, ...]:
    return tuple(_effect(row) for row in table("catalog/paces.toml").get("effect", ()))


def _effect(row: Mapping[str, Json]) -> Effect:
    levels = {level: str(row[level]) for level in LEVELS if level in row}
    return Effect(levels, str(row["kernel"]), *map(float, row["log"]), str(row["mechanism"]))


def concerning(setting: Setting) -> Iterator[Effect]:
    return (effect for effect in effects() if effect.concerns(setting))


@lru_cache(maxsize=256)
def paced(engine: Engine, setting: Setting) -> Engine:
    """The engine with what its runs showed of each kind of kernel, whatever it had before."""
    logs: dict[str, float] = {}
    for effect in concerning(setting):
        logs[effect.kernel] = logs.get(effect.kernel, 0.0) + effect.log
    return engine.but(paces={kernel: math.exp(log) for kernel, log in logs.items()})


@lru_cache(maxsize=1)
def _transfer() -> Json:
    return table("catalog/transfer.toml")


def fitted_runs() -> Sequence[Mapping[str, str]]:
    """Engine, version, chip, number format, family and model of the runs that constants were fitted on."""
    runs: Sequence[Mapping[str, str]] = _transfer()["run"]
    return runs


def _shares(run: Mapping[str, str], setting: Setting, level: str) -> bool:
    """Whether a run had the same of a level; a number format also multiplied in the same way."""
    same = run[level] == getattr(setting, level)
    return same and (level != "dtype" or unpacks(chip_of(run["chip"]), run["dtype"]) == setting.unpacked)


@lru_cache(maxsize=1024)
def is_measured(setting: Setting) -> bool:
    """Whether this engine ran on this chip with weights in this format."""
    return any(all(_shares(run, setting, level) for level in ("engine", "chip", "dtype")) for run in fitted_runs())


@lru_cache(maxsize=1024)
def unseen(setting: Setting) -> tuple[str, ...]:
    """Of engine, chip, number format, family and publisher those that no run had: with this engine where it ran."""
    runs = fitted_runs()
    own = [run for run in runs if run["engine"] == setting.engine]
    strange = tuple(level for level in BESIDE if not any(_shares(run, setting, level) for run in own or runs))
    return strange if own else ("engine", *strange)


@lru_cache(maxsize=1024)
def sigma(setting: Setting, metric: str, mixture: bool) -> float:
    """Standard deviation of the logarithm of ``tpot`` or ``ttft``, wider for each level that no run had.

    s^2 = seen^2 + sum over unseen levels of (left out^2 - seen^2)
    """
    figures: Mapping[str, float] = _transfer()["sigma"][metric]["mixtures" if mixture else "dense"]
    more = sum(max(0.0, _left_out(setting, level, figures) ** 2 - figures["seen"] ** 2) for level in unseen(setting))
    return math.sqrt(figures["seen"] ** 2 + more)


def _left_out(setting: Setting, level: str, figures: Mapping[str, float]) -> float:
    elsewhere = level != "engine" and any(_shares(run, setting, level) for run in fitted_runs())
    return min(figures[level], figures["engine"]) if elsewhere else figures[level]
