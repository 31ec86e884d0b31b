"""An installed vLLM under several loads, one after the other: closed loops of its own benchmark, as ``live_loads`` has them."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from commtax import catalog
from commtax.runs.audit.reported_deployments import ReportedDeployment
from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.measure.study.driving import StudyOrder
from commtax_lab.measure.study.live_lessons import ServedLoads, read_runs
from commtax_lab.measure.study.live_loads import WALL, LiveLoad, least_calibrated
from commtax_lab.measure.study.recipe import StudyRun, recipe
from commtax_lab.measure.study.vllm import FailedRunError, Vllm

ENGINE = "vllm"


def rounds() -> int:
    """Return the rounds of all loads, few because each run starts a client, which takes longer than the load."""
    return int(lab_table("measure/study/loads.toml")["vllm_rounds"])


def serve_loads(order: StudyOrder, loads: Sequence[LiveLoad], advance: Callable[[object], None]) -> ServedLoads:
    """Start a server and serve the loads round by round. ``order`` says which program, model and degree."""
    tp, todo = order.degrees[0], [_run(order.degrees[0], load) for load in loads]
    longest = max(todo, key=lambda run: run.input_len + run.output_len)
    with tempfile.TemporaryDirectory(prefix="commtax-") as folder:
        usual = replace(recipe("tp-study", quick=True), serve_shape=(longest.input_len, longest.output_len))
        driver = Vllm(replace(order, out=Path(folder)), usual, least_calibrated(tp))  # cores as when the machine was calibrated
        driver.raw.mkdir()
        broken = next((one for one in driver.checks() if one["ok"] is False), None)
        if broken:
            raise Refusal(f"{broken['check']}: {broken['found']}")
        results: list[list[Mapping[str, object]]] = [[] for _ in todo]
        try:
            for i, result in enumerate(driver.closed_loops(todo * rounds())):
                results[i % len(todo)].append(result)
                advance("load")
        except FailedRunError as failure:
            raise Refusal(f"vllm: {failure}") from None
    flat = [row for rows in results for row in rows]
    options = {"tp": tp, "engine": f"{ENGINE}@{driver.version.partition('+')[0]}", "dtype": driver.dtype, "eager": driver.eager}
    runs = read_runs(flat, ReportedDeployment("this machine", order.model, options), catalog.cluster(driver.where))
    return ServedLoads(f"vLLM {driver.version}", driver.model.key, driver.dtype, tp, driver.device, WALL, 1.0, flat, runs)


def _run(tp: int, load: LiveLoad) -> StudyRun:
    prompt, answer = load.means
    return StudyRun("serve", tp, load.clients, round(prompt), round(answer), len(load.sizes))
