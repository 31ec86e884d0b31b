"""Settings of a launch that cost: what whole requests would gain with the engine's own in their place.

Which settings are questioned is said in ``costly_settings.toml``: eager mode, limits on batches and memory, other collectives.
"""

from collections.abc import Callable, Iterator, Mapping

from commtax.catalog.programs import flag_table, program_of
from commtax.catalog.techniques import changes_of, default_of, field_value, is_default, techniques_on
from commtax.files import table
from commtax.judgement.engine_limits import caches_are_small
from commtax.judgement.gains import is_worth_telling, verdict_on_gain
from commtax.options import options
from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.fit_advice import changed_limits, limit_costs, limits_worth_changing, with_limits
from commtax.verbs.fitting import holds, judge, judged_by_memory
from commtax.verbs.longest_request import own_limits_notes
from commtax.verbs.requests_weighed import RequestTimes
from commtax.verbs.settling import Settled
from commtax.words import flags

FIGURES = ("gain", "low", "high", "ttft_s", "tpot_s", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class SettingWorth:
    """What whole requests gain where a setting is dropped, and the engine's own stands in its place; or where limits are set."""

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
        """Whether requests gain something without it."""
        return is_worth_telling(self.gain)


@dataclass(frozen=True, slots=True)
class FullServer:
    """The same settings with as many clients as memory and the engine have room for."""

    clients: int
    requests: RequestTimes
    weighed: tuple[SettingWorth, ...]


@dataclass(frozen=True, slots=True)
class QuestionedSetting:
    """A setting that an engine would not have by itself, and what leaves it to the engine."""

    option: str
    flag: str  # as the engine's command has it
    changes: Mapping[str, object]


def questioned(q: Question) -> Iterator[QuestionedSetting]:
    """What a question sets away from the engine's own, and may pay for; not what techniques set."""
    told = {name for _, text in techniques_on(q) for name in changes_of(text)}
    for option in (options()[name] for name in table("verbs/costly_settings.toml")["options"]):
        value = None if option.key in told else field_value(q, option.key)
        if not is_default(option.key, value):
            yield QuestionedSetting(option.name, _flag(q, option.name, value), {option.key: default_of(option.key)})


def questioned_flags(q: Question, pasted: Mapping[str, object]) -> list[str]:
    """The settings of a pasted command that are questioned, as the engine's command has them, whatever the question takes of it."""
    names = [name for name in table("verbs/costly_settings.toml")["options"] if pasted.get(name)]
    return [_flag(q, name, pasted[name]) for name in names if not is_default(options()[name].key, pasted[name])]


def weigh_settings(q: Settled, figures: Callable[[Settled], Mapping[str, float]]) -> tuple[SettingWorth, ...]:
    """The questioned settings that can be left out, those first without which requests gain most.

    ``figures``: what requests come to with another question, beside this one.
    """
    found = []
    for one in questioned(q):
        try:
            other = q.but(**one.changes)
            without = figures(other)
        except ValueError:  # it cannot be left out here
            continue
        told = {name: without[name] for name in FIGURES}
        found.append(SettingWorth(one.option, one.flag, fits=bool(without["fits"]), cost=why_start_is_lost(q, other), **told))
    return tuple(sorted((x for x in found if x.fits), key=lambda x: -x.gain))


def why_start_is_lost(now: Question, without: Question) -> str:
    """Return why servers that start as they are do not without a setting; "" where they do, or where the same stops them now."""
    before, after = (own_limits_notes(servers, servers.requests.tokens) for servers in (now, without))
    return "" if before else "; ".join(after)


def worthwhile_limits(q: Settled, figures: Callable[[Settled], Mapping[str, float]]) -> SettingWorth | None:
    """Engine limits that requests gain by where caches are small; None where none is worth it."""
    judged = holds(judged_by_memory(q.plain()))
    if not caches_are_small(judged.kv_bytes / q.cluster.chip.visible_bytes):
        return None
    changes = limits_worth_changing(judged, lambda on: float(figures(q.but(**on))["gain"]))
    if not changes:
        return None
    roomier, found = judge(with_limits(judged.question, changes)), figures(q.but(**changes))
    told = {name: found[name] for name in FIGURES}
    return SettingWorth(
        ",".join(changes), flags(changed_limits(roomier, judged)), fits=True, cost=limit_costs(roomier, judged), **told
    )


def _flag(q: Question, name: str, value: object) -> str:
    """A setting as the engine's command has it, else as our own option."""
    sections = [one for one in flag_table(program_of(q.engine).key).values() if isinstance(one, dict)]
    if value == "nccl" and any("plain_nccl" in one for one in sections):  # a switch of theirs
        name, value = "plain_nccl", True
    word = next((one[name].split()[0] for one in sections if isinstance(one.get(name), str)), name.replace("_", "-"))
    return f"--{word}" if value is True else f"--{word} {value}"
