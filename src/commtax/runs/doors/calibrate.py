"""``commtax calibrate``; with ``--next``, ``--for`` or ``--check`` what to measure, and whether a machine is still what it was."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypedDict

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


def answer_advice(files: Sequence[Path], output: Output, given: CommandOptions) -> NoReturn:
    """What the options ask for, and nothing beside it."""
    written = [name for name in WRITES if not (given.check and name in PROFILED)]
    refuse(given, written, "belongs to a profile that is written, not to --next, --for or --check")
    if given.check:
        refuse(given, ("next_runs", "decision"), "cannot be combined with --check")
        _check(files, output, given)
    if given.decision:
        refuse(given, ("model", PLACE[0], "tp", *LOAD, "pasted"), "is said by the plan command of --for")
        _decide(files, output, given)
    text, name, wanted = str(given.pasted or ""), str(given.model or ""), int(given.pop("next_runs"))
    if text:
        _, name = fill_from_command(text, name, given, output.remarks, VerbSubject.LOOP)
    if not name:
        raise Refusal("model: say with --model what is served, or paste its launch command with --from")
    own, place = profile_of(given), output.read(cluster_of(given, "say where it will run"))
    own = _taught(files, given, place, own)
    source = click.get_current_context().get_parameter_source
    asked = [x for x in LOAD if source(x) not in (ParameterSource.DEFAULT, None) or (text and given[x])]
    words = {key: given[key] for key in ("pp", "dp", "ep", "dtype", *LOAD) if given[key]}
    runs = BillOptions(tp=given.tp or 1, engine=given.engine or "", profile=own)
    question = resolve_question(name, place, {**words, **runs})
    output.answer(calibrating.advice_document, calibrating.show_advice, advise(question, wanted, asked))


def _decide(files: Sequence[Path], output: Output, given: CommandOptions) -> NoReturn:
    text = str(given.decision)
    from commtax.cli.plan import goal_of, plan_command

    words = shlex.split(text)
    words = words[1:] if words[:1] == ["commtax"] else words
    if words[:1] != ["plan"]:
        raise Refusal(f"for '{text[:40]}': a plan command is needed, such as \"plan llama-3.1-70b -c 8xh100-sxm --ttft 1s\"", "for")
    with plan_command.make_context("plan", normalise(words[1:])) as context:
        options = dict(context.params)
        order = read_order(str(options.pop("model") or ""), CommandOptions(options), "plan", VerbSubject.SEARCH)
        if order.question.trains or order.options.request_rate is not None or order.others:
            raise Refusal(
                "for: plans to serve a closed loop on one cluster are weighed, no training, rates or several clusters", "for"
            )
        goal = with_prices([goal_of(order)], order.options.price)[0]
    output.remarks += order.output.remarks
    own = profile_of(given) or goal.profile
    searched = best_serving(goal.but(profile=_taught(files, given, goal.cluster, own, goal.model.key)))
    if not len(searched.plans):
        raise Refusal("for: no plan keeps the limits, whatever is measured (commtax plan says what would have to change)", "for")
    found = settle_decision(searched, int(given.next_runs or USUAL_RUNS))
    output.answer(calibrating.settlement_document, calibrating.show_settlement, found)


def _check(files: Sequence[Path], output: Output, given: CommandOptions) -> NoReturn:
    if not files:
        raise Refusal("check: at least one file of new runs is needed")
    own = profile_of(given)
    if own is None:
        raise Refusal("check: name with --profile what was calibrated")
    if not own.lessons:
        raise Refusal(f"check: profile {own.name} holds no runs of an engine; calibrate it on some", "profile")
    place = output.read(cluster_of(given, "say where this was measured"))
    found = check_drift(read_runs(files, place, known=own, **_said(given)), own)
    output.answer(calibrating.drift_document, calibrating.show_drift, found, own, code=EXIT_CODES[found.verdict])


def _taught(files: Sequence[Path], given: CommandOptions, place: Cluster, own: Profile | None, model: str = "") -> Profile | None:
    """What is known after the files."""
    if not files:
        return own
    learnt = learn(read_runs(files, place, **_said(given, model)), own or Profile("these files", chip={"key": place.chip.key}))
    return replace(learnt.profile, lessons=(*(own.lessons if own else ()), *learnt.profile.lessons))


class SaidOfFiles(TypedDict):
    """What files do not say themselves."""

    launch: str
    model: str
    tp: int
    engine: str
    batch: int
    context: int


def _said(given: CommandOptions, model: str = "") -> SaidOfFiles:
    name, size = str(given.model or model), int(given.tp or 0)
    batch, context = int(given.batch or 0), int(given.input_len or 0)
    launch, engine = str(given.pasted or ""), str(given.engine or "")
    return SaidOfFiles(launch=launch, model=name, tp=size, engine=engine, batch=batch, context=context)


def refuse_advice(given: CommandOptions) -> None:
    known = [name for name in ADVISED if name in taken_by("calibrate")]
    refuse(given, known, "belongs to --next, --for or --check")
    for name in known:
        given.pop(name, None)


@click.command("calibrate", cls=Verb)
@click.argument("files", nargs=-1, metavar="FILE|DIR...", type=click.Path(path_type=Path))
@add_verb_options("calibrate")
def calibrate_command(files: tuple[Path, ...], out: str, name: str, as_json: bool, **options: object) -> None:
    """Your own measurements as a profile: nccl-tests output, rows of commtax measure, results of serving benchmarks, traces."""
    output, given = Output(as_json), CommandOptions(options)
    if given.next_runs or given.decision or given.check:
        answer_advice(files, output, CommandOptions({**given, "out": out, "name": name}))
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
