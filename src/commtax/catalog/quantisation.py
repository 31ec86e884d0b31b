"""How checkpoints are stored: ``quantization_config``, scales and zero points included, and releases that no file describes.

What ModelOpt writes beside it (``hf_quant_config.json``) is read where the config says nothing. A checkpoint without a file is a
bundled model's release by its name, less endings that change no layer, stored as ending and maker tell, and a note says so.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypedDict

from commtax.catalog.loader import FACTS, aliases, normal, plain_record, stems
from commtax.files import table
from commtax.patterns import modules
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, Citation, Model, Quant
from commtax.statement import Note, Refusal

Config = Mapping[str, object]  # of others: a value of a wrong type is a ``TypeError`` or an ``AttributeError``
FormatReader = Callable[[Config, str], Quant]
IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")
"""Where the methods list what stays as it is."""
FOLDED = "patterns (count)"  # the one key of a list that was folded to patterns, each with the number of modules that it stands for
_TABLE = table("catalog/quantisation.toml")
ALGORITHMS: Mapping[str, Quant] = {
    name: Quant("", **{**row, "block": tuple(row.get("block", (0, 0)))}) for name, row in _TABLE["algorithms"].items()
}  # formats by the names that TensorRT Model Optimizer has for them
MXFP4, MXFP8, NVFP4, TILES = (ALGORITHMS[name] for name in ("MXFP4", "MXFP8", "NVFP4", "FP8_BLOCK_SCALES"))
Spelling = TypedDict("Spelling", {"names": list[tuple[str, str]], "plain": list[str], "expert_dtype": str}, total=False)  # noqa: UP013


@lru_cache(maxsize=1)
def _spellings() -> dict[str, Spelling]:
    """Return spellings by architecture: ``names``, our fragments and theirs, ``plain`` modules, the usual ``expert_dtype``."""
    return {name: one for one in table("catalog/spellings.toml")["family"] for name in one["architectures"]}


def quantisation_of_config(config: Config, architecture: str, key: str) -> Quant | None:
    """Return how a model's ``config.json`` stores its weights, or None for as they are. ``hf_quant_config`` may stand inside."""
    inner, beside = config.get("text_config"), config.get("hf_quant_config")
    places = [place for place in (config, inner) if isinstance(place, Mapping)]
    stated = next((q for place in places if (q := place.get("quantization_config"))), None)
    if isinstance(stated, Mapping) and isinstance(inside := stated.get("quantization"), Mapping):  # ModelOpt's own form, inside
        stated = {**stated, **inside}
    extra = beside.get("quantization") if isinstance(beside, Mapping) else None
    if not stated and not extra:
        return None
    quant = quant_from(stated or extra, key, architecture)
    if stated and extra and not quant.kv_dtype:
        quant = replace(quant, kv_dtype=_kv_dtype(extra))
    usual = _spellings().get(architecture, {}).get("expert_dtype", "")
    if quant.parts or next((kind for place in places if (kind := place.get("expert_dtype"))), usual) != "fp4":
        return quant
    # DeepSeek-V4 says in a field of its own that experts are of 4 bits with a scale of a byte for each 32; tokens come in fp8.
    experts = replace(MXFP4, method=quant.method, activations="fp8", only=("experts",), spelled=quant.spelled)
    return replace(quant, parts=(experts,))


def quant_from(config: object, key: str, architecture: str = "") -> Quant:
    """Return the storage that a config describes, or refuse an unsupported method, which is never guessed."""
    if not isinstance(config, Mapping):
        raise Refusal(f"model {key}: quantization_config is not a table", "model")
    try:
        quant = _complete_format(_read(config, key), config, _spellings().get(architecture, {}))
    except Refusal:
        raise
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise Refusal(f"model {key}: quantization_config has a field of the wrong type ({error})", "model") from None
    except ValueError as error:
        raise Refusal(f"model {key}: quantization_config has a bad number ({error})", "model") from None
    try:
        for names in (names for q in quant.formats for names in (q.ignored, q.only)):
            modules(names)
    except ValueError as error:
        raise Refusal(f"model {key}: quantization_config: {error}", "model") from None
    return quant


