"""The worth of techniques: every one that the engine has, by what whole requests gain (of a step: those that fill it).

A gain's range is made of the lines in which both steps differ, since common errors cancel, and of how far published gains were off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from commtax import counting
from commtax.answer import Answer
from commtax.arrays import Array
from commtax.catalog.programs import flag_table, program_of
from commtax.catalog.technique_flags import flag_text, who_has
from commtax.catalog.techniques import (
    DRAFTS,
    changes_of,
    default_of,
    field_value,
    is_default,
    kind_of,
    missed,
    parse_techniques,
    technique,
    techniques,
    techniques_on,
)
from commtax.cost.overlap import most_fused_tokens
from commtax.files import table
from commtax.judgement.closed_loops import LEFT_OUT
from commtax.judgement.engine_limits import caches_are_small
from commtax.judgement.gains import ALIKE, REFUSED, SAME, advice_on_gain, is_worth_telling, verdict_on_gain
from commtax.ledger import Z80, Bill
from commtax.options import check_taken, options
from commtax.question import STEP_AXES, Question
from commtax.records import dataclass
from commtax.rules.drafts import accepted_as, accepted_width, draft_notes, is_accepted_known, need_accepted
from commtax.rules.techniques import check_spread, is_on_already, on_by_default, on_since
from commtax.spec import DTYPE_BYTES, Cluster, Model, Technique
from commtax.statement import ALREADY_ON, OTHER_ENGINES, Refusal, rule_of
from commtax.units import format_bytes, plural
from commtax.verbs import fit_advice, request_times
from commtax.verbs.billing import StepBill, price
from commtax.verbs.closed_loop import price_closed_loop
from commtax.verbs.fit_advice import check_lengths
from commtax.verbs.fitting import Fit, fit_of_step, holds, judge, judged_by_memory, step_limits
from commtax.verbs.keywords import WorthOptions
from commtax.verbs.loads import LOADS
from commtax.verbs.prefix_tiers import check_weighed
from commtax.verbs.request_times import BATCH, PROMPT, RequestTimes, grids, loop_of, rate_over, replicas_of, requests_served
from commtax.verbs.settling import Settled, resolve_question, settle, terms_of
from commtax.words import flags

Swept = Mapping[str, tuple[Array, Array]]  # by axis, what is looked at along it and the tokens/s per GPU there
Changed = Mapping[str, object]
Usual = tuple["TechniqueWorth", Changed, bool]
"""A technique that is on anyway, what it changes, and whether the engine can be priced without it: its other times and tables of
libraries have it too."""


def split_usual(put: Question) -> tuple[Question, list[Usual]]:
    """Split a question into one without what its engine has on anyway, and that."""
    try:
        settle(put)
        return put, []
    except Refusal as refused:
        if refused.kind != ALREADY_ON:
            raise
    on = [(one, text, {name: field_value(put, name) for name in changes_of(text)}) for one, text in techniques_on(put)]
    bare = put.but(**{name: default_of(name) for _, _, changes in on for name in changes})
    usual_ones = [usual for one, text, changes in on if (usual := _usual(bare, one, text, changes))]
    return put.but(**{name: default_of(name) for _, changes, _ in usual_ones for name in changes}), usual_ones


def _usual(bare: Question, one: Technique, text: str, changes: Changed) -> Usual | None:
    try:
        settle(bare.but(**changes))
    except Refusal as refused:
        if refused.kind == ALREADY_ON:
            separate, name = is_on_already(bare, one.key), bare.engine.name
            version = on_since(bare, one.key) if separate else one.always.get(bare.engine.key, "")
            since = f"in {name} since {version}" if version else f"in every version of {name} known here"
            why = on_by_default(bare.engine, version) if separate or version else str(refused)
            row = TechniqueWorth(one, text, refused=why, kind=ALREADY_ON, since=since)
            return row, changes, separate and "library" not in changes
    return None


FIGURES = ("gain", "low", "high", "ttft_s", "tpot_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class SettingWorth:
    """What whole requests gain where a setting is dropped for the engine's own, or where limits are set."""

    option: str
    flag: str  # as the engine's command has it
    gain: float
    low: float
    high: float
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    fits: bool
    cost: str = ""  # of limits, what is given up for it; of a setting, why servers that start with it do not without

    @property
    def verdict(self) -> str:
        return verdict_on_gain(self.gain, self.low, self.high, self.fits)

    @property
    def costs(self) -> bool:
        return is_worth_telling(self.gain)


