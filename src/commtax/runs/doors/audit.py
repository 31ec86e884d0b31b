"""``commtax audit``."""

from pathlib import Path
from typing import NoReturn

import click

from commtax.cli.options import CommandOptions, Verb, add_verb_options
from commtax.cli.order import refuse
from commtax.cli.output import Output, write_page
from commtax.cli.progress import watch_reading
from commtax.files import check_writable, refuse_overwriting
from commtax.runs.audit import audit_read
from commtax.runs.audit.formats import kind_of
from commtax.runs.audit.read_files import ReadFiles, model_of, place_of, read_all
from commtax.runs.doors.claim_options import ALONE, LOOKED_AT, SECONDS_TOLERANCE, claim_of, paste_launch, said_options
from commtax.runs.evidence.finding import DISAGREE, FAULT, UNKNOWN, Audit, Claim
from commtax.runs.report import audit_words, auditing
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.units import format_bytes, plural

NO_VERDICT = 3  # nothing that was measured could be judged
DIFF_TOLERANCE = levels("runs.traces.run_differences").tolerance
TOLERANCES = f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}; of --diff {DIFF_TOLERANCE}]"


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path))
@add_verb_options("audit", tolerance={"help": TOLERANCES})
def audit_command(files: tuple[Path, ...], as_json: bool, **options: object) -> None:
    """What happened in a run, and who is to blame? Traces of all ranks, logs and benchmark results, by their content."""
    output, given = Output(as_json), CommandOptions(options)
    markdown = bool(given.pop("markdown"))
    if markdown and (given.diff or given.metrics):
        raise Refusal("markdown: is of the files of one run; two runs and running servers are told as text or JSON", "markdown")
    if not files and not given.metrics:
        raise Refusal("file: name what a run left behind, or a running server with --metrics URL")
    pasted = paste_launch(output, given)
    if given.tolerance is not None and not given.tolerance > 0:
        raise Refusal.of("a fraction above 0 is needed", tolerance=given.tolerance)
    claimed = bool(given.model or given.cluster)
    if not claimed:
        told = [p.name for p in click.get_current_context().command.params if p.name and p.name not in ALONE]
        refuse(given, told, "belongs to a prediction: say with --model what ran")
    if given.metrics:
        from commtax.runs.doors.server_metrics import answer_metrics

        answer_metrics(files, output, given, claimed)
    refuse(given, LOOKED_AT, "belongs to a running server: --metrics URL")
    if given.html:
        check_writable(given.html, "html")
    if given.diff:
        _diff(files, output, given, pasted)
    refuse(given, () if claimed else ("tolerance",), "belongs to a comparison: --model, or --diff of two runs")
    read = _read(files, given)
    claim = _claim(read, output, given, pasted) if claimed else None
    if given.anonymise:
        _share(read, files, output, given.anonymise)
    findings = audit_read(read, claim, given.baseline)
    if given.html:
        from commtax.runs.report.audit_page import audit_page

        write_page(given.html, audit_page, findings, "audit")
    _tell(output, findings, claimed, markdown)


def _tell(output: Output, findings: Audit, claimed: bool, markdown: bool) -> NoReturn:
    unjudged = NO_VERDICT if claimed and findings.verdict == UNKNOWN else 0
    code = 1 if findings.verdict in (DISAGREE, FAULT) else unjudged
    if markdown:
        from commtax.runs.report.audit_page import audit_markdown

        click.echo(audit_markdown(audit_words.audit_document(findings)), nl=False)
        raise SystemExit(code)
    output.answer(audit_words.audit_document, auditing.show_audit, findings, code=code)


def _claim(read: ReadFiles, output: Output, given: CommandOptions, pasted: bool) -> Claim:
    """Return what ran by the options; what neither an option nor a launch command names is taken from the files."""
    from commtax.runs.audit.claimed_run import by_launch, launched_options, logged_run

    launched = {} if pasted else launched_options(read, str(given.model or ""), {name: given.get(name) for name in said_options()})
    given.update({name: value for name, value in launched.items() if name in given})
    claim = claim_of(output, given, lambda: model_of(read), place_of(read))
    return claim if pasted else by_launch(read, logged_run(read).over(claim, said_options() | {*launched}), launched)


def _read(files: tuple[Path, ...], given: CommandOptions) -> ReadFiles:
    with watch_reading(files) as watch:
        return read_all(files, given.nsys, watch=watch, processes=0)


def _check_one_job(read: ReadFiles, option: str) -> ReadFiles:
    """What was read, if its traces are of one job."""
    if (jobs := sum(kind_of(job[0][1]).kind == "trace" for job in read.jobs)) > 1:
        raise Refusal(f"{option}: traces of {jobs} jobs are in it; give those of one", option)
    return read


def _diff(files: tuple[Path, ...], output: Output, given: CommandOptions, pasted: bool) -> NoReturn:
    from commtax.runs.report import audit_differences
    from commtax.runs.traces.run_differences import difference

    if len(files) != 2:
        raise Refusal.about(diff=f"two runs are compared, each a file or a folder; {plural(len(files), 'path')} given")
    refuse(given, ("anonymise", "baseline"), "belongs to one run, not to --diff")
    before, after = (_check_one_job(_read((path,), given), "diff") for path in files)
    claim = _claim(after, output, given, pasted) if given.model or given.cluster else None
    found = difference(audit_read(before, claim), audit_read(after, claim), given.tolerance or DIFF_TOLERANCE)
    if given.html:
        from commtax.runs.report.audit_page import difference_page

        write_page(given.html, difference_page, found, "audit")
    code = 1 if found.worse else 0
    output.answer(audit_differences.difference_document, audit_differences.show_difference, found, code=code)


def _share(read: ReadFiles, files: tuple[Path, ...], output: Output, out: Path) -> None:
    from commtax.runs.audit.anonymising import write_anonymous

    refuse_overwriting(out, files, "anonymise")
    _check_one_job(read, "anonymise")
    written = write_anonymous([trace for _, trace in read.traces], out)
    size = format_bytes(sum(path.stat().st_size for path in written))
    output.remarks.append(f"{plural(len(written), 'trace')} without names written to {out} ({size}): it can be shared")
