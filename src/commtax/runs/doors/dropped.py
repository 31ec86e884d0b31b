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
from commtax.report.view.plan_table import unusual_sizes
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


def dropped_answer(asked: bytes) -> Record:
    """The audit of a run's files, or the deployment that one starts. ``asked`` is a query, a zero byte and the files' bytes."""
    query, _, body = asked.partition(b"\0")
    state = parse(parse_qsl(query.decode("latin-1"), keep_blank_values=True), (NAME, CLAIM, BODIES))
    files = _files(str(state["file"]), str(state["sizes"]), body)
    for name, own in files:
        if not own:
            raise RefusedError(f"file {name}: it is empty", "file", malformed=False)
    if len(files) == 1 and (launched := _launch(body, files[0][0])) is not None:
        return launched
    left = [(name, said) for name, own in files for said in _said_in(name, own)]
    return _audited(gather(left), state)


def _files(names: str, sizes: str, body: bytes) -> list[tuple[str, bytes]]:
    ends = [0, *accumulate(int(size) for size in sizes.split(","))] if sizes else [0, len(body)]
    named = names.split("/") if sizes else [Path(names).name or "dropped file"]
    if len(named) != len(ends) - 1 or ends[-1] != len(body):
        raise RefusedError(
            f"sizes: {len(named)} names, {len(ends) - 1} sizes, {len(body):,} bytes do not go together", "sizes", malformed=False
        )
    return [(name or "dropped file", body[start:end]) for name, (start, end) in zip(named, pairwise(ends), strict=True)]


def _said_in(name: str, body: bytes) -> list[object]:
    """What one file says, under its own name."""
    with _in_memory(body) as path:
        try:
            return list(read(path))
        except Refusal as refusal:
            raise RefusedError(str(refusal).replace(str(path), name), "file", malformed=False) from None


def _audited(found: ReadFiles, state: State) -> Record:
    """What files say of the run comes before the page's keys; those that name their cluster and need no model are judged."""
    said = _said_keys(found)
    placed = all(kind_of(one).by_place for _, one in found.left)
    named = state["claim"] == IF_NAMED
    wanted = "m" in said and "tp" in said if named else state["claim"]
    claim = _claim(state, said) if wanted or (placed and "c" in said) else None
    if claim and placed:
        claim = replace(claim, question=replace(claim.question, model=model_of(found)))
    audited = audit_read(found, claim)
    shown = audit_page(audited, "")
    asks = named and claim is None and "m" in said
    told = {
        "compared": claim is not None and not placed,
        "hints": [*_hints(said, audited, asks)],
        "sizes": [2**n for n in range(min(MOST_ASKED, state.question.cluster.num_gpus).bit_length())] if asks else [],
    }
    notes = [on_page(note) for note in cast("list[str]", shown["notes"])]
    return {
        **shown,
        **told,
        "title": on_page(cast(str, shown["title"])),
        "notes": notes,
        "document": audit_document(audited),
        "patch": said or None,
    }


def _hints(said: Mapping[str, Value], audited: Audit, asks: bool) -> Iterator[str]:
    """What was taken from the files, and what is missing to compare them."""
    if said:
        rest = " Cluster and plan are those of the controls." if audited.claim and "m" in said and "tp" not in said else ""
        yield f"Taken from the file: {', '.join(f'{SAID_NAMES[key]} {value}' for key, value in said.items())}.{rest}"
    if asks:
        yield "Not compared with a prediction yet: on how many GPUs did one server run?"
    elif audited.claim is None and audited.verdict == UNKNOWN:
        yield "Nothing was compared: choose the model and the plan that ran, and tick the box above."


def _claim(state: State, said: Mapping[str, Value]) -> Claim:
    """What ran, one server of it: where files say a size of the plan, without the page's other ones."""
    alone: dict[str, Value] = {"rep": 1, **(dict.fromkeys(SIZES, 1) if "tp" in said else {})}
    return Claim(state.but({**alone, **said}).question)


def _said_keys(found: ReadFiles) -> dict[str, Value]:
    """Model, cluster, sizes and engine as far as files name them, as keys of the page."""
    said: dict[str, object] = {"c": place_of(found)}
    for _, one in found.left:
        for run in one if isinstance(one, tuple) else (one,):
            if isinstance(run, CollectiveTests):
                said["c"] = said["c"] or (place.key if (place := named_place(run)) else "")
            elif isinstance(run, BenchmarkRun):
                said = {"m": run.model, "tp": run.tp, "e": run.tool if run.tool in ENGINES else ""} | _only_said(said)
            elif isinstance(run, StartupLog):
                engine = f"{run.engine}@{run.version}" if run.version else run.engine
                sizes = unusual_sizes({"tp": run.tp, "pp": run.pp, "dp": run.dp})
                said = {"m": run.model, "e": engine, **sizes} | _only_said(said)
    model = known_model(str(said.get("m", "")).rstrip("/").rsplit("/", 1)[-1])
    return _legal_keys(_only_said({**said, "m": model.key if model else ""}))


def _only_said(keys: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in keys.items() if value}


def _launch(body: bytes, name: str) -> Record | None:
    """What a command or a manifest starts, as the keys of the page; none where a file is neither."""
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
    known = known_model(model)
    said = {**options_of(launch, several=False), **implied_options(launch, known, remarks)}
    short = {SHORT[option]: value for option, value in said.items() if option in SHORT}
    patch = _legal_keys({**short, **({"m": model} if known else {})})
    told = ", ".join(f"{option.replace('_', ' ')} {value}" for option, value in said.items() if value not in ("", None))
    unread = [f"not read: {', '.join(launch.unread)}"] if launch.unread else []
    unknown = [] if known else [f"{launch.model or 'its model'} is not in the catalogue: choose one at the left"]
    return {
        "kind": "launch",
        "title": f"{name} starts {launch.model or 'a model'} with {launch.engine} on {launch.num_gpus} GPUs",
        "verdict": "",
        "ran": told,
        "culprit": "",
        "causes": [],
        "charts": [],
        "tables": [],
        "notes": [on_page(note) for note in (*remarks, *unread, *unknown)],
        "command": "",
        "document": None,
        "patch": patch,
        "compared": False,
        "hints": [],
        "sizes": [],
    }


def _legal_keys(keys: dict[str, object]) -> dict[str, Value]:
    """Those keys that the page can be set to; what it has no place for is told in words."""
    known, found = {key.name: key for key in KEYS}, dict[str, Value]()
    for name, value in keys.items():
        with contextlib.suppress(RefusedError):
            found[name] = known[name].read(str(value))
    return found


@contextlib.contextmanager
def _in_memory(body: bytes) -> Iterator[Path]:
    """The file under a name that readers can open; no name of it is ever on a disk."""
    handle = os.memfd_create("dropped") if hasattr(os, "memfd_create") else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        yield Path(f"/dev/fd/{file.fileno()}")
