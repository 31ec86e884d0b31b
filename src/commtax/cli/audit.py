"""``commtax audit``."""

from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import click

from commtax.audit import audit_read
from commtax.audit.anonymising import write_anonymous
from commtax.audit.read_files import ReadFiles, model_of, place_of, read_all
from commtax.cli.options import GivenOptions, Verb, add_verb_options
from commtax.cli.order import cluster_of, profile_of, refuse
from commtax.cli.output import Output, write_page
from commtax.cli.progress import watch_reading
from commtax.evidence.finding import DISAGREE, FAULT, UNKNOWN, Claim
from commtax.evidence.thresholds import levels
from commtax.files import check_writable, refuse_overwriting
from commtax.report import audit_differences, audit_words, auditing
from commtax.statement import Refusal
from commtax.traces.run_differences import difference
from commtax.traces.trace import Trace
from commtax.units import format_bytes, plural
from commtax.verbs.settling import resolve_question

ALONE = ("files", "model", "cluster", "diff", "anonymise", "html", "as_json", "tolerance", "nsys", "help")
"""What an audit without a claim takes."""
NO_VERDICT = 3  # nothing that was measured could be judged
SECONDS_TOLERANCE = levels("evidence.finding").seconds_tolerance
DIFF_TOLERANCE = levels("traces.run_differences").tolerance
TOLERANCES = f"Relative, for seconds.  [default: {SECONDS_TOLERANCE}; of --diff {DIFF_TOLERANCE}]"


@click.command("audit", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path(path_type=Path))
@add_verb_options("audit", tolerance={"help": TOLERANCES})
def audit_command(files: tuple[Path, ...], as_json: bool, **options: object) -> None:
    """What happened in a run, and who is to blame? Traces of all ranks, logs and benchmark results, by their content.

    With --model also whether it should have: every count, size and time against the prediction.

    Exit 0: it agrees (without --model: nothing is off); 1: something disagrees, or somebody is to blame; 2: bad input;
    3: no verdict, because no measured figure could be held against its prediction.

    commtax audit traces/

    commtax audit vllm.log rank*.json.gz --model llama-3.1-8b --cluster 2xh100-sxm -tp 2

    commtax audit --diff before/ after/
    """
    output, given = Output(as_json), GivenOptions(options)
    if given.tolerance is not None and not given.tolerance > 0:
        raise Refusal.of("a fraction above 0 is needed", tolerance=given.tolerance)
    claimed = bool(given.model or given.cluster)
    if not claimed:
        told = [p.name for p in click.get_current_context().command.params if p.name and p.name not in ALONE]
        refuse(given, told, "belongs to a prediction: say with --model what ran")
    if given.html:
        check_writable(given.html, "html")
    if given.diff:
        _diff(files, output, given)
    refuse(given, () if claimed else ("tolerance",), "belongs to a comparison: --model, or --diff of two runs")
    read = _read(files, given)
    claim = _claim(read, output, given) if claimed else None
    if given.anonymise:
        _share(read, files, output, given.anonymise)
    findings = audit_read(read, claim, given.baseline)
    if given.html:
        from commtax.report.audit_page import audit_page

        write_page(given.html, audit_page, findings, "audit")
    unjudged = NO_VERDICT if claimed and findings.verdict == UNKNOWN else 0
    code = 1 if findings.verdict in (DISAGREE, FAULT) else unjudged
    output.answer(audit_words.audit_document, auditing.show_audit, findings, code=code)


def _claim(read: ReadFiles, output: Output, given: GivenOptions) -> Claim:
    """What the command line says ran, and on what; where it does not say one of them, as the files do."""
    options = GivenOptions({name: value for name, value in given.items() if name not in (*ALONE, "baseline")})
    options.cluster, most = given.cluster, options.pop("max_error")
    if most is not None and not most > 0:
        raise Refusal.of("a fraction above 0 is needed, such as 15%", max_error=most)
    own = profile_of(options)
    if not options.cluster and (named := place_of(read)):
        options.cluster = named
        output.remarks.append(f"cluster {named}, as the trace lists its devices")
    place, phase = output.read(cluster_of(options, "the files do not tell where it ran: name it")), options.pop("phase")
    said = {f.name: options.pop(f.name) for f in fields(Claim) if f.name in options}
    said |= {"tolerance": most or given.tolerance or SECONDS_TOLERANCE, "strict": most is not None}
    options.profile, options.sequence_parallel = own, options.sequence_parallel or None
    options.phase = "train" if phase == "train" else None  # which has engines of its own
    return Claim(resolve_question(given.model or model_of(read), place, options).but(phase=phase), **said)


def _read(files: tuple[Path, ...], given: GivenOptions) -> ReadFiles:
    """What the files say, read on all cores and with a bar on a terminal."""
    with watch_reading(files) as watch:
        return read_all(files, given.nsys, watch=watch, processes=0)


def _check_one_job(read: ReadFiles, option: str) -> ReadFiles:
    """What was read, if its traces are of one job."""
    if (jobs := sum(isinstance(job[0][1], Trace) for job in read.jobs)) > 1:
        raise Refusal(f"{option}: traces of {jobs} jobs are in it; give those of one", option)
    return read


def _diff(files: tuple[Path, ...], output: Output, given: GivenOptions) -> NoReturn:
    """The second of two runs against the first."""
    if len(files) != 2:
        raise Refusal.about(diff=f"two runs are compared, each a file or a folder; {plural(len(files), 'path')} given")
    refuse(given, ("anonymise", "baseline"), "belongs to one run, not to --diff")
    before, after = (_check_one_job(_read((path,), given), "diff") for path in files)
    claim = _claim(after, output, given) if given.model or given.cluster else None
    found = difference(audit_read(before, claim), audit_read(after, claim), given.tolerance or DIFF_TOLERANCE)
    if given.html:
        from commtax.report.audit_page import difference_page

        write_page(given.html, difference_page, found, "audit")
    code = 1 if found.worse else 0
    output.answer(audit_differences.difference_document, audit_differences.show_difference, found, code=code)


def _share(read: ReadFiles, files: tuple[Path, ...], output: Output, out: Path) -> None:
    """Traces without names, and where they are."""
    refuse_overwriting(out, files, "anonymise")
    _check_one_job(read, "anonymise")
    written = write_anonymous([trace for _, trace in read.traces], out)
    size = format_bytes(sum(path.stat().st_size for path in written))
    output.remarks.append(f"{plural(len(written), 'trace')} without names written to {out} ({size}): it can be shared")
