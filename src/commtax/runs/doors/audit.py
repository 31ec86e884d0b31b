"""``commtax audit``, and what its options claim: a question, and the load that ran."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from commtax.cli.options import CommandOptions, Verb, VerbSubject, add_verb_options
from commtax.cli.order import cluster_of, profile_of, refuse
from commtax.cli.output import Output, write_page
from commtax.cli.pasting import fill_from_command
from commtax.cli.progress import watch_reading
from commtax.files import check_writable, refuse_overwriting
from commtax.runs.audit import audit_read
from commtax.runs.audit.formats import kind_of
from commtax.runs.audit.read_files import ReadFiles, model_of, place_of, read_all
from commtax.runs.evidence.finding import DISAGREE, FAULT, UNKNOWN, Audit, Claim
from commtax.runs.report import audit_words, auditing
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.units import format_bytes, plural
from commtax.verbs.settling import resolve_question

LOOKED_AT = ("metrics", "every", "window", "header", "export_prometheus", "grafana")  # what belongs to a running server
ALONE = ("files", "model", "cluster", "diff", "anonymise", "html", "as_json", "tolerance", "nsys", "help", *LOOKED_AT)
"""What an audit without a claim takes."""
SECONDS_TOLERANCE = levels("runs.evidence.finding").seconds_tolerance

NO_VERDICT = 3  # nothing that was measured could be judged
DIFF_TOLERANCE = levels("runs.traces.run_differences").tolerance
TOLERANCES = f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}; of --diff {DIFF_TOLERANCE}]"


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path))
@add_verb_options("audit", tolerance={"help": TOLERANCES})
def audit_command(files: tuple[Path, ...], as_json: bool, **flags: object) -> None:
    """Report what happened in a run, and who is to blame: traces of all ranks, logs and benchmark results, by their content."""
    output, options = Output(as_json), CommandOptions(flags)
    markdown = bool(options.pop("markdown"))
    if markdown and (options.diff or options.metrics):
        raise Refusal("markdown: is of the files of one run; two runs and running servers are told as text or JSON", "markdown")
    if not files and not options.metrics:
        raise Refusal("file: name what a run left behind, or a running server with --metrics URL")
    pasted = paste_launch(output, options)
    if options.tolerance is not None and not options.tolerance > 0:
        raise Refusal.of("a fraction above 0 is needed", tolerance=options.tolerance)
    claimed = bool(options.model or options.cluster)
    if not claimed:
        names = [p.name for p in click.get_current_context().command.params if p.name and p.name not in ALONE]
        refuse(options, names, "belongs to a prediction: say with --model what ran")
    if options.metrics:
        from commtax.runs.doors.server_metrics import answer_metrics

        answer_metrics(files, output, options, partial(claim_of, output, options) if claimed else None)
    refuse(options, LOOKED_AT, "belongs to a running server: --metrics URL")
    if options.html:
        check_writable(options.html, "html")
    if options.diff:
        _diff(files, output, options, pasted)
    refuse(options, () if claimed else ("tolerance",), "belongs to a comparison: --model, or --diff of two runs")
    read = _read(files, options)
    claim = _claim(read, output, options, pasted) if claimed else None
    if options.anonymise:
        _share(read, files, output, options.anonymise)
    findings = audit_read(read, claim, options.baseline)
    if options.html:
        from commtax.runs.report.audit_page import audit_page

        write_page(options.html, audit_page, findings, "audit")
    _tell(output, findings, claimed, markdown)


def _tell(output: Output, findings: Audit, claimed: bool, markdown: bool) -> NoReturn:
    unjudged = NO_VERDICT if claimed and findings.verdict == UNKNOWN else 0
    code = 1 if findings.verdict in (DISAGREE, FAULT) else unjudged
    if markdown:
        from commtax.runs.report.audit_page import audit_markdown

        click.echo(audit_markdown(audit_words.audit_document(findings)), nl=False)
        raise SystemExit(code)
    output.answer(audit_words.audit_document, auditing.show_audit, findings, code=code)


def _claim(read: ReadFiles, output: Output, options: CommandOptions, pasted: bool) -> Claim:
    """Return the claim by options and launch commands, completed from the files."""
    from commtax.runs.audit.claimed_run import by_launch, launched_options, logged_run

    stated = {name: options.get(name) for name in stated_options()}
    launched = {} if pasted else launched_options(read, str(options.model or ""), stated)
    options.update({name: value for name, value in launched.items() if name in options})
    claim = claim_of(output, options, lambda: model_of(read), place_of(read))
    return claim if pasted else by_launch(read, logged_run(read).over(claim, {*stated, *launched}), launched)


def _read(files: tuple[Path, ...], options: CommandOptions) -> ReadFiles:
    with watch_reading(files) as watch:
        return read_all(files, options.nsys, watch=watch, processes=0)


def _check_one_job(read: ReadFiles, option: str) -> ReadFiles:
    """Return what was read, if its traces are of one job."""
    if (jobs := sum(kind_of(job[0][1]).kind == "trace" for job in read.jobs)) > 1:
        raise Refusal(f"{option}: traces of {jobs} jobs are in it; give those of one", option)
    return read


def _diff(files: tuple[Path, ...], output: Output, options: CommandOptions, pasted: bool) -> NoReturn:
    from commtax.runs.report import audit_differences
    from commtax.runs.traces.run_differences import difference

    if len(files) != 2:
        raise Refusal.about(diff=f"two runs are compared, each a file or a folder; {plural(len(files), 'path')} given")
    refuse(options, ("anonymise", "baseline"), "belongs to one run, not to --diff")
    before, after = (_check_one_job(_read((path,), options), "diff") for path in files)
    claim = _claim(after, output, options, pasted) if options.model or options.cluster else None
    changes = difference(audit_read(before, claim), audit_read(after, claim), options.tolerance or DIFF_TOLERANCE)
    if options.html:
        from commtax.runs.report.audit_page import difference_page

        write_page(options.html, difference_page, changes, "audit")
    code = 1 if changes.worse else 0
    output.answer(audit_differences.difference_document, audit_differences.show_difference, changes, code=code)


def _share(read: ReadFiles, files: tuple[Path, ...], output: Output, out: Path) -> None:
    from commtax.runs.audit.anonymising import write_anonymous

    refuse_overwriting(out, files, "anonymise")
    _check_one_job(read, "anonymise")
    written = write_anonymous([trace for _, trace in read.traces], out)
    size = format_bytes(sum(path.stat().st_size for path in written))
    output.remarks.append(f"{plural(len(written), 'trace')} without names written to {out} ({size}): it can be shared")


def paste_launch(output: Output, options: CommandOptions) -> bool:
    """Fill options that nobody gave from a pasted launch command, and return whether there is one."""
    if text := str(options.pop("pasted", "")):
        _, options.model = fill_from_command(text, str(options.model or ""), options, output.remarks, VerbSubject.SERVER)
    return bool(text)


def stated_options() -> set[str]:
    context = click.get_current_context()
    unsaid = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {name for name in context.params if context.get_parameter_source(name) not in unsaid}


def claim_of(output: Output, options: CommandOptions, model_of_files: Callable[[], Model | str], place_of_files: str = "") -> Claim:
    """Return the claim of the command line, completed by what is audited where it names no model or cluster."""
    settings = CommandOptions({name: value for name, value in options.items() if name not in (*ALONE, "baseline")})
    settings.cluster, most = options.cluster, settings.pop("max_error")
    if most is not None and not most > 0:
        raise Refusal.of("a fraction above 0 is needed, such as 15%", max_error=most)
    profile = profile_of(settings)
    if not settings.cluster and place_of_files:
        settings.cluster = place_of_files
        output.remarks.append(f"cluster {place_of_files}, as the trace lists its devices")
    why = "name where it ran" if options.metrics else "the files do not tell where it ran: name it"
    place = output.read(cluster_of(settings, why))
    phase = settings.pop("phase")
    workload = {f.name: settings.pop(f.name) for f in fields(Claim) if f.name in settings}
    workload |= {"tolerance": most or options.tolerance or SECONDS_TOLERANCE, "strict": most is not None}
    settings.profile, settings.sequence_parallel = profile, settings.sequence_parallel or None
    settings.phase = "train" if phase == "train" else None  # which has engines of its own
    return Claim(resolve_question(options.model or model_of_files(), place, settings).but(phase=phase), **workload)
