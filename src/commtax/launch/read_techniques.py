"""Techniques that flags ask for: as ``catalog/techniques.toml`` has their flags, whichever spelling was taken."""

from collections.abc import Mapping
from functools import cache

from commtax.catalog.technique_flags import FlagWord, flag_words
from commtax.catalog.techniques import default_of, techniques
from commtax.launch.flags import QUIET, RULES, FlagReading, SaidWord, Value, command_of, flags_of
from commtax.launch.unread import nearest_flags, would_change
from commtax.options import options
from commtax.records import dataclass
from commtax.spec import Technique
from commtax.statement import Refusal
from commtax.units import parse_count

OFF = ("false", "0", "no", "off", "none", "null", "~", "auto", "default", "")
"""Words that leave a technique off, or to the engine."""
FieldValues = dict[str, Value]


@dataclass(frozen=True, slots=True)
class AskedTechnique:
    """A technique that flags ask for: what they set, and the words that say so."""

    technique: Technique
    fields: FieldValues
    keys: frozenset[str]
    fixed: int  # words of its text that stood there as they are

    @property
    def text(self) -> str:
        """As ``--technique`` has it; what may be left out and has an option of its own is told by that."""
        words, names = self.technique.words, [name.strip("?") for name in self.technique.takes]
        own = [name for name, value in self.fields.items() if self.technique.sets.get(name) != value]
        needed = [at for at, name in enumerate(names) if name in own and not _is_told_by_option(self.technique, name)]
        given = [str(self.fields.get(name, "")) for name in names[: max(needed, default=-1) + 1]]
        given = [next((word for word, becomes in words.items() if becomes == value), value) for value in given]
        return f"{self.technique.key}={':'.join(given)}" if given and all(given) else self.technique.key


def recognise(engine: str, reading: FlagReading) -> None:
    """Fill in what flags of techniques say: options of ours where there are any, else ``technique``; the rest is unread."""
    own = flags_of(engine)
    if not own.asked:
        return
    command_of(engine).complete(reading)
    words = {key: {theirs.lower(): ours for theirs, ours in own.words.get(key, {}).items()} for key in reading.said}
    said = {key: SaidWord(words[key].get(word.value.lower(), word.value), word.written) for key, word in reading.said.items()}
    found = sorted((one for t in techniques().values() if (one := _asked(t, engine, said, reading))), key=lambda one: one.fixed)
    fields: FieldValues = {}
    for one in found:  # the one that more words ask for wins
        fields |= one.fields
    found = [one for one in found if all(fields[name] == value for name, value in one.fields.items())]
    own_options = _own_options()
    told = [one for one in found if not one.fields.keys() <= own_options.keys() and not one.fields.items() <= own.usual.items()]
    by_text = {name for one in told for name in one.fields if not _is_told_by_option(one.technique, name)}
    by_option = {own_options[name]: value for name, value in fields.items() if name in own_options and name not in by_text}
    reading.values.update(by_option)
    if told:
        reading.values["technique"] = ",".join(one.text for one in told)
    understood = {key for one in found for key in one.keys}
    if "speculative" not in fields:
        understood |= _other_drafts(engine, said, reading)
    _judge_rest(engine, reading, understood)


@cache
def _own_options() -> Mapping[str, str]:
    """FieldValues of the question that have an option of their own, and its name; experts of all ranks are told as such."""
    return {option.key: name for name, option in options().items() if option.field} | {"slots": "slots"}


def _is_told_by_option(one: Technique, name: str) -> bool:
    """Return whether a field is one that may be left out behind a technique's name, and has an option of its own."""
    return name in _own_options() and (f"{name}?" in one.takes or name == "slots")


def _asked(one: Technique, engine: str, said: Mapping[str, SaidWord], reading: FlagReading) -> AskedTechnique | None:
    """Return a technique that flags ask for: all of its text's words stand there, or, where it has none, what it takes is said."""
    words = flag_words(one.flags.get(engine, ""))
    fixed = [word for word in words if not word.optional and not word.place]
    if not words or not all(_stands(word, said, reading) for word in fixed):
        return None
    taken: FieldValues = {}
    for word in words:
        if word.place and word.key in said:
            taken |= _taken(one, word.place, said[word.key])
    if not fixed and not taken:
        return None
    fields: FieldValues = {name: value for name, value in one.sets.items() if isinstance(value, (int, float, str))} | taken
    missing = [word.place[0] for word in words if word.place and not word.optional and word.place[0] not in fields]
    if missing and one.usual:
        usual = dict(zip((name.strip("?") for name in one.takes), one.usual.split(":"), strict=False))
        fields |= {name: int(usual[name]) for name in missing if usual.get(name, "").isdigit()}
        reading.note("usual", f"{one.key}: how many is not said; {one.usual} taken")
    return AskedTechnique(one, fields, frozenset(word.key for word in words if word.key in said), len(fixed))


def _stands(word: FlagWord, said: Mapping[str, SaidWord], reading: FlagReading) -> bool:
    """Return whether a word was said, as it is or by another that means it."""
    return word.key in said and word.value.lower() in (said[word.key].value.lower(), reading.said[word.key].value.lower())


def _taken(one: Technique, place: tuple[str, int], said: SaidWord) -> FieldValues:
    """Return the field that a word sets, where it is not left to the engine."""
    name, _ = place
    if name not in {"slots", *(taken.strip("?") for taken in one.takes)}:  # what is only written, such as a drafter's checkpoint
        return {}
    if said.value == name.upper() or said.value.lower() in OFF or said.value == str(default_of(name)):
        return {}
    if one.words and name in {taken.strip("?") for taken in one.takes}:
        ours = one.words.get(said.value.lower(), said.value)
        return {name: ours} if ours in one.words.values() else {}
    if isinstance(default_of(name), str):
        return {name: said.value}
    number = _number(place, said)
    return {name: number} if number > 0 else {}


def _number(place: tuple[str, int], said: SaidWord) -> int:
    try:
        return int(parse_count(said.value, place[0])) - place[1]
    except ValueError:
        raise Refusal(f"from: '{said.written}': {RULES['count']}", "from") from None


def _other_drafts(engine: str, said: Mapping[str, SaidWord], reading: FlagReading) -> set[str]:
    """Drafts that no technique of ours makes are verified all the same; returns what says how many."""
    words = [word for one in techniques().values() for word in flag_words(one.flags.get(engine, "")) if word.key in said]
    for word in words:
        if word.place and word.place[0] == "speculative" and (drafts := _number(word.place, said[word.key])) > 0:
            reading.values.speculative = drafts
            reading.note("drafts", f"{drafts} drafts are priced as they are verified; what makes them is not in the answer")
            return {word.key}
    return set()


def _judge_rest(engine: str, reading: FlagReading, understood: set[str]) -> None:
    """What flags of techniques say beside those that were recognised is unread, unless it turns something off."""
    own = flags_of(engine)
    understood_words = {reading.said[key].written for key in understood}
    reading.unread = [word for word in reading.unread if word not in understood_words]
    for key, word in reading.said.items():
        below = key.partition(".")[0] in own.flags and not nearest_flags(engine, key)
        known = key in understood or key in QUIET or key in own.flags or below
        if known or word.value == str(default_of(own.asked.get(key, ("", ""))[0])):
            continue
        if word.value.lower() not in OFF or would_change(engine, f"no-{key}"):
            reading.unread.append(word.written)
