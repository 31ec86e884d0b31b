"""Checkpoints that no file of ours describes, by their names: a bundled model's release, stored as ending and maker tell.

A name that tells another size, family or kind of model than a bundled one means none: only endings that change no layer are taken
off it, and what was taken for what is said.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from commtax.catalog.loader import FACTS, aliases, normal, plain_record, stems
from commtax.catalog.quantisation import quantisation_of_config
from commtax.files import table as kept
from commtax.records import dataclass
from commtax.spec import Citation, Model
from commtax.statement import Note

LONGEST_NAME = 200  # signs of a name without its owner; the Hub allows 96


@dataclass(frozen=True, slots=True)
class StorageRule:
    """How checkpoints with these names are stored: those of ``ids``, or with these ``endings``, ``by`` these organisations."""

    config: Mapping[str, object]
    source: str
    ids: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    mixture: bool = False  # of models with experts alone
    of: str = ""  # the bundled model, where the name does not tell it
    expert_dtype: str = ""
    longest: int = 0  # tokens, where its config says other than the bundled model's

    def base(self, name: str) -> str:
        """The name of the model that a checkpoint of this rule is made from; "" where it is none."""
        organisation, _, last = name.rpartition("/")
        if self.knows(name):
            return self.of or next((last.removesuffix(end) for end in _endings() if last.endswith(end)), last)
        if self.by and organisation not in self.by:
            return ""
        return next((last.removesuffix(end) for end in self.endings if last.endswith(end)), "")

    def knows(self, name: str) -> bool:
        """Whether it is what this checkpoint's own config says."""
        return normal(name) in map(normal, self.ids)

    def suits(self, model: Model) -> bool:
        family = not self.architectures or model.architecture in self.architectures
        return family and (not self.mixture or model.experts is not None)


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    return kept(str(FACTS / "checkpoints.toml"))


@lru_cache(maxsize=1)
def rules() -> tuple[StorageRule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(plain_record(StorageRule, table, f"checkpoints {number}") for number, table in enumerate(_file()["rule"], start=1))


@lru_cache(maxsize=1)
def _endings() -> tuple[str, ...]:
    return tuple(sorted({end for rule in rules() for end in rule.endings}, key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class KnownModel:
    """The bundled model that a name means, how many tokens it takes where that is known to differ (0: as many), and by what."""

    key: str
    longest: int = 0
    by: str = "name"  # name: it is the model's own | release: its config is known | ending: all but what its name ends in


@lru_cache(maxsize=1)
def _releases() -> dict[str, KnownModel]:
    """Ids whose configs are known, or assumed, to have a bundled model's layers."""
    kinds = {True: "ending", False: "release"}
    made = ((x["ids"], KnownModel(x["of"], x.get("longest", 0), kinds[bool(x.get("assumed"))])) for x in _file()["releases"])
    return {normal(name): meaning for ids, meaning in made for name in ids}


@lru_cache(maxsize=1)
def _models_by_ending() -> dict[str, KnownModel]:
    """Bundled models and their releases by what their names end in, with and without the type that it says."""
    names = {**{alias.rpartition("/")[2]: key for alias, key in aliases("models").items()}, **{key: key for key in stems("models")}}
    usual = {**{name.removesuffix("-bf16"): key for name, key in names.items()}, **names}
    released = {name.rpartition("/")[2]: known for name, known in _releases().items()}
    return {**released, **{name: KnownModel(key) for name, key in usual.items()}}


@lru_cache(maxsize=1)
def _roots() -> dict[str, frozenset[str]]:
    """Models that names mean, by each name and by what is left of it as endings are taken off."""
    found: dict[str, set[str]] = {}
    for name, meaning in _models_by_ending().items():
        for root in _shortened_names(name):
            found.setdefault(root, set()).add(meaning.key)
    return {root: frozenset(keys) for root, keys in found.items()}


def _shortened_names(name: str) -> list[str]:
    """A name, and what is left of it as endings are taken off one by one."""
    names, ending = [name], f"{_file()['endings']}$"
    while (found := re.search(ending, names[-1])) and found.start() > 0:
        names.append(names[-1][: found.start()])
    return names


@lru_cache(maxsize=1024)
def meaning(name: str) -> KnownModel | None:
    """What a name without organisation and format means; None where it is no bundled model's, or might be one of several.

    >>> meaning("qwen3-4b-thinking-2507"), meaning("qwen3-5b"), meaning("mistral-7b-v0.9")
    (KnownModel(key='qwen3-4b', longest=262144, by='release'), None, None)
    """
    for short in _shortened_names(name) if len(name) <= LONGEST_NAME else ():
        if (known := _models_by_ending().get(short)) and short == name:
            return known
        if known:
            return replace(known, by="ending") if len(_roots()[short]) == 1 else None
    return None


def base_key(name: str) -> str:
    """The bundled model whose name this is, without organisation; "" where it is none's."""
    known = _models_by_ending().get(name)
    return known.key if known and known.by == "name" else ""


def made_of(name: str) -> list[tuple[StorageRule, KnownModel]]:
    """Rules that a checkpoint's name keeps to, each with the bundled model that it is made of."""
    wanted = normal(name.rstrip("/"))
    found = [(rule, meaning(base)) for rule in rules() if (base := rule.base(wanted))]
    return [(rule, known) for rule, known in found if known]


def release_of(name: str) -> KnownModel | None:
    """The bundled model that a name means whose format is not told: it is stored as that one.

    A copy that somebody else keeps has a release's name, and a config that is not known.
    """
    wanted = normal(name.rstrip("/"))
    if known := _releases().get(wanted):
        return known
    known = meaning(wanted.rpartition("/")[2])
    return replace(known, by="name") if known and known.by == "release" else known


def taken_as(name: str, base: Model, known: KnownModel, rule: StorageRule | None = None) -> Model:
    """The base model as its release has it, stored as the rule says, with a note that this is what it was taken for."""
    quant = None if rule else base.quant
    if rule and rule.config:
        quant = quantisation_of_config(
            {"quantization_config": rule.config, "expert_dtype": rule.expert_dtype}, base.architecture, base.key
        )
    sure = bool(rule and rule.knows(name))
    longest = (rule.longest if rule and sure else 0) or known.longest or base.max_len
    how = f" with {quant.told if quant else 'plain weights'}" if rule else ""
    length = f", {longest:,} tokens long" if longest != base.max_len else ""
    note = Note("taken-as", f"{name} is taken as {base.key}{how}{length}{_reason_taken(known, rule, sure)}")
    source = Citation(rule.source, "", "") if rule else Citation(f"config.json of {base.key}, whose layers it has", "", "")
    key = normal(name.rstrip("/")).rpartition("/")[2]
    called = name if "/" in name else next((alias for alias in base.aliases if normal(alias).endswith(f"/{key}")), name)
    own = replace(base, key=key, quant=quant, max_len=longest, aliases=(called,), source=source, stored_bytes=0)
    return replace(own, notes=(*base.notes, note))


def _reason_taken(known: KnownModel, rule: StorageRule | None, sure: bool) -> str:
    """By what it was taken for that, and what may differ."""
    if known.by == "ending" and not sure:
        return ": same architecture by its name; its config is not at hand, and length and vocabulary may differ"
    if rule:
        return "" if sure else ": its config is not at hand"
    return ": same architecture" if known.by == "release" else ": the same name; its config is not at hand"
