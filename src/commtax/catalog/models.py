"""Models by name: the bundled catalogue, a release of one, a local folder with ``config.json``, or the Hugging Face Hub."""

import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from commtax.catalog.hf import from_config
from commtax.catalog.loader import did_you_mean, find, normal, plain_record, table
from commtax.catalog.quantisation import NameMatch, StorageRule, base_key, made_of, release_of, taken_as
from commtax.files import Json, JsonObject, expand_home, parse_json, read_json
from commtax.records import dataclass
from commtax.spec import Citation, Model
from commtax.statement import Note, Refusal

MAX_HEADER_BYTES = 100 * 2**20
Config = JsonObject  # a ``config.json``, as it is


@dataclass(frozen=True, slots=True)
class PublishedCount:
    """A parameter count as somebody else printed it, and what it counts beyond our inventory."""

    params: int
    kind: str  # total | active
    digits: int  # significant digits; 0: exact
    beyond: int  # parameters it counts that the inventory does not hold: those of ``includes``
    includes: str
    source: Citation


@dataclass(frozen=True, slots=True)
class ModelFile:
    key: str
    aliases: tuple[str, ...]
    config: Config
    source: Mapping[str, str]
    published: tuple[Mapping[str, object], ...]
    assumed_length: bool = False  # no public statement of it was found


@lru_cache(maxsize=256)
def _file(key: str) -> ModelFile:
    file = plain_record(ModelFile, table("models", key), f"models/{key}")
    if file.key != key:
        raise Refusal(f"models/{key}: wrong key {file.key!r}")
    return file


def published_counts(key: str) -> list[PublishedCount]:
    return [PublishedCount(**{**row, "source": Citation(**row["source"])}) for row in table("models", key)["published"]]


def bundled_model(name: str) -> Model | None:
    """Return a bundled model by key or alias, without a look at disk or network. The name that was used is its first alias.

    >>> bundled_model("meta-llama/Llama-3.1-8B-Instruct").aliases[0]
    'meta-llama/Llama-3.1-8B-Instruct'
    """
    return _load_called(key, name.strip()) if (key := find("models", name)) else None


def model(name: str, read_as: str = "") -> Model:
    """Return a model by key, alias or Hub id, or of a folder (or file) with its ``config.json``, read as a named family's.

    >>> model("meta-llama/Llama-3.1-8B").key
    'llama-3.1-8b'
    """
    if not name.strip():
        raise Refusal("model: the name is empty (see commtax catalog models)", "model")
    if decoder := bundled_model(name):
        if read_as:
            raise Refusal(f"as '{read_as}': {decoder.key} is in the catalogue as {decoder.architecture}; leave it out", "as")
        return decoder
    path = expand_home(name)
    if os.path.exists(path):
        return _load_folder(path, read_as)
    if name.startswith((".", "/", "~")) or name.endswith(".json"):
        instead = "name a folder with config.json, that file itself, or a model of commtax catalog models"
        raise Refusal(f"model '{name}': no such folder or file; {instead}", "model")
    if decoder := variant(name):
        return decoder
    if (made := name.lower().removesuffix("-gguf")) != name.lower():
        base = origin(made) or "the one that they are made of"
        raise Refusal(f"model '{name}': GGUF files of several formats, of which none is priced; name their model: {base}", "model")
    unknown = f"unknown model '{name}'{did_you_mean(name, 'models')}"
    if name.count("/") != 1:
        raise Refusal(f"{unknown} (commtax catalog models lists them; a folder with config.json or a Hub id works too)", "model")
    try:
        return _from_hub(name, read_as)
    except LookupError as error:
        raise Refusal(f"{unknown} ({error})", "model") from None


@lru_cache(maxsize=128)
def variant(name: str) -> Model | None:
    """Return a bundled model's release, or how it is stored, by a checkpoint's name, unless its own config is on this machine.

    >>> str(variant("nvidia/Llama-3.1-8B-Instruct-FP8").notes[0])
    'nvidia/Llama-3.1-8B-Instruct-FP8 is taken as llama-3.1-8b with modelopt fp8: its config is not at hand'
    """
    if (reading := _read_name(name)) is None:
        return None
    rule, meaning = reading
    if meaning.by != "release" and not (rule and rule.knows(name)):
        from commtax.catalog import hub

        if hub.is_cached(name):
            return _from_hub(name, "")
    return known_model(name)


def known_model(name: str) -> Model | None:
    """Return a bundled model by key, alias or checkpoint name, without access to disk or network."""
    if (reading := _read_name(name)) is None:
        return bundled_model(name)
    rule, meaning = reading
    if not rule and base_key(normal(name)):
        return _load_called(meaning.key, name)
    return taken_as(name, _load_bundled(meaning.key), meaning, rule)


def _read_name(name: str) -> tuple[StorageRule | None, NameMatch] | None:
    """Return what a name that is not in the catalogue tells: a format's rule, where it ends in one, and the model."""
    if find("models", name):
        return None
    for rule, meaning in made_of(name):
        if rule.suits(_load_bundled(meaning.key)):
            return rule, meaning
    return (None, plain) if (plain := release_of(name)) else None


