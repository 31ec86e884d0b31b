"""What ran, as launch commands, logs and results say it: several may speak of one deployment, and must agree."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from pathlib import Path

from commtax.catalog.models import known_model, origin
from commtax.catalog.programs import programs
from commtax.catalog.techniques import changes_of
from commtax.files import expand_home, read_text
from commtax.launch.flags import AUTO_EP, Launch
from commtax.launch.launch_options import implied_options, model_of, options_of, usual_model_name
from commtax.launch.manifest import is_manifest
from commtax.launch.read_command import NothingLaunchedError, from_settings, parse
from commtax.launch.read_techniques import unread_remarks
from commtax.launch.shell import MAX_SIGNS
from commtax.options import taken_by
from commtax.records import record_from
from commtax.runs.evidence.identity import names_of, other_model
from commtax.runs.logs.engine_logs import StartupLog
from commtax.runs.logs.startup_audit import CPU, logged_options
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.printed_runs import is_command
from commtax.runs.results.tool_documents import APART
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.verbs.keywords import SimulateOptions

SIMULATED = frozenset(taken_by("simulate()"))
LEVEL = levels(__name__)
PROSE = (".md", ".rst")  # files of a folder that tell of commands, which nobody need have run
ALONE = {"tp": 1, "pp": 1, "dp": 1}  # sizes that a command leaves out
SIZES = ("pp", "dp", "ep")  # beside tp, those that a result may carry
UNRELEASED = re.compile(r"0\.0(\.|$)|0\.1\.dev")  # what a build without tags calls itself
VERSION = re.compile(r"v?(\d{1,9}(?:\.\w{1,30}){1,9})")
OWN_ENGINE = "builtin"  # of ``commtax measure serve``, which no command of its own launches
SWITCHED_OFF_ON_CPUS = "disable_custom_all_reduce"  # CPUs have none, and logs of theirs always say so


@dataclass(frozen=True, slots=True)
class StatedLoad:
    """The load of benchmarks that do not report theirs, with 0 for what is not stated."""

    concurrency: int = 0
    request_rate: float = 0.0
    input_len: int = 0
    output_len: int = 0
    spread: float = 0.0
    num_prompts: int = 0
    batch: int = 0

    def filled_from(self, other: StatedLoad) -> StatedLoad:
        """Return this load with its gaps filled from another."""
        return StatedLoad(*(getattr(self, f.name) or getattr(other, f.name) for f in fields(self)))


LOAD = frozenset(f.name for f in fields(StatedLoad))


@dataclass(frozen=True, slots=True)
class ReportedDeployment:
    """What one source reports of a deployment, without what it leaves open."""

    source: str  # as a message names it
    model: str = ""
    options: Mapping[str, object] = field(default_factory=dict)  # of ``simulate``, without the load
    load: StatedLoad = StatedLoad()  # of a benchmark command beside the server's
    drafts: bool = False
    notes: tuple[str, ...] = ()
    by: Mapping[str, str] = field(default_factory=dict)  # who says an option, where several speak

    def who(self, name: str) -> str:
        return self.by.get(name, self.source)

    def laid_out_as(self, profile: Profile) -> ReportedDeployment:
        """Return the same with the sizes of a profile's runs, if those share one layout and no source gives another."""
        names = ("tp", *SIZES)
        layouts = {tuple(int(getattr(run.deployment, name)) for name in names) for run in profile.lessons}
        if names[0] in self.options or len(layouts) != 1:
            return self
        sizes = {name: size for name, size in zip(names, layouts.pop(), strict=True) if size > 1 or name == names[0]}
        return replace(self, options={**sizes, **self.options})

    @property
    def engine(self) -> tuple[str, str]:
        """Key and version, each "" if not stated."""
        key, _, version = str(self.options.get("engine", "")).partition("@")
        return key, version


