"""Fit the constants of routed experts on published tables: ``python benchmarks/fit_experts.py DATA_DIR [--write] [--left-out]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others. Each implementation that an engine runs on a family of
chips has a table; the one with the most rows (or in ``USUAL``) is the engine's usual one, beside it stand pooled tables of the
family and of all. With ``--write`` the files under ``catalog/kernels`` are changed in place; with ``--left-out`` each chip is
priced by constants that were fitted without it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from fitting import KERNELS, Constants, Descent, kernel_groups, leave_out, miss, spread_over, write_table

from commtax.catalog.kernel_constants import reference, rescale_to_chip
from commtax.cost.kernels import STAND_INS
from commtax.cost.layer_forms import experts, routing
from commtax.spec import Chip

CHIPS = ("a100_sxm", "h100_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200", "b60")
TAILS = ("moe", "wideep_moe", "wideep_context_moe", "wideep_generation_moe")
USUAL = {("hopper", "vllm", "fp8"): "experts_triton"}  # of one rank; with several vLLM runs another
ALONE = ("xe2",)  # families that other vendors' kernels tell nothing of, nor theirs of others
ONE_KERNEL = (("vllm", "experts_marlin"),)  # unpacks any 4-bit weights: each format alone was timed with one number of experts
STANDS_FOR = ("experts_cutlass", "nvfp4")  # what engines run on 4-bit floats where tensor cores have no memory of their own
START = {"t0": 2e-5, "te": 5e-9, "eb": 0.8, "ep": 0.6, "ew": 0.5, "ec": 0.3, "local": 2.0, "remote": 0.3, "p": 2.0}
BLOCK = {"tb": 1e-9}  # where each block takes a time of its own: of families whose tensor cores are fed asynchronously
BLOCKED = ("hopper", "blackwell")
BOUNDS = {**dict.fromkeys(("eb", "ep", "ew", "ec"), (0.01, 0.999)), "p": (1.0, 8.0)}
FREE = np.exp((-8.0, 5.0))  # times its start: how far any other constant may move
TILES = tuple({"tile_m": m, "tile_n": n} for m, n in product((64.0, 128.0, 256.0), (64.0, 128.0)))
JUMPS = tuple({**tile, "jump": 1.0} for tile in TILES if tile["tile_m"] == 64)
DESCENT = Descent(scale=0.05, reach=0.7, enough=1e-4)
MOST, LEAST = 2000, 20  # rows of one fit, and that a table is worth


@dataclass(frozen=True)
class Sample:
    """Rows of one implementation, engine and number format on one chip."""

    chip: Chip
    engine: str
    form: str
    store: str
    parts: dict[bool, tuple[Any, Any, Any]]  # fitted or not: the kernel, seconds, and which loads are equal
    elsewhere: bool = False  # the constants are at the reference's pace, as ``generic`` has them

    def logs(self, table: Constants, fitted: bool) -> Any:
        """Logarithms of predicted over measured times."""
        kernel, seconds, _ = self.parts[fitted]
        table = rescale_to_chip(table, reference(), self.chip) if self.elsewhere else table
        rates = self.chip.memory_Bps, self.rate
        return np.log((sum(routing(kernel, table, *rates)) + sum(experts(kernel, table, *rates))) / seconds)

    @property
    def rate(self) -> float:
        rates, dtype = self.chip.flops_per_s, self.parts[True][0].dtype
        return rates.get("fp4" if dtype == "nvfp4" else dtype) or rates["bf16"]

    @property
    def size(self) -> int:
        return len(self.parts[True][1])


def samples(folder: Path) -> list[Sample]:
    found: dict[tuple[Any, ...], dict[bool, list[tuple[Any, Any, Any]]]] = defaultdict(lambda: {True: [], False: []})
    for group in kernel_groups(folder, CHIPS, TAILS):
        for fitted in (True, False):
            chosen = group.fitted == fitted
            if np.any(chosen):
                kernel, seconds = group.make(chosen)[1], group.seconds[chosen]
                equal = np.full(len(seconds), group.words["distribution"] in ("balanced", "uniform"))
                key = group.chip, group.words["framework"], kernel.form, kernel.stored
                found[key][fitted].append((kernel, seconds, equal))
    return [Sample(*key, {fitted: joined(p) for fitted, p in parts.items()}) for key, parts in found.items() if all(parts.values())]


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


def solve(rows: list[Sample], tile: Constants, start: Constants) -> tuple[Constants, float]:
    """Constants with these tiles, and the median error on the fitted rows."""
    first = np.array(list(start.values()))
    low, high = np.log([BOUNDS.get(n, v * FREE) for n, v in start.items()] / first[:, None]).T
    weight = np.concatenate([np.full(s.size, min(1.0, MOST / size(rows))) for s in rows])

    def at(z: Any) -> Constants:
        table = dict(zip(start, (first * np.exp(z)).tolist(), strict=True))
        return {**table, "local": max(table["local"], table["remote"])}  # what is computed here is moved as often at least

    def logs(z: Any) -> Any:
        return np.concatenate([s.logs({**at(z), **tile}, True) for s in rows])

    z, errors = DESCENT.solve(logs, np.zeros(len(start)), low, high, weight)
    return {**{n: float(f"{v:.4g}") for n, v in at(z).items()}, **tile}, miss(errors)


def size(rows: list[Sample]) -> int:
    return sum(s.size for s in rows)


def thinned(rows: list[Sample]) -> list[Sample]:
    """As many rows of each chip and engine as of the others, and no more than one fit takes."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for s in rows:
        counts[s.chip.key, s.engine] += s.size
    each = max(MOST / len(counts), 250)
    return [shorter(s, min(1.0, each / counts[s.chip.key, s.engine])) for s in rows]