def origin(name: str) -> str:
    """Return the bundled model that a name means, as it is or stored in another way, or "" where it means none."""
    reading = _read_name(name)
    return reading[1].key if reading else find("models", name)


@lru_cache(maxsize=256)
def _load_called(key: str, name: str) -> Model:
    """Return a bundled model whose first alias is the named checkpoint, so that this one is what engines load."""
    made, wanted = _load_bundled(key), normal(name)
    spelled = (alias for alias in made.aliases if wanted in (plain := normal(alias), plain.rpartition("/")[2]))
    called = next(spelled, name if "/" in name else "") if wanted != key else ""
    return replace(made, aliases=tuple(dict.fromkeys((called, *made.aliases)))) if called else made


@lru_cache(maxsize=128)
def _load_bundled(key: str) -> Model:
    file = _file(key)
    made = from_config(file.config, key)
    why = f"{key}: its longest context, {made.max_len:,} tokens, is assumed: no public copy of its config was found"
    notes = (*made.notes, Note("assumed-length", why)) if file.assumed_length else made.notes
    return replace(made, aliases=file.aliases, source=Citation(**file.source), notes=notes)


def _load_folder(path: Path, read_as: str) -> Model:
    file = path / "config.json" if path.is_dir() else path
    folder, extra = file.parent, file.parent / "hf_quant_config.json"
    if not os.path.exists(file):
        raise Refusal(f"model '{path}': the folder has no config.json", "model")
    config = _object(read_json(file, "model"), str(file))
    if extra.is_file():
        config["hf_quant_config"] = _object(read_json(extra, "model"), str(extra))
    whole = path.is_dir() or file.name == "config.json"
    key = folder.resolve().name if whole else file.stem
    where = str((folder if whole else file).resolve())  # what an engine is started with
    decoder = replace(from_config(config, key, read_as), aliases=(where,), source=Citation(str(file), "", ""))
    stored = 0  # without heads for multi-token prediction and layers beyond the last
    for shard in sorted(shard for shard in folder.glob("*.safetensors") if shard.is_file()):
        spans = (span_of(entry) for name, entry in safetensors_header(shard)[0].items() if _is_decoders(name, decoder.num_layers))
        stored += sum(end - start for start, end in spans)
    return replace(decoder, stored_bytes=stored)


def _object(table: Json, name: str) -> Config:
    if not isinstance(table, dict):
        raise Refusal(f"model '{name}': not a JSON object", "model")
    return table


def _is_decoders(name: str, num_layers: int) -> bool:
    parts = name.split(".")
    beyond = any(a == "layers" and b.isdigit() and int(b) >= num_layers for a, b in pairwise(parts)) and "vision" not in name
    return name != "__metadata__" and "mtp" not in parts and not beyond


def config(name: str) -> Config:
    """Return the raw ``config.json`` of a bundled model or a local folder."""
    if key := find("models", name):
        return dict(_file(key).config)
    path = expand_home(name)
    file = path / "config.json" if os.path.isdir(path) else path
    if not os.path.exists(file):
        raise Refusal(f"model '{name}': no such folder, and not in the catalogue{did_you_mean(name, 'models')}", "model")
    return _object(read_json(file, "model"), str(file))


def safetensors_header(shard: Path) -> tuple[Config, int]:
    """Return the JSON header of a safetensors file, and where its data begins: eight bytes of length, then that many of JSON."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > min(size, MAX_HEADER_BYTES):
            raise Refusal(f"{shard}: not a safetensors file, or truncated ({size:,} bytes)")
        try:
            table = _object(parse_json(file.read(length), str(shard)), str(shard))
            ends = [span_of(entry)[1] for name, entry in table.items() if name != "__metadata__"]
        except (ValueError, RecursionError):
            raise Refusal(f"{shard}: its safetensors header cannot be read") from None
    if size < 8 + length + max(ends, default=0):
        raise Refusal(f"{shard}: truncated, {8 + length + max(ends):,} bytes expected and {size:,} found")
    return table, 8 + length


def span_of(entry: Json) -> tuple[int, int]:
    """Return where the bytes of a tensor begin and end among the data, as the header's entry tells."""
    match entry:
        case {"data_offsets": [int(start), int(end)]} if 0 <= start <= end:
            return start, end
    raise ValueError("offsets")


@lru_cache(maxsize=64)
def _from_hub(name: str, read_as: str) -> Model:
    from commtax.catalog import hub  # sockets and threads: for those who name a model of the Hub

    config = _object(parse_json(hub.contents(name), f"model '{name}'"), name)
    if "quantization_config" not in config and (beside := hub.optional_file(name, "hf_quant_config.json")):
        config["hf_quant_config"] = _object(parse_json(beside, f"model '{name}'"), name)
    decoder = from_config(config, name.split("/")[1].lower(), read_as)
    source = Citation(f"config.json of {name} on the Hugging Face Hub", f"https://huggingface.co/{name}", "")
    return replace(decoder, aliases=(name,), source=source)
