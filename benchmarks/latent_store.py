"""Constants of the forms that ``fit_latent.py`` fits, as the files of ``catalog/kernels`` hold them, laid over each other."""

from __future__ import annotations

import tomllib

from fitting import KERNELS, Constants, write_table

from commtax import catalog
from commtax.cost import layer_forms
from commtax.spec import Chip, KernelConstants

FORMS = {**layer_forms.LATENT_FORMS, **layer_forms.MEASURED}
NOTHING = 1e-14  # smaller constants are written as none
_SHARES = {"eb": 0.7, "ep": 0.5}
START: dict[str, Constants] = {
    "latent_reading": {"t0": 9e-6, **_SHARES, "eq": 0.4, "tb": 3e-8, "tl": 3e-10, "kl": 1.5e-6, "kc": 500.0, "hs": 60.0, "p": 1.5}
    | {"tile": 64.0, "both": 6.0},
    "prompts": {"t0": 1.2e-5, **_SHARES, "kept": 3e7, "tl": 1e-8, "tb": 1e-9, "tr": 1e-9, "kl": 1e-6, "kc": 100.0, "p": 1.5},
    "latent_choosing": {"t0": 1.2e-5, "ep": 0.5, "reuse": 3.0, "tile": 64.0, "tq": 1e-9, "tb": 1e-8, "tl": 1e-9, "p": 4.0},
    "scan": {"t0": 1.2e-5, **_SHARES, "ts": 1e-12, "kl": 1e-6, "kc": 500.0},
    "head_product": {"t0": 3e-6, **_SHARES, "el": 3.0, "kept": 4e7, "p": 2.0, "tr": 1e-11, "tile": 64.0},
    "rest": {"t0": 1e-5, "token": 1e-8, "head": 1e-10},
    "eager_module": {"t0": 1e-3},
}
"""Where constants begin that no file holds."""


class Store:
    """Tables by file, engine ("" is any) and name (form and number format)."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[str, Constants]] = {}
        for path in KERNELS.glob("*.toml"):
            whole = tomllib.loads(path.read_text())
            for engine, part in {"": whole, **whole.get("engine", {})}.items():
                own = {f"{form}.{kind}": dict(c) for form in part if form in FORMS for kind, c in part[form].items()}
                self.tables[path.stem, engine] = own

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
        for (file, engine), tables in sorted(self.tables.items()):
            for name, constants in sorted(tables.items()):
                form, kind = name.split(".")
                values = {n: value if value >= NOTHING else 0.0 for n, value in constants.items()}
                write_table(KERNELS / f"{file}.toml", f"engine.{engine}.{form}" if engine else form, {kind: values})