@dataclass(frozen=True, slots=True)
class FullServer:
    """The same settings with as many clients as memory and the engine have room for."""

    clients: int
    requests: RequestTimes
    weighed: tuple[SettingWorth, ...]


def questioned(q: Question) -> Iterator[tuple[str, str, Changed]]:
    """Yield settings that differ from the engine's own and may cost, but for techniques: option, flag, and what leaves it out."""
    set_by_techniques = {name for _, text in techniques_on(q) for name in changes_of(text)}
    for option in (options()[name] for name in table("verbs/costly_settings.toml")["options"]):
        value = None if option.key in set_by_techniques else field_value(q, option.key)
        if not is_default(option.key, value):
            yield option.name, _flag(q, option.name, value), {option.key: default_of(option.key)}


def questioned_flags(q: Question, pasted: Mapping[str, object]) -> list[str]:
    """Return the questioned settings of a pasted command, as the engine's command has them, whatever the question takes of it."""
    names = [name for name in table("verbs/costly_settings.toml")["options"] if pasted.get(name)]
    return [_flag(q, name, pasted[name]) for name in names if not is_default(options()[name].key, pasted[name])]


def weigh_settings(q: Settled, figures: Callable[[Settled], Mapping[str, float]]) -> tuple[SettingWorth, ...]:
    """Weigh the questioned settings that can be left out, by ``figures`` of requests without them, those that cost most first."""
    weighed = []
    for option, flag, changes in questioned(q):
        with suppress(ValueError):  # it cannot be left out here
            other = q.but(**changes)
            without = figures(other)
            if without["fits"]:
                gains = {name: without[name] for name in FIGURES}
                weighed.append(SettingWorth(option, flag, fits=True, cost=why_start_is_lost(q, other), **gains))
    return tuple(sorted(weighed, key=lambda x: -x.gain))


def why_start_is_lost(now: Question, without: Question) -> str:
    """Return why servers that start as they are do not without a setting, or ""."""
    before, after = (fit_advice.default_limits_notes(servers, servers.requests.tokens) for servers in (now, without))
    return "" if before else "; ".join(after)


def worthwhile_limits(q: Settled, figures: Callable[[Settled], Mapping[str, float]]) -> SettingWorth | None:
    """Return engine limits that requests gain by where caches are small, or None where none is worth it."""
    judged = holds(judged_by_memory(q.plain()))
    small = caches_are_small(judged.kv_bytes / q.cluster.chip.visible_bytes)
    changes = small and fit_advice.limits_worth_changing(judged, lambda on: float(figures(q.but(**on))["gain"]))
    if not changes:
        return None
    roomier, served = judge(fit_advice.with_limits(judged.question, changes)), figures(q.but(**changes))
    flag, cost = flags(fit_advice.changed_limits(roomier, judged)), fit_advice.limit_costs(roomier, judged)
    return SettingWorth(",".join(changes), flag, fits=True, cost=cost, **{name: served[name] for name in FIGURES})


def _flag(q: Question, name: str, value: object) -> str:
    sections = [one for one in flag_table(program_of(q.engine).key).values() if isinstance(one, dict)]
    if value == "nccl" and any("plain_nccl" in one for one in sections):  # a switch of theirs
        name, value = "plain_nccl", True
    word = next((one[name].split()[0] for one in sections if isinstance(one.get(name), str)), name.replace("_", "-"))
    return f"--{word}" if value is True else f"--{word} {value}"


MOST_TOLD = 3  # gains that a bill tells of
DRAFTED = ("acceptance", "accepted_length", "draft_model")  # stated of one drafter, and not of another


