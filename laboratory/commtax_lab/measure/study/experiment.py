"""The whole study as one command: checks, runs that are kept one by one, metrics, and several machines in one report.

Every finished run is a file under ``out``; started again, the study goes on with what is missing.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from commtax import files
from commtax.catalog import profile as overlay
from commtax.statement import Refusal
from commtax.verbs.settling import ask
from commtax_lab.measure.machine import tool_output
from commtax_lab.measure.study.driving import Driver, StudyOrder, check
from commtax_lab.measure.study.findings import Prices, analyse
from commtax_lab.measure.study.foresight import study_lessons
from commtax_lab.measure.study.recipe import StudyRun, dataset_lengths, recipe, runs
from commtax_lab.measure.study.study_documents import Check, CounterRate, RunRecord, StudyDocument, StudyFacts

ENGINES = {"builtin": "Builtin", "vllm": "Vllm"}  # each a file of its name, and its driver there
LARGEST = 1e18  # of any figure of a study: seconds, bytes, tokens
SCHEMA = "commtax.experiment/1"
WORD_BYTES = 4  # InfiniBand's port counters count 32-bit words
SYS_INFINIBAND = Path("/sys/class/infiniband")
PROC_NET = Path("/proc/net/dev")
_NVLINK = re.compile(r"Link (\d+): Data (Tx|Rx): (\d+) KiB")
Counters = dict[str, float]  # bytes that went over links, by the machine's own count: NVLink, InfiniBand, network interfaces
Progress = Callable[[str], None]  # receives a line for each thing that begins or ended


def experiment(order: StudyOrder, progress: Progress = lambda _line: None) -> StudyDocument:
    """Run what is missing, then analyse everything and write the document to ``out`` too."""
    _check(order)
    chosen = recipe(order.recipe, order.quick)
    module = import_module(f"commtax_lab.measure.study.{order.engine}")  # here: one needs torch, the other does not
    driver: Driver = getattr(module, ENGINES[order.engine])(order, chosen)
    where = order.cluster or driver.where
    for tp in order.degrees:
        ask(driver.model, where or f"{max(order.degrees)}xcpu", tp=tp)  # a degree that does not divide the model is refused here
    _check_settings(order, driver)
    profile, unknown = _constants(order, driver, progress)
    prices = Prices(driver.model, where, order.engine, driver.dtype, driver.eager, profile, driver.library, unknown)
    kept = {run: order.out / "runs" / f"{run.name}.json" for run in runs(chosen, order.degrees, driver.kinds)}
    todo = [run for run, file in kept.items() if "error" in (_read_kept(file) or {"error": "missing or damaged"})]
    checks = _checks(order.out / "checks.json", driver, not todo)
    if todo:
        for one in checks:
            progress(f"{one['check']}: {'' if one['ok'] is not False else 'NO, '}{one['found']}")
        _run(todo, kept, driver, progress)
    done = [(run, record) for run, file in kept.items() if (record := _read_kept(file)) is not None]
    facts: StudyFacts = {
        "recipe": order.recipe,
        "quick": order.quick,
        "engine": order.engine,
        "version": driver.version,
        "model": driver.model.key,
        "dtype": driver.dtype,
        "device": driver.device,
        "box": order.name or driver.device,
        "cluster": where,
        "profile": Path(profile).name,
        "serving_lengths": Path(order.dataset).name or "synthetic",
        "checks": checks,
        "link_counters": _counters(done),
        "missing": [run.name for run in kept if run not in {r for r, _ in done}],
    }
    study = analyse(facts, done, prices)
    study["lessons"] = study_lessons([(run, record) for run, record in done if "error" not in record], prices)
    write(order.out / "experiment.json", study)
    return study


def merge(folders: Sequence[Path]) -> list[StudyDocument]:
    """Return the documents of several machines, with numbers added to repeated names."""
    boxes: list[StudyDocument] = []
    seen: Counter[str] = Counter()
    for folder in folders:
        file = folder / "experiment.json"
        if not file.is_file():
            raise Refusal(f"merge '{folder}': no experiment.json in it; give folders of finished experiments (--out)")
        document = files.read_json(file, "merge")
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise Refusal(f"merge '{folder}': experiment.json is not {SCHEMA}")
        name = document.get("box")
        if not isinstance(name, str):
            raise Refusal(f"merge '{folder}': experiment.json has no box (the machine's name)")
        odd = next((x for x in _figures(document) if not -LARGEST <= x <= LARGEST), None)
        if odd is not None:
            raise Refusal(f"merge '{folder}': {odd:g} in experiment.json is nothing that was measured")
        seen[name] += 1
        boxes.append(cast("StudyDocument", {**document, "box": f"{name} #{seen[name]}" if seen[name] > 1 else name}))
    return boxes


def _figures(part: object) -> Iterator[float]:
    """Yield all numbers of a document."""
    if isinstance(part, float | int):
        yield float(part) if abs(part) < 2**1000 else float("inf")
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _figures(inner)


def write(path: Path, document: Mapping[str, object]) -> None:
    """Write a file whole or not at all."""
    files.write_text(path, json.dumps(document, indent=1) + "\n")


def _check(order: StudyOrder) -> None:
    if order.engine not in ENGINES:
        raise Refusal(f"engine '{order.engine}': one of {', '.join(ENGINES)}", "engine")
    if not order.degrees or len(set(order.degrees)) < len(order.degrees) or min(order.degrees) < 1:
        raise Refusal(f"tp {','.join(map(str, order.degrees))}: distinct degrees of at least 1 are needed, such as 1,2", "tp")
    if order.engine == "vllm" and (order.random or order.layers):
        raise Refusal("random, layers: belong to the built-in engine; vLLM takes --model")
    if order.engine != "vllm" and (order.vllm or order.vllm_args):
        raise Refusal("vllm, vllm_args: belong to --engine vllm")
    if order.dataset:
        dataset_lengths(Path(order.dataset))
    if order.profile:
        overlay.load(order.profile)


def _constants(order: StudyOrder, driver: Driver, progress: Progress) -> tuple[str, str]:
    """Return a profile to predict with, and why no time can be predicted. An unmeasured CPU is calibrated once per study."""
    if order.profile or order.cluster or not driver.on_cpu:
        return order.profile, ""
    if order.engine != "builtin":
        return "", f"{order.engine} was not calibrated on this machine (--profile of `commtax measure calibrate` comes nearest)"
    from commtax_lab.measure import own_constants

    ranks = max(order.degrees)
    file = order.out / f"profile-{ranks}-ranks-{driver.dtype}.json"
    if ranks not in own_constants.RANKS or driver.dtype not in own_constants.DTYPES_HERE:
        return (
            "",
            f"calibration knows {' or '.join(map(str, own_constants.RANKS))} ranks in {' or '.join(own_constants.DTYPES_HERE)}",
        )
    try:
        overlay.load(file)
    except ValueError:
        progress(f"calibrating this machine, kept in {file}")
        try:
            write(file, own_constants.calibrate(ranks, driver.dtype, order.name, [driver.library], order.lost_s))
        except (ValueError, ArithmeticError) as error:
            return "", f"this machine could not be calibrated ({error})"
    return str(file), ""


def _check_settings(order: StudyOrder, driver: Driver) -> None:
    """Keep the study's settings beside its runs, and refuse a folder that holds another study.
    On CPUs the device says a rank's cores, which depend on the largest degree."""
    settings = {
        **{name: getattr(order, name) for name in ("recipe", "quick", "engine")},
        **{name: getattr(driver, name) for name in ("version", "dtype", "device", "library")},
        "model": driver.model.key,
        "vllm_args": order.vllm_args,
        "dataset": Path(order.dataset).name,
    }
    file = order.out / "settings.json"
    before = _read_kept(file) or settings
    for key, value in settings.items():
        if before.get(key) != value:
            difference = f"holds a study with {key} '{before.get(key)}', not '{value}'"
            raise Refusal(f"out '{order.out}': {difference}; name another folder")
    for name in ("raw", "runs"):
        (order.out / name).mkdir(parents=True, exist_ok=True)
    write(file, settings)