def from_launch(launch: Launch, source: str) -> ReportedDeployment:
    """Return the deployment that a command starts, with a size of 1 wherever it gives none."""
    if launch.phase == "train":
        raise Refusal(f"{source}: starts training; benchmarks of serving are calibrated on", "from")
    remarks: list[str] = []
    model = usual_name(model_of(launch, remarks), remarks)
    options = options_of(launch, several=True)
    options |= implied_options(launch, known_model(model) if model else None, remarks)
    unread = unread_remarks(launch.engine, launch.unread, "question")
    notes = tuple(f"{source}: {text}" for text in (*remarks, *launch.notes, *unread))
    if launch.client:  # whoever answers it, and on how many GPUs, is not said by it
        return ReportedDeployment(source, model, load=record_from(StatedLoad, options), notes=notes)
    served = {name: value for name, value in options.items() if name in SIMULATED - LOAD}
    changes = changes_of(str(options.technique)) if options.technique else {}
    drafts = bool(options.speculative or changes.get("speculative"))
    return ReportedDeployment(source, model, {**ALONE, **served}, record_from(StatedLoad, options), drafts, notes)


def _without(values: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in names}


def from_text(text: str, source: str) -> ReportedDeployment | None:
    """Return the deployment that a script, YAML or a pasted command starts, or None if it starts none or is too long."""
    if len(text) > MAX_SIGNS and not is_manifest(text):
        return None
    try:
        launch = parse(text, source)
    except NothingLaunchedError:
        return None
    return from_launch(launch, f"'{source}'")


def launches_in(paths: Iterable[Path], remarks: list[str]) -> dict[Path, ReportedDeployment]:
    """Return the deployments that scripts and YAML beside a run start, with a remark on each command that cannot be read."""
    launches: dict[Path, ReportedDeployment] = {}
    for path in paths:
        try:
            launch = None if path.suffix in PROSE else from_text(read_text(path), path.name)
        except Refusal as refusal:
            remarks += [f"{path.name}: {refusal}"] if refusal.argument == "from" else []
        else:
            launches |= {path: launch} if launch else {}
    return launches


def from_command_lines(text: str, source: str) -> ReportedDeployment | None:
    """Return the deployment started by commands among other lines, above a printed result or at the top of a log."""
    lines, taken, on = text.splitlines(), [], False
    for line in lines:
        on = on or is_command(line.strip().lstrip("+$ "))
        if on:
            taken.append(line.strip().lstrip("+$ "))
            on = line.rstrip().endswith("\\")
    with suppress(Refusal):  # a word of a log that only looks like a command
        return from_text("\n".join(taken), source) if taken else None
    return None


def from_log(log: StartupLog, source: str) -> ReportedDeployment:
    """Return the deployment that an engine's own log reports at its start."""
    on_cpu = log.settings.get("device_config") == CPU
    settings = _without(log.settings, (SWITCHED_OFF_ON_CPUS,) if on_cpu else ())
    launch = from_settings(log.engine, {name: str(value) for name, value in settings.items()}, released(log.version))
    reported = from_launch(replace(launch, unread=()), f"'{source}'")
    drafts = log.setting("speculative_config") or log.setting("speculative_algorithm")
    hits = next((m.prefix_hits for m in reversed(log.moments) if m.prefix_hits is not None), 0.0) or 0.0
    cached = f"'{source}': {hits:.0%} of prompt tokens were cached in the end, and cached prompts have a short TTFT"
    notes = (*reported.notes, cached) if hits >= LEVEL.cached else reported.notes
    options = {**ALONE, **reported.options}
    if not log.model:  # ranks alone report sizes, and those of several replicas may share one numbering
        sizes = {name: size for name, size in logged_options(log).items() if name in ALONE}
        options = {**_without(reported.options, ALONE), **({} if int(sizes.get("dp", 1)) > 1 else sizes)}
    return replace(reported, options=options, drafts=reported.drafts or bool(drafts), notes=notes)


def released(version: str) -> str:
    """Return a version as the catalogue counts them, or "" for a build without a release number.

    >>> released("0.11.0rc2.dev17+g1234"), released("0.1.dev1+gabc"), released("v0.5.3.post1")
    ('0.11.0rc2.dev17', '', '0.5.3.post1')
    """
    match = VERSION.match(version)
    return match[1] if match and not UNRELEASED.match(match[1]) else ""


