"""Techniques that flags ask for: as ``catalog/techniques.toml`` has their flags, whichever spelling was taken."""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from commtax.catalog.programs import program, programs
from commtax.catalog.technique_flags import FlagWord, flag_words
from commtax.catalog.techniques import default_of, techniques
from commtax.files import table
from commtax.launch.flags import (
    COMMON,
    DASHES,
    QUIET,
    RULES,
    FlagReading,
    SaidWord,
    Value,
    command_of,
    flag_name,
    flags_of,
    usual_key,
)
from commtax.options import options
from commtax.records import dataclass
from commtax.spec import Technique
from commtax.statement import COSTLY, STRANGE, Note, Refusal
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
        """The technique as ``--technique`` takes it, without optional values that an option of their own sets."""
        words, names = self.technique.words, [name.strip("?") for name in self.technique.takes]
        own = [name for name, value in self.fields.items() if self.technique.sets.get(name) != value]
        needed = [at for at, name in enumerate(names) if name in own and not _is_told_by_option(self.technique, name)]
        given = [str(self.fields.get(name, "")) for name in names[: max(needed, default=-1) + 1]]
        given = [next((word for word, becomes in words.items() if becomes == value), value) for value in given]
        return f"{self.technique.key}={':'.join(given)}" if given and all(given) else self.technique.key


def recognise(engine: str, reading: FlagReading) -> None:
    """Turn flags of techniques into options of ours where there are any, else into ``technique``, and list the rest as unread."""
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
    """Return the option of each field of the question that has one. Experts of all ranks count as an option."""
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
    """Price drafts that no technique of ours makes as verified all the same, and return the key that says how many."""
    words = [word for one in techniques().values() for word in flag_words(one.flags.get(engine, "")) if word.key in said]
    for word in words:
        if word.place and word.place[0] == "speculative" and (drafts := _number(word.place, said[word.key])) > 0:
            reading.values.speculative = drafts
            reading.note("drafts", f"{drafts} drafts are priced as they are verified; what makes them is not in the answer")
            return {word.key}
    return set()


def _judge_rest(engine: str, reading: FlagReading, understood: set[str]) -> None:
    """List flags of techniques that no technique took as unread, unless they turn something off."""
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


TABLE = {
    section: {name: str(phrase) for names, phrase in rows.items() for name in names.split()}
    for section, rows in table("launch/unpriced.toml").items()
}
MAY_COST = frozenset(TABLE["costly"]["settings"].split())


def would_change(engine: str, key: str) -> str:
    """Return what a flag or variable would have changed, "" where that is not documented. Keys below it mean the same."""
    for known in (TABLE.get(engine, {}), TABLE["any"]):
        parts = key.split(".")
        for size in range(len(parts), 0, -1):
            if phrase := known.get(".".join(parts[:size])):
                return phrase
    return ""


def unread_remarks(engine: str, unread: Iterable[str], where: str = "answer") -> list[str]:
    """Return what is said of words that are not in an answer: those that mean nothing to us, those that may cost, then others.

    >>> unread_remarks("vllm", ["--foo 3", "--cpu-offload-gb 4"])[1]
    'may cost, and not in the answer: --cpu-offload-gb 4 (weights in host memory, sent to the GPU in every step)'
    """
    kinds: dict[str, list[str]] = {STRANGE: [], COSTLY: [], "": []}
    for word in unread:
        name = re.split(r"[=\s]", word, maxsplit=1)[0]
        key = usual_key(flags_of(engine), flag_name(name)) if name.startswith("-") else f"${name}"  # a flag's path, or a variable
        phrase = would_change(engine, key)
        kind = STRANGE if not phrase else COSTLY if MAY_COST & {key, key.partition(".")[0]} else ""
        kinds[kind].append(f"{word} ({phrase})" if phrase else word)
    says = {STRANGE: "not understood, and not in", COSTLY: "may cost, and not in", "": "not in"}
    return [Note(kind, f"{says[kind]} the {where}: {', '.join(words)}") for kind, words in kinds.items() if words]


MISSPELT = "misspelt"  # the kind of such refusals
SHORT, LONG = 3, 8  # letters of names in which a slip of the keys alone is one, and from which two mistakes are
ALIKE = frozenset(str(COMMON["alike"]).split())  # real flags that differ from others by a letter or two


