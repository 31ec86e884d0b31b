"""Two answers beside each other, read from their JSON documents: what changes in latency, throughput, cost and memory.

``figures.toml`` says which figures are compared and where they stand.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from math import inf, isfinite

from commtax import catalog
from commtax.files import Json, JsonObject, list_of, object_of, table, text_of
from commtax.judgement.gains import is_worth_telling
from commtax.judgement.overload import load_words
from commtax.planner.money import per_million
from commtax.records import dataclass, record_from, replace
from commtax.report.documents import Record, record
from commtax.report.figures import AnswerFigure, figures
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax.units import format_figure, format_seconds, parse_fraction
from commtax.verbs.disaggregation import describe_pools
from commtax.verbs.settling import describe_gpus

PLACES = ("at", "low", "high")
SAME = 0.0005  # relative: equal as printed
UNFIT = "does-not-fit"
COLUMNS = ("", ">before", ">after", ">change", ">80% range after")
CACHE, TOKENS, TOKENS_PER_GPU, COST = "kv_cache_tokens", "tokens_per_s", "tokens_per_s_per_gpu", "usd_per_million_tokens"
# What a change is by the rule of its figures: all better, all worse, or both
KINDS = {"slower": ("faster", "slower", "mixed latency"), "dearer": ("cheaper", "more expensive", "mixed cost")}
# By whether it was overloaded before, and whether it is after
CROWDED = {(False, True): "Overloaded", (True, True): "Overloaded, as before", (True, False): "No longer overloaded"}
MEMORY = {  # by whether it fitted before, if it was there: where it does not fit after, and where it does
    None: ("It does not fit", "It fits"),
    True: ("It no longer fits", "It still fits"),
    False: ("It does not fit, as before", "It fits now"),
}


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure that answers are compared by, as ``figures.toml`` describes it."""

    key: str
    figure: str
    at: tuple[str, ...]
    name: str = ""
    brief: str = ""
    rule: str = ""
    line: int = 0
    judged: bool = True
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()

    @property
    def described(self) -> AnswerFigure:
        return figures()[self.figure]

    @property
    def title(self) -> str:
        return self.name or self.described.name

    def ends(self, which: str) -> tuple[str, ...]:
        """Return the places of one end of its range: beside ``ttft_s`` stands ``ttft_low_s``."""
        return getattr(self, which) or tuple(f"{path.removesuffix('_s')}_{which}_s" for path in self.at)


