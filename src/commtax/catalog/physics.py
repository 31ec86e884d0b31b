"""What a measured constant can be: one table of ranges, for profiles that are read and for those that are written.

Below the ranges are the ceilings of a known chip or link: nothing that is measured on it moves bytes faster than its datasheet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from commtax.files import Json
from commtax.spec import DTYPE_BYTES, Chip, ChipFacts, Link, Path
from commtax.statement import Refusal
from commtax.units import format_bytes, format_rate, format_si


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float
    kind: str = "a number"
    whole: bool = False

    def read(self, value: Json, name: str) -> float:
        """The value as a number of the range; anything else is refused with the nearest that would do."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise Refusal(f"{name}={shown(value)}: {self.kind} from {self.low:g} to {self.high:g} is needed", name)
        if not self.low <= value <= self.high:
            near = self.low if value < self.low else self.high
            given = f"{value:g}" if abs(value) < 1e300 else str(value)[:12]
            raise Refusal(f"{name}={given}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {near:g}", name)
        if self.whole and value != math.floor(value):
            raise Refusal(f"{name}={value:g}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {round(value)}", name)
        return float(value)


def shown(value: Json) -> str:
    """A short piece of what was given."""
    return repr(value)[:40]


SHARE = Range(1e-3, 1.0, "an attained share of the chip's own rate")
TIME = Range(0.0, 3600.0, "seconds")
RANKS = Range(1, 2**31, "a whole number of ranks", whole=True)
SIZE = Range(0.0, 1e18, "bytes")
EXPONENT = Range(1.0, 20.0, "an exponent")
SPREAD = Range(0.0, 100.0, "the half-width of a range")
SIGMA = Range(0.0, 5.0, "the deviation of a logarithm")

CHIP = {
    "memory_Bps": Range(1e8, 1e14, "bytes a second"),
    "memory_bytes": Range(1e6, 1e15, "bytes"),
    "visible_bytes": Range(1e6, 1e15, "bytes"),
    "num_sms": Range(1, 100_000, "a whole number", whole=True),
}
FLOPS = Range(1e6, 1e18, "operations a second")
KERNEL = {
    **dict.fromkeys(("eb", "eb64", "eb128", "eb256", "ep", "ep64", "ep128", "ep256"), SHARE),
    **dict.fromkeys(("clock", "flash2", "triton", "attention_backward"), SHARE),
    **dict.fromkeys(("t0", "tau"), TIME),
    **dict.fromkeys(("kl", "q", "tc", "tb", "tl"), Range(0.0, 1.0, "seconds of one piece of work")),
    **dict.fromkeys(("kc", "mk"), Range(1e-3, 1e12, "a scale above 0")),
    **dict.fromkeys(("k0", "c0", "tdp_w"), Range(0.0, 1e6)),
    **dict.fromkeys(("tile_m", "tile_n"), Range(1, 65_536, "rows of a tile")),
    **dict.fromkeys(("pack", "droop"), Range(0.0, 100.0, "a share added")),
    "p": EXPONENT,
    "sigma": SIGMA,
}
PATH = {
    "bandwidth_Bps": Range(1e3, 1e13, "bytes a second"),
    **dict.fromkeys(("launch_s", "hop_s", "extra_s"), TIME),
    "sqrt_s": Range(0.0, 1.0, "seconds a root of a byte"),
    "turn": Range(0, 1000, "a whole number", whole=True),
    **dict.fromkeys(("min_ranks", "max_ranks"), RANKS),
    "spread": SPREAD,
}
PAIRS = {"max_bytes": SIZE, "contention": Range(1e-6, 1e6, "how many times slower bytes move")}
"""Values by group size."""
LISTS = ("worlds", "ranks")
"""Lists of group sizes."""
NETWORK = {
    "efficiency": Range(1e-3, 2.0, "a share of the NICs' rate (up to 2 where switches add)"),
    "hops": Range(0.0, 10_000.0, "latencies of the link"),
    "pipelining": Range(0.0, 1000.0, "a share of the loss"),
    "norm": EXPONENT,
    "spread": SPREAD,
    **dict.fromkeys(("least_ranks", "most_ranks"), RANKS),
    "least_bytes": SIZE,
}
HOST = {
    **dict.fromkeys(("host_s", "host_s_per_doubling", "host_s_per_seq", "request_s"), TIME),
    **dict.fromkeys(("sigma_host", "sigma_tpot", "sigma_ttft", "sigma_tpot_moe", "sigma_ttft_moe"), SIGMA),
}

MOST_OF_A_LINK = 4.0
"""A path may count both directions, and bytes that a switch adds on their way: together never more than this."""


def check_chip(given: ChipFacts, chip: Chip) -> None:
    """No measurement beats the chip's datasheet. A CPU has none: what was measured is all that is known of it."""
    if chip.family == "cpu":
        return
    holds = max(chip.memory_bytes, chip.visible_bytes)
    _at_most("chip.memory_Bps", given.get("memory_Bps", 0.0), chip.memory_Bps, format_rate(chip.memory_Bps), chip, "memory_Bps")
    for key, size in (("memory_bytes", given.get("memory_bytes")), ("visible_bytes", given.get("visible_bytes"))):
        _at_most(f"chip.{key}", size or 0.0, holds, format_bytes(holds), chip, key)
    for dtype, rate in given.get("flops_per_s", {}).items():
        known = dtype if dtype in chip.flops_per_s else max(chip.flops_per_s, key=lambda d: chip.flops_per_s[d])
        most = chip.flops_per_s[known]
        _at_most(f"chip.flops_per_s.{dtype}", rate, most, format_si(most, "FLOP/s"), chip, f"flops_per_s.{known}")


def check_path(path: Path, link: Link, name: str) -> None:
    """No path moves bytes faster than the link can, in whatever way it counts them."""
    if link.kind == "memory":  # as fast as the machine is: what was measured is all that is known
        return
    most = MOST_OF_A_LINK * link.bandwidth_Bps
    told = f"{format_rate(most)}, {MOST_OF_A_LINK:g} times one direction"
    _at_most(f"{name}.bandwidth_Bps", fastest_Bps(path), most, told, link, "bandwidth_Bps")


def fastest_Bps(path: Path) -> float:
    """The rate of the group size that contends least."""
    return path.bandwidth_Bps / min((slower for _, slower in path.contention), default=1.0)


def _at_most(name: str, value: float, most: float, told: str, of: Chip | Link, key: str) -> None:
    if value > most * (1 + 1e-9):
        source = of.sources[key].title if key in of.sources else f"commtax catalog {of.key}"
        raise Refusal(f"{name}={value:g}: more than {of.key} can do ({told}: {source}); nearest valid: {most:g}", name)


def known_type(dtype: str, name: str) -> str:
    """A type of arithmetic that is modelled."""
    if dtype not in DTYPE_BYTES:
        raise Refusal(f"{name}: a type of arithmetic is one of {', '.join(DTYPE_BYTES)}", name)
    return dtype
