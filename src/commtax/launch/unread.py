"""Flags that no price has: what each would have changed, where that is well known (``unpriced.toml``); and flags that no engine has
and that resemble one that changes the answer, which are refused, as the engine would not start with them."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from commtax.catalog.programs import program, programs
from commtax.catalog.technique_flags import flag_words
from commtax.catalog.techniques import techniques
from commtax.files import table
from commtax.launch.flags import COMMON, DASHES, QUIET, flag_name, flags_of, usual_key
from commtax.statement import COSTLY, STRANGE, Note, Refusal

TABLE = {
    section: {name: str(phrase) for names, phrase in rows.items() for name in names.split()}
    for section, rows in table("launch/unpriced.toml").items()
}
MAY_COST = frozenset(TABLE["costly"]["settings"].split())


def would_change(engine: str, key: str) -> str:
    """Return what a flag or variable would have changed; "" where that is not known. What stands below it is told by it."""
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
    """Flags of an engine that a name which is none of them was meant to be, the nearest alone; none where it may be a real one.

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
