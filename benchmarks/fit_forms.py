"""Fit the constants of linear attention and other streams: ``python benchmarks/fit_forms.py DATA_DIR [--write] [FORM ...]``.

Fitted are rows whose SHA-256 begins with an even byte, tested the others. A family of chips has one set of constants a form; an
engine has its own where the family's miss its rows by more than ``CLEARLY``. ``generic`` is fitted on all chips, each family
counting alike. With ``--leave`` each chip is left out in turn and priced with the constants of its family's others, or with the
generic ones fitted without it; nothing is written then. Levenberg-Marquardt on log errors with soft-L1 weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import commtax
from commtax.catalog.kernel_constants import reference, rescale_to_chip
from commtax.cost.layer_forms import CHIP_FORMS, chunked_scan, convolution, encoder_attention
from commtax.spec import Chip
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.kernel_kinds import linear, streams
from commtax_lab.published.spellings import dtype_named
from commtax_lab.published.tables import read

FOLDER = Path(commtax.__file__).parent / "catalog" / "kernels"
FAMILIES = {"ampere": ("a100_sxm",), "hopper": ("h100_sxm",), "ada": ("l40s",), "blackwell": ("b200_sxm", "b300_sxm", "gb200")}
OWN = {("encoder", engine): ("b300-sxm", "b300_sxm") for engine in ("vllm", "sglang", "trtllm")}
"""Engines that run other kernels on one chip than on its family's others: file and system."""
STRANGERS = {("conv-qkv", "vllm"): "gb200"}
"""Systems whose host launches an engine's kernels so much slower that its family is fitted without."""
SYSTEMS = [system for systems in FAMILIES.values() for system in systems]
ENGINES = ("vllm", "sglang", "trtllm")  # the first that was measured gives a family's constants
FIRST = {"conv-qkv": "sglang", "conv-blocks": "trtllm"}  # vLLM's rows of the former are of a launch from Python
TRANSFERRED = {"ssd-scan": "engine.sglang.gdn-scan.bf16", "ssd-update": "gdn-update.bf16"}
"""Forms that nobody timed, and the generic table that they take: a chain of Triton kernels, a state read and written."""
TRANSFERRED_SIGMA = 0.5
MOST, LEAST, CLEARLY, SCALE = 4000, 8, 0.03, 0.03

