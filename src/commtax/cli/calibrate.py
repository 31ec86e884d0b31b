"""``commtax calibrate``."""

import json
from pathlib import Path

import click

from commtax.calibrate import calibrate
from commtax.cli.advice import answer_advice, is_advice, refuse_advice
from commtax.cli.options import GivenOptions, add_verb_options
from commtax.cli.order import cluster_of
from commtax.cli.output import Output
from commtax.files import refuse_overwriting, write_text
from commtax.report import calibrating
from commtax.statement import Refusal


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="FILE...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **options: object) -> None:
    """Your own measurements as a profile: nccl-tests output, vllm bench results, rows of commtax measure.

    Says what changed, how well it fits, which rows are odd, and which further measurement would help most.

    --next N says which N runs to make, with or without files; --for "plan …" which would settle a decision; --check whether the
    machine of a --profile is still what it was: exit 0 yes, 1 it drifted, 3 cannot be told.

    commtax calibrate allreduce-*.txt serve-*.json --cluster 8xh100-sxm -tp 8 --out my-box.json

    commtax calibrate --next 3 -m llama-3.1-70b -c 8xh100-sxm -tp 4 --concurrency 64
    """
    output, given = Output(as_json), GivenOptions(options)
    if is_advice(given):
        answer_advice(files, output, GivenOptions({**given, "out": out, "name": name}))
    refuse_advice(given)
    if not files:
        raise Refusal("file: at least one file of measurements is needed, or --next N: which to make")
    place = output.read(cluster_of(given, "say where this was measured"))
    refuse_overwriting(out, files)
    fitted = calibrate(files, place, name=name or Path(out).stem, **given)
    write_text(out, json.dumps(fitted.document, indent=1, ensure_ascii=False) + "\n")
    output.answer(calibrating.calibration_document, calibrating.show_calibration, fitted, out)
