"""The whole study as one command: checks, runs that are kept one by one, metrics, and several machines in one report.

Every finished run is a file under ``out``; started again, the study goes on with what is missing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from commtax import files
from commtax.api.setup import setup
from commtax.catalog import profile as overlay
from commtax.measure import launch
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.study import links, recipe
from commtax.study.answers import answers
from commtax.study.findings import Prices, analyse

ENGINES = ("builtin", "vllm")
LARGEST = 1e18  # of any figure of a study: seconds, bytes, tokens
Record = dict[str, Any]
Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One study, from the command line."""

    out: Path
    recipe: str = "tp-study"
    engine: str = "builtin"
    model: str = ""
    random: bool = False
    layers: int = 0
    degrees: tuple[int, ...] = (1, 2)
    quick: bool = False
    dtype: str = ""
    device: str = ""
    impl: str = ""
    cluster: str = ""
    profile: str = ""
    dataset: str = ""
    vllm: str = ""
    vllm_args: str = ""
    name: str = ""
    lost_s: float = launch.LOST_S


class Driver(Protocol):
    """What an engine must be able to do."""

    @property
    def kinds(self) -> Sequence[str]: ...
    @property
    def model(self) -> Model: ...
    @property
    def version(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def eager(self) -> bool: ...
    @property
    def on_cpu(self) -> bool: ...
    @property
    def library(self) -> str: ...

    def checks(self) -> list[Record]: ...

    def run(self, todo: Sequence[recipe.Run], done: Callable[[recipe.Run, Record], None]) -> None: ...


def experiment(asked: Asked, progress: Progress | None = None) -> Record:
    """Run what is missing, then analyse everything; the document is written to ``out`` too."""
    _check(asked)
    chosen = recipe.recipe(asked.recipe, asked.quick)
    driver = _driver(asked, chosen)
    where = asked.cluster or driver.where
    for tp in asked.degrees:
        setup(driver.model, where or f"{max(asked.degrees)}xcpu", tp=tp)  # a degree that does not divide the model is refused here
    folder = _folder(asked, driver)
    profile, unknown = _constants(asked, driver, progress)
    words = (asked.engine, driver.dtype, driver.eager, profile, driver.library, unknown)
    prices = Prices(driver.model, where, *words) if where else None
    planned = recipe.runs(chosen, asked.degrees, driver.kinds)
    checks = _checks(asked.out / "checks.json", driver, all(_kept(folder / f"{run.name}.json") for run in planned))
    _run_missing(planned, folder, driver, progress)
    done = [(run, x) for run in planned if (x := _kept(folder / f"{run.name}.json", failed=True)) is not None]
    facts = {
        "recipe": asked.recipe,
        "quick": asked.quick,
        "engine": asked.engine,
        "version": driver.version,
        "model": driver.model.key,
        "dtype": driver.dtype,
        "box": asked.name or driver.device,
        "device": driver.device,
        "cluster": where,
        "profile": Path(profile).name,
        "serving_lengths": Path(asked.dataset).name if asked.dataset else "synthetic",
        "checks": checks,
        "link_counters": _counters(done),
        "missing": [run.name for run in planned if run.name not in {r.name for r, _ in done}],
    }
    found = analyse(facts, done, prices)
    found["answers"] = answers(found)
    write(asked.out / "experiment.json", found)
    return found


def merge(folders: Sequence[Path]) -> list[Record]:
    """The documents of several machines; of one name twice the second is told apart by a number."""
    found: list[Record] = []
    for folder in folders:
        file = folder / "experiment.json"
        if not file.is_file():
            raise Refusal(f"merge '{folder}': no experiment.json in it; give folders of finished experiments (--out)")
        document = files.read_json(file, "merge")
        if not isinstance(document, dict) or document.get("schema") != "commtax.experiment/1":
            raise Refusal(f"merge '{folder}': experiment.json is not commtax.experiment/1")
        if not isinstance(document.get("box"), str):
            raise Refusal(f"merge '{folder}': experiment.json has no box (the machine's name)")
        odd = next((x for x in _figures(document) if not -LARGEST <= x <= LARGEST), None)
        if odd is not None:
            raise Refusal(f"merge '{folder}': {odd:g} in experiment.json is nothing that was measured")
        same = sum(d["box"].split(" #")[0] == document["box"] for d in found)
        found.append({**document, "box": f"{document['box']} #{same + 1}" if same else document["box"]})
    return found


def _figures(part: Any) -> Iterator[float]:
    """All numbers of a document."""
    if isinstance(part, float | int):
        yield float(part) if abs(part) < 2**1000 else float("inf")
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _figures(inner)


def write(path: Path, document: Record) -> None:
    """A file that is whole or not there."""
    files.write_text(path, json.dumps(document, indent=1) + "\n")


def _check(asked: Asked) -> None:
    if asked.engine not in ENGINES:
        raise Refusal(f"engine '{asked.engine}': one of {', '.join(ENGINES)}", "engine")
    if not asked.degrees or len(set(asked.degrees)) < len(asked.degrees) or min(asked.degrees) < 1:
        raise Refusal(f"tp {','.join(map(str, asked.degrees))}: distinct degrees of at least 1 are needed, such as 1,2", "tp")
    if asked.engine == "vllm" and (asked.random or asked.layers):
        raise Refusal("random, layers: belong to the built-in engine; vLLM takes --model")
    if asked.engine != "vllm" and (asked.vllm or asked.vllm_args):
        raise Refusal("vllm, vllm_args: belong to --engine vllm")
    if asked.dataset:
        recipe.dataset_lengths(Path(asked.dataset))
    if asked.profile:
        overlay.load(asked.profile)


def _driver(asked: Asked, recipe: recipe.Recipe) -> Driver:
    raw = asked.out / "raw"
    if asked.engine == "vllm":
        from commtax.study.vllm import Vllm

        return Vllm(asked.model, asked.degrees, recipe, asked.dataset, raw, asked.vllm, asked.vllm_args, asked.dtype)
    from commtax.measure.job import Job
    from commtax.study.builtin import Builtin

    job = Job(
        model=asked.model,
        random=asked.random,
        layers=asked.layers,
        tp=max(asked.degrees),
        dtype=asked.dtype,
        device=asked.device,
        impl=asked.impl,
        cluster=asked.cluster,
        profile=asked.profile,
    )
    return Builtin(job, asked.degrees, recipe, asked.dataset, raw, asked.lost_s)


def _constants(asked: Asked, driver: Driver, progress: Progress | None) -> tuple[str, str]:
    """A profile to predict with, and why no time can be predicted. A CPU that nobody measured is calibrated first, once a study."""
    if asked.profile or asked.cluster or not driver.on_cpu:
        return asked.profile, ""
    if asked.engine != "builtin":
        return "", f"{asked.engine} was not calibrated on this machine (--profile of `commtax measure calibrate` comes nearest)"
    from commtax.measure import box

    ranks = max(asked.degrees)
    file = asked.out / f"profile-{ranks}-ranks-{driver.dtype}.json"
    if ranks not in box.RANKS or driver.dtype not in box.DTYPES_HERE:
        return "", f"calibration knows {' or '.join(map(str, box.RANKS))} ranks in {' or '.join(box.DTYPES_HERE)}"
    try:
        overlay.load(file)
    except ValueError:
        if progress:
            progress({"run": f"calibrating this machine, kept in {file}", "step": 0, "of": 0, "error": ""})
        try:
            write(file, box.calibrate(ranks, driver.dtype, asked.name, [driver.library], asked.lost_s))
        except (ValueError, ArithmeticError) as error:
            return "", f"this machine could not be calibrated ({error})"
    return str(file), ""


def _folder(asked: Asked, driver: Driver) -> Path:
    """Where runs are kept; a folder that holds another study is refused."""
    settings = {
        "recipe": asked.recipe,
        "quick": asked.quick,
        "engine": asked.engine,
        "version": driver.version,
        "model": driver.model.key,
        "dtype": driver.dtype,
        "device": driver.device,  # on CPUs it says a rank's cores, which depend on the largest degree
        "library": driver.library,
        "vllm_args": asked.vllm_args,
        "dataset": Path(asked.dataset).name,
    }
    file = asked.out / "settings.json"
    before = _kept(file)
    if before is not None and before != settings:
        key = next(k for k in settings if before.get(k) != settings[k])
        raise Refusal(
            f"out '{asked.out}': holds a study with {key} '{before.get(key)}', not '{settings[key]}'; name another folder"
        )
    for name in ("raw", "runs"):
        (asked.out / name).mkdir(parents=True, exist_ok=True)
    write(file, settings)
    return asked.out / "runs"


def _kept(file: Path, failed: bool = False) -> Record | None:
    """A kept document; a damaged file is run again, and so is a failed run unless failures are asked for."""
    try:
        found: Record = files.read_json(file)
    except ValueError:
        return None
    return found if failed or "error" not in found else None


def _run_missing(planned: Sequence[recipe.Run], folder: Path, driver: Driver, progress: Progress | None) -> None:
    todo = [run for run in planned if _kept(folder / f"{run.name}.json") is None]
    state: dict[str, Any] = {"counters": links.snapshot(), "at": time.monotonic()}
    ended = len(planned) - len(todo)

    def done(run: recipe.Run, record: Record) -> None:
        nonlocal ended
        ended += 1
        now, counters = time.monotonic(), links.snapshot()
        record["link"] = {"seconds": now - state["at"], "bytes": links.moved(state["counters"], counters)}
        state.update(counters=counters, at=now)
        write(folder / f"{run.name}.json", {"run": run.payload(), **record})
        if progress:
            progress({"run": run.name, "step": ended, "of": len(planned), "error": record.get("error", "")})

    if todo:
        driver.run(todo, done)


def _checks(file: Path, driver: Driver, finished: bool) -> list[Record]:
    """The checks of now, before runs start; those of then where nothing is left to run."""
    before = _kept(file)
    if finished and before is not None:
        return list(before["checks"])
    found = [*driver.checks(), *_machine()]
    write(file, {"checks": found})
    return found


def _machine() -> list[Record]:
    """Whether the machine is fit for timing, and which links it can tell about."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    counters = sorted({name.rsplit(" ", 1)[0] for name in links.snapshot()})
    return [
        {"check": "machine idle", "ok": load < 0.5 * cores, "found": f"load {load:.1f} on {cores} cores before it began"},
        {"check": "link counters", "ok": None, "found": ", ".join(counters) or "none"},
    ]


def _counters(done: Sequence[tuple[recipe.Run, Record]]) -> list[Record]:
    """What moved over the links during the longest run of the largest degree, start-up included."""
    mine = [(r, x) for r, x in done if x.get("link") and r.kind in ("serve", "latency", "batch")]
    if not mine:
        return []
    most = max(r.tp for r, _ in mine)
    run, x = max(((r, x) for r, x in mine if r.tp == most), key=lambda pair: pair[1]["link"]["seconds"])
    seconds = x["link"]["seconds"]
    rows = x["link"]["bytes"].items()
    return [{"counter": name, "run": run.name, "bytes": n, "bytes_per_s": n / seconds} for name, n in rows]
