"""A user's own measurements into a profile that every command takes: ``commtax calibrate nccl.txt bench.json``.

Files are recognised by what is inside. Inside parts come first (collectives in a host, kernels), then what rests on them
(collectives across hosts, the engine's host times), so that each residual is blamed on its own constants.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as File

from commtax import catalog
from commtax.calibrate.collectives import document, fit_op
from commtax.calibrate.engines import fit_engine
from commtax.calibrate.kernels import fit_tables
from commtax.calibrate.network import fit_network
from commtax.calibrate.reading import read
from commtax.calibrate.records import Calibration as Calibration
from commtax.calibrate.records import Change as Change
from commtax.calibrate.records import Files, Place, Timed, TooFewError, Wish
from commtax.calibrate.records import Part as Part
from commtax.catalog.profile import VERSION, parse
from commtax.files import Document
from commtax.spec import Cluster, Path, Profile
from commtax.statement import Refusal
from commtax.verbs.expecting import expect


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
    key, runs = catalog.library(library).key, catalog.engine(engine or "vllm")
    place = Place(where, runs, model, tp, key, name, batch, input_len, output_len)
    rows = Files()
    for file in files:
        rows += read(File(file), place)
    unused = [name for name in ("model", "tp", "batch", "input_len", "output_len") if getattr(place, name) and not rows.runs]
    if unused:
        raise Refusal(f"{unused[0]}: belongs to benchmarks of an engine, and no file holds one")
    return _fit(rows, place, [File(f).name for f in files])


def _fit(rows: Files, place: Place, names: list[str]) -> Calibration:
    profile = Profile(place.name, chip={"key": place.cluster.chip.key})
    parts: list[Part] = []
    refused = list(rows.refused)
    for fitting in (_inside, _kernels, _across, _engine):
        try:
            profile, more, why = fitting(rows, place, profile)
            parts += more
            refused += why
        except TooFewError as error:
            refused.append(str(error))
    if not parts:
        raise Refusal(refused[0] if refused else "the files hold no row that a constant can be fitted on")
    sources = {
        p.name: f"{p.rows} rows of {', '.join(names)}; median error {p.after.median:.1%}, 80 % range ±{p.spread:.0%}" for p in parts
    }
    profile = replace(profile, sources=sources)
    written = _document(profile)
    parse(json.loads(json.dumps(written)))  # what is written can be read: the same rules hold for both
    return Calibration(place, profile, written, tuple(parts), tuple(refused))


Fitted = tuple[Profile, list[Part], list[str]]


def _inside(rows: Files, place: Place, own: Profile) -> Fitted:
    """Collectives of groups that stay in one fast domain, library by library and operation by operation."""
    groups: dict[tuple[str, str], list[Timed]] = {}
    for row in rows.collectives:
        if row.ranks > place.cluster.num_gpus:
            raise Refusal(f"'{row.label}': {place.cluster.key} has {place.cluster.num_gpus} GPUs")
        if row.ranks <= place.cluster.domain and not (place.cluster.bridge and row.ranks == 2):
            groups.setdefault((row.library, row.op), []).append(row)
    libraries: dict[str, tuple[Path, ...]] = {}
    last: dict[str, int] = {}  # of each library the index of its last part
    parts, refused = [], _pairs(rows, place.cluster)
    for (library, _), members in groups.items():
        try:
            paths, part = fit_op(members, place)
        except TooFewError as why:
            refused.append(str(why))
            continue
        libraries[library] = (*libraries.get(library, ()), *paths)
        last[library] = len(parts)
        parts.append(part)
    for library, paths in libraries.items():
        if all(p.op != "all-reduce" for p in paths):
            parts[last[library]] = parts[last[library]].with_remarks(wishes=[_unmeasured(library, place)])
    links = {"intra": place.cluster.intra.key} if libraries else {}
    return replace(own, libraries=libraries, links=links), parts, refused


def _pairs(rows: Files, cluster: Cluster) -> list[str]:
    """Why rows of two ranks are left out where bridges join pairs: a profile tells of one inside link, and theirs is another."""
    count = sum(row.ranks == 2 for row in rows.collectives)
    if not count or not cluster.bridge:
        return []
    reason = f"{count} rows of 2 ranks ran over {cluster.bridge.key}, and others run over {cluster.intra.key}"
    return [f"{reason}: --cluster 2x{cluster.chip.key} makes a profile of them"]


def _unmeasured(library: str, place: Place) -> Wish:
    """Tensor parallelism is made of all-reduces: without a measured one, the catalogue's range stays."""
    cluster = place.cluster.without_pairs
    spread = float(expect("all-reduce", cluster, nbytes=65536.0, ranks=min(2, cluster.domain), library=library).spread)
    return Wish(f"{library} all-reduce, 1 KiB to 1 GiB: not measured, and the catalogue's range is ±{spread:.0%}", spread)


def _kernels(rows: Files, place: Place, own: Profile) -> Fitted:
    tables, parts, refused = fit_tables(rows.kernels, place)
    return replace(own, tables=tables), parts, refused


def _across(rows: Files, place: Place, own: Profile) -> Fitted:
    members = [r for r in rows.collectives if r.ranks > place.cluster.domain]
    if not members:
        return own, [], []
    network, part = fit_network(members, place, own)
    return replace(own, network=network, links={**own.links, "inter": place.cluster.inter.key}), [part], []


def _engine(rows: Files, place: Place, own: Profile) -> Fitted:
    if not rows.runs:
        return own, [], []
    host, parts, refused = fit_engine(rows.runs, place, own)
    return replace(own, host=host, engine=place.engine.key), parts, refused


def _document(profile: Profile) -> Document:
    """The profile as it is written, without its empty parts."""
    libraries = [{"name": name, "paths": document(paths)} for name, paths in profile.libraries.items()]
    parts: Document = {
        "chip": dict(profile.chip),
        "engine": profile.engine,
        "kernels": {"tables": {k: dict(v) for k, v in profile.tables.items()}} if profile.tables else {},
        "libraries": libraries,
        "network": dict(profile.network),
        "links": dict(profile.links),
        **profile.host,
        "sources": dict(profile.sources),
    }
    return {"commtax_profile": VERSION, "name": profile.name, **{k: v for k, v in parts.items() if v not in ({}, [], "")}}
