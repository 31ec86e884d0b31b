"""Settings of a launch that cost: what whole requests would gain with the engine's own in their place.

Which settings are questioned is said in ``options.toml`` (``questioned``): eager mode, limits on batches and memory, other
collectives. What a launch needs, such as its longest request, is not.
"""

from collections.abc import Callable, Mapping

from commtax.catalog.programs import flag_table, program_of
from commtax.catalog.techniques import changes_of, default_of, field_value, is_default, techniques_on
from commtax.judgement.gains import is_worth_telling, verdict_on_gain
from commtax.options import options
from commtax.records import dataclass
from commtax.verbs.settling import Settled

FIGURES = ("gain", "low", "high", "ttft_s", "tpot_s", "tokens_per_s", "fits")


@dataclass(frozen=True, slots=True)
class SettingWorth:
    """What whole requests gain where a setting is dropped, and the engine's own stands in its place."""

    option: str
    flag: str  # as the engine's command has it
    gain: float
    low: float
    high: float
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    fits: bool

    @property
    def verdict(self) -> str:
        return verdict_on_gain(self.gain, self.low, self.high, self.fits)


def costly_settings(q: Settled, figures: Callable[[Settled], Mapping[str, float]]) -> tuple[SettingWorth, ...]:
    """What a question sets away from the engine's own and pays for: requests gain something without each, the most first.

    ``figures``: what requests come to with another question, beside this one.
    """
    told = {name for _, text in techniques_on(q) for name in changes_of(text)}
    found = []
    for option in options().values():
        value = field_value(q, option.key) if option.questioned and option.key not in told else None
        if is_default(option.key, value):
            continue
        try:
            without = figures(q.but(**{option.key: default_of(option.key)}))
        except ValueError:  # it cannot be left out here
            continue
        row = SettingWorth(option.name, _flag(q, option.name, value), *(without[name] for name in FIGURES))
        if row.fits and is_worth_telling(row.gain):
            found.append(row)
    return tuple(sorted(found, key=lambda row: -row.gain))


def _flag(q: Settled, name: str, value: object) -> str:
    """A setting as the engine's command has it, else as our own option."""
    spelled = (section.get(name) for section in flag_table(program_of(q.engine).key).values() if isinstance(section, dict))
    word = next((text.split()[0] for text in spelled if isinstance(text, str)), name.replace("_", "-"))
    return f"--{word}" if value is True else f"--{word} {value}"
