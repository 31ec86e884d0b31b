"""``commtax calibrate``; with ``--next``, ``--for`` or ``--check`` what to measure, and whether a machine is still what it was."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from commtax.catalog.profile_files import load_profile, write_profile
from commtax.cli.options import CommandOptions, Verb, VerbSubject, add_verb_options
from commtax.cli.order import PLACE, cluster_of, profile_of, refuse
from commtax.cli.order import read as read_order
from commtax.cli.output import Output
from commtax.cli.pasting import expand_cluster, fill_from_command
from commtax.files import refuse_overwriting
from commtax.launch.launch_options import read_pasted
from commtax.options import taken_by
from commtax.planner import best_serving
from commtax.planner.deciding import settle_decision
from commtax.planner.money import with_prices
from commtax.runs.calibrate.advising import LOAD, advise
from commtax.runs.calibrate.calibration import calibrate, read_runs
from commtax.runs.calibrate.drift import check_drift
from commtax.runs.calibrate.learning import learn
from commtax.runs.calibrate.measurements import Measured
from commtax.runs.report import calibrating
from commtax.spec import Cluster, Profile
from commtax.spelling import normalise
from commtax.statement import Refusal
from commtax.verbs.keywords import BillOptions
from commtax.verbs.settling import resolve_question

EXIT_CODES = {"same": 0, "drifted": 1, "unknown": 3}
ADVISED = ("next_runs", "decision", "check", "pp", "dp", "ep", "dtype")  # options that belong to advice and checks alone
WRITES = ("out", "name", "library", "batch")  # … and that belong to a profile that is written
PROFILED = ("batch",)  # of these, what a trace that is checked may not say itself
USUAL_RUNS = 3


def answer_advice(files: Sequence[Path], output: Output, options: CommandOptions) -> NoReturn:
    """Answer --next, --for or --check, and nothing beside it."""
    written = [name for name in WRITES if not (options.check and name in PROFILED)]
    refuse(options, written, "belongs to a profile that is written, not to --next, --for or --check")
    if options.check:
        refuse(options, ("next_runs", "decision"), "cannot be combined with --check")
        if not files:
            raise Refusal("check: at least one file of new runs is needed")
        calibrated = profile_of(options)
        if calibrated is None:
            raise Refusal("check: name with --profile what was calibrated")
        if not calibrated.lessons:
            raise Refusal(f"check: profile {calibrated.name} holds no runs of an engine; calibrate it on some", "profile")
        cluster = output.read(cluster_of(options, "say where this was measured"))
        drift = check_drift(_read_stated(files, cluster, options, profile=calibrated), calibrated)
        output.answer(calibrating.drift_document, calibrating.show_drift, drift, calibrated, code=EXIT_CODES[drift.verdict])
    if options.decision:
        refuse(options, ("model", PLACE[0], "tp", *LOAD, "pasted"), "is said by the plan command of --for")
        _decide(files, output, options)
    text, name, wanted = str(options.pasted or ""), str(options.model or ""), int(options.pop("next_runs"))
    if text:
        _, name = fill_from_command(text, name, options, output.remarks, VerbSubject.LOOP)
    if not name:
        raise Refusal("model: say with --model what is served, or paste its launch command with --from")
    calibrated, place = profile_of(options), output.read(cluster_of(options, "say where it will run"))
    source = click.get_current_context().get_parameter_source
    profile = _taught(files, options, place, calibrated)
    named = [x for x in LOAD if source(x) not in (ParameterSource.DEFAULT, None) or (text and options[x])]
    words = {key: options[key] for key in ("pp", "dp", "ep", "dtype", *LOAD) if options[key]}
    runs = BillOptions(tp=options.tp or 1, engine=options.engine or "", profile=profile)
    question = resolve_question(name, place, {**words, **runs})
    output.answer(calibrating.advice_document, calibrating.show_advice, advise(question, wanted, named))


def _decide(files: Sequence[Path], output: Output, options: CommandOptions) -> NoReturn:
    text = str(options.decision)
    from commtax.cli.plan import goal_of, plan_command

    words = shlex.split(text)
    words = words[1:] if words[:1] == ["commtax"] else words
    if words[:1] != ["plan"]:
        raise Refusal(f"for '{text[:40]}': a plan command is needed, such as \"plan llama-3.1-70b -c 8xh100-sxm --ttft 1s\"", "for")
    with plan_command.make_context("plan", normalise(words[1:])) as context:
        params = dict(context.params)
        order = read_order(str(params.pop("model") or ""), CommandOptions(params), "plan", VerbSubject.SEARCH)
        if order.question.trains or order.options.request_rate is not None or order.others:
            weighed = "plans to serve a closed loop on one cluster are weighed"
            raise Refusal(f"for: {weighed}, no training, rates or several clusters", "for")
        goal = with_prices([goal_of(order)], order.options.price)[0]
    output.remarks += order.output.remarks
    profile = profile_of(options) or goal.profile
    searched = best_serving(goal.but(profile=_taught(files, options, goal.cluster, profile, goal.model.key)))
    if not len(searched.plans):
        raise Refusal("for: no plan keeps the limits, whatever is measured (commtax plan says what would have to change)", "for")
    settled = settle_decision(searched, int(options.next_runs or USUAL_RUNS))
    output.answer(calibrating.settlement_document, calibrating.show_settlement, settled)


def _taught(
    files: Sequence[Path], options: CommandOptions, place: Cluster, profile: Profile | None, model: str = ""
) -> Profile | None:
    """Return the profile with what the files teach."""
    if not files:
        return profile
    start = profile or Profile("these files", chip={"key": place.chip.key})
    learnt = learn(_read_stated(files, place, options, model), start)
    return replace(learnt.profile, lessons=(*(profile.lessons if profile else ()), *learnt.profile.lessons))


def _read_stated(
    files: Sequence[Path], place: Cluster, options: CommandOptions, model: str = "", profile: Profile | None = None
) -> tuple[Measured, ...]:
    """Read runs with the facts that options state and files may not."""
    name, size = str(options.model or model), int(options.tp or 0)
    batch, context = int(options.batch or 0), int(options.input_len or 0)
    facts = {"launch": str(options.pasted or ""), "engine": str(options.engine or "")}
    return read_runs(files, place, model=name, tp=size, batch=batch, context=context, profile=profile, **facts)


@click.command("calibrate", cls=Verb)
@click.argument("files", nargs=-1, metavar="FILE|DIR...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **flags: object) -> None:
    """Turn your measurements into a profile: nccl-tests output, rows of commtax measure, results of serving benchmarks, traces."""
    output, options = Output(as_json), CommandOptions(flags)
    if options.next_runs or options.decision or options.check:
        answer_advice(files, output, CommandOptions({**options, "out": out, "name": name}))
    advised = [option for option in ADVISED if option in taken_by("calibrate")]
    refuse(options, advised, "belongs to --next, --for or --check")
    for option in advised:
        options.pop(option, None)
    if not files:
        raise Refusal("file: at least one file of measurements is needed, or --next N: which to make")
    launch = str(options.pop("pasted", ""))
    if launch:
        expand_cluster(read_pasted(launch, str(options.model)), options, output.remarks)
    place = output.read(cluster_of(options)) if options.cluster else ""  # asked for with what else is missing
    loads = {key: value for key, value in options.items() if key not in PLACE}
    refuse_overwriting(out, files)
    profile = load_profile(loads.pop("profile", ()) or None)
    fitted = calibrate(files, place, launch=launch, name=name or Path(out).stem, profile=profile, **loads)
    write_profile(out, fitted.profile)
    output.answer(calibrating.calibration_document, calibrating.show_calibration, fitted, out)
