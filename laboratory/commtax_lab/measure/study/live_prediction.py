"""A live run against its prediction: the simulator serves the same requests, its steps as long as this machine's were timed."""

from collections.abc import Mapping
from math import ceil
from statistics import median

import numpy as np

from commtax import catalog
from commtax.cost.surface import Surface
from commtax.sim.serving.book import Rules
from commtax.sim.serving.running import Fleet, Workers
from commtax.sim.serving.running import run as simulated
from commtax_lab.measure import machine
from commtax_lab.measure.study.live import Array, LiveMeasurements, ServedRequests, Service
from commtax_lab.measure.study.study_documents import ServedRun, ServingDocument
from commtax_lab.measure.study.surface import Timings, join_timings, peak_rate, surface, sweep_spread

STATISTICS = ("mean", "median", "p90", "p99")
PERCENTILES = {"median": 50, "p90": 90, "p99": 99}
METRICS = ("ttft", "tpot", "e2el", "queue")


def rules(service: Service) -> Rules:
    """Return the small engine's scheduling from the catalogue, with a cache of slots as long as the longest request."""
    engine = catalog.engine("builtin")
    block = engine.memory.block_size
    blocks = service.slots * ceil((service.longest + 1) / block)
    return Rules.of(engine.serves, service.longest, service.slots, blocks, block)


def simulate_run(service: Service, table: Surface, run: ServedRequests) -> ServedRequests:
    """Simulate a run."""
    book = simulated(run.stream, Fleet(Workers(rules(service), table))).book
    begun, first, last = (np.array(column) for column in (book.started_s, book.first_s, book.done_s))
    return ServedRequests(run.stream, begun, first, last)


def serving_document(service: Service, seen: LiveMeasurements) -> ServingDocument:
    """Return the whole study as one document: steps, and rates measured and predicted in ``vllm bench serve``'s keys."""
    job, tables = service.job, [surface(join_timings(seen.sweeps[i : i + 2])) for i in range(len(seen.runs))]
    whole = join_timings(seen.sweeps)
    return {
        "schema": "commtax.live-serving/1",
        "model": job.model,
        "dtype": job.dtype,
        "impl": job.impl,
        "seed": job.seed,
        "tp_size": job.tp,
        "weights_source": "random" if job.random else "checkpoint",
        "device": machine.core_words(machine.cores_per_rank(job.tp)) if job.device == "cpu" else _gpu(),
        "max_num_seqs": service.slots,
        "most_requests_per_s": peak_rate(surface(whole), service.inputs.mean, service.outputs.mean, service.slots),
        "load": list(seen.load),
        "sweeps_apart": sweep_spread(seen.sweeps),
        "steps": _steps(whole),
        "runs": [_run(service, seen, i, table) for i, table in enumerate(tables)],
        "notes": ["every prediction is made of steps timed just before and just after its run, and of nothing that was served"],
    }


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name())


def _steps(timings: Timings) -> list[dict[str, float]]:
    """Return each step with its median, least and most."""
    return [
        {**step._asdict(), "median_s": median(seconds), "least_s": min(seconds), "most_s": max(seconds)}
        for step, seconds in timings.items()
    ]


def _run(service: Service, seen: LiveMeasurements, index: int, table: Surface) -> ServedRun:
    """Return one rate, measured, predicted, and predicted again with steps as long as they were while it served."""
    rate, run = seen.rates[index], seen.runs[index]
    pace = slowdown(table, run)
    measured = figures(rate, run)
    foreseen, paced = (figures(rate, simulate_run(service, steps, run)) for steps in (table, table.scaled(pace)))
    return {
        "request_rate": rate,
        "sweeps_apart": sweep_spread(seen.sweeps[index : index + 2]),
        "steps_over_timed": pace,
        "measured": {"source": "measured", **measured},
        "predicted": {"source": "predicted", **foreseen},
        "errors": _errors(foreseen, measured),
        "errors_at_its_pace": _errors(paced, measured),
    }


def _errors(foreseen: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Predicted over measured, less one, of all that was not nothing."""
    keys = (f"{statistic}_{metric}_ms" for metric in METRICS for statistic in STATISTICS)
    return {key: foreseen[key] / measured[key] - 1 for key in (*keys, "output_throughput") if measured[key] > 0}


def slowdown(table: Surface, run: ServedRequests) -> float:
    """Return the seconds of a run's steps over the table's for the same steps: how much the machine was disturbed.

    What is left of a prediction's error when this is 1 is the scheduler's.
    """
    timed = (table.decoding(n, tokens)[0] if n else table.mixing(0, 0, tokens, 1, 0.0) for n, tokens, _ in run.steps)
    return sum(step.seconds for step in run.steps) / sum(timed)


def figures(rate_per_s: float, run: ServedRequests) -> dict[str, float]:
    """Return a run in ``vllm bench serve``'s keys and ``queue``, which ends when the prompt's step begins.

    TPOT is (E2E - TTFT) / (output - 1), of requests with two tokens or more; times are from the arrival.
    """
    stream, duration_s = run.stream, float(run.last_s.max())
    inputs, outputs = int(stream.input_len.sum()), int(stream.output_len.sum())
    several = stream.output_len > 1
    times = {
        "ttft": run.first_s - stream.arrival_s,
        "tpot": (run.last_s - run.first_s)[several] / (stream.output_len[several] - 1),
        "e2el": run.last_s - stream.arrival_s,
        "queue": run.begun_s - stream.arrival_s,
    }
    return {
        "request_rate": rate_per_s,
        "num_prompts": len(stream),
        "completed": len(stream),
        "duration": duration_s,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(stream) / duration_s,
        "output_throughput": outputs / duration_s,
        "total_token_throughput": (inputs + outputs) / duration_s,
        "max_concurrent_requests": _peak_concurrency(stream.arrival_s, run.last_s),
        **{key: value for metric in METRICS for key, value in _statistics(metric, times[metric]).items()},
    }


def _statistics(metric: str, times_s: Array) -> dict[str, float]:
    """Return mean and percentiles in milliseconds, nothing where no request has the metric."""
    if not len(times_s):
        return {f"{statistic}_{metric}_ms": 0.0 for statistic in STATISTICS}
    percentiles = {f"{name}_{metric}_ms": float(np.percentile(times_s, p)) * 1e3 for name, p in PERCENTILES.items()}
    return {f"mean_{metric}_ms": float(np.mean(times_s)) * 1e3, **percentiles}


def _peak_concurrency(begin_s: Array, end_s: Array) -> int:
    """Return the most intervals that overlap. One that ends as another begins is over."""
    at = np.concatenate([end_s, begin_s])
    change = np.repeat([-1, 1], len(begin_s))
    return int(np.max(np.cumsum(change[np.argsort(at, kind="stable")])))
