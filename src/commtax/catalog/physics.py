"""What a measured constant can be (``physics.toml``), documents that are read by such rules, and the ceilings of datasheets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

from commtax.catalog.loader import Facts, suggest
from commtax.files import table
from commtax.records import dataclass
from commtax.spec import Chip, ChipFacts, Link, Path
from commtax.statement import Refusal
from commtax.units import format_bytes, format_rate, format_si

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table of the document, and the name it has for people."""

    table: Facts
    where: str = ""

    @classmethod
    def of(cls, value: object, where: str, what: str = "a table of names and values") -> TableView:
        if not isinstance(value, dict):
            raise Refusal(f"{where}={short_repr(value)}: {what} is needed", where)
        return cls(value, where)

    def named(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def part(self, key: str) -> TableView:
        return TableView.of(self.table.get(key, {}), self.named(key))

    def check_allowed(self, allowed: Collection[str]) -> None:
        for unknown in sorted(set(self.table) - set(allowed)):
            raise Refusal(f"unknown key '{self.named(unknown)}'{suggest(unknown, allowed)}", self.named(unknown))

    def _typed(self, key: str, usual: T, what: str) -> T:
        value = self.table.get(key, usual)
        if not isinstance(value, type(usual)):
            raise Refusal(f"{self.named(key)}={short_repr(value)}: {what} is needed", self.named(key))
        return value

    def text(self, key: str, usual: str = "") -> str:
        return self._typed(key, usual, "a text")

    def switch(self, key: str) -> bool:
        return self._typed(key, False, "true or false")

    def rows(self, key: str) -> list[object]:
        return self._typed(key, list[object](), "a list")

    def texts(self) -> dict[str, str]:
        return {key: self.text(key) for key in self.table}

    def some(self, ranges: Mapping[str, PhysicalRange]) -> dict[str, float]:
        """Return the numbers of these names that are given."""
        return {key: rule.read(self.table[key], self.named(key)) for key, rule in ranges.items() if key in self.table}

    def all_of(self, ranges: Mapping[str, PhysicalRange]) -> dict[str, float]:
        """Return the numbers of these names, each of which is needed."""
        if missing := [key for key in ranges if key not in self.table]:
            raise Refusal(f"{self.where} lacks {', '.join(missing)}", self.named(missing[0]))
        return self.some(ranges)

    def numbers(self, ranges: Mapping[str, PhysicalRange]) -> dict[str, float]:
        """Return all that is in it, as numbers of these names."""
        self.check_allowed(ranges)
        return {key: ranges[key].read(value, self.named(key)) for key, value in self.table.items()}


@dataclass(frozen=True, slots=True)
class PhysicalRange:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float
    kind: str = "a number"
    whole: bool = False

    def read(self, value: object, name: str) -> float:
        """Return the value as a number of the range, or refuse it with the nearest that would do."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise Refusal(f"{name}={short_repr(value)}: {self.kind} from {self.low:g} to {self.high:g} is needed", name)
        if not self.low <= value <= self.high:
            near = self.low if value < self.low else self.high
            text = f"{value:g}" if abs(value) < 1e300 else str(value)[:12]
            raise Refusal(f"{name}={text}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {near:g}", name)
        if self.whole and value != math.floor(value):
            raise Refusal(f"{name}={value:g}: {self.kind} from {self.low:g} to {self.high:g}; nearest valid: {round(value)}", name)
        return float(value)


def short_repr(value: object) -> str:
    return repr(value)[:40]


_TABLE = table("catalog/physics.toml")
_RANGES = {part: {key: PhysicalRange(**entry) for key, entry in rows.items()} for part, rows in _TABLE.items() if part != "needed"}
CHIP, KERNEL, PATH, BY_SIZE, NETWORK = (_RANGES[part] for part in ("chip", "kernel", "path", "by_size", "network"))
CURVE, HOST, DEPLOYMENT, RUN, LATENCY = (_RANGES[part] for part in ("curve", "host", "deployment", "run", "latency"))
DESCRIBED_CHIP, DESCRIBED_LINK, DESCRIBED_CLUSTER = (_RANGES[f"described_{part}"] for part in ("chip", "link", "cluster"))
FLOPS, RANKS, SLOPE = (_RANGES["other"][key] for key in ("flops_per_s", "ranks", "slope"))
GROUPS = ("worlds", "ranks")  # facts of a path that are lists of group sizes
NEEDED: dict[str, list[str]] = _TABLE["needed"]
MOST_OF_A_LINK = 4.0  # a path may count both directions, and bytes that a switch adds on their way: together never more than this
WRITTEN = 1e-5  # numbers are written with six digits, and rounding must not lift one over its ceiling


def check_chip(measured: ChipFacts, chip: Chip) -> None:
    """Refuse a measurement that beats the chip's datasheet. A CPU has none: what was measured is all there is."""
    if chip.family == "cpu":
        return
    holds, fastest = max(chip.memory_bytes, chip.visible_bytes), chip.memory_Bps
    _check_at_most("chip.memory_Bps", measured.get("memory_Bps", 0.0), fastest, format_rate(fastest), chip, "memory_Bps")
    for key, size in (("memory_bytes", measured.get("memory_bytes")), ("visible_bytes", measured.get("visible_bytes"))):
        _check_at_most(f"chip.{key}", size or 0.0, holds, format_bytes(holds), chip, key)
    for dtype, rate in measured.get("flops_per_s", {}).items():
        listed = dtype if dtype in chip.flops_per_s else max(chip.flops_per_s, key=lambda d: chip.flops_per_s[d])
        most = chip.flops_per_s[listed]
        _check_at_most(f"chip.flops_per_s.{dtype}", rate, most, format_si(most, "FLOP/s"), chip, f"flops_per_s.{listed}")


def check_path(path: Path, link: Link, name: str) -> None:
    """Refuse a path that moves bytes faster than the link can, in whatever way it counts them."""
    if link.kind == "memory":  # as fast as the machine is: what was measured is all that is known
        return
    most = MOST_OF_A_LINK * link.bandwidth_Bps
    ceiling = f"{format_rate(most)}, {MOST_OF_A_LINK:g} times one direction"
    _check_at_most(f"{name}.bandwidth_Bps", fastest_Bps(path), most, ceiling, link, "bandwidth_Bps")


def fastest_Bps(path: Path) -> float:
    """Return the rate of the group size that contends least."""
    return float(path.bandwidth_Bps) / min((slower for _, slower in path.contention), default=1.0)


def _check_at_most(name: str, value: float, most: float, ceiling: str, of: Chip | Link, key: str) -> None:
    if value > most * (1 + WRITTEN):
        source = of.sources[key].title if key in of.sources else f"commtax catalog {of.key}"
        raise Refusal(f"{name}={value:g}: more than {of.key} can do ({ceiling}: {source}); nearest valid: {most:g}", name)
