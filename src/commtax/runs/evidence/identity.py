"""Whether a file names another model, chip or degree than was said: a name that tells nothing decides nothing."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

from commtax.catalog.foreign_names import find_chip_name
from commtax.catalog.models import bundled_model, origin
from commtax.cost.inventory import num_active_params, num_params
from commtax.files import table
from commtax.runs.evidence.finding import DISAGREE, Claim, Finding
from commtax.spec import PARALLEL, Model
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.verbs.settling import AUTO_EP

COUNT, LEVEL = thresholds(__name__)
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,2})?)([bmt])(?![a-z0-9])")
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
TITLES: Mapping[str, str] = {axis: PARALLEL[axis].title for axis in ("pp", "dp", "ep")}


def names_of(model: str) -> Iterator[str]:
    """A model as its path may name it: whole, the folder, and the Hub's own folder ``models--owner--name``."""
    parts = model.rstrip("/").split("/")
    yield model
    yield "/".join(parts[-2:])
    yield parts[-1]
    yield from ("/".join(part.split("--")[1:]) for part in parts if part.startswith("models--"))


def known_as(name: str) -> str:
    """The key of the bundled model that a name means, whatever its number format; "" where it means none."""
    return next((key for one in names_of(name) if one and (key := origin(one))), "")


@cache
def _families() -> tuple[tuple[str, re.Pattern[str]], ...]:
    words: list[str] = table("runs/evidence/families.toml")["words"]
    return tuple((word, re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])")) for word in words)


def _families_of(name: str) -> frozenset[str]:
    return frozenset(word for word, pattern in _families() if pattern.search(name))


def _model_part(name: str) -> str:
    """The part of a path that names a model: that of the Hub's own folder, else the last."""
    *_, last = names_of(name.lower().replace("_", "-"))
    return last.rpartition("/")[2]


@lru_cache(maxsize=256)
def other_model(name: str, claimed: Model) -> str:
    """Why a name cannot be that of the claimed model; "" where it can be, or tells nothing."""
    name = name[-COUNT.most_signs :]
    key, own = known_as(name), known_as(claimed.key) or next(filter(None, map(known_as, claimed.aliases)), "")
    if key and own:
        return "" if key == own or _shape(key) == _shape(own) else f"the file names {_model_part(name)}, not {own}"
    said = _model_part(name)
    told, wanted = _families_of(said), _families_of(" ".join((claimed.key, *claimed.aliases)).lower())
    if told and wanted and not told & wanted:
        return f"the file names {said}, not {claimed.key}"
    sizes = [float(n or 1) * float(each) * _UNITS[unit] for n, each, unit in _SIZE.findall(said)] if told & wanted else []
    counts = num_params(claimed), num_active_params(claimed)
    if sizes and not any(abs(size / count - 1) <= LEVEL.size_tolerance for size in sizes for count in counts):
        return f"the file names {said}, and {claimed.key} has {counts[0] / 1e9:,.3g}B parameters"
    return ""


@cache
def _shape(key: str) -> Model | None:
    """A bundled model without its names and its number format: what is priced alike whatever it is called."""
    model = bundled_model(key)
    return replace(model, key="", aliases=(), source=None, notes=(), quant=None, max_len=0, mtp=()) if model else None


def other_chip(name: str, claim: Claim) -> str:
    """Why a name cannot be that of the claimed chip."""
    return another_chip(name, claim.question.cluster.chip.key)


def another_chip(name: str, own: str) -> str:
    """Why a name cannot be that of a chip; forms and memories of one chip are not told apart by a name alone."""
    chip = find_chip_name(name[: COUNT.most_signs]) if name else ""
    return f"the file names {chip}, not {own}" if chip and chip.partition("-")[0] != own.partition("-")[0] else ""


def chip_findings(name: str, own: str) -> Iterator[Finding]:
    """A chip that a file names otherwise than was said."""
    if why := another_chip(name, own):
        yield Finding(Note("chip", "chip named in the file"), None, None, reason=why, verdict=DISAGREE)


def identity_findings(claim: Claim, model: str = "", chip: str = "", degrees: Mapping[str, int] | None = None) -> Iterator[Finding]:
    """What a file names otherwise than was said; each is a disagreement by itself."""
    if model and (why := other_model(model, claim.question.model)):
        yield Finding(Note("model", "model named in the file"), None, None, reason=why, verdict=DISAGREE)
    yield from chip_findings(chip, claim.question.cluster.chip.key)
    for axis, size in (degrees or {}).items():
        wanted = int(getattr(claim.plan, axis))
        wanted = claim.tp * int(claim.plan.dp) if wanted == AUTO_EP else wanted
        if size and size != wanted:
            yield Finding(Note(axis, f"{TITLES[axis]} in the file"), wanted, size, reason="another run than was said").judged()
