"""Fit the constants of routed experts on published tables: ``python benchmarks/fit_experts.py DATA_DIR [--write] [--left-out]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others. Each implementation that an engine runs on a family of
chips has a table; the one with the most rows (or in ``USUAL``) is the engine's usual one, beside it stand pooled tables of the
family and of all. Levenberg-Marquardt on log errors with soft-L1 weights. With ``--write`` the files under ``catalog/kernels``
are changed in place; with ``--left-out`` each chip is priced by constants that were fitted without it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fit_kernels import FOLDER

from commtax.catalog.kernel_constants import reference, rescale_to_chip
from commtax.cost.layer_forms import experts, routing
from commtax.spec import Chip
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.spellings import dtype_named
from commtax_lab.published.tables import read

CHIPS = ("a100_sxm", "h100_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200", "b60")
TAILS = ("moe", "wideep_moe", "wideep_context_moe", "wideep_generation_moe")
USUAL = {("hopper", "vllm", "fp8"): "experts_triton"}  # of one rank; with several vLLM runs another
ALONE = ("xe2",)  # families that other vendors' kernels tell nothing of, nor theirs of others
ONE_KERNEL = (("vllm", "experts_marlin"),)  # unpacks any 4-bit weights: each format alone was timed with one number of experts
STANDS_FOR = ("experts_cutlass", "nvfp4")  # what engines run on 4-bit floats where tensor cores have no memory of their own
START = {"t0": 2e-5, "te": 5e-9, "eb": 0.8, "ep": 0.6, "ew": 0.5, "ec": 0.3, "local": 2.0, "remote": 0.3, "p": 2.0}
BLOCK = {"tb": 1e-9}  # where each block takes a time of its own: of families whose tensor cores are fed asynchronously
BLOCKED = ("hopper", "blackwell")
TILES = tuple({"tile_m": m, "tile_n": n} for m, n in product((64.0, 128.0, 256.0), (64.0, 128.0)))
JUMPS = tuple({**tile, "jump": 1.0} for tile in TILES if tile["tile_m"] == 64)
SCALE, MOST_P = 0.05, 8.0
MOST = 2000  # rows of one fit
LEAST = 20  # rows that a table is worth


@dataclass(frozen=True)
class Sample:
    """Rows of one implementation, engine and number format on one chip."""

    chip: Chip
    engine: str
    form: str
    store: str
    parts: dict[bool, tuple[Any, Any, Any]]  # fitted or not: the kernel, seconds, and which loads are equal
    elsewhere: bool = False  # the constants are at the reference's pace, as ``generic`` has them

    def logs(self, table: dict[str, float], fitted: bool) -> Any:
        """Logarithms of predicted over measured times."""
        kernel, seconds, _ = self.parts[fitted]
        table = rescale_to_chip(table, reference(), self.chip) if self.elsewhere else table
        rates = self.chip.memory_Bps, self.rate
        return np.log((sum(routing(kernel, table, *rates)) + sum(experts(kernel, table, *rates))) / seconds)

    @property
    def rate(self) -> float:
        rates, dtype = self.chip.flops_per_s, self.parts[True][0].dtype
        return rates.get("fp4" if dtype == "nvfp4" else dtype) or rates["bf16"]


def samples(folder: Path) -> list[Sample]:
    found: dict[tuple[Any, ...], dict[bool, list[tuple[Any, Any, Any]]]] = defaultdict(lambda: {True: [], False: []})
    for chip, tail in product(CHIPS, TAILS):
        path = folder / "kernels_more" / f"{chip}_{tail}.csv.gz"
        if path.exists():
            for key, fitted, part in of_table(kernel_tables.read(path.name, *read(path))):
                found[key][fitted].append(part)
    return [Sample(*key, {fitted: joined(p) for fitted, p in parts.items()}) for key, parts in found.items() if all(parts.values())]


def of_table(table: kernel_tables.KernelTable) -> Iterable[tuple[tuple[Any, ...], bool, tuple[Any, Any, Any]]]:
    even = table.fitted()
    for words, mask in table.groups():
        named = {**words, "dtype": dtype_named(words["dtype"]) or words["dtype"]}
        for fitted in (True, False):
            chosen = mask & (even == fitted)
            if np.any(chosen):
                sizes = {name: column[chosen] for name, column in table.sizes.items()}
                kernel = table.kind.make(named, sizes)[1]
                equal = np.full(len(sizes["seconds"]), words["distribution"] in ("balanced", "uniform"))
                yield (table.chip, words["framework"], kernel.form, kernel.stored), fitted, (kernel, sizes["seconds"], equal)


def joined(parts: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Rows of several groups as one kernel with longer arrays."""
    kernels, seconds, equal = zip(*parts, strict=True)
    shape = with_arrays(kernels[0].shape, lambda name, _: np.concatenate([getattr(k.shape, name) for k in kernels]))
    kernel = with_arrays(kernels[0], lambda name, _: np.concatenate([getattr(k, name) for k in kernels]))
    return replace(kernel, shape=shape), np.concatenate(seconds), np.concatenate(equal)