def _complete_format(quant: Quant, config: Config, family: Spelling) -> Quant:
    folded = [value[FOLDED] for name in IGNORED if isinstance(value := config.get(name), Mapping) and FOLDED in value]
    stand_for = {str(name): int(count) for patterns in folded for name, count in patterns.items()}
    counted = tuple({**stand_for, **dict(quant.counted)}.items())
    ignored, spelled = (*quant.ignored, *family.get("plain", ())), tuple((ours, theirs) for ours, theirs in family.get("names", ()))
    parts = tuple(replace(p, method=quant.method, counted=(*counted, *p.counted), spelled=spelled) for p in quant.parts)
    return replace(quant, ignored=ignored, counted=counted, spelled=spelled, parts=parts, kv_dtype=_kv_dtype(config))


def _module_names(value: object) -> tuple[str, ...]:
    """Return names of modules from a list or from a folded one, where the first expert stands for all, which are stored alike."""
    names = value[FOLDED] if isinstance(value, Mapping) and FOLDED in value else value or ()
    if not isinstance(names, Iterable):
        raise TypeError(f"'{type(names).__name__}' object is not iterable")
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError("a list of modules holds names")
    return tuple(dict.fromkeys(map(_first_expert, names)))


def _first_expert(name: str) -> str:
    return name if name.startswith("re:") else re.sub(r"\bexperts\.\d+\b", "experts.0", name)


def _kv_dtype(config: Config) -> str:
    """Return the KV cache's format, where the checkpoint has scales for it: engines take only fp8 by themselves."""
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo") or ""
    if isinstance(scheme, Mapping):
        return "fp8" if scheme.get("num_bits") == 8 and scheme.get("type") == "float" else ""
    return "fp8" if str(scheme).lower() in ("fp8", "fp8_e4m3") else ""


def _read(config: Config, key: str) -> Quant:
    # A config that names none: ModelOpt's names an algorithm, llm-compressor's has groups.
    implied = "modelopt" if config.get("quant_algo") else "compressed-tensors" if config.get("config_groups") else ""
    method = str(config.get("quant_method") or "").lower() or implied
    method = "modelopt" if method.startswith("modelopt") else method
    if method not in READERS:
        raise Refusal(f"model {key}: quant_method {method or 'missing'!r} is not supported (known: {', '.join(READERS)})", "model")
    return replace(READERS[method](config, key), method=method)


def _ignored_modules(config: Config, *names: str) -> tuple[str, ...]:
    return tuple(x for name in names or IGNORED for x in _module_names(config.get(name)))


def _whole(value: object) -> int:
    if isinstance(value, (int, float, str)):
        return int(value)
    raise TypeError(f"int() argument must be a string, a bytes-like object or a real number, not '{type(value).__name__}'")


def _table(value: object, method: str = "get") -> Config:
    if isinstance(value, Mapping):
        return value
    raise AttributeError(f"'{type(value).__name__}' object has no attribute '{method}'")


def _tile(value: object) -> tuple[int, int]:
    if isinstance(value, (Sequence, Mapping)):
        return int(value[0]), int(value[1])
    raise TypeError(f"'{type(value).__name__}' object is not subscriptable")


def _fp8(config: Config, key: str) -> Quant:
    """Read fp8, with one scale a tensor without tiles. Where modules were narrowed later, only that step lists the others."""
    block = _tile(tile) if (tile := config.get("weight_block_size")) else (0, 0)
    parts = _layer_formats(config, key) if config.get("quantized_layers") else ()
    return Quant("fp8", "fp8", block, ignored=_ignored_modules(config, *(IGNORED[:2] if parts else IGNORED)), parts=parts)


def _fixed_format(algorithm: str) -> FormatReader:
    return lambda config, _key: replace(ALGORITHMS[algorithm], ignored=_ignored_modules(config))


def _integer(config: Config, key: str) -> Quant:
    method, bits = str(config["quant_method"]).lower(), config.get("bits") or config.get("w_bit")
    if bits not in (4, 8):
        raise Refusal(f"model {key}: {method} with bits={bits} is not supported (4 or 8)", "model")
    width = max(0, _whole(config.get("group_size") or config.get("q_group_size") or 128))  # -1: one group a row
    ignored, indexed = _ignored_modules(config), method == "gptq"
    return Quant(method, f"int{bits}", (1, width), 2, zero_point_bits=_whole(bits), ignored=ignored, group_index=indexed)


