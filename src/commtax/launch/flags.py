"""The flags of launch commands, by which they are read and written (``flags`` in an engine's file); and a command that was read.

A row is a field, its kind and the flag's spellings, the one that is written first. Kinds: ``int``, ``count`` (128k), ``share``,
``ratio`` (from 0), ``text``, ``several`` (words, kept with commas), ``name`` (their word, in ``names``), ``on`` (a switch).
Flags of techniques (``catalog/techniques.toml``) are kept as they were written, for ``read_techniques``.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from importlib import import_module
from itertools import takewhile
from types import ModuleType

from commtax.catalog.programs import flag_table, program
from commtax.catalog.technique_flags import flag_words, json_fault, leaves, words_of
from commtax.catalog.techniques import techniques
from commtax.files import table
from commtax.options import options
from commtax.records import dataclass
from commtax.spec import AXES, SIZES
from commtax.statement import Note, Refusal
from commtax.units import parse_count, parse_fraction

Value = int | float | str | bool
Flags = Mapping[str, tuple[str, str]]  # the field and the kind of a flag, underscores in its name as dashes
RULES = {"int": "a whole number from 1 to 2^48 is needed", "count": "a whole number is needed, such as 4096 or 32k"}
RULES |= {"share": "a fraction above 0 and at most 1 is needed", "ratio": "a fraction from 0 to 1 is needed"}  # for kinds of values
KINDS = (*RULES, "text", "several", "name", "on")
PARSERS: Mapping[str, Callable[[str, str], float]] = {k: parse_count if k in ("int", "count") else parse_fraction for k in RULES}
DASHES = "-–—"  # as word processors make them of "--"
LEFT_TO_THE_ENGINE = ("auto", "null", "none", "~")
COMMON = table("launch/common.toml")  # what programs have in common: flags that change no price, and other names


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one program."""

    flags: Flags
    written: Mapping[str, str]  # the flag of a field
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of a field's values: theirs and ours
    libraries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # variables whose words name other collectives
    technique_flags: Flags = field(default_factory=dict)  # flags and variables (``$NAME``) of techniques
    same: Mapping[str, str] = field(default_factory=dict)  # other spellings of those, and of keys below them
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of their values: other words for those of tables
    usual: Mapping[str, str] = field(default_factory=dict)  # fields that commands have to say, and what leaves them to the engine

    def theirs(self, name: str, ours: str) -> str:
        """Return the program's word for a value, "" where it has none."""
        return next((word for word, value in self.names[name].items() if value == ours), "")

    def spell(self, **facts: Value) -> list[str]:
        """Return the flags that set these facts, in their order. 0, "" and False are left to the program.

        >>> flags_of("vllm").spell(tp=2, eager=True, max_num_seqs=0, gpu_memory_utilization=0.9)
        ['--tensor-parallel-size 2', '--enforce-eager', '--gpu-memory-utilization 0.9']
        """
        texts = {name: f" {value:g}" if isinstance(value, float) else f" {value}" for name, value in facts.items() if value}
        return [f"--{self.written[name]}{'' if facts[name] is True else text}" for name, text in texts.items()]


def _flags(rows: Mapping[str, Mapping[str, str]]) -> tuple[Flags, dict[str, str]]:
    spelled = [(name, kind, flags.split()) for kind in KINDS for name, flags in rows.get(kind, {}).items()]
    flags = {flag.replace("_", "-"): (name, kind) for name, kind, spellings in spelled for flag in spellings}
    return flags, {name: spellings[0] for name, _, spellings in spelled}


QUIET, _ = _flags(COMMON)  # flags of any program that change no price
TORCHRUN = FlagTable(*_flags(COMMON["torchrun"]))


