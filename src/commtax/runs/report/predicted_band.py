"""What was predicted and measured of a running server, as metrics that Prometheus reads and Grafana draws."""

import math
from collections.abc import Iterator, Mapping

from commtax.files import table
from commtax.runs.report.server_words import WORDS, state_of
from commtax.runs.results.exposition import METRICS
from commtax.runs.results.live import ServerAudit, tail_bounds

TABLE = table("runs/report/predicted_band.toml")
FAMILIES: Mapping[str, Mapping[str, str]] = TABLE["family"]  # every family that is served: its kind and its help
RATES = ("requests_per_s", "output_tokens_per_s")
Sample = tuple[str, Mapping[str, str], float]


def exposition(seen: ServerAudit | None, looks: int, failures: int, last_success_s: float) -> str:
    """The page: figures of the last look where the server answered, and the counts of looks."""
    samples = list(_samples(seen)) if seen else []
    samples += [("up", {}, float(seen is not None)), ("looks_total", {}, looks), ("look_failures_total", {}, failures)]
    samples.append(("last_success_timestamp_seconds", {}, last_success_s))
    lines: list[str] = []
    for family, said in FAMILIES.items():
        own = [f"commtax_{name}{_labels(labels)} {_number(value)}" for name, labels, value in samples if name == family]
        if own:
            lines += [f"# HELP commtax_{family} {said['help']}", f"# TYPE commtax_{family} {said['kind']}", *own]
    return "\n".join(lines) + "\n"


def _samples(seen: ServerAudit) -> Iterator[Sample]:
    state = state_of(seen)
    for one in WORDS["states"]:
        yield "state", {"state": one}, float(one == state)
    if claim := seen.audited.claim:
        asked = claim.question
        said = (asked.model.key, asked.cluster.key, asked.engine.key, str(claim.tp))
        yield "claim_info", dict(zip(TABLE["claim_labels"], said, strict=True)), 1.0
    yield from _load_samples(seen)
    for f in seen.findings:
        metric, _, statistic = f.code.partition("_")
        timed = metric in METRICS.values() and statistic in ("mean", "p99")
        if not timed and f.code not in RATES:
            continue
        labels = {"metric": metric, "statistic": statistic} if timed else {"metric": f.code}
        kind = "seconds" if timed else "per_second"
        if f.measured is not None:
            yield f"measured_{kind}", labels, f.measured
        for bound, value in (("low", f.low), ("value", f.predicted), ("high", f.high)):
            if value is not None:
                yield "predicted_seconds", {**labels, "bound": bound}, value
    for metric, ends in tail_bounds(seen.window.page).items():
        for bound, end in zip(("low", "high"), ends, strict=True):
            yield "measured_bucket_seconds", {"metric": metric, "statistic": "p99", "bound": bound}, end


def _load_samples(seen: ServerAudit) -> Iterator[Sample]:
    run = seen.run
    there = float(run.facts.get("mean concurrency", "0"))
    for name, value in (("in_flight", there), ("input_tokens", run.input_len), ("output_tokens", run.output_len)):
        if value:
            yield "load", {"of": name}, value
    yield "load", {"of": "prefix_hit_share"}, run.hit_rate
    if seen.window.seconds is not None:
        yield "window_seconds", {}, seen.window.seconds


def _labels(labels: Mapping[str, str]) -> str:
    """Labels as the text format has them.

    >>> _labels({"model": 'a"b'})
    '{model="a\\\\"b"}'
    """
    escaped = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "NaN"
