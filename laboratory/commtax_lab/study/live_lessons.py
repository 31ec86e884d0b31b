"""Closed loops of the small engine as lessons: the first runs teach, the others are predicted."""

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from commtax.calibrate.benchmark_runs import LabelledResult, measured_runs
from commtax.calibrate.measurements import MeasuredRun
from commtax.calibrate.said_deployments import SaidDeployment
from commtax.results import bench
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax.units import plural
from commtax_lab.measure import machine
from commtax_lab.study.foresight import foresee, sum_up
from commtax_lab.study.live_loads import LoadMeasurements, LoadSeries, MeasuredLoad
from commtax_lab.study.study_documents import LessonsDocument, LoadResult

ENGINE = "builtin"


def check_shown(shown: int, loads: int) -> None:
    """Some are shown, and some are left to predict."""
    if not 1 <= shown < loads:
        raise Refusal(
            f"calibrate={shown}: from 1 to {loads - 1} of the {loads} loads can be shown, and the others predicted", "calibrate"
        )


def load_results(series: LoadSeries, seen: LoadMeasurements) -> list[LoadResult]:
    """Each load in the keys of ``vllm bench serve``, which ``commtax calibrate`` reads; those to be shown first."""
    return [_result(series, one) for one in seen.loads]


def _result(series: LoadSeries, one: MeasuredLoad) -> LoadResult:
    prompts, answers = zip(*one.load.sizes, strict=True)
    count = len(answers)
    return {
        "engine": ENGINE,
        "model_id": series.job.model,
        "precision": series.job.dtype,
        "tensor_parallel_size": series.job.tp,
        "request_rate": "inf",
        "max_concurrency": one.load.clients,
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


def runs_of(series: LoadSeries, results: Sequence[LoadResult]) -> list[MeasuredRun]:
    """Results as the questions that they answer, read as those of any benchmark."""
    job, arch = series.job, series.job.arch()
    said = SaidDeployment("this machine", job.model, {"tp": job.tp, "engine": ENGINE, "dtype": job.dtype})
    read = bench.parse(json.dumps(results))
    labelled = [LabelledResult(load_name(row), one, said) for row, one in zip(results, read, strict=True)]
    found = measured_runs(labelled, job.plan(arch).cluster)
    if found.refused:
        raise Refusal(found.refused[0])
    return [replace(run, model=arch.model) for run in found.runs]  # which may have fewer layers


def load_name(row: LoadResult) -> str:
    """A load in a few words."""
    count = row["completed"]
    lengths = f"{row['total_input_tokens'] / count:.0f}/{row['total_output_tokens'] / count:.0f}"
    return f"{plural(row['max_concurrency'], 'client')}, {lengths}"


def lessons_document(series: LoadSeries, seen: LoadMeasurements, shown: int, own: Profile) -> tuple[LessonsDocument, Profile]:
    """The whole study as one document, and the profile with what the shown runs taught."""
    job, results = series.job, load_results(series, seen)
    learnt, foreseen = foresee(runs_of(series, results), shown, own)
    document: LessonsDocument = {
        "schema": "commtax.live-lessons/1",
        "model": job.arch().model.key,
        "dtype": job.dtype,
        "tp_size": job.tp,
        "device": machine.core_words(machine.cores_per_rank(series.ranks_here)) if job.device == "cpu" else job.device,
        "clock": seen.clock,
        "wall_over_clock": seen.wall_over_clock,
        "scatter": median(one.scatter for one in seen.loads),
        "shown": [load_name(row) for row in results[:shown]],
        "results": results,
        "foreseen": foreseen,
        "errors": sum_up(foreseen),
        "refused": list(learnt.refused),
    }
    return document, learnt.profile


def own_profile(series: LoadSeries, given: str, lost_s: float) -> Profile:
    """What is known of the machine before any run: the profile that was named, or on CPUs one that is measured now."""
    from commtax.catalog import profile as overlay
    from commtax_lab.measure import own_constants

    job = series.job
    if given:
        return overlay.load(given)
    if job.device != "cpu":
        return Profile(job.plan(job.arch()).cluster.chip.key)
    return overlay.parse(own_constants.calibrate(series.ranks_here, job.dtype, impls=[job.impl], lost_s=lost_s))
