"""What a measured constant can be (``physics.toml``): one table for profiles that are read and that are written.

Below the ranges are the ceilings of a known chip or link: nothing that is measured on it moves bytes faster than its datasheet.
"""

import math

from commtax.files import table
from commtax.records import dataclass
from commtax.spec import Chip, ChipFacts, Link, Path
from commtax.statement import Refusal
from commtax.units import format_bytes, format_rate, format_si


@dataclass(frozen=True, slots=True)
class PhysicalRange:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float
    kind: str = "a number"
    whole: bool = False

    def read(self, value: object, name: str) -> float:
        """The value as a number of the range; anything else is refused with the nearest that would do."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise Refusal(f"{name}={short_repr(value)}: {self.kind} from {self.low:g} to {self.high:g} is needed", name)
        if not self.low <= value <= self.high:
            near = self.low if value < self.low else self.high
            given = f"{value:g}" if abs(value) < 1e300 else str(value)[:12]
            raise Refusal(f"{name}={given}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {near:g}", name)
        if self.whole and value != math.floor(value):
            raise Refusal(f"{name}={value:g}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {round(value)}", name)
        return float(value)


def short_repr(value: object) -> str:
    return repr(value)[:40]


_TABLE = table("catalog/physics.toml")
CHIP, KERNEL, PATH, BY_SIZE, NETWORK, CURVE, HOST, DEPLOYMENT, RUN, LATENCY, _OTHER = (
    {key: PhysicalRange(**entry) for key, entry in _TABLE[part].items()}
    for part in ("chip", "kernel", "path", "by_size", "network", "curve", "host", "deployment", "run", "latency", "other")
)
DESCRIBED_CHIP, DESCRIBED_LINK, DESCRIBED_CLUSTER = (
    {key: PhysicalRange(**entry) for key, entry in _TABLE[f"described_{part}"].items()} for part in ("chip", "link", "cluster")
)
FLOPS, RANKS, SLOPE = _OTHER["flops_per_s"], _OTHER["ranks"], _OTHER["slope"]
GROUPS = ("worlds", "ranks")  # facts of a path that are lists of group sizes
NEEDED: dict[str, list[str]] = _TABLE["needed"]

MOST_OF_A_LINK = 4.0
"""A path may count both directions, and bytes that a switch adds on their way: together never more than this."""
WRITTEN = 1e-5  # numbers are written with six digits, and rounding must not lift one over its ceiling


def check_chip(given: ChipFacts, chip: Chip) -> None:
    """No measurement beats the chip's datasheet. A CPU has none: what was measured is all that is known of it."""
    if chip.family == "cpu":
        return
    holds = max(chip.memory_bytes, chip.visible_bytes)
    _check_at_most(
        "chip.memory_Bps", given.get("memory_Bps", 0.0), chip.memory_Bps, format_rate(chip.memory_Bps), chip, "memory_Bps"
    )
    for key, size in (("memory_bytes", given.get("memory_bytes")), ("visible_bytes", given.get("visible_bytes"))):
        _check_at_most(f"chip.{key}", size or 0.0, holds, format_bytes(holds), chip, key)
    for dtype, rate in given.get("flops_per_s", {}).items():
        known = dtype if dtype in chip.flops_per_s else max(chip.flops_per_s, key=lambda d: chip.flops_per_s[d])
        most = chip.flops_per_s[known]
        _check_at_most(f"chip.flops_per_s.{dtype}", rate, most, format_si(most, "FLOP/s"), chip, f"flops_per_s.{known}")


def check_path(path: Path, link: Link, name: str) -> None:
    """No path moves bytes faster than the link can, in whatever way it counts them."""
    if link.kind == "memory":  # as fast as the machine is: what was measured is all that is known
        return
    most = MOST_OF_A_LINK * link.bandwidth_Bps
    ceiling = f"{format_rate(most)}, {MOST_OF_A_LINK:g} times one direction"
    _check_at_most(f"{name}.bandwidth_Bps", fastest_Bps(path), most, ceiling, link, "bandwidth_Bps")


def fastest_Bps(path: Path) -> float:
    """The rate of the group size that contends least."""
    return float(path.bandwidth_Bps) / min((slower for _, slower in path.contention), default=1.0)


def _check_at_most(name: str, value: float, most: float, ceiling: str, of: Chip | Link, key: str) -> None:
    if value > most * (1 + WRITTEN):
        source = of.sources[key].title if key in of.sources else f"commtax catalog {of.key}"
        raise Refusal(f"{name}={value:g}: more than {of.key} can do ({ceiling}: {source}); nearest valid: {most:g}", name)
