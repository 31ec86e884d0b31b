"""``commtax audit``."""

from pathlib import Path
from typing import Any

import click

from commtax.audit import audit
from commtax.audit.finding import SECONDS_TOLERANCE, Claim
from commtax.cli.options import Verb, listed
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
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
    output, own = Output(as_json), profile_of(options)
    place, phase = output.read(cluster_of(options)), options.pop("phase")
    if not options["tolerance"] > 0:
        raise Refusal(f"tolerance={options['tolerance']}: a fraction above 0 is needed")
    said = {name: options.pop(name) for name in ("batch", "context", "output_len", "tolerance")}
    question = unsettled(model, place, {**options, "profile": own}).but(phase=phase)
    findings = audit(files, Claim(question, **said), baseline)
    code = 1 if findings.verdict == "disagree" else 0
    output.answer(auditing.audit_document, auditing.show_audit, findings, code=code)
