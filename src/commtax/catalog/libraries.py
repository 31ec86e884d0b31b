"""Collective libraries as their files tell them: what was measured on which chips and links, and what serves the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from commtax.catalog.loader import Table, find, plain, record, stems, suggest, table
from commtax.spec import Cluster, Link, Network, Path, Spread
from commtax.statement import Refusal, Source

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast")


@dataclass(frozen=True, slots=True)
class PathRow:
    """Constants of one algorithm for some collectives, as fitted on ``families`` of chips over the ``reference`` link."""

    path: Path
    families: tuple[str, ...]
    links: tuple[str, ...]  # kinds of links that they serve
    reference: str
    ops: tuple[str, ...]
    measured_on: tuple[str, ...] = ()  # chips; (): all of the families

    @property
    def link(self) -> Link:
        """The link that it was measured on."""
        return _reference(self.reference)

    def of_chip(self, chip: str) -> bool:
        return not self.measured_on or chip in self.measured_on

    def measured_with(self, cluster: Cluster) -> bool:
        """Whether it was measured on this chip, or its family, with this link."""
        chip = cluster.chip
        return chip.family in self.families and self.of_chip(chip.key) and self.reference == cluster.intra.key


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A published table that the constants were fitted on, half of its sizes."""

    table: str
    systems: tuple[str, ...]
    versions: tuple[str, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Library:
    """A file of ``libraries`` or ``exchanges``."""

    key: str
    name: str
    version: str
    aliases: tuple[str, ...] = ()
    note: str = ""
    fallback: str = ""  # the library that does what this one does not
    kin: Mapping[str, str] = field(default_factory=dict)  # whose constants serve a generation, or a kind of link
    ops: tuple[str, ...] = OPS
    launch_s: float = 10e-6  # of a ring that nobody measured …
    efficiency: float = 0.8  # … and its share of the link's rate
    network: Network = field(default_factory=Network)
    eager_floor_s: Mapping[str, float] = field(default_factory=dict)
    path: tuple[PathRow, ...] = ()
    spread: tuple[Spread, ...] = ()
    fitted: tuple[FittedTable, ...] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def chain(self) -> tuple[Library, ...]:
        """Itself, and those that it falls back on."""
        return (self, *(library(self.fallback).chain if self.fallback else ()))

    def eager_floor(self, family: str) -> float:
        """The least time of a collective that is launched from Python; of an unmeasured generation the longest."""
        return self.eager_floor_s.get(family, max(self.eager_floor_s.values(), default=0.0))

    def rows(self, family: str, kind: str) -> tuple[PathRow, ...]:
        """What was measured on this kind of link: with this generation, else with its kin, else with whoever stands for all."""
        for who in (family, self.kin.get(family), self.kin.get(kind)):
            if own := tuple(r for r in self.path if who in r.families and kind in r.links):
                return own
        return ()


@lru_cache(maxsize=32)
def _reference(key: str) -> Link:
    return record(Link, table("links", key), f"links/{key}")


@lru_cache(maxsize=64)
def library(name: str) -> Library:
    """A library by key or alias, whatever version is named behind it."""
    if key := find("libraries", name.partition("@")[0]):
        return read_library("libraries", key)
    known = stems("libraries")
    raise Refusal(f"unknown library '{name}'{suggest(name, known)} (one of {', '.join(known)})", "library")


@lru_cache(maxsize=64)
def read_library(kind: str, key: str) -> Library:
    """A file of ``libraries`` or ``exchanges``."""
    where = f"{kind}/{key}"
    facts: Table = dict(table(kind, key))
    facts["path"] = [_path_row(row, f"{where}.path") for row in facts.get("path", ())]
    for name, cls in (("spread", Spread), ("fitted", FittedTable)):
        facts[name] = [plain(cls, row, f"{where}.{name}") for row in facts.get(name, ())]
    network = dict(facts.get("network", {}))
    if source := network.pop("kind", ""):
        network["label"] = Source(source, network["label"], network["label"])
    facts["network"] = plain(Network, network, f"{where}.network")
    return plain(Library, facts, where)


def _path_row(row: Table, where: str) -> PathRow:
    """What a row serves, and its constants as a path of no collective yet; sizes by group are pairs there."""
    served = {f.name for f in fields(PathRow)}
    facts: Table = {"op": "", **{key: value for key, value in row.items() if key not in served}}
    facts |= {key: sorted((int(n), float(x)) for n, x in facts[key].items()) for key in ("max_bytes", "contention") if key in facts}
    facts["source"] = Source("measured", facts["source"], facts["source"])
    return plain(PathRow, {"path": plain(Path, facts, where), **{k: row[k] for k in served if k in row}}, where)