@lru_cache(maxsize=64)
def flags_of(engine: str) -> FlagTable:
    rows = flag_table(engine)
    same, libraries = rows.get("same", {}), rows.get("libraries", {})
    names = {**COMMON["names"], **rows.get("names", {})}
    flags: dict[str, tuple[str, str]] = {}  # of techniques, by the first word of their path: switches, or flags with a value
    for word in (word for one in techniques().values() for word in flag_words(one.flags.get(engine, ""))):
        switch = len(word.path) == 1 and word.value == "true"
        flags[word.key.partition(".")[0]] = (word.place[0] if word.place else "", "on" if switch else "text")
    flags |= {other.partition(".")[0]: kind for other, name in same.items() if (kind := flags.get(name.partition(".")[0]))}
    return FlagTable(*_flags(rows), names, libraries, flags, same, words_of(engine), rows.get("usual", {}))


def command_of(engine: str) -> ModuleType:
    """Return the module that knows what an engine's flags mean together: it understands its command, and writes it."""
    return import_module(f"commtax.launch.{engine.replace('-', '_')}_command")


class FlagValues(dict[str, Value]):
    """The values of flags, by field. Each is an attribute too, "" where no flag sets it."""

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name, "")

    def __setattr__(self, name: str, value: Value) -> None:
        self[name] = value


@dataclass(frozen=True, slots=True)
class WrittenWord:
    """A value at the end of a flag's path, and how it was written."""

    value: str
    written: str


@dataclass(slots=True)
class FlagReading:
    """What a command was read to mean: values by field, remarks, and what is not understood."""

    values: FlagValues = field(default_factory=FlagValues)
    words: dict[str, WrittenWord] = field(default_factory=dict)  # of flags of techniques, by path
    notes: list[Note] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Note(code, text))

    def take(self, args: list[str], table: FlagTable) -> list[str]:
        """Keep the values of all flags, list what has no meaning as unread, and return the words that belong to no flag."""
        loose = []
        for name, value, written in _pairs(args, {**table.technique_flags, **table.flags}):
            switch, kind = table.flags.get(name.removeprefix("no-"), ("", ""))
            requested, quiet = self.keep_words(table, name, value, written), QUIET.get(name, ("", ""))[0]
            if not name:
                loose.append(written)
            elif name in table.flags:  # what is left to the engine is not kept
                key, kind = table.flags[name]
                read = _value(key, kind, value, written)
                if kind == "name":
                    ours = {theirs.lower(): word for theirs, word in table.names[key].items()}
                    self.unread += [] if str(read).lower() in ours else [written]
                    read = ours.get(str(read).lower(), "")
                self.values |= {} if read is None else {key: read}
            elif quiet == "prefixes":
                self.note("prefix caching", "prefix caching is on; --prefix-cache says how much of each prompt is found there")
            elif quiet == "unshared":
                self.compute_prompts_whole(written)
            elif requested or quiet or (value is not None and COMMON["unmodelled"].get(name) == value):
                continue
            elif kind == "on":
                self.values.pop(switch, None)
            else:
                self.unread.append(written)
        return loose

    def compute_prompts_whole(self, written: str) -> None:
        """Note that prefix caching is off, by what was written."""
        self.values.prefix_cache = 0
        how = "simulate --shared-prefix TOKENS, with and without it, says what that costs"
        self.note("prefix caching", f"{written}: prompts that share text are computed whole; {how}")

    def keep_words(self, table: FlagTable, name: str, value: str | None, written: str) -> bool:
        """Keep the values of a technique's flag by path, and return whether the flag is one."""
        off = name.startswith("no-") and name not in table.technique_flags
        name = name.removeprefix("no-") if off else name
        if name.partition(".")[0] not in table.technique_flags:
            return False
        if value is not None and (fault := json_fault(value)):
            raise Refusal(f"from: '{written.split()[0].partition('=')[0]}': {fault}", "from")
        for path, leaf in leaves("false" if off else "true" if value is None else value):
            key = ".".join([name, *path]).replace("_", "-") if not name.startswith("$") else name
            self.words[usual_key(table, key)] = WrittenWord(leaf, f"--{key} {leaf}" if path else written)
        return True


