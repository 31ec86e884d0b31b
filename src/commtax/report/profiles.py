"""Profiles for a terminal and as documents: what is in one, what changed between two, what one tells of a question."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from commtax.catalog.posterior import Change, metric_words, move_words, moves_of
from commtax.catalog.profile import parts_of
from commtax.catalog.profile_files import TaughtRun, document, runs_of
from commtax.report.documents import Record, record
from commtax.report.drawing import Console
from commtax.report.tables import drop_empty_columns, notes, say, show_table
from commtax.spec import LATENCIES, Deployment, Profile, RunLesson
from commtax.units import format_bytes, format_rate, format_seconds, format_si, plural
from commtax.verbs.profiles import ProfileCoverage, ProfileDifference, constants_of

PART_COLUMNS = ("profiled step", ">sequences", ">see", "part", ">measured", ">catalogue", ">off")
MOVE_COLUMNS = ("its runs moved", ">by", ">80% range", ">before any run")
UNITS = {"_s": format_seconds, "_Bps": format_rate, "_bytes": format_bytes}  # how a constant is told, by how its name ends


def show_profile(console: Console, profile: Profile) -> None:
    """Show when and where a profile was measured, then each part."""
    day = f", written {profile.written}" if profile.written else ""
    say(console, f"profile {profile.name}{day}: {', '.join(parts_of(profile))}", "bold")
    where = [("chip", profile.chip.get("key", "")), ("engine", profile.engine), ("type", profile.dtype)]
    where += [(f"link {which}", link) for which, link in profile.links.items()]
    if places := [(name, text) for name, text in where if text]:
        show_table(console, ("measured on", ""), places)
    moves = dict(moves_of(profile))
    by_deployment = sorted(runs_of(profile.lessons), key=lambda run: list(moves).index(run.deployment))
    for deployment, runs in groupby(by_deployment, key=lambda run: run.deployment):
        _show_runs(console, deployment_words(deployment), list(runs), moves.get(deployment))
    paths = list[list[str]]()
    for library, path in ((library, path) for library, some in profile.libraries.items() for path in some):
        ranks, times = " to ".join(dict.fromkeys(map(str, path.ranks))), (path.launch_s, path.hop_s)
        figures = [format_seconds(x) if x else "-" for x in times] + [format_rate(path.bandwidth_Bps)]
        paths.append([library, path.op, path.algorithm, ranks, *figures, f"±{path.spread:.0%}" if path.spread else ""])
    if paths:
        columns = ["collectives", "collective", "algorithm", ">ranks", ">launch", ">per hop", ">bandwidth", ">80% range"]
        show_table(console, *drop_empty_columns(columns, paths), ("collectives", "ranks", "80% range", "launch", "per hop"))
    plain = {name: x for name, x in constants_of(profile).items() if name.startswith(("chip ", "network ")) or name in profile.host}
    if plain:
        show_table(console, ("constant", ">measured"), [(name, _value(name, x)) for name, x in plain.items()])
    if profile.tables:
        rows = [(name, "  ".join(f"{key} {x:.3g}" for key, x in table.items())) for name, table in profile.tables.items()]
        show_table(console, ("kernels", "constants"), rows)
    notes(console, (), [f"{part}: {source}" for part, source in profile.sources.items()])


def _show_runs(console: Console, name: str, runs: Sequence[TaughtRun], taught: Mapping[str, Change] | None) -> None:
    """Show what was measured of one deployment, under its name: latencies, parts of steps, and what its runs moved."""
    if served := [run for run in runs if any(metric in run.lessons for metric in LATENCIES)]:
        columns = ["run", ">repeats", ">clients", ">prompt", ">answer"]
        columns += [column for metric in LATENCIES for column in (f">{metric.upper()}", ">catalogue", ">off")]
        rows = list[list[str]]()
        for run in served:
            repeats = f"{run.first.repeats:,.0f}" if run.first.repeats > 1 else ""
            times = [cell for metric in LATENCIES for cell in _latency(run, metric)]
            rows.append([run.first.label, repeats, *_load(run.first), *times])
        show_table(console, *drop_empty_columns(columns, rows), ("repeats", "catalogue"), name)
        name = ""
    if parts := [(run, part) for run in runs for part in run.lessons if part not in LATENCIES]:
        cells = [(run.first.label, *_load(run.first)[:2], part, *_latency(run, part)) for run, part in parts]
        show_table(console, PART_COLUMNS, cells, ("see", "sequences", "catalogue"), name)
        name = ""
    if taught:
        show_table(console, MOVE_COLUMNS, [(constant, *move_words(change)) for constant, change in taught.items()], title=name)


def deployment_words(d: Deployment) -> str:
    """Return a deployment in words: ``llama-3.1-8b in bf16 on h100-sxm, TP 2: vllm 0.12``."""
    sizes = " x ".join(f"{axis.upper()} {n}" for axis in ("tp", "pp", "dp", "ep") if (n := getattr(d, axis)) > 1 or axis == "tp")
    kind = f" in {d.dtype}" if d.dtype else ""
    pools = ", prompts and answers apart" if d.disaggregated else ""
    served = f": {d.engine} {d.version}".rstrip() if d.engine else ""
    return f"{d.model or d.family or 'a model'}{kind} on {d.chip or 'a chip'}, {sizes}{pools}{served}"


def _load(lesson: RunLesson) -> tuple[str, ...]:
    return tuple(f"{x:,.6g}" for x in (lesson.clients, lesson.input_len, lesson.output_len))


def _latency(run: TaughtRun, metric: str) -> tuple[str, str, str]:
    if not (lesson := run.lessons.get(metric)):
        return "", "", ""
    return _ms(lesson.measured_s), _ms(lesson.catalogue_s), f"{lesson.measured_s / lesson.catalogue_s - 1:+.1%}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.4g} ms"


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if "flops_per_s" in name:
        return format_si(value, "FLOP/s")
    write = next((write for ending, write in UNITS.items() if name.partition(" of ")[0].endswith(ending)), None)
    return write(value) if write else f"{value:.4g}"


def profile_document(profile: Profile) -> Record:
    runs = list[Record]()
    for run in runs_of(profile.lessons):
        offs = {metric: lesson.measured_s / lesson.catalogue_s - 1 for metric, lesson in run.lessons.items()}
        latencies = {metric: record("profile-latency", lesson=run.lessons[metric], off=off) for metric, off in offs.items()}
        served = {name: latencies.get(name) for name in LATENCIES}
        parts = {x: latencies[x] for x in latencies if x not in LATENCIES}
        runs.append(record("profile-run", lesson=run.first, deployment=run.deployment, **served, parts=parts or None))
    moved = [
        record("profile-move", deployment=deployment, name=name, change=change, off=math.expm1(change.log))
        for deployment, changes in moves_of(profile)
        for name, change in changes.items()
    ]
    return record("profile-show", profile=profile, parts=parts_of(profile), document=document(profile), runs=runs, moved=moved)


def show_difference(console: Console, compared: ProfileDifference) -> None:
    """Show words, constants and runs. What is in one only has a dash in the other's place."""
    first, second = (profile.name or "-" for profile in (compared.first, compared.second))
    if not (compared.words or compared.constants or compared.latencies):
        say(console, f"{first} and {second} hold the same", "bold")
        return
    alone = [sum(getattr(x, side) is None for x in compared.constants) for side in ("before", "after")]
    runs = [sum(getattr(x, side) is None for x in compared.latencies) for side in ("before_s", "after_s")]
    both = len(compared.constants) - sum(alone)
    kinds = (
        (both, "constant", "changed"),
        (alone[1], "constant", "in the first only"),
        (alone[0], "constant", "in the second only"),
        (len(compared.latencies) - sum(runs), "latency", "measured in both"),
        (runs[1], "latency", "in the first only"),
        (runs[0], "latency", "in the second only"),
    )
    counted = (f"{plural(count, noun)} {what}" for count, noun, what in kinds if count)
    say(console, f"{first} -> {second}: {(', '.join(counted).replace('latencys', 'latencies') or 'told otherwise')}", "bold")
    columns = (f">{first}", f">{second}", ">change")
    if compared.words:
        show_table(console, ("told", first, second), [(name, a or "-", b or "-") for name, a, b in compared.words])
    if compared.constants:
        moved = [(x.name, *(_value(x.name, at) for at in (x.before, x.after)), _change(x.change)) for x in compared.constants]
        show_table(console, ("constant", *columns), moved)
    for deployment, rows in groupby(compared.latencies, key=lambda x: x.lesson.deployment):
        heads = ("latency", ">clients", ">prompt", ">answer", *columns)
        ends = ((x, (_ms(x.before_s), _ms(x.after_s), _change(x.change))) for x in rows)
        cells = [(metric_words(x.lesson.metric), *_load(x.lesson), *some) for x, some in ends]
        show_table(console, heads, cells, title=deployment_words(deployment))


