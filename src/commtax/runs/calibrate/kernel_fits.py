"""Attained fractions and fixed costs of kernels, from a sweep of them: the family's tables with their scalars moved.

Only scalars are fitted (t0, and factors on eb and ep); the shapes of the curves stay the family's, which many more rows made.
Small kernels, copies and whole steps are left: what a small kernel takes alone is not what it takes inside a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.cost.kernel import Kernel
from commtax.cost.layer_forms import FORMS
from commtax.records import with_fields
from commtax.runs.calibrate import robust_fit
from commtax.runs.calibrate.measurements import (
    ConstantChange,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    SweepRow,
    SweptKernel,
    Wish,
    kernel,
)
from commtax.spec import Profile
from commtax.statement import Refusal

LEAST_ROWS = 8
MATTERS = 0.1  # a constant that moves no time by a tenth of its own change cannot be told
Table = Mapping[str, float]
SCALARS = {"gemm": ("t0", "eb", "ep"), "decode": ("t0", "eb"), "prefill": ("t0", "ep")}
SHAPE = ("flops", "nbytes", "m", "n", "k", "batch", "heads", "kv_heads", "length", "past")


def table_name(row: SweepRow) -> str:
    kind, dtype = row["kind"], row.get("dtype", "bf16")
    static = kind == "gemm" and dtype == "fp8" and row.get("mode") == "static"
    return f"{kind}.{dtype}{'-static' if static else ''}"


def fit_tables(rows: MeasurementFiles, place: MeasuredMachine, own: Profile) -> Step:
    """The tables that the sweep's rows tell of."""
    groups: dict[str, list[SweptKernel]] = {}
    tables: dict[str, Table] = {}
    parts: list[ProfilePart] = []
    slower = _slower_backends(rows.kernels)
    refused = [f"prefill by {name}: slower than another backend, not fitted" for name in slower]
    for row in rows.kernels:
        if row.row["kind"] == "prefill" and row.row.get("backend", "") in slower:
            continue
        groups.setdefault(table_name(row.row), []).append(row)
    known = catalog.kernel_constants(place.engine, place.cluster.chip).tables
    for name, members in groups.items():
        start = known.get(name) or known.get(f"{name.partition('.')[0]}.bf16")
        if len(members) < LEAST_ROWS or start is None:
            refused.append(f"kernels {name}: {len(members)} rows; at least {LEAST_ROWS} are needed, small and large shapes")
            continue
        table, part = _fit_table(name, members, start, place)
        if part.after.median < part.before.median or part.after.p90 < part.before.p90:
            tables[name] = table
            parts.append(part)
        else:
            refused.append(f"kernels {name}: the catalogue's constants fit these {len(members)} rows as well; kept")
    return replace(own, tables={**own.tables, **tables}), parts, refused


def _slower_backends(rows: Sequence[SweptKernel]) -> list[str]:
    """All but the fastest of the backends that ran prefill attention: an engine would take that one."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row.row["kind"] == "prefill":
            rates.setdefault(str(row.row.get("backend", "")), []).append(float(_kernel(row).flops) / row.seconds)
    return sorted(rates, key=lambda name: -float(np.median(rates[name])))[1:]


def _fit_table(name: str, rows: list[SweptKernel], start: Table, place: MeasuredMachine) -> tuple[Table, ProfilePart]:
    form = name.partition(".")[0]
    times = np.array([r.seconds for r in rows])
    scalars = [s for s in SCALARS[form] if start["t0"] > 0 or s != "t0"]
    kernels = [_kernel(r) for r in rows]

    def predict(factors: Array) -> Array:
        return _seconds(kernels, _scale_constants(start, dict(zip(scalars, factors, strict=True))), form, place)

    tells = np.sqrt(np.mean(robust_fit.slopes(predict, np.ones(len(scalars))) ** 2, axis=0)) > MATTERS
    notes = [f"{s}: these shapes do not tell it" for s, yes in zip(scalars, tells, strict=True) if not yes]
    scalars = [s for s, yes in zip(scalars, tells, strict=True) if yes]
    most = np.array([np.inf if s == "t0" else 1 / max(v for k, v in start.items() if _is_scalar(k, s)) for s in scalars])
    fitted = robust_fit.curve(predict, np.minimum(np.ones(len(scalars)), most), times, most)
    table = _scale_constants(start, dict(zip(scalars, fitted.values, strict=True)))
    spread = robust_fit.half_width(fitted.residuals, len(scalars))
    table["sigma"] = robust_fit.sigma_of(spread)
    moved = [k for k in table if table[k] != start.get(k, table[k])]
    changes = (ConstantChange(f"{name} {k}", start[k], table[k], "s" if k == "t0" else "") for k in moved)
    before = np.log(times / _seconds(kernels, start, form, place))
    part = ProfilePart.of(f"kernels {name}", [r.label for r in rows], before, fitted.residuals, spread, changes)
    return table, part.with_remarks(notes, [Wish(f"kernels {name}, more shapes: the range is ±{spread:.0%}", spread)])


def _is_scalar(key: str, scalar: str) -> bool:
    """Whether a constant is the scalar, or the scalar of one head size (eb64, ep128)."""
    return key == scalar or (key.startswith(scalar) and key[len(scalar) :].isdigit())


def _scale_constants(start: Table, factors: Mapping[str, float]) -> dict[str, float]:
    outcome = dict(start)
    for scalar, factor in factors.items():
        outcome |= {k: float(v * factor) for k, v in start.items() if _is_scalar(k, scalar)}
    return outcome


def _kernel(r: SweptKernel) -> Kernel:
    """A row as the cost model's kernel."""
    try:
        return kernel(r.row)
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"'{r.label}': a shape is missing or no number ({error})") from None


def _seconds(kernels: list[Kernel], table: Table, form: str, place: MeasuredMachine) -> Array:
    """Kernels of one head size and arithmetic are priced together."""
    chip = place.cluster.chip
    peaks = chip.flops_per_s
    outcome = np.empty(len(kernels))
    keys = [(k.head_dim, k.dtype) for k in kernels]
    for key in dict.fromkeys(keys):
        members = [i for i, other in enumerate(keys) if other == key]
        shapes = {n: np.array([getattr(kernels[i], n) for i in members], float) for n in SHAPE}
        many = with_fields(kernels[members[0]], shapes)
        peak = peaks.get(many.dtype) or peaks.get("bf16") or peaks["fp16"]
        fixed, moving = FORMS[form](many, table, chip.memory_Bps, peak)
        outcome[members] = fixed + moving
    return outcome
