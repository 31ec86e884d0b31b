"""JSON of any tool whose keys are labels: ``time_to_first_token: {mean: …}``, ``Average latency (s)``, ``results_ttft_s_mean``."""

import re
from collections.abc import Iterator

from commtax.evidence.thresholds import counts
from commtax.files import Json
from commtax.results.bench_record import Bench
from commtax.results.labels import meaning
from commtax.results.runs import Run, built, dialect_of

COUNT = counts(__name__)
_KEY = re.compile(rb'"([A-Za-z][^"\\]{1,60})"\s{0,4}:')


def looks_like(head: bytes) -> bool:
    """Whether keys of JSON are such labels."""
    keys = (match[1].decode(errors="replace") for _, match in zip(range(COUNT.most_keys), _KEY.finditer(head), strict=False))
    return any(meaning(key).measured and meaning(key).field in ("ttft", "tpot", "itl") for key in set(keys))


def from_document(d: Json) -> Iterator[Bench]:
    """The result of a document that has at least two times or rates."""
    run = Run(dialect_of(" ".join(map(str, d))), 0)
    for _, (path, value) in zip(range(COUNT.most_leaves), _leaves(d, (), COUNT.depth), strict=False):
        said = next((said for n in (1, 2, 3) if (said := meaning(" ".join(path[-n:]))).field), None)
        if said:
            run.put(said, str(value))
    if run.measured >= COUNT.least:
        yield built(run, {})


def _leaves(value: Json, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(value, dict) and depth:
        for key, held in value.items():
            yield from _leaves(held, (*path, str(key)[:60]), depth - 1)
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool) and path:
        yield path, value
