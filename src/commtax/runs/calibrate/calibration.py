"""A user's own measurements into a profile that every command takes: ``commtax calibrate nccl.txt bench.json``.

Files are recognised by what is inside. Inside parts come first (collectives in a host, kernels), then what rests on them
(collectives across hosts, the engine's host times), so that each residual is blamed on its own constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path as File

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog.profile_files import ProfilesLike, document, load_profile, parse
from commtax.cost.kernel import Kernel
from commtax.cost.layer_forms import FORMS
from commtax.launch.launch_options import read_pasted
from commtax.question import PHASES
from commtax.records import with_fields
from commtax.runs.audit.reported_deployments import ReportedDeployment, StatedLoad, from_launch
from commtax.runs.calibrate import robust_fit
from commtax.runs.calibrate.collective_fits import fit_inside, fit_network
from commtax.runs.calibrate.learning import fit_engine
from commtax.runs.calibrate.measurement_files import read_all
from commtax.runs.calibrate.measurements import (
    Calibration,
    ConstantChange,
    Measured,
    MeasuredMachine,
    MeasurementFiles,
    ProfilePart,
    Step,
    SweepRow,
    SweptKernel,
    TooFewError,
    Wish,
    kernel,
)
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.verbs.keywords import BillOptions, SimulateOptions


def calibrate(
    files: Sequence[str | File],
    cluster: str | Cluster,
    *,
    launch: str = "",
    model: str = "",
    tp: int = 0,
    engine: str = "",
    library: str = "nccl",
    name: str = "my-box",
    batch: int = 0,
    concurrency: int = 0,
    input_len: int = 0,
    output_len: int = 0,
    profile: ProfilesLike | None = None,
) -> Calibration:
    """Fit what the files tell, over the catalogue's constants for ``cluster``. A folder among them is a deployment.

    ``launch`` is the command that started what was measured, or a file with it, where no log or script beside the results says it.
    ``batch``, ``concurrency``, ``input_len`` and ``output_len`` are of benchmarks that do not say them; ``batch`` and ``input_len``
    of traces, too: sequences in a step, and what they see. ``profile`` is what is known of the machine already, laid over the
    catalogue.
    """
    if not files:
        raise Refusal("file: at least one file of measurements is needed")
    key, load = catalog.library(library).key, StatedLoad(concurrency, 0.0, input_len, output_len, batch=batch)
    read = read_all([File(file) for file in files], key, _common_facts(model, tp, engine, launch, load))
    if not read.results and not read.traces:
        options = {"model": model, "from": launch, **BillOptions(tp=tp, batch=batch)}
        options |= SimulateOptions(concurrency=concurrency, input_len=input_len, output_len=output_len)
        if unused := next((option for option, value in options.items() if value), ""):
            raise Refusal(f"{unused}: belongs to benchmarks of an engine, and no file holds one", unused)
    read.refuse_missing(() if cluster else ("cluster",))
    where = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    rows = read.at(where)
    ran = {str(run.options["engine"]) for run in rows.taught}
    named = engine or (ran.pop() if len(ran) == 1 else PHASES["decode"].engine)
    place = MeasuredMachine(where, catalog.engine(named), key, name)
    before = load_profile(profile) or Profile(name, chip={"key": where.chip.key})
    return _fit(rows, place, sorted({File(f).name for f in files}), replace(before, name=name))


def read_runs(
    files: Sequence[str | File],
    cluster: str | Cluster,
    *,
    launch: str = "",
    model: str = "",
    tp: int = 0,
    engine: str = "",
    batch: int = 0,
    context: int = 0,
    profile: Profile | None = None,
) -> tuple[Measured, ...]:
    """Read the runs and profiled steps of engines from files, as ``calibrate`` does, and refuse files without any.

    ``batch`` and ``context`` are of traces that do not say them. Runs that are held against a ``known`` profile are laid out as its
    runs are where nobody says how; a layout that neither tells is asked for.
    """
    facts = _common_facts(model, tp, engine, launch, StatedLoad())
    profiled = ReportedDeployment("the command line", load=StatedLoad(input_len=context, batch=batch))
    read = read_all([File(file) for file in files], catalog.library("nccl").key, facts, [profiled])
    if profile:
        read = read.laid_out_as(profile)
    read.refuse_missing(() if cluster else ("cluster",))
    rows = read.at(catalog.cluster(cluster) if isinstance(cluster, str) else cluster)
    if not rows.taught:
        raise Refusal(f"file: {rows.refused[0] if rows.refused else 'none of them holds a run of an engine'}")
    return rows.taught


def _common_facts(model: str, tp: int, engine: str, launch: str, load: StatedLoad) -> list[ReportedDeployment]:
    """Return what holds for every benchmark: options, and the deployment of a pasted command."""
    options: dict[str, object] = {"tp": tp} if tp else {}
    if engine:  # by its key, as files name it
        options["engine"] = "@".join((catalog.engine(engine).key, *engine.split("@")[1:]))
    stated = ReportedDeployment("the command line", model, options, load)
    return [stated, *([from_launch(read_pasted(launch, model), "--from")] if launch else [])]


def _fit(rows: MeasurementFiles, place: MeasuredMachine, names: list[str], profile: Profile) -> Calibration:
    sources = profile.sources
    parts: list[ProfilePart] = []
    refused = list(rows.refused)
    for fit in (fit_inside, fit_tables, fit_network, fit_engine):
        try:
            grown, more, why = fit(rows, place, profile)
        except TooFewError as error:
            refused.append(str(error))
            continue
        refused += why
        try:
            parse(document(grown))
        except ValueError as error:  # the same rules hold for what is read: what breaks one is left out
            refused.append(f"{', '.join(part.name for part in more)}: left out; {error}")
        else:
            profile, parts = grown, [*parts, *more]
    if not parts:
        raise Refusal(refused[0] if refused else "the files hold no row that a constant can be fitted on")
    errors = {p.name: f"median error {p.after.median:.1%}, 80% range ±{p.spread:.0%}" for p in parts}
    learnt = {p.name: f"{p.rows} rows of {', '.join(names)}; {errors[p.name]}" for p in parts}
    profile = replace(profile, sources={**sources, **learnt}, written=date.today().isoformat())
    written = document(profile)
    return Calibration(place, parse(written), written, tuple(parts), tuple(refused), rows.notes)


LEAST_ROWS = 8
MATTERS = 0.1  # a constant that moves no time by a tenth of its own change cannot be told
Table = Mapping[str, float]
SCALARS = {"gemm": ("t0", "eb", "ep"), "decode": ("t0", "eb"), "prefill": ("t0", "ep")}
SHAPE = ("flops", "nbytes", "m", "n", "k", "batch", "heads", "kv_heads", "length", "past")


def table_name(row: SweepRow) -> str:
    kind, dtype = row["kind"], row.get("dtype", "bf16")
    static = kind == "gemm" and dtype == "fp8" and row.get("mode") == "static"
    return f"{kind}.{dtype}{'-static' if static else ''}"


def fit_tables(rows: MeasurementFiles, place: MeasuredMachine, profile: Profile) -> Step:
    """Fit the tables that the sweep's rows inform: the family's with their scalars moved (t0, and factors on eb and ep).

    The shapes of the curves stay the family's, which many more rows made. Small kernels, copies and whole steps are left: what a
    small kernel takes alone is not what it takes inside a step.
    """
    groups: dict[str, list[SweptKernel]] = {}
    tables: dict[str, Table] = {}
    parts: list[ProfilePart] = []
    rates: dict[str, list[float]] = {}
    for row in rows.kernels:
        if row.row["kind"] == "prefill":
            rates.setdefault(str(row.row.get("backend", "")), []).append(float(_kernel(row).flops) / row.seconds)
    slower = sorted(rates, key=lambda name: -float(np.median(rates[name])))[1:]  # an engine would take the fastest backend
    refused = [f"prefill by {name}: slower than another backend, not fitted" for name in slower]
    for row in rows.kernels:
        if row.row["kind"] == "prefill" and row.row.get("backend", "") in slower:
            continue
        groups.setdefault(table_name(row.row), []).append(row)
    catalogued = catalog.kernel_constants(place.engine, place.cluster.chip).tables
    for name, members in groups.items():
        start = catalogued.get(name) or catalogued.get(f"{name.partition('.')[0]}.bf16")
        if len(members) < LEAST_ROWS or start is None:
            refused.append(f"kernels {name}: {len(members)} rows; at least {LEAST_ROWS} are needed, small and large shapes")
            continue
        table, part = _fit_table(name, members, start, place)
        if part.after.median < part.before.median or part.after.p90 < part.before.p90:
            tables[name] = table
            parts.append(part)
        else:
            refused.append(f"kernels {name}: the catalogue's constants fit these {len(members)} rows as well; kept")
    return replace(profile, tables={**profile.tables, **tables}), parts, refused


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
    """Return whether a constant is the scalar, or the scalar of one head size (eb64, ep128)."""
    return key == scalar or (key.startswith(scalar) and key[len(scalar) :].isdigit())


def _scale_constants(start: Table, factors: Mapping[str, float]) -> dict[str, float]:
    outcome = dict(start)
    for scalar, factor in factors.items():
        outcome |= {k: float(v * factor) for k, v in start.items() if _is_scalar(k, scalar)}
    return outcome


def _kernel(r: SweptKernel) -> Kernel:
    """Return a row as the cost model's kernel."""
    try:
        return kernel(r.row)
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"'{r.label}': a shape is missing or no number ({error})") from None


def _seconds(kernels: list[Kernel], table: Table, form: str, place: MeasuredMachine) -> Array:
    """Price kernels, those of one head size and arithmetic together."""
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
