"""``commtax plan --request-rate``: how many GPUs for a rate of requests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from commtax.cli.options import SLO, TIMES
from commtax.cli.order import Order, refuse
from commtax.question import Question
from commtax.statement import Refusal
from commtax.units import plural
from commtax.verbs.apart import check_one_place
from commtax.verbs.loads import split

if TYPE_CHECKING:
    from commtax.planner.fleet_trials import Trial

STATISTICS = tuple(f"{which}_{metric}" for metric in TIMES for which in SLO)
DRAWN = ("burstiness", "num_prompts", "seed", "unique_prompts", "shared_prefix", "prefix_cache", "router")
RATED = ("request_rate", *DRAWN, "headroom", *STATISTICS, "on")
"""Options that belong to a rate alone."""
OTHERWISE = ("max_concurrency", "plot", "html")
"""Options that a search for a rate has no use for."""
INTERRUPTED = 130


def prices(value: object, name: str) -> float | list[float | None]:
    """A price of a GPU-hour, or one a cluster, the catalogue's where there is none: ``2.5``, ``2.5,4`` or ``2.5,``."""
    try:
        parts = str(value).split(",")
        if len(parts) == 1:
            return float(parts[0])
        return [float(part) if part.strip() else None for part in parts]
    except ValueError:
        raise Refusal(
            f"{name}: '{str(value)[:40]}' is not a number of dollars (write 2.5, or 2.5,4 for two clusters)", name
        ) from None


def answer(order: Order, lengths: tuple[int | str, int | str], dtypes: tuple[str, ...]) -> NoReturn:
    from commtax.planner.fleets import best_fleets  # not for those who have no rate
    from commtax.report import fleets

    given = order.given
    if order.question.trains:
        raise Refusal("request_rate: belongs to serving, not to --phase train", "request_rate")
    if order.launch:
        raise Refusal("from: a pasted plan is ranked without a --request-rate; commtax simulate --from serves it at one", "from")
    check_one_place(order.question)
    refuse(given, OTHERWISE, "is not known beside --request-rate")
    shown = sys.stderr.isatty() and not order.output.as_json
    found = best_fleets(_put(order, lengths, dtypes), given["on"], top=given["top"], progress=_told if shown else None)
    if shown:
        sys.stderr.write("\r\x1b[K")
    if given["emit"]:
        order.output.emitted = _commands(order, found.plans[found.recommended]) if found.plans else {}
    code = INTERRUPTED if not found.complete else 0 if found.plans else 1
    order.output.answer(fleets.fleets_document, fleets.show_fleets, found, code=code)


def _put(order: Order, lengths: tuple[int | str, int | str], dtypes: tuple[str, ...]) -> list[Question]:
    """The question on each of its clusters."""
    from commtax.planner.fleets import limits_of
    from commtax.planner.money import priced

    given = order.given
    named = {"input_len": lengths[0], "output_len": lengths[1], "request_rate": given["request_rate"]}
    plain, offered = split({**named, **{name: given[name] for name in DRAWN}})
    slo = {f"mean_{name}": given[name] for name in ("ttft", "tpot") if given[name]}
    slo |= {name: given[name] for name in STATISTICS if given[name]}
    goal = {"slo": limits_of(slo), "objective": given["objective"] or "", "dtypes": dtypes, "growth": given["headroom"] or 0.0}
    goal |= {"confidence": given["confidence"], "cost_of": given["cost_of"], "margin": given["margin"]}
    places = (order.question.cluster, *order.others)
    return priced([order.question.but(**plain, **goal, cluster=place, offered=offered) for place in places], given["price"])


def _told(done: int, total: int, best: Trial | None) -> None:
    """How far the search is, on a terminal."""
    so_far = f"; best so far {plural(best.gpus, 'GPU')}" if best else ""
    sys.stderr.write(f"\r{done} of {total} layouts{so_far}; Ctrl-C: the answer so far\x1b[K")
    sys.stderr.flush()


def _commands(order: Order, best: Trial) -> dict[str, str]:
    """The launch of the best fleet, all of its servers, and the benchmark that would check it."""
    from commtax.launch.writing import apart_command, benchmark_command, launch_command

    engine, (copies, prompts) = order.given["emit"], best.size
    q = best.layout.question
    if prompts:
        launch = apart_command(q.but(prefill_workers=prompts, decode_workers=copies), engine)
    else:
        launch = launch_command(q.but(replicas=copies), engine)
    return {"launch": launch, "benchmark": benchmark_command(q, engine)}
