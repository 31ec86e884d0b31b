"""The study on the small engine: all runs of one degree in one set of ranks, each written down as it ends."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch

from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.traces.profilers import kineto
from commtax_lab.measure import launch, machine
from commtax_lab.measure.engine import LiveEngine, NamedStepsEngine, trace
from commtax_lab.measure.generate import MeasuredJob, RunOfAllRanks, gather_results, generate, prompts, turns
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.reconcile import document, wire_seconds
from commtax_lab.measure.study.driving import ALL_REDUCE, Done, Driver, StudyOrder, allreduces, check, serving_record
from commtax_lab.measure.study.recipe import Recipe, StudyRun, arrivals, lengths
from commtax_lab.measure.study.small_engine_serving import BatchingEngine, requests, result, serve
from commtax_lab.measure.study.study_documents import AllReduces, Check, RunRecord
from commtax_lab.measure.worker import RankPlace, report

TARGET = "commtax_lab.measure.study.builtin:measure_runs"
SHARED = ("model", "random", "layers", "dtype", "device", "impl", "cluster", "profile")
"""What a study and a job ask alike."""


@dataclass(frozen=True, slots=True)
class DegreeWork:
    """The work of the ranks of one degree: ``share`` cores each, results beside ``raw``."""

    job: LiveJob
    runs: list[StudyRun]
    share: int
    slots: int
    dataset: str
    raw: Path


class Builtin(Driver):
    """Driver of the small engine: one launch of ranks a degree."""

    kinds = ("latency", "batch", "profile", "serve")

    def __init__(self, order: StudyOrder, recipe: Recipe) -> None:
        self.job = LiveJob(**{name: getattr(order, name) for name in SHARED}, tp=max(order.degrees), reference=False).settle()
        self.order, self.recipe = order, recipe
        arch = self.job.arch()
        self.model, self.dtype, self.library = arch.model, self.job.dtype, self.job.impl
        self.on_cpu = self.eager = self.job.device != "cuda"
        self.version = f"torch {torch.__version__}"
        self.where = self.job.cluster or self.job.plan(arch).cluster.key
        self.share = machine.cores_per_rank(max(order.degrees))
        self.device = machine.core_words(self.share)
        if not self.on_cpu:
            self.device = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"

    def checks(self) -> list[Check]:
        ranks = max(self.order.degrees)
        if not self.on_cpu:
            count = torch.cuda.device_count()
            return [check("GPUs for the largest degree", count >= ranks, f"{count} seen")]
        cores, note = len(machine.cores()), machine.carrier_note(machine.facts())
        text = f"{cores} cores for {ranks} ranks, {self.share} each at every degree"
        return [check("a core for each rank", cores >= ranks, text), *([check("shared memory", None, note)] if note else [])]

    def run(self, todo: Sequence[StudyRun], done: Done) -> None:
        """Make every run, degree by degree, and pass each record to ``done`` when it is there."""
        raw = (self.order.out / "raw").resolve()
        for tp in self.order.degrees:
            runs = [run for run in todo if run.tp == tp]
            work = DegreeWork(replace(self.job, tp=tp), runs, self.share, self.recipe.slots, self.order.dataset, raw)

            def ended(news: tuple[StudyRun, MeasuredJob | BenchmarkRun]) -> None:
                run, seen = news
                done(run, self.record(run, seen))

            if runs:
                launch.run(TARGET, work, tp, device=self.job.device, lost_s=self.order.lost_s, progress=ended)

    def record(self, run: StudyRun, seen: MeasuredJob | BenchmarkRun) -> RunRecord:
        """Record a run in the study's own terms, with the whole of it kept too."""
        raw = self.order.out / "raw"
        if isinstance(seen, BenchmarkRun):
            (raw / f"{run.name}.json").write_text(json.dumps(asdict(seen)), encoding="utf-8")
            return serving_record(seen)
        job = replace(self.job, tp=run.tp, batch=run.batch, repeats=run.iters)
        answer = document(replace(job, input_len=run.input_len, output_len=run.output_len), seen)
        (raw / f"{run.name}.json").write_text(json.dumps(answer), encoding="utf-8")
        each = ", ".join(f"{part.weights_bytes / 1e6:,.1f} MB" for part in seen.ranks)
        whole = f"{answer['weights']['tp1_bytes'] / 1e6:,.1f} MB"
        counted = "collectives as predicted" if answer["collectives"]["equal"] else "collectives NOT as predicted"
        all_turns = turns(seen.ranks)
        record: RunRecord = {
            "latency_s": [turn.prefill_s + sum(turn.decode_s) for turn in all_turns],
            "prefill_s": [turn.prefill_s for turn in all_turns],
            "decode_s": [median(turn.decode_s) for turn in all_turns],
            "applied": {"ok": answer["weights"]["equal"], "found": f"weights of each rank: {each} of {whole}; {counted}"},
        }
        if run.kind == "profile":
            traces = sorted(raw.glob(f"{run.name}-rank*.json"))
            counts = allreduces([kineto.read(path) for path in traces]) if traces else _count_allreduces(all_turns)
            record["profile"] = {**counts, "equal": answer["collectives"]["equal"]}
        return record


