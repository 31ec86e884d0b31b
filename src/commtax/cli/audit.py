"""``commtax audit``."""

from pathlib import Path
from typing import Any, NoReturn

import click

from commtax.audit import audit_read
from commtax.audit.anonymising import write_anonymous
from commtax.audit.differing import TOLERANCE, difference
from commtax.audit.finding import DISAGREE, FAULT, SECONDS_TOLERANCE, Claim
from commtax.audit.reading import Read, place_of, read_all
from commtax.cli.options import Given, Verb, listed
from commtax.cli.order import cluster_of, profile_of, refuse
from commtax.cli.output import Output, write_page
from commtax.files import check_writable, refuse_overwriting
from commtax.report import audit_differences, audit_documents, auditing
from commtax.statement import Refusal
from commtax.units import format_bytes, plural
from commtax.verbs.asking import unsettled

ALONE = ("files", "model", "diff", "anonymise", "html", "as_json", "tolerance", "help")
"""What an audit without a model takes."""
TOLERANCES = f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}; of --diff {TOLERANCE}]"


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path(path_type=Path))
@listed("audit", tolerance={"help": TOLERANCES})
def audit_command(files: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """What happened in a run, and who is to blame? Traces of all ranks, logs and benchmark results, by their content.

    With --model also whether it should have: every count, size and time against the prediction.

    Exit 0: nothing is off; 1: something disagrees, or somebody is to blame; 2: bad input.

    commtax audit traces/

    commtax audit vllm.log rank*.json.gz --model llama-3.1-8b --cluster 2xh100-sxm -tp 2

    commtax audit --diff before/ after/
    """
    output = Output(as_json)
    if given["tolerance"] is not None and not given["tolerance"] > 0:
        raise Refusal(f"tolerance={given['tolerance']}: a fraction above 0 is needed", "tolerance")
    if not given["model"]:
        told = [p.name for p in click.get_current_context().command.params if p.name and p.name not in ALONE]
        refuse(given, told, "belongs to a prediction: say with --model what ran")
    if given["html"]:
        check_writable(given["html"], "html")
    if given["diff"]:
        _diff(files, output, given)
    refuse(given, () if given["model"] else ("tolerance",), "belongs to a comparison: --model, or --diff of two runs")
    read = read_all(files)
    claim = _claim(read, output, given) if given["model"] else None
    if given["anonymise"]:
        _share(read, files, output, given["anonymise"])
    findings = audit_read(read, claim, given["baseline"])
    if given["html"]:
        from commtax.report.audit_page import audit_page

        write_page(given["html"], audit_page, findings, "audit")
    code = 1 if findings.verdict in (DISAGREE, FAULT) else 0
    output.answer(audit_documents.audit_document, auditing.show_audit, findings, code=code)


def _claim(read: Read, output: Output, given: Given) -> Claim:
    """What the command line says ran; where it does not say on which machine, the one that the trace names."""
    options = {name: value for name, value in given.items() if name not in (*ALONE, "baseline")}
    own = profile_of(options)
    if not options["cluster"] and (named := place_of(read)):
        options["cluster"] = named
        output.remarks.append(f"cluster {named}, as the trace lists its devices")
    place, phase = output.read(cluster_of(options, "the files do not tell where it ran: name it")), options.pop("phase")
    said = {name: options.pop(name) for name in ("batch", "context", "output_len")}
    tolerance = given["tolerance"] or SECONDS_TOLERANCE
    return Claim(unsettled(given["model"], place, {**options, "profile": own}).but(phase=phase), **said, tolerance=tolerance)


def _diff(files: tuple[Path, ...], output: Output, given: Given) -> NoReturn:
    """The second of two runs against the first."""
    if len(files) != 2:
        raise Refusal(f"diff: two runs are compared, each a file or a folder; {plural(len(files), 'path')} given", "diff")
    refuse(given, ("anonymise", "baseline"), "belongs to one run, not to --diff")
    before, after = (read_all([path]) for path in files)
    claim = _claim(after, output, given) if given["model"] else None
    found = difference(audit_read(before, claim), audit_read(after, claim), given["tolerance"] or TOLERANCE)
    if given["html"]:
        from commtax.report.audit_page import difference_page

        write_page(given["html"], difference_page, found, "audit")
    code = 1 if found.worse else 0
    output.answer(audit_differences.difference_document, audit_differences.show_difference, found, code=code)


def _share(read: Read, files: tuple[Path, ...], output: Output, out: Path) -> None:
    """Traces without names, and where they are."""
    refuse_overwriting(out, files, "anonymise")
    written = write_anonymous([trace for _, trace in read.traces], out)
    size = format_bytes(sum(path.stat().st_size for path in written))
    output.remarks.append(f"{plural(len(written), 'trace')} without names written to {out} ({size}): it can be shared")
