"""``commtax calibrate``."""

from pathlib import Path

import click

from commtax.catalog.profile_files import load_profile, write_profile
from commtax.cli.options import GivenOptions, Verb, add_verb_options
from commtax.cli.order import PLACE, cluster_of
from commtax.cli.output import Output
from commtax.cli.pasting import expand_cluster
from commtax.files import refuse_overwriting
from commtax.launch.launch_options import read_pasted
from commtax.runs.calibrate import calibrate
from commtax.runs.doors.advice import answer_advice, refuse_advice
from commtax.runs.report import calibrating
from commtax.statement import Refusal


@click.command("calibrate", cls=Verb)
@click.argument("files", nargs=-1, metavar="FILE|DIR...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **options: object) -> None:
    """Your own measurements as a profile: nccl-tests output, rows of commtax measure, results of serving benchmarks, traces."""
    output, given = Output(as_json), GivenOptions(options)
    if given.next_runs or given.decision or given.check:
        answer_advice(files, output, GivenOptions({**given, "out": out, "name": name}))
    refuse_advice(given)
    if not files:
        raise Refusal("file: at least one file of measurements is needed, or --next N: which to make")
    launch = str(given.pop("pasted", ""))
    if launch:
        expand_cluster(read_pasted(launch, str(given.model)), given, output.remarks)
    place = output.read(cluster_of(given)) if given.cluster else ""  # asked for with what else is missing
    loads = {key: value for key, value in given.items() if key not in PLACE}
    refuse_overwriting(out, files)
    own = load_profile(loads.pop("profile", ()) or None)
    fitted = calibrate(files, place, launch=launch, name=name or Path(out).stem, profile=own, **loads)
    write_profile(out, fitted.profile)
    output.answer(calibrating.calibration_document, calibrating.show_calibration, fitted, out)
