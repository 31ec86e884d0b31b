"""Flags of techniques: what their texts in ``techniques.toml`` ask for, word by word, and how they are written for a question.

A text is what a command line would have: flags with values or JSON, ``NAME=value`` for variables, ``path.to.key=value`` for
keys of a file of settings. ``{field}`` stands for a field of the question and ``{field+1}`` for one more, in capitals where
nobody has said it; words in ``[ … ]`` are left out where their number is what nobody has to say, and nothing is recognised by them.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from commtax.catalog.programs import flag_table, program
from commtax.catalog.techniques import field_value, is_default
from commtax.files import JsonObject
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import Engine, Technique

FIELD = re.compile(r"\{([a-z_]+)([+-]\d+)?\}")
PLACE = re.compile(r"<([a-z_]+)([+-]\d+)?>")  # a field's place, once JSON around it can be read
OPTIONAL = re.compile(r"(?:^|(?<=\s))\[(.+?)\](?=\s|$)")
VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
SETTING = re.compile(r"([a-z][\w.]*)(?:=(.*))?")
OF_REQUESTS = ("acceptance", "accepted_length")  # fields of techniques that texts decide, and no flag


@dataclass(frozen=True, slots=True)
class FlagWord:
    """One setting of a program: a flag, a variable or a key of its settings, by its path."""

    kind: str  # flag | variable | setting
    path: tuple[str, ...]  # a flag's name and, where its value is JSON, the keys below it
    value: str  # "true" for a switch; ``<field>`` where a field stands
    optional: bool = False

    @property
    def key(self) -> str:
        """The path as flags are compared: underscores as dashes, and variables as they are."""
        return "$" + self.path[0] if self.kind == "variable" else ".".join(self.path).replace("_", "-")

    @property
    def place(self) -> tuple[str, int] | None:
        """The field that stands here, and what is added to it."""
        match = PLACE.fullmatch(self.value)
        return (match[1], int(match[2] or 0)) if match else None


@lru_cache(maxsize=256)
def flag_words(text: str) -> tuple[FlagWord, ...]:
    """Return what a technique's text asks for.

    >>> [(word.key, word.value) for word in flag_words('--x \\'{"a_b": {"c": {dcp}}}\\' Y=1')]
    [('x.a-b.c', '<dcp>'), ('$Y', '1')]
    """
    optional = (word for part in OPTIONAL.findall(text) for word in _words(part, optional=True))
    return (*_words(OPTIONAL.sub(" ", text), optional=False), *optional)


def _words(text: str, optional: bool) -> Iterator[FlagWord]:
    text = re.sub(r"(?<![\w\"])([a-z][\w.]*): (?=\S)", r"\1=", text)  # settings as YAML has them
    words = [word for word in shlex.split(FIELD.sub(r"<\1\2>", text)) if word != "and"]
    for at, word in enumerate(words):
        if word.startswith("-"):
            value = words[at + 1] if at + 1 < len(words) and _is_value(words[at + 1]) else "true"
            yield from (FlagWord("flag", (word.lstrip("-"), *path), leaf, optional) for path, leaf in leaves(value))
        elif at and words[at - 1].startswith("-") and _is_value(word):
            continue
        elif variable := VARIABLE.fullmatch(word):
            yield FlagWord("variable", (variable[1],), variable[2], optional)
        elif setting := SETTING.fullmatch(word):
            yield FlagWord("setting", tuple(setting[1].split(".")), setting[2] or "true", optional)


def _is_value(word: str) -> bool:
    return not word.startswith("-") and not VARIABLE.fullmatch(word)


def leaves(value: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return what stands at the ends of a value's JSON, by path, where a plain value stands for itself.

    >>> list(leaves('{"a": {"b": true}, "c": 3}')), list(leaves("fp8"))
    ([(('a', 'b'), 'true'), (('c',), '3')], [((), 'fp8')])
    """
    if not value.lstrip().startswith("{"):
        return iter([((), value)])
    try:
        tree = json.loads(re.sub(r'(?<!")(<[a-z_]+(?:[+-]\d+)?>)', r'"\1"', value))
    except (ValueError, RecursionError):
        tree = _python(value)
    return tree_leaves(tree, ())


def json_fault(value: str) -> str:
    """Return what is wrong with a value that begins as JSON does, and where, or "" where nothing is.

    >>> print(json_fault('{"a": 1'), json_fault("{'a': True}"), json_fault("fp8"), sep="|")
    not JSON: expecting ',' delimiter at character 8, after '{"a": 1'||
    """
    if not value.lstrip().startswith("{") or isinstance(_python(value), dict):
        return ""
    try:
        json.loads(value)
    except json.JSONDecodeError as fault:
        before = value[max(0, fault.pos - 20) : fault.pos]
        hint = "" if '"' in value else " (a shell takes quotes away that are not inside other quotes)"
        return f"not JSON: {fault.msg[0].lower()}{fault.msg[1:]} at character {fault.pos + 1}, after '{before}'{hint}"
    except RecursionError:
        return "JSON that is nested too deeply"
    return ""


def _python(value: str) -> object:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value