def with_arrays(thing: Any, change: Callable[[str, Any], Any]) -> Any:
    """A record with its arrays changed."""
    arrays = {f.name: value for f in fields(thing) if isinstance(value := getattr(thing, f.name), np.ndarray)}
    return replace(thing, **{name: change(name, value) for name, value in arrays.items()})


def solve(rows: list[Sample], tile: dict[str, float], start: dict[str, float]) -> tuple[dict[str, float], float]:
    """Constants with these tiles, and the median error on the fitted rows."""
    names = list(start)
    first = np.array([start[n] for n in names])
    high = np.array([np.log({"p": MOST_P}.get(n, 0.999) / start[n]) if n in ("eb", "ep", "ew", "ec", "p") else 5.0 for n in names])
    low = np.array([np.log({"p": 1.0}.get(n, 0.01) / start[n]) if n in ("eb", "ep", "ew", "ec", "p") else -8.0 for n in names])
    weight = np.concatenate([np.full(len(s.parts[True][1]), min(1.0, MOST / size(rows))) for s in rows])

    def at(z: Any) -> dict[str, float]:
        table = dict(zip(names, (first * np.exp(z)).tolist(), strict=True))
        return {**table, "local": max(table["local"], table["remote"])}  # what is computed here is moved as often at least

    def logs(z: Any) -> Any:
        return np.concatenate([s.logs({**at(z), **tile}, True) for s in rows])

    z, damping = np.zeros(len(names)), 1e-2
    r = logs(z)
    for _ in range(30):
        jac = np.stack([(logs(z + 1e-3 * e) - r) / 1e-3 for e in np.eye(len(z))])
        w = weight / np.sqrt(1 + (r / SCALE) ** 2)
        a, b = (jac * w) @ jac.T, -(jac * w) @ r
        loss, done = np.sum(weight * np.sqrt(1 + (r / SCALE) ** 2)), True
        for _ in range(7):
            tried = np.clip(z + np.clip(np.linalg.solve(a + damping * np.diag(np.diag(a) + 1e-9), b), -0.7, 0.7), low, high)
            new = logs(tried)
            if (now := np.sum(weight * np.sqrt(1 + (new / SCALE) ** 2))) < loss * (1 - 1e-5):
                z, r, damping, done = tried, new, damping / 3, now > loss * (1 - 1e-4)
                break
            damping *= 4
        if done:
            break
    return {**{n: float(f"{v:.4g}") for n, v in at(z).items()}, **tile}, float(np.median(np.abs(np.expm1(r))))


def size(rows: list[Sample]) -> int:
    return sum(len(s.parts[True][1]) for s in rows)


