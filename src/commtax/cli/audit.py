"""``commtax audit``."""

from pathlib import Path
from typing import Any

import click

from commtax.audit import audit
from commtax.audit.finding import DISAGREE, FAULT, SECONDS_TOLERANCE, Claim
from commtax.audit.told import told_model
from commtax.cli.options import Given, Verb, listed
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.report import auditing
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.verbs.asking import unsettled


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="LOG|TRACE|BENCH...", type=click.Path(path_type=Path))
@listed("audit", tolerance={"default": SECONDS_TOLERANCE, "help": f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}]"})
def audit_command(files: tuple[Path, ...], model: str, as_json: bool, baseline: Path | None, nsys: str, **options: Any) -> None:
    """Does a real run agree? Logs, profiler traces (all ranks of a job) and benchmark results, line by line.

    Exit 0: nothing disagrees; 1: something does; 2: bad input.

    commtax audit vllm.log --model llama-3.1-8b --cluster 2xh100-sxm -tp 2
    """
    output = Output(as_json)
    most = options.pop("max_error")
    if most is not None and not (model or options["cluster"]):
        raise Refusal("max_error: nothing is predicted to be off; say --model and --cluster", "max_error")
    claim = _claim(model or told_model(files), output, options, most) if model or options["cluster"] else None
    findings = audit(files, claim, baseline, nsys)
    code = 1 if findings.verdict in (DISAGREE, FAULT) else 0
    output.answer(auditing.audit_document, auditing.show_audit, findings, code=code)


def _claim(model: str | Model, output: Output, options: Given, most: float | None = None) -> Claim:
    """What the command line says ran; ``most`` is the largest error that passes, and then decides alone."""
    own, place, phase = profile_of(options), output.read(cluster_of(options)), options.pop("phase")
    if not options["tolerance"] > 0:
        raise Refusal(f"tolerance={options['tolerance']}: a fraction above 0 is needed")
    if most is not None and not most > 0:
        raise Refusal(f"max_error={most}: a fraction above 0 is needed, such as 15%", "max_error")
    said = {name: options.pop(name) for name in ("batch", "context", "output_len", "tolerance")}
    said |= {} if most is None else {"tolerance": most, "strict": True}
    options |= {"profile": own, "sequence_parallel": options["sequence_parallel"] or None}
    options |= {"phase": phase} if phase == "train" else {}  # which has engines of its own
    return Claim(unsettled(model, place, options).but(phase=phase), **said)