def _read_kept(file: Path) -> Any:
    """Return a kept document where it is there and whole, else None."""
    try:
        document = files.read_json(file)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _run(todo: Sequence[StudyRun], kept: dict[StudyRun, Path], driver: Driver, progress: Progress) -> None:
    """Run what is missing, keeping each record with what moved over the links since the one before."""
    before, since, ended = snapshot(), time.monotonic(), len(kept) - len(todo)

    def done(run: StudyRun, record: RunRecord) -> None:
        nonlocal before, since, ended
        now, counters, ended = time.monotonic(), snapshot(), ended + 1
        link = {"seconds": now - since, "bytes": bytes_moved(before, counters)}
        before, since = counters, now
        write(kept[run], {"run": asdict(run), **record, "link": link})
        failed = f" FAILED: {record['error']}" if "error" in record else ""
        progress(f"[{ended}/{len(kept)}] {run.name}{failed}")

    driver.run(todo, done)


def _checks(file: Path, driver: Driver, finished: bool) -> list[Check]:
    """Return the checks made before runs start, or the earlier ones where nothing is left to run."""
    before = _read_kept(file)
    if finished and before is not None:
        return list(before["checks"])
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    counters = sorted({name.rsplit(" ", 1)[0] for name in snapshot()})
    idle = check("machine idle", load < 0.5 * cores, f"load {load:.1f} on {cores} cores before it began")
    checks = [*driver.checks(), idle, check("link counters", None, ", ".join(counters) or "none")]
    write(file, {"checks": checks})
    return checks


