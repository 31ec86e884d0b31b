"""Files of profiles: what was measured on one machine, as TOML that a person reads, or as JSON.

``commtax_profile = 2``, ``name``, ``written`` (the day), ``engine`` and ``dtype`` that were measured, the host's times (``host_s``
…), and tables and lists of the other ``PARTS``, each of which may be left out. Version 1, which is JSON and has neither curves nor
deployments, is still read.

``[[deployment]]`` has engine, version, chip, family, model, dtype, tp … ``[[deployment.run]]`` label, clients, lengths, and tables
``tpot`` and ``ttft`` of measured_s, catalogue_s, residual, noise, repeats, scatter and slopes. Of a profiled step, ``products``,
``attention`` … ``host`` instead (``spec.STEP_PARTS``): clients are the sequences in it, and input_len what they see.

Several profiles become one where they are laid over each other in order: a host's, a fabric's, an engine's. What was fitted
together stays together. Constants by name (chip, kernels, libraries) are taken one by one, those of the network and the host as a
whole; what runs taught is joined.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import reduce
from pathlib import Path as File
from typing import cast, get_args

from commtax import catalog
from commtax.catalog import physics
from commtax.catalog.fabric import OPS
from commtax.catalog.loader import parse_toml, suggest
from commtax.catalog.physics import TableView
from commtax.catalog.posterior import move_words, moves_of
from commtax.files import MiB, decode_text, expand_home, parse_json, read_bytes, write_text
from commtax.records import dataclass, record_from
from commtax.spec import DTYPE_BYTES, LATENCIES, MEASURED, ChipFacts, Deployment, Link, NetworkCurve, Path, Profile, RunLesson
from commtax.spec.constants import Algorithm
from commtax.spec.engine import HostTime, Paces
from commtax.statement import Refusal, Source
from commtax.toml_text import shorten, shorten_all, write_toml
from commtax.units import listed, plural

SLOPES = frozenset(f.name for kind in (HostTime, Paces) for f in fields(kind) if f.type == "float")
"""Constants that a lesson may blame."""
_TEXTS = tuple(f.name for f in fields(Deployment) if f.type == "str")
_SWITCHES = tuple(f.name for f in fields(Deployment) if f.type == "bool")
_LEFT_OUT = {f.name: f.default for f in fields(Deployment) if f.default is not MISSING}  # what a deployment that does not say it is
_UNSAID = {f.name: f.default for f in fields(RunLesson) if f.name in physics.LATENCY and f.default is not MISSING}
"""What a latency that does not say it has."""
MOST = 1_000  # latencies of a profile: what they teach together takes time with the third power of their number


@dataclass(frozen=True, slots=True)
class TaughtRun:
    """One run or profiled step of a deployment: its times by metric, in the order of ``MEASURED``."""

    deployment: Deployment
    lessons: Mapping[str, RunLesson]

    @property
    def first(self) -> RunLesson:
        return next(iter(self.lessons.values()))


def read_lessons(rows: Iterable[object]) -> tuple[RunLesson, ...]:
    """Return the lessons of a document's deployments, or refuse what cannot be by key and rule."""
    lessons: list[RunLesson] = []
    for index, row in enumerate(rows):
        part = TableView.of(row, f"deployment[{index}]", "a table of a deployment")
        part.check_allowed({*(f.name for f in fields(Deployment)), "run"})
        facts: dict[str, object] = {key: part.text(key) for key in _TEXTS}
        facts |= {key: int(size) for key, size in part.some(physics.DEPLOYMENT).items()}
        facts |= {key: part.switch(key) for key in _SWITCHES if key in part.table}
        deployment = record_from(Deployment, facts)
        if not part.rows("run"):
            raise Refusal(f"{part.where} lacks run", part.named("run"))
        for i, run in enumerate(part.rows("run")):
            lessons += _read_run(TableView.of(run, f"{part.where}.run[{i}]", "a table of a run"), deployment)
            if len(lessons) > MOST:
                raise Refusal(f"deployment: more than the {MOST:,} latencies that are learnt from; leave some out", "deployment")
    return tuple(lessons)


