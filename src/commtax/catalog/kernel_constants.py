"""Constants of kernels for one chip: its family's, its own and its engine's; of others what was measured, at this chip's pace.

Attained shares (``eb``, ``ep``) move from chip to chip as they are. Constants that are seconds don't: a launch or a loop takes as
many cycles elsewhere, and what all multiprocessors share also goes by their number. Left out whole (``benchmarks/left_out.py``),
A100's decode attention is 18 % off with such a pace and 34 % without.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from commtax.catalog.hardware import chip as chip_of
from commtax.catalog.loader import Table, stems, table
from commtax.files import table as data
from commtax.records import replace
from commtax.spec import Chip, Engine, KernelConstants
from commtax.statement import Source

BY_DEFINITION, CALIBRATED = Source("by definition"), Source("calibrated")
PLAIN = ("gemm", "decode", "prefill", "small", "elementwise", "step", "train")  # forms whose constants a chip's label is about
STREAMS = ("conv", "gdn", "kda", "ssd", "mhc", "scales", "quantise", "encoder")  # and linear attention
SUBTABLES = ("engine", "timed", "fallback")
NO_FORMS = ("key", "like", "paced_as", "measured_on", "fitted_on", "sisters", "transferred", "sources", *SUBTABLES)
LATENCIES = ("t0", "te", "tl", "kl", "kb")  # seconds that are cycles: of a launch, an expert's bookkeeping, a turn of a loop
SHARED = ("tb", "tc", "tm", "tq", "tr", "ts", "token", "head")
"""Seconds that are cycles of all multiprocessors together: of a block, a byte, a row, a token."""
OF_THE_HOST = re.compile(r"exchange|.*-eager\.")  # tables whose times are a host's or a link's, whatever the chip's clock
ROUNDING = 0.01  # datasheets round peaks: clocks that they imply are equal within this
LEFT_OUT: dict[str, dict[str, dict[str, float]]] = data("catalog/left_out.toml")  # errors on chips that nothing was fitted on
Tables = dict[str, Mapping[str, float]]
Pace = tuple[float, int]  # clock in Hz and multiprocessors; 0: not known
Ratio = tuple[float, float]  # how many times longer a cycle is, and a cycle of all multiprocessors together


def kernel_constants(engine: Engine, chip: Chip, timed: bool = False) -> KernelConstants:
    """Return kernel constants of the chip's family, or the generic ones, those of kernels alone where ``timed``."""
    return _kernel_constants(engine.key, chip.key, chip.family, _pace(chip), timed)


def with_shared_latents(constants: KernelConstants, chip: Chip) -> KernelConstants:
    """Return an engine's constants with the kernels over latents that engines have in common."""
    shared = _kernel_constants("", chip.key, chip.family, _pace(chip), False).tables
    latent = {name: c for name, c in shared.items() if name.startswith("latent-decode.")}
    return replace(constants, tables={**constants.tables, **latent})


@lru_cache(maxsize=256)
def _kernel_constants(engine: str, chip: str, wanted: str, pace: Pace, timed: bool) -> KernelConstants:
    if engine == "textbook":
        return KernelConstants("roofline", BY_DEFINITION, _tables(table("kernels", "roofline")))
    family = wanted if wanted in stems("kernels") else "generic"
    file = table("kernels", family)
    # Files of constants, each correcting those before it: of the family that a family is like, its own, and the chip's.
    layers = [*([table("kernels", file["like"])] if "like" in file else []), file, *_chip_tables(chip)]
    others = _other_forms(layers[0], engine, pace)
    tables = others
    for layer in layers:  # a chip of its own corrects its family, an engine's own kernels either
        ratio = _pace_ratio(layer, chip, pace)
        of_engine = (layer.get(kind, {}).get(engine, {}) for kind in ("engine", "timed"))
        usual, engines, alone = (_rescale_tables(_tables(part), ratio) for part in (layer, *of_engine))
        # An engine with attention of its own runs no other's for other number formats.
        attending = tuple(f"{form}." for form in ("decode", "prefill") if f"{form}.bf16" in engines)
        tables = {name: c for name, c in (tables | usual).items() if not name.startswith(attending)} | engines
        tables |= alone if timed else {}
    elsewhere = Source("assumed", f"assumed: transferred from other chips, not measured on {wanted} ones", f"kernels of {wanted}")
    assumed = {name: elsewhere for name, c in others.items() if tables.get(name) is c}
    borrowed = family == "generic" or "like" in file
    tables |= {name: _widen_spread(name, tables[name]) for name in (tables if borrowed else assumed)}
    label, sources = _kernel_label(wanted, chip, engine, layers), _transfer_sources(chip, layers, tables) | assumed
    return KernelConstants(family, label, tables, sources)


def _widen_spread(name: str, c: Mapping[str, float]) -> Mapping[str, float]:
    """Widen constants of other families to how far off they were where whole families were left out."""
    form, _, kind = name.partition(".")
    first = form.partition("-")[0]  # latent-decode: of latent attention; experts_triton: of experts
    kin = (name, f"{form.partition('_')[0]}.{kind}", "streams" if first in STREAMS else first)
    left_out = next((row for one in kin if (row := LEFT_OUT["unmeasured"].get(one))), None)
    return {**c, "sigma": max(c.get("sigma", 0.0), left_out["sigma"])} if left_out else c


def _pace(chip: Chip) -> Pace:
    return chip.clock_Hz, chip.num_sms