def refuse_misspelt(engine: str, unread: Iterable[str]) -> None:
    """Refuse the first word that is not understood and that resembles a flag, or a value, which changes the answer."""
    for word in unread:
        flag, _, value = word.replace("=", " ", 1).partition(" ")
        name = flag_name(flag)
        if flag[0] not in DASHES:
            continue
        if (kept := flags_of(engine).flags.get(name)) and kept[1] == "name":
            near = [known for known in flags_of(engine).names[kept[0]] if _is_slip(value.lower(), known)]
            what, near = f"{flag} {value}: {program(engine).title} knows no such value", near[:1]
        else:
            found = nearest_flags(engine, name)
            single = flag[0] == "-" != flag[1:2]
            near = [("-" if single and len(known) <= SHORT else "--") + known for known in found]
            in_short = any(known.startswith(name) for known in found)
            what = f"{flag}: {'not read in short' if in_short else f'{program(engine).title} has no such flag'}"
        if near:
            raise Refusal(f"{what}; did you mean {' or '.join(near)}?", "from", near, kind=MISSPELT)


def nearest_flags(engine: str, name: str) -> list[str]:
    """Return the flags that an unknown name was probably meant to be, the nearest alone, or none where it may be a real flag.

    >>> nearest_flags("vllm", "tensor-paralel-size"), nearest_flags("vllm", "max-num-batched"), nearest_flags("vllm", "tp-size")
    (['tensor-parallel-size'], ['max-num-batched-tokens'], ['tensor-parallel-size'])
    >>> nearest_flags("vllm", "max-num-sequences"), nearest_flags("vllm", "max-model-length")
    (['max-num-seqs'], ['max-model-len'])
    >>> nearest_flags("vllm", "seed-tokens"), nearest_flags("sglang", "attn-dp-size")
    ([], [])
    """
    if any(name in real for real in (ALIKE, TABLE.get(engine, ()), TABLE["any"], _known(engine), QUIET, COMMON["unmodelled"])):
        return []
    apart = {known: _mistakes(name, known) for known in _known(engine) if _resembles(name, known)}
    if apart:
        return sorted(known for known, count in apart.items() if count == min(apart.values()))[:4]
    if longer := [known for known in _known(engine) if (len(name) >= LONG and known.startswith(name)) or _is_abridged(name, known)]:
        return longer[:4]
    own = flags_of(engine)
    fields = {other.flags[name][0] for one in programs() if name in (other := flags_of(one.key)).flags}
    return sorted(own.written[field] for field in fields if field in own.written)


@lru_cache(maxsize=8)
def _known(engine: str) -> Mapping[str, None]:
    """Return the flags of an engine that change an answer, keys below them with their path."""
    asked = [word.key for one in techniques().values() for word in flag_words(one.flags.get(engine, "")) if word.kind == "flag"]
    own = flags_of(engine)
    return dict.fromkeys(name for name in (*own.flags, *own.asked, *own.same, *asked) if name[0] != "$")


def _resembles(name: str, known: str) -> bool:
    """Return whether a name is another one mistyped: two mistakes in a long one, one in a short one."""
    if len(known) <= SHORT:
        return _is_slip(name, known)
    return abs(len(name) - len(known)) <= 2 and _mistakes(name, known) <= (2 if len(known) >= LONG else 1)


def _is_abridged(name: str, known: str) -> bool:
    """Return whether two names have as many words, some alike, and of the others one is short for the other."""
    words = list(zip(name.split("-"), known.split("-"), strict=False))
    alike = [a == b or (a[:1] == b[:1] and (_stands_in(a, b) or _stands_in(b, a))) for a, b in words]
    return name.count("-") == known.count("-") and all(alike) and any(a == b for a, b in words)


def _stands_in(short: str, word: str) -> bool:
    """Return whether letters stand in a word in their order."""
    letters = iter(word)
    return all(letter in letters for letter in short)


def _is_slip(name: str, known: str) -> bool:
    """Return whether a letter of a name was dropped, doubled, or swapped with the next one: none is there that it does not have.

    >>> [_is_slip(name, "tp") for name in ("t", "tpp", "pt", "sp", "dtp")]
    [True, True, True, False, False]
    """
    return set(name) <= set(known) and _mistakes(name, known) == 1


def _mistakes(name: str, known: str) -> int:
    """Return how many letters were dropped, added, replaced or swapped with the next one."""
    rows = [list(range(len(known) + 1))]
    for i, a in enumerate(name, 1):
        row = [i]
        for j, b in enumerate(known, 1):
            swapped = rows[-2][j - 2] + 1 if i > 1 and j > 1 and a == known[j - 2] and b == name[i - 2] else i + j
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b), swapped))
        rows.append(row)
    return rows[-1][-1]
