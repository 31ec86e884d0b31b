"""Techniques that flags request (``catalog/techniques.toml``); flags that no price has (``unpriced.toml``); and misspelt ones,
which are refused where they resemble one that changes the answer."""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from commtax.catalog.programs import program, programs
from commtax.catalog.technique_flags import flag_words
from commtax.catalog.techniques import default_of, techniques
from commtax.files import table
from commtax.launch.flags import COMMON, DASHES, QUIET, RULES, FlagReading, WrittenWord, command_of, flag_name, flags_of, usual_key
from commtax.options import options
from commtax.records import dataclass
from commtax.spec import Technique
from commtax.statement import COSTLY, STRANGE, Note, Refusal
from commtax.units import parse_count

OFF = ("false", "0", "no", "off", "none", "null", "~", "auto", "default", "")  # words that leave a technique off, or to the engine
FieldValues = dict[str, int | float | str | bool]


@dataclass(frozen=True, slots=True)
class RequestedTechnique:
    """A technique that flags request: what they set, and the keys of these flags."""

    technique: Technique
    fields: FieldValues
    keys: frozenset[str]
    fixed: int  # words of its text that stood there as they are

    @property
    def text(self) -> str:
        """The technique as ``--technique`` takes it, without optional values that an option of their own sets."""
        words, names = self.technique.words, [name.strip("?") for name in self.technique.takes]
        changed = [name for name, value in self.fields.items() if self.technique.sets.get(name) != value]
        needed = [at for at, name in enumerate(names) if name in changed and not _has_option(self.technique, name)]
        values = [str(self.fields.get(name, "")) for name in names[: max(needed, default=-1) + 1]]
        values = [next((word for word, becomes in words.items() if becomes == value), value) for value in values]
        return f"{self.technique.key}={':'.join(values)}" if values and all(values) else self.technique.key


def recognise(engine: str, reading: FlagReading) -> None:
    """Turn flags of techniques into options of ours where there are any, else into ``technique``, and list the rest as unread."""
    flags = flags_of(engine)
    if not flags.technique_flags:
        return
    command_of(engine).complete(reading)
    ours = {key: {theirs.lower(): word for theirs, word in flags.words.get(key, {}).items()} for key in reading.words}
    words = {key: WrittenWord(ours[key].get(word.value.lower(), word.value), word.written) for key, word in reading.words.items()}
    matches = sorted((one for t in techniques().values() if (one := _match(t, engine, words, reading))), key=lambda one: one.fixed)
    fields = {name: value for one in matches for name, value in one.fields.items()}  # the one that more words request wins
    matches = [one for one in matches if one.fields.items() <= fields.items()]
    options_of = _options_by_field()
    named = [one for one in matches if not one.fields.keys() <= options_of.keys() and not one.fields.items() <= flags.usual.items()]
    by_text = {name for one in named for name in one.fields if not _has_option(one.technique, name)}
    reading.values.update({options_of[name]: fields[name] for name in fields if name in options_of and name not in by_text})
    if named:
        reading.values["technique"] = ",".join(one.text for one in named)
    understood = {key for one in matches for key in one.keys}
    if "speculative" not in fields:
        understood |= _other_drafts(engine, words, reading)
    understood_words = {reading.words[key].written for key in understood}
    reading.unread = [word for word in reading.unread if word not in understood_words]
    for key, word in reading.words.items():
        below = key.partition(".")[0] in flags.flags and not nearest_flags(engine, key)
        usual = word.value == str(default_of(flags.technique_flags.get(key, ("", ""))[0]))
        if not (key in understood or key in QUIET or key in flags.flags or below or usual):
            reading.unread += [word.written] if word.value.lower() not in OFF or would_change(engine, f"no-{key}") else []


@cache
def _options_by_field() -> Mapping[str, str]:
    """Return the option of each field of the question that has one. Experts of all ranks count as an option."""
    return {option.key: name for name, option in options().items() if option.field} | {"slots": "slots"}


def _has_option(one: Technique, name: str) -> bool:
    """Return whether a field is one that may be left out behind a technique's name, and has an option of its own."""
    return name in _options_by_field() and (f"{name}?" in one.takes or name == "slots")


def _match(one: Technique, engine: str, written: Mapping[str, WrittenWord], reading: FlagReading) -> RequestedTechnique | None:
    """Return a technique that flags request: all words of its text stand there, or, where it has none, what it takes is set."""
    words = flag_words(one.flags.get(engine, ""))
    fixed = [word for word in words if not word.optional and not word.place]
    here = {key: (word.value.lower(), reading.words[key].value.lower()) for key, word in written.items()}
    if not words or not all(word.value.lower() in here.get(word.key, ()) for word in fixed):
        return None
    placed = [(word.place, written[word.key]) for word in words if word.place and word.key in written]
    taken = {name: value for place, text in placed for name, value in _taken(one, place, text).items()}
    if not fixed and not taken:
        return None
    fields: FieldValues = {name: value for name, value in one.sets.items() if isinstance(value, (int, float, str))} | taken
    missing = [word.place[0] for word in words if word.place and not word.optional and word.place[0] not in fields]
    if missing and one.usual:
        usual = dict(zip((name.strip("?") for name in one.takes), one.usual.split(":"), strict=False))
        fields |= {name: int(usual[name]) for name in missing if usual.get(name, "").isdigit()}
        reading.note("usual", f"{one.key}: how many is not said; {one.usual} taken")
    return RequestedTechnique(one, fields, frozenset(word.key for word in words if word.key in written), len(fixed))