@dataclass(frozen=True, slots=True)
class TechniqueWorth:
    """One technique on one question: what it changes, where that flips, and what requests it, or why it is none here."""

    technique: Technique
    asked: str  # as ``--technique`` takes it, with what it needs
    flag: str = ""  # what asks the engine for it
    refused: str = ""
    kind: str = ""  # … and the kind of that reason (``statement``); "": the plan
    since: str = ""  # that the engine has it on anyway, and since which version
    accepted: str = ""  # whose acceptance of drafts was taken, where nobody says one
    step_s: float = math.nan
    step_gain: float = math.nan  # tokens/s per GPU of a step alone over those without it: a figure, which judges nothing
    tokens_per_s: float = math.nan
    gain: float = math.nan  # tokens/s per GPU over those without it; of requests at a rate, how much sooner they are answered …
    low: float = math.nan  # … and its 80 % range
    high: float = math.nan
    beside: str = ""  # what it needs and nobody set: gains, and where it pays, are those on top of that
    ttft_s: float = math.nan
    tpot_s: float = math.nan
    running: float = math.nan  # requests that a replica works on at once
    fits: bool = True
    kv_tokens: int = 0
    full_gain: float = math.nan  # gain with as many requests running as each has room for, where that differs
    pays: tuple[PayRange, ...] = ()
    never: tuple[str, ...] = ()  # axes on which it nowhere pays
    notes: tuple[str, ...] = ()

    @property
    def single(self) -> str:  # without what it needs
        return self.asked.removesuffix(f",{self.beside}")

    @property
    def name(self) -> str:
        return f"{self.single} (on top of {self.beside})" if self.beside else self.single

    @property
    def idle(self) -> bool:
        return self.verdict == SAME and not self.pays

    @property
    def verdict(self) -> str:
        """What its gain comes to (``judgement.gains``), or that it cannot be had."""
        return REFUSED if self.refused else verdict_on_gain(self.gain, self.low, self.high, self.fits)

    @property
    def advice(self) -> str:
        return advice_on_gain(self.verdict, self.gain, self.full_gain) if self.fits else ""


@dataclass(frozen=True, slots=True)
class Worth(Answer):
    """All techniques on one question, best first, with those that cannot be had last.

    >>> import commtax
    >>> commtax.worth("llama-3.1-8b", "8xh100-sxm", tp=8).refused[0].refused
    'llama-3.1-8b has no experts whose tokens are exchanged'
    """

    question: Settled
    bill: StepBill
    kv_tokens: int
    fits: bool  # the batch that was asked about, or one request
    rows: tuple[TechniqueWorth, ...]
    requests: RequestTimes  # without any of them
    starts: bool  # whether there is room for one request
    of_step: bool  # whether a batch was asked about, and requests are those that keep it running
    swept: tuple[tuple[str, float, float], ...] = ()  # axes that were looked along, and how far
    on: tuple[TechniqueWorth, ...] = ()  # techniques that are set already, each against the same without it
    weighed: tuple[SettingWorth, ...] = ()  # settings beside the engine's own
    when_full: FullServer | None = None  # … and with as many clients as there is room for
    limits: SettingWorth | None = None  # engine limits that make room where memory binds

    @property
    def settings(self) -> tuple[SettingWorth, ...]:  # that cost
        return tuple(x for x in self.weighed if x.costs)

    @property
    def here(self) -> tuple[TechniqueWorth, ...]:
        """Techniques that change something, here or at another batch or length."""
        return tuple(row for row in self.rows if not row.refused and not row.idle)

    @property
    def idle(self) -> tuple[TechniqueWorth, ...]:
        """… and those that change nothing anywhere near."""
        return tuple(row for row in self.rows if row.idle)

    @property
    def refused(self) -> tuple[TechniqueWorth, ...]:
        return tuple(row for row in self.rows if row.refused)


def worth(model: str | Model, cluster: str | Cluster, **options: Unpack[WorthOptions]) -> Worth:
    """Return what each technique that the engine has is worth here: gain, range, where it flips, and the flag that requests it.

    >>> import commtax
    >>> weighed = commtax.worth("llama-3.1-8b", "8xh100-sxm", tp=8)
    >>> [row.asked for row in weighed.here if row.verdict == "gains"]
    ['eagle3=5', 'eagle=3']

    For whole requests: ``batch`` of them that each replica runs at once, ``concurrency`` clients of a closed loop, or a
    ``request_rate`` in time.
    """
    return worth_of(resolve_question(model, cluster, options), check_loads(check_taken("worth", options)))


