"""The study on the small engine: all runs of one degree in one set of ranks, each written down as it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from commtax.measure import launch, machine
from commtax.measure.arch import Arch
from commtax.measure.comm import Group, wire
from commtax.measure.engine import Engine
from commtax.measure.generate import Run as Answered
from commtax.measure.generate import generate, prompts
from commtax.measure.job import DTYPES, Job
from commtax.measure.reconcile import document
from commtax.measure.tp import _source, _told
from commtax.measure.weights import Weights, load
from commtax.measure.worker import Place, gather, report
from commtax.readers import bench, kineto
from commtax.study import recipe
from commtax.study.outcomes import allreduces, served
from commtax.study.serving import Server, requests, result, serve

TARGET = "commtax.study.builtin:measure_runs"
KINDS = ("latency", "batch", "profile", "serve")
Record = dict[str, Any]


class Builtin:
    """Driver of the small engine: ``settled`` jobs, one launch of ranks a degree."""

    kinds = KINDS

    def __init__(
        self, job: Job, degrees: Sequence[int], recipe: recipe.Recipe, dataset: str, raw: Path, lost_s: float = launch.LOST_S
    ) -> None:
        self.lost_s = lost_s
        self.job, self.degrees, self.recipe, self.dataset, self.raw = job.settled(), tuple(degrees), recipe, dataset, raw
        self.arch = self.job.arch()
        self.model = self.arch.model
        self.dtype, self.eager = self.job.dtype, self.job.device != "cuda"
        self.library = self.job.impl
        self.on_cpu = self.job.device != "cuda"

    @property
    def version(self) -> str:
        return f"torch {torch.__version__}"

    @property
    def device(self) -> str:
        if self.job.device == "cuda":
            return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        return f"{os.cpu_count()} CPU cores, {machine.share(max(self.degrees))} a rank"

    @property
    def where(self) -> str:
        """The cluster that is priced."""
        return self.job.cluster or self.job.plan(self.arch).cluster.key

    def checks(self) -> list[Record]:
        if self.job.device == "cuda":
            count = torch.cuda.device_count()
            return [{"check": "GPUs for the largest degree", "ok": count >= max(self.degrees), "found": f"{count} seen"}]
        cores, ranks = len(machine.cores()), max(self.degrees)
        text = f"{cores} cores for {ranks} ranks, {machine.share(ranks)} each at every degree"
        note = machine.carrier_note(machine.facts())
        found = [{"check": "a core for each rank", "ok": cores >= ranks, "found": text}]
        return [*found, *([{"check": "shared memory", "ok": None, "found": note}] if note else [])]

    def run(self, todo: Sequence[recipe.Run], done: Callable[[recipe.Run, Record], None]) -> None:
        """Every run, degree by degree; ``done`` receives each record when it is there."""
        for tp in self.degrees:
            mine = {run.name: run for run in todo if run.tp == tp}
            if mine:
                self._degree(tp, mine, done)

    def _degree(self, tp: int, mine: dict[str, recipe.Run], done: Callable[[recipe.Run, Record], None]) -> None:
        job = self.job_of(tp)
        payload = {
            "job": job.payload(),
            "device": job.device,
            "runs": [run.payload() for run in mine.values()],
            "share": machine.share(max(self.degrees)),
            "slots": self.recipe.slots,
            "dataset": self.dataset,
            "raw": str(self.raw.resolve()),
        }

        def told(news: Any) -> None:
            run = mine[news["run"]]
            done(run, self.record(run))

        launch.run(TARGET, payload, tp, lost_s=self.lost_s, progress=told)

    def job_of(self, tp: int, **changes: Any) -> Job:
        return Job(**{**asdict(self.job), "tp": tp, "reference": False, **changes})

    def record(self, run: recipe.Run) -> Record:
        """What a run left behind, in the study's own terms."""
        raw = json.loads((self.raw / f"{run.name}.json").read_text(encoding="utf-8"))
        if run.kind == "serve":
            return served(bench.parse(json.dumps(raw), run.name)[0])
        job = self.job_of(run.tp, batch=run.batch, input_len=run.input_len, output_len=run.output_len, repeats=run.iters)
        found = document(job, raw)
        turns = list(zip(*(rank["runs"] for rank in raw["ranks"]), strict=True))
        prefill = [max(r["prefill_s"] for r in turn) for turn in turns]
        steps = [[max(times) for times in zip(*(r["decode_s"] for r in turn), strict=True)] for turn in turns]
        record: Record = {
            "latency_s": [p + sum(s) for p, s in zip(prefill, steps, strict=True)],
            "prefill_s": prefill,
            "decode_s": [median(s) for s in steps],
            "applied": {"ok": found["weights"]["equal"], "found": _parts(found)},
        }
        if run.kind == "profile":
            traces = sorted(self.raw.glob(f"{run.name}-rank*.json"))
            record["profile"] = allreduces([kineto.read(path) for path in traces]) if traces else _counted(found, turns)
            record["profile"]["equal"] = found["collectives"]["equal"]
        return record


def _parts(found: Record) -> str:
    each = ", ".join(f"{r['weights_bytes'] / 1e6:,.1f} MB" for r in found["ranks"])
    counted = {True: "collectives as predicted", False: "collectives NOT as predicted"}[found["collectives"]["equal"]]
    return f"weights of each rank: {each} of {found['weights']['tp1_bytes'] / 1e6:,.1f} MB; {counted}"


