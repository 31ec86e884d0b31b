"""A table of a document that somebody hands over, read by rules: known keys, texts, and numbers within ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from commtax.catalog import physics
from commtax.catalog.loader import Facts, suggest
from commtax.records import dataclass
from commtax.statement import Refusal


@dataclass(frozen=True, slots=True)
class TableView:
    """A table of the document, and the name it has for people."""

    table: Facts
    where: str = ""

    @classmethod
    def of(cls, value: object, where: str, what: str = "a table of names and values") -> TableView:
        if not isinstance(value, dict):
            raise Refusal(f"{where}={physics.short_repr(value)}: {what} is needed", where)
        return cls(value, where)

    def named(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def part(self, key: str) -> TableView:
        return TableView.of(self.table.get(key, {}), self.named(key))

    def check_known(self, known: Collection[str]) -> None:
        unknown = sorted(set(self.table) - set(known))
        if unknown:
            raise Refusal(f"unknown key '{self.named(unknown[0])}'{suggest(unknown[0], known)}", self.named(unknown[0]))

    def text(self, key: str, usual: str = "") -> str:
        text = self.table.get(key, usual)
        if not isinstance(text, str):
            raise Refusal(f"{self.named(key)}={physics.short_repr(text)}: a text is needed", self.named(key))
        return text

    def switch(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            raise Refusal(f"{self.named(key)}={physics.short_repr(value)}: true or false is needed", self.named(key))
        return value

    def rows(self, key: str) -> list[object]:
        """A list; one that is not there is empty."""
        value = self.table.get(key, [])
        if not isinstance(value, list):
            raise Refusal(f"{self.named(key)}={physics.short_repr(value)}: a list is needed", self.named(key))
        return value

    def texts(self) -> dict[str, str]:
        return {key: self.text(key) for key in self.table}

    def some(self, ranges: Mapping[str, physics.PhysicalRange]) -> dict[str, float]:
        """The numbers of these names that are given."""
        return {key: rule.read(self.table[key], self.named(key)) for key, rule in ranges.items() if key in self.table}

    def all_of(self, ranges: Mapping[str, physics.PhysicalRange]) -> dict[str, float]:
        """The numbers of these names, each of which is needed."""
        missing = [key for key in ranges if key not in self.table]
        if missing:
            raise Refusal(f"{self.where} lacks {', '.join(missing)}", self.named(missing[0]))
        return self.some(ranges)

    def numbers(self, ranges: Mapping[str, physics.PhysicalRange]) -> dict[str, float]:
        """All that is in it, as numbers of these names."""
        self.check_known(ranges)
        return {key: ranges[key].read(value, self.named(key)) for key, value in self.table.items()}