def shorter(s: Sample, share: float) -> Sample:
    """A share of the fitted rows."""
    kernel, seconds, equal = s.parts[True]
    index = spread_over(len(seconds), share * len(seconds))
    some = replace(with_arrays(kernel, lambda _, v: v[index]), shape=with_arrays(kernel.shape, lambda _, v: v[index]))
    return replace(s, parts={**s.parts, True: (some, seconds[index], equal[index])})


def fit(rows: list[Sample]) -> Constants:
    """The best of all tiles; a jump between two of them where a compiler's usual settings do so."""
    few = thinned(rows)
    start = START | (BLOCK if all(s.chip.family in BLOCKED for s in rows) else {})
    best: tuple[Constants, float] = ({}, np.inf)
    for tile in (*TILES, *(JUMPS if any(s.form in ("experts", "experts_triton") for s in rows) else ())):
        found = solve(few, tile, start)
        best = found if found[1] < 0.985 * best[1] else best
    return best[0]


Tables = dict[str, dict[str, dict[str, Constants]]]
"""File, section and number format: constants."""
By = dict[tuple[str, str, str, str], list[Sample]]
"""Rows by family, engine, form and number format."""


def tables(rows: list[Sample], say: Callable[[str], None] = lambda _: None) -> Tables:
    """Constants of every file that these rows allow."""
    made: Tables = defaultdict(lambda: defaultdict(dict))

    def add(file: str, section: str, store: str, chosen: list[Sample]) -> None:
        if size(chosen) >= LEAST:
            made[file][section][store] = table = fit(chosen)
            off = miss(np.concatenate([s.logs(table, False) for s in chosen]))
            say(f"{file:10s} {section:40s} {store:10s} {size(chosen):6d} rows  tested {off:6.1%}")

    by: By = defaultdict(list)
    for s in rows:
        by[s.chip.family, s.engine, s.form, s.store].append(s)
    usual = usual_forms(by)
    for (family, engine, form, store), chosen in sorted(by.items()):
        section = f"engine.{engine}.{'experts' if usual.get((family, engine, store)) == form else form}"
        alike = [s for key, some in by.items() if key[:3] == (family, engine, form) for s in some]
        add(family, section, store, alike if (engine, form) in ONE_KERNEL else chosen)
        kin = [s for key, some in by.items() if (key[0], *key[2:]) == (family, form, store) and key[1] != engine for s in some]
        if not is_spread(chosen) and is_spread(kin) and store in made[family][section]:
            made[family][section][store]["remote"] = fit(kin)["remote"]  # one kernel, as other engines timed it
    for (file, section, store), chosen in sorted(pools(by, usual).items()):
        add(file, section, store, chosen)
    return made


