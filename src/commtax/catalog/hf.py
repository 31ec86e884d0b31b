"""A Hugging Face ``config.json`` read into a ``Model``. What cannot be read is refused by name, never guessed.

Each family is one small function of ``families`` under ``@family``, with the defaults of its model class in transformers. A config
that leaves sizes out is completed from a bundled model of the same architecture.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from commtax.catalog.families.parts import ARCHITECTURES, Fields
from commtax.catalog.loader import letters_and_digits, stems, suggest, table
from commtax.catalog.quantisation import quantisation_of_config
from commtax.spec import Model
from commtax.statement import Note, Refusal

Config = Mapping[str, object]
NO_SIZE = ("max_position_embeddings", "num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "num_key_value_heads")
"""Numbers in which models of one shape may differ; a latent or compressed cache has no heads to count."""
NEEDED = ("hidden_size", "num_attention_heads", "vocab_size")
LEAST = 4  # sizes that two configs must have in common, and agree in, before one may speak for the other


def complete_config(config: Config, shared: tuple[str, ...]) -> tuple[Config, list[Note]]:
    """Return the config with each field of ``shared`` that it lacks, and a note for each. An entry lists names of one thing."""
    text, notes = text_section(config), list[Note]()
    filled, outer = dict(text), dict(config)
    lacking = [names.split() for names in shared if all(s.get(n) is None for s in (config, text) for n in names.split())]
    for key, theirs in _configs_of_same_sizes(text) if lacking else ():
        for names in list(lacking):
            sections = ((filled, text_section(theirs)), (outer, theirs))
            if match := next(((*pair, name) for pair in sections for name in names if name in pair[1]), None):
                place, section, name = match
                place[name] = section[name]
                notes.append(Note("completed", f"{name} is taken from {key}, a model of the same sizes: the config has none"))
                lacking.remove(names)
    return ({**outer, "text_config": filled} if text is not config else {**filled, **outer}), notes


def text_section(config: Config) -> Config:
    """Return the decoder's fields: a section of their own, or the config itself."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _configs_of_same_sizes(text: Config) -> Iterator[tuple[str, Config]]:
    for key in stems("models"):
        theirs: Config = table("models", key)["config"]
        sizes = {name: value for name, value in text_section(theirs).items() if type(value) is int and name not in NO_SIZE}
        common = [name for name in sizes if text.get(name) is not None]
        if len(common) >= LEAST and set(NEEDED) <= set(common) and all(text[name] == sizes[name] for name in common):
            yield key, theirs


FAMILIES = ("plain", "deepseek", "gemma", "nemotron", "others", "qwen")  # modules that fill the register when it is read
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "bf16": "bf16", "float": "fp32"}
NOTHING = Model("", "", 1, 1, (), (), 1)  # what is read of a config that cannot be
NEUTRAL = re.compile(
    r"^(architectures|auto_map|model_type|transformers_version|text_config|quantization_config|torch_dtype|dtype|use_cache)$"
    r"|_token_id$|^_|rope|rotary|dropout|initializer|norm_eps|epsilon|hidden_act|pretraining_tp|loss|output_(attentions|hidden)"
)  # fields that change no size, no count and no cost