def check_loads(options: Mapping[str, object]) -> bool:
    """Return whether the options set a load of requests rather than a step. Refuse options that do not go together."""
    requests = any(options.get(name) is not None for name in LOADS)
    if requests and options.get(BATCH) is not None:
        raise Refusal.about(batch="belongs to a step, and a load of requests is given; leave one of them out")
    if options.get("phase") == "prefill" and options.get("output_len") not in (None, 1):
        raise Refusal.of("requests of a step of prompts have one output token", (1,), output_len=options["output_len"])
    return requests


def worth_of(put: Question, requests: bool = False) -> Worth:
    """Weigh every technique on requests: of a load, as long as its context, or those that keep a step's batch running."""
    if requests and put.phase != "decode":
        raise Refusal.of("requests have prompts and decode; leave it out, or the requests", phase=put.phase)
    if put.trains:
        raise Refusal.about(phase="techniques of serving are weighed; bill --phase train lists what-ifs of training")
    shown = {} if requests else _step_sizes(put)
    plain, usual = split_usual(check_lengths(put.but(input_len=int(put.context)) if requests else loop_of(put)))
    weigh = Scale(settle(plain), True, shown=shown)
    rows = tuple(sorted([weigh.row(one) for one in counting.counted(techniques().values())], key=_rank))
    on = (*_weigh_usual(weigh, usual), *_weigh_set(weigh))
    q, room = weigh.question.but(**shown), weigh.fit.kv_tokens
    assert weigh.requests
    notes = () if q.offered.request_rate else (note for note in price_closed_loop(weigh.question).notes if note.code in LEFT_OUT)
    times, starts = replace(weigh.requests, notes=tuple(notes)), weigh.holds(weigh.fit)
    fits = starts and (not shown or weigh.fit.holds(int(q.batch), int(q.context) + 1))
    settings = weigh_settings(weigh.question, weigh.figures)
    when_full, limits = _settings_when_full(weigh) if settings else None, worthwhile_limits(weigh.question, weigh.figures)
    return Worth(q, weigh.bill, room, fits, rows, times, starts, bool(shown), weigh.swept, on, settings, when_full, limits)


def _settings_when_full(weigh: Scale) -> FullServer | None:
    q = weigh.question
    most = min(weigh.fit.most_seqs(int(q.requests.tokens)), q.engine.serves.max_seqs) * replicas_of(q)
    if q.offered.request_rate or most <= q.requests.concurrency:
        return None
    full = weigh.beside(q.but(concurrency=most), flips=False)
    return FullServer(most, full.requests, weigh_settings(full.question, full.figures)) if full.requests else None


def _step_sizes(q: Question) -> Changed:
    return {axis: getattr(q, axis) for axis in STEP_AXES}


def _weigh_set(weigh: Scale) -> Iterator[TechniqueWorth]:
    """Weigh techniques that a question has set, each against the same question without it, unless they cannot be left out."""
    q = weigh.question
    for one, text in techniques_on(q):
        values = {name: field_value(q, name) for name in (*changes_of(text), *(DRAFTED if one.group == DRAFTS else ()))}
        with suppress(ValueError):
            yield weigh.beside(q.but(**{name: default_of(name) for name in values}), flips=False).against(one, text, values)


def _weigh_usual(weigh: Scale, usual: Sequence[Usual]) -> Iterator[TechniqueWorth]:
    q = weigh.question
    for row, changes, separable in usual:
        weighed = row
        with suppress(ValueError):  # the reason that it is refused for stands
            if separable:
                bare = weigh.beside(q.but(engine=q.engine.but(on_by_default=())))
                weighed = replace(bare.against(row.technique, row.asked, changes), since=row.since)
        yield weighed


def _rank(row: TechniqueWorth) -> tuple[bool, bool, float]:
    return bool(row.refused), not row.fits, -row.gain if not row.refused else 0.0