def pools(by: By, usual: dict[tuple[str, str, str], str]) -> dict[tuple[str, str, str], list[Sample]]:
    """Rows by file, section and number format of what is common to engines, and to families."""
    pooled: dict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for (family, engine, form, store), chosen in by.items():
        moved = [replace(s, elsewhere=True) for s in chosen]
        if usual.get((family, engine, store)) == form:
            pooled[family, "experts", store] += chosen
            pooled["generic", "experts", store] += moved if family not in ALONE else []
        if form != "experts":
            pooled["generic", form, store] += moved
        if (form, store) == STANDS_FOR:
            pooled["blackwell-rtx", "experts", store] += chosen
    return pooled


def is_spread(rows: list[Sample]) -> bool:
    """Whether some experts lie on other ranks."""
    return any(np.any(s.parts[True][0].shape.elsewhere > 0) for s in rows)


def usual_forms(by: By) -> dict[tuple[str, str, str], str]:
    """The implementation that stands for an engine's on a family: that with most rows of whole layers, or None."""
    counts: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for (family, engine, form, store), chosen in by.items():
        if not exchanged(form):
            counts[family, engine, store][form] = size(chosen)
    return {key: USUAL.get(key) or max(forms, key=lambda f: forms[f]) for key, forms in counts.items()}


def exchanged(form: str) -> bool:
    """Whether rows are of kernels between two exchanges, not of a whole layer's routed part."""
    return form.startswith(("experts_wideep", "experts_context", "experts_generation"))


def tell(what: str, priced: list[tuple[Sample, Constants, bool]]) -> None:
    """Medians and ninth deciles of the errors of rows with equal loads, and with others."""
    errors = np.concatenate([s.logs(table, fitted) for s, table, fitted in priced])
    equal = np.concatenate([s.parts[fitted][2] for s, _, fitted in priced])
    told = [
        f"{name} {miss(errors[some]):6.1%} ({miss(errors[some], 0.9):6.1%})"
        for name, some in (("balanced", equal), ("power law", ~equal))
        if np.any(some)
    ]
    print(f"| {what:40s} | {len(errors):6d} | {' | '.join(told)} |", flush=True)


def nearest(made: Tables, s: Sample) -> Constants:
    """The table that would price a sample, as ``cost.kernels.table_of`` finds it."""
    family = made.get(s.chip.family) or {}
    own = {**made["generic"]} if not family else {"experts": family["experts"]}
    own |= {name.rpartition(".")[2]: t for name, t in family.items() if name.startswith(f"engine.{s.engine}.")}
    kinds = (s.store, *STAND_INS.get(s.store, ()), "bf16")
    return next(own[form][kind] for kind in kinds for form in (s.form, "experts") if kind in own.get(form, {}))


def main(arguments: list[str]) -> None:
    rows = samples(Path(arguments[0]))
    made = tables(rows, lambda line: print(line, flush=True))
    if "--write" in arguments:
        for file, section, store in ((f, s, d) for f, sections in made.items() for s, stores in sections.items() for d in stores):
            write_table(KERNELS / f"{file}.toml", section, {store: made[file][section][store]})
    for (chip, engine), _, own in leave_out(rows, lambda s: (s.chip.key, s.engine)):
        tell(f"{chip} {engine}", [(s, nearest(made, s), False) for s in own])
    for chip, rest, out in leave_out(rows, lambda s: s.chip.key) if "--left-out" in arguments else ():
        without = tables(rest)
        out = [replace(s, elsewhere=s.chip.family not in without) for s in out]
        tell(f"{chip} left out", [(s, nearest(without, s), fitted) for s in out for fitted in (True, False)])


if __name__ == "__main__":
    main(sys.argv[1:])
