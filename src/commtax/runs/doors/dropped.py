"""A file dropped on the page: the audit of its run, or the deployment that it starts. It stays in memory, and is not kept."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl

from commtax.catalog.loader import normal
from commtax.catalog.models import known_model
from commtax.catalog.quantisation import base_key
from commtax.files import decode_text
from commtax.launch.launch_options import implied_options, options_of
from commtax.launch.read_command import parse as parse_launch
from commtax.launch.read_techniques import MISSPELT
from commtax.report.documents import Record, Value
from commtax.report.view.pictures import unusual_sizes
from commtax.report.view.state import KEYS, SHORT, RefusedError, State, on_page, parse
from commtax.runs.audit import audit_read
from commtax.runs.audit.formats import kind_of, read
from commtax.runs.audit.read_files import ReadFiles, gather, model_of, place_of
from commtax.runs.evidence.finding import UNKNOWN, Audit, Claim
from commtax.runs.logs.engine_logs import StartupLog
from commtax.runs.report.audit_page import audit_page
from commtax.runs.report.audit_words import audit_document
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.collective_audit import named_place
from commtax.runs.results.collective_tests import CollectiveTests
from commtax.spec import SIZES
from commtax.statement import Refusal
from commtax.web.guard import BODIES, CLAIM, NAME

IF_NAMED = 2
SAID_NAMES = {"m": "model", "c": "cluster", "tp": "TP", "pp": "PP", "dp": "DP", "e": "engine"}
MOST_ASKED = 8  # GPUs that a person is asked about, at most; more are set at the controls
ENGINES = ("sglang", "trtllm", "vllm")  # tools whose benchmarks are of their own engine
TEXT = 256 * 1024  # bytes up to which a text may be a launch command or YAML


def dropped_answer(query_and_body: bytes) -> Record:
    """Answer dropped files with the audit of their run, or with the deployment that one starts."""
    query, _, body = query_and_body.partition(b"\0")
    state = parse(parse_qsl(query.decode("latin-1"), keep_blank_values=True), (NAME, CLAIM, BODIES))
    names = str(state["file"])
    sizes = str(state["sizes"])
    ends = [0, *accumulate(int(size) for size in sizes.split(","))] if sizes else [0, len(body)]
    named = names.split("/") if sizes else [Path(names).name or "dropped file"]
    if len(named) != len(ends) - 1 or ends[-1] != len(body):
        counted = f"{len(named)} names, {len(ends) - 1} sizes, {len(body):,} bytes"
        raise RefusedError(f"sizes: {counted} do not go together", "sizes", malformed=False)
    files = [(name or "dropped file", body[start:end]) for name, (start, end) in zip(named, pairwise(ends), strict=True)]
    for name, content in files:
        if not content:
            raise RefusedError(f"file {name}: it is empty", "file", malformed=False)
    if len(files) == 1 and (launched := _launch(body, files[0][0])) is not None:
        return launched
    left: list[tuple[str, object]] = []
    for name, content in files:
        with _in_memory(content) as path:
            try:
                left += [(name, record) for record in read(path)]
            except Refusal as refusal:
                raise RefusedError(str(refusal).replace(str(path), name), "file", malformed=False) from None
    return _audited(gather(left), state)


def _audited(read_files: ReadFiles, state: State) -> Record:
    """Audit files, with their facts before the page's keys, against a claim if the tick box or the files call for one."""
    stated = _stated_keys(read_files)
    placed = all(kind_of(one).by_place for _, one in read_files.left)
    named = state["claim"] == IF_NAMED
    wanted = "m" in stated and "tp" in stated if named else state["claim"]
    claim = _claim(state, stated) if wanted or (placed and "c" in stated) else None
    if claim and placed:
        claim = replace(claim, question=replace(claim.question, model=model_of(read_files)))
    audited = audit_read(read_files, claim)
    shown = audit_page(audited, "")
    asks = named and claim is None and "m" in stated
    sizes = [2**n for n in range(min(MOST_ASKED, state.question.cluster.num_gpus).bit_length())] if asks else []
    judged = {"compared": claim is not None and not placed, "hints": [*_hints(stated, audited, asks)], "sizes": sizes}
    worded = {"title": on_page(cast(str, shown["title"])), "notes": [on_page(note) for note in cast("list[str]", shown["notes"])]}
    return {**shown, **judged, **worded, "document": audit_document(audited), "patch": stated or None}


