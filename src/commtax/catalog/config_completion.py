"""A config that leaves out what its family needs has it from a bundled model of the same sizes, and says so."""

from collections.abc import Iterator, Mapping

from commtax.catalog.loader import stems, table
from commtax.statement import Note

Config = Mapping[str, object]
NO_SIZE = ("max_position_embeddings", "num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "num_key_value_heads")
"""Numbers in which models of one shape may differ; a latent or compressed cache has no heads to count."""
NEEDED = ("hidden_size", "num_attention_heads", "vocab_size")
LEAST = 4
"""Sizes that two configs must have in common, and agree in, before one may speak for the other."""


def complete_config(config: Config, shared: tuple[str, ...]) -> tuple[Config, list[Note]]:
    """The config with each field of ``shared`` that it lacks, and a note for each. An entry lists names of one thing."""
    text, notes = text_section(config), list[Note]()
    filled, outer = dict(text), dict(config)
    lacking = [names.split() for names in shared if all(s.get(n) is None for s in (config, text) for n in names.split())]
    for key, theirs in _configs_of_same_sizes(text) if lacking else ():
        for names in list(lacking):
            for place, section in ((filled, text_section(theirs)), (outer, theirs)):
                if name := next((n for n in names if n in section), ""):
                    place[name] = section[name]
                    notes.append(Note("completed", f"{name} is taken from {key}, a model of the same sizes: the config has none"))
                    lacking.remove(names)
                    break
    return ({**outer, "text_config": filled} if text is not config else {**filled, **outer}), notes


def text_section(config: Config) -> Config:
    """The decoder's fields: a section of their own, or the config itself."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _configs_of_same_sizes(text: Config) -> Iterator[tuple[str, Config]]:
    """Bundled configs that agree in every size."""
    for key in stems("models"):
        theirs: Config = table("models", key)["config"]
        sizes = {name: value for name, value in text_section(theirs).items() if type(value) is int and name not in NO_SIZE}
        common = [name for name in sizes if text.get(name) is not None]
        if len(common) >= LEAST and set(NEEDED) <= set(common) and all(text[name] == sizes[name] for name in common):
            yield key, theirs