def thinned(rows: list[Sample]) -> list[Sample]:
    """As many rows of each chip and engine as of the others, and no more than one fit takes."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for s in rows:
        counts[s.chip.key, s.engine] += len(s.parts[True][1])
    each = max(MOST / len(counts), 250)
    return [shorter(s, min(1.0, each / counts[s.chip.key, s.engine])) for s in rows]


def shorter(s: Sample, share: float) -> Sample:
    """A share of the fitted rows."""
    kernel, seconds, equal = s.parts[True]
    index = np.linspace(0, len(seconds) - 1, max(1, round(share * len(seconds)))).astype(int)
    some = replace(with_arrays(kernel, lambda _, v: v[index]), shape=with_arrays(kernel.shape, lambda _, v: v[index]))
    return replace(s, parts={**s.parts, True: (some, seconds[index], equal[index])})


def fit(rows: list[Sample]) -> dict[str, float]:
    """The best of all tiles; a jump between two of them where a compiler's usual settings do so."""
    few = thinned(rows)
    start = START | (BLOCK if all(s.chip.family in BLOCKED for s in rows) else {})
    tiles = (*TILES, *(JUMPS if any(s.form in ("experts", "experts_triton") for s in rows) else ()))
    best: tuple[dict[str, float], float] = ({}, np.inf)
    for tile in tiles:
        found = solve(few, tile, start)
        best = found if found[1] < 0.985 * best[1] else best
    return best[0]


Tables = dict[str, dict[str, dict[str, dict[str, float]]]]
"""File, section and number format: constants."""


def tables(rows: list[Sample], say: Callable[[str], None] = lambda _: None) -> Tables:
    """Constants of every file that these rows allow."""
    made: Tables = defaultdict(lambda: defaultdict(dict))

    def add(file: str, section: str, store: str, chosen: list[Sample]) -> None:
        if size(chosen) >= LEAST:
            made[file][section][store] = table = fit(chosen)
            logs = np.concatenate([s.logs(table, False) for s in chosen])
            say(f"{file:10s} {section:40s} {store:10s} {size(chosen):6d} rows  tested {np.median(np.abs(np.expm1(logs))):6.1%}")

    by: dict[tuple[str, str, str, str], list[Sample]] = defaultdict(list)
    for s in rows:
        by[s.chip.family, s.engine, s.form, s.store].append(s)
    usual = usual_forms(by)
    for (family, engine, form, store), chosen in sorted(by.items()):
        named = "experts" if usual.get((family, engine, store)) == form else form
        alike = [s for key, some in by.items() if key[:3] == (family, engine, form) for s in some]
        add(family, f"engine.{engine}.{named}", store, alike if (engine, form) in ONE_KERNEL else chosen)
        kin = [s for key, some in by.items() if (key[0], *key[2:]) == (family, form, store) and key[1] != engine for s in some]
        if not spread(chosen) and spread(kin) and store in made[family][f"engine.{engine}.{named}"]:
            made[family][f"engine.{engine}.{named}"][store]["remote"] = fit(kin)["remote"]  # one kernel, as other engines timed it
    pools: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for (family, engine, form, store), chosen in by.items():
        moved = [replace(s, elsewhere=True) for s in chosen]
        if usual.get((family, engine, store)) == form:
            pools[family, "experts", store] += chosen
            pools["generic", "experts", store] += moved if family not in ALONE else []
        if form != "experts":
            pools["generic", form, store] += moved
        if (form, store) == STANDS_FOR:
            pools["blackwell-rtx", "experts", store] += chosen
    for (file, section, store), chosen in sorted(pools.items()):
        add(file, section, store, chosen)
    return made


def spread(rows: list[Sample]) -> bool:
    """Whether some experts lie on other ranks."""
    return any(np.any(s.parts[True][0].shape.elsewhere > 0) for s in rows)


def usual_forms(by: dict[tuple[str, str, str, str], list[Sample]]) -> dict[tuple[str, str, str], str]:
    """Which implementation stands for what an engine runs on a family: the one with the most rows of whole layers.

    None where all rows are of kernels between two exchanges: they are no layer of an engine whose experts stay on their ranks.
    """
    counts: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for (family, engine, form, store), chosen in by.items():
        if not exchanged(form):
            counts[family, engine, store][form] = size(chosen)
    return {key: USUAL.get(key) or max(forms, key=lambda f: forms[f]) for key, forms in counts.items()}