def _bitsandbytes(config: Config, key: str) -> Quant:  # noqa: ARG001
    if not config.get("load_in_4bit"):
        return Quant("", "int8", (1, 0), ignored=_ignored_modules(config))
    # Double quantisation keeps an 8-bit scale for 64 values and an fp32 one for 256 of those.
    scale = 1 + 4 / 256 if config.get("bnb_4bit_use_double_quant") else 4
    return Quant("", "int4", (1, 64), scale, ignored=_ignored_modules(config))


def _modelopt(config: Config, key: str) -> Quant:
    if config.get("quantized_layers"):
        return _mix_formats(_layer_formats(config, key))
    if str(config.get("quant_algo")).upper() == "MIXED_PRECISION":
        return _compressed_tensors_format(config, key)
    return replace(_algorithm(config, key), ignored=_ignored_modules(config))


def _algorithm(config: Config, key: str) -> Quant:
    name = str(config.get("quant_algo") or "").upper()
    if (quant := ALGORITHMS.get(name)) is None:
        raise Refusal(f"model {key}: modelopt quant_algo {name or 'missing'!r} is not supported ({', '.join(ALGORITHMS)})", "model")
    group = _whole(config.get("group_size") or 0)
    return replace(quant, block=(1, group)) if group and quant.block[1] and quant.block[0] == 1 else quant


def _layer_formats(config: Config, key: str) -> tuple[Quant, ...]:
    layers = _table(config["quantized_layers"], "items")
    rows = [(str(name), 0, _table(settings)) for name, settings in layers.items() if FOLDED not in layers]
    for text, count in _table(layers.get(FOLDED, {}), "items").items():  # folded: patterns with their settings and counts
        name, _, settings = str(text).partition(" = ")
        rows.append((name, _whole(count), json.loads(settings)))
    groups: dict[Quant, dict[str, int]] = {}
    for name, number, how in rows:
        groups.setdefault(_algorithm(how, key), {})[_first_expert(name)] = number
    counted = {q: tuple((name, n) for name, n in names.items() if n) for q, names in groups.items()}
    return tuple(replace(q, only=tuple(names), counted=counted[q]) for q, names in groups.items())


def _mix_formats(parts: tuple[Quant, ...]) -> Quant:
    """Combine formats of listed modules: the narrowest, which most weights have, with the others as its parts."""
    order = sorted(parts, key=lambda q: (DTYPE_BYTES[q.dtype], -len(q.only)))
    return replace(order[0], parts=tuple(order[1:]))


def _compressed_tensors_format(config: Config, key: str) -> Quant:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise Refusal(f"model {key}: compressed-tensors without config_groups is not supported", "model")
    read = [replace(_group(group, key), ignored=_ignored_modules(config)) for group in groups.values()]
    whole = [q for q in read if not q.only]
    if len(whole) > 1:
        raise Refusal(f"model {key}: {len(whole)} config_groups are for every Linear; at most one is", "model")
    return replace(whole[0], parts=tuple(q for q in read if q.only)) if whole else _mix_formats(tuple(read))


def _group(group: Config, key: str) -> Quant:
    weights = _table(group.get("weights") or {})
    usual = "group" if weights.get("group_size") else "tensor"  # ModelOpt leaves it out
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy") or usual
    dtype = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}.get((str(kind), _whole(bits or 0)))
    if dtype is None:
        raise Refusal(f"model {key}: compressed-tensors weights of type {kind!r} with {bits} bits are not supported", "model")
    size = _whole(weights.get("group_size") or 0)
    if str(kind) == "float" and size == MXFP4.block[1]:
        quant = MXFP4 if dtype == "nvfp4" else MXFP8
    else:
        scale = 1.0 if dtype == "nvfp4" else 2.0 if dtype == "int4" else 4.0 if strategy == "tensor" else 2.0
        zero = 0 if weights.get("symmetric", True) or dtype != "int4" else 4
        quant = Quant("", dtype, _block(weights, strategy, size, key), scale_bytes=scale, zero_point_bits=zero)
    targets = group.get("targets")
    only = tuple(t for t in _module_names(targets) if t != "Linear")
    counted = tuple((str(n), int(c)) for n, c in targets[FOLDED].items()) if isinstance(targets, Mapping) else ()
    alone = dtype == "nvfp4" and quant.dtype == dtype and not group.get("input_activations")
    return replace(quant, only=only, counted=counted, weight_only=alone)


