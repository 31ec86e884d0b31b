"""The law of parts, counted: every fitted number wherever it is stored, what it was fitted on, and whether it keeps the law.

An effect that was fitted end to end on a kernel lies within ``LAW``, belongs to an engine, a kind of kernel and a family of chips,
never to a model, and names its mechanism. ``census.toml`` says which keys of which files are fitted numbers, ``effects.toml`` which
of those are effects.
"""

import ast
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import commtax
from commtax.catalog.loader import Table
from commtax.catalog.programs import mechanism
from commtax.records import dataclass
from commtax_lab import lab_table

RULES = lab_table("census.toml")
LAW = (0.7, 1.4)
"""What effects that were fitted end to end may make of a kernel's time."""
PACKAGE = Path(commtax.__file__).parent
MODELLED = ("cost/**/*.py", "catalog/fabric.py", "catalog/hardware.py", "catalog/kernel_constants.py", "catalog/p*.py")
"""Code that prices: every number that it names has to be told as fitted or as a fact."""
KINDS = ("kernel", "collective", "effect", "host", "queue", "overlap", "memory", "range")
"""What numbers were fitted for, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a number, and the mechanism behind it."""

    engine: str = ""
    chips: str = ""
    kernel: str = ""
    model: str = ""  # or family of models
    mechanism: str = ""


@dataclass(frozen=True, slots=True)
class CensusEntry:
    """A number with its file, kind and owner. ``fitted_on`` is empty where it was chosen, and a ``factor`` of 1 changes nothing."""

    file: str
    group: str
    name: str
    value: float
    kind: str
    fitted_on: str = ""
    owner: Owner = Owner()
    factor: bool = False

    @property
    def where(self) -> str:
        return f"{self.file} {self.group}{'.' if self.group else ''}{self.name}"


def census(root: Path = PACKAGE) -> list[CensusEntry]:
    """List every fitted number of a version of this package, by default the present one."""
    entries: list[CensusEntry] = []
    for kind, numbers in READERS.items():
        for path in _files(root, f"catalog/{kind}/*.toml"):
            entries += numbers(_relative_path(path, root), _read(path))
    for row in RULES["ranges"]:
        entries += _range_numbers(row, _read(root / row["file"]))
    return [*entries, *_code_numbers(root)]


def broken_rules(number: CensusEntry) -> tuple[str, ...]:
    """List the rules of the law that a number breaks. Only effects on kernels can break any."""
    if number.kind != "effect" or not number.fitted_on:
        return ()
    rules = {
        f"outside {LAW[0]:g} to {LAW[1]:g}": number.factor and not LAW[0] <= number.value <= LAW[1],
        "no factor that can be held to the law": not number.factor,
        "belongs to models": bool(number.owner.model),
        "belongs to no engine": not number.owner.engine and mechanism(number.name).of != "chip",
        "belongs to no chips": not number.owner.chips,
        "no kind of kernel": not number.owner.kernel,
        "no mechanism": not number.owner.mechanism,
    }
    return tuple(rule for rule, breaks in rules.items() if breaks)


def breakers(numbers: list[CensusEntry]) -> dict[str, tuple[str, ...]]:
    """Return the rules that each law-breaking number breaks, by where it is stored."""
    return {number.where: rules for number in numbers if (rules := broken_rules(number))}


def unclassified_numbers(root: Path = PACKAGE) -> list[str]:
    """List the numbers that no rule classifies: keys of engine files, and constants of the code that prices."""
    facts, keys = RULES["engines"]["facts"], set[str]()
    for path in _files(root, "catalog/engines/*.toml"):
        keys |= {key for _, key, _, _ in _sourced_numbers(_read(path), "")}
    unknown = sorted(f"engines: {key}" for key in keys if key not in facts and not mechanism(key).kind)
    for path in sorted({path for pattern in MODELLED for path in _files(root, pattern)}):
        name = _relative_path(path, root)
        rules = {*RULES["code"].get(name, {}), *RULES["facts"].get(name, ())}
        unknown += [f"{name}: {constant}" for constant in _constants(path) if constant not in rules and "." not in constant]
    return unknown


def earlier_counts() -> Table:
    """Return the earlier census: its commit, and its numbers by kind."""
    return dict(RULES["stood"])


def _files(root: Path, pattern: str) -> list[Path]:
    return sorted(root.glob(pattern))


