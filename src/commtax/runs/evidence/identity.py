"""Whether a file names another model, chip or degree than was claimed: an unclear name decides nothing."""

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
    """Yield a model's names in its path: the whole path, the folder, and the Hub's cache folder ``models--owner--name``."""
    parts = model.rstrip("/").split("/")
    yield model
    yield "/".join(parts[-2:])
    yield parts[-1]
    yield from ("/".join(part.split("--")[1:]) for part in parts if part.startswith("models--"))


def bundled_key(name: str) -> str:
    """Return the key of the bundled model that a name refers to, whatever its number format, or "" for none."""
    return next((key for one in names_of(name) if one and (key := origin(one))), "")


@cache
def _families() -> tuple[tuple[str, re.Pattern[str]], ...]:
    words: list[str] = table("runs/evidence/families.toml")["words"]
    return tuple((word, re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])")) for word in words)


def _families_of(name: str) -> frozenset[str]:
    return frozenset(word for word, pattern in _families() if pattern.search(name))


def _model_part(name: str) -> str:
    """Return the part of a path that names a model: that of the Hub's cache folder, else the last."""
    *_, last = names_of(name.lower().replace("_", "-"))
    return last.rpartition("/")[2]


@lru_cache(maxsize=256)
def other_model(name: str, claimed: Model) -> str:
    """Explain why a name cannot be that of the claimed model, or return "" where it can be or is uninformative."""
    name = name[-COUNT.most_signs :]
    key, claimed_key = bundled_key(name), bundled_key(claimed.key) or next(filter(None, map(bundled_key, claimed.aliases)), "")
    if key and claimed_key:
        same = key == claimed_key or _shape(key) == _shape(claimed_key)
        return "" if same else f"the file names {_model_part(name)}, not {claimed_key}"
    part = _model_part(name)
    named, wanted = _families_of(part), _families_of(" ".join((claimed.key, *claimed.aliases)).lower())
    if named and wanted and not named & wanted:
        return f"the file names {part}, not {claimed.key}"
    sizes = [float(n or 1) * float(each) * _UNITS[unit] for n, each, unit in _SIZE.findall(part)] if named & wanted else []
    counts = num_params(claimed), num_active_params(claimed)
    if sizes and not any(abs(size / count - 1) <= LEVEL.size_tolerance for size in sizes for count in counts):
        return f"the file names {part}, and {claimed.key} has {counts[0] / 1e9:,.3g}B parameters"
    return ""


@cache
def _shape(key: str) -> Model | None:
    """Return a bundled model without its names and number format: models of the same shape have the same price."""
    model = bundled_model(key)
    return replace(model, key="", aliases=(), source=None, notes=(), quant=None, max_len=0, mtp=()) if model else None


def other_chip(name: str, claim: Claim) -> str:
    """Explain why a name cannot be that of the claimed chip."""
    return another_chip(name, claim.question.cluster.chip.key)


def another_chip(name: str, claimed_key: str) -> str:
    """Explain why a name cannot be that of a chip. A name alone does not distinguish its forms and memory sizes."""
    chip = find_chip_name(name[: COUNT.most_signs]) if name else ""
    return f"the file names {chip}, not {claimed_key}" if chip and chip.partition("-")[0] != claimed_key.partition("-")[0] else ""


def chip_findings(name: str, claimed_key: str) -> Iterator[Finding]:
    """Yield a finding where a file names a chip other than the claimed one."""
    if why := another_chip(name, claimed_key):
        yield Finding(Note("chip", "chip named in the file"), None, None, reason=why, verdict=DISAGREE)


def identity_findings(claim: Claim, model: str = "", chip: str = "", degrees: Mapping[str, int] | None = None) -> Iterator[Finding]:
    """Yield a disagreement for each model, chip or degree in a file that differs from the claim."""
    if model and (why := other_model(model, claim.question.model)):
        yield Finding(Note("model", "model named in the file"), None, None, reason=why, verdict=DISAGREE)
    yield from chip_findings(chip, claim.question.cluster.chip.key)
    for axis, size in (degrees or {}).items():
        wanted = int(getattr(claim.plan, axis))
        wanted = claim.tp * int(claim.plan.dp) if wanted == AUTO_EP else wanted
        if size and size != wanted:
            yield Finding(Note(axis, f"{TITLES[axis]} in the file"), wanted, size, reason="another run than was said").judged()