def flag_of(text: str, q: Question) -> str:
    """Return the flags that request techniques from the question's engine, or ""."""
    return flag_text([one for one, _ in parse_techniques(text)], program_of(q.engine).key, q)


@dataclass(frozen=True, slots=True)
class PayRange:
    """Where a technique pays along one axis: from ``low`` to ``high``, as far as was looked."""

    axis: str
    low: float
    high: float
    ends: tuple[float, float]  # of what was looked at
    until: str = ""  # the rule that ends it at ``high``, where one of the engine's does


def pay_ranges(q: Settled, base: Settled, swept: Swept) -> tuple[tuple[PayRange, ...], tuple[str, ...]]:
    """Return where along each axis a technique gains, unless it always does, and axes along which it never does."""
    paying, never = list[PayRange](), list[str]()
    for axis, (grid, rates) in swept.items():
        gains = rate_over(q, axis, grid) / rates - 1 > ALIKE
        if not gains.any():
            never.append(axis)
        elif not gains.all():
            runs = np.flatnonzero(np.diff(np.concatenate([[0], gains.astype(int), [0]]))).reshape(-1, 2)
            start, end = runs[np.argmax(grid[runs[:, 1] - 1] / grid[runs[:, 0]])]
            longest = PayRange(axis, float(grid[start]), float(grid[end - 1]), (float(grid[0]), float(grid[-1])))
            paying.append(longest if axis == PROMPT else _fused_until(longest, q, base))
    return tuple(paying), tuple(never)


def _fused_until(paying: PayRange, q: Settled, base: Settled) -> PayRange:
    """Return the range with the engine's limit on fused sums, where a technique pays up to it and no further."""
    if q.techniques.fused_reduce == base.techniques.fused_reduce:
        return paying
    tokens = float(most_fused_tokens(terms_of(q)))
    last = tokens // (1 + float(q.speculative)) * (1 if paying.axis == BATCH else replicas_of(q))
    if not 1 <= last < paying.ends[1]:
        return paying
    around = np.array([last, last + 1]).astype(int)
    if (rate_over(q, paying.axis, around) / rate_over(base, paying.axis, around) - 1 > ALIKE).tolist() != [True, False]:
        return paying
    nbytes = tokens * q.model.hidden * DTYPE_BYTES[q.plan.activations_dtype]
    words = f"{q.engine.name} fuses sums of up to {format_bytes(nbytes)} on {int(q.plan.tp)} GPUs, {plural(int(tokens), 'token')}"
    return replace(paying, high=last, until=words)