@dataclass(frozen=True, slots=True)
class AnswerSide:
    """One of two answers: its name and its documents, of which the first has the figures."""

    name: str
    documents: tuple[JsonObject, ...]
    unread: tuple[str, ...] = ()  # what is said of words of a pasted command that are not in them

    def value(self, paths: Iterable[str]) -> Json:
        """Return what stands at the first of these places that a document has."""
        values = (look_up(document, path) for document in self.documents for path in paths if path)
        return next((value for value in values if value is not None), None)

    @property
    def is_nothing(self) -> bool:
        return not any(self.documents)

    @property
    def fits(self) -> bool:
        """Whether every document says that it runs: it fits, and a plan is good."""
        return not any(d.get("fits") is False or d.get("recommended", d) is None for d in self.documents)

    @property
    def overloaded(self) -> bool:
        """Whether requests come faster than they are answered, so that a queue grows without end."""
        return any(document.get("overloaded") is True for document in self.documents)

    @property
    def load(self) -> str:
        rate, capacity = (_number(self.value([path])) for path in ("offered.request_rate", "capacity_requests_per_s"))
        return f": {load_words(rate, capacity)}" if rate and capacity else ""

    @property
    def plan(self) -> str:
        verdict = self.value(["recommended.verdict"])
        if isinstance(verdict, str):
            return verdict
        sizes = object_of(self.value(["plan"]))
        plan = _plan(sizes)
        ahead = object_of(self.value(["prompt_workers"]))
        if not sizes:
            return "-" if self.is_nothing else "no plan is good"
        if not ahead:
            return describe_gpus(plan)
        prompts = replace(_plan(ahead), redundant_experts=plan.redundant_experts)
        workers, gpus = _count(ahead.get("workers")), _count(self.value(["gpus"]))
        copies = (gpus - workers * int(prompts.num_gpus)) // max(1, int(plan.num_gpus))
        return f"{gpus} GPUs = {describe_pools((), (workers, prompts), (copies, plan))}"


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """A figure before and after, None where an answer does not have it."""

    figure: ComparedFigure
    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None

    @property
    def relative(self) -> float | None:
        change = self.after / self.before - 1 if self.before and self.after is not None else inf
        return change if isfinite(change) else None

    @property
    def loss(self) -> float:
        """The relative loss, below 0 a gain."""
        change = self.relative or 0.0
        return (change if self.figure.described.less else -change) if self.figure.judged else 0.0

    @property
    def is_same(self) -> bool:
        return self.before == self.after or (self.relative is not None and abs(self.relative) < SAME)


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """All that changed, and which rules it breaks."""

    before: AnswerSide
    after: AnswerSide
    changes: tuple[AnswerChange, ...]
    facts: tuple[tuple[str, str, str], ...]  # what else differs: name, before, after
    broken: tuple[str, ...] = ()  # rules, in words

    @property
    def is_same(self) -> bool:
        sides = ((side.plan, side.fits, side.overloaded) for side in (self.before, self.after))
        return len(set(sides)) == 1 and not self.facts and all(change.is_same for change in self.changes)


def compare_answers(before: AnswerSide, after: AnswerSide, rules: Mapping[str, float]) -> AnswerDifference:
    """Compare the second answer with the first, by rules of how much worse a kind of figure may be."""
    changes = list[AnswerChange]()
    for figure in compared_figures():
        first, second = (_number(side.value(figure.at)) for side in (before, after))
        if first is not None or second is not None:
            ends = (_number(after.value(figure.ends(which))) for which in ("low", "high"))
            changes.append(AnswerChange(figure, first, second, *ends))
    if not changes:
        rule = "these answers have no figure that is compared; plan, simulate, bill and fit have"
        raise Refusal(f"{before.name}, {after.name}: {rule}")
    compared = {} if before.is_nothing else table("report/figures.toml")["compared_facts"]
    facts = ((name, *(_format_fact(side.value(paths)) or "-" for side in (before, after))) for name, paths in compared.items())
    others = tuple((name, was, now) for name, was, now in facts if was != now)
    return AnswerDifference(before, after, tuple(changes), others, tuple(_broken(after, changes, rules)))


def rules_of(text: str) -> dict[str, float]:
    """Read the rules of ``--fail-on``: ``slower=10%,dearer=5%,does-not-fit``.

    >>> rules_of("slower=10%,does-not-fit"), rules_of("never")
    ({'slower': 0.1, 'does-not-fit': 0.0}, {})
    """
    kinds = sorted({figure.rule for figure in compared_figures() if figure.rule})
    rules = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, share = word.partition("=")
        if word not in (UNFIT, "never") and (name not in kinds or not equals):
            legal = (UNFIT, "never", *(f"{rule}=10%" for rule in kinds))
            raise Refusal.of(f"rules are {', '.join(legal)}, joined by commas", legal, fail_on=word)
        if word != "never":
            rules[name] = parse_fraction(share, "fail_on") if equals else 0.0
    return rules


@lru_cache(maxsize=1)
def compared_figures() -> tuple[ComparedFigure, ...]:
    rows = table("report/figures.toml")["changes"].items()
    places = ({name: tuple(row.get(name, ())) for name in PLACES} for _, row in rows)
    return tuple(record_from(ComparedFigure, {"key": key, **row, **at}) for (key, row), at in zip(rows, places, strict=True))