def _taken(one: Technique, place: tuple[str, int], word: WrittenWord) -> FieldValues:
    name, takes = place[0], {taken.strip("?") for taken in one.takes}
    if name not in {"slots", *takes}:  # what is only written, such as a drafter's checkpoint
        return {}
    if word.value == name.upper() or word.value.lower() in OFF or word.value == str(default_of(name)):
        return {}
    if one.words and name in takes:
        ours = one.words.get(word.value.lower(), word.value)
        return {name: ours} if ours in one.words.values() else {}
    if isinstance(default_of(name), str):
        return {name: word.value}
    number = _number(place, word)
    return {name: number} if number > 0 else {}


def _number(place: tuple[str, int], word: WrittenWord) -> int:
    try:
        return int(parse_count(word.value, place[0])) - place[1]
    except ValueError:
        raise Refusal(f"from: '{word.written}': {RULES['count']}", "from") from None


def _other_drafts(engine: str, written: Mapping[str, WrittenWord], reading: FlagReading) -> set[str]:
    """Price drafts that no technique of ours makes as verified all the same, and return the key that says how many."""
    words = [word for one in techniques().values() for word in flag_words(one.flags.get(engine, "")) if word.key in written]
    for word in words:
        if word.place and word.place[0] == "speculative" and (drafts := _number(word.place, written[word.key])) > 0:
            reading.values.speculative = drafts
            reading.note("drafts", f"{drafts} drafts are priced as they are verified; what makes them is not in the answer")
            return {word.key}
    return set()


TABLE = {
    section: {name: str(phrase) for names, phrase in rows.items() for name in names.split()}
    for section, rows in table("launch/unpriced.toml").items()
}
MAY_COST = frozenset(TABLE["costly"]["settings"].split())


def would_change(engine: str, key: str) -> str:
    """Return what a flag or variable would have changed, "" where that is not documented. Keys below it mean the same."""
    parts = key.split(".")
    for phrases in (TABLE.get(engine, {}), TABLE["any"]):
        for size in range(len(parts), 0, -1):
            if phrase := phrases.get(".".join(parts[:size])):
                return phrase
    return ""


def unread_remarks(engine: str, unread: Iterable[str], where: str = "answer") -> list[str]:
    """Remark on words that are not in an answer: those that mean nothing to us, those that may cost, then others.

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
            near = [real for real in flags_of(engine).names[kept[0]] if _is_slip(value.lower(), real)][:1]
            what = f"{flag} {value}: {program(engine).title} knows no such value"
        else:
            nearest = nearest_flags(engine, name)
            single = flag[0] == "-" != flag[1:2]
            near = [("-" if single and len(real) <= SHORT else "--") + real for real in nearest]
            in_short = any(real.startswith(name) for real in nearest)
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
    flags = _flags_with_effect(engine)
    if any(name in real for real in (ALIKE, TABLE.get(engine, ()), TABLE["any"], flags, QUIET, COMMON["unmodelled"])):
        return []
    apart = {flag: _mistakes(name, flag) for flag in flags if _resembles(name, flag)}
    if apart:
        return sorted(flag for flag, count in apart.items() if count == min(apart.values()))[:4]
    if longer := [flag for flag in flags if (len(name) >= LONG and flag.startswith(name)) or _is_abridged(name, flag)]:
        return longer[:4]
    written = flags_of(engine).written
    fields = {other.flags[name][0] for one in programs() if name in (other := flags_of(one.key)).flags}
    return sorted(written[field] for field in fields if field in written)


@lru_cache(maxsize=8)
def _flags_with_effect(engine: str) -> Mapping[str, None]:
    keys = [word.key for one in techniques().values() for word in flag_words(one.flags.get(engine, "")) if word.kind == "flag"]
    table = flags_of(engine)
    return dict.fromkeys(name for name in (*table.flags, *table.technique_flags, *table.same, *keys) if name[0] != "$")


def _resembles(name: str, flag: str) -> bool:
    """Return whether a name is a flag mistyped: two mistakes in a long one, one in a short one."""
    if len(flag) <= SHORT:
        return _is_slip(name, flag)
    return abs(len(name) - len(flag)) <= 2 and _mistakes(name, flag) <= (2 if len(flag) >= LONG else 1)


def _is_abridged(name: str, flag: str) -> bool:
    """Return whether two names have as many words, some alike, and of the others one is short for the other."""

    def is_short(short: str, word: str) -> bool:
        letters = iter(word)
        return short[:1] == word[:1] and all(letter in letters for letter in short)  # in their order

    words = list(zip(name.split("-"), flag.split("-"), strict=False))
    alike = all(is_short(a, b) or is_short(b, a) for a, b in words)
    return name.count("-") == flag.count("-") and alike and any(a == b for a, b in words)


def _is_slip(name: str, flag: str) -> bool:
    """Return whether a letter of a name was dropped, doubled, or swapped with the next one: none is there that it does not have.

    >>> [_is_slip(name, "tp") for name in ("t", "tpp", "pt", "sp", "dtp")]
    [True, True, True, False, False]
    """
    return set(name) <= set(flag) and _mistakes(name, flag) == 1


def _mistakes(name: str, flag: str) -> int:
    rows = [list(range(len(flag) + 1))]
    for i, a in enumerate(name, 1):
        row = [i]
        for j, b in enumerate(flag, 1):
            swapped = rows[-2][j - 2] + 1 if i > 1 and j > 1 and a == flag[j - 2] and b == name[i - 2] else i + j
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b), swapped))
        rows.append(row)
    return rows[-1][-1]