def exchanged(form: str) -> bool:
    """Whether rows are of kernels between two exchanges, not of a whole layer's routed part."""
    return form.startswith(("experts_wideep", "experts_context", "experts_generation"))


def write(made: Tables) -> None:
    for file, sections in made.items():
        path = FOLDER / f"{file}.toml"
        text = path.read_text()
        for section, stores in sections.items():
            for store, values in stores.items():
                text = put(text, section, store, values)
        path.write_text(text)


def put(text: str, section: str, store: str, values: dict[str, float]) -> str:
    """The file with one line of constants changed, or added to its section, or with a new section before the sources."""
    line = f"{store} = {{ {', '.join(f'{n} = {v:g}' for n, v in values.items())} }}"
    head = f"[{section}]\n"
    if head not in text:
        place = text.index("[sources.")
        return f"{text[:place]}{head}{line}\n\n{text[place:]}"
    start = text.index(head) + len(head)
    end = text.index("\n\n", start) + 1
    lines = [one for one in text[start:end].splitlines() if not one.startswith(f"{store} = ")]
    return text[:start] + "\n".join([*lines, line]) + "\n" + text[end:]


def main(arguments: list[str]) -> None:
    rows = samples(Path(arguments[0]))
    made = tables(rows, lambda line: print(line, flush=True))
    if "--write" in arguments:
        write(made)
    for chip, engine in sorted({(s.chip.key, s.engine) for s in rows}):
        tell(f"{chip} {engine}", [(s, nearest(made, s), False) for s in rows if (s.chip.key, s.engine) == (chip, engine)])
    if "--left-out" in arguments:
        for chip in CHIPS:
            left_out(rows, chip)


def left_out(rows: list[Sample], system: str) -> None:
    """One chip priced by its family's other chips, or by other families, with its own datasheet."""
    out = [s for s in rows if s.chip.key == catalogue_key(system)]
    rest = [s for s in rows if s.chip.key != catalogue_key(system)]
    made = tables(rest)
    out = [replace(s, elsewhere=s.chip.family not in made) for s in out]
    tell(f"{system} left out", [(s, nearest(made, s), fitted) for s in out for fitted in (True, False)])


def tell(what: str, priced: list[tuple[Sample, dict[str, float], bool]]) -> None:
    """Medians and ninth deciles of the errors of rows with equal loads, and with others."""
    errors = np.concatenate([np.abs(np.expm1(s.logs(table, fitted))) for s, table, fitted in priced])
    equal = np.concatenate([s.parts[fitted][2] for s, _, fitted in priced])
    told = []
    for name, some in (("balanced", equal), ("power law", ~equal)):
        if np.any(some):
            told.append(f"{name} {np.median(errors[some]):6.1%} ({np.quantile(errors[some], 0.9):6.1%})")
    print(f"| {what:40s} | {len(errors):6d} | {' | '.join(told)} |", flush=True)


def nearest(made: Tables, s: Sample) -> dict[str, float]:
    """The table that would price a sample, as ``cost.kernels.table_of`` finds it."""
    from commtax.cost.kernels import STAND_INS

    family = made.get(s.chip.family) or {}
    own = {**made["generic"]} if not family else {"experts": family["experts"]}
    own |= {name.rpartition(".")[2]: t for name, t in family.items() if name.startswith(f"engine.{s.engine}.")}
    kinds = (s.store, *STAND_INS.get(s.store, ()), "bf16")
    return next(own[form][kind] for kind in kinds for form in (s.form, "experts") if kind in own.get(form, {}))


def catalogue_key(system: str) -> str:
    from commtax import catalog
    from commtax.catalog.foreign_names import find_chip_name

    return catalog.chip(find_chip_name(system)).key


if __name__ == "__main__":
    main(sys.argv[1:])
