"""Constants of the forms that ``fit_latent.py`` fits, as the files of ``catalog/kernels`` hold them, laid over each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import commtax
from commtax import catalog
from commtax.cost import layer_forms
from commtax.spec import Chip, KernelConstants

FOLDER = Path(commtax.__file__).parent / "catalog" / "kernels"
FAMILIES = {"ampere": ("a100_sxm",), "ada": ("l40s",), "hopper": ("h100_sxm",), "blackwell": ("b200_sxm", "b300_sxm", "gb200")}
FORMS = {**layer_forms.LATENT_FORMS, **layer_forms.MEASURED}
Constants = dict[str, float]
_SHARES = {"eb": 0.7, "ep": 0.5}
START: dict[str, Constants] = {
    "reading": {"t0": 9e-6, **_SHARES, "eq": 0.4, "tb": 3e-8, "tl": 3e-10, "kl": 1.5e-6, "kc": 500.0, "hs": 60.0, "p": 1.5}
    | {"tile": 64.0, "both": 6.0},
    "prompts": {"t0": 1.2e-5, **_SHARES, "kept": 3e7, "tl": 1e-8, "tb": 1e-9, "tr": 1e-9, "kl": 1e-6, "kc": 100.0, "p": 1.5},
    "choosing": {"t0": 1.2e-5, "ep": 0.5, "reuse": 3.0, "tile": 64.0, "tq": 1e-9, "tb": 1e-8, "tl": 1e-9, "p": 4.0},
    "scan": {"t0": 1.2e-5, **_SHARES, "ts": 1e-12, "kl": 1e-6, "kc": 500.0},
    "head_product": {"t0": 3e-6, **_SHARES, "el": 3.0, "kept": 4e7, "p": 2.0, "tr": 1e-11, "tile": 64.0},
    "rest": {"t0": 1e-5, "token": 1e-8, "head": 1e-10},
    "eager": {"t0": 1e-3},
}
"""Where constants begin that no file holds."""


class Store:
    """Tables by file, engine ("" is any) and name (form and number format)."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[str, Constants]] = {}
        for path in FOLDER.glob("*.toml"):
            whole = tomllib.loads(path.read_text())
            self._take(path.stem, "", whole)
            for engine, part in whole.get("engine", {}).items():
                self._take(path.stem, engine, part)

    def _take(self, file: str, engine: str, part: dict[str, dict[str, Constants]]) -> None:
        own = {f"{form}.{kind}": dict(c) for form in part if form in FORMS for kind, c in part[form].items()}
        self.tables[file, engine] = own

    def table(self, file: str, engine: str, name: str) -> Constants:
        """A table that can be changed; a new one begins as the form's usual."""
        own = self.tables.setdefault((file, engine), {})
        if name not in own:
            own[name] = dict(START[FORMS[name.split(".")[0]].__name__])
        return own[name]

    def constants(self, engine: str, chip: Chip) -> KernelConstants:
        """The catalogue's tables with these over them, in the catalogue's order."""
        known = catalog.kernel_constants(catalog.engine(engine), chip)
        tables = dict(known.tables)
        for key in (("generic", ""), (chip.family, ""), (chip.family, engine), (chip.key, ""), (chip.key, engine)):
            tables |= self.tables.get(key, {})
        return KernelConstants(known.family, known.label, tables, known.own)

    def write(self) -> None:
        for file in sorted({file for file, _ in self.tables}):
            path = FOLDER / f"{file}.toml"
            text = path.read_text() if path.exists() else f'key = "{file}"\n'
            path.write_text(_without(text) + "".join(self._sections(file)))

    def _sections(self, file: str) -> list[str]:
        made = []
        for (name, engine), tables in sorted(self.tables.items()):
            for form in dict.fromkeys(key.split(".")[0] for key in sorted(tables)) if name == file else ():
                head = f"engine.{engine}.{form}" if engine else form
                lines = [_line(key.split(".")[1], c) for key, c in sorted(tables.items()) if key.split(".")[0] == form]
                made.append("\n".join((f"\n[{head}]", *lines, "")))
        return made


def _line(kind: str, c: Constants) -> str:
    return f"{kind} = {{ " + ", ".join(f"{name} = {_number(value)}" for name, value in c.items()) + " }"


def _number(value: float) -> str:
    return "0.0" if value < 1e-14 else f"{value:.4g}" if "." in f"{value:.4g}" or "e" in f"{value:.4g}" else f"{value:.4g}.0"


def _without(text: str) -> str:
    """A file less the sections of these forms."""
    parts = re.split(r"^(?=\[)", text, flags=re.M)
    kept = [p for p in parts if not (m := re.match(r"\[(?:engine\.[^.\]]+\.)?([^.\]]+)\]", p)) or m[1] not in FORMS]
    return "".join(kept).rstrip("\n") + "\n"
