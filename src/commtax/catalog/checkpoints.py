"""Checkpoints that no file of ours describes, by their names: a bundled model stored as the ending (and its maker) tells."""

from dataclasses import replace
from functools import lru_cache

from commtax.catalog.loader import FACTS, Table, aliases, normal, plain, stems
from commtax.catalog.quantisation import stored
from commtax.files import table as kept
from commtax.records import dataclass
from commtax.spec import Citation, Model, Quant
from commtax.statement import Note


@dataclass(frozen=True, slots=True)
class Rule:
    """How checkpoints with these names are stored: those of ``ids``, or with these ``endings``, ``by`` these organisations."""

    config: Table
    source: str
    ids: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    mixture: bool = False  # of models with experts alone
    of: str = ""  # the bundled model, where the name does not tell it
    expert_dtype: str = ""

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
def _file() -> Table:
    return kept(str(FACTS / "checkpoints.toml"))


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(plain(Rule, table, f"checkpoints {number}") for number, table in enumerate(_file()["rule"], start=1))


@lru_cache(maxsize=1)
def _endings() -> tuple[str, ...]:
    return tuple(sorted({end for rule in rules() for end in rule.endings}, key=len, reverse=True))


@lru_cache(maxsize=1)
def _usual() -> dict[str, str]:
    """Keys of bundled models by what their names end in, with and without the type that it says."""
    names = {**{alias.rpartition("/")[2]: key for alias, key in aliases("models").items()}, **{key: key for key in stems("models")}}
    return {**{name.removesuffix("-bf16"): key for name, key in names.items()}, **names}


def base_key(name: str) -> str:
    """The bundled model that a name without organisation means, or a later release of it; "" where there is none."""
    shorter = (name.removesuffix(end) for end in _file()["releases"] if name.endswith(end))
    return next((_usual()[one] for one in (name, *shorter) if one in _usual()), "")


def made_of(name: str) -> list[tuple[Rule, str]]:
    """Rules that a checkpoint's name keeps to, each with the bundled model that it is made of."""
    wanted = normal(name.rstrip("/"))
    found = [(rule, base_key(base)) for rule in rules() if (base := rule.base(wanted))]
    return [(rule, key) for rule, key in found if key]


def taken_as(name: str, base: Model, rule: Rule) -> Model:
    """The base model stored as the rule says, with a note that this is what it was taken for."""
    quant = _quant(base, rule)
    how = quant.told if quant else "plain weights"
    where = "" if rule.knows(name) else ": its config is not at hand"
    note = Note("taken-as", f"{name} is taken as {base.key} with {how}{where}")
    source = Citation(rule.source, "", "")
    key = normal(name.rstrip("/")).rpartition("/")[2]
    return replace(base, key=key, quant=quant, aliases=(name,), source=source, notes=(*base.notes, note), stored_bytes=0)


def _quant(base: Model, rule: Rule) -> Quant | None:
    if not rule.config:
        return None
    config: Table = {"quantization_config": rule.config, "expert_dtype": rule.expert_dtype}
    return stored(config, base.architecture, base.key)