def _read_run(part: TableView, deployment: Deployment) -> Iterator[RunLesson]:
    part.check_allowed({"label", *physics.RUN, *MEASURED})
    load, metrics = part.all_of(physics.RUN), [metric for metric in MEASURED if metric in part.table]
    if not metrics:
        raise Refusal(f"{part.where} lacks {' or '.join(LATENCIES)}", part.where)
    for metric in metrics:
        latency = part.part(metric)
        latency.check_allowed({*physics.LATENCY, "slopes"})
        needed = {key: rule for key, rule in physics.LATENCY.items() if key not in _UNSAID}
        facts: dict[str, object] = {**load, **latency.all_of(needed), **latency.some(physics.LATENCY)}
        slopes = latency.part("slopes")
        if unknown := next((key for key in slopes.table if key not in SLOPES), ""):
            raise Refusal(f"unknown key '{slopes.named(unknown)}'{suggest(unknown, SLOPES)}", slopes.named(unknown))
        facts |= {"label": part.text("label"), "deployment": deployment, "metric": metric}
        yield record_from(RunLesson, {**facts, "slopes": slopes.numbers(dict.fromkeys(slopes.table, physics.SLOPE))})


def runs_of(lessons: Iterable[RunLesson]) -> list[TaughtRun]:
    """Group lessons by run: of one deployment, label and load. A run has one latency of each metric."""
    groups: dict[tuple[object, ...], list[dict[str, RunLesson]]] = {}
    for lesson in lessons:
        load = (shorten(getattr(lesson, key)) for key in physics.RUN)
        runs = groups.setdefault((lesson.deployment, lesson.label, *load), [])
        run = next((run for run in runs if lesson.metric not in run), None)
        if run is None:
            runs.append(run := {})
        run[lesson.metric] = lesson
    every = [{metric: run[metric] for metric in MEASURED if metric in run} for runs in groups.values() for run in runs]
    return [TaughtRun(next(iter(run.values())).deployment, run) for run in every]


def deployment_rows(lessons: Iterable[RunLesson]) -> list[dict[str, object]]:
    """List deployments as they are written, each with its runs, without sizes of 1."""
    by: dict[Deployment, list[dict[str, object]]] = {}
    for run in runs_of(lessons):
        row = {key: value for key in ("label", *physics.RUN) if (value := getattr(run.first, key)) != ""}
        for metric, lesson in run.lessons.items():
            latency = {key: getattr(lesson, key) for key in physics.LATENCY}
            kept = {key: value for key, value in latency.items() if key not in _UNSAID or shorten(value) != _UNSAID[key]}
            row[metric] = {**kept, **({"slopes": dict(lesson.slopes)} if lesson.slopes else {})}
        by.setdefault(run.deployment, []).append(row)
    rows = list[dict[str, object]]()
    for deployment, runs in by.items():
        facts = {f.name: getattr(deployment, f.name) for f in fields(Deployment)}
        rows.append({key: value for key, value in facts.items() if key == "tp" or value not in (_LEFT_OUT.get(key), "")})
        rows[-1]["run"] = runs
    return rows


@dataclass(frozen=True, slots=True)
class Topic:
    """A requested fact of a deployment, with what was measured of its kind."""

    name: str
    wanted: str
    seen: tuple[str, ...]

    @property
    def is_seen(self) -> bool:
        return self.wanted in self.seen

    @property
    def unseen(self) -> str:
        """The requested value that was not seen, in words: ``tp 8 (seen 2 and 4)``."""
        return f"{self.name} {self.wanted}" + (f" (seen {listed(self.seen)})" if self.seen else "")


def run_topics(lessons: Iterable[RunLesson], wanted: Mapping[str, str]) -> Iterator[Topic]:
    """Yield requested facts of a deployment beside what its runs had, among runs that are alike in all facts before."""
    runs = list(dict.fromkeys(lesson.deployment for lesson in lessons))
    for name, value in wanted.items():
        if value and runs:
            had = {getattr(run, name) for run in runs}
            yield Topic(name, value, tuple(str(x) for x in sorted(had) if x != ""))
            runs = [run for run in runs if str(getattr(run, name)) == value] or runs


NO_FACTS = ("key", "name")  # what a chip is called is no fact of it


def join(profiles: Sequence[Profile]) -> Profile:
    return reduce(lay_over, profiles)


def tells_chip(profile: Profile) -> bool:
    """Return whether it holds facts of a chip, which hold of no other."""
    return bool(set(profile.chip) - set(NO_FACTS))


