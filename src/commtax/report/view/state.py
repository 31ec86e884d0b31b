"""What the page asks: a state under short keys, as it stands in a link. One table says names, ranges and defaults."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.catalog.loader import suggest
from commtax.catalog.models import known_model
from commtax.catalog.techniques import techniques_on
from commtax.cost.memory import LIGHT, RECOMPUTE
from commtax.cost.schedules import TRAINING
from commtax.files import table
from commtax.options import options, page_keys
from commtax.planner.fleets import STATISTICS
from commtax.planner.serving_search import OBJECTIVES
from commtax.question import AUTO, PHASES, Question
from commtax.records import dataclass
from commtax.report.documents import Value
from commtax.report.view.slider_moves import MOST
from commtax.rules.legality import RULES
from commtax.spec import DTYPE_BYTES, SIZES, Cluster, Model
from commtax.statement import Refusal
from commtax.verbs.keywords import CompareOptions
from commtax.verbs.settling import resolve_question
from commtax.words import spelled

INTEGER = r"-?[0-9]{1,12}"
NUMBER = r"-?[0-9]{1,12}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?"
MAX_GPUS, MAX_LAYERS = MOST["dp"], 1_024
MOST_PLACES = 5  # clusters that one may be compared with
SHOWN = ("decode", "prefill", "train")  # phases that the page draws
WORDS: Mapping[str, tuple[str, ...]] = {  # all that a key may be, of those that have a list
    "ph": SHOWN,
    "z": ("", "0", "1", "2", "3"),
    "rc": (*RECOMPUTE, *LIGHT),
    "sch": TRAINING,
    "dt": ("", *DTYPE_BYTES),
    "kv": ("", "bf16", "fp16", "fp8"),
    "lib": ("", *catalog.keys("libraries")),
    "obj": OBJECTIVES,
    "stat": STATISTICS,
    "try": ("", AUTO),
}


class RefusedError(Refusal):
    """A question that cannot be priced, under the page's own key, ``malformed`` where it cannot even be read."""

    def __init__(self, rule: str, argument: str = "", nearest: Sequence[float | str] = (), malformed: bool = True) -> None:
        super().__init__(rule, argument, nearest)
        self.malformed = malformed


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the state. Numbers have a range, words a length or a list. ``option`` is its long name."""

    name: str
    option: str
    default: int | float | str
    help: str
    low: float = 0
    high: float = 0
    words: tuple[str, ...] = ()
    length: int = 64
    pattern: str = ""
    label: str = ""  # of its control, by which remedies name it
    also: Sequence[str] = ()  # further names of the library's for it
    plain: bool = False  # asked and shown as it is, whatever else is

    @property
    def is_number(self) -> bool:
        return not isinstance(self.default, str)

    def read(self, text: str) -> int | float | str:
        """Read a value from a link, or refuse it with the rule."""
        if not self.is_number:
            if self.words and text not in self.words:
                listed = [w for w in self.words if w]
                alike = suggest(text[:64], listed)
                raise RefusedError(f"{self.name} '{_printable(text)}': one of {', '.join(listed)}{alike}", self.name)
            if len(text.encode("utf-8", "replace")) > self.length:
                raise RefusedError(f"{self.name}: longer than {self.length:,} bytes", self.name)
            if self.pattern and text and not re.fullmatch(self.pattern, text):
                raise RefusedError(f"{self.name} '{_printable(text)}': letters, digits, dots and dashes only", self.name)
            return text
        whole = isinstance(self.default, int)
        if not re.fullmatch(INTEGER if whole else NUMBER, text):
            kind = "a whole number" if whole else "a number"
            raise RefusedError(f"{self.name}: {kind} is needed, not '{_printable(text)}'", self.name)
        value = int(text) if whole else float(text)
        if not self.low <= value <= self.high:
            near = min(max(value, self.low), self.high)
            raise RefusedError(f"{self.name}={value:g}: from {self.low:g} to {self.high:g}", self.name, [near])
        return value


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:40])


KEYS = tuple(Key(name, words=WORDS.get(name, ()), **entry) for name, entry in page_keys().items())
PLAIN = tuple(key for key in KEYS if key.plain)
SHORT = {name: key.name for key in KEYS for name in (key.option, *key.also)}
RULE_NAMES = {rule.name for rule in RULES}
LABELS = {name: key.label for key in KEYS if key.label for name in (key.name, key.option)}


def on_page(text: str) -> str:
    """Return a note with its options named as the page's controls are.

    >>> from commtax.words import words
    >>> on_page(words("remedy-weights", dtype="fp8")), on_page(words("within-margin", margin="5%"))
    ('weights in fp8 (‘Weights’ fp8)', 'within the margin of 5%; measure both')
    """
    return spelled(text, _control)


def _control(option: str, value: str) -> str:
    """Return a control and the value to set it to, or "" where the page has none for an option."""
    label = LABELS.get(option.replace("-", "_"), "")
    return f"‘{label}’{f' {value}' if value and value != AUTO else ''}" if label else ""


@dataclass(frozen=True)  # without slots: the question is asked for often and kept
class State:
    """What the controls say, all of them. Keys without meaning in a phase keep their place and change nothing."""

    keys: Mapping[str, Value] = field(default_factory=lambda: {key.name: key.default for key in KEYS})

    def __getitem__(self, name: str) -> Any:
        return self.keys[name]

    def but(self, patch: Mapping[str, Value]) -> State:
        return State({**self.keys, **patch})

    @property
    def length(self) -> int:
        return int(self["s"] or PHASES[self["ph"]].length)

    @property
    def longest(self) -> int:
        return int(self["len"] or min(self.question.model.max_len, self["il"] + self["ol"]))

    @property
    def places(self) -> list[Cluster]:
        """Clusters that plans are searched on: the one of the controls, and those that it is compared with."""
        others = [name for name in dict.fromkeys(self["cs"].split(",")) if name and name != self["c"]]
        if len(others) > MOST_PLACES:
            raise RefusedError(f"cs: at most {MOST_PLACES} further clusters are compared", "cs", malformed=False)
        return [self.question.cluster, *(_cluster(name, "", "", "cs") for name in others)]

    @property
    def file(self) -> str:
        """The file that a command line needs for a model that is not in the catalogue, else ""."""
        return "pasted.json" if self["cfg"] else f"free-h{self['h']}-l{self['L']}.json" if self["h"] else ""

    @property
    def options(self) -> dict[str, object]:
        """The options beside model and cluster, by the names that the library and the command line have for them."""
        chosen: dict[str, object] = {**CompareOptions(engine=self["e"], dtype=self["dt"], library=self["lib"])}
        chosen |= {key.option: self[key.name] for key in PLAIN}
        chosen |= CompareOptions(phase=self["ph"], sequence_parallel=bool(self["sp"]) or None, eager=bool(self["eg"]))
        if self["ep"] > 1 and self["imb"]:
            chosen |= CompareOptions(imbalance=self["imb"])
        if not PHASES[self["ph"]].trains:
            if self["ep"] > 1:
                chosen |= CompareOptions(redundant_experts=self["red"], ep_backend=self["a2a"])
            chosen |= CompareOptions(technique=self["tq"])
            return {**chosen, **CompareOptions(batch=self["b"], context=self.length, kv_dtype=self["kv"])}
        axes, chunks = self["as"], self["v"] if self["sch"] == "interleaved" else 1
        chosen |= CompareOptions(batch=self["b"] * self["n"], micro_batch=self["b"], context=self.length)
        chosen |= CompareOptions(zero=int(self["z"]) if self["z"] else None)
        chosen |= CompareOptions(async_axes=None if not axes else () if axes == "none" else tuple(axes.split(",")))
        return {**chosen, **CompareOptions(recompute=self["rc"], schedule=self["sch"], chunks=chunks)}

    @cached_property
    def question(self) -> Question:
        model = _model(self["m"], self["cfg"], self["h"], self["L"], self.file.removesuffix(".json"))
        return resolve_question(model, _cluster(self["c"], self["intra"], self["inter"]), self.options)


def state_of(q: Question) -> State:
    """Return the controls as a question would have them."""
    plan, place, engine = q.plan, q.cluster, q.engine
    techniques = (text for one, text in techniques_on(q) if any(x.strip("?") not in SHORT for x in (*one.sets, *one.takes)))
    keys: dict[str, Value] = {
        "m": q.model.key,
        "c": place.key,
        "intra": "" if place.bridge or place.intra.key == place.chip.intra else place.intra.key,
        "inter": "" if place.inter.key == place.chip.inter else place.inter.key,
        "e": f"{engine.key}@{engine.version}" if engine.note else engine.key,
        "ph": q.phase,
        **{key.name: type(key.default)(attrgetter(options()[key.option].field)(q)) for key in PLAIN},
        "b": int(q.micro_batch if q.trains else q.batch),
        "s": int(q.context),
        "sp": int(plan.sequence_parallel),
        "eg": int(q.what_if.eager),
        "red": int(plan.redundant_experts),
        "a2a": q.what_if.ep_backend,
        "imb": float(q.what_if.imbalance),
        "lib": q.what_if.library.partition("@")[0],
        "tq": ",".join(techniques),
    }
    if not q.trains:
        return State().but(keys | {"kv": "" if plan.kv_dtype == plan.activations_dtype else plan.kv_dtype})
    kinds: dict[str, Value] = {"z": str(plan.zero), "rc": plan.recompute, "sch": plan.schedule, "v": max(2, int(plan.chunks))}
    axes = ",".join(q.what_if.beside(q.engine)) or "none"
    return State().but({**keys, **kinds, "n": int(q.batch // q.micro_batch), "as": axes})


# What needs no word; of all others nothing, "" and False
USUAL = {key.option: options()[key.option].default for key in KEYS if key.option in options()}
FLAGS = {name: option.flags[0] for name, option in options().items() if option.flags} | {axis: f"-{axis}" for axis in SIZES}


def arguments(state: State) -> list[str]:
    """Return the words behind ``commtax bill`` that ask the same question."""
    line = [state.file or state["m"], "--cluster", state["c"]]
    for name, value in {"intra": state["intra"], "inter": state["inter"], **state.options}.items():
        if value is not None and value is not False and value not in ("", USUAL.get(name)):
            text = (",".join(value) or "none") if isinstance(value, tuple) else str(value)
            line += [flag_of(name), *([] if value is True else [text])]
    return line


def flag_of(option: str) -> str:
    """Return the flag that command lines have for an option."""
    return FLAGS.get(option, f"--{option.replace('_', '-')}")


def command_line(state: State, *words: str) -> str:
    """Return a line of the command, and before it the config.json that it reads where the model is not of the catalogue."""
    line = shlex.join(["commtax", *words])
    return f"echo {shlex.quote(config_text(state))} > {state.file}\n{line}" if state.file else line


def config_text(state: State) -> str:
    """Return the config.json of a model that is not of the catalogue."""
    config = parse_pasted_config(state["cfg"]) if state["cfg"] else free_config(state["h"], state["L"])
    return json.dumps(config, separators=(",", ":"))


def parse(query: Iterable[tuple[str, str]], extra: tuple[Key, ...] = ()) -> State:
    """Read a state from the pairs of a query, with keys beside its own, and refuse unknown, repeated and bad ones by name."""
    keys = {key.name: key for key in (*KEYS, *extra)}
    values: dict[str, Value] = {}
    for name, text in query:
        if name not in keys:
            raise RefusedError(f"unknown key '{_printable(name)}'{suggest(name[:32], list(keys))}", _printable(name))
        if name in values:
            raise RefusedError(f"{name}: given twice", name)
        values[name] = keys[name].read(text)
    return State({key.name: key.default for key in keys.values()} | values)


def short_keys(sizes: Mapping[str, Value]) -> dict[str, Value]:
    return {SHORT[name]: str(value) if name == "zero" else value for name, value in sizes.items()}


@lru_cache(maxsize=64)
def _model(key: str, config: str, hidden: int, layers: int, name: str) -> Model:
    """Return the model: pasted, free, or of the catalogue, without a look at a disk or a network."""
    if name:
        model = from_config(parse_pasted_config(config) if config else free_config(hidden, layers), name)
        if model.num_layers > MAX_LAYERS:
            rule = f"cfg: {model.num_layers:,} layers, more than the {MAX_LAYERS:,} that the page draws"
            raise RefusedError(rule, "cfg", malformed=False)
        return model
    if (bundled := known_model(key)) is None:
        near = [name for name in catalog.keys("models") if name.startswith(key[:4].lower())][:3]
        rule = f"m '{_printable(key)}': not in the catalogue{suggest(key, catalog.keys('models'))} (or paste its config.json)"
        raise RefusedError(rule, "m", near, malformed=False)
    return bundled


@lru_cache(maxsize=128)
def _cluster(name: str, intra: str, inter: str, key: str = "c") -> Cluster:
    """Return the cluster with its links: bounded, because a page draws it, and no file, which whoever asks need not own."""
    if catalog.is_file(name):
        rule = f"{key} '{_printable(name)}': the page reads no files; a name of the catalogue, or 8xh100-sxm"
        raise RefusedError(rule, key, malformed=False)
    place = catalog.cluster(name, intra=intra, inter=inter)
    if place.num_gpus > MAX_GPUS:
        raise RefusedError(f"{key}: {place.num_gpus:,} GPUs, more than the {MAX_GPUS:,} that the page draws", key, malformed=False)
    return place


def parse_pasted_config(text: str) -> Mapping[str, object]:
    def refuse_constant(name: str) -> float:
        raise Refusal(f"{name} is not a number of JSON")

    try:
        config = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"cfg: not valid JSON ({_printable(str(error))})", "cfg", malformed=False) from None
    if not isinstance(config, dict):
        raise RefusedError("cfg: a JSON object is needed, as in config.json", "cfg", malformed=False)
    return config


def free_config(hidden: int, layers: int) -> Mapping[str, object]:
    """Return the lesson's layer in these sizes."""
    if hidden < 64 or hidden % 64:
        near = max(64, round(hidden / 64) * 64)
        raise RefusedError(f"h={hidden}: a multiple of 64, so that heads are whole", "h", [near], malformed=False)
    sizes = {"d_model": hidden, "n_heads": hidden // (128 if hidden % 128 == 0 else 64), "n_layers": layers}
    return {**table("report/view/tour.toml")["free"], **sizes}


def refusal(error: ValueError) -> RefusedError:
    """Return the library's refusal as one of ours: the argument under its short key, and the nearest legal values as numbers."""
    if isinstance(error, RefusedError):
        return error
    if not isinstance(error, Refusal):
        return RefusedError(" ".join(str(error).split()), malformed=False)
    text = error.rule if error.subject in RULE_NAMES else str(error)
    return RefusedError(" ".join(text.split()), SHORT.get(error.argument, ""), error.nearest, malformed=False)
