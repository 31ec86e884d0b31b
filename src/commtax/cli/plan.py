"""``commtax plan``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from commtax import catalog, counting
from commtax.catalog.loader import suggest
from commtax.catalog.techniques import techniques_on
from commtax.cli.options import CommandOptions, Verb, VerbSubject
from commtax.cli.order import Order, options_beside, refuse, verb_command
from commtax.cli.output import write_page
from commtax.cli.progress import METER, STOP, is_watched
from commtax.options import taken_by
from commtax.planner import StandingPlan, best_serving, best_training, serving_standing, training_standing
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.planner.money import with_prices
from commtax.planner.serving_search import usual_lengths
from commtax.planner.technique_sets import technique_sets_of, with_techniques_at_rate
from commtax.question import Question
from commtax.records import replace
from commtax.spec import SERVING_AXES, Plan
from commtax.statement import Refusal
from commtax.units import parse_seconds, parse_tokens, plural
from commtax.verbs.disaggregation import check_one_place
from commtax.verbs.keywords import PlanFleetOptions
from commtax.verbs.loads import split

if TYPE_CHECKING:
    from commtax.launch.flags import Launch
    from commtax.planner.fleet_trials import Trial

INTERRUPTED = 130  # the exit code
MOST_LISTED = 1000  # plans that are listed at most: a table that somebody may still read
Answer = TypeVar("Answer", ServingPlans, TrainPlans)


@click.command("plan", cls=Verb)
@verb_command("plan", VerbSubject.SEARCH)
def plan_command(order: Order) -> None:
    """Find the best parallelism plan for a cluster, and say why the others lost. Exit code 1: no plan is good."""
    options = order.options
    if not 1 <= options.top <= MOST_LISTED:
        nearest = 1 if options.top < 1 else MOST_LISTED
        raise Refusal.of(f"from 1 to {MOST_LISTED:,} plans are listed; nearest valid: {nearest}", (nearest,), top=options.top)
    for place in (*order.question.places, *order.others):
        order.output.read(place)
    if options.phase not in ("serve", "train"):
        raise Refusal.of(f"serve or train{suggest(options.phase, ('serve', 'train'))}", phase=options.phase)
    if options.emit:
        from commtax.launch.deployment import emitted_words

        able = emitted_words(order.question.trains)
        if order.options.emit not in able:
            raise Refusal.of(f"one of {', '.join(able)} here", able, emit=order.options.emit)
    if options.request_rate is not None:
        _fleets(order)
    refuse(options, options_beside("plan", "rate"), "belongs to --request-rate")
    if order.question.trains:
        _train(order)
    if order.others:
        _serve_on_several(order)
    _serve(order)


def _serve(order: Order) -> NoReturn:
    options, q = order.options, with_prices([goal_of(order)], order.options.price)[0]
    searched, speed = _time_search(lambda: best_serving(q))
    pasted = _stands(searched, order.launch) if order.launch else None
    if options.emit:
        rows, row = searched.answered
        order.output.emitted = _commands(order, replace(searched, plans=rows), row) if len(searched.plans) else {}
    if options.plot and len(searched.front):
        from commtax.report.view.pictures import plot_front

        plot_front(searched, Path(options.plot))
    elif options.plot:
        click.echo(f"plot: no plan is good, {options.plot} is not written", err=True)
    _answer(order, searched, pasted, speed)


def _serve_on_several(order: Order) -> NoReturn:
    from commtax.planner.several_clusters import best_of_several
    from commtax.report import several_clusters

    options = order.options
    refuse(options, ("plot", "html"), "is of one cluster")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked on one cluster; name one", "from")
    goal = goal_of(order)
    put = with_prices([goal.but(cluster=place) for place in (goal.cluster, *order.others)], options.price)
    ranked = best_of_several(put, options.objective or "")
    if options.emit:
        chosen = (ranked.waited or ranked).recommended  # the plan that the answer names first
        order.output.emitted = _commands(order, chosen.answer, chosen.row) if chosen else {}
    show, document = several_clusters.show_several, several_clusters.several_document
    order.output.answer(document, show, ranked, options.top, code=0 if ranked.plans else 1)


def goal_of(order: Order) -> Question:
    """Return the question with its lengths, limits and objective. Prices are not read yet."""
    options, q = order.options, order.question
    lengths, dtypes = _lengths_and_types(order)
    rule = "distributions are drawn from for a --request-rate; else a mean is needed"
    for name, length in PlanFleetOptions(input_len=lengths[0], output_len=lengths[1]).items():
        if isinstance(length, str):
            raise Refusal(f"{name} '{length}': {rule}", name)
    return q.but(
        input_len=lengths[0],
        output_len=lengths[1],
        technique_sets=technique_sets_of(options.techniques),
        workload=options.workload,
        ttft_s=_limit(options.ttft, "ttft"),
        tpot_s=_limit(options.tpot, "tpot"),
        confidence=options.confidence,
        margin=options.margin,
        objective=options.objective or "throughput",
        dtypes=dtypes,
        max_concurrency=options.max_concurrency,
        cost_of=options.cost_of,
        prefix_hit_rate=options.prefix_cache or 0.0,
    )


def _lengths_and_types(order: Order) -> tuple[tuple[int | str, int | str], tuple[str, ...]]:
    options = order.options
    input_len, output_len = usual_lengths(options.workload)
    dtypes = tuple(dict.fromkeys(options.dtype.split(",")))
    if len(dtypes) > 1 and "" in options.dtype.split(","):
        raise Refusal.of("a type is missing between the commas", dtype=options.dtype)
    input_len = input_len if options.input_len is None else options.input_len
    return (input_len, output_len if options.output_len is None else options.output_len), dtypes


def _limit(text: str, name: str) -> float:
    seconds = parse_seconds(text, name) if text else math.inf
    if not seconds > 0:
        raise Refusal(f"{name}_s={seconds}: a time above 0 is needed", f"{name}_s")
    return seconds


def _stands(searched: ServingPlans, launch: Launch) -> StandingPlan:
    """Rank the pasted plan: groups that share experts are one copy, and all others are replicas."""
    servers, pasted, experts = launch.servers, CommandOptions(launch.options), searched.question.model.experts
    sizes = CommandOptions(launch.axes)
    inner = sizes.dp
    if catalog.engine(launch.engine).sends.ep_is_tp_dp and inner > 1 and experts and pasted.ep is None:
        sizes.ep = sizes.tp * inner
    shared = experts is not None and sizes.ep > sizes.tp
    sizes.dp = inner if shared else 1
    plan: dict[str, int] = {axis: sizes[axis] for axis in SERVING_AXES}
    ahead = servers.prefill_workers
    prompts = Plan(servers.prefill_tp or 1, dp=servers.prefill_dp or 1, replicas=ahead) if ahead else None
    copies = servers.count * (1 if shared else inner)
    arguments = (searched, plan, copies, str(pasted.dtype or ""), int(pasted.concurrency or 0), prompts)
    return replace(serving_standing(*arguments, tuned=False), tuned=serving_standing(*arguments, tuned=True))


def _commands(order: Order, searched: ServingPlans, row: int) -> dict[str, str]:
    from commtax.planner.fleets import servers_of

    servers = servers_of(searched, row)
    return order.launched(servers.question, servers.copies, servers.prompts)


def _time_search(search: Callable[[], Answer]) -> tuple[Answer, str]:
    """Return the answer, and beside it how long it took, which differs from run to run."""
    start = time.process_time()
    searched = search()
    seconds = time.process_time() - start
    rate = searched.candidates / max(seconds, 1e-9)
    return searched, f"{searched.candidates:,} plans considered in {seconds:.2f} s of CPU time, {rate:,.0f} per second"


def _answer(order: Order, searched: ServingPlans | TrainPlans, pasted: StandingPlan | None, speed: str) -> NoReturn:
    from commtax.report import planning

    if order.options.html:
        from commtax.web.pages import plan_page

        write_page(order.options.html, plan_page, searched)
    counting.finish()
    order.output.aside = speed
    code = 0 if len(searched.plans) else 1
    order.output.answer(planning.plans_document, planning.show_plans, searched, order.options.top, pasted, code=code)


def _train(order: Order) -> NoReturn:
    options, q = order.options, order.question
    if order.others:
        raise Refusal.about(cluster="training plans are searched on one cluster; name one")
    if options.global_batch is None:
        raise Refusal.about(global_batch="training needs the sequences of a step, such as --global-batch 1024")
    length = q.kind.length if options.input_len is None else options.input_len
    batch, tokens = options.global_batch, parse_tokens(options.tokens, "tokens") if options.tokens else None
    put = [
        one.but(global_batch=batch, context=length, sequence_parallel=True, margin=options.margin) for one in (q, *order.engines)
    ]
    q, *others = (with_prices([one.but(train_tokens=tokens) if tokens else one], options.price)[0] for one in put)
    if others:
        _train_with_several(order, [q, *others])
    searched, speed = _time_search(lambda: best_training(q))
    pasted = _trains(searched, order.launch) if order.launch else None
    if options.emit:
        order.output.emitted = order.commands(searched.step_of(searched.plans, searched.recommended)) if len(searched.plans) else {}
    _answer(order, searched, pasted, speed)


def _train_with_several(order: Order, put: list[Question]) -> NoReturn:
    from commtax.report.planning import engines_document, show_engines

    refuse(order.options, ("plot", "html", "emit"), "is of one engine; name one with --engine")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked with its own engine; leave --engine out", "from")
    answers = [best_training(q) for q in put]
    code = 0 if any(len(a.plans) for a in answers) else 1
    order.output.answer(engines_document, show_engines, answers, order.options.top, code=code)


def _trains(searched: TrainPlans, launch: Launch) -> StandingPlan:
    pasted, q = CommandOptions(launch.options), searched.question
    run = q.but(
        **launch.axes,
        micro_batch=int(pasted.micro_batch or 1),
        zero=q.engine.trains.zero if pasted.zero is None else int(pasted.zero),
        recompute=pasted.recompute or "none",
        schedule=pasted.schedule or "1f1b",
        chunks=launch.chunks_of(q.model.num_layers) or 1,
        sequence_parallel=pasted.sequence_parallel is not None or q.engine.trains.sequence_parallel,
        shard=int(pasted.hsdp or 0),
        async_axes=tuple(str(pasted.async_axes).split(",")) if pasted.async_axes else None,
    )
    return training_standing(searched, run)


def _fleets(order: Order) -> NoReturn:
    from commtax.planner.fleets import best_fleets  # not for those who have no rate
    from commtax.report import fleets

    options = order.options
    if order.question.trains:
        raise Refusal.about(request_rate="belongs to serving, not to --phase train")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked without a --request-rate; commtax simulate --from serves it at one", "from")
    check_one_place(order.question)
    refuse(options, ("max_concurrency", "plot", "html"), "is not known beside --request-rate")
    fleet_plans = best_fleets(_with_rate(order), options.on, top=options.top, progress=_follow() if is_watched() else None)
    if options.emit:
        from commtax.planner.fleets import fleet_servers

        best = fleet_servers(fleet_plans.plans[fleet_plans.recommended]) if fleet_plans.plans else None
        order.output.emitted = order.launched(best.question, best.copies, best.prompts) if best else {}
    code = INTERRUPTED if not fleet_plans.complete else 0 if fleet_plans.plans else 1
    order.output.answer(fleets.fleets_document, fleets.show_fleets, fleet_plans, code=code)


def _with_rate(order: Order) -> list[Question]:
    from commtax.planner.fleets import limits_of

    options, (lengths, dtypes) = order.options, _lengths_and_types(order)
    drawn = {name: options[name] for name, option in taken_by("plan").items() if option.part == "offered"}
    sent = PlanFleetOptions(input_len=lengths[0], output_len=lengths[1], num_prompts=options.num_prompts)
    plain, offered = split({**drawn, **sent})
    slo = {f"mean_{name}": options[name] for name in ("ttft", "tpot") if options[name]}
    slo |= {name: options[name] for name, option in taken_by("plan").items() if option.group == "Limits" and options[name]}
    q = order.question.but(**plain, offered=offered, slo=limits_of(slo), objective=options.objective or "", dtypes=dtypes)
    goal = {name: options[name] for name in ("confidence", "cost_of", "margin", "workload")}
    q = q.but(growth=options.headroom or 0.0, **goal)
    put = [q.but(cluster=place) for place in (q.cluster, *order.others)]
    if sets := technique_sets_of(options.techniques):
        put = [with_techniques_at_rate(one, sets) for one in put]
        chosen = {one.cluster.key: ", ".join(text for _, text in techniques_on(one)) or "none" for one in put}
        order.output.remarks += [f"techniques on {name}, chosen by a quick estimate: {on}" for name, on in chosen.items()]
    return with_prices(put, options.price)


def _follow() -> Callable[[int, int, Trial | None], None]:
    at = ""
    METER.start("simulating layouts", lambda: (METER.share, at), STOP)

    def show(done: int, total: int, best: Trial | None) -> None:
        nonlocal at
        so_far = f", best so far {plural(best.gpus, 'GPU')}" if best else ""
        at = f"{done} of {total}{so_far}"

    return show
