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
class KnownLoad:
    """The load of benchmarks that do not say theirs; 0: not said."""

    concurrency: int = 0
    request_rate: float = 0.0
    input_len: int = 0
    output_len: int = 0
    spread: float = 0.0
    num_prompts: int = 0
    batch: int = 0

    def filled_from(self, other: KnownLoad) -> KnownLoad:
        """With what another says of it that this one does not."""
        return KnownLoad(*(getattr(self, f.name) or getattr(other, f.name) for f in fields(self)))


LOAD = frozenset(f.name for f in fields(KnownLoad))


@dataclass(frozen=True, slots=True)
class ReportedDeployment:
    """What one source says of a deployment; what it leaves open is not in it."""

    source: str  # as a message names it
    model: str = ""
    options: Mapping[str, object] = field(default_factory=dict)  # of ``simulate``, without the load
    load: KnownLoad = KnownLoad()  # of a benchmark command beside the server's
    drafts: bool = False
    notes: tuple[str, ...] = ()
    by: Mapping[str, str] = field(default_factory=dict)  # who says an option, where several speak

    def who(self, name: str) -> str:
        return self.by.get(name, self.source)

    def laid_out_as(self, known: Profile) -> ReportedDeployment:
        """The same with the sizes of a profile's runs, where those have one layout and nobody says another."""
        names = ("tp", *SIZES)
        layouts = {tuple(int(getattr(run.deployment, name)) for name in names) for run in known.lessons}
        if names[0] in self.options or len(layouts) != 1:
            return self
        sizes = {name: size for name, size in zip(names, layouts.pop(), strict=True) if size > 1 or name == names[0]}
        return replace(self, options={**sizes, **self.options})

    @property
    def engine(self) -> tuple[str, str]:
        """Its key and its version; "" where they are not said."""
        key, _, version = str(self.options.get("engine", "")).partition("@")
        return key, version


def from_launch(launch: Launch, source: str) -> ReportedDeployment:
    """The deployment that a command starts; what it does not say of its sizes is 1."""
    if launch.phase == "train":
        raise Refusal(f"{source}: starts training; benchmarks of serving are calibrated on", "from")
    remarks: list[str] = []
    model = usual_name(model_of(launch, remarks), remarks)
    options = options_of(launch, several=True)
    options |= implied_options(launch, known_model(model) if model else None, remarks)
    unread = unread_remarks(launch.engine, launch.unread, "question")
    notes = tuple(f"{source}: {text}" for text in (*remarks, *launch.notes, *unread))
    if launch.client:  # whoever answers it, and on how many GPUs, is not said by it
        return ReportedDeployment(source, model, load=record_from(KnownLoad, options), notes=notes)
    served = {name: value for name, value in options.items() if name in SIMULATED - LOAD}
    asked = changes_of(str(options.technique)) if options.technique else {}
    drafts = bool(options.speculative or asked.get("speculative"))
    return ReportedDeployment(source, model, {**ALONE, **served}, record_from(KnownLoad, options), drafts, notes)


def _without(values: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in names}


def from_text(text: str, source: str) -> ReportedDeployment | None:
    """The deployment that a script, YAML or a pasted command starts; None where the text starts none, or is too long for one."""
    if len(text) > MAX_SIGNS and not is_manifest(text):
        return None
    try:
        launch = parse(text, source)
    except NothingLaunchedError:
        return None
    return from_launch(launch, f"'{source}'")


def launches_in(paths: Iterable[Path], remarks: list[str]) -> dict[Path, ReportedDeployment]:
    """The deployments that scripts and YAML beside a run start; a command that cannot be read is told."""
    found: dict[Path, ReportedDeployment] = {}
    for path in paths:
        try:
            said = None if path.suffix in PROSE else from_text(read_text(path), path.name)
        except Refusal as refusal:
            remarks += [f"{path.name}: {refusal}"] if refusal.argument == "from" else []
        else:
            found |= {path: said} if said else {}
    return found


def from_command_lines(text: str, source: str) -> ReportedDeployment | None:
    """The deployment that commands among other lines start: those above a printed result, or at the top of a log."""
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
    """What an engine's own log says of its start."""
    on_cpu = log.settings.get("device_config") == CPU
    settings = _without(log.settings, (SWITCHED_OFF_ON_CPUS,) if on_cpu else ())
    launch = from_settings(log.engine, {name: str(value) for name, value in settings.items()}, released(log.version))
    said = from_launch(replace(launch, unread=()), f"'{source}'")
    drafts = log.setting("speculative_config") or log.setting("speculative_algorithm")
    hits = next((m.prefix_hits for m in reversed(log.moments) if m.prefix_hits is not None), 0.0) or 0.0
    cached = f"'{source}': {hits:.0%} of prompt tokens were cached in the end, and cached prompts have a short TTFT"
    notes = (*said.notes, cached) if hits >= LEVEL.cached else said.notes
    sizes = {**ALONE, **said.options} if log.model else {**_without(said.options, ALONE), **_sizes_of_ranks(log)}
    return replace(said, options=sizes, drafts=said.drafts or bool(drafts), notes=notes)


def _sizes_of_ranks(log: StartupLog) -> dict[str, object]:
    """Sizes that ranks tell where no configuration is printed; ranks of several replicas may be numbered through."""
    told = {name: size for name, size in logged_options(log).items() if name in ALONE}
    return {} if int(told.get("dp", 1)) > 1 else dict(told)