class Scale:
    """One question, priced once, that techniques are weighed on.

    ``flips``: also along axes, on top of what they need, on full servers that hold fewer. ``requests``: its requests are weighed,
    and its step is one in the middle of their lives, of as many as run at once; ``shown``: what the step that is shown has instead.
    """

    def __init__(self, q: Settled, requests: bool = False, flips: bool = True, shown: Mapping[str, object] | None = None) -> None:
        self.requests: RequestTimes | None = None
        loop: tuple[Bill, ...] = ()
        if requests:
            self.requests, loop = requests_served(q)
            batch = min(max(1, round(self.requests.running)), step_limits(q)[1])
            q = q.but(batch=batch, context=int(q.requests.input_len + q.requests.output_len // 2))
        self.question, self._steps = q, loop or request_times.steps_of(q)
        self._shown, self._flips, self._tops = shown or {}, flips, dict[str, Scale]()
        self.bill, self.fit = price(q.vary(**self._shown)), fit_of_step(q)

    def beside(self, q: Settled, flips: bool = True) -> Scale:
        """Return the scale of another question."""
        return Scale(q, bool(self.requests), flips, self._shown)

    @cached_property
    def _swept(self) -> Swept:
        if not self._flips or self.question.offered.request_rate:
            return {}
        over = grids(self.question, bool(self._shown))
        return {axis: (grid, rate_over(self.question, axis, grid)) for axis, grid in over.items()}

    @property
    def swept(self) -> tuple[tuple[str, float, float], ...]:
        return tuple((axis, float(grid[0]), float(grid[-1])) for axis, (grid, _) in self._swept.items())

    def row(self, one: Technique) -> TechniqueWorth:
        """Return the best of a technique's usual values, where it needs another one on top of that, else why it is refused."""
        best = self._best(one)
        if not (best.refused or best.idle) or not self._flips or any(other is one for other, _ in techniques_on(self.question)):
            return best
        bases = [base for base in (self.weigh(technique(other), other) for other in one.needs) if not base.refused]
        rows = [(base, self._on_top(one, base.asked)) for base in bases]
        able = [(row.fits, base.gain * max(1.0, row.gain), row) for base, row in rows if not (row.refused or row.idle)]
        return max(able, key=lambda choice: choice[:2])[2] if able else best  # of several the one that leads farthest

    def _best(self, one: Technique) -> TechniqueWorth:
        best = min((self.weigh(one, text) for text in one.at_usual_values), key=_rank)
        if best.refused or not self._swept:
            return best
        pays, never = pay_ranges(self._with(best.asked), self.question, self._swept)
        return replace(best, pays=pays, never=never)

    def _on_top(self, one: Technique, other: str) -> TechniqueWorth:
        if other not in self._tops:
            self._tops[other] = self.beside(self._with(other))
        row = self._tops[other]._best(one)
        both = f"{row.asked},{other}"
        return row if row.refused else replace(row, asked=both, beside=other, flag=flag_of(both, self._with(both)))

    def gain(self, text: str) -> float:
        """Return tokens/s per GPU with several techniques over those without, or 0 where they do not go together."""
        with suppress(ValueError):
            need_accepted(q := self._with(text))
            return _rate_per_gpu(price(q)) / _rate_per_gpu(self.bill)
        return 0.0

    def _with(self, text: str) -> Settled:
        changes = changes_of(text)
        drafted = DRAFTED if self.question.techniques.drafter and "drafter" in changes else ()  # stated of another drafter
        return self.question.but(**({name: default_of(name) for name in drafted} | changes))

    def weigh(self, one: Technique, asked: str) -> TechniqueWorth:
        flag = ""
        try:
            q = self._with(asked)
            if q.what_if.ep_backend != self.question.what_if.ep_backend:
                check_spread(q, one.key)  # an engine's flag may spread them, and so be another plan
            check_weighed(q.vary(context=q.requests.input_len) if self.requests else q)
            need_accepted(q)
            flag = flag_of(asked, q)
            if q.normal() == self.question.normal():
                return TechniqueWorth(one, asked, flag, "already on", ALREADY_ON)
            if not flag:
                kind = ALREADY_ON if self.question.engine.key in one.flags else OTHER_ENGINES
                return TechniqueWorth(one, asked, flag, who_has(one, self.question.engine), kind)
            return self._priced(TechniqueWorth(one, asked, flag), q)
        except ValueError as error:
            return TechniqueWorth(one, asked, flag, rule_of(error), getattr(error, "kind", ""))

    def against(self, one: Technique, asked: str, changes: Mapping[str, object]) -> TechniqueWorth:
        """Weigh a technique that was requested explicitly, by all that it changes."""
        q = self.question.but(**changes)
        pays, never = pay_ranges(q, self.question, self._swept)
        return replace(self._priced(TechniqueWorth(one, asked, flag_of(asked, q)), q), pays=pays, never=never)

    def _priced(self, row: TechniqueWorth, q: Settled) -> TechniqueWorth:
        notes, accepted = ((), "") if self._drafts_alike(q) else (tuple(map(str, draft_notes(q))), accepted_as(q))
        return replace(row, **self.figures(q, row.technique.group), notes=notes, accepted=accepted)

    def figures(self, q: Settled, group: str = "") -> dict[str, Any]:
        """Return the figures of another question beside this one, and how far gains of this group of techniques may be off."""
        step, judged = price(q.vary(**self._shown)), fit_of_step(q)
        step_gain = gain = _rate_per_gpu(step) / _rate_per_gpu(self.bill)
        steps: list[tuple[Bill, Bill]] = [(step, self.bill)]
        times = {"tokens_per_s": float(step.tokens_per_s)}
        if self.requests:
            served, bills = requests_served(q)
            gain = self.requests.faster(served) * float(self.bill.num_gpus / step.num_gpus)
            steps = list(zip(bills or request_times.steps_of(q), self._steps, strict=True))
            times = {name: getattr(served, name) for name in ("ttft_s", "tpot_s", "tokens_per_s", "running")}
        first, *others = (Z80 * ratio_sigma(*pair) for pair in steps)
        common = math.hypot(first, 0.0 if self._drafts_alike(q) else accepted_width(q)) + sum(others)
        beside = 0.0  # half of the range by which published gains of such techniques lie beside predicted ones
        if verdict_on_gain(gain, gain, gain) != SAME:
            yielded = () if self._drafts_alike(q) else (q.techniques.per_step, self.question.techniques.per_step)
            beside = missed(kind_of(group), gain, max(yielded, default=1.0))
        width = math.exp(math.hypot(common, beside))
        room = dict[str, object](kv_tokens=judged.kv_tokens, fits=self.holds(judged), full_gain=self._full_gain(q, judged))
        ends = {"gain": gain, "low": gain / width, "high": gain * width}
        return {"step_s": float(step.step_s), "step_gain": step_gain, **times, **room, **ends}

    def _drafts_alike(self, q: Settled) -> bool:
        now, then = ((x.speculative, x.techniques.drafter, x.techniques.per_step) for x in (self.question, q))
        return now == then

    def _full_gain(self, q: Settled, judged: Fit) -> float:
        """Return tokens/s with as many requests as fit, with the technique over without, only where they differ in number."""
        before, after = (one.most_seqs(int(q.context) + 1) for one in (self.fit, judged))
        if before == after or min(before, after) < 1 or q.phase != "decode" or (after < before and not self._swept):
            return math.nan
        return self._rate_when_full(q, judged) / self._rate_when_full(self.question, self.fit)

    def holds(self, judged: Fit) -> bool:
        """Return whether there is room for the step's batch, or for one request: others wait for theirs."""
        each = self.question.requests.tokens if self.requests else self.question.context + 1
        return judged.holds_one and judged.holds(1 if self.requests else int(self.question.batch), int(each))

    def _rate_when_full(self, q: Settled, judged: Fit) -> float:
        most = min(judged.most_seqs(int(q.context) + 1), step_limits(q)[1])
        if not self.requests:
            return _rate_per_gpu(price(q.but(batch=most)))
        return float(rate_over(q, BATCH, np.array([most]))[0])


def _rate_per_gpu(b: StepBill) -> float:
    return float(b.tokens_per_s / b.num_gpus)


def ratio_sigma(a: Bill, b: Bill) -> float:
    """Return the deviation of the logarithm of two steps' ratio: half of a line's variance is common to all lines of its basis."""
    separate, common = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for sign, bill in ((1, a), (-1, b)):
        for x in bill.lines:
            share = sign * float(x.exposed_s * x.sigma / bill.step_s)
            key = (x.kind, x.source.basis)
            for sums, name in ((common, key), (separate, (*key, x.item.form or x.item.op, x.item.part, x.item.place))):
                sums[name] = sums.get(name, 0.0) + share
    return math.sqrt(sum(share * share for sums in (common, separate) for share in sums.values()) / 2)


def gaining_most(q: Settled, listed: Sequence[Mapping[str, object]] = ()) -> list[TechniqueWorth]:
    """Return the few techniques that gain requests most and enough to report, but those that set what is ``listed`` anyway."""
    if not is_accepted_known(q):
        return []
    scale, engine = Scale(q, flips=False), program_of(q.engine).key
    tried = [one for one in techniques().values() if engine in one.flags and one.sets not in listed]
    best = [(*max((scale.gain(text), text) for text in one.at_usual_values), one) for one in tried]
    able = [(one, text) for gain, text, one in best if is_worth_telling(gain)]
    if not able:
        return []
    weigh = Scale(loop_of(q), True, flips=False, shown=_step_sizes(q))
    rows = sorted((weigh.weigh(one, text) for one, text in able), key=_rank)
    return [row for row in rows if not row.refused and row.fits and is_worth_telling(row.gain)][:MOST_TOLD]
