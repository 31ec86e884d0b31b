"""``commtax measure serve`` and ``commtax measure experiment``: live studies."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from commtax import catalog
from commtax.cli.measure import bar, need_torch, ranks_named, weights_of
from commtax.cli.options import listed
from commtax.cli.output import Output
from commtax.files import write_text
from commtax.statement import Refusal
from commtax_lab.report.live import show_serving

DEMONSTRATION = Path(__file__).parents[1] / "study" / "demonstration"
"""What a study runs when nobody names a model: a Llama of 110 million random weights, for minutes on two cores."""


@click.command("serve")
@listed("measure-serve")
def serve_command(
    model: str,
    random_model: str,
    request_rate: tuple[float, ...],
    num_prompts: int,
    max_num_seqs: int,
    input_len: str,
    output_len: str,
    lost_after: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve requests that come at random for real, and hold their times against the simulator's.

    commtax measure serve --random llama-3.2-1b --layers 1 -tp 1 --request-rate 0.5,1 --num-prompts 20
    """
    from commtax.measure.job import Job
    from commtax_lab.study import live
    from commtax_lab.study.predicting import compared

    inputs, outputs = catalog.lengths(input_len, "inputs", "input_len"), catalog.lengths(output_len, "outputs", "output_len")
    job = Job(**weights_of(model, random_model or ("" if model else str(DEMONSTRATION))), **options)
    service = live.Service(job, inputs, outputs, request_rate, num_prompts, max_num_seqs).settled()
    with ranks_named(), bar("sweeps and runs", live.stages(service), as_json) as advance:
        seen = live.run(service, progress=advance, lost_s=lost_after)
    Output(as_json).answer(dict, show_serving, compared(service, seen))


@click.command("experiment")
@listed("measure-experiment")
def experiment_command(
    model: str,
    random_model: str,
    tp: list[int],
    out: str,
    merged: tuple[str, ...],
    lost_after: float,
    as_json: bool,
    **options: Any,
) -> None:
    """The whole TP study as one command: latency, serving, batch scaling, a profile; a report with the questions answered.

    commtax measure experiment --random llama-3.2-1b --layers 4 --quick --out study
    """
    from commtax_lab.report import experiment as reporting
    from commtax_lab.study.driving import Asked
    from commtax_lab.study.experiment import experiment, merge

    folder, builtin = Path(out), options["engine"] == "builtin"
    if merged:
        boxes = merge([Path(m) for m in merged])
        folder.mkdir(parents=True, exist_ok=True)
    else:
        if not model and not random_model:  # for another engine it is a folder like any other
            model, random_model = ("", str(DEMONSTRATION)) if builtin else (str(DEMONSTRATION), "")
        weights = weights_of(model, random_model)
        if builtin:
            need_torch()
        asked = Asked(folder, degrees=tuple(tp), lost_s=lost_after, **weights, **options)
        try:
            with ranks_named():
                boxes = [experiment(asked, partial(click.echo, err=True))]  # a study takes minutes to hours
        except KeyboardInterrupt:
            click.echo(f"finished runs are kept in {folder}: the same command goes on with the others", err=True)
            raise
    try:
        charts = reporting.charts(boxes, folder)
        write_text(folder / "report.md", reporting.markdown(boxes, charts), "out")
        document = {"schema": "commtax.experiments/1", "boxes": boxes} if merged else boxes[0]
        code = 1 if any(box["failed"] for box in boxes) else 0
        Output(as_json).answer(lambda *_: document, reporting.show, boxes, folder, code=code)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if not merged:
            raise
        # documents that came from files: one with a part missing, or of another kind, is bad input and no fault of the report
        text = f"merge {', '.join(repr(m) for m in merged)}: an experiment.json has a part that is missing or of the wrong form"
        raise Refusal(f"{text} ({type(error).__name__}: {error}); run that experiment again, or leave it out") from None
