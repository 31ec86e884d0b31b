"""Fields of a ``config.json``, read one by one; what is missing or unreadable is remembered, to name it all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from commtax.records import dataclass
from commtax.statement import Note

MAX_SIZE = 2**40
MAX_LAYERS = 10_000


@dataclass
class Fields:
    """Reads fields and remembers which were asked for, which were at fault, and what had to be taken from elsewhere."""

    config: Mapping[str, object]
    bad: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        """The field as it is; None where it is absent."""
        self.asked.add(name)
        return self.config.get(name)

    def with_(self, **values: object) -> Fields:
        return Fields({**self.config, **values}, self.bad, self.notes, self.asked)

    def inside(self, config: Mapping[str, object]) -> Fields:
        """A section of the same config."""
        return Fields(config, self.bad, self.notes, self.asked)

    def whole(self, name: str, least: int, default: int) -> int:
        """A whole number of at least so much; what is none is remembered."""
        value = self.config[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < MAX_SIZE and value == int(value):
            return int(value)
        self.bad.append(f"{name}={value!r}")
        return default

    def need(self, *names: str) -> int:
        """A positive whole number under the first of the names that is present."""
        name = next((name for name in names if self.get(name) is not None), None)
        if name is not None:
            return self.whole(name, 1, 1)
        self.bad.append(names[0])
        return 1

    def layers(self, *names: str) -> int:
        """The number of layers: bounded, because a list is made of them."""
        count = self.need(*names)
        if count > MAX_LAYERS:
            self.bad.append(f"{names[0]}={count} (at most {MAX_LAYERS:,})")
            return 1
        return count

    def number(self, name: str, default: int, most: int = MAX_SIZE) -> int:
        """A whole number of at least 0, or the architecture's default where it is absent or null."""
        if self.get(name) is None:
            return default
        value = self.whole(name, 0, default)
        if value > most:
            self.bad.append(f"{name}={value} (at most {most:,})")
            return default
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def inner(self, name: str) -> Fields:
        """A nested section such as ``text_config``."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            self.bad.append(name)
            return self.inside({})
        return self.inside(value)

    def section(self, name: str) -> Fields | None:
        return self.inner(name) if self.get(name) is not None else None

    def sequence(self, name: str, length: int) -> list[object] | None:
        """A list with one entry a layer, or None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            self.bad.append(f"{name} (want {length} entries)")
            return None
        return value[:length]

    def pattern(self, name: str, length: int) -> list[object]:
        """A list with one entry a layer that the family cannot do without."""
        entries = self.sequence(name, length)
        if entries is None and name not in self.config:
            self.bad.append(name)
        return entries or [None] * length

    def indices(self, name: str) -> set[int]:
        """A list of layers' numbers; none where it is absent."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(type(entry) is int for entry in value)):
            self.bad.append(f"{name} (want a list of layers' numbers)")
            return set()
        return set(value) if isinstance(value, list) else set()

    def default(self, name: str, value: str) -> None:
        """A field that is absent has the value that the family's own code gives it: said, because it was not read."""
        self.notes.append(Note("config-default", f"{name} is not in the config: {value}, as its model class assumes"))