def _block(weights: Config, strategy: object, size: int, key: str) -> tuple[int, int]:
    if strategy == "block":
        return _tile(weights.get("block_structure") or TILES.block)
    blocks: dict[object, tuple[int, int]] = {"tensor": (0, 0), "channel": (1, 0), "group": (1, size), "tensor_group": (1, size)}
    if strategy not in blocks:
        raise Refusal(f"model {key}: compressed-tensors strategy {strategy!r} is not supported", "model")
    return blocks[strategy]


def _quark(config: Config, key: str) -> Quant:
    listed = _table(config.get("global_quant_config") or {}).get("weight") or {}
    weights = _table(listed[0] if isinstance(listed, list) else listed)
    dtype, scheme = str(weights.get("dtype")), str(weights.get("qscheme"))
    if (kind := f"{dtype} {scheme}") not in _TABLE["quark"]:
        raise Refusal(f"model {key}: quark weights of {dtype!r} with {scheme!r} scales are not supported", "model")
    return replace(ALGORITHMS[_TABLE["quark"][kind]], ignored=_ignored_modules(config))


READERS: dict[str, FormatReader] = {"fp8": _fp8, "fbgemm_fp8": _fixed_format("FP8_PER_CHANNEL_PER_TOKEN")}  # by output row
READERS |= {**{name: _fixed_format(name.upper()) for name in ("mxfp4", "mxfp8")}, "awq": _integer, "gptq": _integer}
READERS |= {"modelopt": _modelopt, "compressed-tensors": _compressed_tensors_format, "bitsandbytes": _bitsandbytes, "quark": _quark}
LONGEST_NAME = 200  # signs of a name without its owner; the Hub allows 96


@dataclass(frozen=True, slots=True)
class StorageRule:
    """How checkpoints with these names are stored: those of ``ids``, or with these ``endings``, ``by`` these organisations."""

    config: Mapping[str, object]
    source: str
    ids: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    mixture: bool = False  # of models with experts alone
    of: str = ""  # the bundled model, where the name does not tell it
    expert_dtype: str = ""
    longest: int = 0  # tokens, where its config says other than the bundled model's

    def base(self, name: str) -> str:
        """Return the name of the model that a checkpoint of this rule is made from, or "" where it is none."""
        organisation, _, last = name.rpartition("/")
        if self.knows(name):
            return self.of or next((last.removesuffix(end) for end in _endings() if last.endswith(end)), last)
        if self.by and organisation not in self.by:
            return ""
        return next((last.removesuffix(end) for end in self.endings if last.endswith(end)), "")

    def knows(self, name: str) -> bool:
        """Return whether it is what this checkpoint's own config says."""
        return normal(name) in map(normal, self.ids)

    def suits(self, model: Model) -> bool:
        family = not self.architectures or model.architecture in self.architectures
        return family and (not self.mixture or model.experts is not None)


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    return table(str(FACTS / "checkpoints.toml"))


@lru_cache(maxsize=1)
def rules() -> tuple[StorageRule, ...]:
    """Return all of them, in the order in which they are tried."""
    return tuple(plain_record(StorageRule, table, f"checkpoints {number}") for number, table in enumerate(_file()["rule"], start=1))