def _hints(stated: Mapping[str, Value], audited: Audit, asks: bool) -> Iterator[str]:
    """Yield what was taken from the files, and what is missing to compare them."""
    if stated:
        rest = " Cluster and plan are those of the controls." if audited.claim and "m" in stated and "tp" not in stated else ""
        yield f"Taken from the file: {', '.join(f'{SAID_NAMES[key]} {value}' for key, value in stated.items())}.{rest}"
    if asks:
        yield "Not compared with a prediction yet: on how many GPUs did one server run?"
    elif audited.claim is None and audited.verdict == UNKNOWN:
        yield "Nothing was compared: choose the model and the plan that ran, and tick the box above."


def _claim(state: State, stated: Mapping[str, Value]) -> Claim:
    """Return the claim on one server, without the page's other sizes where files state one."""
    alone: dict[str, Value] = {"rep": 1, **(dict.fromkeys(SIZES, 1) if "tp" in stated else {})}
    return Claim(state.but({**alone, **stated}).question)


def _stated_keys(read_files: ReadFiles) -> dict[str, Value]:
    """Return model, cluster, sizes and engine, as far as files state them, as keys of the page."""
    keys: dict[str, object] = {"c": place_of(read_files)}
    for _, one in read_files.left:
        for run in one if isinstance(one, tuple) else (one,):
            if isinstance(run, CollectiveTests):
                keys["c"] = keys["c"] or (place.key if (place := named_place(run)) else "")
            elif isinstance(run, BenchmarkRun):
                keys = {"m": run.model, "tp": run.tp, "e": run.tool if run.tool in ENGINES else ""} | _without_empty(keys)
            elif isinstance(run, StartupLog):
                engine = f"{run.engine}@{run.version}" if run.version else run.engine
                sizes = unusual_sizes({"tp": run.tp, "pp": run.pp, "dp": run.dp})
                keys = {"m": run.model, "e": engine, **sizes} | _without_empty(keys)
    model = known_model(str(keys.get("m", "")).rstrip("/").rsplit("/", 1)[-1])
    return _legal_keys(_without_empty({**keys, "m": model.key if model else ""}))


def _without_empty(keys: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in keys.items() if value}


def _launch(body: bytes, name: str) -> Record | None:
    """Return what a command or a manifest starts, as keys of the page, or None for a file that is neither."""
    if len(body) > TEXT or not name.endswith((".yaml", ".yml", ".sh", ".txt", ".cmd", ".service")):
        return None
    try:
        launch = parse_launch(decode_text(body))
    except Refusal as refusal:
        if name.endswith((".yaml", ".yml")) or refusal.kind == MISSPELT:
            raise RefusedError(str(refusal), "file", malformed=False) from None
        return None
    remarks = list[str](launch.notes)
    model = base_key(normal(launch.model.rstrip("/").rsplit("/", 1)[-1])) or launch.model
    model_record = known_model(model)
    options = {**options_of(launch, several=False), **implied_options(launch, model_record, remarks)}
    short = {SHORT[option]: value for option, value in options.items() if option in SHORT}
    patch = _legal_keys({**short, **({"m": model} if model_record else {})})
    ran = ", ".join(f"{option.replace('_', ' ')} {value}" for option, value in options.items() if value not in ("", None))
    unread = [f"not read: {', '.join(launch.unread)}"] if launch.unread else []
    unknown = [] if model_record else [f"{launch.model or 'its model'} is not in the catalogue: choose one at the left"]
    words = dict.fromkeys(("verdict", "culprit", "command"), "")
    lists = {key: list[Value]() for key in ("causes", "charts", "tables", "hints", "sizes")}
    title = f"{name} starts {launch.model or 'a model'} with {launch.engine} on {launch.num_gpus} GPUs"
    notes = [on_page(note) for note in (*remarks, *unread, *unknown)]
    rest = {"notes": notes, "document": None, "patch": patch, "compared": False}
    return {"kind": "launch", "title": title, **words, **lists, "ran": ran, **rest}


def _legal_keys(keys: dict[str, object]) -> dict[str, Value]:
    """Return those keys that the page can be set to."""
    by_name, legal = {key.name: key for key in KEYS}, dict[str, Value]()
    for name, value in keys.items():
        with contextlib.suppress(RefusedError):
            legal[name] = by_name[name].read(str(value))
    return legal


@contextlib.contextmanager
def _in_memory(body: bytes) -> Iterator[Path]:
    """Yield a path to the bytes that readers can open, without a name on any disk."""
    handle = os.memfd_create("dropped") if hasattr(os, "memfd_create") else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        yield Path(f"/dev/fd/{file.fileno()}")