def usual_key(table: FlagTable, key: str) -> str:
    """Return a flag's path as techniques have it, whatever its spelling."""
    for other, usual in table.same.items():
        if key == other or key.startswith(f"{other}."):
            key = usual + key[len(other) :]
    return key


def _value(name: str, kind: str, value: str | None, written: str) -> Value | None:
    if kind == "on":
        return True if str(value).lower() not in ("false", "0", "no") else None
    if value is None:
        raise Refusal(f"from: '{written}': the flag needs a value", "from")
    if kind in ("text", "several", "name"):
        return value
    if value.lower() in LEFT_TO_THE_ENGINE:
        return None
    if "$" in value:
        raise Refusal(f"from: '{written}': the variable is not set in what was pasted", "from")
    try:
        number = PARSERS[kind](value, name)
        if number == -1 and name in COMMON["as_long_as_fits"]:
            return None
        if not {"int": number >= 1, "count": True, "share": 0 < number <= 1, "ratio": 0 <= number <= 1}[kind]:
            raise ValueError
    except ValueError:
        raise Refusal(f"from: '{written}': {RULES[kind]}", "from") from None
    return number


def _pairs(args: list[str], flags: Flags) -> Iterator[tuple[str, str | None, str]]:
    """Yield (flag, value, both as written) in order. The flag is "" for a word that belongs to none."""
    at = 0
    while at < len(args):
        word, at = args[at], at + 1
        if not _is_flag(word):
            yield "", word, word
            continue
        flag, equals, value = word.partition("=")
        kind = (flags.get(name := flag_name(flag)) or QUIET.get(name) or ("", ""))[1]
        most = 0 if equals else {"on": 0, "several": None}.get(kind, 1)
        words = list(takewhile(lambda one: not _is_flag(one), args[at:]))[:most]
        at += len(words)
        value = ",".join(words) if words else value
        yield name, value if equals or words else None, " ".join([word, *words])


def flag_name(flag: str) -> str:
    """Return a flag's name as tables have it: ``tp-size`` for ``--tp_size``."""
    return flag.lstrip(DASHES).replace("_", "-")


def _is_flag(word: str) -> bool:
    return word[:1] in DASHES and bool(word) and not re.fullmatch(r"-?\d+(\.\d+)?", word)


AUTO_EP = -1  # experts over tp x dp
PRICED_WHOLE = (
    "priced as whole experts spread over them: the same bytes and weights, and a busiest rank, which experts that are split do not "
    "have (--imbalance 1 leaves it out)"
)
LOAD = frozenset(name for name, option in options().items() if option.part in ("requests", "offered"))
"""What a benchmark sends; ``spread`` is that of the lengths it draws, as a share of their mean to either side."""
SETTABLE = tuple(dict.fromkeys((*COMMON["told"].split(), *options())))  # what a command may set, in this order
SHAPE = ("layers", "hidden", "heads", "kv_heads", "width", "experts", "vocab", "top_k")


@dataclass(frozen=True, slots=True)
class Servers:
    count: int = 1  # equal ones
    role: str = ""  # "prefill" or "decode" where a server does one of them
    prefill_tp: int = 1  # of the servers for prompts beside those that decode
    prefill_dp: int = 1
    prefill_workers: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Where a job runs. None or "" is what its command leaves to the engine."""

    nnodes: int | None = None
    gpus_per_node: int | None = None
    devices: tuple[str, ...] = ()
    address: str = ""  # where the hosts of one job meet
    chip: str = ""  # of the catalogue, where a manifest selects its hosts by it


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that was read. It names its model, or states the ``shape``."""

    engine: str
    options: FlagValues  # what it leaves to the engine is not in them
    version: str = ""
    phase: str = "serve"  # or train
    model: str = ""
    called: str = ""  # the name that clients call it
    shape: tuple[tuple[str, int], ...] = ()
    servers: Servers = Servers()
    place: LaunchPlace = LaunchPlace()
    stage_layers: int = 0  # of a chunk, where a command states that instead of the chunks
    slots: int = 0  # experts of all ranks, copies of popular ones among them, where it states that instead of the copies
    notes: tuple[Note, ...] = ()
    unread: tuple[str, ...] = ()
    client: bool = False  # it sends requests to a server that something else started

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes = {name: int(self.options.get(name, 1)) for name in SIZES}
        over_all = int(self.options.tp or 1) * int(self.options.dp or 1)
        return {axis: over_all if size == AUTO_EP else size for axis, size in sizes.items()}

    @property
    def num_gpus(self) -> int:
        all_of = self.servers
        of_prompts = all_of.prefill_workers * all_of.prefill_tp * all_of.prefill_dp
        return math.prod(self.axes[axis] for axis in AXES) * all_of.count + of_prompts

    def chunks_of(self, layers: int) -> int:
        """Return the chunks a rank of a model with so many layers, 0 where the command does not say."""
        whole = int(self.options.pp or 1) * self.stage_layers  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and self.options.schedule else int(self.options.chunks or 0)


