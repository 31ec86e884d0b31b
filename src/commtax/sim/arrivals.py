"""Traces of requests, recognised by their content, plain or gzipped.

Ours, Azure's, Mooncake's and detailed results of benchmarks of vLLM and SGLang (docs/reference/files.md).
``hash_ids`` name a prompt's blocks of 512 tokens, equal ids equal text; ``hash_ids_16`` those of 16. Azure's moments and a
benchmark's clock start anywhere: there the first request arrives at 0. A request without an answer failed, and is left out.
"""

import csv
import gzip
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from math import nan

import numpy as np

from commtax.files import LOG_BYTES, Json, Named, list_of, parse_json, read_text, replace_when_written
from commtax.records import dataclass
from commtax.spec.stream import MOST_REQUESTS, MOST_TOKENS, Array, RequestStream
from commtax.statement import Note, Refusal
from commtax.units import plural

OWN = ("arrival_s", "input_tokens", "output_tokens")
AZURE = ("timestamp", "contexttokens", "generatedtokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
BENCH = ("start_times", "input_lens", "output_lens")
HASH_BLOCK = 512  # tokens of one of Mooncake's ids
MOST_SECONDS = 1e9  # a trace of thirty years
MOST_ID = 2**63
_IDS = re.compile(r"hash_ids(?:_([1-9]\d{0,5}))?")
Convert = Callable[[Json], float]
NOTHING: Mapping[str, Array] = {}


@dataclass(frozen=True, slots=True)
class _RequestTable:
    """A file's requests as it writes them, one row each."""

    name: str  # of the file, for refusals
    places: Sequence[str]  # where each row stands: line 7
    columns: tuple[str, str, str]  # what the file calls arrival, input and output
    rows: Sequence[tuple[Json, Json, Json]]
    seconds: Convert
    ids: Sequence[Json] | None = None
    block: int = HASH_BLOCK
    from_first: bool = False  # whether the clock starts anywhere


def read(path: Named) -> RequestStream:
    """Read the requests of a trace in the order of their arrival."""
    name, text = f"trace '{path}'", read_text(path, "trace", most=LOG_BYTES)
    if not text.strip():
        raise Refusal(f"{name}: empty; a header and a line for each request are needed", "trace")
    table = _from_json(text, name) if text.lstrip()[:1] in "{[" else _from_csv(text, name)
    if not 1 <= len(table.rows) <= MOST_REQUESTS:
        raise Refusal(f"{table.name}: {plural(len(table.rows), 'request')}; 1 to {MOST_REQUESTS:,} are read", "trace")
    arrival = np.array([table.seconds(row[0]) for row in table.rows])
    if table.from_first and np.isfinite(arrival).any():
        arrival -= np.nanmin(np.where(np.isinf(arrival), nan, arrival))
    prompt, answer = (np.array([_number(row[side]) for row in table.rows]) for side in (1, 2))
    _check(table, 0, (arrival >= 0) & (arrival <= MOST_SECONDS), f"a time from 0 to {MOST_SECONDS:,.0f} s is needed")
    for side, values, least in ((1, prompt, 1), (2, answer, 0)):
        whole = (values >= least) & (values <= MOST_TOKENS) & (values == np.floor(values))
        _check(table, side, whole, f"a whole number from {least} to {MOST_TOKENS:,} is needed")
    stream = RequestStream(arrival, prompt.astype(np.int64), answer.astype(np.int64))
    if table.ids is not None:
        most = np.ceil(prompt / table.block).astype(np.int64).tolist()
        distinct, prefixes = dict[tuple[int, ...], tuple[int, ...]](), []
        for place, ids, blocks in zip(table.places, table.ids, most, strict=True):
            prefix = _whole_ids(ids)
            if prefix is None or len(prefix) > blocks:
                rule = f"at most {plural(blocks, 'whole number')} of 64 bits, one a block of {table.block} tokens, are needed"
                raise Refusal(f"{table.name}: {place}: hash_ids are '{str(ids)[:30]}'; {rule}", "trace")
            prefixes.append(distinct.setdefault(prefix, prefix))
        stream = replace(stream, prefixes=tuple(prefixes), block=table.block)
    return _usable(stream, table.name)


def write(stream: RequestStream, path: Named, results: Mapping[str, Array] = NOTHING, what: str = "trace") -> None:
    """Write our own form of a trace, gzipped where the name ends so, with ``results`` in columns that readers pass over."""
    block = "" if stream.block == HASH_BLOCK else f"_{stream.block}"
    header = OWN if stream.prefixes is None else (*OWN, f"hash_ids{block}")
    columns: list[Iterable[object]] = [stream.arrival_s.tolist(), stream.input_len.tolist(), stream.output_len.tolist()]
    if stream.prefixes is not None:
        columns.append(" ".join(map(str, prefix)) for prefix in stream.prefixes)
    columns += [["" if value != value else value for value in column.tolist()] for column in results.values()]  # NaN stays empty
    lines = [",".join((*header, *results)), *(",".join(map(str, row)) for row in zip(*columns, strict=True)), ""]
    data = "\n".join(lines).encode()
    with replace_when_written(path, what) as part:
        part.write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _from_csv(text: str, name: str) -> _RequestTable:
    lines = csv.reader(StringIO(text, newline=""))
    try:
        header = [cell.strip().lower() for cell in next(lines)]
        numbered = [(lines.line_num, cells) for cells in lines if any(cells)]
    except csv.Error as error:
        raise Refusal(f"{name}: line {lines.line_num}: cannot be read as CSV ({error})", "trace") from None
    wanted = next((form for form in (OWN, AZURE) if set(form) <= set(header)), None)
    if wanted is None:
        form = OWN if set(OWN) & set(header) else ()
        lacks = ", ".join(column for column in form if column not in header)
        rule = f"the column {lacks} is missing" if form else f"no header of a trace; write {','.join(OWN)} above the requests"
        raise Refusal(f"{name}: line 1: {rule}", "trace")
    matches = ((place, match) for place, column in enumerate(header) if (match := _IDS.fullmatch(column)))
    at, named = next(matches, (None, None))  # the column with the ids of blocks, and how many tokens one stands for
    rows = [cells + [""] * (len(header) - len(cells)) for _, cells in numbered]
    arrival, prompt, answer = (header.index(column) for column in wanted)
    requests = [(cells[arrival], cells[prompt], cells[answer]) for cells in rows]
    ids = None if at is None else [list[Json](cells[at].split()) for cells in rows]
    block, azure, places = int((named and named[1]) or HASH_BLOCK), wanted is AZURE, [f"line {line}" for line, _ in numbered]
    return _RequestTable(name, places, wanted, requests, _moment if azure else _number, ids, block, from_first=azure)


def _from_json(text: str, name: str) -> _RequestTable:
    places, documents = _documents(text, name)
    first = documents[0] if documents else None
    if isinstance(first, dict) and set(BENCH[1:]) <= set(first):
        if len(documents) > 1:
            raise Refusal(f"{name}: holds {len(documents)} runs, and a trace is one; keep one line", "trace")
        if not first.get(BENCH[0]):
            raise Refusal(f"{name}: no start_times; a newer vllm bench serve --save-detailed writes them", "trace")
        arrival, prompt, answer = (list_of(first[key]) for key in BENCH)
        if not all(isinstance(first[key], list) for key in BENCH) or len({len(arrival), len(prompt), len(answer)}) > 1:
            raise Refusal(f"{name}: {', '.join(BENCH)} are not lists of one length", "trace")
        places = [f"request {number}" for number in range(1, len(arrival) + 1)]
        return _RequestTable(name, places, BENCH, list(zip(arrival, prompt, answer, strict=True)), _number, from_first=True)
    complete = [isinstance(row, dict) and set(MOONCAKE) <= set(row) for row in documents]
    if not documents or not all(complete):
        where = f"{places[complete.index(False)]}: " if documents else ""
        raise Refusal(f"{name}: {where}no request with {', '.join(MOONCAKE)}, nor a benchmark's {', '.join(BENCH)}", "trace")
    requests = [row for row in documents if isinstance(row, dict)]
    rows = [(row[MOONCAKE[0]], row[MOONCAKE[1]], row[MOONCAKE[2]]) for row in requests]
    ids = [row.get("hash_ids") or [] for row in requests] if any("hash_ids" in row for row in requests) else None
    return _RequestTable(name, places, MOONCAKE, rows, lambda value: _number(value) * 1e-3, ids)


def _documents(text: str, name: str) -> tuple[list[str], list[Json]]:
    """Return documents with their places: one, a list, or one per line (all lines as one list first, which is much quicker)."""
    lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    places = [place for place, _ in lines]
    with suppress(Refusal):
        rows = list_of(parse_json(f"[{','.join(line for _, line in lines)}]", name))
        if len(rows) == len(lines) > 1:
            return places, rows
    try:
        whole = parse_json(text, name)
    except Refusal:
        return places, [parse_json(line, f"{name}: {place}") for place, line in lines]
    rows = whole if isinstance(whole, list) else [whole]
    return [f"item {number}" for number in range(1, len(rows) + 1)], rows


def _number(value: Json) -> float:
    with suppress(ValueError, OverflowError):
        return nan if value is None or isinstance(value, (bool, list, dict)) else float(value)
    return nan


def _moment(text: Json) -> float:
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(str(text).strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return nan


def _check(table: _RequestTable, side: int, holds: Array, rule: str) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        cell = f"{table.columns[side]} is '{str(table.rows[row][side])[:30]}'"
        raise Refusal(f"{table.name}: {table.places[row]}: {cell}; {rule}", "trace")


def _whole_ids(ids: Json) -> tuple[int, ...] | None:
    texts = [i for i in list_of(ids) if type(i) is int or type(i) is str]
    with suppress(ValueError):
        whole = tuple(map(int, texts))
        if isinstance(ids, list) and len(texts) == len(ids) and all(-MOST_ID < i < MOST_ID for i in whole):
            return whole
    return None


def _usable(stream: RequestStream, name: str) -> RequestStream:
    failed = int((stream.output_len == 0).sum())
    if failed == len(stream):
        raise Refusal(f"{name}: no request has an answer", "trace")
    if failed:
        note = Note("failed", f"{plural(failed, 'request')} without an answer left out")
        stream = replace(stream.take(np.flatnonzero(stream.output_len)), notes=(*stream.notes, note))
    if (np.diff(stream.arrival_s) >= 0).all():
        return stream
    note = Note("unsorted", "requests were not in the order of their arrival; they were sorted")
    return replace(stream.take(np.argsort(stream.arrival_s, kind="stable")), notes=(*stream.notes, note))