def tree_leaves(tree: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the ends of a tree of tables, each with its path."""
    if isinstance(tree, dict):
        for key, below in tree.items():
            yield from tree_leaves(below, (*path, str(key)))
    else:
        yield path, tree if isinstance(tree, str) else str(tree).lower()


@dataclass(frozen=True, slots=True)
class WrittenFlags:
    """Flags of techniques as a command has them, those of several joined."""

    flags: JsonObject = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: JsonObject = field(default_factory=dict)
    unsaid: tuple[str, ...] = ()  # what nobody knows: written in capitals, to be put in

    @property
    def args(self) -> list[str]:
        quoted = {name: shlex.quote(json.dumps(x) if isinstance(x, dict) else str(x)) for name, x in self.flags.items()}
        return [f"--{name}{'' if self.flags[name] is True else ' ' + text}" for name, text in quoted.items()]

    @property
    def text(self) -> str:
        """One line for people."""
        above = [f"{name}={value}" for name, value in self.variables.items()]
        below = [f"{name}: {_flow(value)}" for name, value in self.settings.items()]
        return "; ".join([*filter(None, [" ".join([*above, *self.args])]), *below])


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(below)}" for key, below in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def flag_text(techniques: Sequence[Technique], engine: str, question: Question) -> str:
    """Return what turns techniques on in an engine, in one line, or "" where it has no flag for one of them."""
    spoken = engine if engine in techniques[0].flags else question.engine.launched_as or engine
    return written_flags(techniques, spoken, question, whole=True).text if all(one.flags.get(spoken) for one in techniques) else ""


def written_flags(techniques: Iterable[Technique], engine: str, question: Question, whole: bool = False) -> WrittenFlags:
    """Return the flags of techniques, as the question sets them, with ``whole`` also those of its plan that change along."""
    trees: dict[str, JsonObject] = {"flag": {}, "variable": {}, "setting": {}}
    unsaid: list[str] = []
    for one in techniques:
        along = flag_words(one.along.get(engine, "")) if whole else ()
        for word in (*along, *flag_words(one.flags.get(engine, ""))):
            place, value = word.place, word.value
            if place:
                spoken = _spoken(place[0], place_value(question, place[0]))
                if spoken in (None, ""):
                    value = place[0].upper()
                    unsaid.append(value)
                elif word.optional and (is_default(place[0], spoken) or spoken == one.sets.get(place[0])):
                    continue  # it goes without saying
                else:
                    value = _theirs(one, engine, word.key, spoken, place[1])
            typed = {"true": True, "false": False}.get(value, int(value) if re.fullmatch(r"-?\d{1,15}", value) else value)
            tree = trees[word.kind]
            for key in word.path[:-1]:
                below = tree.get(key)
                tree[key] = below = below if isinstance(below, dict) else {}
                tree = below
            tree[word.path[-1]] = typed
    variables = {name: _flow(value) for name, value in trees["variable"].items()}
    return WrittenFlags(trees["flag"], variables, trees["setting"], tuple(dict.fromkeys(unsaid)))


def _spoken(name: str, value: object) -> object:
    """Return a value as engines know it: a model of ours by its name on the Hub, None where it has none."""
    if name != "draft_model" or not value or "/" in str(value):
        return value
    from commtax.catalog.models import model  # not for those who draft with no model of its own

    return next((alias for alias in model(str(value)).aliases if "/" in alias), None)


def place_value(question: Question, name: str) -> object:
    """Return what stands in a place: a field of the question, all ranks' experts with copies, or ranks as engines count."""
    experts, plan = question.model.experts, question.plan
    if name == "slots":
        return experts.num_experts + int(plan.redundant_experts) if experts else None
    ranks = max(1, int(plan.ep) // int(plan.tp)) * int(plan.tp)  # of the groups of one server
    counts = {"tp_over_dcp": ranks // int(plan.dcp), "tp_times_cp": ranks * int(plan.cp)}
    return counts[name] if name in counts else field_value(question, name)


def _theirs(one: Technique, engine: str, key: str, value: object, more: int) -> str:
    if not isinstance(value, str):
        return str(int(float(str(value))) + more) if not isinstance(value, bool) else str(value).lower()
    ours = next((word for word, becomes in one.words.items() if becomes == value), value)
    return next((str(theirs) for theirs, word in words_of(engine).get(key, {}).items() if word in (ours, value)), ours)


@lru_cache(maxsize=8)
def words_of(engine: str) -> Mapping[str, Mapping[str, str]]:
    """Return an engine's words for values, by the path of a flag or the name of a variable, and ours."""
    table = flag_table(engine)
    return {**{f"${name}": words for name, words in table.get("libraries", {}).items()}, **table.get("words", {})}


def untold_fields(one: Technique, engine: str, question: Question) -> list[tuple[str, object]]:
    """Return what a question sets of a technique and an engine has no flag for, beside what its requests decide."""
    placed = {word.place[0] for word in flag_words(one.flags.get(engine, "")) if word.place}
    names = [name.strip("?") for name in one.takes if name.strip("?") not in (*placed, *OF_REQUESTS)]
    values = [(name, field_value(question, name)) for name in names]
    return [(name, value) for name, value in values if not is_default(name, value) and one.sets.get(name) != value]


def who_has(one: Technique, engine: Engine) -> str:
    """Explain that an engine has no setting for a technique, and which others do."""
    if engine.key in one.flags:
        return f"{engine.name} decides this by itself; there is nothing to set"
    able = [program(name).title for name in one.flags]
    return f"{engine.name} does not have it; {' and '.join(able)} {'do' if len(able) > 1 else 'does'}"


def is_carrier(one: Technique) -> bool:
    """Return whether it says what carries caches between servers, which those of a pair are told when they are joined."""
    return "kv_transfer" in one.sets or "kv_transfer" in (name.strip("?") for name in one.takes)
