"""A user's own measurements into a profile that every command takes: ``commtax calibrate nccl.txt bench.json``.

Files are recognised by what is inside. Inside parts come first (collectives in a host, kernels), then what rests on them
(collectives across hosts, the engine's host times), so that each residual is blamed on its own constants.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as File

from commtax import catalog
from commtax.calibrate.collective_fits import document, fit_inside
from commtax.calibrate.engines import fit_engine
from commtax.calibrate.kernel_fits import fit_tables
from commtax.calibrate.measurement_files import read
from commtax.calibrate.measurements import Calibration, MeasuredMachine, MeasurementFiles, ProfilePart, TooFewError
from commtax.calibrate.network import fit_network
from commtax.catalog import network_curves
from commtax.catalog.profile import VERSION, parse
from commtax.question import PHASES
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.verbs.keywords import BillOptions, SimulateOptions


def calibrate(
    files: Sequence[str | File],
    cluster: str | Cluster,
    *,
    model: str = "",
    tp: int = 0,
    engine: str = "",
    library: str = "nccl",
    name: str = "my-box",
    batch: int = 0,
    input_len: int = 0,
    output_len: int = 0,
) -> Calibration:
    """Fit what the files tell, over the catalogue's constants for ``cluster``.

    ``batch``, ``input_len`` and ``output_len`` are of benchmarks that do not say them.
    """
    if not files:
        raise Refusal("file: at least one file of measurements is needed")
    where = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    key, runs = catalog.library(library).key, catalog.engine(engine or PHASES["decode"].engine)
    place = MeasuredMachine(where, runs, model, tp, key, name, batch, input_len, output_len)
    rows = MeasurementFiles()
    for file in files:
        rows += read(File(file), place)
    lengths = SimulateOptions(input_len=input_len, output_len=output_len)
    given = {"model": model, **BillOptions(tp=tp, batch=batch), **lengths}
    unused = [option for option, value in given.items() if value and not rows.runs]
    if unused:
        raise Refusal(f"{unused[0]}: belongs to benchmarks of an engine, and no file holds one")
    return _fit(rows, place, sorted({File(f).name for f in files}))


def _fit(rows: MeasurementFiles, place: MeasuredMachine, names: list[str]) -> Calibration:
    profile = Profile(place.name, chip={"key": place.cluster.chip.key})
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
    errors = {p.name: f"median error {p.after.median:.1%}, 80 % range ±{p.spread:.0%}" for p in parts}
    profile = replace(profile, sources={p.name: f"{p.rows} rows of {', '.join(names)}; {errors[p.name]}" for p in parts})
    return Calibration(place, profile, _document(profile), tuple(parts), tuple(refused))


def _check_readable(grown: Profile, parts: list[ProfilePart]) -> None:
    """What is written can be read: the same rules hold for both, and what breaks one is left out with its reason."""
    try:
        parse(json.loads(json.dumps(_document(grown))))
    except ValueError as error:
        raise TooFewError(f"{', '.join(part.name for part in parts)}: left out; {error}") from None


def _document(profile: Profile) -> Mapping[str, object]:
    """The profile as it is written, without its empty parts."""
    libraries = [{"name": name, "paths": document(paths)} for name, paths in profile.libraries.items()]
    parts: dict[str, object] = {
        "chip": dict(profile.chip),
        "engine": profile.engine,
        "kernels": {"tables": {k: dict(v) for k, v in profile.tables.items()}} if profile.tables else {},
        "libraries": libraries,
        "network": dict(profile.network),
        "network_curves": network_curves.document(profile.curves),
        "links": dict(profile.links),
        **profile.host,
        "sources": dict(profile.sources),
    }
    return {"commtax_profile": VERSION, "name": profile.name, **{k: v for k, v in parts.items() if v not in ({}, [], "")}}