def with_money(document: JsonObject, price: float | None) -> JsonObject:
    """Add tokens per GPU and what they cost, where an answer does not say it: at a price, or at the catalogue's."""
    side = AnswerSide("", (document,))
    places = {figure.key: figure.at for figure in compared_figures()}
    tokens, gpus = (_number(side.value(places[key])) for key in (TOKENS, "gpus"))
    if not tokens or not gpus or "recommended" in document:
        return document
    made: JsonObject = document | {TOKENS_PER_GPU: tokens / gpus}
    place, ahead = (text_of(side.value([path])) for path in table("report/figures.toml")["compared_places"].values())
    usd = price or 0.0
    if price is None and not ahead:  # of two kinds of GPUs, or a cluster file that is not here, no price is known
        with suppress(ValueError):
            usd = float(catalog.cluster(place).chip.usd_per_gpu_hour)
    priced = bool(usd) and document.get("phase") != "train"  # whose tokens are no outputs
    return made | {COST: float(per_million(usd * gpus, tokens))} if priced else made


def look_up(document: Json, path: str) -> Json:
    """Return what stands at a place of a document, of times that of a metric.

    >>> look_up({"times": [{"metric": "ttft", "mean_s": 0.1}], "runs": [{"tpot_s": 0.02}]}, "times.ttft.mean_s")
    0.1
    """
    for key in path.split("."):
        if isinstance(document, list) and not key.isdigit():
            document = next((row for row in document if object_of(row).get("metric") == key), None)
        elif isinstance(document, list):
            document = document[int(key)] if int(key) < len(document) else None
        else:
            document = object_of(document).get(key)
    return document


def write_figure(figure: ComparedFigure, value: float | None) -> str:
    if value is None:
        return "-"
    unit = figure.described.unit
    if unit == "seconds":
        return format_seconds(value)
    if unit in ("usd", "money"):
        return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if unit == "count" else format_figure(value)


def write_change(change: AnswerChange) -> str:
    if change.is_same or change.relative is None:
        return "same" if change.is_same else "-"
    return f"{change.relative:+.0%}" if abs(change.relative) >= 0.1 else f"{change.relative:+.1%}"


def summary(d: AnswerDifference) -> list[str]:
    """Three lines: the plan and what kind of change it is, latency, and throughput with cost and memory."""
    broken = f" Not allowed: {'; '.join(d.broken)}." if d.broken else ""
    crowded = CROWDED.get((d.before.overloaded, d.after.overloaded))
    crowd = [f"{crowded}{d.after.load}."] if crowded and "overloaded" not in broken else []
    if d.is_same:
        return [" ".join([f"Nothing changes: {d.after.plan}, with the same figures.{broken}", *crowd])]
    was = "New: " if d.before.is_nothing else "" if d.before.plan == d.after.plan else f"{d.before.plan} -> "
    briefs = {number: list[str]() for number in (0, 1, 2)}
    for change in d.changes:
        before, after = write_figure(change.figure, change.before), write_figure(change.figure, change.after)
        moved = f"{before} -> {after} ({write_change(change)})"
        briefs[change.figure.line].append(f"{change.figure.brief} {after if d.before.is_nothing or change.is_same else moved}")
    lines, kind = ["; ".join(briefs[number]) for number in (1, 2)], ", ".join(_kinds(d))
    room = next((change for change in d.changes if change.figure.key == CACHE and change.after), None)
    cache = f": the KV cache of each server holds {write_figure(room.figure, room.after)} tokens" if room and d.after.fits else ""
    if cache and room and not room.is_same and room.before is not None:
        cache += f", {write_figure(room.figure, room.before)} before"
    missing = d.after.value(["shortfall_bytes"])
    lacking = f": each GPU is {float(missing) / 2**30:,.1f} GiB short" if isinstance(missing, int | float) and missing > 0 else ""
    words = MEMORY[None if d.before.is_nothing else d.before.fits][d.after.fits]
    return [
        f"{was}{d.after.plan}{f': {kind}' if kind else ''}.{broken}",
        *(f"{line[0].upper()}{line[1:]}." for line in lines[:1] if line),
        " ".join([*(f"{line[0].upper()}{line[1:]}." for line in lines[1:] if line), f"{words}{cache or lacking}.", *crowd]),
    ]


