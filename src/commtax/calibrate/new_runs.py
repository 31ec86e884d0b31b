"""Runs of engines that files hold, as questions with what was measured."""

from collections.abc import Sequence
from pathlib import Path

from commtax.calibrate.measurement_files import read
from commtax.calibrate.measurements import EngineBenchmark, MeasuredMachine, MeasuredRun
from commtax.statement import Refusal
from commtax.verbs.keywords import SimulateOptions


def read_runs(files: Sequence[Path], place: MeasuredMachine) -> list[MeasuredRun]:
    """The serving runs of all files; a file without any is refused."""
    runs = []
    for file in files:
        found = read(file, place)
        if not found.runs:
            raise Refusal(f"'{file}': {found.refused[0] if found.refused else 'holds no run of an engine'}")
        runs += [_run(one, place) for one in found.runs]
    return runs


def _run(one: EngineBenchmark, place: MeasuredMachine) -> MeasuredRun:
    options = SimulateOptions(tp=one.tp, engine=place.engine, concurrency=one.clients, input_len=one.input_len)
    options |= SimulateOptions(output_len=one.output_len, num_prompts=one.num_prompts)
    closed = {"tpot": one.latency_s} | ({"ttft": one.ttft_s} if one.ttft_s else {})
    measured = closed if one.kind == "serve" else {"e2e": one.latency_s}
    return MeasuredRun(one.model, place.cluster, options, measured, {}, one.label)
