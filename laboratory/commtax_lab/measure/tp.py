"""TP=1 and TP=N of one model, for real: weights and KV of each rank, collectives counted, logits compared, steps timed.

``python -m commtax_lab.measure.tp`` runs under torchrun and Slurm too (torch and NumPy are enough); without them it starts
its own ranks on this machine.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from commtax import files
from commtax.statement import Refusal
from commtax_lab.measure import launch
from commtax_lab.measure.comm import RankGroup
from commtax_lab.measure.engine import LiveEngine, NamedStepsEngine, trace
from commtax_lab.measure.generate import GenerationRun, MeasuredJob, gather_results, generate, prompts
from commtax_lab.measure.job import TOLERANCE, LiveJob
from commtax_lab.measure.live_documents import LogitsCheck, TpDocument
from commtax_lab.measure.reconcile import document, is_reconciled
from commtax_lab.measure.worker import RankPlace, join, leave, meet, pin, place, report

TARGET = "commtax_lab.measure.tp:measure_all"


def run_all(jobs: Sequence[LiveJob], **launching: Unpack[launch.Launching]) -> list[TpDocument]:
    """Start ranks on this machine and return the documents of jobs of one degree, run in turn by the same ranks. The rest
    is as ``launch.run`` takes it. A bad checkpoint is bad input, not a crash."""
    settled = [job.settle() for job in jobs]
    if len({(job.tp, job.device) for job in settled}) != 1:
        raise Refusal("tp: jobs that run together have one degree and one device", "tp")
    seen = launch.run(TARGET, settled, settled[0].tp, device=settled[0].device, **launching)
    return [document(job, ranks) for job, ranks in zip(settled, seen, strict=True)]


def measure_all(where: RankPlace, jobs: Sequence[LiveJob]) -> list[MeasuredJob]:
    """Run every job's turns on one rank, and return what all ranks saw."""
    every = []
    for job in jobs:
        alone, part = _engines(job, where)
        runs, tp1, replicas = _run_rounds(job, where, alone, part)
        if job.trace:
            _trace_run(job, where, part)
        seen = gather_results(where, part, runs, replicas)
        if alone and tp1:
            logits = _compare(tp1[0], runs[0], TOLERANCE[job.dtype])
            seen = replace(seen, tp1=[run.figures() for run in tp1], tp1_bytes=alone.weights.nbytes, logits=logits)
        every.append(seen)
    return every


def _engines(job: LiveJob, where: RankPlace) -> tuple[LiveEngine | None, LiveEngine]:
    """Return the whole model on this rank (TP=1, or None if not requested) and this rank's part of it."""
    a, device, length = job.arch(), where.device(job.device), job.input_len + job.output_len
    part = (NamedStepsEngine if job.trace else LiveEngine)(a, job.load(a, where, device), job.group(where), job.batch, length)
    if where.rank == job.break_rank:
        part.weights.layers[-1].down.mul_(1.01)  # one per cent of one matrix of one layer
    alone = None
    if job.reference and where.size > 1:
        alone = LiveEngine(a, job.load(a, RankPlace(0, 1, 0, 1), device), RankGroup(0, 1), job.batch, length)
    for engine in (alone, part):
        if engine and job.captures:
            engine.capture()
    return alone, part


