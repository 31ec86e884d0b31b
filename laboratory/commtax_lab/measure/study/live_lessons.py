"""Closed loops of the small engine as lessons: the first runs teach, the others are predicted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from commtax.catalog import profile as overlay
from commtax.runs.audit.reported_deployments import ReportedDeployment
from commtax.runs.calibrate.engine_runs import LabelledResult, measured_runs
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.runs.results import bench
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.units import plural
from commtax_lab.measure import machine
from commtax_lab.measure.study.foresight import foresee, sum_up
from commtax_lab.measure.study.live_loads import LiveLoad, LoadMeasurements, LoadRound, LoadSeries, least_calibrated
from commtax_lab.measure.study.study_documents import LessonsDocument

ENGINE = "builtin"


def check_shown(shown: int, loads: int) -> None:
    """Check that some loads are shown and some are left to predict."""
    if not 1 <= shown < loads:
        raise Refusal(
            f"calibrate={shown}: from 1 to {loads - 1} of the {loads} loads can be shown, and the others predicted", "calibrate"
        )


def load_results(series: LoadSeries, seen: LoadMeasurements) -> list[dict[str, object]]:
    """Return each round of each load in ``vllm bench serve``'s keys, which ``commtax calibrate`` reads, shown ones first."""
    return [_result(series, one.load, row) for one in seen.loads for row in one.rounds]


def _result(series: LoadSeries, load: LiveLoad, one: LoadRound) -> dict[str, object]:
    prompts, answers = zip(*load.sizes, strict=True)
    count = len(answers)
    return {
        "engine": ENGINE,
        "model_id": series.job.model,
        "precision": series.job.dtype,
        "tensor_parallel_size": series.job.tp,
        "request_rate": "inf",
        "max_concurrency": load.clients,
        "completed": count,
        "duration": one.duration_s,
        "total_input_tokens": sum(prompts),
        "total_output_tokens": sum(answers),
        "output_lens": list(answers),
        "request_throughput": count / one.duration_s,
        "output_throughput": sum(answers) / one.duration_s,
        "mean_ttft_ms": one.ttft_s * 1e3,
        "mean_tpot_ms": one.tpot_s * 1e3,
    }


def runs_of(series: LoadSeries, results: Sequence[dict[str, object]]) -> list[MeasuredRun]:
    """Return the small engine's runs as the questions that they answer."""
    job, arch = series.job, series.job.arch()
    deployment = ReportedDeployment("this machine", job.model, {"tp": job.tp, "engine": ENGINE, "dtype": job.dtype})
    runs = read_runs(results, deployment, job.plan(arch).cluster)
    return [replace(run, model=arch.model) for run in runs]  # which may have fewer layers


def read_runs(results: Sequence[Mapping[str, object]], deployment: ReportedDeployment, cluster: Cluster) -> list[MeasuredRun]:
    """Read results as the questions that they answer, like those of any benchmark."""
    labelled = []
    for one in bench.parse(json.dumps(results)):
        name = f"{plural(round(one.concurrency or 0), 'client')}, {one.input_len or 0:.0f}/{one.output_len or 0:.0f}"
        labelled.append(LabelledResult(name, one, deployment))
    measured = measured_runs(labelled, cluster)
    if measured.refused:
        raise Refusal(measured.refused[0])
    return list(measured.runs)


class ServedLoads(NamedTuple):
    """Served loads and their engine: each run as a result and as the question that it answers, shown ones first."""

    engine: str
    model: str
    dtype: str
    tp: int
    device: str
    clock: str
    wall_over_clock: float
    results: Sequence[Mapping[str, object]]
    runs: Sequence[MeasuredRun]


def served_loads(series: LoadSeries, seen: LoadMeasurements) -> ServedLoads:
    """Return the loads that the small engine served."""
    job, results = series.job, load_results(series, seen)
    device = machine.core_words(machine.cores_per_rank(series.ranks_here)) if job.device == "cpu" else job.device
    facts = (ENGINE, job.arch().model.key, job.dtype, job.tp, device, seen.clock, seen.wall_over_clock)
    return ServedLoads(*facts, results, runs_of(series, results))


def lessons_document(served: ServedLoads, shown: int, prior: Profile) -> tuple[LessonsDocument, Profile]:
    """Return the whole study as one document, and the profile with what the shown runs taught."""
    learnt, foreseen = foresee(served.runs, shown, prior)
    document: LessonsDocument = {
        "schema": "commtax.live-lessons/1",
        "engine": served.engine,
        "model": served.model,
        "dtype": served.dtype,
        "tp_size": served.tp,
        "device": served.device,
        "clock": served.clock,
        "wall_over_clock": served.wall_over_clock,
        "scatter": _scatter(served.runs),
        "shown": list(dict.fromkeys(run.label for run in served.runs))[:shown],
        "results": list(served.results),
        "foreseen": foreseen,
        "errors": sum_up(foreseen),
        "refused": list(learnt.refused),
    }
    return document, learnt.profile


def _scatter(runs: Sequence[MeasuredRun]) -> float:
    """Return the median over loads of the slowest run's TPOT over the fastest's, less 1."""
    loads: dict[str, list[float]] = {}
    for run in runs:
        loads.setdefault(run.label, []).append(run.measured["tpot"])
    return median(max(times) / min(times) - 1 for times in loads.values())


def machine_profile(series: LoadSeries, profile: str, lost_s: float) -> Profile:
    """Return the machine's profile before any run: the named one, or on CPUs one measured now."""
    job = series.job
    if profile:
        return overlay.load(profile)
    if job.device != "cpu":
        return Profile(job.plan(job.arch()).cluster.chip.key)
    return _measure_cpu(job.tp, job.dtype, [job.impl], lost_s)


def prior_profile(profile: str, served: ServedLoads, lost_s: float) -> Profile:
    """Return the profile of a machine that vLLM served on: on CPUs the small engine's, with weights laid out once."""
    chip = served.runs[0].cluster.chip.key
    if chip != "cpu":
        return overlay.load(profile) if profile else Profile(chip)
    return lay_out_once(overlay.load(profile) if profile else _measure_cpu(served.tp, served.dtype, (), lost_s))


def lay_out_once(prior: Profile) -> Profile:
    """Return a profile of an engine that packs its matrices on loading, as vLLM's CPU build does (``create_onednn_mm``).

    The small engine multiplies them as they lie, and pays for it in every product with a few rows.
    """
    tables = {
        name: {key: 0.0 if key.startswith("pack") else value for key, value in table.items()}
        for name, table in prior.tables.items()
    }
    return replace(prior, tables=tables)


def _measure_cpu(ranks: int, dtype: str, impls: Sequence[str], lost_s: float) -> Profile:
    from commtax_lab.measure import own_constants

    return overlay.parse(own_constants.calibrate(least_calibrated(ranks), dtype, impls=impls, lost_s=lost_s))