def make_launch(engine: str, reading: FlagReading, loose: list[str], env: Mapping[str, str]) -> Launch:
    """Return the command of an engine, by its flags, the words that belong to none, and its variables."""
    values, trains = reading.values, program(engine).trains
    if not trains:
        values.setdefault("model", next((w for w in loose if w not in COMMON["subcommands"]), ""))
        _settle_serving(reading)
    command_of(engine).understand(reading, loose, env)
    shape = tuple((name, int(values[name])) for name in SHAPE if name in values)
    stated = FlagValues({name: value for name in SETTABLE if (value := values.get(name, "")) != "" and value is not False})
    place = LaunchPlace(int(values.nnodes or 0) or None, int(values.gpus_per_node or 0) or None, (), str(values.address))
    servers, (layers, slots) = Servers(role=str(values.role)), (int(values.get(name) or 0) for name in ("stage_layers", "slots"))
    named = "train" if trains else "serve", str(values.model), str(values.called)
    return Launch(engine, stated, "", *named, shape, servers, place, layers, slots, tuple(reading.notes), tuple(reading.unread))


def _settle_serving(reading: FlagReading) -> None:
    values = reading.values
    if values.max_num_batched_tokens != "" and int(values.max_num_batched_tokens) < 1:  # chunking switched off
        values.max_num_batched_tokens = ""
        reading.note("chunks", "prompts are not cut into chunks here; the price cuts them at the engine's usual size")
    if values.input_len != "":
        values.spread = values.get("range_ratio", 0.0)  # drawn from (1 - r) to (1 + r) of the stated length
    words = (values.request_rate, values.burstiness)
    rate, gaps = (float(word) if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", str(word)) else "" for word in words)
    # A finite rate makes requests in time, as many as are stated. Without one, clients make a closed loop, which has no end here.
    values.request_rate, values.burstiness = rate or "", gaps if rate else ""
    if not rate:
        values.num_prompts = ""
    if not values.lora:
        values.lora_rank = values.max_loras = ""
    elif values.lora_rank == "":
        values.lora_rank = rank = int(COMMON["lora_rank"])
        usual = f"{program(COMMON['lora_rank_of']).title}'s usual one"
        reading.note("lora rank", f"the adapters' rank is not said: {rank}, {usual}")
    values.dtype = str(values.quantization) or str(values.compute)
    values.library = COMMON["plain_library"] if values.plain_nccl else values.library


def group_attention(reading: FlagReading, groups: int) -> None:
    """Turn a server whose attention runs in ``groups`` into our sizes: tp is what is left of it inside a group."""
    values, total = reading.values, int(reading.values.tp or 1)
    if total % groups:
        raise Refusal(f"from: attention in {groups} groups does not divide the server's {total} GPUs", "from")
    if values.ep == "" and groups > 1:
        values.ep = total
        reading.note("experts spread", f"experts split over all {total} GPUs are {PRICED_WHOLE}")
    values.tp, values.dp = total // groups, groups
