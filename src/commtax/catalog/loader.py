"""Strict reading of catalogue files, rows of Hub models too: every number carries its source, and an unknown key is an error."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from commtax.files import Json, JsonObject
from commtax.files import table as kept
from commtax.spec import Citation
from commtax.statement import Refusal

Table = dict[str, Any]  # a file of ours, whose keys its kind knows
Row = tuple[Table, str, str, Json, list[Json], list[str]]
"""The table that a row of ``hub.json`` stands in, and the row: key, id, parameters as published, values, other ids."""
UNITS = {"B": 1e9, "M": 1e6}


def _published_totals(counts: Json, url: str) -> Iterator[JsonObject]:
    """Yield totals of tensors, whole numbers that cards print rounded, a second one for those that a token uses."""
    for kind, count in zip(("total", "active"), counts if isinstance(counts, list) else [counts], strict=False):
        params, digits = (count, 0) if isinstance(count, int) else parse_printed_count(str(count))
        title = "as the model's card prints it" if digits else "tensor total of the checkpoint on the Hugging Face Hub"
        source: JsonObject = {"title": title, "url": url, "date": ""}
        yield {"params": params, "kind": kind, "digits": digits, "beyond": 0, "includes": "", "source": source}


def parse_printed_count(text: str) -> tuple[int, int]:
    """Return a printed count, and its significant digits.

    >>> parse_printed_count("12.30B"), parse_printed_count("0.4B")
    ((12300000000, 4), (400000000, 1))
    """
    return round(float(text[:-1]) * UNITS[text[-1]]), len(re.sub(r"^0*", "", text[:-1].replace(".", "")))


Facts = Mapping[str, object]
T = TypeVar("T")
NOTHING: Mapping[str, type] = {}
FACTS = Path(__file__).parent


def record(cls: type[T], table: Facts, where: str, parts: Mapping[str, type] = NOTHING, fixed: Facts = NOTHING) -> T:
    """Build a record from a table of ``[value, source]`` pairs, with the fields of its ``parts``, and ``fixed`` ones of no file."""
    facts = {**table, **fixed}
    cited = facts.pop("sources", None)  # ``chips``, on which a source's numbers were fitted, are read by the census alone
    sourced = cited.items() if isinstance(cited, Mapping) else ()
    named = {key: Citation(**{k: value for k, value in source.items() if k != "chips"}) for key, source in sourced}
    by_name = {f.name: f for kind in (cls, *parts.values()) for f in _fields(kind) if f.name not in parts}
    _check_keys(facts, by_name, where)
    sources: dict[str, Citation] = {}
    values = {**{key: _value(entry, key, named, sources, where) for key, entry in facts.items() if key not in fixed}, **fixed}
    values |= {"sources": sources} if "sources" in by_name else {}
    for part, kind in parts.items():
        values[part] = kind(**{f.name: values.pop(f.name) for f in _fields(kind) if f.name in values})
    return cls(**values)


def plain_record(cls: type[T], table: Facts, where: str) -> T:
    """Build a record from a table that names one source for all of its numbers, or none."""
    _check_keys(table, {f.name: f for f in _fields(cls)}, where)
    return cls(**{key: tuple(entry) if isinstance(entry, list) else entry for key, entry in table.items()})


def _fields(kind: type) -> tuple[Field[object], ...]:
    return fields(kind)


def _check_keys(table: Facts, by_name: Mapping[str, Field[object]], where: str) -> None:
    unknown = [key for key in table if key not in by_name]
    if unknown:
        raise Refusal(f"{where}: unknown key {unknown[0]!r}{suggest(unknown[0], by_name)}")
    missing = [n for n, f in by_name.items() if n not in table and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise Refusal(f"{where}: missing {', '.join(missing)}")


def _value(entry: object, key: str, named: Mapping[str, Citation], sources: dict[str, Citation], where: str) -> object:
    if isinstance(entry, dict):
        return {inner: _value(v, f"{key}.{inner}", named, sources, where) for inner, v in entry.items()}
    if isinstance(entry, (int, float)) and not isinstance(entry, bool):
        raise Refusal(f'{where}: {key} = {entry} has no source; write [{entry}, "source"]')
    if isinstance(entry, list) and len(entry) == 2 and not isinstance(entry[0], str):
        value, source = entry
        if source not in named:
            raise Refusal(f"{where}: {key} names the source {source!r}, which is not given")
        sources[key] = named[source]
        return tuple(value) if isinstance(value, list) else value
    return tuple(entry) if isinstance(entry, list) else entry


@lru_cache(maxsize=8)
def stems(kind: str) -> tuple[str, ...]:
    """Return the keys of one kind: its files' names, sorted, and behind those of models the rows of the Hub's."""
    files = sorted(f.stem for f in (FACTS / kind).iterdir() if f.suffix in (".toml", ".json"))
    return (*files, *sorted(_rows())) if kind == "models" else tuple(files)


@lru_cache(maxsize=1)
def _rows() -> dict[str, Row]:
    families = kept(str(FACTS / "hub_models.toml"))["family"]
    return {r[0]: (family, r[0], r[1], r[2], r[3], r[4]) for family in families for r in family["rows"]}


@lru_cache(maxsize=512)
def table(kind: str, stem: str) -> Table:
    """Return the file of one key, where a ``config.json`` keeps its format and all others are TOML, or its row."""
    if kind != "models":
        return kept(str(FACTS / kind / f"{stem}.toml"))
    if row := _rows().get(stem):
        family, key, name, counts, values, others = row
        url, title = f"https://huggingface.co/{name}", f"config.json of {name} on the Hugging Face Hub"
        rest, sizes_of_row = family["rest"], dict(zip(family["fields"], values, strict=True))
        section = family.get("section", "")
        sizes: JsonObject = {section: {**rest[section], **sizes_of_row}} if section else sizes_of_row
        config = {"architectures": [family["architecture"]], **rest, **sizes}
        source = {"title": title, "url": f"{url}/blob/main/config.json", "date": ""}
        made: dict[str, object] = {"key": key, "aliases": [name, *others], "config": config, "source": source}
        return made | {"published": [*_published_totals(counts, url)], "assumed_length": key in family.get("assumed_length", ())}
    return dict(json.loads((FACTS / kind / f"{stem}.json").read_text(encoding="utf-8")))


@lru_cache(maxsize=8)
def aliases(kind: str) -> dict[str, str]:
    return {normal(alias): stem for stem in stems(kind) for alias in table(kind, stem).get("aliases", ())}


def find(kind: str, name: str) -> str:
    """Return the key by itself or an alias, or "" where there is none.

    >>> find("models", "Qwen3-235B"), find("models", "llama3.1 70b"), find("models", "qwen3")
    ('qwen3-235b-a22b', 'llama-3.1-70b', '')
    """
    wanted = normal(name)
    if wanted in stems(kind):
        return wanted
    if kind != "models" or wanted in aliases(kind):
        return aliases(kind).get(wanted, "")
    keys = _loose_names().get(wanted.replace("-", ""), set())
    return next(iter(keys)) if len(keys) == 1 else ""


@lru_cache(maxsize=1)
def _loose_names() -> dict[str, set[str]]:
    """Return keys of models by their names without dashes and without the count of active parameters (``-a22b``)."""
    names: dict[str, set[str]] = {}
    for stem in stems("models"):
        for short in (stem, re.sub(r"-a\d+(?:\.\d+)?b$", "", stem)):
            names.setdefault(short.replace("-", ""), set()).add(stem)
    return names


def key_of(kind: str, name: str) -> str:
    """Return the key by itself or an alias, or refuse an unused name with what is near."""
    if stem := find(kind, name):
        return stem
    raise Refusal(f"unknown {kind[:-1]} '{name}'{did_you_mean(name, kind)}", kind[:-1])


def did_you_mean(name: str, *kinds: str) -> str:
    """Suggest the nearest names that these kinds hold, as 'did you mean …?'."""
    return suggest(name, [name_of_kind for kind in kinds for name_of_kind in (*stems(kind), *aliases(kind))])


def normal(name: str) -> str:
    """Lower case with dashes, the organisation of a Hub id kept apart."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def letters_and_digits(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def suggest(name: str, choices: Iterable[str]) -> str:
    """Suggest the nearest choices, as 'did you mean …?', or nothing where nothing is near."""
    import difflib  # not for those who spell names right

    wanted, names = normal(name), sorted(set(choices))
    alike = 0.8 if "/" in wanted else 0.5  # ids of the Hub have owners and endings in common

    def abbreviates(longer: str) -> bool:  # all words and numbers stand in the longer name, in order: llama3-70b in llama-3.1-70b
        rest = iter(re.findall(r"[a-z]+|\d+", longer))
        return all(part in rest for part in re.findall(r"[a-z]+|\d+", wanted))

    longer = [c for c in names if len(wanted) > 1 and abbreviates(c) and ("/" in wanted or "/" not in c)]
    by_likeness = sorted(longer, key=lambda choice: difflib.SequenceMatcher(None, wanted, choice).ratio(), reverse=True)
    likely = list(dict.fromkeys([*by_likeness, *difflib.get_close_matches(wanted, names, n=3, cutoff=alike)]))[:3]
    return f"; did you mean {', '.join(likely[:-1])}{' or ' if likely[1:] else ''}{likely[-1]}?" if likely else ""


