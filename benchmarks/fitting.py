"""The frame of all fits: rows of published kernels, groups left out in turn, the search for constants, and where they are written.

A fit says its rows, its parameters and its model. Fitted are rows that ``commtax validate`` marks so; the others test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import commtax
from commtax.spec import Chip
from commtax_lab.published import kernel_tables
from commtax_lab.published.kernel_kinds.kind import KernelKind
from commtax_lab.published.spellings import dtype_named
from commtax_lab.published.tables import dicts, read

CATALOG = Path(commtax.__file__).parent / "catalog"
KERNELS, LIBRARIES = CATALOG / "kernels", CATALOG / "libraries"
READ_BY_US = Path(__file__).parent / "published" / "collectives.csv"  # figures in logs and documents
FAMILIES = {"ampere": ("a100_sxm",), "hopper": ("h100_sxm",), "ada": ("l40s",), "blackwell": ("b200_sxm", "b300_sxm", "gb200")}
"""Families of chips, and the tables of each."""
SYSTEMS = tuple(system for systems in FAMILIES.values() for system in systems)
ENGINES = ("vllm", "sglang", "trtllm")
COLLECTIVES = ("collectives.csv", "collectives_more.csv")
CLEARLY = 0.03  # by which an engine's own constants must be better than the family's
Array = NDArray[np.float64]
Constants = dict[str, float]


@dataclass(frozen=True)
class KernelGroup:
    """Rows of one table that are alike in words: ``words`` have number formats as they are named here, ``written`` as there."""

    system: str
    tail: str
    chip: Chip
    kind: KernelKind
    words: dict[str, str]
    sizes: dict[str, Array]
    fitted: NDArray[np.bool_]

    @property
    def seconds(self) -> Array:
        return self.sizes["seconds"]

    def make(self, rows: Any = slice(None)) -> list[Any]:
        """The kernels of some rows."""
        return list(self.kind.make(self.words, {name: column[rows] for name, column in self.sizes.items()}))


def kernel_groups(folder: Path, systems: Iterable[str], tails: Iterable[str]) -> Iterator[KernelGroup]:
    for system, tail in product(systems, tails):
        path = folder / "kernels_more" / f"{system}_{tail}.csv.gz"
        if path.exists():
            yield from _groups_of(path, system, tail)


@lru_cache(maxsize=200)
def _groups_of(path: Path, system: str, tail: str) -> list[KernelGroup]:
    table = kernel_tables.read(path.name, *read(path))
    if table.chip is None:
        return []
    fitted, made = table.fitted(), []
    for words, mask in table.groups():
        named = {"written": words["dtype"], **{name: dtype_named(words[name]) or words[name] for name in ("dtype", "stored")}}
        sizes = {name: column[mask] for name, column in table.sizes.items()}
        for name in set(table.kind.times_us) & set(table.text):
            sizes[name] = table.text[name][mask].astype(float) * 1e-6
        made.append(KernelGroup(system, tail, table.chip, table.kind, {**words, **named}, sizes, fitted[mask]))
    return made


def collective_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of the large tables of collectives, and those that we read in documents."""
    return [row for path in (*(folder / name for name in COLLECTIVES), READ_BY_US) if path.exists() for row in dicts(*read(path))]


def leave_out(members: Iterable[Any], of: Callable[[Any], Hashable]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Each group by its name, with the members of all others, and its own."""
    members = list(members)
    for name in sorted({of(one) for one in members}, key=str):
        yield name, [one for one in members if of(one) != name], [one for one in members if of(one) == name]


def spread_over(count: int, most: float) -> NDArray[np.int64]:
    """At most so many places of a table, spread over it."""
    return np.linspace(0, count - 1, max(1, min(count, round(most)))).astype(int)


def miss(log_errors: Any, share: float = 0.5) -> float:
    """The relative error that this share of rows keeps: their median, where nothing else is asked for."""
    return float(np.quantile(np.abs(np.expm1(log_errors)), share)) if len(log_errors) else float("nan")


@dataclass(frozen=True)
class Descent:
    """Levenberg-Marquardt on log errors, each weighted down as it strays (soft L1)."""

    scale: float  # errors far above it hardly count
    rounds: int = 30
    slope: float = 1e-3  # of a logarithm, to see how errors move
    reach: float = 0.5  # the most that a logarithm moves in a round
    tries: int = 7  # of a round, with ever more damping
    gain: float = 1e-5  # share of the loss that a round must save
    enough: float = 0.0  # a round that saves less is the last

    def loss(self, errors: Array, weight: Any = 1.0) -> float:
        return float(np.sum(weight * self.stray(errors)))

    def stray(self, errors: Array) -> Array:
        """Scales that an error lies off, and 1 near 0."""
        return np.sqrt(1 + (errors / self.scale) ** 2)

    def solve(self, errors: Callable[[Array], Array], start: Array, low: Any, high: Any, weight: Any = 1.0) -> tuple[Array, Array]:
        """Where errors are least between the bounds, and the errors there."""
        x, damping = np.clip(start, low, high), 1e-2
        here = errors(x)
        for _ in range(self.rounds):
            slopes = np.stack([(errors(x + self.slope * axis) - here) / self.slope for axis in np.eye(len(x))])
            weighted, loss = slopes * (weight / self.stray(here)), self.loss(here, weight)
            matrix, right = weighted @ slopes.T, -weighted @ here
            for _ in range(self.tries):
                step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix) + 1e-9), right)
                tried = np.clip(x + np.clip(step, -self.reach, self.reach), low, high)
                there = errors(tried)
                if (now := self.loss(there, weight)) < loss * (1 - self.gain):
                    x, here, damping = tried, there, damping / 3
                    break
                damping *= 4
            else:
                break
            if now > loss * (1 - self.enough):
                break
        return x, here


def write_table(path: Path, section: str, values: Mapping[str, Any]) -> None:
    """Set values of a table of a catalogue's file: in their places, or as its last; a new table stands before the sources."""
    text = path.read_text() if path.exists() else f'key = "{path.stem}"\n\n'
    head = f"[{section}]\n"
    if head not in text:
        at = text.index("[sources.") if "[sources." in text else len(text)
        text = f"{text[:at]}{head}\n{text[at:]}"
    start = text.index(head) + len(head)
    end = start + re.search(r"^\n|^\[|\Z", text[start:], re.M).start()  # type: ignore[union-attr]
    lines = {line.partition(" = ")[0]: line for line in text[start:end].splitlines()}
    lines |= {key: f"{key} = {toml_value(value)}" for key, value in values.items()}
    path.write_text(text[:start] + "".join(f"{line}\n" for line in lines.values()) + text[end:])


def drop_tables(path: Path, sections: Iterable[str]) -> None:
    if path.exists():
        heads = tuple(f"[{section}]" for section in sections)
        path.write_text("\n\n".join(block for block in path.read_text().split("\n\n") if not block.startswith(heads)))


def toml_value(value: Any) -> str:
    """Four digits are all that rows can tell."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {toml_value(one)}' for name, one in value.items())} }}"
    return f"{value:.4g}"
