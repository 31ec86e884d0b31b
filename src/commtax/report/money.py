"""Dollars in words and cells; what no price is known for is an empty cell and a hint, never 0."""

from collections.abc import Sequence

from commtax.planner.money import COUNTED, MONTH_H, YEAR_H, Money, plan_money
from commtax.question import Question
from commtax.report.figures import million
from commtax.statement import Note
from commtax.units import format_money, plural
from commtax.words import words

COUNTS = dict(zip(COUNTED, ("output tokens", "tokens, input and output"), strict=True))
OTHER = dict(zip(COUNTED, ("--cost-of total counts input too", "--cost-of output counts output alone"), strict=True))


def price_notes(put: Sequence[Question]) -> list[Note]:
    """Return the price of a GPU-hour on each cluster and its source, or the option that sets it where none is known."""
    missing, notes = ",".join(f"{q.goal.usd_per_gpu_hour or 2.5:g}" for q in put), list[Note]()
    for price, chip in ((q.goal.usd_per_gpu_hour, q.cluster.chip) for q in put):
        if not price:
            notes.append(words("price-unknown", chip=chip.key, missing=missing))
            continue
        catalogued = chip.sources.get("usd_per_gpu_hour") if price == chip.usd_per_gpu_hour else None
        source = words("price-catalogued", date=str(catalogued.date)) if catalogued else "as given"
        cents = f"{price:,.2f}" if price == round(price, 2) else f"{price:,g}"
        notes.append(words("price", chip=chip.key, usd=cents, source=source))
    return list(dict.fromkeys(notes))


def counted_note(q: Question) -> str:
    """Say which tokens dollars are spread over, and how long a month is."""
    of = q.goal.cost_of
    return f"$/M: dollars per million {COUNTS[of]} ({OTHER[of]}); a month has {MONTH_H} hours, a year {YEAR_H:,}"


def fleet_cost_words(m: Money) -> str:
    """Return the cost of the fleet by the hour, the month and the year, or nothing where no price is known."""
    if not (m.usd_per_hour and m.usd_per_month and m.usd_per_year):
        return ""
    each = (format_money(usd) for usd in (m.usd_per_hour, m.usd_per_month, m.usd_per_year))
    return "{} per hour, {} per month, {} per year".format(*each)


def plan_notes(q: Question, gpus: int, output_tokens_per_s: float, prompting: int = 0) -> list[str]:
    """Say what a plan in a closed loop costs, ``prompting`` of whose GPUs compute prompts alone."""
    m, prices = plan_money(q, gpus, output_tokens_per_s, prompting), (q.goal.prefill_usd_per_gpu_hour, q.goal.usd_per_gpu_hour)
    each = zip(q.places, prices[-len(q.places) :], strict=True)  # each cluster with its own price
    pools = [q.but(cluster=c, prefill_cluster=None, usd_per_gpu_hour=usd or c.chip.usd_per_gpu_hour) for c, usd in each]
    notes = list[str](price_notes(pools if len(pools) > 1 else [q]))
    if not m.usd_per_hour:
        return [f"{'; '.join(notes)}; plans are ranked by tokens/s per GPU"] if q.goal.objective == "cost" else notes
    tokens = f"${million(m.usd_per_million_tokens)} per million {COUNTS[q.goal.cost_of]} at this load"
    idle = " without the idle ones" if gpus < q.gpus_there else ""
    return [f"{'; '.join(notes)}; {plural(gpus, 'GPU')}{idle}: {fleet_cost_words(m)}; {tokens}", counted_note(q)]


def page_note(q: Question, gpus: int, output_tokens_per_s: float, prompting: int = 0) -> str:
    """Say the same for the page, by either count of tokens."""
    each = [plan_money(q.but(cost_of=of), gpus, output_tokens_per_s, prompting) for of in COUNTED]
    if not each[0].usd_per_hour:
        return f"no price is known for {q.cluster.chip.key}"
    tokens = f"${million(each[0].usd_per_million_tokens)} per million output tokens"
    return f"{fleet_cost_words(each[0])}; {tokens}, ${million(each[1].usd_per_million_tokens)} where input counts too, at this load"