COUNTS = re.compile(r"(?:\d{1,15}x){0,2}")
INSTEAD = (
    "and no kernels were measured on it, so it has no price here; --cluster FILE.toml can describe it by its peaks, memory and "
    "links, priced as assumed (commtax catalog --help shows one)"
)


def check_measured(text: str, argument: str) -> None:
    """Refuse a name, with counts or without, that is such an accelerator's."""
    name = COUNTS.sub("", normal(text), count=1)
    made: list[dict[str, str]] = kept(str(FACTS / "unmeasured.toml"))["accelerator"]
    what = next((one["what"] for one in made if re.fullmatch(one["pattern"], name)), "")
    if what:
        raise Refusal(f"{argument} '{text[:60]}': {what}, {INSTEAD}", argument)


def parse_toml(text: str, what: str, argument: str) -> dict[str, object]:
    """Parse what a user wrote as TOML, or refuse it by ``what``, which names the file."""
    import tomllib  # not for those who have none

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Refusal(f"{what}: not valid TOML (lists or tables too deep in each other)", argument) from None
    except ValueError as error:  # also a whole number with more digits than Python reads
        raise Refusal(f"{what}: not valid TOML ({str(error)[:120]})", argument) from None


def version_parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``1.0.0rc3`` is 1, 0, 0."""
    return tuple(int(number[0]) for part in version.removeprefix("v").split(".") if (number := re.match(r"\d{1,9}", part)))


def nearest_version(version: str, versions: Iterable[str]) -> str:
    """Return the newest known version that is not newer, else the oldest.

    >>> nearest_version("0.5.12", ["0.5.10", "0.5.14"]), nearest_version("0.4", ["0.5.10", "0.5.14"])
    ('0.5.10', '0.5.10')
    """
    wanted, measured = version_parts(version), sorted(versions, key=version_parts)
    older = [v for v in measured if version_parts(v) <= wanted]
    return older[-1] if older else measured[0]


def is_same_version(version: str, measured: str) -> bool:
    """Return whether one of them is the other, or says less of it: 0.5 and 0.5.14."""
    one, other = version_parts(version), version_parts(measured)
    return one[: len(other)] == other[: len(one)]
