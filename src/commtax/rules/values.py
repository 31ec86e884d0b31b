"""Values of single options: numbers that are numbers, bounds of the option table, types and sizes by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from commtax.options import Option
from commtax.spec import DTYPE_BYTES, Number
from commtax.statement import Refusal
from commtax.units import MAX_COUNT, parse_seconds

SPELLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Types as engines' options spell them."""
KV_TYPES = ("", "bf16", "fp16", "fp32", "fp8")
STATE_TYPES = ("", "fp32", "bf16", "fp16")
FACTOR = "a factor of at least 1 is needed"


def check_number(value: object, name: str) -> Number:
    """Return a number, or an array widened so that products cannot overflow, and refuse anything else by name."""
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number, np.ndarray)):
        raise Refusal(f"{name}={value!r}: a number or a NumPy array is needed", name)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iuf":
            raise Refusal(f"{name}: an array of numbers is needed, not of {value.dtype}", name)
        return value.astype(float if value.dtype.kind == "f" else np.int64)
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise Refusal(f"{name}: larger than anything that is modelled (2^48); at most {MAX_COUNT:,}", name, (MAX_COUNT,))
    return value.item() if isinstance(value, np.number) else value


def positive(least: int = 1, /, **option: object) -> Number:
    """Return a whole number of at least ``least``, or an array of them, passed under its name."""
    ((name, value),) = option.items()
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
    value = check_number(value, name)
    number = np.asarray(value, dtype=float)
    if not np.all(np.isfinite(number)) or np.any(number < least) or np.any(number != np.floor(number)):
        raise Refusal(f"{name}={value}: a whole number of at least {least} is needed", name)
    if np.any(number > MAX_COUNT):
        raise Refusal(f"{name}={value}: larger than anything that is modelled (2^48)", name, (MAX_COUNT,))
    return value


def seconds(value: object, name: str) -> float:
    """Return a time above 0, from seconds or text: ``0.03`` or ``"30ms"``."""
    limit = parse_seconds(value, name) if isinstance(value, str) else value
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.number)) or not limit > 0:
        raise Refusal(f"{name}={value}: a time above 0 is needed", name)
    return float(limit)


def check_option(value: object, option: Option) -> object:
    """Return a plain value within the bounds that the table sets for its option, and refuse anything else by name."""
    name, least = option.name, option.least
    if option.rule:
        return RULES[option.rule](value, name)
    if option.words:
        if value not in option.words:
            raise Refusal(f"{name} '{value}': one of {', '.join(option.words)}", name, option.words)
        return value
    if option.above is not None:
        if isinstance(value, str) and option.unit == " s":
            value = parse_time(value, name)
        return 0.0 if value == 0 == least else number(value, name, option.above, option.most or np.inf, option.unit, option.endless)
    if option.most is not None and np.ndim(value):  # type: ignore[arg-type]
        raise Refusal(f"{name}: one number is needed", name)
    whole = positive(int(least or 0), **{name: value})
    if option.most is not None and whole > option.most:
        raise Refusal(f"{name}={whole}: at most {option.most:,}", name, (int(option.most),))
    return whole if option.most is None else int(whole)


def number(value: object, name: str, low: float, high: float, unit: str = "", endless: bool = False) -> float:
    """Return a number between two bounds, above the lower one where that is 0, or infinity where that means something."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number)) or np.isnan(value):
        raise Refusal(f"{name}={value!r}: a number is needed", name)
    if endless and value == np.inf:
        return np.inf
    if not low < value <= high:
        nearest = f"{high:g}" if value > high else "1"
        rule = f"above {low:g} and at most {high:g}{unit}; nearest valid: {nearest}"
        raise Refusal(f"{name}={value:g}{unit}: {rule}", name, (nearest,))
    return float(value)


def parse_time(value: str, name: str) -> float:
    """Return seconds from text with a unit or without."""
    try:
        return float(value)
    except ValueError:
        return parse_seconds(value, name)


def part(value: object, name: str) -> float:
    """Return a share, where all and nothing are valid."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        nearest = 1 if isinstance(value, (int, float)) and value > 1 else 0
        raise Refusal(f"{name}={value}: a share from 0 to 1 is needed; nearest valid: {nearest}", name, (nearest,))
    return float(value)


def share(value: float, name: str) -> float:
    if not 0 < value <= 1:
        raise Refusal(f"{name}={value}: a fraction above 0 and at most 1 is needed", name)
    return value


def factor(value: object, name: str) -> Number:
    if (times := check_number(value, name)) < 1:
        raise Refusal(f"{name}={times}: {FACTOR}", name, (1,))
    return times


def size(value: float, name: str) -> float:
    """Return a size in bytes, where 0 leaves it to the engine."""
    if value < 0:
        raise Refusal(f"{name}={value}: a size of at least 0 is needed", name, (0,))
    return value


def varied(value: object, name: str) -> Number:
    """Return a share of a mean, or an array of them."""
    shares = check_number(value, name)
    if np.any(np.asarray(shares) < 0) or np.any(np.asarray(shares) > 1):
        raise Refusal(f"{name}={shares}: a share of the mean length from 0 to 1 is needed", name)
    return shares


def dtype(name: str, argument: str = "dtype") -> str:
    """Return a type of weights by its usual name, "" for the checkpoint's."""
    if name in ("", "auto"):
        return ""
    name = SPELLED.get(name, name)
    if name not in DTYPE_BYTES:
        raise Refusal(f"{argument} '{name}': one of {', '.join(DTYPE_BYTES)}", argument)
    return name


def kv_dtype(value: str, name: str) -> str:
    if (usual := dtype(value, name)) not in KV_TYPES:
        raise Refusal(f"{name} '{value}': a KV cache is kept in auto, bf16, fp16, fp32 or fp8", name)
    return usual


def recurrent_dtype(value: str, name: str) -> str:
    if (usual := dtype(value, name)) not in STATE_TYPES:
        raise Refusal(f"{name} '{value}': states are kept in auto, fp32, bf16 or fp16", name, STATE_TYPES[1:])
    return usual


def image_size(value: object, name: str) -> tuple[int, int]:
    """Return width and height in pixels, from ``"1024x768"`` or from both as numbers."""
    sides = value.lower().split("x") if isinstance(value, str) else value
    if isinstance(sides, (list, tuple)) and len(sides) == 2 and all(str(side).strip().isdecimal() for side in sides):
        return int(sides[0]), int(sides[1])
    raise Refusal(f"{name}={value!r}: width and height in pixels are needed, such as 1024x768", name, ("1024x1024",))


RULES: Mapping[str, Callable[[Any, str], object]] = {  # checks that the table of options names
    "share": part,
    "fraction": share,
    "factor": factor,
    "size": size,
    "varied": varied,
    "dtype": dtype,
    "kv dtype": kv_dtype,
    "state dtype": recurrent_dtype,
    "pixels": image_size,
}