def _counters(done: Sequence[tuple[StudyRun, RunRecord]]) -> list[CounterRate]:
    """Return what moved over the links during the longest run of the largest degree, start-up included."""
    counted = [(r.tp, x["link"], r.name) for r, x in done if x.get("link") and r.kind in ("serve", "latency", "batch")]
    if not counted:
        return []
    _, link, name = max(counted, key=lambda one: (one[0], one[1]["seconds"]))
    return [{"counter": c, "run": name, "bytes": n, "bytes_per_s": n / link["seconds"]} for c, n in link["bytes"].items()]


def snapshot() -> Counters:
    """Read all available counters, in bytes since the machine started."""
    return {**nvlink(tool_output("nvidia-smi", "nvlink", "-gt", "d")), **infiniband(SYS_INFINIBAND), **interfaces(PROC_NET)}


def bytes_moved(before: Counters, after: Counters) -> Counters:
    """Return bytes between two snapshots, of counters that moved."""
    return {name: after[name] - before.get(name, 0.0) for name in after if after[name] > before.get(name, 0.0)}


def nvlink(text: str) -> Counters:
    """Read the data of each GPU's links together, by ``nvidia-smi nvlink -gt d``.

    >>> nvlink("GPU 0: NVIDIA H100\\n\\t Link 0: Data Tx: 2 KiB\\n\\t Link 1: Data Tx: 3 KiB")
    {'NVLink of GPU 0 sent': 5120.0}
    """
    counters: Counters = {}
    gpu = "0"
    for line in text.splitlines():
        if head := re.match(r"GPU (\d+):", line):
            gpu = head[1]
        if row := _NVLINK.search(line):
            name = f"NVLink of GPU {gpu} {'sent' if row[2] == 'Tx' else 'received'}"
            counters[name] = counters.get(name, 0.0) + float(row[3]) * 1024
    return counters


def infiniband(root: Path) -> Counters:
    """Read the port counters of every adapter."""
    counters: Counters = {}
    for name, word in (("port_xmit_data", "sent"), ("port_rcv_data", "received")):
        for file in sorted(root.glob(f"*/ports/*/counters/{name}")):
            port = f"{file.parts[-5]} port {file.parts[-3]} {word}"
            with suppress(OSError, ValueError):
                counters[port] = float(file.read_text()) * WORD_BYTES
    return counters


def interfaces(file: Path) -> Counters:
    """Read the bytes of every network interface, loopback included (ranks that use sockets on one host go through it)."""
    counters: Counters = {}
    for line in file.read_text().splitlines()[2:] if file.exists() else ():
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        if len(columns) >= 9:
            counters[f"{name.strip()} received"], counters[f"{name.strip()} sent"] = float(columns[0]), float(columns[8])
    return counters
