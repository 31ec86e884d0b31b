"""Timed kernels against the constants of their chip's family: tables of a file, and rows of our own sweep."""

import numpy as np

from commtax import catalog
from commtax.cost.compute import Kernel
from commtax.cost.kernels import peak, seconds
from commtax.files import table
from commtax.readers.published import sweep
from commtax.readers.published.kernels import DTYPES, KernelTable, kernel
from commtax.spec import DTYPE_BYTES, Chip, KernelConstants
from commtax.statement import Refusal
from commtax.validate.records import Array, Predicted, Records, around, of_columns

UNMEASURED = 0.5  # half-width of the range where a family or number format has no residuals
SPREADS: dict[str, dict[str, dict[str, float]]] = table("validate/spreads.toml")
ENGINE = "vllm"  # the tables are of the kernels that serving engines call


def answers(table: KernelTable, source: Array) -> Records:
    """Every row of one file priced, or with its reason."""
    if table.wrong or table.chip is None:
        return of_columns(table.count, kind=table.kind, source=source, system=table.system, skipped=table.wrong)
    predicted, floor, factor = (np.full(table.count, np.nan) for _ in range(3))
    skipped = np.where(table.good, "", "a size or the time is not a number above 0").astype(object)
    constants = catalog.kernel_constants(catalog.engine(ENGINE), table.chip)
    for (arithmetic, kept), mask in table.groups():
        dtype, stored = DTYPES.get(arithmetic, arithmetic), DTYPES.get(kept, kept)
        if dtype not in DTYPE_BYTES or stored not in DTYPE_BYTES:
            skipped[mask] = f"number format '{arithmetic}' is not known"
            continue
        one = kernel(table.form, dtype, stored, {name: sizes[mask] for name, sizes in table.sizes.items()})
        predicted[mask], floor[mask] = priced(one, table.chip, constants)
        factor[mask] = spread(table.kind, table.chip.family, kept if table.form == "decode" else arithmetic)
    return of_columns(
        table.count,
        kind=table.kind,
        source=source,
        system=table.system,
        library=table.column("kernel_source"),
        version=table.column("version"),
        dtype=table.dtype,
        what=table.shapes(),
        size=table.bound(),
        measured=table.sizes["latency_ms"] * 1e-3,
        predicted=predicted,
        low=predicted / (1 + factor),
        high=predicted * (1 + factor),
        floor=floor,
        fitted=table.fitted(),
        where=table.chip.family,
        skipped=skipped,
        hint=table.hints(),
    )


def priced(one: Kernel, chip: Chip, constants: KernelConstants) -> tuple[Array, Array]:
    """Seconds, and the least that bandwidth and peak allow."""
    fixed, moving = seconds(one, chip, constants)
    return fixed + moving, np.maximum(one.nbytes / chip.memory_Bps, one.flops / peak(one, chip, constants))


def swept_kernel(row: sweep.SweepRow, kind: str, chip: Chip) -> Predicted:
    """One kernel of our own sweep, whose ranges are of its own residuals."""
    if row["kind"] == "prefill" and row.get("backend", "cudnn") != "cudnn":
        raise Refusal(f"attention of '{row['backend']}' is measured beside the engine's and has no constants", "backend")
    one = sweep.kernel(row)
    fixed, moving = seconds(one, chip, catalog.kernel_constants(catalog.engine(sweep.ENGINE), chip))
    least = max(one.nbytes / chip.memory_Bps, one.flops / chip.flops_per_s[one.dtype])
    return around(float(fixed + moving), 1 + spread(kind, sweep.ENGINE, row["dtype"]), float(least))


def spread(kind: str, family: str, dtype: str) -> float:
    """Width of the 80 % range of single kernels: 4 in 5 measured times lie within a factor of 1 + this of the predicted one."""
    known = SPREADS[kind].get(family, {})
    return known.get(dtype, known.get("else", UNMEASURED))
