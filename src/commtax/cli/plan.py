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
from commtax.cli.options import GivenOptions, Verb, VerbSubject
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


MOST_LISTED = 1000  # plans that are listed at most: a table that somebody may still read
Answer = TypeVar("Answer", ServingPlans, TrainPlans)


@click.command("plan", cls=Verb)
@verb_command("plan", VerbSubject.SEARCH)
def plan_command(order: Order) -> None:
    """The best parallelism plan for a cluster, and why the others lost. Exit code 1: no plan is good."""
    given = order.given
    if not 1 <= given.top <= MOST_LISTED:
        nearest = 1 if given.top < 1 else MOST_LISTED
        raise Refusal.of(f"from 1 to {MOST_LISTED:,} plans are listed; nearest valid: {nearest}", (nearest,), top=given.top)
    for place in (*order.question.places, *order.others):
        order.output.read(place)
    if given.phase not in ("serve", "train"):
        raise Refusal.of(f"serve or train{suggest(given.phase, ('serve', 'train'))}", phase=given.phase)
    if given.emit:
        from commtax.launch.deployment import emitted_words

        able = emitted_words(order.question.trains)
        if order.given.emit not in able:
            raise Refusal.of(f"one of {', '.join(able)} here", able, emit=order.given.emit)
    if given.request_rate is not None:
        _fleets(order)
    refuse(given, options_beside("plan", "rate"), "belongs to --request-rate")
    if order.question.trains:
        _train(order)
    if order.others:
        _serve_on_several(order)
    _serve(order)


def _serve(order: Order) -> NoReturn:
    given, q = order.given, with_prices([goal_of(order)], order.given.price)[0]
    searched, speed = _time_search(lambda: best_serving(q))
    pasted = _stands(searched, order.launch) if order.launch else None
    if given.emit:
        rows, own = searched.answered
        order.output.emitted = _commands(order, replace(searched, plans=rows), own) if len(searched.plans) else {}
    if given.plot and len(searched.front):
        from commtax.report.view.pictures import plot_front

        plot_front(searched, Path(given.plot))
    elif given.plot:
        click.echo(f"plot: no plan is good, {given.plot} is not written", err=True)
    _answer(order, searched, pasted, speed)


def _serve_on_several(order: Order) -> NoReturn:
    """Clusters beside each other: the plans of all, ranked together."""
    from commtax.planner.several_clusters import best_of_several
    from commtax.report import several_clusters

    given = order.given
    refuse(given, ("plot", "html"), "is of one cluster")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked on one cluster; name one", "from")
    goal = goal_of(order)
    put = with_prices([goal.but(cluster=place) for place in (goal.cluster, *order.others)], given.price)
    found = best_of_several(put, given.objective or "")
    if given.emit:
        chosen = (found.waited or found).recommended  # the plan that the answer names first
        order.output.emitted = _commands(order, chosen.answer, chosen.row) if chosen else {}
    order.output.answer(
        several_clusters.several_document, several_clusters.show_several, found, given.top, code=0 if found.plans else 1
    )


def goal_of(order: Order) -> Question:
    """The question with its lengths, limits and objective; prices are not read yet."""
    given, q = order.given, order.question
    lengths, dtypes = _lengths_and_types(order)
    rule = "distributions are drawn from for a --request-rate; else a mean is needed"
    for name, length in PlanFleetOptions(input_len=lengths[0], output_len=lengths[1]).items():
        if isinstance(length, str):
            raise Refusal(f"{name} '{length}': {rule}", name)
    return q.but(
        input_len=lengths[0],
        output_len=lengths[1],
        technique_sets=technique_sets_of(given.techniques),
        workload=given.workload,
        ttft_s=_limit(given.ttft, "ttft"),
        tpot_s=_limit(given.tpot, "tpot"),
        confidence=given.confidence,
        margin=given.margin,
        objective=given.objective or "throughput",
        dtypes=dtypes,
        max_concurrency=given.max_concurrency,
        cost_of=given.cost_of,
        prefix_hit_rate=given.prefix_cache or 0.0,
    )


