"""How far kernels are off on a chip that nothing was fitted on: ``python benchmarks/left_out.py DATA_DIR [--write] [KIND ...]``.

Each chip of a family is priced by the others of its family (``family``), and each family by constants fitted on the others and
moved at the pace of its datasheet (``unmeasured``), with an untouched half of the rows to fit on and all rows of the chip left
out to judge. Kinds: gemm, decode, prefill, experts, streams, latent. Printed are medians with and without the pace; written into
``catalog/left_out.toml`` are, by form: ``sigma``, the 80th percentile of |ln(predicted / measured)| over 1.28, and ``shift``, the
root mean square over chips of its median, which does not average out in a step. ``generic.toml`` keeps the pooled fit of all.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import fit_experts
import fit_forms
import numpy as np
from fit_kernels import TABLES, TAILS, Part, Rows, logs, solve, usual_constants, with_table
from fitting import CATALOG, FAMILIES, KERNELS, Array, Constants, miss, write_table

from commtax import catalog
from commtax.catalog.kernel_constants import reference, rescale_to_chip
from commtax.cost.kernels import STAND_INS
from commtax.ledger import Z80
from commtax.spec import Chip, KernelConstants
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published.scoring import kernel_scores
from commtax_lab.published.tables import read

KIN = {"b300-sxm": ("b300-sxm", "kernels_more/b300_sxm"), "gb200": ("gb200", "kernels_more/gb200")}
"""Chips that B200's constants price."""
PLAIN = ("gemm.bf16", "gemm.fp8", "gemm.nvfp4", "gemm.fp8-block", "decode.bf16", "decode.fp8", "prefill.bf16")
LATENT = ("context_mla", "generation_mla", "mla_bmm")
HEAD = """\
# How far kernels are off on chips that nothing was fitted on (benchmarks/left_out.py): [family]: a chip priced by the others of
# its family; [unmeasured]: by other families, at its datasheet's pace. By form and number format: sigma, the 80th percentile of
# |ln(predicted / measured)| over all rows divided by 1.28; shift, the root mean square over chips of its median."""
Errors = dict[str, dict[str, Array]]
"""By form, and by the chip that was left out: ln(predicted / measured)."""


class Moved(Rows):
    """Rows whose constants are at the reference's pace."""

    paced = True

    def log(self, constants: KernelConstants, source: str, x: dict[str, Array], measured: Array) -> Array:
        name = f"{self.form}.{self.kind}"
        own = constants.tables[name]
        moved = rescale_to_chip(own, reference(), self.chip) if self.paced else own
        return super().log(with_table(constants, name, moved), source, x, measured)


def unmeasured(chip: Chip) -> Chip:
    """A chip as if its family had no file."""
    return replace(chip, key="none", family="none")


def plain(folder: Path, names: list[str], write: bool) -> Iterator[tuple[str, str, str, Array]]:
    for name in names:
        form, _, kind = name.partition(".")
        found = {family: _rows(folder, family, form, kind) for family in FAMILIES if name in _tables(family)}
        rows = {family: its for family, its in found.items() if len(its.records)}
        pooled = len(rows) > 2 and name in generic().tables
        for family in rows if pooled else ():
            with_pace = _pooled(rows, name, family)
            yield "unmeasured", name, family, with_pace
            _say(name, family, with_pace, _pooled(rows, name, family, paced=False))
        if write and pooled:
            write_table(KERNELS / "generic.toml", name, _fit(list(rows.values()), name))
        for key, where in KIN.values():
            yield from _kin(folder, name, key, where)


def generic() -> KernelConstants:
    return usual_constants(unmeasured(reference()))


def _tables(family: str) -> Mapping[str, Mapping[str, float]]:
    return usual_constants(catalog.chip(TABLES[family][0])).tables


def _rows(folder: Path, family: str, form: str, kind: str) -> Moved:
    key, where = TABLES[family]
    return Moved(folder / f"{where}_{TAILS[form]}.csv.gz", form, kind, catalog.chip(key))


def _fit(rows: list[Moved], name: str) -> Constants:
    return {**generic().tables[name], **solve(list(rows), generic(), name)[0]}


def _pooled(rows: dict[str, Moved], name: str, left: str, paced: bool = True) -> Array:
    """Errors of all rows of a family whose constants are fitted on the others."""
    for its in rows.values():
        its.paced = paced
    table = _fit([its for family, its in rows.items() if family != left], name)
    return logs(with_table(generic(), name, table), _all(rows[left]))


def _all(rows: Rows) -> list[Part]:
    return [*rows.parts(True), *rows.parts(False)]


def _kin(folder: Path, name: str, key: str, where: str) -> Iterator[tuple[str, str, str, Array]]:
    """A chip of B200's family, with B200's constants."""
    form, _, kind = name.partition(".")
    chip = catalog.chip(key)
    engine = "sglang" if kind == "fp8-block" else kernel_scores.ENGINE
    rows = Rows(folder / f"{where}_{TAILS[form]}.csv.gz", form, kind, chip, engine)
    constants = usual_constants(replace(chip, key="none"))
    if len(rows.records) and name in constants.tables:
        errors = logs(constants, _all(rows))
        yield "family", name, key, errors
        _say(name, key, errors)


