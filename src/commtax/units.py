"""SI inside, units at the edge: parse what people type, print what they read.
Change here how a quantity is read or printed. Formulas take and return SI floats."""

import math
import re
from collections.abc import Mapping, Sequence

from commtax.records import Number
from commtax.statement import Refusal

GiB = 2**30
THOUSAND = 999.5  # printed as a thousand
MAX_BYTES = 1e18  # an exabyte
MAX_COUNT = 2**48  # more than anything that is counted here, and exact as a float and as an integer of 64 bits

_SI = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES = {**_SI, "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER = r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][-+]?\d+)?)"
DAY_S = 86400
DURATIONS = {"year": 365.25 * DAY_S, "day": DAY_S, "hour": 3600, "minute": 60}  # seconds of what people count long times in
SEVERAL = 1.5  # of a unit, from which on it is used: 80 minutes, but 1.7 hours
TEN = 9.95  # printed as ten


def parse_count(text: str | int | float, name: str) -> int:
    """Read a whole number as vLLM does: ``128k`` is 128,000 and ``128K`` is 131,072.

    >>> parse_count("128k", "max_model_len"), parse_count("128K", "max_model_len")
    (128000, 131072)
    """
    if isinstance(text, str):
        factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
        value = _parse_with_unit(text, name, factors, "a whole number (write 8192, 8k = 8,000 or 8K = 8,192)")
    else:
        value = float(text)
    if not math.isfinite(value) or value != int(value):
        raise Refusal(f"{name}: {text} is not a whole number", name)
    if abs(value) > MAX_COUNT:
        raise Refusal(f"{name}={text}: larger than anything that is modelled (2^48); at most {MAX_COUNT:,}", name)
    return int(value)


def parse_tokens(text: str, name: str) -> float:
    """Read a large number of tokens: ``15T``, ``300B``, ``1.4e12``.

    >>> parse_tokens("15T", "tokens"), parse_tokens("1.4e12", "tokens")
    (15000000000000.0, 1400000000000.0)
    """
    factors = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
    wanted = "a number of tokens (write 300B, 15T or 1.4e12)"
    tokens = _finite(_parse_with_unit(text, name, factors, wanted, r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[0-9]+)?)"), text, name)
    if tokens < 1:
        raise Refusal(f"{name}={text}: at least 1 token is needed; nearest valid: 1", name, (1,))
    return tokens


def parse_bytes(text: str | int | float, name: str = "size") -> float:
    """Read bytes from ``16KiB``, ``80 GB``, ``1G`` (1e9) or a plain number.

    >>> parse_bytes("16 KiB"), parse_bytes("80GB")
    (16384.0, 80000000000.0)
    """
    if not isinstance(text, str):
        return float(text)
    factors = {f"{prefix}{unit}": factor for prefix, factor in _PREFIXES.items() for unit in ("", "B")}
    value = _finite(_parse_with_unit(text, name, factors, "a size (write 16KiB, 80GB, 1GiB or bytes)"), text, name)
    if value > MAX_BYTES:
        raise Refusal(f"{name}={text}: larger than anything that is modelled; at most {MAX_BYTES:g} bytes", name)
    return value


def parse_fraction(text: str | float, name: str) -> float:
    """Read a share from ``0.92`` or ``92%``.

    >>> parse_fraction("92%", "utilisation")
    0.92
    """
    try:
        value = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        raise Refusal(f"{name}: '{text}' is not a fraction (write 0.92 or 92%)", name) from None
    return _finite(value, text, name)


def parse_seconds(text: str, name: str) -> float:
    """Read seconds from ``25us``, ``30 ms`` or ``1.5s``.

    >>> parse_seconds("30 ms", "time"), parse_seconds("1.5s", "time")
    (0.03, 1.5)
    """
    factors = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
    bare = text.strip() if re.fullmatch(_NUMBER, text.strip()[:40]) else ""
    wanted = f"a time: add its unit, {bare}ms or {bare}s" if bare else "a time (write 25us, 30ms or 1.5s)"
    return _finite(_parse_with_unit(text, name, factors, wanted), text, name)


def _parse_with_unit(text: str, name: str, factors: Mapping[str, float], wanted: str, number: str = _NUMBER) -> float:
    units = "|".join(sorted(factors, key=len, reverse=True))
    match = re.fullmatch(rf"{number}\s*({units})", text.strip()) if len(text) <= 40 else None
    if not match:
        raise Refusal(f"{name}: '{text[:40]}' is not {wanted}", name)
    return float(match[1].replace(",", "").replace("_", "")) * factors[match[2]]


def format_bytes(nbytes: Number) -> str:
    """Write bytes as memory is counted, in powers of 1024.

    >>> format_bytes(8192), format_bytes(15.6 * GiB), format_bytes(0)
    ('8 KiB', '15.60 GiB', '0 B')
    """
    value, unit = float(nbytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.2f} {unit}"


def format_rate(bytes_per_s: Number) -> str:
    """Write a bandwidth in SI units.

    >>> format_rate(450e9), format_rate(3.35e12)
    ('450 GB/s', '3.35 TB/s')
    """
    return format_si(bytes_per_s, "B/s")


def format_si(value: Number, unit: str) -> str:
    """Write a number with an SI prefix and at most four digits.

    >>> format_si(989.4e12, "FLOP/s"), format_si(1.25e9, "B/s")
    ('989.4 TFLOP/s', '1.25 GB/s')
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(float(value)) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def format_seconds(seconds: Number) -> str:
    """Write a duration in the unit that keeps it between 1 and 1,000, or above that as people say it.

    >>> format_seconds(5.3e-6), format_seconds(0.00494), format_seconds(12), format_seconds(0.9996e-3), format_seconds(6120)
    ('5.3 µs', '4.94 ms', '12 s', '1 ms', '1.7 hours')
    """
    if THOUSAND <= abs(float(seconds)) < math.inf:
        return format_duration(seconds)
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(float(seconds)) >= 0.9995 * factor:  # what would be printed as a thousand of the next smaller unit
            return f"{float(seconds) / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def round_up_seconds(seconds: float) -> float:
    """Round a limit up to the digits that ``format_seconds`` shows, so that it may be typed as it is read.

    >>> format_seconds(0.10941), format_seconds(round_up_seconds(0.10941)), format_seconds(round_up_seconds(0.11))
    ('109 ms', '110 ms', '110 ms')
    """
    if not 0 < seconds < math.inf:
        return seconds
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return math.ceil(seconds / digit * (1 - 1e-12)) * digit


def format_duration(seconds: Number) -> str:
    """Write a long time as people say it.

    >>> format_duration(85), format_duration(6120), format_duration(3.2 * 86400), format_duration(185 * 86400)
    ('85 seconds', '1.7 hours', '3.2 days', '185 days')
    >>> format_duration(9.4 * 365.25 * 86400)
    '9.4 years'
    """
    for unit, factor in DURATIONS.items():
        if abs(float(seconds)) >= SEVERAL * factor:
            return plural_figure(float(seconds) / factor, unit)
    return plural_figure(float(seconds), "second")


def plural_figure(value: float, noun: str) -> str:
    """Write two digits or all whole ones, with the noun.

    >>> plural_figure(9.42, "year"), plural_figure(1.04, "day"), plural_figure(12345.6, "year")
    ('9.4 years', '1 day', '12,346 years')
    """
    figure = f"{value:,.0f}" if abs(value) >= TEN else f"{value:.1f}".removesuffix(".0")
    return f"{figure} {noun}" if figure == "1" else f"{figure} {noun}s"


def format_tokens(tokens: Number) -> str:
    """Write a large number of tokens as ``parse_tokens`` reads it.

    >>> format_tokens(15e12), format_tokens(1.4e12), format_tokens(300e9), format_tokens(1024)
    ('15T', '1.4T', '300B', '1,024')
    """
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if float(tokens) >= 0.9995 * factor:
            figure = float(tokens) / factor
            return f"{figure:,.0f}{unit}" if figure >= THOUSAND else f"{figure:.3g}{unit}"
    return f"{tokens:,.0f}"


def format_money(usd: Number) -> str:
    """Write dollars as people say them.

    >>> format_money(1_234_567), format_money(45_300.4), format_money(98.325), format_money(0.0123), format_money(2.5e9)
    ('$1.23 million', '$45,300', '$98.33', '$0.0123', '$2.5 billion')
    """
    value = float(usd)
    for factor, word in ((1e9, "billion"), (1e6, "million")):
        if value >= 0.9995 * factor:
            figure = value / factor
            return f"${figure:,.0f} {word}" if figure >= THOUSAND else f"${figure:.3g} {word}"
    return f"${value:,.0f}" if value >= THOUSAND else f"${value:,.2f}" if value >= 1 or not value else f"${value:.3g}"


def format_figure(value: Number) -> str:
    """Write a figure in three digits, or all whole ones.

    >>> format_figure(0.4267), format_figure(1.7), format_figure(999.96), format_figure(12345.6)
    ('0.427', '1.7', '1,000', '12,346')
    """
    return f"{value:,.0f}" if abs(float(value)) >= 100 else f"{value:.3g}"


def format_mean(value: Number) -> str:
    """Write a mean of counts, with one digit behind the point where it is not whole.

    >>> format_mean(2.5), format_mean(12345)
    ('2.5', '12,345')
    """
    return f"{value:,.1f}".removesuffix(".0")


def format_spread(share: Number) -> str:
    """Write a share to either side.

    >>> format_spread(0.5), format_spread(0.0054)
    ('±50%', '±0.54%')
    """
    return f"±{100 * share:.3g}%"


def _finite(value: float, text: object, name: str) -> float:
    if not math.isfinite(value):
        raise Refusal(f"{name}: {text} is not a finite number", name)
    return value


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence lists them.

    >>> listed(["bill", "plan", "fit"]), listed(["plan"])
    ('bill, plan and fit', 'plan')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def plural(count: Number, noun: str) -> str:
    """Write a count with its noun.

    >>> plural(1, "GPU"), plural(16, "GPU")
    ('1 GPU', '16 GPUs')
    """
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,.0f} {noun}{ending}"
