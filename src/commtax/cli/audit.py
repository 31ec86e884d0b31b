"""``commtax audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from commtax.audit import audit
from commtax.audit.finding import SECONDS_TOLERANCE, Claim
from commtax.cli.options import Bytes, Count, Fraction, Verb, axis_options, json_option, profile_option, where_options
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.report import auditing
from commtax.statement import Refusal
from commtax.verbs.asking import unsettled


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="LOG|TRACE|BENCH...", type=click.Path(path_type=Path))
@click.option("--model", "-m", "model", required=True, help="What ran: a name, or a folder with config.json.")
@where_options
@click.option("--tp", type=Count(), default=1, help="Tensor-parallel size (-tp).")
@click.option("--pp", type=Count(), default=1, help="Pipeline stages (-pp).")
@axis_options
@click.option(
    "--phase", default="decode", metavar="PHASE", help="Traces: which steps are compared, decode (default), prefill or mixed."
)
@click.option("--batch", type=Count(), default=None, help="Sequences in a step.  [default: as the trace names them, else 1]")
@click.option(
    "--context", type=Count(), default=None, help="Cached tokens of a step, or prompt length of a benchmark (--input-len)."
)
@click.option("--output-len", type=Count(), default=None, help="Benchmarks: tokens that a request asked for.")
@click.option("--eager", is_flag=True, help="It ran without CUDA graphs (--enforce-eager).")
@click.option("--library", default="", metavar="NAME", help="Whose collectives ran.  [default: the engine's]")
@click.option("--max-model-len", type=Count(), default=None, help="Limits that are not in the log, as for commtax fit.")
@click.option("--max-num-seqs", type=Count(), default=None)
@click.option("--max-num-batched-tokens", type=Count(), default=None)
@click.option("--gpu-memory-utilization", type=Fraction(), default=None)
@click.option("--block-size", type=Count(), default=None)
@click.option("--kv-cache-memory-bytes", type=Bytes(), default=0.0)
@click.option("--baseline", default=None, metavar="FILE", type=click.Path(path_type=Path), help="The same benchmark at TP 1.")
@click.option("--tolerance", type=Fraction(), default=SECONDS_TOLERANCE, show_default=True, help="Relative, for seconds.")
@profile_option
@json_option
def audit_command(files: tuple[Path, ...], model: str, as_json: bool, baseline: Path | None, **options: Any) -> None:
    """Does a real run agree? Logs, profiler traces (all ranks of a job) and benchmark results, line by line.

    Exit 0: nothing disagrees; 1: something does; 2: bad input.

    commtax audit vllm.log --model llama-3.1-8b --cluster 2xh100-sxm -tp 2
    """
    output, own = Output(as_json), profile_of(options)
    place, phase = output.read(cluster_of(options)), options.pop("phase")
    if not options["tolerance"] > 0:
        raise Refusal(f"tolerance={options['tolerance']}: a fraction above 0 is needed")
    said = {name: options.pop(name) for name in ("batch", "context", "output_len", "tolerance")}
    question = unsettled(model, place, {**options, "profile": own}).but(phase=phase)
    found = audit(files, Claim(question, **said), baseline)
    code = 1 if found.verdict == "disagree" else 0
    output.answer(lambda: auditing.audit_document(found), lambda console: auditing.show_audit(console, found), code)
