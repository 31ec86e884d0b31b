"""Fit an engine's host times and rates of narrow products on published open-loop runs, and test them on the other half.

    python benchmarks/fit_open_loop.py ../shared/data vllm@0.15
    python benchmarks/fit_open_loop.py ../shared/data trtllm-mlperf@5.1 --on b200 --only fp4_rate,host_s,host_s_per_seq,launch_s

Every run is simulated as it was: the rate, lengths and limits of its row. Runs fall into halves by a hash of their experiment, so
that stages of one experiment stay together. The loss is the mean error of the logarithm of mean E2E (of TPOT where a row has
limits to keep), with a part of that of TTFT. Coordinates are tried one after the other with ever smaller steps: a simulation has no
derivative, and six or so constants need none.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from fitting import Constants

from commtax import catalog
from commtax.verbs.requests import run_requests
from commtax.verbs.settling import settle
from commtax_lab.published import open_loop
from commtax_lab.published.open_loop import OpenLoopRun
from commtax_lab.published.rows import Row
from commtax_lab.published.scoring.open_loop import question_of
from commtax_lab.published.tables import folder_tables

START = {"host_s": 1e-3, "host_s_per_doubling": 1e-4, "host_s_per_seq": 5e-6, "request_s": 5e-3, "launch_s": 2e-5}
RATES = ("fp8_rate", "fp4_rate", "experts_rate")
FIRST = "ttft_mean"
TTFT_PART = {"e2e_mean": 0.5, "tpot_mean": 0.0}

Case = tuple[Row, OpenLoopRun]


def halves(given: argparse.Namespace) -> list[list[Case]]:
    """Runs that are fitted, and tested; what is told apart as fitted when it is scored is never tested here."""
    chosen = cases(given.data, given.engine, given.on)
    both = [[case for case in chosen if open_loop.is_fitted(case[0]) is half] for half in (True, False)]
    print(f"{len(both[0])} runs fitted, {len(both[1])} tested")
    return both


def cases(data: Path, engine: str, on: str) -> list[Case]:
    """Runs of an engine's version that kept up with their rate, one for each server and load."""
    chosen: dict[OpenLoopRun, Case] = {}
    for table in folder_tables(data, "open_loop_runs"):
        rows = table.dicts()
        for row, asked in zip(rows, open_loop.read(rows, table.folder), strict=True):
            run = asked.question
            if run and run.server.engine.startswith(engine) and on in run.server.cluster and not open_loop.is_overloaded(row):
                chosen.setdefault(run, (row, run))
    return list(chosen.values())


def errors(case: Case, constants: Constants, most: int) -> tuple[float, float]:
    """Of the logarithm: of the figure that is fitted, and of mean TTFT."""
    row, run = case
    fewer = replace(run, load=replace(run.load, num_requests=min(most, run.load.num_requests)))
    q = question_of(fewer)
    outcome = run_requests(settle(replace(q, engine=q.engine.but(**constants))))
    figures = fitted_figure(row), FIRST
    first, second = (float(np.log(outcome.statistic(name) * 1e3 / float(row[f"{name}_ms"]))) for name in figures)
    return first, second


def fitted_figure(row: Row) -> str:
    return "tpot_mean" if row.get("slo_tpot_ms") else "e2e_mean"


def loss(pool: ProcessPoolExecutor, chosen: Sequence[Case], constants: Constants, most: int) -> tuple[float, float, float]:
    count = len(chosen)
    both = np.abs(list(pool.map(errors, chosen, [constants] * count, [most] * count)))
    part = TTFT_PART[fitted_figure(chosen[0][0])]
    return float(both[:, 0].mean() + part * both[:, 1].mean()), float(np.median(both[:, 0])), float(np.median(both[:, 1]))


def descend(pool: ProcessPoolExecutor, chosen: Sequence[Case], start: Constants, most: int, rounds: int) -> Constants:
    best, now, step = loss(pool, chosen, start, most), dict(start), 0.5
    for _ in range(rounds):
        for name in start:
            width = step / 4 if name in RATES else step
            for factor in (1 + width, 1 / (1 + width)):
                while (tried := loss(pool, chosen, {**now, name: now[name] * factor}, most))[0] < best[0] - 1e-4:
                    best, now = tried, {**now, name: now[name] * factor}
                    print({key: float(f"{value:.4g}") for key, value in now.items()}, [round(x, 4) for x in best], flush=True)
        step /= 2
    return now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("engine", help="vllm@0.15")
    parser.add_argument("--on", default="", help="only clusters whose name holds this")
    parser.add_argument("--only", default="host_s,host_s_per_seq,request_s", help="constants to fit")
    parser.add_argument("--requests", type=int, default=1500, help="of a run at most")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    known = catalog.engine(given.engine)
    values = {name: getattr(known.kernels if name in RATES else known.host, name) for name in given.only.split(",")}
    start = {name: value or START[name] for name, value in values.items()}
    fitted, tested = halves(given)
    with ProcessPoolExecutor() as pool:
        found = descend(pool, fitted, start, given.requests, given.rounds)
        for name, some in (("fitted", fitted), ("tested", tested)):
            if some:
                print(name, [round(x, 4) for x in loss(pool, some, found, given.requests)[1:]], "median log error, of TTFT")


if __name__ == "__main__":
    main()