def lay_over(first: Profile, second: Profile) -> Profile:
    """Return the first with what the second holds in the place of its own."""
    # The links that the joined collectives were measured on: whoever's they are says so.
    inside = second if second.libraries or not first.libraries else first
    across = second if second.network or not first.network else first
    both = {**first.links, **second.links}
    links = {"intra": inside.links.get("intra", ""), "inter": across.links.get("inter", "")}
    # Host times with the engine that they are of, and the lessons of both.
    kept, other = (second, first) if second.host else (first, second)
    # Collectives by library, the later profile's first, or its alone where they were measured on two links.
    measured_on = {one.links["intra"] for one in (first, second) if one.libraries and "intra" in one.links}
    libraries = {**second.libraries, **first.libraries, **second.libraries}
    every = reversed([*first.lessons, *second.lessons])  # equal ones are kept once
    lessons = {(replace(x, slopes={}).__repr__(), tuple(sorted(x.slopes.items()))): x for x in every}
    return replace(
        first,
        name=f"{first.name} + {second.name}",
        host=kept.host or other.host,
        engine=kept.engine if kept.host else second.engine or first.engine,
        dtype=second.dtype or first.dtype,
        lessons=tuple(reversed(lessons.values())),
        chip=_merge_chip_facts(first, second),
        tables={**first.tables, **second.tables},
        libraries=second.libraries or first.libraries if len(measured_on) > 1 else libraries,
        network=second.network or first.network,
        curves=second.curves if second.network else first.curves,
        links={which: links[which] or link for which, link in both.items()},
        sources={**first.sources, **second.sources},
        written=max(first.written, second.written),
    )


def _merge_chip_facts(first: Profile, second: Profile) -> ChipFacts:
    """Join facts of one chip, which is that of the only profile that has some."""
    keys = [profile.chip.get("key", "") for profile in (first, second)]
    telling = [profile for profile in (first, second) if tells_chip(profile) or profile.tables]
    if all(keys) and keys[0] != keys[1]:
        if len(telling) == 2:
            raise Refusal(f"profiles '{first.name}' and '{second.name}' tell of two chips, {keys[0]} and {keys[1]}", "profile")
        return (telling or [second])[0].chip
    rates = {**first.chip.get("flops_per_s", {}), **second.chip.get("flops_per_s", {})}
    return cast(ChipFacts, {**first.chip, **second.chip, **({"flops_per_s": rates} if rates else {})})


def _curve(row: object, where: str) -> NetworkCurve:
    part = TableView.of(row, where, "a table of a curve")
    part.check_allowed({f.name for f in fields(NetworkCurve)})
    if part.text("op") not in OPS:
        raise Refusal(f"{where}.op={physics.short_repr(part.table.get('op'))}: one of {', '.join(OPS)}", "op", OPS)

    def numbers(key: str, values: object) -> tuple[float, ...]:
        return tuple(physics.CURVE[key].read(value, part.named(key)) for value in _sequence(values, part.named(key)))

    ranks, nbytes = (numbers(key, part.table.get(key)) for key in ("ranks", "nbytes"))
    for key, values in (("ranks", ranks), ("nbytes", nbytes)):
        if not values or list(values) != sorted(set(values)):
            raise Refusal(f"{part.named(key)}: numbers that rise are needed, at least one", part.named(key))
    grids = []
    for key in ("factor", "sigma"):
        rows = tuple(numbers(key, row) for row in _sequence(part.table.get(key), part.named(key)))
        if [len(row) for row in rows] != [len(nbytes)] * len(ranks):
            shape = f"{len(ranks)} x {len(nbytes)} numbers are needed, a row for each number of ranks"
            raise Refusal(f"{part.named(key)}: {shape}", part.named(key))
        grids.append(rows)
    factor, sigma = grids
    names = ("drift", "grown", "reshaped", "domain")
    drift, grown, reshaped, domain = (physics.CURVE[key].read(part.table.get(key, 0), part.named(key)) for key in names)
    return NetworkCurve(part.text("op"), tuple(map(int, ranks)), nbytes, factor, sigma, drift, grown, reshaped, int(domain))