def _lengths_and_types(order: Order) -> tuple[tuple[int | str, int | str], tuple[str, ...]]:
    """Lengths of prompts and outputs, and the types that are compared."""
    given = order.given
    lengths = given.input_len, given.output_len
    usual = usual_lengths(given.workload)
    dtypes = tuple(dict.fromkeys(given.dtype.split(",")))
    if len(dtypes) > 1 and "" in given.dtype.split(","):
        raise Refusal.of("a type is missing between the commas", dtype=given.dtype)
    return (usual[0] if lengths[0] is None else lengths[0], usual[1] if lengths[1] is None else lengths[1]), dtypes


def _limit(text: str, name: str) -> float:
    seconds = parse_seconds(text, name) if text else math.inf
    if not seconds > 0:
        raise Refusal(f"{name}_s={seconds}: a time above 0 is needed", f"{name}_s")
    return seconds


def _stands(searched: ServingPlans, launch: Launch) -> StandingPlan:
    """The pasted plan: groups that share experts are one copy, all others are replicas."""
    servers, said, experts = launch.servers, GivenOptions(launch.options), searched.question.model.experts
    sizes = GivenOptions(launch.axes)
    inner = sizes.dp
    if catalog.engine(launch.engine).sends.ep_is_tp_dp and inner > 1 and experts and said.ep is None:
        sizes.ep = sizes.tp * inner
    shared = experts is not None and sizes.ep > sizes.tp
    sizes.dp = inner if shared else 1
    plan: dict[str, int] = {axis: sizes[axis] for axis in SERVING_AXES}
    ahead = servers.prefill_workers
    prompts = Plan(servers.prefill_tp or 1, dp=servers.prefill_dp or 1, replicas=ahead) if ahead else None
    copies = servers.count * (1 if shared else inner)
    own = (searched, plan, copies, str(said.dtype or ""), int(said.concurrency or 0), prompts)
    as_pasted, tuned = (serving_standing(*own, tuned=tuned) for tuned in (False, True))
    return replace(as_pasted, tuned=tuned)


def _commands(order: Order, searched: ServingPlans, row: int) -> dict[str, str]:
    """The launch of a plan, and the benchmark that would check it."""
    from commtax.planner.fleets import servers_of

    servers = servers_of(searched, row)
    return order.launched(servers.question, servers.copies, servers.prompts)


def _time_search(search: Callable[[], Answer]) -> tuple[Answer, str]:
    """The answer, and how long it took: that is said beside it, because it differs from run to run."""
    start = time.process_time()
    searched = search()
    seconds = time.process_time() - start
    rate = searched.candidates / max(seconds, 1e-9)
    return searched, f"{searched.candidates:,} plans considered in {seconds:.2f} s of CPU time, {rate:,.0f} per second"


def _answer(order: Order, searched: ServingPlans | TrainPlans, pasted: StandingPlan | None, speed: str) -> NoReturn:
    from commtax.report import planning

    if order.given.html:
        from commtax.web.pages import plan_page

        write_page(order.given.html, plan_page, searched)
    counting.finish()
    order.output.aside = speed
    code = 0 if len(searched.plans) else 1
    order.output.answer(planning.plans_document, planning.show_plans, searched, order.given.top, pasted, code=code)


def _train(order: Order) -> NoReturn:
    given, q = order.given, order.question
    if order.others:
        raise Refusal.about(cluster="training plans are searched on one cluster; name one")
    if given.global_batch is None:
        raise Refusal.about(global_batch="training needs the sequences of a step, such as --global-batch 1024")
    length = q.kind.length if given.input_len is None else given.input_len
    put = [
        one.but(global_batch=given.global_batch, context=length, sequence_parallel=True, margin=given.margin)
        for one in (q, *order.engines)
    ]
    if given.tokens:
        put = [one.but(train_tokens=parse_tokens(given.tokens, "tokens")) for one in put]
    q, *others = (with_prices([one], given.price)[0] for one in put)
    if others:
        _train_with_several(order, [q, *others])
    searched, speed = _time_search(lambda: best_training(q))
    pasted = _trains(searched, order.launch) if order.launch else None
    if given.emit:
        order.output.emitted = order.commands(searched.step_of(searched.plans, searched.recommended)) if len(searched.plans) else {}
    _answer(order, searched, pasted, speed)


