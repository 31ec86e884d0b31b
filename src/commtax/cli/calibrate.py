"""``commtax calibrate``."""

from pathlib import Path

import click

from commtax.calibrate import calibrate
from commtax.catalog.profile_files import write_profile
from commtax.cli.options import GivenOptions, add_verb_options
from commtax.cli.order import cluster_of
from commtax.cli.output import Output
from commtax.files import refuse_overwriting
from commtax.report import calibrating


@click.command("calibrate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **options: object) -> None:
    """Your own measurements as a profile: nccl-tests output, vllm bench results, rows of commtax measure.

    Says what changed, how well it fits, which rows are odd, and which further measurement would help most.

    commtax calibrate allreduce-*.txt serve-*.json --cluster 8xh100-sxm -tp 8 --out my-box.toml
    """
    output, given = Output(as_json), GivenOptions(options)
    place = output.read(cluster_of(given, "say where this was measured"))
    refuse_overwriting(out, files)
    fitted = calibrate(files, place, name=name or Path(out).stem, **given)
    write_profile(out, fitted.profile)
    output.answer(calibrating.calibration_document, calibrating.show_calibration, fitted, out)