def _read(path: Path) -> Table:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _relative_path(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _effect(file: str, group: str, name: str, value: float, fitted_on: str, owner: Owner) -> CensusEntry:
    """Return the entry of a number that ``effects.toml`` names."""
    effect = mechanism(name)
    owner = replace(owner, kernel=effect.on, mechanism=effect.mechanism)
    return CensusEntry(file, group, name, value, effect.kind, fitted_on, owner, effect.dimensionless)


def _kernel_numbers(file: str, layer: Table) -> Iterator[CensusEntry]:
    rules, key = RULES["kernels"], layer["key"]
    if key in rules["definition"]:
        return
    home = ", ".join(layer.get("fitted_on") or layer.get("measured_on") or ())
    fitted_on = "" if key in rules["assumed"] else f"tables of single kernels{f' on {home}' * bool(home)}"
    chosen, measured = (set(rules[which].get(key, ())) for which in ("chosen", "measured"))
    for engine, group, form, constants in _kernel_tables(layer):
        for name, value in constants.items():
            if not _is_number(value) or name in rules["facts"]:
                continue
            kind, names = "range" if name in rules["ranges"] else "kernel", {form, f"{form}.{name}"}
            basis = "" if chosen & names else rules["published"].get(group.partition(".")[0], fitted_on)
            if kind == "kernel" and form in rules["whole"] and not measured & names:
                yield _effect(file, group, f"{form}.{name}", value, basis and "whole steps", Owner(engine, key))
            else:
                yield CensusEntry(file, group, name, value, kind, basis, Owner(engine, key, form))


def _kernel_tables(layer: Table) -> Iterator[tuple[str, str, str, Table]]:
    """Yield (engine, name in the file, form, constants) of every table of constants."""
    owners = [("", "", layer), ("", "fallback.", layer.get("fallback", {}))]
    owners += [(who, f"{kind}.{who}.", tables) for kind in ("engine", "timed") for who, tables in layer.get(kind, {}).items()]
    for engine, prefix, tables in owners:
        for form, kinds in tables.items():
            if isinstance(kinds, dict) and form not in ("engine", "timed", "fallback", "sources"):
                for dtype, constants in kinds.items():
                    if isinstance(constants, dict):
                        yield engine, f"{prefix}{form}.{dtype}", form, constants


def _library_numbers(file: str, facts: Table) -> Iterator[CensusEntry]:
    rules, sources = RULES["libraries"], facts.get("sources", {})
    kinds = dict.fromkeys(rules["fitted"], "collective") | dict.fromkeys(rules["ranges"], "range")
    for group, row in _library_tables(facts):
        title = sources.get(row.get("source", ""), {}).get("title", "")
        chosen = facts["key"] in rules["assumed"] or row.get("transferred") or group == ""
        fitted_on = "" if chosen else title or "tables of collectives"
        owner = Owner(facts["key"], ", ".join(row.get("families", ())), ", ".join(row.get("ops", ())))
        for name, value in row.items():
            several = value.values() if isinstance(value, dict) else [value]
            for each in (x for x in several if name in kinds and _is_number(x)):
                yield CensusEntry(file, group, name, each, kinds[name], fitted_on, owner)
    for chips, value in facts.get("eager_floor_s", {}).items():
        owner = Owner(facts["key"], chips)
        yield CensusEntry(file, "eager_floor_s", chips, value, "host", "collectives launched one by one", owner)


def _library_tables(facts: Table) -> Iterator[tuple[str, Table]]:
    """Yield the name and numbers of each table of a library's file that has any."""
    yield "", {name: value for name, value in facts.items() if _is_number(value)}
    for row in facts.get("path", ()):
        yield f"path {row.get('name', row['algorithm'])}", row
    for row in facts.get("hosts", ()):
        yield f"hosts {row['kind']}", {"source": "hosts", **row}
    for row in facts.get("spread", ()):
        yield f"spread {row['where']}", row
    for name, network in {"network": facts.get("network", {}), **facts.get("networks", {})}.items():
        yield name, {key: value for key, value in network.items() if key != "protocols"}
        for protocol in network.get("protocols", ()):
            yield f"{name} {protocol['name']}", protocol


def _link_numbers(file: str, facts: Table) -> Iterator[CensusEntry]:
    rules = RULES["links"]
    for group, name, value, source in _sourced_numbers(facts, ""):
        if name in rules["keys"] and source in rules["sources"]:
            owner = Owner(kernel=facts["kind"])
            yield CensusEntry(file, group, name, value, "collective", facts["sources"][source]["title"], owner)


def _engine_numbers(file: str, facts: Table) -> Iterator[CensusEntry]:
    rules = RULES["engines"]
    counted, measured = (rules[which].get(facts["key"], ()) for which in ("counted", "measured"))
    for group, name, value, source in _sourced_numbers(facts, ""):
        if mechanism(name).kind and source not in counted:
            title = "" if source in rules["assumed"] else facts["sources"][source]["title"]
            version = group.removeprefix("versions.")
            owner = Owner(f"{facts['key']}@{version or facts['version']}", _fitted_chips(facts, version, source))
            number = _effect(file, group, name, value, title, owner)
            yield replace(number, kind="kernel") if source in measured else number


def _fitted_chips(facts: Table, version: str, source: str) -> str:
    """Return the chips that a number's source names, else those whose runs its version or engine was fitted on."""
    of_version = facts.get("versions", {}).get(version, {})
    stated = (facts["sources"][source].get("chips"), of_version.get("served_on"), facts.get("served_on"), facts.get("fitted_chips"))
    return ", ".join(next((chips for chips in stated if chips), ()))


def _sourced_numbers(facts: Mapping[str, object], group: str) -> Iterator[tuple[str, str, float, str]]:
    """Yield (table, key, number, source) of every number with a source."""
    for key, value in facts.items():
        if isinstance(value, dict) and key != "sources":
            yield from _sourced_numbers(value, f"{group}{'.' if group else ''}{key}")
        elif isinstance(value, list) and len(value) == 2 and _is_number(value[0]) and isinstance(value[1], str):
            yield group, key, value[0], value[1]


def _range_numbers(row: Mapping[str, str], facts: Mapping[str, object]) -> Iterator[CensusEntry]:
    def numbers(group: str, inner: object) -> Iterator[tuple[str, float]]:
        if _is_number(inner):
            yield group, inner
        elif isinstance(inner, dict):
            for key, value in inner.items():
                yield from numbers(f"{group}{'.' if group else ''}{key}", value)

    for where, value in numbers("", facts):
        yield CensusEntry(row["file"], *where.rpartition(".")[::2], value, "range", row["fitted_on"])


def _code_numbers(root: Path) -> Iterator[CensusEntry]:
    for file, names in RULES["code"].items():
        values = _constants(root / file)
        for name, entry in names.items():
            if name in values:
                effect = mechanism(entry.get("effect", ""))
                owner = Owner(chips="all" if effect.kind else "", kernel=effect.on, mechanism=effect.mechanism)
                named, value = entry.get("effect", name), values[name][entry.get("index", 0)]
                yield CensusEntry(file, "", named, value, entry["kind"], entry["fitted_on"], owner)


def _constants(path: Path) -> dict[str, list[float]]:
    """Collect the numbers in a module's constants and in the fields of its classes."""
    constants: dict[str, list[float]] = {}
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    inner = [(f"{node.name}.", one) for node in body if isinstance(node, ast.ClassDef) for one in node.body]
    for prefix, node in [*(("", node) for node in body), *inner]:
        for name, value in _assignments(node):
            literals = [float(x.value) for x in ast.walk(value) if isinstance(x, ast.Constant) and _is_number(x.value)]
            if literals:
                constants[f"{prefix}{name}"] = literals
    return constants


def _assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield each assigned name with its expression, the names of a tuple one by one."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return
    target, value = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
    pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
    for name, expression in pairs:
        if isinstance(name, ast.Name):
            yield name.id, expression


def totals(numbers: list[CensusEntry]) -> dict[str, int]:
    """Count the fitted numbers of each kind, and the chosen ones."""
    fitted = {kind: sum(n.kind == kind and bool(n.fitted_on) for n in numbers) for kind in KINDS}
    return fitted | {"chosen": sum(not n.fitted_on for n in numbers)}


READERS: Mapping[str, Callable[[str, Table], Iterator[CensusEntry]]] = {
    "kernels": _kernel_numbers,
    "libraries": _library_numbers,
    "exchanges": _library_numbers,
    "fusions": _library_numbers,
    "links": _link_numbers,
    "engines": _engine_numbers,
}
"""Folders of the catalogue whose files hold fitted numbers."""