def released(version: str) -> str:
    """A version as the catalogue counts them; "" of a build that does not know its own.

    >>> released("0.11.0rc2.dev17+g1234"), released("0.1.dev1+gabc"), released("v0.5.3.post1")
    ('0.11.0rc2.dev17', '', '0.5.3.post1')
    """
    found = VERSION.match(version)
    return found[1] if found and not UNRELEASED.match(found[1]) else ""


def from_result(result: BenchmarkRun, label: str) -> ReportedDeployment:
    """What a result says of itself. Sizes of 1 beside tp are left open: tools write them whatever ran."""
    facts, remarks = result.facts, list[str]()
    known = {*(one.key for one in programs() if not one.trains), OWN_ENGINE}
    named = facts.get("engine") or (result.tool if result.tool == "trtllm" else "")
    engine, version = named if named in known else "", released(facts.get("version", ""))
    options: dict[str, object] = {"tp": result.tp} if result.tp else {}
    options |= {axis: int(size) for axis in SIZES if (size := facts.get(axis, "")).isdecimal() and int(size) > 1}
    options |= {"engine": f"{engine}@{version}" if version else engine} if engine or version else {}
    options |= _workers(facts)
    return ReportedDeployment(f"'{label}'", usual_name(result.model, remarks), options)


def _workers(facts: Mapping[str, str]) -> SimulateOptions:
    """Workers for prompts beside those that decode."""
    if not all(name in facts for name in APART):
        return SimulateOptions()
    prompts, tp, dp, decode = (int(facts[name]) for name in APART)
    return SimulateOptions(disaggregated=True, prefill_workers=prompts, prefill_tp=tp, prefill_dp=dp, decode_workers=decode)


def usual_name(name: str, remarks: list[str]) -> str:
    """A model by the name that the catalogue knows, where a path holds it; else as it is."""
    if not name or os.path.exists(expand_home(usual := usual_model_name(name, remarks))) or origin(usual):
        return usual if name else ""
    return next((part for part in names_of(name) if part and origin(part)), name)


def client_engine(result: BenchmarkRun) -> str:
    """Whose server a client was told to speak to: weak, for most servers answer to any of them; "" where it says none."""
    named = result.tool if result.kind == "latency" else result.facts.get("backend", "").partition("-")[0]
    return named if named in {one.key for one in programs() if not one.trains} else ""


def joined(said: Iterable[ReportedDeployment]) -> ReportedDeployment:
    """All that several sources say of one deployment; two that contradict each other are refused by their names."""
    return reduce(_join, said)


def _join(one: ReportedDeployment, other: ReportedDeployment) -> ReportedDeployment:
    options = {**one.options, **other.options}
    options |= {"engine": engine} if (engine := _same_engine(one, other)) else {}
    for name in [n for n in one.options if n in other.options and n != "engine"]:
        ours, theirs = one.options[name], other.options[name]
        if name == "tp" and _gpus_in_groups(one, other):
            options[name] = min(int(str(ours)), int(str(theirs)))  # one of the two counts all GPUs of a server
        elif name == "ep" and AUTO_EP in (ours, theirs):
            options[name] = AUTO_EP
        elif ours != theirs:
            raise _disagreement(name, one, _shown(ours), other, _shown(theirs))
    by = {name: said.who(name) for said in (other, one) for name in (*said.options, *(("model",) if said.model else ()))}
    drafts, notes = one.drafts or other.drafts, (*one.notes, *other.notes)
    return ReportedDeployment(one.source, _same_model(one, other), options, one.load.filled_from(other.load), drafts, notes, by)


def _disagreement(name: str, one: ReportedDeployment, ours: str, other: ReportedDeployment, theirs: str) -> Refusal:
    return Refusal(f"{name}: {one.who(name)} says {ours}, and {other.who(name)} says {theirs}", name)


def _shown(value: object) -> str:
    return "tp x dp" if value == AUTO_EP else str(value)


def _gpus_in_groups(one: ReportedDeployment, other: ReportedDeployment) -> bool:
    """Whether two sizes of tp are one: all GPUs of a server, and those of a group of its data-parallel attention."""
    sizes = [int(str(said.options["tp"])) for said in (one, other)]
    groups = max(int(str(said.options.get("dp", 1))) for said in (one, other))
    return max(sizes) == min(sizes) * groups


def _same_engine(one: ReportedDeployment, other: ReportedDeployment) -> str:
    """The engine of both, with the version that either says."""
    (ours, mine), (theirs, yours) = one.engine, other.engine
    if ours and theirs and ours != theirs:
        raise _disagreement("engine", one, ours, other, theirs)
    if mine and yours and not (f"{mine}.".startswith(f"{yours}.") or f"{yours}.".startswith(f"{mine}.")):
        raise _disagreement("engine", one, f"{ours or theirs} {mine}", other, f"{theirs or ours} {yours}")
    version = max(mine, yours, key=len)
    return f"{ours or theirs}@{version}" if version else ours or theirs


def _same_model(one: ReportedDeployment, other: ReportedDeployment) -> str:
    """The model of both: the first name that the catalogue or this machine knows."""
    known = known_model(one.model) if one.model else None
    why = other_model(other.model, known) if known and other.model else ""
    if why:
        raise _disagreement("model", one, one.model, other, other.model)
    names = [name for name in (one.model, other.model) if name]
    found = (name for name in names if origin(name) or os.path.exists(expand_home(name)))
    return next(found, names[0] if names else "")


def suits(said: ReportedDeployment, result: ReportedDeployment) -> bool:
    try:
        _join(said, result)
    except Refusal:
        return False
    return True
