"""Fit the constants of linear attention and other streams: ``python benchmarks/fit_forms.py DATA_DIR [--write] [FORM ...]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others. A family of chips has one set of constants a form; an
engine has its own where the family's miss its rows by more than ``CLEARLY``. ``generic`` is fitted on all chips, each family
counting alike. With ``--leave`` each chip is left out in turn and priced with the constants of its family's others, or with the
generic ones fitted without it; nothing is written then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fitting import (
    CLEARLY,
    ENGINES,
    FAMILIES,
    KERNELS,
    SYSTEMS,
    Array,
    Constants,
    Descent,
    KernelGroup,
    drop_tables,
    kernel_groups,
    miss,
    spread_over,
    write_table,
)

from commtax.catalog.kernel_constants import reference, rescale_to_chip
from commtax.cost.layer_forms import CHIP_FORMS, chunked_scan, convolution, encoder_attention
from commtax_lab.published.kernel_kinds import linear, streams

OWN = {("encoder", engine): ("b300-sxm", "b300_sxm") for engine in ENGINES}
"""Engines that run other kernels on one chip than on its family's others: file and system."""
STRANGERS = {("conv-qkv", "vllm"): "gb200"}
"""Systems whose host launches an engine's kernels so much slower that its family is fitted without."""
FIRST = {"conv-qkv": "sglang", "conv-blocks": "trtllm"}
"""The engine that gives a family's constants, where it is not the first: vLLM's rows of the former are launched from Python."""
TRANSFERRED = {"ssd-scan": "engine.sglang.gdn-scan.bf16", "ssd-update": "gdn-update.bf16"}
"""Forms that nobody timed, and the generic table that they take: a chain of Triton kernels, a state read and written."""
TRANSFERRED_SIGMA = 0.5
MOST, LEAST = 4000, 8
DESCENT = Descent(scale=0.03, rounds=40, slope=1e-4, reach=0.7, tries=8)
STREAM = {"t0": 3e-6, "eb": 0.8, "ep": 0.05, "tl": 1e-8, "cache": 0.5, "p": 2.5}
STARTS: Mapping[str, list[Constants]] = {
    "conv": [{"t0": 2.5e-6, "tv": 0.4, "eb": 0.8, "ep": 0.09, "cache": 0.8, "p": 3.0}],
    "blocks": [{"t0": 4e-6, "tv": 0.1, "eb": 0.8, "ep": 0.09, "s0": 500.0, "few": 0.3, "cache": 0.8, "p": 4.0}],
    "scan": [{"t0": 2e-5, "eb": 0.6, "es": 1.5, "between": 0.5, "states": 1.5, "s0": 30.0, "tl": 2.5e-6, "cache": 0.6, "p": 2.0}],
    "encoder": [
        {"t0": 6e-6, "eb": 0.8, "ep": 0.5, "ep64": 0.5, "pad": pad, "s0": 50.0, "tl": 8e-9, "cache": 0.5, "p": 2.0}
        for pad in (32.0, 64.0)
    ],
    "rows": [{**STREAM, "tl": 1e-10, "ob": 1e3}, {**STREAM, "ep": 0.005, "tl": 1e-12, "ob": 1e2}],
    "stream": [STREAM, {**STREAM, "ep": 0.5, "tl": 1e-9}],
}
BOUNDS = dict.fromkeys(("eb", "ep", "ep64"), (1e-3, 0.999)) | dict.fromkeys(("tv", "few"), (1e-3, 2.0))
BOUNDS |= {"p": (1.0, 8.0), "cache": (0.1, 1.5), "between": (0.01, 5.0), "states": (1.0, 8.0)}
BOUNDS |= {"s0": (1e-2, 2e3), "ob": (1e-3, 1e8), "tl": (1e-15, 1e-4)}
BY_ROWS = ("scales", "quantise")
FIXED = ("pad",)


