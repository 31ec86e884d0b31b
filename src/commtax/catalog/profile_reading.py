"""A profile's document into a ``Profile``: a constant has a form and a range (``physics``), a known chip or link its ceiling."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import cast

from commtax import catalog
from commtax.catalog import physics
from commtax.catalog.fabric import FORMS
from commtax.catalog.libraries import OPS
from commtax.catalog.loader import Table, suggest
from commtax.files import Json
from commtax.spec import ChipFacts, Link, Path, Profile
from commtax.statement import Refusal, Source

VERSION = 1
ALGORITHMS = ("ring", "ring-simple", "tree", "one-shot", "two-shot", "in-switch")
PARTS = ("name", "chip", "kernels", "library", "libraries", "network", "links", "engine", "dtype", "sources")


@dataclass(frozen=True, slots=True)
class _Part:
    """A table of the document, and the name it has for people."""

    table: Table
    where: str = ""

    @classmethod
    def of(cls, value: Json, where: str, what: str = "a table of names and values") -> _Part:
        if not isinstance(value, dict):
            raise Refusal(f"{where}={physics.shown(value)}: {what} is needed", where)
        return cls(value, where)

    def named(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def part(self, key: str) -> _Part:
        return _Part.of(self.table.get(key, {}), self.named(key))

    def check_known(self, known: Collection[str]) -> None:
        unknown = sorted(set(self.table) - set(known))
        if unknown:
            raise Refusal(f"unknown key '{self.named(unknown[0])}'{suggest(unknown[0], known)}", self.named(unknown[0]))

    def text(self, key: str, usual: str = "") -> str:
        found = self.table.get(key, usual)
        if not isinstance(found, str):
            raise Refusal(f"{self.named(key)}={physics.shown(found)}: a text is needed", self.named(key))
        return found

    def texts(self) -> dict[str, str]:
        return {key: self.text(key) for key in self.table}

    def some(self, ranges: Mapping[str, physics.Range]) -> dict[str, float]:
        """The numbers of these names that are given."""
        return {key: rule.read(self.table[key], self.named(key)) for key, rule in ranges.items() if key in self.table}

    def numbers(self, ranges: Mapping[str, physics.Range]) -> dict[str, float]:
        """All that is in it, as numbers of these names."""
        self.check_known(ranges)
        return {key: ranges[key].read(value, self.named(key)) for key, value in self.table.items()}


def parse(document: Json, name: str = "") -> Profile:
    """A profile from its document; what cannot be is refused by key and rule."""
    if not isinstance(document, dict) or document.get("commtax_profile") != VERSION:
        raise Refusal(f"not a commtax profile of version {VERSION}")
    whole = _Part(document)
    whole.check_known({"commtax_profile", *PARTS, *physics.HOST})
    network = whole.part("network").numbers(physics.NETWORK)
    if network.get("least_ranks", 1) > network.get("most_ranks", 2**31):
        raise Refusal(f"network.least_ranks={network['least_ranks']:g}: at most most_ranks, {network['most_ranks']:g}")
    profile = Profile(
        name=whole.text("name", name),
        chip=_chip(whole.part("chip")),
        tables=dict(_tables(whole.part("kernels").part("tables"))),
        libraries=dict(_libraries(whole)),
        network=network,
        host=whole.some(physics.HOST),
        links=whole.part("links").texts(),
        engine=whole.text("engine"),
        dtype=whole.text("dtype"),
        sources=whole.part("sources").texts(),
    )
    whole.part("links").check_known({"intra", "inter"})
    _check_ceilings(profile)
    return profile


def _check_ceilings(profile: Profile) -> None:
    """Of the chip and the link that it names; what names none is held against the cluster that it is used on."""
    if (key := profile.chip.get("key", "")) in catalog.keys("chips"):
        physics.check_chip(profile.chip, catalog.chip(key))
    if (key := profile.links.get("intra", "")) in catalog.keys("links"):
        check_paths(profile, catalog.link(key))


def check_paths(profile: Profile, link: Link) -> None:
    for library, paths in profile.libraries.items():
        for path in paths:
            physics.check_path(path, link, f"{library} {path.op}")


def _chip(part: _Part) -> ChipFacts:
    part.check_known({"key", "name", "flops_per_s", *physics.CHIP})
    facts: Table = {key: part.text(key) for key in ("key", "name") if key in part.table} | part.some(physics.CHIP)
    rates = part.part("flops_per_s")
    for dtype in rates.table:
        physics.known_type(dtype, rates.named(dtype))
    if rates.table:
        facts["flops_per_s"] = rates.numbers(dict.fromkeys(rates.table, physics.FLOPS))
    return cast(ChipFacts, facts)


def _tables(part: _Part) -> Iterator[tuple[str, dict[str, float]]]:
    """Kernel constants: of known forms, complete, because each table stands in for a whole one."""
    for name in part.table:
        form, constants = name.partition(".")[0], part.part(name)
        if form not in FORMS:
            raise Refusal(f"unknown kernel table {name!r}{suggest(form, FORMS)}")
        missing = [key for key in physics.NEEDED[form] if key not in constants.table]
        if missing:
            raise Refusal(f"kernel table {name!r} lacks {', '.join(missing)}")
        yield name, constants.numbers(physics.KERNEL)


def _libraries(whole: _Part) -> Iterator[tuple[str, tuple[Path, ...]]]:
    one = whole.part("library").table
    entries = _list(whole.table.get("libraries", []), "libraries") or ([one] if one else [])
    for index, entry in enumerate(entries):
        part = _Part.of(entry, f"libraries[{index}]", "a table with a name and paths")
        part.check_known({"name", "paths"})
        rows = _list(part.table.get("paths"), part.named("paths"))
        yield part.text("name", "nccl"), tuple(_path(row, f"{part.where}.paths[{i}]") for i, row in enumerate(rows))


def _list(value: Json, name: str) -> list[Json]:
    if not isinstance(value, list):
        raise Refusal(f"{name}={physics.shown(value)}: a list is needed", name)
    return value


def _path(row: Json, where: str) -> Path:
    part = _Part.of(row, where, "a table of a path's constants")
    part.check_known({f.name for f in fields(Path)} - {"own"})
    facts: Table = {key: part.text(key) for key in ("op", "algorithm", "name") if key in row}
    if "source" in row:
        facts["source"] = Source("calibrated", part.text("source"))
    for key, known in (("op", OPS), ("algorithm", ALGORITHMS)):
        if facts.get(key) not in known:
            raise Refusal(f"{where}.{key}={physics.shown(facts.get(key))}: one of {', '.join(known)}", key, known)
    physics.PATH["bandwidth_Bps"].read(row.get("bandwidth_Bps"), f"{where}.bandwidth_Bps")
    facts |= part.some(physics.PATH)
    facts |= {key: int(facts[key]) for key in ("turn", "min_ranks", "max_ranks") if key in facts}
    facts |= {key: _sizes(row[key], f"{where}.{key}") for key in physics.GROUPS if key in row}
    facts |= {key: _by_size(row[key], rule, f"{where}.{key}") for key, rule in physics.BY_SIZE.items() if key in row}
    if facts.get("min_ranks", 1) > facts.get("max_ranks", 2**31):
        raise Refusal(f"{where}.min_ranks={facts['min_ranks']}: at most max_ranks, {facts['max_ranks']}")
    return Path(**facts)


def _sizes(value: Json, name: str) -> tuple[int, ...]:
    return tuple(int(physics.RANKS.read(size, name)) for size in _list(value, name))


def _by_size(value: Json, rule: physics.Range, name: str) -> tuple[tuple[int, float], ...]:
    """Pairs of a group size and its value, smaller groups first."""
    pairs = _list(value, name)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Refusal(f"{name}={physics.shown(value)}: pairs of a group size and its value are needed", name)
    sizes = _sizes([size for size, _ in pairs], name)
    if list(sizes) != sorted(set(sizes)):
        raise Refusal(f"{name}={physics.shown(value)}: group sizes rise from pair to pair", name)
    return tuple(zip(sizes, (rule.read(v, name) for _, v in pairs), strict=True))