def _kinds(d: AnswerDifference) -> Iterator[str]:
    """Yield what kind of change it is, by figures that change by as much as is worth telling."""
    if not d.after.fits:
        yield "does not fit"
    if d.after.overloaded and not d.broken:
        yield "overloaded"
    moved = [c for c in d.changes if c.relative is not None and is_worth_telling(1 + abs(c.loss))]
    if d.after.fits and not d.after.overloaded and not moved and not d.before.is_nothing:
        yield "hardly a difference"
    for rule, (less, more, mixed) in KINDS.items():
        if losses := [c.loss for c in moved if c.figure.rule == rule]:
            yield more if min(losses) > 0 else less if max(losses) < 0 else mixed


def difference_rows(d: AnswerDifference) -> list[list[str]]:
    """Return the table: plan, facts that differ, figures with their change and the range after it."""
    rows = [["plan", d.before.plan, d.after.plan, "same" if d.before.plan == d.after.plan else "", ""]]
    rows += [[name, before, after, "", ""] for name, before, after in d.facts]
    for change in d.changes:
        figure, span = change.figure, ""
        if change.low is not None and change.high is not None and change.low < change.high:
            span = f"{write_figure(figure, change.low)} to {write_figure(figure, change.high)}"
        before, after = (write_figure(figure, value) for value in (change.before, change.after))
        rows.append([figure.title, before, after, write_change(change), span])
    sides = (d.before, d.after)
    for name in ("fits", "overloaded")[: 1 + any(side.overloaded for side in sides)]:
        rows.append([name, *("-" if x.is_nothing else "yes" if getattr(x, name) else "no" for x in sides), "", ""])
    return rows


def _format_fact(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(map(_format_fact, value))
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _broken(after: AnswerSide, changes: Iterable[AnswerChange], rules: Mapping[str, float]) -> Iterator[str]:
    if UNFIT in rules and not after.fits:
        yield "it does not fit"
    if UNFIT in rules and after.overloaded:
        yield f"overloaded{after.load}"
    for rule, share in rules.items():
        over = [change for change in changes if change.figure.rule == rule and change.loss > share]
        if over:
            worst = max(over, key=lambda change: change.loss)
            yield f"{worst.figure.title} changes by {write_change(worst)}, and {share:.0%} is the most that may be lost"


def _plan(sizes: JsonObject) -> Plan:
    return record_from(Plan, {name: size for name, size in sizes.items() if isinstance(size, int)})


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _count(value: Json) -> int:
    return int(value) if isinstance(value, int | float) else 1


def notes_of(side: AnswerSide) -> list[str]:
    """Return what a side's documents remark, each remark once, with its verb where not all of them say it."""
    verbs = {note: list[str]() for document in side.documents for note in map(text_of, list_of(document.get("notes")))}
    for document in side.documents:
        for note in set(map(text_of, list_of(document.get("notes")))):
            verbs[note].append(text_of(document.get("schema")).removeprefix("commtax.").partition("/")[0])
    return [note if len(by) == len(side.documents) else f"{by[0]}: {note}" for note, by in verbs.items()]


def difference_document(d: AnswerDifference) -> Record:
    before, after = (record("diff-side", side=side, gpus=side.value(["recommended.gpus", "gpus"])) for side in (d.before, d.after))
    changes = [record("diff-figure", change=change) for change in d.changes]
    facts = [{"name": name, "before": was, "after": now} for name, was, now in d.facts]
    verdict = "not allowed" if d.broken else "allowed"
    return record("diff", of=d, before=before, after=after, verdict=verdict, summary=summary(d), figures=changes, facts=facts)
