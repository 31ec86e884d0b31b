"""What ``trtllm-bench throughput`` and ``latency`` print: blocks of ``name: figure``, and percentiles of each metric.

All requests are sent at once unless their rate was limited; a rate beyond any server's is none.
"""

import math
from collections.abc import Iterator, Mapping

from commtax.runs.results.bench_record import TABLE, BenchmarkRun, number, result
from commtax.thresholds import thresholds
from commtax.wordings import patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
MS = 1e-3
SAYS = patterns(__name__)
_METRICS = ("ttft", "tpot", "itl")  # else: of a request
TRTLLM = TABLE["trtllm"]


def looks_like(text: str) -> bool:
    return SAYS.title.search(text) is not None


def parse(text: str) -> Iterator[BenchmarkRun]:
    """A result for each overview, with what stands above it since the last."""
    held: dict[str, str] = {}
    stats: dict[str, dict[str, float]] = {}
    seen = False
    for line in (line for line in split_lines(text) if len(line) <= COUNT.longest_line):
        if "BACKEND" in line[:80] and line.lstrip("= ").startswith(("PYTORCH", "ENGINE", "_AUTODEPLOY", "TENSORRT")) and seen:
            yield from _results_by_column(held, stats)
            held, stats, seen = {}, {}, False
        seen = seen or SAYS.title.match(line) is not None
        if part := SAYS.part.search(line):
            metric, statistic = part[1].lower(), part[2].lower()
            kept = stats.setdefault(metric if metric in _METRICS else "e2el", {})
            kept[TRTLLM["statistics"].get(statistic, statistic)] = (number(part[3]) or 0.0) * MS
        elif pair := SAYS.pair.match(line):
            held.setdefault(" ".join(pair[1].lower().split()), pair[2].strip())
    if seen:
        yield from _results_by_column(held, stats)


def _results_by_column(held: Mapping[str, str], stats: dict[str, dict[str, float]]) -> Iterator[BenchmarkRun]:
    """One result; of an overview whose figures stand in columns, as those of two builds beside each other, one for each column."""
    cells = {name: [cell.strip() for cell in value.strip("| ").split("|")] for name, value in held.items()}
    columns = max((len(row) for row in cells.values()), default=1)
    for at in range(min(columns, COUNT.most_columns)):
        column = {name: row[at] if at < len(row) else row[0] if len(row) == 1 else "" for name, row in cells.items()}
        yield _one(column, {metric: dict(kept) for metric, kept in stats.items()})


def _one(held: Mapping[str, str], stats: dict[str, dict[str, float]]) -> BenchmarkRun:
    def said(name: str) -> float | None:
        return number(held.get(name))

    for name, metric in TRTLLM["means"].items():
        if (mean := said(name)) is not None:
            stats.setdefault(metric, {}).setdefault("mean", mean * MS)
    rate, whole = said("issue rate (req/sec)"), said("total latency (ms)")
    figures = {"model": held.get("model", ""), **{key: said(label) for key, label in TRTLLM["figures"].items()}}
    return result(
        "trtllm",
        "throughput" if rate is None or rate > LEVEL.limitless else "serve",
        figures,
        stats,
        duration_s=whole * MS if whole else None,
        request_rate=rate if rate and rate <= LEVEL.limitless else math.inf,
        lengths=(said("average input length (tokens)"), said("average output length (tokens)")),
        facts={name: held[label] for label, name in TRTLLM["facts"].items() if label in held and held[label] != "None"},
    )
