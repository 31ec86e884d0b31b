"""What the options of ``commtax audit`` claim: a question, and the load that ran."""

from collections.abc import Callable
from dataclasses import fields

import click
from click.core import ParameterSource

from commtax.cli.options import CommandOptions, VerbSubject
from commtax.cli.order import cluster_of, profile_of
from commtax.cli.output import Output
from commtax.cli.pasting import fill_from_command
from commtax.runs.evidence.finding import Claim
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.thresholds import levels
from commtax.verbs.settling import resolve_question

LOOKED_AT = ("metrics", "every", "window", "header", "export_prometheus", "grafana")  # what belongs to a running server
ALONE = ("files", "model", "cluster", "diff", "anonymise", "html", "as_json", "tolerance", "nsys", "help", *LOOKED_AT)
"""What an audit without a claim takes."""
SECONDS_TOLERANCE = levels("runs.evidence.finding").seconds_tolerance


def paste_launch(output: Output, given: CommandOptions) -> bool:
    """Options that nobody gave, as a launch command has them; whether there is one."""
    if text := str(given.pop("pasted", "")):
        _, given.model = fill_from_command(text, str(given.model or ""), given, output.remarks, VerbSubject.SERVER)
    return bool(text)


def said_options() -> set[str]:
    context = click.get_current_context()
    unsaid = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {name for name in context.params if context.get_parameter_source(name) not in unsaid}


def claim_of(output: Output, given: CommandOptions, model_said: Callable[[], Model | str], place_said: str = "") -> Claim:
    """What the command line says ran, and on what; where it does not say one of them, as what is audited does."""
    options = CommandOptions({name: value for name, value in given.items() if name not in (*ALONE, "baseline")})
    options.cluster, most = given.cluster, options.pop("max_error")
    if most is not None and not most > 0:
        raise Refusal.of("a fraction above 0 is needed, such as 15%", max_error=most)
    own = profile_of(options)
    if not options.cluster and place_said:
        options.cluster = place_said
        output.remarks.append(f"cluster {place_said}, as the trace lists its devices")
    place = output.read(
        cluster_of(options, "name where it ran" if given.metrics else "the files do not tell where it ran: name it")
    )
    phase = options.pop("phase")
    said = {f.name: options.pop(f.name) for f in fields(Claim) if f.name in options}
    said |= {"tolerance": most or given.tolerance or SECONDS_TOLERANCE, "strict": most is not None}
    options.profile, options.sequence_parallel = own, options.sequence_parallel or None
    options.phase = "train" if phase == "train" else None  # which has engines of its own
    return Claim(resolve_question(given.model or model_said(), place, options).but(phase=phase), **said)