def _run_rounds(
    job: LiveJob, where: RankPlace, alone: LiveEngine | None, part: LiveEngine
) -> tuple[list[GenerationRun], list[GenerationRun], list[GenerationRun]]:
    """Interleave runs of TP=N and, if requested, of TP=1 on rank 0 alone and of one TP=1 replica per rank at once,
    so that all see the same machine."""
    tokens = prompts(part.arch.model.vocab, job.batch, job.input_len, job.seed, part.device)
    for engine in (alone, part):
        if engine:
            generate(engine, tokens, 2)  # first touches, allocations, libraries' own warm-up
    runs, tp1, replicas = list[GenerationRun](), list[GenerationRun](), list[GenerationRun]()
    forced: list[Tensor] | None = None
    for turn in range(job.repeats):
        first = turn == 0
        if alone:
            if where.rank == 0:
                tp1.append(generate(alone, tokens, job.output_len, keep=first))
            meet()
            if forced is None:  # rank 0's tokens, on every rank
                shared = [[t.tolist() for t in tp1[0].tokens] if where.rank == 0 else []]
                dist.broadcast_object_list(shared, src=0)
                forced = [torch.tensor(t, device=part.device) for t in shared[0]]
            replicas.append(generate(alone, tokens, job.output_len))
        meet()
        runs.append(generate(part, tokens, job.output_len, forced, keep=first))
        meet()
        report(turn + 1)
    return runs, tp1, replicas


def _trace_run(job: LiveJob, where: RankPlace, part: LiveEngine) -> None:
    """Trace one more run, which counts for nothing else."""
    folder = Path(job.trace)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = prompts(part.arch.model.vocab, job.batch, job.input_len, job.seed, part.device)
    meet()
    with trace(part, folder / f"rank-{where.rank}.pt.trace.json"):
        generate(part, tokens, job.output_len)
    meet()


def _compare(one: GenerationRun, many: GenerationRun, tolerance: float) -> LogitsCheck:
    """Compare every step's logits with TP=1's on the same inputs, -1 where they are not finite."""
    differences = [float((a - b).abs().max()) for a, b in zip(one.logits, many.logits, strict=True)]
    finite = all(bool(torch.isfinite(t).all()) for t in many.logits)
    allowed = tolerance * max(1.0, float(torch.stack(one.logits).std()))
    same = [bool(torch.equal(a, b)) for a, b in zip(one.tokens, many.tokens, strict=True)]
    worst = max(differences) if finite else -1.0
    equal, tokens = finite and worst <= allowed, sum(same)
    return {"max_logit_diff": worst, "logit_tolerance": allowed, "logits_equal": equal, "same_tokens": tokens, "steps": len(same)}


def _arguments(argv: list[str] | None) -> tuple[LiveJob, str]:
    """Parse the options of ``commtax measure tp``, for machines that have torch and NumPy only."""
    parser = argparse.ArgumentParser(prog="python -m commtax_lab.measure.tp", description=__doc__)
    parser.add_argument("--output", default="", help="write the document to a file as well")
    for f in fields(LiveJob):
        name = "--" + f.name.replace("_", "-")
        if f.type == "bool":
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=f.default)
        elif f.name == "model":
            parser.add_argument(name, required=True)
        else:
            names = [name, "-tp"] if f.name == "tp" else [name]
            parser.add_argument(*names, type=int if f.type == "int" else str, default=f.default)
    options = vars(parser.parse_args(argv))
    output = options.pop("output")
    return LiveJob(**options), output


def main(argv: list[str] | None = None) -> int:
    """Run as a rank under torchrun, else start the ranks here. Rank 0 writes the document."""
    job, output = _arguments(argv)
    if {"RANK", "MASTER_ADDR"} <= os.environ.keys():
        where = place()
        carrier = job.impl or ("gloo" if where.local_size < where.size and not torch.cuda.is_available() else "")
        job = replace(job, tp=where.size, impl=carrier).settle()
        join(where, job.device)
        seen = measure_all(pin(where), [job])[0]
        leave(_write_answer(document(job, seen), output) if where.rank == 0 else 0)
    return _write_answer(run_all([job])[0], output)


def _write_answer(answer: TpDocument, output: str) -> int:
    """Show the document, save it if requested, and return the exit code: 0 if all that must be equal is."""
    text = json.dumps(answer, indent=2) + "\n"
    if output:
        files.write_text(output, text, "output")
    sys.stdout.write(text)
    return 0 if is_reconciled(answer) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, launch.RankError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(3 if isinstance(error, launch.RankError) else 2)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