def from_result(result: BenchmarkRun, label: str) -> ReportedDeployment:
    """Return the deployment that a result reports. Sizes of 1 beside tp stay open, since tools write them whatever ran."""
    facts, remarks = result.facts, list[str]()
    supported = {*(one.key for one in programs() if not one.trains), OWN_ENGINE}
    named = facts.get("engine") or (result.tool if result.tool == "trtllm" else "")
    engine, version = named if named in supported else "", released(facts.get("version", ""))
    options: dict[str, object] = {"tp": result.tp} if result.tp else {}
    options |= {axis: int(size) for axis in SIZES if (size := facts.get(axis, "")).isdecimal() and int(size) > 1}
    options |= {"engine": f"{engine}@{version}" if version else engine} if engine or version else {}
    if all(name in facts for name in APART):
        prompts, tp, dp, decode = (int(facts[name]) for name in APART)
        workers = SimulateOptions(prefill_workers=prompts, prefill_tp=tp, prefill_dp=dp, decode_workers=decode)
        options |= workers | SimulateOptions(disaggregated=True)
    return ReportedDeployment(f"'{label}'", usual_name(result.model, remarks), options)


def usual_name(name: str, remarks: list[str]) -> str:
    """Return the catalogue's name of a model, even where a path contains it, or else the name unchanged."""
    if not name or os.path.exists(expand_home(usual := usual_model_name(name, remarks))) or origin(usual):
        return usual if name else ""
    return next((part for part in names_of(name) if part and origin(part)), name)


def client_engine(result: BenchmarkRun) -> str:
    """Return the engine whose API a client was set to use, or "": weak evidence, since most servers accept any of them."""
    named = result.tool if result.kind == "latency" else result.facts.get("backend", "").partition("-")[0]
    return named if named in {one.key for one in programs() if not one.trains} else ""


def joined(sources: Iterable[ReportedDeployment]) -> ReportedDeployment:
    """Join all reports of one deployment, and refuse two that contradict each other by name."""
    return reduce(_join, sources)


def _join(one: ReportedDeployment, other: ReportedDeployment) -> ReportedDeployment:
    options = {**one.options, **other.options}
    options |= {"engine": engine} if (engine := _same_engine(one, other)) else {}
    for name in [n for n in one.options if n in other.options and n != "engine"]:
        ours, theirs = one.options[name], other.options[name]
        groups = max(int(str(source.options.get("dp", 1))) for source in (one, other))
        if name == "tp" and (sizes := sorted((int(str(ours)), int(str(theirs)))))[1] == sizes[0] * groups:
            options[name] = sizes[0]  # the other counts all GPUs of a server, not those of one group of its attention
        elif name == "ep" and AUTO_EP in (ours, theirs):
            options[name] = AUTO_EP
        elif ours != theirs:
            raise _disagreement(name, one, str(ours), other, str(theirs))
    by = {name: source.who(name) for source in (other, one) for name in (*source.options, *(("model",) if source.model else ()))}
    drafts, notes = one.drafts or other.drafts, (*one.notes, *other.notes)
    model = known_model(one.model) if one.model else None
    why = other_model(other.model, model) if model and other.model else ""
    if why:
        raise _disagreement("model", one, one.model, other, other.model)
    names = [name for name in (one.model, other.model) if name]
    resolved = (name for name in names if origin(name) or os.path.exists(expand_home(name)))
    named = next(resolved, names[0] if names else "")
    return ReportedDeployment(one.source, named, options, one.load.filled_from(other.load), drafts, notes, by)


def _disagreement(name: str, one: ReportedDeployment, ours: str, other: ReportedDeployment, theirs: str) -> Refusal:
    return Refusal(f"{name}: {one.who(name)} says {ours}, and {other.who(name)} says {theirs}", name)


def _same_engine(one: ReportedDeployment, other: ReportedDeployment) -> str:
    """Return the engine of both, with the version that either reports."""
    (ours, mine), (theirs, yours) = one.engine, other.engine
    if ours and theirs and ours != theirs:
        raise _disagreement("engine", one, ours, other, theirs)
    if mine and yours and not (f"{mine}.".startswith(f"{yours}.") or f"{yours}.".startswith(f"{mine}.")):
        raise _disagreement("engine", one, f"{ours or theirs} {mine}", other, f"{theirs or ours} {yours}")
    version = max(mine, yours, key=len)
    return f"{ours or theirs}@{version}" if version else ours or theirs


def suits(launch: ReportedDeployment, result: ReportedDeployment) -> bool:
    try:
        _join(launch, result)
    except Refusal:
        return False
    return True
