"""TP=1 and TP=N of one model, for real: weights and KV of each rank, collectives counted, logits compared, steps timed.

``python -m commtax.measure.tp`` runs under torchrun and Slurm too (torch and NumPy are enough); without them it starts
its own ranks on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from commtax import files
from commtax.measure import launch
from commtax.measure.arch import Arch
from commtax.measure.comm import Group, wire
from commtax.measure.engine import Engine
from commtax.measure.generate import Run, generate, prompts
from commtax.measure.job import DTYPES, TOLERANCE, Job
from commtax.measure.weights import Checkpoint, Random, Source, load
from commtax.measure.worker import Place, gather, join, leave, meet, pin, place, report
from commtax.statement import Refusal

TARGET = "commtax.measure.tp:measure_all"


def run_here(job: Job, progress: Callable[[Mapping[str, Any]], None] | None = None, **launching: Any) -> dict[str, Any]:
    """Start ``job.tp`` ranks on this machine and return the document."""
    return run_all([job], progress, **launching)[0]


def run_all(
    jobs: Sequence[Job], progress: Callable[[Mapping[str, Any]], None] | None = None, **launching: Any
) -> list[dict[str, Any]]:
    """Several jobs of one degree, one after the other in the same ranks. A bad checkpoint is bad input, not a crash."""
    from commtax.measure.reconcile import document

    settled = [job.settled() for job in jobs]
    if len({(job.tp, job.device) for job in settled}) != 1:
        raise Refusal("tp: jobs that run together have one degree and one device", "tp")
    payload = {"jobs": [job.payload() for job in settled], "device": settled[0].device}
    raw = launch.run(TARGET, payload, settled[0].tp, progress=progress, **launching)
    return [document(job, found) for job, found in zip(settled, raw, strict=True)]


def measure_all(where: Place, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Every job of a payload, in turn."""
    return [measure(where, job) for job in payload["jobs"]]


def measure(where: Place, payload: dict[str, Any]) -> dict[str, Any]:
    """One rank's whole run; rank 0 returns what all of them saw."""
    job = Job.of(payload)
    device = where.cuda if job.device == "cuda" else torch.device("cpu")
    if job.device == "cuda":
        torch.cuda.set_device(device)
    a = job.arch()
    alone, part = _engines(job, a, where, device)
    found = _rounds(job, where, alone, part)
    mine = {
        "rank": where.rank,
        "host": os.uname().nodename,
        "cores": list(where.cores),
        "weights_bytes": part.weights.nbytes,
        "replicated": part.weights.replicated,
        "kv_bytes": part.cache.nbytes,
        "kv_blocks": part.cache.num_blocks,
        "block_size": part.cache.block_size,
        "runs": [_told(run) for run in found["tp"]],
        "replicas": [_told(run) for run in found["replicas"]],
    }
    ranks = gather(mine)
    if where.rank:
        return {}
    return {
        "ranks": ranks,
        "tp1": [_told(run) for run in found["tp1"]],
        "tp1_bytes": alone.weights.nbytes if alone else 0,
        "logits": found["logits"],
        "load": list(os.getloadavg()),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if job.device == "cuda" else f"{torch.get_num_threads()} CPU thread(s) a rank",
    }


def _source(job: Job, device: Any) -> Source:
    if job.random:
        return Random(job.seed, DTYPES[job.dtype], device)
    return Checkpoint(Path(job.model).expanduser(), DTYPES[job.dtype], device)


def _engines(job: Job, a: Arch, where: Place, device: Any) -> tuple[Engine | None, Engine]:
    """The whole model on this rank (TP=1; None where nobody asked), and this rank's part of it."""
    source, dtype = _source(job, device), DTYPES[job.dtype]
    length = job.input_len + job.output_len
    carrier = wire(job.impl, where.rank, where.size, job.device, job.emulate_link) if where.size > 1 else None
    slow_rank, factor = job.slow
    group = Group(where.rank, where.size, carrier, factor if slow_rank == where.rank else 1.0)
    part = Engine(a, load(source, a, where.rank, where.size, dtype, device), group, job.batch, length)
    if where.rank == job.break_rank:
        part.weights.layers[-1].down.mul_(1.01)  # one per cent of one matrix of one layer
    alone = None
    if job.reference and where.size > 1:
        alone = Engine(a, load(source, a, 0, 1, dtype, device), Group(0, 1), job.batch, length)
    for engine in (alone, part):
        if engine and job.device == "cuda" and job.graphs:
            engine.capture()
    return alone, part