def experts(folder: Path) -> Iterator[tuple[str, str, str, Array]]:
    """Routed experts: pools of other families at the chip's pace; of Blackwell's other chips as they are."""
    samples = [s for s in fit_experts.samples(folder) if not fit_experts.exchanged(s.form) and s.chip.family in FAMILIES]
    for chip in {s.chip.key: s.chip for s in samples}.values():
        out = [s for s in samples if s.chip.key == chip.key]
        kin = [s for s in samples if s.chip.family == chip.family and s.chip.key != chip.key]
        others = [replace(s, elsewhere=True) for s in samples if s.chip.family != chip.family]
        for case, rest, away in (("family", kin, False), ("unmeasured", others, True)):
            for store in sorted({s.store for s in out}) if rest else ():
                rows = [replace(s, elsewhere=away) for s in out if s.store == store]
                if pool := _pool(rest, store):
                    table = fit_experts.fit(pool)
                    errors = np.concatenate([s.logs(table, fitted) for s in rows for fitted in (True, False)])
                    yield case, f"experts.{store}", chip.key, errors
                    _say(f"experts.{store} {case}", chip.key, errors)


def _pool(rest: list[fit_experts.Sample], store: str) -> list[fit_experts.Sample]:
    """Rows of the number format, or of the nearest that others have."""
    for kind in (store, *STAND_INS.get(store, ()), "bf16"):
        if (pool := [s for s in rest if s.store == kind]) and fit_experts.size(pool) >= fit_experts.LEAST:
            return pool
    return []


def streams(folder: Path) -> Iterator[tuple[str, str, str, Array]]:
    """Linear attention and other streams, as ``fit_forms.py --leave`` does."""
    found = fit_forms.parts(folder)
    for system, kind, errors in fit_forms.left_out(sorted({form for form, _ in found}), found):
        kin = any(system in its and len(its) > 1 for its in FAMILIES.values())
        yield "family" if kin else "unmeasured", "streams", f"{system} {kind}", errors


def latent(folder: Path) -> Iterator[tuple[str, str, str, Array]]:
    """Latent attention with the generic constants, Hopper's, at each other chip's pace and without it."""
    for system in ("a100_sxm", "l40s", "b200_sxm"):
        for tail in LATENT:
            path = folder / "kernels_more" / f"{system}_{tail}.csv.gz"
            table = kernel_tables.read(path.name, *read(path))
            assert table.chip is not None
            here = unmeasured(table.chip)
            with_pace, without = (_of_table(replace(table, chip=chip)) for chip in (here, replace(here, num_sms=0)))
            yield "unmeasured", "latent", f"{system} {tail}", with_pace
            _say(tail, system, with_pace, without)


def _of_table(table: kernel_tables.KernelTable) -> Array:
    records = kernel_scores.answers(table, "")
    return records.log_error[records.priced]


def _say(name: str, chip: str, errors: Array, without: Array | None = None) -> None:
    before = "" if without is None else f"  without the pace {miss(without):6.1%}"
    figures = f"{miss(errors):6.1%}  80 % in {np.quantile(np.abs(errors), 0.8):.3f}{before}"
    print(f"{name:28s} {chip:14s} {len(errors):6d} rows  {figures}", flush=True)


def lines(found: dict[str, Errors]) -> Iterator[str]:
    """The file of widths."""
    yield HEAD
    for case, forms in found.items():
        yield f"\n[{case}]"
        for form, by_chip in forms.items():
            rows = np.abs(np.concatenate(list(by_chip.values())))
            shift = float(np.sqrt(np.mean([np.median(e) ** 2 for e in by_chip.values()])))
            sigma = float(np.quantile(rows, 0.8)) / Z80
            yield f'"{form}" = {{ sigma = {sigma:.3f}, shift = {shift:.3f} }}  # {len(by_chip)} left out, {len(rows)} rows'


def main(arguments: list[str]) -> None:
    folder, write = Path(arguments[0]), "--write" in arguments
    kinds = {"gemm", "decode", "prefill", "experts", "streams", "latent"}
    wanted = kinds & set(arguments[1:]) or kinds
    found: dict[str, Errors] = {"family": defaultdict(dict), "unmeasured": defaultdict(dict)}
    steps = [plain(folder, [name for name in PLAIN if name.partition(".")[0] in wanted], write)]
    steps += [make(folder) for make in (experts, streams, latent) if make.__name__ in wanted]
    for step in steps:
        for case, form, chip, errors in step:
            found[case][form][chip] = errors
    text = "\n".join(lines(found)) + "\n"
    print(text)
    if write:
        (CATALOG / "left_out.toml").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
