"""``commtax calibrate``."""

from pathlib import Path

import click

from commtax.calibrate import calibrate
from commtax.catalog.profile_files import load_profile, write_profile
from commtax.cli.advice import answer_advice, is_advice, refuse_advice
from commtax.cli.options import GivenOptions, add_verb_options
from commtax.cli.order import PLACE, cluster_of
from commtax.cli.output import Output
from commtax.cli.pasting import expand_cluster
from commtax.files import refuse_overwriting
from commtax.launch.launch_options import read_pasted
from commtax.report import calibrating
from commtax.statement import Refusal


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="FILE|DIR...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **options: object) -> None:
    """Your own measurements as a profile: nccl-tests output, rows of commtax measure, results of serving benchmarks, traces.

    Results of vllm bench, sglang.bench_serving and bench_one_batch, trtllm-bench, AIPerf, GenAI-Perf and GuideLLM: of closed loops,
    of request rates (TPOT alone) and of static batches. What was served is told by --from, or by a launch script or a server's log
    beside the results; a folder is a deployment of its own, and what files say must agree.

    A profiler's trace of a few served steps (PyTorch, Nsight Systems, rocprofv3) tells kernels apart from host: products, experts,
    attention, small kernels, collectives and what the GPU waits for each move their own constants.

    Says what changed, how well it fits, which rows are odd, and which further measurement would help most.

    --next N says which N runs to make, with or without files; --for "plan …" which would settle a decision; --check whether the
    machine of a --profile is still what it was: exit 0 yes, 1 it drifted, 3 cannot be told.

    commtax calibrate allreduce-*.txt serve-*.json --cluster 8xh100-sxm --from "vllm serve MODEL -tp 8 --max-num-seqs 256"

    commtax calibrate runs/tp4 runs/tp8-ep --cluster 8xh100-sxm --out my-box.toml

    commtax calibrate --next 3 -m llama-3.1-70b -c 8xh100-sxm -tp 4 --concurrency 64
    """
    output, given = Output(as_json), GivenOptions(options)
    if is_advice(given):
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