def _train_with_several(order: Order, put: list[Question]) -> NoReturn:
    """The same job with several engines, each with its own recommended plan."""
    from commtax.report.planning import engines_document, show_engines

    refuse(order.given, ("plot", "html", "emit"), "is of one engine; name one with --engine")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked with its own engine; leave --engine out", "from")
    answers = [best_training(q) for q in put]
    code = 0 if any(len(a.plans) for a in answers) else 1
    order.output.answer(engines_document, show_engines, answers, order.given.top, code=code)


def _trains(searched: TrainPlans, launch: Launch) -> StandingPlan:
    """The pasted job, with its own overlap."""
    said, q = GivenOptions(launch.options), searched.question
    run = q.but(
        **launch.axes,
        micro_batch=int(said.micro_batch or 1),
        zero=q.engine.trains.zero if said.zero is None else int(said.zero),
        recompute=said.recompute or "none",
        schedule=said.schedule or "1f1b",
        chunks=launch.chunks_of(q.model.num_layers) or 1,
        sequence_parallel=said.sequence_parallel is not None or q.engine.trains.sequence_parallel,
        shard=int(said.hsdp or 0),
        async_axes=tuple(str(said.async_axes).split(",")) if said.async_axes else None,
    )
    return training_standing(searched, run)


OTHERWISE = ("max_concurrency", "plot", "html")  # options that a search for a rate has no use for
INTERRUPTED = 130


def _fleets(order: Order) -> NoReturn:
    """How many GPUs for a rate of requests."""
    from commtax.planner.fleets import best_fleets  # not for those who have no rate
    from commtax.report import fleets

    given = order.given
    if order.question.trains:
        raise Refusal.about(request_rate="belongs to serving, not to --phase train")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked without a --request-rate; commtax simulate --from serves it at one", "from")
    check_one_place(order.question)
    refuse(given, OTHERWISE, "is not known beside --request-rate")
    found = best_fleets(_with_rate(order), given.on, top=given.top, progress=_follow() if is_watched() else None)
    if given.emit:
        from commtax.planner.fleets import fleet_servers

        best = fleet_servers(found.plans[found.recommended]) if found.plans else None
        order.output.emitted = order.launched(best.question, best.copies, best.prompts) if best else {}
    code = INTERRUPTED if not found.complete else 0 if found.plans else 1
    order.output.answer(fleets.fleets_document, fleets.show_fleets, found, code=code)


def _with_rate(order: Order) -> list[Question]:
    from commtax.planner.fleets import limits_of

    given, (lengths, dtypes) = order.given, _lengths_and_types(order)
    drawn = {name: given[name] for name, option in taken_by("plan").items() if option.part == "offered"}
    sent = PlanFleetOptions(input_len=lengths[0], output_len=lengths[1], num_prompts=given.num_prompts)
    plain, offered = split({**drawn, **sent})
    slo = {f"mean_{name}": given[name] for name in ("ttft", "tpot") if given[name]}
    slo |= {name: given[name] for name, option in taken_by("plan").items() if option.group == "Limits" and given[name]}
    q = order.question.but(**plain, offered=offered, slo=limits_of(slo), objective=given.objective or "", dtypes=dtypes)
    q = q.but(growth=given.headroom or 0.0, confidence=given.confidence, cost_of=given.cost_of, margin=given.margin)
    q = q.but(workload=given.workload)
    put = [q.but(cluster=place) for place in (q.cluster, *order.others)]
    if sets := technique_sets_of(given.techniques):
        put = [with_techniques_at_rate(one, sets) for one in put]
        chosen = {one.cluster.key: ", ".join(text for _, text in techniques_on(one)) or "none" for one in put}
        order.output.remarks += [f"techniques on {name}, chosen by a quick estimate: {on}" for name, on in chosen.items()]
    return with_prices(put, given.price)


def _follow() -> Callable[[int, int, Trial | None], None]:
    """Who is told how far the search is, and shows it."""
    at = ""
    METER.start("simulating layouts", lambda: (METER.share, at), STOP)

    def told(done: int, total: int, best: Trial | None) -> None:
        nonlocal at
        so_far = f", best so far {plural(best.gpus, 'GPU')}" if best else ""
        at = f"{done} of {total}{so_far}"

    return told