@dataclass(frozen=True)
class Part:
    """Rows of one table that one form and engine answer."""

    rows: KernelGroup
    elsewhere: bool = False  # the constants are at the reference's pace, as ``generic`` has them

    @property
    def system(self) -> str:
        return self.rows.system

    def logs(self, form: str, c: Constants, at: Array) -> Array:
        (kernel, *_), chip = self.rows.make(at), self.rows.chip
        c = rescale_to_chip(c, reference(), chip) if self.elsewhere else c
        fixed, moving = CHIP_FORMS[form](kernel, c, chip, 1.0)  # type: ignore[arg-type]
        return np.log((fixed + moving) * kernel.count / self.rows.seconds[at])


Found = dict[tuple[str, str], list[Part]]
Chosen = list[tuple[Part, Array]]


def parts(folder: Path) -> Found:
    """All rows by form and engine."""
    found: Found = {}
    for group in kernel_groups(folder, SYSTEMS, (kind.tail for kind in (*linear.KINDS, *streams.KINDS))):
        form = group.make(np.arange(1))[0].form
        found.setdefault((form, group.words["framework"]), []).append(Part(group))
    return found


def choose(rows: list[Part], systems: tuple[str, ...], fitted: bool | None, most: int = MOST) -> Chosen:
    """At most so many rows of the systems, each family of chips alike, spread over the table."""
    here = [part for part in rows if part.system in systems]
    families = [[s for s in its if any(part.system == s for part in here)] for its in FAMILIES.values()]
    shares = {s: 1 / len(its) / sum(map(bool, families)) for its in families for s in its}
    out = []
    for part in here:
        even = part.rows.fitted
        at = np.arange(len(even)) if fitted is None else np.flatnonzero(even == fitted)
        of_system = sum(len(other.rows.fitted) for other in here if other.system == part.system)
        keep = most * shares[part.system] * len(even) / of_system if fitted else len(at)
        if len(at):
            out.append((part, at[spread_over(len(at), keep)]))
    return out


def logs(form: str, c: Constants, rows: Chosen) -> Array:
    return np.concatenate([part.logs(form, c, at) for part, at in rows])


def median(form: str, c: Constants, rows: Chosen) -> float:
    return miss(logs(form, c, rows)) if rows else float("nan")


def starts(form: str) -> list[Constants]:
    by_function = {convolution: "conv", chunked_scan: "scan", encoder_attention: "encoder"}
    name = "blocks" if form == "conv-blocks" else by_function.get(CHIP_FORMS[form], "rows" if form in BY_ROWS else "stream")
    return STARTS[name]


def solve(form: str, rows: Chosen) -> Constants:
    """The constants of the best start; a start with more of them must be clearly better."""
    best, least = {}, np.inf
    for start in starts(form):
        free = [name for name in start if name not in FIXED]
        low, high = np.log([BOUNDS.get(name, (1e-30, 1e30)) for name in free]).T

        def at(z: Array, start: Constants = start, free: list[str] = free) -> Constants:
            return {**start, **dict(zip(free, np.exp(z).tolist(), strict=True))}

        z, errors = DESCENT.solve(lambda z, at=at: logs(form, at(z), rows), np.log([start[n] for n in free]), low, high)
        loss = DESCENT.loss(errors)
        if loss < least * (0.97 if len(start) > len(best) else 1.0):
            best, least = at(z), loss
    return best


def fit_file(form: str, name: str, systems: tuple[str, ...], found: Found) -> dict[str, Constants]:
    """Tables of one file: the family's own, and engines' where it misses them clearly. Keys as in the file."""
    tables: dict[str, Constants] = {}
    usual: Constants = {}
    for engine in sorted(ENGINES, key=lambda engine: engine != FIRST.get(form, ENGINES[0])):
        alone = OWN.get((form, engine), ("", ""))[1] or STRANGERS.get((form, engine), "")
        rows = [p for p in found.get((form, engine), []) if p.system in systems and p.system != alone]
        rows = [replace(p, elsewhere=name == "generic") for p in rows]
        here = tuple(dict.fromkeys(p.system for p in rows))
        fit, test = choose(rows, here, True), choose(rows, here, False)
        if sum(len(at) for _, at in fit) < LEAST or not test:
            continue
        c = solve(form, fit)
        own, shared = median(form, c, test), median(form, usual, test) if usual else float("nan")
        note = ""
        if not usual:
            usual, tables[f"{form}.bf16"] = c, c
        elif shared > own + CLEARLY:
            tables[f"engine.{engine}.{form}.bf16"] = c
        else:
            note = "shared"
        print(f"{name:10s} {form:15s} {engine:7s} {own:6.1%} with the family's {shared:6.1%} {note}", flush=True)
    return tables


