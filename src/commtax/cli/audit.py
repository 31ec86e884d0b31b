"""``commtax audit``."""

from pathlib import Path
from typing import Any

import click

from commtax.audit import audit
from commtax.audit.finding import DISAGREE, FAULT, SECONDS_TOLERANCE, Claim
from commtax.cli.options import Given, Verb, listed
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.cli.progress import reading
from commtax.report import auditing
from commtax.statement import Refusal
from commtax.verbs.asking import unsettled


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="LOG|TRACE|BENCH...", type=click.Path(path_type=Path))
@listed("audit", tolerance={"default": SECONDS_TOLERANCE, "help": f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}]"})
def audit_command(files: tuple[Path, ...], model: str, as_json: bool, baseline: Path | None, **options: Any) -> None:
    """Does a real run agree? Logs, profiler traces (all ranks of a job) and benchmark results, line by line.

    Exit 0: nothing disagrees; 1: something does; 2: bad input.

    commtax audit vllm.log --model llama-3.1-8b --cluster 2xh100-sxm -tp 2
    """
    output = Output(as_json)
    claim = _claim(model, output, options) if model or options["cluster"] else None
    with reading(files) as watch:
        findings = audit(files, claim, baseline, watch=watch, processes=0)
    code = 1 if findings.verdict in (DISAGREE, FAULT) else 0
    output.answer(auditing.audit_document, auditing.show_audit, findings, code=code)


def _claim(model: str, output: Output, options: Given) -> Claim:
    """What the command line says ran."""
    own, place, phase = profile_of(options), output.read(cluster_of(options)), options.pop("phase")
    if not options["tolerance"] > 0:
        raise Refusal(f"tolerance={options['tolerance']}: a fraction above 0 is needed")
    said = {name: options.pop(name) for name in ("batch", "context", "output_len", "tolerance")}
    return Claim(unsettled(model, place, {**options, "profile": own}).but(phase=phase), **said)