def _change(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}"


def difference_document(compared: ProfileDifference) -> Record:
    words = [record("profile-word", name=name, before=was or None, after=now or None) for name, was, now in compared.words]
    constants = [record("profile-change", of=x, change=x.change) for x in compared.constants]
    latencies = [record("profile-run-change", of=x, change=x.change) for x in compared.latencies]
    return record("profile-diff", of=compared, words=words, constants=constants, latencies=latencies)


def show_coverage(console: Console, compared: ProfileCoverage) -> None:
    """Show that a profile can be read, then what of the question it tells of and what not."""
    profile = compared.profile
    whole = f"can be read, and nothing in it beats the hardware ({', '.join(parts_of(profile))})"
    say(console, f"profile {profile.name}: {whole}", "bold")
    if compared.used:
        say(console, f"used: {', '.join(compared.used)}")
    else:
        say(console, "it tells nothing of what is asked" if compared.topics or compared.unused else "it tells nothing")
    if compared.unused:
        say(console, f"not used: {', '.join(compared.unused)}")
    if seen := [f"{topic.name} {topic.wanted}" for topic in compared.topics if topic.is_seen]:
        say(console, f"seen: {', '.join(seen)}")
    for topic in (topic for topic in compared.topics if not topic.is_seen):
        say(console, f"not seen: {topic.unseen}")


def coverage_document(compared: ProfileCoverage) -> Record:
    topics = [record("profile-topic", topic=topic) for topic in compared.topics]
    return record("profile-check", of=compared, parts=parts_of(compared.profile), topics=topics, tells=bool(compared.used))
