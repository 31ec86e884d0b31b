"""How whole runs differ from what their kernels add up to, and how sure that is where nobody ran.

Constants of serving engines are pooled: an engine's own times (``engines/*.toml``) are effects of engine and version around
those common to all, and ``paces.toml`` holds the effects of chip, number format, kind and family of model, each shrunk towards
none and with its standard deviation. What was never run has no effect: it starts from what is common. A number format that only
ran where chips multiply it was never run where they unpack it.

``transfer.toml`` says how far off such predictions were on whole engines, chips and families that were left out of the fit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from commtax.catalog.hardware import chip as chip_of
from commtax.files import Json, table
from commtax.records import dataclass
from commtax.spec import ARITHMETIC, Chip, Engine, Model

MULTIPLIED = ("fp8", "nvfp4")
"""Number formats that are multiplied as they are where a chip has the arithmetic, and unpacked to 16 bits elsewhere."""
LEVELS = ("engine", "chip", "dtype", "kind", "family")
FACTORS = {
    "decode": "decode_pace",
    "prefill": "prefill_pace",
    "prompt": "prompt_s",
    "request": "request_s",
    "experts": "experts_rate",
    "routing": "routing_share",
    "popularity": "popularity",
}
"""What an effect multiplies, by its name in the file."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is, as far as runs were pooled by it."""

    engine: str
    chip: str
    dtype: str  # of weights
    kind: str
    family: str  # the architecture that a config names
    unpacked: bool = False  # the chip has no arithmetic for the format

    @classmethod
    def of(cls, engine: Engine, chip: Chip, model: Model, dtype: str = "") -> "Setting":
        stored = dtype or (model.quant.dtype if model.quant else model.dtype)
        dtype = "bf16" if stored in ("fp16", "fp32") else stored
        return cls(engine.key, chip.key, dtype, model.kind, model.architecture, unpacks(chip, dtype))


def unpacks(chip: Chip, dtype: str) -> bool:
    """Whether a chip lacks the arithmetic of weights that others multiply as they are."""
    return dtype in MULTIPLIED and ARITHMETIC.get(dtype, dtype) not in chip.flops_per_s


@dataclass(frozen=True, slots=True)
class Effect:
    """Of all runs that agree in the levels it names: natural logarithms of factors, each with its standard deviation."""

    levels: Mapping[str, str]
    logs: Mapping[str, tuple[float, float]]

    def concerns(self, setting: Setting) -> bool:
        alike = all(getattr(setting, level) == name for level, name in self.levels.items())
        return alike and ("dtype" not in self.levels or any(_shares(run, setting, "dtype") for run in fitted_runs()))


@lru_cache(maxsize=1)
def effects() -> tuple[Effect, ...]:
    return tuple(_effect(row) for row in table("catalog/paces.toml").get("effect", ()))


def _effect(row: Mapping[str, Json]) -> Effect:
    logs = {name: (float(row[name][0]), float(row[name][1])) for name in FACTORS if name in row}
    return Effect({level: str(row[level]) for level in LEVELS if level in row}, logs)


def concerning(setting: Setting) -> Iterator[Effect]:
    return (effect for effect in effects() if effect.concerns(setting))


@lru_cache(maxsize=256)
def paced(engine: Engine, setting: Setting) -> Engine:
    """The engine at the pace that runs showed where they agree with this one, whatever pace it had."""
    logs: dict[str, float] = {}
    for effect in concerning(setting):
        for name, (value, _) in effect.logs.items():
            logs[name] = logs.get(name, 0.0) + value
    missing = {name: logs.get(name, 0.0) - engine.paces.get(name, 0.0) for name in (*logs, *engine.paces)}
    factors = {FACTORS[name]: math.exp(log) for name, log in missing.items() if log}
    return engine.but(paces=logs, **{name: _held(engine, name) * factor for name, factor in factors.items()})


def _held(engine: Engine, name: str) -> float:
    return float(getattr(engine.host if hasattr(engine.host, name) else engine.kernels, name))


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
    """Of engine, chip, number format and family those that no run had: chip, format and family with this engine."""
    runs = fitted_runs()
    if not any(run["engine"] == setting.engine for run in runs):
        known = {level: any(_shares(run, setting, level) for run in runs) for level in ("chip", "dtype", "family")}
        return "engine", *(level for level, was in known.items() if not was)
    own = [run for run in runs if run["engine"] == setting.engine]
    return tuple(level for level in ("chip", "dtype", "family") if not any(_shares(run, setting, level) for run in own))


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
