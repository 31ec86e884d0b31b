"""A user's own measurements into a profile that every command takes: ``commtax calibrate nccl.txt bench.json``.

Files are recognised by what is inside. Inside parts come first (collectives in a host, kernels), then what rests on them
(collectives across hosts, the engine's host times), so that each residual is blamed on its own constants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path as File

from commtax import catalog
from commtax.catalog.profile_files import ProfilesLike, document, load_profile, parse
from commtax.launch.launch_options import read_pasted
from commtax.question import PHASES
from commtax.runs.audit.reported_deployments import KnownLoad, ReportedDeployment, from_launch
from commtax.runs.calibrate.collective_fits import fit_inside, fit_network
from commtax.runs.calibrate.kernel_fits import fit_tables
from commtax.runs.calibrate.learning import fit_engine
from commtax.runs.calibrate.measurement_files import read_all
from commtax.runs.calibrate.measurements import Calibration, Measured, MeasuredMachine, MeasurementFiles, ProfilePart, TooFewError
from commtax.spec import Cluster, Engine, Profile
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
    key, load = catalog.library(library).key, KnownLoad(concurrency, 0.0, input_len, output_len, batch=batch)
    read = read_all([File(file) for file in files], key, _said(model, tp, engine, launch, load))
    if not read.results and not read.traces:
        given = {"model": model, "from": launch, **BillOptions(tp=tp, batch=batch)}
        _refuse_unused({**given, **SimulateOptions(concurrency=concurrency, input_len=input_len, output_len=output_len)})
    read.refuse_missing(() if cluster else ("cluster",))
    where = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    rows = read.at(where)
    place = MeasuredMachine(where, _own_engine(rows, engine), key, name)
    own = load_profile(profile) or Profile(name, chip={"key": where.chip.key})
    return _fit(rows, place, sorted({File(f).name for f in files}), replace(own, name=name))


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
    known: Profile | None = None,
) -> tuple[Measured, ...]:
    """The runs and profiled steps of engines that files hold, as ``calibrate`` reads them; files without any are refused.

    ``batch`` and ``context`` are of traces that do not say them. Runs that are held against a ``known`` profile are laid out as its
    runs are where nobody says how; a layout that neither tells is asked for.
    """
    said = _said(model, tp, engine, launch, KnownLoad())
    profiled = ReportedDeployment("the command line", load=KnownLoad(input_len=context, batch=batch))
    read = read_all([File(file) for file in files], catalog.library("nccl").key, said, [profiled])
    if known:
        read = read.laid_out_as(known)
    read.refuse_missing(() if cluster else ("cluster",))
    rows = read.at(catalog.cluster(cluster) if isinstance(cluster, str) else cluster)
    if not rows.taught:
        raise Refusal(f"file: {rows.refused[0] if rows.refused else 'none of them holds a run of an engine'}")
    return rows.taught


def _refuse_unused(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value:
            raise Refusal(f"{option}: belongs to benchmarks of an engine, and no file holds one", option)


def _said(model: str, tp: int, engine: str, launch: str, load: KnownLoad) -> list[ReportedDeployment]:
    """What holds for every benchmark: options, and a command that was pasted."""
    options: dict[str, object] = {"tp": tp} if tp else {}
    if engine:  # by its key, as files name it
        options["engine"] = "@".join((catalog.engine(engine).key, *engine.split("@")[1:]))
    given = ReportedDeployment("the command line", model, options, load)
    return [given, *([from_launch(read_pasted(launch, model), "--from")] if launch else [])]


def _own_engine(rows: MeasurementFiles, named: str) -> Engine:
    """The engine that was named, else the one that all runs are of, else the usual one."""
    ran = {str(run.options["engine"]) for run in rows.taught}
    return catalog.engine(named or (ran.pop() if len(ran) == 1 else PHASES["decode"].engine))


def _fit(rows: MeasurementFiles, place: MeasuredMachine, names: list[str], profile: Profile) -> Calibration:
    known = profile.sources
    parts: list[ProfilePart] = []
    refused = list(rows.refused)
    for fit in (fit_inside, fit_tables, fit_network, fit_engine):
        try:
            grown, more, why = fit(rows, place, profile)
            refused += why
            _check_readable(grown, more)
        except TooFewError as error:
            refused.append(str(error))
        else:
            profile, parts = grown, [*parts, *more]
    if not parts:
        raise Refusal(refused[0] if refused else "the files hold no row that a constant can be fitted on")
    errors = {p.name: f"median error {p.after.median:.1%}, 80% range ±{p.spread:.0%}" for p in parts}
    sources = {p.name: f"{p.rows} rows of {', '.join(names)}; {errors[p.name]}" for p in parts}
    profile = replace(profile, sources={**known, **sources}, written=date.today().isoformat())
    written = document(profile)
    return Calibration(place, parse(written), written, tuple(parts), tuple(refused), rows.notes)


def _check_readable(grown: Profile, parts: list[ProfilePart]) -> None:
    """What is written can be read: the same rules hold for both, and what breaks one is left out with its reason."""
    try:
        parse(document(grown))
    except ValueError as error:
        raise TooFewError(f"{', '.join(part.name for part in parts)}: left out; {error}") from None