def _counted(found: Record, turns: Sequence[tuple[Record, ...]]) -> Record:
    """All-reduces of a decode step by the engine's own ledger (CPU ranks); the least over ranks is the wire."""
    sent = [r for r in found["collectives"]["measured"] if r["phase"] == "decode" and r["op"] == "all-reduce"]
    count = {r["what"]: r["count"] for r in sent}
    total = sum(count.values())
    each = {c["what"]: c["wire_us"] * 1e-6 for c in found["tp"]["collectives"]}
    step_s = found["tp"]["ms_per_token"] * 1e-3
    return {
        "how": "the engine's ledger",
        "allreduces": total,
        "allreduce_bytes": sum(r["nbytes"] * r["count"] for r in sent) / total,
        "allreduce_s": sum(each[what] * n for what, n in count.items()) / total,
        "comm_fraction": _inside(turns),
        "wire_fraction": sum(each[what] * n for what, n in count.items()) / step_s,
        "step_s": step_s,
    }


def _inside(turns: Sequence[tuple[Record, ...]]) -> float:
    """The median step's share that the rank which waits least spends inside collectives."""
    shares = []
    for turn in turns:
        steps = zip(*(zip(run["decode_s"], run["comm_s"], strict=True) for run in turn), strict=True)
        shares += [min(sum(inside) for _, inside in ranks) / max(whole for whole, _ in ranks) for ranks in steps]
    return float(median(shares))


def measure_runs(where: Place, payload: dict[str, Any]) -> dict[str, Any]:
    """One rank: weights once, then every run; rank 0 writes each result and says so."""
    job = Job.of(payload["job"])
    _take_share(where, int(payload["share"]), job.device)
    device = where.cuda if job.device == "cuda" else torch.device("cpu")
    if job.device == "cuda":
        torch.cuda.set_device(device)
    a = job.arch()
    weights = load(_source(job, device), a, where.rank, where.size, DTYPES[job.dtype], device)
    carrier = wire(job.impl, where.rank, where.size, job.device, job.emulate_link) if where.size > 1 else None
    group = Group(where.rank, where.size, carrier)
    for words in payload["runs"]:
        run = recipe.Run(**words)
        file = Path(payload["raw"]) / f"{run.name}.json"
        if run.kind == "serve":
            found = _serve(run, Server(a, weights, group, payload["slots"], _room(run, payload["dataset"])), payload["dataset"])
        else:
            found = _timed(run, job, where, a, weights, group, file)
        if where.rank == 0:
            file.write_text(json.dumps(found), encoding="utf-8")
            report(run=run.name)
    return {}


def _take_share(where: Place, share: int, device: str) -> None:
    """A rank of a smaller degree keeps to as many cores as one of the largest."""
    if device == "cpu" and len(where.cores) > share:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, where.cores[:share])
        torch.set_num_threads(share)


def _room(run: recipe.Run, dataset: str) -> int:
    return max(i + o for i, o in recipe.lengths(run, dataset)) + 1


def _serve(run: recipe.Run, server: Server, dataset: str) -> dict[str, Any]:
    sizes = recipe.lengths(run, dataset)
    serve(server, requests(server, [(n, 3) for n, _ in sizes[:2]], [0.0, 0.0]))  # first touches
    queue = requests(server, sizes, recipe.arrivals(run))
    seconds = serve(server, queue)
    server.group.ledger.clear()
    return result(queue, seconds, run.tp, run.rate_per_s)


class Named(Engine):
    """An engine whose steps are named in a trace as vLLM names them."""

    def prefill(self, tokens: Any) -> Any:
        with record_function(f"execute_context_{self.batch}({tokens.numel()})_generation_0(0)"):
            return super().prefill(tokens)

    def decode(self, tokens: Any, position: int) -> Any:
        with record_function(f"execute_context_0(0)_generation_{self.batch}({self.batch})"):
            return super().decode(tokens, position)


def _timed(run: recipe.Run, job: Job, where: Place, a: Arch, weights: Weights, group: Group, file: Path) -> dict[str, Any]:
    """Prefill and decode, ``iters`` times; on CUDA a profile is a trace of the steps as they are launched, without graphs."""
    tracing = run.kind == "profile" and job.device == "cuda"
    engine = (Named if tracing else Engine)(a, weights, group, run.batch, run.input_len + run.output_len)
    if job.device == "cuda" and job.graphs and not tracing:
        engine.capture()
    tokens = prompts(a.model.vocab, run.batch, run.input_len, job.seed, engine.device)
    generate(engine, tokens, 2)
    if tracing:
        found = _trace(engine, tokens, run, file.with_name(f"{run.name}-rank{where.rank}.json"))
    else:
        found = [generate(engine, tokens, run.output_len) for _ in range(run.iters)]
    mine = {
        "rank": where.rank,
        "host": "",
        "cores": list(where.cores),
        "weights_bytes": weights.nbytes,
        "replicated": weights.replicated,
        "kv_bytes": engine.cache.nbytes,
        "kv_blocks": engine.cache.num_blocks,
        "block_size": engine.cache.block_size,
        "runs": [_told(turn) for turn in found],
        "replicas": [],
    }
    shown = torch.cuda.get_device_name() if job.device == "cuda" else f"{torch.get_num_threads()} CPU thread(s) a rank"
    return {
        "ranks": gather(mine),
        "tp1": [],
        "tp1_bytes": 0,
        "logits": {},
        "load": list(os.getloadavg()),
        "torch": torch.__version__,
        "device": shown,
    }


def _trace(engine: Engine, tokens: Any, run: recipe.Run, file: Path) -> list[Answered]:
    """A profiler's trace of the turns, steps named; the readers take it from there."""
    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if engine.device.type == "cuda" else [])]
    with profile(activities=watched, record_shapes=True) as seen:
        found = [generate(engine, tokens, run.output_len) for _ in range(run.iters)]
    seen.export_chrome_trace(str(file))
    return found