@lru_cache(maxsize=1)
def _endings() -> tuple[str, ...]:
    return tuple(sorted({end for rule in rules() for end in rule.endings}, key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class NameMatch:
    """The bundled model that a name means, how many tokens it takes where that is known to differ (0: as many), and by what."""

    key: str
    longest: int = 0
    by: str = "name"  # name: it is the model's own | release: its config is known | ending: all but what its name ends in


@lru_cache(maxsize=1)
def _releases() -> dict[str, NameMatch]:
    """Return the ids whose configs have, or are assumed to have, a bundled model's layers."""
    rows = ((x["ids"], x["of"], x.get("longest", 0), "ending" if x.get("assumed") else "release") for x in _file()["releases"])
    return {normal(name): NameMatch(of, longest, by) for ids, of, longest, by in rows for name in ids}


@lru_cache(maxsize=1)
def _models_by_ending() -> dict[str, NameMatch]:
    """Return bundled models and their releases by what their names end in, with and without the type that it says."""
    names = {**{alias.rpartition("/")[2]: key for alias, key in aliases("models").items()}, **{key: key for key in stems("models")}}
    usual = {**{name.removesuffix("-bf16"): key for name, key in names.items()}, **names}
    released = {name.rpartition("/")[2]: meaning for name, meaning in _releases().items()}
    return {**released, **{name: NameMatch(key) for name, key in usual.items()}}


@lru_cache(maxsize=1)
def _roots() -> dict[str, frozenset[str]]:
    """Return the models that names mean, by each name and by what is left of it as endings are taken off."""
    keys_of: dict[str, frozenset[str]] = {}
    for name, meaning in _models_by_ending().items():
        for root in _shortened_names(name):
            keys_of[root] = keys_of.get(root, frozenset()) | {meaning.key}
    return keys_of


def _shortened_names(name: str) -> list[str]:
    names, ending = [name], f"{_file()['endings']}$"
    while (match := re.search(ending, names[-1])) and match.start() > 0:
        names.append(names[-1][: match.start()])
    return names


@lru_cache(maxsize=1024)
def meaning(name: str) -> NameMatch | None:
    """Return what a name without organisation and format means, or None where it is no bundled model's, or might be one of several.

    >>> meaning("qwen3-4b-thinking-2507"), meaning("qwen3-5b"), meaning("mistral-7b-v0.9")
    (NameMatch(key='qwen3-4b', longest=262144, by='release'), None, None)
    """
    for short in _shortened_names(name) if len(name) <= LONGEST_NAME else ():
        if (match := _models_by_ending().get(short)) and short == name:
            return match
        if match:
            return replace(match, by="ending") if len(_roots()[short]) == 1 else None
    return None


def base_key(name: str) -> str:
    """Return the bundled model whose name this is, without organisation, or "" where it is none's."""
    match = _models_by_ending().get(name)
    return match.key if match and match.by == "name" else ""


def made_of(name: str) -> list[tuple[StorageRule, NameMatch]]:
    """List the rules that a checkpoint's name keeps to, each with the bundled model that it is made of."""
    wanted = normal(name.rstrip("/"))
    return [(rule, match) for rule in rules() if (base := rule.base(wanted)) and (match := meaning(base))]


def release_of(name: str) -> NameMatch | None:
    """Return the bundled model that a name without a stated format means: it is stored as that one."""
    wanted = normal(name.rstrip("/"))
    if match := _releases().get(wanted):
        return match
    match = meaning(wanted.rpartition("/")[2])  # a copy that somebody else keeps has a release's name, and a config of its own
    return replace(match, by="name") if match and match.by == "release" else match


def taken_as(name: str, base: Model, match: NameMatch, rule: StorageRule | None = None) -> Model:
    """Return the base model as its release has it, stored as the rule says, with a note on what it was taken for."""
    quant = None if rule else base.quant
    if rule and rule.config:
        config: Config = {"quantization_config": rule.config, "expert_dtype": rule.expert_dtype}
        quant = quantisation_of_config(config, base.architecture, base.key)
    sure = bool(rule and rule.knows(name))
    longest = (rule.longest if rule and sure else 0) or match.longest or base.max_len
    how = f" with {quant.title if quant else 'plain weights'}" if rule else ""
    length = f", {longest:,} tokens long" if longest != base.max_len else ""
    reason = ": its config is not at hand"
    if sure:
        reason = ""
    elif match.by == "ending":
        reason = ": same architecture by its name; its config is not at hand, and length and vocabulary may differ"
    elif not rule:
        reason = ": same architecture" if match.by == "release" else f": the same name; {reason[2:]}"
    note = Note("taken-as", f"{name} is taken as {base.key}{how}{length}{reason}")
    source = Citation(rule.source, "", "") if rule else Citation(f"config.json of {base.key}, whose layers it has", "", "")
    key = normal(name.rstrip("/")).rpartition("/")[2]
    called = name if "/" in name else next((alias for alias in base.aliases if normal(alias).endswith(f"/{key}")), name)
    release = replace(base, key=key, quant=quant, max_len=longest, aliases=(called,), source=source, stored_bytes=0)
    return replace(release, notes=(*base.notes, note))