def _sequence(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise Refusal(f"{name}={physics.short_repr(value)}: a list is needed", name)
    return value


VERSION = 2  # which is written
OLDER = 1  # … and which is read too
PARTS = ("name", "chip", "kernels", "library", "libraries", "network", "links", "engine", "dtype", "sources")
MOST_TOML = 4 * MiB  # signs of a file that is TOML
LATER_PARTS = ("written", "network_curves", "deployment")  # what version 1 had not
_NAMES = ("op", "algorithm", "name")  # facts of a path that are words
_WHOLE = tuple(key for key, rule in physics.PATH.items() if rule.whole)
ProfileLike = str | os.PathLike[str] | Profile
ProfilesLike = ProfileLike | Sequence[ProfileLike]  # as Python callers name them


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile, or refuse what is not one by file, key and rule."""
    file = expand_home(path)
    if not os.path.exists(file):
        raise Refusal(f"profile '{path}': no such file (commtax calibrate and commtax measure calibrate write one)", "profile")
    text, what = decode_text(read_bytes(file, "profile")), f"profile '{path}'"
    is_json = file.suffix == ".json" or text.lstrip()[:1] == "{"
    table = parse_json(text, what) if is_json else parse_toml(_checked_length(text, what), what, "profile")
    try:
        return parse(table, File(path).stem)
    except ValueError as error:
        raise Refusal(f"{path}: {error}", "profile") from None


def load_profile(profile: ProfilesLike | None) -> Profile | None:
    """Return a profile as Python callers name it: a file, one that is read already, or several laid over each other in order."""
    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, (str, os.PathLike)):
        return load(profile)
    if isinstance(profile, (list, tuple)):
        read = [one for one in map(load_profile, profile) if one is not None]
        return join(read) if read else None
    rule = "the name of a file is needed, or a Profile, or a list of them"
    raise Refusal(f"profile={physics.short_repr(profile)}: {rule}", "profile")


def write_profile(path: str | File, profile: Profile, comments: Sequence[str] | None = None, what: str = "out") -> None:
    """Write TOML, or JSON where the file's name ends so, with ``comments`` above TOML in the place of the usual ones."""
    write_text(path, profile_text(profile, comments, as_json=File(path).suffix == ".json"), what)


def profile_text(profile: Profile, comments: Sequence[str] | None = None, *, as_json: bool = False) -> str:
    """Return the profile as it is written. What is written can be read: whatever no profile may hold is refused here."""
    made = document(profile)
    again = parse(made)
    if as_json:
        return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    return _checked_length(write_toml(made, profile_comment(again) if comments is None else comments), f"profile '{profile.name}'")


def _checked_length(text: str, name: str) -> str:
    """Refuse long TOML, which is read slowly: what would take seconds is neither written nor read."""
    if len(text) > MOST_TOML:
        raise Refusal(f"{name}: longer than {MOST_TOML // MiB} Mi signs of TOML, thousands of runs; make several of it", "profile")
    return text


def profile_comment(profile: Profile) -> list[str]:
    """Return what stands above a written profile, for whoever opens the file: what it is, and what its runs moved."""
    lines = [
        "What was measured on one machine, laid over commtax's catalogue: commtax bill MODEL --profile THIS-FILE",
        "commtax profile show THIS-FILE says it in words. Numbers are seconds (_s), bytes (_bytes) and bytes a second (_Bps).",
    ]
    for d, changes in moves_of(profile):
        runs, served = sum(run.deployment == d for run in runs_of(profile.lessons)), f"{d.engine} {d.version}".strip()
        taught = f"what {plural(runs, 'run')} taught (80% range; before any run)"
        lines += ["", f"{served}, {d.model} on {d.chip}, TP {d.tp}: {taught}"]
        words = ((name, *move_words(change)) for name, change in changes.items())
        lines += [f"  {name:20} {moved:>5}  {after:>5}  ({before})" for name, moved, after, before in words]
    return lines


def document(profile: Profile) -> dict[str, object]:
    """Return the profile as it is written, without its empty parts and with no more digits than were measured."""
    parts: dict[str, object] = {
        "written": profile.written,
        "engine": profile.engine,
        "dtype": profile.dtype,
        **_in_order(profile.host, physics.HOST),
        "chip": _in_order(profile.chip, ("key", "name", *physics.CHIP)),
        "network": dict(profile.network),
        "network_curves": [asdict(curve) for curve in profile.curves],
        "links": dict(profile.links),
        "sources": dict(profile.sources),
        "kernels": {"tables": {name: dict(table) for name, table in profile.tables.items()}} if profile.tables else {},
        "libraries": [{"name": name, "paths": path_rows(paths)} for name, paths in profile.libraries.items()],
        "deployment": deployment_rows(profile.lessons),
    }
    filled = {key: value for key, value in parts.items() if value not in ({}, [], "")}
    return cast(dict[str, object], shorten_all({"commtax_profile": VERSION, "name": profile.name, **filled}))


def _in_order(table: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the table with these names first, so that what is read and written again is as it was."""
    return {name: table[name] for name in (*names, *table) if name in table}


def path_rows(paths: Sequence[Path]) -> list[dict[str, object]]:
    """List paths as they are written: only what differs from a plain one, as far as it is written, and not whose they are."""
    plain = cast(dict[str, object], shorten_all(asdict(Path("", "ring", 1.0))))
    needed = ("op", "algorithm", "bandwidth_Bps")
    rows = (cast(dict[str, object], shorten_all(asdict(path))) for path in paths)
    return [{k: v for k, v in row.items() if k in needed or (v != plain[k] and k != "own")} for row in rows]


def parse(document: object, name: str = "") -> Profile:
    """Return a profile from its document, or refuse what cannot be by key and rule."""
    whole = TableView(_checked_version(document))
    older = whole.table["commtax_profile"] == OLDER
    whole.check_allowed({"commtax_profile", *PARTS, *physics.HOST, *(() if older else LATER_PARTS)})
    network = whole.part("network").numbers(physics.NETWORK)
    if network.get("least_ranks", 1) > network.get("most_ranks", 2**31):
        raise Refusal(f"network.least_ranks={network['least_ranks']:g}: at most most_ranks, {network['most_ranks']:g}")
    whole.part("kernels").check_allowed({"tables"})
    rows = whole.table.get("network_curves", [])
    made = tuple(_curve(row, f"network_curves[{i}]") for i, row in enumerate(_sequence(rows, "network_curves")))
    if len({curve.op for curve in made}) < len(made):
        raise Refusal("network_curves: one curve for each collective is needed", "network_curves")
    profile = Profile(
        name=whole.text("name", name),
        chip=_chip(whole.part("chip")),
        tables=dict(_tables(whole.part("kernels").part("tables"))),
        libraries=_libraries(whole),
        network=network,
        curves=made,
        host=whole.some(physics.HOST),
        links=whole.part("links").texts(),
        engine=whole.text("engine"),
        dtype=whole.text("dtype"),
        sources=whole.part("sources").texts(),
        lessons=read_lessons(whole.rows("deployment")),
        written=_day(whole),
    )
    whole.part("links").check_allowed({"intra", "inter"})
    # Ceilings of the chip and the link that it names; what names none is held against the cluster that it is used on.
    if (key := profile.chip.get("key", "")) in catalog.keys("chips"):
        physics.check_chip(profile.chip, catalog.chip(key))
    if (key := profile.links.get("intra", "")) in catalog.keys("links"):
        check_paths(profile, catalog.link(key))
    return profile


def _checked_version(document: object) -> Mapping[str, object]:
    version = document.get("commtax_profile") if isinstance(document, dict) else None
    if type(version) is int and version > VERSION:
        newer = "a newer commtax wrote it; this one reads versions"
        raise Refusal(f"commtax_profile={str(version)[:12]}: {newer} {OLDER} and {VERSION}")
    if not isinstance(document, dict) or version not in (OLDER, VERSION) or isinstance(version, bool):
        raise Refusal(f"not a commtax profile of version {OLDER} or {VERSION}")
    return document


def _day(whole: TableView) -> str:
    from datetime import date

    day = whole.table.get("written", "")
    text = day.isoformat()[:10] if isinstance(day, date) else whole.text("written")
    try:
        if text and date.fromisoformat(text).isoformat() != text:
            raise ValueError
    except ValueError:
        raise Refusal(f"written={physics.short_repr(text)}: a day is needed, such as 2026-11-17", "written") from None
    return text


def check_paths(profile: Profile, link: Link) -> None:
    for name, paths in profile.libraries.items():
        for path in paths:
            physics.check_path(path, link, f"{name} {path.op}")


def _chip(part: TableView) -> ChipFacts:
    part.check_allowed({"key", "name", "flops_per_s", *physics.CHIP})
    facts: dict[str, object] = {key: part.text(key) for key in ("key", "name") if key in part.table}
    facts |= part.some(physics.CHIP)
    rates = part.part("flops_per_s")
    if unknown := next((rates.named(dtype) for dtype in rates.table if dtype not in DTYPE_BYTES), ""):
        raise Refusal(f"{unknown}: a type of arithmetic is one of {', '.join(DTYPE_BYTES)}", unknown)
    if rates.table:
        facts["flops_per_s"] = rates.numbers(dict.fromkeys(rates.table, physics.FLOPS))
    return cast(ChipFacts, facts)


def _tables(part: TableView) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield kernel constants of listed forms, complete, because each table stands in for a whole one."""
    for name in part.table:
        form, constants = name.partition(".")[0], part.part(name)
        if form not in physics.NEEDED:
            raise Refusal(f"unknown kernel table {name!r}{suggest(form, physics.NEEDED)}")
        missing = [key for key in physics.NEEDED[form] if key not in constants.table]
        if missing:
            raise Refusal(f"kernel table {name!r} lacks {', '.join(missing)}")
        yield name, constants.numbers(physics.KERNEL)


def _libraries(whole: TableView) -> dict[str, tuple[Path, ...]]:
    one, entries = whole.part("library").table, whole.rows("libraries")
    if one and entries:
        raise Refusal("library: libraries lists them all; give one of the two", "library")
    libraries: dict[str, tuple[Path, ...]] = {}
    for index, entry in enumerate(entries or ([one] if one else [])):
        part = TableView.of(entry, f"libraries[{index}]", "a table with a name and paths")
        part.check_allowed({"name", "paths"})
        rows = _sequence(part.table.get("paths"), part.named("paths"))
        name = part.text("name", "nccl")
        if name in libraries:
            raise Refusal(f"{part.named('name')}={physics.short_repr(name)}: was given before; one list of paths is needed", "name")
        libraries[name] = tuple(_path(row, f"{part.where}.paths[{i}]") for i, row in enumerate(rows))
    return libraries


def _path(row: object, where: str) -> Path:
    part = TableView.of(row, where, "a table of a path's constants")
    part.check_allowed({*_NAMES, "source", *physics.PATH, *physics.GROUPS, *physics.BY_SIZE})
    entries = part.table
    facts: dict[str, object] = {key: part.text(key) for key in _NAMES if key in entries}
    if "source" in entries:
        facts["source"] = Source("calibrated", part.text("source"))
    for key, allowed in (("op", OPS), ("algorithm", get_args(Algorithm))):
        if facts.get(key) not in allowed:
            raise Refusal(f"{where}.{key}={physics.short_repr(facts.get(key))}: one of {', '.join(allowed)}", key, allowed)
    physics.PATH["bandwidth_Bps"].read(entries.get("bandwidth_Bps"), f"{where}.bandwidth_Bps")
    numbers = part.some(physics.PATH)
    facts |= numbers | {key: int(numbers[key]) for key in _WHOLE if key in numbers}
    facts |= {key: _sizes(entries[key], f"{where}.{key}") for key in physics.GROUPS if key in entries}
    facts |= {key: _by_size(entries[key], rule, f"{where}.{key}") for key, rule in physics.BY_SIZE.items() if key in entries}
    least, most = numbers.get("min_ranks", 1), numbers.get("max_ranks", 2**31)
    if least > most:
        raise Refusal(f"{where}.min_ranks={int(least)}: at most max_ranks, {int(most)}")
    return record_from(Path, facts)


def _sizes(value: object, name: str) -> tuple[int, ...]:
    return tuple(int(physics.RANKS.read(size, name)) for size in _sequence(value, name))


def _by_size(value: object, rule: physics.PhysicalRange, name: str) -> tuple[tuple[int, float], ...]:
    rows = _sequence(value, name)
    pairs = [pair for pair in rows if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(rows):
        raise Refusal(f"{name}={physics.short_repr(value)}: pairs of a group size and its value are needed", name)
    sizes = _sizes([size for size, _ in pairs], name)
    if list(sizes) != sorted(set(sizes)):
        raise Refusal(f"{name}={physics.short_repr(value)}: group sizes rise from pair to pair", name)
    return tuple(zip(sizes, (rule.read(v, name) for _, v in pairs), strict=True))