def from_config(config: Mapping[str, object], key: str, read_as: str = "") -> Model:
    """Return the model of a ``config.json``, ``read_as`` a family's where one is named, or refuse it by the fields at fault."""
    listed = config.get("architectures")
    stated = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else ""
    name = find_family(read_as, config) if read_as else stated
    if not _is_registered(name):
        raise Refusal(f"model {key}: architecture {stated or 'missing'} is not supported{_nearest(config, stated)}", "model")
    whole, notes = complete_config(config, ARCHITECTURES[name].shared)
    model, fields = _read(name, whole)
    if fields.bad:
        raise Refusal(f"model {key}: {name} config lacks or has unreadable fields: {', '.join(dict.fromkeys(fields.bad))}", "model")
    dtype = next((s[k] for s in (whole, text_section(whole)) for k in ("torch_dtype", "dtype") if s.get(k)), "bfloat16")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise Refusal(f"model {key}: dtype {dtype!r} is not one of {', '.join(_DTYPES)}", "model")
    if model.tower is None and config.get("vision_config"):
        notes.append(Note("no-tower", f"the vision tower is left out: {name} is read without one"))
    if read_as:
        names = dict.fromkeys((*config, *text_section(config)))
        left = [one for one in names if one not in fields.names_read and not NEUTRAL.search(one)]
        unused = f"; ignored: {', '.join(left)}" if left else "; no field is ignored"
        notes.append(Note("read-as", f"assumed: {stated or 'a config without an architecture'} is read as {name}{unused}"))
    model = replace(model, key=key, architecture=name, dtype=_DTYPES[dtype], quant=quantisation_of_config(config, name, key))
    family, remarks = ARCHITECTURES[name], (*notes, *dict.fromkeys(fields.notes))
    streams, spread = not family.plain_residual, family.sequence_parallel_moe
    return replace(model, residual_stream=streams, moe_sequence_parallel=spread, notes=remarks)


def _read(name: str, config: Mapping[str, object]) -> tuple[Model, Fields]:
    fields, model = Fields(config), NOTHING
    try:
        model = ARCHITECTURES[name].read(fields)
        if any(x < 1 for a in model.attentions for x in (a.head_dim, a.v_head_dim, a.num_kv_heads)):
            fields.bad.append("hidden_size (smaller than the number of heads)")
        if not model.attentions:
            fields.bad.append("layers (none has attention)")
    except (TypeError, ZeroDivisionError, AttributeError, KeyError, IndexError, ValueError) as error:
        fields.bad.append(f"a field of the wrong type ({error})")
    return model, fields


def find_family(name: str, config: Mapping[str, object]) -> str:
    """Return the architecture that ``--as`` names, by itself or its family, with a vision tower where the config has sections."""
    wanted = letters_and_digits(name.lower())
    matches = [a for a in architectures() if wanted in (letters_and_digits(a.lower()), letters_and_digits(family_name(a)))]
    if not matches:
        families = sorted({family_name(a) for a in architectures()})
        raise Refusal(f"as '{name}': no such family{suggest(name, families)} ({', '.join(families)})", "as", families)
    return max(matches, key=lambda a: a.endswith("ForConditionalGeneration") == (text_section(config) is not config))


def _is_registered(name: str) -> bool:
    """Check whether a family reads it, looking first into a family whose name is in the architecture's."""
    for family in sorted(FAMILIES, key=lambda family: family not in name.lower()):
        if name in ARCHITECTURES:
            return True
        import_module(f"commtax.catalog.families.{family}")
    return name in ARCHITECTURES


def architectures() -> list[str]:
    """Return all that are read, family by family."""
    _is_registered("")
    return sorted(ARCHITECTURES, key=lambda name: ARCHITECTURES[name].read.__module__)


def family_name(architecture: str) -> str:
    """Return the name that one types for a family."""
    return re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel)$", "", architecture).lower()


SIMILAR = 0.6  # names of two families of one maker are at least so much alike
USUAL = "LlamaForCausalLM"  # whose layers most others follow


def _nearest(config: Mapping[str, object], stated: str) -> str:
    """Return the family that can read the config and knows most of its fields, and of equals one of a similar name, else Llama."""
    import difflib

    def fit(name: str) -> tuple[int, float, bool]:
        fields = _read(name, complete_config(config, ARCHITECTURES[name].shared)[0])[1]
        used = len(fields.names_read & {*config, *text_section(config)})
        alike = difflib.SequenceMatcher(None, family_name(stated), family_name(name)).ratio()
        return (-1 if fields.bad else used), alike if alike > SIMILAR else 0.0, name == USUAL

    name = max(architectures(), key=fit)
    if fit(name)[0] < 0:
        return f", and no family has the fields that it needs; the nearest by name is {family_name(name)}"
    return f"; nearest family: {family_name(name)} (--as {family_name(name)} reads it so, labelled as assumed)"