def _pace_ratio(layer: Table, chip: str, pace: Pace) -> Ratio:
    """Return the pace of a chip against that where a file's constants were fitted, 1 where a datasheet states neither."""
    measured: list[str] = layer.get("measured_on", [])
    home = layer.get("paced_as") or next(iter(measured), "")
    # Chips with a measured chip's multiprocessors: GB200's datasheet has a faster clock than B200's, its kernels don't.
    sisters = (sister for name in stems("kernels") for sister in table("kernels", name).get("sisters", ()))
    if not home or chip in (home, *measured, *layer.get("fitted_on", ()), *sisters):
        return 1.0, 1.0
    return _ratio(_pace(chip_of(home)), pace)


def _ratio(there: Pace, here: Pace) -> Ratio:
    cycle = there[0] / here[0] if there[0] and here[0] else 1.0
    cycle = cycle if abs(cycle - 1) > ROUNDING else 1.0
    return cycle, cycle * (there[1] / here[1] if there[1] and here[1] else 1.0)


def reference() -> Chip:
    """Return the chip at whose pace the generic constants are."""
    return chip_of(table("kernels", "generic")["paced_as"])


def rescale_to_chip(constants: Mapping[str, float], home: Chip, chip: Chip) -> dict[str, float]:
    """Rescale one table's constants that were fitted on a chip to another one."""
    return dict(_rescale_table(constants, _ratio(_pace(home), _pace(chip))))


def _rescale_tables(tables: Tables, ratio: Ratio) -> Tables:
    return {name: c if OF_THE_HOST.match(name) else _rescale_table(c, ratio) for name, c in tables.items()}


def _rescale_table(c: Mapping[str, float], ratio: Ratio) -> Mapping[str, float]:
    by_name = dict.fromkeys(LATENCIES, ratio[0]) | dict.fromkeys(SHARED, ratio[1])
    return c if ratio == (1.0, 1.0) else {key: value * by_name.get(key, 1.0) for key, value in c.items()}


def _kernel_label(wanted: str, chip: str, engine: str, layers: list[Table]) -> Source:
    """Return "calibrated" on a measured chip, or on others of its family "transferred" to the chip's datasheet."""
    home, last = _home(layers), layers[-1]
    # A chip's file has matrix products, of every engine or of this one, or its family's were tested there.
    products = "gemm" in last or "gemm" in last.get("engine", {}).get(engine, {}) or last["key"] in layers[0].get("fitted_on", ())
    if chip in home or (last["key"] == chip != wanted and products):
        return CALIBRATED
    if not home:
        kin = "" if layers[0]["key"] in ("generic", wanted) else f", these are {layers[0]['key']}'s at its datasheet"
        return Source("assumed", f"assumed: no kernels were measured on {wanted} chips{kin}", f"kernels of {wanted}")
    return _transfer_source(layers[0]["key"], home, chip)


def _home(layers: list[Table]) -> list[str]:
    """Return the chips that a family was measured on, or none where it only has another family's constants."""
    return list([layer for layer in layers if "measured_on" in layer][-1]["measured_on"])


def _transfer_source(family: str, home: list[str], chip: str) -> Source:
    from_where = f"transferred from {family} kernels measured on {', '.join(home[:-1])}{' and ' * (len(home) > 1)}{home[-1]}"
    return Source("transferred", f"{from_where}, at the datasheet of {chip}", f"kernels of {chip}")


def _transfer_sources(chip: str, layers: list[Table], tables: Mapping[str, Mapping[str, float]]) -> dict[str, Source]:
    """Return the sources of a chip's tables that are its family's, fitted elsewhere, beside constants of its own."""
    home: list[str] = layers[0].get("fitted_on") or layers[0]["measured_on"]  # chips that decided forms beyond ``PLAIN``
    if chip in home or not home or not _home(layers):
        return {}
    chip_names = {name for layer in layers if layer["key"] == chip for name in _tables(layer)}
    names = (name for name in tables if name.partition(".")[0] not in PLAIN and name not in chip_names)
    return dict.fromkeys(names, _transfer_source(layers[0]["key"], home, chip))


@lru_cache(maxsize=256)
def _chip_tables(chip: str) -> list[Table]:
    files = [table("kernels", name) for name in stems("kernels") if name not in ("generic", "roofline")]
    return [layer for layer in files if chip == layer["key"] or chip in layer.get("sisters", ())]


def _other_forms(family: Table, engine: str, pace: Pace) -> Tables:
    other = table("kernels", "generic")
    tables = _tables(other) | _tables(other.get("engine", {}).get(engine, {}))
    if family["key"] in other["fallback"]["families"]:  # no engine's own kernels run there
        instead = _tables({form: c for form, c in other["fallback"].items() if form != "families"})
        replaced = tuple(f"{name.partition('.')[0]}." for name in instead)
        tables = {name: c for name, c in tables.items() if not name.startswith(replaced)} | instead
    measured_forms = {form.partition("_")[0] for form in family}  # experts_triton: an implementation of the form experts
    unknown = {name: c for name, c in tables.items() if re.split(r"[._]", name)[0] not in measured_forms}
    return _rescale_tables(unknown, _pace_ratio(other, "", pace))


def _tables(layer: Table) -> Tables:
    forms = (form for form in layer if form not in NO_FORMS)
    return {f"{form}.{dtype}": c for form in forms for dtype, c in layer[form].items()}
