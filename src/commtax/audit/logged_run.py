"""The plan that a run's own files tell: what a claim takes where nobody says otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from commtax import catalog
from commtax.audit.read_files import ReadFiles
from commtax.calibrate.said_deployments import SaidDeployment, joined
from commtax.evidence.finding import Claim
from commtax.logs.startup import StartupLog
from commtax.logs.startup_facts import logged_options
from commtax.options import options
from commtax.results.bench_record import BenchmarkRun
from commtax.statement import Refusal

RELEASE = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){1,9})")
UNSAID = "assumed (neither a file nor -tp says it)"
ENGINE = "engine"
LAYOUT = ("tp", "pp", "dp")
SIZES = (*LAYOUT, "ep")
LENGTH = ("max_model_len",)


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Options of a serving question as files say them, and the file that says them."""

    options: Mapping[str, str | int] = field(default_factory=dict)
    file: str = ""

    def over(self, claim: Claim, said: set[str]) -> Claim:
        """The claim, with all that nobody has ``said`` as the files have it.

        Who said one size said the whole layout, and files that have another contradict it.
        """
        q = claim.question
        held = {options()[name].field.rpartition(".")[2] for name in said if name in options()}
        held |= (set(SIZES) if said & {*LAYOUT} else set()) | ({"weights_dtype"} if q.model.quant else set())
        ranks = prod(int(self.options.get(axis, 1)) for axis in LAYOUT)
        if ranks > q.cluster.num_gpus:  # which the audit then says
            held |= set(SIZES)
        taken = {name: value for name, value in self.options.items() if name not in held}
        if q.trains:
            return claim
        if engine := taken.pop(ENGINE, ""):
            q = replace(q, engine=catalog.engine(str(engine)))
        source = f"from {self.file}" if "tp" in taken else UNSAID if not said & {*LAYOUT} and q.cluster.num_gpus > 1 else ""
        return replace(claim, question=q.but(**taken), plan_source=source)


def launched_options(read: ReadFiles, model: str, said: Mapping[str, object]) -> dict[str, object]:
    """What the commands beside a run say of its deployment, beside what somebody ``said``; who said one size said them all."""
    sizes = {axis: said[axis] for axis in LAYOUT if axis in said}
    held = {*said, *(SIZES if sizes else ())}
    of_it = [launch for launch in read.launches if all(launch.options.get(axis, n) == n for axis, n in sizes.items())]
    try:
        options = joined((SaidDeployment("--model", model), *of_it)).options
    except Refusal as refusal:
        raise Refusal(f"{refusal}; name with --from what ran", refusal.argument) from None
    return {name: value for name, value in options.items() if name not in held}


def by_launch(read: ReadFiles, claim: Claim, options: Mapping[str, object]) -> Claim:
    """The claim, with who said its plan where a command beside the run did."""
    return replace(claim, plan_source=f"from {read.launches[0].source}") if "tp" in options else claim


def logged_run(read: ReadFiles) -> LoggedRun:
    """What all engines' logs say alike, else what all benchmark results do."""
    logs = [(name, _log_options(said)) for name, said in read.left if isinstance(said, StartupLog)]
    results = [(name, _result_options(run)) for name, said in read.left if isinstance(said, tuple) for run in said]
    told = logs or results
    if not told:
        return LoggedRun()
    first, *others = (options for _, options in told)
    alike = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    return LoggedRun(alike, told[0][0]) if alike else LoggedRun()


def _log_options(log: StartupLog) -> dict[str, str | int]:
    said = {name: value for name, value in logged_options(log).items() if name != "model"}
    rest = {name: value for name in ("ep", *LENGTH) if (value := getattr(log, name))}
    return {**said, **rest, **_engine(log)}


def _engine(log: StartupLog) -> dict[str, str | int]:
    """The engine at the version that the log names; nothing of one that is not modelled."""
    release = RELEASE.match(log.version)
    name = f"{log.engine}@{release[1]}" if release else log.engine
    try:
        catalog.engine(name)
    except Refusal:
        return {ENGINE: ""}
    return {ENGINE: name}


def _result_options(run: object) -> dict[str, str | int]:
    """The sizes that a result carries."""
    return dict(_result_sizes(run)) if isinstance(run, BenchmarkRun) and run.tp else {}


def _result_sizes(run: BenchmarkRun) -> Iterator[tuple[str, int]]:
    yield "tp", run.tp
    for axis in SIZES[1:]:
        if (size := int(run.facts.get(axis, "1"))) > 1:  # tools write 1 whatever ran
            yield axis, size