def _rounds(job: Job, where: Place, alone: Engine | None, part: Engine) -> dict[str, Any]:
    """Rounds of TP=1 on rank 0 alone, one TP=1 replica a rank at once, and TP=N; interleaved, so that all see the same machine."""
    tokens = prompts(part.arch.model.vocab, job.batch, job.input_len, job.seed, part.device)
    for engine in (alone, part):
        if engine:
            generate(engine, tokens, 2)  # first touches, allocations, libraries' own warm-up
    found: dict[str, Any] = {"tp1": [], "replicas": [], "tp": [], "logits": {}}
    forced: list[Any] | None = None
    for turn in range(job.repeats):
        first = turn == 0
        if alone:
            if where.rank == 0:
                found["tp1"].append(generate(alone, tokens, job.output_len, keep=first))
            meet()
            forced = forced or _shared(found["tp1"][0].tokens if where.rank == 0 else None, part.device)
            found["replicas"].append(generate(alone, tokens, job.output_len))
        meet()
        found["tp"].append(generate(part, tokens, job.output_len, forced, keep=first))
        meet()
        report(step=turn + 1, of=job.repeats)
    if alone and where.rank == 0:
        found["logits"] = _compare(found["tp1"][0], found["tp"][0], TOLERANCE[job.dtype])
    return found


def _shared(tokens: list[Any] | None, device: Any) -> list[Any]:
    """Rank 0's tokens on every rank."""
    told = [[t.tolist() for t in tokens] if tokens else None]
    dist.broadcast_object_list(told, src=0)
    return [torch.tensor(t, device=device) for t in told[0] or []]


def _compare(one: Run, many: Run, tolerance: float) -> dict[str, Any]:
    """Logits of every step against TP=1's on the same inputs."""
    differences = [float((a - b).abs().max()) for a, b in zip(one.logits, many.logits, strict=True)]
    finite = all(bool(torch.isfinite(t).all()) for t in many.logits)
    scale = max(1.0, float(torch.stack(one.logits).std()))
    same = [bool(torch.equal(a, b)) for a, b in zip(one.tokens, many.tokens, strict=True)]
    worst = max(differences) if finite else float("inf")
    return {
        "max_logit_diff": worst if finite else -1.0,
        "tolerance": tolerance * scale,
        "within": worst <= tolerance * scale,
        "same_tokens": sum(same),
        "steps": len(same),
    }


def _told(run: Run) -> dict[str, Any]:
    """A run as plain lists; collectives as (what, operation, bytes, times) of each kind of step."""

    def rows(counts: Any) -> list[list[Any]]:
        return [[s.what, s.op, s.nbytes, n] for s, n in counts.items()]

    kinds = {tuple(map(tuple, rows(c))) for c in run.decode_sent}
    return {
        "prefill_s": run.prefill_s,
        "decode_s": run.decode_s,
        "prefill_sent": rows(run.prefill_sent),
        "decode_sent": [[list(row) for row in kind] for kind in kinds],
        "comm_s": run.comm_s,
        "order": run.order,
        "prefill_lines": run.prefill_lines,
        "decode_lines": run.line_medians(),
    }


def _arguments(argv: list[str] | None) -> tuple[Job, str]:
    """The options of ``commtax measure tp``, for machines that have torch and NumPy only."""
    parser = argparse.ArgumentParser(prog="python -m commtax.measure.tp", description=__doc__)
    parser.add_argument("--output", default="", help="write the document to a file as well")
    for f in fields(Job):
        name = "--" + f.name.replace("_", "-")
        if f.type in ("bool", bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=f.default)
        elif f.name == "model":
            parser.add_argument(name, required=True)
        else:
            names = [name, "-tp"] if f.name == "tp" else [name]
            parser.add_argument(*names, type=int if f.type in ("int", int) else str, default=f.default)
    found = vars(parser.parse_args(argv))
    output = found.pop("output")
    return Job(**found), output


def main(argv: list[str] | None = None) -> int:
    """Under torchrun: this is one of its ranks. Else: start the ranks here. Rank 0 writes the document."""
    from commtax.measure.reconcile import document

    job, output = _arguments(argv)
    if {"RANK", "MASTER_ADDR"} <= os.environ.keys():
        where = place()
        carrier = job.impl or ("gloo" if where.local_size < where.size and not torch.cuda.is_available() else "")
        job = Job(**{**job.payload(), "tp": where.size, "impl": carrier}).settled()
        join(where, job.device)
        raw = measure(pin(where), job.payload())
        leave(_written(document(job, raw), output) if where.rank == 0 else 0)
    return _written(run_here(job), output)


def _written(found: dict[str, Any], output: str) -> int:
    """Show the document, keep it where asked; the exit code says whether all that must be equal is."""
    from commtax.measure.reconcile import passed

    text = json.dumps(found, indent=2) + "\n"
    if output:
        files.write_text(output, text, "output")
    sys.stdout.write(text)
    return 0 if passed(found) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except launch.RankError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(3)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