STREAM = {"t0": 3e-6, "eb": 0.8, "ep": 0.05, "tl": 1e-8, "cache": 0.5, "p": 2.5}
STARTS: Mapping[str, list[dict[str, float]]] = {
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
BOUNDS = {
    "p": (1.0, 8.0),
    "cache": (0.1, 1.5),
    "between": (0.01, 5.0),
    "states": (1.0, 8.0),
    "tv": (1e-3, 2.0),
    "few": (1e-3, 2.0),
    "s0": (1e-2, 2e3),
    "ob": (1e-3, 1e8),
    "tl": (1e-15, 1e-4),
}
BY_ROWS = ("scales", "quantise")
FRACTIONS = ("eb", "ep", "ep64")
FIXED = ("pad",)
Constants = dict[str, float]


@dataclass
class Part:
    """Rows of one table that one form and engine answer: on a chip, as ``make`` builds them from chosen places."""

    kind: str
    system: str
    chip: Chip
    make: Callable[[np.ndarray], object]
    seconds: np.ndarray
    even: np.ndarray
    elsewhere: bool = False  # the constants are at the reference's pace, as ``generic`` has them

    def logs(self, form: str, c: Constants, at: np.ndarray) -> np.ndarray:
        kernel = self.make(at)
        c = rescale_to_chip(c, reference(), self.chip) if self.elsewhere else c
        fixed, moving = CHIP_FORMS[form](kernel, c, self.chip, 1.0)  # type: ignore[arg-type]
        return np.log((fixed + moving) * kernel.count / self.seconds[at])  # type: ignore[attr-defined]


def parts(folder: Path) -> dict[tuple[str, str], list[Part]]:
    """All rows by form and engine."""
    found: dict[tuple[str, str], list[Part]] = {}
    for system in SYSTEMS:
        for kind in (*linear.KINDS, *streams.KINDS):
            path = folder / "kernels_more" / f"{system}_{kind.tail}.csv.gz"
            if not path.exists():
                continue
            table = kernel_tables.read(path.name, *read(path))
            even = table.fitted()
            for words, mask in table.groups():
                named = {**words, "dtype": dtype_named(words["dtype"]) or words["dtype"]}
                x = {name: values[mask] for name, values in table.sizes.items()}

                def make(at: np.ndarray, named: dict[str, str] = named, x: Mapping[str, np.ndarray] = x, kind=kind) -> object:
                    return kind.make(named, {name: values[at] for name, values in x.items()})[0]

                form = make(np.arange(1)).form  # type: ignore[attr-defined]
                assert table.chip is not None
                one = Part(kind.name, system, table.chip, make, x["seconds"], even[mask])
                found.setdefault((form, words["framework"]), []).append(one)
    return found


Chosen = list[tuple[Part, np.ndarray]]


def chosen(rows: list[Part], systems: tuple[str, ...], even: bool | None, most: int = MOST) -> Chosen:
    """At most so many rows of the systems, each family of chips alike, spread over the table."""
    here = [part for part in rows if part.system in systems]
    families = [[s for s in its if any(part.system == s for part in here)] for its in FAMILIES.values()]
    shares = {s: 1 / len(its) / sum(map(bool, families)) for its in families for s in its}
    out = []
    for part in here:
        at = np.arange(len(part.even)) if even is None else np.flatnonzero(part.even == even)
        of_system = sum(len(other.even) for other in here if other.system == part.system)
        keep = max(1, round(most * shares[part.system] * len(part.even) / of_system)) if even else len(at)
        if len(at):
            out.append((part, at[np.linspace(0, len(at) - 1, min(keep, len(at))).astype(int)]))
    return out


def logs(form: str, c: Constants, rows: Chosen) -> np.ndarray:
    return np.concatenate([part.logs(form, c, at) for part, at in rows])


def median(form: str, c: Constants, rows: Chosen) -> float:
    return float(np.median(np.abs(np.expm1(logs(form, c, rows))))) if rows else float("nan")


def starts(form: str) -> list[dict[str, float]]:
    by_function = {convolution: "conv", chunked_scan: "scan", encoder_attention: "encoder"}
    name = "blocks" if form == "conv-blocks" else by_function.get(CHIP_FORMS[form], "rows" if form in BY_ROWS else "stream")
    return STARTS[name]


def solve(form: str, rows: Chosen) -> Constants:
    """The constants of the best start; a start with more of them must be clearly better."""
    fits = [_solve(form, start, rows) for start in starts(form)]
    best, loss = fits[0]
    for other, its in fits[1:]:
        if its < loss * (0.97 if len(other) > len(best) else 1.0):
            best, loss = other, its
    return best


def _solve(form: str, start: Constants, rows: Chosen) -> tuple[Constants, float]:
    free = [name for name in start if name not in FIXED]
    ends = [(1e-3, 0.999) if n in FRACTIONS else BOUNDS.get(n, (1e-30, 1e30)) for n in free]
    low, high = np.log(ends).T
    z, damping = np.clip(np.log([start[n] for n in free]), low, high), 1e-2

    def at(z: np.ndarray) -> Constants:
        return {**start, **dict(zip(free, np.exp(z).tolist(), strict=True))}

    def loss(r: np.ndarray) -> float:
        return float(np.mean(np.sqrt(1 + (r / SCALE) ** 2)))

    r = logs(form, at(z), rows)
    for _ in range(40):
        jac = np.stack([(logs(form, at(z + 1e-4 * e), rows) - r) / 1e-4 for e in np.eye(len(z))])
        w = 1 / np.sqrt(1 + (r / SCALE) ** 2)
        a, b = (jac * w) @ jac.T, -(jac * w) @ r
        done = True
        for _ in range(8):
            tried = np.clip(z + np.clip(np.linalg.solve(a + damping * np.diag(np.diag(a) + 1e-9), b), -0.7, 0.7), low, high)
            new = logs(form, at(tried), rows)
            if np.isfinite(new).all() and loss(new) < loss(r) * (1 - 1e-5):
                z, r, damping, done = tried, new, damping / 3, False
                break
            damping *= 4
        if done:
            break
    return at(z), loss(r)


def order(form: str) -> tuple[str, ...]:
    return tuple(sorted(ENGINES, key=lambda engine: engine != FIRST.get(form, ENGINES[0])))


def fit_file(form: str, name: str, systems: tuple[str, ...], found: dict[tuple[str, str], list[Part]]) -> dict[str, Constants]:
    """Tables of one file: the family's own, and engines' where it misses them clearly. Keys as in the file."""
    tables: dict[str, Constants] = {}
    usual: Constants = {}
    for engine in order(form):
        alone = OWN.get((form, engine), ("", ""))[1] or STRANGERS.get((form, engine), "")
        rows = [p for p in found.get((form, engine), []) if p.system in systems and p.system != alone]
        rows = [replace(p, elsewhere=name == "generic") for p in rows]
        here = tuple(dict.fromkeys(p.system for p in rows))
        fit, test = chosen(rows, here, True), chosen(rows, here, False)
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


def fit_chip(form: str, engine: str, system: str, found: dict[tuple[str, str], list[Part]]) -> dict[str, Constants]:
    """The table of an engine on one chip."""
    rows = found[form, engine]
    c = solve(form, chosen(rows, (system,), True))
    print(f"{system:10s} {form:15s} {engine:7s} {median(form, c, chosen(rows, (system,), False)):6.1%}", flush=True)
    return {f"engine.{engine}.{form}.bf16": c}


def left_out(forms: list[str], found: dict[tuple[str, str], list[Part]]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Each chip from the others of its family, or from all others: ln(predicted / measured) of all rows of a kind."""
    for system in SYSTEMS:
        family = next(its for its in FAMILIES.values() if system in its)
        kin = tuple(s for s in family if s != system)
        sisters = kin or tuple(s for s in SYSTEMS if s != system)
        errors: dict[str, list[np.ndarray]] = {}
        for form, engine in ((form, engine) for form in forms for engine in ENGINES):
            rows = {e: [replace(p, elsewhere=not kin) for p in found.get((form, e), [])] for e in ENGINES}
            fit, test = chosen(rows[engine], sisters, True), chosen(rows[engine], (system,), None)
            if not fit:  # no other chip with this engine's kernel: the usual one
                fit = chosen([p for e in ENGINES for p in rows[e]], sisters, True)
            if fit and test:
                c = solve(form, fit)
                for part, at in test:
                    errors.setdefault(part.kind, []).append(part.logs(form, c, at))
        yield from ((system, kind, np.concatenate(its)) for kind, its in errors.items())


def leave(forms: list[str], found: dict[tuple[str, str], list[Part]]) -> None:
    """Medians of a chip that was left out, by kind."""
    for system, kind, its in left_out(forms, found):
        e = np.abs(np.expm1(its))
        print(f"left out {system:9s} {kind:18s} {len(e):5d} rows {np.median(e):6.1%} p90 {np.quantile(e, 0.9):6.1%}", flush=True)


def put(name: str, tables: dict[str, Constants], form: str) -> None:
    """Tables written in place of those of this form, in front of the sources."""
    path = FOLDER / f"{name}.toml"
    text = path.read_text() if path.exists() else f'key = "{name}"\n\n'
    blocks = text.split("\n\n")
    endings = (f"[{form}.bf16]", f"[engine.{form}.bf16]", *(f"[engine.{e}.{form}.bf16]" for e in ENGINES))
    kept = [block for block in blocks if not block.startswith(endings)]
    made = ["\n".join([f"[{key}]", *(f"{n} = {v:.4g}" for n, v in c.items())]) for key, c in tables.items()]
    at = next((i for i, block in enumerate(kept) if block.startswith("[sources.")), len(kept))
    path.write_text("\n\n".join([*kept[:at], *made, *kept[at:]]).rstrip() + "\n")


def main(arguments: list[str]) -> None:
    found = parts(Path(arguments[0]))
    forms = [a for a in arguments[1:] if a in CHIP_FORMS] or [f for f in CHIP_FORMS if any(f == form for form, _ in found)]
    if "--leave" in arguments:
        leave(forms, found)
        return
    for form in forms:
        files = [*FAMILIES.items(), ("generic", tuple(SYSTEMS))]
        made = [(name, fit_file(form, name, systems, found)) for name, systems in files]
        own = [(engine, *place) for (its, engine), place in OWN.items() if its == form]
        made += [(name, fit_chip(form, engine, system, found)) for engine, name, system in own]
        before: dict[str, dict[str, Constants]] = {}
        for name, tables in made:
            if "--write" in arguments and tables:
                put(name, {**before.get(name, {}), **tables}, form)
                before[name] = {**before.get(name, {}), **tables}
                if form == "conv-blocks":  # what this engine's steps convolve with
                    put(name, {f"engine.{FIRST[form]}.conv.bf16": tables[f"{form}.bf16"]}, f"{FIRST[form]}.conv")
                for other in (o for o, like in TRANSFERRED.items() if name == "generic" and like in tables):
                    put(name, {f"{other}.bf16": {**tables[TRANSFERRED[other]], "sigma": TRANSFERRED_SIGMA}}, other)


if __name__ == "__main__":
    main(sys.argv[1:])