def _count_allreduces(all_turns: Sequence[RunOfAllRanks]) -> AllReduces:
    """Count a decode step's all-reduces in the engine's ledger (CPU ranks). The least over ranks is the wire."""
    reduced = [sent for sent in all_turns[0].runs[0].order if sent.op == ALL_REDUCE]
    wires = wire_seconds(all_turns)
    wire_s = sum(median(wires[sent.what]) for sent in reduced)
    step_s = median(median(turn.decode_s) for turn in all_turns)
    least = [zip(turn.inside_s.sum(axis=2).min(axis=0).tolist(), turn.decode_s, strict=True) for turn in all_turns]
    return {
        "how": "the engine's ledger",
        "allreduces": len(reduced),
        "allreduce_bytes": sum(sent.nbytes for sent in reduced) / len(reduced),
        "allreduce_s": wire_s / len(reduced),
        "comm_fraction": median(inside / whole for steps in least for inside, whole in steps),  # of the rank that waits least
        "wire_fraction": wire_s / step_s,
        "step_s": step_s,
    }


def measure_runs(where: RankPlace, work: DegreeWork) -> None:
    """Load weights once on a rank, then make every run. Rank 0 reports each result."""
    job, a = work.job, work.job.arch()
    if job.device == "cpu" and len(where.cores) > work.share:  # as many cores as a rank of the largest degree has
        machine.pin_to_cores(where.cores[: work.share])
        torch.set_num_threads(work.share)
    weights, group = job.load(a, where, where.device(job.device)), job.group(where)
    for run in work.runs:
        if run.kind == "serve":
            sizes = lengths(run, work.dataset)
            server = BatchingEngine(a, weights, group, work.slots, max(map(sum, sizes)) + 1)
            serve(server, requests(server, [(n, 3) for n, _ in sizes[:2]], [0.0, 0.0]))  # first touches
            queue = requests(server, sizes, arrivals(run))
            report((run, result(queue, serve(server, queue), run.tp, run.rate_per_s)))
            group.ledger.clear()
            continue
        tracing = run.kind == "profile" and job.device == "cuda"  # as steps are launched, without graphs
        engine = (NamedStepsEngine if tracing else LiveEngine)(a, weights, group, run.batch, run.input_len + run.output_len)
        if job.captures and not tracing:
            engine.capture()
        tokens = prompts(a.model.vocab, run.batch, run.input_len, job.seed, engine.device)
        generate(engine, tokens, 2)
        with trace(engine, work.raw / f"{run.name}-rank{where.rank}.json") if tracing else nullcontext():
            answered = [generate(engine, tokens, run.output_len) for _ in range(run.iters)]
        report((run, gather_results(where, engine, answered)))