def fit_chip(form: str, engine: str, system: str, found: Found) -> dict[str, Constants]:
    """The table of an engine on one chip."""
    rows = found[form, engine]
    c = solve(form, choose(rows, (system,), True))
    print(f"{system:10s} {form:15s} {engine:7s} {median(form, c, choose(rows, (system,), False)):6.1%}", flush=True)
    return {f"engine.{engine}.{form}.bf16": c}


def left_out(forms: list[str], found: Found) -> Iterator[tuple[str, str, Array]]:
    """Each chip from the others of its family, or from all others: ln(predicted / measured) of all rows of a kind."""
    for system in SYSTEMS:
        family = next(its for its in FAMILIES.values() if system in its)
        kin = tuple(s for s in family if s != system)
        sisters = kin or tuple(s for s in SYSTEMS if s != system)
        errors: dict[str, list[Array]] = {}
        for form, engine in ((form, engine) for form in forms for engine in ENGINES):
            rows = {e: [replace(p, elsewhere=not kin) for p in found.get((form, e), [])] for e in ENGINES}
            fit, test = choose(rows[engine], sisters, True), choose(rows[engine], (system,), None)
            if not fit:  # no other chip with this engine's kernel: the usual one
                fit = choose([p for e in ENGINES for p in rows[e]], sisters, True)
            if fit and test:
                c = solve(form, fit)
                for part, at in test:
                    errors.setdefault(part.rows.kind.name, []).append(part.logs(form, c, at))
        yield from ((system, kind, np.concatenate(its)) for kind, its in errors.items())


def write(form: str, name: str, tables: dict[str, Constants]) -> None:
    """Tables in place of those of this form; with them those that other forms take from it."""
    path = KERNELS / f"{name}.toml"
    drop_tables(path, [f"{form}.bf16", *(f"engine.{engine}.{form}.bf16" for engine in ENGINES)])
    written = dict(tables)
    if form == "conv-blocks":  # what this engine's steps convolve with
        written[f"engine.{FIRST[form]}.conv.bf16"] = tables[f"{form}.bf16"]
    for other, like in TRANSFERRED.items():
        if name == "generic" and like in tables:
            written[f"{other}.bf16"] = {**tables[like], "sigma": TRANSFERRED_SIGMA}
    for section, values in written.items():
        write_table(path, section, values)


def fit_form(form: str, found: Found) -> dict[str, dict[str, Constants]]:
    """Tables of each file."""
    made = {name: fit_file(form, name, systems, found) for name, systems in (*FAMILIES.items(), ("generic", SYSTEMS))}
    for (its, engine), (name, system) in OWN.items():
        if its == form:
            made.setdefault(name, {}).update(fit_chip(form, engine, system, found))
    return made


def main(arguments: list[str]) -> None:
    found = parts(Path(arguments[0]))
    forms = [a for a in arguments[1:] if a in CHIP_FORMS] or [f for f in CHIP_FORMS if any(f == form for form, _ in found)]
    if "--leave" in arguments:
        for system, kind, errors in left_out(forms, found):
            figures = f"{len(errors):5d} rows {miss(errors):6.1%} p90 {miss(errors, 0.9):6.1%}"
            print(f"left out {system:9s} {kind:18s} {figures}", flush=True)
        return
    for form in forms:
        for name, tables in fit_form(form, found).items():
            if "--write" in arguments and tables:
                write(form, name, tables)


if __name__ == "__main__":
    main(sys.argv[1:])
