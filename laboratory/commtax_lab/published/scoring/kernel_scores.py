"""Timed kernels against the constants of their chip's family: tables of a file, and rows of our own sweep."""

from collections.abc import Sequence

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import kernel_sigma, least_s, seconds
from commtax.cost.layer_forms import EAGER
from commtax.ledger import Z80
from commtax.runs.calibrate.measurements import SweepRow, kernel
from commtax.spec import DTYPE_BYTES, Chip, KernelConstants, Number
from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.published import sweep
from commtax_lab.published.kernel_tables import KernelTable
from commtax_lab.published.scoring.prediction_columns import Prediction, Records, prediction_around, records_of_columns
from commtax_lab.published.spellings import dtype_named, engine_named

UNMEASURED = 0.5  # half-width of the range where a family or number format has no residuals
SPREADS: dict[str, dict[str, dict[str, float]]] = lab_table("published/scoring/spreads.toml")
UNSIZED = "a size or the time is not a number above 0"
BESIDE = 6.0  # exponent of what runs beside each other
ENGINE = "vllm"  # the tables are of the kernels that serving engines call


def answers(table: KernelTable, source: Array | str) -> Records:
    """Price every row of one file, or give the reason why it has no price."""
    kind = table.kind.name
    if table.wrong or table.chip is None:
        return records_of_columns(table.count, kind=kind, source=source, system=table.system, skipped=table.wrong)
    predicted, floor, factor = (np.full(table.count, np.nan) for _ in range(3))
    untimed = table.sizes["seconds"] == 0  # such tables write what they did not time as 0
    skipped = np.where(table.good, "", np.where(untimed, "its time is 0: nothing was timed", UNSIZED)).astype(object)
    for words, mask in table.groups():
        named = {
            **words,
            "written": words["dtype"],
            "dtype": dtype_named(words["dtype"]) or words["dtype"],
            "stored": dtype_named(words["stored"]) or words["stored"],
        }
        if named["dtype"] not in DTYPE_BYTES or named["stored"] not in DTYPE_BYTES:
            skipped[mask] = f"number format '{words['dtype']}' is not known"
            continue
        try:
            engine = catalog.engine(engine_named(words["framework"]) or words["framework"] or ENGINE)
            constants = catalog.kernel_constants(engine, table.chip, timed=not table.kind.in_step)
            made = table.kind.make(named, {name: sizes[mask] for name, sizes in table.sizes.items()})
        except Refusal as why:
            skipped[mask] = str(why)
            continue
        predicted[mask], floor[mask] = price_kernels(made, table.chip, constants)
        width = spread(kind, table.chip.family, words["dtype"])
        factor[mask] = width if width != UNMEASURED else unmeasured_half_widths(made, table.chip, constants)
    return records_of_columns(
        table.count,
        kind=kind,
        source=source,
        system=table.system,
        chip=table.chip.key,
        library=table.column("kernel_source"),
        version=table.column("version"),
        dtype=table.dtype,
        what=table.shapes(),
        size=table.bound(),
        measured=table.sizes["seconds"],
        predicted=predicted,
        low=predicted / (1 + factor),
        high=predicted * (1 + factor),
        floor=floor,
        fitted=table.fitted(),
        where=table.chip.family,
        skipped=skipped,
        sound=~untimed,
        hint=table.hints(),
    )


def price_kernels(kernels: Sequence[Kernel], chip: Chip, constants: KernelConstants) -> tuple[Number, Number]:
    """Return the seconds of kernels that run one after another, and the least that bandwidth and peak allow."""
    none: Number = 0.0
    total, host, least = none, none, none
    for one in kernels:
        fixed, moving = seconds(one, chip, constants)
        taken = (fixed + moving) * one.count
        total, host = (total, host + taken) if one.form in EAGER else (total + taken, host)
        least = least + least_s(one, chip, constants) * one.count
    return overlap_launches(total, host, constants), least


def unmeasured_half_widths(kernels: Sequence[Kernel], chip: Chip, constants: KernelConstants) -> Array:
    """Return half-widths of 80 % ranges for a family without residuals, whose constants all err together."""
    took = [np.asarray(sum(seconds(one, chip, constants)) * one.count) for one in kernels]
    sigma = sum(kernel_sigma(one, constants) * s for one, s in zip(kernels, took, strict=True)) / np.maximum(sum(took), 1e-300)
    return np.maximum(UNMEASURED, np.expm1(Z80 * sigma))


def overlap_launches(device_s: Number, host_s: Number, constants: KernelConstants) -> Number:
    """Return the time of launches without a graph beside the device's: the slower of both, smoothed."""
    if not np.any(host_s):
        return device_s
    slower = constants.tables["host.bf16"]["slower"]
    both: Number = (device_s**BESIDE + (host_s * slower) ** BESIDE) ** (1 / BESIDE)
    return both


def swept_kernel(row: SweepRow, kind: str, chip: Chip) -> Prediction:
    """Predict one kernel of our own sweep, with ranges from its own residuals."""
    if row["kind"] == "prefill" and row.get("backend", "cudnn") != "cudnn":
        raise Refusal(f"attention of '{row['backend']}' is measured beside the engine's and has no constants", "backend")
    one = kernel(row)
    fixed, moving = seconds(one, chip, catalog.kernel_constants(catalog.engine(sweep.ENGINE), chip))
    least = max(one.nbytes / chip.memory_Bps, one.flops / chip.flops_per_s[one.dtype])
    return prediction_around(float(fixed + moving), 1 + spread(kind, sweep.ENGINE, row["dtype"]), float(least))


def spread(kind: str, family: str, dtype: str) -> float:
    """Return the width of single kernels' 80 % range: 4 in 5 measured times lie within 1 + this times the predicted one."""
    widths = SPREADS.get(kind, {}).get(family, {})
    return widths.get(dtype, widths.get("else", UNMEASURED))
